"""What a captured step refuses, when it is made and when it is replayed; nothing leaks, and the session goes on."""

import copy
import gc
import pickle
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from numpy.testing import assert_raises, assert_raises_regex

import tlrt
from tests import run_in_thread, unchanged_memory
from tests.runtime.acted_graphs import act_graphs
from tlrt import Session, kernels, nn, optim
from tlrt._binding import handles
from tlrt.errors import (
    ArgumentError,
    ArgumentTypeError,
    CaptureError,
    DeviceMismatchError,
    IndexOutOfRangeError,
    InterruptedCallError,
    ReleasedError,
    ShapeError,
    TorchleanError,
)

X = np.arange(6, dtype=np.float32).reshape(2, 3)


class Program:
    """A small step with a hole in it, where a test does what is refused."""

    def __init__(self, device: tlrt.Device) -> None:
        self.session = s = Session(device, seed=2)
        self.layer = nn.Linear(s, 3, 2, name="layer")
        self.optimizer = optim.Adam(self.layer.parameters(), lr=0.1)
        self.hole: Callable[..., Any] = lambda x, loss: None

    def step(self, x: Any) -> Any:
        s = self.session
        loss = s.reduce_mean(s.square(s.dropout(self.layer(s.const(x)), 0.5)))
        s.backward(loss)
        self.hole(x, loss)
        self.optimizer.step()
        return loss

    def close(self) -> None:
        self.optimizer.close()
        self.session.close()


@pytest.fixture
def program(dev: tlrt.Device) -> Any:
    made = Program(dev)
    yield made
    made.close()


def other_session(p: Program) -> None:
    with Session(p.session.device) as s:
        s.const([1.0])


REFUSED: dict[str, Callable[[Program, Any, Any], Any]] = {
    "numpy": lambda p, x, loss: loss.numpy(),
    "item": lambda p, x, loss: loss.item(),
    "get_value": lambda p, x, loss: p.session.get_value(loss),
    "branch on a value": lambda p, x, loss: loss.item() > 0,
    "gradient": lambda p, x, loss: p.layer.weight.grad.numpy(),
    "parameter's value": lambda p, x, loss: p.layer.weight.value,
    "setting a parameter": lambda p, x, loss: p.layer.weight.set(np.zeros((2, 3))),
    "freezing": lambda p, x, loss: setattr(p.layer.weight, "requires_grad", False),
    "a new parameter": lambda p, x, loss: p.session.param([1.0], "new"),
    "a new optimizer": lambda p, x, loss: optim.SGD(p.layer.parameters(), lr=0.1),
    "optimizer state": lambda p, x, loss: p.optimizer.state(),
    "synchronize": lambda p, x, loss: p.session.device.synchronize(),
    "mark": lambda p, x, loss: p.session.device.mark(0),
    "elapsed": lambda p, x, loss: p.session.device.elapsed(0, 1),
    "closing": lambda p, x, loss: p.session.close(),
    "capturing": lambda p, x, loss: p.session.capture(lambda: None),
    "another session": lambda p, x, loss: other_session(p),
    "another device": lambda p, x, loss: kernels.relu(tlrt.Device.new("cpu").buffer([1.0])),
    "a loan": lambda p, x, loss: np.from_dlpack(p.session.zeros(2).value.buffer),
    "another device's numbers": lambda p, x, loss: kernels.rand_uniform(tlrt.Device.new("cpu"), 2, 1),
    "a draw that nothing takes": lambda p, x, loss: (p.session._key(), p.session.relu(loss)),
    "a host result": lambda p, x, loss: kernels.dgemm(p.session.device, np.eye(2), np.eye(2), 2, 2, 2),
    "attention with a mask": lambda p, x, loss: p.session.attention(
        *(p.session.zeros((1, 2, 2)) for _ in range(3)), mask=p.session.zeros((1, 2, 2))
    ),
    "arithmetic": lambda p, x, loss: x + 1,
    "comparison": lambda p, x, loss: x > 1,
    "an element": lambda p, x, loss: x[0],
    "iteration": lambda p, x, loss: list(x),
    "truth": lambda p, x, loss: bool(x),
    "an array": lambda p, x, loss: np.asarray(x),
    "a NumPy function": lambda p, x, loss: np.mean(x),
    "a method": lambda p, x, loss: x.sum(),
    "floats as indices": lambda p, x, loss: p.session.gather_rows_nat(p.session.zeros((2, 2)), x),
    "naturals": lambda p, x, loss: p.session.nat_vec(x),
    "an upload": lambda p, x, loss: p.session.device.buffer(x),
}


@pytest.mark.parametrize("what", REFUSED)
def test_refused_within_the_function(program: Program, what: str) -> None:
    s = program.session
    for p in s.parameters.values():
        _ = p.mirror
    program.hole = lambda x, loss: REFUSED[what](program, x, loss)
    with unchanged_memory(s.device):
        assert_raises_regex(CaptureError, "(?s)got.*expected", s.capture, program.step, X)
        gc.collect()
    program.hole = lambda x, loss: None
    step = s.capture(program.step, X)
    assert np.isfinite(step(X).item()) and s.relu(s.const([-1.0])).numpy().tolist() == [0.0]


def test_an_error_of_the_function_leaves_nothing(program: Program) -> None:
    s = program.session
    for p in s.parameters.values():
        _ = p.mirror
    before = s.device.memory()
    kinds: list[tuple[type[BaseException], Callable[..., Any]]] = [
        (ZeroDivisionError, lambda x, loss: 1 // 0),
        (KeyboardInterrupt, lambda x, loss: (_ for _ in ()).throw(KeyboardInterrupt)),
        (ShapeError, lambda x, loss: s.matmul(s.const(x), s.const(x))),
        (ArgumentTypeError, lambda x, loss: s.relu("x")),
    ]
    for kind, hole in kinds:
        program.hole = hole
        assert_raises(kind, s.capture, program.step, X)
        gc.collect()
        assert s.device.memory().live_bytes == before.live_bytes and s.device._observers == ()
    assert s.device._calls is handles._calls


def test_wrong_results_and_arguments(program: Program) -> None:
    s = program.session
    for bad in (1.0, "loss", np.ones(2), object()):
        assert_raises_regex(ArgumentTypeError, "expected tensors", s.capture, lambda bad=bad: bad)
    for bad in (
        s.const([1.0]), s.nat(3), s.parameters["layer.weight"], np.ones(2, "V2"), {"a": 1}, np.ones(2, complex),
    ):  # fmt: skip
        assert_raises(ArgumentTypeError, s.capture, lambda x: None, bad)
    with pytest.raises(ArgumentTypeError, match="expected a function"):
        s.capture(3)  # type: ignore[arg-type]
    assert s.capture(lambda: None)() is None


def test_refused_at_a_replay(program: Program) -> None:
    s = program.session
    step = s.capture(program.step, X)
    state = {p.name: p.numpy() for p in s.parameters.values()}
    counter = s.counter
    for bad in ((), (X, X), (X[:1],), (X.astype(int),), (X.reshape(3, 2),), (1.0,)):
        assert_raises(CaptureError, step, *bad)
    for bad in (("text",), (None,), (X.astype(complex),)):
        assert_raises(ArgumentTypeError, step, *bad)
    program.layer.weight.requires_grad = False
    assert_raises_regex(CaptureError, "requires_grad", step, X)
    program.layer.weight.requires_grad = True
    other = {"fast": "reproducible", "reproducible": "fast"}[s.device.math]
    with pytest.raises(CaptureError, match=f"a device of math='{other}', expected"), s.device.set_math(other):
        step(X)
    assert s.counter == counter and program.optimizer.steps == 1
    assert all(np.array_equal(p.numpy(), state[p.name]) for p in s.parameters.values())
    assert step(X.astype(np.float64)) is step.outputs
    with pytest.raises(ArgumentError, match="lr: got -1.0"):
        program.optimizer.lr = -1.0
    assert step(X) is step.outputs
    program.optimizer.close()
    assert_raises(ReleasedError, step, X)


def test_a_call_of_a_replay_that_was_interrupted_is_made_again(program: Program) -> None:
    step = program.session.capture(program.step, X)
    made, calls_made = [InterruptedCallError.status, InterruptedCallError.status, 0], step._replay.calls
    step._replay.calls = [lambda: made.pop(0), *calls_made]
    assert step(X) is step.outputs and made == []
    step._replay.calls = calls_made


def test_integers_out_of_range(program: Program) -> None:
    s = program.session
    table = s.param(np.arange(8.0).reshape(4, 2), "table")
    logits = s.param(np.zeros((2, 3)), "logits")
    rows = s.capture(lambda i: s.gather_rows_nat(s.use(table), i), [1, 9])
    assert rows.outputs.numpy().tolist() == [[2, 3], [0, 0]]
    assert rows([-1, 0]).numpy().tolist() == [[0, 0], [0, 1]] == rows([-(2**40), 0]).numpy().tolist()
    assert_raises(IndexOutOfRangeError, rows, [0, 2**32])
    assert rows([3, 0]).numpy().tolist() == [[6, 7], [0, 1]]
    loss = s.capture(lambda labels: s.cross_entropy(s.use(logits), labels), [0, 2])
    for bad in ([0, 3], [0, -1], [-(2**32), 0]):
        assert_raises(IndexOutOfRangeError, loss, bad)
    assert np.isfinite(loss([2, 1]).item())
    # each use has a limit, and the least holds, whatever its place
    said = "got 3, expected 0 <= index < 3|got 3, expected below 3"
    with Session(s.device, check_indices=True) as strict:
        for sizes in ((3, 4), (4, 3)):
            tables = [strict.param(np.zeros((n, 1))) for n in sizes]
            many = strict.capture(lambda i, tables=tables: [strict.gather_rows_nat(t, i) for t in tables], [0, 2])
            assert_raises_regex(IndexOutOfRangeError, said, many, [0, 3])
    both = s.capture(lambda i: (s.gather_rows_nat(s.use(table), i), s.const(i)), np.array([1, 2], np.uint8))
    assert [v.numpy().tolist() for v in both(np.array([3, 3]))] == [[[6, 7], [6, 7]], [3, 3]]
    assert [v.numpy().tolist() for v in both(np.array([3, -2], np.int8))] == [[[6, 7], [0, 0]], [3, -2]]


def test_a_refused_argument_leaves_those_before_it(program: Program) -> None:
    s = program.session
    step = s.capture(lambda x, y: s.const(x), X, X)
    for bad in (X[:1], "text"):
        assert_raises((CaptureError, ArgumentTypeError), step, X + 1, bad)
        assert step.outputs.numpy().tolist() == X.tolist()


def test_an_argument_is_of_no_use_afterwards(program: Program) -> None:
    s = program.session
    kept: list[Any] = []
    step = s.capture(lambda x: kept.append(x) or s.const(x), X)
    assert_raises(ReleasedError, s.const, kept[0])
    step.close()
    assert_raises(ReleasedError, s.const, kept[0])


def test_what_differs_must_be_said(program: Program) -> None:
    """None, Booleans and text are part of what was captured."""
    s = program.session
    step = s.capture(lambda x, mode, flag: s.relu(s.const(x)) if flag else s.const(x), X, "train", True)
    assert step(X, "train", True) is step.outputs
    for bad in ((X, "test", True), (X, "train", False), (X, "train", 1), (X, None, True)):
        assert_raises(CaptureError, step, *bad)


def test_arguments_without_axes_and_of_another_session(program: Program) -> None:
    s = program.session
    assert_raises_regex(TypeError, "argument 0: got a number, expected at least one axis", s.capture, len, 1.0)
    with Session("cpu") as other:
        said = "an argument of another session's captured function"
        assert_raises_regex(DeviceMismatchError, said, s.capture, lambda x: other.const(x), X)


def test_a_function_of_the_specification() -> None:
    """What it raises leaves the results of before; results of other shapes are refused."""
    with Session("spec") as s:
        sizes, fails = [2], [False]

        def step() -> list[Any]:
            made = [s.zeros(sizes[0]) + 1.0]
            return [*made, 1 // (not fails[0])] if fails[0] else made

        again = s.capture(step)
        kept = again.outputs[0]
        fails[0] = True
        assert_raises(ZeroDivisionError, again)
        sizes[0], fails[0] = 3, False
        assert_raises_regex(CaptureError, r"got results of shapes \[\(3,\)\], expected those of before", again)
        assert kept.numpy().tolist() == [1.0, 1.0]
        live = s.device.memory().live_buffers
        sizes[0] = 2
        assert again()[0] is kept and s.device.memory().live_buffers == live


def test_captures_of_another_session_meanwhile(dev: tlrt.Device) -> None:
    """Of the same thread, and of another one on the same device."""
    with Session(dev) as s, Session(dev) as t, Session("cpu") as far:
        assert_raises_regex(CaptureError, "a call within a captured", s.capture, lambda: far.capture(lambda: None))

        def meanwhile() -> None:
            said = "one whose calls are being captured"
            run_in_thread(lambda: assert_raises_regex(CaptureError, said, t.capture, lambda: None))

        assert s.capture(meanwhile)() is None


def test_replaying_within_a_capture(program: Program) -> None:
    s = program.session
    step = s.capture(program.step, X)
    assert_raises(CaptureError, s.capture, lambda x: step(X), X)
    assert np.isfinite(step(X).item())


def test_other_threads_go_on_meanwhile(dev: tlrt.Device) -> None:
    """Their calls are neither recorded nor refused, on devices of their own."""
    other = tlrt.Device.new(dev.name)
    values: list[float] = []

    def hole(x: Any, loss: Any) -> None:
        def work() -> None:
            with other.buffer([1.0, 2.0]) as a, kernels.add(a, a) as b:
                values.append(float(b.numpy()[1]))

        run_in_thread(work)

    program = Program(dev)
    program.hole = hole
    plain = Program(dev)
    step, same = (p.session.capture(p.step, X) for p in (program, plain))
    assert values == [4.0] and step.calls == same.calls
    assert step(X).item() == same(X).item() and values == [4.0]
    program.close()
    plain.close()
    other.close()


def test_an_argument_is_not_copied(dev: tlrt.Device) -> None:
    """A copy within the function would not be told of the content at a replay."""
    with Session(dev) as s:
        rows = s.param(np.arange(6.0).reshape(3, 2), "rows")
        for how in (copy.copy, copy.deepcopy):
            step = s.capture(lambda x, i, how=how: (s.const(how(x)), s.gather_rows_nat(rows, how(i))), X, [0])
            tensor, picked = step(2 * X, [2])
            assert tensor.numpy().tolist() == (2 * X).tolist() and picked.numpy().tolist() == [[4, 5]]
        assert_raises_regex(CaptureError, "argument 0", s.capture, lambda x: pickle.dumps(x), X)


def test_an_argument_has_no_methods_of_arrays(dev: tlrt.Device) -> None:
    """What an array does by a method is not done by one of the same name."""
    own = {"shape", "dtype", "ndim", "size"}
    with Session(dev) as s:

        def step(x: Any) -> Any:
            y = s.const(x)
            for name in set(dir(np.ndarray)) - own:
                if not name.startswith("_"):
                    assert_raises_regex(CaptureError, "argument 0", getattr, x, name)
            assert {name: getattr(x, name) for name in own} == {name: getattr(X, name) for name in own}
            for name in own:
                assert_raises(AttributeError, setattr, x, name, getattr(X, name))
            return y

        assert s.capture(step, X)(X).numpy().tolist() == X.tolist()


def test_more_transforms_than_plans(dev: tlrt.Device, monkeypatch: pytest.MonkeyPatch) -> None:
    """The message says what happened and what to do; without a GPU, a library that makes graphs is acted."""
    if not dev.is_cuda:
        act_graphs(dev, monkeypatch)
    with Session(dev) as s:

        def transforms(first: int) -> Any:
            def step(x: Any) -> Any:
                rows = [s.slice_range0(s.const(x), 0, n) for n in range(first, first + 60, 2)]
                return [s.rfft1d_packed(s.reshape(row, (1, row.shape[0]))) for row in rows]

            return step

        for first in (64, 192):
            with pytest.raises(CaptureError) as caught:
                s.capture(transforms(first), np.ones(256))
            said = str(caught.value)
            assert "rfft1d_packed: got a transform whose FFT plan is gone, expected it among the 24" in said
            assert "as steps of their own" in said and "another thread" in said and s.device._observers == ()
        del caught
        monkeypatch.undo()
        assert s.capture(lambda x: s.tanh(s.const(x)), X)(X).shape == (2, 3)


@pytest.mark.parametrize("name", ["spec", "cpu"])
def test_a_failed_capture_leaves_nothing_while_its_error_lives(name: str) -> None:
    """And a function cannot read what the step before it computed."""
    with Session(name) as s:
        w, x = s.param([1.0], "w"), s.const([1.0])
        _ = w.mirror
        s.reset()
        functions: list[Callable[[], Any]] = [
            lambda: (s.square(w), 3), lambda: [s.square(w), s.relu("x")], lambda: {"a": s.square(w), "b": np.ones(1)},
            lambda: s.relu(x),
        ]  # fmt: skip
        kept = []
        with unchanged_memory(s.device):
            for function in functions:
                x = s.const([1.0])
                with pytest.raises(TorchleanError) as caught:
                    s.capture(function)
                kept.append(caught.value)
        assert isinstance(kept[-1], ReleasedError)
