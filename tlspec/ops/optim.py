"""Optimiser steps and clipping by the global norm: one call for a whole list of tensors.

A list is count tensors, each of its own length; an output element may be the input of the same index, so a step can be
made in place. Formulas are PyTorch's. Scalars are rounded to float32 once; what follows from them alone (1 - beta, the bias
corrections, the decay) is computed in float64 on the host and rounded once, the same for both devices.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

from tlspec import laws
from tlspec.bounds import F64, call_named, custom, spacing, tree_height
from tlspec.classes import Classes
from tlspec.registry import check, op
from tlspec.running_error import Run, followed, rounded_once, scalar

ADAM = "Kingma and Ba, Adam: A Method for Stochastic Optimization, ICLR 2015, algorithm 1"
ADAMW = "Loshchilov and Hutter, Decoupled Weight Decay Regularization, ICLR 2019, algorithm 2"
RMSPROP = "Hinton, Neural Networks for Machine Learning, 2012, lecture 6; torch.optim.RMSprop"
CENTERED = "Graves, Generating Sequences With Recurrent Neural Networks, arXiv:1308.0850, equations 38 to 45; torch.optim.RMSprop"
LION = "Chen et al., Symbolic Discovery of Optimization Algorithms, NeurIPS 2023, algorithm 2"
NO_VJP = "an optimiser step is made after differentiation, not part of what is differentiated"
FINITE = 3.5e38  # above the largest float32, below infinity


def _split(f: Any, lengths: list[int], lists: tuple[str, ...]) -> Iterator[tuple[Any, Any]]:
    """The step of a list and that of its two halves."""
    half = len(lengths) // 2
    at = sum(lengths[:half])
    parts = []
    for cut, some in ((slice(None, at), lengths[:half]), (slice(at, None), lengths[half:])):
        parts.append(f.many({n: f.inputs[n][cut] for n in lists}, values={"lengths": some, "count": len(some)}))
    for whole, left, right in zip(f.many(), *parts, strict=True):
        yield whole, np.concatenate([left.array, right.array])


SPLIT = "the step of a list is the steps of its halves"


def splits(*lists: str) -> laws.Law:
    """The law that a step of these lists is made of those of their halves."""
    return laws.equation(SPLIT, lambda f, lengths: _split(f, lengths, lists))


split2, split3, split4 = splits("ps", "gs"), splits("ps", "gs", "vs"), splits("ps", "gs", "ms", "vs")


def _unchanged_at_zero_rate(name: str) -> laws.Law:
    """With lr 0 the parameters stay: for finite gradients, and zeros of either sign being equal."""
    plain = laws.equation(f"{name}(lr = 0) leaves ps", lambda f, ps: [(f(values={"lr": 0.0, "weight_decay": 0.0}), ps)])
    return laws.Law(plain.name, plain.text, plain.state, ("normal",))


def _rates(d: Any) -> dict[str, Any]:
    return {"lr": d.choice([0.01, 0.5, 0.0, d.real(0, 2)]), "weight_decay": d.choice([0.0, 0.0, 0.01, d.real(0, 1)])}


RATES = [
    check("lr", f"lr >= 0 and lr < {FINITE}", say="lr finite and 0 or more"),
    check("weight_decay", f"weight_decay >= 0 and weight_decay < {FINITE}", say="weight_decay finite and 0 or more"),
]
MOMENTUM_CHECK = check("momentum", f"momentum >= 0 and momentum < {FINITE}", say="momentum finite and 0 or more")


def _decayed(ps: Run, gs: Run, weight_decay: float) -> Run:
    return scalar(weight_decay).fma(ps, gs) if weight_decay != 0 else gs


def _sgd_run(ps: F64, gs: F64, lr: float, weight_decay: float) -> Run:
    p = Run.of(ps)
    return Run.of(-lr).fma(_decayed(p, Run.of(gs), weight_decay), p)


CLASSES: Classes = {
    "no buffer": lambda lengths: len(lengths) == 0,
    "an empty buffer among others": lambda lengths: min(lengths, default=1) == 0 < max(lengths, default=0),
    "many buffers in a task": lambda lengths: len(lengths) > 16,
}


@op("ps: list[count], gs: list[count]; lr: float = 0.01, weight_decay: float = 0.0 -> ps_out: list[count]",
    classes=CLASSES, bound=followed(_sgd_run), draw=_rates, checks=RATES, no_vjp=NO_VJP,
    laws=[split2, _unchanged_at_zero_rate("sgd_step")],
    source="Robbins and Monro, Ann. Math. Statist. 22, 1951")  # fmt: skip
def sgd_step(ps, gs, lr, weight_decay):
    """A step of stochastic gradient descent on every tensor of a list.

    p_out = p - lr·(g + weight_decay·p); both sums are fused multiply-adds

    Shapes: lists ps, gs, ps_out of count tensors; those of one index have the same length.
    Special values: a weight decay of 0 leaves g as it is, whatever p. NaN and infinities follow IEEE 754. An empty list is
    legal and does nothing.
    Errors: ARGUMENT unless lr and weight_decay are finite and 0 or more."""
    gradient = gs + weight_decay * ps if weight_decay != 0 else gs
    return ps - lr * gradient


def _momentum_run(
    ps: Any, gs: Any, vs: Any, lr: float, momentum: float, dampening: float, weight_decay: float, nesterov: int
) -> tuple[Run, Run]:
    p, mu = Run.of(ps), Run.of(np.asarray(momentum))
    gradient = _decayed(p, Run.of(gs), weight_decay)
    v = mu.fma(Run.of(vs), scalar(1 - dampening) * gradient)
    return Run.of(np.asarray(-lr)).fma(mu.fma(v, gradient) if nesterov else v, p), v


def _draw_momentum(d: Any) -> dict[str, Any]:
    nesterov = d.integer(0, 1)
    momentum = d.choice([0.9, 0.99, d.real(0.1, 1)]) if nesterov else d.choice([0.9, 0.0, d.real(0, 1)])
    dampening = 0.0 if nesterov else d.choice([0.0, 0.5, 1.0, d.real(-1, 1)])
    return {**_rates(d), "nesterov": nesterov, "momentum": momentum, "dampening": dampening}


@op("ps: list[count], gs: list[count], vs: list[count]; lr: float = 0.01, momentum: float = 0.9, dampening: float = 0.0, "
    "weight_decay: float = 0.0, nesterov: u32 = 0 -> ps_out: list[count], vs_out: list[count]",
    classes=CLASSES, bound=followed(_momentum_run), draw=_draw_momentum, no_vjp=NO_VJP,
    checks=[*RATES, MOMENTUM_CHECK,
            check("dampening", f"dampening > -{FINITE} and dampening < {FINITE}", say="dampening finite"),
            check("nesterov", "nesterov == 0 or (nesterov == 1 and momentum > 0 and dampening == 0)",
                  say="0, or 1 with momentum > 0 and dampening = 0")],
    laws=[split3, _unchanged_at_zero_rate("momentum_step")],
    source="Sutskever, Martens, Dahl and Hinton, On the importance of initialization and momentum in deep learning, "
    "ICML 2013")  # fmt: skip
def momentum_step(ps, gs, vs, lr, momentum, dampening, weight_decay, nesterov):
    """A step of gradient descent with momentum on every tensor of a list.

    d = g + weight_decay·p
    v_out = momentum·v + (1 - dampening)·d
    p_out = p - lr·v_out, or p - lr·(d + momentum·v_out) with nesterov

    Shapes: lists ps, gs, vs, ps_out, vs_out of count tensors; those of one index have the same length.

    From v = 0 the first step gives v_out = (1 - dampening)·d. PyTorch starts with v = d, undamped: pass dampening = 0 on the
    first step for that.
    Special values: a weight decay of 0 leaves g as it is. NaN and infinities follow IEEE 754. An empty list is legal and does
    nothing.
    Errors: ARGUMENT unless lr, momentum and weight_decay are finite and 0 or more, dampening is finite, and nesterov is 0, or 1
    with momentum > 0 and dampening = 0."""
    gradient = gs + weight_decay * ps if weight_decay != 0 else gs
    v = momentum * vs + (1 - dampening) * gradient
    return ps - lr * (gradient + momentum * v if nesterov else v), v


def _second_moment(
    gs: F64, vs: F64, step: int, lr: float, beta1: float, beta2: float, eps: float
) -> tuple[F64, Any, F64]:
    """v, the rate with m's bias correction, and what m is divided by."""
    v = beta2 * vs + (1 - beta2) * gs * gs
    size, root = lr / (1 - np.float64(beta1) ** step), np.sqrt(1 - np.float64(beta2) ** step)
    return v, size, np.sqrt(v) / root + eps


def _adam(
    ps: F64, gs: F64, ms: F64, vs: F64, step: int, lr: float, beta1: float, beta2: float, eps: float, decay: float
) -> tuple[F64, F64, F64]:
    m = beta1 * ms + (1 - beta1) * gs
    v, size, divisor = _second_moment(gs, vs, step, lr, beta1, beta2, eps)
    return decay * ps - size * (m / divisor), m, v


def _adam_of_torch(
    ps: F64, gs: F64, ms: F64, vs: F64, step: int, lr: float, beta1: float, beta2: float, eps: float, decay: float
) -> tuple[F64, F64, F64]:
    """The step as torch.optim has it: an interpolation between m and g, whose weight is rounded before it is subtracted from 1,
    and the product with the rate before the quotient."""
    weight = np.full_like(gs, 1 - beta1)
    m = ms + weight * (gs - ms) if beta1 > 0.5 else gs - (1 - weight) * (gs - ms)
    v, size, divisor = _second_moment(gs, vs, step, lr, beta1, beta2, eps)
    return decay * ps - size * m / divisor, m, v


def _adam_run(
    p: Run, g: Run, ms: F64, vs: F64, step: int, lr: float, beta1: float, beta2: float, eps: float, decay: Run
) -> tuple[Run, Run, Run]:
    m = Run.of(np.asarray(beta1)).fma(Run.of(ms), scalar(1 - beta1) * g)
    v = Run.of(np.asarray(beta2)).fma(Run.of(vs), (scalar(1 - beta2) * g) * g)
    size, root = lr / (1 - np.float64(beta1) ** step), np.sqrt(1 - np.float64(beta2) ** step)
    ratio = m / v.sqrt(vs >= 0).fma(scalar(1 / root), Run.of(np.asarray(eps)))
    return scalar(-size).fma(ratio, decay * p), m, v


def _coupled_run(ps: F64, gs: F64, ms: F64, vs: F64, weight_decay: float, **scalars: Any) -> tuple[Run, Run, Run]:
    g = _decayed(Run.of(ps), Run.of(gs), weight_decay)
    decay = Run.of(np.asarray(1.0))
    return call_named(_adam_run, {**scalars, "p": Run.of(ps), "g": g, "ms": ms, "vs": vs, "decay": decay})


def _decoupled_run(ps: F64, gs: F64, ms: F64, vs: F64, weight_decay: float, **scalars: Any) -> tuple[Run, Run, Run]:
    decay = scalar(1 - scalars["lr"] * weight_decay)
    return call_named(_adam_run, {**scalars, "p": Run.of(ps), "g": Run.of(gs), "ms": ms, "vs": vs, "decay": decay})


def _draw_adam(d: Any) -> dict[str, Any]:
    return {
        **_rates(d), "lr": d.choice([0.001, 0.001, 0.0, d.real(0, 1)]),
        "beta1": d.choice([0.9, 0.9, 0.0, d.real(0, 0.99), 1 - 2.0**-24]),
        "beta2": d.choice([0.999, 0.999, 0.0, d.real(0, 0.99), 1 - 2.0**-24]), "eps": d.choice([1e-8, 1e-8, 0.0, 1e-3]),
        "step": d.choice([1, 1, 2, 10, 1000, 10**6, d.integer(1, 10**5), 2**32, 2**63 - 1]),
    }  # fmt: skip


ADAM_CHECKS = [check("step", "step >= 1"), *RATES, check("beta1", "beta1 >= 0 and beta1 < 1", say="0 <= beta1 < 1"),
               check("beta2", "beta2 >= 0 and beta2 < 1", say="0 <= beta2 < 1"),
               check("eps", f"eps >= 0 and eps < {FINITE}", say="eps finite and 0 or more")]  # fmt: skip
adam_is_adamw = laws.equation(
    "without weight decay adamw_step is adam_step",
    lambda f: zip(f.many(values={"weight_decay": 0.0}),
                  f.many(f.inputs, values={**f.case.values, "weight_decay": 0.0}, op="adam_step"), strict=True))  # fmt: skip


@op(
    "ps: list[count], gs: list[count], ms: list[count], vs: list[count]; step: u64, lr: float = 1e-3, beta1: float = 0.9, "
    "beta2: float = 0.999, eps: float = 1e-8, weight_decay: float = 0.0 "
    "-> ps_out: list[count], ms_out: list[count], vs_out: list[count]",
    classes=CLASSES, bound=followed(_coupled_run), draw=_draw_adam, nonnegative=("vs",), checks=ADAM_CHECKS, no_vjp=NO_VJP,
    laws=[split4], source=ADAM)  # fmt: skip
def adam_step(ps, gs, ms, vs, step, lr, beta1, beta2, eps, weight_decay):
    """A step of Adam on every tensor of a list, weight decay coupled (added to the gradient).

    d = g + weight_decay·p
    m_out = beta1·m + (1 - beta1)·d;  v_out = beta2·v + (1 - beta2)·d²
    p_out = p - lr/(1 - beta1^step)·m_out/(√v_out/√(1 - beta2^step) + eps)

    step counts from 1. The corrections follow from the betas as rounded to float32, in float64, and are rounded once.

    Shapes: lists ps, gs, ms, vs, ps_out, ms_out, vs_out of count tensors; those of one index have the same length.
    Special values: a weight decay of 0 leaves g as it is. v < 0 gives NaN, as do v = g = eps = 0. NaN and infinities follow
    IEEE 754. An empty list is legal and does nothing.
    Errors: ARGUMENT unless step >= 1, 0 <= beta1, beta2 < 1 after rounding, and lr, eps and weight_decay are finite and 0 or
    more."""
    gradient = gs + weight_decay * ps if weight_decay != 0 else gs
    return _adam(ps, gradient, ms, vs, step, lr, beta1, beta2, eps, 1.0)


@adam_step.formula()
def _interpolated(ps, gs, ms, vs, step, lr, beta1, beta2, eps, weight_decay):
    gradient = gs + weight_decay * ps if weight_decay != 0 else gs
    return _adam_of_torch(ps, gradient, ms, vs, step, lr, beta1, beta2, eps, 1.0)


@op(
    "ps: list[count], gs: list[count], ms: list[count], vs: list[count]; step: u64, lr: float = 1e-3, beta1: float = 0.9, "
    "beta2: float = 0.999, eps: float = 1e-8, weight_decay: float = 0.01 "
    "-> ps_out: list[count], ms_out: list[count], vs_out: list[count]",
    classes=CLASSES, bound=followed(_decoupled_run), draw=_draw_adam, nonnegative=("vs",), checks=ADAM_CHECKS, no_vjp=NO_VJP,
    laws=[split4, adam_is_adamw], source=ADAMW)  # fmt: skip
def adamw_step(ps, gs, ms, vs, step, lr, beta1, beta2, eps, weight_decay):
    """A step of AdamW on every tensor of a list, weight decay decoupled.

    m_out = beta1·m + (1 - beta1)·g;  v_out = beta2·v + (1 - beta2)·g²
    p_out = (1 - lr·weight_decay)·p - lr/(1 - beta1^step)·m_out/(√v_out/√(1 - beta2^step) + eps)

    step counts from 1. The corrections follow from the betas as rounded to float32, in float64, and are rounded once, as is
    1 - lr·weight_decay; without weight decay the result is that of adam_step, bit for bit.

    Shapes: lists ps, gs, ms, vs, ps_out, ms_out, vs_out of count tensors; those of one index have the same length.
    Special values: v < 0 gives NaN, as do v = g = eps = 0. NaN and infinities follow IEEE 754. An empty list is legal and does
    nothing.
    Errors: ARGUMENT unless step >= 1, 0 <= beta1, beta2 < 1 after rounding, and lr, eps and weight_decay are finite and 0 or
    more."""
    return _adam(ps, gs, ms, vs, step, lr, beta1, beta2, eps, 1 - lr * weight_decay)


@adamw_step.formula()
def _decoupled_and_interpolated(ps, gs, ms, vs, step, lr, beta1, beta2, eps, weight_decay):
    return _adam_of_torch(ps, gs, ms, vs, step, lr, beta1, beta2, eps, 1 - lr * weight_decay)


def _rmsprop(
    ps: F64, gs: F64, vs: F64, lr: float, alpha: float, eps: float, weight_decay: float, ms: Any = None, bs: Any = None,
    momentum: float = 0.0,
) -> tuple[F64, ...]:  # fmt: skip
    """The step with the states that are given: p_out, v_out, m_out, b_out."""
    g = gs + weight_decay * ps if weight_decay != 0 else gs
    v = alpha * vs + (1 - alpha) * g * g
    made, spread = [v], v
    if ms is not None:
        made.append(alpha * ms + (1 - alpha) * g)
        spread = np.maximum(v - made[1] * made[1], 0.0)
    step = g / (np.sqrt(spread) + eps)
    if bs is not None:
        step = momentum * bs + step
        made.append(step)
    return (ps - lr * step, *made)


def _rmsprop_run(
    ps: F64, gs: F64, vs: F64, lr: float, alpha: float, eps: float, weight_decay: float, ms: Any = None, bs: Any = None,
    momentum: float = 0.0,
) -> tuple[Run, ...]:  # fmt: skip
    p, g, keep, fresh = Run.of(ps), Run.of(gs), Run.of(np.asarray(alpha)), rounded_once(1 - alpha)
    if weight_decay != 0:
        g = Run.of(np.asarray(weight_decay)).fma(p, g)
    v = keep.fma(Run.of(vs), (fresh * g) * g)
    made, spread = [v], v
    if ms is not None:
        m = keep.fma(Run.of(ms), fresh * g)
        made.append(m)
        difference = Run(-m.value, m.error, m.free).fma(m, v)
        positive = ~(difference.value + difference.error <= 0)  # elsewhere it is 0 for certain
        spread = Run(np.maximum(difference.value, 0.0), difference.error * positive, difference.free)
    root = spread.sqrt(np.asarray(ms is not None) | (vs >= 0))
    step = g / Run.of(np.asarray(1.0)).fma(root, Run.of(np.asarray(eps)))
    if bs is not None:
        step = Run.of(np.asarray(momentum)).fma(Run.of(bs), step)
        made.append(step)
    return (Run.of(np.asarray(-lr)).fma(step, p), *made)


def _draw_rmsprop(d: Any) -> dict[str, Any]:
    return {
        **_rates(d), "alpha": d.choice([0.99, 0.99, 0.0, d.real(0, 0.99), 1 - 2.0**-24]),
        "eps": d.choice([1e-8, 1e-8, 0.0, 1e-3]), "momentum": d.choice([0.9, 0.0, d.real(0, 1)]),
    }  # fmt: skip


RMSPROP_CHECKS = [*RATES, check("alpha", "alpha >= 0 and alpha < 1", say="0 <= alpha < 1"),
                  check("eps", f"eps >= 0 and eps < {FINITE}", say="eps finite and 0 or more")]  # fmt: skip
#: the momentum before is -0, which leaves the sign of a 0 that it is added to
without_momentum = laws.equation(
    "without momentum rmsprop_momentum_step is rmsprop_step",
    lambda f: zip(f.many({"bs": np.full_like(f.inputs["bs"], -0.0)}, values={"momentum": 0.0})[:2],
                  f.many(f.inputs, values=f.case.values, op="rmsprop_step"), strict=True))  # fmt: skip


@op("ps: list[count], gs: list[count], vs: list[count]; lr: float = 0.01, alpha: float = 0.99, eps: float = 1e-8, "
    "weight_decay: float = 0.0 -> ps_out: list[count], vs_out: list[count]",
    classes=CLASSES, bound=followed(_rmsprop_run), draw=_draw_rmsprop, nonnegative=("vs",), checks=RMSPROP_CHECKS,
    no_vjp=NO_VJP, laws=[split3], source=RMSPROP)  # fmt: skip
def rmsprop_step(ps, gs, vs, lr, alpha, eps, weight_decay):
    """A step of RMSprop on every tensor of a list.

    d = g + weight_decay·p
    v_out = alpha·v + (1 - alpha)·d²
    p_out = p - lr·d/(√v_out + eps)

    1 - alpha follows from alpha as rounded to float32, in float64, and is rounded once.

    Shapes: lists ps, gs, vs, ps_out, vs_out of count tensors; those of one index have the same length.
    Special values: a weight decay of 0 leaves g as it is. v < 0 gives NaN, as do v = g = eps = 0. NaN and infinities follow
    IEEE 754. An empty list is legal and does nothing.
    Errors: ARGUMENT unless 0 <= alpha < 1 after rounding, and lr, eps and weight_decay are finite and 0 or more."""
    return _rmsprop(ps, gs, vs, lr, alpha, eps, weight_decay)


@op("ps: list[count], gs: list[count], vs: list[count], bs: list[count]; lr: float = 0.01, alpha: float = 0.99, "
    "eps: float = 1e-8, weight_decay: float = 0.0, momentum: float = 0.9 "
    "-> ps_out: list[count], vs_out: list[count], bs_out: list[count]",
    classes=CLASSES, bound=followed(_rmsprop_run), draw=_draw_rmsprop, nonnegative=("vs",),
    checks=[*RMSPROP_CHECKS, MOMENTUM_CHECK], no_vjp=NO_VJP, laws=[splits("ps", "gs", "vs", "bs"), without_momentum],
    source=RMSPROP)  # fmt: skip
def rmsprop_momentum_step(ps, gs, vs, bs, lr, alpha, eps, weight_decay, momentum):
    """A step of RMSprop with momentum on every tensor of a list.

    d = g + weight_decay·p
    v_out = alpha·v + (1 - alpha)·d²
    b_out = momentum·b + d/(√v_out + eps)
    p_out = p - lr·b_out

    1 - alpha follows from alpha as rounded to float32, in float64, and is rounded once.

    Shapes: lists ps, gs, vs, bs, ps_out, vs_out, bs_out of count tensors; those of one index have the same length.
    Special values: a weight decay of 0 leaves g as it is. v < 0 gives NaN, as do v = g = eps = 0. NaN and infinities follow
    IEEE 754. An empty list is legal and does nothing.
    Errors: ARGUMENT unless 0 <= alpha < 1 after rounding, and lr, eps, weight_decay and momentum are finite and 0 or more."""
    return _rmsprop(ps, gs, vs, lr, alpha, eps, weight_decay, None, bs, momentum)


@op("ps: list[count], gs: list[count], vs: list[count], ms: list[count], bs: list[count]; lr: float = 0.01, "
    "alpha: float = 0.99, eps: float = 1e-8, weight_decay: float = 0.0, momentum: float = 0.0 "
    "-> ps_out: list[count], vs_out: list[count], ms_out: list[count], bs_out: list[count]",
    classes=CLASSES, bound=followed(_rmsprop_run), draw=_draw_rmsprop, nonnegative=("vs",),
    checks=[*RMSPROP_CHECKS, MOMENTUM_CHECK], no_vjp=NO_VJP, laws=[splits("ps", "gs", "vs", "ms", "bs")],
    source=CENTERED)  # fmt: skip
def rmsprop_centered_step(ps, gs, vs, ms, bs, lr, alpha, eps, weight_decay, momentum):
    """A step of centered RMSprop, by the variance of gradients, on every tensor of a list.

    d = g + weight_decay·p
    v_out = alpha·v + (1 - alpha)·d²;  m_out = alpha·m + (1 - alpha)·d
    b_out = momentum·b + d/(√max(v_out - m_out², 0) + eps)
    p_out = p - lr·b_out

    1 - alpha follows from alpha as rounded to float32, in float64, and is rounded once. A variance that rounding leaves below 0
    is 0, where PyTorch gives NaN.

    Shapes: lists ps, gs, vs, ms, bs, ps_out, vs_out, ms_out, bs_out of count tensors; those of one index have the same length.
    Special values: a weight decay of 0 leaves g as it is. g = eps = 0 gives NaN where the variance is 0. NaN and infinities
    follow IEEE 754. An empty list is legal and does nothing.
    Errors: ARGUMENT unless 0 <= alpha < 1 after rounding, and lr, eps, weight_decay and momentum are finite and 0 or more."""
    return _rmsprop(ps, gs, vs, lr, alpha, eps, weight_decay, ms, bs, momentum)


def _lion_run(ps: F64, gs: F64, ms: F64, lr: float, beta1: float, beta2: float, weight_decay: float) -> tuple[Run, Run]:
    g, m = Run.of(gs), Run.of(ms)
    c = Run.of(np.asarray(beta1)).fma(m, rounded_once(1 - beta1) * g)
    unsettled = (np.abs(c.value) <= c.error) & ~((ms == 0) & (gs == 0))
    sign = Run(np.sign(c.value), 2.0 * unsettled, c.free)
    p = Run.of(np.asarray(-lr)).fma(sign, rounded_once(1 - lr * weight_decay) * Run.of(ps))
    return p, Run.of(np.asarray(beta2)).fma(m, rounded_once(1 - beta2) * g)


def _draw_lion(d: Any) -> dict[str, Any]:
    betas = {
        "beta1": d.choice([0.9, 0.9, 0.0, d.real(0, 0.99), 1 - 2.0**-24]),
        "beta2": d.choice([0.99, 0.99, 0.0, d.real(0, 0.99), 1 - 2.0**-24]),
    }
    return {**_rates(d), **betas}


@op("ps: list[count], gs: list[count], ms: list[count]; lr: float = 1e-4, beta1: float = 0.9, beta2: float = 0.99, "
    "weight_decay: float = 0.0 -> ps_out: list[count], ms_out: list[count]",
    classes=CLASSES, bound=followed(_lion_run), draw=_draw_lion, no_vjp=NO_VJP, source=LION,
    checks=[*RATES, *ADAM_CHECKS[3:5]], laws=[splits("ps", "gs", "ms"), _unchanged_at_zero_rate("lion_step")])  # fmt: skip
def lion_step(ps, gs, ms, lr, beta1, beta2, weight_decay):
    """A step of Lion on every tensor of a list, weight decay decoupled.

    p_out = (1 - lr·weight_decay)·p - lr·sign(beta1·m + (1 - beta1)·g)
    m_out = beta2·m + (1 - beta2)·g

    The factors 1 - beta and 1 - lr·weight_decay follow from the scalars as rounded to float32, in float64, and are rounded once.

    Shapes: lists ps, gs, ms, ps_out, ms_out of count tensors; those of one index have the same length.
    Special values: the sign of 0 is 0, that of NaN is NaN. NaN and infinities follow IEEE 754. An empty list is legal and does
    nothing.
    Errors: ARGUMENT unless 0 <= beta1, beta2 < 1 after rounding, and lr and weight_decay are finite and 0 or more."""
    direction = np.sign(beta1 * ms + (1 - beta1) * gs)
    return (1 - lr * weight_decay) * ps - lr * direction, beta2 * ms + (1 - beta2) * gs


def _norm_tolerance(gs: F64, lengths: list[int]) -> F64:
    """The squares of float32 are exact in float64 and their sums have h roundings of 2^-53 behind them, NumPy's pairwise sum
    fewer than 64; the root halves that and adds one rounding on either side; then the result is rounded to float32."""
    r = np.sqrt(np.sum(gs * gs))[None]
    h = max((tree_height(n) for n in lengths), default=0) + tree_height(len(lengths))
    return spacing(r) / 2 + np.abs(r) * ((h + 64) / 2 + 2) * 2.0**-53


@op("gs: list[count] -> out[1]",
    classes=CLASSES, bound=custom(_norm_tolerance, "½ ulp"), no_vjp="clipping is not part of what is differentiated",
    laws=[laws.homogeneous("gs"),
          laws.equation("the norm of a list is the norm of all its numbers",
                        lambda f, lengths: [(f(), f(values={"lengths": [sum(lengths)], "count": 1}))], exact=False)],
    source="Pascanu, Mikolov and Bengio, On the difficulty of training recurrent neural networks, ICML 2013",
    example={"gs": [3, 4]})  # fmt: skip
def global_norm(gs):
    """The Euclidean norm of all numbers of a list of tensors, left on the device.

    out[0] = √(Σ_i Σ_j g_i[j]²)

    Summed in float64, so no square over- or underflows and the result is the nearest float32 or its neighbour at a tie; each
    tensor by the row tree, then the tensors' sums by the same tree.

    Shapes: gs a list of tensors, out one element.
    Special values: NaN where a number is NaN, else infinity where one is infinite or the norm is beyond float32. The norm of an
    empty list, or of empty tensors, is 0."""
    return np.sqrt(np.sum(gs * gs))[None]


def _clip_run(gs: F64, norm: F64, max_norm: float, eps: float) -> Run:
    size = Run.rounded(norm + eps, np.zeros(norm.shape), np.zeros(norm.shape, bool))
    factor = Run.of(np.asarray(max_norm)) / size
    # the minimum with 1 keeps an error or drops it; a quotient that overflowed is 1 in any case
    clipped = Run(np.minimum(factor.value, 1.0), factor.error * (factor.value - factor.error < 1), size.free)
    return clipped * Run.of(gs)


def _draw_clip(d: Any) -> dict[str, Any]:
    norm = d.choice([np.nan, np.inf, 0.0, *(d.real(0, high) for high in (1, 3, 3, 100, 100))])
    limit = d.choice([1.0, 0.0, d.real(0, 3)])
    return {"norm": np.array([norm], np.float32), "max_norm": limit, "eps": d.choice([1e-6, 1e-6, 0.0])}


@op("gs: list[count], norm[1]; max_norm: float, eps: float = 1e-6 -> gs_out: list[count]",
    classes=CLASSES, bound=followed(_clip_run), nonnegative=("norm",), no_vjp="clipping is not part of what is differentiated",
    draw=_draw_clip,
    checks=[check("max_norm", "max_norm >= 0"),
            check("eps", f"eps >= 0 and eps < {FINITE}", say="eps finite and 0 or more")],
    laws=[laws.equation("gradients below the norm stay as they are, bit for bit", lambda f, gs: [
        (f({"norm": np.array([0.5], np.float32)}, values={"max_norm": 1.0, "eps": 1e-6}), gs)])],
    source="Pascanu, Mikolov and Bengio, On the difficulty of training recurrent neural networks, ICML 2013",
    arguments={"norm": "the gradients' norm", "eps": "added to the norm"},
    example={"gs": [3, 4], "norm": [5], "max_norm": 1.0, "eps": 0.0})  # fmt: skip
def clip_scale(gs, norm, max_norm, eps):
    """Scales a list of gradients so that their norm, given on the device, is at most max_norm.

    g_out = g·min(1, max_norm/(norm + eps))

    The sum, the quotient and the product are rounded in turn; a factor of 1 leaves the bits as they are.

    Shapes: lists gs, gs_out of count tensors; those of one index have the same length. norm one element.
    Special values: as in torch.nn.utils.clip_grad_norm_, a norm that is NaN makes everything NaN, an infinite one makes the
    factor 0, which gives 0 for finite gradients and NaN for infinite ones. An empty list is legal and does nothing.
    Errors: ARGUMENT unless max_norm >= 0 and eps is finite and 0 or more."""
    return gs * np.minimum(max_norm / (norm + eps), 1.0)
