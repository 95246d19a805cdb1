"""The geometry classes of the rows: which hold at points next to their ends."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from tlspec import registry
from tlspec.bounds import COLUMN_CHUNK, LEAF, call_named
from tlspec.classes import WINDOWS, default_classes
from tlspec.ops.attention import LEAST, TILE, UNLIMITED
from tlspec.ops.index import FAR, FAR_ELEMENTS
from tlspec.ops.random import _CARRIES
from tlspec.ops.reduce import SEGMENT
from tlspec.ops.spectral import BLOCK, DIRECT

Point = tuple[dict[str, Any], set[str]]


def at(*sizes: str) -> Callable[..., Point]:
    """What makes a point of those sizes, and the classes that hold there."""
    return lambda *v: (dict(zip(sizes, v, strict=False)), set(v[len(sizes) :]))


matrix, transform = at("rows", "cols"), at("batch", "n")
modes, scan, repeated = at("grid", "modes", "width"), at("seq_len", "state"), at("in_dims", "out_dims", "axis_map")
picked, labelled = at("rows", "indices"), at("rows", "cols", "labels")
folded, running = at("dims", "axes"), at("dims", "axis", "reverse")
top = at("outer", "n", "inner", "k", "largest")


def indices(*numbers: int) -> np.ndarray:
    return np.array(numbers, np.uint32)


def mask(n: int, mode: int, blocked: Any, *names: str) -> Point:
    """`blocked` is None for no mask, else a slice of rows and one of keys that are blocked."""
    array = None if blocked is None else np.ones((1, n, n), np.float32)
    if array is not None:
        array[0][blocked] = 0
    return {"batch": 1, "n": n, "d": 3, "mask": array, "mask_mode": mode}, set(names)


def added_rows(value: float, count: int) -> Any:
    """A mask of zeros, but for the first `count` of its 3 rows."""
    return np.where(np.arange(3)[:, None] < count, value, np.zeros((1, 2, 3, 3))).astype(np.float32)


def grouped(**changed: Any) -> dict[str, Any]:
    """Heads in groups of 2, as many queries as keys, no window and no mask, and sizes that differ from these."""
    sizes = {
        "batch": 1,
        "heads": 2,
        "kv_heads": 2,
        "queries": 3,
        "keys": 3,
        "d": 4,
        "width": 4,
        "mask_mode": 0,
        "mask": None,
        "offset": 0,
    }
    return {**sizes, "mask_heads": 1, "mask_queries": 3, "before": UNLIMITED, "after": UNLIMITED, **changed}


def lying(*names: str, **changed: int) -> Point:
    """Two products of square matrices, whose elements lie one after the other."""
    strides = {"a_batch": 4, "a_row": 2, "a_col": 1, "b_batch": 4, "b_row": 2, "b_col": 1}
    return {"batch": 2, "m": 2, "n": 2, "p": 2, **strides, **changed}, set(names)


def position(n: int, start: int, halves: int, *names: str) -> Point:
    more = {f"halves = {halves}"} if n > 1 and halves < 2 else set()
    return {"n": n, "batch": 1, "d": 2, "start": start, "halves": halves}, {*names, *more}


def pool(spatial: int, kernel: int, stride: int, padding: int, *names: str) -> Point:
    lists = {"spatial": spatial, "kernel": kernel, "stride": stride, "padding": padding}
    return {"channels": 1, **{n: [v] for n, v in lists.items()}}, set(names)


def image(channels: int, rows: int, width: int, *names: str, stride: int = 1) -> Point:
    """Windows of one cell, between which a stride of 3 leaves cells."""
    values = {
        "channels": channels,
        "spatial": [rows, width],
        "kernel": [1, 1],
        "stride": [stride] * 2,
        "padding": [0, 0],
    }
    return values, {"no padding", *names, *["stride > kernel"] * (stride > 1)}


def sliced(
    whole: str, part: str, sizes: list[int], taken: list[int], steps: list[int], reversed: int, *names: str
) -> Point:
    given = {"starts": [0] * len(sizes), "steps": steps, "reversed": reversed}
    return {f"{whole}_dims": sizes, f"{part}_dims": taken, **given}, set(names)


def axis(outer: int, n: int, inner: int, io: int, ii: int, index: int, *names: str) -> Point:
    return {"outer": outer, "n": n, "inner": inner, "io": io, "ii": ii, "indices": indices(index)}, set(names)


def convolved(*names: str, **changed: Any) -> Point:
    """One group of one channel over two axes, without strides and padding, and sizes that differ from these."""
    lists = {"kernel": 1, "stride": 1, "dilation": 1, "padding_low": 0, "padding_high": 0}
    values = {
        **dict.fromkeys(("batch", "groups", "in_channels", "out_channels"), 1),
        "spatial": [3, 3],
        **{n: [v, v] for n, v in lists.items()},
    }
    return {**values, **changed}, set(names)


#: of a slice: the sizes of the whole, its part, the steps, bits of the axes that run backwards, and the classes; `starts` are 0
PARTS: list[tuple[Any, ...]] = [
    ([4, 5], [4, 5], [1, 1], 0, "everything"), ([1, 5], [1, 5], [7, 1], 0, "everything"), ([], [], [], 0),
    ([6, 5], [4, 5], [1, 1], 0, "a window of rows"), ([4, 6], [4, 3], [1, 1], 0, "a window of columns"),
    ([1, 3, 5], [1, 3, 4], [1, 1, 1], 0, "a window of columns"), ([3, 1, 5], [3, 1, 4], [1, 1, 1], 0, "a window of columns"),
    ([1, 6], [1, 3], [1, 1], 0), ([6], [3], [1], 0), ([4, 6], [4, 1], [1, 1], 0, "one index of the last axis"),
    ([4, 6], [1, 1], [1, 1], 0), ([6], [1], [1], 0),
    *(([4, 9], [4, 3], [1, step], 0, "every second or third along the last axis") for step in (2, 3)),
    ([4, 5], [4, 5], [1, 1], 2, "everything, an axis backwards", "backwards along the last axis"),
    ([4, 5], [4, 5], [1, 1], 1, "everything, an axis backwards", "a window of rows", "backwards along another axis"),
    ([1, 1], [1, 1], [1, 1], 3, "everything"), ([4, 9], [4, 3], [1, 4], 0),
    ([4, 9], [4, 3], [1, 2], 2, "backwards along the last axis"), ([9], [1], [1], 1),
    ([4, 6], [4, 3], [1, 1], 1, "a window of columns", "backwards along another axis"),
    ([4, 6], [1, 3], [1, 1], 1), ([4, 4, 6], [3, 4, 4], [1, 1, 1], 0, "a window of columns"),
    ([4, 4, 6], [3, 3, 4], [1, 1, 1], 0, "a window of columns", "several axes that do not merge"),
    ([4, 5], [0, 5], [1, 1], 0, "nothing"), ([0, 5], [0, 5], [1, 1], 0),
    ([2] * 8, [2] * 8, [1] * 8, 0, "everything", "eight axes"), ([2] * 8, [0] * 8, [1] * 8, 0, "nothing", "eight axes"),
]  # fmt: skip
#: row -> points and the classes, tiles aside, that hold there
POINTS: dict[str, list[Point]] = {
    "reduce_mean": [({"dims": dims, "axis": axis}, names) for dims, axis, names in (([4], 0, set()), ([4, 5], 0,
        {"the first axis"}), ([4, 5], 1, {"the last axis"}), ([4, 5, 6], 1, {"an axis between others"}))],
    "concat_rows": [({"rows": 1, "n": n, "m": m}, {name} - {""}) for n, m, name in ((1, 1, "both"), (1, 0, "the first alone"),
        (0, 1, "the second alone"), (0, 0, ""))],
    "slice1d": [({"n": 4, "start": start, "len": count}, {name}) for start, count, name in ((0, 3, "part from the start"), (1,
        2, "part inside"), (1, 3, "part to the end"), (0, 4, "everything"), (0, 0, "nothing"), (1, 0, "nothing"), (4, 0,
        "nothing"))] + [({"n": 0, "start": 0, "len": 0}, set())],
    "permute": [({"dims": dims, "axes": axes}, names) for dims, axes, names in (([2, 1, 3], [0, 2, 1], {"nothing moved"}),
        ([2, 3, 4], [1, 0, 2], {"the last axis kept"}), ([2, 3, 4], [0, 2, 1], {"the last axis moved"}), ([1, 1], [1, 0], set()),
        ([2, 3, 4, 5], [1, 0, 3, 2], {"the last axis moved", "two exchanges"}), ([2, 3, 4, 1], [1, 0, 3, 2],
        {"the last axis kept"}), ([33, 34], [1, 0], {"the last axis moved", "both longer than 32, with a rest"}),
        ([32, 33], [1, 0], {"the last axis moved"}), ([1, 33, 34], [0, 2, 1], {"the last axis moved",
        "both longer than 32, with a rest"}))],
    "broadcast_to": [repeated([], [], [], "no axis"), repeated([1], [1], [1]), repeated([3], [3], [1], "nothing repeated"),
        repeated([], [3], [0], "a scalar"), repeated([1], [3], [1], "a scalar"), repeated([3], [2, 3], [0, 1], "repeated rows"),
        repeated([3], [3, 2], [1, 0], "repeated numbers"), repeated([2, 4], [2, 3, 4], [1, 0, 2], "repeated between"),
        repeated([2, 3], [3, 2], [2, 1], "nothing repeated", "axes out of order"), repeated([1, 3], [3, 1], [2, 1],
        "nothing repeated"), repeated([3], [3, 3], [1, 0], "repeated numbers", "a square filled along its columns"),
        repeated([3], [3, 3], [0, 1], "repeated rows"), repeated([1], [1, 1], [1, 0]), repeated([3] * 7, [3] * 7, [*range(1,
        8)], "nothing repeated"), repeated([1] * 8, [1] * 8, [*range(1, 9)], "eight axes"), repeated([4096], [2, 4096], [0, 1],
        "repeated rows", "long rows repeated"), repeated([4095], [2, 4095], [0, 1], "repeated rows")],
    "gather_rows": [({"rows": 2, "cols": cols, "indices": indices(row)}, names) for cols, row, names in ((FAR, 0, set()),
        (FAR // 2, 1, set()), (FAR // 2 + 1, 1, {FAR_ELEMENTS}), (FAR + 1, 0, {FAR_ELEMENTS}))] + [picked(3, indices(0, 1)),
        picked(3, indices(3), "an index out of range"), picked(3, indices(1, 1), "a repeated index"), picked(3, indices(5, 5),
        "an index out of range"), picked(3, indices(2, 0), "the first and the last row"), picked(1, indices(0)), picked(0,
        indices(0, 0)), picked(1, indices(0, 0), "a repeated index")],
    "cross_entropy": [labelled(1, 3, indices(0, 1)), labelled(1, 3, indices(2, 0), "the first and the last label"), labelled(1,
        1, indices(0)), labelled(1, LEAF + 1, indices(LEAF - 1), "a label before a multiple of the leaf"), labelled(1, LEAF + 1,
        indices(1)), labelled(1, 2 * LEAF + 1, indices(2 * LEAF), "a label at a multiple of the leaf")],
    **{name: [({a: 2, b: 2, c: 2, d: 2} | {changed: n}, names) for changed, n, names in ((d, 2, set()), (a, 1, {"one row"}), (b,
        1, {"one term"}), (c, 1, {"one column"}), (a, 0, set()), (b, 0, set()), (c, 0, set()))] for name, (a, b, c, d) in
        {"matmul": ("m", "n", "p", "q"), "bmm": ("m", "n", "p", "batch"), "dgemm": ("m", "n", "p", "q"), "linear": ("batch",
        "inputs", "outputs", "q")}.items()},
    "bmm_strided": [lying(), lying("one row", m=1), lying("one column", p=1), lying("one term", n=1), lying(a_row=1, a_col=2),
        lying("a factor across, and room behind rows", a_row=1, a_col=3), lying("a factor across, and room behind rows", b_row=1,
        b_col=3), lying("one row", m=1, a_row=1, a_col=3), lying(a_row=1, a_col=3, batch=0), lying(a_row=3), lying(
        "rows of several products in turn", a_batch=1), lying(a_batch=2), lying(a_batch=0), lying(a_batch=1, batch=1)],
    "softmax": [matrix(1, 1025), matrix(2, 1024), matrix(2, 1025, "long rows"), matrix(65, 1),
        matrix(64, 2), matrix(65, 2, "many short rows"),
        matrix(65, 64), matrix(1, 4 * LEAF), matrix(0, 4 * LEAF + 1), matrix(1, 4 * LEAF + 1, "few rows of several leaves")],
    "layer_norm": [matrix(128, 1), matrix(128, 2, "many short rows", "whole chunks of rows"), matrix(0, 2), matrix(129, 1),
        matrix(129, 65, "several chunks of rows, with a rest"), matrix(127, 65)],
    "group_norm_stats": [({"batch": 1, "groups": groups, "channels": channels, "positions": positions}, {f"rows of {n}" if
        n.endswith(("leaf", "leaves")) else n for n in names}) for groups, channels, positions, *names in ((1, 1, 1, "one leaf"),
        (1, 2, 1, "one leaf", "single positions"), (1, 1, 3, "one leaf"), (1, 1, 4, "one leaf", "positions in fours"), (1, 1, 5,
        "one leaf", "positions with a rest of four"), (0, 1, 3), (1, 0, 3), (1, LEAF, 1, "one leaf", "single positions"),
        (1, LEAF + 1, 1, "several leaves", "single positions"), (0, LEAF + 1, 3))],
    "max_pool": [pool(4, 2, 1, 0, "stride < kernel", "no padding"), pool(4, 2, 2, 0, "stride = kernel", "no padding"), pool(5,
        2, 3, 0, "stride > kernel", "no padding"), pool(4, 1, 1, 0, "no padding"), pool(4, 4, 1, 2, "stride < kernel",
        "padding up to half the kernel"), pool(4, 4, 1, 3, "stride < kernel", "padding above half the kernel"), pool(4, 4, 1, 4,
        "stride < kernel", "a window of padding alone"), pool(6, 2, 3, 0, "stride > kernel", "no padding",
        "cells that no window meets"), pool(6, 2, 3, 1, "stride > kernel", "padding up to half the kernel"),
        pool(1, 1, 3, 1, "stride > kernel", "a window of padding alone", "cells that no window meets",
        "an axis whose only window is of padding alone"), image(1, 9, 1), image(2, 9, 8),
        image(2, 9, 7, "few channels of tiny rows"), image(3, 9, 7,
        "few channels of tiny rows"), image(3, 9, 8), image(4, 9, 64), image(4, 9, 63, "many channels of short rows"),
        image(4, 4096, 1, "many channels of short rows"), image(4, 4097, 1, "many channels of short rows",
        "many channels of tall planes of short rows")],
    "conv": [({"batch": batch, "in_channels": 1, "out_channels": 1, "spatial": [3], "kernel": [1], "stride": [1], "padding":
        [0]}, {"no padding", *names}) for batch, names in ((1, ()), (2, ("several images",)))],
    "flash_attention": [mask(TILE, 3, None), mask(TILE + 1, 3, None, "causal over several tiles"), mask(TILE, 1, np.s_[3, 1:5]),
        mask(1, 0, np.s_[0, 0]), mask(2, 0, np.s_[0, 0], "a mask that is not read"), mask(2, 3, np.s_[0, 0],
        "a mask that is not read"), mask(TILE + 1, 1, np.s_[0:0, 0:0], "scores filled over several tiles"), mask(TILE + 1, 2,
        np.s_[3, 1:5], "a blocked region that ends inside a tile"), mask(TILE + 1, 2, np.s_[3, 64], "a tile blocked whole"),
        mask(TILE + 1, 2, np.s_[3, :], "a row blocked whole")],
    "grouped_attention": [(grouped(), set()), (grouped(kv_heads=1), {"grouped heads"}), (grouped(kv_heads=1, batch=0), set()),
        (grouped(queries=2), {"fewer queries than keys"}), (grouped(queries=0), set()), (grouped(queries=4),
        {"more queries than keys"}), (grouped(keys=0), set()), (grouped(width=3), {"values of another width"}),
        (grouped(d=3), {"values of another width"}), (grouped(d=0), set()), (grouped(before=2, after=2), {"a window"}),
        (grouped(before=3, after=2), set()), (grouped(before=2, after=3), set()), (grouped(before=2, after=2, queries=1,
        keys=3), {"fewer queries than keys"}), (grouped(offset=1, after=0), {"an offset"}), (grouped(offset=2, after=0),
        {"an offset"}), (grouped(offset=3, after=0), set()), (grouped(after=0), set()), (grouped(offset=1, after=1), set()),
        (grouped(offset=1, after=0, queries=1), {"fewer queries than keys"}), (grouped(mask_mode=1),
        {"a mask for several heads"}), (grouped(mask_mode=1, mask_heads=2), set()), (grouped(mask_mode=1, mask_queries=1),
        set()), (grouped(mask_mode=2, mask_heads=2), {"an additive mask"}), (grouped(mask_mode=2, mask_queries=1),
        {"an additive mask"}), *((grouped(mask_mode=mode, mask_heads=2, mask=added_rows(value, rows)), {*names, *({
        "an additive mask"} if mode == 2 else ())}) for value, rows, mode, *names in ((-np.inf, 1, 2,
        "a row that a mask of -inf blocks"), (LEAST, 2, 2, "a row of the least number"), (LEAST, 3, 2), (-np.inf, 1, 1),
        (-np.inf, 0, 2))), (grouped(mask_mode=2, mask_heads=2, keys=1), {"more queries than keys"}), (grouped(mask_mode=2,
        mask_heads=2, queries=1), {"fewer queries than keys"})],
    "rotary": [position(1, 0, 1), position(2, 0, 1, "from the start"), position(2, 1, 0, "from an offset"), position(2, 2**24 -
        1, 0, "from an offset"), position(2, 2**24, 0, "from an offset", "positions beyond 2^24"), position(2, 2**31 - 2, 1,
        "from an offset", "positions beyond 2^24"), position(2, 2**31 - 1, 1, "from an offset", "positions beyond 2^24",
        "positions beyond 2^31")],
    "sinusoidal": [position(1, 0, 2), position(2, 0, 2, "from the start"), position(2, 5, 2, "from an offset")],
    "selective_scan_diag": [scan(16 * COLUMN_CHUNK, 1), scan(16 * COLUMN_CHUNK + 1, 1, "many chunks of few channels"), scan(16 *
        COLUMN_CHUNK + 1, 16, "many chunks of few channels"), scan(16 * COLUMN_CHUNK + 1, 0), scan(COLUMN_CHUNK, 17),
        scan(COLUMN_CHUNK + 1, 17, "several chunks of many channels")],
    "rfft1d_packed": [transform(1, 1, "one number"), transform(0, 1), transform(1, 16), transform(1, 32, "a power of two"),
        transform(0, 32), transform(1, 15), transform(1, 1001, "odd factors up to 13"), transform(1, 6,
        "even with odd factors"), transform(1, 17, "an odd length with a large prime"), transform(1, 34,
        "an even length with a large prime"), transform(1, DIRECT, "a power of two"), transform(16, 15), transform(17, 15,
        "rows in lanes with a rest"), transform(32, 15), transform(17, 1, "one number"), transform(1, 2 * DIRECT,
        "a power of two", "a long power of two", "one to three long rows"), transform(4, 2 * DIRECT, "a power of two",
        "a long power of two", "several long rows"), transform(3, 2 * DIRECT, "a power of two", "a long power of two",
        "one to three long rows"), transform(1, 2**11 * 17, "an even length with a large prime", "long with a large prime",
        "one to three long rows")],
    "spectral_conv1d_rfft": [modes(9, 2, 1, "an odd grid"), modes(8, 2, 1, "an even grid"), modes(8, 2, 0), modes(9, 2, 0),
        modes(8, 1, 1, "one mode"), modes(1, 1, 1), modes(8, 5, 1, "an even grid", "all modes of an even grid"), modes(9, 5, 1,
        "an odd grid", "all modes of an odd grid"), modes(2**10, 32 + 4 * 11, 1, "an even grid"), modes(2**10, 33 + 4 * 11, 1,
        "an even grid", "many modes"), modes(BLOCK, 32, 1, "an even grid"), modes(BLOCK + 1, 32, 1, "an odd grid",
        "few modes of a long grid"), modes(BLOCK + 1, 33, 1, "an odd grid"), modes(2**11, 512, 1, "an even grid", "many modes"),
        modes(2**11, 513, 1, "an even grid", "many modes", "more modes than are truncated")],
    "rand_uniform": [({"n": n, "key": key}, names) for n, key, names in ((2, 2**63 - 1, set()), (2, 2**63,
        {"a key of 64 bits"}), (1, 2**63, set()), (1, 2**64 - 1, set()), (2, 2**64 - 1, {"a key of 64 bits"}))
    ] + [({"n": n, "key": _CARRIES[0]}, wraps | ({"a key of 64 bits"} if _CARRIES[0] >= 2**63 else set()))
         for n, wraps in ((5, set()), (6, {"a counter that wraps"}))],
    "adam_step": [({"lengths": lengths}, names) for lengths, names in (([], {"no buffer"}), ([0], set()), ([1], set()), ([0, 1],
        {"an empty buffer among others"}), ([1] * 16, set()), ([1] * 17, {"many buffers in a task"}))],
    "fingerprint": [({"lengths": lengths}, names) for lengths, names in (([], {"no buffer"}), ([0], set()), ([2], set()), ([2, 1],
        {"an odd length"}), ([0, 2], {"an empty buffer among others"}))],
    "amax": [folded([], 0, "nothing reduced"), folded([3, 4], 0, "nothing reduced"), folded([3, 1, 4], 2, "nothing reduced"),
        folded([3, 4], 3, "all reduced"), folded([1, 4], 2, "all reduced"), folded([3, 4], 2, "the last axes reduced"),
        folded([3, 4], 1, "the first axes reduced"), folded([3, 4, 5], 2, "axes between reduced"), folded([3, 4, 5], 5,
        "axes apart reduced"), folded([2] * 4, 10, "axes apart reduced"), folded([0, 4], 2), folded([SEGMENT, SEGMENT], 3,
        "all reduced"), folded([SEGMENT, SEGMENT + 1], 3, "all reduced", "segments of segments"), folded([2, 1000], 1,
        "the first axes reduced"), folded([2, 1001], 1, "the first axes reduced", "wide rows kept"), folded([2, 1001], 2,
        "the last axes reduced")],
    "lstm_cell": [({"rows": 1, "units": 2}, {"one row"}), ({"rows": 2, "units": 1}, {"one unit"}), ({"rows": 1, "units": 1},
        set()), ({"rows": 2, "units": 2}, set()), ({"rows": 1, "units": 0}, set())],
    "cumsum": [running([4, 2], 0, 0, "columns"), running([2, 4], 1, 0, "one column"), running([2, 4], 1, 1, "one column",
        "backwards"), running([1], 0, 1, "one column"), running([0, 2], 0, 1), running([0], 0, 0), running([32**2], 0, 0,
        "one column"), running([32**2 + 1], 0, 0, "one column", "chunks of chunks")],
    "slice_axes": [sliced("in", "out", *point) for point in PARTS],
    "pad_axes": [sliced("out", "in", *point) for point in PARTS],
    "take_axis": [axis(2, 3, 2, 2, 2, 0, "indices of their own"), axis(2, 3, 2, 1, 2, 0, "shared by the outer arrays"), axis(2, 3,
        2, 2, 1, 0, "shared by the columns"), axis(2, 3, 2, 1, 1, 0, "shared by all"), axis(2, 3, 1, 2, 1, 0, "the last axis"),
        axis(1, 3, 1, 1, 1, 0), axis(2, 1, 1, 2, 1, 0), axis(1, 3, 2, 1, 2, 0), axis(1, 3, 2, 1, 1, 0), axis(1, 3, 1, 1, 1, 2),
        axis(1, 3, 1, 1, 1, 3, "an index out of range"), axis(1, 0, 1, 1, 1, 0)],
    "topk": [top(2, 3, 1, 1, 1, "one of several", "the last axis"), top(1, 3, 2, 1, 1, "one of several"), top(1, 3, 1, 1, 1),
        top(1, 1, 2, 1, 1), top(1, 3, 2, 3, 1, "all"), top(1, 3, 1, 3, 1), top(2, 3, 2, 2, 0, "the smallest",
        "an axis between others"), top(2, 3, 2, 0, 0), top(2, 3, 1, 2, 1, "the last axis"), top(1, 3, 1, 2, 0, "the smallest"),
        top(1, 1072, 1, 2, 1, "a few of many"), top(1, 1071, 1, 2, 1), top(1, 1072, 1, 1, 1)],
    "conv_grouped": [convolved("one group"), convolved("one group", in_channels=9), convolved("depthwise", groups=2),
        convolved(groups=2, out_channels=2), convolved(groups=2, in_channels=8), convolved("several groups of many channels",
        groups=2, in_channels=9), convolved("one group", "a dilated kernel", kernel=[1, 2], dilation=[1, 2]),
        convolved("one group", kernel=[1, 2], dilation=[2, 1], stride=[2, 1]), convolved("one group", "a dilated kernel",
        "stride and dilation with a common factor", kernel=[2, 1], stride=[4, 1], dilation=[6, 1]), convolved("one group",
        "a dilated kernel", kernel=[2, 1], stride=[3, 1], dilation=[2, 1]), convolved("one group", padding_low=[1, 2],
        padding_high=[1, 2]), convolved("one group", "other padding after than before", padding_high=[0, 1]),
        convolved("one group", "several images", batch=2), convolved("depthwise", groups=63, spatial=[1, 1]),
        convolved("depthwise", "small images of many groups", groups=64, spatial=[1, 1]), convolved("depthwise",
        "small images of many groups", groups=64, spatial=[1, 32]), convolved("depthwise", groups=64, spatial=[1,
        33]), convolved("several groups of many channels", groups=64, spatial=[1, 1], in_channels=9),
        convolved("small images of many groups", "several images", batch=2, groups=32, spatial=[1, 1], in_channels=2)],
}  # fmt: skip


@pytest.mark.parametrize("name", POINTS)
def test_classes_hold_where_they_say(name: str) -> None:
    for values, wanted in POINTS[name]:
        own = registry.get(name).drawing.classes
        assert {n for n, holds in own.items() if call_named(holds, values)} == wanted, values


#: rows of which some classes hold where an array is empty, too
OF_EMPTY_ARRAYS = {
    "concat_rows", "slice1d", "cross_entropy", "max_pool", "conv", "conv_grouped", "flash_attention", "grouped_attention",
    "group_norm_stats", "rotary", "sinusoidal", "spectral_conv1d_rfft", "take_axis", "topk",
}  # fmt: skip


@pytest.mark.parametrize("name", sorted(POINTS.keys() - OF_EMPTY_ARRAYS))
def test_classes_do_not_hold_of_empty_arrays(name: str) -> None:
    row = registry.get(name)
    dims = {d for a in row.signature.inputs + row.signature.outputs for d in a.dims}
    for values in [{**v, d: 0} for v, _ in POINTS[name] for d in dims & v.keys()]:
        assert [n for n, holds in row.drawing.classes.items() if call_named(holds, values)] == [], values


def test_every_class_has_a_point() -> None:
    shared = {n for points in POINTS.values() for _, names in points for n in names}
    by_signature = {n for r in registry.ops() for n in default_classes(r.signature)}
    assert {n: r.name for r in registry.ops() for n in r.drawing.classes if n not in shared | by_signature} == {}


def test_every_padding_and_stride_is_of_one_class() -> None:
    strides, paddings = list(WINDOWS)[:3], list(WINDOWS)[3:]
    for kernel in range(1, 7):
        for at in range(9):
            values = {"kernel": [kernel], "stride": [at + 1], "padding": [at]}
            found = [sum(call_named(WINDOWS[n], values) for n in names) for names in (strides, paddings)]
            assert found == [int(kernel > 1 or at > 0), 1], values
