"""Integers and booleans of ONNX models: computed in their own type, also where a float decides them."""

import math
from typing import Any

import numpy as np
import pytest

import tlrt
from tests import DEVICES
from tests.runtime.onnx_graphs import run

pytest.importorskip("onnx")
WIDE = {"int32": 2**24, "int64": 2**53, "uint32": 2**31, "uint8": 2**6}


def drawn(seed: int, kind: str, *shape: int) -> np.ndarray:
    """Integers that float32 cannot hold, where the type has them."""
    rng = np.random.default_rng(seed)
    low = 1 if kind.startswith("u") else -9
    return (rng.integers(low, 10, shape) + WIDE[kind] * rng.integers(0, 2, shape)).astype(kind)


def wrapped(values: Any, like: np.ndarray) -> np.ndarray:
    """Python's integers, cut to a type."""
    bits = like.dtype.itemsize * 8
    flat = [int(v) % 2**bits for v in np.asarray(values, object).reshape(-1)]
    return np.array(flat, f"uint{bits}").astype(like.dtype).reshape(np.shape(values))


def exactly(found: Any, expected: Any, kind: Any) -> None:
    assert isinstance(found, np.ndarray) and found.dtype == np.dtype(kind)
    assert found.shape == np.shape(expected) and np.array_equal(found, expected)


def test_a_remainder_has_the_sign_of_what_is_asked_and_a_power_below_zero_is_whole() -> None:
    a, b = np.array([7, -7, 7, -7]), np.array([3, 3, -3, -3])
    exactly(run("Mod", a, b, fmod=1), [math.fmod(x, y) for x, y in zip(a, b)], np.int64)
    exactly(run("Mod", a, b, fmod=0), [1, 2, -2, -1], np.int64)
    exactly(run("Pow", np.array([2, 1, -1, -1]), np.array([-1, -5, -4, -3])), [0, 1, 1, -1], np.int64)


@pytest.mark.parametrize("kind", ["int32", "int64"])
@pytest.mark.parametrize("keep", [0, 1])
def test_reductions_stay_in_their_type(kind: str, keep: int) -> None:
    x = drawn(3, kind, 4, 3)
    columns = [[int(v) for v in column] for column in x.T]
    wanted = {
        "ReduceSum": [sum(c) for c in columns], "ReduceProd": [math.prod(c) for c in columns],
        "ReduceMax": [max(c) for c in columns], "ReduceMin": [min(c) for c in columns],
        "ReduceSumSquare": [sum(v * v for v in c) for c in columns], "ReduceL1": [sum(map(abs, c)) for c in columns],
        "ReduceMean": [int(s / 4) if abs(s) < 2**50 else abs(s) // 4 * (1 if s > 0 else -1) for s in map(sum, columns)],
        "ReduceL2": [math.isqrt(sum(v * v for v in c)) for c in columns],
    }  # fmt: skip
    for op, values in wanted.items():
        expected = wrapped(np.array(values, object).reshape((1, 3) if keep else (3,)), x)
        exactly(run(op, x, np.array([0]), keepdims=keep), expected, kind)


@pytest.mark.parametrize("kind", ["int32", "int64", "uint32", "uint64"])
def test_a_root_beyond_its_type_wraps(kind: str) -> None:
    x = np.full(4, np.iinfo(kind).max, kind)
    exactly(run("ReduceL2", x, keepdims=0), wrapped(np.array(2 * int(x[0]), object), x), kind)


def test_products_sums_and_choices_of_integers() -> None:
    a, b = drawn(1, "int64", 2, 3), drawn(2, "int64", 3, 2)
    exactly(run("MatMul", a, b), wrapped(a.astype(object) @ b.astype(object), a), np.int64)
    exactly(run("Gemm", a, a, transB=1), wrapped(a.astype(object) @ a.astype(object).T, a), np.int64)
    exactly(run("Relu", -a, opset=14), np.maximum(-a, 0), np.int64)
    exactly(run("CumSum", a[0], np.array([0])), np.cumsum(a[0]), np.int64)
    exactly(run("CumSum", a[0], np.array(0), exclusive=1, reverse=1), [a[0, 1] + a[0, 2], a[0, 2], 0], np.int64)
    exactly(run("Where", np.array([True, False, True]), a, -a), np.where([True, False, True], a, -a), np.int64)
    exactly(run("OneHot", np.array([-1, 3, 0]), np.array([3]), a[0, :2]),
            [[a[0, 0], a[0, 0], a[0, 1]], [a[0, 0]] * 3, [a[0, 1], a[0, 0], a[0, 0]]], np.int64)  # fmt: skip
    exactly(run("Range", np.array(7), np.array(1), np.array(-2)), [7, 5, 3], np.int64)
    for reduction, expected in (("none", [9, 8, 7]), ("add", [9 + a[0, 0], 8 + a[0, 1], 7 + a[0, 2]])):
        found = run("ScatterElements", a[0], np.array([0, 1, 2]), np.array([9, 8, 7]), reduction=reduction)
        exactly(found, expected, np.int64)


@pytest.mark.parametrize("kind", ["float32", "int64", "bool"])
def test_the_places_of_a_scalar_have_no_axis(kind: str) -> None:
    for value in (0, 5):
        exactly(run("NonZero", np.array(value, kind)), np.zeros((0, int(value > 0))), np.int64)


@pytest.mark.parametrize("kind", ["uint8", "int8", "int32", "int64", "bool"])
def test_a_cast_goes_towards_zero_and_has_the_type(kind: str) -> None:
    from onnx import helper

    number = helper.np_dtype_to_tensor_dtype(np.dtype(kind))
    x = np.array([0.0, 1.5, 2.999, 99.5, 0.25, math.nan][: 6 if kind == "bool" else 5], np.float32)
    exactly(run("Cast", x, to=number), x.astype(kind), kind)
    exactly(run("Cast", np.array([3, 0, 7]), to=number), np.array([3, 0, 7]).astype(kind), kind)
    exactly(run("Cast", np.array([True, False]), to=number), np.array([1, 0]).astype(kind), kind)


FLOATS = np.random.default_rng(5).standard_normal((4, 6)).astype(np.float32)


@pytest.mark.parametrize("device", ["spec", *DEVICES])
@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("i = ArgMax<axis=1, keepdims=0>(x) y = Add(i, one)", FLOATS.argmax(1) + 1),
        ("i = ArgMin<axis=0, keepdims=0>(x) y = Mul(i, big)", FLOATS.argmin(0) * (2**53 + 1)),
        ("i = ArgMax<axis=1, keepdims=0>(x) y = Equal(i, one)", FLOATS.argmax(1) == 1),
        ("i = ArgMax<axis=1, keepdims=0>(x) y = Concat<axis=0>(i, one)", [*FLOATS.argmax(1), 1]),
        ("i = ArgMax<axis=1>(x) y = GatherElements<axis=1>(x, i)", FLOATS.max(1, keepdims=True)),
        ("i = ArgMax<axis=1, keepdims=0>(x) f = Cast<to=1>(i) y = Mul(f, half)", FLOATS.argmax(1) * np.float32(0.5)),
        ("m = Greater(x, half) y = NonZero(m)", np.array(np.nonzero(FLOATS > 0.5))),
        ("m = Greater(x, half) n = Not(m) y = Cast<to=7>(n)", (FLOATS <= 0.5).astype(np.int64)),
        ("m = Greater(x, half) y = Where(m, big, one)", np.where(FLOATS > 0.5, 2**53 + 1, 1)),
        ("m = Less(x, half) l = LessOrEqual(half, x) y = Or(m, l)", np.ones((4, 6), bool)),
        ("m = Less(x, half) y = Transpose(m)", (FLOATS < 0.5).T),
        ("m = Less(x, half) t = Greater(x, half) y = Equal(m, t)", np.zeros((4, 6), bool)),
        ("m = Less(x, half) k = Cast<to=7>(m) y = ReduceSum<keepdims=0>(k)", (FLOATS < 0.5).sum()),
        ("v, i = TopK(x, one) y = Squeeze(i)", FLOATS.argmax(1)),
        ("s = ReduceMax<keepdims=0>(half) y = Range(zero, two, s)", np.array([0, 0.5, 1, 1.5], np.float32)),
        ("i = ArgMax<axis=1, keepdims=0>(x) y = OneHot(i, six, x01)", np.eye(6, dtype=np.float32)[FLOATS.argmax(1)]),
        ("m = IsNaN(x) y = Xor(m, m)", np.zeros((4, 6), bool)),
        ("u = Unique(x) y = Shape(u)", [24]),
        ("i = NonZero(x) t = Transpose(i) y = GatherND(x, t)", FLOATS.reshape(-1)),
        ("m = Greater(x, half) f = Flatten(m) r = Reshape(f, flat) y = Compress(big6, r)",
         np.full((FLOATS > 0.5).sum(), 2**53 + 1)),
    ],
)  # fmt: skip
def test_what_floats_decide_is_computed_at_run_time(device: str, text: str, expected: Any) -> None:
    from onnx import helper, numpy_helper, parser

    constants = {"one": np.array([1]), "big": np.array(2**53 + 1), "half": np.array(0.5, np.float32), "six": np.array(6),
                 "zero": np.array(0, np.float32), "two": np.array(2, np.float32), "flat": np.array([-1]),
                 "x01": np.array([0, 1], np.float32), "big6": np.full(24, 2**53 + 1)}  # fmt: skip
    model = parser.parse_model('<ir_version: 9, opset_import: ["": 18]> g (float[4, 6] x) => (y) {' + text + "}")
    model.graph.initializer.extend(numpy_helper.from_array(v, n) for n, v in constants.items())
    kind = helper.np_dtype_to_tensor_dtype(np.asarray(expected).dtype)
    model.graph.output[0].CopyFrom(helper.make_tensor_value_info("y", kind, None))
    with tlrt.Session(device) as s:
        found = tlrt.onnx.load(model).bind(s)(FLOATS)
        if np.asarray(expected).dtype.kind == "f":
            assert np.array_equal(found.numpy(), expected)
        else:
            exactly(found, expected, np.asarray(expected).dtype)
