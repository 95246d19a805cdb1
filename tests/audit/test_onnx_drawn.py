"""Drawn graphs of one node: every operator of the importer has some, and tlrt agrees with float64 on them."""

import re
import warnings
from importlib.util import find_spec

import pytest

from audit.onnx_nodes import differential, text
from audit.onnx_nodes.drawn import DRAWN
from tests import ROOT
from tlrt.onnx.graph import HOST, OPERATORS

#: operators with graphs within or with one result whatever their operands, which other tests have
APART = {"If", "Loop", "Scan", "Constant", "SwiGLU", "CausalConvWithState"}


def test_every_operator_is_drawn() -> None:
    assert {*OPERATORS, *HOST} - DRAWN.keys() == APART


@pytest.mark.skipif(find_spec("onnx") is None, reason="needs onnx")
@pytest.mark.parametrize("op", DRAWN)
def test_drawn_nodes_give_what_the_standard_says(op: str) -> None:
    found = differential.campaign(2, 21, op)
    assert found["nodes"] == 2 and not found["refused"]
    assert not [u for u in found["unexplained"] if u.startswith("tlrt")]


@pytest.mark.skipif(find_spec("onnx") is None, reason="needs onnx")
@pytest.mark.parametrize("op", ["Add", "Sinh", "MatMul", "Resize", "LSTM", "ReduceMean", "Cast", "Gather"])
def test_a_wrong_result_is_told(op: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A part in 10^5 more, or 1 for integers, is outside of what rounding may do."""
    right = differential.on_tlrt

    def wrong(case: object, device: str) -> list[object]:
        found = right(case, device)  # type: ignore[arg-type]
        return found if device == "spec" else [f * 1.00001 if f.dtype.kind == "f" else f ^ 1 for f in found]

    monkeypatch.setattr(differential, "on_tlrt", wrong)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        assert any(u.startswith("tlrt") for u in differential.campaign(4, 22, op)["unexplained"])


def test_what_is_explained_is_of_operators_that_are_drawn() -> None:
    """And the document has the same table."""
    assert {op for _, op in text.EXPLAINED} <= DRAWN.keys()
    page = (ROOT / "docs/onnx.md").read_text("utf-8")
    found = {(who, op): how for op, who, how in re.findall(r"^\| (\w+) \| ([\w.]+) \| (.*) \|$", page, re.MULTILINE)}
    assert {key: how for key, how in found.items() if how != "how"} == text.EXPLAINED
