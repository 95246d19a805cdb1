"""Products, attention, convolutions and pools."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from tlrt.onnx.graph import OPERATORS, Host, Mask, Run, Tensor, Value, operator


@operator("Gemm")
def gemm(
    run: Run, a: Tensor, b: Tensor, c: Tensor = None, *, alpha: float = 1, beta: float = 1, transA: int = 0, transB: int = 0
) -> Tensor:  # fmt: skip
    y = (a.transpose2d() if transA else a) @ (b.transpose2d() if transB else b) * alpha
    return y if c is None else y + c * beta


# ---- attention


def _heads(x: Tensor, heads: int | None) -> Tensor:
    """(batch, n, heads·d) as (batch, heads, n, d)."""
    if x.ndim == 4 or heads is None:
        return x
    return x.reshape((*x.shape[:2], heads, x.shape[2] // heads)).permute((0, 2, 1, 3))


def _joined(x: Tensor) -> Tensor:
    """The heads beside each other again."""
    n, heads, length, width = x.shape
    return x.permute((0, 2, 1, 3)).reshape((n, length, heads * width))


def _blocked(queries: int, keys: int, past: int, valid: Host, causal: int, left: int, right: int) -> np.ndarray:
    """Which pairs of a query and a key are left out, as what broadcasts to (batch, heads, queries, keys)."""
    offset = np.asarray([past]) if valid is None else valid.reshape(-1) - queries
    ahead = np.arange(keys) - (np.arange(queries)[:, None] + offset[:, None, None, None])
    blocked = np.zeros(ahead.shape, bool)
    for active, there in ((causal, ahead > 0), (left >= 0, ahead < -left), (right >= 0, ahead > right)):
        blocked |= there if active else False
    if valid is not None:
        blocked = blocked | (np.arange(keys) >= valid.reshape(-1, 1, 1, 1))
    return blocked


@operator("Attention")
def attention(
    run: Run, q: Tensor, k: Tensor, v: Tensor, mask: Value = None, past_k: Tensor = None, past_v: Tensor = None,
    valid: Host = None, *, is_causal: int = 0, kv_num_heads: int | None = None, q_num_heads: int | None = None,
    qk_matmul_output_mode: int = 0, scale: float | None = None, softcap: float = 0.0, softmax_precision: int = 1,
    left_window_size: int = -1, right_window_size: int = -1,
) -> Any:  # fmt: skip
    s, flat = run.session, q.ndim == 3
    q, k, v = _heads(q, q_num_heads), _heads(k, kv_num_heads), _heads(v, kv_num_heads)
    past = 0
    if past_k is not None:
        past, k, v = past_k.shape[2], s.concat([past_k, k], 2), s.concat([past_v, v], 2)
    blocked = _blocked(q.shape[2], k.shape[2], past, valid, is_causal, left_window_size, right_window_size)
    opened = None  # 1 where a query sees a key
    if mask is not None:
        extra = [(0, 0)] * (mask.ndim - 1) + [(0, k.shape[2] - mask.shape[-1])]
        if isinstance(mask, np.ndarray):
            mask, blocked = None, blocked | ~np.pad(mask, extra)
        elif isinstance(mask, Mask):
            mask, opened = None, mask.tensor.pad(extra)
        else:
            mask = mask.pad(extra, -math.inf)
    if blocked.any():
        seen = run.tensor(~blocked)
        opened = seen if opened is None else opened * seen
    single = bool(softcap) or run.results == 4 or (mask is not None and blocked.all(-1).any())
    if opened is not None and (single or mask is not None):
        closed = s.where(opened, 0.0, -math.inf)
        mask, opened = closed if mask is None else mask + closed, None
    if single:
        y, scores = _attend(run, q, k, v, mask, scale, softcap, qk_matmul_output_mode)
    else:
        mode = "hard" if opened is not None else None if mask is None else "additive"
        given = mask if opened is None else opened
        y, scores = s.scaled_dot_product_attention(q, k, v, given, scale=scale, mask_mode=mode), None
    return _joined(y) if flat else y, k, v, scores


def _attend(run: Run, q: Tensor, k: Tensor, v: Tensor, bias: Tensor, scale: float | None, cap: float, mode: int) -> Any:
    """Attention in single steps, for results that hold the scores; queries without a key give 0."""
    s, each = run.session, q.shape[1] // k.shape[1]
    k, v = k.repeat(each, 1), v.repeat(each, 1)
    stages = [q @ k.permute((0, 1, 3, 2)) * (q.shape[-1] ** -0.5 if scale is None else scale)]
    stages.append((stages[0] / cap).tanh() * cap if cap else stages[0])
    stages.append(stages[1] if bias is None else stages[1] + bias)
    weights = s.softmax(stages[2])
    if bias is not None:
        shut = s.broadcast_to(bias, stages[2].shape).max(axis=-1, keepdims=True).eq(-math.inf)
        weights = s.where(shut, 0.0, weights)
    return weights @ v, [*stages, weights][mode]


# ---- convolutions and pools


def _pads(
    size: Any, kernel: Any, stride: Any, dilation: Any, pads: Any, auto_pad: str, ceil_mode: int = 0
) -> tuple[list[int], list[int], list[int]]:
    """The padding before and after every axis, and how much of the latter is there for the last window alone."""
    rank = len(kernel)
    before, after, extra = list(pads or [0] * 2 * rank)[:rank], list(pads or [0] * 2 * rank)[rank:], [0] * rank
    for k in range(rank):
        reach = (kernel[k] - 1) * dilation[k] + 1
        if auto_pad.startswith("SAME"):
            total = max((-(-size[k] // stride[k]) - 1) * stride[k] + reach - size[k], 0)
            before[k] = total // 2 if auto_pad == "SAME_UPPER" else total - total // 2
            after[k] = total - before[k]
        left = size[k] + before[k] + after[k] - reach
        if ceil_mode and left % stride[k] and (left // stride[k] + 1) * stride[k] < size[k] + before[k]:
            extra[k] = stride[k] - left % stride[k]
    return before, [a + e for a, e in zip(after, extra)], extra


def _around(before: Any, after: Any) -> list[tuple[int, int]]:
    return [(0, 0), (0, 0), *zip(before, after)]


@operator("Conv")
def conv(run: Run, x: Tensor, w: Tensor, b: Tensor = None, *, kernel_shape: Any = None, strides: Any = None, pads: Any = None,
         dilations: Any = None, group: int = 1, auto_pad: str = "NOTSET") -> Tensor:  # fmt: skip
    rank = x.ndim - 2
    strides, dilations = strides or [1] * rank, dilations or [1] * rank
    before, after, _ = _pads(x.shape[2:], w.shape[2:], strides, dilations, pads, auto_pad)
    return run.session.conv(w, b, x, strides, list(zip(before, after)), dilation=dilations, groups=group)


@operator("ConvTranspose")
def conv_transpose(
    run: Run, x: Tensor, w: Tensor, b: Tensor = None, *, kernel_shape: Any = None, strides: Any = None, pads: Any = None,
    dilations: Any = None, group: int = 1, output_padding: Any = None, output_shape: Any = None, auto_pad: str = "NOTSET",
) -> Tensor:  # fmt: skip
    """A wanted shape says the padding; where none is wanted, SAME stands for the length times the stride."""
    rank = x.ndim - 2
    strides, dilations, more = strides or [1] * rank, dilations or [1] * rank, output_padding or [0] * rank
    before, after = np.reshape(pads or [0] * 2 * rank, (2, -1)).tolist()
    if output_shape is None and auto_pad.startswith("SAME"):
        output_shape = [n * s for n, s in zip(x.shape[2:], strides)]
    if output_shape is not None:
        sizes = zip(x.shape[2:], w.shape[2:], strides, dilations, more, output_shape[-rank:])
        total = [s * (n - 1) + m + (k - 1) * d + 1 - out for n, k, s, d, m, out in sizes]
        less, most = [t // 2 for t in total], [t - t // 2 for t in total]
        before, after = (less, most) if auto_pad == "SAME_UPPER" else (most, less)
    inside = [(max(p, 0), max(q - m, 0)) for p, q, m in zip(before, after, more)]
    whole = run.session.conv_transpose(w, b, x, strides, inside, dilation=dilations, groups=group)
    widths = [(max(-p, 0), max(m - q, 0)) for p, q, m in zip(before, after, more)]
    if not np.any(widths):
        return whole
    bias = run.session.zeros((w.shape[1] * group,)) if b is None else b
    shut = np.pad(np.zeros(whole.shape[2:], np.bool_), widths, constant_values=True)
    spread = bias.reshape((1, -1, *[1] * rank))
    return run.session.where(run.tensor(shut), spread, whole.pad([(0, 0), (0, 0), *widths]))


@operator("CausalConvWithState")
def causal_conv(
    run: Run, x: Tensor, w: Tensor, b: Tensor = None, state: Any = None, *, activation: str = "none"
) -> Any:
    past = w.shape[2] - 1
    x = x.pad([(0, 0), (0, 0), (past, 0)]) if state is None else run.session.concat([state, x], 2)
    y = conv(run, x, w, b, group=w.shape[0])
    return (y if activation == "none" else y.silu()), x[:, :, x.shape[2] - past :]


def _pool(run: Run, x: Tensor, how: str, kernel: Any, strides: Any, pads: Any, dilations: Any, auto_pad: str, ceil_mode: int,
          count_include_pad: int = 0) -> Tensor:  # fmt: skip
    """The largest or the mean of each window. Padding counts in a mean if it is included, but never what is there for the last
    window alone."""
    s, rank = run.session, x.ndim - 2
    strides, dilations = strides or [1] * rank, dilations or [1] * rank
    before, after, extra = _pads(x.shape[2:], kernel, strides, dilations, pads, auto_pad, ceil_mode)
    if max(dilations) > 1:
        places = _windows(x.shape[2:], kernel, strides, dilations, before, after)
        windows = _in_windows(run, x, places, -math.inf if how == "max" else 0.0)
        if how == "max":
            return windows.max(axis=-1)
        counted = (places >= 0).sum(-1)
        if count_include_pad:
            inner = _windows(
                np.add(x.shape[2:], np.add(before, after) - extra), kernel, strides, dilations, [0] * rank, extra
            )
            counted = (inner >= 0).sum(-1)
        return windows.sum(axis=-1) / run.tensor(counted)
    if how == "max":
        return s.max_pool(x.pad(_around(before, after), -math.inf), kernel, strides)
    means = s.avg_pool(x.pad(_around(before, after)), kernel, strides)
    ones = s.full(x.shape, 1.0).pad(_around(before, [a - e for a, e in zip(after, extra)]), float(count_include_pad))
    return means / s.avg_pool(ones.pad(_around([0] * rank, extra)), kernel, strides)


def _windows(sizes: Any, kernel: Any, strides: Any, dilations: Any, before: Any, after: Any) -> np.ndarray:
    """Where the elements of each window are in the flattened axes, -1 for padding: (windows of each axis, elements)."""
    rank, flat, inside = len(kernel), np.zeros((), np.int64), np.ones((), np.bool_)
    for k in range(rank):
        count = (sizes[k] + before[k] + after[k] - (kernel[k] - 1) * dilations[k] - 1) // strides[k] + 1
        at = np.arange(count)[:, None] * strides[k] - before[k] + np.arange(kernel[k]) * dilations[k]
        at = at.reshape([at.shape[(j >= rank)] if j % rank == k else 1 for j in range(2 * rank)])
        flat, inside = flat * sizes[k] + at, inside & (at >= 0) & (at < sizes[k])
    places = np.where(inside, flat, -1)
    return places.reshape(*places.shape[:rank], -1)


def _in_windows(run: Run, x: Tensor, places: np.ndarray, empty: float) -> Tensor:
    """(batch, channels, windows of each axis, elements)."""
    rows = x.reshape((*x.shape[:2], math.prod(x.shape[2:])))
    found = rows.take(np.maximum(places, 0), axis=2)
    return found if (places >= 0).all() else found.masked_fill(run.tensor(places < 0), empty)


@operator("MaxPool")
def max_pool(
    run: Run, x: Tensor, *, kernel_shape: Any, strides: Any = None, pads: Any = None, dilations: Any = None,
    auto_pad: str = "NOTSET", ceil_mode: int = 0, storage_order: int = 0,
) -> Any:  # fmt: skip
    """With the places of the first largest elements in the flattened x, or in x with its spatial axes reversed."""
    if run.results == 1:
        return _pool(run, x, "max", kernel_shape, strides, pads, dilations, auto_pad, ceil_mode)
    rank, sizes = x.ndim - 2, x.shape[2:]
    strides, dilations = strides or [1] * rank, dilations or [1] * rank
    before, after, _ = _pads(sizes, kernel_shape, strides, dilations, pads, auto_pad, ceil_mode)
    places = _windows(sizes, kernel_shape, strides, dilations, before, after)
    windows = _in_windows(run, x, places, -math.inf)
    best = np.asarray(windows.argmax(axis=-1).numpy(), np.int64)
    chosen = np.take_along_axis(np.broadcast_to(places, windows.shape), best[..., None], -1)[..., 0]
    # where all are -inf, padding is no element: the first that is one
    first = np.take_along_axis(places, (places >= 0).argmax(-1)[..., None], -1)[..., 0]
    chosen = np.where(chosen < 0, first, chosen)
    if storage_order:
        chosen = np.arange(math.prod(sizes)).reshape(sizes[::-1]).T.reshape(-1)[chosen]
    start = np.arange(math.prod(x.shape[:2])).reshape(*x.shape[:2], *[1] * rank) * math.prod(sizes)
    return windows.take_along(best[..., None], axis=-1).reshape(best.shape), chosen + start


@operator("AveragePool")
def average_pool(
    run: Run, x: Tensor, *, kernel_shape: Any, strides: Any = None, pads: Any = None, dilations: Any = None,
    auto_pad: str = "NOTSET", ceil_mode: int = 0, count_include_pad: int = 0,
) -> Tensor:  # fmt: skip
    return _pool(run, x, "mean", kernel_shape, strides, pads, dilations, auto_pad, ceil_mode, count_include_pad)


@operator("LpPool")
def lp_pool(
    run: Run, x: Tensor, *, kernel_shape: Any, strides: Any = None, pads: Any = None, dilations: Any = None,
    auto_pad: str = "NOTSET", ceil_mode: int = 0, p: int = 2,
) -> Tensor:  # fmt: skip
    rank = x.ndim - 2
    strides, dilations = strides or [1] * rank, dilations or [1] * rank
    before, after, _ = _pads(x.shape[2:], kernel_shape, strides, dilations, pads, auto_pad, ceil_mode)
    places = _windows(x.shape[2:], kernel_shape, strides, dilations, before, after)
    return _in_windows(run, x, places, 0.0).norm(float(p), axis=-1)


@operator("LRN")
def lrn(run: Run, x: Tensor, *, size: int, alpha: float = 1e-4, beta: float = 0.75, bias: float = 1.0) -> Tensor:
    """x / (bias + alpha/size Σ x²) ^ beta, the sum being over the channels around."""
    before = (size - 1) // 2
    squares = x.square().pad([(before, size - 1 - before) if k == 1 else (0, 0) for k in range(x.ndim)])
    total = sum((squares[:, k : k + x.shape[1]] for k in range(1, size)), start=squares[:, : x.shape[1]])
    return x / (total * (alpha / size) + bias).pow(beta)


def _spatial(x: Tensor) -> tuple[int, ...]:
    return tuple(range(2, x.ndim))


def _global_lp_pool(run: Run, x: Tensor, *, p: int = 2) -> Tensor:
    return x.norm(float(p), axis=_spatial(x), keepdims=True)


OPERATORS.update({
    "GlobalLpPool": _global_lp_pool,
    "GlobalAveragePool": lambda run, x: x.mean(axis=_spatial(x), keepdims=True),
    "GlobalMaxPool": lambda run, x: x.max(axis=_spatial(x), keepdims=True),
})  # fmt: skip
