"""Captured steps and optimisers: states loaded between captures, buffers an optimiser makes, hyperparameters it assigns."""

import functools
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from numpy.testing import assert_raises_regex

import tlrt
from tests.runtime.steps import Halving, minimise_square
from tlrt import AnyBuffer, Session, kernels, optim
from tlrt.errors import ArgumentError, CaptureError

X = np.ones((2, 3), np.float32)


def test_what_became_invalid_is_refused_at_a_replay(dev: tlrt.Device) -> None:
    """By the optimiser's own rules, before its update."""
    with Session(dev) as s:
        w = s.param([1.0, 2.0, 3.0], "w")
        optimizer = optim.SGD([w], lr=0.1, momentum=0.5, nesterov=True)
        again = s.capture(functools.partial(minimise_square, optimizer), X[0])
        before = w.numpy().tolist()
        optimizer.momentum = 0.0
        for _ in range(2):
            assert_raises_regex(ArgumentError, "nesterov: got True with momentum 0", again, X[0])
        assert optimizer.steps == 1 and w.numpy().tolist() == before
        optimizer.momentum = 0.5
        again(X[0])
        assert optimizer.steps == 2 and w.numpy().tolist() != before
        optimizer.close()


NUMBERS = st.sampled_from((0.0, 0.25, 0.0, 0.5))


def hyperparameters(names: Sequence[str], made: dict[str, Any] | None = None) -> st.SearchStrategy[dict[str, Any]]:
    """Values that PyTorch takes, half of them 0; for an optimiser that was `made` with some, those that it can have later."""
    values: dict[str, Any] = dict.fromkeys(names, NUMBERS)
    values |= {"eps": st.sampled_from((1e-8, 0.5)), "nesterov": st.just(False), "centered": st.booleans()}
    if made is not None and "momentum" in made:
        values["momentum"] = st.sampled_from((0.25, 0.5)) if made["momentum"] else st.just(0.0)
        values["nesterov"] = st.booleans() if made["momentum"] else st.just(False)
        values["centered"] = st.just(made.get("centered"))
    return st.fixed_dictionaries({name: values[name] for name in names})


@pytest.mark.parametrize("kind", [optim.SGD, optim.Adam, optim.AdamW, optim.RMSprop, optim.Lion])
@settings(deadline=None, max_examples=15, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_replays_read_hyperparameters_anew(dev: tlrt.Device, kind: Any, data: st.DataObject) -> None:
    """Each of them is set before the capture and before every replay."""
    first = data.draw(hyperparameters(kind.hyper))
    plan = [first, *data.draw(st.lists(hyperparameters(kind.hyper, first), min_size=2, max_size=3))]

    def run(captured: bool) -> list[bytes]:
        with Session(dev) as s:
            w = s.param([1.0, 2.0, 3.0], "w")
            optimizer = kind([w], **first)
            call = step = functools.partial(minimise_square, optimizer)
            for k, values in enumerate(plan):
                for name, value in values.items():
                    setattr(optimizer, name, value)
                if captured and not k:
                    call = s.capture(step, X[0])
                else:
                    call(X[0])
                    s.reset()
            found = [w.numpy().tobytes(), *(a.tobytes() for a in optimizer.state()[1].values())]
            optimizer.close()
            return found

    assert run(True) == run(False)


class Assigning(Halving):
    """An optimiser that makes new buffers at each step, and keeps the norm of the gradient."""

    norm: Any = None

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
                assert_raises_regex(CaptureError, r"Assigning\.step", s.capture, step, X)
            optimizer.close()
    assert found[0] == found[1]


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
    return minimise_square(optimizer, x)


def halving(optimizer: optim.Optimizer, x: Any) -> None:
    minimise_square(optimizer, x)
    optimizer.lr *= 0.5  # type: ignore[attr-defined]


def test_hyperparameters_assigned_within(dev: tlrt.Device) -> None:
    """A replay would not assign them; in the work that an optimiser of one's own does at each replay it does."""
    found = []
    for captured in (False, True):
        with Session(dev) as s:
            w = s.param([1.0, 2.0, 3.0], "w")

            for optimizer, function in ((Warming([w], 0.1), minimise_square), (optim.SGD([w], 0.1), halved)):
                said = rf"^{type(optimizer).__name__}\.lr: got a call within a captured"
                assert_raises_regex(CaptureError, said, s.capture, functools.partial(function, optimizer), X[0])
                assert optimizer.steps == 0 and optimizer.lr == 0.1
                optimizer.lr = 0.25
                optimizer.close()
            after = optim.SGD([w], 0.1)
            assert_raises_regex(CaptureError, r"^SGD\.lr: got", s.capture, functools.partial(halving, after), X[0])
            after.close()
            w.set([1.0, 2.0, 3.0])
            own = Decaying([w], 0.4)
            again = step = functools.partial(minimise_square, own)
            if captured:
                again = s.capture(step, X[0])
            for _ in range(3 - captured):
                again(X[0])
                s.reset()
            found.append((own.lr, w.numpy().tolist()))
            own.close()
    assert found[0] == found[1]
