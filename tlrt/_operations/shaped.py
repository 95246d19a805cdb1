"""Shaped buffers: a device buffer with its shape, and what finds a device and its operations."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from typing import Any, Self

import numpy as np
import numpy.typing as npt

from tlrt._binding import convert
from tlrt._operations.plan import Shape
from tlrt.errors import ArgumentTypeError, ReleasedError, ShapeError, refusal


def size_of(shape: Sequence[int]) -> int:
    """Number of elements of a shape; raises ShapeError where it needs 2^32 or more, or a size is negative."""
    n = prod(shape)
    if not 0 <= n < 2**32 or (shape and min(shape) < 0):
        if shape and min(shape) < 0:
            raise refusal(ShapeError, "shape", "", tuple(shape), "sizes of 0 or more")
        raise refusal(ShapeError, "shape", "", f"{tuple(shape)} with {n} elements", "fewer than 2**32")
    return n


class AnyBuffer:
    """A device buffer with its shape; row-major, one axis per entry, () for a scalar."""

    __slots__ = ("buffer", "shape")

    def __init__(self, shape: Sequence[int], buffer: Any) -> None:
        self.shape: Shape = tuple(shape)
        self.buffer = buffer
        self.require_length()

    @classmethod
    def of(cls, shape: Shape, buffer: Any) -> Self:
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
        host = convert.host_array("upload", "array", array, convert.REAL)
        return cls.of(host.shape, device.buffer(host))

    @property
    def size(self) -> int:
        """Number of elements."""
        return size_of(self.shape)

    @property
    def device(self) -> Any:
        """The device it lives on."""
        return self.buffer.device

    def require_length(self) -> None:
        """Raises ShapeError unless the buffer has as many elements as the shape says."""
        if self.buffer.length != (size := size_of(self.shape)):
            got, expected = f"{self.buffer.length} elements", f"{size} for {self.shape}"
            raise refusal(ShapeError, "AnyBuffer", "buffer", got, expected)

    def numpy(self) -> npt.NDArray[Any]:
        """A copy on the host, in shape; waits for the device. Raises ShapeError where the buffer has another length, and once it
        is released, a gradient at the session's next backward or reset, ReleasedError."""
        if self.buffer.released:
            got = f"a released buffer of shape {self.shape}"
            expected = "a live one (backward and reset release the gradients before)"
            raise refusal(ReleasedError, "numpy", "buffer", got, expected)
        self.require_length()
        return self.buffer.numpy(self.shape)

    def __array__(self, dtype: npt.DTypeLike | None = None, copy: bool | None = None) -> npt.NDArray[Any]:
        if copy is False:
            raise refusal(ValueError, "AnyBuffer", "copy", "False", "True or None (its memory is a device's)")
        return self.numpy() if dtype is None else self.numpy().astype(dtype, copy=False)

    def share(self) -> Self:
        """A second handle to the same storage, in the same shape."""
        return type(self).of(self.shape, self.buffer.share())

    def copy(self) -> Self:
        """The same content in storage of its own. Raises ShapeError where the buffer has another length than the shape."""
        if not self.buffer.released:
            self.require_length()
        return type(self).of(self.shape, self.buffer.copy())

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


class Indices(AnyBuffer):
    """Indices on a device with their shape: what ``argmax`` and ``topk`` give, and what every operation takes where it takes
    indices or labels. They have no gradient and are on no tape, so they stay valid over resets, until they are released or nobody
    has them any more."""

    __slots__ = ()

    dtype = np.dtype(np.uint32)

    @property
    def ndim(self) -> int:
        """Number of axes."""
        return len(self.shape)

    def reshape(self, *shape: Any) -> Indices:
        """The same indices in another shape, of which one size may be -1; shares their storage."""
        sizes = np.empty(self.shape, np.bool_).reshape(*shape).shape
        return Indices.of(sizes, self.buffer.share())

    def item(self) -> int:
        """The only index as an integer; waits for the device."""
        if self.size != 1:
            raise refusal(ArgumentTypeError, "item", "indices", f"shape {self.shape}", "one index")
        return int(self.numpy().reshape(-1)[0])

    __int__ = item

    def __eq__(self, other: object) -> Any:
        """Element by element, on the host; with what are no indices, False."""
        if not isinstance(other, (Indices, np.ndarray, int, np.integer, list, tuple)):
            return NotImplemented
        return self.numpy() == np.asarray(other)

    __hash__ = object.__hash__

    def __len__(self) -> int:
        if not self.shape:
            raise refusal(ArgumentTypeError, "len", "indices", "a single one", "at least one axis")
        return self.shape[0]

    def __repr__(self) -> str:
        if self.buffer.released:
            return f"Indices(released, shape={self.shape})"
        body = np.array2string(self.numpy(), prefix="Indices(", separator=", ", threshold=100)
        return f"Indices({body}, shape={self.shape}, device={self.device.name!r})"


def device_of(device: Any, op: str) -> Any:
    """A Device, a SpecDevice, or the one of that name: ``"spec"``, ``"cpu"``, ``"cuda"``."""
    if isinstance(device, str):
        if device == "spec":
            from tlrt.spec import SpecDevice

            return SpecDevice()
        from tlrt.context import device as by_name

        return by_name(device)
    if not hasattr(device, "memory"):
        got = convert.type_name(device)
        raise refusal(ArgumentTypeError, op, "device", got, "a Device or its name, like 'cpu'")
    return device


def kernels_of(device: Any) -> Any:
    """The operations on a device's buffers: ``tlrt.kernels``, or the specification's."""
    if device.name == "spec":
        from tlrt import spec

        return spec.kernels
    from tlrt import kernels

    return kernels
