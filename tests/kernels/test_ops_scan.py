"""Scans where subnormal terms meet an infinity."""

from __future__ import annotations

import numpy as np
import pytest

from tlrt import kernels
from tlrt.verify.run import Runtime
from tlspec import registry

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
