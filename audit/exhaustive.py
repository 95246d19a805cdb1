"""Every function of one argument on all 2^32 float32 inputs, on every device.

The results come from the library as anyone calls it; the checker (``native/tools``) makes the inputs and decides what the
correctly rounded result is: in double, and in quadruple precision where the double value lies within 2^-42 of a midpoint.
Gradients are walked with g = 1; those that read the output take it as their argument, in the function's range; of those of a
quotient, the one with respect to the divisor is walked. Inputs are numbered by bit pattern; sample s is pattern s·stride. A
chunk is 2^24 samples, done by one thread on every device. The 64-bit hash of every block of 2^20 results lets runs on
different machines be compared.
"""

import hashlib
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np

from audit.checker import Checker, checker, float_text
from audit.environment import processors
from audit.work import open_runtimes, run_in_threads
from tlrt._terminal import Progress
from tlrt.verify.run import Runtime, cpu_settings
from tlspec import registry
from tlspec.registry import Op

CHUNK, BLOCK = 2**24, 2**20
#: values of parameters, as ``native/tools/rounding.h`` has them
PARAMETERS: Mapping[str, Mapping[str, float]] = {
    "scale": {"c": 0.7}, "clamp": {"lo": -0.75, "hi": 1.5}, "safe_log": {"eps": 1e-6},
    "leaky_relu": {"slope": 0.01}, "elu": {"alpha": 1.6732632}, "pow_scalar": {"p": 2.5},
}  # fmt: skip
#: operations of two arguments whose gradient with respect to the second is walked: both arguments, and the first's value
SECOND: Mapping[str, tuple[str, str, float]] = {"div": ("a", "b", 1536.0)}
#: the range of an output that a gradient reads
RANGES = {"sigmoid_bwd": (0.0, 1.0), "tanh_bwd": (-1.0, 1.0)}
#: inputs of the special-value table, by bit pattern
SPECIAL = {
    "NaN": 0x7FC00000, "-NaN": 0xFFC00000, "signalling NaN": 0x7F800001, "inf": 0x7F800000, "-inf": 0xFF800000,
    "0": 0x00000000, "-0": 0x80000000, "smallest subnormal": 0x00000001, "-smallest subnormal": 0x80000001,
    "largest subnormal": 0x007FFFFF, "-largest subnormal": 0x807FFFFF, "smallest normal": 0x00800000,
    "-smallest normal": 0x80800000, "1": 0x3F800000, "-1": 0xBF800000, "largest": 0x7F7FFFFF, "-largest": 0xFF7FFFFF,
}  # fmt: skip


@dataclass(frozen=True)
class Entry:
    """An entry point that is a function of one float32."""

    name: str
    op: Op
    which: str
    #: name of the argument walked, what the other arguments are filled with, and the parameters
    argument: str
    filled: Mapping[str, float]
    values: Mapping[str, float]
    #: distance from the correctly rounded result that the row's bound allows
    limit: int
    #: which outputs are computed, where there are several
    want: tuple[bool, ...] | None = None


def _limit(text: str) -> int | None:
    if text == "exact":
        return 0
    found = re.match(r"(\d+) ulp", text)
    return int(found[1]) if found else None


def entries(names: str | None = None, gradients: bool = True) -> list[Entry]:
    """The functions of one argument among the rows named: forward functions first, then gradients (see SECOND)."""
    forward: list[Entry] = []
    backward: list[Entry] = []
    for op in registry.ops(names):
        sig, rule = op.signature, op.vjp_rule
        if op.name in SECOND and rule is not None and gradients:
            first, second, value = SECOND[op.name]
            limit = _limit(rule.bound.text.split(" / ")[1])
            assert limit is not None
            given = {first: value, "g": 1.0}
            backward.append(Entry(f"{op.name}_bwd", op, "vjp", second, given, {}, limit, (False, True)))
        if not sig.elementwise or len(sig.inputs) != 1 or any(p.kind != "float" for p in sig.params):
            continue
        values = PARAMETERS.get(op.name, {})
        limit = _limit(op.bound.text)
        if limit is not None:
            forward.append(Entry(op.name, op, "forward", sig.inputs[0].name, {}, values, limit))
        if rule is None or rule.via is not None or not gradients:
            continue
        limit, others = _limit(rule.bound.text), [r for r in rule.reads if r != "g"]
        if limit is not None and len(others) == 1:
            backward.append(Entry(f"{op.name}_bwd", op, "vjp", others[0], {"g": 1.0}, values, limit))
    return forward + backward


class _Worker:
    """What one thread computes with: a runtime for every device, and arrays of a chunk."""

    def __init__(self, campaign: "Exhaustive", runtimes: Sequence[Runtime]):
        self.campaign, self.runtimes = campaign, runtimes
        self.inputs = np.empty(campaign.chunk, np.float32)
        self.results = [np.empty(campaign.chunk, np.float32) for _ in runtimes]
        self.constants: dict[tuple[int, float, int], Any] = {}

    def evaluate(self, entry: Entry, inputs: np.ndarray) -> list[np.ndarray]:
        """The results of all devices, in arrays of this worker."""
        from tlrt._binding.library import failure, load

        library, outs = load(), []
        for k, runtime in enumerate(self.runtimes):
            x = runtime.upload(inputs)
            arguments = {entry.argument: x}
            for name, value in entry.filled.items():
                key = k, value, inputs.size
                if key not in self.constants:
                    self.constants[key] = runtime.device.full(inputs.size, value)
                arguments[name] = self.constants[key]
            if entry.want is None:
                y = runtime.call(entry.name, arguments, entry.values)
            else:
                y = next(y for y in runtime.call(entry.name, arguments, entry.values, want=entry.want) if y is not None)
            got = self.results[k][: inputs.size]
            data = library.ffi.from_buffer("float[]", got, require_writable=True)
            # into an array that is there already: a fresh one costs more in page faults than the function itself
            if status := library.lib.torchlean_cuda_buffer_download(y._handle, data, got.size):
                raise failure(status, "numpy")
            x.release()
            y.release()
            outs.append(got)
        return outs

    def check_chunk(self, entry: Entry, number: int) -> dict[str, Any]:
        """Computes, compares and hashes one chunk: the record that the state keeps."""
        campaign, check = self.campaign, self.campaign.check
        first = number * campaign.chunk
        n = min(campaign.chunk, campaign.samples - first)
        inputs = self.inputs[:n]
        check.inputs(first * campaign.stride, campaign.stride, inputs)
        outs = self.evaluate(entry, inputs)
        record: dict[str, Any] = {"tally": {}, "blocks": {}, "differ": 0}
        for k, (device, got) in enumerate(zip(campaign.devices, outs, strict=True)):
            count, at = check.differ(outs[0], got) if k else (0, 0)
            if k == 0 or count:
                tally = check.unary(entry.name, first * campaign.stride, campaign.stride, got, entry.limit)
                record["tally"][device] = {f: v for f, v in tally.items() if v}
                record["blocks"][device] = "".join(f"{int(h):016x}" for h in check.hashes(got, campaign.block))
            if count:
                record["differ"] += count
                record.setdefault("differ_at", (first + at) * campaign.stride)
        return record


class Exhaustive:
    """The exhaustive campaign over some entry points and devices; :meth:`run` then :meth:`document`."""

    def __init__(
        self, devices: Sequence[str], chosen: Sequence[Entry], *, stride: int = 1, workers: int | None = None, chunk: int = CHUNK,
        kernels: Any = None,
    ):  # fmt: skip
        self.devices, self.entries, self.stride, self.kernels = list(devices), chosen, stride, kernels
        self.check: Checker = checker()
        if missing := [e.name for e in chosen if e.name not in self.check.index]:
            raise ValueError(f"no reference for {', '.join(missing)} in native/tools/checker.c")
        self.chunk, self.block = chunk, min(BLOCK, chunk)
        self.samples = -(-(2**32) // stride)
        self.chunks = -(-self.samples // chunk)
        self.workers = min(workers or processors(), max(self.chunks * len(chosen), 1))
        self.records: dict[str, dict[int, Any]] = {e.name: {} for e in chosen}
        self.specials: dict[str, list[dict[str, Any]]] = {}

    def run(self) -> None:
        """Does every chunk."""
        todo = [(e, c) for e in self.entries for c in range(self.chunks)]

        @contextmanager
        def open_worker() -> Iterator[Callable[[tuple[Entry, int]], None]]:
            with self._open_worker() as worker:

                def check_chunk(item: tuple[Entry, int]) -> None:
                    entry, number = item
                    self.records[entry.name][number] = worker.check_chunk(entry, number)
                    progress.advance(float(self.chunk), entry.name)

                yield check_chunk

        # chunks are the parallel work, so a call on the CPU has one thread
        with Progress(float(len(todo) * self.chunk), "inputs") as progress, cpu_settings(threads=1):
            run_in_threads(todo, self.workers, open_worker)
        with self._open_worker() as worker:
            for entry in self.entries:
                self.specials[entry.name] = self._check_special(worker, entry)

    @contextmanager
    def _open_worker(self) -> Iterator[_Worker]:
        with open_runtimes(self.devices, self.kernels) as runtimes:
            worker = _Worker(self, runtimes)
            yield worker
            for constant in worker.constants.values():
                constant.release()

    def _check_special(self, worker: _Worker, entry: Entry) -> list[dict[str, Any]]:
        bits = np.array(list(SPECIAL.values()), np.uint32)
        outs = [o.copy() for o in worker.evaluate(entry, bits.view(np.float32))]
        rows = []
        for i, label in enumerate(SPECIAL):
            x = bits[i : i + 1].view(np.float32)[0]
            want = self.check.want(entry.name, float(x))
            low, high = RANGES.get(entry.name, (-np.inf, np.inf))
            if x < low or x > high or (x == 0 and low == 0 and np.signbit(x)):
                continue
            row: dict[str, Any] = {"x": label, "expected": float_text(int(want.view(np.uint32))), "ok": True}
            for device, out in zip(self.devices, outs, strict=True):
                y = out[i]
                row[device] = float_text(int(y.view(np.uint32)))
                row["ok"] = row["ok"] and _acceptable(y, want, entry.limit)
            rows.append(row)
        return rows

    def _sum_up(self, entry: Entry, device: str) -> dict[str, Any]:
        total: dict[str, Any] = {}
        hashes = []
        for _, record in sorted(self.records[entry.name].items()):
            source = device if device in record["tally"] else self.devices[0]  # equal bits, equal tally
            t = record["tally"][source]
            hashes.append(hashlib.blake2b(record["blocks"][source].encode(), digest_size=8).hexdigest())
            for f in ("seen", "misrounded", "mismatches", "over", "precise", "undecided"):
                total[f] = total.get(f, 0) + t.get(f, 0)
            if t.get("worst", 0) > total.get("worst", 0):
                total |= {f: t.get(f, 0) for f in ("worst", "worst_at", "worst_got", "worst_want")}
            for kind, one in (("mismatches", "mismatch"), ("over", "over")):
                if t.get(kind) and f"{one}_at" not in total:
                    total |= {f"{one}_{part}": t.get(f"{one}_{part}", 0) for part in ("at", "got", "want")}
        counts = ("seen", "worst", "misrounded", "mismatches", "over", "precise", "undecided")
        out = {f: total.get(f, 0) for f in counts}
        for one in ("worst", "mismatch", "over"):
            if f"{one}_at" in total:
                out[f"{one}_case"] = {p: float_text(total[f"{one}_{p}"]) for p in ("at", "got", "want")}
        out["hash"] = hashlib.blake2b("".join(hashes).encode(), digest_size=8).hexdigest()
        out["chunk_hashes"] = hashes
        return out

    def document(self) -> dict[str, Any]:
        """The campaign as one dictionary."""
        functions = []
        for entry in self.entries:
            records = self.records[entry.name]
            per = {d: self._sum_up(entry, d) for d in self.devices}
            differ = sum(r["differ"] for r in records.values())
            special = self.specials.get(entry.name, [])
            bad = differ or any(p["over"] or p["mismatches"] or p["undecided"] for p in per.values())
            row: dict[str, Any] = {
                "entry": entry.name, "which": entry.which, "argument": entry.argument, "values": dict(entry.values),
                "range": RANGES.get(entry.name, "all"), "limit": entry.limit, "bound": entry.op.bound_of(entry.which).text,
                "devices": per, "special": special, "differ": differ if len(self.devices) > 1 else None,
            }  # fmt: skip
            if differ:
                at = min(r["differ_at"] for r in records.values() if "differ_at" in r)
                row["differ_at"] = float_text(at)
            bad = bad or not all(r["ok"] for r in special)
            row["verdict"] = "fail" if bad else "pass"
            if self.devices[1:] and not differ:
                for d in self.devices[1:]:
                    del per[d]["chunk_hashes"]
            functions.append(row)
        return {"stride": self.stride, "samples": self.samples, "functions": functions}


def run(
    devices: Sequence[str], chosen: Sequence[Entry], *, stride: int = 1, workers: int | None = None
) -> dict[str, Any]:
    """The document of a campaign."""
    campaign = Exhaustive(devices, chosen, stride=stride, workers=workers)
    campaign.run()
    return campaign.document()


def _acceptable(y: np.float32, want: np.float32, limit: int) -> bool:
    """The same NaN-ness, infinity and sign, and at most `limit` float32 away."""
    if np.isnan(y) or np.isnan(want):
        return bool(np.isnan(y) and np.isnan(want))
    if np.signbit(y) != np.signbit(want) or np.isinf(y) != np.isinf(want):
        return False
    return abs(int(y.view(np.uint32)) - int(want.view(np.uint32))) <= limit


def compare_hashes(document: Mapping[str, Any], other: Mapping[str, Any]) -> list[str]:
    """Compares the hashes with those of another machine's document: one line per function that differs or is not there."""
    lines = []
    if document["stride"] != other["stride"]:
        return [f"strides differ: {document['stride']} and {other['stride']}"]
    theirs = {f["entry"]: f for f in other["functions"]}
    for f in document["functions"]:
        g = theirs.get(f["entry"])
        if g is None:
            lines.append(f"{f['entry']}: only on this machine")
            continue
        mine, yours = next(iter(f["devices"].values())), next(iter(g["devices"].values()))
        if mine["hash"] != yours["hash"]:
            pairs = zip(mine.get("chunk_hashes", []), yours.get("chunk_hashes", []), strict=False)
            chunk = next((i for i, (a, b) in enumerate(pairs) if a != b), None)
            lines.append(f"{f['entry']}: FAIL: hashes {mine['hash']} and {yours['hash']}, first in chunk {chunk}")
    return lines
