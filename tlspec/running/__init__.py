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
====================  ========================================================================================================

The error is infinite where nothing can be said: a divisor that may be zero, an intermediate beyond the largest finite number.
A function that is not known here raises TypeError, which names it.
"""

from typing import Any

import numpy as np

from tlspec.bounds import F64, call_reference
from tlspec.running import arithmetic, elementary, structure, sums
from tlspec.running.array import ErrorArray, error_of, value_of
from tlspec.running.elementary import monotone
from tlspec.running.model import IEEE, Model, any_order

__all__ = [
    "IEEE",
    "ErrorArray",
    "Model",
    "any_order",
    "arithmetic",
    "elementary",
    "error_of",
    "monotone",
    "structure",
    "sums",
    "track_case",
    "value_of",
]


def track_case(case: Any, model: Model) -> list[ErrorArray]:
    """A case's results (:mod:`tlspec.cases`) with their errors. Raises TypeError for a reference that is not known here."""
    with np.errstate(all="ignore"):
        given = {
            n: ErrorArray(a, flushed_inputs(model, a), model) if a is not None and a.dtype.kind == "f" else a
            for n, a in case.wide.items()
        }
        outs = call_reference(case.reference, given, case.values)
    shapes = [case.shape(a) for a in case.signature.outputs]
    outs = outs if isinstance(outs, tuple) else (outs,)
    return [
        o if isinstance(o, ErrorArray) else ErrorArray(np.broadcast_to(o, s), 0.0, model)
        for o, s in zip(outs, shapes, strict=True)
    ]


def flushed_inputs(model: Model, x: F64) -> Any:
    """The errors of inputs: those of subnormal numbers that are taken for zero."""
    return np.where(np.abs(x) < model.flushed, np.abs(x), 0.0) if model.flushed else 0.0
