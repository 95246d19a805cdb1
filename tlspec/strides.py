"""Arrays that lie in flat buffers with strides: how references see them, and how cases draw them."""

from collections.abc import Sequence
from typing import Any

import numpy as np

from tlspec.draws import Draw

#: in elements
Strides = tuple[int, ...]


def strided(x: Any, shape: Sequence[int], strides: Sequence[int]) -> Any:
    """The array of this shape whose elements stand in a flat buffer, one further along an axis being `strides` further there."""
    at = np.zeros((1,) * len(shape), np.int64)
    for axis, (n, stride) in enumerate(zip(shape, strides, strict=True)):
        at = at + np.arange(n).reshape(-1, *(1,) * (len(shape) - 1 - axis)) * int(stride)
    return x[at]


def draw_matrices(d: Draw, batch: int, rows: int, columns: int) -> Strides:
    """Strides of `batch` matrices along the batch, rows and columns, one of the last two being 1: contiguous, transposed, with
    room behind each row, one matrix for all, the rows of all matrices in turn, and rows that overlap."""
    lengths, strides = [rows, columns], [0, 1]
    if across := d.integer(0, 1):
        lengths.reverse()
    length, room = lengths[1], d.choice((0, 0, 1, 3, 4, 8, d.integer(0, 64)))
    kind = d.choice(("apart", "apart", "apart", "in turn", "shared", "overlapping"))
    strides[0] = {"in turn": batch * (length + room), "overlapping": d.integer(0, length)}.get(kind, length + room)
    between = {"in turn": length + room, "shared": 0}.get(kind, lengths[0] * strides[0] + d.choice((0, 0, 1, 4)))
    return (between, *(strides[::-1] if across else strides))


def draw_heads(d: Draw, batch: int, heads: int, rows: int, width: int) -> Strides:
    """Strides of rows of `width` elements along the batch, heads and rows: head after head, heads of a row side by side, alone
    or with those of two more arrays, samples of a row side by side, one head for all, one sample for all; with room or not."""
    room = d.choice((0, 0, 0, 1, 4, d.integer(0, 9)))
    kind = d.choice(("heads", "rows", "rows", "packed", "samples", "one head", "one sample"))
    if kind in ("rows", "packed"):
        row = heads * width * (3 if kind == "packed" else 1) + room
        return rows * row, width, row
    if kind == "samples":
        sample = heads * width + room
        return sample, width, batch * sample
    row = width + room
    head = 0 if kind == "one head" else rows * row
    return 0 if kind == "one sample" else heads * rows * row, head, row
