"""Raises an exception at a chosen point of a call: where CPython would run a signal handler, or at a call of the C library."""

import dis
import gc
import re
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import CodeType, FrameType
from typing import Any

import numpy as np

import tlspec

#: a signal handler runs after a call, at a jump back, and where a function begins or goes on
_POINTS = ("CALL", "RESUME", "JUMP_BACKWARD")
#: not interrupted: the campaigns' own code, and code that only computes what it returns, where it is as at the call
_LEFT_OUT = (str(Path(__file__).parent), str(Path(tlspec.__file__).parent), str(Path(np.__file__).parent))
#: nor finalisers, as Python ignores what they raise, and what makes a device's entry points anew for its observers
_COMPUTING = re.compile(r"__del__$|^Calls\.(__init__|observed)|^_reported$")
_points: dict[CodeType, set[int]] = {}

#: runs work with an exception at the point of that number, counted from 0, and then what is to be done while the exception is
#: handled; the place of the point in words, or None if the work ended before
Injector = Callable[[Callable[[], Any], int, Callable[[], Any]], "str | None"]


def _find_points(code: CodeType) -> set[int]:
    """The instructions that follow such a point under the same exception handler: a tracer can only raise there."""
    found, before = set(), None
    handlers = dis.Bytecode(code).exception_entries  # type: ignore[attr-defined]
    for instruction in dis.get_instructions(code):
        if before is not None and before.opname.startswith(_POINTS):
            here, there = ([h for h in handlers if h.start <= i.offset < h.end] for i in (before, instruction))
            if here == there:
                found.add(instruction.offset)
        before = instruction
    return found


def interrupt(
    work: Callable[[], Any], place: int, meanwhile: Callable[[], Any] = lambda: None, everywhere: bool = False
) -> str | None:
    """An :data:`Injector` of KeyboardInterrupt where a signal handler may run; `everywhere`, each instruction is a point."""
    left, where = place + 1, ""

    def trace(frame: FrameType, event: str, argument: Any) -> Any:
        nonlocal left, where
        if event == "call":
            if frame.f_code.co_filename.startswith(_LEFT_OUT) or _COMPUTING.search(frame.f_code.co_qualname):
                return None
            frame.f_trace_opcodes, frame.f_trace_lines = True, False
        elif event == "opcode":
            if not everywhere and frame.f_code not in _points:
                _points[frame.f_code] = _find_points(frame.f_code)
            left -= everywhere or frame.f_lasti in _points[frame.f_code]
            if left == 0:
                sys.settrace(None)
                where = f"{Path(frame.f_code.co_filename).name}:{frame.f_lineno} in {frame.f_code.co_name}"
                raise KeyboardInterrupt
        return trace

    before = sys.gettrace()
    sys._getframe().f_trace_opcodes = True  # CPython 3.12 reports instructions only if a frame asked before
    gc.disable()
    sys.settrace(trace)
    try:
        work()
    except KeyboardInterrupt:
        sys.settrace(None)
        meanwhile()
    finally:
        sys.settrace(before)
        gc.enable()
    return where or None  # Python ignores what is raised while a generator is finalised, too


def interruptions(work: Callable[[], Any], stride: int = 1) -> Iterator[int]:
    """Runs work interrupted at each point whose number the stride divides, and gives the number each time; then to its end."""
    place = 0
    while interrupt(work, place):
        yield place
        place += stride


class LibraryCalls:
    """The calls of the C library by Python, of which the one chosen fails before it is made: with a status, or MemoryError."""

    def __init__(self) -> None:
        self._left, self._status, self._where = -1, 0, ""

    @contextmanager
    def installed(self) -> Iterator["LibraryCalls"]:
        """Within, the calls of devices opened from now on are counted. What gives memory back is not made to fail."""
        from tlrt._binding import handles
        from tlrt._binding.library import load
        from tlrt._binding.observer import Calls

        library = load()
        handles._bind(library)
        lib, prefix = library.lib, "torchlean_cuda_"
        saved = dict(lib.__dict__), handles._calls, handles._share, handles._copy
        for name in dir(lib):
            function = getattr(lib, name)
            result = getattr(library.ffi.typeof(function), "result", None) if name.startswith(prefix) else None
            if getattr(result, "cname", "") == "int32_t" and not name.endswith(
                ("_release", "_destroy", "take_error", "_count")
            ):
                lib.__dict__[name] = self._counted(name.removeprefix(prefix), function)
        handles._calls = Calls({n.removeprefix(prefix): getattr(lib, n) for n in dir(lib) if n.startswith(prefix)})
        handles._share, handles._copy = lib.torchlean_cuda_buffer_share, lib.torchlean_cuda_buffer_copy
        try:
            yield self
        finally:
            lib.__dict__.clear()
            lib.__dict__.update(saved[0])
            handles._calls, handles._share, handles._copy = saved[1:]

    def _counted(self, name: str, function: Callable[..., int]) -> Callable[..., int]:
        def call(*arguments: Any) -> int:
            self._left -= 1
            if self._left == 0:
                self._where = name
                if not self._status:
                    raise MemoryError(f"at the call of {name}")
                return self._status
            return function(*arguments)

        return call

    def failing(self, status: int) -> Injector:
        """An :data:`Injector` of calls that return this status, or raise MemoryError where it is 0."""

        def inject(work: Callable[[], Any], place: int, meanwhile: Callable[[], Any]) -> str | None:
            self._left, self._status, self._where = place + 1, status, ""
            try:
                work()
            except MemoryError:
                self._left = -1
                meanwhile()
            finally:
                self._left = -1
            return self._where or None

        return inject
