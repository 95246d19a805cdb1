"""The C functions behind captured steps: what a capture takes and refuses, and what its graph keeps alive."""

from typing import Any

import numpy as np
import pytest
from numpy.testing import assert_raises

import tlrt
from tests import DEVICES, run_in_thread
from tlrt import kernels
from tlrt._binding.library import load

NULL_HANDLE, ARGUMENT, UNAVAILABLE, RELEASED, SHAPE = 10, 70, 50, 90, 20


@pytest.fixture
def lib() -> Any:
    return load().lib


@pytest.fixture
def ffi() -> Any:
    return load().ffi


def said() -> str:
    return load().text(load().lib.torchlean_cuda_last_error())


def begin(device: tlrt.Device) -> None:
    assert load().lib.torchlean_cuda_capture_begin(device._handle) == 0, said()


def end(device: tlrt.Device) -> Any:
    slot = load().ffi.new("torchlean_graph **")
    assert load().lib.torchlean_cuda_capture_end(device._handle, slot) == 0, said()
    return slot[0]


on_cuda = pytest.mark.parametrize("dev", DEVICES[1:], indirect=True)


def test_handles_are_checked(dev: tlrt.Device, lib: Any, ffi: Any) -> None:
    slot, number = ffi.new("torchlean_graph **"), ffi.new("uint32_t *", 7)
    never = 0xA7 << 56 | ((1 << 28) - 1) << 28  # a graph's handle of the last generation there is
    for bad in (0, 1, never, 2**64 - 1, int(ffi.cast("uintptr_t", dev._handle))):
        graph, context = ffi.cast("torchlean_graph *", bad), ffi.cast("torchlean_context *", bad)
        expected = NULL_HANDLE if bad == 0 else RELEASED
        assert lib.torchlean_cuda_graph_launch(graph) == expected
        assert said().startswith("torchlean_cuda_graph_launch: graph: ")
        assert lib.torchlean_cuda_graph_nodes(graph, number) == expected and number[0] == 7
        assert lib.torchlean_cuda_graph_release(graph) == expected
        if bad != int(ffi.cast("uintptr_t", dev._handle)):
            assert lib.torchlean_cuda_capture_begin(context) == expected
            assert lib.torchlean_cuda_capture_end(context, slot) == expected
    assert lib.torchlean_cuda_graph_nodes(ffi.NULL, ffi.NULL) == NULL_HANDLE
    assert lib.torchlean_cuda_capture_end(dev._handle, slot) == ARGUMENT
    assert "expected capture_begin before" in said() and slot[0] == ffi.NULL


def test_a_cpu_context_has_no_captures(lib: Any) -> None:
    with tlrt.Device.new("cpu") as device:
        assert lib.torchlean_cuda_capture_begin(device._handle) == UNAVAILABLE
        assert said() == "torchlean_cuda_capture_begin: context: got one of the CPU, expected one of a CUDA device"


@on_cuda
def test_a_graph_does_what_was_captured(dev: tlrt.Device, lib: Any, ffi: Any) -> None:
    x, y = dev.buffer([1, 2, 3]), dev.zeros(3)
    begin(dev)
    kernels.add(x, y, out=y)
    inner = kernels.scale(x, 2.0)
    kernels.add(inner, y, out=y)
    inner.release()
    z = dev.full(3, 5.0)
    graph = end(dev)
    assert y.numpy().tolist() == [0, 0, 0]
    for k in range(1, 4):
        assert lib.torchlean_cuda_graph_launch(graph) == 0 and y.numpy().tolist() == [3 * k, 6 * k, 9 * k]
    assert z.numpy().tolist() == [5, 5, 5]
    nodes = ffi.new("uint32_t *")
    assert lib.torchlean_cuda_graph_nodes(graph, nodes) == 0 and nodes[0] == 4
    assert lib.torchlean_cuda_graph_release(graph) == 0 and lib.torchlean_cuda_graph_release(graph) == 0
    assert lib.torchlean_cuda_graph_launch(graph) == RELEASED
    for b in (x, y, z):
        b.release()


@on_cuda
def test_what_is_refused_leaves_the_capture(dev: tlrt.Device, lib: Any, ffi: Any) -> None:
    x, host, ms = dev.buffer([1, 2]), np.zeros(2, np.float32), ffi.new("double *")
    other = dev.buffer([1, 2])
    slot = ffi.new("torchlean_buffer **", other._handle)
    dev.mark(0)
    dev.mark(1)
    begin(dev)
    data = ffi.from_buffer("float[]", host, require_writable=True)
    context = dev._handle
    refused = {
        "upload": lambda: lib.torchlean_cuda_buffer_upload(context, data, 2, slot),
        "download": lambda: lib.torchlean_cuda_buffer_download(x._handle, data, 2),
        "synchronize": lambda: lib.torchlean_cuda_context_synchronize(context),
        "mark": lambda: lib.torchlean_cuda_context_mark(context, 0),
        "elapsed": lambda: lib.torchlean_cuda_context_elapsed(context, 0, 1, ms),
        "collect": lambda: lib.torchlean_cuda_memory_collect(context),
        "begin": lambda: lib.torchlean_cuda_capture_begin(context),
    }
    for name, call in refused.items():
        assert call() == UNAVAILABLE, name
        assert name in said()
    assert_raises(tlrt.errors.UnavailableError, kernels.dgemm, dev, np.eye(2), np.eye(2), 2, 2, 2)
    assert_raises(tlrt.errors.ShapeError, kernels.add, x, dev.empty(3))
    assert run_in_thread(lambda: lib.torchlean_cuda_buffer_fill(x._handle, 3.0)) == UNAVAILABLE
    kernels.add(x, x, out=x)
    graph = end(dev)
    assert lib.torchlean_cuda_graph_launch(graph) == 0 and x.numpy().tolist() == [2, 4]
    lib.torchlean_cuda_graph_release(graph)
    dev.synchronize()
    x.release()
    other.release()


@on_cuda
def test_giving_up(dev: tlrt.Device, lib: Any, ffi: Any) -> None:
    x = dev.buffer([1, 2])
    live = dev.memory().live_bytes
    begin(dev)
    kernels.softmax(kernels.add(x, x), 1, 2)
    assert lib.torchlean_cuda_capture_end(dev._handle, ffi.NULL) == 0 and dev.memory().live_bytes == live
    assert lib.torchlean_cuda_capture_end(dev._handle, ffi.NULL) == ARGUMENT
    begin(dev)
    taken = ffi.new("torchlean_graph **", ffi.cast("torchlean_graph *", 5))
    assert lib.torchlean_cuda_capture_end(dev._handle, taken) == ARGUMENT
    assert lib.torchlean_cuda_graph_release(end(dev)) == 0  # empty
    assert x.numpy().tolist() == [1, 2]
    x.release()


@on_cuda
def test_a_graph_keeps_what_it_uses(dev: tlrt.Device, lib: Any, ffi: Any) -> None:
    """Buffers released after the capture, scratch and staged indices are nobody else's while the graph lives."""
    draw = np.random.default_rng(2)
    host = draw.standard_normal((700, 33)).astype(np.float32)
    x, w, y = dev.buffer(host), dev.buffer(draw.standard_normal(33)), dev.zeros(700 * 33)
    rows = np.array([3, 1, 699, 3], np.uint32)
    labels = draw.integers(0, 33, 700).astype(np.uint32)

    def work(y: tlrt.Buffer) -> list[tlrt.Buffer]:
        h = kernels.layer_norm(x, w, w, 700, 33, 1e-5)
        g = kernels.gather_rows(h, rows, 700, 33)
        s = kernels.scatter_add_rows(h, g, rows, 700, 33)
        kernels.softmax(s, 700, 33, out=y)
        turned = kernels.rotary(s, 33, 350, 2)
        loss = kernels.cross_entropy(turned, labels, 33)
        return [h, g, s, turned, loss, kernels.add(loss, loss)]

    expected = work(y)
    values = [b.numpy() for b in (*expected, y)]
    for b in expected:
        b.release()
    dev.synchronize()
    live = dev.memory().live_bytes
    begin(dev)
    made = work(y)
    kept = made[-1]
    for b in made[:-1]:
        b.release()
    graph = end(dev)
    rows[:], labels[:] = 0, 0  # were read at the capture
    assert dev.memory().live_bytes > live
    x.release()
    w.release()
    noise = [
        dev.full(n, np.nan)
        for n in (1, 33, 132, 700, 2800, 23100, 23100, 23100, 23100, 4, 8, 64, 512)
        for _ in range(3)
    ]
    for _ in range(3):
        assert lib.torchlean_cuda_graph_launch(graph) == 0 and kept.numpy().tobytes() == values[-2].tobytes()
        assert y.numpy().tobytes() == values[-1].tobytes()
    assert all(np.isnan(b.numpy()).all() for b in noise) and lib.torchlean_cuda_graph_release(graph) == 0
    for b in (*noise, kept, y):
        b.release()
    assert dev.memory().live_bytes == 0


@on_cuda
def test_a_context_takes_its_graphs_with_it(dev: tlrt.Device, lib: Any) -> None:
    with tlrt.Device.new(dev.name) as own:
        x = own.buffer([1])
        begin(own)
        kernels.add(x, x, out=x)
        graph = end(own)
        begin(own)  # destroyed with a capture under way
        kernels.add(x, x, out=x)
    assert lib.torchlean_cuda_graph_launch(graph) == RELEASED
    assert lib.torchlean_cuda_graph_release(graph) == 0
    assert kernels.add(dev.full(1, 2.0), dev.full(1, 3.0)).numpy().tolist() == [5]
