"""Operations on lists of buffers: every way to call them wrongly, aliasing element by element, packs, empty lists, lists of any
length. Nothing here names an operation except the tests of C's own checks."""

import itertools
from collections.abc import Collection, Iterator
from typing import Any

import numpy as np
import pytest
from numpy.testing import assert_raises_regex

import tlrt
from tests.kernels.test_errors import POISON, Kinds, demand_refusal, limits
from tlrt import errors, kernels
from tlrt._binding.library import load
from tlrt.verify.run import Runtime, counterpart, cpu_settings
from tlrt.verify.verifier import Verifier
from tlspec import entries
from tlspec.compare import same_bits
from tlspec.draw.cases import Case, break_check, build_case, data_classes, draw_case, generator
from tlspec.registry import Op

pytestmark = pytest.mark.only(where=lambda row: row.signature.lists)

LENGTHS = [5, 3, 1, 17]


def case_of(row: Op, lengths: list[int], data: str = "normal", seed: int = 1) -> Case:
    """A case of given lengths, its parameters drawn."""
    count = row.signature.lists[0].dims[0]
    values = {**draw_case(row, seed, data, "small").values, "lengths": lengths, count: len(lengths)}
    return build_case(row, values, {}, generator("lists", row.name, seed, data), data=data)


class ListCall:
    """A call with outputs given. `places` are its buffers, each as (where it is kept, under which key, whose argument)."""

    def __init__(self, case: Case, runtime: Runtime):
        self.case, self.runtime = case, runtime
        self.arguments = runtime.place(case)
        self.values = dict(case.values)
        self.out: list[Any] = []
        for a in case.signature.outputs:
            filler = np.full(case.shape(a), POISON, np.uint32)
            if a.kind != "index":
                filler = filler.view(np.float32)
            lengths = case.values["lengths"]
            self.out.append(runtime.upload_list(filler, lengths) if a.listed else runtime.upload_array(a, filler))

    def inputs(self) -> Iterator[tuple[Any, Any, str]]:
        for a in self.case.signature.inputs:
            if a.listed:
                yield from ((self.arguments[a.name], i, a.name) for i in range(len(self.arguments[a.name])))
            else:
                yield self.arguments, a.name, a.name

    def outputs(self) -> Iterator[tuple[Any, Any, str]]:
        for k, a in enumerate(self.case.signature.outputs):
            if a.listed:
                yield from ((self.out[k], i, a.name) for i in range(len(self.out[k])))
            else:
                yield self.out, k, a.name

    @property
    def first(self) -> str:
        """The argument whose buffers tell the context and lengths."""
        return self.case.signature.inputs[0].name

    def make(self) -> Any:
        out = self.out[0] if len(self.out) == 1 else tuple(self.out)
        return self.runtime.call(self.case.name, self.arguments, self.values, out=out)

    def refused(self, kinds: Kinds, blamed: Collection[str] | None = None, *, got: bool = True) -> None:
        """Demands a complete refusal that leaves outputs as they were and no buffer behind."""
        known = {a.name for a in self.case.signature.inputs + self.case.signature.outputs}
        given = [where[key] for where, key, _ in self.outputs()]
        contents = [(x, x.numpy().tobytes()) for x in given if isinstance(x, tlrt.Buffer) and not x.released]
        demand_refusal(self, kinds, {"out", *(known if blamed is None else blamed)}, got)
        for buffer, content in contents:
            assert buffer.numpy().tobytes() == content, "a refused call changed its output"


@pytest.fixture
def call(row: Op, runtime: Runtime) -> ListCall:
    return ListCall(case_of(row, LENGTHS), runtime)


def spoil(
    call: ListCall, place: tuple[Any, Any, str], value: Any, kinds: Kinds, blamed: Collection[str] | None
) -> None:
    where, key, _ = place
    kept, where[key] = where[key], value
    call.refused(kinds, blamed)
    where[key] = kept


@pytest.mark.parametrize("by", [-1, 1], ids=["short", "long"])
def test_wrong_length(call: ListCall, by: int) -> None:
    for place in [*call.inputs(), *call.outputs()]:
        where, key, name = place
        other = type(where[key]).from_numpy(np.resize(where[key].numpy(), len(where[key]) + by), call.runtime.device)
        alone = len(call.case.signature.lists) == 1 and name == call.first
        if alone and not any(o.listed for o in call.case.signature.outputs):
            continue  # its lengths are its own
        # an element of the first list sets the length that others are blamed for
        spoil(call, place, other, errors.ShapeError, None if name == call.first else [name])
    call.make()  # put right again, it runs


def test_not_a_buffer(call: ListCall) -> None:
    for place in call.inputs():
        for wrong in (None, np.ones(3, np.float32), 1.0):
            spoil(call, place, wrong, errors.ArgumentTypeError, [place[2]])
    for place in call.outputs():
        for wrong in (np.ones(3, np.float32), 1.0, "x"):
            spoil(call, place, wrong, errors.ArgumentTypeError, [place[2]])


def test_not_a_list(call: ListCall) -> None:
    for a in call.case.signature.lists:
        right = call.arguments[a.name]
        for wrong in (None, right[0], "text", (x for x in right), {0: right[0]}, 3):
            spoil(call, (call.arguments, a.name, a.name), wrong, errors.ArgumentTypeError, [a.name])
    for k, kept in enumerate(call.out):
        for wrong in ("text", 3, iter([kept])):
            call.out[k] = wrong
            assert_raises_regex(errors.ArgumentTypeError, rf"^{call.case.name}: out: got ", call.make)
        call.out[k] = kept


def test_lists_of_different_counts(call: ListCall) -> None:
    places: list[tuple[Any, Any, str]] = [(call.arguments, a.name, a.name) for a in call.case.signature.lists[1:]]
    places += [(call.out, k, a.name) for k, a in enumerate(call.case.signature.outputs) if a.listed]
    for place in places:
        right = place[0][place[1]]
        for wrong in ([], right[:-1], [*right, right[0]]):
            spoil(call, place, wrong, errors.ShapeError, [place[2]])


def test_outputs_of_a_wrong_number(row: Op, runtime: Runtime) -> None:
    call = ListCall(case_of(row, LENGTHS), runtime)
    if len(call.out) > 1:
        for wrong in (call.out[:-1], [*call.out, call.out[0]], call.out[0][0]):
            said = rf"^{row.name}: out: got .*, expected {len(call.out)} lists of buffers, for \w+, "
            with pytest.raises((errors.ArgumentError, errors.ArgumentTypeError), match=said):
                runtime.call(row.name, call.arguments, call.values, out=wrong)


def test_released_buffer(call: ListCall) -> None:
    for place in [*call.inputs(), *call.outputs()]:
        gone = place[0][place[1]].copy()
        gone.release()
        spoil(call, place, gone, errors.ReleasedError, [place[2]])


def test_foreign_buffer(call: ListCall) -> None:
    with tlrt.device(call.runtime.name, new=True) as other:
        for place in [*call.inputs(), *call.outputs()]:
            own = place[0][place[1]]
            twin = type(own).from_numpy(own.numpy(), other)
            tells = (place[2] == call.first and place[1] == 0) or not isinstance(place[0], list)
            spoil(call, place, twin, errors.DeviceMismatchError, None if tells else [place[2]])
        if call.case.signature.needs_context:
            options = {p.name: call.values[p.name] for p in call.case.op.signature.params}
            with pytest.raises(errors.DeviceMismatchError):
                getattr(kernels, call.case.name)(**call.arguments, **options, device=other)


@pytest.mark.only(where=lambda row: row.contract.checks)
def test_every_check_refuses(row: Op, runtime: Runtime) -> None:
    for check, seed in itertools.product(row.contract.checks, range(3)):
        values = break_check(row, check, seed)
        assert values is not None, check.expression
        call = ListCall(case_of(row, LENGTHS), runtime)
        call.values |= {p.name: values[p.name] for p in row.signature.params}
        call.refused(getattr(errors, entries.EXCEPTIONS[check.status]), [check.name])
    for name, near, blamed in limits(call.case):  # numbers are judged as the float32 that they become
        call.values = {**call.case.values, name: near}
        call.refused(errors.ArgumentError, [blamed])


def test_aliases(call: ListCall) -> None:
    """An output may be the input of its own index and nothing else, nor another output."""
    equal = ListCall(case_of(call.case.op, [4, 4, 4]), call.runtime)
    lists = any(o.listed for o in equal.case.signature.outputs)
    for where, key, name in equal.outputs():
        for other, at, _ in [*equal.inputs(), *equal.outputs()]:
            own = other is where and at == key
            inputs = [equal.arguments[a.name] for a in equal.case.signature.lists]
            mine = lists and at == key and any(other is xs for xs in inputs)
            if own or mine or type(other[at]) is not type(where[key]) or len(other[at]) != len(where[key]):
                continue
            for alias in (other[at], other[at].share()):
                spoil(equal, (where, key, name), alias, errors.AliasError, None)
    equal.make()


@pytest.mark.only(where=lambda row: not any(o.listed or o.kind == "index" for o in row.signature.outputs))
def test_result_in_an_element_of_its_list(row: Op, runtime: Runtime) -> None:
    call = ListCall(case_of(row, [1, 1]), runtime)
    for where, key, _ in call.inputs():
        spoil(call, (call.out, 0, "out"), where[key], errors.AliasError, ["out"])


@pytest.mark.only(where=lambda row: any(o.listed for o in row.signature.outputs))
@pytest.mark.parametrize("seed", [3, 4])
def test_any_input_list_may_be_the_output(row: Op, runtime: Runtime, seed: int) -> None:
    """Or some of its elements. Gradients are clipped in one case and stay in the other."""
    case = case_of(row, LENGTHS, seed=seed)
    want = runtime.run(case)
    orders = itertools.permutations(row.signature.lists, len(row.signature.outputs))
    for sources, some in itertools.product(orders, (slice(None), slice(0, None, 2), slice(1, None, 2))):
        call = ListCall(case, runtime)
        for xs, a in zip(call.out, sources, strict=True):
            xs[some] = call.arguments[a.name][some]
        results = call.make()
        for got, expected in zip(results if len(want) > 1 else [results], want, strict=True):
            assert expected is not None and same_bits(np.concatenate([x.numpy() for x in got]), expected).ok


@pytest.mark.only(where=lambda row: any(o.listed for o in row.signature.outputs))
def test_some_outputs_given(row: Op, runtime: Runtime) -> None:
    case = case_of(row, LENGTHS)
    call, want = ListCall(case, runtime), runtime.run(case)
    for k, xs in enumerate(call.out):
        for i in range(k % 2, len(xs), 2):
            xs[i] = None
    given = [list(xs) for xs in call.out]
    results = call.make()
    for got, xs, expected in zip(results if len(want) > 1 else [results], given, want, strict=True):
        assert expected is not None and isinstance(got, list)
        assert all(x is None or x is y for x, y in zip(xs, got, strict=True))
        assert same_bits(np.concatenate([y.numpy() for y in got]), expected).ok


@pytest.mark.only(where=lambda row: any(o.listed for o in row.signature.outputs))
def test_packs(row: Op, runtime: Runtime) -> None:
    """A pack does what its list does, in `out` too."""
    case = case_of(row, LENGTHS)
    want = runtime.run(case)
    call = ListCall(case, runtime)
    for a in row.signature.lists:
        call.arguments[a.name] = kernels.pack(call.arguments[a.name])
        assert kernels.pack(call.arguments[a.name]) is call.arguments[a.name]
    call.out = [call.arguments[counterpart(a)] for a in row.signature.outputs]
    results = call.make()
    for got, given, expected in zip(results if len(want) > 1 else [results], call.out, want, strict=True):
        assert expected is not None and all(x is y for x, y in zip(got, given, strict=True))
        assert same_bits(np.concatenate([x.numpy() for x in got]), expected).ok


def test_what_cannot_be_packed(row: Op, runtime: Runtime) -> None:
    x = runtime.upload(np.ones(2, np.float32))
    for wrong in (None, x, "text", iter([x]), [x, None], [np.ones(2)]):
        with pytest.raises(errors.ArgumentTypeError, match="^pack: xs"):
            kernels.pack(wrong)


def test_empty_lists(row: Op, runtime: Runtime) -> None:
    """Nothing happens, on the device that is named or that another buffer tells; without either the call is refused."""
    call = ListCall(case_of(row, []), runtime)
    results = call.make()
    for a, got in zip(row.signature.outputs, results if isinstance(results, tuple) else [results], strict=True):
        assert got == [] if a.listed else not got.numpy().any()
    if row.signature.needs_context:
        options = {p.name: call.values[p.name] for p in row.signature.params}
        with pytest.raises(errors.ArgumentError, match=rf"^{row.name}: {call.first}: got an empty list"):
            getattr(kernels, row.name)(**call.arguments, **options)


@pytest.mark.parametrize(
    "lengths",
    [[0], [1], [0, 0, 0], [3, 0, 17], [1] * 100, [31, 33, 0, 257, 16385, 1, 0], [40009], [16384, 32768, 16383, 1024, 1025],
     [i % 7 for i in range(2300)] + [20011]],
    ids=lambda lengths: f"{len(lengths)} of {sum(lengths)}",
)  # fmt: skip
def test_lists_of_any_length(row: Op, runtime: Runtime, lengths: list[int]) -> None:
    """Against the specification, in all data classes (a list of several launches in one), in place too, on every variant."""
    found = []
    for data in data_classes(row)[: 1 if len(lengths) > 2000 else None]:
        for result in Verifier({runtime.name: runtime}).check(row, "forward", [case_of(row, lengths, data)]):
            found += [f"{data}: {f.detail}" for f in result.failures]
    assert not found, "\n".join(found)
    if runtime.name == "cpu":
        case = case_of(row, lengths)
        want = runtime.run(case)
        for variant in Verifier({}, settings()).variants:
            with cpu_settings(variant, 2):
                for got, expected in zip(runtime.run(case), want, strict=True):
                    assert same_bits(got, expected).ok, variant


def settings() -> Any:
    from tlrt.verify.verifier import Settings

    return Settings(variants=True)


@pytest.mark.only(where=lambda row: [o.dims for o in row.signature.outputs] == [("1",)])
@pytest.mark.parametrize("value", [1e-45, 1e-30, 1e30, 3.4e38])
def test_norm_neither_overflows_nor_vanishes(row: Op, runtime: Runtime, value: float) -> None:
    x = np.full(4, value, np.float32)
    got = getattr(kernels, row.name)([runtime.upload(x), runtime.upload(x[:0])]).numpy()[0]
    with np.errstate(over="ignore"):
        assert got == np.float32(2 * x[0].astype(np.float64))


@pytest.mark.operations("momentum_step")
def test_c_refuses_what_python_never_sends(runtime: Runtime) -> None:
    """Lists without storage, and two output lists in one place."""
    library = load()
    ffi, new = library.ffi, library.ffi.new
    step = library.lib.torchlean_cuda_buffer_momentum_step
    context = runtime.device._handle
    xs = [runtime.upload(np.ones(n, np.float32)) for n in (3, 2)]
    given = new("torchlean_buffer *[]", [x._handle for x in xs])
    one, two = new("torchlean_buffer *[]", 2), new("torchlean_buffer *[]", 3)

    def run(ps: Any, gs: Any, vs: Any, ps_out: Any, vs_out: Any) -> tuple[int, str]:
        status = step(context, ps, gs, vs, 2, 0.1, 0.9, 0.0, 0.0, 0, ps_out, vs_out)
        return status, ffi.string(library.lib.torchlean_cuda_last_error()).decode()

    live = runtime.device.memory().live_buffers
    for i, name in enumerate(("ps", "gs", "vs", "ps_out", "vs_out")):
        arguments = [given, given, given, one, two]
        arguments[i] = ffi.NULL
        status, text = run(*arguments)
        assert status == 10 and f": {name}: got NULL, expected 2 values" in text
    for overlapping in (two, two + 1):
        status, text = run(given, given, given, two, overlapping)
        assert status == 80 and "vs_out: got the place of output ps_out" in text
    holes = new("torchlean_buffer *[]", [xs[0]._handle, ffi.NULL])
    status, text = run(given, holes, given, one, two)
    assert status == 10 and "gs[1]: got NULL" in text and not any(one) and not any(two)
    assert runtime.device.memory().live_buffers == live
    assert step(context, ffi.NULL, ffi.NULL, ffi.NULL, 0, 0.1, 0.9, 0.0, 0.0, 0, ffi.NULL, ffi.NULL) == 0
    many = 2**32 - 1
    assert step(context, given, given, given, many, 0.1, 0.9, 0.0, 0.0, 0, one, two) == 30
    # a list that is not there is refused before room is made for what it would hold
    assert step(context, given, given, ffi.NULL, many, 0.1, 0.9, 0.0, 0.0, 0, one, two) == 10
    assert step(context, given, given, given, many, 0.1, 0.9, 0.0, 0.0, 0, one, ffi.NULL) == 10
    assert run(given, given, given, one, two)[0] == 0 and all(one)
    for handle in [*one, *two[0:2]]:
        library.lib.torchlean_cuda_buffer_release(handle)
