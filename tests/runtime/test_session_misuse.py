"""What people do to a session: NumPy operands, indices, copies, wrong arguments, threads, devices closed beneath it."""

from __future__ import annotations

import copy
import gc
import pickle
import pydoc
import sys
import threading
import weakref

import numpy as np
import pytest

import tlrt
from tlrt import Session, errors, optim
from tlrt.session import Options
from tlrt.tensor import NatRef


@pytest.fixture
def s(s):
    """What was refused is kept alive by the frames of its exception until they are collected."""
    yield s
    gc.collect()


# ---- operands


@pytest.mark.parametrize(
    "two", [2, 2.0, np.float32(2), np.float64(2), np.int64(2), np.array(2.0), np.array(2)], ids=repr
)
def test_numbers_of_numpy_are_numbers(s, two):
    """On either side, and the result is a tensor with a gradient, no array without one."""
    for x in (s.input([1.0, 4.0], requires_grad=True), s.param([1.0, 4.0])):
        for got, expected in [
            (two * x, [2, 8]), (x * two, [2, 8]), (two + x, [3, 6]), (x + two, [3, 6]), (two - x, [1, -2]),
            (x - two, [-1, 2]), (two / x, [2, 0.5]), (x / two, [0.5, 2]),
        ]:  # fmt: skip
            assert isinstance(got, tlrt.TensorRef) and got.requires_grad
            assert got.numpy().tolist() == expected


def test_arrays_are_refused_not_absorbed(s):
    for x in (s.input([[1.0, 2.0]]), s.param([[1.0, 2.0]])):
        before = s.tape.size
        for call in (
            lambda x=x: np.ones((1, 2)) * x, lambda x=x: x * np.ones((1, 2)), lambda x=x: np.ones(2) + x,
            lambda x=x: np.ones((2, 1)) @ x, lambda x=x: x @ np.ones((2, 1)),
        ):  # fmt: skip
            with pytest.raises(
                TypeError, match=r"got ndarray of float64, expected TensorRef or Parameter \(Session.const"
            ):
                call()
        with pytest.raises(TypeError, match="does not support ufuncs"):
            np.exp(x)
        for other in ("a", None, [1.0], 1j):
            with pytest.raises(TypeError, match=r"^add: tensor: got"):
                x + other
            with pytest.raises(TypeError, match=r"^add: tensor: got"):
                other + x
        assert s.tape.size - before <= 1, "refused operations stay on the tape"  # the parameter's leaf
        assert np.array_equal(np.asarray(x), [[1, 2]])
        with pytest.raises(ValueError, match="copy"):
            np.asarray(x, copy=False)


def test_a_number_and_a_wrong_operand_record_nothing(s):
    before = s.tape.size
    with pytest.raises(TypeError):
        s.add(1.0, "a")
    assert s.tape.size == before


def test_parameters_compute_as_tensors_do(s):
    w = s.param([[1.0, 2.0], [3.0, 4.0]], "w")
    value = w.numpy()
    assert np.allclose((w @ w).tanh().numpy(), np.tanh(value @ value))
    for got, expected in [(w + w, 2 * value), (1 - w, 1 - value), (-w, -value), (w**2, value**2), (w[1], value[1])]:
        assert np.array_equal(got.numpy(), expected)
    w.square().reduce_sum().backward()
    assert np.array_equal(w.grad.numpy(), 2 * value)
    assert w.reduce_sum().item() == 10 and w.ndim == 2 and w.size == 4 and w.device is s.device


def test_comparisons(s):
    x, y = s.input([1.0]), s.input([1.0])
    assert x == x and x != y and x in [y, x] and len({x, y}) == 2 and x is not None and x != "a"
    for other in (1, 1.0, np.float32(1), np.ones(1), True):
        with pytest.raises(TypeError, match="==: got a tensor and"):
            _ = x == other
        with pytest.raises(TypeError, match="==: got a tensor and"):
            _ = other != x
    with pytest.raises(TypeError, match="not supported"):
        _ = x < y


@pytest.mark.parametrize("power", [3, 0.5, np.array([2, 2]), "2", None], ids=repr)
def test_powers(s, power):
    with pytest.raises(TypeError, match=r"\*\*: power: got"):
        s.input([1.0]) ** power


def test_a_sequence_along_axis_0(s):
    host = np.arange(12.0).reshape(3, 4)
    x = s.param(host, "x")
    for index in (0, -1, np.int64(1), s.nat(2), slice(1, 3), slice(None), slice(-2, None), slice(2, 1), slice(5, 9)):
        expected = host[index if isinstance(index, slice) else int(index)]
        assert np.array_equal(x[index].numpy(), expected) and x[index].shape == expected.shape
    assert [row.numpy().tolist() for row in x] == host.tolist()
    assert s.input([5.0])[0].shape == () and list(s.zeros((0, 2))) == []
    s.backward(x[1].reduce_sum() + x[1:].reduce_sum())
    assert x.grad.numpy().tolist() == [[0] * 4, [2] * 4, [1] * 4]
    for wrong in (3, -4):
        with pytest.raises(IndexError, match=r"\[\]: index: got"):
            x[wrong]
    for wrong in ((0, 1), 1.0, None, ..., True, [0], np.array([0, 1]), "0"):
        with pytest.raises(TypeError, match=r"\[\]: index: got"):
            x[wrong]
    with pytest.raises(ValueError, match="step"):
        x[::2]
    with pytest.raises(TypeError, match="expected at least one axis"):
        s.full((), 1.0)[0]
    with pytest.raises(TypeError, match="not support item assignment"):
        x[0] = 1
    with pytest.raises(TypeError, match="in: got a tensor"):
        _ = 1.0 in x


def test_numbers_from_tensors(s):
    x = s.input([1.5])
    assert float(x) == 1.5 and int(x) == 1 and f"{x:.2f}" == "1.50" and f"{x}" == str(x)
    for wrong in (s.zeros((2,)), s.zeros((0,))):
        with pytest.raises(TypeError, match="expected one element"):
            float(wrong)
    for call in (lambda: s.scale(x, x), lambda: s.clamp(x, 0, x), lambda: s.axpy(x, x, s.param([2.0]))):
        with pytest.raises(TypeError, match="expected"):
            call()


def test_copies(s):
    x, w, i = s.input([1.0]), s.param([1.0], "w"), s.nat(1)
    assert copy.copy(x) is x and copy.copy(w) is w
    for thing in (x, w, i, s):
        for how in (copy.deepcopy, pickle.dumps):
            with pytest.raises(TypeError, match=f"{type(thing).__name__}: got"):
                how(thing)
    with pytest.raises(TypeError, match="Session: got"):
        copy.copy(s)


def test_help_and_completion(s):
    w = s.param([1.0], "w")
    for thing in (w, s.input([1.0])):
        assert {"relu", "reduce_sum", "matmul", "backward", "grad"} <= set(dir(thing))
        shown = pydoc.render_doc(thing.layer_norm)
        assert "gamma" in shown and "= 1e-06" in shown and "biased variance" in shown
        for wrong, hint in (("sum", "reduce_sum"), ("mean", "reduce_mean"), ("rely", "relu")):
            with pytest.raises(AttributeError, match=f"no attribute or operation '{wrong}'; there is .*{hint}"):
                getattr(thing, wrong)
        assert not hasattr(thing, "_repr_html_")
    assert pydoc.render_doc(Session) and pydoc.render_doc(tlrt.TensorRef)


# ---- arguments


def test_sizes(s):
    assert s.zeros(3).shape == (3,) and s.full(np.int64(2), 1.0).shape == (2,) and s.rand_uniform(2).shape == (2,)
    for make in (s.zeros, s.rand_uniform, s.rand_normal, lambda shape: s.full(shape, 1.0)):
        for wrong, kind in [((-1,), ValueError), ((2**16, 2**16), ValueError), ((2.5,), TypeError), ("3", TypeError)]:
            with pytest.raises(kind, match=r"^\w+: shape: got"):
                make(wrong)


@pytest.mark.parametrize(
    "call",
    [
        lambda s: s.nat(1.5), lambda s: s.set_nat(s.nat(1), "a"), lambda s: s.param([[1], [1, 2]], "w"),
        lambda s: s.param([1.0], "w", requires_grad="no"), lambda s: s.input([1.0], 5),
        lambda s: s.input([1.0], requires_grad="no"), lambda s: s.const(s.input([1.0])), lambda s: s.use(3),
        lambda s: s.const(s.param([1.0])), lambda s: s.dropout(s.input([1.0]), "a"), lambda s: Session(5),
        lambda s: Session(Options()), lambda s: Session(options=5), lambda s: Session(seed=1.5),
        lambda s: Session(requires_grad_by_default="no"), lambda s: Session(fast_kernels=1),
        lambda s: s.param([1.0], "v").set([[1], [1, 2]]), lambda s: s.get_nat(NatRef(s, s.nat_vec([1, 2]).id, s.epoch)),
    ],
)  # fmt: skip
def test_wrong_types_name_the_argument(s, call):
    with pytest.raises(errors.ArgumentTypeError, match=r"^\w+: \w+: got "):
        call(s)
    assert "w" not in s.parameters


def test_a_session_that_is_refused_opens_no_device(monkeypatch):
    from tlrt import session

    monkeypatch.setattr(session, "open_device", lambda *a, **k: pytest.fail("opened a device"))
    with pytest.raises(ValueError, match="seed"):
        Session("cpu", seed=-1)


def test_forged_references(s):
    for id in (-1, 99):
        forged = tlrt.TensorRef(s, id, (1,), s.epoch)
        for call in (lambda x: s.relu(x), lambda x: x.numpy(), lambda x: x.requires_grad, lambda x: x.value):
            with pytest.raises(IndexError, match=f"got {id}"):
                call(forged)
        assert "unreadable" in repr(forged)
        with pytest.raises(IndexError):
            s.get_nat(NatRef(s, id, s.epoch))


# ---- life


def test_values_start_alike_on_every_device():
    """A parameter's first value is an upload: rounded to float32 once, on the specification as elsewhere."""
    for device in ("spec", "cpu"):
        with Session(device) as s:
            assert s.param([0.1], "w").value[0] == np.float32(0.1)
            assert s.use(s.parameters["w"]).numpy()[0] == s.input([0.1]).numpy()[0]


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
        with pytest.raises(errors.ReleasedError):
            call()
    with pytest.raises(errors.ReleasedError, match="w: mirror: got none, expected one: the device was closed"):
        _ = w.value
    assert "unreadable" in repr(y) and repr(s) and repr(w)
    s.reset()
    s.close()
    s.close()
    optimizer.close()


def test_after_close(s):
    w, x = s.param([1.0], "w"), s.input([1.0])
    i, optimizer = s.nat(1), optim.SGD([w])
    s.close()
    for call in (
        lambda: s.relu(x), lambda: x + 1, x.numpy, x.item, lambda: x.requires_grad, lambda: s.nat(1), lambda: s.get_nat(i),
        lambda: s.nat_vec([1]), lambda: s.backward(x), lambda: s.clip_grad_norm(1.0), lambda: optim.SGD([w]), s.collect,
        optimizer.step, lambda: s.full((2,), 1.0), lambda: s.detach(w), lambda: w + 1, s.__enter__,
    ):  # fmt: skip
        with pytest.raises(errors.ReleasedError, match="got a closed session"):
            call()
    assert w.value.tolist() == [1.0] and "earlier step" in repr(x) and "earlier" in repr(i)


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


def test_two_threads_on_one_session_are_told():
    """No result may be mixed up: either an operation is right or somebody is told."""
    wrong, told = [], []
    interval = sys.getswitchinterval()
    with Session("cpu") as s:
        x = s.input(np.arange(4.0))

        def work(k: int) -> None:
            try:
                for _ in range(2000):
                    y = s.scale(x, float(k))
                    if s.tape.nodes[y.id]._plan.values["c"] != k:
                        wrong.append(k)
            except ValueError as error:
                told.append(str(error))

        sys.setswitchinterval(1e-6)
        try:
            threads = [threading.Thread(target=work, args=(k,)) for k in range(1, 5)]
            for t in threads:
                t.start()
            for t in threads:
                t.join()
        finally:
            sys.setswitchinterval(interval)
    assert not wrong
    assert all("expected one thread at a time" in text for text in told)


def test_an_append_by_another_thread_is_noticed(s):
    class Raced(list):
        def append(self, item):
            super().append(item)
            super().insert(len(self) - 1, self[0])

    x = s.input([1.0])
    s.tape.nodes = Raced(s.tape.nodes)
    with pytest.raises(ValueError, match="relu: tape: got an operation of another thread"):
        s.relu(x)
    with pytest.raises(ValueError, match="const: tape: got an operation of another thread"):
        s.const([1.0])


@pytest.mark.parametrize("shape", [(0,), (0, 3), (2, 0), (0, 0)])
def test_nothing_is_a_legal_amount(s, shape):
    w = s.param(np.zeros(shape), "w")
    optimizer = optim.Adam([w])
    for _ in range(2):
        loss = (w * w + 1.0 - w / 2).tanh().reduce_sum()
        assert loss.item() == 0.0
        s.backward(loss)
        assert w.grad.shape == shape and s.clip_grad_norm(1.0).numpy() == 0.0
        optimizer.step()
        assert w.value.shape == shape and "shape=" in repr(s.use(w))
        s.reset()
    optimizer.close()


# ---- fast kernels as an option


@pytest.mark.parametrize("precision", ["fp32", "fp64"])
def test_fast_kernels_stand_for_the_operations(s, precision):
    def run(session):
        w, b = session.param(np.linspace(-1, 1, 15).reshape(5, 3), "w"), session.param(np.ones(5), "b")
        x = session.const(np.linspace(0, 1, 24).reshape(2, 4, 3))
        y = session.linear(w, b, x)
        z = session.matmul(session.reshape(y, (8, 5)), w) @ session.const(np.ones((3, 2)))
        batch = session.matmul(y, session.const(np.ones((5, 2)))) + session.bmm(y, session.zeros((2, 5, 2)))
        loss = session.mse_loss(z, session.zeros((8, 2))) + session.mse_loss(batch, session.zeros((2, 4, 2)))
        session.backward(loss)
        ops = [n.name for n in session.tape.nodes]
        return loss.item(), w.grad.numpy(), b.grad.numpy(), ops

    plain = run(s)
    with Session(s.device, fast_kernels=True, matmul_precision=precision) as fast:
        got = run(fast)
    assert ("linear_fast" in got[3] and "matmul_fast" in got[3]) == (precision == "fp64")
    for a, b in zip(plain[:3], got[:3], strict=True):
        assert np.allclose(a, b, rtol=1e-5)
    if precision == "fp32" and s.device.name != "cuda":
        assert plain[0] == got[0] and all(np.array_equal(a, b) for a, b in zip(plain[1:3], got[1:3], strict=True))


def test_fast_kernels_refuse_and_compare():
    with Session("cpu", fast_kernels=True, matmul_precision="fp64") as s:
        w, b, x = s.param(np.ones((5, 3)), "w"), s.param(np.ones(5), "b"), s.const(np.ones((2, 2, 4)))
        before = s.tape.size
        for call in (lambda: s.linear(w, b, x), lambda: s.matmul(x, w), lambda: s.linear(w, b, s.const(1.0))):
            with pytest.raises(ValueError):
                call()
        assert s.tape.size <= before + 3, "refused operations stay on the tape"
        assert s.linear(w, b, s.const(np.ones(3))).numpy().tolist() == [4.0] * 5

    def program(session):
        return session.mse_loss(session.linear(session.param(np.eye(3), "w"), session.zeros(3), session.rand_normal((4, 3))),
                                session.zeros((4, 3)))  # fmt: skip

    assert tlrt.compare(program, fast_kernels=True, matmul_precision="fp64").ok
