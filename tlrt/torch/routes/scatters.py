"""Scatters: sums in the order of the indices."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch

from tlrt.torch.routes.base import ROUTES, as_matrix, aten, route, run


def _add_rows(into: Any, rows: Any, values: Any) -> Any:
    """`into` plus `values`, row by row where `rows` says."""
    shape = into.shape
    flat = as_matrix(into, into.dim() - 1)
    index = rows.reshape(-1)
    index = torch.where(index < 0, index + shape[0], index)
    return run("scatter_add_rows", flat, values.reshape(index.numel(), flat.shape[1]), index).reshape(shape)


@route(aten.embedding_dense_backward.default)
def embedding_backward(g: Any, index: Any, count: int, padding: int, by_frequency: bool) -> Any:
    rows = as_matrix(g)
    flat = index.reshape(-1)
    if padding >= 0:
        rows = torch.where((flat == padding)[:, None], 0.0, rows)
    if by_frequency:
        rows = rows / torch.bincount(flat, minlength=count)[flat][:, None].to(rows.dtype)
    return _add_rows(g.new_zeros(count, g.shape[-1]), flat, rows)


def _places(shape: Sequence[int], axis: int, index: Any) -> Any:
    """The positions of the elements that an index along an axis names, in an array of the shape laid out row by row."""
    steps = [math.prod(shape[k + 1 :]) for k in range(len(shape))]
    place = index * steps[axis]
    for k, step in enumerate(steps):
        if k != axis:
            along = torch.arange(index.shape[k], device=index.device)
            place = place + (along * step).view([-1 if j == k else 1 for j in range(len(shape))])
    return place


@route(aten.scatter_add.default)
def scatter_add(x: Any, axis: int, index: Any, values: Any) -> Any:
    place = _places(x.shape, axis % x.dim(), index)
    taken = values[tuple(slice(0, n) for n in index.shape)]
    return run("scatter_add", x.reshape(-1), taken.reshape(-1), place.reshape(-1)).reshape(x.shape)


@route(aten.gather_backward.default if hasattr(aten, "gather_backward") else aten.scatter_add.default)
def gather_backward(g: Any, x: Any, axis: int, index: Any, sparse: bool) -> Any:
    return scatter_add(torch.zeros_like(x), axis, index, g)


ROUTES[aten.scatter_add.default] = scatter_add


@route(aten.index_add.default)
def index_add(x: Any, axis: int, index: Any, values: Any, *, alpha: float = 1) -> Any:
    axis %= x.dim()
    scaled = values if alpha == 1 else values * alpha
    return _add_rows(x.movedim(axis, 0), index, scaled.movedim(axis, 0)).movedim(0, axis)


def _put(x: Any, indices: Sequence[Any], values: Any, accumulate: bool) -> Any:
    """A sum where elements are named more than once, by the position of each."""
    dense = [i.nonzero(as_tuple=True) if i is not None and i.dtype == torch.bool else (i,) for i in indices]
    flat = [j for group in dense for j in group]
    at = [k for k, i in enumerate(flat) if i is not None]
    rest = [k for k in range(x.dim()) if k not in at]
    named = torch.broadcast_tensors(*(flat[k] for k in at))
    place = torch.zeros_like(named[0])
    for k, i in zip(at, named, strict=True):
        place = place * x.shape[k] + torch.where(i < 0, i + x.shape[k], i)
    # the axes of the indices stand first in the values, or in the place of neighbours that they are for
    before = at[0] if at[-1] - at[0] == len(at) - 1 else 0
    lengths = [x.shape[k] for k in rest]
    values = values.expand([*lengths[:before], *place.shape, *lengths[before:]])
    values = values.movedim(tuple(range(before, before + place.dim())), tuple(range(place.dim())))
    moved = x.permute(*at, *rest)
    whole = moved.reshape(math.prod(moved.shape[: len(at)]), *lengths)
    found = _add_rows(whole, place, as_matrix(values, len(rest))).reshape(moved.shape)
    return found.permute(sorted(range(x.dim()), key=[*at, *rest].__getitem__))


@route(aten.index_put.default, aten._unsafe_index_put.default)
def index_put(x: Any, indices: Any, values: Any, accumulate: bool = False) -> Any:
    return _put(x, indices, values, accumulate) if accumulate else aten.index_put(x, indices, values)
