"""Captured steps with several threads, interrupts within a capture or a replay, and the end of the interpreter."""

import functools
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.testing import assert_raises, assert_raises_regex

import tlrt
from audit.injection import interruptions
from tests import run_in_thread
from tests.runtime.steps import minimise_square
from tlrt import Session, optim
from tlrt._binding import handles
from tlrt._capture import record
from tlrt.errors import CaptureError

X = np.ones((2, 3), np.float32)


def test_work_of_another_thread_within_the_function(dev: tlrt.Device) -> None:
    """It is not recorded, so a replay could not do it again."""
    with Session(dev) as s:
        for function in (
            lambda x: s.add(run_in_thread(lambda: s.tanh(s.const(x))), 1.0),
            lambda x: run_in_thread(lambda: s.tanh(s.const(x))),
            lambda x: s.add(run_in_thread(lambda: s.zeros((2, 3))), s.const(x)),
        ):
            assert_raises_regex(CaptureError, "another thread", s.capture, function, X)
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
        caught: list[str] = []
        step = functools.partial(minimise_square, optimizer)

        def refused(work: Any) -> None:
            with pytest.raises(CaptureError) as error:
                run_in_thread(work)
            caught.append(str(error.value))

        first, second = s.capture(step, X[0]), s.capture(step, X[0])
        for work in (lambda: first(X[0]), lambda: second(X[0]), lambda: s.capture(step, X[0])):
            optimizer.meanwhile = lambda work=work: refused(work)
            before = w.numpy()
            first(X[0])
            assert caught.pop() and not caught
            assert np.array_equal(w.numpy(), before - before)  # 1 - lr·2 = 0, once
            w.set([1.0, 2.0, 3.0])
        optimizer.meanwhile = lambda: refused(lambda: first(X[0]))
        s.capture(step, X[0]).close()
        assert "got a call of another thread meanwhile, expected one thread at a time" in caught.pop()
        optimizer.meanwhile = lambda: None
        w.set([1.0, 2.0, 3.0])
        assert run_in_thread(lambda: second(X[0]).item()) == 14.0  # one after the other is fine
        optimizer.close()


def test_an_error_in_the_middle_of_a_replay(dev: tlrt.Device) -> None:
    with Session(dev) as s:
        w = s.param([1.0, 2.0, 3.0], "w")
        optimizer = Waiting([w], 0.5)
        captured = s.capture(functools.partial(minimise_square, optimizer), X[0])
        w.set([1.0, 2.0, 3.0])

        def stop() -> None:
            raise KeyboardInterrupt

        optimizer.meanwhile = stop
        for _ in range(2):
            assert_raises(KeyboardInterrupt, captured, X[0])
            assert w.numpy().tolist() == [1.0, 2.0, 3.0] and optimizer.steps == 1
        optimizer.meanwhile = lambda: None
        assert captured(X[0]).item() == 14.0 and w.numpy().tolist() == [0.0, 0.0, 0.0]
        optimizer.close()


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


def test_an_interrupt_anywhere_in_a_capture(dev: tlrt.Device) -> None:
    """The next operation, read and capture are as without it."""
    with Session(dev) as s:

        def capture() -> None:
            s.capture(lambda x: s.tanh(s.const(x)), X).close()

        capture()
        for place in interruptions(capture):
            assert s.relu(s.const([-1.0])).numpy().tolist() == [0.0] and s.device._observers == (), place
            if place % 20 == 0 or record._recorders:
                capture()
        assert place > 200 and s.device._calls is handles._calls
