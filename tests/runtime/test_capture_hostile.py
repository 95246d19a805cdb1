"""Captured steps under less usual use: results kept by tapes, states loaded between captures, optimisers that make buffers,
threads and interrupts within the function, copied arguments, the end of the interpreter."""

from __future__ import annotations

import copy
import functools
import pickle
import sys
import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import tlrt
from tlrt import AnyBuffer, Session, kernels, optim
from tlrt._binding import handles
from tlrt._capture import calls, record, replay
from tlrt.errors import CaptureError

X = np.ones((2, 3), np.float32)


def trained(optimizer: optim.Optimizer, x: Any) -> Any:
    """A step of the optimiser's one parameter w towards the smallest (w·x)²."""
    s, (w,) = optimizer.session, optimizer.parameters
    loss = s.reduce_sum(s.square(s.mul(w, s.const(x))))
    s.backward(loss)
    optimizer.step()
    return loss


def test_a_result_is_a_constant_on_the_tape(dev: tlrt.Device) -> None:
    """Two batches through a captured teacher before one backward pass: each product keeps the value it was made with."""
    with Session(dev) as s:
        w = s.param([1.0, 2.0], "w")
        teacher = s.capture(lambda x: s.scale(s.const(x), 2.0), [0.0, 0.0])
        first = s.mul(w, teacher([1.0, 2.0]))
        leaf = s.detach(teacher.outputs)
        second = s.mul(w, teacher([10.0, 20.0]))
        assert leaf.numpy().tolist() == [2.0, 4.0]
        s.backward(s.reduce_sum(s.add(first, second)))
        assert w.grad is not None and w.grad.numpy().tolist() == [22.0, 44.0]


def test_states_loaded_between_two_captures(dev: tlrt.Device) -> None:
    """Each of two captured steps has the states in places of its own once states were loaded between the captures."""

    def run(captured: bool) -> list[bytes]:
        with Session(dev) as s:
            w = s.param([1.0, 2.0, 3.0], "w")
            optimizer = optim.Adam([w], lr=0.1)

            step = functools.partial(trained, optimizer)

            def eager(x: Any) -> None:
                s.reset()
                step(x)
                s.reset()

            calls: list[Any] = []
            for _ in range(2):
                if captured:
                    calls.append(s.capture(step, np.ones(3)))
                else:
                    eager(np.ones(3))
                    calls.append(eager)
                optimizer.load_state(*optimizer.state())
            for k in range(6):
                calls[k % 2](np.full(3, k + 1.0))
            found = [w.numpy().tobytes(), *(a.tobytes() for a in optimizer.state()[1].values())]
            optimizer.close()
            return found

    assert run(True) == run(False)


class Assigning(optim.Optimizer):
    """An optimiser that makes new buffers at each step, and keeps the norm of the gradient."""

    hyper = ("lr",)

    def __init__(self, parameters: Any, lr: float) -> None:
        super().__init__(parameters)
        self.lr = lr
        self.norm: Any = None

    def _update(self, packed: Any, gradients: Any) -> None:
        self.norm = self.kernels.global_norm(gradients)
        for p, g in zip(self.parameters, gradients, strict=True):
            p.assign(AnyBuffer(p.shape, self.kernels.axpy(p.mirror, g, -self.lr)))


def test_buffers_that_an_optimiser_makes(dev: tlrt.Device) -> None:
    """Parameters may get new ones; what a replay makes anew cannot be used by later calls, nor be a result."""
    found: list[list[float]] = []
    for captured in (False, True):
        with Session(dev) as s:
            w = s.param(np.full((3, 3), 0.2), "w")
            optimizer = Assigning([w], 0.1)
            after: list[Any] = [lambda: None]

            def step(x: Any, s: Session = s, w: Any = w, o: Any = optimizer, after: Any = after) -> Any:
                s.backward(s.reduce_sum(s.square(s.matmul(s.const(x), w))))
                o.step()
                return after[0]()

            if captured:
                again = s.capture(step, X)
                again(X), again(X)
            else:
                for _ in range(3):
                    step(X)
                    s.reset()
            found.append(w.numpy().reshape(-1).tolist())
            for use in (
                lambda s=s, w=w: s.tanh(w),
                lambda o=optimizer: AnyBuffer((1,), o.norm),
                lambda o=optimizer: AnyBuffer((1,), kernels.add(o.norm, o.norm)),
            ):
                after[0] = use
                with pytest.raises(CaptureError, match=r"Assigning\.step"):
                    s.capture(step, X)
            optimizer.close()
    assert found[0] == found[1]


def test_work_of_another_thread_within_the_function(dev: tlrt.Device) -> None:
    """It is not recorded, so a replay could not do it again."""
    with Session(dev) as s:
        made: list[Any] = []

        def elsewhere(work: Any) -> Any:
            made.clear()
            thread = threading.Thread(target=lambda: made.append(work()))
            thread.start()
            thread.join()
            return made[0]

        for function in (
            lambda x: s.add(elsewhere(lambda: s.tanh(s.const(x))), 1.0),
            lambda x: elsewhere(lambda: s.tanh(s.const(x))),
            lambda x: s.add(elsewhere(lambda: s.zeros((2, 3))), s.const(x)),
        ):
            with pytest.raises(CaptureError, match="another thread"):
                s.capture(function, X)
        assert s.capture(lambda x: s.tanh(s.const(x)), X)(X).shape == (2, 3)


def test_an_interrupt_on_the_way_in(dev: tlrt.Device) -> None:
    """Wherever one comes, nothing goes on recording."""
    cut = 0
    # between taking a lock and the body that holds it CPython lets no signal handler run, but a tracer does
    lines = Path(record.__file__).read_text(encoding="utf-8").splitlines()
    locks = {i for i, line in enumerate(lines, 1) if "with _lock" in line}
    left = 0

    def local(frame: Any, event: str, argument: Any) -> Any:
        nonlocal left
        left -= event == "line" and frame.f_lineno not in locks
        if left == 0:
            sys.settrace(None)
            raise KeyboardInterrupt
        return local

    def trace(frame: Any, event: str, argument: Any) -> Any:
        code = frame.f_code
        return local if code.co_name == "_attach" and code.co_filename == record.__file__ else None

    with Session(dev) as s:
        before = sys.gettrace()
        while True:
            cut = left = cut + 1
            sys.settrace(trace)
            try:
                s.capture(lambda x: s.tanh(s.const(x)), X).close()
                break
            except KeyboardInterrupt:
                assert not record._recorders and not handles._observers_of_all
                assert s.device._observers == () and s.device._calls is handles._calls
            finally:
                sys.settrace(before)
    assert cut > 4


def test_an_argument_is_not_copied(dev: tlrt.Device) -> None:
    """A copy within the function would not be told of the content at a replay."""
    with Session(dev) as s:
        rows = s.param(np.arange(6.0).reshape(3, 2), "rows")
        for how in (copy.copy, copy.deepcopy):
            step = s.capture(lambda x, i, how=how: (s.const(how(x)), s.gather_rows_nat(rows, how(i))), X, [0])
            tensor, picked = step(2 * X, [2])
            assert tensor.numpy().tolist() == (2 * X).tolist() and picked.numpy().tolist() == [[4, 5]]
        with pytest.raises(CaptureError, match="argument 0"):
            s.capture(lambda x: pickle.dumps(x), X)


def test_an_argument_has_no_methods_of_arrays(dev: tlrt.Device) -> None:
    """What an array does by a method is not done by one of the same name."""
    own = {"shape", "dtype", "ndim", "size"}
    with Session(dev) as s:

        def step(x: Any) -> Any:
            y = s.const(x)
            for name in set(dir(np.ndarray)) - own:
                if not name.startswith("_"):
                    with pytest.raises(CaptureError, match="argument 0"):
                        getattr(x, name)
            assert {name: getattr(x, name) for name in own} == {name: getattr(X, name) for name in own}
            for name in own:
                with pytest.raises(AttributeError):
                    setattr(x, name, getattr(X, name))
            return y

        assert s.capture(step, X)(X).numpy().tolist() == X.tolist()


class Waiting(optim.SGD):
    """An optimiser that lets somebody do something in the middle of a step."""

    meanwhile: Any = staticmethod(lambda: None)

    def _update(self, packed: Any, gradients: Any) -> None:
        self.meanwhile()
        super()._update(packed, gradients)


def test_one_thread_at_a_time(dev: tlrt.Device) -> None:
    """Another thread's replay in the middle of one, or of a capture, would mix their arguments and results."""
    with Session(dev) as s:
        w = s.param([1.0, 2.0, 3.0], "w")
        optimizer = Waiting([w], 0.5)
        caught: list[BaseException] = []

        step = functools.partial(trained, optimizer)

        def elsewhere(work: Any) -> None:
            def run() -> None:
                try:
                    work()
                except BaseException as error:
                    caught.append(error)

            thread = threading.Thread(target=run)
            thread.start()
            thread.join()

        first, second = s.capture(step, X[0]), s.capture(step, X[0])
        for work in (lambda: first(X[0]), lambda: second(X[0]), lambda: s.capture(step, X[0])):
            optimizer.meanwhile = lambda work=work: elsewhere(work)
            before = w.numpy()
            first(X[0])
            assert isinstance(caught.pop(), CaptureError) and not caught
            assert np.array_equal(w.numpy(), before - before)  # 1 - lr·2 = 0, once
            w.set([1.0, 2.0, 3.0])
        optimizer.meanwhile = lambda: elsewhere(lambda: first(X[0]))
        s.capture(step, X[0]).close()
        assert "got a call of another thread meanwhile, expected one thread at a time" in str(caught.pop())
        optimizer.meanwhile = lambda: None
        found: list[float] = []
        w.set([1.0, 2.0, 3.0])
        elsewhere(lambda: found.append(second(X[0]).item()))  # one after the other is fine
        assert found == [14.0] and not caught
        optimizer.close()


class Warming(optim.SGD):
    def step(self) -> None:
        self.lr = 0.1 * (self.steps + 1)
        super().step()


class Decaying(optim.SGD):
    def _update(self, packed: Any, gradients: Any) -> None:
        self.lr *= 0.5
        super()._update(packed, gradients)


def halved(optimizer: optim.Optimizer, x: Any) -> Any:
    optimizer.lr *= 0.5  # type: ignore[attr-defined]
    return trained(optimizer, x)


def test_hyperparameters_assigned_within(dev: tlrt.Device) -> None:
    """A replay would not assign them; in the work that an optimiser of one's own does at each replay it does."""
    found = []
    for captured in (False, True):
        with Session(dev) as s:
            w = s.param([1.0, 2.0, 3.0], "w")

            for optimizer, function in ((Warming([w], 0.1), trained), (optim.SGD([w], 0.1), halved)):
                with pytest.raises(
                    CaptureError, match=rf"^{type(optimizer).__name__}\.lr: got a call within a captured"
                ):
                    s.capture(functools.partial(function, optimizer), X[0])
                assert optimizer.steps == 0 and optimizer.lr == 0.1
                optimizer.lr = 0.25
                optimizer.close()
            own = Decaying([w], 0.4)
            again = s.capture(functools.partial(trained, own), X[0]) if captured else functools.partial(trained, own)
            for _ in range(3 - captured):
                again(X[0])
                s.reset()
            found.append((own.lr, w.numpy().tolist()))
            own.close()
    assert found[0] == found[1]


def test_an_error_in_the_middle_of_a_replay(dev: tlrt.Device) -> None:
    with Session(dev) as s:
        w = s.param([1.0, 2.0, 3.0], "w")
        optimizer = Waiting([w], 0.5)

        step = functools.partial(trained, optimizer)

        captured = s.capture(step, X[0])
        w.set([1.0, 2.0, 3.0])

        def stop() -> None:
            raise KeyboardInterrupt

        optimizer.meanwhile = stop
        for _ in range(2):
            with pytest.raises(KeyboardInterrupt):
                captured(X[0])
            assert w.numpy().tolist() == [1.0, 2.0, 3.0] and optimizer.steps == 1
        optimizer.meanwhile = lambda: None
        assert captured(X[0]).item() == 14.0 and w.numpy().tolist() == [0.0, 0.0, 0.0]
        optimizer.close()


def test_more_transforms_than_plans(dev: tlrt.Device, monkeypatch: pytest.MonkeyPatch) -> None:
    """The message says what happened and what to do; without a GPU, a library that makes graphs is acted."""
    if not dev.is_cuda:
        monkeypatch.setattr(tlrt.Device, "is_cuda", True)
        monkeypatch.setattr(replay, "lib", Acted(replay.lib))
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
            assert "as steps of their own" in said and "another thread" in said
            assert s.device._observers == ()
        del caught
        monkeypatch.undo()
        assert s.capture(lambda x: s.tanh(s.const(x)), X)(X).shape == (2, 3)


class Acted:
    """The library, but graphs can be made, of everything but transforms."""

    def __init__(self, lib: Any) -> None:
        self._lib = lib

    def __getattr__(self, name: str) -> Any:
        return getattr(self._lib, name)

    def torchlean_cuda_capture_begin(self, context: Any) -> int:
        self.runnable = calls.Call.runnable
        refusal = self._lib.torchlean_cuda_capture_begin

        def runnable(call: Any) -> Any:
            return (lambda: refusal(context)) if "rfft" in call.name else self.runnable(call)

        calls.Call.runnable = runnable  # type: ignore[method-assign]
        return 0

    def torchlean_cuda_capture_end(self, context: Any, out: Any) -> int:
        calls.Call.runnable = self.runnable  # type: ignore[method-assign]
        return 0

    def torchlean_cuda_graph_release(self, graph: Any) -> int:
        return 0


@pytest.mark.parametrize(
    "end", ["", "raise SystemExit", "s.device.close()", "os._exit(0) if os.fork() == 0 else os.wait()"]
)
def test_the_end_of_the_interpreter(python: Any, end: str) -> None:
    """With live captures, one of them in a cycle whose finaliser replays it."""
    code = f"""
import os
import numpy as np, tlrt
from tlrt import optim
s = tlrt.Session("cpu")
w = s.param([1.0, 2.0], "w")
optimizer = optim.Adam([w], lr=0.1)

def step(x):
    loss = s.reduce_sum(s.square(s.mul(w, s.const(x))))
    s.backward(loss)
    optimizer.step()
    return loss

first, second = s.capture(step, np.ones(2)), s.capture(step, np.ones(2))

class Last:
    def __del__(self, step=first, Error=tlrt.errors.ReleasedError):
        try:
            step([1.0, 1.0])
        except Error:
            pass

last = Last()
last.cycle = last
second([1.0, 1.0])
print("end", flush=True)
{end}
"""
    done = python(code)
    assert done.returncode == 0 and done.stdout.startswith("end") and done.stderr == ""
