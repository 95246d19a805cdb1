"""The node tests of ONNX: the interpreter on nodes made by hand, its verdicts, and, where onnx is installed, all of them."""

from collections.abc import Iterator
from importlib.util import find_spec
from typing import Any

import numpy as np
import pytest

import tlrt
from audit.command import main
from audit.onnx_nodes import command
from audit.onnx_nodes.cases import Case
from tlrt.onnx.graph import OPERATORS, Graph, Node, NotExpressible, Run

X = np.array([[-2.0, 0.5, 3.0], [1.0, -1.0, 4.0]], np.float32)
INTS = {"places": np.array([1, 0]), "size": np.array([3, -1]), "keep": np.array([True, False, True]),
        "lengths": np.array([2, 2, 1]), "yes": np.array(True)}  # fmt: skip


@pytest.fixture
def session() -> Iterator[tlrt.Session]:
    with tlrt.Session("cpu") as s:
        yield s


def case(graph: Graph, expected: Any, *operands: np.ndarray) -> Case:
    return Case("a test", graph.nodes[-1].op, graph, list(operands), [np.asarray(expected)], 1e-6, 1e-7)


def one(op: str, *inputs: str, **attributes: Any) -> Graph:
    return Graph([Node(op, inputs, ["y"], attributes)], ["x"], ["y"], INTS)


@pytest.mark.parametrize(
    ("graph", "expected"),
    [
        (one("LeakyRelu", "x", alpha=0.5), np.where(X > 0, X, X / 2)),
        (one("Clip", "x", "", "x"), X),  # an operand that is left out
        (one("Sum", "x", "x", "x"), 3 * X),
        (one("ReduceMax", "x", axes=[-1], keepdims=0), X.max(1)),
        (one("ArgMin", "x", axis=1), X.argmin(1)[:, None]),
        (one("Gather", "x", "places"), X[::-1]),
        (one("Reshape", "x", "size"), X.reshape(3, 2)),
        (one("Where", "keep", "x", "x"), X),
        (one("Softmax", "x", axis=0), np.exp(X) / np.exp(X).sum(0)),
        (one("Mod", "x", "x", fmod=1), X * 0),
        (one("Transpose", "x"), X.T),
        (one("Greater", "x", "x"), X > X),
    ],
    ids=lambda v: v.nodes[0].op if isinstance(v, Graph) else "",
)
def test_a_node_gives_what_onnx_says(session: tlrt.Session, graph: Graph, expected: np.ndarray) -> None:
    assert command.judge(case(graph, expected, X), session) == "passed"
    wrong = expected.copy()
    wrong.flat[-1] = (
        not wrong.flat[-1] if wrong.dtype == bool else wrong.flat[-1] + (1 if wrong.dtype.kind == "i" else 0.01)
    )
    assert command.judge(case(graph, wrong, X), session).startswith("output 0: got")
    assert f"expected {expected.dtype}{[1, *expected.shape]}" in command.judge(case(graph, expected[None], X), session)
    other = expected.astype(np.int32) if expected.dtype.kind == "f" else expected.astype(np.float64)
    assert f"expected {other.dtype}" in command.judge(case(graph, other, X), session)


def test_shapes_are_computed_on_the_host_and_subgraphs_see_outer_edges(session: tlrt.Session) -> None:
    """x·x in the shape that Shape, Mul and Gather make, in the branch that an integer chooses."""
    branch = Graph([Node("Mul", ["x", "x"], ["z"])], [], ["z"])
    nodes = [
        Node("Shape", ["x"], ["s"]), Node("Mul", ["s", "s"], ["q"]), Node("Div", ["q", "s"], ["r"]),
        Node("Gather", ["r", "places"], ["t"]), Node("Equal", ["t", "t"], ["all"]), Node("Gather", ["all", "zero"], ["c"]),
        Node("If", ["c"], ["square"], {"then_branch": branch, "else_branch": Graph([], [], ["x"])}),
        Node("Reshape", ["square", "t"], ["y"]),
    ]  # fmt: skip
    graph = Graph(nodes, ["x"], ["y"], {**INTS, "zero": np.array(0)})
    assert command.judge(case(graph, (X * X).reshape(3, 2), X), session) == "passed"


@pytest.mark.parametrize(
    ("graph", "operand", "reason"),
    [
        (one("Nothing", "x"), X, "operator Nothing"),
        (one("Relu", "x", slope=1.0), X, "slope"),
        (one("Abs", "x"), X.astype(np.float64), "type float64"),
        (one("MatMul", "x", "x"), X, "MatMul is refused: matmul"),
        (Graph([Node("Abs", ["x"], ["", "y"])], ["x"], ["y"]), X, "output 2 of Abs"),
        (one("Sqrt", "size"), X, "an operand of int64"),
        (one("RNN", "x", "x", "x", activations=["Gelu"]), X[..., None], "the activation Gelu"),
        (one("Gather", "size", "lengths"), X, "Gather is refused"),
        (one("Dropout", "x", "", "yes"), X, "the random numbers of Dropout"),
    ],
)
def test_what_is_not_expressible_says_why(
    session: tlrt.Session, graph: Graph, operand: np.ndarray, reason: str
) -> None:
    with pytest.raises(NotExpressible, match=reason):
        command.judge(case(graph, X, operand), session)


def test_the_status_is_that_of_the_worst_test(monkeypatch: Any, capsys: Any, tmp_path: Any) -> None:
    tests = [case(one("Abs", "x"), abs(X), X), case(one("Nothing", "x"), X, X), ("Sin", "types")]
    monkeypatch.setattr(command, "find_spec", lambda name: True)
    monkeypatch.setattr(command, "load", lambda op: iter(tests))
    assert main(["onnx", "--json", str(tmp_path / "onnx.json")]) == 0
    assert "1 of 3 float32 node tests passed, 0 failed, 2 not expressible" in capsys.readouterr().out
    assert '"passed": 1' in (tmp_path / "onnx.json").read_text()
    monkeypatch.setattr(Run, "call", lambda self, node, given: 1 / 0)  # a test that cannot end has failed
    assert main(["onnx", "--list"]) == 1
    out = capsys.readouterr().out
    assert "FAILED a test: ZeroDivisionError" in out and "1  types" in out


def test_without_onnx_it_says_what_to_install(monkeypatch: Any, capsys: Any) -> None:
    monkeypatch.setattr(command, "find_spec", lambda name: None)
    with pytest.raises(SystemExit, match="2"):
        main(["onnx"])
    assert "pip install 'torchlean-cuda[onnx]'" in capsys.readouterr().err


@pytest.mark.skipif(find_spec("onnx") is None, reason="needs onnx")
def test_no_node_test_of_onnx_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    """And they reach every operator but those whose node tests have no float32."""
    ran, call = set(), Run.call

    def noted(run: Run, node: Node, given: Any) -> Any:
        ran.add(node.op)
        return call(run, node, given)

    monkeypatch.setattr(Run, "call", noted)
    passed, failed, _ = command.sums(command.campaign("cpu"))
    assert failed == 0
    assert passed >= 1170
    apart = {
        "And",
        "CumProd",
        "CumSum",
        "Einsum",
        "GlobalLpPool",
        "NonMaxSuppression",
        "NonZero",
        "Not",
        "Shrink",
        "Trilu",
        "Xor",
    }
    assert OPERATORS.keys() - ran <= apart
