"""Random programs: graphs of 20 and more operations drawn from the whole table agree with the specification on every device."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import tlrt
from tests.runtime import tape_checks
from tests.runtime.operation_calls import CALLS
from tlrt.spec import SpecDevice
from tlrt.tape import Tape
from tlspec.compare import same_bits
from tlspec.drawn import generator

#: a mask that is added must be finite, which a drawn value need not be
DRAWN = [(n, c) for n, calls in CALLS.items() for c in calls if "attention" not in n or len(c.shapes) != 4]


class Program:
    """A graph that grows by calls of any method; their operands are values at hand of the right shapes, or new. The same calls
    for the same seed on every tape."""

    def __init__(self, seed: int, tape: Tape) -> None:
        self.rng = generator("dag", seed)
        self.tape = tape
        self.values: list[int] = []

    def operand(self, array: np.ndarray) -> int:
        """A value, later ones likelier; or the array, one in four of them frozen."""
        found = [v for v in self.values if self.tape.shape(v) == array.shape]
        if found and self.rng.random() < 0.9:
            return found[int(len(found) * self.rng.random() ** 0.5)]
        self.values.append(self.tape.leaf(array, "leaf", bool(self.rng.random() < 0.75)))
        return self.values[-1]

    def grow(self) -> None:
        name, call = DRAWN[int(self.rng.integers(len(DRAWN)))]
        self.values.append(call.call(self.tape, *(self.operand(a) for a in call.operands(name))))


def run(seed: int, count: int, tape: Tape) -> tuple[int, np.ndarray]:
    """Grows a program of at least `count` operations; its output and a seed for it."""
    program = Program(seed, tape)
    outputs: list[int] = []
    while not outputs or sum(bool(n.parents) for n in tape.nodes) < count:
        program.grow()
        outputs = [v for v in program.values if tape.node(v).requires_grad and tape.node(v).parents]
    out = outputs[-1]
    for other in outputs[-6:-1]:  # so that much of the graph is reached
        out = tape.add(tape.reduce_sum(out), tape.reduce_sum(other))
    return out, program.rng.standard_normal(tape.shape(out)).astype(np.float32)


def agree(seed: int, count: int, devices: list[str]) -> None:
    """Every node of a program within its bound on each device, the same graph on the specification, and the same bits on all
    devices as far as the rows promise them."""
    tapes: list[Tape] = []
    try:
        for name in devices:
            tapes.append(tape := Tape(tlrt.device(name)))
            out, g = run(seed, count, tape)
            tape_checks.check_values(tape)
            tape_checks.check_gradients(tape, out, g)
        with Tape(SpecDevice()) as spec:
            run(seed, count, spec)
            assert [(n.name, n.shape, n.parents, n.requires_grad) for n in spec.nodes] == [
                (n.name, n.shape, n.parents, n.requires_grad) for n in tapes[0].nodes
            ]
        for other in tapes[1:]:
            for i, same in enumerate(tape_checks.same_bits_on_devices(other)):
                if same:
                    assert same_bits(tapes[0].nodes[i].buffer.numpy(), other.nodes[i].buffer.numpy()).ok, other.nodes[i]
    finally:
        for tape in tapes:
            tape.release()


@given(seed=st.integers(0, 2**32), count=st.integers(20, 45))
def test_every_node_within_its_bound(seed: int, count: int) -> None:
    agree(seed, count, ["cpu"])


@pytest.mark.cuda
@given(seed=st.integers(0, 2**32), count=st.integers(20, 45))
def test_devices_agree(seed: int, count: int) -> None:
    agree(seed, count, ["cpu", "cuda"])
