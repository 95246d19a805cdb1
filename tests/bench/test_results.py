"""What pages say comes from the summaries: the chart, the README's sentences, the tables of what was tried."""

import json
from pathlib import Path

import pytest

from audit.environment import EVIDENCE
from audit.summary import read_summaries
from bench import results
from tlspec import entries

SUMMARIES = read_summaries()


def test_summaries_are_small() -> None:
    """A page that shows a figure finds it, and a person can read the file."""
    for path in EVIDENCE.glob("*"):
        assert path.suffix == ".jsonl" and path.stem in SUMMARIES, path.name
        lines = path.read_text(encoding="utf-8").splitlines()
        assert len(lines) <= 500 and max(map(len, lines)) < 6000, path.name


def test_no_summary_says_that_it_failed() -> None:
    assert [name for name, s in SUMMARIES.items() if results.is_failed(s)] == []


def test_the_chart_shows_the_evidence() -> None:
    figures = results.speed_figures(SUMMARIES)
    assert len(figures["families"]) > 10
    assert all(worst <= median <= best for worst, median, best in figures["families"].values())
    stale = f"{results.CHART} is stale: run `python -m bench.results`"
    assert results.read_figures(results.ROOT / results.CHART) == figures, stale


def test_a_chart_holds_its_figures(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    figures = {"title": "A < B & 'C'", "families": {"one": [0.5, 1.0, 2.0], "two": [1.5, 1.75, 9.0]}}
    one, two = tmp_path / "one.svg", tmp_path / "two.svg"
    results.draw_chart(one, figures)
    results.draw_chart(two, figures)
    assert one.read_bytes() == two.read_bytes(), "the same figures are the same file"
    assert results.read_figures(one) == figures


def test_every_campaign_stands_in_the_table_of_what_was_tried() -> None:
    tried = "\n".join(results.tried_table(SUMMARIES))
    for name, summary in SUMMARIES.items():
        if summary.get("campaign") in results.TOTALS:
            assert f"../evidence/{name}.jsonl" in tried, name


def test_a_failure_is_shown() -> None:
    name, summary = "verify-h200", SUMMARIES["verify-h200"]
    failed = {name: {**summary, "verdict": "fail", "failures": ["python -m tlrt verify --ops add"]}}
    (line,) = (x for x in results.tried_table(failed) if x.startswith("| verify |"))
    assert "**failed**; 1 failed" in line


def test_promises_name_every_exported_operation() -> None:
    page = "\n".join(results.promises_table())
    assert [e.symbol for e in entries.all_entries() if f"`{e.symbol}`" not in page] == []


def test_tables_of_the_site_are_made_of_every_kind() -> None:
    page = "\n".join(results.speed_tables(SUMMARIES))
    for campaign in (*results.TITLES, "bench"):
        for name in results.of_campaign(SUMMARIES, campaign):
            assert f"../evidence/{name}.jsonl" in page, name
    timed = [r for r in SUMMARIES["bench-h200"]["rows"] if "math" not in r]
    assert all(r["size"].replace("|", "\\|") in page for r in timed)
    assert json.dumps(SUMMARIES["league"]["rows"][0]["library"])[1:-1] in "\n".join(results.league_tables(SUMMARIES))
