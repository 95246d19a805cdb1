"""``python -m tlspec check MODULE:FUNCTION --op softmax``: the judge from a terminal. Status 0 if the check passes, 1 if it fails
or is blind, 2 for wrong arguments."""

import argparse
import ast
import os
import sys
from collections.abc import Callable, Sequence
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

from tlspec import references, registry
from tlspec.judge import check
from tlspec.judge.commands import add_commands, complaint


def _number_or_word(text: str) -> float | str:
    try:
        return float(text)
    except ValueError:
        return text


def _numbers(text: str) -> dict[str, Any]:
    """The numbers of ``rows=4096,eps=1e-5,dims=[4,8]`` by their names. Raises ValueError."""
    try:
        call: ast.expr | None = ast.parse(f"f({text})", mode="eval").body
    except SyntaxError:
        call = None
    if not isinstance(call, ast.Call) or call.args or not call.keywords:
        raise ValueError(f"{text!r}: expected NAME=NUMBER,...")
    return {str(k.arg): ast.literal_eval(k.value) for k in call.keywords}


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        prog="tlspec" if Path(sys.argv[0]).name == "tlspec" else "python -m tlspec",
        description="The specification of the operations, and the judge.",
    )
    commands = parser.add_subparsers(dest="command", required=True)
    one = commands.add_parser("check", help="check a kernel against an operation or a reference")
    add = one.add_argument
    add("kernel", metavar="MODULE:FUNCTION", help="a function of arrays, in a module or in FILE.py")
    add("--op", metavar="NAME", help="the operation that it computes (python -m tlspec list)")
    add("--reference", metavar="MODULE:FUNCTION", help="or a function in NumPy that computes the same, with --inputs")
    add("--inputs", metavar="TEXT", help='its inputs: "x[rows, cols], weight[cols]; eps: float = 1e-6"')
    add("--backward", metavar="MODULE:FUNCTION", help="the gradient's function")
    add("--dtype", default="float32", help="number format of the arrays (float32)")
    add("--out-dtype", help="that of the results, where it is another")
    add(
        "--array", default="numpy", help="library and device of the arrays: numpy, torch, torch:cuda, cupy, jax (numpy)"
    )
    add("--arguments", help='the order of the arguments: "x, axis", by keyword "x, dim=axis"')
    add("--cases", type=int, help="number of small cases (24)")
    add("--data", action="append", help="a data class; may be repeated")
    add("--no-empty", action="store_true", help="leave out sizes of 0")
    add("--seed", type=int, default=0)
    add("--case", help="one case, as a report names it: 3:normal:small")
    add("--accumulate", default="", help="fp32, fp64, bf16, tensorcore, ampere, hopper, fp8, promoted:128")
    add("--height", default="any", help="of sums: any, sequential, pairwise (any)")
    add(
        "--ulp",
        type=_number_or_word,
        default="documented",
        help="errors of functions: documented, cuda, libm, fast, or a number",
    )
    add("--products", default="", help="format to which operands of products are rounded: tf32, bf16")
    add("--intermediate", default="", help="format of other intermediate results")
    add(
        "--formulas", action="append", metavar="NAME",
        help="another formula that the kernel follows: fft, strassen, ...; may be repeated",
    )  # fmt: skip
    add("--flush", action="store_true", help="subnormal numbers may count as zero")
    add("--saturate", action="store_true", help="results beyond the format are its largest number")
    add("--full-range", action="store_true", help="nothing may overflow on the way to a result that can be represented")
    add("--mixed", default="", help="words for kernels of several formats: bf16, fp16, fp8, int8")
    add(
        "--shapes", action="append", type=_numbers, metavar="ROWS=4096,COLS=4096",
        help="lengths to try besides, of which a sample of the results is compared; may be repeated",
    )  # fmt: skip
    add("--fixed", type=_numbers, metavar="EPS=1e-5", help="parameters or dimensions that have one value")
    add("--layouts", default="any", help="contiguous: arrays have no gaps (any)")
    add("--refuses", action="append", metavar="TEXT", help='cases that may be refused: "empty", "cols > 1024"')
    add("--timeout", type=float, metavar="SECONDS", help="that one call may take (300)")
    add("--memory", type=int, metavar="BYTES", help="that the kernel's process may use (the machine's)")
    add("--repeats", type=int, metavar="N", help="further calls, for faults that come and go (5000 to 6000)")
    add(
        "--in-process", action="store_true", help="run the kernel in this process, where it can see the expected values"
    )
    add("--json", type=Path, metavar="FILE", help="write the report")
    add("--html", type=Path, metavar="FILE", help="write the report as a page")
    one = commands.add_parser("list", help="list the operations that check knows by name")
    one.add_argument("names", nargs="*", metavar="NAME", help="an operation, a family or a * pattern (all)")
    add_commands(commands)
    args = parser.parse_args(argv)
    if hasattr(args, "run"):
        status: int = args.run(args)
        return status
    if args.command == "list":
        return _list(args.names)
    # a kernel in this process may end it
    return _apart(lambda: _check(args)) if args.in_process and argv is None else _check(args)


def _list(names: Sequence[str]) -> int:
    """The rows, synonyms among them, of these names; status 2 for a name of none."""
    rows = (*registry.operations(), *references.references())
    wanted = [w for name in names for w in name.replace(",", " ").split()] or ["*"]
    hits = {w: [r for r in rows if fnmatchcase(r.name, w) or r.family == w] for w in wanted}
    try:
        for unknown in (w for w, found in hits.items() if not found):
            registry.ops(unknown)  # says what is near
    except KeyError as error:
        print(f"python -m tlspec: {error.args[0]}", file=sys.stderr)
        return 2
    for row in (r for r in rows if any(r in found for found in hits.values())):
        print(f"{row.name:32s}{row.text}")
    return 0


def _apart(run: Callable[[], int]) -> int:
    """The status that `run` returns, computed in a process of its own; 1 where that ends before."""
    verdict, written = os.pipe()
    sys.stdout.flush()
    child = os.fork()
    if not child:
        os.close(verdict)
        status = run()
        sys.stdout.flush()
        os.write(written, bytes([status]))
        return status
    os.close(written)
    with os.fdopen(verdict, "rb") as file:
        said = file.read(1)
    ended = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    if said:
        return said[0]
    how = f"with status {ended}" if ended >= 0 else f"by signal {-ended}"
    print(f"python -m tlspec: the process of the kernel ended {how}, expected a verdict", file=sys.stderr)
    return 1


def _check(args: argparse.Namespace) -> int:
    show = (lambda text: print(f"\r{text:<60}", end="", file=sys.stderr)) if sys.stderr.isatty() else None
    try:
        report = check(
            args.kernel, args.op, backward=args.backward, reference=args.reference, inputs=args.inputs, dtype=args.dtype,
            out_dtype=args.out_dtype, array=args.array, arguments=args.arguments, cases=args.cases, data=args.data,
            empty=not args.no_empty, seed=args.seed, case=args.case, accumulate=args.accumulate, height=args.height, ulp=args.ulp,
            products=args.products, intermediate=args.intermediate, flush=args.flush, saturate=args.saturate,
            full_range=args.full_range, mixed=args.mixed, shapes=args.shapes, fixed=args.fixed, layouts=args.layouts,
            refuses=args.refuses, formulas=args.formulas or (), progress=show,
            isolate=not args.in_process, timeout=args.timeout, memory=args.memory, repeats=args.repeats,
        )  # fmt: skip
    except Exception as error:
        print(f"python -m tlspec: {complaint(error)}", file=sys.stderr)
        return 2
    if show is not None:
        print("\r" + " " * 60, end="\r", file=sys.stderr)
    print(report)
    if args.json is not None:
        args.json.write_text(report.json() + "\n", encoding="utf-8")
    if args.html is not None:
        args.html.write_text(report.html(), encoding="utf-8")
    return 0 if report.ok else 1


if __name__ == "__main__":
    sys.exit(main())
