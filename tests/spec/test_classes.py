"""Geometry classes and edges: what drawn cases lie next to, and what they aim at."""

import numpy as np
import pytest

from tlspec.classes import WINDOWS, default_classes, derived, tiles
from tlspec.draw.cases import DATA, EDGES, Draw, class_aimed_at, data_classes, draw_case, generator
from tlspec.registry import Op
from tlspec.signature import Signature

pytestmark = pytest.mark.every_choice


def test_sizes_products_and_numbers_lie_next_to_edges() -> None:
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
    found = [(below(n=n), whole(n=n), rest(n=n)).index(True) for n in (7, 8, 9, 16)]
    assert found == [0, 1, 2, 1] and not any(test(n=0) for test in (below, whole, rest))
    flat = {f"{n}_{a}": 1 for n in ("in", "kernel", "stride", "padding") for a in "hw"}
    both = derived(WINDOWS, lambda v: {n: [v[f"{n}_h"], v[f"{n}_w"]] for n in ("kernel", "stride", "padding")})
    for name, values in (("stride > kernel", {"stride_h": 2}), ("stride < kernel", {"kernel_w": 2}),
                         ("no padding", {"padding_h": 0, "padding_w": 0}), ("a window of padding alone", {})):  # fmt: skip
        assert both[name](**{**flat, **values}), name
    assert not both["stride > kernel"](**flat)


def test_classes_of_a_signature() -> None:
    classes = default_classes(Signature.parse("x[rows, cols] -> out[rows]"))
    held = lambda rows, cols: {name for name, test in classes.items() if test(rows=rows, cols=cols)}
    assert held(1, 5) == {"rows = 1", "cols longest"} and held(5, 1) == {"cols = 1", "rows longest"}
    assert held(3, 3) == held(0, 5) == held(1, 1) == set()
    assert (
        default_classes(Signature.parse("x[*] -> out[*]")) == default_classes(Signature.parse("x[n] -> out[1]")) == {}
    )


def test_every_class_is_aimed_at(entry: tuple[Op, str]) -> None:
    """By the odd or even seeds in a row, whichever these are: three, or as many as the row's classes take."""
    row, which = entry
    count = max(3, -(-len(row.drawing.classes) // len(data_classes(row))))
    for base in (0, 1):
        seeds = [base + 1 + 2 * i for i in range(count)]
        aims = {class_aimed_at(row, s, data) for s in seeds for data in data_classes(row, which)}
        assert aims - {None} == set(row.drawing.classes)


@pytest.mark.only(where=lambda row: row.drawing.classes)
def test_aims_are_hit(row: Op) -> None:
    aims = [(s, data) for s in (1, 3, 5) for data in DATA if data in data_classes(row)]
    missed = [a for a in aims if class_aimed_at(row, *a) not in draw_case(row, *a, EDGES).classes]
    assert len(missed) <= len(aims) // 5
