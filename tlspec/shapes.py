"""Shape functions of the signature grammar and the checks.

Each has a twin of the same name in ``native/src/abi/shapes.h`` (``tl_drop`` for :func:`drop`), which the generated entry
points call. Lists are outermost-first.
"""

from __future__ import annotations

from collections.abc import Sequence

__all__ = ["FUNCTIONS", "all_below", "axis_map_ok", "drop", "given", "rank", "swap"]


def rank(dims: Sequence[int]) -> int:
    """Number of axes."""
    return len(dims)


def drop(dims: Sequence[int], axis: int) -> list[int]:
    """`dims` without `axis`; unchanged where there is no such axis."""
    return [d for i, d in enumerate(dims) if i != axis]


def swap(dims: Sequence[int], depth: int) -> list[int]:
    """`dims` with axes `depth` and `depth + 1` exchanged; unchanged where there are no such axes."""
    out = list(dims)
    if depth + 1 < len(out):
        out[depth], out[depth + 1] = out[depth + 1], out[depth]
    return out


def axis_map_ok(in_dims: Sequence[int], out_dims: Sequence[int], axis_map: Sequence[int]) -> bool:
    """Whether `axis_map` broadcasts `in_dims` to `out_dims`: one entry per output axis, 0 for an inserted axis, k for input
    axis k - 1, whose size is 1 or the output's; non-zero entries strictly increase and name every input axis once."""
    if len(axis_map) != len(out_dims):
        return False
    read = [k for k in axis_map if k]
    if read != list(range(1, len(in_dims) + 1)):
        return False
    return all(k == 0 or in_dims[k - 1] in (1, out) for k, out in zip(axis_map, out_dims, strict=True))


def all_below(values: Sequence[int], bound: int) -> bool:
    """Whether every element of a host array of unsigned integers is below `bound`; true for an empty one."""
    return all(int(v) < bound for v in values)


def given(array: object) -> bool:
    """Whether the caller passes the optional input `array`. In C: whether its handle is not NULL."""
    return array is not None


#: what expressions of the grammar may call
FUNCTIONS = {
    "rank": rank,
    "drop": drop,
    "swap": swap,
    "axis_map_ok": axis_map_ok,
    "all_below": all_below,
    "given": given,
}
