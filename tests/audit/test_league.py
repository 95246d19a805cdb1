"""The league: its calls and explanations name real rows, a few rows of NumPy in this process, and a wrong call is found."""

import inspect

import numpy as np
import pytest

from audit.league import runner, table
from audit.league.calls import onnx_calls
from audit.league.explained import EXPLAINED, explanation
from audit.league.libraries import LIBRARIES
from tlrt.verify.documents import read_document
from tlspec import registry

ROWS = {r.name: r for r in registry.ops(None)}


@pytest.mark.parametrize("library", LIBRARIES)
def test_calls_are_of_rows_and_take_their_arguments(library: str) -> None:
    if LIBRARIES[library].missing():
        pytest.skip(LIBRARIES[library].missing())
    for name, call in LIBRARIES[library].calls().items():
        sig = ROWS[name].signature
        known = {*(a.name for a in sig.inputs), *(p.name for p in sig.params), *(d.lstrip("*") for d in sig.dims)}
        parameters = inspect.signature(call).parameters.values()
        assert {p.name for p in parameters if p.default is p.empty} <= known, name


def test_onnx_calls_are_of_rows() -> None:
    assert set(onnx_calls.calls()) <= set(ROWS)


@pytest.mark.parametrize("library", LIBRARIES)
def test_what_is_said_of_calls_names_rows(library: str) -> None:
    module = LIBRARIES[library].module
    assert {*module.COMPOSED, *module.FLOAT32, *(name for name, _ in module.IN_PLACE)} <= set(ROWS)


@pytest.mark.parametrize("op", ["add", "softmax", "take_axis", "rfft1d_packed"])
def test_numpy_is_within_its_tolerances(op: str) -> None:
    (line,) = runner.judge("numpy", op, "float32", 4)
    assert line["verdict"] == "pass" and line["cases"] >= 5, line
    assert line["repeats"] is True


def test_a_wrong_call_fails_and_has_no_explanation(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("audit.league.libraries._calls", lambda module: {"exp": lambda x: np.exp2(x)})
    (line,) = runner.judge("numpy", "exp", "float32", 4)
    assert line["verdict"] == "fail" and runner.unexplained(line)


def test_a_refusal_is_no_failure(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(x: object) -> None:
        raise RuntimeError("\"exp\" not implemented for 'Half'")

    monkeypatch.setattr("audit.league.libraries._calls", lambda module: {"exp": refuse})
    (line,) = runner.judge("numpy", "exp", "float32", 2)
    assert line["verdict"] == "absent" and "Half" in line["refusal"]


def test_explanations_name_rows_and_reasons() -> None:
    for entry in EXPLAINED:
        assert set(entry.op.split()) <= set(ROWS), entry
        assert entry.reason.endswith(".") and entry.which in ("*", "forward", "vjp")


@pytest.mark.skipif(not table.sources(), reason="the league has not been run")
def test_every_failure_of_the_evidence_has_a_reason() -> None:
    rows = table.rows_of(read_document(table.EVIDENCE / name) for name in table.sources())
    assert len(rows) > 800 and not [r for r in rows if runner.unexplained(r)]


def test_an_explanation_covers_its_row_alone() -> None:
    line = {"library": "torch", "op": "sign", "which": "forward", "dtype": "float32", "kinds": ["value"]}
    assert "NaN" in explanation(line)
    assert explanation({**line, "op": "abs"}) == explanation({**line, "kinds": ["value", "shape"]}) == ""


@pytest.mark.skipif(not table.sources(), reason="the league has not been run")
def test_the_page_is_that_of_the_evidence() -> None:
    for name, text in table.documents().items():
        assert (table.ROOT / name).read_text("utf-8") == text, f"{name} is stale: run `python -m audit.league.table`"
