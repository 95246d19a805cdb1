"""The commands of ``python -m tlspec`` besides ``check`` and ``list``."""

import argparse
import ast
import json
import sys
from pathlib import Path
from typing import Any

from tlspec.judge.adapters import DATA, FORMATS, check_task
from tlspec.judge.invariants import AXES, hashes, invariance
from tlspec.judge.runner import place_of

#: what is said in one line, with status 2
WRONG = (ValueError, KeyError, ImportError, RuntimeError, TypeError)


def complaint(error: Exception) -> str:
    """What is said of an error in one line: with its place where code of the user's raised it. Raises again what is neither such
    an error nor about arguments."""
    place = place_of(error, installed=False)
    if not place and not isinstance(error, WRONG):
        raise error
    text = str(error.args[0] if error.args else error)
    return f"{type(error).__name__}: {text} ({place})" if place else text


def add_commands(commands: Any) -> None:
    """The parsers; each sets `run`, a function of the arguments that returns the status."""
    one = commands.add_parser("invariance", help="find out what the bits of a kernel or a module depend on")
    add = one.add_argument
    add(
        "kernel",
        metavar="MODULE:NAME",
        help="a function, a module, a class of modules, or what builds one, in a module or a FILE.py",
    )
    add(
        "--inputs",
        metavar="TEXT",
        required=True,
        help='"tokens: index[batch, seq] < 1000", "x[batch, 64], w[64, 32]; eps: float = 1e-6"',
    )
    add(
        "--array",
        help="library and device of the arrays: numpy, torch, torch:cuda, ... (torch for modules, else numpy)",
    )
    add("--dtype", default="float32", help="number format of the arrays (float32)")
    add("--axes", help=f"of {', '.join(AXES)} (all)")
    add("--within", metavar="MODULE:NAME", help="a context manager in which each call is made: tlrt.torch:reproducible")
    add("--length", action="append", default=[], metavar="NAME=N", help="the length of a named axis; may be repeated")
    add("--causal", action="store_true", help="a position depends on earlier ones alone")
    add("--step", metavar="MODULE:NAME", help="step(*arrays, state): a part of the sequence, and the next state")
    add("--seed", type=int, default=0)
    add("--json", type=Path, metavar="FILE", help="write the report")
    add("--hashes", action="store_true", help=argparse.SUPPRESS)
    one.set_defaults(run=_invariance)
    one = commands.add_parser("task", help="judge a submission to a task of KernelBench, GPU MODE or flashinfer-bench")
    add = one.add_argument
    add("task", metavar="TASK", help="a file of KernelBench, a folder with task.yml, or a definition in JSON")
    add(
        "--with",
        dest="submission",
        metavar="FILE",
        required=True,
        help="ModelNew, custom_kernel, run, or a solution in JSON",
    )
    add("--format", default="", help=f"{', '.join(FORMATS)} (as the file looks)")
    add("--set", action="append", default=[], metavar="NAME=N", help="another size; may be repeated")
    add("--device", default="", help="the kernel's device (a GPU if there is one)")
    add("--dtype", default="", help="number format of a model and its inputs (KernelBench)")
    add("--data", help=f"of {', '.join(DATA)} (all)")
    add("--cases", type=int, help="how many of the task's cases (all)")
    add("--case", help="one case, as a report names it: 0:own")
    for word in ("accumulate", "ulp", "products", "intermediate"):
        add(f"--{word}", default="", help="as of check")
    add("--json", type=Path, metavar="FILE", help="write the report")
    one.set_defaults(run=_task)


def _told(report: Any, path: Path | None) -> int:
    """Prints a report, writes it where that is asked for, and gives its status."""
    print(report)
    if path is not None:
        path.write_text(report.json() + "\n", encoding="utf-8")
    return 0 if report.ok else 1


def _invariance(args: argparse.Namespace) -> int:
    """Status 0 if nothing differs, 1 if something does or nothing was tried, 2 for wrong arguments."""
    try:
        if wrong := [w for w in args.length if not w.partition("=")[2].isdigit()]:
            raise ValueError(f"--length: got {wrong[0]}, expected NAME=N")
        lengths = {w.partition("=")[0]: int(w.partition("=")[2]) for w in args.length}
        if args.hashes:
            print(json.dumps(hashes(args.kernel, args.inputs, args.array, args.dtype, args.within, lengths, args.seed)))
            return 0
        axes = args.axes.split(",") if args.axes else None
        report = invariance(args.kernel, args.inputs, array=args.array, dtype=args.dtype, axes=axes, within=args.within,
                            lengths=lengths, causal=args.causal, step=args.step, seed=args.seed)  # fmt: skip
    except Exception as error:
        print(f"python -m tlspec invariance: {complaint(error)}", file=sys.stderr)
        return 2
    return _told(report, args.json)


def _constant(word: str) -> tuple[str, Any]:
    """The name and the value of NAME=N."""
    name, _, value = word.partition("=")
    try:
        return name, ast.literal_eval(value)
    except (SyntaxError, ValueError):
        raise ValueError(f"--set: got {word}, expected NAME=N") from None


def _task(args: argparse.Namespace) -> int:
    """Status 0 for the verdict pass, 1 for fail and blind, 2 for wrong arguments."""
    words = {w: getattr(args, w) for w in ("accumulate", "ulp", "products", "intermediate") if getattr(args, w)}
    try:
        constants = dict(map(_constant, args.set))
        data = args.data.split(",") if args.data else DATA
        report = check_task(args.task, args.submission, format=args.format, constants=constants, device=args.device,
                            dtype=args.dtype, data=data, cases=args.cases, case=args.case, **words)  # fmt: skip
    except Exception as error:
        print(f"python -m tlspec task: {complaint(error)}", file=sys.stderr)
        return 2
    return _told(report, args.json)
