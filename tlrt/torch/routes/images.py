"""Interpolation of images: coordinates and weights are made by one operation after the other, each rounded once; elements are
chosen by whole numbers, and gradients added in their order."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from typing import Any

import numpy as np
import torch
from torch._prims_common import suggest_memory_format

from tlrt.torch.routes.base import aten, original, route
from tlrt.torch.routes.scatters import add_along, positions

# ---- weights along an axis -------------------------------------------------------------------------------------------------


def _scale(given: float | None, n: int, out: int) -> float:
    """The step between the sources of neighbours, a number of float32 as PyTorch has it."""
    if given is not None and given > 0:
        return float(np.float32(1.0 / given))
    return float(np.float32(n) / np.float32(out))


def _cubic(t: Any) -> list[Any]:
    """Keys' weights of four neighbours, a = -0.75, the second at a distance t before."""
    a = -0.75

    def near(x: Any) -> Any:
        return ((a + 2) * x - (a + 3)) * x * x + 1

    def far(x: Any) -> Any:
        return ((a * x - 5 * a) * x + 8 * a) * x - 4 * a

    return [far(t + 1), near(t), near(1 - t), far(2 - t)]


def _taps(like: Any, n: int, out: int, align: bool, given: float | None, cubic: bool) -> tuple[Any, Any]:
    """The places (out, taps) and weights of the elements that each result is made of."""
    i = positions(out, like).to(torch.float32)
    if align:
        source = i * float(np.float32(n - 1) / np.float32(out - 1) if out > 1 else 0)
    else:
        source = (i + 0.5) * _scale(given, n, out) - 0.5
        source = source if cubic else source.clamp_min(0)
    first = source.floor()
    t = source - first
    place = first.to(torch.int64)[:, None] + positions(4 if cubic else 2, like) - (1 if cubic else 0)
    return place.clamp(0, n - 1), torch.stack(_cubic(t) if cubic else [1 - t, t], 1)


def _antialiased(like: Any, n: int, out: int, align: bool, given: float | None, cubic: bool) -> tuple[Any, Any]:
    """The same, where a result that stands for many elements is their weighted mean."""
    if align:
        scale = float(np.float32(n - 1) / np.float32(out - 1)) if out > 1 else 0.0
    else:
        scale = _scale(given, n, out)
    reach = float(np.float32((2 if cubic else 1) * np.float32(max(scale, 1.0))))
    inverse = float(np.float32(1) / np.float32(scale)) if scale >= 1 else 1.0
    centre = (positions(out, like).to(torch.float32) + 0.5) * scale
    first = (centre - reach + 0.5).to(torch.int64).clamp_min(0)[:, None]
    last = (centre + reach + 0.5).to(torch.int64).clamp_max(n)[:, None]
    place = first + positions(int(np.ceil(reach)) * 2 + 1, like)
    x = ((place - centre[:, None] + 0.5) * inverse).abs()
    if cubic:
        a = -0.5
        w = torch.where(x < 1, ((a + 2) * x - (a + 3)) * x * x + 1,
                        torch.where(x < 2, (((x - 5) * x + 8) * x - 4) * a, 0.0))  # fmt: skip
    else:
        w = (1 - x).clamp_min(0)
    w = torch.where(place < last, w, 0.0)
    return place.clamp_max(n - 1), w / w.sum(1, keepdim=True)


@cache
def _kept(taps: Any, device: Any, *shape: Any) -> tuple[Any, Any]:
    """They are the same for all images of a shape; another stream may take them at once."""
    with torch.inference_mode(False), torch.no_grad():
        made = taps(torch.empty(0, device=device), *shape)
    if device.type == "cuda":
        torch.cuda.current_stream(device).synchronize()
    return made


def _made(taps: Any, like: Any, *shape: Any) -> tuple[Any, Any]:
    """Of a captured stream they belong to the graph, which computes them at its replay."""
    if like.is_cuda and torch.cuda.is_current_stream_capturing():
        return taps(like, *shape)
    return _kept(taps, like.device, *shape)


def _by_axis(w: Any, x: Any, axis: int) -> Any:
    return w.view([-1 if d == axis else 1 for d in range(x.dim())])


def _resize(x: Any, axis: int, place: Any, w: Any) -> Any:
    y = None
    for k in range(place.shape[1]):
        term = x.index_select(axis, place[:, k]) * _by_axis(w[:, k], x, axis)
        y = term if y is None else y + term
    return y


def _resize_backward(g: Any, axis: int, place: Any, w: Any, n: int) -> Any:
    terms = torch.stack([g * _by_axis(w[:, k], g, axis) for k in range(place.shape[1])], axis + 1)
    return add_along(terms.flatten(axis, axis + 1), axis, place.flatten(), n)


def _formatted(y: Any, like: Any) -> Any:
    return y.contiguous(memory_format=suggest_memory_format(like))


def _check(x: Any, out: Sequence[int]) -> None:
    if x.dim() != len(out) + 2 or not x.numel() or min(out) < 1:
        raise NotImplementedError("images without elements")


def _register(name: str, rank: int, taps: Any, cubic: bool, copies: bool = True) -> None:
    """`copies`: an axis that keeps its length is copied, whatever scale is given, as PyTorch has it."""

    def is_resampled(n: int, out: int, given: float | None) -> bool:
        return n != out or (given is not None and not copies)

    def forward(x: Any, out: Sequence[int], align: bool, *scales: float | None) -> Any:
        _check(x, out)
        y = x
        for k in reversed(range(rank)):
            given = scales[k] if k < len(scales) else None
            if is_resampled(x.shape[2 + k], out[k], given):
                y = _resize(y, 2 + k, *_made(taps, x, x.shape[2 + k], out[k], align, given, cubic))
        return _formatted(y.clone() if y is x else y, x)

    def backward(g: Any, out: Sequence[int], shape: Sequence[int], align: bool, *scales: float | None) -> Any:
        _check(g, out)
        gx = g
        for k in range(rank):
            given = scales[k] if k < len(scales) else None
            if is_resampled(shape[2 + k], out[k], given):
                place, w = _made(taps, g, shape[2 + k], out[k], align, given, cubic)
                gx = _resize_backward(gx, 2 + k, place, w, shape[2 + k])
        return _formatted(gx.clone() if gx is g else gx, g)

    route(getattr(aten, name).default)(forward)
    route(getattr(aten, f"{name}_backward").default)(backward)


for _name, _rank in (("linear1d", 1), ("bilinear2d", 2), ("trilinear3d", 3)):
    _register(f"upsample_{_name}", _rank, _taps, False)
_register("upsample_bicubic2d", 2, _taps, True, copies=False)
_register("_upsample_bilinear2d_aa", 2, _antialiased, False)
_register("_upsample_bicubic2d_aa", 2, _antialiased, True)


def _nearest(like: Any, n: int, out: int, given: float | None, shift: float) -> Any:
    """The element that each result copies."""
    i = positions(out, like).to(torch.float32)
    return ((i + shift) * _scale(given, n, out)).floor().to(torch.int64).clamp_max(n - 1)


@cache
def _follows_lengths(n: int, out: int, given: float | None) -> bool:
    """Whether a given scale chooses the elements that the lengths choose."""
    return torch.equal(*(_nearest(torch.empty(0), n, out, scale, 0.0) for scale in (given, None)))


def _register_nearest(rank: int) -> None:
    """PyTorch's kernels of some ranks, layouts and devices pass over a given scale where the length stays or doubles."""
    operator = getattr(aten, f"upsample_nearest{rank}d").default

    def forward(x: Any, out: Sequence[int], *scales: float | None) -> Any:
        _check(x, out)
        axes = [(n, out[k], scales[k] if k < len(scales) else None) for k, n in enumerate(x.shape[2:])]
        if all(_follows_lengths(*axis) for axis in axes):
            return original(operator, (x, out, *scales), {})
        y = x
        for k, axis in enumerate(axes):
            y = y.index_select(2 + k, _nearest(x, *axis, 0.0))
        return _formatted(y, x)

    route(operator)(forward)


def _nearest_backward(shift: float) -> Any:
    def backward(g: Any, out: Sequence[int], shape: Sequence[int], *scales: float | None) -> Any:
        _check(g, out)
        gx = g
        for k, n in enumerate(shape[2:]):
            given = scales[k] if k < len(scales) else None
            gx = add_along(gx, 2 + k, _nearest(g, n, out[k], given, shift), n)
        return _formatted(gx, g)

    return backward


for _rank in (1, 2, 3):
    _register_nearest(_rank)
    route(getattr(aten, f"upsample_nearest{_rank}d_backward").default)(_nearest_backward(0))
    route(getattr(aten, f"_upsample_nearest_exact{_rank}d_backward").default)(_nearest_backward(0.5))

# ---- grids of coordinates ----------------------------------------------------------------------------------------------------
_BILINEAR, _NEAREST, _BICUBIC = range(3)
_ZEROS, _BORDER, _REFLECTION = range(3)


def _reflected(c: Any, low: int, high: int) -> tuple[Any, Any]:
    """A coordinate thrown back at both ends, which are halves of the numbers, and the sign of its derivative."""
    if low == high:
        return torch.zeros_like(c), torch.zeros_like(c)
    least, span = low / 2, (high - low) / 2
    away = c - least
    size = away.abs()
    rest = size.fmod(span)
    is_even = (size / torch.full_like(size, span)).floor().fmod(2) == 0
    sign = torch.where(away < 0, -1.0, 1.0)
    return torch.where(is_even, rest + least, (span - rest) + least), torch.where(is_even, sign, -sign)


def _padded(c: Any, n: int, padding: int, align: bool) -> tuple[Any, Any]:
    """A coordinate inside where the padding has it there, and its derivative."""
    slope = torch.ones_like(c)
    if padding == _ZEROS:
        return c, slope
    if padding == _REFLECTION:
        c, slope = _reflected(c, 0, 2 * (n - 1)) if align else _reflected(c, -1, 2 * n - 1)
    return c.clamp(0, n - 1), torch.where((c <= 0) | (c >= n - 1), 0.0, slope)


class _Axis:
    """The taps of an axis of a grid: places (taps of (N, points)), whether they stand inside, weights, and the derivatives of the
    weights by the grid's coordinate."""

    def __init__(self, c: Any, n: int, mode: int, padding: int, align: bool) -> None:
        source = (c + 1) * ((n - 1) / 2) if align else ((c + 1) * n - 1) / 2
        slope: Any = (n - 1) / 2 if align else n / 2
        if mode != _BICUBIC:
            source, inner = _padded(source, n, padding, align)
            slope = inner * slope
        # no whole number holds what lies further out
        source = torch.where(source.isfinite(), source, -100.0).clamp(-(2.0**30), 2.0**30)
        if mode == _NEAREST:
            taps, self.weights, self.slopes = [source.round()], [torch.ones_like(source)], [torch.zeros_like(source)]
        else:
            first = source.floor()
            t = source - first
            if mode == _BICUBIC:
                taps = [_padded(first + k, n, padding, align)[0] for k in (-1, 0, 1, 2)]
                self.weights, self.slopes = _cubic(t), [s * slope for s in self._cubic_slopes(t)]
            else:
                taps, self.weights, self.slopes = [first, first + 1], [1 - t, t], [-slope, slope]
        self.inside = [(k >= 0) & (k < n) for k in taps]
        self.places = [k.clamp(0, n - 1).to(torch.int64) for k in taps]

    @staticmethod
    def _cubic_slopes(t: Any) -> list[Any]:
        a = -0.75

        def near(x: Any) -> Any:
            return (3 * (a + 2) * x - 2 * (a + 3)) * x

        def far(x: Any) -> Any:
            return (3 * a * x - 10 * a) * x + 8 * a

        return [far(t + 1), near(t), -near(1 - t), -far(2 - t)]


def _axes(x: Any, grid: Any, mode: int, padding: int, align: bool) -> list[_Axis]:
    """The last axis of images is the first number of the grid."""
    d = grid.shape[-1]
    if x.dim() != d + 2 or not x.numel() or not grid.numel() or (mode == _BICUBIC and d != 2):
        raise NotImplementedError("grid_sample of such operands")
    points = grid.flatten(1, -2)
    return [_Axis(points[..., d - 1 - k], x.shape[2 + k], mode, padding, align) for k in range(d)]


def _combinations(axes: list[_Axis], shape: Sequence[int]) -> Any:
    """For each choice of taps: the taps, the place among all elements, and whether it stands inside."""
    for choice in np.ndindex(*(len(a.places) for a in axes)):
        place, inside = None, None
        for a, k, n in zip(axes, choice, shape, strict=True):
            place = a.places[k] if place is None else place * n + a.places[k]
            inside = a.inside[k] if inside is None else inside & a.inside[k]
        yield choice, place, inside


def _product(factors: list[Any]) -> Any:
    found = factors[0]
    for f in factors[1:]:
        found = found * f
    return found


@route(aten.grid_sampler_2d.default, aten.grid_sampler_3d.default)
def grid_sampler(x: Any, grid: Any, mode: int, padding: int, align: bool) -> Any:
    axes = _axes(x, grid, mode, padding, align)
    flat = x.flatten(2)
    y: Any = None
    for choice, place, inside in _combinations(axes, x.shape[2:]):
        taken = flat.gather(2, place[:, None].expand(-1, x.shape[1], -1))
        w = _product([a.weights[k] for a, k in zip(axes, choice, strict=True)])
        term = torch.where(inside[:, None], taken * w[:, None], 0.0)
        y = term if y is None else y + term
    return y.view(*x.shape[:2], *grid.shape[1:-1])


@route(aten.grid_sampler_2d_backward.default, aten.grid_sampler_3d_backward.default)
def grid_sampler_backward(
    g: Any, x: Any, grid: Any, mode: int, padding: int, align: bool, want: Sequence[bool]
) -> tuple[Any, Any]:
    axes = _axes(x, grid, mode, padding, align)
    flat, above = x.flatten(2), g.flatten(2)
    places, terms = [], []
    slopes: list[Any] = [None] * len(axes)
    for choice, place, inside in _combinations(axes, x.shape[2:]):
        chosen = list(zip(axes, choice, strict=True))
        index = place[:, None].expand(-1, x.shape[1], -1)
        if want[0]:
            w = _product([a.weights[k] for a, k in chosen])
            places.append(place)
            terms.append(torch.where(inside[:, None], above * w[:, None], 0.0))
        if want[1] and mode != _NEAREST:
            by_channel = torch.where(inside[:, None], flat.gather(2, index) * above, 0.0).sum(1)
            for j in range(len(axes)):
                w = _product([a.slopes[k] if i == j else a.weights[k] for i, (a, k) in enumerate(chosen)])
                term = by_channel * w
                slopes[j] = term if slopes[j] is None else slopes[j] + term
    gx = ggrid = None
    if want[0]:
        place = torch.cat(places, 1)[:, None].expand(-1, x.shape[1], -1)
        gx = torch.zeros_like(flat).scatter_add(2, place, torch.cat(terms, 2)).view(x.shape)
    if want[1]:
        ggrid = torch.zeros_like(grid) if mode == _NEAREST else torch.stack(slopes[::-1], -1).view(grid.shape)
    return gx, ggrid


@route(aten.cudnn_grid_sampler.default)
def cudnn_grid_sampler(x: Any, grid: Any) -> Any:
    """Which PyTorch takes on a GPU for linear weights, zeros outside and aligned corners."""
    return grid_sampler(x, grid, 0, 0, True)


@route(aten.cudnn_grid_sampler_backward.default)
def cudnn_grid_sampler_backward(x: Any, grid: Any, g: Any) -> tuple[Any, Any]:
    return grid_sampler_backward(g, x, grid, 0, 0, True, (True, True))
