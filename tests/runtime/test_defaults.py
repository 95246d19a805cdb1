"""The defaults of public functions are those of defaults.txt.

Who leaves an argument out relies on its default, and two that differ compute something else without an error. A line of the file
has a function and its defaults. Who changes one on purpose writes the file anew (``python -m tests.runtime.test_defaults``) and
says so in the changelog.
"""

import enum
import importlib
import inspect
import pkgutil
from pathlib import Path
from typing import Any

import pytest

import tlrt
from codegen.files import generated_files

FILE = Path(__file__).with_name("defaults.txt")
PLAIN = (bool, int, float, str, type(None), tuple, enum.Enum)

pytestmark = pytest.mark.every_choice


def defaults_of(function: Any) -> str:
    known = inspect.signature(function).parameters.values()
    kept = [p for p in known if p.default is not p.empty and isinstance(p.default, PLAIN)]
    return ", ".join(f"{p.name}={p.default!r}" for p in kept)


def observe() -> list[str]:
    """A line per function and method written by hand that has defaults, in the order of their names."""
    lines, written = set(), generated_files()
    for found in pkgutil.walk_packages(tlrt.__path__, "tlrt."):
        if found.name.endswith("__main__") or found.name.replace(".", "/") + ".py" in written:
            continue
        module = importlib.import_module(found.name)
        for name, thing in vars(module).items():
            if getattr(thing, "__module__", None) != found.name or name.startswith("_"):
                continue
            inside = vars(thing).items() if inspect.isclass(thing) else ()
            functions = [(f"{name}.{n}", f) for n, f in inside if n == "__init__" or not n.startswith("_")]
            for path, f in [(name, thing), *functions]:
                plain = getattr(f, "__func__", f)
                if inspect.isfunction(plain) and (said := defaults_of(plain)):
                    lines.add(f"{found.name}.{path}: {said}")
    return sorted(lines)


def test_defaults_are_those_recorded() -> None:
    found, known = set(observe()), set(FILE.read_text(encoding="utf-8").splitlines())
    assert (sorted(found - known), sorted(known - found)) == ([], []), "python -m tests.runtime.test_defaults"


if __name__ == "__main__":
    FILE.write_text("\n".join(observe()) + "\n", encoding="utf-8")
