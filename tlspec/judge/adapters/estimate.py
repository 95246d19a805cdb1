"""An estimate of a kernel's error, for references that running error analysis does not know.

It is no bound. It assumes that a kernel's roundings act on its results as those of the reference itself do when it computes in
the kernel's own intermediate format, float32, on inputs that are perturbed by roundings of this format. Of eight such runs the
errors against float64 give a standard deviation for each element, and a relative one for the whole tensor, which stands for
elements whose eight errors happen to be small. The tolerance is 7.5 of the larger, the factor that the bounds of sums have too
(:mod:`tlspec.bounds`): a normal error is beyond it once in 10^13.
"""

from collections.abc import Callable
from typing import Any

import numpy as np

from tlspec.draw.data import generator
from tlspec.judge.adapters.tracked import Tracked, leaves
from tlspec.running import Model

RUNS, DEVIATIONS = 8, 7.5


def estimated(torch: Any, task: Any, given: Any, model: Model, call: Callable[..., Any]) -> list[Tracked]:
    """The reference's results in float64, with estimates of a kernel's errors. The reference's modules are in float64."""
    narrow = torch.float64 if model.precision > 24 else torch.float32

    def arguments(dtype: Any, run: int | None = None) -> Any:
        at = iter(range(10**6))

        def cast(x: Any) -> Any:
            if not isinstance(x, torch.Tensor) or not x.is_floating_point():
                return x.cpu() if isinstance(x, torch.Tensor) else x
            made = x.detach().cpu().to(torch.float64)
            if run is not None:
                rng = generator("estimate", task.name, run, next(at))
                made = made * (1 + model.unit * torch.from_numpy(rng.uniform(-1, 1, tuple(x.shape))))
            return made.to(dtype).requires_grad_(x.requires_grad)

        return _mapped(given, cast)

    def results(dtype: Any, run: int | None = None) -> list[np.ndarray]:
        usual = torch.get_default_dtype()
        for m in task.modules:
            m.to(dtype)
        torch.set_default_dtype(dtype)
        try:
            with torch.no_grad():
                return [
                    x.detach().numpy().astype(np.float64)
                    for x in leaves(torch, call(task.reference, arguments(dtype, run)))
                ]
        finally:
            torch.set_default_dtype(usual)
            for m in task.modules:
                m.to(torch.float64)

    exact = results(torch.float64)
    runs = [results(narrow, run) for run in range(RUNS)]
    found = []
    for i, value in enumerate(exact):
        with np.errstate(all="ignore"):
            errors = np.array([np.where(np.isfinite(value), np.abs(r[i] - value), 0.0) for r in runs])
            deviation = np.sqrt(np.mean(errors**2, axis=0))
            size = np.abs(value)
            relative = errors[:, np.isfinite(value) & (size > 0)] / size[np.isfinite(value) & (size > 0)]
            share = float(np.sqrt(np.median(relative**2))) if relative.size else 0.0
            error = DEVIATIONS * np.maximum(
                deviation, np.where(np.isfinite(value), share * size, 0.0)
            ) + model.unit * np.where(np.isfinite(value), size, 0)
        error = np.where(np.isnan(error), np.inf, error)
        found.append(Tracked(value, error, error, None))
    return found


def _mapped(x: Any, f: Callable[[Any], Any]) -> Any:
    if isinstance(x, dict):
        return {k: _mapped(v, f) for k, v in x.items()}
    return type(x)(_mapped(v, f) for v in x) if isinstance(x, (tuple, list)) else f(x)
