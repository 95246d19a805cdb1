"""``python -m audit exchange``: memory shared with NumPy, PyTorch, JAX and CuPy on every device.

For each library and device: whether an array and the buffer over it, and a buffer and the array over it, have one address, where
arrays of JAX, which is told of no write, are copied;
the buffers, bytes and resident memory that are left after many exchanges; microseconds of an exchange in each direction. The
exit status is 1 where memory was copied or kept.
"""

import argparse
import gc
import resource
import time
from collections.abc import Callable, Mapping, Sequence
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np

import tlrt
from audit.environment import describe_run
from tlrt._terminal import Progress, format_table
from tlrt.verify.documents import format_command, write_document
from tlrt.verify.run import device_names

#: exchanges of the count, those before it, numbers in an array, and KiB that a process may grow by
EXCHANGES, WARM, SIZE, GROWTH = 10_000, 500, 5000, 8 << 10
HEAD = ("library", "device", "one address", "exchanges", "buffers left", "bytes left", "KiB grown", "in, us", "out, us")


class Library:
    """Another library's arrays on a device. `version` is the library's. Raises :class:`Missing` where it has no such device."""

    #: the module that has it
    module = ""
    #: whether its arrays may be written to, so that buffers share their memory
    is_mutable = True

    def __init__(self, device: str) -> None:
        if find_spec(self.module) is None:
            raise Missing(f"{self.module} is not installed")
        self.package = import_module(self.module)
        self.version: str = self.package.__version__
        self.device = device.partition(":")[0]
        if not self.present():
            raise Missing(f"{self.module} has no {self.device}")

    def present(self) -> bool:
        """Whether the library works on the device."""
        raise NotImplementedError

    def array(self, x: np.ndarray) -> Any:
        """An array of the library's own with these numbers."""
        raise NotImplementedError

    def view(self, buffer: Any) -> Any:
        """The library's array over a buffer's memory."""
        return self.package.from_dlpack(buffer)

    def numpy(self, x: Any) -> np.ndarray:
        """The numbers of an array of the library's."""
        return np.asarray(x)

    def address(self, x: Any) -> int:
        """Where an array of the library's begins."""
        raise NotImplementedError


class Missing(Exception):
    """A library is not here, or not for the device."""


class NumPy(Library):
    module = "numpy"

    def present(self) -> bool:
        return self.device == "cpu"

    def array(self, x: np.ndarray) -> np.ndarray:
        return aligned(x)

    def address(self, x: np.ndarray) -> int:
        return x.ctypes.data


class Torch(Library):
    module = "torch"

    def present(self) -> bool:
        return self.device == "cpu" or bool(self.package.cuda.is_available())

    def array(self, x: np.ndarray) -> Any:
        return self.package.tensor(x, device=self.device)

    def numpy(self, x: Any) -> np.ndarray:
        return np.asarray(x.cpu())

    def address(self, x: Any) -> int:
        return int(x.data_ptr())


class Jax(Library):
    module = "jax"
    is_mutable = False

    def present(self) -> bool:
        return any(d.platform == ("cpu" if self.device == "cpu" else "gpu") for d in self.package.devices())

    def array(self, x: np.ndarray) -> Any:
        return self.package.device_put(x, self.package.devices("cpu" if self.device == "cpu" else "gpu")[0])

    def view(self, buffer: Any) -> Any:
        return self.package.numpy.from_dlpack(buffer)

    def address(self, x: Any) -> int:
        return int(x.unsafe_buffer_pointer())


class CuPy(Library):
    module = "cupy"

    def present(self) -> bool:
        return self.device == "cuda"

    def array(self, x: np.ndarray) -> Any:
        return self.package.array(x)

    def numpy(self, x: Any) -> np.ndarray:
        return np.asarray(x.get())

    def address(self, x: Any) -> int:
        return int(x.data.ptr)


LIBRARIES: Mapping[str, type[Library]] = {"NumPy": NumPy, "PyTorch": Torch, "JAX": Jax, "CuPy": CuPy}


def aligned(x: np.ndarray) -> np.ndarray:
    """A copy of an array that begins at a multiple of 64 bytes."""
    raw = np.empty(x.nbytes + 64, np.uint8)
    made = raw[(start := -raw.ctypes.data % 64) : start + x.nbytes].view(x.dtype).reshape(x.shape)
    made[...] = x
    return made


def same_memory(library: Library, device: str) -> bool:
    """Whether both directions keep the address, where arrays may be written to, and both sides read the same numbers."""
    d, numbers = tlrt.device(device), np.arange(SIZE, dtype=np.float32)
    x = library.array(numbers)
    buffer = tlrt.from_dlpack(x)
    own = d.buffer(numbers)
    view = library.view(own)
    again = tlrt.from_dlpack(view)  # of one that is shared one storage, counted once more
    is_shared = library.address(library.view(buffer)) == library.address(x), again.references == own.references
    there = own.references >= 2 and library.address(view) == library.address(library.view(own))
    return (
        there and is_shared == (library.is_mutable, library.is_mutable) and np.array_equal(buffer.numpy(), numbers)
        and np.array_equal(library.numpy(view), numbers)
    )  # fmt: skip


def leak(library: Library, device: str, times: int = EXCHANGES) -> dict[str, int]:
    """Buffers and bytes of the device, and KiB of the process, that exchanges leave behind."""
    d, numbers = tlrt.device(device), np.ones(SIZE, np.float32)

    def exchange(count: int) -> None:
        for _ in range(count):
            buffer = tlrt.from_dlpack(library.array(numbers))
            view = library.view(buffer)
            del buffer, view
        d.synchronize()

    exchange(WARM)
    gc.collect()
    before, resident = d.memory(), resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    exchange(times)
    gc.collect()
    after = d.memory()
    return {
        "exchanges": times, "buffers_left": after.live_buffers - before.live_buffers,
        "bytes_left": after.live_bytes - before.live_bytes,
        "grown_kib": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - resident,
    }  # fmt: skip


def _microseconds(call: Callable[[], Any], times: int = 2000) -> float:
    start = time.perf_counter()
    for _ in range(times):
        call()
    return (time.perf_counter() - start) / times * 1e6


def measure(name: str, device: str, times: int = EXCHANGES) -> dict[str, Any]:
    """A row of the evidence. Raises :class:`Missing`."""
    library = LIBRARIES[name](device)
    x, own = library.array(np.ones(SIZE, np.float32)), tlrt.device(device).full(SIZE, 1.0)
    row = {"library": name, "version": library.version, "device": device, "shared": same_memory(library, device)}
    row |= leak(library, device, times)
    row |= {"in_us": _microseconds(lambda: tlrt.from_dlpack(x)), "out_us": _microseconds(lambda: library.view(own))}
    return row


def failed(row: Mapping[str, Any]) -> bool:
    """Whether memory was copied, or kept."""
    return not row["shared"] or row["buffers_left"] != 0 or row["bytes_left"] != 0 or row["grown_kib"] >= GROWTH


def main(argv: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(
        prog="python -m audit exchange", description=(__doc__ or "").split("\n\n")[0].strip()
    )
    parser.add_argument("--devices", metavar="NAMES", help="cpu, cuda, cuda:1 (default: all present)")
    parser.add_argument("--exchanges", type=int, default=EXCHANGES, metavar="N", help=f"default {EXCHANGES}")
    parser.add_argument("--json", type=Path, metavar="FILE")
    parser.add_argument("--commit", help="the commit to record")
    args = parser.parse_args(argv)
    devices = args.devices.split(",") if args.devices else device_names()
    rows, left = [], []
    progress = Progress(len(LIBRARIES) * len(devices), "libraries")
    for device in devices:
        for name in LIBRARIES:
            try:
                rows.append(measure(name, device, args.exchanges))
            except Missing as e:
                left.append({"library": name, "device": device, "why": str(e)})
            progress.advance(1, f"{name} on {device}")
    progress.close()
    print(format_table(HEAD, [
        (r["library"], r["device"], "yes" if r["shared"] else "NO", r["exchanges"], r["buffers_left"], r["bytes_left"],
         r["grown_kib"], f"{r['in_us']:.1f}", f"{r['out_us']:.1f}") for r in rows
    ]))  # fmt: skip
    for why in sorted({r["why"] for r in left}):
        print(f"left out: {why}")
    if args.json is not None:
        document = {
            "command": format_command(["python", "-m", "audit", "exchange", *argv]), **describe_run(devices), "rows": rows,
            "left_out": left,
        }  # fmt: skip
        write_document(args.json, {"commit": args.commit, **document} if args.commit else document)
    return int(any(map(failed, rows)))
