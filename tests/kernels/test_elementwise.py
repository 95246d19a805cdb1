"""Elementwise operations at the edges of their formulas, where drawn cases seldom land."""

import numpy as np
import pytest

from tlrt import kernels

pytestmark = pytest.mark.operations("clamp")


@pytest.mark.parametrize(("lo", "hi"), [(-0.5, 0.75), (0.0, 1.0), (-1.0, -0.0), (2.0, 2.0)])
def test_clamp_has_no_gradient_at_its_edges(dev, lo, hi):
    edges = np.array([lo, hi, lo + 0.0, hi + 0.0, -0.0 if lo == 0 else lo, 0.0 if hi == 0 else hi], np.float32)
    inside = np.nextafter(np.float32([lo, hi]), np.float32([hi, lo]))
    x = np.concatenate([edges, inside])
    gx = kernels.clamp_bwd(dev.buffer(x), dev.buffer(np.full(x.size, 3, np.float32)), lo, hi).numpy()
    assert (gx[: edges.size] == 0).all() and (gx[edges.size :] == (3 if lo < hi else 0)).all()
