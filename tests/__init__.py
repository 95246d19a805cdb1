"""The test suite: a folder for each package, and ``repo`` for what must hold of the tree. Here is what several folders use."""

import gc
import os
import re
import sys
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import tlrt
from tlrt._binding.library import load
from tlrt.errors import LibraryNotFoundError, StaleLibraryError
from tlrt.kernels import permute, scale
from tlspec.declarations import declarations
from tlspec.registry import Op

#: the repository's root
ROOT = Path(__file__).resolve().parents[1]
#: the C headers with declarations
HEADERS = [ROOT / "native/include" / name for name in ("torchlean_cuda.h", "torchlean_cuda_ops.h")]


def has_cuda() -> bool:
    """Whether this machine has a CUDA device; False without a library, which each test that needs it then says."""
    try:
        return len(tlrt.devices()) > 1
    except (LibraryNotFoundError, StaleLibraryError):
        return False


#: the devices of a parametrised test; where there is no GPU, a test that is marked `cuda` itself is skipped
DEVICES: list[Any] = ["cpu", *([pytest.param("cuda", marks=pytest.mark.cuda)] if has_cuda() else [])]


def python_path(folder: str | Path = ROOT) -> str:
    """PYTHONPATH of a program that imports from a folder first, and then from where this one does."""
    return os.pathsep.join(filter(None, (str(folder), os.environ.get("PYTHONPATH"))))


def declared_functions() -> list[str]:
    """The names of the functions that the library's headers declare."""
    return re.findall(r"\b(torchlean_cuda_\w+)\(", declarations("".join(h.read_text() for h in HEADERS)))


def path_seeds(row: Op, device: Any) -> range:
    """The seeds of a row's paths, which are those of a GPU's kernels: all on a GPU, every third on the CPU."""
    return range(0, len(row.drawing.paths), 1 if device.is_cuda else 3)


@contextmanager
def unchanged_memory(device: Any) -> Iterator[None]:
    """Demands as many live buffers and bytes at the end as at the beginning."""
    before = device.memory()
    yield
    after = device.memory()
    assert (after.live_bytes, after.live_buffers) == (before.live_bytes, before.live_buffers)


@contextmanager
def no_collection() -> Iterator[None]:
    """The garbage collector does not run within."""
    gc.disable()
    try:
        yield
    finally:
        gc.enable()


@contextmanager
def frequent_switches() -> Iterator[None]:
    """Threads take turns every microsecond."""
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    try:
        yield
    finally:
        sys.setswitchinterval(before)


def run_in_thread(work: Callable[[], Any]) -> Any:
    """The result of `work` in a thread of its own, or the exception that it raises there."""
    with ThreadPoolExecutor(1) as pool:
        return pool.submit(work).result()


def slightly_wrong(kernel: Callable[..., Any]) -> Callable[..., Any]:
    """A kernel whose results are off by a relative 2^-17."""

    def wrong(*arguments: Any, **options: Any) -> Any:
        made = kernel(*arguments, **options)
        for buffer in made if isinstance(made, tuple) else (made,):
            if buffer is not None:
                scale(buffer, 1 + 2.0**-17, out=buffer)
        return made

    return wrong


def into(out: Any, values: np.ndarray, device: tlrt.Device) -> Any:
    """A buffer of these numbers, or of these indices where they are uint32: the one given, or a new one."""
    if values.dtype != np.uint32:
        made = device.buffer(values)
        return made if out is None else permute(made, [len(made)], [0], out=out)
    if out is None:
        return device.indices(values)
    library = load()
    slot = library.ffi.new("torchlean_buffer **", out._handle)
    data = library.ffi.from_buffer("uint32_t[]", np.ascontiguousarray(values))
    assert library.lib.torchlean_cuda_index_upload(device._handle, data, values.size, slot) == 0
    return out


def exit_status(main: Callable[[list[str]], Any], words: list[str]) -> object:
    """The status with which a command line that is refused ends the program."""
    with pytest.raises(SystemExit) as stopped:
        main(words)
    return stopped.value.code
