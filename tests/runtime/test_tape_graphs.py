"""Random programs: graphs of 20 and more operations drawn from the whole table agree with the specification on every device."""

from collections.abc import Callable
from functools import partialmethod
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import tlrt
from tests.runtime import tape_checks
from tlrt.spec import SpecDevice
from tlrt.tape import Tape
from tlspec.compare import same_bits
from tlspec.drawn import generator

Shape = tuple[int, ...]


class Program:
    """A graph that grows by operations that fit the shapes at hand; the same calls for the same seed on every tape."""

    def __init__(self, seed: int, tape: Tape) -> None:
        self.rng = generator("dag", seed)
        self.tape = tape
        self.values: list[int] = []
        for shape in ((4, 3), (4, 3), (3,), (4,), (2, 4, 3), (2, 3, 4), (3, 3), (), (2, 4, 4)):
            self.leaf(shape)

    def leaf(self, shape: Shape) -> int:
        """A new operand, one in four frozen."""
        array = self.rng.standard_normal(shape).astype(np.float32)
        id = self.tape.leaf(array, "leaf", bool(self.rng.random() < 0.75))
        self.values.append(id)
        return id

    def pick(self, fits: Callable[[Shape], bool]) -> int | None:
        """A value of a fitting shape, later ones likelier."""
        found = [v for v in self.values if fits(self.tape.shape(v))]
        if not found:
            return None
        return found[int(len(found) * (1 - self.rng.random() ** 2))] if len(found) > 1 else found[0]

    def like(self, shape: Shape) -> int:
        """A value of that shape, or a new one."""
        found = self.pick(lambda s: s == shape)
        return self.leaf(shape) if found is None else found

    def grow(self) -> None:
        name = OPERATIONS[int(self.rng.integers(len(OPERATIONS)))]
        made = RULES[name](self, self.tape)
        if made is not None:
            self.values.append(made)

    def small(self, rank: int | None = None) -> int:
        """A value of 1 to 200 elements, of `rank` axes where that is given."""
        return self.pick(lambda s: rank in (None, len(s)) and 0 < int(np.prod(s)) <= 200)  # type: ignore[return-value]

    vector, matrix, cube = partialmethod(small, 1), partialmethod(small, 2), partialmethod(small, 3)

    def below(self, n: int) -> int:
        return int(self.rng.integers(max(n, 1)))

    def places(self, n: int, k: int = 5) -> list[int]:
        return [int(i) for i in self.rng.integers(0, n + 2, size=k)]


def unary(name: str) -> Callable[[Program, Tape], int]:
    return lambda p, t: getattr(t, name)(p.small())


def binary(name: str) -> Callable[[Program, Tape], int]:
    def rule(p: Program, t: Tape) -> int:
        a = p.small()
        return getattr(t, name)(a, a if p.below(6) == 0 else p.like(t.shape(a)))

    return rule


def spread(p: Program, t: Tape) -> int:
    a = p.vector()
    (n,) = t.shape(a)
    return t.broadcast_to(a, (n, 3) if p.below(2) else (n, n), [1, 0] if p.below(2) or n != 3 else [0, 1])


def linear(p: Program, t: Tape) -> int:
    x = p.small() if p.below(2) else p.matrix()
    x = x if t.shape(x) else p.matrix()
    return t.linear(p.like((4, t.shape(x)[-1])), p.like((4,)), x)


def scan(p: Program, t: Tape) -> int:
    x = p.matrix()
    state = t.shape(x)[1]
    if p.below(2):
        return t.selective_scan_diag(p.like((state,)), p.like((state,)), x, p.like((state,)))
    return t.selective_scan_diag_var(p.like(t.shape(x)), p.like(t.shape(x)), x, p.like((state,)))


def spectral(p: Program, t: Tape) -> int:
    x = p.matrix()
    grid, width = t.shape(x)
    modes = min(2, grid // 2 + 1)
    return t.spectral_conv1d_rfft(x, p.leaf((modes, width, width)), p.leaf((modes, width, width)))


RULES: dict[str, Callable[[Program, Tape], int | None]] = {
    **{n: unary(n) for n in (
        "abs", "neg", "sqrt", "square", "relu", "exp", "log", "inv", "safe_log", "sigmoid", "tanh", "softplus", "silu", "gelu",
        "gelu_erf", "erf", "log1p", "expm1", "sin", "cos", "leaky_relu", "elu", "hardswish", "softsign", "mish", "sign", "round",
        "flatten", "softmax", "log_softmax", "reduce_sum", "reduce_mean", "detach")},
    **{n: binary(n) for n in ("add", "sub", "mul", "div", "max", "min", "mse_loss", "pow", "atan2", "lt")},
    "axpy": lambda p, t: t.axpy(a := p.small(), p.like(t.shape(a)), 0.7),
    "scale": lambda p, t: t.scale(p.small(), -0.4),
    "clamp": lambda p, t: t.clamp(p.small(), -0.5, 0.5),
    "add of a vector": lambda p, t: t.add(x := p.matrix(), p.like(t.shape(x)[1:])),
    "reduce_sum_axis": lambda p, t: t.reduce_sum(p.cube(), p.below(3)),
    "reduce_sum_axis0": lambda p, t: t.reduce_sum_axis0(p.matrix()),
    "reduce_sum_axis1": lambda p, t: t.reduce_sum_axis1(p.matrix()),
    "reduce_max_axis0": lambda p, t: t.reduce_max_axis0(p.matrix()),
    "reduce_max_axis1": lambda p, t: t.reduce_max_axis1(p.matrix()),
    "reshape": lambda p, t: t.reshape(p.small(), (-1, 1)),
    "transpose2d": lambda p, t: t.transpose2d(p.matrix()),
    "swap": lambda p, t: t.swap_adjacent_at_depth(p.cube(), p.below(3)),
    "transpose3d_bca": lambda p, t: t.transpose3d_bca(p.cube()),
    "transpose3d_cab": lambda p, t: t.transpose3d_cab(p.cube()),
    "transpose3d_acb": lambda p, t: t.transpose3d_acb(p.cube()),
    "permute": lambda p, t: t.permute(p.cube(), (2, 1, 0)),
    "broadcast_to": spread,
    "broadcast_vec_to_rows": lambda p, t: t.broadcast_vec_to_rows(p.vector(), 3),
    "broadcast_vec_to_cols": lambda p, t: t.broadcast_vec_to_cols(p.vector(), 3),
    "concat1d": lambda p, t: t.concat1d(p.vector(), p.vector()),
    "concat_dim0": lambda p, t: t.concat_dim0(x := p.matrix(), t.slice_range0(x, 0, 1)),
    "gather_scalar": lambda p, t: t.gather_scalar(x := p.vector(), p.below(t.shape(x)[0])),
    "gather_row": lambda p, t: t.gather_row(x := p.matrix(), p.below(t.shape(x)[0])),
    "gather_vec_nat": lambda p, t: t.gather_vec_nat(x := p.vector(), p.places(t.shape(x)[0])),
    "gather_rows_nat": lambda p, t: t.gather_rows_nat(x := p.matrix(), p.places(t.shape(x)[0])),
    "scatter_add": lambda p, t: t.scatter_add(x := p.vector(), p.like((5,)), p.places(t.shape(x)[0])),
    "scatter_add_row": lambda p, t: t.scatter_add_row(x := p.matrix(), p.like(t.shape(x)[1:]), 0),
    "scatter_add_rows": lambda p, t: t.scatter_add_rows(x := p.matrix(), p.like((5, t.shape(x)[1])), p.places(t.shape(x)[0])),
    "matmul": lambda p, t: t.matmul(x := p.matrix(), p.like((t.shape(x)[1], 3))),
    "bmm": lambda p, t: t.bmm(x := p.cube(), p.like((t.shape(x)[0], t.shape(x)[2], 4))),
    "linear": linear,
    "cross_entropy": lambda p, t: t.cross_entropy(x := p.matrix(), [p.below(t.shape(x)[1]) for _ in range(t.shape(x)[0])]),
    "layer_norm": lambda p, t: t.layer_norm(x := p.matrix(), p.like(t.shape(x)[1:]), p.like(t.shape(x)[1:]), 0.1),
    "rms_norm": lambda p, t: t.rms_norm(x := p.matrix(), p.like(t.shape(x)[1:]), 0.1),
    "channel_affine": lambda p, t: t.channel_affine(x := p.cube(), *(p.like(t.shape(x)[1:2]) for _ in range(3))),
    "batchnorm": lambda p, t: t.batchnorm_channel_first(x := p.cube(), p.like(t.shape(x)[:1]), p.like(t.shape(x)[:1]), 0.1),
    "conv2d": lambda p, t: t.conv2d(p.leaf((2, t.shape(x := p.cube())[0], 2, 2)), p.like((2,)), x, 1, 1),
    "conv_transpose2d": lambda p, t: t.conv_transpose2d(p.leaf((t.shape(x := p.cube())[0], 2, 2, 2)), p.like((2,)), x),
    "max_pool": lambda p, t: t.max_pool2d_pad(p.cube(), 3, 1, 1),
    "avg_pool": lambda p, t: t.avg_pool2d_pad(p.cube(), 3, 2, 1),
    "smooth_max_pool": lambda p, t: t.smooth_max_pool2d_pad(p.cube(), 3, 2, 1, 0.5),
    "flash_attention": lambda p, t: t.flash_attention(
        x := p.cube(), p.like(t.shape(x)), p.like(t.shape(x)), mask_mode=3 * p.below(2)
    ),
    "rotary": lambda p, t: t.rotary(x, start=2) if t.shape(x := p.cube())[2] % 2 == 0 else None,
    "sinusoidal": lambda p, t: t.sinusoidal(p.cube(), start=1),
    "scan": scan,
    "rfft1d_packed": lambda p, t: t.rfft1d_packed(p.matrix()),
    "irfft1d_packed": lambda p, t: t.irfft1d_packed(t.rfft1d_packed(x := p.matrix()), t.shape(x)[1]),
    "spectral_conv1d_rfft": spectral,
}  # fmt: skip
OPERATIONS = sorted(RULES)


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


def test_every_rule_is_drawn() -> None:
    """The programs that a run draws from are made of the whole table."""
    with Tape("cpu") as tape:
        program = Program(0, tape)
        assert [n for n in OPERATIONS if RULES[n](program, tape) is None and n != "rotary"] == []


def test_whole_programs_stay_near(record_property: Any) -> None:
    """A report: how far whole float32 programs end from the specification. The errors of all that came before are in it, so there
    is no bound to hold it against; only that there were programs to compare is demanded."""
    worst, compared = 0.0, 0
    for seed in range(20):
        with Tape("cpu") as tape, Tape("spec") as spec:
            out, _ = run(seed, 25, tape)
            run(seed, 25, spec)
            a, b = tape.value(out).numpy(), spec.value(out).numpy()
            if np.isfinite(a).all() and np.isfinite(b).all() and np.any(b):
                worst = max(worst, float((np.abs(a - b) / np.abs(b).max()).max()))
                compared += 1
    assert compared
    record_property("worst relative error of a program", worst)
