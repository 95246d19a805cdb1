"""Faults: every allocation of a training run, and of a call of every entry point, fails in turn.

A build of the library with ``FAULTS=1`` (``tests/native/faults.h``) counts its allocations (pool growth, host memory, pages,
threads, FFT plans, device memory) and lets the ones chosen fail. A trial opens a device, makes a model and an optimiser and
trains for a few steps; allocation k fails, alone or with all that follow until the first exception. What fails must raise
OutOfMemoryError, leave no buffer behind, and succeed when tried again; in the end losses, parameters and optimiser are
those of the undisturbed run, bit for bit. Trials run from k = 1 until one makes fewer than k allocations. On the CPU each has
a process of its own, forked before the library has allocated anything; on a GPU they share one.

The calls of an entry point, with small arguments and with those next to the kernels' boundaries, are made with an empty pool.
From k = 1 on allocation k and those after it fail, until a call makes fewer than k; then once more, now that plans of transforms
are there, and with a call after each whose results must have the right bits.
"""

import ctypes
import gc
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from audit.build import make
from audit.environment import ROOT
from tlrt._terminal import Progress, format_table
from tlspec.drawn import EDGES, Case, build_case, data_classes, draw_case, generator
from tlspec.entries import Entry, all_entries

#: allocation k alone fails, or all from k on until the first exception; or all from k on in a call of an entry point
MODES = ("one", "all", "calls")
STEPS = 3
#: allocations of a call up to which all fail in turn
MANY = 40
#: what an entry point is called with: seed and size of a drawn case; those next to the kernels' boundaries reach the large paths
CASES = ((0, "small"), *((seed, EDGES) for seed in range(4)))
_LABELS = np.arange(3, dtype=np.uint32)
_LINE = {
    "batch": 2,
    "in_channels": 1,
    "out_channels": 1,
    "spatial": [70_001],
    "kernel": [3],
    "stride": [1],
    "padding": [0],
}
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
        from tlrt import Session
        from tlrt.context import Device

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
        from tlrt import optim

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
    from tlrt.errors import OutOfMemoryError

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


def _counters(device: Any) -> tuple[int, int]:
    """The live buffers of a device, and their bytes."""
    memory = device.memory()
    return memory.live_buffers, memory.live_bytes


def _live(program: _Program) -> tuple[int, int]:
    return (0, 0) if program.device is None else _counters(program.device)


def _new_row() -> dict[str, Any]:
    return {"trials": 0, "raised": 0, "absorbed": 0, "untouched": 0, "places": {}, "failures": []}


def _enter(row: dict[str, Any], raised: bool, failed: int, place: str) -> None:
    """Counts a trial, and the place of its failure."""
    what = "raised" if raised else "absorbed" if failed else "untouched"
    row["trials"] += 1
    row[what] += 1
    if failed:
        row["places"].setdefault(place, {"raised": 0, "absorbed": 0})[what] += 1


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
        _enter(self.row, raised, failed, place)
        return seen, failed

    def report(self, k: int, place: str, found: Sequence[str]) -> None:
        self.row["failures"] += [f"{self.entry.name} {k} at {place}: {f} ({self.case.line})" for f in found]

    def fail_in_turn(self) -> None:
        """From the first allocation to the last, first with nothing planned, then with a call after each; of many, which are
        those of the buffers of lists, the first and the last."""
        k = 1
        while k <= MANY and self.fail(k)[1]:
            k += 1
        right, (most, _) = self.results(), self.fail(0)
        for k in range(1, most + 1):
            if min(k - 1, most - k) < MANY // 2:
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
    """The trials of an entry point: how many, the "places" of the failures, "failures" in words."""
    row = _new_row()
    for case in _cases(entry):
        _Calls(device, entry, case, switch, row).fail_in_turn()
    return row


def _run_in_fork(switch: _Switch, work: Callable[[], dict[str, Any]]) -> dict[str, Any]:
    """What `work` returns, done in a child that starts with nothing allocated; "error" if it cannot be said."""
    with tempfile.TemporaryFile() as file:
        child = os.fork()
        if child == 0:
            try:
                text = json.dumps(work())
                switch.keep_counts()
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


def _run(device: str, switch: _Switch, work: Callable[[], dict[str, Any]]) -> dict[str, Any]:
    return work() if device.startswith("cuda") else _run_in_fork(switch, work)


def _explore(device: str, every: int, modes: Sequence[str], first: int = 1) -> dict[str, Any]:
    """The trials of a device in this process, whose library is the test build's: every `every`-th from the `first` on."""
    import tlrt._binding.library
    import tlrt.optim  # here, and not in every fork
    import tlrt.session
    import tlrt.verify.run

    tlrt._binding.library.load()
    gc.freeze()  # a collection in a child looks at what the trial made
    switch = _Switch()
    plain = _run(device, switch, lambda: trial(device, 0, "one", switch))
    out: dict[str, Any] = {
        "device": device,
        "points": plain.get("seen", 0),
        "every": every,
        "places": {},
        "failures": [],
    }
    for mode in modes if "result" in plain else ():
        row = _new_row()
        if mode == "calls":
            _explore_calls(device, switch, all_entries()[first - 1 :: every], row)
        else:
            _explore_run(device, switch, plain, mode, range(first, 2**32, every), row)
        for place, counts in row.pop("places").items():
            before = out["places"].setdefault(place, {"raised": 0, "absorbed": 0})
            out["places"][place] = {k: before[k] + counts[k] for k in before}
        out["failures"] += row.pop("failures")
        out[mode] = row
    if "result" not in plain:
        out["failures"] += [*plain.get("failures", []), plain.get("error", "the undisturbed run has no result")]
    return out


def _explore_calls(device: str, switch: _Switch, entries: Sequence[Entry], row: dict[str, Any]) -> None:
    """The calls of entry points, each of them in a process of its own on the CPU."""
    progress = Progress(float(len(entries)), "entry points")
    for entry in entries:
        got = _run(device, switch, lambda entry=entry: _try_calls(device, entry, switch))  # type: ignore[misc]
        row["failures"] += got.get("failures", [f"{entry.name}: {got.get('error', '')}"])
        for what in ("trials", "raised", "absorbed", "untouched"):
            row[what] += got.get(what, 0)
        for place, counts in got.get("places", {}).items():
            before = row["places"].setdefault(place, {"raised": 0, "absorbed": 0})
            row["places"][place] = {k: before[k] + counts[k] for k in before}
        progress.advance(1.0, entry.name)
    progress.close()


def _explore_run(
    device: str, switch: _Switch, plain: Mapping[str, Any], mode: str, points: range, row: dict[str, Any]
) -> None:
    """Training runs whose allocations `points` fail, up to one that makes fewer."""
    progress = Progress(float(len(range(points.start, plain["seen"] + 1, points.step))), "trials")
    for k in points:
        got = _run(device, switch, lambda k=k: trial(device, k, mode, switch))  # type: ignore[misc]
        place, found = got.get("place", ""), got.get("failures", []) + ([got["error"]] if "error" in got else [])
        _enter(row, bool(got.get("raised")), got.get("failed", 0), place)
        if "result" in got and got["result"] != plain["result"]:
            found.append("the run's result differs from the undisturbed one")
        row["failures"] += [f"{mode} {k} at {place}: {f}" for f in found]
        progress.advance(1.0, f"{mode} {k}")
        if (
            len(row["failures"]) > 40
            or (not got.get("failed") and k > plain["seen"])
            or k > plain["seen"] + points.step
        ):
            break
    progress.close()


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
