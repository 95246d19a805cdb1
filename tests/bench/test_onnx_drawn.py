"""Drawn graphs of one node: every operator of the importer has some, and tlrt gives what the standard says, from float64."""

import re
from contextlib import suppress
from importlib.util import find_spec

import numpy as np
import pytest

from bench import onnx_drawn
from bench.onnx_draws import DRAWN, draw
from bench.onnx_standard import EXPLAINED
from tests import ROOT
from tlrt.errors import UnavailableError
from tlrt.onnx.graph import HOST, OPERATORS

#: operators with graphs within, or with one result whatever their operands; other tests have them
APART = {"If", "Loop", "Scan", "Constant", "SwiGLU", "CausalConvWithState"}
#: operators with more combinations of attributes and operands than others, and how many nodes they have
MANY = dict.fromkeys(("CumProd", "CumSum", "Resize"), 40) | dict.fromkeys(
    ("ArgMax", "ArgMin", "Attention", "BitShift", "Conv", "Gemm", "GatherND", "MaxPool",
     "NonMaxSuppression", "Pad", "ReduceMax", "ScatterElements",
     "ScatterND", "Shrink", "Slice", "Unique"), 20)  # fmt: skip
needs_onnx = pytest.mark.skipif(find_spec("onnx") is None, reason="needs onnx")


def test_every_operator_is_drawn() -> None:
    assert {*OPERATORS, *HOST} - DRAWN.keys() == APART


@needs_onnx
@pytest.mark.parametrize("op", DRAWN)
def test_drawn_nodes_give_what_the_standard_says(op: str) -> None:
    count = MANY.get(op, 8)
    found = onnx_drawn.campaign(count, 21, [op])
    assert found["nodes"] == count and not found["refused"]
    assert not [u for u in found["unexplained"] if u.startswith("tlrt")]


@needs_onnx
@pytest.mark.parametrize("op", DRAWN)
def test_gradients_are_those_of_differences(op: str) -> None:
    """In float64, so that a term that is missing is told from what rounding does."""
    for k in range(2):
        seed = (
            25 if op == "GridSample" else 23
        )  # which have both kinds of corners, and no place where a comparison turns
        case = draw(op, [seed, k, list(DRAWN).index(op)])
        with np.errstate(all="ignore"), suppress(UnavailableError):  # a gradient that there is not, and says so
            every = (onnx_drawn.slopes(case, into) for into in onnx_drawn.INTO)
            found, wanted, size = next((one for one in every if np.isfinite(one).all()), (0, 0, 0))
            assert abs(found - wanted) <= 2.0**-15 * (size + abs(wanted)), case


@needs_onnx
@pytest.mark.parametrize("op", ["Add", "Sinh", "MatMul", "Resize", "LSTM", "ReduceMean", "Cast", "Gather"])
def test_a_wrong_result_is_told(op: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A part in 10^5 more, or 1 for integers, is outside of what rounding may do."""
    right = onnx_drawn._run_on_tlrt

    def wrong(case: object, device: str) -> list[object]:
        found = right(case, device)  # type: ignore[arg-type]
        return found if device == "spec" else [f * 1.00001 if f.dtype.kind == "f" else f ^ 1 for f in found]

    monkeypatch.setattr(onnx_drawn, "_run_on_tlrt", wrong)
    assert any(u.startswith("tlrt") for u in onnx_drawn.campaign(4, 22, [op])["unexplained"])


def test_the_page_has_the_table_of_what_is_explained() -> None:
    page = (ROOT / "docs/onnx.md").read_text("utf-8")
    found = {(who, op): how for op, who, how in re.findall(r"^\| (\w+) \| ([\w.]+) \| (.*) \|$", page, re.MULTILINE)}
    assert {key: how for key, how in found.items() if how != "how"} == EXPLAINED
