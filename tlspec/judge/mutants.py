"""Defects planted in the reference's results: those that a check's cases would catch show how much the check can tell.

Each makes, of a trial, the results of a kernel that has the defect; None where it does not apply. A defect that leaves a case's
results as they are says nothing about that case."""

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from tlspec.bounds import F64, call_reference
from tlspec.formats import FORMATS, Format
from tlspec.judge.trial import Trial

Results = list[F64]
#: by the format of a kernel's inputs, the one that loses bits of them unnoticed
COARSER = {"float64": "float32", "float32": "tf32", "tf32": "bfloat16", "bfloat16": "float8_e4m3fn", "float16": "bfloat16",
           "float8_e4m3fn": "float8_e5m2", "float8_e5m2": "float8_e5m2"}  # fmt: skip


def _evaluated(
    trial: Trial, change: Callable[[str, Any], Any] = lambda name, x: x, values: Mapping[str, Any] | None = None
) -> Results:
    """The reference on changed arrays."""
    case = trial.case
    arrays = {n: x if x is None else change(n, x) for n, x in case.wide.items()}
    with np.errstate(all="ignore"):
        outs = call_reference(case.reference, arrays, values or case.values)
    outs = outs if isinstance(outs, (tuple, list)) else (outs,)
    return [np.broadcast_to(np.asarray(o, np.float64), s) for o, s in zip(outs, trial.shapes, strict=True)]


def _floats(change: Callable[[F64], F64]) -> Callable[[str, Any], Any]:
    return lambda name, x: change(x) if x.dtype.kind == "f" and x.size else x


def _without_last(x: F64) -> F64:
    made = x.copy()
    made[..., -1] = 0
    return made


def _in_coarser(fmt: Format) -> Callable[[F64], F64]:
    return FORMATS[COARSER[fmt.name]].round


class _WithoutMaximum(np.ndarray):
    """An array whose maxima are 0: a softmax of it subtracts nothing."""

    def max(self, axis: Any = None, out: Any = None, keepdims: Any = False, **_: Any) -> Any:
        return np.zeros_like(np.asarray(np.ndarray.max(self, axis=axis, keepdims=keepdims, initial=0)))


def _no_maximum(trial: Trial) -> Results | None:
    """What float32 makes of it; None where the reference takes no maximum, or its absence changes nothing."""

    def evaluated(kind: type[np.ndarray]) -> Results:
        made = _evaluated(trial, lambda n, x: x.astype(np.float32).view(kind) if x.dtype.kind == "f" else x)
        return [np.asarray(m) for m in made]

    usual, without = evaluated(np.ndarray), evaluated(_WithoutMaximum)
    return None if all(np.array_equal(a, b, equal_nan=True) for a, b in zip(usual, without, strict=True)) else without


def _wrong_parameter(trial: Trial) -> Results | None:
    floats = {p.name: trial.case.values[p.name] for p in trial.case.op.signature.params if p.kind == "float"}
    if not floats:
        return None
    wrong = {n: 10 * v if "eps" in n else v * 1.0625 for n, v in floats.items()}
    return _evaluated(trial, values={**trial.case.values, **wrong})


def _shifted_mask(trial: Trial) -> Results | None:
    masks = {a.name for a in trial.case.op.signature.inputs if "mask" in a.name or a.kind in ("u32", "index")}
    if not masks & {n for n, x in trial.case.wide.items() if x is not None}:
        return None
    return _evaluated(trial, lambda n, x: np.roll(x, 1, -1) if n in masks and x.ndim else x)


def _copied(trial: Trial) -> Results | None:
    for x in trial.case.wide.values():
        if x is not None and x.shape == trial.shapes[0] and len(trial.shapes) == 1:
            return [np.asarray(x, np.float64)]
    return None


def _last_missing(trial: Trial) -> Results:
    made = [o.copy() for o in trial.outputs]
    for o in made:
        if o.size:
            o.flat[-1] = 0
    return made


#: by what is wrong
MUTANTS: dict[str, Callable[[Trial], Results | None]] = {
    "zeros": lambda t: [np.zeros(s) for s in t.shapes],
    "a copy of an input": _copied,
    "an earlier result": lambda t: _evaluated(t, _floats(lambda x: np.roll(x, 1))),
    "the last element unwritten": _last_missing,
    "the last column left out": lambda t: _evaluated(t, _floats(_without_last)),
    "shifted by one": lambda t: [np.roll(o, 1, -1) if o.ndim else o for o in t.outputs],
    "inputs with fewer bits": lambda t: _evaluated(t, _floats(_in_coarser(t.format))),
    "results with fewer bits": lambda t: [_in_coarser(t.format)(o) for o in t.outputs],
    "a wrong parameter": _wrong_parameter,
    "a mask or index off by one": _shifted_mask,
    "no maximum subtracted": _no_maximum,
}  # fmt: skip


def sensitivity(trials: list[Trial]) -> dict[str, tuple[int, int]]:
    """By defect: how many of the trials catch it, and how many it changes. None of the trials is empty."""
    found: dict[str, tuple[int, int]] = {}
    trials = [t for t in trials if not t.open]
    for name, plant in MUTANTS.items():
        caught = changed = 0
        for trial in trials:
            with np.errstate(all="ignore"):
                try:
                    made = plant(trial)
                except (TypeError, ValueError, IndexError, FloatingPointError):
                    continue
                if made is None:
                    continue
                results = [trial.format.round(m) for m in made]
                right = [trial.format.round(o) for o in trial.outputs]
            if all(np.array_equal(a, b, equal_nan=True) for a, b in zip(results, right, strict=True)):
                continue
            changed += 1
            caught += not all(c.ok for c in trial.compare(results))
        if changed:
            found[name] = caught, changed
    return found
