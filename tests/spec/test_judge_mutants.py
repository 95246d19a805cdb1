"""The defects that the judge plants to say how sensitive it is: each is what its name says."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from tlspec import registry
from tlspec.draw.cases import data_classes, draw_case
from tlspec.formats import FORMATS
from tlspec.judge.arithmetic import arithmetic
from tlspec.judge.mutants import MUTANTS
from tlspec.judge.shrink import resized
from tlspec.judge.trial import Trial
from tlspec.signature import Array

ROWS = [[1.0, 2.0], [3.0, 5.0]]
FINE = [[1 + 2.0**-20, 2.0], [3.0, 5.0]]


@pytest.mark.parametrize(
    ("defect", "op", "values", "inputs", "made"),
    [
        ("zeros", "reduce_sum_axis1", {"rows": 2, "cols": 2}, [ROWS], [0, 0]),
        ("an earlier result", "reduce_sum_axis1", {"rows": 2, "cols": 2}, [ROWS], [6, 5]),
        ("the last element unwritten", "reduce_sum_axis1", {"rows": 2, "cols": 2}, [ROWS], [3, 0]),
        ("the last column left out", "reduce_sum_axis1", {"rows": 2, "cols": 2}, [ROWS], [1, 3]),
        ("shifted by one", "reduce_sum_axis1", {"rows": 2, "cols": 2}, [ROWS], [8, 3]),
        ("inputs with fewer bits", "reduce_sum_axis1", {"rows": 2, "cols": 2}, [FINE], [3, 8]),
        ("results with fewer bits", "reduce_sum_axis1", {"rows": 2, "cols": 2}, [FINE], [3, 8]),
        ("a copy of an input", "reduce_sum_axis1", {"rows": 2, "cols": 2}, [ROWS], None),
        ("a copy of an input", "exp", {"n": 2}, [[1.0, 2.0]], [1, 2]),
        ("a wrong parameter", "scale", {"n": 2, "c": 16.0}, [[1.0, 2.0]], [17, 34]),
        ("a wrong parameter", "exp", {"n": 2}, [[1.0, 2.0]], None),
        ("a mask or index off by one", "gather_vec", {"n": 3, "k": 3}, [[1.0, 2.0, 4.0], [0, 1, 2]], [4, 1, 2]),
        ("a mask or index off by one", "exp", {"n": 2}, [[1.0, 2.0]], None),
        ("no maximum subtracted", "softmax", {"rows": 1, "cols": 2}, [[[100.0, 0.0]]], [[np.nan, 0]]),
        ("no maximum subtracted", "exp", {"n": 2}, [[1.0, 2.0]], None),
    ],
)  # fmt: skip
def test_planted_results_are_what_their_names_say(
    defect: str, op: str, values: dict[str, Any], inputs: list[Any], made: list[Any] | None
) -> None:
    case = resized(draw_case(op, 0, "normal", "small"), values)
    assert case is not None
    given = {n: np.asarray(x, old.dtype) for (n, old), x in zip(case.inputs.items(), inputs, strict=True)}
    planted = MUTANTS[defect](Trial(replace(case, inputs=given, given=None), FORMATS["float32"], arithmetic()))
    if made is None:
        assert planted is None
    else:
        assert planted is not None
        (found,) = planted
        assert np.array_equal(found, made, equal_nan=True), found


def is_index(array: Array) -> bool:
    return array.kind in ("u32", "index") or array.name == "mask"


@pytest.mark.only(where=lambda row: any(is_index(a) for a in row.signature.inputs))
def test_a_mask_or_an_index_is_off_by_one_in_every_row_that_has_any(row: registry.Op) -> None:
    cases = (draw_case(row, seed, data, "small") for seed in range(20) for data in data_classes(row, "forward"))
    assert any(_differs(Trial(case, FORMATS["float32"], None)) for case in cases)


def _differs(trial: Trial) -> bool:
    planted = MUTANTS["a mask or index off by one"](trial) or trial.outputs  # none where an optional mask is left out
    return not all(np.array_equal(a, b, equal_nan=True) for a, b in zip(planted, trial.outputs, strict=True))
