"""The probe of reduction trees: known trees are found, the library's fit their bounds, a taller one fails."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import tlrt
from audit import probe
from audit.targets import TARGETS
from audit.trees import HUGE, NoTree, depth, reveal
from tests import DEVICES
from tests.audit.replaced import Replaced
from tlspec.bounds import column_height, tree_height

Sum = Callable[[np.ndarray], np.floating[Any]]


def chained(x: np.ndarray) -> Any:
    total = np.float32(0)
    for v in x:
        total = np.float32(total + v)
    return total


def halves(x: np.ndarray) -> Any:
    if x.size <= 2:
        return chained(x)
    return np.float32(halves(x[: x.size // 2]) + halves(x[x.size // 2 :]))


def strided(x: np.ndarray) -> Any:
    return halves(np.array([chained(x[c::4]) for c in range(4)], np.float32))


def fused(x: np.ndarray) -> Any:
    """Blocks of four are added to the running sum at once, cut off at the largest term's 24 bits."""
    total = 0.0
    for k in range(0, x.size, 4):
        terms = [total, *x[k : k + 4].astype(np.float64)]
        unit = 2.0 ** (np.frexp(max(map(abs, terms)))[1] - 24)
        total = sum(np.trunc(t / unit) * unit for t in terms)
    return np.float32(total)


def meet(function: Sum, n: int) -> Callable[[np.ndarray], np.ndarray]:
    def sizes(pairs: np.ndarray) -> np.ndarray:
        out = []
        for i, j in pairs:
            x = np.ones(n, np.float32)
            x[i], x[j] = HUGE, -HUGE
            out.append(n - round(float(function(x))))
        return np.array(out)

    return sizes


@pytest.mark.parametrize(
    ("function", "n", "height", "fan_in"),
    [
        (chained, 37, 36, 2), (lambda x: chained(x[::-1]), 37, 36, 2), (halves, 64, 6, 2), (strided, 40, 9 + 2, 2),
        (fused, 33, 9, 5), (chained, 2, 1, 2), (chained, 1, 0, 0),
    ],
)  # fmt: skip
def test_known_trees_are_found(function: Sum, n: int, height: int, fan_in: int) -> None:
    for seed in (1, 2, 3):
        tree = reveal(n, meet(function, n), seed)
        assert (tree.height, tree.fan_in) == (height, fan_in)
    if fan_in == 2:
        assert max(depth(n, leaf, meet(function, n)) for leaf in range(n)) == height


def test_an_exact_sum_is_no_tree() -> None:
    with pytest.raises(NoTree):
        reveal(9, meet(lambda x: np.float32(np.sum(x.astype(np.float64) / HUGE) * HUGE + (x == 1).sum()), 9))


@pytest.mark.parametrize("device", DEVICES)
def test_every_sum_fits_its_bound(device: str) -> None:
    document = probe.probe([tlrt.device(device).name], sizes=(1, 2, 5, 33, 129))
    assert [r for r in document["sums"] if r["verdict"] != "pass"] == []
    assert {(r["op"], r["what"]) for r in document["sums"]} >= {(t.op, t.what) for t in TARGETS if t.sizes is None}
    own = {(r["op"], r["what"], r["leaves"]): r["height"] for r in document["sums"]}
    assert own["reduce_sum", "out", 129] == tree_height(129)
    assert own["reduce_sum_axis0", "out", 129] == column_height(129)


def test_a_taller_tree_fails() -> None:
    def wrong(x: Any, rows: int, cols: int) -> Any:
        sums = [chained(row) for row in x.numpy().reshape(rows, cols)]
        return tlrt.Buffer.from_numpy(np.array(sums, np.float32), x.device)

    document = probe.probe(["cpu"], ["reduce_sum_axis1"], (33,), kernels=Replaced("reduce_sum_axis1", wrong))
    (row,) = document["sums"]
    assert row["verdict"] == "fail" and row["height"] == 32 and row["declared"] == 6


def test_a_sum_that_raises_is_a_finding() -> None:
    def wrong(*_: Any, **__: Any) -> Any:
        raise RuntimeError("planted")

    document = probe.probe(["cpu"], ["reduce_sum"], (5,), kernels=Replaced("reduce_sum", wrong))
    assert [r["verdict"] for r in document["sums"]] == ["fail"]
    assert "RuntimeError: planted" in document["sums"][0]["found"]
