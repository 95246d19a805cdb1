"""A context that works for a host: the host's memory as buffers, its allocator and its stream in place of the context's own."""

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
from numpy.testing import assert_array_equal, assert_raises

import tlrt
from tlrt import Buffer, errors, kernels
from tlrt._binding import capsules
from tlrt._binding.library import load
from tlrt.buffer import IndexBuffer

library = load()
lib, ffi = library.lib, library.ffi
N = 12288

#: operations that need what a context keeps or takes: cuBLAS and its workspace, plans, frequencies, scratch
OPERATIONS: dict[str, Callable[[Buffer], Buffer]] = {
    "product": lambda x: kernels.matmul(x, x, 96, 128, 96), "rows": lambda x: kernels.var(x, (3, 4096), 2, 1.0, 1),
    "whole": lambda x: kernels.prod(x, (N,), 1), "cumsum": lambda x: kernels.cumsum(x, (N,), 0, 0),
    "softmax": lambda x: kernels.softmax(x, 96, 128), "transform": lambda x: kernels.rfft1d_packed(x, 12, 1024),
    "odd transform": lambda x: kernels.rfft1d_packed(x, 4096, 3),
    "positions": lambda x: kernels.rotary(x, 2, 96, 64, 1e4, 0, 1),
}  # fmt: skip


class Host:
    """A framework with memory, and with the stream of a device of ours; another device works for it."""

    def __init__(self, owner: tlrt.Device, device: tlrt.Device, room: int = 96 << 20) -> None:
        self.owner, self.device, self.room = owner, device, room
        self.live = self.calls = self.at = 0
        self.block = Buffer.zeros(room // 4, owner)
        self.base = capsules.data_address(self.block, "host")
        self.allocate = ffi.callback("void *(void *, uint64_t)", self._allocate)
        self.release = ffi.callback("void (void *, void *)", self._release)

    def _allocate(self, _: Any, size: int) -> Any:
        at = -(-self.at // 256) * 256
        if at + size > self.room:
            return ffi.NULL
        self.at, self.live, self.calls = at + size, self.live + 1, self.calls + 1
        return ffi.cast("void *", self.base + at)

    def _release(self, _: Any, memory: Any) -> None:
        self.live -= 1
        if self.live == 0:
            self.at = 0

    def adopt(self) -> None:
        stream = self.owner.stream
        assert not lib.torchlean_cuda_context_adopt(self.device._handle, stream, self.allocate, self.release, ffi.NULL)
        assert self.device.stream == stream

    def leave(self) -> None:
        assert not lib.torchlean_cuda_context_adopt(self.device._handle, 0, ffi.NULL, ffi.NULL, ffi.NULL)

    def wrap(self, buffer: Buffer) -> Any:
        """A buffer of the device over the memory of one of the owner."""
        wrap = lib.torchlean_cuda_buffer_wrap
        is_index = isinstance(buffer, IndexBuffer)
        address = ffi.cast("void *", capsules.data_address(buffer, "wrap"))
        kind = IndexBuffer if is_index else Buffer
        return kind._create("wrap", self.device, wrap, self.device._handle, address, buffer.length, int(is_index))


@pytest.fixture
def host(dev: tlrt.Device) -> Iterator[Host]:
    with tlrt.Device.new(dev.name) as device:
        made = Host(dev, device)
        yield made
        made.block.release()


def draw(n: int = N) -> np.ndarray[Any, Any]:
    return np.random.default_rng(3).normal(size=n).astype(np.float32)


@pytest.mark.parametrize("name", OPERATIONS)
def test_the_bits_are_those_of_the_own_stream(host: Host, name: str) -> None:
    """Before, with and after the host, whose memory is all back then; what was made on one stream serves on the other."""
    run = OPERATIONS[name]
    x = Buffer.from_numpy(draw(), host.owner)
    expected = run(x).numpy()
    wrapped = host.wrap(x)
    for turn in range(3):
        with run(wrapped) as y:
            assert_array_equal(y.numpy(), expected, strict=True)
        host.adopt()
        for _ in range(2):
            with run(wrapped) as y:
                assert host.live == 1
                host.owner.synchronize()
                assert_array_equal(y.numpy(), expected, strict=True)
        assert host.live == 0 and host.calls > 2 * turn
        if turn:
            host.leave()
    host.leave()
    assert host.device.memory().live_bytes == 0


def test_a_wrapped_buffer_is_the_memory(host: Host) -> None:
    x, i = Buffer.from_numpy(draw(8), host.owner), IndexBuffer.from_numpy([1, 0, 3], host.owner)
    rows, shown = host.wrap(x), host.wrap(i)
    with kernels.gather_rows_indexed(rows, shown, 4, 2) as y:
        assert_array_equal(y.numpy().reshape(3, 2), draw(8).reshape(4, 2)[[1, 0, 3]])
    again = host.wrap(x)
    kernels.add(rows, again, out=rows)
    host.device.synchronize()
    assert_array_equal(x.numpy(), 2 * draw(8))
    assert_raises(errors.AliasError, kernels.softmax, rows, 4, 2, out=again)


def capture(host: Host, work: Callable[[], Any]) -> Any:
    """The owner's graph of work that is done meanwhile."""
    slot = ffi.new("torchlean_graph **")
    assert not lib.torchlean_cuda_capture_begin(host.owner._handle)
    try:
        work()
    finally:
        assert not lib.torchlean_cuda_capture_end(host.owner._handle, slot)
    return slot[0]


@pytest.mark.cuda
@pytest.mark.parametrize("name", OPERATIONS)
def test_work_becomes_a_part_of_the_graph_of_the_host(name: str) -> None:
    run = OPERATIONS[name]
    with tlrt.Device.new("cuda") as owner, tlrt.Device.new("cuda") as device:
        host = Host(owner, device)
        x, other = Buffer.from_numpy(draw(), owner), Buffer.from_numpy(draw()[::-1].copy(), owner)
        expected = run(other).numpy()
        out = Buffer.zeros(expected.size, owner)
        wrapped, shown = host.wrap(x), host.wrap(out)
        host.adopt()
        run(wrapped).release()  # plans, tables and cuBLAS are there afterwards
        owner.synchronize()

        def work() -> None:
            with run(wrapped) as y:
                kernels.scale(y, 1.0, out=shown)

        graph = capture(host, work)
        owner.synchronize()
        assert_array_equal(out.numpy(), np.zeros_like(expected))
        host.block.fill(np.nan)  # scratch and results that the graph's kernels write before they read them
        kernels.scale(other, 1.0, out=x)
        assert not lib.torchlean_cuda_graph_launch(graph)
        owner.synchronize()
        assert_array_equal(out.numpy(), expected, strict=True)
        lib.torchlean_cuda_graph_release(graph)


@pytest.mark.cuda
def test_what_a_graph_of_the_host_cannot_hold_is_refused() -> None:
    with tlrt.Device.new("cuda") as owner, tlrt.Device.new("cuda") as device:
        host = Host(owner, device)
        x, i = Buffer.from_numpy(draw(8), owner), IndexBuffer.from_numpy([1, 0], owner)
        wrapped, shown = host.wrap(x), host.wrap(i)
        host.adopt()

        def work() -> None:
            for refused in (
                wrapped.numpy, device.synchronize, device.mark, lambda: Buffer.from_numpy(draw(8), device),
                lambda: kernels.gather_rows(wrapped, [1, 0], 4, 2), lambda: kernels.rfft1d_packed(wrapped, 1, 8),
                lambda: kernels.rotary(wrapped, 1, 2, 4, 1e4, 0, 1),
            ):  # fmt: skip
                assert_raises(errors.UnavailableError, refused)
            assert lib.torchlean_cuda_context_adopt(device._handle, 0, ffi.NULL, ffi.NULL, ffi.NULL) != 0
            with kernels.gather_rows_indexed(wrapped, shown, 4, 2) as y:
                kernels.add(y, y, out=host.wrap(row))

        row = Buffer.zeros(4, owner)
        graph = capture(host, work)
        assert not lib.torchlean_cuda_graph_launch(graph)
        owner.synchronize()
        assert_array_equal(row.numpy(), 2 * draw(8).reshape(4, 2)[[1, 0]].ravel())
        assert lib.torchlean_cuda_capture_begin(device._handle) != 0
        lib.torchlean_cuda_graph_release(graph)
