"""bench.ledger: its rows and its file."""

import json
from pathlib import Path

import pytest

from bench import ledger
from examples import char_gpt


def test_a_run_writes_its_rows(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    tiny = {"steps": 9, "batch": 2, "context": 8, "width": 8, "layers": 1, "heads": 2, "dropout": 0.1, "rate": 1e-3,
            "decay": 0.1, "tests": 1}  # fmt: skip
    monkeypatch.setitem(char_gpt.PRESETS, "small", tiny)
    file = tmp_path / "ledger.json"
    assert ledger.main(["--steps", "64", "--json", str(file)]) == 0
    rows = json.loads(file.read_text())["rows"]
    assert [r["step"] for r in rows] == [f"char_gpt small{kind}" for kind in ("", " captured", ", operations")]
    assert all(r["plain_ms"] > 0 and r["ledger_ms"] > 0 and r["samples"] == 1 for r in rows)
    assert all(r["share"] == pytest.approx(r["added_ms"] / r["plain_ms"]) for r in rows)
    assert "added ms" in capsys.readouterr().out
