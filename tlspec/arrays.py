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

import functools
import hashlib
import importlib
import math
import sys
from collections.abc import Callable, Iterable, Mapping
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
#: cycles of a GPU's clock by which arguments come late, about a millisecond
DELAY_CYCLES = 2_000_000
#: every byte of a canary and of poisoned integers, which so are large and negative where they are signed, and no index
CANARY = 0xA5
#: elements behind each row of a layout with room
ROOM = 3
#: elements behind a contiguous array, which vectors of 64 bytes reach that begin within it
BEHIND = 64
#: how an array may lie in memory, besides one element after the other from an aligned address on: every second element along the
#: last axis; with room behind each row; the last axis first; with the second and third axes from the end exchanged, as heads of
#: attention have them; with the second axis last, as channels; axes along which all elements are equal with a stride of 0;
#: contiguous, but one element behind an aligned address; from the last element on, in NumPy
LAYOUTS = ("gaps", "rows", "transposed", "inner", "channels", "expanded", "offset", "backwards")


def patterns_of(values: npt.ArrayLike, format: Format) -> Bits:
    """The bit patterns of `values`, rounded to `format`; those of its own container stay as they are."""
    known = np.asarray(values)
    same = known.dtype.name == format.name and known.dtype.isnative
    return np.array(known, order="C").view(format.unsigned) if same else format.encode(known)


def whole_patterns_of(values: npt.ArrayLike, kind: str = "int64") -> Bits:
    """The bit patterns of whole numbers of a kind such as int8 or int64. ValueError where `values` do not fit."""
    if not (kind in PATTERNS and "int" in kind):
        raise ValueError(f"integers: kind: got {kind!r}, expected int8, int16, int32 or int64, or uint8")
    whole = np.array(values).astype(kind)
    if not np.array_equal(whole, values):
        raise ValueError(f"integers: got values that {kind} does not hold")
    return whole.view(PATTERNS[kind])


@functools.cache
def _nan_of(dtype: str) -> Any:
    """The bit pattern of NaN."""
    return FORMATS[dtype].encode(np.nan)


@functools.cache
def _name_of(dtype: Any) -> str:
    return getattr(dtype, "name", None) or str(dtype).removeprefix("torch.")


#: the classes of arrays that were met, by their types
_owners: "dict[type, type[Arrays]]" = {}


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
    #: whether strides may be negative
    reverses: ClassVar[bool] = False

    def __init__(self, device: str):
        #: what :func:`get` was given
        self.name = f"{self.library}:{device}" if device else self.library
        try:
            self.module: Any = importlib.import_module(self.library)
        except ImportError as error:
            raise ImportError(f"array={self.name!r} needs {self.library}: pip install {self.package}") from error

    def synchronize(self, *results: Any) -> None:
        """Wait until all work on the device is done; in JAX, until `results` are computed."""

    def delay(self, arrays: Iterable[Any]) -> None:
        """On a device with streams: the arrays get their values late, in the order of the current stream. Work on another
        stream that does not wait for it meets zeros."""

    def finish(self, results: Iterable[Any]) -> bool:
        """Wait as :meth:`synchronize` does. False where `results` changed after all work of the current stream was done, which
        is where a caller reads them."""
        self.synchronize(*results)
        return True

    @classmethod
    def settings(cls) -> dict[str, Any]:
        """What the library's functions depend on besides their arguments, in this process, to be set in another."""
        return {}

    @classmethod
    def apply(cls, settings: Mapping[str, Any]) -> None:
        """Take over the :meth:`settings` of another process."""

    # making arrays

    def make(self, values: npt.ArrayLike, format: Format, *, strided: bool = False) -> Any:
        """A new array of `values`, rounded to `format`, in its container's type. With `strided` it is every second element, along
        the last axis, of a larger array whose other elements are NaN, which a kernel reads that ignores strides (an array without
        axes has none, and is made as it is); ValueError where the library has no such views (JAX)."""
        return self.put(patterns_of(values, format), format.container, layout="gaps" if strided else "")

    def put(self, patterns: Bits, dtype: str, *, layout: str = "") -> Any:
        """A new array of type `dtype` with these bit patterns, in one of :data:`LAYOUTS`, or in the next simpler one where it has
        too few axes. See :meth:`make`."""
        if not self.mutable and layout:
            raise ValueError(f"{self.name}: {self.library} has no strided arrays")
        shape, axes = patterns.shape, list(range(patterns.ndim))
        if not self.mutable or not axes:
            return self._put(patterns.copy(), dtype)
        if layout in ("", "offset"):
            first = 1 if layout else 0
            before, behind = (self._between(patterns, (n,), dtype) for n in (first, BEHIND))
            whole = self._put(np.concatenate([before, patterns.reshape(-1), behind]), dtype)
            return whole[first : first + patterns.size].reshape(shape)
        if layout == "expanded":
            equal = [n > 1 and bool((patterns == patterns.take([0], k)).all()) for k, n in enumerate(shape)]
            some = tuple(slice(0, 1) if e else slice(None) for e in equal)
            whole = self._between(patterns, shape, dtype)  # which a kernel reads that takes it for contiguous
            whole[some] = patterns[some]
            return self._expanded(self._put(whole, dtype)[some], shape)
        if layout == "backwards" and self.reverses:
            return np.flip(self._put(np.array(np.flip(patterns), order="C"), dtype))
        if layout == "transposed":
            axes.reverse()
        elif layout == "inner" and len(axes) > 2:
            axes[-3:-1] = axes[-2], axes[-3]
        elif layout == "channels" and len(axes) > 2:
            axes.append(axes.pop(1))
        if axes != sorted(axes):
            laid = self._put(np.array(patterns.transpose(axes), order="C"), dtype)
            return self._permuted(laid, np.argsort(axes).tolist())
        if layout != "gaps" and len(axes) > 1:
            room = self._between(patterns, (*shape[:-1], ROOM), dtype)
            return self._put(np.concatenate([patterns, room], -1), dtype)[..., : shape[-1]]
        gaps = self._between(patterns, (*shape[:-1], 2 * shape[-1]), dtype)
        gaps[..., ::2] = patterns
        return self._put(gaps, dtype)[..., ::2]

    @staticmethod
    def _between(patterns: Bits, shape: tuple[int, ...], dtype: str) -> Bits:
        """What lies between the elements: NaN, or of whole numbers others of the array, which are indices as good."""
        if dtype in FORMATS:
            return np.full(shape, _nan_of(dtype), FORMATS[dtype].unsigned)
        return np.resize(patterns.ravel()[::-1], shape).astype(patterns.dtype)

    def integers(self, values: npt.ArrayLike, kind: str = "int64") -> Any:
        """A new array of whole numbers of a kind such as int8 or int64. ValueError where `values` do not fit."""
        return self._put(whole_patterns_of(values, kind), kind)

    def bools(self, values: npt.ArrayLike) -> Any:
        """A new array of truth values, one byte each."""
        return self._put(np.array(values, np.bool_).view(np.uint8), "bool")

    def empty_poisoned(self, shape: tuple[int, ...], format: Format | str) -> tuple[Any, Callable[[], bool]]:
        """An output of NaN inside a larger allocation, and a function that says whether the :data:`CANARY_BYTES` on each side
        of it are unchanged. `format` may be a type of integers ("int32", "int64", "bool") too, poisoned with a pattern that no
        index has. ValueError where arrays cannot be written (JAX)."""
        dtype = format if isinstance(format, str) and format in PATTERNS else formats.get(format).container
        made, everything = self.guarded(shape, dtype)

        def unchanged() -> bool:
            found = self.bits(everything).view(np.uint8)
            return bool((found[:CANARY_BYTES] == CANARY).all() and (found[len(found) - CANARY_BYTES :] == CANARY).all())

        return made, unchanged

    def guarded(self, shape: tuple[int, ...], dtype: str, garbage: int | None = None) -> tuple[Any, Any]:
        """An output inside a larger allocation, and that allocation. Numbers are NaN, or with a seed `garbage` drawn ones."""
        if not self.mutable:
            raise ValueError(f"{self.name}: {self.library} has no arrays that a kernel writes to")
        unsigned, count = PATTERNS[dtype], math.prod(shape)
        canary = np.full(CANARY_BYTES // unsigned.itemsize, np.iinfo(unsigned).max // 255 * CANARY, unsigned)
        poison = np.full(count, _nan_of(dtype) if dtype in FORMATS else canary[0], unsigned)
        if garbage is not None and dtype in FORMATS:
            poison = FORMATS[dtype].encode(np.resize(np.random.default_rng(garbage).normal(3.0, 1.0, 251), count))
        everything = self._put(np.concatenate([canary, poison, canary]), dtype)
        return everything[len(canary) : len(canary) + count].reshape(shape), everything

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

    def read(self, foreign: Any) -> tuple[Bits, str]:
        """The :meth:`bits`, and the name of the elements' type."""
        patterns, dtype = self._read(foreign)
        return np.array(patterns, order="C"), dtype

    def dtype_of(self, foreign: Any) -> str:
        """The name of the elements' type."""
        return self._adopt(foreign)[2]

    def format_of(self, foreign: Any) -> Format:
        """The number format of the elements; TypeError where they are of no format that is known here."""
        dtype = self.dtype_of(foreign)
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

    def overwritten(self, array: Any, patterns: Bits, dtype: str) -> bool:
        """Writes bit patterns into an array of their shape and type; False for another one, which stays."""
        if not self.mutable or self.shape(array) != patterns.shape or self.dtype_of(array) != dtype:
            return False
        self._write(array, self._put(patterns.copy(), dtype))
        return True

    def spoil(self, foreign: Any) -> None:
        """Overwrites the elements with ones, as the owner of an array may, where they can be written."""
        kind, array, _ = self._adopt(foreign)
        try:
            kind._spoil(array)
        except (RuntimeError, TypeError, ValueError):  # of a broadcast tensor, or one of an inference
            pass

    @staticmethod
    def _plain(array: Any) -> Any:
        """The array without a subclass, of which a method may do anything."""
        return array

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
        owner = _owners.get(type(foreign))
        for each in LIBRARIES.values() if owner is None else ():
            if isinstance(foreign, getattr(sys.modules.get(each.library), each.array_type, ())):
                owner = _owners[type(foreign)] = each
        if owner is not None:
            kind, array = owner, owner._plain(foreign)
        if array is None and hasattr(foreign, "__dlpack__"):
            try:
                array = importlib.import_module(self.namespace or self.library).from_dlpack(foreign)
            except (BufferError, RuntimeError, TypeError, ValueError) as error:
                reason = f"{self.library}.from_dlpack says: {error}"
        if array is None and (hasattr(foreign, "__array__") or isinstance(foreign, int | float)):
            kind, array = NumPy, np.asarray(foreign)
        if array is None:
            raise TypeError(f"{self.name}: got a {type(foreign).__name__}, which is no array: {reason}")
        dtype = _name_of(array.dtype)
        if dtype not in PATTERNS:
            raise TypeError(f"{self.name}: got an array of {dtype}; known are {', '.join(PATTERNS)}")
        return kind, array, dtype

    def _put(self, patterns: Bits, dtype: str) -> Any:
        """An array on the device with these bit patterns."""
        return patterns.view(FORMATS[dtype].dtype if dtype in FORMATS else np.dtype(dtype))

    @staticmethod
    def _permuted(array: Any, axes: list[int]) -> Any:
        """The array with its axes in another order, in the same memory."""
        return array.transpose(axes)

    def _expanded(self, array: Any, shape: tuple[int, ...]) -> Any:
        """The array with axes of length 1 longer, in the same memory."""
        strides = [s if n == m else 0 for s, n, m in zip(array.strides, array.shape, shape, strict=True)]
        bits = array.view(f"u{array.itemsize}")  # also of types that NumPy does not know
        return self.module.lib.stride_tricks.as_strided(bits, shape, strides).view(array.dtype)

    @staticmethod
    def _write(array: Any, values: Any) -> None:
        """Writes another array's elements into the array."""
        array[...] = values

    @staticmethod
    def _spoil(array: Any) -> None:
        """Overwrites the array, as its owner may; what cannot be written stays."""
        if array.flags.writeable:
            array[...] = True

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

    library, array_type, package, reverses = "numpy", "ndarray", "numpy", True

    def __init__(self, device: str):
        super().__init__(device)
        if device not in ("", "cpu"):
            raise ValueError(f"array={self.name!r}: NumPy has no device but the CPU")

    @staticmethod
    def _plain(array: Any) -> Any:
        return np.asarray(array)


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

    def delay(self, arrays: Iterable[Any]) -> None:
        if self.device.type != "cuda":
            return
        late = [(x.detach(), x.detach().clone()) for x in arrays]
        for x, _ in late:
            x.zero_()
        self.synchronize()
        with self.module.cuda.device(self.device):
            self.module.cuda._sleep(DELAY_CYCLES)
        for x, values in late:
            x.copy_(values)

    def finish(self, results: Iterable[Any]) -> bool:
        if self.device.type != "cuda":
            return True
        found = [r.detach() for r in results if isinstance(r, self.module.Tensor) and r.device.type == "cuda"]
        seen = [r.clone() for r in found]  # in the order of the current stream
        self.synchronize()
        return all(np.array_equal(self.bits(a), self.bits(b)) for a, b in zip(found, seen, strict=True))

    @classmethod
    def settings(cls) -> dict[str, Any]:
        torch = sys.modules.get("torch")
        if torch is None:
            return {}
        try:
            precision = torch.get_float32_matmul_precision()
        except RuntimeError:  # which it says where the newer setting for each backend was used
            precision = ""
        return {
            "threads": torch.get_num_threads(), "precision": precision,
            "deterministic": torch.are_deterministic_algorithms_enabled(), "gradients": torch.is_grad_enabled(),
            "tf32": torch.backends.cudnn.allow_tf32, "benchmark": torch.backends.cudnn.benchmark,
        }  # fmt: skip

    @classmethod
    def apply(cls, settings: Mapping[str, Any]) -> None:
        torch = importlib.import_module("torch")
        now = cls.settings()
        setters = {
            "threads": torch.set_num_threads, "precision": torch.set_float32_matmul_precision,
            "deterministic": torch.use_deterministic_algorithms, "gradients": torch.set_grad_enabled,
        }  # fmt: skip
        for name, change in setters.items():
            if settings[name] != now[name] and settings[name] != "":  # some import much
                change(settings[name])
        torch.backends.cudnn.allow_tf32, torch.backends.cudnn.benchmark = settings["tf32"], settings["benchmark"]

    def put(self, patterns: Bits, dtype: str, *, layout: str = "") -> Any:
        """A new tensor, as of other libraries; in the layout "gradients" one that requires a gradient."""
        if layout != "gradients":
            return super().put(patterns, dtype, layout=layout)
        made = self._put(patterns.copy(), dtype)
        return made.requires_grad_() if made.is_floating_point() else made

    def _put(self, patterns: Bits, dtype: str) -> Any:
        host = self.module.from_numpy(patterns.view(_SIGNED[patterns.dtype]))
        return host.to(self.device).view(getattr(self.module, dtype))

    @staticmethod
    def _permuted(array: Any, axes: list[int]) -> Any:
        return array.permute(axes)

    def _expanded(self, array: Any, shape: tuple[int, ...]) -> Any:
        return array.expand(shape)

    @staticmethod
    def _plain(array: Any) -> Any:
        torch = sys.modules["torch"]
        if type(array) in (torch.Tensor, torch.nn.Parameter):
            return array
        with torch._C.DisableTorchFunctionSubclass():
            return array.as_subclass(torch.Tensor)

    @staticmethod
    def _write(array: Any, values: Any) -> None:
        with sys.modules["torch"].no_grad():
            array.copy_(values)

    @staticmethod
    def _spoil(array: Any) -> None:
        with sys.modules["torch"].no_grad():
            array.fill_(1)

    @staticmethod
    def _host(array: Any, unsigned: np.dtype[Any]) -> npt.NDArray[Any]:
        return array.resolve_neg().view(getattr(sys.modules["torch"], _SIGNED[unsigned])).cpu().numpy()

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
    def _spoil(array: Any) -> None:
        array.fill(1)

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

    @classmethod
    def settings(cls) -> dict[str, Any]:
        jax = sys.modules.get("jax")
        named = (
            "jax_enable_x64",
            "jax_default_matmul_precision",
            "jax_disable_jit",
            "jax_platforms",
            "jax_numpy_rank_promotion",
        )
        return {} if jax is None else {n: jax.config.values[n] for n in named if n in jax.config.values}

    @classmethod
    def apply(cls, settings: Mapping[str, Any]) -> None:
        for name, value in settings.items():
            importlib.import_module("jax").config.update(name, value)

    def _put(self, patterns: Bits, dtype: str) -> Any:
        values = super()._put(patterns, dtype)
        if dtype == "int64" and not self.module.config.jax_enable_x64 and (values == values.astype("int32")).all():
            values, dtype = values.astype("int32"), "int32"
        array = self.module.device_put(values, self.device)
        if array.dtype.name != dtype:
            advice = 'call jax.config.update("jax_enable_x64", True) first'
            raise ValueError(f"{self.name}: JAX makes {array.dtype.name} of {dtype}: {advice}")
        return array

    @staticmethod
    def _spoil(array: Any) -> None:
        """Nobody writes an array of JAX."""

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
    return name if isinstance(name, Arrays) else kind_of(name)(name.partition(":")[2])


def kind_of(name: str) -> type[Arrays]:
    """The class of "LIBRARY" or "LIBRARY:DEVICE", whose library is not imported. ValueError for an unknown one."""
    library = name.partition(":")[0]
    if library not in LIBRARIES:
        raise ValueError(f"array={name!r}: unknown library; {formats.suggest(library, LIBRARIES)}")
    return LIBRARIES[library]
