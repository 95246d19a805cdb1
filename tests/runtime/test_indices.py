"""Indices on a device: the buffer's type, what gives and what takes them, out of range, in captured steps."""

import numpy as np
import pytest
from numpy.testing import assert_raises_regex

import tlrt
from tlrt import Session, errors, kernels
from tlrt.buffer import Buffer, IndexBuffer
from tlrt.spec import SpecDevice
from tlrt.spec import kernels as spec_kernels
from tlspec.drawn import generator

X = generator("indices").standard_normal((4, 7, 3)).astype(np.float32)


def test_index_buffers_are_buffers_of_another_type(dev):
    given = np.array([[3, 0, 2**32 - 1], [1, 1, 2]])
    made, floats = dev.indices(given), dev.buffer([5.0, 6.0, 7.0])
    assert type(made) is IndexBuffer and made.size == made.length == 6 and "4294967295" in repr(made)
    for same in (made, made.copy(), made.share()):
        assert same.numpy((2, 3)).dtype == np.uint32 and np.array_equal(same.numpy((2, 3)), given)
    assert type(made.copy()) is type(made.share()) is IndexBuffer and type(floats.copy()) is Buffer
    wrong, right = "got an index buffer, expected a float buffer", "got a float buffer, expected an index buffer"
    three = dev.indices([0, 1, 2])
    for said, call in [
        (wrong, lambda: kernels.relu(three)), (wrong, lambda: kernels.relu(floats, out=three)), (wrong, lambda: three.fill(1)),
        (wrong, lambda: kernels.sgd_step([floats], [three], lr=0.1)),
        (wrong, lambda: kernels.gather_vec(three, three, 3)),
        (right, lambda: kernels.argmax(floats, 1, 3, 1, out=floats)),
        ("indices: got Buffer, expected IndexBuffer", lambda: kernels.gather_vec_indexed(floats, floats, 3)),
        ("expected 0 or more", lambda: dev.indices([-1])), ("expected below 2", lambda: dev.indices([2**32])),
        ("expected integers", lambda: dev.indices([0.5])), ("IndexBuffer.from_numpy", lambda: IndexBuffer.zeros(3)),
    ]:  # fmt: skip
        assert_raises_regex(errors.TorchleanError, said, call)
    made.release()
    assert_raises_regex(errors.ReleasedError, "released", kernels.gather_vec, floats, made, 3)


def test_the_specification_writes_indices_into_a_buffer_given() -> None:
    device = SpecDevice()
    x, out = device.buffer([3.0, 1.0, 2.0, 0.0, 5.0, 4.0]), device.indices([7, 7])
    assert spec_kernels.argmax(x, 2, 3, 1, out=out) is out and out.numpy().tolist() == [0, 1]
    said = "argmax: out: got 2 elements, expected 3"
    assert_raises_regex(errors.ShapeError, said, spec_kernels.argmax, x, 3, 2, 1, out=out)


@pytest.mark.parametrize("kind", ["uint8", "int32", "uint32", "int64", "uint64"])
def test_an_array_of_indices_may_be_filled_anew(s, kind):
    """The gradient is that of the indices that were given, as a loader writes its next batch into the array."""
    table, given = s.param(X[:, 0]), np.array([0, 0, 2], kind)
    loss = s.embedding(table, given).reduce_sum() + s.gather_vec_nat(s.reshape(table, (12,)), given).reduce_sum()
    given[:] = 3
    s.backward(loss)
    assert table.grad.numpy().tolist() == [[4.0, 2.0, 3.0], [0.0] * 3, [1.0] * 3, [0.0] * 3]


@pytest.mark.parametrize("axis", [None, 0, 1, -1])
@pytest.mark.parametrize("keepdims", [False, True])
def test_extremes_are_numpys(s, axis, keepdims):
    x = np.round(X)  # with ties
    x[1, 2, 1] = np.nan
    t = s.const(x)
    for got, numpys in ((t.argmax(axis, keepdims), np.argmax), (t.argmin(axis, keepdims), np.argmin)):
        expected = numpys(x, axis=axis, keepdims=keepdims)
        assert got.shape == expected.shape and (got == expected).all() and isinstance(got, tlrt.Indices)


def test_topk_orders_ties_zeros_and_nan(s):
    x = s.const([[0.0, np.nan, -0.0, 3.0, 3.0, -np.inf, np.nan]])
    values, places = x.topk(7)
    assert places.numpy().tolist() == [[1, 6, 3, 4, 0, 2, 5]]
    assert np.signbit(values.numpy()).tolist() == [[False, False, False, False, False, True, True]]
    assert x.topk(7, largest=False)[1].numpy().tolist() == [[5, 0, 2, 3, 4, 1, 6]]
    assert x.topk(0)[0].shape == (1, 0)
    assert_raises_regex(errors.ArgumentError, "0 <= k <= 7", x.topk, 8)


def test_taken_wherever_host_indices_are(s):
    """The same bits, gradients included."""
    w, v, x = s.param(X[0], "w"), s.param(X[0, :, 0], "v"), s.param(X[1, :5], "x")
    rows, labels = [6, 2, 2, 9, 0], [2, 0, 1, 1, 2]
    calls = [
        lambda i, y: w.embedding(i), lambda i, y: w.gather_rows_nat(i), lambda i, y: v.gather_vec_nat(i),
        lambda i, y: v.scatter_add(x.reduce_sum(1), i), lambda i, y: w.scatter_add_rows(x, i), lambda i, y: x.cross_entropy(y),
    ]  # fmt: skip
    for call in calls:
        found = []
        for i, y in ((rows, labels), (s.indices(rows), s.indices(labels))):
            out = call(i, y)
            out.square().reduce_sum().backward()
            found.append([out.numpy(), *(p.grad.numpy() for p in (w, v, x) if p in s.gradients)])
        assert all(np.array_equal(a, b) for a, b in zip(*found, strict=True))
    table = s.indices([[1, 0], [5, 5]])
    assert np.array_equal(w.embedding(table).numpy(), w.numpy()[table.numpy()])
    assert np.array_equal(w[table].numpy(), w.numpy()[table.numpy()])

    assert_raises_regex(errors.ShapeError, "one axis", w.gather_rows_nat, table)


def test_out_of_range(dev):
    with Session(dev) as s, Session(dev, check_indices=True) as checked:
        for t in (s, checked):
            x, far = t.const(X[0]), t.indices([1, 7])
            calls = [
                (lambda x=x, far=far: x.take(far), [X[0, 1], [0, 0, 0]]),
                (lambda t=t, far=far: t.one_hot(far, 3), [[0, 1, 0], [0, 0, 0]]),
                (lambda t=t, x=x, far=far: x.scatter_add_along(t.full((2, 3), 1.0), t.indices([[9] * 3] * 2), 0), X[0]),
                (lambda x=x, t=t: x.cross_entropy(t.indices([0, 1, 2, 0, 1, 2, 3])), np.nan),
            ]
            weighted = lambda x=x, t=t: x.cross_entropy(t.indices([0, 1, 2, 0, 1, 2, 3]), [1.0] * 3)
            several = lambda x=x, t=t: x.take(t.indices([1, 7, 9]))
            for call, expected in [*calls, (weighted, 0), (several, 0)] if t is checked else calls:
                if t is checked:
                    said = r"got [37] at .*check_indices|got 9 at position 0.*check"
                    assert_raises_regex(errors.IndexOutOfRangeError, said, call)
                else:
                    assert np.array_equal(call().numpy(), np.asarray(expected, np.float32), equal_nan=True)


def test_an_integer_of_the_host_counts_from_either_end(s):
    x = s.const(X[0])
    for call in (lambda i: x.take([1, i]), lambda i: x[[1, i]], lambda i: x[i], lambda i: s.one_hot([i], 7)):
        assert all(np.array_equal(call(place - 7).numpy(), call(place).numpy()) for place in (0, 6))
        for wrong in (-8, 7):
            assert_raises_regex(errors.IndexOutOfRangeError, f"got {wrong}, expected -7 <= index < 7", call, wrong)


def test_they_outlive_reset_and_go_with_their_last_reference(dev):
    with Session(dev) as s:
        before = dev.memory().live_buffers
        best = s.const(X).argmax(1)
        s.reset(), best.reshape(-1).release()
        assert (best == X.argmax(1)).all() and best.reshape(-1).shape == (12,) and len(best) == 4
        assert s.const(X[0, 0]).argmax().item() == X[0, 0].argmax() and "shape=(4, 3)" in repr(best)
        s.reset()
        del best
        assert dev.memory().live_buffers == before


def test_in_a_captured_step(dev):
    """Greedy decoding: each step's indices, made on the device and given by the caller, follow the run's own numbers."""
    with Session(dev) as s:
        w = s.param(X[0], "w")

        def step(x, places, labels):
            h = s.const(x) @ w.transpose2d()
            best, (top, _) = h.argmax(1), h.topk(2)
            loss = h.cross_entropy(labels) + top.reduce_sum()
            loss = loss + w.take(places).reduce_sum() + w.embedding(best).reduce_sum()
            s.backward(loss)
            return loss, best, w.grad

        rng = generator("captured indices")
        runs = [(rng.standard_normal((5, 3)), rng.integers(0, 7, 4), rng.integers(0, 7, 5)) for _ in range(3)]
        captured = s.capture(step, *runs[0])
        for x, places, labels in runs:
            loss, best, grad = captured(x, places, labels)
            s.reset()
            again = [v.numpy() for v in step(x, places, labels)]
            for got, expected in zip((loss, best, grad), again, strict=True):
                assert np.array_equal(got.numpy(), expected)


def test_multinomial_draws_in_proportion_without_repeating(dev):
    weights = np.array([0.0, 1.0, 2.0, 5.0])
    with Session(dev, seed=3) as s:
        drawn = s.multinomial(s.const(np.tile(weights, (8192, 1))), 3).numpy()
        counts = np.bincount(drawn[:, 0], minlength=4)
        expected = 8192 * weights / weights.sum()
        assert counts[0] == 0 and np.all(np.abs(counts - expected) <= 5 * np.sqrt(expected))
        assert all(set(row) == {1, 2, 3} for row in drawn)
        assert s.multinomial(s.const(weights)).shape == (1,) and s.counter == 2
