"""Tensors as buffers: their memory is shared, and work goes to PyTorch's current stream with memory from its allocator."""

from __future__ import annotations

import ctypes
import threading
from collections.abc import Collection
from typing import Any

import torch

from tlrt._binding import handles
from tlrt._binding.library import complete_call, failure, load
from tlrt.buffer import Buffer
from tlrt.errors import ArgumentTypeError, refusal
from tlrt.torch import shim

#: bytes that the address of shared memory is a multiple of
ALIGNMENT = 16
#: the devices of a thread: between another thread's choice of a stream and its work no call may come
_local = threading.local()
#: types of integers that uint32 holds
_SMALL = (torch.bool, torch.uint8, torch.uint16, torch.uint32)


def device_of(tensor: Any, math: str) -> handles.Device:
    """The calling thread's device whose memory a tensor shares, one for each of PyTorch's devices and each mode."""
    where = tensor.device
    name = "cpu" if where.type == "cpu" else f"cuda:{where.index or 0}"
    if where.type not in ("cpu", "cuda"):
        raise refusal(ArgumentTypeError, "tlrt.torch", "tensor", f"one on {where}", "one on the CPU or a CUDA device")
    devices: dict[Any, handles.Device] = _local.__dict__
    found = devices.get((name, math))
    if found is None or found.closed:
        found = devices[name, math] = handles.device(name, math=math, new=True)
    if found.is_cuda:
        _adopt(found, torch.cuda.current_stream(where).cuda_stream)
    return found


def _adopt(device: handles.Device, stream: int) -> None:
    library, functions = load(), shim.load()
    allocate, release = (
        library.ffi.cast(kind, ctypes.cast(function, ctypes.c_void_p).value)
        for kind, function in (
            ("void *(*)(void *, uint64_t)", functions.tlrt_torch_allocate),
            ("void (*)(void *, void *)", functions.tlrt_torch_release),
        )
    )
    status = complete_call(
        library.lib.torchlean_cuda_context_adopt, device._handle, stream, allocate, release, library.ffi.NULL
    )
    if status:
        raise failure(status, "tlrt.torch")


def plain(tensor: Any) -> Any:
    """The tensor, or a copy of it where it is not row-major or not aligned."""
    tensor = tensor.detach().resolve_neg()  # the memory of such a tensor has the other sign
    if not tensor.is_contiguous():
        return tensor.contiguous()
    return tensor.clone() if tensor.data_ptr() % ALIGNMENT else tensor


def plain_indices(tensor: Any) -> Any:
    """A copy in uint32 of a tensor of integers. One that 32 bits do not hold becomes 2^32 - 1, which is out of range of every
    array."""
    tensor = tensor.detach()
    if tensor.dtype not in _SMALL:
        wide = tensor.to(torch.int64)  # of uint64 those from 2^63 on are negative
        tensor = torch.where((wide < 0) | (wide >= 2**32), 2**32 - 1, wide)
    return tensor.to(torch.uint32).contiguous()


def borrow(tensor: Any, device: handles.Device) -> Any:
    """A buffer, of uint32 an index buffer, over the memory of a tensor that :func:`plain` or :func:`plain_indices` gave, which
    the caller keeps until it is released."""
    library = load()
    is_index = tensor.dtype == torch.uint32
    slot = handles.new(library.ffi.typeof("torchlean_buffer **"))
    address = library.ffi.cast("void *", tensor.data_ptr())
    status = complete_call(
        library.lib.torchlean_cuda_buffer_wrap, device._handle, address, tensor.numel(), int(is_index), slot
    )
    if status:
        raise failure(status, "tlrt.torch")
    kind = handles.IndexBuffer if is_index else Buffer
    return kind(handles.own(slot[0], library.lib.torchlean_cuda_buffer_release), device)


def tensor_of(buffer: Buffer, shape: Any, lent: Collection[int]) -> Any:
    """A tensor over a buffer's memory, or a copy where that is memory of the caller's, at one of these addresses; whoever uses it
    waits for the buffer."""
    found = torch.from_dlpack(buffer).view(list(shape))
    return found.clone() if found.data_ptr() in lent else found
