"""Tensors as buffers: their memory is shared by DLPack, and work is put in order with PyTorch's stream."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch.utils.dlpack import to_dlpack

from tlrt._binding import capsules, handles
from tlrt._binding.exchange import borrow_tensor
from tlrt.buffer import Buffer
from tlrt.errors import ArgumentTypeError, refusal

#: bytes that the address of borrowed memory is a multiple of
ALIGNMENT = 16
_devices: dict[tuple[str, str], handles.Device] = {}
_lock = threading.Lock()


def device_of(tensor: Any, math: str) -> handles.Device:
    """The device of this package's own whose memory a tensor shares: one for each of PyTorch's devices and each mode."""
    where = tensor.device
    name = "cpu" if where.type == "cpu" else f"cuda:{where.index or 0}"
    if where.type not in ("cpu", "cuda"):
        raise refusal(ArgumentTypeError, "tlrt.torch", "tensor", f"one on {where}", "one on the CPU or a CUDA device")
    found = _devices.get((name, math))
    if found is None or found.closed:
        with _lock:
            found = _devices[name, math] = handles.device(name, math=math, new=True)
    return found


@contextmanager
def in_order(device: handles.Device) -> Iterator[None]:
    """The device's work waits for what PyTorch's current stream has been given, and that stream then for this work."""
    if not device.is_cuda:
        yield
        return
    stream = torch.cuda.current_stream(int(device.name.partition(":")[2])).cuda_stream or 1
    device.order_after(stream)
    try:
        yield
    finally:
        device.order_before(stream)


def plain(tensor: Any) -> Any:
    """The tensor, or a copy of it where it is not row-major or not aligned. PyTorch's stream makes the copy: call it before
    :func:`in_order`."""
    tensor = tensor.detach()
    if not tensor.is_contiguous():
        return tensor.contiguous()
    return tensor.clone() if tensor.data_ptr() % ALIGNMENT else tensor


def plain_indices(tensor: Any) -> Any:
    """A copy in uint32 of a tensor of integers from 0 to 2^32 - 1, which PyTorch's stream makes: see :func:`plain`."""
    return tensor.detach().to(torch.uint32).contiguous()


def borrow(tensor: Any, device: handles.Device) -> Any:
    """A buffer, of uint32 an index buffer, over the memory of a tensor that :func:`plain` or :func:`plain_indices` gave. It is
    not put in order with PyTorch's stream: see :func:`in_order`."""
    capsule = to_dlpack(tensor)  # which puts nothing in order
    address, versioned, unsigned = capsules.open_capsule(capsule)
    return borrow_tensor(address, versioned, unsigned, device, lambda: capsules.empty_capsule(capsule, versioned))


def tensor_of(buffer: Buffer, shape: Any) -> Any:
    """A tensor over a buffer's memory; whoever uses it waits for the buffer."""
    return torch.from_dlpack(buffer).view(list(shape))
