"""What the probe asks: every operation that adds, as a function from rows of summands to how many ones survive.

A :class:`Query` fixes the shapes of one call, since shapes decide the order of a sum; only the summands change from call to
call. ``height`` is what the row's bound assumes for these shapes and ``extra`` the roundings among it that are no additions
of the sum itself: products, the quotient of a mean, the bias.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from audit.trees import HUGE, SMALL
from tlrt.verify.run import Runtime
from tlspec import registry
from tlspec.bounds import call_named

__all__ = ["ROWS", "TARGETS", "Calls", "Query", "Target", "columns_of", "declared", "ones", "same", "target"]

#: summand rows of one call where the shape leaves them free
ROWS = 64


class Calls:
    """Entry points of one device on NumPy arrays."""

    def __init__(self, runtime: Runtime):
        self.runtime = runtime

    def __call__(self, name: str, arrays: Mapping[str, Any], values: Mapping[str, Any]) -> list[np.ndarray]:
        """The outputs, flat. float32 arrays become device buffers, those of other types stay on the host."""
        placed: dict[str, Any] = {}
        for k, a in arrays.items():
            placed[k] = self.runtime.upload(np.ascontiguousarray(a)) if a is not None and a.dtype == np.float32 else a
        results = self.runtime.call(name, placed, values)
        results = list(results) if isinstance(results, (list, tuple)) else [results]
        outs = [np.asarray(r) if isinstance(r, np.ndarray) else r.numpy() for r in results]
        for b in [*placed.values(), *results]:
            if hasattr(b, "release"):
                b.release()
        return outs


@dataclass(frozen=True)
class Query:
    """One shape of one operation. ``sums(X)`` takes (rows, leaves) summands and returns the (rows,) sums; of positive
    summands it returns a number that is larger where the sum is."""

    leaves: int
    rows: int
    height: int
    extra: int
    sums: Callable[[np.ndarray], np.ndarray]
    values: dict[str, Any] = field(default_factory=dict)
    dtype: type = np.float32

    def meet(self, pairs: np.ndarray) -> np.ndarray:
        """Sizes of the nodes where pairs of leaves meet."""
        out = np.empty(len(pairs), np.int64)
        for first in range(0, len(pairs), self.rows):
            part = pairs[first : first + self.rows]
            x: np.ndarray = np.ones((self.rows, self.leaves), self.dtype)
            at = np.arange(len(part))
            x[at, part[:, 0]], x[at, part[:, 1]] = HUGE, -HUGE
            survivors = np.asarray(self.sums(x), np.float64)[: len(part)]
            out[first : first + self.rows] = self.leaves - np.rint(np.where(np.isfinite(survivors), survivors, -1))
        return out

    def together(self, leaf: int, pairs: np.ndarray) -> np.ndarray:
        """Which pairs of small summands meet before either meets the leaf that is 1."""
        out = np.empty(len(pairs), bool)
        rows = max(2, self.rows)
        for first in range(0, len(pairs), rows - 1):
            part = pairs[first : first + rows - 1]
            x: np.ndarray = np.zeros((rows, self.leaves), self.dtype)
            x[:, leaf] = 1
            at = np.arange(len(part))
            x[at, part[:, 0]] = x[at, part[:, 1]] = SMALL
            got = np.asarray(self.sums(x), np.float64)
            out[first : first + len(part)] = got[: len(part)] > got[-1]  # the last row has no small summand
        return out


@dataclass(frozen=True)
class Target:
    """An operation's sum. ``build(calls, n)`` gives its query of about n leaves; None where the shape cannot be."""

    op: str
    what: str
    build: Callable[[Calls, int], Query | None]
    positive: bool = False
    #: the row promises this order: one after the other, in index order
    in_order: bool = False
    #: leaves that make sense; None: the campaign's sizes
    sizes: tuple[int, ...] | None = None


TARGETS: list[Target] = []


def declared(op: str, which: str, **values: Any) -> Any:
    """The height that a row's bound uses (:func:`tlspec.bounds.tree`, :func:`tlspec.bounds.ordered`)."""
    row = registry.get(op)
    bound = row.bound_of(which)
    function: Any = bound.function
    height = inspect.getclosurevars(function).nonlocals.get("height")
    if height is None:
        raise ValueError(f"{op}: the bound {bound.text!r} has no height")
    return call_named(height, values)


def target(op: str, what: str, **options: Any) -> Callable[[Callable[..., Query | None]], Callable[..., Query | None]]:
    """Enters a builder into :data:`TARGETS`."""

    def register(build: Callable[..., Query | None]) -> Callable[..., Query | None]:
        TARGETS.append(Target(op, what, build, **options))
        return build

    return register


def ones(*shape: int) -> np.ndarray:
    """Ones in float32."""
    return np.ones(shape, np.float32)


def columns_of(x: np.ndarray) -> np.ndarray:
    """The transpose, stored."""
    return np.ascontiguousarray(x.T)


def same(y: np.ndarray) -> np.ndarray:
    """The first column of results that must all be the same."""
    if not np.array_equal(y, np.broadcast_to(y[:, :1], y.shape), equal_nan=True):
        raise ValueError("results that sum the same numbers in the same shape differ")
    return y[:, 0]


# ---- reductions ----------------------------------------------------------------------------------------------------------


@target("reduce_sum", "out")
def _reduce_sum(k: Calls, n: int) -> Query:
    return Query(n, 1, declared("reduce_sum", "forward", n=n), 0, lambda x: k("reduce_sum", {"x": x[0]}, {"n": n})[0])


@target("reduce_sum_axis1", "out")
def _axis1(k: Calls, n: int) -> Query:
    v = {"rows": ROWS, "cols": n}
    height = declared("reduce_sum_axis1", "forward", **v)
    return Query(n, ROWS, height, 0, lambda x: k("reduce_sum_axis1", {"x": x}, v)[0], v)


@target("reduce_sum_axis0", "out")
def _axis0(k: Calls, n: int) -> Query:
    v = {"rows": n, "cols": ROWS}
    height = declared("reduce_sum_axis0", "forward", **v)
    return Query(n, ROWS, height, 0, lambda x: k("reduce_sum_axis0", {"x": columns_of(x)}, v)[0], v)


@target("reduce_sum_axis0", "out, one column")
def _axis0_one(k: Calls, n: int) -> Query:
    v = {"rows": n, "cols": 1}
    height = declared("reduce_sum_axis0", "forward", **v)
    return Query(n, 1, height, 0, lambda x: k("reduce_sum_axis0", {"x": columns_of(x)}, v)[0], v)


@target("reduce_sum_axis", "out, middle axis")
def _axis(k: Calls, n: int) -> Query:
    v: dict[str, Any] = {"dims": [3, n, ROWS], "axis": 1}
    height = declared("reduce_sum_axis", "forward", **v)

    def sums(x: np.ndarray) -> np.ndarray:
        return same(k("reduce_sum_axis", {"x": np.stack([columns_of(x)] * 3)}, v)[0].reshape(3, ROWS).T)

    return Query(n, ROWS, height, 0, sums, v)


@target("reduce_mean", "out, last axis")
def _mean(k: Calls, n: int) -> Query:
    v: dict[str, Any] = {"dims": [ROWS, n], "axis": 1}
    height = declared("reduce_mean", "forward", **v)
    return Query(n, ROWS, height, 1, lambda x: k("reduce_mean", {"x": x}, v)[0].astype(np.float64) * n, v)


@target("reduce_from_broadcast", "out, two passes", sizes=(4, 33, 35, 129 * 2, 1025 * 2))
def _broadcast(k: Calls, n: int) -> Query:
    a = next(d for d in range(2, n + 1) if n % d == 0)
    v: dict[str, Any] = {"in_dims": [ROWS], "out_dims": [a, ROWS, n // a], "axis_map": [0, 1, 0]}
    height = declared("reduce_from_broadcast", "forward", **v)

    def sums(x: np.ndarray) -> np.ndarray:
        return k("reduce_from_broadcast", {"x": x.reshape(ROWS, a, n // a).transpose(1, 0, 2)}, v)[0]

    return Query(n, ROWS, height, 0, sums, v)


# ---- products ------------------------------------------------------------------------------------------------------------


def _matmul(rows: int, p: int) -> Callable[[Calls, int], Query]:
    def build(k: Calls, n: int) -> Query:
        v = {"m": rows, "n": n, "p": p}
        height = declared("matmul", "forward", **v)

        def sums(x: np.ndarray) -> np.ndarray:
            return same(k("matmul", {"A": x, "B": ones(n, p)}, v)[0].reshape(rows, p))

        return Query(n, rows, height, 1, sums, v)

    return build


_SHAPES: tuple[tuple[int, int, tuple[int, ...] | None], ...]
_SHAPES = ((1, 1, None), (ROWS, 1, None), (ROWS, 65, None), (512, 512, (512, 1021)), (1024, 1024, (1024,)))
for _rows, _p, _sizes in _SHAPES:
    TARGETS.append(Target("matmul", f"out, m={_rows} p={_p}", _matmul(_rows, _p), sizes=_sizes))


@target("matmul", "gA")
def _matmul_ga(k: Calls, n: int) -> Query:
    v = {"m": ROWS, "n": 5, "p": n}
    height = declared("matmul", "vjp", **v)[0]

    def sums(x: np.ndarray) -> np.ndarray:
        out = k("matmul_bwd", {"A": ones(ROWS, 5), "B": ones(5, n), "g": x}, v)[0]
        return same(out.reshape(ROWS, 5))

    return Query(n, ROWS, height, 1, sums, v)


@target("matmul", "gB")
def _matmul_gb(k: Calls, n: int) -> Query:
    v = {"m": n, "n": ROWS, "p": 5}
    height = declared("matmul", "vjp", **v)[1]

    def sums(x: np.ndarray) -> np.ndarray:
        out = k("matmul_bwd", {"A": columns_of(x), "B": ones(ROWS, 5), "g": ones(n, 5)}, v)[1]
        return same(out.reshape(ROWS, 5))

    return Query(n, ROWS, height, 1, sums, v)


@target("bmm", "out")
def _bmm(k: Calls, n: int) -> Query:
    v = {"batch": 3, "m": ROWS, "n": n, "p": 5}
    height = declared("bmm", "forward", **v)

    def sums(x: np.ndarray) -> np.ndarray:
        out = k("bmm", {"A": np.stack([x] * 3), "B": ones(3, n, 5)}, v)[0]
        return same(out.reshape(3, ROWS, 5).transpose(1, 0, 2).reshape(ROWS, 15))

    return Query(n, ROWS, height, 1, sums, v)


@target("linear", "y")
def _linear(k: Calls, n: int) -> Query:
    v = {"batch": ROWS, "inputs": n, "outputs": 5}
    height = declared("linear", "forward", **v)

    def sums(x: np.ndarray) -> np.ndarray:
        return same(k("linear", {"W": ones(5, n), "x": x, "b": np.zeros(5, np.float32)}, v)[0].reshape(ROWS, 5))

    return Query(n, ROWS, height, 2, sums, v)


@target("linear", "y, one vector, one output")
def _linear_one(k: Calls, n: int) -> Query:
    v = {"batch": 1, "inputs": n, "outputs": 1}
    height = declared("linear", "forward", **v)

    def sums(x: np.ndarray) -> np.ndarray:
        return k("linear", {"W": ones(1, n), "x": x, "b": np.zeros(1, np.float32)}, v)[0]

    return Query(n, 1, height, 2, sums, v)


def _linear_bwd(index: int, extra: int) -> Callable[[Calls, int], Query]:
    def build(k: Calls, n: int) -> Query:
        v = {"batch": ROWS, "inputs": 5, "outputs": n} if index == 1 else {"batch": n, "inputs": 5, "outputs": ROWS}
        height = declared("linear", "vjp", **v)[index]

        def sums(x: np.ndarray) -> np.ndarray:
            g = x if index == 1 else columns_of(x)
            arrays = {"W": ones(v["outputs"], 5), "x": ones(v["batch"], 5), "g": g}
            return same(k("linear_bwd", arrays, v)[index].reshape(ROWS, -1))

        return Query(n, ROWS, height, extra, sums, v)

    return build


for _index, (_what, _extra) in enumerate((("gW", 1), ("gx", 1), ("gb", 0))):
    TARGETS.append(Target("linear", _what, _linear_bwd(_index, _extra)))


@target("dgemm", "out")
def _dgemm(k: Calls, n: int) -> Query:
    v = {"m": ROWS, "n": n, "p": 5}

    def sums(x: np.ndarray) -> np.ndarray:
        return same(k("dgemm", {"A": x, "B": np.ones((n, 5))}, v)[0].reshape(ROWS, 5))

    return Query(n, ROWS, n, 1, sums, v, np.float64)
