"""The tree: layers, families, directions of dependency, sizes of files, and what documents may say."""

import ast
import re
from pathlib import Path

import pytest

from tests import ROOT
from tests.repo.tree import files, name
from tlspec import registry

pytestmark = pytest.mark.every_choice

#: written by the generator, so their length follows from the number of operations
GENERATED = {"tlrt/_binding/abi.py", "tlrt/kernels.py", "native/include/torchlean_cuda_ops.h"}
#: no file may have more lines
LIMIT = 1000


@pytest.mark.parametrize("family", registry.families())
def test_family_stands_in_every_layer(family: str) -> None:
    stems = [f"tlspec/ops/{family}.py", f"native/generated/{family}.h"]
    assert [s for s in stems if not (ROOT / s).exists()] == []
    # a file, or a folder where a family has many kernels
    for back_end, suffix in (("cpu", "c"), ("cuda", "cu")):
        layer = ROOT / "native/src" / back_end
        assert (layer / f"{family}.{suffix}").exists() or any((layer / family).glob(f"*.{suffix}")), back_end


def test_families_are_listed() -> None:
    present = {p.stem for p in (ROOT / "tlspec/ops").glob("*.py")} - {"__init__"}
    assert present <= set(registry.FAMILIES)


def imported(path: Path) -> set[str]:
    modules: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            modules |= {a.name.partition(".")[0] for a in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            modules.add(node.module.partition(".")[0])
    return modules


def test_the_specification_imports_numpy_alone() -> None:
    import sys

    tools = {"pytest_plugin.py": {"pytest"}, "strategies.py": {"hypothesis"}, "sending.py": {"cloudpickle"}}
    for path in (ROOT / "tlspec").rglob("*.py"):
        found = imported(path) - set(sys.stdlib_module_names)
        assert found <= {"numpy", "tlspec"} | tools.get(path.name, set()), name(path)


#: what a user of buffers and kernels alone loads
CORE = {"__init__", "buffer", "context", "doctor", "errors", "kernels"}


def test_buffers_and_kernels_do_not_need_the_specification() -> None:
    for path in (ROOT / "tlrt").rglob("*.py"):
        foreign = imported(path) & {"audit", "bench", "codegen", "examples", "tests"}
        if path.stem in CORE and path.parent.name == "tlrt":
            modules = {
                n.module for n in ast.walk(ast.parse(path.read_text())) if isinstance(n, ast.ImportFrom) and n.module
            }
            foreign |= {m for m in modules if m.startswith("tlspec") and m != "tlspec.declarations"}
        assert not foreign, name(path)


def length(path: Path) -> int:
    """The lines of a file; of a Python file those beside docstrings, which follow from what is public."""
    text = path.read_text()
    lines = len(text.splitlines())
    if path.suffix != ".py":
        return lines
    kinds = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)
    bodies = [node.body[0] for node in ast.walk(ast.parse(text)) if isinstance(node, kinds) and ast.get_docstring(node)]
    return lines - sum((d.end_lineno or d.lineno) - d.lineno + 1 for d in bodies)


def test_files_stay_readable() -> None:
    lines = {name(p): length(p) for p in files(".py", ".c", ".h", ".cu", ".cuh", ".def")}
    apart = ("native/generated/", "tlspec/ops/")  # whose length follows from the number of operations
    by_hand = {k: n for k, n in lines.items() if k not in GENERATED and not k.startswith(apart)}
    assert {k: n for k, n in by_hand.items() if n > LIMIT} == {}, "divide these files by concept"


def test_documents_name_existing_files() -> None:
    for page in (ROOT / "README.md", ROOT / "CONTRIBUTING.md", ROOT / "TRUST_BOUNDARIES.md"):
        for target in re.findall(r"\]\(([^)#:]+)\)", page.read_text()):
            assert (page.parent / target).exists(), f"{page.name} links to {target}"
        # FAMILY stands for any family
        for quoted in re.findall(r"`((?:native|tlspec|tlrt|tests|docs|bench|examples)/[\w./-]+)`", page.read_text()):
            assert (ROOT / quoted.replace("FAMILY", "reduce")).exists(), f"{page.name} names {quoted}"


def test_text_speaks_of_the_project_alone() -> None:
    foreign = re.compile(r"(pypi|npmjs|debian)\.(org|com)|pythonhosted|" + re.escape(str(ROOT)) + r"\b", re.I)
    plain = [ROOT / "Makefile", ROOT / "native/Makefile", ROOT / ".ci/run"]
    for path in [
        *plain,
        *files(".py", ".c", ".h", ".cu", ".cuh", ".md", ".toml", ".txt", ".def", ".jsonl", ".j2", ".svg"),
    ]:
        if path != Path(__file__).resolve():
            assert not foreign.search(path.read_text(errors="replace")), name(path)
