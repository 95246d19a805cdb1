"""Float32 error bounds, derived from each operation's own arithmetic.

The oracle is the float64 reference on the float32 inputs. A bound turns a case into one absolute tolerance per output
element; the comparison in :mod:`tlspec.compare` adds nothing to it.

===========  =====================================================================================================
kind         tolerance of an element with reference value r
===========  =====================================================================================================
``exact``    0: the result is the float32 nearest to r (operations IEEE 754 rounds correctly, copies, selections)
``ulp(k)``   (k + ½) spacings of float32 at r: at most k float32 away from the correctly rounded result
``tree``     min(h, λ√h)·u·M + ½ ulp(r): h the height of the summation tree, counting the roundings on the longest
             path from an input to the result; M the same expression on absolute values
``custom``   a function of the row, for composites, with its derivation in its docstring
===========  =====================================================================================================

u = 2⁻²⁴ is the unit roundoff. h·u·M is the worst case to first order (Higham, Accuracy and Stability of Numerical
Algorithms, 2nd ed., §4.2); λ√h·u·M holds with overwhelming probability for mean-zero independent roundings (Higham and
Mary, SIAM J. Sci. Comput. 41, 2019), λ = 7.5 being the constant that gave no false alarm. The smaller of the two is
taken, so short trees are held to their worst case. Gradual underflow adds half the smallest subnormal per rounding.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

__all__ = ["LAMBDA", "TINY", "U", "Bound", "custom", "exact", "spacing", "tree", "tree_height", "ulp"]

F64 = npt.NDArray[np.float64]

#: unit roundoff of float32
U = 2.0**-24
#: the smallest positive float32
TINY = 2.0**-149
#: the constant of the probabilistic bound
LAMBDA = 7.5
#: the summation tree shared by both back ends, native/src/formula/sum_tree.h
LANES, LEAF, COLUMN_CHUNK, COLUMN_CHAINS = 1024, 16384, 128, 4


def spacing(r: npt.ArrayLike) -> F64:
    """Distance between neighbouring float32 at \\|r\\| (in the binade of r): 2^(⌊log2|r|⌋ - 23), at least 2^-149."""
    a = np.abs(np.asarray(r, dtype=np.float64))
    _, e = np.frexp(np.where(np.isfinite(a) & (a > 0), a, 2.0**-149))
    return np.ldexp(1.0, np.clip(e - 24, -149, 104))


@dataclass(frozen=True)
class Bound:
    """An error bound. :meth:`tolerance` gives one float64 array per output; ``inputs`` and ``params`` are those of the
    reference call, ``outputs`` its results."""

    kind: str
    text: str
    function: Callable[..., Sequence[npt.ArrayLike]]

    def tolerance(
        self,
        reference: Callable[..., Any],
        outputs: Sequence[F64],
        inputs: Mapping[str, Any],
        params: Mapping[str, Any],
    ) -> list[F64]:
        with np.errstate(all="ignore"):
            tols = self.function(reference, outputs, inputs, params)
        return [
            np.broadcast_to(np.asarray(t, dtype=np.float64), np.shape(o)) for t, o in zip(tols, outputs, strict=True)
        ]


def exact() -> Bound:
    """The correctly rounded result, bit for bit (any NaN equals any NaN)."""
    return Bound("exact", "exact", lambda ref, outs, ins, ps: [np.zeros(np.shape(o)) for o in outs])


def ulp(k: float | Sequence[float], floor: Callable[..., Any] | None = None, text: str = "") -> Bound:
    """At most k float32 values away from the correctly rounded result (k may differ by output). `floor` adds an absolute
    error per output, called with the inputs and parameters it names: what an intermediate that underflows can cost."""
    ks = list(k) if isinstance(k, Sequence) else None

    def tolerance(
        ref: Callable[..., Any], outs: Sequence[F64], ins: Mapping[str, Any], ps: Mapping[str, Any]
    ) -> list[F64]:
        f = call_named(floor, {**ins, **ps}) if floor is not None else 0.0
        floors = list(f) if isinstance(f, (tuple, list)) else [f] * len(outs)
        each = ks or [float(k)] * len(outs)  # type: ignore[arg-type]
        return [(ki + 0.5) * spacing(o) * (ki > 0) + fi for ki, o, fi in zip(each, outs, floors, strict=True)]

    label = text or (f"{k:g} ulp" if ks is None else " / ".join(f"{v:g} ulp" if v else "exact" for v in ks))
    return Bound("ulp", label + ("" if floor is None else " + underflow"), tolerance)


def tree(height: Callable[..., Any], magnitude: Callable[..., Any] | None = None, text: str = "") -> Bound:
    """A sum. `height` gets the reference's inputs and parameters by keyword (those it names; arrays in their declared
    shapes) and returns h, or a sequence with one h per output. `magnitude` is called like the reference and returns M
    per output; by default M is the reference on absolute inputs."""

    def tolerance(
        ref: Callable[..., Any], outs: Sequence[F64], ins: Mapping[str, Any], ps: Mapping[str, Any]
    ) -> list[F64]:
        h = call_named(height, {**ins, **ps})
        heights = list(h) if isinstance(h, (tuple, list)) else [h] * len(outs)
        absolute = {k: np.abs(v) if isinstance(v, np.ndarray) and v.dtype.kind == "f" else v for k, v in ins.items()}
        m = call_named(magnitude, {**ins, **ps}) if magnitude is not None else call_reference(ref, absolute, ps)
        ms = list(m) if isinstance(m, (tuple, list)) else [m]
        result = []
        for o, hi, mi in zip(outs, heights, ms, strict=True):
            factor = np.minimum(np.asarray(hi, np.float64), LAMBDA * np.sqrt(np.asarray(hi, np.float64)))
            result.append(factor * (U * np.abs(np.asarray(mi, np.float64)) + TINY / 2) + spacing(o) / 2)
        return result

    return Bound("tree", text or "min(h, λ√h)·u·M", tolerance)


def custom(function: Callable[..., Any], text: str) -> Bound:
    """A bound of the row's own: ``function(**inputs, **params)`` (those it names) returns the tolerance per output."""

    def tolerance(
        ref: Callable[..., Any], outs: Sequence[F64], ins: Mapping[str, Any], ps: Mapping[str, Any]
    ) -> list[Any]:
        t = call_named(function, {**ins, **ps})
        return list(t) if isinstance(t, (tuple, list)) else [t]

    return Bound("custom", text, tolerance)


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


def call_named(function: Callable[..., Any], values: Mapping[str, Any]) -> Any:
    """Calls `function` with those of `values` that its signature names (all of them if it takes ``**``)."""
    import inspect

    parameters = inspect.signature(function).parameters
    if any(p.kind is p.VAR_KEYWORD for p in parameters.values()):
        return function(**values)
    return function(**{name: values[name] for name in parameters if name in values})


def call_reference(reference: Callable[..., Any], inputs: Mapping[str, Any], params: Mapping[str, Any]) -> Any:
    """Calls a float64 reference: inputs in order, then the parameters it names by keyword."""
    import inspect

    names = list(inspect.signature(reference).parameters)[len(inputs) :]
    return reference(*inputs.values(), **{n: params[n] for n in names if n in params})
