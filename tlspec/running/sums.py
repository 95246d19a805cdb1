"""Errors of sums, products of matrices, reductions and Fourier transforms."""

import math
from collections.abc import Callable
from typing import Any

import numpy as np

from tlspec.bounds import factor
from tlspec.running.arithmetic import add, multiply
from tlspec.running.array import (
    FUNCTIONS,
    UFUNCS,
    ErrorArray,
    Sum,
    as_sum,
    beyond,
    certain,
    finite_size,
    model_of,
    operand,
    overflowed,
    value_of,
)
from tlspec.running.model import Model, granularity
from tlspec.running.rounding import result, stored, total


def refuse_narrow(dtype: Any) -> None:
    """Raises TypeError for an accumulator that has fewer bits than float32."""
    if dtype is not None and np.dtype(dtype).name not in ("float64", "float32"):
        raise TypeError(f"running error analysis does not know a sum in {np.dtype(dtype)}: cast its terms")


def count_terms(value: Any, axis: Any) -> int:
    axes = range(value.ndim) if axis is None else (axis,) if isinstance(axis, (int, np.integer)) else axis
    return int(math.prod(value.shape[a] for a in axes))


def summed(
    m: Model, x: ErrorArray, axis: Any = None, keepdims: bool = False, dtype: Any = None, initial: Any = None
) -> ErrorArray:
    v, d = operand(m, x)
    v = v.astype(np.float64) if v.dtype.kind == "b" else v
    keep: dict[str, Any] = {"axis": axis, "keepdims": keepdims}
    each = as_sum(m, x)
    value, brought, size = v.sum(**keep), each.brought.sum(**keep), each.size.sum(**keep)
    # adding nothing is exact
    few = count_terms(v, axis) if np.any(d) else int(np.count_nonzero(v, axis=axis).max(initial=0))
    made = total(m, value, Sum(few * each.terms, size, brought, each.step))
    return made if initial is None else add(m, made, initial)


def mean(x: Any, axis: Any = None, dtype: Any = None, out: None = None, keepdims: bool = False) -> Any:
    return np.sum(x, axis=axis, dtype=dtype, keepdims=keepdims) / count_terms(x.value, axis)


def var(
    x: Any, axis: Any = None, dtype: Any = None, out: None = None, ddof: int = 0, keepdims: bool = False, *,
    correction: int | None = None,
) -> Any:  # fmt: skip
    less = ddof if correction is None else correction
    centred = x - np.mean(x, axis=axis, dtype=dtype, keepdims=True)
    return np.sum(centred * centred, axis=axis, keepdims=keepdims) / max(count_terms(x.value, axis) - less, 0)


def cumulated(x: ErrorArray, axis: Any = None, dtype: Any = None) -> ErrorArray:
    m = x.model
    v, d = operand(m, x)
    if axis is None:
        v, d, axis = v.ravel(), d.ravel(), 0
    brought = d.cumsum(axis)
    size = finite_size(v, d).cumsum(axis)
    place = np.arange(1, v.shape[axis] + 1).reshape([-1 if a == axis % v.ndim else 1 for a in range(v.ndim)])
    share = m.sum_error(place)
    exact = size <= 2.0 ** min(m.sum_precision, m.precision) * (
        0.0 if np.any(d) else granularity(v, m.precision, m.exact)
    )
    error = np.where(exact, 0.0, share * size)
    value = v.cumsum(axis)
    error = brought + error
    return result(m, *overflowed(m, value, error + stored(m, value, error), beyond(m, size)))


def multiplied(
    m: Model, x: ErrorArray, axis: Any = None, keepdims: bool = False, dtype: Any = None, initial: Any = None
) -> ErrorArray:
    """A product of n numbers: (1 + δ)^n in any order. What is lost near zero on the way grows by the factors above 1, and a
    product of these alone may overflow."""
    v, d = operand(m, x)
    n = count_terms(v, axis)
    size = (np.abs(v) + d).prod(axis=axis, keepdims=keepdims)
    value = v.prod(axis=axis, keepdims=keepdims)
    brought = np.where(np.any(d != 0, axis=axis, keepdims=keepdims), size - np.abs(value), 0.0)
    most = np.maximum(np.abs(v) + d, 1.0).prod(axis=axis, keepdims=keepdims)
    least = np.minimum(np.abs(v), 1.0).prod(axis=axis, keepdims=keepdims)
    lost = np.where(least < 2.0 ** (m.precision + 1) * m.tiny, n * m.tiny * most, n * m.tiny)
    error = brought + np.expm1(1.01 * factor(max(n - 1, 0)) * m.unit) * size + lost
    certain = np.any(~np.isfinite(v), axis=axis, keepdims=keepdims)
    made = result(m, *overflowed(m, value, error, ~certain & beyond(m, most)))
    return made if initial is None else multiply(m, made, initial)


def multiplied_along(x: ErrorArray, axis: Any = None, dtype: Any = None) -> ErrorArray:
    """Products of the first 1, 2, ... numbers: of each what :func:`multiplied` says, and of the first nothing is lost."""
    m = x.model
    v, d = operand(m, x)
    if axis is None:
        v, d, axis = v.ravel(), d.ravel(), 0
    places = np.arange(v.shape[axis])
    roundings = factor(places)
    shape = [-1 if a == axis % v.ndim else 1 for a in range(v.ndim)]
    count, h = places.reshape(shape), roundings.reshape(shape)
    value, size = v.cumprod(axis), (np.abs(v) + d).cumprod(axis)
    brought = np.where(np.logical_or.accumulate(d != 0, axis), size - np.abs(value), 0.0)
    most, least = np.maximum(np.abs(v) + d, 1.0).cumprod(axis), np.minimum(np.abs(v), 1.0).cumprod(axis)
    lost = np.where(least < 2.0 ** (m.precision + 1) * m.tiny, count * m.tiny * most, count * m.tiny)
    error = brought + np.expm1(1.01 * h * m.unit) * size + lost
    certain = np.logical_or.accumulate(~np.isfinite(v), axis)
    return result(m, *overflowed(m, value, error, ~certain & beyond(m, most)))


def extreme_along(pick: Any) -> Callable[..., ErrorArray]:
    """The largest or the smallest number so far."""

    def rule(m: Model, x: ErrorArray, axis: int = 0, dtype: Any = None) -> ErrorArray:
        ends = [pick.accumulate(x.value + s * x.error, axis) for s in (-1, 1)]
        value = pick.accumulate(x.value, axis)
        return result(m, value, np.maximum(*(np.abs(e - value) for e in ends)))

    return rule


def norm(x: Any, ord: Any = None, axis: Any = None, keepdims: bool = False) -> Any:
    """Norms of vectors, and the Frobenius norm."""
    axes = tuple(range(x.ndim)) if axis is None else (axis,) if isinstance(axis, (int, np.integer)) else tuple(axis)
    if len(axes) > 1 and ord not in (None, "fro"):
        raise TypeError(f"running error analysis does not know the matrix norm {ord!r}")
    keep: dict[str, Any] = {"axis": axes, "keepdims": keepdims}
    size = np.abs(x)
    if ord in (np.inf, -np.inf):
        return (np.max if ord > 0 else np.min)(size, **keep)
    if ord == 0:
        return np.sum(np.where(x != 0, 1.0, 0.0), **keep)
    if ord == 1:
        return np.sum(size, **keep)
    return np.sqrt(np.sum(size * size, **keep)) if ord in (None, 2, "fro") else np.sum(size**ord, **keep) ** (1 / ord)


def vector_norm(x: Any, /, *, axis: Any = None, keepdims: bool = False, ord: Any = 2) -> Any:
    """The norm of all elements, or along an axis."""
    if axis is not None:
        return norm(x, ord, axis, keepdims)
    found = norm(np.ravel(x), ord)
    return np.reshape(found, (1,) * x.ndim) if keepdims else found


def extreme(pick: str, empty: float) -> Callable[..., ErrorArray]:
    def rule(
        m: Model, x: ErrorArray, axis: Any = None, keepdims: bool = False, dtype: Any = None, initial: Any = None
    ) -> ErrorArray:
        start = {} if initial is None else {"initial": value_of(initial)}

        def f(v: Any) -> Any:
            return getattr(v, pick)(axis=axis, keepdims=keepdims, **start)

        value = f(x.value)
        if not np.any(x.error):
            return ErrorArray(value, 0.0, m)
        return result(m, value, np.maximum(np.abs(f(x.value + x.error) - value), np.abs(f(x.value - x.error) - value)))

    return rule


# ---- products of matrices ----------------------------------------------------------------------------------------------


def as_operand(m: Model, x: Any) -> tuple[Any, Any]:
    """An operand of a product of matrices, rounded first where the model says so."""
    v, d = operand(m, x)
    if m.operands is not None:
        far = np.asarray(np.abs(v) + d, np.float64)
        moved = np.where(far < m.operands.overflow, m.operands.spacing(far) / 2, np.inf)
        kept = (m.operands.round(np.asarray(v, np.float64)) == v) & (d == 0)
        d = d + np.where(kept | np.isnan(v), 0.0, moved)
    return v, d


def contract(m: Model, product: Callable[[Any, Any], Any], terms: int, a: Any, b: Any) -> ErrorArray:
    """Sums of `terms` products, as `product` pairs them."""
    (x, dx), (y, dy) = as_operand(m, a), as_operand(m, b)
    value = product(x, y)
    left, right = np.abs(x), np.abs(y)
    exact = not (np.any(dx) or np.any(dy))
    size = product(left, right) if exact else product(left + dx, right + dy)
    brought = 0.0 if exact else size - product(left, right)
    if np.any(np.isinf(dx)) or np.any(np.isinf(dy)):
        brought = np.where(np.isnan(brought), np.inf, brought)
    if np.iscomplexobj(value):
        return result(m, value, brought + 3 * m.sum_error(terms + 1) * size + terms * m.tiny)
    steps = [granularity(v, m.precision, m.exact) for v in (x, y)] if exact else [0.0]
    step = np.inf if np.inf in steps else math.prod(steps)
    step = step if step >= 2 * m.tiny else 0.0  # products may lie between the smallest numbers
    # each product is a term of one rounding more
    brought = brought + np.where(size <= 2.0 ** min(m.sum_precision, m.precision) * step, 0.0, terms * m.tiny)
    brought = np.where(np.isnan(brought), np.inf, brought)
    if np.any(np.isinf(x)) or np.any(np.isinf(y)):
        size = product(finite_size(x, dx), finite_size(y, dy))
    made = total(m, value, Sum(terms + 1, size, np.broadcast_to(brought, np.shape(size)), step))
    # a zero times an infinity: NaN in the value, and certain
    made.error = np.where(np.isnan(value) & np.isfinite(brought), 0.0, made.error)
    return made


def matmul(m: Model, a: Any, b: Any) -> ErrorArray:
    return contract(m, np.matmul, np.shape(a)[-1], a, b)


def einsum(pattern: str, *operands: Any, **options: Any) -> Any:
    m = model_of(operands)
    if len(operands) > 2:
        raise TypeError("running error analysis knows einsum of one or two operands: write one product after the other")
    inner, arrow, outer = pattern.replace(" ", "").partition("->")
    if "." in inner:
        raise TypeError("running error analysis does not know the ellipsis of einsum")
    if len(operands) == 1:
        x = operands[0]
        if not arrow or len(set(inner)) < len(inner):
            raise TypeError("running error analysis knows einsum of one operand with -> and no diagonals")
        gone = [i for i, c in enumerate(inner) if c not in outer]
        summed = np.sum(x, axis=tuple(gone)) if gone else x
        kept = "".join(c for c in inner if c in outer)
        return np.transpose(summed, [kept.index(c) for c in outer])
    letters = inner.replace(",", "")
    outer = outer if arrow else "".join(c for c in letters if letters.count(c) == 1)
    sizes: dict[str, int] = {}
    for c, n in zip(letters, (*np.shape(operands[0]), *np.shape(operands[1])), strict=True):
        sizes[c] = n if sizes.get(c, 1) == 1 else sizes[c]  # an axis of 1 is as long as the other of its letter
    terms = math.prod(n for c, n in sizes.items() if c not in outer)
    return contract(m, lambda x, y: np.einsum(pattern, x, y, optimize=True), terms, *operands)


def dot(a: Any, b: Any) -> Any:
    if np.ndim(a) == 0 or np.ndim(b) == 0:
        return a * b
    return contract(model_of(a, b), np.dot, np.shape(a)[-1], a, b)


def tensordot(a: Any, b: Any, axes: Any = 2) -> ErrorArray:
    n = axes if isinstance(axes, int) else len(np.atleast_1d(axes[0]))
    left = range(np.ndim(a) - n, np.ndim(a)) if isinstance(axes, int) else np.atleast_1d(axes[0])
    terms = math.prod(np.shape(a)[i] for i in left)
    return contract(model_of(a, b), lambda x, y: np.tensordot(x, y, axes), terms, a, b)


def add_at(m: Model, target: Any, index: Any, x: Any) -> None:
    """Sums of what falls on one place, in any order, and what lay there."""
    if not isinstance(target, ErrorArray):
        raise TypeError("numpy.add.at adds into a plain array, which would lose the errors: make it with like=")
    index = certain(index)
    v, d = operand(m, x)
    value, error = target.value.copy(), np.array(target.error, np.float64)
    size = np.abs(value) + error
    count = (size != 0).astype(np.float64)
    exact = (
        granularity(np.append(value.ravel(), v.ravel()), m.precision, m.exact)
        if not (np.any(error) or np.any(d))
        else 0.0
    )
    for to, what in ((value, v), (error, d), (size, np.abs(v) + d), (count, np.ones(np.shape(v)))):
        np.add.at(to, index, what)
    share = m.sum_error(count)
    rounding = np.where(size <= 2.0 ** min(m.sum_precision, m.precision) * exact, 0.0, share * size)
    error = error + rounding
    target.value, target.error = overflowed(m, value, error + stored(m, value, error), beyond(m, size))


# ---- transforms --------------------------------------------------------------------------------------------------------


def transform(name: str) -> Callable[..., ErrorArray]:
    """A fast Fourier transform of any kind: about four roundings a level, each relative to the sum of absolute values (Higham,
    §24.1); lengths with large primes are done in three of twice the length (Bluestein)."""
    f = getattr(np.fft, name)

    def rule(x: ErrorArray, n: int | None = None, axis: int = -1, norm: Any = None) -> ErrorArray:
        m = x.model
        v, d = operand(m, x)
        length = n or (2 * (v.shape[axis] - 1) if name == "irfft" else v.shape[axis])
        value = f(v, n, axis, norm)
        used = np.take(np.abs(v) + d, range(min(v.shape[axis], length)), axis)
        brought = np.take(d, range(min(v.shape[axis], length)), axis)
        both = 2.0 if name == "irfft" else 1.0  # a bin stands for its conjugate, too
        is_divided = name.startswith("i") == (norm != "forward")
        scale = both / (length**0.5 if norm == "ortho" else length if is_divided else 1)
        h = 12 * max(1, math.ceil(math.log2(max(length, 2)))) + 12
        reach = used.sum(axis=axis, keepdims=True) * scale
        error = brought.sum(axis=axis, keepdims=True) * scale + float(factor(h)) * m.unit * reach + length * m.tiny
        return result(m, *overflowed(m, value, np.broadcast_to(error, value.shape), beyond(m, reach)))

    return rule


def reduction(ufunc: str) -> Callable[..., ErrorArray]:
    """numpy.sum or numpy.prod, with NumPy's order of arguments."""

    def rule(
        x: ErrorArray,
        axis: Any = None,
        dtype: Any = None,
        out: None = None,
        keepdims: bool = False,
        initial: Any = None,
    ) -> ErrorArray:
        refuse_narrow(dtype)
        return UFUNCS[f"{ufunc}.reduce"](model_of(x), x, axis, keepdims, initial=initial)

    return rule


def extreme_of(ufunc: str) -> Callable[..., ErrorArray]:
    """numpy.max or numpy.min, with NumPy's order of arguments."""

    def rule(
        x: ErrorArray, axis: Any = None, out: None = None, keepdims: bool = False, initial: Any = None
    ) -> ErrorArray:
        return UFUNCS[f"{ufunc}.reduce"](x.model, x, axis, keepdims, initial=initial)

    return rule


UFUNCS.update(
    {
        "matmul": matmul,
        "add.reduce": summed,
        "multiply.reduce": multiplied,
        "maximum.reduce": extreme("max", -np.inf),
        "minimum.reduce": extreme("min", np.inf),
        "add.at": add_at,
        "add.accumulate": lambda m, x, axis=0, dtype=None: cumulated(x, axis),
        "multiply.accumulate": lambda m, x, axis=0, dtype=None: multiplied_along(x, axis),
        "maximum.accumulate": extreme_along(np.maximum),
        "minimum.accumulate": extreme_along(np.minimum),
    }
)


FUNCTIONS.update(
    {
        "sum": reduction("add"),
        "prod": reduction("multiply"),
        "max": extreme_of("maximum"),
        "amax": extreme_of("maximum"),
        "min": extreme_of("minimum"),
        "amin": extreme_of("minimum"),
        "mean": mean,
        "var": var,
        "std": lambda x, *a, **k: np.sqrt(var(x, *a, **k)),
        "cumsum": cumulated,
        "cumprod": multiplied_along,
        "norm": norm,
        "vector_norm": vector_norm,
        "einsum": einsum,
        "dot": dot,
        "tensordot": tensordot,
        "vdot": lambda a, b: dot(np.conj(np.ravel(a)), np.ravel(b)),
        "inner": lambda a, b: np.einsum("i,i->", a, b),
        **{f"fft.{n}": transform(n) for n in ("fft", "ifft", "rfft", "irfft")},
    }
)
