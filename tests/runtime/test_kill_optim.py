"""What an optimiser hands to its kernel: each step's number, counted from 1, and every hyperparameter."""

from __future__ import annotations

import numpy as np
import pytest

import tlrt
from tlrt import Session, kernels, optim

DEVICES = ["cpu", pytest.param("cuda", marks=pytest.mark.cuda)]
CHOSEN = {"lr": 0.03, "beta1": 0.7, "beta2": 0.95, "eps": 1e-5, "weight_decay": 0.1}


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("kind", ["Adam", "AdamW"])
def test_a_run_is_the_kernels_called_by_hand(device, kind):
    if device == "cuda" and len(tlrt.devices()) == 1:
        pytest.skip("no CUDA device on this machine")
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
