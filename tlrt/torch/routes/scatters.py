"""Sums at places that are known from shapes, and what is made of rows that are named."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from tlrt.torch.routes.base import aten, original, route


def add_along(values: Any, axis: int, place: Any, length: int) -> Any:
    """An axis of a length, of zeros and of the values added at their places, in order."""
    shape = list(values.shape)
    shape[axis] = length
    return values.new_zeros(shape).index_add(axis, place, values)


def positions(n: int, like: Any) -> Any:
    return torch.arange(n, device=like.device)


@route(aten.unfold_backward.default)
def unfold_backward(g: Any, shape: Sequence[int], axis: int, size: int, step: int) -> Any:
    if not shape:
        return g.reshape(())
    axis %= len(shape)
    windows = g.shape[axis]
    place = positions(windows, g)[:, None] * step + positions(size, g)
    values = g.movedim(-1, axis + 1).flatten(axis, axis + 1)
    return add_along(values, axis, place.flatten(), shape[axis])


@route(aten.bincount.default)
def bincount(x: Any, weights: Any = None, minlength: int = 0) -> Any:
    counts = original(aten.bincount.default, (x, None, minlength), {})
    return weights.new_zeros(counts.shape).index_add(0, x.long(), weights) if x.numel() else counts


# ---- padding: each axis on its own --------------------------------------------------------------------------------------


def _pad_backward(g: Any, x: Any, padding: Sequence[int], reflect: bool) -> Any:
    for k in range(len(padding) // 2):
        axis = x.dim() - 1 - k
        n = x.shape[axis]
        place = positions(g.shape[axis], g) - padding[2 * k]
        if reflect:
            place = place.abs()
            place = (n - 1) - ((n - 1) - place).abs()
        g = add_along(g, axis, place.clamp(0, n - 1), n)
    return g.contiguous()


@route(*(getattr(aten, f"reflection_pad{d}d_backward").default for d in (1, 2, 3)))
def reflection_pad_backward(g: Any, x: Any, padding: Sequence[int]) -> Any:
    return _pad_backward(g, x, padding, True)


@route(*(getattr(aten, f"replication_pad{d}d_backward").default for d in (1, 2, 3)))
def replication_pad_backward(g: Any, x: Any, padding: Sequence[int]) -> Any:
    return _pad_backward(g, x, padding, False)


# ---- columns of images ------------------------------------------------------------------------------------------------------


@route(aten.col2im.default)
def col2im(
    x: Any, size: Sequence[int], kernel: Sequence[int], dilation: Sequence[int], padding: Sequence[int],
    stride: Sequence[int],
) -> Any:  # fmt: skip
    reach = [d * (k - 1) + 1 for d, k in zip(dilation, kernel, strict=True)]
    counts = [(n + 2 * p - r) // s + 1 for n, p, r, s in zip(size, padding, reach, stride, strict=True)]
    cells, windows = kernel[0] * kernel[1], counts[0] * counts[1]
    if x.dim() not in (2, 3) or min(counts) < 1 or x.shape[-2] % cells or x.shape[-1] != windows or not x.numel():
        raise NotImplementedError("col2im of columns that fit no image")
    found = x.unflatten(-2, (-1, *kernel)).unflatten(-1, counts)
    # (..., kernel_h, kernel_w, out_h, out_w): the windows' columns are added up first, then their rows
    for k in (1, 0):
        paired = found.movedim(-1, -2) if k else found
        axis = paired.dim() - 3
        place = positions(kernel[k], x)[:, None] * dilation[k] + positions(counts[k], x) * stride[k]
        sums = add_along(paired.flatten(axis, axis + 1), axis, place.flatten(), size[k] + 2 * padding[k])
        sums = sums.narrow(axis, padding[k], size[k])
        found = sums.movedim(axis, -1) if k else sums
    return found.contiguous()
