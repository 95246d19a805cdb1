"""Tensors of a session: NumPy operands, indices, comparisons, copies, and arguments of wrong types."""

import copy
import operator
import pickle
import pydoc
import re

import numpy as np
import pytest
from numpy.testing import assert_raises, assert_raises_regex

import tlrt
from tlrt import Session, errors, optim
from tlrt.session import Options
from tlrt.tensor import NatRef


@pytest.mark.parametrize(
    "two", [2, 2.0, np.float32(2), np.float64(2), np.int64(2), np.array(2.0), np.array(2)], ids=repr
)
def test_numbers_of_numpy_are_numbers(s, two):
    """On either side, and the result is a tensor with a gradient, no array without one."""
    for x in (s.input([1.0, 4.0], requires_grad=True), s.param([1.0, 4.0])):
        for got, expected in [
            (two * x, [2, 8]), (x * two, [2, 8]), (two + x, [3, 6]), (x + two, [3, 6]), (two - x, [1, -2]),
            (x - two, [-1, 2]), (two / x, [2, 0.5]), (x / two, [0.5, 2]),
        ]:  # fmt: skip
            assert isinstance(got, tlrt.TensorRef) and got.requires_grad and got.numpy().tolist() == expected


@pytest.mark.parametrize("power", [0, 1, 2, 2.0, 2.5, 2.999, 3, -1, -2, 0.5, np.float32(2.25), np.int64(2)], ids=repr)
def test_powers_by_any_number(s, power):
    x = np.array([0.25, 1.0, 4.0, 9.0])
    for given in (s.input(x), s.param(x)):
        np.testing.assert_allclose((given**power).numpy(), x**power, rtol=1e-6)


def test_arrays_are_refused_not_absorbed(s):
    for x in (s.input([[1.0, 2.0]]), s.param([[1.0, 2.0]])):
        before = s.tape.size
        for call in (
            lambda x=x: np.ones((1, 2)) * x, lambda x=x: x * np.ones((1, 2)), lambda x=x: np.ones(2) + x,
            lambda x=x: np.ones((2, 1)) @ x, lambda x=x: x @ np.ones((2, 1)),
        ):  # fmt: skip
            said = r"got ndarray of float64, expected TensorRef or Parameter \(Session.const"
            assert_raises_regex(TypeError, said, call)
        assert_raises_regex(TypeError, "does not support ufuncs", np.exp, x)
        for other in ("a", None, [1.0], 1j):
            for a, b in ((x, other), (other, x)):
                assert_raises_regex(TypeError, r"^add: tensor: got", operator.add, a, b)
        assert s.tape.size - before <= 1, "refused operations stay on the tape"  # the parameter's leaf
        assert np.array_equal(np.asarray(x), [[1, 2]])
        assert_raises_regex(ValueError, "copy", np.asarray, x, copy=False)


@pytest.mark.parametrize(
    ("function", "said"),
    [
        (np.mean, "numpy.mean: got a {} (the result would have no gradient), expected mean, or numpy() of it"),
        (lambda x: np.concatenate([np.ones((1, 2)), x]), "numpy.concatenate: got a {} (…), expected Session.concat, or …"),
        (lambda x: np.where([[True, False]], 1.0, x), "numpy.where: got a {} (…), expected …numpy() of it"),
        (lambda x: np.clip(x, 0, 1), "numpy.clip: got a {} (…), expected clamp, or …"),
        (np.fft.rfft, "numpy.fft.rfft: got a {} (…), expected rfft1d_packed, or …"),
        (np.zeros_like, "numpy.zeros_like: got a {} (…), expected Session.zeros, or …"),
        (np.linalg.inv, "numpy.linalg.inv: got a {} (…), expected …numpy() of it"),
        (np.sort, "numpy.sort: got a {} (…), expected numpy() of it"),
        (lambda x: np.size(x, 0), "numpy.size: got a {} (…), expected size, or …"),
    ],
)  # fmt: skip
def test_functions_of_numpy_cut_no_gradient(s, function, said):
    kept = s.param([[5.0, 6.0]], "kept")
    captured = [] if s.device.name == "spec" else [s.capture(lambda a: s.relu(s.const(a)), kept.numpy())(kept.numpy())]
    for x in (s.input([[1.0, 2.0]], requires_grad=True), kept, *captured):
        before = s.tape.size
        pattern = re.escape(said.format(type(x).__name__)).replace("…", ".*")
        assert_raises_regex(errors.ArgumentTypeError, f"^{pattern}$", function, x)
        assert s.tape.size == before and (np.shape(x), np.ndim(x), np.size(x)) == ((1, 2), 2, 2)


def test_a_number_and_a_wrong_operand_record_nothing(s):
    before = s.tape.size
    assert_raises(TypeError, s.add, 1.0, "a")
    assert s.tape.size == before


def test_parameters_compute_as_tensors_do(s):
    w = s.param([[1.0, 2.0], [3.0, 4.0]], "w")
    value = w.numpy()
    assert np.allclose((w @ w).tanh().numpy(), np.tanh(value @ value))
    for got, expected in [(w + w, 2 * value), (1 - w, 1 - value), (-w, -value), (w**2, value**2), (w[1], value[1])]:
        assert np.array_equal(got.numpy(), expected)
    w.square().reduce_sum().backward()
    assert np.array_equal(w.grad.numpy(), 2 * value)
    assert w.reduce_sum().item() == 10 and w.ndim == 2 and w.size == 4 and w.device is s.device


def test_comparisons(s):
    x, y = s.input([1.0]), s.input([1.0])
    assert x == x and x != y and x in [y, x] and len({x, y}) == 2 and x is not None and x != "a"
    for other in (1, 1.0, np.float32(1), np.ones(1), True):
        for compare, a, b in ((operator.eq, x, other), (operator.ne, other, x)):
            assert_raises_regex(TypeError, "==: got a tensor and", compare, a, b)
    assert {x: 1, y: 2}[x] == 1 and x.eq(y).item() == 1 == 1 - x.ne(y).item()
    for wrong in ("a", None, np.ones(1)):
        assert_raises_regex(TypeError, "lt: tensor: got", operator.lt, x, wrong)
        assert_raises_regex(TypeError, "le: tensor: got", operator.ge, x, wrong)


@pytest.mark.parametrize("power", [np.array([2, 2]), "2", None], ids=repr)
def test_powers(s, power):
    assert_raises_regex(TypeError, "pow: tensor: got", operator.pow, s.input([1.0]), power)


def test_a_sequence_along_axis_0(s):
    host = np.arange(12.0).reshape(3, 4)
    x = s.param(host, "x")
    for index in (0, -1, np.int64(1), s.nat(2), slice(1, 3), slice(None), slice(-2, None), slice(2, 1), slice(5, 9)):
        expected = host[index if isinstance(index, slice) else int(index)]
        assert np.array_equal(x[index].numpy(), expected) and x[index].shape == expected.shape
    assert [row.numpy().tolist() for row in x] == host.tolist()
    assert s.input([5.0])[0].shape == () and list(s.zeros((0, 2))) == []
    s.backward(x[1].reduce_sum() + x[1:].reduce_sum())
    assert x.grad.numpy().tolist() == [[0] * 4, [2] * 4, [1] * 4]
    for wrong in (3, -4, (0, 4), (0, 0, 0), (..., 0, ...), [3], np.array([0, -4])):
        assert_raises_regex(IndexError, "index: key: got", operator.getitem, x, wrong)
    for wrong in (1.0, True, "0", np.array([0.5]), (0, [1])):
        assert_raises_regex(TypeError, "index: key: got", operator.getitem, x, wrong)
    assert_raises_regex(ValueError, "index: key: got booleans", operator.getitem, x, np.array([True]))
    assert_raises_regex(IndexError, "index: key: got 1 indices", operator.getitem, s.full((), 1.0), 0)
    assert_raises_regex(TypeError, "not support item assignment", operator.setitem, x, 0, 1)
    assert_raises_regex(TypeError, "in: got a tensor", operator.contains, x, 1.0)


def test_indexing_is_numpys(s):
    host = np.arange(60.0).reshape(3, 4, 5)
    x = s.input(host)
    rng = np.random.default_rng(0)
    for _ in range(60):
        key = [
            [slice(*(rng.choice([None, *range(-6, 7)], 2)), rng.choice([None, 1, 2, 3, -1, -2])), int(rng.integers(-3, 3))][
                int(rng.random() < 0.4)]
            for _ in range(rng.integers(0, 4))
        ]  # fmt: skip
        for extra in (..., None):
            if rng.random() < 0.4:
                key.insert(rng.integers(0, len(key) + 1), extra)
        got, expected = x[tuple(key)], host[tuple(key)]
        assert got.shape == expected.shape and np.array_equal(got.numpy(), expected), key
    for key in ([2, 0, -1], [[0, 1], [2, 2]], host[..., 0] > 20, host > 30, host[:, 0, 0] < 0):
        assert np.array_equal(x[key].numpy(), host[key])


def test_numbers_from_tensors(s):
    x = s.input([1.5])
    assert float(x) == 1.5 and int(x) == 1 and f"{x:.2f}" == "1.50" and f"{x}" == str(x)
    assert x.__dlpack_device__() == (1, 0) and np.from_dlpack(x) == 1.5
    for wrong in (s.zeros((2,)), s.zeros((0,))):
        assert_raises_regex(TypeError, "expected one element", float, wrong)
    for call in (lambda: s.scale(x, x), lambda: s.clamp(x, 0, x), lambda: s.axpy(x, x, s.param([2.0]))):
        assert_raises_regex(TypeError, "expected", call)


def test_copies(s):
    x, w, i = s.input([1.0]), s.param([1.0], "w"), s.nat(1)
    assert copy.copy(x) is x and copy.copy(w) is w
    for thing in (x, w, i, s):
        for how in (copy.deepcopy, pickle.dumps):
            assert_raises_regex(TypeError, f"{type(thing).__name__}: got", how, thing)
    assert_raises_regex(TypeError, "Session: got", copy.copy, s)


def test_help_and_completion(s):
    w = s.param([1.0], "w")
    for thing in (w, s.input([1.0])):
        assert {"relu", "reduce_sum", "matmul", "backward", "grad"} <= set(dir(thing))
        shown = pydoc.render_doc(thing.layer_norm)
        assert "gamma" in shown and "= 1e-06" in shown and "biased variance" in shown
        for wrong, hint in (
            ("softmin", "there is .*softmax"), ("mm", "torch.mm is x.matmul"), ("rely", "there is relu"),
        ):  # fmt: skip
            said = f"no attribute '{wrong}'; {hint}"
            assert_raises_regex(AttributeError, said, getattr, thing, wrong)
        assert not hasattr(thing, "_repr_html_")
    assert pydoc.render_doc(Session) and pydoc.render_doc(tlrt.TensorRef)


def test_sizes(s):
    assert s.zeros(3).shape == (3,) and s.full(np.int64(2), 1.0).shape == (2,) and s.rand_uniform(2).shape == (2,)
    for make in (s.zeros, s.rand_uniform, s.rand_normal, lambda shape: s.full(shape, 1.0)):
        for wrong, kind in [((-1,), ValueError), ((2**16, 2**16), ValueError), ((2.5,), TypeError), ("3", TypeError),
                            (np.ones(2, int), TypeError)]:  # fmt: skip
            assert_raises_regex(kind, r"^\w+: shape: got", make, wrong)


@pytest.mark.parametrize(
    "call",
    [
        lambda s: s.nat(1.5), lambda s: s.set_nat(s.nat(1), "a"), lambda s: s.param([[1], [1, 2]], "w"),
        lambda s: s.param([1.0], "w", requires_grad="no"), lambda s: s.input([1.0], 5),
        lambda s: s.input([1.0], requires_grad="no"), lambda s: s.const(s.input([1.0])), lambda s: s.use(3),
        lambda s: s.const(s.param([1.0])), lambda s: s.dropout(s.input([1.0]), "a"), lambda s: Session(5),
        lambda s: Session(Options()), lambda s: Session(options=5), lambda s: Session(seed=1.5),
        lambda s: Session(requires_grad_by_default="no"), lambda s: Session(fast_kernels=1),
        lambda s: s.param([1.0], "v").set([[1], [1, 2]]), lambda s: s.get_nat(NatRef(s, s.nat_vec([1, 2]).id, s.epoch)),
    ],
)  # fmt: skip
def test_wrong_types_name_the_argument(s, call):
    assert_raises_regex(errors.ArgumentTypeError, r"^\w+: \w+: got ", call, s)
    assert "w" not in s.parameters


@pytest.mark.parametrize("shape", [(0,), (0, 3), (2, 0), (0, 0)])
def test_nothing_is_a_legal_amount(s, shape):
    w = s.param(np.zeros(shape), "w")
    optimizer = optim.Adam([w])
    for _ in range(2):
        loss = (w * w + 1.0 - w / 2).tanh().reduce_sum()
        assert loss.item() == 0.0
        s.backward(loss)
        assert w.grad.shape == shape and s.clip_grad_norm(1.0).numpy() == 0.0
        optimizer.step()
        assert w.value.shape == shape and "shape=" in repr(s.use(w))
        s.reset()
    optimizer.close()


def test_an_attribute_error_of_a_property_is_shown(s, monkeypatch):
    w = s.param([1.0], "w")
    monkeypatch.setattr(s, "_require_uncaptured", lambda op: None.missing)
    assert_raises_regex(AttributeError, "'NoneType' object has no attribute 'missing'", lambda: w.value)
