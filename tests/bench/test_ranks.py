"""bench.ranks: hashes of runs on several ranks, and the run that goes on after one was killed."""

from pathlib import Path

import pytest

from bench import ranks
from tlrt.verify.documents import read_document

pytest.importorskip("safetensors")
pytest.importorskip("sklearn")


def test_runs_are_compared(tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    arguments = ["--only", "digits", "--ranks", "1,2", "--starters", "launch", "--steps", "4"]
    assert ranks.main([*arguments, "--json", str(tmp_path / "r.jsonl"), "--commit", "abc"]) == 0
    found = read_document(tmp_path / "r.jsonl")
    assert [(r["ranks"], r["note"]) for r in found["rows"]] == [
        (1, ""), (2, ""), (1, "2 ranks, one killed at step 3, then 1"),
    ]  # fmt: skip
    assert len({r["sha256"] for r in found["rows"]}) == 1
    others = iter("abc")
    monkeypatch.setattr(ranks, "measure", lambda *a: {**found["rows"][0], "sha256": next(others)})
    assert ranks.main(arguments) == 1
    assert "digits: different weights" in capsys.readouterr().out


def test_a_run_that_fails_is_shown() -> None:
    with pytest.raises(SystemExit, match="exit status 2"):
        ranks.measure("none", "launch", 1, "cpu", "", 1, ["--unknown"])
