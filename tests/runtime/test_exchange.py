"""Memory lent to other libraries and borrowed from them: one memory on both sides, as long as either needs it."""

import ctypes
import gc
import weakref
from importlib import import_module
from importlib.util import find_spec
from typing import Any

import numpy as np
import pytest
from numpy.testing import assert_raises, assert_raises_regex

import tlrt
from tests import DEVICES, unchanged_memory
from tests.runtime.libraries import GROWTH, LIBRARIES, Library, Missing, aligned, leak
from tlrt import Session, errors, kernels
from tlrt._binding.exchange import lend_to
from tlrt.buffer import IndexBuffer
from tlspec.drawn import generator


def open_library(name: str, device: str) -> Library:
    try:
        return LIBRARIES[name](device)
    except Missing as e:
        pytest.skip(str(e))


@pytest.fixture(params=LIBRARIES)
def library(request: pytest.FixtureRequest, device: str) -> Library:
    return open_library(request.param, device)


@pytest.fixture(params=DEVICES)
def device(request: pytest.FixtureRequest) -> str:
    return request.param


def test_memory_is_one_on_both_sides(library: Library, device: str) -> None:
    x = library.array(aligned(np.arange(4000, dtype=np.float32).reshape(40, 100)))
    buffer = tlrt.from_dlpack(x)
    view = library.view(buffer)
    assert (library.address(view) == library.address(x)) is library.is_mutable
    assert buffer.device.name == tlrt.device(device).name
    assert np.array_equal(buffer.numpy(), np.arange(4000)) and np.array_equal(library.numpy(view), np.arange(4000))
    own = tlrt.device(device).buffer([1, 2, 3])
    lent = library.view(own)
    again = tlrt.from_dlpack(lent)
    assert (again.references == own.references) is library.is_mutable and own.references >= 2
    own.fill(7.0)
    tlrt.device(device).synchronize()
    assert library.numpy(lent).tolist() == [7, 7, 7]
    assert again.numpy().tolist() == ([7, 7, 7] if library.is_mutable else [1, 2, 3])


def test_an_array_that_is_immutable_stays_as_it_is(device: str) -> None:
    library = open_library("JAX", device)
    numbers = generator("immutable", device).standard_normal((7, 64), np.float32)
    x = library.array(aligned(numbers))
    for wanted in (None, True):
        copy = tlrt.from_dlpack(x, copy=wanted)
        assert copy.numpy().tobytes() == numbers.tobytes()
        copy.fill(7.0)
        copy.device.synchronize()
        assert np.asarray(x).tobytes() == numbers.tobytes()
    with pytest.raises(errors.ArgumentError, match="memory may be read-only, expected a copy"):
        tlrt.from_dlpack(x, copy=False)


class Foreign:
    """An array of a library that nobody knows, whose tensors have no version."""

    def __init__(self, x: Any) -> None:
        self.x = x
        self.__dlpack_device__ = x.__dlpack_device__

    def __dlpack__(self, stream: Any = None) -> Any:
        return self.x.__dlpack__()


def test_a_tensor_that_cannot_say_so_is_taken_for_read_only() -> None:
    x = aligned(np.arange(9, dtype=np.float32))
    tlrt.from_dlpack(Foreign(x)).fill(1.0)
    assert x.tolist() == [*range(9)]
    with pytest.raises(errors.ArgumentError, match="Foreign, whose memory may be read-only"):
        tlrt.from_dlpack(Foreign(x), copy=False)


def test_the_negative_bit_of_pytorchs_tensors(device: str) -> None:
    torch = pytest.importorskip("torch")
    numbers = torch.tensor(generator("negative", device).standard_normal((5, 64), np.float32), device=device)
    views = {"whole": torch._neg_view(numbers), "imaginary": torch.complex(numbers, numbers).conj().imag}
    for view in views.values():
        assert view.is_neg()
        for copy in (None, True):
            assert tlrt.from_dlpack(view, copy=copy).numpy().tobytes() == (-numbers).cpu().numpy().tobytes()
        with pytest.raises(errors.ArgumentError, match=r"negative bit set, expected a copy of it, as resolve_neg\(\)"):
            tlrt.from_dlpack(view, copy=False)
        with Session("cpu") as s:
            assert s.const(view.cpu()).numpy().tobytes() == (-numbers).cpu().numpy().tobytes()
    ops = pytest.importorskip("tlrt.torch").reproducible
    with ops():
        found = [torch.relu(view).cpu() for view in views.values()]
    plain = [torch.ops.torchlean.relu(view.detach()).cpu() for view in views.values()]
    assert all(torch.equal(y, torch.relu(-numbers).cpu()) for y in (*found, *plain))


@pytest.mark.parametrize("kind", ["float16", "bfloat16"])
def test_numbers_of_16_bits_are_widened_exactly(kind: str) -> None:
    """All of them that are no NaN: in order, and of another order of axes."""
    bits = np.arange(2**16, dtype=np.uint16)
    wide = (bits.astype(np.uint32) << 16).view(np.float32) if kind == "bfloat16" else bits.view(np.float16)
    bits, wide = bits[~np.isnan(wide)], np.asarray(wide[~np.isnan(wide)], np.float32)
    bits, wide = bits[: len(bits) // 8 * 8].reshape(-1, 8), wide[: len(wide) // 8 * 8].reshape(-1, 8)
    arrays = []
    if kind == "float16":
        arrays.append(bits.view(np.float16))
    elif find_spec("ml_dtypes"):
        arrays.append(bits.view(import_module("ml_dtypes").bfloat16))
    if find_spec("torch"):
        torch = import_module("torch")
        arrays.append(torch.tensor(bits.view(np.int16)).view(getattr(torch, kind)))
    if find_spec("jax"):
        arrays.append(import_module("jax").numpy.asarray(arrays[0]))
    if not arrays:
        pytest.skip("neither ml_dtypes nor PyTorch is installed")
    for x in arrays:
        for array, wanted in ((x, wide), (x.T, wide.T)):
            assert tlrt.from_dlpack(array).numpy().tobytes() == wanted.tobytes()
            assert_raises((errors.TorchleanError, BufferError), tlrt.from_dlpack, array, copy=False)
            with Session("cpu") as s:
                assert s.const(array).numpy().tobytes() == s.input(array).numpy().tobytes() == wanted.tobytes()
                p = s.param(array, "p")
                assert p.value.tobytes() == wanted.tobytes() and p.shape == wanted.shape
                p.set(np.zeros(wanted.shape))
                p.set(array)
                assert p.value.tobytes() == wanted.tobytes()
            assert tlrt.device("cpu").buffer(array).numpy().tobytes() == wanted.tobytes()


def test_what_one_side_writes_the_other_reads(device: str) -> None:
    library = open_library("NumPy" if device == "cpu" else "PyTorch", device)
    x = library.array(np.ones(1000, np.float32))
    buffer = tlrt.from_dlpack(x)
    kernels.scale(buffer, 3.0, out=buffer)
    buffer.device.synchronize()
    assert library.numpy(x).tolist() == [3.0] * 1000
    x[:] = 5.0
    if device == "cuda":
        buffer.device.order_after(library.package.cuda.current_stream().cuda_stream)
    assert kernels.scale(buffer, 2.0).numpy().tolist() == [10.0] * 1000


def test_the_memory_outlives_its_names(library: Library, device: str) -> None:
    d = tlrt.device(device)
    gc.collect()  # what other tests left
    with unchanged_memory(d):
        x = library.array(np.full(5000, 2.0, np.float32))
        buffer = tlrt.from_dlpack(x)
        del x
        gc.collect()
        junk = [library.array(np.zeros(5000, np.float32)) for _ in range(20)]
        assert (buffer.numpy() == 2).all()
        view = library.view(d.full(5000, 4.0))
        gc.collect()
        del junk
        more = [d.zeros(5000) for _ in range(20)]
        assert (library.numpy(view) == 4).all()
        del more, view, buffer
        gc.collect()
        d.synchronize()


def test_a_tape_keeps_it(device: str) -> None:
    library = open_library("NumPy" if device == "cpu" else "PyTorch", device)
    with Session(device) as s:
        tape = tlrt.Tape(s.device)
        w = tape.leaf(tlrt.from_dlpack(library.array(np.array([1.0, 2.0], np.float32)), s.device))
        loss = tape.reduce_sum(tape.mul(w, w))
        gc.collect()
        assert tape.backward(loss)[w].numpy().tolist() == [2.0, 4.0]


@pytest.mark.parametrize("device", ["cpu"])
def test_what_cannot_be_shared_is_copied_or_refused(device: str) -> None:
    x = aligned(np.arange(24, dtype=np.float32))
    odd = {"a step": x.reshape(4, 6).T, "step of 2": x[::2], "multiple of 4": x[1:]}
    for message, array in odd.items():
        assert_raises_regex((errors.ShapeError, errors.ArgumentError), message, tlrt.from_dlpack, array, copy=False)
        assert tlrt.from_dlpack(array).numpy().tolist() == array.ravel().tolist()
    for part in (lambda a: a[::2][:1], lambda a: a[1:2, None], lambda a: a[:, None][:, ::5], lambda a: a[1:1:2, ::3]):
        dense = part(aligned(np.arange(256, dtype=np.float32)).reshape(4, 64))
        shared = tlrt.from_dlpack(dense, copy=False)  # a step along an axis of length 1 or 0 leads nowhere
        assert shared.numpy().tolist() == dense.ravel().tolist()
    fixed = aligned(x)
    fixed.flags.writeable = False
    assert_raises_regex(errors.ArgumentError, "read-only", tlrt.from_dlpack, fixed, copy=False)
    copy = tlrt.from_dlpack(fixed)
    copy.fill(1.0)
    assert fixed[5] == 5
    taken = tlrt.from_dlpack(x, copy=True)
    x[:] = 0
    assert taken.numpy()[5] == 5
    for dtype in (np.float64, np.int32, np.bool_, np.complex64):
        assert_raises_regex(errors.ArgumentError, "expected float32 or uint32", tlrt.from_dlpack, np.ones(3, dtype))
    assert_raises_regex(errors.ArgumentTypeError, "__dlpack__", tlrt.from_dlpack, [1.0])
    indices = tlrt.from_dlpack(np.arange(5, dtype=np.uint32))
    assert isinstance(indices, IndexBuffer) and indices.numpy().tolist() == [0, 1, 2, 3, 4]
    assert np.from_dlpack(indices).dtype == np.uint32
    assert tlrt.from_dlpack(np.array(5.0, np.float32)).numpy().tolist() == [5.0]
    assert len(tlrt.from_dlpack(np.empty((3, 0, 2), np.float32))) == 0
    held = tlrt.from_dlpack(x.reshape(-1)[:4], copy=False)
    assert_raises_regex(errors.AliasError, "shorter buffer", tlrt.from_dlpack, x, copy=False)
    assert held.references == 1
    bits = tlrt.from_dlpack(x.reshape(-1)[:4].view(np.uint32), copy=False)
    held.fill(1.0)
    assert held.references == 2 and bits.numpy().tolist() == [0x3F800000] * 4


def test_protocols_are_kept_to() -> None:
    buffer = tlrt.device("cpu").buffer([1, 2, 3])
    assert buffer.__dlpack_device__() == (1, 0)
    assert '"dltensor"' in str(buffer.__dlpack__()) and '"dltensor_versioned"' in str(
        buffer.__dlpack__(max_version=(1, 1))
    )
    for wrong in ({"dl_device": (2, 0)}, {"stream": 5}):
        assert_raises(BufferError, buffer.__dlpack__, **wrong)
    copied = np.from_dlpack(buffer, copy=True) if np.lib.NumpyVersion(np.__version__) >= "2.1.0" else None
    if copied is not None:
        copied[:] = 9
        assert buffer.numpy().tolist() == [1, 2, 3]

    class Twice:
        __module__ = "numpy"  # whose arrays may be written to

        def __init__(self, x: Any) -> None:
            self.capsule = x.__dlpack__()

        def __dlpack__(self, **_: Any) -> Any:
            return self.capsule

        def __dlpack_device__(self) -> tuple[int, int]:
            return (1, 0)

    apart = Twice(np.arange(6, dtype=np.float32))  # whose first element lies 8 bytes behind the address
    ctypes.pythonapi.PyCapsule_GetPointer.restype = ctypes.c_void_p
    address = ctypes.pythonapi.PyCapsule_GetPointer(ctypes.py_object(apart.capsule), b"dltensor")
    words = (ctypes.c_uint64 * 6).from_address(address)
    words[0], words[5] = words[0] - 8, 8
    assert tlrt.from_dlpack(apart, copy=False).numpy().tolist() == [0, 1, 2, 3, 4, 5]
    twice = Twice(np.ones(4, np.float32))
    first = tlrt.from_dlpack(twice, copy=False)
    assert_raises_regex(errors.ArgumentError, "used before", tlrt.from_dlpack, twice, copy=False)
    assert first.numpy().tolist() == [1.0] * 4
    assert_raises(AttributeError, getattr, buffer, "__cuda_array_interface__")
    assert_raises_regex(errors.UnavailableError, "CUDA", buffer.device.order_after, 1)
    assert buffer.device.stream == 0


@pytest.mark.parametrize("shape", [(5,), (3, 0, 2), (0,)])
@pytest.mark.parametrize("copy", [False, True])
def test_an_owner_lives_as_long_as_what_was_borrowed(shape: tuple[int, ...], copy: bool) -> None:
    array = aligned(np.ones(shape, np.float32))
    owner = weakref.ref(array)
    borrowed = tlrt.from_dlpack(array, copy=copy)
    del array
    assert (owner() is None) == copy or 0 in shape
    borrowed.release()
    gc.collect()
    assert owner() is None


def test_a_closed_device_borrows_nothing() -> None:
    """Neither an array nor a buffer of another device, which is its owner's as before."""
    array, closed = np.ones(4, np.float32), tlrt.Device.new("cpu")
    closed.close()
    with tlrt.Device.new("cpu") as lender, lender.buffer([1, 2]) as lent, unchanged_memory(lender):
        for call in (lambda: lend_to(lent, closed), lambda: tlrt.from_dlpack(array, closed, copy=False)):
            assert_raises(errors.ReleasedError, call)
        assert lent.references == 1


def test_a_captured_function_neither_lends_nor_borrows() -> None:
    with Session("cpu") as s:
        x = np.ones(4, np.float32)

        def step() -> Any:
            tlrt.from_dlpack(x, s.device)
            return s.const(x)

        assert_raises(errors.CaptureError, s.capture, step)


@pytest.mark.cuda
def test_cuda_array_interface() -> None:
    cupy = pytest.importorskip("cupy")
    buffer = tlrt.device("cuda").buffer(np.arange(100))
    view = cupy.asarray(buffer)
    assert view.get().tolist() == list(range(100))
    assert_raises(errors.DeviceMismatchError, tlrt.from_dlpack, np.ones(3, np.float32), device="cuda")


def test_ten_thousand_exchanges_leave_nothing(library: Library, device: str) -> None:
    found = leak(library, device)
    assert found["exchanges"] == 10_000 and found["buffers_left"] == found["bytes_left"] == 0
    assert found["grown_kib"] < GROWTH
