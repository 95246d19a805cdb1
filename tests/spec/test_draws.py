"""What cases are drawn from: every way to draw a number gives what it says, and rows draw the values that they are about."""

import inspect
import itertools
import math
from collections import Counter
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from tlspec import registry
from tlspec.bounds import call_named
from tlspec.draw.cases import (
    DATA,
    SIZES,
    STREAMED,
    Case,
    Draw,
    _admissible,
    _move,
    break_check,
    build_case,
    data_classes,
    draw_case,
    generator,
    is_aligned,
    refused_by,
    shape_case,
)
from tlspec.draw.data import _EXTREMES, _SPECIALS, PART, corners, double, fill
from tlspec.draw.draws import DIMS, LIMITS, LONG
from tlspec.formats import FORMATS
from tlspec.judge import altered
from tlspec.judge.shrink import resized
from tlspec.judge.subject import subject_of
from tlspec.judge.trial import with_results
from tlspec.ops import conv, pool
from tlspec.ops.attention import UNLIMITED
from tlspec.ops.random import _CARRIES
from tlspec.references import find, references
from tlspec.registry import Op

TIMES = 600
FLOAT32 = FORMATS["float32"]


def drawn(draw: Callable[[Draw], object], **options: object) -> list[object]:
    d = Draw(generator("draws"), 2**16, **options)
    return [draw(d) for _ in range(TIMES)]


@pytest.mark.every_choice
def test_small_ranks_are_likelier() -> None:
    ranks = Counter(drawn(lambda d: d.rank()))
    assert set(ranks) == set(range(1, 9)) and {r for r, _ in ranks.most_common(2)} == {2, 3}
    assert Counter(drawn(lambda d: d.rank(3))).most_common(1)[0][0] == 3
    assert ranks[2] > 2 * ranks[8] and set(drawn(lambda d: d.rank(3, 4))) == {3, 4}


@pytest.mark.every_choice
@pytest.mark.parametrize("draw", [lambda d: d.dims(3), lambda d: d.factors(2**12, 3)], ids=["dims", "factors"])
@pytest.mark.parametrize("edges", [(), (96, 4096)], ids=["sizes", "edges"])
def test_any_axis_may_be_the_longest(draw: Callable[[Draw], list[int]], edges: tuple[int, ...]) -> None:
    longest = Counter(dims.index(max(dims)) for dims in drawn(draw, edges=edges) if sorted(dims)[-1] > sorted(dims)[-2])
    share = longest.total() / 3
    assert share > TIMES / 5 and all(abs(longest[axis] - share) < 5 * share**0.5 for axis in range(3)), longest


@pytest.mark.every_choice
def test_ends_that_are_included_are_drawn() -> None:
    low, high = 0.125, 77.0
    turns = [Draw(generator("ends", turn), 2**16, turn=turn) for turn in range(60)]
    for default in (2.0, 2.75, 0.3):
        found = {d.written(default, low, high) for d in turns}
        assert {low, high, float(np.float32(default))} <= found and found == {float(np.float32(n)) for n in found}
    assert {3, 5} <= {d.integer(3, 5) for d in turns} <= {3, 4, 5}


@pytest.mark.every_choice
def test_dims_fit_their_budget() -> None:
    for dims in drawn(lambda d: d.dims()):
        assert math.prod(dims) <= 2**14 and min(dims) > 0 and set(dims) <= set(DIMS)
    assert max(math.prod(dims) for dims in drawn(lambda d: d.dims())) > 2**13
    assert any(0 in dims for dims in drawn(lambda d: d.dims(2), empty=True))
    assert {math.prod(dims) <= 25 for dims in drawn(lambda d: d.dims(budget=100))} == {True}


@pytest.mark.every_choice
def test_lengths_of_lists() -> None:
    found = drawn(lambda d: d.lengths(3), empty=True)
    assert {len(lengths) for lengths in found} == {0, 1, 3, 17, 100}
    assert max(sum(lengths) for lengths in found) <= 2**16 // 3 and max(max(n, default=0) for n in found) > 16384
    assert sum(0 in lengths for lengths in found) > TIMES / 4 and [] not in drawn(lambda d: d.lengths(3))


@pytest.mark.every_choice
def test_sizes_meet_within_the_budget() -> None:
    for paired, room in ((True, 2**16), (False, 2**32)):
        pairs = []
        for seed in range(TIMES):
            d = Draw(generator("pairs", seed), 2**16, paired=paired, empty=seed % 2 == 0)
            pairs.append((d.dim(), d.dim()))
        assert max(a * b for a, b in pairs) <= room and any(a * b > 2**14 for a, b in pairs)
        assert {0, 1} <= {a for a, _ in pairs} and all(a != b or a == 0 for a, b in pairs)
    blocks = [Draw(generator("blocks", seed), 2**16, axes=2).dim() for seed in range(TIMES)]
    assert max(blocks) <= 1.5 * 2**8 and np.median(blocks) > 64


@pytest.mark.every_choice
@pytest.mark.parametrize(
    "options", [{}, {"step": 1}, {"step": 16}, {"axes": 3, "step": 8}, {"edges": (96, 4096)}], ids=str
)
def test_sizes_are_within_their_range_whatever_was_drawn_before(options: dict[str, Any]) -> None:
    """A size is at least `low` and at most `high`, whichever smaller or larger ones the case already has."""
    ranges = [(1, 2**14), (0, 5), (16, 16), (64, 300), (3, 65), (0, 2000), (1, 8), (500, 2**20)]
    for seed in range(TIMES // 6):
        d = Draw(generator("ranges", seed), 2**16, empty=seed % 2 == 0, paired=seed % 3 > 0, **options)
        for low, high in d.rng.permutation(ranges).tolist():
            assert max(low, not d.empty) <= d.dim(low, high) <= high, (seed, low, high)
            aligned = d.aligned(low, high)
            assert aligned is None or max(low, 1) <= aligned <= high, (seed, low, high)


@pytest.mark.every_choice
def test_numbers() -> None:
    assert set(drawn(lambda d: d.integer(3, 5))) == {3, 4, 5} and set(drawn(lambda d: d.choice("abc"))) == set("abc")
    reals = np.array(drawn(lambda d: d.real(-2, 1)))
    assert np.array_equal(reals, np.float32(reals)) and reals.min() > -2 and reals.max() < 1
    assert abs(reals.mean() + 0.5) < 5 * np.sqrt(9 / 12 / TIMES)


@pytest.mark.every_choice
def test_half_of_the_integers_lie_next_to_boundaries_and_limits() -> None:
    found = drawn(lambda d: d.integer(0, 2**33), edges=(96,))
    for ends in ((96,), LIMITS):
        near = {k * b + e for b in ends for k in (1, 2, 3) for e in (-k, -1, 0, 1, k)}
        assert TIMES * 0.15 < sum(n in near for n in found) < TIMES * 0.35
    assert max(drawn(lambda d: d.integer(0, 64), edges=(96,))) == 64  # a choice of few
    for step, beside in ((0, {*range(-3, 4)}), (16, {0})):  # aligned cases have the boundaries themselves
        ends = {n - round(n / 96) * 96 for n in drawn(lambda d: d.edge(1, 300), edges=(96,), step=step) if n}
        assert ends == beside, step


@pytest.mark.every_choice
@pytest.mark.parametrize("edges", [(), (32,), (32, 2048)], ids=str)
def test_indices_are_rows_unless_they_are_to_lie_outside(edges: tuple[int, ...]) -> None:
    for rows in (1, 2, 31, 32, 33, 63, 64, 65, 2048, 4096, 5000):
        found = np.concatenate(drawn(lambda d, rows=rows: d.indices(20, rows), edges=edges))
        near = {m + e for b in edges for m in range(b, rows + 1, b) for e in (-1, 0, 1) if b * 64 >= m and m + e < rows}
        assert {0, rows - 1} | near <= set(found.tolist()) and found.max() < rows
        outside = np.concatenate(drawn(lambda d, rows=rows: d.indices(20, rows, outside=True), edges=edges))
        assert {rows, 2**32 - 1} == set(outside[outside >= rows].tolist())


@pytest.mark.every_choice
def test_indices_repeat_a_row_and_all_lie_outside_of_no_rows() -> None:
    rows = 10**6
    for each in drawn(lambda d: d.indices(200, rows))[:9]:
        (_, most), (_, more), (_, least), (_, once) = Counter(each[each > 0].tolist()).most_common(4)
        assert min(most, more) > 9 and least <= 2 >= once, "the last row, and another"
    outside = [set(each.tolist()) for each in drawn(lambda d: d.indices(40, 0, outside=True))[:9]]
    assert (
        all({0, 2**32 - 1} < each or max(each - {2**32 - 1}) > 0 for each in outside) and len(set.union(*outside)) > 6
    )


@pytest.mark.every_choice
@pytest.mark.parametrize("text", ["q[rows, cols], at: index[k]", "q: i8[rows, cols], at: u32[k], b[cols]",
    "q: bool[rows, cols], b[cols], at: index[k]", "q[rows, cols], c[3], at: u32[k] < 1"])  # fmt: skip
def test_indices_of_a_reference_are_rows_of_its_first_array(text: str) -> None:
    """Whatever its elements are, in drawn cases and in shorter and longer ones, unless the signature says another limit."""
    row = subject_of(None, lambda q, at, b=None, c=None: q[at] * 1.0, f"{text} -> out[k, cols]")
    seen, limit = set(), 1 if "<" in text else 2**32
    for case in (draw_case(row, seed, "normal", "small") for seed in range(12)):
        for rows, k in ((case.dims["rows"], case.dims["k"]), (1, 3), (3, 40), (0, 0), (2 * case.dims["rows"], 7)):
            made = resized(case, {**case.dims, "rows": rows, "k": k})
            assert made is not None
            last = made.inputs["at"].max(initial=0)
            assert last < max(min(rows, limit), 1)
            seen.add(last == min(rows, limit) - 1 > 0)
        assert (resized(case, {**case.dims, "rows": 0, "k": 1}) is None) == (limit > 1)
    assert seen == {False, True} or limit == 1


@pytest.mark.every_choice
def test_what_the_judge_alone_draws() -> None:
    """Rows of one scale each that stays finite; numbers around one; rows of large numbers, or with one above the others."""
    scales, middles, alone, last = set(), set(), 0, 0
    for k in range(80):
        huge, near, far = (fill(generator(data, k), (8, 300), data) for data in ("huge", "offset", "spread"))
        scales |= {int(n) for n in np.rint(np.log2(np.median(np.abs(huge).astype(float), axis=1) / 0.6745))}
        middles.add(float(np.sign(near.mean()) * 2.0 ** np.rint(np.log2(abs(near.mean())))))
        assert np.isfinite(huge).all() and 0.9 < near.astype(float).std() < 1.1
        top, ends = np.sort(np.abs(far.astype(float)), axis=1), np.argmax(far, axis=1) == 299
        if (top[:, -2] < 6).all():
            assert top[:, -1].min() > 56 and top[:, -1].max() < 2 * 128 + 6
            alone, last = alone + 1, last + (ends.any() and not ends.all())
        else:
            assert 24 < far.astype(float).std() < 150
    assert {*range(97, 127)} <= scales and max(scales) <= 128 and min(scales) >= 95
    assert middles == {sign * 2.0**k for sign in (-1, 1) for k in range(6, 13)} and 20 < alone < 60 and last > alone - 4


@pytest.mark.every_choice
def test_lengths_of_every_kind_are_drawn() -> None:
    """Aligned in half of the cases, with equal ones and those of models; long beside short ones; none."""
    assert all(sum(is_aligned(s, d) for d in DATA) == 5 for s in range(4))
    for size in ("small", "medium", "edges"):
        cases = [draw_case("matmul", seed, data, size) for seed in range(40) for data in ("normal", "uniform")]
        drawn = [(is_aligned(c.seed, c.data), sorted(c.dims.values())) for c in cases]
        longest = {(dims[1], dims[2]) for _, dims in drawn if dims[1] <= 3}
        assert {n for _, n in longest} >= {n for n in (8209, 8256, 65539) if 3 * n <= SIZES[size] != 2**10}, size
        assert size == "small" or {k for k, n in longest if n in LONG} >= {2, 3}
        for aligned in (True, False) if size != "edges" else ():
            kind = [dims for of, dims in drawn if of == aligned]
            assert (np.mean([n % 4 == 0 for dims in kind for n in dims if n > 8]) > 0.7) == aligned
            assert (sum(dims[0] == dims[2] > 3 for dims in kind) > 9) == aligned
            assert bool({10, 14, 49, 50, 77} & {n for dims in kind for n in dims}) == aligned
        assert size == "edges" or any(dims[0] == 0 for _, dims in drawn)
    absent = [draw_case("conv_grouped", seed, "normal", "small").inputs["b"] is None for seed in range(20)]
    assert 0 < sum(absent) < 20
    whole = shape_case(registry.get("softmax"), "forward", {"rows": 40, "cols": 9}, 0, "integers").inputs["x"]
    assert {*whole.flat} == {-1, 0, 1} and draw_case("relu", 1, "normal", "large").inputs["x"].size > STREAMED


@pytest.mark.every_choice
def test_a_case_of_given_lengths() -> None:
    """With the defaults of its parameters, or those that are given; what is missing, unknown or refused is named."""
    row, sizes = registry.get("layer_norm"), {"rows": 3, "cols": 5}
    case, again, other = (shape_case(row, "vjp", sizes, seed, "grid") for seed in (4, 4, 5))
    (eps,) = row.signature.params
    assert (case.dims, case.params, case.size, case.data) == (sizes, {"eps": float(eps.default or 0)}, "shape", "grid")
    assert {n: x.shape for n, x in case.arguments.items() if x is not None} == {"x": (3, 5), "gamma": (5,), "g": (3, 5)}
    assert case.inputs["x"].tobytes() == again.inputs["x"].tobytes() != other.inputs["x"].tobytes()
    assert shape_case(row, "forward", {**sizes, "eps": 0.25}).params == {"eps": 0.25}
    wrong = {"cols is missing": {"rows": 3}, "n is not one": {**sizes, "n": 1}, "expected eps": {**sizes, "eps": -1}}
    for message, given in wrong.items():
        with pytest.raises(ValueError, match=f"layer_norm: shapes: got .*{message}"):
            shape_case(row, "forward", given)


@pytest.mark.only(where=lambda row: row.drawing.nonnegative)
def test_squares_and_norms_are_drawn_so(row: Op) -> None:
    """In every data class but that of special numbers, in which arrays are negative now and then; others are in any class."""
    for data in data_classes(row):
        arrays = [draw_case(row, seed, data, "small").inputs for seed in range(8)]
        for a in (a for a in row.signature.inputs if a.kind in ("f32", "list") and a.dims != ("1",)):
            low, square = min(np.nanmin(x[a.name], initial=0) for x in arrays), a.name in row.drawing.nonnegative
            any_sign = not square or data == "special"
            assert (low < 0) == any_sign or data in ("uniform", "structured"), (a.name, data)
            assert any_sign or low >= 0


@pytest.mark.every_choice
@pytest.mark.parametrize("count", [PART, PART + 1000, 2 * PART])
def test_what_is_drawn_next_is_drawn_for_the_first_time(count: int) -> None:
    rng = generator("next", count)
    first, then = (fill(rng, (n,), "normal") for n in (count, 1000))
    assert not any((first[i : i + 8] == then[:8]).all() for i in np.flatnonzero(first[:-8] == then[0]))


@pytest.mark.every_choice
def test_doubles() -> None:
    x = {data: double(generator("double"), (4, 5000), data) for data in DATA}
    assert all(a.shape == (4, 5000) and a.dtype == np.float64 for a in x.values())
    whole = {data: bool(np.array_equal(a * 64, np.rint(a * 64))) for data, a in x.items()}
    assert [data for data in whole if whole[data]] == ["integers", "structured", "huge", "grid"]
    for data in ("normal", "uniform"):
        assert not np.array_equal(x[data], np.float32(x[data]))  # double precision
    assert abs(x["normal"].mean()) < 0.05 and abs(x["normal"].std() - 1) < 0.05
    assert x["uniform"].min() >= 0 and abs(x["uniform"].mean() - 0.5) < 0.02


@pytest.mark.every_choice
def test_special_numbers_are_many_or_one_or_rows() -> None:
    drawn = np.array([fill(generator("special", k), (50, 41), "special") for k in range(60)])
    odd = np.count_nonzero(~np.isfinite(drawn), axis=(1, 2))
    assert np.isnan(drawn).any() and np.isinf(drawn).any() and (odd > 200).any() and (odd == 1).any()
    assert np.isneginf(drawn).all(axis=2).any()


@pytest.mark.every_choice
def test_structures_are_all_drawn() -> None:
    """Constants of both signs, a one in any column, rising numbers, few, zeros, signs by turns."""
    drawn = [fill(generator("structured", k), (9, 7), "structured") for k in range(TIMES)]
    constants = [x[0, 0] for x in drawn if x.any() and (x == x[0, 0]).all()]
    ones = [int(x[0].argmax()) for x in drawn if (x.sum(axis=1) == 1).all() and x.max() == 1]
    assert min(constants) < 0 < max(constants) and {*ones} == {*range(7)}
    flat = [x.ravel() for x in drawn]
    rising, by_turns = (lambda x: (np.diff(x) > 0).all()), (lambda x: (x[1:] * x[:-1] < 0).all())
    for kind in (rising, by_turns, lambda x: len(set(x)) == 3, lambda x: not x.any()):
        assert sum(map(kind, flat)) > TIMES / 12


@pytest.mark.every_choice
def test_special_numbers_meet_in_pairs() -> None:
    """Every one with every other, equal ones, zeros of unlike signs; NaN of both signs, quiet and signalling, even payloads."""
    a, b = (generator("pairs", k).standard_normal(3000).astype(np.float32) for k in range(2))
    corners(generator("pairs"), [a, b], True)
    pool = np.append(_SPECIALS, _EXTREMES)
    odd = {*pool[~np.isnan(pool)].view(np.uint32).tolist()}
    pairs = {*zip(a.view(np.uint32).tolist(), b.view(np.uint32).tolist(), strict=True)}
    assert len({*itertools.product(odd, odd)} & pairs) > 0.8 * len(odd) ** 2 and np.count_nonzero(a == b) > 200
    for name, extreme in (("max", True), ("exp", True), ("matmul", False)):
        arrays = [x for k in range(9) for x in draw_case(name, k, "special", "medium").inputs.values()]
        assert any(FLOAT32.largest in np.abs(x) for x in arrays if x is not None) == extreme
    nans = np.zeros(0, np.uint32)
    for seed in range(10):
        bits = draw_case("slice1d", seed, "special", "medium").inputs["x"].view(np.uint32)
        nans = np.append(nans, bits[(bits & 0x7FFFFFFF) > 0x7F800000])
    quiet, negative = nans >> 22 & 1, nans >> 31
    assert {*(quiet * 2 + negative).tolist()} == {0, 1, 2, 3} and not (nans & 1).any()


@pytest.mark.every_choice
def test_strides_lie_in_every_way_that_they_say() -> None:
    batch, heads, rows, width = 2, 5, 7, 11
    found = drawn(lambda d: d.matrix_strides(batch, rows, width))
    assert {1 in f[1:] for f in found} == {True} and {f[2] == 1 for f in found} == {True, False}
    assert any(f[0] == 0 and max(f) >= rows for f in found) and any(f[1] < width and f[2] == 1 for f in found)
    assert any(f[1] >= batch * width and 0 < f[0] < f[1] for f in found if f[2] == 1)  # in turn
    assert {f[1] - width for f in found if f[2] == 1} >= {0, 1, 3, 4, 8} <= {f[2] - rows for f in found if f[1] == 1}
    assert (
        {f[0] - rows * f[1] for f in found if f[2] == 1}
        >= {0, 1, 4}
        <= {f[0] - width * f[2] for f in found if f[1] == 1}
    )
    for samples, parts in ((2, 5), (5, 2)):  # rows that are not shared lie apart, and together
        for f in drawn(lambda d, n=samples, m=parts: d.head_strides(n, m, rows, width)):
            if 0 not in f:
                places = np.sort(np.tensordot(f, np.indices((samples, parts, rows)), 1), None)
                assert np.diff(places).min() >= width and places[-1] < 3 * samples * parts * rows * (width + 9)
    lies = {
        (f[0] == 0, f[1] == 0, f[1] == width, f[2] >= 3 * heads * width)
        for f in drawn(lambda d: d.head_strides(batch, heads, rows, width))
    }
    assert {k for way in lies for k, holds in enumerate(way) if holds} == {0, 1, 2, 3}


@pytest.mark.every_choice
def test_what_lies_beside_a_boundary_is_small() -> None:
    """A move puts the product of some sizes next to a boundary; half of the time the others are 1, 2, 3 or 5."""
    row, sizes = registry.get("bmm"), {"batch": 61, "m": 61, "n": 61, "p": 61}
    d = Draw(generator("move"), 2**16, edges=(4096,))
    moved = [_move(row, d, sizes, None) for _ in range(TIMES)]
    near = {k * 4096 + e for k in (1, 2, 3) for e in (-k, -1, 0, 1, k)}
    some = [[n for n in v.values() if n != 61] for v in moved]
    assert set(sizes.values()) == {61} and sum(math.prod(v) in near for v in some) > TIMES / 4
    small = Counter(
        n for v in moved if (beside := set(v.values()) - near) and len(v) - len(beside) == 1 for n in beside
    )
    assert {1, 2, 3, 5} <= {n for n, times in small.items() if times > 10}, small


NINE = {n: {1, 2, 3} for n in ("stride_h", "stride_w")}
#: row -> name -> values that its draws have to give, among others
PROMISED: dict[str, dict[str, set[object]]] = {
    "clamp": {"lo": {-1.0, 0.0, -0.5, -1e30, -np.inf}, "hi": {1.0, 1.5, 1e30, np.inf}},
    "safe_log": {"eps": {1e-6, 1e-3, 2.0**-50, 0.5, 1.0}},
    "layer_norm": {"eps": {1e-6, 1e-5, 1e-3, 1.0}},
    "batchnorm_channel_first": {"eps": {1e-6, 1e-5, 1e-3, 1.0}},
    "batch_norm_stats": {"eps": {1e-6, 1e-5, 1e-3, 1.0}, "positions": {1}},
    "group_norm_stats": {"eps": {1e-6, 1e-5, 1e-3, 1.0}, "positions": {1}},
    "slice1d": {"start": {0}},
    "conv": {"in_channels": {*conv.CHANNELS[:10]}, "out_channels": {1, 2, 3, 5, 7, 13, 16, 17}, "batch": {1, 2, 3, 5, 7},
             "kernel": {*range(1, 20)}, "stride": {1, 2, 3}, "padding": {0, 1, 2, 3}},
    "conv_transpose2d": {"kernel_h": {*range(1, 8)}, "kernel_w": {*range(1, 8)}, **NINE, "padding_h": {0, 1, 2, 3}},
    "max_pool": {"kernel": {1, 2, 3, 4, 5, 7}, "stride": {1, 2, 3, 4, 5, 7}, "padding": {*range(10)}},
    "avg_pool2d": {"kernel_h": {1, 2, 3, 4, 5, 7}, "kernel_w": {1, 2, 3, 4, 5, 7}, **NINE, "padding_w": {*range(10)}},
    "smooth_max_pool": {"beta": {1.0, -1.0, 2.5, -0.125, 20.0, 1e-3, -300.0}},
    "flash_attention": {"mask_mode": {0, 1, 2, 3}, "batch": {1, 2, 3, 4}},
    "grouped_attention": {"mask_mode": {0, 1, 2}, "kv_heads": {1, 2}, "heads": {1, 2, 3, 4, 6}, "batch": {1, 2},
                          "before": {UNLIMITED, 0, 1, 5}, "after": {UNLIMITED, 0, 1, 5}, "offset": {0, 1, 2},
                          "mask_heads": {1, 2, 6}, "mask_batch": {1, 2}},
    "rotary": {"start": {0, 1, 4095, 10**6, 2**24 - 3, 2**31 + 5}, "base": {1e4, 500.0}, "halves": {0, 1}},
    "sinusoidal": {"start": {0, 1, 4095, 10**6, 2**24 - 3, 2**31 + 5}, "base": {1e4, 500.0}, "d": {1, 2, 3}},
    "selective_scan_diag": {"seq_len": {1, 2, 3, 5, 17, 31, 127, 128, 129, 255, 256, 257, 384, 509, 1025, 1500}},
    "spectral_conv1d_rfft": {"width": {1, 2, 3, 4}, "modes": {1, 15, 16}},
    "rand_uniform": {"key": {0, 2**64 - 1, *_CARRIES}},
    "bernoulli_mask": {"keep": {0.0, 1.0, 0.5, 0.9}},
    "rand_normal": {"mean": {0.0}, "std": {0.0, 1.0}},
    "sgd_step": {"lr": {0.01, 0.5, 0.0}, "weight_decay": {0.0, 0.01}},
    "momentum_step": {"nesterov": {0, 1}, "momentum": {0.9, 0.99, 0.0}, "dampening": {0.0, 0.5, 1.0}},
    "adam_step": {"lr": {0.001, 0.0}, "beta1": {0.9, 0.0, 1 - 2.0**-24}, "beta2": {0.999, 0.0, 1 - 2.0**-24},
                  "eps": {1e-8, 0.0, 1e-3}, "step": {1, 2, 10, 1000, 10**6, 2**32, 2**63 - 1}},
    "rmsprop_centered_step": {"alpha": {0.99, 0.0, 1 - 2.0**-24}, "eps": {1e-8, 0.0, 1e-3}, "momentum": {0.9, 0.0}},
    "lion_step": {"beta1": {0.9, 0.0, 1 - 2.0**-24}, "beta2": {0.99, 0.0, 1 - 2.0**-24}},
    "clip_scale": {"max_norm": {0.0, 1.0}, "eps": {1e-6, 0.0}},
    "rms_norm": {"eps": {1e-6, 1e-5, 1e-3, 1.0}}, "layer_norm_stats": {"eps": {1e-6, 1e-5, 1e-3, 1.0}},
    "rms_norm_stats": {"eps": {1e-6, 1e-5, 1e-3, 1.0}}, "var": {"correction": {0.0, 1.0, 0.5, 3.0}, "root": {0, 1}},
    "cumsum": {"reverse": {0, 1}}, "topk": {"largest": {0, 1}}, "pad_axes": {"value": {0.0, 1.5, -np.inf}},
    "bce_with_logits": {"mean": {0, 1}},
    "cross_entropy_rows": {"smoothing": {0.0, 0.1, 0.5, 1.0}, "weights": {None}},
    "conv_grouped": {"groups": {1, 2, 3, 4, 5, 7}, "dilation": {1, 2, 3}, "padding_low": {0, 1, 2}, "padding_high": {0, 1, 2}},
    "conv_transpose_grouped": {"groups": {1, 2, 3, 4, 5, 7}, "dilation": {1, 2, 3}, "output_padding": {0, 1, 2}},
    "attention_strided": {"mask_mode": {0, 1, 2}, "by_rows": {0, 1}, "kv_heads": {1, 2}, "mask_heads": {1, 2, 6}},
    "attention_strided_gradients": {"mask_mode": {0, 1, 2}, "by_rows": {*range(8)}},
    "adamw_step": {"beta1": {0.9, 0.0, 1 - 2.0**-24}, "eps": {1e-8, 0.0, 1e-3}, "step": {1, 2, 2**32, 2**63 - 1}},
    "rmsprop_momentum_step": {"alpha": {0.99, 0.0, 1 - 2.0**-24}, "eps": {1e-8, 0.0, 1e-3}, "momentum": {0.9, 0.0}},
    "fused_add_rms_norm": {"eps": {1e-6, 1e-5, 1e-3}}, "grouped_matmul": {"groups": {1, 2, 3, 4, 8}},
    "expert_matmul": {"experts": {1, 2, 4, 8}, "chosen": {1, 2, 8}},
    "varlen_attention": {"causal": {0, 1, 2}, "kv_heads": {1, 2}, "heads": {1, 2, 4, 8}, "count": {2, 3, 4, 6}},
    "paged_attention": {"page": {1, 4, 16}, "most": {1, 2, 3}, "pages": {1, 3, 8}, "kv_heads": {1, 2}, "heads": {1, 2, 4, 8}},
    "fp8_block_matmul": {"k_blocks": {1, 2, 3}, "n_blocks": {1, 2}},
    "top_k_top_p": {"k": {0, 1, 2, 5, 50}, "p": {0.0, 0.5, 0.9, 0.95, 1.0}},
    "top_p_renormalise": {"p": {0.0, 0.5, 0.9, 0.95, 1.0}},
}  # fmt: skip


#: the same for cases next to boundaries
PROMISED_NEAR: dict[str, dict[str, set[object]]] = {"smooth_max_pool": {"beta": {1.0, -1.0, 1e-38, -1e-38, 1e-42}}}


@pytest.mark.parametrize(
    ("name", "edges"), [*((n, ()) for n in PROMISED), *((n, (64,)) for n in PROMISED_NEAR)], ids=str
)
def test_rows_draw_what_they_are_about(name: str, edges: tuple[int, ...]) -> None:
    row, promised = find(name) or registry.get(name), (PROMISED_NEAR if edges else PROMISED)[name]
    assert row.drawing.draw is not None
    found: dict[str, set[object]] = {n: set() for n in promised}
    for seed in range(TIMES):
        values = row.drawing.draw(Draw(generator("promised", seed), 2**16, edges=edges, turn=seed))
        for n in found:
            value = values.get(n)
            found[n] |= set(value) if isinstance(value, list) else {value}
    assert {n: promised[n] - found[n] for n in found} == {n: set() for n in found}


@pytest.mark.only(where=lambda row: any(a.kind in ("u32", "index") for a in row.signature.inputs))
def test_of_the_indices_far_outside_some_are_negative_as_signed_numbers(row: registry.Op) -> None:
    cases = [draw_case(row, seed, data, "small") for seed in range(20) for data in data_classes(row, "forward")]
    indices = [c.inputs[a.name] for c in cases for a in row.signature.inputs if a.kind in ("u32", "index")]
    largest = max(x.max(initial=0) for x in indices if x is not None)
    assert largest < 2**24 or largest >= 2**31


@pytest.mark.every_choice
def test_a_flag_that_may_be_more_than_1_is_drawn_so() -> None:
    for row in (*registry.ops(), *references()):
        for flag in [p.name for p in row.signature.params if p.kind == "u32" and row.drawing.draw is not None]:
            cases = [_admissible(row, generator("flags", row.name, seed), SIZES["small"]) for seed in range(12)]
            assert {c[flag] for c in cases} - {0, 1} or refused_by(row, {**cases[0], flag: 2}), (row.name, flag)


@pytest.mark.operations("conv", "conv_transpose", "max_pool", "avg_pool", "smooth_max_pool")
def test_windows_are_those_that_a_reference_can_hold() -> None:
    """Windows of 400 cells and less, about all of which lie on the image; channels about powers of two."""
    d = Draw(generator("windows"), 2**16)
    for rank in (1, 2, 5, 8):
        for _ in range(TIMES // 4):
            values = pool._draw(d, rank)
            assert math.prod(values["kernel"]) <= 400 and len(values["kernel"]) == rank
            assert sum(p > k // 2 for p, k in zip(values["padding"], values["kernel"], strict=True)) <= 2
            assert call_named(registry.get("max_pool").drawing.work, values) > 0
    assert {2**k + e for k in (4, 5, 6, 7) for e in (-1, 1)} - {15} <= set(conv.CHANNELS)
    assert list(conv.CHANNELS) == sorted(set(conv.CHANNELS))


@pytest.mark.parametrize(
    ("name", "sizes"), [("reduce_sum", {"n": 2**22}), ("matmul", {"m": 1, "n": 2**20, "p": 1})], ids=["sum", "product"]
)
def test_sums_of_integers_are_exact_in_any_order(name: str, sizes: dict[str, int]) -> None:
    """The longer the sum, the smaller the integers."""
    short = build_case(registry.get(name), {**sizes, "n": 100}, {}, generator("short"), data="integers")
    assert max(np.abs(x).max() for x in short.inputs.values() if x is not None) == 8
    arrays = build_case(registry.get(name), sizes, {}, generator("long"), data="integers").inputs.values()
    terms = math.prod(np.abs(x.ravel()).astype(np.float64) for x in arrays if x is not None)
    assert 0 < terms.sum() < 2**24


@pytest.mark.only(where=lambda row: row.contract.checks)
def test_a_check_is_broken_by_the_argument_that_it_blames(row: Op) -> None:
    """Among others, and by values that the C ABI can carry."""
    for check in row.contract.checks:
        blamed = False
        for seed in range(32):
            if blamed and seed >= 8:
                break
            start = _admissible(row, generator("refused", row.name, check.expression, seed), SIZES["small"])
            values = break_check(row, check, seed)
            assert values is not None and refused_by(row, values) is check
            blamed |= not np.array_equal(values[check.name], start[check.name])
            for p in row.signature.sizes + tuple(p.name for p in row.signature.params if p.kind != "float"):
                assert np.min(values[p], initial=0) >= 0 and np.max(values[p], initial=0) < 2**64
        assert blamed, check.expression


# ---- other cases of a case's shapes --------------------------------------------------------------------------------

#: other cases of a case's shapes; `filled` is about whole numbers, which no gradient that reads results takes
ALTERED: dict[str, Callable[[Case], Case | None]] = {
    **{f.__name__: f for f in (altered.halved, altered.touched, altered.permuted, altered.falling, altered.tied,
                               altered.expanded, altered.plain, altered.without, altered.otherwise, altered.shared,
                               altered.nudged, altered.nearly, altered.masked, altered.negative,
                               altered.outdone, altered.sparse, altered.steep, altered.alike, altered.late, altered.turned)},
    "laid": lambda case: altered.laid(case, "expanded"),
    "zeroed": lambda case: altered.zeroed(case, next(iter(case.inputs))),
    "enlarged": lambda case: altered.enlarged(case, next(iter(case.inputs)), 256.0),
    "beside": lambda case: altered.beside(case, [*case.dims][-1], 1) if case.dims else None,
    "uneven": lambda case: next((altered.uneven(case, n) for n, k in case.dims.items() if isinstance(k, int) and k > 1), None),
}  # fmt: skip


def test_every_alteration_is_tried() -> None:
    made = {n for n, f in vars(altered).items() if inspect.isfunction(f) and f.__module__ == altered.__name__}
    assert {n for n in made if n[0] != "_"} == {*ALTERED, "filled", "parametrised", "is_same"}


@pytest.mark.parametrize("name", ALTERED)
def test_an_altered_case_reads_the_results_of_its_own_inputs(name: str) -> None:
    """As a case does that is made of these inputs, in every gradient that reads results."""
    changed = 0
    for row in (r for r in registry.ops() if r.vjp_rule and {a.name for a in r.signature.outputs} & {*r.rule.reads}):
        case = with_results(draw_case(row, 1, "normal", "small", "vjp"), FLOAT32)
        if (other := ALTERED[name](case)) is None:
            continue
        arrays = {**other.inputs, **other.cotangents}
        wanted = build_case(row, other.values, arrays, generator("fresh"), which="vjp").arguments
        for array, x in with_results(other, FLOAT32).arguments.items():
            assert x is wanted[array] or np.array_equal(x, wanted[array], equal_nan=True), (row.name, array)
            changed += array not in arrays and not np.array_equal(x, case.arguments[array], equal_nan=True)
    assert changed
