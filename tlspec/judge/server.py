"""The processes that kernels run in: ``python -P server.py FD`` with a socket, which :mod:`tlspec.judge.apart` starts.

This process imports NumPy and the library of the arrays once, and starts a child for each check, which so is there at once. It
never runs a kernel itself. In a child ``tlspec`` is a package of :mod:`tlspec.formats`, :mod:`tlspec.arrays` and
:mod:`tlspec.judge.runner` alone, for a task also of what makes its submission. While the kernel's module is loaded all other
names of it are placeholders, afterwards they are refused, and so are its files. The judge's memory was never here.

Messages are frames: a length and that many bytes. What comes from the judge is pickled, as it is trusted; what goes to the judge
is JSON and plain bytes, as a kernel may have written it.
"""

import faulthandler
import importlib
import importlib.abc
import importlib.machinery
import importlib.util
import json
import os
import pickle
import random
import resource
import select
import signal
import socket
import struct
import sys
import types
from collections.abc import Callable
from typing import Any, NoReturn

FOLDER = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
#: what of the package a kernel's process has
TRANSPORT = ("tlspec.formats", "tlspec.arrays", "tlspec.judge.runner")
#: what it has besides for a task
OF_TASKS = ("tlspec.judge.adapters.sources", "tlspec.judge.adapters.submission")
REFUSAL = "the specification, which the process of a kernel does not have (isolate=False runs the kernel where it is)"
#: seconds without a check after which the processes end
IDLE_SECONDS = 600.0
#: file descriptors that come with a request: the connection, the status of the child, its output, its log
DESCRIPTORS = 4


class Stop(BaseException):
    """The end of a script's second run: the call of the check."""


class State:
    """Where a child is."""

    #: whether the kernel is loaded, after which placeholders are refused
    sealed = False
    #: the line of a script at which its second run ends
    stop: tuple[str, int] | None = None


state = State()


class Placeholder:
    """Any name of the package while a module is loaded; it is refused once the kernel is called."""

    def __init__(self, name: str):
        self._name = name

    def __getattr__(self, name: str) -> Any:
        if state.sealed or name.startswith("__"):
            raise AttributeError(f"{self._name}.{name}: it is a part of {REFUSAL}")
        return Placeholder(f"{self._name}.{name}")

    def __call__(self, *given: Any, **named: Any) -> Any:
        if state.sealed:
            raise ImportError(f"{self._name}: it is a part of {REFUSAL}")
        frame: Any = sys._getframe(1)
        while state.stop is not None and frame is not None:
            if frame.f_code.co_name == "<module>" and (frame.f_code.co_filename, frame.f_lineno) == state.stop:
                raise Stop
            frame = frame.f_back
        return given[0] if len(given) == 1 and callable(given[0]) and not named else Placeholder(f"{self._name}()")

    def __getitem__(self, key: Any) -> Any:
        return self.__getattr__(str(key))

    def __iter__(self) -> Any:
        return iter(())

    def __mro_entries__(self, bases: Any) -> tuple[type, ...]:
        return ()


class PlaceholderModule(types.ModuleType):
    """A module of the package that is not here."""

    def __getattr__(self, name: str) -> Any:
        return Placeholder(self.__name__).__getattr__(name)


class Finder(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """Finds the package's modules: those for transport, and placeholders for all others."""

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> Any:
        if name.partition(".")[0] != "tlspec":
            return None
        if name in TRANSPORT or (name in OF_TASKS and not state.sealed):
            return importlib.util.spec_from_file_location(name, os.path.join(FOLDER, *name.split(".")[1:]) + ".py")
        if state.sealed:
            raise ImportError(f"{name}: it is a part of {REFUSAL}")
        return importlib.machinery.ModuleSpec(name, self, is_package=True)

    def create_module(self, spec: Any) -> types.ModuleType:
        return PlaceholderModule(spec.name)

    def exec_module(self, module: types.ModuleType) -> None:
        pass


def refuse_files() -> None:
    """From now on the package's files cannot be opened, nor named to another program."""

    def hook(event: str, given: tuple[Any, ...], folder: str = os.path.realpath(FOLDER), text: str = REFUSAL) -> None:
        if event == "open" and isinstance(given[0], (str, bytes)):
            name = os.fsdecode(given[0])
            if os.path.realpath(name).startswith(folder + os.sep):
                raise PermissionError(f"{name}: it is a part of {text}")
        elif event in ("subprocess.Popen", "os.system", "os.exec", "os.posix_spawn") and "tlspec" in repr(given):
            raise PermissionError(f"{given[0]}: it names {text}")

    sys.addaudithook(hook)


def load_transport() -> None:
    sys.meta_path.insert(0, Finder())
    for name in TRANSPORT:
        importlib.import_module(name)


def run_script(file: str, stop: int | None) -> None:
    """The user's script as the module ``__main__``, up to the line that calls the check."""
    module = types.ModuleType("__tlspec_main__")
    module.__file__ = file
    sys.modules.update({"__main__": module, module.__name__: module})
    sys.path.insert(0, os.path.dirname(os.path.abspath(file)))
    state.stop = (file, stop) if stop is not None else None
    with open(file, encoding="utf-8") as text:
        code = compile(text.read(), file, "exec")
    try:
        exec(code, vars(module))
    except Stop:
        pass


def receive(connection: socket.socket) -> Any:
    """A message of the judge; None where it has gone."""

    def exactly(count: int) -> bytearray | None:
        got = bytearray(count)
        view = memoryview(got)
        while count:
            n = connection.recv_into(view, count)
            if not n:
                return None
            view, count = view[n:], count - n
        return got

    head = exactly(8)
    if head is None:
        return None
    lengths = exactly(8 * struct.unpack("<Q", head)[0])
    frames = [exactly(n) for n in struct.unpack(f"<{len(lengths) // 8}Q", lengths)] if lengths is not None else [None]
    if any(f is None for f in frames):
        return None
    return pickle.loads(frames[0], buffers=frames[1:])  # type: ignore[arg-type]


def send(connection: socket.socket, head: dict[str, Any], parts: list[Any] = []) -> None:  # noqa: B006
    text = json.dumps(head).encode()
    connection.sendall(struct.pack("<Q", len(text)) + text)
    for part in parts:
        connection.sendall(part.reshape(-1).view("u1"))


def load(way: dict[str, Any]) -> tuple[list[tuple[Callable[..., Any], Callable[..., Any] | None]], list[str]]:
    """The kernels with the adapters of their arguments, and what a reader should know of them."""
    if "task" in way:
        submission = sys.modules["tlspec.judge.adapters.submission"]
        function, notes = submission.loaded(way["task"])
        return [(function, submission.called)], notes
    if "script" in way:
        run_script(*way["script"])
    runner = sys.modules["tlspec.judge.runner"]
    files: dict[str, types.ModuleType] = {}
    named = [
        runner.load_named(place, files) if isinstance(place, str) else runner.named(*place) if place else None
        for place in way["places"]
    ]
    sent = zip(named, pickle.loads(way["pickle"]), strict=True)
    return [(function if known is None else known, adapter) for known, (function, adapter) in sent], []


def serve(connection: socket.socket) -> None:
    """Loads a kernel and answers calls until the judge closes the connection."""
    setup = receive(connection)
    os.chdir(setup["folder"])
    os.environ.clear()
    os.environ.update(setup["environment"])
    sys.path[:], sys.argv = setup["path"], setup["argv"]
    if setup["memory"]:
        resource.setrlimit(resource.RLIMIT_DATA, (setup["memory"], setup["memory"]))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    arrays, runner = (sys.modules[n] for n in ("tlspec.arrays", "tlspec.judge.runner"))
    random.seed()
    sys.modules["numpy"].random.seed()
    output = os.dup(1)
    with open(os.devnull, "wb") as nothing:  # a script that runs up to the check again says nothing
        os.dup2(nothing.fileno(), 1)
    try:
        library = arrays.get(setup["array"])
        if setup["settings"]:
            library.apply(setup["settings"])
        if library.library == "torch":
            library.module.seed()
        if "task" in setup["way"]:
            importlib.import_module("tlspec.judge.adapters.submission")
        refuse_files()
        functions, notes = load(setup["way"])
        made = runner.Runner(functions, library)
        reply = {"parameters": [runner.parameters_of(f) for f, _ in functions], "notes": notes}
    except BaseException as error:
        kind = "unavailable" if "library" not in locals() else "load"
        text = str(error) if kind == "unavailable" else runner.text_of(error)
        send(connection, {"kind": kind, "type": type(error).__name__, "text": text})
        return
    finally:
        sys.stdout.flush()
        os.dup2(output, 1)
        os.close(output)
    state.sealed = True
    send(connection, {"kind": "loaded", **reply})
    process = os.getpid()
    copies, copy = os.pipe()
    os.set_blocking(copies, False)
    while (request := receive(connection)) is not None:
        answer(connection, made, request, process, (copies, copy))


def answer(connection: socket.socket, made: Any, request: Any, process: int, copies: tuple[int, int]) -> None:
    """Makes one call and sends what came of it. A copy of the process, which the kernel forked, says so in a pipe."""
    parts: list[Any] = []
    try:
        if isinstance(request, list):  # the shapes of results that are held
            head: dict[str, Any] = {"kind": "held", "results": _described(made.held(request), parts)}
        elif isinstance(request, tuple):  # requests that are called in turn
            calls, error = made.turns(*request)
            parts.append(sys.modules["numpy"].frombuffer(b"".join(calls), "u1"))
            head = {"kind": "turns", "made": len(calls), "end": None if error is None else _told(error)}
        else:
            found = made.call(request)
            head = {"kind": "results", "results": _described(found.results, parts)}
            head["places"] = {n: x.place for n, x in found.arrays.items()}
            for name in request.arrays:
                parts.append(found.arrays[name].patterns)
            parts += [found.canaries[name] for name in request.written]
    except BaseException as error:
        head, parts = _told(error), []
    if os.getpid() != process:
        os.write(copies[1], b"x")
        os._exit(1)
    if select.select([copies[0]], [], [], 0)[0]:
        head, parts = {"kind": "result", "text": "a copy of the process, which the kernel had forked, returned too"}, []
    send(connection, head, parts)


def _told(error: BaseException) -> dict[str, Any]:
    """What the judge hears of a call that failed."""
    if isinstance(error, NotImplementedError):
        return {"kind": "unsupported"}
    text = str(error) if hasattr(error, "kind") else sys.modules["tlspec.judge.runner"].text_of(error)
    return {"kind": getattr(error, "kind", "error"), "text": text, "refusal": getattr(error, "refusal", False)}


def _described(results: list[Any], parts: list[Any]) -> list[dict[str, Any]]:
    parts += [r.patterns for r in results if r.patterns is not None]
    return [{"dtype": r.dtype, "shape": r.shape, "sent": r.patterns is not None, "place": r.place} for r in results]


def start(control: socket.socket, descriptors: list[int], others: list[int]) -> int:
    """A child that serves one check, without what is open for other children; returns its process's number."""
    sys.stdout.flush()
    child = os.fork()
    if child:
        return child
    try:
        connection, status, output, log = descriptors
        os.setsid()
        signal.set_wakeup_fd(-1)
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        control.close()
        for each in (status, *others):
            os.close(each)
        for source, target in ((os.open(os.devnull, os.O_RDONLY), 0), (output, 1), (output, 2)):
            os.dup2(source, target)
        faulthandler.enable(file=log)
        faulthandler.register(signal.SIGUSR1, file=log)
        serve(socket.socket(fileno=connection))
    except BrokenPipeError:
        pass
    finally:
        sys.stdout.flush()
        os._exit(0)


def tell(status: int, number: int) -> None:
    try:
        os.write(status, struct.pack("<i", number))
    except BrokenPipeError:  # the judge has gone
        pass


def main() -> NoReturn:
    control = socket.socket(fileno=int(sys.argv[1]))
    setup = receive(control)
    sys.path[:] = setup["path"]
    load_transport()
    if setup["library"] in ("numpy", "torch"):  # the others start threads, which a process must not have that is copied
        importlib.import_module(setup["library"])
    read, written = os.pipe()
    os.set_blocking(written, False)
    os.set_blocking(read, False)
    signal.set_wakeup_fd(written)
    signal.signal(signal.SIGCHLD, lambda number, frame: None)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    running: dict[int, int] = {}
    while True:
        sources: list[Any] = [control, read]
        ready, _, _ = select.select(sources, [], [], IDLE_SECONDS)
        if read in ready:
            os.read(read, 512)
            for child in list(running):
                ended, state = os.waitpid(child, os.WNOHANG)
                if ended:
                    tell(running[child], os.waitstatus_to_exitcode(state))
                    os.close(running.pop(child))
        if control in ready:
            message, descriptors, _, _ = socket.recv_fds(control, 1, DESCRIPTORS)
            if not message:
                break
            child = start(control, list(descriptors), list(running.values()))
            connection, status, *others = descriptors
            tell(status, child)
            running[child] = status
            for each in (connection, *others):
                os.close(each)
        elif not ready and not running:
            break
    for child in running:
        try:
            os.killpg(child, signal.SIGKILL)
        except ProcessLookupError:
            pass
    os._exit(0)


if __name__ == "__main__":
    main()
