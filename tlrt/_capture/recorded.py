"""What a recording consists of: calls of the C library and work of Python, and the memory that they use."""

import functools
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from tlrt._binding.handles import Buffer, Device, new
from tlrt._binding.library import complete_call, load
from tlrt.errors import AliasError

_library = load()
ffi, lib = _library.ffi, _library.lib
_SLOT = ffi.typeof("torchlean_buffer **")
_LIST = ffi.typeof("torchlean_buffer *[]")
FLOATS = ffi.typeof("float[]")

#: does a recorded item again; returns C's status, or None
Runnable = Callable[[], "int | None"]
#: brings a float32 array to where a step reads it; returns C's status
Uploader = Callable[[Any], int]


def address(pointer: Any) -> int:
    """A handle or a pointer as a number."""
    return int(ffi.cast("uintptr_t", pointer))


@dataclass(eq=False, slots=True)
class Storage:
    """The memory behind one or several buffers of a recording."""

    #: the recorder's own, released when it goes
    handle: Any
    #: number of elements
    size: int
    #: whether it holds indices
    is_index: bool
    #: whether it existed before the recording
    is_outside: bool
    #: whether its content outlives the step
    is_pinned: bool = False
    #: number of calls that write it
    writers: int = 0
    #: place of the last item that uses it
    last: int = -1
    #: the storage whose memory it takes over
    reused: "Storage | None" = None

    def __post_init__(self) -> None:
        self.is_pinned = self.is_outside

    @property
    def root(self) -> "Storage":
        """The storage whose memory it is."""
        return self if self.reused is None else self.reused

    def buffer(self, device: Device) -> Buffer:
        """One more handle to its memory."""
        return Buffer._create("capture", device, lib.torchlean_cuda_buffer_share, self.root.handle)

    @staticmethod
    def upload(target: Buffer, host: Any) -> int:
        """The status of an upload onto a buffer's storage."""
        return uploader(target)(host)

    @staticmethod
    def copy(target: Buffer, source: Buffer) -> int | None:
        """The status of a copy onto a buffer's storage; None if the source has the same, and nothing is to be done."""
        status = complete_call(lib.torchlean_cuda_buffer_copy, source._handle, new(_SLOT, target._handle))
        return None if status == AliasError.status else status


def uploader(target: Buffer) -> Uploader:
    """A function that uploads a float32 array onto a buffer's storage and returns C's status."""
    context, slot, n = target._device._handle, new(_SLOT, target._handle), target.length

    def upload(host: Any) -> int:
        return complete_call(lib.torchlean_cuda_buffer_upload, context, ffi.from_buffer(FLOATS, host), n, slot)

    return upload


@dataclass(eq=False, slots=True)
class Call:
    """One call of C. On CUDA it becomes part of a graph, unless it reads host memory that changes (`is_eager`) or has
    arguments that are computed at each replay and differ (`is_steady` where they may well stay the same)."""

    name: str
    function: Any
    #: the name of each argument
    parameters: tuple[str, ...] = ()
    #: a Storage, a list of them, or a value in each place
    arguments: list[Any] = field(default_factory=list)
    #: places of the arguments that are output slots
    outputs: set[int] = field(default_factory=set)
    storages: list[Storage] = field(default_factory=list)
    creates: list[Storage] = field(default_factory=list)
    #: functions that compute an argument at each replay, by its place
    computed: dict[int, Callable[[], int | float]] = field(default_factory=dict)
    #: makes of the runnable call, or of the graph that it is in, what is run in its place
    wrap: Callable[[Runnable], Runnable] | None = None
    #: makes of a function of C one that counts it as done
    count: Callable[[Callable[..., int]], Callable[..., int]] | None = None
    is_eager: bool = False
    is_steady: bool = False
    #: whether it always writes the same, whatever was there
    is_constant: bool = False

    def use(self, storage: Storage, is_output: bool, is_new: bool = False) -> Storage:
        """Takes note of a storage that the call reads, writes or creates."""
        self.storages.append(storage)
        if is_output:
            storage.writers += 1
        if is_new:
            self.creates.append(storage)
        return storage

    @property
    def is_changed(self) -> bool:
        """Whether an argument that is computed is another one than was recorded."""
        return any(compute() != self.arguments[place] for place, compute in self.computed.items())

    def runnable(self, captured: bool = False) -> Runnable:
        """The call with the handles of its storage; as a part of a graph (`captured`) with the arguments that were recorded."""
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
        if captured or not computed:
            return functools.partial(function, *made)
        if self.count is not None:
            function = self.count(function)

        def run() -> int:
            for place, compute in computed:
                made[place] = compute()
            return complete_call(function, *made)

        return run if self.wrap is None else self.wrap(run)


@dataclass(eq=False, slots=True)
class HostWork:
    """Python code that runs between two calls: `prepare` gets the buffers of the storages and returns what is run."""

    name: str
    prepare: Callable[[list[Buffer]], Runnable]
    storages: list[Storage]
