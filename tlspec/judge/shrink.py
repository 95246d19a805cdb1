"""Smaller cases with the same fault."""

import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from typing import Any

from tlspec.data import generator
from tlspec.drawn import Case, build_case, refused_by, shape_of
from tlspec.draws import Draw

#: calls of the kernel that a search may cost
CALLS = 150


def lengths_of(case: Case) -> dict[str, Any]:
    """What a case's sizes follow from, and its parameters; an elementwise one has a number n of elements."""
    n = {"n": math.prod(case.shape(case.signature.outputs[0]))} if case.op.signature.elementwise else {}
    return {**n, **case.values}


def resized(case: Case, values: Mapping[str, Any]) -> Case | None:
    """A case of other dimensions and parameters, its arrays drawn anew of the same class; None where the row refuses them."""
    op, rng = (
        case.op,
        generator("resized", case.op.name, case.seed, case.data, sorted((k, str(v)) for k, v in values.items())),
    )
    if op.signature.lists:
        return None
    try:
        if refused_by(op, values) is not None:
            return None
        draw = Draw(rng, 2**16)
        given: dict[str, Any] = {}
        for a in op.signature.inputs:
            if a.name in case.inputs and case.inputs[a.name] is None:
                given[a.name] = None
            elif a.kind in ("u32", "index"):
                old = case.inputs[a.name]
                assert old is not None
                shape = shape_of(a, values)
                given[a.name] = draw.indices(math.prod(shape), int(old.max(initial=0)) + 1).reshape(shape)
        if refused_by(op, {**values, **given}) is not None:
            return None
        made_case = build_case(
            op, values, given, rng, seed=case.seed, data=case.data, size="shrunk", which=case.which, command=case.size
        )
    except (AssertionError, ValueError, IndexError, TypeError, KeyError):
        return None
    return replace(made_case, command=case.command or case.size)


def _steps(n: int) -> list[int]:
    """Smaller lengths, the largest steps first; 0 is a size of its own."""
    return sorted({1, n // 2, n - n // 4, n - n // 16, n - 1} - {0, n} if n > 1 else set())


def _smaller(values: Mapping[str, Any], names: list[str]) -> Iterator[dict[str, Any]]:
    """The values with one length smaller, the largest steps first."""
    for name in names:
        value = values[name]
        if isinstance(value, int):
            for n in _steps(value):
                yield {**values, name: n}
        elif isinstance(value, (list, tuple)):
            for i, k in enumerate(value):
                for n in _steps(k):
                    yield {**values, name: [*value[:i], n, *value[i + 1 :]]}


def shrink(case: Case, fails: Callable[[Case], bool]) -> Case:
    """The smallest case that a greedy search finds, of those of which `fails` holds; the case itself where none does."""
    best, calls = case, 0
    names = ["n"] if case.op.signature.elementwise else [n.lstrip("*") for n in case.op.signature.dims]
    known = lengths_of(case)
    progress = True
    while progress and calls < CALLS:
        progress = False
        for values in _smaller(known, [n for n in names if n in known]):
            smaller = resized(case, values)
            calls += 1
            if smaller is not None and fails(smaller):
                best, known, progress = smaller, values, True
                break
            if calls >= CALLS:
                break
    return best
