"""Attention at the edges of its masks."""

import numpy as np
import pytest

from tlrt import kernels

pytestmark = pytest.mark.operations("flash_attention")


@pytest.mark.parametrize("n", [4, 128])  # a part of a tile and two tiles; means over n round nothing
@pytest.mark.parametrize("mode", [0, 1, 2, 3])
def test_scores_of_minus_infinity_are_not_blocked(dev, mode, n):
    """A row whose scores are all -inf is NaN; it is zeros only where the mask blocks all of it."""
    q, k, mask = np.full((n, 1), 1e30, np.float32), np.full((n, 1), -1e30, np.float32), np.ones((n, n), np.float32)
    v = np.arange(1, n + 1, dtype=np.float32)
    mask[1] = 0
    q, v, mask = dev.buffer(q), dev.buffer(v), dev.buffer(mask)
    expected = np.full(n, np.nan, np.float32)
    expected[1] = {1: (n + 1) / 2, 2: 0}.get(mode, np.nan)
    y = kernels.flash_attention(q, dev.buffer(k), v, 1, n, 1, mode, 1.0, mask=mask)
    assert np.array_equal(y.numpy(), expected, equal_nan=True)
    k[0] = 0  # a score that is finite takes all the weight
    expected[np.isnan(expected)] = 1
    y = kernels.flash_attention(q, dev.buffer(k), v, 1, n, 1, mode, 1.0, mask=mask)
    assert np.array_equal(y.numpy(), expected)
