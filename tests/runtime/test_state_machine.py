"""Sessions, tapes, captured steps, optimisers and checkpoints in drawn orders of calls, beside a model of them in NumPy.

Each rule does one thing on both sides and compares what was refused, then :meth:`Machine.compare` compares everything that can
be read, bit for bit. Tensors, parameters and the rest are drawn as places in lists, counted from the newest and around, so that
every step that hypothesis prints for a failure can be run as it stands:

    state = Machine()
    state.begin(b="cpu", …)
    state.mul(s="a", x=0, y=2)
    state.teardown()
"""

import gc
import tempfile
import warnings
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, precondition, rule, run_state_machine_as_test

import tlrt
from tests.runtime import session_model as model
from tlrt import AnyBuffer, checkpoint, errors, optim
from tlrt.spec import SpecDevice
from tlspec.compare import same_bits

#: mostly the first, so that calls meet
SESSIONS = st.sampled_from("aaab")
PLACES = st.integers(0, 7)
FLAGS = st.booleans()
#: a failure is shrunk, and shown without guesses at its reason
PHASES = (Phase.generate, Phase.shrink)
MOSTLY = st.sampled_from([True, True, True, False])
VALUES = st.sampled_from([(0.1, -0.7, 1.3), (0.0, 2.0, -0.3), (1.0, 1.0, 1.0), (-0.9, 0.6, 0.2)])
#: settings of an optimiser that is made
KINDS = st.sampled_from([
    ("SGD", {"lr": 0.25, "momentum": 0.0, "weight_decay": 0.0, "nesterov": False}),
    ("SGD", {"lr": 0.1, "momentum": 0.9, "weight_decay": 0.01, "nesterov": True}),
    ("Adam", {"lr": 0.05, "beta1": 0.8, "beta2": 0.99, "eps": 1e-6, "weight_decay": 0.0}),
    ("AdamW", {"lr": 0.05, "beta1": 0.9, "beta2": 0.95, "eps": 1e-8, "weight_decay": 0.1}),
])  # fmt: skip
#: settings that are assigned later, some of them wrong
ASSIGNED = st.sampled_from([("lr", 0.5), ("lr", 0.01), ("weight_decay", 0.2), ("momentum", 0.5), ("nesterov", True)])


@dataclass
class Held:
    """What a program keeps of one session, the same on both sides."""

    session: Any
    parameters: list[Any] = field(default_factory=list)
    #: tensors of this step and of earlier ones
    tensors: list[Any] = field(default_factory=list)
    losses: list[Any] = field(default_factory=list)
    stale: list[Any] = field(default_factory=list)
    naturals: list[Any] = field(default_factory=list)
    pauses: list[Any] = field(default_factory=list)
    entered: list[Any] = field(default_factory=list)
    #: modes of the device that may still be left
    scopes: list[Any] = field(default_factory=list)
    optimizers: list[Any] = field(default_factory=list)
    captured: list[Any] = field(default_factory=list)

    def end_step(self) -> None:
        self.stale = [*self.stale, *self.tensors][-6:]
        self.tensors, self.losses = [], []


class Side:
    """The runtime, or the model, with the calls that differ between them."""

    def __init__(self, is_model: bool) -> None:
        self.is_model = is_model
        self.held: dict[str, Held] = {}
        self.files: list[Any] = []

    def optimizer(self, kind: str, parameters: list[Any], hyper: dict[str, Any]) -> Any:
        if self.is_model:
            return model.Optimizer(kind, parameters, hyper)
        return getattr(optim, kind)(parameters, **hyper)

    def assign_setting(self, optimizer: Any, name: str, value: Any) -> None:
        if name not in optimizer.hyper:
            return
        if self.is_model:
            optimizer.hyper[name] = value
        else:
            setattr(optimizer, name, value)

    def assign_half(self, p: Any) -> None:
        """Half the parameter's value in a buffer of its own, as running statistics are moved."""
        if self.is_model:
            p.assign(model.Storage(p.mirror.array * p.session.numbers.dtype(0.5)))
        else:
            p.assign(AnyBuffer(p.shape, p.session.tape.kernels.scale(p.mirror, 0.5)))

    def fill_mirror(self, p: Any, value: float, assigned: bool = False) -> None:
        """Writes the mirror in place, and says so in one of two ways."""
        if self.is_model:
            p.overwrite(np.full_like(p.current, np.float32(value)))
            return
        p.mirror.fill(value)
        if assigned:
            p.assign(AnyBuffer(p.shape, p.mirror))
        else:
            p.updated()

    def reload(self, optimizer: Any) -> None:
        """Gives an optimiser its own state."""
        if self.is_model:
            optimizer.load_state(optimizer.state())
        else:
            optimizer.load_state(*optimizer.state())

    def save(self, path: Path, session: Any, optimizers: list[Any]) -> Any:
        if self.is_model:
            return model.save(session, optimizers)
        checkpoint.save(path, session, optimizers)
        return path

    def load(self, file: Any, session: Any, optimizers: list[Any]) -> None:
        (model.load if self.is_model else checkpoint.load)(file, session, optimizers)


def pick(found: list[Any], place: int) -> Any:
    """From the newest on and around."""
    return found[-1 - place % len(found)]


@dataclass(frozen=True)
class Program:
    """A training step, made of places of parameters and optimisers."""

    weights: tuple[int, ...]
    optimizers: tuple[int, ...]
    clip: bool
    paused: bool
    halved: int | None
    #: whether the gradient is added to itself
    twice: bool

    def function(self, side: Side, held: Held, until: str = "end") -> Callable[..., list[Any]]:
        """The step on a session of either side, of an array and of whether it trains."""
        s = held.session
        weights = list(dict.fromkeys(pick(held.parameters, w) for w in self.weights))
        optimizers = [pick(held.optimizers, o) for o in self.optimizers if held.optimizers]
        halved = None if self.halved is None else pick(held.parameters, self.halved)

        def step(x: Any, training: bool) -> list[Any]:
            total = s.const(x)
            for w in weights:
                total = s.add(s.mul(w, s.const(x)), total)
            if training:
                total = s.dropout(total, 0.5)
            if self.paused:
                with s.no_grad():
                    still = s.scale(weights[0], 0.5)
                    with s.no_grad():
                        still = s.add(still, still)
                    still = s.square(still)
                total = s.add(total, still)
            loss = s.reduce_sum(s.square(total))
            if not training or until == "loss":
                return [total, loss]
            s.backward(loss)
            if self.twice:
                s.backward(loss, accumulate=True)
            if until == "gradients":
                return [total, loss]
            norm = [s.clip_grad_norm(0.5)] if self.clip else []
            for optimizer in optimizers:
                optimizer.step()
            if halved is not None:
                side.assign_half(halved)
            return [total, loss, *norm]

        return step


PROGRAMS = st.builds(
    Program, st.lists(PLACES, min_size=1, max_size=3).map(tuple), st.lists(PLACES, max_size=2).map(tuple), FLAGS, FLAGS,
    st.none() | PLACES, FLAGS,
)  # fmt: skip


class Machine(RuleBasedStateMachine):
    """Two sessions, which may share a device."""

    #: the device of session a
    first = "cpu"

    def __init__(self) -> None:
        super().__init__()
        self.real, self.model = Side(False), Side(True)
        self.folder = tempfile.TemporaryDirectory()
        self.calls, self.devices = 0, []

    def both(self, action: Callable[[Side], Any]) -> bool:
        """Does something on both sides, which refuse it with the same error; returns whether they did it."""
        found = []
        self.calls += 1
        for side in (self.model, self.real):
            # the model's numbers overflow with a warning of NumPy's own
            with warnings.catch_warnings(record=True) as warned, np.errstate(all="ignore"):
                warnings.simplefilter("always")
                try:
                    action(side)
                    found.append(("done", len(warned)))
                except errors.TorchleanError as error:
                    found.append((type(error).__name__, str(error) or "…"))
        expected, got = found
        assert expected[0] == got[0] and (expected[0] != "done" or expected == got), (
            f"model: {expected}, session: {got}"
        )
        for s, h in self.model.held.items():
            if any(x.epoch != h.session.epoch for x in [*h.tensors, *h.losses]):
                h.end_step()
                self.real.held[s].end_step()
        self.compare()
        return expected[0] == "done"

    def on(self, s: str, action: Callable[[Side, Held], Any]) -> bool:
        return self.both(lambda side: action(side, side.held[s]))

    def has(self, s: str, *kinds: str) -> bool:
        """Whether the program holds one of each."""
        return all(getattr(self.model.held[s], kind) for kind in kinds)

    @initialize(b=st.sampled_from(["spec", "cpu", "of a"]), track=MOSTLY, trained=MOSTLY,
                kinds=st.lists(KINDS, min_size=2, max_size=2), programs=st.lists(PROGRAMS, min_size=2, max_size=2))  # fmt: skip
    def begin(self, b: str, track: bool, trained: bool, kinds: list[Any], programs: list[Program]) -> None:
        """Session a has the default options, b has others. Each gets parameters, an optimiser and a captured step. The
        next draws are those whose numbers no longer fit 32 bits."""
        a = self.first
        others = {"seed": 2**64 - 2, "track_gradients": track, "requires_grad_by_default": trained}
        for name, device, options in (("a", a, {"seed": 2**53 + 1}), ("b", b, others)):
            if device != "of a":
                self.devices.append(SpecDevice() if device == "spec" else tlrt.device(device, new=True))
            self.real.held[name] = Held(tlrt.Session(self.devices[-1], **options))
            self.model.held[name] = Held(model.Session(a if device == "of a" else device, **options))
            for side in (self.real, self.model):
                side.held[name].session.counter = 2**32 - 3
        if b == "of a":
            self.model.held["b"].session.math = self.model.held["a"].session.math
        for s, kind, program in zip("ab", kinds, programs, strict=True):
            for value, trains in (
                ((0.1, -0.7, 1.3), None), ((1.0, 2.0, -0.3), True), ((-0.9, 0.6, 0.2), False), ((0.4, -0.2, 0.5), True),
            ):  # fmt: skip
                self.on(s, lambda side, h, v=value, w=trains: h.parameters.append(
                    h.session.param(v, f"p{len(h.parameters)}", w)))  # fmt: skip
            self.optimizer(s, kind, [0, 1, 2, 3], False)
            self.capture(s, (0.5, 1.0, -0.25), program, True)

    @rule(s=SESSIONS, p=PLACES, used=FLAGS, change=st.sampled_from(
        ["set", "assign", "assign its own", "fill the mirror", "freeze", "thaw", "thaw", "read", "set another shape",
         "make one"]))  # fmt: skip
    def parameter(self, s: str, p: int, used: bool, change: str) -> None:
        """Something is done to a parameter, perhaps between two uses of it."""
        use = lambda _, h: h.tensors.append(h.session.use(pick(h.parameters, p)))
        if used:
            self.on(s, use)

        def act(side: Side, h: Held) -> None:
            found = pick(h.parameters, p)
            if change == "make one" and len(h.parameters) < 6:
                h.parameters.append(h.session.param((0.3, 0.2, 0.1), f"p{len(h.parameters)}"))
            elif change in ("set", "set another shape"):
                found.set(np.array([0.7, -0.3, 1.1, 0.0][: 3 + (change != "set")]))
            elif change == "assign":
                side.assign_half(found)
            elif change == "assign its own":
                side.fill_mirror(found, 0.3, assigned=True)
            elif change == "fill the mirror":
                side.fill_mirror(found, 0.3)
            elif change in ("freeze", "thaw"):
                found.requires_grad = change == "thaw"
            elif change == "read":
                _ = found.value

        self.on(s, act)
        if used and change != "make one":
            self.on(s, use)

    def operand(self, h: Held, x: int) -> Any:
        """A tensor of this step or a parameter."""
        return pick([*h.parameters, *h.tensors], x)

    @rule(s=SESSIONS, x=PLACES, y=PLACES, op=st.sampled_from(
        ["add", "sub", "mul", "mul", "mul", "square", "scale", "detach", "reshape", "dropout", "dropout of all", "rand_uniform",
         "use", "input", "input with a gradient", "naturals", "gather_vec_nat", "result"]))  # fmt: skip
    def operation(self, s: str, x: int, y: int, op: str) -> None:
        """One more tensor, or other indices for those that are made later."""
        outputs = pick(self.model.held[s].captured, y).outputs if op == "result" and self.has(s, "captured") else []
        if op == "result" and not (outputs and (outputs[0].step.closed or outputs[0].array is not None)):
            return  # a replay was refused half way

        def make(side: Side, h: Held) -> None:
            t, a, b = h.session, self.operand(h, x), self.operand(h, y)
            if op == "naturals":
                if h.naturals:
                    t.set_nat_vec(pick(h.naturals, x), [0, y % 3, 1, 2][: 3 + (y == 7)])
                h.naturals.append(t.nat_vec([2, y % 3, 2]))
                return
            h.tensors.append(
                getattr(t, op)(a, b) if op in ("add", "sub", "mul")
                else getattr(t, op)(a) if op in ("square", "detach")
                else t.scale(a, (-1.0, 0.3)[y % 2]) if op == "scale"
                else t.reshape(a, (3,)) if op == "reshape"
                else t.dropout(a, 1.0 if op.endswith("all") else 0.25) if op.startswith("dropout")
                else t.rand_uniform(3) if op == "rand_uniform"
                else t.use(pick(h.parameters, x)) if op == "use"
                else t.gather_vec_nat(a, pick(h.naturals, y)) if op == "gather_vec_nat" and h.naturals
                else t.add(a, t.scale(pick(h.captured, y).outputs[0], 2.0)) if op == "result"
                else t.input((0.4, -1.5, 2.0), requires_grad=op.endswith("gradient"))
            )  # fmt: skip

        self.on(s, make)

    @precondition(lambda self: self.calls > 24)
    @rule(s=SESSIONS, x=PLACES, y=PLACES, how=st.sampled_from(["stale", "of the other session"]))
    def refused_operand(self, s: str, x: int, y: int, how: str) -> None:
        """A tensor from before a reset or of the other session, beside a parameter."""
        other = "ba"["ab".index(s)]
        if how == "of the other session":
            assert not self.both(lambda side: side.held[s].session.add(
                self.operand(side.held[s], x), self.operand(side.held[other], y)))  # fmt: skip
        elif self.has(s, "stale"):
            assert not self.on(s, lambda _, h: h.session.add(self.operand(h, x), pick(h.stale, y)))
            assert not self.on(s, lambda _, h: h.session.backward(pick(h.stale, y)))
            assert not self.on(s, lambda _, h: pick(h.stale, y).numpy())

    # ---- what is recorded

    @rule(
        s=SESSIONS,
        place=PLACES,
        how=st.sampled_from(["no_grad", "no_grad", "enter again", "leave", "leave", "off", "on"]),
    )
    def recording(self, s: str, place: int, how: str) -> None:
        """Contexts of no_grad are entered, again too, and left in any order; recording is switched off and on."""

        def act(side: Side, h: Held) -> None:
            if how == "no_grad" and len(h.pauses) < 3:
                h.pauses.append(h.session.no_grad())
            if how in ("no_grad", "enter again") and h.pauses:
                h.entered.append(pick(h.pauses, place if how != "no_grad" else 0))
                h.entered[-1].__enter__()
            elif how == "leave" and h.entered:
                h.entered.pop(-1 - place % len(h.entered)).__exit__(None, None, None)
            elif how in ("off", "on"):
                (h.session if side.is_model else h.session.tape).recording = how == "on"

        self.on(s, act)

    @rule(s=SESSIONS, place=PLACES, how=st.sampled_from(["reproducible", "fast", "leave", "leave", "leave"]))
    def math(self, s: str, place: int, how: str) -> None:
        """The mode of the session's device is set, and scopes of that are left in any order."""
        if self.model.held[s].session.numbers.is_spec:
            return

        def act(side: Side, h: Held) -> None:
            if how == "leave" and h.scopes:
                h.scopes.pop(-1 - place % len(h.scopes)).__exit__(None, None, None)
            elif how != "leave":
                h.scopes.append((h.session if side.is_model else h.session.device).set_math(how))

        self.on(s, act)

    # ---- gradients and updates

    @rule(s=SESSIONS, x=PLACES, seed=st.sampled_from(["sum", "sum", "given", "of another shape"]), more=FLAGS)
    def backward(self, s: str, x: int, seed: str, more: bool) -> None:
        """Of the last loss; or of a tensor, which needs a seed, or of its sum; perhaps added to the gradients that there are."""

        def act(side: Side, h: Held) -> None:
            found = self.operand(h, x)
            if seed == "sum":
                h.losses.append(h.session.reduce_sum(found))
            found = h.losses[-1] if seed == "sum" else found
            given = {"given": np.array([1.0, -0.5, 0.1]), "of another shape": np.ones(2)}.get(seed)
            h.session.backward(found, given, accumulate=more)

        self.on(s, act)

    @rule(s=SESSIONS, x=PLACES)
    def backward_of_loss(self, s: str, x: int) -> None:
        """Of one of the last losses."""
        if self.has(s, "losses"):
            self.on(s, lambda _, h: h.session.backward(pick(h.losses, x // 4)))

    def optimizer(self, s: str, kind: Any, places: list[int], foreign: bool) -> None:
        """Of parameters of one session, or of two."""
        other = "ba"["ab".index(s)] if foreign else s

        def build(side: Side, h: Held) -> None:
            chosen = [*(pick(h.parameters, p) for p in places), side.held[other].parameters[0]]
            h.optimizers.append(side.optimizer(kind[0], list(dict.fromkeys(chosen)), kind[1]))

        self.on(s, build)

    @rule(s=SESSIONS, o=PLACES, how=st.sampled_from(["step", "step", "step", "clip", "assign", "reload", "make", "mix", "close"]),
          assigned=ASSIGNED, kind=KINDS)  # fmt: skip
    def update(self, s: str, o: int, how: str, assigned: Any, kind: Any) -> None:
        """Something is done to an optimiser or to the gradients."""
        if how in ("make", "mix"):
            if len(self.model.held[s].optimizers) < 3:
                self.optimizer(s, kind, [o, o + 1], how == "mix")
            return

        def act(side: Side, h: Held) -> None:
            if how == "clip":
                h.session.clip_grad_norm((0.1, 100.0)[o % 2])
            elif h.optimizers and how == "step":
                pick(h.optimizers, o).step()
            elif h.optimizers and how == "assign":
                side.assign_setting(pick(h.optimizers, o), *assigned)
            elif h.optimizers and how == "reload":
                side.reload(pick(h.optimizers, o))
            elif how == "close" and len(h.optimizers) == 3:
                pick(h.optimizers, o).close()

        self.on(s, act)

    # ---- steps

    @rule(
        s=SESSIONS, value=VALUES, program=PROGRAMS, until=st.sampled_from(["loss", "loss", "gradients", "end"]),
        reset=st.sampled_from(["no", "no", "all", "tape"]),
    )  # fmt: skip
    def step(self, s: str, value: Any, program: Program, until: str, reset: str) -> None:
        """A step done eagerly, after a reset, perhaps of the tape alone, or on the tape that there is; other calls may come
        before its rest."""
        if reset != "no":
            self.on(s, lambda _, h: h.session.reset(gradients=reset == "all"))
        self.on(s, lambda side, h: h.losses.append(program.function(side, h, until)(np.array(value), True)[1]))

    @rule(s=SESSIONS, value=VALUES, program=PROGRAMS, training=MOSTLY)
    def capture(self, s: str, value: Any, program: Program, training: bool) -> None:
        if len(self.model.held[s].captured) < 3:
            self.on(s, lambda side, h: h.captured.append(
                h.session.capture(program.function(side, h), np.array(value), training)))  # fmt: skip

    @rule(s=SESSIONS, c=PLACES, value=VALUES, how=st.sampled_from(
        ["again", "again", "again", "with gaps", "otherwise", "another shape", "close"]))  # fmt: skip
    def replay(self, s: str, c: int, value: Any, how: str) -> None:
        """As at the capture; or with the other flag or an array of another shape, which the specification would take."""
        if not self.has(s, "captured"):
            return
        known = pick(self.model.held[s].captured, c)
        if how == "close":
            if len(self.model.held[s].captured) == 3:
                self.on(s, lambda _, h: pick(h.captured, c).close())
            return
        if known.session.numbers.is_spec and how not in ("again", "with gaps"):
            return
        given = np.array(value) if how != "another shape" else np.ones(4)
        if how == "with gaps":  # rounded already, and not one piece of memory
            given = np.repeat(given.astype(np.float32), 2)[::2]
        self.on(s, lambda _, h: pick(h.captured, c)(given, known.example[1] is not (how == "otherwise")))

    @rule(s=SESSIONS, c=PLACES, p=PLACES, value=VALUES, assigned=ASSIGNED, what=st.sampled_from(
        ["math", "set", "assign", "assign its own", "fill the mirror", "freeze", "thaw", "make one", "setting", "reload",
         "save and load", "step"]))  # fmt: skip
    def between_replays(self, s: str, c: int, p: int, value: Any, assigned: Any, what: str) -> None:
        """Something changes between two replays, on a tape that has the parameter, of which a gradient is asked then."""
        self.replay(s=s, c=c, value=value, how="again")
        if what == "math":
            self.math(s=s, place=p, how="leave" if self.has(s, "scopes") else "reproducible")
        elif what in ("setting", "reload"):
            self.update(s=s, o=p, how="assign" if what == "setting" else what, assigned=assigned, kind=None)
        elif what == "save and load":
            for way in ("save", "load"):
                self.checkpoint(s=s, file=0, count=1, of="its", way=way)
        elif what == "step":
            self.step(
                s=s, value=value, program=Program((p,), (p,), False, False, None, False), until="end", reset="all"
            )
        else:
            self.parameter(s=s, p=p, used=True, change=what)
        self.replay(s=s, c=c, value=value, how="again")
        self.backward_of_loss(s=s, x=p)

    # ---- checkpoints

    @rule(s=SESSIONS, file=PLACES, count=st.sampled_from([1, 1, 0, 2]), of=st.sampled_from(["its", "its", "its", "the other's"]),
          way=st.sampled_from(["save", "load"]))  # fmt: skip
    def checkpoint(self, s: str, file: int, count: int, of: str, way: str) -> None:
        """With some of the optimisers, of this session or of the other."""
        path, owner = Path(self.folder.name) / str(self.calls), s if of == "its" else "ba"["ab".index(s)]

        def act(side: Side) -> None:
            session, optimizers = side.held[s].session, side.held[owner].optimizers[:count]
            if way == "save":
                side.files.append(side.save(path, session, optimizers))
            elif side.files:
                side.load(pick(side.files, file), session, optimizers)

        self.both(act)

    # ---- ends

    @precondition(lambda self: self.calls > 48)
    @rule(s=SESSIONS)
    def close_session(self, s: str) -> None:
        if not self.model.held[s].session.closed or self.calls % 4 == 0:
            self.on(s, lambda _, h: h.session.close())

    def teardown(self) -> None:
        for h in self.real.held.values():
            for closable in (*h.optimizers, *h.captured, h.session):
                closable.close()
        self.real.held.clear()
        gc.collect() if any(d.memory().live_buffers for d in self.devices) else None
        left = [d.memory().live_buffers for d in self.devices]
        for device in self.devices:
            device.close()
        self.folder.cleanup()
        assert not any(left), f"live buffers: {left}"

    # ---- what both sides hold

    def compare(self) -> None:
        for name, h in self.real.held.items():
            compare_sessions(h, self.model.held[name])
        for device in self.devices if not any(h.captured for h in self.real.held.values()) else ():
            self.compare_memory(device)

    def compare_memory(self, device: Any) -> None:
        """Nothing lives on the device but what the program holds."""
        held = [h for h in self.real.held.values() if h.session.device is device]
        wanted = sum(p.has_mirror for h in held for p in h.parameters)
        wanted += sum(len(o.slots) * len(o.parameters) * (not o._closed) for h in held for o in h.optimizers)
        wanted += sum(len(h.session.gradients) + len(h.session.gradients._by_leaf) for h in held)
        wanted += sum(not n.buffer.released for h in held for n in h.session.tape.nodes)
        assert device.memory().live_buffers == wanted


def compare_sessions(h: Held, m: Held) -> None:
    """Everything that a program can read, without what reading changes."""
    s, t = h.session, m.session
    assert (s.seed, s.counter, s._closed, s.tape._records()) == (t.seed, t.counter, t.closed, t.records())
    assert t.numbers.is_spec or s.device.math == t.math[0]
    for p, q in zip(h.parameters, m.parameters, strict=True):
        found = (p.requires_grad, p.host_is_stale, p.has_mirror)
        assert found == (q.requires_grad, q.host is None, q.mirror_storage is not None), p
        if p.has_mirror:
            same(p.mirror, q.mirror_storage.array, p)
        if not p.host_is_stale:
            same(p.value, q.host, p)
    assert [p.name for p in s.gradients] == [q.name for q in t.gradients]
    for p, q in zip(s.gradients, t.gradients, strict=True):
        same(s.gradients[p].buffer, t.gradients[q].array, p)
    for x, y in zip([*h.tensors, *h.losses], [*m.tensors, *m.losses], strict=True):
        assert x.requires_grad == y.requires_grad and x.shape == y.shape, x
        same(x.value.buffer, y.node.storage.array, x)
        assert (x.grad is None) == (y.grad is None), x
        if x.grad is not None:
            same(x.grad.buffer, y.grad.array, x)
    for o, q in zip(h.optimizers, m.optimizers, strict=True):
        assert (o.steps, o._settings()) == (q.steps, q.hyper), o
        for slot in () if q.closed else q.slots:
            for a, b in zip(o._state[slot], q.states[slot].values(), strict=True):
                same(a, b, o)
    for c, q in zip(h.captured, m.captured, strict=True):
        assert c.closed == (q.closed or t.closed), c
        for x, y in zip(c.outputs, q.outputs, strict=True) if not c.closed else ():
            if y.array is not None:
                same(x.value.buffer if hasattr(x, "value") else x.buffer, y.array, c)


def same(got: Any, expected: np.ndarray, what: object) -> None:
    """Demands equal bits of a buffer or array and the model's array."""
    array = np.asarray(got if isinstance(got, np.ndarray) else got.numpy()).reshape(-1)
    found = same_bits(array.astype(np.float64), expected.reshape(-1).astype(np.float64))
    assert found.ok, f"{what!r}: {array}, expected {expected}"


@pytest.mark.parametrize(("first", "examples"), [("cpu", 30), ("spec", 0)])
def test_state_machine(first: str, examples: int) -> None:
    chosen = settings.default
    assert chosen is not None
    run_state_machine_as_test(
        type("Machine", (Machine,), {"first": first}),
        settings=settings(
            max_examples=examples + 2 * chosen.max_examples, stateful_step_count=60, report_multiple_bugs=False, phases=PHASES
        ),
    )  # fmt: skip
