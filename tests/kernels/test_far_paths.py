"""Paths of the kernels that begin at a product of sizes which drawn cases seldom meet: each within the bounds,
in every SIMD variant."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from tests.kernels.test_conv import demand_bounds
from tlrt.verify.run import Runtime, cpu_settings, cpu_variants
from tlspec import registry
from tlspec.compare import same_bits
from tlspec.draw.cases import build_case, generator

#: operation -> what begins there -> sizes and parameters
FAR: dict[str, dict[str, dict[str, Any]]] = {
    "swap_adjacent_at_depth": {
        "runs cut by length": {"dims": [2, 3, 2, 8192], "depth": 1},
        "runs of several pieces": {"dims": [3, 2, 65537], "depth": 0},
        "runs just below": {"dims": [2, 3, 8191], "depth": 0},
        **{f"runs of {n}": {"dims": [3, 35, 67, n], "depth": 1} for n in (2, 3, 4, 8, 16, 17)},
    },
    "transpose2d": {
        "stores past the cache": {"rows": 2064, "cols": 2049},
        "few rows": {"rows": 7, "cols": 9001},
        "few columns": {"rows": 9001, "cols": 5},
        "one panel that is more than a task": {"rows": 63, "cols": 2047},
        "too few columns for stores past the cache": {"rows": 1_048_592, "cols": 3},
    },
    "transpose3d_acb": {"stores past the cache": {"a": 3, "b": 1040, "c": 1361}},
    "broadcast_vec_to_rows": {"stores past the cache": {"rows": 1401, "cols": 3001}},
    "broadcast_vec_to_cols": {"stores past the cache": {"rows": 1401, "cols": 3001}},
    "softmax": {"stores past the cache": {"rows": 300, "cols": 14_001}},
    "log_softmax": {"stores past the cache": {"rows": 300, "cols": 14_001}},
    "cross_entropy": {
        "gradients past the cache": {"rows": 300, "cols": 14_001, "labels": np.arange(300, dtype=np.uint32)}
    },
    "channel_affine": {
        "channels past the cache": {"batch": 3, "channels": 5, "positions": 280_007},
        "samples past the cache": {"batch": 301, "channels": 14_003, "positions": 1},
    },
    "reduce_max_axis1": {"rows cut into segments": {"rows": 3, "cols": 200_003}},
    "reduce_max_axis0": {
        "one column cut into segments": {"rows": 200_003, "cols": 1},
        "tiles of columns": {"rows": 300, "cols": 1931},
    },
    "reduce_sum_axis1": {"few long rows": {"rows": 3, "cols": 200_003}},
    "spectral_conv1d_rfft": {"more modes than are summed one by one": {"grid": 1201, "width": 3, "modes": 520}},
    "rfft1d_packed": {"pieces of one long row": {"batch": 1, "n": 2**17}},
    "irfft1d_packed": {"pieces of one long row": {"batch": 1, "n": 2**17}},
    "reduce_mean": {"a count beyond those that float32 holds": {"dims": [2**24 + 3], "axis": 0}},
    "sub": {"stores past the cache": {"n": 2_796_211}},
    "cos": {"stores past the cache": {"n": 4_194_311}},
    "mul": {"gradients past the cache": {"n": 1_677_731}},
    "matmul": {"two rounds of a long inner dimension": {"m": 3, "n": 2 * 16384 + 300, "p": 5}},
    "linear": {
        "two rounds of a long inner dimension": {"batch": 3, "inputs": 2 * 16384 + 300, "outputs": 5},
        "two whole rounds of it": {"batch": 3, "inputs": 2 * 16384, "outputs": 5},
    },
}


#: a gradient that stores past the cache is a forward that does, of another operation
CASES = [
    (n, p, w) for n in FAR for p in FAR[n] for w in ("forward", "vjp") if w == "forward" or p != "stores past the cache"
]


@pytest.mark.parametrize(("name", "path", "which"), CASES)
def test_a_path_that_begins_far_away(name: str, path: str, which: str, runtime: Runtime) -> None:
    rng = generator("far", name, path)
    data = "integers" if name.startswith("reduce_max") else "normal"  # with equal elements
    given = {n: v for n, v in FAR[name][path].items() if isinstance(v, np.ndarray)}
    values = {n: v for n, v in FAR[name][path].items() if n not in given}
    case = build_case(registry.get(name), values, given, rng, which=which, data=data)
    demand_bounds(case, runtime, f"{name} {path} {which}")
    right = runtime.run(case)
    for variant in cpu_variants() if runtime.name == "cpu" else []:
        with cpu_settings(variant):
            for got, want in zip(runtime.run(case), right, strict=True):
                assert same_bits(got, want).ok, variant


#: rows of which one number may decide, and the dimensions of one that is so long
LONG_ROWS: dict[str, Callable[[int], dict[str, Any]]] = {
    **{name: lambda n: {"outer": 1, "n": n, "inner": 1} for name in ("argmax", "argmin")},
    **{name: lambda n: {"dims": [1, n], "axes": 2} for name in ("amax", "logsumexp")},
    **{name: lambda n: {"rows": 1, "cols": n} for name in ("softmax", "log_softmax", "reduce_max_axis1")},
    "cumsum": lambda n: {"dims": [n], "axis": 0, "reverse": 0},
}


@pytest.mark.parametrize("special", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("name", LONG_ROWS)
def test_one_number_of_a_long_row(name: str, special: float, runtime: Runtime) -> None:
    """Wherever it stands: kernels cut long rows into parts."""
    op, n = registry.get(name), 200_003
    for place in (0, 4096, 65_535, 65_536, n - 1):
        case = build_case(op, LONG_ROWS[name](n), {}, generator("long row", place))
        x = np.array(case.inputs["x"])
        x.flat[place] = special
        demand_bounds(replace(case, inputs={**case.inputs, "x": x}), runtime, f"{name} {special} at {place}")
