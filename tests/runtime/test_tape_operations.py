"""Every method of Operations on a tape: what it computes, its gradients against the specification, frozen operands."""

import inspect
import itertools
from contextlib import suppress
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
import pytest
from numpy.testing import assert_raises

import tlrt
from tests.runtime import tape_checks
from tests.runtime.operation_calls import CALLED, CALLS, OPTIONAL, STEPS, Call
from tlrt import errors
from tlrt._operations import Operations
from tlrt.errors import TorchleanError
from tlrt.spec import SpecDevice
from tlrt.tape import AnyBuffer, Tape
from tlspec import registry
from tlspec.bounds import spacing
from tlspec.compare import same_bits
from tlspec.drawn import generator

#: of the central differences
STEP = 2.0**-14
ROWS = {row.name for row in registry.operations()}


@pytest.fixture(params=CALLED)
def called(request: pytest.FixtureRequest) -> tuple[str, Call]:
    name, i = request.param
    return name, CALLS[name][i]


def on(tape: Tape, call: Call, arrays: list[Any], grads: list[bool] | None = None) -> tuple[list[int], int]:
    needs = grads or [True] * len(arrays)
    ids = [tape.leaf(a, f"operand {i}", n) for i, (a, n) in enumerate(zip(arrays, needs, strict=True))]
    return ids, call.call(tape, *ids)


_MOVING = """broadcast_to broadcast_vec_to_cols broadcast_vec_to_rows chunk concat concat1d concat_dim0 concat_rows concat_vectors
embedding flatten flip index masked_fill pad permute repeat reshape roll slice1d slice_range0 split stack
swap_adjacent_at_depth take take_along tile transpose2d transpose3d_acb transpose3d_bca transpose3d_cab tril triu"""
#: what moves numbers, or chooses among them
MOVING = _MOVING.split()


@pytest.mark.parametrize(("name", "i"), [(n, i) for n in MOVING for i in range(len(CALLS[n]))])
def test_numbers_that_are_not_finite_are_moved(name: str, i: int) -> None:
    call = CALLS[name][i]
    arrays = [generator("numbers", name, k).choice([np.inf, -np.inf, np.nan, 1, -2], a.shape).astype(np.float32)
              for k, a in enumerate(call.operands(name))]  # fmt: skip
    with Tape(SpecDevice()) as tape:
        got = tape.value(on(tape, call, arrays)[1]).numpy()
    assert np.array_equal(got, call.computes(*arrays), equal_nan=True)


def seed_for(name: str, shape: tuple[int, ...]) -> np.ndarray:
    return generator("seed", name).standard_normal(shape).astype(np.float32)


@pytest.mark.every_choice
def test_table_has_every_method() -> None:
    assert {n for n in dir(Operations) if not n.startswith("_")} == {"shape", *CALLS}


def test_computes_what_it_says(called: tuple[str, Call]) -> None:
    """On the specification, which computes in float64: within one float32 spacing of the largest element, 2^29 times what float64
    rounds, so what differs is the formula."""
    name, call = called
    with Tape(SpecDevice()) as tape:
        arrays = call.operands(name)
        _, out = on(tape, call, arrays)
        got, wanted = tape.value(out).numpy(), np.asarray(call.computes(*[a.astype(np.float64) for a in arrays]))
        assert tape.shape(out) == wanted.shape
        assert np.all(np.abs(got - wanted) <= spacing(np.abs(wanted).max(initial=0)))


@pytest.mark.filterwarnings("ignore::RuntimeWarning")
def test_of_no_elements_it_computes_the_same_or_is_refused(called: tuple[str, Call]) -> None:
    """Each size of the operands is 0 in turn, where NumPy then has a result."""
    name, call = called
    for size in {n for shape in call.shapes for n in shape}:
        empty = replace(call, shapes=tuple(tuple(n * (n != size) for n in shape) for shape in call.shapes))
        arrays = empty.operands(name)
        try:
            wanted = np.asarray(empty.computes(*[a.astype(np.float64) for a in arrays]))
        except Exception:  # of many types
            continue
        with Tape(SpecDevice()) as tape, suppress(TorchleanError):
            got = tape.value(on(tape, empty, arrays)[1]).numpy()
            assert got.shape == wanted.shape
            assert np.array_equal(got.astype(np.float32), wanted.astype(np.float32), equal_nan=True)


def test_gradient_is_the_derivative(called: tuple[str, Call]) -> None:
    """The specification's tape against central differences along a direction of all operands. The change from step h to 2h
    is three times the truncation at h; φ rounds at 2^-53 of what it sums."""
    name, call = called
    arrays = [a.astype(np.float64) for a in call.operands(name)]
    if name in STEPS or any(a.size == 0 for a in arrays):
        pytest.skip("nothing to differentiate")
    rng = generator("direction", name)
    directions = [rng.standard_normal(a.shape) for a in arrays]
    device = SpecDevice()

    def value(t: float) -> np.ndarray:
        with Tape(device) as tape:
            moved = [AnyBuffer(a.shape, device.exact(a + t * v)) for a, v in zip(arrays, directions, strict=True)]
            return tape.value(on(tape, call, moved)[1]).numpy()

    cot = rng.standard_normal(value(0.0).shape)
    phi = {k: float((value(k * STEP) * cot).sum()) for k in (-2, -1, 1, 2)}
    near, far = (phi[1] - phi[-1]) / (2 * STEP), (phi[2] - phi[-2]) / (4 * STEP)
    with Tape(device) as tape:
        exact = [AnyBuffer(a.shape, device.exact(a)) for a in arrays]
        ids, out = on(tape, call, exact)
        found = tape.backward_sparse(out, ids, AnyBuffer(cot.shape, device.exact(cot)))
        slope = sum(float((found[i].numpy() * v).sum()) for i, v in zip(ids, directions, strict=True))
        magnitude = sum(float(np.abs(found[i].numpy() * v).sum()) for i, v in zip(ids, directions, strict=True))
    rounding = 2.0**-53 * 64 * (float(np.abs(value(0.0) * cot).sum()) + 1) / STEP
    tolerance = abs(near - far) + rounding
    assert abs(slope - near) <= tolerance
    assert tolerance <= max(magnitude, 1) * 1e-3, "the differences see nothing"


def test_gradients_within_bounds(called: tuple[str, Call], dev: tlrt.Device, record_property: Any) -> None:
    name, call = called
    arrays = call.operands(name)
    with Tape(dev) as tape, Tape(SpecDevice()) as spec:
        _, out = on(tape, call, arrays)
        worst = tape_checks.check_values(tape)
        worst = max(worst, tape_checks.check_gradients(tape, out, seed_for(name, tape.shape(out))))
        record_property("share of the bound", worst)
        _, other = on(spec, call, arrays)
        assert [n.name for n in spec.nodes] == [n.name for n in tape.nodes]
        assert (other, spec.shape(other)) == (out, tape.shape(out))


def test_frozen_operands_get_nothing_and_change_nothing(called: tuple[str, Call], dev: tlrt.Device) -> None:
    name, call = called
    arrays = call.operands(name)
    with Tape(dev) as tape:
        ids, out = on(tape, call, arrays)
        seed = seed_for(name, tape.shape(out))
        everything = [g.numpy() for g in tape.backward_sparse(out, ids, seed).values()]
        for free in range(len(arrays)):
            tape.clear()
            ids, out = on(tape, call, arrays, [i == free for i in range(len(arrays))])
            found = tape.backward_sparse(out, None, seed)
            assert set(found) == {ids[free]} and same_bits(found[ids[free]].numpy(), everything[free]).ok
            for node in tape.nodes[len(ids) :]:
                wanted = any(p is not None and tape.nodes[p].requires_grad for p in node.parents)
                assert node.requires_grad == (wanted and node.name not in STEPS)
        tape.clear()
        on(tape, call, arrays, [False] * len(arrays))
        assert not any(n.requires_grad for n in tape.nodes)


def test_refused_call_records_nothing(called: tuple[str, Call], dev: tlrt.Device) -> None:
    """Wrong ids and wrong ranks in every place: the tape keeps its nodes, the device its buffers."""
    name, call = called
    with Tape(dev) as tape:
        ids = [tape.leaf(a) for a in call.operands(name)]
        odd = tape.leaf(np.ones((1, 2, 1, 3, 1, 2, 1, 2, 1, 2, 1)), "odd")
        start, mark, before = tape.size, tape._mark(), dev.memory().live_buffers

        def nothing_left() -> bool:
            left = [n for n in tape.nodes[start:] if n.name != "mask" and not n.buffer.released]  # the call's own leaf
            tape._undo(mark)
            return not left and dev.memory().live_buffers == before

        for place in range(len(ids)):
            for wrong in (-1, 10**6, "x", 1.5, True, *([] if len(ids) == 3 and (name, place) in OPTIONAL else [None])):
                assert_raises(errors.TorchleanError, call.call, tape, *ids[:place], wrong, *ids[place + 1 :])
                assert nothing_left()
            found: Exception | None = None
            try:
                call.call(tape, *ids[:place], odd, *ids[place + 1 :])
            except errors.TorchleanError as error:
                found = error
            assert not isinstance(found, errors.InternalError)
            assert found is None or nothing_left()
            tape._undo(mark)


class EndedError(BaseException):
    """What a signal handler raises."""


def test_an_operation_that_ends_half_way_leaves_nothing(called: tuple[str, Call]) -> None:
    """Whichever of its steps it is that raises."""
    name, call = called
    with Tape(SpecDevice()) as tape:
        ids = [tape.leaf(a) for a in call.operands(name)]
        steps = {step: getattr(tape, step) for step in ("_apply", "_view", "_constant")}
        size, mark, before = tape.size, tape._mark(), tape.device.memory().live_buffers
        left = [0]

        def failing(step: str, *arguments: Any, **keywords: Any) -> int:
            left[0] -= 1
            if left[0] < 0:
                raise EndedError
            return int(steps[step](*arguments, **keywords))

        for step in steps:
            setattr(tape, step, partial(failing, step))
        for limit in itertools.count():
            left[0] = limit
            try:
                call.call(tape, *ids)
                break
            except EndedError:
                # a mask is the call's own leaf
                kept = [n for n in tape.nodes[size:] if n.name != "mask" and not n.buffer.released]
                tape._undo(mark)
                if name in ("argmax", "argmin", "indices"):  # the caller's own, which lives as long as the error
                    continue
                assert not kept and tape.device.memory().live_buffers == before


def test_nodes_are_named_after_rows(called: tuple[str, Call]) -> None:
    """Those of views after a method: a table of a tape, and a comparison of two, say what a node is."""
    name, call = called
    with Tape(SpecDevice()) as tape:
        ids = [tape.leaf(a, "operand") for a in call.operands(name)]
        call.call(tape, *ids)
        methods = {n for n in dir(Operations) if n[0] != "_"}
        assert {n.name for n in tape.nodes[len(ids) :] if n.parents} <= methods | ROWS


@pytest.mark.every_choice
def test_defaults_are_the_rows() -> None:
    compared = 0
    for row in registry.operations():
        method = getattr(Tape, row.name, None)
        known = inspect.signature(method).parameters if method is not None else {}
        for p in row.signature.params:
            if p.default is not None and p.name in known:
                assert float(known[p.name].default) == float(p.default), (row.name, p.name)
                compared += 1
    assert compared >= 8
