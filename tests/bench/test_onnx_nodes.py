"""The node tests of ONNX: verdicts on nodes made by hand, and, where onnx is installed, all node tests."""

from collections.abc import Iterator
from importlib.util import find_spec
from typing import Any

import numpy as np
import pytest

import tlrt
from bench.onnx_nodes import Case, campaign, judge_node, load_nodes
from tlrt.onnx.graph import OPERATORS, Graph, Node, NotExpressible, Run

X = np.array([[-2.0, 0.5, 3.0], [1.0, -1.0, 4.0]], np.float32)
INTS = {"places": np.array([1, 0]), "size": np.array([3, -1]), "keep": np.array([True, False, True]),
        "lengths": np.array([2, 2, 1]), "yes": np.array(True)}  # fmt: skip


@pytest.fixture
def session() -> Iterator[tlrt.Session]:
    with tlrt.Session("cpu") as s:
        yield s


def case(expected: Any, *operands: np.ndarray) -> Case:
    return Case("a test", "", list(operands), [np.asarray(expected)], 1e-6, 1e-7)


def one(op: str, *inputs: str, **attributes: Any) -> Graph:
    return Graph([Node(op, inputs, ["y"], attributes)], ["x"], ["y"], INTS)


@pytest.mark.parametrize(
    ("graph", "expected"),
    [
        (one("LeakyRelu", "x", alpha=0.5), np.where(X > 0, X, X / 2)),
        (one("Clip", "x", "", "x"), X),  # an operand that is left out
        (one("ReduceMax", "x", axes=[-1], keepdims=0), X.max(1)),
        (one("ArgMin", "x", axis=1), X.argmin(1)[:, None]),
        (one("Gather", "x", "places"), X[::-1]),
        (one("Reshape", "x", "size"), X.reshape(3, 2)),
        (one("Softmax", "x", axis=0), np.exp(X) / np.exp(X).sum(0)),
        (one("Greater", "x", "x"), X > X),
    ],
    ids=lambda v: v.nodes[0].op if isinstance(v, Graph) else "",
)
def test_a_node_gives_what_onnx_says(session: tlrt.Session, graph: Graph, expected: np.ndarray) -> None:
    assert judge_node(case(expected, X), graph, session) == "passed"
    wrong = expected.copy()
    wrong.flat[-1] = (
        not wrong.flat[-1] if wrong.dtype == bool else wrong.flat[-1] + (1 if wrong.dtype.kind == "i" else 0.01)
    )
    assert judge_node(case(wrong, X), graph, session).startswith("output 0: got")
    other = expected.astype(np.int32) if expected.dtype.kind == "f" else expected.astype(np.float64)
    assert f"expected {other.dtype}" in judge_node(case(other, X), graph, session)


@pytest.mark.parametrize(
    ("graph", "operand", "reason"),
    [
        (one("Nothing", "x"), X, "operator Nothing"),
        (one("Relu", "x", slope=1.0), X, "slope"),
        (one("Abs", "x"), X.astype(np.float64), "type float64"),
        (one("MatMul", "x", "x"), X, "MatMul is refused: matmul"),
        (one("Sqrt", "size"), X, "an operand of int64"),
        (one("Dropout", "x", "", "yes"), X, "the random numbers of Dropout"),
    ],
)
def test_what_is_not_expressible_says_why(
    session: tlrt.Session, graph: Graph, operand: np.ndarray, reason: str
) -> None:
    with pytest.raises(NotExpressible, match=reason):
        judge_node(case(X, operand), graph, session)


@pytest.mark.skipif(find_spec("onnx") is None, reason="needs onnx")
def test_no_node_test_of_onnx_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    """And they reach every operator but those whose node tests have no float32."""
    ran, call = set(), Run.call

    def noted(run: Run, node: Node, given: Any) -> Any:
        ran.add(node.op)
        return call(run, node, given)

    monkeypatch.setattr(Run, "call", noted)
    rows = campaign(load_nodes(), "cpu")
    assert [f for r in rows for f in r["failures"]] == [] and sum(r["passed"] for r in rows) >= 1170
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
