"""The operations as functions of JAX's arrays: under jit, with gradients, over batches, from several threads."""

import itertools
import json
import os
import re
import threading
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest

import tlrt
from tests import DEVICES, ROOT
from tests.runtime import foreign_rows
from tests.runtime.foreign_rows import bits, cases, directions, gradients_of
from tlrt import _foreign, kernels
from tlrt._binding import handles
from tlrt.errors import ArgumentTypeError
from tlrt.verify.run import Runtime
from tlspec.registry import Op

os.environ.setdefault("XLA_PYTHON_CLIENT_PREALLOCATE", "false")  # other tests use the GPU, too
jax = pytest.importorskip("jax")
functions = pytest.importorskip("tlrt.jax")
frames = pytest.importorskip("tlrt.jax.frames")
jnp = jax.numpy

ROWS = list(_foreign.rows())
EVERY = pytest.mark.parametrize("operation", ROWS, ids=lambda r: r.name)
PLACES = [d for d in DEVICES if d == "cpu" or any(x.platform == "gpu" for x in jax.devices())]


def put(x: np.ndarray, device: str) -> Any:
    return jax.device_put(x, jax.devices("cpu" if device == "cpu" else "gpu")[0])


def arguments(case: Any, device: str) -> list[Any]:
    return foreign_rows.arguments(case, lambda x: put(x.astype(np.int32) if x.dtype == np.int64 else x, device))


def split(values: list[Any]) -> tuple[list[Any], list[Any]]:
    """The arrays among arguments, and where they stand."""
    places = [i for i, x in enumerate(values) if isinstance(x, jax.Array)]
    return [values[i] for i in places], places


def with_arrays(values: list[Any], places: list[int], arrays: Any) -> list[Any]:
    out = list(values)
    for i, x in zip(places, arrays, strict=True):
        out[i] = x
    return out


@pytest.mark.parametrize("device", PLACES)
@EVERY
def test_bits_are_those_of_buffers(operation: Op, device: str) -> None:
    runtime = Runtime(device, math=_foreign.math())
    for case in cases(operation):
        values = arguments(case, device)
        arrays, places = split(values)
        call = jax.jit(lambda *xs, v=values, p=places: functions.function(operation.name)(*with_arrays(v, p, xs)))
        found = call(*arrays)
        results = found if isinstance(found, tuple) else (found,)
        for mine, theirs in zip(runtime.run(case), results, strict=True):
            assert bits(mine) == bits(np.asarray(theirs).astype(mine.dtype)), case


@pytest.mark.parametrize("device", PLACES)
@pytest.mark.parametrize("operation", [r for r in ROWS if r.vjp_rule is not None], ids=lambda r: r.name)
def test_gradients_are_those_of_the_rule(operation: Op, device: str) -> None:
    """In a drawn direction, another for each result, against the row's VJP on buffers."""
    case = next(iter(cases(operation, 1)))
    values = arguments(case, device)
    arrays, places = split(values)
    found, pull = jax.vjp(lambda *xs: functions.function(operation.name)(*with_arrays(values, places, xs)), *arrays)
    drawn = [put(d, device) for d in directions(found if isinstance(found, tuple) else [found])]
    gradients = pull(tuple(drawn) if isinstance(found, tuple) else drawn[0])
    names = [
        n for n, x in zip(_foreign.names(operation.signature)[0], values, strict=False) if isinstance(x, jax.Array)
    ]
    made = gradients_of(case, device)
    for name, gradient in zip(names, gradients, strict=True):
        if name in made:
            assert bits(np.asarray(gradient).reshape(-1)) == bits(made[name].reshape(-1)), name
        else:
            assert gradient.dtype == jax.dtypes.float0


@pytest.mark.parametrize("kind", foreign_rows.OUTSIDE)
@pytest.mark.parametrize(
    "operation", [r for r in ROWS if any(a.kind in ("u32", "index") for a in r.signature.inputs)], ids=lambda r: r.name
)
def test_integers_that_32_bits_do_not_hold_are_out_of_range(operation: Op, kind: str) -> None:
    with jax.enable_x64(kind.endswith("64")):
        for both in foreign_rows.outside(operation, kind):
            found = []
            for given in both:
                arrays, places = split([jnp.asarray(x) if isinstance(x, np.ndarray) else x for x in given])
                numbers = [x for x in arrays if x.dtype == jnp.float32]
                assert any(str(x.dtype) in (kind, "uint32") for x in arrays)

                def call(*xs: Any, arrays: Any = arrays, places: Any = places, given: Any = given) -> Any:
                    rest = iter(xs)
                    mixed = [next(rest) if x.dtype == jnp.float32 else x for x in arrays]
                    return functions.function(operation.name)(*with_arrays(given, places, mixed))

                out, pull = jax.vjp(jax.jit(call), *numbers)
                found.append([bits(np.asarray(x)) for x in (out, *pull(jnp.ones_like(out)))])
            assert found[0] == found[1]


@pytest.mark.parametrize("kind", ["int64", "uint64"])
@pytest.mark.parametrize("wide", [False, True])
@pytest.mark.parametrize(
    "operation", [r for r in ROWS if any(a.kind in ("u32", "index") for a in r.signature.inputs)], ids=lambda r: r.name
)
def test_integers_of_numpy_are_not_cut(operation: Op, wide: bool, kind: str) -> None:
    """JAX would cut them to 32 bits where its own have no more."""
    with jax.enable_x64(wide):
        for both in foreign_rows.outside(operation, kind):
            found = [functions.function(operation.name)(*given) for given in both]
            swapped = [x.astype(x.dtype.newbyteorder()) if isinstance(x, np.ndarray) else x for x in both[0]]
            found.append(functions.function(operation.name)(*swapped))
            mine, theirs, other = (bits(np.asarray(x)) for x in found)
            assert mine == theirs == other


def test_a_number_of_python_is_an_array() -> None:
    for wide in (False, True):
        with jax.enable_x64(wide):
            for number in (2.5, jnp.asarray(2.5)):
                found = functions.relu(number)
                assert found.dtype == jnp.float32 and found.shape == () and float(found) == 2.5


with jax.enable_x64(True):
    OF_TYPES = {k: jnp.zeros(1, k) for k in ("float16", "bfloat16", "float32", "float64", "int8", "int32", "bool")}


@pytest.mark.parametrize("name", functions.functions())
def test_arrays_of_other_types_are_refused(name: str) -> None:
    """Each array of each function in turn: none is converted, but integers of any width where integers are due."""
    case = next(iter(cases(next(r for r in ROWS if r.name == name), 1)))
    values = foreign_rows.arguments(case, lambda x: OF_TYPES["int32" if x.dtype == np.int64 else "float32"])
    for i, (kind, array) in itertools.product(split(values)[1], OF_TYPES.items()):
        due = jnp.integer if values[i].dtype == jnp.int32 else jnp.float32
        if not jnp.issubdtype(array.dtype, due):
            refused = pytest.raises(ArgumentTypeError, match=f"tlrt.jax.{name}: .*: got {kind}")
            with jax.enable_x64(kind == "float64"), refused:
                functions.function(name)(*with_arrays(values, [i], [array]))


NUMBERS = (float, np.float64, np.float32, np.float16, np.array, jnp.float32, jnp.bfloat16, np.int64, bool)


@pytest.mark.parametrize("kind", NUMBERS, ids=lambda k: k.__name__)
def test_a_parameter_may_be_a_number_of_any_library(kind: Any) -> None:
    """Of integers those alone that are whole; the gradient has the same one."""
    x = np.random.default_rng(5).standard_normal(9).astype(np.float32)
    slope = kind(np.random.default_rng(6).uniform(0.1, 0.9))
    y, pull = jax.vjp(lambda x: functions.leaky_relu(x, slope), x)
    wanted, pull_wanted = jax.vjp(lambda x: functions.leaky_relu(x, float(slope)), x)
    assert bits(np.asarray(y)) == bits(np.asarray(wanted)) == bits(np.where(x > 0, x, np.float32(float(slope)) * x))
    assert bits(np.asarray(pull(wanted)[0])) == bits(np.asarray(pull_wanted(wanted)[0]))
    if float(slope) != int(slope):
        with pytest.raises(TypeError, match=r"tlrt.jax.reduce_sum_axis: axis: got .+, expected an integer"):
            functions.reduce_sum_axis(x.reshape(3, 3), slope)


@pytest.mark.parametrize("kind", [int, np.int8, np.uint64, jnp.int32, np.array])
def test_integers_may_be_those_of_any_library(kind: Any) -> None:
    x = np.random.default_rng(7).standard_normal((2, 3, 4)).astype(np.float32)
    for axis in range(3):
        assert bits(np.asarray(functions.reduce_sum_axis(x, kind(axis)))) == bits(
            np.asarray(functions.reduce_sum_axis(x, axis))
        )
    for axis in (-1, 3, 2**32):
        with pytest.raises(Exception, match="reduce_sum_axis: axis: got"):
            jax.block_until_ready(functions.reduce_sum_axis(x, axis))


def test_batches_are_mapped() -> None:
    a, b = (np.random.default_rng(i).standard_normal((4, 3, 3)).astype(np.float32) for i in range(2))
    found = jax.vmap(functions.matmul)(a, b)
    assert all(bits(np.asarray(found[i])) == bits(np.asarray(functions.matmul(a[i], b[i]))) for i in range(4))
    for axes, x, y, total in (
        ((0, None), a, b[0], a + b[0]),
        ((None, 0), a[0], b, a[0] + b),
        ((0, 1), a, b.swapaxes(0, 1), a + b),
    ):
        assert np.array_equal(jax.vmap(functions.add, axes)(x, y), total)


def test_errors_say_what_is_wrong() -> None:
    with pytest.raises(Exception, match=r"matmul: B: got shape \(4, 2\), expected \(3, 2\)"):
        functions.matmul(np.ones((2, 3), np.float32), np.ones((4, 2), np.float32))
    with pytest.raises(Exception, match="float32"):
        functions.relu(np.ones(3, np.int32))
    with pytest.raises(AttributeError, match="sgd_step"):
        _ = functions.sgd_step
    with pytest.raises(TypeError, match="missing"):
        functions.cumsum(np.ones(3, np.float32))
    x = np.ones((2, 3), np.float32)
    for given, lacking in (((None, x), "A"), ((x, None), "B"), ((None, None), "A, B")):
        with pytest.raises(TypeError, match=rf"matmul takes \(A, B\): {lacking} missing"):
            functions.matmul(*given)
    with pytest.raises(TypeError, match=r"gather_rows: \w+: got float32, expected integers"):
        functions.gather_rows(x, x)
    with pytest.raises(TypeError, match=r"relu takes \(x\)$"):
        functions.relu(x, x)
    y = np.eye(3, dtype=np.float32)  # by name and by place
    named = functions.layer_norm(beta=y[0], gamma=y[1], eps=0.5, x=y)
    assert np.array_equal(named, functions.layer_norm(y, y[1], y[0], 0.5))
    for again in ("x", "y"):
        with pytest.raises(TypeError, match=rf"relu takes \(x\): got {again} once too often"):
            functions.relu(x, **{again: x})
    assert "matmul" in dir(functions) and "A[i, k]" in functions.matmul.__doc__


def test_a_failed_call_raises_in_jax() -> None:
    """What the library refuses becomes XLA's error, with our words."""
    with pytest.raises(Exception, match="topk"):
        jax.block_until_ready(jax.jit(lambda x: functions.topk(x, 9))(np.ones((1, 3, 1), np.float32)))


def test_memory_stays_flat() -> None:
    import resource

    step = jax.jit(lambda x: functions.tanh(functions.matmul(x, x)))
    x = jax.device_put(np.ones((8, 8), np.float32), jax.devices("cpu")[0])
    for _ in range(500):
        x = step(x)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    for _ in range(10_000):
        x = step(x)
    jax.block_until_ready(x)
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 4096  # KiB
    assert not frames._lent


@pytest.mark.parametrize("known", [True, False])
def test_xla_is_given_the_version_that_it_has(known: bool) -> None:
    """Some releases do not say theirs; all are 0.1 or newer."""
    ffi = frames._ffi
    about = ffi.new("metadata *", {"traits": 7})
    extension = ffi.new("extension *", {"kind": 1, "of": about})
    api = ffi.new("interface *", {"api": {"major": 3, "minor": 5}}) if known else ffi.NULL
    for handler in frames.HANDLERS.values():
        asked = ffi.new("frame *", {"extensions": extension, "api": api})
        assert ffi.cast("void *(*)(frame *)", handler)(asked) == ffi.NULL
        assert (about.api.major, about.api.minor, about.traits) == ((3, 5, 0) if known else (0, 1, 0))


@pytest.mark.parametrize("fault", ["", "stream", "ordinal", "operation"])
def test_a_call_on_a_gpu_is_put_in_order_with_xlas_stream(fault: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """XLA's frame made by hand, and the CPU in the GPU's place."""
    ffi, cpu = frames._ffi, handles.device("cpu")
    log: list[Any] = []
    monkeypatch.setattr(frames, "_device", lambda name, math: log.append((name, math)) or cpu)
    for order in ("order_after", "order_before"):
        monkeypatch.setattr(type(cpu), order, lambda _, stream, order=order: log.append((order, stream)))
    failed = {n: ffi.cast("void *", k * (n == fault)) for k, n in enumerate(("stream", "ordinal", "operation"), 1)}

    @ffi.callback("void *(stream_arguments *)")
    def get_stream(given: Any) -> Any:
        given.stream = ffi.cast("void *", 77)
        return failed["stream"] if given.context == ffi.cast("void *", 5) else ffi.NULL

    @ffi.callback("void *(ordinal_arguments *)")
    def get_ordinal(given: Any) -> Any:
        given.ordinal = 2
        return failed["ordinal"] if given.context == ffi.cast("void *", 5) else ffi.NULL

    @ffi.callback("void *(error_arguments *)")
    def create_error(given: Any) -> Any:
        log.append((ffi.string(given.message).decode(), given.code))
        return failed["operation"]

    functions = {"get_stream": get_stream, "get_ordinal": get_ordinal, "create_error": create_error}
    lengths, x, y = ffi.new("int64_t[]", [2]), ffi.new("float[]", [-1.0, 2.0]), ffi.new("float[]", 2)
    both = [ffi.new("array *", {"type": 11, "data": data, "rank": 1, "lengths": lengths}) for data in (x, y)]
    places = [ffi.new("void *[]", [array]) for array in both]
    name = "nothing" if fault == "operation" else "relu"
    text = ffi.new("char[]", json.dumps([name, "forward", {}, ["x"], [True], "fast"]).encode())
    span = ffi.new("span *", {"text": text, "bytes": len(text) - 1})
    items, api = ffi.new("void *[]", [span]), ffi.new("interface *", functions)
    frame = ffi.new("frame *", {
        "api": api, "context": ffi.cast("void *", 5), "inputs": {"count": 1, "items": places[0]},
        "outputs": {"count": 1, "items": places[1]}, "attributes": {"count": 1, "items": items},
    })  # fmt: skip
    assert ffi.cast("void *(*)(frame *)", frames.HANDLERS["CUDA"])(frame) == failed.get(fault, ffi.NULL)
    assert list(y) == ([0.0, 0.0] if fault else [0.0, 2.0])
    if not fault:
        assert log == [("cuda:2", "fast"), ("order_after", 77), ("order_before", 77)]
    elif fault == "operation":
        assert len(log) == 1 and "nothing" in log[0][0] and log[0][1] == 3
    else:
        assert log == []


def test_several_threads_call_at_once() -> None:
    step = jax.jit(lambda x: functions.softmax(functions.matmul(x, x)))
    xs = [np.random.default_rng(i).standard_normal((32, 32)).astype(np.float32) for i in range(4)]
    expected = [bits(np.asarray(step(x))) for x in xs]
    found: list[Any] = [None] * 4

    def work(i: int) -> None:
        for _ in range(50):
            found[i] = bits(np.asarray(step(xs[i])))

    threads = [threading.Thread(target=work, args=(i,)) for i in range(4)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    assert found == expected


def test_the_documents_code_runs() -> None:
    blocks = re.findall(r"^```py\n(.*?)^```", (ROOT / "docs/jax.md").read_text("utf-8"), re.MULTILINE | re.DOTALL)
    assert blocks
    for block in blocks:
        exec(block, {})


@pytest.fixture
def set_math() -> Iterator[Callable[[str], None]]:
    """The function; the mode is afterwards what it was."""
    before = _foreign.math()
    yield _foreign.set_math
    _foreign.set_math(before)


def test_a_compiled_function_keeps_the_mode_that_it_was_traced_in(set_math: Any) -> None:
    a, b = (put(np.random.default_rng(k).standard_normal((3, 5000), np.float32), "cpu") for k in range(2))
    set_math("reproducible")
    compiled = jax.jit(lambda x, y: functions.matmul(x, y))
    found = [np.asarray(compiled(a, b.T))]
    set_math("fast")
    found.append(np.asarray(compiled(a, b.T)))
    other = np.asarray(jax.jit(lambda x, y: functions.matmul(x, y))(a, b.T))
    assert np.array_equal(*found) and not np.array_equal(found[0], other)


def test_a_gradient_is_computed_in_the_mode_of_its_function(set_math: Any) -> None:
    a, g = (put(np.random.default_rng(k).standard_normal((5000, 3), np.float32), "cpu") for k in range(2))
    found = {}
    for of, then in itertools.product(("fast", "reproducible"), repeat=2):
        set_math(of)
        back = jax.vjp(lambda w: functions.matmul(a, w), np.ones((3, 3), np.float32))[1]
        set_math(then)
        found[of, then] = bits(np.asarray(back(g)[0]))
    assert all(found[of, then] == found[of, of] for of, then in found)
    assert found["fast", "fast"] != found["reproducible", "reproducible"]


def test_the_mode_is_that_of_each_call(set_math: Any) -> None:
    """What was called in one mode computes in the other after `set_math`."""
    a, b = (put(np.random.default_rng(k).standard_normal((3, 5000), np.float32), "cpu") for k in range(2))
    found: dict[str, list[np.ndarray]] = {}
    for chosen in ("fast", "reproducible", "fast"):
        set_math(chosen)
        found.setdefault(chosen, []).append(np.asarray(functions.matmul(a, b.T)))
    for chosen, results in found.items():
        with tlrt.device("cpu", math=chosen, new=True) as device:
            x, y = (device.buffer(np.ascontiguousarray(v)) for v in (a, b.T))
            expected = kernels.matmul(x, y, 3, 5000, 3).numpy((3, 3))
        assert all(np.array_equal(r, expected) for r in results)
    assert not np.array_equal(found["fast"][0], found["reproducible"][0])


@pytest.mark.parametrize(
    "name", [r.name for r in ROWS if r.signature.elementwise and len(r.signature.inputs) > 1 and not r.signature.params]
)
def test_arrays_of_other_shapes_are_refused(name: str) -> None:
    """Also where they have as many elements."""
    count = len(next(r for r in ROWS if r.name == name).signature.inputs)
    for k in range(1, count):
        shapes = [(3, 2) if i == k else (2, 3) for i in range(count)]
        with pytest.raises(Exception, match="shape"):
            getattr(functions, name)(*(np.ones(shape, np.float32) for shape in shapes))
