"""Gradients of several backward passes, added where the program asks for it."""

import itertools

import numpy as np
import pytest
from numpy.testing import assert_raises, assert_raises_regex

from tests import DEVICES
from tests.runtime.test_training import Interrupted
from tlrt import Session, errors, optim

ROWS = np.random.default_rng(5).standard_normal((4, 2, 3))


@pytest.mark.parametrize("keep_tape", [False, True])
def test_backward_adds_where_asked(s, keep_tape):
    """The sums are those of the separate gradients in their order, bit for bit, with the tape of before or without it."""
    w = s.param(np.linspace(-1, 1, 3), "w")
    expected = None
    for accumulate in (False, True):
        for k, rows in enumerate(ROWS):
            grad = s.backward(s.reduce_sum(s.square(s.matmul(s.const(rows), w))), accumulate=accumulate and k > 0)[w]
            if not accumulate:
                expected = grad.numpy() if k == 0 else expected + grad.numpy()
                s.reset()
            elif not keep_tape:
                s.reset(gradients=False)
    assert w.grad.numpy().tobytes() == expected.tobytes()
    sgd = optim.SGD([w], lr=1.0)
    before = w.numpy()
    sgd.step()  # by the gradients kept beyond reset
    assert np.allclose(w.numpy(), before - expected, rtol=1e-6)
    s.reset()
    assert w.grad is None
    assert_raises_regex(TypeError, "accumulate: got 1", s.backward, s.reduce_sum(w), accumulate=1)
    assert_raises_regex(TypeError, "gradients: got 0", s.reset, gradients=0)


def test_what_one_of_the_losses_reaches_is_reached(s):
    a, b, c = (s.param([3.0], n) for n in "abc")
    adam, x = optim.AdamW([a, b, c], lr=0.5, weight_decay=0.5), s.input([2.0], requires_grad=True)
    s.backward(s.mul(a, x))
    s.reduce_sum(s.mul(b, x)).backward(accumulate=True)
    assert x.grad.numpy().tolist() == [6.0]
    s.backward(s.mul(b, x), accumulate=True)
    assert [p.grad.numpy().tolist() for p in (a, b, c)] == [[2.0], [4.0], [0.0]]
    adam.step()
    assert a.value < 3 and b.value < 3 and c.value == 3
    s.reset(gradients=False)
    s.backward(s.mul(a, s.const([2.0])), accumulate=True)  # a reset that keeps gradients keeps what they reach
    adam.step()
    assert c.value == 3 and c.grad.numpy() == 0
    adam.close()


def test_what_is_frozen_is_not_reached(s):
    """One parameter for each history of two passes: whether the first finds it frozen, and whether each has it in the loss."""
    histories = list(itertools.product((False, True), repeat=3))
    params = {h: s.param([1.0], "".join("ny"[x] for x in h)) for h in histories}
    adam = optim.AdamW(list(params.values()), lr=0.1, weight_decay=0.5)
    for first in (True, False):
        for (frozen, *_), p in params.items():
            p.requires_grad = not (frozen and first)
        reached = [p for (_, one, two), p in params.items() if (one if first else two)]
        s.backward(s.reduce_sum(s.concat(reached, 0)), accumulate=True)
        s.reset(gradients=False)
    adam.step()
    moved = {h for h, p in params.items() if p.value[0] != 1}
    assert moved == {(frozen, one, two) for frozen, one, two in histories if two or (one and not frozen)}
    adam.close()


OPTIMIZERS = {
    "SGD": lambda p: optim.SGD(p, lr=0.5, momentum=0.5, weight_decay=0.5),
    **{n: lambda p, n=n: getattr(optim, n)(p, lr=0.5, weight_decay=0.5) for n in ("AdamW", "RMSprop", "Lion")},
}


@pytest.mark.parametrize("device", ["spec", *DEVICES])
@pytest.mark.parametrize("kind", OPTIMIZERS)
@pytest.mark.parametrize("after", ["nothing", "a reset"])
def test_what_is_added_to_nothing_stands_alone(device, kind, after):
    """A first accumulating backward is a plain one in what follows: clipping, steps, their states, and further sums."""
    found = []
    for accumulate in (False, True):
        with Session(device) as s:
            a, b, c = (s.param([3.0, -2.0], n) for n in "abc")
            optimizer = OPTIMIZERS[kind]([a, b, c])
            if after == "a reset":
                s.backward(s.reduce_sum(s.square(b)))
                optimizer.step()
                s.reset()
            x = s.input([2.0, 5.0], requires_grad=True)
            s.backward(s.reduce_sum(s.mul(a, x)), accumulate=accumulate)
            kept = [s.clip_grad_norm(0.5), a.numpy(), *(y.grad.numpy() for y in (a, b, c, x))]
            optimizer.step()
            kept += [p.numpy() for p in (a, b, c)]
            s.backward(s.reduce_sum(s.mul(b, x)), accumulate=True)
            optimizer.step()
            kept += [p.numpy() for p in (a, b, c)] + [p.grad.numpy() for p in (a, b, c, x)]
            assert c.value.tolist() == [3, -2]
            found.append([np.asarray(k).tobytes() for k in (*kept, *optimizer.state()[1].values())])
    assert found[0] == found[1]


def test_accumulation_within_a_captured_step(s):
    w = s.param([1.0, 2.0], "w")
    sgd = optim.SGD([w], lr=0.125)

    def step(x, y):
        s.backward(s.reduce_sum(s.mul(s.const(x), w)))
        s.backward(s.reduce_sum(s.mul(s.const(y), w)), accumulate=True)
        sgd.step()

    captured = s.capture(step, np.array([1.0, 2.0]), np.array([3.0, 4.0]))
    captured(np.array([0.0, 8.0]), np.array([8.0, 0.0]))
    assert w.value.tolist() == [1 - 0.5 - 1, 2 - 0.75 - 1]


def test_an_addition_that_fails_changes_nothing(s):
    w = s.param([3.0], "w")
    s.backward(s.scale(w, 2.0))
    loss, kernels = s.scale(w, 4.0), s.tape.kernels
    live = s.device.memory().live_buffers
    s.tape.kernels = Interrupted(kernels, "add", after=True)
    assert_raises(KeyboardInterrupt, s.backward, loss, accumulate=True)
    s.tape.kernels = kernels
    assert w.grad.numpy().tolist() == [2.0] and s.device.memory().live_buffers == live


def test_a_gradient_of_a_gradient_is_refused(s):
    """It says what to do instead: a constant of the values, or a difference quotient."""
    w = s.param([3.0], "w")
    g = s.backward(s.reduce_sum(s.mul(w, s.square(w))))[w]
    for call in (lambda: s.backward(g), lambda: s.square(g), lambda: w * g, lambda: s.mse_loss(w, g)):
        assert_raises_regex(errors.ArgumentTypeError, "no gradient.*Session.const.*second derivative", call)
    s.backward(s.mul(w, s.const(g.numpy())))
    assert w.grad.numpy().tolist() == [27.0]
