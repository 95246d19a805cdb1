"""Training steps in unusual orders: graphs older than their parameters, frozen parameters, interrupted steps and saves."""

import functools
import gc

import numpy as np
import pytest
from numpy.testing import assert_raises, assert_raises_regex

from tlrt import AnyBuffer, errors, nn, optim


@pytest.fixture
def s(s):
    """What was refused is kept alive by the frames of its exception until they are collected."""
    yield s
    gc.collect()


def test_what_no_grad_used_still_trains_after_it(s):
    w, x = s.param([3.0], "w"), s.input([2.0], requires_grad=True)
    with s.no_grad():
        assert not s.scale(w, 2.0).requires_grad and not s.mul(x, x).requires_grad
    s.backward(s.mul(s.mul(w, w), x))
    assert w.grad.numpy().tolist() == [12.0] and x.grad.numpy().tolist() == [9.0]


def test_a_graph_older_than_its_parameters_is_refused(s):
    w, other = s.param([3.0], "w"), s.param([1.0], "other")
    old, untouched = s.mul(w, w), s.mul(other, other)
    w.set([2.0])
    fresh = s.mul(w, w)  # a leaf of its own
    s.backward(fresh)
    assert w.grad.numpy().tolist() == [4.0]
    assert_raises_regex(ValueError, "w: got a value changed since this tape recorded it", s.backward, old)
    assert w.grad.numpy().tolist() == [4.0], "a refused backward took the gradients away"
    s.backward(untouched)  # does not depend on w
    assert other.grad.numpy().tolist() == [2.0] and w.grad.numpy().tolist() == [0.0]


def test_a_frozen_value_that_was_written_over_is_refused(s):
    """A gradient would be that of another forward pass. What is set or assigned lies elsewhere: the tape has the old value."""
    w, frozen = s.param([3.0], "w"), s.param([5.0], "frozen", requires_grad=False)
    old = s.mul(w, frozen)
    frozen.set([2.0])
    s.backward(old)
    assert w.grad.numpy().tolist() == [5.0]
    fresh = s.mul(w, frozen)
    frozen.mirror.fill(7.0)
    frozen.updated()
    s.backward(old)
    assert w.grad.numpy().tolist() == [5.0]
    refused = "frozen: got a value changed since this tape recorded it"
    assert_raises_regex(ValueError, refused, s.backward, fresh)
    again = s.mul(w, frozen)
    assert_raises_regex(ValueError, refused, s.backward, fresh)
    s.backward(again)
    assert w.grad.numpy().tolist() == [7.0]
    frozen.mirror.fill(1.0)
    frozen.assign(AnyBuffer((1,), frozen.mirror))
    assert_raises_regex(ValueError, refused, s.backward, again)


def test_a_loss_without_gradients_warns(s):
    w = s.param([3.0], "w")
    with pytest.warns(UserWarning, match="depends on nothing that requires a gradient"):
        s.backward(s.reduce_sum(s.const([1.0])))
    assert w.grad.numpy().tolist() == [0.0] and "w[1]" in repr(s.gradients)


def test_freezing_and_thawing(s):
    w, b = s.param([3.0], "w"), s.param([1.0], "b")
    optimizer = optim.Adam([w, b], lr=0.1)

    def step():
        s.backward(s.reduce_sum(s.mul(w, b)))
        optimizer.step()
        s.reset()

    step()
    before = w.value.copy()
    w.requires_grad = False
    step()
    assert np.array_equal(w.value, before) and not np.array_equal(b.value, [1.0])
    s.use(w)
    w.requires_grad = True  # after a use of this step
    step()
    assert not np.array_equal(w.value, before)
    w.requires_grad = b.requires_grad = False
    with pytest.warns(UserWarning, match="all gradients are zero"):
        assert_raises_regex(ValueError, r"expected backward\(\) before step", step)
    assert_raises_regex(TypeError, "requires_grad: w: got 1", setattr, w, "requires_grad", 1)
    optimizer.close()


@pytest.mark.parametrize("make", [functools.partial(optim.SGD, lr=1.0), functools.partial(optim.Adam, lr=0.5)])
def test_frozen_between_backward_and_step(s, make):
    w, b = s.param([3.0], "w"), s.param([1.0], "b")
    optimizer = make([w, b])
    s.backward(s.reduce_sum(s.mul(w, b)))
    w.requires_grad = False
    optimizer.step()
    assert w.value.tolist() == [3.0] and b.value.tolist() != [1.0] and optimizer.steps == 1
    states = {name: array.tolist() for name, array in optimizer.state()[1].items()}
    assert all(states[name] == [0.0] for name in states if name.endswith("/w"))
    b.requires_grad = False
    assert_raises_regex(ValueError, r"expected backward\(\) before step", optimizer.step)
    w.requires_grad = True
    optimizer.step()  # by the gradient there is
    assert w.value.tolist() != [3.0] and optimizer.steps == 2
    optimizer.close()


def test_steps_in_odd_orders(s):
    w = s.param([3.0], "w")
    sgd, adam = optim.SGD([w, w], lr=0.5), optim.Adam([w], lr=0.25)
    assert len(sgd.parameters) == 1
    s.backward(s.scale(w, 2.0))
    sgd.step()
    sgd.step()  # the same gradient again
    assert w.value.tolist() == [1.0]
    adam.step()  # another optimiser on the same parameter
    assert abs(w.value[0] - 0.75) < 1e-6
    w.set([10.0])
    sgd.step()  # the value that was set, by the gradient there is
    assert w.value.tolist() == [9.0]
    s.reset()
    assert_raises_regex(ValueError, r"got none of w, expected backward\(\)", sgd.step)
    settings, arrays = adam.state()
    s.backward(s.scale(w, 2.0))
    adam.step()
    adam.load_state(settings, arrays)  # after training started
    assert adam.steps == 1
    adam.step()
    adam.close()
    adam.close()
    for call in (adam.step, adam.state, lambda: adam.load_state(settings, arrays)):
        assert_raises_regex(errors.ReleasedError, "Adam: got a closed optimizer", call)
    sgd.close()


def test_a_parameter_of_two_layers(s):
    """One leaf, gradients added up, one update."""
    shared = nn.Linear(s, 3, 3, name="l", bias=False)
    optimizer = optim.SGD([*shared.parameters(), *shared.parameters()], lr=1.0)
    before, x = shared.weight.numpy(), np.array([[1.0, 2.0, 3.0]])
    s.backward(s.reduce_sum(shared(s.const(x))) + s.reduce_sum(shared(s.const(10 * x))))
    optimizer.step()
    assert np.allclose(shared.weight.value, before - 11 * np.repeat(x, 3, 0), atol=1e-4)
    optimizer.close()


class Interrupted:
    """Kernels that raise KeyboardInterrupt after (or instead of) a function's call."""

    def __init__(self, kernels, name, after):
        self._kernels, self._name, self._after = kernels, name, after

    def __getattr__(self, name):
        function = getattr(self._kernels, name)
        if name != self._name:
            return function

        def call(*arguments, **keywords):
            if self._after:
                function(*arguments, **keywords)
            raise KeyboardInterrupt

        return call


@pytest.mark.parametrize("after", [False, True])
def test_an_interrupted_step_leaves_no_stale_host_value(s, after):
    w = s.param([3.0], "w")
    assert w.value.tolist() == [3.0]
    sgd = optim.SGD([w], lr=0.5)
    y = s.scale(w, 2.0)
    s.backward(y)
    kernels, sgd.kernels = sgd.kernels, Interrupted(sgd.kernels, "sgd_step", after)
    assert_raises(KeyboardInterrupt, sgd.step)
    assert w.value.tolist() == ([2.0] if after else [3.0])
    sgd.kernels = kernels
    s.reset()
    s.backward(s.scale(w, 2.0))
    sgd.step()


@pytest.mark.parametrize("name", ["global_norm", "clip_scale"])
def test_interrupted_clipping(s, name):
    w = s.param([3.0], "w")
    s.backward(s.scale(w, 2.0))
    live, kernels = s.device.memory().live_buffers, s.tape.kernels
    s.tape.kernels = Interrupted(kernels, name, False)
    assert_raises(KeyboardInterrupt, s.clip_grad_norm, 1.0)
    s.tape.kernels = kernels
    gc.collect()
    assert s.device.memory().live_buffers == live
    assert s.clip_grad_norm(1.0).numpy() == 2.0 and abs(w.grad.numpy()[0] - 1) < 1e-6


def test_interrupted_backward(s, monkeypatch):
    w = s.param([3.0], "w")
    y = s.reduce_sum(s.tanh(s.mul(w, w)))
    s.backward(y)
    before, live = w.grad.numpy(), s.device.memory().live_buffers
    step = s.tape._step

    def interrupted(grads, id, node, g, sharing):
        if node.name == "mul":
            raise KeyboardInterrupt
        step(grads, id, node, g, sharing)

    monkeypatch.setattr(s.tape, "_step", interrupted)
    assert_raises(KeyboardInterrupt, s.backward, y)
    monkeypatch.undo()
    assert s.device.memory().live_buffers == live and np.array_equal(w.grad.numpy(), before)
