"""Arrays of NumPy, and of PyTorch, CuPy and JAX where they are installed: values in, the same values and bits out."""

import ctypes
import importlib.util
import itertools
import math
import subprocess
import sys
from collections.abc import Iterator
from contextlib import nullcontext
from typing import Any

import numpy as np
import pytest

from tests import ROOT
from tlspec import arrays
from tlspec.arrays import CANARY_BYTES, Arrays
from tlspec.formats import FORMATS, Format

#: numbers that every format holds, NaN and both zeros
HELD = np.array([[1.0, -2.0, 0.0, -0.0], [0.5, np.nan, 448.0, 2.0**-6], [-0.25, 3.0, 6.0, -384.0]])
SPARES = 1e300, np.inf, 0.1, -1e-300
#: of the axes of arrays that lie in memory in several ways
LENGTHS = 2, 3, 5, 7, 4
HAS_ML_DTYPES = importlib.util.find_spec("ml_dtypes") is not None


@pytest.fixture(params=["numpy", "torch", "torch:cuda", "cupy", "jax"])
def library(request: pytest.FixtureRequest) -> Iterator[Arrays]:
    name = request.param.partition(":")[0]
    module = pytest.importorskip(name)
    with module.enable_x64(True) if name == "jax" else nullcontext():
        try:
            found = arrays.get(request.param)
        except RuntimeError as error:
            pytest.skip(str(error))
        assert found.name == request.param and arrays.get(found) is found
        yield found


@pytest.fixture
def formats(library: Arrays) -> list[Format]:
    """Those that the library has."""
    own = library.library == "cupy" or (library.library == "numpy" and not HAS_ML_DTYPES)
    return [f for f in FORMATS.values() if not own or f.container in ("float16", "float32", "float64")]


@pytest.fixture
def writable(library: Arrays) -> Arrays:
    """A library whose arrays are host memory that a test may write through pointers."""
    if library.name not in ("numpy", "torch"):
        pytest.skip("not host memory, or not writable")
    return library


def poke(address: int) -> None:
    """Change one byte of host memory."""
    byte = ctypes.c_ubyte.from_address(address)
    byte.value ^= 0x40


class Only:
    """An object that offers an array's methods of these names alone."""

    def __init__(self, array: Any, *names: str):
        for name in names:
            setattr(self, name, getattr(array, name))


class WithDLPack(Only):
    def __dlpack__(self, **options: Any) -> Any:
        return self.__dict__["__dlpack__"](**options)

    def __dlpack_device__(self) -> Any:
        return self.__dict__["__dlpack_device__"]()


class WithArray(Only):
    def __array__(self, dtype: Any = None, copy: Any = None) -> Any:
        return np.array(self.__dict__["tolist"]())


class WithOwnArray(Only):
    def __array__(self, dtype: Any = None, copy: Any = None) -> Any:
        return self.__dict__["view"]()


def test_what_is_made_has_the_rounded_values(library: Arrays, formats: list[Format]) -> None:
    for format in formats:
        x = np.concatenate([HELD, [[*SPARES]]])
        made = library.make(x, format)
        assert library.shape(made) == (4, 4)
        assert library.format_of(made).name == format.container
        assert np.array_equal(library.bits(made), format.encode(x)) and library.bits(made).dtype == format.unsigned
        small = np.where(np.abs(x) < 3e38, x, 0)
        for stored in (">f8", "<f4", ">f4"):
            again = library.make(small.astype(stored), format)
            assert np.array_equal(library.bits(again), format.encode(small.astype(stored).astype(np.float64))), stored
        found = library.values(made)
        assert found.dtype == np.float64 and np.array_equal(found, format.round(x), equal_nan=True)
        assert np.array_equal(found[:3], HELD, equal_nan=True) and np.signbit(found[0, 3])


@pytest.mark.parametrize("shape", [(), (0,), (1,), (3, 0, 2), (2, 1, 5)])
def test_shapes(library: Arrays, formats: list[Format], shape: tuple[int, ...]) -> None:
    x = np.arange(np.prod(shape, dtype=int), dtype=float).reshape(shape) % 8
    for format, strided in itertools.product(formats, (False, True)[: 1 + library.mutable]):
        made = library.make(x, format, strided=strided)
        assert library.shape(made) == library.values(made).shape == library.bits(made).shape == shape
        assert np.array_equal(library.values(made), x)
        assert (library.pointer_range(made) is None) == (x.size == 0)


def test_nan_stands_behind_a_contiguous_array(writable: Arrays) -> None:
    made = writable.make(HELD, FORMATS["float32"])
    place = writable.pointer_range(made)
    assert place is not None and np.isnan(ctypes.c_float.from_address(place[1]).value)


def test_a_strided_array_has_gaps_of_nan(library: Arrays, formats: list[Format]) -> None:
    for format in formats:
        if not library.mutable:
            with pytest.raises(ValueError, match="no strided arrays"):
                library.make(HELD, format, strided=True)
            return
        made, plain = library.make(HELD, format, strided=True), library.make(HELD, format)
        assert np.array_equal(library.bits(made), library.bits(plain))
        first, last = library.pointer_range(made) or (0, 0)
        size = format.bits // 8
        assert last - first == (2 * HELD.size - 1) * size
        start, end = library.pointer_range(plain) or (0, 0)
        assert end - start == HELD.size * size
        if library.name in ("numpy", "torch"):
            memory = np.ctypeslib.as_array((ctypes.c_ubyte * (last - first)).from_address(first))
            gaps = np.concatenate([memory, np.zeros(size, np.uint8)]).view(format.unsigned)[1::2][:-1]
            assert np.isnan(format.decode(gaps)).all()


@pytest.mark.parametrize("rank", range(1, 6))
def test_layouts_lie_as_they_say(rank: int) -> None:
    """Arrays with too few axes lie as in the next simpler layout."""
    x, axes = np.arange(840, dtype=np.float32)[: math.prod(LENGTHS[:rank])].reshape(LENGTHS[:rank]), [*range(rank)]
    moved = {
        "transposed": axes[::-1],
        "inner": [*axes[:-3], *axes[-2:-4:-1], *axes[-1:]],
        "channels": [*axes[:1], *axes[2:], 1],
    }
    permuted = {k for k in moved if rank > 2 or (rank == 2 and k == "transposed")}
    for layout in arrays.LAYOUTS:
        made = arrays.get("numpy").put(x.view(np.uint32), "float32", layout=layout)
        assert np.array_equal(made, x), layout
        order = moved[layout] if layout in permuted else axes
        dense = layout in {*permuted, "offset", "backwards", "expanded"}
        gaps, room = layout == "gaps" or not (dense or rank > 1), layout in {"rows", *moved} - permuted and rank > 1
        lengths = [n + arrays.ROOM * (room and a == axes[-1]) for a, n in enumerate(x.shape)]
        steps = {a: math.prod(lengths[b] for b in order[i + 1 :]) * (1 + gaps) for i, a in enumerate(order)}
        sign = -1 if layout == "backwards" else 1
        assert made.strides == tuple(sign * x.itemsize * steps[a] for a in axes), layout


def test_an_input_is_copied_and_bits_are_a_snapshot(writable: Arrays) -> None:
    x = np.ones(4)
    for format in (FORMATS["float32"], FORMATS["float64"]):
        made = writable.make(x, format)
        before = writable.bits(made)
        made[1] = 7.0
        assert x[1] == 1.0 and np.array_equal(before, format.encode(np.ones(4)))
        assert writable.values(made).tolist() == [1.0, 7.0, 1.0, 1.0]


def test_float64_in_host_memory_is_read_in_place() -> None:
    numpy, x = arrays.get("numpy"), np.ones(3)
    assert np.shares_memory(numpy.values(x), x) and not np.shares_memory(numpy.bits(x), x)


@pytest.mark.parametrize("kind", ["int32", "int64"])
def test_integers(library: Arrays, kind: str) -> None:
    limits = np.iinfo(kind)
    made = library.integers([[0, 1], [limits.min, limits.max]], kind)
    assert library.bits(made).dtype.name == f"u{kind}"
    assert library.bits(made).view(kind).tolist() == [[0, 1], [limits.min, limits.max]]
    assert library.values(made)[0].tolist() == [0.0, 1.0]
    assert library.values(library.integers(np.array([3.0, -1.0]), kind)).tolist() == [3.0, -1.0]
    with pytest.raises(TypeError, match=f"{kind} is no floating-point format"):
        library.format_of(made)
    with pytest.raises(ValueError, match="does not hold"):
        library.integers([0.5], kind)


def test_integers_that_do_not_fit_are_refused() -> None:
    numpy = arrays.get("numpy")
    with pytest.raises(ValueError, match="int32 does not hold"):
        numpy.integers([2**31], "int32")
    with pytest.raises(ValueError, match="expected int8, int16, int32 or int64"):
        numpy.integers([1], "float32")


def test_bools(library: Arrays) -> None:
    made = library.bools([True, False, True])
    assert library.values(made).tolist() == [1.0, 0.0, 1.0] and library.bits(made).tolist() == [1, 0, 1]
    assert "bool" in str(made.dtype)


def test_poisoned_outputs_are_nan_between_canaries(library: Arrays, formats: list[Format]) -> None:
    for format in formats:
        if not library.mutable:
            with pytest.raises(ValueError, match="no arrays that a kernel writes to"):
                library.empty_poisoned((2,), format)
            return
        out, unchanged = library.empty_poisoned((2, 3), format)
        assert library.shape(out) == (2, 3) and library.format_of(out).name == format.container
        assert np.isnan(library.values(out)).all() and unchanged()
        first, last = library.pointer_range(out) or (0, 0)
        assert last - first == 6 * format.bits // 8
        out[...] = library.make(np.ones((2, 3)), format)
        assert (library.values(out) == 1).all() and unchanged()


@pytest.mark.parametrize("dtype", ["int32", "int64", "bool"])
def test_poisoned_integers_are_no_indices(writable: Arrays, dtype: str) -> None:
    out, unchanged = writable.empty_poisoned((5,), dtype)
    assert unchanged() and str(out.dtype).endswith(dtype)
    if dtype != "bool":
        assert (writable.values(out) < -(2**30)).all()


@pytest.mark.parametrize("offset", [-CANARY_BYTES, -1, 0, CANARY_BYTES - 1])
def test_a_byte_written_beside_an_output_is_found(writable: Arrays, formats: list[Format], offset: int) -> None:
    for format, shape in itertools.product(formats, ((3, 5), ())):
        out, unchanged = writable.empty_poisoned(shape, format)
        first, last = writable.pointer_range(out) or (0, 0)
        poke(first)
        poke(last - 1)
        assert unchanged()
        poke((first if offset < 0 else last) + offset)
        assert not unchanged()


def test_ranges_of_addresses_tell_what_overlaps(writable: Arrays) -> None:
    whole = writable.make(np.arange(12.0).reshape(3, 4), FORMATS["float32"])
    first, last = writable.pointer_range(whole) or (0, 0)
    assert last - first == 48
    assert writable.pointer_range(whole[1]) == (first + 16, first + 32)
    assert writable.pointer_range(whole[:, 1]) == (first + 4, first + 4 + 32 + 4)
    assert writable.pointer_range(whole[:0]) is None
    if writable.library == "numpy":  # a reversed axis beside one that is not
        assert writable.pointer_range(whole[::-1, ::2]) == (first, last - 4)
    other = writable.pointer_range(writable.make(np.zeros(12), FORMATS["float32"])) or (0, 0)
    assert other[1] <= first or last <= other[0]


def test_ranges_follow_negative_and_zero_strides() -> None:
    numpy, x = arrays.get("numpy"), np.arange(6.0).reshape(2, 3)
    assert numpy.pointer_range(x[::-1, ::-1]) == numpy.pointer_range(x)
    first, _ = numpy.pointer_range(x) or (0, 0)
    assert numpy.pointer_range(np.broadcast_to(x[:1, :1], (7, 7))) == (first, first + 8)


def test_objects_with_dlpack_alone_are_read_in_place(library: Arrays) -> None:
    made = library.make(HELD, FORMATS["float32"])
    foreign = WithDLPack(made, "__dlpack__", "__dlpack_device__")
    assert np.array_equal(library.values(foreign), HELD, equal_nan=True)
    assert np.array_equal(library.bits(foreign), library.bits(made))
    assert library.shape(foreign) == HELD.shape and library.format_of(foreign) is FORMATS["float32"]
    place = library.pointer_range(made)
    assert place is not None and library.pointer_range(foreign) in ([place] if library.mutable else [place, None])


def test_objects_with_array_alone_are_read(library: Arrays) -> None:
    x = np.arange(6.0).reshape(2, 3)
    copies = WithArray(x, "tolist")
    assert np.array_equal(library.values(copies), x) and library.shape(copies) == (2, 3)
    assert library.pointer_range(copies) is None
    own = WithOwnArray(x, "view")
    assert np.array_equal(library.values(own), x) and library.pointer_range(own) == arrays.get("numpy").pointer_range(x)


def test_arrays_of_another_library_are_read(library: Arrays, formats: list[Format]) -> None:
    for format in formats:
        made, numpy = library.make(HELD, format), arrays.get("numpy")
        assert np.array_equal(numpy.bits(made), library.bits(made))
        assert numpy.format_of(made).name == format.container
        assert numpy.pointer_range(made) == library.pointer_range(made)
    x = np.float32([1.5, -2.5])
    assert library.values(x).tolist() == [1.5, -2.5] and library.format_of(x) is FORMATS["float32"]


def test_numbers_are_read(library: Arrays) -> None:
    for number in (np.float32(1.5), 1.5, np.array(1.5)):
        assert library.values(number) == 1.5 and library.shape(number) == ()
    assert library.pointer_range(1.5) is None and library.values(True) == 1


def test_the_other_byte_order_is_read() -> None:
    numpy = arrays.get("numpy")
    for dtype in (">f4", "<f4", ">f2", ">i4"):
        x = np.array([[1.0, 5.0], [2.0, -3.0]]).astype(dtype)
        assert np.array_equal(numpy.values(x), x) and np.array_equal(numpy.values(x[:, 1]), x[:, 1])
        assert np.array_equal(numpy.bits(x), numpy.bits(x.astype(x.dtype.newbyteorder("="))))


@pytest.mark.parametrize(
    ("thing", "message"),
    [
        ([1.0], "a list, which is no array: it has neither"),
        (None, "NoneType"),
        (np.zeros(2, np.complex64), "complex64"),
        (np.zeros(2, np.longdouble), "longdouble|float128"),
        (np.array([None]), "object"),
        ("text", "a str"),
    ],
)
def test_what_is_no_array_of_numbers_is_refused(library: Arrays, thing: object, message: str) -> None:
    for method in (library.values, library.bits, library.format_of, library.pointer_range):
        with pytest.raises(TypeError, match=message):
            method(thing)


def test_refused_dlpack_says_why() -> None:
    class Refusing:
        def __dlpack__(self, **options: object) -> object:
            raise BufferError("not today")

        def __dlpack_device__(self) -> tuple[int, int]:
            return (1, 0)

    with pytest.raises(TypeError, match="numpy.from_dlpack says: not today"):
        arrays.get("numpy").values(Refusing())


def test_tensors_that_require_gradients_are_read() -> None:
    torch = pytest.importorskip("torch")
    library = arrays.get("torch")
    x = torch.ones(3, requires_grad=True)
    assert library.values(x * 2).tolist() == [2.0, 2.0, 2.0]
    assert library.values(torch.nn.Parameter(torch.ones(2))).tolist() == [1.0, 1.0]
    assert library.values(torch.arange(6.0).reshape(2, 3).T).tolist() == [[0.0, 3.0], [1.0, 4.0], [2.0, 5.0]]


@pytest.mark.parametrize("name", ["tensorflow", "pytorch", "", "numpyy:cpu"])
def test_unknown_libraries_are_refused(name: str) -> None:
    with pytest.raises(ValueError, match=r"unknown library; .*[tT]here are numpy, torch, cupy, jax"):
        arrays.get(name)


def test_close_names_are_offered() -> None:
    with pytest.raises(ValueError, match="did you mean torch"):
        arrays.get("pytorch:cuda")


def test_numpy_is_on_the_cpu() -> None:
    assert arrays.get("numpy:cpu").name == "numpy:cpu"
    with pytest.raises(ValueError, match="no device but the CPU"):
        arrays.get("numpy:cuda")


@pytest.mark.parametrize("name", ["torch:cuda", "cupy", "jax:cpu"])
def test_a_missing_library_says_what_to_install(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    module = name.partition(":")[0]
    monkeypatch.setitem(sys.modules, module, None)
    with pytest.raises(ImportError, match=f"array='{name}' needs {module}: pip install {module}"):
        arrays.get(name)


def test_no_library_is_imported_before_it_is_asked_for() -> None:
    program = """
import sys, numpy
from tlspec import arrays, formats
numpy_arrays = arrays.get("numpy")
numpy_arrays.values(numpy_arrays.make([1.0], formats.get("float32")))
print(sorted({"torch", "cupy", "jax", "ml_dtypes"} & set(sys.modules)))
"""
    run = subprocess.run([sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True, check=True)
    assert run.stdout.strip() == "[]"
