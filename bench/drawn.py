"""``python -m bench --drawn N --seed S``: drawn shapes beside PyTorch, so that no shape is fast because somebody tuned it.

Row i of a seed is drawn from (S, i) alone. The operations that have a baseline in PyTorch, and their gradients, take turns;
each dimension of one of the operation's benchmark sizes is drawn anew, log-uniformly from 1 to four times what it was: as it
comes, as a multiple of 8, as a prime, or as a number that models have. Kernels, strides and paddings stay, and dimensions that
follow from others follow. Half of the rows with indices draw them unevenly, so that most name few rows. Shapes that the
operation refuses, that are smaller than :data:`SMALLEST` or larger than the limits are drawn again.

The two sides take turns, and the ratio of a row is the median over the turns: what else a machine does meets both sides of a
turn. Both calls are bound to their arguments before, make their results anew, and update lists of tensors in place; on CUDA
indices lie on the device, on both sides. A shape that PyTorch takes too long or too much memory for is recorded as one without a
peer, with the reason. The output has a line for each family (rows, median, 5th percentile and least ratio, share below 1) and the
slowest rows, each with the arguments that repeat it. ``--ops`` leaves out all other rows, which changes none: ``--first``
continues a run, and an interrupted one reports the rows that it has.
"""

from __future__ import annotations

import statistics
import sys
import time
from bisect import bisect_right
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from itertools import count as numbers
from itertools import islice
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
LARGEST = {False: (6.4e7, 2e10), True: (2e9, 1e12)}
#: turns of the two sides, by whether it is a GPU, where no other process takes part of the time
TURNS = {False: 5, True: 3}
#: seconds of samples and of the pause before them, in each turn of each side
BUDGET, PAUSE = 0.025, 0.02
#: seconds that a call of PyTorch's may take, of which a row has some forty
PATIENCE = 1.0
#: the most that it may write out besides its results, in bytes, by whether it is a GPU: ten passes over them take about as long
#: on a CPU, and a GPU has the memory for some copies
WRITTEN_OUT = {False: 5e8, True: 1e10}
#: draws of one row before it is given up, and slow rows that are shown
ATTEMPTS, SHOWN = 200, 20
#: dimensions that are drawn; what else a benchmark size has stays or follows from them
DIMENSIONS = frozenset((
    "n", "m", "p", "k", "a", "b", "c", "d", "rows", "cols", "batch", "inputs", "outputs", "outer", "inner", "channels", "height",
    "width", "positions", "in_channels", "out_channels", "groups", "in_h", "in_w", "spatial", "heads", "kv_heads", "queries",
    "keys", "grid", "modes", "dims", "lengths", "len", "start", "out_dims",
))  # fmt: skip
#: numbers of models: images' sides and their patches, widths of heads and layers, contexts, classes, vocabularies
OF_MODELS = (1, 3, 7, 10, 14, 28, 32, 49, 56, 64, 77, 80, 96, 112, 128, 144, 160, 192, 197, 224, 256, 320, 384, 512, 576, 640,
             768, 1000, 1024, 1280, 1536, 2048, 3072, 3136, 4096, 5120, 8192, 11008, 12544, 32000, 50257, 128256)  # fmt: skip
#: arrays that lie in flat buffers with strides -> their dimensions, and the names of the strides; a stride without name is 1
LYING = {
    "a": ("batch m n", "batch row col"), "b": ("batch n p", "batch row col"),
    "q": ("batch heads queries d", "batch head row"), "k": ("batch kv_heads keys d", "batch head row"),
    "v": ("batch kv_heads keys width", "batch head row"), "y": ("batch heads queries width", "batch head row"),
    "g": ("batch heads queries width", "batch head row"),
}  # fmt: skip
#: powers of a uniform number that indices are in the rows that draw them unevenly
SKEWS = (3, 12)


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


def pairs() -> list[tuple[registry.Op, str]]:
    """The operations with a baseline in PyTorch, forward and VJP."""
    found = []
    for op in registry.operations():
        benchmark = benchmark_of(op.name)
        if not benchmark.sizes:
            continue
        if benchmark.torch is not None:
            found.append((op, "forward"))
        if benchmark.torch_vjp is not None and op.vjp_rule is not None and op.vjp_rule.via is None:
            found.append((op, "vjp"))
    return found


def rows_of(seed: int, first: int, names: Sequence[str] | None) -> Iterator[int]:
    """The numbers of the rows from `first` on, of the named operations and families alone."""
    choices, chosen = pairs(), {op.name for op in (registry.ops(names) if names else registry.operations())}
    if not any(op.name in chosen for op, _ in choices):
        raise SystemExit("bench --drawn: none of these operations has a baseline in PyTorch")
    return (i for i in numbers(first) if _choice(choices, seed, i)[0].name in chosen)


def _choice(choices: Sequence[tuple[registry.Op, str]], seed: int, index: int) -> tuple[registry.Op, str]:
    return choices[np.random.default_rng([seed, 0]).permutation(len(choices))[index % len(choices)]]


def _is_prime(n: int) -> bool:
    return n > 1 and all(n % k for k in range(2, int(n**0.5) + 1))


def _draw_length(rng: np.random.Generator, before: int) -> int:
    n = max(int(np.exp(rng.uniform(0.0, np.log(4.0 * max(before, 1))))), 1)
    kind = rng.integers(4)
    if kind == 0 and n >= 8:
        return n // 8 * 8
    if kind == 1:
        return OF_MODELS[bisect_right(OF_MODELS, n) - 1]
    while kind == 2 and n > 2 and not _is_prime(n):
        n -= 1
    return n


def draw_size(rng: np.random.Generator, size: Mapping[str, Any]) -> dict[str, Any]:
    """A benchmark size with some of its dimensions drawn anew, each with probability 3/4."""
    out = dict(size)
    for name, value in size.items():
        if (
            name not in DIMENSIONS or isinstance(value, float) or rng.random() < 0.25
        ):  # a factor or a power is no length
            continue
        if isinstance(value, (list, tuple)):
            count = int(rng.integers(1, len(value) + 1)) if name == "lengths" else len(value)
            out[name] = [_draw_length(rng, v) for v in value[:count]]
        else:
            out[name] = _draw_length(rng, value)
    return follow(size, out)


def follow(size: Mapping[str, Any], out: dict[str, Any]) -> dict[str, Any]:
    """The dimensions of a drawn size that follow from others, as they do in the benchmark size `size`."""
    for shared, whole in (("io", "outer"), ("ii", "inner")):  # one set of indices for all, or one for each
        if shared in out:
            out[shared] = out[whole] if size[shared] == size[whole] else size[shared]
    if "axis_map" in out:  # an axis of the input is repeated or has the output's length
        for axis, at in enumerate(out["axis_map"]):
            if at and size["in_dims"][at - 1] != 1:
                out["in_dims"] = [out["out_dims"][axis] if k == at - 1 else n for k, n in enumerate(out["in_dims"])]
    elif "in_dims" in out and "value" in out:  # padding stays
        beside = [a - b for a, b in zip(size["out_dims"], size["in_dims"], strict=True)]
        out["in_dims"] = [n - d for n, d in zip(out["out_dims"], beside, strict=True)]
    elif "in_dims" in out:  # what a slice leaves out in proportion
        reach = [s + (n - 1) * k + 1 for s, n, k in zip(out["starts"], out["out_dims"], out["steps"], strict=True)]
        kept = [n / m for n, m in zip(size["in_dims"], size["out_dims"], strict=True)]
        out["in_dims"] = [max(r, int(n * k)) for r, n, k in zip(reach, out["out_dims"], kept, strict=True)]
    if "kv_heads" in out and size["kv_heads"] == size["heads"]:
        out["kv_heads"] = out["heads"]
    for name, (dims, strides) in LYING.items():
        if f"{name}_size" in out:
            out |= _lay(size, out, name, dims.split(), strides.split())
    if "start" in out and "len" in out:
        out["n"] = max(out["n"], out["start"] + out["len"])
    return out


def _lay(
    size: Mapping[str, Any], out: Mapping[str, Any], name: str, dims: list[str], names: list[str]
) -> dict[str, int]:
    """The strides and the size of an array of a drawn size: the axes lie within each other as they do in `size`."""
    before = [size[f"{name}_{s}"] for s in names] + [1] * (len(dims) - len(names))
    after, inner, drawn = [0] * len(dims), 1, 1
    for i in sorted((i for i, stride in enumerate(before) if stride), key=before.__getitem__):
        after[i] = max(before[i] * drawn // inner, 1)
        inner, drawn = inner * size[dims[i]], drawn * out[dims[i]]
    reach = sum((out[d] - 1) * stride for d, stride in zip(dims, after, strict=True)) + 1
    return {f"{name}_size": reach, **{f"{name}_{s}": stride for s, stride in zip(names, after)}}


def _skew_indices(subject: Subject, rng: np.random.Generator) -> None:
    """Draws the indices of a row again, unevenly: most of them are small."""
    for a in subject.signature.inputs:
        if a.kind in ("u32", "index") and a.name != "labels" and a.name in subject.inputs:
            shape = subject.inputs[a.name].shape
            limit = subject.names.get("rows", subject.names.get("n", 1))
            drawn = limit * rng.random(shape) ** rng.choice(SKEWS)
            subject.inputs[a.name] = np.minimum(drawn, limit - 1).astype(np.uint32)


def draw_subject(seed: int, index: int, device: tlrt.Device) -> tuple[Subject, Callable[[], Any]]:
    """The operation of a row at its size, and our call, which has run once."""
    op, which = _choice(pairs(), seed, index)
    rng, (most, work) = np.random.default_rng([seed, 1, index]), LARGEST[device.is_cuda]
    sizes = benchmark_of(op.name).sizes
    for _ in range(ATTEMPTS):
        size = draw_size(rng, sizes[rng.integers(len(sizes))])
        try:
            subject = Subject(op, size, which)
            if not SMALLEST <= subject.bytes <= most or subject.flops > work:
                continue
            if rng.random() < 0.5:
                _skew_indices(subject, rng)
            call = subject.ours(device, own_indices=device.is_cuda)
            call()
        except (TorchleanError, ValueError, ZeroDivisionError):  # no shape of the operation
            device.collect()
            continue
        return subject, call
    raise RuntimeError(
        f"row {index} of seed {seed}: {op.name} {which}: none of {ATTEMPTS} drawn sizes is one of the operation"
    )


def _clock(device: tlrt.Device, torch: Any) -> Callable[[Callable[[], Any]], Timing]:
    """How one turn of a side is timed; `torch` is None where the side is ours."""
    if not device.is_cuda:
        return lambda call: time_host(call, BUDGET, PAUSE)
    if torch is None:
        return lambda call: time_marks(call, device.mark, lambda: device.elapsed(0, 1), BUDGET)
    events = [torch.cuda.Event(enable_timing=True) for _ in range(2)]

    def elapsed() -> float:
        events[1].synchronize()
        return float(events[0].elapsed_time(events[1]))

    return lambda call: time_marks(call, lambda i: events[i].record(), elapsed, BUDGET)


def compare(
    ours: Callable[[], Any],
    theirs: Callable[[], Any],
    clocks: Sequence[Callable[[Callable[[], Any]], Timing]],
    count: int,
) -> tuple[float, float, float]:
    """Milliseconds of both sides, medians over the turns, and the median of the turns' ratios."""
    turns = [[clock(call).median for clock, call in zip(clocks, (ours, theirs), strict=True)] for _ in range(count)]
    a, b = (statistics.median(side) for side in zip(*turns, strict=True))
    return a, b, statistics.median(theirs / ours for ours, theirs in turns)


class NoPeerError(Exception):
    """Why a shape has no call of PyTorch's to be timed beside."""


def peer_call(subject: Subject, device: tlrt.Device, torch: Any) -> Callable[[], Any]:
    """PyTorch's call. Raises NoPeerError where it takes too long; the first call may load code, so a slow one is made twice."""
    written, most = subject.torch_bytes, WRITTEN_OUT[device.is_cuda]
    if written > most:
        raise NoPeerError(f"PyTorch may write out {written:.1e} bytes, more than {most:.1e}")
    call = subject.torch(torch, "cuda" if device.is_cuda else "cpu")
    if call is None:
        raise RuntimeError(f"{subject.op.name}: no call of PyTorch's")
    for _ in range(2):
        start = time.perf_counter()
        try:
            call()
            if device.is_cuda:
                torch.cuda.synchronize()
        except torch.OutOfMemoryError:
            raise NoPeerError("PyTorch's call takes more memory than the GPU has left") from None
        if (took := time.perf_counter() - start) <= PATIENCE:
            return call
    raise NoPeerError(f"a call of PyTorch's takes {took:.1f} s, more than {PATIENCE:g} s")


def measure_row(device: tlrt.Device, torch: Any, seed: int, index: int) -> DrawnRow:
    """One row; nothing that it made outlives it."""
    subject, ours = draw_subject(seed, index, device)
    try:
        theirs = peer_call(subject, device, torch)
    except NoPeerError as error:
        raise NoPeerError(f"{subject.op.entry(subject.which)} {subject.label}: {error}") from None
    figures = compare(ours, theirs, [_clock(device, None), _clock(device, torch)], TURNS[device.is_cuda])
    entry = subject.op.entry(subject.which)
    return DrawnRow(index, entry, subject.op.family, subject.label, *figures, subject.bytes)


def measure(
    device: tlrt.Device, torch: Any, seed: int, indices: Sequence[int], failed: list[str], without_peer: list[str]
) -> Iterator[DrawnRow]:
    """The rows, one after the other; a row that cannot run, or has no peer, costs no other."""
    with Progress(len(indices), "shapes") as progress:
        for index in indices:
            try:
                row = measure_row(device, torch, seed, index)
                yield row
                progress.advance(1, row.op)
            except NoPeerError as error:
                without_peer.append(f"row {index}: {error}")
            except Exception as error:
                failed.append(f"row {index}: {type(error).__name__}: {error}")
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
        for family, found in [*sorted(families.items()), ("all", [r.ratio for r in rows])]
        if found
    ]


def run(device: tlrt.Device, seed: int, first: int, count: int, names: Sequence[str] | None = None) -> dict[str, Any]:
    """Measures, prints and gives the document."""
    torch = import_torch(device)
    if torch is None:
        raise SystemExit("bench --drawn: PyTorch is not installed, and the ratios are against it")
    rows: list[DrawnRow] = []
    failed: list[str] = []
    without_peer: list[str] = []
    indices = list(islice(rows_of(seed, first, names), count))
    try:
        rows.extend(measure(device, torch, seed, indices, failed, without_peer))
    except KeyboardInterrupt:
        print(f"interrupted after {len(rows)} rows", file=sys.stderr)
    summary = summarise(rows)
    print(format_table(("family", "shapes", "median", "5th percentile", "least", "share below 1"), [
        (s["family"], s["shapes"], *(f"{s[k]:.2f}" for k in ("median", "percentile_5", "least", "share_below_1")))
        for s in summary
    ]))  # fmt: skip
    print("\nthe slowest, as times faster than PyTorch")
    for r in sorted(rows, key=lambda r: r.ratio)[:SHOWN]:
        line = f"--drawn 1 --seed {seed} --first {r.index}"
        print(f"{r.ratio:6.2f}  {r.ours_ms:9.4f} ms  {r.op} {r.size:.90}   {line}")
    for message in without_peer:
        print(f"without a peer: {message}")
    for message in failed:
        print(f"FAILED {message}")
    return {
        "seed": seed,
        "first": first,
        "torch": torch.__version__,
        "threads": tlrt.threads(),
        "summary": summary,
        "rows": [asdict(r) for r in rows],
        "failed": failed,
        "without_peer": without_peer,
    }
