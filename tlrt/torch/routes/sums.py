"""Sums, means and what is made of them, and running sums."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch

from tlrt.torch.routes.base import aten, route, run


def _as_rows(x: Any, axes: Sequence[int]) -> tuple[Any, list[int]]:
    """A matrix whose rows run over the axes, and the lengths of the other axes."""
    axes = sorted(a % x.dim() for a in axes) if x.dim() else []
    kept = [i for i in range(x.dim()) if i not in axes]
    lengths = [x.shape[i] for i in kept]
    moved = x.permute([*kept, *axes])
    return moved.reshape(math.prod(lengths), math.prod(x.shape[i] for i in axes)), lengths


def _with_ones(y: Any, x: Any, axes: Sequence[int]) -> Any:
    shape = list(x.shape)
    for a in axes:
        shape[a % x.dim()] = 1
    return y.reshape(shape)


def sum_over(x: Any, axes: Sequence[int], keep: bool = False) -> Any:
    axes = list(axes) or list(range(x.dim()))
    rows, lengths = _as_rows(x, axes)
    y = run("reduce_sum_axis1", rows).reshape(lengths)
    return _with_ones(y, x, axes) if keep and x.dim() else y


def _count(x: Any, axes: Sequence[int]) -> int:
    return math.prod(x.shape[a] for a in axes) if axes and x.dim() else x.numel()


def divided(x: Any, n: float) -> Any:
    """x / n, divided: on a GPU PyTorch multiplies by the inverse of a number of the host."""
    return (
        x / torch.full((1,), n, dtype=x.dtype, device=x.device).expand(x.shape)
        if x.dim()
        else x / torch.full_like(x, n)
    )


def inverse_root(x: Any) -> Any:
    """1/√x, rounded twice: PyTorch's own square root is not correctly rounded on a CPU."""
    return run("sqrt", x).reciprocal()


@route(aten.sum.default)
def sum_all(x: Any, *, dtype: Any = None) -> Any:
    return sum_over(x, [])


@route(aten.sum.dim_IntList)
def sum_axes(x: Any, axes: Any, keep: bool = False, *, dtype: Any = None) -> Any:
    return sum_over(x, axes or [], keep)


@route(aten.mean.default)
def mean_all(x: Any, *, dtype: Any = None) -> Any:
    return divided(sum_over(x, []), x.numel())


@route(aten.mean.dim)
def mean_axes(x: Any, axes: Any, keep: bool = False, *, dtype: Any = None) -> Any:
    return divided(sum_over(x, axes or [], keep), _count(x, axes or []))


@route(aten.var.correction)
def var(x: Any, axes: Any = None, *, correction: float | None = None, keepdim: bool = False) -> Any:
    chosen = list(axes or range(x.dim()))
    rows, lengths = _as_rows(x, chosen)
    y = run("var", rows, axes=2, correction=1.0 if correction is None else float(correction), root=0).reshape(lengths)
    return _with_ones(y, x, chosen) if keepdim else y


@route(aten.var_mean.correction)
def var_mean(x: Any, axes: Any = None, *, correction: float | None = None, keepdim: bool = False) -> Any:
    return var(x, axes, correction=correction, keepdim=keepdim), mean_axes(x, list(axes or range(x.dim())), keepdim)


@route(aten.std.correction)
def std(x: Any, axes: Any = None, *, correction: float | None = None, keepdim: bool = False) -> Any:
    return run("sqrt", var(x, axes, correction=correction, keepdim=keepdim))


@route(aten.linalg_vector_norm.default)
def vector_norm(x: Any, p: float = 2, axes: Any = None, keep: bool = False, *, dtype: Any = None) -> Any:
    chosen = list(axes or range(x.dim()))
    if math.isinf(p):  # no sum, and no rounding
        return (torch.amax if p > 0 else torch.amin)(x.abs(), chosen, keep)
    if p < 1:
        raise NotImplementedError("vector_norm of a power below 1")
    rows, lengths = _as_rows(x, chosen)
    y = run("vector_norm", rows, axes=2, p=float(p)).reshape(lengths)
    return _with_ones(y, x, chosen) if keep else y


@route(aten.cumsum.default)
def cumsum(x: Any, axis: int, *, dtype: Any = None) -> Any:
    return run("cumsum", x, axis=axis % x.dim(), reverse=0) if x.dim() else x.clone()


@route(aten.logsumexp.default)
def logsumexp(x: Any, axes: Any, keep: bool = False) -> Any:
    rows, lengths = _as_rows(x, axes)
    y = run("logsumexp", rows, axes=2).reshape(lengths)
    return _with_ones(y, x, axes) if keep else y
