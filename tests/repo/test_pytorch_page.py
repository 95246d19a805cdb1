"""The page for those who come from PyTorch names what both libraries have."""

import functools
import importlib
import re
from typing import Any

import numpy as np
import pytest

import tlrt
from tests import ROOT
from tlrt import checkpoint, distributed, nn, optim
from tlrt.session import Session
from tlrt.tensor import TensorRef
from tlspec import registry

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
PAGE = (ROOT / "docs/pytorch.md").read_text()
CODE = re.compile(r"`([^`]+)`")


def table(columns: int) -> list[list[str]]:
    """The cells of the page's rows of so many columns."""
    rows = [
        [cell.strip() for cell in line.strip("|").split("|")] for line in PAGE.splitlines() if line.startswith("| `")
    ]
    return [row for row in rows if len(row) == columns]


#: names of PyTorch, names here, and what differs
ROWS = [(CODE.findall(theirs), CODE.findall(ours), note) for theirs, ours, note in table(3)]
ALONE = [
    n for line in PAGE.partition("## What PyTorch has no counterpart of")[2].splitlines() for n in CODE.findall(line)
]
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
    assert len(named) > 200 and len(ALONE) > 40
    assert [name for name in (*named, *quoted, *ALONE) if not exists(name)] == []


def test_names_of_pytorch_exist() -> None:
    torch = pytest.importorskip("torch")
    for module in ("torch.optim.swa_utils", "torch.utils.checkpoint", "torch.utils.data", "torch.distributed"):
        importlib.import_module(module)
    unknown = []
    rows = [f"torch.{row.torch}" for row in registry.ops() if row.torch]
    for name in [*rows, *(name for theirs, _, _ in ROWS for name in theirs)]:
        try:
            functools.reduce(getattr, name.split(".")[1:], torch)
        except AttributeError:
            unknown.append(name)
    assert unknown == []


INF, NAN = float("inf"), float("nan")
#: for each gradient that differs, by PyTorch's name and place: operands, ours for each operand, theirs in each release
POINTS: dict[tuple[str, str], list[tuple[list[list[float]], list[list[float]], list[list[list[float]]]]]] = {
    ("clamp", "at a bound"): [([[-1.0, 1.0]], [[0.0, 0.0]], [[[1.0, 1.0]], [[0.0, 0.0]]])],
    ("sqrt", "at 0"): [([[0.0]], [[0.0]], [[[INF]]])],
    ("sqrt", "below 0"): [([[-2.0]], [[0.0]], [[[NAN]]])],
    ("atan2", "at (0, 0)"): [([[0.0], [0.0]], [[NAN], [NAN]], [[[0.0], [0.0]]])],
    ("logsumexp", "of -∞ alone"): [([[-INF, -INF]], [[0.0, 0.0]], [[[NAN, NAN]]])],
    ("relu", "at NaN"): [([[NAN]], [[NAN]], [[[1.0]]])],
    ("F.elu", "at NaN"): [([[NAN]], [[NAN]], [[[1.0]]])],
    ("F.leaky_relu", "at NaN"): [([[NAN]], [[NAN]], [[[0.01]]])],
    ("abs", "at NaN"): [([[NAN]], [[NAN]], [[[0.0]]])],
    ("clamp", "at NaN"): [([[NAN]], [[NAN]], [[[0.0]]])],
    **{(name, "where one is NaN"): [([[NAN, 1.0], [1.0, NAN]], [[NAN, NAN]] * 2, [[[1.0, 1.0]] * 2])]
       for name in ("maximum", "minimum")},
    **{(f"F.{name}", "at ∞; at -∞"): [([[INF, -INF]], [[1.0, 0.0]], [[[NAN, NAN]]])] for name in ("gelu", "silu", "mish")},
    ("F.softsign", "at ∞ and -∞"): [([[INF, -INF]], [[0.0, 0.0]], [[[NAN, NAN]]])],
    ("expm1", "at -20"): [([[-20.0]], [[2.0611537e-09]], [[[0.0]]])],
}  # fmt: skip
CALLS: dict[str, tuple[str, str]] = {
    "clamp": ("s.clamp(*x, -1.0, 1.0)", "torch.clamp(*x, -1.0, 1.0)"),
    "logsumexp": ("s.logsumexp(*x, -1)", "torch.logsumexp(*x, -1)"),
    "F.elu": ("s.elu(*x, 1.0)", "F.elu(*x)"),
    "F.leaky_relu": ("s.leaky_relu(*x, 0.01)", "F.leaky_relu(*x)"),
    "F.gelu": ("s.gelu(*x)", "F.gelu(*x, approximate='tanh')"),
    "maximum": ("s.max(*x)", "torch.maximum(*x)"),
    "minimum": ("s.min(*x)", "torch.minimum(*x)"),
}


#: at kinks and ties: operands
SAME: dict[str, list[list[float]]] = {
    "relu": [[0.0, -0.0]], "F.leaky_relu": [[0.0, -0.0]], "abs": [[0.0, -0.0]], "maximum": [[1.0, 0.0], [1.0, -0.0]],
    "minimum": [[1.0, 0.0], [1.0, -0.0]], "amax": [[1.0, 1.0, 0.0]], "prod": [[0.0, 2.0, 3.0, 0.0]], "norm": [[0.0, 0.0]],
}  # fmt: skip
CALLS |= {
    "amax": ("s.amax(*x, -1)", "torch.amax(*x, -1)"),
    "prod": ("s.prod(*x, -1)", "torch.prod(*x, -1)"),
    "norm": ("s.norm(*x, 2.0, -1)", "torch.linalg.vector_norm(*x, 2, -1)"),
}


def both_gradients(name: str, operands: list[list[float]], torch: Any) -> tuple[np.ndarray, np.ndarray]:
    """Ours and PyTorch's, of the sum of a function's results."""
    plain = name.removeprefix("F.")
    ours, theirs = CALLS.get(name, (f"s.{plain}(*x)", f"{'F' if '.' in name else 'torch'}.{plain}(*x)"))
    with Session("cpu") as s:
        x: list[Any] = [s.input(np.array(a, np.float32), requires_grad=True) for a in operands]
        s.backward(s.sum(eval(ours, {"s": s, "x": x})))
        here = np.array([a.grad.numpy() for a in x])
    x = [torch.tensor(a, requires_grad=True) for a in operands]
    eval(theirs, {"torch": torch, "F": torch.nn.functional, "x": x}).sum().backward()
    return here, np.array([a.grad.numpy() for a in x])


@pytest.mark.parametrize("name", SAME)
def test_gradients_at_kinks_and_ties_are_pytorchs(name: str) -> None:
    np.testing.assert_array_equal(*both_gradients(name, SAME[name], pytest.importorskip("torch")))


def test_gradients_that_differ_do_so() -> None:
    torch = pytest.importorskip("torch")
    short = lambda name: name.removeprefix("torch.").replace("nn.functional.", "F.")
    listed = [(short(name), where) for names, where, *_ in table(4) for name in CODE.findall(names)]
    assert sorted(listed) == sorted(POINTS)
    for (name, where), points in POINTS.items():
        for operands, here, there in points:
            ours, found = both_gradients(name, operands, torch)
            np.testing.assert_array_equal(ours, np.float32(here), err_msg=f"{name} {where}")
            assert any(np.array_equal(found, np.float32(t), equal_nan=True) for t in there), (name, where, found)
            assert not np.array_equal(found, np.float32(here), equal_nan=True) or len(there) > 1
