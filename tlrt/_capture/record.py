"""Records the calls of the C library that a function makes, so that they can be made again without the function.

A :class:`Recorder` observes the devices while a function runs and keeps a :class:`~tlrt._capture.recorded.Call` for each call,
with its arguments as C gets them. Handles become :class:`~tlrt._capture.recorded.Storage`. The recorder holds for each a handle
of its own: the tape may release every buffer it made, and the storage stays.
"""

import functools
import os
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np

from tlrt._binding.handles import Buffer, Device, IndexBuffer, _lock, ignore_all, new, observe_all, own
from tlrt._binding.library import complete_call, failure
from tlrt._binding.observer import Observer
from tlrt._capture.recorded import Call, HostWork, Runnable, Storage, address, ffi, lib, uploader
from tlrt._capture.replay import Replay, build_replay
from tlrt.errors import CaptureError, refusal
from tlspec import entries

_SLOT = ffi.typeof("torchlean_buffer **")


class Recorder(Observer):
    """Records the calls on a session's device by the thread that made the recorder, while it is :meth:`attached`."""

    def __init__(self, session: Any) -> None:
        self.session = session
        self.device: Device = session.device
        self.items: list[Call | HostWork] = []
        #: held while the function runs. A lock is left in one step, so an interrupt leaves no recorder that goes on
        self.scope = threading.Lock()
        self._context = address(self.device._handle)
        self._thread = threading.get_ident()
        self._by_handle: dict[int, Storage] = {}
        self._paused = False
        #: whether an optimiser's update runs, which replays may do again in Python
        self._in_update = False
        #: handles of what a replay does not make, and who made it: an optimiser in Python, or another thread
        self._unmade: dict[int, str] = {}
        self._key: tuple[int, Callable[[], int]] | None = None
        #: host memory whose content changes between replays: address and bytes
        self._changing: list[tuple[int, int]] = []

    @property
    def is_active(self) -> bool:
        """Whether the function runs. What an interrupt left of a recorder that is over observes nothing, and goes at the
        next operation or capture."""
        return self.scope.locked()

    @contextmanager
    def attached(self) -> Iterator[None]:
        """Within, and while `scope` is held, calls of this thread are recorded."""
        try:
            _attach(self)
            yield
        finally:
            _detach(self)

    @contextmanager
    def paused(self) -> Iterator[None]:
        """Within, calls are made and not recorded."""
        before, self._paused = self._paused, True
        try:
            yield
        finally:
            self._paused = before

    @property
    def listens(self) -> bool:
        """Whether a call of this thread is to be recorded."""
        return not self._paused and self.is_active and threading.get_ident() == self._thread

    def refuse(self, what: str) -> None:
        """Raises CaptureError: this cannot be done again without Python."""
        if self.listens:
            raise refusal(CaptureError, what, "", "a call within a captured function", "one before or after it")

    def add_changing(self, array: Any) -> None:
        """Says that the content of a host array will be another at each replay."""
        self._changing.append((array.ctypes.data, array.nbytes))

    def add_host_work(
        self, name: str, prepare: Callable[[list[Buffer]], Runnable], buffers: Sequence[Buffer],
        calls: Sequence[Call | HostWork],
    ) -> None:  # fmt: skip
        """Records Python code that reads these buffers; `calls` is what it did now. What it makes is made anew by each replay,
        so later calls cannot use it."""
        self.items.append(HostWork(name, prepare, [self.storage(b._handle) for b in buffers]))
        made = {id(s) for call in calls if isinstance(call, Call) for s in call.creates}
        self._unmade.update({handle: name for handle, s in self._by_handle.items() if id(s) in made})

    def _add_foreign(self, handle: Any) -> None:
        """Takes note of a buffer that another thread made meanwhile."""
        self._unmade[address(handle)] = "another thread"

    def is_unmade(self, buffer: Buffer) -> bool:
        """Whether a replay makes another buffer in its place, or none."""
        return address(buffer._handle) in self._unmade

    def storage(self, handle: Any) -> Storage:
        """The storage behind a handle. Raises CaptureError for one that a replay does not make."""
        if self._unmade and (maker := self._unmade.get(address(handle))):
            got = f"one that {maker} made within a captured function"
            raise refusal(CaptureError, "capture", "buffer", got, "one of a recorded call")
        found = self._by_handle.get(address(handle))
        return self._hold(handle, True) if found is None else found

    def _hold(self, handle: Any, outside: bool, is_index: bool = False) -> Storage:
        """Takes note of a buffer not seen before, with a handle of the recorder's own."""
        size, context, slot = ffi.new("uint32_t *"), ffi.new("torchlean_context **"), new(_SLOT)
        status = lib.torchlean_cuda_buffer_length(handle, size) or lib.torchlean_cuda_buffer_context(handle, context)
        if status:
            raise failure(status, "capture")
        if address(context[0]) != self._context:
            got = "a call on another device within a captured function"
            raise refusal(CaptureError, "capture", "buffer", got, "the session's")
        try:
            status = lib.torchlean_cuda_buffer_share(handle, slot)
            if not status:
                held = own(slot[0], lib.torchlean_cuda_buffer_release)
        except BaseException:  # of a signal handler
            lib.torchlean_cuda_buffer_release(slot[0])
            raise
        if status:
            raise failure(status, "capture")
        made = self._by_handle[address(handle)] = Storage(held, int(size[0]), is_index, outside)
        return made

    uploader = staticmethod(uploader)

    def before_call(self, device: Device, symbol: str, arguments: tuple[Any, ...]) -> list[list[bool]]:
        """Finds the output slots that are empty, which the call fills with new buffers."""
        if not self.is_active:
            _detach(self)
            return []
        roles = _roles(symbol)
        if self.listens and any(role == "host output" for role, _ in roles):
            self.refuse(_entries()[symbol].name)
        empty: list[list[bool]] = []
        for (role, _), argument in zip(roles, arguments, strict=True):
            if role in ("output", "index output") and argument != ffi.NULL:
                empty.append([argument[0] == ffi.NULL])
            elif role == "output list":
                empty.append([argument[i] == ffi.NULL for i in range(len(argument))])
            else:
                empty.append([])
        return empty

    def after_call(
        self, device: Device, symbol: str, arguments: tuple[Any, ...], status: int, note: list[list[bool]]
    ) -> None:
        """Records a call that succeeded."""
        if not self.listens:
            if not status and self.is_active and threading.get_ident() != self._thread:
                for slots, empty in zip(arguments, note, strict=True):
                    for i, is_empty in enumerate(empty):
                        if is_empty:
                            self._add_foreign(slots[i])
            return
        key, self._key = self._key, None
        if status:
            return
        name, roles = _entries()[symbol].name, _roles(symbol)
        call = Call(name, getattr(lib, f"torchlean_cuda_{symbol}"), tuple(parameter for _, parameter in roles))
        for place, ((role, parameter), argument, empty) in enumerate(zip(roles, arguments, note, strict=True)):
            call.arguments.append(self._argument(call, place, role, argument, empty))
            if parameter == "key" and key is not None and argument == key[0]:
                call.computed[place], key = key[1], None
        if key is not None:
            raise refusal(CaptureError, name, "key", "a draw that the operation does not take", "its key")
        self.items.append(call)

    def _argument(self, made: Call, place: int, role: str, argument: Any, fresh: list[bool]) -> Any:
        """One argument as a call keeps it."""
        if role == "context":
            if address(argument) != self._context:
                expected = "the session's"
                raise refusal(CaptureError, made.name, "device", "another device within a captured function", expected)
            return argument
        if role in ("buffer", "output", "index output") and argument == ffi.NULL:
            return argument
        if role == "buffer":
            return made.use(self.storage(argument), False)
        if role == "list":
            return [made.use(self.storage(argument[i]), False) for i in range(len(argument))]
        if role in ("output", "index output"):
            made.outputs.add(place)
            return self._output(made, argument[0], fresh[0], role == "index output")
        if role == "output list":
            return [self._output(made, argument[i], f) for i, f in enumerate(fresh)]
        if role == "dims":
            return argument
        if role == "u32":  # host arrays of float64 are those of operations that are refused
            return self._host_indices(made, argument)
        return float(argument) if isinstance(argument, (float, np.floating)) else int(argument)

    def _output(self, made: Call, handle: Any, fresh: bool, is_index: bool = False) -> Storage:
        storage = self._hold(handle, False, is_index) if fresh else self.storage(handle)
        return made.use(storage, True, fresh)

    def _host_indices(self, made: Call, argument: Any) -> Any:
        """A copy of indices on the host that the call reads; those that change stay where they are."""
        start = address(argument)
        if any(first <= start < first + size for first, size in self._changing):
            made.is_eager = True
            return argument
        return ffi.from_buffer("uint32_t[]", np.frombuffer(ffi.buffer(argument), np.uint32).copy())

    def buffer_made(self, function: Any, arguments: tuple[Any, ...], buffer: Buffer) -> None:
        """Records an upload, zeros or a copy; a share and an empty buffer only name storage."""
        if buffer._device is not self.device:
            return
        if not self.listens:
            if self.is_active and threading.get_ident() != self._thread and function != lib.torchlean_cuda_buffer_share:
                self._add_foreign(buffer._handle)
            return
        if function == lib.torchlean_cuda_buffer_share:
            self._by_handle[address(buffer._handle)] = self.storage(arguments[0])
            return
        call = Call("buffer", function)
        source = self.storage(arguments[0]) if function == lib.torchlean_cuda_buffer_copy else None
        storage = self._hold(buffer._handle, False, isinstance(buffer, IndexBuffer))
        if function == lib.torchlean_cuda_buffer_empty:
            storage.is_pinned = True  # nothing writes it before it is read, as far as anybody knows
            return
        if source is not None:
            call.arguments = [call.use(source, False)]
        elif function == lib.torchlean_cuda_buffer_zeros:
            call.arguments, call.is_constant = list(arguments), True
        elif function == lib.torchlean_cuda_index_upload:
            context, host, n = arguments
            kept = self._host_indices(call, host)
            call.is_constant, call.is_eager = not call.is_eager, True
            call.arguments = [context, kept, n]
        else:
            context, host, n = arguments
            data = np.frombuffer(ffi.buffer(host, 4 * n), np.float32).copy()
            call.arguments = [context, ffi.from_buffer("float[]", data), n]
            call.is_constant = call.is_eager = True
        call.outputs.add(len(call.arguments))
        call.arguments.append(call.use(storage, True, True))
        self.items.append(call)

    def buffer_filled(self, buffer: Buffer, value: float) -> None:
        """Records a fill."""
        if buffer._device is self.device and self.listens:
            call = Call("fill", lib.torchlean_cuda_buffer_fill)
            call.arguments = [call.use(self.storage(buffer._handle), True), value]
            call.is_constant = True
            self.items.append(call)

    def count_own_handles(self, handle: Any) -> int:
        return int(address(handle) in self._by_handle)

    def before_host_access(self, device: Device, op: str) -> None:
        if device is self.device:
            self.refuse(op)

    def before_session_use(self, session: Any, op: str) -> None:
        if session.device is self.device and session is not self.session:
            self.refuse(op)

    def before_setting(self, session: Any, name: str) -> None:
        """Refuses a hyperparameter: a replay takes those there are, and would not set it."""
        if session is self.session and self.is_active and not self._in_update:
            self.refuse(name)

    def key_drawn(self, session: Any, key: int, draw: Callable[[], int]) -> None:
        """The next call's key is this one, and comes from `draw` at a replay."""
        if session is self.session and self.listens:
            self._key = (key, draw)

    @contextmanager
    def during_update(self, update: Any) -> Iterator[None]:
        """Records an optimiser's update: as its one call with hyperparameters computed at each replay, else as Python code."""
        if update.optimizer.session is not self.session or not self.is_active:
            yield
            return
        items, self.items, self._in_update = self.items, [], True
        try:
            yield
            made = self.items
        finally:
            self.items, self._in_update = items, False
        if update.is_one_call and len(made) == 1:
            self.items.append(update.replay_call(self, made[0]))
        else:
            self.add_host_work(update.name, update.replay_in_python, update.gradients, made)

    def add_copy(self, source: Buffer, target: Storage) -> None:
        """Records a copy onto existing storage."""
        call = Call("copy", lib.torchlean_cuda_buffer_copy)
        call.arguments = [call.use(self.storage(source._handle), False), call.use(target, True)]
        call.outputs.add(1)
        self.items.append(call)
        if status := complete_call(call.runnable()):
            raise failure(status, "capture")

    def finish(self, inputs: Sequence[tuple[Any, Buffer]]) -> Replay:
        """What a replay runs; `inputs` are the arguments that lie in buffers."""
        stored = [(known, self.storage(buffer._handle)) for known, buffer in inputs]
        made = build_replay(self.device, self.items, stored)
        self.items, self._by_handle = [], {}
        return made

    def discard(self) -> None:
        """Gives everything back."""
        for storage in self._by_handle.values():
            lib.torchlean_cuda_buffer_release(storage.handle)
        self.items, self._by_handle = [], {}


#: recorders that are attached, by thread
_recorders: dict[int, Recorder] = {}


@functools.cache
def _roles(symbol: str) -> tuple[tuple[str, str], ...]:
    """What each argument of an entry point is, and its name."""
    entry = _entries()[symbol]
    sig = entry.signature
    out: list[tuple[str, str]] = [("context", "context")] if sig.needs_context else []
    out += [({"f32": "buffer", "index": "buffer"}.get(a.kind, a.kind), a.name) for a in sig.inputs]
    for d in sig.dims:
        out += [("dims", d[1:]), ("number", d[1:])] if d.startswith("*") else [("number", d)]
    for p in sig.params:
        out += [("dims", p.name), ("number", p.name)] if p.kind == "dims" else [("number", p.name)]
    kinds = {"f32": "output", "index": "index output", "list": "output list", "f64": "host output"}
    return (*out, *((kinds[a.kind], a.name) for a in entry.outputs))


@functools.cache
def _entries() -> dict[str, entries.Entry]:
    return {e.symbol.removeprefix("torchlean_cuda_"): e for e in entries.all_entries()}


def _attach(recorder: Recorder) -> None:
    with _lock:
        for over in [r for r in _recorders.values() if not r.is_active]:
            _detach(over)
        if recorder._thread in _recorders:
            raise refusal(CaptureError, "capture", "", "a call within a captured function", "one before or after it")
        if any(other.device is recorder.device for other in _recorders.values()):
            raise refusal(CaptureError, "capture", "device", "one whose calls are being captured", "another")
        _recorders[recorder._thread] = recorder
        observe_all(recorder)


def _detach_others() -> None:
    """In a child process, no other thread ends its recording."""
    for recorder in [r for r in _recorders.values() if r._thread != threading.get_ident()]:
        _detach(recorder)


os.register_at_fork(after_in_child=_detach_others)


def _detach(recorder: Recorder) -> None:
    """Undoes what there is of an `_attach` that an interrupt may have cut short."""
    with _lock:
        ignore_all(recorder)
        if _recorders.get(recorder._thread) is recorder:
            del _recorders[recorder._thread]
