"""Values between elements: Resize, GridSample, RoiAlign. Where to look is decided on the host, in float64."""

from __future__ import annotations

import itertools
import math
import operator as operator_
from collections.abc import Callable
from functools import reduce
from typing import Any, Literal

import numpy as np

from tlrt.onnx.graph import Host, NotExpressible, Run, Tensor, Value, is_float, operator
from tlrt.onnx.host import ints

#: a coordinate that is halfway, or between elements, as a place
_NEAREST: dict[str, Callable[[Host], Host]] = {
    "round_prefer_floor": lambda x: np.ceil(x - 0.5), "round_prefer_ceil": lambda x: np.floor(x + 0.5),
    "floor": np.floor, "ceil": np.ceil,
}  # fmt: skip
_COORDINATES = Literal[
    "half_pixel", "half_pixel_symmetric", "pytorch_half_pixel", "align_corners", "asymmetric", "tf_crop_and_resize"
]


def _cubic(distance: Host, a: float) -> Host:
    """The weight of an element at a distance, of the cubic convolution with the coefficient a."""
    d = np.abs(distance)
    near, far = ((a + 2) * d - (a + 3)) * d * d + 1, ((a * d - 5 * a) * d + 8 * a) * d - 4 * a
    return np.where(d <= 1, near, np.where(d < 2, far, 0.0))


def _linear(distance: Host) -> Host:
    return np.maximum(1 - np.abs(distance), 0.0)


@operator("Resize")
def resize(
    run: Run, x: Value, roi: Host = None, scales: Host = None, sizes: Host = None, *,
    mode: Literal["nearest", "linear", "cubic"] = "nearest", coordinate_transformation_mode: _COORDINATES = "half_pixel",
    nearest_mode: str = "round_prefer_floor", cubic_coeff_a: float = -0.75, exclude_outside: int = 0,
    extrapolation_value: float = 0.0, antialias: int = 0, axes: Any = None,
    keep_aspect_ratio_policy: Literal["stretch", "not_larger", "not_smaller"] = "stretch",
) -> Value:  # fmt: skip
    """One axis after the other, in the order that the standard's names have."""
    places = list(range(x.ndim)) if axes is None else [a % x.ndim for a in axes]
    crop = coordinate_transformation_mode == "tf_crop_and_resize"
    region = roi.astype(np.float64).reshape(2, -1) if crop else np.repeat([[0.0], [1.0]], len(places), 1)
    lengths = np.asarray([x.shape[a] for a in places])
    if sizes is not None and sizes.size:
        factors = sizes / lengths
        if keep_aspect_ratio_policy != "stretch":
            factors[:] = factors.min() if keep_aspect_ratio_policy == "not_larger" else factors.max()
        targets = np.floor(factors * lengths + 0.5)
    else:
        factors = scales.astype(np.float64)
        exact = lengths * (region[1] - region[0]) * factors
        targets = np.floor(exact)
        if (
            np.floor(exact.astype(np.float32)) != targets
        ).any():  # 10 times 0.7: the reference has 6 elements, runtimes have 7
            raise NotExpressible(
                f"lengths {exact.tolist()}, whose whole parts rounding decides: sizes in place of scales say them"
            )
    for k, axis in enumerate(places):
        n, target, factor = int(lengths[k]), int(targets[k]), float(factors[k])
        if target == n and factor == 1 and not crop:
            continue
        at = _coordinates(np.arange(target), n, target, factor, region[:, k], coordinate_transformation_mode)
        if mode == "nearest" or target == 0:
            y = _taken(x, np.clip(_NEAREST[nearest_mode](at), 0, n - 1).astype(np.int64), axis)
        elif not is_float(x):
            raise NotExpressible("Resize of integers between elements")
        else:
            wide = max(1.0, 1 / factor) if antialias else 1.0
            taps, weights = _taps(at, n, mode, wide, cubic_coeff_a, exclude_outside)
            y = _weighted(run, x, taps, weights, axis)
        outside = (at < 0) | (at > n - 1) if crop else np.zeros(target, np.bool_)
        x = _replaced(run, y, outside, axis, extrapolation_value) if outside.any() else y
    return x


def _coordinates(k: Host, n: int, target: int, factor: float, region: Host, how: str) -> Host:
    """Where the places k of the result are in the original."""
    start, end = region
    width = (
        factor * n if how != "tf_crop_and_resize" else factor * n * (end - start) if factor * n != target else target
    )
    if how == "asymmetric":
        return k / factor
    if how == "align_corners":
        return k * ((n - 1) / (width - 1)) if width != 1 and target > 1 else k * 0.0
    if how == "tf_crop_and_resize":
        middle = 0.5 * (start + end) * (n - 1)
        return start * (n - 1) + k * (end - start) * (n - 1) / (width - 1) if target > 1 else k + middle
    if how == "pytorch_half_pixel" and target <= 1:
        return k * 0.0
    offset = n / 2 * (1 - target / width) if how == "half_pixel_symmetric" else 0.0
    return offset + (k + 0.5) / factor - 0.5


def _taps(at: Host, n: int, mode: str, wide: float, a: float, exclude: int) -> tuple[Host, Host]:
    """The places beside each coordinate and their weights; a filter may be wider than its elements, where it shrinks."""
    reach = math.ceil((2 if mode == "cubic" else 1) * wide)
    places = np.ceil(at).astype(np.int64)[:, None] + np.arange(-reach, reach)
    distances = (places - at[:, None]) / wide
    weights = _cubic(distances, a) if mode == "cubic" else _linear(distances)
    if exclude:
        weights = np.where((places < 0) | (places >= n), 0.0, weights)
    if exclude or wide > 1:
        total = weights.sum(1, keepdims=True)
        weights = weights / np.where(total == 0, 1.0, total)
    used = (weights != 0).any(0)
    return np.clip(places, 0, n - 1)[:, used], weights[:, used]


def _taken(x: Value, places: Host, axis: int) -> Value:
    return (
        x.take(places, axis=axis)
        if is_float(x)
        else np.take(x.numpy() if not isinstance(x, np.ndarray) else x, places, axis)
    )


def _along(run: Run, values: Host, ndim: int, axis: int) -> Tensor:
    return run.tensor(np.asarray(values).reshape([-1 if k == axis else 1 for k in range(ndim)]))


def _weighted(run: Run, x: Tensor, taps: Host, weights: Host, axis: int) -> Tensor:
    """The sum of the elements at the taps of each place by their weights. An element of weight 0 is not looked at."""
    total = None
    for t in range(taps.shape[1]):
        part = x.take(taps[:, t], axis=axis)
        unused = weights[:, t] == 0
        part = _replaced(run, part, unused, axis, 0.0) if unused.any() else part
        part = part * _along(run, weights[:, t], x.ndim, axis)
        total = part if total is None else total + part
    return total


def _replaced(run: Run, y: Value, where: Host, axis: int, value: float) -> Value:
    if not is_float(y):
        shape = [-1 if k == axis else 1 for k in range(y.ndim)]
        return np.where(where.reshape(shape), np.asarray(value).astype(y.dtype), y)
    return y.masked_fill(_along(run, where, y.ndim, axis), value)


# ---- samples at given places


@operator("GridSample")
def grid_sample(
    run: Run, x: Tensor, grid: Tensor, *, mode: Literal["linear", "bilinear", "nearest", "cubic", "bicubic"] = "linear",
    padding_mode: Literal["zeros", "border", "reflection"] = "zeros", align_corners: int = 0,
) -> Tensor:  # fmt: skip
    """The sum over the elements around each place, of every axis, by the product of their weights. Places are of the host in
    float64; in linear mode their gradient is that of the weights."""
    sizes, rank = x.shape[2:], x.ndim - 2
    at, reach = [], {"nearest": 0, "cubic": 2, "bicubic": 2}.get(mode, 1)
    spots = grid.numpy().astype(np.float64)
    for k, n in enumerate(sizes):
        given = spots[..., rank - 1 - k]
        place = (given + 1) / 2 * (n - 1) if align_corners else ((given + 1) * n - 1) / 2
        at.append(np.clip(place, -1e15, 1e15))  # infinite ones are outside
    if reach == 0:
        return _samples(run, x, [_inside(np.rint(c), n, padding_mode, align_corners) for c, n in zip(at, sizes)])
    total: Any = None
    for steps in itertools.product(range(1 - reach, reach + 1), repeat=rank):
        places, weights = [], []
        for k, (step, n) in enumerate(zip(steps, sizes)):
            place = np.floor(at[k]) + step
            places.append(_inside(place, n, padding_mode, align_corners))
            weight = _cubic(at[k] - place, -0.75) if reach == 2 else _linear(at[k] - place)
            weights.append(_with_slope(run, weight, grid, rank - 1 - k, step, n, align_corners if reach == 1 else None))
        product: Any = reduce(operator_.mul, weights)
        part = _samples(run, x, places) * product.reshape((x.shape[0], 1, *grid.shape[1:-1]))
        total = part if total is None else total + part
    return total


def _with_slope(run: Run, weight: Host, grid: Tensor, axis: int, step: int, n: int, align: int | None) -> Tensor:
    """A weight as a tensor, which changes with the grid where that has a gradient."""
    value = run.tensor(weight)
    if not grid.requires_grad:
        return value
    if align is None:
        raise NotExpressible("the gradient of a cubic GridSample by its grid")
    slope = (n - 1 if align else n) / 2 * (1 if step else -1)
    here = grid[(..., axis)]
    return value + (here - here.detach()) * slope


def _inside(places: Host, n: int, padding: str, align: int) -> Host:
    """Places in an axis of n elements; -1 for one whose value is 0."""
    places = np.nan_to_num(places, nan=-1.0)
    if padding == "border":
        return np.clip(places, 0, n - 1).astype(np.int64)
    if padding == "reflection":
        low, span = (0.0, n - 1) if align else (-0.5, n)
        if span == 0:
            return np.zeros(places.shape, np.int64)
        beyond = np.mod(places - low, 2 * span)
        places = low + np.minimum(beyond, 2 * span - beyond)
        return np.clip(np.rint(places), 0, n - 1).astype(np.int64)
    return np.where((places >= 0) & (places < n), places, -1).astype(np.int64)


def _samples(run: Run, x: Tensor, places: list[Host]) -> Tensor:
    """x[n, c, ...] at places (n, ...) of each axis; 0 where one is -1."""
    batch, channels, *sizes = x.shape
    seen = np.logical_and.reduce([p >= 0 for p in places])
    flat = np.zeros(places[0].shape, np.int64)
    for p, n in zip(places, sizes):
        flat = flat * n + np.maximum(p, 0)
    rows = np.arange(batch * channels).reshape(batch, channels, *[1] * (flat.ndim - 1)) * math.prod(sizes)
    found = x.flatten().take(rows + flat[:, None])
    return found if seen.all() else found.masked_fill(run.tensor(~seen[:, None]), 0.0)


@operator("AffineGrid")
def affine_grid(run: Run, theta: Tensor, size: Host, *, align_corners: int = 0) -> Tensor:
    """The standard's own definition by other operators fails at one sample, whose axis it squeezes away."""
    _, _, *lengths = ints(size)
    ends = [1.0 if align_corners else 1 - 1 / n for n in lengths]
    axes = [-e + 2 * e / max(n - 1, 1) * np.arange(n) for e, n in zip(ends, lengths, strict=True)]
    places = np.stack([*np.meshgrid(*axes, indexing="ij")[::-1], np.ones(lengths)], -1).reshape(-1, len(lengths) + 1)
    moved = run.tensor(places) @ theta.permute((0, 2, 1))
    return moved.reshape((theta.shape[0], *lengths, len(lengths)))


@operator("RoiAlign")
def roi_align(
    run: Run, x: Tensor, rois: Host, batches: Host, *, mode: Literal["avg"] = "avg", output_height: int = 1,
    output_width: int = 1, sampling_ratio: int = 0, spatial_scale: float = 1.0,
    coordinate_transformation_mode: Literal["half_pixel", "output_half_pixel"] = "half_pixel",
) -> Tensor:  # fmt: skip
    """The mean of samples in each bin of each region. A region has no gradient."""
    shift = 0.5 if coordinate_transformation_mode == "half_pixel" else 0.0
    corners = rois.astype(np.float64) * spatial_scale - shift
    out = []
    for (left, top, right, bottom), b in zip(corners.tolist(), ints(batches)):
        spans = [(top, bottom - top, output_height, x.shape[2]), (left, right - left, output_width, x.shape[3])]
        axes = [_bins(lo, span if shift else max(span, 1.0), bins, n, sampling_ratio) for lo, span, bins, n in spans]
        (ty, wy), (tx, wx) = axes
        plane = x[b].flatten().reshape((x.shape[1], -1))
        total: Any = None
        for i, j in itertools.product(range(2), range(2)):
            places = (ty[i][:, None] * x.shape[3] + tx[j]).reshape(-1)
            part = plane.take(places, axis=1) * run.tensor((wy[i][:, None] * wx[j]).reshape(1, -1))
            total = part if total is None else total + part
        grid = (x.shape[1], output_height, len(ty[0]) // output_height, output_width, len(tx[0]) // output_width)
        out.append(total.reshape(grid).mean(axis=(2, 4)))
    return run.session.stack(out) if out else run.session.zeros((0, x.shape[1], output_height, output_width))


def _bins(low: float, span: float, bins: int, n: int, ratio: int) -> tuple[list[Host], list[Host]]:
    """The two elements beside each sample of one axis, and their weights; a sample outside has none."""
    count = ratio if ratio > 0 else max(math.ceil(span / bins), 1)
    at = low + (np.arange(bins * count) + 0.5) * (span / (bins * count))
    outside = (at < -1.0) | (at > n) | ((span <= 0) & (ratio <= 0))
    at = np.clip(at, 0, n - 1)
    first = np.minimum(np.floor(at), n - 1).astype(np.int64)
    second = np.minimum(first + 1, n - 1)
    weights = [np.where(outside, 0.0, first + 1 - at), np.where(outside, 0.0, at - first)]
    return [first, second], weights
