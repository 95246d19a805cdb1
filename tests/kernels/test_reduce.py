"""Reductions: the order of additions that the documents give, where the derived bounds would let another order pass."""

import numpy as np
import pytest

import tlrt
from tlrt import kernels

pytestmark = pytest.mark.operations("reduce_sum")


def fold_in_halves(lanes: np.ndarray) -> np.float32:
    """The row tree's fold: the upper half onto the lower, until one is left."""
    while lanes.size > 1:
        lanes = lanes[: lanes.size // 2] + lanes[lanes.size // 2 :]
    return lanes[0]


@pytest.mark.parametrize("n", [2, 7, 16, 61, 513, 1024])
def test_a_short_row_is_folded_in_fold_in_halves(dev, n):
    """One element per lane, so nothing but the fold decides the order (native/src/formula/sum_tree.h)."""
    for seed in range(50):
        rng = np.random.default_rng(seed)
        x = (rng.standard_normal(n) * 2.0 ** rng.integers(-12, 12, n)).astype(np.float32)
        lanes = np.zeros(max(16, 1 << (n - 1).bit_length()), np.float32)
        lanes[:n] = x
        got = kernels.reduce_sum(dev.buffer(x), n).numpy()[0]
        assert got.tobytes() == fold_in_halves(lanes).tobytes()


@pytest.mark.parametrize("dims", [(2, 3, 0), (0, 3, 2), (2, 3, 0, 5, 4), (0, 0, 3, 7)])
def test_reductions_over_several_axes_of_which_one_is_empty(dev, dims):
    axes = sum(1 << k for k in range(0, len(dims), 2))  # every second axis is kept
    x, kept = dev.buffer(np.empty(0)), int(np.prod(dims[1::2]))
    found = {
        "prod": (kernels.prod(x, dims, axes), 1.0),
        "norm": (kernels.vector_norm(x, dims, axes, 3.0), 0.0),
        "variance": (kernels.var(x, dims, axes, 1.0, 0), np.nan),
        "logsumexp": (kernels.logsumexp(x, dims, axes), -np.inf),
    }
    for name, (buffer, value) in found.items():
        np.testing.assert_array_equal(buffer.numpy(), np.full(kept, value, np.float32), name)


@pytest.mark.operations("vector_norm")
@pytest.mark.parametrize(("dims", "axes"), [((40, 100), 2), ((7, 4100, 10), 2), ((3, 33_000), 2), ((400, 50), 1)])
def test_norms_halfway_between_two_floats_are_those_of_the_definition(dev, dims, axes):
    """A sum of powers does not decide them: 27 elements c of an odd number of units have the norm 3 c, which lies halfway."""
    rng, axis = np.random.default_rng(0), axes.bit_length() - 1
    x = rng.standard_normal(dims).astype(np.float32)
    columns = np.moveaxis(x, axis, -1)
    columns[..., ::2, :] = 0.0
    columns[..., ::2, -27:] = 2.0**23 + 1
    with tlrt.Device.new("cpu") as cpu:
        expected = kernels.vector_norm(cpu.buffer(x), dims, axes, 3.0).numpy()
    assert kernels.vector_norm(dev.buffer(x), dims, axes, 3.0).numpy().tobytes() == expected.tobytes()
