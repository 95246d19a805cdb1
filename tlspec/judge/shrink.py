"""Smaller cases with the same fault."""

import math
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

import numpy as np

from tlspec.bounds import call_named
from tlspec.draw.cases import Case, build_case, cotangent_names, refused_by, shape_of
from tlspec.draw.data import fill, generator
from tlspec.draw.draws import Draw
from tlspec.expressions import evaluate
from tlspec.judge import kept
from tlspec.registry import Op
from tlspec.signature import WHOLE

#: calls of the kernel that a search may cost
CALLS = 150


def lengths_of(case: Case) -> dict[str, Any]:
    """What a case's sizes follow from, and its parameters; an elementwise one has a number n of elements."""
    n = {"n": math.prod(case.shape(case.signature.outputs[0]))} if case.op.signature.elementwise else {}
    return {**n, **case.values}


def has_fixed(op: Op, values: Mapping[str, Any]) -> bool:
    """Whether dimensions and parameters have the values that they are fixed to."""
    return all(values.get(n, v) == v for n, v in op.drawing.fixed.items())


def resized(case: Case, values: Mapping[str, Any]) -> Case | None:
    """A case of other dimensions and parameters; None where the row refuses them. Arrays become their first elements along every
    axis; those that are to grow are drawn anew, from the same data class."""
    words = tuple(sorted((k, repr(v)) for k, v in values.items()))
    try:
        return kept.derived(case, words, lambda: _resized(case, values))
    except (ValueError, IndexError, TypeError, KeyError):
        return None


def _resized(case: Case, values: Mapping[str, Any]) -> Case:
    op, rng = (
        case.op,
        generator("resized", case.op.name, case.seed, case.data, sorted((k, str(v)) for k, v in values.items())),
    )
    if op.signature.lists or not has_fixed(op, values) or refused_by(op, values) is not None:
        raise ValueError(f"{op.name} refuses these lengths")
    given = {a.name: _cut(case.inputs[a.name], shape_of(a, values)) for a in op.signature.inputs}
    for a in op.signature.inputs:
        old = case.inputs[a.name]
        if given[a.name] is None and old is not None:
            if a.kind in ("u32", "index"):
                below = int(evaluate(a.below, values)) if a.below else int(old.max(initial=0)) + 1
                indices = Draw(rng, 2**16).indices(math.prod(shape_of(a, values)), below)
                given[a.name] = indices.reshape(shape_of(a, values))
            elif a.kind not in WHOLE:
                given[a.name] = fill(rng, shape_of(a, values), case.data)
        elif (cut := given[a.name]) is not None and a.below:
            given[a.name] = np.remainder(cut, max(int(evaluate(a.below, values)), 1), dtype=cut.dtype)
    given = {n: x for n, x in given.items() if x is not None or case.inputs[n] is None}
    wider = _wider_indices(case, values, rng)
    if refused_by(op, {**values, **given, **wider}) is None:
        given |= wider
    if refused_by(op, {**values, **given}) is not None:
        raise ValueError(f"{op.name} refuses these lengths")
    named = cotangent_names(op)
    for name, g in case.cotangents.items():
        shape = (values["n"],) if op.signature.elementwise else shape_of(named[name], values)
        if (cut := _cut(g, shape)) is not None:
            given[name] = cut
    made = build_case(
        op, values, given, rng, seed=case.seed, data=case.data, size="shrunk", which=case.which, command=case.size
    )
    return replace(made, command=case.command or case.size)


def _wider_indices(case: Case, values: Mapping[str, Any], rng: np.random.Generator) -> dict[str, np.ndarray]:
    """Indices drawn anew where a length has grown, as none of the old ones reaches its end."""
    op, draw, found = case.op, Draw(rng, 2**16), {}
    names = [n.lstrip("*") for n in op.signature.dims]
    if op.signature.elementwise or all(np.all(np.less_equal(values[n], case.values[n])) for n in names):
        return {}
    own = {} if op.drawing.draw is None else op.drawing.draw(draw)
    for a in op.signature.inputs:
        x = case.inputs[a.name]
        if a.kind not in ("u32", "index") or x is None:
            continue
        shape, make = shape_of(a, values), own.get(a.name)
        if callable(make):
            found[a.name] = np.asarray(call_named(make, values), x.dtype).reshape(shape)
        elif a.below or (op.signature.buffers and len(a.dims) == 1):
            below = evaluate(a.below, values) if a.below else next(iter(shape_of(op.signature.buffers[0], values)), 0)
            found[a.name] = draw.indices(math.prod(shape), int(below)).reshape(shape)
    # and the end itself, where the row takes it
    longest = max((int(np.max(values[n], initial=0)) for n in names), default=0)
    for a in op.signature.inputs:
        x = found.get(a.name)
        if x is None or (op.family == "user" and not a.below):
            continue
        last = int(evaluate(a.below, values) if a.below else longest) - 1
        ended = np.where(np.arange(x.size).reshape(x.shape) == 0, max(last, 0), x).astype(x.dtype)
        if refused_by(op, {**values, **case.inputs, **found, a.name: ended}) is None:
            found[a.name] = ended
    return found


def _cut(x: np.ndarray | None, shape: tuple[int, ...]) -> np.ndarray | None:
    """The first elements of an array along every axis; None where it is too small."""
    if x is None or x.ndim != len(shape) or any(n > have for n, have in zip(shape, x.shape, strict=True)):
        return None
    return np.array(x[tuple(slice(n) for n in shape)], order="C")  # also of no axes


def _places(values: Mapping[str, Any], names: list[str]) -> list[tuple[str, int | None]]:
    """The names of lengths; of one that is a list also the places in it."""
    found: list[tuple[str, int | None]] = []
    for name in names:
        value = values.get(name)
        if isinstance(value, int):
            found.append((name, None))
        elif isinstance(value, (list, tuple)):
            found += [(name, i) for i in range(len(value))]
    return found


def shrink(case: Case, fails: Callable[[Case], bool]) -> Case:
    """A small case of which `fails` holds; the case itself where none is found. Each length in turn becomes 1, or the least at
    which a bisection finds a failure, until none becomes smaller; 0 is a size of its own."""
    best, calls, known = case, 0, lengths_of(case)
    names = ["n"] if case.op.signature.elementwise else [n.lstrip("*") for n in case.op.signature.dims]
    places = _places(known, names)
    waiting = deque(places)
    while waiting and calls < CALLS:
        name, i = place = waiting.popleft()
        low, start = 0, known
        while calls < CALLS:
            value = known[name]
            n = value if i is None else value[i]
            if n - low < 2:
                break
            middle = (low + n) // 2 if low else 1
            values = {**known, name: middle if i is None else [*value[:i], middle, *value[i + 1 :]]}
            smaller = resized(case, values)
            calls += 1
            if smaller is not None and fails(smaller):
                best, known = smaller, values
            else:
                low = middle
        if known is not start:  # so others may become smaller, too
            waiting = deque(p for p in dict.fromkeys((*waiting, *places)) if p != place)
    return best
