"""Captured steps under less usual use: results kept by tapes, states loaded between captures, optimisers that make buffers,
threads and interrupts within the function."""

from __future__ import annotations

import sys
import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import tlrt
from tlrt import AnyBuffer, Session, _record, kernels, optim
from tlrt.errors import CaptureError

X = np.ones((2, 3), np.float32)


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

            def step(x: Any) -> Any:
                loss = s.reduce_sum(s.square(s.mul(w, s.const(x))))
                s.backward(loss)
                optimizer.step()
                return loss

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
    plain, cut = type(kernels._c_add), 0
    # between taking a lock and the body that holds it CPython lets no signal handler run, but a tracer does
    lines = Path(_record.__file__).read_text(encoding="utf-8").splitlines()
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
        return local if code.co_name == "_enter" and code.co_filename == _record.__file__ else None

    with Session(dev) as s:
        before = sys.gettrace()
        while True:
            cut = left = cut + 1
            sys.settrace(trace)
            try:
                s.capture(lambda x: s.tanh(s.const(x)), X).close()
                break
            except KeyboardInterrupt:
                assert not _record._recorders and s.device._recorder is None and type(kernels._c_add) is plain
            finally:
                sys.settrace(before)
    assert cut > 4
