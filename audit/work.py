"""Work in parts: threads that take one part after the other, each with contexts of its own."""

import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from functools import partial
from typing import Any, TypeVar

from tlrt._terminal import Progress
from tlrt.verify.run import Runtime, cpu_settings

T = TypeVar("T")


def run_in_threads(
    items: Sequence[T], workers: int, open_worker: Callable[[], AbstractContextManager[Callable[[T], None]]],
    budget: float | None = None,
) -> None:  # fmt: skip
    """Does every item in threads, each with the function that an `open_worker` of its own gives, until the budget in seconds is
    spent. The first exception ends all threads and is raised here; at Ctrl-C they finish the items they have begun."""
    queue, lock, start = iter(items), threading.Lock(), time.monotonic()
    errors: list[BaseException] = []

    def work() -> None:
        try:
            with open_worker() as do:
                while not errors and (budget is None or time.monotonic() - start < budget):
                    with lock:
                        item = next(queue, None)
                    if item is None:
                        break
                    do(item)
        except BaseException as error:  # raised by the caller's thread
            errors.append(error)

    threads = [threading.Thread(target=work) for _ in range(min(workers, len(items)))]
    for t in threads:
        t.start()
    try:
        for t in threads:
            t.join()
    except BaseException as stopped:
        errors.insert(0, stopped)
        for t in threads:
            t.join()
    if errors:
        raise errors[0]


@contextmanager
def open_runtimes(devices: Sequence[str], kernels: Any = None) -> Iterator[list[Runtime]]:
    """A runtime for every device, on a context that nothing else uses."""
    import tlrt

    with ExitStack() as stack:
        contexts = [stack.enter_context(tlrt.Device.new(d)) for d in devices]
        runtimes = [Runtime(c.name, kernels, partial(tlrt.Buffer.from_numpy, device=c)) for c in contexts]
        for runtime, context in zip(runtimes, contexts, strict=True):
            runtime.device = context
        yield runtimes


def walk(
    chunks: Sequence[T], open_worker: Callable[[], AbstractContextManager[Callable[[T], str]]],
    size: Callable[[T], int], unit: str, *, workers: int, budget: float | None = None, done: int = 0,
) -> None:  # fmt: skip
    """Does every chunk of a walk over inputs, with a progress bar that counts inputs. Chunks are the parallel work, so a call on
    the CPU has one thread. A worker's function gives a word about its chunk; `done` inputs are of an earlier run."""
    with Progress(float(sum(map(size, chunks)) + done), unit, done=float(done)) as progress, cpu_settings(threads=1):

        @contextmanager
        def open_counted() -> Iterator[Callable[[T], None]]:
            with open_worker() as do:
                yield lambda chunk: progress.advance(note=do(chunk), amount=float(size(chunk)))

        run_in_threads(chunks, workers, open_counted, budget)
