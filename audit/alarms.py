"""False alarms: very many correct comparisons through the derived bounds.

A comparison is one output of one drawn case against the reference. The results are the library's own, so an alarm is a
bound that is too tight (or a defect that verify would find as well). The worst error of a comparison as a share of its
tolerance goes into a histogram; an entry point whose worst share stays below 1/50 has a bound that is looser than it need
be. Bounds that allow nothing have no histogram, only alarms.
"""

import concurrent.futures
import multiprocessing
import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np

from audit.environment import processors
from tlrt._terminal import Progress, format_table
from tlrt.distributed import Group
from tlrt.verify.run import Runtime, cpu_settings
from tlrt.verify.verifier import directions
from tlspec import registry
from tlspec.compare import compare_outputs, reproduction
from tlspec.drawn import data_classes, draw_case

#: upper edges of the histogram's bins; an alarm is above the last
EDGES = (0.0, 1 / 1024, 1 / 256, 1 / 128, 1 / 64, 1 / 50, 1 / 32, 1 / 16, 1 / 8, 1 / 4, 1 / 2, 1.0)
#: a bound that nothing comes this close to is too loose
LOOSE = 1 / 50
#: comparisons of one task of a worker process
TASK = 100


def _empty_row(entry: str, device: str, bound: str) -> dict[str, Any]:
    return {"entry": entry, "device": device, "bound": bound, "comparisons": 0, "measured": 0, "elements": 0,
            "alarms": 0, "worst": 0.0, "worst_line": "", "histogram": [0] * len(EDGES), "alarm_lines": []}  # fmt: skip


def _work(
    name: str, which: str, seed: int, count: int, devices: Sequence[str], kernels: Any = None
) -> list[dict[str, Any]]:
    """`count` comparisons of one entry point on every device, the cases beginning at `seed`."""
    op = registry.get(name)
    rows = {d: _empty_row(op.entry(which), d, op.bound_of(which).text) for d in devices}
    runtimes = {d: Runtime(d, kernels) for d in devices}
    classes = data_classes(op, which)
    first = rows[devices[0]]
    while first["comparisons"] < count:
        case = draw_case(op, seed, classes[seed % len(classes)], "small", which)
        seed += 1
        for device, runtime in runtimes.items():
            row, expected = rows[device], case.expected_on(device)
            try:
                outs = runtime.run(case)
            except Exception as error:  # a call that raises is a finding, not the end of the run
                row["comparisons"] += 1
                row["alarms"] += 1
                text = f"{type(error).__name__}: {error}; {reproduction(case, device)}"
                row["alarm_lines"] = [*row["alarm_lines"][:2], text]
                continue
            found = compare_outputs(expected, outs)
            for a, c, tol in zip(case.signature.outputs, found, expected.tolerances, strict=True):
                assert c is not None
                row["comparisons"] += 1
                row["elements"] += c.count
                if not c.ok:
                    row["alarms"] += 1
                    if len(row["alarm_lines"]) < 3:
                        row["alarm_lines"].append(f"{c.explain(a.name)}; {reproduction(case, device)}")
                elif c.count and bool(np.any((tol > 0) & np.isfinite(tol))):
                    row["measured"] += 1
                    row["histogram"][int(np.searchsorted(EDGES, c.share))] += 1
                    if c.share > row["worst"]:
                        row["worst"], row["worst_line"] = c.share, reproduction(case, device)
    return list(rows.values())


def _task(arguments: tuple[Any, ...]) -> list[dict[str, Any]]:
    with cpu_settings(threads=1):  # cases are the parallel work
        return _work(*arguments)


@contextmanager
def one_thread_each() -> Iterator[None]:
    """Processes started within use one thread for NumPy's products: they are as many as there are processors."""
    names = ("OPENBLAS_NUM_THREADS", "OMP_NUM_THREADS", "MKL_NUM_THREADS")
    before = {n: os.environ.get(n) for n in names}
    os.environ.update(dict.fromkeys(names, "1"))
    try:
        yield
    finally:
        for n, value in before.items():
            if value is None:
                del os.environ[n]
            else:
                os.environ[n] = value


def alarms(
    devices: Sequence[str], count: int, names: str | None = None, *, seed: int = 10_000, workers: int | None = None,
    kernels: Any = None, group: Group | None = None,
) -> dict[str, Any]:  # fmt: skip
    """At least `count` comparisons per device, spread evenly over the entry points, and over the ranks of a group, each of which
    has all results afterwards; one dictionary. Without `workers` every
    processor has one; 0 stays in this process."""
    work = [(op.name, which) for op in registry.ops(names) for which in directions(op)]
    each = -(-count // len(work))
    # a case has a few outputs, so tasks of an entry point are far enough apart in seeds
    tasks = [
        (name, which, seed + first, min(TASK, each - first), list(devices))
        for first in range(0, each, TASK)
        for name, which in work
    ]
    group = group or Group()
    tasks = group.share(tasks)
    rows: dict[tuple[str, str], dict[str, Any]] = {}
    progress = Progress(float(len(tasks) * TASK), "comparisons")

    def enter(results: list[dict[str, Any]]) -> None:
        for r in results:
            key = (r["entry"], r["device"])
            if key not in rows:
                rows[key] = r
                continue
            row = rows[key]
            for f in ("comparisons", "measured", "elements", "alarms"):
                row[f] += r[f]
            row["histogram"] = [a + b for a, b in zip(row["histogram"], r["histogram"], strict=True)]
            row["alarm_lines"] = (row["alarm_lines"] + r["alarm_lines"])[:3]
            if r["worst"] > row["worst"]:
                row["worst"], row["worst_line"] = r["worst"], r["worst_line"]

    count_workers = max(processors() // group.size, 1) if workers is None else workers
    if count_workers == 0:
        for t in tasks:
            enter(found := _work(*t, kernels))
            progress.advance(float(TASK), found[0]["entry"])
    else:
        # started anew, not forked: a CUDA context does not survive a fork
        context = multiprocessing.get_context("spawn")
        pool = concurrent.futures.ProcessPoolExecutor(count_workers, mp_context=context)
        with one_thread_each(), pool:
            for done in concurrent.futures.as_completed([pool.submit(_task, t) for t in tasks]):
                enter(found := done.result())
                progress.advance(float(TASK), found[0]["entry"])
    progress.close()
    if group.size > 1:
        shared = group.gather(list(rows.values()))
        rows = {}
        for found in shared:
            enter(found)
    ordered = [rows[k] for k in sorted(rows, key=lambda k: (k[0], list(devices).index(k[1])))]
    totals = {
        d: {f: sum(r[f] for r in ordered if r["device"] == d) for f in ("comparisons", "elements", "alarms")}
        for d in devices
    }
    loose = [
        {"entry": r["entry"], "device": r["device"], "bound": r["bound"], "worst": r["worst"], "line": r["worst_line"]}
        for r in ordered
        if r["measured"] and r["worst"] < LOOSE
    ]
    return {"seed": seed, "edges": list(EDGES), "totals": totals, "loose": loose, "entries": ordered}


def ok(document: Mapping[str, Any]) -> bool:
    """Whether there was no alarm."""
    return not any(t["alarms"] for t in document["totals"].values())


def table(document: Mapping[str, Any]) -> str:
    """One line per entry point and device: alarms, the worst share and its histogram; then totals and loose bounds."""
    edges = [f"<={e:.3g}" for e in document["edges"]]
    rows = []
    for r in document["entries"]:
        worst = f"{r['worst']:.3f}" if r["worst"] else "0"
        rows.append((r["entry"], r["device"], r["comparisons"], r["alarms"], worst, *(n or "" for n in r["histogram"])))
    text = format_table(("entry point", "device", "comparisons", "alarms", "worst share", *edges), rows)
    for r in document["loose"]:
        text += f"\nloose: {r['entry']} on {r['device']}: worst share {r['worst']:.4f} of {r['bound']}; {r['line']}"
    for r in document["entries"]:
        for line in r["alarm_lines"]:
            text += f"\nFAIL {r['entry']} on {r['device']}: {line}"
    for device, t in document["totals"].items():
        text += f"\n{device}: {t['alarms']} alarms in {t['comparisons']} comparisons of {t['elements']} elements"
    return text
