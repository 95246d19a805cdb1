"""One call of a kernel: arrays are made of bit patterns, the function is called, and bit patterns come back.

It runs in a process of the kernel's own (:mod:`tlspec.judge.server`), or in the caller's. Besides NumPy it needs
:mod:`tlspec.arrays` alone, which knows no operation, so the kernel's process holds neither references nor expected values.
"""

import builtins
import ctypes
import importlib
import importlib.util
import inspect
import linecache
import marshal
import os
import sys
import sysconfig
import threading
import time
import types
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from tlspec.arrays import CANARY_BYTES, Arrays

#: seconds that a thread which a call has started may take to end, and that a process waits for such threads in all
THREAD_SECONDS, THREADS_SECONDS = 0.1, 0.5
#: the layouts of a call's arrays, in turn, where they lie in different ways
MIXED = ("", "transposed", "rows")
#: characters of an exception that are told
LONGEST = 2000
#: what a kernel raises that refuses a case
REFUSALS = (ValueError, RuntimeError, AssertionError)
#: folders of installed packages and of Python itself
INSTALLED = tuple({os.path.join(sysconfig.get_path(k), "") for k in ("stdlib", "platstdlib", "purelib", "platlib")})


class Failure(Exception):
    """What a kernel did wrong, besides numbers."""

    kind = "result"


class Raised(Failure):
    """An exception of the kernel, with the file and line."""

    kind = "error"

    def __init__(self, text: str, *, refusal: bool = False):
        super().__init__(text)
        #: whether it is an exception with which a kernel may refuse a case
        self.refusal = refusal


@dataclass
class Plain:
    """An array as bit patterns."""

    dtype: str
    shape: tuple[int, ...]
    #: unsigned integers; None for a result that has not the shape which was expected
    patterns: np.ndarray | None
    #: the addresses of the first byte and behind the last, where they are known
    place: tuple[int, int] | None = None


@dataclass
class Request:
    """A call that is to be made."""

    #: by name: type and bit patterns
    arrays: dict[str, tuple[str, np.ndarray]]
    #: other arguments
    scalars: dict[str, Any]
    #: the results' names and shapes
    results: dict[str, tuple[int, ...]]
    #: outputs that the kernel writes: type of the elements
    written: dict[str, str] = field(default_factory=dict)
    #: outputs that overwrite an input: its name
    over: dict[str, str] = field(default_factory=dict)
    positional: list[str] = field(default_factory=list)
    keywords: dict[str, str] = field(default_factory=dict)
    #: arguments that are passed even where they are None
    inputs: list[str] = field(default_factory=list)
    #: how the arrays lie in memory, of :data:`tlspec.arrays.LAYOUTS`; "" is contiguous
    layout: str = ""
    #: whether arguments of equal bits are one array
    shared: bool = False
    #: the seed of the numbers that the outputs hold before; None for NaN
    garbage: int | None = None
    #: whether the results and the arguments stay in memory for :meth:`Runner.held`
    hold: bool = False
    #: whether the numbers are written into the arrays of the last call that held them
    reuse: bool = False
    #: which of the process's functions is called
    function: int = 0


@dataclass
class Answer:
    """What a call returned and left behind."""

    results: list[Plain]
    #: the arguments' bits afterwards, and where they are
    arrays: dict[str, Plain]
    #: by output: the bytes before and behind it
    canaries: dict[str, np.ndarray]


#: this package's folder
OWN = os.path.dirname(os.path.dirname(os.path.abspath(__file__))) + os.sep


def is_installed(file: str | None) -> bool:
    """Whether a file belongs to Python or to an installed package."""
    return file is None or file.startswith(("<frozen", *INSTALLED)) or f"{os.sep}dist-packages{os.sep}" in file


def load_named(text: str, files: dict[str, types.ModuleType] | None = None) -> Callable[..., Any]:
    """The function or class that MODULE:FUNCTION or FILE.py:FUNCTION names. A file runs again in every call, unless it is one of
    `files`, to which it is added. Raises ValueError."""
    place, _, name = text.rpartition(":")
    if not place:
        raise ValueError(f"{text!r}: expected MODULE:FUNCTION or FILE.py:FUNCTION")
    if files is not None and place in files:
        module = files[place]
    elif place.endswith(".py"):
        spec = importlib.util.spec_from_file_location(Path(place).stem, place)
        if spec is None or spec.loader is None or not Path(place).exists():
            raise ValueError(f"{place}: no such file")
        module = importlib.util.module_from_spec(spec)
        sys.path.insert(0, str(Path(place).resolve().parent))
        sys.modules.setdefault(module.__name__, module)
        spec.loader.exec_module(module)
        if files is not None:
            files[place] = module
    else:
        sys.path.insert(0, "")
        try:
            module = importlib.import_module(place)
        except ModuleNotFoundError as error:
            raise ValueError(f"{place}: {error}") from None
    found: Any = module
    for part in name.split("."):
        found = getattr(found, part, None)
    if not callable(found):
        raise ValueError(f"{place} has no function or class {name}")
    return found


#: the types and shapes of several requests' results
Kinds = Sequence[Sequence[tuple[str, tuple[int, ...]]]]
#: name, kind as inspect says it, and whether the function demands it
Parameters = list[tuple[str, int, bool]]


def parameters_of(function: Callable[..., Any]) -> Parameters | None:
    """The parameters of a function; None for a compiled one, which does not say."""
    try:
        found = inspect.signature(function).parameters.values()
    except (TypeError, ValueError):
        return None
    return [(p.name, int(p.kind), p.default is p.empty) for p in found]


def place_of(error: BaseException, *, installed: bool = True) -> str:
    """The innermost line of an exception in neither our files nor installed packages: ``file.py:12, in softmax: return 1 / 0``.
    Where there is none, with `installed` the first of a package."""
    trace, found = error.__traceback__, ("", 0, "")
    while trace is not None:
        code = trace.tb_frame.f_code
        foreign = is_installed(code.co_filename)
        if not code.co_filename.startswith(OWN) and (not foreign or (installed and not found[0])):
            found = code.co_filename, trace.tb_lineno, code.co_name
        trace = trace.tb_next
    file, line, name = found
    text = linecache.getline(file, line).strip() if file else ""
    return f"{os.path.basename(file)}:{line}, in {name}" + (f": {text}" if text else "") if file else ""


def _equal(a: tuple[str, np.ndarray], b: tuple[str, np.ndarray]) -> bool:
    return a[0] == b[0] and np.array_equal(a[1], b[1])


def plain_of(library: Arrays, name: str, x: Any, shape: tuple[int, ...]) -> Plain:
    """The bits of an array; they are copied at once, so what is written later does not count. Raises Failure."""
    if isinstance(x, (list, tuple)):
        raise Failure(f"{name}: a {type(x).__name__} of {len(x)}, expected one array of shape {shape}")
    if hasattr(x, "__array__") and not hasattr(x, "__dlpack__") and not isinstance(x, np.generic):
        raise Failure(f"{name}: a {type(x).__name__}, which makes its elements when they are read, expected an array")
    try:
        found = library.shape(x)
        same = found == shape or (found, shape) == ((), (1,))  # a number stands for the one element of a result
        bits, dtype = library.read(x) if same else (None, library.dtype_of(x))
        return Plain(dtype, found, None if bits is None else bits.reshape(shape), library.pointer_range(x))
    except RuntimeError as error:
        raise Failure(f"{name}: {error}") from None
    except (TypeError, ValueError) as error:
        raise Raised(f"{name}: {type(error).__name__}: {error}") from error


def text_of(error: BaseException) -> str:
    """An exception for a person: what it is and where."""
    place = place_of(error)
    try:
        text = str(error)[:LONGEST]
    except Exception as another:
        text = f"its text raises {type(another).__name__}"
    return f"{type(error).__name__}: {text}" + (f" ({place})" if place else "")


#: a kernel's function and the adapter of its arguments
Functions = Sequence[tuple[Callable[..., Any], Callable[..., Any] | None]]


class Runner:
    """Functions on arrays of one library."""

    def __init__(self, functions: Functions, library: Arrays):
        self.functions, self.library = functions, library
        self._held: list[Any] = []
        self._arguments: dict[str, Any] = {}
        self._patience = THREADS_SECONDS

    def call(self, request: Request, *, brief: bool = False) -> Answer:
        """Makes the arrays, calls the function and reads what it returned, but for `brief` also what it left behind. Raises
        Failure, or NotImplementedError."""
        library = self.library
        arrays: dict[str, Any] = {}
        for name, (dtype, x) in request.arrays.items():
            known = (n for n in arrays if request.shared and _equal(request.arrays[n], request.arrays[name]))
            other = next(known, None)
            layout = MIXED[len(arrays) % len(MIXED)] if request.layout == "mixed" else request.layout
            layout = "" if layout == "expanded" and name in request.over.values() else layout
            earlier = self._arguments.get(name) if request.reuse else None
            if other:
                arrays[name] = arrays[other]
            elif earlier is not None and library.overwritten(earlier, x, dtype):
                arrays[name] = earlier
            else:
                arrays[name] = library.put(x, dtype, layout=layout)
        written, whole = {}, {}
        for name, dtype in request.written.items():
            written[name], whole[name] = library.guarded(request.results[name], dtype, request.garbage)
        outputs = written | {n: arrays[name] for n, name in request.over.items()}
        library.delay(arrays.values())
        before = set(threading.enumerate())
        returned = self._returned(request, {**request.scalars, **arrays, **written}, outputs)
        read = [plain_of(self.library, n, r, s) for r, (n, s) in zip(returned, request.results.items(), strict=True)]
        self._wait_for_threads(before)
        if request.hold:
            self._held = [*returned, *(x for n, x in arrays.items() if n not in request.over.values())]
            self._arguments = arrays
        answer = Answer(read, {}, {}) if brief else Answer(read, *self._left(request, arrays, whole))
        if arrays and not request.hold:
            for result in returned:  # which belongs to the caller, who writes to it
                library.spoil(result)
        return answer

    def _left(
        self, request: Request, arrays: dict[str, Any], whole: dict[str, Any]
    ) -> tuple[dict[str, Plain], dict[str, np.ndarray]]:
        """The arguments by now, and the bytes beside the outputs. Raises Failure."""
        library = self.library
        after = {n: plain_of(library, n, x, tuple(request.arrays[n][1].shape)) for n, x in arrays.items()}
        if not library.mutable:  # nobody writes them, and JAX may hold numbers of 64 bits in 32
            after = {n: Plain(t, x.shape, x, after[n].place) for n, (t, x) in request.arrays.items()}
        changed = next((n for n, x in after.items() if x.patterns is None), None)
        if changed is not None:
            raise Failure(f"{changed}: the kernel changed its input's shape to {after[changed].shape}")
        canaries = {}
        for name, everything in whole.items():
            bits = library.bits(everything).view(np.uint8)
            canaries[name] = np.concatenate([bits[:CANARY_BYTES], bits[len(bits) - CANARY_BYTES :]])
        return after, canaries

    def turns(self, requests: Sequence[Request], kinds: Kinds, calls: int) -> tuple[list[bytes], Exception | None]:
        """Makes calls of several requests in turn, whose results have known types and shapes. Returns the bits of each call's
        results, and what ended the turns early: Failure or NotImplementedError."""
        found: list[bytes] = []
        for i in range(calls):
            wanted = kinds[i % len(requests)]
            try:
                results = self.call(requests[i % len(requests)], brief=True).results
                if [(r.dtype, r.shape) for r in results] != wanted or any(r.patterns is None for r in results):
                    raise Failure("results of another type or shape than in an earlier call")
            except (Failure, NotImplementedError) as error:
                return found, error
            found.append(b"".join(r.patterns.tobytes() for r in results if r.patterns is not None))
        return found, None

    def held(self, shapes: list[tuple[int, ...]]) -> list[Plain]:
        """What the results of the last call that held them are by now, and the arguments that it was to leave alone."""
        return [plain_of(self.library, "", r, s) for r, s in zip(self._held, shapes, strict=False)]

    def _returned(self, request: Request, values: dict[str, Any], outputs: dict[str, Any]) -> list[Any]:
        settings = self.library.settings()
        function, adapter = self.functions[request.function]
        try:
            with np.errstate(all="ignore"):
                if adapter is not None:
                    returned = adapter(function, values)
                else:
                    given = [values[n] for n in request.positional]
                    while given and given[-1] is None:  # an optional argument at the end
                        given.pop()
                    named = {k: n for k, n in request.keywords.items() if values[n] is not None or n in request.inputs}
                    returned = function(*given, **{k: values[n] for k, n in named.items()})
                results = returned.values() if isinstance(returned, Mapping) else returned
                kept = self.library.finish(
                    [*outputs.values(), *(results if isinstance(results, (tuple, list)) else [results])]
                )
        except NotImplementedError:
            raise
        except SystemExit as end:
            raise Failure(f"the kernel ended the program with status {end.code!r}, expected results") from None
        except KeyboardInterrupt:
            raise
        except BaseException as error:
            raise Raised(text_of(error), refusal=isinstance(error, REFUSALS)) from error
        if (now := self.library.settings()) != settings:
            changed = ", ".join(f"{k} from {settings.get(k)} to {v}" for k, v in now.items() if settings.get(k) != v)
            raise Failure(f"the kernel changed {changed}, in all of the process")
        if not kept:
            raise Failure(
                "a result changed after the work of the current stream: another stream was still at work on it"
            )
        status = isinstance(returned, (int, float, np.generic)) and request.written.keys() == request.results.keys()
        if (returned is None or status) and outputs:
            returned = [outputs.get(n) for n in request.results]
        if isinstance(returned, Mapping):
            returned = [returned.get(n) for n in request.results]
        found = list(returned) if isinstance(returned, (tuple, list)) else [returned]
        if request.over and len(found) == len(request.results):  # whatever is returned
            found = [outputs[n] if n in request.over else r for n, r in zip(request.results, found, strict=True)]
        if len(found) != len(request.results) or any(r is None for r in found):
            shapes = ", ".join(f"{n} of shape {s}" for n, s in request.results.items())
            raise Failure(f"returned {len(found)} results, expected {len(request.results)}: {shapes}")
        for name, result in zip(request.results, found, strict=True):
            if name in request.written and self._place(result) != self._place(outputs[name]):
                raise Failure(f"{name}: returned another array than the one that it was to write")
        return found

    def _place(self, x: Any) -> tuple[int, int] | None:
        """Where an array lies; None for what is none."""
        try:
            return self.library.pointer_range(x)
        except TypeError:
            return None

    def _wait_for_threads(self, before: set[threading.Thread]) -> None:
        """A thread that the call has started and that ends soon after was at work on the results; pools stay."""
        started = [t for t in threading.enumerate() if t not in before]
        if not started or self._patience <= 0:
            return
        start = time.monotonic()
        while time.monotonic() - start < THREAD_SECONDS:
            if not all(t.is_alive() for t in started):
                raise Failure("the kernel returned while a thread that it had started was at work")
            time.sleep(0.001)
        self._patience -= THREAD_SECONDS


# functions that were sent as code, made again

#: by module: the globals of functions that were sent with what they refer to
_GLOBALS: dict[str, dict[str, Any]] = {}


def make_library(kind: type[ctypes.CDLL], name: str, functions: Mapping[str, tuple[Any, Any]]) -> ctypes.CDLL:
    """A library of C, with the types of its functions."""
    made = kind(name)
    for each, (arguments, result) in functions.items():
        function = getattr(made, each)
        function.argtypes, function.restype = arguments, result
    return made


def make_cell() -> types.CellType:
    return types.CellType()


def make_function(code: bytes, module: str, by_value: bool, cells: tuple[Any, ...]) -> types.FunctionType:
    """A function of its code, on the globals of its module, or on those that were sent."""
    if by_value:
        known = _GLOBALS.setdefault(module, {"__name__": module, "__builtins__": builtins})
    else:
        known = importlib.import_module(module).__dict__
    return types.FunctionType(marshal.loads(code), known, closure=cells or None)


def fill_function(function: types.FunctionType, state: dict[str, Any]) -> None:
    """What may refer to the function itself: defaults, captured variables, globals."""
    function.__name__, function.__qualname__, function.__module__ = state["names"]
    function.__defaults__, function.__kwdefaults__ = state["defaults"]
    function.__dict__.update(state["attributes"])
    for cell, contents in state["cells"]:
        if contents:
            cell.cell_contents = contents[0]
    for name, value in state["globals"].items():
        function.__globals__.setdefault(name, value)


def named(module: str, name: str) -> Any:
    """A module, or what it has under a name with dots."""
    found: Any = importlib.import_module(module)
    for part in filter(None, name.split(".")):
        found = getattr(found, part)
    return found
