"""Sizes, kernels, strides and paddings up to 3: entry points take those that the specification takes, and have its outputs; and
as many axes as there may be."""

import itertools
from typing import Any

import numpy as np
import pytest

import tlrt
from tests.kernels.test_conv import demand_bounds
from tests.kernels.test_errors import has_kernel
from tlrt import errors, kernels
from tlrt.verify.run import Runtime
from tlspec import registry
from tlspec.draw.cases import build_case, generator, refused_by

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


@pytest.mark.operations("max_pool", "max_pool2d", "avg_pool")
@pytest.mark.parametrize("far", [2**31, 2**31 + 1, 2**32 - 1])
def test_windows_whose_paddings_together_pass_32_bits(runtime: Runtime, far: int) -> None:
    """Three windows a stride apart: one of the left padding alone, one of the first two cells, and one behind."""
    x = runtime.upload(np.array([1, 5, 2], np.float32))
    two = {"padding_h": 0, "padding_w": far, "stride_h": 1, "stride_w": far}
    extremes = [-np.inf, 5.0, -np.inf]
    assert kernels.max_pool(x, 1, [3], [2], [far], [far]).numpy().tolist() == extremes
    assert kernels.max_pool2d(x, 1, 1, 3, 1, 2, **two).numpy().tolist() == extremes
    assert kernels.avg_pool(x, 1, [3], [2], [far], [far]).numpy().tolist() == [0.0, 3.0, 0.0]
    # a kernel that all of the cells lie under
    assert kernels.max_pool(x, 1, [3], [far - far % 2 - 1], [1], [far // 2 - 1]).numpy().max() == 5.0


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


TOP = 2**32 - 1


def _slice(
    size: list[int], count: list[int], starts: list[int], steps: list[int], backwards: int = 0
) -> dict[str, Any]:
    return {"in_dims": size, "out_dims": count, "starts": starts, "steps": steps, "reversed": backwards}


def _window(spatial: list[int], kernel: list[int], stride: list[int], padding: list[int]) -> dict[str, Any]:
    return {"spatial": spatial, "kernel": kernel, "stride": stride, "padding": padding}


def _axes(sizes: list[int], out: list[int], axis_map: list[int]) -> dict[str, Any]:
    return {"in_dims": sizes, "out_dims": out, "axis_map": axis_map}


def _grouped(kernel: int, dilation: int, stride: int = 1) -> dict[str, Any]:
    """Over three cells, with a padding on one side."""
    window = {"spatial": [3], "kernel": [kernel], "stride": [stride], "dilation": [dilation]}
    return {**window, "padding_low": [1], "padding_high": [0]}


def _plane(size: int, kernel: int, stride: int, padding: int, width: int = 1) -> dict[str, Any]:
    """Along one axis of the two as given, along the other one `width` and a kernel of one."""
    return {
        "in_h": width, "kernel_h": 1, "stride_h": 1, "padding_h": 0,
        "in_w": size, "kernel_w": kernel, "stride_w": stride, "padding_w": padding,
    }  # fmt: skip


def _turned(values: dict[str, Any]) -> dict[str, Any]:
    """With the axes exchanged."""
    return {f"{name[:-1]}{'w' if name[-1] == 'h' else 'h'}": value for name, value in values.items()}


FAR_TOO_LARGE = _plane(TOP, 1, 1, TOP)
#: geometry at the limits of what entry points take: the specification says which of it they refuse
LIMITS: dict[str, list[dict[str, Any]]] = {
    "slice_axes": [
        _slice([3], [0], [3], [1]), _slice([3], [0], [4], [1]), _slice([3], [1], [3], [1]), _slice([3], [1], [2], [TOP]),
        _slice([3], [2], [2], [TOP]), _slice([3], [2], [0], [1], 1), _slice([3], [3], [2], [1], 1), _slice([3, 2], [1], [0], [1]),
        _slice([3], [1], [0, 0], [1]), _slice([3], [1], [0], [1, 1]), _slice([3], [1], [0], [1], 2), _slice([3], [1], [0], [0]),
        _slice([7], [2], [1], [2]), _slice([7], [2], [5], [2], 1), _slice([3], [1], [3], [2]), _slice([3], [1], [3], [1], 1),
    ],
    "broadcast_to": [
        _axes([3], [0], [1]), _axes([1], [0], [1]), _axes([3], [2], [1]), _axes([3], [3], [1, 0]), _axes([3], [2, 3], [0, 1]),
        _axes([3, 3], [3], [1]), _axes([3, 1], [3], [1]), _axes([3], [3, 3], [1, 1]), _axes([3], [3], [2]),
    ],
    "conv_grouped": [_grouped(3, 1), _grouped(2, 2**31), _grouped(3, 2**31), _grouped(2, 1, stride=TOP)],
    "conv_transpose_grouped": [
        {**_grouped(*sizes, stride), "output_padding": [0]}
        for sizes, stride in (((3, 1), 1), ((3, 2**31), 1), ((2, TOP), 1), ((2, 1), TOP))
    ],
    "max_pool": [
        _window([], [], [], []), _window([3], [3, 1], [1], [0]), _window([3], [3], [1, 1], [0]), _window([3], [3], [1], [0, 0]),
        _window([3], [4], [1], [0]), _window([0], [1], [1], [0]), _window([2, 2], [2**16] * 2, [1, 1], [2**15] * 2),
        _window([2, 2], [2, 2], [1, 1], [1, 1]),
    ],
    "conv": [
        _window([], [], [], []), _window([3], [3, 1], [1], [0]), _window([3], [4], [1], [0]), _window([3], [1], [1], [TOP]),
        _window([3], [1], [1, 1], [0]), _window([3], [1], [1], [0, 0]), _window([3], [2], [1], [1]),
    ],
    "max_pool2d": [
        _plane(3, 4, 1, 0), _turned(_plane(3, 4, 1, 0)), _plane(3, 2, 1, 1),
        {key: {"in": 2, "kernel": 2**16, "stride": 1, "padding": 2**15}[key[:-2]] for key in _plane(1, 1, 1, 0)},
    ],
    "conv2d": [
        _plane(3, 4, 1, 0), _turned(_plane(3, 4, 1, 0)), FAR_TOO_LARGE, _turned(FAR_TOO_LARGE), _plane(3, 2, 1, 1),
    ],
}  # fmt: skip
LIMITS["smooth_max_pool2d"] = [{**values, "beta": 2.0} for values in LIMITS["max_pool2d"]]
LIMITS["avg_pool2d"] = LIMITS["max_pool2d"]
LIMITS["conv_transpose2d"] = LIMITS["conv2d"]


@pytest.mark.parametrize(
    ("name", "which"), [(n, w) for n in LIMITS for w in ("forward", "vjp") if has_kernel(registry.get(n), w)]
)
def test_geometry_at_the_limits(runtime: Runtime, name: str, which: str) -> None:
    row = registry.get(name)
    ones = dict.fromkeys([n.lstrip("*") for n in row.signature.dims], 1)
    refused = 0
    for given in LIMITS[name]:
        values = {**ones, **given}
        failed = refused_by(row, values)
        if failed is None:
            demand_bounds(build_case(row, values, {}, generator("limits"), which=which), runtime, f"{name} {given}")
            continue
        refused += 1
        x = {a.name: runtime.device.zeros(1) for a in row.signature_of(which).inputs}
        with pytest.raises(errors.TorchleanError, match=rf"^{row.entry(which)}: {failed.name}: (got .*)?expected"):
            runtime.call(row.entry(which), x, values)
    assert 0 < refused < len(LIMITS[name])


@pytest.mark.parametrize(("outer", "inner"), [(1, 1), (3, 1), (1, 2), (2, 3)])
def test_two_axes_of_any_lengths_exchange(dev: tlrt.Device, outer: int, inner: int) -> None:
    """Lengths around those at which kernels cut their work."""
    with tlrt.Session(dev) as s:
        for cols, rows in itertools.product((1, 7, 64, 1024, 2049), (*range(1, 36), 63, 64, 65, 127, 129, 257, 1025)):
            if (n := outer * rows * cols * inner) <= 1 << 19:
                x = np.arange(n, dtype=np.float32).reshape(outer, rows, cols, inner)
                assert np.array_equal(s.const(x).permute((0, 2, 1, 3)).numpy(), x.transpose(0, 2, 1, 3)), (rows, cols)
