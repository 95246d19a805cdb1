"""What is known of an implementation, and which numbers its arithmetic holds."""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any

import numpy as np
import numpy.typing as npt

from tlspec.bounds import F64, LAMBDA, factor
from tlspec.formats import Format

#: errors in ulp of the functions of an implementation, "" for all others; 0.5 is correctly rounded. An entry may be a function of
#: the argument's absolute value, and a pair with an absolute error
Ulps = Mapping[str, Any]
IEEE: Ulps = MappingProxyType({"divide": 0.5, "sqrt": 0.5, "": 1.0})


#: numbers of an array that are looked at first
SAMPLE = 256
#: the bits of a float64's fraction and exponent
FRACTION, EXPONENT = (1 << 52) - 1, 0x7FF << 52


def any_order(n: int) -> int:
    """The height of the worst order of a sum: one term after the other.

    Parameters
    ----------
    n : int
        How many terms.

    Returns
    -------
    int
        The height.
    """
    return max(n - 1, 0)


@dataclass(frozen=True)
class Model:
    """The arithmetic whose errors are bounded.

    Parameters
    ----------
    precision : int, default 24
        Significant bits of intermediate results.
    sum_precision : int, default 24
        Significant bits of sums.
    to_nearest : bool, default True
        Sums are rounded to the nearest number.
    height : callable, optional
        Height of the tree that sums n terms; any order unless given.
    ulps : mapping, optional
        Largest errors of division, square root and elementary functions; IEEE 754's unless given.
    tiny : float, default 2**-150
        Absolute error of a rounding near zero: half the smallest subnormal.
    flushed : float, default 0.0
        Numbers below this may be taken for zero, as arguments and as results.
    overflow : float, optional
        The least number that intermediate results cannot hold; float32's unless given.
    operands : Format, optional
        To which the operands of matrix products are rounded first.
    exact : bool, default True
        Sums of numbers like integers are exact, because every order of plain additions gives them.
    alike : float, default 0.0
        Probability that two terms of a sum are equal numbers, whose roundings are alike.
    infinite : str, default ''
        Numbers from `overflow` on are unknown; with "may" they are infinities where they may be so large, with "must" where their
        values are.
    saturate : bool, default False
        Results beyond the largest number are that number, infinities too.
    chunk : int, default 0
        Sums of so many terms at a time, added in numbers of `precision` bits; 0: a sum is one.
    """

    #: bits of the numbers in which intermediate results are kept, the implicit one included
    precision: int = 24
    #: bits in which sums are accumulated
    sum_precision: int = 24
    #: whether the accumulator rounds to nearest; one that truncates is held to the worst case, as its errors have one sign
    to_nearest: bool = True
    #: height of the tree that sums n terms
    height: Callable[[int], int] = any_order
    #: largest errors of division, square root and elementary functions
    ulps: Ulps = field(default_factory=lambda: IEEE, hash=False)
    #: absolute error of a rounding near zero: half the smallest subnormal
    tiny: float = 2.0**-150
    #: numbers below this may be taken for zero, as arguments and as results
    flushed: float = 0.0
    #: the least number that intermediate results cannot hold
    overflow: float = 2.0**128 - 2.0**103
    #: which numbers from there on are infinities: those that "may" be so large, those that "must", or none, as they are unknown
    infinite: str = ""
    #: the format to which the operands of matrix products are rounded first; None leaves them as they are
    operands: Format | None = None
    #: whether sums of numbers like integers are exact, because every order of plain additions gives them
    exact: bool = True
    #: the probability that two terms of a sum are equal numbers, whose roundings are alike
    alike: float = 0.0
    #: whether results beyond the largest number are that number, infinities too
    saturate: bool = False
    #: sums of so many terms at a time, added in numbers of `precision` bits; 0: a sum is one
    chunk: int = 0

    @property
    def unit(self) -> float:
        """The unit roundoff of intermediate results."""
        return 2.0**-self.precision

    def sum_error(self, terms: npt.ArrayLike) -> Any:
        """The error of a sum, relative to the sum of its terms' absolute values.

        Parameters
        ----------
        terms : int or array of int
            How many terms.

        Returns
        -------
        float or numpy.ndarray
            The relative error, for each number of terms.
        """
        n = np.asarray(terms)
        part = np.minimum(n, self.chunk) if self.chunk else n
        h, u = self._heights(part), 2.0**-self.sum_precision
        error = self._roundings(h) * u if self.to_nearest else 2 * h * u
        if not self.chunk:
            return error
        parts = self._heights(-(-n // np.maximum(part, 1)))
        return error + np.where(part < n, self._roundings(parts) * self.unit, 0.0)

    def _heights(self, terms: Any) -> Any:
        if not terms.ndim:
            return float(self.height(int(terms)))
        counts, places = np.unique(terms, return_inverse=True)
        return np.array([self.height(int(n)) for n in counts], np.float64)[places].reshape(terms.shape)

    def _roundings(self, height: Any) -> Any:
        """By how many u a sum over a tree of that height may be off. Of n roundings in groups of equal ones, n·p_i in each, the
        variance is n²·Σp_i², where it is n if all are independent."""
        return np.minimum(height, np.maximum(factor(height), LAMBDA * height * math.sqrt(self.alike)))

    def ulp(self, name: str, at: F64) -> tuple[Any, float]:
        """The largest error of a function.

        Parameters
        ----------
        name : str
            NumPy's name of the function.
        at : numpy.ndarray
            Absolute values of its arguments.

        Returns
        -------
        error : array_like
            In ulp.
        absolute : float
            An absolute error beside it.
        """
        found = self.ulps.get(name, self.ulps.get("", 1.0))
        error, absolute = found if isinstance(found, tuple) else (found, 0.0)
        return (error(at) if callable(error) else error), absolute


def representable(value: Any, precision: int) -> np.ndarray:
    """Whether numbers have at most that many significant bits (the exponent's range is not looked at); of a complex one whether
    both parts have."""
    value = np.asarray(value)
    if value.dtype.kind == "c":
        return representable(value.real, precision) & representable(value.imag, precision)
    if value.dtype != np.float64:
        return _representable(value, precision)
    # the bits of a float64's fraction that a number of so many bits has not; those of a subnormal one say less
    patterns = value.view(np.int64)
    bits = np.asarray(patterns & ((1 << max(53 - precision, 0)) - 1))
    kept = np.asarray(bits == 0)
    if not kept.all():
        np.bitwise_and(patterns, EXPONENT, out=bits)
        other = np.asarray(((bits == 0) | (bits == EXPONENT)) & ~kept)
        if other.any():
            kept[other] = _representable(value[other], precision)
    return kept


def _representable(value: Any, precision: int) -> np.ndarray:
    scaled = np.ldexp(np.frexp(value)[0], precision)
    return np.asarray(scaled == np.rint(scaled)) | ~np.isfinite(value)


def power_of_two(x: Any) -> np.ndarray:
    """Whether numbers are powers of two, of either sign."""
    x = np.asarray(x)
    if x.dtype != np.float64:
        return np.asarray(np.frexp(np.abs(x))[0] == 0.5)
    patterns = x.view(np.int64)
    bits = np.asarray(patterns & FRACTION)
    found = np.asarray(bits == 0)
    np.bitwise_and(patterns, EXPONENT, out=bits)
    found &= bits != EXPONENT
    other = np.asarray(bits == 0)  # zeros and subnormal numbers
    if other.any():
        found[other] = np.frexp(np.abs(x[other]))[0] == 0.5
    return found


def granularity(value: F64, precision: int, exact: bool = True) -> float:
    """The largest power of two that divides every finite number of an array, infinite where all are 0; 0 where numbers of that
    many bits do not hold all its multiples up to the largest. In a large array a few numbers usually decide."""
    if not exact:
        return 0.0 if np.any(value) else np.inf
    if value.size > 2 * SAMPLE and not granularity(value.reshape(-1)[:: value.size // SAMPLE], precision):
        return 0.0
    x = value[np.isfinite(value) & (value != 0)]
    if not x.size:
        return np.inf
    fraction, exponent = np.frexp(x)
    bits = np.abs(np.ldexp(fraction, 53)).astype(np.int64)
    low = np.frexp((bits & -bits).astype(np.float64))[1] - 1
    step = float(np.ldexp(1.0, int((exponent - 53 + low).min())))
    return step if np.abs(x).max() <= 2.0**precision * step else 0.0
