"""Which tests run a line of tlrt or tlspec, and how long they take, counted by coverage.py (the extra ``coverage``).

The tests run once without a mutant, which takes minutes; a mutant is then tried by the tests that run its line, the quickest
first. A line that is run on import alone is tried by those that run what names it.
"""

import ast
import functools
import hashlib
import itertools
import json
import math
import os
import subprocess
import sys
from collections.abc import Collection, Iterator
from pathlib import Path

from audit.mutation import contexts
from audit.mutation.suite import IGNORED, PLUGINS
from audit.scratch import Scratch

PACKAGES = ("tlrt", "tlspec")
#: the file of what was counted, written last
FILES = "files.json"
#: what calls other tests, copies of the tree or long training
LEFT_OUT = (*IGNORED, "tests/examples", "tests/audit", "tests/pages")
#: seconds of the tests that run at a time, as counted
PARTS = (2.0, 20.0, 60.0)

SETTINGS = """
[run]
parallel = true
data_file = {folder}/data
context = ${{{test}-}}
include =
    {packages}
patch =
    _exit
    fork
"""

Function = ast.FunctionDef | ast.AsyncFunctionDef
Range = tuple[int, int]


def is_counted(folder: Path) -> bool:
    """Whether :func:`count` has come to its end."""
    return (folder / FILES).exists()


def count(tree: Scratch, folder: Path, processes: int) -> None:
    """Runs the tests in an unchanged tree and writes what they reach to a folder, which is named from the root."""
    folder.mkdir(parents=True, exist_ok=True)
    settings, packages = folder / "settings", (f"{tree.folder / name}/*" for name in PACKAGES)
    settings.write_text(
        SETTINGS.format(folder=folder, test=contexts.TEST, packages="\n    ".join(packages)), encoding="utf-8"
    )
    environment = {**os.environ, "COVERAGE_PROCESS_START": str(settings), contexts.TIMES: str(folder / "times.json"),
                   "OPENBLAS_NUM_THREADS": "1"}  # fmt: skip
    left_out = [f"--ignore={file}" for file in LEFT_OUT]
    words = [*PLUGINS, "-p", contexts.__name__, "-n", str(processes), "--dist", "worksteal", *left_out, "tests"]
    python = [sys.executable, "-m"]
    subprocess.run([*python, "pytest", *words], cwd=tree.folder, env=environment, check=False)
    combine = [*python, "coverage", "combine", "-q", f"--rcfile={settings}"]
    subprocess.run(combine, cwd=tree.folder, check=True)
    hashes = {
        str(p.relative_to(tree.folder)): _hash(p) for name in PACKAGES for p in (tree.folder / name).rglob("*.py")
    }
    (folder / FILES).write_text(json.dumps({"tree": str(tree.folder), "files": hashes}), encoding="utf-8")


class Reach:
    """The tests that :func:`count` has counted in a folder."""

    def __init__(self, folder: Path):
        from coverage import CoverageData

        self.data = CoverageData(str(folder / "data"))
        self.data.read()
        found = json.loads((folder / FILES).read_text(encoding="utf-8"))
        self.tree, self.files = Path(found["tree"]), dict[str, str](found["files"])
        self.seconds = {
            test: seconds
            for test, seconds in json.loads((folder / "times.json").read_text(encoding="utf-8")).items()
            if math.isfinite(seconds)
        }
        self._by_line = functools.lru_cache(8)(self.data.contexts_by_lineno)

    def parts(self, path: Path, file: str, line: int) -> Iterator[tuple[tuple[str, ...], float]]:
        """The tests of a line of a file and their seconds, as many at a time as take a few seconds, then more; none where the file
        has changed since they were counted."""
        if self.files.get(file) != _hash(path):
            return
        by_line = self._by_line(str(self.tree / file))
        ranges = ranges_of(path.read_text(encoding="utf-8"), line)
        found = {test for first, last in ranges for n in range(first, last + 1) for test in by_line.get(n, ())}
        tests = self.ordered(found)
        for limit in PARTS:
            total, part = 0.0, list[str]()
            while tests and (not part or total + self.seconds[tests[0]] <= limit):
                total += self.seconds[tests[0]]
                part.append(tests.pop(0))
            if part:
                yield tuple(part), total

    def ordered(self, tests: Collection[str]) -> list[str]:
        """The quickest first: one of every function, then a second of every function, and so on."""
        known = sorted((self.seconds[test], test) for test in tests if test in self.seconds)
        functions: dict[str, list[tuple[float, str]]] = {}
        for seconds, test in known:
            functions.setdefault(test.partition("[")[0], []).append((seconds, test))
        rounds = itertools.zip_longest(*functions.values())
        return [each[1] for one_of_each in rounds for each in sorted(filter(None, one_of_each))]


def _hash(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()[:16]


def ranges_of(text: str, line: int) -> list[Range]:
    """The lines that a test of a line runs: those of its statement; of a function's head, those of its body; of a statement that is
    run on import, those in functions that name what it defines."""
    tree = ast.parse(text)
    around = [n for n in ast.walk(tree) if isinstance(n, ast.stmt) and _first(n) <= line <= (n.end_lineno or 0)]
    functions = [n for n in around if isinstance(n, Function)]
    inner = max(around, key=_first, default=None)
    if inner is None:
        return []
    if functions and isinstance(inner, Function):
        return [_body(inner)]
    if functions:
        body = getattr(inner, "body", None)
        return [(_first(inner), body[0].lineno - 1 if body and line < body[0].lineno else inner.end_lineno or line)]
    defined = {n.id for n in ast.walk(inner) if isinstance(n, ast.Name) and isinstance(n.ctx, ast.Store)}
    if isinstance(inner, ast.ClassDef):
        return [_body(n) for n in inner.body if isinstance(n, Function)]
    named = (n for n in ast.walk(tree) if isinstance(n, ast.Name | ast.Attribute))
    lines = {n.lineno for n in named if (n.id if isinstance(n, ast.Name) else n.attr) in defined}
    return [(n, n) for n in sorted(lines)]


def _first(node: ast.stmt) -> int:
    """The first line of a statement with its decorators."""
    return min([node.lineno, *(d.lineno for d in getattr(node, "decorator_list", []))])


def _body(function: Function) -> Range:
    return function.body[0].lineno, function.end_lineno or function.lineno
