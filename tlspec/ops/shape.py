"""Shape operations: concatenation, slices, broadcasts and their adjoint, permutations of axes.

All but ``reduce_from_broadcast`` move values and compute nothing, so they are bit-exact and keep the payload of a NaN.
Reshape, flatten and detach share storage with their source and need no kernel.
"""

import math
from collections.abc import Sequence
from itertools import pairwise

import numpy as np

from tlspec.bounds import axis_height, moved, tree
from tlspec.classes import Classes, Lengths, Near, derived
from tlspec.laws import adjoint, inverse, linear
from tlspec.registry import check, op
from tlspec.shapes import permuted
from tlspec.synonyms import synonym

PARTS: Classes = {
    "part from the start": lambda n, start, len: start == 0 < len < n,
    "part inside": lambda n, start, len: 0 < start < start + len < n,
    "part to the end": lambda n, start, len: 0 < start < start + len == n,
    "everything": lambda n, start, len: start == 0 < len == n,
    "nothing": lambda n, len: len == 0 < n,
}


def _moves(test):
    """A class of permutations of more than one number, given the sizes and numbers of axes as the result has them."""

    def holds(dims, axes):
        axes = [(dims[k], k) for k in axes if dims[k] > 1]
        return math.prod(dims) > 0 and any(a[1] > b[1] for a, b in pairwise(axes)) and bool(test(axes))

    return holds


PERMUTATIONS: Classes = {
    "nothing moved": lambda dims, axes: math.prod(dims) > 1 and (k := [k for k in axes if dims[k] > 1]) == sorted(k),
    "the last axis kept": _moves(lambda axes: axes[-1][1] == max(k for _, k in axes)),
    "the last axis moved": _moves(lambda axes: axes[-1][1] != max(k for _, k in axes)),
    "two exchanges": _moves(lambda axes: len(axes) > 3 and sum(a[1] > b[1] for a, b in pairwise(axes)) > 1),
    "both longer than 32, with a rest": _moves(lambda axes: len(axes) == 2 and all(n > 32 and n % 32 for n, _ in axes)),
}


def _repeats(test):
    """A class of broadcasts of more than one number, given the output's axes: their sizes and whether each is repeated."""

    def holds(in_dims, out_dims, axis_map):
        axes = [(n, k == 0 or in_dims[k - 1] != n) for n, k in zip(out_dims, axis_map, strict=True) if n != 1]
        return math.prod(out_dims) > 1 and bool(test(axes))

    return holds


BROADCASTS: Classes = {
    "nothing repeated": _repeats(lambda axes: not any(r for _, r in axes)),
    "a scalar": _repeats(lambda axes: all(r for _, r in axes)),
    "repeated rows": _repeats(lambda axes: len(axes) > 1 and axes[0][1] and not axes[-1][1]),
    "repeated numbers": _repeats(lambda axes: len(axes) > 1 and axes[-1][1] and not axes[0][1]),
    "repeated between": _repeats(lambda axes: any(r for _, r in axes[1:-1])),
    "axes out of order": lambda out_dims, axis_map: (k := [k for n, k in zip(out_dims, axis_map) if k and n > 1]) != sorted(k),
    "long rows repeated": Near(_repeats(lambda axes: len(axes) > 1 and axes[0][1] and axes[-1][0] >= 4096 and not axes[-1][1]), 4096),
    "eight axes": lambda out_dims: len(out_dims) == 8,
    "a square filled along its columns": lambda in_dims, out_dims, axis_map: (
        list(axis_map) == [1, 0] and len(in_dims) == 1 and out_dims[0] == out_dims[1] > 1),
    "no axis": lambda out_dims: len(out_dims) == 0,
}  # fmt: skip


def _draw_slice(d):
    n = d.dim()
    start = d.choice([0, d.integer(0, min(n, 64)), d.integer(0, n)])
    return {"n": n, "start": start, "len": d.choice([n - start, d.integer(0, n - start)])}


@op("x[n]; start: u32, len: u32 -> out[len]",
    classes=PARTS, bound=moved(), checks=[check("start", "start + len <= n", status="INDEX", say="start + len at most n")],
    draw=_draw_slice, laws=[linear("x"), adjoint("x")], source="numpy basic slicing",
    example={"n": 5, "start": 1, "len": 3})  # fmt: skip
def slice1d(x, start, len):
    """A run of consecutive elements.

    out[i] = x[start + i]

    Shapes: x (n), out (len). len = 0 gives an empty buffer.
    Errors: INDEX unless start + len ≤ n."""
    return x[start : start + len]


@slice1d.vjp("g -> gx")
def slice1d_vjp(g, n, start, len):
    """gx[start + i] = g[i], 0 elsewhere."""
    gx = np.zeros(n, np.result_type(g, float), like=g)
    gx[start : start + len] = g
    return gx


# ---- slices of any rank ---------------------------------------------------------------------------------------------


def _parts(test):
    """A class of slices: `test` of the (size, count, start, step, whether it runs backwards) of each axis, of slices that take
    something."""

    def holds(whole, part, starts, steps, reversed):
        axes = [(n, m, a, s, bool(reversed >> k & 1)) for k, (n, m, a, s) in enumerate(zip(whole, part, starts, steps))]
        return math.prod(part) > 0 and test(axes)

    return holds


def _is_whole(axis):
    size, count, _, step, backwards = axis
    return count == size and (size == 1 or (step == 1 and not backwards))


#: over `whole` and `part`
SLICES: Classes = {
    "everything": _parts(lambda axes: len(axes) > 0 and all(map(_is_whole, axes))),
    "a window of rows": _parts(lambda axes: len(axes) > 1 and not _is_whole(axes[0]) and all(map(_is_whole, axes[1:]))),
    "a window of columns": _parts(lambda axes: len(axes) > 1 and not _is_whole(axes[-1]) and axes[-1][3] == 1 and axes[-1][1] > 1
                                  and not axes[-1][4] and math.prod(a[1] for a in axes[:-1]) > 1),
    "one index of the last axis": _parts(lambda axes: len(axes) > 1 and axes[-1][1] == 1 < axes[-1][0] and axes[-2][1] > 1),
    "every second or third along the last axis": _parts(lambda axes: axes != [] and axes[-1][3] in (2, 3) and axes[-1][1] > 1
                                                        and not axes[-1][4]),
    "backwards along the last axis": _parts(lambda axes: axes != [] and axes[-1][4] and axes[-1][1] > 1),
    "everything, an axis backwards": _parts(lambda axes: all(count == size for size, count, *_ in axes)
                                            and any(a[4] and a[1] > 1 for a in axes)),
    "backwards along another axis": _parts(lambda axes: any(a[4] and a[1] > 1 for a in axes[:-1])),
    "several axes that do not merge": _parts(lambda axes: sum(a[1] > 1 and not _is_whole(a) for a in axes) > 2),
    "nothing": lambda whole, part: math.prod(part) == 0 < math.prod(whole),
    "eight axes": lambda whole: len(whole) == 8,
}  # fmt: skip
_SLICES = derived(SLICES, lambda v: {"whole": v["in_dims"], "part": v["out_dims"]})
_PADDINGS = derived(SLICES, lambda v: {"whole": v["out_dims"], "part": v["in_dims"]})


def _drawn_slice(d):
    rank = d.integer(0, 8) if d.choice([True, False]) else d.integer(1, 3)
    whole, part, starts, steps, reversed = [], list(d.dims(rank)), [], [], 0
    for k in range(rank):
        kind = d.choice(["whole", "whole", "window", "steps", "one", "none" if d.empty else "window"])
        part[k] = {"one": min(part[k], 1), "none": 0}.get(kind, part[k])
        step = d.choice([2, 3, 7]) if kind == "steps" else d.choice([1, 5]) if part[k] < 2 else 1
        before, after = (0, 0) if kind == "whole" else (d.choice([0, 1, d.integer(0, 9)]) for _ in range(2))
        size = before + max(part[k] - 1, 0) * step + (part[k] > 0) + after
        start = before
        if part[k] and d.choice([False, False, kind != "whole"]):
            start, reversed = size - 1 - before, reversed | 1 << k
        for values, value in ((whole, size), (starts, start), (steps, step)):
            values.append(value)
    return {"in_dims": whole, "out_dims": part, "starts": starts, "steps": steps, "reversed": reversed}


def _drawn_padding(d):
    case = _drawn_slice(d)
    return {
        **case,
        "in_dims": case["out_dims"],
        "out_dims": case["in_dims"],
        "value": d.choice([0.0, 0.0, -0.0, 1.5, -math.inf]),
    }


def index_of_slice(
    starts: Sequence[int], part: Sequence[int], steps: Sequence[int], reversed: int
) -> tuple[slice, ...]:
    """NumPy's index of a slice."""
    out = []
    for k, (start, count, step) in enumerate(zip(starts, part, steps, strict=True)):
        signed = -step if reversed >> k & 1 else step
        end = start + signed * count
        out.append(slice(start, None if end < 0 else end, signed) if count else slice(0, 0))
    return tuple(out)


_SLICES_SAY = (
    "per axis a start, a step of at least 1 and a count whose indices lie within the axis; reversed below 2^rank"
)


@op("x[*in_dims]; starts: dims, steps: dims, reversed: u32 -> out[*out_dims]",
    classes=_SLICES, bound=moved(), draw=_drawn_slice, laws=[linear("x"), adjoint("x")], source="numpy basic slicing",
    checks=[check("starts", "slices_ok(in_dims, out_dims, starts, steps, reversed)", status="INDEX", say=_SLICES_SAY)],
    example={"in_dims": (2, 3), "out_dims": (2, 2), "starts": (0, 0), "steps": (1, 2), "reversed": 0})  # fmt: skip
def slice_axes(x, out_dims, starts, steps, reversed):
    """A part of an array: along every axis equally spaced indices, forwards or backwards.

    out[j_0, j_1, …] = x[i_0, i_1, …] with i_k = starts[k] + steps[k]·j_k, or starts[k] − steps[k]·j_k where bit k of reversed is set

    starts and steps have one entry per axis; steps are at least 1.

    Shapes: x (in_dims), out (out_dims), of one rank, at most 8 axes. An axis of size 0 gives an empty buffer.
    Errors: INDEX unless the ranks are equal, reversed < 2^rank and every i_k is an index of its axis, starts[k] of one that gives
    nothing at most its size."""
    return x[index_of_slice(starts, out_dims, steps, reversed)]


@slice_axes.vjp("g -> gx",
    via=lambda k, g, in_dims, out_dims, starts, steps, reversed: k.pad_axes(
        g, in_dims=out_dims, out_dims=in_dims, starts=starts, steps=steps, reversed=reversed, value=0.0))  # fmt: skip
def slice_axes_vjp(g, in_dims, out_dims, starts, steps, reversed):
    """gx = pad_axes(g) with zeros."""
    gx = np.zeros(in_dims, np.result_type(g, float), like=g)
    gx[index_of_slice(starts, out_dims, steps, reversed)] = g
    return gx


@op("x[*in_dims]; starts: dims, steps: dims, reversed: u32, value: float = 0.0 -> out[*out_dims]",
    classes=_PADDINGS, bound=moved(), draw=_drawn_padding,
    laws=[inverse("slice_axes", lambda in_dims, out_dims, starts, steps, reversed: {
        "in_dims": out_dims, "out_dims": in_dims, "starts": starts, "steps": steps, "reversed": reversed})],
    source="lax.pad",
    checks=[check("starts", "slices_ok(out_dims, in_dims, starts, steps, reversed)", status="INDEX", say=_SLICES_SAY)],
    example={"in_dims": (3,), "out_dims": (5,), "starts": (1,), "steps": (1,), "reversed": 0})  # fmt: skip
def pad_axes(x, in_dims, out_dims, starts, steps, reversed, value):
    """An array spread over a larger one: value everywhere but at the indices that slice_axes would take.

    out[i_0, i_1, …] = x[j_0, j_1, …] where i_k = starts[k] ± steps[k]·j_k as for slice_axes, value elsewhere

    Padding of low[k] before and high[k] after axis k is starts = low, steps = 1, out_dims[k] = low[k] + in_dims[k] + high[k];
    steps[k] − 1 elements of padding come between neighbours. value is rounded to float32 first.

    Shapes: x (in_dims), out (out_dims), of one rank, at most 8 axes.
    Errors: INDEX as for slice_axes, of a slice of out."""
    out = np.full(out_dims, value, np.result_type(x, float), like=x)
    out[index_of_slice(starts, in_dims, steps, reversed)] = x
    return out


@pad_axes.vjp("g -> gx",
    via=lambda k, g, in_dims, out_dims, starts, steps, reversed, value: k.slice_axes(
        g, in_dims=out_dims, out_dims=in_dims, starts=starts, steps=steps, reversed=reversed))  # fmt: skip
def pad_axes_vjp(g, in_dims, starts, steps, reversed):
    """gx = slice_axes(g)."""
    return g[index_of_slice(starts, in_dims, steps, reversed)]


@op("a[rows, n], b[rows, m] -> out[rows, n + m]",
    classes={
        "both": lambda rows, n, m: min(rows, n, m) > 0, "the first alone": lambda rows, n, m: min(rows, n) > 0 == m,
        "the second alone": lambda rows, n, m: min(rows, m) > 0 == n},
    bound=moved(), laws=[linear("a", "b"), adjoint("a", "b")], source="numpy.concatenate(axis=1)")  # fmt: skip
def concat_rows(a, b):
    """Every row of a followed by the same row of b: concatenation along any axis, of arrays (rows, axis and what follows).

    out[r, i] = a[r, i] for i < n, b[r, i − n] from there on

    Shapes: a (rows, n), b (rows, m), out (rows, n + m).
    Errors: OVERFLOW where n + m reaches 2^32."""
    return np.concatenate([a, b], axis=1)


def _rows_of_joined(k, g, rows, whole, start, count):
    return k.slice_axes(g, in_dims=[rows, whole], out_dims=[rows, count], starts=[0, start], steps=[1, 1], reversed=0)


@concat_rows.vjp("g -> ga, gb",
    via=lambda k, g, rows, n, m: (_rows_of_joined(k, g, rows, n + m, 0, n), _rows_of_joined(k, g, rows, n + m, n, m)))  # fmt: skip
def concat_rows_vjp(g, n):
    """ga = g[:, :n], gb = g[:, n:]."""
    return g[:, :n], g[:, n:]


@synonym(concat_rows, "a[n], b[m] -> out[n + m]", "rows=1")
def concat1d():
    """Two vectors, one after the other."""


# ---- broadcasts -----------------------------------------------------------------------------------------------------


def insert_axes(x, in_dims: Sequence[int], axis_map: Sequence[int]):
    """`x` with its axes as the output reads them and one of size 1 at every inserted output axis; works on NumPy arrays and,
    where the map ascends, on PyTorch tensors."""
    read = [k - 1 for k in axis_map if k]
    if read != sorted(read):
        rest = [i for i in range(len(in_dims)) if i not in read]  # of size 1
        x = x.reshape(in_dims).transpose(read + rest)
    return x.reshape([in_dims[k - 1] if k else 1 for k in axis_map])


def repeated_axes(in_dims: Sequence[int], out_dims: Sequence[int], axis_map: Sequence[int]) -> tuple[int, ...]:
    """The output axes along which input elements are repeated."""
    return tuple(
        j
        for j, (k, size) in enumerate(zip(axis_map, out_dims, strict=True))
        if size != 1 and (k == 0 or in_dims[k - 1] != size)
    )


def sum_passes(in_dims: Sequence[int], out_dims: Sequence[int], axis_map: Sequence[int]) -> list[tuple[int, int, int]]:
    """The (outer, length, inner) sums of ``reduce_from_broadcast`` in their order; the twin of
    ``native/src/formula/broadcast_axes.h``. Adjacent repeated axes are summed as one, the innermost run first."""
    repeated = repeated_axes(in_dims, out_dims, axis_map)
    axes: list[tuple[int, bool]] = []
    for j, size in enumerate(out_dims):
        if size == 1:
            continue
        if axes and axes[-1][1] == (j in repeated):
            axes[-1] = (axes[-1][0] * size, axes[-1][1])
        else:
            axes.append((size, j in repeated))
    passes = []
    for i in reversed(range(len(axes))):
        if axes[i][1]:
            outer, inner = (int(np.prod([s for s, _ in part], dtype=object)) for part in (axes[:i], axes[i + 1 :]))
            passes.append((outer, axes.pop(i)[0], inner))
    return passes


def sum_height(in_dims: Sequence[int], out_dims: Sequence[int], axis_map: Sequence[int]) -> int:
    """The height of the tree that ``reduce_from_broadcast`` sums by: those of its passes, one after the other."""
    if 0 in out_dims:
        return 0
    passes = sum_passes(in_dims, out_dims, axis_map)
    return sum(axis_height(length, inner) for _, length, inner in passes)


def _summed(in_dims, out_dims, axis_map):
    passes = sum_passes(in_dims, out_dims, axis_map)
    return passes[0][1] if passes else 0


def _draw_broadcast(d):
    form = d.choice(["any", "any", "any", "any", "square", "column", "row", "scalar", "same", "period"])
    if form == "period" and d.budget > 6 * 4096:
        in_dims = [d.integer(4096, 2 * 4096)]
        return {"in_dims": in_dims, "out_dims": [d.integer(2, d.budget // (3 * 4096)), *in_dims], "axis_map": [0, 1]}
    if form == "square":  # (n) -> (n, n) under both maps
        n = d.dim(high=math.isqrt(d.budget))
        return {"in_dims": [n], "out_dims": [n, n], "axis_map": d.choice([[1, 0], [0, 1]])}
    if form in ("column", "row"):  # (C) -> (C, H) or (H, C)
        c, h = d.dims(2)
        out_dims, axis_map = ([c, h], [1, 0]) if form == "column" else ([h, c], [0, 1])
        return {"in_dims": [c], "out_dims": out_dims, "axis_map": axis_map}
    rank = d.integer(0, 8)
    out_dims = list(d.dims(rank))
    if form == "scalar":  # rank 0 to any shape
        return {"in_dims": [], "out_dims": out_dims, "axis_map": [0] * rank}
    in_dims, axis_map = [], []
    for size in out_dims:
        kind = "kept" if form == "same" else d.choice(["kept", "kept", "one", "inserted"])
        if kind != "inserted":
            in_dims.append(1 if kind == "one" else size)
        axis_map.append(0 if kind == "inserted" else len(in_dims))
    if form == "any" and in_dims and d.choice([False, True]):  # in any order, with axes that no entry names
        sizes = in_dims + [1] * d.integer(0, min(2, 8 - len(in_dims)))
        order = [int(i) for i in d.rng.permutation(len(sizes))]
        in_dims = [sizes[i] for i in order]
        axis_map = [order.index(k - 1) + 1 if k else 0 for k in axis_map]
    return {"in_dims": in_dims, "out_dims": out_dims, "axis_map": axis_map}


_MAP_CHECK = check("axis_map", "axis_map_ok(in_dims, out_dims, axis_map)", status="SHAPE",
                   say="per output axis 0 or an input axis + 1, none twice, sizes 1 or equal, 1 where left out")  # fmt: skip


@op("x[*in_dims]; axis_map: dims -> out[*out_dims]",
    classes=BROADCASTS, bound=moved(), checks=[_MAP_CHECK], draw=_draw_broadcast, laws=[linear("x"), adjoint("x")],
    source="numpy.broadcast_to",
    example={"in_dims": (3,), "out_dims": (2, 3), "axis_map": (0, 1)})  # fmt: skip
def broadcast_to(x, in_dims, out_dims, axis_map):
    """An array repeated along new axes and along its axes of size 1.

    out[j] = x[i] with i_(k−1) = j_a where axis_map[a] = k and input axis k − 1 is no broadcast, 0 where it has size 1

    axis_map has one entry per output axis: 0 for an inserted axis, k for one that reads input axis k − 1, in any order. An
    input axis that no entry names has size 1.

    Shapes: x (in_dims), out (out_dims), at most 8 axes each. An axis of size 0 gives an empty buffer.
    Errors: SHAPE unless the non-zero entries of axis_map are distinct input axes of size 1 or the size of the output axis, and
    name every input axis larger than 1."""
    return np.broadcast_to(insert_axes(x, in_dims, axis_map), out_dims)


@broadcast_to.vjp("g -> gx", bound=tree(sum_height, copies=True),
    via=lambda k, g, in_dims, out_dims, axis_map: k.reduce_from_broadcast(
        g, in_dims=in_dims, out_dims=out_dims, axis_map=axis_map))  # fmt: skip
def broadcast_to_vjp(g, in_dims, out_dims, axis_map):
    """gx = the sum of g over inserted axes and over axes of size 1 that were repeated."""
    axes = repeated_axes(in_dims, out_dims, axis_map)
    total = np.sum(g, axis=axes, keepdims=True) + 0 if axes else g
    places = sorted(range(len(axis_map)), key=lambda j: axis_map[j])  # those of inserted axes come first
    return total.transpose(places).reshape(in_dims)


@synonym(broadcast_to, "vec[cols] -> out[rows, cols]", "x=vec, in_dims=[cols], out_dims=[rows, cols], axis_map=[0, 1]",
    order="rows, cols")  # fmt: skip
def broadcast_vec_to_rows():
    """A vector repeated as every row of a matrix."""


@synonym(broadcast_to, "vec[rows] -> out[rows, cols]", "x=vec, in_dims=[rows], out_dims=[rows, cols], axis_map=[1, 0]",
    order="rows, cols")  # fmt: skip
def broadcast_vec_to_cols():
    """A vector repeated as every column of a matrix."""


@op("x[*out_dims]; axis_map: dims -> out[*in_dims]",
    order="*in_dims, *out_dims", classes=BROADCASTS, lengths={"summed": _summed}, bound=tree(sum_height, copies=True), checks=[_MAP_CHECK], draw=_draw_broadcast,
    laws=[linear("x"), adjoint("x")], source="the adjoint of numpy.broadcast_to",
    example={"in_dims": (3,), "out_dims": (2, 3), "axis_map": (0, 1)})  # fmt: skip
def reduce_from_broadcast(x, in_dims, out_dims, axis_map):
    """The adjoint of broadcast_to: the sum of all output elements that read one input element.

    out[i] = Σ x[j] over the j at which broadcast_to reads element i

    in_dims, out_dims and axis_map are those of the broadcast, so x has the shape of its output. Summed by the trees of
    formula/sum_tree.h: runs of adjacent repeated axes as one sum, the innermost run first. A copy where nothing is
    repeated.

    Shapes: x (out_dims), out (in_dims), at most 8 axes each. A sum over an axis of size 0 is 0.
    Errors: SHAPE as for broadcast_to."""
    return broadcast_to_vjp(x, in_dims, out_dims, axis_map)


@reduce_from_broadcast.vjp("g -> gx", bound=moved(),
    via=lambda k, g, in_dims, out_dims, axis_map: k.broadcast_to(
        g, in_dims=in_dims, out_dims=out_dims, axis_map=axis_map))  # fmt: skip
def reduce_from_broadcast_vjp(g, in_dims, out_dims, axis_map):
    """gx = broadcast_to(g)."""
    return np.broadcast_to(insert_axes(g, in_dims, axis_map), out_dims)


# ---- permutations of axes -------------------------------------------------------------------------------------------


def _draw_permutation(d):
    rank = d.choice([2, 3, 4, d.integer(0, 8)])
    kept = d.choice([0, min(rank, 1)])  # the last axis, whose elements then move as runs
    return {"dims": list(d.dims(rank)), "axes": [*map(int, d.rng.permutation(rank - kept)), *range(rank - kept, rank)]}


PERMUTATION_LENGTHS: Lengths = {
    "of a run": lambda dims, axes: math.prod(dims[k] for i, k in enumerate(axes) if [*axes[i:]] == [*range(i, len(axes))]),
    "of the last axis": lambda dims: dims[-1] if dims else 0, "of the result's last axis": lambda dims, axes: dims[axes[-1]] if dims else 0,
}  # fmt: skip


@op("x[*dims]; axes: dims -> out[*permuted(dims, axes)]",
    classes=PERMUTATIONS, lengths=PERMUTATION_LENGTHS, bound=moved(), checks=[check("axes", "is_permutation(dims, axes)", say="every axis of dims once")],
    draw=_draw_permutation, laws=[linear("x"), adjoint("x")],
    paths=[{"dims": [*dims, 1], "axes": [*range(n - 3), n - 2, n - 3, n - 1, n]} for dims in
           ([2, 257, 10, 7], [3, 131, 13, 12], [1, 1501, 31, 1]) for n in [len(dims)]],  # whole rows in CUDA's bricks
    source="numpy.transpose", example={"axes": (1, 0)}, arguments={"axes": "the axis of x behind each axis of the result"})  # fmt: skip
def permute(x, axes):
    """An array with its axes in another order.

    out[…, i_axes[k], …] = x[…], axis k of the result being axis axes[k] of x

    Shapes: x (dims), at most 8 axes; out has the sizes dims[axes[k]].
    Errors: ARGUMENT unless axes names every axis once."""
    return x.transpose(axes)


@permute.vjp("g -> gx", via=lambda k, g, dims, axes: k.permute(
    g, dims=permuted(dims, axes), axes=sorted(range(len(axes)), key=lambda i: axes[i])))  # fmt: skip
def permute_vjp(g, axes):
    """gx = g with its axes in the order of x."""
    return g.transpose(sorted(range(len(axes)), key=lambda i: axes[i]))


@synonym(permute, "x[rows, cols] -> out[cols, rows]", "dims=[rows, cols], axes=[1, 0]")
def transpose2d():
    """The transpose of a matrix."""


def _draw_swap(d):
    rank = d.integer(2, 8)
    return {"dims": list(d.dims(rank)), "depth": d.integer(0, rank - 2)}


@synonym(permute, "x[*dims]; depth: u32 -> out[*swap(dims, depth)]", "axes=swapped_axes(dims, depth)", draw=_draw_swap,
    checks=[check("depth", "depth + 1 < rank(dims)", say="depth + 1 below the rank of dims")],
    meanings={"depth": "the first of the two axes"})  # fmt: skip
def swap_adjacent_at_depth():
    """An array with axes depth and depth + 1 exchanged."""


@synonym(permute, "x[a, b, c] -> out[b, c, a]", "dims=[a, b, c], axes=[1, 2, 0]", example={"a": 1})
def transpose3d_bca():
    """The axes (a, b, c) reordered to (b, c, a)."""


@synonym(permute, "x[a, b, c] -> out[c, a, b]", "dims=[a, b, c], axes=[2, 0, 1]", example={"a": 1})
def transpose3d_cab():
    """The axes (a, b, c) reordered to (c, a, b)."""


@synonym(permute, "x[a, b, c] -> out[a, c, b]", "dims=[a, b, c], axes=[0, 2, 1]", example={"a": 1})
def transpose3d_acb():
    """A batch of matrices, each transposed: the axes (a, b, c) reordered to (a, c, b)."""
