"""Python modules depend on each other in one direction, and no module replaces what another one defines."""

import functools
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests import ROOT
from tests.repo.tree import circles, imports, python_modules

pytestmark = pytest.mark.every_choice

#: package -> the other packages that its modules may import
MAY_IMPORT = {
    "tlspec": set(), "tlrt": {"tlspec"}, "codegen": {"tlspec"}, "audit": {"tlspec", "tlrt"},
    "bench": {"tlspec", "tlrt", "audit", "examples"}, "examples": {"tlspec", "tlrt"},
    "pages": {"tlspec", "tlrt", "audit", "bench", "examples"},
}  # fmt: skip


@functools.cache
def graph(root: Path = ROOT) -> dict[str, set[str]]:
    modules = python_modules(root)
    return {module: imports(module, path, modules) for module, path in modules.items()}


def test_modules_import_each_other_in_no_circle() -> None:
    found = [" -> ".join(circle) for circle in circles(graph())]
    assert found == [], "modules import each other in circles; move what both need to a third module"


def test_packages_import_downwards() -> None:
    wrong = [
        f"{module} imports {target}"
        for module, targets in graph().items()
        for target in sorted(targets)
        if (own := module.partition(".")[0]) != (other := target.partition(".")[0]) and other not in MAY_IMPORT[own]
    ]
    assert not wrong, "imports against the direction tlspec <- tlrt <- audit <- bench:\n" + "\n".join(wrong)


def test_nothing_that_computes_imports_what_draws_cases(python: Callable[..., Any]) -> None:
    """Programs of buffers, tapes and sessions; `tlrt verify` and comparisons with the reference draw."""
    done = python(
        "import sys, numpy as np, tlrt, tlrt.nn, tlrt.optim, tlrt.checkpoint, tlspec.registry\n"
        "tlspec.registry.ops()\n"
        "for device in ('spec', 'cpu'):\n"
        "    with tlrt.Session(device) as s:\n"
        "        w = s.param(np.ones((2, 3), np.float32), 'w')\n"
        "        s.backward(s.sum(s.softmax(w)))\n"
        "print([m for m in sys.modules if m.startswith(('tlspec.draw', 'tlspec.data', 'tlspec.judge'))])"
    )
    assert done.returncode == 0 and done.stdout.strip() == "[]", done.stdout + done.stderr
