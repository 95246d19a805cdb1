"""Contention: threads that use one session, one tape or one captured step at once, and forks beside busy threads.

Nothing of this is promised to succeed: each call is refused with an error of the library, or its result is what one thread alone
gets, bit for bit. A step that counts itself has moved its parameter as often as it says. A child of a fork can compute.
"""

import faulthandler
import os
import random
import signal
import sys
import threading
import time
import traceback
import warnings
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from tlrt import Session, Tape, kernels, optim
from tlrt import device as open_device
from tlrt._terminal import Progress
from tlrt.errors import TorchleanError

THREADS = 8
SUBJECTS = ("session", "tape", "capture")
#: seconds after which a thread, or a child, is taken to be in a deadlock
_HANG = 1200
#: turns of a thread between two clearances of the tape, for which all wait
_ROUND = 500
#: seconds that a child may take
_CHILD = 60

#: calls whose result is right, or wrong, or (None) not known beforehand; their name
Turn = Callable[[random.Random], "tuple[str, bool | None]"]


def _data(k: int) -> Any:
    return np.arange(6, dtype=np.float32).reshape(2, 3) + np.float32(16 * k)


def _use_session(s: Any, k: int) -> Turn:
    x = _data(k)
    w = s.parameters["w"]
    gradients = [_data(other).tolist() for other in range(THREADS)]

    def turn(rng: random.Random) -> tuple[str, bool | None]:
        choice = rng.randrange(40)
        if choice == 0:
            s.reset()
            return "reset", None
        a = s.const(x)
        if choice < 15:
            return "sum", np.array_equal(s.add(a, s.square(a)).numpy(), x + x * x)
        if choice < 25:
            with s.no_grad():
                return "transpose", np.array_equal(s.scale(s.transpose2d(a), 2.0).numpy(), 2 * x.T)
        loss = s.reduce_sum(s.mul(a, w))
        if choice < 35:
            return "loss", loss.item() == float(x.sum())
        found = s.backward(loss).get(w)  # of another thread's backward, if that is later; none after its reset
        return "backward", None if found is None else found.numpy().tolist() in gradients

    return turn


def _use_tape(tape: Tape, k: int) -> Turn:
    x = _data(k)

    def turn(rng: random.Random) -> tuple[str, bool | None]:
        a = tape.leaf(x)
        b = tape.scale(a, 2.0)
        if rng.random() < 0.5:
            return "sum", np.array_equal(tape.value(tape.add(b, a)).numpy(), 3 * x)
        found = tape.backward_sparse(tape.reduce_sum(tape.mul(b, a)), [a])[a]
        right = np.array_equal(found.numpy(), 4 * x)
        found.release()
        return "backward", right

    return turn


def _use_capture(step: Any, k: int) -> Turn:
    results = {float(_data(other).sum()) for other in range(THREADS)}
    x = _data(k)
    return lambda rng: ("replay", step(x).item() in results)


def use_at_once(subject: str, operations: int, seed: int = 0) -> dict[str, Any]:
    """That many turns of eight threads at one object."""
    count = {"turns": 0, "refused": 0, "right": 0, "other": 0}
    failures: list[str] = []
    lock = threading.Lock()
    faulthandler.dump_traceback_later(_HANG, exit=True)
    with Session("cpu", seed=seed) as s, Progress(float(operations), "turns") as progress:
        s.param(np.ones((2, 3)), "w")
        v = s.param([0.0], "v")
        optimizer = optim.SGD([v], lr=2.0**-10)

        def step(x: Any) -> Any:
            s.backward(s.reduce_sum(s.use(v)))
            optimizer.step()
            return s.reduce_sum(s.const(x))

        make: Mapping[str, Callable[[int], Turn]] = {
            "session": lambda k: _use_session(s, k), "tape": lambda k: _use_tape(s.tape, k),
            "capture": lambda k: _use_capture(captured, k),
        }  # fmt: skip
        captured = s.capture(step, _data(0))

        def work(k: int) -> None:
            rng, turn = random.Random(f"{seed} {subject} {k}"), make[subject](k)
            for i in range(operations // THREADS):
                if i % _ROUND == 0 and together.wait() == 0:  # ids of a tape are handed out once until it is cleared
                    s.reset()
                if i % _ROUND == 0:
                    together.wait()
                try:
                    what, right = turn(rng)
                    outcome = "other" if right is None else "right" if right else f"{what} is wrong"
                except TorchleanError:
                    outcome = "refused"
                except BaseException:
                    outcome = traceback.format_exc(limit=-2)
                with lock:
                    count["turns"] += 1
                    if outcome in count:
                        count[outcome] += 1
                    elif len(failures) < 20:
                        failures.append(f"{subject}: thread {k}, turn {i}: {outcome}")
                if i % 1000 == 999:
                    progress.advance(1000.0, subject)

        together = threading.Barrier(THREADS)
        interval = sys.getswitchinterval()
        sys.setswitchinterval(1e-6)
        threads = [threading.Thread(target=work, args=(k,)) for k in range(THREADS)]
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                for t in threads:
                    t.start()
                for t in threads:
                    t.join()
        finally:
            sys.setswitchinterval(interval)
        if v.value.tolist() != [-optimizer.steps * 2.0**-10]:
            failures.append(f"{subject}: {optimizer.steps} steps, and the parameter is {v.value}")
        if subject == "capture" and optimizer.steps != count["right"] + 1:
            failures.append(f"capture: {count['right']} replays, and {optimizer.steps - 1} steps")
        s.reset()
        if not np.array_equal(s.square(s.const(_data(1))).numpy(), _data(1) ** 2):
            failures.append(f"{subject}: an operation after it is wrong")
        captured.close()
        optimizer.close()
        s.reset()
        live = s.device.memory().live_buffers - sum(p.has_mirror for p in s.parameters.values())
        if live:
            failures.append(f"{subject}: {live} buffers are live at the end")
    faulthandler.cancel_dump_traceback_later()
    return {"subject": subject, **count, "failures": failures}


def _compute_in_child() -> bool:
    x = _data(1)
    with Session("cpu") as s:
        got = s.capture(lambda a: s.square(s.const(a)), x)(x).numpy()
    shared = open_device("cpu")
    return bool(
        np.array_equal(got, x * x) and kernels.add(shared.buffer(x), shared.full(6, 1)).numpy()[5] == x[1, 2] + 1
    )


def fork_beside_threads(forks: int) -> dict[str, Any]:
    """That many forks while threads open devices, upload, compute and capture."""
    stop, failures = threading.Event(), []
    large = np.ones(1 << 18, np.float32)

    def busy(k: int) -> None:
        shared = open_device("cpu")
        while not stop.is_set():
            a = shared.buffer(large)
            kernels.add(a, a).numpy()
            with Session("cpu") as s:
                try:
                    s.capture(lambda x: s.tanh(s.const(x)), _data(k)).close()
                except TorchleanError:  # another thread's capture sees the device
                    pass

    threads = [threading.Thread(target=busy, args=(k,), daemon=True) for k in range(4)]
    with warnings.catch_warnings(), Progress(float(forks), "forks") as progress:
        warnings.simplefilter("ignore")
        for t in threads:
            t.start()
        for i in range(forks):
            child = os.fork()
            if child == 0:
                status = 2
                try:
                    signal.signal(signal.SIGALRM, signal.SIG_DFL)
                    signal.alarm(_CHILD)
                    status = int(not _compute_in_child())
                finally:
                    os._exit(status)
            status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
            if status:
                failures.append(f"forks: the child of fork {i} ended with status {status}")
            progress.advance(1.0, "forks")
            time.sleep(random.Random(i).random() * 1e-3)
        stop.set()
        for t in threads:
            t.join(_HANG)
            if t.is_alive():
                failures.append("forks: a thread of the parent does not end")
    return {"subject": "forks", "turns": forks, "refused": 0, "right": forks - len(failures), "other": 0,
            "failures": failures[:20]}  # fmt: skip


def campaign(operations: int, forks: int, seed: int = 0) -> dict[str, Any]:
    """As many turns as asked for over all objects, and the forks."""
    start = time.monotonic()
    rows = [use_at_once(subject, operations // len(SUBJECTS), seed) for subject in SUBJECTS] + [
        fork_beside_threads(forks)
    ]
    failures = [f for row in rows for f in row.pop("failures")]
    return {"threads": THREADS, "seed": seed, "subjects": rows, "failures": failures,
            "seconds": round(time.monotonic() - start, 1)}  # fmt: skip
