"""Drawn graphs of one node on tlrt, on onnx's reference evaluator and on onnxruntime, held to float64.

What is right is the reference evaluator's result in float64, or, for an operator where it does not do what the standard says,
a function of :mod:`audit.onnx_nodes.text`. How far a result may be from it follows from the operations that tlrt makes of the
node: it runs on the specification with every result moved within its bound (:mod:`audit.models.spread`), and an element may
differ by six times the root mean square of its moves, which is estimated from 8 runs.
"""

from __future__ import annotations

import importlib
import warnings
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any
from unittest import mock

import numpy as np

import tlrt
import tlrt.onnx
from audit.models.spread import moved_results
from audit.onnx_nodes import text
from audit.onnx_nodes.drawn import DRAWN, Drawn, draw
from tlrt.errors import UnavailableError
from tlrt.onnx.graph import Run

Array = np.ndarray
_RUNS, _DEVIATIONS = 8, 6.0
_TYPES = {"float32": 1, "uint8": 2, "int8": 3, "int32": 6, "int64": 7, "bool": 9, "float64": 11, "uint32": 12}


def model(case: Drawn, wide: bool = False) -> Any:
    """The node as a model of the package onnx; with float64 in place of float32 where `wide`."""
    onnx = importlib.import_module("onnx")
    helper, given = onnx.helper, {n: x for n, x in zip("abcdefg", case.operands) if x is not None}
    names = [n if n in given else "" for n, _ in zip("abcdefg", case.operands)]
    attributes = dict(case.attributes)
    if wide and attributes.get("to") == 1:
        attributes["to"] = 11
    node = helper.make_node(case.op, names, [f"o{k}" for k in range(case.outputs)], **attributes)
    kinds = {n: 11 if wide and x.dtype == np.float32 else _TYPES[x.dtype.name] for n, x in given.items()}
    inputs = [helper.make_tensor_value_info(n, kinds[n], x.shape) for n, x in given.items()]
    graph = helper.make_graph([node], "drawn", inputs, [helper.make_empty_tensor_value_info(n) for n in node.output])
    whole = helper.make_model(graph, opset_imports=[helper.make_opsetid("", case.opset)], ir_version=10)
    found = onnx.shape_inference.infer_shapes(whole, strict_mode=False)
    for output, shaped in zip(whole.graph.output, found.graph.output):
        output.CopyFrom(shaped)
        output.type.tensor_type.ClearField("shape")
    return whole


def feeds(case: Drawn, wide: bool = False) -> dict[str, Array]:
    return {n: x.astype(np.float64) if wide and x.dtype == np.float32 else x
            for n, x in zip("abcdefg", case.operands) if x is not None}  # fmt: skip


def on_tlrt(case: Drawn, device: str) -> list[Array]:
    with tlrt.Session(device) as session, session.no_grad():
        found = tlrt.onnx.load(model(case)).bind(session)(**feeds(case))
        found = found if isinstance(found, tuple) else (found,)
        return [np.asarray(f if isinstance(f, np.ndarray) else f.numpy()) for f in found]


def on_reference(case: Drawn, wide: bool) -> list[Array]:
    evaluator = importlib.import_module("onnx.reference").ReferenceEvaluator(model(case, wide))
    return [np.asarray(v) for v in evaluator.run(None, feeds(case, wide))]


def on_onnxruntime(case: Drawn) -> list[Array]:
    runtime = importlib.import_module("onnxruntime")
    runtime.set_default_logger_severity(4)
    session = runtime.InferenceSession(model(case).SerializeToString(), providers=["CPUExecutionProvider"])
    return [np.asarray(v) for v in session.run(None, feeds(case))]


def truth(case: Drawn) -> list[Array]:
    """What the standard says, in float64."""
    if case.op in text.TEXT:
        wide = (x if x is None or x.dtype != np.float32 else x.astype(np.float64) for x in case.operands)
        made = text.TEXT[case.op](case, *wide)
        return [np.asarray(v) for v in (made if isinstance(made, tuple) else (made,))]
    return on_reference(case, True)


def allowances(case: Drawn) -> list[Array]:
    """How far each element of each result may be from what is right."""
    exact = on_tlrt(case, "spec")
    squares = [np.zeros(e.shape) for e in exact]
    for seed in range(_RUNS):
        with moved_results(seed), _moved_constants(seed):
            for total, moved, e in zip(squares, on_tlrt(case, "spec"), exact):
                if e.dtype.kind == "f" and moved.shape == e.shape:
                    total += np.nan_to_num(moved.astype(np.float64) - e, posinf=0, neginf=0) ** 2
    least = [np.maximum(np.spacing(np.abs(np.nan_to_num(e).astype(np.float32))), 2.0**-149) for e in exact]
    return [_DEVIATIONS * np.sqrt(s / _RUNS) + l.astype(np.float64) for s, l in zip(squares, least)]


@contextmanager
def _moved_constants(seed: int) -> Iterator[None]:
    """Within it, numbers that an importer's function computes on the host in float64 move by their rounding to float32."""
    rng, tensor = np.random.default_rng(seed), Run.tensor

    def moved(self: Run, value: Any) -> Any:
        if isinstance(value, np.ndarray) and value.dtype == np.float64:
            value = value * (1 + 2.0**-24 * rng.standard_normal(value.shape))
        return tensor(self, value)

    with mock.patch.object(Run, "tensor", moved):
        yield


def difference(got: list[Array], right: list[Array], allowed: list[Array]) -> str:
    """What is different, or nothing."""
    for k, (g, r, a) in enumerate(zip(got, right, allowed)):
        a = a if a.shape == r.shape else np.zeros(r.shape)  # tlrt has another shape, which is a difference of its own
        if g.shape != r.shape:
            return f"shape {g.shape}, expected {r.shape}"
        if g.dtype.kind != r.dtype.kind or (g.dtype != r.dtype and r.dtype.kind != "f"):
            return f"type {g.dtype}, expected {r.dtype}"
        if r.dtype.kind != "f":
            wrong = g != r
        else:
            with np.errstate(all="ignore"):
                r32, near = r.astype(np.float32), np.abs(g.astype(np.float64) - r) <= a
                edge = np.isinf(g) & (np.abs(r) + a >= np.finfo(np.float32).max) & (np.sign(g) == np.sign(r))
                wrong = ~(near | (np.isnan(g) & np.isnan(r)) | (g == r32) | edge)
        if wrong.any():
            place = tuple(np.argwhere(wrong)[0])
            return f"output {k}{list(map(int, place))}: {g[place]}, expected {r[place]}"
    return ""


def campaign(count: int, seed: int = 0, only: str | None = None) -> dict[str, Any]:
    """So many nodes of each operator: what tlrt, the reference and onnxruntime did. Differences are named with their seeds."""
    out: dict[str, Any] = {"nodes": 0, "refused": Counter(), "onnx.reference": Counter(), "onnxruntime": Counter(),
                           "unexplained": [], "differences": {}}  # fmt: skip
    runtime = importlib.util.find_spec("onnxruntime") is not None
    names = [only] if only else list(DRAWN)
    for op in names:
        for k in range(count):
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                _one(out, draw(op, [seed, k, names.index(op) if only is None else list(DRAWN).index(op)]), k, runtime)
    return out


def _one(out: dict[str, Any], case: Drawn, k: int, runtime: bool) -> None:
    out["nodes"] += 1
    shown = f"{case.op} {k} opset {case.opset} {case.attributes}"
    try:
        got = on_tlrt(case, "cpu")
    except UnavailableError as error:
        out["refused"][f"{case.op}: {error}"] += 1
        return
    allowed = allowances(case)
    others: dict[str, Any] = {}
    for name in ("onnx.reference", "onnxruntime")[: 1 + runtime]:
        try:
            others[name] = on_reference(case, False) if name == "onnx.reference" else on_onnxruntime(case)
        except Exception as error:  # what it does not implement
            others[name] = None
            out[name][f"{case.op}: no result: {type(error).__name__}"] += 1
    try:
        right = truth(case)
    except Exception:
        right = next((v for v in others.values() if v is not None), got)
    limits = text.LIMITS.get(case.op)
    if limits is not None:  # the limit where a formula has 0 times infinity
        right = [np.where(np.isnan(r) & np.isinf(case.operands[0]), limits(case.operands[0]), r) for r in right]
    if wrong := difference(got, right, allowed):
        out["unexplained"].append(f"tlrt: {shown}: {wrong}")
    for name, found in others.items():
        if found is not None and (wrong := difference(found, right, allowed)):
            out[name][case.op] += 1
            out["differences"].setdefault(f"{name} {case.op}", f"{shown}: {wrong}")
            if (name, case.op) not in text.EXPLAINED:
                out["unexplained"].append(f"{name}: {shown}: {wrong}")
