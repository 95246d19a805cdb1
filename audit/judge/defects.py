"""``python -m audit judge``: kernels with a planted defect, which the judge must fail, beside right ones, which it must pass."""

import argparse
import warnings
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from audit.environment import describe_run
from audit.judge import compiled, launched, trivial
from audit.judge.kernels import DEFECTS, RIGHT
from tlrt._terminal import Progress, format_table
from tlrt.verify.documents import format_command, write_document
from tlspec import formats, registry
from tlspec.judge import Report, check

LANGUAGES = ("NumPy", "C", "Triton")
FORMATS = ("float32", "bfloat16", "float16")
#: the columns of :func:`table`
HEAD = ("language", "format", "right kernels", "failed", "defects", "caught", "operations")
UNEXPLAINED = "unexplained"
QUOTES = ")'\""
#: in the names of defects that are roundings which narrower formats have anyway
FINE = ("TF32", "bfloat16", "float16")


def in_format(kernel: Callable[..., Any], dtype: str) -> Callable[..., Any]:
    """A kernel of float32 numbers on arrays of a format: computed in float32, rounded once."""
    kind = formats.get(dtype).dtype

    def wide(x: Any) -> Any:
        return x.astype(np.float32) if isinstance(x, np.ndarray) and x.dtype == kind else x

    def run(*given: Any, **named: Any) -> Any:
        with np.errstate(all="ignore"):
            if dtype != "float32":
                given, named = tuple(map(wide, given)), {k: wide(v) for k, v in named.items()}
            made = kernel(*given, **named)
            if made is None:
                return None
            several = isinstance(made, tuple)
            results = [np.asarray(m, np.float32) for m in (made if several else (made,))]
        if dtype == "float32":
            same = isinstance(made, np.ndarray) and made.dtype == kind
            return tuple(results) if several else made if same else results[0]
        return tuple(r.astype(kind) for r in results) if several else results[0].astype(kind)

    return run


def judged(op: str, which: str, kernel: Callable[..., Any], dtype: str, cases: int) -> Report:
    """The judge's report of a kernel in a format. Kernels that write their output get it by position, after the inputs."""
    run = in_format(kernel, dtype)
    names = getattr(kernel, "__code__", None)
    writes = names is not None and "out" in names.co_varnames[: names.co_argcount] and which == "forward"
    sizes = {"small": cases, "medium": cases // 4, "edges": cases // 3, "large": int(op == "relu" or op == "exp")}
    options: dict[str, Any] = {"dtype": dtype, "cases": sizes, "empty": False, "sensitive": False}
    if which == "vjp":
        return check(None, op, backward=run, **options)
    return check(run, op, arguments="x, out" if writes else None, **options)


def _line(by: str, op: str, which: str, dtype: str, report: Report) -> dict[str, Any]:
    """The line of a right kernel, to which those defects are added that are planted in it."""
    first = report.findings[0].text if report.findings else ""
    return {"by": by, "op": op, "which": which, "dtype": dtype, "verdict": report.verdict,
            "share": float(f"{report.share:.3g}"), "finding": first, "caught": {}, "missed": {}}  # fmt: skip


def _add(line: dict[str, Any], name: str, report: Report, excuse: str = "") -> None:
    """A defect by the kind of its first finding and the case of that, or, where it is missed, by the reason."""
    if report.verdict == "fail":
        found = report.findings[0]
        line["caught"][name] = f"{found.kind} {found.repeat.split('case=')[-1].strip(QUOTES)}"
    else:
        line["missed"][name] = excuse or UNEXPLAINED


def run(dtypes: Sequence[str], cases: int, languages: Sequence[str] = LANGUAGES) -> list[dict[str, Any]]:
    """A line for each right kernel and format. A defect in NumPy is planted in the formats of which it is no rounding that they
    have anyway."""
    lines: dict[tuple[str, str, str, str], dict[str, Any]] = {}
    native = [each for each in (*compiled.kernels(), *launched.kernels()) if each.by in languages]
    right, defects = (RIGHT, DEFECTS) if "NumPy" in languages else ({}, ())
    progress = Progress(len(dtypes) * (len(right) + len(defects) + len(native)), "kernels")
    for dtype in dtypes:
        for (op, which), kernel in right.items():
            key = ("NumPy", op, which, dtype)
            lines[key] = _line(*key, judged(op, which, kernel, dtype, cases))
            progress.advance(1, f"{op} {dtype}")
        for d in defects:
            fine = d.fine or any(word in d.name for word in FINE)
            if dtype == "float32" or not (fine or d.raw):
                report = judged(d.op, d.which, d.kernel, dtype, cases)
                _add(lines["NumPy", d.op, d.which, dtype], d.name, report, "" if dtype == "float32" else d.excuse)
            progress.advance(1, f"{d.op} {dtype}")
        for each in native:
            key = (each.by, each.op, "forward", dtype)
            if dtype in each.formats and each.name:
                _add(lines[key], each.name, each.judge(dtype, cases))
            elif dtype in each.formats:
                lines[key] = _line(*key, each.judge(dtype, cases))
            progress.advance(1, f"{each.op} {dtype}")
    progress.close()
    return list(lines.values())


def run_trivial() -> dict[str, Any]:
    """Of the kernels that compute nothing: of how many rows each is caught, and the rows of which it is not, with the reason."""
    rows = registry.ops()
    progress = Progress(len(rows) * len(trivial.KERNELS), "kernels")
    found: dict[str, Any] = {}
    for name in trivial.KERNELS:
        missed = {}
        for row in rows:
            if not trivial.caught(row, name):
                missed[row.name] = trivial.RIGHT.get((row.name, name), UNEXPLAINED)
            progress.advance(1, f"{row.name}: {name}")
        found[name] = {"rows": len(rows), "caught": len(rows) - len(missed), "missed": missed}
    progress.close()
    return found


def table(lines: Sequence[Mapping[str, Any]]) -> list[tuple[Any, ...]]:
    """For each language and format: right kernels, those of them that failed, defects, those of them that were caught, and the
    operations."""
    rows: list[tuple[Any, ...]] = []
    for key in sorted(
        {(x["by"], x["dtype"]) for x in lines}, key=lambda k: (LANGUAGES.index(k[0]), FORMATS.index(k[1]))
    ):
        own = [x for x in lines if (x["by"], x["dtype"]) == key]
        alarms, caught, missed = (sum(counts) for counts in zip(
            *((x["verdict"] == "fail", len(x["caught"]), len(x["missed"])) for x in own), strict=True))  # fmt: skip
        rows.append((*key, len(own), alarms, caught + missed, caught, len({x["op"] for x in own})))
    return rows


def misses(lines: Sequence[Mapping[str, Any]]) -> list[tuple[Mapping[str, Any], str, str]]:
    """The defects that were missed: line, name and reason."""
    return [(x, name, reason) for x in lines for name, reason in x["missed"].items()]


def main(argv: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(prog="python -m audit judge", description=(__doc__ or "").strip())
    parser.add_argument("--dtypes", default=",".join(FORMATS), help=f"number formats ({','.join(FORMATS)})")
    parser.add_argument("--languages", default=",".join(LANGUAGES), help=f"of the kernels ({','.join(LANGUAGES)})")
    parser.add_argument("--cases", type=int, default=24, metavar="N", help="small cases of each kernel (24)")
    parser.add_argument(
        "--no-trivial", action="store_true", help="leave out zeros, copies and stale results of every row"
    )
    parser.add_argument("--json", type=Path, metavar="FILE")
    parser.add_argument("--commit", help="the commit to record")
    args = parser.parse_args(argv)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        lines = run([d for d in args.dtypes.split(",") if d], args.cases, args.languages.split(","))
        nothing = {} if args.no_trivial else run_trivial()
    print(format_table(HEAD, table(lines)))
    for language, module in (("C", compiled), ("Triton", launched)):
        if language in args.languages and not module.kernels():
            print(f"left out: kernels in {language}, {module.NEEDS}")
    alarms = [x for x in lines if x["verdict"] == "fail"]
    for line in alarms:
        print(f"FALSE ALARM {line['by']} {line['op']} {line['which']} {line['dtype']}: {line['finding']}")
    for x, name, reason in misses(lines):
        print(f"MISSED {x['by']} {x['op']} {x['which']} {x['dtype']}: {name}: {reason}")
    for name, found in nothing.items():
        print(f"{name}: caught in {found['caught']} of {found['rows']} rows")
        for row, reason in found["missed"].items():
            print(f"NOT CAUGHT {row}: {name}: {reason}")
    if args.json is not None:
        document = {"command": format_command(["python", "-m", "audit", "judge", *argv]), **describe_run(["cpu"]),
                    "trivial": nothing, "rows": lines}  # fmt: skip
        write_document(args.json, {"commit": args.commit, **document} if args.commit else document)
    reasons = [*(r for _, _, r in misses(lines)), *(r for f in nothing.values() for r in f["missed"].values())]
    return 1 if alarms or UNEXPLAINED in reasons else 0
