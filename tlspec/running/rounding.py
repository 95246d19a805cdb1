"""Results after their rounding, and sums of sums."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from tlspec.running.array import ErrorArray, Sum, beyond, overflowed
from tlspec.running.model import Model, representable


def result(m: Model, value: Any, error: Any, brought: Sequence[Any] = ()) -> ErrorArray:
    """A result whose error is infinite where it came out as NaN beside a finite value or the operands' errors, `brought`, are
    infinite, and 0 beside NaN and infinities that are certain."""
    missing = np.isnan(error)
    if np.any(missing):
        unknown = np.isfinite(value)
        for d in brought:
            unknown = unknown | np.isinf(d)
        error = np.where(missing, np.where(unknown, np.inf, 0.0), error)
    return ErrorArray(value, error, m)


def rounded(
    m: Model,
    value: Any,
    error: Any,
    ulp: float = 0.5,
    absolute: bool = True,
    exact: Any = False,
    brought: Sequence[Any] = (),
) -> ErrorArray:
    """A result after its last rounding; `exact` says where there is none."""
    finite = np.isfinite(value)
    if np.ndim(ulp) == 0 and ulp == 0.5 and not np.all(exact) and not np.all(error):
        exact = exact | ((np.asarray(error) == 0) & representable(value, m.precision) & ~lost(value, m))
    rounding = np.asarray(m.unit * (np.abs(value) + error))
    if absolute:
        rounding += m.tiny
    if np.ndim(ulp) or ulp != 0.5:
        rounding = np.asarray(2 * ulp * rounding)
    np.copyto(rounding, 0.0, where=exact if finite.all() else exact | ~finite)
    rounding += error
    error = rounding
    if m.flushed:
        size = np.abs(value)
        error = np.where((size - error < m.flushed) & (size + error > 0), np.maximum(error, size), error)
    return result(m, value, error, brought)


def lost(value: Any, m: Model) -> Any:
    """Where a value that is not zero has bits below the smallest subnormal."""
    size = np.abs(value)
    return (size > 0) & (size < m.tiny * 2.0 ** (m.precision + 1))


def is_sum(x: Any) -> bool:
    return isinstance(x, ErrorArray) and x.sum_of is not None and not np.iscomplexobj(x.value)


def stored(m: Model, value: Any, error: Any) -> Any:
    """The error of keeping a sum as an intermediate result, which has fewer bits than the accumulator."""
    if m.sum_precision <= m.precision:
        return 0.0
    kept = (error == 0) & representable(value, m.precision) & ~lost(value, m)
    return np.where(kept | ~np.isfinite(value), 0.0, m.unit * (np.abs(value) + error) + m.tiny)


def total(m: Model, value: Any, parts: Sum) -> ErrorArray:
    parts = parts.moved(lambda a: np.broadcast_to(a, np.shape(value)))
    made = result(m, *overflowed(m, value, parts.error(m), beyond(m, parts.size)), (parts.brought,))
    rounding = stored(m, made.value, made.error)
    if np.any(rounding):
        parts = replace(parts, brought=parts.brought + rounding, step=0.0)
        made.error = made.error + rounding
    made.sum_of = parts
    return made
