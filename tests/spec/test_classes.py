"""Boundaries and geometry classes: what drawn cases lie next to, and what they aim at."""

import math
from textwrap import dedent

import numpy as np
import pytest

from codegen.boundaries import constants, family_boundaries
from tests import ROOT
from tlspec import boundaries, drawn, registry
from tlspec.classes import WINDOWS, on_two_axes, tiles
from tlspec.drawn import DATA, EDGES, Draw, class_aimed_at, data_classes, draw_case, edges_of, generator
from tlspec.registry import Op

pytestmark = pytest.mark.every_choice


def test_constants_have_the_values_of_every_variant() -> None:
    text = """
        #if defined(A)
        #define W 16 /* lanes */
        #else
        #define W 4
        #endif
        #define NR (2 * W)
        #define CODE(x) ((x) + 1)
        enum { TILE = NR * 3, KIND, BYTES = 64 / sizeof(REAL), MOST = 1 << 10 };
        constexpr int64_t LATER = (int64_t)4 << 20, ODD = sizeof(int);
    """
    assert constants([dedent(text)]) == {
        "W": {4, 16}, "NR": {8, 32}, "TILE": {24, 96}, "BYTES": {8, 16}, "MOST": {1024}, "LATER": {4 << 20},
    }  # fmt: skip
    with pytest.raises(ValueError, match="UNKNOWN"):
        constants(["enum { UNKNOWN = other() };"])


def test_a_constant_changed_in_a_kernel_moves_the_drawn_cases(monkeypatch: pytest.MonkeyPatch) -> None:
    row = next(r for r in registry.ops("random"))
    monkeypatch.setattr("tlspec.drawn.class_aimed_at", lambda *_: None)  # the classes' lengths are read at import
    before = [draw_case(row, s, "normal", EDGES).dims for s in range(1, 30, 2)]
    (span,) = family_boundaries("random", "cpu", ROOT)["TL_SPAN"]
    assert {d["n"] for d in before} & {span - 1, span, span + 1, 2 * span, 3 * span}
    monkeypatch.setitem(boundaries.CPU, row.family, {"TL_SPAN": (1000,)})
    edges_of.cache_clear()
    after = [draw_case(row, s, "normal", EDGES).dims for s in range(1, 30, 2)]
    edges_of.cache_clear()
    assert {d["n"] for d in after} & {999, 1001, 1999, 2001, 2999, 3001}


def test_sizes_products_and_numbers_lie_next_to_boundaries() -> None:
    near = {k * b + e for b in (96, 4096) for k in (1, 2, 3) for e in (-k, -1, 0, 1, k)}
    d = Draw(generator("edges"), 2**16, edges=(96, 4096))
    assert {d.edge(1, 2**16) for _ in range(400)} <= near
    for count in (1, 2, 3):
        assert {int(np.prod(d.factors(n, count))) for n in sorted(near)} == near
    indices = d.indices(4000, 9000)
    assert {95, 96, 97, 4095, 4096, 4097, 8191, 8192} <= set(indices.tolist()) and indices.max() < 9000
    assert {2**24 - 1, 2**24, 2**24 + 1} <= {Draw(generator(i), 8, edges=(96,)).integer(0, 2**32) for i in range(2000)}


def test_tiles_and_windows() -> None:
    below, whole, rest = tiles("n", lambda n: n, 8).values()
    found = [(below(n=n), whole(n=n), rest(n=n)) for n in (0, 7, 8, 9, 16)]
    assert found == [
        (False,) * 3,
        (True, False, False),
        (False, True, False),
        (False, False, True),
        (False, True, False),
    ]
    flat = {f"{n}_{a}": 1 for n in ("in", "kernel", "stride", "padding") for a in "hw"}
    both = on_two_axes(WINDOWS)
    for name, values in (("stride > kernel", {"stride_h": 2}), ("stride < kernel", {"kernel_w": 2}),
                         ("no padding", {"padding_h": 0, "padding_w": 0}), ("a window of padding alone", {})):  # fmt: skip
        assert both[name](**{**flat, **values}), name
    assert not both["stride > kernel"](**flat)


def test_every_class_is_aimed_at(entry: tuple[Op, str]) -> None:
    """By the odd or even seeds in a row, whichever these are: three, or as many as the row's classes take."""
    row, which = entry
    count = max(3, -(-len(row.drawing.classes) // len(data_classes(row))))
    for base in (0, 1):
        seeds = [base + 1 + 2 * i for i in range(count)]
        aims = {class_aimed_at(row, s, data) for s in seeds for data in data_classes(row, which)}
        assert aims - {None} == set(row.drawing.classes)


@pytest.mark.only(where=lambda row: drawn._farthest(row))
def test_large_cases_reach_the_farthest_boundary(row: Op) -> None:
    for seed in range(3):
        case = draw_case(row, seed, "structured", "large")
        sizes = (math.prod(case.shape(a)) for a in row.signature.inputs + row.signature.outputs)
        assert max(sizes) > drawn._farthest(row)


@pytest.mark.only(where=lambda row: row.drawing.classes)
def test_aims_are_hit(row: Op) -> None:
    aims = [(s, data) for s in (1, 3, 5) for data in DATA if data in data_classes(row)]
    missed = [a for a in aims if class_aimed_at(row, *a) not in draw_case(row, *a, EDGES).classes]
    assert len(missed) <= len(aims) // 5
