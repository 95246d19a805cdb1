"""Tapes that are not reset: what a step costs, and what is said; gradients of inputs that a loss does not reach."""

import warnings

from numpy.testing import assert_raises_regex

from tlrt import errors


def test_backward_visits_what_the_loss_reaches(s, monkeypatch):
    """A tape that is not reset grows; a step's backward pass takes no buffer for the steps before."""
    w, unused, x = s.param([2.0], "w"), s.param([1.0], "unused"), s.input([1.0], requires_grad=True)
    made = []
    zeros = s.device.zeros
    monkeypatch.setattr(type(s.device), "zeros", lambda device, n: made.append(n) or zeros(n))
    for _ in range(20):
        s.input([3.0], requires_grad=True)
        loss = (w * s.input([3.0], requires_grad=True)).reduce_sum()
        loss.backward()
    assert len(made) == 20, "the parameter that no loss reaches"
    assert w.grad.numpy() == 3 and unused.grad.numpy() == 0 and x.grad.numpy() == 0 and len(s.gradients._by_leaf) == 2


def test_gradients_of_inputs_that_one_of_several_losses_reaches(s):
    x, y = s.input([1.0], requires_grad=True), s.input([2.0], requires_grad=True)
    s.backward((x * 3.0).reduce_sum())
    assert x.grad.numpy() == 3 and y.grad.numpy() == 0
    s.backward((y * 5.0).reduce_sum(), accumulate=True)
    assert x.grad.numpy() == 3 and y.grad.numpy() == 5
    z = s.input([2.0], requires_grad=True)
    assert z.grad is None, "made after the pass"


def test_a_missing_reset_is_reported_once(s):
    w = s.param([1.0], "w")
    with warnings.catch_warnings(record=True) as found:
        warnings.simplefilter("always")
        for _ in range(11):
            x = s.use(w)
            for _ in range(1000):
                x = s.detach(x)
            x.item()
    assert [str(f.message).partition(" nodes")[2] for f in found] == [
        " of many steps; call reset() after each, which frees them"
    ]
    assert "10" in str(found[0].message)


def test_one_long_step_is_no_missing_reset(s):
    w = s.param([1.0], "w")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for _ in range(10):  # reads of steps before do not count
            s.use(w).item(), s.reset()
        x = s.use(w)
        for _ in range(12_000):
            x = s.detach(x)
        assert x.item() == 1


def test_numbers_of_one_element_are_read_as_floats(s):
    w = s.param([3.0, 4.0], "w")
    (w * w).reduce_sum().backward()
    norm = s.clip_grad_norm(1.0)
    assert float(norm) == norm.item() == 10 and f"{norm:.1f}" == "10.0" and int(norm) == 10
    assert_raises_regex(errors.ArgumentTypeError, r"item: buffer: got shape \(2,\), expected one", float, w.grad)
