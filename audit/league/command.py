"""``python -m audit league``: every operation of every library that is here, judged; status 1 if a failure is not explained."""

import argparse
import multiprocessing
import sys
import threading
import time
import warnings
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

from audit.environment import describe_run, processors
from audit.league.explained import reason_of
from audit.league.libraries import LIBRARIES, Call, Library
from tlrt._terminal import Progress, format_table
from tlrt.verify.documents import format_command, write_document
from tlspec import registry
from tlspec.judge import Report, check
from tlspec.registry import Op

Line = dict[str, Any]
#: seconds that one function may take
LIMIT = 300


#: what may be said of a kernel that fails without it, in the order in which it is tried, and the words for it
WEAKER: tuple[tuple[dict[str, Any], str], ...] = (
    ({"flush": True}, "takes subnormal numbers for zero"),
    ({"intermediate": "own"}, "rounds every intermediate result to the format of its arrays"),
    (
        {"intermediate": "own", "flush": True},
        "rounds every intermediate result to the format of its arrays, and takes subnormal numbers for zero",
    ),
)


def judge(library: Library, row: Op, which: str, dtype: str, cases: int) -> Line | None:
    """One cell of the table; None where the library has no such function. A function that fails is judged again under weaker
    assumptions about its arithmetic: one under which it passes explains the failure."""
    call = library.call(row, which)
    if call is None:
        return None
    report = _report(call, library, row, which, dtype, cases)
    line: Line = {
        "library": library.name, "op": row.name, "which": which, "dtype": dtype, "verdict": report.verdict,
        "share": float(f"{report.share:.3g}"), "ulp": float(f"{max((r.ulp for r in report.rows), default=0):.3g}"),
        "cases": sum(r.cases for r in report.rows), "blind": sum(r.blind for r in report.rows),
        "repeats": report.repeats, "batches": report.batches,
    }  # fmt: skip
    if report.findings:
        kinds = sorted({f.kind for f in report.findings})
        worst = report.findings[0]
        line |= {"kinds": kinds, "finding": worst.text[:200], "case": worst.repeat.split("case=")[-1].strip(")'\"")}
        line["explained"] = reason_of(line)
        for words, text in WEAKER if kinds == ["value"] and not line["explained"] else ():
            given = {k: dtype if v == "own" else v for k, v in words.items()}
            if not _report(call, library, row, which, dtype, cases, **given).findings:
                line["explained"] = text
                break
    return line


def _report(call: Call, library: Library, row: Op, which: str, dtype: str, cases: int, **assumed: Any) -> Report:
    adapter: Callable[..., Any] = lambda function, values: function(values)
    options: dict[str, Any] = {
        "dtype": dtype,
        "array": library.array,
        "cases": cases,
        "empty": False,
        "sensitive": False,
    }
    return check(
        call if which == "forward" else _unused, row, backward=call if which == "vjp" else None, arguments=adapter,
        backward_arguments=adapter, directions=(which,), **options, **assumed,
    )  # fmt: skip


def _unused(values: Mapping[str, Any]) -> Any:
    raise AssertionError("only the gradient is judged")


def _worker(tasks: Connection) -> None:
    """Judges what it is sent until nothing comes."""
    warnings.simplefilter("ignore")
    known = {lib.name: lib for lib in LIBRARIES}
    while (task := tasks.recv()) is not None:
        library, row, which, dtype, cases = task
        tasks.send(judge(known[library], registry.get(row), which, dtype, cases))


class _Worker:
    """A process that judges cell after cell; a library that ends it is a finding, and it is started again."""

    def __init__(self) -> None:
        self.start()

    def start(self) -> None:
        self.pipe, end = multiprocessing.get_context("spawn").Pipe()
        self.process = multiprocessing.get_context("spawn").Process(target=_worker, args=(end,), daemon=True)
        self.process.start()
        end.close()

    def judge(self, library: str, row: str, which: str, dtype: str, cases: int) -> Line | None:
        self.pipe.send((library, row, which, dtype, cases))
        try:
            if self.pipe.poll(LIMIT):
                return self.pipe.recv()
            why = f"no end within {LIMIT} s"
        except (EOFError, OSError):
            self.process.join()
            why = f"the process ended with status {self.process.exitcode}"
        self.process.kill()
        self.start()
        line: Line = {
            "library": library,
            "op": row,
            "which": which,
            "dtype": dtype,
            "verdict": "fail",
            "share": 0.0,
            "ulp": 0.0,
        }
        line |= {
            "cases": 0,
            "blind": 0,
            "repeats": None,
            "batches": None,
            "kinds": ["crash"],
            "finding": why,
            "case": "",
        }
        return {**line, "explained": reason_of(line)}

    def stop(self) -> None:
        self.pipe.send(None)
        self.process.join()


def run(libraries: Sequence[Library], names: str | None, dtypes: Sequence[str], cases: int, workers: int) -> list[Line]:
    """All cells, in their order."""
    work = [(lib.name, row.name, which, dtype, cases) for lib in libraries for row in registry.ops(names)
            for which in (("forward", "vjp") if row.vjp_rule else ("forward",))
            for dtype in lib.formats if (not dtypes or dtype in dtypes) and lib.call(row, which) is not None]  # fmt: skip
    progress, local = Progress(len(work), "functions"), threading.local()
    started: list[_Worker] = []

    def one(task: tuple[str, str, str, str, int]) -> Line | None:
        if not hasattr(local, "worker"):
            local.worker = _Worker()
            started.append(local.worker)
        return local.worker.judge(*task)

    lines = []
    with ThreadPoolExecutor(workers) as pool:
        for task, line in zip(work, pool.map(one, work), strict=True):
            progress.advance(1, f"{task[0]} {task[1]} {task[3]}")
            lines += [line] if line is not None else []
    for worker in started:
        worker.stop()
    progress.close()
    return lines


def summary(lines: Sequence[Line]) -> str:
    """One line a library and format, then every failure."""
    rows = []
    for key in dict.fromkeys((r["library"], r["dtype"]) for r in lines):
        own = [r for r in lines if (r["library"], r["dtype"]) == key]
        count = {v: sum(r["verdict"] == v for r in own) for v in ("pass", "fail", "blind")}
        unexplained = sum(r["verdict"] == "fail" and not r["explained"] for r in own)
        batches = sum(r["batches"] is False for r in own)
        rows.append((*key, len(own), *count.values(), unexplained, batches, sum(r["repeats"] is False for r in own)))
    head = (
        "library",
        "format",
        "functions",
        "pass",
        "fail",
        "blind",
        "unexplained",
        "depend on the batch",
        "not repeatable",
    )
    text = format_table(head, rows)
    for r in lines:
        if r["verdict"] == "fail":
            mark = r["explained"] or "UNEXPLAINED"
            text += f"\n{r['library']} {r['op']} {r['which']} {r['dtype']} [{r['case']}]: {r['finding']}: {mark}"
    return text


def main(argv: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(prog="python -m audit league", description=(__doc__ or "").strip())
    add = parser.add_argument
    add(
        "--libraries",
        metavar="NAMES",
        help=f"of {', '.join(lib.name for lib in LIBRARIES)} (default: all that are here)",
    )
    add("--ops", metavar="NAMES", help="operations, families and * patterns, comma-separated")
    add("--dtypes", default="", metavar="NAMES", help="number formats (default: all that a library has)")
    add("--cases", type=int, default=24, metavar="N", help="small cases of each function (default 24)")
    add("--workers", type=int, default=processors(), metavar="N", help="processes (default: one per processor)")
    add("--json", type=Path, metavar="FILE")
    add("--commit", help="the commit to record")
    args = parser.parse_args(argv)
    wanted = [n.strip() for n in args.libraries.split(",")] if args.libraries else [lib.name for lib in LIBRARIES]
    if unknown := set(wanted) - {lib.name for lib in LIBRARIES}:
        parser.error(f"--libraries: got {unknown.pop()!r}, expected {', '.join(lib.name for lib in LIBRARIES)}")
    chosen = [lib for lib in LIBRARIES if lib.name in wanted and lib.present()]
    for lib in LIBRARIES:
        if lib.name in wanted and lib not in chosen:
            print(f"{lib.name} is not here", file=sys.stderr)
    start = time.perf_counter()
    lines = run(chosen, args.ops, [d for d in args.dtypes.split(",") if d], args.cases, args.workers)
    print(summary(lines))
    unexplained = [r for r in lines if r["verdict"] == "fail" and not r["explained"]]
    print(f"{len(unexplained)} unexplained failures in {len(lines)} functions, {time.perf_counter() - start:.0f} s")
    if args.json is not None:
        about = {"command": format_command(["python", "-m", "audit", "league", *argv]), **describe_run(["cpu"])}
        versions = {lib.name: lib.version for lib in chosen}
        document = {
            **({"commit": args.commit} if args.commit else {}),
            **about,
            "versions": versions,
            "functions": lines,
        }
        write_document(args.json, document)
    return 1 if unexplained else 0
