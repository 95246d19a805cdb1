"""``python -m audit models [--only NAMES] [--steps 20] [--json FILE]``: five models against PyTorch's."""

import argparse
from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from audit.environment import describe_run
from audit.models.comparison import MODELS, compare_model
from tlrt._terminal import format_table
from tlrt.verify.documents import format_command, write_document

#: a column of the table -> the run and what it compares
COLUMNS = {
    "loss": ("tlrt", "loss"), "gradients": ("tlrt", "gradients"), "losses": ("tlrt", "losses"),
    "parameters": ("tlrt", "parameters"), "evaluation": ("tlrt", "evaluation"), "torch: gradients": ("torch", "gradients"),
}  # fmt: skip


def table(documents: Sequence[dict[str, Any]]) -> str:
    """Shares of the bounds, one model a line."""
    rows = []
    for d in documents:
        values = [f"{d['shares'][run][kind]['share']:.2g}" for run, kind in COLUMNS.values()]
        program = max(v["share"] for v in d["shares"]["program"].values())
        rows.append((d["model"], f"{d['weights']:,}", *values, f"{program:.2g}", f"{d['node']:.2g}",
                     f"{d['difference']:.1e}", f"{d['seconds']:.0f} s"))  # fmt: skip
    head = ("model", "weights", *COLUMNS, "program in float64", "operations", "loss difference", "time")
    failures = [f"FAIL {d['model']}: {failure}" for d in documents for failure in d["failures"]]
    return "\n".join([format_table(head, rows), *failures])


def main(argv: Sequence[str]) -> int:
    """Compares the models; returns the exit status."""
    p = argparse.ArgumentParser(
        prog="python -m audit models",
        description="Trains models of tlrt and the same models of PyTorch from the same weights. The columns are the worst "
        "errors as shares of their bounds (audit/models/spread.py): of tlrt against PyTorch in float64, of PyTorch's "
        "float32 gradients beside it, of tlrt's program in float64, and of the first step's operations against their own bounds; "
        "and the worst difference of a loss.",
    )
    p.add_argument("--only", metavar="NAMES", help=f"of {', '.join(MODELS)} (default: all)")
    p.add_argument("--steps", type=int, default=20, metavar="N", help="training steps (default 20)")
    p.add_argument("--size", default="default", choices=("small", "default", "large"), help="of the models")
    p.add_argument("--runs", type=int, default=4, metavar="N", help="runs with moved results (default 4)")
    p.add_argument("--device", default="cpu", help="cpu, cuda, cuda:1 (default cpu)")
    p.add_argument("--json", metavar="FILE", help="write the document there")
    args = p.parse_args(argv)
    names = [n.strip() for n in args.only.split(",")] if args.only is not None else MODELS
    for name in names:
        if name not in MODELS:
            p.error(f"--only: got {name!r}, expected {', '.join(MODELS)}")
    for option in ("steps", "runs"):
        if getattr(args, option) < 1:
            p.error(f"--{option}: got {getattr(args, option)}, expected 1 or more")
    if find_spec("torch") is None:
        p.exit(2, "audit models: PyTorch is not installed: pip install torch\n")
    documents: list[dict[str, Any]] = []
    for name in names:
        documents.append(compare_model(name, args.size, args.steps, args.runs, args.device))
        if args.json:
            command = format_command(["python", "-m", "audit", "models", *argv])
            target = Path(args.json)
            write_document(target, {"command": command, **describe_run([args.device]), "models": documents})
        print(table(documents[-1:]), flush=True)
    failed = any(d["failures"] for d in documents)
    if len(documents) > 1:
        print(f"\n{table(documents)}")
    print("FAILED" if failed else "nothing failed")
    return int(failed)
