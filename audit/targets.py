"""The sums that the probe asks about: reductions, products, convolutions, pools, softmax, normalisation, losses, attention,
scatter-adds, transforms."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from audit.queries import ROWS, TARGETS, Calls, Query, Target, columns_of, declared, ones, same, target
from tlspec import registry
from tlspec.bounds import column_height, tree_height

__all__ = ["TARGETS", "targets"]

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


# ---- convolutions and pools ------------------------------------------------------------------------------------------------


def _conv2d(name: str, side: int) -> Callable[[Calls, int], Query | None]:
    """Windows of side x side over as many cells: one output, which sums channels x side x side products."""

    def build(k: Calls, n: int) -> Query | None:
        channels = max(1, n // side**2)
        leaves = channels * side**2
        shape = {"in_h": side, "in_w": side, "kernel_h": side, "kernel_w": side} if name == "conv2d" else {
            "in_h": 1, "in_w": 1, "kernel_h": 1, "kernel_w": 1}  # fmt: skip
        v = {"batch": ROWS, "in_channels": channels, "out_channels": 5, **shape}
        v |= {"stride_h": 1, "stride_w": 1, "padding_h": 0, "padding_w": 0}
        weights = (5, channels, side, side) if name == "conv2d" else (channels, 5, 1, 1)
        height = declared(name, "forward", **v)

        def sums(x: np.ndarray) -> np.ndarray:
            out = k(name, {"x": x, "w": ones(*weights), "b": np.zeros(5, np.float32)}, v)[0]
            return same(out.reshape(ROWS, 5))

        return Query(leaves, ROWS, height, 2, sums, v)

    return build


TARGETS.append(Target("conv2d", "out, 1x1", _conv2d("conv2d", 1)))
TARGETS.append(Target("conv2d", "out, 3x3", _conv2d("conv2d", 3)))
TARGETS.append(Target("conv_transpose2d", "out, 1x1", _conv2d("conv_transpose2d", 1)))


@target("conv", "out, 16 positions, 3 wide", sizes=(3, 33, 255))
def _conv1d(k: Calls, n: int) -> Query:
    """The windows of a row of x overlap, so only the summands of its third window are set."""
    channels, positions = n // 3, 16
    v: dict[str, Any] = {"batch": ROWS, "in_channels": channels, "out_channels": 5, "spatial": [positions + 2]}
    v |= {"kernel": [3], "stride": [1], "padding": [0]}
    height = declared("conv", "forward", **v)

    def sums(x: np.ndarray) -> np.ndarray:
        wide = np.zeros((ROWS, channels, positions + 2), np.float32)
        wide[:, :, 2:5] = x.reshape(ROWS, channels, 3)
        out = k("conv", {"x": wide, "w": ones(5, channels, 3), "b": np.zeros(5, np.float32)}, v)[0]
        return same(out.reshape(ROWS, 5, positions)[:, :, 2])

    return Query(3 * channels, ROWS, height, 2, sums, v)


def _conv2d_bwd(index: int, extra: int, images: bool) -> Callable[[Calls, int], Query]:
    """gx sums over output channels, gw and gb over the batch (or over the positions of one image)."""

    def build(k: Calls, n: int) -> Query:
        v = {"batch": ROWS, "in_channels": 5, "out_channels": n, "in_h": 1, "in_w": 1}
        if index != 0:
            v |= {"batch": n if images else 1, "out_channels": ROWS, "in_w": 1 if images else n}
        v |= {"kernel_h": 1, "kernel_w": 1, "stride_h": 1, "stride_w": 1, "padding_h": 0, "padding_w": 0}
        height = declared("conv2d", "vjp", **v)[index]

        def sums(x: np.ndarray) -> np.ndarray:
            arrays = {
                "x": ones(v["batch"] * 5 * v["in_w"]),
                "w": ones(v["out_channels"], 5),
                "g": x if index == 0 or not images else columns_of(x),
            }
            return same(k("conv2d_bwd", arrays, v)[index].reshape(ROWS, -1))

        return Query(n, ROWS, height, extra, sums, v)

    return build


TARGETS.append(Target("conv2d", "gx", _conv2d_bwd(0, 1, True)))
TARGETS.append(Target("conv2d", "gw, over images", _conv2d_bwd(1, 1, True)))
TARGETS.append(Target("conv2d", "gw, over positions", _conv2d_bwd(1, 1, False)))
TARGETS.append(Target("conv2d", "gb, over images", _conv2d_bwd(2, 0, True)))
TARGETS.append(Target("conv2d", "gb, over positions", _conv2d_bwd(2, 0, False)))


@target("avg_pool2d", "out", sizes=(1, 4, 9, 25, 121, 1024))
def _avg_pool(k: Calls, n: int) -> Query:
    side = math.isqrt(n)
    v = {"channels": ROWS, "in_h": side, "in_w": side, "kernel_h": side, "kernel_w": side}
    v |= {"stride_h": side, "stride_w": side, "padding_h": 0, "padding_w": 0}
    height = declared("avg_pool2d", "forward", **v)
    return Query(n, ROWS, height, 1, lambda x: k("avg_pool2d", {"x": x}, v)[0].astype(np.float64) * n, v)


@target("avg_pool", "gx", sizes=(2, 7, 33))
def _avg_pool_bwd(k: Calls, n: int) -> Query:
    """n windows of n cells, one apart: the cell in the middle is in all of them."""
    v: dict[str, Any] = {"channels": ROWS, "spatial": [2 * n - 1], "kernel": [n], "stride": [1], "padding": [0]}
    height = declared("avg_pool", "vjp", **v)

    def sums(x: np.ndarray) -> np.ndarray:
        return k("avg_pool_bwd", {"g": x}, v)[0].reshape(ROWS, 2 * n - 1)[:, n - 1].astype(np.float64) * n

    return Query(n, ROWS, height, 1, sums, v)


# ---- softmax, normalisation, losses, attention -----------------------------------------------------------------------------
# Their bounds are composites; the height inside is that of tlspec.bounds.tree_height (rows) or column_height (columns).


def _exponents(x: np.ndarray) -> np.ndarray:
    """Arguments whose exponentials are x."""
    with np.errstate(divide="ignore"):
        return np.log(x.astype(np.float64)).astype(np.float32)


def _denominator(name: str) -> Callable[[Calls, int], Query]:
    def build(k: Calls, n: int) -> Query:
        v = {"rows": ROWS, "cols": n}

        def sums(x: np.ndarray) -> np.ndarray:
            return -k(name, {"x": _exponents(x)}, v)[0].reshape(ROWS, n).max(axis=1)

        return Query(n, ROWS, tree_height(n), 0, sums, v)

    return build


def _softmax_bwd(name: str) -> Callable[[Calls, int], Query | None]:
    """y = 1 everywhere (log-softmax: 0), so that gx is g minus the sum of g; a leaf of g = 1 shows it."""

    def build(k: Calls, n: int) -> Query | None:
        if n < 3:
            return None
        v = {"rows": ROWS, "cols": n}
        y = np.full((ROWS, n), 1.0 if name == "softmax" else 0.0, np.float32)

        def sums(x: np.ndarray) -> np.ndarray:
            gx = k(f"{name}_bwd", {"out": y, "g": x}, v)[0].reshape(ROWS, n)
            return 1.0 - gx[np.arange(ROWS), np.argmax(x == 1, axis=1)].astype(np.float64)

        return Query(n, ROWS, tree_height(n), 0, sums, v)

    return build


for _name in ("softmax", "log_softmax"):
    TARGETS.append(Target(_name, "denominator", _denominator(_name), positive=True))
    TARGETS.append(Target(_name, "gx", _softmax_bwd(_name)))


def _statistics(name: str) -> Callable[[Calls, int], Query | None]:
    """The mean: beside M and -M, of which the variance is 2M²/n, a leaf of 1 is normalised to (1 - mean)·istd."""

    def build(k: Calls, n: int) -> Query | None:
        if n < 3:
            return None
        rows = {"rows": ROWS, "cols": n} if name == "layer_norm" else {"channels": ROWS, "height": 1, "width": n}
        v: dict[str, Any] = {**rows, "eps": 1e-6}
        m = n if name == "layer_norm" else ROWS

        def sums(x: np.ndarray) -> np.ndarray:
            big = np.where(np.abs(x) > 1, np.sign(x) * np.float32(2.0**50), x)  # the square must not overflow
            y = k(name, {"x": big, "gamma": ones(m), "beta": np.zeros(m, np.float32)}, v)[0].reshape(ROWS, n)
            shown = y[np.arange(ROWS), np.argmax(x == 1, axis=1)].astype(np.float64)
            return n * (1.0 - shown * 2.0**50 * np.sqrt(2.0 / n))

        return Query(n, ROWS, tree_height(n), 0, sums, v)

    return build


TARGETS.append(Target("layer_norm", "mean", _statistics("layer_norm")))
TARGETS.append(Target("batchnorm_channel_first", "mean", _statistics("batchnorm_channel_first")))


@target("layer_norm", "gbeta")
def _layer_norm_beta(k: Calls, n: int) -> Query:
    v: dict[str, Any] = {"rows": n, "cols": ROWS, "eps": 1e-6}
    x = np.arange(n * ROWS, dtype=np.float32).reshape(n, ROWS) % 7

    def sums(g: np.ndarray) -> np.ndarray:
        return k("layer_norm_bwd", {"x": x, "gamma": ones(ROWS), "g": columns_of(g)}, v)[2]

    return Query(n, ROWS, column_height(n), 0, sums, v)


@target("batchnorm_channel_first", "gbeta")
def _batchnorm_beta(k: Calls, n: int) -> Query:
    v: dict[str, Any] = {"channels": ROWS, "height": 1, "width": n, "eps": 1e-6}
    x = np.arange(n * ROWS, dtype=np.float32).reshape(ROWS, n) % 7

    def sums(g: np.ndarray) -> np.ndarray:
        return k("batchnorm_channel_first_bwd", {"x": x, "gamma": ones(ROWS), "g": g}, v)[2]

    return Query(n, ROWS, tree_height(n), 0, sums, v)


@target("mse_loss", "out", positive=True)
def _mse(k: Calls, n: int) -> Query:
    height = declared("mse_loss", "forward", n=n)

    def sums(x: np.ndarray) -> np.ndarray:
        roots = np.sqrt(x.astype(np.float64)).astype(np.float32)
        zeros = np.zeros(n, np.float32)
        return np.array([k("mse_loss", {"yhat": r, "target": zeros}, {"n": n})[0][0] for r in roots])

    return Query(n, 16, height, 4, sums, {"n": n})


def _attention_heights(n: int) -> tuple[int, int]:
    from tlspec.ops import attention

    rescalings, height = attention._heights(n)  # type: ignore[no-untyped-call]
    return int(rescalings), int(height)


@target("flash_attention", "out")
def _attention(k: Calls, n: int) -> Query:
    """Scores of 0: every weight is 1 before the quotient, and the row sums are n."""
    v: dict[str, Any] = {"batch": 1, "n": n, "d": ROWS, "mask_mode": 0, "scale": 1.0}
    zero, (rescalings, height) = np.zeros((n, ROWS), np.float32), _attention_heights(n)

    def sums(x: np.ndarray) -> np.ndarray:
        out = k("flash_attention", {"Q": zero, "K": zero, "V": columns_of(x), "mask": None}, v)[0]
        return same(out.reshape(n, ROWS).T).astype(np.float64) * n

    return Query(n, ROWS, height, rescalings, sums, v)


@target("flash_attention", "gV")
def _attention_bwd(k: Calls, n: int) -> Query:
    v: dict[str, Any] = {"batch": 1, "n": n, "d": ROWS, "mask_mode": 0, "scale": 1.0}
    zero, height = np.zeros((n, ROWS), np.float32), _attention_heights(n)[1] + 2

    def sums(x: np.ndarray) -> np.ndarray:
        arrays = {"Q": zero, "K": zero, "V": zero, "mask": None, "out": zero, "g": columns_of(x)}
        return same(k("flash_attention_bwd", arrays, v)[2].reshape(n, ROWS).T).astype(np.float64) * n

    return Query(n, ROWS, height, 1, sums, v)


# ---- sums in a promised order, and the transform -----------------------------------------------------------------------------


@target("scatter_add", "out", in_order=True)
def _scatter(k: Calls, n: int) -> Query:
    v = {"n": ROWS, "k": (n - 1) * ROWS}
    indices = np.tile(np.arange(ROWS, dtype=np.uint32), n - 1)

    def sums(x: np.ndarray) -> np.ndarray:
        return k("scatter_add", {"x": x[:, 0], "values": columns_of(x)[1:], "indices": indices}, v)[0]

    return Query(n, ROWS, n - 1, 0, sums, v)


@target("scatter_add_rows", "out", in_order=True)
def _scatter_rows(k: Calls, n: int) -> Query:
    v = {"rows": 1, "cols": ROWS, "k": n - 1}

    def sums(x: np.ndarray) -> np.ndarray:
        arrays = {"mat": x[:, 0], "values": columns_of(x)[1:], "indices": np.zeros(n - 1, np.uint32)}
        return k("scatter_add_rows", arrays, v)[0]

    return Query(n, ROWS, n - 1, 0, sums, v)


@target("gather_rows", "gmat", in_order=True)
def _gather_rows(k: Calls, n: int) -> Query:
    v = {"rows": 1, "cols": ROWS, "k": n}

    def sums(x: np.ndarray) -> np.ndarray:
        return k("gather_rows_bwd", {"indices": np.zeros(n, np.uint32), "g": columns_of(x)}, v)[0]

    return Query(n, ROWS, max(n - 1, 0), 0, sums, v)


@target("rfft1d_packed", "bin 0", sizes=(2, 8, 64, 256, 1024))
def _rfft(k: Calls, n: int) -> Query:
    from tlspec.ops import spectral

    v = {"batch": ROWS, "n": n}
    height = int(spectral._height(n))  # type: ignore[no-untyped-call]

    def sums(x: np.ndarray) -> np.ndarray:
        return k("rfft1d_packed", {"x": x}, v)[0].reshape(ROWS, n // 2 + 1, 2)[:, 0, 0]

    return Query(n, ROWS, height, 0, sums, v)


def targets(chosen: Sequence[str] | None = None) -> list[Target]:
    """The targets of the operations named, in the registry's order."""
    order = {r.name: i for i, r in enumerate(registry.ops())}
    return sorted((t for t in TARGETS if chosen is None or t.op in chosen), key=lambda t: order[t.op])
