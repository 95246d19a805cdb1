"""ONNX operators on floats at which formulas overflow, cancel, or lose a sign: float64 says what is right."""

import itertools
import math
from typing import Any

import numpy as np
import pytest

import tlrt
from tests import DEVICES
from tests.runtime.onnx_graphs import graph_of, run
from tlrt.errors import ArgumentTypeError

pytest.importorskip("onnx")
importer = pytest.importorskip("tlrt.onnx")
INF, MOST, LEAST = math.inf, float(np.finfo(np.float32).max), 1e-45


X = np.random.default_rng(9).standard_normal((1, 2, 4, 5)).astype(np.float32)


def drawn(seed: int, count: int = 4000) -> np.ndarray:
    """Numbers of every exponent and both signs, and the special ones."""
    bits = np.random.default_rng(seed).integers(0, 2**32, count, np.uint64).astype(np.uint32).view(np.float32)
    special = [0.0, INF, LEAST, 1.2e-38, MOST, 1, 89.2, 0.5, 1e20]
    return np.concatenate([bits, np.array([math.nan, *special, *(-v for v in special)], np.float32)])


def within(found: np.ndarray, exact: np.ndarray, ulps: float) -> None:
    """So many units in the last place from float64 rounded to float32, with the sign of a zero; NaN where float64 has it."""
    with np.errstate(all="ignore"):
        right = exact.astype(np.float32)
        step = np.spacing(np.where(np.isfinite(right), np.abs(right), np.float32(MOST)))
        near = np.abs(found.astype(np.float64) - exact) <= ulps * step.astype(np.float64)
    edge = np.isinf(found) & (np.abs(exact) > MOST * (1 - ulps * 2.0**-23)) & (np.sign(found) == np.sign(exact))
    good = (near | (found == right) | edge | (np.isnan(found) & np.isnan(exact))) & (np.isnan(found) == np.isnan(exact))
    zero = (found == 0) & (right == 0)
    good &= ~zero | (np.signbit(found) == np.signbit(right))
    assert good.all(), [(found[k], exact[k]) for k in np.flatnonzero(~good)[:5]]


#: functions of several steps with the units in the last place that these add up to: a function of the library has 3/2, a
#: rounding 1/2
FUNCTIONS: dict[str, tuple[Any, float]] = {
    "Sinh": (np.sinh, 6), "Cosh": (np.cosh, 5), "Asinh": (np.arcsinh, 4), "Acosh": (np.arccosh, 4), "Atanh": (np.arctanh, 4),
    "Tan": (np.tan, 3), "Atan": (np.arctan, 2), "Asin": (np.arcsin, 4), "Acos": (np.arccos, 4),
}  # fmt: skip


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("op", FUNCTIONS)
def test_functions_over_the_whole_range(op: str, device: str) -> None:
    function, ulps = FUNCTIONS[op]
    x = drawn(1)
    x = np.concatenate([x, np.linspace(-90, 90, 2001, dtype=np.float32), np.linspace(-2, 2, 2001, dtype=np.float32)])
    x = x[np.abs(x) < 2.0**120] if op == "Tan" else x  # beyond it NumPy's own reduction is the question
    with np.errstate(all="ignore"):
        within(run(op, x, device=device), function(x.astype(np.float64)), ulps)


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("fmod", [0, 1])
def test_remainders_are_exact(fmod: int, device: str) -> None:
    x = drawn(2)
    pairs = np.random.default_rng(3).permutation(x), x
    with np.errstate(all="ignore"):
        exact = (np.fmod if fmod else np.mod)(pairs[0], pairs[1])
    found = run("Mod", *pairs, device=device, fmod=fmod, opset=13 if fmod else 28)
    assert np.array_equal(found, exact, equal_nan=True)
    numbers = ~np.isnan(exact)
    assert np.array_equal(np.signbit(found[numbers]), np.signbit(exact[numbers]))
    given = np.array([1e10, 1e20, 7.75, 3.4e38, 5], np.float32), np.array([3, 7, 1.1754944e-38, 0.5, INF], np.float32)
    assert run("Mod", *given, fmod=1).tolist() == [1, 3, 0, 0, 5]


@pytest.mark.parametrize("fmod", [0, 1])
def test_a_remainder_has_gradients(fmod: int) -> None:
    """1 by the dividend, and by the divisor minus the whole part of the quotient, which float64 has exactly here."""
    rng = np.random.default_rng(5)
    a, b = ((n * rng.standard_normal(2000)).astype(np.float32) for n in (100, 3))
    a, b = np.append(a, np.array([7.5, -7.5, 3, -6], np.float32)), np.append(b, np.array([2, 2, INF, 3], np.float32))
    with tlrt.Session("cpu") as s:
        x, y = s.input(a, requires_grad=True), s.input(b, requires_grad=True)
        out = importer.load(graph_of("Mod", a, b, fmod=fmod, opset=13 if fmod else 28)).bind(s)(x, y)
        s.backward(out.sum())
        assert np.array_equal(out.numpy()[-4:], [1.5, -1.5 if fmod else 0.5, 3, 0])
        assert np.signbit(out.numpy()[-1]) == bool(fmod)
        assert x.grad is not None and np.all(x.grad.numpy() == 1)
        whole = (np.trunc if fmod else np.floor)(a.astype(np.float64) / b)
        assert y.grad is not None and np.array_equal(y.grad.numpy(), -whole)


@pytest.mark.parametrize("op", ["CumSum", "CumProd"])
@pytest.mark.parametrize("reverse", [0, 1])
def test_running_results_that_leave_out_their_element_are_shifted(op: str, reverse: int) -> None:
    for seed in range(5):
        x = np.random.default_rng(seed).choice(np.array([1, 1e8, -1e8, 3, INF, 2, 1e-8], np.float32), (3, 6))
        turned = x[:, ::-1] if reverse else x
        first = 0 if op == "CumSum" else 1
        whole = np.cumsum if op == "CumSum" else np.cumprod
        with np.errstate(all="ignore"):
            expected = whole(np.concatenate([np.full((3, 1), first), turned[:, :-1].astype(np.float64)], 1), 1)
            size = whole(np.concatenate([np.full((3, 1), first), np.abs(turned[:, :-1]).astype(np.float64)], 1), 1)
        found = run(op, x, np.array([-1]), exclusive=1, reverse=reverse, opset=26)
        found = found[:, ::-1] if reverse else found
        finite = np.isfinite(expected)
        assert np.array_equal(np.isnan(found), np.isnan(expected)) and np.array_equal(found == INF, expected == INF)
        assert (np.abs(found - expected)[finite] <= 5 * 2.0**-23 * size[finite]).all()


def test_a_class_of_no_chance_costs_nothing_where_it_is_no_label() -> None:
    rng = np.random.default_rng(4)
    scores = np.log(rng.random((6, 4))).astype(np.float32)
    scores[:, 1], labels = -INF, np.array([0, 2, 3, 0, 1, 2])
    each = run("NegativeLogLikelihoodLoss", scores, labels, reduction="none")
    assert np.array_equal(each, -scores[range(6), labels])
    kept = run("NegativeLogLikelihoodLoss", scores, labels, reduction="none", ignore_index=1)
    assert np.array_equal(kept, np.where(labels == 1, 0, -scores[range(6), labels]))


def test_what_is_chosen_by_comparisons() -> None:
    x = drawn(6)
    with np.errstate(all="ignore"):
        wanted = np.where(x < -0.5, x + np.float32(0.25), np.where(x > 0.5, x - np.float32(0.25), np.float32(0)))
    assert np.array_equal(run("Shrink", x, bias=0.25), wanted)
    for alpha in (0.5, 2.0):
        with np.errstate(all="ignore"):
            exact = np.where(x > 0, x.astype(np.float64), alpha * np.expm1(np.minimum(x, 0).astype(np.float64) / alpha))
        within(run("Celu", x, alpha=alpha), np.where(x == 0, 0 * x, exact), 3)


def test_a_power_of_many_is_odd_or_even_as_it_was() -> None:
    """2^24 + 1 is odd, and float32 cannot hold it."""
    base = np.array([-1, -1, -2, 1, 3], np.float32)
    power = np.array([2**24 + 1, 2**24 + 2, -(2**24 + 1), 2**53 + 1, 3])
    assert run("Pow", base, power).tolist() == [-1, 1, -0.0, 1, 27]


@pytest.mark.parametrize("keys", [3, 2])
@pytest.mark.parametrize("causal", [0, 1])
@pytest.mark.parametrize("device", DEVICES)
def test_a_mask_of_floats_blocks_as_one_of_booleans(device: str, causal: int, keys: int) -> None:
    """Attention with a mask that Greater computes is attention with the same mask as an input."""
    from onnx import parser

    rng = np.random.default_rng(7)
    q, k, v = (rng.standard_normal((1, 2, 3, 4)).astype(np.float32) for _ in range(3))
    open_ = rng.standard_normal((3, keys)).astype(np.float32)
    open_[:, 0], open_[2] = 1, -1  # the last query sees nothing
    kind = "float[1,2,3,4]"
    model = parser.parse_model(
        f'<ir_version: 10, opset_import: ["": 24]> g ({kind} q, {kind} k, {kind} v, float[3,{keys}] m, float z) => ({kind} y)'
        "{ b = Greater(m, z) y = Attention<is_causal = %d>(q, k, v, b) }" % causal
    )
    with tlrt.Session(device) as s:
        found = importer.load(model).bind(s)(q, k, v, open_, np.zeros((), np.float32)).numpy()
    expected = run("Attention", q, k, v, open_ > 0, device=device, opset=24, is_causal=causal)
    assert np.array_equal(found, expected) and (found[:, :, 2] == 0).all() and np.abs(found[:, :, :2]).min() > 0


@pytest.mark.parametrize(("op", "opset"), [("LayerNormalization", 17), ("RMSNormalization", 23)])
def test_scales_of_norms_broadcast(op: str, opset: int) -> None:
    for scale in (X[0, 0, :, :1], X[0, 0, 0], X[0, 0, 0, :1]):
        found, whole = (run(op, X, s, axis=2, opset=opset) for s in (scale, np.broadcast_to(scale, (4, 5))))
        assert np.array_equal(found, whole)


@pytest.mark.parametrize("kind", [np.float32, np.int64])
def test_a_crop_of_the_same_length_is_a_crop(kind: Any) -> None:
    """What is outside has the value that is said; lengths that keep a ratio are rounded up from a half."""
    x, region = np.arange(1, 6, dtype=kind).reshape(1, 1, 5), np.array([0.25, 1.25], np.float32)
    more = {"coordinate_transformation_mode": "tf_crop_and_resize", "axes": [2], "extrapolation_value": 9.0}
    assert run("Resize", x, region, None, np.array([5]), opset=19, **more).tolist() == [[[2, 3, 4, 5, 9]]]
    wide, kept = np.ones((1, 1, 4, 2), kind), {"axes": [2, 3], "keep_aspect_ratio_policy": "not_larger"}
    assert run("Resize", wide, None, None, np.array([5, 100]), opset=19, **kept).shape == (1, 1, 5, 3)
    scaled = run(
        "Resize", X, None, np.float32([1.25, 1.25]), opset=19, mode="linear", axes=[2, 3]
    )  # places are those of the ratio
    assert np.array_equal(run("Resize", X, None, None, np.array([5, 100]), opset=19, mode="linear", **kept), scaled)


def test_places_far_away_are_outside() -> None:
    """Infinite ones, too; where the border counts they are at it."""
    grid = np.array([[[[-INF, 0], [INF, 0], [0, -INF], [1e30, 0], [0, 0]]]], np.float32)
    for mode in ("linear", "nearest", "cubic"):
        found = run("GridSample", X, grid, mode=mode, align_corners=1, opset=20)
        assert (found[..., :4] == 0).all() and (found[..., 4] != 0).all()
    ends = run("GridSample", X, grid[..., :2, :], padding_mode="border", align_corners=1, opset=20)
    assert np.allclose(ends[0, :, 0], (X[0, :, 1, ::4] + X[0, :, 2, ::4]) / 2)


@pytest.mark.parametrize("p", [1, 2, 3])
def test_norms_neither_overflow_nor_vanish(p: int) -> None:
    for scale in (1e-30, 1.0, 1e30):
        x = (np.random.default_rng(8).standard_normal((1, 2, 4, 4)) * scale).astype(np.float32)
        wide = np.abs(x.astype(np.float64))
        found = run("GlobalLpPool", x, p=p)
        assert np.allclose(found, (wide**p).sum((2, 3), keepdims=True) ** (1 / p), 20 * 2.0**-23, 0)
        pooled = run("LpPool", x, kernel_shape=[2, 2], strides=[2, 2], p=p)
        blocks = wide.reshape(1, 2, 2, 2, 2, 2).transpose(0, 1, 2, 4, 3, 5).reshape(1, 2, 2, 2, 4)
        assert np.allclose(pooled, (blocks**p).sum(-1) ** (1 / p), 8 * 2.0**-23, 0)


def test_the_place_of_a_largest_element_is_never_in_the_padding() -> None:
    drawn_x = np.random.default_rng(4).standard_normal((2, 3, 4, 5))
    x = np.where(drawn_x > 0, -INF, drawn_x).astype(np.float32)
    x[0, 0] = -INF
    for order, flat in ((0, x), (1, x.swapaxes(-1, -2))):
        y, places = run("MaxPool", x, kernel_shape=[2, 3], pads=[1, 2, 1, 2], outputs=2, storage_order=order, opset=22)
        assert places.min() >= 0 and np.array_equal(flat.reshape(-1)[places], y)


def test_what_is_empty_is_computed() -> None:
    assert run("Hardmax", np.zeros((2, 0), np.float32)).shape == (2, 0)
    for op, kind in itertools.product(("CumSum", "CumProd"), (np.float32, np.int64)):
        assert run(op, np.zeros((2, 0), kind), np.array(1), exclusive=1, opset=26).shape == (2, 0)
    for op, most in (("ReduceMax", -INF), ("ReduceMin", INF)):
        assert np.array_equal(
            run(op, np.zeros((2, 0, 3), np.float32), np.array([1]), opset=20), np.full((2, 1, 3), most)
        )
    assert run("RoiAlign", X, np.zeros((0, 4), np.float32), np.zeros(0, np.int64), output_width=3).shape == (0, 2, 1, 3)
    for op, gates in (("LSTM", 4), ("GRU", 3), ("RNN", 1)):
        w, r = np.ones((1, gates * 3, 2), np.float32), np.ones((1, gates * 3, 3), np.float32)
        first = np.full((1, 5, 3), 7, np.float32)
        x = np.zeros((0, 5, 2), np.float32)
        y, last = run(op, x, w, r, None, None, first, hidden_size=3, outputs=2, opset=22)
        assert y.shape == (0, 1, 5, 3) and np.array_equal(last, first)


@pytest.mark.parametrize("kind", [np.float32, np.float64, np.float16, np.int64, np.uint8, np.bool_, float, int, bool])
def test_numbers_are_inputs(kind: Any) -> None:
    numbers = [np.float32(v) for v in (0, 5, 1)]
    bound = importer.load(graph_of("Range", *(np.array(v) for v in numbers)))
    with tlrt.Session("cpu") as s:
        found = bound.bind(s)(kind(0), numbers[1], kind(1))
        assert np.array_equal(found.numpy(), np.arange(5))
        with pytest.raises(ArgumentTypeError, match="x0: got an array of complex128"):
            bound.bind(s)(np.array(1j), *numbers[1:])
