"""The specification as a device: the same calls as on the CPU or CUDA, computed by :mod:`tlspec` in float64.

:data:`kernels` has a function for every operation of ``tlrt.kernels``, with the same arguments, on :class:`SpecBuffer`;
``SpecDevice`` makes these. So a program written for a device runs on the specification unchanged, and the two can be
compared. Uploads are rounded to float32, as on every device, and widened; nothing is rounded after that. Scalars are rounded
to float32 once, as the contract says.

``SpecDevice(scalar)`` computes in another type of numbers instead, and rounds nothing on the way in: ``numpy.float64``,
``numpy.longdouble``, any other NumPy type, or a class like ``fractions.Fraction``. An operation that the type lacks, or whose
formula leaves it, raises ArgumentTypeError; the constants in a formula have float64's precision.

    with tlrt.Session(SpecDevice(Fraction)) as s:
        s.matmul(s.const([[Fraction(1, 3)]]), s.const([[3]])).numpy()  # exactly 1
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache
from itertools import chain, starmap
from typing import Any, cast

import numpy as np
import numpy.typing as npt

from tlrt import errors
from tlrt._binding import convert
from tlrt._binding.arguments import length, number
from tlrt._binding.observer import Observer
from tlrt._binding.together import set_and_call
from tlrt.context import Memory
from tlspec import entries, registry
from tlspec.bounds import call_reference
from tlspec.case import refused_by, shape_of

__all__ = ["SpecBuffer", "SpecDevice", "kernels"]

Array = npt.NDArray[Any]


class _Storage:
    """The live handles to one array."""

    __slots__ = ("handles",)

    def __init__(self) -> None:
        self.handles = 0


class SpecBuffer:
    """A flat array with the methods of :class:`tlrt.Buffer`.

    Parameters
    ----------
    array : numpy.ndarray
        One axis.
    device : SpecDevice
        Whose buffer it is.
    storage : object, optional
        The storage that it shares with other handles.
    """

    __slots__ = ("__weakref__", "_array", "_device", "_storage")

    _array: Array | None

    def __init__(self, array: Array, device: SpecDevice, storage: _Storage | None = None) -> None:
        self._device = device
        self._storage = _Storage() if storage is None else storage
        self._count(1, array)

    @property
    def array(self) -> Array:
        """The content itself, flat. Raises ReleasedError."""
        if self._array is None:
            raise errors.refusal(errors.ReleasedError, "SpecBuffer", "buffer", "a released buffer", "a live one")
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
        return self._storage.handles

    def numpy(self, shape: int | Sequence[int] | None = None) -> Array:
        """A copy of the content.

        Parameters
        ----------
        shape : int or sequence of int, optional
            Its shape; one axis unless given.

        Returns
        -------
        numpy.ndarray
            In the device's type of numbers.

        Raises
        ------
        ShapeError
            The shape holds another number of elements.
        """
        content = self.array.copy()
        if shape is None:
            return content
        try:
            return content.reshape(shape)
        except TypeError:
            got = convert.type_name(shape)
            raise errors.refusal(errors.ArgumentTypeError, "numpy", "shape", got, "integers") from None
        except ValueError:
            expected = f"a shape of {content.size} elements"
            raise errors.refusal(errors.ShapeError, "numpy", "shape", shape, expected) from None

    def __enter__(self) -> SpecBuffer:
        return self

    def __exit__(self, *_: object) -> None:
        self.release()

    def __copy__(self) -> SpecBuffer:
        return self.share()

    def __deepcopy__(self, memo: dict[int, Any]) -> SpecBuffer:
        return self.copy()

    def __array__(self, dtype: npt.DTypeLike | None = None, copy: bool | None = None) -> npt.NDArray[Any]:
        return self.numpy() if dtype is None else self.numpy().astype(dtype, copy=False)

    def fill(self, value: float) -> SpecBuffer:
        """Sets all elements to a number.

        Parameters
        ----------
        value : float
            The number.

        Returns
        -------
        SpecBuffer
            This buffer.
        """
        self.array[...] = self._device.number("fill", "value", value)
        return self

    def copy(self) -> SpecBuffer:
        """The same content in storage of its own.

        Returns
        -------
        SpecBuffer
            A new buffer.
        """
        return SpecBuffer(self.array.copy(), self._device)

    def share(self) -> SpecBuffer:
        """A second handle to the same storage.

        Returns
        -------
        SpecBuffer
            The handle.
        """
        return SpecBuffer(self.array, self._device, self._storage)

    def release(self) -> None:
        """Gives the handle back; may be repeated."""
        if self._array is not None:
            self._count(-1, None)

    def _count(self, change: int, array: Array | None) -> None:
        """Makes the buffer live or released and counts it, as one act."""
        device, storage, content = self._device, self._storage, self._array if array is None else array
        assert content is not None
        nbytes = content.nbytes if storage.handles + change == max(change, 0) else 0  # of the first or the last handle
        live = device._live + change * nbytes
        changes = [(self, "_array", array), (storage, "handles", storage.handles + change), (device, "_live", live)]
        changes += [(device, "_buffers", device._buffers + change), (device, "_peak", max(device._peak, live))]
        set_and_call([*changes, (device, "_served", device._served + (change > 0 and nbytes > 0))], [])

    def __del__(self) -> None:
        try:
            self.release()
        except AttributeError:  # a constructor that raised
            pass
        except BaseException:  # of a signal handler; Python ignores it
            self.release()
            raise

    def __repr__(self) -> str:
        kind = type(self).__name__
        if self._array is None:
            return f"{kind}(released)"
        first = [f"{v:.7g}" if isinstance(v, float) else str(v) for v in self._array[:6].tolist()]
        shown = ", ".join(first) + (", ..." if self._array.size > 6 else "")
        return f"{kind}(length={self._array.size}, [{shown}])"


class SpecIndexBuffer(SpecBuffer):
    """A flat array of uint32 indices, with the methods of :class:`tlrt.buffer.IndexBuffer`."""

    __slots__ = ()

    @property
    def size(self) -> int:
        return self.length

    def copy(self) -> SpecIndexBuffer:
        """The same content in storage of its own.

        Returns
        -------
        SpecIndexBuffer
            A new buffer.
        """
        return SpecIndexBuffer(self.array.copy(), self._device)

    def share(self) -> SpecIndexBuffer:
        """A second handle to the same storage.

        Returns
        -------
        SpecIndexBuffer
            The handle.
        """
        return SpecIndexBuffer(self.array, self._device, self._storage)


class SpecDevice:
    """The specification with the methods of :class:`tlrt.Device`. It computes at once and counts its memory.

    Parameters
    ----------
    scalar : type, optional
        The type of numbers that it computes in, see :mod:`tlrt.spec`; float64 of values rounded to float32 unless
        given.

    Examples
    --------
    >>> from tlrt.spec import SpecDevice
    >>> with tlrt.Session(SpecDevice()) as s:
    ...     print(s.sqrt(s.const([2.0])).numpy())
    [1.41421356]
    """

    def __init__(self, scalar: Any = None) -> None:
        self.scalar = scalar
        #: of its buffers
        self.dtype = np.dtype(np.float64 if scalar is None else scalar)
        self._live = self._peak = self._buffers = self._served = 0
        self._marks = [0.0] * 8
        self._observers: tuple[Observer, ...] = ()

    name = "spec"
    is_cuda = False
    closed = False

    def observe(self, observer: Observer) -> None:
        """Reports what sessions and tapes do to an observer; calls and buffers of the specification are not reported.

        Parameters
        ----------
        observer : Observer
            Who is told.
        """
        self._observers = (*self._observers, observer)

    def ignore(self, observer: Observer) -> None:
        """Stops the reports to an observer.

        Parameters
        ----------
        observer : Observer
            Who is told no more.
        """
        self._observers = tuple(o for o in self._observers if o is not observer)

    def describe(self) -> str:
        """Says what computes.

        Returns
        -------
        str
            A line.
        """
        return f"specification, {self.dtype if self.scalar is None else self._scalar_name}, NumPy {np.__version__}"

    # ---- the type of numbers

    @property
    def _scalar_name(self) -> str:
        return getattr(self.scalar, "__name__", str(self.scalar))

    def convert(self, op: str, name: str, value: Any) -> Array:
        """A copy as the device computes with it: rounded to float32 and widened, or of the type that it was made for.

        Parameters
        ----------
        op : str
            The operation that a refusal names.
        name : str
            The argument that a refusal names.
        value : array_like
            The numbers.

        Returns
        -------
        numpy.ndarray
            Flat.

        Raises
        ------
        ArgumentTypeError
            It has no such form.
        """
        if self.scalar is None:
            return convert.float32(op, name, value).astype(np.float64)
        array = convert.host_array(op, name, value, self._scalar_name).reshape(-1)
        if self.dtype == object:
            return self._elements([self._element(op, name, v) for v in array.tolist()])
        if array.dtype != object and not np.can_cast(array.dtype, self.dtype, "same_kind"):
            raise errors.refusal(errors.ArgumentTypeError, op, name, f"dtype {array.dtype}", self._scalar_name)
        try:
            return array.astype(self.dtype)
        except (TypeError, ValueError):
            got = convert.type_name(value)
            raise errors.refusal(errors.ArgumentTypeError, op, name, got, self._scalar_name) from None

    @staticmethod
    def _elements(values: list[Any]) -> Array:
        made = np.empty(len(values), object)
        made[:] = values
        return made

    def _element(self, op: str, name: str, value: Any) -> Any:
        if self.scalar is object or (isinstance(self.scalar, type) and isinstance(value, self.scalar)):
            return value
        try:
            return self.scalar(value)
        except (TypeError, ValueError, OverflowError):
            got = f"{type(value).__name__} {value!r:.99}"
            raise errors.refusal(errors.ArgumentTypeError, op, name, got, self._scalar_name) from None

    def number(self, op: str, name: str, value: Any) -> Any:
        """A scalar argument as the device computes with it.

        Parameters
        ----------
        op : str
            The operation that a refusal names.
        name : str
            The argument that a refusal names.
        value : float
            The number.

        Returns
        -------
        number
            Of the device's type.
        """
        if self.scalar is None:
            return _round_to_float32(number(op, name, value))
        made = self.convert(op, name, [value])[0]
        return made.item() if isinstance(made, np.generic) else made

    def adopt(self, op: str, result: Any) -> Array:
        """What a formula gave, flat.

        Parameters
        ----------
        op : str
            The operation that a refusal names.
        result : array_like
            The result.

        Returns
        -------
        numpy.ndarray
            In the device's type.

        Raises
        ------
        ArgumentTypeError
            It left the device's type.
        """
        array = np.asarray(result).reshape(-1)
        if self.scalar is None:
            return array.astype(np.float64, copy=False)
        wrong: Any = None
        if self.dtype == array.dtype == object:  # a formula's own 0.0 and integers are exact
            known = (int, self.scalar) if isinstance(self.scalar, type) else int
            values = array.tolist()
            wrong = next(
                (v for v in values if not isinstance(v, known) and not (isinstance(v, float) and v == 0)), None
            )
            array = array if wrong is not None else self._elements([self._element(op, "", v) for v in values])
        elif array.dtype.kind != self.dtype.kind or not np.can_cast(self.dtype, array.dtype, "safe"):
            wrong = array
        if wrong is not None:
            got = f"a result of {getattr(wrong, 'dtype', type(wrong).__name__)}"
            raise errors.refusal(errors.ArgumentTypeError, op, "scalar", got, f"{self._scalar_name} all the way")
        return array.astype(self.dtype, copy=False)

    # ---- buffers

    def buffer(self, array: npt.ArrayLike) -> SpecBuffer:
        """A buffer of an array, as :meth:`convert` gives it.

        Parameters
        ----------
        array : array_like
            Any shape.

        Returns
        -------
        SpecBuffer
            Flat.
        """
        return SpecBuffer(self.convert("from_numpy", "array", array), self)

    def indices(self, array: npt.ArrayLike) -> SpecIndexBuffer:
        """A buffer of integers.

        Parameters
        ----------
        array : array_like of int
            From 0 to 2**32 - 1.

        Returns
        -------
        SpecIndexBuffer
            Flat.
        """
        host = convert.host_array("from_numpy", "array", array, "integers").reshape(-1)
        return SpecIndexBuffer(convert.uint32("from_numpy", "array", host).copy(), self)

    def exact(self, array: npt.ArrayLike) -> SpecBuffer:
        """A buffer without rounding to float32, for what the specification itself computed.

        Parameters
        ----------
        array : array_like
            Any shape.

        Returns
        -------
        SpecBuffer
            Flat.
        """
        if self.scalar is not None:
            return self.buffer(array)
        return SpecBuffer(np.array(array, np.float64).ravel(), self)

    def zeros(self, n: int) -> SpecBuffer:
        """A buffer of zeros.

        Parameters
        ----------
        n : int
            Its length.

        Returns
        -------
        SpecBuffer
            Zeros.
        """
        return self._filled("zeros", n, 0)

    def empty(self, n: int) -> SpecBuffer:
        """A buffer of any content: NaN, or zeros where the type has none.

        Parameters
        ----------
        n : int
            Its length.

        Returns
        -------
        SpecBuffer
            To be overwritten.
        """
        return self._filled("empty", n, np.nan if self.dtype.kind in "fc" else 0)

    def full(self, n: int, value: float) -> SpecBuffer:
        """A buffer of one number.

        Parameters
        ----------
        n : int
            Its length.
        value : float
            The number.

        Returns
        -------
        SpecBuffer
            All elements alike.
        """
        return self._filled("full", n, value)

    def _filled(self, op: str, n: int, value: Any) -> SpecBuffer:
        size = length(op, "n", n)
        return SpecBuffer(np.full(size, self.number(op, "value", value), self.dtype), self)

    def synchronize(self) -> None:
        """Does nothing: a call has ended when it returns."""

    def mark(self, slot: int = 0) -> None:
        """Notes the time.

        Parameters
        ----------
        slot : int, default 0
            Where, from 0 to 7.
        """
        import time

        self._marks[slot] = time.perf_counter()

    def elapsed(self, start: int = 0, stop: int = 1) -> float:
        """The time between two marks.

        Parameters
        ----------
        start : int, default 0
            The slot of the earlier one.
        stop : int, default 1
            The slot of the later one.

        Returns
        -------
        float
            Milliseconds.
        """
        return (self._marks[stop] - self._marks[start]) * 1e3

    def memory(self) -> Memory:
        """What its buffers take.

        Returns
        -------
        Memory
            Bytes and counts.
        """
        return Memory(self._live, self._peak, 0, 0, self._buffers, self._served, self._served)

    def reset_peak(self) -> None:
        """Sets the highest number of bytes to that of now."""
        self._peak = self._live

    def collect(self) -> None:
        """Does nothing: no memory is cached."""

    def cap(self, limit: int) -> None:
        """Does nothing: its memory has no limit.

        Parameters
        ----------
        limit : int
            Bytes.
        """

    def close(self) -> None:
        """Does nothing: there is nothing to give back."""

    def __enter__(self) -> SpecDevice:
        return self

    def __exit__(self, *_: object) -> None: ...

    def __repr__(self) -> str:
        return "SpecDevice()"


def _round_to_float32(value: float) -> float:
    with np.errstate(over="ignore"):
        return float(np.float32(value))


class _Function:
    """One operation on :class:`SpecBuffer`, called as its namesake in ``tlrt.kernels``."""

    def __init__(self, entry: entries.Entry) -> None:
        self.entry = entry
        self.__name__ = entry.name
        self.arguments = entries.arguments(entry)
        self.positional = [a for a in self.arguments if not a.keyword]
        self.names = {a.name for a in self.arguments}
        self.known = entries.inferred(entry)
        row = entry.op
        self.reference = row.reference if entry.kernel == row.name else row.vjp_rule.reference  # type: ignore[union-attr]

    def __call__(self, *given: Any, want: Sequence[bool] | None = None, out: Any = None, **named: Any) -> Any:
        e, name = self.entry, self.entry.name
        if any(type(v) is SpecIndexBuffer for v in (*given, *named.values())) and f"{name}_indexed" in _entries():
            return getattr(kernels, f"{name}_indexed")(*given, want=want, out=out, **named)
        if len(given) > len(self.positional):
            raise errors.refusal(TypeError, name, "", f"{len(given)} positional arguments", len(self.positional))
        bound = {a.name: v for a, v in zip(self.positional, given, strict=False)}
        if wrong := [n for n in named if n not in self.names or n in bound]:
            raise TypeError(f"{name}: got an unexpected argument {wrong[0]!r}")
        arrays, values, device = self._read(bound | named)
        for dimension, of in self.known.items():
            values.setdefault(dimension, len(arrays[of]))
        hosts = {a.name: arrays[a.name] for a in e.op.signature.inputs if a.host and a.name in arrays and not e.indexed}
        optional = {a.name: arrays[a.name] for a in e.signature.inputs if a.optional}
        if failed := refused_by(e.op, {**values, **hosts, **optional}):
            kind = getattr(errors, entries.EXCEPTIONS.get(failed.status, "TorchleanError"))
            raise kind(f"{name}: {failed.name}: expected {failed.say or failed.expression}", op=name)
        if e.signature.lists:
            values["lengths"] = self._lengths(arrays)
            if device is None:
                raise errors.ArgumentError(f"{name}: device: missing, expected one as the lists are empty", op=name)
        inputs: dict[str, Any] = {}
        for a in e.signature.inputs:
            inputs[a.name] = self._shaped(a, arrays[a.name], values, inputs)
        made = self._compute(inputs, values, device)
        changes = getattr(named.get("device"), "changes", ())
        results = list(made) if isinstance(made, (tuple, list)) else [made]
        if e.only is not None:
            results = [results[e.only]]
        if any(o.listed for o in e.outputs):
            return self._return_lists(results, values["lengths"], device, out, changes)
        return self._return_outputs(results, device, want, out)

    def _compute(self, inputs: Mapping[str, Any], values: Mapping[str, Any], device: SpecDevice | None) -> Any:
        with np.errstate(all="ignore"):
            if device is None or device.scalar is None:
                return call_reference(self.reference, inputs, values)
            try:
                return call_reference(self.reference, inputs, values)
            except (TypeError, ValueError, AttributeError) as error:  # the type has no such function
                got, expected = f"{device._scalar_name} ({error})", "a type that the formula takes"
                raise errors.refusal(errors.ArgumentTypeError, self.__name__, "scalar", got, expected) from None

    def _read(self, bound: Mapping[str, Any]) -> tuple[dict[str, Any], dict[str, Any], SpecDevice | None]:
        """The call's arrays and values by their names in the row, and the device."""
        arrays: dict[str, Any] = {}
        values: dict[str, Any] = {}
        device: SpecDevice | None = None
        scalars: list[entries.Argument] = []
        for a in self.arguments:
            if a.name not in bound and a.default is None:
                raise TypeError(f"{self.__name__}: missing argument {a.name!r}")
            v = bound.get(a.name)
            if a.kind == "device":
                device = getattr(v, "device", v) if v is not None else device  # of one that stands for it
            elif a.kind == "index":
                device = self._owner(a.name, v, device, SpecIndexBuffer)
                arrays[a.of] = cast(SpecIndexBuffer, v).array
            elif a.kind in ("buffer", "list"):
                arrays[a.of] = v = list(v) if a.kind == "list" and v is not None else v
                for buffer in v if isinstance(v, list) else () if v is None else (v,):
                    device = self._owner(a.name, buffer, device)
            elif a.kind == "u32":
                arrays[a.of] = convert.uint32(self.__name__, a.name, v)
            elif a.kind == "f64":
                arrays[a.of] = np.asarray(v, np.float64)
            else:
                scalars.append(a)
        for a in scalars:
            values[a.of] = self._scalar(a, bound.get(a.name), device)
        return arrays, values, device

    def _owner(
        self, name: str, buffer: Any, device: SpecDevice | None, kind: type[SpecBuffer] = SpecBuffer
    ) -> SpecDevice:
        op = self.__name__
        if type(buffer) is not kind:
            got = convert.type_name(buffer)
            raise errors.refusal(errors.ArgumentTypeError, op, name, got, kind.__name__)
        if device is not None and buffer.device is not device:
            raise errors.refusal(errors.DeviceMismatchError, op, name, "a buffer of another device", "one")
        return buffer.device

    def _scalar(self, a: entries.Argument, value: Any, device: SpecDevice | None) -> Any:
        op = self.__name__
        if value is None and a.default is not None:
            value = float(a.default) if a.kind == "float" else int(a.default)
        try:
            if a.kind == "float":
                if isinstance(value, (str, bytes)):
                    raise TypeError
                return _round_to_float32(value) if device is None else device.number(op, a.name, value)
            if a.kind == "dims":
                return [length(op, a.name, n) for n in value]
            return length(op, a.name, value) if a.role != "wide" else operator.index(value)
        except TypeError as error:
            if isinstance(error, errors.TorchleanError):
                raise
            got, kind = convert.type_name(value), {"float": "a number", "dims": "integers"}.get(a.kind, "an integer")
            raise errors.refusal(errors.ArgumentTypeError, op, a.name, got, kind) from None

    def _lengths(self, arrays: Mapping[str, Any]) -> list[int]:
        """The lengths of the elements of the lists, the same in each list."""
        lists = [[b.length for b in arrays[a.name]] for a in self.entry.signature.lists]
        if any(other != lists[0] for other in lists):
            raise errors.refusal(errors.ShapeError, self.__name__, "lists", f"lengths {lists}", "equal ones")
        return lists[0]

    def _shaped(self, array: registry.Array, value: Any, values: Mapping[str, Any], before: Mapping[str, Any]) -> Any:
        """An input in its declared shape; a list as one array, its elements end to end."""
        if value is None:
            return None
        if array.listed:
            return np.concatenate([b.array for b in value]) if value else np.empty(0)
        flat = value.array if isinstance(value, SpecBuffer) else np.asarray(value).reshape(-1)
        if array.elementwise:
            size = next((x.size for x in before.values() if x is not None), flat.size)
            if flat.size != size:
                expected = f"n = {size}"
                raise errors.refusal(errors.ShapeError, self.__name__, array.name, f"{flat.size} elements", expected)
            return flat
        shape = shape_of(array, values)
        if flat.size != int(np.prod(shape, dtype=np.int64)):
            expected = array.length_text
            raise errors.refusal(errors.ShapeError, self.__name__, array.name, f"{flat.size} elements", expected)
        return flat.reshape(shape)

    def _return_outputs(
        self, results: list[Any], device: SpecDevice | None, want: Sequence[bool] | None, out: Any
    ) -> Any:
        outputs = self.entry.outputs
        several = len(outputs) > 1
        places = list(out) if several and out is not None else [out] * len(outputs)
        wanted = [True] * len(outputs) if want is None else list(want)
        if len(places) != len(outputs) or len(wanted) != len(outputs) or not any(wanted):
            text = f"{self.__name__}: out, want: expected one entry for each of {len(outputs)}, one of them wanted"
            raise errors.ArgumentError(text, op=self.__name__)
        made: list[Any] = [None] * len(outputs)
        for i, (array, result, place) in enumerate(zip(outputs, results, places, strict=True)):
            if wanted[i]:
                place_it = self._place_indices if array.kind == "index" else self._place_result
                made[i] = np.array(result, np.float64) if array.host else place_it(result, place, device)
        return tuple(made) if several else made[0]

    def _return_lists(
        self, results: list[Any], lengths: list[int], device: SpecDevice | None, out: Any, changes: Sequence[Any]
    ) -> Any:
        """The results cut into the lists' elements. Those that go to buffers given for them are written, and the changes made,
        in one call of C: no signal handler runs between."""
        several = len(self.entry.outputs) > 1
        places = list(out) if several and out is not None else [out] * len(results)
        ends = np.cumsum(lengths)[:-1]
        made = []
        writes: list[Any] = []
        for result, each in zip(results, places, strict=True):
            parts = np.split(np.asarray(result), ends) if lengths else []
            slots = [None] * len(parts) if each is None else list(each)
            if len(slots) != len(parts):
                raise errors.refusal(errors.ArgumentError, self.__name__, "out", f"{len(slots)} entries", len(parts))
            made.append([self._place_result(r, place, device, writes) for r, place in zip(parts, slots, strict=True)])
        list(chain(starmap(operator.setitem, writes), starmap(setattr, changes)))
        return tuple(made) if several else made[0]

    def _place_indices(self, result: Any, place: SpecIndexBuffer | None, device: SpecDevice | None) -> SpecBuffer:
        flat = np.asarray(result).reshape(-1).astype(np.uint32)
        if place is None:
            assert device is not None
            return SpecIndexBuffer(flat, device)
        self._owner("out", place, device, SpecIndexBuffer)
        if place.length != flat.size:
            raise errors.refusal(errors.ShapeError, self.__name__, "out", f"{place.length} elements", flat.size)
        place.array[...] = flat
        return place

    def _place_result(
        self, result: Any, place: SpecBuffer | None, device: SpecDevice | None, writes: list[Any] | None = None
    ) -> SpecBuffer:
        """A result in the buffer given for it, at once or by one more of the writes, or in a new one."""
        device = device if place is None else place.device
        if device is None:
            raise errors.ArgumentError(f"{self.__name__}: device: missing, expected one", op=self.__name__)
        drawn = device.scalar is not None and not any(a.kind in ("buffer", "list") for a in self.arguments)
        flat = device.convert(self.__name__, "out", result) if drawn else device.adopt(self.__name__, result)
        if place is None:
            return SpecBuffer(flat.copy(), device)
        if place.length != flat.size:
            raise errors.refusal(errors.ShapeError, self.__name__, "out", f"{place.length} elements", flat.size)
        if writes is None:
            place.array[...] = flat
        else:
            writes.append((place.array, ..., flat))
        return place


class _Kernels:
    """``tlrt.kernels`` for the specification."""

    share = staticmethod(SpecBuffer.share)
    pack = staticmethod(tuple)

    def __getattr__(self, name: str) -> Callable[..., Any]:
        if name not in _entries():
            raise AttributeError(f"no operation {name!r}")
        made = self.__dict__[name] = _Function(_entries()[name])
        return made


@lru_cache(maxsize=1)
def _entries() -> dict[str, entries.Entry]:
    return {e.name: e for e in entries.all_entries()}


kernels = _Kernels()
