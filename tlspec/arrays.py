"""Arrays of other libraries: made from values, read back as values or bit patterns, on the device that a name says.

``get("torch:cuda:1")`` gives the :class:`Arrays` of that library and device. A library is imported when it is asked for, not
before. Numbers cross as bit patterns (:mod:`tlspec.formats`), so no library's own conversion has a say in them. What is read may
belong to another library than what is made: a tensor, an array, a number, or any object with ``__dlpack__`` or ``__array__``.

=========  ==================================================================================
``numpy``  host memory; bfloat16 and float8 need the package ml_dtypes
``torch``  PyTorch on the CPU; ``torch:DEVICE`` with a device of PyTorch, such as ``cuda:1``
``cupy``   CuPy on the current GPU, ``cupy:1`` on another; only formats of NumPy's own
``jax``    JAX on its default device; ``jax:PLATFORM`` or ``jax:PLATFORM:INDEX``
=========  ==================================================================================
"""

import hashlib
import importlib
import math
import sys
from collections.abc import Callable
from typing import Any, ClassVar

import numpy as np
import numpy.typing as npt

from tlspec import formats
from tlspec.formats import F64, FORMATS, Bits, Format

#: the types of elements that are read and made: name -> the unsigned integers that hold their bit patterns
PATTERNS: dict[str, np.dtype[Any]] = {
    **{f.container: f.unsigned for f in FORMATS.values()},
    **{f"{sign}int{bits}": np.dtype(f"uint{bits}") for sign in ("", "u") for bits in (8, 16, 32, 64)},
    "bool": np.dtype("uint8"),
}
#: the same patterns in PyTorch, whose integers are signed but for bytes
_SIGNED = {np.dtype(f"uint{bits}"): "uint8" if bits == 8 else f"int{bits}" for bits in (8, 16, 32, 64)}
#: the bytes of a canary: whole pages, so that what lies behind one is aligned as the allocation is
CANARY_BYTES = 4096
#: every byte of a canary and of poisoned integers, which so are large and negative where they are signed, and no index
CANARY = 0xA5


class Arrays:
    """Arrays of one library on one device."""

    #: the module's name, that of its type of arrays, and the package to install
    library: ClassVar[str]
    array_type: ClassVar[str]
    package: ClassVar[str]
    #: whether an array is memory that a kernel may write and that may have gaps; otherwise a kernel can only return new arrays
    mutable: ClassVar[bool] = True
    #: the module with from_dlpack, where it is not the library's
    namespace: ClassVar[str] = ""

    def __init__(self, device: str):
        #: what :func:`get` was given
        self.name = f"{self.library}:{device}" if device else self.library
        try:
            self.module: Any = importlib.import_module(self.library)
        except ImportError as error:
            raise ImportError(f"array={self.name!r} needs {self.library}: pip install {self.package}") from error

    def synchronize(self, *results: Any) -> None:
        """Wait until all work on the device is done; in JAX, until `results` are computed."""

    # making arrays

    def make(self, values: npt.ArrayLike, format: Format, *, strided: bool = False) -> Any:
        """A new array of `values`, rounded to `format`, in its container's type. With `strided` it is every second element, along
        the last axis, of a larger array whose other elements are NaN, which a kernel reads that ignores strides (an array without
        axes has none, and is made as it is); ValueError where the library has no such views (JAX)."""
        known = np.asarray(values)
        same = known.dtype.name == format.name
        patterns = np.array(known, order="C").view(format.unsigned) if same else format.encode(known)
        if not strided or patterns.ndim == 0:
            return self._put(patterns, format.container)
        if not self.mutable:
            raise ValueError(f"{self.name}: {self.library} has no strided arrays")
        gaps = np.full((*patterns.shape[:-1], 2 * patterns.shape[-1]), format.encode(np.nan), format.unsigned)
        gaps[..., ::2] = patterns
        return self._put(gaps, format.container)[..., ::2]

    def integers(self, values: npt.ArrayLike, kind: str = "int64") -> Any:
        """A new array of whole numbers, int32 or int64. ValueError where `values` do not fit."""
        if kind not in ("int32", "int64"):
            raise ValueError(f"integers: kind: got {kind!r}, expected 'int32' or 'int64'")
        whole = np.array(values).astype(kind)
        if not np.array_equal(whole, values):
            raise ValueError(f"integers: got values that {kind} does not hold")
        return self._put(whole.view(PATTERNS[kind]), kind)

    def bools(self, values: npt.ArrayLike) -> Any:
        """A new array of truth values, one byte each."""
        return self._put(np.array(values, np.bool_).view(np.uint8), "bool")

    def empty_poisoned(self, shape: tuple[int, ...], format: Format | str) -> tuple[Any, Callable[[], bool]]:
        """An output of NaN inside a larger allocation, and a function that says whether the :data:`CANARY_BYTES` on each side
        of it are unchanged. `format` may be a type of integers ("int32", "int64", "bool") too, poisoned with a pattern that no
        index has. ValueError where arrays cannot be written (JAX)."""
        if not self.mutable:
            raise ValueError(f"{self.name}: {self.library} has no arrays that a kernel writes to")
        dtype = format if isinstance(format, str) and format in PATTERNS else formats.get(format).container
        unsigned = PATTERNS[dtype]
        canary = np.full(CANARY_BYTES // unsigned.itemsize, np.iinfo(unsigned).max // 255 * CANARY, unsigned)
        poison = FORMATS[dtype].encode(np.nan) if dtype in FORMATS else canary[0]
        inside = slice(len(canary), len(canary) + math.prod(shape))
        everything = self._put(np.concatenate([canary, np.full(math.prod(shape), poison, unsigned), canary]), dtype)

        def unchanged() -> bool:
            found = self.bits(everything)
            return bool((found[: inside.start] == canary).all() and (found[inside.stop :] == canary).all())

        return everything[inside].reshape(shape), unchanged

    # reading arrays

    def values(self, foreign: Any) -> F64:
        """The elements as float64 in host memory, exactly but for integers beyond 2^53; True is 1. Only a float64 array in host
        memory is not copied. TypeError where the elements are no real numbers (complex ones, for instance)."""
        patterns, dtype = self._read(foreign)
        return FORMATS[dtype].decode(patterns) if dtype in FORMATS else patterns.view(dtype).astype(np.float64)

    def numbers(self, foreign: Any) -> npt.NDArray[Any]:
        """As :meth:`values`, but float32 in its own type and, in host memory, in its own place."""
        patterns, dtype = self._read(foreign)
        return patterns.view(np.float32) if dtype == "float32" else self.values(foreign)

    def digest(self, foreign: Any) -> bytes:
        """A hash of the elements' bits."""
        return hashlib.blake2b(np.ascontiguousarray(self._read(foreign)[0]).data).digest()

    def bits(self, foreign: Any) -> Bits:
        """The elements' bit patterns, a copy in host memory: what is written to the array later does not change it."""
        return np.array(self._read(foreign)[0])

    def format_of(self, foreign: Any) -> Format:
        """The number format of the elements; TypeError where they are of no format that is known here."""
        dtype = self._adopt(foreign)[2]
        if dtype not in FORMATS:
            raise TypeError(f"{self.name}: {dtype} is no floating-point format; there are {', '.join(FORMATS)}")
        return FORMATS[dtype]

    def shape(self, foreign: Any) -> tuple[int, ...]:
        """The lengths of the axes."""
        return tuple(int(n) for n in self._adopt(foreign)[1].shape)

    def pointer_range(self, foreign: Any) -> tuple[int, int] | None:
        """The addresses of the first byte and behind the last byte of the elements, gaps between them included. None where there
        is no element, or the object shows copies alone, or several devices hold it. Two arrays overlap only if the ranges do."""
        kind, array, dtype = self._adopt(foreign)
        again = self._adopt(foreign)[1]  # while both live, copies are at different places
        try:
            (start, strides), elsewhere = kind._place(array), kind._place(again)[0]
        except (AttributeError, RuntimeError, ValueError):
            return None
        if start != elsewhere or 0 in array.shape:
            return None
        steps = [(n - 1) * step for n, step in zip(array.shape, strides, strict=True)]
        return start + sum(min(s, 0) for s in steps), start + sum(max(s, 0) for s in steps) + PATTERNS[dtype].itemsize

    # what follows is NumPy's way; a library overrides what differs

    def _read(self, foreign: Any) -> tuple[npt.NDArray[Any], str]:
        """The bit patterns of the elements, where possible in the array's own memory, and the name of their type."""
        self.synchronize(foreign)
        kind, array, dtype = self._adopt(foreign)
        host = kind._host(array, PATTERNS[dtype])
        return (host if host.dtype.isnative else host.astype(host.dtype.newbyteorder("="))).view(PATTERNS[dtype]), dtype

    def _adopt(self, foreign: Any) -> "tuple[type[Arrays], Any, str]":
        """The class of the library that an array belongs to, the array there, and the name of its elements' type."""
        kind, reason = type(self), "it has neither __dlpack__ nor __array__"
        array: Any = None
        for each in LIBRARIES.values():
            if isinstance(foreign, getattr(sys.modules.get(each.library), each.array_type, ())):
                kind, array = each, foreign
        if array is None and hasattr(foreign, "__dlpack__"):
            try:
                array = importlib.import_module(self.namespace or self.library).from_dlpack(foreign)
            except (BufferError, RuntimeError, TypeError, ValueError) as error:
                reason = f"{self.library}.from_dlpack says: {error}"
        if array is None and (hasattr(foreign, "__array__") or isinstance(foreign, int | float)):
            kind, array = NumPy, np.asarray(foreign)
        if array is None:
            raise TypeError(f"{self.name}: got a {type(foreign).__name__}, which is no array: {reason}")
        dtype = getattr(array.dtype, "name", None) or str(array.dtype).removeprefix("torch.")
        if dtype not in PATTERNS:
            raise TypeError(f"{self.name}: got an array of {dtype}; known are {', '.join(PATTERNS)}")
        return kind, array, dtype

    def _put(self, patterns: Bits, dtype: str) -> Any:
        """An array on the device with these bit patterns."""
        return patterns.view(FORMATS[dtype].dtype if dtype in FORMATS else np.dtype(dtype))

    @staticmethod
    def _host(array: Any, unsigned: np.dtype[Any]) -> npt.NDArray[Any]:
        """The array in host memory, its elements of their own type or as `unsigned` bit patterns."""
        return np.asarray(array)

    @staticmethod
    def _place(array: Any) -> tuple[int, tuple[int, ...]]:
        """The address of the first element, and the distance in bytes between neighbours along each axis."""
        return array.__array_interface__["data"][0], array.strides


class NumPy(Arrays):
    """NumPy arrays in host memory."""

    library, array_type, package = "numpy", "ndarray", "numpy"

    def __init__(self, device: str):
        super().__init__(device)
        if device not in ("", "cpu"):
            raise ValueError(f"array={self.name!r}: NumPy has no device but the CPU")


class Torch(Arrays):
    """PyTorch tensors, whether they require gradients or not."""

    library, array_type, package = "torch", "Tensor", "torch"

    def __init__(self, device: str):
        super().__init__(device)
        self.device = self.module.device(device or "cpu")
        if self.device.type == "cuda" and (self.device.index or 0) >= self.module.cuda.device_count():
            raise RuntimeError(f"array={self.name!r}: PyTorch sees {self.module.cuda.device_count()} CUDA devices")

    def synchronize(self, *results: Any) -> None:
        if self.device.type != "cpu":
            getattr(self.module, self.device.type).synchronize(self.device)

    def _put(self, patterns: Bits, dtype: str) -> Any:
        host = self.module.from_numpy(patterns.view(_SIGNED[patterns.dtype]))
        return host.to(self.device).view(getattr(self.module, dtype))

    @staticmethod
    def _host(array: Any, unsigned: np.dtype[Any]) -> npt.NDArray[Any]:
        return array.view(getattr(sys.modules["torch"], _SIGNED[unsigned])).cpu().numpy()

    @staticmethod
    def _place(array: Any) -> tuple[int, tuple[int, ...]]:
        return array.data_ptr(), tuple(n * array.element_size() for n in array.stride())


class CuPy(Arrays):
    """CuPy arrays."""

    library, array_type, package = "cupy", "ndarray", "cupy-cuda12x, or the package of your CUDA version"

    def __init__(self, device: str):
        super().__init__(device)
        index = device.removeprefix("cuda").removeprefix(":")
        self.device = self.module.cuda.Device(int(index) if index else None)

    def synchronize(self, *results: Any) -> None:
        self.device.synchronize()

    def _put(self, patterns: Bits, dtype: str) -> Any:
        if dtype in FORMATS and not hasattr(np, dtype):
            raise TypeError(f"{self.name}: CuPy has no {dtype}; use array='torch:cuda'")
        with self.device:
            return self.module.asarray(super()._put(patterns, dtype))

    @staticmethod
    def _host(array: Any, unsigned: np.dtype[Any]) -> npt.NDArray[Any]:
        return array.get()

    @staticmethod
    def _place(array: Any) -> tuple[int, tuple[int, ...]]:
        return array.data.ptr, array.strides


class Jax(Arrays):
    """JAX arrays."""

    library, array_type, package, mutable, namespace = "jax", "Array", "jax", False, "jax.numpy"

    def __init__(self, device: str):
        super().__init__(device)
        platform, _, index = device.partition(":")
        self.device = self.module.devices(platform)[int(index or 0)] if device else None

    def synchronize(self, *results: Any) -> None:
        self.module.block_until_ready(results)

    def _put(self, patterns: Bits, dtype: str) -> Any:
        array = self.module.device_put(super()._put(patterns, dtype), self.device)
        if array.dtype.name != dtype:
            advice = 'call jax.config.update("jax_enable_x64", True) first'
            raise ValueError(f"{self.name}: JAX makes {array.dtype.name} of {dtype}: {advice}")
        return array

    @staticmethod
    def _place(array: Any) -> tuple[int, tuple[int, ...]]:
        strides = tuple(array.itemsize * math.prod(array.shape[i + 1 :]) for i in range(array.ndim))
        return array.unsafe_buffer_pointer(), strides


#: the first part of a name -> the class
LIBRARIES: dict[str, type[Arrays]] = {kind.library: kind for kind in (NumPy, Torch, CuPy, Jax)}


def get(name: str | Arrays) -> Arrays:
    """The arrays of a library on a device, "LIBRARY" or "LIBRARY:DEVICE" (see the module), or the argument itself. ValueError for
    an unknown library, with close names; ImportError for one that is not installed, with what to install; RuntimeError, from
    here or from the library, for a device that is not there."""
    if isinstance(name, Arrays):
        return name
    library, _, device = name.partition(":")
    if library not in LIBRARIES:
        raise ValueError(f"array={name!r}: unknown library; {formats.suggest(library, LIBRARIES)}")
    return LIBRARIES[library](device)
