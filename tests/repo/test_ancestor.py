"""Every call on the page for those who come from the ancestor runtime exists, with the arguments that the page gives it."""

import importlib
import inspect
import re
from typing import Any

import pytest

from tests import ROOT

pytestmark = pytest.mark.every_choice

PAGE = (ROOT / "docs" / "ancestor.md").read_text()
HEADER = (ROOT / "native" / "include" / "torchlean_cuda_ops.h").read_text()
CALL = re.compile(r"([\w.]+)(?:\(([\w, ]*)\))?")


def calls() -> list[str]:
    """What stands in backquotes in the second column, and the classes that the text names."""
    rows = [line.split("|") for line in PAGE.splitlines() if line.startswith("|")]
    assert len(rows) > 40 and all(len(row) == 5 for row in rows)
    return [c for _, _, ours, _, _ in rows for c in re.findall("`([^`]+)`", ours)] + re.findall(r"`(tlrt[\w.]+)`", PAGE)


def resolve(path: str) -> Any:
    module, *rest = path.split(".")
    thing = importlib.import_module(module)
    for part in rest:
        thing = getattr(thing, part) if hasattr(thing, part) else importlib.import_module(f"{thing.__name__}.{part}")
    return thing


def parameters(name: str) -> tuple[list[str], list[str]]:
    """The parameters of a call, and those of them that have no default; in C without ranks and outputs."""
    if name.startswith("torchlean_cuda"):
        (found,) = re.findall(rf"\b{name}\(([^)]*)\)", HEADER)
        given = [p.split("*")[-1].split()[-1] for p in found.split(",") if "**" not in p]
        return (names := [p for p in given if not p.endswith("_rank")]), names
    thing = resolve(name)
    owner = resolve(name.rpartition(".")[0])
    bound = inspect.isclass(owner) and inspect.isfunction(inspect.getattr_static(owner, name.rpartition(".")[2]))
    listed = list(inspect.signature(thing).parameters.values())[int(bound) :]
    return [p.name for p in listed], [p.name for p in listed if p.default is p.empty]


@pytest.mark.parametrize("call", sorted(set(calls())))
def test_calls_of_the_page_exist(call: str) -> None:
    found = CALL.fullmatch(call)
    assert found, call
    if found[2] is None:
        assert resolve(found[1]) is not None
        return
    given = [a for a in found[2].split(", ") if a]
    have, needed = parameters(found[1])
    assert [p for p in have if p in given] == given, "unknown, or in another order"
    assert [p for p in needed if p not in given] == []
