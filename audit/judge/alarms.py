"""``python -m audit judge-alarms``: right kernels on many drawn cases, of which the judge must fail none.

The kernels: every row's reference run on float32 arrays, which is float32 arithmetic in NumPy's order; the kernels of
:mod:`audit.judge.kernels`; sums one after the other, in pairs and in blocks; and in other formats all of them, computed in
float32 and rounded once. A failure prints the line that repeats it.
"""

import argparse
import concurrent.futures
import functools
import multiprocessing
import warnings
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from audit.environment import describe_run, processors
from audit.judge.defects import FORMATS, in_format
from audit.judge.kernels import RIGHT, f32
from audit.work import one_thread_each
from tlrt._terminal import Progress, format_table
from tlrt.verify.documents import format_command, write_document
from tlspec import registry
from tlspec.judge import check

#: rows that are not float32 arithmetic on arrays: bits, float64, lists of tensors that a call takes apart
LEFT_OUT = frozenset({"fingerprint", "dgemm", "rand_uniform", "rand_normal", "bernoulli_mask"})
#: rows whose reference leaves float32's range on the way for some exponents, which its float32 run then loses
RANGE = frozenset({"vector_norm", "prod"})
HEAD = ("format", "kernels", "cases", "elements", "alarms", "worst share")
#: failures that are printed
SHOWN = 40


def _blocked(x: np.ndarray, size: int) -> np.ndarray:
    parts = [x[:, i : i + size].sum(axis=1) for i in range(0, x.shape[1], size)]
    return functools.reduce(np.add, parts, np.zeros(len(x), np.float32))


def _one_after_the_other(x: np.ndarray) -> np.ndarray:
    return np.add.accumulate(x, axis=1)[:, -1] if x.shape[1] else np.zeros(len(x), np.float32)


#: other orders and other roundings: name -> row and kernel
VARIANTS: dict[str, tuple[str, Callable[..., Any]]] = {
    "sum, sequential": ("reduce_sum_axis1", _one_after_the_other),
    "sum, blocks of 32": ("reduce_sum_axis1", lambda x: _blocked(x, 32)),
    "sum, backwards": ("reduce_sum_axis1", lambda x: _one_after_the_other(x[:, ::-1])),
    "sum, float64": ("reduce_sum_axis1", lambda x: f32(x.sum(axis=1, dtype=np.float64))),
    "product, sequential": ("matmul", lambda A, B: functools.reduce(
        lambda total, k: total + A[:, k : k + 1] * B[k], range(A.shape[1]), np.zeros((len(A), B.shape[1]), np.float32))),
    "product, float64": ("matmul", lambda A, B: f32(A.astype(np.float64) @ B)),
    "softmax, sequential": ("softmax", lambda x: (
        np.exp(x - x.max(axis=1, keepdims=True)) / _one_after_the_other(np.exp(x - x.max(axis=1, keepdims=True)))[:, None])),
    "softmax, by reciprocals": ("softmax", lambda x: (
        np.exp(x - x.max(axis=1, keepdims=True)) * (1 / np.exp(x - x.max(axis=1, keepdims=True)).sum(axis=1, keepdims=True)))),
    "layer_norm, scaled": ("layer_norm", lambda x, gamma, beta, eps: (
        lambda mu, scale: x * scale + (beta - mu * scale))(
            (mu := x.mean(axis=1, keepdims=True)), gamma / np.sqrt(((x - mu) ** 2).mean(axis=1, keepdims=True) + f32(eps)))),
}  # fmt: skip


def _single(row: registry.Op, which: str) -> Callable[..., Any]:
    """A reference on float32 arrays, its parameters float32 too; what it computes in float64 after all is rounded, and indices
    are whole numbers."""
    f = row.reference if which == "forward" else row.rule.reference
    types = [np.int64 if a.kind == "index" else np.float32 for a in row.signature_of(which).outputs]

    def single(value: Any) -> Any:
        return f32(value) if isinstance(value, float) else value

    @functools.wraps(f)
    def run(*given: Any, **named: Any) -> Any:
        made = f(*map(single, given), **{k: single(v) for k, v in named.items()})
        several = made if isinstance(made, tuple) else (made,)
        results = tuple(np.array(m, t) for m, t in zip(several, types, strict=True))
        return results if isinstance(made, tuple) else results[0]

    return run


def kernels() -> dict[str, tuple[str, str, Callable[..., Any]]]:
    """All right kernels: name -> row, direction, function."""
    found: dict[str, tuple[str, str, Callable[..., Any]]] = {}
    for row in registry.ops():
        if row.name not in LEFT_OUT | RANGE and not row.signature.lists:
            found[f"{row.name} in float32"] = row.name, "forward", _single(row, "forward")
            if row.vjp_rule is not None:
                found[f"{row.name} in float32, gradient"] = row.name, "vjp", _single(row, "vjp")
    found |= {f"{op} {which} of the corpus": (op, which, f) for (op, which), f in RIGHT.items()}
    return found | {name: (op, "forward", f) for name, (op, f) in VARIANTS.items()}


def _run(name: str, dtype: str, cases: int, seed: int) -> tuple[str, int, int, float, list[str]]:
    """Cases, elements, the worst share and the failures of one kernel."""
    warnings.simplefilter("ignore")
    op, which, kernel = kernels()[name]
    run = functools.wraps(kernel)(in_format(kernel, dtype))
    sizes = {"small": cases * 9 // 10, "medium": cases // 40, "edges": cases - cases * 9 // 10 - cases // 40}
    options: dict[str, Any] = {
        "dtype": dtype,
        "cases": sizes,
        "empty": False,
        "sensitive": False,
        "seed": seed,
        "isolate": False,
    }
    report = check(run if which == "forward" else None, op, backward=run if which == "vjp" else None, **options)
    lines = [f"{name}, {dtype}: {f.text}: {f.repeat}" for f in report.findings]
    return name, sum(r.cases for r in report.rows), sum(r.elements for r in report.rows), report.share, lines


def table(lines: Sequence[Mapping[str, Any]]) -> list[tuple[Any, ...]]:
    """For each format what :data:`HEAD` names."""
    rows: list[tuple[Any, ...]] = []
    for dtype in dict.fromkeys(x["dtype"] for x in lines):
        own = [x for x in lines if x["dtype"] == dtype]
        sums = [sum(x[k] for x in own) for k in ("cases", "elements", "alarms")]
        rows.append((dtype, sum(x.get("kernels", 1) for x in own), *sums, max(x["share"] for x in own)))
    return rows


def main(argv: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(prog="python -m audit judge-alarms", description=(__doc__ or "").strip())
    parser.add_argument("--cases", type=int, default=100_000, metavar="N", help="cases of each format (100,000)")
    parser.add_argument("--dtypes", default=",".join(FORMATS), help=f"number formats ({','.join(FORMATS)})")
    parser.add_argument("--seed", type=int, default=50_000)
    parser.add_argument(
        "--workers",
        "--jobs",
        type=int,
        default=processors(),
        metavar="N",
        help="processes (default: one per processor)",
    )
    parser.add_argument("--json", type=Path, metavar="FILE")
    parser.add_argument("--commit", help="the commit to record")
    args = parser.parse_args(argv)
    names, lines, failures = list(kernels()), [], []
    dtypes = [d for d in args.dtypes.split(",") if d]
    progress = Progress(len(dtypes) * len(names), "kernels")
    pool = concurrent.futures.ProcessPoolExecutor(args.workers, mp_context=multiprocessing.get_context("spawn"))
    with one_thread_each(), pool:
        done: dict[concurrent.futures.Future[Any], str] = {}
        for dtype in dtypes:
            each = -(-args.cases // len(names))
            done |= {pool.submit(_run, name, dtype, each, args.seed): dtype for name in names}
        for task in concurrent.futures.as_completed(done):
            name, cases, elements, share, found = task.result()
            lines.append({"kernel": name, "dtype": done[task], "cases": cases, "elements": elements,
                          "share": float(f"{share:.3g}"), "alarms": len(found)})  # fmt: skip
            failures += found
            progress.advance(1, f"{name} {done[task]}")
    progress.close()
    lines.sort(key=lambda x: (dtypes.index(x["dtype"]), x["kernel"]))
    print(format_table(HEAD, table(lines)))
    for text in failures[:SHOWN]:
        print(f"ALARM {text}")
    if len(failures) > SHOWN:
        print(f"... and {len(failures) - SHOWN} more")
    if args.json is not None:
        document = {"command": format_command(["python", "-m", "audit", "judge-alarms", *argv]), **describe_run(["cpu"]),
                    "rows": lines}  # fmt: skip
        write_document(args.json, {"commit": args.commit, **document} if args.commit else document)
    return 1 if failures else 0
