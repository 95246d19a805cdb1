"""The draw of cases: shapes, parameters and data, a function of (operation, seed, data class, size) alone.

A case is drawn from numpy's counter-based Philox generator keyed by those four, so one line reproduces it. Dimensions are of
two kinds, by turns (:func:`is_aligned`). One kind comes from a list of mostly prime sizes around powers of two and the edges of
the summation trees, distinct within a case, so that no two can be confused unnoticed; 0 and 1 appear, and sizes above 65,535
where the budget allows. The other kind has what models have, for which fast kernels have branches of their own: multiples of 4,
8, 16, 32 or 64, powers of two, equal lengths. Now and then one axis is long and the others are short. Parameters are drawn reals
and the numbers that people write, by turns.

Cases of the size "edges" lie next to what kernels divide their work by (:data:`AT`), its multiples and the limits of number
types: sizes, products of sizes, indices and parameters, alone and together. Seed and data class also pick one of the row's
geometry classes, and the draw aims at it.
"""

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from tlspec import registry
from tlspec.bounds import call_named, call_reference
from tlspec.case import (
    INTEGERS,
    Case,
    Expected,
    as_tuple,
    cotangent_names,
    is_empty,
    refused_by,
    shape_of,
    spec_inputs,
)
from tlspec.classes import Near
from tlspec.draw.data import DATA, corners, double, fill, generator
from tlspec.draw.draws import LIMITS, LONG, LONG_OF_USERS, STEPS, Draw
from tlspec.expressions import evaluate, names_in
from tlspec.registry import Check, Op
from tlspec.signature import WHOLE, Array

__all__ = ["AT", "DATA", "EDGES", "EDGE_WORK", "PATH", "SHAPE", "SIZES", "Case", "Draw", "Expected", "break_check",
           "budget_of", "build_case", "class_aimed_at", "cotangent_names", "data_classes", "draw_case", "draw_cases",
           "evaluate", "fill", "free_sizes", "generator", "is_empty", "long_lengths", "places_of", "refused_by",
           "shape_case", "shape_of", "stretched"]  # fmt: skip

#: the arrays of a call by name; None for one that is left out
Arrays = dict[str, np.ndarray | None]
#: the size of a case next to an edge
EDGES = "edges"
#: what kernels divide their work by: powers of two, and the tiles of 3 registers or stages
AT = (*(2**k for k in range(2, 21)), *(3 * 2**k for k in range(3, 9)))
#: the elements of 24 MiB, more than a cache holds: large cases of what reads and writes each element once have more
STREAMED = 3 * 2**21
#: the families that do that for large arrays
STREAMING = ("elementwise", "reduce", "shape", "index", "softmax", "norm", "loss")
#: elements of all arrays of a case together
SIZES = {"small": 2**10, "medium": 2**16, EDGES: 5 * 2**16, "large": 2**22}
#: the tries after which a case that aims at a class has neither aligned lengths nor a long axis
AIMED = 300
#: how many cases of a size have a long axis
LONG_AXES = {"medium": 0.15, EDGES: 0.15, "large": 0.3}
#: the size of a case whose dimensions are one of the row's `paths`, counted by the seed
PATH = "path"
#: the size of a case whose dimensions are given
SHAPE = "shape"
#: multiply-adds of the reference in a case of the size "edges", of a row that counts them
EDGE_WORK = 2**23


def data_classes(op: Op, which: str = "forward") -> tuple[str, ...]:
    """The data classes that a row is drawn with.

    Parameters
    ----------
    op : Op
        The row.
    which : str, default 'forward'
        "forward" or "vjp".

    Returns
    -------
    tuple of str
        The row's own, else those of its bound's kind.

    Examples
    --------
    >>> from tlspec import registry
    >>> from tlspec.drawn import data_classes
    >>> data_classes(registry.get("matmul"))
    ('normal', 'uniform', 'integers', 'special', 'structured')
    """
    if op.drawing.data is not None:
        return op.drawing.data
    if op.bound_of(which).kind in ("tree", "chain"):
        return ("normal", "uniform", "integers", "special", "structured")
    return ("normal", "uniform", "wide", "special", "structured")


def _values(op: Op, d: Draw) -> dict[str, Any]:
    """Dimensions, parameters and host arrays: the row's draw, completed by the default one."""
    sig = op.signature
    values = dict(op.drawing.draw(d)) if op.drawing.draw is not None else {}
    for a in sig.inputs:  # a host array that the row drew gives its dimensions
        if a.name in values and values[a.name] is not None:
            unknown = [i for i in a.dims if i.isidentifier() and i not in values]
            values.update(zip(unknown, np.shape(values[a.name]), strict=False))
    if sig.lists:
        values.setdefault("lengths", d.lengths(sum(a.listed for a in sig.inputs + sig.outputs)))
        values[sig.lists[0].dims[0]] = len(values["lengths"])
    missing = [i for i in sig.dims if i.lstrip("*") not in values]
    for j in d.rng.permutation(len(missing)):
        item = missing[int(j)]
        values[item.lstrip("*")] = d.dims() if item.startswith("*") else d.dim()
    if sig.elementwise and "n" not in values:
        values["n"] = d.dim(0, max(1, d.budget // (len(sig.inputs) + len(sig.outputs))))
    lists = [values[i[1:]] for i in sig.dims if i.startswith("*")]
    for p in sig.params:
        if p.name not in values:
            if p.kind == "float":
                values[p.name] = d.written(None if p.default is None else float(p.default), -2, 2)
            elif p.kind == "u32":
                values[p.name] = d.integer(0, max(len(lists[0]) - 1, 0) if lists else 3)
            elif p.kind == "u64":
                values[p.name] = d.integer(0, 2**63 - 1)
            else:
                values[p.name] = d.dims()
        if p.kind == "float":
            values[p.name] = float(np.float32(values[p.name]))
    return values


def _complete(op: Op, d: Draw, values: Mapping[str, Any]) -> dict[str, Any]:
    """The values with their arrays: those that the row gave as functions of the values are made (None: as its data class says),
    and indices are drawn."""
    out = {n: call_named(v, values) if callable(v) else v for n, v in values.items()}
    for a in op.signature.inputs:
        if not a.optional and a.name in out and out[a.name] is None:
            del out[a.name]
    for a in op.signature.inputs:
        if a.kind in ("u32", "index") and a.name not in out:
            rows = next((shape_of(b, out) for b in op.signature.buffers if not b.elementwise), (1,))
            shape, below = shape_of(a, out), int(evaluate(a.below, out)) if a.below else (rows or (1,))[0]
            out[a.name] = d.indices(int(np.prod(shape)), below).reshape(shape)
    return out


def _elements(op: Op, values: Mapping[str, Any]) -> list[int]:
    """The number of elements of each array."""
    return [math.prod(shape_of(a, values)) for a in op.signature.inputs + op.signature.outputs]


def budget_of(op: Op, size: str) -> int:
    """The elements that all arrays of a case may have together.

    Parameters
    ----------
    op : Op
        The row.
    size : str
        One of :data:`SIZES`.

    Returns
    -------
    int
        Number of elements.
    """
    arrays = len(op.signature.inputs + op.signature.outputs)
    return max(SIZES[size], STREAMED * arrays * 17 // 16 if size == "large" and op.family in STREAMING else 0)


def _move(op: Op, d: Draw, values: Mapping[str, Any], aim: Callable[..., bool] | None) -> dict[str, Any]:
    """The values with one to three sizes such that their product is next to an edge, the others being small or as they are,
    and sometimes with a number among the parameters next to an edge or a limit; or one size as an aim at a length asks."""
    sig = op.signature
    out = {n: list(v) if isinstance(v, (list, tuple)) else v for n, v in values.items()}
    params = [p.name for p in sig.params if p.kind != "float" and p.name not in op.drawing.fixed]
    sizes, numbers = places_of(out, sizes_of(op)), places_of(out, params)
    d.rng.shuffle(sizes)
    length = aim.length if isinstance(aim, Near) and sizes and d.rng.random() < 0.7 else None
    near, count = d.edge(1, d.budget), 1 if length else min(d.choice((1, 1, 2, 2, 3)), len(sizes))
    if sizes and d.rng.random() < 0.5:
        for to, at in sizes[count:]:
            to[at] = d.choice((1, 1, 2, 3, 5))
    if length is not None and isinstance(aim, Near):
        (to, at), n, goal = sizes[0], max(1, call_named(length, out)), d.choice(aim.parts)
        to[at] = max(1, d.choice((to[at] * goal // n, -(-to[at] * goal // n), to[at] + goal - n)))
        return out
    if sizes and near is not None and d.rng.random() < 0.75:
        for (to, at), n in zip(sizes, d.factors(near, count), strict=False):
            to[at] = n
    if numbers and d.rng.random() < 0.4:
        to, at = d.choice(numbers)
        high = 2**64 - 1 if to is out and any(p.name == at and p.kind == "u64" for p in sig.params) else 2**32 - 1
        near = d.edge(0, high, LIMITS if d.rng.random() < 0.5 else ())
        to[at] = to[at] if near is None else near
    return out


def sizes_of(op: Op) -> list[str]:
    """The names of the sizes that a draw of a row has, of those that are not fixed."""
    sig = op.signature
    sizes = ["lengths"] if sig.lists else ["n"] if sig.elementwise else [n.lstrip("*") for n in sig.dims]
    return [n for n in sizes if n not in op.drawing.fixed]


def free_sizes(op: Op) -> list[str]:
    """The sizes of a row that may have any length.

    Parameters
    ----------
    op : Op
        The row.

    Returns
    -------
    list of str
        Their names: of several lists, as spatial axes and windows are, the first alone, and none that is fixed.
    """
    lists = [d.lstrip("*") for d in op.signature.dims if d.startswith("*")]
    return [n for n in sizes_of(op) if n not in lists[1:]]


def places_of(values: dict[str, Any], names: Sequence[str]) -> list[tuple[Any, Any]]:
    """Where the numbers of some names stand.

    Parameters
    ----------
    values : dict
        Dimensions and parameters by name.
    names : sequence of str
        Those that are wanted.

    Returns
    -------
    list of tuple
        Of each number a dictionary and a name, or a list and a position: single ones first.
    """
    single = [(values, n) for n in names if isinstance(values[n], int)]
    return [*single, *((values[n], i) for n in names if isinstance(values[n], list) for i in range(len(values[n])))]


def stretched(values: Mapping[str, Any], names: Sequence[str], chosen: int, length: int) -> dict[str, Any]:
    """The values of a case with one long size and the others at most 3.

    Parameters
    ----------
    values : mapping
        Dimensions and parameters by name; they are not changed.
    names : sequence of str
        The sizes among them. A list counts as one place for each of its lengths.
    chosen : int
        The place that becomes long: single sizes first, in their order.
    length : int
        Its length.

    Returns
    -------
    dict
        All of the values.
    """
    out = {n: list(v) if isinstance(v, (list, tuple)) else v for n, v in values.items()}
    for i, (to, at) in enumerate(places_of(out, names)):
        to[at] = length if i == chosen else min(to[at], 1 + (i + chosen) % 3)
    return out


def long_lengths(op: Op, budget: int) -> list[int]:
    """The lengths of a long axis. A reference of a user's own may loop over it, or take memory by its square: it gets
    shorter ones.

    Parameters
    ----------
    op : Op
        The row.
    budget : int
        The number of elements that the case's arrays may have together.

    Returns
    -------
    list of int
        Those that the budget allows in every array.
    """
    lengths = LONG if op.family != "user" else LONG_OF_USERS
    return [n for n in lengths if n * len(op.signature.inputs + op.signature.outputs) <= budget]


def turn_of(op: Op, seed: int, data: str) -> int:
    """The place of a case among those of an operation, seed after seed and data class after data class."""
    own = data_classes(op)
    return seed * len(own) + (own.index(data) if data in own else DATA.index(data))


def is_aligned(seed: int, data: str) -> bool:
    """Whether the lengths of a case are aligned: for half of the data classes and of the seeds, odd or even ones."""
    return (seed // 2 + seed + DATA.index(data)) % 2 == 0


def _admissible(
    op: Op, rng: np.random.Generator, budget: int, edges: Sequence[int] = (), aim: Callable[..., bool] | None = None, *,
    aligned: bool | None = False, turn: int = 0, long: float = 0.0,
) -> dict[str, Any]:  # fmt: skip
    """Values that pass the row's checks and stay within the budget; with `edges` next to these, and such that `aim` of them
    holds if a search finds any. `aligned` says of which kind the lengths are, None that each try has one or the other, and `long`
    how many cases have a long axis."""
    widest = max(len(a.dims) for a in op.signature.inputs + op.signature.outputs)
    if isinstance(aim, Near):
        edges = (*edges, *[aim.size] * len(edges))
    allowed, empty, axes = budget, rng.random() < 0.12, widest if widest > 1 and rng.random() < 0.7 else 0
    step, far = STEPS[turn // 2 % len(STEPS)] if aligned else 0, rng.random() < long
    found: dict[str, Any] | None = None
    hits = 0  # values that the aim holds of, but not at the best length
    for tried in range(1000 if aim else 200):
        if edges:
            allowed, empty = budget // int(rng.choice((1, 4, 4, 16, 64))), rng.random() < 0.1
            axes = widest if widest > 1 and rng.random() < 0.5 else 0
        if aligned is None:
            step = int(rng.choice(STEPS)) * int(rng.integers(2))
        if aim is not None and tried >= AIMED:  # most classes are those of other lengths
            step, far = 0, False
        if step >= 16 and widest > 1 and rng.random() < 0.75:  # a step that no axis is too short for
            axes = widest
        d = Draw(rng, allowed, empty=empty, axes=axes, paired=widest > 1, edges=edges, step=step, turn=turn)
        values = _values(op, d)
        if edges and rng.random() < 0.6:
            values = _move(op, d, values, aim)
        elif far and rng.random() < 0.9:  # a row may have no case with a long axis
            lengths = long_lengths(op, budget)
            if lengths and (count := len(places_of(values, free_sizes(op)))):
                values = stretched(values, free_sizes(op), int(rng.integers(count)), int(rng.choice(lengths)))
        elif step and widest > 1 and not op.signature.lists and rng.random() < 0.3:
            equal = d.aligned(1, int((budget / len(op.signature.inputs + op.signature.outputs)) ** (1 / widest)))
            for to, at in places_of(values, free_sizes(op)):
                to[at] = equal or to[at]
        if refused_by(op, {n: v for n, v in values.items() if not callable(v)}) is not None:
            continue
        if sum(_elements(op, values)) > budget:
            allowed = max(allowed * 2 // 3, 8)
            continue
        if edges and op.drawing.work is not None and call_named(op.drawing.work, values) > EDGE_WORK:
            continue
        values = _complete(op, d, values)
        given = (a for a in op.signature.inputs if values.get(a.name) is not None)
        if refused_by(op, values) is None and all(np.shape(values[a.name]) == shape_of(a, values) for a in given):
            if aim is None:
                return values
            if call_named(aim, values):
                if not isinstance(aim, Near) or aim.length is None or call_named(aim.length, values) in aim.parts:
                    return values
                found, hits = values if hits == 0 else found, hits + 1
                if hits > 30:
                    break
            found = found or values
    if found is not None:
        return found
    text = f"200 draws gave no case that passes its checks within {budget} elements; give the row a draw"
    raise RuntimeError(f"{op.name}: {text}")


def class_aimed_at(op: Op, seed: int, data: str) -> str | None:
    """The geometry class that the "edges" case of a seed and a data class aims at.

    Three odd or three even seeds in a row, with each of a row's data classes, aim at three times as many classes as
    there are data classes.

    Parameters
    ----------
    op : Op
        The row.
    seed : int
        0 or more.
    data : str
        The data class.

    Returns
    -------
    str or None
        The class's name; None where the row has no classes.
    """
    own = data_classes(op) if data in data_classes(op) or op.vjp_rule is None else data_classes(op, "vjp")
    at = own.index(data) if data in own else DATA.index(data)
    names = list(op.drawing.classes)
    return names[(seed // 2 * len(own) + at) % len(names)] if names else None


def draw_case(op: Op | str, seed: int, data: str | None = None, size: str = "medium", which: str = "forward") -> Case:
    """The case of (operation, seed, data class, size): the same four give the same case everywhere.

    Forward and VJP of the same four share inputs and parameters.

    Parameters
    ----------
    op : Op or str
        The row, or its name.
    seed : int
        0 or more. For the size "path" it counts the row's paths.
    data : str, optional
        The data class, see :mod:`tlspec.draw.data`; the seed picks one of the row's unless given.
    size : str, default 'medium'
        One of :data:`SIZES`, or "path" for a row that has paths.
    which : str, default 'forward'
        "forward" or "vjp".

    Returns
    -------
    Case
        With all that a call takes.

    Raises
    ------
    ValueError
        There is no such size or data class.
    KeyError
        There is no operation of this name.
    RuntimeError
        The draws gave no case that passes the row's checks within the budget: the row needs a draw of its own.

    Examples
    --------
    >>> from tlspec.drawn import draw_case
    >>> case = draw_case("matmul", seed=0, data="integers", size="small")
    >>> case.inputs["A"].shape == (case.dims["m"], case.dims["n"])
    True
    """
    return next(draw_cases(registry.get(op) if isinstance(op, str) else op, seed, data, size, [which]))


def draw_cases(op: Op, seed: int, data: str | None, size: str, directions: Sequence[str]) -> Iterator[Case]:
    """The cases of several directions, as :func:`draw_case` gives each; what they share is drawn once.

    Parameters
    ----------
    op : Op
        The row.
    seed : int
        0 or more.
    data : str or None
        The data class; None lets the seed pick one.
    size : str
        One of :data:`SIZES`, or "path".
    directions : sequence of str
        "forward", "vjp" or both.

    Yields
    ------
    Case
        One for each direction, in their order.

    Raises
    ------
    ValueError, RuntimeError
        As :func:`draw_case`, at the first case.
    """
    if size not in SIZES and not (size == PATH and op.drawing.paths):
        sizes = [*SIZES, *(["path"] if op.drawing.paths else [])]
        raise ValueError(f"no size {size!r} of {op.name}; there are {', '.join(sizes)}")
    if data is None:
        classes = data_classes(op, directions[0])
        data = classes[int(generator("data", op.name, seed).integers(len(classes)))]
    elif data not in DATA:
        raise ValueError(f"no data class {data!r}; there are {', '.join(DATA)}")
    rng = generator(op.name, seed, data, size)
    if size == PATH:
        chosen = op.drawing.paths[seed % len(op.drawing.paths)]
        values = {n: v(rng) if callable(v) else v for n, v in chosen.items()}
    else:
        edges: tuple[int, ...] = ()
        aim: Callable[..., bool] | None = None
        if size == EDGES:
            edges, name = AT, class_aimed_at(op, seed, data)
            aim = op.drawing.classes[name] if name else None
        elif size == "large" and op.family in STREAMING:
            sized = [a for a in op.signature.outputs if a.dims != ("1",)] or op.signature.inputs
            edges, aim = (STREAMED,), lambda **values: max(math.prod(shape_of(a, values)) for a in sized) > STREAMED
        aligned = None if size == EDGES else is_aligned(seed, data) and not edges
        long = 0.0 if edges and size != EDGES else LONG_AXES.get(size, 0.0)
        values = _admissible(
            op, rng, budget_of(op, size), edges, aim, aligned=aligned, turn=turn_of(op, seed, data), long=long
        )
    given = {a.name: values.pop(a.name) for a in op.signature.inputs if a.name in values}
    tags, drawn = rng.integers(0, 2**63, size=4), dict[int, Arrays]()
    for which in directions:
        yield _build(op, values, given, tags, drawn, seed=seed, data=data, size=size, which=which)


def shape_case(op: Op, which: str, given: Mapping[str, Any], seed: int = 0, data: str = "normal") -> Case:
    """A case of given dimensions. Parameters that are not given have their defaults, or are drawn.

    Parameters
    ----------
    op : Op
        The row.
    which : str
        "forward" or "vjp".
    given : mapping
        All dimensions by name ("n" of an elementwise operation), and any parameters.
    seed : int, default 0
        Of what is drawn.
    data : str, default 'normal'
        The data class of the arrays.

    Returns
    -------
    Case
        With all that a call takes.

    Raises
    ------
    ValueError
        A dimension is missing, a name is unknown, or the row's checks refuse the values.

    Examples
    --------
    >>> from tlspec import registry
    >>> from tlspec.drawn import shape_case
    >>> shape_case(registry.get("matmul"), "forward", dict(m=2, n=3, p=4)).inputs["A"].shape
    (2, 3)
    """
    sig = op.signature
    sizes = ["n"] if sig.elementwise else list(sig.sizes)
    names = [*sizes, *(p.name for p in sig.params)]
    said = f"shapes: got {', '.join(f'{n}={v}' for n, v in given.items())}"
    if wrong := sorted(set(given) - set(names)) or [n for n in sizes if n not in given]:
        raise ValueError(
            f"{op.name}: {said}; expected {', '.join(names)}: {wrong[0]} is {'not one' if wrong[0] in given else 'missing'}"
        )
    rng = generator("shape", op.name, seed, data, *(f"{n}={v}" for n, v in sorted(given.items())))
    d = Draw(rng, SIZES["medium"], turn=turn_of(op, seed, data))
    values = _values(op, d)
    values |= {p.name: (float if p.kind == "float" else int)(p.default) for p in sig.params if p.default is not None}
    values |= given
    fixed = {n: v for n, v in values.items() if not isinstance(v, np.ndarray)}
    arrays = {a.name: a for a in sig.inputs}
    fits = {n for n, v in values.items() if isinstance(v, np.ndarray) and v.shape == shape_of(arrays[n], fixed)}
    values = _complete(op, d, {n: v for n, v in values.items() if n in fixed or n in fits})
    if (broken := refused_by(op, values)) is not None:
        raise ValueError(f"{op.name}: {said}; expected {broken.say or broken.expression}")
    known = {a.name: values.pop(a.name) for a in sig.inputs if a.name in values}
    return build_case(op, values, known, rng, seed=seed, data=data, size=SHAPE, which=which)


def build_case(
    op: Op, values: Mapping[str, Any], given: Mapping[str, Any], rng: np.random.Generator, *, seed: int = 0,
    data: str = "normal", size: str = "given", which: str = "forward", command: str = "",
) -> Case:  # fmt: skip
    """A case of given dimensions and parameters.

    Parameters
    ----------
    op : Op
        The row.
    values : mapping
        All dimensions and parameters by name; they are not checked.
    given : mapping
        Inputs and cotangents by name; those that are not there are drawn.
    rng : numpy.random.Generator
        What they are drawn with.
    seed : int, default 0
        What the case says its seed is.
    data : str, default 'normal'
        The data class of what is drawn.
    size : str, default 'given'
        What the case says its size is.
    which : str, default 'forward'
        "forward" or "vjp".
    command : str
        The command that gives the case again.

    Returns
    -------
    Case
        With all that a call takes.
    """
    tags = rng.integers(0, 2**63, size=4)
    return _build(op, values, given, tags, {}, seed=seed, data=data, size=size, which=which, command=command)


def _build(
    op: Op, values: Mapping[str, Any], given: Mapping[str, Any], tags: np.ndarray, drawn: dict[int, Arrays], *,
    seed: int, data: str, size: str, which: str, command: str = "",
) -> Case:  # fmt: skip
    """A case whose streams the tags name; `drawn` holds the inputs that an earlier one drew, by the span of their integers."""
    sig = op.signature
    dims = {n: values[n] for n in sig.sizes}
    params = {p.name: values[p.name] for p in sig.params}
    bounds = [op.bound] + ([op.vjp_rule.bound] if op.vjp_rule else [])
    extremes = not any(b.summed for b in bounds)
    payloads = data == "special" and any(b.fixed is not None for b in bounds)

    def draw(array: Array, shape: tuple[int, ...], key: object, span: int) -> np.ndarray:
        stream = generator("array", *tags, key)
        if array.kind == "f64":
            return double(stream, shape, data)
        if array.kind in WHOLE:
            kind = np.dtype(WHOLE[array.kind])
            low, high = (0, 1) if kind.kind == "b" else (np.iinfo(kind).min, np.iinfo(kind).max)
            low, high = (max(low, -span), min(high, span)) if data == "integers" else (low, high)
            return stream.integers(low, high, size=shape, endpoint=True, dtype=np.int64).astype(kind)
        x = fill(stream, shape, data, extremes=extremes, span=span)
        if array.name in op.drawing.nonnegative and data != "special":
            x = np.abs(x)
        return patterned(generator("payload", *tags, key), x) if payloads else x

    def operands(span: int) -> Arrays:
        inputs: Arrays = {}
        optional = generator("optional", *tags)
        for a in sig.inputs:
            if a.name in given:
                inputs[a.name] = given[a.name]
            elif a.optional and optional.random() < 0.25:
                inputs[a.name] = None
            else:
                inputs[a.name] = draw(a, shape_of(a, values), a.name, span)
        if sig.elementwise and data == "special" and not given:
            corners(generator("corners", *tags), [x for x in inputs.values() if x is not None], extremes)
        return inputs

    def arrays(span: int) -> Case:
        inputs = drawn[span] = drawn[span] if span in drawn else operands(span)
        cotangents = {}
        if which == "vjp":
            for name, out in cotangent_names(op).items():
                shapes = (np.shape(x) for x in inputs.values() if x is not None)
                shape = next(shapes) if sig.elementwise else shape_of(out, values)
                cotangents[name] = given[name] if name in given else draw(out, shape, name, span)
        return Case(op, which, seed, data, size, dims, params, inputs, cotangents, command)

    case = arrays(1 if size == SHAPE else 8)
    if (
        data == "integers" and size != SHAPE and not is_empty(case)
    ):  # whose sums are exact, and whose reference may not be defined
        for span in (8, 4, 2, 1):
            case = arrays(span)
            if _small(case):
                break
    return case


def patterned(rng: np.random.Generator, x: np.ndarray) -> np.ndarray:
    """x with the NaNs' bits drawn anew: sign, quiet or signalling, and an even payload (that of the pattern verify fills
    outputs with is odd)."""
    bits = x.view(np.uint32)
    nan = np.isnan(x)
    fraction = rng.integers(1, 2**22, size=x.shape, dtype=np.uint32) << np.uint32(1)
    sign = rng.integers(0, 2, size=x.shape, dtype=np.uint32) << np.uint32(31)
    return np.where(nan, sign | np.uint32(0x7F800000) | fraction, bits).view(np.float32)


def _small(case: Case) -> bool:
    """Whether every sum of the case stays exact: the references on absolute values are below 2^24."""
    arguments = {k: np.abs(a) if a is not None else None for k, a in spec_inputs(case.arguments).items()}
    with np.errstate(all="ignore"):
        outs = as_tuple(call_reference(case.reference, arguments, case.values))
    return all(bool(np.all(np.abs(o) < INTEGERS)) for o in outs)


def break_check(op: Op, check: Check, seed: int = 0) -> dict[str, Any] | None:
    """Dimensions and parameters that a check refuses and the checks before it accept.

    Parameters
    ----------
    op : Op
        The row.
    check : Check
        One of its checks.
    seed : int, default 0
        Of the search.

    Returns
    -------
    dict or None
        The values by name; None where the search finds none.
    """
    rng = generator("refused", op.name, check.expression, seed)
    start = _admissible(op, rng, SIZES["small"])
    named = names_in(check.expression) & start.keys()
    floats = {p.name for p in op.signature.params if p.kind == "float"}
    optional = {a.name for a in op.signature.inputs if a.optional}
    sizes = sorted({v + k for v in start.values() if isinstance(v, int) for k in (0, 1)})
    for name in sorted(n for n in named if seed == 0 and isinstance(start[n], np.ndarray) and start[n].size):
        for least in sizes:  # the first size that is too large an index
            values = {**start, name: start[name].copy()}
            values[name].flat[int(rng.integers(values[name].size))] = min(least, 2**32 - 1)
            if refused_by(op, values) is check:
                return values
    for _ in range(8000):
        values = dict(start)
        for name in sorted(named):
            if rng.random() < 0.5:
                continue
            old = values[name]
            if name in optional:
                values[name] = None
            elif isinstance(old, np.ndarray):
                values[name] = old.copy()
                if old.size:
                    values[name][int(rng.integers(old.size))] = int(rng.choice([0, 9, 2**20, 2**32 - 1]))
            elif isinstance(old, (list, tuple)):
                new = [int(v) for v in old]
                edit = int(rng.integers(4))
                if edit == 0 or not new:
                    new.append(int(rng.integers(0, 4)))
                elif edit == 1:
                    new.pop(int(rng.integers(len(new))))
                elif edit == 2:
                    new[int(rng.integers(len(new)))] = int(rng.integers(0, 9))
                else:
                    rng.shuffle(new)
                values[name] = new[:8]
            elif name in floats:
                values[name] = float(rng.choice([0.0, -1.0, 1.0, 2.5, np.inf, -np.inf, np.nan]))
            else:
                values[name] = int(rng.choice([0, 1, 2, 3, 5, 8, 9, 300, int(old) + 1, max(int(old) - 1, 0)]))
        if refused_by(op, values) is check:
            return values
    return None
