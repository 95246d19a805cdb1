"""The comparator: a float32 result against the float64 reference and its tolerance. It adds no tolerance of its own.

An element whose bits the bound fixes (:meth:`tlspec.bounds.Bound.bits`) passes with these bits alone, those of a NaN too.
Any other element of reference value r, tolerance t and result y passes when

- t is infinite: the bound does not cover the element (intermediate overflow; :mod:`tlspec.bounds`), or
- r is NaN and y is NaN (any NaN equals any NaN: payload and sign are not specified), or
- y is the float32 nearest to r, where a reference beyond the float32 range rounds to infinity, or
- \\|y - r\\| <= t, both finite, or y is infinite and \\|r\\| + t reaches the overflow threshold 2^128 - 2^103 with y's sign.

An infinite r of finite t is met by the same infinity only. The conversion of r to float32 is the definition of the rounded
result, so a reference whose float64 value is itself rounded must take care of double rounding. With ``signed_zeros`` (rows
that are no sums, and sums in a fixed order) a zero of tolerance 0 must have the sign of the rounded reference, which is what
the reference computes in IEEE arithmetic; elsewhere zeros are equal, because the order of a sum decides the sign of a zero.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np

from tlspec.bounds import F64, FREE
from tlspec.case import Case, Expected
from tlspec.formats import FORMATS, Format

#: elements that are compared at a time: what a core's cache holds
BLOCK = 2**14


@dataclass(frozen=True)
class Comparison:
    """The outcome for one output. `share` is the worst error as a share of its tolerance (0 where both are 0), `ulp` the worst
    error in float32 spacings of the reference; the index, got, expected and tolerance are those of the worst element."""

    ok: bool
    share: float
    ulp: float
    violations: int
    count: int
    index: tuple[int, ...] | None = None
    got: float = 0.0
    expected: float = 0.0
    tolerance: float = 0.0
    note: str = ""

    def explain(self, name: str = "out") -> str:
        """The worst element in one line."""
        if self.index is None:
            return f"{name}: {self.note or 'ok'}"
        where = f"{name}[{', '.join(map(str, self.index))}]"
        head = f"{where}: got {self.got!r}, expected {self.expected!r}, tolerance {self.tolerance:.3g}"
        if np.isfinite(self.share) and self.tolerance > 0:
            head += f" ({self.share:.3g} of it)"
        return head + f"; {self.violations} of {self.count} elements" + (f"; {self.note}" if self.note else "")


def compare(
    got: np.ndarray, ref: np.ndarray, tol: np.ndarray, *, signed_zeros: bool = True, bits: np.ndarray | None = None,
    format: Format | None = None,
) -> Comparison:  # fmt: skip
    """Compares a float32 (or float64: host outputs) result with the reference; see the module's docstring. `bits` are the bit
    patterns float32 elements must have, FREE where any close enough will do. With a `format` the result is float64 numbers of it.
    Where a format has no infinities, a result beyond it is NaN or the largest number."""
    ref, tol = np.asarray(ref, np.float64), np.broadcast_to(np.asarray(tol, np.float64), np.shape(ref))
    if got.shape != ref.shape or got.dtype not in (np.float32, np.float64):
        note = (
            f"shape {got.shape}, expected {ref.shape}" if got.shape != ref.shape else f"{got.dtype}, expected float32"
        )
        return Comparison(False, np.inf, np.inf, max(ref.size, 1), ref.size, note=f"got {note}")
    if ref.size == 0:
        return Comparison(True, 0.0, 0.0, 0, 0)
    fmt = format or FORMATS[got.dtype.name]
    flat = [np.reshape(a, -1) for a in (got, ref, tol)]
    patterns = None if bits is None else np.reshape(bits, -1)
    share = ulps = 0.0
    worst, rank, bad = 0, -1.0, 0
    with np.errstate(all="ignore"):
        for start in range(0, ref.size, BLOCK):
            y, r, t = (a[start : start + BLOCK] for a in flat)
            fixed = None if patterns is None else patterns[start : start + BLOCK]
            found = _near(y, r, t, signed_zeros, fixed, fmt) or _judge(y, r, t, signed_zeros, fixed, fmt)
            if (found.violations and not bad) or found.rank > rank:  # that of a wrong element is 1 or more
                worst, rank = start + found.at, found.rank
            bad, share, ulps = bad + found.violations, max(share, found.share), max(ulps, found.ulp)
    index = tuple(int(i) for i in np.unravel_index(worst, ref.shape))
    note = ""
    if bad and bits is not None and bits[index] != FREE:
        note = f"bits {int(got[index].view(np.uint32)):#010x}, expected {int(bits[index]):#010x}"
    return Comparison(
        ok=bad == 0, share=share, ulp=ulps, violations=bad, count=int(ref.size), index=index,
        got=float(got[index]), expected=float(ref[index]), tolerance=float(tol[index]), note=note,
    )  # fmt: skip


def joined(parts: Sequence[Comparison]) -> Comparison:
    """The outcome of all parts of one output."""
    worst = max(parts, key=lambda c: (not c.ok, c.share))
    return replace(
        worst, ok=all(c.ok for c in parts), share=max(c.share for c in parts), ulp=max(c.ulp for c in parts),
        violations=sum(c.violations for c in parts), count=sum(c.count for c in parts),
    )  # fmt: skip


class _Found(NamedTuple):
    """What a block of elements has: the worst share and error, and where the worst element lies, a wrong one if there is one."""

    share: float
    ulp: float
    violations: int
    at: int
    rank: float


def _near(
    got: np.ndarray, ref: F64, tol: F64, signed_zeros: bool, bits: np.ndarray | None, fmt: Format
) -> _Found | None:
    """The outcome of a block whose elements are all finite and all exact or all within a tolerance, in few passes; else None."""
    if bits is not None and not np.all((bits == FREE) | (bits == got.view(np.uint32))):
        return None
    error = got - ref
    error = np.abs(error, out=error)
    if not error.max() < np.inf:
        return None
    most = tol.max()
    if most == 0:
        nearest = _nearest(got, ref, fmt)
        kind = np.uint64 if got.dtype == np.float64 else np.uint32
        if not np.array_equal(*((nearest.view(kind), got.view(kind)) if signed_zeros else (nearest, got))):
            return None
        at, share = 0, 0.0
    elif tol.min() > 0 and most < np.inf:
        shares = error / tol
        at = int(np.argmax(shares))
        share = float(shares[at])
        if share > 1:
            return None
    else:
        return None
    ulp = float((error / fmt.spacing(ref)).max()) if error.any() else 0.0
    return _Found(share, ulp, 0, at, share)


def _judge(got: np.ndarray, ref: F64, tol: F64, signed_zeros: bool, bits: np.ndarray | None, fmt: Format) -> _Found:
    """The outcome of any block."""
    double = fmt.name == "float64"
    nearest = _nearest(got, ref, fmt)
    y = got.astype(np.float64, copy=False)
    equal = got == nearest
    if signed_zeros:
        equal &= (got != 0) | (tol > 0) | (np.signbit(got) == np.signbit(nearest))
    equal |= np.isnan(nearest) & np.isnan(got)
    if not fmt.infinite:
        beyond = np.abs(ref) + np.where(np.isfinite(tol), tol, 0.0) >= fmt.overflow
        equal |= beyond & (np.isnan(got) | (got == np.copysign(fmt.largest, ref)))
    # the error of an infinite result of a finite reference is the distance to the overflow threshold
    threshold = np.inf if double else fmt.overflow
    error = np.abs(np.where(np.isinf(y) & np.isfinite(ref), np.copysign(threshold, y), y) - ref)
    finite = np.isfinite(ref)
    error = np.where(equal & (~finite | np.isnan(y)), 0.0, error)
    if not double:  # a reference that rounds to infinity is met by infinity exactly
        error = np.where(equal & np.isinf(got), 0.0, error)
    within = finite & (error <= tol) & (tol > 0)
    free = np.isposinf(tol)
    good = equal | within | free
    if bits is not None:
        good &= (bits == FREE) | (np.ascontiguousarray(got).view(np.uint32) == bits)
    share = np.where(tol > 0, error / tol, np.where(good, 0.0, np.inf))
    share = np.where(free, 0.0, share)
    share = np.where(good, np.fmin(share, 1.0), np.where(np.isnan(share), np.inf, np.fmax(share, 1.0)))
    ulps = np.where(finite & np.isfinite(error), error / fmt.spacing(ref), np.where(good, 0.0, np.inf))
    ulps = np.where(free, 0.0, ulps)
    bad = int(ref.size - np.count_nonzero(good))
    rank = share if not bad else np.where(good, -1.0, share)
    at = int(np.argmax(rank))
    return _Found(float(share.max()), float(ulps.max()), bad, at, float(rank[at]))


def _nearest(got: np.ndarray, ref: F64, fmt: Format) -> np.ndarray:
    """The numbers of the format nearest to the reference, in the result's type."""
    return ref.astype(got.dtype) if got.dtype.name == fmt.name else fmt.round(ref)


def compare_outputs(expected: Expected, outs: Sequence[np.ndarray | None]) -> list[Comparison | None]:
    """Compares the results of a call, output by output; None where there is no result."""
    parts = zip(outs, expected.outputs, expected.tolerances, expected.bits, strict=True)
    return [
        None if got is None else compare(got, ref, tol, signed_zeros=expected.signed_zeros, bits=bits)
        for got, ref, tol, bits in parts
    ]


def same_bits(a: np.ndarray, b: np.ndarray) -> Comparison:
    """Bit equality of two results, any NaN being equal to any NaN."""
    kind = np.uint64 if a.dtype == np.float64 else np.uint32
    if a.shape != b.shape:
        return Comparison(False, np.inf, np.inf, max(a.size, 1), a.size, note=f"shapes {a.shape} and {b.shape}")
    left, right = np.ascontiguousarray(a), np.ascontiguousarray(b)
    differ = (left.view(kind) != right.view(kind)) & ~(np.isnan(left) & np.isnan(right))
    bad = int(np.count_nonzero(differ))
    if not bad:
        return Comparison(True, 0.0, 0.0, 0, a.size)
    index = tuple(int(i) for i in np.unravel_index(int(np.argmax(differ)), a.shape))
    return Comparison(False, np.inf, np.inf, bad, a.size, index, float(a[index]), float(b[index]), 0.0, "bits differ")


def reproduction(case: Case, device: str, *options: str) -> str:
    """The command that repeats one case on one device, without the test suite."""
    return " ".join([case.line, "--device", device, *options])
