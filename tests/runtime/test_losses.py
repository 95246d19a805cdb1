"""Losses and normalisations of channels: options at their ends, captured steps, and what is refused."""

from typing import Any

import numpy as np
from numpy.testing import assert_raises_regex

from tlrt import Session, errors, nn

LOGITS = np.array([[1.0, 2.0, 0.5], [0.0, -1.0, 3.0]])


def test_nothing_but_ignored_labels() -> None:
    """The mean is NaN, as in PyTorch, sums and single losses are 0, and nothing has a gradient."""
    with Session("cpu") as s:
        x = s.param(LOGITS, "x")
        assert np.isnan(s.cross_entropy(x, [-100, -100]).item())
        for reduction in ("sum", "none"):
            loss = s.cross_entropy(x, [7, 7], ignore_index=7, reduction=reduction)
            assert not loss.numpy().any()
        s.backward(s.cross_entropy(x, [-100, -100], reduction="sum"))
        assert not x.grad.numpy().any()
        w = s.param([1.0, 2.0, 3.0], "w")
        s.backward(s.cross_entropy(x, [0, 2], w))
        assert x.grad.numpy().any() and not w.grad.numpy().any(), "weights get no gradient"


def test_ignored_labels_of_a_captured_step_are_read_anew() -> None:
    with Session("cpu") as s:
        x = s.param(LOGITS, "x")

        def loss_of(labels: Any) -> Any:
            return s.cross_entropy(s.use(x), labels, ignore_index=3)

        step = s.capture(loss_of, [0, 3])
        for labels in ([0, 1], [3, 2], [1, 3]):
            again = step(labels).item()
            assert again == loss_of(np.array(labels)).item() and np.isfinite(again)
        assert np.isnan(step([3, 3]).item())
        below = s.capture(lambda y: s.cross_entropy(s.use(x), y, ignore_index=-100), [0, 1])
        assert_raises_regex(errors.IndexOutOfRangeError, "every label below cols", below, [0, 3])
        assert_raises_regex(errors.ArgumentError, "ignore_index: got 1", s.capture,
            lambda y: s.cross_entropy(s.use(x), y, ignore_index=1), [0, 1])  # fmt: skip


def test_refusals() -> None:
    with Session("spec") as s:
        x = s.const(LOGITS)
        wrong: list[tuple[type[Exception], str, Any]] = [
            (errors.IndexOutOfRangeError, "got 3, exp", lambda: s.cross_entropy(s.zeros((3, 3)), [1, 3, 7], ignore_index=1)),
            (errors.IndexOutOfRangeError, "labels: got -1 at", lambda: s.cross_entropy(x, [-1, -100])),
            (errors.ShapeError, "weight: got shape \\(2,\\)", lambda: s.cross_entropy(x, [0, 1], [1.0, 2.0])),
            (errors.ShapeError, "labels: got shape \\(2,\\), expected \\(3,\\)", lambda: s.cross_entropy(x, [0, 1], axis=0)),
            (errors.ArgumentError, "axis: got 2", lambda: s.cross_entropy(x, [0, 1], axis=2)),
            (errors.ArgumentError, "smoothing", lambda: s.cross_entropy(x, [0, 1], label_smoothing=1.5)),
            (errors.ArgumentError, "reduction: got 'all'", lambda: s.mse_loss(x, x, "all")),
            (errors.ArgumentError, "delta: got 0", lambda: s.huber_loss(x, x, delta=0)),
            (errors.ArgumentError, "beta: got -1", lambda: s.smooth_l1_loss(x, x, beta=-1)),
            (errors.ArgumentError, "delta: got nan", lambda: s.huber_loss(x, x, delta=np.nan)),
            (errors.ArgumentError, "beta: got nan", lambda: s.smooth_l1_loss(x, x, beta=np.nan)),
            (errors.ArgumentError, "groups: got 0", lambda: s.group_norm(x, 0)),
            (errors.ShapeError, "binary_cross", lambda: s.binary_cross_entropy_with_logits(x, x, s.zeros((4, 2, 3)))),
            (errors.ShapeError, "kl_div: target", lambda: s.kl_div(x, s.zeros(3))),
            (errors.ArgumentError, "groups: got 2", lambda: s.group_norm(x, 2)),
            (errors.ArgumentError, "beta: got None", lambda: s.group_norm(x, 3, s.zeros(3))),
            (errors.ShapeError, "instance_norm: x: got shape \\(3,\\)", lambda: s.instance_norm(s.zeros(3))),
            (errors.ArgumentError, "groups: got 3", lambda: nn.GroupNorm(s, 3, 4, name="g")),
            (errors.ShapeError, "width: got \\(\\)", lambda: nn.RMSNorm(s, (), name="r")),
        ]  # fmt: skip
        for kind, message, call in wrong:
            assert_raises_regex(kind, message, call)


def test_zeros_of_a_divergence() -> None:
    """A target of 0 counts 0 whatever the prediction, and a saturated logit has a finite loss."""
    with Session("cpu") as s:
        x, t = s.param([-3.0, -50.0], "x"), s.const([1.0, 0.0])
        loss = s.kl_div(x, t, "sum")
        s.backward(loss)
        assert (
            loss.item() == 3.0 and s.kl_div(x, t, "batchmean").item() == 1.5 and x.grad.numpy().tolist() == [-1.0, 0.0]
        )
        far = s.binary_cross_entropy_with_logits(
            s.const([1e30, -1e30, 200.0]), s.const([1.0, 0.0, 0.0]), reduction="none"
        )
        assert far.numpy().tolist() == [0.0, 0.0, 200.0]


def test_binary_cross_entropy_of_saturated_logits() -> None:
    """Small losses and gradients are not differences of large numbers."""
    with Session("cpu") as s:
        x, tail = s.param([40.0, -40.0, 1e30], "x"), np.exp(-40.0)
        loss = s.binary_cross_entropy_with_logits(x, s.const([1.0, 0.0, 1.0]), reduction="sum")
        s.backward(loss)
        np.testing.assert_array_max_ulp(np.float32(loss.item()), np.float32(2 * tail), 3)
        np.testing.assert_array_max_ulp(x.grad.numpy(), np.array([-tail, tail, 0], np.float32), 1)
        assert s.binary_cross_entropy_with_logits(s.zeros(0), s.zeros(0), reduction="sum").item() == 0
