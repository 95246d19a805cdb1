"""``python -m bench.onnx_drawn``: drawn graphs of one node on tlrt, beside the onnx reference evaluator and onnxruntime.

What is right is the reference evaluator's result in float64. Where that departs from the standard's text, a function of
:mod:`bench.onnx_standard` takes its place. An element may differ by six times the root mean square of what rounding does to it.
That is estimated from 8 runs on the specification, with every result moved within its own bound. The exit status is 1 where a
difference has no explanation.
"""

from __future__ import annotations

import argparse
import sys
import warnings
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from importlib import import_module
from importlib.metadata import version
from importlib.util import find_spec
from typing import Any
from unittest import mock

import numpy as np

import tlrt
from bench import onnx_nodes, onnx_standard
from bench.onnx_draws import DRAWN, SPECIAL, Drawn, draw
from tlrt import spec
from tlrt.errors import UnavailableError
from tlrt.onnx.graph import Run
from tlrt.tensor import TensorRef
from tlspec.bounds import spacing

Array = np.ndarray
RUNS, DEVIATIONS = 8, 6.0
#: how many times tlrt's allowance others may use before a difference is more than rounding
ROUGHER = 2.0**12
OTHERS = ("onnx.reference", "onnxruntime")
NAMES = "abcdefgh"


def _model(case: Drawn, is_wide: bool = False) -> Any:
    """The node as a model; with float64 in place of float32 where `is_wide`."""
    onnx = import_module("onnx")
    helper, given = onnx.helper, _feeds(case, is_wide)
    names = [n if n in given else "" for n, _ in zip(NAMES, case.operands)]
    attributes = {n: 11 if is_wide and (n, v) == ("to", 1) else v for n, v in case.attributes.items()}
    outputs = [f"o{k}" for k in range(case.outputs)]
    node = helper.make_node(case.op, names, outputs, **attributes)
    inputs = [
        helper.make_tensor_value_info(n, helper.np_dtype_to_tensor_dtype(x.dtype), x.shape) for n, x in given.items()
    ]
    graph = helper.make_graph([node], "drawn", inputs, [helper.make_empty_tensor_value_info(n) for n in outputs])
    whole = helper.make_model(graph, opset_imports=[helper.make_opsetid("", case.opset)], ir_version=10)
    found = onnx.shape_inference.infer_shapes(whole, strict_mode=False)
    for output, shaped in zip(whole.graph.output, found.graph.output):
        output.CopyFrom(shaped)
        output.type.tensor_type.ClearField("shape")
    return whole


def _feeds(case: Drawn, is_wide: bool = False) -> dict[str, Array]:
    return {n: x.astype(np.float64) if is_wide and x.dtype == np.float32 else x
            for n, x in zip(NAMES, case.operands) if x is not None}  # fmt: skip


def _run_on_tlrt(case: Drawn, device: str) -> list[Array]:
    with tlrt.Session(device) as session, session.no_grad():
        return onnx_nodes.run_on_tlrt(_model(case), list(_feeds(case).values()), session)


def _run_on_reference(case: Drawn, is_wide: bool = False) -> list[Array]:
    evaluator = import_module("onnx.reference").ReferenceEvaluator(_model(case, is_wide))
    return [np.asarray(v) for v in evaluator.run(None, _feeds(case, is_wide))]


def _standard(case: Drawn) -> list[Array]:
    """What the standard says, in float64."""
    if case.op not in onnx_standard.TEXT:
        return _run_on_reference(case, True)
    wide = (x if x is None or x.dtype != np.float32 else x.astype(np.float64) for x in case.operands)
    made = onnx_standard.TEXT[case.op](case, *wide)
    return [np.asarray(v) for v in (made if isinstance(made, tuple) else (made,))]


@contextmanager
def _moved_results(seed: int) -> Iterator[None]:
    """Within it, what the specification computes moves by its tolerance times a normal number, and constants by a rounding.

    What only underflow allows moves a result away from zero, as one under a root could become negative.
    """
    rng = np.random.default_rng(seed)
    compute, tensor = spec._Function._compute, Run.tensor

    def moved(self: Any, inputs: Any, values: Any, device: Any) -> Any:
        made = compute(self, inputs, values, device)
        outputs = [np.asarray(o) for o in (made if isinstance(made, (tuple, list)) else [made])]
        row = self.entry.op
        bound = row.bound_of("forward" if self.__name__ == row.name else "vjp")
        if any(a.kind == "index" for a in row.signature.outputs):  # places, which are right or wrong
            return outputs
        with np.errstate(all="ignore"):
            if bound.kind == "exact":
                tolerances = [spacing(o) / 2 for o in outputs]
            else:
                tolerances = bound.tolerance(self.reference, outputs, inputs, values)
        moves = [np.where(np.isfinite(t), t * rng.standard_normal(o.shape), 0.0) for o, t in zip(outputs, tolerances)]
        return [
            o + np.where((t > 2.0**-126) | (t < np.abs(o) / 8), move, np.sign(o) * np.abs(move))
            for o, t, move in zip(outputs, tolerances, moves, strict=True)
        ]

    def moved_constant(self: Run, value: Any) -> Any:
        if isinstance(value, np.ndarray) and value.dtype == np.float64:
            value = value * (1 + 2.0**-24 * rng.standard_normal(value.shape))
        return tensor(self, value)

    with mock.patch.object(spec._Function, "_compute", moved), mock.patch.object(Run, "tensor", moved_constant):
        yield


#: operands, by their names in a drawn node, that say how an operator works and have no gradient
FIXED = {"RoiAlign": "b", "Resize": "bc", "SoftmaxCrossEntropyLoss": "c"}
#: what brings operands into an operator's domain
INTO = (np.asarray, np.abs, lambda x: np.abs(x) + 1, lambda x: 0.9 * np.tanh(x))


def slopes(case: Drawn, into: Callable[[Array], Array]) -> tuple[float, float, float]:
    """Of a drawn sum of the results in a drawn direction of the operands: the derivative by gradients and by
    differences, and the sum of sizes. Special numbers, where comparisons may turn, are replaced."""
    rng, given, step = np.random.default_rng(3), _feeds(case), 2.0**-14
    free = [n for n, x in given.items() if x.dtype == np.float32 and n not in FIXED.get(case.op, "")]
    for n in free:
        special = ~(np.abs(given[n]) < 100) | np.isin(given[n], SPECIAL)
        given[n] = into(np.where(special, rng.standard_normal(given[n].shape), given[n]))
    ways, sums = {n: rng.standard_normal(given[n].shape) for n in free}, []
    with tlrt.Session("spec") as s:
        bound = import_module("tlrt.onnx").load(_model(case)).bind(s)
        parameters = {n: s.param(given[n], n) for n in free}
        for h in (step, -step, 0):
            for n, p in parameters.items():
                p.set(given[n] + h * ways[n])
            found = bound(**given | {n: s.use(p) for n, p in parameters.items()})
            made = [y for y in (found if isinstance(found, tuple) else (found,)) if isinstance(y, TensorRef)]
            terms = [y * s.const(np.random.default_rng(k).uniform(1, 2, y.shape)) for k, y in enumerate(made)]
            sums.append(sum(y.numpy().sum() for y in terms))
            if h:
                s.reset()
        if any(y.requires_grad for y in terms):
            s.backward(sum((s.sum(y) for y in terms), s.zeros(())))
        size = sum(np.abs(y.numpy()).sum() for y in terms)
        return (
            sum((p.grad.numpy() * ways[n]).sum() for n, p in parameters.items() if p.grad is not None),
            (sums[0] - sums[1]) / 2 / step,
            size,
        )


def _allowances(case: Drawn) -> list[Array]:
    """How far each element of each result may be from what is right."""
    exact = _run_on_tlrt(case, "spec")
    squares = [np.zeros(e.shape) for e in exact]
    for seed in range(RUNS):
        with _moved_results(seed):
            for total, moved, e in zip(squares, _run_on_tlrt(case, "spec"), exact):
                if e.dtype.kind == "f" and moved.shape == e.shape:
                    total += np.nan_to_num(moved.astype(np.float64) - e, posinf=0, neginf=0) ** 2
    least = [np.maximum(np.spacing(np.abs(np.nan_to_num(e).astype(np.float32))), 2.0**-149) for e in exact]
    return [DEVIATIONS * np.sqrt(s / RUNS) + l.astype(np.float64) for s, l in zip(squares, least)]


def _difference(got: list[Array], right: list[Array], allowed: list[Array]) -> str:
    """What is different, or nothing."""
    for k, (g, r, a) in enumerate(zip(got, right, allowed, strict=True)):
        if g.shape != r.shape:
            return f"output {k}: shape {g.shape}, expected {r.shape}"
        if g.dtype.kind != r.dtype.kind or (g.dtype != r.dtype and r.dtype.kind != "f"):
            return f"output {k}: type {g.dtype}, expected {r.dtype}"
        if r.dtype.kind != "f":
            wrong = g != r
        else:
            # of another shape on tlrt, which is a difference of its own, nothing is allowed
            a = a if a.shape == r.shape else np.zeros(r.shape)
            with np.errstate(all="ignore"):
                near = np.abs(g.astype(np.float64) - r) <= a
                edge = np.isinf(g) & (np.abs(r) + a >= np.finfo(np.float32).max) & (np.sign(g) == np.sign(r))
                wrong = ~(near | (np.isnan(g) & np.isnan(r)) | (g == r.astype(np.float32)) | edge)
        if wrong.any():
            place = tuple(np.argwhere(wrong)[0])
            return f"output {k}{list(map(int, place))}: {g[place]}, expected {r[place]}"
    return ""


def campaign(count: int, seed: int = 0, ops: Sequence[str] = ()) -> dict[str, Any]:
    """So many nodes of each operator, and what was found.

    Returns
    -------
    dict
        "nodes", how many; "refused", what tlrt refuses; "differences", how often a package differs from the standard in an
        operator; "unexplained", the differences that :data:`bench.onnx_standard.EXPLAINED` does not name.
    """
    found: dict[str, Any] = {"nodes": 0, "refused": Counter(), "differences": Counter(), "unexplained": []}
    for op in ops or DRAWN:
        for k in range(count):
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                _try_node(found, draw(op, [seed, k, list(DRAWN).index(op)]), f"{op} {k}")
    return found


def _try_node(found: dict[str, Any], case: Drawn, name: str) -> None:
    found["nodes"] += 1
    try:
        results = {"tlrt": _run_on_tlrt(case, "cpu")}
    except UnavailableError as error:
        found["refused"][f"{name}: {error}"] += 1
        return
    for other in OTHERS[: 1 + (find_spec("onnxruntime") is not None)]:
        try:
            if other == OTHERS[0]:
                results[other] = _run_on_reference(case)
            else:
                results[other] = onnx_nodes.run_on_onnxruntime(_model(case), list(_feeds(case).values()))
        except Exception:  # what it does not implement raises errors of many types
            found["differences"][other, case.op, "no result"] += 1
    try:
        right = _standard(case)
    except Exception:
        right = results.get(OTHERS[1], results.get(OTHERS[0], results["tlrt"]))
    if limit := onnx_standard.LIMITS.get(case.op):  # where the formula has 0 times infinity
        right = [np.where(np.isnan(r) & np.isinf(case.operands[0]), limit(case.operands[0]), r) for r in right]
    allowed: list[Array] = []
    for who, outputs in results.items():
        if not _difference(outputs, right, [np.zeros(r.shape) for r in right]):
            continue  # what is right needs no allowance, which takes longer than all the rest
        allowed = allowed or _allowances(case)
        if wrong := _difference(outputs, right, allowed if who == "tlrt" else [a * ROUGHER for a in allowed]):
            found["differences"][who, case.op, "differs"] += 1
            if (who, case.op) not in onnx_standard.EXPLAINED:
                found["unexplained"].append(f"{who}: {name} of operator set {case.opset} {case.attributes}: {wrong}")


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command. The exit status is 1 where a difference is not explained."""
    p = argparse.ArgumentParser(
        prog="python -m bench.onnx_drawn", description=(__doc__ or "").partition(": ")[2].split("\n")[0]
    )
    p.add_argument("--count", type=int, default=36, metavar="N", help="nodes of each operator (default 36)")
    p.add_argument("--seed", type=int, default=0, metavar="K", help="another draw (default 0)")
    p.add_argument("--only", nargs="+", default=(), choices=DRAWN, metavar="OP", help="the nodes of these operators")
    args = p.parse_args(argv)
    if find_spec("onnx") is None:
        p.exit(2, "onnx_drawn: the package onnx is missing: pip install onnx\n")
    found = campaign(args.count, args.seed, args.only)
    for who in OTHERS:
        package = who.partition(".")[0]
        known = version(package) if find_spec(package) else "is not installed"
        counts = [f"{op} {what} {n}" for (w, op, what), n in found["differences"].items() if w == who]
        print(f"{who} {known}: " + ", ".join(counts))
    print("".join(f"{line}\n" for line in [*found["refused"], *found["unexplained"]]), end="")
    print(
        f"{found['nodes']} nodes, {len(found['refused'])} refused, {len(found['unexplained'])} unexplained differences"
    )
    return int(bool(found["unexplained"]))


if __name__ == "__main__":
    sys.exit(main())
