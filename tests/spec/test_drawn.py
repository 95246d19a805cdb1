"""Drawn cases: reproducible, within their budget, admissible, with the edges they promise; every row's draw and reference."""

import subprocess
import sys
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest
from numpy.testing import assert_raises_regex

from tests import ROOT
from tlrt.verify.verifier import directions
from tlspec import registry
from tlspec.bounds import COLUMN_CHAINS, COLUMN_CHUNK, FREE, Bound, chained, custom, exact, moved, ordered, tree, ulp
from tlspec.compare import compare
from tlspec.draw import cases as drawn
from tlspec.draw.cases import Case, Draw, build_case, data_classes, draw_case, draw_cases, fill, generator
from tlspec.draw.data import PART
from tlspec.registry import Check, Contract, Op
from tlspec.signature import Signature


def fingerprint(case: Case) -> list[object]:
    arrays = [
        None if x is None else (x.shape, x.dtype.str, x.tobytes())
        for x in [*case.inputs.values(), *case.cotangents.values()]
    ]
    return [case.dims, case.params, arrays]


def test_same_four_give_the_same_case(entry: tuple[Op, str]) -> None:
    row, which = entry
    for data in data_classes(row, which):
        one, two = (draw_case(row, 5, data, "small", which) for _ in range(2))
        assert fingerprint(one) == fingerprint(two)
        assert fingerprint(draw_case(row, 6, data, "small", which)) != fingerprint(one) or not one.values


def test_another_process_draws_the_same() -> None:
    code = (
        "from tlspec.draw.cases import *; from tlspec import registry; import hashlib; h = hashlib.sha256()\n"
        "for r in registry.ops():\n"
        "    c = draw_case(r, 3, 'normal', 'small')\n"
        "    h.update(repr((c.dims, c.params)).encode())\n"
        "    [h.update(x.tobytes()) for x in c.inputs.values() if x is not None]\n"
        "print(h.hexdigest())"
    )
    seen = set()
    for salt in ("1", "2"):
        run = subprocess.run(
            [sys.executable, "-c", code], cwd=ROOT, env={"PYTHONHASHSEED": salt, "PATH": ""}, capture_output=True,
            text=True, check=True,
        )  # fmt: skip
        seen.add(run.stdout)
    assert len(seen) == 1


@pytest.mark.parametrize("size", ["small", "medium", "edges"])  # verify draws a large case of each entry point
def test_cases_are_admissible(row: Op, size: str) -> None:
    for case in (c for seed in range(8) for c in draw_cases(row, seed, "normal", size, directions(row))):
        assert drawn.refused_by(row, case.values) is None
        assert sum(x.size for x in case.inputs.values() if x is not None) <= drawn.budget_of(row, size)
        for a in case.signature.inputs:
            x = case.arguments[a.name]
            assert a.optional if x is None else x.shape == case.shape(a)
            if x is not None:
                assert x.dtype == {"u32": np.uint32, "index": np.uint32, "f64": np.float64}.get(a.kind, np.float32)


def test_forward_and_vjp_share_their_inputs(entry: tuple[Op, str]) -> None:
    row, which = entry
    for data in ("normal", "special"):
        one, two = draw_case(row, 9, data, "small"), draw_case(row, 9, data, "small", which)
        assert [x is None or x.tobytes() for x in one.inputs.values()] == [
            x is None or x.tobytes() for x in two.inputs.values()
        ]


def test_references_fit_their_signatures_and_bounds(entry: tuple[Op, str]) -> None:
    """Shapes (Case.expected checks them), tolerances of the same shapes, never negative or NaN where the result is a number;
    and the correctly rounded result is within every bound."""
    row, which = entry
    for data in data_classes(row, which):
        for seed in range(4):
            case = draw_case(row, seed, data, "small", which)
            expected = case.expected
            for a, out, tol, bits in zip(
                case.signature.outputs, expected.outputs, expected.tolerances, expected.bits, strict=True
            ):
                assert out.shape == tol.shape
                assert np.all(tol[np.isfinite(out)] >= 0), f"{data} {seed}: a tolerance is negative or NaN"
                with np.errstate(all="ignore"):
                    rounded = out.astype(np.float64 if a.host else np.float32)
                if bits is not None:  # widening quiets signalling NaNs
                    nan = np.isnan(out) & (bits != FREE)
                    assert np.all(nan | (bits == FREE) | (rounded.view(np.uint32) == bits))
                    rounded.view(np.uint32)[nan] = bits[nan]
                found = compare(rounded, out, tol, signed_zeros=expected.signed_zeros, bits=bits)
                assert found.ok, found.explain(a.name)


@pytest.mark.only(where=lambda row, which: row.bound_of(which).in_float32)
def test_ordered_references_add_in_order(entry: tuple[Op, str]) -> None:
    """The float32 reference is within the worst case of the float64 one, and where nothing rounds it is the same."""
    row, which = entry
    for data in ("normal", "uniform", "integers"):
        for seed in range(5):
            case = draw_case(row, seed, data, "medium", which)
            for exactly, real, tol in zip(case.expected.outputs, *case.real, strict=True):
                assert np.all(np.abs(exactly - real) <= tol)
                if data == "integers":
                    assert np.array_equal(exactly, real)


def test_ordered_references_add_hits_as_the_column_tree_does() -> None:
    """Hits of two elements in turns: their sums are those of columns, in float32, added to the element once."""
    row = registry.get("scatter_add")
    base, values, indices = (a.name for a in row.signature.inputs)
    k = 2 * 20_000
    given = {
        base: np.ones(2, np.float32), values: generator("tree").standard_normal(k, np.float32),
        indices: np.tile(np.arange(2, dtype=np.uint32), k // 2),
    }  # fmt: skip
    case = build_case(row, {"n": 2, "k": k}, given, generator("tree"))
    rows = given[values].reshape(-1, 2)
    while len(rows) > 1:
        padded = np.zeros((-(-len(rows) // COLUMN_CHUNK) * COLUMN_CHUNK, 2), np.float32)
        padded[: len(rows)] = rows  # behind the end are zeros, which change no sum
        chains = np.cumsum(padded.reshape(-1, COLUMN_CHUNK // COLUMN_CHAINS, COLUMN_CHAINS, 2), 1, np.float32)[:, -1]
        rows = (chains[:, 0] + chains[:, 1]) + (chains[:, 2] + chains[:, 3])
    assert np.array_equal(case.expected.outputs[0], np.float32(1) + rows[0])


def test_empty_and_unit_cases_appear() -> None:
    def smallest(case: Case) -> int:
        """The size of the smallest input that has a choice, or of the smallest output where there are no inputs."""
        free = [a for a in case.op.signature.inputs if not a.dims or not all(d.isdigit() for d in a.dims)]
        inputs = [x.size for a in free if (x := case.inputs[a.name]) is not None]
        return min(inputs or [int(np.prod(case.shape(o), dtype=np.int64)) for o in case.signature.outputs])

    for row in registry.ops():
        promised = row.drawing.draw is None and not row.contract.checks
        sizes: set[int] = set()
        for seed in range(150):
            sizes.add(smallest(draw_case(row, seed, "normal", "small")))
            if max(sizes) > 1 and (0 in sizes or not promised):
                break
        else:
            pytest.fail(f"{row.name}: no empty case among 150, or no large one")


def test_a_dimension_above_65535_appears() -> None:
    row = next(r for r in registry.ops() if r.signature.elementwise)
    assert any(
        x.size > 65535 for s in range(20) for x in draw_case(row, s, "normal", "large").inputs.values() if x is not None
    )


def test_dims_are_distinct() -> None:
    d = Draw(generator("test"), 2**16)
    assert len({d.dim(2) for _ in range(4)}) == 4


def test_indices() -> None:
    d = Draw(generator("indices"), 2**16)
    inside = d.indices(2000, 31)
    assert inside.dtype == np.uint32 and inside.max() == 30
    assert inside.min() == 0 and max(Counter(inside.tolist()).values()) > 100
    assert {31, 2**32 - 1} <= set(d.indices(2000, 31, outside=True).tolist())


def test_data_classes() -> None:
    n = (20000,)
    wide = fill(generator("w"), n, "wide")
    assert np.isfinite(wide).all() and len(np.unique(np.frexp(wide)[1])) > 270
    assert (np.abs(wide[wide != 0]) < 2.0**-126).any()
    special = fill(generator("s"), n, "special")
    assert np.isnan(special).any() and np.isposinf(special).any()
    assert np.isneginf(special).any() and (np.signbit(special) & (special == 0)).any()
    tame = fill(generator("s"), n, "special", extremes=False)
    assert np.nanmax(np.abs(tame[np.isfinite(tame)])) < 10
    whole = fill(generator("i"), n, "integers")
    assert {*whole.tolist()} == {*range(-8, 9)}
    grid = fill(generator("g"), n, "grid") * 64
    assert {*grid.tolist()} == {*range(-128, 129)}
    uniform = fill(generator("u"), n, "uniform")
    assert uniform.min() >= 0 and uniform.max() < 1
    for name in ("normal", "integers"):  # drawn by threads: the same again, no part twice, and another array after it
        once, again = ([fill(rng, (2 * PART + 1,), name) for _ in range(2)] for rng in (generator("p"), generator("p")))
        assert np.array_equal(once, again)
        parts = [x[i : i + PART] for x in once for i in (0, PART)]
        assert np.abs(np.corrcoef(parts) - np.eye(4)).max() < 0.01
    for _ in range(20):
        structured = fill(generator("t", _), (40, 50), "structured")
        assert np.array_equal(structured * 64, np.rint(structured * 64))
    assert_raises_regex(ValueError, "no data class", fill, generator(), n, "nonsense")
    assert_raises_regex(ValueError, "no data class 'nonsense'; there are normal, ", draw_case, "add", 1, "nonsense")
    assert_raises_regex(ValueError, "no size 'huge' of add; there are small, ", draw_case, "add", 1, None, "huge")


def test_integer_mode_is_exact() -> None:
    """Sums of the integer class stay below 2^24 in every order, and their tolerance is zero."""
    for row in registry.ops():
        if "integers" in data_classes(row):
            case = draw_case(row, 1, "integers", "medium")
            for out, tol in zip(case.expected.outputs, case.expected.tolerances, strict=True):
                if np.array_equal(out, np.rint(out)):
                    assert not tol.any() and np.abs(out).max(initial=0) < 2**24
                break


@pytest.mark.parametrize("data", ["normal", "integers", "special"])
@pytest.mark.parametrize("name", ["conv", "mul", "softmax", "gather_rows", "adam_step"])
def test_directions_drawn_together_are_those_drawn_alone(name: str, data: str) -> None:
    row = registry.get(name)
    which = ["forward", "vjp"] if row.vjp_rule is not None else ["forward"]
    for seed in range(6):
        for case in draw_cases(row, seed, data, "edges", which):
            alone = draw_case(row, seed, data, "edges", case.which)
            assert case.line == alone.line and case.values == alone.values and case.which == which[case.which == "vjp"]
            for one, two in zip(case.arguments.items(), alone.arguments.items(), strict=True):
                assert one[0] == two[0] and (one[1] is two[1] is None or one[1].tobytes() == two[1].tobytes())  # type: ignore[union-attr]


def own(text: str, bound: Bound, reference: Callable[..., Any] | None = None, checks: Sequence[Check] = ()) -> Op:
    """A row of the test's own, which returns its first input and the sums of its rows unless it says another reference."""
    sig, contract = Signature.parse(text), Contract(checks=tuple(checks))
    reference = reference or (lambda x, **values: (x, x.sum(axis=1)))
    row = {"text": text, "signature": sig, "reference": reference, "bound": bound, "contract": contract}
    return Op(name="own", family="reduce", **row)


PAIR = "x[rows, cols] -> same[rows, cols], sums[rows]"
EACH = {
    "exact": exact(), "moved": moved(), "ulp": ulp((0, 2)), "tree": tree(lambda cols: (0, cols), copies=True),
    "ordered": ordered(lambda cols: (0, cols)), "chain": chained(tree(lambda cols: (0, cols))),
    "custom": custom(lambda x: (x * 0, 1 + x.sum(axis=1) ** 2), "test"),
}  # fmt: skip


@pytest.mark.every_choice
@pytest.mark.parametrize("kind", EACH)
def test_a_case_expects_what_its_bound_says(kind: str) -> None:
    """Of every output: the result alone of whole numbers that float32 holds, the bits and the signs of zeros that are fixed."""
    x = np.float32([[0.5, -0.0, 2.0], [-1.0, 3.0, 2**24]])
    x.view(np.uint32)[0, 1] = 0x80000000
    whole, big = np.float32([[1, -0.0, 2], [-4, 3, 2**24 - 1]]), np.float32([[1, 2, 3], [-(2**23), -(2**23), 0]])
    row = own(PAIR, EACH[kind], lambda x: (x, np.add.accumulate(x, axis=1)[:, -1]))
    for data, given in (("normal", x), ("integers", whole), ("integers", big), ("normal", whole), ("integers", x)):
        case = Case(row, "forward", 0, data, "", {"rows": 2, "cols": 3}, {}, {"x": given})
        assert case.bound is EACH[kind] and case.name == "own" and case.reference is row.reference
        wide = {"x": given.astype(np.float64)}
        outs = row.reference(**wide)
        sums = outs[1].astype(np.float32).astype(np.float64) if kind == "ordered" else outs[1]
        real = EACH[kind].tolerance(row.reference, outs, wide, case.values)
        small = data == "integers" and given is whole and kind not in ("exact", "moved", "ordered")
        tolerances = [np.zeros(o.shape) for o in outs] if kind == "ordered" or small else real
        assert np.array_equal(case.real[0][1], outs[1]) and all(map(np.array_equal, case.real[1], real))
        expected = case.expected
        assert [o.dtype for o in expected.outputs] == [np.float64] * 2
        assert all(map(np.array_equal, expected.outputs, (wide["x"], sums)))
        assert all(map(np.array_equal, expected.tolerances, tolerances)) and len(expected.tolerances) == 2
        assert expected.signed_zeros == (kind in ("exact", "moved", "ordered", "ulp") and not small)
        fixed = kind in ("moved", "tree", "ordered")
        assert len(expected.bits) == 2 and [b is not None for b in expected.bits] == [fixed, fixed]
        if fixed:
            patterns = given.view(np.uint32).astype(np.int64)
            assert np.array_equal(expected.bits[0], patterns) and ((expected.bits[1] == FREE).all() or kind == "moved")
        assert case.expected_on("cuda") is case.expected_on("cpu") is expected


@pytest.mark.every_choice
def test_what_may_overflow_on_cuda_is_expected_elsewhere() -> None:
    """A finite bound on the intermediates that reaches the threshold frees its elements on CUDA alone, on any of its devices."""
    peaks = lambda x, cols: (np.abs(x) * 2.0**127, np.inf * cols)
    peak = custom(lambda x: (x * 0, x.sum(axis=1) * 0), "test", cuda_peak=peaks)
    case = Case(own(PAIR, peak), "forward", 0, "normal", "", {"rows": 1, "cols": 2}, {}, {"x": np.float32([[1, 3]])})
    for device, free in (("cpu", False), ("cuda", True), ("cuda:1", True)):
        found = case.expected_on(device)
        assert np.isinf(found.tolerances[0]).tolist() == [[False, free]] and found.tolerances[1].tolist() == [0]
        assert found.outputs is case.expected.outputs and not found.signed_zeros


@pytest.mark.every_choice
def test_a_reference_that_is_not_what_its_row_says_is_refused() -> None:
    """Of other shapes, or of other types where its additions are the result's."""

    def expected(bound: Bound, wrong: Callable[..., Any]) -> Any:
        x = np.eye(2, dtype=np.float32)
        return Case(own(PAIR, bound, wrong), "forward", 0, "normal", "", {"rows": 2, "cols": 2}, {}, {"x": x}).expected

    for wrong in (lambda x: (x, x.sum(axis=0, keepdims=True)), lambda x: (x[:1], x.sum(axis=1)), lambda x: x):
        for bound in (exact(), ordered(lambda: (0, 1))):
            assert_raises_regex(ValueError, "own: the reference returned shapes", expected, bound, wrong)
    double = lambda x: (x, x.astype(float).sum(axis=1))
    assert_raises_regex(TypeError, "own: the reference must keep float32", expected, ordered(lambda: (0, 1)), double)


@pytest.mark.every_choice
def test_checks_about_arrays_are_passed_over_where_these_are_absent() -> None:
    """The first that fails refuses, and of an array alone one that is given."""
    checks = (
        Check("m", "not given(m) or rows > 1", "SHAPE"),
        Check("h", "all_below(h, cols)", "INDEX"),
        Check("c", "c > 0", "ARGUMENT"),
    )
    row = own(
        "x[rows, cols], m?[rows], h: u32[rows], i: index[rows]; c: float -> same[rows, cols]", exact(), checks=checks
    )
    values, m, h = {"rows": 1, "cols": 2}, np.zeros(1), np.zeros(1, np.uint32)
    cases: list[tuple[dict[str, Any], float, str]] = [
        ({}, 1, ""), ({}, -1, "c"), ({"m": None}, 1, ""), ({"m": m}, -1, "m"), ({"h": h + 2}, -1, "h"), ({"h": h + 1}, 1, ""),
        ({"h": h, "m": None}, -1, "c"), ({"h": h + 2, "m": m}, 1, "m"),
    ]  # fmt: skip
    for given, c, blamed in cases:
        found = drawn.refused_by(row, {**values, **given, "c": c})
        assert (found.name if found else "") == blamed, given


@pytest.mark.every_choice
def test_a_case_without_elements_is_empty() -> None:
    """Where a length is 0, alone or in a list."""
    empty: list[dict[str, Any]] = [{"n": 0}, {"n": 3, "d": [2, 0]}, {"d": (0,)}]
    for dims in (*empty, {"n": 1}, {"d": [1, 10]}, {"d": []}, {}, {"n": 10, "d": (20,)}):
        case = Case(own(PAIR, exact()), "forward", 0, "normal", "", dims, {}, {})
        assert drawn.is_empty(case) == (dims in empty), dims
