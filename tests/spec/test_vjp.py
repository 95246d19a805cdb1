"""The analytic VJP of every row against central differences of its reference, in float64.

For random directions v of all inputs that have a gradient, <VJP(g), v> is compared with (φ(h) - φ(-h))/2h, where
φ(t) = <f(x + t·v), g>. The tolerance is what the differences themselves say of their error: the change from step h to
2h (truncation is O(h²), so the change is three times the error at h) and the rounding of φ, from the row's own bound
scaled to float64. A check of the check demands that this is small enough to see a gradient that is off by one part in
a thousand.
"""

from typing import Any

import numpy as np
import pytest

from tlspec.bounds import call_reference
from tlspec.draw.cases import Case, cotangent_names, draw_case, generator
from tlspec.laws import Spec
from tlspec.registry import Op

STEP = 2.0**-14


def outputs(case: Case, inputs: dict[str, Any]) -> list[np.ndarray]:
    with np.errstate(all="ignore"):
        out = call_reference(case.op.reference, inputs, case.values)
    outs = [np.asarray(o) for o in (out if isinstance(out, tuple) else (out,))]
    return [np.where(np.isneginf(o), 0, o) for o in outs]  # the maximum of a window without cells is a constant


def smooth(case: Case, signed: bool) -> dict[str, Any]:
    """Inputs of distinct magnitudes from 0.5 to 1.5: away from the kinks at 0 and from ties by more than a step."""
    rng = generator("smooth", case.op.name, case.seed)
    out: dict[str, Any] = {}
    for a in case.op.signature.inputs:
        x = case.inputs[a.name]
        if x is None or a.kind in ("u32", "index"):
            out[a.name] = x if x is None else x.astype(np.int64)
        else:
            sign = np.where(rng.random(x.shape) < 0.5, -1.0, 1.0) if signed else 1.0
            out[a.name] = sign * (0.5 + (rng.permutation(x.size).reshape(x.shape) + 0.25) / max(x.size, 1))
    return out


@pytest.mark.only(where=lambda row: row.vjp_rule)
@pytest.mark.parametrize("seed", [1, 2, 3])
@pytest.mark.parametrize("signed", [True, False], ids=["signed", "positive"])
def test_vjp_is_the_derivative(row: Op, seed: int, signed: bool) -> None:
    rule = row.vjp_rule
    full = lambda c: all(x is not None and x.size for x in c.inputs.values())
    case = next(c for c in (draw_case(row, seed + 100 * i, "normal", "small") for i in range(100)) if full(c))
    inputs = smooth(case, signed)
    outs = outputs(case, inputs)
    if not all(np.isfinite(o).all() for o in outs):
        if signed:
            pytest.skip("defined for positive inputs only; the other case covers them")
        raise AssertionError("the reference is not finite on positive inputs")
    rng = generator("direction", row.name, seed)
    cots = {n: rng.standard_normal(np.shape(o)) for n, o in zip(cotangent_names(row), outs, strict=True)}
    cots = {n: c if n in rule.reads else 0 * c for n, c in cots.items()}  # results that pass no gradient on
    known = {**inputs, **{a.name: o for a, o in zip(row.signature.outputs, outs, strict=True)}, **cots}
    grads = call_reference(rule.reference, {r: known[r] for r in rule.reads}, case.values)
    grads = grads if isinstance(grads, tuple) else (grads,)
    names = [g[1:] for g in rule.gives]
    for gradient, name in zip(grads, names, strict=True):
        assert np.shape(gradient) == np.shape(inputs[name])
    v = {n: rng.standard_normal(inputs[n].shape) for n in names}
    analytic = sum(float(np.vdot(g, v[n])) for g, n in zip(grads, names, strict=True))

    def phi(t: float) -> float:
        moved = outputs(case, {k: x + t * v[k] if k in v else x for k, x in inputs.items()})
        return sum(float(np.vdot(g, o)) for g, o in zip(cots.values(), moved, strict=True))

    def difference(h: float) -> float:
        return (phi(h) - phi(-h)) / (2 * h)

    near, far = difference(STEP), difference(2 * STEP)
    law_case = Case(
        row, "forward", seed, "law", "small", case.dims, case.params, {k: to32(x) for k, x in inputs.items()}
    )
    rounding = sum(
        float(np.vdot(np.abs(g), t)) + g.size * 2.0**-53 * float(np.vdot(np.abs(g), np.abs(o)))
        for g, t, o in zip(cots.values(), Spec().tolerances(law_case), outs, strict=True)
    )
    tolerance = abs(far - near) + 2 * rounding / STEP
    assert abs(near - analytic) <= tolerance, f"{case.line}: analytic {analytic}, differences {near} ± {tolerance}"
    scale = sum(float(np.linalg.norm(g) * np.linalg.norm(v[n])) for g, n in zip(grads, names, strict=True))
    if max(x.size for x in v.values()) > 3 and scale:  # 0 where padding wins every window
        assert tolerance <= 1e-3 * scale, f"{case.line}: a step crosses a kink, or the differences say nothing"


def to32(x: Any) -> Any:
    return None if x is None else x.astype(np.uint32 if x.dtype == np.int64 else np.float32)
