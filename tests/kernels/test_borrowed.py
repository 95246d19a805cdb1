"""Every kernel on memory that begins at a multiple of 16 bytes and of no more, as borrowed memory may: the same bits."""

import ctypes
from typing import Any

import numpy as np
import pytest

import tlrt
from tests import DEVICES, path_seeds
from tests.kernels.test_errors import has_kernel
from tlrt import kernels
from tlrt.verify.run import Runtime
from tlspec.compare import same_bits
from tlspec.draw.cases import PATH, draw_case
from tlspec.registry import Op

#: elements before the borrowed ones, which move them by 16 bytes
SKIPPED = 4


class Shifted:
    """A buffer's memory without its first elements, for ``from_dlpack``."""

    def __init__(self, buffer: tlrt.Buffer) -> None:
        self.buffer = buffer

    def __dlpack_device__(self) -> tuple[int, int]:
        return self.buffer.__dlpack_device__()

    def __dlpack__(self, **_: Any) -> Any:
        capsule = self.buffer.__dlpack__(stream=-1, max_version=(1, 0))  # without a version it would be copied
        address = ctypes.PyDLL(None).PyCapsule_GetPointer
        address.restype, address.argtypes = ctypes.c_void_p, [ctypes.py_object, ctypes.c_char_p]
        tensor = address(capsule, b"dltensor_versioned") + 32  # behind version, manager, deleter and flags
        ctypes.c_uint64.from_address(tensor + 40).value = 4 * SKIPPED  # byte_offset
        shape = ctypes.c_void_p.from_address(tensor + 24).value
        assert shape is not None
        ctypes.c_int64.from_address(shape).value -= SKIPPED
        return capsule


def shifted(device: tlrt.Device, x: np.ndarray) -> tlrt.Buffer:
    """The array's content in a buffer whose memory begins 16 bytes after a multiple of 256."""
    flat = np.ravel(x)
    if flat.size == 0:
        return device.buffer(flat)
    return tlrt.from_dlpack(
        Shifted(device.buffer(np.concatenate([np.zeros(SKIPPED, np.float32), flat]))), device, copy=False
    )


def check(case: Any, dev: tlrt.Device) -> None:
    plain = Runtime(dev.name, upload=dev.buffer)
    moved = Runtime(dev.name, upload=lambda x: shifted(dev, x))
    plain.device = moved.device = dev
    for got, want in zip(moved.run(case, poison=True), plain.run(case, poison=True), strict=True):
        assert got is not None and want is not None
        assert same_bits(got, want).ok, case.name


@pytest.mark.only(where=has_kernel)
def test_kernels_do_not_ask_for_more_than_16_bytes(entry: tuple[Op, str], dev: tlrt.Device) -> None:
    row, which = entry
    for size in ("small", "medium"):
        for seed in range(2):
            check(draw_case(row, seed, "normal", size, which), dev)


@pytest.mark.only(where=lambda row, which: row.drawing.paths and has_kernel(row, which))
def test_nor_do_their_paths(entry: tuple[Op, str], dev: tlrt.Device) -> None:
    row, which = entry
    for seed in path_seeds(row, dev):
        check(draw_case(row, seed, "normal", PATH, which), dev)


@pytest.mark.parametrize("device", DEVICES)
def test_nor_do_those_that_write_past_the_cache(device: str) -> None:
    d = tlrt.device(device)
    x = np.random.default_rng(0).standard_normal((2048, 2080)).astype(np.float32)
    out = shifted(d, np.zeros(x.size, np.float32))
    kernels.transpose2d(shifted(d, x), *x.shape, out=out)
    assert (out.numpy(x.T.shape) == x.T).all()
    kernels.relu(shifted(d, x), out=out)
    assert (out.numpy(x.shape) == np.maximum(x, 0)).all()
