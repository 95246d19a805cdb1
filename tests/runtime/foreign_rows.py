"""Calls of the rows with arrays of another library: drawn cases, and what a function takes for one."""

from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from typing import Any

import numpy as np

from tlrt import _foreign
from tlrt.verify.run import Runtime
from tlspec.drawn import Case, cotangent_names, generator
from tlspec.judge.choice import drawn_cases
from tlspec.registry import Op


def cases(row: Op, count: int = 2) -> list[Case]:
    return list(drawn_cases(row, "forward", {"small": count, "medium": 1, "edges": 0, "large": 0}, "normal", False, 3))


def arguments(case: Case, make: Callable[[np.ndarray], Any]) -> list[Any]:
    """Arrays, made of int64 where they are indices and of float32 otherwise, then the dimensions that no shape says, then
    parameters."""
    signature = case.op.signature
    out: list[Any] = []
    for array in signature.inputs:
        value = case.inputs[array.name]
        if value is None:
            out.append(None)
            continue
        shape = value.shape if array.elementwise else _foreign.shape_of(array, case.values)
        out.append(make(value.astype(np.int64 if array.kind in ("u32", "index") else np.float32).reshape(shape)))
    return out + [case.values[n] for n in _foreign.names(signature)[1]]


def bits(x: Any) -> tuple[tuple[int, ...], bytes]:
    return x.shape, np.ascontiguousarray(x).tobytes()


def directions(results: Iterable[Any]) -> list[np.ndarray]:
    """A drawn cotangent for each result."""
    return [np.random.default_rng(k).standard_normal(np.shape(x)).astype(np.float32) for k, x in enumerate(results)]


def gradients_of(case: Case, device: str) -> dict[str, np.ndarray]:
    """What the row's VJP on buffers gives in the drawn directions, by the names of the arrays."""
    runtime = Runtime(device, math=_foreign.math())
    computed = dict(zip((o.name for o in case.op.signature.outputs), runtime.run(case), strict=True))
    drawn = dict(zip(computed, directions(computed.values()), strict=True))
    cotangents = {g: drawn[o.name] for g, o in cotangent_names(case.op).items()}
    known = {**case.inputs, **computed, **cotangents}
    given = {a.name: known[a.name] for a in case.op.vjp_signature.inputs}
    found = runtime.run(replace(case, which="vjp", cotangents=cotangents, given=given))
    return dict(zip((a.name[1:] for a in case.op.vjp_signature.outputs), found, strict=True))


#: integers that are out of range of every array, by their type
OUTSIDE = {
    "int64": [-1, -5, -(2**31), -(2**32), -(2**63), 2**32, 2**32 + 1, 2**33 + 2, 2**63 - 1],
    "uint64": [2**32, 2**32 + 1, 2**63, 2**63 + 1, 2**64 - 1, 2**64 - 2**32], "int32": [-1, -2, -(2**31)],
    "int16": [-1, -(2**15)], "int8": [-1, -128],
}  # fmt: skip


def outside(row: Op, kind: str) -> Iterator[tuple[list[Any], list[Any]]]:
    """Arguments of a row whose indices, of that type, are partly out of range, and the same with 2^32 - 1 of uint32 there."""
    draw = generator("outside", row.name, kind)
    for case in cases(row, 0):
        given = arguments(case, lambda x: x)
        at = [i for i, x in enumerate(given) if isinstance(x, np.ndarray) and x.dtype == np.int64]
        wide, nowhere = list(given), list(given)
        for i in at:
            small = np.minimum(given[i], min(np.iinfo(kind).max, 2**31))
            where = draw.random(small.shape) < 0.5
            wide[i] = np.where(where, draw.choice(np.array(OUTSIDE[kind], kind), small.shape), small.astype(kind))
            nowhere[i] = np.where(where, 2**32 - 1, small).astype(np.uint32)
        yield wide, nowhere
