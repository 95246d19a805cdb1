"""The random numbers of the specification: known answers, and moments that a wrong formula would miss."""

import numpy as np

from tlspec.ops import random as spec


def test_known_answer() -> None:
    assert spec.mix(0) == 0xE220A8397B1DCDAF


def test_a_draw_is_a_window_of_the_sequence() -> None:
    assert np.array_equal(spec.words(100, 7)[40:], spec.words(60, 47))
    assert np.array_equal(spec.words(4, 2**64 - 2)[2:], spec.words(2, 0))


def test_moments() -> None:
    n = 2**20
    u = spec.rand_uniform.reference(n, 3)
    z = spec.rand_normal.reference(n, 3, 0.0, 1.0)
    # five standard errors of each sample moment
    assert abs(u.mean() - 0.5) < 5 * np.sqrt(1 / 12 / n)
    assert abs((u**2).mean() - 1 / 3) < 5 * np.sqrt(4 / 45 / n)
    assert abs(z.mean()) < 5 / np.sqrt(n) and abs((z**2).mean() - 1) < 5 * np.sqrt(2 / n)
    assert abs((z**4).mean() - 3) < 5 * np.sqrt(96 / n)
    assert u.min() >= 0 and u.max() < 1 and np.abs(z).max() < 5.78


def test_masks_at_the_ends() -> None:
    assert spec.bernoulli_mask.reference(1000, 5, 1.0).all()
    assert not spec.bernoulli_mask.reference(1000, 5, 0.0).any()
