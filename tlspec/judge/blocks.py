"""Cases in parts: along dimensions in which results do not depend on each other, a large case is judged block by block."""

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from functools import lru_cache
from itertools import product
from typing import Any

import numpy as np

from tlspec.bounds import call_named, call_reference
from tlspec.draw.cases import SHAPE, Case, draw_case, shape_of
from tlspec.draw.data import generator
from tlspec.expressions import names_in
from tlspec.registry import Op
from tlspec.signature import Array

#: numbers of all arrays of a case beyond which it is judged in blocks; of an output and of any array of a block, such that what a
#: block's reference computes stays in the caches
LARGE, OUTPUT, ARRAY = 2**21, 2**15, 2**18
#: of a case of given shape: drawn blocks, blocks of a line, and multiply-adds of a block's reference
TILES, LINE, WORK = 6, 128, 2**27
#: the dimension of elementwise operations
ELEMENTS = "*"


def part_of(case: Case, dim: str, start: int, stop: int) -> Case:
    """The case from `start` to `stop` of a dimension alone."""

    def part(group: Mapping[str, Any], arrays: Sequence[Array]) -> dict[str, Any]:
        dims = {a.name: a.dims for a in arrays}
        index = slice(start, stop)
        return {
            k: x if x is None or dim not in dims[k] else x[(slice(None),) * dims[k].index(dim) + (index,)]
            for k, x in group.items()
        }

    sig, own = case.op.signature, case.signature
    cotangents = [replace(sig.outputs[i], name=k) for i, k in enumerate(case.cotangents)]
    dims = {**case.dims, dim: stop - start} if dim in case.dims else dict(case.dims)
    return replace(
        case, dims=dims, inputs=part(case.inputs, sig.inputs), cotangents=part(case.cotangents, cotangents),
        given=None if case.given is None else part(case.given, own.inputs),
    )  # fmt: skip


@lru_cache(maxsize=4096)
def independent_dimensions(op: Op, which: str) -> tuple[str, ...]:
    """The dimensions in which results do not depend on each other: those of a part of the arrays are a part of the results. They
    are found by trying on small cases."""
    sig = op.signature_of(which)
    if op.signature.elementwise:
        return () if sig.lists or any(o.dims != (ELEMENTS,) for o in sig.outputs) else (ELEMENTS,)
    found = []
    for dim in op.signature.dims:
        arrays = (*sig.inputs, *sig.outputs)
        mixed = any(
            dim in names_in(item) for a in arrays for item in a.dims if item != dim and not item.startswith("*")
        )
        if not dim.startswith("*") and not sig.lists and not mixed and all(dim in o.dims for o in sig.outputs):
            tried = [_is_independent(case, dim) for case in _examples(op, which, dim)]
            if tried and all(tried):
                found.append(dim)
    return tuple(found)


def _examples(op: Op, which: str, dim: str) -> Iterator[Case]:
    """Up to four small cases with more than one place along a dimension."""
    drawn = (draw_case(op, seed, "normal", "small", which) for seed in range(40))
    for _, case in zip(range(4), (c for c in drawn if c.values[dim] > 1 and all(c.dims.values())), strict=False):
        yield case


def _is_independent(case: Case, dim: str) -> bool:
    n = case.values[dim]
    try:
        with np.errstate(all="ignore"):
            outs = [call_reference(c.reference, c.wide, c.values) for c in (case, part_of(case, dim, n // 2, n))]
    except (IndexError, TypeError, ValueError):  # the dimension is more than a batch
        return False
    whole, less = (o if isinstance(o, (tuple, list)) else (o,) for o in outs)
    kept = [np.take(w, range(n // 2, n), o.dims.index(dim)) for o, w in zip(case.signature.outputs, whole, strict=True)]
    return all(
        a.shape == b.shape and np.allclose(a, b, 1e-12, 0, equal_nan=True) for a, b in zip(kept, less, strict=True)
    )


def elements_of(case: Case) -> int:
    """The numbers of all arrays of a case."""
    arrays = (*case.inputs.values(), *case.cotangents.values())
    return sum(x.size for x in arrays if x is not None) + sum(math.prod(case.shape(a)) for a in case.signature.outputs)


def blocks_of(case: Case) -> Iterator[tuple[Case, list[tuple[slice, ...]]]]:
    """The case in blocks, each with the places of its outputs; the whole case where it is small or cannot be divided. Of a case
    of given shape these are a sample (:func:`_sampled`)."""
    outputs = case.signature.outputs
    dims = independent_dimensions(case.op, case.which) if elements_of(case) > LARGE else ()
    if not dims:
        yield case, [(slice(None),) * len(case.shape(a)) for a in outputs]
        return
    lengths = {d: math.prod(case.shape(outputs[0])) if d == ELEMENTS else case.values[d] for d in dims}
    steps = dict(lengths)
    arrays = [(a, OUTPUT) for a in outputs] + [(a, ARRAY) for a in case.signature.inputs]
    work = case.op.drawing.work if case.size == SHAPE and case.which == "forward" else None
    while max(steps.values()) > 1 and (
        any(_size(case, a, steps) > most for a, most in arrays)
        or (work is not None and call_named(work, {**case.values, **steps}) > WORK)
    ):
        longest = max(steps, key=lambda d: steps[d])
        steps[longest] = -(-steps[longest] // 2)
    for place in _sampled(case, lengths, steps) if case.size == SHAPE else _all(lengths, steps):
        part = case
        for dim, index in place.items():
            part = part_of(part, dim, index.start, index.stop)
        yield part, [tuple(place.get(d, slice(None)) for d in _axes(case, a)) for a in outputs]


def _all(lengths: Mapping[str, int], steps: Mapping[str, int]) -> Iterator[dict[str, slice]]:
    """Every block."""
    for starts in product(*(range(0, lengths[d], steps[d]) for d in lengths)):
        ends = zip(lengths, starts, strict=True)
        yield {d: slice(start, min(start + steps[d], lengths[d])) for d, start in ends}


def _sampled(case: Case, lengths: Mapping[str, int], steps: Mapping[str, int]) -> list[dict[str, slice]]:
    """The first, the last and some drawn blocks, and of each dimension one place with all that lies there along the others: of a
    matrix tiles, a row and a column."""
    rng = generator("sample", case.op.name, case.seed, case.data, *sorted(lengths.items()))
    last = {d: (n - 1) // steps[d] for d, n in lengths.items()}
    blocks = [
        dict.fromkeys(lengths, 0),
        last,
        *({d: int(rng.integers(k + 1)) for d, k in last.items()} for _ in range(TILES)),
    ]
    ends = [{d: (k * steps[d], min((k + 1) * steps[d], lengths[d])) for d, k in block.items()} for block in blocks]
    for dim in lengths if len(lengths) > 1 else ():
        at = int(rng.integers(lengths[dim]))
        every = list(_all({d: n for d, n in lengths.items() if d != dim}, steps))
        chosen = rng.permutation(len(every))[:LINE]
        ends += [{dim: (at, at + 1), **{d: (s.start, s.stop) for d, s in every[i].items()}} for i in chosen]
    unique = dict.fromkeys(tuple(e.items()) for e in ends)
    return [{d: slice(*place) for d, place in each} for each in unique]


def _size(case: Case, array: Array, steps: Mapping[str, int]) -> int:
    if array.elementwise:
        return steps[ELEMENTS]
    return math.prod(shape_of(array, {**case.values, **steps}))


def _axes(case: Case, array: Array) -> list[str]:
    """The name of each axis of an output; those of a list of axes have none."""
    rest = len(case.shape(array)) - sum(not d.startswith("*") for d in array.dims)
    names = ([d] if not d.startswith("*") or array.elementwise else [""] * rest for d in array.dims)
    return [name for each in names for name in each]
