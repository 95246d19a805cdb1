"""Softmax and losses."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch

from tlrt.torch.routes.base import as_matrix, aten, route, run, run_gradient
from tlrt.torch.routes.sums import divided, sum_over


def _last(x: Any, axis: int) -> tuple[Any, Callable[[Any], Any]]:
    """A matrix whose rows run over the axis, and the way back."""
    if x.dim() == 0:
        return x.reshape(1, 1), lambda y: y.reshape(())
    moved = x.movedim(axis, -1)
    return as_matrix(moved), lambda y: y.reshape(moved.shape).movedim(-1, axis)


@route(aten._softmax.default)
def softmax(x: Any, axis: int, wide: Any = False) -> Any:
    rows, back = _last(x, axis)
    return back(run("softmax", rows))


@route(aten._safe_softmax.default)
def safe_softmax(x: Any, axis: int, dtype: Any = None) -> Any:
    """The softmax; a row of -inf alone, of which attention masks every key, gives zeros."""
    return torch.where((x == -math.inf).all(axis, keepdim=True), 0.0, softmax(x, axis))


@route(aten._softmax_backward_data.default)
def softmax_backward(g: Any, y: Any, axis: int, dtype: Any) -> Any:
    rows, back = _last(y, axis)
    return back(run_gradient("softmax", rows, _last(g, axis)[0]))


@route(aten._log_softmax.default)
def log_softmax(x: Any, axis: int, wide: Any = False) -> Any:
    rows, back = _last(x, axis)
    return back(run("log_softmax", rows))


@route(aten._log_softmax_backward_data.default)
def log_softmax_backward(g: Any, y: Any, axis: int, dtype: Any) -> Any:
    rows, back = _last(y, axis)
    return back(run_gradient("log_softmax", rows, _last(g, axis)[0]))


def _chosen(target: Any, ignored: int, weight: Any, classes: int) -> tuple[Any, Any, Any]:
    """The labels with those that are ignored set to 0, the weight of each, 0 where it is ignored, and which are."""
    left = target == ignored
    labels = torch.where(left, 0, target)
    one = torch.ones(classes, device=target.device) if weight is None else weight
    return labels, torch.where(left, 0.0, one[labels]), left


def _classes_last(x: Any) -> Any:
    return x if x.dim() == 1 else x.movedim(1, -1)


@route(aten.nll_loss_forward.default, aten.nll_loss2d_forward.default)
def nll_loss(x: Any, target: Any, weight: Any, reduction: int, ignored: int) -> Any:
    scores = _classes_last(x)
    labels, weights, left = _chosen(target, ignored, weight, scores.shape[-1])
    terms = -scores.gather(-1, labels.unsqueeze(-1)).squeeze(-1) * weights
    terms = torch.where(left, 0.0, terms)
    if reduction == 0:
        return terms, x.new_zeros(())
    total = sum_over(weights, [])
    loss = sum_over(terms, [])
    return (loss if reduction == 2 else loss / total), total


@route(aten.nll_loss_backward.default, aten.nll_loss2d_backward.default)
def nll_loss_backward(g: Any, x: Any, target: Any, weight: Any, reduction: int, ignored: int, total: Any) -> Any:
    scores = _classes_last(x)
    labels, weights, left = _chosen(target, ignored, weight, scores.shape[-1])
    shares = torch.where(left, 0.0, -weights * (g / total if reduction == 1 else g))
    gx = torch.zeros_like(scores).scatter(-1, labels.unsqueeze(-1), shares.unsqueeze(-1))
    return gx if x.dim() == 1 else gx.movedim(-1, 1)


def _reduced(x: Any, reduction: int) -> Any:
    return x if reduction == 0 else sum_over(x, []) if reduction == 2 else divided(sum_over(x, []), x.numel())


@route(aten.mse_loss.default)
def mse_loss(x: Any, y: Any, reduction: int = 1) -> Any:
    difference = x - y
    return _reduced(difference * difference, reduction)


@route(aten.mse_loss_backward.default)
def mse_loss_backward(g: Any, x: Any, y: Any, reduction: int) -> Any:
    twice = (x - y) * 2.0 * g
    return divided(twice, x.numel()) if reduction == 1 else twice
