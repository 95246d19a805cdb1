"""The bounds: tree heights against the trees of native/src/formula/sum_tree.h, spacings, monotony."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import pytest

from tlspec import bounds

HEADER = Path(__file__).resolve().parents[2] / "native/src/formula/sum_tree.h"
SIZES = [
    *range(1, 70),
    127,
    128,
    129,
    255,
    512,
    513,
    1023,
    1024,
    1025,
    2047,
    2048,
    2049,
    3000,
    16383,
    16384,
    16385,
    17409,
    40000,
]


def add(a: int | None, b: int | None) -> int | None:
    """The number of roundings behind a sum of two numbers with a and b roundings; None is an absent +0, adding it rounds not."""
    if a is None or b is None:
        return a if b is None else b
    return max(a, b) + 1


def row_tree(n: int) -> int:
    """The height of the row tree, by building it."""
    row: list[int | None] = [0] * n
    while len(row) > 1:
        sums: list[int | None] = []
        for start in range(0, len(row), bounds.LEAF):
            leaf = row[start : start + bounds.LEAF]
            lanes: list[int | None] = [None] * bounds.LANES
            for i, x in enumerate(leaf):
                lanes[i % bounds.LANES] = add(lanes[i % bounds.LANES], x)
            s = bounds.LANES // 2
            while s:
                lanes = [add(lanes[i], lanes[i + s]) for i in range(s)]
                s //= 2
            sums.append(lanes[0])
        row = sums
    return row[0] or 0


def column_tree(rows: int) -> int:
    """The height of the column tree, by building it."""
    column: list[int | None] = [0] * rows
    while len(column) > 1:
        sums: list[int | None] = []
        for start in range(0, len(column), bounds.COLUMN_CHUNK):
            chains: list[int | None] = [None] * bounds.COLUMN_CHAINS
            for i, x in enumerate(column[start : start + bounds.COLUMN_CHUNK]):
                chains[i % bounds.COLUMN_CHAINS] = add(chains[i % bounds.COLUMN_CHAINS], x)
            sums.append(add(add(chains[0], chains[1]), add(chains[2], chains[3])))
        column = sums
    return column[0] or 0


@pytest.mark.parametrize("n", SIZES)
def test_row_tree_height(n: int) -> None:
    assert row_tree(n) <= bounds.tree_height(n) <= row_tree(n) + 1


@pytest.mark.parametrize("n", SIZES)
def test_column_tree_height(n: int) -> None:
    assert column_tree(n) <= bounds.column_height(n) <= column_tree(n) + 1


def test_heights_grow() -> None:
    for height in (bounds.tree_height, bounds.column_height):
        heights = [height(n) for n in (0, 1, 2, 3, 5, 17, 100, 1000, 5000, 2**14, 2**20, 2**24, 2**31)]
        assert heights == sorted(heights)
        assert heights[:2] == [0, 0]
        assert heights[-1] < 200


def test_constants_are_those_of_the_header() -> None:
    text = HEADER.read_text()
    named = {m[1]: int(m[2]) for m in re.finditer(r"(TL_\w+) = (\d+)", text)}
    assert named == {
        "TL_SUM_LANES": bounds.LANES,
        "TL_SUM_LEAF": bounds.LEAF,
        "TL_COLUMN_CHUNK": bounds.COLUMN_CHUNK,
        "TL_COLUMN_CHAINS": bounds.COLUMN_CHAINS,
    }


def test_spacing_is_numpys() -> None:
    rng = np.random.default_rng(0)
    bits = rng.integers(0, 255 << 23, size=10000, dtype=np.uint32)
    x = bits.view(np.float32)
    assert np.array_equal(bounds.spacing(x.astype(np.float64)), np.spacing(x).astype(np.float64))
    assert bounds.spacing(0.0) == bounds.TINY
    assert bounds.spacing(2.0**-140) == bounds.TINY
    assert bounds.spacing(1e300) == bounds.spacing(np.finfo(np.float32).max)


def test_tree_bound() -> None:
    """Higher trees and larger terms allow more; a tree of height 0 allows half a spacing."""

    def sum_(x: np.ndarray) -> np.ndarray:
        return np.asarray(x.sum())

    x = np.array([1.0, -2.0, 4.0])
    tolerances = [
        float(bounds.tree(lambda h=h: h).tolerance(sum_, [sum_(x)], {"x": x}, {})[0]) for h in (0, 1, 5, 56, 57, 200)
    ]
    assert tolerances == sorted(tolerances)
    assert tolerances[0] == bounds.spacing(3.0) / 2
    larger = float(bounds.tree(lambda: 5).tolerance(sum_, [sum_(x)], {"x": 4 * x}, {})[0])
    assert larger > tolerances[2]
    # short trees are held to their worst case, long ones to the probabilistic bound
    for h, t in zip((1, 56, 57, 200), (tolerances[1], *tolerances[3:]), strict=True):
        assert t == min(h, bounds.LAMBDA * h**0.5) * (bounds.U * 7.0 + bounds.TINY / 2) + bounds.spacing(3.0) / 2


def test_exact_and_ulp() -> None:
    out = np.array([1.0, 3.0])
    assert not np.any(bounds.exact().tolerance(abs, [out], {}, {})[0])
    tolerance = bounds.ulp(2).tolerance(abs, [out], {}, {})[0]
    assert np.all(tolerance >= 2 * bounds.spacing(out))
    assert np.all(tolerance < 3 * bounds.spacing(out))
