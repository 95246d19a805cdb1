"""``python -m bench --models [NAMES]``: the operations of models' training steps, with the shapes that the models give them.

``bench/model_rows.json``, which :mod:`bench.trace` makes, holds the rows of each model at each batch and how often a step calls
them. Each distinct row is timed once beside PyTorch's call for the same operation (eager, float32), the sides in turns, medians.
On CUDA the device's own time counts: calls are submitted behind other work, so that the device never waits for the host, and
inputs are drawn on the device and shared by both sides. A model's figure in a mode is the sum over its rows of count times
PyTorch's milliseconds over that of count times ours. Rows that are an estimated share below :data:`LEAST_SHARE` of every chosen
model's step are left out, and so are the least ones where ``--seconds`` are over; the output says how many, and the least share
of a model's estimated time that was timed.

``python -m bench.beside TREE --models`` times the same rows with the libraries of two checkouts, without PyTorch.
"""

from __future__ import annotations

import argparse
import json
import math
import statistics
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import tlrt
from bench import model_peers
from bench.beside_worker import FILL, Sided, Watch, bind, lay, sides_of, watch_of
from bench.measure import Subject, import_torch
from tlrt._terminal import Progress, format_table
from tlspec import registry
from tlspec.drawn import shape_of
from tlspec.entries import arguments_of
from tlspec.registry import MATH

FILE = Path(__file__).with_name("model_rows.json")
BATCHES = (1, 8, 64)
#: the estimated share of every model's step below which a row is not timed
LEAST_SHARE = 0.002
#: seconds that a run may take
SECONDS = 200.0
#: turns of the sides, of calls longer and shorter than so many milliseconds
LONG, TURNS = 30.0, {True: 2, False: 5}
#: bytes and floating-point operations a second, and seconds of a call, of the estimate, by whether it is a GPU
RATES = {False: (1e10, 5e10, 5e-6), True: (2.5e12, 3e13, 4e-6)}
#: bytes of rows after which the memory that the sides keep is given back
MOST_HELD = 8e9
#: rows that are shown: so many, of those that cost a model such a share of its step
SHOWN, LEAST_LOSS = 25, 0.002


@dataclass(frozen=True)
class ModelRow:
    """A call of a model: the operation or its gradient, dimensions and parameters, the optional inputs that are given, and which
    gradients are wanted (None: all)."""

    op: str
    which: str
    items: tuple[tuple[str, Any], ...]
    given: tuple[str, ...] = ()
    want: tuple[bool, ...] | None = None

    @classmethod
    def of(
        cls, op: str, size: Mapping[str, Any], which: str = "forward", given: Sequence[str] = (),
        want: Sequence[bool] | None = None,
    ) -> ModelRow:  # fmt: skip
        items = tuple((k, tuple(v) if isinstance(v, (list, tuple)) else v) for k, v in size.items())
        return cls(op, which, items, tuple(given), None if want is None or all(want) else tuple(map(bool, want)))

    @property
    def subject(self) -> Subject:
        size = {k: list(v) if isinstance(v, tuple) else v for k, v in self.items}
        return Subject(registry.get(self.op), size, self.which, self.given, self.want)


@dataclass(frozen=True)
class Table:
    """The rows of all models; `calls` by model and batch: rows' numbers and how often a step calls them."""

    rows: Sequence[ModelRow]
    calls: Mapping[tuple[str, int], Mapping[int, int]]
    left: Mapping[str, Mapping[str, int]]

    @cached_property
    def models(self) -> list[str]:
        return list(self.left)


# ---- the file ----------------------------------------------------------------------------------------------------------


def encode(found: Mapping[str, Mapping[int, tuple[Mapping[ModelRow, int], Mapping[str, int]]]]) -> str:
    """JSON of what `bench.trace` found: by model and batch, counted rows and what is left. Rows of one kind are a table, whose
    lines are numbered on from the tables before it."""
    kinds: dict[tuple[Any, ...], dict[tuple[Any, ...], None]] = {}
    each = {row for batches in found.values() for counts, _ in batches.values() for row in counts}
    for row in sorted(each, key=lambda r: (r.op, r.which, r.given, str(r.want), str(r.items))):
        kind = row.op, row.which, row.given, row.want, tuple(k for k, _ in row.items)
        kinds.setdefault(kind, {})[tuple(v for _, v in row.items)] = None
    numbers: dict[ModelRow, int] = {}
    tables = []
    for (op, which, given, want, keys), lines in kinds.items():
        tables.append({"op": op, "which": which, "given": given, "want": want, "keys": keys, "rows": list(lines)})
        for values in lines:
            numbers[ModelRow(op, which, tuple(zip(keys, values, strict=True)), given, want)] = len(numbers)
    models = {
        name: {
            **{
                str(b): [n for row, c in counts.items() for n in (numbers[row], c)]
                for b, (counts, _) in batches.items()
            },
            "left": dict(sorted(next(iter(batches.values()))[1].items())),
        }
        for name, batches in found.items()
    }

    def line(value: Any) -> str:
        return json.dumps(value, separators=(",", ":"))

    body = ",\n".join(map(line, tables))
    ends = ",\n".join(f"{line(name)}:{line(model)}" for name, model in models.items())
    return f'{{"tables":[\n{body}\n],"models":{{\n{ends}\n}}}}\n'


def decode(text: str) -> Table:
    document = json.loads(text)
    rows = [
        ModelRow.of(t["op"], dict(zip(t["keys"], values, strict=True)), t["which"], t["given"], t["want"])
        for t in document["tables"]
        for values in t["rows"]
    ]
    calls = {
        (name, int(batch)): dict(zip(pairs[::2], pairs[1::2], strict=True))
        for name, model in document["models"].items()
        for batch, pairs in model.items()
        if batch != "left"
    }
    return Table(rows, calls, {name: model["left"] for name, model in document["models"].items()})


def load(file: Path = FILE) -> Table:
    return decode(file.read_text(encoding="utf-8"))


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds `--models` and what belongs to it: `models` is then None where it was not given, and "" where all are meant."""
    add = parser.add_argument
    add(
        "--models",
        nargs="?",
        const="",
        metavar="NAMES",
        help="time what models compute instead (bench.models), comma-separated",
    )
    add("--batches", type=lambda text: [int(n) for n in text.split(",")], default=list(BATCHES), metavar="N,…",
        help="of the models (default 1,8,64)")  # fmt: skip
    add("--seconds", type=float, default=SECONDS, help=f"that models' rows may take (default {SECONDS:g})")


# ---- which rows --------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Choice:
    """The cells (model, batch) that are wanted, the rows to time, those that take most time first, and each cell's share of its
    estimated time that these rows are."""

    cells: Mapping[tuple[str, int], Mapping[int, int]]
    rows: Sequence[int]
    shares: Mapping[tuple[str, int], Mapping[int, float]]
    skipped: int


def names_of(text: str | None, known: Sequence[str]) -> list[str]:
    """Models by their names, comma-separated; all of them without names."""
    if not text:
        return list(known)
    by_lower = {n.lower(): n for n in known}
    given = [n.strip() for n in text.split(",")]
    if unknown := [n for n in given if n.lower() not in by_lower]:
        raise SystemExit(f"bench --models: got {unknown[0]!r}, expected some of {', '.join(known)}")
    return [by_lower[n.lower()] for n in given]


def estimate(subject: Subject, on_gpu: bool) -> float:
    """Seconds of a call, for the choice of rows alone."""
    rate, flops, call = RATES[on_gpu]
    return max(subject.bytes / rate, subject.flops / flops) + call


def choose(table: Table, models: Sequence[str], batches: Sequence[int], on_gpu: bool) -> Choice:
    cells = {c: calls for c, calls in table.calls.items() if c[0] in models and c[1] in batches}
    if not cells:
        raise SystemExit(f"bench --models: no rows of these models at batch {', '.join(map(str, batches))}")
    each = {
        row: estimate(table.rows[row].subject, on_gpu) for row in sorted({r for calls in cells.values() for r in calls})
    }
    shares, most = {}, dict.fromkeys(each, 0.0)
    for cell, calls in cells.items():
        whole = sum(count * each[row] for row, count in calls.items())
        shares[cell] = {row: count * each[row] / whole for row, count in calls.items()}
        for row, share in shares[cell].items():
            most[row] = max(most[row], share)
    rows = sorted((row for row in each if most[row] >= LEAST_SHARE), key=lambda row: -most[row])
    return Choice(cells, rows, shares, len(each) - len(rows))


# ---- figures -----------------------------------------------------------------------------------------------------------

#: milliseconds of a row's sides: ours, and that of the side it is compared with
Times = Mapping[int, tuple[float, float]]


def figure(calls: Mapping[int, int], times: Times) -> float | None:
    """A cell's time-weighted ratio over its timed rows; None where none was timed."""
    timed = [(count, *times[row]) for row, count in calls.items() if row in times]
    ours = sum(count * mine for count, mine, _ in timed)
    return sum(count * other for count, _, other in timed) / ours if ours else None


def geomean(ratios: Iterable[float]) -> float:
    return math.exp(statistics.fmean(map(math.log, ratios)))


@dataclass
class Figure:
    """Of one model, batch and mode: the time-weighted ratio, milliseconds of its timed rows, and their estimated share."""

    model: str
    batch: int
    math: str
    ratio: float
    ms: float
    other_ms: float
    share: float


def summarise(table: Table, choice: Choice, times: Mapping[str, Times]) -> dict[str, Any]:
    """The figures of models and families; `times` by mode."""
    found = []
    families = []
    for mode, of_mode in times.items():
        for (model, batch), calls in choice.cells.items():
            ratio = figure(calls, of_mode)
            if ratio is None:
                continue
            ms = [sum(n * of_mode[row][side] for row, n in calls.items() if row in of_mode) for side in (0, 1)]
            share = sum(s for row, s in choice.shares[model, batch].items() if row in of_mode)
            found.append(Figure(model, batch, mode, ratio, ms[0], ms[1], share))
        by_family: dict[str, list[float]] = {}
        for row, (mine, other) in of_mode.items():
            by_family.setdefault(registry.get(table.rows[row].op).family, []).append(other / mine)
        families += [
            {"family": family, "math": mode, "rows": len(ratios), "geomean": geomean(ratios), "least": min(ratios)}
            for family, ratios in sorted(by_family.items())
        ]
    return {"models": [asdict(f) for f in found], "families": families}


def show(
    table: Table, choice: Choice, times: Mapping[str, Times], summary: Mapping[str, Any], words: tuple[str, str]
) -> None:
    """Prints models, families and the rows where a model loses most; `words`: what the other side and the ratio are called."""
    by_model: dict[str, dict[tuple[str, int], Mapping[str, Any]]] = {}
    for f in summary["models"]:
        by_model.setdefault(f["model"], {})[f["math"], f["batch"]] = f
    columns = sorted({(f["math"], f["batch"]) for f in summary["models"]})
    lines = []
    for name, cells in by_model.items():
        ratios = (f"{cells[c]['ratio']:.2f}" if c in cells else "" for c in columns)
        lines.append((name, *ratios, f"{min(f['share'] for f in cells.values()):.1%}"))
    means = [geomean(f["ratio"] for f in summary["models"] if (f["math"], f["batch"]) == c) for c in columns]
    lines.append(("geomean", *(f"{m:.2f}" for m in means), ""))
    print(f"\n{words[1]}, weighted by time")
    print(format_table(("model", *(f"{mode[:5]}, {batch}" for mode, batch in columns), "timed"), lines))
    print()
    print(format_table(
        ("family", "mode", "rows", "geomean", "least"),
        [(f["family"], f["math"], f["rows"], f"{f['geomean']:.2f}", f"{f['least']:.2f}") for f in summary["families"]],
    ))  # fmt: skip
    print(f"\nrows by what they cost a model beyond {words[0]}: the largest share of a step in excess")
    worst = []
    for mode, of_mode in times.items():
        for (model, batch), calls in choice.cells.items():
            whole = sum(n * of_mode[row][0] for row, n in calls.items() if row in of_mode)
            worst += [
                (n * (mine - other) / whole, mine, other, mode, f"{model}, {batch}", row)
                for row, n in calls.items()
                if row in of_mode
                for mine, other in [of_mode[row]]
            ]
    seen: set[tuple[str, int]] = set()
    for loss, mine, other, mode, model, row in sorted(worst, reverse=True):
        if (mode, row) in seen or loss < LEAST_LOSS or len(seen) >= SHOWN:
            continue
        seen.add((mode, row))
        subject = table.rows[row].subject
        print(f"{loss:6.1%} of {model:22} {other / mine:5.2f}  {mine:9.4f} ms  {mode:12} "
              f"{subject.op.entry(subject.which)} {subject.label:.110}")  # fmt: skip
    left = len(set().union(*choice.cells.values())) - choice.skipped - len(set().union(*map(set, times.values())))
    print(f"{choice.skipped} rows below {LEAST_SHARE:.1%} of every step were skipped, {left} others were not timed")


# ---- timing ------------------------------------------------------------------------------------------------------------


def plan_of(subject: Subject) -> dict[str, Any]:
    """Our call as :func:`bench.beside_worker.bind` makes it, in words of JSON: names of arguments, and shapes."""
    name = subject.op.entry(subject.which)
    arrays = {a.name: a for a in subject.signature.inputs}
    plan: dict[str, Any] = {"name": name, "arrays": {}, "values": {}, "want": subject.want, "device": None}
    for argument in arguments_of(name):
        of = argument.of
        if argument.kind == "device":
            plan["device"] = argument.name
        elif of in arrays:
            array = arrays[of]
            if array.optional and of not in subject.given:
                continue
            limit = 0
            if array.kind in ("u32", "index"):
                limit = (
                    subject.names["cols"] if of == "labels" else subject.names.get("rows", subject.names.get("n", 1))
                )
            plan["arrays"][argument.name] = [of, list(shape_of(array, subject.names)), limit]
        elif of in subject.names:
            plan["values"][argument.name] = subject.names[of]
    return plan


def tensors_of(
    plan: Mapping[str, Any], buffers: Mapping[str, Any], indices: Mapping[str, Any], torch: Any, place: str
) -> dict[str, Any]:
    """The inputs as PyTorch's tensors over the same memory; indices are copies of 64 bits."""
    found = {}
    for of, shape, _ in plan["arrays"].values():
        if of in indices:
            found[of] = torch.from_numpy(indices[of].astype("int64")).to(place).reshape(shape)
        else:
            found[of] = torch.from_dlpack(buffers[of]).reshape(shape)
    return found


def modes_of(subject: Subject, math: str) -> Sequence[str]:
    """The modes in which a row is timed under ``--math``; one where both compute the same."""
    if math != "both":
        return (math,)
    return MATH if subject.op.in_math("reproducible") is not subject.op else MATH[:1]


def torch_watch(torch: Any) -> Watch:
    """Of PyTorch's calls on the GPU."""
    events = [torch.cuda.Event(enable_timing=True) for _ in range(2)]
    a, b, c = (torch.zeros(FILL, FILL, device="cuda") for _ in range(3))

    def elapsed() -> float:
        events[1].synchronize()
        return float(events[0].elapsed_time(events[1]))

    return Watch(lambda i: events[i].record(), elapsed, lambda: torch.mm(a, b, out=c))


def take_turns(sides: Sequence[Sided], turns: int) -> list[float]:
    """Milliseconds of each side, medians; every second turn begins with the last side."""
    found: list[list[float]] = [[] for _ in sides]
    for turn in range(turns):
        order = range(len(sides)) if turn % 2 == 0 else reversed(range(len(sides)))
        for i in order:
            found[i].append(sides[i].sample())
    return [statistics.median(f) for f in found]


@dataclass
class Timed:
    """A row in one mode."""

    row: int
    op: str
    family: str
    size: str
    math: str
    ours_ms: float
    torch_ms: float
    ratio: float


def time_row(
    number: int, row: ModelRow, device: tlrt.Device, torch: Any, watches: tuple[Watch, Watch], math: str
) -> Iterator[Timed]:
    subject = row.subject
    plan = plan_of(subject)
    buffers, indices = lay(plan, device)
    place = "cuda" if device.is_cuda else "cpu"
    tensors = tensors_of(plan, buffers, indices, torch, place)
    theirs = model_peers.call(subject, torch, place, tensors)
    modes = modes_of(subject, math)
    sides = [*sides_of(bind(plan, buffers, device), device, watches[0], modes), Sided(watches[1], theirs)]
    *mine, other = take_turns(sides, TURNS[sides[-1].once > LONG])
    entry = subject.op.entry(subject.which)
    for mode, ms in zip(modes, mine, strict=True):
        yield Timed(number, entry, subject.op.family, subject.label, mode, ms, other, other / ms)


def times_of(timed: Sequence[Any], math: str, ours: str, other: str) -> dict[str, dict[int, tuple[float, float]]]:
    """By mode; a row that computes the same in both modes was timed in the first, and counts in each."""
    modes = MATH if math == "both" else (math,)
    found: dict[str, dict[int, tuple[float, float]]] = {mode: {} for mode in modes}
    for mode in (MATH[0], *modes):
        for t in timed:
            if t.math == mode:
                for each in modes if mode == MATH[0] and math == "both" else (mode,):
                    found[each][t.row] = getattr(t, ours), getattr(t, other)
    return found


def run(device: tlrt.Device, names: str | None, batches: Sequence[int], math: str, seconds: float) -> dict[str, Any]:
    """Measures, prints and gives the document."""
    torch = import_torch(device)
    if torch is None:
        raise SystemExit("bench --models: PyTorch is not installed, and the ratios are against it")
    table = load()
    choice = choose(table, names_of(names, table.models), batches, device.is_cuda)
    watches = watch_of(device), torch_watch(torch) if device.is_cuda else watch_of(device)
    timed: list[Timed] = []
    failed: list[str] = []
    end, held = time.monotonic() + seconds, 0.0
    # the device is shared, and has its own mode again behind the block
    with Progress(len(choice.rows), "rows") as progress, device.set_math(device.math):
        for number in choice.rows:
            if time.monotonic() > end:
                break
            row = table.rows[number]
            held += row.subject.bytes
            if held > MOST_HELD:  # memory of both sides' pools
                device.collect()
                if device.is_cuda:
                    torch.cuda.empty_cache()
                held = row.subject.bytes
            try:
                timed += time_row(number, row, device, torch, watches, math)
            except Exception as error:  # one row that cannot run must not cost the others
                failed.append(f"{row.op} {row.which} {row.subject.label}: {type(error).__name__}: {error}")
                held = MOST_HELD  # it may have been for want of memory
            progress.advance(1, row.op)
    times = times_of(timed, math, "ours_ms", "torch_ms")
    summary = summarise(table, choice, times)
    show(table, choice, times, summary, ("PyTorch", "times faster than PyTorch"))
    for message in failed:
        print(f"FAILED {message}")
    return {"torch": torch.__version__, "threads": tlrt.threads(), **summary, "rows": [asdict(t) for t in timed],
            "skipped": choice.skipped, "failed": failed}  # fmt: skip
