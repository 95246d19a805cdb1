"""The error of a float32 computation, followed operation by operation: for rows whose formula is a chain of a few roundings."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from tlspec.bounds import F64, OVERFLOW, TINY, Bound, U, call_named


@dataclass(frozen=True)
class Run:
    """A quantity of the float32 computation: its real value, a bound on the error there, and where nothing is claimed because
    an intermediate may have overflowed or a sign is not settled.

    Each operation adds half a unit in the last place of its result and half the smallest subnormal to the errors that its
    operands bring along (Higham, Accuracy and Stability of Numerical Algorithms, 2nd ed., §3.3)."""

    value: Any
    error: Any
    free: Any

    @classmethod
    def of(cls, x: Any, relative: float = 0.0) -> Run:
        """An operand with a relative error: 0 for inputs, u for a scalar that was rounded."""
        return cls(x, relative * np.abs(x), np.zeros(np.shape(x), bool))

    @classmethod
    def rounded(cls, value: Any, error: Any, free: Any) -> Run:
        """The result of one operation, before rounding: its real value and the error of its operands."""
        after = error + U * (np.abs(value) + error) + TINY / 2
        after = np.where(np.isfinite(value) & ~np.isnan(after), after, 0.0)
        return cls(value, after, free | (np.isfinite(value) & (np.abs(value) + after >= OVERFLOW)))

    def product(self, other: Run) -> tuple[Any, Any]:
        """The real product and its error, before rounding."""
        error = np.abs(self.value) * other.error + np.abs(other.value) * self.error + self.error * other.error
        return self.value * other.value, error

    def __mul__(self, other: Run) -> Run:
        return Run.rounded(*self.product(other), self.free | other.free)

    def __neg__(self) -> Run:
        return Run(-self.value, self.error, self.free)

    def __add__(self, other: Run) -> Run:
        return Run.rounded(self.value + other.value, self.error + other.error, self.free | other.free)

    def __sub__(self, other: Run) -> Run:
        return self + -other

    def fma(self, other: Run, addend: Run) -> Run:
        """self·other + addend, rounded once."""
        value, error = self.product(other)
        return Run.rounded(value + addend.value, error + addend.error, self.free | other.free | addend.free)

    def __truediv__(self, other: Run) -> Run:
        value, least = self.value / other.value, np.abs(other.value) - other.error
        free = self.free | other.free | ((least <= 0) & (other.error > 0))
        return Run.rounded(value, (self.error + np.abs(value) * other.error) / np.where(least > 0, least, 1.0), free)

    def sqrt(self, nonnegative: Any) -> Run:
        """The root. Where the operand may have come out on the other side of 0 nothing is claimed, unless it is known
        that it cannot."""
        value = np.sqrt(self.value)
        error = np.minimum(np.sqrt(self.error), self.error / np.where(value > 0, value, 1.0) + 2 * (value == 0))
        return Run.rounded(value, error, self.free | ((np.abs(self.value) <= self.error) & np.logical_not(nonnegative)))

    def function(self, value: Any, slope: Any, ulp: float = 1.0) -> Run:
        """The finite value of a function there, computed to `ulp`, given a bound on its slope within the error."""
        moved = np.where(np.isfinite(self.value), slope * self.error, 0.0)
        return Run(value, moved + (ulp + 0.5) * (2 * U * np.abs(value) + TINY), self.free)

    @property
    def tolerance(self) -> F64:
        return np.where(self.free, np.inf, np.minimum(self.error, np.finfo(np.float64).max))


def followed(function: Callable[..., Any]) -> Bound:
    """The bound of a row whose computation `function`, called with inputs and parameters, follows: a :class:`Run` per output."""

    def tolerance(
        reference: Any, outputs: Sequence[F64], inputs: Mapping[str, Any], params: Mapping[str, Any]
    ) -> list[F64]:
        runs = call_named(function, {**inputs, **params})
        return [r.tolerance for r in (runs if isinstance(runs, tuple) else (runs,))]

    return Bound("custom", "running error", tolerance)


def scalar(x: Any) -> Run:
    """A scalar of the host's, rounded to float32. A bias correction 1 - beta^t, beta at most 1 - 2^-24, is off by at most
    t·beta^t·2^-53 or 2^-29 of itself before, by repeated multiplication here and there."""
    return Run.of(np.asarray(float(x)), U + 2.0**-28)


def rounded_once(x: Any) -> Run:
    """A scalar 1 - beta or 1 - lr·weight_decay: one rounding in float64, then one to float32."""
    return Run.of(np.asarray(float(x)), U + 2.0**-52)
