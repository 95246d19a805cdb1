"""What :mod:`bench.beside` runs in a process of each checkout: times calls of that checkout's own library.

The parent runs this file by its path with the other checkout's packages on PYTHONPATH, so only what every checkout since the
first evidence has is used here: `bench.core.rows`, `bench.measure` and the registry. Rows of models need `tlrt` alone: the parent
says which function is called with which arrays and numbers, whatever the checkout's registry holds. Requests and replies are
lines of JSON, on standard input and on the standard output that the process started with; whatever else is printed goes to
standard error.
"""

import json
import math
import os
import statistics
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

import tlrt
from bench import core
from bench.measure import Subject, device_of, time_host, time_marks
from tlrt import kernels
from tlspec import registry

#: milliseconds of a sample of calls, by whether it is a GPU, the most calls in one, and the most work before it that hides the
#: host's part
SPAN, MOST_CALLS, MOST_FILLS = {False: 5.0, True: 1.0}, 20, 40
#: rows and columns of the product that is this work
FILL = 2048


def with_tuples(size: dict[str, Any]) -> dict[str, Any]:
    """A size of a row as it was before it became JSON, which has lists in place of tuples."""
    return {k: tuple(v) if isinstance(v, list) else v for k, v in size.items()}


# ---- calls of models' rows ---------------------------------------------------------------------------------------------


def lay(plan: Mapping[str, Any], device: tlrt.Device) -> tuple[dict[str, Any], dict[str, np.ndarray]]:
    """The input buffers of a call, by their names in the row, and its indices on the host. `plan`: see
    :func:`bench.models.plan_of`. Numbers are normal and drawn on the device; indices are uniform."""
    buffers: dict[str, Any] = {}
    indices: dict[str, np.ndarray] = {}
    for key, (of, shape, limit) in enumerate(plan["arrays"].values()):
        n = math.prod(shape)
        if limit:
            indices[of] = np.random.default_rng(key).integers(0, limit, n, dtype=np.uint32)
            buffers[of] = device.indices(indices[of])
        else:
            buffers[of] = kernels.rand_normal(device, n, key)
    return buffers, indices


def bind(plan: Mapping[str, Any], buffers: Mapping[str, Any], device: tlrt.Device) -> Callable[[], Any]:
    """The call of a plan."""
    function = getattr(kernels, plan["name"])
    keywords = {**plan["values"], **{name: buffers[of] for name, (of, _, _) in plan["arrays"].items()}}
    if plan["want"] is not None:
        keywords["want"] = plan["want"]
    if plan["device"]:
        keywords[plan["device"]] = device
    return lambda: function(**keywords)


class Watch:
    """Times calls. On a GPU `mark` and `elapsed` are the stream's, and `fill` submits work that does not count: calls that are
    submitted while it runs are done one after the other, however long the host took."""

    def __init__(
        self, mark: Callable[[int], Any], elapsed: Callable[[], float], fill: Callable[[], Any] | None = None
    ) -> None:
        self.mark, self.elapsed, self.fill = mark, elapsed, fill
        self.fill_ms = 0.0
        if fill is not None:
            self.fill_ms = statistics.median([self.run(fill, 2, 0) for _ in range(5)])

    def run(self, call: Callable[[], Any], count: int, fills: int) -> float:
        """Milliseconds of one of several calls behind others' work."""
        for _ in range(fills):
            assert self.fill is not None
            self.fill()
        self.mark(0)
        for _ in range(count):
            call()
        self.mark(1)
        return self.elapsed() / count


def watch_of(device: tlrt.Device) -> Watch:
    """Of the library's calls on a device; on the CPU of any calls."""
    if device.is_cuda:
        n = FILL
        a, b, c = (tlrt.Buffer.zeros(n * n, device) for _ in range(3))
        return Watch(device.mark, lambda: device.elapsed(0, 1), lambda: kernels.matmul(a, b, n, n, n, out=c))
    times = [0.0, 0.0]

    def mark(i: int) -> None:
        times[i] = time.perf_counter()

    return Watch(mark, lambda: (times[1] - times[0]) * 1e3)


class Sided:
    """A call that takes turns with others: how many calls a sample has, and how much work comes before it."""

    def __init__(self, watch: Watch, call: Callable[[], Any], enter: Callable[[], Any] = lambda: None) -> None:
        self.watch, self.call, self.enter = watch, call, enter
        enter()
        call()
        start = time.perf_counter()
        watch.mark(0)
        call()
        watch.mark(1)
        host = (time.perf_counter() - start) * 1e3
        self.once = max(watch.elapsed(), 1e-3)
        self.count = max(1, min(MOST_CALLS, int(SPAN[watch.fill is not None] / self.once)))
        self.fills = 0
        if watch.fill is not None and host > self.once / 4:
            self.fills = min(math.ceil(1.5 * host * self.count / watch.fill_ms), MOST_FILLS)

    def sample(self) -> float:
        """Milliseconds of a call."""
        self.enter()
        if self.watch.fill is None:
            time.sleep(0.01)  # other libraries' threads, which spin after a call, go to sleep
            self.call()  # and wake the own ones
        return self.watch.run(self.call, self.count, self.fills)


def sides_of(call: Callable[[], Any], device: tlrt.Device, watch: Watch, modes: Sequence[str]) -> list[Sided]:
    """Our call in each mode."""
    return [Sided(watch, call, lambda mode=mode: device.set_math(mode)) for mode in modes]  # type: ignore[misc]


# ---- the process -------------------------------------------------------------------------------------------------------


class Worker:
    """A device, and the call that `prepare` made last."""

    def __init__(self, device: str) -> None:
        self.device = device_of(device)
        self.call: Callable[[], Any] | None = None
        self.watch: Watch | None = None
        self.sides: list[Sided] = []
        self.held = 0

    def describe(self) -> dict[str, str]:
        return {"device": self.device.describe(), "build": tlrt.build_info()}

    def prepare(self, op: str, which: str, size: dict[str, Any]) -> bool:
        """Makes the inputs and calls once; False where this checkout has no such operation."""
        self.call = None
        row = next((row for row in registry.operations() if row.name == op), None)
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

    def prepare_model(self, plan: dict[str, Any], modes: list[str]) -> float | None:
        """Makes the inputs of a model's row and calls in each mode; milliseconds of a call, None where this checkout has no such
        function."""
        self.sides = []
        if not hasattr(kernels, plan["name"]):
            return None
        self.watch = self.watch or watch_of(self.device)
        self.held += 4 * sum(math.prod(shape) for _, shape, _ in plan["arrays"].values())
        if self.held > 4e9:  # bytes of inputs
            self.device.collect()
            self.held = 0
        buffers, _ = lay(plan, self.device)
        self.sides = sides_of(bind(plan, buffers, self.device), self.device, self.watch, modes)
        return max(side.once for side in self.sides)

    def time_model(self) -> list[float]:
        """Milliseconds of a call in each mode."""
        return [side.sample() for side in self.sides]

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
