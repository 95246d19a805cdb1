"""Calls of the rows with arrays of another library: drawn cases, and what a function takes for one."""

from collections.abc import Callable
from typing import Any

import numpy as np

from tlrt import _calls
from tlspec.drawn import Case
from tlspec.judge.checking import drawn_cases
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
        shape = value.shape if array.elementwise else _calls.shape_of(array, case.values)
        out.append(make(value.astype(np.int64 if array.kind in ("u32", "index") else np.float32).reshape(shape)))
    return out + [case.values[n] for n in _calls.names(signature)[1]]


def bits(x: Any) -> tuple[tuple[int, ...], bytes]:
    return x.shape, np.ascontiguousarray(x).tobytes()
