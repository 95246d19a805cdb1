"""Pooling windows at the edges of the tasks that the CPU path divides its work into."""

import numpy as np
import pytest

from tests.runtime.test_process import threads
from tlrt import kernels

pytestmark = pytest.mark.operations("max_pool")


def test_a_window_across_two_tasks_gives_its_gradient_once(dev):
    """Cells grow, so that the last of a window wins: one window a cell, many of them in the rows of the next task."""
    rows, cols = 4096, 512  # 32 tasks of 65,536 cells
    x = dev.buffer(np.arange(rows * cols, dtype=np.float32))
    g = np.random.default_rng(0).standard_normal((rows - 4, cols - 4)).astype(np.float32)
    expected = np.zeros((rows, cols), np.float32)
    expected[4:, 4:] = g
    given = dev.buffer(g)
    with threads(4):
        for _ in range(6):
            gx = kernels.max_pool_bwd(x, given, 1, (rows, cols), (5, 5), (1, 1), (0, 0)).numpy()
            assert np.array_equal(gx.reshape(rows, cols), expected)
