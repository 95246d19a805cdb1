"""XLA's calls of foreign functions: the frames in which it passes buffers, and the handler that runs rows on them.

The structures are those of XLA's C interface for foreign functions (xla/ffi/api/c_api.h, version 0.x), as far as they are
read here. XLA calls the handler from threads of its own; it takes Python's lock, starts the work and returns. On a GPU the
work is put in order with XLA's stream, and the host does not wait for it.
"""

from __future__ import annotations

import itertools
import json
from functools import lru_cache
from typing import Any

import cffi

from tlrt import _foreign, kernels
from tlrt._binding import capsules, handles
from tlrt._binding.exchange import borrow_tensor
from tlrt.buffer import Buffer
from tlspec import registry

_ffi = cffi.FFI()
_ffi.cdef("""
typedef struct { size_t bytes; void *extensions; int major, minor; } version;
typedef struct { size_t bytes; version api; uint32_t traits; int64_t state; } metadata;
typedef struct extension { size_t bytes; int kind; struct extension *next; metadata *of; } extension;
typedef struct { size_t bytes; void *extensions; const char *message; int code; } error_arguments;
typedef struct { size_t bytes; void *extensions; void *context; void *stream; } stream_arguments;
typedef struct { size_t bytes; void *extensions; void *context; int32_t ordinal; } ordinal_arguments;
typedef struct {
    size_t bytes; void *extensions; version api; void *internal;
    void *(*create_error)(error_arguments *); void *between[3];
    void *(*get_stream)(stream_arguments *); void *further[12];
    void *(*get_ordinal)(ordinal_arguments *);
} interface;
typedef struct { size_t bytes; void *extensions; int type; void *data; int64_t rank; int64_t *lengths; } array;
typedef struct { size_t bytes; void *extensions; int64_t count; int *kinds; void **items; } arrays;
typedef struct { const char *text; size_t bytes; } span;
typedef struct { size_t bytes; void *extensions; int64_t count; int *kinds; span **names; void **items; } attributes;
typedef struct {
    size_t bytes; extension *extensions; interface *api; void *context; int stage;
    arrays inputs, outputs; attributes attributes; void *future;
} frame;
typedef struct tensor {
    void *data; int32_t device, ordinal, rank; uint8_t code, bits; uint16_t lanes; int64_t *shape, *strides; uint64_t offset;
    void *context; void (*deleter)(struct tensor *);
} tensor;
""")
#: XLA's numbers of element types, with DLPack's code of each
_CODES = {11: 2, 8: 1}  # float32, unsigned integers of 32 bits
_METADATA, _INVALID_ARGUMENT = 1, 3
#: tensors that are lent to the library: number -> what must live as long
_lent: dict[int, Any] = {}
_numbers = itertools.count(1)


def _delete(lent: Any) -> None:
    _lent.pop(int(_ffi.cast("uintptr_t", lent.context)), None)


_DELETE = _ffi.callback("void(tensor *)", _delete)


def _borrow(given: Any, device: handles.Device) -> Buffer:
    """A buffer over an array of a frame."""
    shape = _ffi.new("int64_t[]", [given.lengths[i] for i in range(given.rank)])
    kind, ordinal = capsules.device_of(device)
    code = _CODES[given.type]
    number = next(_numbers)
    lent = _ffi.new("tensor *", {
        "data": given.data, "device": kind, "ordinal": ordinal, "rank": given.rank, "code": code, "bits": 32, "lanes": 1,
        "shape": shape, "context": _ffi.cast("void *", number), "deleter": _DELETE,
    })  # fmt: skip
    _lent[number] = lent, shape
    try:
        return borrow_tensor(int(_ffi.cast("uintptr_t", lent)), False, code == 1, device)
    except BaseException:
        _lent.pop(number, None)
        raise


@lru_cache(maxsize=4096)
def _parse(specification: str) -> tuple[Any, str, dict[str, Any], list[str], list[bool], str]:
    name, which, values, present, want, math = json.loads(specification)
    return registry.get(name), which, values, present, want, math


@lru_cache
def _device(name: str, math: str) -> handles.Device:
    return handles.device(name, math=math, new=True)


def _run(frame: Any, name: str, stream: int | None) -> None:
    span = _ffi.cast("span *", frame.attributes.items[0])
    row, which, values, present, want, math = _parse(_ffi.buffer(span.text, span.bytes)[:].decode())
    inputs = [_ffi.cast("array *", frame.inputs.items[i]) for i in range(frame.inputs.count)]
    outputs = [_ffi.cast("array *", frame.outputs.items[i]) for i in range(frame.outputs.count)]
    signature = row.signature_of(which)
    shapes = {n: tuple(a.lengths[i] for i in range(a.rank)) for n, a in zip(present, inputs, strict=True)}
    known = _foreign.dimensions(row.name, signature, shapes, values)
    device = _device(name, math)
    if stream is not None:
        device.order_after(stream)
    made: list[Buffer] = []
    try:
        buffers = {n: _borrow(a, device) for n, a in zip(present, inputs, strict=True)}
        made += buffers.values()
        outs: list[Buffer | None] = [_borrow(a, device) if w else None for a, w in zip(outputs, want, strict=True)]
        made += [o for o in outs if o is not None]
        if _foreign.is_composed(row, which):
            for gradient, out in zip(_foreign.compose(row, buffers, known), outs, strict=True):
                if out is not None:
                    kernels.slice1d(gradient, len(out), 0, len(out), out=out)
        else:
            _foreign.run(row, which, buffers, known, outs)
    finally:
        for buffer in made:
            buffer.release()
        if stream is not None:
            device.order_before(stream)


def _answer(frame: Any) -> bool:
    """Whether XLA queries the handler's version, which is that of XLA's own interface, in place of a call."""
    extension = frame.extensions
    if extension == _ffi.NULL or extension.kind != _METADATA:
        return False
    about = extension.of
    known = frame.api != _ffi.NULL
    about.api.major, about.api.minor = (frame.api.api.major, frame.api.api.minor) if known else (0, 1)
    about.traits = 0
    return True


def _fail(frame: Any, error: BaseException) -> Any:
    message = _ffi.new("char[]", f"{type(error).__name__}: {error}".encode())
    arguments = _ffi.new("error_arguments *", {"message": message, "code": _INVALID_ARGUMENT})
    arguments.bytes = _ffi.sizeof("error_arguments")
    return frame.api.create_error(arguments)


def _on_cpu(frame: Any) -> Any:
    try:
        if not _answer(frame):
            _run(frame, "cpu", None)
    except BaseException as error:  # nothing may pass through XLA's frames
        return _fail(frame, error)
    return _ffi.NULL


def _on_cuda(frame: Any) -> Any:
    try:
        if not _answer(frame):
            stream = _ffi.new(
                "stream_arguments *", {"bytes": _ffi.sizeof("stream_arguments"), "context": frame.context}
            )
            ordinal = _ffi.new(
                "ordinal_arguments *", {"bytes": _ffi.sizeof("ordinal_arguments"), "context": frame.context}
            )
            for failed in (frame.api.get_stream(stream), frame.api.get_ordinal(ordinal)):
                if failed != _ffi.NULL:
                    return failed
            _run(frame, f"cuda:{ordinal.ordinal}", int(_ffi.cast("uintptr_t", stream.stream)))
    except BaseException as error:  # nothing may pass through XLA's frames
        return _fail(frame, error)
    return _ffi.NULL


_CALLBACKS = {name: _ffi.callback("void *(frame *)", f) for name, f in (("cpu", _on_cpu), ("CUDA", _on_cuda))}
#: XLA's platform -> the address of its handler
HANDLERS = {name: int(_ffi.cast("uintptr_t", callback)) for name, callback in _CALLBACKS.items()}
