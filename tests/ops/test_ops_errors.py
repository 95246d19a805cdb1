"""Every way to call an operation wrongly: each is refused with the exception of its kind and a message that names operation,
argument, got and expected; outputs stay as they were and no buffer is left behind."""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest

import tlrt
from tlrt import errors
from tlrt.verify_run import Runtime, face
from tlspec import pyface
from tlspec.cases import Case, break_check, build_case, cotangent_names, draw_case, generator, shape_of
from tlspec.registry import Op, Signature

POISON = np.uint32(0x7FC0DEAD)


class Call:
    """One call of an entry point with outputs given, whose arguments a test spoils before it makes it."""

    def __init__(self, case: Case, runtime: Runtime):
        self.case, self.runtime = case, runtime
        self.arguments: dict[str, Any] = runtime.place(case)
        self.values: dict[str, Any] = dict(case.values)
        self.out: list[Any] = []
        for a in case.signature.outputs:
            n = int(np.prod(case.shape(a), dtype=np.int64))
            self.out.append(
                np.full(case.shape(a), 7.0)
                if a.host
                else runtime.upload(np.full(n, POISON, np.uint32).view(np.float32))
            )

    @property
    def buffers(self) -> list[str]:
        """The names of the device inputs that are present."""
        return [a.name for a in self.case.signature.inputs if not a.host and self.arguments[a.name] is not None]

    def make(self) -> Any:
        out = self.out[0] if len(self.out) == 1 else tuple(self.out)
        return self.runtime.call(self.case.name, self.arguments, self.values, out=out)

    def refused(self, kinds: type[Exception] | tuple[type[Exception], ...], *, words: str = "") -> None:
        """Makes the call and demands one of `kinds`, a complete message, untouched outputs and no new buffer."""
        gc.disable()  # else a collection meanwhile could hide a leak behind older garbage
        before = self.runtime.device.memory().live_buffers
        with pytest.raises(kinds) as caught:
            self.make()
        text = str(caught.value)
        assert isinstance(caught.value, tlrt.TorchleanError), repr(caught.value)
        assert self.case.name in text, text
        assert words in text, text
        assert any(word in text for word in ("expected", "released", "shares storage", "2^32")), text
        del caught
        after = self.runtime.device.memory().live_buffers
        gc.enable()
        if after > before:
            gc.collect()
            after = self.runtime.device.memory().live_buffers
        assert after <= before, "a refused call left a buffer behind"
        for a, out in zip(self.case.signature.outputs, self.out, strict=True):
            if a.host:
                assert np.all(out == 7.0)
            elif not out.released:
                assert np.all(out.numpy().view(np.uint32) == POISON), "a refused call changed its output"


def has_kernel(row: Op, which: str) -> bool:
    """Whether an entry point is its own; a VJP composed of other operations has none."""
    return which == "forward" or (row.vjp_rule is not None and row.vjp_rule.via is None)


def signature(row: Op, which: str) -> Signature:
    return row.signature if which == "forward" else row.vjp_signature


def takes(kind: str) -> Callable[[Op, str], bool]:
    """Whether the entry point's Python function has an argument of that kind."""
    return lambda row, which: (
        has_kernel(row, which)
        and any(a.kind == kind for a in face(row.name if which == "forward" else f"{row.name}_bwd"))
    )


pytestmark = pytest.mark.only(where=has_kernel)


def ample(row: Op, which: str, wanted: Callable[[Case], bool] = lambda case: True) -> Case:
    """A small case without empty arrays, all optional inputs present, that is `wanted`."""
    for seed in range(300):
        case = draw_case(row, seed, "normal", "small", which)
        arrays = [*case.inputs.values()]
        full = all(x is not None and x.size > 0 for x in arrays)
        full = full and all(int(np.prod(case.shape(a))) > 0 for a in case.signature.outputs)
        if full and wanted(case):
            return case
    pytest.skip("no such case among 300")


@pytest.fixture
def call(entry: tuple[Op, str], runtime: Runtime) -> Call:
    row, which = entry
    return Call(ample(row, which), runtime)


def resized(runtime: Runtime, buffer: Any, by: int) -> Any:
    return runtime.upload(np.resize(buffer.numpy(), len(buffer) + by))


@pytest.mark.parametrize("by", [-1, 1], ids=["short", "long"])
def test_input_of_wrong_length(call: Call, by: int) -> None:
    for name in call.buffers:
        kept = call.arguments[name]
        call.arguments[name] = resized(call.runtime, kept, by)
        call.refused(errors.ShapeError)
        call.arguments[name] = kept
    call.make()  # put right again, it runs


@pytest.mark.only(where=lambda row, which: any(a.host for a in signature(row, which).inputs))
@pytest.mark.parametrize("by", [-1, 1], ids=["short", "long"])
def test_host_array_of_wrong_length(call: Call, by: int) -> None:
    hosts = [a.name for a in call.case.signature.inputs if a.host]
    for name in hosts:
        kept = call.arguments[name]
        call.arguments[name] = np.resize(kept, kept.size + by)
        call.refused(errors.ShapeError)
        call.arguments[name] = kept


@pytest.mark.parametrize("by", [-1, 1], ids=["short", "long"])
def test_output_of_wrong_length(call: Call, by: int) -> None:
    for i, a in enumerate(call.case.signature.outputs):
        kept = call.out[i]
        if a.host:
            call.out[i] = np.full(kept.size + by, 7.0)
        else:
            call.out[i] = resized(call.runtime, kept, by)
        call.refused(errors.ShapeError)
        call.out[i] = kept


def test_missing_input(call: Call) -> None:
    for a in call.case.signature.inputs:
        if not a.optional:
            kept = call.arguments[a.name]
            call.arguments[a.name] = None
            call.refused((errors.ArgumentTypeError, errors.ArgumentError))
            call.arguments[a.name] = kept


@pytest.mark.only(where=lambda row, which: signature(row, which).buffers)
def test_array_instead_of_buffer(call: Call) -> None:
    for name in call.buffers:
        kept = call.arguments[name]
        call.arguments[name] = kept.numpy()
        call.refused(errors.ArgumentTypeError)
        call.arguments[name] = kept


@pytest.mark.only(where=lambda row, which: signature(row, which).buffers)
def test_released_buffer(call: Call) -> None:
    for name in call.buffers:
        kept = call.arguments[name]
        call.arguments[name] = kept.copy()
        call.arguments[name].release()
        call.refused(errors.ReleasedError)
        call.arguments[name] = kept
    for i, a in enumerate(call.case.signature.outputs):
        if not a.host:
            kept = call.out[i]
            call.out[i] = kept.copy()
            call.out[i].release()
            call.refused(errors.ReleasedError)
            call.out[i] = kept


@pytest.mark.only(where=lambda row, which: signature(row, which).buffers)
def test_foreign_buffer(call: Call) -> None:
    with tlrt.device(call.runtime.name, new=True) as other:
        for name in call.buffers:
            kept = call.arguments[name]
            call.arguments[name] = tlrt.Buffer.from_numpy(kept.numpy(), other)
            call.refused(errors.DeviceMismatchError)
            call.arguments[name] = kept
        for i, a in enumerate(call.case.signature.outputs):
            if not a.host:
                kept = call.out[i]
                call.out[i] = tlrt.Buffer.from_numpy(kept.numpy(), other)
                call.refused(errors.DeviceMismatchError)
                call.out[i] = kept


def named_dims(call: Call) -> list[str]:
    """Dimensions the Python function takes one by one."""
    return [a.of for a in face(call.case.name) if a.kind == "dim"]


def lengths(call: Call, values: dict[str, Any]) -> list[int]:
    sig = call.case.signature
    return [int(np.prod(shape_of(a, values), dtype=object)) for a in sig.inputs + sig.outputs]


@pytest.mark.only(where=takes("dim"))
def test_wrong_dimensions(call: Call) -> None:
    names = named_dims(call)
    right = dict(call.values)
    wrong = [{**right, n: right[n] + 1} for n in names]
    wrong += [{**right, a: right[b], b: right[a]} for i, a in enumerate(names) for b in names[:i]]
    for values in wrong:
        if lengths(call, values) != lengths(call, right):
            call.values = values
            # a dimension may also break a check of the row
            call.refused((errors.ShapeError, errors.ArgumentError, errors.IndexOutOfRangeError))


@pytest.mark.only(where=takes("dim"))
def test_huge_dimensions(call: Call) -> None:
    names = named_dims(call)
    right = dict(call.values)
    for size in (2**16 + 1, 2**32 - 1):
        call.values = {**right, **dict.fromkeys(names, size)}
        call.refused((errors.ShapeError, errors.SizeOverflowError, errors.ArgumentError, errors.IndexOutOfRangeError))
    for name in names:
        for size, kind in ((2**32, errors.SizeOverflowError), (-1, errors.ShapeError), (1.5, errors.ArgumentTypeError)):
            call.values = {**right, name: size}
            call.refused(kind, words=name)


@pytest.mark.only(where=takes("dims"))
def test_rank_nine(call: Call) -> None:
    names = [a.of for a in face(call.case.name) if a.kind == "dims"]
    right = dict(call.values)
    for name in names:
        call.values = {**right, name: [1] * 9}
        call.refused(errors.ShapeError)


@pytest.mark.only(where=lambda row, which: row.checks)
def test_every_check_refuses(entry: tuple[Op, str], runtime: Runtime) -> None:
    row, which = entry
    for check in row.checks:
        for seed in range(3):
            values = break_check(row, check, seed)
            assert values is not None, f"the search found nothing that {check.expression} refuses"
            given = {a.name: values.pop(a.name) for a in row.signature.inputs if a.name in values}
            shapes = {
                a.name: np.zeros(fitting(a, values), np.float32)
                for a in row.signature.inputs
                if not a.host and not a.elementwise
            }
            shapes |= {
                n: np.zeros(fitting(a, values), np.float32)
                for n, a in cotangent_names(row).items()
                if not a.elementwise
            }
            if row.signature.elementwise:
                shapes = {}
                values.setdefault("n", 3)
            case = build_case(row, values, {**shapes, **given}, generator(seed), which=which)
            made = Spoilt(case, runtime)
            kind = getattr(errors, pyface.EXCEPTIONS.get(check.status, "TorchleanError"))
            made.refused((kind, errors.ShapeError) if given else kind)


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
            self.arguments[a.name] = x if x is None or a.host else runtime.upload(x)
        self.out = []
        for a in case.signature.outputs:
            n = (
                next(x.size for x in case.inputs.values() if x is not None)
                if a.elementwise
                else int(np.prod(fitting(a, self.values)))
            )
            self.out.append(
                np.full(n, 7.0) if a.host else runtime.upload(np.full(n, POISON, np.uint32).view(np.float32))
            )


def matching(case: Case) -> Iterator[tuple[int, str]]:
    """Outputs and device inputs of the same number of elements."""
    for i, a in enumerate(case.signature.outputs):
        for b in case.signature.inputs:
            x = case.arguments[b.name]
            if not a.host and not b.host and x is not None and x.size == int(np.prod(case.shape(a))):
                yield i, b.name


def test_output_that_is_an_input(entry: tuple[Op, str], runtime: Runtime) -> None:
    row, which = entry
    case = ample(row, which, lambda case: any(True for _ in matching(case)))
    for i, name in matching(case):
        call = Call(case, runtime)
        if case.signature.elementwise:
            want = runtime.run(case)
            call.out[i] = call.arguments[name]
            got = call.make()
            got = got if isinstance(got, tuple) else (got,)
            for one, two in zip(got, want, strict=True):
                assert two is not None
                assert one.numpy().tobytes() == two.tobytes(), f"output {i} in the place of {name}"
        else:
            for alias in (call.arguments[name], call.arguments[name].share()):
                kept, call.out[i] = call.out[i], alias
                with pytest.raises(errors.AliasError):
                    call.make()
                call.out[i] = kept
            x = case.arguments[name]
            assert x is not None
            assert call.arguments[name].numpy().tobytes() == np.ascontiguousarray(x).tobytes()


@pytest.mark.only(where=lambda row, which: len(signature(row, which).outputs) > 1)
def test_outputs_that_are_one_buffer(entry: tuple[Op, str], runtime: Runtime) -> None:
    row, which = entry
    outs = signature(row, which).outputs

    def alike(case: Case) -> bool:
        sizes = [int(np.prod(case.shape(a))) for a in outs]
        return len(set(sizes)) < len(sizes)

    case = ample(row, which, alike)
    sizes = [int(np.prod(case.shape(a))) for a in outs]
    i, j = next((i, j) for j in range(len(sizes)) for i in range(j) if sizes[i] == sizes[j])
    call = Call(case, runtime)
    call.out[j] = call.out[i].share()
    call.refused(errors.AliasError)
