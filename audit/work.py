"""Work in parts: threads that take one part after the other, each with contexts of its own."""

import os
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from functools import partial
from typing import Any, TypeVar

from tlrt.verify.run import Runtime

T = TypeVar("T")


def run_in_threads(
    items: Sequence[T], workers: int, open_worker: Callable[[], AbstractContextManager[Callable[[T], None]]]
) -> None:
    """Does every item in threads, each with the function that an `open_worker` of its own gives. The first exception ends all
    threads and is raised here; at Ctrl-C they finish the items they have begun."""
    queue, lock = iter(items), threading.Lock()
    errors: list[BaseException] = []

    def work() -> None:
        try:
            with open_worker() as do:
                while not errors:
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
def one_thread_each() -> Iterator[None]:
    """Processes started within use one thread for NumPy's products: they are as many as there are processors."""
    names = ("OPENBLAS_NUM_THREADS", "OMP_NUM_THREADS", "MKL_NUM_THREADS")
    before = {n: os.environ.get(n) for n in names}
    os.environ.update(dict.fromkeys(names, "1"))
    try:
        yield
    finally:
        for n, value in before.items():
            if value is None:
                del os.environ[n]
            else:
                os.environ[n] = value


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
