"""Every public name stands on a page, as code."""

import importlib
import inspect
import pkgutil
import re

import pytest

import tlspec
from tests import ROOT

pytestmark = pytest.mark.every_choice

MODULES = ["tlrt", "tlrt.nn", "tlrt.nn.init", "tlrt.nn.schedules", "tlrt.optim", "tlrt.errors", "tlrt.checkpoint", "tlrt.ledger",
           "tlrt.audit", "tlrt.distributed"]  # fmt: skip
PAGES = [
    *(ROOT / "docs").glob("*.md"),
    *(ROOT / name for name in ("README.md", "CONTRIBUTING.md", "TRUST_BOUNDARIES.md")),
]


def names_of(module: str) -> set[str]:
    """What a module exports, and the public names of its classes that this library defines."""
    owner = importlib.import_module(module)
    found = set(owner.__all__)
    for thing in (getattr(owner, name) for name in owner.__all__):
        for kind in thing.__mro__ if inspect.isclass(thing) else ():
            if kind.__module__.startswith("tlrt"):
                found |= {name for name in vars(kind) if not name.startswith("_")}
    return found


@pytest.fixture(scope="module")
def written() -> set[str]:
    """The words of the code on all pages, but for names of PyTorch."""
    text = re.sub(r"`torch\.[^`\n]+`", "", "\n".join(page.read_text() for page in PAGES))
    blocks = re.findall(r"^```\w*\n(.*?)^```", text, re.M | re.S)
    spans = re.findall(r"`([^`\n]+)`", re.sub(r"^```.*?^```", "", text, flags=re.M | re.S))
    return set(re.findall(r"\w+", "\n".join([*blocks, *spans])))


@pytest.mark.parametrize("module", MODULES)
def test_public_names_are_on_a_page(module: str, written: set[str]) -> None:
    assert sorted(names_of(module) - written) == []


def test_modules_of_the_specification_are_on_a_page(written: set[str]) -> None:
    modules = [m.name for m in pkgutil.iter_modules(tlspec.__path__) if not m.name.startswith("_")]
    assert [name for name in modules if name not in written] == []
