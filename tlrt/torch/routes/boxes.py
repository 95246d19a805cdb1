"""torchvision's operators on boxes: those that do not overlap, and images in boxes."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

import torch

from tlrt.torch.routes.base import route_of_library
from tlrt.torch.routes.scatters import positions

#: pairs of boxes that are compared at a time
_PAIRS = 1 << 22


def _overlapping(boxes: Any, threshold: float) -> Any:
    """Which box (row) covers which (column) by more than a share of their union."""
    x1, y1, x2, y2 = boxes.unbind(1)
    areas = (x2 - x1) * (y2 - y1)
    parts = []
    for rows in positions(len(boxes), boxes).split(max(1, _PAIRS // len(boxes))):
        width = (torch.minimum(x2[rows, None], x2) - torch.maximum(x1[rows, None], x1)).clamp_min(0)
        height = (torch.minimum(y2[rows, None], y2) - torch.maximum(y1[rows, None], y1)).clamp_min(0)
        shared = width * height
        parts.append(shared / (areas[rows, None] + areas - shared) > threshold)
    return torch.cat(parts)


@route_of_library("torchvision::nms")
def nms(boxes: Any, scores: Any, iou_threshold: float) -> Any:
    if boxes.dim() != 2 or boxes.shape[1] != 4 or scores.dim() != 1 or len(boxes) != len(scores):
        raise NotImplementedError("no boxes with scores")
    if not len(boxes):
        return torch.empty(0, dtype=torch.int64, device=boxes.device)
    order = scores.sort(descending=True, stable=True)[1]
    covers = _overlapping(boxes[order], iou_threshold).triu(1)
    kept = torch.ones_like(order, dtype=torch.bool)
    while True:  # a box goes where one goes over it that stays; what the first k decide is final after k rounds
        found = ~(covers & kept[:, None]).any(0)
        if torch.equal(found, kept):
            return order[kept]
        kept = found


class _Bins:
    """The samples of one axis of each box: places (boxes, bins) and weights of their two neighbours, sample by sample."""

    def __init__(self, first: Any, last: Any, n: int, bins: int, samples: int, aligned: bool) -> None:
        length = last - first if aligned else (last - first).clamp_min(1)
        self.counts = torch.full_like(first, samples) if samples > 0 else (length / bins).ceil()
        self.most = samples if samples > 0 else max(int(self.counts.max()), 1)
        self._first, self._step, self._n = first, length / bins, n

    def taps(self, bins: int, sample: int) -> Iterator[tuple[Any, Any]]:
        inner = (self._step * (sample + 0.5) / self.counts.clamp_min(1))[:, None]
        at = self._first[:, None] + positions(bins, self._first) * self._step[:, None] + inner
        inside = (at >= -1) & (at <= self._n) & (sample < self.counts[:, None])
        at = torch.where(inside, at, 0.0).clamp_min(0)
        low = at.to(torch.int64).clamp_max(self._n - 1)
        share = torch.where(low >= self._n - 1, 0.0, at - low.to(at.dtype))
        yield low, torch.where(inside, 1 - share, 0.0)
        yield (low + 1).clamp_max(self._n - 1), torch.where(inside, share, 0.0)


def _samples(
    boxes: Any, scale: float, sizes: tuple[int, int], bins: tuple[int, int], samples: int, aligned: bool
) -> Any:
    """The number of samples in a bin of each box; and for each tap of each sample the rows, of all images one below the other,
    and weights."""
    places = boxes[:, 1:] * scale - (0.5 if aligned else 0.0)
    x1, y1, x2, y2 = places.unbind(1)
    down = _Bins(y1, y2, sizes[0], bins[0], samples, aligned)
    along = _Bins(x1, x2, sizes[1], bins[1], samples, aligned)
    image = boxes[:, 0].to(torch.int64)[:, None, None] * (sizes[0] * sizes[1])

    def each() -> Iterator[tuple[Any, Any]]:
        for i in range(down.most):
            for y, wy in down.taps(bins[0], i):
                for j in range(along.most):
                    for x, wx in along.taps(bins[1], j):
                        yield image + y[:, :, None] * sizes[1] + x[:, None, :], wy[:, :, None] * wx[:, None, :]

    return (down.counts * along.counts).clamp_min(1)[:, None, None, None], each()


def _check(boxes: Any, *lengths: int) -> None:
    if boxes.dim() != 2 or boxes.shape[1] != 5 or not math.prod(lengths):
        raise NotImplementedError("no boxes in images")


@route_of_library("torchvision::roi_align")
def roi_align(
    x: Any, boxes: Any, scale: float, height: int, width: int, samples: int, aligned: bool = False
) -> Any:  # fmt: skip
    _check(boxes, x.numel(), height, width)
    if not len(boxes):
        return x.new_zeros(0, x.shape[1], height, width)
    counts, taps = _samples(boxes, scale, (x.shape[2], x.shape[3]), (height, width), samples, aligned)
    rows = x.movedim(1, -1).reshape(-1, x.shape[1])
    y: Any = None
    for place, weight in taps:
        term = rows[place] * weight[..., None]
        y = term if y is None else y + term
    return (y / counts).movedim(-1, 1).contiguous()


@route_of_library("torchvision::_roi_align_backward")
def roi_align_backward(
    g: Any, boxes: Any, scale: float, bins_down: int, bins_along: int, batch: int, channels: int, height: int, width: int,
    samples: int, aligned: bool,
) -> Any:  # fmt: skip
    _check(boxes, batch, channels, height, width)
    if not len(boxes):
        return g.new_zeros(batch, channels, height, width)
    counts, taps = _samples(boxes, scale, (height, width), (bins_down, bins_along), samples, aligned)
    each = g.movedim(1, -1) / counts
    rows = g.new_zeros(batch * height * width, channels)
    for place, weight in taps:
        rows.index_add_(0, place.flatten(), (each * weight[..., None]).flatten(0, 2))
    return rows.view(batch, height, width, channels).movedim(-1, 1).contiguous()
