"""Bits that follow from what is documented of the kernels, where the derived bounds would let others pass."""

from __future__ import annotations

import numpy as np
import pytest

from tlrt import kernels


def halves(lanes: np.ndarray) -> np.float32:
    """The row tree's fold: the upper half onto the lower, until one is left."""
    while lanes.size > 1:
        lanes = lanes[: lanes.size // 2] + lanes[lanes.size // 2 :]
    return lanes[0]


@pytest.mark.parametrize("n", [2, 7, 16, 61, 513, 1024])
def test_a_short_row_is_folded_in_halves(dev, n):
    """One element per lane, so nothing but the fold decides the order (native/src/formula/sum_tree.h)."""
    for seed in range(50):
        rng = np.random.default_rng(seed)
        x = (rng.standard_normal(n) * 2.0 ** rng.integers(-12, 12, n)).astype(np.float32)
        lanes = np.zeros(max(16, 1 << (n - 1).bit_length()), np.float32)
        lanes[:n] = x
        got = kernels.reduce_sum(dev.buffer(x), n).numpy()[0]
        assert got.tobytes() == halves(lanes).tobytes()


@pytest.mark.parametrize("cols", [3, 17, 256])
def test_softmax_divides_once_and_rounds_once(dev, cols):
    """Each element is its exponential over the row's sum, correctly rounded (Markstein's correction of the product with
    the reciprocal), the sum being that of reduce_sum_axis1."""
    rows = 40
    x = np.random.default_rng(cols).standard_normal((rows, cols)).astype(np.float32)
    shifted = x - x.max(axis=1, keepdims=True)
    e = kernels.exp(dev.buffer(shifted))
    s = kernels.reduce_sum_axis1(e, rows, cols).numpy()[:, None]
    got = kernels.softmax(dev.buffer(x), rows, cols).numpy().reshape(rows, cols)
    assert got.tobytes() == (e.numpy().reshape(rows, cols) / s).tobytes()


def test_kernels_give_their_scratch_back(dev):
    n = 40_000  # three leaves, so that a sum needs scratch
    a, b = dev.zeros(n), dev.zeros(n)
    before = dev.memory().live_bytes
    for _ in range(3):
        kernels.mse_loss(a, b, n).release()
        kernels.reduce_sum(a, n).release()
        kernels.cross_entropy(a, np.zeros(n // 2, np.uint32), 2).release()
    assert dev.memory().live_bytes == before


def test_the_cap_counts_what_is_cached(dev):
    limit = 1 << 20
    dev.collect()
    dev.cap(dev.memory().live_bytes + limit)
    dev.zeros(200_000).release()  # 800 kB wait in the cache, of another size class than what follows
    kept = dev.zeros(100_000)
    memory = dev.memory()
    dev.cap(0)
    assert memory.live_bytes + memory.cached_bytes <= limit
    kept.release()


@pytest.mark.parametrize("cols", [3, 600, 20_000])
def test_softmax_is_shifted(dev, cols):
    """Elements beyond the exponential's range, 88, in rows of every length."""
    x = np.zeros((2, cols), np.float32)
    x[0, :2], x[1, -1] = [1000, 999], -1000
    y = kernels.softmax(dev.buffer(x), 2, cols).numpy().reshape(2, cols)
    assert y[0, 0] > 0.73 and np.isfinite(y).all() and y[0, 2:].max(initial=0) == 0 and y[1, -1] == 0
