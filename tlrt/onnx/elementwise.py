"""Elementwise operators and comparisons of floats."""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import reduce
from typing import Any

import numpy as np

from tlrt.onnx.graph import HOST, OPERATORS, Mask, Run, Tensor, Truth, Value, is_float, operator

#: operators without attributes that are one operation of the session
SAME = {
    "Abs": "abs", "Neg": "neg", "Exp": "exp", "Log": "log", "Sqrt": "sqrt", "Reciprocal": "inv", "Floor": "floor",
    "Round": "round", "Sign": "sign", "Sin": "sin", "Cos": "cos", "Tanh": "tanh", "Sigmoid": "sigmoid", "Erf": "erf",
    "Softplus": "softplus", "Softsign": "softsign", "Relu": "relu", "HardSwish": "hardswish", "Mish": "mish",
    "Add": "add", "Sub": "sub", "Mul": "mul", "Div": "div", "And": "mul", "Or": "max", "Xor": "ne", "MatMul": "matmul",
}  # fmt: skip
#: comparisons, which give masks
COMPARISONS = {"Equal": "eq", "Less": "lt", "LessOrEqual": "le", "Greater": "gt", "GreaterOrEqual": "ge"}
#: below this x is its own asinh, and sinh, in float32; above its inverse 1 under a root is lost
_TINY = 2.0**-13
_MAX = float(np.finfo(np.float32).max)


def _same(method: str) -> Callable[..., Any]:
    return lambda run, *xs: getattr(run.session, method)(*xs)


OPERATORS.update({name: _same(method) for name, method in SAME.items()})
OPERATORS.update({
    "Sum": lambda run, *xs: reduce(run.session.add, xs),
    "Mean": lambda run, *xs: reduce(run.session.add, xs) / len(xs),
    "Max": lambda run, *xs: reduce(run.session.max, xs),
    "Min": lambda run, *xs: reduce(run.session.min, xs),
    "Not": lambda run, x: x.eq(0.0),
    "Ceil": lambda run, x: -(-x).floor(),
    "Tan": lambda run, x: x.sin() / x.cos(),
    "Asin": lambda run, x: run.session.atan2(x, ((1 - x) * (1 + x)).sqrt()),
    "Acos": lambda run, x: run.session.atan2(((1 - x) * (1 + x)).sqrt(), x),
    "Atan": lambda run, x: run.session.atan2(x, 1.0),
    "Cosh": lambda run, x: _half_square(x) + _half_square(-x),
    "Atanh": lambda run, x: (x.log1p() - (-x).log1p()) * 0.5,
    "LeakyRelu": lambda run, x, *, alpha=0.01: x.leaky_relu(alpha),
    "PRelu": lambda run, x, slope: run.session.where(x < 0, x * slope, x),
    "Elu": lambda run, x, *, alpha=1.0: x.elu(alpha),
    "Selu": lambda run, x, *, alpha=1.67326319217681884765625, gamma=1.05070102214813232421875: x.elu(alpha) * gamma,
    "Celu": lambda run, x, *, alpha=1.0: run.session.where(x > 0, x, (x.min(0.0) / alpha).expm1() * alpha),
    "ThresholdedRelu": lambda run, x, *, alpha=1.0: run.session.where(x > alpha, x, 0.0),
    "HardSigmoid": lambda run, x, *, alpha=0.2, beta=0.5: (x * alpha + beta).clamp(0.0, 1.0),
    "Gelu": lambda run, x, *, approximate="none": x.gelu(approximate=approximate),
    "Swish": lambda run, x, *, alpha=1.0: x * (x * alpha).sigmoid(),
    "SwiGLU": lambda run, gate, x, *, alpha=1.0: gate * (gate * alpha).sigmoid() * x,
})  # fmt: skip


def _comparison(method: str) -> Callable[..., Mask]:
    return lambda run, a, b: Mask(getattr(run.session, method)(a, b))


OPERATORS.update({name: _comparison(method) for name, method in COMPARISONS.items()})


@operator("IsNaN")
def is_nan(run: Run, x: Tensor) -> Mask:
    return Mask(x.ne(x))


@operator("IsInf")
def is_inf(run: Run, x: Tensor, *, detect_negative: int = 1, detect_positive: int = 1) -> Mask:
    found = [x.eq(sign * math.inf) for sign, wanted in ((1, detect_positive), (-1, detect_negative)) if wanted]
    return Mask(reduce(run.session.add, found) if found else run.session.zeros(x.shape))


@operator("Where")
def where(run: Run, condition: Truth, a: Tensor, b: Tensor) -> Tensor:
    return run.session.where(condition, a, b)


@operator("Shrink")
def shrink(run: Run, x: Tensor, *, bias: float = 0.0, lambd: float = 0.5) -> Tensor:
    return run.session.where(x < -lambd, x + bias, run.session.where(x > lambd, x - bias, 0.0))


HOST["Shrink"] = lambda x, *, bias=0.0, lambd=0.5: (
    np.where(x < -lambd, x + bias, np.where(x > lambd, x - bias, 0)).astype(x.dtype))  # fmt: skip


def _half_square(x: Tensor) -> Tensor:
    """exp(x) / 2, which is representable where exp(x) is not."""
    root = (x * 0.5).exp()
    return root * 0.5 * root


@operator("Sinh")
def sinh(run: Run, x: Tensor) -> Tensor:
    """2 sinh(x/2) cosh(x/2), where nothing cancels and only the result overflows."""
    half = x * 0.5
    whole = (half.expm1() - (-half).expm1()) * 0.5 * (half.exp() + (-half).exp())
    return run.session.where(x.abs() < _TINY, x, whole)


@operator("Asinh")
def asinh(run: Run, x: Tensor) -> Tensor:
    """log1p(a + a² / (1 + √(a² + 1))) with the sign of x, log(2 a) for a large a = |x|, x for a small one."""
    a = x.abs()
    some = a.min(1 / _TINY)
    some = (some + some.square() / (1 + (some.square() + 1).sqrt())).log1p()
    found = run.session.where(a > 1 / _TINY, a.max(1.0).log() + math.log(2), some)
    return run.session.where(a < _TINY, x, run.session.where(x < 0, -found, found))


@operator("Acosh")
def acosh(run: Run, x: Tensor) -> Tensor:
    """log1p(t + √t √(t + 2)) of t = x - 1, log(2 x) for a large x."""
    t = x.min(1 / _TINY) - 1
    some = (t + t.sqrt() * (t + 2).sqrt()).log1p()
    return run.session.where(x > 1 / _TINY, x.max(1.0).log() + math.log(2), some)


@operator("Pow")
def power(run: Run, a: Value, b: Value) -> Value:
    """In the type of the base. A power that float32 cannot hold is rounded, but is odd or even as it was."""
    if not is_float(a):
        with np.errstate(all="ignore"):
            return np.power(run.host(a).astype(np.float64), run.host(b).astype(np.float64)).astype(a.dtype)
    if is_float(b) or not (np.abs(b.astype(np.float64)) > 2**24).any():
        return a.pow(run.tensor(b))
    magnitude = a.abs().pow(run.tensor(b))
    negative = run.session.atan2(a, -1.0) < 0  # of -0, too
    return run.session.where(negative * run.tensor(b % 2 == 1), -magnitude, magnitude)


@operator("Clip")
def clip(run: Run, x: Tensor, low: Tensor = None, high: Tensor = None) -> Tensor:
    """A bound that is left out is the largest number of the type, which is finite."""
    return x.max(-_MAX if low is None else low).min(_MAX if high is None else high)


@operator("Mod")
def mod(run: Run, a: Tensor, b: Tensor, *, fmod: int = 0) -> Tensor:
    """The remainder by NumPy on the host, where it is exact; with the sign of a, or of b. Its gradient by a is 1, by b
    minus the whole part of the quotient."""
    x, y = a.numpy(), b.numpy()
    with np.errstate(all="ignore"):
        rest = (np.fmod if fmod else np.mod)(x, y)
        found = run.session.const(rest)
        if not (a.requires_grad or b.requires_grad):
            return found
        whole = np.nan_to_num(np.round((x - rest) / y), posinf=0.0, neginf=0.0)
    finite = b.clamp(-_MAX, _MAX)  # what is subtracted from itself
    return found - ((a.detach() - a) + (finite - finite.detach()) * run.session.const(whole))
