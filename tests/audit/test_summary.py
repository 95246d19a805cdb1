"""Summaries keep counts, failures and the worst figures of raw documents."""

import pytest

from audit import summary
from audit.summary import reduce_part, round_up, summarise, write_summaries
from tlrt.verify.documents import read_document

RESULT = {
    "op": "tanh",
    "entry": "tanh",
    "bound": "1 ulp",
    "cases": 7,
    "share": 0.5,
    "ulp": 0.123456,
    "identical": None,
    "failures": [],
}


@pytest.mark.parametrize("x", [0.0, 0.12341, 0.9996, 1.0, 123.4, 1e-9])
def test_worst_figures_are_rounded_up(x: float) -> None:
    assert x <= round_up(x) <= x * 1.01


def raw(**changes: object) -> dict[str, object]:
    cpu, gpu = {**RESULT, "device": "cpu"}, {**RESULT, "device": "cuda:0", "share": 0.25, "identical": True, **changes}
    return {"command": "python -m tlrt verify", "started": "2026-01-02T03:04", "verdict": "pass", "results": [cpu, gpu],
            "devices": {"cpu": "CPU, x", "cuda:0": "NVIDIA H200, y"}}  # fmt: skip


def test_a_verify_run_has_one_row_an_entry_point() -> None:
    ((name, found),) = summarise(raw()).items()
    assert name == "verify-h200" and found["date"] == "2026-01-02" and found["cases"] == 14 and found["failures"] == []
    assert found["worst"] == {"entry": "tanh", "share": 0.5}
    (row,) = found["rows"]
    assert row["share"] == {"cpu": 0.5, "cuda": 0.25} and row["same_bits"] is True and row["ulp"]["cpu"] == 0.124


def test_failures_are_kept() -> None:
    line = "python -m tlrt verify --ops tanh --seed 3"
    ((_, found),) = summarise(raw(failures=[{"line": line}])).items()
    assert found["failures"] == [line]
    document = {
        "memcheck add": "ERROR SUMMARY: 2 errors",
        "memcheck": "ERROR SUMMARY: 0 errors",
        "racecheck": "no summary",
    }
    _, found = reduce_part(
        "sanitizer", document, {"devices": {"cuda:0": "NVIDIA H200, y"}}, summary.REDUCERS["sanitizer"]
    )
    assert found["verdict"] == "fail"
    assert [r["failures"] for r in found["rows"]] == [["add: ERROR SUMMARY: 2 errors"], ["drawn cases: no summary"]]


def test_written_summaries_are_read_again(tmp_path) -> None:
    (path,) = write_summaries(raw(), tmp_path / "new")
    assert path.name == "verify-h200.jsonl" and read_document(path) == summarise(raw())["verify-h200"]
    assert summary.read_summaries(tmp_path / "new") == summarise(raw())
    assert "FAIL" not in summary.summary_text(raw()) and "tanh" in summary.summary_text(raw())
