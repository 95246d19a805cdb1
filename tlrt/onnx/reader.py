"""Graphs of the package onnx as graphs of :mod:`tlrt.onnx.graph`."""

from __future__ import annotations

import importlib
from collections.abc import Container, Iterable, Iterator, Mapping
from typing import Any

import numpy as np

from tlrt.onnx.graph import Graph, Node

#: names of the standard's own domain
DOMAINS = ("", "ai.onnx", "ai.onnx.preview.training")


def onnx() -> Any:
    """The package, which is no dependency of this one."""
    return importlib.import_module("onnx")


def inlined(proto: Any, known: Container[str]) -> Any:
    """The model with functions in place of their calls: its own, and those that the standard gives for operators that are not
    known here. A call first gets the attributes that it leaves out, which onnx.inliner would forget."""
    inliner = importlib.import_module("onnx.inliner")
    if proto.functions:
        proto = _copied(proto)
        stated = {(f.domain, f.name, f.overload): list(f.attribute_proto) for f in proto.functions}
        for graph in (proto.graph, *proto.functions):
            for node in all_nodes(graph):
                _complete(node, stated.get((node.domain, node.op_type, node.overload), ()))
        proto = inliner.inline_local_functions(proto, True)
    version = next((o.version for o in proto.opset_import if o.domain in ("", "ai.onnx")), 1)
    wanted = {n.op_type for n in all_nodes(proto.graph) if n.domain in ("", "ai.onnx") and n.op_type not in known}
    bodies = sorted(op for op in wanted if _has_body(op, version))
    if not bodies:
        return proto
    try:  # a body may depend on types
        whole = importlib.import_module("onnx.shape_inference").infer_shapes(proto)
    except ValueError:  # more than 2 GiB
        whole = _copied(proto)
    stated_types = {v.name for v in (*whole.graph.input, *whole.graph.value_info)}
    whole.graph.value_info.extend(
        onnx().helper.make_tensor_value_info(t.name, t.data_type, t.dims)
        for t in whole.graph.initializer
        if t.name not in stated_types
    )
    for node in all_nodes(whole.graph):
        if node.op_type in bodies:
            attributes = onnx().defs.get_schema(node.op_type, version, "").attributes.values()
            _complete(node, [a.default_value for a in attributes if a.default_value.name])
    try:
        return inliner.inline_selected_functions(whole, [("", op) for op in bodies], False, True)
    except RuntimeError:  # a body that depends on a type that the model leaves open; the operator is named later
        return proto


def _copied(proto: Any) -> Any:
    copy = type(proto)()
    copy.CopyFrom(proto)
    return copy


def _complete(node: Any, defaults: Iterable[Any]) -> None:
    """Adds attributes that a node leaves out."""
    there = {a.name for a in node.attribute}
    node.attribute.extend(a for a in defaults if a.name not in there)


def _has_body(op: str, version: int) -> bool:
    if not onnx().defs.has(op, version, ""):
        return False
    schema = onnx().defs.get_schema(op, version, "")
    return bool(schema.has_function or schema.has_context_dependent_function)


def all_nodes(graph: Any) -> Iterator[Any]:
    """The nodes of a graph of the package, those of graphs within included."""
    for node in graph.node:
        yield node
        for attribute in node.attribute:
            if attribute.HasField("g"):
                yield from all_nodes(attribute.g)


def read(graph: Any, versions: Mapping[str, int]) -> Graph:
    """A graph of the package as one of ours; `versions` are those of the operator sets. Raises NotExpressible."""
    nodes = [_node(n, versions) for n in graph.node]
    constants = {t.name: onnx().numpy_helper.to_array(t) for t in graph.initializer}
    constants |= {t.values.name: _dense(t) for t in graph.sparse_initializer}
    return Graph(
        nodes, [i.name for i in graph.input if i.name not in constants], [o.name for o in graph.output], constants
    )


def _node(node: Any, versions: Mapping[str, int]) -> Node:
    attributes = {a.name: _attribute(a, versions) for a in node.attribute if not a.ref_attr_name}
    if node.op_type == "Split" and not any(node.input[1:]):  # into equal parts, as many as there are outputs
        attributes.setdefault("num_outputs", len(node.output))
    domain = "" if node.domain == "ai.onnx" else node.domain
    known = onnx().defs.has(node.op_type, versions.get(domain, 1), domain)
    schema = onnx().defs.get_schema(node.op_type, versions.get(domain, 1), domain) if known else None
    if node.op_type == "RoiAlign" and schema is not None and schema.since_version < 16:  # without the attribute
        attributes.setdefault("coordinate_transformation_mode", "output_half_pixel")
    return Node(node.op_type, list(node.input), list(node.output), attributes, schema)


def _attribute(attribute: Any, versions: Mapping[str, int]) -> Any:
    value = onnx().helper.get_attribute_value(attribute)
    if isinstance(value, onnx().GraphProto):
        return read(value, versions)
    if isinstance(value, onnx().TensorProto):
        return onnx().numpy_helper.to_array(value)
    if isinstance(value, onnx().SparseTensorProto):
        return _dense(value)
    if isinstance(value, list):
        return [v.decode() if isinstance(v, bytes) else v for v in value]
    return value.decode() if isinstance(value, bytes) else value


def _dense(sparse: Any) -> np.ndarray:
    """A sparse tensor with its zeros; its indices are places in the flattened tensor, or one index a row."""
    values, places = (onnx().numpy_helper.to_array(t) for t in (sparse.values, sparse.indices))
    shape = tuple(sparse.dims)
    out = np.zeros(shape, values.dtype)
    out[np.unravel_index(places, shape) if places.ndim == 1 else tuple(places.T)] = values
    return out


def default_of(node: Node, name: str) -> Any:
    """What the standard says an attribute is where a node leaves it out; None where it says nothing."""
    stated = node.schema.attributes.get(name) if node.schema is not None else None
    return None if stated is None or not stated.default_value.name else _attribute(stated.default_value, {})
