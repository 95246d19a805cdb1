"""Normalisations of many rows."""

import numpy as np
import pytest

from tlrt import kernels
from tlspec.bounds import COLUMN_CHUNK


@pytest.mark.operations("layer_norm")
@pytest.mark.parametrize("cols", [3, 40, 100])
def test_column_sums_of_many_chunks(dev, cols):
    """Each worker sums several chunks of rows. The sums of whole numbers are exact."""
    rows = 24 * COLUMN_CHUNK + 5
    rng = np.random.default_rng(cols)
    x, g = rng.standard_normal((rows, cols)), rng.integers(-8, 9, (rows, cols))
    given = dev.buffer(x), dev.buffer(np.ones(cols)), dev.buffer(g)
    for _ in range(2):  # the second time in memory that the first has used
        _, _, gbeta = kernels.layer_norm_bwd(*given, rows, cols)
        assert np.array_equal(gbeta.numpy(), g.sum(axis=0))
