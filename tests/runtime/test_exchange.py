"""Memory lent to other libraries and borrowed from them: one memory on both sides, as long as either needs it."""

import gc
from typing import Any

import numpy as np
import pytest

import tlrt
from audit.exchange import GROWTH, LIBRARIES, Library, Missing, aligned, leak
from tests import DEVICES, unchanged_memory
from tlrt import Session, kernels
from tlrt._binding.exchange import lend_to
from tlrt.buffer import IndexBuffer


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
    assert library.address(view) == library.address(x) and buffer.device.name == tlrt.device(device).name
    assert np.array_equal(buffer.numpy(), np.arange(4000)) and np.array_equal(library.numpy(view), np.arange(4000))
    own = tlrt.device(device).buffer([1, 2, 3])
    again = tlrt.from_dlpack(library.view(own))
    assert again.references == own.references >= 2
    own.fill(7.0)
    tlrt.device(device).synchronize()
    assert again.numpy().tolist() == [7, 7, 7]


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
        with pytest.raises((tlrt.errors.ShapeError, tlrt.errors.ArgumentError), match=message):
            tlrt.from_dlpack(array, copy=False)
        assert tlrt.from_dlpack(array).numpy().tolist() == array.ravel().tolist()
    fixed = aligned(x)
    fixed.flags.writeable = False
    with pytest.raises(tlrt.errors.ArgumentError, match="read-only"):
        tlrt.from_dlpack(fixed, copy=False)
    copy = tlrt.from_dlpack(fixed)
    copy.fill(1.0)
    assert fixed[5] == 5
    taken = tlrt.from_dlpack(x, copy=True)
    x[:] = 0
    assert taken.numpy()[5] == 5
    for dtype in (np.float64, np.int32, np.bool_, np.complex64):
        with pytest.raises(tlrt.errors.ArgumentError, match="expected float32 or uint32"):
            tlrt.from_dlpack(np.ones(3, dtype))
    with pytest.raises(tlrt.errors.ArgumentTypeError, match="__dlpack__"):
        tlrt.from_dlpack([1.0])
    indices = tlrt.from_dlpack(np.arange(5, dtype=np.uint32))
    assert isinstance(indices, IndexBuffer) and indices.numpy().tolist() == [0, 1, 2, 3, 4]
    assert np.from_dlpack(indices).dtype == np.uint32
    assert tlrt.from_dlpack(np.array(5.0, np.float32)).numpy().tolist() == [5.0]
    assert len(tlrt.from_dlpack(np.empty((3, 0, 2), np.float32))) == 0
    held = tlrt.from_dlpack(x.reshape(-1)[:4], copy=False)
    with pytest.raises(tlrt.errors.AliasError, match="shorter buffer"):
        tlrt.from_dlpack(x, copy=False)
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
        with pytest.raises(BufferError):
            buffer.__dlpack__(**wrong)
    copied = np.from_dlpack(buffer, copy=True) if np.lib.NumpyVersion(np.__version__) >= "2.1.0" else None
    if copied is not None:
        copied[:] = 9
        assert buffer.numpy().tolist() == [1, 2, 3]

    class Twice:
        def __init__(self, x: Any) -> None:
            self.capsule = x.__dlpack__()

        def __dlpack__(self, **_: Any) -> Any:
            return self.capsule

        def __dlpack_device__(self) -> tuple[int, int]:
            return (1, 0)

    twice = Twice(np.ones(4, np.float32))
    first = tlrt.from_dlpack(twice, copy=False)
    with pytest.raises(tlrt.errors.ArgumentError, match="used before"):
        tlrt.from_dlpack(twice, copy=False)
    assert first.numpy().tolist() == [1.0] * 4
    with pytest.raises(AttributeError):
        _ = buffer.__cuda_array_interface__
    with pytest.raises(tlrt.errors.UnavailableError, match="CUDA"):
        buffer.device.order_after(1)
    assert buffer.device.stream == 0


def test_a_closed_device_borrows_nothing() -> None:
    """Neither an array nor a buffer of another device, which is its owner's as before."""
    array, closed = np.ones(4, np.float32), tlrt.Device.new("cpu")
    closed.close()
    with tlrt.Device.new("cpu") as lender, lender.buffer([1, 2]) as lent, unchanged_memory(lender):
        for call in (lambda: lend_to(lent, closed), lambda: tlrt.from_dlpack(array, closed, copy=False)):
            with pytest.raises(tlrt.errors.ReleasedError):
                call()
        assert lent.references == 1


def test_a_captured_function_neither_lends_nor_borrows() -> None:
    with Session("cpu") as s:
        x = np.ones(4, np.float32)

        def step() -> Any:
            tlrt.from_dlpack(x, s.device)
            return s.const(x)

        with pytest.raises(tlrt.errors.CaptureError):
            s.capture(step)()


@pytest.mark.cuda
def test_cuda_array_interface() -> None:
    cupy = pytest.importorskip("cupy")
    buffer = tlrt.device("cuda").buffer(np.arange(100))
    view = cupy.asarray(buffer)
    assert view.get().tolist() == list(range(100))
    with pytest.raises(tlrt.errors.DeviceMismatchError):
        tlrt.from_dlpack(np.ones(3, np.float32), device="cuda")


def test_ten_thousand_exchanges_leave_nothing(library: Library, device: str) -> None:
    found = leak(library, device)
    assert found["exchanges"] == 10_000 and found["buffers_left"] == found["bytes_left"] == 0
    assert found["grown_kib"] < GROWTH
