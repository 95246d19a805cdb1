"""``python -m audit league``: the judge on the calls of every library that is installed."""

import argparse
import inspect
import multiprocessing
import re
import sys
import time
import warnings
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import BrokenExecutor, ProcessPoolExecutor, as_completed
from pathlib import Path
from typing import Any

from audit.environment import commit, now, processors
from audit.league.explained import explanation
from audit.league.libraries import LIBRARIES
from audit.league.table import summary
from tlrt._terminal import Progress
from tlrt.verify.documents import format_command, write_document
from tlrt.verify.report import describe_versions
from tlspec import check, registry
from tlspec.drawn import data_classes
from tlspec.registry import Op

#: what libraries say where they refuse a format, a rank, a padding or a number
REFUSED = re.compile(
    r"not implemented for|NOT_IMPLEMENTED|not support|[Uu]nsupported|paddings that differ|cannot be converted to type"
    r"|has no attribute '(conv|max_pool|avg_pool)|pad(ding)? should be at most half|smaller than kernel size|pool_attributes"
)
#: data on which gradients are not compared: libraries say nothing of gradients at NaN and infinities, and the formulas of all
#: over- and underflow on the way at the ends of the range
EXTREME = ("special", "wide", "huge")
#: families whose forward results at NaN and infinities are not compared: whether a padding is multiplied with an infinity, and
#: which bins of a transform an infinity reaches, no library says
OPEN_SPECIALS = ("conv", "spectral")
#: findings of each kind that a line keeps, and the characters of a text
KEPT, TEXT = 2, 300


def named(function: Callable[..., Any], names: Sequence[str]) -> Callable[..., Any]:
    """A function of keywords, with the signature that the judge reads."""

    def call(**values: Any) -> Any:
        return function(**values)

    parameters = [inspect.Parameter(n, inspect.Parameter.KEYWORD_ONLY) for n in names]
    call.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    return call


def functions(library: str, row: Op) -> Iterator[tuple[str, Callable[..., Any]]]:
    """The directions of a row that a library has, and their functions."""
    kind = LIBRARIES[library]
    call = kind.calls()[row.name]
    sig = row.signature
    known = {*(a.name for a in sig.inputs), *(p.name for p in sig.params), *(d.lstrip("*") for d in sig.dims)}
    names = [n for n in inspect.signature(call).parameters if n in known]
    yield "forward", named(kind.prepare(call), names)
    if row.no_vjp:
        return
    wrt = tuple(a.name[1:] for a in row.signature_of("vjp").outputs)
    gradient = kind.gradient(call, wrt)
    if gradient is not None and row.name not in kind.module.ENDS_THE_PROCESS:
        yield "vjp", named(lambda g, **values: gradient(values, g), [*names, "g"])


def assumptions(library: str, op: str, which: str, dtype: str) -> dict[str, Any]:
    """What is known of a call's arithmetic. In a narrow format a call of several operations, and a gradient, rounds between
    them; sums are those of the library."""
    kind = LIBRARIES[library]
    flush = {"flush": True} if dtype in kind.flushed else {}
    if dtype == "float32":
        return flush
    if (op, which) in kind.module.IN_PLACE:
        return {"accumulate": dtype, "intermediate": dtype, **flush}
    composed = which == "vjp" or op in kind.module.COMPOSED
    sums = {"accumulate": kind.sums} if kind.sums else {"accumulate": "float32"} if composed else {}
    return {**sums, **({"intermediate": dtype} if composed else {}), **flush}


def sizes(cases: int) -> dict[str, int]:
    """Cases of each size; a large one would take most of the time."""
    return {"small": cases, "medium": cases // 4, "edges": cases // 3}


def classes(row: Op, which: str) -> list[str]:
    """The data classes on which a row is compared."""
    own = [*data_classes(row, which), *(["offset"] if row.bound_of(which).kind not in ("exact", "moved") else [])]
    left = EXTREME if which == "vjp" else ("special",) if row.family in OPEN_SPECIALS else ()
    return [c for c in own if c not in left]


def shortened(text: str) -> str:
    """The beginning and the end of a long text, where errors of compilers say what and why, without folders of the machine."""
    text = re.sub(r'"(/[^"/]+)+/', '"', text)
    return text if len(text) <= TEXT else f"{text[: TEXT // 2]} ... {text[-TEXT // 2 :]}"


def judge(library: str, op: str, dtype: str, cases: int, case: str | None = None) -> list[dict[str, Any]]:
    """The lines of one row in one format, one for each direction."""
    lines, row = [], registry.get(op)
    warnings.simplefilter("ignore")
    for which, function in functions(library, row):
        given = {"dtype": dtype, "array": LIBRARIES[library].arrays, "cases": sizes(cases), "empty": False, "sensitive": False,
                 "case": case, "data": classes(row, which), "isolate": False,
                 **assumptions(library, op, which, dtype)}  # fmt: skip
        forward, backward = (function, None) if which == "forward" else (None, function)
        try:
            report = check(forward, row, backward=backward, **given)
        except Exception as error:
            raise RuntimeError(f"{library} {op} {dtype} {which}: {type(error).__name__}: {error}") from error
        if case is not None:
            print(report)
        refused = [f for f in report.findings if f.kind == "error" and REFUSED.search(f.text)]
        report.findings = [f for f in report.findings if f not in refused]
        total, failed = sum(r.cases for r in report.rows), sum(r.failed for r in report.rows)
        if total == 0:
            continue
        line: dict[str, Any] = {
            "library": library, "op": op, "dtype": dtype, "which": which, "verdict": report.verdict, "share": report.share,
            "ulp": max(r.ulp for r in report.rows), "cases": total, "failed": failed - len(refused),
            "refused": len(refused), "blind": sum(r.blind for r in report.rows),
            "repeats": report.repeats, "batches": report.batches, "assumed": report.assumptions,
            "seconds": round(report.seconds, 2), "kinds": sorted({f.kind for f in report.findings}), "findings": [],
        }  # fmt: skip
        kept: Counter[str] = Counter()
        for finding in report.findings:
            kept[finding.kind] += 1
            if kept[finding.kind] <= KEPT:
                address = finding.repeat.rpartition("case=")[2].rstrip(")").strip("'\"")
                line["findings"].append({"kind": finding.kind, "text": shortened(finding.text), "case": address})
        if len(refused) == total:
            line["verdict"], line["refusal"] = "absent", shortened(refused[0].text)
        lines.append(line)
    return lines


def tasks(libraries: Sequence[str], ops: str | None, formats: Sequence[str]) -> list[tuple[str, str, str]]:
    """Library, row and format of what is to be judged."""
    chosen = [r.name for r in registry.ops(ops)]
    return [
        (library, op, dtype)
        for library in libraries
        for op in chosen
        for dtype in formats
        if dtype in LIBRARIES[library].formats and op in LIBRARIES[library].calls()
        if dtype == "float32" or op not in LIBRARIES[library].module.FLOAT32
    ]


def main(argv: Sequence[str]) -> int:
    """Runs the league; the exit status says whether a failure has no explanation."""
    p = argparse.ArgumentParser(
        prog="python -m audit league",
        description="Holds the operations of other libraries to the specification. Status 1 for a failure that "
        "audit/league/explained.py has no entry for.",
    )
    p.add_argument("--libraries", metavar="NAMES", help=f"of {', '.join(LIBRARIES)} (default: all that are installed)")
    p.add_argument("--ops", metavar="NAMES", help="operations, families and * patterns, comma-separated (default: all)")
    p.add_argument("--dtypes", metavar="NAMES", default="float32,bfloat16,float16", help="formats (default: all three)")
    p.add_argument("--cases", type=int, default=4, metavar="N", help="small cases of a row (default 4)")
    p.add_argument("--case", metavar="CASE", help="one case, as a line of the evidence names it, with its report")
    p.add_argument("--workers", type=int, metavar="N", help="processes (default: one per processor)")
    p.add_argument("--json", metavar="FILE", help="write the evidence there; JSON lines to FILE.jsonl")
    p.add_argument("--commit", metavar="HASH", help="the commit that the evidence names (default: the tree's)")
    args = p.parse_args(argv)
    names = args.libraries.split(",") if args.libraries else list(LIBRARIES)
    if unknown := [n for n in names if n not in LIBRARIES]:
        p.error(f"--libraries: got {unknown[0]!r}, expected {', '.join(LIBRARIES)}")
    try:
        registry.ops(args.ops)
    except KeyError as error:
        p.error(str(error.args[0]))
    left = {n: why for n in names if (why := LIBRARIES[n].missing())}
    for name, why in left.items():
        print(f"left out: {LIBRARIES[name].title}: {why}")
    present = [n for n in names if n not in left]
    work = tasks(present, args.ops, args.dtypes.split(","))
    if not work:
        p.exit(0 if left and not present else 2, "audit league: nothing to judge\n")
    if args.case is not None:
        lines = [line for task in work for line in judge(*task, args.cases, args.case)]
        return int(any(line["verdict"] == "fail" for line in lines))
    document: dict[str, Any] = {
        "command": format_command(["python", "-m", "audit", "league", *argv]), "started": now(),
        "commit": args.commit or commit(), "versions": {**describe_versions(), **{n: LIBRARIES[n].version() for n in present}},
        "processors": processors(), "absent": left, "rows": run(work, args),
    }  # fmt: skip
    if args.json:
        write_document(Path(args.json), document)
    print(summary(document))
    return int(any(unexplained(line) for line in document["rows"]))


def unexplained(line: Mapping[str, Any]) -> bool:
    return line["verdict"] == "fail" and not explanation(line)


def run(work: Sequence[tuple[str, str, str]], args: argparse.Namespace) -> list[dict[str, Any]]:
    """Judges in processes of their own, as some libraries hold locks over a fork; lines in the order of the tasks."""
    found: dict[tuple[str, str, str], list[dict[str, Any]]] = {}
    progress, start = Progress(len(work), "rows"), time.monotonic()
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(args.workers or processors(), mp_context=context) as pool:
        waiting = {pool.submit(judge, *task, args.cases): task for task in work}
        for each in as_completed(waiting):
            try:
                found[waiting[each]] = each.result()
            except RuntimeError as error:
                if isinstance(error, BrokenExecutor):  # the library ended the process
                    raise
                library, op, dtype = waiting[each]
                found[waiting[each]] = [{
                    "library": library, "op": op, "dtype": dtype, "which": "forward", "verdict": "fail", "share": 0.0,
                    "ulp": 0.0, "cases": 0, "failed": 1, "refused": 0, "blind": 0, "repeats": None, "batches": None,
                    "assumed": "", "seconds": 0.0, "kinds": ["stopped"],
                    "findings": [{"kind": "stopped", "text": shortened(str(error)), "case": ""}],
                }]  # fmt: skip
            for line in found[waiting[each]]:
                if unexplained(line):
                    print(f"fail: {line['library']} {line['op']} {line['dtype']} {line['which']}: "
                          f"{line['findings'][0]['kind']}: {line['findings'][0]['text']}", file=sys.stderr)  # fmt: skip
            progress.advance(1, " ".join(waiting[each]))
    progress.close()
    print(f"{len(work)} rows in {time.monotonic() - start:.0f} s")
    return [line for task in work for line in found[task]]
