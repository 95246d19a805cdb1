"""The model tests that come with the package onnx, of more than one node: read by :func:`tlrt.onnx.load`, run on a session."""

import importlib
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

import tlrt
import tlrt.onnx

#: kinds of model tests whose data is in the package
KINDS = ("simple", "pytorch-operator", "pytorch-converted")
#: what models are converted to before they are read
OPSET = 17


def load(kind: str) -> Iterator[tuple[str, Any, list[np.ndarray], list[np.ndarray], float, float]]:
    """Name, model, operands, results, and how far those may differ."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        onnx, found = (
            importlib.import_module("onnx"),
            importlib.import_module("onnx.backend.test.loader").load_model_tests(kind=kind),
        )
    for case in found:
        if case.model is not None:
            for operands, expected in case.data_sets[:1]:
                yield case.name, case.model, list(operands), list(expected), case.rtol, case.atol
            continue
        folder = Path(case.model_dir)
        data = folder / "test_data_set_0"
        read = [
            [onnx.numpy_helper.to_array(onnx.load_tensor(str(p))) for p in sorted(data.glob(f"{what}_*.pb"))]
            for what in ("input", "output")
        ]
        yield case.name, onnx.load(str(folder / "model.onnx")), read[0], read[1], case.rtol, case.atol


def judge(
    model: Any, operands: list[np.ndarray], expected: list[np.ndarray], rtol: float, atol: float, session: tlrt.Session
) -> str:
    """ "passed", "not expressible: ..." or what is wrong."""
    if any(o.version < OPSET for o in model.opset_import if o.domain in ("", "ai.onnx")):
        try:
            model = importlib.import_module("onnx.version_converter").convert_version(model, OPSET)
        except RuntimeError as error:
            return f"not expressible: the package cannot convert it: {str(error).splitlines()[0][:80]}"
    try:
        bound = tlrt.onnx.load(model).bind(session)
        found = bound(*operands[: len(bound.model.inputs)])
    except (tlrt.errors.UnavailableError, NotImplementedError) as error:
        return f"not expressible: {error}"
    outputs = found if isinstance(found, tuple) else (found,)
    for k, (output, wanted) in enumerate(zip(outputs, expected, strict=True)):
        got = output if isinstance(output, np.ndarray) else output.numpy()
        if got.shape != wanted.shape or not np.allclose(got, wanted, rtol, atol, equal_nan=True):
            return f"output {k}: got {got.reshape(-1)[:3]}, expected {wanted.reshape(-1)[:3]}"
    return "passed"


def campaign(device: str, kinds: tuple[str, ...] = KINDS) -> dict[str, dict[str, str]]:
    """Kind -> test -> its verdict."""
    out: dict[str, dict[str, str]] = {}
    for kind in kinds:
        for name, model, operands, expected, rtol, atol in load(kind):
            with tlrt.Session(device) as session, session.no_grad():
                try:
                    verdict = judge(model, operands, expected, rtol, atol, session)
                except Exception as error:  # a test that cannot end has failed
                    verdict = f"{type(error).__name__}: {error}"
            out.setdefault(kind, {})[name] = verdict
    return out
