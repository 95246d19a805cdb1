"""Running error analysis: what float32 arithmetic computes stays within the errors, in any order of its sums, and the errors are
not much larger than the bounds that the rows derive by hand."""

import contextlib
import inspect
from collections.abc import Callable
from functools import partial
from itertools import combinations, permutations, product
from typing import Any

import numpy as np
import pytest

from tlspec import formats, registry
from tlspec.bounds import U, call_reference, spacing, tree_height
from tlspec.draw.cases import Case, data_classes, draw_case
from tlspec.draw.data import generator
from tlspec.running import ErrorArray, Model, track_call
from tlspec.running.array import FUNCTIONS, UFUNCS

#: what NumPy promises of its vectorised functions
NUMPY = Model(ulps={"divide": 0.5, "sqrt": 0.5, "": 4.0})
#: rows whose values are bits, or float64 numbers of which float64 is no reference
NOT_EXPRESSED = {"fingerprint", "dgemm"}
#: rows that this library evaluates in float64 and rounds once; the others are float32 operation by operation
IN_FLOAT64 = {"safe_log", "mish", "var", "logsumexp", "cumsum", "global_norm", "vector_norm", "prod"}
#: transforms: their bounds hold for one plan of butterflies, running analysis covers any
ANY_PLAN = {"irfft1d_packed", "spectral_conv1d_rfft"}
ROWS = [(row, which) for row in registry.ops() if row.name not in NOT_EXPRESSED
        for which in ("forward", "vjp") if which == "forward" or row.vjp_rule is not None]  # fmt: skip


def f32(x: Any) -> Any:
    return np.asarray(x, np.float32)


def track_case(case: Case, model: Model) -> list[ErrorArray]:
    """The results of a case with their errors, none where nothing is computed."""
    arrays = {
        n: ErrorArray(a, 0.0, model) if a is not None and a.dtype.kind == "f" else a for n, a in case.wide.items()
    }
    outs = track_call(case.reference, arrays, case.values)
    return [o if isinstance(o, ErrorArray) else ErrorArray(o, 0.0, model) for o in outs]


def within(got: np.ndarray, made: ErrorArray) -> bool:
    with np.errstate(all="ignore"):
        same = (got == made.value.astype(np.float32)) | (np.isnan(got) & np.isnan(made.value))
        near = np.abs(got.astype(np.float64) - made.value) <= made.error
        beyond = np.isinf(got) & (np.abs(made.value) + made.error >= made.model.overflow)
    return bool(np.all(near | beyond | same | np.isinf(made.error)))


def tracked(x: np.ndarray, model: Model = NUMPY) -> ErrorArray:
    return ErrorArray(x.astype(np.float64), 0.0, model)


EXPRESSIONS = {
    "polynomial": lambda x, y: (x * y + x) * x - y,
    "quotient": lambda x, y: (x - y) / (x * x + 1),
    "shifted exponentials": lambda x, y: np.exp(x - x.max(axis=1, keepdims=True)).sum(axis=1),
    "distances": lambda x, y: np.sqrt(((x - y) ** 2).sum(axis=0)),
    "angles": lambda x, y: np.arctan2(x, y) + np.sin(3 * x) * np.cos(y),
    "logarithms": lambda x, y: np.log1p(np.abs(x)) - np.log(np.abs(y) + 2),
    "hyperbolic": lambda x, y: np.tanh(x * y) + np.expm1(x) + np.sinh(y),
    "a product of three matrices": lambda x, y: x @ y.T @ x,
    "a contraction": lambda x, y: np.einsum("ij,kj->ik", x, y) * 0.3,
    "variances": lambda x, y: np.var(x, axis=1) + np.mean(y),
    "a running sum of all elements": lambda x, y: np.cumsum(x * y),
    "sums and products of one operand": lambda x, y: np.einsum("ij->j", x) * np.einsum("ij->ji", y).sum(axis=1),
    "a dot product": lambda x, y: np.dot(x, y.T),
    "blocks": lambda x, y: np.block([[x, y], [y, x * 0.7]]) * 0.3,
    "a running sum": lambda x, y: np.cumsum(x, axis=1) * y,
    "products": lambda x, y: np.prod(1 + x / 8, axis=1) + np.power(np.abs(x) + 1, 1.7).sum(axis=1),
    "a choice": lambda x, y: np.where(x * 1.1 > y, np.minimum(x, y) * 3, np.clip(y, -0.3, 0.7)),
    "parts of arrays": lambda x, y: np.concatenate([x[:, ::2], np.roll(y, 1, axis=0)], axis=1).reshape(-1)[3:] * 0.7,
    "parts of a split": lambda x, y: np.vstack(np.array_split(x * 1.1, 3)[::-1]) * 0.7,
    "a spectrum": lambda x, y: np.abs(np.fft.rfft(x, axis=1)),
}  # fmt: skip


@pytest.mark.parametrize("name", EXPRESSIONS)
def test_float32_arithmetic_stays_within_the_errors(name: str) -> None:
    for seed in range(24):
        rng = generator("running", name, seed)
        shape = int(rng.integers(1, 40)), int(rng.integers(1, 40))
        x, y = (rng.standard_normal(shape, np.float32) * np.float32(2.0 ** rng.integers(-3, 3)) for _ in range(2))
        if seed >= 20:  # subnormal numbers
            x, y = x * np.float32(2.0**-140), y * np.float32(2.0**-140)
        made = EXPRESSIONS[name](tracked(x), tracked(y))
        got = EXPRESSIONS[name](x, y)
        assert np.allclose(made.value, EXPRESSIONS[name](x.astype(float), y.astype(float)), rtol=1e-9, atol=1e-12)
        assert within(got, made), seed


#: values of keywords of NumPy's functions
KEYWORDS: dict[str, list[Any]] = {
    "axis": [None, 0, -1, (0, 1)], "keepdims": [True], "dtype": [np.float64], "initial": [2.0, 0.0], "ddof": [1],
    "correction": [1], "decimals": [2, -1], "ord": [0, 1, 2, 3, np.inf, -np.inf, "fro"], "norm": ["ortho", "forward"],
    "n": [3, 9], "k": [-1, 1], "shift": [1], "axes": [(0, 1)], "a_min": [-0.5, 0], "a_max": [0.5, 0],
    "min": [-0.5, 0], "max": [0.5, 0],
    "repeats": [2], "indices": [[1, 0]], "offset": [1], "mode": ["constant", "edge"], "pad_width": [1],
    "where": [np.arange(15).reshape(3, 5) % 4 > 0],
}  # fmt: skip


def numpy_function(name: str) -> Any:
    return (
        getattr(np.fft, name[4:])
        if name.startswith("fft.")
        else getattr(np, name, None) or getattr(np.linalg, name, None)
    )


def calls_of(function: Any) -> list[dict[str, Any]]:
    """Keyword arguments that NumPy takes beside a matrix, up to three at a time, each with every value."""
    known = [k for k in inspect.signature(function).parameters if k in KEYWORDS]
    some = [keys for r in range(4) for keys in combinations(known, r)]
    return [dict(zip(keys, values)) for keys in some for values in product(*(KEYWORDS[k] for k in keys))]


#: what depends on rounding, or on no number
DECIDED = {"all", "any", "argmax", "argmin", "argsort", "count_nonzero", "iscomplexobj", "lexsort", "ndim", "nonzero",
           "shape", "size"}  # fmt: skip
#: what a matrix alone is no argument of, and the methods of ufuncs
OPERATIONS: dict[str, Callable[[Any], Any]] = {
    "append": lambda x: np.append(x, x * 2, 0), "array_split": lambda x: np.array_split(x, 2, 1)[1],
    "broadcast_to": lambda x: np.broadcast_to(x, (2, 3, 5)), "delete": lambda x: np.delete(x, 1, 0),
    "dot": lambda x: np.dot(x, x.T), "einsum": lambda x: np.einsum("ij,kj->ik", x, x),
    "full_like": lambda x: np.full_like(x, x[0, 0]), "inner": lambda x: np.inner(x[0], x[1]),
    "moveaxis": lambda x: np.moveaxis(x, 0, 1), "outer": lambda x: np.outer(x[0], x[1]),
    "reshape": lambda x: np.reshape(x, (5, 3)), "resize": lambda x: np.resize(x, (4, 5)),
    "split": lambda x: np.split(x, 3)[1], "swapaxes": lambda x: np.swapaxes(x, 0, 1),
    "take_along_axis": lambda x: np.take_along_axis(x, np.eye(3, 2, dtype=int), 1),
    "tensordot": lambda x: np.tensordot(x, x, ((1,), (1,))), "tile": lambda x: np.tile(x, 2),
    "vdot": lambda x: np.vdot(x, x), "where": lambda x: np.where(x > 0, x, 2 * x), "matmul": lambda x: x @ x.T,
    "einsum of one operand": lambda x: np.einsum("ij->j", x), "add.at": lambda x: added(x, [0, 2, 0], x),
    "multiply.outer": lambda x: np.multiply.outer(x, x[0]),
    **{f"{u.__name__}.{m}": partial(lambda u, m, x: getattr(u, m)(x, 1), u, m)
       for u in (np.add, np.multiply, np.maximum, np.minimum) for m in ("reduce", "accumulate")},
    **{f"{n} of complex numbers": partial(lambda n, x: getattr(np.fft, n)(x * (1 - 2j)), n)
       for n in ("fft", "ifft", "irfft")},
}  # fmt: skip


def added(target: Any, index: Any, x: Any) -> Any:
    to = target.copy()
    np.add.at(to, index, x)
    return to


def is_sound(function: Callable[[Any], Any], x: np.ndarray, turn: int = 0) -> bool:
    """Whether results stay within the errors where elements are moved by theirs: some alone, and all together."""
    places, signs = np.arange(x.size).reshape(x.shape), generator("signs", x.size).choice([-1, 1], x.shape)
    alone = [places == k for k in range(turn % 5, x.size, 5)]
    for moved, steps in [*((one, (1, -1)) for one in alone), (places >= 0, (1, -1, signs))]:
        made = function(ErrorArray(x, 0.25 * moved, NUMPY))
        made = made if isinstance(made, ErrorArray) else tracked(np.asarray(made))
        for step in steps:
            got = function(x + 0.25 * moved * step)
            same = (got == made.value) | (np.isnan(got) & np.isnan(made.value)) | np.isinf(made.error)
            if not np.all(same | (np.abs(got - made.value) <= made.error)):
                return False
    return True


@pytest.mark.filterwarnings("ignore::RuntimeWarning")
@pytest.mark.parametrize("name", OPERATIONS)
def test_results_of_moved_operands_are_within_the_errors(name: str) -> None:
    x = generator("moved", name).standard_normal((3, 5), np.float32).astype(float)
    assert all(is_sound(OPERATIONS[name], x, turn) for turn in range(5))


@pytest.mark.filterwarnings("ignore::RuntimeWarning")
@pytest.mark.parametrize("name", sorted(FUNCTIONS.keys() - {"empty_like", "result_type", "sliding_window_view"}))
def test_every_keyword_means_what_it_means_in_numpy_or_is_refused(name: str) -> None:
    x = np.random.default_rng(3).standard_normal((3, 5)).astype(np.float32)
    function, moved = numpy_function(name), name in OPERATIONS or name in DECIDED
    for turn, keywords in enumerate(calls_of(function)):
        try:
            with np.errstate(all="ignore"):
                right = function(x.astype(float), **keywords)
        except Exception:  # NumPy refuses by errors of many types
            continue
        if not isinstance(right, (np.ndarray, np.floating, float)):
            continue
        try:
            got = function(tracked(x), **keywords)
        except TypeError:  # what the analysis does not know
            continue
        made = got if isinstance(got, ErrorArray) else tracked(np.asarray(got))
        assert made.shape == np.shape(right), keywords
        assert np.allclose(made.value, right, rtol=1e-6, equal_nan=True), keywords
        if not np.iscomplexobj(made.value) and np.asarray(right).dtype.kind == "f":
            single = np.asarray(function(x, **keywords), np.float32)
            assert within(single, made), keywords
        with contextlib.suppress(TypeError):  # what depends on rounding
            assert is_sound(partial(function, **keywords), x.astype(float), turn), keywords
            moved = True
    assert moved


@pytest.mark.parametrize("name", sorted(name for name in FUNCTIONS if name.startswith("fft.")))
def test_a_norm_of_a_transform_scales_its_errors(name: str) -> None:
    """All elements and their errors are as many times those of another norm."""
    x = tracked(generator("norms", name).standard_normal((3, 9)))
    plain, *others = (numpy_function(name)(x, norm=norm) for norm in ("backward", "ortho", "forward"))
    for other in others:
        factor = np.abs(other.value).max() / np.abs(plain.value).max()
        assert np.allclose(other.error, factor * plain.error, rtol=1e-6) and (other.error > 0).all()


def test_functions_of_values_take_numpys_arguments() -> None:
    x = np.random.default_rng(9).integers(0, 3, (3, 5)).astype(float)
    plain: list[Callable[[Any], Any]] = [
        lambda x: np.size(x, 1), lambda x: np.size(x), lambda x: np.lexsort((x, x[::-1]), axis=0),
        lambda x: np.lexsort((x[0], x[1])), lambda x: np.lexsort(x[None], 1), lambda x: np.argmax(x, 1),
        lambda x: np.argmin(x, axis=0, keepdims=True), lambda x: np.argsort(-x, 0, kind="stable"),
        lambda x: np.count_nonzero(x, axis=1), lambda x: np.nonzero(x)[1],
    ]  # fmt: skip
    for k, f in enumerate(plain):
        assert np.array_equal(f(tracked(x)), f(x)), k
    for axis in (None, 0, 1, -1):
        made = np.append(ErrorArray(x, 0.5), ErrorArray(2 * x, 0.25), axis)
        assert np.array_equal(made.value, np.append(x, 2 * x, axis))
        assert np.array_equal(made.error, np.append(0 * x + 0.5, 0 * x + 0.25, axis))
        e, most = x / 8, {"axis": axis, "keepdims": axis is not None}
        made = np.sort(ErrorArray(x, e), axis)
        assert np.array_equal(made.error, np.broadcast_to(np.max(e, **most), made.shape))


@pytest.mark.filterwarnings("ignore:Degrees of freedom", "ignore:divide by zero")
def test_arguments_have_the_order_that_they_have_in_numpy() -> None:
    x = np.random.default_rng(4).standard_normal((3, 5))
    keep = (None, None, True)
    orders: list[tuple[Any, tuple[Any, ...]]] = [
        (np.sum, (1, *keep)), (np.prod, (1, *keep)), (np.mean, (1, *keep)), (np.var, (1, None, None, 1, True)),
        (np.max, (1, None, True)), (np.min, (1, None, True)),
    ]  # fmt: skip
    for function, given in orders:
        made = function(tracked(x), *given)
        assert made.shape == (3, 1) and np.allclose(made.value, function(x, *given))
    with pytest.raises(TypeError, match="float16"):
        np.mean(tracked(x), dtype=np.float16)
    for less, (made, right) in ((k, (np.var(a, axis=0, ddof=k) for a in (tracked(x), x))) for k in (2, 3, 4)):
        assert np.allclose(made.value, right) and np.isinf(right).all() == (less > 2), "of 3 numbers"


@pytest.mark.parametrize(("one", "which"), ROWS, ids=[f"{r.name}-{w}" for r, w in ROWS])
def test_a_reference_in_float32_is_within_the_errors(one: registry.Op, which: str) -> None:
    """The reference itself, run on float32 arrays, is an implementation that the default model allows."""
    for seed, data in enumerate(data_classes(one, which)):
        case = draw_case(one, seed, data, "small", which)
        inputs = {
            n: a.astype(np.int64) if a is not None and a.dtype == np.uint32 else a for n, a in case.arguments.items()
        }
        params = {n: np.float32(v) if isinstance(v, float) else v for n, v in case.values.items()}
        with np.errstate(all="ignore"):
            outs = call_reference(case.reference, inputs, params)
        for got, made in zip(outs if isinstance(outs, tuple) else (outs,), track_case(case, NUMPY), strict=True):
            if np.asarray(got).dtype == np.float32:  # else a part of it was computed in float64
                assert within(np.asarray(got), made), (case.line, data)


@pytest.mark.parametrize(("one", "which"), ROWS, ids=[f"{r.name}-{w}" for r, w in ROWS])
def test_errors_are_like_the_bounds_derived_by_hand(one: registry.Op, which: str) -> None:
    """At most 4 times as large, and at least a sixteenth, around 0 and beside it. Of the median element: single elements may
    cancel, which only a derivation sees."""
    height = (lambda n: n) if one.family in ("linalg", "conv") else tree_height
    model = Model(53, 53, tiny=2.0**-150) if one.name in IN_FLOAT64 else Model(height=height)
    for data in ("normal", "uniform"):
        ratios = []
        for seed in range(4 if data in data_classes(one, which) else 0):
            case = draw_case(one, seed, data, "small", which)
            for made, reference, tolerance in zip(track_case(case, model), *case.real, strict=True):
                half = spacing(reference) / 2
                error = made.error + (half if one.name in IN_FLOAT64 else 0)
                counted = (
                    np.isfinite(tolerance)
                    & (np.maximum(tolerance, half) > 0)
                    & np.isfinite(reference)
                    & (reference != 0)
                )
                ratios += list(np.maximum(error, half)[counted] / np.maximum(tolerance, half)[counted])
        if ratios:
            assert 1 / 16 <= np.median(ratios) <= (13 if one.name in ANY_PLAN else 4), data


#: functions of NumPy's that take numbers one by one
ELEMENTWISE = [f for n in sorted(UFUNCS) if isinstance(f := getattr(np, n, None), np.ufunc)
               and f.signature is None and f.nout == 1 and "d" * f.nin + "->d" in f.types]  # fmt: skip


#: what has poles or jumps, next to which an error is unknown or as large as those
POLES = {"divide", "true_divide", "reciprocal", "power", "float_power", "tan", "arctan2"}
#: what IEEE 754 rounds once, and what returns an operand or a whole number
ROUNDED = {"add", "subtract", "multiply", "divide", "true_divide", "square", "reciprocal", "sqrt"}
UNROUNDED = {"negative", "positive", "absolute", "fabs", "conjugate", "maximum", "minimum", "fmax", "fmin", "sign", "copysign",
             "floor", "ceil", "rint", "trunc"}  # fmt: skip


@pytest.mark.filterwarnings("ignore::RuntimeWarning")
@pytest.mark.parametrize("function", ELEMENTWISE, ids=lambda f: f.__name__)
def test_results_of_numbers_within_their_errors_are_within_the_errors(function: np.ufunc) -> None:
    """The errors reach across 0 and across the ends of the domain. Where a NaN may be a number nothing is said. They are at most
    three times what the numbers change, and the function's roundings; nothing of exact results of exact operands."""
    some = f32([-100, -2, -1, -0.75, -1e-3, -0.0, 0, 1e-3, 0.75, 1, 2, 100]).astype(float)
    numbers = np.array(list(product(some, f32([0, 1e-9, 1e-3, 0.3, 1.5]).astype(float))))
    pairs = [numbers[i.ravel()].T for i in np.indices((len(numbers),) * function.nin)]
    made, most = function(*(ErrorArray(v, e) for v, e in pairs)), 0.0
    allowed = made.error + 2.0**-40 * (1 + np.abs(made.value))  # of float64's own roundings
    for steps in product(np.linspace(-1, 1, 9), repeat=function.nin):
        got = function(*(np.where(e == 0, v, v + s * e) for (v, e), s in zip(pairs, steps, strict=True)))
        change = np.abs(got - made.value)
        right = (change <= allowed) | (got == made.value) | np.isnan(got) | np.isinf(made.error)
        assert right.all(), (function, [p[0][~right] for p in pairs], steps)
        most = np.maximum(most, np.where(np.isnan(change), np.inf, change))
    finite, exact = np.isfinite(made.value), np.all([e == 0 for _, e in pairs], axis=0)
    open_ = np.any([np.abs(v) <= e for v, e in pairs], axis=0) & np.isinf(made.error) | (
        function in (np.arctan2, np.tan)
    )
    near = open_ & ~exact & (function.__name__ in POLES)
    near |= np.any([(np.abs(v) == e) & (e > 0) for v, e in pairs], axis=0)  # as far as 0, of either sign
    assert np.all((made.error <= 3 * most + 4 * U * (np.abs(made.value) + most) + 2.0**-149) | ~finite | near)
    if function.__name__ in ROUNDED:
        value, error = made.value[exact & finite], made.error[exact & finite]
        held = (value == f32(value)) & (function is not np.sqrt or value == np.rint(value))
        assert held.sum() > 3 and not error[held].any() and np.all(error <= U * np.abs(value) + 2.0**-149)
    assert function.__name__ not in UNROUNDED or not made.error[exact].any()


def test_what_no_rounding_follows_has_the_errors_that_it_brings() -> None:
    """Products and quotients with powers of two, sums with 0, and choices; what is rounded has a rounding more."""
    x = generator("brought").standard_normal((4, 30), np.float32).astype(float)
    e = np.abs(generator("errors").standard_normal(x.shape)) * 10.0 ** np.arange(-12, 3, 0.5)
    a, c = ErrorArray(x, e), np.float64(2.0 ** np.array([[-3], [0], [1], [7]])) * [[1], [-1], [1], [-1]]
    for b in (a * c, c * a, a / (1 / c), a * ErrorArray(c)):
        assert np.array_equal(b.value, x * c) and np.array_equal(b.error, e * np.abs(c))
    for b in (a + 0.0, 0.0 + a, a - ErrorArray(0.0), -a, +a, abs(a), np.where(x > 0, a, -a)):
        assert np.array_equal(b.error, e) and np.array_equal(np.abs(b.value), np.abs(x))
    assert np.array_equal(np.where(x > 0, a, ErrorArray(x, 9 * e)).error, np.where(x > 0, e, 9 * e))
    for b, factor in ((a + 1.0, 1.0), (a * 3.0, 3.0), (3.0 * a, 3.0), (a / 3.0, 1 / 3.0), (a - 1.0, 1.0)):
        assert np.allclose(b.error, e * factor + U * (np.abs(b.value) + e * factor), rtol=1e-9, atol=2.0**-150)


@pytest.mark.filterwarnings("ignore::RuntimeWarning")
@pytest.mark.parametrize("function", [*ELEMENTWISE, np.ldexp], ids=lambda f: f.__name__)
def test_results_near_0_are_within_the_errors(function: np.ufunc) -> None:
    """Which lose bits below the smallest number, and are so much off when they are scaled."""
    tiny = f32([k * 2.0**-149 for k in (-5, -3, 1, 3, 7, 2**22 + 1)] + [1.3 * 2.0**-126, 1.7 * 2.0**-75, 0.3, -1.5])
    pairs = [tiny[i.ravel()] for i in np.indices((len(tiny),) * function.nin)]
    if function is np.ldexp:
        pairs = [np.repeat(tiny, 5), np.tile([-150, -2, -1, 0, 1], len(tiny))]
    made = function(*(tracked(x) if x.dtype == np.float32 else x for x in pairs))
    made = made if isinstance(made, ErrorArray) else tracked(np.asarray(made))
    assert within(f32(function(*pairs)) * f32(2.0**20), made * 2.0**20)


def test_sums_of_integers_are_exact_and_cost_nothing() -> None:
    x = generator("integers").integers(-8, 9, (30, 40)).astype(np.float32)
    made = tracked(x) @ tracked(x).T + tracked(x).sum(axis=1)
    assert not made.error.any() and not np.cumsum(tracked(x), axis=1).error.any()
    far = np.zeros(2000)
    far[[0, 7, 9]] = 2.0**22 + 1, -(2.0**22), 3  # of which some are looked at first
    assert far.sum() == 4 and not tracked(far).sum().error and ErrorArray(far, 0.0, Model(precision=21)).sum().error
    assert (tracked(x) * np.float64(1 / 3)).error.any()


def test_a_sum_of_sums_may_be_taken_in_any_order() -> None:
    """The parts of a convolution are one sum: a kernel may add all their terms one after the other."""
    rng = generator("parts")
    x = rng.standard_normal((64, 50)).astype(np.float32)
    whole = tracked(x).sum(axis=0)
    parts = np.zeros(50, like=whole)
    for k in range(0, 64, 2):
        parts = parts + tracked(x[k : k + 2]).sum(axis=0)
    assert np.allclose(parts.error, whole.error, rtol=1e-12)
    placed = np.zeros((2, 50), like=whole)
    placed[0] += tracked(x[:32]).sum(axis=0)
    placed[0] += tracked(x[32:]).sum(axis=0)
    assert np.allclose(placed[0].error, whole.error, rtol=1e-12)


def test_a_result_filled_in_parts_has_the_errors_of_each() -> None:
    """An array filled with sums, in any order, keeps their errors and counts the terms of the largest."""
    x = generator("filled").standard_normal((50, 30)).astype(np.float32)
    parts = [tracked(part).sum(axis=0) for part in np.split(x, [40, 49])]
    joined, places = np.stack(parts), (0, slice(1, 2), np.array([False, False, True]))
    for order in permutations(range(3)):
        filled = np.zeros((3, 30), like=joined)
        for k in order:
            filled[places[k]] = parts[k]
        assert np.array_equal(filled.value, joined.value) and np.array_equal(filled.error, joined.error)
        assert np.all(filled.sum(axis=0).error >= tracked(x).sum(axis=0).error), order
        assert np.all((filled + tracked(x[:3])).error >= (joined + tracked(x[:3])).error), order
    for number, made in ((1.0, np.ones(30, like=joined)), (0.3, np.full(30, 0.3, like=joined))):
        assert np.array_equal((made + parts[0]).error, (number + parts[0]).error)


def test_the_model_decides_how_large_errors_are() -> None:
    x = generator("models").standard_normal((8, 4096)).astype(np.float32)
    exact = x.astype(np.float64).sum(axis=1)

    def error(model: Model) -> float:
        return float(tracked(x, model).sum(axis=1).error.max() / U / np.abs(x).sum(axis=1).max())

    pairwise = Model(height=lambda n: max(0, int(np.ceil(np.log2(max(n, 1))))))
    assert error(pairwise) < error(Model()) < error(Model(to_nearest=False))
    kept = np.abs(exact).max() / np.abs(x).sum(axis=1).max()  # the rounding of a sum as it is kept in float32
    assert error(Model(sum_precision=53)) <= 1.001 * kept
    assert error(Model(precision=53, sum_precision=53)) < 1e-6
    sequential = np.cumsum(x, axis=1)[:, -1]
    assert np.all(np.abs(sequential - exact) <= tracked(x).sum(axis=1).error)
    low, x = Model(operands=formats.get("tf32")), x[:, :64]
    rounded = (x.view(np.uint32) + np.uint32(0x1000) & np.uint32(0xFFFFE000)).view(np.float32)
    product = tracked(x, low) @ tracked(x, low).T
    assert np.all(np.abs(rounded.astype(float) @ rounded.T.astype(float) - product.value) <= product.error)
    assert np.any(
        np.abs(rounded.astype(float) @ rounded.T.astype(float) - product.value) > (tracked(x) @ tracked(x).T).error
    )


def assigned(x: ErrorArray, constant: Any) -> ErrorArray:
    made = np.zeros(x.shape, like=x)
    made[1:] = constant
    return made


#: what chooses a constant, or moves it beside numbers with errors
CHOOSING: dict[str, Callable[[Any, Any], Any]] = {
    "where": lambda x, c: np.where(x > 0, x, c), "the other way": lambda x, c: np.where(x <= 0, np.full(x.shape, c), x),
    "maximum": lambda x, c: np.maximum(x * 0, c), "clip": lambda x, c: np.clip(x - 5, c, 9), "assigned": assigned,
    "full_like": np.full_like, "full": lambda x, c: np.full(3, c, like=x), "array": lambda x, c: np.array([1.0, c], like=x),
    "joined": lambda x, c: np.concatenate([x[:1], np.array([c, c])]), "append": np.append,
    "stack": lambda x, c: np.stack([x, np.full(3, c)])[1], "filled": lambda x, c: np.full_like(x, fill_value=c),
    "pad a sum": lambda x, c: np.pad(np.sum(x[None], axis=0), 1, constant_values=c) + 0.0,
    "pad": lambda x, c: np.pad(x, (0, 1), constant_values=c),
}  # fmt: skip


@pytest.mark.parametrize("name", CHOOSING)
def test_a_constant_is_rounded_where_it_is_chosen(name: str) -> None:
    """As a kernel has it, which computes with it; one that float32 holds has no error."""
    x = tracked(f32([1.0, -1.0, 0.0]))
    for constant, factor in product([0.15, 0.1, 1 / 3, 1e-3, 0.5, 3.0, 7, True], (1, 25, 41)):
        made = (CHOOSING[name](x, constant) * factor)[-1]
        assert abs(f32(constant) * f32(factor) - made.value) <= made.error <= 2.1 * U * constant * factor
        assert made.value == constant * factor and (made.error == 0) == (float(f32(constant)) == constant)


def test_a_comparison_with_a_rounded_constant_is_open_next_to_it() -> None:
    """Where a kernel that rounds it finds the other answer."""
    for c, compare in product([0.15, 0.1, 1 / 3, 0.5, -3.0], [np.less, np.less_equal, np.greater, np.greater_equal]):
        near = f32(c) + spacing(c) * np.arange(-2, 3)
        for made in (compare(tracked(near), c), compare(tracked(near), np.full(5, c))):
            wanted = [compare(y, f32(c)) for y in f32(near)]
            unsure = made.error.tolist() if isinstance(made, ErrorArray) else [False] * 5
            assert unsure[2] == (float(f32(c)) != c) and sum(unsure) <= 2 * unsure[2], c
            found = made.value if isinstance(made, ErrorArray) else made
            assert all(u or v == w for u, v, w in zip(unsure, found, wanted, strict=True))


def test_what_rounding_decides_is_covered_or_refused() -> None:
    x = ErrorArray(np.array([1.0, -2.0, 1e-9]), 1e-6)
    chosen = np.where(x > 0, x + 10, x - 10)
    assert chosen.error[0] < 1e-5
    assert chosen.error[2] >= 20
    assert (1 / x).error[2] == np.inf
    with pytest.raises(TypeError, match="depends on rounding"):
        bool((x > 0)[2])
    assert bool((x > 0)[0]) and (x > 0)[:2].astype(int).tolist() == [1, 0]
    for decided in (np.any(x > 0), np.all(x[:2] < 2), (x > 0)[2:] | (x < 1)[2:]):
        assert not isinstance(decided, ErrorArray) and np.all(decided)
    for open_ in (np.all(x[::2] > 0), np.any((x > 0)[2:] & (x < 1)[2:]), np.logical_xor(x > 0, x < 1)[2]):
        assert open_.error
    assert np.array_equal(np.logical_and(x > 0, x < 5).error, [False, False, True])
    refused: dict[str, Callable[[], Any]] = {
        "argmax depends on rounding": lambda: np.argmax(x), "a selection depends on rounding": lambda: x[x > 0],
        "a conversion to int64 depends on rounding": lambda: x.astype(np.int64),
    }  # fmt: skip
    for message, call in refused.items():
        with pytest.raises(TypeError, match=message):
            call()


@pytest.mark.parametrize("compare", [np.less, np.less_equal, np.greater, np.greater_equal, np.equal, np.not_equal])
def test_what_two_errors_may_exchange_is_undecided(compare: np.ufunc) -> None:
    """Each within its own error of the other, on either side, or as far as the sum of both."""
    x, dx = np.meshgrid([1.0, 1.5, 2.0], [0.0, 0.25, 0.5])
    for y, dy in product([1.0, 1.25, 1.5, 2.0], [0.0, 0.25, 0.5]):
        condition = compare(ErrorArray(x, dx, NUMPY), ErrorArray(np.full_like(x, y), dy, NUMPY))
        for of_8, of_4 in ((0.0, 0.0), (1.0, 0.5)):  # errors of what is chosen
            made = np.where(
                condition, ErrorArray(np.full_like(x, 8), of_8, NUMPY), ErrorArray(np.full_like(x, 4), of_4, NUMPY)
            )
            for a, b, up in product([-1, -0.5, 0, 0.5, 1], [-1, -0.5, 0, 0.5, 1], [-1, 1]):
                got = np.where(compare(x + a * dx, y + b * dy), 8.0 + up * of_8, 4.0 + up * of_4)
                assert (np.abs(got - made.value) <= made.error).all()
            apart = np.abs(x - y) > dx + dy
            assert (made.error[apart] <= max(of_8, of_4)).all()


def test_what_an_array_with_errors_keeps() -> None:
    """Its errors where it is copied in another type or written to, and numbers between whole ones."""
    x = ErrorArray(np.broadcast_to(1.0, (3,)), np.array([0.25, 0.5, 0.0]))
    assert np.array_equal(x.astype(np.float32).error, x.error) and np.array(x, like=x) is x
    wide = x.astype(np.complex64)
    assert wide.value.dtype == np.complex128 and wide.error.tolist() == x.error.tolist()
    assert repr(x[:1]) == "ErrorArray(array([1.]), error=array([0.25]))"
    x[0] = ErrorArray(2.0, 0.125)
    assert (x.value.tolist(), x.error.tolist()) == ([2.0, 1.0, 1.0], [0.125, 0.5, 0.0])
    whole = ErrorArray(np.array([1, 2]))
    whole[0] = 0.5
    assert whole.value.tolist() == [0.5, 2.0]
    assert np.zeros_like(x, dtype=bool).tolist() == [False] * 3  # which has no errors
    assert (ErrorArray(np.array([[1.0, 2.0]]), np.inf) @ np.zeros((2, 1))).error.tolist() == [[np.inf]]
    lost = ErrorArray(np.array([[np.inf, 1.0]])) @ np.array([[0.0], [3.0]])
    assert np.isnan(lost.value).all() and not lost.error.any()  # for certain
    assert np.where([True, False, False], x, np.nan).error.tolist() == [0.125, 0, 0]  # a constant, which is certain
    half = ErrorArray(np.array([[65504.0], [65520.0]]), 0.0, Model(operands=formats.get("fp16"))) @ np.ones((1, 1))
    assert np.isinf(half.error).tolist() == [[False], [True]]  # which float16 does not hold
    assert np.isinf(np.where(ErrorArray(True, True), np.array([1.0, np.nan]), 2.0).error).tolist() == [False, True]
    for number, error in ((12.0, 0.5), (-0.3, 2.0**-9), (5e-30, 1e-33)):
        fraction, exponent = np.frexp(ErrorArray(np.array([number]), error))
        assert np.array_equal((fraction.value * 2.0**exponent, fraction.error * 2.0**exponent), [[number], [error]])


#: what a product of arrays of lengths i = 5, j = 70, k = 9 and o = 1 sums over
CONTRACTIONS: dict[str, int] = {
    "ij,jk->ik": 70, "i j, j k -> k i": 70, "ij,jk": 70, "ij,kj->ik": 70, "ij,ij->i": 70, "ij,k->ik": 70, "i,jk->ik": 70,
    "ij,ik->": 5 * 70 * 9, "ij,jk->j": 5 * 9, "ij,ij->ij": 1, "io,jo->ij": 1, "j,ij": 70, "ji,j->i": 70,
}  # fmt: skip


def demand_sums(made: Any, size: Any, terms: int) -> None:
    """Demands the errors of sums of that many terms of exact numbers, a product each."""
    rounded = Model().sum_error(terms + 1) * size + terms * Model().tiny
    assert np.allclose(made.error, rounded, rtol=1e-9, atol=0), terms


@pytest.mark.parametrize("pattern", CONTRACTIONS)
def test_a_contraction_sums_over_the_letters_that_its_result_has_not(pattern: str) -> None:
    letters = [part.replace(" ", "") for part in pattern.partition("->")[0].split(",")]
    shapes = [[{"i": 5, "j": 70, "k": 9, "o": 1}[c] for c in part] for part in letters]
    x, y = (generator("contraction", k).standard_normal(shape, np.float32) for k, shape in enumerate(shapes))
    made = np.einsum(pattern, tracked(x), tracked(y))
    assert np.allclose(made.value, np.einsum(pattern, x.astype(float), y), rtol=1e-6)
    demand_sums(made, np.einsum(pattern, np.abs(x).astype(float), np.abs(y)), CONTRACTIONS[pattern])


def test_products_of_any_ranks_sum_over_the_axis_that_they_share() -> None:
    """Vectors with matrices and stacks of these on either side, an axis of 1 beside a longer one, and complex numbers."""
    x, stack, wide = (generator("ranks", *n).standard_normal(n, np.float32) for n in ((70,), (3, 70, 2), (4, 70)))
    calls: list[tuple[Callable[[Any, Any], Any], Any, Any]] = [
        (np.dot, x, stack), (np.matmul, x, stack), (np.dot, wide, x), (np.matmul, wide, x), (np.matmul, wide, stack),
        (np.dot, wide, stack), (np.inner, x, wide[0]), (np.vdot, x, wide[0]), (np.vdot, wide, wide[::-1]),
    ]  # fmt: skip
    for f, a, b in calls:
        made = f(tracked(a), tracked(b))
        assert np.allclose(made.value, f(a.astype(float), b), rtol=1e-6)
        demand_sums(made, f(np.abs(a).astype(float), np.abs(b)), 280 if f is np.vdot and a.ndim == 2 else 70)
    for pair in ((wide, x[None, :1]), (x[None, :1], wide)):
        short = np.einsum("ij,ij->i", *map(tracked, pair))
        demand_sums(short, np.abs(wide).astype(float).sum(axis=1) * abs(float(x[0])), 70)
    z = wide[0] + 1j * wide[1].astype(float)
    made = np.vdot(ErrorArray(z), ErrorArray(z * (1 - 2j)))
    assert np.allclose(made.value, np.vdot(z, z * (1 - 2j)))
    assert np.isclose(made.error, 3 * Model().sum_error(71) * 5**0.5 * (np.abs(z) ** 2).sum(), rtol=1e-4)


@pytest.mark.parametrize("pattern", ["".join(p) for n in (1, 2, 3) for p in permutations("ijk", n)])
def test_a_contraction_of_one_array_orders_its_axes_as_numpy(pattern: str) -> None:
    """And its errors with them."""
    x, e = (np.abs(generator("one", k).standard_normal((3, 4, 5), np.float32).astype(float)) for k in range(2))
    made = np.einsum(f"ijk->{pattern}", ErrorArray(x, e))
    assert np.allclose(made.value, np.einsum(f"ijk->{pattern}", x), rtol=1e-12)
    assert np.allclose(made.error, np.einsum(f"ijk->{pattern}", e), rtol=1e-4)


def test_errors_of_complex_numbers_cover_float32_and_little_more() -> None:
    """Products by four products and two sums, absolute values by a root of squares, products of matrices term by term."""
    a, b, c, d = (generator("complex", k).standard_normal((60, 60), np.float32) for k in range(4))
    x, y = a + 1j * b.astype(float), c + 1j * d.astype(float)
    real, imag = a * c - b * d, a * d + b * c
    sums = [np.add.accumulate(p[:, :, None] * q[None], axis=1)[:, -1] for p, q in ((a, c), (b, -d), (a, d), (b, c))]
    made = {
        "product": (ErrorArray(x) * ErrorArray(y), real + 1j * imag.astype(float), np.abs(x) * np.abs(y), 3.0),
        "size": (abs(ErrorArray(x)), np.sqrt(a * a + b * b), np.abs(x), 3.0),
        "matrices": (ErrorArray(x) @ ErrorArray(y), sums[0] + sums[1] + 1j * (sums[2] + sums[3]).astype(float),
                     np.abs(x) @ np.abs(y), 3 * Model().sum_error(61) / U),
    }  # fmt: skip
    for name, (found, got, size, most) in made.items():
        off = np.abs(got - found.value)
        assert np.all(off <= found.error) and np.all(found.error <= 1.001 * most * U * size), name
        assert off.max() > 0.2 * most * U * size.flat[off.argmax()] or np.allclose(found.error, most * U * size), name
    for product_of in (np.matmul, np.multiply):  # where products underflow
        assert (product_of(ErrorArray(x * 2.0**-90), ErrorArray(y * 2.0**-90)).error >= 2.0**-150).all()
    z = ErrorArray(x.copy(), 0.25)
    z.real = ErrorArray(a * 2.0, 0.5)
    z.imag = ErrorArray(b * 4.0, 0.125)
    assert np.array_equal(z.value, 2 * a + 4j * b.astype(float)) and np.all(z.error == 0.875)
    ratio = (ErrorArray(x) * (1 + 0.3j)).error / (ErrorArray(x) * (1 + 0.25j)).error
    assert (ratio > 1.05).all()  # a constant that is rounded
    assert np.array_equal(np.conj(z).value, np.conj(z.value)) and np.all(z.conj().error == z.error)


#: three answers: sure ones and one that rounding decides
ANSWERS = [(False, False), (True, False), (False, True), (True, True)]


@pytest.mark.parametrize("f", [
    np.logical_and, np.logical_or, np.logical_xor, np.bitwise_and, np.bitwise_or, np.logical_not, np.invert,
], ids=lambda f: f.__name__)  # fmt: skip
def test_a_logical_result_is_open_where_an_open_answer_changes_it(f: np.ufunc) -> None:
    pairs = list(product(ANSWERS, repeat=f.nin))
    made = f(
        *(ErrorArray(np.array([p[k][0] for p in pairs]), np.array([p[k][1] for p in pairs])) for k in range(f.nin))
    )
    ways = [{bool(f(*x)) for x in product(*([v, not v] if unsure else [v] for v, unsure in p))} for p in pairs]
    assert made.value.tolist() == [bool(f(*(v for v, _ in p))) for p in pairs]
    assert made.error.tolist() == [len(w) > 1 for w in ways]


@pytest.mark.parametrize("f", [np.any, np.all])
def test_any_and_all_are_open_where_an_open_answer_changes_them(f: Callable[..., Any]) -> None:
    """Along every axis."""
    rows = list(product(ANSWERS, repeat=3))
    value, unsure = (np.array([[answer[k] for answer in row] for row in rows]) for k in range(2))
    wanted = [f(value, axis=1), f(value & ~unsure, axis=1) != f(value | unsure, axis=1)]
    for axis, turn in ((1, lambda a: a), (-1, lambda a: a), (0, np.transpose)):
        for keepdims in (False, True):
            made = f(ErrorArray(turn(value), turn(unsure)), axis=axis, keepdims=keepdims)
            assert made.shape == f(turn(value), axis=axis, keepdims=keepdims).shape
            assert np.array_equal([made.value.ravel(), made.error.ravel()], wanted)
            sure = f(ErrorArray(turn(value), turn(unsure))[..., :0], axis=axis, keepdims=keepdims)
            assert not isinstance(sure, ErrorArray)
    one = f(ErrorArray(np.array([[True, True, False]]), np.array([[False, True, False]])), axis=1)
    assert np.asarray(one).tolist() == [f is np.any]


@pytest.mark.parametrize(
    ("pattern", "count", "message"),
    [("ij,jk,kl->il", 3, "one product after the other"), ("...i,...i->...", 2, "ellipsis"), ("...i->...", 1, "ellipsis"),
     ("ii->", 1, "no diagonals"), ("ii->i", 1, "no diagonals"), ("ji", 1, "with ->")],
)  # fmt: skip
def test_contractions_that_are_not_known_are_refused(pattern: str, count: int, message: str) -> None:
    with pytest.raises(TypeError, match=message):
        np.einsum(pattern, *[tracked(np.eye(2))] * count)


def test_a_rounded_exponent_moves_a_power() -> None:
    x, exponent = f32([2e-3, 3e10]), -7.864348888397217 - 1  # which has more bits than float32
    made = np.power(tracked(x), np.full_like(tracked(x), exponent))
    assert within(np.power(x, np.full_like(x, exponent)), made)
    assert np.any(np.abs(np.power(x.astype(np.float64), f32(exponent)) - made.value) > 5 * spacing(made.value))
    with np.errstate(divide="ignore"):
        made = np.power(
            tracked(f32([-0.0, 0.0])), tracked(f32([1e-13, 1e-13])) - 1
        )  # -1 or not: minus infinity or infinity
    assert made.error.tolist() == [np.inf, 0.0]


def test_an_intermediate_beyond_float32_leaves_nothing_to_say() -> None:
    x = ErrorArray(np.array([100.0, 1.0]), 0.0)
    assert np.exp(x).error[0] < np.inf
    assert (1 / (1 + np.exp(x))).error[0] == np.inf
    assert (1 / (1 + np.exp(x))).error[1] < 1e-6


def test_flushed_subnormals_are_within_the_errors() -> None:
    """What may be below the limit, may be 0; of a sum every term may."""
    least = 2.0**-126
    for value, error, found in (
        (0.25, 0, 0.25), (1.5, 0, 0), (1.5, 0.25, 0.25), (1.25, 0.5, 1.25), (-1.25, 0.5, 1.25), (0, 0.5, 0.5), (0, 0, 0),
        (0.25, 3.0, 3.0), (2.0**126, 0, 0),
    ):  # fmt: skip
        x = ErrorArray(np.array([2 * value * least]), 2 * error * least, Model(flushed=least))
        assert found * least <= (x * 0.5).error[0] <= found * least * (1 + 2 * U) + 2.0**-148, (value, error)
    total = ErrorArray(np.array([1.0, 2.0, 4.0, 8.0]), 0.0, Model(flushed=least)).sum()
    assert total.error == 4 * least


def test_products_within_a_transform_may_underflow() -> None:
    n = 37
    x = generator("underflow").standard_normal((n, 8), np.float32) * np.float32(2.0**-140)
    roots = np.exp(-2j * np.pi / n * np.outer(np.arange(n), np.arange(n // 2 + 1)))
    made = np.fft.rfft(tracked(x), axis=0)
    for spectrum, parts in ((made.real, f32(roots.real)), (made.imag, f32(roots.imag))):
        assert within(np.add.accumulate(parts[:, :, None] * x[:, None], axis=0)[-1], spectrum)


def test_errors_cannot_be_lost_unnoticed() -> None:
    x = ErrorArray(np.ones(3), 1e-3)
    plain = np.zeros(3)
    for lose in (lambda: np.asarray(x), lambda: float(x[0]), lambda: plain.__setitem__(0, x[0]), lambda: np.add(x, 1, out=plain),
                 lambda: np.add.at(plain, [0], x[:1]), lambda: np.linalg.det(x), lambda: np.spacing(x)):  # fmt: skip
        with pytest.raises((TypeError, ValueError)):
            lose()
    assert np.zeros(3, like=x).error.shape == (3,)


def test_a_product_may_over_or_underflow_on_the_way() -> None:
    for x in ([1e-30, 1e-30, 1e30, 1e30], [1e30, 1e30, 1e-30, 1e-30], [0.5, 3.0, 2.0]):
        made = tracked(f32([x]), Model()).prod(axis=1)
        with np.errstate(over="ignore", under="ignore"):
            for order in (x, x[::-1], x[::2] + x[1::2]):
                assert within(np.multiply.reduce(f32(order))[None], made), (x, order)
                assert within(f32(order).cumprod(), tracked(f32(order), Model()).cumprod()), (x, order)
    some = tracked(f32([0.5, 3.0, 2.0]), Model())
    assert some.prod().error < 1e-6 and some.cumprod().error.max() < 1e-6 and np.linalg.norm(some).error < 2e-6


@pytest.mark.parametrize(
    "model", [Model(), Model(sum_precision=53), Model(height=tree_height)], ids=["pairs", "float64", "tree"]
)
def test_sums_by_places_have_the_errors_of_their_terms(model: Model) -> None:
    """Those that fall there, and what lay there unless it is 0 for certain; beyond the largest number nothing is known."""
    start, e = np.array([0.0, 0.0, 0.3, 0.3, 0.0]), np.array([0.0, 1e-3, 0.0, 1e-3, 0.0])
    index, x = np.array([0, 1, 2, 3] * 20), np.abs(generator("places").standard_normal(80, np.float32)).astype(float)
    target = ErrorArray(f32(start).astype(float), e, model)
    np.add.at(target, index, ErrorArray(x, 0.0, model))
    value = np.bincount(index, x, 5) + f32(start)
    terms = [model.sum_error(n) for n in (20, 21, 21, 21, 0)]
    error = e + np.array(terms) * (value + e)
    kept = model.unit * (value + error) * (model.sum_precision > 24) * (value > 0)
    assert np.allclose(target.value, value) and np.allclose(target.error, error + kept, rtol=1e-6, atol=0)
    big = ErrorArray(np.array([2.0**127, 2.0**126]), 0.0, model)
    np.add.at(big, [0, 1], np.array([2.0**127, 2.0**126]))
    assert np.isinf(big.error).tolist() == [True, False]


def test_a_dot_with_a_number_is_a_product() -> None:
    x = ErrorArray(np.array([1.5, -2.0]), np.array([0.25, 0.5]), Model())
    for found in (np.dot(x, 3.0), np.dot(3.0, x)):
        wanted = x * 3.0
        assert np.array_equal(found.value, wanted.value) and np.array_equal(found.error, wanted.error)


@pytest.mark.parametrize("count", [1, 2])
def test_a_tensordot_has_the_errors_of_the_einsum_of_its_product(count: int) -> None:
    """With axes in every place and order, counted from the front or the back, or given by their number."""
    for left in permutations(range(3), count):
        for right in permutations(range(3), count):
            letters = {r: "abc"[k] for k, r in zip(left, right, strict=True)}
            second = "".join(letters.get(k, "def"[k]) for k in range(3))
            outer = "".join(c for c in "abc" + second if c not in letters.values())
            lengths = dict(zip("abcdef", (4, 70, 9, 3, 5, 2), strict=True))
            a, b = (tracked(generator(x).standard_normal([lengths[c] for c in x], np.float32)) for x in ("abc", second))
            wanted = np.einsum(f"abc,{second}->{outer}", a, b)
            forms: list[Any] = [(left, right), ([k - 3 for k in left], [k - 3 for k in right])]
            forms += [count] if (left, right) == (tuple(range(3 - count, 3)), tuple(range(count))) else []
            for axes in forms:
                assert np.allclose(np.tensordot(a, b, axes).error, wanted.error, rtol=1e-9, atol=0), axes


def test_a_cast_in_a_reference_is_one_rounding() -> None:
    exact = ErrorArray(np.array([1.001, 2.5, 1e6, -70000.0]))
    cast = exact.astype(np.float16)
    assert np.array_equal(cast.value, formats.FORMATS["float16"].round(exact.value)) and not cast.error.any()
    tie = 1 + 2.0**-11  # between two numbers of float16
    near = ErrorArray(np.array([1.0003, tie, np.nan, 65519.9]), 1e-5).astype(np.float16)
    assert (
        near.error[0] == 0
        and near.error[1] == 2.0**-10
        and near.error[2] == 0
        and np.isinf(near.error[3]) == (65519.9 + 1e-5 >= 65520)
    )
    wide = exact.value / 3
    for precision in (53, 24, 8):  # what is narrower than the model's numbers rounds them
        made = ErrorArray(wide, 0.0, Model(precision)).astype(np.float32)
        assert np.array_equal(made.value, wide.astype(np.float32) if precision > 24 else wide)
    assert exact.astype(np.float32) is not exact and np.array_equal(exact.astype(np.float32).value, exact.value)


@pytest.mark.filterwarnings("ignore::RuntimeWarning")
def test_functions_of_scipy() -> None:
    """Errors across the ends of their domains cover what numbers within them give. Of an argument inside they are about that."""
    special = pytest.importorskip("scipy.special")
    some = [-3.5, -2, -1, -0.75, -1e-3, -0.0, 0, 1e-3, 0.25, 0.5, 0.75, 1, 1.5, 1.84, 2.5, 7]
    grid = np.array(list(product(f32(some), f32([0, 1e-9, 1e-3, 0.3])))).astype(float)
    #: slopes of one bound, and products, whose changes cancel
    flat = {"i0e", "i1e", "j0", "j1", "entr", "xlogy", "xlog1py"}
    for name in sorted(n for n in UFUNCS if not hasattr(np, n) and isinstance(getattr(special, n, None), np.ufunc)):
        f, most = getattr(special, name), 0.0
        index = np.indices((len(grid),) * f.nin).reshape(f.nin, -1)
        pairs = [grid[i].T for i in index]
        made = f(*(ErrorArray(v, e) for v, e in pairs))
        value, exact = f(*(v for v, _ in pairs)), np.all([e == 0 for _, e in pairs], axis=0)
        assert np.array_equal(made.value, value, equal_nan=True), name
        assert np.all((made.error <= 4 * U * np.abs(value) + 1e-43) | ~(exact & np.isfinite(value))), name
        for steps in product(np.linspace(-1, 1, 5), repeat=f.nin):
            got = f(*(np.where(e == 0, v, v + s * e) for (v, e), s in zip(pairs, steps, strict=True)))
            change = np.abs(got - value)
            right = (change <= made.error + 2.0**-40 * (1 + np.abs(value))) | (got == value) | np.isnan(change)
            assert np.all(right | np.isinf(made.error)), (name, [p[0][~right] for p in pairs], steps)
            most = np.fmax(most, change)
        end = 1.6 if name == "erfcinv" else 0.8
        inside = np.all([(v >= 0.25) & (v < end) & (e == f32(1e-3)) for v, e in pairs], axis=0)
        assert np.all(made.error[inside] <= (12 if name in flat else 2.5) * most[inside] + 4 * U), name


@pytest.mark.parametrize("scaled", [lambda x: x * np.log2(np.e), lambda x: np.log2(np.e) * x, lambda x: x / np.log(2)])
def test_an_infinity_is_certain_whatever_number_scales_it(scaled: Any) -> None:
    """A weight of 2^-inf is 0, and its error no infinity, that would let anything pass beside it."""
    x = np.array([[-np.inf, 0.25, 1.0]])
    e = np.exp2(scaled(ErrorArray(x)))
    found = e / e.sum(axis=1, keepdims=True)
    assert found.value[0, 0] == 0
    assert (found.error < 1e-6).all()


def test_what_overflows_is_unknown_or_an_infinity() -> None:
    """Of each kind of operation on the way; what is certain stays."""
    kinds: dict[str, Any] = {
        "square": lambda x: x * x, "exp": lambda x: np.exp(np.minimum(x, 300.0)), "sum": lambda x: np.sum(x, axis=1),
        "mean": lambda x: np.mean(x, axis=1), "product": lambda x: np.prod(x, axis=1), "cumsum": lambda x: np.cumsum(x, axis=1),
        "cumprod": lambda x: np.cumprod(x, axis=1), "matmul": lambda x: x @ x.T, "fft": lambda x: np.abs(np.fft.rfft(x, axis=1)),
    }  # fmt: skip
    x = 2.0 ** np.array([[126, 125, 126, 125, 126, 120]]) * [1, 1, 1, 1, -1, 1]
    for name, f in kinds.items():
        unknown = 1 / (1 + np.abs(f(ErrorArray(x, 0.0, Model()))))
        infinite = 1 / (1 + np.abs(f(ErrorArray(x, 0.0, Model(infinite="may")))))
        free = np.isinf(unknown.error)
        assert free.any(), name
        assert np.all(infinite.value[free] == 0) and np.all(infinite.error[free] <= 2.0**-149), name
        assert np.array_equal(infinite.error[~free], unknown.error[~free]), name
    negative = np.exp(ErrorArray(np.array([-3e38, -1.0]), 0.0, Model(infinite="may")) * 2.0)
    assert negative.value.tolist() == [0, np.exp(-2.0)] and negative.error[0] <= 2.0**-149
    x = np.array([[3.4e38, 1e34]])  # whose sum may overflow in some order, and does not; its square does
    for which, value in (("", np.sum(x) ** -2), ("may", 0.0), ("must", 0.0)):
        made = 1 / np.square(np.sum(ErrorArray(x, 0.0, Model(infinite=which)), axis=1))
        assert made.value[0] == value and np.isinf(made.error[0]) == (which == "")
    assert (np.sum(ErrorArray(x, 0.0, Model(infinite="must")), axis=1).value == np.sum(x)).all()


def test_finite_terms_that_overflow_beside_an_infinity() -> None:
    """In float32 the two products are +inf and -inf, whose sum is NaN; a small product changes no infinity."""
    for other, unsure in ((-1e30, True), (1.0, False)):
        a, b = np.array([[np.inf, 1e30]]), np.array([[1.0], [other]])
        made = ErrorArray(a, 0.0, Model()) @ ErrorArray(b, 0.0, Model())
        assert np.isinf(made.error[0, 0]) == unsure
        with np.errstate(all="ignore"):
            terms = a.astype(np.float32)[0] * b.astype(np.float32)[:, 0]
            assert np.isnan(terms.sum()) == unsure


def test_products_between_the_smallest_numbers_are_not_exact() -> None:
    a, b = np.full((1, 2), 2.0**-80), np.full((2, 1), 2.0**-70)
    made = ErrorArray(a, 0.0, Model()) @ ErrorArray(b, 0.0, Model())
    parts = a.astype(np.float32)[0] * b.astype(np.float32)[:, 0]
    assert made.value[0, 0] == 2.0**-149 and parts.sum() == 0 and made.error[0, 0] >= 2.0**-149


def test_errors_of_functions_are_those_of_the_table() -> None:
    """In ulp, twice a rounding each; of the argument that is farthest from 0, and with an absolute error."""
    table: dict[str, Any] = {"exp": (lambda at: np.where(at > 2, 8.0, 1.0), 2.0**-10), "sin": (0.5, 2.0**-12), "divide": 3.0,
                             "": 2.0}  # fmt: skip
    x = ErrorArray(np.array([-1.0, 2.0, -2.5]), np.array([0.0, 2.0**-40, 0.0]), Model(ulps=table))
    for made, ulp, absolute in (
        (np.exp(x), np.array([1, 8, 8]), 2.0**-10), (np.sin(x), 0.5, 2.0**-12), (x / 3.0, 3, 0), (np.cos(x), 2, 0),
        (np.tanh(x), 2, 0),
    ):  # fmt: skip
        by_hand = absolute + 2 * ulp * U * (np.abs(made.value) + absolute)
        assert np.allclose(made.error[[0, 2]], np.broadcast_to(by_hand, 3)[[0, 2]], rtol=1e-6), ulp
        assert np.broadcast_to(by_hand, 3)[1] < made.error[1] < by_hand.max() + 1e-9


def test_equal_terms_round_alike() -> None:
    """The more terms are equal, the nearer the bound of a sum is to that of one sign."""
    bounds = [Model(alike=share).sum_error(10_001) / 2.0**-24 for share in (0.0, 1e-3, 0.1, 1.0)]
    assert bounds[0] == 750 and bounds[0] < bounds[1] < bounds[2] == bounds[3] == 10_000


@pytest.mark.parametrize(
    ("model", "terms", "by_hand"),
    [
        (Model(), 0, 0), (Model(), 1, 0), (Model(), 5, 4), (Model(), 57, 56), (Model(), 101, 75),
        (Model(to_nearest=False), 101, 200),
        (Model(height=lambda n: 3), 101, 3), (Model(precision=53), 101, 75), (Model(sum_precision=14), 5, 4 * 2**10),
        (Model(alike=1.0), 101, 100), (Model(alike=1e-2), 10_001, 7500), (Model(chunk=16, sum_precision=14), 101, 15 * 2**10 + 6),
        (Model(chunk=16), 16, 15), (Model(chunk=16), 17, 15 + 1),
        (Model(chunk=16, to_nearest=False, precision=25), 33, 30 + 2 / 2),
    ],
)  # fmt: skip
def test_errors_of_sums_by_hand(model: Model, terms: int, by_hand: float) -> None:
    """In roundings of float32: the smaller of the height and what is likely, of each chunk and of the chunks' sums."""
    assert np.isclose(model.sum_error(terms) / U, by_hand, rtol=1e-12, atol=0)


@pytest.mark.parametrize("model", [Model(), Model(height=tree_height), Model(sum_precision=53), Model(chunk=8, sum_precision=14),
                                   Model(operands=formats.get("bf16"), exact=False)],
                         ids=["pairs", "tree", "float64", "chunks", "bf16"])  # fmt: skip
def test_sums_and_products_have_the_errors_of_their_terms(model: Model) -> None:
    """What the terms bring, and the additions of those that are not certainly 0; products are a rounding more, and are added."""
    x, y = (generator("terms", k).standard_normal((6, 90), np.float32).astype(float) for k in range(2))
    x[:, ::3] = 0
    for moved in (0.0, 1e-4):
        a, b = ErrorArray(x, moved * np.abs(y), model), ErrorArray(y, 0.0, model)
        size, wide = np.abs(x) + a.error, model.sum_precision > model.precision
        few = 90 if moved else 60

        def demand(made: ErrorArray, terms: Any, size: Any, brought: Any) -> None:
            shares = np.vectorize(model.sum_error, otypes=[float])(terms)
            error = brought + shares * size
            kept = error + (model.unit * (np.abs(made.value) + error) + model.tiny) * (wide & (error > 0))  # noqa: B023
            assert np.allclose(made.error, kept, rtol=1e-6, atol=1e-40)

        demand(a.sum(axis=1), few, size.sum(axis=1), a.error.sum(axis=1))
        demand(a.sum(axis=(0, 1), keepdims=True), 6 * few, size.sum(keepdims=True), a.error.sum(keepdims=True))
        if not wide:  # sums are kept as they are, and their sum is one of all terms
            demand(a.sum(axis=0).sum(), 6 * 90, size.sum(), a.error.sum())
        demand(np.cumsum(a, axis=1), np.arange(1, 91), size.cumsum(axis=1), a.error.cumsum(axis=1))
        demand(np.cumsum(a, axis=0), np.arange(1, 7)[:, None], size.cumsum(axis=0), a.error.cumsum(axis=0))
        spaced = [
            model.operands.spacing(np.abs(v) + d) / 2 if model.operands else 0.0 for v, d in ((x, a.error), (y, 0))
        ]
        half = spaced[0] * ((x != 0) | (a.error > 0)), spaced[1]
        big = (size + half[0]) @ (np.abs(y) + half[1]).T
        for made in (a @ b.T, np.dot(a, b.T), np.einsum("ik,jk->ij", a, b), np.tensordot(a, b, ((1,), (1,)))):
            demand(made, 91, big, big - np.abs(x) @ np.abs(y).T)
    scaled = ErrorArray(2.0**10 * np.rint(x * 8), 0.0, model)
    for made in (scaled.sum(axis=1), np.cumsum(scaled, axis=1), added(scaled[0] * 0, [0] * 90, scaled[1])):
        assert made.error.any() == (not model.exact or model.sum_precision < 14)
