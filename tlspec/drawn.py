"""Drawn test cases: shapes, parameters and data, a function of (operation, seed, data class, size) alone.

A case is drawn from numpy's counter-based Philox generator keyed by those four, so one line reproduces it. Dimensions come
from a list of mostly prime sizes around powers of two and the edges of the summation trees, distinct within a case, so
that no two can be confused unnoticed; 0 and 1 appear, and sizes above 65,535 where the budget allows.

Cases of the size "edges" lie next to the boundaries of the family's kernels (:mod:`tlspec.boundaries`), their multiples and
the limits of number types: sizes, products of sizes, indices and parameters, alone and together. Seed and data class also pick
one of the row's geometry classes, and the draw aims at it.
"""

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache, cached_property
from typing import Any

import numpy as np

from tlspec import boundaries, registry
from tlspec.bounds import Bound, call_named, call_reference, uncovered
from tlspec.classes import Near
from tlspec.data import DATA, corners, double, fill, generator
from tlspec.draws import INTEGERS, LIMITS, Draw
from tlspec.expressions import evaluate, names_in
from tlspec.registry import Check, Op
from tlspec.signature import Array, Signature

__all__ = ["DATA", "EDGES", "PATH", "SIZES", "Case", "Draw", "Expected", "break_check", "budget_of", "build_case",
           "class_aimed_at", "cotangent_names", "data_classes", "draw_case", "draw_cases", "evaluate", "fill", "generator",
           "refused_by", "shape_of"]  # fmt: skip

#: the arrays of a call by name; None for one that is left out
Arrays = dict[str, np.ndarray | None]
#: the size of a case next to boundaries
EDGES = "edges"
#: elements of all arrays of a case together
SIZES = {"small": 2**10, "medium": 2**16, EDGES: 5 * 2**16, "large": 2**22}
#: the size of a case whose dimensions are one of the row's `paths`, counted by the seed
PATH = "path"
#: multiply-adds of the reference in a case of the size "edges", of a row that counts them
EDGE_WORK = 2**23


@dataclass(frozen=True)
class Expected:
    """The oracle of a case: per output the reference, as float64, and the absolute tolerance."""

    outputs: tuple[np.ndarray, ...]
    tolerances: tuple[np.ndarray, ...]
    #: the sign of a zero is part of the answer where the tolerance is 0
    signed_zeros: bool
    #: the bit patterns that elements must have (:meth:`tlspec.bounds.Bound.bits`); None where none are fixed
    bits: tuple[np.ndarray | None, ...]


@dataclass(frozen=True)
class Case:
    """One call of an operation or of its VJP, with everything it takes."""

    op: Op
    which: str  # "forward" or "vjp"
    seed: int
    data: str
    size: str
    dims: dict[str, Any]
    params: dict[str, Any]
    inputs: dict[str, np.ndarray | None]
    #: of a VJP: one per output of the operation
    cotangents: dict[str, np.ndarray] = field(default_factory=dict)
    #: the command that gives a case that was not drawn
    command: str = ""
    #: the arrays of the call where they are not those that the fields above give
    given: dict[str, np.ndarray | None] | None = None

    @property
    def signature(self) -> Signature:
        return self.op.signature_of(self.which)

    @property
    def bound(self) -> Bound:
        return self.op.bound_of(self.which)

    @property
    def name(self) -> str:
        """The entry point that computes it."""
        return self.op.entry(self.which)

    @property
    def values(self) -> dict[str, Any]:
        """Dimensions and parameters."""
        return {**self.dims, **self.params}

    @cached_property
    def arguments(self) -> dict[str, np.ndarray | None]:
        """The arrays the call takes, by name, in order; a VJP that reads outputs gets the rounded reference."""
        if self.given is not None:
            return self.given
        if self.which == "forward":
            return self.inputs
        known: dict[str, Any] = {**self.inputs, **self.cotangents}
        if any(r not in known for r in self.op.rule.reads):
            with np.errstate(all="ignore"):
                outs = _as_tuple(call_reference(self.op.reference, _spec_inputs(self.inputs), self.values))
                for array, out in zip(self.op.signature.outputs, outs, strict=True):
                    known[array.name] = np.asarray(out, np.float32)
        return {r: known[r] for r in self.op.rule.reads}

    @property
    def reference(self) -> Callable[..., Any]:
        """The reference of what it computes."""
        return self.op.reference_of(self.which)

    @property
    def wide(self) -> dict[str, Any]:
        """The arrays as the reference takes them: float64, and int64 for indices."""
        return _spec_inputs(self.arguments)

    @property
    def wide_inputs(self) -> dict[str, Any]:
        """The row's inputs in the same types, which are the arguments unless a gradient is computed."""
        return _spec_inputs(self.inputs)

    def _evaluated(self, arguments: Mapping[str, Any]) -> list[np.ndarray]:
        """The reference's results, in the type it gives them."""
        with np.errstate(all="ignore"):
            outs = [np.asarray(o) for o in _as_tuple(call_reference(self.reference, arguments, self.values))]
        shapes = [self.shape(a) for a in self.signature.outputs]
        if [o.shape for o in outs] != shapes:
            got = [o.shape for o in outs]
            raise ValueError(f"{self.name}: the reference returned shapes {got}, the signature says {shapes}")
        return outs

    @cached_property
    def real(self) -> tuple[tuple[np.ndarray, ...], tuple[np.ndarray, ...]]:
        """The float64 reference, and how far from it the bound lets a result be: what laws are about. Computed once."""
        arguments = self.wide
        outs = [o.astype(np.float64, copy=False) for o in self._evaluated(arguments)]
        return tuple(outs), tuple(self.bound.tolerance(self.reference, outs, arguments, self.values))

    @cached_property
    def expected(self) -> Expected:
        """What the result is compared with. Computed once."""
        native = _native_inputs(self.arguments)
        if self.bound.in_float32:
            outs = self._evaluated(native)
            if any(o.dtype != np.float32 for o in outs):
                raise TypeError(f"{self.name}: the reference must keep float32, it gave {[o.dtype for o in outs]}")
            bits = _optional(self.bound.bits(self.reference, outs, native, self.values), outs)
            with np.errstate(all="ignore"):
                wide = tuple(o.astype(np.float64) for o in outs)
            return Expected(wide, tuple(np.zeros(o.shape) for o in outs), True, bits)
        wide, tolerances = self.real
        bits = _optional(self.bound.bits(self.reference, wide, native, self.values), wide)
        if self.data == "integers" and self.bound.kind not in ("exact", "moved") and _integral(wide):
            return Expected(wide, tuple(np.zeros(o.shape) for o in wide), False, bits)
        return Expected(wide, tolerances, not self.bound.summed, bits)

    def expected_on(self, device: str) -> Expected:
        """What a device's result is compared with: on CUDA less, where the bound says what may overflow there."""
        peak, expected = self.bound.cuda_peak, self.expected
        if peak is None or not device.startswith("cuda"):
            return expected
        tolerances = uncovered(peak, expected.tolerances, self.wide, self.values)
        return replace(expected, tolerances=tuple(tolerances))

    def shape(self, array: Array) -> tuple[int, ...]:
        """The shape of one of the call's arrays."""
        if array.elementwise:
            return next(x.shape for x in self.inputs.values() if x is not None)
        return shape_of(array, self.values)

    @property
    def classes(self) -> list[str]:
        """The row's geometry classes that the case is of."""
        known = {**self.inputs, **self.values}
        if self.op.signature.elementwise:
            known["n"] = math.prod(self.shape(self.signature.outputs[0]))
        return [name for name, holds in self.op.drawing.classes.items() if call_named(holds, known)]

    @property
    def line(self) -> str:
        """The command that runs this case alone, on every device."""
        return (
            self.command
            or f"python -m tlrt verify --ops {self.op.name} --seed {self.seed} --data {self.data} --size {self.size} --cases 1"
        )


def _as_tuple(value: Any) -> tuple[Any, ...]:
    return tuple(value) if isinstance(value, (tuple, list)) else (value,)


def _spec_inputs(arrays: Mapping[str, np.ndarray | None]) -> dict[str, Any]:
    """Arrays as references take them: float64, and int64 for indices."""
    with np.errstate(invalid="ignore"):  # widening quiets a signalling NaN
        wide = {k: np.int64 if a is not None and a.dtype == np.uint32 else np.float64 for k, a in arrays.items()}
        return {k: None if a is None else a.astype(wide[k]) for k, a in arrays.items()}


def _native_inputs(arrays: Mapping[str, np.ndarray | None]) -> dict[str, Any]:
    """Arrays for what is about their bits: as the call takes them, and int64 for indices."""
    return {k: a.astype(np.int64) if a is not None and a.dtype == np.uint32 else a for k, a in arrays.items()}


def _optional(bits: Sequence[np.ndarray] | None, outs: Sequence[np.ndarray]) -> tuple[np.ndarray | None, ...]:
    """One entry per output."""
    return (None,) * len(outs) if bits is None else tuple(bits)


def _integral(outs: Sequence[np.ndarray]) -> bool:
    return all(bool(np.all(np.abs(o) < INTEGERS) and np.all(o == np.rint(o))) for o in outs)


def shape_of(array: Array, values: Mapping[str, Any]) -> tuple[int, ...]:
    """The shape of an array for given dimensions and parameters, of an elementwise one (n); of a list, that of its elements end
    to end."""
    if array.elementwise:
        return (int(values["n"]),)
    if array.listed:
        return (int(sum(values["lengths"])),)
    shape: list[int] = []
    for item in array.dims:
        if item.startswith("*"):
            shape += evaluate(item[1:], values)
        else:
            shape.append(evaluate(item, values))
    return tuple(int(n) for n in shape)


def refused_by(op: Op, values: Mapping[str, Any]) -> Check | None:
    """The first of the row's checks that these dimensions and parameters fail, or None. Host arrays and optional inputs (None:
    not given) may be among the values; a check of one that is not there is passed over."""
    absent = {a.name for a in op.signature.inputs if a.host or a.optional} - values.keys()
    checks = (c for c in op.contract.checks if not absent & names_in(c.expression))
    return next((c for c in checks if not evaluate(c.expression, values)), None)


def cotangent_names(op: Op) -> dict[str, Array]:
    """Cotangent name to the output it belongs to."""
    outs = op.signature.outputs
    return {"g": outs[0]} if len(outs) == 1 else {f"g_{o.name}": o for o in outs}


def data_classes(op: Op, which: str = "forward") -> tuple[str, ...]:
    """The data classes a row is drawn with: its own, else those of its bound's kind."""
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
                default = None if p.default is None else float(p.default)
                values[p.name] = default if default is not None and d.rng.random() < 0.5 else d.real(-2, 2)
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
            shape = shape_of(a, out)
            out[a.name] = d.indices(int(np.prod(shape)), (rows or (1,))[0]).reshape(shape)
    return out


def _elements(op: Op, values: Mapping[str, Any]) -> list[int]:
    """The number of elements of each array."""
    return [math.prod(shape_of(a, values)) for a in op.signature.inputs + op.signature.outputs]


def _boundaries(table: Mapping[str, Mapping[str, Sequence[int]]], family: str) -> list[int]:
    return sorted({v for values in table.get(family, {}).values() for v in values})


@cache
def edges_of(family: str) -> tuple[int, ...]:
    """The boundaries of a family's kernels; those of the CPU are there three times, so that they are drawn more often."""
    return (*_boundaries(boundaries.CPU, family) * 3, *_boundaries(boundaries.CUDA, family)) or LIMITS


def _farthest(op: Op) -> int:
    """The boundary that large cases go beyond: one on the CPU, of an elementwise row also on CUDA, that neither their ordinary
    budget nor a path of the row reaches; 0 where none is."""
    paths = max((max(_elements(op, p)) for p in op.drawing.paths), default=0)
    known = [b for table in (boundaries.CPU, boundaries.CUDA) for b in _boundaries(table, op.family)
             if table is boundaries.CPU or op.signature.elementwise]  # fmt: skip
    far = [b for b in known if SIZES["large"] // 4 < b <= 2 * SIZES["large"]]
    return max((b for b in far if b > paths), default=0)


def budget_of(op: Op, size: str) -> int:
    """The elements that all arrays of a case of a size may have together."""
    arrays = len(op.signature.inputs + op.signature.outputs)
    return max(SIZES[size], _farthest(op) * arrays * 17 // 16 if size == "large" else 0)


def _move(op: Op, d: Draw, values: Mapping[str, Any], aim: Callable[..., bool] | None) -> dict[str, Any]:
    """The values with one to three sizes such that their product is next to a boundary, the others being small or as they are,
    and sometimes with a number among the parameters next to a boundary or a limit; or one size as an aim at a length asks."""
    sig = op.signature
    out = {n: list(v) if isinstance(v, (list, tuple)) else v for n, v in values.items()}
    names = ["lengths"] if sig.lists else ["n"] if sig.elementwise else [n.lstrip("*") for n in sig.dims]

    def places(names: Sequence[str]) -> list[tuple[dict[str, Any] | list[int], Any]]:
        single = [(out, n) for n in names if isinstance(out[n], int)]
        return [*single, *((out[n], i) for n in names if isinstance(out[n], list) for i in range(len(out[n])))]

    sizes, numbers = places(names), places([p.name for p in sig.params if p.kind != "float"])
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


def _admissible(
    op: Op, rng: np.random.Generator, budget: int, edges: Sequence[int] = (), aim: Callable[..., bool] | None = None
) -> dict[str, Any]:
    """Values that pass the row's checks and stay within the budget; with `edges` next to these, and such that `aim` of them
    holds if a search finds any."""
    widest = max(len(a.dims) for a in op.signature.inputs + op.signature.outputs)
    if isinstance(aim, Near):
        edges = (*edges, *[aim.size] * len(edges))
    allowed, empty, axes = budget, rng.random() < 0.12, widest if widest > 1 and rng.random() < 0.7 else 0
    found: dict[str, Any] | None = None
    hits = 0  # values that the aim holds of, but not at the best length
    for _ in range(1000 if aim else 200):
        if edges:
            allowed, empty = budget // int(rng.choice((1, 4, 4, 16, 64))), rng.random() < 0.1
            axes = widest if widest > 1 and rng.random() < 0.5 else 0
        d = Draw(rng, allowed, empty=empty, axes=axes, paired=widest > 1, edges=edges)
        values = _values(op, d)
        if edges and rng.random() < 0.6:
            values = _move(op, d, values, aim)
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
    """The geometry class that the "edges" case of a seed and a data class aims at: three odd or three even seeds in a row with
    each of a row's data classes aim at three times as many classes as there are data classes."""
    own = data_classes(op) if data in data_classes(op) or op.vjp_rule is None else data_classes(op, "vjp")
    at = own.index(data) if data in own else DATA.index(data)
    names = list(op.drawing.classes)
    return names[(seed // 2 * len(own) + at) % len(names)] if names else None


def draw_case(op: Op | str, seed: int, data: str | None = None, size: str = "medium", which: str = "forward") -> Case:
    """The case of (operation, seed, data class, size). Forward and VJP of the same four share inputs and parameters. Without
    a data class the seed picks one of the row's."""
    return next(draw_cases(registry.get(op) if isinstance(op, str) else op, seed, data, size, [which]))


def draw_cases(op: Op, seed: int, data: str | None, size: str, directions: Sequence[str]) -> Iterator[Case]:
    """The case of each of `directions`, as :func:`draw_case` gives it; what they share is drawn once."""
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
            edges, name = edges_of(op.family), class_aimed_at(op, seed, data)
            aim = op.drawing.classes[name] if name else None
        elif size == "large" and (far := _farthest(op)):
            sized = [a for a in op.signature.outputs if a.dims != ("1",)] or op.signature.inputs
            edges, aim = (far,), lambda **values: max(math.prod(shape_of(a, values)) for a in sized) > far
        values = _admissible(op, rng, budget_of(op, size), edges, aim)
    given = {a.name: values.pop(a.name) for a in op.signature.inputs if a.name in values}
    tags, drawn = rng.integers(0, 2**63, size=4), dict[int, Arrays]()
    for which in directions:
        yield _build(op, values, given, tags, drawn, seed=seed, data=data, size=size, which=which)


def build_case(
    op: Op, values: Mapping[str, Any], given: Mapping[str, Any], rng: np.random.Generator, *, seed: int = 0,
    data: str = "normal", size: str = "given", which: str = "forward", command: str = "",
) -> Case:  # fmt: skip
    """A case of given dimensions and parameters; arrays that are not `given` are drawn."""
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

    case = arrays(8)
    if data == "integers":
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
    arguments = {k: np.abs(a) if a is not None else None for k, a in _spec_inputs(case.arguments).items()}
    with np.errstate(all="ignore"):
        outs = _as_tuple(call_reference(case.reference, arguments, case.values))
    return all(bool(np.all(np.abs(o) < INTEGERS)) for o in outs)


def break_check(op: Op, check: Check, seed: int = 0) -> dict[str, Any] | None:
    """Dimensions and parameters that `check` refuses and the checks before it accept; None where the search finds none."""
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
    for _ in range(2000):
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
                values[name] = int(rng.choice([0, 1, 2, 3, 5, 8, 9, 100, int(old) + 1, max(int(old) - 1, 0)]))
        if refused_by(op, values) is check:
            return values
    return None
