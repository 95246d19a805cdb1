"""Bags of embeddings, and histograms: sums by place."""

from __future__ import annotations

import math
from typing import Any

import torch

from tlrt.torch.routes.base import aten, original, route
from tlrt.torch.routes.scatters import add_along

SUM, MEAN, MAX = range(3)


def _bags(indices: Any, offsets: Any, include_last: bool) -> tuple[Any, int]:
    """The bag of each index, and the number of bags."""
    starts = offsets[:-1] if include_last else offsets
    places = torch.arange(indices.numel(), device=indices.device, dtype=offsets.dtype)
    return torch.searchsorted(starts.contiguous(), places, right=True) - 1, starts.numel()


def _weights(indices: Any, padding: int, per_sample: Any) -> Any:
    """What each row is multiplied by: nothing counts of padding."""
    kept = (indices != padding).to(torch.float32)
    return kept if per_sample is None else torch.where(indices != padding, per_sample, 0.0)


@route(aten._embedding_bag.default, aten._embedding_bag_forward_only.default)
def embedding_bag(
    weight: Any,
    indices: Any,
    offsets: Any,
    scale_grad_by_freq: bool = False,
    mode: int = SUM,
    sparse: bool = False,
    per_sample_weights: Any = None,
    include_last_offset: bool = False,
    padding_idx: int = -1,
) -> Any:
    given = (
        weight,
        indices,
        offsets,
        scale_grad_by_freq,
        mode,
        sparse,
        per_sample_weights,
        include_last_offset,
        padding_idx,
    )
    if mode == MAX or not indices.numel():  # chooses
        return original(aten._embedding_bag.default, given, {})
    if offsets.is_cpu and offsets.numel() and (offsets[0] != 0 or offsets[-1] > indices.numel()):
        raise NotImplementedError("offsets that PyTorch refuses")
    bags, count = _bags(indices, offsets, include_last_offset)
    rows = weight.index_select(0, indices)
    if per_sample_weights is not None or padding_idx >= 0:
        rows = rows * _weights(indices, padding_idx, per_sample_weights)[:, None]
    found = add_along(rows, 0, bags, count)
    sizes = offsets.new_zeros(count).index_add(0, bags, (indices != padding_idx).to(offsets.dtype))
    if mode == MEAN:
        found = found / sizes.clamp(min=1)[:, None].to(torch.float32)
    return found, bags.to(offsets.dtype), sizes, torch.empty_like(sizes)


def _gradient_rows(g: Any, indices: Any, bags: Any, sizes: Any, mode: int, per_sample: Any, padding: int) -> Any:
    """What the gradient of each index's row is."""
    if mode == MEAN:
        g = g / sizes.clamp(min=1)[:, None].to(torch.float32)
    return g.index_select(0, bags) * _weights(indices, padding, per_sample)[:, None]


@route(aten._embedding_bag_dense_backward.default)
def embedding_bag_backward(
    g: Any,
    indices: Any,
    bags: Any,
    sizes: Any,
    maxima: Any,
    num_weights: int,
    scale_grad_by_freq: bool,
    mode: int,
    per_sample_weights: Any,
    padding_idx: int = -1,
) -> Any:
    sizes = sizes[: len(g)]  # behind them PyTorch has memory that nobody wrote
    into = g.new_zeros(num_weights, g.shape[1])
    if mode == MAX:
        chosen = sizes[:, None] > 0
        return into.scatter_add(0, torch.where(chosen, maxima, 0).to(torch.int64), torch.where(chosen, g, 0.0))
    rows = _gradient_rows(g, indices, bags, sizes, mode, per_sample_weights, padding_idx)
    if scale_grad_by_freq:
        rows = rows / torch.bincount(indices, minlength=num_weights)[indices][:, None].to(torch.float32)
    return into.index_add(0, indices, rows)


@route(aten._embedding_bag_backward.default)
def embedding_bag_any_backward(
    g: Any, indices: Any, offsets: Any, bags: Any, sizes: Any, maxima: Any, num_weights: int, scale: bool, mode: int,
    sparse: bool, per_sample_weights: Any, padding_idx: int = -1,
) -> Any:  # fmt: skip
    if not sparse:
        return embedding_bag_backward(
            g, indices, bags, sizes, maxima, num_weights, scale, mode, per_sample_weights, padding_idx
        )
    if mode == MAX or scale:
        raise NotImplementedError
    rows = _gradient_rows(g, indices, bags, sizes[: len(g)], mode, per_sample_weights, padding_idx)
    kept = indices != padding_idx
    return torch.sparse_coo_tensor(indices[kept][None], rows[kept], (num_weights, g.shape[1]), check_invariants=False)


@route(aten._embedding_bag_per_sample_weights_backward.default)
def embedding_bag_weights_backward(
    g: Any, weight: Any, indices: Any, offsets: Any, bags: Any, mode: int, padding_idx: int = -1
) -> Any:
    terms = (g.index_select(0, bags) * weight.index_select(0, indices)).sum(1)
    return torch.where(indices != padding_idx, terms, 0.0)


@route(aten.histc.default)
def histc(x: Any, bins: int = 100, min: float = 0, max: float = 0) -> Any:
    """Places are counted in integers, which no order changes."""
    if bins <= 0 or min > max or not math.isfinite(max - min):
        raise NotImplementedError
    flat = x.reshape(-1)
    if not flat.numel():
        return x.new_zeros(bins)
    low = torch.full((), float(min), dtype=x.dtype, device=x.device)
    high = torch.full((), float(max), dtype=x.dtype, device=x.device)
    if min == max:
        low, high = flat.min(), flat.max()
        if not bool((high - high == low - low).all()):
            raise NotImplementedError("a range that is not finite")
        same = low == high
        low, high = torch.where(same, low - 1, low), torch.where(same, high + 1, high)
    inside = (flat >= low) & (flat <= high)
    place = torch.where(inside, (flat - low) * bins / (high - low), 0.0).floor().clamp(max=bins - 1).to(torch.int64)
    counts = torch.zeros(bins, dtype=torch.int64, device=x.device)
    return counts.index_add(0, place, inside.to(torch.int64)).to(x.dtype)
