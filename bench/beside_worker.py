"""What :mod:`bench.beside` runs in a process of each checkout: times calls of that checkout's own library.

The parent runs this file by its path with the other checkout's packages on PYTHONPATH, so only what every checkout since the
first evidence has is used here: `bench.core.rows`, `bench.measure` and the registry. Requests and replies are lines of JSON, on
standard input and on the standard output that the process started with; whatever else is printed goes to standard error.
"""

import json
import os
import sys
from collections.abc import Callable
from typing import Any

import tlrt
from bench import core
from bench.measure import Subject, device_of, time_host, time_marks
from tlspec import registry


def with_tuples(size: dict[str, Any]) -> dict[str, Any]:
    """A size of a row as it was before it became JSON, which has lists in place of tuples."""
    return {k: tuple(v) if isinstance(v, list) else v for k, v in size.items()}


class Worker:
    """A device, and the call that `prepare` made last."""

    def __init__(self, device: str) -> None:
        self.device = device_of(device)
        self.call: Callable[[], Any] | None = None

    def describe(self) -> dict[str, str]:
        return {"device": self.device.describe(), "build": tlrt.build_info()}

    def prepare(self, op: str, which: str, size: dict[str, Any]) -> bool:
        """Makes the inputs and calls once; False where this checkout has no such operation."""
        self.call = None
        row = next((row for row in registry.ops() if row.name == op), None)
        if row is None:
            return False
        self.device.collect()
        self.call = Subject(row, with_tuples(size), which).ours(self.device)
        self.call()
        self.device.synchronize()
        return True

    def time(self, budget: float) -> float:
        """Milliseconds of a call, the median of samples."""
        assert self.call is not None, "nothing was prepared"
        if self.device.is_cuda:
            return time_marks(self.call, self.device.mark, lambda: self.device.elapsed(0, 1), budget).median
        return time_host(self.call, budget, pause=0.0).median

    def core(self) -> list[tuple[str, str, float]]:
        """The benchmark's rows of the core: name, size and milliseconds."""
        return [(row.op, row.size, row.ours_ms) for row in core.rows(self.device, None)]


def main() -> None:
    replies = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    worker = Worker(sys.argv[1])
    for line in sys.stdin:
        name, *arguments = json.loads(line)
        try:
            reply = {"result": getattr(worker, name)(*arguments)}
        except Exception as error:  # said in the row that cannot be timed
            reply = {"error": f"{type(error).__name__}: {error}"}
        print(json.dumps(reply), file=replies, flush=True)


if __name__ == "__main__":
    main()
