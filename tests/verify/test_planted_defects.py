"""Planted defects: mistakes that kernels really make, each wrapped around correct kernels, and verify must find every one.

A defect names the entry points it is planted in by property (family, signature, bound), never by operation, and spoils
arguments or results. One test plants one defect in one entry point and runs verify's plan until it reports a failure.
"""

import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest

import tlrt
from tests import into
from tlrt.verify.report import Failure
from tlrt.verify.run import POISON, Fault, Runtime
from tlrt.verify.verifier import Settings, Verifier, plan_cases
from tlspec import entries, registry
from tlspec.bounds import Bound, call_reference
from tlspec.draw.cases import PATH, Case, draw_case, refused_by, shape_of
from tlspec.entries import Entry, arguments_of
from tlspec.registry import Array

#: entry points a defect is planted in, at most, per family
EACH = 3

Arrays = list[np.ndarray | None]


@dataclass
class Inside:
    """A call of the wrapped entry point, as a defect sees it: arguments by the signature's names, arrays flat."""

    entry: Entry
    arguments: dict[str, Any]
    given: bool  # outputs were supplied
    want: tuple[bool, ...] | None
    original: Callable[[dict[str, Any]], Arrays]
    count: int

    def array(self, a: Array) -> np.ndarray:
        """The content of an input, in its declared shape (flat for elementwise operands)."""
        x = self.arguments[a.name]
        flat = np.array(x) if a.host else x.numpy()
        return flat if a.elementwise else flat.reshape(shape_of(a, self.values))

    @property
    def values(self) -> dict[str, Any]:
        values = {k: v for k, v in self.arguments.items() if isinstance(v, (int, float, list, tuple))}
        for a in self.entry.signature.inputs:  # the lengths of host arrays
            if a.host:
                values.update(zip(a.dims, np.shape(self.arguments[a.name]), strict=True))
        return values

    def run(self, **changed: Any) -> Arrays:
        """The right kernel, on changed arguments."""
        new = {k: (tlrt.Buffer.from_numpy(v, self.device) if self.on_device(k, v) else v) for k, v in changed.items()}
        return self.original({**self.arguments, **new})

    def on_device(self, name: str, value: Any) -> bool:
        return isinstance(value, np.ndarray) and any(a.name == name and not a.host for a in self.entry.signature.inputs)

    @property
    def device(self) -> Any:
        return next(v.device for v in self.arguments.values() if isinstance(v, tlrt.Buffer))


class Spoilt:
    """The kernels' namespace with one entry point replaced."""

    def __init__(self, entry: Entry, defect: Callable[[Inside], Arrays]):
        from tlrt import kernels

        self.kernels, self.entry, self.defect, self.count = kernels, entry, defect, 0

    def __getattr__(self, name: str) -> Any:
        return self.replacement if name == self.entry.name else getattr(self.kernels, name)

    def replacement(self, *args: Any, out: Any = None, want: Any = None, **keywords: Any) -> Any:
        names = {a.name: a.of for a in arguments_of(self.entry.name)}
        keywords.update(zip(names, args, strict=False))
        back = {of: name for name, of in names.items()}
        options = {} if want is None else {"want": want}
        self.count += 1

        def original(arguments: dict[str, Any]) -> Arrays:
            result = getattr(self.kernels, self.entry.name)(**{back[k]: v for k, v in arguments.items()}, **options)
            results = result if isinstance(result, tuple) else (result,)
            return [None if r is None else r if isinstance(r, np.ndarray) else r.numpy() for r in results]

        arguments = {names[k]: v for k, v in keywords.items()}
        inside = Inside(self.entry, arguments, out is not None, want, original, self.count)
        arrays = self.defect(inside)
        places = [None] * len(arrays) if out is None else [out] if len(arrays) == 1 else out
        pairs = zip(self.entry.signature.outputs, arrays, places, strict=True)
        wrapped = [x if x is None or a.host else into(o, numbers(a, x), inside.device) for a, x, o in pairs]
        return wrapped[0] if len(wrapped) == 1 else tuple(wrapped)


def numbers(a: Array, x: np.ndarray) -> np.ndarray:
    """What a buffer of an output holds; an index that is no number was never written."""
    if a.kind != "index":
        return x.astype(np.float32)
    return np.nan_to_num(np.float64(x), nan=POISON).astype(np.uint32)


@dataclass(frozen=True)
class Defect:
    name: str
    families: tuple[str, ...]
    applies: Callable[[Entry], bool]
    spoil: Callable[[Inside], Arrays]
    #: compare with a right device of its own, as CUDA is compared with the CPU
    beside: bool = False


def bound(e: Entry) -> Bound:
    rule = e.op.vjp_rule
    return e.op.bound if forward(e) or rule is None else rule.bound


def exact(e: Entry) -> bool:
    """Whether the result is one value bit for bit, a NaN's bits perhaps excepted."""
    return bound(e).kind in ("exact", "moved", "ordered")


def keeps_bits(e: Entry) -> bool:
    """Whether elements of an input come through with their bits."""
    return bound(e).fixed is not None and on_device(e)


def forward(e: Entry) -> bool:
    return e.name == e.op.name


def named(a: Array) -> bool:
    """Whether all dimensions of an array are plain names."""
    return bool(a.dims) and all(d.isidentifier() for d in a.dims)


def on_device(e: Entry) -> bool:
    plain = not e.signature.lists  # which have tests of their own
    return plain and bool(e.signature.buffers) and not any(o.host for o in e.signature.outputs)


def inputs(e: Entry, axes: int) -> list[Array]:
    return [a for a in e.signature.buffers if named(a) and len(a.dims) == axes]


def indexed(e: Entry) -> Array | None:
    return next((a for a in e.signature.inputs if a.kind == "u32"), None)


def reading(e: Entry, *names: str) -> bool:
    return {a.name for a in e.signature.inputs} >= set(names)


def outputs(c: Inside, function: Callable[[np.ndarray], np.ndarray]) -> Arrays:
    """The right results, each that was computed and is not empty as `function` gives it."""
    return [function(o) if o is not None and o.size else o for o in c.run()]


def flushed(x: np.ndarray) -> np.ndarray:
    return np.where(np.abs(x) < 2.0**-126, np.copysign(np.float32(0), x), x)


def flush_subnormals(c: Inside) -> Arrays:
    changed = {a.name: flushed(c.array(a)) for a in c.entry.signature.buffers}
    return [None if o is None else flushed(o) for o in c.run(**changed)]


def ten_bits(x: np.ndarray) -> np.ndarray:
    """x with a significand of 10 bits, as tensor cores read float32 in TF32 mode; round to nearest, ties to even."""
    bits = x.view(np.uint32).astype(np.uint64)
    rounded = ((bits + 0xFFF + ((bits >> 13) & 1)) & 0xFFFFE000).astype(np.uint32).view(np.float32)
    return np.where(np.isfinite(x), rounded, x)


def tf32_inputs(c: Inside) -> Arrays:
    given = [a for a in c.entry.signature.buffers if c.arguments.get(a.name) is not None]
    return c.run(**{a.name: ten_bits(c.array(a)) for a in given})


def quiet_nan(c: Inside) -> Arrays:
    """NaN inputs are passed over, as fmax does."""
    first, second = (c.array(a) for a in c.entry.signature.buffers[:2])
    names = [a.name for a in c.entry.signature.buffers[:2]]
    return c.run(
        **{names[0]: np.where(np.isnan(first), second, first), names[1]: np.where(np.isnan(second), first, second)}
    )


def quiet_nan_reduction(c: Inside) -> Arrays:
    a = c.entry.signature.buffers[0]
    x = c.array(a)
    return c.run(**{a.name: np.where(np.isnan(x), np.float32(-np.inf), x)})


def first_wins_ties(c: Inside) -> Arrays:
    a, b, g = (c.array(x) for x in c.entry.signature.buffers[:3])
    return [None if o is None else np.where(a == b, (g, np.float32(0))[i > 0], o) for i, o in enumerate(c.run())]


def one_at_the_kink(c: Inside) -> Arrays:
    x, g = (next(c.array(a) for a in c.entry.signature.buffers if a.name == n) for n in ("x", "g"))
    return outputs(c, lambda o: np.where(x == 0, g, o))


def block_edge(c: Inside) -> Arrays:
    return outputs(c, lambda o: np.concatenate([o[:256], o[255:256], o[257:]]) if o.size > 256 else o)


def unwritten_tail(c: Inside) -> Arrays:
    poison = np.array([POISON], np.uint32).view(np.float32)
    return outputs(c, lambda o: np.concatenate([o[:-1], poison]) if c.given and o.size % 4 else o)


def plus_zero(c: Inside) -> Arrays:
    with np.errstate(invalid="ignore"):  # of a signalling NaN
        return outputs(c, lambda o: o + np.float32(0))


def reversed_order(c: Inside) -> Arrays:
    """Repeated indices add up from the last to the first."""
    u = indexed(c.entry)
    along = [a for a in c.entry.signature.inputs if a.dims[:1] == u.dims]
    return c.run(**{a.name: np.ascontiguousarray(c.array(a)[::-1]) for a in along})


def nudged(x: np.ndarray) -> np.ndarray:
    return np.where(np.isfinite(x) & (x != 0), np.nextafter(x, np.float32(0)), x)


def one_ulp_off(c: Inside) -> Arrays:
    return outputs(c, lambda o: np.where(np.arange(o.size) % 7 == 0, np.nextafter(o, np.float32(0)), o))


def dropped_term(c: Inside) -> Arrays:
    a = next(a for a in c.entry.signature.buffers if not a.elementwise)
    x = c.array(a)
    x.reshape(-1)[-1:] = 0
    return c.run(**{a.name: x})


def column_major_input(c: Inside) -> Arrays:
    a = inputs(c.entry, 2)[0]
    x = c.array(a)
    return c.run(**{a.name: np.ascontiguousarray(x.reshape(x.shape[::-1]).T)})


def transposed_output(c: Inside) -> Arrays:
    def turned(a: Array, o: np.ndarray | None) -> np.ndarray | None:
        if o is None or len(a.dims) != 2:
            return o
        return np.ascontiguousarray(o.reshape(shape_of(a, c.values)).T).reshape(-1)

    return [turned(a, o) for a, o in zip(c.entry.signature.outputs, c.run(), strict=True)]


def batch_offset_missing(c: Inside) -> Arrays:
    a = inputs(c.entry, 3)[0]
    x = c.array(a)
    return c.run(**{a.name: np.ascontiguousarray(np.broadcast_to(x[:1], x.shape)) if x.shape[0] else x})


def clamped_index(c: Inside) -> Arrays:
    u = indexed(c.entry)
    rows = int(c.values[c.entry.op.signature.inputs[0].dims[0]])
    index = c.array(u)
    return c.run(**{u.name: np.minimum(index, max(rows - 1, 0)).astype(np.uint32)})


def ignored_duplicate(c: Inside) -> Arrays:
    u = indexed(c.entry)
    index = c.array(u)
    _, first = np.unique(index, return_index=True)
    once = np.full_like(index, 2**32 - 1)
    once[first] = index[first]
    return c.run(**{u.name: once})


def right_aligned(c: Inside) -> Arrays:
    """The axis map is ignored in favour of NumPy's alignment, where the shapes allow it."""
    a, o = c.entry.signature.inputs[0], c.entry.signature.outputs[0]
    try:
        return [np.broadcast_to(c.array(a), shape_of(o, c.values)).reshape(-1)]
    except ValueError:
        return c.run()


def expands(e: Entry) -> bool:
    """A list parameter maps an input's list of axes to the output's."""
    sig = e.signature
    lists = [a.dims[0] for a in (sig.inputs[0], sig.outputs[0]) if a.dims]
    return any(p.kind == "dims" for p in sig.params) and len(set(lists)) == 2 and exact(e)


def shiftable(e: Entry) -> str | None:
    """An unsigned parameter that may often be one larger, with another result, without a length or a check that shows it."""
    arrays = e.signature.inputs + e.signature.outputs
    for p in e.signature.params:
        quiet = 0
        for seed in range(10 if p.kind == "u32" else 0):
            case = draw_case(e.op, seed, "normal", "small")
            right, wrong = case.values, {**case.values, p.name: case.values[p.name] + 1}
            lengths = [[np.prod(shape_of(a, v)) for a in arrays] for v in (right, wrong)]
            if refused_by(e.op, wrong) is None and lengths[0] == lengths[1]:
                one, other = (call_reference(e.op.reference, case.inputs, v) for v in (right, wrong))
                quiet += not np.array_equal(one, other, equal_nan=True)
        if quiet >= 3:
            return p.name
    return None


def off_by_one(c: Inside) -> Arrays:
    name = shiftable(c.entry)
    try:
        return c.run(**{name: c.arguments[name] + 1})
    except tlrt.TorchleanError:
        return c.run()


def ignored_scalar(c: Inside) -> Arrays:
    name = next(p.name for p in c.entry.signature.params if p.kind == "float")
    return c.run(**{name: 1.0 if c.arguments[name] != 1 else 2.0})


def spoils_its_input(c: Inside) -> Arrays:
    outs = c.run()
    next(c.arguments[a.name] for a in c.entry.signature.buffers).fill(3.0)
    return outs


def wrong_gradient_when_alone(c: Inside) -> Arrays:
    outs = c.run()
    if c.want is None or all(c.want):
        return outs
    return [None if o is None else o[::-1].copy() for o in outs]


def unwritten_tail_when_alone(c: Inside) -> Arrays:
    return c.run() if c.want is None or all(c.want) else unwritten_tail(c)


def wrong_where(test: Callable[[list[int]], bool]) -> Callable[[Inside], Arrays]:
    """Results that are off where something holds of the lengths of the inputs' axes."""

    def spoil(c: Inside) -> Arrays:
        given = [a for a in c.entry.signature.buffers if c.arguments.get(a.name) is not None]
        lengths = [n for a in given for n in c.array(a).shape]
        return outputs(c, lambda o: o + np.float32(1)) if lengths and test(lengths) else c.run()

    return spoil


def wrong_at_one(c: Inside) -> Arrays:
    """Results that are off where a scalar is 1."""
    scalars = [c.arguments[p.name] for p in c.entry.signature.params if p.kind == "float"]
    return outputs(c, lambda o: o + np.float32(1)) if 1.0 in scalars else c.run()


def summing(e: Entry) -> bool:
    return bound(e).kind in ("tree", "ordered") and on_device(e)


ALL = ("elementwise", "reduce", "shape", "index", "linalg")
DEFECTS = [
    Defect(
        "subnormals flushed to zero", ("elementwise",),
        lambda e: forward(e) and exact(e) and e.op.vjp_rule is not None,  # the others give integers
        flush_subnormals,
    ),
    Defect("inputs in TF32", ("linalg",), on_device, tf32_inputs),
    Defect("inputs in TF32, sums", ("reduce", "index"), summing, tf32_inputs),
    Defect("NaN lost", ("elementwise",), lambda e: forward(e) and len(e.signature.buffers) == 2, quiet_nan),
    Defect("NaN lost in a reduction", ("reduce",), lambda e: forward(e) and exact(e), quiet_nan_reduction),
    Defect(
        "ties go to the first", ("elementwise",), lambda e: not forward(e) and reading(e, "a", "b", "g"),
        first_wins_ties,
    ),
    Defect(
        "gradient 1 at the kink", ("elementwise",), lambda e: not forward(e) and reading(e, "x", "g"), one_at_the_kink
    ),
    Defect("off by one at a block edge", ("elementwise", "shape"), lambda e: on_device(e) and exact(e), block_edge),
    Defect("tail never written", ALL, on_device, unwritten_tail),
    Defect(
        "-0 becomes +0",
        ("elementwise", "shape", "index"),
        # a gather's adjoint adds to +0 and never gives -0
        lambda e: on_device(e) and exact(e) and (forward(e) or bound(e).kind != "ordered"),
        plus_zero,
    ),
    Defect("payload of NaN lost", ("shape", "index"), lambda e: keeps_bits(e) and forward(e),
        lambda c: outputs(c, lambda o: np.where(np.isnan(o), np.float32(np.nan), o))),
    Defect(
        "repeated indices in reverse", ("index",), lambda e: bound(e).kind == "ordered" and indexed(e) is not None,
        reversed_order,
    ),
    Defect("one ulp off", ("elementwise", "reduce"), lambda e: on_device(e) and exact(e), one_ulp_off),
    Defect(
        "other summation order", ("reduce", "index"), lambda e: summing(e) and e.op.contract.same_bits,
        lambda c: outputs(c, nudged), beside=True,
    ),
    Defect("last term dropped", ("reduce", "index", "linalg"), on_device, dropped_term),
    Defect(
        "input read column-major", ("reduce", "index", "linalg"), lambda e: bool(inputs(e, 2)) and on_device(e),
        column_major_input,
    ),
    Defect(
        "result transposed", ("index", "linalg", "shape"),
        lambda e: any(len(o.dims) == 2 and named(o) for o in e.outputs), transposed_output,
    ),
    Defect("batch offset missing", ("linalg", "shape"), lambda e: bool(inputs(e, 3)), batch_offset_missing),
    Defect("index clamped", ("index",), lambda e: indexed(e) is not None, clamped_index),
    Defect(
        "duplicate index ignored", ("index",), lambda e: indexed(e) is not None and bound(e).kind == "ordered",
        ignored_duplicate,
    ),
    Defect("axis map ignored", ("shape",), expands, right_aligned),
    Defect("parameter off by one", ("shape", "reduce"), lambda e: shiftable(e) is not None, off_by_one),
    Defect(
        "scalar ignored", ("elementwise",),
        lambda e: any(p.kind == "float" for p in e.signature.params) and not e.op.contract.checks, ignored_scalar,
    ),
    Defect(
        "wrong at lengths that are multiples of 16", ALL,
        lambda e: on_device(e) and bool(e.signature.elementwise or inputs(e, 2) or inputs(e, 3)),
        wrong_where(lambda n: min(n) > 0 and max(n) > 1 and all(k % 16 == 0 for k in n if k > 1)),
    ),
    Defect(
        "wrong at equal lengths", ("reduce", "linalg", "shape"), lambda e: on_device(e) and bool(inputs(e, 2)),
        wrong_where(lambda n: n[0] > 2 and len(set(n)) == 1),
    ),
    Defect(
        "wrong where an axis is longer than 8192", ("elementwise", "reduce", "index", "shape"), on_device,
        wrong_where(lambda n: max(n) > 8192),
    ),
    Defect(
        "wrong where a scalar is 1", ("elementwise",),
        lambda e: on_device(e) and any(p.kind == "float" for p in e.signature.params), wrong_at_one,
    ),
    Defect("input overwritten", ALL, on_device, spoils_its_input),
    Defect(
        "bits differ from call to call", ("reduce", "linalg"), summing,
        lambda c: outputs(c, nudged) if c.count % 2 == 0 else c.run(),
    ),
    Defect("lone gradient wrong", ALL, lambda e: on_device(e) and len(e.outputs) > 1, wrong_gradient_when_alone),
    Defect(
        "tail of a lone gradient never written", ("elementwise", "linalg"),
        lambda e: on_device(e) and len(e.outputs) > 1, unwritten_tail_when_alone,
    ),
]  # fmt: skip


def entry_points() -> list[Entry]:
    rows = registry.ops(os.environ.get("OPS") or None)
    # a twin that takes an index buffer has the kernel of its entry point, with which each case compares it
    return [e for row in rows for e in entries.entries(row) if e.only is None and not e.indexed]


def targets() -> list[Any]:
    out = []
    for defect in DEFECTS:
        for family in defect.families:
            found = [e for e in entry_points() if e.op.family == family and defect.applies(e)]
            # spread over the family
            step = max(1, -(-len(found) // EACH))
            out += [pytest.param(defect, e, id=f"{defect.name}-{e.name}") for e in found[::step]]
    return out


def cases_of(entry: Entry, cases: int = Settings.cases) -> Iterator[Case]:
    """What verify draws for an entry point, the large cases last, without those that reach a GPU's large kernels."""
    which = "forward" if forward(entry) else "vjp"
    for seed, data, size in sorted(plan_cases(entry.op, which, Settings(cases)), key=lambda c: c[2] == "large"):
        if size != PATH:
            yield draw_case(entry.op, seed, data, size, which)


def gives_minus_zero(entry: Entry) -> bool:
    """Whether a result of the reference is -0 in any case that verify draws."""
    results = (x for case in cases_of(entry) for x in case.expected.outputs if x is not None)
    return any(bool((np.signbit(x) & (x == 0)).any()) for x in results)


def first_failure(
    entry: Entry, defect: Callable[[Inside], Arrays], beside: bool = False, cases: int = Settings.cases
) -> Failure | None:
    """What verify says first about a kernel with a defect."""
    runtimes = {"cpu": Runtime("cpu", kernels=Spoilt(entry, defect))}
    if beside:
        runtimes = {"cpu": Runtime("cpu"), "beside": Runtime("cpu", kernels=Spoilt(entry, defect))}
    verifier = Verifier(runtimes)
    for case in cases_of(entry, cases):
        for result in verifier.check(entry.op, case.which, [case]):
            if result.failures:
                return result.failures[0]
    return None


@pytest.mark.parametrize(("defect", "entry_point"), targets())
def test_defect_is_found(defect: Defect, entry_point: Entry) -> None:
    found = first_failure(entry_point, defect.spoil, defect.beside)
    if found is None and defect.spoil is plus_zero and not gives_minus_zero(entry_point):
        pytest.skip("no result is -0")
    assert found is not None, f"{defect.name} in {entry_point.name} was not found"
    assert found.kind != "error", found.detail  # found by its result, not because the call broke down
    assert f"--ops {entry_point.op.name} " in found.line


@pytest.mark.parametrize("entry_point", [pytest.param(e, id=e.name) for e in entry_points()[::8] if on_device(e)])
def test_wrapping_alone_is_not_reported(entry_point: Entry) -> None:
    """The control: the same wrapper without a defect passes."""
    assert first_failure(entry_point, lambda c: c.run(), cases=1) is None


@pytest.mark.skipif(bool(os.environ.get("OPS")), reason="only some operations were chosen")
def test_there_are_enough_defects() -> None:
    planted = {
        (d.name, f) for d in DEFECTS for f in d.families for e in entry_points() if e.op.family == f and d.applies(e)
    }
    assert {name for name, _ in planted} == {d.name for d in DEFECTS}, "a defect has nothing to be planted in"
    assert len(DEFECTS) >= 15 and {family for _, family in planted} == set(ALL)


def test_a_kernel_with_more_results_than_its_row_is_at_fault() -> None:
    class Twice:
        def __getattr__(self, name: str) -> Any:
            from tlrt import kernels

            return lambda *args, **options: (found := getattr(kernels, name)(*args, **options), found)

    case = draw_case(registry.get("relu"), 0, "normal", "small", "forward")
    with pytest.raises(Fault, match="returned 2 results, expected 1"):
        Runtime("cpu", kernels=Twice()).run(case)
