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
from tlrt.buffer import Buffer, IndexBuffer
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


def borrow(tensor: Any, device: handles.Device) -> Buffer:
    """A buffer over a tensor's memory, or over that of a copy where the tensor is not row-major or not aligned. It is not put in
    order with PyTorch's stream: see :func:`in_order`."""
    plain = tensor.detach()
    if not plain.is_contiguous() or plain.data_ptr() % ALIGNMENT:
        plain = plain.contiguous() if not plain.is_contiguous() else plain.clone()
    return _borrow(plain, device)


def _borrow(plain: Any, device: handles.Device) -> Buffer:
    capsule = to_dlpack(plain)  # which puts nothing in order
    address, versioned, unsigned = capsules.open_capsule(capsule)
    return borrow_tensor(address, versioned, unsigned, device, lambda: capsules.empty_capsule(capsule, versioned))


def borrow_indices(tensor: Any, device: handles.Device) -> IndexBuffer:
    """An index buffer of a tensor of integers from 0 to 2^32 - 1, which are copied once."""
    return _borrow(tensor.detach().to(torch.uint32).contiguous(), device)  # type: ignore[return-value]


def tensor_of(buffer: Buffer, shape: Any) -> Any:
    """A tensor over a buffer's memory; whoever uses it waits for the buffer."""
    return torch.from_dlpack(buffer).view(list(shape))
