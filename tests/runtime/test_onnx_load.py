"""What load takes and what it names: attributes, types, functions, sparse weights."""

import itertools
import typing
from typing import Any

import numpy as np
import pytest

import tlrt
from tests.runtime.onnx_graphs import graph_of, run
from tlrt.errors import UnavailableError

onnx = pytest.importorskip("onnx")
importer = pytest.importorskip("tlrt.onnx")
from tlrt.onnx.check import _parameters  # noqa: E402
from tlrt.onnx.graph import HOST, OPERATORS  # noqa: E402
from tlrt.onnx.reader import _attribute  # noqa: E402

NEWEST = onnx.defs.onnx_opset_version()


def stated(op: str) -> dict[str, Any]:
    """The attributes of an operator that say a default, and it."""
    attributes = onnx.defs.get_schema(op, NEWEST).attributes.values()
    return {a.name: _attribute(a.default_value, {}) for a in attributes if a.default_value.name}


@pytest.mark.parametrize("op", sorted({*OPERATORS, *HOST}))
def test_defaults_are_those_of_the_standard(op: str) -> None:
    """Every attribute that is not given means what the standard says, and one that says its own default is taken."""
    for function in (table[op] for table in (OPERATORS, HOST) if op in table):
        parameters, hints = _parameters(function)
        ours = {p.name: p.default for p in parameters if p.kind is p.KEYWORD_ONLY}
        for name, value in stated(op).items():
            if name in ours and ours[name] is not None:
                assert _same(ours[name], value), (op, name)
            hint = hints.get(name)
            if name in ours and typing.get_origin(hint) is typing.Literal:
                assert value in typing.get_args(hint), (op, name)


def _same(a: Any, b: Any) -> bool:
    return (
        list(a) == list(b)
        if isinstance(b, list)
        else a == b or (isinstance(b, float) and np.float32(a) == np.float32(b))
    )


X = np.random.default_rng(0).standard_normal((1, 4, 4, 4)).astype(np.float32)
W = np.random.default_rng(1).standard_normal((1, 12, 4)).astype(np.float32) / 9
POOL, BLOCK, CELL = {"kernel_shape": [2, 2]}, {"blocksize": 2}, {"hidden_size": 3}
#: operators with operands that suit them, and what they need
WITH_DEFAULTS: dict[str, tuple[list[Any], dict[str, Any]]] = {
    "LSTM": ([X[0], W, W[:, :, :3]], CELL), "GRU": ([X[0], W[:, :9], W[:, :9, :3]], CELL),
    "RNN": ([X[0], W[:, :3], W[:, :3, :3]], CELL), "Conv": ([X, X], {}), "ConvTranspose": ([X, X.transpose(1, 0, 2, 3)], {}),
    "MaxPool": ([X], POOL), "AveragePool": ([X], POOL), "LpPool": ([X], POOL), "SpaceToDepth": ([X], BLOCK),
    "DepthToSpace": ([X], BLOCK), "Resize": ([X, None, np.array([1, 1, 2, 2], np.float32)], {}),
    "GridSample": ([X, X[..., :2]], {}), "Gelu": ([X], {}), "Softmax": ([X], {}),
    "LayerNormalization": ([X, X[0, 0, 0]], {}), "Cast": ([X], {"to": 7}), "Mod": ([np.array([-7]), np.array([3])], {}),
    "ArgMax": ([X], {}), "TopK": ([X, np.array([2])], {}), "Gemm": ([X[0, 0], X[0, 0]], {}), "Attention": ([X, X, X], {}),
    "ScatterND": ([X, np.array([[0]]), X], {}),
    "ScatterElements": ([X, np.zeros((1, 1, 1, 1), np.int64), X[:, :1, :1, :1]], {}),
    "ReduceSum": ([X], {}), "CumSum": ([X, np.array(0)], {}), "Pad": ([X, np.ones(8, np.int64)], {}),
}  # fmt: skip


@pytest.mark.parametrize("op", WITH_DEFAULTS)
def test_an_attribute_that_says_its_default_changes_nothing(op: str) -> None:
    operands, needed = WITH_DEFAULTS[op]
    outputs = 2 if op == "TopK" else 1
    expected = run(op, *operands, outputs=outputs, opset=NEWEST, **needed)
    said = {n: v for n, v in stated(op).items() if n not in needed}
    assert said
    found = run(op, *operands, outputs=outputs, opset=NEWEST, **needed, **said)
    for a, b in zip(found if outputs > 1 else [found], expected if outputs > 1 else [expected]):
        assert np.array_equal(a, b)


@pytest.mark.parametrize("size", range(1, 7))
def test_channels_around_one(size: int) -> None:
    """Of an even size one more behind than before: the formula of the standard (its reference evaluator has another)."""
    x = np.random.default_rng(size).standard_normal((2, 5, 3)).astype(np.float32)
    before, behind = (size - 1) // 2, -(-(size - 1) // 2)
    sums = [np.sum(np.square(x[:, max(c - before, 0) : c + behind + 1], dtype=np.float64), axis=1) for c in range(5)]
    expected = x / (1.5 + 0.25 / size * np.stack(sums, 1)) ** 0.5
    found = run("LRN", x, size=size, alpha=0.25, beta=0.5, bias=1.5)
    assert np.allclose(found, expected, rtol=1e-6, atol=0)


@pytest.mark.parametrize("counted", [0, 1])
@pytest.mark.parametrize("pads", [*itertools.product((0, 1), repeat=2)])
def test_what_ceil_mode_adds_does_not_count(pads: tuple[int, int], counted: int) -> None:
    """A mean is that of the cells, and of the padding where it counts, but not of what lies beyond."""
    before, behind = pads
    for size in range(5, 9):
        x = np.arange(1, size + 1, dtype=np.float32)
        starts = [s for s in range(-before, size + behind, 2) if s + 3 <= size + behind + 1 and s < size]
        inside = [[c for c in range(s, s + 3) if 0 <= c < size] for s in starts]
        counts = [len([c for c in range(s, s + 3) if -before <= c < size + behind]) for s in starts]
        expected = [sum(x[c]) / (n if counted else len(c)) for c, n in zip(inside, counts, strict=True)]
        said = {"kernel_shape": [3], "strides": [2], "pads": [*pads], "ceil_mode": 1, "count_include_pad": counted}
        assert np.allclose(run("AveragePool", x[None, None], opset=19, **said)[0, 0], expected, rtol=1e-6, atol=0)


def test_types_that_are_not_computed_are_named() -> None:
    for kind in (onnx.TensorProto.FLOAT16, onnx.TensorProto.DOUBLE, onnx.TensorProto.BFLOAT16, onnx.TensorProto.STRING):
        with pytest.raises(UnavailableError, match=r"type \w+ of y0 \(from Cast\)"):
            importer.load(graph_of("Cast", X, to=kind))
    whole = onnx.parser.parse_model(
        '<ir_version: 9, opset_import: ["": 18]> g (int64[3] i, float[3] x) => (y, z) '
        '<double[1] d = {1}> { a = Sqrt(i) y = Det(a) b = SequenceConstruct(x) z = RoiAlign<mode="max">(x, x, i) c = MaxPool(x) }'
    )
    with pytest.raises(UnavailableError) as refused:
        importer.load(whole)
    for part in ("operator Sqrt of int64", "operator Det", "operator SequenceConstruct", "attribute mode = 'max' of RoiAlign",
                 "no attribute kernel_shape of MaxPool", "weight d of type float64"):  # fmt: skip
        assert part in str(refused.value)


def test_a_graph_within_is_looked_at() -> None:
    whole = onnx.parser.parse_model(
        '<ir_version: 9, opset_import: ["": 18, "other": 1]> g (float[3] x, bool c) => (float[3] y) { y = If(c) <'
        "then_branch = a () => (float[3] p) { p = Sqrt(c) }, else_branch = b () => (float[3] q) { q = Nothing(x) }> }"
    )
    with pytest.raises(UnavailableError, match=r"operator Sqrt of bool .*operator Nothing"):
        importer.load(whole)
    whole.graph.node[0].attribute[0].g.node[0].domain = "other"  # an operator of somebody else, of whatever name
    with pytest.raises(UnavailableError, match=r"operator other\.Sqrt"):
        importer.load(whole)


FILTER, COLUMN = X.transpose(1, 0, 2, 3), X[0, 0, :, :1]
REGIONS = np.array([[0, 0, 3, 3], [1, 1, 2, 4]], np.float32), np.array([0, 0])
#: an operator, operands, and two ways to say the same
SAME: list[tuple[str, list[Any], dict[str, Any], dict[str, Any]]] = [
    ("RoiAlign", [X, *REGIONS], {"opset": 13}, {"opset": 16, "coordinate_transformation_mode": "output_half_pixel"}),
    ("GridSample", [X, X[..., :2] / 2], {"opset": 16, "mode": "bicubic"}, {"opset": 20, "mode": "cubic"}),
    ("ConvTranspose", [X, FILTER], {"auto_pad": "SAME_LOWER"}, {"pads": [2, 2, 1, 1]}),
    ("ConvTranspose", [X, FILTER], {"output_shape": [1, 1, 5, 4]}, {"output_shape": [5, 4]}),
    ("Resize", [X, None, np.array([2], np.float32)], {"axes": [-1], "mode": "linear"}, {"axes": [3], "mode": "linear"}),
]  # fmt: skip


@pytest.mark.parametrize("case", SAME, ids=lambda case: case[0])
def test_two_ways_to_say_the_same(case: Any) -> None:
    """The standard's domain has two names, as well."""
    op, operands, said, other = case
    whole = graph_of(op, *operands, **said)
    whole.graph.node[0].domain = whole.opset_import[0].domain = "ai.onnx"
    with tlrt.Session("cpu") as s:
        found = importer.load(whole).bind(s)(*(x for x in operands if x is not None)).numpy()
    assert np.array_equal(found, run(op, *operands, **other))


FUNCTIONS = """
<ir_version: 9, opset_import: ["" : 18, "local" : 1]>
g (float[N, 3] x) => (float[N, 3] y) { a = local.twice(x)  b = local.leak(a)  y = local.leak<slope = 0.5>(b) }
<domain: "local", opset_import: ["" : 18, "local" : 1]>
twice (x) => (y) { y = local.sum(x, x) }
<domain: "local", opset_import: ["" : 18]>
sum (x, y) => (z) { z = Add(x, y) }
<domain: "local", opset_import: ["" : 18]>
leak <slope: float = 0.25> (x) => (y) { y = LeakyRelu<alpha: float = @slope>(x) }
"""


def test_functions_of_the_model_are_put_in_place_with_their_defaults() -> None:
    x = np.random.default_rng(2).standard_normal((4, 3)).astype(np.float32)
    with tlrt.Session("cpu") as s:
        found = importer.load(onnx.parser.parse_model(FUNCTIONS)).bind(s)(x).numpy()
    assert np.array_equal(found, np.where(x > 0, 2 * x, 2 * x * np.float32(0.125)))


@pytest.mark.parametrize(
    ("op", "constant"),
    [("HannWindow", False), *((op, given) for op in ("CenterCropPad", "RotaryEmbedding") for given in (False, True))],
)
def test_operators_that_the_standard_defines_by_others_are_computed(op: str, constant: bool) -> None:
    """They are not in the tables: their bodies are. A body depends on types, those of weights and between nodes, too."""
    assert op not in OPERATORS.keys() | HOST.keys()
    reference = pytest.importorskip("onnx.reference").ReferenceEvaluator
    x = np.random.default_rng(3).standard_normal((2, 2, 3)).astype(np.float32)
    operands = {"CenterCropPad": [x, np.array([1, 4, 3])], "RotaryEmbedding": [x[None, ..., :2], *x[:, :, :1]],
                "HannWindow": [np.array(9, np.int32)]}[op]  # fmt: skip
    operands = [v[None] if op == "RotaryEmbedding" and k else v for k, v in enumerate(operands)]
    whole = graph_of(op, *operands, opset=23)
    named = {f"x{k}": v for k, v in enumerate(operands)}
    expected = reference(whole).run(None, named)[0]
    if constant:
        (node,) = whole.graph.node
        node.input[0] = "between"
        whole.graph.node.insert(0, onnx.helper.make_node("Identity", ["x0"], ["between"]))
        whole.graph.initializer.extend(onnx.numpy_helper.from_array(v, n) for n, v in named.items() if n != "x0")
        del whole.graph.input[1:]
        named = {"x0": x if op == "CenterCropPad" else operands[0]}
    with tlrt.Session("cpu") as s:
        found = importer.load(whole).bind(s)(**named)
        assert np.allclose(found if isinstance(found, np.ndarray) else found.numpy(), expected, 1e-5, 1e-6)


def test_sparse_weights_are_weights() -> None:
    dense = np.zeros((3, 4), np.float32)
    dense[0, 2], dense[2, 1] = 5, -7
    for places in (np.array([2, 9]), np.array([[0, 2], [2, 1]])):
        values = onnx.numpy_helper.from_array(np.array([5, -7], np.float32), "w")
        sparse = onnx.helper.make_sparse_tensor(values, onnx.numpy_helper.from_array(places, "i"), [3, 4])
        whole = onnx.parser.parse_model(
            '<ir_version: 9, opset_import: ["": 18]> g (float[2, 3] x) => (float[2, 4] y) {y = MatMul(x, w)}'
        )
        whole.graph.sparse_initializer.append(sparse)
        x = np.random.default_rng(4).standard_normal((2, 3)).astype(np.float32)
        with tlrt.Session("cpu") as s:
            net = importer.load(whole).bind(s)
            assert "w" in net.named_parameters()
            assert np.allclose(net(x).numpy(), x @ dense, 1e-6)


def test_scale_and_bias_of_groups_are_those_of_their_channels() -> None:
    x = np.random.default_rng(5).standard_normal((2, 6, 5)).astype(np.float32)
    scale, bias = np.array([2, 3], np.float32), np.array([-1, 1], np.float32)
    by_group = run("GroupNormalization", x, scale, bias, num_groups=2, opset=18)
    by_channel = run("GroupNormalization", x, scale.repeat(3), bias.repeat(3), num_groups=2, opset=21)
    rows = x.astype(float).reshape(2, 2, 15)
    exact = (rows - rows.mean(-1, keepdims=True)) / np.sqrt(rows.var(-1, keepdims=True) + 1e-5) * scale[:, None] + bias[
        :, None
    ]
    assert np.array_equal(by_group, by_channel)
    assert np.abs(by_group - exact.reshape(x.shape)).max() <= 16 * 2.0**-23 * np.abs(exact).max()


def test_a_loop_runs_until_its_condition_is_false() -> None:
    whole = onnx.parser.parse_model("""
    <ir_version: 9, opset_import: ["" : 18]>
    g (float[2] x, int64 most, bool go) => (float[2] y, float[n, 2] seen) {
      last, seen = Loop(most, go, x) <body = b (int64 i, bool c, float[2] s) => (bool d, float[2] t, float[2] u) {
        two = Constant<value_float = 2.0>()  t = Mul(s, two)  n = Cast<to = 1>(i)  u = Mul(t, n)
        hundred = Constant<value_float = 100.0>()  top = ReduceMax<keepdims = 0>(t)  d = Less(top, hundred) }>
      y = Floor(last) }""")
    with tlrt.Session("cpu") as s:
        net = importer.load(whole).bind(s)
        y, seen = net(np.array([1, 3], np.float32), np.array(50), np.array(True))
        assert y.numpy().tolist() == [64, 192] and seen.shape == (6, 2)
        y, seen = net(np.array([1, 3], np.float32), np.array(2), np.array(True))
        assert y.numpy().tolist() == [4, 12] and seen.numpy().tolist() == [[0, 0], [4, 12]]
        for most, go in ((0, True), (50, False)):
            with pytest.raises(UnavailableError, match="a body that never ran"):
                net(np.array([1, 3], np.float32), np.array(most), np.array(go))
    node = whole.graph.node[0]
    for place, name, expected in ((1, "", [4, 12]), (1, "go", None), (0, "", [64, 192])):
        node.input[place] = name  # one that is left out limits nothing
        with tlrt.Session("cpu") as s:
            net = importer.load(whole).bind(s)
            if expected:
                y, _ = net(np.array([1, 3], np.float32), np.array(2), np.array(place == 0))
                assert y.numpy().tolist() == expected


@pytest.mark.parametrize("given", [0, 1])
@pytest.mark.parametrize("made", [0, 1])
@pytest.mark.parametrize("axis", [0, 1, -1, -2])
def test_a_scan_goes_either_way(given: int, made: int, axis: int) -> None:
    """Along any axis, with two states and two inputs that go in opposite directions. What is usual need not be said."""
    kind = "float[2, 4]"
    ways = f"scan_output_axes = [{axis}]," * (axis != 0) + f"scan_output_directions = [{made}]," * (made != 0)
    whole = onnx.parser.parse_model(f"""
    <ir_version: 9, opset_import: ["" : 17]>
    g ({kind} a, {kind} b, float[n, p, q] x, float[3, 2, 4] w) => ({kind} z, {kind} c, float[i, j, k] y) {{
      z, c, y = Scan <num_scan_inputs = 2, scan_input_axes = [{axis}, 0], scan_input_directions = [{given}, {1 - given}],
        {ways}
        body = b ({kind} s, {kind} n, {kind} e, {kind} f) => ({kind} t, {kind} m, {kind} o) {{
          p = Mul(e, f)  t = Add(s, p)  m = Add(n, n)  o = Identity(t) }}> (a, b, x, w) }}""")
    x, w = np.random.default_rng(1).integers(-9, 9, (2, 3, 2, 4)).astype(np.float32)
    with tlrt.Session("cpu") as s:
        operands = np.zeros((2, 4), np.float32), np.ones((2, 4), np.float32), np.moveaxis(x, 0, axis), w
        z, c, y = (v.numpy() for v in importer.load(whole).bind(s)(*operands))
    sums = (x[:: -1 if given else 1] * w[:: 1 if given else -1]).cumsum(0)
    assert np.array_equal(z, sums[-1]) and (c == 8).all()
    assert np.array_equal(y, np.moveaxis(sums[:: -1 if made else 1], 0, axis))


@pytest.mark.parametrize("op", ["LSTM", "GRU", "RNN"])
def test_sequences_may_be_the_rows_of_what_is_given(op: str) -> None:
    """Layout 1 is layout 0 with the batch first; the last state of a short sequence is that at its end."""
    gates, rng = {"LSTM": 4, "GRU": 3, "RNN": 1}[op], np.random.default_rng(6)
    x, w, r = (rng.standard_normal(s).astype(np.float32) for s in ((5, 3, 2), (2, gates * 4, 2), (2, gates * 4, 4)))
    states = [rng.standard_normal((2, 3, 4)).astype(np.float32) for _ in range(1 + (op == "LSTM"))]
    lengths = np.array([5, 2, 3], np.int32)
    more: dict[str, Any] = {"hidden_size": 4, "direction": "bidirectional", "outputs": 1 + len(states)}
    y, *last = run(op, x, w, r, None, lengths, *states, **more)
    turned = run(op, x.swapaxes(0, 1), w, r, None, lengths, *(h.swapaxes(0, 1) for h in states), layout=1, **more)
    for found, expected in zip(turned, [y.transpose(2, 0, 1, 3), *(h.swapaxes(0, 1) for h in last)], strict=True):
        assert np.array_equal(found, expected)
    assert np.array_equal(last[0][0], y[lengths - 1, 0, range(3)]) and (y[2:, :, 1] == 0).all()


@pytest.mark.parametrize("value", [0.5, [0.5, 2.0], 7, [7, 2**53 + 1]], ids=str)
def test_constants_have_the_shape_and_the_type_of_their_attribute(value: Any) -> None:
    """Numbers have no axis, and what fills a shape gives its type."""
    array = np.array(value, np.float32 if isinstance(np.ravel(value)[0], float) else np.int64)
    name = f"value_{'float' if array.dtype.kind == 'f' else 'int'}{'s' * array.ndim}"
    tensor = onnx.numpy_helper.from_array(array)
    filled = onnx.numpy_helper.from_array(array.reshape(-1)[-1:])
    for found, expected in (
        (run("Constant", **{name: value}), array), (run("Constant", value=tensor), array),
        (run("ConstantOfShape", np.array([2, 3]), value=filled), np.full((2, 3), array.reshape(-1)[-1])),
    ):  # fmt: skip
        assert (found.dtype, found.shape) == (expected.dtype, expected.shape) and np.array_equal(found, expected)


def test_a_length_that_rounding_decides_is_refused() -> None:
    """Of 10 elements by 0.7 the standard makes 6 in float64; runtimes that multiply in float32 make 7."""
    x = np.arange(10, dtype=np.float32).reshape(1, 1, 10)
    for scale, length in ((0.5, 5), (1.1, 11), (0.55, 5)):
        assert run("Resize", x, None, np.array([1, 1, scale], np.float32), opset=19).shape == (1, 1, length)
    for scale in (0.7, 0.9, 1.3):
        with pytest.raises(UnavailableError, match="whose whole parts rounding decides"):
            run("Resize", x, None, np.array([1, 1, scale], np.float32), opset=19)
        assert run("Resize", x, None, None, np.array([1, 1, round(10 * scale)]), opset=19).shape[2] == round(10 * scale)


def test_dropout_in_training_is_named_where_a_constant_says_it() -> None:
    text = '<ir_version: 9, opset_import: ["": 18]> g (float[3] x) => (float[3] y) {{ r = Constant<value_float = 0.5>() {} }}'
    training = "t = Constant<value = bool {1}>() y = Dropout(x, r, t)"
    with pytest.raises(UnavailableError, match="the random numbers of Dropout"):
        importer.load(onnx.parser.parse_model(text.format(training)))
    importer.load(onnx.parser.parse_model(text.format(training.replace("{1}", "{0}"))))


def test_nan_is_told_by_the_comparison() -> None:
    """NaN that begins within the model is named: it is no result within its bound."""

    def program(s: tlrt.Session) -> Any:
        x = np.array([-1.0, 4.0], np.float32)
        return importer.load(graph_of("Sqrt", x)).bind(s)(x).reduce_mean()

    report = tlrt.compare(program, devices=("spec", "cpu"))
    assert "every result within its bound" not in str(report)
    assert "cpu: step 0, node 1: sqrt" in report.not_numbers[-1]
    assert "NaN begins at" in str(report)
