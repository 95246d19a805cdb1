"""What users of PyTorch and NumPy try first: it works, or the error says what there is instead."""

import inspect
import operator
import re
import subprocess
import sys
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from numpy.testing import assert_raises_regex

import tlrt
from tests import ROOT
from tlrt import Session, checkpoint, errors, nn, optim
from tlrt._operations import names


def test_a_gradient_read_after_reset(s: Session) -> None:
    w = s.param([1.0, 2.0], "w")
    s.backward((w * w).reduce_sum())
    gradient = w.grad
    s.reset()
    assert gradient is not None
    for read in (gradient.numpy, lambda: np.asarray(gradient)):
        assert_raises_regex(errors.ReleasedError, "numpy: buffer: got a released buffer .*reset release", read)


#: an owner, a name that it lacks -> a part of what the error says
HINTS = {
    ("x", "t"): "torch.t is x.transpose2d or x.permute", ("x", "T"): "x.transpose2d", ("x", "view"): "x.reshape",
    ("x", "to"): "use a session of the device", ("x", "cuda"): "a session of the device", ("x", "cpu"): "x.numpy",
    ("x", "dtype"): "every tensor is float32", ("x", "cat"): "s.concat", ("x", "clone"): "the tensor itself",
    ("x", "zero_"): "Parameter.set", ("x", "relu_"): "nothing changes a tensor in place: relu gives",
    ("x", "relus"): "there is elu, gelu, relu", ("w", "transpose"): "x.permute", ("w", "data"): "x.detach or x.numpy",
    ("s", "cat"): "torch.cat is s.concat", ("s", "tensor"): "s.const or s.input", ("s", "zero_grad"): "s.reset",
    ("s", "manual_seed"): "tlrt.Session", ("s", "arange"): "s.const", ("s", "no_gradd"): "there is no_grad",
    ("optimizer", "zero_grad"): "s.reset here (s: a session", ("optimizer", "state_dict"): "optim.Optimizer.state",
    ("optimizer", "param_groups"): "optim.Optimizer.groups", ("optimizer", "learning_rate"): "there is lr",
    ("layer", "train"): "training=True", ("layer", "forward"): "__call__", ("layer", "weights"): "there is weight",
    ("nn", "ReLU"): "x.relu", ("nn", "Module"): "nn.Layer", ("nn", "Conv2d"): "nn.Conv",
    ("nn", "functional"): "methods of a session", ("nn", "CrossEntropyLoss"): "s.cross_entropy",
    ("nn", "Linearr"): "there is Linear", ("optim", "Adagrad"): "use `optim.AdamW`",
    ("optim", "lr_scheduler"): "nn.schedules", ("optim", "Adamw"): "there is Adam, AdamW",
    ("tlrt", "zeros"): "torch.zeros is s.zeros here (s: a session", ("tlrt", "no_grad"): "s.no_grad",
    ("tlrt", "save"): "checkpoint.save", ("tlrt", "cuda"): "a session of the device",
    ("tlrt", "float32"): "every tensor is float32", ("tlrt", "compile"): "s.capture",
}  # fmt: skip


@pytest.mark.parametrize("wrong", HINTS, ids=".".join)
def test_a_name_of_pytorch_gives_the_name_here(s: Session, wrong: tuple[str, str]) -> None:
    w = s.param([[1.0]], "w")
    owners = {"s": s, "x": s.zeros(2), "w": w, "optimizer": optim.Adam([w]), "layer": nn.Linear(s, 1, 1, name="fc"),
              "nn": nn, "optim": optim, "tlrt": tlrt}  # fmt: skip
    said = f"has no attribute '{wrong[1]}'; .*{re.escape(HINTS[wrong])}"
    assert_raises_regex(AttributeError, said, getattr, owners[wrong[0]], wrong[1])


def test_private_names_get_no_hint(s: Session) -> None:
    assert not hasattr(s, "__deepcopy__") and not hasattr(s, "_missing") and not hasattr(tlrt, "__wrapped__")
    assert_raises_regex(AttributeError, "_relu'$", getattr, s.zeros(1), "_relu")


def test_every_line_of_the_table_is_read() -> None:
    table = names._table()
    assert len(table) > 400 and table["cat"][0] == "s.concat, x.concat_dim0" and "nn.functional.relu" in table
    places = {f"{part}x" for parts in names._PLACES.values() for part in parts}
    assert len(places) > 10


#: a call with an argument of another library's name -> what the error says
CALLS: dict[str, Callable[[Session, Any], Any]] = {
    "mean: dim: got an argument of no such name, expected axis=1, as dim is called here": lambda s, x: x.mean(dim=1),
    "mean: dim: .* expected axis=-1, as dim": lambda s, x: s.mean(x, dim=-1),
    "sum: keepdim: .* expected keepdims=True": lambda s, x: x.sum(axis=0, keepdim=True),
    "softmax: dim: .* expected softmax.* .along the last axis alone": lambda s, x: s.softmax(x, dim=-1),
    "relu: inplace: .* expected none: nothing changes in place": lambda s, x: x.relu(inplace=True),
    "clamp: .*missing .*expected clamp.": lambda s, x: x.clamp(),
    "Linear: in_features: .* expected inputs=3, as": lambda s, x: nn.Linear(s, in_features=3, out_features=1, name="l"),
    "Linear: device: .* a session has one device": lambda s, x: nn.Linear(s, 3, 1, name="l", device="cpu"),
    "Linear: missing 1 .*'outputs', expected Linear.session, inputs, outputs, .*name, bias=True": lambda s, x: (
        nn.Linear(3, 1)
    ),
    "Conv: kernel_size: .* expected kernel=3": lambda s, x: nn.Conv(s, 1, 1, kernel_size=3, name="c"),
    "AdamW: betas: .* expected beta1= and beta2=": lambda s, x: optim.AdamW([s.param([1.0])], betas=(0.9, 0.99)),
    "SGD: learning_rate: .* expected lr=0.5": lambda s, x: optim.SGD([s.param([1.0])], learning_rate=0.5),
    "cosine: T_max: .* expected total=9": lambda s, x: nn.schedules.cosine(1, peak=1.0, T_max=9),
    "Session: devices: got an argument of no such name, expected device=": lambda s, x: Session(devices="cpu"),
}


@pytest.mark.parametrize("said", CALLS)
def test_an_argument_of_pytorch_gives_the_name_here(s: Session, said: str) -> None:
    assert_raises_regex(errors.ArgumentTypeError, f"^{said}", CALLS[said], s, s.zeros((2, 2)))


def test_an_error_within_an_operation_is_not_one_of_its_arguments(s: Session) -> None:
    class Wrong:
        def __index__(self) -> int:
            raise TypeError("of its own")

    assert_raises_regex(TypeError, "of its own|an integer|integers", s.zeros((2, 2)).sum, Wrong())


def test_names_that_completion_offers_are_public() -> None:
    for module in (optim, nn, tlrt):
        assert [n for n in dir(module) if not n.startswith("_")] == sorted(module.__all__)


def test_shapes_in_messages_were_passed(s: Session) -> None:
    x, w, b = s.zeros((2, 5, 3)), s.zeros((4, 2)), s.zeros(4)
    said = r"linear: w, b, x: got shapes \(4, 2\), \(4,\) and \(2, 5, 3\), expected \(outputs, inputs\), \(outputs\)"
    assert_raises_regex(errors.ShapeError, said, s.linear, x, w, b)
    assert_raises_regex(errors.ShapeError, said, s.linear, w, b, x)
    said = r"linear: w, b, x: got shapes \(4, 2\) and \(4,\) alone, expected linear\(w, b, x\), or linear\(x, w, b\)"
    assert_raises_regex(errors.ShapeError, said, s.linear, w, b)
    said = r"matmul: a, b: got shapes \(2, 3, 4, 5\) and \(2, 5, 3\), expected \(…, m, n\) by \(…, n, p\)"
    assert_raises_regex(errors.ShapeError, said, operator.matmul, s.zeros((2, 3, 4, 5)), x)


def test_an_integer_beside_max_would_be_an_axis(s: Session) -> None:
    x = s.const([[1.0, -2.0], [3.0, 0.25]])
    for name in ("max", "min"):
        for axis in (0, 1, -1, np.int64(1), True):
            assert_raises_regex(
                errors.ArgumentTypeError, rf"{name}: b: got {axis}, expected a tensor, or .*axis={int(axis)}",
                getattr(x, name), axis,
            )  # fmt: skip
        assert_raises_regex(errors.ArgumentTypeError, f"{name}: a: got 0", getattr(s, name), 0, x)
        expected = getattr(np, f"{name}imum")(x.numpy(), 0.5)
        assert np.array_equal(getattr(x, name)(0.5).numpy(), expected)
        assert np.array_equal(getattr(s, name)(np.float32(0.5), x).numpy(), expected)


def test_axes_of_a_reduction(s: Session) -> None:
    x = s.const(np.arange(24.0).reshape(2, 3, 4))
    assert x.sum(()).shape == (2, 3, 4) and x.max().item() == 23 and x.var((0, 2), True).shape == (1, 3, 1)
    assert x.norm(np.inf, -1).shape == (2, 3) and s.zeros((0, 2)).norm(np.inf, 0).shape == (2,)
    for axis, said in ((3, "-3 <= axis < 3"), ((0, -3), "no axis twice"), (1.5, "integers")):
        for name in ("sum", "mean", "prod"):
            assert_raises_regex(errors.TorchleanError, f"{name}: axis: got .*{said}", getattr(x, name), axis)
    assert_raises_regex(errors.ArgumentError, "max: axis: got 1, expected no axis", x.max, x, axis=1)
    assert_raises_regex(errors.ArgumentError, r"flip: axes: got \(0, -3\), expected no axis twice", s.flip, x, (0, -3))
    for p in (0.5, -1, -np.inf, np.nan):
        assert_raises_regex(errors.ArgumentError, "vector_norm: p: .*at least 1", x.norm, p)
    assert_raises_regex(errors.ShapeError, "amin: .*no empty axis", s.zeros((0, 2)).min)


LAYERS = {
    "LayerNorm: width: got str": lambda s: nn.LayerNorm(s, (3, "4"), name="n"),
    "Linear: outputs: got float": lambda s: nn.Linear(s, 3, 4.0, name="n"),
    "Embedding: count: got None": lambda s: nn.Embedding(s, None, 3, name="n"),
    "BatchNorm: channels: got -1": lambda s: nn.BatchNorm(s, -1, name="n"),
    "Conv: in_channels: got str": lambda s: nn.Conv(s, "3", 3, 3, name="n"),
    "Conv: kernel: got float": lambda s: nn.Conv(s, 3, 3, 1.5, name="n"),
    "MultiHeadAttention: width: got tuple": lambda s: nn.MultiHeadAttention(s, (4,), 2, name="n"),
    "SpectralConv1d: modes: got float": lambda s: nn.SpectralConv1d(s, 4, 2.0, name="n"),
    "MambaBlock: width: got list": lambda s: nn.MambaBlock(s, [4], name="n"),
}  # fmt: skip


@pytest.mark.parametrize("said", LAYERS)
def test_sizes_of_layers(s: Session, said: str) -> None:
    assert_raises_regex(errors.TorchleanError, said, LAYERS[said], s)
    assert not s.parameters and nn.Conv(s, 1, 1, np.int64(3), name="n").weight.shape == (1, 1, 3, 3)


def test_checkpoints_in_another_order(s: Session, tmp_path: Any) -> None:
    s.param([1.0], "a"), s.param([2.0], "b")
    checkpoint.save(tmp_path / "c", s)
    with Session(s.device.name) as other:
        other.param([1.0], "b"), other.param([2.0], "a")
        said = "its parameters in another order, 'a' where they first differ, expected 'b'"
        assert_raises_regex(checkpoint.CheckpointError, said, checkpoint.load, tmp_path / "c", other)


def test_what_a_checkpoint_holds_beside_tensors(s: Session, tmp_path: Any) -> None:
    extra = {"loss": np.float32(0.5), "step": np.int64(3), "done": np.bool_(True), "more": [np.float64(1.5), None]}
    checkpoint.save(tmp_path / "c", s, extra=extra)
    assert checkpoint.load(tmp_path / "c", s) == {"loss": 0.5, "step": 3, "done": True, "more": [1.5, None]}
    for wrong, kind in (
        ({"loss": float("nan")}, errors.ArgumentError), ({"loss": np.float32("inf")}, errors.ArgumentError),
        ({"x": s.zeros(1)}, errors.ArgumentTypeError), ({"x": np.zeros(2)}, errors.ArgumentTypeError),
        (3, errors.ArgumentTypeError),
    ):  # fmt: skip
        assert_raises_regex(kind, "save: extra: got .*expected a dict", checkpoint.save, tmp_path / "d", s, extra=wrong)
    assert not (tmp_path / "d").exists()


class Mine(nn.Layer):
    """A user's layer: parameters, layers, and containers of them as attributes."""

    def __init__(self, s: Session, name: str) -> None:
        self.session, self.count, self.parent = s, 3, self
        self.first = nn.Linear(s, 2, 2, name=f"{name}.first")
        self.gain = s.param([1.0], f"{name}.gain")
        self.blocks = [nn.Linear(s, 2, 2, name=f"{name}.{i}", bias=False) for i in range(2)]
        self.more = {"tie": self.first, "frozen": (s.param([2.0], f"{name}.frozen", False), None)}

    def __call__(self, x: Any, *, training: bool = False) -> Any:
        return self.forward(x)

    def forward(self, x: Any) -> Any:
        x = self.first(x) * self.gain
        for block in self.blocks:
            x = block(x)
        return x


def test_parameters_of_a_layer_of_ones_own(s: Session) -> None:
    mine = Mine(s, "m")
    expected = ["m.first.weight", "m.first.bias", "m.gain", "m.0.weight", "m.1.weight", "m.frozen"]
    assert [p.name for p in mine.parameters()] == expected and "Mine(gain[1])" in repr(mine)
    for model in (nn.Sequential(mine, s.relu), nn.Sequential(s.relu, mine.forward)):
        assert model.parameters() == mine.parameters()

    class Other:
        def __init__(self) -> None:
            self.inner = mine

        __call__ = mine.forward

    assert_raises_regex(errors.ArgumentTypeError, "layer 0: got Other with parameters", nn.Sequential, Other())
    optimizer = optim.SGD(nn.Sequential(mine).parameters(), lr=0.1)
    s.backward(nn.Sequential(mine)(s.full((1, 2), 1.0)).reduce_sum())
    optimizer.step()
    assert mine.gain.value != 1.0


def test_parameters_of_a_session_are_a_dict_and_a_list(s: Session) -> None:
    a, b = s.param([1.0], "a"), s.param([1.0], "b")
    assert s.parameters() == [a, b] and s.parameters == {"a": a, "b": b}


def test_a_cell_that_builds_a_layer_twice(s: Session) -> None:
    layer, kept = nn.Linear(s, 2, 3, name="net.hidden"), s.param([1.0], "net_too")
    said = r"'net.hidden.weight', which is taken, expected another \(session.parameters.drop\('net.hidden'\)"
    assert_raises_regex(errors.ArgumentError, said, nn.Linear, s, 2, 3, name="net.hidden")
    s.parameters.drop("net.hidden")
    again = nn.Linear(s, 2, 3, name="net.hidden")
    assert s.parameters() == [kept, *again.parameters()]
    assert_raises_regex(errors.ReleasedError, "'net.hidden.weight', which was dropped", layer, s.zeros((1, 2)))
    s.parameters.drop("net")
    assert s.parameters() == [kept]
    said = "drop: name: got 'net', expected one of net_too"
    assert_raises_regex(errors.ArgumentError, said, s.parameters.drop, "net")


@pytest.mark.parametrize("shape", [(143, 30), (143, 2), (5000,)], ids=str)
def test_long_tensors_are_printed_by_their_ends(s: Session, shape: tuple[int, ...]) -> None:
    x = s.const(np.arange(np.prod(shape)).reshape(shape) % 89)
    ends = np.array2string(x.numpy(), prefix="TensorRef(", separator=", ", threshold=1)
    assert ends in repr(x) and repr(x).count("\n") < 8
    assert "..." not in repr(s.zeros((10, 10)))


def test_dlpack_gives_a_copy_on_the_host(s: Session) -> None:
    x, w = s.const([[1.0, 2.0]]), s.param([3.0])
    for tensor in (x, w):
        made = np.from_dlpack(tensor)
        assert np.array_equal(made, tensor.numpy()) and made is not tensor.numpy()
    assert_raises_regex(BufferError, "copy: got False", x.__dlpack__, copy=False)


TYPED = """
from typing import assert_type
import tlrt
s = tlrt.Session("cpu")
x = s.const([1.0])
assert_type(x, tlrt.TensorRef)
assert_type(x.tanh(), tlrt.TensorRef)
assert_type(s.param([1.0]).relu().reshape((1, 1)), tlrt.TensorRef)
assert_type(s.tanh(x), tlrt.TensorRef)
x.nothing
s.nothing
x.tanh(1)
"""


def test_type_checkers_know_the_methods(tmp_path: Any) -> None:
    pytest.importorskip("mypy", reason="mypy is not installed")
    (tmp_path / "program.py").write_text(TYPED)
    done = subprocess.run(
        [sys.executable, "-m", "mypy", "--cache-dir", ROOT / ".mypy_cache", tmp_path / "program.py"], cwd=ROOT,
        capture_output=True, text=True,
    )  # fmt: skip
    lines = [line.partition(": error: ")[0][-2:] for line in done.stdout.splitlines()[:-1]]
    assert lines == ["10", "11", "12"], done.stdout


def test_the_names_of_arguments_are_there() -> None:
    """Of Session's methods, and of what nn, optim and the schedules have."""
    owners = [getattr(Session, n) for n in dir(Session) if not n.startswith("_")]
    owners += [getattr(module, n) for module in (nn, optim, nn.schedules) for n in module.__all__]
    known = {p for owner in owners if callable(owner) for p in inspect.signature(owner).parameters}
    assert {ours for names_ in names.ARGUMENTS.values() for ours in names_} <= known
