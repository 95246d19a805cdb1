"""Layers of one's own and containers: names of parameters, freezing, and values that go over from PyTorch by name."""

from typing import Any

import numpy as np
import pytest
from numpy.testing import assert_array_equal, assert_raises, assert_raises_regex

import tlrt
from tlrt import Session, errors, nn, optim

RNG = np.random.default_rng(3)

#: the state of a torch.nn.Module: `stem = Conv2d(3, 4, 3)`, `norm = BatchNorm2d(4)`, `blocks = ModuleList` of two
#: `Sequential(LayerNorm(4), Linear(4, 4), ReLU(), Linear(4, 4, bias=False))`, `head = ModuleDict` of `a = Linear(4, 2)`, and
#: `scale = Parameter`; as torch 2 prints it
TORCH = {
    "scale": (4,), "stem.weight": (4, 3, 3, 3), "stem.bias": (4,), "norm.weight": (4,), "norm.bias": (4,),
    "norm.running_mean": (4,), "norm.running_var": (4,), "norm.num_batches_tracked": (),
    "blocks.0.0.weight": (4,), "blocks.0.0.bias": (4,), "blocks.0.1.weight": (4, 4), "blocks.0.1.bias": (4,),
    "blocks.0.3.weight": (4, 4), "blocks.1.0.weight": (4,), "blocks.1.0.bias": (4,), "blocks.1.1.weight": (4, 4),
    "blocks.1.1.bias": (4,), "blocks.1.3.weight": (4, 4), "head.a.weight": (2, 4), "head.a.bias": (2,),
}  # fmt: skip


class Net(nn.Layer):
    def __init__(self, s: Session) -> None:
        self.session, self.act = s, s.relu
        self.scale = s.param(np.ones(4), "scale")
        self.stem = nn.Conv(s, 3, 4, 3, name="a")
        self.norm = nn.BatchNorm(s, 4, name="b")
        self.blocks = nn.ModuleList(self.block(s, f"c{i}") for i in range(2))
        self.head = {"a": nn.Linear(s, 4, 2, name="d")}

    @staticmethod
    def block(s: Session, name: str) -> nn.Layer:
        return nn.Sequential(
            nn.LayerNorm(s, 4, name=f"{name}.n"), nn.Linear(s, 4, 4, name=f"{name}.l"), s.relu,
            nn.Linear(s, 4, 4, name=f"{name}.m", bias=False),
        )  # fmt: skip

    def __call__(self, x: Any, *, training: bool = False) -> Any:
        x = self.norm(self.act(self.stem(x)), training=training).mean(axis=(2, 3)) * self.scale
        for block in self.blocks:
            x = x + block(x, training=training)
        return self.head["a"](x)


def values(shapes: Any = TORCH) -> dict[str, Any]:
    made = {name: RNG.standard_normal(shape).astype(np.float32) for name, shape in shapes.items()}
    return {**made, "norm.running_var": np.full(4, 2.0, np.float32), "norm.num_batches_tracked": np.int64(7)}


@pytest.fixture
def s() -> Any:
    with Session("cpu", seed=1) as session:
        yield session


def test_the_state_of_a_torch_model_goes_over_and_back(s: Session) -> None:
    net, state = Net(s), values()
    held = {n: shape for n, shape in TORCH.items() if n != "norm.num_batches_tracked"}
    assert {n: a.shape for n, a in net.state_dict().items()} == held
    assert [n for n, _ in net.named_parameters()] == list(held)
    assert [p for _, p in net.named_parameters()] == net.parameters()
    assert net.load_state_dict(state) == ([], [])
    for name, array in net.state_dict().items():
        assert_array_equal(array, state[name])
    after = net(s.const(np.ones((2, 3, 4, 4)))).numpy()
    with Session("cpu", seed=2) as other:
        twin = Net(other)
        twin.load_state_dict(net.state_dict())
        assert_array_equal(twin(other.const(np.ones((2, 3, 4, 4)))).numpy(), after)


def test_a_state_is_a_copy_of_what_the_device_holds(s: Session) -> None:
    net = Net(s)
    optimizer = optim.SGD(net.parameters(), lr=0.1)
    s.backward(net(s.const(RNG.standard_normal((2, 3, 4, 4))), training=True).square().sum())
    optimizer.step()
    state = net.state_dict()
    assert net.stem.weight.has_mirror and state["norm.running_mean"].any()
    state["stem.weight"][:] = 5
    assert not (net.stem.weight.numpy() == 5).any()
    optimizer.close()
    s.reset()
    net.load_state_dict(state)
    assert not net.stem.weight.has_mirror and (net.stem.weight.numpy() == 5).all()
    assert s.device.memory().live_buffers == 0


def test_other_names_are_listed_and_change_nothing(s: Session) -> None:
    net, state = Net(s), values()
    state["extra.weight"] = state.pop("stem.weight")
    del state["blocks.1.3.weight"]
    state["blocks.num_batches_tracked"] = 3
    before = net.state_dict()
    said = (
        "load_state_dict: names: got missing: stem.weight, blocks.1.3.weight; "
        "unexpected: extra.weight, blocks.num_batches_tracked, expected those of the layer"
    )
    assert_raises_regex(errors.ArgumentError, said, net.load_state_dict, state)
    for name, array in net.state_dict().items():
        assert_array_equal(array, before[name])
    for p in net.parameters():
        _ = p.mirror
    more, said = {**net.state_dict(), "more": 1}, "missing: none; unexpected: more"
    assert_raises_regex(errors.ArgumentError, said, net.load_state_dict, more)
    found = net.load_state_dict(state, strict=False)
    assert not net.stem.weight.mirror.released  # what is passed over keeps its buffer
    assert found == (["stem.weight", "blocks.1.3.weight"], ["extra.weight", "blocks.num_batches_tracked"])
    assert_array_equal(net.scale.value, state["scale"])
    assert_array_equal(net.stem.weight.value, before["stem.weight"])


def test_other_shapes_and_types_are_refused_whole(s: Session) -> None:
    net, state = Net(s), values()
    before = net.state_dict()
    wrong: dict[str, Any] = {"scale": np.zeros(3), "head.a.weight": np.zeros((4, 2))}
    said = r"shapes: got scale \(3,\), head.a.weight \(4, 2\), expected scale \(4,\), head.a.weight \(2, 4\)"
    for strict in (True, False):
        assert_raises_regex(errors.ShapeError, said, net.load_state_dict, {**state, **wrong}, strict)
    complex_ = {**state, "head.a.bias": np.zeros(2, complex)}
    assert_raises_regex(errors.ArgumentTypeError, "load_state_dict: d.bias", net.load_state_dict, complex_)
    assert_raises_regex(errors.ArgumentTypeError, "state: got list", net.load_state_dict, [1])
    for name, array in net.state_dict().items():
        assert_array_equal(array, before[name])


def test_a_shared_parameter_has_both_names_and_one_value(s: Session) -> None:
    class Tied(nn.Layer):
        def __init__(self) -> None:
            self.embedding = nn.Embedding(s, 5, 3, name="e")
            self.decoder = nn.Linear(s, 3, 5, name="d", bias=False)
            self.decoder.weight = self.embedding.weight
            self.parent = self

    tied = Tied()
    state = tied.state_dict()
    assert list(state) == ["embedding.weight", "decoder.weight"]
    assert [n for n, _ in tied.named_parameters()] == ["embedding.weight"] and len(tied.parameters()) == 1
    tied.embedding(np.array([1]))
    fresh = RNG.standard_normal((5, 3)).astype(np.float32)
    fresh[0, 0] = np.nan  # equals itself
    tied.load_state_dict(dict.fromkeys(state, fresh))
    assert_array_equal(tied.decoder.weight.value, fresh)
    said = "decoder.weight: got another value"
    assert_raises_regex(errors.ArgumentError, said, tied.load_state_dict, {**state, "decoder.weight": fresh})
    assert_array_equal(tied.decoder.weight.value, fresh)


def test_a_list_of_parameters_of_its_own_is_named_too(s: Session) -> None:
    class Own(nn.Layer):
        def __init__(self) -> None:
            self.a, self.b = s.param([1.0], "a"), s.param([2.0], "b")
            self.hidden = lambda: s.parameters["c"]
            s.param([3.0], "c")

        def parameters(self) -> Any:
            return [self.a, self.hidden()]

    assert list(nn.Sequential(Own()).state_dict()) == ["0.a", "0.c"]


def test_names_of_attention(s: Session) -> None:
    layer = nn.MultiHeadAttention(s, 4, 2, name="m", bias=True)
    assert [f"m.{n}" for n, _ in layer.named_parameters()] == [p.name for p in layer.parameters()]


def test_float64_goes_over_whole_on_the_specification() -> None:
    with Session("spec", seed=1) as s:
        layer = nn.Linear(s, 2, 2, name="l")
        fresh = {n: a.astype(np.float64) + 2.0**-40 for n, a in layer.state_dict().items()}
        layer.load_state_dict(fresh)
        assert_array_equal(layer.weight.value, fresh["weight"])


def test_freezing_reaches_all_but_the_statistics(s: Session) -> None:
    net = Net(s)
    statistics = [net.norm.running_mean, net.norm.running_var]
    assert net.requires_grad_(False) is net and not any(p.requires_grad for p in net.parameters())
    net.requires_grad_()
    assert [p for p in net.parameters() if not p.requires_grad] == statistics
    net.blocks.requires_grad_(False)
    x = RNG.standard_normal((2, 3, 4, 4))
    gradients = s.backward(net(s.const(x), training=True).square().sum())
    assert net.stem.weight in gradients and net.blocks[0][1].weight not in gradients
    net.blocks.requires_grad_(True)
    with Session("cpu", requires_grad_by_default=False) as other:
        layer = nn.Linear(other, 2, 2, name="l")
        assert not layer.weight.requires_grad and layer.requires_grad_().weight.requires_grad
    assert_raises_regex(errors.ArgumentTypeError, "wanted", net.requires_grad_, "no")


def test_training_reaches_layers_of_ones_own(s: Session) -> None:
    net, x = Net(s), s.const(RNG.standard_normal((2, 3, 4, 4)))
    net(x)
    assert not net.norm.running_mean.value.any()
    nn.Sequential(net)(x, training=True)
    assert net.norm.running_mean.value.any()


def test_what_a_module_of_torch_has_and_a_layer_has_not(s: Session) -> None:
    net = Net(s)
    with pytest.raises(
        AttributeError, match=r"Net has no attribute 'eval'; use `layer\(x, training=True\)`; off unless"
    ):
        net.eval()

    class Odd(nn.Layer):
        width = property(lambda self: self.nothing)

    assert_raises_regex(AttributeError, "Odd has no attribute 'nothing'$", getattr, Odd(), "width")


def test_what_attributes_hold_is_printed_and_named(s: Session) -> None:
    """Layers held twice, in tuples and by their bound methods, and parameters in lists."""

    class Odd(nn.Layer):
        def __init__(self) -> None:
            self.first = self.again = nn.Linear(s, 2, 3, name="l")
            self.parts = (nn.Linear(s, 3, 1, name="m", bias=False).__call__, [s.param([1.0, 2.0], "own")])

    odd, linear = Odd(), "Linear(weight[3, 2], bias[3]): 9 parameters"
    assert repr(odd).splitlines() == [
        "Odd(): 14 parameters", f"    first: {linear}", f"    again: {linear} (as above)", "    parts:", "        0: __call__",
        "        1:", "            0: Parameter[2]",
    ]  # fmt: skip
    assert [n for n, _ in odd.named_parameters()] == ["first.weight", "first.bias", "parts.0.weight", "parts.1.0"]
    assert [p.name for p in odd.parameters()] == ["l.weight", "l.bias", "m.weight", "own"]


def test_a_list_of_layers(s: Session) -> None:
    a, b, c = (nn.Linear(s, 2, 2, name=n) for n in "abc")
    layers = nn.ModuleList().extend([a]).append(b).extend([c])
    assert list(layers) == [a, b, c] and len(layers) == 3 and layers[-1] is c and repr(a) in repr(layers)
    assert [n for n, _ in layers.named_parameters()] == [f"{i}.{n}" for i in range(3) for n in ("weight", "bias")]
    assert_raises_regex(errors.ArgumentTypeError, "ModuleList: layer 3: got", layers.append, s.relu)
    assert_raises(NotImplementedError, layers, s.zeros((1, 2)))


def test_a_state_is_not_read_or_set_in_a_captured_step(s: Session) -> None:
    layer = nn.Linear(s, 2, 2, name="l")
    state = layer.state_dict()

    def step(x: Any) -> Any:
        for call in (layer.state_dict, lambda: layer.load_state_dict(state)):
            assert_raises(tlrt.errors.CaptureError, call)
        return layer(s.const(x))

    with s.capture(step, np.ones((1, 2), np.float32)) as captured:
        before = captured(np.ones((1, 2), np.float32)).numpy()
        layer.load_state_dict({n: 2 * a for n, a in state.items()})
        assert_array_equal(captured(np.ones((1, 2), np.float32)).numpy(), 2 * before)


@pytest.mark.parametrize("kind", ["bfloat16", "float16"])
def test_values_of_16_bits_are_widened(kind: str) -> None:
    torch = pytest.importorskip("torch")
    theirs = torch.nn.Sequential(torch.nn.Linear(5, 7), torch.nn.LayerNorm(7)).to(getattr(torch, kind))
    with Session("cpu") as s:
        layer = nn.Sequential(nn.Linear(s, 5, 7, name="l"), nn.LayerNorm(s, 7, name="n"))
        layer.load_state_dict(theirs.state_dict())
        for name, value in layer.state_dict().items():
            assert_array_equal(value, theirs.state_dict()[name].float().numpy())
