"""Pooling."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch

from tlrt.torch.routes.base import aten, route, run, run_gradient
from tlrt.torch.routes.scatters import scatter_add


def per_axis(values: Sequence[int], count: int) -> list[int]:
    return list(values) * (count if len(values) == 1 else 1)


def _window(kernel: Any, stride: Any, padding: Any) -> dict[str, Any]:
    return {"kernel": per_axis(kernel, 2), "stride": per_axis(stride or kernel, 2), "padding": per_axis(padding, 2)}


def _is_plain(x: Any, kernel: Any, stride: Any, padding: Any, ceil: bool, count_padding: bool, divisor: Any) -> bool:
    """Whether every window counts with its full size."""
    padded = any(per_axis(padding, 2))
    return not ceil and divisor is None and (count_padding or not padded)


@route(aten.avg_pool2d.default)
def avg_pool(
    x: Any,
    kernel: Any,
    stride: Any = (),
    padding: Any = (0,),
    ceil: bool = False,
    count: bool = True,
    divisor: Any = None,
) -> Any:
    if not _is_plain(x, kernel, stride, padding, ceil, count, divisor):
        raise NotImplementedError("avg_pool2d with windows of several sizes")
    y = run("avg_pool", x.reshape(math.prod(x.shape[:-2]), *x.shape[-2:]), **_window(kernel, stride, padding))
    return y.reshape(*x.shape[:-2], *y.shape[-2:])


@route(aten.avg_pool2d_backward.default)
def avg_pool_backward(
    g: Any, x: Any, kernel: Any, stride: Any, padding: Any, ceil: bool, count: bool, divisor: Any
) -> Any:
    if not _is_plain(x, kernel, stride, padding, ceil, count, divisor):
        raise NotImplementedError("avg_pool2d with windows of several sizes")
    flat = g.reshape(math.prod(g.shape[:-2]), *g.shape[-2:])
    return run_gradient("avg_pool", flat, spatial=list(x.shape[-2:]), **_window(kernel, stride, padding)).reshape(
        x.shape
    )


@route(aten._adaptive_avg_pool2d.default)
def adaptive_avg_pool(x: Any, size: Any) -> Any:
    if any(n % m for n, m in zip(x.shape[-2:], size, strict=True)):
        raise NotImplementedError("adaptive pooling with windows of several sizes")
    return avg_pool(x, [n // m for n, m in zip(x.shape[-2:], size, strict=True)])


@route(aten._adaptive_avg_pool2d_backward.default)
def adaptive_avg_pool_backward(g: Any, x: Any) -> Any:
    if any(n % m for n, m in zip(x.shape[-2:], g.shape[-2:], strict=True)):
        raise NotImplementedError("adaptive pooling with windows of several sizes")
    kernel = [n // m for n, m in zip(x.shape[-2:], g.shape[-2:], strict=True)]
    return avg_pool_backward(g, x, kernel, kernel, [0, 0], False, True, None)


@route(aten.max_pool2d_with_indices_backward.default)
def max_pool_backward(
    g: Any, x: Any, kernel: Any, stride: Any, padding: Any, dilation: Any, ceil: bool, index: Any
) -> Any:
    places = index.flatten(-2)
    flat = torch.zeros_like(x).flatten(-2)
    return scatter_add(flat, -1, places, g.reshape(places.shape)).reshape(x.shape)
