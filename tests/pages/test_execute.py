"""Notebooks run as they stand, and become pages that show what they showed."""

import ast
import json
from pathlib import Path
from typing import Any

import pytest

from examples.common import Example
from pages import execute
from tests import ROOT


@pytest.mark.parametrize("name", execute.NAMES)
def test_the_cells_of_a_notebook_run_in_order(name: str, python: Any) -> None:
    """With a tenth of the steps, as a script."""
    for module in ("matplotlib", "sklearn"):
        pytest.importorskip(module)
    text = (execute.FOLDER / f"{name}.py").read_text()
    (steps,) = [n.values[i].value for n in ast.walk(ast.parse(text)) if isinstance(n, ast.Dict)
                for i, k in enumerate(n.keys) if isinstance(k, ast.Constant) and k.value == "steps"]  # fmt: skip
    short = text.replace(f'"steps": {steps}', f'"steps": {steps // 10}')
    done = python(short, PYTHONWARNINGS="error")
    assert short != text and done.returncode == 0, done.stderr


def test_every_example_that_trains_has_a_notebook() -> None:
    import importlib

    found = set()
    for path in (ROOT / "examples").glob("*.py"):
        if "EXAMPLE = " in path.read_text():
            assert isinstance(importlib.import_module(f"examples.{path.stem}").EXAMPLE, Example)
            found.add(path.stem)
    assert found == set(execute.NAMES) == {path.stem for path in execute.FOLDER.glob("*.py")}


def cell(source: str, *outputs: dict[str, Any]) -> dict[str, Any]:
    return {"cell_type": "code", "source": source, "outputs": list(outputs)}


def test_a_page_shows_source_text_and_figures() -> None:
    notebook = {
        "cells": [
            {"cell_type": "markdown", "source": ["# A title\n", "\n", "Words."]},
            cell("print(1)", {"output_type": "stream", "name": "stdout", "text": ["1\n", "2\n"]}),
            cell("print(inspect.getsource(f))", {"output_type": "stream", "text": "def f(): ...\n"}),
            cell("x", {"output_type": "execute_result", "data": {"text/plain": "3"}}),
            cell("p", {"output_type": "display_data", "data": {"image/svg+xml": "<svg/>", "text/plain": "Plot"}}),
        ]
    }
    pages = execute.pages({"made": notebook})
    text = pages["notebooks/made.md"]
    assert text.startswith("# A title\n\nWords.\n\n```py\nprint(1)\n```\n\n```text\n1\n2\n```\n")
    assert "```py\ndef f(): ...\n```" in text and "```text\n3\n```" in text and "<figure><svg/></figure>" in text
    assert json.loads(pages["notebooks/made.ipynb"]) == notebook
    assert "- [A title](made.md)" in pages["notebooks/index.md"]


def test_what_a_page_cannot_show_is_refused() -> None:
    with pytest.raises(ValueError, match="got a cell that shows text/html, expected SVG or text"):
        execute.output_lines({"output_type": "display_data", "data": {"text/html": "<b>"}})
    with pytest.raises(ValueError, match="no heading"):
        execute.title({"cells": [{"cell_type": "markdown", "source": "words"}]})


def test_notebooks_that_were_run_are_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    ran: list[str] = []
    monkeypatch.setattr(execute, "run", lambda name: ran.append(name) or {"cells": [], "name": name})
    (tmp_path / "digits-old.ipynb").write_text("{}")
    first = execute.run_all(tmp_path)
    assert sorted(ran) == sorted(execute.NAMES) and execute.run_all(tmp_path) == first
    assert len(ran) == len(list(tmp_path.glob("*.ipynb"))) == len(execute.NAMES)
