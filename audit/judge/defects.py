"""``python -m audit judge``: kernels with a planted defect, which the judge must fail, beside right ones, which it must pass."""

import argparse
import functools
import multiprocessing
import warnings
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from audit.environment import describe_run, processors
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
    """A kernel of float32 numbers on arrays of a format: computed in float32, rounded once; whole numbers stay as they are."""
    kind = formats.get(dtype).dtype

    def wide(x: Any) -> Any:
        return x.astype(np.float32) if isinstance(x, np.ndarray) and x.dtype == kind else x

    def rounded(result: Any) -> Any:
        made = np.asarray(result)
        return made if made.dtype.kind in "iu" else made.astype(np.float32, copy=False).astype(kind, copy=False)

    def run(*given: Any, **named: Any) -> Any:
        with np.errstate(all="ignore"):
            if dtype != "float32":
                given, named = tuple(map(wide, given)), {k: wide(v) for k, v in named.items()}
            made = kernel(*given, **named)
            if made is None:
                return None
            return tuple(map(rounded, made)) if isinstance(made, tuple) else rounded(made)

    return run


def judged(op: str, which: str, kernel: Callable[..., Any], dtype: str, cases: int) -> Report:
    """The judge's report of a kernel in a format. Kernels that write their output get it by position, after the inputs."""
    run = in_format(kernel, dtype)
    names = getattr(kernel, "__code__", None)
    writes = names is not None and "out" in names.co_varnames[: names.co_argcount] and which == "forward"
    sizes = {"small": cases, "medium": cases // 4, "edges": cases // 3, "large": int(op == "relu" or op == "exp")}
    options: dict[str, Any] = {"dtype": dtype, "cases": sizes, "empty": False, "sensitive": False, "isolate": False,
                               "fail_fast": True}  # fmt: skip
    if which == "vjp":
        return check(None, op, backward=run, **options)
    return check(run, op, arguments="x, out" if writes else None, **options)


@dataclass(frozen=True)
class Planting:
    """A right kernel (no name), or one with a defect, and the formats in which it is judged."""

    by: str
    op: str
    which: str
    name: str
    formats: tuple[str, ...]
    judge: Callable[[str, int], Report]
    excuse: str = ""


def plantings(languages: Sequence[str]) -> list[Planting]:
    """The kernels of languages, the right ones first. A defect in NumPy is planted in the formats of which it is no rounding
    that they have anyway."""
    found: list[Planting] = []
    if "NumPy" in languages:
        found += [
            Planting("NumPy", op, which, "", FORMATS, functools.partial(judged, op, which, kernel))
            for (op, which), kernel in RIGHT.items()
        ]
        for d in DEFECTS:
            own = d.fine or d.raw or any(word in d.name for word in FINE)
            judge = functools.partial(judged, d.op, d.which, d.kernel)
            found.append(Planting("NumPy", d.op, d.which, d.name, FORMATS[:1] if own else FORMATS, judge, d.excuse))
    native = [each for each in (*compiled.kernels(), *launched.kernels()) if each.by in languages]
    found += [Planting(n.by, n.op, "forward", n.name, n.formats, n.judge) for n in native]
    return sorted(found, key=lambda planting: planting.name != "")


@functools.cache
def _once(languages: tuple[str, ...]) -> list[Planting]:
    """A process' plantings."""
    warnings.simplefilter("ignore")
    return plantings(languages)


def _judge(languages: tuple[str, ...], number: int, dtype: str, cases: int) -> dict[str, Any]:
    """What the judge says of a planting: the verdict, and of the first finding the text, the kind and the case."""
    report = _once(languages)[number].judge(dtype, cases)
    first = report.findings[0] if report.findings else None
    case = first.repeat.split("case=")[-1].strip(QUOTES) if first else ""
    return {"verdict": report.verdict, "share": float(f"{report.share:.3g}"), "text": first.text if first else "",
            "found": f"{first.kind} {case}" if first else ""}  # fmt: skip


def run(
    dtypes: Sequence[str], cases: int, languages: Sequence[str] = LANGUAGES, workers: int = 1
) -> list[dict[str, Any]]:
    """A line for each right kernel and format, with the defects that are planted in it: the kind of the first finding and the
    case of that where one is caught, the reason where it is missed."""
    _once.cache_clear()
    named = tuple(languages)
    every = _once(named)
    work = [(i, dtype) for dtype in dtypes for i, planting in enumerate(every) if dtype in planting.formats]
    progress = Progress(len(work), "kernels")
    found: dict[tuple[int, str], dict[str, Any]] = {}

    def keep(task: tuple[int, str], said: dict[str, Any]) -> None:
        found[task] = said
        progress.advance(1, f"{every[task[0]].op} {task[1]}")

    if workers == 1:
        for task in work:
            keep(task, _judge(named, *task, cases))
    else:
        with ProcessPoolExecutor(workers, mp_context=multiprocessing.get_context("spawn")) as pool:
            waiting = {pool.submit(_judge, named, *task, cases): task for task in work}
            for each in as_completed(waiting):
                keep(waiting[each], each.result())
    progress.close()
    lines: dict[tuple[str, str, str, str], dict[str, Any]] = {}
    for i, dtype in work:
        p, said = every[i], found[i, dtype]
        key = (p.by, p.op, p.which, dtype)
        if not p.name:
            lines[key] = {"by": p.by, "op": p.op, "which": p.which, "dtype": dtype, "verdict": said["verdict"],
                          "share": said["share"], "finding": said["text"], "caught": {}, "missed": {}}  # fmt: skip
        elif said["verdict"] == "fail":
            lines[key]["caught"][p.name] = said["found"]
        else:
            lines[key]["missed"][p.name] = p.excuse if dtype != "float32" and p.excuse else UNEXPLAINED
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
    parser.add_argument("--workers", type=int, metavar="N", help="processes (default: one per processor)")
    parser.add_argument("--json", type=Path, metavar="FILE")
    parser.add_argument("--commit", help="the commit to record")
    args = parser.parse_args(argv)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        chosen = [d for d in args.dtypes.split(",") if d]
        lines = run(chosen, args.cases, args.languages.split(","), args.workers or processors())
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
