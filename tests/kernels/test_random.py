"""Random draws: the edge between what a mask keeps and what it drops."""

import numpy as np
import pytest

from tlrt import kernels

pytestmark = pytest.mark.operations("rand_uniform", "bernoulli_mask")


@pytest.mark.parametrize("key", [0, 7, 2**64 - 9])
def test_a_uniform_equal_to_keep_is_dropped(dev, key):
    u = kernels.rand_uniform(dev, 257, key).numpy()
    for i in range(0, u.size, 16):
        mask = kernels.bernoulli_mask(dev, u.size, key, float(u[i])).numpy()
        assert mask[i] == 0 and np.array_equal(mask, (u < u[i]).astype(np.float32))
