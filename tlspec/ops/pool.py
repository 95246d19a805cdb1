"""Pooling: maximum, average and smooth maximum over windows of 1 to 8 spatial axes, channels first.

On an axis of n cells with padding p, window o covers the cells o·stride - p + j, j = 0..kernel-1; those outside 0..n-1
are padded. A leading batch axis folds into ``channels``. Where padding >= kernel there are windows of padding alone: they give
-inf (maximum) or 0 (average, smooth maximum), and no gradient. The 2-D rows take scalars and compute what the N-D rows do, bit
for bit.

Orders: a window's cells row-major; the windows that meet a cell row-major as well. Both are the same on every device.
"""

import dataclasses
import math
from collections.abc import Sequence

import numpy as np

from tlspec.bounds import TINY, U, custom, exact, factor, spacing, tree
from tlspec.classes import WINDOWS, Classes, Lengths
from tlspec.laws import adjoint, equation, homogeneous, linear
from tlspec.ops.conv import flatten_axes
from tlspec.ops.reduce import maximum
from tlspec.registry import check, op
from tlspec.shapes import pool_out
from tlspec.synonyms import synonym


def _windows(x, kernel, stride, padding, fill):
    """The windows of x[channels, *spatial] as [channels, *out, cells], padded cells holding `fill`."""
    rank = len(kernel)
    wide = np.pad(x, [(0, 0), *((p, p) for p in padding)], constant_values=fill)
    view = np.lib.stride_tricks.sliding_window_view(wide, tuple(kernel), axis=tuple(range(1, rank + 1)))
    view = view[(slice(None), *(slice(None, None, s) for s in stride))]
    return view.reshape(*view.shape[: rank + 1], math.prod(kernel))


def _cells(channels, spatial, kernel, stride, padding):
    """The flat index of every window's cells in x, -1 where padded."""
    index = np.arange(channels * math.prod(spatial), dtype=np.int64).reshape(channels, *spatial)
    return _windows(index, kernel, stride, padding, -1)


def _met(spatial, kernel, stride, padding):
    """Which windows meet a cell."""
    met = np.bool_(True)
    for n, k, s, p in zip(spatial, kernel, stride, padding, strict=True):
        first = np.arange((n + 2 * p - k) // s + 1) * s - p
        met = np.logical_and.outer(met, (first < n) & (first + k > 0))
    return met


def _gather(cells, shares, channels, spatial):
    """Adds every window's shares (same shape as `cells`) to the cells they belong to."""
    out = np.zeros(channels * math.prod(spatial), np.result_type(shares, float), like=shares)
    inside = cells >= 0
    np.add.at(out, cells[inside], shares[inside])
    return out.reshape(channels, *spatial)


def _cover(kernel: Sequence[int], stride: Sequence[int]) -> int:
    """The most windows that meet a cell."""
    return math.prod(-(-k // s) for k, s in zip(kernel, stride, strict=True))


def _draw(d, rank=None):
    """Windows of 1 to 7 cells an axis, strides that overlap, touch and leave gaps, sizes from the smallest that fits; on up to
    two axes padding up to the kernel and 2 more."""
    rank = d.rank(1, 8) if rank is None else rank
    sizes = [1, 2, 2, 3, 3, 4, 5, 7] if rank <= 3 else [1, 2, 2, 3]
    kernel = [d.choice(sizes) for _ in range(rank)]
    stride = [d.choice([1, 1, 2, 2, 3, k, k + 2]) for k in kernel]
    padding = [d.choice([0, k // 2, d.integer(0, k // 2)]) for k in kernel]
    while math.prod(kernel) > 400:
        kernel[kernel.index(max(kernel))] = 1
        padding = [min(p, k // 2) for p, k in zip(padding, kernel, strict=True)]
    for _ in range(d.choice([0, 0, 1, 1, 2])):
        axis = d.integer(0, rank - 1)
        padding[axis] = d.integer(0, kernel[axis] + 2)
    # large cases are held back by the reference, which holds every window's cells
    room = d.budget // (4 if d.budget < 2**20 else max(4, math.prod(kernel)))
    room = max(room // math.prod(max(1, 2 * p // k) for p, k in zip(padding, kernel, strict=True)), 8)
    spatial = []
    for axis in d.rng.permutation(rank):
        low = max(1, kernel[axis] - 2 * padding[axis])
        cap = max(low, int(room ** d.rng.uniform(0.2, 0.8)))
        n = d.aligned(low, cap) or int(low * (cap / low) ** d.rng.random()) + d.integer(0, 3)
        spatial.append((int(axis), n))
        room //= n
    channels = 0 if d.empty else d.aligned(1, max(1, room)) or d.integer(1, max(1, min(room, 40)))
    return {"channels": channels, "spatial": [n for _, n in sorted(spatial)], "kernel": kernel, "stride": stride,
            "padding": padding}  # fmt: skip


def _smooth_draw(d, rank=None):
    """β of all sizes; next to edges the least too."""
    beta = d.choice([1.0, -1.0, 2.5, -0.125, 20.0, d.real(0.05, 8), d.real(-8, -0.05), 1e-3, -300.0])
    if d.edges and d.rng.random() < 0.4:  # with numbers near the range, v - p and a quotient by β are beyond it
        beta = d.choice([1e-38, -1e-38, 1e-42])
    return {**_draw(d, rank), "beta": beta}


_CHECKS = [
    *(check(n, f"rank({n}) == rank(spatial)", "SHAPE", say="one entry per spatial axis")
      for n in ("kernel", "stride", "padding")),
    *(check(n, f"positive({n})", say="every entry >= 1") for n in ("kernel", "stride")),
    check("spatial", "pool_ok(spatial, kernel, stride, padding)", "SHAPE",
          say="an axis or more, 1 <= spatial and kernel <= spatial + 2*padding on each, and fewer than 2^32 cells in a window"),
]  # fmt: skip
_CHECKS_2D = [
    *(check(n, f"{n} >= 1") for n in ("kernel_h", "kernel_w", "stride_h", "stride_w")),
    check("in_h", "pool_size(in_h, kernel_h, stride_h, padding_h) >= 1", "SHAPE",
          say="1 <= in_h and kernel_h <= in_h + 2*padding_h"),
    check("in_w", "pool_size(in_w, kernel_w, stride_w, padding_w) >= 1 and kernel_h * kernel_w < 4294967296", "SHAPE",
          say="1 <= in_w and kernel_w <= in_w + 2*padding_w, and fewer than 2^32 cells in a window"),
]  # fmt: skip
#: beta is already rounded to float32 where the check is made; the limit lies between the largest float32 and infinity
_BETA = [check("beta", "-3.41e38 < beta < 3.41e38 and beta != 0.0", say="beta finite and not 0 as a float32")]


def _work(channels, spatial, kernel, stride, padding):
    """The cells that the reference's windows have together."""
    return 4 * channels * math.prod(kernel) * math.prod(pool_out(spatial, kernel, stride, padding))


def _width(spatial, kernel, stride, padding):
    """The outputs of a row."""
    return pool_out(spatial, kernel, stride, padding)[-1]


LENGTHS: Lengths = {"width": _width}
CLASSES: Classes = {
    **WINDOWS,
    "many channels of short rows": lambda channels, spatial, kernel, stride, padding: channels > 3
    and _width(spatial, kernel, stride, padding) < 64,
    "many channels of tall planes of short rows": lambda channels, spatial, kernel, stride, padding: channels > 3
    and len(spatial) > 1 and _width(spatial, kernel, stride, padding) < 64 and math.prod(spatial) > 4096,
    "few channels of tiny rows": lambda channels, spatial, kernel, stride, padding: 1 < channels < 4
    and _width(spatial, kernel, stride, padding) < 8,
    "an axis whose only window is of padding alone": lambda spatial, kernel, stride, padding: any(
        (n + 2 * p - k) // s == 0 and p >= k for n, k, s, p in zip(spatial, kernel, stride, padding, strict=True)),
    "cells that no window meets": lambda spatial, kernel, stride, padding: any(
        (n + 2 * p - k) % s > p for n, k, s, p in zip(spatial, kernel, stride, padding, strict=True)),
}  # fmt: skip


_TEXT = (
    "x[channels, *spatial]; kernel: dims, stride: dims, padding: dims{}"
    " -> out[channels, *pool_out(spatial, kernel, stride, padding)]"
)
_TEXT_2D = (
    "x[channels, in_h, in_w]; kernel_h: u32, kernel_w: u32, stride_h: u32, stride_w: u32, padding_h: u32, padding_w: u32{}"
    " -> out[channels, pool_size(in_h, kernel_h, stride_h, padding_h), pool_size(in_w, kernel_w, stride_w, padding_w)]"
)

_LISTS = (
    "spatial=[in_h, in_w], kernel=[kernel_h, kernel_w], stride=[stride_h, stride_w], padding=[padding_h, padding_w]"
)


def _winner(x, kernel, stride, padding):
    """The cell that takes every window's gradient, and whether it is NaN."""
    cells = _cells(x.shape[0], x.shape[1:], kernel, stride, padding)
    w = _windows(x, kernel, stride, padding, -np.inf)
    top = w.max(axis=-1, keepdims=True)
    first = np.argmax((cells >= 0) & ((w == top) | np.isnan(w)), axis=-1)[..., None]
    return np.take_along_axis(cells, first, -1), np.isnan(top)


@op(_TEXT.format(""),
    classes=CLASSES, lengths=LENGTHS, work=_work, bound=exact(), checks=_CHECKS, draw=_draw, laws=[homogeneous("x")],
    source="IEEE 754-2019, 9.6 (maximum)")  # fmt: skip
def max_pool(x, kernel, stride, padding):
    """Maximum over windows.

    out[c, o] = max of x[c, o·stride - padding + j] over those j in [0, kernel) that hit a cell

    Shapes: x (channels, *spatial), out (channels, *⌊(spatial + 2·padding - kernel)/stride⌋ + 1).
    Special values: padding never wins, a window of padding alone gives -inf; a NaN in a window makes its maximum NaN; +0 is
    above -0. channels = 0 gives an empty result.
    Errors: SHAPE for lists of different ranks or a window that does not fit; ARGUMENT for a zero in kernel or
    stride."""
    return maximum(_windows(x, kernel, stride, padding, -np.inf), -1)


def _max_vjp_size(x, g, kernel, stride, padding):
    return max_pool_vjp(x, np.abs(g), kernel, stride, padding)


@max_pool.vjp("x, g -> gx", bound=tree(lambda kernel, stride: _cover(kernel, stride) - 1, _max_vjp_size))
def max_pool_vjp(x, g, kernel, stride, padding):
    """gx[cell] = Σ g over the windows in which the cell is the first maximum in row-major order, in window order.

    +0 and -0 tie. In a window with NaN the first NaN takes a gradient of NaN. A window of padding alone gives none."""
    cells, nan = _winner(x, kernel, stride, padding)
    return _gather(cells, np.where(nan, np.nan, g[..., None]), x.shape[0], x.shape[1:])


@synonym(max_pool, _TEXT_2D.format(""), _LISTS, checks=_CHECKS_2D, draw=lambda d: flatten_axes(_draw(d, 2)))  # fmt: skip
def max_pool2d():
    """Maximum over 2-D windows: max_pool with two spatial axes."""


@op(_TEXT.format(""),
    classes=CLASSES, lengths=LENGTHS, work=_work, bound=tree(lambda spatial, kernel: math.prod(min(n, k) for n, k in zip(spatial, kernel, strict=True))),
    checks=_CHECKS, draw=_draw, laws=[linear("x"), adjoint("x"), homogeneous("x")],
    source="native/src/formula/count.h")  # fmt: skip
def avg_pool(x, kernel, stride, padding):
    """Average over windows; padded cells count in the divisor.

    out[c, o] = (Σ_j x[c, o·stride - padding + j]) / Π kernel, the sum in row-major order, then one division

    Shapes: x (channels, *spatial), out (channels, *⌊(spatial + 2·padding - kernel)/stride⌋ + 1).
    Special values: IEEE 754; a sum is never -0, and +0 over padding alone. channels = 0 gives an empty result.
    Errors: SHAPE for lists of different ranks or a window that does not fit; ARGUMENT for a zero in kernel or
    stride."""
    return _windows(x, kernel, stride, padding, 0).sum(axis=-1) / math.prod(kernel)


@avg_pool.formula()
def _weighted(x, kernel, stride, padding):
    """A convolution with weights of one number, which is rounded."""
    return (_windows(x, kernel, stride, padding, 0) * (1 / math.prod(kernel))).sum(axis=-1)


@avg_pool.formula()
def _sum_of_shares(x, kernel, stride, padding):
    """Every number is divided, then the quotients are added."""
    return (_windows(x, kernel, stride, padding, 0) / math.prod(kernel)).sum(axis=-1)


@avg_pool.vjp("g -> gx", bound=tree(lambda kernel, stride: _cover(kernel, stride)))
def avg_pool_vjp(g, channels, spatial, kernel, stride, padding):
    """gx[cell] = (Σ g over the windows that meet the cell, in window order) / Π kernel, one division."""
    cells = _cells(channels, spatial, kernel, stride, padding)
    return _gather(cells, np.broadcast_to(g[..., None], cells.shape), channels, spatial) / math.prod(kernel)


@avg_pool.formula("vjp")
def _shares_of_windows(g, channels, spatial, kernel, stride, padding):
    """Every window's gradient is divided by its size, then the quotients are added."""
    cells = _cells(channels, spatial, kernel, stride, padding)
    shares = np.broadcast_to((g / math.prod(kernel))[..., None], cells.shape)
    return _gather(cells, shares, channels, spatial)


@synonym(avg_pool, _TEXT_2D.format(""), _LISTS, checks=_CHECKS_2D, draw=lambda d: flatten_axes(_draw(d, 2)))  # fmt: skip
def avg_pool2d():
    """Average over 2-D windows: avg_pool with two spatial axes; padded cells count in the divisor."""


def _softmax(x, beta, kernel, stride, padding):
    """Every window's extreme p, its exponents a = β(v - p) (0 where v = p, infinities included), e^a and Σ e^a; padded
    cells hold 0, and a window of them alone has the sum 1."""
    w = _windows(x, kernel, stride, padding, 0.0)
    p = (w.max if beta > 0 else w.min)(axis=-1, keepdims=True)
    a = np.where(w == p, 0.0, beta * (w - p))
    e = np.exp(a)
    e = np.where(e < TINY / 2, 0.0, e)  # as in float32: such a weight takes nothing, NaN from an infinite g
    return p[..., 0], a, e, np.where(_met(x.shape[1:], kernel, stride, padding), e.sum(axis=-1), 1.0)


def _total_error(a, e, total):
    """The relative error of the float32 Σ e^a: an exponent β(v - p) carries two roundings (also where v - p is taken of halves, as it overflows), so the term 2u|a| and the
    3u (one and a half ulp) of tl_exp, subnormal terms half of TINY more, and e^0 = 1 nothing; positive terms are summed one after
    another; the padded cells' term takes two roundings more."""
    h = e.shape[-1] + 1 if e.shape[-1] > 1 else 0
    own = np.where(a == 0, 0.0, e * (2 * U * np.where(e > 0, np.abs(a), 0.0) + 3 * U) + 2 * TINY).sum(axis=-1)
    return own / total + factor(h) * U


def _smooth_bound(x, beta, kernel, stride, padding):
    """out = p + ln(S)/β: the relative error of S goes into ln S as it is, tl_log adds one and a half ulp, the quotient u,
    the sum half an ulp of out. An exponent that underflows counts with TINY/|β| in units of the result."""
    p, a, e, total = _softmax(x, beta, kernel, stride, padding)
    log = np.log(total)
    error = _total_error(a, e, total) + 1.5 * spacing(log)
    error = error / abs(beta) + U * np.abs(log / beta) + spacing(p + log / beta) / 2 + 2 * TINY * (1 + 1 / abs(beta))
    return np.where(_met(x.shape[1:], kernel, stride, padding), error, 0.0)


def _smooth_vjp_bound(x, g, beta, kernel, stride, padding):
    """A share e^a·(g/S) carries the errors of e^a (2u|a| + 3u), of S, of the quotient and of the product; the shares are
    summed in window order. Gradual underflow: TINY·|g| for e^a, TINY for quotient and product each."""
    _, a, e, total = _softmax(x, beta, kernel, stride, padding)
    cells = _cells(x.shape[0], x.shape[1:], kernel, stride, padding)
    g = np.abs(g)
    cover = _cover(kernel, stride)
    relative = U * (2 * np.where(e > 0, np.abs(a), 0.0) + 5 + factor(cover - 1))
    relative = relative + _total_error(a, e, total)[..., None]
    error = e * (g / total)[..., None] * relative + 2 * TINY * (g + 1)[..., None]
    exact_sum = smooth_max_pool_vjp(x, g, kernel, stride, padding, beta)
    return _gather(cells, error, x.shape[0], x.shape[1:]) + spacing(exact_sum) / 2


def _smooth_vjp_peak(x, g, beta, kernel, stride, padding):
    """Σ|share|: no partial sum of the shares is larger."""
    return smooth_max_pool_vjp(x, np.abs(g), kernel, stride, padding, beta)


def _shift(f, x, padding):
    if not any(padding):
        out = f()
        yield f({"x": x + 1}), dataclasses.replace(out, array=out.array.astype(np.float64) + 1)


@op(_TEXT.format(", beta: float"),
    classes=CLASSES, lengths=LENGTHS, work=_work, bound=custom(_smooth_bound, "ln of the window's sum"), checks=[*_CHECKS, *_BETA], draw=_smooth_draw,
    laws=[equation("f(x + 1) = f(x) + 1", _shift, exact=False)], source="native/src/formula/explog.h",
    arguments={"beta": "sharpness; below 0 for a smooth minimum"},
    example={"beta": 2.0})  # fmt: skip
def smooth_max_pool(x, kernel, stride, padding, beta):
    """Smooth maximum over windows (β > 0) or smooth minimum (β < 0).

    out[c, o] = p + ln(Σ_j e^(β(v_j - p)))/β with v_j = x[c, o·stride - padding + j], 0 where padded, and p the largest v_j
    for β > 0, the smallest for β < 0; no division by the window's size. The sum runs over the cells in row-major order, then
    over the padded ones as one product.

    Shapes: x (channels, *spatial), out (channels, *⌊(spatial + 2·padding - kernel)/stride⌋ + 1).
    Special values: NaN in a window gives NaN; a term with v = p is 1 for infinite p too, so +inf gives +inf (β > 0). A window of
    padding alone gives 0. Neither v - p nor ln(Σ)/β beyond float32 harms a result that is not. channels = 0 gives an empty result.
    Errors: SHAPE for lists of different ranks or a window that does not fit; ARGUMENT for a zero in kernel or stride, or
    β zero or not finite as a float32."""
    p, _, _, total = _softmax(x, beta, kernel, stride, padding)
    return p + np.log(total) / beta


@smooth_max_pool.vjp("x, g -> gx", bound=custom(_smooth_vjp_bound, "softmax weights", peak=_smooth_vjp_peak))
def smooth_max_pool_vjp(x, g, kernel, stride, padding, beta):
    """gx[cell] = Σ over the windows that meet the cell, in window order, of e^(β(v - p))·(g/Σ_j e^(β(v_j - p))).

    Padded cells weigh in the sum and take no gradient. Cells at an infinite p share g equally."""
    _, _, e, total = _softmax(x, beta, kernel, stride, padding)
    cells = _cells(x.shape[0], x.shape[1:], kernel, stride, padding)
    return _gather(cells, e * (g / total)[..., None], x.shape[0], x.shape[1:])


@synonym(smooth_max_pool, _TEXT_2D.format(", beta: float"), _LISTS, checks=[*_CHECKS_2D, *_BETA], draw=lambda d: flatten_axes(_smooth_draw(d, 2)),
    meanings={"beta": "sharpness; below 0 for a smooth minimum"}, example={"beta": 2.0})  # fmt: skip
def smooth_max_pool2d():
    """Smooth maximum over 2-D windows: smooth_max_pool with two spatial axes."""
