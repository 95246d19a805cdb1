"""``python -m bench --drawn N --seed S``: drawn shapes beside PyTorch, so that no shape is fast because somebody tuned it.

Row i of a seed is drawn from (S, i) alone. The operations that have a baseline in PyTorch, and their gradients, take turns;
each dimension of one of the operation's benchmark sizes is drawn anew, log-uniformly from 1 to four times what it was: as it
comes, as a multiple of 8, or as a prime. Kernels, strides and paddings stay. Shapes that the operation refuses, that are
smaller than :data:`SMALLEST` or larger than the limits are drawn again. With ``--ops`` the named operations alone take turns.
The output has a line for each family (rows, median, 5th percentile and least ratio, share below 1) and the slowest rows, each
with the arguments that repeat it.
"""

from __future__ import annotations

import statistics
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

import tlrt
from bench.measure import Subject, Timing, import_torch, time_host, time_marks
from bench.operations import benchmark_of
from tlrt._terminal import Progress, format_table
from tlrt.errors import TorchleanError
from tlspec import registry

#: the smallest operands, in bytes; the largest operands and the most floating-point operations, by whether it is a GPU
SMALLEST = 4096
LARGEST = {False: (6.4e7, 4e9), True: (2e9, 1e12)}
#: seconds of samples and of the pause before them, for each side
BUDGET, PAUSE = 0.1, 0.02
#: draws of one row before it is given up, and slow rows that are shown
ATTEMPTS, SHOWN = 200, 20
#: dimensions that are drawn; what else a benchmark size has stays
DIMENSIONS = frozenset((
    "n", "m", "p", "k", "a", "b", "c", "d", "rows", "cols", "batch", "inputs", "outputs", "outer", "inner", "channels", "height",
    "width", "positions", "in_channels", "out_channels", "groups", "in_h", "in_w", "spatial", "heads", "kv_heads", "queries",
    "keys", "grid", "modes", "dims", "lengths",
))  # fmt: skip
#: dimensions that are equal to others in every row, where a benchmark size has both
EQUAL = {"io": "outer", "ii": "inner"}


@dataclass
class DrawnRow:
    """One drawn shape; `ratio` is PyTorch's time over ours."""

    index: int
    op: str
    family: str
    size: str
    ours_ms: float
    torch_ms: float
    ratio: float
    bytes: int


def pairs(names: Sequence[str] | None = None) -> list[tuple[registry.Op, str]]:
    """The operations with a baseline in PyTorch, forward and VJP; those of these names, families or patterns."""
    found = []
    for op in registry.ops(names):
        benchmark = benchmark_of(op.name)
        coupled = any(name in size for size in benchmark.sizes for name in ("in_dims", "start", "starts"))
        if not benchmark.sizes or coupled:
            continue
        if benchmark.torch is not None:
            found.append((op, "forward"))
        if benchmark.torch_vjp is not None and op.vjp_rule is not None and op.vjp_rule.via is None:
            found.append((op, "vjp"))
    return found


def _is_prime(n: int) -> bool:
    return n > 1 and all(n % k for k in range(2, int(n**0.5) + 1))


def _draw_length(rng: np.random.Generator, before: int) -> int:
    n = max(int(np.exp(rng.uniform(0.0, np.log(4.0 * max(before, 1))))), 1)
    kind = rng.integers(3)
    if kind == 0 and n >= 8:
        return n // 8 * 8
    while kind == 1 and n > 2 and not _is_prime(n):
        n -= 1
    return n


def draw_size(rng: np.random.Generator, size: Mapping[str, Any]) -> dict[str, Any]:
    """A benchmark size with some of its dimensions drawn anew, each with probability 3/4."""
    out = dict(size)
    for name, value in size.items():
        if name not in DIMENSIONS or rng.random() < 0.25:
            continue
        if isinstance(value, (list, tuple)):
            count = int(rng.integers(1, len(value) + 1)) if name == "lengths" else len(value)
            out[name] = [_draw_length(rng, v) for v in value[:count]]
        else:
            out[name] = _draw_length(rng, value)
    return out | {name: out[other] for name, other in EQUAL.items() if name in out and other in out}


def draw_subject(seed: int, index: int, device: tlrt.Device, names: Sequence[str] | None = None) -> tuple[Subject, Any]:
    """The operation of a row at its size, and our call, which has run once."""
    choices = pairs(names)
    op, which = choices[np.random.default_rng([seed, 0]).permutation(len(choices))[index % len(choices)]]
    rng, (most, work) = np.random.default_rng([seed, 1, index]), LARGEST[device.is_cuda]
    sizes = benchmark_of(op.name).sizes
    for _ in range(ATTEMPTS):
        size = draw_size(rng, sizes[rng.integers(len(sizes))])
        try:
            subject = Subject(op, size, which)
            if not SMALLEST <= subject.bytes <= most or subject.flops > work:
                continue
            call = subject.ours(device)
            call()
        except (TorchleanError, ValueError, ZeroDivisionError):  # no shape of the operation
            device.collect()
            continue
        return subject, call
    raise RuntimeError(
        f"row {index} of seed {seed}: {op.name} {which}: none of {ATTEMPTS} drawn sizes is one of the operation"
    )


def _timing(call: Any, device: tlrt.Device, torch: Any) -> Timing:
    if not device.is_cuda:
        return time_host(call, BUDGET, PAUSE)
    if torch is None:
        return time_marks(call, device.mark, lambda: device.elapsed(0, 1), BUDGET)
    events = [torch.cuda.Event(enable_timing=True) for _ in range(2)]

    def elapsed() -> float:
        events[1].synchronize()
        return float(events[0].elapsed_time(events[1]))

    return time_marks(call, lambda i: events[i].record(), elapsed, BUDGET)


def measure(
    device: tlrt.Device, torch: Any, seed: int, first: int, count: int, names: Sequence[str] | None = None
) -> Iterator[DrawnRow]:
    """The rows, one after the other."""
    with Progress(count, "shapes") as progress:
        for index in range(first, first + count):
            subject, call = draw_subject(seed, index, device, names)
            other = subject.torch(torch, "cuda" if device.is_cuda else "cpu")
            if other is None:
                raise RuntimeError(f"{subject.op.name}: no call of PyTorch's")
            ours, theirs = _timing(call, device, None), _timing(other, device, torch)
            entry = subject.op.entry(subject.which)
            yield DrawnRow(index, entry, subject.op.family, subject.label, ours.median, theirs.median,
                           theirs.median / ours.median, subject.bytes)  # fmt: skip
            progress.advance(1, entry)
            del subject, call, other
            device.collect()


def figures(ratios: Sequence[float]) -> tuple[float, float, float, float]:
    """Median, 5th percentile, least, and the share below 1."""
    return (
        statistics.median(ratios),
        float(np.percentile(ratios, 5)),
        min(ratios),
        sum(r < 1 for r in ratios) / len(ratios),
    )


def summarise(rows: Sequence[DrawnRow]) -> list[dict[str, Any]]:
    """The figures of each family, and of all rows."""
    families: dict[str, list[float]] = {}
    for row in rows:
        families.setdefault(row.family, []).append(row.ratio)
    names = ("median", "percentile_5", "least", "share_below_1")
    return [
        {"family": family, "shapes": len(found), **dict(zip(names, figures(found), strict=True))}
        for family, found in [*families.items(), ("all", [r.ratio for r in rows])]
    ]


def run(device: tlrt.Device, seed: int, first: int, count: int, names: Sequence[str] | None = None) -> dict[str, Any]:
    """Measures, prints and gives the document."""
    torch = import_torch(device)
    if torch is None:
        raise SystemExit("bench --drawn: PyTorch is not installed, and the ratios are against it")
    rows = list(measure(device, torch, seed, first, count, names))
    summary = summarise(rows)
    print(format_table(("family", "shapes", "median", "5th percentile", "least", "share below 1"), [
        (s["family"], s["shapes"], *(f"{s[k]:.2f}" for k in ("median", "percentile_5", "least", "share_below_1")))
        for s in summary
    ]))  # fmt: skip
    print("\nthe slowest, as times faster than PyTorch")
    for r in sorted(rows, key=lambda r: r.ratio)[:SHOWN]:
        line = f"--drawn 1 --seed {seed} --first {r.index}" + (f" --ops '{','.join(names)}'" if names else "")
        print(f"{r.ratio:6.2f}  {r.ours_ms:9.4f} ms  {r.op} {r.size:.90}   {line}")
    return {
        "seed": seed,
        "first": first,
        "torch": torch.__version__,
        "summary": summary,
        "rows": [asdict(r) for r in rows],
    }
