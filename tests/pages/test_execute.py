"""Notebooks run as they stand, and become pages that show what they showed."""

import ast
from typing import Any

import pytest

from pages import execute


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
