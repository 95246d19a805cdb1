"""The names that modules export, and the parameters and defaults of their functions, are those of defaults.txt.

Who leaves an argument out relies on its default, and two that differ compute something else without an error. Who changes a
signature on purpose writes the file anew (``python -m tests.runtime.test_defaults``) and says so in the changelog.
"""

import enum
import importlib
import inspect
import pkgutil
from pathlib import Path
from typing import Any

import pytest

import tlrt
import tlspec
from codegen.files import generated_files

FILE = Path(__file__).with_name("defaults.txt")
PLAIN = (bool, int, float, str, type(None), tuple, enum.Enum)

pytestmark = pytest.mark.every_choice


def signature_of(function: Any) -> str:
    """Names, kinds and plain defaults of the parameters."""
    known = inspect.signature(function)
    plain = [
        p.replace(annotation=p.empty, default=p.default if isinstance(p.default, (type(p.empty), *PLAIN)) else ...)
        for p in known.parameters.values()
    ]
    return str(known.replace(parameters=plain, return_annotation=known.empty))


def observe() -> list[str]:
    """A line per list of exports, and per function and method written by hand, in the order of their names."""
    lines, written = set(), generated_files()
    for package in (tlrt, tlspec):
        for found in pkgutil.walk_packages(package.__path__, f"{package.__name__}."):
            # a row's own functions come and go with it, and PyTorch and JAX may not be installed
            if found.name.startswith(("tlspec.ops.", "tlrt.jax", "tlrt.torch")):
                continue
            if found.name.endswith("__main__") or found.name.replace(".", "/") + ".py" in written:
                continue
            module = importlib.import_module(found.name)
            if exports := getattr(module, "__all__", None):
                lines.add(f"{found.name} exports {', '.join(sorted(exports))}")
            for name, thing in vars(module).items():
                if getattr(thing, "__module__", None) != found.name or name.startswith("_"):
                    continue
                # bases with names of their own have lines of their own
                bases = thing.__mro__[::-1] if inspect.isclass(thing) else ()
                own = [vars(c) for c in bases if c is thing or c.__name__.startswith("_")]
                inside = {n: f for known in own for n, f in known.items()}.items()
                functions = [(f"{name}.{n}", f) for n, f in inside if n == "__init__" or not n.startswith("_")]
                for path, f in [(name, thing), *functions]:
                    plain = getattr(f, "__func__", f)
                    if inspect.isfunction(plain):
                        lines.add(f"{found.name}.{path}{signature_of(plain)}")
    return sorted(lines)


def test_defaults_are_those_recorded() -> None:
    found, known = set(observe()), set(FILE.read_text(encoding="utf-8").splitlines())
    assert (sorted(found - known), sorted(known - found)) == ([], []), "python -m tests.runtime.test_defaults"


if __name__ == "__main__":
    FILE.write_text("\n".join(observe()) + "\n", encoding="utf-8")
