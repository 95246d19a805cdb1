"""Kernels branch and loop against named constants, which the generated table of boundaries then has."""

import re
from collections import Counter

import pytest

from tests import ROOT
from tests.repo.tree import files, name

pytestmark = pytest.mark.every_choice

#: numbers that are arithmetic wherever they stand: halves, pairs and quads, the bits of a byte
ARITHMETIC = {0, 1, 2, 3, 4, 8}
#: (file, number) -> why it is no boundary
ALLOWED = {
    ("cpu/shape.c", 16): "the pieces of a short run: of 4, 8 and 16",
    ("cpu/shape.c", 32): "the pieces of a short run: of 4, 8 and 16",
    ("cpu/shape_slices.c", 16): "the pieces of a short run: of 4, 8 and 16",
    ("cpu/shape_slices.c", 32): "the pieces of a short run: of 4, 8 and 16",
    ("cpu/sum_tree.h", 16): "the doublings of a row's length: a tree's shape for each",
    ("cpu/sum_tree.h", 32): "the doublings of a row's length: a tree's shape for each",
    ("cpu/linalg/gemm.c", 16): "the registers of a transposition that is written out",
    ("cpu/spectral/conv.c", 16): "the lanes of a chain whose order is part of the definition",
    ("cpu/spectral/plan.c", 5): "the length of a list on the line before",
    ("formula/activation.h", 100): "an exponent: the scalar formulas are checked on every float32",
    ("formula/explog.h", 64): "an exponent: the scalar formulas are checked on every float32",
    ("formula/exact.h", 250): "an exponent",
    ("formula/exact.h", 255): "the exponent field of infinities",
    ("formula/rotary.h", 2**53): "the whole numbers of a double",
    ("core/device.c", 10): "the length of the word beside it",
    ("core/errors.c", 10): "statuses go by tens",
    ("core/shapes.h", 2**32): "the end of the type that sizes have, one of tlspec.drawn.LIMITS",
}
_TEXT = re.compile(r'/\*.*?\*/|//[^\n]*|"(?:\\.|[^"\\])*"|^[ \t]*#[^\n]*', re.S | re.M)
#: a comparison with an integer on its right or left, which may be shifted
_RIGHT = re.compile(
    r"(?:[<>=!]=|(?<![<-])<(?!<)|(?<![->])>(?!>))\s*\(?(?:U?INT\d+_C\()?(\d+)[uUlL]*\)?(?:\s*<<\s*(\d+))?(?![\w.])"
)
_LEFT = re.compile(r"(?<![\w.<])(?<!>> )(?:U?INT\d+_C\()?(\d+)[uUlL]*\)?\s*(?:[<>=!]=|<(?!<)|>(?!>))")


def compared(text: str) -> list[int]:
    """The integers that a source compares with."""
    code = _TEXT.sub("", text)
    found = [int(m[1]) << int(m[2] or 0) for m in _RIGHT.finditer(code)] + [int(n) for n in _LEFT.findall(code)]
    return [n for n in found if n not in ARITHMETIC]


def test_kernels_compare_with_declared_constants() -> None:
    source = ROOT / "native/src"
    paths = [p for folder in ("cpu", "formula", "core") for p in files(".c", ".h", root=source / folder)]
    found = Counter((name(p, source), n) for p in paths for n in compared(p.read_text()))
    text = "declare it as an enumerator, which `make abi` gives to the drawn cases, or say here why it is no boundary"
    assert sorted(set(found) - set(ALLOWED)) == [], text
    assert set(ALLOWED) <= set(found), "an exception that nothing needs"


def test_an_undeclared_number_is_found() -> None:
    text = """
        #define TILE 64
        if (n < 16384 || 4096 <= n) /* n > 77 */ x = 5 << 3;
        for (i = 0; i < INT64_C(1) << 20; i += 32) y = p->q + (n == TILE) + "a < 99"[i >= 0] + (f > 12.5f);
    """
    assert sorted(compared(text)) == [4096, 16384, 1 << 20]
