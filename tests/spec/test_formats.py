"""Number formats against their definitions: all patterns up to 16 bits, all midpoints, and NumPy's and ml_dtypes' conversions."""

import bisect
import sys
from fractions import Fraction

import numpy as np
import pytest

from tlspec import bounds, formats
from tlspec.formats import FORMATS, Format

#: exponent bits, fraction bits, bias and NaN-free infinities, from the tables of the standards
LAYOUTS = {
    "float16": (5, 10, 15), "bfloat16": (8, 7, 127), "float8_e5m2": (5, 2, 15), "float8_e4m3fn": (4, 3, 7),
}  # fmt: skip
SMALL = [FORMATS[name] for name in LAYOUTS]
ALL = pytest.mark.parametrize("f", FORMATS.values(), ids=lambda f: f.name)
UP_TO_16_BITS = pytest.mark.parametrize("f", SMALL, ids=lambda f: f.name)


def table(f: Format) -> list[float]:
    """What each pattern with the sign + means, by the definition; Python's floats hold every number of these formats."""
    exponent_bits, fraction_bits, bias = LAYOUTS[f.name]
    numbers = []
    for pattern in range(2 ** (exponent_bits + fraction_bits)):
        field, fraction = divmod(pattern, 2**fraction_bits)
        if f.name == "float8_e4m3fn":
            special = float("nan") if pattern == 0b1111_111 else None
        else:
            special = (float("nan") if fraction else float("inf")) if field == 2**exponent_bits - 1 else None
        number = Fraction(fraction, 2**fraction_bits) + (field > 0)
        numbers.append(float(number * Fraction(2) ** (max(field, 1) - bias)) if special is None else special)
    return numbers


def same(a: np.ndarray, b: np.ndarray) -> bool:
    """Whether two float64 arrays have the same numbers, signs of zeros included, and NaN at the same places."""
    return np.array_equal(a, b, equal_nan=True) and np.array_equal(np.signbit(a[a == 0]), np.signbit(b[b == 0]))


def drawn(count: int = 200_000) -> np.ndarray:
    """float64 of all exponents: random patterns, and random significands near the exponents of the smaller formats."""
    rng = np.random.default_rng(1)
    wide = rng.integers(0, 2**64, count, np.uint64).view(np.float64)
    near = np.ldexp(rng.uniform(-2, 2, count), rng.integers(-160, 140, count))
    short = np.ldexp(rng.integers(-(2**27), 2**27, count).astype(float), rng.integers(-180, 110, count))  # many ties
    return np.concatenate([wide, near, short, [0.0, -0.0, np.inf, -np.inf, np.nan]])


@UP_TO_16_BITS
def test_every_pattern_means_what_the_definition_says(f: Format) -> None:
    positive = np.array(table(f))
    decoded = f.decode(np.arange(2**f.bits))
    assert same(decoded, np.concatenate([positive, -positive]))
    number = ~np.isnan(decoded)
    assert np.array_equal(f.encode(decoded[number]), np.arange(2**f.bits)[number])
    assert np.isnan(f.decode(f.encode([np.nan, -np.nan]))).all()
    assert same(f.round(decoded), decoded)
    finite = positive[np.isfinite(positive)]
    assert (f.largest, f.tiny) == (finite.max(), finite[1])
    assert f.infinite == bool(np.isinf(positive).any())


@UP_TO_16_BITS
def test_rounding_at_and_beside_every_midpoint(f: Format) -> None:
    """The midpoint of neighbours goes to the one with the even pattern, the next float64 beside it to the nearer one."""
    numbers = np.array([x for x in table(f) if np.isfinite(x)])
    low, high = numbers[:-1], numbers[1:]
    middle = (low + high) / 2  # exact: float64 has bits to spare
    even = np.where(np.arange(len(low)) % 2 == 0, low, high)
    for sign in (1.0, -1.0):
        assert same(f.round(sign * middle), sign * even)
        assert same(f.round(sign * np.nextafter(middle, 0)), sign * low)
        assert same(f.round(sign * np.nextafter(middle, np.inf)), sign * high)


@UP_TO_16_BITS
def test_rounding_finds_the_nearest_number(f: Format) -> None:
    """Against a search through the table in exact arithmetic."""
    numbers = [Fraction(x) for x in table(f) if np.isfinite(x)]
    after = numbers[-1] * 2 - numbers[-2]  # the number that would follow
    sequence = [*numbers, after]
    x = drawn(2_000)
    x = x[np.isfinite(x) & (np.abs(x) < float(after))]
    rounded = f.round(x)
    for value, found in zip(x.tolist(), rounded.tolist()):
        exact = abs(Fraction(value))
        i = bisect.bisect_left(sequence, exact)
        nearer = sequence[min((max(i - 1, 0), i), key=lambda k: (abs(exact - sequence[k]), k % 2))]
        if nearer == after:
            assert np.isinf(found) if f.infinite else np.isnan(found), value
        else:
            assert abs(Fraction(found)) == nearer and np.signbit(found) == np.signbit(value), value


def test_half_precision_is_numpys() -> None:
    f = FORMATS["float16"]
    patterns = np.arange(2**16, dtype=np.uint16)
    assert same(f.decode(patterns), patterns.view(np.float16).astype(np.float64))
    with np.errstate(over="ignore", invalid="ignore"):
        assert same(f.round(drawn()), drawn().astype(np.float16).astype(np.float64))


def test_single_precision_is_numpys() -> None:
    f, x = FORMATS["float32"], drawn()
    with np.errstate(over="ignore", invalid="ignore"):
        assert same(f.round(x), x.astype(np.float32).astype(np.float64))
    patterns = np.random.default_rng(2).integers(0, 2**32, 100_000, np.uint32)
    patterns = np.concatenate([patterns, np.arange(2**12, dtype=np.uint32)])  # subnormal numbers too
    decoded = f.decode(patterns)
    number = ~np.isnan(decoded)
    assert same(decoded[number], patterns.view(np.float32)[number].astype(np.float64))
    assert np.array_equal(number, ~np.isnan(patterns.view(np.float32)))
    assert np.array_equal(f.encode(decoded[number]), patterns[number])


def test_double_precision_is_left_alone() -> None:
    f, x = FORMATS["float64"], drawn()
    assert same(f.round(x), x)
    number = ~np.isnan(x)
    assert np.array_equal(f.encode(x)[number], x.view(np.uint64)[number])
    assert same(f.decode(x.view(np.uint64)), x)


@pytest.mark.parametrize(("name", "dropped"), [("bfloat16", 16), ("tf32", 13)])
def test_short_significands_are_those_of_rounded_float32(name: str, dropped: int) -> None:
    """On float32 inputs: add half of what the dropped bits can count to, and the last kept bit, then cut them off."""
    f = FORMATS[name]
    patterns = np.random.default_rng(3).integers(0, 2**32, 400_000, np.uint64)
    kept = np.arange(0, 2**32, 2**16, dtype=np.uint64)
    halves = [kept, kept | (1 << (dropped - 1)), kept | ((1 << (dropped - 1)) - 1), kept | ((1 << (dropped - 1)) + 1)]
    patterns = np.concatenate([patterns, *halves])
    x = patterns.astype(np.uint32).view(np.float32)
    patterns, x = patterns[~np.isnan(x)], x[~np.isnan(x)]
    carried = patterns + ((1 << (dropped - 1)) - 1) + (patterns >> dropped & 1)
    cut = (carried >> dropped << dropped).astype(np.uint32)
    assert same(f.round(x), cut.view(np.float32).astype(np.float64))
    assert np.array_equal(f.encode(x), cut >> (32 - f.bits))


@pytest.mark.parametrize("name", ["bfloat16", "float16", "tf32", "float8_e5m2", "float8_e4m3fn"])
def test_nothing_is_rounded_twice(name: str) -> None:
    """Just above a tie, by less than float32 can tell: a conversion through float32 gives the even neighbour below."""
    f = FORMATS[name]
    x = 1 + f.unit + 2.0**-40
    assert float(np.float32(x)) == 1 + f.unit
    assert f.round([x, -x]).tolist() == [1 + 2 * f.unit, -1 - 2 * f.unit]
    assert f.round([1 + f.unit, 1 + 3 * f.unit]).tolist() == [1.0, 1 + 4 * f.unit]


@ALL
def test_what_is_too_large(f: Format) -> None:
    beyond = np.inf if f.infinite else np.nan
    x = np.array([f.overflow, np.inf, np.finfo(np.float64).max if f.precision < 53 else np.inf])
    assert same(f.round(x), np.full(3, beyond))
    assert same(f.round(-x), np.full(3, -beyond))
    after = (
        f.largest + float(f.spacing(f.largest)) / 2
    )  # the tie with the number that would follow: the even one is taken
    assert f.overflow == (after if f.infinite else np.nextafter(after, np.inf))
    last = np.nextafter(f.overflow, 0)
    assert f.round([last, -last]).tolist() == [f.largest, -f.largest]
    assert np.isnan(f.round(np.nan))


@ALL
def test_what_is_too_small(f: Format) -> None:
    x = np.array([f.tiny, f.tiny / 2, 0.75 * f.tiny, 0.25 * f.tiny, 0.0])
    # half of float64's smallest number is 0 already
    expected = np.array([f.tiny, 0.0, f.tiny if f.precision < 53 else x[2], 0.0, 0.0])
    assert same(f.round(x), expected)
    assert same(f.round(-x), -expected)
    below = f.least_normal - f.tiny
    assert f.round(below) == below and f.spacing(below) == f.spacing(f.least_normal) == f.tiny


@ALL
def test_spacing_is_the_distance_to_the_next_number(f: Format) -> None:
    x = np.abs(drawn(20_000))
    x = f.round(x[x < f.overflow])
    nearer_zero = np.maximum(f.decode(f.encode(x) - (x > 0)), 0) if f.name != "tf32" else None
    if nearer_zero is not None:  # the distance to the number below is half of it at a power of two
        step = x - nearer_zero
        power = np.frexp(x)[0] == 0.5
        assert np.array_equal(np.where(power & (x > f.least_normal), 2 * step, step)[x > 0], f.spacing(x)[x > 0])
    assert (f.spacing([0.0, np.inf, np.nan]) == f.tiny).all()
    assert f.spacing(1.0) == 2 * f.unit and f.spacing(-3.0) == 4 * f.unit
    assert f.spacing(np.finfo(np.float64).max) == f.spacing(f.largest)


def test_the_spacing_of_float32_is_that_of_the_bounds() -> None:
    x = drawn()
    assert np.array_equal(FORMATS["float32"].spacing(x), bounds.spacing(x))
    assert FORMATS["float32"].overflow == bounds.OVERFLOW
    assert (FORMATS["float32"].tiny, FORMATS["float32"].unit) == (bounds.TINY, bounds.U)


def test_the_limits_that_the_standards_print() -> None:
    limits = {f.name: (f.largest, f.least_normal, f.tiny) for f in FORMATS.values()}
    assert limits["float8_e4m3fn"] == (448.0, 2.0**-6, 2.0**-9)
    assert limits["float8_e5m2"] == (57344.0, 2.0**-14, 2.0**-16)
    assert limits["float16"] == (65504.0, 2.0**-14, 2.0**-24)
    assert limits["bfloat16"] == (float.fromhex("0x1.fep127"), 2.0**-126, 2.0**-133)
    assert limits["tf32"] == (float.fromhex("0x1.ffcp127"), 2.0**-126, 2.0**-136)
    for name in ("float32", "float64"):
        info = np.finfo(name)
        assert limits[name] == (info.max, info.smallest_normal, info.smallest_subnormal)


@ALL
def test_shapes_are_kept_and_inputs_left_alone(f: Format) -> None:
    for shape in ((), (0,), (2, 0), (3, 2)):
        x = np.full(shape, 1.0 + f.unit / 4)
        for result in (f.round(x), f.encode(x), f.decode(f.encode(x))):
            assert isinstance(result, np.ndarray) and result.shape == shape
        assert np.shape(f.spacing(x)) == shape and (x == 1.0 + f.unit / 4).all()
    assert f.encode(1.0).dtype == f.unsigned


@pytest.mark.parametrize("name", ["float16", "float32", "float64", "tf32"])
def test_arrays_of_numpys_own_types(name: str) -> None:
    f, x = FORMATS[name], np.array([[1.0, -0.1], [1e300, 2.0**-30]])
    array = f.array(x)
    assert array.dtype.name == f.container and same(f.values(array), f.round(x))
    assert same(f.values(array.astype(array.dtype.newbyteorder("S"))), f.round(x))
    assert same(f.values(array[:, ::-1]), f.round(x)[:, ::-1])
    with pytest.raises(TypeError, match="expected"):
        f.values(np.zeros(2, np.int32))


@pytest.mark.parametrize("f", FORMATS.values(), ids=lambda f: f.name)
def test_pieces_of_an_array_are_encoded_as_the_whole(f: Format, monkeypatch: pytest.MonkeyPatch) -> None:
    for shape in ((4,), (5,), (7,), (8,), (9,), (3, 5), (2, 4, 3)):
        x = np.random.default_rng(1).standard_normal(shape)
        whole = f.encode(x)
        monkeypatch.setattr(formats, "PIECE", 4)
        pieces = f.encode(x)
        monkeypatch.undo()
        assert pieces.dtype == whole.dtype and np.array_equal(pieces, whole)


def test_float64_values_are_not_copied() -> None:
    x = np.ones(3)
    assert np.shares_memory(FORMATS["float64"].values(x), x)


def test_a_missing_ml_dtypes_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "ml_dtypes", None)
    with pytest.raises(ImportError, match='pip install ml_dtypes, or use array="torch"'):
        FORMATS["bfloat16"].array([1.0])


@UP_TO_16_BITS
def test_ml_dtypes_agrees(f: Format) -> None:
    ml_dtypes = pytest.importorskip("ml_dtypes")
    dtype = np.float16 if f.name == "float16" else getattr(ml_dtypes, f.name)
    patterns = np.arange(2**f.bits).astype(f.unsigned)
    values = f.decode(patterns)
    number = ~np.isnan(values)
    array = f.array(values)
    assert array.dtype == f.dtype == dtype and np.array_equal(array.view(f.unsigned)[number], patterns[number])
    assert same(f.values(array), values)
    # inputs that float32 holds, as ml_dtypes may convert through it
    with np.errstate(over="ignore", invalid="ignore"):
        assert same(values, patterns.view(dtype).astype(np.float64))
        x = drawn().astype(np.float32)
        assert same(f.round(x), x.astype(dtype).astype(np.float64))


@pytest.mark.parametrize(
    ("spelling", "name"),
    [
        ("bf16", "bfloat16"), ("BF16", "bfloat16"), ("torch.bfloat16", "bfloat16"), ("fp16", "float16"), ("half", "float16"),
        ("fp8_e4m3", "float8_e4m3fn"), ("FP8-E5M2", "float8_e5m2"), (" tf32 ", "tf32"), ("double", "float64"),
        (np.float16, "float16"), (np.dtype(">f4"), "float32"), (float, "float64"), (FORMATS["tf32"], "tf32"),
        (np.ones(1, np.float32).dtype, "float32"),
    ],
)  # fmt: skip
def test_spellings(spelling: object, name: str) -> None:
    assert formats.get(spelling) is FORMATS[name]


@pytest.mark.parametrize("spelling", formats.SPELLINGS)
def test_no_spelling_hides_a_format(spelling: str) -> None:
    assert spelling not in FORMATS and formats.get(spelling).name == formats.SPELLINGS[spelling]


@pytest.mark.parametrize(
    ("name", "close"),
    [
        ("bfloat61", "bfloat16"), ("float8_e4m3", "float8_e4m3fn"), ("float8_e4m3fnuz", "float8_e4m3fn"), ("fp8", "did you mean"),
        ("float", "There are"), (np.int32, "int32"), (None, "'None' is no"), (np.complex64, "complex64"), (3, "there are"),
    ],
)  # fmt: skip
def test_unknown_names_are_refused(name: object, close: str) -> None:
    with pytest.raises(ValueError, match=close):
        formats.get(name)
