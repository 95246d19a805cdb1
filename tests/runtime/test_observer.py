"""Observers of a device: which events they get, in which order, and that they change nothing."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import pytest
from numpy.testing import assert_raises, assert_raises_regex

import tlrt
from tlrt import Session, kernels, optim
from tlrt.context import Observer
from tlrt.errors import ArgumentError
from tlrt.spec import SpecDevice


class Log(Observer):
    """Keeps the names of the events."""

    def __init__(self) -> None:
        self.events: list[str] = []

    def before_call(self, device: Any, symbol: str, arguments: tuple[Any, ...]) -> Any:
        self.events.append(f"call {symbol}")
        return symbol

    def after_call(self, device: Any, symbol: str, arguments: tuple[Any, ...], status: int, note: Any) -> None:
        assert note == symbol
        self.events.append(f"status {status}")

    def buffer_made(self, function: Any, arguments: tuple[Any, ...], buffer: Any) -> None:
        self.events.append("buffer")

    def before_host_access(self, device: Any, op: str) -> None:
        self.events.append(f"host {op}")

    def before_backward_step(self, tape: Any, place: int, node: Any, cotangent: Any) -> None:
        self.events.append(f"backward {node.name}")

    def after_backward(self, session: Any) -> None:
        self.events.append("backward complete")

    def before_reset(self, session: Any) -> None:
        self.events.append("reset")

    def buffer_filled(self, buffer: Any, value: float) -> None:
        self.events.append("filled")

    def before_session_use(self, session: Any, op: str) -> None:
        self.events.append(f"use {op}")

    def key_drawn(self, session: Any, key: int, draw: Any) -> None:
        self.events.append("key")

    @contextmanager
    def during_update(self, update: Any) -> Iterator[None]:
        self.events.append("update begins")
        yield
        self.events.append("update ends")

    def before_setting(self, session: Any, name: str) -> None:
        self.events.append(f"set {name}")


@pytest.fixture
def device() -> Any:
    with tlrt.Device.new("cpu") as made:
        yield made


def test_calls_and_buffers(device: tlrt.Device) -> None:
    log, other = Log(), Log()
    device.observe(log)
    device.observe(other)
    a = device.buffer([1.0, 2.0])
    assert kernels.add(a, a).numpy().tolist() == [2.0, 4.0]
    assert_raises(ValueError, kernels.add, a, device.buffer([1.0]))
    shape = tlrt.errors.ShapeError.status
    expected = ["buffer", "call buffer_add", "status 0", "host numpy", "buffer", "call buffer_add", f"status {shape}"]
    assert log.events == other.events == expected
    device.ignore(log)
    kernels.add(a, a)
    assert log.events == expected and len(other.events) == len(expected) + 2
    device.ignore(other)
    kernels.add(a, a)
    assert len(other.events) == len(expected) + 2


def test_a_step_of_training(device: tlrt.Device) -> None:
    def train(log: Log | None) -> tuple[list[float], list[str]]:
        with Session(device) as s:
            w = s.param([1.0, 2.0], "w")
            optimizer = optim.SGD([w], lr=0.5)
            if log is not None:
                device.observe(log)
            s.backward(s.reduce_sum(s.tanh(w)))
            optimizer.step()
            optimizer.lr = 0.25
            s.reset()
            if log is not None:
                device.ignore(log)
            optimizer.close()
            return w.numpy().tolist(), [] if log is None else log.events

    plain, _ = train(None)
    observed, events = train(Log())
    assert observed == plain
    chosen = [e for e in events if e.startswith(("backward", "reset", "set"))]
    assert chosen == ["backward reduce_sum", "backward tanh", "backward complete", "set SGD.lr", "reset"]
    assert events.index("call buffer_sgd_step") > events.index("backward complete")


def test_an_observer_may_refuse(device: tlrt.Device) -> None:
    class Refusing(Observer):
        def before_call(self, device: Any, symbol: str, arguments: tuple[Any, ...]) -> Any:
            raise ArgumentError(f"{symbol}: refused")

    a, out = device.buffer([1.0]), device.buffer([5.0])
    refusing = Refusing()
    device.observe(refusing)
    before = device.memory().live_buffers
    assert_raises_regex(ArgumentError, "refused", kernels.add, a, a)
    assert_raises_regex(ArgumentError, "refused", kernels.add, a, a, out=out)
    device.ignore(refusing)
    assert device.memory().live_buffers == before and np.array_equal(out.numpy(), [5.0])


def test_each_observer_gets_every_event(device: tlrt.Device) -> None:
    """In the order in which they were added, the contexts of updates one within the other."""
    logs = [Log(), Log(), Log()]
    for log in logs:
        device.observe(log)
    with Session(device) as s:
        w = s.param([1.0, 2.0], "w")
        optimizer = optim.SGD([w], lr=0.5)
        for _ in range(2):
            s.backward(s.reduce_sum(s.dropout(s.tanh(w), 0.5)))
            optimizer.step()
            optimizer.lr = 0.25
            s.zeros(2).value.buffer.fill(1.0)
            s.reset()
        optimizer.close()
    assert logs[0].events == logs[1].events == logs[2].events
    kinds = {event.split()[0] for event in logs[0].events}
    assert kinds == {"call", "status", "buffer", "filled", "key", "use", "host", "update", "backward", "reset", "set"}
    spec, before = SpecDevice(), [len(log.events) for log in logs]
    spec.observe(logs[0]), spec.observe(logs[1]), spec.ignore(logs[0]), Session(spec).reset()
    assert [len(log.events) > n for log, n in zip(logs, before, strict=True)] == [False, True, False]


def test_a_leafs_gradient_is_reported_once_it_is_complete(device: tlrt.Device) -> None:
    """Before the steps of the nodes that come before it, with the value that backward gives, in storage of its own."""

    class Leaves(Log):
        def __init__(self) -> None:
            super().__init__()
            self.found: dict[str, Any] = {}

        def gradient_complete(self, tape: Any, place: int, node: Any, gradient: Any) -> None:
            self.events.append(f"complete {node.name}")
            assert tape is s.tape and gradient.buffer.references == 1
            self.found[node.name] = gradient.numpy()

    log = Leaves()
    with Session(device) as s:
        first, second = s.param(np.full((2, 3), 2.0), "first"), s.param(np.full((3, 2), 3.0), "second")
        frozen = s.param(np.ones((3, 2)), "frozen", requires_grad=False)
        h = s.tanh(s.reshape(s.use(first), (3, 2)))
        # a view of the cotangent is the gradient of `second`, and of the sum's other operand
        loss = s.sum(s.add(s.mul(s.add(h, s.use(second)), s.use(frozen)), s.use(second)))
        device.observe(log)
        gradients = s.backward(loss)
        device.ignore(log)
        order = [e for e in log.events if e.startswith(("backward", "complete"))]
        assert order.index("complete second") < order.index("backward tanh") < order.index("complete first")
        assert set(log.found) == {"first", "second"}
        for parameter, gradient in gradients.items():
            assert (gradient.numpy() == log.found[parameter.name]).all()
        plain = {p.name: g.numpy() for p, g in gradients.items()}
        h = s.tanh(s.reshape(s.use(first), (3, 2)))
        loss = s.sum(s.add(s.mul(s.add(h, s.use(second)), s.use(frozen)), s.use(second)))
        assert all((g.numpy() == plain[p.name]).all() for p, g in s.backward(loss).items())
