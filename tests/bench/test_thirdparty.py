"""Kernels of other projects: the references are derived, a wrong call is found, and the table says so."""

from typing import Any

import pytest

torch = pytest.importorskip("torch")

from bench import thirdparty  # noqa: E402

pytestmark = pytest.mark.filterwarnings("ignore")
#: references of which every kind of input and gradient has one
TRIED = ["silu", "log", "div", "softmax", "cumsum", "layer_norm", "group_norm", "addmm", "cross_entropy", "embedding", "gather",
         "causal_attention", "argmax"]  # fmt: skip


@pytest.fixture(autouse=True)
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(thirdparty, "SIZES", ((3, 7), (16, 32)))


@pytest.mark.parametrize("name", TRIED)
def test_pytorch_itself_is_within_the_tolerances(name: str) -> None:
    entry = thirdparty.expressions()[name]
    line = thirdparty.judge("compile", name, entry, entry.reference, "float32", "cpu")
    assert line["verdict"] in ("pass", "blind") and not line["assumed"].startswith("estimated"), line


def test_a_wrong_call_is_in_the_table() -> None:
    entry = thirdparty.expressions()["softmax"]

    def wrong(x: Any) -> Any:
        return torch.softmax(x, -1) * 1.02

    lines = [thirdparty.judge("liger", "softmax", entry, wrong, d, "cpu") for d in ("float32", "bfloat16")]
    assert [line["verdict"] for line in lines] == ["fail", "fail"], lines
    shown = thirdparty.table(lines)
    assert "liger       softmax" in shown and "liger softmax float32: value" in shown
