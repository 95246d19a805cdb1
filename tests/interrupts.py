"""Raises KeyboardInterrupt at each point of the package where CPython would run a signal handler, or at each instruction."""

import contextlib
import dis
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from types import CodeType, FrameType
from typing import Any

import tlrt
from tests import no_collection

_FILES = (str(Path(tlrt.__file__).parent), contextlib.__file__)
#: a signal handler runs after a call, at a jump back, and where a function begins or goes on
_POINTS = ("CALL", "RESUME", "JUMP_BACKWARD")
_points: dict[CodeType, set[int]] = {}


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


def interrupt(work: Callable[[], Any], place: int, everywhere: bool = False) -> bool:
    """Runs work with an interrupt at the point of that number, counted from 0; False if it ended before. `everywhere`, each
    instruction is a point."""
    left = place + 1

    def trace(frame: FrameType, event: str, argument: Any) -> Any:
        nonlocal left
        if event == "call":
            if not frame.f_code.co_filename.startswith(_FILES) or frame.f_code.co_name == "__del__":
                return None  # Python ignores what a finaliser raises
            frame.f_trace_opcodes, frame.f_trace_lines = True, False
        elif event == "opcode":
            if not everywhere and frame.f_code not in _points:
                _points[frame.f_code] = _find_points(frame.f_code)
            left -= everywhere or frame.f_lasti in _points[frame.f_code]
            if left == 0:
                sys.settrace(None)
                raise KeyboardInterrupt
        return trace

    before = sys.gettrace()
    sys._getframe().f_trace_opcodes = True  # CPython 3.12 reports instructions only if a frame asked before
    with no_collection():
        sys.settrace(trace)
        try:
            work()
            return left <= 0  # Python ignores what is raised while a generator is finalised, too
        except KeyboardInterrupt:
            return True
        finally:
            sys.settrace(before)


def interruptions(work: Callable[[], Any]) -> Iterator[int]:
    """Runs work once for each point, interrupted there, and gives the point's number each time; then once to its end."""
    place = 0
    while interrupt(work, place):
        yield place
        place += 1
