"""The specification in other types of numbers: NumPy's floats without rounding to float32, and exact fractions."""

from fractions import Fraction
from typing import Any

import numpy as np
import pytest
from numpy.testing import assert_raises, assert_raises_regex

import tlrt
from tests.runtime.operation_calls import CALLED, CALLS
from tlrt import errors
from tlrt.spec import SpecDevice
from tlrt.tape import Tape
from tlspec.bounds import spacing
from tlspec.drawn import generator

THIRD = Fraction(1, 3)
#: methods that take fractions; any other gives what it gives in float64 or says that it does not
RATIONAL = {
    "abs", "add", "avg_pool", "avg_pool2d", "avg_pool2d_pad", "axpy", "bmm", "broadcast_to", "broadcast_vec_to_cols",
    "broadcast_vec_to_rows", "concat1d", "concat_dim0", "concat_vectors", "conv", "conv2d", "conv_transpose",
    "conv_transpose2d", "div", "embedding", "eq", "flatten", "floor", "gather_row", "ge", "gt", "hardswish", "le", "lt", "ne",
    "sign", "where", "gather_rows_nat", "gather_scalar",
    "gather_scalar_nat", "gather_vec_nat", "inv", "linear", "matmul", "mse_loss", "mul", "neg", "permute", "reduce_mean",
    "reduce_sum", "reduce_sum_axis0", "reduce_sum_axis1", "relu", "reshape", "scale", "scatter_add", "scatter_add_row",
    "scatter_add_rows", "scatter_add_vec", "slice1d", "slice_range0", "square", "sub", "swap_adjacent_at_depth",
    "transpose2d", "transpose3d_acb", "transpose3d_bca", "transpose3d_cab",
}  # fmt: skip


def run(scalar: Any, name: str, number: int) -> list[np.ndarray] | str:
    """The value of a method and its gradients, or what it says of the type."""
    call = CALLS[name][number]
    with Tape(SpecDevice(scalar)) as tape:
        ids = [tape.leaf(a) for a in call.operands(name)]
        try:
            out = call.call(tape, *ids)
            seed = generator("seed", name).standard_normal(tape.shape(out)).astype(np.float32)
            grads = tape.backward_sparse(out, ids, seed)
        except errors.ArgumentTypeError as error:
            return str(error)
        return [tape.value(out).numpy(), *(grads[i].numpy() for i in ids)]


@pytest.mark.parametrize("called", CALLED)
@pytest.mark.parametrize("scalar", [np.float64, np.longdouble, Fraction], ids=lambda s: s.__name__)
def test_operations_in_other_types(scalar: Any, called: tuple[str, int]) -> None:
    """Every operation gives what it gives in float64, within a float32 spacing of the largest element, and leaves the type
    nowhere, or says that it does."""
    found, expected = run(scalar, *called), run(None, *called)
    if isinstance(found, str):
        assert scalar is not np.float64 and "expected" in found
        assert scalar is np.longdouble or called[0] not in RATIONAL
        return
    for got, wanted in zip(found, expected, strict=True):
        assert got.dtype == np.dtype(scalar)
        if scalar is Fraction:
            assert all(type(v) is Fraction for v in got.reshape(-1))
        assert np.all(np.abs(got.astype(np.float64) - wanted) <= spacing(np.abs(wanted).max(initial=0)))


def test_training_is_exact_in_fractions() -> None:
    """Against the formulas in Python's own arithmetic: no float takes part."""
    w0, x, t = [THIRD, Fraction(-2, 7)], [Fraction(3, 5), THIRD], Fraction(1, 11)
    with tlrt.Session(SpecDevice(Fraction), seed=1) as s:
        w = s.param(w0)
        optimizer = tlrt.optim.SGD([w], lr=0.125)
        error = s.sub(s.relu(s.reduce_sum(s.mul(w, s.const(x)))), s.const(t))
        s.backward(s.square(error))
        product = sum(a * b for a, b in zip(w0, x, strict=True))
        assert error.numpy()[()] == product - t
        assert w.grad is not None and w.grad.numpy().tolist() == [2 * (product - t) * v for v in x]
        optimizer.step()
        assert w.value.tolist() == [a - Fraction(1, 8) * 2 * (product - t) * v for a, v in zip(w0, x, strict=True)]
        assert s.scale(s.const([3]), THIRD).numpy().tolist() == [1]
        drawn = s.rand_uniform(5).numpy()
        assert all(type(v) is Fraction and v.denominator <= 2**24 for v in drawn)
        w.set([1, 0.1])
        assert w.value.tolist() == [1, Fraction(0.1)] and "Fraction" in s.device.describe()
        assert s.get_value(s.linear(s.const([[3]]), s.const([0]), s.const([THIRD]))).tolist() == [1]
        with pytest.raises(errors.ArgumentTypeError, match="save: session: got one that computes in object"):
            tlrt.checkpoint.save("never.safetensors", s)


@pytest.mark.parametrize("scalar", [np.float64, np.float32, np.longdouble, object])
def test_nothing_is_rounded_on_the_way_in(scalar: Any) -> None:
    device = SpecDevice(scalar)
    tenth = 0.1 if scalar is object else scalar(0.1)
    with tlrt.Session(device) as s:
        x = s.const([0.1, 2])
        for got in (
            x.numpy()[0], s.scale(s.const([1.0]), 0.1).numpy()[0], s.full(1, 0.1).numpy()[0], s.param([0.1]).value[0],
        ):  # fmt: skip
            assert got == tenth and type(got) is type(tenth)
        assert device.buffer([0.1]).fill(0.1).numpy()[0] == tenth and not device.zeros(2).numpy().any()
        assert s.zeros(3).numpy().dtype == device.empty(3).numpy().dtype == np.dtype(scalar)
        assert "0.1" in repr(x.value)


def test_what_has_no_such_form_is_refused() -> None:
    for scalar, value in (
        (Fraction, [0.5, "many"]), (Fraction, np.nan), (np.int64, 0.5), (np.float64, 1j), (np.float64, "1"),
    ):  # fmt: skip
        assert_raises(errors.ArgumentTypeError, SpecDevice(scalar).buffer, value)
    with tlrt.Session(SpecDevice(Fraction)) as s:
        assert_raises_regex(errors.ArgumentTypeError, "^exp: scalar: got Fraction", s.exp, s.const([1]))
    with tlrt.Session(SpecDevice(np.int64)) as s:
        x = s.const([1, 2])
        assert s.mul(x, x).numpy().tolist() == [1, 4]
        assert_raises_regex(errors.ArgumentTypeError, "^div: scalar: got a result of float64", s.div, x, x)
