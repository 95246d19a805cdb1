"""Softmax and log-softmax of the rows of a matrix.

A row is shifted by its maximum m, so no exponential overflows and the largest term is 1. The sums follow the row tree of
``native/src/formula/sum_tree.h``, the exponentials and logarithms are those of ``native/src/formula/explog.h`` (at most
1 ulp from the correctly rounded value, so 3u relative), and both back ends give the same bits.
"""

import numpy as np

from tlspec.bounds import LEAF, TINY, U, custom, factor, spacing, tree_height
from tlspec.classes import Classes, Near
from tlspec.laws import equation
from tlspec.registry import op

#: relative error of the shared exponential and logarithm: 1½ ulp, an ulp being at most 2u of the value
EXP = 3 * U
DATA = ("normal", "uniform", "integers", "special", "structured")


def shifted(x):
    """x - max(x) along rows, which the exponentials and both outputs start from."""
    return x - x.max(axis=1, keepdims=True, initial=-np.inf)


def exponentials(x):
    """The exponentials e^t of a shifted row, their sum S, the relative error of each computed exponential and that of the
    computed sum. t = x - m is rounded, which changes e^t by the factor e^(u|t|); |t| up to 104 matters, beyond it e^t is 0 or
    the smallest subnormal, an error of at most 2 TINY. The sum inherits the average of these and its tree's own roundings."""
    t = shifted(x)
    e = np.exp(t)
    s = e.sum(axis=1, keepdims=True)
    relative = np.where(e > 0, np.expm1(U * np.minimum(np.abs(t), 104.0)) + EXP, 0.0)
    total = (e * relative + 2 * TINY).sum(axis=1, keepdims=True) / s + factor(tree_height(x.shape[1])) * U
    return t, e, s, relative, total


def softmax_tolerance(x):
    """|Δy| <= y·(ρ_i + ΔS/S + 2u) with ρ_i the error of the exponential and 2u that of the quotient (within 1 ulp); a
    thousandth covers the second order, 4 TINY what underflows in e^t (S >= 1) and in the quotient."""
    _, e, s, relative, total = exponentials(x)
    return 1.001 * (e / s) * (relative + total + 2 * U) + 4 * TINY


def log_softmax_tolerance(x):
    """out = (x - m) - ln S: |Δ| <= u|x - m| + ΔS/S + 1½ ulp(ln S) + u|out|, a thousandth for the second order."""
    t, _, s, _, total = exponentials(x)
    out = t - np.log(s)
    shift = np.where(np.isfinite(t), U * np.abs(t), 0.0)
    return 1.001 * (shift + total + 1.5 * spacing(np.log(s)) + U * np.abs(out)) + 2 * TINY


def softmax_vjp_tolerance(out, g):
    """gx = y·(g - s), s = Σ g·y: the products' u and the tree's roundings give Δs = (f(h) + 1)·u·Σ|g·y|; the difference
    adds u|g - s|, the product u|gx|."""
    p = np.abs(g * out)
    s = (g * out).sum(axis=1, keepdims=True)
    ds = (factor(tree_height(out.shape[1])) + 1) * U * p.sum(axis=1, keepdims=True) + p.shape[1] * TINY
    return 1.001 * np.abs(out) * (ds + 2 * U * np.abs(g - s)) + 2 * TINY


def log_softmax_vjp_tolerance(out, g):
    """gx = g - e^y·s, s = Σg, fused: the exponential's error 3u·e^y|s|, Δs = f(h)·u·Σ|g| times e^y, then u|gx|."""
    e, s = np.exp(out), g.sum(axis=1, keepdims=True)
    ds = factor(tree_height(out.shape[1])) * U * np.abs(g).sum(axis=1, keepdims=True)
    return 1.001 * (e * ds + e * EXP * np.abs(s) + U * np.abs(g - e * s)) + 2 * TINY * (1 + np.abs(s))


def _shift(f, x):
    yield f({"x": x + np.float32(3)}), f()


def _batch(f, x, rows, cols):
    yield f({"x": x[rows // 2 :]}, values={"rows": rows - rows // 2, "cols": cols}).array, f().array[rows // 2 :]


def draw_rows(d):
    """A matrix; a single column, whose gradient is 0, only now and then."""
    return {"cols": d.dim(2) if d.rng.random() < 0.97 and not d.empty else d.dim(), "rows": d.dim()}


LAWS = [equation("f(x + 3) = f(x)", _shift, exact=False), equation("a row does not depend on the others", _batch)]


LOG2_E = float(np.log2(np.e))
#: half of the numbers whose products with log2 e are finite in every format of float32's range
FAR = 2.0**126
CLASSES: Classes = {
    "many short rows": lambda rows, cols: rows > 64 > cols > 1,
    "long rows": lambda rows, cols: rows > 1 and cols > 1024,
    "few rows of several leaves": Near(lambda rows, cols: rows > 0 and cols > 4 * LEAF, 4 * LEAF),
}


@op("x[rows, cols] -> out[rows, cols]",
    classes=CLASSES, bound=custom(softmax_tolerance, "y·(u|x − m| + 3u + their mean + f(h)·u + 2u)"), data=DATA, draw=draw_rows,
    laws=LAWS, source="max-shifted softmax; native/src/formula/sum_tree.h")  # fmt: skip
def softmax(x):
    """Softmax of each row of a matrix.

    out[i, j] = e^(x[i, j] - m_i) / Σ_k e^(x[i, k] - m_i), m_i = max_k x[i, k]

    Shapes: x (rows, cols), out (rows, cols). Leading axes fold into rows.
    Special values: as the formula gives. NaN or +inf in a row make the whole row NaN (inf - inf), and so does a row of
    nothing but -inf; -inf beside a finite value has weight 0. A single column gives 1. rows = 0 or cols = 0 gives an empty
    result."""
    e = np.exp(shifted(x))
    return e / e.sum(axis=1, keepdims=True)


@softmax.formula()
def softmax_of_powers_of_two(x):
    """By 2^((x - m)·log2 e), as FlashAttention and many kernels compute it: two more roundings of the exponent."""
    e = np.exp2(shifted(x) * LOG2_E)
    return e / e.sum(axis=1, keepdims=True)


def _where_near(x, near, far):
    """A formula that overflows for rows of the largest numbers; there, and in rows with infinities, the other stands."""
    holds = np.abs(x).max(axis=1, keepdims=True, initial=0.0) < FAR
    return np.where(holds, near(np.where(holds, x, 0.0)), far(x))


@softmax.formula()
def _scaled_before_the_difference(x):
    """By 2^(x·log2 e - m·log2 e), as FlashAttention-2 computes it: the product's rounding is relative to x, not to x - m."""

    def near(x):
        scaled = x * LOG2_E
        e = np.exp2(shifted(scaled))
        return e / e.sum(axis=1, keepdims=True)

    return _where_near(x, near, softmax_of_powers_of_two)


@softmax.formula()
def _by_the_logarithm_of_the_sum(x):
    """By e^(x - (m + ln S)), as backward passes compute it again from the logarithm that the forward pass kept."""

    def near(x):
        m = x.max(axis=1, keepdims=True, initial=-np.inf)
        return np.exp(x - (m + np.log(np.exp(x - m).sum(axis=1, keepdims=True))))

    return _where_near(x, near, softmax_of_powers_of_two)


@softmax.vjp("out, g -> gx", bound=custom(softmax_vjp_tolerance, "y·((f(h) + 1)·u·Σ|g·y| + 2u|g − s|)"))
def softmax_vjp(out, g):
    """gx[i, j] = out[i, j]·(g[i, j] - Σ_k g[i, k]·out[i, k])."""
    return out * (g - (g * out).sum(axis=1, keepdims=True))


@softmax.formula("vjp")
def _difference_of_products(out, g):
    return out * g - out * (g * out).sum(axis=1, keepdims=True)


@op("x[rows, cols] -> out[rows, cols]",
    classes=CLASSES, bound=custom(log_softmax_tolerance, "u|x − m| + ΔS/S + 1½ ulp(ln S) + u|out|"), data=DATA, draw=draw_rows,
    laws=LAWS, source="max-shifted log-softmax; native/src/formula/sum_tree.h")  # fmt: skip
def log_softmax(x):
    """Logarithm of the softmax of each row of a matrix, without forming the softmax.

    out[i, j] = (x[i, j] - m_i) - ln Σ_k e^(x[i, k] - m_i), m_i = max_k x[i, k]

    Shapes: x (rows, cols), out (rows, cols). Leading axes fold into rows.
    Special values: as the formula gives. NaN or +inf in a row make the whole row NaN, and so does a row of nothing but
    -inf; -inf beside a finite value gives -inf. A single column gives 0. rows = 0 or cols = 0 gives an empty result."""
    t = shifted(x)
    return t - np.log(np.exp(t).sum(axis=1, keepdims=True))


@log_softmax.formula()
def _by_logsumexp(x):
    m = x.max(axis=1, keepdims=True, initial=-np.inf)
    return x - (m + np.log(np.exp(x - m).sum(axis=1, keepdims=True)))


@log_softmax.vjp("out, g -> gx", bound=custom(log_softmax_vjp_tolerance, "e^y·(f(h)·u·Σ|g| + 3u|s|) + u|gx|"))
def log_softmax_vjp(out, g):
    """gx[i, j] = g[i, j] - e^out[i, j]·Σ_k g[i, k], the product and the difference fused."""
    return g - np.exp(out) * g.sum(axis=1, keepdims=True)
