"""The sums that the probe asks about: one of each tree of reductions, products, convolutions, softmax, normalisation, attention,
scatter-adds and transforms."""

from collections.abc import Sequence
from typing import Any

import numpy as np

from audit.queries import ROWS, TARGETS, Target, add_target, columns_of, ones, same
from tlspec import registry
from tlspec.bounds import column_height, scatter_height, tree_height
from tlspec.ops import attention, spectral


def zeros(*shape: int) -> np.ndarray:
    """Zeros in float32."""
    return np.zeros(shape, np.float32)


def equal_columns(y: np.ndarray, x: np.ndarray) -> np.ndarray:
    """One sum per row of x, from results that hold each several times over."""
    return same(y.reshape(len(x), -1))


def undo_mean(y: np.ndarray, x: np.ndarray) -> np.ndarray:
    """The sums that means are quotients of."""
    return y.astype(np.float64) * x.shape[1]


# ---- reductions ----------------------------------------------------------------------------------------------------------

add_target("reduce_sum", "out", lambda n: {"n": n}, lambda x, v: {"x": x}, rows=1)
add_target("reduce_sum_axis1", "out", lambda n: {"rows": ROWS, "cols": n}, lambda x, v: {"x": x})
for _what, _cols in (("out", ROWS), ("out, one column", 1)):
    add_target(
        "reduce_sum_axis0", _what, lambda n, cols=_cols: {"rows": n, "cols": cols}, lambda x, v: {"x": columns_of(x)},
        rows=_cols)  # fmt: skip
add_target("reduce_sum_axis", "out, middle axis", lambda n: {"dims": [3, n, ROWS], "axis": 1},
    lambda x, v: {"x": np.stack([columns_of(x)] * 3)}, read=lambda y, x: same(y.reshape(3, ROWS).T))  # fmt: skip
add_target(
    "reduce_mean", "out, last axis", lambda n: {"dims": [ROWS, n], "axis": 1}, lambda x, v: {"x": x}, extra=1, read=undo_mean,
)  # fmt: skip


def _broadcast(n: int) -> dict[str, Any]:
    """n summands as a times n / a, a being the least divisor."""
    a = next(d for d in range(2, n + 1) if n % d == 0)
    return {"in_dims": [ROWS], "out_dims": [a, ROWS, n // a], "axis_map": [0, 1, 0]}


add_target(
    "reduce_from_broadcast", "out, two passes", _broadcast,
    lambda x, v: {"x": x.reshape(ROWS, v["out_dims"][0], -1).transpose(1, 0, 2)}, sizes=(4, 33, 35, 129 * 2, 1025 * 2),
)  # fmt: skip

# ---- products ------------------------------------------------------------------------------------------------------------

_SHAPES: tuple[tuple[int, int, tuple[int, ...] | None], ...]
_SHAPES = ((1, 1, None), (ROWS, 1, None), (ROWS, 65, None), (512, 512, (512, 1021)), (1024, 1024, (1024,)))
for _rows, _p, _sizes in _SHAPES:
    add_target("matmul", f"out, m={_rows} p={_p}", lambda n, m=_rows, p=_p: {"m": m, "n": n, "p": p},
        lambda x, v: {"A": x, "B": ones(v["n"], v["p"])}, rows=_rows, extra=1, read=equal_columns, sizes=_sizes)  # fmt: skip
add_target("matmul", "gA", lambda n: {"m": ROWS, "n": 5, "p": n},
    lambda x, v: {"A": ones(ROWS, 5), "B": ones(5, v["p"]), "g": x}, gradient=True, extra=1, read=equal_columns)  # fmt: skip
add_target("matmul", "gB", lambda n: {"m": n, "n": ROWS, "p": 5},
    lambda x, v: {"A": columns_of(x), "B": ones(ROWS, 5), "g": ones(v["m"], 5)}, gradient=True, output=1, extra=1,
    read=equal_columns)  # fmt: skip
add_target("bmm", "out", lambda n: {"batch": 3, "m": ROWS, "n": n, "p": 5},
    lambda x, v: {"A": np.stack([x] * 3), "B": ones(3, v["n"], 5)}, extra=1,
    read=lambda y, x: same(y.reshape(3, ROWS, 5).transpose(1, 0, 2).reshape(ROWS, 15)))  # fmt: skip
for _what, _rows, _outputs in (("y", ROWS, 5), ("y, one vector, one output", 1, 1)):
    add_target(
        "linear", _what, lambda n, rows=_rows, outputs=_outputs: {"batch": rows, "inputs": n, "outputs": outputs},
        lambda x, v: {"W": ones(v["outputs"], v["inputs"]), "x": x, "b": zeros(v["outputs"])}, rows=_rows, extra=2,
        read=equal_columns)  # fmt: skip
for _output, (_what, _extra) in enumerate((("gW", 1), ("gx", 1), ("gb", 0))):
    _over_outputs = _what == "gx"  # the others sum over the batch
    add_target("linear", _what,
        lambda n, over=_over_outputs: {"batch": ROWS if over else n, "inputs": 5, "outputs": n if over else ROWS},
        lambda x, v, over=_over_outputs: {
            "W": ones(v["outputs"], 5), "x": ones(v["batch"], 5), "g": x if over else columns_of(x)},
        gradient=True, output=_output, extra=_extra, read=equal_columns)  # fmt: skip
add_target("dgemm", "out", lambda n: {"m": ROWS, "n": n, "p": 5}, lambda x, v: {"A": x, "B": np.ones((v["n"], 5))},
    height=lambda n: n, extra=1, read=equal_columns, dtype=np.float64)  # fmt: skip

# ---- convolutions and pools ------------------------------------------------------------------------------------------------

_APART = {"stride_h": 1, "stride_w": 1, "padding_h": 0, "padding_w": 0}

# windows of side x side over as many cells: one output, which sums channels x side x side products
for _op, _side in (("conv2d", 1), ("conv2d", 3), ("conv_transpose2d", 1)):
    add_target(_op, f"out, {_side}x{_side}",
        lambda n, side=_side: {
            "batch": ROWS, "in_channels": max(1, n // side**2), "out_channels": 5, "in_h": side, "in_w": side,
            "kernel_h": side, "kernel_w": side, **_APART},
        lambda x, v: {"x": x, "w": ones(5 * x.shape[1]), "b": zeros(5)}, extra=2, read=equal_columns,
        leaves=lambda n, side=_side: max(1, n // side**2) * side**2)  # fmt: skip


# gx sums over output channels, gw and gb over the batch or over the positions of one image
for _what, _output, _extra, _dims in (
    ("gx", 0, 1, {"batch": ROWS, "in_w": 1}),
    ("gw, over images", 1, 1, {"out_channels": ROWS, "in_w": 1}),
    ("gw, over positions", 1, 1, {"out_channels": ROWS, "batch": 1}),
    ("gb, over images", 2, 0, {"out_channels": ROWS, "in_w": 1}),
    ("gb, over positions", 2, 0, {"out_channels": ROWS, "batch": 1}),
):
    _images = "over images" in _what
    add_target("conv2d", _what,
        lambda n, dims=_dims: {
            **dict.fromkeys(("batch", "out_channels", "in_w"), n), **dims, "in_channels": 5, "in_h": 1, "kernel_h": 1,
            "kernel_w": 1, **_APART},
        lambda x, v, images=_images: {
            "x": ones(v["batch"] * 5 * v["in_w"]), "w": ones(v["out_channels"], 5),
            "g": columns_of(x) if images else x},
        gradient=True, output=_output, extra=_extra, read=equal_columns)  # fmt: skip


# ---- softmax, normalisation, losses, attention -----------------------------------------------------------------------------
# Their bounds are composites; the height inside is that of tlspec.bounds.tree_height (rows) or column_height (columns).


def _at_one(y: np.ndarray, x: np.ndarray) -> np.ndarray:
    """Of every row of y the value where x has its first 1, in float64."""
    return y.reshape(x.shape)[np.arange(len(x)), np.argmax(x == 1, axis=1)].astype(np.float64)


for _op, _y in (("softmax", 1.0), ("log_softmax", 0.0)):
    # y = 1 everywhere (log-softmax: 0), so that gx is g minus the sum of g; a leaf of g = 1 shows it
    add_target(_op, "gx", lambda n: {"rows": ROWS, "cols": n},
        lambda x, v, y=_y: {"out": np.full(x.shape, y, np.float32), "g": x}, gradient=True, height=tree_height, least=3,
        read=lambda y, x: 1.0 - _at_one(y, x))  # fmt: skip


def _huge(x: np.ndarray) -> np.ndarray:
    """x with M so small that its square does not overflow."""
    return np.where(np.abs(x) > 1, np.sign(x) * np.float32(2.0**50), x)


def _undo_normalisation(y: np.ndarray, x: np.ndarray) -> np.ndarray:
    """The sum: beside M and -M, of which the variance is 2M²/n, a leaf of 1 is normalised to (1 - mean)·istd."""
    n = x.shape[1]
    return n * (1.0 - _at_one(y, x) * 2.0**50 * np.sqrt(2.0 / n))


add_target("layer_norm", "mean", lambda n: {"rows": ROWS, "cols": n, "eps": 1e-6},
    lambda x, v: {"x": _huge(x), "gamma": ones(v["cols"]), "beta": zeros(v["cols"])}, height=tree_height, least=3,
    read=_undo_normalisation)  # fmt: skip
add_target("layer_norm", "gbeta", lambda n: {"rows": n, "cols": ROWS, "eps": 1e-6},
    lambda g, v: {"x": np.arange(g.size, dtype=np.float32) % 7, "gamma": ones(ROWS), "g": columns_of(g)},
    gradient=True, output=2, height=column_height)  # fmt: skip


def _attention_heights(n: int) -> tuple[int, int]:
    rescalings, height = attention._heights(n)  # type: ignore[no-untyped-call]
    return int(rescalings), int(height)


def _attention_size(n: int) -> dict[str, Any]:
    return {"batch": 1, "n": n, "d": ROWS, "mask_mode": 0, "scale": 1.0}


# scores of 0: every weight is 1 before the quotient, and the row sums are n
add_target("flash_attention", "out", _attention_size,
    lambda x, v: {**dict.fromkeys("QK", zeros(v["n"], ROWS)), "V": columns_of(x), "mask": None},
    height=lambda n: _attention_heights(n)[1], extra=lambda n: _attention_heights(n)[0],
    read=lambda y, x: undo_mean(same(y.reshape(-1, ROWS).T), x))  # fmt: skip
add_target("flash_attention", "gV", _attention_size,
    lambda x, v: {**dict.fromkeys(("Q", "K", "V", "out"), zeros(v["n"], ROWS)), "mask": None, "g": columns_of(x)},
    gradient=True, output=2, height=lambda n: _attention_heights(n)[1] + 2, extra=1,
    read=lambda y, x: undo_mean(same(y.reshape(-1, ROWS).T), x))  # fmt: skip

# ---- sums of hits, and the transform ------------------------------------------------------------------------------------------

add_target("scatter_add", "out", lambda n: {"n": ROWS, "k": (n - 1) * ROWS},
    lambda x, v: {"x": x[:, 0], "values": columns_of(x)[1:],
                  "indices": np.tile(np.arange(ROWS, dtype=np.uint32), v["k"] // ROWS)},
    height=lambda n: int(scatter_height(n - 1)))  # fmt: skip
add_target("scatter_add_rows", "out", lambda n: {"rows": 1, "cols": ROWS, "k": n - 1},
    lambda x, v: {"mat": x[:, 0], "values": columns_of(x)[1:], "indices": np.zeros(v["k"], np.uint32)},
    height=lambda n: int(scatter_height(n - 1)))  # fmt: skip
add_target("gather_rows", "gmat", lambda n: {"rows": 1, "cols": ROWS, "k": n},
    lambda x, v: {"indices": np.zeros(v["k"], np.uint32), "g": columns_of(x)}, gradient=True,
    height=lambda n: int(scatter_height(n)))  # fmt: skip
add_target(
    "rfft1d_packed", "bin 0", lambda n: {"batch": ROWS, "n": n}, lambda x, v: {"x": x},
    height=lambda n: int(spectral._height(n)),  # type: ignore[no-untyped-call]
    read=lambda y, x: y.reshape(ROWS, -1, 2)[:, 0, 0], sizes=(2, 8, 64, 256, 1024),
)  # fmt: skip


def targets(chosen: Sequence[str] | None = None) -> list[Target]:
    """The targets of the operations named, in the registry's order."""
    order = {r.name: i for i, r in enumerate(registry.operations())}
    return sorted((t for t in TARGETS if chosen is None or t.op in chosen), key=lambda t: order[t.op])
