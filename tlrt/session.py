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

import itertools
import warnings
import weakref
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, suppress
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, NamedTuple, cast

import numpy as np
import numpy.typing as npt

from tlrt._binding import convert
from tlrt._binding.arguments import boolean, integer, integers, is_number, uint64
from tlrt._binding.library import failure
from tlrt._binding.together import Change, release_call, set_and_call
from tlrt._capture.turn import Turn
from tlrt._gradients import Gradients, release_all
from tlrt._naturals import NaturalNumbers
from tlrt._node import Node, other_thread_error, release_nodes
from tlrt._operations import Operations
from tlrt._operations.base import atomic
from tlrt._operations.names import explain_arguments, explained, missing_attribute
from tlrt._operations.plan import Shape
from tlrt._operations.random import RandomOperations
from tlrt._operations.shaped import AnyBuffer, size_of
from tlrt.capture import Captured, capture
from tlrt.context import Device
from tlrt.context import device as open_device
from tlrt.errors import (
    ArgumentError,
    ArgumentTypeError,
    DeviceMismatchError,
    ReleasedError,
    ShapeError,
    refusal,
)
from tlrt.parameter import Parameter, Parameters
from tlrt.spec import SpecDevice
from tlrt.tape import Tape
from tlrt.tensor import Arithmetic, CapturedTensor, NatRef, NatVecRef, TensorRef
from tlspec.ops.random import draw_key

__all__ = ["Gradients", "NatRef", "NatVecRef", "Options", "Parameter", "Session", "TensorRef"]


_blank: Any = TensorRef.__new__
#: nodes of a tape, and reads and backward passes since the last reset, from which on a missing reset is reported
_LONG_TAPE, _MANY_READS = 10_000, 10


@dataclass(frozen=True)
class Options:
    """How a session runs.

    Parameters
    ----------
    device : str, default 'cpu'
        "spec" (float64), "cpu", "cuda" or "cuda:1".
    requires_grad_by_default : bool, default True
        Whether parameters are trained, unless said.
    track_gradients : bool, default True
        False records nothing for backward.
    seed : int, default 0
        Of the random numbers; below 2^64.
    fast_kernels : bool, default False
        linear, matmul and mse_loss by :mod:`tlrt.fast_kernels`.
    matmul_precision : str, default 'fp32'
        Of the fast kernels: "fp32" or "fp64".
    math : str, optional
        "fast" or "reproducible"; see :func:`tlrt.device`.
    check_indices : bool, default False
        Refuses an index out of range, where it reads 0 and is not written to otherwise.

    Examples
    --------
    >>> print(tlrt.Options(seed=3).seed)
    3
    """

    device: str = "cpu"
    requires_grad_by_default: bool = True
    track_gradients: bool = True
    seed: int = 0
    fast_kernels: bool = False
    matmul_precision: str = "fp32"
    math: str | None = None
    check_indices: bool = False


class _Mark(NamedTuple):
    """The leaves and the outdated ones of a step, the tape's mark, and the draws so far."""

    leaves: dict[Parameter, tuple[TensorRef, int, list[int], int]]
    outdated: dict[int, tuple[Parameter, list[int], int]]
    nodes: tuple[int, object]
    counter: int


@explain_arguments
class Session(NaturalNumbers, Operations[TensorRef], RandomOperations[TensorRef]):
    """A program's tensors, parameters and random numbers on one device; see :mod:`tlrt.session`.

    Operations take tensors of this session, its parameters, and, where two operands meet elementwise, numbers.

    Parameters
    ----------
    device : str, Device or SpecDevice, optional
        A name ("spec", "cpu", "cuda"), or a device, which is then not closed with the session.
    options : Options, optional
        What the arguments below say where they are left out.
    requires_grad_by_default : bool, optional
        Whether parameters are trained, unless said.
    track_gradients : bool, optional
        False records nothing for backward.
    seed : int, optional
        Of the random numbers; below 2^64.
    fast_kernels : bool, optional
        linear, matmul and mse_loss by :mod:`tlrt.fast_kernels`.
    matmul_precision : str, optional
        Of the fast kernels: "fp32" or "fp64".
    math : str, optional
        "fast" or "reproducible"; see :func:`tlrt.device`.
    check_indices : bool, optional
        Refuses an index out of range, where it reads 0 and is not written to otherwise.

    Examples
    --------
    >>> with tlrt.Session("cpu") as s:
    ...     w = s.param([1, 2], "w")
    ...     s.reduce_sum(w * w).backward()
    ...     print(w.grad.numpy())
    [2. 4.]
    """

    @explained
    def __init__(
        self, device: str | Device | SpecDevice | None = None, *, options: Options | None = None,
        requires_grad_by_default: bool | None = None, track_gradients: bool | None = None, seed: int | None = None,
        fast_kernels: bool | None = None, matmul_precision: str | None = None, math: str | None = None,
        check_indices: bool | None = None,
    ) -> None:  # fmt: skip
        chosen = Options() if options is None else options
        if not isinstance(chosen, Options):
            raise refusal(ArgumentTypeError, "Session", "options", convert.type_name(chosen), "Options")
        if device is not None and not isinstance(device, str) and not hasattr(device, "memory"):
            hint = " (options=… takes them)" if isinstance(device, Options) else ""
            got = convert.type_name(device)
            raise refusal(ArgumentTypeError, "Session", "device", got, f"a Device or its name, like 'cpu'{hint}")
        given: dict[str, Any] = {
            "device": device if isinstance(device, str) else None, "requires_grad_by_default": requires_grad_by_default,
            "track_gradients": track_gradients, "seed": seed, "fast_kernels": fast_kernels,
            "matmul_precision": matmul_precision, "math": math, "check_indices": check_indices,
        }  # fmt: skip
        chosen = replace(chosen, **{name: value for name, value in given.items() if value is not None})
        for name in ("requires_grad_by_default", "track_gradients", "fast_kernels", "check_indices"):
            boolean("Session", name, getattr(chosen, name))
        if chosen.matmul_precision not in ("fp32", "fp64"):
            got = chosen.matmul_precision
            raise refusal(ArgumentError, "Session", "matmul_precision", f"{got!r}", "'fp32' or 'fp64'")
        self.seed = uint64("Session", "seed", chosen.seed)
        self._owns_device = device is None or isinstance(device, str)
        self.device: Any = device
        if self._owns_device:
            self.device = (
                SpecDevice() if chosen.device == "spec" else open_device(chosen.device, math=chosen.math, new=True)
            )
        elif chosen.math is not None:
            raise refusal(ArgumentError, "Session", "math", f"{chosen.math!r} beside a Device", "one of the two")
        self.options = chosen
        self._checks_indices = chosen.check_indices
        self.tape = Tape(self.device)
        self.tape.recording = chosen.track_gradients
        #: all parameters by name, in the order they were made; ``parameters()`` is their list
        self.parameters = Parameters()
        self.epoch = 0
        self._epochs = itertools.count(1)  # two threads that reset at once do not give their steps one number
        #: draws so far
        self.counter = 0
        #: the leaf of each parameter, the version that it has, and how often which memory had been written then
        self._leaves: dict[Parameter, tuple[TensorRef, int, list[int], int]] = {}
        #: leaves on the tape whose parameter has changed since, with that memory and that number
        self._outdated: dict[int, tuple[Parameter, list[int], int]] = {}
        self._gradients = Gradients()
        self._nats: list[Any] = []
        self._turn = Turn()
        self._captures: weakref.WeakSet[Captured] = weakref.WeakSet()
        self._closed = False
        #: a step, and how often its tape was read or differentiated; whether a missing reset was reported
        self._reads, self._warned = (0, 0), False
        #: functions on node ids that run in place of the tape's operations, by name
        self._substitutes: dict[str, Callable[..., int]] = {}
        if chosen.fast_kernels:
            from tlrt.fast_kernels import substitutes

            self._substitutes = substitutes(
                self.tape, precision=cast(Any, chosen.matmul_precision), use_gpu=bool(self.device.is_cuda)
            )

    if not TYPE_CHECKING:  # else every name would be one

        def __getattr__(self, name):
            if hasattr(type(self), name):
                return object.__getattribute__(self, name)
            raise missing_attribute(self, name)

    # ---- references

    def _require_open(self, op: str) -> None:
        if self._closed:
            raise refusal(ReleasedError, op, "session", "a closed session", "an open one")
        for observer in self.device._observers:
            observer.before_session_use(self, op)

    def _require_uncaptured(self, op: str) -> None:
        """Raises CaptureError within a captured function."""
        for observer in self.device._observers:
            observer.before_host_access(self.device, op)

    def _id(self, x: Any, op: str) -> int:
        """The node of an operand; parameters are put on the tape."""
        if type(x) is TensorRef:
            if x.session is self and x.epoch == self.epoch:
                return x.id
            if x.session is not self:
                raise refusal(DeviceMismatchError, op, "tensor", "one of another session", "one of this")
            self._require_open(op)
            raise refusal(ReleasedError, op, "tensor", "one from before reset", f"one of this step (shape {x.shape})")
        if isinstance(x, Parameter):
            return self.use(x).id
        if isinstance(x, CapturedTensor):
            if x.session is not self:
                raise refusal(DeviceMismatchError, op, "tensor", "one of another session", "one of this")
            return self._leaf(x.value.copy(), "captured", False).id  # the next replay overwrites the step's own
        if isinstance(x, AnyBuffer):
            got = "an AnyBuffer, which has no gradient, as those of backward have none of their own"
            expected = "TensorRef or Parameter (Session.const(g.numpy()) is a constant of its values; for the second derivative "
            expected += "along v take the difference of the gradients at w + h·v and w - h·v)"
            raise refusal(ArgumentTypeError, op, "tensor", got, expected)
        got = convert.type_name(x)
        hint = " (Session.const(array) makes one)" if hasattr(x, "__array__") or is_number(x) else ""
        raise refusal(ArgumentTypeError, op, "tensor", got, f"TensorRef or Parameter{hint}")

    def _node(self, x: TensorRef | Parameter, op: str) -> Node:
        nodes = self.tape.nodes  # before the epoch is compared: another thread may reset the session after that
        id = self._id(x, op)
        return nodes[id] if type(id) is int and 0 <= id < len(nodes) else self.tape.node(id, op)

    def _read(self, x: TensorRef | Parameter, op: str) -> npt.NDArray[Any]:
        """A copy on the host of the value behind a reference; raises ShapeError where the tape holds one of another shape."""
        node = self._node(x, op)
        if node.shape != x.shape:
            raise refusal(
                ShapeError, op, "tensor", f"shape {x.shape}", f"{node.shape}, as the tape holds ({node.name})"
            )
        self._note_growth()
        return node.value.numpy()

    def _note_growth(self) -> None:
        """Warns once where a long tape has been read or differentiated so often that it holds many steps."""
        self._reads = (self.epoch, self._reads[1] + 1 if self._reads[0] == self.epoch else 1)
        if len(self.tape.nodes) >= _LONG_TAPE and self._reads[1] >= _MANY_READS and not self._warned:
            self._warned = True
            text = (
                f"the tape holds {len(self.tape.nodes)} nodes of many steps; call reset() after each, which frees them"
            )
            warnings.warn(text, stacklevel=3)

    def _ref(self, epoch: int, id: int) -> TensorRef:
        """A reference to a node, with the epoch from before the node was made: another thread may reset the session."""
        nodes = self.tape.nodes
        if id >= len(nodes):
            raise other_thread_error("tensor")
        return TensorRef(self, id, nodes[id].shape, epoch)

    def _apply(
        self, name: str, parents: tuple[Any, ...], extra: tuple[Any, ...] = (), hosts: Mapping[str, Any] | None = None
    ) -> TensorRef:
        epoch = self.epoch
        ids: list[Any] = []
        for p in parents:
            if type(p) is TensorRef and p.epoch == epoch and p.session is self:
                ids.append(p.id)
            else:
                ids.append(None if p is None else self._id(p, name))
        tape = self.tape
        if hosts is not None:
            for observer in self.device._observers:
                for argument, array in hosts.items():
                    if isinstance(array, np.ndarray):
                        observer.host_array_used(self, f"{name}: {argument}", array)
        if self._substitutes and name in self._substitutes:
            return self._ref(epoch, self._substitutes[name](*ids))
        id = tape._apply(name, tuple(ids), extra, hosts)
        made = _blank(TensorRef)
        made.session = self
        made.id = id
        try:
            made.shape = tape.nodes[id].shape
        except IndexError:
            raise other_thread_error(name) from None
        made.epoch = epoch
        return made

    def _view(self, x: TensorRef, shape: Shape, name: str) -> TensorRef:
        return self._ref(self.epoch, self.tape._view(self._id(x, name), shape, name))

    def shape(self, x: Any) -> Shape:
        """The shape of a tensor or parameter; () of a number.

        Parameters
        ----------
        x : tensor, Parameter or float
            Any.

        Returns
        -------
        tuple of int
            One size for each axis.

        Examples
        --------
        >>> s = tlrt.Session("cpu", seed=1)
        >>> print(s.shape(s.zeros((2, 3))))
        (2, 3)
        """
        return self._shape("shape", x)

    def _shape(self, op: str, x: Any) -> Shape:
        if type(x) is TensorRef or isinstance(x, (Parameter, CapturedTensor)):
            return x.shape
        if is_number(x):
            return ()
        self._id(x, op)  # raises
        raise AssertionError

    def _pair(self, name: str, a: Any, b: Any) -> TensorRef:
        if type(a) is TensorRef and type(b) is TensorRef:
            if a.shape == b.shape:
                return self._apply(name, (a, b))
            return self._spread_pair(name, a, b)
        return self._mixed_pair(name, a, b)

    @atomic
    def _mixed_pair(self, name: str, a: Any, b: Any) -> TensorRef:
        """A binary operation on tensors, parameters and numbers; max and min refuse an integer, which most mean as an axis."""
        for x in (a, b) if name in ("max", "min") else ():
            if isinstance(x, (int, np.integer)):
                expected = f"a tensor, or {float(x)} for a number (an axis: axis={int(x)})"
                raise refusal(ArgumentTypeError, name, "b" if x is b else "a", x, expected)
        if name == "pow" and is_number(b) and not is_number(a):
            return self._apply("pow_scalar", (a,), (float(b),))
        return super()._pair(name, self._operand(a), self._operand(b))

    def _operand(self, x: Any) -> Any:
        return self.const(x) if is_number(x) else x

    def _constant(self, array: npt.ArrayLike) -> TensorRef:
        return self.const(array)

    def _hold(self, value: AnyBuffer, name: str) -> TensorRef:
        return self._leaf(value, name, False)

    def _buffer(self, op: str, x: Any) -> AnyBuffer:
        return self._node(x, op).value

    def _host(self, x: TensorRef) -> npt.NDArray[Any]:
        return self.get_value(x)

    def _mark(self) -> _Mark:
        return _Mark(self._leaves, self._outdated, self.tape._mark(), self.counter)

    def _undo(self, mark: _Mark) -> None:
        leaves, outdated, nodes, counter = mark  # those of the mark's step: another thread may have reset the session
        size, end = nodes[0], self.tape._undo(nodes)  # later nodes are those of another thread since then
        for parameter, leaf in list(leaves.items()):
            if size <= leaf[0].id < end:
                with suppress(KeyError):  # another thread has dropped it
                    if leaves[parameter] is leaf:  # no other thread runs between this and the next line
                        del leaves[parameter]
        for id in [id for id in list(outdated) if size <= id < end]:
            outdated.pop(id, None)
        if self.counter == counter + 1:  # of the draw undone; more are another thread's
            self.counter = counter

    # ---- leaves

    def param(self, value: npt.ArrayLike, name: str | None = None, requires_grad: bool | None = None) -> Parameter:
        """Makes a parameter: a named array that outlives the tape.

        Parameters
        ----------
        value : array_like
            Its value; any shape.
        name : str, optional
            Unique within the session; "p0", "p1", … unless given.
        requires_grad : bool, optional
            Whether it is trained; as the session's options say unless given.

        Returns
        -------
        Parameter
            Not on the tape until it is used.

        Raises
        ------
        ArgumentError
            The name is taken.

        Examples
        --------
        >>> s = tlrt.Session("cpu", seed=1)
        >>> w = s.param(np.ones(2), "w")
        >>> print(w.name, w.shape)
        w (2,)
        """
        self._require_open("param")
        self._require_uncaptured("param")
        if name is None:
            name = f"p{len(self.parameters)}"
        if not isinstance(name, str) or not name:
            raise refusal(ArgumentTypeError, "param", "name", f"{name!r}", "a name")
        if name in self.parameters:
            owner = name.rpartition(".")[0] or name
            expected = f"another (session.parameters.drop({owner!r}) forgets what has it)"
            raise refusal(ArgumentError, "param", "name", f"{name!r}, which is taken", expected)
        wants = self.options.requires_grad_by_default if requires_grad is None else requires_grad
        made = self.parameters[name] = Parameter(self, name, value, boolean("param", "requires_grad", wants))
        made.is_trainable = requires_grad is None or made.requires_grad
        return made

    def use(self, parameter: Parameter) -> TensorRef:
        """The parameter as a leaf of the tape.

        Parameters
        ----------
        parameter : Parameter
            One of this session.

        Returns
        -------
        tensor
            The same one each time until the parameter changes or the session is reset.

        Raises
        ------
        ReleasedError
            The parameter was dropped.

        Examples
        --------
        >>> s = tlrt.Session("cpu", seed=1)
        >>> w = s.param([1, 2], "w")
        >>> print(s.use(w) is s.use(w))
        True
        """
        epoch, leaves = self.epoch, self._leaves  # of one step, whatever another thread resets from here on
        found = leaves.get(parameter)
        if found is not None and found[1] == parameter._version:
            return found[0]
        if not isinstance(parameter, Parameter):
            raise refusal(ArgumentTypeError, "use", "parameter", convert.type_name(parameter), "Parameter")
        if parameter.session is not self:
            raise refusal(DeviceMismatchError, "use", "parameter", "one of another session", "one of this")
        if self.parameters.get(parameter.name) is not parameter:
            got = f"{parameter.name!r}, which was dropped"
            raise refusal(ReleasedError, "use", "parameter", got, "one of the session's parameters")
        version, outdated, writes = parameter._version, self._outdated, parameter._writes
        written = writes[0]
        value = AnyBuffer.of(parameter.shape, parameter.mirror.share())
        ref = self._ref(epoch, self.tape._append(Node(parameter.name, value, parameter._requires_grad)))
        leaf = (ref, version, writes, written)
        if found is not None:
            outdated[found[0].id] = (parameter, *found[2:])
            if leaves[parameter] is found:  # no other thread runs between this and the next line
                leaves[parameter] = leaf
        if leaves.setdefault(parameter, leaf) is not leaf:
            raise other_thread_error("use")
        return ref

    def _leaf(self, value: AnyBuffer, name: str, requires_grad: bool) -> TensorRef:
        """A leaf that requires a gradient within no_grad too: what is computed from it there does not, what follows does."""
        return self._ref(self.epoch, self.tape._append(Node(name, value, requires_grad)))

    def input(self, value: npt.ArrayLike, name: str = "input", requires_grad: bool = False) -> TensorRef:
        """An array as a leaf of the tape.

        Parameters
        ----------
        value : array_like
            Any shape; copied to the device in float32.
        name : str, default 'input'
            Its name on the tape.
        requires_grad : bool, default False
            Whether backward gives it a gradient, its `grad`.

        Returns
        -------
        tensor
            In the array's shape.

        Examples
        --------
        >>> s = tlrt.Session("cpu", seed=1)
        >>> x = s.input([1, 2], requires_grad=True)
        >>> s.reduce_sum(x * x).backward()
        >>> print(x.grad.numpy())
        [2. 4.]
        """
        self._require_open("input")
        if isinstance(value, Arithmetic):
            expected = "an array (Session.detach stops gradients)"
            raise refusal(ArgumentTypeError, name, "value", type(value).__name__, expected)
        if not isinstance(name, str):
            raise refusal(ArgumentTypeError, "input", "name", convert.type_name(name), "a name")
        wants = boolean("input", "requires_grad", requires_grad) and self.options.track_gradients
        if isinstance(value, convert.Live):
            return self._leaf(value.share(self), name, wants)
        return self._leaf(AnyBuffer.upload(value, self.device), name, wants)

    def const(self, value: npt.ArrayLike, name: str = "const") -> TensorRef:
        """An array as a leaf of the tape without a gradient.

        Parameters
        ----------
        value : array_like
            Any shape; copied to the device in float32.
        name : str, default 'const'
            Its name on the tape.

        Returns
        -------
        tensor
            In the array's shape.

        Examples
        --------
        >>> s = tlrt.Session("cpu", seed=1)
        >>> print(s.const([1, 2]).numpy())
        [1. 2.]
        """
        return self.input(value, name, False)

    def full(self, shape: Sequence[int] | int, value: float) -> TensorRef:
        """A constant tensor of one number.

        Parameters
        ----------
        shape : int or sequence of int
            The sizes of the axes.
        value : float
            The number.

        Returns
        -------
        tensor
            Without a gradient.

        Examples
        --------
        >>> s = tlrt.Session("cpu", seed=1)
        >>> print(s.full(3, 0.5).numpy())
        [0.5 0.5 0.5]
        """
        self._require_open("full")
        sizes = _sizes("full", shape)
        return self._leaf(AnyBuffer.of(sizes, self.device.full(size_of(sizes), value)), "full", False)

    def zeros(self, shape: Sequence[int] | int) -> TensorRef:
        """A tensor of zeros.

        Parameters
        ----------
        shape : int or sequence of int
            The sizes of the axes.

        Returns
        -------
        tensor
            Without a gradient.

        Examples
        --------
        >>> s = tlrt.Session("cpu", seed=1)
        >>> print(s.zeros(3).numpy())
        [0. 0. 0.]
        """
        self._require_open("zeros")
        sizes = _sizes("zeros", shape)
        return self._leaf(AnyBuffer.of(sizes, self.device.zeros(size_of(sizes))), "zeros", False)

    def detach(self, x: TensorRef | Parameter) -> TensorRef:
        """The same value with no gradient to x.

        Parameters
        ----------
        x : tensor or Parameter
            Any shape.

        Returns
        -------
        tensor
            Shares the storage of x.

        Examples
        --------
        >>> s = tlrt.Session("cpu", seed=1)
        >>> w = s.param([1, 2], "w")
        >>> print(s.detach(w).requires_grad)
        False
        """
        return self._ref(self.epoch, self.tape.detach(self._id(x, "detach")))

    def get_value(self, x: TensorRef | Parameter | CapturedTensor) -> npt.NDArray[Any]:
        """A copy of a tensor on the host; waits for the device.

        Parameters
        ----------
        x : tensor or Parameter
            Any shape.

        Returns
        -------
        numpy.ndarray
            In the tensor's shape.

        Raises
        ------
        ReleasedError
            The tensor is from before a reset.

        Examples
        --------
        >>> s = tlrt.Session("cpu", seed=1)
        >>> print(s.get_value(s.full(2, 3)))
        [3. 3.]
        """
        return x.numpy() if isinstance(x, CapturedTensor) else self._read(x, "get_value")

    # ---- random numbers

    def _key(self) -> int:
        """The key of the next draw; see :func:`tlspec.ops.random.draw_key`."""
        counter, self.counter = self.counter, self.counter + 1  # no other thread runs between the two
        key = draw_key(self.seed, counter)
        for observer in self.device._observers:
            observer.key_drawn(self, key, self._key)
        return key

    def _draw(self, name: str, shape: Sequence[int] | int, *parameters: float) -> TensorRef:
        self._require_open(name)
        sizes = _sizes(name, shape)
        buffer = getattr(self.tape.kernels, name)(self.device, size_of(sizes), self._key(), *parameters)
        return self._leaf(AnyBuffer.of(sizes, buffer), name, False)

    def _drop_weights(self, op: str, weights: TensorRef, p: float) -> TensorRef:
        return self.dropout(weights, p)

    # ---- gradients

    def no_grad(self) -> AbstractContextManager[Any]:
        """Within, nothing is recorded for backward.

        Returns
        -------
        context manager
            Of this thread alone.

        Examples
        --------
        >>> s = tlrt.Session("cpu", seed=1)
        >>> w = s.param([1, 2], "w")
        >>> with s.no_grad():
        ...     y = w * w
        >>> print(y.requires_grad)
        False
        """
        return self.tape.pause()

    def backward(
        self, loss: TensorRef, seed: npt.ArrayLike | AnyBuffer | None = None, *, accumulate: bool = False
    ) -> Gradients:
        """The gradients of a loss by every parameter that requires one.

        A loss that depends on nothing that requires a gradient gives zeros and a warning.

        Parameters
        ----------
        loss : tensor
            What is differentiated.
        seed : array_like or AnyBuffer, optional
            The cotangent in the loss's shape; 1 unless given, which only a loss of one element allows.
        accumulate : bool, default False
            Adds to the gradients of earlier backwards, also to those that reset(gradients=False) kept, in place of
            replacing them.

        Returns
        -------
        Gradients
            By parameter; zeros where the loss does not reach, and optimisers leave those parameters as they are.

        Raises
        ------
        ArgumentError
            Nothing is recorded, or the loss depends on a parameter that changed since the tape recorded it.

        Examples
        --------
        >>> s = tlrt.Session("cpu", seed=1)
        >>> w = s.param([1, 2], "w")
        >>> g = s.backward(s.reduce_sum(w * w))
        >>> print(g[w].numpy())
        [2. 4.]
        """
        self._require_open("backward")
        boolean("backward", "accumulate", accumulate)
        epoch = self.epoch
        id = self._id(loss, "backward")
        tape, leaves = self.tape, dict(self._leaves)
        self._note_growth()
        if not tape._records():
            raise refusal(ArgumentError, "backward", "loss", "one recorded without gradients", "track_gradients")
        if self._outdated or any(p._version != leaf[1] for p, leaf in leaves.items()):
            self._refuse_outdated(id)
        if not tape.node(id, "backward").requires_grad:
            text = "backward: loss: it depends on nothing that requires a gradient: all gradients are zero"
            warnings.warn(text, stacklevel=2 if type(loss) is TensorRef else 3)
        found = tape._sparse(id, None, seed, tape.nodes)
        by_parameter: dict[Parameter, AnyBuffer] = {}
        unreached = set()
        for parameter in self.parameters.values():
            if parameter._requires_grad:
                leaf = leaves.get(parameter)
                g = None if leaf is None else found.pop(leaf[0].id, None)
                if g is None:
                    unreached.add(parameter)
                by_parameter[parameter] = g if g is not None else AnyBuffer.zeros(parameter.shape, self.device)
        gradients = self._gradients
        try:
            if accumulate:
                self._add_to_earlier(by_parameter, gradients._by_parameter, unreached)
                self._add_to_earlier(found, gradients._by_leaf, set())
                for i in gradients._by_leaf.keys() - found.keys():
                    found[i] = gradients._by_leaf[i].copy()
                unreached &= gradients._unreached | (by_parameter.keys() - gradients._by_parameter.keys())
            if self.epoch != epoch:
                raise other_thread_error("backward")
        except BaseException:
            release_all((*found.values(), *by_parameter.values()))
            raise
        old = [release_call(g.buffer) for g in (*gradients._by_parameter.values(), *gradients._by_leaf.values())]
        fresh = [(gradients, "_by_parameter", by_parameter), (gradients, "_by_leaf", found)]
        own = frozenset(leaf[0].id for p, leaf in leaves.items() if p._requires_grad)
        fresh += [(gradients, "_size", len(tape.nodes)), (gradients, "_of_parameters", own)]
        set_and_call([*fresh, (gradients, "_unreached", frozenset(unreached))], old)
        for observer in self.device._observers:
            observer.after_backward(self)
        return self._gradients

    def _leaf_gradient(self, x: TensorRef) -> AnyBuffer | None:
        """The gradient of an input that requires one, zeros where the loss does not reach it; None before a backward pass."""
        id, gradients = self._id(x, "grad"), self._gradients
        found = gradients._by_leaf.get(id)
        if found is None and type(id) is int and 0 <= id < gradients._size:
            node = self._node(x, "grad")
            if node.requires_grad and not node.parents and id not in gradients._of_parameters:
                found = gradients._by_leaf[id] = AnyBuffer.zeros(node.shape, self.device)
        return found

    def _add_to_earlier(self, fresh: dict[Any, AnyBuffer], earlier: Mapping[Any, AnyBuffer], zeros: set[Any]) -> None:
        """Adds the gradients of an earlier backward, in place. To those that are zeros nothing is added: the earlier stand."""
        for key in [k for k in fresh if k in earlier]:
            own, old = fresh[key], earlier[key]
            if key in zeros:
                fresh[key] = old.copy()
                own.release()
            else:
                self.tape.kernels.add(old.buffer, own.buffer, out=own.buffer)

    def _refuse_outdated(self, loss: int) -> None:
        """Raises where the loss depends on a parameter that is trained and has another value than on the tape, or on one whose
        value on the tape was written over."""
        outdated = self._outdated
        leaves = {leaf[0].id: (p, *leaf[2:]) for p, leaf in self._leaves.items() if p._version != leaf[1]}
        nodes, open_, seen = self.tape.nodes, [loss], {loss}
        while open_:
            id = open_.pop()
            if (old := leaves.get(id) or outdated.get(id)) is not None:
                p, writes, written = old
                if writes[0] != written or (nodes[id].requires_grad and p.requires_grad):
                    got = "a value changed since this tape recorded it"
                    raise refusal(ArgumentError, "backward", p.name, got, "reset() after an update")
            fresh = [p for p in nodes[id].parents if p is not None and p not in seen]
            seen.update(fresh)
            open_ += fresh

    @property
    def gradients(self) -> Gradients:
        """Those of the last backward pass."""
        return self._gradients

    def clip_grad_norm(self, max_norm: float, parameters: Sequence[Parameter] | None = None) -> AnyBuffer:
        """Scales the gradients so that their global norm is at most a number.

        Parameters
        ----------
        max_norm : float
            The largest norm, 0 or more.
        parameters : sequence of Parameter, optional
            Whose gradients; all unless given.

        Returns
        -------
        AnyBuffer
            The norm before, √Σg² over all elements, on the device: nothing waits for it.

        Raises
        ------
        ArgumentError
            There are no gradients.

        Examples
        --------
        >>> s = tlrt.Session("cpu", seed=1)
        >>> w = s.param([3, 4], "w")
        >>> _ = s.backward(s.reduce_sum(w * w) * 0.5)
        >>> print(s.clip_grad_norm(1.0).numpy(), w.grad.numpy().round(4))
        5.0 [0.6 0.8]
        """
        self._require_open("clip_grad_norm")
        known = self._gradients._by_parameter
        if isinstance(parameters, Parameter):
            parameters = [parameters]
        chosen = list(known) if parameters is None else list(dict.fromkeys(parameters))
        for p in chosen:
            if not isinstance(p, Parameter):
                got = convert.type_name(p)
                raise refusal(ArgumentTypeError, "clip_grad_norm", "parameters", got, "Parameter")
        missing = [p.name for p in chosen if p not in known]
        if missing or not chosen:
            expected = "those of the last backward"
            raise refusal(ArgumentError, "clip_grad_norm", "parameters", missing or "none", expected)
        kernels = self.tape.kernels
        gradients = kernels.pack([known[p].buffer for p in chosen])
        norm = kernels.global_norm(gradients)
        kernels.clip_scale(gradients, norm, max_norm=max_norm, out=gradients)
        return AnyBuffer.of((), norm)

    # ---- life

    def capture(self, function: Callable[..., Any], *example: Any) -> Captured:
        """Calls a function once, as a step of the program, and gives it as a step that runs without Python's tape.

        Parameters
        ----------
        function : callable
            See :mod:`tlrt.capture` for what it may do.
        *example : array_like
            Its arguments.

        Returns
        -------
        Captured
            Called with other arguments of the same shapes.

        Examples
        --------
        >>> s = tlrt.Session("cpu", seed=1)
        >>> step = s.capture(lambda x: s.reduce_sum(s.input(x)), np.ones(3))
        >>> print(step(np.full(3, 2.0)).numpy())
        6.0
        """
        return capture(self, function, example)

    def reset(self, *, gradients: bool = True) -> None:
        """Ends a step: releases the tape, the gradients and the natural numbers.

        Parameters, their mirrors and the random counter stay.

        Parameters
        ----------
        gradients : bool, default True
            False keeps the gradients by parameter, for a backward that adds to them.

        Examples
        --------
        >>> s = tlrt.Session("cpu", seed=1)
        >>> x = s.zeros(2)
        >>> s.reset()
        >>> print(len(s.tape))
        0
        """
        self._require_open("reset")
        self._release_step(boolean("reset", "gradients", gradients))

    def _release_step(self, with_gradients: bool = True) -> None:
        """Releases what belongs to the step."""
        for observer in self.device._observers:
            observer.before_reset(self)
        gradients, nodes = self._gradients, self.tape.nodes
        parameters, leaves = gradients._by_parameter, gradients._by_leaf
        kept: list[Change] = [(gradients, "_by_parameter", parameters), (gradients, "_unreached", gradients._unreached)]
        set_and_call(self._emptied() + ([] if with_gradients else kept), [])
        release_nodes(nodes)
        release_all((*(parameters.values() if with_gradients else ()), *leaves.values()))

    def _emptied(self) -> list[Change]:
        """What begins a new step."""
        fresh = [(self, "_leaves", {}), (self, "_outdated", {}), (self, "_nats", []), *self.tape._emptied()]
        gradients = self._gradients
        fresh += [(gradients, "_by_parameter", {}), (gradients, "_by_leaf", {}), (gradients, "_unreached", frozenset())]
        fresh += [(gradients, "_size", 0), (gradients, "_of_parameters", frozenset())]
        return [(self, "epoch", next(self._epochs)), *fresh]

    def collect(self) -> None:
        """Returns cached memory to the driver or the operating system."""
        self._require_open("collect")
        self.device.collect()

    def close(self) -> None:
        """Reads stale parameters back to the host, then releases everything at once; a device the session opened is
        closed.

        Where memory is short the session stays open and may be closed again.
        """
        if self._closed:
            if self._owns_device and not self.device.closed:
                self.device.close()
            return
        self._require_uncaptured("close")
        try:
            for parameter in self.parameters.values():
                if parameter.host_is_stale and not self.device.closed:
                    _ = parameter.value
        except MemoryError:
            raise
        except Exception:
            self._end()
            raise
        self._end()

    def _end(self) -> None:
        """Releases everything, whatever interrupts it: what the session has is released, and known to be, in one act."""
        for observer in self.device._observers:
            observer.before_reset(self)
        tape, gradients, parameters = self.tape, self._gradients, list(self.parameters.values())
        found = (*gradients._by_parameter.values(), *gradients._by_leaf.values())
        buffers = [b for node in tape.nodes for b in (node.buffer, *node.cleanup)] + [g.buffer for g in found]
        buffers += [p._mirror for p in parameters if p._mirror is not None]
        changes: list[Change] = [(self, "_closed", True), (tape, "_released", True), *self._emptied()]
        changes += [(p, "_mirror", None) for p in parameters]
        ends = [step._end() for step in list(self._captures)]
        calls = [call for _, made in ends for call in made] + list(map(release_call, buffers))
        if self._owns_device and self.device.name != "spec":
            calls.append((self.device._library.lib.torchlean_cuda_context_destroy, self.device._handle))
        status = set_and_call([*changes, *(change for made, _ in ends for change in made)], calls)
        if self._owns_device and status:
            raise failure(status, "close")

    def __reduce__(self) -> Any:
        expected = "a checkpoint (tlrt.checkpoint.save)"
        raise refusal(ArgumentTypeError, "Session", "", "a session to pickle or copy", expected)

    def __enter__(self) -> Session:
        self._require_open("with")
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __repr__(self) -> str:
        state = "closed" if self._closed else f"{len(self.parameters)} parameters, {self.tape.size} nodes"
        return f"Session({self.device.name!r}, {state})"


def _sizes(op: str, shape: Any) -> Shape:
    """A shape as an argument: a sequence of sizes, or one size."""
    sizes = (integer(op, "shape", shape),) if hasattr(shape, "__index__") else integers(op, "shape", shape)
    try:
        size_of(sizes)
    except ShapeError as error:
        raise ShapeError(f"{op}: {error}", op=op) from None
    return sizes
