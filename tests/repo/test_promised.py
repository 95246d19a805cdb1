"""Every name that users of the ancestor runtime rely on has its counterpart in Python, with a docstring where it can have one."""

import importlib
import inspect
import re
from pathlib import Path

import pytest

pytestmark = pytest.mark.every_choice

LIST = Path(__file__).with_name("promised_python.txt")


def sections() -> list[tuple[str, str]]:
    """(section, name) for every promise; a line holds names of its section."""
    out: list[tuple[str, str]] = []
    where = ""
    for line in LIST.read_text().splitlines():
        if found := re.fullmatch(r"\[([\w.]+:\w*)\]", line):
            where = found[1]
        elif line and not line.startswith("#"):
            assert where, f"{line} stands before the first section"
            assert re.fullmatch(r"\w+( \w+)*", line), line
            out += [(where, name) for name in line.split()]
    return out


@pytest.mark.parametrize("where", sorted({w for w, _ in sections()}))
def test_promised_names_exist(where: str) -> None:
    module, _, owner = where.partition(":")
    thing = importlib.import_module(module)
    for part in filter(None, [owner]):
        thing = getattr(thing, part)
    names = [n for w, n in sections() if w == where]
    known = {*dir(thing), *getattr(thing, "__annotations__", {})}
    assert [n for n in names if n not in known] == []
    called = [n for n in names if inspect.isroutine(getattr(thing, n, None))]
    assert [n for n in called if not inspect.getdoc(getattr(thing, n))] == []


def test_nothing_is_promised_twice() -> None:
    assert len(set(sections())) == len(sections())
