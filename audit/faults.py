"""Faults: every allocation of a training run fails in turn.

A build of the library with ``FAULTS=1`` (``tests/native/faults.h``) counts its allocations (pool growth, host memory, pages,
threads, FFT plans, device memory) and lets the ones chosen fail. A trial opens a device, makes a model and an optimiser and
trains for a few steps; allocation k fails, alone or with all that follow until the first exception. What fails must raise
OutOfMemoryError, leave no buffer behind, and succeed when tried again; in the end losses, parameters and optimiser are
those of the undisturbed run, bit for bit. Trials run from k = 1 until one makes fewer than k allocations. On the CPU each has
a process of its own, forked before the library has allocated anything; on a GPU they share one.
"""

import ctypes
import gc
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from audit.build import make
from audit.environment import ROOT
from tlrt import Session, optim
from tlrt._binding.library import load
from tlrt._terminal import Progress, format_table
from tlrt.context import Device
from tlrt.errors import OutOfMemoryError
from tlspec import registry

#: allocation k alone fails, or all from k on until the first exception
MODES = ("one", "all")
STEPS = 3
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
        library = ctypes.CDLL(str(load().path))
        self._set = library.torchlean_cuda_faults
        self._set.argtypes, self._set.restype = [ctypes.c_uint64, ctypes.c_uint64], None
        self._seen = library.torchlean_cuda_faults_seen
        self._failed = library.torchlean_cuda_faults_failed
        self._seen.restype = self._failed.restype = ctypes.c_uint64
        self._where = library.torchlean_cuda_faults_where
        self._where.argtypes, self._where.restype = [ctypes.POINTER(ctypes.c_int32)], ctypes.c_char_p
        #: keeps what gcov counts in a trial's process; a build that does not count has nothing to keep
        self.keep_counts: Callable[[], Any] = getattr(library, "torchlean_cuda_faults_counted", int)

    def fail(self, k: int, mode: str) -> None:
        self._set(k, k if mode == "one" else 2**64 - 1)

    def stop(self) -> tuple[int, int, str]:
        """Nothing fails any more; allocations seen, failed, and the place of the last failure."""
        line = ctypes.c_int32()
        place = self._where(ctypes.byref(line)).decode()
        out = (int(self._seen()), int(self._failed()), f"{place}:{line.value}")
        self._set(0, 0)
        return out


class _Program:
    """A training run cut into parts that may be tried again: what a user would write, with every family that allocates."""

    def __init__(self, device: str) -> None:
        self.name = device
        self.device: Any = None
        self.session: Any = None
        self.parameters: dict[str, Any] = {}
        self.optimizer: Any = None
        self.losses: list[float] = []

    def open(self) -> None:
        if self.device is None:
            self.device = Device.new(self.name)
        self.session = Session(self.device, seed=5)

    def build(self) -> None:
        """Parameters on the device: those of a convolution, attention, a spectral convolution, and layers between."""
        rng = np.random.default_rng(0)
        shapes = {"conv.w": (4, 2, 3, 3), "conv.b": (4,), "query": (12, 12), "key": (12, 12), "spectral.re": (5, 4, 4),
                  "spectral.im": (5, 4, 4), "out.w": (7, 52), "out.b": (7,), "gamma": (4,), "beta": (4,)}  # fmt: skip
        for name, shape in shapes.items():
            if name not in self.parameters:
                made = self.session.param(rng.standard_normal(shape) * 0.3, name)
                self.parameters[name] = made
            else:
                rng.standard_normal(shape)
        for p in self.parameters.values():
            _ = p.mirror

    def prepare(self) -> None:
        self.optimizer = optim.AdamW(list(self.parameters.values()), lr=0.01)

    def gradients(self) -> None:
        """Forward and backward, or nothing of either."""
        s, p = self.session, self.parameters
        counter = s.counter
        try:
            x = s.const(np.random.default_rng(len(self.losses)).standard_normal((2, 15, 6)))
            image = s.tanh(s.conv2d(p["conv.w"], p["conv.b"], x))  # (4, 13, 4)
            rows = s.reshape(image, (4, 52))
            normed = s.batchnorm_channel_first(s.reshape(rows, (4, 13, 4)), p["gamma"], p["beta"])
            grid = s.transpose2d(s.reshape(s.reduce_mean(normed, 2), (4, 13)))  # (13, 4)
            mixed = s.gelu(s.spectral_conv1d_rfft(grid, p["spectral.re"], p["spectral.im"]))
            tokens = s.reshape(s.slice_range0(mixed, 0, 12), (4, 12))
            attended = s.flash_attention(
                s.reshape(s.matmul(tokens, p["query"]), (1, 4, 12)),
                s.reshape(s.matmul(tokens, p["key"]), (1, 4, 12)),
                s.reshape(tokens, (1, 4, 12)),
            )
            kept = s.dropout(s.reshape(attended, (48,)), 0.25)
            joined = s.concat1d(kept, s.reshape(s.slice_range0(mixed, 12, 1), (4,)))
            wide = s.broadcast_to(s.reshape(joined, (1, 52)), (3, 52))
            logits = s.linear(p["out.w"], p["out.b"], s.softmax(wide))
            loss = s.cross_entropy(logits, np.array([0, 3, 6]))
            # large enough for pages of its own and for the other threads; a long prime, whose transform plans the most
            large = s.reduce_mean(s.square(s.broadcast_to(s.reshape(joined, (52, 1)), (52, 21_000))))
            signal = s.rfft1d_packed(s.broadcast_to(large, (1, 2003)))
            loss = s.add(loss, s.scale(s.reduce_mean(s.square(signal)), 1e-3))
            s.backward(loss)
            self.losses.append(loss.item())
        except BaseException:
            s.reset()
            s.counter = counter
            raise

    def update(self) -> None:
        self.session.clip_grad_norm(1.0)
        self.optimizer.step()

    def forget(self) -> None:
        self.session.reset()

    def result(self) -> list[Any]:
        arrays = [p.value for p in self.parameters.values()] + list(self.optimizer.state()[1].values())
        return [self.losses, [np.ascontiguousarray(a).tobytes().hex() for a in arrays]]


def _parts(program: _Program) -> list[tuple[str, Callable[[], None], bool]]:
    """The parts of a trial, in order; whether what a failing one made must be gone at once."""
    step: list[tuple[str, Callable[[], None], bool]] = [
        ("gradients", program.gradients, True), ("step", program.update, False), ("reset", program.forget, False),
    ]  # fmt: skip
    return [("open", program.open, False), ("build", program.build, False), ("prepare", program.prepare, True),
            *step * STEPS]  # fmt: skip


def trial(device: str, k: int, mode: str, switch: _Switch | None = None) -> dict[str, Any]:
    """One trial; "seen" allocations, "place" of the failure, "raised" by which part, "failures" in words, "result"."""
    switch = switch or _Switch()
    program = _Program(device)
    out: dict[str, Any] = {"k": k, "mode": mode, "raised": [], "failures": [], "place": ""}
    out |= {"seen": 0, "failed": 0}

    def stop() -> int:
        """Lets everything succeed again; how many allocations had failed."""
        seen, failed, place = switch.stop()
        out["seen"] += seen
        out["failed"] += failed
        out["place"] = place if failed else out["place"]
        return failed

    switch.fail(k, mode)
    for part, run, clean in _parts(program):
        before = _live(program)
        for again in range(3):
            try:
                run()
                break
            except OutOfMemoryError as error:
                planted = stop()
                out["raised"].append(part)
                if not str(error):
                    out["failures"].append(f"{part}: an exception without a message")
                if again or not planted:
                    out["failures"].append(f"{part}: raised though nothing was made to fail: {error}")
                error.__traceback__ = None
            except BaseException as error:
                stop()
                out["failures"].append(f"{part}: {type(error).__name__}: {str(error)[:300]}")
                return out
            gc.collect()
            if clean and _live(program) != before:
                out["failures"].append(f"{part}: {_live(program)} live (buffers, bytes) afterwards, {before} before")
    stop()
    out["result"] = program.result()
    program.optimizer.close()
    program.session.close()
    del program.optimizer, program.parameters, program.session
    gc.collect()
    memory = program.device.memory()
    if memory.live_buffers or memory.live_bytes:
        out["failures"].append(f"at the end {memory.live_buffers} buffers and {memory.live_bytes} bytes are live")
    program.device.close()
    return out


def _live(program: _Program) -> tuple[int, int]:
    if program.device is None:
        return (0, 0)
    memory = program.device.memory()
    return memory.live_buffers, memory.live_bytes


def _run_in_fork(device: str, k: int, mode: str, switch: _Switch) -> dict[str, Any]:
    """A trial in a child that starts with nothing allocated."""
    with tempfile.TemporaryFile() as file:
        child = os.fork()
        if child == 0:
            try:
                text = json.dumps(trial(device, k, mode, switch))
                switch.keep_counts()
                os.write(file.fileno(), text.encode())
                os._exit(0)
            except BaseException as error:
                os.write(file.fileno(), json.dumps({"error": f"{type(error).__name__}: {error}"[:_LIMIT]}).encode())
                os._exit(1)
        status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
        file.seek(0)
        text = file.read().decode()
    found = json.loads(text) if text else {}
    if status or "error" in found:
        return {"k": k, "mode": mode, "raised": [], "seen": 0, "failed": 0, "place": "",
                "failures": [f"the trial ended with status {status}: {found.get('error', '')}"]}  # fmt: skip
    return dict(found)


def _explore(device: str, every: int, modes: Sequence[str], first: int = 1) -> dict[str, Any]:
    """The trials of a device in this process, whose library is the test build's: every `every`-th from the `first` on."""
    from tlrt import kernels  # noqa: F401: what every trial loads and imports

    registry.ops()
    gc.freeze()
    switch = _Switch()
    run = trial if device.startswith("cuda") else _run_in_fork
    plain = run(device, 0, "one", switch)
    points = plain["seen"]
    out: dict[str, Any] = {
        "device": device, "points": points, "every": every, "places": {}, "failures": list(plain["failures"]),
    }  # fmt: skip
    if "result" not in plain:
        return out
    progress = Progress(float(len(modes) * len(range(first, points + 1, every))), "trials")
    for mode in modes:
        row = {"trials": 0, "raised": 0, "absorbed": 0, "untouched": 0}
        k = first
        while k <= points + every:
            got = run(device, k, mode, switch)
            row["trials"] += 1
            row["raised" if got["raised"] else "absorbed" if got["failed"] else "untouched"] += 1
            if got["failed"]:
                place = out["places"].setdefault(got["place"], {"raised": 0, "absorbed": 0})
                place["raised" if got["raised"] else "absorbed"] += 1
            found = list(got["failures"])
            if "result" in got and got["result"] != plain["result"]:
                found.append("the run's result differs from the undisturbed one")
            out["failures"] += [f"{mode} {k} at {got['place']}: {f}" for f in found]
            progress.advance(1.0, f"{mode} {k}")
            k += every
            if len(out["failures"]) > 40 or (not got["failed"] and k > points):
                break
        out[mode] = row
    progress.close()
    return out


def campaign(devices: Sequence[str] = ("cpu",), every: int = 1, modes: Sequence[str] = MODES) -> dict[str, Any]:
    """Every `every`-th allocation of the training run on each device. Raises BuildError where nothing can be built."""
    start, rows = time.monotonic(), []
    for device in devices:
        library = build(device.startswith("cuda"))
        words = [sys.executable, "-m", "audit.faults", device, str(every), *modes]
        environment = {**os.environ, "TORCHLEAN_CUDA_LIBRARY": str(library), "TORCHLEAN_CPU_THREADS": "3"}
        done = subprocess.run(words, stdout=subprocess.PIPE, text=True, env=environment, cwd=ROOT, check=False)
        if done.returncode:
            rows.append({"device": device, "points": 0, "places": {}, "failures": [f"status {done.returncode}"]})
        else:
            rows.append(json.loads(done.stdout))
    return {"devices": rows, "seconds": round(time.monotonic() - start, 1)}


def use_up(document: Mapping[str, Any]) -> None:
    """Adds to a campaign's document what happens when each of its GPUs is really full: not beside other work on it."""
    for row in document["devices"]:
        if row["device"].startswith("cuda"):
            row["out_of_memory"] = real = out_of_memory(row["device"])
            row["failures"] += real["failures"]


def out_of_memory(device: str, cap: int = 0) -> dict[str, Any]:
    """A real shortage: a tensor larger than the device, or than `cap` bytes; then the device works as before."""
    from tlrt import kernels  # which loads the library

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


def ok(document: Mapping[str, Any]) -> bool:
    """Whether nothing failed."""
    return all(not row["failures"] and row["points"] > 0 for row in document["devices"])


def table(document: Mapping[str, Any]) -> str:
    """One line per device and mode, then one per place that was made to fail."""
    rows = [
        (r["device"], r["points"], m, *(r[m][c] for c in ("trials", "raised", "absorbed", "untouched")))
        for r in document["devices"]
        for m in MODES
        if m in r
    ]
    text = format_table(("device", "allocations", "failing", "trials", "raised", "absorbed", "untouched"), rows)
    places = [
        (r["device"], p, n["raised"], n["absorbed"])
        for r in document["devices"]
        for p, n in sorted(r["places"].items())
    ]
    text += "\n\n" + format_table(("device", "place", "raised", "absorbed"), places)
    for r in document["devices"]:
        if real := r.get("out_of_memory"):
            text += f"\n{r['device']}: really full with {real['held']} tensors of 16 GiB: {real['message']}"
        text += "".join(f"\nFAIL {r['device']}: {f}" for f in r["failures"])
    return text


if __name__ == "__main__":  # what `campaign` starts, with the library whose allocations fail
    step, _, begin = sys.argv[2].partition("+")
    print(json.dumps(_explore(sys.argv[1], int(step), sys.argv[3:], int(begin or 1))))
