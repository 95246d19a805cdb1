"""The comparator: NaN, infinities, signed zeros, overflow, exactness."""

import numpy as np
import pytest

from tlspec.bounds import FREE, OVERFLOW, spacing
from tlspec.case import Expected
from tlspec.compare import BLOCK, Comparison, _judge, _near, compare, compare_outputs, joined, reproduction, same_bits
from tlspec.draw.cases import draw_case
from tlspec.formats import FORMATS, Format

F32_MAX = float(np.finfo(np.float32).max)


def one(got: float, ref: float, tol: float = 0.0, **options: bool) -> bool:
    with np.errstate(over="ignore"):
        return compare(np.array([got], np.float32), np.array([ref]), np.array([tol]), **options).ok


@pytest.mark.parametrize(
    ("got", "ref", "tol", "ok"),
    [
        (1.0, 1.0, 0.0, True),
        (1.0, 1 + 2.0**-25, 0.0, True),  # rounds to 1
        (1 + 2.0**-23, 1.0, 0.0, False),
        (1 + 2.0**-23, 1.0, 2.0**-23, True),
        (1 + 2.0**-22, 1.0, 2.0**-23, False),
        (np.nan, np.nan, 0.0, True),
        (-np.nan, np.nan, 0.0, True),
        (np.nan, 1.0, 1e308, False),
        (np.nan, np.inf, 1e308, False),
        (np.nan, -np.inf, 0.0, False),
        (np.inf, np.nan, 1e308, False),
        (1.0, np.nan, 1e308, False),
        (np.nan, 1.0, np.inf, True),  # not covered: anything passes
        (1.0, np.nan, np.inf, True),
        (-np.inf, np.inf, np.inf, True),
        (np.inf, np.inf, 0.0, True),
        (-np.inf, np.inf, 1e308, False),
        (F32_MAX, np.inf, 1e308, False),
        (np.inf, 1e39, 0.0, True),  # beyond the range
        (F32_MAX, 1e39, 0.0, False),
        (np.inf, F32_MAX, 0.0, False),
        (np.inf, F32_MAX, float(spacing(F32_MAX)), True),  # within a spacing of the threshold
        (F32_MAX, OVERFLOW, 2.0**103, True),  # and from above
        (-np.inf, F32_MAX, float(spacing(F32_MAX)), False),
        (0.0, 2.0**-150, 0.0, True),  # half the smallest subnormal rounds to even
        (2.0**-149, 2.0**-150, 0.0, False),
        (2.0**-149, 1.5 * 2.0**-150, 0.0, True),
        (1.0, 1.0, np.nan, True),
        (1.5, 1.0, np.nan, False),
        (np.inf, 1.0, 1e308, True),
    ],
)
def test_one_element(got: float, ref: float, tol: float, ok: bool) -> None:
    assert one(got, ref, tol) is ok


@pytest.mark.parametrize("f", [f for f in FORMATS.values() if f.overflow < np.inf], ids=lambda f: f.name)
@pytest.mark.parametrize("sign", [1, -1])
def test_a_result_beyond_its_format_passes_where_the_tolerance_reaches_that_far(f: Format, sign: int) -> None:
    ref, beyond = sign * f.largest / 2, sign * np.inf if f.infinite else np.nan
    for tol, ok in ((f.overflow - f.largest / 2, True), (f.overflow - f.largest / 2 - f.spacing(f.largest), False)):
        assert compare(np.array([beyond]), np.array([ref]), np.array([tol]), format=f).ok == ok


@pytest.mark.parametrize("f", [f for f in FORMATS.values() if f.overflow < np.inf], ids=lambda f: f.name)
def test_a_result_beyond_its_format_has_the_sign_of_the_reference(f: Format) -> None:
    for sign in (1, -1):
        ref = np.array([sign * 4.0 * f.largest])
        wrong = [-sign * f.largest, -sign * np.inf, 0.0, sign * f.largest / 2]
        assert not any(compare(np.array([x]), ref, np.array([1.0]), format=f).ok for x in wrong)
        assert compare(np.array([sign * np.inf if f.infinite else np.nan]), ref, np.array([1.0]), format=f).ok


def test_signed_zeros() -> None:
    assert one(-0.0, -0.0) and not one(0.0, -0.0)
    assert not one(0.0, -(2.0**-160))  # rounds to -0
    assert one(0.0, -0.0, signed_zeros=False)
    assert one(0.0, -0.0, 2.0**-149)  # within a tolerance the sign of zero is free


def test_a_comparison_says_what_it_saw() -> None:
    """Shares and tolerances are floats and counts are integers, as evidence prints them."""
    none, two = np.zeros(0, np.float32), np.ones(2, np.float32)
    for same, count in ((none, 0), (two, 2)):
        found = same_bits(same, same)
        assert repr(found) == repr(Comparison(True, 0.0, 0.0, 0, count)) and isinstance(found.violations, int)
    assert repr(compare(none, none, none)) == repr(Comparison(True, 0.0, 0.0, 0, 0))


def test_fixed_bits() -> None:
    patterns = np.array([0x7FC00001, 0x80000000, 0x3F800000, 0x3F800000], np.uint32)
    got = patterns.view(np.float32)
    bits = patterns.astype(np.int64)
    ref, tol = np.array([np.nan, -0.0, 1.0, 1.0]), np.full(4, 0.5)
    assert compare(got, ref, tol, bits=bits).ok
    for i in range(4):
        changed = patterns.copy()
        changed[i] ^= 2 if i != 1 else 0x80000000
        found = compare(changed.view(np.float32), ref, tol, bits=bits)
        assert (found.ok, found.violations, found.index) == (False, 1, (i,))
        assert f"bits {changed[i]:#010x}, expected {patterns[i]:#010x}" in found.explain()
        free = np.where(np.arange(4) == i, FREE, bits)
        assert compare(changed.view(np.float32), ref, tol, bits=free).ok


def test_what_is_not_covered_does_not_count() -> None:
    found = compare(np.array([np.nan, 1.0], np.float32), np.array([1.0, 1.0]), np.array([np.inf, 1.0]))
    assert (found.ok, found.share, found.ulp) == (True, 0.0, 0.0)


def test_double_output() -> None:
    got = np.array([1.0 + 2.0**-52])
    assert not compare(got, np.array([1.0]), np.zeros(1)).ok
    assert compare(got, np.array([1.0]), np.array([2.0**-52])).ok


def test_what_is_reported() -> None:
    ref = np.zeros((2, 3)) + 1
    got = ref.astype(np.float32)
    got[1, 2] += 3 * 2.0**-23
    found = compare(got, ref, np.full(ref.shape, 2.0**-23))
    assert (found.ok, found.share, found.ulp, found.violations, found.index) == (False, 3.0, 3.0, 1, (1, 2))
    assert "out[1, 2]: got 1.000000357" in found.explain() and "1 of 6" in found.explain()


def test_shapes_must_agree() -> None:
    assert not compare(np.zeros(3, np.float32), np.zeros((3, 1)), np.zeros((3, 1))).ok
    half = compare(np.ones(3, np.float16), np.ones(3), np.ones(3))
    assert not half.ok and half.share == np.inf and half.explain() == "out: got float16, expected float32"
    assert compare(np.zeros((0, 2), np.float32), np.zeros((0, 2)), np.zeros((0, 2))).ok


def test_same_bits() -> None:
    """As the patterns say, of both types: any NaN equals any NaN, and the first difference is named."""
    rng = np.random.default_rng(3)
    for dtype in (np.float32, np.float64):
        pool = np.array([0.0, -0.0, 1.0, np.nan, -np.nan, np.inf], dtype)
        for _ in range(50):
            a = rng.choice(pool, (3, 4))
            b = np.where(rng.random(a.shape) < 0.7, a, rng.choice(pool, a.shape)).T.copy().T  # not contiguous
            both = np.isnan(a) & np.isnan(b)
            differ = [i for i in np.ndindex(*a.shape) if a[i].tobytes() != b[i].tobytes() and not both[i]]
            found = same_bits(a, b)
            assert (found.ok, found.violations, found.index) == (not differ, len(differ), differ[0] if differ else None)
    assert not same_bits(a, a[:2]).ok


def test_a_wrong_part_stands_for_the_whole() -> None:
    near, wrong = Comparison(True, 1.0, 2.0, 0, 5, (4,)), Comparison(False, 1.0, 0.0, 1, 3, (0,), note="bits")
    for parts in ((near, wrong), (wrong, near), (near, wrong, near)):
        found = joined(parts)
        count = sum(part.count for part in parts)
        assert (found.ok, found.share, found.ulp, found.index, found.note) == (False, 1, 2, (0,), "bits")
        assert (found.violations, found.count) == (1, count)


def test_a_call_is_compared_output_by_output() -> None:
    """With the signs of zeros and the bits that are expected; what is not wanted is left out."""
    zero, bits = np.zeros(1), np.array([0x7FC00002])
    nan = np.array([0x7FC00001], np.uint32).view(np.float32)
    for signed in (False, True):
        expected = Expected((zero, zero, zero + np.nan), (zero, zero, zero), signed, (None, None, bits))
        first, second, third = compare_outputs(expected, [np.float32([-0.0]), None, nan])
        assert first is not None and first.ok != signed and second is None and third is not None and not third.ok


def passes(y: np.floating, r: float, t: float, signed_zeros: bool, bits: int, f: Format) -> bool:
    """The definition of the module's docstring, of one element."""
    if bits not in (FREE, int(y.view(np.uint32)) if bits != FREE else FREE):
        return False
    nearest = np.float64(f.round(r)).astype(y.dtype)
    if t == np.inf or (np.isnan(nearest) and np.isnan(y)):
        return True
    if y == nearest and not (signed_zeros and y == 0 == t and np.signbit(y) != np.signbit(nearest)):
        return True
    if not f.infinite and abs(r) + t >= f.overflow and (np.isnan(y) or y == np.copysign(f.largest, r)):
        return True
    if not np.isfinite(r):
        return False
    if np.isinf(y):
        return f.name != "float64" and t > 0 and abs(np.copysign(f.overflow, float(y)) - r) <= t
    return t > 0 and abs(float(y) - r) <= t


@pytest.mark.parametrize("name", FORMATS)
@pytest.mark.filterwarnings("ignore::RuntimeWarning")
def test_arrays_are_judged_as_their_elements_are(name: str) -> None:
    """Of any mixture of numbers and tolerances, whatever is done in few passes."""
    f, rng = FORMATS[name], np.random.default_rng(10)
    dtype = np.float32 if name == "float32" else np.float64
    odd = [0.0, -0.0, 1.0, np.nan, np.inf, -np.inf, 1.5, f.tiny, -f.tiny / 2, -f.unit / 3]
    odd += [f.largest, -f.largest, f.overflow]
    for kind in range(120):
        size, few = int(rng.integers(1, 12)), kind % 3 == 0
        ref = rng.choice(rng.standard_normal(40) if few else [*odd, *rng.standard_normal(9)], size)
        near = f.round(ref)
        step = np.where(np.isfinite(near), f.spacing(ref), 0.0)
        wide = (
            np.array([0.0, 0.5, 3.0][kind // 3 % 3]) if few else rng.choice([0.0, 0.5, 1.0, 3.0, np.inf, 2e307], size)
        )
        tol = wide * np.fmax(step, f.tiny)
        got = (near + step * rng.choice([0, 0, 0, 1, -1, 3], size) * (rng.random() < 0.7)).astype(dtype)
        got = np.where(rng.random(size) < 0.2 * (kind % 2), rng.choice(odd, size), got).astype(dtype)
        bits = np.full(size, FREE)
        if dtype == np.float32 and kind % 5 == 0:
            own = got.view(np.uint32).astype(np.int64) ^ (rng.random(size) < 0.1)
            bits = np.where(rng.random(size) < 0.5, FREE, own)
        for signed in (False, True):
            found = compare(got, ref, tol, signed_zeros=signed, bits=bits if (bits != FREE).any() else None, format=f)
            good = [passes(*x, signed, b, f) for *x, b in zip(got, ref, tol, bits.tolist(), strict=True)]
            assert (found.ok, found.violations) == (all(good), good.count(False)), (got, ref, tol, bits, good)
            assert found.ok or not good[found.index[0]]  # type: ignore[index]


@pytest.mark.parametrize(
    ("got", "ref", "tol", "share"),
    [
        (1 + 2.0**-23, 1.0, 2.0**-22, 0.5),
        (1 + 2.0**-23, 1.0, 2.0**-24, 2.0),
        (0.0, 2.0**-150, 2.0**-160, 1.0),  # the nearest float32, if beyond the tolerance
        (1.0, 1.0, 0.0, 0.0),
        (2.0, 1.0, 0.0, np.inf),
        (np.nan, 1.0, 1.0, np.inf),
        (1.0, np.nan, 1.0, np.inf),
        (np.nan, np.nan, 1.0, 0.0),
        (np.inf, np.inf, 1.0, 0.0),
        (2.0, 1.0, np.inf, 0.0),
    ],
)
def test_the_share_says_whether_a_result_passes(got: float, ref: float, tol: float, share: float) -> None:
    found = compare(np.array([got], np.float32), np.array([ref]), np.array([tol]))
    assert found.share == share and (found.ok or found.share >= 1) and (found.share <= 1 or not found.ok)


def test_a_reproduction_is_the_line_of_the_case_on_its_device() -> None:
    case = draw_case("add", 3, "normal", "small")
    expected = "python -m tlrt verify --ops add --seed 3 --data normal --size small --cases 1 --device cpu --threads 2"
    assert reproduction(case, "cpu", "--threads", "2") == expected


@pytest.mark.parametrize("signed_zeros", [False, True])
@pytest.mark.parametrize("factor", [0.0, 0.4, 0.5, 0.6, 2.0])
def test_few_passes_judge_as_all_of_them(factor: float, signed_zeros: bool) -> None:
    rng, short = np.random.default_rng(7), 0
    for spoilt in (np.nan, np.inf, 0.0, -0.0, 1.0, *[None] * 20):
        ref = rng.choice([0.0, -0.0, *rng.standard_normal(200)], 300)
        got = ref.astype(np.float32)
        if rng.random() < 0.5:
            ref = got.astype(np.float64)
        if spoilt is not None:
            got[150] = spoilt
        tol, bits = factor * spacing(ref), np.where(rng.random(300) < 0.5, FREE, got.view(np.uint32).astype(np.int64))
        bits[7] ^= int(spoilt == 1.0)
        tol[20] = (tol[20], np.inf, 0.0)[rng.integers(3)]
        got[20] += tol[20] == np.inf
        for fixed in (None, bits):
            with np.errstate(all="ignore"):
                near, judged = (f(got, ref, tol, signed_zeros, fixed, FORMATS["float32"]) for f in (_near, _judge))
            assert near is None or (near[:3] == judged[:3] and (factor == 0 or near == judged))
            assert near is not None or judged.violations or factor < 0.5 or tol.max() == np.inf or tol.min() == 0
            short += near is not None
    assert short


def test_worst_element_of_all_blocks() -> None:
    ref = np.ones(3 * BLOCK + 5)
    tol, got = ref * 2.0**-20, ref.astype(np.float32)
    for at, error in ((2 * BLOCK + 3, -19), (BLOCK + 1, -18), (3 * BLOCK + 4, -18), (7, -21)):
        got[at] += 2.0**error
    c = compare(got, ref, tol)
    assert (c.ok, c.violations, c.index, c.share, c.got) == (False, 3, (BLOCK + 1,), 4.0, 1 + 2.0**-18)
    c = compare(np.where(got > 1 + 2.0**-21, 1, got).astype(np.float32), ref, tol)
    assert (c.ok, c.index, c.share) == (True, (7,), 0.5)
    bits, exact = np.full(ref.size, FREE), ref.astype(np.float32)
    exact[3], bits[BLOCK] = 1 + 2.0**-20, 0
    assert compare(exact, ref, tol, bits=bits).index == (
        BLOCK,
    )  # a wrong pattern, after an error as large as its tolerance
