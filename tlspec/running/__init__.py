"""Running error analysis: arrays that carry, beside each value, a bound on the error of a kernel that computes it.

An :class:`ErrorArray` has a float64 ``value`` and an ``error``: the result that an implementation within the :class:`Model` has
for the same expression differs from ``value`` by at most ``error``. NumPy's functions and operators on such arrays propagate
both, so a reference written in NumPy, evaluated on them, gives a tolerance for each element of its result without a derivation by
hand (Wilkinson, Error analysis revisited, IMA Bulletin 22, 1986; Higham, Accuracy and Stability, 2nd ed., §3.3).

With u the unit roundoff in which the kernel computes, r a result and e the error that its operands bring:

====================  ========================================================================================================
operation             error
====================  ========================================================================================================
a + b, a · b, a / b   e + k·u·(\\|r\\| + e), k = 1 where IEEE 754 rounds once, 2·ulp where the model's table says otherwise;
                      0 where the operands are exact and r is representable
sum of n terms        Σe + f(h)·u·Σ(\\|x\\| + e), f(h) = min(h, λ√h), or 2h where the accumulator truncates; h is the model's
                      height of n terms, n - 1 if any order is allowed; 0 where exact terms are multiples of a power of two
                      that is not too small. Sums that are added to each other are one sum.
product of matrices   as a sum of n products, each rounded
elementary function   the change of f over [x - e, x + e], and the ulp of the model's table
maximum, selection    what may be selected; where a comparison may turn out either way, the distance of the two outcomes
constants             u·\\|c\\| where c is not representable
x.astype(format)      that of the rounded ends of [x - e, x + e]: 0 but near a tie, as every implementation rounds there too
====================  ========================================================================================================

The error is infinite where nothing can be said: a divisor that may be zero, an intermediate beyond the largest finite number.
With a model in which such numbers are ``infinite``, the value is what the infinity makes of it.
A function that is not known here raises TypeError, which names it.
"""

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

import numpy as np

from tlspec.bounds import call_reference
from tlspec.formats import Format
from tlspec.running import arithmetic, elementary, special, structure, sums
from tlspec.running.array import ErrorArray, error_of, value_of
from tlspec.running.elementary import monotone
from tlspec.running.model import IEEE, Model, any_order

__all__ = [
    "IEEE",
    "ErrorArray",
    "Model",
    "any_order",
    "arithmetic",
    "cast",
    "elementary",
    "error_of",
    "inexact",
    "monotone",
    "special",
    "structure",
    "sums",
    "track_call",
    "value_of",
]


def cast(x: Any, format: Format) -> Any:
    """Numbers rounded to a format, as ``x.astype`` does where NumPy knows it.

    Parameters
    ----------
    x : ndarray or ErrorArray
        Of any shape.
    format : Format
        One of :data:`tlspec.formats.FORMATS`.

    Returns
    -------
    ndarray or ErrorArray
        Of the same kind and shape: float64 numbers of the format.

    Examples
    --------
    >>> import numpy as np
    >>> from tlspec.formats import FORMATS
    >>> float(cast(np.array(257.0), FORMATS["bfloat16"]))
    256.0
    """
    return x.cast(format) if isinstance(x, ErrorArray) else format.round(x)


def inexact(x: Any) -> Any:
    """The array under a model whose sums of whole numbers may have roundings: running means, as of Welford, do.

    Parameters
    ----------
    x : ndarray or ErrorArray
        Of any shape.

    Returns
    -------
    ndarray or ErrorArray
        Of the same kind; a plain one is `x` itself.

    Examples
    --------
    >>> import numpy as np
    >>> from tlspec.running import ErrorArray, inexact
    >>> whole = ErrorArray(np.array([1.0, 2.0, 4.0]))
    >>> bool(whole.sum().error == 0), bool(inexact(whole).sum().error > 0)
    (True, True)
    """
    return ErrorArray(x.value, x.error, replace(x.model, exact=False)) if isinstance(x, ErrorArray) else x


def track_call(reference: Callable[..., Any], arrays: Mapping[str, Any], values: Mapping[str, Any]) -> tuple[Any, ...]:
    """A reference's results on arrays that carry errors.

    Parameters
    ----------
    reference : callable
        A function in NumPy.
    arrays : mapping of str to ErrorArray
        Its arrays by name.
    values : mapping
        Its other arguments by name.

    Returns
    -------
    tuple of ErrorArray
        What does not depend on the arrays is plain.

    Raises
    ------
    TypeError
        For a function that running error analysis does not know.

    Examples
    --------
    >>> import numpy as np
    >>> from tlspec.running import ErrorArray, track_call
    >>> (total,) = track_call(lambda x, n: x.sum() / n, {"x": ErrorArray(np.array([0.1, 0.2, 0.3]))}, {"n": 3})
    >>> bool(total.error < 1e-7)
    True
    """
    with np.errstate(all="ignore"):
        outs = call_reference(reference, arrays, values)
    return tuple(outs) if isinstance(outs, (tuple, list)) else (outs,)
