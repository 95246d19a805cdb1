"""What a tape is made of: shaped buffers and nodes.

An :class:`AnyBuffer` is a device buffer with its shape; a :class:`Node` is one value on a tape with what computed it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from math import prod
from typing import Any

import numpy.typing as npt

from tlrt import _convert
from tlrt._uncopied import Uncopied
from tlrt.errors import ArgumentTypeError, ShapeError
from tlrt.plan import Plan, Shape

__all__ = ["AnyBuffer", "Backward", "Node", "device_of", "kernels_of", "size_of"]

#: a node's VJP made by hand: from the cotangent of its value to (parent, contribution) pairs
Backward = Callable[["AnyBuffer"], "Iterable[tuple[int, AnyBuffer]]"]


def size_of(shape: Sequence[int]) -> int:
    """Number of elements of a shape; raises ShapeError where it needs 2^32 or more, or a size is negative."""
    n = prod(shape)
    if not 0 <= n < 2**32 or (shape and min(shape) < 0):
        if shape and min(shape) < 0:
            raise ShapeError(f"shape: got {tuple(shape)}, expected sizes of 0 or more")
        raise ShapeError(f"shape: got {tuple(shape)} with {n} elements, expected fewer than 2**32")
    return n


class AnyBuffer:
    """A device buffer with its shape; row-major, one axis per entry, () for a scalar."""

    __slots__ = ("buffer", "shape")

    def __init__(self, shape: Sequence[int], buffer: Any) -> None:
        shape = tuple(shape)
        if buffer.length != size_of(shape):
            raise ShapeError(f"AnyBuffer: buffer: got {buffer.length} elements, expected {size_of(shape)} for {shape}")
        self.shape: Shape = shape
        self.buffer = buffer

    @classmethod
    def of(cls, shape: Shape, buffer: Any) -> AnyBuffer:
        """Without the check, for a buffer whose length is known to fit."""
        made = cls.__new__(cls)
        made.shape = shape
        made.buffer = buffer
        return made

    @classmethod
    def zeros(cls, shape: Sequence[int], device: Any) -> AnyBuffer:
        """Zeros of that shape on a device."""
        shape = tuple(shape)
        return cls.of(shape, device.zeros(size_of(shape)))

    @classmethod
    def upload(cls, array: npt.ArrayLike, device: Any) -> AnyBuffer:
        """A copy of an array on a device, by the conversion rules of :meth:`tlrt.Buffer.from_numpy`."""
        host = _convert._array("upload", "array", array, "float32, float64, integers or bool")
        return cls.of(host.shape, device.buffer(host))

    @property
    def size(self) -> int:
        """Number of elements."""
        return size_of(self.shape)

    @property
    def device(self) -> Any:
        """The device it lives on."""
        return self.buffer.device

    def numpy(self) -> npt.NDArray[Any]:
        """A copy on the host, in shape; waits for the device."""
        return self.buffer.numpy(self.shape)

    def __array__(self, dtype: npt.DTypeLike | None = None, copy: bool | None = None) -> npt.NDArray[Any]:
        if copy is False:
            raise ValueError("AnyBuffer: copy: got False, expected True or None (its memory is a device's)")
        return self.numpy() if dtype is None else self.numpy().astype(dtype, copy=False)

    def share(self) -> AnyBuffer:
        """A second handle to the same storage, in the same shape."""
        return AnyBuffer.of(self.shape, self.buffer.share())

    def copy(self) -> AnyBuffer:
        """The same content in storage of its own."""
        return AnyBuffer.of(self.shape, self.buffer.copy())

    def add(self, other: AnyBuffer) -> AnyBuffer:
        """The elementwise sum, in a new buffer. Raises ShapeError unless the shapes are equal."""
        if self.shape != other.shape:
            raise ShapeError(f"AnyBuffer.add: other: got shape {other.shape}, expected {self.shape}", op="add")
        return AnyBuffer.of(self.shape, kernels_of(self.buffer.device).add(self.buffer, other.buffer))

    def release(self) -> None:
        """Gives the handle back; may be repeated."""
        self.buffer.release()

    def __copy__(self) -> AnyBuffer:
        return self.share()

    def __deepcopy__(self, memo: dict[int, Any]) -> AnyBuffer:
        return self.copy()

    def __repr__(self) -> str:
        return f"AnyBuffer(shape={self.shape}, {self.buffer!r})"


def device_of(device: Any, op: str) -> Any:
    """A Device, a SpecDevice, or the one of that name: ``"spec"``, ``"cpu"``, ``"cuda"``."""
    if isinstance(device, str):
        if device == "spec":
            from tlrt.spec import SpecDevice

            return SpecDevice()
        from tlrt.context import device as by_name

        return by_name(device)
    if not hasattr(device, "memory"):
        got = _convert.type_name(device)
        raise ArgumentTypeError(f"{op}: device: got {got}, expected a Device or its name, like 'cpu'", op=op)
    return device


def kernels_of(device: Any) -> Any:
    """The operations on a device's buffers: ``tlrt.kernels``, or the specification's."""
    if device.name == "spec":
        from tlrt import spec

        return spec.kernels
    from tlrt import kernels

    return kernels


class Node(Uncopied):
    """One value on a tape: what computed it, from which parents, and how its cotangent goes back to them."""

    __slots__ = ("_hosts", "_plan", "_rule", "buffer", "cleanup", "name", "parents", "requires_grad", "shape")

    name: str
    shape: Shape
    buffer: Any
    requires_grad: bool
    #: ids of the values it was computed from; None where an optional one was left out
    parents: tuple[int | None, ...]
    #: scratch buffers that are released with the tape
    cleanup: tuple[Any, ...]

    def __init__(
        self,
        name: str,
        value: AnyBuffer,
        requires_grad: bool = True,
        parents: Sequence[int] = (),
        backward: Backward | None = None,
        cleanup: Sequence[Any] = (),
    ) -> None:
        self.name = name
        self.shape = value.shape
        self.buffer = value.buffer
        self.requires_grad = requires_grad
        self.parents = tuple(parents)
        self.cleanup = tuple(cleanup)
        self._plan: Plan | None = None
        self._hosts: Mapping[str, Any] | None = None
        self._rule = backward

    @property
    def value(self) -> AnyBuffer:
        """The forward value; the tape keeps the ownership."""
        return AnyBuffer.of(self.shape, self.buffer)

    @property
    def plan(self) -> Plan | None:
        """The registry's operation behind the node; None for leaves, views and hand-made nodes."""
        return self._plan

    @property
    def hosts(self) -> Mapping[str, Any]:
        """Host arrays (indices, labels) the operation took."""
        return self._hosts or {}

    def __repr__(self) -> str:
        parents = f", parents={list(self.parents)}" if self.parents else ""
        return f"Node({self.name!r}, shape={self.shape}{parents}{', requires_grad' if self.requires_grad else ''})"


def as_view(name: str, shape: Shape, buffer: Any, parent: int, requires_grad: bool) -> Node:
    """A node whose value is its parent's storage in another shape; its cotangent goes back unchanged."""
    node = Node.__new__(Node)
    node.name = name
    node.shape = shape
    node.buffer = buffer
    node.requires_grad = requires_grad
    node.parents = (parent,)
    node.cleanup = ()
    node._plan = None
    node._hosts = None
    node._rule = None
    return node
