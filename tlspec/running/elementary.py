"""Errors of elementary functions: the change over what the argument may be, and the function's own."""

from collections.abc import Callable
from typing import Any

import numpy as np

from tlspec.running.arithmetic import multiply
from tlspec.running.array import UFUNCS, ErrorArray, operand
from tlspec.running.model import Model
from tlspec.running.rounding import lost, rounded


def monotone_rule(name: str, f: Any, low: float = -np.inf, high: float = np.inf) -> Callable[..., ErrorArray]:
    """A function that grows, or falls, all over [low, high]: the change over an interval is that at its ends."""
    bounded = low > -np.inf or high < np.inf

    def rule(m: Model, x: Any) -> ErrorArray:
        v, d = operand(m, x)
        value = f(v)
        if np.any(d):
            most, least = v + d, v - d
            error = np.maximum(np.abs(f(np.minimum(most, high)) - value), np.abs(f(np.maximum(least, low)) - value))
            if bounded:
                inside = (least >= low) & (most <= high)
                error = np.where(inside | ~np.isfinite(v), error, np.maximum(error, np.abs(value)))
            error = np.where(d == 0, 0.0, error)
            if name.startswith("log"):
                error = np.where((d > 0) & (np.isnan(value) | (least <= low)) & np.isfinite(v), np.inf, error)
            if bounded:
                reached = ((v < low) & (most >= low)) | ((v > high) & (least <= high))  # a number, or none
                error = np.where((d > 0) & reached, np.inf, error)
        else:
            error = np.zeros_like(d)
        ulp, absolute = m.ulp(name, np.abs(v) + d)
        error = error + absolute
        # the value in float64 is itself rounded: what its interval hides below that is covered by the ulp
        return rounded(m, value, error, ulp, exact=(d == 0) & (v == 0) & (value == np.rint(value)), brought=(d,))

    return rule


def monotone(name: str, f: Callable[[Any], Any]) -> Callable[[Any], Any]:
    """A monotone function that NumPy lacks, of plain arrays and of those with errors.

    Parameters
    ----------
    name : str
        The model's table of errors knows it by this.
    f : callable
        The function of a plain array.

    Returns
    -------
    callable
        The function of both.
    """
    rule = monotone_rule(name, f)
    return lambda x: rule(x.model, x) if isinstance(x, ErrorArray) else f(x)


def bounded_slope(name: str, f: Any, slope: Callable[[Any, Any], Any]) -> Callable[..., ErrorArray]:
    """A function whose slope over [x - e, x + e] is at most slope(x, e)."""

    def rule(m: Model, x: Any) -> ErrorArray:
        v, d = operand(m, x)
        error = np.where(d == 0, 0.0, d * slope(v, d))
        ulp, absolute = m.ulp(name, np.abs(v) + d)
        return rounded(m, f(v), error + absolute, ulp, exact=(d == 0) & (v == 0), brought=(d,))

    return rule


def arctan2(m: Model, a: Any, b: Any) -> ErrorArray:
    (y, dy), (x, dx) = operand(m, a), operand(m, b)
    square = np.maximum(np.abs(x) - dx, 0.0) ** 2 + np.maximum(np.abs(y) - dy, 0.0) ** 2
    error = np.where((dx == 0) & (dy == 0), 0.0, ((np.abs(x) + dx) * dy + (np.abs(y) + dy) * dx) / square)
    across = (dy > 0) & (np.abs(y) <= dy) & (x < dx)  # the negative axis, where an angle jumps by a turn
    error = np.where(across, 2 * np.pi, error)
    return rounded(
        m,
        np.arctan2(y, x),
        np.fmin(error, 2 * np.pi),
        m.ulp("arctan2", np.abs(y))[0],
        exact=(error == 0) & (y == 0) & (x > 0),
    )


def power(m: Model, a: Any, b: Any) -> ErrorArray:
    (x, dx), (y, dy) = operand(m, a), operand(m, b)
    if not np.any(dy) and np.ndim(y) == 0 and float(y) in (2.0, 3.0) and isinstance(a, ErrorArray):
        return multiply(m, a, a) if float(y) == 2.0 else multiply(m, multiply(m, a, a), a)
    value = np.power(x, y)
    corners = [np.abs(np.power(np.abs(x) + s * dx, y + t * dy) - np.abs(value)) for s in (-1, 1) for t in (-1, 1)]
    error = np.where((dx == 0) & (dy == 0), 0.0, np.max(np.broadcast_arrays(*corners), axis=0))
    error = np.where((dx > 0) & (dx >= np.abs(x)), np.where((y >= 0) & ~np.isnan(value), error, np.inf), error)
    # rounding decides whether the exponent is an odd integer, of -0 too
    error = np.where(np.signbit(x) & (dy > 0), np.inf, error)
    return rounded(
        m,
        value,
        error,
        m.ulp("power", np.abs(x))[0],
        exact=(error == 0) & np.isin(value, (0.0, 1.0)),
        brought=(error,),
    )


def frexp(m: Model, x: ErrorArray) -> tuple[ErrorArray, Any]:
    fraction, exponent = np.frexp(x.value)
    return ErrorArray(fraction, np.ldexp(x.error, -exponent), m), exponent


def ldexp(m: Model, x: ErrorArray, k: Any) -> ErrorArray:
    v, d = operand(m, x)
    value = np.ldexp(v, k)
    return ErrorArray(value, np.ldexp(d, k) + np.where(lost(value, m), m.tiny, 0.0), m)


UFUNCS.update(
    {
        "power": power,
        "float_power": power,
        "ldexp": ldexp,
        "frexp": frexp,
        "arctan2": arctan2,
        "exp": monotone_rule("exp", np.exp),
        "exp2": monotone_rule("exp2", np.exp2),
        "expm1": monotone_rule("expm1", np.expm1),
        "log": monotone_rule("log", np.log, 0.0),
        "log2": monotone_rule("log2", np.log2, 0.0),
        "log10": monotone_rule("log10", np.log10, 0.0),
        "log1p": monotone_rule("log1p", np.log1p, -1.0),
        "sqrt": monotone_rule("sqrt", np.sqrt, 0.0),
        "cbrt": monotone_rule("cbrt", np.cbrt),
        "tanh": monotone_rule("tanh", np.tanh),
        "sinh": monotone_rule("sinh", np.sinh),
        "arctan": monotone_rule("arctan", np.arctan),
        "arcsinh": monotone_rule("arcsinh", np.arcsinh),
        "arccosh": monotone_rule("arccosh", np.arccosh, 1.0),
        "arctanh": monotone_rule("arctanh", np.arctanh, -1.0, 1.0),
        "arcsin": monotone_rule("arcsin", np.arcsin, -1.0, 1.0),
        "arccos": monotone_rule("arccos", np.arccos, -1.0, 1.0),
        "sin": bounded_slope("sin", np.sin, lambda v, d: np.minimum(1.0, np.abs(np.cos(v)) + d)),
        "cos": bounded_slope("cos", np.cos, lambda v, d: np.minimum(1.0, np.abs(np.sin(v)) + d)),
        "cosh": bounded_slope("cosh", np.cosh, lambda v, d: np.sinh(np.abs(v) + d)),
        "tan": bounded_slope(
            "tan", np.tan, lambda v, d: np.where(np.abs(np.cos(v)) > d, (np.abs(np.cos(v)) - d) ** -2.0, np.inf)
        ),
    }
)
