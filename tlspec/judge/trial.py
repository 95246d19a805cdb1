"""One call of a kernel, in a number format: its arguments, the reference, and how far from it the result may be."""

from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from tlspec.bounds import F64, call_reference
from tlspec.cases import Case
from tlspec.compare import Comparison, compare
from tlspec.formats import Format
from tlspec.running import ErrorArray, Model, track_call

#: numbers in which the reference of a float64 kernel is computed
WIDE = np.longdouble


@dataclass(frozen=True)
class Trial:
    """A case and what its results are held to. `bounded` is a model of the kernel, or None for the bound of the row itself."""

    case: Case
    format: Format
    outputs: tuple[F64, ...]
    tolerances: tuple[F64, ...]
    signed_zeros: bool
    bits: tuple[np.ndarray | None, ...]

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(a.name for a in self.case.signature.outputs)

    @property
    def shapes(self) -> tuple[tuple[int, ...], ...]:
        return tuple(o.shape for o in self.outputs)

    @property
    def empty(self) -> bool:
        return not any(o.size for o in self.outputs)

    @property
    def blind(self) -> bool:
        """Whether the bound exceeds the answer for most elements, so that zeros would pass: the case tells nothing."""
        counted = unseen = 0
        for r, t in zip(self.outputs, self.tolerances, strict=True):
            told = np.isfinite(r) & ((r != 0) | (t >= self.format.least_normal))
            counted += int(np.count_nonzero(told))
            unseen += int(np.count_nonzero(told & (t >= np.abs(r))))
        return 2 * unseen > counted

    def compare(self, index: int, got: np.ndarray) -> Comparison:
        """One output's numbers (float64) with the reference."""
        args = self.outputs[index], self.tolerances[index]
        fixed = self.bits[index]
        if fixed is not None and self.format.name == "float32":
            return compare(got.astype(np.float32), *args, signed_zeros=self.signed_zeros, bits=fixed)
        return compare(got, *args, signed_zeros=self.signed_zeros, format=self.format)


def quantised(case: Case, format: Format) -> Case:
    """The case with its arrays rounded to a format. Data of all binades are moved into the format's binades first."""

    def fit(x: np.ndarray | None, index: int) -> np.ndarray | None:
        if x is None or x.dtype.kind != "f":
            return x
        wide = x.astype(np.float64)
        if format.precision > 24:
            noise = np.random.default_rng((case.seed, index, x.size)).random(x.shape) * 2.0**-25
            full = np.isfinite(wide) & (case.data not in ("integers", "structured", "grid"))
            return np.where(full, wide * (1 + noise), wide)
        if case.data in ("wide", "huge") and format.most_exponent < 127:
            fraction, exponent = np.frexp(wide)
            wide = np.ldexp(fraction, (exponent * format.most_exponent) // 128)
        return format.round(wide).astype(np.float32)

    arrays = [{n: fit(x, i) for i, (n, x) in enumerate(group.items())} for group in (case.inputs, case.cotangents)]
    made = replace(case, inputs=arrays[0], cotangents=arrays[1], given=None)  # type: ignore[arg-type]
    if case.which == "forward" or all(r in {**made.inputs, **made.cotangents} for r in case.op.rule.reads):
        return made
    known: dict[str, Any] = {**made.inputs, **made.cotangents}
    with np.errstate(all="ignore"):
        outs = call_reference(case.op.reference, made.wide_inputs, case.values)
    for array, out in zip(case.op.signature.outputs, outs if isinstance(outs, tuple) else (outs,), strict=True):
        known[array.name] = format.round(out).astype(np.float64 if format.precision > 24 else np.float32)
    return replace(made, given={r: known[r] for r in case.op.rule.reads})


def trial_of(
    case: Case, format: Format, model: Model | None, *, results: Format | None = None, taken: Collection[str] | None = None
) -> Trial:  # fmt: skip
    """The trial of a quantised case: of a kernel within the model, or, without one, by the row's own bound for float32.

    `results` is the format of the results, where it is another. `taken` are the names that a gradient's function takes: what the
    row's rule reads besides, it computes itself, with its own errors."""
    out = results or format
    if model is not None:
        try:
            return _tracked_trial(case, out, model, taken)
        except (AttributeError, TypeError):
            if case.op.family == "user":  # whose reference can be written otherwise
                raise
    e = case.expected
    return Trial(case, out, e.outputs, e.tolerances, e.signed_zeros, e.bits)


def _tracked_trial(case: Case, out: Format, model: Model, taken: Collection[str] | None) -> Trial:
    """The trial by running error analysis. Raises TypeError or AttributeError where the reference is not known to it."""
    given: Mapping[str, Any] = case.wide
    if model.precision > 24:
        given = {n: a.astype(WIDE) if a is not None and a.dtype.kind == "f" else a for n, a in given.items()}
    arrays = {n: _tracked(a, model) for n, a in given.items()}
    if case.which == "vjp" and taken is not None:
        computed = [a.name for a in case.op.signature.outputs if a.name in arrays and a.name not in taken]
        if computed:
            inputs = {n: _tracked(a, model) for n, a in case.wide_inputs.items()}
            known = dict(
                zip(
                    (a.name for a in case.op.signature.outputs),
                    track_call(case.op.reference, inputs, case.values),
                    strict=True,
                )
            )
            arrays.update({n: known[n] for n in computed})
    made = track_call(case.reference, arrays, case.values)
    outputs, tolerances = [], []
    signed = case.bound.kind in (
        "exact",
        "moved",
    )  # of other results the order of operations decides the sign of a zero
    for array, o in zip(case.signature.outputs, made, strict=True):
        value = (
            np.broadcast_to(o.value, case.shape(array))
            if isinstance(o, ErrorArray)
            else np.broadcast_to(o, case.shape(array))
        )
        error = np.broadcast_to(o.error, value.shape) if isinstance(o, ErrorArray) else np.zeros(value.shape)
        value = value.astype(np.float64)
        if out.precision < model.precision:
            with np.errstate(all="ignore"):
                error = np.where(
                    error > 0, error + out.spacing(np.abs(value) + np.where(np.isfinite(error), error, 0.0)) / 2, 0.0
                )
        outputs.append(value)
        tolerances.append(np.asarray(error, np.float64))
    return Trial(case, out, tuple(outputs), tuple(tolerances), signed, (None,) * len(outputs))


def _tracked(x: Any, model: Model) -> Any:
    if x is None or x.dtype.kind != "f":
        return x
    return ErrorArray(x, np.where(np.abs(x) < model.flushed, np.abs(x), 0.0) if model.flushed else 0.0, model)
