"""What a run of verify shows and writes."""

import json
import math
from dataclasses import asdict, fields

import numpy as np
import pytest

from tlrt.verify.report import Failure, Report, Result, _format_number, describe_inputs, format_results, summarise


def results() -> list[Result]:
    right = Result("relu", "relu", "elementwise", "forward", "cpu", "exact", 6, 60, 0.0, 0.0)
    right.classes = {"empty": 2, "long": 0}
    wrong = Result("relu", "relu_bwd", "elementwise", "vjp", "cpu", "1 ulp", 7, 70, 1.5, 123.4, identical=False)
    wrong.failures = [Failure("relu_bwd", "cpu", "bound", f"case {i}", f"again {i}") for i in range(5)]
    return [right, wrong]


@pytest.mark.parametrize(
    ("number", "text"),
    [(0.0, "0"), (0.25, "0.250"), (99.9994, "99.999"), (100.0, "100"), (999999.0, "999999"), (1e6, "1e+06"),
     (math.inf, "inf"), (math.nan, "inf")],
)  # fmt: skip
def test_numbers(number: float, text: str) -> None:
    assert _format_number(number) == text


def test_a_row_for_each_entry_point() -> None:
    head, _, *rows = (line.split() for line in format_results(results()).splitlines())
    assert head == ["op", "device", "cases", "error/bound", "ulp", "same", "bits", "bound", "verdict"]
    assert rows == [
        ["relu", "cpu", "6", "0", "0", "-", "exact", "ok"],
        ["relu_bwd", "cpu", "7", "1.500", "123", "NO", "1", "ulp", "FAIL"],
    ]
    right = results()[0]
    right.identical = True
    assert " yes " in format_results([right])


def test_failures_and_the_verdict() -> None:
    report = Report("verify", 3, "now", {"cpu": "a processor"}, {}, {}, results(), 1.25)
    assert not report.ok and len(report.failures) == 5
    lines = summarise(report).splitlines()
    assert "FAIL relu_bwd on cpu (bound): case 2" in lines and "     again 2" in lines and "case 3" not in str(lines)
    assert lines[-3:] == [
        "     ... and 2 more failures of relu_bwd on cpu", "1 of 2 geometry classes were reached",
        "1 of 2 entry points FAILED: 13 cases on cpu in 1.2 s, seed 3",
    ]  # fmt: skip
    assert "case 4" in summarise(report, 5) and "more failures" not in summarise(report, 5)
    report.devices["cuda:0"] = "a GPU"
    assert summarise(report).splitlines()[-1].startswith("1 on cpu of 2 entry points FAILED: 13 cases on cpu, cuda:0")
    del report.devices["cuda:0"], report.results[1]
    assert report.ok and summarise(report).splitlines()[-1].startswith("all 1 entry points pass: 6 cases on cpu")
    report.results = []
    assert not report.ok


def test_the_document_has_every_field() -> None:
    report = Report("verify", 3, "now", {"cpu": "a processor"}, {}, {}, results(), 1.25)
    document = json.loads(json.dumps(report.document()))
    assert set(document) == {f.name for f in fields(Report)} | {"verdict", "cases"}
    assert (document["verdict"], document["cases"]) == ("fail", 13)
    first, second = document["results"]
    assert (first["verdict"], second["verdict"]) == ("pass", "fail") and second["failures"][4]["detail"] == "case 4"
    assert set(first) == {
        "op", "entry", "family", "which", "device", "bound", "cases", "elements", "share", "ulp", "shares", "worst_line",
        "identical", "seconds", "laws", "classes", "failures", "verdict",
    }  # fmt: skip


def test_a_result_goes_over_as_json_and_comes_back() -> None:
    for result in results():
        assert Result.of(json.loads(json.dumps(asdict(result)))) == result


def test_a_failure_shows_the_inputs() -> None:
    inputs = {"x": np.arange(12.0, dtype=np.float32), "mask": None, "i": np.array([[3, 1]], np.uint32)}
    text = describe_inputs(inputs)
    assert text == "x [12] = [ 0., 1., 2., ..., 9., 10., 11.]\ni [1, 2] = [3, 1]"
    failure = Failure("add", "cpu", "bound", "d", "again", text)
    result = Result("add", "add", "elementwise", "forward", "cpu", "exact", failures=[failure])
    lines = summarise(Report("", 0, "", {"cpu": ""}, {}, {}, [result])).splitlines()
    assert lines[lines.index("     again") + 1 :][:2] == [f"     {line}" for line in text.splitlines()]
