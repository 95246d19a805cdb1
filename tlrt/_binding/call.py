"""What the generated functions of :mod:`tlrt.kernels` share.

A function's fast path takes an output slot from a list, calls C, and wraps the handle it finds there. Slots are popped
and appended (both atomic), so threads, signal handlers and finalisers never share one. Everything below that is not a
slot runs only when a call was refused.

A signal handler may raise after any call of a function, C's included. So the handle in a slot is released on every
exception (twice does no harm), and by a call of C, as bytecode could be interrupted once more.
"""

from __future__ import annotations

import collections
import itertools
import operator
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, TypeVar

import _cffi_backend
import numpy as np

from tlrt import errors
from tlrt._binding import convert
from tlrt._binding.handles import Buffer, Device, IndexBuffer, new, own
from tlrt._binding.library import failure, load
from tlrt.errors import (
    ArgumentError,
    ArgumentTypeError,
    InterruptedCallError,
    ShapeError,
    SizeOverflowError,
    TorchleanError,
)

_library = load()
NULL = _library.ffi.NULL
#: from_buffer(type, array, writable) is ``ffi.from_buffer`` of a type that ``ffi.typeof`` gave
from_buffer = _cffi_backend.from_buffer
UINT32S = _library.ffi.typeof("uint32_t[]")
DOUBLES = _library.ffi.typeof("double[]")
index = operator.index
count = len
uint32_list = convert.uint32_list
make = object.__new__
release = _library.lib.torchlean_cuda_buffer_release
#: runs an iterator to its end
exhaust = list

#: what a call with wrong Python types raises, before C sees it
WRONG = (AttributeError, TypeError, OverflowError, ValueError)

_SLOT = _library.ffi.typeof("torchlean_buffer **")
_LIST = _library.ffi.typeof("torchlean_buffer *[]")
_new = new

#: output slots not in use
free: list[Any] = []

#: what a call of several outputs takes: their places, slots that hold NULL, or NULL for one not wanted; the buffers that the
#: caller supplied, None where he supplied none; an iterator that, run to its end, releases what C put into the slots; and what
#: gets all this back when the slots hold NULL again and nothing can run the iterator any more
Places = tuple[Sequence[Any], "tuple[Buffer | None, ...] | None", Iterator[Any], Callable[[Any], object]]
#: those not in use of calls without buffers of the caller, by the number of outputs where all are wanted, and by the
#: identities of the booleans of `want`: as the key of a dictionary 1 is True
_free_places: dict[Any, list[Places]] = {}
#: gets back what serves one call alone
_drop: Callable[[Any], object] = collections.deque(maxlen=0).append


def new_slot() -> Any:
    """A ``torchlean_buffer **`` for one output."""
    return _new(_SLOT)


_T = TypeVar("_T")


def again(
    status: int, function: Callable[..., _T], values: Mapping[str, Any], rename: dict[str, str] | None = None
) -> _T:
    """Calls a function again whose call of C something interrupted, after the handlers of Python's signals, which run before
    this does; raises the error of any other status."""
    if status != InterruptedCallError.status:
        raise failure(status, function.__name__, rename)
    return function(**{name: values[name] for name in function.__annotations__ if name != "return"})


def slots(op: str, names: tuple[str, ...], want: Sequence[bool] | None, out: Sequence[Buffer | None] | None) -> Places:
    """One slot per output, NULL where it is not wanted, and what goes with them."""
    count = len(names)
    key: Any = None
    if out is None:
        key = count if want is None else tuple(map(id, want)) if type(want) is list and len(want) == count else None
        try:
            return _free_places[key].pop()
        except (KeyError, IndexError):  # at first, and while others have them
            pass
    expected = f"{count} entries, for {', '.join(names)}"
    given: tuple[Buffer | None, ...] = (None,) * count
    if out is not None:
        if not isinstance(out, (tuple, list)):
            raise errors.refusal(ArgumentTypeError, op, "out", convert.type_name(out), expected)
        given = tuple(out)
    wanted: tuple[bool, ...] = (True,) * count
    if want is not None:
        if not convert.is_list(want):
            raise errors.refusal(ArgumentTypeError, op, "want", convert.type_name(want), expected)
        wanted = tuple(want)
        for i, item in enumerate(wanted):
            if not isinstance(item, (bool, np.bool_)):
                got = convert.type_name(item)
                raise errors.refusal(ArgumentTypeError, op, f"want[{i}]", got, "True or False")
    for name, length in (("want", len(wanted)), ("out", len(given))):
        if length != count:
            raise errors.refusal(ArgumentError, op, name, f"{length} entries", expected)
    if not any(wanted):
        raise errors.refusal(ArgumentError, op, "want", "no gradient", f"at least one of {', '.join(names)}")
    result: list[Any] = []
    fresh: list[Any] = []
    for name, buffer, needed in zip(names, given, wanted, strict=True):
        if buffer is not None and not isinstance(buffer, Buffer):
            got = convert.type_name(buffer)
            raise errors.refusal(ArgumentTypeError, op, "out", f"{got} for {name}", "Buffer or None")
        if buffer is not None and not needed:
            raise errors.refusal(ArgumentError, op, "out", f"a buffer for {name}", "None, as want leaves it out")
        if not needed:
            result.append(NULL)
            continue
        slot = new_slot()
        if buffer is not None:
            slot[0] = buffer._handle
        else:
            fresh.append(slot)
        result.append(slot)
    undo = map(release, map(operator.getitem, fresh, itertools.repeat(0)))
    if out is not None:
        return tuple(result), given, undo, _drop
    exact = key is not None and {*map(type, wanted)} == {bool}
    return tuple(result), None, undo, _free_places.setdefault(key, []).append if exact else _drop


def results(places: Sequence[Any], given: Sequence[Buffer | None] | None, device: Device) -> tuple[Any, ...]:
    """The outputs of a call that succeeded: the caller's buffers, new ones, and None for those not wanted. The slots of new ones
    hold NULL then."""
    made: list[Buffer | None] = []
    if given is not None:
        for slot, buffer in zip(places, given, strict=True):
            made.append(buffer if buffer is not None or slot is NULL else Buffer(own(slot[0], release), device))
        return tuple(made)
    for slot in places:
        if slot is NULL:
            made.append(None)
            continue
        fresh = make(Buffer)
        fresh._handle = own(slot[0], release)
        slot[0] = NULL
        fresh._device = device
        made.append(fresh)
    return tuple(made)


class Pack(tuple[Buffer, ...]):
    """Buffers as a tuple that remembers their handles."""

    _handles: Any

    def __new__(cls, xs: Iterable[Buffer]) -> Pack:
        self = super().__new__(cls, xs)
        self._handles = _new(_LIST, [x._handle for x in self])
        return self


def pack(xs: Sequence[Buffer]) -> Pack:
    """`xs` as a :class:`Pack`; itself if it is one."""
    if not convert.is_list(xs):
        raise TypeError("not a sequence")
    return xs if type(xs) is Pack else Pack(xs)


def lists(op: str, names: tuple[str, ...], values: tuple[Sequence[Buffer], ...]) -> tuple[list[Any], int]:
    """The handles of each list as a C array, and the number of buffers in each. Functions look for packs alone themselves."""
    count = len(values[0])
    arrays = []
    for name, xs in zip(names, values, strict=True):
        if type(xs) is not Pack and not isinstance(xs, (list, tuple)) and not convert.is_list(xs):
            raise TypeError("not a sequence")
        if len(xs) != count:
            expected = f"{count}, as many as {names[0]}"
            raise errors.refusal(ShapeError, op, name, f"{len(xs)} buffers", expected)
        arrays.append(xs._handles if type(xs) is Pack else _new(_LIST, [x._handle for x in xs]))
    return arrays, count


def owner(op: str, name: str, xs: Sequence[Buffer]) -> Device:
    """The device of a call on lists that names none."""
    if not len(xs):
        raise errors.refusal(ArgumentError, op, name, "an empty list", "buffers, or `device` to tell where")
    return xs[0]._device


def list_slots(
    op: str, names: tuple[str, ...], out: Sequence[Sequence[Buffer | None] | None] | None, count: int
) -> tuple[list[Any], Sequence[Sequence[Buffer | None] | None], Iterable[Any]]:
    """One array of slots per list of outputs; the lists the caller supplied; and an iterator that, run to its end, releases
    what C put into the slots that were empty. A pack's own array serves, as C writes to empty slots alone. Where all of them are
    packs a function takes their arrays itself, and has nothing to release."""
    places: list[Any] = []
    if out is None:
        out = (None,) * len(names)
    elif not isinstance(out, (tuple, list)) or len(out) != len(names):
        got = convert.type_name(out) if not isinstance(out, (tuple, list)) else f"{len(out)} entries"
        expected = f"{len(names)} lists of buffers, for {', '.join(names)}"
        error = ArgumentError if isinstance(out, (tuple, list)) else ArgumentTypeError
        raise errors.refusal(error, op, "out", got, expected)
    empty: list[tuple[Any, int]] = []
    for name, xs in zip(names, out, strict=True):
        if xs is None:
            array = _new(_LIST, count)
            empty += [(array, i) for i in range(count)]
        elif type(xs) is Pack:
            array = xs._handles
        elif not convert.is_list(xs) or not hasattr(xs, "__len__"):
            got = convert.type_name(xs)
            raise errors.refusal(ArgumentTypeError, op, "out", f"{got} for {name}", "a sequence of buffers")
        else:
            for i, x in enumerate(xs):
                if x is not None and not isinstance(x, Buffer):
                    got = convert.type_name(x)
                    raise errors.refusal(ArgumentTypeError, op, "out", f"{got} for {name}[{i}]", "Buffer or None")
            array = _new(_LIST, [NULL if x is None else x._handle for x in xs])
            empty += [(array, i) for i, x in enumerate(xs) if x is None]
        if xs is not None and len(xs) != count:
            raise errors.refusal(ShapeError, op, "out", f"{len(xs)} buffers for {name}", count)
        places.append(array)
    return places, list(out), map(release, itertools.starmap(operator.getitem, empty))


def list_results(
    places: Sequence[Any], given: Sequence[Sequence[Buffer | None] | None], device: Device
) -> tuple[list[Buffer], ...]:
    """The lists of outputs of a call that succeeded: the caller's buffers, and new ones in the places he left empty."""
    results = []
    for array, xs in zip(places, given, strict=True):
        if type(xs) is Pack:
            results.append(list(xs))
        elif xs is None:
            results.append([Buffer(own(handle, release), device) for handle in array])
        else:
            results.append([Buffer(own(array[i], release), device) if x is None else x for i, x in enumerate(xs)])
    return tuple(results)


#: the exceptions for an integer below 0 and for one that has too many bits, by what the integer is
_RANGE: dict[str, tuple[type[TorchleanError], type[TorchleanError]]] = {
    "dimension": (ShapeError, SizeOverflowError),
    "parameter": (ArgumentError, ArgumentError),
    "wide": (ArgumentError, ArgumentError),  # of 64 bits
    "index": (errors.IndexOutOfRangeError, errors.IndexOutOfRangeError),
}


def refusal(
    function: Callable[..., Any], error: Exception, values: Mapping[str, Any], roles: Mapping[str, str] | None = None
) -> Exception:
    """The exception for a call whose arguments did not reach C: finds the argument to blame by the annotations. `roles`
    says which integers are a "parameter" (a "wide" one of 64 bits) or an "index"; the others are dimensions."""
    op = function.__name__
    for name, kind in function.__annotations__.items():
        role = (roles or {}).get(name, "dimension")
        if name in values and (found := _check_argument(op, name, kind, values[name], role)) is not None:
            return found
    if isinstance(error, TorchleanError):
        return error
    return errors.refusal(errors.InternalError, op, "", f"{type(error).__name__}: {error}", "every argument to convert")


def _check_argument(op: str, name: str, kind: str, value: Any, role: str) -> Exception | None:
    got = convert.type_name(value)
    if kind.startswith("IndexBuffer"):
        if isinstance(value, IndexBuffer) or (value is None and kind != "IndexBuffer"):
            return None
        hint = "" if isinstance(value, Buffer) else " (Device.indices(array) makes one)"
        return errors.refusal(ArgumentTypeError, op, name, got, f"IndexBuffer{hint}")
    if kind in ("Buffer", "Buffer | None"):
        if isinstance(value, Buffer):
            if not isinstance(getattr(value, "_handle", None), _library.ffi.CData):
                got, expected = "a Buffer that no device made", "one of Buffer.from_numpy or zeros"
                return errors.refusal(ArgumentTypeError, op, name, got, expected)
            return None
        if value is None and kind != "Buffer":
            return None
        hint = " (Buffer.from_numpy(array, device) makes one)" if hasattr(value, "__array__") else ""
        return errors.refusal(ArgumentTypeError, op, name, got, f"{kind.replace(' | ', ' or ')}{hint}")
    if kind == "Sequence[Buffer]":
        if not convert.is_list(value) or not hasattr(value, "__len__"):
            return errors.refusal(ArgumentTypeError, op, name, got, "a sequence of Buffers")
        blamed = (_check_argument(op, f"{name}[{i}]", "Buffer", x, role) for i, x in enumerate(value))
        return next((found for found in blamed if found is not None), None)
    if kind.startswith("Device") and not isinstance(value, Device) and (value is not None or kind == "Device"):
        return errors.refusal(ArgumentTypeError, op, name, got, "Device (tlrt.device('cpu') gives one)")
    if kind == "int":
        return _check_integer(op, name, value, role)
    if kind == "Sequence[int]":
        try:
            items = list(value) if convert.is_list(value) else None
        except TypeError:
            items = None
        if items is None:
            return errors.refusal(ArgumentTypeError, op, name, got, "a sequence of integers")
        for i, item in enumerate(items):
            if (found := _check_integer(op, f"{name}[{i}]", item, role)) is not None:
                return found
    if kind == "float":
        try:
            if isinstance(value, (str, bytes)):
                raise TypeError
            float(value)
        except (TypeError, ValueError, OverflowError):
            return errors.refusal(ArgumentTypeError, op, name, got, "a number")
    return None


def _check_integer(op: str, name: str, value: Any, role: str) -> Exception | None:
    try:
        number = operator.index(value)
    except TypeError:
        return errors.refusal(ArgumentTypeError, op, name, convert.type_name(value), "an integer")
    negative, large = _RANGE[role]
    bits = 64 if role == "wide" else 32
    if number < 0:
        return errors.refusal(negative, op, name, number, "0 or more")
    if number >= 2**bits:
        return errors.refusal(large, op, name, number, f"below 2**{bits}")
    return None
