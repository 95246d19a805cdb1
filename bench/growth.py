"""``python -m bench.growth``: how cost grows with size, and how the error of transforms grows, measured on one device.

A time entry holds medians at several sizes and the slope of the least-squares line through log(time) over log(load), the load
being what theory says the time is proportional to (for attention n, of slope 2). The limit is 0.1 above theory for what
computes more than it moves. A transform of 2^20 points and a scan of 10^6 steps leave the caches that one of 1000 stays in and
run at the rate of memory: a limit of 1.25 lets the time per load grow sixfold on the way (1000^0.25), where n·√n has slope 1.37
or more. Small sizes that a launch dominates make a slope smaller, never larger.

A memory entry holds peak bytes by the pool's counters, operands included. An error entry holds the rms or the largest error
against NumPy's float64 transform of the same float32 data, relative to the rms of that result, in units of u = 2^-24.
"""

import argparse
import math
import os
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

import tlrt
from audit.environment import now
from audit.markdown import format_figure
from bench.measure import Subject, device_of, operand_bytes, time_host, time_marks
from tlrt._terminal import Progress
from tlrt.verify.documents import write_document
from tlspec import registry
from tlspec.bounds import U
from tlspec.data import generator

#: how far above theory a measured slope may lie, and where data leaves the caches; see the module's docstring
SLACK, CACHES = 0.1, 0.25
#: seconds a timing lasts at least
BUDGET = 0.08
#: the norm-wise error of a radix-2 transform is at most log2(n) times this many u: Higham, Accuracy and Stability of Numerical
#: Algorithms, 2nd ed., theorem 24.2, η = μ + γ_4·(√2 + μ), with weights rounded correctly (μ = u)
LEVEL = 1 + 4 * math.sqrt(2)


@dataclass
class Entry:
    """One line of the report: what was measured at which sizes, the figure drawn from it and the limit it is held to."""

    name: str
    what: str  # "time", "memory" or "error"
    size: str  # what `sizes` counts
    sizes: list[int]
    values: list[float]  # ms, bytes or u
    figure: float
    figure_is: str
    limit: float | None
    detail: str = ""

    @property
    def ok(self) -> bool:
        return self.limit is None or self.figure <= self.limit

    def as_dict(self) -> dict[str, Any]:
        return {**asdict(self), "ok": self.ok}


def slope(sizes: Sequence[float], values: Sequence[float]) -> float:
    """Of the least-squares line through log(values) over log(sizes)."""
    return float(np.polyfit(np.log(sizes), np.log(values), 1)[0])


@dataclass
class Sweep:
    """The forward or the VJP of an operation at several sizes. Theory says that its time is `load` to the power `theory`; where
    `memory` is set, that its peak memory, operands included, is proportional to `key`."""

    name: str
    op: str
    which: str
    key: str
    sizes: list[dict[str, Any]]
    load: Callable[[dict[str, Any]], float]
    load_is: str
    theory: float = 1.0
    slack: float = SLACK
    #: equal calls within one call, whose time is divided by their number
    times: str | None = None
    memory: bool = False


def sweeps(cuda: bool) -> Iterator[Sweep]:
    """The sizes let the whole run last about 20 seconds on a large GPU and a minute on two CPU cores."""
    attention = [
        {"batch": 16 if cuda else 1, "n": 2**k, "d": 64, "mask_mode": 0, "scale": 0.125} for k in (9, 10, 11, 12, 13)
    ]
    for which in ("forward", "vjp"):
        yield Sweep("attention", "flash_attention", which, "n", attention, lambda s: s["n"], "n", 2.0, memory=True)
    elements = 2**24 if cuda else 2**20
    for name, lengths in (
        ("rfft, powers of two", [2**k for k in range(10, 21)]),
        ("rfft, primes", [1021, 4093, 16381, 65537, 262139, 1048573]),
    ):
        sizes = [{"batch": max(1, elements // n), "n": n} for n in lengths]
        yield Sweep(name, "rfft1d_packed", "forward", "n", sizes, lambda s: s["n"] * math.log2(s["n"]), "n·log2 n",
                    slack=CACHES, times="batch")  # fmt: skip
    steps = (10**3, 10**4, 10**5, 10**6)
    scans = [{"seq_len": k, "state": 64 if cuda else 16, "A": (-1.0, 1.0)} for k in steps]
    for op in ("selective_scan_diag", "selective_scan_diag_var"):
        for which in ("forward", "vjp"):
            yield Sweep(op, op, which, "seq_len", scans, lambda s: s["seq_len"], "seq_len", slack=CACHES)
    side, batch = (28, 32) if cuda else (14, 2)
    image = {"batch": batch, "in_h": side, "in_w": side, "kernel_h": 3, "kernel_w": 3}
    image |= {"stride_h": 1, "stride_w": 1, "padding_h": 1, "padding_w": 1}
    channels = [{**image, "in_channels": 2**k, "out_channels": 2**k} for k in (4, 5, 6, 7, 8, 9)]
    for which in ("forward", "vjp"):
        yield Sweep(
            "conv2d, 3x3", "conv2d", which, "in_channels", channels, lambda s: s["in_channels"] ** 2, "channels²"
        )


def median_ms(call: Callable[[], Any], device: tlrt.Device) -> float:
    if device.is_cuda:
        return time_marks(call, device.mark, lambda: device.elapsed(0, 1), BUDGET).median
    return time_host(call, BUDGET, 0.0).median


def peak_of(call: Callable[[], Any], device: tlrt.Device) -> int:
    """Live bytes while the call runs, its operands and whatever else lives included."""
    device.synchronize()
    device.reset_peak()
    call()
    device.synchronize()
    return device.memory().peak_bytes


def direction(which: str) -> str:
    return "forward" if which == "forward" else "backward"


def run_sweep(sweep: Sweep, device: tlrt.Device, bar: Progress) -> Iterator[Entry]:
    row = registry.get(sweep.op)
    name = f"{sweep.name} {direction(sweep.which)}"
    times: list[float] = []
    peaks: list[float] = []
    for size in sweep.sizes:
        bar.advance(1.0, f"{name} {sweep.key}={size[sweep.key]}")
        before = device.memory().live_bytes
        call = Subject(row, size, sweep.which).ours(device)
        if sweep.memory:
            peaks.append(float(peak_of(call, device) - before))
        times.append(median_ms(call, device) / (size[sweep.times] if sweep.times else 1))
        del call
    device.collect()
    sizes, loads = [s[sweep.key] for s in sweep.sizes], [sweep.load(s) for s in sweep.sizes]
    fixed = {k: v for k, v in sweep.sizes[0].items() if not isinstance(v, tuple)}
    varies = {k for k in fixed if len({s[k] for s in sweep.sizes}) > 1}
    detail = " ".join(f"{k}={v:g}" for k, v in fixed.items() if k not in varies)
    if sweep.times:
        each = [1e6 * t / x for t, x in zip(times, loads, strict=True)]
        least, most = format_figure(min(each)), format_figure(max(each))
        detail = f"time of one of the {sweep.times}: {least} to {most} ns per {sweep.load_is}"
    yield Entry(name, "time", sweep.key, sizes, times, slope(loads, times), f"slope in {sweep.load_is}",
                sweep.theory + sweep.slack, detail)  # fmt: skip
    if sweep.memory:
        grown = slope(sizes, peaks)
        yield Entry(name, "memory", sweep.key, sizes, peaks, grown, f"slope in {sweep.key}", 1 + SLACK, detail)


def footprint(device: tlrt.Device, bar: Progress) -> Iterator[Entry]:
    """Peak memory of attention as a multiple of Q, K, V and out. The gradient holds as much again for g, gQ, gK and gV; an
    n x n array of float32 would be n/(4d) times the four, 64 times at n = 16384."""
    n = 16384 if device.is_cuda else 2048
    size = {"batch": 16, "n": n, "d": 64, "mask_mode": 0, "scale": 0.125}
    row = registry.get("flash_attention")
    for which in ("forward", "vjp"):
        bar.advance(1.0, f"attention memory, {direction(which)}, n={n}")
        before = device.memory().live_bytes
        call = Subject(row, size, which).ours(device)
        peak = peak_of(call, device) - before
        del call
        four = operand_bytes(row.signature, size)
        yield Entry(f"attention {direction(which)}, footprint", "memory", "n", [n], [float(peak)], peak / four,
                    "peak over the bytes of Q, K, V and out", 4.0, "batch=16 d=64")  # fmt: skip
    device.collect()


def levels(n: int) -> float:
    """Radix-2 levels with as many roundings as a transform of length n has: log2 n, or, where n has a large prime factor,
    those of the three transforms of Bluestein's convolution over at most 4n points and of its three products."""
    rest = n
    for p in range(2, 128):
        while rest % p == 0:
            rest //= p
    return math.log2(n) if rest == 1 else 3 * math.log2(4 * n) + 3


def accuracy(device: tlrt.Device, bar: Progress) -> Iterator[Entry]:
    """The error of single transforms of N(0, 1) data: at most Higham's bound per level at every size, and no faster growth than
    log n."""
    from tlrt import kernels

    sizes = [1024, 16384, 65537, 10**6]
    for name in ("rfft", "irfft"):
        rms: list[float] = []
        top: list[float] = []
        for n in sizes:
            bar.advance(1.0, f"{name} accuracy n={n}")
            rng = generator("accuracy", name, n)
            if name == "rfft":
                x = rng.standard_normal(n, dtype=np.float32)
                got: Any = kernels.rfft1d_packed(device.buffer(x), 1, n).numpy().astype(np.float64).view(np.complex128)
                want: Any = np.fft.rfft(x.astype(np.float64))
            else:
                spec = rng.standard_normal(2 * (n // 2 + 1), dtype=np.float32)
                got = kernels.irfft1d_packed(device.buffer(spec), 1, n).numpy().astype(np.float64)
                want = np.fft.irfft(spec.astype(np.float64).view(np.complex128), n)
            scale = math.sqrt(float(np.mean(np.abs(want) ** 2))) * U
            rms.append(math.sqrt(float(np.mean(np.abs(got - want) ** 2))) / scale)
            top.append(float(np.abs(got - want).max()) / scale)
        constants = ", ".join(f"{r / math.log2(n):.3f}" for n, r in zip(sizes, rms, strict=True))
        yield Entry(
            f"{name} error", "error", "n", sizes, rms, max(r / levels(n) for n, r in zip(sizes, rms, strict=True)),
            "rms / u per level, at most", LEVEL, f"rms / (u·log2 n): {constants}",
        )  # fmt: skip
        # from the first size on, log n grows no faster than n to the power 1 / ln(first size)
        yield Entry(f"{name} error, growth", "error", "n", sizes, rms, slope(sizes, rms), "slope of the rms error in n",
                    1 / math.log(sizes[0]))  # fmt: skip
        yield Entry(f"{name} error, largest", "error", "n", sizes, top, max(top), "largest error / u", None)


def show(entry: Entry) -> str:
    limit = "" if entry.limit is None else f"<= {entry.limit:.4g}"
    span = f"{entry.size} {entry.sizes[0]}" + (f"..{entry.sizes[-1]}" if len(entry.sizes) > 1 else "")
    verdict = "" if entry.limit is None else "ok" if entry.ok else "FAIL"
    return f"{entry.name:36} {entry.what:7} {span:24} {entry.figure:8.3f} {limit:10} {verdict:5} {entry.figure_is}"


def measure(device: tlrt.Device) -> dict[str, Any]:
    """Everything on one device, shown line by line; the JSON part of a report."""
    start, load = time.monotonic(), os.getloadavg()[0]
    if not device.is_cuda and load > 1:
        print(
            f"load {load:.1f} before the start: other work slows long calls more than short ones, and slopes come out too steep"
        )
    plan = list(sweeps(device.is_cuda))
    bar = Progress(sum(len(s.sizes) for s in plan) + 2.0 + 8.0, "sizes")
    entries: list[Entry] = []
    parts = [*(run_sweep(s, device, bar) for s in plan), footprint(device, bar), accuracy(device, bar)]
    for part in parts:
        for entry in part:
            entries.append(entry)
            bar.close()
            print(show(entry), flush=True)
    return {"device": device.describe(), "load": round(load, 2), "seconds": round(time.monotonic() - start, 1),
            "entries": [e.as_dict() for e in entries], "ok": all(e.ok for e in entries)}  # fmt: skip


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m bench.growth", description=(__doc__ or "").split("\n\n")[0])
    parser.add_argument("--device", default=None, help="cpu, cuda, cuda:1; default: cuda where there is one, else cpu")
    parser.add_argument("--json", type=Path, help="write all figures to a file")
    args = parser.parse_args(argv)
    device = device_of(args.device)
    print(device.describe())
    report = measure(device)
    if args.json:
        write_document(args.json, {"date": now(), "build": tlrt.build_info(), **report})
    missed = [e["name"] for e in report["entries"] if not e["ok"]]
    verdict = f"missed: {', '.join(missed)}" if missed else "all kept"
    print(f"{len(report['entries'])} figures in {report['seconds']} s; {verdict}")
    return int(bool(missed))


if __name__ == "__main__":
    sys.exit(main())
