"""Models in the ONNX format: what they give, how they train, what is refused and how it is said."""

import importlib
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import tlrt
from tests import DEVICES, ROOT
from tlrt import ledger, optim
from tlrt.__main__ import main
from tlrt.audit import audit
from tlrt.errors import ArgumentError, ArgumentTypeError, UnavailableError
from tlrt.onnx.graph import HOST, OPERATORS

onnx = pytest.importorskip("onnx")
importer = pytest.importorskip("tlrt.onnx")
helper, numpy_helper, F, I = onnx.helper, onnx.numpy_helper, onnx.TensorProto.FLOAT, onnx.TensorProto.INT64


def drawn(seed: int, *shape: int) -> np.ndarray:
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32)


def model(nodes: list[Any], inputs: list[Any], output: str, weights: dict[str, np.ndarray], opset: int = 17) -> Any:
    edges = [helper.make_tensor_value_info(n, kind, shape) for n, kind, shape in inputs]
    graph = helper.make_graph(nodes, "g", edges, [helper.make_tensor_value_info(output, F, None)],
                              [numpy_helper.from_array(v, n) for n, v in weights.items()])  # fmt: skip
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)])


def node(op: str, inputs: str, output: str, **attributes: Any) -> Any:
    return helper.make_node(op, inputs.split(), [output], **attributes)


def perceptron() -> Any:
    return model(
        [node("Gemm", "x up bias", "h", transB=1), node("Relu", "h", "r"), node("MatMul", "r down", "y")],
        [("x", F, ["batch", 6])], "y", {"up": drawn(1, 8, 6), "bias": drawn(2, 8), "down": drawn(3, 8, 3)},
    )  # fmt: skip


def image_net() -> Any:
    return model(
        [node("Conv", "x w", "c", kernel_shape=[3, 3], pads=[1, 1, 1, 1]),
         node("BatchNormalization", "c scale shift mean var", "n"), node("Relu", "n", "r"),
         node("MaxPool", "r", "p", kernel_shape=[2, 2], strides=[2, 2]), node("GlobalAveragePool", "p", "g"),
         node("Flatten", "g", "f"), node("Gemm", "f out", "y")],
        [("x", F, [None, 3, 8, 8])], "y",
        {"w": drawn(1, 4, 3, 3, 3), "scale": drawn(2, 4), "shift": drawn(3, 4), "mean": drawn(4, 4), "var": drawn(5, 4) ** 2 + 1,
         "out": drawn(6, 4, 2)},
    )  # fmt: skip


def language_model() -> Any:
    """An embedding, one head of attention whose shape is computed by nodes, and a product with the embedding."""
    return model(
        [node("Gather", "table tokens", "e"), node("Shape", "tokens", "shape"), node("MatMul", "e q", "queries"),
         node("Transpose", "e", "keys", perm=[0, 2, 1]), node("MatMul", "queries keys", "s"), node("Softmax", "s", "w", axis=-1),
         node("MatMul", "w e", "mixed"), node("Constant", "", "last", value_ints=[-1]),
         node("Concat", "shape last", "to", axis=0), node("Reshape", "mixed to", "m"), node("Transpose", "table", "t"),
         node("MatMul", "m t", "y")],
        [("tokens", I, ["batch", "length"])], "y", {"table": drawn(1, 11, 5), "q": drawn(2, 5, 5)},
    )  # fmt: skip


def tokens() -> np.ndarray:
    return np.random.default_rng(0).integers(0, 11, (2, 7))


CASES = {"perceptron": (perceptron, lambda: drawn(9, 4, 6)), "image net": (image_net, lambda: drawn(9, 2, 3, 8, 8)),
         "language model": (language_model, tokens)}  # fmt: skip


@pytest.mark.parametrize("device", ["spec", *DEVICES])
@pytest.mark.parametrize("name", CASES)
def test_results_are_those_of_the_reference_evaluator(name: str, device: str) -> None:
    make, operand = CASES[name]
    reference = pytest.importorskip("onnx.reference").ReferenceEvaluator(make())
    expected = reference.run(None, {make().graph.input[0].name: operand()})[0]
    with tlrt.Session(device) as s:
        bound = importer.load(make()).bind(s)
        found = bound(operand()).numpy()
        assert found.shape == expected.shape and np.abs(found - expected).max() <= 1e-5 * np.abs(expected).max()
        again = bound(**{make().graph.input[0].name: operand()}).numpy()
        assert np.array_equal(found, again)


M = np.array([[7, -3, 0], [-8, 5, 2]])
T = np.array([[True, False, True], [False, False, True]])
#: nodes on integers and masks known before the run that neither drawn nodes nor node tests of onnx have
NODES: list[tuple[Any, ...]] = [
    ("Reshape", M[:0], np.array([0, 2]), {"allowzero": 1}), ("Slice", M, *np.array([[-1], [-9], [1], [-2]])),
    ("Slice", M, np.array([0, 1]), np.array([1, 3])), ("Squeeze", M[:1, :1], np.array([1])), ("Expand", T[:1], np.array([2, 3])),
    ("Squeeze", M[:1], M[0, :0]),
    ("Split", M), ("Split", M, np.array([2, 1]), {"axis": 1}), ("Split", M, {"axis": 1, "num_outputs": 2}),
    ("GatherND", M, np.array([[1, 2], [0, 0]])), ("Clip", M, np.array(1)), ("Flatten", M[None], {"axis": 2}),
    ("Pad", M, np.array([1, 2]), np.array(9), np.array([1])), ("ReduceSum", M, {"noop_with_empty_axes": 1}),
    ("Einsum", drawn(1, 3, 4), drawn(2, 4, 5), {"equation": "i j, jk -> ki"}),
]  # fmt: skip


@pytest.mark.parametrize("case", NODES, ids=lambda case: case[0])
def test_nodes_on_the_host_give_what_the_reference_evaluator_gives(case: Any) -> None:
    op, *operands = case
    attributes = operands.pop() if isinstance(operands[-1], dict) else {}
    given = dict(zip("abcd", operands, strict=False))
    one = helper.make_node(op, list(given), ["first", "y"] if op == "Split" else ["y"], **attributes)
    kinds = [(n, helper.np_dtype_to_tensor_dtype(x.dtype), x.shape) for n, x in given.items()]
    whole = model([one], kinds, "y", {}, opset=18)
    expected = pytest.importorskip("onnx.reference").ReferenceEvaluator(whole).run(None, given)[0]
    with tlrt.Session("cpu") as s:
        found = importer.load(whole).bind(s)(**given)
        found = found if isinstance(found, np.ndarray) else found.numpy()
    assert found.shape == expected.shape and found.dtype == expected.dtype and np.array_equal(found, expected)


def test_operators_are_those_of_the_document() -> None:
    text = (ROOT / "docs/onnx.md").read_text("utf-8")
    names = re.search(r"The operators are:\n(.*?)\.$", text, re.MULTILINE | re.DOTALL)
    assert names is not None and names[1].replace(",", " ").split() == sorted({*OPERATORS, *HOST})


@pytest.mark.parametrize("device", ["spec", *DEVICES])
@pytest.mark.parametrize("kind", [bool, np.float32])
@pytest.mark.parametrize("given", [3, 5])
@pytest.mark.parametrize("cap", [0.0, 0.5])
def test_attention_with_a_mask_of_some_keys(device: str, kind: Any, given: int, cap: float) -> None:
    """Keys that a mask of few columns does not name are left out; a mask of numbers is added to the scores, which have a cap or
    none. Two heads of queries share one of keys."""
    x, few, mask = drawn(1, 2, 4, 5, 4), drawn(4, 2, 2, 5, 4), drawn(2, 5, given) > -0.5
    keys = few.repeat(2, axis=1)
    mask[:, 0] = True
    mask = mask if kind is bool else np.where(mask, drawn(3, 5, given), -np.inf).astype(np.float32)
    bias = np.full((5, 5), -np.inf)
    bias[:, :given] = np.where(mask, 0.0, -np.inf) if kind is bool else mask
    scores = x.astype(float) @ np.swapaxes(keys, 2, 3) / 2
    scores = np.exp((np.tanh(scores / cap) * cap if cap else scores) + bias)
    expected = scores / scores.sum(-1, keepdims=True) @ keys
    one = node("Attention", "x few few mask", "y", softcap=cap)
    whole = model([one], [("x", F, x.shape), ("few", F, few.shape)], "y", {"mask": mask}, opset=24)
    with tlrt.Session(device) as s:
        found = importer.load(whole).bind(s)(x, few).numpy()
    assert found.shape == x.shape and np.abs(found - expected).max() <= 1e-5 * np.abs(expected).max()


def test_a_model_is_described(tmp_path: Path) -> None:
    file = tmp_path / "m.onnx"
    onnx.save(perceptron(), str(file))
    for found in (importer.load(file), importer.load(file.read_bytes())):
        assert found.inputs == {"x": (np.dtype(np.float32), ("batch", 6))} and found.outputs == ("y",)
        assert found.operators == {"Gemm": 1, "Relu": 1, "MatMul": 1} and list(found.weights) == ["up", "bias", "down"]
        assert "batch" in repr(found)


def test_weights_are_parameters() -> None:
    with tlrt.Session("cpu") as s:
        net = importer.load(image_net()).bind(s, "net")
        assert sorted(p.name for p in net.parameters()) == [
            "net.out",
            "net.scale",
            "net.shift",
            "net.w",
        ]  # no statistics
        assert set(net.named_parameters()) == {"w", "scale", "shift", "mean", "var", "out"}
        frozen = importer.load(image_net()).bind(s, "frozen", trainable=lambda name: name == "out")
        assert [p.name for p in frozen.parameters()] == ["frozen.out"]
        s.backward(net(drawn(9, 2, 3, 8, 8)).square().reduce_mean())
        assert all(p.grad is not None and np.abs(p.grad.numpy()).max() > 0 for p in net.parameters())


def test_layers_of_a_branch_and_weights_among_the_inputs() -> None:
    """As some exporters write them: numbers of weights without axes are no parameters, and statistics are fixed anywhere."""
    whole = onnx.parser.parse_model("""
    <ir_version: 9, opset_import: ["": 18]>
    g (float[2, 3] x, bool c, float[3] w = {1, 2, 3}) => (float[2, 3] y) <float two = {2}, float[3] v = {4, 5, 6}> {
      z = Mul(x, two)
      y = If(c) <then_branch = a () => (float[2, 3] p) { p = BatchNormalization<epsilon = 0.0>(z, w, w, v, v) },
        else_branch = b () => (float[2, 3] q) { q = Identity(z) }> }""")
    net, x = importer.load(whole), drawn(1, 2, 3)
    assert list(net.inputs) == ["x", "c"] and sorted(net.weights) == ["v", "w"]
    assert net.operators == {"Mul": 1, "If": 1, "BatchNormalization": 1, "Identity": 1}
    with tlrt.Session("cpu") as s:
        assert not net.bind(s, "fixed", trainable=False).parameters()
        bound, v, w = net.bind(s), net.weights["v"], net.weights["w"]
        assert [p.name for p in bound.parameters()] == ["w"]
        assert np.allclose(bound(x, True).numpy(), (2 * x - v) / np.sqrt(v) * w + w, 1e-5, 1e-5)
        assert np.array_equal(bound(x, c=False).numpy(), 2 * x)


def train(s: tlrt.Session, settings: dict[str, Any]) -> None:
    net = importer.load(language_model()).bind(s)
    optimizer = optim.AdamW(net.parameters(), lr=0.01)
    with ledger.record(settings["file"], s, optimizer, checkpoint_every=5, settings=settings) as run:
        for step in run.steps(12):
            batch = np.random.default_rng(step).integers(0, 11, (4, 6))
            s.backward(s.cross_entropy(net(batch).reshape((24, 11)), batch.reshape(-1)))
            optimizer.step()
            s.reset()


def test_an_imported_model_trains_and_its_run_is_audited(tmp_path: Path) -> None:
    file = str(tmp_path / "run.jsonl")
    with tlrt.Session("cpu", seed=1, math="reproducible") as s:
        before = importer.load(language_model()).weights["table"]
        train(s, {"file": file})
        after = next(p for p in s.parameters.values() if p.name == "table").numpy()
    assert np.abs(after - before).max() > 0.01
    assert audit(train, file, device="cpu", steps=(7, 10)).ok


def test_devices_are_compared_on_a_model() -> None:
    def program(s: tlrt.Session) -> Any:
        return importer.load(image_net()).bind(s)(drawn(9, 2, 3, 8, 8)).square().reduce_mean()

    report = tlrt.compare(program, devices=("spec", "cpu"))
    assert report.ok and {"conv", "matmul"} <= {r.op for r in report.rows}


def test_everything_that_is_missing_is_named_at_once() -> None:
    wrong = model([node("Det", "x", "a"), node("DFT", "a", "b"), node("LeakyRelu", "b", "y", slope=0.1)],
                  [("x", F, [1, 3, 4, 4])], "y", {})  # fmt: skip
    with pytest.raises(
        UnavailableError, match=r"operator Det \(output a\); operator DFT \(output b\); attribute slope of LeakyRelu"
    ):
        importer.load(wrong)
    old = model([node("Relu", "x", "y")], [("x", F, [1])], "y", {}, opset=11)
    for old.opset_import[0].domain in ("", "ai.onnx"):
        with pytest.raises(UnavailableError, match="opset 11"):
            importer.load(old)
    wide = model([node("Relu", "x", "y")], [("x", onnx.TensorProto.DOUBLE, [1])], "y", {})
    with pytest.raises(UnavailableError, match="input x of type float64"):
        importer.load(wide)
    foreign = model([helper.make_node("FusedGelu", ["x"], ["y"], domain="com.example")], [("x", F, [1])], "y", {})
    with pytest.raises(UnavailableError, match=r"com\.example\.FusedGelu"):
        importer.load(foreign)


def test_wrong_inputs_are_named() -> None:
    with tlrt.Session("cpu") as s:
        net = importer.load(perceptron()).bind(s)
        with pytest.raises(ArgumentError, match="no x"):
            net()
        for given, named in ((1, {"z": 1}), (1, {"x": drawn(1, 2, 6)}), (2, {})):
            with pytest.raises(ArgumentError, match="the inputs x, each once"):
                net(*given * [drawn(1, 2, 6)], **named)
        tokens_ = importer.load(language_model()).bind(s)
        for wrong in (np.array([[1.5]]), np.array([[2**64 - 1]], np.uint64)):
            with pytest.raises(
                ArgumentTypeError, match="tokens: got an array of .*, expected one whose values int64 holds"
            ):
                tokens_(wrong)
        with pytest.raises(ArgumentTypeError, match="tokens: got TensorRef, expected an array of int64"):
            tokens_(s.const(drawn(1, 2, 3)))


def test_the_command(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = str(tmp_path / "m.onnx")
    onnx.save(perceptron(), file)
    assert main(["onnx", file]) == 0
    assert "input   x: float32 ['batch', 6]" in capsys.readouterr().out
    assert main(["onnx", file, "--compare", "spec,cpu", "--sizes", "batch=3"]) == 0
    assert "every result within its bound" in capsys.readouterr().out
    np.savez(tmp_path / "in.npz", x=drawn(1, 5, 6))
    assert main(["onnx", file, "--compare", "spec,cpu", "--inputs", str(tmp_path / "in.npz")]) == 0
    onnx.save(model([node("Log", "x", "y")], [("x", F, ["n"])], "y", {}), file)
    inputs = [
        importlib.import_module("tlrt.onnx.command").draw(importer.load(file), {"n": 3}, seed)["x"]
        for seed in (0, 1, 1)
    ]
    assert inputs[0].shape == (3,) and (inputs[0] != inputs[1]).all() and (inputs[1] == inputs[2]).all()
    for options, status in (([], 0), (["--sizes", "n=8"], 1)):
        assert main(["onnx", file, "--compare", "spec,cpu", *options]) == status
        assert ("NaN begins at" in capsys.readouterr().out) == bool(status)
    assert main(["onnx", str(tmp_path / "none.onnx")]) == 2
    assert "tlrt onnx:" in capsys.readouterr().err


def test_the_documents_code_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    onnx.save(perceptron(), "model.onnx")
    blocks = re.findall(r"^```py\n(.*?)^```", (ROOT / "docs/onnx.md").read_text("utf-8"), re.MULTILINE | re.DOTALL)
    assert blocks
    for block in blocks:
        exec(block, {})
