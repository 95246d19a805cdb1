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
    """The number of elements of a shape.

    Parameters
    ----------
    shape : sequence of int
        One size for each axis.

    Returns
    -------
    int
        Below 2^32.

    Raises
    ------
    ShapeError
        2^32 elements or more, or a negative size.
    """
    n = prod(shape)
    if not 0 <= n < 2**32 or (shape and min(shape) < 0):
        if shape and min(shape) < 0:
            raise refusal(ShapeError, "shape", "", tuple(shape), "sizes of 0 or more")
        raise refusal(ShapeError, "shape", "", f"{tuple(shape)} with {n} elements", "fewer than 2**32")
    return n


class AnyBuffer:
    """A device buffer with its shape: row-major, one axis per entry, () for a scalar.

    Parameters
    ----------
    shape : sequence of int
        One size for each axis.
    buffer : Buffer
        As many elements.

    Raises
    ------
    ShapeError
        The buffer has another length.

    Examples
    --------
    >>> x = tlrt.AnyBuffer((2, 2), cpu.buffer([1, 2, 3, 4]))
    >>> print(x.numpy())
    [[1. 2.]
     [3. 4.]]
    """

    __slots__ = ("buffer", "shape")

    def __init__(self, shape: Sequence[int], buffer: Any) -> None:
        self.shape: Shape = tuple(shape)
        self.buffer = buffer
        self.require_length()

    @classmethod
    def of(cls, shape: Shape, buffer: Any) -> Self:
        """Makes one without the check, for a buffer whose length is known to fit.

        Parameters
        ----------
        shape : tuple of int
            One size for each axis.
        buffer : Buffer
            As many elements.

        Returns
        -------
        AnyBuffer
            With that shape.
        """
        made = cls.__new__(cls)
        made.shape = shape
        made.buffer = buffer
        return made

    @classmethod
    def zeros(cls, shape: Sequence[int], device: Any) -> AnyBuffer:
        """Zeros on a device.

        Parameters
        ----------
        shape : sequence of int
            One size for each axis.
        device : Device
            Where.

        Returns
        -------
        AnyBuffer
            In that shape.

        Examples
        --------
        >>> print(tlrt.AnyBuffer.zeros((2, 2), cpu).numpy())
        [[0. 0.]
         [0. 0.]]
        """
        shape = tuple(shape)
        return cls.of(shape, device.zeros(size_of(shape)))

    @classmethod
    def upload(cls, array: npt.ArrayLike, device: Any) -> AnyBuffer:
        """A copy of an array on a device, by the conversion rules of :meth:`tlrt.Buffer.from_numpy`.

        Parameters
        ----------
        array : array_like
            Any shape.
        device : Device
            Where.

        Returns
        -------
        AnyBuffer
            In its shape.

        Examples
        --------
        >>> print(tlrt.AnyBuffer.upload([[1, 2]], cpu).shape)
        (1, 2)
        """
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
        """Raises ShapeError unless the buffer has as many elements as the shape says.

        Raises
        ------
        ShapeError
            It has others.
        """
        if self.buffer.length != (size := size_of(self.shape)):
            got, expected = f"{self.buffer.length} elements", f"{size} for {self.shape}"
            raise refusal(ShapeError, "AnyBuffer", "buffer", got, expected)

    def numpy(self) -> npt.NDArray[Any]:
        """A copy on the host; waits for the device.

        Returns
        -------
        numpy.ndarray
            In its shape.

        Raises
        ------
        ShapeError
            The buffer has another length.
        ReleasedError
            It is released, as a gradient is at the session's next backward or reset.
        """
        if self.buffer.released:
            got = f"a released buffer of shape {self.shape}"
            expected = "a live one (backward and reset release the gradients before)"
            raise refusal(ReleasedError, "numpy", "buffer", got, expected)
        self.require_length()
        return self.buffer.numpy(self.shape)

    def item(self) -> float:
        """The only element; waits for the device.

        Returns
        -------
        float or int
            A Python number.

        Raises
        ------
        ArgumentTypeError
            There are more elements, or none.
        ReleasedError
            The buffer is released.
        """
        if self.size != 1:
            raise refusal(ArgumentTypeError, "item", "buffer", f"shape {self.shape}", "one element")
        return self.numpy().reshape(-1)[0].item()

    def __float__(self) -> float:
        return float(self.item())

    def __int__(self) -> int:
        return int(self.item())

    def __format__(self, spec: str) -> str:
        return format(self.item(), spec) if spec else str(self)

    def __array__(self, dtype: npt.DTypeLike | None = None, copy: bool | None = None) -> npt.NDArray[Any]:
        if copy is False:
            raise refusal(ValueError, "AnyBuffer", "copy", "False", "True or None (its memory is a device's)")
        return self.numpy() if dtype is None else self.numpy().astype(dtype, copy=False)

    def share(self) -> Self:
        """A second handle to the same storage.

        Returns
        -------
        AnyBuffer
            In the same shape.
        """
        return type(self).of(self.shape, self.buffer.share())

    def copy(self) -> Self:
        """The same content in storage of its own.

        Returns
        -------
        AnyBuffer
            In the same shape.

        Raises
        ------
        ShapeError
            The buffer has another length.
        """
        if not self.buffer.released:
            self.require_length()
        return type(self).of(self.shape, self.buffer.copy())

    def add(self, other: AnyBuffer) -> AnyBuffer:
        """The elementwise sum.

        Parameters
        ----------
        other : AnyBuffer
            In the same shape.

        Returns
        -------
        AnyBuffer
            A new buffer.

        Raises
        ------
        ShapeError
            The shapes differ.

        Examples
        --------
        >>> x = tlrt.AnyBuffer.upload([1, 2], cpu)
        >>> print(x.add(x).numpy())
        [2. 4.]
        """
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
    """Indices on a device with their shape: what ``argmax`` and ``topk`` give, and what operations take as indices or
    labels.

    They have no gradient and are on no tape, so they stay valid over resets, until they are released or nobody has them
    any more.

    Parameters
    ----------
    shape : sequence of int
        One size for each axis.
    buffer : IndexBuffer
        As many indices.

    Examples
    --------
    >>> s = tlrt.Session("cpu")
    >>> print(s.argmax(s.const([[1, 3, 2]]), 1))
    Indices([1], shape=(1,), device='cpu')
    """

    __slots__ = ()

    dtype = np.dtype(np.uint32)

    @property
    def ndim(self) -> int:
        """Number of axes."""
        return len(self.shape)

    def reshape(self, *shape: Any) -> Indices:
        """The same indices in another shape.

        Parameters
        ----------
        *shape : int
            The sizes, of which one may be -1.

        Returns
        -------
        Indices
            Shares the storage.
        """
        sizes = np.empty(self.shape, np.bool_).reshape(*shape).shape
        return Indices.of(sizes, self.buffer.share())

    def item(self) -> int:
        """The only index; waits for the device.

        Returns
        -------
        int
            The index.

        Raises
        ------
        ArgumentTypeError
            There are several, or none.
        """
        if self.size != 1:
            raise refusal(ArgumentTypeError, "item", "indices", f"shape {self.shape}", "one index")
        return int(self.numpy().reshape(-1)[0])

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
    """A device by its name; a device as it is.

    Parameters
    ----------
    device : Device, SpecDevice or str
        Such as "spec", "cpu" or "cuda".
    op : str
        The operation that a refusal names.

    Returns
    -------
    Device or SpecDevice
        The device.
    """
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
    """The operations on a device's buffers.

    Parameters
    ----------
    device : Device or SpecDevice
        The device.

    Returns
    -------
    module or namespace
        ``tlrt.kernels``, or the specification's.
    """
    if device.name == "spec":
        from tlrt import spec

        return spec.kernels
    from tlrt import kernels

    return kernels
