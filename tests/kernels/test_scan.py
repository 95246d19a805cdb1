"""Scans where float32 underflows or overflows within a chunk."""

import numpy as np
import pytest

from tlrt import kernels
from tlrt.verify.run import Runtime
from tlspec import registry

pytestmark = pytest.mark.operations("selective_scan_diag", "selective_scan_diag_var")

TINY = 2.0**-149


@pytest.mark.parametrize(("h0", "expected"), [(0.42, np.nan), (1.0, -np.inf)])
def test_infinity_times_what_float32_made_of_tiny_terms(runtime: Runtime, h0: float, expected: float) -> None:
    """With h0 = 0.42 both terms of the first step round to 0, though their float64 sum would not; with 1 one of them stays."""
    A, B, x = ([[-TINY], [np.inf]], [[-0.272], [0.0]], [[TINY], [0.0]])
    arrays = [np.array(v, np.float32) for v in (A, B, x, [h0])]
    with np.errstate(invalid="ignore"):
        spec = registry.get("selective_scan_diag_var").reference(*(v.astype(np.float64) for v in arrays))
    buffers = [runtime.device.buffer(v) for v in arrays]
    with kernels.selective_scan_diag_var(*buffers, 2, 1) as out:
        np.testing.assert_array_equal(out.numpy()[1], np.float32(expected))
    np.testing.assert_array_equal(spec[1], [expected])
    for b in buffers:
        b.release()


#: native/src/formula/sum_tree.h: steps of a chunk
CHUNK = 128


@pytest.mark.parametrize("chunks", [3, 20])  # scanned chunk after chunk, and chunks at the same time
@pytest.mark.parametrize("constant", [True, False])
def test_a_chunk_whose_product_overflows_passes_its_state_on(dev, chunks, constant):
    """h = 2 h + b doubles; the product over a chunk is 2^128, beyond float32, while every h is a power of two below."""
    steps, state = chunks * CHUNK + 5, 3
    start = steps - 126
    impulse, powers = np.zeros((2, steps, state), np.float32)
    impulse[start] = 1
    powers[start:] = (2.0 ** np.arange(126))[:, None]
    shape = (state,) if constant else (steps, state)
    A, B = dev.buffer(np.full(shape, 2, np.float32)), dev.buffer(np.ones(shape, np.float32))
    x, h0 = dev.buffer(impulse), dev.zeros(state)
    scan = kernels.selective_scan_diag if constant else kernels.selective_scan_diag_var
    scan_bwd = kernels.selective_scan_diag_bwd if constant else kernels.selective_scan_diag_var_bwd
    y = scan(A, B, x, h0, steps, state)
    assert np.array_equal(y.numpy().reshape(steps, state), powers)
    g = dev.buffer(impulse[::-1].copy())
    _, _, gx, gh0 = scan_bwd(A, B, x, h0, y, g, steps, state, want=(False, False, True, True))
    assert np.array_equal(gx.numpy().reshape(steps, state), powers[::-1])
    assert np.array_equal(gh0.numpy(), np.full(state, 2.0**126, np.float32))
