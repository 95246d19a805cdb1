"""What of a graph cannot be computed, found from the types of its edges before anything runs."""

from __future__ import annotations

import inspect
import typing
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from tlrt.onnx.control import is_known
from tlrt.onnx.graph import HOST, ON_MASKS, OPERATORS, Graph, Node, operand_kinds
from tlrt.onnx.reader import default_of, onnx

#: a type of NumPy, the name of one that NumPy lacks, or None where it is not known
Kind = Any
#: operators -> the attribute with the number of the type that comes out
_SAID = {
    "Cast": "to",
    "EyeLike": "dtype",
    "RandomNormalLike": "dtype",
    "RandomUniformLike": "dtype",
    "Bernoulli": "dtype",
}


def problems(graph: Graph, kinds: Mapping[str, Kind]) -> list[str]:
    """Everything that cannot be computed; `kinds` are the types of the inputs and of edges of graphs around."""
    return list(dict.fromkeys(_walk(graph, dict(kinds))))


def kind_of(edge: Any) -> Kind:
    """The type of an edge of the package: NumPy's, or the name of what is no tensor of a type that NumPy has."""
    which = edge.type.WhichOneof("value")
    return _numbered(edge.type.tensor_type.elem_type) if which == "tensor_type" else str(which).removesuffix("_type")


def _numbered(number: int) -> Kind:
    kind = onnx().helper.tensor_dtype_to_np_dtype(number) if number else np.dtype(object)
    if is_known(kind):
        return kind
    return onnx().TensorProto.DataType.Name(number).lower() if kind == np.dtype(object) else kind.name


def _walk(graph: Graph, kinds: dict[str, Kind]) -> Iterator[str]:
    for name, value in graph.constants.items():
        kinds[name] = value.dtype
        if not is_known(value.dtype):
            yield f"weight {name} of type {value.dtype}"
    for node in graph.nodes:
        where = f"(output {', '.join(n for n in node.outputs if n)})"
        given = [kinds.get(name) if name else None for name in node.inputs]
        table = HOST if node.op in HOST and np.float32 not in given else OPERATORS
        function = table.get(node.op, OPERATORS.get(node.op))
        if function is None:
            yield f"operator {node.op}{' of float32' if node.op in HOST else ''} {where}"
        else:
            yield from (f"{what} of {node.op} {where}" for what in _lacking(node, function))
            if node.op == "Dropout" and _is_training(graph, node):
                yield f"the random numbers of Dropout {where}"
            if function is OPERATORS.get(node.op):
                wrong = _wrong_kinds(node, function, given)
                yield from (f"operator {node.op} of {kind} {where}" for kind in wrong)
        made: Sequence[Kind] | None = None
        for value in node.attributes.values():
            if isinstance(value, Graph):
                inner = dict(kinds) | dict(zip(value.inputs, _entering(node, given)))
                yield from _walk(value, inner)
                made = [inner.get(name) for name in value.outputs][1 if node.op == "Loop" else 0 :]
        for name, kind in zip(node.outputs, _outputs(node, given) if made is None else made):
            kinds[name] = kind
            if name and kind is not None and not is_known(kind):
                yield f"type {kind} of {name} (from {node.op})"


def _is_training(graph: Graph, node: Node) -> bool:
    """Whether a constant of the graph says that Dropout is in training."""
    name = node.inputs[2] if len(node.inputs) > 2 else ""
    made = [n.attributes.get("value") for n in graph.nodes if n.op == "Constant" and name in n.outputs]
    return bool(name) and bool(np.any(graph.constants.get(name, made[0] if made else False)))


def _entering(node: Node, given: Sequence[Kind]) -> Sequence[Kind]:
    """The types of the inputs of a graph within."""
    return [np.dtype(np.int64), np.dtype(np.bool_), *given[2:]] if node.op == "Loop" else given


def _outputs(node: Node, given: Sequence[Kind]) -> list[Kind]:
    """The types of a node's outputs: by the standard's names of types, or as an attribute says."""
    value = node.attributes.get("value", node.attributes.get("sparse_value"))
    if node.op == "Constant":
        whole = node.attributes.keys() & {"value_int", "value_ints"}
        return [np.asarray(value).dtype if value is not None else np.dtype(np.int64 if whole else np.float32)]
    if node.op == "ConstantOfShape":
        return [np.dtype(np.float32) if value is None else np.asarray(value).dtype]
    if node.op in _SAID and _SAID[node.op] in node.attributes:
        return [_numbered(node.attributes[_SAID[node.op]])]
    if node.schema is None:
        return [None] * len(node.outputs)
    known: dict[str, Kind] = {}
    for k, kind in enumerate(given):
        formal = node.schema.inputs[min(k, len(node.schema.inputs) - 1)]
        if kind is not None:
            known.setdefault(formal.type_str, kind)
    return [_named(node, k, known) for k in range(len(node.outputs))]


def _named(node: Node, k: int, known: Mapping[str, Kind]) -> Kind:
    text = node.schema.outputs[min(k, len(node.schema.outputs) - 1)].type_str
    if text in known:
        return known[text]
    allowed = next((c.allowed_type_strs for c in node.schema.type_constraints if c.type_param_str == text), [text])
    if len(allowed) != 1 or not allowed[0].startswith("tensor("):
        return None
    return _numbered(getattr(onnx().TensorProto, allowed[0][7:-1].upper()))


def _wrong_kinds(node: Node, function: Callable[..., Any], given: Sequence[Kind]) -> Iterator[Kind]:
    """Types that operands have where the function takes floats."""
    for annotation, kind in zip(operand_kinds(function, len(given)), given):
        if annotation in ("Truth", "Host", "Value") or not is_known(kind) or kind == np.float32:
            continue
        if node.op not in ON_MASKS or kind != np.bool_:
            yield kind


def _lacking(node: Node, function: Callable[..., Any]) -> Iterator[str]:
    """Attributes and operands that a function does not take. An attribute that says its own default is dropped."""
    parameters, hints = _parameters(function)
    if not any(p.kind is p.VAR_POSITIONAL for p in parameters):
        count = sum(p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD) for p in parameters)
        count -= function is OPERATORS.get(node.op)
        if len(node.inputs) > count and any(node.inputs[count:]):
            yield f"input {count + 1}"
    if any(p.kind is p.VAR_KEYWORD for p in parameters):
        return
    names = {p.name for p in parameters if p.kind is p.KEYWORD_ONLY}
    needed = {p.name for p in parameters if p.kind is p.KEYWORD_ONLY and p.default is p.empty}
    yield from (f"no attribute {name}" for name in sorted(needed - node.attributes.keys()))
    for name, value in list(node.attributes.items()):
        if name not in names:
            if value == default_of(node, name):
                del node.attributes[name]
            else:
                yield f"attribute {name}"
        elif typing.get_origin(hints.get(name)) is typing.Literal and value not in typing.get_args(hints[name]):
            yield f"attribute {name} = {value!r}"


def _parameters(function: Callable[..., Any]) -> tuple[Sequence[inspect.Parameter], Mapping[str, Any]]:
    if isinstance(function, np.ufunc):
        return [inspect.Parameter(f"x{k}", inspect.Parameter.POSITIONAL_ONLY) for k in range(function.nin)], {}
    try:
        return list(inspect.signature(function).parameters.values()), typing.get_type_hints(function)
    except (TypeError, ValueError):  # a function of NumPy without a signature
        return [inspect.Parameter("xs", inspect.Parameter.VAR_POSITIONAL)], {}
