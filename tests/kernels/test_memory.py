"""A kernel whose scratch does not fit says so, gives back what it has taken, and computes the same once there is room."""

from functools import partial

import numpy as np
import pytest

import tlrt
from tests import path_seeds
from tests.kernels.test_errors import has_kernel
from tests.kernels.test_far_paths import FAR
from tlrt import errors, kernels
from tlrt.verify.run import Runtime
from tlspec.compare import same_bits
from tlspec.draw.cases import PATH, Case, build_case, draw_case, generator
from tlspec.registry import Op


def grow(case: Case, dev: tlrt.Device) -> int:
    """Calls under a memory cap that leaves ever more room, until there is enough; how many calls were refused."""
    runtime = Runtime(dev.name, upload=partial(tlrt.Buffer.from_numpy, device=dev))
    runtime.device = dev
    arguments = runtime.place(case)
    dev.collect()
    made = runtime.call(case.name, arguments, case.values)
    outs = made if isinstance(made, tuple) else (made,)
    bits = [np.asarray(o) if isinstance(o, np.ndarray) else o.numpy() for o in outs]
    dev.collect()
    refused, before, room = 0, dev.memory(), 1
    while True:
        dev.cap(max(before.live_bytes, 1) + room)
        try:
            runtime.call(case.name, arguments, case.values, out=made)
            break
        except errors.OutOfMemoryError as error:
            text = str(error)
        assert text.startswith(case.name) and "cap" in text
        refused, room = refused + 1, 4 * room
        after = dev.memory()
        assert (after.live_bytes, after.live_buffers) == (before.live_bytes, before.live_buffers)
        dev.collect()
    dev.cap(0)
    for out, want in zip(outs, bits, strict=True):
        assert same_bits(out if isinstance(out, np.ndarray) else out.numpy(), want).ok
    return refused


@pytest.mark.only(where=has_kernel)
def test_scratch_that_does_not_fit(entry: tuple[Op, str], dev: tlrt.Device) -> None:
    row, which = entry
    for size, seeds in (("small", 1), ("medium", 2)):
        for seed in range(seeds):
            grow(draw_case(row, seed, "normal", size, which), dev)


@pytest.mark.only(where=lambda row, which: row.drawing.paths and has_kernel(row, which))
def test_scratch_of_a_path_does_not_fit(entry: tuple[Op, str], dev: tlrt.Device) -> None:
    row, which = entry
    for seed in path_seeds(row, dev):
        grow(draw_case(row, seed, "normal", PATH, which), dev)


@pytest.mark.only(where=lambda row, which: row.name in FAR and has_kernel(row, which))
def test_scratch_of_a_far_path_does_not_fit(entry: tuple[Op, str], dev: tlrt.Device) -> None:
    row, which = entry
    for path, values in FAR[row.name].items():
        if "cache" not in path:
            grow(build_case(row, values, {}, generator("far", path), which=which), dev)


def test_some_kernels_take_scratch(dev: tlrt.Device) -> None:
    assert grow(draw_case("conv", 1, "normal", "medium", "vjp"), dev) > 1


@pytest.mark.operations("reduce_from_broadcast")
def test_a_sum_over_nothing_takes_no_scratch(dev: tlrt.Device) -> None:
    """However many sums of no terms there are before the last axis is summed."""
    x, out = dev.buffer([]), dev.buffer([1.0, 1.0])
    dev.collect()
    dev.cap(dev.memory().live_bytes + 2**20)
    kernels.reduce_from_broadcast(x, [2], [2**24, 2, 0], [0, 1, 0], out=out)
    dev.cap(0)
    assert out.numpy().tobytes() == bytes(8)


@pytest.mark.operations("sinusoidal")
def test_what_a_kernel_keeps_is_collected(dev: tlrt.Device) -> None:
    """Of several lengths, collected or not between them; a cap then counts what there is."""
    arrays = {n: dev.zeros(n * 64) for n in (16, 1024)}
    before = dev.memory()
    for collected in (True, False, True, True):
        for n in (1024, 16, 16, 1024):
            kernels.sinusoidal(arrays[n], 1, n, 64).release()
            taken = [dev.zeros(1024 * 64) for _ in range(3)]
            assert dev.memory().cached_bytes < 1 << 24
            for buffer in taken:
                buffer.release()
            if collected:
                dev.collect()
                after = dev.memory()
                assert (after.live_bytes, after.live_buffers, after.cached_bytes) == (
                    before.live_bytes,
                    before.live_buffers,
                    0,
                )
    dev.cap(before.live_bytes + (1 << 20))
    dev.zeros(1 << 17).release()
    dev.cap(0)
