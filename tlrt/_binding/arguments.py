"""Checks of scalar arguments: what is an integer, a length, a number, a Boolean.

Each check returns the argument in its plain form, or raises with the operation, the argument, what it got and what was
expected. Arrays are converted by :mod:`tlrt._binding.convert`.
"""

import operator
from typing import Any

import numpy as np

from tlrt._binding.convert import is_list, type_name
from tlrt.errors import ArgumentError, ArgumentTypeError, ShapeError, SizeOverflowError, refusal


def integer(op: str, name: str, value: Any) -> int:
    """An integer."""
    try:
        return operator.index(value)
    except TypeError:
        raise refusal(ArgumentTypeError, op, name, type_name(value), "an integer") from None


def integers(op: str, name: str, values: Any) -> tuple[int, ...]:
    """A sequence of integers."""
    try:
        if is_list(values):
            return tuple([operator.index(v) for v in values])
    except TypeError:
        pass
    got = values if isinstance(values, (tuple, list)) else type_name(values)
    raise refusal(ArgumentTypeError, op, name, got, "integers")


def length(op: str, name: str, n: Any) -> int:
    """A number of elements: an integer of 32 bits."""
    value = integer(op, name, n)
    if not 0 <= value < 2**32:
        raise refusal(ShapeError if value < 0 else SizeOverflowError, op, name, value, f"0 <= {name} < 2**32")
    return value


def uint64(op: str, name: str, value: Any) -> int:
    """An integer of 64 bits."""
    got = integer(op, name, value)
    if not 0 <= got < 2**64:
        raise refusal(ArgumentError, op, name, got, f"0 <= {name} < 2**64")
    return got


def number(op: str, name: str, value: Any) -> float:
    """A real number: what ``float`` takes, text excepted."""
    try:
        if isinstance(value, (str, bytes, bytearray)):
            raise TypeError
        return float(value)
    except OverflowError:
        raise refusal(ArgumentTypeError, op, name, "an integer beyond float64", "a number") from None
    except (TypeError, ValueError):
        raise refusal(ArgumentTypeError, op, name, type_name(value), "a number") from None


def boolean(op: str, name: str, value: Any) -> bool:
    """True or False."""
    if isinstance(value, (bool, np.bool_)):
        return bool(value)
    raise refusal(ArgumentTypeError, op, name, repr(value), "True or False")


def is_number(x: Any) -> bool:
    """Whether something is a number that an operation takes as a scalar.

    Parameters
    ----------
    x : object
        Anything.

    Returns
    -------
    bool
        True for Python's and NumPy's real numbers.
    """
    return isinstance(x, (int, float, np.integer, np.floating, np.bool_)) or (
        isinstance(x, np.ndarray) and x.ndim == 0 and x.dtype.kind in "biuf"
    )
