"""Every way to call an operation wrongly: each is refused with the exception of its kind and a message that names operation,
argument, got and expected; outputs stay as they were and no buffer is left behind."""

import gc
import itertools
import math
import re
from collections.abc import Callable, Collection, Iterator
from typing import Any

import numpy as np
import pytest

import tlrt
from tests import no_collection
from tlrt import errors
from tlrt.buffer import IndexBuffer
from tlrt.verify.run import Runtime
from tlrt.verify.verifier import directions
from tlspec import entries, registry
from tlspec.draw.cases import Case, break_check, build_case, cotangent_names, draw_case, generator, refused_by, shape_of
from tlspec.entries import arguments_of
from tlspec.registry import Op

POISON = np.uint32(0x7FC0DEAD)


Kinds = type[Exception] | tuple[type[Exception], ...]


def complete(error: BaseException, entry: str, names: Collection[str], *, got: bool = True) -> None:
    """Demands ``entry: argument: got ..., expected ...`` with one of the `names` as the argument."""
    text = str(error)
    assert isinstance(error, tlrt.TorchleanError), repr(error)
    assert error.op == entry
    words = r".*\bgot\b" if got else ""
    pattern = rf"{entry}: ({'|'.join(sorted(map(re.escape, names)))})(\[\d+\])?: (?={words}).*\bexpected\b"
    assert re.match(pattern, text, re.DOTALL), f"{text!r} does not match {pattern}"


def demand_refusal(call: Any, kinds: Kinds, names: Collection[str], got: bool) -> None:
    """Makes a call, which must raise one of `kinds` with a complete message about one of the `names`, and leave no buffer."""
    device = call.runtime.device
    with no_collection():  # one meanwhile could hide a leak behind older garbage
        before = device.memory().live_buffers
        with pytest.raises(kinds) as caught:
            call.make()
        complete(caught.value, call.case.name, names, got=got)
        del caught
        after = device.memory().live_buffers
    if after > before:
        gc.collect()
        after = device.memory().live_buffers
    assert after <= before, "a refused call left a buffer behind"


class Call:
    """One call of an entry point with outputs given, whose arguments a test spoils before it makes it."""

    def __init__(self, case: Case, runtime: Runtime):
        self.case, self.runtime = case, runtime
        self.arguments: dict[str, Any] = runtime.place(case)
        self.values: dict[str, Any] = dict(case.values)
        self.out: list[Any] = [self.filled(a, case.shape(a)) for a in case.signature.outputs]

    def filled(self, output: Any, shape: tuple[int, ...]) -> Any:
        """What an output holds before the call."""
        n = int(np.prod(shape, dtype=np.int64))
        poison = np.full(n, POISON, np.uint32).view(np.float32)
        return np.full(shape, 7.0) if output.host else self.runtime.upload_array(output, poison)

    @property
    def buffers(self) -> list[str]:
        """The names of the device inputs that are present."""
        return [a.name for a in self.case.signature.inputs if not a.host and self.arguments[a.name] is not None]

    @property
    def places(self) -> list[tuple[Any, Any, str]]:
        """Where each device buffer is held, under which key, and the name of its argument."""
        outputs = [(self.out, i, a.name) for i, a in enumerate(self.case.signature.outputs) if not a.host]
        return [*((self.arguments, n, n) for n in self.buffers), *outputs]

    def names(self, blamed: Collection[str] | None = None) -> set[str]:
        """What the Python function calls these arguments of the signature."""
        python = {a.of: a.name for a in arguments_of(self.case.name)}
        every = [*python, *(a.name for a in self.case.signature.outputs), "out"]
        return {python.get(n, n) for n in (every if blamed is None else blamed)}

    def make(self) -> Any:
        out = self.out[0] if len(self.out) == 1 else tuple(self.out)
        return self.runtime.call(self.case.name, self.arguments, self.values, out=out)

    def refused(self, kinds: Kinds, blamed: Collection[str] | None = None, *, got: bool = True) -> None:
        """Makes the call and demands one of `kinds`, a complete message that blames one of these arguments (any, if none are
        given), untouched outputs and no new buffer."""
        demand_refusal(self, kinds, self.names(blamed), got)
        for a, out in zip(self.case.signature.outputs, self.out, strict=True):
            if a.host:
                assert np.all(out == 7.0)
            elif not out.released:
                assert np.all(out.numpy().view(np.uint32) == POISON), "a refused call changed its output"

    def refused_with(
        self, held: Any, key: Any, wrong: Any, kinds: Kinds, blamed: Collection[str] | None = None, *, got: bool = True
    ) -> None:
        """Demands a refusal while `held`, the arguments, the values or the outputs, has something wrong at `key`."""
        kept, held[key] = held[key], wrong
        self.refused(kinds, blamed, got=got)
        held[key] = kept


def has_kernel(row: Op, which: str) -> bool:
    """Whether an entry point is its own; a VJP composed of other operations has none. Lists have tests of their own."""
    own = which == "forward" or (row.vjp_rule is not None and row.vjp_rule.via is None)
    return own and not row.signature.lists


def takes(kind: str) -> Callable[[Op, str], bool]:
    """Whether the entry point's Python function has an argument of that kind."""
    return lambda row, which: has_kernel(row, which) and any(a.kind == kind for a in arguments_of(row.entry(which)))


pytestmark = pytest.mark.only(where=has_kernel)


Wanted = Callable[[Case], bool]
#: cases found, by what was wanted of which entry point
FOUND: dict[tuple[str, str, Wanted], Case | None] = {}


def full(case: Case) -> bool:
    """Without empty arrays, all optional inputs present."""
    present = all(x is not None and x.size > 0 for x in case.inputs.values())
    return present and all(math.prod(case.shape(a)) > 0 for a in case.signature.outputs)


def tiny_cases(row: Op, which: str) -> Iterator[Case]:
    """Cases of every choice of dimensions up to 3, or of 2 and 0 for many, where they are plain numbers; every index is 0."""
    names = row.signature.dims
    if any(n.startswith("*") for n in names) or row.signature.elementwise:
        return
    params = draw_case(row, 0, "normal", "small").params
    for sizes in itertools.product((3, 2, 1, 0) if len(names) < 7 else (2, 0), repeat=len(names)):
        values = {**params, **dict(zip(names, sizes, strict=True))}
        given: dict[str, Any] = {
            a.name: np.zeros(shape_of(a, values), np.uint32) for a in row.signature.inputs if a.kind == "u32"
        }
        if refused_by(row, {**values, **given}) is None:
            yield build_case(row, values, given, generator("tiny", row.name, sizes), which=which)


def found(row: Op, which: str, wanted: Wanted) -> Case | None:
    """A small case that is `wanted`: a drawn one, or one of the tiny ones; None where there is none."""
    key = (row.name, which, wanted)
    if key not in FOUND:
        drawn = (draw_case(row, seed, "normal", "small", which) for seed in range(300))
        FOUND[key] = next((c for c in itertools.chain(drawn, tiny_cases(row, which)) if wanted(c)), None)
    return FOUND[key]


def possible(wanted: Wanted, able: Callable[[Op, str], bool]) -> Callable[[Op, str], bool]:
    """Whether the entry point has such a case; where its signature is not `able` to have one, none is looked for."""
    return lambda row, which: has_kernel(row, which) and able(row, which) and found(row, which, wanted) is not None


def case_of(entry: tuple[Op, str], wanted: Wanted) -> Case:
    case = found(*entry, wanted)
    assert case is not None, "no such case; give the row a draw that has some"
    return case


@pytest.fixture
def call(entry: tuple[Op, str], runtime: Runtime) -> Call:
    return Call(case_of(entry, full), runtime)


def resized(runtime: Runtime, buffer: Any, by: int) -> Any:
    return type(buffer).from_numpy(np.resize(buffer.numpy(), len(buffer) + by), buffer.device)


@pytest.mark.parametrize("by", [-1, 1], ids=["short", "long"])
def test_input_of_wrong_length(call: Call, by: int) -> None:
    for name in call.buffers:
        wrong = resized(call.runtime, call.arguments[name], by)
        # the first elementwise operand sets the length that the others are blamed for
        blamed = None if call.case.signature.elementwise else [name]
        call.refused_with(call.arguments, name, wrong, errors.ShapeError, blamed)
    call.make()  # put right again, it runs


@pytest.mark.only(where=lambda row, which: any(a.host for a in row.signature_of(which).inputs))
@pytest.mark.parametrize("by", [-1, 1], ids=["short", "long"])
def test_host_array_of_wrong_length(call: Call, by: int) -> None:
    for name in [a.name for a in call.case.signature.inputs if a.host]:
        right = call.arguments[name]
        # a list's own length may be a dimension, which then is wrong for another argument
        call.refused_with(call.arguments, name, np.resize(right, right.size + by), errors.ShapeError)


@pytest.mark.parametrize("by", [-1, 1], ids=["short", "long"])
def test_output_of_wrong_length(call: Call, by: int) -> None:
    for i, a in enumerate(call.case.signature.outputs):
        right = call.out[i]
        wrong = np.full(right.size + by, 7.0) if a.host else resized(call.runtime, right, by)
        call.refused_with(call.out, i, wrong, errors.ShapeError, [a.name, "out"])


def test_missing_input(call: Call) -> None:
    for a in call.case.signature.inputs:
        if not a.optional:
            kinds = (errors.ArgumentTypeError, errors.ArgumentError)
            call.refused_with(call.arguments, a.name, None, kinds, [a.name])


@pytest.mark.only(where=lambda row, which: row.signature_of(which).buffers)
def test_released_buffer(call: Call) -> None:
    for held, key, name in call.places:
        gone = held[key].copy()
        gone.release()
        call.refused_with(held, key, gone, errors.ReleasedError, [name])


@pytest.mark.only(where=lambda row, which: row.signature_of(which).buffers)
def test_foreign_buffer(call: Call) -> None:
    with tlrt.device(call.runtime.name, new=True) as other:
        for held, key, name in call.places:
            twin = type(held[key]).from_numpy(held[key].numpy(), other)
            # the first float buffer sets the device that the others are blamed for
            first = next(n for n in call.buffers if type(call.arguments[n]) is not IndexBuffer)
            call.refused_with(held, key, twin, errors.DeviceMismatchError, None if key == first else [name])


def named_dims(call: Call) -> list[str]:
    """Dimensions the Python function takes one by one."""
    return [a.of for a in arguments_of(call.case.name) if a.kind == "dim"]


def lengths(case: Case, values: dict[str, Any]) -> list[int]:
    return [math.prod(shape_of(a, values)) for a in case.signature.inputs + case.signature.outputs]


@pytest.mark.only(where=takes("dim"))
def test_wrong_dimensions(call: Call) -> None:
    names = named_dims(call)
    right = dict(call.values)
    wrong = [{**right, n: right[n] + 1} for n in names]
    wrong += [{**right, a: right[b], b: right[a]} for i, a in enumerate(names) for b in names[:i]]
    for values in wrong:
        if lengths(call.case, values) != lengths(call.case, right):
            call.values = values
            # a dimension may also break a check of the row
            broken = refused_by(call.case.op, {**call.case.arguments, **values})
            call.refused((errors.ShapeError, errors.ArgumentError, errors.IndexOutOfRangeError), got=broken is None)


@pytest.mark.only(where=takes("dim"))
def test_huge_dimensions(call: Call) -> None:
    names = named_dims(call)
    right = dict(call.values)
    for size in (2**16 + 1, 2**32 - 1):
        call.values = {**right, **dict.fromkeys(names, size)}
        call.refused((errors.ShapeError, errors.SizeOverflowError, errors.ArgumentError, errors.IndexOutOfRangeError))
    call.values = right
    for name in names:
        for size, kind in ((2**32, errors.SizeOverflowError), (-1, errors.ShapeError), (1.5, errors.ArgumentTypeError)):
            call.refused_with(call.values, name, size, kind, [name])


def wrapping(case: Case) -> dict[str, Any] | None:
    """Dimensions whose every length is right in 32 bits, and one of them wrong in more; no check refuses them. One size
    that goes with an even number of elements everywhere grows by 2^31."""
    right = dict(case.values)
    takes = {a.of: a.kind for a in arguments_of(case.name) if a.of in case.dims}
    for name, kind in takes.items():
        options = [right[name] + 2**31] if kind == "dim" else []
        if kind == "dims":
            options = [[d + 2**31 * (i == j) for j, d in enumerate(right[name])] for i in range(len(right[name]))]
        for option in options:
            wrong = {**right, name: option}
            if refused_by(case.op, {**case.arguments, **wrong}) is not None:
                continue
            old, new = lengths(case, right), lengths(case, wrong)
            if old != new and [n % 2**32 for n in old] == [n % 2**32 for n in new]:
                return wrong
    return None


def wraps(case: Case) -> bool:
    return full(case) and wrapping(case) is not None


@pytest.mark.only(where=possible(wraps, lambda row, which: takes("dim")(row, which) or takes("dims")(row, which)))
def test_dimensions_that_are_right_in_32_bits(entry: tuple[Op, str], runtime: Runtime) -> None:
    call = Call(case_of(entry, wraps), runtime)
    call.values = wrapping(call.case)
    call.refused(errors.SizeOverflowError)


@pytest.mark.only(
    where=lambda row, which: has_kernel(row, which) and any(p.kind in ("u32", "dims") for p in row.signature.params)
)
def test_parameters_that_are_right_in_32_bits(entry: tuple[Op, str], runtime: Runtime) -> None:
    """A parameter grows by 2^31, so that its product with an even number is the same in 32 bits."""
    row, which = entry
    names = [p.name for p in row.signature.params if p.kind in ("u32", "dims")]
    for case in (draw_case(row, seed, None, "small", which) for seed in range(12)):
        call = Call(case, runtime)
        for name in names:
            right = case.values[name]
            grown = [right + 2**31] if isinstance(right, int) else []
            if isinstance(right, list):
                grown = [[n + 2**31 * (i == j) for j, n in enumerate(right)] for i in range(len(right))]
            for value in grown:
                call.values = {**case.values, name: value}
                if refused_by(row, {**case.arguments, **call.values}) is not None:
                    call.refused(errors.TorchleanError, got=False)


def test_most_entry_points_have_dimensions_that_wrap() -> None:
    """A length of more than one factor can be right in 32 bits and wrong in more, unless all other lengths pin the factors."""

    def has_free_factor(row: Op) -> bool:
        pinned = {a.dims[0] for a in row.signature.inputs + row.signature.outputs if len(a.dims) == 1}
        own = [a for a in row.signature.inputs if not a.optional]  # a mask's dimensions are pinned by checks
        return any(len(a.dims) > 1 and not pinned.issuperset(a.dims) for a in own)

    products = [
        (row, which)
        for row in registry.ops()
        for which in directions(row)
        if has_kernel(row, which) and takes("dim")(row, which) and has_free_factor(row)
    ]
    assert len(products) > 50
    missing = [f"{row.name} {which}" for row, which in products if found(row, which, wraps) is None]
    assert not missing, missing


@pytest.mark.only(where=takes("dims"))
def test_rank_nine(call: Call) -> None:
    for name in [a.of for a in arguments_of(call.case.name) if a.kind == "dims"]:
        call.refused_with(call.values, name, [1] * 9, errors.ShapeError, [name])


@pytest.mark.only(where=lambda row, which: row.contract.checks)
def test_every_check_refuses(entry: tuple[Op, str], runtime: Runtime) -> None:
    row, which = entry
    for check in row.contract.checks:
        for seed in range(3):
            values = break_check(row, check, seed)
            assert values is not None, f"the search found nothing that {check.expression} refuses"
            given = {a.name: values.pop(a.name) for a in row.signature.inputs if a.name in values}
            arrays = {**{a.name: a for a in row.signature.inputs if not a.host}, **cotangent_names(row)}
            zeros = {n: np.zeros(fitting(a, values), np.float32) for n, a in arrays.items() if not a.elementwise}
            if row.signature.elementwise:
                zeros = {}
                values.setdefault("n", 3)
            case = build_case(row, values, {**zeros, **given}, generator(seed), which=which)
            made = Spoilt(case, runtime)
            kind = getattr(errors, entries.EXCEPTIONS.get(check.status, "TorchleanError"))
            made.refused((kind, errors.ShapeError) if given else kind, None if given else [check.name], got=False)


def limits(case: Case) -> Iterator[tuple[str, float, str]]:
    """Parameters with numbers of float64 that are accepted, but for the refused ones that they become in float32; and what is
    blamed then."""
    for p, limit, near in itertools.product(case.op.signature.params, (0.0, 1.0), (1e-60, 1 - 1e-12, -1e-60)):
        if p.kind == "float" and np.float32(near) == limit:
            wide, rounded = (refused_by(case.op, {**case.arguments, **case.values, p.name: x}) for x in (near, limit))
            if wide is None and rounded is not None:
                yield p.name, near, rounded.name


@pytest.mark.only(where=lambda row, which: row.contract.checks and any(p.kind == "float" for p in row.signature.params))
def test_parameters_are_judged_as_the_float32_that_they_become(call: Call) -> None:
    for name, near, blamed in limits(call.case):
        call.refused_with(call.values, name, near, errors.ArgumentError, [blamed], got=False)


def fitting(array: Any, values: dict[str, Any]) -> tuple[int, ...]:
    try:
        shape = tuple(max(int(n), 0) for n in shape_of(array, values))
    except (IndexError, ZeroDivisionError, TypeError):
        return (1,)
    return shape if np.prod(shape, dtype=object) < 2**20 else (1,)


class Spoilt(Call):
    """A call whose dimensions and parameters are wrong from the start, so that outputs have no right shape."""

    def __init__(self, case: Case, runtime: Runtime):
        self.case, self.runtime = case, runtime
        self.values = dict(case.values)
        arrays: dict[str, Any] = {**case.inputs, **case.cotangents}
        self.arguments = {}
        for a in case.signature.inputs:
            x = arrays.get(a.name, np.zeros(1, np.float32))
            self.arguments[a.name] = x if x is None or a.host else runtime.upload_array(a, x)
        first = next((x.size for x in case.inputs.values() if x is not None), 0)
        shapes = [(first,) if a.elementwise else fitting(a, self.values) for a in case.signature.outputs]
        self.out = [self.filled(a, shape) for a, shape in zip(case.signature.outputs, shapes, strict=True)]


def matching(case: Case) -> Iterator[tuple[int, str]]:
    """Outputs and device inputs of the same number of elements."""
    for i, a in enumerate(case.signature.outputs):
        for b in case.signature.inputs:
            x = case.arguments[b.name]
            if not a.host and a.kind == b.kind and x is not None and 0 < x.size == math.prod(case.shape(a)):
                yield i, b.name


def matches(case: Case) -> bool:
    return any(True for _ in matching(case))


def has_twins(row: Op, which: str) -> bool:
    """Whether a device output has the kind of an input."""
    signature = row.signature_of(which)
    return not {a.kind for a in signature.outputs if not a.host}.isdisjoint(a.kind for a in signature.inputs)


@pytest.mark.only(where=possible(matches, has_twins))
def test_output_that_is_an_input(entry: tuple[Op, str], runtime: Runtime) -> None:
    case = case_of(entry, matches)
    for i, name in matching(case):
        call = Call(case, runtime)
        if case.signature.elementwise:
            want = runtime.run(case)
            call.out[i] = call.arguments[name]
            got = call.make()
            got = got if isinstance(got, tuple) else (got,)
            for one, two in zip(got, want, strict=True):
                assert one.numpy().tobytes() == two.tobytes(), f"output {i} in the place of {name}"
        else:
            for alias in (call.arguments[name], call.arguments[name].share()):
                kept, call.out[i] = call.out[i], alias
                with pytest.raises(errors.AliasError) as caught:
                    call.make()
                complete(caught.value, case.name, [case.signature.outputs[i].name])
                call.out[i] = kept
            x = case.arguments[name]
            assert x is not None and call.arguments[name].numpy().tobytes() == np.ascontiguousarray(x).tobytes()


def alike(case: Case) -> bool:
    """Two outputs of the same number of elements."""
    sizes = [math.prod(case.shape(a)) for a in case.signature.outputs]
    return 0 not in sizes and len(set(sizes)) < len(sizes)


@pytest.mark.only(where=lambda row, which: len(row.signature_of(which).outputs) > 1)
def test_outputs_that_are_one_buffer(entry: tuple[Op, str], runtime: Runtime) -> None:
    case = case_of(entry, alike)
    sizes = [math.prod(case.shape(a)) for a in case.signature.outputs]
    i, j = next((i, j) for j in range(len(sizes)) for i in range(j) if sizes[i] == sizes[j])
    call = Call(case, runtime)
    call.out[j] = call.out[i].share()
    call.refused(errors.AliasError, [a.name for a in case.signature.outputs])
