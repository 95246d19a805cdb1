"""The laws: every constructor accepts an operation that obeys it and finds one that does not."""

from collections.abc import Callable
from itertools import product
from typing import Any

import numpy as np
import pytest

from tlspec import laws, registry
from tlspec.bounds import exact, spacing, tree
from tlspec.draw.cases import Case, draw_case, generator
from tlspec.laws import Claim, Law
from tlspec.registry import Contract, Op
from tlspec.signature import Signature

Reference = Callable[..., Any]


def toy(text: str, reference: Reference, law: Law, vjp: tuple[str, Reference] | None = None, sums: bool = False) -> Op:
    """An operation of the test's own, outside the registry."""
    bound = tree(lambda cols: cols) if sums else exact()
    sig, contract = Signature.parse(text), Contract(laws=(law,))
    row = Op(
        name="toy", family="elementwise", text=text, signature=sig, reference=reference, bound=bound, contract=contract
    )  # fmt: skip
    if vjp is not None:
        row.vjp(vjp[0])(vjp[1])
    return row


ONE, TWO = "x[*] -> out[*]", "a[*], b[*] -> out[*]"
ROWS, SWAP = "x[rows, cols] -> out[rows]", "x[rows, cols] -> out[cols, rows]"
spread = ("g -> gx", lambda g, rows, cols: np.repeat(g[:, None], cols, 1))
again = laws.involution(lambda rows, cols: {"rows": cols, "cols": rows})
CASES: list[tuple[Law, Op, Op]] = [
    (law, *(toy(text, f, law, *rest) for f in functions))
    for law, text, functions, *rest in [
        (laws.commutative("a", "b"), TWO, (lambda a, b: a + b, lambda a, b: a - b)),
        (laws.associative("a", "b"), TWO, (np.maximum, lambda a, b: a - b)),
        (laws.idempotent("x"), ONE, (np.abs, lambda x: 2 * x)),
        (laws.odd("x"), ONE, (lambda x: 2 * x, lambda x: x + 1)),
        (laws.even("x"), ONE, (np.abs, lambda x: x + 1)),
        (laws.identity("b", 1.0), TWO, (lambda a, b: a * b, lambda a, b: a + b)),
        (laws.identity("a", 1.0), TWO, (lambda a, b: a * b, lambda a, b: a)),
        (
            laws.inverse("permute", lambda rows, cols: {"dims": [cols, rows], "axes": [1, 0]}),
            SWAP,
            (lambda x: x.T, lambda x: np.roll(x.T, 1)),
        ),
        (laws.homogeneous("x"), ONE, (np.abs, lambda x: x + 1)),
        (laws.homogeneous("a", "b", degree=2), TWO, (lambda a, b: a * b, lambda a, b: a + b)),
        (again, SWAP, (lambda x: x.T, lambda x: np.roll(x.T, 1))),
        (laws.equation("f(x) = |x|", lambda f, x: [(f(), np.abs(x))]), ONE, (np.abs, lambda x: x)),
        (
            laws.equation("f(2x) = 2f(x)", lambda f, x: [(f({"x": 2 * x}), 2 * f().array)], exact=False),
            ONE,
            (np.abs, np.square),
        ),
    ]
]
#: what one of two inputs, or both scaled alike, would not show
for law, text, f, wrong in [
    (laws.linear("x"), ONE, lambda x: -3 * x, np.abs), (laws.linear("a", "b"), TWO, lambda a, b: a - 2 * b, np.hypot),
    (laws.linear("b"), TWO, lambda a, b: a * b, lambda a, b: a + b),
    (laws.homogeneous("b"), TWO, lambda a, b: a * a * b, lambda a, b: a * b * b),
]:  # fmt: skip
    CASES.append((law, toy(text, f, law), toy(text, wrong, law)))
CASES += [
    (
        laws.linear("x"),
        toy(ROWS, lambda x: x.sum(1), laws.linear("x"), sums=True),
        toy(ROWS, lambda x: x.sum(1) + 2.0**-12, laws.linear("x"), sums=True),
    ),
    (
        laws.adjoint("x"),
        toy(ROWS, lambda x: x.sum(1), laws.adjoint("x"), spread, True),
        toy(ROWS, lambda x: x.sum(1) * (1 + 2.0**-12), laws.adjoint("x"), spread, True),
    ),
]


def holds(law: Law, row: Op) -> bool:
    shares = [
        laws.check(law, laws.Spec(), draw_case(row, seed, data, "medium"))[0] for data in law.data for seed in range(5)
    ]
    return all(share <= 1 for share in shares)


@pytest.mark.parametrize(("law", "right", "wrong"), CASES, ids=[f"{law.name}-{i}" for i, (law, *_) in enumerate(CASES)])
def test_law(law: Law, right: Op, wrong: Op) -> None:
    assert holds(law, right) and not holds(law, wrong)


@pytest.mark.parametrize(("off", "right"), [(5.5, True), (6.5, False)])
def test_two_results_are_equal_within_the_sum_of_their_tolerances(off: float, right: bool) -> None:
    """Tolerances of 4 and 2, on either side of an equation."""

    class Apart(laws.Spec):
        def results(self, case: Case) -> list[np.ndarray]:
            return [np.where(case.inputs["x"] < 0, off, 0.0)]

        def tolerances(self, case: Case) -> list[np.ndarray]:
            return [np.where(case.inputs["x"] < 0, 4.0, 2.0)]

    for function in (lambda f, x: [(f(), f({"x": -x}))], lambda f, x: [(f({"x": -x}), f())]):
        law = laws.equation("f(x) = f(-x)", function, exact=False)
        case = draw_case(toy(ONE, np.abs, law), 1, "normal", "small")
        assert (laws.check(law, Apart(), case)[0] <= 1) == right


class Told(laws.Spec):
    """A world of given tolerances, call by call, in which the last result of the three is moved by a share of what is allowed."""

    def __init__(self, share: float, *tolerances: float):
        self.share, self.left, self.last = share, list(tolerances), 0.0
        self.told = tolerances

    def results(self, case: Case) -> list[np.ndarray]:
        outs = super().results(case)
        if len(self.left) > 1:
            return outs
        if case.which == "forward":  # f(2x + 3z) after f(x) and f(z)
            x, z, both = self.told
            return [outs[0] + self.share * (both + 2 * x + 3 * z)]
        of, back = self.told  # the gradient after f(x), both times numbers
        arrays = {f"g{n}": x for n, x in case.inputs.items() if x is not None}
        sizes = sum(np.abs(x).sum() for x in arrays.values())
        step = self.share * (of * np.abs(case.cotangents["g"]).sum() + back * sizes) / sizes
        return [out + step * np.sign(arrays[a.name]) for out, a in zip(outs, case.signature.outputs, strict=True)]

    def tolerances(self, case: Case) -> list[np.ndarray]:
        tolerance = self.left.pop(0)
        return [np.full(out.shape, tolerance) for out in case.real[0]]


SUM = ("g -> ga, gb", lambda g: (g, g))


@pytest.mark.parametrize("share", [0.5, 0.99, 1.01, 3.0])
@pytest.mark.parametrize(("law", "right", "tolerances"), [
    (laws.linear("x"), toy(ROWS, lambda x: x.sum(1), laws.linear("x")), (1.0, 10.0, 100.0)),
    (laws.adjoint("x"), toy(ROWS, lambda x: x.sum(1), laws.adjoint("x"), spread), (4.0, 1.0)),
    (laws.adjoint("a", "b"), toy(TWO, lambda a, b: a + b, laws.adjoint("a", "b"), SUM), (1.0, 4.0)),
], ids=["linear", "adjoint", "adjoint of two"])  # fmt: skip
def test_a_law_allows_what_the_tolerances_of_its_results_add_up_to(
    law: Law, right: Op, tolerances: tuple[float, ...], share: float
) -> None:
    case = draw_case(right, 4, "grid", "small")
    assert np.isclose(laws.check(law, Told(share, *tolerances), case)[0], share, rtol=1e-6)


def test_a_result_may_be_half_a_spacing_from_the_real_one() -> None:
    """On the reference as much less as float64 is finer, and twice that for the functions it calls."""
    for sums in (False, True):
        case = draw_case(toy(ROWS, lambda x: x.sum(1), laws.linear("x"), sums=sums), 3, "normal", "small")
        (out,), (own,) = case.real
        (found,), (fine,) = (world.tolerances(case) for world in (laws.Device("cpu", lambda c: []), laws.Spec()))
        assert np.array_equal(found, np.maximum(own, spacing(out) / 2)) and (own.any() == sums)
        assert np.array_equal(fine, (found + spacing(out)) * 2.0**-28)


def test_zeros_of_both_signs_are_told_apart_where_that_is_asked() -> None:
    law = laws.even("x")
    case = draw_case(toy(ONE, lambda x: 0 * x, law), 2, "normal", "small")
    assert [laws.check(law, laws.Spec(), case, signed_zeros=s)[0] for s in (True, False)] == [np.inf, 0]
    for tolerance in (0.0, 1.0):
        assert Claim(np.zeros(1), -np.zeros(1), tolerance).worst()[0] == 0


def test_arrays_of_other_shapes_are_never_equal() -> None:
    found = Claim(np.ones(2), np.ones((2, 1)), 1.0).worst()
    assert found == (np.inf, "shapes (2,) and (2, 1)")


@pytest.mark.parametrize("tolerance", [None, 0.0, 0.5])
def test_what_is_no_number_or_infinite_equals_itself_alone(tolerance: float | None) -> None:
    for left, right in product([np.nan, np.inf, -np.inf, 0.0], repeat=2):
        share = Claim(np.array([1.0, left]), np.array([1.0, right]), tolerance).worst()[0]
        assert (share <= 1) == np.array_equal(left, right, equal_nan=True), (left, right)


def test_every_constructor_is_tested() -> None:
    built = {law.name for law, *_ in CASES}
    assert built == {n for n in laws.__all__ if n.islower() and n != "check"}


class Spoiled(laws.Spec):
    """A world in which every result is a little off, each time by another error."""

    calls = 0

    def results(self, case: Case) -> list[np.ndarray]:
        self.calls += 1
        rng = generator("spoiled", self.calls)
        return [r + (1 + np.abs(r)) * rng.normal(0, 2.0**-4, r.shape) for r in super().results(case)]


@pytest.mark.only(where=lambda row: row.contract.laws)
def test_no_law_of_a_row_holds_whatever_the_results(row: Op) -> None:
    for law in row.contract.laws:
        cases = (draw_case(row, seed, data, "small") for seed in range(20) for data in law.data)
        with np.errstate(all="ignore"):
            assert any(laws.check(law, Spoiled(), case)[0] > 1 for case in cases), law.text


class Missing(laws.Spec):
    """A world in which one result, that of a call, is no number."""

    def __init__(self, call: int):
        self.left = call

    def results(self, case: Case) -> list[np.ndarray]:
        self.left -= 1
        return [r if self.left else np.full_like(r, np.nan) for r in super().results(case)]


@pytest.mark.parametrize(("law", "right"), [case[:2] for case in CASES], ids=lambda x: getattr(x, "name", ""))
def test_no_law_holds_where_one_side_is_no_number(law: Law, right: Op) -> None:
    shares = [laws.check(law, Missing(1 + i % 2), draw_case(right, i, law.data[0], "medium"))[0] for i in range(8)]
    assert max(shares) == np.inf


@pytest.mark.parametrize("name", ["softmax", "log_softmax", "layer_norm", "batchnorm_channel_first"])
def test_a_shift_is_by_as_much_as_the_law_says(name: str) -> None:
    """What repeats after 3 obeys f(x + 3) = f(x), what repeats after 2 does not."""
    law = next(law for law in registry.get(name).contract.laws if law.text == "f(x + 3) = f(x)")
    repeated = [toy(ONE, lambda x, period=period: np.floor(x * 64) % (64 * period), law) for period in (3, 2)]
    assert holds(law, repeated[0]) and not holds(law, repeated[1])


def test_nothing_is_claimed_of_no_elements() -> None:
    """The mean of none is NaN, which no product with a gradient of no elements is."""
    row = registry.get("reduce_mean")
    x = np.zeros((3, 0), np.float32)
    case = Case(row, "forward", 0, "normal", "small", {"dims": (3, 0)}, {"axis": 1}, {"x": x}, {})
    calls = laws.Calls(laws.Spec(), case)
    assert np.isnan(calls().array).all() and list(laws.adjoint("x").state(calls)) == []
