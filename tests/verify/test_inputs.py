"""Files of a user's arrays: what fits an operation, and what is said of what does not."""

import itertools
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.testing import assert_raises_regex

from tlrt.verify.inputs import InputError, cases_of, infer
from tlspec import registry
from tlspec.draw.cases import draw_case

A23, SIX, ONE = np.ones((2, 3)), np.ones(6), np.ones(1)
#: operations, the file's arrays, words of the refusal
REFUSED: list[tuple[str, dict[str, Any], str]] = [
    ("bmm", {"A": A23}, "bmm: B: not in the file"),
    ("bmm", {"A": A23.astype(np.float16), "B": A23}, "A: got dtype float16"),
    ("cumsum", {"x": np.zeros([1] * 9), "axis": 0, "reverse": 0}, "dims: got 9 axes, expected at most 8"),
    (
        "broadcast_vec_to_rows",
        {"vec": ONE, "rows": 2**32},
        r"rows: got 4294967296, expected an integer in \[0, 2\^32\)",
    ),
    (
        "broadcast_vec_to_rows",
        {"vec": np.ones(2), "rows": 2**31},
        r"has 4294967296 elements, expected fewer than 2\^32",
    ),
    ("bmm,matmul", {"A": A23}, "which fit no operation:\n  (bmm|matmul): "),
    ("add,matmul", {"a": ONE, "b": ONE, "A": A23}, "matmul: B: not in the file"),
    ("matmul", {"A": np.ones((2**32, 0)), "B": np.ones((0, 1))}, r"matmul: m: got 4294967296, expected below 2\^32"),
    ("conv", {"x": ONE, "w": ONE, "b": ONE, "stride": [1], "padding": [0]}, r"conv: x: got shape \(1,\), expected \["),
    ("rand_uniform", {"key": 1}, "rand_uniform: n: not given by a shape"),
    (
        "broadcast_to",
        {"x": ONE, "in_dims": [1] * 9, "out_dims": [1] * 9, "axis_map": [0] * 9},
        "got 9 axes, expected at",
    ),
    ("scale", {"x": ONE}, "scale: c: not in the file, and it has no default"),
    ("scale", {"x": ONE, "c": [1.0, 2.0]}, "c: got float64 of shape \\(2,\\), expected one number"),
    ("add", {"a": ONE, "b": A23}, "add: b: got 6 elements, expected 1, as the other operands"),
    ("add", {"a": ONE, "b": ONE, "g": A23}, "add: g: got shape \\(2, 3\\), expected \\(1,\\)"),
    ("add", {"a": ONE.astype(np.longdouble), "b": ONE}, "a: got dtype float128"),
    ("add", {"a": ONE.astype(complex), "b": ONE}, "a: got dtype complex128"),
    ("matmul", {"A": A23, "B": np.ones((4, 5))}, "matmul: B: got shape \\(4, 5\\): n = 4, expected n = 3"),
    ("matmul", {"A": A23, "B": SIX}, "matmul: B: got shape \\(6,\\), expected 2 axes"),
    ("matmul", {"A": A23, "B": SIX, "m": 2, "n": 4, "p": 2}, "matmul: A: got shape \\(2, 3\\): n = 3"),
    ("matmul", {"A": SIX, "B": SIX, "m": 2, "n": 3, "p": 3}, "matmul: B: got shape \\(6,\\), expected \\["),
    ("gather_vec", {"vec": ONE, "indices": [-1]}, "indices: expected integers in \\[0, 2\\^32\\)"),
    (
        "avg_pool",
        {"x": np.ones((1, 1, 2)), "kernel": [[1.5]], "stride": [1], "padding": [0]},
        "expected a list of integers",
    ),
    ("avg_pool", {"x": np.ones((1, 1, 2)), "kernel": [5], "stride": [1], "padding": [0]}, "avg_pool: .*: expected "),
    (
        "sgd_step",
        {"ps": A23, "gs": A23, "lengths": [2, 4], "count": 3},
        "count: got 3, expected 2, as there are lengths",
    ),
    ("sgd_step", {"ps": SIX, "gs": ONE}, "sgd_step: gs: got shape \\(1,\\), expected"),
]


def read(path: Path, operations: str, arrays: dict[str, Any]) -> list[Any]:
    """The cases of operations asked for by name."""
    np.savez(path, **{name: np.asarray(array) for name, array in arrays.items()})
    return list(cases_of(path, registry.ops(operations), named=True))


@pytest.mark.parametrize(("operations", "arrays", "said"), REFUSED)
def test_what_does_not_fit_is_named(tmp_path: Path, operations: str, arrays: dict[str, Any], said: str) -> None:
    assert_raises_regex(InputError, said, read, tmp_path / "a.npz", operations, arrays)


def test_what_fits(tmp_path: Path) -> None:
    """Flat arrays with their dimensions in the file, and lists cut where the file says."""
    ((_, _, (case,)), _) = read(tmp_path / "a.npz", "matmul", {"A": SIX, "B": np.ones(3), "m": 2, "n": 3, "p": 1})
    assert case.inputs["A"].shape == (2, 3) and case.inputs["B"].shape == (3, 1)
    ((_, _, (case,)),) = read(tmp_path / "b.npz", "sgd_step", {"ps": SIX, "gs": SIX, "lengths": [2, 4], "count": 2})
    assert case.values["lengths"] == [2, 4]
    ((_, _, (case,)),) = read(tmp_path / "c.npz", "sgd_step", {"ps": SIX, "gs": SIX})
    assert case.values["lengths"] == [6]
    ((_, _, (case,)), _) = read(tmp_path / "e.npz", "cumsum", {"x": SIX, "dims": [2, 3], "axis": 1, "reverse": 0})
    assert case.inputs["x"].shape == (2, 3)
    g = np.arange(6.0)
    ((_, _, (case,)), (_, _, (vjp,))) = read(tmp_path / "d.npz", "add", {"a": SIX > 0, "b": SIX, "g": g})
    assert np.array_equal(case.arguments["a"], SIX) and np.array_equal(vjp.arguments["g"], g)


def test_numbers_are_rounded_once(tmp_path: Path) -> None:
    ((_, _, (case,)), _) = read(tmp_path / "a.npz", "scale", {"x": ONE, "c": 0.1})
    ((_, _, (default,)), _) = read(tmp_path / "b.npz", "leaky_relu", {"x": ONE})
    assert (case.values["c"], default.values["slope"]) == (float(np.float32(0.1)), float(np.float32(0.01)))


def test_a_file_for_some_of_all_operations(tmp_path: Path) -> None:
    """What it does not fit is left out, unless it was asked for by name; a cotangent that it lacks is drawn by the seed."""
    np.savez(tmp_path / "a.npz", a=SIX, b=SIX)
    found = [[*cases_of(tmp_path / "a.npz", registry.ops("add,matmul"), named=False, seed=seed)] for seed in (0, 1, 1)]
    assert [(op.name, which) for op, which, _ in found[0]] == [("add", "forward"), ("add", "vjp")]
    zero, one, again = (cases[1][2][0].arguments["g"].tobytes() for cases in found)
    assert zero != one == again
    np.savez(tmp_path / "b.npz", A=A23)
    with pytest.raises(InputError, match=r"fit no operation:\n  matmul: B: not in the file(.|\n)*reduce_sum: "):
        list(cases_of(tmp_path / "b.npz", registry.ops("reduce_sum,matmul"), named=False))


@pytest.mark.parametrize(
    "op", [r for r in registry.ops() if any(len(a.dims) > 1 for a in r.signature.inputs)], ids=lambda r: r.name
)
def test_an_array_is_read_in_its_own_shape_or_refused(op: registry.Op) -> None:
    """Of a drawn case, with the axes of each array in each order."""
    case = draw_case(op, 3, "normal", "small")
    arrays = {n: np.asarray(x) for n, x in {**case.values, **case.inputs}.items() if x is not None}
    for name in case.inputs.keys() & arrays:
        x = arrays[name]
        for order in itertools.permutations(range(x.ndim)):
            y = x.transpose(order)
            try:
                found = infer(op, arrays | {name: y})[1][name]
            except InputError:
                assert y.shape != x.shape
            else:
                assert found.shape == y.shape
