"""Sizes, kernels, strides and paddings up to 3: entry points take those that the specification takes, and have its outputs; and
as many axes as there may be."""

import itertools

import pytest

from tests.kernels.test_conv import demand_bounds
from tlrt import errors
from tlrt.verify.run import Runtime
from tlspec import registry
from tlspec.cases import build_case, generator, refused_by

SIZES = list(itertools.product((1, 2, 3), (1, 2, 3), (1, 2, 3), (0, 1, 2, 3)))


@pytest.mark.parametrize(
    "name", ["conv", "conv_transpose", "max_pool", "avg_pool", "conv2d", "conv_transpose2d", "max_pool2d"]
)
def test_windows_of_small_sizes(runtime: Runtime, name: str) -> None:
    row = registry.get(name)
    taken = 0
    for n, k, s, p in SIZES:
        values: dict[str, object] = {"channels": 1, "batch": 1, "in_channels": 1, "out_channels": 1}
        for key, value in {"spatial": n, "in": n, "kernel": k, "stride": s, "padding": p}.items():
            values |= {key: [value], f"{key}_h": 1 if key in ("in", "kernel", "stride") else 0, f"{key}_w": value}
        values = {key: values[key] for key in (*row.signature.sizes, *(q.name for q in row.signature.params))}
        if refused_by(row, values) is None:
            taken += 1
            demand_bounds(build_case(row, values, {}, generator("windows")), runtime, f"{name} {n} {k} {s} {p}")
        else:
            x = {
                a.name: runtime.device.zeros(n if a.name == "x" else k if a.name == "w" else 1)
                for a in row.signature.inputs
            }
            with pytest.raises(errors.TorchleanError, match=r"spatial|in_|kernel|padding"):
                runtime.call(name, x, values)
    assert 0 < taken < len(SIZES)


@pytest.mark.parametrize("which", ["forward", "vjp"])
@pytest.mark.parametrize("name", ["broadcast_to", "reduce_from_broadcast"])
def test_axes_kept_and_repeated_in_turn(runtime: Runtime, name: str, which: str) -> None:
    """As many as there may be, so that no two that follow each other are one; the outermost of either kind."""
    sizes = [2, 3, 2, 4, 3, 5, 2, 3]
    for axes in range(4, 9):
        for kept in (0, 1):
            axis_map = [0 if i % 2 != kept else i // 2 + 1 for i in range(axes)]
            in_dims = [n for n, k in zip(sizes, axis_map, strict=False) if k]
            values = {"in_dims": in_dims, "out_dims": sizes[:axes], "axis_map": axis_map}
            case = build_case(registry.get(name), values, {}, generator("in turn", axes, kept), which=which)
            demand_bounds(case, runtime, f"{name} {which} {axis_map}")
