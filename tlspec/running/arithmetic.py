"""Errors of arithmetic, comparisons and selections, element by element."""

from collections.abc import Callable
from typing import Any

import numpy as np

from tlspec.running.array import (
    FUNCTIONS,
    UFUNCS,
    ErrorArray,
    as_sum,
    chosen_error,
    error_of,
    model_of,
    operand,
    reach,
    value_of,
)
from tlspec.running.model import Model, power_of_two
from tlspec.running.rounding import is_sum, lost, result, rounded, total


def add(m: Model, a: Any, b: Any) -> ErrorArray:
    (x, dx), (y, dy) = operand(m, a), operand(m, b)
    if is_sum(a) or is_sum(b):
        return total(m, x + y, as_sum(m, a).plus(as_sum(m, b)))
    with_zero = ((x == 0) & (dx == 0)) | ((y == 0) & (dy == 0))
    return rounded(m, x + y, dx + dy, absolute=False, exact=with_zero, brought=(dx, dy))


def subtract(m: Model, a: Any, b: Any) -> ErrorArray:
    return add(m, a, negative(m, b) if isinstance(b, ErrorArray) else np.negative(np.asarray(b, np.float64)))


def multiply(m: Model, a: Any, b: Any) -> ErrorArray:
    (x, dx), (y, dy) = operand(m, a), operand(m, b)
    value = x * y
    error: Any = 0.0  # and not NaN beside an infinity
    if reach(dx) != 0 or reach(dy) != 0:
        error = np.asarray(np.abs(x) * dy + np.abs(y) * dx + dx * dy)
        error[((dx == 0) & (dy == 0)) | _stays_infinite(x, dx, y, dy) | _stays_infinite(y, dy, x, dx)] = 0
    if np.iscomplexobj(value):
        return result(m, value, error + 3 * m.unit * (np.abs(x) + dx) * (np.abs(y) + dy) + m.tiny)
    scaled = _scales(x, dx) | _scales(y, dy)
    scaled = scaled & ~lost(value, m) if scaled.any() else scaled
    return rounded(m, value, error, exact=scaled, brought=(dx, dy))


def _stays_infinite(x: Any, dx: Any, y: Any, dy: Any) -> Any:
    """Where a certain infinity meets a number of a certain sign: the product and the quotient are infinite."""
    infinite = np.isinf(x) & (dx == 0)
    return infinite & (np.abs(y) > dy) if np.any(infinite) else infinite


def _scales(x: Any, dx: Any) -> Any:
    """Where an operand is a power of two, and certain."""
    certain = dx == 0
    return power_of_two(x) & certain if certain.any() else certain


def divide(m: Model, a: Any, b: Any) -> ErrorArray:
    (x, dx), (y, dy) = operand(m, a), operand(m, b)
    value, size = x / y, np.abs(y)
    certain = ((dx == 0) & (dy == 0)) | _stays_infinite(x, dx, y, dy)
    error = np.where(certain, 0.0, (dx + np.abs(value) * dy) / np.where(size > dy, size - dy, 0.0))
    error = np.where(~certain & (x == 0) & (y == 0), np.inf, error)  # 0/0, or a number
    scaled = (_scales(y, dy) & ~lost(value, m)) | ((x == 0) & (dx == 0) & (size > dy))
    return rounded(m, value, error, m.ulp("divide", size)[0], exact=scaled, brought=(dx, dy))


def negative(m: Model, x: Any) -> ErrorArray:
    return ErrorArray(-x.value, x.error, m, x.sum_of)


def absolute(m: Model, x: Any) -> ErrorArray:
    if np.iscomplexobj(x.value):
        return rounded(m, np.abs(x.value), x.error, 1.5)
    return ErrorArray(np.abs(x.value), x.error, m)


def square(m: Model, x: ErrorArray) -> ErrorArray:
    return multiply(m, x, x)


def select(pick: Any) -> Callable[..., ErrorArray]:
    """max or min: neither moves by more than the larger of the errors, nor by more than the winner's where it wins clearly."""

    def rule(m: Model, a: Any, b: Any) -> ErrorArray:
        (x, dx), (y, dy) = operand(m, a), operand(m, b)
        value = pick(x, y)
        ends = [np.abs(pick(x + s * dx, y + s * dy) - value) for s in (-1, 1)]
        return result(m, value, np.where((dx == 0) & (dy == 0), 0.0, np.maximum(*ends)), (dx, dy))

    return rule


def floor(f: Any) -> Callable[..., ErrorArray]:
    def rule(m: Model, x: ErrorArray) -> ErrorArray:
        value = f(x.value)
        return ErrorArray(value, np.maximum(f(x.value + x.error) - value, value - f(x.value - x.error)), m)

    return rule


def rounded_to(x: ErrorArray, decimals: int = 0) -> Any:
    return np.rint(x * 10.0**decimals) / 10.0**decimals if decimals else np.rint(x)


def sign(m: Model, x: ErrorArray) -> ErrorArray:
    value = np.sign(x.value)
    ends = [np.abs(np.sign(x.value + s * x.error) - value) for s in (-1, 1)]
    return result(m, value, np.maximum(*ends))


def copysign(m: Model, a: Any, b: Any) -> ErrorArray:
    (x, dx), (y, dy) = operand(m, a), operand(m, b)
    value = np.copysign(x, y)
    return ErrorArray(value, dx + np.where((dy > 0) & (np.abs(y) <= dy), 2 * np.abs(x), 0.0), m)


def outer_product(m: Model, a: Any, b: Any) -> ErrorArray:
    return multiply(m, np.reshape(a, (*np.shape(a), *[1] * np.ndim(b))), b)


# ---- comparisons -------------------------------------------------------------------------------------------------------


def compared(compare: Any) -> Callable[..., Any]:
    """True or false, and where rounding may decide; a plain array where it nowhere does."""

    def rule(m: Model, a: Any, b: Any) -> Any:
        x, y, dx, dy = value_of(a), value_of(b), chosen_error(m, a), chosen_error(m, b)
        value = compare(x, y)
        if not (np.any(dx) or np.any(dy)):
            return value
        unsure = (np.abs(np.subtract(x, y)) <= dx + dy) & ((dx > 0) | (dy > 0))
        return ErrorArray(value, unsure, m) if np.any(unsure) else value

    return rule


def logical(f: Any, decided_by: bool | None) -> Callable[..., Any]:
    """And, or, exclusive or: sure where both operands are, or one of them decides alone."""

    def rule(m: Model, a: Any, b: Any) -> Any:
        x, y, dx, dy = value_of(a), value_of(b), error_of(a) != 0, error_of(b) != 0
        unsure = dx | dy
        if decided_by is not None:
            unsure = unsure & ~((x == decided_by) & ~dx) & ~((y == decided_by) & ~dy)
        return ErrorArray(f(x, y), unsure, m) if np.any(unsure) else f(x, y)

    return rule


def predicate(f: Any) -> Callable[..., Any]:
    """isnan, isfinite, isinf, signbit: of the value; an infinite error says nothing is known, and the tolerance follows it."""
    return lambda m, x: f(x.value)


def where(condition: Any, a: Any, b: Any) -> Any:
    m = model_of(condition, a, b)
    x, y, dx, dy = value_of(a), value_of(b), chosen_error(m, a), chosen_error(m, b)
    c = value_of(condition)
    value, error = np.where(c, x, y), np.where(c, dx, dy)
    if isinstance(condition, ErrorArray):
        either = np.maximum(dx, dy) + np.abs(np.subtract(x, y))
        error = np.where(condition.error, np.where(np.isnan(either), np.inf, either), error)
    return ErrorArray(value, error, m)


def clip(
    x: Any, a_min: Any = None, a_max: Any = None, out: None = None, *, min: Any = None, max: Any = None
) -> ErrorArray:
    low, high = (b if a is None else a for a, b in ((a_min, min), (a_max, max)))
    return np.minimum(np.maximum(x, -np.inf if low is None else low), np.inf if high is None else high)


UFUNCS.update(
    {
        "add": add,
        "subtract": subtract,
        "multiply": multiply,
        "divide": divide,
        "true_divide": divide,
        "negative": negative,
        "positive": lambda m, x: x,
        "absolute": absolute,
        "fabs": absolute,
        "conjugate": lambda m, x: x.conj(),
        "square": square,
        "reciprocal": lambda m, x: divide(m, 1.0, x),
        "maximum": select(np.maximum),
        "minimum": select(np.minimum),
        "fmax": select(np.fmax),
        "fmin": select(np.fmin),
        "sign": sign,
        "copysign": copysign,
        "floor": floor(np.floor),
        "ceil": floor(np.ceil),
        "rint": floor(np.rint),
        "trunc": floor(np.trunc),
        "greater": compared(np.greater),
        "greater_equal": compared(np.greater_equal),
        "less": compared(np.less),
        "less_equal": compared(np.less_equal),
        "equal": compared(np.equal),
        "not_equal": compared(np.not_equal),
        "logical_and": logical(np.logical_and, False),
        "logical_or": logical(np.logical_or, True),
        "logical_xor": logical(np.logical_xor, None),
        "bitwise_and": logical(np.logical_and, False),
        "bitwise_or": logical(np.logical_or, True),
        "logical_not": lambda m, x: ErrorArray(~x.value.astype(bool), x.error, m),
        "invert": lambda m, x: ErrorArray(~x.value, x.error, m),
        "isnan": predicate(np.isnan),
        "isfinite": predicate(np.isfinite),
        "isinf": predicate(np.isinf),
        "signbit": predicate(np.signbit),
        "multiply.outer": outer_product,
    }
)


FUNCTIONS.update(
    {
        "where": where,
        "outer": lambda a, b: outer_product(model_of(a, b), np.ravel(a), np.ravel(b)),
        "clip": clip,
        "round": rounded_to,
    }
)
