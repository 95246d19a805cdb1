"""Which cases a check tries: drawn ones, those that draws have seldom, and those of given shapes."""

import itertools
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from tlspec.bounds import call_named, call_reference
from tlspec.drawn import (
    EDGE_WORK,
    EDGES,
    PATH,
    SIZES,
    Case,
    data_classes,
    free_sizes,
    is_empty,
    long_lengths,
    places_of,
    refused_by,
    shape_case,
    shape_of,
    stretched,
)
from tlspec.judge import kept
from tlspec.judge.recorded import shapes_of
from tlspec.judge.runner import text_of
from tlspec.judge.shrink import lengths_of, resized
from tlspec.registry import Op

#: cases of each size and direction, by default
CASES = {"small": 24, "medium": 6, EDGES: 8, "large": 1}
#: multiply-adds of the reference in a large case, of a row that counts them
LARGE_WORK = 2**26
#: the lengths of cases whose lengths are all equal: beyond a tile of 32, and no multiple of 4; and those of tiles
EQUAL = (33, 16, 64, 128, 256)
#: of these, that with other numbers, too
SQUARE = 64
#: the lengths of an axis beside one beyond a warp, of which the first cheap one is tried: beyond the counters of a grid, and
#: several tiles of 128; and the length beside it
LONG_BESIDE, BESIDE = (65600, 8209, 1025, 577, 321), 33
#: a length of an axis beside drawn ones: beyond the widths of heads, and no multiple of a tile
WIDTH = 193
#: how many of a row's paths are tried, and their multiply-adds
JOINED, JOINED_WORK = 6, 2**25
#: how many axes and how many choices of whole numbers are tried with a long axis
LONGER = 4
#: a length beyond the largest vocabularies, which one case for each axis has
VOCABULARY = 2**18 + 2**14


def drawn_cases(op: Op, which: str, cases: Any, data: Any, empty: bool, seed: int) -> Iterator[Case]:
    """The cases of a check: sizes and data classes in turn."""
    wanted = {"small": cases, "medium": cases // 4, EDGES: cases // 3} if isinstance(cases, int) else cases or {}
    counts = {**({} if isinstance(cases, Mapping) else CASES), **wanted}
    if unknown := sorted(set(counts) - set(SIZES)):
        raise ValueError(f"cases={cases!r}: no size {unknown[0]!r}; there are {', '.join(SIZES)}")
    further = ("offset", "spread") if op.bound_of(which).kind not in ("exact", "moved") else ()
    classes = [data] if isinstance(data, str) else [*data_classes(op, which), *further] if data is None else list(data)
    for size, count in counts.items():
        made = tried = 0
        # of large cases those with exact sums first, so that no bound hides what is left out
        turns = sorted(classes, key=lambda c: c != "integers") if size == "large" else classes
        while made < count and tried < 4 * count + 8:
            each = kept.drawn(op, seed + tried // len(turns), turns[tried % len(turns)], size, which)
            tried += 1
            work = op.drawing.work
            if size == "large" and work is not None and call_named(work, each.values) > LARGE_WORK:
                continue
            if empty or not is_empty(each):
                made += 1
                yield each


def shaped_cases(op: Op, which: str, shapes: Any, data: Any, seed: int) -> Iterator[Case]:
    """The cases of given shapes, of the data classes that are wanted, else of normal numbers and, where their sums are exact, of
    integers."""
    classes = [data] if isinstance(data, str) else [c for c in ("normal", "integers") if c in data_classes(op, which)]
    classes = list(data) if data is not None and not isinstance(data, str) else classes
    for given in shapes_of(shapes, op):
        yield from (shape_case(op, which, given, seed, each) for each in classes)


def path_cases(op: Op, which: str, cases: Any, data: Any) -> list[Case]:
    """Cases of the row's paths, whose lengths belong together as those of a layer do: a window, its padding and many channels,
    or attention and many tiles of keys. Draws join these seldom. The cheap ones, spread over all."""
    room = SIZES["large"] // 2
    cheap = [i for i, p in enumerate(op.drawing.paths) if _cheap(op, p, room, JOINED_WORK)] if cases is None else []
    classes = [data] if isinstance(data, str) else list(data or ("normal",))
    return [kept.drawn(op, i, classes[0], PATH, which) for i in cheap[:: max(-(-len(cheap) // JOINED), 1)]]


def without_refused(cases: Sequence[Case]) -> tuple[list[Case], list[str]]:
    """Cases of which those with a length of 0 are left out that a reference of the user's own cannot take, and what is said of
    these."""
    taken, notes = list[Case](), dict[str, None]()
    for case in cases:
        try:
            if case.op.family == "user" and is_empty(case):
                call_reference(case.reference, case.wide, case.values)
            taken.append(case)
        except Exception as error:
            notes[f"lengths of 0 that the reference refuses were not tried: {text_of(error)}"] = None
    return taken, list(notes)


def seldom_drawn(drawn: Sequence[Case], empty: bool, cases: Any = None) -> list[Case]:
    """Of small cases, one with each length alone 1 and, where `empty` cases are wanted, 0; with all lengths equal, in which
    exchanged axes go unnoticed by shape, odd ones and those of whole tiles; and with each axis long. Draws have these seldom or
    by chance. What the row refuses is left out, and what is larger than the sizes that `cases` names."""
    sizes = cases if isinstance(cases, Mapping) and "large" not in cases else {"large": 1}
    limit = max(SIZES[size] for size in ("medium", *sizes))
    small = [c for c in drawn if c.size == "small" and not is_empty(c)]
    if not small or small[0].op.signature.lists:
        return []
    case, sig = small[0], small[0].op.signature
    known = lengths_of(case)
    names = [n for n in free_sizes(case.op) if n in known]
    chosen: list[tuple[Case, dict[str, Any]]] = []
    special = [c for c in small if c.data == "special"][:1]  # whose rows of length 1 hold infinities alone
    for each, length in [(case, 1), *((c, 1) for c in special), *([(case, 0)] if empty else []), (case, WIDTH)]:
        sizes = lengths_of(each)
        for name in names:
            value = sizes[name]
            if isinstance(value, (list, tuple)):
                chosen += [(each, {name: [*value[:i], length, *value[i + 1 :]]}) for i in range(len(value))]
            elif value != length:
                chosen.append((each, {name: length}))
    square = next((c for c in small if all(np.size(c.values.get(n, 0)) in (1, 2) for n in names)), case)
    for equal in EQUAL:
        values = {n: v for n, v in lengths_of(square).items() if n in names}
        own = {n: [equal] * len(v) if isinstance(v, (list, tuple)) else equal for n, v in values.items()}
        chosen.append((square, own))
        chosen += [(c, own) for c in special if equal == SQUARE and square.values.keys() == c.values.keys()]
        if len(names) > 2 and isinstance(known[names[0]], int):  # tiles of a batch, which all together are too large
            chosen.append((square, {**own, names[0]: 3}))
    most = max(
        small, key=lambda c: sum(np.size(c.values.get(n, 0)) for n in names)
    )  # axes, of which 33 each are too many
    chosen.append((most, {n: [2] * len(v) if isinstance(v := most.values.get(n), (list, tuple)) else 2 for n in names}))
    # whole numbers choose an axis or a direction: of each choice that was drawn one case
    whole = [p.name for p in sig.params if p.kind == "u32"]
    several = list({tuple(c.values[n] for n in whole): c for c in reversed(small)}.values())[-LONGER:]
    room = min(
        limit, SIZES["large" if case.op.drawing.fixed else EDGES]
    )  # what is fixed does not give way to a long axis
    longest: list[Case] = []
    for each in several:
        values = {n: v for n, v in lengths_of(each).items() if n in names}
        places = sum(len(v) if isinstance(v, (list, tuple)) else 1 for v in values.values())
        lengths = long_lengths(each.op, SIZES[EDGES])
        lengths = sorted({*lengths[:1], *lengths[-1:]})  # beyond 65,536: indices of 16 bits, and most grids of a GPU
        ones = {n: [1] * len(v) if isinstance(v, (list, tuple)) else 1 for n, v in values.items()}
        for n, i in itertools.product(lengths, range(min(places, LONGER))):
            longest += _first(each, (stretched(v, names, i, n) for v in (values, ones)), room)
        for i in range(min(places, LONGER) if each is several[0] and case.op.family != "user" else 0):
            longest += _first(each, [stretched(ones, names, i, VOCABULARY)], limit)
    values = {n: v for n, v in lengths_of(case).items() if n in names}
    for i in range(len(places_of(dict(values), names)) if case.op.family != "user" else 0):
        beside = (_beside(values, names, i, n) for n in LONG_BESIDE)
        found = _first(case, beside, limit * 3 // 2, LARGE_WORK)
        longest += found or _first(case, _within(values, names, i), min(limit, 8 * SIZES[EDGES]))
    longest += [end for each in longest if (end := _at_the_end(each)) is not None]
    wanted = ((of, {**lengths_of(of), **lengths}) for of, lengths in chosen)
    made = (resized(of, values) for of, values in wanted if _cheap(of.op, values, min(limit, SIZES[EDGES])))
    return [*(c for c in made if c is not None), *longest]


def _beside(values: Mapping[str, Any], names: Sequence[str], chosen: int, length: int) -> dict[str, Any]:
    """The values with one long size, and the one after it, or the first, at BESIDE; the others at most 3."""
    made = stretched(values, names, chosen, length)
    places = places_of(made, names)
    to, at = places[(chosen + 1) % len(places)]
    to[at] = BESIDE if len(places) > 1 else length
    return made


def _within(values: Mapping[str, Any], names: Sequence[str], chosen: int) -> Iterator[dict[str, Any]]:
    """The values with one size that another bounds, as a window or a number of results, beyond a tile, and that one larger."""
    length = LONG_BESIDE[-1]
    for other in range(len(places_of(dict(values), names))):
        made = stretched(values, names, chosen, length)
        to, at = places_of(made, names)[other]
        if other != chosen:
            to[at] = 2 * length - 1
            yield made


def _first(case: Case, sizes: Iterable[dict[str, Any]], budget: int, work: int = EDGE_WORK) -> list[Case]:
    """The case of the first lengths that the row takes and that are cheap; empty where none are."""
    every = ({**lengths_of(case), **each} for each in sizes)
    made = (resized(case, values) for values in every if _cheap(case.op, values, budget, work))
    return [c for c in made if c is not None][:1]


def _at_the_end(case: Case) -> Case | None:
    """The case with a parameter that names a place along the long axis, at the last one; None where none does."""
    known = lengths_of(case)
    size = max((known[n] for n in free_sizes(case.op) if isinstance(known.get(n), int)), default=0)
    for p in case.op.signature.params:
        if (
            p.kind == "u32"
            and known[p.name] < size - 1
            and refused_by(case.op, {**known, **case.inputs, p.name: size}) is not None
        ):
            return resized(case, {**known, p.name: size - 1})
    return None


def is_long(case: Case, least: int = 2**10) -> bool:
    """Whether a case that draws have seldom has a length beyond `least`."""
    known = lengths_of(case)
    return case.size == "shrunk" and any(np.max(known[n], initial=0) > least for n in free_sizes(case.op) if n in known)


def far_kind(case: Case) -> Any:
    """What the cases share of which one stands for all where numbers far apart count: the axes that are long, or lengths of whole
    tiles; None for any other case."""
    known = lengths_of(case)
    lengths = {int(n) for name in free_sizes(case.op) for n in np.atleast_1d(known.get(name, SQUARE))}
    if case.size == "shrunk" and SQUARE in lengths and lengths <= {SQUARE, 3}:
        return "square"
    return tuple(int(np.argmax(x.shape or 0)) for x in case.inputs.values() if x is not None) if is_long(case) else None


def is_wide(case: Case) -> bool:
    """Whether no length is 1, with which layouts differ in nothing."""
    known = lengths_of(case)
    return all(np.min(known[n], initial=2) > 1 for n in free_sizes(case.op) if n in known)


def _cheap(op: Op, values: Mapping[str, Any], budget: int = SIZES[EDGES], most: int = EDGE_WORK) -> bool:
    """Whether a case of these values, which the row may refuse, is small."""
    try:
        size = sum(math.prod(shape_of(a, values)) for a in (*op.signature.inputs, *op.signature.outputs))
        work = 0 if op.drawing.work is None else call_named(op.drawing.work, values)
    except (IndexError, KeyError, TypeError, ValueError):
        return False
    return size <= budget and work <= most
