"""Faults: every allocation of a call of every entry point fails in turn.

A build of the library with ``FAULTS=1`` (``tests/native/faults.h``) counts its allocations (pool growth, host memory, pages,
threads, FFT plans, device memory) and lets the ones chosen fail. The calls of an entry point, with small arguments and with
those next to the kernels' boundaries, are made with an empty pool. From k = 1 on allocation k and those after it fail, until
a call makes fewer than k; then once more, now that plans of transforms are there, and with a call after each whose results
must have the right bits. A call that fails raises OutOfMemoryError and leaves the live counters where they were. On the CPU
each entry point has a process of its own, forked before the library has allocated anything; on a GPU they share one. Failing
allocations of training steps, captures and checkpoints are a kind of :mod:`audit.interrupts`.
"""

import ctypes
import gc
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from audit.build import make
from audit.environment import ROOT
from tlrt._terminal import Progress
from tlspec.drawn import EDGES, Case, build_case, data_classes, draw_case, generator
from tlspec.entries import Entry, all_entries

#: allocations of a call up to which all fail in turn
MAX_IN_TURN = 40
#: what an entry point is called with: seed and size of a drawn case; those next to the kernels' boundaries reach the large paths
CASES = ((0, "small"), *((seed, EDGES) for seed in range(4)))
_LABELS = np.arange(3, dtype=np.uint32)
_LINE = {"batch": 2, "in_channels": 1, "out_channels": 1, "spatial": [70_001], "kernel": [3], "stride": [1],
         "padding": [0]}  # fmt: skip
#: sizes and host arrays besides, where a kernel's scratch begins at sizes that are seldom drawn: rows cut into tasks, transforms
#: of long primes, axes that are exchanged
LARGE: dict[str, dict[str, Any]] = {
    "softmax": {"rows": 3, "cols": 70_001},
    "layer_norm": {"rows": 3, "cols": 70_001, "eps": 0.5},
    "cross_entropy": {"rows": 3, "cols": 70_001, "labels": _LABELS},
    "cross_entropy_rows": {
        "rows": 3, "cols": 70_001, "labels": _LABELS, "weights": np.ones(70_001, np.float32), "smoothing": 0.125,
    },
    "conv": _LINE,
    "conv_transpose": _LINE,
    "broadcast_to": {"in_dims": [3, 4, 5], "out_dims": [5, 2, 3, 4], "axis_map": [3, 0, 1, 2]},
    "reduce_from_broadcast": {"in_dims": [3, 4, 5], "out_dims": [5, 2, 3, 4], "axis_map": [3, 0, 1, 2]},
    "rfft1d_packed": {"batch": 1, "n": 20_011},
    "spectral_conv1d_rfft": {"grid": 20_011, "width": 2, "modes": 50},
}  # fmt: skip
#: what a trial's child says at most
_LIMIT = 4000


def build(cuda: bool = False) -> Path:
    """The library whose allocations fail on demand."""
    for words in ((), ("FAULTS=1",)):
        make("cuda" if cuda else "cpu", *words)
    return ROOT / "native" / "build" / ("faults-cuda" if cuda else "faults") / "libtorchlean_cuda.so"


class _Switch:
    """The switch of the test build, in the library that is loaded."""

    def __init__(self) -> None:
        from tlrt._binding.library import load

        library = ctypes.CDLL(str(load().path))
        self._set = library.torchlean_cuda_faults
        self._set.argtypes, self._set.restype = [ctypes.c_uint64, ctypes.c_uint64], None
        self._seen = library.torchlean_cuda_faults_seen
        self._failed = library.torchlean_cuda_faults_failed
        self._seen.restype = self._failed.restype = ctypes.c_uint64
        self._where = library.torchlean_cuda_faults_where
        self._where.argtypes, self._where.restype = [ctypes.POINTER(ctypes.c_int32)], ctypes.c_char_p

    def fail(self, k: int, mode: str) -> None:
        self._set(k, k if mode == "one" else 2**64 - 1)

    def stop(self) -> tuple[int, int, str]:
        """Nothing fails any more; allocations seen, failed, and the place of the last failure."""
        line = ctypes.c_int32()
        place = self._where(ctypes.byref(line)).decode()
        out = (int(self._seen()), int(self._failed()), f"{place}:{line.value}")
        self._set(0, 0)
        return out


def _counters(device: Any) -> tuple[int, int]:
    """The live buffers of a device, and their bytes."""
    memory = device.memory()
    return memory.live_buffers, memory.live_bytes


class _Calls:
    """The calls of an entry point with one case's arguments, whose allocations fail."""

    def __init__(self, device: str, entry: Entry, case: Case, switch: _Switch, row: dict[str, Any]) -> None:
        from tlrt.verify.run import Runtime

        self.entry, self.case, self.switch, self.row = entry, case, switch, row
        self.runtime = Runtime(device)
        self.arguments = self.runtime.place(self.case, entry.indexed)

    def results(self) -> list[bytes]:
        """The bytes of a call's results."""
        from tlrt.verify.run import content

        found = self.runtime.call(self.entry.name, self.arguments, self.case.values)
        several = found if isinstance(found, tuple) else (found,)
        hosts = (float, np.ndarray)
        return [(np.asarray(x) if isinstance(x, hosts) else content(x)).tobytes() for x in several if x is not None]

    def fail(self, k: int) -> tuple[int, int]:
        """Makes a call with an empty pool and allocations from the k-th on that fail; how many it made, and how many failed."""
        from tlrt.errors import OutOfMemoryError

        device, raised, found = self.runtime.device, False, []
        device.collect()
        before = _counters(device)
        self.switch.fail(k, "all")
        try:
            self.results()
        except OutOfMemoryError as error:
            raised = True
            if not str(error):
                found.append("an exception without a message")
            error.__traceback__ = None
        finally:
            seen, failed, place = self.switch.stop()
        gc.collect()
        if raised and not failed:
            found.append("raised though nothing was made to fail")
        if (after := _counters(device)) != before:
            found.append(f"{after} live (buffers, bytes) afterwards, {before} before")
        self.report(k, place, found)
        what = "raised" if raised else "absorbed" if failed else "untouched"
        self.row["trials"] += 1
        self.row[what] += 1
        if failed:
            self.row["places"][place] = self.row["places"].get(place, 0) + 1
        return seen, failed

    def report(self, k: int, place: str, found: Sequence[str]) -> None:
        self.row["failures"] += [f"{self.entry.name} {k} at {place}: {f} ({self.case.line})" for f in found]

    def fail_in_turn(self) -> None:
        """From the first allocation to the last, first with nothing planned, then with a call after each; of many, which are
        those of the buffers of lists, the first and the last."""
        k = 1
        while k <= MAX_IN_TURN and self.fail(k)[1]:
            k += 1
        right, (most, _) = self.results(), self.fail(0)
        for k in range(1, most + 1):
            if min(k - 1, most - k) < MAX_IN_TURN // 2:
                self.fail(k)
                if self.results() != right:
                    self.report(k, "the end", ["the call after it has another result"])


def _cases(entry: Entry) -> Iterator[Case]:
    which = "forward" if entry.kernel == entry.op.name else "vjp"
    for seed, size in CASES:
        yield draw_case(entry.op, seed, data_classes(entry.op, which)[0], size, which)
    if large := LARGE.get(entry.op.name):
        given = {n: x for n, x in large.items() if isinstance(x, np.ndarray)}
        values = {n: x for n, x in large.items() if n not in given}
        yield build_case(entry.op, values, given, generator("faults", entry.op.name), which=which)


def _try_calls(device: str, entry: Entry, switch: _Switch) -> dict[str, Any]:
    """The trials of an entry point: how many, how often an allocation of each place failed, "failures" in words."""
    row: dict[str, Any] = {"trials": 0, "raised": 0, "absorbed": 0, "untouched": 0, "places": {}, "failures": []}
    for case in _cases(entry):
        _Calls(device, entry, case, switch, row).fail_in_turn()
    return row


def _run_in_fork(work: Callable[[], dict[str, Any]]) -> dict[str, Any]:
    """What `work` returns, done in a child that starts with nothing allocated; "error" if it cannot be said."""
    with tempfile.TemporaryFile() as file:
        child = os.fork()
        if child == 0:
            try:
                text = json.dumps(work())
                os.write(file.fileno(), text.encode())
                os._exit(0)
            except BaseException as error:
                os.write(file.fileno(), json.dumps({"error": f"{type(error).__name__}: {error}"[:_LIMIT]}).encode())
                os._exit(1)
        status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
        file.seek(0)
        text = file.read().decode()
    found = dict(json.loads(text)) if text else {}
    if status or "error" in found:
        return {"error": f"the trial ended with status {status}: {found.get('error', '')}"}
    return found


def _explore(device: str, every: int) -> dict[str, Any]:
    """The trials of every `every`-th entry point in this process, whose library is the test build's."""
    import tlrt._binding.library
    import tlrt.verify.run  # here, and not in every fork

    tlrt._binding.library.load()
    gc.freeze()  # a collection in a child looks at what the trial made
    switch, entries = _Switch(), all_entries()[::every]
    calls: dict[str, Any] = {"trials": 0, "raised": 0, "absorbed": 0, "untouched": 0, "places": {}}
    failures: list[str] = []
    with Progress(float(len(entries)), "entry points") as progress:
        for entry in entries:
            if device.startswith("cuda"):
                got = _try_calls(device, entry, switch)
            else:
                got = _run_in_fork(lambda entry=entry: _try_calls(device, entry, switch))  # type: ignore[misc]
            failures += got.get("failures", [f"{entry.name}: {got.get('error', '')}"])
            for what in ("trials", "raised", "absorbed", "untouched"):
                calls[what] += got.get(what, 0)
            for place, count in got.get("places", {}).items():
                calls["places"][place] = calls["places"].get(place, 0) + count
            progress.advance(1.0, entry.name)
    return {"device": device, "calls": calls, "failures": failures}


def campaign(devices: Sequence[str] = ("cpu",), every: int = 1) -> dict[str, Any]:
    """Every `every`-th entry point on each device, and a GPU that is really full. Raises BuildError."""
    start, rows = time.monotonic(), []
    for device in devices:
        library = build(device.startswith("cuda"))
        words = [sys.executable, "-m", "audit.faults", device, str(every)]
        environment = {**os.environ, "TORCHLEAN_CUDA_LIBRARY": str(library), "TORCHLEAN_CPU_THREADS": "3"}
        done = subprocess.run(words, stdout=subprocess.PIPE, text=True, env=environment, cwd=ROOT, check=False)
        row = {"device": device, "calls": {"trials": 0}, "failures": [f"status {done.returncode}"]}
        if not done.returncode:
            row = json.loads(done.stdout)
        if device.startswith("cuda"):
            row["out_of_memory"] = full = out_of_memory(device)
            row["failures"] += full["failures"]
        rows.append(row)
    return {"devices": rows, "seconds": round(time.monotonic() - start, 1)}


def out_of_memory(device: str, cap: int = 0) -> dict[str, Any]:
    """A real shortage: a tensor larger than the device, or than `cap` bytes; then the device works as before."""
    from tlrt import kernels
    from tlrt.context import Device
    from tlrt.errors import OutOfMemoryError

    failures: list[str] = []
    with Device.new(device) as d:
        a = d.buffer(np.arange(1000))
        d.cap(cap)
        held: list[Any] = []
        try:
            for _ in range(64):
                held.append(d.empty(2**32 - 1))
            failures.append(f"{len(held)} tensors of 16 GiB fit")
        except OutOfMemoryError as error:
            text = str(error)
        count, memory = len(held), d.memory()
        del held
        gc.collect()
        d.collect()
        d.cap(0)
        if kernels.add(a, a).numpy()[999] != 1998:
            failures.append("the next call is wrong")
        if d.memory().live_buffers != 1:
            failures.append(f"{d.memory().live_buffers} live buffers, expected 1")
    return {"device": device, "held": count, "live_bytes": memory.live_bytes, "message": text, "failures": failures}


if __name__ == "__main__":  # what `campaign` starts, with the library whose allocations fail
    print(json.dumps(_explore(sys.argv[1], int(sys.argv[2]))))
