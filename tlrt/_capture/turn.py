"""One thread at a time at the captured steps of a session."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from typing import Any

from tlrt.errors import CaptureError

__all__ = ["Turn"]


class Turn:
    """A lock for captures and replays that a thread may take again while it has it, and that refuses other threads."""

    def __init__(self) -> None:
        self._start()

    def _start(self) -> None:
        self._lock = threading.Lock()
        #: the thread that has the lock
        self._thread: int | None = None
        self._process = os.getpid()

    def run(self, op: str, name: str, work: Callable[..., Any], *arguments: Any) -> Any:
        """The result of the work. Raises CaptureError if another thread is at a step, called `name` in the message."""
        if self._process != os.getpid():  # after a fork, a lock that another thread had stays taken
            self._start()
        thread = threading.get_ident()
        if self._lock.locked():
            if self._thread == thread:
                return work(*arguments)
            text = f"{op}: {name}: got a call of another thread meanwhile, expected one thread at a time"
            raise CaptureError(text, op=op)
        with self._lock:  # waits only for a thread that came here at the same moment
            try:
                self._thread = thread
                return work(*arguments)
            finally:
                self._thread = None
