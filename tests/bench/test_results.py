"""What pages say comes from the summaries: the chart, the README's sentences, the tables of what was tried."""

from audit.environment import EVIDENCE
from audit.summary import read_summaries
from bench import results

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
