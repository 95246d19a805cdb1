"""Records the calls of the C library that a function makes, so that they can be made again without the function.

While a :class:`Recorder` is active, the names by which ``tlrt.kernels`` calls C stand for functions that call C and keep a
:class:`Call`; buffers and devices report the rest (:attr:`tlrt.Device._recorder`). A call is kept with its arguments as C
gets them. Handles in it stand for a :class:`Storage`, of which the recorder holds a handle of its own: the tape may release
every buffer it made, and the storage stays.

:meth:`Recorder.finish` turns the calls into a list of functions without arguments:

- A fill, zeros or an upload that is all that is ever written to its storage is left out, and the storage kept as it is.
- Storage that calls create is shared by those whose uses do not overlap, if they have the same length: a buffer that is
  released in the step serves later ones, as the pool would have it.
- On a CUDA device each run of calls between two that must be made anew (see :class:`Call`) becomes one graph.
"""

from __future__ import annotations

import functools
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import numpy as np

from tlrt import kernels
from tlrt._capture_checks import refused
from tlrt._library import failure, load
from tlrt.buffer import Buffer, new, own
from tlrt.errors import AliasError, CaptureError
from tlspec import entries

if TYPE_CHECKING:
    from tlrt.context import Device

__all__ = ["Call", "Recorder", "Storage"]

_library = load()
ffi, lib = _library.ffi, _library.lib
_SLOT = ffi.typeof("torchlean_buffer **")
_LIST = ffi.typeof("torchlean_buffer *[]")
_GRAPH = ffi.typeof("torchlean_graph **")
_FLOATS = ffi.typeof("float[]")
#: host arrays by the C type that ``tlrt.kernels`` reads them as
_HOST = {"u32": ("uint32_t[]", np.uint32), "f64": ("double[]", np.float64)}

#: what a recorded call is, once it is ready: made by calling it, with a status other than 0 or None for a failure
Ready = Callable[[], "int | None"]


def address(pointer: Any) -> int:
    """What a handle or a pointer is as a number."""
    return int(ffi.cast("uintptr_t", pointer))


class Storage:
    """The memory behind one or several buffers of a recording."""

    __slots__ = ("handle", "last", "outside", "pinned", "size", "stand_in", "writers")

    def __init__(self, handle: Any, size: int, outside: bool) -> None:
        #: the recorder's own, released when it goes
        self.handle = handle
        self.size = size
        #: whether it was there before
        self.outside = outside
        #: whether its content outlives the step
        self.pinned = outside
        #: how many calls write it
        self.writers = 0
        #: place of the last call that uses it
        self.last = -1
        #: the storage whose memory it takes
        self.stand_in: Storage | None = None

    @property
    def root(self) -> Storage:
        """The storage whose memory it is."""
        return self if self.stand_in is None else self.stand_in

    def buffer(self, device: Device) -> Buffer:
        """One more handle to it, or to what stands in for it."""
        return Buffer._made("capture", device, lib.torchlean_cuda_buffer_share, self.root.handle)

    @staticmethod
    def upload(target: Buffer, host: Any) -> int:
        """The status of an upload onto a buffer's storage."""
        return uploader(target)(host)

    @staticmethod
    def copy(target: Buffer, source: Buffer) -> int | None:
        """The status of a copy onto a buffer's storage; None if the source has the same, and nothing is to be done."""
        status = int(lib.torchlean_cuda_buffer_copy(source._handle, new(_SLOT, target._handle)))
        return None if status == AliasError.status else status


def uploader(target: Buffer) -> Callable[[Any], int]:
    """Uploads float32 arrays onto a buffer's storage, and gives C's status."""
    context, slot, n = target._device._handle, new(_SLOT, target._handle), target.length

    def upload(host: Any) -> int:
        return int(lib.torchlean_cuda_buffer_upload(context, ffi.from_buffer(_FLOATS, host), n, slot))

    return upload


class Call:
    """One call of C. `arguments` holds a Storage, a list of them, or a value in each place; `outputs` says which places are
    slots. It is made anew at each replay, not as part of a graph, if it reads host memory that changes (`eager`) or has
    arguments that are computed (`computed`, by place)."""

    __slots__ = (
        "arguments", "around", "computed", "constant", "creates", "eager", "function", "name", "outputs", "parameters",
        "storages",
    )  # fmt: skip

    def __init__(self, name: str, function: Any, parameters: tuple[str, ...] = ()) -> None:
        self.name = name
        self.function = function
        #: the name of each argument
        self.parameters = parameters
        self.arguments: list[Any] = []
        self.outputs: set[int] = set()
        self.storages: list[Storage] = []
        self.creates: list[Storage] = []
        self.computed: dict[int, Callable[[], int | float]] = {}
        #: makes of the call what is run instead
        self.around: Callable[[Ready], Ready] | None = None
        self.eager = False
        #: whether it always writes the same, whatever was there
        self.constant = False

    def use(self, storage: Storage, output: bool, fresh: bool = False) -> Storage:
        self.storages.append(storage)
        if output:
            storage.writers += 1
        if fresh:
            self.creates.append(storage)
        return storage

    def ready(self) -> Ready:
        """The call with the handles of the storage that stands in."""
        made: list[Any] = []
        for place, argument in enumerate(self.arguments):
            if isinstance(argument, Storage):
                handle = argument.root.handle
                made.append(new(_SLOT, handle) if place in self.outputs else handle)
            elif isinstance(argument, list):
                made.append(new(_LIST, [s.root.handle for s in argument]))
            else:
                made.append(argument)
        function, computed = self.function, tuple(self.computed.items())
        if not computed:
            return functools.partial(function, *made)

        def call() -> int:
            for place, compute in computed:
                made[place] = compute()
            return int(function(*made))

        return call if self.around is None else self.around(call)


class Host:
    """Work of Python's own between two calls: `prepare` gets the buffers of the storages and gives what is run."""

    __slots__ = ("name", "prepare", "storages")

    def __init__(self, name: str, prepare: Callable[[list[Buffer]], Ready], storages: list[Storage]) -> None:
        self.name = name
        self.prepare = prepare
        self.storages = storages


class Recorder:
    """The calls on one device by the thread that made the recorder, while :meth:`active`."""

    def __init__(self, device: Device) -> None:
        self.device = device
        self.items: list[Call | Host] = []
        self._context = address(device._handle)
        self._thread = threading.get_ident()
        self._by_handle: dict[int, Storage] = {}
        self._paused = False
        #: whether what happens now is Python's own work, which replays do again
        self.is_aside = False
        #: handles of what a replay does not make: by Python's own work, or by other threads
        self._unmade: dict[int, str] = {}
        self._key: tuple[int, Callable[[], int]] | None = None
        #: host memory whose content changes between replays: address and bytes
        self._changing: list[tuple[int, int]] = []

    # ---- while the function runs

    @contextmanager
    def active(self) -> Iterator[None]:
        """Within, calls of this thread are recorded."""
        try:
            _enter(self)
            yield
        finally:
            _leave(self)

    @contextmanager
    def paused(self) -> Iterator[None]:
        """Within, calls are made and not recorded."""
        before, self._paused = self._paused, True
        try:
            yield
        finally:
            self._paused = before

    @contextmanager
    def aside(self) -> Iterator[list[Call | Host]]:
        """Within, what is recorded goes to the list that this gives."""
        items, self.items, self.is_aside = self.items, [], True
        try:
            yield self.items
        finally:
            self.items, self.is_aside = items, False

    @property
    def listens(self) -> bool:
        """Whether a call of this thread is to be recorded."""
        return not self._paused and threading.get_ident() == self._thread

    def refuse(self, what: str) -> None:
        """Raises CaptureError: this cannot be done again without Python."""
        if self.listens:
            raise CaptureError(
                f"{what}: got a call within a captured function, expected one before or after it", op=what
            )

    def changing(self, array: Any) -> None:
        """Says that the content of a host array will be another at each replay."""
        self._changing.append((array.ctypes.data, array.nbytes))

    def drawn(self, key: int, again: Callable[[], int]) -> None:
        """Says that the next call's key, which is this one, comes from `again` at a replay."""
        if self.listens:
            self._key = (key, again)

    def host(
        self,
        name: str,
        prepare: Callable[[list[Buffer]], Ready],
        buffers: Sequence[Buffer],
        calls: Sequence[Call | Host],
    ) -> None:
        """Records work of Python's own that reads these buffers; `calls` is what it did now. What it makes is made anew by
        each replay, so later calls cannot use it."""
        self.items.append(Host(name, prepare, [self.storage(b._handle) for b in buffers]))
        made = {id(s) for call in calls if isinstance(call, Call) for s in call.creates}
        self._unmade.update({handle: name for handle, s in self._by_handle.items() if id(s) in made})

    def elsewhere(self, handle: Any) -> None:
        """Says that another thread made this buffer meanwhile."""
        self._unmade[address(handle)] = "another thread"

    def unmade(self, buffer: Buffer) -> bool:
        """Whether a replay makes another buffer in its place, or none."""
        return address(buffer._handle) in self._unmade

    def storage(self, handle: Any) -> Storage:
        """The storage behind a handle. Raises CaptureError for one that a replay does not make."""
        if self._unmade and (maker := self._unmade.get(address(handle))):
            text = f"capture: buffer: got one that {maker} made within a captured function, expected one of a recorded call"
            raise CaptureError(text, op="capture")
        found = self._by_handle.get(address(handle))
        return self._hold(handle, True) if found is None else found

    def _hold(self, handle: Any, outside: bool) -> Storage:
        """Takes note of a buffer not seen before, with a handle of the recorder's own."""
        size, context, slot = ffi.new("uint32_t *"), ffi.new("torchlean_context **"), new(_SLOT)
        status = lib.torchlean_cuda_buffer_length(handle, size) or lib.torchlean_cuda_buffer_context(handle, context)
        if status:
            raise failure(status, "capture")
        if address(context[0]) != self._context:
            text = "capture: buffer: got a call on another device within a captured function, expected the session's"
            raise CaptureError(text, op="capture")
        try:
            status = lib.torchlean_cuda_buffer_share(handle, slot)
            if not status:
                held = own(slot[0], lib.torchlean_cuda_buffer_release)
        except BaseException:  # of a signal handler
            lib.torchlean_cuda_buffer_release(slot[0])
            raise
        if status:
            raise failure(status, "capture")
        made = self._by_handle[address(handle)] = Storage(held, int(size[0]), outside)
        return made

    def held(self, handle: Any) -> int:
        """The recorder's handles of a buffer's storage, which its users need not know of."""
        return int(address(handle) in self._by_handle)

    def call(self, entry: entries.Entry, function: Any, arguments: tuple[Any, ...]) -> int:
        """Makes a call of an operation and records it if it succeeds."""
        if not self.listens:
            return int(function(*arguments))
        roles = _roles(entry.symbol)
        if any(role == "host output" for role, _ in roles):
            self.refuse(entry.name)
        fresh: list[list[bool]] = []
        for (role, _), argument in zip(roles, arguments, strict=True):
            if role == "output" and argument != ffi.NULL:
                fresh.append([argument[0] == ffi.NULL])
            elif role == "output list":
                fresh.append([argument[i] == ffi.NULL for i in range(len(argument))])
            else:
                fresh.append([])
        key, self._key = self._key, None
        status = int(function(*arguments))
        if status:
            return status
        made = Call(entry.name, function, tuple(name for _, name in roles))
        for place, ((role, name), argument, new_ones) in enumerate(zip(roles, arguments, fresh, strict=True)):
            made.arguments.append(self._argument(made, place, role, name, argument, new_ones))
            if name == "key" and key is not None and argument == key[0]:
                made.computed[place], key = key[1], None
        if key is not None:
            raise CaptureError(f"{entry.name}: key: got a draw that the operation does not take, expected its key")
        self.items.append(made)
        return 0

    def _argument(self, made: Call, place: int, role: str, name: str, argument: Any, fresh: list[bool]) -> Any:
        """One argument as a call keeps it."""
        if role == "context":
            if address(argument) != self._context:
                text = f"{made.name}: device: got another device within a captured function, expected the session's"
                raise CaptureError(text, op=made.name)
            return argument
        if role in ("buffer", "output") and argument == ffi.NULL:
            return argument
        if role == "buffer":
            return made.use(self.storage(argument), False)
        if role == "list":
            return [made.use(self.storage(argument[i]), False) for i in range(len(argument))]
        if role == "output":
            made.outputs.add(place)
            return self._output(made, argument[0], fresh[0])
        if role == "output list":
            return [self._output(made, argument[i], f) for i, f in enumerate(fresh)]
        if role == "dims":
            return ffi.new("uint32_t[]", argument)
        if role in _HOST:
            return self._host_array(made, role, argument)
        return float(argument) if isinstance(argument, (float, np.floating)) else int(argument)

    def _output(self, made: Call, handle: Any, fresh: bool) -> Storage:
        storage = self._hold(handle, False) if fresh else self.storage(handle)
        return made.use(storage, True, fresh)

    def _host_array(self, made: Call, role: str, argument: Any) -> Any:
        """A copy of a host array that the call reads; one whose content changes stays where it is."""
        start = address(argument)
        if any(first <= start < first + size for first, size in self._changing):
            made.eager = True
            return argument
        kind, dtype = _HOST[role]
        return ffi.from_buffer(kind, np.frombuffer(ffi.buffer(argument), dtype).copy())

    def made(self, function: Any, arguments: tuple[Any, ...], buffer: Buffer) -> None:
        """Called when a buffer was made by a function of the core: upload, zeros, empty, copy or share."""
        if not self.listens:
            if threading.get_ident() != self._thread and function != lib.torchlean_cuda_buffer_share:
                self.elsewhere(buffer._handle)
            return
        if function == lib.torchlean_cuda_buffer_share:
            self._by_handle[address(buffer._handle)] = self.storage(arguments[0])
            return
        call = Call("buffer", function)
        source = self.storage(arguments[0]) if function == lib.torchlean_cuda_buffer_copy else None
        storage = self._hold(buffer._handle, False)
        if function == lib.torchlean_cuda_buffer_empty:
            storage.pinned = True  # nothing writes it before it is read, as far as anybody knows
            return
        if source is not None:
            call.arguments = [call.use(source, False)]
        elif function == lib.torchlean_cuda_buffer_zeros:
            call.arguments, call.constant = list(arguments), True
        else:
            context, host, n = arguments
            data = np.frombuffer(ffi.buffer(host, 4 * n), np.float32).copy()
            call.arguments = [context, ffi.from_buffer("float[]", data), n]
            call.constant = call.eager = True
        call.outputs.add(len(call.arguments))
        call.arguments.append(call.use(storage, True, True))
        self.items.append(call)

    def filled(self, buffer: Buffer, value: float) -> None:
        """Called when a buffer was filled."""
        if self.listens:
            call = Call("fill", lib.torchlean_cuda_buffer_fill)
            call.arguments = [call.use(self.storage(buffer._handle), True), value]
            call.constant = True
            self.items.append(call)

    # ---- afterwards

    def copied(self, source: Buffer, target: Storage) -> None:
        """Records a copy onto existing storage."""
        call = Call("copy", lib.torchlean_cuda_buffer_copy)
        call.arguments = [call.use(self.storage(source._handle), False), call.use(target, True)]
        call.outputs.add(1)
        self.items.append(call)
        if status := call.ready()():
            raise failure(status, "capture")

    def finish(self) -> tuple[list[Ready], list[str], list[Any], list[Any]]:
        """What a replay does, in order, with a name for each; the graphs among it; and the handles that must stay."""
        items = [item for item in self.items if not self._is_constant(item)]
        self._place(items)
        ready: list[Ready] = []
        names: list[str] = []
        graphs: list[Any] = []
        run: list[Call] = []

        def end_of_run() -> None:
            if len(run) > 1:
                graphs.append(self._graph(run))
                ready.append(functools.partial(lib.torchlean_cuda_graph_launch, graphs[-1]))
                names.append("graph")
            else:
                ready.extend(call.ready() for call in run)
                names.extend(call.name for call in run)
            run.clear()

        for item in items:
            if isinstance(item, Call) and self.device.is_cuda and not item.eager and not item.computed:
                run.append(item)
                continue
            end_of_run()
            names.append(item.name)
            if isinstance(item, Call):
                ready.append(item.ready())
            else:
                ready.append(item.prepare([s.buffer(self.device) for s in item.storages]))
        end_of_run()
        handles = list({id(s.root): s.root.handle for item in items for s in item.storages}.values())
        self.items, self._by_handle = [], {}
        return ready, names, graphs, handles

    def discard(self) -> None:
        """Gives everything back."""
        for storage in self._by_handle.values():
            lib.torchlean_cuda_buffer_release(storage.handle)
        self.items, self._by_handle = [], {}

    @staticmethod
    def release(handles: Sequence[Any], graphs: Sequence[Any]) -> None:
        """Gives back what :meth:`finish` gave."""
        for graph in graphs:
            lib.torchlean_cuda_graph_release(graph)
        for handle in handles:
            lib.torchlean_cuda_buffer_release(handle)

    uploader = staticmethod(uploader)

    @staticmethod
    def _is_constant(item: Call | Host) -> bool:
        """Whether a call writes what is there already at every replay; its storage is then kept."""
        if not isinstance(item, Call) or not item.constant:
            return False
        storage = item.storages[-1]
        if storage.outside or storage.writers > 1:
            return False
        storage.pinned = True
        return True

    def _place(self, items: Sequence[Call | Host]) -> None:
        """Lets storages share memory, first come first served: one that a call creates takes the place of one of the same
        length whose last use is behind it. What somebody else still has a handle to keeps its own."""
        count = ffi.new("uint32_t *")
        for place, item in enumerate(items):
            for storage in item.storages:
                storage.last = place
        idle: dict[int, list[Storage]] = {}
        for place, item in enumerate(items):
            for storage in item.creates if isinstance(item, Call) else ():
                if not storage.pinned and lib.torchlean_cuda_buffer_references(storage.handle, count) == 0:
                    storage.pinned = count[0] > 1
                if not storage.pinned and (free := idle.get(storage.size)):
                    storage.stand_in = free.pop()
            for storage in {id(s): s for s in item.storages}.values():
                if not storage.pinned and storage.last == place:
                    idle.setdefault(storage.size, []).append(storage.root)

    def _graph(self, calls: Sequence[Call]) -> Any:
        """A run of calls as a graph. A call that cannot be captured raises, and there is no capture under way then."""
        context = self.device._handle
        slot, begun = new(_GRAPH), True
        try:
            if status := lib.torchlean_cuda_capture_begin(context):
                begun = False
                raise failure(status, "capture")
            for call in calls:
                if status := call.ready()():
                    raise refused(failure(status, call.name), call.name)
            if status := lib.torchlean_cuda_capture_end(context, slot):
                raise failure(status, "capture")
            return own(slot[0], lib.torchlean_cuda_graph_release)
        except BaseException:
            if begun and slot[0] == ffi.NULL:
                lib.torchlean_cuda_capture_end(context, ffi.NULL)  # gives it up, if it is not over
            lib.torchlean_cuda_graph_release(slot[0])
            raise


# ---- the names in tlrt.kernels

_lock = threading.Lock()
_recorders: dict[int, Recorder] = {}


@functools.cache
def _roles(symbol: str) -> tuple[tuple[str, str], ...]:
    """What each argument of an entry point is, and its name."""
    entry = _entries()[symbol]
    sig = entry.signature
    out: list[tuple[str, str]] = [("context", "context")] if sig.needs_context else []
    out += [({"f32": "buffer"}.get(a.kind, a.kind), a.name) for a in sig.inputs]
    for d in sig.dims:
        out += [("dims", d[1:]), ("number", d[1:])] if d.startswith("*") else [("number", d)]
    for p in sig.params:
        out += [("dims", p.name), ("number", p.name)] if p.kind == "dims" else [("number", p.name)]
    kinds = {"f32": "output", "list": "output list", "f64": "host output"}
    return (*out, *((kinds[a.kind], a.name) for a in entry.outputs))


@functools.cache
def _entries() -> dict[str, entries.Entry]:
    return {e.symbol: e for e in entries.all_entries()}


@functools.cache
def _watched() -> dict[str, tuple[Any, Any]]:
    """By the name in ``tlrt.kernels``: the C function, and what stands for it while somebody records."""

    def watch(entry: entries.Entry, function: Any) -> Any:
        outputs = [place for place, (role, _) in enumerate(_roles(entry.symbol)) if role == "output"]
        lists = [place for place, (role, _) in enumerate(_roles(entry.symbol)) if role == "output list"]

        def call(*arguments: Any) -> int:
            recorder = _recorders.get(threading.get_ident())
            if recorder is not None:
                return recorder.call(entry, function, arguments)
            slots = [arguments[i] for i in outputs if arguments[i] != ffi.NULL and arguments[i][0] == ffi.NULL]
            fresh = [(list_, i) for list_ in (arguments[k] for k in lists) for i in range(len(list_)) if not list_[i]]
            status = int(function(*arguments))
            for other in () if status else tuple(_recorders.values()):
                for slot in slots:
                    other.elsewhere(slot[0])
                for list_, i in fresh:
                    other.elsewhere(list_[i])
            return status

        return call

    made = {}
    for symbol, entry in _entries().items():
        function = getattr(lib, symbol)
        made[f"_c_{entry.name}"] = (function, watch(entry, function))
    return made


def _stand(which: int) -> None:
    """Lets the names in ``tlrt.kernels`` stand for the C functions (0) or for what watches them (1)."""
    vars(kernels).update({name: pair[which] for name, pair in _watched().items()})


def _enter(recorder: Recorder) -> None:
    with _lock:
        if recorder._thread in _recorders:
            raise CaptureError("capture: got a call within a captured function, expected one before or after it")
        if recorder.device._recorder is not None:
            raise CaptureError("capture: device: got one whose calls are being captured, expected another")
        recorder.device._recorder = recorder
        if not _recorders:
            _stand(1)
        _recorders[recorder._thread] = recorder


def _leave(recorder: Recorder) -> None:
    """Undoes what there is of an `_enter` that an interrupt may have cut short."""
    with _lock:
        if recorder.device._recorder is recorder:
            recorder.device._recorder = None
        if _recorders.get(recorder._thread) is recorder:
            del _recorders[recorder._thread]
        if not _recorders:
            _stand(0)
