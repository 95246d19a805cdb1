"""Buffer: what goes in and out, which data are refused, and how long it lives."""

import copy
import gc
import math
import os
import pickle
import weakref
from fractions import Fraction
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.testing import assert_raises, assert_raises_regex

import tlrt
from tlrt import Buffer, errors, kernels
from tlrt._binding import handles


@given(st.lists(st.integers(0, 2**32 - 1), max_size=70))
def test_float32_keeps_its_bits(words):
    array = np.array(words, dtype=np.uint32).view(np.float32)
    assert tlrt.device("cpu").buffer(array).numpy().view(np.uint32).tolist() == words


@pytest.mark.parametrize("dtype", ["f8", "i1", "i2", "i4", "i8", "u1", "u2", "u4", "u8", "?"])
def test_converted_once(dev, dtype):
    array = np.array([0, 1, 3, 100], dtype=dtype)
    assert np.array_equal(dev.buffer(array).numpy(), array.astype(np.float32))


def test_integers_are_rounded_once(dev):
    value = 2**62 + 2**38 + 1  # through float64 it would be a tie and go down
    assert dev.buffer(np.array([value])).numpy()[0] == np.float32(2**62 + 2**39)


@pytest.mark.parametrize(
    "array",
    [
        np.arange(24, dtype=np.float32).reshape(4, 6)[::2, ::-1], np.arange(24, dtype=np.float32).reshape(4, 6).T,
        np.asfortranarray(np.arange(24, dtype=np.float64).reshape(4, 6)), np.arange(5, dtype=">f4"),
        np.arange(5, dtype=">f8")[::-2], np.broadcast_to(np.float32(3), (2, 3)), [[1, 2], [3, 4]], (1.5, True, 2), 7,
        [], np.empty((3, 0)), range(4),
    ],
)  # fmt: skip
def test_layouts_are_copied_row_major(dev, array):
    expected = np.asarray(array).astype(np.float32).reshape(-1)
    assert np.array_equal(Buffer.from_numpy(array, dev).numpy(), expected)


class Ragged:
    def __array__(self, dtype=None, copy=None):
        raise ValueError("no array here")


@pytest.mark.parametrize(
    ("array", "got"),
    [
        (np.zeros(2, np.complex64), "complex64"), (np.array([1, None]), "object"), (np.zeros(2, "V2"), "|V2"),
        (np.array(["1"]), "<U1"), (np.zeros(2, "M8[s]"), "datetime64[s]"),
        (np.zeros(2, [("x", "f4")]), "[('x', '<f4')]"), (np.ma.masked_array([1.0, 2.0], [0, 1]), "masked array"),
        ("12", "str"), (b"12", "bytes"), ({1: 2}, "dict"), ({1}, "set"), (None, "None"), ([2**70], "object"),
        ([[1], [1, 2]], "list"), (Ragged(), "Ragged"),
    ],
)  # fmt: skip
def test_other_types_are_refused(dev, array, got):
    with pytest.raises(errors.ArgumentTypeError) as caught:
        dev.buffer(array)
    assert isinstance(caught.value, TypeError)
    assert str(caught.value).startswith("from_numpy: array: got ") and got in str(caught.value)
    assert "expected float32, float64, float16, bfloat16, longdouble, integers or bool" in str(caught.value)


HALVES = np.arange(2**16, dtype=np.uint16)


def test_every_float16_keeps_its_value(dev):
    halves = HALVES.view(np.float16)
    sign, exponent, fraction = HALVES >> 15, HALVES >> 10 & 31, (HALVES & 1023).astype(float)
    finite = np.ldexp(np.where(exponent > 0, fraction + 1024, fraction), np.maximum(exponent, 1).astype(int) - 25)
    value = np.where(exponent < 31, finite, np.where(fraction == 0, np.inf, np.nan)) * np.where(sign, -1.0, 1.0)
    with np.errstate(all="raise"):
        for array in (halves, halves.astype(">f2"), np.repeat(halves, 2)[::2]):
            got = dev.buffer(array).numpy()
            np.testing.assert_array_equal(got, value)
            assert np.array_equal(np.signbit(got), sign == 1)


def test_every_bfloat16_keeps_its_bits(dev):
    ml_dtypes = pytest.importorskip("ml_dtypes")
    array = HALVES.view(ml_dtypes.bfloat16)
    for given_array in (array, np.repeat(array, 2)[::2], array.reshape(2, -1)):
        got = dev.buffer(given_array).numpy().view(np.uint32)
        assert np.array_equal(got, HALVES.astype(np.uint32) << 16)
    assert dev.buffer(ml_dtypes.bfloat16(1.5)).numpy().tolist() == [1.5]
    with pytest.raises(errors.ArgumentTypeError, match="got dtype float8_e4m3fn"):
        dev.buffer(np.zeros(2, ml_dtypes.float8_e4m3fn))


def test_longdouble_is_rounded_once(dev):
    """Against exact fractions, on both sides of every kind of tie: float64 in between would land on it."""
    rng, tiny = np.random.default_rng(5), np.longdouble(2) ** -62
    halfway = np.concatenate([
        (rng.integers(2**23, 2**24, 300) + 0.5) * np.ldexp(1.0, rng.integers(-140, 100, 300)),  # two normal numbers
        np.ldexp(rng.integers(0, 2**10, 200) + 0.5, -149), np.ldexp([2**25 - 1.0, 1.0], [103, -150]),
    ]).astype(np.longdouble)  # fmt: skip
    near = np.concatenate([halfway * (1 + e) for e in (0, tiny, -tiny, 2.0**-53, 2.0**-54, -(2.0**-55))])
    near = np.concatenate([near, -near, np.array([np.inf, -np.inf, 0, -0.0, np.nan], np.longdouble)])
    near = np.concatenate([near, np.array(["1e4000", "-1e-4900", "1e-300"], np.longdouble)])
    with np.errstate(all="raise"):
        got = dev.buffer(near).numpy()
    for x, y in zip(near, got, strict=True):
        if not np.isfinite(x) or abs(x) > 2.0**129:
            assert np.isnan(x) == np.isnan(y) and (np.isnan(x) or y == np.copysign(np.inf, x))
            continue
        exact, grid = Fraction(*x.as_integer_ratio()), Fraction(2) ** (max(int(np.frexp(x)[1]), -125) - 24)
        rounded = round(exact / grid) * grid  # a tie goes to even
        wanted = float(rounded) if abs(rounded) < 2**128 else math.copysign(math.inf, exact)
        assert y == wanted and np.signbit(y) == np.signbit(x), (x, y)


@pytest.mark.filterwarnings("error")
def test_values_beyond_float32_become_infinities(dev):
    assert dev.buffer([1e300, -1e300, 1]).numpy().tolist() == [np.inf, -np.inf, 1]


@pytest.mark.parametrize("dtype", [np.float64, np.int64, np.uint64])
def test_many_numbers_of_other_types(dev, dtype):
    """They are converted in pieces."""
    x = np.arange(2**21 + 3).astype(dtype)
    assert (dev.buffer(x).numpy() == x.astype(np.float32)).all()


def test_too_many_elements(dev):
    with pytest.raises(OverflowError, match=r"from_numpy: array: got 4294967296 elements, expected fewer than 2\*\*32"):
        dev.buffer(np.broadcast_to(np.float32(0), 2**32))


def test_making(dev):
    assert dev.zeros(3).numpy().tolist() == [0, 0, 0]
    assert dev.full(2, 0.1).numpy().tolist() == [np.float32(0.1)] * 2
    assert len(dev.empty(5)) == 5 == dev.empty(5).length and dev.zeros(0).numpy().shape == (0,)
    b = dev.zeros(2)
    assert b.fill(np.float32(2)) is b and b.device is dev
    b.numpy()[:] = 6  # of a copy
    assert b.numpy().tolist() == [2, 2]


def resident() -> int:
    """Bytes of memory that the process has."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


@pytest.mark.parametrize("n", [2**20, 2**20 + 1, 2**26 + 7, 3 * 2**25])
def test_zeros_take_memory_when_they_are_used(n):
    with tlrt.Device.new("cpu") as device:
        before = resident()
        with device.zeros(n) as x:
            grown = resident() - before
            assert grown < n  # bytes of a quarter of the elements
            assert not x.numpy().any()
            x.fill(7.0)
        with device.zeros(n) as again:  # the same memory, out of the pool
            assert not again.numpy().any()
            kernels.scale(again.fill(1.0), 2.0, out=again)
            assert (again.numpy() == 2).all()
        device.collect()
        with device.zeros(n) as fresh, device.empty(n) as other:
            assert not fresh.numpy().any() and other is not fresh


def test_zeros_of_a_captured_step_are_written_each_time():
    with tlrt.Session("cpu") as s:
        w = s.param(np.ones(2**20 + 3), "w")

        def step():
            x = s.zeros(w.shape)
            return s.add(x, w)

        run = s.capture(step)
        for _ in range(4):
            assert (run().numpy() == 1).all()
            w.assign(tlrt.AnyBuffer.of(w.shape, s.device.full(w.size, 1.0)))


def test_a_handle_is_released_where_nothing_can_own_it(monkeypatch):
    with tlrt.Device.new("cpu") as device:

        def own(handle, release):
            raise KeyboardInterrupt

        with monkeypatch.context() as patched:
            patched.setattr(handles, "own", own)
            assert_raises(KeyboardInterrupt, device.zeros, 100)
        assert device.memory().live_buffers == 0


@pytest.mark.parametrize("make", ["zeros", "empty"])
@pytest.mark.parametrize(
    ("n", "kind"),
    [
        (-1, errors.ShapeError), (2**32, errors.SizeOverflowError), (1.0, errors.ArgumentTypeError),
        ("3", errors.ArgumentTypeError),
    ],
)  # fmt: skip
def test_bad_lengths(dev, make, n, kind):
    assert_raises_regex(kind, f"^{make}: n: got ", getattr(dev, make), n)


@pytest.mark.parametrize("value", ["1", None, 1j, [1, 2], 10**400])
def test_bad_values(dev, value):
    b = dev.full(2, 3)
    assert_raises_regex(errors.ArgumentTypeError, "^fill: value: got ", b.fill, value)
    assert b.numpy().tolist() == [3, 3]
    assert_raises_regex(errors.ArgumentTypeError, "^full: value: got ", dev.full, 2, value)


def test_shapes_on_the_way_out(dev):
    b = dev.buffer(range(6))
    assert b.numpy((2, 3)).tolist() == [[0, 1, 2], [3, 4, 5]]
    assert b.numpy((3, -1)).shape == (3, 2) and b.numpy(6).shape == (6,)
    with pytest.raises(errors.ShapeError, match=r"numpy: shape: got \(4, 2\), expected a shape of 6 elements"):
        b.numpy((4, 2))
    assert_raises(TypeError, b.numpy, "x")


def test_array_protocol(dev):
    b = dev.buffer([1, 2])
    assert np.asarray(b).dtype == np.float32 and np.asarray(b, dtype=np.float64).dtype == np.float64
    assert np.array(b, copy=True).tolist() == [1, 2]
    assert_raises_regex(ValueError, "copy", b.__array__, copy=False)
    assert dev.buffer(b).numpy().tolist() == [1, 2]


def test_release(dev):
    b = dev.buffer([1, 2])
    assert not b.released
    b.release()
    b.release()
    assert b.released
    for use in (b.numpy, b.copy, b.share, lambda: b.length, lambda: b.references, lambda: b.fill(1), lambda: len(b)):
        with pytest.raises(errors.ReleasedError) as caught:
            use()
        assert isinstance(caught.value, ValueError)
    assert repr(b) == f"Buffer(released, device={dev.name!r})" and dev.memory().live_buffers == 0


def test_with_block_and_finaliser(dev):
    with dev.zeros(2) as b:
        assert len(b) == 2
    assert b.released
    c = dev.zeros(2)
    gone = weakref.ref(c)
    del c
    gc.collect()
    assert gone() is None and dev.memory().live_buffers == 0


def test_share_and_copy(dev):
    a = dev.buffer([1, 2])
    b, c = a.share(), a.copy()
    assert (a.references, b.references, c.references) == (2, 2, 1)
    a.fill(7)
    assert b.numpy().tolist() == [7, 7] and c.numpy().tolist() == [1, 2]
    a.release()
    assert b.references == 1 and b.numpy().tolist() == [7, 7]
    assert copy.copy(b).references == 2 and copy.deepcopy(b).references == 1
    assert_raises_regex(TypeError, r"buffer\.numpy", pickle.dumps, b)


def test_repr(dev):
    name = dev.name
    assert repr(dev.buffer([1, 2.5])) == f"Buffer(length=2, device={name!r}, [1, 2.5])"
    assert repr(dev.buffer([np.nan, np.inf])) == f"Buffer(length=2, device={name!r}, [nan, inf])"
    assert repr(dev.zeros(0)) == f"Buffer(length=0, device={name!r}, [])"
    assert repr(dev.zeros(7)).endswith("[0, 0, 0, 0, 0, 0, ...])")
    assert repr(dev.full(100_000, 2)) == f"Buffer(length=100000, device={name!r}, [2, 2, 2, 2, 2, 2, ...])"
    assert dev.memory().live_buffers == 0 and "Buffer(" in repr(Buffer.__new__(Buffer))
    assert_raises(AttributeError, setattr, dev.zeros(1), "colour", "red")
    said = "add: b: got a Buffer that no device made"
    assert_raises_regex(errors.ArgumentTypeError, said, kernels.add, dev.zeros(3), Buffer(np.ones(3), dev))


def test_device_argument():
    assert Buffer.from_numpy([1]).device is tlrt.device("cpu")
    assert Buffer.zeros(1, "cpu").device is tlrt.device("cpu")
    assert_raises_regex(errors.ArgumentTypeError, r"zeros: device: got int, expected a Device", Buffer.zeros, 1, 3)


def test_the_callers_error_state_concerns_no_upload(s):
    """NumPy's floating-point errors are those of the caller's own arithmetic."""
    with np.errstate(all="raise"):
        assert s.const([1e-40, 1e300, np.nan]).numpy()[1] > 1e38
        report = tlrt.compare(lambda s: s.exp(s.const([1e-40, 1e300])), devices=("spec", "cpu"))
    assert report.ok


@pytest.mark.parametrize("counts", [[3 << 20] * 6, [12 << 20] * 3, [5_000] * 300], ids=["fit", "larger", "small"])
def test_uploads_while_the_device_is_busy(dev, counts):
    """What is in transit stays as it was when its upload was called."""
    n = 6144 if dev.is_cuda else 8
    arrays = [np.full(count, i, np.float32) for i, count in enumerate(counts)]
    for buffer in [dev.buffer(x) for x in arrays]:
        buffer.release()  # its memory is there from now on
    x = dev.full(n * n, 1.0)
    for _ in range(6):
        kernels.matmul(x, x, n, n, n)
    for x, buffer in zip(arrays, [dev.buffer(x) for x in arrays], strict=True):
        assert np.array_equal(buffer.numpy(), x)
