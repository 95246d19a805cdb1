"""Cases of the same shapes with other numbers: all, a few, those beside a part of the batch; with other parameters; with arrays
that are one."""

from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import numpy as np

from tlspec.bounds import call_reference
from tlspec.draw.cases import Case, free_sizes, refused_by
from tlspec.draw.data import generator
from tlspec.expressions import evaluate
from tlspec.formats import FORMATS
from tlspec.judge import kept
from tlspec.judge.blocks import ELEMENTS
from tlspec.judge.shrink import has_fixed, lengths_of, resized
from tlspec.signature import WHOLE

#: numbers of each array that a case with a few other numbers changes: the fewer, the likelier is a cache not to see them
CHANGED = 1
#: by what share a parameter is larger that a cache may take for the one before
NUDGE = 2.0**-10
#: by what shares a number is larger
NUDGES = tuple(2.0**-k for k in range(10, 21))
#: what real parameters are multiplied by that kernels may take for 0, and whole numbers that need all bits
SMALL, LARGE = (0.0, 2.0**-4, 2.0**-10), (2**31, 2**32 - 2)
#: the factor of numbers beside which a parameter that is 0 may not be a small one
TINY = 2.0**-20
#: how many numbers are tried at which a function begins to do otherwise, and the distances from each
TURNS, AROUND = 16, np.array([0, *(s << k for k in range(20) for s in (1, -1))])
#: the exponents of the range far from zero in which a function's zeros are looked for, the numbers of each binade among which its
#: sign changes, and how many of those nearest to a zero are tried
FAR, SAMPLE, NEAREST = np.arange(4, 32), 2048, 4
#: the factor of what stands beside rows that stay, so that no number common to all of them fits
UNEVEN = 2.0**80
#: the factor of one half of an axis beside the other, in whose running sums nothing of the other is left
STEEP = 2.0**60
#: drawn cases whose parameters are tried
PARAMETERS = 6


def halved(case: Case) -> Case:
    """Halves in reversed order. Sums do not see the order alone, nor ratios the halving alone."""
    return _mapped(case, lambda name, x: _reversed_halves(x))


def touched(case: Case) -> Case:
    """A few numbers anywhere are halved: what a cache does not see that looks at some elements of an array."""
    return _multiplied(case, "touched", 0.5)


def nudged(case: Case) -> Case:
    """A few numbers anywhere are a little larger: what a cache does not see that rounds the numbers it knows."""
    rng = generator("nudge", case.op.name, case.which, case.seed, case.data, case.size)
    return _multiplied(case, "nudged", 1 + float(rng.choice(NUDGES)))


def permuted(case: Case) -> Case:
    """The same numbers in another order: what a cache does not see that keeps sums, or the largest number."""
    rng = generator("permuted", case.op.name, case.which, case.seed, case.data, case.size)
    return _mapped(case, lambda name, x: rng.permutation(x.reshape(-1)).reshape(x.shape))


def falling(case: Case) -> Case:
    """The same numbers along the last axis from the largest one on, which a scan that waits for a larger one passes over."""
    return _mapped(case, lambda name, x: x if x.ndim == 0 else np.array(-np.sort(-x, axis=-1), order="C"))


def tied(case: Case) -> Case:
    """Numbers of which many are equal: -1, 0 and 1 and what is not finite."""
    return _mapped(case, lambda name, x: np.where(np.isfinite(x), np.clip(np.round(x), -1, 1), x).astype(x.dtype))


def negative(case: Case) -> Case:
    """Negative numbers alone, below which a maximum must not begin, where the row takes such."""
    return _mapped(case, lambda name, x: x if name in case.op.drawing.nonnegative else -np.abs(x))


def outdone(case: Case) -> Case:
    """One number along the longest axis so far above the others that each of them counts little and all together do not."""

    def change(x: np.ndarray) -> None:
        most = np.max(np.abs(x), axis=0, where=np.isfinite(x), initial=0.0)
        x[len(x) * 2 // 3] = most + np.log(len(x)) + 6

    return _along_the_longest(case, change)


def steep(case: Case) -> Case:
    """The first half of each array's longest axis is far larger: differences of running sums lose the rest."""

    def change(x: np.ndarray) -> None:
        x[: len(x) // 2] *= STEEP

    return _along_the_longest(case, change)


def sparse(case: Case) -> Case:
    """Zeros but for two numbers of each array, which who looks at some places alone does not meet."""
    rng = generator("sparse", case.op.name, case.which, case.seed, case.data, case.size)

    def change(name: str, x: np.ndarray) -> np.ndarray:
        made = np.zeros_like(x)
        places = rng.permutation(x.size)[:2]
        made.flat[places] = x.flat[places]
        return made

    return _mapped(case, change)


def alike(case: Case) -> Case:
    """Rows along the first axis that are equal but for one number each."""

    def change(name: str, x: np.ndarray) -> np.ndarray:
        if x.ndim < 2 or not x.size:
            return x
        made = np.array(np.broadcast_to(x[:1], x.shape), order="C")
        rows = made.reshape(len(x), -1)
        each = np.arange(len(x))
        rows[each, rows.shape[1] // 2 + each % -(-rows.shape[1] // 4)] += 1
        return made

    return _mapped(case, change)


def late(case: Case) -> Case:
    """The last eighth of each array is halved: what a cache does not see that looks at the beginning."""

    def change(name: str, x: np.ndarray) -> np.ndarray:
        made = np.array(x, order="C")
        made.reshape(-1)[x.size - -(-x.size // 8) :] /= 2
        return made

    return _mapped(case, change)


def masked(case: Case) -> Case:
    """-inf in the first half of each array's longest axis: whole tiles of it beside tiles without, as a mask leaves them."""

    def change(x: np.ndarray) -> None:
        x[: len(x) // 2] = -np.inf

    return _along_the_longest(case, change)


def expanded(case: Case) -> Case:
    """Arrays whose first axis holds one row again and again."""
    return _mapped(
        case, lambda name, x: np.array(np.broadcast_to(x[:1], x.shape), order="C") if x.size and x.ndim else x
    )


def laid(case: Case, layout: str) -> Case:
    """The case with the numbers that a layout asks for."""
    return expanded(case) if layout == "expanded" else case


def plain(case: Case) -> Case:
    """The case with numbers that no kernel refuses."""
    return _mapped(case, lambda name, x: np.resize(np.linspace(0.5, 1.5, 251), x.shape).astype(x.dtype))


def zeroed(case: Case, name: str) -> Case:
    """The case with zeros alone in one array."""
    return _mapped(case, lambda n, x: np.zeros_like(x) if n == name else x)


def enlarged(case: Case, name: str, factor: float) -> Case:
    """The case with the numbers of one array so many times as large."""
    return _mapped(case, lambda n, x: (x * factor).astype(x.dtype) if n == name else x)


def filled(case: Case, place: int) -> Case | None:
    """The case with one whole number in all of an array: its least (0), its greatest (1), or one on either side of the middle
    of those below a limit (2, 3), as bytes have the ends of their signed numbers there. None where that is no other case."""
    made = dict(case.inputs)
    for a in case.op.signature.inputs:
        x = made[a.name]
        if x is None or not x.size or (a.kind not in WHOLE and not a.below):
            continue
        low, high = (0, 1) if x.dtype.kind == "b" else (np.iinfo(x.dtype).min, np.iinfo(x.dtype).max)
        if a.below:
            low, high = 0, max(int(evaluate(a.below, case.values)), 1) - 1
        made[a.name] = np.full_like(x, (low, high, (low + high) // 2, min((low + high) // 2 + 1, high))[place])
    again = replace(case, inputs=made, given=None)
    same = all(_is_same(made[n], x) for n, x in case.inputs.items())
    return None if same or refused_by(case.op, {**case.values, **made}) is not None else again


def without(case: Case) -> Case | None:
    """The same arrays but for the optional ones; None where there are none, or the row needs them."""
    left_out = {a.name: None for a in case.op.signature.inputs if a.optional and case.inputs[a.name] is not None}
    again = replace(case, inputs={**case.inputs, **left_out}, given=None)
    return again if left_out and refused_by(case.op, {**case.values, **again.inputs}) is None else None


def otherwise(case: Case) -> Case | None:
    """The same arrays with parameters of another case, results having the same shapes; None where there is none. A program
    that is compiled for each shape may have the first ones built in."""
    names = [p.name for p in case.op.signature.params]
    for seed in range(case.seed + 1, case.seed + 1 + PARAMETERS) if names and not case.op.signature.lists else ():
        drawn = kept.drawn(case.op, seed, case.data, "small", case.which).values
        made = resized(case, {**lengths_of(case), **{n: drawn[n] for n in names if n in drawn}})
        if made is not None and made.values != case.values and _has_the_arrays(case, made):
            return made
    return None


def _has_the_arrays(case: Case, made: Case) -> bool:
    """Whether another case has the same arrays, and results of the same shapes."""
    sig = case.op.signature
    arrays = [a for a in (*sig.inputs, *sig.outputs, *case.signature.outputs) if not a.listed]
    before, after = ([c.shape(a) for a in arrays] for c in (case, made))
    return before == after and all(_is_same(x, made.inputs.get(n)) for n, x in case.inputs.items())


def nearly(case: Case) -> Case | None:
    """The same arrays with parameters that are larger by one part in 1024; None where none is a real number."""
    reals = [p.name for p in case.op.signature.params if p.kind == "float" and np.isfinite(case.values[p.name])]
    values = {n: float(np.float32(case.values[n] * (1 + NUDGE))) for n in reals if case.values[n]}
    made = resized(case, {**lengths_of(case), **values}) if values else None
    return made if made is not None and _has_the_arrays(case, made) else None


def parametrised(case: Case) -> Iterator[tuple[str, Case]]:
    """The same arrays with one parameter otherwise, and which: a real one far smaller, or 0, also with far smaller numbers; a
    whole one that is no size as large as the longest axis, about half of it, or beyond 31 bits."""
    known, sizes = lengths_of(case), free_sizes(case.op)
    longest = max((int(np.max(known[n], initial=0)) for n in sizes if n in known), default=0)
    for p in case.op.signature.params:
        value: Any = case.values[p.name]
        if p.kind == "float" and np.isfinite(value):
            others: list[Any] = [float(np.float32((value or 1.0) * factor + 0.0)) for factor in SMALL]
        elif p.kind == "u32" and p.name not in sizes:
            others = [longest, longest // 2 + 1, *(LARGE if case.op.family != "user" else ())]
        else:
            continue
        for other in dict.fromkeys(others):
            values = {**case.values, p.name: other}
            if other == value or not has_fixed(case.op, values):
                continue
            made = replace(case, params={**case.params, p.name: other}, given=None)
            if refused_by(case.op, {**values, **case.inputs}) is None and _has_the_arrays(case, made):
                yield f"{p.name}={other!r}", made
                if other == 0:
                    tiny = _mapped(made, lambda name, x: x * x.dtype.type(TINY))
                    yield f"{p.name}=0.0 and numbers far smaller", tiny


def turned(case: Case) -> Case | None:
    """The case with numbers at and around those where an elementwise function of one argument changes its sign, begins or ceases
    to be a number, 1, -1 or its argument, and with those nearest to its zeros and poles far from zero, as of functions that turn
    again and again; None where it has more arguments, or changes nowhere."""
    sig = case.op.signature
    if not sig.elementwise or sig.lists or [a.kind for a in sig.inputs] != ["f32"]:
        return None
    format, (name,) = FORMATS["float32"], (a.name for a in sig.inputs)
    size = np.ldexp(1 + np.arange(16) / 16, np.arange(-30, 128)[:, None]).reshape(-1)
    grid = np.concatenate([-size[::-1], [0.0], size])

    def value(x: np.ndarray) -> np.ndarray:
        with np.errstate(all="ignore"):
            return np.asarray(call_reference(case.op.reference, {name: x}, case.values), np.float64)

    def kind(x: np.ndarray) -> np.ndarray:
        y = format.round(value(x))
        return np.stack([y > 0, y < 0, np.isinf(y), np.abs(y) == 1, y == x])

    order = _order(grid)
    kinds = kind(grid)
    changes = np.flatnonzero((kinds[:, 1:] != kinds[:, :-1]).any(axis=0))
    changes = changes[np.unique(np.linspace(0, len(changes) - 1, TURNS).astype(int))] if len(changes) else changes
    low, high = order[changes], order[changes + 1]
    for _ in range(32):
        middle = (low + high) // 2
        below = (kind(_number(middle)) == kinds[:, changes]).all(axis=0)
        low, high = np.where(below, middle, low), np.where(below, high, middle)
    found = np.concatenate([_number((high[:, None] + AROUND).reshape(-1)), _far_zeros(value)]).astype(np.float32)
    made = resized(case, {**lengths_of(case), "n": found.size}) if found.size else None
    return (
        None if made is None else _mapped(made, lambda n, x: found.reshape(x.shape) if n == name else np.ones_like(x))
    )


def _order(x: np.ndarray) -> np.ndarray:
    """The places of float32 numbers in their order."""
    bits = x.astype(np.float32).view(np.uint32).astype(np.int64)
    return np.where(bits >= 2**31, 2**31 - bits, bits)


def _number(order: np.ndarray) -> np.ndarray:
    """The float32 numbers of given places in their order."""
    bits = np.where(order < 0, 2**31 - order, order).astype(np.uint32)
    return bits.view(np.float32).astype(np.float64)


def _far_zeros(value: Callable[[np.ndarray], np.ndarray]) -> np.ndarray:
    """The float32 numbers nearest to a function's zeros and poles, some of each binade far from zero."""
    rng = generator("far")
    sample = np.sort(np.ldexp(1 + rng.random((len(FAR), SAMPLE)), FAR[:, None]), axis=1)
    sample *= rng.choice([-1.0, 1.0], (len(FAR), 1))
    negative = value(sample.reshape(-1)).reshape(sample.shape) < 0
    binade, place = np.nonzero(negative[:, 1:] != negative[:, :-1])
    low, high, sign = _order(sample[binade, place]), _order(sample[binade, place + 1]), negative[binade, place]
    for _ in range(24 if len(low) else 0):
        middle = (low + high) // 2
        below = (value(_number(middle)) < 0) == sign
        low, high = np.where(below, middle, low), np.where(below, high, middle)
    found, binade = _number(np.concatenate([low, high])), np.tile(binade, 2)
    with np.errstate(all="ignore"):
        near = np.abs(value(found)) if len(found) else found
        near = np.minimum(near, 1 / near)
    best = [np.flatnonzero(binade == k) for k in range(len(FAR))]
    return found[np.concatenate([places[np.argsort(near[places])[:NEAREST]] for places in best])]


def uneven(case: Case, dim: str) -> Case:
    """The first half of a dimension of the batch is far larger; the rest stays."""
    return _beside(case, dim, case.values[dim] // 2, lambda x: x * x.dtype.type(UNEVEN))


def shared(case: Case) -> Case | None:
    """The case with the same numbers in all inputs of a shape; None where shapes differ, or the operation writes one."""
    sig, made = case.signature, dict(case.inputs)
    if sig.lists or any(o.over for o in sig.outputs):
        return None
    first: dict[Any, np.ndarray] = {}
    for a in case.op.signature.inputs:
        x = made[a.name]
        if x is not None and x.dtype.kind == "f" and x.size:
            made[a.name] = first.setdefault((x.shape, a.kind), x)
    if all(made[n] is x for n, x in case.inputs.items()):
        return None
    again = replace(case, inputs=made, given=None)
    return None if refused_by(case.op, {**case.values, **made}) is not None else again


def is_same(a: Case, b: Case) -> bool:
    """Whether cases have the same parameters and numbers, and as many arrays."""
    arrays, others = ({**c.inputs, **c.cotangents} for c in (a, b))
    if a.values != b.values or len({*map(id, arrays.values())}) != len({*map(id, others.values())}):
        return False
    return all(_is_same(x, others[n]) for n, x in arrays.items())


def _is_same(a: np.ndarray | None, b: np.ndarray | None) -> bool:
    return a is b or (a is not None and b is not None and np.array_equal(a, b, equal_nan=True))


def beside(case: Case, dim: str, count: int) -> Case:
    """Other numbers in the first `count` places of a dimension of the batch; the rest stays."""
    return _beside(case, dim, count, lambda x: -x / 2 if (x < 0).any() else _reversed_halves(x))


def _beside(case: Case, dim: str, count: int, change: Callable[[np.ndarray], np.ndarray]) -> Case:
    sig = case.op.signature
    dims = {a.name: a.dims for a in sig.inputs}
    dims |= {name: sig.outputs[i].dims for i, name in enumerate(case.cotangents)}

    def changed(name: str, x: np.ndarray) -> np.ndarray:
        if dim not in dims[name] or (dim != ELEMENTS and x.shape[dims[name].index(dim)] != case.values[dim]):
            return x
        made, place = np.array(x, order="C"), (slice(None),) * dims[name].index(dim) + (slice(count),)
        made[place] = change(made[place])
        return made

    return _mapped(case, changed)


def _multiplied(case: Case, name: str, factor: float) -> Case:
    """The case with a factor at a few numbers of each array, which are drawn by a name."""
    rng = generator(name, case.op.name, case.which, case.seed, case.data, case.size)

    def change(_: str, x: np.ndarray) -> np.ndarray:
        places = np.flatnonzero(np.isfinite(x) & (x != 0))
        made = np.array(x, order="C")
        made.flat[rng.permutation(places)[:CHANGED]] *= factor
        return made

    return _mapped(case, change)


def _along_the_longest(case: Case, change: Callable[[np.ndarray], None]) -> Case:
    """The case after a change of each array in place, which is seen with its longest axis first."""

    def changed(_: str, x: np.ndarray) -> np.ndarray:
        made = np.array(x, order="C")
        if x.size and x.ndim:
            change(np.moveaxis(made, int(np.argmax(x.shape)), 0))
        return made

    return _mapped(case, changed)


def _mapped(case: Case, change: Callable[[str, np.ndarray], np.ndarray]) -> Case:
    def mapped(group: Any) -> dict[str, Any]:
        return {n: x if x is None or x.dtype.kind != "f" else change(n, x) for n, x in group.items()}

    with np.errstate(all="ignore"):
        return replace(case, inputs=mapped(case.inputs), cotangents=mapped(case.cotangents), given=None)


def _reversed_halves(x: np.ndarray) -> np.ndarray:
    return np.asarray(x / 2) if x.ndim == 0 else np.divide(x[..., ::-1], 2, order="C")
