"""The exponential moving average of parameters: its values, swapped in and out, resumed, beside captured steps."""

import numpy as np
import pytest
from numpy.testing import assert_raises, assert_raises_regex

from audit.injection import interruptions
from tests import DEVICES
from tlrt import Session, checkpoint, errors, optim


class Run:
    """Two parameters, one of them frozen, an optimiser, and averages."""

    def __init__(self, device, captured=False):
        self.session = s = Session(device)
        self.w = s.param([1.0, -2.0, 4.0], "w")
        self.frozen = s.param([5.0], "frozen", requires_grad=False)
        self.optimizer = optim.SGD([self.w], lr=0.125)
        self.average = optim.ExponentialMovingAverage([self.w, self.frozen], decay=0.75)
        self.step = self._step if not captured else s.capture(self._step)

    def _step(self):
        s = self.session
        s.backward(s.reduce_sum(s.square(self.w)))
        self.optimizer.step()

    def steps(self, n):
        for _ in range(n):
            self.step()
            self.session.reset()
            self.average.update()

    def bits(self):
        return self.w.numpy().tobytes(), self.average.state()[1]["average/w"].tobytes(), self.average.steps

    def files(self):
        return self.session, [self.optimizer, self.average]


@pytest.mark.parametrize("device", ["spec", *DEVICES])
def test_the_average_follows_the_parameters(device):
    run = Run(device)
    w = np.array([1.0, -2.0, 4.0])
    expected = w.copy()
    saved = run.average.state()
    for _ in range(4):
        run.steps(1)
        w *= 0.75  # all of these numbers are exact
        expected += 0.25 * (w - expected)
        assert run.w.numpy().tolist() == w.tolist()
        with run.average.swapped():
            assert run.w.numpy().tolist() == expected.tolist() and run.frozen.numpy() == [5.0]
            for refused in (run.average.update, run.average.state, lambda: run.average.load_state(*saved)):
                assert_raises_regex(errors.ArgumentError, "averages swapped into the parameters", refused)
        assert run.w.numpy().tolist() == w.tolist()
    assert run.average.steps == 4
    assert_raises_regex(errors.ArgumentError, "decay: got 1.5", setattr, run.average, "decay", 1.5)
    assert run.average.decay == 0.75
    run.average.decay = 1.0  # which keeps the averages
    run.average.close(), run.optimizer.close(), run.session.close()


@pytest.mark.parametrize("device", ["spec", *DEVICES])
@pytest.mark.parametrize("captured", [False, True])
def test_averages_are_resumed(device, captured, tmp_path):
    """Also where the step is captured, and goes on after the averages were swapped in, out, or in for a step."""
    whole, other = Run(device), Run(device, captured)
    if captured:  # the capture was a step
        whole.step()
        whole.session.reset()
    whole.steps(3), other.steps(3)
    with other.average.swapped():
        _ = other.w.value
    checkpoint.save(tmp_path / "a", *other.files())
    resumed = Run(device, captured)
    checkpoint.load(tmp_path / "a", *resumed.files())
    for run in (whole, other, resumed):
        run.average.swap()
        run.step()
        run.session.reset()
        run.average.swap()
        run.steps(2)
    assert whole.bits() == other.bits() == resumed.bits()


@pytest.mark.parametrize("device", ["spec", "cpu"])
def test_an_interrupted_swap_happens_or_not(device):
    run = Run(device)
    run.steps(1)
    values = [run.w.numpy().tolist(), run.average._state["average"][0].numpy().tolist()]
    for place in interruptions(run.average.swap, 3):
        now = [run.w.numpy().tolist(), run.average._state["average"][0].numpy().tolist()]
        assert now == (values[::-1] if run.average._is_swapped else values), place


def test_what_averages_refuse(s):
    w = s.param([1.0], "w")
    assert_raises_regex(TypeError, "got dicts", optim.ExponentialMovingAverage, [{"params": [w]}])
    assert_raises_regex(ValueError, "decay: got 2", optim.ExponentialMovingAverage, [w], 2)
    average = optim.ExponentialMovingAverage([w])
    with assert_raises(KeyError), average.swapped():
        raise KeyError
    average.update()  # the averages are back
    if s.device.name != "spec":
        assert_raises(errors.CaptureError, s.capture, average.update)
        assert_raises(errors.CaptureError, s.capture, average.swap)
    average.close()
    assert_raises_regex(errors.ReleasedError, "a closed optimizer", average.update)
