"""The report: well-formed, self-contained, and what failed stands in its summary."""

import copy
import json
import re
from collections.abc import Iterator
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest

from audit import command, coverage, evidence
from audit.environment import EVIDENCE
from audit.evidence import Evidence
from audit.figures import plural
from audit.report import render_page
from tests import exit_status
from tlrt.verify.documents import read_document

pytest.importorskip("jinja2")
pytest.importorskip("matplotlib")
FILES = sorted(EVIDENCE.glob("*.jsonl"))
VOID = {"meta", "br", "wbr", "input", "line", "rect", "path"}
LIMIT = 2_000_000


class Page(HTMLParser):
    """Checks nesting, and gathers ids, attributes and the text of each section."""

    def __init__(self, text: str):
        super().__init__()
        self.open: list[str] = []
        self.ids: list[str] = []
        self.attributes: list[tuple[str, str, str]] = []
        self.sections: dict[str, str] = {}
        self.section = ""
        self.rows: list[tuple[int, int]] = []  # columns of a table's head, cells of a row
        self.cells, self.head = 0, 0
        self.feed(text)
        self.close()
        assert self.open == []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        given = {k: v or "" for k, v in attrs}
        self.attributes += [(tag, k, v) for k, v in given.items()]
        if "id" in given:
            self.ids.append(given["id"])
        if tag == "section":
            self.section = given["id"]
        if tag == "tr":
            self.cells = 0
        if tag in ("td", "th"):
            assert tag == "td" or "scope" in given
            self.cells += int(given.get("colspan", 1))
        if tag not in VOID:
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        if tag in VOID:
            return
        assert self.open and self.open[-1] == tag, f"</{tag}> closes <{self.open[-1:]}> at {self.getpos()}"
        self.open.pop()
        if tag == "tr":
            if "thead" in self.open:
                self.head = self.cells
            assert self.cells == self.head, self.getpos()

    def handle_data(self, data: str) -> None:
        self.sections[self.section] = self.sections.get(self.section, "") + data


def read(text: str) -> Page:
    """The page, once it is known to be well-formed, to need nothing from outside, and to be small."""
    page = Page(text)
    assert len(page.ids) == len(set(page.ids)) and len(text.encode()) < LIMIT
    links = [v for _, k, v in page.attributes if k in ("href", "src", "action", "data", "srcset", "xlink:href")]
    assert all(v.startswith("#") and v[1:] in page.ids for v in links), links
    assert not re.search(r"https?:|url\(|@import|<link|<img|<iframe", text)
    assert [k for _, k, _ in page.attributes if k.startswith("on")] == []
    return page


def test_the_committed_evidence_is_a_page() -> None:
    found = [evidence.read(f.name, read_document(f)) for f in FILES]
    page = read(render_page(found))
    ev = Evidence(found)
    assert ("Nothing failed" in page.sections["summary"]) == (ev.findings == [])
    points = page.sections["points"]
    for entry in ev.entries():
        assert entry in points
    for s in found:
        assert s.name in page.sections["sources"]


def spoilt(document: dict[str, Any]) -> dict[str, Any]:
    wrong = copy.deepcopy(document)
    r = wrong["verify"]["results"][5]
    line = "python -m tlrt verify --ops <this> & --seed 77"
    r["failures"] = [
        {"entry": r["entry"], "device": r["device"], "kind": "bound", "detail": "off by 3 < 4", "line": line}
    ]
    r["verdict"] = "fail"
    return wrong


def test_a_failing_entry_stands_in_the_summary() -> None:
    file, document = next((f, d) for f in FILES if (d := read_document(f)).get("verify"))
    document = {"verify": {**document["verify"], "results": document["verify"]["results"][:12]}}
    run = evidence.read(file.name, document)
    before = Evidence([run]).findings
    lines = read(render_page([run])).sections["points"].count("FAIL")
    wrong = spoilt(document)
    page = read(render_page([evidence.read(file.name, wrong)]))
    failed = wrong["verify"]["results"][5]
    summary = page.sections["summary"]
    assert plural(len(before) + 1, "failure") in summary and "Nothing failed" not in summary
    assert f"{failed['entry']} on {failed['device']}" in summary and "off by 3 < 4" in summary
    assert "--ops <this> & --seed 77" in summary, "escaped in the source, whole in the text"
    assert page.sections["points"].count("FAIL") == lines + 1


def failing() -> dict[str, dict[str, Any]]:
    """One document per part, each with one failure."""
    row = {"entry": "exp", "device": "cpu", "verdict": "fail"}
    sums = {"op": "softmax", "what": "gx", "device": "cpu", "leaves": 9, "values": {}, "declared": 4, "extra": 0, "height": 8,
            "fan_in": 2, "found": "whole", "verdict": "fail"}  # fmt: skip
    counts: dict[str, Any] = dict.fromkeys(("repeats", "reused", "threads", "variants", "trims"), 1) | {
        "batches": None,
        "batch": "no batch",
    }
    case = {"at": "0x1p0", "got": "0", "want": "1"}
    cpu = {"seen": 5, "worst": 9, "misrounded": 2, "mismatches": 0, "over": 1, "precise": 0, "undecided": 0, "hash": "0",
           "over_case": case}  # fmt: skip
    function = {"entry": "exp", "limit": 1, "bound": "1 ulp", "complete": True, "special": [], "differ": None,
                "devices": {"cpu": cpu}, "verdict": "fail"}  # fmt: skip
    alarm = {"bound": "1 ulp", "comparisons": 9, "measured": 9, "elements": 9, "alarms": 1, "worst": 0.5, "worst_line": "w",
             "histogram": [8, 0], "alarm_lines": ["planted alarm; again"]}  # fmt: skip
    crash = {"status": -11, "again": "fuzz_abi --seed 4", "said": "planted crash\nmore"}
    trials = {"trials": 2, "raised": 1, "absorbed": 1, "untouched": 0}
    return {
        "exhaustive": {"stride": 1, "functions": [function]},
        "probe": {"sizes": [9], "sums": [sums]},
        "determinism": {"repeats": 1, "entries": [{**row, **counts, "failures": ["planted"]}]},
        "alarms": {"edges": [0.0, 1.0], "totals": {"cpu": {"comparisons": 9, "elements": 9, "alarms": 1}}, "loose": [],
                   "entries": [{**row, **alarm}]},
        "hostile": {"entries": {}, "statuses": {}, "failures": [crash], "calls": 3, "accepted": 1, "device": -1},
        "checkpoints": {"files": 3, "refused": 2, "loaded": 0, "failures": ["planted file"], "seed": 0},
        "faults": {"devices": [{"device": "cpu", "points": 2, "places": {}, "failures": ["planted leak"], "one": trials}]},
        "interrupts": {"points": 9, "every": 1, "programs": ["end"], "failures": ["planted point"]},
        "contention": {"threads": 8, "subjects": [{"subject": "tape", "turns": 9, "right": 8, "refused": 1, "other": 0}],
                       "failures": ["planted race"]},
        "environments": {"modes": [{"mode": "ftz", "digest": "0", "cases": 4}], "failures": ["planted flush"]},
        "coverage": {"native": {
            "files": [{"file": "src/core/a.c", **dict.fromkeys(coverage.COUNTS, 2)}],
            "missed": [{"file": "src/core/a.c", "line": 3, "left": 1, "of": 2, "text": "if (a)", "why": ""}],
            "failures": ["planted gap"],
        }, "python": {
            "files": [{"file": "tlrt/a.py", **dict.fromkeys(coverage.COUNTS, 2)}], "share": 0.5,
            "missed": [{"file": "tlrt/a.py", "line": 3, "to": [4], "text": "if a:", "why": ""}],
            "failures": [],
        }},
        "soak": {"device": "cpu", "steps": 9, "seconds": 1, "microseconds": 1, "live_bytes": 8, "live_buffers": 1, "growth": 0,
                 "samples": [], "failures": ["planted growth"]},
        "mutants": {"seed": 1, "kinds": {"c": {**dict.fromkeys(("survived", "killed"), 1), "equivalent": 0, "argued": 0,
                                               "invalid": 0, "score": 0.5}},
                    "results": [{"mutant": "planted", "kind": "c", "line": 1, "outcome": "survived", "reason": ""}]},
        "mutation": {"listed": 2, "run": 1, "killed": 0, "equivalent": 0, "survivors": ["planted"], "score": "0 of 1",
                     "results": {"k": {"number": 1, "name": "planted", "outcome": "survived", "by": "", "seconds": 1}}},
        "sanitizer": {"memcheck": "ERROR SUMMARY: 10 errors"},
        "verify": {"results": [{**row, "bound": "1 ulp", "cases": 1, "share": "inf", "ulp": "inf", "identical": None,
                                "failures": []}]},
    }  # fmt: skip


@pytest.mark.parametrize("part", list(evidence.PARTS))
def test_a_failure_of_each_part_stands_in_the_summary(part: str) -> None:
    source = evidence.read("planted.json", {part: failing()[part]})
    summary = read(render_page([source])).sections["summary"]
    assert "1 failure" in summary and f"({part}, planted.json)" in summary
    assert Evidence([source]).absent() == [p for p in evidence.PARTS if p != part]


def places(value: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """Every place within a document, but the top."""
    for key, inner in value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ():
        yield from ((*path, key), *places(inner, (*path, key)))


@pytest.mark.parametrize("part", list(evidence.PARTS))
def test_damaged_evidence_is_refused_by_file_and_field(part: str, tmp_path: Path) -> None:
    file, said = tmp_path / "x.json", []
    for *parents, last in places(failing()[part]):
        for damage in ("lost", None, {}, "<b>"):
            inner = planted = failing()[part]
            for key in parents:
                inner = inner[key]
            inner[last] = damage
            if damage == "lost":
                del inner[last]
            file.write_text(json.dumps({part: planted}))
            try:
                render_page([evidence.load(file)])
            except evidence.EvidenceError as error:
                said.append(str(error))
    assert said and [s for s in said if not s.startswith((f"x.json: {part}", "x.json: not an evidence file"))] == []


@pytest.mark.parametrize("part", [p for p in evidence.SIGNS if p != "verify"])
def test_the_document_of_one_part_alone_is_known(part: str) -> None:
    assert list(evidence.read("alone.json", failing()[part]).parts) == [part]


def test_a_part_that_failed_without_saying_where() -> None:
    source = evidence.read("x.json", {"probe": {"sizes": [], "sums": [], "verdict": "fail"}})
    assert "not where" in read(render_page([source])).sections["summary"]


@pytest.mark.parametrize(("part", "said"), [("alarms", "9correct results"), ("verify", "1drawn cases")])
def test_runs_of_the_same_cases_are_not_added_up(part: str, said: str) -> None:
    same = [evidence.read(f"{n}.json", {part: failing()[part]}) for n in ("one", "two")]
    page = read(render_page(same))
    assert said in page.sections["summary"]
    assert part != "alarms" or "8 comparisons" in page.sections["shares"]


@pytest.mark.parametrize(
    ("said", "bad"),
    [
        ("ERROR SUMMARY: 0 errors", 0), ("ERROR SUMMARY: 7 errors", 1), ("ERROR SUMMARY: 10 errors", 1),
        ("RACECHECK SUMMARY: 0 hazards displayed (0 errors, 0 warnings)", 0),
        ("RACECHECK SUMMARY: 1 hazard displayed (0 errors, 1 warnings)", 1), ("no summary", 1),
    ],
)  # fmt: skip
def test_what_compute_sanitizer_says(said: str, bad: int) -> None:
    checks = {"memcheck": "ERROR SUMMARY: 0 errors", "racecheck conv2d": said}
    assert len(Evidence([evidence.read("x.json", {"sanitizer": checks})]).findings) == bad


def test_a_benchmark_names_its_device() -> None:
    found = evidence.read("x.json", {"bench": None, "growth": {"device": "NVIDIA H200, capability 9.0"}})
    assert found.devices == {"cuda:0": "NVIDIA H200, capability 9.0"}
    assert evidence.read("x.json", {"rows": [], "device": "CPU, some"}).devices == {"cpu": "CPU, some"}


def test_a_step_called_build_is_not_what_the_library_was_built_of() -> None:
    steps = {"build": {"status": 0, "seconds": 1.0, "command": "make"}}
    assert evidence.read("x.json", {"bench": {}, "steps": steps}).build == {}
    assert evidence.read("x.json", {"bench": {}, "steps": steps, "build": {"archs": "sm_90a"}}).build == {
        "archs": "sm_90a"
    }


def test_devices_of_one_model_are_counted() -> None:
    devices = [
        {"cpu": f"CPU, Some Processor, SIMD variant avx2, {n} threads, 9 GiB", "cuda:0": "NVIDIA X, 9"} for n in (2, 4)
    ]
    results = {"verdict": "pass", "results": []}
    found = [evidence.read(f"{i}.jsonl", {"devices": d, **results}) for i, d in enumerate(devices)]
    assert "<p>CPU, Some Processor (2 configurations); NVIDIA X</p>" in render_page(found)


def test_an_empty_page() -> None:
    assert "Nothing was tried" in read(render_page([])).sections["summary"]


def test_text_is_escaped() -> None:
    planted = failing()["verify"]
    planted["results"][0] |= {"entry": "<script>alert(1)</script>", "bound": "1 < 2 & 'x'"}
    text = render_page([evidence.read("<b>.json", {"verify": planted})], title="a < b")
    page = read(text)
    assert "<script>alert" not in text and "<b>.json" not in text and "<title>a &lt; b" in text
    assert "<script>alert(1)</script>" in page.sections["points"] and "1 < 2 & 'x'" in page.sections["points"]


def test_drawn_cases_become_a_page(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    target = tmp_path / "out.html"
    words = ["verify", "--ops", "exp,reduce_sum", "--cases", "1", "--device", "cpu", "--html", str(target)]
    assert command.main(words) == 0
    page = read(target.read_text())
    assert "Nothing failed" in page.sections["summary"] and "exp_bwd" in page.sections["points"]
    assert "--ops exp --seed" in page.sections["worst"], "the worst case comes with the line that repeats it"
    assert "all" in capsys.readouterr().out


@pytest.mark.parametrize("name", ["c.json", "c.jsonl"])
def test_a_campaign_becomes_a_page(name: str, tmp_path: Path) -> None:
    target, file = tmp_path / "out.html", str(tmp_path / name)
    words = ["verify", "probe", "--short", "--ops", "reduce_sum", "--device", "cpu"]
    assert command.main([*words, "--json", file, "--html", str(target)]) == 0
    page = read(target.read_text())
    assert "0 trees higher than declared" in page.sections["summary"] and "drawn cases" in page.sections["summary"]
    assert command.main(["report", file, "--html", str(target)]) == 0
    assert "reduce_sum" in read(target.read_text()).sections["sums"]


def test_the_exit_status_of_files_says_whether_something_failed(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file, target = tmp_path / "x.json", tmp_path / "out.html"
    file.write_text(json.dumps({"alarms": failing()["alarms"]}))
    assert command.main(["report", str(file), "--html", str(target)]) == 1
    assert "1 failure in 1 file" in capsys.readouterr().out
    read(target.read_text())


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["report", "FILE"], "--html"), (["report", "missing.json", "--html", "OUT"], "missing.json"),
        (["report", "FILE", "--html", "OUT"], "not an evidence file"),
        (["report", "FILE", "--short", "--html", "OUT"], "--short"), (["abacus"], "abacus"),
        (["soak", "--steps", "0"], "--steps"),
    ],
)  # fmt: skip
def test_wrong_lines_are_refused(
    words: list[str], said: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "x.json").write_text("[]")
    places = {"FILE": str(tmp_path / "x.json"), "OUT": str(tmp_path / "out.html")}
    assert exit_status(command.main, [places.get(w, w) for w in words]) == 2 and said in capsys.readouterr().err
    assert not (tmp_path / "out.html").exists()
