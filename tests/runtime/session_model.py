"""A reference model of sessions: parameters, tape, gradients, optimisers, captured steps and checkpoints as plain NumPy arrays.

It has those methods of :class:`tlrt.Session` and of what a session makes that ``test_state_machine`` calls, so that one program
runs on both. Each array lies in a :class:`Storage`, which several owners may share as they share a buffer of the device. Calls
that are refused raise the same class of error, before anything changes. Elementwise arithmetic is NumPy's; sums, draws and
updates are the device's operations, called one by one on a device of the model's own.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import numpy as np

import tlrt
from tlrt import errors
from tlrt.checkpoint import CheckpointError
from tlrt.spec import SpecDevice
from tlrt.tape import kernels_of
from tlspec.ops.random import mix

Array = np.ndarray
SLOTS = {"SGD": (), "Adam": ("m", "v"), "AdamW": ("m", "v")}


def refuse(error: type[Exception], when: Any) -> None:
    """Raises the error where something is so."""
    if when:
        raise error("")


class Numbers:
    """The arithmetic of a device: "spec" or "cpu"."""

    def __init__(self, kind: str) -> None:
        self.is_spec = kind == "spec"
        self.dtype = np.float64 if self.is_spec else np.float32
        self.device: Any = SpecDevice() if self.is_spec else tlrt.device(kind, new=True)

    def upload(self, array: Any, exact: bool = False) -> Array:
        """An array as the device has it: rounded to float32, unless the specification takes float64 over."""
        array = np.asarray(array)
        return np.array(array if exact and self.is_spec else array.astype(np.float32), self.dtype)

    def call(self, name: str, *arguments: Any, **options: Any) -> Any:
        """An operation of the device on arrays and lists of arrays."""

        def buffer(x: Any) -> Any:
            if isinstance(x, list):
                return [buffer(e) for e in x]
            if not isinstance(x, Array):
                return x
            return self.device.exact(x) if self.is_spec else self.device.buffer(x)

        def array(x: Any) -> Any:
            return [array(e) for e in x] if isinstance(x, (list, tuple)) else x.numpy()

        return array(getattr(kernels_of(self.device), name)(*map(buffer, arguments), **options))


@dataclass(eq=False)
class Storage:
    array: Array
    #: how often it was written in place
    writes: int = 0

    def write(self, value: Any) -> None:
        self.array[...] = value
        self.writes += 1


@dataclass(eq=False)
class Node:
    storage: Storage
    requires_grad: bool
    parents: tuple[int, ...] = ()
    #: from the cotangent to the contributions, one for each parent
    pull: Callable[[Array], list[Array]] | None = None


@dataclass(eq=False)
class Ref:
    session: Session
    id: int
    epoch: int

    node = property(lambda self: self.session.nodes[self.session._id(self)])
    requires_grad = property(lambda self: self.node.requires_grad)
    shape = property(lambda self: self.node.storage.array.shape)
    grad = property(lambda self: self.session.leaf_gradients.get(self.session._id(self)))

    def numpy(self) -> Array:
        return self.node.storage.array.copy()


class Parameter:
    def __init__(self, session: Session, name: str, value: Any, requires_grad: bool) -> None:
        self.session, self.name, self._requires_grad = session, name, requires_grad
        self.host: Array | None = session.numbers.upload(value)
        self.mirror_storage: Storage | None = None
        #: how often it got a value, was frozen or thawed
        self.version = 0

    #: the value, wherever it is
    current = property(lambda self: self.host if self.mirror_storage is None else self.mirror_storage.array)
    requires_grad = property(lambda self: self._requires_grad)

    @requires_grad.setter
    def requires_grad(self, wanted: bool) -> None:
        self.version += wanted is not self._requires_grad
        self._requires_grad = wanted

    @property
    def mirror(self) -> Storage:
        if self.mirror_storage is None:
            self.session._require_open()
            self.mirror_storage = Storage(np.array(self.host))
        return self.mirror_storage

    @property
    def value(self) -> Array:
        if self.host is None:
            self.host = self.mirror.array.copy()
        return self.host

    def set(self, value: Any) -> None:
        refuse(errors.ShapeError, np.shape(value) != self.current.shape)
        self.host, self.mirror_storage = self.session.numbers.upload(value, exact=True), None
        self.version += 1

    def assign(self, storage: Storage) -> None:
        self.host, self.mirror_storage = None, storage
        self.version += 1

    def overwrite(self, value: Array) -> None:
        """The mirror is written in place."""
        self.mirror.write(value)
        self.host = None
        self.version += 1


class Pause:
    """A context of no_grad, which may be entered several times and left in any order."""

    depth = 0

    def __enter__(self) -> None:
        self.depth += 1

    def __exit__(self, *_: object) -> None:
        self.depth -= 1


@dataclass
class Scope:
    """Of a mode: its end sets the one before it, whatever was set since."""

    math: list[str]
    before: str

    def __exit__(self, *_: object) -> None:
        self.math[0] = self.before


@dataclass
class Step:
    """What belongs to a step and goes with a reset."""

    nodes: list[Node] = field(default_factory=list)
    #: the leaf of each parameter and its version
    leaves: dict[Parameter, tuple[Ref, int]] = field(default_factory=dict)
    #: every leaf of a parameter: its id, the parameter, its version and how often its memory had been written
    known: dict[int, tuple[Parameter, int, int]] = field(default_factory=dict)
    gradients: dict[Parameter, Storage] = field(default_factory=dict)
    leaf_gradients: dict[int, Storage] = field(default_factory=dict)
    unreached: set[Parameter] = field(default_factory=set)


class Session:
    def __init__(
        self, kind: str, *, seed: int = 0, track_gradients: bool = True, requires_grad_by_default: bool = True
    ) -> None:
        self.numbers, self.seed, self.counter, self.epoch, self.closed = Numbers(kind), seed, 0, 0, False
        #: the mode of the device, which sessions may share
        self.math = ["fast"]
        self.track_gradients = self.recording = track_gradients
        self.requires_grad_by_default = requires_grad_by_default
        self.parameters: dict[str, Parameter] = {}
        self.pauses: list[Pause] = []
        self.step = Step()

    nodes = property(lambda self: self.step.nodes)
    gradients = property(lambda self: self.step.gradients)
    leaf_gradients = property(lambda self: self.step.leaf_gradients)

    def records(self) -> bool:
        return self.recording and all(p.depth == 0 for p in self.pauses)

    def _require_open(self) -> None:
        refuse(errors.ReleasedError, self.closed)

    def _id(self, x: Any) -> int:
        if isinstance(x, Parameter):
            return self.use(x).id
        refuse(errors.DeviceMismatchError, x.session is not self)
        if isinstance(x, Result):
            return self._leaf(Storage(x.numpy())).id
        refuse(errors.ReleasedError, x.epoch != self.epoch)
        return x.id

    def _append(self, node: Node) -> Ref:
        self.nodes.append(node)
        return Ref(self, len(self.nodes) - 1, self.epoch)

    def _leaf(self, storage: Storage, requires_grad: bool = False) -> Ref:
        return self._append(Node(storage, requires_grad))

    def _apply(self, value: Array | Storage, parents: tuple[int, ...], pull: Callable[[Array], list[Array]]) -> Ref:
        needs = self.records() and any(self.nodes[p].requires_grad for p in parents)
        return self._append(Node(value if isinstance(value, Storage) else Storage(value), needs, parents, pull))

    def param(self, value: Any, name: str, requires_grad: bool | None = None) -> Parameter:
        self._require_open()
        refuse(errors.ArgumentError, name in self.parameters)
        wants = self.requires_grad_by_default if requires_grad is None else requires_grad
        made = self.parameters[name] = Parameter(self, name, value, wants)
        return made

    def use(self, p: Parameter) -> Ref:
        found = self.step.leaves.get(p)
        if found is not None and found[1] == p.version:
            return found[0]
        refuse(errors.DeviceMismatchError, p.session is not self)
        ref = self._leaf(p.mirror, p.requires_grad)
        self.step.leaves[p] = ref, p.version
        self.step.known[ref.id] = p, p.version, p.mirror.writes
        return ref

    def input(self, value: Any, requires_grad: bool = False) -> Ref:
        self._require_open()
        return self._leaf(Storage(self.numbers.upload(value)), requires_grad and self.track_gradients)

    const = input

    def detach(self, x: Any) -> Ref:
        return self._leaf(self.nodes[self._id(x)].storage)

    # ---- operations

    def _operands(self, *operands: Any) -> tuple[tuple[int, ...], list[Storage]]:
        """The nodes of the operands; leaves that are made for some of them go where another is refused."""
        size, leaves = len(self.nodes), dict(self.step.leaves)
        try:
            ids = tuple(self._id(x) for x in operands)
        except errors.TorchleanError:
            del self.nodes[size:]
            self.step.leaves, self.step.known = leaves, {i: k for i, k in self.step.known.items() if i < size}
            raise
        return ids, [self.nodes[i].storage for i in ids]

    def add(self, a: Any, b: Any) -> Ref:
        ids, (x, y) = self._operands(a, b)
        return self._apply(x.array + y.array, ids, lambda g: [g, g])

    def sub(self, a: Any, b: Any) -> Ref:
        ids, (x, y) = self._operands(a, b)
        return self._apply(x.array - y.array, ids, lambda g: [g, -g])

    def mul(self, a: Any, b: Any) -> Ref:
        ids, (x, y) = self._operands(a, b)
        return self._apply(x.array * y.array, ids, lambda g: [g * y.array, g * x.array])

    def square(self, a: Any) -> Ref:
        return self.mul(a, a)

    def scale(self, a: Any, factor: float) -> Ref:
        ids, (x,) = self._operands(a)
        c = self.numbers.dtype(np.float32(factor))
        return self._apply(x.array * c, ids, lambda g: [g * c])

    def reshape(self, a: Any, shape: tuple[int, ...]) -> Ref:
        """The same storage; here all shapes are one."""
        ids, (x,) = self._operands(a)
        return self._apply(x, ids, lambda g: [g])

    def reduce_sum(self, a: Any) -> Ref:
        ids, (x,) = self._operands(a)
        total = self.numbers.call("reduce_sum", x.array.reshape(-1), x.array.size).reshape(())
        return self._apply(total, ids, lambda g: [np.full(x.array.shape, g)])

    def gather_vec_nat(self, a: Any, indices: Natural) -> Ref:
        places = self.get_nat_vec(indices)
        ids, (x,) = self._operands(a)

        def pull(g: Array) -> list[Array]:
            gathered = np.zeros_like(x.array)
            np.add.at(gathered, places, g)
            return [gathered]

        return self._apply(x.array[places], ids, pull)

    def _key(self) -> int:
        self.counter += 1
        return (mix(self.seed) + self.counter - 1) % 2**64

    def rand_uniform(self, n: int) -> Ref:
        self._require_open()
        return self._leaf(Storage(self.numbers.call("rand_uniform", self.numbers.device, n, self._key())))

    def dropout(self, x: Any, p: float) -> Ref:
        refuse(errors.ArgumentError, not 0 <= p < 1)
        (id,), (value,) = self._operands(x)
        mask = self.numbers.call("bernoulli_mask", self.numbers.device, value.array.size, self._key(), 1 - p)
        kept = self._leaf(Storage(mask))
        return self.scale(self.mul(Ref(self, id, self.epoch), kept), 1 / (1 - p))

    def nat_vec(self, values: list[int]) -> Natural:
        self._require_open()
        return Natural(self, np.array(values), self.epoch)

    def get_nat_vec(self, ref: Natural) -> Array:
        refuse(errors.ReleasedError, ref.epoch != self.epoch)
        return ref.value

    def set_nat_vec(self, ref: Natural, values: list[int]) -> None:
        refuse(errors.ArgumentError, len(values) != len(self.get_nat_vec(ref)))
        ref.value = np.array(values)

    def no_grad(self) -> Pause:
        self.pauses.append(Pause())
        return self.pauses[-1]

    def set_math(self, math: str) -> Scope:
        before, self.math[0] = self.math[0], math
        return Scope(self.math, before)

    def backward(self, loss: Any, seed: Any = None, accumulate: bool = False) -> None:
        self._require_open()
        id = self._id(loss)
        refuse(errors.ArgumentError, not self.records())
        self._require_current(id)
        if not self.nodes[id].requires_grad:
            warnings.warn("all gradients are zero", stacklevel=2)
        shape = self.nodes[id].storage.array.shape
        refuse(errors.ArgumentError, seed is None and math.prod(shape) != 1)
        refuse(errors.ShapeError, seed is not None and np.shape(seed) != shape)
        found: dict[int, Array] = {id: self.numbers.upload(np.ones(shape) if seed is None else seed)}
        for i in range(id, -1, -1):
            node, g = self.nodes[i], found.get(i)
            if g is None or node.pull is None or not node.requires_grad:
                continue
            for parent, contribution in zip(node.parents, node.pull(g), strict=True):
                if self.nodes[parent].requires_grad:
                    found[parent] = found[parent] + contribution if parent in found else contribution
        leaves = {
            i: Storage(np.array(found.get(i, np.zeros_like(n.storage.array))))
            for i, n in enumerate(self.nodes)
            if n.requires_grad and n.pull is None
        }
        at = {p: leaf[0].id for p, leaf in self.step.leaves.items()}
        gradients = {}
        for p in self.parameters.values():
            if p.requires_grad:
                gradients[p] = leaves.pop(at.get(p, -1), None) or Storage(np.zeros_like(p.current))
        unreached = {p for p in gradients if at.get(p) not in found}
        if accumulate:
            earlier, earlier_leaves = self.step.gradients, self.step.leaf_gradients
            for p in gradients.keys() & earlier.keys():
                own = earlier[p].array
                gradients[p] = Storage(own.copy() if p in unreached else own + gradients[p].array)
            for i in leaves.keys() & earlier_leaves.keys():
                leaves[i] = Storage(earlier_leaves[i].array + leaves[i].array)
            unreached &= self.step.unreached | (gradients.keys() - earlier.keys())
        self.step.unreached, self.step.gradients, self.step.leaf_gradients = unreached, gradients, leaves

    def _require_current(self, id: int) -> None:
        """Refuses a loss that depends on a parameter that is trained and has changed since it was put on the tape, or on one
        whose memory was written since."""
        open_, seen = [id], set()
        while open_:
            i = open_.pop()
            if i in self.step.known:
                p, version, writes = self.step.known[i]
                trained = self.nodes[i].requires_grad and p.requires_grad
                refuse(
                    errors.ArgumentError, (trained and p.version != version) or self.nodes[i].storage.writes != writes
                )
            open_ += {*self.nodes[i].parents} - seen
            seen.update(self.nodes[i].parents)

    def clip_grad_norm(self, max_norm: float) -> Storage:
        self._require_open()
        found = list(self.gradients.values())
        refuse(errors.ArgumentError, not found)
        arrays = [g.array for g in found]
        norm = self.numbers.call("global_norm", arrays)
        for g, clipped in zip(found, self.numbers.call("clip_scale", arrays, norm, max_norm=max_norm), strict=True):
            g.array[...] = clipped.reshape(g.array.shape)
        return Storage(norm.reshape(()))

    # ---- life

    def reset(self, *, gradients: bool = True) -> None:
        self._require_open()
        kept = {} if gradients else {"gradients": self.step.gradients, "unreached": self.step.unreached}
        self._end_step()
        self.step = Step(**kept)

    def _end_step(self) -> None:
        self.step = Step()
        self.epoch += 1

    def close(self) -> None:
        if not self.closed:
            for p in self.parameters.values():
                p.host, p.mirror_storage = p.value, None
            self._end_step()
            self.closed = True

    def capture(self, function: Callable[..., Any], *example: Any) -> Captured:
        self._require_open()
        return Captured(self, function, example)

    @contextmanager
    def aside(self) -> Any:
        """A tape for a replay, which records as it did when the step was captured; the tape of before comes back."""
        before = self.step, self.epoch, self.recording, self.pauses
        self.step, self.epoch, self.recording, self.pauses = Step(), -1, True, []
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                yield
        finally:
            self.step, self.epoch, self.recording, self.pauses = before


@dataclass(eq=False)
class Natural:
    session: Session
    value: Array
    epoch: int


@dataclass(eq=False)
class Result:
    """What a captured step returned: the value of its last run; None after a run that was refused half way."""

    session: Session
    step: Captured
    array: Array | None = None

    def numpy(self) -> Any:
        refuse(errors.ReleasedError, self.step.closed or self.session.closed)
        return self.array


class Captured:
    """On the specification each call is the function between two resets. Elsewhere a replay leaves the tape alone, parameters
    have a place in memory from the capture on, and what the function does on the host is settled."""

    def __init__(self, session: Session, function: Callable[..., Any], example: tuple[Any, ...]) -> None:
        self.session, self.function, self.example, self.closed = session, function, example, False
        self.outputs: list[Result] = []
        self.math = session.math[0]
        self.places: dict[Parameter, tuple[Storage, bool]] = {}
        session._end_step()
        if not session.numbers.is_spec:
            self.places = {p: (p.mirror, p.requires_grad) for p in session.parameters.values()}
        try:
            versions = {p: p.version for p in session.parameters.values()}
            self._take(function(*example))
            self.changed = [p for p, version in versions.items() if p.version != version]
            self._bring_back()
        finally:
            session._end_step()

    def __call__(self, *arguments: Any) -> list[Result]:
        session = self.session
        refuse(errors.ReleasedError, self.closed or session.closed)
        if session.numbers.is_spec:
            session._end_step()
            try:
                self._take(self.function(*arguments))
            finally:
                session._end_step()
            return self.outputs
        refuse(errors.CaptureError, session.math[0] != self.math)
        for known, given in zip(self.example, arguments, strict=True):
            refuse(
                errors.CaptureError,
                np.shape(known) != np.shape(given) or (isinstance(known, bool) and known is not given),
            )
        refuse(errors.CaptureError, any(p.requires_grad is not trained for p, (_, trained) in self.places.items()))
        self._bring_back()
        with session.aside():
            try:
                made = self.function(*arguments)
            except errors.TorchleanError:
                for p in self.changed:
                    p.overwrite(p.mirror.array)
                for result in self.outputs:
                    result.array = None
                raise
            self._take(made)
        self._bring_back()
        return self.outputs

    def _take(self, made: list[Any]) -> None:
        arrays = [np.array(x.array if isinstance(x, Storage) else x.numpy()) for x in made]
        self.outputs = self.outputs or [Result(self.session, self) for _ in arrays]
        for result, array in zip(self.outputs, arrays, strict=True):
            result.array = array

    def _bring_back(self) -> None:
        """Values that lie elsewhere go to the places where the step reads them."""
        for p, (place, _) in self.places.items():
            if p.mirror_storage is not place:
                place.write(p.current)
                p.mirror_storage = place

    def close(self) -> None:
        self.closed = True


class Optimizer:
    def __init__(self, kind: str, parameters: list[Parameter], hyper: Mapping[str, Any]) -> None:
        self.kind, self.hyper, self.steps, self.closed = kind, dict(hyper), 0, False
        self.parameters = [p for p in parameters if p.requires_grad]
        refuse(errors.ArgumentError, not self.parameters)
        self.session = self.parameters[0].session
        refuse(errors.DeviceMismatchError, any(p.session is not self.session for p in self.parameters))
        self.session._require_open()
        self.slots = SLOTS[kind] if not hyper.get("momentum") else ("velocity",)
        self.states = {s: {p: np.zeros_like(p.current) for p in self.parameters} for s in self.slots}
        self._require_valid()

    def _require_valid(self) -> None:
        h = self.hyper
        refuse(errors.ArgumentError, h["lr"] < 0 or h["weight_decay"] < 0 or (h.get("momentum") and not self.slots))
        refuse(errors.ArgumentError, h.get("nesterov") and not h["momentum"])

    def _require_open(self) -> None:
        self.session._require_open()
        refuse(errors.ReleasedError, self.closed)

    def step(self) -> None:
        self._require_open()
        gradients, chosen = self.session.gradients, [p for p in self.parameters if p.requires_grad]
        refuse(errors.ArgumentError, not chosen or any(p not in gradients for p in chosen))
        if not (chosen := [p for p in chosen if p not in self.session.step.unreached]):
            return
        values = [[p.mirror.array for p in chosen], [gradients[p].array for p in chosen]]
        self._require_valid()
        options, name = dict(self.hyper), {"SGD": "sgd", "Adam": "adam", "AdamW": "adamw"}[self.kind] + "_step"
        if self.kind != "SGD":
            options["step"] = self.steps + 1
        elif self.slots:
            name, options["nesterov"] = "momentum_step", int(options["nesterov"])
        else:
            options = {h: options[h] for h in ("lr", "weight_decay")}
        made = self.session.numbers.call(
            name, *values, *([self.states[s][p] for p in chosen] for s in self.slots), **options
        )
        fresh, *states = made if self.slots else [made]
        for k, p in enumerate(chosen):
            p.overwrite(fresh[k])
            for slot, arrays in zip(self.slots, states, strict=True):
                self.states[slot][p] = arrays[k]
        self.steps += 1

    def state(self) -> dict[str, Any]:
        self._require_open()
        states = {s: [a.copy() for a in by.values()] for s, by in self.states.items()}
        names = [p.name for p in self.parameters]
        return {"kind": self.kind, "steps": self.steps, "hyper": dict(self.hyper), "states": states, "names": names}

    def check_state(self, state: dict[str, Any]) -> None:
        """Raises unless the state fits."""
        self._require_open()
        refuse(errors.ArgumentError, state["kind"] != self.kind or state["names"] != [p.name for p in self.parameters])
        now, self.hyper = self.hyper, state["hyper"]
        try:
            self._require_valid()
        finally:
            self.hyper = now
        refuse(errors.ShapeError, not set(self.slots) <= set(state["states"]))

    def load_state(self, state: dict[str, Any]) -> None:
        self.check_state(state)
        self.steps, self.hyper = state["steps"], dict(state["hyper"])
        copies = {s: [a.copy() for a in state["states"][s]] for s in self.slots}
        self.states = {s: dict(zip(self.parameters, arrays, strict=True)) for s, arrays in copies.items()}

    def close(self) -> None:
        self.closed = True


def save(session: Session, optimizers: list[Optimizer]) -> dict[str, Any]:
    """A checkpoint."""
    values = {name: p.value.copy() for name, p in session.parameters.items()}
    _require_own(session, optimizers)
    states = [o.state() for o in optimizers]
    random = session.seed, session.counter
    return {"precision": session.numbers.dtype, "values": values, "states": states, "random": random}


def load(file: dict[str, Any], session: Session, optimizers: list[Optimizer]) -> None:
    _require_own(session, optimizers)
    same = file["precision"] == session.numbers.dtype and list(file["values"]) == list(session.parameters)
    refuse(CheckpointError, not same or len(file["states"]) != len(optimizers))
    for optimizer, state in zip(optimizers, file["states"], strict=True):
        try:
            optimizer.check_state(state)
        except (errors.ArgumentError, errors.ShapeError):
            raise CheckpointError("") from None
    for name, p in session.parameters.items():
        p.set(file["values"][name])
    for optimizer, state in zip(optimizers, file["states"], strict=True):
        optimizer.load_state(state)
    session.seed, session.counter = file["random"]


def _require_own(session: Session, optimizers: list[Optimizer]) -> None:
    refuse(errors.DeviceMismatchError, any(o.session is not session for o in optimizers))
