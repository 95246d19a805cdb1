"""Graphs of one ONNX node, on a session."""

from typing import Any

import numpy as np


def graph_of(op: str, *operands: np.ndarray | None, outputs: int = 1, opset: int = 18, **attributes: Any) -> Any:
    """The model of one node; its outputs have the types that the package onnx infers."""
    import onnx

    names = [f"x{k}" if x is not None else "" for k, x in enumerate(operands)]
    kinds = [
        onnx.helper.make_tensor_value_info(n, onnx.helper.np_dtype_to_tensor_dtype(x.dtype), x.shape)
        for n, x in zip(names, operands, strict=True)
        if x is not None
    ]
    node = onnx.helper.make_node(op, names, [f"y{k}" for k in range(outputs)], **attributes)
    ends = [onnx.helper.make_empty_tensor_value_info(n) for n in node.output]
    graph = onnx.helper.make_graph([node], "g", kinds, ends)
    return onnx.helper.make_model(graph, opset_imports=[onnx.helper.make_opsetid("", opset)])


def run(op: str, *operands: np.ndarray | None, device: str = "cpu", **more: Any) -> Any:
    """The results of one node as arrays."""
    import tlrt.onnx

    with tlrt.Session(device) as s:
        bound = tlrt.onnx.load(graph_of(op, *operands, **more)).bind(s)
        found = bound(*(x for x in operands if x is not None))
        arrays = [
            v if isinstance(v, np.ndarray) else v.numpy() for v in (found if isinstance(found, tuple) else (found,))
        ]
    return tuple(arrays) if len(arrays) > 1 else arrays[0]
