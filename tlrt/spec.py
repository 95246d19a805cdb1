"""The specification as a device: the same calls as on the CPU or CUDA, computed by :mod:`tlspec` in float64.

:data:`kernels` has a function for every operation of ``tlrt.kernels``, with the same arguments, on :class:`SpecBuffer`;
``SpecDevice`` makes these. So a program written for a device runs on the specification unchanged, and the two can be
compared. Uploads are rounded to float32, as on every device, and widened; nothing is rounded after that. Scalars are rounded
to float32 once, as the contract says.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from tlrt import _convert, errors
from tlrt.context import Memory
from tlspec import abi, pyface
from tlspec.bounds import call_reference
from tlspec.cases import refused_by, shape_of

__all__ = ["SpecBuffer", "SpecDevice", "kernels"]

F64 = npt.NDArray[np.float64]


class SpecBuffer:
    """A flat float64 array with the methods of :class:`tlrt.Buffer`."""

    __slots__ = ("__weakref__", "_array", "_device", "_storage")

    def __init__(self, array: F64, device: SpecDevice, storage: list[int] | None = None) -> None:
        self._array: F64 | None = array
        self._device = device
        #: live handles to the storage, shared between them
        self._storage = [0] if storage is None else storage
        self._storage[0] += 1
        device._took(array.nbytes if self._storage[0] == 1 else 0)

    @property
    def array(self) -> F64:
        """The content itself, flat. Raises ReleasedError."""
        if self._array is None:
            raise errors.ReleasedError("SpecBuffer: buffer: got a released buffer, expected a live one")
        return self._array

    @property
    def length(self) -> int:
        return self.array.size

    def __len__(self) -> int:
        return self.length

    @property
    def device(self) -> SpecDevice:
        return self._device

    @property
    def released(self) -> bool:
        return self._array is None

    @property
    def references(self) -> int:
        _ = self.array
        return self._storage[0]

    def numpy(self, shape: int | Sequence[int] | None = None) -> F64:
        """A new float64 array with the content, in `shape` if given."""
        content = self.array.copy()
        if shape is None:
            return content
        try:
            return content.reshape(shape)
        except ValueError:
            text = f"numpy: shape: got {shape}, expected a shape of {content.size} elements"
            raise errors.ShapeError(text, op="numpy") from None

    def __array__(self, dtype: npt.DTypeLike | None = None, copy: bool | None = None) -> npt.NDArray[Any]:
        return self.numpy() if dtype is None else self.numpy().astype(dtype, copy=False)

    def fill(self, value: float) -> SpecBuffer:
        self.array[...] = _rounded(value)
        return self

    def copy(self) -> SpecBuffer:
        return SpecBuffer(self.array.copy(), self._device)

    def share(self) -> SpecBuffer:
        return SpecBuffer(self.array, self._device, self._storage)

    def release(self) -> None:
        if self._array is not None:
            self._storage[0] -= 1
            self._device._gave(self._array.nbytes if self._storage[0] == 0 else 0)
            self._array = None

    def __del__(self) -> None:
        try:
            self.release()
        except AttributeError:  # a constructor that raised
            pass

    def __repr__(self) -> str:
        if self._array is None:
            return "SpecBuffer(released)"
        shown = ", ".join(f"{v:.7g}" for v in self._array[:6].tolist()) + (", ..." if self._array.size > 6 else "")
        return f"SpecBuffer(length={self._array.size}, [{shown}])"


class SpecDevice:
    """The specification with the methods of :class:`tlrt.Device`. It computes at once and counts its memory."""

    def __init__(self) -> None:
        self._live = self._peak = self._buffers = self._served = 0
        self._marks = [0.0] * 8

    name = "spec"
    is_cuda = False
    closed = False

    def _took(self, nbytes: int) -> None:
        self._buffers += 1
        self._served += nbytes > 0
        self._live += nbytes
        self._peak = max(self._peak, self._live)

    def _gave(self, nbytes: int) -> None:
        self._buffers -= 1
        self._live -= nbytes

    def describe(self) -> str:
        return f"specification, float64, NumPy {np.__version__}"

    def buffer(self, array: npt.ArrayLike) -> SpecBuffer:
        """The array, rounded to float32 and widened."""
        return SpecBuffer(_convert.float32("from_numpy", "array", array).astype(np.float64), self)

    def exact(self, array: npt.ArrayLike) -> SpecBuffer:
        """The array in float64, for what the specification itself computed."""
        return SpecBuffer(np.array(array, np.float64).ravel(), self)

    def zeros(self, n: int) -> SpecBuffer:
        return SpecBuffer(np.zeros(n), self)

    def empty(self, n: int) -> SpecBuffer:
        return SpecBuffer(np.full(n, np.nan), self)

    def full(self, n: int, value: float) -> SpecBuffer:
        return SpecBuffer(np.full(n, _rounded(value)), self)

    def synchronize(self) -> None: ...

    def mark(self, slot: int = 0) -> None:
        import time

        self._marks[slot] = time.perf_counter()

    def elapsed(self, start: int = 0, stop: int = 1) -> float:
        return (self._marks[stop] - self._marks[start]) * 1e3

    def memory(self) -> Memory:
        return Memory(self._live, self._peak, 0, 0, self._buffers, self._served, self._served)

    def reset_peak(self) -> None:
        self._peak = self._live

    def collect(self) -> None: ...

    def close(self) -> None: ...

    def __repr__(self) -> str:
        return "SpecDevice()"


def _rounded(value: float) -> float:
    with np.errstate(over="ignore"):
        return float(np.float32(value))


def _by_status() -> dict[str, type[errors.TorchleanError]]:
    return {status: getattr(errors, name) for status, name in pyface.EXCEPTIONS.items()}


class _Function:
    """One operation on :class:`SpecBuffer`, called as its namesake in ``tlrt.kernels``."""

    def __init__(self, entry: abi.Entry) -> None:
        self.entry = entry
        self.__name__ = entry.name
        self.arguments = pyface.arguments(entry)
        self.positional = [a for a in self.arguments if not a.keyword]
        self.known = pyface.inferred(entry)
        row = entry.op
        self.reference = row.reference if entry.name == row.name else row.vjp_rule.reference  # type: ignore[union-attr]

    def __call__(self, *given: Any, want: Sequence[bool] | None = None, out: Any = None, **named: Any) -> Any:
        e, name = self.entry, self.entry.name
        if len(given) > len(self.positional):
            raise TypeError(f"{name}: got {len(given)} positional arguments, expected {len(self.positional)}")
        bound = {a.name: v for a, v in zip(self.positional, given, strict=False)} | named
        arrays, values, device = self._read(bound)
        for a in e.signature.inputs:
            if a.host and len(a.dims) == 1 and a.dims[0] in self.known:
                values.setdefault(a.dims[0], len(arrays[a.name]))
        hosts = {a.name: arrays[a.name] for a in e.signature.inputs if a.host}
        if failed := refused_by(e.op, {**values, **hosts}):
            kind = _by_status().get(failed.status, errors.TorchleanError)
            raise kind(f"{name}: {failed.name}: expected {failed.say or failed.expression}", op=name)
        inputs = {a.name: self._shaped(a, arrays[a.name], values) for a in e.signature.inputs}
        with np.errstate(all="ignore"):
            made = call_reference(self.reference, inputs, values)
        results = list(made) if isinstance(made, (tuple, list)) else [made]
        if e.only is not None:
            results = [results[e.only]]
        return self._give(results, device, want, out)

    def _read(self, bound: dict[str, Any]) -> tuple[dict[str, Any], dict[str, Any], SpecDevice | None]:
        """The call's arrays and values by their names in the row, and the device."""
        arrays: dict[str, Any] = {}
        values: dict[str, Any] = {}
        device = None
        for a in self.arguments:
            if a.name not in bound and a.default is None:
                raise TypeError(f"{self.__name__}: missing argument {a.name!r}")
            v = bound.get(a.name)
            if a.kind == "device":
                device = v
            elif a.kind == "buffer":
                if v is not None and not isinstance(v, SpecBuffer):
                    got = _convert.type_name(v)
                    raise errors.ArgumentTypeError(f"{self.__name__}: {a.name}: got {got}, expected SpecBuffer")
                arrays[a.of] = v
                device = device if v is None else v.device
            elif a.kind == "u32":
                arrays[a.of] = _convert.uint32(self.__name__, a.name, v)
            elif a.kind == "f64":
                arrays[a.of] = np.asarray(v, np.float64)
            else:
                v = float(a.default) if v is None and a.default is not None and a.kind == "float" else v
                v = int(a.default) if v is None and a.default is not None else v
                values[a.of] = (
                    _rounded(v)
                    if a.kind == "float"
                    else [operator.index(n) for n in v]
                    if a.kind == "dims"
                    else operator.index(v)
                )
        return arrays, values, device

    def _shaped(self, array: Any, value: Any, values: dict[str, Any]) -> Any:
        if value is None:
            return None
        flat = value.array if isinstance(value, SpecBuffer) else np.asarray(value).reshape(-1)
        if array.elementwise:
            return flat
        shape = shape_of(array, values)
        if flat.size != int(np.prod(shape, dtype=np.int64)):
            text = f"{self.__name__}: {array.name}: got {flat.size} elements, expected {array.spelled}"
            raise errors.ShapeError(text, op=self.__name__)
        return flat.reshape(shape)

    def _give(self, results: list[Any], device: Any, want: Sequence[bool] | None, out: Any) -> Any:
        outputs = self.entry.outputs
        several = len(outputs) > 1
        places = list(out) if several and out is not None else [out] * len(outputs)
        made: list[Any] = []
        for i, (array, result, place) in enumerate(zip(outputs, results, places, strict=True)):
            if want is not None and not want[i]:
                made.append(None)
            elif array.host:
                made.append(np.array(result, np.float64))
            elif place is None:
                made.append(SpecBuffer(np.array(result, np.float64).reshape(-1), device))
            else:
                place.array[...] = np.asarray(result, np.float64).reshape(-1)
                made.append(place)
        return tuple(made) if several else made[0]


class _Kernels:
    """``tlrt.kernels`` for the specification."""

    share = staticmethod(SpecBuffer.share)

    def __getattr__(self, name: str) -> Callable[..., Any]:
        for entry in abi.all_entries():
            self.__dict__.setdefault(entry.name, _Function(entry))
        try:
            return self.__dict__[name]  # type: ignore[no-any-return]
        except KeyError:
            raise AttributeError(f"no operation {name!r}") from None


kernels = _Kernels()
