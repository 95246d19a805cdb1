"""Interrupts: an exception at every point of a step, a capture, a checkpoint, an assignment and the end of a session.

A program is a list of acts. In a trial the program runs anew up to an act, and the act gets one exception: KeyboardInterrupt
where CPython would run a signal handler; a failing status of one call of the C library, or MemoryError in its place; an
allocation of the library that fails. Afterwards parameters, optimiser, step count, generator, tape, gradients, live memory,
locks and files must be those before the act or those after it, bit for bit, and the program's next step must give what it gives
from there.
"""

import faulthandler
import functools
import gc
import multiprocessing
import os
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from audit import faults
from audit.environment import processors
from audit.injection import Injector, LibraryCalls, interrupt
from tlrt import Session, checkpoint, optim
from tlrt._binding import handles, library
from tlrt._terminal import Progress
from tlrt.errors import OutOfMemoryError
from tlrt.nn import schedules
from tlrt.tape import AnyBuffer

#: what is raised: an interrupt, a status other than OK or MemoryError of a library call, a failing allocation
KINDS = ("interrupt", "status", "memory", "allocation")
OPTIMIZERS: Mapping[str, Callable[..., Any]] = {
    "sgd": optim.SGD, "momentum": functools.partial(optim.SGD, momentum=0.9, nesterov=True), "adam": optim.Adam,
    "adamw": optim.AdamW,
}  # fmt: skip
#: seconds that a trial may take before it counts as a deadlock
_HANG = 1500
_X = np.linspace(-1, 1, 12, dtype=np.float32).reshape(4, 3)
_LABELS = np.array([0, 1, 1, 0])


class Act(NamedTuple):
    """One thing that a program does. Of an act of several calls each part of the state is that before or that after; one that
    only prepares others is not interrupted."""

    name: str
    run: Callable[[], Any]
    several: bool = False
    prepares: bool = False


class Program:
    """A small classifier with its optimiser; a subclass says what it does."""

    def __init__(self, device: str, optimizer: str, folder: Path) -> None:
        self.folder = folder
        self.session = s = Session(device, seed=3)
        rng = np.random.default_rng(1)
        self.w, self.b = s.param(rng.standard_normal((2, 3)), "w"), s.param(np.zeros(2), "b")
        for p in (self.w, self.b):
            _ = p.mirror
        self.optimizer = OPTIMIZERS[optimizer]([self.w, self.b], lr=0.125)
        self.made: dict[str, Any] = {}

    def acts(self) -> list[Act]:
        """What it does, in order."""
        raise NotImplementedError

    def loss(self, x: Any, labels: Any) -> Any:
        s: Any = self.session
        return s.cross_entropy(s.dropout(s.linear(self.w, self.b, s.const(x)), 0.25), labels)

    def train(self, x: Any = _X, labels: Any = _LABELS) -> Any:
        s = self.session
        loss = self.loss(x, labels)
        s.backward(loss)
        s.clip_grad_norm(1.0)
        self.optimizer.step()
        return loss

    def train_and_reset(self) -> None:
        self.train()
        self.session.reset()

    def parts(self) -> dict[str, Any]:
        """The state by parts."""
        s = self.session
        memory = None if s.device.closed else s.device.memory()
        grads = {p.name: g.numpy().tobytes() for p, g in s.gradients.items()}
        nodes = [(n.name, n.shape, n.requires_grad, n.parents, n.buffer.numpy().tobytes()) for n in s.tape.nodes]
        return {
            "model": [*map(_content, s.parameters.values()), self.optimizer._closed, *_optimizer_state(self.optimizer)],
            "generator": (s.seed, s.counter),
            "tape": (s._closed, s.tape._released, len(s._nats), nodes),
            "gradients": grads,
            "memory": (0, 0) if memory is None else (memory.live_bytes, memory.live_buffers),
            "files": ({p.name: p.read_bytes() for p in self.folder.iterdir()}, len(os.listdir("/proc/self/fd"))),
            "locks": self.locks(),
        }

    def locks(self) -> Any:
        """What must be right while an exception is still handled: its traceback keeps frames."""
        s = self.session
        free = [not lock.locked() for lock in (s._turn._lock, self.optimizer._lock)]
        locks: tuple[Any, ...] = (handles._lock, library._lock)
        free += [not lock._is_owned() for lock in locks]
        # a recorder that is over observes nothing, and goes with the next operation
        observers = [r for r in (*s.device._observers, *handles._observers_of_all) if r.is_active]
        return free, observers, _records(s)

    def next_step(self) -> Any:
        """What the program's next step gives: its loss, and the state after it; or what a closed session still holds."""
        s = self.session
        if s._closed:
            s.close()
            return s.device.closed, [p.value.tobytes() for p in s.parameters.values()]
        s.reset()
        s.counter = 5
        loss = self.train().item()
        return loss, self.parts()

    def close(self) -> None:
        self.session.close()


def _records(session: Any) -> bool:
    """Whether what follows is recorded for backward."""
    s = session
    return bool(s._closed or s.tape._records())


def _content(parameter: Any) -> Any:
    """A parameter's value as the device and the host have it; they must agree."""
    device = None if parameter._mirror is None else parameter._mirror.numpy(parameter.shape).tobytes()
    host = None if parameter._host is None else parameter._host.astype("f8" if device and len(device) > 4 * parameter._host.size
                                                                       else "f4").tobytes()  # fmt: skip
    return device or host, "disagree" if device and host and device != host else ""


def _optimizer_state(o: Any) -> Iterator[Any]:
    yield from (o.steps, o._settings())
    yield from (None if b.released else b.numpy().tobytes() for buffers in o._state.values() for b in buffers)


class Training(Program):
    """A step with all that belongs to it, operation by operation."""

    def acts(self) -> list[Act]:
        s: Any = self.session
        made = self.made

        def put(name: str, make: Callable[[], Any]) -> Act:
            return Act(name, lambda: made.update({name: make()}))

        def evaluate() -> Any:
            with s.no_grad():
                return s.tanh(made["linear"])

        def schedule() -> None:
            self.optimizer.lr = schedules.cosine(self.optimizer.steps, peak=0.125, total=9)

        return [
            put("const", lambda: s.const(_X)), put("use w", lambda: s.use(self.w)), put("use b", lambda: s.use(self.b)),
            put("linear", lambda: s.linear(made["use w"], made["use b"], made["const"])),
            put("no_grad", evaluate),
            put("dropout", lambda: s.dropout(made["linear"], 0.25)),
            put("view", lambda: s.reshape(made["dropout"], (2, 4))),
            put("number", lambda: s.mul(made["view"], 2.0)), put("logits", lambda: s.reshape(made["number"], (4, 2))),
            put("loss", lambda: s.cross_entropy(made["logits"], _LABELS)),
            put("square", lambda: s.square(made["linear"])), put("mean", lambda: s.reduce_mean(made["square"])),
            Act("first backward", lambda: s.backward(made["mean"])), Act("backward", lambda: s.backward(made["loss"])),
            Act("clip", lambda: s.clip_grad_norm(0.5)), Act("schedule", schedule), Act("step", self.optimizer.step),
            Act("item", lambda: made["loss"].item()), Act("reset", s.reset),
        ]  # fmt: skip


class Capturing(Program):
    """A step captured, replayed with what may change between replays, and closed."""

    def acts(self) -> list[Act]:
        s, made = self.session, self.made

        def capture() -> None:
            made["step"] = s.capture(self.train, _X, _LABELS)

        def replay() -> None:
            made["step"](_X, _LABELS)

        return [
            Act("capture", capture, True), Act("replay", replay, True), Act("set", lambda: self.w.set(np.ones((2, 3)))),
            Act("replay after set", replay, True), Act("close", lambda: made["step"].close()),
        ]  # fmt: skip

    def next_step(self) -> Any:
        step = self.made.get("step")
        if step is not None and not step.closed:
            self.session.counter = 5
            return step(_X, _LABELS).item(), {**self.parts(), "memory": 0}
        return super().next_step()


class Checkpoint(Program):
    """Checkpoints written anew and over an old one, and loaded into a program that has gone on."""

    def acts(self) -> list[Act]:
        def save(name: str) -> Callable[[], Any]:
            return lambda: checkpoint.save(self.folder / name, self.session, self.optimizer, {"epoch": 2})

        def load(name: str) -> Callable[[], Any]:
            return lambda: checkpoint.load(self.folder / name, self.session, self.optimizer)

        return [
            Act("save", save("a")), Act("train", self.train_and_reset, prepares=True),
            Act("save over", save("a")), Act("save another", save("b")), Act("load", load("a")),
        ]  # fmt: skip


class Assignment(Program):
    """New values for parameters and the optimiser, from the host and from the device."""

    def acts(self) -> list[Act]:
        s, made = self.session, self.made

        def take() -> None:
            made["value"] = AnyBuffer.upload(np.full((2, 3), 0.5), s.device)

        def train(wanted: bool) -> None:
            self.b.requires_grad = wanted

        def state() -> None:
            made["state"] = self.optimizer.state()

        return [
            Act("set", lambda: self.w.set(np.full((2, 3), 2.0))), Act("upload", lambda: self.w.mirror),
            Act("take", take), Act("assign", lambda: self.w.assign(made["value"])),
            Act("value", lambda: self.w.value), Act("state", state),
            Act("load_state", lambda: self.optimizer.load_state(*made["state"])),
            Act("freeze", lambda: train(False)), Act("thaw", lambda: train(True)),
        ]  # fmt: skip


class End(Program):
    """A session with a captured step, values on the device alone and a tape, closed."""

    def acts(self) -> list[Act]:
        def begin() -> None:
            self.made["step"] = self.session.capture(self.train, _X, _LABELS)
            self.made["loss"] = self.loss(_X, _LABELS)
            self.session.backward(self.made["loss"])

        return [Act("begin", begin, prepares=True), Act("close", self.session.close), Act("again", self.session.close)]


PROGRAMS: Mapping[str, Callable[[Path], Program]] = {
    **{f"step {o}": functools.partial(Training, "cpu", o) for o in OPTIMIZERS},
    "step adam spec": functools.partial(Training, "spec", "adam"),
    "capture": functools.partial(Capturing, "cpu", "adamw"),
    "checkpoint": functools.partial(Checkpoint, "cpu", "adamw"),
    "assignment": functools.partial(Assignment, "cpu", "momentum"),
    "end": functools.partial(End, "cpu", "adamw"),
}  # fmt: skip


class Trials:
    """The trials of one program: what it should leave, found once, and one trial after the other."""

    def __init__(self, name: str) -> None:
        self.name = name
        with self._program() as program:
            self.acts = program.acts()
        self.states, self.steps = [], []
        for count in range(len(self.acts) + 1):
            with self._program(count) as program:
                self.states.append(program.parts())
                self.steps.append(program.next_step())

    @contextmanager
    def _program(self, count: int = 0) -> Iterator[Program]:
        """A program after that many of its acts."""
        with tempfile.TemporaryDirectory() as folder:
            program = PROGRAMS[self.name](Path(folder))
            for act in program.acts()[:count]:
                act.run()
            yield program
            program.close()
        del program
        gc.collect()  # sessions are cycles; each device still open would observe the next capture

    def run(self, act: int, place: int, inject: Injector) -> tuple[str | None, list[str]]:
        """A trial: where the exception came, or None if the act has no such point; and what is wrong after it."""
        several = self.acts[act].several
        allowed = self.states[act : act + 2]
        wrong: list[str] = []

        def look() -> None:
            found = program.locks()
            if found not in [state["locks"] for state in allowed]:
                wrong.append(f"locks while the exception is handled: {found}")

        with self._program(act) as program:
            run = program.acts()[act].run
            try:
                where = inject(run, place, look)
            except Exception as error:
                return "?", [f"{type(error).__name__}: {str(error)[:200]}"]
            if where is None:
                return None, []
            found = program.parts()
            if found["memory"] not in [state["memory"] for state in allowed]:
                gc.collect()
                found = program.parts()
            ends = [i for i, state in enumerate(allowed) if found == state]
            if not ends:
                differing = [[k for k in found if found[k] != state[k]] for state in allowed]
                if not several or set(differing[0]) & set(differing[1]):
                    wrong.append(
                        f"neither the state before (other {differing[0]}) nor that after (other {differing[1]})"
                    )
                ends = [0, 1]
            expected = [self.steps[act + i] for i in ends]
            try:
                step = program.next_step()
                if step not in expected and (not several or step[0] not in [e[0] for e in expected]):
                    wrong.append("the next step is not right")
            except Exception as error:
                wrong.append(f"the next step raises {type(error).__name__}: {str(error)[:200]}")
        return where, wrong


@contextmanager
def injector(kind: str) -> Iterator[Injector]:
    """What raises exceptions of a kind."""
    with ExitStack() as stack:
        if kind == "interrupt":
            yield interrupt
        elif kind == "allocation":
            yield _fail_allocation(faults._Switch())
        else:
            calls = stack.enter_context(LibraryCalls().installed())
            yield calls.failing(OutOfMemoryError.status if kind == "status" else 0)


def _fail_allocation(switch: Any) -> Injector:
    def inject(work: Callable[[], Any], place: int, meanwhile: Callable[[], Any]) -> str | None:
        switch.fail(place + 1, "one")
        try:
            work()
        except OutOfMemoryError:
            meanwhile()
        finally:
            _, failed, where = switch.stop()
        return where if failed else None

    return inject


@functools.cache
def _trials(name: str) -> Trials:
    gc.collect()
    gc.freeze()
    return Trials(name)


def _work(kind: str, program: str, act: int, first: int, step: int) -> tuple[int, list[str]]:
    """Trials of every step-th point of an act from the first; how many there were, and what failed."""
    faulthandler.dump_traceback_later(_HANG, exit=True)
    sys.unraisablehook = lambda _: None  # Python ignores what is raised in a finaliser, and says so
    count, failures = 0, []
    with injector(kind) as inject:
        trials = _trials(program)
        for place in range(first, sys.maxsize, step):
            where, wrong = trials.run(act, place, inject)
            if where is None:
                break
            count += 1
            failures += [f"{program}, {trials.acts[act].name}, {kind} {place} at {where}: {text}" for text in wrong]
            if len(failures) > 20:
                break
    faulthandler.cancel_dump_traceback_later()
    return count, failures


def campaign(
    every: int = 1, kinds: Sequence[str] = KINDS, programs: Sequence[str] = tuple(PROGRAMS), workers: int | None = None
) -> dict[str, Any]:
    """Every `every`-th point of each kind in every act of the programs, in processes. Raises BuildError."""
    start, workers = time.monotonic(), workers or processors()
    acts = {name: [i for i, act in enumerate(_trials(name).acts) if not act.prepares] for name in programs}
    rows: dict[Any, dict[str, Any]] = {
        (kind, name): {"kind": kind, "program": name, "points": 0} for kind in kinds for name in programs
    }
    failures: list[str] = []
    context = multiprocessing.get_context("spawn")
    before = os.environ.get(library.ENVIRONMENT)
    with Progress(float(len(kinds) * sum(map(len, acts.values()))), "acts") as progress:
        for kind in kinds:
            if kind == "allocation":
                os.environ[library.ENVIRONMENT] = str(faults.build())
            try:
                with ProcessPoolExecutor(workers, context) as pool:
                    jobs = {
                        pool.submit(_work, kind, name, act, first * every, every * workers): (kind, name)
                        for name, places in acts.items() for act in places for first in range(workers)
                    }  # fmt: skip
                    for job in as_completed(jobs):
                        count, wrong = job.result()
                        rows[jobs[job]]["points"] += count
                        failures += wrong
                        progress.advance(1 / workers, f"{jobs[job][1]}, {kind}")
            finally:
                if before is None:
                    os.environ.pop(library.ENVIRONMENT, None)
                else:
                    os.environ[library.ENVIRONMENT] = before
    counts = list(rows.values())
    return {"points": sum(r["points"] for r in counts), "every": every, "programs": counts, "failures": failures,
            "seconds": round(time.monotonic() - start, 1)}  # fmt: skip
