"""Reductions, normalisations and losses."""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np

from tlrt.onnx.graph import OPERATORS, Host, Run, Tensor, operator
from tlrt.onnx.host import ints

#: operator -> what it does to x over axes
REDUCTIONS: dict[str, Any] = {
    "ReduceSum": lambda x, a: x.sum(axis=a, keepdims=True),
    "ReduceMean": lambda x, a: x.mean(axis=a, keepdims=True),
    "ReduceMax": lambda x, a: _extreme(x, a, "max", -math.inf),
    "ReduceMin": lambda x, a: _extreme(x, a, "min", math.inf),
    "ReduceProd": lambda x, a: x.prod(axis=a, keepdims=True),
    "ReduceL1": lambda x, a: x.norm(1.0, axis=a, keepdims=True),
    "ReduceL2": lambda x, a: x.norm(2.0, axis=a, keepdims=True),
    "ReduceLogSum": lambda x, a: x.sum(axis=a, keepdims=True).log(),
    "ReduceLogSumExp": lambda x, a: x.logsumexp(axis=a, keepdims=True),
    "ReduceSumSquare": lambda x, a: x.square().sum(axis=a, keepdims=True),
}


def _extreme(x: Tensor, axes: tuple[int, ...], name: str, empty: float) -> Tensor:
    """An extreme over axes, which over nothing is infinite."""
    if 0 in x.shape:
        return x.session.full([1 if k in axes else n for k, n in enumerate(x.shape)], empty)
    return getattr(x, name)(axis=axes, keepdims=True)


def _reduction(name: str) -> Any:
    def call(run: Run, x: Tensor, given: Host = None, *, axes: Any = None, keepdims: int = 1,
             noop_with_empty_axes: int = 0) -> Any:  # fmt: skip
        chosen = axes if given is None else ints(given)
        places = [a % x.ndim for a in chosen or ()] if chosen or noop_with_empty_axes else range(x.ndim)
        y = REDUCTIONS[name](x, tuple(places))
        return y if keepdims else y.reshape([n for k, n in enumerate(y.shape) if k not in places])

    return call


OPERATORS.update({name: _reduction(name) for name in REDUCTIONS})


def along(x: Tensor, axis: int, function: Callable[[Tensor], Tensor]) -> Tensor:
    """A function of the last axis, applied along another."""
    order = [k for k in range(x.ndim) if k != axis % x.ndim] + [axis % x.ndim]
    return function(x.permute(order)).permute(np.argsort(order).tolist())


def _hardmax(run: Run, y: Tensor) -> Tensor:
    return run.session.one_hot(y.argmax(axis=-1), y.shape[-1]) if y.size else y


OPERATORS.update({
    "Softmax": lambda run, x, *, axis=-1: along(x, axis, run.session.softmax),
    "LogSoftmax": lambda run, x, *, axis=-1: along(x, axis, run.session.log_softmax),
    "Hardmax": lambda run, x, *, axis=-1: along(x, axis, partial(_hardmax, run)),
})  # fmt: skip


# ---- normalisations


@operator("LayerNormalization")
def layer_norm(
    run: Run, x: Tensor, scale: Tensor, bias: Tensor = None, *, axis: int = -1, epsilon: float = 1e-5, stash_type: int = 1
) -> Any:  # fmt: skip
    inner = x.shape[axis % x.ndim :]
    bias = run.session.zeros(inner) if bias is None else bias
    scale, bias = (t.broadcast_to(inner).flatten() for t in (scale, bias))
    rows = x.reshape((-1, math.prod(inner)))
    y = rows.layer_norm(scale, bias, epsilon).reshape(x.shape)
    if run.results == 1:
        return y
    kept = (*x.shape[: axis % x.ndim], *[1] * len(inner))
    return y, rows.mean(axis=1).reshape(kept), (rows.var(axis=1) + epsilon).sqrt().inv().reshape(kept)


@operator("RMSNormalization")
def rms_norm(run: Run, x: Tensor, scale: Tensor, *, axis: int = -1, epsilon: float = 1e-5, stash_type: int = 1) -> Any:
    inner = x.shape[axis % x.ndim :]
    return x.reshape((-1, math.prod(inner))).rms_norm(scale.broadcast_to(inner).flatten(), epsilon).reshape(x.shape)


@operator("BatchNormalization")
def batch_norm(
    run: Run, x: Tensor, scale: Tensor, bias: Tensor, mean: Tensor, var: Tensor, *, epsilon: float = 1e-5,
    momentum: float = 0.9, training_mode: int = 0,
) -> Any:  # fmt: skip
    if not training_mode:
        return run.session.channel_affine(x, mean, scale / (var + epsilon).sqrt(), bias)
    others = (0, *range(2, x.ndim))
    here, spread = x.mean(axis=others), x.var(axis=others)
    y = run.session.channel_affine(x, here, scale / (spread + epsilon).sqrt(), bias)
    return y, mean * momentum + here * (1 - momentum), var * momentum + spread * (1 - momentum)


OPERATORS.update({
    "InstanceNormalization": lambda run, x, scale, bias, *, epsilon=1e-5: x.instance_norm(scale, bias, epsilon),
    "MeanVarianceNormalization": lambda run, x, *, axes=(0, 2, 3): (
        (x - x.mean(axis=tuple(axes), keepdims=True)) / (x.std(axis=tuple(axes), keepdims=True) + 1e-9)),
})  # fmt: skip


@operator("GroupNormalization")
def group_norm(
    run: Run, x: Tensor, scale: Tensor, bias: Tensor, *, num_groups: int, epsilon: float = 1e-5, stash_type: int = 1
) -> Tensor:  # fmt: skip
    """Scale and bias are of each channel, or, up to opset 20, of each group."""
    each = x.shape[1] // num_groups
    scale, bias = (t.repeat(each, 0) if t.shape[0] != x.shape[1] else t for t in (scale, bias))
    return x.group_norm(num_groups, scale, bias, epsilon)


@operator("LpNormalization")
def lp_normalization(run: Run, x: Tensor, *, axis: int = -1, p: int = 2) -> Tensor:
    norm = x.norm(float(p), axis=axis, keepdims=True)
    return x / norm.masked_fill(norm.eq(0.0), 1.0)


# ---- losses


@operator("NegativeLogLikelihoodLoss")
def nll_loss(
    run: Run, x: Tensor, labels: Host, weight: Tensor = None, *, reduction: str = "mean", ignore_index: int | None = None
) -> Tensor:  # fmt: skip
    """-Σ weight[label]·x[label], classes on axis 1; the mean is over the weights of the labels counted."""
    ignored = np.zeros(labels.shape, np.bool_) if ignore_index is None else labels == ignore_index
    places = np.where(ignored, 0, labels)
    each = -x.permute([0, *range(2, x.ndim), 1]).take_along(places[..., None]).reshape(labels.shape)
    weights = run.session.full(labels.shape, 1.0) if weight is None else weight.take(places)
    each = each if weight is None else each * weights
    if ignored.any():
        each, weights = (t.masked_fill(run.tensor(ignored), 0.0) for t in (each, weights))
    return {"none": lambda: each, "sum": each.sum, "mean": lambda: each.sum() / weights.sum()}[reduction]()


@operator("SoftmaxCrossEntropyLoss")
def cross_entropy(
    run: Run, x: Tensor, labels: Host, weight: Tensor = None, *, reduction: str = "mean", ignore_index: int = -100
) -> Any:  # fmt: skip
    loss = x.cross_entropy(labels, weight, ignore_index=ignore_index, reduction=reduction, axis=1)
    return (loss, along(x, 1, run.session.log_softmax)) if run.results > 1 else loss
