"""How far rounding may move what a program computes: its runs in float64, with every result moved within its bound.

A device's result of one operation, forward, backward or of an optimiser, lies within the tolerance of the operation's own
bound. What these errors do to a loss after many operations, no bound of an operation says: it follows from the program. So
the program runs on the specification, and every result of every call is moved by its tolerance t times a standard normal ξ, drawn
for each element. To first order the end then moves by Σ J·t·ξ, where a device moves it by Σ J·δ, |δ| <= t, with the same
derivatives J. Where the δ are independent with mean zero, as the factor λ√h of :mod:`tlspec.bounds` assumes too, the variance
of the device's error is therefore at most that of the moved runs. The root mean square over the elements of a tensor and over
the moved runs estimates it, and three times that is the bound of the root mean square of the tensor's error.

A result that is correctly rounded has a tolerance of half a spacing, a copy none. What only underflow allows is left out where it
is not small beside the result, else a zero under a root could become negative. Scalars are rounded to float32 in these runs, as
on every device.
"""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any
from unittest import mock

import numpy as np
import numpy.typing as npt

from tlrt import spec
from tlspec.bounds import Bound, spacing

Array = npt.NDArray[Any]
#: standard deviations that an error may have
DEVIATIONS = 3.0


def _tolerances(bound: Bound, reference: Any, outputs: list[Array], inputs: Any, values: Any) -> list[Array]:
    if bound.kind == "exact":
        return [spacing(o) / 2 for o in outputs]
    return bound.tolerance(reference, outputs, inputs, values)


@contextmanager
def moved_results(seed: int) -> Iterator[None]:
    """Within it, the specification's results are moved; those in float64 on the host and those that no bound covers are not."""
    rng = np.random.default_rng(seed)
    compute = spec._Function._compute

    def moved(self: Any, inputs: Mapping[str, Any], values: Mapping[str, Any], device: Any) -> Any:
        made = compute(self, inputs, values, device)
        outputs = [np.asarray(o) for o in (made if isinstance(made, (tuple, list)) else [made])]
        row = self.entry.op
        bound = row.bound_of("forward" if self.__name__ == row.name else "vjp")
        with np.errstate(all="ignore"):
            tolerances = _tolerances(bound, self.reference, outputs, inputs, values)
        if any(a.kind == "index" for a in row.signature.outputs):  # places, which are right or wrong
            tolerances = [np.zeros(o.shape) for o in outputs]
        return [
            np.where(np.isfinite(t) & ((t > 2.0**-126) | (t < np.abs(o) / 8)), o + t * rng.standard_normal(o.shape), o)
            for o, t in zip(outputs, tolerances, strict=True)
        ]

    with mock.patch.object(spec._Function, "_compute", moved):
        yield


def rms(x: Array) -> float:
    """The root mean square; 0 of nothing."""
    return float(np.sqrt(np.mean(np.square(x, dtype=np.float64)))) if x.size else 0.0


def share(error: float, spread: float) -> float:
    """An error as a share of its bound."""
    if error <= 0:  # not NaN
        return 0.0
    return error / (DEVIATIONS * spread) if spread else np.inf
