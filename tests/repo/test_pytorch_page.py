"""The page for those who come from PyTorch names what both libraries have, and everything that this one has."""

import functools
import importlib
import re
from typing import Any

import pytest

import tlrt
from codegen.pytorch_names import OURS_ALONE, areas, full_name
from tlrt import checkpoint, distributed, nn, optim
from tlrt.session import Session
from tlrt.tensor import TensorRef

pytestmark = pytest.mark.every_choice

ROOTS: dict[str, Any] = {
    "s": Session("spec"),
    "x": TensorRef,
    "nn": nn,
    "optim": optim,
    "checkpoint": checkpoint,
    "distributed": distributed,
    "tlrt": tlrt,
}
ROWS = [row for rows in areas().values() for row in rows]
ALONE = [name for names in OURS_ALONE.values() for name in names.split(", ")]
QUOTED = re.compile(rf"\b(?:{'|'.join(ROOTS)})(?:\.\w+)+")


def exists(name: str) -> bool:
    root, *parts = name.split(".")
    try:
        functools.reduce(getattr, parts, ROOTS[root])
    except AttributeError:
        return False
    return True


def test_names_here_exist() -> None:
    quoted = [n for _, _, note in ROWS for code in re.findall("`(.+?)`", note) for n in QUOTED.findall(code)]
    named = [name for _, ours, _ in ROWS for name in ours]
    assert [name for name in (*named, *quoted, *ALONE) if not exists(name)] == []


def test_everything_here_is_on_the_page_once() -> None:
    named = {name for _, ours, _ in ROWS for name in ours}
    assert named.isdisjoint(ALONE) and len(set(ALONE)) == len(ALONE)
    known = {*named, *ALONE}
    operations = {n for n in dir(Session) if not n.startswith("_")} | {"parameters"}
    # the places of a reference are no operations
    of_tensors = {n for n in dir(TensorRef) if not n.startswith("_")} - {"epoch", "id", "session", "value"}
    assert [n for n in sorted(operations | of_tensors) if not {f"s.{n}", f"x.{n}"} & known] == []
    modules = {"nn": nn, "optim": optim, "nn.schedules": nn.schedules, "nn.init": nn.init, "checkpoint": checkpoint}
    public = {f"{m}.{n}" for m, module in modules.items() for n in module.__all__}
    assert sorted(public - known - {"nn.init", "nn.schedules", "checkpoint.CheckpointError"}) == []


def test_what_is_missing_says_what_to_use() -> None:
    assert [theirs for theirs, ours, note in ROWS if not ours and not note.startswith("use ")] == []
    missing = {name for theirs, ours, _ in ROWS if not ours for name in theirs}
    assert missing.isdisjoint(name for theirs, ours, _ in ROWS if ours for name in theirs)


def test_names_of_pytorch_exist() -> None:
    torch = pytest.importorskip("torch")
    for module in ("torch.optim.swa_utils", "torch.utils.checkpoint", "torch.utils.data", "torch.distributed"):
        importlib.import_module(module)
    unknown = []
    for name in [full_name(name) for theirs, _, _ in ROWS for name in theirs]:
        try:
            functools.reduce(getattr, name.split(".")[1:], torch)
        except AttributeError:
            unknown.append(name)
    assert unknown == []
