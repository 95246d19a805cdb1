"""The random numbers of the specification: known answers, and moments that a wrong formula would miss."""

import numpy as np
import pytest

from tlspec.ops import random as spec


def test_known_answer() -> None:
    assert spec.mix(0) == 0xE220A8397B1DCDAF


def test_a_draw_is_a_window_of_the_sequence() -> None:
    seven, forty = spec.mix(7), spec.unmix((spec.mix(7) + 40) % 2**64)
    assert np.array_equal(spec.words(100, 7)[40:], spec.words(60, forty))
    assert np.array_equal(spec.words(3, 7), [spec.mix(seven + i) % 2**32 for i in range(3)])
    assert np.array_equal(spec.words(4, spec.unmix(2**64 - 2))[2:], spec.words(2, spec.unmix(0)))


@pytest.mark.parametrize("x", [0, 1, 2**64 - 1, 12345678901234567890])
def test_mix_is_a_bijection(x: int) -> None:
    assert spec.unmix(spec.mix(x)) == x == spec.mix(spec.unmix(x))


def neighbours(kind: str) -> list[int]:
    """The keys of the first three draws under 1,000 seeds in a row, or 3,000 keys in a row; both wrap."""
    if kind == "keys":
        return [k % 2**64 for k in range(-1000, 2000)]
    return [spec.draw_key(seed % 2**64, counter) for seed in range(-300, 700) for counter in range(3)]


@pytest.mark.parametrize("kind", ["seeds", "keys"])
def test_neighbours_are_independent(kind: str) -> None:
    keys, n = neighbours(kind), 128
    w = np.array([spec.words(n, key) for key in keys])
    pairs = w[:, 1:] << np.uint64(32) | w[:, :-1]
    # equal pairs are expected in 4e-9 of such tables
    assert np.unique(pairs).size == pairs.size
    z = (w / 2.0**32 - 0.5) * np.sqrt(12)
    off = np.triu(z @ z.T / n, 1)
    # of 4.5 million correlations with deviation 1/sqrt(n), and of their mean square
    assert np.abs(off).max() < 7 / np.sqrt(n)
    count = len(keys) * (len(keys) - 1) / 2
    assert abs((off**2).sum() * n / count - 1) < 5 * np.sqrt(2 / count)
    # and of each draw's words with the next ones of the next draw
    lagged = (z[:-1, :-1] * z[1:, 1:]).mean()
    assert abs(lagged) < 5 / np.sqrt(z[1:, 1:].size)


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
