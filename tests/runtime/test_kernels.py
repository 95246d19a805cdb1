"""The generated functions: what each refuses, naming operation and argument, and that a refusal changes nothing."""

import functools
import inspect
import math

import numpy as np
import pytest
from numpy.testing import assert_raises, assert_raises_regex

import tlrt
from tlrt import errors, kernels
from tlspec import entries

ENTRIES = {e.name: e for e in entries.all_entries()}


def plain(entry: entries.Entry, device: tlrt.Device) -> dict[str, object]:
    """Arguments of the right Python types (their values need not fit together)."""
    values = {
        "device": device, "u32": [0], "f64": np.zeros((1, 1)), "dim": 1, "dims": [1], "int": 0, "float": 1.0,
    }  # fmt: skip
    fixed = {a.name: math.prod(int(d) for d in a.dims if d.isdigit()) for a in entry.signature.inputs}
    make = {
        "buffer": lambda name: device.zeros(fixed.get(name, 1)), "index": lambda _: device.indices([0]),
        "list": lambda _: [device.zeros(1)],
    }  # fmt: skip
    made = {a.name: make.get(a.kind, lambda _, a=a: values[a.kind])(a.name) for a in entries.arguments(entry)}
    for name in made:
        if name in ("padding", "padding_low", "padding_high", "output_padding"):  # at most half of a kernel of 1
            made[name] = [0]
        elif name.startswith(
            ("kernel_", "stride_", "dilation_", "groups", "mask_batch", "mask_heads", "mask_queries", "kv_heads")
        ):
            made[name] = 1
    return made


@pytest.mark.parametrize("name", ENTRIES)
def test_documented_and_typed(name):
    entry, function = ENTRIES[name], getattr(kernels, name)
    doc = inspect.getdoc(function)
    assert doc and "\nParameters\n----------\n" in doc and "\nReturns\n-------\n" in doc
    assert ("\nExamples\n--------\n" in doc) is (name == entry.op.name)
    parameters = inspect.signature(function).parameters
    assert list(parameters)[: len(entries.arguments(entry))] == [
        *(a.name for a in entries.arguments(entry) if not a.keyword),
        *(a.name for a in entries.arguments(entry) if a.keyword),
    ]
    assert all(p.annotation is not inspect.Parameter.empty for p in parameters.values())
    assert name in kernels.__all__


WRONG = {
    "device": ("cpu", "expected Device"),
    "buffer": (np.ones(1, np.float32), "got ndarray of float32, expected Buffer"),
    "index": (np.ones(1, np.float32), "got ndarray of float32, expected IndexBuffer"),
    "list": (np.ones(1, np.float32), "[0]: got float32, expected Buffer"),
    "u32": ([0.5], "expected integers"),
    "f64": (["a"], "expected float64"),
    "dim": (1.0, "got float, expected an integer"),
    "dims": ([1, "2"], "[1]: got str, expected an integer"),
    "int": (None, "got None, expected an integer"),
    "float": ("1", "got str, expected a number"),
}


@pytest.mark.parametrize(("name", "argument"), [(n, a.name) for n, e in ENTRIES.items() for a in entries.arguments(e)])
def test_wrong_types(name, argument):
    wrong, said = WRONG[next(a.kind for a in entries.arguments(ENTRIES[name]) if a.name == argument)]
    with tlrt.Device.new() as device:
        values = {**plain(ENTRIES[name], device), argument: wrong}
        with pytest.raises(errors.ArgumentTypeError) as caught:
            getattr(kernels, name)(**values)
        assert str(caught.value).startswith(f"{name}: {argument}") and said in str(caught.value)
        assert caught.value.op == name
        held = [x for v in values.values() for x in (v if isinstance(v, list) else [v])]
        assert device.memory().live_buffers == sum(isinstance(x, tlrt.Buffer) for x in held)


class Interrupting:
    """An operand at which a signal handler raises."""

    def __getattr__(self, name):
        raise KeyboardInterrupt


@pytest.mark.parametrize("name", ENTRIES)
def test_an_exception_that_is_no_refusal(name):
    """It goes on as it is; results given for the call keep their content, and those of a refused one too."""
    entry, function = ENTRIES[name], getattr(kernels, name)
    with tlrt.Device.new() as device:
        [operand, kind], *_ = (
            (a.name, a.kind) for a in entries.arguments(entry) if a.kind in ("buffer", "list", "device")
        )
        for given in (False, True):
            held = [device.indices([9]) if o.kind == "index" else device.full(1, 9) for o in entry.outputs]
            values = plain(entry, device)
            if given:
                places = [[b] if o.listed else b for b, o in zip(held, entry.outputs, strict=True)]
                values["out"] = places if len(places) > 1 else places[0]
            live = device.memory().live_buffers
            for wrong, raised in ((Interrupting(), KeyboardInterrupt), (object(), errors.ArgumentTypeError)):
                assert_raises(raised, function, **{**values, operand: [wrong] if kind == "list" else wrong})
            assert all(b.numpy().tolist() == [9] for b in held) and device.memory().live_buffers <= live


def test_integers_out_of_range(dev):
    x = dev.zeros(4)
    for axis in (2, -1, 2**32, 2**70):
        said = "^reduce_sum_axis: axis: got "
        assert_raises_regex(errors.ArgumentError, said, kernels.reduce_sum_axis, x, [2, 2], axis)
    beyond = functools.partial(assert_raises_regex, errors.IndexOutOfRangeError)
    for i in (2, -1, 2**32):
        beyond("^scatter_add_row: i: got ", kernels.scatter_add_row, x, dev.zeros(2), 2, 2, i)
    for start, length in ((5, 0), (-1, 0), (0, 5), (0, -1), (2**32, 0)):
        beyond("^slice1d: (start|len): got ", kernels.slice1d, x, 4, start, length)
    said = r"^reduce_sum_axis: dims\[1\]: got -1, expected 0 or more"
    assert_raises_regex(errors.ShapeError, said, kernels.reduce_sum_axis, x, [4, -1], 0)
    for key in (-1, 2**64):
        assert_raises_regex(errors.ArgumentError, "^rand_uniform: key: got ", kernels.rand_uniform, dev, 4, key)
    assert len(kernels.rand_uniform(dev, 4, 2**64 - 1)) == 4


def test_iterators_are_no_dimensions(dev):
    said = "^reduce_sum_axis: dims: got generator, expected a sequence of integers"
    for dims in ((2, 3), (2, 3.5)):
        assert_raises_regex(TypeError, said, kernels.reduce_sum_axis, dev.zeros(6), (d for d in dims), 0)


def test_dimensions_that_equal_known_ones_are_looked_at_again(dev):
    x = dev.buffer(range(6))
    dims = [2, 3]
    for known in (dims, tuple(dims), np.array(dims), [np.int64(2), np.uint8(3)]):
        assert kernels.reduce_sum_axis(x, known, 1).numpy().tolist() == [3, 12]
    for wrong in ((2.0, 3.0), [2, np.float32(3)], [2, "3"], {2: 0, 3: 0}):
        assert_raises_regex(TypeError, "^reduce_sum_axis: dims", kernels.reduce_sum_axis, x, wrong, 1)
    dims[:] = 3, 2
    assert kernels.reduce_sum_axis(x, dims, 1).numpy().tolist() == [1, 5, 9]


@pytest.mark.parametrize("axis_map", [[4, 0, 3, 2], [2, 3, 0, 4], [3, 4, 2, 0], [4, 3, 2, 5], [0, 4, 2, 3]])
def test_axis_maps_in_any_order(dev, axis_map):
    """Axis k - 1 of the input lies where the map says k; those of size 1 need no entry."""
    in_dims, sizes = (1, 3, 5, 2, 1), {0: 4, 2: 3, 3: 5, 4: 2, 5: 7}
    x = np.arange(30, dtype=np.float32)
    out_dims = [sizes[k] for k in axis_map]
    rest = [i for i in range(5) if i + 1 not in axis_map]
    seen = x.reshape(in_dims).transpose([k - 1 for k in axis_map if k] + rest)
    expected = np.broadcast_to(seen.reshape([in_dims[k - 1] if k else 1 for k in axis_map]), out_dims)
    made = kernels.broadcast_to(dev.buffer(x), in_dims, out_dims, axis_map)
    assert np.array_equal(made.numpy(out_dims), expected)
    back = kernels.reduce_from_broadcast(made, in_dims, out_dims, axis_map)
    assert np.array_equal(back.numpy(), x * (made.length // x.size))


def test_axis_maps_of_tapes(dev):
    with tlrt.Tape(dev) as tape:
        x = tape.leaf(np.arange(6.0).reshape(2, 1, 3))
        y = tape.broadcast_to(x, (3, 4, 2), (3, 0, 1))
        assert np.array_equal(tape.value(y).numpy()[:, 3], tape.value(x).numpy()[:, 0].T)
        g = np.arange(24.0).reshape(3, 4, 2)
        assert np.array_equal(tape.backward(y, g)[x].numpy(), g.sum(axis=1).T[:, np.newaxis])


@pytest.mark.parametrize("axis_map", [[1], [1, 1], [2, 0], [0, 2], [1, 0, 0], [0, 0], [0, 2**32 - 1]])
def test_bad_axis_map(dev, axis_map):
    x, out = dev.zeros(3), dev.full(6, 5)
    assert_raises_regex(errors.TorchleanError, "axis_map", kernels.broadcast_to, x, [3], [2, 3], axis_map, out=out)
    assert out.numpy().tolist() == [5] * 6


def test_numpy_numbers_are_numbers(dev):
    a = dev.buffer([1, 2])
    assert kernels.scale(a, np.float32(3)).numpy().tolist() == [3, 6]
    assert kernels.reduce_sum(a, np.int64(2)).numpy().tolist() == [3]
    assert kernels.reduce_sum_axis(a, np.array([1, 2]), np.uint8(1)).numpy().tolist() == [3]
    said = "reduce_sum: n: got float32, expected an integer"
    assert_raises_regex(TypeError, said, kernels.reduce_sum, a, np.float32(2))


@pytest.mark.parametrize(
    ("indices", "said", "kind"),
    [
        ([0, 1, 1, 2**32], "got 4294967296 at position 3, expected below 2**32", errors.IndexOutOfRangeError),
        (np.array([0, -1]), "got -1 at position 1, expected 0 or more", errors.IndexOutOfRangeError),
        (np.array([0, 2**63], np.uint64), "got 9223372036854775808 at position 1", errors.IndexOutOfRangeError),
        ([2**70], f"got {2**70} at position 0", errors.IndexOutOfRangeError),
        ([-(2**70)], f"got -{2**70} at position 0", errors.IndexOutOfRangeError),
        ([2**63, -1], "got 9223372036854775808 at position 0", errors.IndexOutOfRangeError),
        ([0.0], "got float 0.0 at position 0, expected integers", TypeError),
        (np.array([0.0]), "got dtype float64, expected integers", TypeError),
        (np.array([True]), "got dtype bool, expected integers", TypeError),
        ("01", "got str, expected integers", TypeError),
        (None, "got None, expected integers", TypeError),
        ([[0, 1]], "got shape (1, 2), expected one axis", errors.ShapeError),
        (3, "got shape (), expected one axis", errors.ShapeError),
    ],
)
def test_bad_indices(dev, indices, said, kind):
    mat, out = dev.zeros(6), dev.full(4, 7)
    with pytest.raises(kind) as caught:
        kernels.gather_rows(mat, indices, 3, 2, out=out)
    assert str(caught.value).startswith("gather_rows: indices: ") and said in str(caught.value)
    assert out.numpy().tolist() == [7] * 4 and dev.memory().live_buffers == 2


@pytest.mark.parametrize("dtype", ["u1", "i2", "i8", "u8", ">u4", "u4", "O"])
def test_indices_of_any_integer_type(dev, dtype):
    mat = dev.buffer([0, 1, 2, 3, 4, 5])
    strided = np.array([2, 9, 0, 9, 200, 9]).astype(dtype)[::2]  # 200 is out of range: a zero row
    assert kernels.gather_rows(mat, strided, 3, 2).numpy().tolist() == [4, 5, 0, 1, 0, 0]
    assert kernels.gather_rows(mat, strided.tolist(), 3, 2).numpy().tolist() == [4, 5, 0, 1, 0, 0]


def test_host_float64(dev):
    a, b = np.arange(6.0).reshape(2, 3), np.arange(12.0).reshape(3, 4)
    assert np.array_equal(kernels.dgemm(dev, a, b, 2, 3, 4), a @ b)
    assert np.array_equal(kernels.dgemm(dev, np.asfortranarray(a), b.T.copy().T, 2, 3, 4), a @ b)
    for kind in (np.float16, np.longdouble):
        assert np.array_equal(kernels.dgemm(dev, a.astype(kind), b, 2, 3, 4), a @ b)
    assert np.array_equal(kernels.dgemm(dev, a.reshape(-1).astype(int), b.tolist(), 2, 3, 4), a @ b)
    out = np.full((2, 4), 7.0)
    assert kernels.dgemm(dev, a, b, 2, 3, 4, out=out) is out and np.array_equal(out, a @ b)
    out[:] = 7
    gemm, tall = functools.partial(kernels.dgemm, dev), np.zeros((2**16, 1))
    still = np.frombuffer(bytes(64)).reshape(2, 4)
    for bad, kind, said in [
        (lambda: gemm(a, b, 3, 2, 4, out=out), errors.ShapeError, "A: got shape"),
        (lambda: gemm(a, b, 2, 3, 5, out=out), errors.ShapeError, "B: got shape"),
        (lambda: gemm(a.astype(complex), b, 2, 3, 4, out=out), TypeError, "A: got dtype complex128"),
        (lambda: gemm(a, b, 2, 3, 4, out=out.T), errors.ShapeError, "out: got shape"),
        (lambda: gemm(a, b, 2, 3, 4, out=out.astype("f4")), TypeError, "out: got ndarray of float32"),
        (lambda: gemm(a, b, 2, 3, 4, out=np.ones((2, 8))[:, ::2]), TypeError, "out: got a strided"),
        (lambda: gemm(a, b, 2, 3, 4, out=still), TypeError, "out: got a strided, unaligned or read-only"),
        (lambda: gemm(b[:1], b, 1, 4, 4, out=b[1:2]), ValueError, "B: got shape"),
        (lambda: gemm(a, b, 2.0, 3, 4, out=out), TypeError, "m: got float"),
        (lambda: gemm(a, b, -2, 3, 4), errors.ShapeError, ""),
        (lambda: gemm(a, b, 2**31, 3, 4), errors.ShapeError, "A: "),
        (
            lambda: gemm(tall, tall.T, 2**16, 1, 2**16),
            errors.SizeOverflowError,
            "out: got 4294967296 elements, expected f",
        ),
    ]:
        assert_raises_regex(kind, f"^dgemm: {said}", bad)
    square, said = np.eye(4), "dgemm: out: got memory of an input"
    for same in (square, square[:], square.T.T):
        assert_raises_regex(errors.AliasError, said, gemm, square, np.eye(4), 4, 4, 4, out=same)
    assert out.tolist() == [[7.0] * 4] * 2


def test_out_is_overwritten_and_returned(dev):
    a, b, out = dev.buffer([1, 2]), dev.buffer([3, 4]), dev.zeros(2)
    assert kernels.add(a, b, out=out) is out and out.numpy().tolist() == [4, 6]
    assert kernels.add(a, b, out=a) is a  # elementwise: an output may be an input
    assert a.numpy().tolist() == [4, 6]
    for wrong in (np.zeros(2, np.float32), (out,), "x"):
        assert_raises_regex(TypeError, "^add: out: got ", kernels.add, a, b, out=wrong)


def test_gradients_wanted(dev):
    a, b, g = dev.buffer([2, 3]), dev.buffer([5, 7]), dev.buffer([1, 10])
    ga, gb = kernels.mul_bwd(a, b, g)
    assert (ga.numpy().tolist(), gb.numpy().tolist()) == ([5, 70], [2, 30])
    none, gb = kernels.mul_bwd(a, b, g, want=(False, True))
    assert none is None and gb.numpy().tolist() == [2, 30]
    given = dev.zeros(2)
    ga, none = kernels.mul_bwd(a, b, g, want=[True, False], out=(given, None))
    assert ga is given and none is None and given.numpy().tolist() == [5, 70]
    for options, kind, said in [
        ({"want": (True,)}, ValueError, "want: got 1 entries, expected 2 entries, for ga, gb"),
        ({"want": (False, False)}, ValueError, "want: got no gradient"),
        ({"want": 3}, TypeError, "want: got int"),
        ({"want": "no"}, TypeError, "want: got str, expected 2 entries"),
        ({"want": (w for w in (True, True))}, TypeError, "want: got generator"),
        ({"want": [given, given]}, TypeError, "want[0]: got Buffer, expected True or False"),
        ({"want": [True, 1]}, TypeError, "want[1]: got int, expected True or False"),
        ({"out": given}, TypeError, "out: got Buffer, expected 2 entries"),
        ({"out": (given,)}, ValueError, "out: got 1 entries"),
        ({"out": (given, 3)}, TypeError, "out: got int for gb"),
        ({"out": (given, None), "want": (False, True)}, ValueError, "out: got a buffer for ga"),
        ({"out": (given, given)}, errors.AliasError, ""),
        ({"out": (dev.zeros(3), None)}, errors.ShapeError, "ga: got 3 elements"),
    ]:
        with pytest.raises(kind) as caught:
            kernels.mul_bwd(a, b, g, **options)
        assert str(caught.value).startswith(f"mul_bwd: {said}")
    assert given.numpy().tolist() == [5, 70]


def test_gradients_that_are_wanted_again(dev):
    """A call takes the places of an earlier one, whose gradients stay; what equals an earlier `want` is looked at again."""
    a, b = dev.buffer([2, 3]), dev.buffer([5, 7])
    for want in (None, [True, True], [True, False], [False, True]):
        made = []
        for g in ([1, 10], [2, 20], [3]):
            if len(g) == 1:
                assert_raises(errors.ShapeError, kernels.mul_bwd, a, b, dev.buffer(g), want=want)
                g = [4, 40]
            made.append((g, kernels.mul_bwd(a, b, dev.buffer(g), want=want)))
        for g, found in made:
            for gradient, factor, wanted in zip(found, ([5, 7], [2, 3]), want or [True, True], strict=True):
                assert (gradient is None) != wanted
                assert not wanted or gradient.numpy().tolist() == [x * y for x, y in zip(g, factor, strict=True)]
        if want is not None:
            said = r"^mul_bwd: want\[0\]: got int, expected True or False"
            assert_raises_regex(TypeError, said, kernels.mul_bwd, a, b, a, want=[int(w) for w in want])
    x = dev.zeros(1)
    said = "^linear_bwd: want: got 2 entries, expected 3 entries"
    assert_raises_regex(ValueError, said, kernels.linear_bwd, x, x, x, 1, 1, 1, want=[True, True])


def test_share(dev):
    x = dev.buffer([1])
    assert kernels.share(x).references == 2
    assert_raises_regex(TypeError, "^share: x: got list, expected Buffer", kernels.share, [1])
