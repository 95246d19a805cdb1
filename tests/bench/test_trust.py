"""docs/trust.md: every exported symbol has its line, and no line claims more than the evidence files hold."""

import copy
import math
import re
from pathlib import Path
from typing import Any

import pytest
from numpy.testing import assert_raises_regex

from audit import evidence
from audit.environment import EVIDENCE, ROOT
from audit.evidence import Evidence, EvidenceError
from audit.figures import format_share
from bench import trust
from tests import declared_functions
from tlrt.verify.documents import format_command, read_document
from tlspec import entries, registry

TEXT = (ROOT / "docs/trust.md").read_text(encoding="utf-8")
HEADINGS = {"promises": "Promises per operation", "evidence": "Evidence per operation", "core": "The rest of the ABI"}
ENTRIES = {e.symbol: e for e in entries.all_entries()}


def between(name: str, text: str = TEXT) -> list[list[str]]:
    """The cells of the lines of a section, heads left out."""
    part = text.partition(f"\n## {HEADINGS[name]}\n")[2].partition("\n## ")[0]
    rows = [line for line in part.splitlines() if line.startswith("| `")]
    return [[c.strip().replace("\\|", "|") for c in re.split(r"(?<!\\)\|", line)[1:-1]] for line in rows]


def made(*documents: dict[str, Any]) -> str:
    return trust.trust_page([evidence.read(f"{i}.json", d) for i, d in enumerate(documents)])


def result(entry: str = "exp", device: str = "cpu", **changes: Any) -> dict[str, Any]:
    row = {
        "op": entry, "entry": entry, "family": "elementwise", "which": "forward", "device": device, "bound": "1 ulp",
        "cases": 7, "elements": 70, "share": 0.25, "ulp": 0.5, "identical": None, "seconds": 0.0, "laws": 0, "failures": [],
        "verdict": "pass",
    }  # fmt: skip
    return row | changes


def verified(*results: dict[str, Any]) -> dict[str, Any]:
    return {"results": list(results), "verdict": "pass", "devices": {"cpu": "CPU, four threads"}, "build": {}}


def cells(text: str, entry: str) -> list[str]:
    return next(row for row in between("evidence", text) if row[0] == f"`{registry.get(entry).symbol}`")


def test_the_document_is_what_the_files_give() -> None:
    page = trust.trust_page(trust.committed_sources())
    assert page == TEXT, "docs/trust.md is stale: run `python -m bench.results`"


def test_every_exported_symbol_has_its_line() -> None:
    tried = [row[0].strip("`") for name in ("evidence", "core") for row in between(name)]
    assert sorted(tried) == sorted(set(declared_functions()))
    assert sorted(row[0].strip("`") for row in between("promises")) == sorted(ENTRIES)


@pytest.mark.parametrize("device", ["cpu", "cuda"])
def test_no_line_claims_more_than_its_file(device: str) -> None:
    """Read back from the text, against the files and not through the generator."""
    held: dict[str, list[dict[str, Any]]] = {}
    compared: dict[str, list[dict[str, Any]]] = {}
    for path in sorted(EVIDENCE.glob("*.jsonl")):
        document = read_document(path)
        for r in (document.get("verify") or document).get("results", []):
            if r["device"].startswith(device):
                held.setdefault(r["entry"], []).append(r)
        for r in document.get("alarms", {}).get("entries", []):
            if r["device"].startswith(device):
                compared.setdefault(r["entry"], []).append(r)
    quoted = 0
    for row in between("evidence"):
        e, text = ENTRIES[row[0].strip("`")], row[1 if device == "cpu" else 2]
        if "cases" not in text:
            assert text in ("–", "bound changed since") or text.startswith("with `"), text
            continue
        quoted += 1
        name = e.op.name if e.name == e.op.name else f"{e.op.name}_bwd"
        bound = (e.op.bound if e.name == e.op.name else e.op.vjp_rule.bound).text  # type: ignore[union-attr]
        rows = [r for r in held[name] if r["bound"] == bound]
        assert rows
        figure = int(re.search(r"([\d\u202f]+) cases", text)[1].replace("\u202f", ""))  # type: ignore[index]
        assert figure in [r["cases"] for r in rows]
        worst = max(
            [float(r["share"]) for r in rows] + [r["worst"] for r in compared.get(name, []) if r["bound"] == bound]
        )
        found = re.search(r"([\d.e+-]+|∞) of the bound", text)
        if found is None:
            assert "exact" in text and worst == 0
        elif found[1] != "∞":  # rounded up in the last place written
            step = 0.001 if worst >= 0.001 else 10.0 ** math.floor(math.log10(worst)) if worst else 0
            assert worst <= float(found[1]) < worst + step or worst == float(found[1])
        if "bits as CPU" in text:
            assert {r["identical"] for r in rows} == {True}
        assert ("FAILED" in text) == any(r["failures"] for r in rows)
    whole = {(trust.tried_as(e), trust.bound(e)) for e in ENTRIES.values() if e.only is None}
    assert quoted == sum(any(r["bound"] == bound for r in held.get(name, [])) for name, bound in whole)


def test_nothing_is_claimed_without_a_file() -> None:
    text = made()
    assert {c for row in between("evidence", text) for c in row[1:]} <= {"–"} | {
        f"with `{trust.tried_as(e)}`, whose bits it must have" for e in ENTRIES.values()
    }
    assert {c for row in between("core", text) for c in row[1:]} == {"–"}
    assert text.count("| not in a committed file |") == len(evidence.PARTS)


def test_counts_are_one_runs_and_worst_figures_all_runs() -> None:
    text = made(verified(result(cases=7, share=0.25)), verified(result(cases=5, share=0.75)))
    assert cells(text, "exp")[1] == "7 cases, 0.750 of the bound, 0.500 ulp"


def test_another_bound_is_not_quoted() -> None:
    assert cells(made(verified(result(bound="2 ulp"))), "exp")[1] == "bound changed since"


def test_bits_that_differ_are_said_to() -> None:
    text = made(verified(result(), result(device="cuda:0", identical=True)))
    assert cells(text, "exp")[2].endswith("bits as CPU")
    text = made(verified(result(), result(device="cuda:0", identical=False)))
    assert cells(text, "exp")[2].endswith("**other bits**")


def test_a_failure_stands_in_its_line_and_in_the_totals() -> None:
    failure = {"entry": "exp", "device": "cpu", "kind": "bound", "detail": "off", "line": "again"}
    text = made(verified(result(failures=[failure], verdict="fail"), result("log")))
    assert cells(text, "exp")[1].startswith("**FAILED**: 7 cases")
    assert "FAILED" not in cells(text, "log")[1] and "**1 failed**" in text


def campaign() -> dict[str, Any]:
    function = {
        "entry": "exp", "which": "forward", "argument": "x", "values": {}, "range": "all", "limit": 1, "bound": "1 ulp",
        "complete": True, "seconds": 1.0, "special": [], "differ": None, "verdict": "pass",
        "devices": {"cpu": {"seen": 2**32, "worst": 1, "misrounded": 1234, "mismatches": 0, "over": 0, "precise": 0,
                            "undecided": 0, "hash": "00"}},
    }  # fmt: skip
    add = {
        "op": "add", "device": "cpu", "structured": 10, "random": 20, "different": 0, "devices_differ": 0,
        "verdict": "pass",
    }  # fmt: skip
    sums = {"op": "reduce_sum", "what": "out", "device": "cpu", "leaves": 33, "values": {}, "declared": 6, "extra": 0,
            "height": 6, "fan_in": 2, "found": "whole", "verdict": "pass"}  # fmt: skip
    again = {"entry": "matmul", "device": "cpu", "failures": [], "repeats": 3, "reused": 1, "threads": 0, "variants": 0,
             "trims": 1, "batches": 2, "batch": "1 differ, not promised", "verdict": "pass"}  # fmt: skip
    alarm = {"entry": "exp", "device": "cpu", "bound": "1 ulp", "comparisons": 50, "measured": 50, "elements": 500, "alarms": 0,
             "worst": 0.9, "worst_line": "again", "histogram": [0, 50], "alarm_lines": []}  # fmt: skip
    symbol = "torchlean_cuda_buffer_exp"
    return {
        "devices": {"cpu": "CPU, four threads"},
        "exhaustive": {"stride": 1, "functions": [function], "pairs": {"operations": [add]}, "verdict": "pass"},
        "probe": {"sizes": [33], "sums": [sums], "verdict": "pass"},
        "determinism": {"repeats": 3, "entries": [again], "verdict": "pass"},
        "alarms": {"edges": [0.0, 1.0], "totals": {"cpu": {"comparisons": 50, "elements": 500, "alarms": 0}}, "loose": [],
                   "entries": [alarm], "verdict": "pass"},
        "hostile": {"entries": {symbol: {"calls": 9, "accepted": 4, "refused": 5}}, "statuses": {}, "failures": [], "calls": 9,
                    "accepted": 4, "device": -1, "sanitizers": "address,undefined"},
    }  # fmt: skip


def test_campaigns_are_quoted() -> None:
    text = made(campaign(), verified(result()))
    assert cells(text, "exp")[1:] == [
        "7 cases, 0.900 of the bound, 0.500 ulp", "–", "CPU: 2³² inputs, ≤ 1 ulp, 1\u202f234 misrounded", "–", "–",
        "CPU: 0 in 50", "CPU: 9, 5 refused",
    ]  # fmt: skip
    assert cells(text, "add")[3] == "CPU: 30 pairs, 0 not IEEE"
    assert cells(text, "reduce_sum")[4] == "CPU: 6 of 6 (33 summands)"
    assert cells(text, "matmul")[5] == "CPU: 7 calls, batch: 1 differ, not promised"


def test_what_is_not_whole_says_so() -> None:
    document = campaign()
    document["exhaustive"]["stride"] = 257
    document["exhaustive"]["functions"][0]["devices"]["cpu"]["seen"] = 1000
    assert "1\u202f000 inputs (every 257th)" in cells(made(document), "exp")[3]
    document["exhaustive"]["functions"][0]["complete"] = False
    text = made(document)
    assert "not all" in cells(text, "exp")[3] and "not complete: exp" in text


@pytest.mark.parametrize(
    ("part", "change", "named", "column"),
    [
        ("exhaustive", lambda d: d["functions"][0].update(verdict="fail", differ=3, differ_at="1"), "exp", 3),
        ("exhaustive", lambda d: d["pairs"]["operations"][0].update(verdict="fail", different=2), "add", 3),
        ("probe", lambda d: d["sums"][0].update(verdict="fail", height=9), "reduce_sum", 4),
        ("determinism", lambda d: d["entries"][0].update(verdict="fail", failures=["repeats"]), "matmul", 5),
        ("alarms", lambda d: d["entries"][0].update(alarms=1, alarm_lines=["off; again"]), "exp", 6),
    ],
)
def test_failures_of_campaigns_are_said(part: str, change: Any, named: str, column: int) -> None:
    document = copy.deepcopy(campaign())
    change(document[part])
    text = made(document)
    assert cells(text, named)[column].startswith("**FAILED**: ") and "**1 failed**" in text


@pytest.mark.parametrize(
    ("x", "text"),
    [(0, "0"), (0.25, "0.250"), (0.2501, "0.251"), (0.9999, "1.000"), (0.752, "0.752"), (1.5e-5, "2e-5"), (2e-7, "2e-7"),
     (9.1e-4, "1e-3"), (123456.0, "2e5"), ("inf", "∞"), (9999.0, "9999.000")],
)  # fmt: skip
def test_figures_are_rounded_up(x: object, text: str) -> None:
    assert format_share(x) == text


def test_a_file_that_is_no_evidence_is_refused(tmp_path: Path) -> None:
    assert_raises_regex(EvidenceError, "not an evidence file", evidence.read, "x.json", {"hello": 1})
    broken = tmp_path / "broken.json"
    broken.write_text("{")
    assert_raises_regex(EvidenceError, r"broken\.json", evidence.load, broken)
    assert Evidence([]).findings == []


def test_commands_name_no_folder_of_a_machine() -> None:
    assert format_command(
        ["/usr/bin/python3", "-m", "tlrt", "--json", "/home/me/a b.json", "x/y", "--n=1", "PYTHON=/a/py=3"]
    ) == ("python3 -m tlrt --json 'a b.json' x/y --n=1 PYTHON=py=3")
    for path in sorted(EVIDENCE.glob("*.jsonl")):
        assert re.findall(r'(?<=[ "=])/(?:\w+/)+\S*', path.read_text()) == [], path.name
