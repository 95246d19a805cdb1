"""Session: references, parameters and their mirrors, gradients, natural numbers, random draws, misuse, flat memory."""

import copy
import math
import operator
import pickle
from dataclasses import replace

import numpy as np
import pytest
from numpy.testing import assert_raises, assert_raises_regex

import tlrt
from audit.injection import interrupt
from tests import run_in_thread, unchanged_memory
from tlrt import Session, errors, nn, optim
from tlrt._binding import convert
from tlrt.session import NatRef, Options

RNG = np.random.default_rng(7)


def mlp(s: Session, width: int = 8):
    """Two layers and a batch: (parameters, loss of a step)."""
    w1, b1 = s.param(RNG.standard_normal((width, 3)), "w1"), s.param(np.zeros(width), "b1")
    w2, b2 = s.param(RNG.standard_normal((1, width)), "w2"), s.param(np.zeros(1), "b2")
    x, y = RNG.standard_normal((5, 3)), RNG.standard_normal((5, 1))

    def loss():
        hidden = s.dropout(s.tanh(s.linear(w1, b1, s.const(x))), 0.25)
        return s.mse_loss(s.linear(w2, b2, hidden), s.const(y))

    return [w1, b1, w2, b2], loss


def test_operators(s):
    a, b = s.input([[1.0, 2.0], [3.0, 4.0]]), s.param([[2.0, 0.5], [1.0, 4.0]], "b")
    x, y = a.numpy(), b.numpy()
    for got, expected in [
        (a + b, x + y), (a - b, x - y), (a * b, x * y), (a / b, x / y), (a @ b, x @ y), (-a, -x), (a**2, x * x),
        (a + 1, x + 1), (1 - a, 1 - x), (2 * a, 2 * x), (a / 2, x / 2), (1 / a, 1 / x), (abs(-a), x),
        (a**3, x**3), (a**-0.5, x**-0.5), (a.pow(3), x**3), (a**b, x**y), (2**a, 2**x), (a < b, x < y), (a <= 2, x <= 2),
        (a > b, x > y), (b >= 2, y >= 2), (a.eq(2), x == 2), (b.ne(2), y != 2),
        (s.where(a > 2, b, 0), np.where(x > 2, y, 0)), (s.where(b, 1, a), np.where(y, 1, x)),
        (b.masked_fill(a < 2, -1), np.where(x < 2, -1, y)),
        (a + s.const([10.0, 20.0]), x + np.array([10, 20])), (a.reduce_sum(), x.sum()), (a.reduce_mean(0), x.mean(0)),
    ]:  # fmt: skip
        assert np.allclose(got.numpy(), expected, rtol=2e-7)
    assert a.reshape((-1,)).shape == (4,) and (a.reduce_sum() * 1).item() == 10.0
    assert_raises_regex(TypeError, "item", bool, s.input([1.0]))


@pytest.mark.parametrize("dtype", [np.float32, np.float64, np.int64, np.uint32])
def test_arrays_that_were_given_may_change(s, dtype):
    """Whatever takes an array has the numbers that it had then."""
    p = s.param(np.zeros((2, 3)), "p")
    ways = {
        "param": lambda a: s.param(a, "made"), "set": lambda a: (p.set(a), p)[1], "const": s.const, "input": s.input,
        "leaf": lambda a: s.input(a, requires_grad=True), "buffer": s.device.buffer,
    }  # fmt: skip
    for name, make in ways.items():
        array = np.ones((2, 3), dtype)
        made = make(array)
        array[...] = 5
        assert (made.numpy() == 1).all(), name


def test_gelu_by_pytorchs_names(s):
    x = s.input([0.75, -2.0])
    assert np.array_equal(x.gelu(approximate="none").numpy(), x.gelu_erf().numpy())
    assert np.array_equal(x.gelu(approximate="tanh").numpy(), x.gelu().numpy())
    assert_raises_regex(ValueError, "gelu: approximate: got 'erf', expected 'none' or 'tanh'", x.gelu, "erf")


def test_masks_fit_what_they_choose_from(s):
    x, mask = s.input(np.ones((2, 3))), s.const(np.ones((4, 3)))
    assert_raises_regex(ValueError, "mask", x.masked_fill, mask, 0.0)
    assert_raises_regex(ValueError, r"mask.*broadcasts to \(3,\)", x[0].masked_fill, x, 0.0)
    assert_raises_regex(ValueError, "mask", s.where, mask, x, 0.0)


def test_gradients_of_reductions_at_zeros_and_ties(s):
    def gradient(f, x):
        w = s.input(x, requires_grad=True)
        s.backward(f(w).sum())
        return w.grad.numpy().tolist()

    assert gradient(lambda w: w.prod(), [2.0, 0.0, -3.0]) == [0, -6, 0]
    assert gradient(lambda w: w.prod(), [0.0, 0.0, -3.0]) == [0, 0, 0]
    assert gradient(lambda w: w.cumprod(0), [2.0, 0.0, -3.0, 4.0]) == [1, 2 - 6 - 24, 0, 0]
    for f in (lambda w: w.max(), lambda w: w.norm(np.inf)):
        assert gradient(f, [1.0, 3.0, 3.0]) == [0, 0.5, 0.5]
    for f in (lambda w: w.norm(), lambda w: w.norm(3), lambda w: w.std()):
        assert gradient(f, [0.0, 0.0]) == [0, 0]
    assert gradient(lambda w: w.logsumexp(1), [[-np.inf, -np.inf], [-np.inf, 0.0]]) == [[0, 0], [0, 1]]
    assert np.signbit(s.const([2.0, -0.0, 3.0]).cumprod(0).numpy()).tolist() == [False, True, True]


def test_views_share_storage(s):
    w = s.param(np.arange(6.0), "w")
    leaf = s.use(w)
    view = s.reshape(w, (2, 3))
    still = s.detach(w)
    assert view.value.buffer.references == still.value.buffer.references == leaf.value.buffer.references == 4
    assert not still.requires_grad and view.requires_grad


def test_reshape_and_detach_of_a_parameter_outlive_reset(s):
    w = s.param(np.arange(6.0), "w")
    for _ in range(3):
        assert np.array_equal(s.reshape(w, (3, 2)).numpy(), np.arange(6.0).reshape(3, 2))
        assert np.array_equal(s.detach(w).numpy(), np.arange(6.0))
        s.reset()
    assert w.has_mirror and np.array_equal(w.value, np.arange(6.0))


def test_a_parameter_knows_which_copy_is_current(s):
    w = s.param([1.0, 2.0], "w")
    assert not w.has_mirror and not w.host_is_stale
    s.use(w)
    mirror = w.mirror
    s.reset()
    s.use(w)
    assert w.has_mirror and w.mirror is mirror, "it is uploaded only when stale"
    w.mirror.fill(3.0)
    w.updated()
    assert w.host_is_stale and w.value.tolist() == [3.0, 3.0] and not w.host_is_stale and w.has_mirror
    w.value = [5.0, 6.0]
    assert not w.has_mirror and s.use(w).numpy().tolist() == [5.0, 6.0]


def test_a_parameter_keeps_bits(s):
    bits = np.array([0x7FC12345, 0x80000000, 0x00000001, 0xFF800000], np.uint32)
    w = s.param(bits.view(np.float32), "w")
    s.use(w)
    w.updated()
    if s.device.name == "spec":
        assert np.signbit(w.value[1]) and w.value[2] == 2.0**-149
    else:
        assert w.value.view(np.uint32).tolist() == bits.tolist()


def test_parameter_misuse(s):
    w = s.param([1.0, 2.0], "w")
    assert_raises_regex(ValueError, "'w', which is taken", s.param, [1.0], "w")
    assert_raises_regex(ValueError, r"w: got shape \(3,\), expected \(2,\)", w.set, [1, 2, 3])
    assert_raises_regex(ValueError, "read-only", operator.setitem, w.value, 0, 2)
    assert w.value.tolist() == [1.0, 2.0]
    assert_raises_regex(TypeError, "pickle", pickle.dumps, w)
    expected = r"a session to pickle or copy, expected a checkpoint \(tlrt.checkpoint.save\)"
    assert_raises_regex(TypeError, expected, pickle.dumps, s)
    with Session("cpu") as other, pytest.raises(ValueError, match="another session"):
        other.use(w)


def test_gradients_by_parameter(s):
    w = s.param([[1.0, 2.0]], "w")
    frozen = s.param([[3.0, 4.0]], "frozen", requires_grad=False)
    unreached = s.param([1.0, 1.0], "unreached")
    used = s.param([2.0], "used")
    s.relu(used)
    gradients = s.backward(s.reduce_sum(s.mul(w, frozen)))
    assert gradients[w].numpy().tolist() == [[3.0, 4.0]]
    assert unreached.grad.numpy().tolist() == [0.0, 0.0] and used.grad.numpy().tolist() == [0.0]
    assert frozen.grad is s.use(used).grad is s.input([1.0], requires_grad=True).grad is None
    assert frozen not in gradients and list(gradients) == [w, unreached, used]
    frozen.requires_grad, w.requires_grad = True, False  # on the same tape
    gradients = s.backward(loss := s.reduce_sum(s.mul(w, frozen)))
    assert gradients[frozen].numpy().tolist() == [[1.0, 2.0]] and w not in gradients
    frozen.requires_grad = False  # after the loss was computed
    assert list(s.backward(loss)) == [unreached, used]


def test_no_grad(s):
    w = s.param([1.0], "w")
    with s.no_grad():
        y, view = s.scale(w, 2.0), s.reshape(s.use(w), (1, 1))
        assert_raises_regex(ValueError, "without gradients", s.backward, y)
    assert not y.requires_grad and not view.requires_grad
    with Session(s.device, track_gradients=False) as quiet:
        v = quiet.param([1.0], "v")
        assert not quiet.scale(v, 2.0).requires_grad and not quiet.input([1.0], requires_grad=True).requires_grad


def test_arrays_that_were_read_or_given_stay(s):
    """Whatever steps the optimiser takes afterwards."""
    w = s.param([1.0, 2.0], "w")
    sgd = optim.SGD([w], lr=0.5, momentum=0.5)
    kept = [w.value]
    for _ in range(2):
        s.backward(s.reduce_sum(w)), sgd.step(), s.reset()
        settings, arrays = sgd.state()
        kept += [w.value, *arrays.values()]
        sgd.load_state(settings, arrays)
    assert [x.tolist() for x in kept] == [[1.0, 2.0], [0.5, 1.5], [1.0, 1.0], [-0.25, 0.75], [1.5, 1.5]]


def test_clip_grad_norm(s):
    a, b = s.param([3.0], "a"), s.param([4.0, 0.0], "b")
    s.backward(s.add(s.reduce_sum(s.mul(a, a)), s.reduce_sum(s.mul(b, b))))
    assert s.clip_grad_norm(100.0).numpy() == 10.0
    assert a.grad.numpy().tolist() == [6.0] and b.grad.numpy().tolist() == [8.0, 0.0]
    assert s.clip_grad_norm(5.0).numpy() == 10.0
    assert math.isclose(a.grad.numpy()[0], 3.0, rel_tol=1e-6) and math.isclose(b.grad.numpy()[0], 4.0, rel_tol=1e-6)
    assert math.isclose(s.clip_grad_norm(1.0, [a, a]).numpy(), 3.0, rel_tol=1e-6)  # which is there once
    assert math.isclose(a.grad.numpy()[0], 1.0, rel_tol=1e-6) and math.isclose(b.grad.numpy()[0], 4.0, rel_tol=1e-6)
    s.reset()
    assert_raises_regex(ValueError, "last backward", s.clip_grad_norm, 1.0)


def test_naturals(s):
    i, v = s.nat(2), s.nat_vec([0, 2, 7])
    x = s.input([1.0, 2.0, 3.0])
    assert s.gather_scalar(x, i).item() == 3.0 and s.gather_scalar_nat(x, i).item() == 3.0
    assert s.gather_vec_nat(x, v).numpy().tolist() == [1.0, 3.0, 0.0]
    s.set_nat(i, 0)
    s.set_nat_vec(v, [1, 1, 0])
    s.get_nat_vec(v)[:] = 2  # of a copy
    assert_raises(TypeError, s.set_nat, NatRef(s, v.id, s.epoch), 1)
    assert s.get_nat(i) == 0 and s.get_nat_vec(v).tolist() == [1, 1, 0]
    assert s.gather_scalar_nat(x, i).item() == 1.0 and s.gather_vec_nat(x, v).numpy().tolist() == [2.0, 2.0, 1.0]
    assert_raises(IndexError, s.nat, -1)
    for large in (2**32, 2**64, 10**40):
        s.set_nat(i, large)
        s.set_nat_vec(v, [0, large, 1])
        assert s.get_nat(i) == s.get_nat(s.nat(large)) == large
        assert s.get_nat_vec(v).tolist() == s.get_nat_vec(s.nat_vec([0, large, 1])).tolist() == [0, large, 1]
        for use, index in ((s.gather_scalar_nat, i), (s.gather_vec_nat, v), (s.gather_scalar, i)):
            assert_raises_regex(IndexError, f"got {large}", use, x, index)
        assert_raises_regex(IndexError, "got -1 at position 2", s.set_nat_vec, v, [large, 0, -1])
        assert s.get_nat_vec(v).tolist() == [0, large, 1], "what is refused changes nothing"
    assert_raises_regex(ValueError, "got 1 numbers, expected 3", s.set_nat_vec, v, [1])
    assert_raises_regex(TypeError, "expected NatRef", s.get_nat, v)
    with Session("cpu") as other, pytest.raises(ValueError, match="another session"):
        other.get_nat(i)
    s.reset()
    assert_raises_regex(errors.ReleasedError, "before reset", s.get_nat, i)


def test_draws_are_a_function_of_seed_and_counter(s):
    first = s.rand_uniform((3, 4)).numpy()
    assert s.counter == 1 and not np.array_equal(first, s.rand_uniform((3, 4)).numpy())
    with Session("cpu", seed=5) as again:
        assert np.array_equal(again.rand_uniform((3, 4)).numpy(), first)
    assert set(np.unique(s.bernoulli_mask((1000,), 0.3).numpy())) == {0.0, 1.0}
    assert s.bernoulli_mask((50,), 1.0).numpy().all() and not s.bernoulli_mask((50,), 0.0).numpy().any()
    assert not s.rand_normal((2,)).requires_grad
    counter = s.counter
    assert_raises_regex(ValueError, "keep", s.bernoulli_mask, (3,), 1.5)
    assert s.counter == counter


READERS = {
    "gather_scalar_nat": lambda s, x, i: s.gather_scalar_nat(s.flatten(x), i[0]),
    "gather_vec_nat": lambda s, x, i: s.gather_vec_nat(s.flatten(x), i),
    "gather_rows_nat": lambda s, x, i: s.gather_rows_nat(x, i),
    "embedding": lambda s, x, i: s.embedding(x, np.reshape(i, (1, -1))),
    "scatter_add": lambda s, x, i: s.scatter_add(s.full(4, 1.0), s.gather_vec_nat(s.flatten(x), range(len(i))), i),
    "scatter_add_rows": lambda s, x, i: s.scatter_add_rows(s.full((4, 1), 1.0), s.slice_range0(x, 0, len(i)), i),
}


@pytest.mark.parametrize("name", READERS)
@pytest.mark.parametrize("outside", [-1, -5, -(2**31), -(2**40), 4, 2**32 - 1])
def test_indices_out_of_range_are_alike(s, name, outside):
    """Below 0 or too large: nothing is read or written there and no gradient comes back, or both are refused."""
    w = s.param([[1.0], [2.0], [3.0], [4.0]], "w")
    found = []
    for given in ([outside, 1], np.array([outside, 1]), [4, 1]):
        y = READERS[name](s, w, given)
        s.backward(s.reduce_sum(y))
        found.append((y.numpy().tolist(), w.grad.numpy().tolist()))
    assert found[0] == found[1] == found[2]
    assert_raises_regex(errors.IndexOutOfRangeError, "got 4294967296", READERS[name], s, w, [2**32, 1])
    with Session(s.device, check_indices=True) as checked:
        x = checked.const([[1.0], [2.0], [3.0], [4.0]])
        said = rf"^{name}: i(ndices)?: got {outside} at position 0, expected 0 <= index < 4"
        size = checked.tape.size
        assert_raises_regex(errors.IndexOutOfRangeError, said, READERS[name], checked, x, [outside, 1])
        assert checked.tape.size <= size + 4
        assert READERS[name](checked, x, [3, 1]).numpy().tolist() == READERS[name](s, s.use(w), [3, 1]).numpy().tolist()


@pytest.mark.parametrize("check", [False, True])
def test_indices_out_of_range_in_captured_steps(dev, check):
    with Session(dev, check_indices=check) as s:
        table = s.param([[1.0], [2.0], [3.0]], "table")
        step = s.capture(lambda i: s.embedding(table, i), np.array([[0, 2]]))
        for outside in (-1, 3, 2**32 - 1):
            given = np.array([[1, outside]])
            if check:
                assert_raises_regex(errors.IndexOutOfRangeError, f"got {outside}, expected", step, given)
            else:
                assert step(given).numpy().tolist() == [[[2.0], [0.0]]]
        assert step(np.array([[1, 2]])).numpy().tolist() == [[[2.0], [3.0]]]
        if check:
            assert_raises(errors.IndexOutOfRangeError, s.capture, lambda i: s.embedding(table, i), np.array([-1]))


@pytest.mark.parametrize("lengths", [(3, 5), (5, 3)])
def test_indices_of_two_tables_in_a_captured_step(dev, lengths):
    """The least of the limits holds, whichever was asked first, and also for indices of the type that C takes."""
    with Session(dev, check_indices=True) as s:
        tables = [s.param(np.arange(2.0 * n).reshape(n, 2), f"table {n}") for n in lengths]
        step = s.capture(lambda i: s.concat([s.embedding(t, i) for t in tables]), np.array([0, 2], np.uint32))
        for given in ([1, 3], [4, 0], [5, 5]):
            for kind in (np.uint32, np.int64):
                assert_raises_regex(errors.IndexOutOfRangeError, "expected below 3", step, np.array(given, kind))
        assert step(np.array([2, 1], np.uint32)).numpy().tolist() == 2 * [[4.0, 5.0], [2.0, 3.0]]


@pytest.mark.parametrize("seed", [1, 2**64 - 1])
def test_sessions_of_neighbouring_seeds_share_no_draw(seed):
    draws = []
    for chosen in (seed, (seed + 1) % 2**64):
        with Session("cpu", seed=chosen) as s:
            draws.append(nn.Linear(s, 4, 4, name="layer").weight.numpy())
            draws += [s.rand_uniform((4, 4)).numpy() for _ in range(3)]
    assert np.unique(draws).size == 8 * 16


def test_dropout(s):
    x = s.full((4000,), 1.0)
    assert s.dropout(x, 0.0) is x
    y = s.dropout(x, 0.25).numpy()
    assert set(np.unique(y)) == {0.0, float(np.float32(1 / 0.75))} and abs(y.mean() - 1) < 0.05
    assert_raises_regex(ValueError, "p: got 1", s.dropout, x, 1)


def test_tensors_of_another_time_or_place(s):
    x = s.input([1.0, 2.0])
    with Session("cpu") as other, pytest.raises(ValueError, match="another session"):
        other.relu(x)
    s.reset()
    assert_raises_regex(errors.ReleasedError, "before reset", s.relu, x)
    assert_raises_regex(errors.ReleasedError, "before reset", x.numpy)
    assert_raises_regex(TypeError, r"expected TensorRef or Parameter \(Session.const", s.relu, np.ones(3))
    assert_raises_regex(ValueError, "broadcasts with", s.add, s.zeros((2,)), s.zeros((3,)))
    assert s.relu(s.input([-1.0])).item() == 0.0


def test_options():
    assert_raises_regex(TypeError, "colour", Session, "cpu", colour="red")
    assert_raises_regex(ValueError, "fp32", Session, "cpu", matmul_precision="half")
    assert_raises_regex(ValueError, "'tpu'", Session, "tpu")
    assert_raises_regex(ValueError, "seed", Session, "cpu", seed=-1)
    for given in ({"math": "fast"}, {"options": Options(math="fast")}):
        assert_raises_regex(ValueError, "math: got 'fast' beside a Device", Session, tlrt.device("cpu"), **given)
    with Session(options=Options(device="cpu", requires_grad_by_default=False)) as s:
        assert not s.param([1.0]).requires_grad and copy.copy(s.options) == s.options
    chosen = Options("spec", False, False, 3, True, "fp64", "fast", True)
    for name, value in {**vars(Options()), "math": "reproducible"}.items():
        with Session(options=chosen, **{name: value}) as s:
            assert s.options == replace(chosen, **{name: value}), name


def test_memory_stays_flat(s):
    parameters, loss = mlp(s)
    optimizer = tlrt.optim.AdamW(parameters, lr=1e-3)

    def steps(count: int) -> None:
        for _ in range(count):
            s.backward(loss())
            s.clip_grad_norm(1.0)
            optimizer.step()
            s.reset()

    steps(3)
    before = s.device.memory()
    with unchanged_memory(s.device):
        steps(50 if s.device.name == "spec" else 1000)
    if s.device.name != "spec":
        assert s.device.memory().driver_allocations == before.driver_allocations
    optimizer.close()


def test_operations_tell_zeros_of_both_signs_apart(s):
    """clamp(-1, 0, 1) is +0 and clamp(-1, -0, 1) is -0, in whatever order they are asked for; so at the other limit."""
    for x, limits in ((s.const([-1.0]), lambda zero: (zero, 1.0)), (s.const([1.0]), lambda zero: (-1.0, zero))):
        signs = [bool(np.signbit(s.clamp(x, *limits(zero)).numpy()[0])) for zero in (0.0, -0.0, 0.0)]
        assert signs == [False, True, False]


def test_values_start_alike_on_every_device():
    """A parameter's first value is an upload: rounded to float32 once, on the specification as elsewhere."""
    for device in ("spec", "cpu"):
        with Session(device) as s:
            assert s.param([0.1], "w").value[0] == np.float32(0.1)
            assert s.use(s.parameters["w"]).numpy()[0] == s.input([0.1]).numpy()[0]


def test_an_interrupted_no_grad_block_is_over(s):
    """While the exception is handled, too, when its traceback has the frames that it went through."""

    def block():
        with s.no_grad(), s.no_grad():
            s.const([1.0])

    def look():
        assert s.tanh(s.input([1.0], requires_grad=True)).requires_grad

    place = 0
    while interrupt(block, place, look, everywhere=True):
        place += 1
    assert place > 20


def test_no_grad_is_a_decorator_and_of_its_thread(s):
    x = s.input([1.0], requires_grad=True)
    tanh = s.no_grad()(s.tanh)
    assert not tanh(x).requires_grad and not tanh(x).requires_grad and s.tanh(x).requires_grad
    with s.no_grad():
        assert run_in_thread(lambda: s.tanh(x).requires_grad) and not s.tanh(x).requires_grad


@pytest.mark.parametrize("shape", [(4000,), (40, 100), (3,), ()])
def test_a_large_tensor_is_shown_without_its_content(s, shape):
    """Up to 2^24 elements the text says what they are."""
    x = s.full(shape, 1.5)
    assert repr(x).startswith("TensorRef(") and "1.5" in repr(x) and f"shape={shape}" in repr(x)
    larger = s.full((2**24 + 1,), 1.5)
    assert "1.5" not in repr(larger) and "shape=(16777217,)" in repr(larger) and "op='full'" in repr(larger)


def test_no_integers_are_integers_of_any_type():
    """What holds none has no type that it was given."""

    class Empty:
        def __array__(self, dtype=None, copy=None):
            return np.zeros(0, bool)

    for value in ([], (), range(0), Empty()):
        found = convert.uint32("op", "indices", value)
        assert found.size == 0 and found.dtype == np.uint32
    odd, kinds = np.frombuffer(bytes(17), np.uint8)[1:], ((convert.float32, "f4"), (convert.uint32, "u4"))
    assert all(function("op", "x", odd.view(kind)).flags.aligned for function, kind in kinds), "C reads no odd address"
