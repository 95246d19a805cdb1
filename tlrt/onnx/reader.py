"""Graphs of the package onnx as graphs of :mod:`tlrt.onnx.graph`."""

from __future__ import annotations

import importlib
from typing import Any

from tlrt.onnx.graph import Graph, Node, NotExpressible

#: names of the standard's own domain
DOMAINS = ("", "ai.onnx", "ai.onnx.preview.training")


def onnx() -> Any:
    """The package, which is no dependency of this one."""
    return importlib.import_module("onnx")


def read(graph: Any) -> Graph:
    """A graph of the package as one of ours. Raises NotExpressible."""
    nodes = []
    for node in graph.node:
        if node.domain not in DOMAINS:
            raise NotExpressible(f"operators of {node.domain}")
        attributes = {a.name: _attribute(a) for a in node.attribute}
        if node.op_type == "Split" and not any(node.input[1:]):  # into equal parts, as many as there are outputs
            attributes.setdefault("num_outputs", len(node.output))
        nodes.append(Node(node.op_type, list(node.input), list(node.output), attributes))
    constants = {t.name: onnx().numpy_helper.to_array(t) for t in graph.initializer}
    return Graph(
        nodes, [i.name for i in graph.input if i.name not in constants], [o.name for o in graph.output], constants
    )


def _attribute(attribute: Any) -> Any:
    value = onnx().helper.get_attribute_value(attribute)
    if isinstance(value, onnx().GraphProto):
        return read(value)
    if isinstance(value, onnx().TensorProto):
        return onnx().numpy_helper.to_array(value)
    return value.decode() if isinstance(value, bytes) else value
