"""bench.audits: what it plants is named, and a wrong outcome is a failure."""

from pathlib import Path

import pytest

from bench import audits
from examples import char_gpt
from tlrt import Session
from tlrt.verify.documents import read_document

TINY = {"steps": 8, "batch": 2, "context": 8, "width": 8, "layers": 1, "heads": 2, "dropout": 0.1, "rate": 1e-3, "decay": 0.1,
        "tests": 1}  # fmt: skip


@pytest.fixture(autouse=True)
def _tiny(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(char_gpt.PRESETS, "small", TINY)


def test_each_change_is_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "audits.jsonl"
    assert audits.main(["--steps", "8", "--audited", "4", "--json", str(file), "--commit", "abc"]) == 0
    document = read_document(file)
    rows = document["rows"]
    plain, planted = [r for r in rows if r["changed"] == "nothing"], rows[-len(audits.CHANGES) :]
    assert document["commit"] == "abc" and all(r["as_expected"] for r in rows)
    assert {r["departs_at"] for r in plain} == {None} and len(plain) + len(planted) == len(rows)
    assert [(r["changed"], r["planted_at"], r["departs_at"]) for r in planted] == [
        (name, 6, 6) for name in audits.CHANGES
    ]
    assert "NO" not in capsys.readouterr().out


@pytest.mark.parametrize("name", audits.CHANGES)
def test_a_change_that_is_not_named_is_a_failure(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    audits.record(tmp_path / "run.jsonl", "cpu", 8)
    _, kind = audits.CHANGES[name]

    def nothing(session: Session, program: object, at: int) -> None:
        """Changes nothing."""

    monkeypatch.setitem(audits.CHANGES, name, (nothing, kind))
    assert not audits.audit_steps(tmp_path / "run.jsonl", (4, 8), "base", name, 6).as_expected
