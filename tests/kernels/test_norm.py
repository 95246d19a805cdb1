"""Normalisations of many rows."""

import numpy as np
import pytest

from tlrt import kernels
from tlrt.verify.run import Runtime
from tlspec.bounds import COLUMN_CHUNK
from tlspec.compare import compare_outputs
from tlspec.draw.cases import build_case, draw_case, generator


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


@pytest.mark.only(where=lambda row, which: row.family == "norm" and "eps" in [p.name for p in row.signature.params])
def test_what_a_large_epsilon_makes_0_of(entry):
    """Small numbers, and products of small factors: an infinite factor tells them from what they are in the reals."""
    row, which = entry
    pool = np.array([2.0**-149, -(2.0**-130), 2.0**-127, 0.0, 1.0, -3.0, np.inf], np.float32)
    for seed in range(12):
        case, rng = draw_case(row, seed, "special", "small", which), generator("epsilon", row.name, seed)
        x = rng.choice(pool, case.inputs["x"].shape, p=[0.3, 0.2, 0.2, 0.1, 0.1, 0.09, 0.01])
        given, values = {**case.inputs, **case.cotangents, "x": x}, {**case.values, "eps": 1e10}
        made = build_case(row, values, given, rng, data="special", which=which)
        for found in compare_outputs(made.expected, Runtime("cpu").run(made)):
            assert found.ok, found.explain()
