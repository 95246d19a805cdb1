"""Graphs without a GPU: calls that are kept instead of made while one is captured, and made when it is launched."""

import functools
from typing import Any

import pytest

import tlrt
from tlrt._capture import recorded, replay


def act_graphs(device: tlrt.Device, monkeypatch: pytest.MonkeyPatch) -> None:
    """Lets a CPU's captured steps consist of graphs, of everything but transforms."""
    if device.is_cuda:
        pytest.skip("a GPU makes graphs itself")
    monkeypatch.setattr(tlrt.Device, "is_cuda", True)
    monkeypatch.setattr(replay, "lib", _Library(replay.lib))


class _Library:
    """The library, but graphs can be made; a graph's handle is its place in the list of them, from 1."""

    def __init__(self, lib: Any) -> None:
        self._lib = lib
        self._graphs: list[list[recorded.Runnable]] = []
        #: by a graph and an input's place: what fills its buffer
        self._inputs: dict[tuple[int, int], recorded.Uploader] = {}
        self._given: dict[tuple[int, int], Any] = {}

    def __getattr__(self, name: str) -> Any:
        return getattr(self._lib, name)

    def torchlean_cuda_capture_begin(self, context: Any) -> int:
        self._runnable, kept = recorded.Call.runnable, list[recorded.Runnable]()
        self._graphs.append(kept)

        def runnable(call: recorded.Call, captured: bool = False) -> recorded.Runnable:
            uploads = (self._lib.torchlean_cuda_buffer_upload, self._lib.torchlean_cuda_index_upload)
            if not captured:
                return self._runnable(call)
            if "rfft" in call.name or call.function in uploads or (call.computed and not call.is_steady):
                return lambda: self._lib.torchlean_cuda_capture_begin(context)  # which a CPU refuses
            made: Any = self._runnable(call, True)
            return lambda: kept.append(functools.partial(made.func, *map(_read, made.args)))

        recorded.Call.runnable = runnable  # type: ignore[method-assign]
        return 0

    def torchlean_cuda_capture_end(self, context: Any, out: Any) -> int:
        recorded.Call.runnable = self._runnable  # type: ignore[method-assign]
        if out != recorded.ffi.NULL:
            out[0] = recorded.ffi.cast("torchlean_graph *", len(self._graphs))
        return 0

    def torchlean_cuda_capture_inputs(self, context: Any, buffers: Any, count: int) -> int:
        slots = [recorded.ffi.new("torchlean_buffer **", buffers[i]) for i in range(count)]
        upload = self._lib.torchlean_cuda_buffer_upload
        for i, slot in enumerate(slots):
            fill = functools.partial(lambda slot, host: upload(context, host, len(host), slot), slot)
            self._inputs[len(self._graphs), i] = fill
        return 0

    def torchlean_cuda_graph_set(self, graph: Any, place: int, values: Any, n: int) -> int:
        self._given[recorded.address(graph), place] = recorded.ffi.new("float[]", recorded.ffi.unpack(values, n))
        return 0

    def torchlean_cuda_graph_launch(self, graph: Any) -> int:
        for key, values in self._given.items():
            if key[0] == recorded.address(graph):
                self._inputs[key](values)
        return next(filter(None, (call() for call in self._graphs[recorded.address(graph) - 1])), 0)

    def torchlean_cuda_graph_release(self, graph: Any) -> int:
        return 0


def _read(argument: Any) -> Any:
    """A copy of an array on the host, which is read at the capture; any other argument as it is."""
    if isinstance(argument, recorded.ffi.CData) and recorded.ffi.typeof(argument).cname == "uint32_t[]":
        return recorded.ffi.from_buffer("uint32_t[]", bytes(recorded.ffi.buffer(argument)))
    return argument
