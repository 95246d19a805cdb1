"""The share of the Python branches that runs reach: what is judged of a report, and what of a run's processes is counted."""

from pathlib import Path
from typing import Any

import pytest

from audit import coverage_python

FOUND = {"executed_lines": [1, 2, 3], "missing_lines": [4], "executed_branches": [[1, 2], [1, 3], [3, -1]]}


@pytest.fixture
def tree(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(coverage_python, "EXCEPTIONS", ())
    for name in ("tlrt/a.py", "tlspec/b.py"):
        (tmp_path / name).parent.mkdir()
        (tmp_path / name).write_text("if x:\n    y()\nif z:\n    raise RareError\n")
    return tmp_path


def report(missing: dict[str, Any]) -> dict[str, Any]:
    return {name: {**FOUND, "missing_branches": branches} for name, branches in missing.items()}


def test_what_is_not_reached_is_listed(tree: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    document = coverage_python.judge(report({"tlrt/a.py": [[3, 4]], "tlspec/b.py": []}), tree)
    assert [(m["file"], m["line"], m["to"], m["text"]) for m in document["missed"]] == [("tlrt/a.py", 3, [4], "if z:")]
    assert document["share"] == pytest.approx(6 / 7, abs=1e-4)
    assert document["failures"] == ["85.71% of the branches are reached, expected 97%"]
    assert "tlrt/a.py:3: to 4: if z:" in coverage_python.table(document) and not coverage_python.ok(document)
    monkeypatch.setattr(
        coverage_python, "EXCEPTIONS", (("tlrt/*.py", "if z:", "rare"), ("tlspec/*.py", "if z:", "rare"))
    )
    document = coverage_python.judge(report({"tlrt/a.py": [[3, 4]], "tlspec/b.py": []}), tree)
    assert document["share"] == 1 and document["files"][0]["excepted"] == 1 and document["missed"][0]["why"] == "rare"
    assert document["failures"] == ["no branch is left of the exception tlspec/*.py: if z:"]


def test_a_file_that_no_run_imports_counts(tree: Path) -> None:
    document = coverage_python.judge(report({"tlrt/a.py": []}), tree)
    assert document["share"] < 0.5 and not coverage_python.ok(document)


def test_what_a_run_starts_is_counted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A process of a process, and a fork that ends without Python's exit."""
    pytest.importorskip("coverage")
    child = "import os; os.fork() or (__import__('tlspec.shapes'), os._exit(0)); os.wait()"
    code = f"import subprocess, sys; import tlspec.laws; subprocess.run([sys.executable, '-c', {child!r}])"
    monkeypatch.setattr(coverage_python, "STEPS", (("-c", code), ("-c", "raise SystemExit(3)")))
    (failed,) = coverage_python.run(tmp_path)
    assert "raise SystemExit(3): status 3" in failed
    assert {"tlspec/laws.py", "tlspec/shapes.py"} <= set(coverage_python.read(tmp_path))
