"""Optimisers: what they hand to their kernels (the number of a step from 1, every hyperparameter) and what they refuse."""

import numpy as np
import pytest
from numpy.testing import assert_raises_regex

from tests import DEVICES
from tlrt import Session, kernels, optim

CHOSEN = {"lr": 0.03, "beta1": 0.7, "beta2": 0.95, "eps": 1e-5, "weight_decay": 0.1}


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("kind", ["Adam", "AdamW"])
def test_a_run_is_the_kernels_called_by_hand(device, kind):
    step = kernels.adam_step if kind == "Adam" else kernels.adamw_step
    start = np.random.default_rng(2).standard_normal(7).astype(np.float32)
    with Session(device) as s:
        w = s.param(start, "w")
        optimizer = getattr(optim, kind)([w], **CHOSEN)
        p, m, v = s.device.buffer(start), s.device.zeros(7), s.device.zeros(7)
        for t in range(1, 5):
            g = s.backward(s.reduce_sum(s.square(s.use(w))))[w]
            step([p], [g.buffer], [m], [v], step=t, out=([p], [m], [v]), **CHOSEN)
            optimizer.step()
            assert w.numpy().tobytes() == p.numpy().tobytes(), t
            s.reset()
        optimizer.close()


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


def test_momentum_cannot_be_switched_on_later(s):
    w = s.param([1.0], "w")
    sgd = optim.SGD([w], lr=1.0)
    s.backward(s.scale(w, 1.0))
    sgd.momentum = 0.9
    assert_raises_regex(ValueError, "made without", sgd.step)
    sgd.momentum, sgd.lr = 0.0, "x"
    assert_raises_regex(TypeError, "lr: got str", sgd.step)
    assert w.value.tolist() == [1.0] and sgd.steps == 0
    sgd.lr = 1.0
    s.backward(s.scale(w, 1.0))  # a refused step changed nothing
    sgd.step()
    assert w.value.tolist() == [0.0]
