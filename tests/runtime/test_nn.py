"""tlrt.nn: gradients of whole layers against differences in float64, agreement of devices, weights, modes, misuse."""

import inspect
import math
from functools import partial

import numpy as np
import pytest
from numpy.testing import assert_raises_regex

import tlrt
from tests import has_cuda
from tlrt import Session, errors, nn

DEVICES = ["spec", "cpu"] + (["cuda"] if has_cuda() else [])
U64 = 2.0**-53

#: options of a block of the Llama family
LLAMA = {
    "norm": "rms", "activation": "swiglu", "bias": False, "kv_heads": 2, "rotary": 10.0, "ratio": 1, "causal": True,
}  # fmt: skip

#: name -> (the layer, the shape of its input)
LAYERS = {
    "linear": (lambda s: nn.Linear(s, 5, 4, name="l"), (3, 5)),
    "linear of one vector": (lambda s: nn.Linear(s, 5, 4, name="l"), (5,)),
    "linear without bias": (lambda s: nn.Linear(s, 5, 4, name="l", bias=False), (2, 3, 5)),
    "conv": (lambda s: nn.Conv(s, 2, 3, 3, name="l", padding=1, stride=2), (2, 2, 5, 6)),
    "conv of rank 1": (lambda s: nn.Conv(s, 2, 3, (3,), name="l"), (2, 2, 6)),
    "conv of rank 3 without bias": (lambda s: nn.Conv(s, 2, 3, 2, name="l", rank=3, bias=False), (2, 3, 3, 4)),
    "conv transpose": (lambda s: nn.ConvTranspose(s, 2, 3, 4, name="l", stride=2, padding=1), (2, 2, 3, 2)),
    "conv transpose of rank 1": (lambda s: nn.ConvTranspose(s, 2, 3, (2,), name="l"), (2, 4)),
    "max pool": (lambda s: nn.MaxPool(2), (2, 2, 4, 5)),
    "avg pool": (lambda s: nn.AvgPool((3,), stride=1, padding=1), (2, 2, 5)),
    "smooth max pool": (lambda s: nn.SmoothMaxPool(2, beta=2.0, rank=2), (2, 4, 4)),
    "layer norm": (lambda s: nn.LayerNorm(s, 6, name="l"), (2, 3, 6)),
    "layer norm of two axes": (lambda s: nn.LayerNorm(s, (3, 4), name="l"), (2, 3, 4)),
    "layer norm alone": (lambda s: nn.LayerNorm(s, 6, name="l", affine=False), (2, 6)),
    "rms norm": (lambda s: nn.RMSNorm(s, 6, name="l"), (2, 3, 6)),
    "rms norm of two axes": (lambda s: nn.RMSNorm(s, (3, 4), name="l", affine=False), (2, 3, 4)),
    "group norm": (lambda s: nn.GroupNorm(s, 2, 4, name="l"), (3, 4, 2, 3)),
    "instance norm": (lambda s: nn.InstanceNorm(s, 3), (2, 3, 5)),
    "instance norm with weights": (lambda s: nn.InstanceNorm(s, 3, name="l", affine=True), (2, 3, 2, 3)),
    "batch norm alone": (lambda s: nn.BatchNorm(s, 3, name="l", affine=False), (4, 3, 2)),
    "batch norm": (lambda s: nn.BatchNorm(s, 3, name="l"), (4, 3, 2, 2)),
    "batch norm of vectors": (lambda s: nn.BatchNorm(s, 3, name="l"), (5, 3)),
    "attention": (lambda s: nn.MultiHeadAttention(s, 8, 2, name="l", causal=True), (2, 5, 8)),
    "attention with biases": (lambda s: nn.MultiHeadAttention(s, 8, 2, name="l", bias=True), (2, 5, 8)),
    "attention composed": (lambda s: nn.MultiHeadAttention(s, 8, 2, name="l", use_flash=False), (5, 8)),
    "transformer block": (lambda s: nn.TransformerBlock(s, 8, 2, name="l", dropout=0.25, causal=True), (2, 5, 8)),
    "transformer block of Llama": (lambda s: nn.TransformerBlock(s, 8, 4, name="l", **LLAMA), (1, 3, 8)),
    "selective scan": (lambda s: nn.SelectiveScan(s, 6, 4, name="l"), (5, 2, 6)),
    "mamba": (lambda s: nn.MambaBlock(s, 6, name="l", state=4), (2, 7, 6)),
    "mamba of one sequence": (lambda s: nn.MambaBlock(s, 6, name="l", state=4, taps=1), (3, 6)),
    "spectral": (lambda s: nn.SpectralConv1d(s, 4, 5, name="l"), (2, 8, 4)),
    "spectral of one sample": (lambda s: nn.SpectralConv1d(s, 4, 3, name="l"), (9, 4)),
    "fourier block": (lambda s: nn.FNOBlock1d(s, 4, 3, name="l"), (2, 9, 4)),
    "fourier block of two axes": (lambda s: nn.FNOBlock2d(s, 3, (2, 3), name="l"), (2, 3, 5, 4)),
    "dropout": (lambda s: nn.Dropout(0.5), (4, 5)),
}
everywhere = pytest.mark.parametrize("name", list(LAYERS))
in_both_modes = pytest.mark.parametrize("training", [True, False], ids=["training", "evaluation"])


def randomised(s, layer, rng):
    """The layer's parameters moved off their structured starts (zeros, ones), running variances kept positive."""
    for p in layer.parameters():
        fresh = p.value + 0.3 * rng.standard_normal(p.shape)
        p.set(np.abs(fresh) if p.name.endswith("running_var") else fresh)


@everywhere
@in_both_modes
def test_gradients_are_those_of_differences(name, training):
    """On the specification, in float64: the derivative along a random direction of all weights and the input together.

    The central difference over h errs by its truncation, which the one over 2h tells (it is four times as large to leading
    order), and by the rounding of the two sums, one rounding per node and term at most.
    """
    make, shape = LAYERS[name]
    rng = np.random.default_rng(3)
    with Session("spec", seed=5) as s:
        layer = make(s)
        randomised(s, layer, rng)
        x = s.param(rng.standard_normal(shape), "x")
        weights = [p for p in [*layer.parameters(), x] if p.requires_grad]
        centres = [p.value.copy() for p in weights]
        directions = [rng.standard_normal(p.shape) for p in weights]
        statistics = [(p, p.value.copy()) for p in layer.parameters() if not p.requires_grad]
        g = rng.standard_normal(layer(s.use(x)).shape).astype(np.float32).astype(np.float64)  # uploads as it is
        s.reset()

        def total(h, backward=False):
            """Σ g·layer(x) at the centre plus h times the direction, by the same draws and the same running statistics."""
            for p, c, d in zip(weights, centres, directions, strict=True):
                p.set(c + h * d)
            for p, value in statistics:
                p.set(value)
            s.counter = 1000
            y = layer(s.use(x), training=training)
            f = float((g * y.numpy()).sum())
            size = float(np.abs(g * y.numpy()).sum()) * s.tape.size
            slope = None
            if backward:
                s.backward(y, g)
                assert not s.gradients._unreached, "a weight that nothing comes of"
                slope = sum(float((p.grad.numpy() * d).sum()) for p, d in zip(weights, directions, strict=True))
            s.reset()
            return f, size, slope

        h = 2.0**-14
        _, size, slope = total(0.0, backward=True)
        near = (total(h)[0] - total(-h)[0]) / (2 * h)
        far = (total(2 * h)[0] - total(-2 * h)[0]) / (4 * h)
        assert slope != 0 and slope == pytest.approx(near, rel=0, abs=abs(far - near) + U64 * size / h)


def everything(s):
    """Every layer in both modes, and a step of training on the sum of their mean squares."""
    rng = np.random.default_rng(0)
    layers = [(make(_Prefixed(s, f"{i}.")), shape) for i, (make, shape) in enumerate(LAYERS.values())]
    optimizer = tlrt.optim.AdamW(s.parameters.values(), lr=0.01)
    for _ in range(2):
        total = s.zeros(())
        for layer, shape in layers:
            x = s.input(rng.standard_normal(shape), requires_grad=True)
            for training in (True, False):
                total = total + s.square(layer(x, training=training)).reduce_mean()
        s.backward(total)
        optimizer.step()
        value = total.item()
        s.reset()
    optimizer.close()
    return value


class _Prefixed:
    """A session that puts a prefix before the names of parameters."""

    def __init__(self, session, prefix):
        self._session, self._prefix = session, prefix

    def param(self, value, name, *rest):
        return self._session.param(value, self._prefix + name, *rest)

    def __getattr__(self, name):
        return getattr(self._session, name)


def test_every_operation_of_every_layer_is_within_its_bound():
    report = tlrt.compare(everything, DEVICES)
    assert report.ok, report
    seen = {r.op for r in report.rows if r.device == "cpu" and r.backward is not None}
    assert {"linear", "conv", "conv_transpose", "batchnorm_channel_first", "flash_attention"} <= seen
    assert {"selective_scan_diag_var", "spectral_conv1d_rfft", "irfft1d_packed", "layer_norm"} <= seen


@everywhere
def test_parameters_are_all_that_the_layer_made(s, name):
    layer = LAYERS[name][0](s)
    assert layer.parameters() == list(s.parameters.values())
    assert all(p.name.startswith("l.") for p in layer.parameters())
    shown = repr(layer)
    assert all(f"{n.rpartition('.')[2]}{list(p.shape)}" in shown for n, p in layer.named_parameters())
    count = sum(p.size for p in layer.parameters())
    assert not count or f": {count:,} parameters" in shown.splitlines()[0]


@everywhere
def test_the_mode_is_given_by_its_name(s, name):
    """As a second argument it could be mistaken for states, or for a mask."""
    make, shape = LAYERS[name]
    layer, x = make(s), s.zeros(shape)
    assert layer(x, training=True).shape == layer(x).shape
    assert_raises_regex(TypeError, "positional argument", layer, x, True)


@everywhere
def test_initial_weights_are_the_same_numbers_on_every_device(name):
    starts = []
    for device in DEVICES:
        with Session(device, seed=11) as s:
            LAYERS[name][0](s)
            assert all(p.value.dtype == np.float32 for p in s.parameters.values())
            starts.append({n: p.value.tobytes() for n, p in s.parameters.items()})
    assert all(start == starts[0] for start in starts)


def test_initial_weights_follow_the_seed_and_the_order(s):
    a, b = nn.Linear(s, 30, 20, name="a"), nn.Linear(s, 30, 20, name="b")
    assert s.counter == 4, "a weight and a bias draw once each"
    assert not np.array_equal(a.weight.value, b.weight.value)
    with Session("cpu", seed=6) as other:
        assert not np.array_equal(nn.Linear(other, 30, 20, name="a").weight.value, a.weight.value)


@pytest.mark.parametrize(
    ("make", "weight", "fan"),
    [
        (lambda s: nn.Linear(s, 50, 40, name="l"), (40, 50), 50),
        (lambda s: nn.Conv(s, 6, 40, 3, name="l"), (40, 6, 3, 3), 54),
        (lambda s: nn.Conv(s, 12, 80, 3, name="l", groups=2), (80, 6, 3, 3), 54),
        (lambda s: nn.ConvTranspose(s, 40, 60, 3, name="l"), (40, 60, 3, 3), 540),
        (lambda s: nn.ConvTranspose(s, 40, 60, 3, name="l", groups=2), (40, 30, 3, 3), 270),
    ],
)
def test_weights_start_as_in_pytorch(s, make, weight, fan):
    """Uniform within ±1/√fan_in: the bounds hold, and 2000 draws come within 1 % of both with near certainty."""
    layer, bound = make(s), np.float32(1 / math.sqrt(fan))
    assert layer.weight.shape == weight
    assert np.abs(layer.weight.value).max() <= bound and 0.8 * bound < np.abs(layer.bias.value).max() <= bound
    assert layer.weight.value.max() > 0.99 * bound and layer.weight.value.min() < -0.99 * bound


def test_initialisers_are_their_formulas(dev):
    """Of the numbers that the session draws next."""
    shape, u, z = (4, 6), "rand_uniform", "rand_normal"

    def with_fresh(function):
        with tlrt.Session(dev, seed=5) as s:
            return function(s)

    for made, draw, low, span in [
        (lambda s: nn.init.normal(s, shape, 2.0, 3.0), z, 2.0, 3.0),
        (lambda s: nn.init.uniform(s, shape, -2.0, 4.0), u, -2.0, 6.0),
        (lambda s: nn.init.normal(s, shape), z, 0.0, 1.0),
        (lambda s: nn.init.normal(s, shape, 2.0, 0.0), z, 2.0, 0.0),
        (lambda s: nn.init.uniform(s, shape), u, -1.0, 2.0),
        (lambda s: nn.init.uniform(s, shape, 2.0, 2.0), u, 2.0, 0.0),
        (lambda s: nn.init.constant(s, shape), u, 0.0, 0.0),
        (lambda s: nn.init.xavier_normal(s, shape), z, 0.0, math.sqrt(2 / 10)),
        (lambda s: nn.init.xavier_normal(s, shape, 3.0), z, 0.0, 3 * math.sqrt(2 / 10)),
        (lambda s: nn.init.xavier_uniform(s, shape), u, -math.sqrt(6 / 10), 2 * math.sqrt(6 / 10)),
        (lambda s: nn.init.xavier_uniform(s, shape, 3.0), u, -3 * math.sqrt(6 / 10), 6 * math.sqrt(6 / 10)),
        (lambda s: nn.init.kaiming_uniform(s, shape, slope=3.0), u, -math.sqrt(1 / 10), 2 * math.sqrt(1 / 10)),
        (lambda s: nn.init.kaiming_uniform(s, shape, slope=0.0), u, -1.0, 2.0),
        (lambda s: nn.init.zeros(s, shape), u, 0.0, 0.0),
        (lambda s: nn.init.ones(s, shape), u, 1.0, 0.0),
    ]:
        drawn = with_fresh(lambda s, draw=draw: getattr(s, draw)(shape).numpy())
        found = with_fresh(made)
        assert found.dtype == np.float32 and np.allclose(found, low + span * drawn, rtol=1e-6, atol=1e-6)
    for said, call in (
        ("std: got -1", lambda s: nn.init.normal(s, shape, std=-1)),
        ("std: got nan", lambda s: nn.init.normal(s, shape, std=math.nan)),
        ("low: got 2", lambda s: nn.init.uniform(s, shape, 2, 1)),
        ("low: got nan", lambda s: nn.init.uniform(s, shape, math.nan)),
        (r"shape: got \(3,\)", lambda s: nn.init.kaiming_uniform(s, (3,))),
    ):
        assert_raises_regex(errors.ArgumentError, said, with_fresh, call)


def test_initialisers_of_nothing(s):
    """A fan of 0 is no division by it, and gives biases of 0."""
    assert nn.init.fans((8, 3, 5, 5)) == (75, 200)
    for initialiser in (nn.init.kaiming_uniform, nn.init.xavier_normal, nn.init.xavier_uniform):
        assert all(initialiser(s, shape).shape == shape for shape in ((0, 0), (3, 0), (0, 3, 2)))
    for layer in (nn.Linear(s, 0, 3, name="l"), nn.Conv(s, 2, 3, 0, name="c")):
        assert layer.bias.value.tolist() == [0.0] * 3


def within(low, high):
    return partial(nn.init.uniform, low=low, high=high)


def logarithms(s, shape):
    return np.log(np.broadcast_to(np.arange(1, shape[1] + 1), shape)).astype(np.float32)


XAVIER, KAIMING, ZEROS, ONES = nn.init.xavier_uniform, nn.init.kaiming_uniform, nn.init.zeros, nn.init.ones
#: layers, and what their parameters are drawn by, in their order
STARTS = [
    (lambda s: nn.Embedding(s, 5, 4, name="l"), [nn.init.normal]),
    (lambda s: nn.MultiHeadAttention(s, 8, 2, name="l", kv_heads=1, bias=True), [XAVIER] * 4 + [ZEROS] * 4),
    (lambda s: nn.TransformerBlock(s, 8, 2, name="l", norm="rms", activation="swiglu", bias=False), [ONES, *[XAVIER] * 4,
     ONES, *[KAIMING] * 3]),
    (lambda s: nn.LSTM(s, 2, 4, name="l"), [within(-0.5, 0.5)] * 4),
    (lambda s: nn.GRU(s, 2, 4, name="l"), [within(-0.5, 0.5)] * 4),
    (lambda s: nn.SpectralConv1d(s, 2, 3, name="l"), [within(0, 0.25)] * 2),
    (lambda s: nn.SpectralConv2d(s, 2, 3, name="l"), [within(0, 0.25)] * 2),
    (lambda s: nn.MambaBlock(s, 2, name="l", taps=16, state=3), [KAIMING, KAIMING, *[within(-0.25, 0.25)] * 2, KAIMING, KAIMING,
     None, KAIMING, KAIMING, logarithms, ONES, KAIMING]),
    (lambda s: nn.GroupNorm(s, 2, 4, name="l"), [ONES, ZEROS]), (lambda s: nn.LayerNorm(s, 4, name="l"), [ONES, ZEROS]),
]  # fmt: skip


@pytest.mark.parametrize(("make", "initialisers"), STARTS)
def test_weights_start_as_their_layers_say(make, initialisers):
    """None stands for a draw of a start with a test of its own."""
    with Session("cpu", seed=5) as s, Session("cpu", seed=5) as again:
        for p, initialiser in zip(make(s).parameters(), initialisers, strict=True):
            expected = (initialiser or nn.init.uniform)(again, p.shape)
            assert initialiser is None or np.array_equal(p.value, expected), p.name


#: what is used where nothing is said, and what PyTorch has where it has the same
DEFAULTS = {
    nn.Dropout: {"p": 0.5}, nn.BatchNorm: {"eps": 1e-5, "momentum": 0.1}, nn.LayerNorm: {"eps": 1e-5},
    nn.RMSNorm: {"eps": 2**-23}, nn.GroupNorm: {"eps": 1e-5}, nn.InstanceNorm: {"eps": 1e-5, "affine": False},
    nn.Upsample: {"factor": 2},
    nn.SmoothMaxPool: {"beta": 1.0}, nn.SelectiveScan: {"state": 16}, nn.MambaBlock: {"state": 16, "expand": 2, "taps": 4},
    nn.TransformerBlock: {"ratio": 4, "norm": "layer", "activation": "gelu", "causal": False, "dropout": 0.0},
    nn.FNOBlock1d: {"activation": "gelu"}, nn.FNOBlock2d: {"activation": "gelu"},
    nn.init.kaiming_uniform: {"slope": math.sqrt(5)}, nn.schedules.milestones: {"factor": 0.1},
    nn.schedules.step_decay: {"factor": 0.1}, nn.schedules.polynomial: {"power": 1.0, "final": 0.0, "warmup": 0},
    tlrt.optim.SGD: {"lr": 1e-2, "momentum": 0.0, "weight_decay": 0.0, "nesterov": False},
    tlrt.optim.Adam: {"lr": 1e-3, "beta1": 0.9, "beta2": 0.999, "eps": 1e-8, "weight_decay": 0.0},
    tlrt.optim.AdamW: {"lr": 1e-3, "beta1": 0.9, "beta2": 0.999, "eps": 1e-8, "weight_decay": 1e-2},
    tlrt.optim.RMSprop: {"lr": 1e-2, "alpha": 0.99, "eps": 1e-8, "weight_decay": 0.0, "momentum": 0.0, "centered": False},
    tlrt.optim.Lion: {"lr": 1e-4, "beta1": 0.9, "beta2": 0.99, "weight_decay": 0.0},
    tlrt.optim.ExponentialMovingAverage: {"decay": 0.999},
}  # fmt: skip


def test_what_is_left_out_is_the_default():
    for thing, wanted in DEFAULTS.items():
        known = inspect.signature(thing).parameters
        assert {name: known[name].default for name in wanted} == wanted, thing


def test_weights_begin_as_they_are_told(s):
    """By the initialisers that a layer is given, instead of its own."""
    told = {"weight_init": lambda s, shape: np.full(shape, 0.25), "bias_init": lambda s, shape: np.full(shape, 0.5)}
    weight = {"weight_init": told["weight_init"]}
    layers = [
        nn.Linear(s, 2, 3, name="linear", **told), nn.Conv(s, 2, 2, 3, name="conv", **told),
        nn.ConvTranspose(s, 2, 2, 3, name="transposed", **told), nn.Embedding(s, 4, 3, name="words", **weight),
        nn.MultiHeadAttention(s, 8, 2, name="heads", **weight),
    ]  # fmt: skip
    block = nn.TransformerBlock(s, 8, 2, name="block", activation="reglu", bias=False, **weight)
    for layer in [*layers, block.attention, block.gate, block.up, block.down]:
        for p in layer.parameters():
            assert (p.value == (0.5 if p.name.endswith("bias") else 0.25)).all(), p.name
