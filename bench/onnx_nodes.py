"""``python -m bench.onnx_nodes``: what of the installed onnx package's node tests tlrt can express, and whether it passes them.

``--runtime`` runs the same tests on onnxruntime and counts how many that passes; ``--models`` runs the package's tests of models
of several nodes. The exit status is 1 where a test fails on tlrt.
"""

import argparse
import sys
import warnings
from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from importlib import import_module
from importlib.metadata import version
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np

import tlrt
import tlrt.onnx
from audit.environment import commit, describe_run
from tlrt._terminal import format_table
from tlrt.onnx.graph import Graph, NotExpressible, Run
from tlrt.onnx.model import Model
from tlrt.verify.documents import write_document

#: kinds of model tests whose data is in the package, and the operator set that models are converted to before they are read
KINDS, OPSET = ("simple", "pytorch-operator", "pytorch-converted"), 17
VERDICTS = ("passed", "failed", "not expressible")


@dataclass
class Case:
    """One test: its operands and results, how far they may differ, the operator that it is about, and the package's model."""

    name: str
    op: str
    operands: list[np.ndarray]
    expected: list[np.ndarray]
    rtol: float
    atol: float
    model: Any = None


def load_nodes(op: str | None = None) -> Iterator[Case]:
    """The node tests on float32, of one operator or all; a test of a graph that defines an operator is about that."""
    found = _load_tests("node")
    about = {c.name: c.model.graph.node[-1].op_type for c in found if "_expanded" not in c.name}
    for c in found:
        original = c.name.split("_expanded")[0]
        name = about.get(original, original.removeprefix("test_"))
        if (op is None or name == op) and _is_float32([*c.model.graph.input, *c.model.graph.output]):
            operands, expected = c.data_sets[0]
            yield Case(c.name, name, operands, expected, c.rtol, c.atol, c.model)


def load_models(kind: str) -> Iterator[Case]:
    """The tests of models of a kind."""
    onnx = import_module("onnx")
    for c in _load_tests(kind):
        if c.model is not None:
            operands, expected = c.data_sets[0]
            yield Case(c.name, kind, list(operands), list(expected), c.rtol, c.atol, c.model)
            continue
        folder = Path(c.model_dir)
        files = (sorted((folder / "test_data_set_0").glob(f"{what}_*.pb")) for what in ("input", "output"))
        operands, expected = ([onnx.numpy_helper.to_array(onnx.load_tensor(str(f))) for f in each] for each in files)
        yield Case(c.name, kind, operands, expected, c.rtol, c.atol, onnx.load(str(folder / "model.onnx")))


def _load_tests(kind: str) -> list[Any]:
    with warnings.catch_warnings():  # of the package's own NumPy
        warnings.simplefilter("ignore")
        import_module("onnx")
        return list(import_module("onnx.backend.test.loader").load_model_tests(kind=kind))


def _is_float32(edges: Sequence[Any]) -> bool:
    """Whether the edges hold float32, and beside it at most integers and booleans."""
    if any(e.type.WhichOneof("value") != "tensor_type" for e in edges):
        return False
    types, kinds = import_module("onnx").TensorProto, {e.type.tensor_type.elem_type for e in edges}
    return types.FLOAT in kinds and kinds <= {types.FLOAT, types.INT32, types.INT64, types.BOOL}


def compare(case: Case, outputs: Sequence[np.ndarray], exact_types: bool = False) -> str:
    """ "passed", or what is wrong with the results."""
    for k, (got, expected) in enumerate(zip(outputs, case.expected, strict=True)):
        floats = {got.dtype.kind, expected.dtype.kind} == {"f"} or not exact_types
        if got.shape != expected.shape or (got.dtype != expected.dtype and not floats):
            return f"output {k}: {got.dtype}{list(got.shape)}, expected {expected.dtype}{list(expected.shape)}"
        if not np.allclose(got, expected.astype(np.float64), case.rtol, case.atol, equal_nan=True):
            return f"output {k}: got {got.reshape(-1)[:4]}…, expected {expected.reshape(-1)[:4]}…"
    return "passed"


def judge_node(case: Case, graph: Graph, session: tlrt.Session) -> str:
    """The verdict on tlrt's interpreter of graphs. Raises NotExpressible."""
    run = Run(session)
    return compare(
        case, [run.host(o) for o in run.graph(graph, [run.enter(np.asarray(a)) for a in case.operands])], True
    )


def judge_model(case: Case, session: tlrt.Session) -> str:
    """The verdict on a model that :func:`tlrt.onnx.load` reads."""
    model = case.model
    if any(o.version < OPSET for o in model.opset_import if o.domain in ("", "ai.onnx")):
        try:
            model = import_module("onnx.version_converter").convert_version(model, OPSET)
        except RuntimeError as error:
            raise NotExpressible(f"the package cannot convert it: {str(error).splitlines()[0][:80]}") from None
    return compare(case, run_on_tlrt(model, case.operands, session))


def run_on_tlrt(model: Any, operands: Sequence[np.ndarray], session: tlrt.Session) -> list[np.ndarray]:
    """The results of a model on a session. Raises UnavailableError for what load refuses."""
    bound = tlrt.onnx.load(model).bind(session)
    found = bound(*operands[: len(bound.model.inputs)])
    outputs = found if isinstance(found, tuple) else (found,)
    return [np.asarray(o if isinstance(o, np.ndarray) else o.numpy()) for o in outputs]


def run_on_onnxruntime(model: Any, operands: Sequence[np.ndarray]) -> list[np.ndarray]:
    """The results of a model on onnxruntime's CPU provider."""
    runtime = import_module("onnxruntime")
    runtime.set_default_logger_severity(4)
    session = runtime.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
    feeds = {i.name: x for i, x in zip(session.get_inputs(), operands, strict=False)}
    return [np.asarray(o) for o in session.run(None, feeds)]


def passes_on_onnxruntime(case: Case) -> bool:
    """Whether onnxruntime passes a test."""
    try:
        return compare(case, run_on_onnxruntime(case.model, case.operands)) == "passed"
    except Exception:  # it refuses a model by exceptions of many types
        return False


def verdict(case: Case, session: tlrt.Session, is_model: bool) -> tuple[str, str]:
    """One of :data:`VERDICTS`, and why."""
    try:
        text = judge_model(case, session) if is_model else judge_node(case, Model(case.model).graph, session)
    except (NotExpressible, tlrt.errors.UnavailableError, NotImplementedError) as error:
        return "not expressible", str(error)
    except Exception as error:  # a test that cannot end has failed
        return "failed", f"{type(error).__name__}: {error}"
    return ("passed", "") if text == "passed" else ("failed", text)


def campaign(cases: Iterator[Case], device: str, is_model: bool = False, runtime: bool = False) -> list[dict[str, Any]]:
    """One row an operator or kind: counts of verdicts, the failures, and why tests are not expressible."""
    rows: dict[str, dict[str, Any]] = defaultdict(
        lambda: {**dict.fromkeys(VERDICTS, 0), "failures": [], "reasons": Counter(), "onnxruntime": 0}
    )
    with tlrt.Session(device) as session, session.no_grad():
        for case in cases:
            row, (kind, why) = rows[case.op], verdict(case, session, is_model)
            row[kind] += 1
            row["onnxruntime"] += runtime and passes_on_onnxruntime(case)
            if kind == "failed":
                row["failures"].append(f"{case.name}: {why}")
            elif kind == "not expressible":
                row["reasons"][why] += 1
            session.reset()
    return [{"op": op, **row} for op, row in sorted(rows.items())]


def main(argv: Sequence[str] | None = None) -> int:
    p = argparse.ArgumentParser(
        prog="python -m bench.onnx_nodes", description=(__doc__ or "").partition(": ")[2].split("\n\n")[0]
    )
    p.add_argument("--device", default="cpu", help="cpu, cuda, cuda:1 (default cpu)")
    p.add_argument("--only", metavar="OP", help="the tests of one operator")
    p.add_argument("--models", action="store_true", help="the tests of models instead")
    p.add_argument("--runtime", action="store_true", help="count what onnxruntime passes, too")
    p.add_argument(
        "--list", action="store_true", help="why tests are not expressible, and how many each reason holds back"
    )
    p.add_argument("--json", metavar="FILE", type=Path, help="write the document there")
    args = p.parse_args(argv)
    for package in ("onnx", *(["onnxruntime"] if args.runtime else [])):
        if find_spec(package) is None:
            p.exit(2, f"onnx_nodes: the package {package} is missing: pip install {package}\n")
    cases = (c for k in KINDS for c in load_models(k)) if args.models else load_nodes(args.only)
    rows = campaign(cases, args.device, args.models, args.runtime)
    if not rows:
        p.error(f"--only: no float32 node test is of {args.only}")
    head = ("op", *VERDICTS, *(["onnxruntime"] if args.runtime else []))
    print(format_table(head, [[r[k] for k in head] for r in rows]))
    if args.list:
        reasons = sum((r["reasons"] for r in rows), Counter())
        print("\n".join(f"{n:6}  {why}" for why, n in reasons.most_common()))
    failures = [f for r in rows for f in r["failures"]]
    print("".join(f"FAIL {f}\n" for f in failures) + ", ".join(f"{sum(r[k] for r in rows)} {k}" for k in head[1:]))
    if args.json:
        run = {
            "command": "python -m bench.onnx_nodes" + " --models" * args.models,
            "commit": commit(),
            **describe_run([args.device]),
        }
        write_document(args.json, {**run, "onnx": version("onnx"), "rows": rows})
    return int(bool(failures))


if __name__ == "__main__":
    sys.exit(main())
