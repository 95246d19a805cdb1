"""The eager session: a program written once, run in float64 on the specification, in float32 on the CPU or on CUDA.

    with Session("cpu", seed=1) as s:
        w = s.param(np.zeros((10, 64)), "w")
        b = s.param(np.zeros(10), "b")
        optimizer = tlrt.optim.SGD([w, b], lr=0.1)
        for x, labels in batches:
            loss = s.cross_entropy(s.linear(w, b, s.const(x)), labels)
            s.backward(loss)
            optimizer.step()
            s.reset()

A session owns a tape, its parameters, a counter-based random generator and an environment of natural numbers. References it
hands out (:class:`tlrt.tensor.TensorRef`) are valid until :meth:`Session.reset`; using one later, or one of another
session, raises an error.
"""

from __future__ import annotations

import operator
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from types import TracebackType
from typing import Any

import numpy as np
import numpy.typing as npt

from tlrt import _convert
from tlrt.context import Device
from tlrt.context import device as open_device
from tlrt.errors import ArgumentError, ArgumentTypeError, DeviceMismatchError, IndexOutOfRangeError, ReleasedError
from tlrt.operations import Operations
from tlrt.parameter import Parameter
from tlrt.plan import Shape
from tlrt.spec import SpecDevice
from tlrt.tape import AnyBuffer, Tape, size_of
from tlrt.tensor import NatRef, NatVecRef, TensorRef, naturals

__all__ = ["Gradients", "NatRef", "NatVecRef", "Options", "Parameter", "Session", "TensorRef"]


@dataclass(frozen=True)
class Options:
    """How a session runs."""

    #: "spec" (float64), "cpu", "cuda", "cuda:1"
    device: str = "cpu"
    #: of parameters, unless said
    requires_grad_by_default: bool = True
    #: off: nothing is recorded for backward
    track_gradients: bool = True
    #: of the random generator
    seed: int = 0
    #: linear, matmul and mse_loss by :mod:`tlrt.fast_kernels`
    fast_kernels: bool = False
    #: of the fast kernels: "fp32" or "fp64"
    matmul_precision: str = "fp32"


class Gradients(Mapping[Parameter, AnyBuffer]):
    """Gradients by parameter, on the device. They belong to the session and go at its next backward or reset."""

    def __init__(self) -> None:
        self._by_parameter: dict[Parameter, AnyBuffer] = {}
        self._by_leaf: dict[int, AnyBuffer] = {}

    def __getitem__(self, parameter: Parameter) -> AnyBuffer:
        return self._by_parameter[parameter]

    def __iter__(self) -> Iterator[Parameter]:
        return iter(self._by_parameter)

    def __len__(self) -> int:
        return len(self._by_parameter)

    def of_leaf(self, id: int) -> AnyBuffer | None:
        """The gradient of an input."""
        return self._by_leaf.get(id)

    def release(self) -> None:
        """Gives all the buffers back."""
        for g in (*self._by_parameter.values(), *self._by_leaf.values()):
            g.release()
        self._by_parameter.clear()
        self._by_leaf.clear()


class Session(Operations[TensorRef]):
    """See the module. `device` is a name or a Device, which is then not closed with the session; the other arguments are
    fields of :class:`Options`. Operations take tensors of this session, its parameters, and, where two operands meet
    elementwise, numbers."""

    def __init__(
        self, device: str | Device | SpecDevice | None = None, *, options: Options | None = None, **fields: Any
    ) -> None:
        chosen = options or Options()
        if isinstance(device, str):
            fields["device"] = device
        try:
            chosen = replace(chosen, **fields)
        except TypeError as error:
            raise ArgumentTypeError(f"Session: options: {error}") from None
        if chosen.matmul_precision not in ("fp32", "fp64"):
            got = chosen.matmul_precision
            raise ArgumentError(f"Session: matmul_precision: got {got!r}, expected 'fp32' or 'fp64'")
        self._owns_device = device is None or isinstance(device, str)
        self.device: Any = device
        if self._owns_device:
            self.device = SpecDevice() if chosen.device == "spec" else open_device(chosen.device, new=True)
        self.options = chosen
        self.tape = Tape(self.device)
        self.tape.recording = chosen.track_gradients
        #: all parameters by name, in the order they were made
        self.parameters: dict[str, Parameter] = {}
        self.epoch = 0
        self.seed = _u64("seed", chosen.seed)
        #: draws so far
        self.counter = 0
        self._leaves: dict[Parameter, tuple[TensorRef, int]] = {}
        self._gradients = Gradients()
        self._nats: list[Any] = []
        self._closed = False

    # ---- references

    def _require_open(self, op: str) -> None:
        if self._closed:
            raise ReleasedError(f"{op}: session: got a closed session, expected an open one", op=op)

    def _id(self, x: Any, op: str) -> int:
        """The node of an operand; parameters are put on the tape."""
        if type(x) is TensorRef:
            if x.session is self and x.epoch == self.epoch:
                return x.id
            if x.session is not self:
                raise DeviceMismatchError(f"{op}: tensor: got one of another session, expected one of this", op=op)
            raise ReleasedError(
                f"{op}: tensor: got one from before reset, expected one of this step (shape {x.shape})", op=op
            )
        if isinstance(x, Parameter):
            return self.use(x).id
        got = _convert.type_name(x)
        hint = " (Session.const(array) makes one)" if hasattr(x, "__array__") or isinstance(x, (int, float)) else ""
        raise ArgumentTypeError(f"{op}: tensor: got {got}, expected TensorRef or Parameter{hint}", op=op)

    def _ref(self, id: int) -> TensorRef:
        return TensorRef(self, id, self.tape.nodes[id].shape, self.epoch)

    def _apply(
        self,
        name: str,
        parents: tuple[Any, ...],
        extra: tuple[Any, ...] = (),
        hosts: Mapping[str, Any] | None = None,
    ) -> TensorRef:
        ids = tuple([None if p is None else self._id(p, name) for p in parents])
        tape = self.tape
        id = tape._apply(name, ids, extra, hosts)
        return TensorRef(self, id, tape.nodes[id].shape, self.epoch)

    def _view(self, x: TensorRef, shape: Shape, name: str) -> TensorRef:
        return self._ref(self.tape._view(self._id(x, name), shape, name))

    def shape(self, x: Any) -> Shape:
        """The shape of a tensor or parameter."""
        if type(x) is TensorRef or isinstance(x, Parameter):
            return x.shape
        if isinstance(x, (int, float)):
            return ()
        return self.tape.nodes[self._id(x, "shape")].shape

    def _pair(self, name: str, a: Any, b: Any) -> TensorRef:
        if isinstance(a, (int, float)):
            a = self.const(a)
        if isinstance(b, (int, float)):
            b = self.const(b)
        return super()._pair(name, a, b)

    def _constant(self, array: npt.ArrayLike) -> TensorRef:
        return self.const(array)

    def _host(self, x: TensorRef) -> npt.NDArray[Any]:
        return self.get_value(x)

    def _mark(self) -> int:
        return self.tape._mark()

    def _undo(self, mark: int) -> None:
        self._leaves = {p: (ref, version) for p, (ref, version) in self._leaves.items() if ref.id < mark}
        self.tape._undo(mark)

    # ---- leaves

    def param(self, value: npt.ArrayLike, name: str | None = None, requires_grad: bool | None = None) -> Parameter:
        """A parameter; not on the tape until used. Names are unique within the session; "p0", "p1", … unless given."""
        self._require_open("param")
        if name is None:
            name = f"p{len(self.parameters)}"
        if not isinstance(name, str) or not name:
            raise ArgumentTypeError(f"param: name: got {name!r}, expected a name", op="param")
        if name in self.parameters:
            raise ArgumentError(f"param: name: got {name!r}, which is taken, expected another", op="param")
        wants = self.options.requires_grad_by_default if requires_grad is None else requires_grad
        made = self.parameters[name] = Parameter(self, name, value, bool(wants))
        return made

    def use(self, parameter: Parameter) -> TensorRef:
        """The parameter as a leaf of the tape; the same one each time until it changes or the session is reset."""
        if parameter._session is not self:
            raise DeviceMismatchError("use: parameter: got one of another session, expected one of this", op="use")
        found = self._leaves.get(parameter)
        if found is not None and found[1] == parameter._version:
            return found[0]
        value = AnyBuffer.of(parameter.shape, parameter.mirror.share())
        ref = self._ref(self.tape.leaf(value, parameter.name, parameter.requires_grad))
        self._leaves[parameter] = (ref, parameter._version)
        return ref

    def input(self, value: npt.ArrayLike, name: str = "input", requires_grad: bool = False) -> TensorRef:
        """An array as a leaf of the tape, with a gradient if asked for (:attr:`TensorRef.grad` after backward)."""
        self._require_open("input")
        return self._ref(self.tape.leaf(AnyBuffer.upload(value, self.device), name, requires_grad))

    def const(self, value: npt.ArrayLike, name: str = "const") -> TensorRef:
        """An array as a leaf of the tape without a gradient."""
        return self.input(value, name, False)

    def full(self, shape: Sequence[int], value: float) -> TensorRef:
        """A constant tensor."""
        shape = tuple(shape)
        return self._ref(self.tape.leaf(AnyBuffer.of(shape, self.device.full(size_of(shape), value)), "full", False))

    def zeros(self, shape: Sequence[int]) -> TensorRef:
        """A tensor of zeros."""
        return self.full(shape, 0.0)

    def detach(self, x: TensorRef | Parameter) -> TensorRef:
        """The same value with no gradient to x; shares its storage."""
        return self._ref(self.tape.detach(self._id(x, "detach")))

    def get_value(self, x: TensorRef | Parameter) -> npt.NDArray[Any]:
        """A copy of a tensor on the host; waits for the device."""
        return self.tape.value(self._id(x, "get_value")).numpy()

    # ---- natural numbers

    def nat(self, value: int) -> NatRef:
        """A natural number below 2^32 in the environment; usable wherever an index is taken."""
        self._nats.append(int(naturals("nat", [operator.index(value)])[0]))
        return NatRef(self, len(self._nats) - 1, self.epoch)

    def get_nat(self, ref: NatRef) -> int:
        """The number behind a reference. Raises IndexOutOfRangeError, ReleasedError after reset."""
        return int(self._nats[self._nat_place(ref, "get_nat", NatRef)])

    def set_nat(self, ref: NatRef, value: int) -> None:
        """Another number behind a reference."""
        place = self._nat_place(ref, "set_nat", NatRef)
        self._nats[place] = int(naturals("set_nat", [operator.index(value)])[0])

    def nat_vec(self, values: npt.ArrayLike) -> NatVecRef:
        """A vector of natural numbers below 2^32 in the environment; usable wherever indices are taken."""
        self._nats.append(naturals("nat_vec", values))
        return NatVecRef(self, len(self._nats) - 1, self.epoch)

    def get_nat_vec(self, ref: NatVecRef) -> npt.NDArray[np.uint32]:
        """A copy of the vector behind a reference."""
        return self._nats[self._nat_place(ref, "get_nat_vec", NatVecRef)].copy()

    def set_nat_vec(self, ref: NatVecRef, values: npt.ArrayLike) -> None:
        """Another vector behind a reference, of the same length."""
        place = self._nat_place(ref, "set_nat_vec", NatVecRef)
        fresh = naturals("set_nat_vec", values)
        if fresh.size != self._nats[place].size:
            text = f"set_nat_vec: values: got {fresh.size} numbers, expected {self._nats[place].size}"
            raise ArgumentError(text, op="set_nat_vec")
        self._nats[place] = fresh

    def _nat_place(self, ref: NatRef, op: str, kind: type[NatRef]) -> int:
        if type(ref) is not kind:
            raise ArgumentTypeError(f"{op}: ref: got {_convert.type_name(ref)}, expected {kind.__name__}", op=op)
        if ref.session is not self:
            raise DeviceMismatchError(f"{op}: ref: got one of another session, expected one of this", op=op)
        if ref.epoch != self.epoch:
            raise ReleasedError(f"{op}: ref: got one from before reset, expected one of this step", op=op)
        if not 0 <= ref.id < len(self._nats):
            raise IndexOutOfRangeError(f"{op}: ref: got id {ref.id}, expected below {len(self._nats)}", op=op)
        return ref.id

    # ---- random numbers

    def _key(self) -> int:
        """The key of the next draw, mix(seed + counter), by SplitMix64."""
        key = _mix((self.seed + self.counter) % 2**64)
        self.counter += 1
        return key

    def rand_uniform(self, shape: Sequence[int]) -> TensorRef:
        """Uniform numbers in [0, 1); exact multiples of 2^-24."""
        return self._draw("rand_uniform", shape)

    def rand_normal(self, shape: Sequence[int], mean: float = 0.0, std: float = 1.0) -> TensorRef:
        """Normal numbers by Box and Muller."""
        return self._draw("rand_normal", shape, mean, std)

    def bernoulli_mask(self, shape: Sequence[int], keep: float) -> TensorRef:
        """1 with probability `keep`, else 0."""
        return self._draw("bernoulli_mask", shape, keep)

    def _draw(self, name: str, shape: Sequence[int], *parameters: float) -> TensorRef:
        self._require_open(name)
        shape = tuple(shape)
        n = size_of(shape)
        before = self.counter
        try:
            buffer = getattr(self.tape.kernels, name)(self.device, n, self._key(), *parameters)
        except BaseException:
            self.counter = before
            raise
        return self._ref(self.tape.leaf(AnyBuffer.of(shape, buffer), name, False))

    def dropout(self, x: TensorRef, p: float) -> TensorRef:
        """x with each element dropped with probability p and the others scaled by 1/(1 - p)."""
        if not 0 <= p < 1:
            raise ArgumentError(f"dropout: p: got {p}, expected 0 <= p < 1", op="dropout")
        if p == 0:
            return x
        return self.scale(self.mul(x, self.bernoulli_mask(self.shape(x), 1 - p)), 1 / (1 - p))

    # ---- gradients

    @contextmanager
    def no_grad(self) -> Iterator[None]:
        """Within, nothing is recorded for backward."""
        before, self.tape.recording = self.tape.recording, False
        try:
            yield
        finally:
            self.tape.recording = before

    def backward(self, loss: TensorRef, seed: npt.ArrayLike | None = None) -> Gradients:
        """The gradients of `loss` by every parameter that requires one, zeros where it does not reach.

        `seed` is the cotangent in the loss's shape; left out, 1, which only a loss of one element allows. Raises
        ArgumentError where a parameter changed since the tape recorded it, or where nothing is recorded.
        """
        self._require_open("backward")
        id = self._id(loss, "backward")
        if not self.tape.recording:
            raise ArgumentError(
                "backward: loss: got one recorded without gradients, expected track_gradients", op="backward"
            )
        for parameter, (_, version) in self._leaves.items():
            if parameter.requires_grad and version != parameter._version:
                raise ArgumentError(
                    f"backward: {parameter.name}: got a value changed since this tape recorded it, expected reset() after"
                    " an update",
                    op="backward",
                )
        found = self.tape.backward_sparse(id, None, seed)
        self._gradients.release()
        by_parameter = self._gradients._by_parameter
        for parameter in self.parameters.values():
            if parameter.requires_grad:
                leaf = self._leaves.get(parameter)
                g = None if leaf is None else found.pop(leaf[0].id, None)
                by_parameter[parameter] = g if g is not None else AnyBuffer.zeros(parameter.shape, self.device)
        self._gradients._by_leaf = found
        return self._gradients

    @property
    def gradients(self) -> Gradients:
        """Those of the last backward pass."""
        return self._gradients

    def clip_grad_norm(self, max_norm: float, parameters: Sequence[Parameter] | None = None) -> AnyBuffer:
        """Scales the gradients so that their global norm is at most `max_norm`; returns the norm before, on the device.

        The norm is √Σg² over all elements of all gradients. Nothing waits for the device.
        """
        chosen = list(self._gradients) if parameters is None else list(parameters)
        missing = [p.name for p in chosen if p not in self._gradients]
        if missing or not chosen:
            raise ArgumentError(
                f"clip_grad_norm: parameters: got {missing or 'none'}, expected those of the last backward"
            )
        gradients = [self._gradients[p].buffer for p in chosen]
        norm = self.tape.kernels.global_norm(gradients)
        self.tape.kernels.clip_scale(gradients, norm, max_norm=max_norm, out=gradients)
        return AnyBuffer.of((), norm)

    # ---- life

    def reset(self) -> None:
        """Releases the tape, the gradients and the natural numbers. Parameters, their mirrors and the random counter stay."""
        self._require_open("reset")
        self._forget()

    def _forget(self) -> None:
        self.epoch += 1
        self._leaves.clear()
        self._nats.clear()
        self._gradients.release()
        self.tape.clear()

    def collect(self) -> None:
        """Returns cached memory to the driver or the operating system."""
        self.device.collect()

    def close(self) -> None:
        """Reads stale parameters back to the host, then releases everything; a device the session opened is closed."""
        if self._closed:
            return
        try:
            for parameter in self.parameters.values():
                if parameter.host_is_stale:
                    _ = parameter.value
        finally:
            self._forget()
            for parameter in self.parameters.values():
                parameter._release()
            self.tape.release()
            self._closed = True
            if self._owns_device:
                self.device.close()

    def __enter__(self) -> Session:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def __repr__(self) -> str:
        state = "closed" if self._closed else f"{len(self.parameters)} parameters, {self.tape.size} nodes"
        return f"Session({self.device.name!r}, {state})"


def _u64(name: str, value: int) -> int:
    number = operator.index(value)
    if not 0 <= number < 2**64:
        raise ArgumentError(f"Session: {name}: got {number}, expected 0 <= {name} < 2**64")
    return number


def _mix(x: int) -> int:
    """SplitMix64's output function (Steele, Lea and Flood, OOPSLA 2014); _mix(0) = e220a8397b1dcdaf."""
    mask = 2**64 - 1
    z = (x + 0x9E3779B97F4A7C15) & mask
    z = ((z ^ (z >> 30)) * 0xBF58476D1CE4E5B9) & mask
    z = ((z ^ (z >> 27)) * 0x94D049BB133111EB) & mask
    return z ^ (z >> 31)
