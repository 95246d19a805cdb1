"""Convolutions at the edges of their tiles: what drawn cases seldom meet."""

import inspect
import itertools
import math
import re
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

import tlrt
from tests import path_seeds
from tlrt import kernels
from tlrt.verify.run import Runtime, cpu_settings, cpu_variants
from tlspec import registry, shapes
from tlspec.compare import compare
from tlspec.draw.cases import Case, build_case, draw_case, generator, refused_by
from tlspec.registry import Op


def sizes(batch: int, channels: tuple[int, int], *lists: list[int]) -> dict[str, Any]:
    names = ("spatial", "kernel", "stride", "padding")
    return {
        "batch": batch, "in_channels": channels[0], "out_channels": channels[1], **dict(zip(names, lists, strict=True)),
    }  # fmt: skip


EDGES = {
    "one position": sizes(3, (5, 7), [3], [3], [1], [0]),
    "a strip and one": sizes(1, (3, 15), [33], [1], [1], [0]),
    "tile edges": sizes(1, (29, 129), [23, 23], [3, 3], [1, 1], [1, 1]),
    "block of K and one": sizes(1, (257, 65), [11, 12], [1, 1], [1, 1], [0, 0]),
    "one tap of many channels": sizes(1, (2100, 3), [5, 8], [1, 1], [1, 1], [0, 0]),
    "images of one tap": sizes(3, (260, 17), [5, 5], [1, 1], [1, 1], [0, 0]),
    "long lines of few rows": sizes(2, (9, 5), [3, 23], [3, 3], [1, 1], [1, 1]),
    "64 taps": sizes(2, (5, 33), [12, 11], [8, 8], [1, 1], [3, 4]),
    "many taps": sizes(2, (3, 17), [200], [150], [3], [20]),
    "stride above kernel": sizes(2, (4, 3), [13, 10], [2, 1], [5, 3], [0, 0]),
    "padding above kernel": sizes(1, (2, 3), [5, 4], [2, 3], [2, 3], [4, 6]),
    "kernel above input": sizes(2, (2, 3), [2, 1], [5, 3], [1, 2], [2, 1]),
    "rank 8": sizes(
        2, (3, 2), [2, 3, 1, 2, 1, 2, 3, 5], [1, 2, 1, 2, 1, 1, 3, 2], [1, 2, 1, 1, 1, 1, 2, 1], [0, 1, 0, 1, 0, 0, 1, 1]
    ),
    "segments of positions": sizes(3, (2, 3), [61, 67], [3, 2], [1, 1], [1, 0]),
    "few long sums": sizes(1, (4096, 2), [1, 40], [1, 5], [1, 1], [0, 2]),
    "a row of long sums": sizes(1, (1024, 2), [1, 160], [1, 5], [1, 1], [0, 2]),
    "lines of one tap": sizes(2, (5, 7), [47], [1], [1], [0]),
    "no input channels": sizes(2, (0, 3), [5], [3], [1], [1]),
    "no output channels": sizes(2, (3, 0), [5], [3], [1], [1]),
    "no images": sizes(0, (3, 2), [5], [3], [1], [1]),
}  # fmt: skip


def convolves(row: Op, which: str = "forward") -> bool:
    """Whether the row slides weights over images: over lists of axes, or over two named ones."""
    dims = set(row.signature.dims)
    return "in_channels" in dims and (dims >= LISTS or dims >= PLANE)


#: how a row spells its spatial axes
LISTS, PLANE = {"*spatial", "*kernel"}, {"in_h", "in_w", "kernel_h", "kernel_w"}


def values_of(row: Op, lists: dict[str, Any], groups: int = 2) -> dict[str, Any] | None:
    """Dimensions and parameters of a row, None where it has no such convolution. The padding after exceeds that before."""
    values = dict(lists)
    if "groups" in row.signature.dims:
        low, axes = values.pop("padding"), len(lists["spatial"])
        values |= {"groups": groups, "dilation": [2] * axes, "padding_low": low, "padding_high": [p + 1 for p in low]}
        if row.name == "conv_transpose_grouped":
            values["output_padding"] = [s - 1 for s in values["stride"]]
    if set(row.signature.dims) >= PLANE:
        if len(lists["spatial"]) != 2:
            return None
        for old, new in (("spatial", "in"), ("kernel", "kernel"), ("stride", "stride"), ("padding", "padding")):
            values[f"{new}_h"], values[f"{new}_w"] = values.pop(old)
    return values if refused_by(row, values) is None else None


def demand_bounds(case: Case, runtime: Runtime, what: str) -> list[float]:
    """Demands that every result of a case is within its bound; their worst shares of it."""
    e, shares = case.expected, []
    for got, want, tolerance in zip(runtime.run(case), e.outputs, e.tolerances, strict=True):
        result = compare(got, want, tolerance, signed_zeros=e.signed_zeros)
        assert result.ok, f"{what}: {result.explain()}"
        shares.append(result.share)
    return shares


@pytest.mark.parametrize("data", ["normal", "integers", "special"])
@pytest.mark.only(where=convolves)
def test_edges(runtime: Runtime, entry: tuple[Op, str], data: str) -> None:
    row, which = entry
    counts = (1, 2) if "groups" in row.signature.dims else (2,)
    for (edge, lists), groups in itertools.product(EDGES.items(), counts):
        values = values_of(row, lists, groups)
        if values is None:
            continue
        case = build_case(row, values, {}, generator("edge", edge), data=data, which=which)
        demand_bounds(case, runtime, edge)


@pytest.mark.only(where=convolves)
def test_one_number_that_is_not_finite(runtime: Runtime, entry: tuple[Op, str]) -> None:
    """It meets the zeros of the padding, too."""
    op, which = entry
    drawn = [(seed, "small") for seed in range(3)] + [(i, "path") for i in path_seeds(op, runtime.device)]
    for seed, size in drawn:
        case, rng = draw_case(op.name, seed, "normal", size, which), generator("not finite", seed)
        for name, x in case.inputs.items():
            if x is None or not x.size:
                continue
            other = np.array(x)
            other.flat[rng.integers(x.size)] = rng.choice([np.inf, -np.inf, np.nan])
            demand_bounds(
                replace(case, inputs={**case.inputs, name: other}), runtime, f"{op.name} {which} {seed}, {name}"
            )


@pytest.mark.only(where=lambda row: convolves(row) and "groups" in row.signature.dims)
@pytest.mark.parametrize("image", [[5, 5], [9, 40]], ids=str)
@pytest.mark.parametrize("number", [np.inf, -np.inf, np.nan])
def test_a_channel_of_its_own_with_one_weight_that_is_not_finite(
    runtime: Runtime, row: Op, number: float, image: list[int]
) -> None:
    """Each of the kernel's weights in turn."""
    values = values_of(row, sizes(2, (1, 1), image, [3, 3], [1, 1], [1, 1]), 40)
    case = build_case(row, values, {}, generator("one"))
    for i in range(9):
        w = np.array(case.inputs["w"])
        w.reshape(40, 9)[i, i] = number
        demand_bounds(replace(case, inputs={**case.inputs, "w": w}), runtime, f"{row.name} {number} {i}")


@pytest.mark.only(where=convolves)
def test_an_image_does_not_see_its_batch(runtime: Runtime, row: Op) -> None:
    values = values_of(row, sizes(5, (33, 17), [13, 9], [3, 3], [2, 2], [1, 1]))
    whole = build_case(row, values, {}, generator("batch"), which="vjp")
    forward = build_case(row, values, whole.inputs, generator("batch"))
    out, (gx, *_) = runtime.run(forward)[0], runtime.run(whole)
    for n in range(5):
        given = {**whole.inputs, "x": whole.inputs["x"][n : n + 1], "g": whole.cotangents["g"][n : n + 1]}  # type: ignore[index]
        alone = {k: v for k, v in given.items() if k != "g"}
        one = build_case(row, values | {"batch": 1}, alone, generator("batch"))
        np.testing.assert_array_equal(runtime.run(one)[0], out[n : n + 1])
        one = build_case(row, values | {"batch": 1}, given, generator("batch"), which="vjp")
        np.testing.assert_array_equal(runtime.run(one)[0], gx[n : n + 1])


@pytest.mark.operations("conv")
@pytest.mark.parametrize("channels", [(0,), (40,), (95,), (0, 95), (0, 40, 95)])
def test_some_segments_of_an_inner_dimension_cannot_be_split(runtime: Runtime, channels: tuple[int, ...]) -> None:
    """A path of conv is one that Hopper's kernels cut into three segments of 32 channels each, added in a row; too
    small a value makes them compute a segment without tensor cores."""
    if not runtime.device.is_cuda and len(channels) < 3:
        pytest.skip("the CPU path has no segments: all three at once are enough")
    row = registry.get("conv")
    values = next(p for p in row.drawing.paths if p["in_channels"] == 96)
    whole = build_case(row, values, {}, generator("segments"))
    x = np.array(whole.inputs["x"])
    x[:, list(channels)] = 2.0**-110
    case = build_case(row, values, {**whole.inputs, "x": x}, generator("segments"))
    demand_bounds(case, runtime, "segments")


@pytest.mark.operations("conv")
@pytest.mark.parametrize(("spatial", "kernel", "step"), [([1, 992], [1, 31], 3900), ([31, 1], [31, 1], 2**22 - 97)])
def test_padding_far_beyond_the_image(runtime: Runtime, spatial: list[int], kernel: list[int], step: int) -> None:
    """Positions whose distance from the image has no 32 bits read nothing, and leave the others of their tile as they are."""
    batch, c, rows, width = 2, 30, 40, spatial[1]
    padding = (2**31 // width // step + 1) * step
    draw = generator("far padding")
    sizes = (batch * c * math.prod(spatial), rows * c * math.prod(kernel), rows)
    given = [runtime.device.buffer(draw.normal(size=n).astype(np.float32)) for n in sizes]
    near, out = (
        kernels.conv(*given, batch, c, spatial, rows, kernel, [stride, width], [far, 0]).numpy()
        for stride, far in ((1, 0), (step, padding))
    )
    lines, image = out.reshape(batch, rows, -1), padding // step
    assert (np.delete(lines, image, axis=2) == given[2].numpy()[None, :, None]).all()
    np.testing.assert_allclose(lines[:, :, image], near.reshape(batch, rows), rtol=0, atol=1e-3)


def test_convolutions_are_found() -> None:
    assert [r.name for r in registry.ops("conv") if not convolves(r)] == []
    for row in registry.ops("conv"):  # each edge is some row's
        assert sum(values_of(row, edge) is not None for edge in EDGES.values()) >= 3
    assert all(any(values_of(row, edge) is not None for row in registry.ops("conv")) for edge in EDGES.values())


@pytest.mark.operations("conv_grouped", "conv_transpose_grouped")
@pytest.mark.parametrize("name", ["conv_grouped", "conv_transpose_grouped"])
def test_groups_of_one_are_the_plain_rows(runtime: Runtime, name: str) -> None:
    """Without dilation, and with one padding on both sides, a single group has the bits of the row without groups."""
    row, plain = registry.get(name), registry.get(name.removesuffix("_grouped"))
    lists = sizes(2, (17, 33), [13, 9], [3, 2], [2, 1], [1, 1])
    values = {n: v for n, v in lists.items() if n != "padding"} | {"groups": 1, "dilation": [1, 1]}
    values |= {"padding_low": [1, 1], "padding_high": [1, 1]}
    if "transpose" in name:
        values["output_padding"] = [0, 0]
    for which in ("forward", "vjp"):
        want = build_case(plain, lists, {}, generator("one group"), which=which)
        arrays = {**want.inputs, **{n: np.asarray(g)[:, None] for n, g in want.cotangents.items()}}
        arrays |= {"x": want.inputs["x"][:, None], "w": want.inputs["w"][None], "b": want.inputs["b"][None]}  # type: ignore[index]
        case = build_case(row, values, arrays, generator("one group"), which=which)
        for got, expected in zip(runtime.run(case), runtime.run(want), strict=True):
            np.testing.assert_array_equal(got.reshape(expected.shape), expected)


@pytest.mark.operations("conv_grouped", "conv_transpose_grouped")
@pytest.mark.parametrize("which", ["forward", "vjp"])
@pytest.mark.parametrize("name", ["conv_grouped", "conv_transpose_grouped"])
def test_long_lines_of_few_channels(runtime: Runtime, name: str, which: str) -> None:
    """They are cut into tiles, the last of which is shorter."""
    row, tiles = registry.get(name), (256, 4096)
    for n in sorted({n for tile in tiles for n in (tile, tile + 1, 2 * tile + 3)}):
        values: dict[str, Any] = {
            "batch": 1,
            "groups": 2,
            "in_channels": 1,
            "out_channels": 1,
            "spatial": [n],
            "kernel": [2],
        }
        values |= {"stride": [1], "dilation": [1], "padding_low": [1], "padding_high": [0]}
        if "transpose" in name:
            values["output_padding"] = [0]
        case = build_case(row, values, {}, generator("long lines", n), which=which)
        demand_bounds(case, runtime, f"{name} {which} {n}")


@pytest.mark.parametrize("size", [f for name, f in shapes.FUNCTIONS.items() if re.fullmatch(r"conv\w*_size", name)])
def test_sizes_are_total(size: Any) -> None:
    """No argument below 2^32 divides by zero or leaves 0 .. 2^32."""
    count = len(inspect.signature(size).parameters)
    for axis in itertools.product((0, 1, 2, 3, 2**31, 2**32 - 1) if count == 4 else (0, 1, 3, 2**32 - 1), repeat=count):
        assert 0 <= size(*axis) <= 2**32


@pytest.mark.operations("conv")
@pytest.mark.parametrize("variant", cpu_variants())
def test_a_sum_next_to_midway_is_rounded_once(variant: str) -> None:
    """x + w·y just beside the middle of two neighbours, normal and subnormal: float64 would round to the middle, then to even."""
    n, few = 40, 2.0**-23
    for bits, exponent in [(23, 0), (23, -100), (23, -148), *((k, -149) for k in range(8, 24, 3))]:
        least = 2.0**exponent
        x = np.ldexp(2.0**bits + 1 + 2 * np.arange(n), exponent).astype(np.float32)
        for sign in (1, -1):
            with cpu_settings(variant, 1):
                dev = tlrt.device("cpu", math="fast")
                y = np.full(n, sign * (1 + few) * 2.0 ** (exponent // 2), np.float32)
                weights = np.array([1, (1 - few) * least / 2 / 2.0 ** (exponent // 2)], np.float32)
                given = [dev.buffer(a) for a in (np.concatenate([x, y]), weights, np.zeros(1, np.float32))]
                out = kernels.conv(*given, 1, 2, [n], 1, [1], [1], [0]).numpy()
            assert np.array_equal(out, x), (bits, exponent, sign)
