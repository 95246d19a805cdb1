"""tlrt.nn: what single layers compute, running statistics, modes, containers, schedules, and misuse."""

import inspect
import math
from contextlib import suppress
from functools import partial

import numpy as np
import pytest
from numpy.testing import assert_raises, assert_raises_regex

from tlrt import Session, errors, nn
from tlrt.tape import AnyBuffer

RNG = np.random.default_rng(9)
U = 2.0**-24


@pytest.fixture
def s():
    """The specification: float64, so that formulas hold to its rounding."""
    with Session("spec", seed=5) as session:
        yield session


def single(x: float) -> float:
    """As a scalar reaches an operation."""
    return float(np.float32(x))


def normals(*shape):
    """Numbers that survive an upload."""
    return RNG.standard_normal(shape).astype(np.float32).astype(np.float64)


@pytest.mark.parametrize("shape", [(4, 3), (5, 3, 7), (2, 3, 4, 5), (1, 3, 2, 2, 2)])
def test_batch_norm_in_training_and_after(s, shape):
    x, axes = normals(*shape), (0, *range(2, len(shape)))
    spread = (-1, *(1,) * (len(shape) - 2))
    norm = nn.BatchNorm(s, 3, name="n", momentum=0.1)
    weight, bias = normals(3), normals(3)
    norm.weight.set(weight)
    norm.bias.set(bias)
    mean, variance = x.mean(axes), x.var(axes)
    y = norm(s.const(x), training=True).numpy()
    eps = single(1e-5)
    wanted = (x - mean.reshape(spread)) / np.sqrt(variance.reshape(spread) + eps)
    assert np.allclose(y, wanted * weight.reshape(spread) + bias.reshape(spread), rtol=1e-13, atol=1e-13)
    m = x.size // 3
    running_mean = single(0.1) * mean
    running_var = single(0.9) + single(0.1 * m / (m - 1)) * variance
    assert np.allclose(norm.running_mean.value, running_mean, rtol=1e-13)
    assert np.allclose(norm.running_var.value, running_var, rtol=1e-13)
    s.reset()
    norm(s.const(2 * x), training=True)
    assert np.allclose(norm.running_mean.value, single(0.9) * running_mean + single(0.1) * 2 * mean, rtol=1e-13)
    before = [norm.running_mean.numpy(), norm.running_var.numpy()]
    y = norm(s.const(x)).numpy()
    wanted = (x - before[0].reshape(spread)) / np.sqrt(before[1].reshape(spread) + eps)
    assert np.allclose(y, wanted * weight.reshape(spread) + bias.reshape(spread), rtol=1e-13, atol=1e-13)
    assert np.array_equal(norm.running_mean.value, before[0]) and np.array_equal(norm.running_var.value, before[1])


def test_batch_norm_moves_its_statistics_on_the_device():
    """Nothing is downloaded in a step, and nothing but the tape's own values outlives the call."""
    with Session("cpu", seed=1) as s:
        norm = nn.BatchNorm(s, 3, name="n")
        x = s.const(RNG.standard_normal((4, 3, 8, 8)))
        for _ in range(3):
            norm(x, training=True)
        assert norm.running_mean.host_is_stale and norm.running_var.host_is_stale
        s.reset()
        live = s.device.memory().live_buffers
        for _ in range(5):
            norm(s.const(RNG.standard_normal((4, 3, 8, 8))), training=True)
            s.reset()
        assert s.device.memory().live_buffers == live


def test_statistics_moved_after_they_were_read_leave_the_tape_as_it_was(s):
    """A gradient through an evaluation stays that of the statistics it read, though training moved them since."""
    norm, x = nn.BatchNorm(s, 3, name="n"), s.input(normals(4, 3), requires_grad=True)
    y = norm(x)
    norm(s.const(normals(4, 3) + 5), training=True)
    s.backward(s.reduce_sum(y))
    assert np.allclose(x.grad.numpy(), 1 / math.sqrt(1 + single(1e-5)), rtol=1e-14)


def test_batch_norm_refuses(s):
    norm = nn.BatchNorm(s, 3, name="n")
    for bad in [(3,), (4, 2), (4, 2, 3)]:
        assert_raises_regex(errors.ShapeError, "expected \\(batch, 3, spatial", norm, s.zeros(bad))
    for bad in [(1, 3), (1, 3, 1, 1), (0, 3, 4)]:
        assert_raises_regex(errors.ShapeError, "two elements or more", norm, s.zeros(bad), training=True)
    assert np.array_equal(norm.running_var.value, np.ones(3))
    assert_raises_regex(errors.ArgumentError, "momentum: got 2", nn.BatchNorm, s, 3, name="m", momentum=2)
    for momentum in (0, 1):  # nothing moves, and what was is forgotten
        norm = nn.BatchNorm(s, 3, name=f"m{momentum}", momentum=momentum)
        norm(s.const(x := normals(4, 3) + 5), training=True)
        assert np.allclose(norm.running_mean.value, momentum * x.mean(0), rtol=1e-6)


def test_a_parameter_takes_a_value_over_from_the_device(s):
    p = s.param(np.zeros((2, 2)), "p")
    p.assign(AnyBuffer.upload(np.eye(2), s.device))
    assert p.host_is_stale and np.array_equal(p.value, np.eye(2))
    assert_raises_regex(errors.ShapeError, "p: got shape", p.assign, AnyBuffer.upload(np.eye(3), s.device))
    with Session("spec") as other, pytest.raises(errors.DeviceMismatchError):
        p.assign(AnyBuffer.upload(np.eye(2), other.device))
    assert np.array_equal(p.value, np.eye(2))


@pytest.mark.parametrize(("grid", "modes"), [(8, 5), (8, 3), (9, 5), (9, 2), (1, 1), (8, 0)])
def test_a_batch_of_samples_is_each_sample(s, grid, modes):
    layer, x = nn.SpectralConv1d(s, 3, modes, name="l"), normals(4, grid, 3)
    together = layer(s.const(x)).numpy()
    for one, y in zip(x, together, strict=True):
        assert np.allclose(layer(s.const(one)).numpy(), y, rtol=0, atol=1e-14)


def test_the_same_operator_on_another_grid(s):
    """A function of few frequencies has the same image on both grids."""
    layer = nn.FNOBlock1d(s, 2, 3, name="l", activation=None)
    places = np.linspace(0, 2 * np.pi, 16, endpoint=False)
    x = np.stack([np.sin(places), np.cos(2 * places)], -1)[None].astype(np.float32)
    fine = layer(s.const(x)).numpy()
    coarse = layer(s.const(x[:, ::2])).numpy()
    assert np.array_equal(fine, (layer.spectral(s.const(x)) + layer.point(s.const(x))).numpy())
    assert np.allclose(fine[:, ::2], coarse, rtol=0, atol=16 * U)  # the places and the values were rounded to float32


def scan_by_hand(scan, x):
    """The docstring's recurrence in NumPy; x (seq_len, batch, width)."""
    value = {p.name.partition(".")[2]: p.value.astype(np.float64) for p in scan.parameters()}
    a = -np.exp(value["a_log"])
    h, out = np.zeros((*x.shape[1:], a.shape[1])), []
    for u in x:
        delta = np.log1p(np.exp(u @ value["low.weight"].T @ value["step.weight"].T + value["step.bias"]))[..., None]
        b, c = (u @ value[f"{n}.weight"].T for n in ("input", "output"))
        h = np.exp(delta * a) * h + delta * b[:, None, :] * u[..., None]
        out.append((h * c[:, None, :]).sum(-1) + value["d"] * u)
    return np.stack(out)


def test_the_selective_scan_is_its_recurrence(s):
    scan, x = nn.SelectiveScan(s, 6, 4, name="l"), normals(9, 2, 6)
    assert np.allclose(scan(s.const(x)).numpy(), scan_by_hand(scan, x), rtol=1e-12, atol=1e-14)


def test_step_sizes_start_log_uniform(s):
    scan = nn.SelectiveScan(s, 400, 2, name="l")
    steps = np.log1p(np.exp(scan.step.bias.value.astype(np.float64)))
    assert 0.001 * (1 - 1e-4) <= steps.min() < 0.0012 and 0.08 < steps.max() <= 0.1 * (1 + 1e-4)
    logs = np.log(steps)
    deviation = math.log(100) / math.sqrt(12)
    assert abs(logs.mean() - math.log(0.01)) < 6 * deviation / math.sqrt(400)


@pytest.mark.parametrize("make", [
    lambda s: nn.MambaBlock(s, 6, name="l", state=3),
    lambda s: nn.MultiHeadAttention(s, 6, 2, name="l", causal=True),
    lambda s: nn.TransformerBlock(s, 6, 3, name="l", causal=True),
])  # fmt: skip
def test_causal_layers_do_not_look_ahead(make):
    x = RNG.standard_normal((2, 8, 6))
    changed = x.copy()
    changed[:, 5:] += 1
    with Session("cpu", seed=3) as s:
        layer = make(s)
        before, after = layer(s.const(x)).numpy(), layer(s.const(changed)).numpy()
    assert np.array_equal(before[:, :5], after[:, :5]) and not np.array_equal(before[:, 5:], after[:, 5:])


def test_the_convolution_of_a_mamba_block_reaches_back_its_taps(s):
    block = nn.MambaBlock(s, 3, name="l", expand=1, taps=3)
    u = normals(6, 2, 3)
    padded = np.concatenate([np.zeros((2, 2, 3)), u])
    weight, bias = block.conv_weight.value.astype(np.float64), block.conv_bias.value.astype(np.float64)
    wanted = sum(weight[j] * padded[2 - j : 8 - j] for j in range(3)) + bias
    assert np.allclose(block._convolve(s.const(u)).numpy(), wanted, rtol=1e-14, atol=1e-14)


@pytest.mark.parametrize("training", [True, False])
def test_a_transformer_block_is_its_formula(s, training):
    block, x = nn.TransformerBlock(s, 4, 2, name="l", dropout=0.5), s.const(normals(2, 3, 4))
    drop = lambda y: s.dropout(y, 0.5) if training else y
    counter = s.counter
    h = s.add(x, drop(block.attention(block.norm1(x))))
    wanted = s.add(h, drop(block.down(s.gelu(block.up(block.norm2(h)))))).numpy()
    drawn, s.counter = s.counter - counter, counter
    assert np.array_equal(block(x, training=training).numpy(), wanted)
    assert s.counter - counter == drawn == 2 * training


def test_embedding_takes_host_arrays_and_naturals(s):
    table = nn.Embedding(s, 5, 3, name="l")
    rows = table.weight.value[[4, 0, 4]]
    assert np.array_equal(table([4, 0, 4]).numpy(), rows)
    assert np.array_equal(table(s.nat_vec([4, 0, 4])).numpy(), rows)
    assert table(np.zeros((2, 4), int)).shape == (2, 4, 3)
    s.backward(s.reduce_sum(table([4, 0, 4])))
    assert np.array_equal(table.weight.grad.numpy(), np.outer([1, 0, 0, 0, 2], np.ones(3)))


def test_dropout_acts_in_training_alone(s):
    x = s.const(np.ones((100, 100)))
    assert nn.Dropout(0.25)(x) is x
    counter = s.counter
    dropped = nn.Dropout(0.25)(x, training=True).numpy()
    assert s.counter == counter + 1 and set(np.unique(dropped)) == {0.0, single(1 / 0.75)}
    assert abs((dropped > 0).mean() - 0.75) < 6 * math.sqrt(0.75 * 0.25 / x.size)
    assert_raises_regex(errors.ArgumentError, "p: got 1", nn.Dropout, 1)


def test_sequential_hands_the_mode_down(s):
    model = nn.Sequential(
        nn.Linear(s, 4, 6, name="a"), s.relu, nn.BatchNorm(s, 6, name="n"), nn.Dropout(0.5),
        nn.Linear(s, 6, 2, name="b"),
    )  # fmt: skip
    assert [p.name for p in model.parameters()] == [
        "a.weight", "a.bias", "n.weight", "n.bias", "n.running_mean", "n.running_var", "b.weight", "b.bias",
    ]  # fmt: skip
    x = s.const(normals(5, 4))
    model(x)
    assert np.array_equal(model[2].running_mean.value, np.zeros(6)), "an evaluation moves nothing"
    nested = nn.Sequential(model, s.relu)
    nested(x, training=True)
    assert not np.array_equal(model[2].running_mean.value, np.zeros(6))
    assert nested.parameters() == model.parameters() and len(model) == 5 and "Dropout" in repr(nested)
    stack = type("Stack", (nn.Sequential,), {})(nn.Dropout(0.5), s.relu)
    assert repr(stack) == "Stack\n    0: Dropout(p=0.5)\n    1: relu"
    head = "Sequential: 68 parameters, 12 frozen"
    assert repr(nested).splitlines()[:2] == [head, f"    0: {head}"]
    assert_raises_regex(errors.ArgumentTypeError, "layer 1: got 3", nn.Sequential, model, 3)
    assert_raises_regex(errors.ArgumentTypeError, "layer 0", nn.Sequential, nn.Linear)


def test_pools_are_the_operations(s):
    x = s.const(normals(2, 3, 6, 6))
    assert np.array_equal(nn.MaxPool(2)(x).numpy(), s.max_pool(x, (2, 2), 2).numpy())
    assert np.array_equal(nn.AvgPool(3, 1, 1)(x).numpy(), s.avg_pool(x, (3, 3), 1, 1).numpy())
    assert np.array_equal(
        nn.SmoothMaxPool((2, 3), beta=3)(x).numpy(), s.smooth_max_pool(x, (2, 3), (2, 3), 0, 3).numpy()
    )
    assert "kernel=(2,)" in repr(nn.MaxPool(2, rank=1))
    for rank in (1, 3):
        assert_raises_regex(errors.ArgumentError, f"rank: got {rank}, expected 2", nn.MaxPool, (2, 2), rank=rank)


def test_pools_act_on_the_last_axes(s):
    """Their number is said, or that of the entries of a list; what remains are channels, and a batch before them."""
    x, row = s.const(normals(2, 4, 6, 8)), s.const(normals(2, 4, 8))
    best = x.numpy().reshape(2, 4, 3, 2, 4, 2).max((3, 5))
    for y in (s.max_pool(x, 2, 2, rank=2), s.max_pool(x, (2, 2), 2), s.max_pool(x, 2, [2, 2]), nn.MaxPool(2)(x)):
        assert np.array_equal(y.numpy(), best)
    pairs = row.numpy().reshape(2, 4, 4, 2)
    assert np.array_equal(nn.MaxPool(2, rank=1)(row).numpy(), pairs.max(-1))
    assert np.array_equal(s.max_pool(row, 2, 2, rank=1).numpy(), pairs.max(-1))
    assert np.array_equal(s.max_pool(row[0], 2, 2).numpy(), pairs[0].max(-1)), "two axes are one row of channels"
    image = s.max_pool(row, 2, 2, rank=2)
    assert np.array_equal(nn.MaxPool(2, rank=2)(row).numpy(), image.numpy()) and image.shape == (2, 2, 4)
    assert np.array_equal(nn.MaxPool((2, 2))(row).numpy(), image.numpy())
    assert s.max_pool(x, 2, 2, rank=3).shape == (2, 2, 3, 4)


def test_convolutions_of_any_rank(s):
    for rank in (1, 2, 3):
        conv = nn.Conv(s, 2, 5, 3, name=f"c{rank}", rank=rank, stride=2, padding=1)
        back = nn.ConvTranspose(s, 5, 2, 4, name=f"t{rank}", rank=rank, stride=2, padding=1)
        small = conv(s.zeros((3, 2, *(8,) * rank)))
        assert small.shape == (3, 5, *(4,) * rank) and back(small).shape == (3, 2, *(8,) * rank)
        assert back(conv(s.zeros((2, *(8,) * rank)))).shape == (2, *(8,) * rank)


@pytest.mark.parametrize(("make", "bad"), [
    (lambda s: nn.Linear(s, 3, 2, name="l"), (4, 4)), (lambda s: nn.Conv(s, 3, 2, 3, name="l"), (1, 2, 5, 5)),
    (lambda s: nn.Conv(s, 3, 2, 3, name="l"), (3, 2, 2)), (lambda s: nn.LayerNorm(s, 3, name="l"), (3, 4)),
    (lambda s: nn.MultiHeadAttention(s, 4, 2, name="l"), (3, 5)),
    (lambda s: nn.MambaBlock(s, 4, name="l"), (2, 3, 5)), (lambda s: nn.SelectiveScan(s, 4, name="l"), (3, 4)),
    (lambda s: nn.SpectralConv1d(s, 4, 3, name="l"), (2, 3, 4)), (lambda s: nn.MambaBlock(s, 4, name="l"), (1, 2, 3, 4)),
    (lambda s: nn.SpectralConv1d(s, 4, 3, name="l"), (2, 8, 5)), (lambda s: nn.SpectralConv2d(s, 4, 3, name="l"), (4, 8, 8)),
    (lambda s: nn.SpectralConv2d(s, 4, 3, name="l"), (2, 4, 5, 8)),
    (lambda s: nn.SpectralConv2d(s, 4, 3, name="l"), (2, 3, 8, 8)),
])  # fmt: skip
def test_wrong_shapes_are_refused_and_the_session_goes_on(make, bad):
    with Session("cpu", seed=1) as s:
        layer = make(s)
        assert_raises(errors.ShapeError, layer, s.zeros(bad))
        s.reset()
        p = layer.parameters()[0]
        s.backward(s.reduce_sum(s.square(s.use(p))))
        assert np.array_equal(p.grad.numpy(), 2 * p.value)


def test_bad_sizes_are_refused(s):
    assert_raises_regex(errors.ArgumentError, "heads: got 3", nn.MultiHeadAttention, s, 8, 3, name="l")
    assert_raises_regex(errors.ArgumentError, "taps: got 0", nn.MambaBlock, s, 8, name="l", taps=0)
    assert_raises_regex(errors.ArgumentError, "expected 1 or more", nn.SelectiveScan, s, 8, 0, name="l")
    assert_raises(NotImplementedError, nn.Layer(), s.zeros((1,)))
    assert nn.Layer().parameters() == []


def test_sizes_that_follow_from_others(s):
    assert nn.SelectiveScan(s, 17, name="a").low.weight.shape == (2, 17)
    assert nn.MambaBlock(s, 3, name="b").conv_weight.shape == (4, 6)
    assert nn.TransformerBlock(s, 4, 2, name="c").up.weight.shape == (16, 4)
    assert nn.MultiHeadAttention(s, 8, 4, name="d", kv_heads=2).key.shape == (8, 4)
    assert nn.AvgPool((2, 3)).stride == (2, 3) and nn.SmoothMaxPool(2, rank=1).stride == (2,)


@pytest.mark.parametrize("spatial", [(5,), (4, 3), (2, 3, 2)])
def test_adaptive_pools_and_upsampling(s, spatial):
    a, axes = normals(2, 3, *spatial), tuple(range(2, 2 + len(spatial)))
    x = s.param(a, f"x{len(spatial)}")
    tree = math.prod(spatial) * np.abs(a).max()  # either mean's roundings, n·max|x|·u at most in all
    mean, larger = nn.AdaptiveAvgPool()(x), nn.Upsample(3)(x)
    np.testing.assert_allclose(mean.numpy(), a.mean(axis=axes, keepdims=True), rtol=0, atol=tree * 2.0**-53)
    want = a
    for axis in axes:
        want = np.repeat(want, 3, axis)
    np.testing.assert_array_equal(larger.numpy(), want)
    s.backward(s.reduce_sum(larger))
    np.testing.assert_array_equal(x.grad.numpy(), np.full(a.shape, 3.0 ** len(spatial)))
    for layer in (nn.AdaptiveAvgPool(), nn.Upsample()):
        assert_raises_regex(errors.ShapeError, f"{type(layer).__name__}: x: ", layer, s.const(np.ones((2, 3))))
    assert_raises_regex(errors.ArgumentError, "Upsample: factor: got 0", nn.Upsample, 0)


@pytest.mark.parametrize(("groups", "dilation", "sides"), [
    (1, 2, [(2, 2), (1, 1)]), (2, 2, [(2, 2), (1, 1)]), (6, 2, [(2, 2), (1, 1)]), (2, 1, [(1, 1), (0, 1)]),
    (1, 3, [(3, 3), (1, 2)]),
])  # fmt: skip
def test_convolutions_of_groups_by_their_layers(s, groups, dilation, sides):
    """Each group is a convolution of its own, without a bias where there is none."""
    x = s.const(normals(2, 6, 7, 8))
    conv = nn.Conv(s, 6, 12, (3, 2), name=f"c{groups}", groups=groups, dilation=dilation, padding="same", bias=False)
    up = nn.ConvTranspose(s, 6, 12, 3, name=f"u{groups}", groups=groups, stride=2, padding=1, output_padding=1)
    assert conv(x).shape == (2, 12, 7, 8) and conv.bias is None and len(conv.parameters()) == 1
    assert up(x).shape == (2, 12, 14, 16) and s.shape(up.weight) == (6, 12 // groups, 3, 3)
    part, rows = 6 // groups, 12 // groups
    terms = 9 * part + 1
    slack = terms**2 * 2.0**-53 * np.abs(x.numpy()).max()  # weights are below 1
    for i in range(groups):
        mine = x[:, i * part : (i + 1) * part]
        w, w_up = conv.weight.value[i * rows : (i + 1) * rows], up.weight.value[i * part : (i + 1) * part]
        alone = s.conv2d(s.const(w), None, mine, 1, sides, dilation=dilation)
        np.testing.assert_array_equal(conv(x).numpy()[:, i * rows : (i + 1) * rows], alone.numpy())
        b = s.const(up.bias.value[i * rows : (i + 1) * rows])
        alone = s.conv_transpose2d(s.const(w_up), b, mine, 2, [(1, 0), (1, 0)])
        np.testing.assert_allclose(up(x).numpy()[:, i * rows : (i + 1) * rows], alone.numpy(), rtol=0, atol=slack)
    for wrong in (0, 4, 5):
        assert_raises_regex(errors.ArgumentError, "groups", nn.Conv, s, 6, 12, 3, name="wrong", groups=wrong)
        call = partial(s.conv2d, conv.weight, None, s.const(np.ones((5, 7, 8))), groups=wrong or -1)
        assert_raises_regex(errors.ArgumentError, "conv2d: groups", call)
    call = partial(s.conv2d, s.const(np.ones((1, 1, 2, 2))), None, s.const(np.ones((1, 4, 4))), 2, "same")
    assert_raises_regex(errors.ArgumentError, "conv2d: padding: got 'same'", call)


#: layers -> their required arguments, and the shape of an input, which for words is none
REQUIRED = {
    "Linear": ((4, 3), (2, 4)), "Embedding": ((5, 3), ()), "LayerNorm RMSNorm": ((6,), (2, 6)), "GroupNorm": ((2, 4), (2, 4, 3)),
    "BatchNorm InstanceNorm": ((4,), (5, 4, 3)), "Conv ConvTranspose": ((4, 8, 2), (4, 4, 5, 5)), "LSTM GRU": ((4, 3), (5, 2, 4)),
    "MaxPool AvgPool SmoothMaxPool": ((2,), (2, 4, 6, 6)), "AdaptiveAvgPool Upsample Dropout": ((), (2, 4, 6)),
    "MultiHeadAttention TransformerBlock": ((8, 2), (2, 5, 8)), "SelectiveScan MambaBlock": ((6,), (5, 2, 6)),
    "SpectralConv1d FNOBlock1d": ((4, 3), (9, 4)), "SpectralConv2d FNOBlock2d": ((4, 3), (2, 4, 6, 6)),
}  # fmt: skip
#: what options may be that their default does not tell
OTHERWISE = {
    "weight_init": nn.init.uniform, "bias_init": nn.init.normal, "kv_heads": 1, "rotary": 10.0, "window": 2, "bias": True,
    "dim_feedforward": 5, "norm": "rms", "eps": 0.5, "activation": "relu", "stride": 3, "rank": 3,
}  # fmt: skip
#: options that say nothing alone
BESIDE = {
    "ConvTranspose.output_padding": {"stride": 2}, "LSTM.dropout": {"num_layers": 2}, "GRU.dropout": {"num_layers": 2},
}  # fmt: skip
OTHERS = {"Layer", "Sequential", "ModuleList", "KeyValueCache", "init", "schedules"}
OPTIONS = [
    (layer, option, about.default)
    for layer in nn.__all__ if layer not in OTHERS
    for option, about in inspect.signature(getattr(nn, layer)).parameters.items()
    if about.default is not about.empty and option != "name"
]  # fmt: skip


def test_integers_are_taken_or_refused_by_errors_of_ours(s):
    """No 0, negative number or text is divided by, or compared with."""
    for kind, arguments in [(getattr(nn, n), about[0]) for names, about in REQUIRED.items() for n in names.split()]:
        known = {n: str(about.annotation) for n, about in inspect.signature(kind).parameters.items()}
        given = {**dict(zip([n for n in known if n != "session"], arguments, strict=False)), "session": s}
        for name in [n for n, kinds in known.items() if "int" in kinds and "Callable" not in kinds]:
            for wrong in (0, -1, "x"):
                options = {**given, "name": f"l{len(s.parameters)}", name: wrong}
                with suppress(errors.TorchleanError):
                    kind(**{n: v for n, v in options.items() if n in known})


@pytest.mark.parametrize(("layer", "option", "default"), OPTIONS)
def test_no_option_is_ignored(layer, option, default):
    """Another value than the default changes parameters, results in one of the modes, gradients, or what is kept afterwards."""
    kind, beside = getattr(nn, layer), BESIDE.get(f"{layer}.{option}", {})
    [(arguments, shape)] = [about for names, about in REQUIRED.items() if layer in names.split()]
    known = inspect.signature(kind).parameters
    told = {bool: lambda: not default, int: lambda: default + 1, float: lambda: default / 2 + 0.125}
    value = told.get(type(default), lambda: OTHERWISE[option])()

    def found(**options):
        with Session("cpu", seed=5) as s:
            made = kind(
                *[s] * ("session" in known), *arguments, **({"name": "l"} if "name" in known else {}), **options
            )
            seen = [(p.name, p.value.tolist()) for p in made.parameters()]
            x = s.param(np.random.default_rng(3).standard_normal(shape), "x")
            for training in (False, True):
                y = made(s.use(x) if shape else [4, 0, 4], training=training)
                y = y[0] if isinstance(y, tuple) else y
                s.backward(s.reduce_sum(s.square(y)))
                seen += [y.numpy().tolist(), [p.grad.numpy().tolist() for p in s.gradients]]
                s.reset()
            return seen + [p.value.tolist() for p in made.parameters()]

    assert found(**beside, **{option: value}) != found(**beside)
