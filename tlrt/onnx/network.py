"""Products, attention, convolutions and pools."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from tlrt.onnx.graph import OPERATORS, Host, NotExpressible, Run, Tensor, Value, operator


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
    if mask is not None:
        extra = [(0, 0)] * (mask.ndim - 1) + [(0, k.shape[2] - mask.shape[-1])]
        if isinstance(mask, np.ndarray):
            mask, blocked = None, blocked | ~np.pad(mask, extra)
        else:
            mask = mask.pad(extra, -math.inf)
    if blocked.any():
        closed = run.tensor(np.where(blocked, -np.inf, 0.0))
        mask = closed if mask is None else mask + closed
    if softcap or run.results == 4 or blocked.all(-1).any():
        y, scores = _attend(run, q, k, v, mask, scale, softcap, qk_matmul_output_mode)
    else:
        mode = None if mask is None else "additive"
        y, scores = s.scaled_dot_product_attention(q, k, v, mask, scale=scale, mask_mode=mode), None
    return _joined(y) if flat else y, k, v, scores


def _attend(run: Run, q: Tensor, k: Tensor, v: Tensor, bias: Tensor, scale: float | None, cap: float, mode: int) -> Any:
    """Attention in single steps, for what wants the scores; queries without a key give 0."""
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
    dilations: Any = None, group: int = 1, output_padding: Any = None,
) -> Tensor:  # fmt: skip
    pairs = np.reshape(pads or [0] * 2 * (x.ndim - 2), (2, -1)).T.tolist()
    more = {"dilation": dilations or 1, "groups": group, "output_padding": output_padding or 0}
    return run.session.conv_transpose(w, b, x, strides or 1, pairs, **more)


@operator("CausalConvWithState")
def causal_conv(
    run: Run, x: Tensor, w: Tensor, b: Tensor = None, state: Any = None, *, activation: str = "none"
) -> Any:
    past = w.shape[2] - 1
    x = x.pad([(0, 0), (0, 0), (past, 0)]) if state is None else run.session.concat([state, x], 2)
    y = conv(run, x, w, b, group=w.shape[0])
    return (y if activation == "none" else y.silu()), x[:, :, x.shape[2] - past :]


def _pool(run: Run, x: Tensor, how: str, *, kernel_shape: Any, strides: Any = None, pads: Any = None, dilations: Any = None,
          auto_pad: str = "NOTSET", ceil_mode: int = 0, count_include_pad: int = 0) -> Tensor:  # fmt: skip
    """The largest, the mean or the sum of each window. Padding counts in a mean if it is included, but never what is there for
    the last window alone."""
    s, rank = run.session, x.ndim - 2
    strides = strides or [1] * rank
    if max(dilations or [1]) > 1:
        raise NotExpressible("pools with dilations")
    before, after, extra = _pads(x.shape[2:], kernel_shape, strides, [1] * rank, pads, auto_pad, ceil_mode)
    if how == "max":
        return s.max_pool(x.pad(_around(before, after), -math.inf), kernel_shape, strides)
    means = s.avg_pool(x.pad(_around(before, after)), kernel_shape, strides)
    if how == "sum":
        return means * math.prod(kernel_shape)
    ones = s.full(x.shape, 1.0).pad(_around(before, [a - e for a, e in zip(after, extra)]), float(count_include_pad))
    return means / s.avg_pool(ones.pad(_around([0] * rank, extra)), kernel_shape, strides)


@operator("MaxPool")
def max_pool(run: Run, x: Tensor, *, storage_order: int = 0, **geometry: Any) -> Tensor:
    return _pool(run, x, "max", **geometry)


@operator("AveragePool")
def average_pool(run: Run, x: Tensor, **geometry: Any) -> Tensor:
    return _pool(run, x, "mean", **geometry)


@operator("LpPool")
def lp_pool(run: Run, x: Tensor, *, p: int = 2, **geometry: Any) -> Tensor:
    return _pool(run, x.abs().pow(float(p)), "sum", **geometry).pow(1 / p)


OPERATORS.update({
    "GlobalAveragePool": lambda run, x: x.mean(axis=tuple(range(2, x.ndim)), keepdims=True),
    "GlobalMaxPool": lambda run, x: x.max(axis=tuple(range(2, x.ndim)), keepdims=True),
})  # fmt: skip
