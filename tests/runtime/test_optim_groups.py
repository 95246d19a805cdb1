"""Parameter groups: each group goes as an optimiser of its own would, eagerly, captured, and resumed from a checkpoint."""

import functools
import itertools
from typing import Any

import numpy as np
import pytest
from numpy.testing import assert_raises_regex

from tests import DEVICES
from tlrt import Session, checkpoint, errors, optim

START = np.array([3.0, -2.0, 0.5])
#: an optimiser, what its second group has of its own, and how that is written in a dict
GROUPS: dict[str, Any] = {
    "sgd": (optim.SGD, {"lr": 0.03, "weight_decay": 0.1}, None),
    "momentum of one group": (optim.SGD, {"lr": 0.03, "momentum": 0.9, "nesterov": True}, None),
    "adam": (optim.Adam, {"lr": 0.5, "beta1": 0.5, "beta2": 0.75}, {"lr": 0.5, "betas": (0.5, 0.75)}),
    "adamw": (optim.AdamW, {"weight_decay": 0.5, "eps": 1e-3}, None),
    "momentum of one group of rmsprop": (optim.RMSprop, {"alpha": 0.5, "momentum": 0.5}, None),
    "variance of one group": (optim.RMSprop, {"centered": True, "eps": 0.5}, None),
    "all groups centered": (functools.partial(optim.RMSprop, centered=True), {"alpha": 0.5}, None),
    "lion": (optim.Lion, {"beta1": 0.5, "beta2": 0.75}, {"betas": (0.5, 0.75)}),
}


class Grouped:
    """Two parameters, trained by one optimiser of two groups or by two optimisers."""

    def __init__(self, device: str, case: str, grouped: bool) -> None:
        self.session = s = Session(device)
        self.parameters = [s.param(START, "a"), s.param(2 * START, "b")]
        kind, own, written = GROUPS[case]
        self.own = own
        if grouped:
            a, b = self.parameters
            groups = [{"params": [a]}, {"params": b, **(written or own)}]
            self.optimizers = [kind(groups, lr=0.1)]
        else:
            self.optimizers = [kind([self.parameters[0]], lr=0.1), kind([self.parameters[1]], **{"lr": 0.1, **own})]

    def schedule(self, factor: float) -> None:
        self.optimizers[0].lr = 0.1 * factor
        if len(self.optimizers) > 1:
            self.optimizers[1].lr = self.own.get("lr", 0.1) * (0.1 * factor / 0.1)

    def step(self) -> None:
        s = self.session
        s.backward(s.reduce_sum(s.square(self.parameters[0]) + s.square(self.parameters[1])))
        for each in self.optimizers:
            each.step()

    def train(self, captured: bool) -> None:
        run = self.session.capture(self.step) if captured else self.step
        if not captured:
            run()
            self.session.reset()
        for factor in (0.5, 0.5, 2.0):
            self.schedule(factor)
            run()
            self.session.reset()

    def bits(self) -> list[bytes]:
        states = {name: a for o in self.optimizers for name, a in o.state()[1].items()}
        return [p.numpy().tobytes() for p in self.parameters] + [states[n].tobytes() for n in sorted(states)]


@pytest.mark.parametrize("captured", [False, True])
@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("case", GROUPS)
def test_groups_are_optimisers_side_by_side(device, case, captured, tmp_path):
    whole, apart = Grouped(device, case, True), Grouped(device, case, False)
    whole.train(captured), apart.train(captured)
    assert whole.bits() == apart.bits() and whole.optimizers[0].steps == 4
    checkpoint.save(tmp_path / "a", whole.session, whole.optimizers)
    resumed = Grouped(device, case, True)
    resumed.step(), resumed.session.reset()
    checkpoint.load(tmp_path / "a", resumed.session, resumed.optimizers)
    assert resumed.bits() == whole.bits() and resumed.optimizers[0].steps == 4
    for each in (whole, apart, resumed):
        each.train(captured)
    assert whole.bits() == apart.bits() == resumed.bits()
    assert whole.bits() != Grouped(device, case, True).bits()


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("frozen", list(itertools.product((False, True), repeat=4))[:-1], ids=str)
@pytest.mark.parametrize("case", GROUPS)
def test_any_of_the_parameters_may_be_frozen(device, case, frozen):
    """The others go on as each would alone, and the frozen ones stay; in every other case with captured steps."""
    kind, own, written = GROUPS[case]
    captured = (sum(k * still for k, still in enumerate(frozen)) + list(GROUPS).index(case)) % 2
    with Session(device) as s:
        whole, alone = ([s.param(START * (i + 1), f"{name}{i}") for i in range(4)] for name in ("whole", "alone"))
        trained = [kind([p], **{"lr": 0.1, **(own if i > 1 else {})}) for i, p in enumerate(alone)]
        trained.append(kind([{"params": whole[:2]}, {"params": whole[2:], **(written or own)}], lr=0.1))

        def step():
            s.backward(s.reduce_sum(s.square(s.concat([s.use(p) for p in (*whole, *alone)]))))
            for each in trained:
                each.step()

        step(), s.reset()
        before = [p.value.tolist() for p in whole]
        trained = [o for o, still in zip(trained, (*frozen, False), strict=True) if not still]
        for p, still in zip(whole, frozen, strict=True):
            p.requires_grad = not still
        run = s.capture(step) if captured else step
        run(), s.reset(), run()
        after, wanted = ([p.value.tolist() for p in ps] for ps in (whole, alone))
        steps = 3 + captured  # capture takes one, too
        assert [g.steps for g in trained[-1].groups] == [
            1 if all(still) else steps for still in (frozen[:2], frozen[2:])
        ]
        assert trained[-1].steps == trained[-1].state()[0]["steps"] == steps
        assert after == wanted and [a == b for a, b in zip(after, before, strict=True)] == list(frozen)


def test_a_checkpoint_restores_what_groups_share(s, tmp_path):
    a, b = s.param([1.0], "a"), s.param([1.0], "b")

    def made() -> optim.AdamW:
        return optim.AdamW([{"params": [a]}, {"params": [b], "lr": 0.5}], lr=0.125)

    adam = made()
    adam.lr, adam.eps = 0.25, 1e-3
    checkpoint.save(tmp_path / "a", s, [adam])
    fresh = made()
    checkpoint.load(tmp_path / "a", s, [fresh])
    assert (fresh.lr, fresh.eps) == (adam.lr, adam.eps) == (0.25, 1e-3)
    assert [g.lr for g in fresh.groups] == [g.lr for g in adam.groups]


def test_groups_share_what_they_do_not_have(s):
    a, b = s.param([1.0], "a"), s.param([1.0], "b")
    adam = optim.Adam([{"params": [a]}, {"params": [b], "lr": 0.5, "beta1": 0.25}], lr=0.125)
    first, second = adam.groups
    adam.beta1, adam.eps, adam.lr = 0.75, 1e-3, 0.25
    assert (first.lr, first.beta1, first.eps) == (0.25, 0.75, 1e-3)
    assert (second.lr, second.beta1, second.eps) == (1.0, 0.25, 1e-3) and "2 parameters in 2 groups" in repr(adam)
    adam.lr = 0.0
    adam.lr = 0.125
    assert (first.lr, second.lr) == (0.125, 0.5)
    assert_raises_regex(errors.ArgumentError, "lr: got -1.0", setattr, second, "lr", -1.0)
    s.backward(s.reduce_sum(a + b))
    b.requires_grad = False
    adam.step()
    assert (first.steps, second.steps, adam.steps) == (1, 0, 1) and b.value.tolist() == [1.0]
    b.requires_grad = True
    settings, arrays = adam.state()
    assert_raises_regex(errors.ArgumentError, "1 groups, expected 2", adam.load_state,
                        {**settings, "groups": settings["groups"][:1]}, arrays)  # fmt: skip
    plain = optim.Adam([a, b])
    assert_raises_regex(errors.ArgumentError, "groups: got 0 groups", adam.load_state, *plain.state())
    assert_raises_regex(errors.ArgumentError, "groups: got 2 groups", plain.load_state, settings, arrays)
    adam.close(), plain.close()
    groups = [{"params": a}, {"params": Session(s.device).param([1.0], "a")}]
    assert_raises_regex(errors.DeviceMismatchError, "several sessions", optim.Adam, groups)
    assert_raises_regex(errors.ReleasedError, "Adam: got a closed", first.step)


def test_a_state_goes_to_other_orders_and_groups(s):
    """Where parameters that share a group had equal hyperparameters, each has its own state and settings."""
    a, b, c = (s.param(START * k, name) for k, name in enumerate("abc", 1))
    makers = [
        (lambda: optim.Adam([a, b, c]), lambda: optim.Adam([c, a, b])),
        (lambda: optim.SGD([{"params": [a, b], "lr": 0.5}, {"params": c}], momentum=0.5),
         lambda: optim.SGD([{"params": b}, {"params": c}, {"params": a}], momentum=0.25)),
    ]  # fmt: skip
    s.backward(s.reduce_sum(s.square(a) * b * c))
    for make, remake in makers:
        first, second = make(), remake()
        first.step()
        settings, arrays = first.state()
        second.load_state(settings, arrays)
        again, found = second.state()
        assert {n: x.tolist() for n, x in found.items()} == {n: x.tolist() for n, x in arrays.items()}
        for one in (settings, again):
            parts = one.pop("groups", [{**one}])
            one["each"] = {n: {k: v for k, v in g.items() if k != "parameters"} for g in parts for n in g["parameters"]}
        assert again.pop("parameters") == [p.name for p in second.parameters] != settings.pop("parameters")
        assert again == settings and second.steps == 1
    settings, arrays = first.state()
    mixed = optim.SGD([{"params": [a, c]}, {"params": b}], momentum=0.5)
    assert_raises_regex(errors.ArgumentError, "parameters: got", mixed.load_state, settings, arrays)


@pytest.mark.parametrize(
    ("groups", "said"),
    [
        (lambda w: [{"params": [w], "rate": 1.0}], r"group 0: got \['rate'\], expected some of params, lr"),
        (lambda w: [{"params": [w]}, w], "group 1: got Parameter"), (lambda w: [{"lr": 1.0}], "group 0: got dict"),
        (lambda w: [{"params": [w]}, {"params": [w]}], "one in several groups"),
        (lambda w: [{"params": []}], "got none"), (lambda w: [{"params": [w], "lr": "a"}], "lr: got str"),
        (lambda w: [{"params": [w], "momentum": -1.0}], "momentum: got -1"),
        (lambda w: [{"params": [{"params": [w]}]}], "group 0: got dicts"),
    ],
)  # fmt: skip
def test_groups_refuse(s, groups, said):
    assert_raises_regex((ValueError, TypeError), said, optim.SGD, groups(s.param([1.0], "w")))


def test_a_group_without_a_state_of_the_others(s):
    groups = [{"params": [s.param([1.0], "a")]}, {"params": [s.param([1.0], "b")], "centered": False}]
    first, second = (optim.RMSprop(groups, centered=True) for _ in range(2))
    s.backward(s.reduce_sum(first.parameters[0] * first.parameters[1]))
    first.step()
    settings, arrays = first.state()
    second.load_state(settings, arrays)
    assert set(arrays) == {"v/a", "m/a", "b/a", "v/b", "b/b"} and second.state() == (settings, arrays)


def test_a_group_beside_no_rate_at_the_start(s):
    sgd = optim.SGD([{"params": [s.param([1.0], "w")], "lr": 0.5}], lr=0.0)
    assert sgd.groups[0].lr == 0.5
    assert_raises_regex(ValueError, "lr above 0 when the optimizer is made", setattr, sgd, "lr", 0.1)


def test_a_group_that_is_refused_changes_none(s):
    a, b = s.param([1.0], "a"), s.param([1.0], "b")
    sgd = optim.SGD([{"params": [a]}, {"params": [b]}], lr=0.5, momentum=0.5, nesterov=True)
    sgd.groups[1].momentum = 0.0
    s.backward(s.reduce_sum(a * b))
    assert_raises_regex(errors.ArgumentError, "nesterov", sgd.step)
    assert a.value[0] == b.value[0] == 1.0 and sgd.steps == 0
