"""Gathers and scatters of floats, and what decides indices by floats: those are downloaded."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from tlrt.onnx.graph import OPERATORS, Host, Run, Tensor, operator
from tlrt.onnx.host import element_places, ints, non_zero, reversed_places, slice_places, unique_parts


def _gather(run: Run, x: Tensor, places: Host, *, axis: int = 0) -> Tensor:
    return x.take(places, axis=axis)


def _gather_elements(run: Run, x: Tensor, places: Host, *, axis: int = 0) -> Tensor:
    return x.flatten().take(element_places(x.shape, places, axis))


def _gather_nd(run: Run, x: Tensor, index: Host, *, batch_dims: int = 0) -> Tensor:
    depth = batch_dims + index.shape[-1]
    rows = x.reshape((math.prod(x.shape[:depth]), *x.shape[depth:]))
    return rows.take(slice_places(x.shape, index, batch_dims), axis=0)


def _reverse_sequence(run: Run, x: Tensor, lengths: Host, *, batch_axis: int = 1, time_axis: int = 0) -> Tensor:
    return x.flatten().take(reversed_places(x.shape, lengths, batch_axis, time_axis))


def _compress(run: Run, x: Tensor, condition: Host, *, axis: int | None = None) -> Tensor:
    (places,) = np.nonzero(condition)
    return x.flatten().take(places) if axis is None else x.take(places, axis=axis)


def _non_zero(run: Run, x: Host) -> Host:
    return non_zero(x)


OPERATORS.update({
    "Gather": _gather, "GatherElements": _gather_elements, "GatherND": _gather_nd, "ReverseSequence": _reverse_sequence,
    "Compress": _compress, "NonZero": _non_zero,
})  # fmt: skip


@operator("Unique")
def unique(run: Run, x: Tensor, *, axis: int | None = None, sorted: int = 1) -> Any:
    _, first, back, count = unique_parts(x.numpy(), axis, sorted)
    return (x.flatten().take(first) if axis is None else x.take(first, axis=axis)), first, back, count


def _scatter(run: Run, rows: Tensor, places: Host, updates: Tensor, reduction: str) -> Tensor:
    """Rows with others in their places, or combined with them in turn; of those that replace one, the last stays."""
    s, count = run.session, rows.shape[0]
    if not places.size:
        return rows
    if reduction == "add":
        flat = s.scatter_add_rows(rows.reshape((count, -1)), updates.reshape((len(places), -1)), places)
        return flat.reshape(rows.shape)
    turn = np.zeros(len(places), np.int64)  # how often a place was there before
    if reduction != "none":
        order = np.argsort(places, kind="stable")
        starts = np.flatnonzero(np.r_[True, np.diff(places[order]) > 0])
        turn[order] = np.arange(len(places)) - np.repeat(starts, np.diff(np.r_[starts, len(places)]))
    for k in range(int(turn.max()) + 1):
        (chosen,) = np.nonzero(turn == k)
        change = updates if len(chosen) == len(places) else updates.take(chosen, axis=0)
        if reduction != "none":
            change = getattr(s, reduction)(rows.take(places[chosen], axis=0), change)
        source = np.arange(count)
        source[places[chosen]] = count + np.arange(len(chosen))
        rows = s.concat([rows, change], 0).take(source, axis=0)
    return rows


@operator("ScatterElements")
def scatter_elements(
    run: Run, x: Tensor, index: Host, updates: Tensor, *, axis: int = 0, reduction: str = "none"
) -> Tensor:  # fmt: skip
    places = element_places(x.shape, index, axis).reshape(-1)
    return _scatter(run, x.reshape((x.size, 1)), places, updates.reshape((len(places), 1)), reduction).reshape(x.shape)


@operator("ScatterND")
def scatter_nd(run: Run, x: Tensor, index: Host, updates: Tensor, *, reduction: str = "none") -> Tensor:
    depth = index.shape[-1]
    places = slice_places(x.shape, index).reshape(-1)
    rows = x.reshape((math.prod(x.shape[:depth]), *x.shape[depth:]))
    changed = updates.reshape((len(places), *x.shape[depth:]))
    return _scatter(run, rows, places, changed, reduction).reshape(x.shape)


def _arg(name: str) -> Any:
    def call(run: Run, x: Tensor, *, axis: int = 0, keepdims: int = 1, select_last_index: int = 0) -> Host:
        found = getattr(x.flip(axis) if select_last_index else x, name)(axis=axis, keepdims=bool(keepdims)).numpy()
        places = np.asarray(found, np.int64)
        return x.shape[axis] - 1 - places if select_last_index else places

    return call


OPERATORS.update(ArgMax=_arg("argmax"), ArgMin=_arg("argmin"))


@operator("TopK")
def topk(run: Run, x: Tensor, k: Host, *, axis: int = -1, largest: int = 1, sorted: int = 1) -> Any:
    values, places = x.topk(ints(k)[0], axis=axis, largest=bool(largest))
    return values, np.asarray(places.numpy(), np.int64)


@operator("NonMaxSuppression")
def non_max_suppression(
    run: Run, boxes: Host, scores: Host, most: Host = None, iou: Host = None, least: Host = None, *, center_point_box: int = 0
) -> Host:  # fmt: skip
    """Boxes of each class by falling score, without those that overlap one already chosen; on the host."""
    limit = 0 if most is None else ints(most)[0]
    overlap = 0.0 if iou is None else float(iou.reshape(-1)[0])
    chosen = [
        (b, c, k)
        for b in range(scores.shape[0])
        for c in range(scores.shape[1])
        for k in _suppressed(_corners(boxes[b], center_point_box), scores[b, c], limit, overlap, least)
    ]
    return np.asarray(chosen, np.int64).reshape(-1, 3)


def _corners(boxes: Host, center: int) -> Host:
    """The lower and the upper corner of each box, in float64."""
    a, b = boxes[:, :2].astype(np.float64), boxes[:, 2:].astype(np.float64)
    a, b = (a - b / 2, a + b / 2) if center else (np.minimum(a, b), np.maximum(a, b))
    return np.concatenate([a, b], 1)


def _suppressed(boxes: Host, scores: Host, limit: int, overlap: float, least: Host) -> list[int]:
    kept: list[int] = []
    areas = np.prod(boxes[:, 2:] - boxes[:, :2], axis=1)
    for k in np.argsort(-scores, kind="stable").tolist():
        if len(kept) >= limit or (least is not None and not scores[k] > least.reshape(-1)[0]):
            break
        sides = np.minimum(boxes[kept, 2:], boxes[k, 2:]) - np.maximum(boxes[kept, :2], boxes[k, :2])
        shared = np.prod(np.maximum(sides, 0), axis=1)
        together = areas[kept] + areas[k] - shared
        if not (shared > overlap * together).any():
            kept.append(k)
    return kept
