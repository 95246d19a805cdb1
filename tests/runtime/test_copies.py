"""What owns memory of a device is not copied: no two objects release one handle."""

import copy
import pickle
from typing import Any

import pytest
from numpy.testing import assert_raises_regex

import tlrt
from tlrt import AnyBuffer, Session, optim

HOW = (copy.copy, copy.deepcopy, pickle.dumps)


@pytest.mark.parametrize("how", HOW, ids=lambda f: f.__name__)
def test_owners_refuse(dev: tlrt.Device, how: Any) -> None:
    with Session(dev) as s, tlrt.Tape(dev) as tape:
        w = s.param([1.0, 2.0], "w")
        optimizer = optim.Adam([w], lr=0.1)
        step = s.capture(lambda x: s.mul(w, s.const(x)), [1.0, 1.0])
        gradients = s.backward(s.reduce_sum(s.mul(w, w)))
        tape.leaf([1.0, 2.0], "leaf")
        before = dev.memory()
        for owner in (step, s, dev, tape, tape.nodes[0], optimizer, gradients):
            assert_raises_regex(TypeError, rf"^{type(owner).__name__}: got .*(pickle|copy).*, expected \S", how, owner)
        assert dev.memory() == before
        assert step([3.0, 1.0]).numpy().tolist() == [3.0, 2.0] and tape.value(0).numpy().tolist() == [1.0, 2.0]
        assert gradients[w].numpy().tolist() == [2.0, 4.0]
        optimizer.step()
        optimizer.close()


def test_a_shaped_buffer_is_copied_with_a_handle_of_its_own(dev: tlrt.Device) -> None:
    one = AnyBuffer.upload([[1.0, 2.0]], dev)
    two, three = copy.copy(one), copy.deepcopy(one)
    assert one.shape == two.shape == three.shape == (1, 2)
    assert (one.buffer.references, two.buffer.references, three.buffer.references) == (2, 2, 1)
    one.buffer.fill(5.0)
    one.release()
    assert two.numpy().tolist() == [[5.0, 5.0]] and three.numpy().tolist() == [[1.0, 2.0]]
    assert_raises_regex(TypeError, "pickle", pickle.dumps, two)
    two.release()
    three.release()
    assert dev.memory().live_buffers == 0
