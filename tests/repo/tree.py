"""Files of the repository and circles in graphs of them, as the tests of this folder need them."""

import ast
import subprocess
from collections.abc import Iterable, Mapping
from pathlib import Path

from tests import ROOT

SKIPPED = {
    ".git", ".venv", "build", "dist", "out", "__pycache__", ".hypothesis", ".mypy_cache", ".ruff_cache",
    ".pytest_cache", "_lib",
}  # fmt: skip
#: hidden files and folders that are part of the repository
KEPT = {".ci", ".clang-format", ".gitignore"}
#: the Python packages of the repository besides the tests
PACKAGES = ("tlspec", "tlrt", "codegen", "audit", "bench", "examples", "pages")


def files(*suffixes: str, root: Path = ROOT) -> list[Path]:
    """The files with these suffixes (all files without any): those that git does not ignore, or all but build products."""
    if (ROOT / ".git").exists() and (root == ROOT or ROOT in root.parents):
        command = ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard", "--", "."]
        listing = subprocess.run(command, cwd=root, capture_output=True, text=True, check=True).stdout
        found = [root / line for line in sorted(listing.split("\0")) if line]
    else:
        found = sorted(root.rglob("*"))
    parts = {p: set(p.relative_to(root).parts) for p in found}
    hidden = {part for names in parts.values() for part in names if part.startswith(".")} - KEPT
    found = [p for p, names in parts.items() if not (SKIPPED | hidden) & names]
    return [p for p in found if p.is_file() and not p.is_symlink() and (not suffixes or p.suffix in suffixes)]


def name(path: Path, root: Path = ROOT) -> str:
    return path.relative_to(root).as_posix()


def python_modules(root: Path = ROOT) -> dict[str, Path]:
    """Module name -> file, of PACKAGES."""
    found = {}
    for package in PACKAGES:
        for path in files(".py", root=root / package):
            parts = path.relative_to(root).with_suffix("").parts
            found[".".join(parts[:-1] if parts[-1] == "__init__" else parts)] = path
    return found


def imports(module: str, path: Path, modules: Iterable[str]) -> set[str]:
    """The modules among `modules` that a file imports anywhere: in functions and for type checkers alone, too.

    ``from a import b`` imports a.b where that is a module, and a where it is not.
    """
    found = set()
    package = module if path.name == "__init__.py" else module.rpartition(".")[0]
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            parents = package.split(".")
            base = ".".join([*parents[: len(parents) - node.level + 1], node.module or ""]).strip(".")
            origin = base if node.level else node.module or ""
            found |= {
                f"{origin}.{alias.name}" if f"{origin}.{alias.name}" in modules else origin for alias in node.names
            }
    return {m for m in found if m in modules and m != module}


def circles(graph: Mapping[str, Iterable[str]]) -> list[list[str]]:
    """For each set of nodes that all reach each other, a shortest circle in it, its first node repeated at the end."""
    found, seen = [], set()
    for start in graph:
        if start in seen:
            continue
        before: dict[str, str] = {}
        level = [start]
        while level and start not in before:
            following = []
            for node in level:
                for target in graph.get(node, ()):
                    if target not in before:
                        before[target] = node
                        following.append(target)
            level = following
        if start in before:
            circle = [start, before[start]]
            while circle[-1] != start:
                circle.append(before[circle[-1]])
            seen |= set(circle)
            found.append(circle[::-1])
    return found
