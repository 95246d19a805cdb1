"""``python -m audit onnx``: what of the installed onnx package's node tests tlrt can express, and whether it passes them."""

import argparse
from collections import Counter, defaultdict
from collections.abc import Sequence
from importlib.metadata import version
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np

import tlrt
from audit.environment import commit, describe_run
from audit.figures import plural
from audit.onnx_nodes import differential, exports, models
from audit.onnx_nodes.cases import Case, load
from tlrt.onnx.graph import NotExpressible, Run
from tlrt.verify.documents import write_document


def judge(case: Case, session: tlrt.Session) -> str:
    """ "passed", or what is wrong with a result; raises NotExpressible."""
    run = Run(session)
    outputs = run.graph(case.graph, [run.enter(np.asarray(a)) for a in case.operands])
    for k, (output, expected) in enumerate(zip(outputs, case.expected, strict=True)):
        got = run.host(output)
        if got.shape != expected.shape or (
            got.dtype != expected.dtype and {got.dtype.kind, expected.dtype.kind} != {"f"}
        ):
            return f"output {k}: {got.dtype}{list(got.shape)}, expected {expected.dtype}{list(expected.shape)}"
        if not np.allclose(got, expected.astype(np.float64), case.rtol, case.atol, equal_nan=True):
            return f"output {k}: got {got.reshape(-1)[:4]}…, expected {expected.reshape(-1)[:4]}…"
    return "passed"


def campaign(device: str, op: str | None = None) -> dict[str, Any]:
    """Every test, of one operator or all: its verdict by operator."""
    rows: dict[str, dict[str, Any]] = defaultdict(lambda: {"passed": 0, "failed": {}, "not expressible": Counter()})
    with tlrt.Session(device) as session, session.no_grad():
        for case in load(op):
            if isinstance(case, tuple):
                rows[case[0]]["not expressible"][case[1]] += 1
                continue
            row = rows[case.op]
            try:
                verdict = judge(case, session)
            except NotExpressible as error:
                row["not expressible"][str(error)] += 1
            except Exception as error:  # a test that cannot end has failed
                row["failed"][case.name] = f"{type(error).__name__}: {error}"
            else:
                if verdict == "passed":
                    row["passed"] += 1
                else:
                    row["failed"][case.name] = verdict
            session.reset()
    return {"device": device, "operators": dict(sorted(rows.items()))}


def sums(document: dict[str, Any]) -> tuple[int, int, int]:
    """How many tests passed, failed and are not expressible."""
    rows = document["operators"].values()
    return (
        sum(r["passed"] for r in rows),
        sum(len(r["failed"]) for r in rows),
        sum(r["not expressible"].total() for r in rows),
    )


def table(document: dict[str, Any], reasons: bool = False) -> str:
    """The document as a table by operator, or by reason why tests are not expressible; the failures; the sums."""
    rows = document["operators"]
    if reasons:
        found: Counter[str] = Counter()
        for row in rows.values():
            found.update(row["not expressible"])
        lines = [f"{n:6}  {why}" for why, n in found.most_common()]
    else:
        lines = [f"{'operator':28}{'passed':>8}{'failed':>8}{'not expressible':>17}"]
        for op, row in rows.items():
            lines.append(f"{op:28}{row['passed']:8}{len(row['failed']):8}{row['not expressible'].total():17}")
    lines += [f"FAILED {name}: {what}" for row in rows.values() for name, what in row["failed"].items()]
    passed, failed, missing = sums(document)
    every = passed + failed + missing
    lines.append(f"{passed} of {plural(every, 'float32 node test')} passed, {failed} failed, {missing} not expressible")
    return "\n".join(lines)


def main(argv: Sequence[str]) -> int:
    """Runs the tests and prints the table; the exit status is 1 where one fails."""
    p = argparse.ArgumentParser(
        prog="python -m audit onnx",
        description="The node tests of the installed onnx package, those on float32, on tlrt.",
    )
    p.add_argument("--device", default="cpu", help="cpu, cuda, cuda:1 (default: cpu)")
    p.add_argument("--only", metavar="OP", help="the tests of one operator")
    p.add_argument(
        "--list", action="store_true", help="why tests are not expressible, and how many each reason holds back"
    )
    p.add_argument("--models", action="store_true", help="the package's tests of models of several nodes instead")
    p.add_argument(
        "--drawn", metavar="N", type=int, help="so many drawn nodes of each operator instead, beside onnxruntime's"
    )
    p.add_argument("--seed", type=int, default=0, help="of the drawn nodes")
    p.add_argument(
        "--exports", action="store_true", help="models exported by PyTorch instead, beside onnxruntime's results"
    )
    p.add_argument("--json", metavar="FILE", type=Path, help="write the document there")
    args = p.parse_args(argv)
    if find_spec("onnx") is None:
        p.exit(2, "audit onnx: the package onnx is missing: pip install 'torchlean-cuda[onnx]'\n")
    if args.models:
        return _models(args)
    if args.drawn is not None:
        return _drawn(args)
    if args.exports:
        return _exports(args)
    try:
        document = campaign(args.device, args.only)
    except tlrt.errors.TorchleanError as error:
        p.exit(2, f"audit onnx: {error}\n")
    if not document["operators"]:
        p.error(f"--only: no float32 node test is of {args.only}")
    print(table(document, args.list))
    if args.json:
        write_document(args.json, document)
    return int(sums(document)[1] > 0)


def _models(args: argparse.Namespace) -> int:
    """The tests of models: a line for each kind, and what did not pass."""
    found = models.campaign(args.device)
    failed = 0
    for kind, verdicts in found.items():
        passed = sum(v == "passed" for v in verdicts.values())
        missing = sum(v.startswith("not expressible") for v in verdicts.values())
        failed += len(verdicts) - passed - missing
        print(f"{kind}: {passed} of {plural(len(verdicts), 'model')} passed, {len(verdicts) - passed - missing} failed, "
              f"{missing} not expressible")  # fmt: skip
        for name, verdict in verdicts.items():
            if verdict != "passed" and (args.list or not verdict.startswith("not expressible")):
                print(f"  {name}: {verdict}")
    if args.json:
        rows = [{"kind": k, "model": n, "verdict": v} for k, verdicts in found.items() for n, v in verdicts.items()]
        run = {"command": "python -m audit onnx --models", "commit": commit(), **describe_run([args.device])}
        write_document(args.json, {**run, "onnx": version("onnx"), "rows": rows})
    return int(failed > 0)


def _drawn(args: argparse.Namespace) -> int:
    """Drawn nodes: how often tlrt and others differ from the standard, and what nobody explains."""
    found = differential.campaign(args.drawn, args.seed, args.only)
    refused = sum(found["refused"].values())
    print(
        f"{plural(found['nodes'], 'drawn node')}, {refused} refused, {len(found['unexplained'])} unexplained differences"
    )
    for name in ("onnx.reference", "onnxruntime"):
        package = name.partition(".")[0]
        known = version(package) if find_spec(package) else "is not here"
        print(f"{name} {known}: " + ", ".join(f"{op} {n}" for op, n in found[name].items()))
    for line in [*found["unexplained"], *found["refused"]]:
        print(f"  {line}")
    if args.json:
        write_document(args.json, {**_about("--drawn", args), **found})
    return int(bool(found["unexplained"]))


def _exports(args: argparse.Namespace) -> int:
    """Exported models: a line for each, and how many are equal."""
    found = exports.campaign(args.only)
    for name, verdict in found.items():
        print(f"{name}: {verdict}")
    sums = Counter(v.partition(":")[0] for v in found.values())
    print(", ".join(f"{n} {what}" for what, n in sums.items()))
    if args.json:
        write_document(
            args.json, {**_about("--exports", args), "rows": [{"model": n, "verdict": v} for n, v in found.items()]}
        )
    return int(sums["different"] > 0)


def _about(option: str, args: argparse.Namespace) -> dict[str, Any]:
    run = {"command": f"python -m audit onnx {option}", "commit": commit(), **describe_run([args.device])}
    return {**run, **{p: version(p) for p in ("onnx", "onnxruntime") if find_spec(p)}}
