"""Files of tasks and submissions as modules."""

import ast
import importlib
import sys
import types
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any


@contextmanager
def imported_from(*folders: Path) -> Iterator[None]:
    """A block in which these folders' modules are found first; what it imported from there is forgotten afterwards, as tasks call
    their modules alike."""
    before, path = set(sys.modules), list(sys.path)
    sys.path[:0] = [str(f) for f in folders]
    try:
        yield
    finally:
        sys.path[:] = path
        roots = tuple(str(f) for f in folders)
        for name in set(sys.modules) - before:
            file = getattr(sys.modules[name], "__file__", None) or ""
            if str(Path(file).parent) in roots:
                sys.modules.pop(name)


def executed(path: Path, constants: Mapping[str, Any] = {}, replaced: Mapping[str, str] = {}) -> types.ModuleType:
    """A file as a module. `constants` are other values of names that it assigns at its top; `replaced` are strings that stand
    for others, such as the name of a device. Raises ValueError."""
    if not path.is_file():
        raise ValueError(f"{path}: no such file")
    tree = ast.parse(path.read_text(encoding="utf-8"), str(path))
    first = {name: node for node in reversed(tree.body) for name in _names(node)}
    if unknown := [name for name in constants if name not in first]:
        known = ", ".join(sorted(first))
        raise ValueError(f"--set: got {unknown[0]}, expected a name that {path.name} assigns: {known}")
    for name, value in constants.items():
        node: Any = first[name]
        node.value = ast.copy_location(ast.parse(repr(value), mode="eval").body, node)
    for each in ast.walk(tree):
        if isinstance(each, ast.Constant) and isinstance(each.value, str) and each.value in replaced:
            each.value = replaced[each.value]
    module = types.ModuleType(path.stem)
    module.__file__ = str(path)
    sys.modules.setdefault(path.stem, module)
    import linecache

    linecache.checkcache(str(path))
    exec(compile(ast.fix_missing_locations(tree), str(path), "exec"), vars(module))
    return module


def _names(node: ast.stmt) -> list[str]:
    """The names to which a statement assigns one value."""
    targets = node.targets if isinstance(node, ast.Assign) else [node.target] if isinstance(node, ast.AnnAssign) else []
    return [t.id for t in targets if isinstance(t, ast.Name)]


def part(module: Any, names: Sequence[str], path: Path) -> Any:
    """The first of these names that a module has. Raises ValueError."""
    for name in names:
        if hasattr(module, name):
            return getattr(module, name)
    raise ValueError(f"{path}: got no {names[0]}, expected {' or '.join(names)}")


def here(device: str) -> tuple[str, dict[str, str]]:
    """The device to use, and what a file's own device is called then: without a GPU "cuda" is the CPU."""
    torch = importlib.import_module("torch")
    found = device or ("cuda" if torch.cuda.is_available() else "cpu")
    return found, ({"cuda": "cpu", "cuda:0": "cpu"} if found == "cpu" else {})
