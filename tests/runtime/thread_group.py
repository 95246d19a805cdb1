"""Groups whose ranks are threads of one process."""

import threading
from collections.abc import Callable
from queue import Queue
from typing import Any

import numpy as np

from tlrt import distributed

#: seconds that a rank waits for another
TIMEOUT = 20.0


class ThreadGroup(distributed.Group):
    """A rank among threads: arrays go through queues."""

    def __init__(self, rank: int, size: int, mail: dict[tuple[int, int], Any]) -> None:
        super().__init__(rank, size, rank, TIMEOUT)
        self._mail = mail

    def exchange(self, partner: int, out: Any, into: Any) -> None:
        self._mail[self.rank, partner].put(np.array(out))
        into[...] = self._mail[partner, self.rank].get(timeout=TIMEOUT)


def run_ranks(size: int, work: Callable[[ThreadGroup], Any]) -> list[Any]:
    """What work(group) gives in each of so many threads; raises the first exception."""
    mail: dict[tuple[int, int], Any] = {(a, b): Queue() for a in range(size) for b in range(size)}
    found: dict[int, Any] = {}
    errors: list[BaseException] = []

    def begin(rank: int) -> None:
        try:
            found[rank] = work(ThreadGroup(rank, size, mail))
        except BaseException as error:  # raised by the caller's thread
            errors.append(error)

    threads = [threading.Thread(target=begin, args=(r,)) for r in range(size)]
    for t in threads:
        t.start()
    for t in threads:
        t.join(3 * TIMEOUT)
    if errors:
        raise errors[0]
    return [found[r] for r in range(size)]
