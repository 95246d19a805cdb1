"""Python modules depend on each other in one direction, and no module replaces what another one defines."""

import ast
import functools
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests import ROOT
from tests.repo.tree import PACKAGES, circles, files, imports, name, python_modules

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


#: how a planted circle is written in the second of two modules
CIRCLES = {
    "at the top": "from tlrt import first",
    "in a function": "def f():\n    import tlrt.first",
    "for types alone": "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    from tlrt.first import x",
    "relative": "from . import first",
    "relative, of a name": "from .first import x",
}


@pytest.mark.parametrize("how", CIRCLES)
def test_a_planted_circle_is_found(tmp_path: Path, how: str) -> None:
    (tmp_path / "tlrt").mkdir()
    for module, text in {"__init__": "", "first": "from tlrt import second\nx = 1", "second": CIRCLES[how]}.items():
        (tmp_path / f"tlrt/{module}.py").write_text(text)
    assert circles(graph(tmp_path)) == [["tlrt.first", "tlrt.second", "tlrt.first"]]


def replacements(path: Path, root: Path = ROOT) -> list[str]:
    """Assignments to what another module or class owns: to attributes of what is imported from the repository's packages, and
    of classes within a function; through setattr, vars and __dict__ too. An object may set its own attributes by name
    (``setattr(self, ...)``), a program those of its command line (args), and a module may complete its own class while it is
    imported."""
    text = path.read_text()
    tree = ast.parse(text)
    imported = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            imported |= {
                a.asname or a.name.partition(".")[0] for a in node.names if a.name.partition(".")[0] in PACKAGES
            }
        elif isinstance(node, ast.ImportFrom) and (node.level or (node.module or "").partition(".")[0] in PACKAGES):
            imported |= {a.asname or a.name for a in node.names}
    classes = {node.name for node in ast.walk(tree) if isinstance(node, ast.ClassDef)}
    functions = [
        node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda)
    ]
    in_functions = {id(node) for function in functions for node in ast.walk(function)}
    lines = text.splitlines()
    found = {i: "type: ignore[method-assign]" for i, line in enumerate(lines, 1) if "ignore[method-assign]" in line}
    for node in ast.walk(tree):
        targets: list[ast.expr] = []
        if isinstance(node, ast.Assign | ast.Delete):
            targets = node.targets
        elif isinstance(node, ast.AugAssign | ast.AnnAssign):
            targets = [node.target]
        elif isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in ("setattr", "delattr"):
            owner = node.args[0]
            own = {"self", "cls", "args"} | (classes if id(node) not in in_functions else set())
            if not (isinstance(owner, ast.Name) and owner.id in own):
                found[node.lineno] = f"{node.func.id}({ast.unparse(owner)}, ...)"
        for target in targets:
            for part in ast.walk(target):
                if isinstance(part, ast.Attribute) and isinstance(part.ctx, ast.Store | ast.Del):
                    first = part.value
                    while isinstance(first, ast.Attribute):
                        first = first.value
                    foreign = imported | (classes if id(part) in in_functions else set())
                    if isinstance(first, ast.Name) and first.id in foreign:
                        found[node.lineno] = f"{ast.unparse(part)} = ..."
                elif isinstance(part, ast.Subscript) and isinstance(part.ctx, ast.Store | ast.Del):
                    owner_text = ast.unparse(part.value)
                    if owner_text.startswith(("vars(", "sys.modules")) or (
                        owner_text.endswith(".__dict__") and owner_text != "self.__dict__"
                    ):
                        found[node.lineno] = f"{ast.unparse(part)} = ..."
    return [f"{name(path, root)}:{line}: {what}" for line, what in sorted(found.items())]


#: replacements that stay, and why
MAY_REPLACE = dict.fromkeys(
    ("lib.__dict__[name] = ...", "handles._calls = ...", "handles._copy = ...", "handles._share = ..."),
    "a campaign makes calls fail before the library sees them, those that no observer hears of too",
) | {"setattr(importlib.import_module(module), ...)": "a dishonest kernel's stand-in, in a process of its own"}


def test_nothing_of_another_module_or_class_is_replaced() -> None:
    wrong = [
        found
        for package in ("tlspec", "tlrt", "audit", "bench", "examples")
        for path in files(".py", root=ROOT / package)
        for found in replacements(path)
        if found.rpartition(":")[2].strip() not in MAY_REPLACE
    ]
    assert not wrong, (
        "watch calls through the device's observers instead of replacing methods or globals:\n" + "\n".join(wrong)
    )


@pytest.mark.parametrize(
    "statement",
    [
        "import tlrt.kernels as kernels\nkernels.add = None",
        "from tlrt import tape\ntape.Tape.backward = None",
        "class A:\n    pass\ndef f():\n    A.run = None",
        "from tlrt import kernels\nvars(kernels)['add'] = None",
        "def f(session):\n    setattr(session, 'backward', None)",
        "def f(session):\n    session.backward = None  # type: ignore[method-assign]",
        "def f(case):\n    case.__dict__['arguments'] = {}",
    ],
)
def test_a_planted_replacement_is_found(tmp_path: Path, statement: str) -> None:
    (tmp_path / "planted.py").write_text(statement)
    assert len(replacements(tmp_path / "planted.py", tmp_path)) == 1
