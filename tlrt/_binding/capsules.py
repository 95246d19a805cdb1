"""DLPack's capsules: Python objects around the tensors by which libraries lend each other memory."""

from __future__ import annotations

import ctypes
from typing import Any

from tlrt._binding.library import complete_call, failure, load
from tlrt.errors import ArgumentError, refusal

#: DLPack's numbers
CPU, CUDA, CUDA_HOST = 1, 2, 3
#: names of capsules by whether the tensor has a version: full, and emptied
_NAMES = {False: (b"dltensor", b"used_dltensor"), True: (b"dltensor_versioned", b"used_dltensor_versioned")}
#: where fields lie: of DLManagedTensor, and of DLManagedTensorVersioned
_TYPE_CODE, _DELETER, _FLAGS = {False: 20, True: 52}, {False: 56, True: 16}, 24
_UINT, _IS_COPIED = 1, 2

_python = ctypes.PyDLL(None)  # of our own, as argument types are set
for _name, _result, *_arguments in (
    ("New", ctypes.py_object, ctypes.c_void_p, ctypes.c_char_p, ctypes.c_void_p),
    ("IsValid", ctypes.c_int, ctypes.c_void_p, ctypes.c_char_p),
    ("GetPointer", ctypes.c_void_p, ctypes.c_void_p, ctypes.c_char_p),
    ("SetName", ctypes.c_int, ctypes.py_object, ctypes.c_char_p),
):
    _function = getattr(_python, f"PyCapsule_{_name}")
    _function.restype, _function.argtypes = _result, _arguments


def _end(capsule: int) -> None:
    """Deletes the tensor of a capsule that nobody has emptied."""
    for versioned, (full, _) in _NAMES.items():
        if _python.PyCapsule_IsValid(capsule, full):
            _delete(_python.PyCapsule_GetPointer(capsule, full), versioned)


def _delete(tensor: int, versioned: bool) -> None:
    if deleter := ctypes.c_void_p.from_address(tensor + _DELETER[versioned]).value:
        ctypes.CFUNCTYPE(None, ctypes.c_void_p)(deleter)(tensor)


#: kept for ever: capsules hold its address
_END = ctypes.CFUNCTYPE(None, ctypes.c_void_p)(_end)


def device_of(device: Any) -> tuple[int, int]:
    """DLPack's kind and number of a device."""
    return (CUDA, device._ordinal) if device.is_cuda else (CPU, 0)


def lend(
    buffer: Any, stream: Any, max_version: tuple[int, int] | None,
    dl_device: tuple[int, int] | None, copy: bool | None,
) -> Any:  # fmt: skip
    """A capsule over a buffer's storage, or with `copy` over a copy's."""
    device, op = buffer.device, "__dlpack__"
    here = device_of(device)
    if dl_device is not None and tuple(map(int, dl_device)) != here:
        raise refusal(BufferError, op, "dl_device", tuple(dl_device), f"{here}, where the buffer is")
    for observer in device._observers:
        observer.before_host_access(device, op)
    if device.is_cuda and stream != -1:
        if stream is not None and (
            isinstance(stream, bool) or not hasattr(stream, "__index__") or stream == 0 or stream < -1
        ):
            raise refusal(BufferError, op, "stream", stream, "None, -1, 1, 2 or a CUDA stream's number")
        device.order_before(1 if stream is None else stream)
    elif not device.is_cuda and stream not in (None, -1):
        raise refusal(BufferError, op, "stream", stream, "None, as the buffer is on the CPU")
    versioned = max_version is not None and max_version[0] >= 1
    tensor = _tensor(buffer.copy() if copy else buffer, versioned, op)
    if copy and versioned:
        ctypes.c_uint64.from_address(tensor + _FLAGS).value |= _IS_COPIED
    return _python.PyCapsule_New(tensor, _NAMES[versioned][0], ctypes.cast(_END, ctypes.c_void_p))


def _tensor(buffer: Any, versioned: bool, op: str) -> int:
    """The address of a new tensor over a buffer's storage."""
    library = load()
    slot, shape = library.ffi.new("void **"), library.ffi.new("uint32_t[]", [buffer.length])
    if status := complete_call(library.lib.torchlean_cuda_buffer_lend, buffer._handle, shape, 1, int(versioned), slot):
        raise failure(status, op)
    return int(library.ffi.cast("uintptr_t", slot[0]))


def lent_tensor(buffer: Any, op: str) -> tuple[int, int]:
    """The address of a new tensor without a version over a buffer's storage, for who borrows or deletes it, and of its data."""
    tensor = _tensor(buffer, False, op)
    return tensor, ctypes.c_void_p.from_address(tensor).value or 0


def delete_tensor(tensor: int) -> None:
    """Gives back what :func:`lent_tensor` gave."""
    _delete(tensor, False)


def data_address(buffer: Any, op: str) -> int:
    """Where a buffer's elements lie: an address of the host, or of the GPU."""
    tensor, address = lent_tensor(buffer, op)
    delete_tensor(tensor)
    return address


def cuda_array_interface(buffer: Any) -> dict[str, Any]:
    """The buffer's memory by CUDA's array interface, version 3. Raises AttributeError on the CPU."""
    device = buffer.device
    if not device.is_cuda:
        raise AttributeError("__cuda_array_interface__: the buffer is on the CPU")
    data = data_address(buffer, "__cuda_array_interface__")
    kind = "<u4" if buffer._element[1].startswith("uint32") else "<f4"
    return {"version": 3, "shape": (buffer.length,), "typestr": kind, "data": (data, False), "strides": None,
            "stream": device.stream}  # fmt: skip


def open_capsule(capsule: Any) -> tuple[int, bool, bool]:
    """The address of a capsule's tensor, whether it has a version, and whether its elements are unsigned integers."""
    versioned = bool(_python.PyCapsule_IsValid(id(capsule), _NAMES[True][0]))
    full, _ = _NAMES[versioned]
    if not _python.PyCapsule_IsValid(id(capsule), full):
        raise refusal(ArgumentError, "from_dlpack", "array", "a capsule that was used before", "a new one")
    address = int(_python.PyCapsule_GetPointer(id(capsule), full))
    return address, versioned, ctypes.c_uint8.from_address(address + _TYPE_CODE[versioned]).value == _UINT


def empty_capsule(capsule: Any, versioned: bool) -> None:
    """Its tensor is somebody else's from here on."""
    _python.PyCapsule_SetName(capsule, _NAMES[versioned][1])
