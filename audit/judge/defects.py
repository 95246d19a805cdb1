"""``python -m audit judge``: kernels with a planted defect, which the judge must fail, beside right ones, which it must pass."""

import argparse
import warnings
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from audit.environment import describe_run
from audit.judge import compiled, launched
from audit.judge.kernels import DEFECTS, RIGHT
from tlrt._terminal import Progress, format_table
from tlrt.verify.documents import format_command, write_document
from tlspec import formats
from tlspec.judge import Report, check

FORMATS = ("float32", "bfloat16", "float16")
#: the columns of :func:`table`
HEAD = ("language", "format", "right kernels", "failed", "defects", "caught", "operations")
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
            return (
                tuple(results)
                if several
                else made
                if isinstance(made, np.ndarray) and made.dtype == kind
                else results[0]
            )
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


def _right(by: str, op: str, which: str, dtype: str, report: Report) -> dict[str, Any]:
    first = report.findings[0].text if report.findings else ""
    return {"by": by, "op": op, "which": which, "dtype": dtype, "verdict": report.verdict,
            "share": float(f"{report.share:.3g}"), "finding": first}  # fmt: skip


def _planted(by: str, op: str, which: str, name: str, dtype: str, report: Report, excuse: str = "") -> dict[str, Any]:
    found = report.findings[0] if report.findings else None
    return {
        "by": by, "op": op, "which": which, "defect": name, "dtype": dtype, "caught": report.verdict == "fail",
        "kind": found.kind if found else "", "case": found.repeat.split("case=")[-1].strip(")'\"") if found else "",
        "excuse": "" if found or dtype == "float32" else excuse,
    }  # fmt: skip


def run(dtypes: Sequence[str], cases: int) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    """Lines of right kernels and of defects. A defect in NumPy is planted in the formats of which it is no rounding that they
    have anyway."""
    right, planted = [], []
    native = [*compiled.kernels(), *launched.kernels()]
    progress = Progress(len(dtypes) * (len(RIGHT) + len(DEFECTS) + len(native)), "kernels")
    for dtype in dtypes:
        for (op, which), kernel in RIGHT.items():
            right.append(_right("NumPy", op, which, dtype, judged(op, which, kernel, dtype, cases)))
            progress.advance(1, f"{op} {dtype}")
        for d in DEFECTS:
            fine = d.fine or any(word in d.name for word in FINE)
            if dtype == "float32" or not (fine or d.raw):
                report = judged(d.op, d.which, d.kernel, dtype, cases)
                planted.append(_planted("NumPy", d.op, d.which, d.name, dtype, report, d.excuse))
            progress.advance(1, f"{d.op} {dtype}")
        for each in native:
            if dtype in each.formats:
                key, report = (each.by, each.op, "forward"), each.judge(dtype, cases)
                if each.name:
                    planted.append(_planted(*key, each.name, dtype, report))
                else:
                    right.append(_right(*key, dtype, report))
            progress.advance(1, f"{each.op} {dtype}")
    progress.close()
    return right, planted


def table(right: Sequence[Mapping[str, Any]], planted: Sequence[Mapping[str, Any]]) -> list[tuple[Any, ...]]:
    """For each language and format: right kernels, those of them that failed, defects, those of them that were caught, and the
    operations."""
    rows: list[tuple[Any, ...]] = []
    for key in dict.fromkeys((p["by"], p["dtype"]) for p in planted):
        sound, own = ([x for x in lines if (x["by"], x["dtype"]) == key] for lines in (right, planted))
        alarms = sum(r["verdict"] == "fail" for r in sound)
        rows.append((*key, len(sound), alarms, len(own), sum(p["caught"] for p in own), len({p["op"] for p in own})))
    return rows


def main(argv: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(prog="python -m audit judge", description=(__doc__ or "").strip())
    parser.add_argument("--dtypes", default=",".join(FORMATS), help=f"number formats ({','.join(FORMATS)})")
    parser.add_argument("--cases", type=int, default=24, metavar="N", help="small cases of each kernel (24)")
    parser.add_argument("--json", type=Path, metavar="FILE")
    parser.add_argument("--commit", help="the commit to record")
    args = parser.parse_args(argv)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        right, planted = run([d for d in args.dtypes.split(",") if d], args.cases)
    missed = [p for p in planted if not p["caught"]]
    alarms = [r for r in right if r["verdict"] == "fail"]
    print(format_table(HEAD, table(right, planted)))
    for language, module in (("C", compiled), ("Triton", launched)):
        if not module.kernels():
            print(f"left out: kernels in {language}, {module.NEEDS}")
    for r in alarms:
        print(f"FALSE ALARM {r['by']} {r['op']} {r['which']} {r['dtype']}: {r['finding']}")
    for p in missed:
        print(f"MISSED {p['by']} {p['op']} {p['which']} {p['dtype']}: {p['defect']}: {p['excuse'] or 'unexplained'}")
    if args.json is not None:
        document = {"command": format_command(["python", "-m", "audit", "judge", *argv]), **describe_run(["cpu"]),
                    "rows": [*right, *planted]}  # fmt: skip
        write_document(args.json, {"commit": args.commit, **document} if args.commit else document)
    return 1 if alarms or any(not p["excuse"] for p in missed) else 0
