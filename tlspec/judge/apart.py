"""A kernel in a process of its own, as the judge sees it: calls go there, bit patterns come back, whatever happens to it.

One process (:mod:`tlspec.judge.server`) stays ready for each library of arrays. What it starts for a check is a copy of a process
that has never known a reference; it ends with the check, or by a signal when the judge does.
"""

import atexit
import contextlib
import functools
import itertools
import json
import math
import os
import pickle
import re
import select
import signal
import socket
import struct
import subprocess
import sys
import tempfile
import threading
import time
import types
from collections.abc import Callable, Mapping, Sequence
from contextvars import ContextVar
from dataclasses import replace
from typing import Any, TypeVar

import numpy as np

from tlspec import arrays
from tlspec.arrays import CANARY_BYTES, PATTERNS, Arrays
from tlspec.judge import runner, sending
from tlspec.judge.runner import (
    Answer,
    Failure,
    Kinds,
    Parameters,
    Plain,
    Raised,
    Request,
    Runner,
    is_installed,
    parameters_of,
)

#: seconds that one call may take, or loading the kernel: time for compilers
SECONDS = 300.0
#: seconds for the processes themselves: to start, to say how a child ended
START_SECONDS = 600.0
#: bytes of the text that a kernel's process may send at once
TEXT_BYTES = 2**24
#: characters of it that a report shows
LINE_CHARACTERS = 2000
#: what :func:`tlspec.arrays.get` raises for a library or a device that is not there
UNAVAILABLE = {e.__name__: e for e in (ImportError, RuntimeError, TypeError, ValueError)}


class Ended(Failure):
    """The end of the kernel's process."""

    kind = "crash"


class TimedOut(Ended):
    """A call that took too long."""

    kind = "time-out"


class NotSent(Exception):
    """A kernel that cannot be loaded in another process."""


class Here:
    """A kernel in the judge's process."""

    apart, seconds_to_load = False, 0.0

    def __init__(
        self, function: Callable[..., Any], adapter: Callable[..., Any] | None, library: Arrays, reason: str = "isolate=False"
    ):  # fmt: skip
        self.name, self.mutable, self.reason = library.name, library.mutable, reason
        self.library, self.parameters = library, parameters_of(function)
        self._runner = Runner([(function, adapter)], library)
        self.call, self.turns, self.held = self._runner.call, self._runner.turns, self._runner.held

    def close(self) -> None:
        """Nothing is open."""


class _Server:
    """A process that starts a child for each check."""

    def __init__(self, library: str):
        self.control, theirs = socket.socketpair()
        flags = subprocess._args_from_interpreter_flags()  # type: ignore[attr-defined]
        command = [sys.executable, *flags, "-P", _file("server.py"), str(theirs.fileno())]
        self.process = subprocess.Popen(
            command, pass_fds=[theirs.fileno()], start_new_session=True, stdin=subprocess.DEVNULL
        )
        theirs.close()
        _send(self.control, {"path": _path(), "library": library})

    def start(self, descriptors: list[int]) -> None:
        socket.send_fds(self.control, [b"x"], descriptors)

    def close(self) -> None:
        self.control.close()
        self.process.wait()


_servers: dict[tuple[int, str], _Server] = {}
_lock = threading.Lock()


@atexit.register
def close_servers() -> None:
    """Ends the processes that wait for checks."""
    with _lock:
        for (process, _), server in list(_servers.items()):
            if process == os.getpid():
                server.close()
        _servers.clear()


def prepare(array: str) -> None:
    """Starts the process of a library of arrays, unless one waits, without waiting for it. Raises ValueError."""
    key = os.getpid(), arrays.kind_of(array).library
    with _lock:
        if key not in _servers:
            _servers[key] = _Server(key[1])


def _start(library: str, descriptors: list[int]) -> _Server:
    """A child in the server of a library, which is started where it does not run."""
    key = os.getpid(), library
    with _lock:
        for _ in range(2):
            server = _servers.get(key) or _servers.setdefault(key, _Server(library))
            try:
                server.start(descriptors)
                return server
            except OSError:  # it ended for want of checks
                _servers.pop(key).close()
    raise RuntimeError("the processes of kernels cannot be started")


def _forget(server: _Server) -> None:
    """Another process is started instead of one that has ended."""
    with _lock:
        for key, known in list(_servers.items()):
            if known is server:
                _servers.pop(key).close()


class Apart:
    """A kernel in a process of its own, or with a second function `beside` it there."""

    apart = True

    def __init__(
        self, function: Callable[..., Any] | str | Mapping[str, Any], adapter: Callable[..., Any] | None, array: str, *,
        seconds: float = SECONDS, memory: int | None = None,
        beside: tuple[Callable[..., Any] | str, Callable[..., Any] | None] | None = None,
    ):  # fmt: skip
        kind = arrays.kind_of(array)
        self.name, self.mutable, self._library, self._kind = array, kind.mutable, kind.library, kind
        self.seconds, self._memory = seconds, memory if memory is not None else _physical_memory(array)
        self._connection: socket.socket | None = None
        #: functions that were called
        self._called: set[int] = set()
        #: what loading took the last time
        self.seconds_to_load = 0.0
        reasons = []
        try:
            # a mapping is the recipe of a submission to a task
            whole = isinstance(function, Mapping)
            kernels = [(function, adapter), *([beside] if beside else [])]
            self._ways = [{"task": function}] if whole else list(sending.ways(kernels))  # type: ignore[arg-type]
        except Exception as error:  # pickling runs methods of any object
            raise NotSent(f"{type(error).__name__}: {error}") from None
        while self._ways:
            try:
                self._load()
                return
            except NotSent as error:
                reasons.append(str(error))
                del self._ways[0]
        raise NotSent(reasons[0])

    def _begin(self) -> None:
        """Starts the process. Raises RuntimeError."""
        self._process = 0
        self._connection, theirs = socket.socketpair()
        status, written = os.pipe()
        self._status = open(status, "rb", buffering=0)  # noqa: SIM115
        self._log = tempfile.TemporaryFile()  # noqa: SIM115
        with open(os.devnull, "wb") as nothing:
            # what a kernel prints is no part of the report
            self._server = _start(
                self._library, [theirs.fileno(), written, _errors_or(nothing.fileno()), self._log.fileno()]
            )
        theirs.close()
        os.close(written)
        self._process = self._number()

    def _load(self) -> None:
        """Starts the process and loads the kernel in it. Raises NotSent, or what the library raises."""
        start = time.monotonic()
        try:
            self._begin()
        except RuntimeError:  # a kernel has ended the process that starts others
            self.close()
            _forget(self._server)
            self._begin()
        settings = self._kind.settings() if self._library in sys.modules else {}
        try:
            setup = {
                "folder": os.getcwd(), "environment": dict(os.environ), "path": _path(), "argv": sys.argv, "array": self.name,
                "memory": self._memory, "settings": settings, "way": self._ways[0],
            }  # fmt: skip
            self._send(setup, max(self.seconds, START_SECONDS))
            head = self._head()
        except Ended as ended:
            self.close()
            raise NotSent(f"as it was loaded, {ended}") from None
        if head["kind"] == "unavailable":
            self.close()
            raise UNAVAILABLE.get(head["type"], RuntimeError)(head["text"])
        if head["kind"] != "loaded":
            self.close()
            raise NotSent(_line(head["text"]))
        self.seconds_to_load = time.monotonic() - start
        self.notes = [_line(text) for text in head["notes"]]
        #: of each function
        self.told: list[Parameters | None] = [
            None if told is None else [(str(n), int(k), bool(d)) for n, k, d in told] for told in head["parameters"]
        ]

    @property
    def parameters(self) -> Parameters | None:
        return self.told[0]

    def call(self, request: Request) -> Answer:
        """One call. Raises Failure, or NotImplementedError. After the end of the process the next call starts another."""
        called = request.function in self._called
        self._called.add(request.function)
        try:
            return self._call(request)
        except Raised as error:
            if called or len(self._ways) < 2:
                raise
            # what was sent as code may need what its module does when it is imported; the other way round, its neighbours
            self.close()
            first, *self._ways = self._ways
            try:
                return self._call(request)
            except Ended:
                self._ways.insert(0, first)
                raise error from None

    def turns(self, requests: Sequence[Request], kinds: Kinds, calls: int) -> tuple[list[bytes], Exception | None]:
        """Calls of several requests in turn, made by one message: see :meth:`tlspec.judge.runner.Runner.turns`. Raises Ended."""
        head = self._answer((list(requests), kinds, calls))
        if head["kind"] != "turns":
            return [], self._failure(head)
        sizes = [sum(math.prod(shape) * PATTERNS[dtype].itemsize for dtype, shape in kind) for kind in kinds]
        made = head.get("made")
        if not isinstance(made, int) or not 0 <= made <= calls:
            self.close()
            raise Ended(f"the kernel's process made {made} of {calls} calls")
        data = memoryview(self._exactly(sum(sizes[i % len(sizes)] for i in range(made))))
        ends = itertools.accumulate((sizes[i % len(sizes)] for i in range(made)), initial=0)
        found = [bytes(data[start:end]) for start, end in itertools.pairwise(ends)]
        return found, None if head.get("end") is None else self._failure(head["end"])

    def _answer(self, message: Any) -> dict[str, Any]:
        """The first part of what the process answers, which is started where it does not run."""
        if self._connection is None:
            try:
                self._load()
            except NotSent as error:
                raise Ended(f"the kernel cannot be loaded again: {error}") from None
        self._send(message)
        head = self._head()
        if self._server.process.poll() is not None:
            self.close()
            raise Ended("the kernel ended the process that starts kernels")
        return head

    def _failure(self, head: dict[str, Any]) -> Exception:
        """What a call raises that failed."""
        if head["kind"] == "unsupported":
            return NotImplementedError()
        if "CUDA error" in str(head.get("text")):  # after which a process can use the device no more
            self.close()
        if head["kind"] == Failure.kind:
            return Failure(_line(head.get("text")))
        return Raised(_line(head.get("text")), refusal=bool(head.get("refusal")))

    def _call(self, request: Request) -> Answer:
        head = self._answer(request)
        if head["kind"] != "results":
            raise self._failure(head)
        try:
            results = [self._plain(r, s) for r, s in zip(head["results"], request.results.values(), strict=True)]
            after = {
                name: Plain(dtype, x.shape, self._bits(x.shape, x.dtype), _place(head["places"].get(name)))
                for name, (dtype, x) in request.arrays.items()
            }
            canaries = {n: self._bits((2 * CANARY_BYTES,), np.dtype(np.uint8)) for n in request.written}
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            self.close()
            raise Ended(f"the kernel's process answered something else than results: {error}") from None
        return Answer(results, after, canaries)

    def held(self, shapes: list[tuple[int, ...]]) -> list[Plain]:
        """What the results of the last call that held them are by now, and the arguments that it was to leave alone."""
        if self._connection is None:
            raise Ended("the process of the kernel ended with its results")
        self._send(shapes)
        head = self._head()
        if head["kind"] != "held":
            raise Raised(_line(head.get("text")))
        if len(head["results"]) != len(shapes):
            raise Ended("the process of the kernel ended with its results")
        return [self._plain(r, s) for r, s in zip(head["results"], shapes, strict=True)]

    def close(self) -> None:
        """Ends the process and all that it has started."""
        if self._connection is None:
            return
        self._connection.close()
        self._connection = None
        try:
            if self._process:
                os.killpg(self._process, signal.SIGKILL)
        except (ProcessLookupError, PermissionError):
            pass
        self._status.close()
        self._log.close()

    def __del__(self) -> None:
        if getattr(self, "_connection", None) is not None:
            self.close()

    def _plain(self, told: dict[str, Any], shape: tuple[int, ...]) -> Plain:
        dtype, found = str(told["dtype"]), tuple(int(n) for n in told["shape"])
        bits = self._bits(shape, PATTERNS[dtype]) if told["sent"] else None
        return Plain(dtype, found, bits, _place(told["place"]))

    def _bits(self, shape: tuple[int, ...], unsigned: np.dtype[Any]) -> np.ndarray:
        data = self._exactly(math.prod(shape) * unsigned.itemsize)
        return np.frombuffer(data, unsigned).reshape(shape)

    def _send(self, message: Any, seconds: float | None = None) -> None:
        assert self._connection is not None
        seconds = self.seconds if seconds is None else seconds
        self._deadline = time.monotonic() + seconds
        self._connection.settimeout(seconds)
        try:
            _send(self._connection, message)
        except TimeoutError:
            self._time_out()
        except OSError:
            self._end()

    def _head(self) -> dict[str, Any]:
        """The first part of an answer. Raises Ended."""
        (length,) = struct.unpack("<Q", self._exactly(8))
        try:
            if length > TEXT_BYTES:
                raise ValueError(f"{length} bytes of text")
            found: dict[str, Any] = json.loads(self._exactly(length))
            if not isinstance(found, dict) or "kind" not in found:
                raise ValueError("no answer")
        except ValueError as error:
            self.close()
            raise Ended(f"the kernel's process answered something else than results: {error}") from None
        return found

    def _exactly(self, count: int) -> bytearray:
        assert self._connection is not None
        got = bytearray(count)
        view = memoryview(got)
        while count:
            try:
                left = max(0.01, self._deadline - time.monotonic())
                # what the process has started may hold the connection open after its end
                sources: list[Any] = [self._connection, self._status]
                ready = select.select(sources, [], [], left)[0]
                if ready and self._connection not in ready:
                    self._end()
                self._connection.settimeout(left if ready else 0.01)
                n = self._connection.recv_into(view, count)
            except TimeoutError:
                self._time_out()
            except OSError:
                n = 0
            if not n:
                self._end()
            view, count = view[n:], count - n
        return got

    def _time_out(self) -> None:
        os.kill(self._process, signal.SIGUSR1)  # the process writes where it is
        time.sleep(0.1)
        where = self._where()
        self.close()
        raise TimedOut(f"a call took more than {self.seconds:g} s{where}") from None

    def _end(self) -> None:
        """Raises Ended with how the process ended."""
        try:
            status = self._number()
        except RuntimeError:
            self.close()
            raise Ended("the kernel ended its process and the one that starts kernels") from None
        names = {int(s): f" ({s.name})" for s in signal.Signals}
        how = f"by signal {-status}{names.get(-status, '')}" if status < 0 else f"with status {status}"
        hint = ", as where memory runs out" if status == -signal.SIGKILL else ""
        where = self._where()
        self.close()
        raise Ended(f"the process of the kernel ended {how}{hint}, expected results{where}") from None

    def _number(self) -> int:
        """What the server says: the number of the process, then how it ended."""
        ready = _readable(self._status.fileno(), START_SECONDS)
        told = self._status.read(4) if ready else b""
        if not told or len(told) < 4:
            raise RuntimeError("the process that starts kernels has ended")
        return int(struct.unpack("<i", told)[0])

    def _where(self) -> str:
        """The line of the kernel that ran last, as the process wrote it down."""
        self._log.seek(0)
        text = self._log.read().decode(errors="replace")
        for file, line, name in re.findall(r'File "([^"]+)", line (\d+) in (\S+)', text):
            if not is_installed(file) and file not in (runner.__file__, _file("server.py")):
                return f" ({os.path.basename(file)}:{line}, in {name})"
        return ""


class Beside:
    """The second function of a process, which ends with the first one's."""

    apart = True

    def __init__(self, first: Apart):
        self._first, self.name, self.mutable = first, first.name, first.mutable
        self.held, self.close = first.held, first.close

    @property
    def parameters(self) -> Parameters | None:
        return self._first.told[1]

    @property
    def seconds_to_load(self) -> float:
        return self._first.seconds_to_load

    def call(self, request: Request) -> Answer:
        return self._first.call(replace(request, function=1))

    def turns(self, requests: Sequence[Request], kinds: Kinds, calls: int) -> tuple[list[bytes], Exception | None]:
        return self._first.turns([replace(r, function=1) for r in requests], kinds, calls)


#: a kernel, wherever it runs
Runs = Apart | Beside | Here

#: the kernels of the check that runs now
_open: ContextVar[list[Apart] | None] = ContextVar("_open", default=None)
Function = TypeVar("Function", bound=Callable[..., Any])


def ends_processes(function: Function) -> Function:
    """A function after which, however it ends, the kernels' processes are gone that it started."""

    @functools.wraps(function)
    def run(*given: Any, **named: Any) -> Any:
        started: list[Apart] = []
        token = _open.set(started)
        try:
            return function(*given, **named)
        finally:
            _open.reset(token)
            for kernel in started:
                kernel.close()

    return run  # type: ignore[return-value]


def kernels_of(
    functions: Sequence[tuple[Callable[..., Any] | str, Callable[..., Any] | None]], array: str | Arrays,
    isolate: bool | None, seconds: float | None, memory: int | None,
) -> list[Runs]:  # fmt: skip
    """Functions with the adapters of their arguments apart: two in one process where both can be sent there, as programs have
    them. Here is what `isolate` says or, unless it is True, what cannot be sent."""
    files: dict[str, types.ModuleType] = {}
    options: dict[str, Any] = {"seconds": seconds or SECONDS, "memory": memory}
    if len(functions) == 2 and isolate is not False and isinstance(array, str):
        with contextlib.suppress(NotSent):
            first = _opened(Apart(*functions[0], array, beside=functions[1], **options))
            return [first, Beside(first)]
    return [_kernel_of(f, adapter, array, isolate, files, options) for f, adapter in functions]


def _opened(made: Apart) -> Apart:
    if (started := _open.get()) is not None:
        started.append(made)
    return made


def _kernel_of(
    function: Callable[..., Any] | str, adapter: Callable[..., Any] | None, array: str | Arrays, isolate: bool | None,
    files: dict[str, types.ModuleType], options: Mapping[str, Any],
) -> Runs:  # fmt: skip
    reason = "isolate=False"
    if isolate is not False:
        try:
            if not isinstance(array, str):
                raise NotSent(f"array= is an object, {array.name}")
            return _opened(Apart(function, adapter, array, **options))
        except NotSent as error:
            if isinstance(function, str):
                raise ValueError(f"check: {function} cannot be loaded: {error}") from None
            if isolate:
                raise ValueError(f"check: the kernel cannot run in a process of its own: {error}") from None
            reason = f"it cannot be sent to another: {error}"
    run = runner.load_named(function, files) if isinstance(function, str) else function
    return Here(run, adapter, arrays.get(array), reason)


def _file(name: str) -> str:
    return os.path.join(os.path.dirname(os.path.abspath(__file__)), name)


def _path() -> list[str]:
    return [os.path.abspath(p) for p in sys.path if isinstance(p, str)]


def _errors_or(otherwise: int) -> int:
    """The standard error, or what is given where that is closed."""
    try:
        os.fstat(2)
    except OSError:
        return otherwise
    return 2


def _line(told: Any) -> str:
    """A kernel's text as one line without control characters, so that it cannot look like a report."""
    return "".join(c if c.isprintable() else " " for c in str(told))[:LINE_CHARACTERS]


def _physical_memory(array: str) -> int:
    """A bound on a process's memory; none where a driver reserves addresses far beyond it."""
    on_host = array.partition(":")[0] == "numpy" or array == "torch"
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") if on_host else 0


def _place(told: Any) -> tuple[int, int] | None:
    return None if told is None else (int(told[0]), int(told[1]))


def _readable(descriptor: int, seconds: float) -> bool:
    return bool(select.select([descriptor], [], [], seconds)[0])


def _send(connection: socket.socket, message: Any) -> None:
    """A message to a process: pickled, its arrays beside."""
    buffers: list[pickle.PickleBuffer] = []
    frames: list[Any] = [pickle.dumps(message, protocol=5, buffer_callback=buffers.append)]
    frames += [b.raw() for b in buffers]
    head = struct.pack(f"<{len(frames) + 1}Q", len(frames), *(memoryview(f).nbytes for f in frames))
    connection.sendall(head)
    for frame in frames:
        connection.sendall(frame)
