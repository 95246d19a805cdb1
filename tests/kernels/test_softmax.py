"""Softmax: the bits that follow from its documented arithmetic, and values beyond the range of exp."""

import numpy as np
import pytest

from tlrt import kernels
from tlrt.verify.run import Runtime
from tlspec import registry
from tlspec.compare import compare_outputs
from tlspec.draw.cases import build_case, generator

pytestmark = pytest.mark.operations("softmax")


@pytest.mark.parametrize("cols", [3, 17, 256])
def test_softmax_divides_once_and_rounds_once(dev, cols):
    """Each element is its exponential over the row's sum, correctly rounded (Markstein's correction of the product with
    the reciprocal), the sum being that of reduce_sum_axis1."""
    rows = 40
    x = np.random.default_rng(cols).standard_normal((rows, cols)).astype(np.float32)
    e = kernels.exp(dev.buffer(x - x.max(axis=1, keepdims=True)))
    s = kernels.reduce_sum_axis1(e, rows, cols).numpy()[:, None]
    got = kernels.softmax(dev.buffer(x), rows, cols).numpy().reshape(rows, cols)
    assert got.tobytes() == (e.numpy().reshape(rows, cols) / s).tobytes()


@pytest.mark.parametrize("cols", [3, 600, 20_000])
def test_elements_beyond_the_range_of_exp(dev, cols):
    """Elements beyond the exponential's range, 88, in rows of every length."""
    x = np.zeros((2, cols), np.float32)
    x[0, :2], x[1, -1] = [1000, 999], -1000
    y = kernels.softmax(dev.buffer(x), 2, cols).numpy().reshape(2, cols)
    assert y[0, 0] > 0.73 and np.isfinite(y).all() and y[0, 2:].max(initial=0) == 0 and y[1, -1] == 0


@pytest.mark.operations("cross_entropy")
@pytest.mark.parametrize(
    "logits", [[[0, 9e37]] * 5, [[-3e38, 3e38], [0, 0]], [[-np.inf, 3e38], [0, 0]], [[0, 3e38]] * 70_000], ids=range(4)
)
def test_a_mean_loss_within_the_range(logits):
    """Sums of losses, and a loss, beyond float32 leave a mean that is not; a weight of 0 remains infinitely wrong."""
    rows = len(logits)
    given = {"logits": np.float32(logits), "labels": np.zeros(rows, np.uint32)}
    case = build_case(registry.get("cross_entropy"), {"rows": rows, "cols": 2}, given, generator("mean"))
    (out,) = Runtime("cpu").run(case)
    (found,) = compare_outputs(case.expected, [out])
    assert found.ok and np.isfinite(out[0]) == np.isfinite(given["logits"]).all(), found.explain()


@pytest.mark.operations("cross_entropy")
@pytest.mark.parametrize("rows", [1, 7, 70])
@pytest.mark.parametrize("cols", [1, 3, 8, 17, 600, 20_000])
def test_a_label_out_of_range_makes_the_loss_nan(dev, rows, cols):
    """One of an index buffer, which no call reads beforehand, in the first and in the last row."""
    x = dev.buffer(np.zeros((rows, cols), np.float32))
    for label, row in ((cols, 0), (2**32 - 1, rows - 1)):
        labels = np.zeros(rows, np.uint32)
        labels[row] = label
        assert np.isnan(kernels.cross_entropy_indexed(x, dev.indices(labels), cols).numpy()).all()
