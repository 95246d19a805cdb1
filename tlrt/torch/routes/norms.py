"""Normalisation."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from tlrt.torch.routes.base import as_matrix, aten, route, run


def _statistics(rows: Any, eps: float) -> tuple[Any, Any]:
    """Mean and 1/√(variance + eps) of each row."""
    return rows.mean(1), (rows.var(1, correction=0) + eps).rsqrt()


def _row_gradient(g: Any, x: Any, mean: Any, inverse: Any) -> Any:
    """The gradient of (x - mean)·inverse with respect to x, row by row, where mean and inverse are those of the rows."""
    centred = (x - mean[:, None]) * inverse[:, None]
    along, across = g.mean(1), (g * centred).mean(1)
    return (g - along[:, None] - centred * across[:, None]) * inverse[:, None]


@route(aten.native_layer_norm.default)
def layer_norm(x: Any, shape: Any, w: Any, b: Any, eps: float) -> Any:
    n = math.prod(shape)
    rows = as_matrix(x, len(shape))
    mean, inverse = _statistics(rows, eps)
    gamma = x.new_ones(n) if w is None else w.reshape(n)
    beta = x.new_zeros(n) if b is None else b.reshape(n)
    kept = [*x.shape[: x.dim() - len(shape)], *[1] * len(shape)]
    return run("layer_norm", rows, gamma, beta, eps=eps).reshape(x.shape), mean.reshape(kept), inverse.reshape(kept)


@route(aten.native_layer_norm_backward.default)
def layer_norm_backward(
    g: Any, x: Any, shape: Any, mean: Any, inverse: Any, w: Any, b: Any, want: Sequence[bool]
) -> Any:
    n = math.prod(shape)
    rows, cotangent = as_matrix(x, len(shape)), as_matrix(g, len(shape))
    mean, inverse = mean.reshape(-1), inverse.reshape(-1)
    gx = None
    if want[0]:
        scaled = cotangent if w is None else cotangent * w.reshape(1, n)
        gx = _row_gradient(scaled, rows, mean, inverse).reshape(x.shape)
    gw = None
    if want[1] and w is not None:
        gw = (cotangent * ((rows - mean[:, None]) * inverse[:, None])).sum(0).reshape(w.shape)
    gb = cotangent.sum(0).reshape(b.shape) if want[2] and b is not None else None
    return gx, gw, gb


def _channels_first(x: Any) -> Any:
    return as_matrix(x.transpose(0, 1), x.dim() - 1)


def _by_channel(v: Any, x: Any) -> Any:
    return v.view(1, -1, *[1] * (x.dim() - 2))


def _batch_norm(x: Any, w: Any, b: Any, mean: Any, inverse: Any) -> Any:
    y = (x - _by_channel(mean, x)) * _by_channel(inverse if w is None else inverse * w, x)
    return y if b is None else y + _by_channel(b, x)


def _follow(running: Any, new: Any, momentum: float) -> None:
    if running is not None:
        running.copy_(running * (1 - momentum) + new * momentum)


@route(aten.native_batch_norm.default, aten._native_batch_norm_legit.default)
def batch_norm(
    x: Any, w: Any, b: Any, running_mean: Any, running_var: Any, train: bool, momentum: float, eps: float
) -> Any:
    if not train:
        inverse = (running_var + eps).rsqrt()
        return _batch_norm(x, w, b, running_mean, inverse), x.new_zeros(0), x.new_zeros(0)
    rows = _channels_first(x)
    mean, inverse = _statistics(rows, eps)
    _follow(running_mean, mean, momentum)
    if running_var is not None:
        _follow(running_var, rows.var(1), momentum)
    return _batch_norm(x, w, b, mean, inverse), mean, inverse


@route(aten.native_batch_norm_backward.default)
def batch_norm_backward(
    g: Any, x: Any, w: Any, running_mean: Any, running_var: Any, mean: Any, inverse: Any, train: bool, eps: float,
    want: Sequence[bool],
) -> Any:  # fmt: skip
    if not train:
        mean, inverse = running_mean, (running_var + eps).rsqrt()
    rows, cotangent = _channels_first(x), _channels_first(g)
    gx = None
    if want[0] and train:
        scaled = cotangent if w is None else cotangent * w[:, None]
        flat = _row_gradient(scaled, rows, mean, inverse)
        gx = flat.reshape(x.shape[1], x.shape[0], *x.shape[2:]).transpose(0, 1)
    elif want[0]:
        gx = g * _by_channel(inverse if w is None else inverse * w, x)
    centred = (rows - mean[:, None]) * inverse[:, None]
    gw = (cotangent * centred).sum(1) if want[1] else None
    return gx, gw, cotangent.sum(1) if want[2] else None


@route(aten.native_group_norm.default)
def group_norm(x: Any, w: Any, b: Any, n: int, channels: int, positions: int, groups: int, eps: float) -> Any:
    rows = x.reshape(n * groups, channels // groups * positions)
    mean, inverse = _statistics(rows, eps)
    y = ((rows - mean[:, None]) * inverse[:, None]).reshape(x.shape)
    y = y if w is None else y * _by_channel(w, x)
    return y if b is None else y + _by_channel(b, x), mean.view(n, groups), inverse.view(n, groups)


@route(aten.native_group_norm_backward.default)
def group_norm_backward(
    g: Any,
    x: Any,
    mean: Any,
    inverse: Any,
    w: Any,
    n: int,
    channels: int,
    positions: int,
    groups: int,
    want: Sequence[bool],
) -> Any:
    rows = x.reshape(n * groups, channels // groups * positions)
    mean, inverse = mean.reshape(-1), inverse.reshape(-1)
    scaled = g if w is None else g * _by_channel(w, g)
    gx = _row_gradient(scaled.reshape(rows.shape), rows, mean, inverse).reshape(x.shape) if want[0] else None
    centred = ((rows - mean[:, None]) * inverse[:, None]).reshape(x.shape)
    gw = _channels_first(g * centred).sum(1) if want[1] else None
    return gx, gw, _channels_first(g).sum(1) if want[2] else None
