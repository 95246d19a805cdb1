"""Elementwise operations: any shape, one value out per value in. The formulas of the C side are in
``native/src/formula/elementwise.def``; an output may share storage with an input.

Every formula lets NaN through, keeps subnormals, and gives the same bits on both devices (which NaN is not specified).
"""

import math
from typing import Any

import numpy as np

from tlspec import laws
from tlspec.bounds import F64, TINY, exact, ulp
from tlspec.registry import check, op
from tlspec.running import monotone


def fused(a: F64, p: F64) -> F64:
    """a + p rounded to odd in float64, so that rounding it to float32 gives the correctly rounded sum of a and p: what a
    fused multiply-add returns for an exact product p (Boldo and Melquiond, IEEE Trans. Comput. 57, 2008)."""
    s = a + p
    if (
        not isinstance(s, (np.ndarray, np.float64)) or s.dtype != np.float64
    ):  # other numbers, which no float32 comes after
        return s
    s = np.asarray(s)
    b = s - a
    error = (a - (s - b)) + (p - b)
    even = (s.view(np.int64) & 1) == 0
    toward = np.where(error > 0, np.inf, -np.inf)
    return np.where(np.isfinite(s) & (error != 0) & np.isfinite(error) & even, np.nextafter(s, toward), s)


def expit(x: F64) -> F64:
    """1/(1 + e^-x) to full float64 accuracy on both sides, and positive for every finite x (it underflows to the smallest
    float64, not to 0, so that its product with an infinite cotangent is infinite as it should be)."""
    e = np.where(np.isinf(x), 0.0, np.maximum(np.exp(-np.abs(x)), 5e-324))
    return np.where(x >= 0, 1 / (1 + e), e / (1 + e))


# ---- arithmetic --------------------------------------------------------------------------------------------------------


@op("a[*], b[*] -> out[*]", bound=exact(), laws=[laws.commutative("a", "b")], source="IEEE 754-2019, 5.4.1")
def add(a, b):
    """Sum, element by element.

    out = a + b

    Shapes: a, b and out alike, any shape; empty operands give an empty out.
    Special values: IEEE 754; inf + -inf is NaN. Correctly rounded."""
    return a + b


@add.vjp("g -> ga, gb", via=lambda k, g: (k.share(g), k.share(g)))
def add_vjp(g):
    """ga = g, gb = g: both share the storage of g."""
    return g, g


@op("a[*], b[*] -> out[*]", torch="sub", bound=exact(), source="IEEE 754-2019, 5.4.1")
def sub(a, b):
    """Difference, element by element.

    out = a - b

    Shapes: a, b and out alike, any shape; empty operands give an empty out.
    Special values: IEEE 754; inf - inf is NaN. Correctly rounded."""
    return a - b


@sub.vjp("g -> ga, gb", via=lambda k, g: (k.share(g), k.scale(g, -1.0)))
def sub_vjp(g):
    """ga = g, gb = -g."""
    return g, -g


@op(
    "a[*], b[*] -> out[*]", torch="mul", bound=exact(), laws=[laws.commutative("a", "b")], source="IEEE 754-2019, 5.4.1"
)
def mul(a, b):
    """Product, element by element.

    out = a · b

    Shapes: a, b and out alike, any shape; empty operands give an empty out.
    Special values: IEEE 754; 0 · inf is NaN. Correctly rounded."""
    return a * b


@mul.vjp("a, b, g -> ga, gb")
def mul_vjp(a, b, g):
    """ga = g · b, gb = g · a."""
    return g * b, g * a


@op("a[*], b[*] -> out[*]", torch="div", bound=exact(), source="IEEE 754-2019, 5.4.1")
def div(a, b):
    """Quotient, element by element, unguarded.

    out = a / b

    Shapes: a, b and out alike, any shape; empty operands give an empty out.
    Special values: IEEE 754; a/0 is ±inf, 0/0 and inf/inf are NaN. Correctly rounded."""
    return a / b


@div.vjp("a, b, g -> ga, gb", bound=ulp([0, 2]))
def div_vjp(a, b, g):
    """ga = g / b, gb = -g·a / b², evaluated as -(g/b)·(a/b) without overflow or underflow on the way."""
    return g / b, -(g / b) * (a / b)


@op("x[*]; c: float -> out[*]",
    bound=exact(), laws=[laws.linear("x"), laws.adjoint("x")], source="IEEE 754-2019, 5.4.1",
    arguments={"c": "factor"},
    example={"c": 2.0})  # fmt: skip
def scale(x, c):
    """Product with a scalar.

    out = c · x, c rounded to float32 first

    Shapes: x and out alike, any shape; an empty x gives an empty out.
    Special values: IEEE 754. Correctly rounded."""
    return c * x


@scale.vjp("g -> gx", via=lambda k, g, c: k.scale(g, c))
def scale_vjp(g, c):
    """gx = c · g."""
    return c * g


@op(
    "a[*], b[*]; c: float -> out[*]",
    bound=exact(),
    source="IEEE 754-2019, 5.4.1, fusedMultiplyAdd",
    arguments={"c": "factor of b"},
)
def axpy(a, b, c):
    """Scaled sum with one rounding (a fused multiply-add).

    out = a + c · b, c rounded to float32 first

    Shapes: a, b and out alike, any shape; empty operands give an empty out.
    Special values: IEEE 754; 0 · inf is NaN. Correctly rounded."""
    return fused(a, c * b)


@axpy.vjp("g -> ga, gb", via=lambda k, g, c: (k.share(g), k.scale(g, c)))
def axpy_vjp(g, c):
    """ga = g, gb = c · g."""
    return g, c * g


@op("x[*] -> out[*]", torch="reciprocal", bound=exact(), laws=[laws.odd("x")], source="IEEE 754-2019, 5.4.1",
    example={"x": [0.5, -2, 4]})  # fmt: skip
def inv(x):
    """Reciprocal.

    out = 1 / x

    Shapes: x and out alike, any shape; an empty x gives an empty out.
    Special values: ±0 gives ±inf, ±inf gives ±0. Correctly rounded."""
    return 1 / x


@inv.vjp("x, g -> gx", bound=ulp(2))
def inv_vjp(x, g):
    """gx = -g / x²; ±inf at x = 0 (NaN for g = 0), zero at x = ±inf."""
    return -(g / x) / x


@op("x[*] -> out[*]", torch="sqrt", bound=exact(), source="IEEE 754-2019, 5.4.1",
    example={"x": [0.25, 2, 9]})  # fmt: skip
def sqrt(x):
    """Square root.

    out = √x

    Shapes: x and out alike, any shape; an empty x gives an empty out.
    Special values: √-0 = -0; NaN for x < 0. Correctly rounded."""
    return np.sqrt(x)


@sqrt.vjp("x, g -> gx", bound=ulp(1))
def sqrt_vjp(x, g):
    """gx = g / (2√x) where x > 0, else 0; NaN where x is NaN."""
    return np.where(np.isnan(x), np.nan, np.where(x > 0, g / (2 * np.sqrt(np.where(x > 0, x, 1))), 0.0))


# ---- selections --------------------------------------------------------------------------------------------------------


@op(
    "x[*] -> out[*]",
    torch="abs",
    bound=exact(),
    laws=[laws.idempotent(), laws.even("x")],
    source="IEEE 754-2019, 5.5.1",
)
def abs_(x):
    """Absolute value.

    out = |x|

    Shapes: x and out alike, any shape; an empty x gives an empty out.
    Special values: |-0| = +0, |±inf| = inf, NaN stays NaN."""
    return np.abs(x)


@abs_.vjp("x, g -> gx")
def abs_vjp(x, g):
    """gx = g · sign(x) with sign(±0) = 0."""
    return g * np.sign(x)


@op("a[*], b[*] -> out[*]",
    torch="maximum", bound=exact(), laws=[laws.commutative("a", "b"), laws.associative("a", "b")],
    source="IEEE 754-2019, 9.6, maximum")  # fmt: skip
def max_(a, b):
    """Larger of two values.

    out = a if a > b else b

    Shapes: a, b and out alike, any shape; empty operands give an empty out.
    Special values: NaN if either is NaN; +0 is larger than -0."""
    return np.where(a == b, np.where(np.signbit(a), b, a), np.maximum(a, b))


def _winner(a: F64, b: F64, g: F64) -> tuple[F64, F64]:
    nan = np.isnan(a) | np.isnan(b)
    ga = np.where(nan, np.nan, np.where(a > b, g, np.where(a == b, g / 2, 0.0)))
    gb = np.where(nan, np.nan, np.where(b > a, g, np.where(a == b, g / 2, 0.0)))
    return ga, gb


@max_.vjp("a, b, g -> ga, gb")
def max_vjp(a, b, g):
    """The larger value takes g, the other 0; a tie gives g/2 to each; NaN in either gives NaN to both."""
    return _winner(a, b, g)


@op("a[*], b[*] -> out[*]",
    torch="minimum", bound=exact(), laws=[laws.commutative("a", "b"), laws.associative("a", "b")],
    source="IEEE 754-2019, 9.6, minimum")  # fmt: skip
def min_(a, b):
    """Smaller of two values.

    out = a if a < b else b

    Shapes: a, b and out alike, any shape; empty operands give an empty out.
    Special values: NaN if either is NaN; -0 is smaller than +0."""
    return np.where(a == b, np.where(np.signbit(a), a, b), np.minimum(a, b))


@min_.vjp("a, b, g -> ga, gb")
def min_vjp(a, b, g):
    """The smaller value takes g, the other 0; a tie gives g/2 to each; NaN in either gives NaN to both."""
    return _winner(-a, -b, g)


def _draw_interval(d: Any) -> dict[str, Any]:
    lo = d.choice([-1e30, -np.inf, *[d.written(None, -2, 1)] * 4])
    return {"lo": lo, "hi": d.choice([lo, 1.0, 1.5, 6.0, 1e30, np.inf])}


@op("x[*]; lo: float, hi: float -> out[*]",
    torch="clamp", bound=exact(), checks=[check("hi", "lo <= hi", say="lo <= hi after rounding to float32, and no NaN")],
    draw=_draw_interval,
    example={"lo": -1.0, "hi": 1.0})  # fmt: skip
def clamp(x, lo, hi):
    """Limits values to an interval.

    out = min(hi, max(lo, x)), lo and hi rounded to float32 first

    Shapes: x and out alike, any shape; an empty x gives an empty out.
    Special values: NaN stays NaN.
    Errors: ARGUMENT unless lo <= hi."""
    return min_.reference(np.full_like(x, hi), max_.reference(np.full_like(x, lo), x))


@clamp.vjp("x, g -> gx")
def clamp_vjp(x, g, lo, hi):
    """gx = g where lo < x < hi, else 0; NaN where x is NaN."""
    return np.where(np.isnan(x), np.nan, np.where((x > lo) & (x < hi), g, 0.0))


@op("x[*] -> out[*]", torch="relu", bound=exact(), laws=[laws.idempotent()])
def relu(x):
    """Rectified linear unit.

    out = max(x, 0)

    Shapes: x and out alike, any shape; an empty x gives an empty out.
    Special values: NaN stays NaN; -0 gives +0."""
    return np.where((x != x) | (x > 0), x, 0.0)  # what is no float has no isnan


@relu.vjp("x, g -> gx")
def relu_vjp(x, g):
    """gx = g where x > 0, else 0; NaN where x is NaN."""
    return np.where(x != x, np.nan, np.where(x > 0, g, 0.0))


def _draw_slope(d: Any) -> dict[str, Any]:
    return {"slope": d.choice([0.2, *[d.written(0.01, -2, 2)] * 4])}


@op(
    "x[*]; slope: float = 0.01 -> out[*]",
    torch="nn.functional.leaky_relu",
    bound=exact(),
    draw=_draw_slope,
    source="Maas, Hannun and Ng, ICML 2013",
)
def leaky_relu(x, slope):
    """Rectified linear unit with a slope below 0.

    out = x where x > 0, else slope · x, slope rounded to float32 first (default 0.01)

    Shapes: x and out alike, any shape; an empty x gives an empty out.
    Special values: IEEE 754; NaN stays NaN."""
    return np.where(x > 0, x, slope * x)


@leaky_relu.vjp("x, g -> gx")
def leaky_relu_vjp(x, g, slope):
    """gx = g where x > 0, else slope · g; NaN where x is NaN."""
    return np.where(np.isnan(x), np.nan, np.where(x > 0, g, slope * g))


#: why a step function has no gradient: its result requires none
STEPS = "piecewise constant: the derivative is 0 wherever there is one"


@op("x[*] -> out[*]", torch="sign", bound=exact(), laws=[laws.idempotent()], no_vjp=STEPS)
def sign(x):
    """Sign.

    out = 1 where x > 0, -1 where x < 0, 0 where x = ±0

    Shapes: x and out alike, any shape; an empty x gives an empty out.
    Special values: NaN stays NaN; ±0 gives +0."""
    return np.sign(x) + 0


@op("x[*] -> out[*]", torch="floor", bound=exact(), laws=[laws.idempotent()], no_vjp=STEPS, source="IEEE 754-2019, 5.9",
    example={"x": [-1.5, 0.5, 2]})  # fmt: skip
def floor(x):
    """Largest integer up to a value.

    out = ⌊x⌋

    Shapes: x and out alike, any shape; an empty x gives an empty out.
    Special values: NaN, ±inf and -0 stay."""
    return np.floor(x)


@op(
    "x[*] -> out[*]",
    torch="round",
    bound=exact(),
    laws=[laws.idempotent(), laws.odd("x")],
    no_vjp=STEPS,
    source="IEEE 754-2019, 5.9",
    example={"x": [-1.5, 0.5, 2.5]},
)
def round_(x):
    """Nearest integer, the even one of two.

    out = x rounded to an integer, ties to even

    Shapes: x and out alike, any shape; an empty x gives an empty out.
    Special values: NaN, ±inf and ±0 stay; a zero has the sign of x."""
    return np.rint(x)


def _mask(holds: Any, like: Any) -> Any:
    """1 where a comparison holds, else 0, in the type of an operand."""
    return np.where(holds, np.ones_like(like), np.zeros_like(like))


@op(
    "a[*], b[*] -> out[*]", bound=exact(), laws=[laws.commutative("a", "b")], no_vjp=STEPS, source="IEEE 754-2019, 5.11"
)
def eq(a, b):
    """Mask of equal elements.

    out = 1 where a = b, else 0

    Shapes: a, b and out alike, any shape; empty operands give an empty out.
    Special values: NaN equals nothing; +0 equals -0."""
    return _mask(a == b, a)


@op(
    "a[*], b[*] -> out[*]", bound=exact(), laws=[laws.commutative("a", "b")], no_vjp=STEPS, source="IEEE 754-2019, 5.11"
)
def ne(a, b):
    """Mask of unequal elements.

    out = 1 where a ≠ b, else 0

    Shapes: a, b and out alike, any shape; empty operands give an empty out.
    Special values: NaN differs from everything, itself included; +0 equals -0."""
    return _mask(a != b, a)


@op("a[*], b[*] -> out[*]", bound=exact(), no_vjp=STEPS, source="IEEE 754-2019, 5.11")
def lt(a, b):
    """Mask of smaller elements.

    out = 1 where a < b, else 0

    Shapes: a, b and out alike, any shape; empty operands give an empty out.
    Special values: 0 where either is NaN; +0 equals -0."""
    return _mask(a < b, a)


@op("a[*], b[*] -> out[*]", bound=exact(), no_vjp=STEPS, source="IEEE 754-2019, 5.11")
def le(a, b):
    """Mask of smaller or equal elements.

    out = 1 where a ≤ b, else 0

    Shapes: a, b and out alike, any shape; empty operands give an empty out.
    Special values: 0 where either is NaN; +0 equals -0."""
    return _mask(a <= b, a)


@op("mask[*], a[*], b[*] -> out[*]", bound=exact(),
    laws=[laws.equation("f(mask, a, a) = a", lambda f, a: [(f({"b": a}), a)]), laws.linear("a", "b"), laws.adjoint("a", "b")],
    arguments={"mask": "chooses a where it is not 0"},
    example={"mask": [1, 0, 1]})  # fmt: skip
def where(mask, a, b):
    """Choice between two values.

    out = a where mask ≠ 0, else b

    Shapes: mask, a, b and out alike, any shape; empty operands give an empty out.
    Special values: a NaN in the mask chooses a, as it is not 0; the value not chosen has no influence."""
    return np.where(mask != 0, a, b)


@where.vjp("mask, g -> ga, gb")
def where_vjp(mask, g):
    """ga = g where mask ≠ 0, else 0; gb = 0 where mask ≠ 0, else g; the mask has no gradient."""
    return np.where(mask != 0, g, 0.0), np.where(mask != 0, 0.0, g)


@op("x[*], mask[*]; value: float -> out[*]", bound=exact(), laws=[laws.idempotent()],
    draw=lambda d: {"value": d.choice([-np.inf, -1e9, *[d.written(0.0, -2, 2)] * 2])},
    arguments={"mask": "takes the value where it is not 0"},
    example={"mask": [1, 0, 1]})  # fmt: skip
def masked_fill(x, mask, value):
    """Values with those under a mask replaced.

    out = value where mask ≠ 0, else x, value rounded to float32 first

    Shapes: x, mask and out alike, any shape; empty operands give an empty out.
    Special values: a NaN in the mask is not 0; the value replaced has no influence."""
    return np.where(mask != 0, value, x)


@masked_fill.vjp("mask, g -> gx", via=lambda k, mask, g, value: k.masked_fill(g, mask, 0.0))
def masked_fill_vjp(mask, g):
    """gx = 0 where mask ≠ 0, else g; the mask has no gradient."""
    return np.where(mask != 0, 0.0, g)


# ---- transcendental functions and activations ------------------------------------------------------------------------------


@op("x[*] -> out[*]", torch="exp", bound=ulp(1))
def exp(x):
    """Exponential.

    out = eˣ

    Shapes: x and out alike, any shape; an empty x gives an empty out.
    Special values: e^-inf = +0, e^inf = inf, inf above ln(largest float32). Subnormal results are kept."""
    return np.exp(x)


@exp.vjp("out, g -> gx", bound=exact())
def exp_vjp(out, g):
    """gx = g · out."""
    return g * out


@op("x[*] -> out[*]", torch="log", bound=ulp(1),
    example={"x": [0.5, 1, 2]})  # fmt: skip
def log(x):
    """Natural logarithm.

    out = ln x

    Shapes: x and out alike, any shape; an empty x gives an empty out.
    Special values: ln ±0 = -inf, ln inf = inf, NaN for x < 0."""
    return np.log(x)


@log.vjp("x, g -> gx", bound=exact())
def log_vjp(x, g):
    """gx = g / x, unguarded."""
    return g / x


def _softplus(x: F64) -> F64:
    return np.maximum(x, 0) + np.log1p(np.exp(-np.abs(x)))


def _safe_log_tail(x: F64, eps: float) -> F64:
    return expit(x) / (_softplus(x) + eps)


def _safe_log_floor(x: F64, eps: float) -> F64:
    """Where ln crosses zero the relative error of its argument y is an absolute one. Up to eps = 1e-3 the formula expands
    softplus around that point; beyond, y carries the 2^-25 of the general softplus."""
    s = _softplus(x)
    return np.where((eps > 1e-3) & (np.abs(s + eps - 1) < 0.5), 2.0**-25 * s / (s + eps), 0.0)


@op("x[*]; eps: float = 1e-6 -> out[*]",
    bound=ulp(1, floor=_safe_log_floor, text="1 ulp; eps > 1e-3: + 2⁻²⁵"),
    checks=[check("eps", "eps >= 8.881784197001252e-16", say="eps >= 2^-50")],
    draw=lambda d: {"eps": d.choice([1e-6, 1e-3, 2.0**-50, *[d.written(1e-6, 1e-6, 2.0)] * 4])},
    arguments={"eps": "added before the logarithm"})  # fmt: skip
def safe_log(x, eps):
    """Logarithm of a positive reparametrisation: finite for every finite x.

    out = ln(softplus(x) + eps), eps rounded to float32 first (default 1e-6)

    Shapes: x and out alike, any shape; an empty x gives an empty out.
    Special values: inf gives inf, -inf gives ln eps.
    Errors: ARGUMENT unless eps >= 2^-50."""
    beyond_one = _softplus(x) + (eps - 1)
    return np.where(np.abs(beyond_one) < 0.5, np.log1p(beyond_one), np.log(_softplus(x) + eps))


@safe_log.formula()
def _plain_safe_log(x, eps):
    return np.log(_softplus(x) + eps)


# below x = -198 the formula holds the slope at its value there
@safe_log.vjp(
    "x, g -> gx",
    bound=ulp(
        3,
        floor=lambda x, g, eps: np.where(
            (x < -198) & np.isfinite(x * g), np.abs(g) * (1 + 2.0**-20) * np.exp(-198.0) / eps, 0.0
        ),
    ),
)
def safe_log_vjp(x, g, eps):
    """gx = g · σ(x) / (softplus(x) + eps); below x = -198 the slope is held at its value there, under 1e-86 / eps."""
    return g * _safe_log_tail(x, eps)


@op("x[*] -> out[*]", torch="sigmoid", bound=ulp(1))
def sigmoid(x):
    """Logistic function.

    out = σ(x) = 1 / (1 + e^-x), evaluated stably on both sides

    Shapes: x and out alike, any shape; an empty x gives an empty out.
    Special values: σ(-inf) = +0, σ(inf) = 1."""
    return expit(x)


@sigmoid.formula()
def _plain_sigmoid(x):
    return 1 / (1 + np.exp(-x))


@sigmoid.vjp("out, g -> gx", bound=ulp(1, floor=lambda g: np.abs(g) * TINY / 2))
def sigmoid_vjp(out, g):
    """gx = g · out · (1 - out)."""
    return g * out * (1 - out)


@op("x[*] -> out[*]", torch="tanh", bound=ulp(1), laws=[laws.odd("x")])
def tanh(x):
    """Hyperbolic tangent, with relative accuracy near 0.

    out = tanh x

    Shapes: x and out alike, any shape; an empty x gives an empty out.
    Special values: tanh ±inf = ±1, tanh ±0 = ±0."""
    return np.tanh(x)


@tanh.vjp("out, g -> gx", bound=ulp(1))
def tanh_vjp(out, g):
    """gx = g · (1 - out²)."""
    return g * (1 - out) * (1 + out)


@tanh.formula("vjp")
def _plain_tanh_vjp(out, g):
    return g * (1 - out * out)


@op("x[*] -> out[*]", torch="nn.functional.softplus", bound=ulp(1))
def softplus(x):
    """Smooth rectifier.

    out = ln(1 + eˣ) = max(x, 0) + log1p(e^-|x|)

    Shapes: x and out alike, any shape; an empty x gives an empty out.
    Special values: -inf gives +0, inf gives inf. Subnormal results are kept."""
    return _softplus(x)


@softplus.formula()
def _plain_softplus(x):
    return np.where(x > 88, x, np.log1p(np.exp(np.minimum(x, 88))))  # beyond it the exponential may overflow


@softplus.formula("vjp")
def _plain_softplus_vjp(x, g):
    return np.where(x > 88, g, g * (np.exp(m := np.minimum(x, 88)) / (1 + np.exp(m))))


# 0.85 spacings of σ are up to 1.7 of the product, which rounds once more
@softplus.vjp("x, g -> gx", bound=ulp(2))
def softplus_vjp(x, g):
    """gx = g · σ(x)."""
    return g * expit(x)


@op(
    "x[*] -> out[*]",
    torch="nn.functional.silu",
    bound=ulp(1),
    source="Elfwing, Uchibe and Doya, Neural Networks 107, 2018",
)
def silu(x):
    """Sigmoid linear unit.

    out = x · σ(x)

    Shapes: x and out alike, any shape; an empty x gives an empty out.
    Special values: -inf gives -0, its limit; inf gives inf."""
    return np.where(x == -np.inf, -0.0, np.where(x < -745, 0 * x, x) * expit(x))


@silu.formula()
def _plain_silu(x):
    return x * _plain_sigmoid(x)


@silu.formula("vjp")
def _plain_silu_vjp(x, g):
    s = _plain_sigmoid(x)
    return g * s * (1 + x * (1 - s))


def _silu_slope(x: F64) -> F64:
    s = expit(x)
    return np.where(np.isinf(x), np.where(x > 0, 1.0, -0.0), s * (1 + np.where(np.isinf(x), 0, x) * (1 - s)))


# next to the zero of the slope its two parts cancel: 2^-32 absolute is what their two-float sums keep
@silu.vjp("x, g -> gx",
    bound=ulp(2, floor=lambda x, g: np.where(np.abs(x + 1.27846) < 0.01, 2.0**-32 * np.abs(g), 0.0)))  # fmt: skip
def silu_vjp(x, g):
    """gx = g · σ(x) · (1 + x · (1 - σ(x)))."""
    return g * _silu_slope(x)


#: √(2/π) and the cubic coefficient of the tanh form
GELU_SLOPE, GELU_CUBIC = np.sqrt(2 / np.pi), 0.044715


def _gelu_twice(x: F64) -> F64:
    """2z with z = √(2/π)(x + 0.044715 x³): ½(1 + tanh z) = σ(2z)."""
    return 2 * GELU_SLOPE * (x + GELU_CUBIC * x**3)


@op("x[*] -> out[*]", bound=ulp(1), source="Hendrycks and Gimpel, arXiv:1606.08415")
def gelu(x):
    """Gaussian error linear unit, tanh form.

    out = ½ x (1 + tanh(√(2/π) (x + 0.044715 x³)))

    Shapes: x and out alike, any shape; an empty x gives an empty out.
    Special values: -inf gives -0, its limit; inf gives inf."""
    return np.where(x == -np.inf, -0.0, np.where(x < -30, 0 * x, x) * expit(_gelu_twice(x)))


@gelu.formula()
def _plain_gelu(x):
    return 0.5 * x * (1 + np.tanh(GELU_SLOPE * (x + GELU_CUBIC * x**3)))


@gelu.formula("vjp")
def _plain_gelu_vjp(x, g):
    t = np.tanh(GELU_SLOPE * (x + GELU_CUBIC * x**3))
    return g * (0.5 * (1 + t) + 0.5 * x * (1 - t * t) * (GELU_SLOPE * (1 + 3 * GELU_CUBIC * x**2)))


def _gelu_slope(x: F64) -> F64:
    y = np.clip(x, -1e3, 1e3)
    s = expit(_gelu_twice(y))
    slope = s + y * s * (1 - s) * 2 * GELU_SLOPE * (1 + 3 * GELU_CUBIC * y**2)
    return np.where(x == -np.inf, -0.0, slope)


def _gelu_slope_floor(x: F64, g: F64) -> F64:
    """Next to the zero of the slope its two parts cancel, and 2^-31 is what their two-float sums keep; below x = -13.5 the
    formula holds the slope at its value there."""
    near = np.where(np.abs(x + 0.75246) < 0.01, 2.0**-31, 0.0)
    held = np.where(x < -13.5, -_gelu_slope(np.array(-13.5)), 0.0)
    return np.where(np.isfinite(g), np.abs(g), 0.0) * (near + held)


@gelu.vjp("x, g -> gx", bound=ulp(2, floor=_gelu_slope_floor))
def gelu_vjp(x, g):
    """gx = g · d/dx gelu(x) = g · (s + x s (1 - s) · 2√(2/π)(1 + 3·0.044715 x²)) with s = ½(1 + tanh(…))."""
    return g * _gelu_slope(x)


# ---- evaluated in float64 and rounded once -----------------------------------------------------------------------------


_erf = monotone("erf", np.vectorize(math.erf, otypes=[np.float64]))
_erfc = monotone("erfc", np.vectorize(math.erfc, otypes=[np.float64]))


def _held_exp(x: F64) -> F64:
    """eˣ, finite and above 0 for every finite x: beyond ±700 its product with a float32 is infinite or 0 all the same."""
    return np.where(x == -np.inf, 0.0, np.exp(np.clip(x, -700, 700)))


@op("x[*] -> out[*]", torch="log1p", bound=ulp(1),
    example={"x": [-0.5, 0, 1]})  # fmt: skip
def log1p(x):
    """Logarithm of 1 + x, with relative accuracy near 0.

    out = ln(1 + x)

    Shapes: x and out alike, any shape; an empty x gives an empty out.
    Special values: ±0 stays; -1 gives -inf, inf gives inf, NaN for x < -1."""
    return np.log1p(x)


@log1p.vjp("x, g -> gx")
def log1p_vjp(x, g):
    """gx = g / (1 + x), unguarded."""
    return g / (1 + x)


@op("x[*] -> out[*]", torch="expm1", bound=ulp(1))
def expm1(x):
    """Exponential less 1, with relative accuracy near 0.

    out = eˣ - 1

    Shapes: x and out alike, any shape; an empty x gives an empty out.
    Special values: ±0 stays; -inf gives -1, inf gives inf."""
    return np.expm1(x)


@expm1.vjp("x, g -> gx")
def expm1_vjp(x, g):
    """gx = g · eˣ; 0 at -inf, and eˣ counts as finite, so that g = 0 gives 0."""
    return g * _held_exp(x)


@op("x[*] -> out[*]", torch="erf", bound=ulp(1), laws=[laws.odd("x")])
def erf(x):
    """Error function.

    out = 2/√π ∫_0^x e^(-t²) dt

    Shapes: x and out alike, any shape; an empty x gives an empty out.
    Special values: ±0 stays; ±inf gives ±1."""
    return _erf(x)


@erf.vjp("x, g -> gx")
def erf_vjp(x, g):
    """gx = g · 2/√π · e^(-x²); 0 at ±inf (times g)."""
    return g * (2 / np.sqrt(np.pi) * _held_exp(-(x * x)))


def _normal_cdf(x: F64) -> F64:
    return _erfc(-x / np.sqrt(2)) / 2


@op("x[*] -> out[*]", torch="nn.functional.gelu", bound=ulp(1), source="Hendrycks and Gimpel, arXiv:1606.08415")
def gelu_erf(x):
    """Gaussian error linear unit, exact form.

    out = ½ x (1 + erf(x/√2))

    Shapes: x and out alike, any shape; an empty x gives an empty out.
    Special values: -inf gives -0, its limit; inf gives inf."""
    return np.where(x == -np.inf, -0.0, np.where(x < -30, 0 * x, x) * _normal_cdf(x))


@gelu_erf.formula()
def _plain_gelu_erf(x):
    return 0.5 * x * (1 + _erf(x * np.sqrt(0.5)))


@gelu_erf.formula("vjp")
def _plain_gelu_erf_vjp(x, g):
    return g * (0.5 * (1 + _erf(x * np.sqrt(0.5))) + x * (np.exp(-0.5 * x * x) / np.sqrt(2 * np.pi)))


def _gelu_erf_slope(x: F64) -> F64:
    y = np.clip(x, -30, 30)
    slope = _normal_cdf(y) + y * np.exp(-y * y / 2) / np.sqrt(2 * np.pi)
    return np.where(x == -np.inf, -0.0, slope)


# next to the zero of the slope its two parts cancel, and the fit of the distribution function leaves 2^-33
@gelu_erf.vjp("x, g -> gx",
    bound=ulp(1, floor=lambda x, g: np.where(np.abs(x + 0.75179) < 0.01, 2.0**-33 * np.abs(g), 0.0)))  # fmt: skip
def gelu_erf_vjp(x, g):
    """gx = g · (Φ(x) + x e^(-x²/2)/√(2π)), Φ the normal distribution function."""
    return g * _gelu_erf_slope(x)


@op("x[*] -> out[*]", torch="sin", bound=ulp(1), laws=[laws.odd("x")],
    source="Payne and Hanek, SIGNUM Newsletter 18, 1983, for |x| >= 2^30",
    arguments={"x": "in radians"})  # fmt: skip
def sin(x):
    """Sine of an angle in radians, of any size.

    out = sin x

    Shapes: x and out alike, any shape; an empty x gives an empty out.
    Special values: ±0 stays; NaN for ±inf."""
    return np.sin(x)


@sin.vjp("x, g -> gx")
def sin_vjp(x, g):
    """gx = g · cos x."""
    return g * np.cos(x)


@op("x[*] -> out[*]", torch="cos", bound=ulp(1), laws=[laws.even("x")],
    source="Payne and Hanek, SIGNUM Newsletter 18, 1983, for |x| >= 2^30",
    arguments={"x": "in radians"})  # fmt: skip
def cos(x):
    """Cosine of an angle in radians, of any size.

    out = cos x

    Shapes: x and out alike, any shape; an empty x gives an empty out.
    Special values: NaN for ±inf."""
    return np.cos(x)


@cos.vjp("x, g -> gx")
def cos_vjp(x, g):
    """gx = -g · sin x."""
    return -g * np.sin(x)


@op("y[*], x[*] -> out[*]", torch="atan2", bound=ulp(1), laws=[laws.odd("y")], source="ISO C99, F.9.1.4")
def atan2(y, x):
    """Angle of the point (x, y), in radians from -π to π.

    out = atan(y/x) in the quadrant of (x, y)

    Shapes: y, x and out alike, any shape; empty operands give an empty out.
    Special values: those of C's atan2: the signs of zeros choose the side of ±π and ±0, infinities count as equal."""
    return np.arctan2(y, x)


@atan2.vjp("y, x, g -> gy, gx")
def atan2_vjp(y, x, g):
    """gy = g · x/(x² + y²), gx = -g · y/(x² + y²); NaN at the origin."""
    return g * x / (x * x + y * y), -(g * y) / (x * x + y * y)


def _power(a: F64, b: Any) -> F64:
    """aᵇ, finite and not 0 where a and b are finite and a is not 0: beyond 2^±1000 its product with two float32 is infinite or 0
    all the same."""
    p = np.power(a, np.full_like(a, b))  # of a single exponent NumPy makes special cases, which are not C's
    held = np.isfinite(a) & (a != 0) & np.isfinite(b) & ~np.isnan(p)
    return np.where(held, np.copysign(np.clip(np.abs(p), 2.0**-1000, 2.0**1000), p), p)


def _power_slope(a: F64, b: Any, g: F64) -> F64:
    return np.where(b == 0, 0.0, g * (b * _power(a, b - 1)))


@op("a[*], b[*] -> out[*]", torch="pow", bound=ulp(1), laws=[laws.identity("b", 1.0)], source="ISO C99, F.9.4.4",
    data=("normal", "uniform", "integers", "wide", "special", "structured"))  # fmt: skip
def pow_(a, b):
    """Power.

    out = aᵇ

    Shapes: a, b and out alike, any shape; empty operands give an empty out.
    Special values: those of C's pow: a⁰ = 1 and 1ᵇ = 1 even for NaN; NaN for a < 0 and b no integer; the sign of an odd
    integer power is that of a."""
    return _power(a, b)


@pow_.vjp("a, b, g -> ga, gb")
def pow_vjp(a, b, g):
    """ga = g · b · a^(b - 1), 0 where b = 0; gb = g · aᵇ · ln a, 0 where a = 0 and b >= 0, NaN where a < 0."""
    slope = np.where(a < 0, np.nan, _power(a, b)) * np.log(np.abs(a))
    return _power_slope(a, b, g), np.where((a == 0) & (b >= 0), 0.0, g * slope)


@op("x[*]; p: float -> out[*]", torch="pow", bound=ulp(1), source="ISO C99, F.9.4.4",
    draw=lambda d: {"p": d.written(2.0, -8, 8)},
    arguments={"p": "exponent"},
    example={"p": 3.0})  # fmt: skip
def pow_scalar(x, p):
    """Power with one exponent for all elements.

    out = xᵖ, p rounded to float32 first

    Shapes: x and out alike, any shape; an empty x gives an empty out.
    Special values: those of C's pow: x⁰ = 1 and 1ᵖ = 1 even for NaN; NaN for x < 0 and p no integer."""
    return _power(x, p)


@pow_scalar.vjp("x, g -> gx")
def pow_scalar_vjp(x, g, p):
    """gx = g · p · x^(p - 1), 0 where p = 0."""
    return _power_slope(x, np.float64(p), g)


@op("x[*]; alpha: float = 1.0 -> out[*]", torch="nn.functional.elu", bound=ulp(1), source="Clevert, Unterthiner and Hochreiter, arXiv:1511.07289",
    draw=lambda d: {"alpha": d.choice([1.6732632, *[d.written(1.0, -0.5, 2)] * 4])},
    arguments={"alpha": "factor where x <= 0"})  # fmt: skip
def elu(x, alpha):
    """Exponential linear unit.

    out = x where x > 0, else alpha · (eˣ - 1), alpha rounded to float32 first (default 1)

    Shapes: x and out alike, any shape; an empty x gives an empty out.
    Special values: -inf gives -alpha; inf gives inf."""
    return np.where(x > 0, x, alpha * np.expm1(np.where(x > 0, 0, x)))


@elu.vjp("x, g -> gx")
def elu_vjp(x, g, alpha):
    """gx = g where x > 0, else g · alpha · eˣ."""
    return np.where(x > 0, g, g * (alpha * _held_exp(x)))


@op(
    "x[*] -> out[*]",
    torch="nn.functional.hardswish",
    bound=ulp(1),
    source="Howard et al., Searching for MobileNetV3, 2019",
)
def hardswish(x):
    """Piecewise quadratic approximation of silu.

    out = x · min(max(x + 3, 0), 6) / 6

    Shapes: x and out alike, any shape; an empty x gives an empty out.
    Special values: NaN stays NaN; x <= -3, -inf too, gives -0; inf gives inf."""
    y = np.clip(x, -3, 3)
    return np.where(x >= 3, x, y * (y + 3) / 6)


@hardswish.formula()
def _plain_hardswish(x):
    return np.maximum(x, -3) * (np.clip(x + 3, 0, 6) / 6)


@hardswish.vjp("x, g -> gx")
def hardswish_vjp(x, g):
    """gx = 0 where x <= -3, g where x >= 3, else g · (2x + 3) / 6."""
    return np.where(x <= -3, 0.0, np.where(x >= 3, g, g * ((2 * np.clip(x, -3, 3) + 3) / 6)))


@op("x[*] -> out[*]", torch="nn.functional.softsign", bound=ulp(1), laws=[laws.odd("x")])
def softsign(x):
    """Smooth sign of polynomial tails.

    out = x / (1 + |x|)

    Shapes: x and out alike, any shape; an empty x gives an empty out.
    Special values: ±inf gives ±1."""
    return np.where(np.isinf(x), np.sign(x), x / (1 + np.abs(x)))


@softsign.vjp("x, g -> gx")
def softsign_vjp(x, g):
    """gx = g / (1 + |x|)²."""
    return g / (1 + np.abs(x)) ** 2


def _mish_parts(x: F64) -> tuple[F64, F64, F64]:
    """x held within [-300, 30], e = eˣ, and n with tanh(softplus(x)) = n/(n + 2)."""
    y = np.clip(x, -300, 30)
    e = np.exp(y)
    return y, e, e * (e + 2)


@op("x[*] -> out[*]", torch="nn.functional.mish", bound=ulp(1), source="Misra, arXiv:1908.08681")
def mish(x):
    """Self-regularised smooth gate.

    out = x · tanh(softplus(x))

    Shapes: x and out alike, any shape; an empty x gives an empty out.
    Special values: -inf gives -0, its limit; inf gives inf."""
    _, _, n = _mish_parts(x)
    return np.maximum(x, -300) * (n / (n + 2))


@mish.formula()
def _plain_mish(x):
    return x * np.tanh(_plain_softplus(x))


@mish.formula("vjp")
def _plain_mish_vjp(x, g):
    t = np.tanh(_plain_softplus(x))
    return g * (t + x * _plain_sigmoid(x) * (1 - t * t))


# next to the zero of the slope its two parts cancel, and the fit of the exponential leaves 2^-33
@mish.vjp("x, g -> gx",
    bound=ulp(1, floor=lambda x, g: np.where(np.abs(x + 1.19246) < 0.01, 2.0**-33 * np.abs(g), 0.0)))  # fmt: skip
def mish_vjp(x, g):
    """gx = g · (t + x · σ(x) · (1 - t²)), t = tanh(softplus(x)); 1 at inf, -0 at -inf (times g)."""
    y, e, n = _mish_parts(x)
    slope = (n * (n + 2) + 4 * y * e * (e + 1)) / (n + 2) ** 2
    return g * np.where(x == -np.inf, -0.0, slope)
