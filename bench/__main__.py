"""``python -m bench``: times the registry's operations beside NumPy and PyTorch in one run.

A run of everything that writes a file ends with ``bench.growth`` on the same device, whose figures are a part of the file.
Floor: the larger of bytes / bandwidth (each input read once, each output written once) and operations / peak. Bandwidth is
measured at the start, by a large copy through this library; the peak rate of a GPU's float32 units comes from --peak.

With ``--math both`` an operation that has the same bits on all devices in reproducible contexts alone is timed in both modes, on
the same inputs. The fast mode is then a peer of the reproducible one, and the peers are timed once. ``--drawn N`` times drawn
shapes instead, see :mod:`bench.drawn`, and ``--models`` what models compute, see :mod:`bench.models`.
"""

import argparse
import platform
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np

import tlrt
from audit.environment import commit, now
from bench import core, drawn, growth, models
from bench.measure import (
    CACHE_BYTES,
    REFERENCE_FLOPS,
    REFERENCE_LIMIT,
    Row,
    Subject,
    Timing,
    device_of,
    fixed_subjects,
    import_torch,
    largest_error,
    time_host,
    time_marks,
)
from bench.selection import LARGEST, add_selection
from tlrt.verify.documents import write_document
from tlrt.verify.run import content
from tlspec.registry import MATH, Op

#: float32 multiply-adds of an H200 outside the tensor cores, in operations per second (vendor's data sheet)
H200_PEAK = 67e12


def clock(device: tlrt.Device) -> Callable[[Callable[[], Any]], Timing]:
    if not device.is_cuda:
        return time_host
    return lambda call: time_marks(call, device.mark, lambda: device.elapsed(0, 1))


def torch_clock(torch: Any) -> Callable[[Callable[[], Any]], Timing]:
    events = [torch.cuda.Event(enable_timing=True) for _ in range(2)]

    def elapsed() -> float:
        events[1].synchronize()
        return float(events[0].elapsed_time(events[1]))

    return lambda call: time_marks(call, lambda i: events[i].record(), elapsed)


def bandwidth(device: tlrt.Device) -> float:
    """Bytes per second of a large copy, read and written bytes counted."""
    n = 2**25 if not device.is_cuda else 2**29
    source = tlrt.Buffer.zeros(n, device)
    target = tlrt.Buffer.zeros(n, device)
    from tlrt import kernels

    timing = clock(device)(lambda: kernels.scale(source, 1.0, out=target))
    source.release()
    target.release()
    return 8 * n / (timing.median * 1e-3)


def modes_of(op: Op, math: str) -> Sequence[str]:
    """The modes in which an operation is timed under ``--math``."""
    if math != "both":
        return (math,)
    return MATH if op.in_math("reproducible") is not op else MATH[:1]


def measure(
    subject: Subject, device: tlrt.Device, torch: Any, rate: float, peak: float, modes: Sequence[str], own_indices: bool
) -> Iterator[Row]:
    """A row for each mode, with the modes before it among the peers."""
    call = subject.ours(device, own_indices)
    small = subject.bytes <= 4 * REFERENCE_LIMIT and subject.flops <= REFERENCE_FLOPS
    reference = subject.reference() if small else None
    fetch_ours = lambda r: r if isinstance(r, np.ndarray) else content(r)
    floor = max(subject.bytes / rate, subject.flops / peak if peak else 0.0) * 1e3
    others: dict[str, tuple[Timing, float | None]] = {}

    def peer(
        name: str, other: Callable[[], Any] | None, timer: Callable[..., Timing], fetch: Callable[[Any], Any]
    ) -> None:
        if other is None:
            return
        wrong = largest_error(other(), reference, fetch, strict=False) if small else None
        others[name] = timer(other), wrong

    def time_peers() -> None:
        if not device.is_cuda:
            peer("numpy", subject.numpy(), time_host, lambda v: v)
        if torch is not None:
            place = "cpu" if not device.is_cuda else "cuda"
            timer = time_host if place == "cpu" else torch_clock(torch)
            peer("torch", subject.torch(torch, place), timer, lambda v: v.detach().cpu().numpy())
            if place == "cuda":
                torch.cuda.empty_cache()

    for math in modes:
        with device.set_math(math):
            error = largest_error(call(), reference, fetch_ours) if small else None
            ours = clock(device)(call)
        if math == modes[0]:
            time_peers()
        peers = {
            name: {"ms": t.median, "spread_ms": t.spread, "ratio": t.median / ours.median, "error": wrong}
            for name, (t, wrong) in others.items()
        }
        yield Row(subject.op.entry(subject.which), subject.label, device.name, ours.median, ours.spread, floor,
                  floor / ours.median, subject.bytes, subject.flops, device.is_cuda and subject.bytes < CACHE_BYTES, error,
                  peers, math)  # fmt: skip
        others = {math: (ours, error), **others}


HEAD = (
    f"{'operation':26} {'size':34} {'math':12} {'ours ms':>10} {'± ms':>8} {'floor':>6} {'error':>8}   "
    "peers: times faster (their ms, error)"
)


def show(row: Row) -> str:
    def e(x: float | None) -> str:
        return "      - " if x is None else f"{x:8.1e}"

    others = "; ".join(
        f"{name} {p['ratio']:.2f}x ({p['ms']:.4g}, {e(p['error']).strip()})" for name, p in row.peers.items()
    )
    mark = "*" if row.in_cache else " "
    figures = f"{row.ours_ms:10.4f} {row.spread_ms:8.4f} {row.floor_share:5.2f}{mark} {e(row.error)}"
    return f"{row.op:26} {row.size:34.34} {row.math:12} {figures}   {others}"


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m bench", description=(__doc__ or "").split("\n\n")[0])
    add = parser.add_argument
    add("--device", default=None, help="cpu, cuda, cuda:1; default: cuda where there is one, else cpu")
    add_selection(parser)
    add("--json", type=Path, help="write all figures to a file")
    add("--peak", type=float, default=H200_PEAK, help="float32 operations per second of the GPU, for the floor")
    add("--math", choices=(*MATH, "both"), default="fast", help="how contexts compute (default fast)")
    add("--device-indices", action="store_true", help="indices lie on the device before a call, as those of PyTorch do")
    add("--no-torch", action="store_true", help="leave PyTorch out")
    add("--drawn", type=int, metavar="N", help="time N drawn shapes beside PyTorch instead (bench.drawn)")
    add("--seed", type=int, default=0, help="of the drawn shapes (default 0)")
    add("--first", type=int, default=0, metavar="I", help="the first of the drawn shapes (default 0)")
    add("--commit", default=None, help="the commit to record where git cannot tell")
    add("--threads", type=int, metavar="N", help="of the CPU, ours and PyTorch's")
    add("--no-growth", action="store_true", help="leave the growth of cost and error out of the file")
    models.add_arguments(parser)
    args = parser.parse_args(argv)
    if args.threads:
        tlrt.set_threads(args.threads)
    device = device_of(args.device, MATH[0] if args.math == "both" else args.math)
    if args.drawn is not None or args.models is not None:
        if args.drawn is not None:
            found = drawn.run(device, args.seed, args.first, args.drawn, args.ops.names)
        else:
            found = models.run(device, args.models, args.batches, args.math, args.seconds)
        if args.json:
            about = {"date": now(), "commit": args.commit or commit() or "unknown", "math": args.math,
                     "device": device.describe(), "build": tlrt.build_info()}  # fmt: skip
            write_document(args.json, {**about, **found})
        return int(bool(found["failed"]))
    limit = args.max_bytes or LARGEST[device.is_cuda]
    torch = None if args.no_torch else import_torch(device)
    rate = bandwidth(device)
    versions = f"NumPy {np.__version__}; PyTorch {getattr(torch, '__version__', 'absent')}"
    print(f"{device.describe()}; copy {rate / 1e9:.0f} GB/s; {versions}")
    print(HEAD)
    rows: list[Row] = []
    if args.ops.core:
        for row in core.rows(device, torch):
            rows.append(row)
            print(show(row), flush=True)
    failed = []
    grown = None
    try:
        failed = measure_all(
            args.ops.names, limit, args.math, device, torch, rate, args.peak, rows, args.device_indices
        )
        if args.json and args.ops.names is None and not args.no_growth:
            grown = growth.measure(device)
            failed += [f"growth: {e['name']}" for e in grown["entries"] if not e["ok"]]
    finally:
        if args.json:
            report = {"date": now(), "math": args.math, "device": device.describe(), "build": tlrt.build_info(),
                      "python": platform.python_version(), "numpy": np.__version__,
                      "torch": getattr(torch, "__version__", None), "bandwidth": rate,
                      "rows": [asdict(r) for r in rows], **({"growth": grown} if grown else {})}  # fmt: skip
            write_document(args.json, report)
    if any(r.in_cache for r in rows):
        print("* operands fit the GPU's L2 cache")
    return int(bool(failed))


def measure_all(
    names: list[str] | None, limit: float, math: str, device: tlrt.Device, torch: Any, rate: float, peak: float,
    rows: list[Row], own_indices: bool,
) -> list[str]:  # fmt: skip
    """Appends a row per mode and benchmark size of each operation whose operands fit the limit, and shows it. Returns what
    failed."""
    failed: list[str] = []
    for subject in fixed_subjects(names, limit):
        try:
            for row in measure(
                subject, device, torch, rate, peak if device.is_cuda else 0.0, modes_of(subject.op, math), own_indices
            ):
                rows.append(row)
                print(show(row), flush=True)
        except Exception as error:  # one row that cannot run must not cost the others
            failed.append(f"{subject.op.name} {subject.size}: {type(error).__name__}: {error}")
            print(f"FAILED {failed[-1]}", flush=True)
            continue
        device.collect()
    return failed


if __name__ == "__main__":
    sys.exit(main())
