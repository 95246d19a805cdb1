"""Bad input to the tape: what is said, and that nothing is left behind; VJPs that raise half-way, released buffers."""

import gc
import re
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
from numpy.testing import assert_raises, assert_raises_regex

import tlrt
from tests import no_collection, unchanged_memory
from tests.runtime.tape_checks import Kept
from tlrt import errors, kernels
from tlrt import tape as tape_module
from tlrt._operations.slices import axis_of
from tlrt.tape import AnyBuffer, Node, Tape


@pytest.fixture
def tape(dev: tlrt.Device) -> Iterator[Tape]:
    """x (2, 3) = 0, y (3) = 1, s = 2 a scalar, v = 3 a view of x."""
    with Tape(dev) as tape:
        tape.leaf(np.ones((2, 3)), "x")
        tape.leaf(np.ones(3), "y")
        tape.leaf(2.0, "s")
        tape.reshape(0, (6,))
        yield tape


REFUSED: list[tuple[Callable[[Tape], Any], type[Exception], str]] = [
    (lambda t: t.tanh(4), errors.IndexOutOfRangeError, "tanh: id: got 4, expected 0 <= id < 4"),
    (lambda t: t.tanh(-1), errors.IndexOutOfRangeError, "tanh: id: got -1, expected 0 <= id < 4"),
    (lambda t: t.add(0, 2**70), errors.IndexOutOfRangeError, "add: id"),
    (lambda t: t.softmax("x"), errors.ArgumentTypeError, "softmax: id: got str, expected a node id"),
    (lambda t: t.mul(0, 2.0), errors.ArgumentTypeError, "mul: id: got float"),
    (lambda t: t.mul(0, np.ones(3)), errors.ArgumentTypeError, "mul: id: got ndarray of float64"),
    (lambda t: t.exp(True), errors.ArgumentTypeError, "exp: id: got bool"),
    (lambda t: t.node(None), errors.ArgumentTypeError, "node: id: got None"),
    (lambda t: t.get_node(1.0), errors.ArgumentTypeError, "get_node: id: got float"),
    (lambda t: t.value(9), errors.IndexOutOfRangeError, "value: id: got 9"),
    (lambda t: t.detach(9), errors.IndexOutOfRangeError, "detach: id: got 9"),
    (lambda t: t.require_value(0, (3, 2), "op"), errors.ShapeError, r"op: node 0 (x): got shape (2, 3), expected (3, 2)"),
    (lambda t: t.add(0, 3), errors.ShapeError, r"add: b (node 3, reshape): got shape (6,)"),
    (lambda t: t.matmul(0, 0), errors.ShapeError, r"matmul: B: got shape (2, 3), expected (n, p) with n = 3"),
    (lambda t: t.matmul(0, 2), errors.ShapeError, r"matmul: a, b: got shapes (2, 3) and ()"),
    (lambda t: t.linear(0, 1, 2), errors.ShapeError, "linear: x: got a scalar"),
    (lambda t: t.mse_loss(0, 1), errors.ShapeError, r"mse_loss: target (node 1, y): got shape (3,), expected (2, 3)"),
    (lambda t: t.concat_dim0(0, 1), errors.ShapeError, r"concat_dim0: b (node 1, y): got shape (3,)"),
    (lambda t: t.slice_range0(0, 1, 2), errors.IndexOutOfRangeError, "slice_range0: start + len: got 1 + 2"),
    (lambda t: t.slice_range0(0, -1, 1), errors.IndexOutOfRangeError, "slice_range0"),
    (lambda t: t.slice1d(1, 2, 2), errors.IndexOutOfRangeError, "slice1d"),
    (lambda t: t.slice1d(1, 0.5, 2), errors.ArgumentTypeError, "slice1d: start: got float, expected an integer"),
    (lambda t: t.gather_scalar(1, 3), errors.IndexOutOfRangeError, "gather_scalar: i: got 3, expected 0 <= i < 3"),
    (lambda t: t.gather_row(0, -1), errors.IndexOutOfRangeError, "gather_row: i: got -1"),
    (lambda t: t.gather_row(1, 0), errors.ShapeError, r"gather_row: x (node 1, y): got shape (3,), expected 2 axes"),
    (lambda t: t.gather_vec_nat(1, [2**32]), errors.IndexOutOfRangeError, "gather_vec_nat"),
    (lambda t: t.gather_vec_nat(1, [0.5]), errors.ArgumentTypeError, "gather_vec_nat"),
    (lambda t: t.scatter_add_row(0, 1, 2), errors.IndexOutOfRangeError, "scatter_add_row: i: got 2"),
    (lambda t: t.scatter_add(1, 1, [0]), errors.ShapeError, "scatter_add: indices: got 1 elements, expected k = 3"),
    (lambda t: t.cross_entropy(0, [0, 3]), errors.IndexOutOfRangeError, "cross_entropy"),
    (lambda t: t.cross_entropy(0, [0]), errors.ShapeError, r"cross_entropy: labels: got shape (1,), expected (2,)"),
    (lambda t: t.reshape(0, (4, 2)), errors.ShapeError, r"reshape: shape: got (4, 2), expected 6 elements"),
    (lambda t: t.reshape(0, (-1, -1)), errors.ShapeError, "reshape: shape"),
    (lambda t: t.reshape(0, (-2, -3)), errors.ShapeError, "reshape: shape"),
    (lambda t: t.reshape(0, (-1, 0)), errors.ShapeError, "reshape: shape"),
    (lambda t: t.reshape(0, "32"), errors.ArgumentTypeError, "reshape: shape: got str, expected integers"),
    (lambda t: t.broadcast_to(1, (3, 2)), errors.ShapeError, "broadcast_to"),
    (lambda t: t.broadcast_to(0, (3,)), errors.ShapeError, "broadcast_to: shape: got (3,), expected at least 2 axes"),
    (lambda t: t.broadcast_to(1, (3, 3), [1, 1]), errors.ShapeError, "axis_map"),
    (lambda t: t.broadcast_to(2, (3,), [1]), errors.ShapeError, "axis_map"),
    (lambda t: t.permute(0, (0, 0)), errors.ArgumentError, "permute: axes: got (0, 0), expected a permutation of 0..1"),
    (lambda t: t.reduce_sum(0, -3), errors.ArgumentError, "reduce_sum: axis: got -3, expected -2 <= axis < 2"),
    (lambda t: axis_of("flip", -3, 2), errors.ArgumentError, "flip: axis: got -3, expected -2 <= axis < 2"),
    (lambda t: axis_of("flip", 2, 2), errors.ArgumentError, "flip: axis: got 2, expected -2 <= axis < 2"),
    (lambda t: axis_of("flip", 0, 0), errors.ArgumentError, "flip: axis: got 0, expected no axis of a scalar"),
    (lambda t: t.reduce_sum(0, 2), errors.ArgumentError, "reduce_sum: axis: got 2, expected -2 <= axis < 2"),
    (lambda t: t.reduce_mean(0, "a"), errors.ArgumentTypeError, "reduce_mean: axis: got str"),
    (lambda t: t.reduce_max_axis0(t.leaf(np.ones((0, 2)))), errors.ShapeError, "reduce_max_axis0"),
    (lambda t: t.scale(0, [1.0]), errors.ArgumentTypeError, "scale"),
    (lambda t: t.scale(0, np.ones(2)), errors.ArgumentTypeError, "scale"),
    (lambda t: t.scale(0, "2"), errors.ArgumentTypeError, "scale"),
    (lambda t: t.clamp(0, 1.0, 0.0), errors.ArgumentError, "clamp"),
    (lambda t: t.conv2d(0, 1, 0), errors.ShapeError, r"conv2d: w (node 0, x): got shape (2, 3), expected 4 axes"),
    (lambda t: t.conv(0, 1, 0), errors.ShapeError, "conv: w: got shape (2, 3)"),
    (lambda t: t.max_pool(0, 2, 0), errors.ArgumentError, "max_pool"),
    (lambda t: t.max_pool(0, 9, 1), errors.ShapeError, "max_pool"),
    (lambda t: t.max_pool(0, (1, 2, 3), 1), errors.ShapeError, "max_pool: x (node 0, x): got shape (2, 3)"),
    (lambda t: t.avg_pool(0, 2, 1, -1), errors.ShapeError, "avg_pool"),
    (lambda t: t.irfft1d_packed(t.leaf(np.ones((1, 3, 2))), 7), errors.ShapeError, "irfft1d_packed: spec"),
    (lambda t: t.flash_attention(t.leaf([[[1.0]]]), None, 99), errors.IndexOutOfRangeError, "flash_attention: id: got 99"),
    (lambda t: t.flash_attention(0, 0, 0), errors.ShapeError, r"flash_attention: q (node 0, x): got shape (2, 3)"),
    (lambda t: t.backward(0), errors.ArgumentError, "seed: missing, expected one of shape (2, 3), as the output node 0 (x)"),
    (lambda t: t.backward(0, np.ones((3, 2))), errors.ShapeError, "got shape (3, 2), expected (2, 3) of the output node 0 (x)"),
    (lambda t: t.backward(9), errors.IndexOutOfRangeError, "backward: id: got 9"),
    (lambda t: t.backward_sparse(2, [9]), errors.IndexOutOfRangeError, "backward: wanted: id: got 9"),
    (lambda t: t.backward_sparse(2, [-1]), errors.IndexOutOfRangeError, "backward: wanted: id: got -1"),
    (lambda t: t.backward_from([None]), errors.ArgumentError, "backward_from: gradients: got 1, expected 4"),
    (lambda t: t.backward_from([None] * 4, 5), errors.IndexOutOfRangeError, "backward_from: first: got 5, expected 0 <= first"),
    (lambda t: t.backward_from([None] * 4, 1.0), errors.ArgumentTypeError, "backward_from: first: got float"),
    (lambda t: t.backward_from([None, np.ones(3), None, None]), errors.ArgumentTypeError, "node 1 (y): cotangent: got ndarray"),
    (lambda t: t.add_grad([None], 0, t.upload(np.ones((2, 3)))), errors.ArgumentError, "add_grad: gradients: got 1"),
    (lambda t: t.add_grad([None] * 4, 1, t.upload([1.0])), errors.ShapeError, "add_grad: node 1 (y)"),
    (lambda t: t.add_grad([None] * 4, -1, t.upload([1.0])), errors.IndexOutOfRangeError, "add_grad: id: got -1"),
    (lambda t: t.backward_step([None], 0), errors.ArgumentError, "backward_step"),
    (lambda t: t.unary("mine", 0, (2, 3), (5,), lambda x: x.copy(), lambda x, g: g), errors.ShapeError, "mine: AnyBuffer"),
    (lambda t: t.unary("mine", 0, (3, 2), (6,), lambda x: x, lambda x, g: g), errors.ShapeError, "mine: node 0 (x)"),
    (lambda t: t.add_node(Node("mine", t.upload([1.0]), True, [7])), errors.IndexOutOfRangeError, "mine: id: got 7"),
    (lambda t: t.add_node(Node("mine", t.upload([1.0]), True, [0])), errors.ArgumentError, "add_node: mine: backward: missing"),
]  # fmt: skip


@pytest.mark.parametrize(
    ("call", "kind", "text"), REFUSED, ids=[f"{i}-{t[:24]}" for i, (_, _, t) in enumerate(REFUSED)]
)
def test_refused(tape: Tape, call: Callable[[Tape], Any], kind: type[Exception], text: str) -> None:
    """Says where and why, and leaves nothing: neither a node nor, once the exception is gone, a buffer."""
    size, mark = tape.size, tape._mark()
    with unchanged_memory(tape.device):
        assert_raises_regex(kind, re.escape(text), call, tape)
        assert [n for n in tape.nodes[size:] if n.name != "leaf"] == []  # the call's own
        tape._undo(mark)
        gc.collect()
    assert np.array_equal(tape.backward(tape.reduce_sum(3))[0].numpy(), np.ones((2, 3))), "usable afterwards"


def test_errors_name_the_nodes(tape: Tape) -> None:
    with pytest.raises(errors.ShapeError) as caught:
        tape.matmul(0, 0)
    assert caught.value.__notes__ == ["in matmul of node 0 (x: (2, 3)), node 0 (x: (2, 3))"]


class Interrupt(BaseException):
    """What a signal handler raises."""


class Failing:
    """``tlrt.kernels``, of which the call after `left` more raises; none does while that is None."""

    def __init__(self, kind: type[BaseException]) -> None:
        self.kind = kind
        self.left: int | None = None

    def __getattr__(self, name: str) -> Callable[..., Any]:
        function = getattr(kernels, name)

        def run(*arguments: Any, **keywords: Any) -> Any:
            if self.left == 0:
                raise self.kind("half-way")
            self.left = None if self.left is None else self.left - 1
            return function(*arguments, **keywords)

        return function if name == "share" else run


@pytest.mark.parametrize("kind", [RuntimeError, Interrupt, KeyboardInterrupt, errors.OutOfMemoryError])
@pytest.mark.parametrize("after", range(12))
def test_a_vjp_that_raises_leaves_nothing(
    tape: Tape, monkeypatch: pytest.MonkeyPatch, kind: type[BaseException], after: int
) -> None:
    """Whichever call it is that raises; no collector runs and the exception, with its frames, is still alive."""
    failing = Failing(kind)
    monkeypatch.setattr(tape, "kernels", failing)
    a = tape.mul(0, 0)
    b = tape.sub(tape.tanh(a), tape.concat_dim0(tape.slice_range0(a, 0, 1), tape.slice_range0(0, 1, 1)))
    c = tape.linear(0, tape.leaf(np.ones(2)), tape.exp(b))
    loss = tape.mse_loss(c, tape.add(c, c))
    nodes = list(tape.nodes)

    def seeds() -> list[AnyBuffer | None]:
        given: list[AnyBuffer | None] = [None] * tape.size
        given[loss], given[0] = tape.upload(1.0), tape.upload(np.ones((2, 3)))
        return given

    passes: list[Callable[[], Any]] = [
        lambda: tape.backward(loss), lambda: tape.backward_sparse(loss), lambda: tape.backward_from(seeds()),
    ]  # fmt: skip
    kept = []
    gc.collect()
    with no_collection():
        for run in passes:
            with unchanged_memory(tape.device):
                failing.left = after
                with pytest.raises(kind, match="half-way") as caught:
                    run()
                failing.left = None
                kept.append(caught.value)
            if isinstance(caught.value, Exception):
                assert "in the backward pass, at node" in caught.value.__notes__[-1]
        assert tape.nodes == nodes
        assert np.isfinite(tape.backward(loss)[0].numpy()).all(), "usable afterwards"


@pytest.mark.parametrize("kind", [RuntimeError, Interrupt])
def test_an_operation_that_raises_leaves_nothing(
    tape: Tape, monkeypatch: pytest.MonkeyPatch, kind: type[BaseException]
) -> None:
    """Half-way through a composed operation."""
    x = tape.leaf(np.ones((3, 4)))
    w = tape.leaf(np.ones((4, 4)))
    size, live = tape.size, tape.device.memory().live_buffers
    real = tape._apply
    for limit in range(6):
        left = [limit]

        def failing(*arguments: Any, left: list[int] = left, **keywords: Any) -> int:
            left[0] -= 1
            if left[0] < 0:
                raise kind("half-way")
            return real(*arguments, **keywords)

        monkeypatch.setattr(tape, "_apply", failing)
        assert_raises(kind, tape.multi_head_attention, x, w, w, w, w, 2, mask=np.tri(3, dtype=bool))
        assert (tape.size, tape.device.memory().live_buffers) == (size, live)


def yields_and_raises(tape: Tape, g: AnyBuffer) -> Iterator[tuple[int, AnyBuffer]]:
    yield 0, g.copy()
    raise ZeroDivisionError


BY_HAND: list[tuple[Callable[[Tape, AnyBuffer], Any], type[Exception], str]] = [
    (lambda t, g: [(1, t.upload(np.ones(3)))], errors.ArgumentError, "mine: backward: got a contribution to 1, expected parents"),
    (lambda t, g: [(0, t.upload(np.ones(6)))], errors.ShapeError, "mine: parent 0: cotangent: got shape (6,), expected (2, 3)"),
    (lambda t, g: [(0, g.buffer)], errors.ArgumentTypeError, "mine: parent 0: cotangent: got Buffer"),
    (lambda t, g: [(0, g.copy()), (99, g.copy())], errors.ArgumentError, "contribution to 99"),
    (lambda t, g: [(0, g.copy()), 5], TypeError, ""),
    (lambda t, g: None, TypeError, ""), (yields_and_raises, ZeroDivisionError, ""),
    (lambda t, g: [(0, Tape("spec").upload(np.ones((2, 3))))], errors.DeviceMismatchError, "mine: parent 0"),
]  # fmt: skip


@pytest.mark.parametrize(("rule", "kind", "text"), BY_HAND)
def test_wrong_vjps_made_by_hand(tape: Tape, rule: Callable[..., Any], kind: type[Exception], text: str) -> None:
    """They are refused with the node's name; what they made is released, what is the tape's is not."""
    out = tape.add_node(Node("mine", tape.upload(np.ones((2, 3))), True, [0], lambda g: rule(tape, g)))
    gc.collect()
    live = tape.device.memory().live_buffers
    with pytest.raises(kind, match=re.escape(text) or None) as caught:
        tape.backward(out, np.ones((2, 3)))
    assert f"at node {out}: Node('mine'" in caught.value.__notes__[-1]
    assert tape.device.memory().live_buffers == live and tape.value(0).numpy().all()


def test_released_buffers_are_errors(tape: Tape) -> None:
    y = tape.exp(0)
    seed = tape.upload(np.ones((2, 3)))
    seed.release()
    assert_raises(errors.ReleasedError, tape.backward, y, seed)
    assert_raises(errors.ReleasedError, seed.share)
    tape.value(y).release()
    for use in (lambda: tape.tanh(y), lambda: tape.reshape(y, (6,)), lambda: tape.backward(y, np.ones((2, 3)))):
        assert_raises(errors.ReleasedError, use)
    assert np.array_equal(tape.value(3).numpy(), np.ones(6))
    tape.value(3).release()
    assert np.array_equal(tape.value(0).numpy(), np.ones((2, 3))), "a view has a handle of its own"


def test_released_tape(tape: Tape) -> None:
    tape.release()
    uses: list[Callable[[], Any]] = [
        lambda: tape.leaf(1.0), lambda: tape.tanh(0), lambda: tape.backward(0), lambda: tape.value(0),
        lambda: tape.backward_from([]), lambda: tape.detach(0), lambda: tape.reshape(0, (6,)), lambda: tape.node(0),
    ]  # fmt: skip
    for use in uses:
        assert_raises_regex(errors.ReleasedError, "got a released tape", use)
    assert "released" in repr(tape)


def test_buffers_of_other_devices(tape: Tape) -> None:
    with tlrt.Device.new("cpu") as other:
        x = AnyBuffer.upload(np.ones((2, 3)), other)
        for use in (lambda: tape.leaf(x, "foreign"), lambda: tape.backward(0, x), lambda: tape.add_node(Node("n", x))):
            assert_raises(errors.DeviceMismatchError, use)
        assert x.numpy().all(), "a refused call takes nothing over"
        assert_raises(errors.DeviceMismatchError, tape.backward_from, [x, None, None, None])
        x.release()
    assert_raises_regex(errors.ArgumentTypeError, "Tape: device: got int", Tape, 3)


def test_hand_made_nodes_are_refused_by_name(tape):
    x, ones = tape.leaf([1.0, 2.0], "x"), tape.device.full(2, 1.0)
    assert_raises_regex(TypeError, "mine: forward: got None", tape.unary, "mine", x, (2,), (2,), lambda b: None, None)
    assert_raises_regex(TypeError, "Node: name: got None", Node, None, AnyBuffer((2,), ones))
    y = tape.unary("mine", x, (2,), (2,), lambda b: ones, lambda b, g: None)
    assert_raises_regex(TypeError, "mine: backward: got None", tape.backward, y, [1.0, 1.0])
    assert "mine" in tape.table()


def test_a_vjp_may_add_nodes(tape):
    """The gradients are those of the nodes there were."""
    x = tape.leaf([1.0, 2.0], "x")
    y = tape.unary("mine", x, (2,), (2,), lambda b: b.copy(), lambda b, g: tape.nodes[tape.relu(x)].buffer.copy())
    found = tape.backward(y, [1.0, 1.0])
    assert [g.numpy().tolist() for g in found[x:]] == [[1.0, 2.0], [1.0, 1.0]] and tape.size == len(found) + 1
    for g in found:
        g.release()


def test_what_a_pass_made_is_released_by_it(dev: tlrt.Device, monkeypatch: pytest.MonkeyPatch) -> None:
    """Not by the garbage collector, which may come late: what is live are the values and what was given out."""
    with Tape(dev) as tape:
        kept, refused = Kept(tape), 0
        x, frozen, other = (
            tape.leaf(np.ones((2, 3))), tape.leaf(np.ones((2, 3)), "frozen", False), tape.leaf([1.0, 2.0]),
        )  # fmt: skip
        a = tape.mul(tape.add(x, x), tape.sub(x, frozen))
        b = tape.reshape(tape.reshape(a, (6,)), (2, 3))
        hand = tape.unary("mine", b, (2, 3), (2, 3), lambda b: b, lambda b, g: g)
        rule = lambda g: [(hand, g.copy()), (frozen, g.copy()), (hand, g), *((99, g.copy()) for _ in range(refused))]
        both = tape.add_node(Node("both", tape.upload(np.ones((2, 3))), True, (hand, frozen), rule, [dev.zeros(1)]))
        loss = tape.mse_loss(tape.add(both, a), x)
        values = kept.live

        def seeds() -> list[AnyBuffer | None]:
            given: list[AnyBuffer | None] = [None] * tape.size
            given[loss], given[a], given[b] = (
                tape.upload(1.0), tape.upload(np.ones((2, 3))), tape.upload(np.ones((2, 3))),
            )  # fmt: skip
            return given

        def one(id: int) -> list[AnyBuffer | None]:
            grads: list[AnyBuffer | None] = [None] * tape.size
            for _ in range(2):
                tape.add_grad(grads, id, tape.upload(np.ones((2, 3))))
            return grads

        passes: list[Callable[[], Any]] = [
            lambda: tape.backward(loss), lambda: tape.backward_from(seeds()), lambda: tape.backward_from(seeds(), a + 1),
            lambda: list(tape.backward_sparse(loss).values()), lambda: one(a), lambda: one(frozen),
            lambda: list(tape.backward_sparse(loss, [x, a, other]).values()),
        ]  # fmt: skip
        for run in passes:
            given = [g for g in run() if g is not None]
            assert kept.live - values == {id(g.buffer) for g in given}
            tape_module.release_gradients(given)
            assert kept.live == values
        wrong: list[Callable[[], Any]] = [
            lambda: tape.backward_from(seeds()[1:]), lambda: tape.add_grad([], x, tape.upload(np.ones((2, 3)))),
            lambda: tape._seeded(loss, None, tape.nodes[:loss]), lambda: tape.backward_sparse(loss, [x, other]),
            lambda: tape.backward(loss), lambda: tape.backward_from(seeds()),
            lambda: tape.unary("mine", x, (2, 3), (5,), lambda b: b.copy(), None),
        ]  # fmt: skip

        def zeros(*_: Any) -> AnyBuffer:
            raise errors.OutOfMemoryError("planted")

        monkeypatch.setattr(AnyBuffer, "zeros", zeros)
        for run in wrong:
            assert_raises(errors.TorchleanError, run)
            assert kept.live == values
        refused = 1
        assert_raises_regex(errors.ArgumentError, "both: backward: got a contribution to 99", tape.backward, loss)
        assert kept.live == values
        dev.ignore(kept)
    assert not kept.live
    kept.made.clear()
