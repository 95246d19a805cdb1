"""One thread at a time at the captured steps of a session."""

import os
import threading
import weakref
from collections.abc import Callable
from typing import Any

from tlrt.errors import CaptureError, refusal


class Turn:
    """A lock for captures and replays that a thread may take again while it has it, and that refuses other threads."""

    def __init__(self) -> None:
        self._reset()
        _turns.add(self)

    def _reset(self) -> None:
        self._lock = threading.Lock()
        #: held by the thread that has the lock. Both are left in one step, so that an interrupt leaves neither taken
        self._owner: Any = threading.RLock()

    def run(self, op: str, name: str, work: Callable[[tuple[Any, ...]], Any], arguments: tuple[Any, ...]) -> Any:
        """The result of the work. Raises CaptureError if another thread is at a step, called `name` in the message."""
        if self._lock.locked():
            if self._owner._is_owned():
                return work(arguments)
            raise refusal(CaptureError, op, name, "a call of another thread meanwhile", "one thread at a time")
        with self._lock, self._owner:  # waits only for a thread that came here at the same moment
            return work(arguments)


_turns: weakref.WeakSet[Turn] = weakref.WeakSet()


def _reset_after_fork() -> None:
    """In a child process, a lock that another thread had would stay taken."""
    for turn in _turns:
        turn._reset()


os.register_at_fork(after_in_child=_reset_after_fork)
