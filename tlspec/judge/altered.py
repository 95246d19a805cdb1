"""Cases of the same shapes with other numbers: all, a few, or those beside a part of the batch."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np

from tlspec.draw.cases import Case
from tlspec.draw.data import generator
from tlspec.judge.blocks import ELEMENTS

#: numbers of each array that a case with a few other numbers changes
CHANGED = 3


def halved(case: Case) -> Case:
    """Halves in reversed order. Sums do not see the order alone, nor ratios the halving alone."""
    return _mapped(case, lambda name, x: _reversed_halves(x))


def touched(case: Case) -> Case:
    """A few numbers anywhere are halved: what a cache does not see that looks at some elements of an array."""
    rng = generator("touched", case.op.name, case.which, case.seed, case.data, case.size)

    def change(name: str, x: np.ndarray) -> np.ndarray:
        places = np.flatnonzero(np.isfinite(x) & (x != 0))
        made = np.array(x, order="C")
        made.flat[rng.permutation(places)[:CHANGED]] /= 2
        return made

    return _mapped(case, change)


def beside(case: Case, dim: str, count: int) -> Case:
    """Other numbers in the first `count` places of a dimension of the batch; the rest stays."""
    sig = case.op.signature
    dims = {a.name: a.dims for a in sig.inputs}
    dims |= {name: sig.outputs[i].dims for i, name in enumerate(case.cotangents)}

    def change(name: str, x: np.ndarray) -> np.ndarray:
        if dim not in dims[name] or (dim != ELEMENTS and x.shape[dims[name].index(dim)] != case.values[dim]):
            return x
        made, place = np.array(x, order="C"), (slice(None),) * dims[name].index(dim) + (slice(count),)
        made[place] = -made[place] / 2 if (made < 0).any() else _reversed_halves(made[place])
        return made

    return _mapped(case, change)


def _mapped(case: Case, change: Callable[[str, np.ndarray], np.ndarray]) -> Case:
    def mapped(group: Any) -> dict[str, Any]:
        return {n: x if x is None or x.dtype.kind != "f" else change(n, x) for n, x in group.items()}

    with np.errstate(all="ignore"):
        return replace(case, inputs=mapped(case.inputs), cotangents=mapped(case.cotangents), given=None)


def _reversed_halves(x: np.ndarray) -> np.ndarray:
    return np.asarray(x / 2) if x.ndim == 0 else np.divide(x[..., ::-1], 2, order="C")
