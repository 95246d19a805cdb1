"""The geometry classes of the rows: which hold at points next to their ends, and of what length their tiles are."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from tlspec import registry
from tlspec.bounds import call_named
from tlspec.classes import WINDOWS, Near, boundary
from tlspec.ops.attention import LEAST, UNLIMITED
from tlspec.ops.index import FAR, FAR_ELEMENTS
from tlspec.ops.norm import LEAF as ROW_LEAF
from tlspec.ops.random import _CARRIES
from tlspec.registry import Op

Point = tuple[dict[str, Any], set[str]]


def at(*sizes: str) -> Callable[..., Point]:
    """What makes a point of those sizes, and the classes that hold there."""
    return lambda *v: (dict(zip(sizes, v, strict=False)), set(v[len(sizes) :]))


matrix, cube, transform = at("rows", "cols"), at("a", "b", "c"), at("batch", "n")
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


B = {f: {n: boundary(f, n) for n in names.split()} for f, names in {
    "reduce": "TASK MANY TL_COLUMN_CHUNK TL_FOLD_SEGMENT FOLD_ROOM TL_CUMSUM_CHUNK",
    "shape": "BAND LONG_RUN CHUNK", "softmax": "TL_ROW_TASK TL_ROW_FEW",
    "norm": "TL_COLUMN_CHUNK TILE MANY_CHUNKS", "loss": "TL_SUM_LEAF",
    "pool": "TASK BLOCK SHORT_ROW FEW_LANES TINY_ROW CELLS", "conv": "TILE_ROWS FEWEST PRODUCTS",
    "attention": "TILE BLOCK TL_PANEL", "scan": "TL_SCAN_CHUNK NARROW FEW", "spectral": "TL_FFT_DIRECT ROWS_ALONE TILE",
}.items()}  # fmt: skip
TASK, CHUNK = B["reduce"]["TASK"], B["reduce"]["TL_COLUMN_CHUNK"]
BAND, RUN = B["shape"]["BAND"], B["shape"]["LONG_RUN"]
LONG, FEW = B["softmax"]["TL_ROW_TASK"], B["softmax"]["TL_ROW_FEW"]
ROWS, TILE = B["norm"]["TL_COLUMN_CHUNK"], B["norm"]["TILE"]
LEAF, KEYS = B["loss"]["TL_SUM_LEAF"], B["attention"]["TILE"]
STEPS, NARROW = B["scan"]["TL_SCAN_CHUNK"], B["scan"]["NARROW"]
SEGMENT, ROOM, SUMS = B["reduce"]["TL_FOLD_SEGMENT"], B["reduce"]["FOLD_ROOM"], B["reduce"]["TL_CUMSUM_CHUNK"]
SHORT, LANES, TINY, BAND_CELLS = (B["pool"][n] for n in ("SHORT_ROW", "FEW_LANES", "TINY_ROW", "CELLS"))
PANEL, PLANES, IMAGE = B["attention"]["TL_PANEL"], B["conv"]["FEWEST"], B["conv"]["PRODUCTS"] // 64
DIRECT, ALONE, BLOCK = B["spectral"]["TL_FFT_DIRECT"], B["spectral"]["ROWS_ALONE"], B["spectral"]["TILE"] ** 2
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
    "reduce_sum_axis0": [matrix(1, TASK), matrix(1, TASK + 1, "several tasks"), matrix(CHUNK**2, 1), matrix(CHUNK**2 + 1, 0),
        matrix(CHUNK**2 + 1, 1, "chunks of chunks")],
    "reduce_max_axis1": [matrix(1, TASK + 1), matrix(2, TASK // 2), matrix(2, TASK // 2 + 1, "several tasks"),
        matrix(B["reduce"]["MANY"], 1), matrix(B["reduce"]["MANY"] + 1, 1, "many short rows"), matrix(B["reduce"]["MANY"] + 1,
        0), matrix(B["reduce"]["MANY"] + 1, B["reduce"]["MANY"])],
    "reduce_mean": [({"dims": dims, "axis": axis}, names) for dims, axis, names in (([4], 0, set()), ([4, 5], 0,
        {"the first axis"}), ([4, 5], 1, {"the last axis"}), ([4, 5, 6], 1, {"an axis between others"}), ([TASK], 0, set()),
        ([TASK + 1], 0, {"several tasks"}))],
    "concat1d": [({"n": n, "m": m}, {name} - {""}) for n, m, name in ((1, 1, "both"), (1, 0, "the first alone"), (0, 1,
        "the second alone"), (0, 0, ""))],
    "slice1d": [({"n": 4, "start": start, "len": count}, {name}) for start, count, name in ((0, 3, "part from the start"), (1,
        2, "part inside"), (1, 3, "part to the end"), (0, 4, "everything"), (0, 0, "nothing"), (1, 0, "nothing"), (4, 0,
        "nothing"))] + [({"n": 0, "start": 0, "len": 0}, set())],
    "swap_adjacent_at_depth": [({"dims": dims, "depth": depth}, names) for dims, depth, names in (([2, 3, 4], 0,
        {"the first axes"}), ([2, 3, 4], 1, {"the last axes"}), ([2, 3, 4, 5], 1, {"axes between others"}), ([2, 3], 0, set()),
        ([1, 1, 1], 0, set()), ([1, 1, 1], 1, set()), ([1, 1, 1, 1], 1, set()), ([BAND + 1] * 2, 0, {"both with a rest"}),
        ([BAND, BAND + 1], 0, set()), ([BAND + 1, 2 * BAND], 0, set()), ([2, 3, RUN], 0, {"the first axes", "a long run"}), ([2,
        3, RUN - 1], 0, {"the first axes"}))],
    "transpose3d_acb": [cube(BAND + 1, 2, 2, "first with a rest"), cube(2, BAND + 1, 2, "second with a rest"), cube(2, 2, BAND +
        1, "third with a rest"), cube(BAND + 1, 1, 2), cube(BAND, 2, 2), cube(2 * BAND, 2, 2), cube(1, 2, RUN, "a long run"),
        cube(1, 1, RUN), cube(1, 2, RUN - 1)],
    "broadcast_to": [repeated([], [], [], "no axis"), repeated([1], [1], [1]), repeated([3], [3], [1], "nothing repeated"),
        repeated([], [3], [0], "a scalar"), repeated([1], [3], [1], "a scalar"), repeated([3], [2, 3], [0, 1], "repeated rows"),
        repeated([3], [3, 2], [1, 0], "repeated numbers"), repeated([2, 4], [2, 3, 4], [1, 0, 2], "repeated between"),
        repeated([2, 3], [3, 2], [2, 1], "nothing repeated", "axes out of order"), repeated([1, 3], [3, 1], [2, 1],
        "nothing repeated"), repeated([3], [3, 3], [1, 0], "repeated numbers", "a square filled along its columns"),
        repeated([3], [3, 3], [0, 1], "repeated rows"), repeated([1], [1, 1], [1, 0]), repeated([3] * 7, [3] * 7, [*range(1,
        8)], "nothing repeated"), repeated([1] * 8, [1] * 8, [*range(1, 9)], "eight axes"), repeated([B["shape"]["CHUNK"]], [2,
        B["shape"]["CHUNK"]], [0, 1], "repeated rows", "a long period"), repeated([B["shape"]["CHUNK"] - 1], [2,
        B["shape"]["CHUNK"] - 1], [0, 1], "repeated rows")],
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
    "softmax": [matrix(1, FEW + 1), matrix(2, FEW), matrix(2, FEW + 1, "work beyond the stack"), matrix(1, LONG), matrix(0, LONG
        + 1), matrix(1, LONG + 1, "a long row, and few"), matrix(LONG // FEW, FEW), matrix(LONG // FEW + 1, FEW,
        "several tasks")],
    "layer_norm": [matrix(ROWS, 1), matrix(ROWS, 2, "whole chunks of rows"), matrix(0, 2), matrix(ROWS + 1, TILE), matrix(ROWS,
        TILE + 1, "whole chunks of rows"), matrix(ROWS + 1, TILE + 1, "chunks of rows and tiles of columns, both with a rest"),
        matrix(ROWS + 1, 2 * TILE, "several tasks"), matrix(2 * ROWS, TILE + 1, "whole chunks of rows", "several tasks"),
        matrix(ROWS - 1, 2), matrix(ROWS * B["norm"]["MANY_CHUNKS"], 1), matrix(ROWS * B["norm"]["MANY_CHUNKS"], 2,
        "chunks of rows as tasks", "whole chunks of rows"), matrix(ROWS * B["norm"]["MANY_CHUNKS"] - 1, 2)],
    "group_norm_stats": [({"batch": 1, "groups": groups, "channels": channels, "positions": positions}, {f"rows of {n}" if
        n.endswith(("leaf", "leaves")) else n for n in names}) for groups, channels, positions, *names in ((1, 1, 1, "one leaf"),
        (1, 2, 1, "one leaf", "single positions"), (1, 1, 3, "one leaf"), (1, 1, 4, "one leaf", "positions in fours"), (1, 1, 5,
        "one leaf", "positions with a rest of four"), (0, 1, 3), (1, 0, 3), (1, ROW_LEAF, 1, "one leaf", "single positions"),
        (1, ROW_LEAF + 1, 1, "several leaves", "single positions"), (0, ROW_LEAF + 1, 3))],
    "max_pool": [pool(4, 2, 1, 0, "stride < kernel", "no padding"), pool(4, 2, 2, 0, "stride = kernel", "no padding"), pool(5,
        2, 3, 0, "stride > kernel", "no padding"), pool(4, 1, 1, 0, "no padding"), pool(4, 4, 1, 2, "stride < kernel",
        "padding up to half the kernel"), pool(4, 4, 1, 3, "stride < kernel", "padding above half the kernel"), pool(4, 4, 1, 4,
        "stride < kernel", "a window of padding alone"), pool(6, 2, 3, 0, "stride > kernel", "no padding",
        "cells that no window meets"), pool(6, 2, 3, 1, "stride > kernel", "padding up to half the kernel"),
        pool(B["pool"]["TASK"], 1, 1, 0, "no padding"), pool(B["pool"]["TASK"] + 1, 1, 1, 0, "no padding", "several tasks"),
        image(1, 9, 1), image(2, 9, TINY), image(2, 9, TINY - 1, "tiny rows of few channels"), image(LANES - 1, 9, TINY - 1,
        "tiny rows of few channels"), image(LANES - 1, 9, TINY), image(LANES, 9, SHORT), image(LANES, 9, SHORT - 1,
        "short rows of several channels"), image(LANES, 10, SHORT + 3, "short rows of several channels", stride=3),
        image(LANES, 2 * BAND_CELLS, 1, "short rows of several channels"), image(LANES, 2 * BAND_CELLS + 1, 1,
        "short rows of several channels", "planes of short rows in bands"), image(LANES, BAND_CELLS // SHORT, SHORT)],
    "conv": [({"batch": batch, "in_channels": 1, "out_channels": count, "spatial": [3], "kernel": [1], "stride": [1], "padding":
        [0]}, {"no padding", *names}) for batch, count, names in ((1, B["conv"]["TILE_ROWS"], ()), (2, 1, ("several images",)),
        (1, B["conv"]["TILE_ROWS"] + 1, ("several tiles of output channels",)))],
    "flash_attention": [mask(KEYS, 3, None), mask(KEYS + 1, 3, None, "causal over several tiles"), mask(KEYS, 1, np.s_[3, 1:5]),
        mask(1, 0, np.s_[0, 0]), mask(2, 0, np.s_[0, 0], "a mask that is not read"), mask(2, 3, np.s_[0, 0],
        "a mask that is not read"), mask(KEYS + 1, 1, np.s_[0:0, 0:0], "scores filled over several tiles"), mask(KEYS + 1, 2,
        np.s_[3, 1:5], "a blocked region that ends inside a tile"), mask(KEYS + 1, 2, np.s_[3, 64], "a tile blocked whole"),
        mask(KEYS + 1, 2, np.s_[3, :], "a row blocked whole"), mask(B["attention"]["BLOCK"] + 1, 0, None,
        "several blocks of queries"), *(({**mask(2, 0, None)[0], "d": d}, {name} - {""}) for d, name in
        ((PANEL - 1, ""), (PANEL, "whole coordinates"), (PANEL + 1, "coordinates with a rest"), (2 * PANEL,
        "whole coordinates")))],
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
        mask_heads=2, queries=1), {"fewer queries than keys"}), (grouped(queries=B["attention"]["BLOCK"] // 2, kv_heads=1),
        {"grouped heads", "more queries than keys"}), (grouped(queries=B["attention"]["BLOCK"] // 2 + 1, kv_heads=1),
        {"grouped heads", "more queries than keys", "several blocks of a group's queries"}),
        (grouped(queries=B["attention"]["BLOCK"] + 1, width=0), {"more queries than keys"})],
    "rotary": [position(1, 0, 1), position(2, 0, 1, "from the start"), position(2, 1, 0, "from an offset"), position(2, 2**24 -
        1, 0, "from an offset"), position(2, 2**24, 0, "from an offset", "positions beyond 2^24"), position(2, 2**31 - 2, 1,
        "from an offset", "positions beyond 2^24"), position(2, 2**31 - 1, 1, "from an offset", "positions beyond 2^24",
        "positions beyond 2^31")],
    "sinusoidal": [position(1, 0, 2), position(2, 0, 2, "from the start"), position(2, 5, 2, "from an offset")],
    "selective_scan_diag": [scan(1, NARROW + 1, "a block of one channel"), scan(0, NARROW + 1), scan(1, NARROW), scan(16 *
        STEPS, 1), scan(16 * STEPS + 1, 1, "chunks as tasks"), scan(16 * STEPS + 1, NARROW, "chunks as tasks"), scan(16 * STEPS
        + 1, 0), scan(1, B["scan"]["FEW"] // 8), scan(1, B["scan"]["FEW"] // 8 + 1, "state beyond the stack"), scan(STEPS,
        NARROW + 2), scan(0, B["scan"]["FEW"] // 8 + 1), scan(STEPS + 1, NARROW + 2, "several chunks and blocks")],
    "rfft1d_packed": [transform(1, 1, "one number"), transform(0, 1), transform(1, 16), transform(1, 32, "a power of two"),
        transform(0, 32), transform(1, 15), transform(1, 1001, "odd factors up to 13"), transform(1, 6,
        "even with odd factors"), transform(1, 17, "an odd length with a large prime"), transform(1, 34,
        "an even length with a large prime"), transform(1, DIRECT, "a power of two"), transform(16, 15), transform(17, 15,
        "rows in lanes with a rest"), transform(32, 15), transform(17, 1, "one number"), transform(1, 2 * DIRECT,
        "a power of two", "a long power of two", "a row on all threads"), transform(ALONE, 2 * DIRECT, "a power of two",
        "a long power of two", "rows alone"), transform(ALONE - 1, 2 * DIRECT, "a power of two", "a long power of two",
        "a row on all threads"), transform(1, 2**11 * 17, "an even length with a large prime", "long with a large prime",
        "a row on all threads")],
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
        "all reduced"), folded([SEGMENT, SEGMENT + 1], 3, "all reduced", "segments of segments"), folded([2, ROOM], 1,
        "the first axes reduced"), folded([2, ROOM + 1], 1, "the first axes reduced", "a wide tile"), folded([2, ROOM + 1], 2,
        "the last axes reduced")],
    "lstm_cell": [({"rows": 1, "units": 2}, {"one row"}), ({"rows": 2, "units": 1}, {"one unit"}), ({"rows": 1, "units": 1},
        set()), ({"rows": 2, "units": 2}, set()), ({"rows": 1, "units": 0}, set())],
    "cumsum": [running([4, 2], 0, 0, "columns"), running([2, 4], 1, 0, "one column"), running([2, 4], 1, 1, "one column",
        "backwards"), running([1], 0, 1, "one column"), running([0, 2], 0, 1), running([0], 0, 0), running([SUMS**2], 0, 0,
        "one column"), running([SUMS**2 + 1], 0, 0, "one column", "chunks of chunks")],
    "slice_axes": [sliced("in", "out", *point) for point in PARTS],
    "pad_axes": [sliced("out", "in", *point) for point in PARTS],
    "take_axis": [axis(2, 3, 2, 2, 2, 0, "indices of their own"), axis(2, 3, 2, 1, 2, 0, "shared by the outer arrays"), axis(2, 3,
        2, 2, 1, 0, "shared by the columns"), axis(2, 3, 2, 1, 1, 0, "shared by all"), axis(2, 3, 1, 2, 1, 0, "the last axis"),
        axis(1, 3, 1, 1, 1, 0), axis(2, 1, 1, 2, 1, 0), axis(1, 3, 2, 1, 2, 0), axis(1, 3, 2, 1, 1, 0), axis(1, 3, 1, 1, 1, 2),
        axis(1, 3, 1, 1, 1, 3, "an index out of range"), axis(1, 0, 1, 1, 1, 0)],
    "topk": [top(2, 3, 1, 1, 1, "one of several", "the last axis"), top(1, 3, 2, 1, 1, "one of several"), top(1, 3, 1, 1, 1),
        top(1, 1, 2, 1, 1), top(1, 3, 2, 3, 1, "all"), top(1, 3, 1, 3, 1), top(2, 3, 2, 2, 0, "the smallest",
        "an axis between others"), top(2, 3, 2, 0, 0), top(2, 3, 1, 2, 1, "the last axis"), top(1, 3, 1, 2, 0, "the smallest")],
    "conv_grouped": [convolved("one group"), convolved("one group", in_channels=9), convolved("depthwise", groups=2),
        convolved(groups=2, out_channels=2), convolved(groups=2, in_channels=8), convolved("several groups of many channels",
        groups=2, in_channels=9), convolved("one group", "a dilated kernel", kernel=[1, 2], dilation=[1, 2]),
        convolved("one group", kernel=[1, 2], dilation=[2, 1], stride=[2, 1]), convolved("one group", "a dilated kernel",
        "stride and dilation with a common factor", kernel=[2, 1], stride=[4, 1], dilation=[6, 1]), convolved("one group",
        "a dilated kernel", kernel=[2, 1], stride=[3, 1], dilation=[2, 1]), convolved("one group", padding_low=[1, 2],
        padding_high=[1, 2]), convolved("one group", "other padding after than before", padding_high=[0, 1]),
        convolved("one group", "several images", batch=2), convolved("depthwise", groups=PLANES - 1, spatial=[1, 1]),
        convolved("depthwise", "small images of many groups", groups=PLANES, spatial=[1, 1]), convolved("depthwise",
        "small images of many groups", groups=PLANES, spatial=[1, IMAGE]), convolved("depthwise", groups=PLANES, spatial=[1,
        IMAGE + 1]), convolved("several groups of many channels", groups=PLANES, spatial=[1, 1], in_channels=9),
        convolved("small images of many groups", "several images", batch=2, groups=PLANES // 2, spatial=[1, 1], in_channels=2)],
}  # fmt: skip


def own_classes(row: Op) -> dict[str, Any]:
    return {n: f for n, f in row.drawing.classes.items() if not (isinstance(f, Near) and f.parts)}


@pytest.mark.parametrize("name", POINTS)
def test_classes_hold_where_they_say(name: str) -> None:
    for values, wanted in POINTS[name]:
        own = own_classes(registry.get(name))
        assert {n for n, holds in own.items() if call_named(holds, values)} == wanted, values


#: rows of which some classes hold where an array is empty, too
OF_EMPTY_ARRAYS = {
    "concat1d", "slice1d", "cross_entropy", "max_pool", "conv", "conv_grouped", "flash_attention", "grouped_attention",
    "group_norm_stats", "rotary", "sinusoidal", "spectral_conv1d_rfft", "take_axis", "topk",
}  # fmt: skip


@pytest.mark.parametrize("name", sorted(POINTS.keys() - OF_EMPTY_ARRAYS))
def test_classes_do_not_hold_of_empty_arrays(name: str) -> None:
    row = registry.get(name)
    dims = {d for a in row.signature.inputs + row.signature.outputs for d in a.dims}
    for values in [{**v, d: 0} for v, _ in POINTS[name] for d in dims & v.keys()]:
        assert [n for n, holds in own_classes(row).items() if call_named(holds, values)] == [], values


def test_every_class_has_a_point() -> None:
    shared = {n for points in POINTS.values() for _, names in points for n in names}
    assert {n: r.name for r in registry.ops(None) for n in own_classes(r) if n not in shared} == {}


#: row -> values, and of what length the things in tiles are there; where another of the values is 0 they are 0
LENGTHS: dict[str, tuple[dict[str, Any], dict[str, int]]] = {
    "add": ({"n": 7}, {"elements": 7}),
    "reduce_sum": ({"n": 7}, {"elements": 7}),
    "reduce_sum_axis0": ({"rows": 3, "cols": 5}, {"rows": 3, "columns": 5}),
    "reduce_sum_axis1": ({"rows": 3, "cols": 5}, {"columns": 5}),
    "reduce_sum_axis": ({"dims": [3, 5], "axis": 1}, {"sum over": 5}),
    "concat1d": ({"n": 3, "m": 4}, {"elements": 7}),
    "transpose2d": ({"rows": 3, "cols": 5}, {"rows": 3, "columns": 5, "elements": 15}),
    "broadcast_to": ({"out_dims": [3, 5]}, {"elements": 15}),
    "swap_adjacent_at_depth": ({"dims": [3, 5]}, {"elements": 15}),
    "transpose3d_bca": ({"a": 2, "b": 3, "c": 5}, {"elements": 30}),
    "gather_vec": ({"n": 3, "k": 5}, {"elements": 3, "indices": 5}),
    "scatter_add_rows": ({"rows": 3, "cols": 5, "k": 2}, {"elements": 15, "columns": 5, "indices": 2}),
    "matmul": ({"m": 2, "n": 3, "p": 5}, {"rows": 2, "inner": 3, "columns": 5}),
    "bmm": ({"batch": 7, "m": 2, "n": 3, "p": 5}, {"rows": 2, "inner": 3, "columns": 5}),
    "linear": ({"batch": 2, "inputs": 3, "outputs": 5}, {"rows": 2, "inner": 3, "columns": 5}),
    "softmax": ({"rows": 3, "cols": 5}, {"rows": 3, "columns": 5}),
    "batchnorm_channel_first": ({"channels": 3, "height": 5, "width": 7}, {"rows": 3, "columns": 35}),
    "mse_loss": ({"n": 7}, {"elements": 7}),
    "conv": ({"in_channels": 3, "spatial": [5, 4], "kernel": [2, 1], "stride": [1, 1], "padding": [0, 0]}, {"inner": 6,
        "positions": 16}),
    "max_pool": ({"spatial": [9, 6], "kernel": [1, 2], "stride": [1, 2], "padding": [0, 1]}, {"outputs of a row": 4}),
    "flash_attention": ({"n": 3, "batch": 2}, {"keys": 3}),
    "grouped_attention": ({"keys": 3, "batch": 1, "heads": 2, "queries": 5, "width": 2}, {"keys of a group": 3}),
    "rotary": ({"n": 3, "d": 4}, {"numbers of the positions": 12}),
    "selective_scan_diag": ({"seq_len": 3, "state": 5}, {"steps": 3, "channels": 5}),
    "spectral_conv1d_rfft": ({"modes": 3, "width": 5}, {"channels": 5}),
    "rand_normal": ({"n": 7}, {"elements": 7}),
    "sgd_step": ({"lengths": [3, 5, 2]}, {"elements of the longest": 5}),
}  # fmt: skip


@pytest.mark.parametrize("name", LENGTHS)
def test_tiles_are_of_the_length_that_they_name(name: str) -> None:
    values, lengths = LENGTHS[name]
    tiles = {n: f for n, f in registry.get(name).drawing.classes.items() if isinstance(f, Near) and f.parts}
    for n, f in tiles.items():
        what = next(w for w in sorted(lengths, key=len, reverse=True) if n.startswith(f"{w} "))
        assert f.length is not None and call_named(f.length, values) == lengths[what], n
    assert {w for w in lengths for n in tiles if n.startswith(f"{w} ")} == set(lengths) and tiles
    if len(lengths) > 1 and not {"k", "spatial"} & values.keys():
        for absent in [n for n in values if isinstance(values[n], int)]:
            none = [n for n, f in tiles.items() if f(**{**values, absent: 0})]
            assert none == [], f"{absent} = 0"


def test_every_padding_and_stride_is_of_one_class() -> None:
    strides, paddings = list(WINDOWS)[:3], list(WINDOWS)[3:]
    for kernel in range(1, 7):
        for at in range(9):
            values = {"kernel": [kernel], "stride": [at + 1], "padding": [at]}
            found = [sum(call_named(WINDOWS[n], values) for n in names) for names in (strides, paddings)]
            assert found == [int(kernel > 1 or at > 0), 1], values
