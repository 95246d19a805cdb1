"""The life of a session: refused construction, forged references, closing, garbage collection, use from two threads."""

import gc
import itertools
import weakref
from concurrent.futures import ThreadPoolExecutor
from functools import partial

import numpy as np
import pytest
from numpy.testing import assert_raises, assert_raises_regex

import tlrt
from audit.injection import interrupt
from tests import frequent_switches
from tests.runtime.tape_checks import Kept
from tlrt import Session, errors, optim
from tlrt._operations.base import atomic
from tlrt.errors import ReleasedError
from tlrt.tensor import NatRef


@pytest.fixture
def s(s):
    """What was refused is kept alive by the frames of its exception until they are collected."""
    yield s
    gc.collect()


def test_a_session_that_is_refused_opens_no_device(monkeypatch):
    monkeypatch.setattr("tlrt.session.open_device", lambda *a, **k: pytest.fail("opened a device"))
    assert_raises_regex(ValueError, "seed", Session, "cpu", seed=-1)


def test_forged_references(s):
    for id in (-1, 99):
        forged = tlrt.TensorRef(s, id, (1,), s.epoch)
        for call in (lambda x: s.relu(x), lambda x: x.numpy(), lambda x: x.requires_grad, lambda x: x.value):
            assert_raises_regex(IndexError, f"got {id}", call, forged)
        assert "unreadable" in repr(forged)
        assert_raises(IndexError, s.get_nat, NatRef(s, id, s.epoch))


def test_a_device_closed_under_a_session():
    device = tlrt.device("cpu", new=True)
    s = Session(device)
    w = s.param([1.0], "w")
    y = s.mul(w, w)
    optimizer = optim.Adam([w])
    s.backward(y)
    optimizer.step()
    device.close()
    for call in (lambda: s.mul(y, y), y.numpy, optimizer.step, lambda: s.zeros(2)):
        assert_raises(errors.ReleasedError, call)
    with pytest.raises(errors.ReleasedError, match=r"a live one \(backward and reset release the gradients before\)"):
        y.numpy()
    with pytest.raises(errors.ReleasedError, match="w: mirror: got none, expected one: the device was closed"):
        _ = w.value
    assert "unreadable" in repr(y) and repr(s) and repr(w)
    s.reset()
    s.close()
    s.close()
    optimizer.close()


def test_what_is_over_or_was_never_made_is_shown():
    """By a debugger too, which must not raise beside the error that it shows."""
    device, reference = tlrt.Device.new("cpu"), tlrt.spec.SpecDevice()
    s, buffers = Session(device), [make for d in (device, reference) for make in (d.zeros(2), d.indices([1]))]
    x, i, w, captured = s.const([1.0]), s.nat_vec([1]), s.param([1.0], "w"), s.capture(lambda: s.zeros(1))
    result = captured.outputs
    assert [repr(b) for b in buffers[2:]] == ["SpecBuffer(length=2, [0, 0])", "SpecIndexBuffer(length=1, [1])"]
    for over in (*buffers, captured):
        over.close() if over is captured else over.release()
    s.close(), device.close()
    shown = [repr(thing) for thing in (*buffers, x, i, w, captured, s, s.tape, device)]
    assert shown == [
        "Buffer(released, device='cpu')", "IndexBuffer(released, device='cpu')", "SpecBuffer(released)",
        "SpecIndexBuffer(released)", "TensorRef(shape=(1,), device='cpu', of an earlier step)", "NatVecRef(of an earlier step)",
        "Parameter('w', shape=(1,), host only)", "Captured('<lambda>', closed)", "Session('cpu', closed)",
        "Tape(Device('cpu', closed), released)", "Device('cpu', closed)",
    ]  # fmt: skip
    assert repr(result).startswith("CapturedTensor(unreadable: numpy: buffer: got a released buffer of shape (1,), ")
    assert repr(tlrt.Device.__new__(tlrt.Device)) == "Device(?)"
    assert repr(tlrt.Buffer.__new__(tlrt.Buffer)) == "Buffer(unreadable: AttributeError, device='?')"


def test_after_close(s):
    w, x = s.param([1.0], "w"), s.input([1.0])
    i, optimizer = s.nat(1), optim.SGD([w])
    s.close()
    for call in (
        lambda: s.relu(x), lambda: x + 1, x.numpy, x.item, lambda: x.requires_grad, lambda: s.nat(1), lambda: s.get_nat(i),
        lambda: s.nat_vec([1]), lambda: s.backward(x), lambda: s.clip_grad_norm(1.0), lambda: optim.SGD([w]), s.collect,
        optimizer.step, lambda: s.full((2,), 1.0), lambda: s.detach(w), lambda: w + 1, s.__enter__,
    ):  # fmt: skip
        assert_raises_regex(errors.ReleasedError, "got a closed session", call)
    assert w.value.tolist() == [1.0] and "earlier step" in repr(x) and "earlier" in repr(i)


def test_errors_name_what_was_called(s):
    """After a close, and where an argument is refused."""
    w = s.param([1.0], "w")
    vector, optimizer = s.nat_vec([1]), optim.SGD([w])
    refused = {
        "nat": lambda: s.nat(-1), "set_nat": lambda: s.set_nat(s.nat(1), -1), "nat_vec": lambda: s.nat_vec([-1]),
        "set_nat_vec": lambda: s.set_nat_vec(vector, [-1]),
    }  # fmt: skip
    for op, call in refused.items():
        assert_raises_regex(errors.IndexOutOfRangeError, f"^{op}: ", call)
    state, tensor = optimizer.state(), s.reduce_sum(w)
    s.close()
    closed = {
        "param": lambda: s.param([1.0]), "input": lambda: s.input([1.0]), "full": lambda: s.full((2,), 1.0),
        "zeros": lambda: s.zeros(2), "nat": lambda: s.nat(1), "nat_vec": lambda: s.nat_vec([1]), "collect": s.collect,
        "backward": lambda: s.backward(tensor), "clip_grad_norm": lambda: s.clip_grad_norm(1.0), "with": s.__enter__,
        "step": optimizer.step, "state": optimizer.state, "load_state": lambda: optimizer.load_state(*state),
        "capture": lambda: s.capture(lambda: w), "reset": s.reset,
    }  # fmt: skip
    for op, call in closed.items():
        assert_raises_regex(errors.ReleasedError, f"^{op}: session: got a closed session", call)


def test_a_session_that_is_dropped_goes_with_all_it_held():
    device = tlrt.device("cpu", new=True)

    def use() -> weakref.ref[Session]:
        s = Session(device)
        w = s.param(np.ones(100), "w")
        s.backward(s.reduce_sum(s.mul(w, w)))
        optim.Adam([w]).step()
        return weakref.ref(s)

    gone = use()
    gc.collect()
    assert gone() is None and device.memory().live_buffers == 0
    device.close()


def test_two_threads_on_one_session_compute_right_or_raise():
    """No result may be mixed up: either an operation is right or it raises."""
    wrong, messages = [], []
    with Session("cpu") as s:
        x = s.input(np.arange(4.0))

        def work(k: int) -> None:
            try:
                for _ in range(2000):
                    y = s.scale(x, float(k))
                    if s.tape.nodes[y.id]._plan.values["c"] != k:
                        wrong.append(k)
            except ValueError as error:
                messages.append(str(error))

        with frequent_switches(), ThreadPoolExecutor(4) as pool:
            list(pool.map(work, range(1, 5)))
    assert not wrong and all("expected one thread at a time" in text for text in messages)


def test_an_append_by_another_thread_is_noticed(s):
    class Raced(list):
        def append(self, item):
            super().append(item)
            super().insert(len(self) - 1, self[0])

    x = s.input([1.0])
    s.tape.nodes = Raced(s.tape.nodes)
    assert_raises_regex(ValueError, "relu: tape: got an operation of another thread", s.relu, x)
    assert_raises_regex(ValueError, "const: tape: got an operation of another thread", s.const, [1.0])


def test_a_reference_to_what_was_undone_stays_one(s):
    """It never becomes another tensor, and what a refused operation records takes no room until the next one."""
    x, kept = s.input([-1.0, 2.0], requires_grad=True), []

    class Program:
        def __array__(self, dtype=None, copy=None):
            kept.append(s.relu(x))
            kept.append(s.input([3.0], requires_grad=True))
            raise ZeroDivisionError

    for i in range(1, 4):
        size = s.tape.size
        assert_raises(ZeroDivisionError, atomic(lambda self: self.add(self.const([1.0]), self.const(Program()))), s)
        assert s.tape.size == size
        for ref in kept:
            assert_raises((IndexError, ReleasedError), s.tanh, ref)
        y = s.reduce_sum(s.scale(x, 2.0))
        assert y.id not in {ref.id for ref in kept} and len(kept) == 2 * i
        for ref in kept:
            assert_raises(ReleasedError, ref.numpy)
            assert_raises(ReleasedError, s.tanh, ref)
    s.backward(y)
    assert x.grad.numpy().tolist() == [2.0, 2.0] and y.numpy() == 2.0
    for g in s.tape.backward(y.id):
        g.release()
    s.reset()
    assert s.input([1.0]).id == 0


def test_an_operation_undone_after_a_reset_takes_nothing_of_the_new_step(s):
    """What another thread computes in between stays, with its parameters' gradients."""
    w = s.param([3.0], "w")

    class Program:
        def __array__(self, dtype=None, copy=None):
            s.reset()
            self.y = s.square(w)
            raise ZeroDivisionError

    program = Program()
    assert_raises(ZeroDivisionError, atomic(lambda self: self.add(self.const([1.0]), self.const(program))), s)
    assert s.backward(program.y)[w].numpy().tolist() == [6.0]


def test_a_parameter_of_an_operation_undone_is_used_anew(s):
    """Its leaf goes with the operation, and that of a parameter used before stays."""
    w, v = s.param([[1.0, 2.0]], "w"), s.param([3.0], "v")
    before = s.use(v)
    assert_raises(ZeroDivisionError, atomic(lambda self: (self.square(w), 1 // 0)), s)
    assert s.use(v).id == before.id
    squares = s.square(v)  # has the place on the tape that the leaf had
    s.backward(s.reduce_sum(s.square(w)) + s.reduce_sum(squares))
    assert w.grad.numpy().tolist() == [[2.0, 4.0]] and v.grad.numpy().tolist() == [6.0]


def test_a_parameter_used_during_a_reset_belongs_to_the_step_before(s):
    w, append = s.param([2.0], "w"), s.tape._append

    def raced(*arguments):
        s.tape._append = append
        s.reset()
        return append(*arguments)

    s.tape._append = raced
    leaf = s.use(w)
    assert_raises(ReleasedError, s.square, leaf)
    assert s.backward(s.square(w))[w].numpy().tolist() == [4.0]


@pytest.mark.parametrize("what", ["reset", "undo"])
def test_nodes_dropped_by_another_thread_are_noticed(s, what):
    class Raced(list):
        def append(self, item):
            super().append(item)
            s.reset() if what == "reset" else s._undo(mark)

    for operation in (s.relu, lambda x: s.const([1.0])):
        x = s.input([1.0])
        mark = s._mark()
        s.tape.nodes = Raced(s.tape.nodes)
        assert_raises_regex(ValueError, "tape: got an operation of another thread", operation, x)
        s.reset()
    w = s.param([2.0], "w")
    s.use(w)
    mark = s._mark()
    y = s.square(w)
    step = s.tape._step
    s.tape._step = lambda *arguments: (step(*arguments), s.reset() if what == "reset" else s._undo(mark))
    assert_raises_regex(ValueError, "backward: tape: got an operation of another thread", s.backward, y)
    del s.tape._step


def test_a_plan_is_made_of_the_shapes_that_it_is_kept_for(s):
    """Also where another thread clears the tape while the plan is looked up: a later operation would have its shape."""

    class Plans(dict):
        def get(self, key, default=None):
            if not self:
                s.reset()
                s.const(np.ones((3, 2)))
            return super().get(key, default)

    x, s.tape._plans = s.const(np.ones((2, 3))), Plans()
    assert_raises_regex(ValueError, "tape: got an operation of another thread", s.square, x)
    s.reset()
    assert len(s.tape._plans) == 1 and s.square(s.const(np.ones((2, 3)))).shape == (2, 3)


def test_a_parameter_that_another_thread_puts_on_the_tape_too(s):
    w, append = s.param([2.0], "w"), s.tape._append

    def raced(*arguments):
        s.tape._append = append
        s.use(w)
        return append(*arguments)

    for value in (2.0, 3.0):
        w.set([value])
        s.tape._append = raced
        assert_raises_regex(ValueError, "use: tape: got an operation of another thread", s.use, w)
        assert s.backward(s.square(w))[w].numpy().tolist() == [2 * value]


def test_a_gradient_asked_of_nodes_that_are_undone_meanwhile(s):
    """Another thread undoes them: before it has released them the gap is filled, or between two looks of backward."""
    w = s.param([2.0], "w")
    s.use(w)
    tape = s.tape
    for moment in ("filled", "seeded"):
        size, undo, y = tape.size, partial(tape._undo, tape._mark()), s.square(w)
        seed = tape._seed
        if moment == "filled":
            nodes = tape.nodes
            tape.nodes, tape._undone = nodes[:size], nodes  # as _undo does before it releases
            s.relu(w)
            assert_raises_regex(ValueError, "got one that was undone", s.backward, y)
            continue
        tape._seed = lambda *arguments, seed=seed, undo=undo: (seed(*arguments), undo(), tape._fill_gap())[0]
        assert_raises_regex(ValueError, "backward: tape: got an operation of another thread", s.backward, y)
        del tape._seed
    y = s.square(w)
    assert_raises_regex(ValueError, "another thread", tape._seeded, y.id, None, tape.nodes[: y.id])


def test_a_view_of_a_node_that_is_undone_meanwhile(s):
    x = s.input([1.0, 2.0], requires_grad=True)
    size, y = s.tape.size, s.square(x)
    node, nodes = s.tape.node, s.tape.nodes

    def undo(*arguments):
        """As _undo does before it releases."""
        found = node(*arguments)
        s.tape.nodes, s.tape._undone = nodes[:size], nodes
        return found

    s.tape.node = undo
    assert_raises_regex(ValueError, "got an operation of another thread", s.tape._view, y.id, (2, 1), "reshape")
    del s.tape.node


def test_an_interrupted_close_is_none_or_all(dev):
    """Everything goes in one act, captured steps and what programs still refer to included."""
    for place in itertools.count():
        s = Session(dev)
        w = s.param([2.0, 3.0], "w")
        step = s.capture(lambda s=s, w=w: s.square(w))
        kept = s.const([1.0]).value
        before = dev.memory().live_buffers
        where = interrupt(s.close, place)
        assert dev.memory().live_buffers == (0 if s._closed else before) and kept.buffer.released is s._closed, where
        assert step.closed is s._closed
        s.close()
        if where is None:
            break
    assert place > 10 and dev.memory().live_buffers == 0


@pytest.mark.parametrize("kind", [MemoryError, errors.OutOfMemoryError, errors.CudaError, KeyboardInterrupt])
def test_a_close_that_cannot_read_the_parameters(s, monkeypatch, kind):
    """Where memory is short nothing is lost, and it can be repeated; a device that fails takes the values with it."""
    w = s.param([1.0], "w")
    w.mirror.fill(2.0)
    w.updated()

    def read(self):
        raise kind("planted")

    with monkeypatch.context() as patched:
        patched.setattr(type(w), "value", property(read))
        assert_raises_regex(kind, "planted", s.close)
    assert s._closed is (kind is errors.CudaError)
    if not s._closed:
        s.close()
        assert w.value.tolist() == [2.0]


def test_what_a_step_made_goes_with_it(dev):
    """At once, whatever refers to it: with a reset, with the gradients, with the next backward pass, with the session."""
    with Session(dev) as s:
        kept = Kept(s.tape)
        w, x = s.param([2.0], "w"), s.input([3.0], requires_grad=True)
        s.param([4.0], "unreached")
        y = s.mul(s.square(w), x)
        values = kept.live
        for _ in range(2):
            s.backward(y)
            gradients = {id(g.buffer) for g in (*s.gradients._by_parameter.values(), x.grad)}
            assert len(gradients) == 3 and kept.live == values | gradients
        s.gradients.release()
        assert kept.live == values
        s.backward(y)
        s.reset()
        assert kept.live == {id(w.mirror)}
        sparse, y = s.tape._sparse, s.square(w)
        s.tape._sparse = lambda *arguments: (sparse(*arguments), s.reset())[0]
        assert_raises_regex(ValueError, "backward: tape: got an operation of another thread", s.backward, y)
        assert w.grad is None and not s.gradients and kept.live == {id(w.mirror)}
        del s.tape._sparse
        s.backward(s.square(w))
        dev.ignore(kept)
    assert not kept.live
