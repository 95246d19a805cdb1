"""The tape itself: nodes, leaves, hand-made operations, dense, seeded and sparse backward, accumulation, release."""

import operator
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
from numpy.testing import assert_raises, assert_raises_regex

import tlrt
from tests import no_collection, slightly_wrong, unchanged_memory
from tests.runtime import tape_checks
from tlrt import errors, kernels
from tlrt._operations.shaped import size_of
from tlrt.spec import SpecDevice
from tlrt.spec import kernels as spec
from tlrt.tape import AnyBuffer, Node, Tape, release_gradients
from tlspec.drawn import generator


def normal(*shape: int, key: str = "x") -> np.ndarray:
    return generator(key, str(shape)).standard_normal(shape).astype(np.float32)


@pytest.fixture
def tape(dev: tlrt.Device) -> Iterator[Tape]:
    with Tape(dev) as made:
        yield made


def test_ids_are_places(tape: Tape) -> None:
    assert tape.size == len(tape) == 0
    a = tape.leaf(normal(2, 3), "a")
    assert (a, tape.size) == (0, 1)
    b = tape.add_node(Node("b", tape.upload(normal(2, 3)), False))
    assert (b, tape.size) == (1, 2)
    c = tape.mul(a, b)
    assert c == 2 and tape.node(c).parents == (a, b)
    assert tape.node(c).requires_grad and not tape.node(b).requires_grad
    assert np.array_equal(tape.value(c).numpy(), tape.value(a).numpy() * tape.value(b).numpy())
    assert tape.require_value(c, [2, 3]).shape == (2, 3)
    assert tape.get_node(3) is None and tape.get_node(-1) is None and tape.get_value(99) is None
    assert tape.get_node(np.int64(1)) is tape.nodes[1]  # type: ignore[arg-type]
    assert tape.add(np.int32(0), b) == 3  # type: ignore[arg-type]
    assert "mul" in tape.table() and "a" in repr(tape.node(a))


def test_sizes() -> None:
    assert size_of(()) == 1 and size_of((3, 0)) == 0 and size_of((2**16, 2**15)) == 2**31
    for shape in ((2**16, 2**16), (-1, 3), (-2, -3), (0, -1)):
        assert_raises(errors.ShapeError, size_of, shape)


def test_buffers_have_shapes(dev: tlrt.Device) -> None:
    a = AnyBuffer.upload([[1, 2, 3], [4, 5, 6]], dev)
    assert a.shape == (2, 3) and a.size == 6 and np.array_equal(np.asarray(a), [[1, 2, 3], [4, 5, 6]])
    assert np.array_equal(a.add(a).numpy(), 2 * a.numpy())
    assert_raises_regex(errors.ShapeError, r"\(3, 2\)", a.add, AnyBuffer((3, 2), a.buffer))
    assert_raises_regex(errors.ShapeError, "6 elements", AnyBuffer, (7,), a.buffer)
    assert not AnyBuffer.zeros((2, 2), dev).numpy().any()
    shared, copied = a.share(), a.copy()
    a.release()
    assert np.array_equal(shared.numpy(), copied.numpy())
    assert_raises(errors.ReleasedError, a.numpy)


@pytest.mark.parametrize("kind", ["spec", "cpu"])
def test_a_shape_that_does_not_fit_its_buffer_is_refused(kind: str, dev: tlrt.Device) -> None:
    """An AnyBuffer's shape can be set: copies, readbacks and a parameter's new value check that the buffer has that length."""
    device = SpecDevice() if kind == "spec" else dev
    value = AnyBuffer.upload(normal(2, 3), device)
    with tlrt.Session(device) as s:
        w, ref = s.param(normal(7)), s.const(normal(6))
        for shape in ((7,), (2, 2), (-1,), ()):
            value.shape = shape
            w.shape = shape
            for refused in (value.copy, value.numpy, value.require_length, lambda: w.assign(value)):
                assert_raises_regex(errors.ShapeError, "shape: |AnyBuffer: buffer: got 6 elements, expected", refused)
        w.shape = (7,)
        forged = tlrt.TensorRef(s, ref.id, (2, 3), s.epoch)
        for read in (forged.numpy, lambda: s.get_value(forged)):
            assert_raises_regex(errors.ShapeError, r"tensor: got shape \(2, 3\), expected \(6,\), as the tape", read)
    value.release()


@pytest.mark.parametrize("array", [np.zeros(2, complex), np.zeros(2, "V2"), "text", None, [[1, 2], [3]], [None, None]])
def test_what_is_no_number_is_refused(tape: Tape, array: Any) -> None:
    x = tape.leaf(normal(2))
    assert_raises(errors.ArgumentTypeError, tape.leaf, array)
    if array is not None:
        assert_raises(errors.ArgumentTypeError, tape.backward, x, array)
    assert tape.size == 1


def test_operand_given_twice(tape: Tape) -> None:
    """Both contributions count, for operations, views and hand-made ones."""
    x = tape.leaf(normal(5))
    y = tape.add(tape.mul(x, x), tape.add(x, x))
    z = tape.sub(tape.div(y, y), tape.max(x, x))
    tape_checks.check_values(tape)
    tape_checks.check_gradients(tape, z, normal(5, key="g"))
    g = tape.backward_sparse(y, [x], np.ones(5))[x].numpy()
    v = tape.value(x).numpy()
    assert np.array_equal(g, (2 + v) + v), "contributions are added from the last node to the first"


def spying(tape: Tape, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The names of the operations that run from here on."""
    calls: list[str] = []

    class Spy:
        def __getattr__(self, name: str) -> Callable[..., Any]:
            function = getattr(kernels, name)

            def run(*arguments: Any, **keywords: Any) -> Any:
                calls.append(f"{name}{[bool(w) for w in keywords['want']]}" if "want" in keywords else name)
                return function(*arguments, **keywords)

            return function if name == "share" else run

    monkeypatch.setattr(tape, "kernels", Spy())
    return calls


def test_frozen_operands_cost_nothing(tape: Tape, monkeypatch: pytest.MonkeyPatch) -> None:
    calls = spying(tape, monkeypatch)
    w, b = tape.leaf(normal(4, 3)), tape.leaf(normal(4))
    x = tape.leaf(normal(5, 3), "x", False)
    frozen = tape.tanh(tape.linear(tape.leaf(normal(3, 3), "fw", False), tape.leaf(normal(3), "fb", False), x))
    assert not tape.node(frozen).requires_grad
    y = tape.sub(tape.leaf(normal(5, 4), "t", False), tape.linear(w, b, frozen))
    z = tape.sub(y, tape.leaf(normal(5, 4), "u", False))
    calls.clear()
    tape.backward_sparse(z, None, normal(5, 4, key="g"))
    assert calls == ["scale", "linear_bwd[True, False, True]"]
    mask = tape.leaf(np.ones((1, 5, 5)), "mask")
    q = tape.leaf(normal(1, 5, 2), "q", False)
    assert not tape.node(tape.flash_attention(q, q, q, mask, "hard")).requires_grad, "a mask has no gradient"
    k = tape.leaf(normal(1, 5, 2), "k")
    out = tape.flash_attention(q, k, q, mask, 2)
    calls.clear()
    found = tape.backward_sparse(out, [k, mask], normal(1, 5, 2))
    assert calls == ["flash_attention_bwd[False, True, False]"] and not found[mask].numpy().any()


def test_unreached_nodes_do_not_run(tape: Tape) -> None:
    """Their gradients are zeros, not 0·inf: neither an operation whose VJP would give NaN nor a hand-made one is called."""
    x = tape.leaf([0.0, 1.0])
    bad = tape.inv(x)  # -g/x² = 0·inf

    def explode(*_: Any) -> Any:
        raise AssertionError("it ran")

    worse = tape.unary("explode", bad, (2,), (2,), lambda b: kernels.exp(b), explode)
    good = tape.mul(x, x)
    grads = tape.backward(tape.reduce_sum(good))
    assert np.array_equal(grads[x].numpy(), [0, 2])
    for i in (bad, worse):
        assert not grads[i].numpy().any()
    assert np.isnan(tape.backward(bad, [0.0, 0.0])[x].numpy()).any(), "reached, it would have been NaN"
    one = tape.backward_sparse(good, [worse, x], [1, 1])
    assert set(one) == {worse, x} and not one[worse].numpy().any()


def test_seeds(tape: Tape, dev: tlrt.Device) -> None:
    x = tape.leaf(normal(2, 3))
    y = tape.exp(x)
    total = tape.reduce_sum(y)
    mine = AnyBuffer.upload(normal(2, 3, key="g"), dev)
    a, b = tape.backward(y, mine)[x].numpy(), tape.backward(y, normal(2, 3, key="g"))[x].numpy()
    assert np.array_equal(a, b) and np.array_equal(a, mine.numpy() * tape.value(y).numpy())
    assert np.array_equal(tape.backward(total, 2.0)[x].numpy(), 2 * tape.value(y).numpy())
    assert np.array_equal(tape.backward(total)[y].numpy(), np.ones((2, 3)))
    one = tape.reshape(total, (1, 1))
    assert np.array_equal(tape.backward(one)[x].numpy(), tape.value(y).numpy())
    tape.backward_sparse(y, [y], mine)[y].buffer.fill(0.0)
    assert mine.numpy().any(), "the seed is the caller's"


def test_gradients_of_one_buffer_share_no_memory(dev: tlrt.Device) -> None:
    with tlrt.Tape(dev) as tape:
        for name in "abc":
            tape.leaf([1, 2], name)
        given = tape.upload([5, 6])
        first, *others = tape.backward_from([given, given, given])
        kernels.scale(first.buffer, 10.0, out=first.buffer)
        assert all(x.numpy().tolist() == [5, 6] for x in others)


def test_backward_over_the_first_nodes(tape: Tape, dev: tlrt.Device) -> None:
    """A step at each of the first nodes, from the last of them to node 0; what the later ones were given stays as it is."""
    x = tape.leaf(normal(3))
    y, z = tape.exp(x), tape.tanh(x)
    for first, reaching in ((0, ()), (y, ()), (z, (y,)), (tape.size, (y, z))):
        seeds = [None, tape.upload([1, 1, 1]), tape.upload([2, 2, 2])]
        with unchanged_memory(dev):
            grads = tape.backward_from([g and g.copy() for g in seeds], first)
            expected = sum((tape.backward(i, seeds[i])[x].numpy() for i in reversed(reaching)), np.zeros(3, np.float32))
            assert np.array_equal(grads[x].numpy(), expected)
            assert [g.numpy()[0] for g in grads[1:]] == [1, 2]
            for _ in range(2):
                release_gradients([*grads, None])
            assert all(g.buffer.released for g in grads)
    wanted = tape.backward_sparse(y, [x, y], np.ones(3))
    release_gradients(wanted.values())
    assert wanted[x].buffer.released and wanted[y].buffer.released and not tape.value(y).buffer.released


def test_steps_by_hand(tape: Tape) -> None:
    """add_grad and backward_step, from the last node to the first, are the backward pass."""
    x, frozen = tape.leaf(normal(3)), tape.leaf(normal(3), "frozen", False)
    y = tape.mul(tape.tanh(x), tape.add(x, frozen))
    grads: list[AnyBuffer | None] = [None] * tape.size
    tape.add_grad(grads, y, tape.upload(np.ones(3)))
    tape.add_grad(grads, y, tape.upload(np.ones(3)))
    lost = tape.upload(np.ones(3))
    tape.add_grad(grads, frozen, lost)
    assert lost.buffer.released and grads[frozen] is None
    for i in reversed(range(tape.size)):
        tape.backward_step(grads, i)
    assert np.array_equal(grads[x].numpy(), tape.backward(y, np.full(3, 2))[x].numpy())  # type: ignore[union-attr]


def test_caller_may_change_its_arrays(dev: tlrt.Device) -> None:
    """Indices, labels and uploads are the tape's own copies."""
    places, labels, host = np.array([0, 1], np.uint32), np.array([0, 0], np.uint32), normal(2, 3)
    with Tape(dev) as tape:
        x = tape.leaf(host)
        rows = tape.gather_rows_nat(x, places)
        loss = tape.cross_entropy(rows, labels)
        before = tape.backward_sparse(loss, [x])[x].numpy()
        places[:], labels[:], host[:] = 1, 2, 0
        assert np.array_equal(tape.backward_sparse(loss, [x])[x].numpy(), before)
        assert_raises(ValueError, operator.setitem, tape.node(rows).hosts["indices"], 0, 5)


def test_not_recording(tape: Tape) -> None:
    x = tape.leaf(normal(3))
    tape.recording = False
    y = tape.exp(x)
    assert not tape.node(y).requires_grad and not tape.node(tape.leaf(1.0)).requires_grad
    tape.recording = True
    assert not tape.backward(y, np.ones(3))[x].numpy().any()
    z = tape.mul(tape.detach(tape.exp(x)), x)
    assert np.array_equal(tape.backward(z, np.ones(3))[x].numpy(), tape.value(tape.exp(x)).numpy())


@pytest.mark.parametrize("given", [lambda g: (g, g), lambda g: (g.copy(),) * 2], ids=["cotangent", "made"])
def test_handmade_operations(tape: Tape, given: Any) -> None:
    """Buffers that are not theirs to give away (the cotangent, an operand, the same one twice) are safe to return."""
    a, b = tape.leaf(normal(3)), tape.leaf(normal(3, key="b"))
    same = tape.unary("same", a, (3,), (3,), lambda x: x, lambda x, g: g)
    both = tape.binary("both", same, b, (3,), (3,), (3,), kernels.add, lambda x, y, g: given(g))
    by_value = tape.binary("times", both, b, (3,), (3,), (3,), kernels.mul, lambda x, y, g: (y, x))
    grads = tape.backward_sparse(by_value, None, np.ones(3))
    va, vb = tape.value(a).numpy(), tape.value(b).numpy()
    assert np.array_equal(grads[a].numpy(), vb) and np.array_equal(grads[b].numpy(), (va + vb) + vb)
    for g in grads.values():
        g.buffer.fill(0.0)
    assert np.array_equal(tape.value(by_value).numpy(), (va + vb) * vb)
    assert np.array_equal(tape.value(a).numpy(), va)


def test_release_is_deterministic(dev: tlrt.Device) -> None:
    """Bytes and handles return to the start without the garbage collector's help, and the tape can be filled again."""
    with no_collection(), unchanged_memory(dev):
        start = dev.memory().live_buffers
        scratch = dev.zeros(10)
        tape = Tape(dev)
        for _ in range(3):
            x = tape.leaf(normal(64, 64), "x")
            tape.add_node(Node("with scratch", tape.upload(normal(3)), cleanup=[scratch.copy()]))
            y = tape.softmax(tape.matmul(x, tape.transpose2d(tape.tanh(x))))
            loss = tape.mse_loss(y, tape.reshape(tape.flatten(x), (64, 64)))
            kept = tape.backward_sparse(loss)
            assert set(kept) == {x, 1}
            live = dev.memory().live_buffers
            dense = tape.backward(loss)
            assert dev.memory().live_buffers == live + tape.size
            for g in (*kept.values(), *dense):
                g.release()
            tape.clear()
            assert (dev.memory().live_buffers, tape.size) == (start + 1, 0)
        tape.release()
        tape.release()
        scratch.release()


def test_sparse_backward_releases_what_it_consumed(tape: Tape, dev: tlrt.Device) -> None:
    """A chain of n operations needs a few gradients at a time, not n."""
    x = y = tape.leaf(normal(1024))
    for _ in range(50):
        y = tape.tanh(y)
    dev.reset_peak()
    before = dev.memory().live_bytes
    tape.backward_sparse(y, [x], np.ones(1024))
    assert dev.memory().peak_bytes - before <= 4 * 4096


@pytest.mark.parametrize("name", ["tanh", "tanh_bwd", "linear", "linear_bwd", "mul_bwd", "add", "slice1d_bwd"])
def test_audit_sees_a_defect(dev: tlrt.Device, monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    """What the other tests lean on: one kernel off by a relative 2^-17 anywhere on a tape is found."""

    def program(tape: Tape) -> int:
        w, b, x = tape.leaf(normal(4, 3)), tape.leaf(normal(4)), tape.leaf(normal(5, 3))
        y = tape.tanh(tape.linear(w, b, x))
        return tape.slice1d(tape.flatten(tape.mul(tape.add(y, y), y)), 3, 7)

    def audit() -> None:
        with Tape(dev) as tape:
            out = program(tape)
            tape_checks.check_values(tape)
            tape_checks.check_gradients(tape, out, normal(7, key="g"))

    audit()
    monkeypatch.setattr(kernels, name, slightly_wrong(getattr(kernels, name)))
    assert_raises(AssertionError, audit)


def test_specification_refuses_as_the_kernels_do() -> None:
    device, other = SpecDevice(), SpecDevice()
    x, y = device.buffer(np.ones(3)), device.buffer(np.ones(4))
    for call, kind in (
        (lambda: spec.add(x, y), errors.ShapeError),
        (lambda: spec.add(x, other.buffer(np.ones(3))), errors.DeviceMismatchError),
        (lambda: spec.add(x, np.ones(3)), errors.ArgumentTypeError),
        (lambda: spec.tanh(x, out=y), errors.ShapeError),
        (lambda: spec.matmul(x, y, 1, 3, 2), errors.ShapeError),
        (lambda: spec.slice1d(x, 3, -1, 2), errors.ShapeError),
        (lambda: spec.scale(x, "2"), errors.ArgumentTypeError),
        (lambda: spec.mul_bwd(x, x, x, want=[False, False]), errors.ArgumentError),
        (lambda: spec.add(x, x, a=x), TypeError), (lambda: spec.add(x, x, c=1), TypeError),
        (lambda: spec.add(x), TypeError), (lambda: spec.no_such_operation, AttributeError),
        (lambda: device.zeros(-1), errors.ShapeError),
        (lambda: device.zeros(2**32), errors.SizeOverflowError), (lambda: x.numpy((2, 2)), errors.ShapeError),
        (lambda: x.numpy("a"), errors.ArgumentTypeError),
    ):  # fmt: skip
        assert_raises(kind, call)
    x.release()
    assert_raises(errors.ReleasedError, spec.tanh, x)
