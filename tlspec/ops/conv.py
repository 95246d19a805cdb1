"""Convolutions, channels first, over 1 to 8 spatial axes.

Outside its ends an array reads as 0, and these zeros take part in the sums: next to an infinite weight they give NaN.
Both back ends compute blocked matrix products whose right factor is gathered on the fly; the order of the terms, input
channel by input channel and kernel offset by kernel offset, follows from the shape of one image. A gradient of the
weights sums over batch and positions in segments that the shape fixes.

The heights below count one rounding per term, which is what a chain of K fused multiply-adds has. CUDA sums of at least
64 terms run on tensor cores with both operands split into two TF32 numbers, 32 terms to a chain, and stay below it:

- the bits that two parts of 11 do not hold cost each operand at most 3 roundings, the dropped product of the low parts 4;
- a chain has 12 accumulations, which truncate: each loses less than 2 roundings of the chain's sum on average, one way;
- float32 additions join the ⌈K/32⌉ chains, the blocks of K (at least 192 terms each) and the bias.

That is 34 + ⌈K/32⌉ + ⌈K/192⌉ + 1, at most 38 for the 65 that K = 64 declares, and grows more slowly. Values that a split
cannot hold (not finite, below 2^-100, from 2^114 or in Hopper's kernels 2^127 on) put their tile's sums on chains of fused
multiply-adds, one for each 32 terms or, in Hopper's, for each block of K.

Where CUDA makes a transposed sum of few channels, or a gradient, tap by tap and then adds the taps, K is the number of channels, at
least 64, and each further tap costs one rounding more, of the K that the height counts for it.
"""

import math
from collections.abc import Sequence
from functools import partial
from typing import Any

import numpy as np

from tlspec.bounds import column_height, tree, tree_height
from tlspec.classes import WINDOWS, Classes, Lengths
from tlspec.laws import adjoint, linear
from tlspec.registry import check, op
from tlspec.shapes import (
    conv_grouped_out,
    conv_grouped_size,
    conv_out,
    conv_transpose_grouped_out,
    conv_transpose_grouped_size,
    conv_transpose_out,
)  # fmt: skip
from tlspec.synonyms import synonym


def _window(x, start: Sequence[int], step: Sequence[int], count: Sequence[int]):
    """x[..., start + step·j] for j < count on the trailing axes; 0 outside x."""
    extents = x.shape[x.ndim - len(count) :]
    out = np.zeros((*x.shape[: x.ndim - len(count)], *count), x.dtype, like=x)
    to: list[Any] = [...]
    of: list[Any] = [...]
    for a, s, n, extent in zip(start, step, count, extents, strict=True):
        low, high = max(0, -(a // s)), min(n, -((a - extent) // s))  # the j inside x
        if low >= high:
            return out
        to.append(slice(low, high))
        of.append(slice(a + s * low, a + s * (high - 1) + 1, s))
    out[tuple(to)] = x[tuple(of)]
    return out


def _reached(terms, x, start, step, count):
    """Terms of elements of x, and 0 for those of the zeros around it."""
    return np.where(_window(np.ones(x.shape[-len(count) :]), start, step, count) > 0, terms, 0.0)


def _mix(w, x, rank):
    """Σ_c w[..., o, c]·x[n, ..., c, *spatial], where ... are the axes of groups, or none."""
    *outer, c = x.shape[: x.ndim - rank]
    spatial = x.shape[x.ndim - rank :]
    return (w @ x.reshape(*outer, c, math.prod(spatial))).reshape(*outer, w.shape[-2], *spatial)


def _correlate(x, w, size, stride, padding, dilation, zeros=True):
    """out[n, ..., o, j] = Σ_{c, k} w[..., o, c, k]·x[n, ..., c, j·stride + k·dilation - padding] for j < size; without `zeros` no
    terms of those around x"""
    rank = len(size)
    out = np.zeros((*x.shape[: -rank - 1], w.shape[-rank - 2], *size), np.result_type(x, w, float), like=x)
    for k in np.ndindex(*w.shape[-rank:]):
        start = [i * d - p for i, d, p in zip(k, dilation, padding, strict=True)]
        terms = _mix(w[(..., *k)], _window(x, start, stride, size), rank)
        out += terms if zeros else _reached(terms, x, start, stride, size)
    return out


def _spread(x, w, size, stride, padding, dilation, zeros=True):
    """out[n, ..., o, i] = Σ_{c, k} w[..., c, o, k]·x[n, ..., c, (i + padding - k·dilation) / stride] over the k that divide,
    for i < size"""
    rank = len(size)
    out = np.zeros((*x.shape[: -rank - 1], w.shape[-rank - 1], *size), np.result_type(x, w, float), like=x)
    for offset in np.ndindex(*w.shape[-rank:]):
        k = [i * d for i, d in zip(offset, dilation, strict=True)]
        first = [-((i - p) // s) for i, p, s in zip(k, padding, stride, strict=True)]
        start = [j * s + i - p for j, i, p, s in zip(first, k, padding, stride, strict=True)]
        count = [max(0, -((a - n) // s)) for a, n, s in zip(start, size, stride, strict=True)]
        if min(count) == 0:
            continue
        to = tuple(slice(a, None, s) for a, s in zip(start, stride, strict=True))
        where = first, [1] * rank, count
        terms = _mix(np.swapaxes(w[(..., *offset)], -1, -2), _window(x, *where), rank)
        out[(..., *to)] += terms if zeros else _reached(terms, x, *where)
    return out


def _weights(x, g, kernel, stride, padding, dilation, zeros=True):
    """gw[..., o, c, k] = Σ_{n, j} g[n, ..., o, j]·x[n, ..., c, j·stride + k·dilation - padding]"""
    rank = len(kernel)
    size, space = g.shape[-rank:], g.ndim - rank

    def by_channel(a):
        """a[..., c, n·j]"""
        last = a.transpose(*range(1, space), 0, *range(space, a.ndim))
        return last.reshape(*a.shape[1:space], a.shape[0] * math.prod(size))

    out = np.zeros((*g.shape[1:space], x.shape[space - 1], *kernel), np.result_type(x, g, float), like=x)
    gs = by_channel(g)
    for k in np.ndindex(*kernel):
        start = [i * d - p for i, d, p in zip(k, dilation, padding, strict=True)]
        gs = gs if zeros else by_channel(_reached(g, x, start, stride, size))
        out[(..., *k)] = gs @ np.swapaxes(by_channel(_window(x, start, stride, size)), -1, -2)
    return out


def _dense(stride):
    """No dilation on any axis."""
    return [1] * len(stride)


def _bias_sum(g):
    return g.sum(axis=(0, *range(2, g.ndim)))


def _bias(b, rank):
    return b.reshape(-1, *[1] * rank)


def _bias_height(batch: int, positions: int) -> int:
    """Row tree over an image's positions, column tree over the batch."""
    return tree_height(positions) + column_height(batch)


def _conv_vjp_heights(batch, out_channels, spatial, kernel, stride, padding):
    positions = math.prod(conv_out(spatial, kernel, stride, padding))
    return out_channels * math.prod(kernel), batch * positions, _bias_height(batch, positions)


def _conv_transpose_vjp_heights(batch, out_channels, spatial, kernel, stride, padding):
    positions = math.prod(conv_transpose_out(spatial, kernel, stride, padding))
    return out_channels * math.prod(kernel), batch * math.prod(spatial), _bias_height(batch, positions)


#: a 2-D row's name of a list's entries, and the list
AXES = {"in": "spatial", "kernel": "kernel", "stride": "stride", "padding": "padding"}


#: channels and batches around the widths of the micro-kernels' and the CUDA tiles' edges
CHANNELS = (1, 2, 3, 5, 7, 13, 16, 17, 31, 33, 63, 65, 127, 129)
#: multiply-adds of a drawn case, which the float64 reference repeats for every property
WORK = 2**27


def _draw(transposed: bool, rank: int | None = None):
    def draw(d):
        r = d.rank(1, 8) if rank is None else rank
        share = max(4, d.budget // 4)
        longest = (31, 7, 5, 3, 2, 2, 2, 2)[r - 1]
        kernel, taps = [], 1
        for _ in range(r):
            k = d.integer(1, max(1, min(longest, share // (2 * taps))))
            kernel.append(k)
            taps *= k
        stride = [d.choice((1, 1, 2, 3)) for _ in range(r)]
        padding = [d.integer(0, k if d.rng.random() < 0.2 else k // 2) for k in kernel]
        left, sizes = share, []
        for _ in range(3):  # in_channels, out_channels, batch
            cap = max(1, int(left ** d.rng.uniform(0, 0.6)))
            n = d.aligned(1, cap) or int(d.choice([c for c in CHANNELS if c <= cap]))
            sizes.append(n)
            left = max(1, left // n)
        in_channels, out_channels, batch = sizes
        while in_channels * out_channels * taps > share and in_channels * out_channels > 1:
            in_channels, out_channels = max(1, in_channels // 2), max(1, out_channels // 2)
        if d.empty:
            in_channels, out_channels, batch = (
                n * int(d.rng.random() < 0.6) for n in (in_channels, out_channels, batch)
            )
        per_image = max(1, share // max(1, batch * max(in_channels, out_channels)))
        per_image = min(per_image, max(1, WORK // max(1, batch * in_channels * out_channels * taps)))
        spatial = []
        for i in range(r):
            low = 1 if transposed else max(1, kernel[i] - 2 * padding[i])
            if transposed:
                low = max(low, -((kernel[i] - 2 * padding[i] - 1) // stride[i]) + 1)
            n = low + int(per_image ** d.rng.uniform(0.2, 1) if i + 1 < r else per_image)
            n = (d.aligned(low, n) if d.rng.random() < 0.7 else None) or max(low, n - d.integer(0, 2))
            spatial.append(n)
            grown = n * stride[i] if transposed else n
            per_image = max(1, per_image // grown)
        order = d.rng.permutation(r)
        lists = [[v[int(i)] for i in order] for v in (spatial, kernel, stride, padding)]
        values = {"batch": batch, "in_channels": in_channels, "out_channels": out_channels}
        values |= dict(zip(("spatial", "kernel", "stride", "padding"), lists, strict=True))
        return values if rank is None else flatten_axes(values)

    return draw


def _checks(fits: str, formula: str):
    return [
        check("spatial", "rank(spatial) >= 1 and positive(spatial)", "SHAPE",
              "1 to 8 spatial axes, every size of x at least 1"),
        check("kernel", "rank(kernel) == rank(spatial)", "SHAPE", "one kernel size per spatial axis"),
        check("kernel", "positive(kernel)", "SHAPE", "every kernel size to be at least 1"),
        check("stride", "rank(stride) == rank(spatial)", "ARGUMENT", "one stride per spatial axis"),
        check("stride", "positive(stride)", "ARGUMENT", "every stride to be at least 1"),
        check("padding", "rank(padding) == rank(spatial)", "ARGUMENT", "one padding per spatial axis"),
        check("spatial", f"{fits}(spatial, kernel, stride, padding)", "SHAPE",
              f"every output size, {formula}, from 1 to 2^32 - 1"),
    ]  # fmt: skip


def _checks2d(size: str, formula: str):
    fits = "{0}(in_{1}, kernel_{1}, stride_{1}, padding_{1})"
    return [
        check("in_h", "in_h >= 1 and in_w >= 1", "SHAPE", "both spatial sizes of x to be at least 1"),
        check("kernel_h", "kernel_h >= 1 and kernel_w >= 1", "SHAPE", "both kernel sizes to be at least 1"),
        check("stride_h", "stride_h >= 1 and stride_w >= 1", "ARGUMENT", "both strides to be at least 1"),
        *(check(f"in_{a}", f"{fits.format(size, a)} >= 1 and {fits.format(size, a)} <= 4294967295", "SHAPE",
                f"an output size, {formula}, from 1 to 2^32 - 1") for a in "hw"),
    ]  # fmt: skip


CONV_FORMULA = "floor((in + 2*padding - kernel)/stride) + 1"
TRANSPOSE_FORMULA = "(in - 1)*stride + kernel - 2*padding"


def flatten_axes(size):
    """The same for a 2-D row."""
    out = {k: v for k, v in size.items() if not isinstance(v, list)}
    return out | {f"{to}_{a}": size[name][i] for to, name in AXES.items() for i, a in enumerate("hw")}


LAWS = [linear("x", "b"), linear("w", "b"), adjoint("x", "b"), adjoint("w", "b")]


def _path(batch, in_channels, out_channels, spatial, kernel, stride, padding):
    r = len(spatial)
    return {"batch": batch, "in_channels": in_channels, "out_channels": out_channels, "spatial": list(spatial),
            "kernel": [kernel] * r, "stride": [stride] * r, "padding": [padding] * r}  # fmt: skip


def _classes(size):
    """Windows, and several images."""
    windows = {n: f for n, f in WINDOWS.items() if size is conv_out or n != "a window of padding alone"}
    return {**windows, "several images": lambda batch: batch > 1}


def _lengths(size) -> Lengths:
    """The inner dimension and the columns of the product."""
    return {
        "inner": lambda in_channels, kernel: in_channels * math.prod(kernel),
        "positions": lambda spatial, kernel, stride, padding: math.prod(size(spatial, kernel, stride, padding)),
    }


def _work(size):
    def work(batch, in_channels, out_channels, spatial, kernel, stride, padding):
        return (
            batch * in_channels * out_channels * math.prod(kernel) * math.prod(size(spatial, kernel, stride, padding))
        )

    return work


CLASSES, TRANSPOSE_CLASSES = _classes(conv_out), _classes(conv_transpose_out)

#: a kernel of one tap; sums of few terms, whose errors come near their bounds; convolutions large enough for Hopper's warp group
#: products; first layers, of several channels and of one; and small images whose inner dimension is cut
PATHS = [_path(2, 7, 70, (19, 8), 1, 1, 0), _path(1, 5, 61, (4, 3), 2, 1, 0), _path(4, 61, 125, (47, 44), 3, 1, 1), _path(16, 48, 64, (64, 66), 4, 2, 1),
         _path(4, 3, 61, (61, 67), 7, 2, 3), _path(3, 1, 83, (9, 38), 7, 2, 3), _path(110, 96, 125, (12, 13), 3, 1, 1)]  # fmt: skip
#: layers as models have them, small, with a rest beside tiles
LAYERS = [_path(2, 16, 33, (13, 14), 3, 1, 1), _path(2, 17, 32, (14, 15), 3, 2, 1), _path(2, 32, 64, (14, 14), 1, 1, 0),
          _path(2, 3, 48, (16, 16), 4, 4, 0)]  # fmt: skip
#: the same on one and three axes; an axis of length 1, beside which most taps lie outside; and channels that fill tiles of 48 rows
PATHS_OF_AXES = [_path(8, 96, 127, (1100,), 5, 1, 2), _path(2, 32, 63, (13, 24, 28), 3, 1, 1),
                 _path(2, 32, 61, (5, 64, 1), 3, 1, 1), _path(3, 32, 45, (7, 5, 4), 3, 1, 1)]  # fmt: skip
#: the first of few output channels, which are folded from columns
TRANSPOSE_PATHS = [
    _path(3, 70, 5, (30, 31), 4, 2, 1), _path(4, 128, 125, (24, 23), 4, 2, 1), _path(4, 61, 125, (47, 44), 3, 1, 1), _path(60, 129, 61, (9, 8), 4, 2, 1),
]  # fmt: skip
TRANSPOSE_PATHS_OF_AXES = [_path(2, 64, 61, (32, 1, 3), 4, 2, 1),
                           _path(4, 61, 83, (2, 49, 2), 4, 2, 1)]  # fmt: skip


@op(
    "x[batch, in_channels, *spatial], w[out_channels, in_channels, *kernel], b[out_channels]; stride: dims, padding: dims"
    " -> out[batch, out_channels, *conv_out(spatial, kernel, stride, padding)]",
    bound=tree(lambda in_channels, kernel: in_channels * math.prod(kernel) + 1), same_bits=False, reproducible=True,
    checks=_checks("conv_ok", CONV_FORMULA), draw=_draw(False), paths=[*PATHS, *PATHS_OF_AXES, *LAYERS],
    classes=CLASSES, lengths=_lengths(conv_out), work=_work(conv_out), laws=LAWS,
    source="torch.nn.functional.conv1d, conv2d, conv3d",
    arguments={"w": "weights", "b": "added to each output channel"})  # fmt: skip
def conv(x, w, b, stride, padding, *, zeros=True):
    """Convolution (cross-correlation) over 1 to 8 spatial axes; one image is a batch of 1.

    out[n, o, j] = Σ_{c, k} w[o, c, k]·x[n, c, j·stride + k - padding] + b[o], x being 0 outside its ends

    Shapes: x (batch, in_channels, *spatial), w (out_channels, in_channels, *kernel), b (out_channels), stride and padding
    one entry per spatial axis; out (batch, out_channels, *⌊(spatial + 2·padding - kernel) / stride⌋ + 1).
    Special values: IEEE 754; the zeros around x take part, so an infinite weight gives NaN there. in_channels = 0 gives b
    everywhere; batch = 0 or out_channels = 0 an empty result.
    Errors: different numbers of axes, no axis or more than 8, a stride, kernel, input or output size of 0."""
    size = conv_out(x.shape[2:], w.shape[2:], stride, padding)
    return _correlate(x, w, size, stride, padding, _dense(stride), zeros) + _bias(b, x.ndim - 2)


@conv.vjp("x, w, g -> gx, gw, gb", bound=tree(_conv_vjp_heights), trees=["gb"])
def conv_vjp(x, w, g, stride, padding, *, zeros=True):
    """gx[n, c, i] = Σ_{o, k} w[o, c, k]·g[n, o, (i + padding - k) / stride] over the k that divide, g being 0 outside its
    ends; gw[o, c, k] = Σ_{n, j} g[n, o, j]·x[n, c, j·stride + k - padding]; gb[o] = Σ_{n, j} g[n, o, j], by the row tree
    over an image and the column tree over the batch."""
    gx = _spread(g, w, x.shape[2:], stride, padding, _dense(stride), zeros)
    return gx, _weights(x, g, w.shape[2:], stride, padding, _dense(stride), zeros), _bias_sum(g)


@op(
    "x[batch, in_channels, *spatial], w[in_channels, out_channels, *kernel], b[out_channels]; stride: dims, padding: dims"
    " -> out[batch, out_channels, *conv_transpose_out(spatial, kernel, stride, padding)]",
    bound=tree(lambda in_channels, kernel: in_channels * math.prod(kernel) + 1), same_bits=False, reproducible=True,
    checks=_checks("conv_transpose_ok", TRANSPOSE_FORMULA), draw=_draw(True), paths=[*TRANSPOSE_PATHS, *TRANSPOSE_PATHS_OF_AXES],
    classes=TRANSPOSE_CLASSES, lengths=_lengths(conv_transpose_out), work=_work(conv_transpose_out), laws=LAWS,
    source="torch.nn.functional.conv_transpose1d, conv_transpose2d, conv_transpose3d",
    arguments={"w": "weights", "b": "added to each output channel"})  # fmt: skip
def conv_transpose(x, w, b, stride, padding, *, zeros=True):
    """Transposed convolution over 1 to 8 spatial axes: the gradient of conv with respect to its input, plus a bias.

    out[n, o, i] = Σ_{c, k} w[c, o, k]·x[n, c, (i + padding - k) / stride] + b[o] over the k that divide, x being 0 outside

    Shapes: x (batch, in_channels, *spatial), w (in_channels, out_channels, *kernel), b (out_channels), stride and padding
    one entry per spatial axis; out (batch, out_channels, *(spatial - 1)·stride + kernel - 2·padding).
    Special values: IEEE 754; the zeros around x take part, so an infinite weight gives NaN there. in_channels = 0 gives b
    everywhere; batch = 0 or out_channels = 0 an empty result.
    Errors: different numbers of axes, no axis or more than 8, a stride, kernel or input size of 0, an output size that is
    not positive."""
    size = conv_transpose_out(x.shape[2:], w.shape[2:], stride, padding)
    return _spread(x, w, size, stride, padding, _dense(stride), zeros) + _bias(b, x.ndim - 2)


@conv_transpose.vjp("x, w, g -> gx, gw, gb", bound=tree(_conv_transpose_vjp_heights), trees=["gb"])
def conv_transpose_vjp(x, w, g, stride, padding, *, zeros=True):
    """gx[n, c, j] = Σ_{o, k} w[c, o, k]·g[n, o, j·stride + k - padding], which is conv of g; gw[c, o, k] = Σ_{n, j} x[n, c, j]·
    g[n, o, j·stride + k - padding]; gb[o] = Σ_{n, i} g[n, o, i], by the row tree over an image and the column tree over the
    batch. g is 0 outside its ends."""
    gx = _correlate(g, w, x.shape[2:], stride, padding, _dense(stride), zeros)
    return gx, _weights(g, x, w.shape[2:], stride, padding, _dense(stride), zeros), _bias_sum(g)


def _by_elements(*rows):
    """Lets kernels pass over the zeros around an array, which make NaN of infinite weights."""
    for row in rows:
        row.formula()(partial(row.reference, zeros=False))
        row.formula("vjp")(partial(row.rule.reference, zeros=False))


_by_elements(conv, conv_transpose)
_LISTS = (
    "spatial=[in_h, in_w], kernel=[kernel_h, kernel_w], stride=[stride_h, stride_w], padding=[padding_h, padding_w]"
)
_MEANINGS = {"w": "weights", "b": "added to each output channel"}


@synonym(conv,
    "x[batch, in_channels, in_h, in_w], w[out_channels, in_channels, kernel_h, kernel_w], b[out_channels];"
    " stride_h: u32, stride_w: u32, padding_h: u32, padding_w: u32 -> out[batch, out_channels,"
    " conv_size(in_h, kernel_h, stride_h, padding_h), conv_size(in_w, kernel_w, stride_w, padding_w)]", _LISTS,
    checks=_checks2d("conv_size", CONV_FORMULA), draw=_draw(False, 2), meanings=_MEANINGS,
    paths=[flatten_axes(p) for p in LAYERS])  # fmt: skip
def conv2d():
    """Convolution of images; conv with two spatial axes."""


@synonym(conv_transpose,
    "x[batch, in_channels, in_h, in_w], w[in_channels, out_channels, kernel_h, kernel_w], b[out_channels];"
    " stride_h: u32, stride_w: u32, padding_h: u32, padding_w: u32 -> out[batch, out_channels,"
    " conv_transpose_size(in_h, kernel_h, stride_h, padding_h), conv_transpose_size(in_w, kernel_w, stride_w, padding_w)]", _LISTS,
    checks=_checks2d("conv_transpose_size", TRANSPOSE_FORMULA), draw=_draw(True, 2), meanings=_MEANINGS)  # fmt: skip
def conv_transpose2d():
    """Transposed convolution of images; conv_transpose with two spatial axes."""


GROUPED_FORMULA = "floor((in + padding_low + padding_high - dilation*(kernel - 1) - 1)/stride) + 1"
TRANSPOSE_GROUPED_FORMULA = "(in - 1)*stride + dilation*(kernel - 1) + 1 + output_padding - padding_low - padding_high"


def _grouped_checks(fits: str, formula: str, *more: str):
    """Those of the rows without groups, on the longer lists."""
    lists = ", ".join(["spatial, kernel, stride, dilation, padding_low, padding_high", *more])
    few = [c for c in _checks("conv_ok", "") if c.name in ("kernel", "stride") or "positive" in c.expression]
    return [
        check("groups", "groups >= 1", "SHAPE", "at least 1"), *few,
        check("dilation", "rank(dilation) == rank(spatial)", "ARGUMENT", "one dilation per spatial axis"),
        check("dilation", "positive(dilation)", "ARGUMENT", "every dilation to be at least 1"),
        *(check(p, f"rank({p}) == rank(spatial)", "ARGUMENT", "one padding per spatial axis")
          for p in ("padding_low", "padding_high", *more)),
        check("spatial", f"{fits}({lists})", "SHAPE", f"every output size, {formula}, from 1 to 2^32 - 1"),
    ]  # fmt: skip


def _draw_grouped(transposed: bool):
    """A drawn convolution whose channels are shared out among groups, with dilations and another padding after each axis."""
    plain = _draw(transposed)

    def draw(d):
        values = plain(d)
        groups = d.choice((1, 2, 3, 4, max(1, min(values["in_channels"], values["out_channels"]))))
        values |= {n: -(-values[n] // groups) for n in ("in_channels", "out_channels")} | {"groups": groups}
        kernel, stride, low = values["kernel"], values["stride"], values.pop("padding")
        values["padding_low"] = low
        values["dilation"] = [d.choice((1, 1, 2, 3)) for _ in kernel]
        values["padding_high"] = [max(0, p + d.integer(-1, 2)) for p in low]
        sides = [values[n] for n in ("dilation", "padding_low", "padding_high")]
        if transposed:
            values["output_padding"] = [d.integer(0, s - 1) for s in stride]
            size, lists = conv_transpose_grouped_size, [*sides, values["output_padding"]]
        else:
            size, lists = conv_grouped_size, sides
        for i, (k, s, *rest) in enumerate(zip(kernel, stride, *lists, strict=True)):
            while size(values["spatial"][i], k, s, *rest) < 1:
                values["spatial"][i] += 1
        return values

    return draw


def _grouped_path(batch, groups, in_channels, out_channels, spatial, kernel, stride, dilation, low, high):
    r = len(spatial)
    values = _path(batch, in_channels, out_channels, spatial, kernel, stride, low) | {"groups": groups}
    return values | {"dilation": [dilation] * r, "padding_low": values.pop("padding"), "padding_high": [high] * r}


#: sums of few terms; depthwise layers as models have them, dilated and strided ones, groups of many channels, and one group
GROUPED_PATHS = [
    _grouped_path(1, 61, 1, 2, (4, 3), 2, 1, 1, 0, 0),
    _grouped_path(2, 33, 1, 1, (31, 37), 3, 1, 1, 1, 1), _grouped_path(2, 5, 1, 2, (37, 66), 5, 2, 1, 2, 1),
    _grouped_path(1, 3, 2, 3, (23, 65), 3, 1, 3, 3, 3), _grouped_path(3, 2, 17, 33, (17, 19), 3, 2, 2, 2, 3),
    _grouped_path(2, 1, 40, 64, (30, 33), 3, 1, 2, 2, 2), _grouped_path(2, 7, 1, 1, (300,), 7, 1, 1, 6, 0),
]  # fmt: skip
#: depthwise layers with strides whose planes take several thread blocks
GROUPED_PATHS += [_grouped_path(1, 3, 1, 1, (97, 113), k, 2, 1, 2, 1) for k in (3, 7)]
#: groups enough for their lanes, images small enough: several, and one alone
SMALL_PATHS = [_grouped_path(3, 67, 1, 1, (7, 6), 5, 2, 1, 2, 2), _grouped_path(37, 10, 2, 3, (5, 3), 3, 1, 1, 1, 2),
               _grouped_path(1, 77, 1, 2, (5, 4), 3, 1, 1, 1, 1)]  # fmt: skip
GROUPED_PATHS += SMALL_PATHS
TRANSPOSE_GROUPED_PATHS = [
    p | {"output_padding": [s - 1 for s in p["stride"]]} for p in GROUPED_PATHS[:5] + SMALL_PATHS
]


#: groups that are summed directly or by matrix products, and what the lists of either side do
GROUPED_CLASSES: Classes = {
    "depthwise": lambda groups, in_channels, out_channels: groups > 1 and in_channels == out_channels == 1,
    "small images of many groups": lambda batch, groups, in_channels, out_channels, spatial: groups > 1
    and max(in_channels, out_channels) <= 8 and batch * groups >= 64 and math.prod(spatial) * in_channels * out_channels <= 32,
    "several groups of many channels": lambda groups, in_channels: groups > 1 and in_channels > 8,
    "one group": lambda groups: groups == 1,
    "a dilated kernel": lambda kernel, dilation: any(k > 1 and d > 1 for k, d in zip(kernel, dilation, strict=True)),
    "stride and dilation with a common factor": lambda kernel, stride, dilation: any(
        k > 1 and math.gcd(s, d) > 1 for k, s, d in zip(kernel, stride, dilation, strict=True)),
    "other padding after than before": lambda padding_low, padding_high: list(padding_low) != list(padding_high),
    "several images": lambda batch: batch > 1,
}  # fmt: skip


def _grouped_size(kernel, spatial, stride, dilation, padding_low, padding_high):
    return conv_grouped_out(spatial, kernel, stride, dilation, padding_low, padding_high)


def _grouped_transpose_size(kernel, spatial, stride, dilation, padding_low, padding_high, output_padding):
    return conv_transpose_grouped_out(spatial, kernel, stride, dilation, padding_low, padding_high, output_padding)


def _grouped_heights(batch, out_channels, spatial, kernel, stride, dilation, padding_low, padding_high):
    positions = math.prod(_grouped_size(kernel, spatial, stride, dilation, padding_low, padding_high))
    return out_channels * math.prod(kernel), batch * positions, _bias_height(batch, positions)


def _grouped_transpose_heights(
    batch, out_channels, spatial, kernel, stride, dilation, padding_low, padding_high, output_padding
):
    lists = (spatial, stride, dilation, padding_low, padding_high, output_padding)
    positions = math.prod(_grouped_transpose_size(kernel, *lists))
    return out_channels * math.prod(kernel), batch * math.prod(spatial), _bias_height(batch, positions)


def _add_bias(out, b):
    """out (batch, groups, channels, …) plus b (groups, channels), or nothing."""
    return out if b is None else out + b.reshape(*b.shape, *[1] * (out.ndim - 3))


@op(
    "x[batch, groups, in_channels, *spatial], w[groups, out_channels, in_channels, *kernel], b?[groups, out_channels];"
    " stride: dims, dilation: dims, padding_low: dims, padding_high: dims -> out[batch, groups, out_channels,"
    " *conv_grouped_out(spatial, kernel, stride, dilation, padding_low, padding_high)]",
    bound=tree(lambda in_channels, kernel: in_channels * math.prod(kernel) + 1), same_bits=False, reproducible=True,
    checks=_grouped_checks("conv_grouped_ok", GROUPED_FORMULA), draw=_draw_grouped(False), paths=GROUPED_PATHS,
    classes=GROUPED_CLASSES, laws=LAWS,
    source="torch.nn.functional.conv2d with groups and dilation, after torch.nn.functional.pad",
    arguments={"w": "weights", "b": "added to each output channel"})  # fmt: skip
def conv_grouped(x, w, b, stride, dilation, padding_low, padding_high, *, zeros=True):
    """Convolution of groups of channels, each with weights of its own, over 1 to 8 spatial axes.

    out[n, g, o, j] = Σ_{c, k} w[g, o, c, k]·x[n, g, c, j·stride + k·dilation - padding_low] + b[g, o], x being 0 outside

    Shapes: x (batch, groups, in_channels, *spatial), w (groups, out_channels, in_channels, *kernel), b (groups,
    out_channels) or none; stride, dilation and the paddings before and after one entry per spatial axis; out (batch,
    groups, out_channels, *⌊(spatial + padding_low + padding_high - dilation·(kernel - 1) - 1) / stride⌋ + 1).
    Special values: those of conv; without b nothing is added.
    Errors: those of conv; no group, a dilation of 0."""
    size = conv_grouped_out(x.shape[3:], w.shape[3:], stride, dilation, padding_low, padding_high)
    return _add_bias(_correlate(x, w, size, stride, padding_low, dilation, zeros), b)


@conv_grouped.vjp("x, w, g -> gx, gw, gb", bound=tree(_grouped_heights), trees=["gb"])
def conv_grouped_vjp(x, w, g, stride, dilation, padding_low, *, zeros=True):
    """The VJP of conv, group by group: gx[n, g, c, i] sums over the k for which i + padding_low - k·dilation is a multiple of
    the stride."""
    lists = (stride, padding_low, dilation, zeros)
    gx, gw = _spread(g, w, x.shape[3:], *lists), _weights(x, g, w.shape[3:], *lists)
    return gx, gw, g.sum(axis=(0, *range(3, g.ndim)))


@op(
    "x[batch, groups, in_channels, *spatial], w[groups, in_channels, out_channels, *kernel], b?[groups, out_channels];"
    " stride: dims, dilation: dims, padding_low: dims, padding_high: dims, output_padding: dims -> out[batch, groups, out_channels,"
    " *conv_transpose_grouped_out(spatial, kernel, stride, dilation, padding_low, padding_high, output_padding)]",
    bound=tree(lambda in_channels, kernel: in_channels * math.prod(kernel) + 1), same_bits=False, reproducible=True,
    checks=_grouped_checks("conv_transpose_grouped_ok", TRANSPOSE_GROUPED_FORMULA, "output_padding"),
    draw=_draw_grouped(True), paths=TRANSPOSE_GROUPED_PATHS, classes=GROUPED_CLASSES,
    laws=LAWS, source="torch.nn.functional.conv_transpose2d with groups, dilation and output_padding",
    arguments={"w": "weights", "b": "added to each output channel"})  # fmt: skip
def conv_transpose_grouped(x, w, b, stride, dilation, padding_low, padding_high, output_padding, *, zeros=True):
    """Transposed convolution of groups of channels: the gradient of conv_grouped with respect to its input, plus a bias.

    out[n, g, o, i] = Σ_{c, k} w[g, c, o, k]·x[n, g, c, (i + padding_low - k·dilation) / stride] + b[g, o] over the k that divide

    Shapes: x (batch, groups, in_channels, *spatial), w (groups, in_channels, out_channels, *kernel), b (groups,
    out_channels) or none; the lists one entry per spatial axis; out (batch, groups, out_channels, *(spatial - 1)·stride +
    dilation·(kernel - 1) + 1 + output_padding - padding_low - padding_high). Elements that output_padding adds get the terms
    that reach them.
    Special values: those of conv_transpose; without b nothing is added.
    Errors: those of conv_transpose; no group, a dilation of 0."""
    lists = (stride, dilation, padding_low, padding_high, output_padding)
    size = conv_transpose_grouped_out(x.shape[3:], w.shape[3:], *lists)
    return _add_bias(_spread(x, w, size, stride, padding_low, dilation, zeros), b)


@conv_transpose_grouped.vjp("x, w, g -> gx, gw, gb", bound=tree(_grouped_transpose_heights), trees=["gb"])
def conv_transpose_grouped_vjp(x, w, g, stride, dilation, padding_low, *, zeros=True):
    """The VJP of conv_transpose, group by group, with the dilation of the forward pass."""
    lists = (stride, padding_low, dilation, zeros)
    gx, gw = _correlate(g, w, x.shape[3:], *lists), _weights(g, x, w.shape[3:], *lists)
    return gx, gw, g.sum(axis=(0, *range(3, g.ndim)))


_by_elements(conv_grouped, conv_transpose_grouped)
