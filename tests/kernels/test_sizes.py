"""One size alone is 0, or longer than any task, and the others are small: results within the bounds, and each
gradient as with the others."""

import numpy as np
import pytest

from tests.kernels.test_conv import demand_bounds
from tlrt.verify.run import Runtime
from tlspec.bounds import LANES, call_named
from tlspec.compare import same_bits
from tlspec.draw.cases import (
    EDGE_WORK,
    Case,
    Draw,
    _complete,
    _elements,
    _values,
    build_case,
    draw_case,
    generator,
    refused_by,
    shape_of,
)
from tlspec.registry import Op

#: longer than the tasks that kernels cut their work into
LONG = 2 * 65536 + 3
#: elements of a case
MOST = 12 * LONG


class OneSize(Draw):
    """Draws one size as it is told, and small ones for the others."""

    def __init__(self, place: int, size: int):
        super().__init__(generator("one size", place, size), LONG, empty=size == 0)
        self.place, self.size, self.drawn = place, size, 0

    def dim(self, low: int = 0, high: int | None = None) -> int:
        n = self.size if self.drawn == self.place else 2 + self.drawn % 3
        self.drawn += 1
        return max(low, n if high is None else min(n, high))

    def dims(self, rank: int | None = None, budget: int | None = None) -> list[int]:
        return [self.dim() for _ in range(self.rank() if rank is None else rank)]


def demand_each_alone(case: Case, runtime: Runtime) -> None:
    """Demands of each of several gradients the same bits where it alone is wanted."""
    together = runtime.run(case)
    for i, output in enumerate(case.signature.outputs if len(together) > 1 else ()):
        result = same_bits(runtime.run(case, want=[output.name])[i], together[i])
        assert result.ok, f"{case.name}: {output.name} alone: {result.explain()}"


def one_size(row: Op, which: str, place: int, size: int) -> tuple[int, Case | None]:
    """How many sizes are drawn, and the case in which that of a place is told, where no rule or limit refuses it."""
    draw = OneSize(place, size)
    values = _values(row, draw)
    work = call_named(row.drawing.work, values) if row.drawing.work else 0
    if work > EDGE_WORK or sum(_elements(row, values)) > MOST:
        return draw.drawn, None
    sizes, values = draw.drawn, _complete(row, draw, values)
    given = {a.name: values[a.name] for a in row.signature.inputs if values.get(a.name) is not None}
    shaped = all(np.shape(given[a.name]) == shape_of(a, values) for a in row.signature.inputs if a.name in given)
    if not shaped or refused_by(row, values) is not None:
        return sizes, None
    return sizes, build_case(row, values, given, draw.rng, which=which)


@pytest.mark.parametrize("size", [0, LONG])
def test_one_size(entry: tuple[Op, str], size: int, runtime: Runtime) -> None:
    row, which = entry
    place = sizes = 0
    while place < max(sizes, 1):
        sizes, case = one_size(row, which, place, size)
        place += 1
        if case is not None:
            demand_bounds(case, runtime, f"{row.name} {which}")
            if size == 0 and which == "vjp":
                demand_each_alone(case, runtime)


@pytest.mark.only(where=lambda row, which: row.family in ("loss", "norm", "softmax") and row.signature.dims)
def test_every_count_of_lines(entry: tuple[Op, str], runtime: Runtime) -> None:
    """Sums of rows branch by how many whole lines there are, up to a leaf's lanes, and by whether a part of one is left."""
    row, which = entry
    lanes, line = LANES, 16
    last, tried = len(row.signature.dims) - 1, 0
    for size in (
        whole + part for whole in range(0, lanes + line, line) for part in (0, (5, line - 1)[whole // line % 2])
    ):
        _, case = one_size(row, which, last, size)
        if case is not None:
            tried += size in case.dims.values()
            demand_bounds(case, runtime, f"{row.name} {which} of {size}")
    assert tried


@pytest.mark.only(where=lambda row, which: which == "vjp" and len(row.vjp_signature.outputs) > 1)
def test_each_gradient_alone(entry: tuple[Op, str], runtime: Runtime) -> None:
    row, which = entry
    differs = row.contract.reproducible and not row.contract.same_bits  # in a mode of its own
    for math in ("fast", "reproducible") if differs else ("fast",):
        with runtime.device.set_math(math):
            for seed in range(4):
                demand_each_alone(draw_case(row, seed, None, "small", which), runtime)
