"""Optimisers: what they hand to their kernels (the number of a step from 1, every hyperparameter) and what they refuse."""

import functools
import itertools
import operator

import numpy as np
import pytest
from numpy.testing import assert_raises_regex

from audit.injection import interruptions
from tests import DEVICES, run_in_thread
from tlrt import Session, checkpoint, kernels, optim
from tlrt._binding.observer import Observer
from tlspec.drawn import generator

RATES = {"lr": 0.03, "weight_decay": 0.1}
CHOSEN = {**RATES, "beta1": 0.7, "beta2": 0.95, "eps": 1e-5}
MEAN = {**RATES, "alpha": 0.7, "eps": 1e-3}


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize(
    ("kind", "kernel", "states", "chosen", "others"),
    [
        (optim.RMSprop, kernels.rmsprop_step, 1, MEAN, {}),
        (optim.RMSprop, kernels.rmsprop_momentum_step, 2, {**MEAN, "momentum": 0.5}, {}),
        (optim.RMSprop, kernels.rmsprop_centered_step, 3, {**MEAN, "momentum": 0.0}, {"centered": True}),
        (optim.RMSprop, kernels.rmsprop_centered_step, 3, {**MEAN, "momentum": 0.5}, {"centered": True}),
        (optim.Lion, kernels.lion_step, 1, {**RATES, "beta1": 0.7, "beta2": 0.95}, {}),
        (optim.Adam, kernels.adam_step, 2, CHOSEN, {}),
        (optim.AdamW, kernels.adamw_step, 2, CHOSEN, {}),
    ],
)
def test_a_run_is_the_kernels_called_by_hand(device, kind, kernel, states, chosen, others):
    start = np.random.default_rng(2).standard_normal(7).astype(np.float32)
    with Session(device) as s:
        w = s.param(start, "w")
        optimizer, held = kind([w], **chosen, **others), [[s.device.zeros(7)] for _ in range(states)]
        p = s.device.buffer(start)
        for t in range(1, 5):
            g = s.backward(s.reduce_sum(s.square(w)))[w]
            counted = {"step": t} if kind in (optim.Adam, optim.AdamW) else {}
            kernel([p], [g.buffer], *held, out=([p], *held), **chosen, **counted)
            optimizer.step()
            assert w.numpy().tobytes() == p.numpy().tobytes() != start.tobytes(), t
            s.reset()
        assert [a.tobytes() for a in optimizer.state()[1].values()] == [b.numpy().tobytes() for [b] in held]
        optimizer.close()


def test_states_of_rmsprop_are_chosen_when_it_is_made(s):
    """Neither the momentum nor the variance can be asked for later, nor the variance be left."""
    w = s.param([1.0], "w")
    plain, centered = optim.RMSprop([w]), optim.RMSprop([w], centered=True)
    plain.momentum = 0.5
    assert_raises_regex(ValueError, "got 0.5, False set later", plain._require_valid_settings)
    plain.momentum, plain.centered = 0.0, True
    assert_raises_regex(ValueError, "got 0.0, True set later", plain._require_valid_settings)
    centered.momentum, centered.centered = 0.5, False
    assert_raises_regex(ValueError, "got 0.5, False set later", centered._require_valid_settings)
    assert_raises_regex(ValueError, "alpha: got 1, expected 0 <= alpha < 1", optim.RMSprop, [w], alpha=1)


OPTIMIZERS = {
    "sgd": lambda p: optim.SGD(p, lr=0.1, weight_decay=0.1),
    "nesterov": lambda p: optim.SGD(p, lr=0.1, momentum=0.9, nesterov=True, weight_decay=0.1),
    "adam": lambda p: optim.Adam(p, lr=0.1, weight_decay=0.1),
    "adamw": lambda p: optim.AdamW(p, lr=0.1, weight_decay=0.1),
    "centered": lambda p: optim.RMSprop(p, lr=0.1, momentum=0.5, weight_decay=0.1, centered=True),
    "lion": lambda p: optim.Lion(p, lr=0.1, weight_decay=0.1),
}


def test_each_step_moves_what_its_loss_reaches(s):
    """Steps in turn that reach other parameters of one optimizer."""
    parameters = [s.param(np.ones(1), name) for name in "abc"]
    optimizer, counts = optim.SGD(parameters, lr=0.5), [0, 0, 0]
    for reached in [*itertools.product((0, 1), repeat=3)][1:] * 2:
        terms = [p + 0.0 for p, r in zip(parameters, reached, strict=True) if r]
        s.backward(s.reduce_sum(functools.reduce(operator.add, terms)))
        optimizer.step()
        s.reset()
        counts = [c + r for c, r in zip(counts, reached, strict=True)]
        assert [float(p.value[0]) for p in parameters] == [1 - 0.5 * c for c in counts]


@pytest.mark.parametrize("captured", [False, True])
@pytest.mark.parametrize("kind", OPTIMIZERS)
def test_a_parameter_that_the_loss_does_not_reach_stays(s, kind, captured):
    """It keeps its bits and its states, on the tape or not, with momentum or not, and the others go as without it."""
    if captured and s.device.name == "spec":
        pytest.skip("the specification calls the function")
    first, later = [1.0, -2.0], [0.5, 4.0, -1.0]
    w, alone = s.param(first, "w"), s.param(first, "alone")
    used, twin, idle = s.param(later, "used"), s.param(later, "twin"), s.param([3.0], "idle")
    optimizer, one, two = (OPTIMIZERS[kind](p) for p in ([w, idle, used], [alone], [twin]))

    def train(x, copy, *optimizers):
        def step():
            s.relu(used)
            s.backward(s.reduce_sum(s.square(x)) + s.reduce_sum(s.square(copy)))
            for each in optimizers:
                each.step()

        run = s.capture(step) if captured else step
        for _ in range(2 if captured else 3):
            run()
            s.reset()

    def bits(*parameters):
        return [p.numpy().tobytes() for p in parameters]

    def states(p):
        return {n: a.tolist() for n, a in optimizer.state()[1].items() if n.endswith(p.name)}

    train(w, alone, optimizer, one)
    assert bits(w) == bits(alone) != bits(s.param(first)) and bits(used) == bits(twin) and idle.numpy() == [3.0]
    assert not any(np.any(a) for p in (used, idle) for a in states(p).values())
    before, momentum, two.steps = bits(w), states(w), optimizer.steps
    train(used, twin, optimizer, two)
    assert bits(used) == bits(twin) != bits(s.param(later)) and bits(w) == before and states(w) == momentum
    assert optimizer.steps == 6 and idle.numpy() == [3.0]
    train(alone, twin, optimizer, one, two)
    assert optimizer.steps == 6 and bits(w) == before
    if not captured:  # frozen between the backward pass and the step
        s.backward(s.reduce_sum(s.square(w)) + s.reduce_sum(s.square(used)))
        w.requires_grad, later = False, bits(used)
        optimizer.step()
        assert bits(w) == before and states(w) == momentum and bits(used) != later


@pytest.mark.parametrize(
    ("make", "text"),
    [
        (lambda w: optim.SGD([w], lr=-1), "lr: got -1"), (lambda w: optim.SGD([w], lr=float("nan")), "lr: got nan"),
        (lambda w: optim.Adam([w], beta1=1), "beta1: got 1"), (lambda w: optim.SGD([w], nesterov=True), "nesterov"),
        (lambda w: optim.SGD([w], lr="a"), "lr: got str"), (lambda w: optim.SGD(w), "expected a list of Parameter"),
        (lambda w: optim.SGD({"w": w}), r"values\(\)"), (lambda w: optim.SGD(None), "got NoneType"),
        (lambda w: optim.SGD([w[0]]), "got TensorRef"), (lambda w: optim.SGD([]), "got none"),
    ],
)  # fmt: skip
def test_optimizers_refuse(s, make, text):
    assert_raises_regex((ValueError, TypeError), text, make, s.param([1.0], "w"))


MADE = {
    "sgd": lambda p: optim.SGD(p, momentum=0.5), "adam": optim.Adam, "adamw": optim.AdamW, "lion": optim.Lion,
    "rmsprop": lambda p: optim.RMSprop(p, momentum=0.5, centered=True), "average": optim.ExponentialMovingAverage,
    "groups": lambda p: optim.AdamW([{"params": p[:1], "lr": 0.25}, {"params": p[1:]}], lr=0.5),
}  # fmt: skip


@pytest.mark.parametrize("wrong", [np.nan, np.inf, -np.inf, "negative", "1", None, 1j, [0.1], np.ones(1)], ids=repr)
@pytest.mark.parametrize("kind", MADE)
def test_a_wrong_hyperparameter_is_refused_when_it_is_set(s, kind, wrong, tmp_path):
    """Nothing changes: the optimiser steps and is saved as before."""
    drawn = generator("hyperparameter", kind)
    value = -drawn.random() * 10.0 ** drawn.integers(-300, 300) if wrong == "negative" else wrong
    p = [s.param(drawn.standard_normal(3), name) for name in "ab"]
    optimizer = MADE[kind](p)
    before = [o._settings() for o in (optimizer, *optimizer.groups)]
    kinds = (float, np.float32, np.float64, np.array) if isinstance(value, float) else (lambda x: x,)
    for name in optimizer.hyper:
        for as_kind in kinds:
            for o in (optimizer, *optimizer.groups):
                with np.errstate(all="ignore"):
                    given = min(as_kind(value), as_kind(-1e-30)) if wrong == "negative" else as_kind(value)
                    said = rf"{name}: got .*, expected "
                    assert_raises_regex((ValueError, TypeError), said, setattr, o, name, given)
    assert [o._settings() for o in (optimizer, *optimizer.groups)] == before
    s.backward(s.reduce_sum(s.square(p[0])) + s.reduce_sum(p[1]))
    optimizer.step()
    checkpoint.save(tmp_path / "x", s, optimizer)
    checkpoint.load(tmp_path / "x", s, optimizer)


def test_a_rate_that_overflows_in_one_group_changes_none(s):
    p = [s.param([1.0], name) for name in "abc"]
    optimizer = optim.SGD([{"params": p[:1]}, {"params": p[1:2], "lr": 1e200}, {"params": p[2:]}], lr=1e-200)
    assert_raises_regex(ValueError, "lr: got inf", setattr, optimizer, "lr", 1.0)
    assert [o.lr for o in (optimizer, *optimizer.groups)] == [1e-200, 1e-200, 1e200, 1e-200]


def test_momentum_cannot_be_switched_on_later(s):
    w = s.param([1.0], "w")
    sgd = optim.SGD([w], lr=1.0)
    s.backward(s.scale(w, 1.0))
    sgd.momentum = 0.9
    assert_raises_regex(ValueError, "made without", sgd.step)
    sgd.momentum = 0.0
    assert w.value.tolist() == [1.0] and sgd.steps == 0
    s.backward(s.scale(w, 1.0))  # a refused step changed nothing
    sgd.step()
    assert w.value.tolist() == [0.0]


@pytest.mark.parametrize(
    "make",
    [
        functools.partial(optim.SGD, lr=0.25), functools.partial(optim.SGD, lr=0.25, momentum=0.5),
        functools.partial(optim.Adam, lr=0.25),
    ],
)  # fmt: skip
@pytest.mark.parametrize(
    ("device", "captured", "observed"),
    [("spec", False, False), ("cpu", False, False), ("cpu", False, True), ("cpu", True, False)],
)
def test_an_update_and_its_count_are_one_act(device, captured, observed, make):
    """After an interrupt at any point, parameters and states are those of as many steps as were counted."""

    def program(session):
        optimizer = make([session.param([3.0, -5.0], "a"), session.param([[7.0]], "b")])

        def backward():
            session.backward(session.reduce_sum(session.square(optimizer.parameters[0])))

        def values():
            states = optimizer.state()[1].values()
            return [a.astype(np.float64).tobytes() for a in (*(p.numpy() for p in optimizer.parameters), *states)]

        if captured:
            return optimizer, session.capture(lambda: (backward(), optimizer.step())[0]), values
        backward()
        return optimizer, optimizer.step, values

    with Session(device) as s, Session(device) as t:
        (optimizer, step, values), (other, other_step, other_values) = program(s), program(t)
        if observed:
            s.device.observe(Observer())
        counts = []
        stride = 7 if device == "spec" else 1  # thousands of points: the campaign of interrupts takes each of them
        for place in interruptions(step, stride):
            while other.steps < optimizer.steps:
                other_step()
            assert values() == other_values(), place
            counts.append(optimizer.steps)
        assert set(np.diff([*counts, optimizer.steps])) == {0, 1}  # the last time, nothing interrupted it
        optimizer.close(), other.close()


def test_states_of_other_optimizers(s):
    """Refused for other parameters and for settings that do not go together, with and without somebody who observes."""

    class Early(optim.SGD):
        def __init__(self, parameters):
            self.lr = 0.5  # before there is a session that could be observed
            super().__init__(parameters, lr=self.lr, momentum=0.5)

    v, w = s.param([1.0], "v"), s.param([2.0], "w")
    one, both = Early([w]), Early([v, w])
    settings, arrays = one.state()
    assert_raises_regex(
        ValueError, r"parameters: got \['w'\], expected \['v', 'w'\]", both.load_state, settings, arrays
    )
    wrong = {**settings, "momentum": 0.0, "nesterov": True}
    assert_raises_regex(ValueError, "nesterov: got True with momentum 0", one.load_state, wrong, arrays)
    observer = Observer()
    s.device.observe(observer)
    one.load_state({**settings, "lr": 0.125}, arrays)
    s.device.ignore(observer)
    assert one.lr == 0.125 and both.lr == 0.5
    with Session(s.device) as other:
        assert_raises_regex(ValueError, "those of several sessions", optim.SGD, [w, other.param([1.0], "x")])
    one.close(), both.close()


def test_two_threads_at_one_step(s):
    w = s.param([1.0], "w")

    class Waiting(optim.SGD):
        def _update(self, packed, gradients):
            if not self.steps:
                self.steps = 1
                assert_raises_regex(ValueError, "one thread at a time", run_in_thread, self.step)
            super()._update(packed, gradients)

    sgd = Waiting([w], lr=0.5)
    s.backward(s.scale(w, 1.0))
    sgd.step()
    assert sgd.steps == 1 and w.value.tolist() == [0.5]


def test_an_attribute_that_an_optimizer_has_not_is_refused(s):
    adam = optim.Adam([{"params": s.param([1.0]), "lr": 0.5}, {"params": s.param([2.0])}])
    for each in (adam, adam.groups[0]):
        for name, said in (
            ("learning_rate", "Adam: learning_rate: got an attribute of no such name, expected lr"),
            ("betas", "expected beta1 and beta2"), ("weight_deca", "expected weight_decay"),
        ):  # fmt: skip
            assert_raises_regex(AttributeError, said, setattr, each, name, 0.5)
    adam.lr, adam._note = 0.25, "private names are free"
    assert adam.groups[1].lr == 0.25


def test_subclasses_have_attributes_of_their_own(s):
    class Slow(optim.SGD):
        def __init__(self, parameters):
            super().__init__(parameters, lr=0.5)
            self.every = 2

    slow = Slow([s.param([1.0])])
    slow.every = 3
    assert_raises_regex(AttributeError, "Slow: other", setattr, slow, "other", 1)
