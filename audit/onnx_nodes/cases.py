"""The node tests of the installed onnx package as graphs with operands and the results expected."""

import importlib
import warnings
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

from tlrt.errors import UnavailableError
from tlrt.onnx.graph import Graph
from tlrt.onnx.model import Model


@dataclass
class Case:
    """One test: its graph, operands and results, and how far they may differ. `op` is the operator that it is about."""

    name: str
    op: str
    graph: Graph
    operands: list[np.ndarray]
    expected: list[np.ndarray]
    rtol: float
    atol: float


def load(op: str | None = None) -> Iterator[Case | tuple[str, str]]:
    """The tests on float32, of one operator or all; for one that cannot be read its operator and the reason. Tests of other types
    are left out."""
    with warnings.catch_warnings():  # of the package's own NumPy
        warnings.simplefilter("ignore")
        onnx = importlib.import_module("onnx")
        found = importlib.import_module("onnx.backend.test.loader").load_model_tests(kind="node")
    about = {case.name: case.model.graph.node[-1].op_type for case in found if "_expanded" not in case.name}
    for case in found:
        graph, original = case.model.graph, case.name.split("_expanded")[0]
        name = about.get(original, original.removeprefix("test_"))
        if (op is not None and name != op) or not _is_float32(onnx, [*graph.input, *graph.output]):
            continue
        operands, expected = case.data_sets[0]
        try:
            yield Case(case.name, name, Model(case.model).graph, operands, expected, case.rtol, case.atol)
        except UnavailableError as error:
            yield name, str(error)


def _is_float32(onnx: Any, edges: list[Any]) -> bool:
    """Whether the edges hold float32, and beside it at most integers and booleans."""
    if any(e.type.WhichOneof("value") != "tensor_type" for e in edges):
        return False
    kinds = {e.type.tensor_type.elem_type for e in edges}
    types = onnx.TensorProto
    return types.FLOAT in kinds and kinds <= {types.FLOAT, types.INT32, types.INT64, types.BOOL}
