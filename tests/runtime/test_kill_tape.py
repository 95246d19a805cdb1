"""What a tape and a session promise at their seams; each test was a defect that nothing else saw."""

from __future__ import annotations

import numpy as np
import pytest

from tlrt import Session, kernels

DEVICES = ["spec", "cpu", pytest.param("cuda", marks=pytest.mark.cuda)]


@pytest.fixture(params=DEVICES)
def session(request):
    import tlrt

    if request.param == "cuda" and len(tlrt.devices()) == 1:
        pytest.skip("no CUDA device on this machine")
    with Session(request.param) as s:
        yield s


def test_gradients_have_storage_of_their_own(session):
    """Both operands of a sum receive its cotangent; changing one gradient in place leaves the other."""
    s = session
    a, b = s.param([1.0, 2.0], "a"), s.param([3.0, 4.0], "b")
    found = s.backward(s.reduce_sum(s.add(a, b)))
    assert found[a].buffer.references == found[b].buffer.references == 1
    if s.device.name != "spec":
        kernels.scale(found[a].buffer, 5.0, out=found[a].buffer)
        assert found[a].numpy().tolist() == [5, 5]
    assert found[b].numpy().tolist() == [1, 1]


def test_what_no_grad_computes_is_a_constant(session):
    s = session
    w = s.param([3.0], "w")
    s.use(w)
    with s.no_grad():
        square = s.mul(w, w)
    found = s.backward(s.reduce_sum(s.mul(square, w)))
    assert found[w].numpy().tolist() == [9]


def test_zeros_of_both_signs_are_two_parameters(session):
    """clamp(-1, 0, 1) is +0 and clamp(-1, -0, 1) is -0, in whatever order they are asked for."""
    s = session
    x = s.const([-1.0])
    signs = [bool(np.signbit(s.clamp(x, lo, 1.0).numpy()[0])) for lo in (0.0, -0.0, 0.0)]
    assert signs == [False, True, False]
