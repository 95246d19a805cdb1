"""Float32 error bounds, derived from each operation's own arithmetic.

The oracle is the float64 reference on the float32 inputs. A bound turns a case into one absolute tolerance per output
element, and may fix the bits of some elements; the comparison in :mod:`tlspec.compare` adds nothing to it.

===========  =====================================================================================================
kind         tolerance of an element with reference value r
===========  =====================================================================================================
``exact``    0: the result is the float32 nearest to r (operations IEEE 754 rounds correctly, copies, selections)
``moved``    the bits of an input element or a parameter, or +0: nothing is computed, so NaN payloads and signs are compared too
``ordered``  0: the row fixes the order of its additions, so the reference in float32 arithmetic is the result; an element
             that nothing is added to keeps its bits
``ulp(k)``   (k + ½) spacings of float32 at r: at most k float32 away from the correctly rounded result
``tree``     min(h, λ√h)·u·M + ½ ulp(r): h the height of the summation tree, counting the roundings on the longest
             path from an input to the result; M the same expression on absolute values. 0 where h = 0
``chain``    min(h, λ√h)·2⁻⁵³·M + ½ ulp(r): a ``tree`` in float64, rounded once (:func:`chained`)
``custom``   a function of the row, for composites, with its derivation in its docstring
===========  =====================================================================================================

u = 2⁻²⁴ is the unit roundoff. h·u·M is the worst case to first order (Higham, Accuracy and Stability of Numerical
Algorithms, 2nd ed., §4.2); λ√h·u·M holds with overwhelming probability for mean-zero independent roundings (Higham and
Mary, SIAM J. Sci. Comput. 41, 2019), λ = 7.5 being the constant that gave no false alarm. The smaller of the two is
taken, so short trees are held to their worst case. Gradual underflow adds half the smallest subnormal per rounding.

Not covered: intermediate overflow in a tree. Where M plus its roundings reaches the overflow threshold 2^128 - 2^103, a
partial sum or product may be infinite, and what comes of it, an infinity, a NaN or a finite number, is the order's choice.
There the tolerance is infinite and any result passes. Infinite inputs do not count towards M in this: an infinity or NaN
that comes of them is demanded.
"""

import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache, partial
from typing import Any

import numpy as np
import numpy.typing as npt

F64 = npt.NDArray[np.float64]
Reference = Callable[..., Any]
Values = Mapping[str, Any]
#: bit patterns of float32, FREE where the tolerance decides
Bits = npt.NDArray[np.int64]

#: unit roundoff of float32
U = 2.0**-24
#: that of float64
U64 = 2.0**-53
#: the smallest positive float32
TINY = 2.0**-149
#: the constant of the probabilistic bound
LAMBDA = 7.5
#: the least real that rounds to infinity in float32
OVERFLOW = 2.0**128 - 2.0**103
#: in an array of bit patterns: an element whose bits are not fixed
FREE = -1
#: the exponent's bits of a float64
_EXPONENT = 0x7FF << 52
#: what a tolerance other than "not covered" is at most
_MOST = float(np.finfo(np.float64).max)
#: the summation tree shared by both back ends, native/src/formula/sum_tree.h
LANES, LEAF, COLUMN_CHUNK, COLUMN_CHAINS = 1024, 16384, 128, 4


def spacing(r: npt.ArrayLike) -> F64:
    """Distance between neighbouring float32 at \\|r\\| (in the binade of r): 2^(⌊log2|r|⌋ - 23), at least 2^-149."""
    bits = np.array(r, np.float64).view(np.int64)
    np.bitwise_and(bits, _EXPONENT, out=bits)  # those of 2^⌊log2|r|⌋
    np.multiply(bits, bits != _EXPONENT, out=bits)  # infinities and NaN have the least spacing
    np.clip(bits, (1023 - 126) << 52, (1023 + 127) << 52, out=bits)
    np.subtract(bits, 23 << 52, out=bits)
    return bits.view(np.float64)[()]


@dataclass(frozen=True)
class Bound:
    """An error bound. :meth:`tolerance` gives one float64 array per output; ``inputs`` and ``params`` are those of the
    reference call, ``outputs`` its results. An infinite tolerance says that any result passes. :meth:`bits` gives the bit
    patterns that elements must have."""

    kind: str
    text: str
    function: Callable[..., Sequence[npt.ArrayLike]]
    #: what :meth:`bits` calls; None where no bits are fixed
    fixed: Callable[..., Sequence[Bits]] | None = None
    #: bounds on every intermediate per output, of CUDA alone: what may overflow there is not covered there
    cuda_peak: Callable[..., Any] | None = None
    #: of a :func:`tree`
    height: Callable[..., Any] | None = None
    #: the bound in reproducible contexts, where it is another
    chain: "Bound | None" = None

    @property
    def in_float32(self) -> bool:
        """Whether the result is what the reference computes in float32, rounding by rounding."""
        return self.kind == "ordered"

    @property
    def summed(self) -> bool:
        """Whether the tolerance is that of a sum, so that inputs near the overflow threshold leave nothing to check."""
        return self.kind not in ("exact", "moved", "ordered", "ulp")

    def tolerance(self, reference: Reference, outputs: Sequence[F64], inputs: Values, params: Values) -> list[F64]:
        with np.errstate(all="ignore"):
            tols = self.function(reference, outputs, inputs, params)
        return [
            np.broadcast_to(np.asarray(t, dtype=np.float64), np.shape(o)) for t, o in zip(tols, outputs, strict=True)
        ]

    def bits(
        self, reference: Reference, outputs: Sequence[npt.NDArray[Any]], inputs: Values, params: Values
    ) -> list[Bits] | None:
        """The bit patterns each output must have, :data:`FREE` where the tolerance decides; None where it decides everywhere.
        `inputs` are the call's own arrays, float32 and not widened; `outputs` are float32 too where the bound is
        :attr:`in_float32`."""
        if self.fixed is None:
            return None
        with np.errstate(all="ignore"):
            patterns = self.fixed(reference, outputs, inputs, params)
        return [np.broadcast_to(np.asarray(b, np.int64), np.shape(o)) for b, o in zip(patterns, outputs, strict=True)]


def exact() -> Bound:
    """The correctly rounded result, bit for bit (any NaN equals any NaN)."""
    return Bound("exact", "exact", _nothing)


def moved() -> Bound:
    """Every element of the result is an element of an input, bit for bit and NaN payloads included, a parameter rounded to
    float32, or +0. The reference must move values and compute nothing: it is run once more on the bit patterns themselves, as
    numbers, and gives the patterns of the result (that of +0 is 0)."""

    def fixed(ref: Reference, outs: Sequence[Any], ins: Values, ps: Values) -> Sequence[Bits]:
        patterns = {k: v.view(np.uint32).astype(np.float64) if _is_float(v) else v for k, v in ins.items()}
        numbers = {k: float(np.float32(v).view(np.uint32)) if isinstance(v, float) else v for k, v in ps.items()}
        return [np.asarray(o).astype(np.int64) for o in _sequence(call_reference(ref, patterns, numbers))]

    return Bound("moved", "exact", _nothing, fixed)


def ordered(height: Callable[..., Any]) -> Bound:
    """A sum whose order the row fixes. The reference must add in that order and keep the type of its arrays: in float32 it
    gives the result (:attr:`Bound.in_float32`), in float64 the real sum that laws and derivatives are about. `height` is
    called as for :func:`tree` and returns the number of additions behind each element; one without any keeps its bits.
    :meth:`Bound.tolerance` is :func:`tree`'s, the distance from the real sum that a law has to allow."""

    def fixed(ref: Reference, outs: Sequence[Any], ins: Values, ps: Values) -> Sequence[Bits]:
        heights = _each(call_named(height, {**ins, **ps}), outs)
        return [
            np.where(np.asarray(h) == 0, np.ascontiguousarray(o, np.float32).view(np.uint32).astype(np.int64), FREE)
            for o, h in zip(outs, heights, strict=True)
        ]

    return Bound("ordered", "exact, in order", tree(height).function, fixed)


def ulp(
    k: float | Sequence[float], floor: Callable[..., Any] | None = None, text: str = "", *,
    free: Callable[..., Any] | None = None,
) -> Bound:  # fmt: skip
    """At most k float32 values away from the correctly rounded result (k may differ by output). `floor` adds an absolute
    error per output, called with the inputs and parameters it names: what an intermediate that underflows can cost. `free`,
    called likewise, says where any result passes."""
    ks = list(k) if isinstance(k, Sequence) else None

    def tolerance(ref: Reference, outs: Sequence[F64], ins: Values, ps: Values) -> list[F64]:
        floors = _each(call_named(floor, {**ins, **ps}) if floor is not None else 0.0, outs)
        each = ks or [float(k)] * len(outs)  # type: ignore[arg-type]
        frees = _each(call_named(free, {**ins, **ps}) if free is not None else False, outs)
        return [
            np.where(any_result, np.inf, _capped((ki + 0.5) * spacing(o) * (ki > 0) + fi))
            for ki, o, fi, any_result in zip(each, outs, floors, frees, strict=True)
        ]

    label = text or (f"{k:g} ulp" if ks is None else " / ".join(f"{v:g} ulp" if v else "exact" for v in ks))
    return Bound("ulp", label + ("" if floor is None else " + underflow"), tolerance)


def tree(
    height: Callable[..., Any], magnitude: Callable[..., Any] | None = None, text: str = "", *,
    peak: Callable[..., Any] | None = None, copies: bool = False,
) -> Bound:  # fmt: skip
    """A sum. `height` gets the reference's inputs and parameters by keyword (those it names; arrays in their declared
    shapes) and returns h, or a sequence with one h per output. `magnitude` is called like the reference and returns M
    per output; by default M is the reference on absolute inputs. `peak` is the same for the largest intermediate, where that
    is not M (the sum behind a mean). With `copies` an element of h = 0 has the bits that :func:`moved` would give it."""

    def magnitudes(ref: Reference, ins: Values, ps: Values, outs: Sequence[F64]) -> list[F64]:
        absolute = {k: np.abs(v) if _is_float(v) else v for k, v in ins.items()}
        m = call_named(magnitude, {**ins, **ps}) if magnitude is not None else call_reference(ref, absolute, ps)
        return [np.abs(np.asarray(mi, np.float64)) for mi in _each(m, outs)]

    def peaks(ref: Reference, ins: Values, ps: Values, outs: Sequence[F64]) -> list[F64]:
        finite = {k: np.where(np.isfinite(v), v, 0.0) if _is_float(v) else v for k, v in ins.items()}
        if peak is None:
            return magnitudes(ref, finite, ps, outs)
        return [np.abs(np.asarray(p, np.float64)) for p in _each(call_named(peak, {**finite, **ps}), outs)]

    def tolerance(ref: Reference, outs: Sequence[F64], ins: Values, ps: Values) -> list[F64]:
        heights = [np.asarray(h, np.float64) for h in _each(call_named(height, {**ins, **ps}), outs)]
        ms = magnitudes(ref, ins, ps, outs)
        plain = peak is None and all(bool(np.isfinite(v).all()) for v in ins.values() if _is_float(v))
        result = []
        for o, h, m, p in zip(outs, heights, ms, ms if plain else peaks(ref, ins, ps, outs), strict=True):
            t = _capped(factor(h) * (U * m + TINY / 2) + spacing(o) / 2)
            covered = p * (1 + h * U) + h * TINY / 2 < OVERFLOW
            result.append(np.where(h == 0, 0.0, np.where(covered, t, np.inf)))
        return result

    def fixed(ref: Reference, outs: Sequence[Any], ins: Values, ps: Values) -> Sequence[Bits]:
        heights = _each(call_named(height, {**ins, **ps}), outs)
        return [
            np.where(np.asarray(h) == 0, b, FREE)
            for h, b in zip(heights, moved().bits(ref, outs, ins, ps) or [], strict=True)
        ]

    return Bound("tree", text or "min(h, λ√h)·u·M", tolerance, fixed if copies else None, height=height)


def chained(bound: Bound, trees: Sequence[int] = ()) -> Bound:
    """The bound of a row in reproducible contexts, whose sums of products are in float64 and rounded once
    (native/src/formula/chain.h), by that in fast ones: of the same heights, outputs `trees` apart, which stay float32 sums. The
    product of two float32 is exact in float64, and no sum of them overflows there. A bound that is no :func:`tree` stays, or says
    its own (:func:`custom`)."""
    height = bound.height
    if height is None:
        return bound.chain or bound

    def tolerance(ref: Reference, outs: Sequence[F64], ins: Values, ps: Values) -> list[Any]:
        absolute = {k: np.abs(v) if _is_float(v) else v for k, v in ins.items()}
        heights = _each(call_named(height, {**ins, **ps}), outs)
        magnitudes = _each(call_reference(ref, absolute, ps), outs)
        fast = bound.function(ref, outs, ins, ps) if trees else outs
        return [
            fast[i] if i in trees else _capped(factor(h) * U64 * np.asarray(m) + spacing(o) / 2)
            for i, (o, h, m) in enumerate(zip(outs, heights, magnitudes, strict=True))
        ]

    return Bound("chain", "½ ulp + min(h, λ√h)·2⁻⁵³·M", tolerance)


def custom(
    function: Callable[..., Any], text: str, *, peak: Callable[..., Any] | None = None,
    cuda_peak: Callable[..., Any] | None = None, chain: Bound | None = None,
) -> Bound:  # fmt: skip
    """A bound of the row's own: ``function(**inputs, **params)`` (those it names) returns the tolerance per output. `peak`,
    called alike, gives per output a bound on every intermediate: where it is finite and reaches the overflow threshold nothing is
    covered, by `cuda_peak` on CUDA. `chain`: the bound in reproducible contexts."""

    def tolerance(ref: Reference, outs: Sequence[F64], ins: Values, ps: Values) -> list[Any]:
        tolerances = [_capped(t) for t in _sequence(call_named(function, {**ins, **ps}))]
        return tolerances if peak is None else uncovered(peak, tolerances, ins, ps)

    return Bound("custom", text, tolerance, cuda_peak=cuda_peak, chain=chain)


def uncovered(peak: Callable[..., Any], tolerances: Sequence[F64], inputs: Values, params: Values) -> list[F64]:
    """The tolerances, infinite where a bound on the intermediates is finite and reaches the overflow threshold."""
    with np.errstate(all="ignore"):
        peaks = [np.asarray(p, np.float64) for p in _sequence(call_named(peak, {**inputs, **params}))]
    return [
        np.where(np.isfinite(p) & (1.001 * p >= OVERFLOW), np.inf, t) for t, p in zip(tolerances, peaks, strict=True)
    ]


def factor(height: npt.ArrayLike) -> Any:
    """min(h, λ√h): by how many u a sum over a tree of height h may be off, relative to the sum of magnitudes."""
    return np.minimum(height, LAMBDA * np.sqrt(height))


def tree_height(n: int) -> int:
    """Height of the tree that sums n contiguous elements: lanes of at most LEAF/LANES sequential adds, a binary tree over
    the lanes, then the same over the leaves' sums."""
    height = 0
    while n > 1:
        height += int(np.ceil(np.log2(min(n, LANES)))) + -(-min(n, LEAF) // LANES) - 1
        n = -(-n // LEAF)
    return height


def column_height(rows: int) -> int:
    """Height of the tree that sums `rows` rows down their columns: chunks of COLUMN_CHUNK rows in COLUMN_CHAINS
    interleaved chains, the chains pairwise, then the same over the chunks' sums."""
    height = 0
    while rows > 1:
        chunk = min(rows, COLUMN_CHUNK)
        height += -(-chunk // COLUMN_CHAINS) - 1 + int(np.ceil(np.log2(min(chunk, COLUMN_CHAINS))))
        rows = -(-rows // COLUMN_CHUNK)
    return height


def scatter_height(hits: npt.ArrayLike) -> npt.NDArray[np.int64]:
    """Additions behind elements of so many hits: those of the column tree over the hits, and that of their sum to the element."""
    counts, at = np.unique(hits, return_inverse=True)
    heights = np.array([column_height(int(n)) + (n > 0) for n in counts], np.int64)
    return heights[at].reshape(np.shape(hits))


def axis_height(length: int, inner: int) -> int:
    """Height of the tree that sums `length` elements which lie `inner` apart: the row tree where they are contiguous."""
    return tree_height(length) if inner == 1 else column_height(length)


def _nothing(reference: Reference, outputs: Sequence[F64], inputs: Values, params: Values) -> list[F64]:
    """No tolerance."""
    return [np.zeros(np.shape(o)) for o in outputs]


def _capped(tolerance: npt.ArrayLike) -> F64:
    """A tolerance that overflowed float64 is still one: infinite stands for "not covered"."""
    return np.minimum(np.asarray(tolerance, np.float64), _MOST)


def _is_float(value: Any) -> bool:
    return isinstance(value, np.ndarray) and value.dtype.kind == "f"


def _sequence(value: Any) -> list[Any]:
    return list(value) if isinstance(value, (tuple, list)) else [value]


def _each(value: Any, outputs: Sequence[Any]) -> list[Any]:
    """One value per output."""
    return list(value) if isinstance(value, (tuple, list)) else [value] * len(outputs)


@lru_cache(maxsize=4096)
def _parameters(function: Callable[..., Any]) -> tuple[tuple[str, ...], bool]:
    """The names of a function's parameters, and whether it takes any name besides."""
    parameters = inspect.signature(function).parameters
    return tuple(parameters), any(p.kind is p.VAR_KEYWORD for p in parameters.values())


def _by_name(function: Callable[..., Any], values: Values, given: int = 0) -> Values:
    """Those of `values` that a function names after its first `given` parameters (all of them if it takes ``**``)."""
    names, any_name = _parameters(function)
    return values if any_name else {name: values[name] for name in names[given:] if name in values}


def call_named(function: Callable[..., Any], values: Values) -> Any:
    """Calls `function` with those of `values` that its signature names (all of them if it takes ``**``)."""
    return bind_named(function, values)()


def bind_named(function: Callable[..., Any], values: Values) -> Callable[[], Any]:
    """That call, to be made later and more than once: the choice of values costs nothing any more."""
    return partial(function, **_by_name(function, values))


def call_reference(reference: Reference, inputs: Values, params: Values) -> Any:
    """Calls a float64 reference: inputs in order, then the parameters it names, or all if it takes any, by keyword."""
    return reference(*inputs.values(), **_by_name(reference, params, len(inputs)))
