"""Models in the ONNX format on a session."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from os import PathLike
from typing import Any

import numpy as np

from tlrt.errors import ArgumentError, ArgumentTypeError, UnavailableError, refusal
from tlrt.onnx import control, elementwise, host, indexing, network, recurrent, reduce, resample, shape
from tlrt.onnx.check import kind_of, problems
from tlrt.onnx.control import is_known
from tlrt.onnx.graph import HOST, OPERATORS, Graph, Mask, Node, NotExpressible, Run
from tlrt.onnx.reader import DOMAINS, all_nodes, inlined, onnx, read
from tlrt.parameter import Parameter
from tlrt.session import Session

#: the modules that enter operators
TABLES = (control, elementwise, host, indexing, network, recurrent, reduce, resample, shape)
#: the least version of the operators' definitions
OPSET = 13
#: operators -> the inputs that hold statistics, which no gradient changes
STATISTICS = {"BatchNormalization": (3, 4)}


class Model:
    """A model as its file has it: inputs and outputs by name, weights, operators. :meth:`bind` gives it to a session.

    ``inputs`` maps a name to its type and lengths; a length that a call decides is a text or None. ``weights`` maps
    names to the arrays of float32 that become parameters; ``outputs`` are names, ``operators`` a count of each.

    Parameters
    ----------
    proto : onnx.ModelProto
        The model; :func:`load` reads it.

    Raises
    ------
    UnavailableError
        With all that cannot be expressed.
    """

    def __init__(self, proto: Any) -> None:
        proto = inlined(proto, OPERATORS.keys() | HOST.keys())
        self.graph = _checked(proto)
        given = {i.name: i.type.tensor_type for i in proto.graph.input}
        self.inputs: dict[str, tuple[np.dtype[Any], tuple[int | str | None, ...]]] = {
            name: (onnx().helper.tensor_dtype_to_np_dtype(given[name].elem_type), _lengths(given[name]))
            for name in self.graph.inputs
        }
        self.outputs = tuple(self.graph.outputs)
        self.operators = Counter(n.op for n in _nodes(self.graph))
        self.weights = {n: v for n, v in self.graph.constants.items() if v.dtype == np.float32 and v.ndim > 0}
        self._fixed = {
            n.inputs[k] for n in _nodes(self.graph) for k in STATISTICS.get(n.op, ()) if k < len(n.inputs)
        }  # fmt: skip

    def bind(self, session: Session, name: str = "", trainable: bool | Callable[[str], bool] = True) -> Bound:
        """The model on a session, its weights as parameters.

        Parameters
        ----------
        session : Session
            The session that gets the parameters.
        name : str
            What their names begin with, before a point; "" leaves the names of the file.
        trainable : bool or function of a name
            Which weights have a gradient. Statistics of batch normalisations have none.

        Returns
        -------
        Bound
            What is called.
        """
        is_trained = trainable if callable(trainable) else lambda _: bool(trainable)
        before = f"{name}." if name else ""
        parameters = {
            w: session.param(value, before + w, requires_grad=is_trained(w) and w not in self._fixed)
            for w, value in self.weights.items()
        }
        return Bound(self, session, parameters)

    def __repr__(self) -> str:
        shown = ", ".join(f"{n}{list(lengths)}" for n, (_, lengths) in self.inputs.items())
        return f"Model({shown} -> {', '.join(self.outputs)}; {sum(w.size for w in self.weights.values())} weights)"


class Bound:
    """A model on a session; :meth:`Model.bind` makes one.

    Called with its inputs, in order or by name, it gives its output, or a tuple of several. Floats are tensors or
    arrays, integers and booleans arrays on the host, and so are those that come out, in the types of the model.

    Parameters
    ----------
    model : Model
        The model.
    session : Session
        The session that has the parameters.
    parameters : mapping of str to Parameter
        By the names of the file.
    """

    def __init__(self, model: Model, session: Session, parameters: Mapping[str, Parameter]) -> None:
        self.model, self.session, self._parameters = model, session, dict(parameters)
        kept = {n: v for n, v in model.graph.constants.items() if n not in parameters}
        self._graph = Graph(model.graph.nodes, model.graph.inputs, model.graph.outputs, kept)

    def parameters(self) -> list[Parameter]:
        """The parameters that have a gradient.

        Returns
        -------
        list of Parameter
            In the file's order.
        """
        return [p for p in self._parameters.values() if p.requires_grad]

    def named_parameters(self) -> dict[str, Parameter]:
        """All parameters.

        Returns
        -------
        dict of str to Parameter
            By the names that the file has.
        """
        return dict(self._parameters)

    def __call__(self, *operands: Any, **named: Any) -> Any:
        names = list(self.model.inputs)
        if len(operands) > len(names) or any(n not in names[len(operands) :] for n in named):
            expected = f"the inputs {', '.join(names)}, each once"
            raise refusal(
                ArgumentError, "onnx", "inputs", f"{len(operands)} and {', '.join(named) or 'no names'}", expected
            )
        given = {**dict(zip(names, operands, strict=False)), **named}
        if missing := [n for n in names if n not in given]:
            raise refusal(ArgumentError, "onnx", "inputs", f"no {', '.join(missing)}", f"{', '.join(names)}")
        run = Run(self.session)
        run.scopes.append({n: self.session.use(p) for n, p in self._parameters.items()})
        try:
            found = run.graph(self._graph, [self._operand(run, n, given[n]) for n in names])
        except NotExpressible as error:
            raise refusal(UnavailableError, "onnx", "model", str(error), "an operation that tlrt has") from error
        found = [run.host(v) if isinstance(v, Mask) else v for v in found]
        return found[0] if len(found) == 1 else tuple(found)

    def _operand(self, run: Run, name: str, value: Any) -> Any:
        kind, _ = self.model.inputs[name]
        if not isinstance(value, np.ndarray | np.generic | list | tuple | int | float):
            if kind.kind == "f":
                return value  # a tensor
            raise refusal(ArgumentTypeError, "onnx", name, type(value).__name__, f"an array of {kind}")
        given = np.asarray(value)
        if kind.kind == "f" and given.dtype.kind in "fiub":
            return run.enter(given.astype(np.float32))
        if given.dtype.kind not in "iub" or (given.astype(kind) != given).any():
            raise refusal(
                ArgumentTypeError, "onnx", name, f"an array of {given.dtype}", f"one whose values {kind} holds"
            )
        return given.astype(kind)


def load(model: str | PathLike[str] | bytes | Any) -> Model:
    """A model in the ONNX format. The package onnx must be installed.

    Parameters
    ----------
    model : path, bytes or onnx.ModelProto
        A file, its content, or the model. Float32, with the operators that tlrt has.

    Returns
    -------
    Model
        To be given to a session.

    Raises
    ------
    UnavailableError
        With everything in the model that tlrt has not, before anything is computed.

    Examples
    --------
    >>> import tlrt.onnx
    >>> from onnx import TensorProto, helper
    >>> x, y = (helper.make_tensor_value_info(n, TensorProto.FLOAT, ["batch", 2]) for n in "xy")
    >>> graph = helper.make_graph([helper.make_node("Relu", ["x"], ["y"])], "graph", [x], [y])
    >>> model = tlrt.onnx.load(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)]))
    >>> model
    Model(x['batch', 2] -> y; 0 weights)
    >>> model.bind(tlrt.Session("cpu"))([[-1.0, 2.0]]).numpy()
    array([[0., 2.]], dtype=float32)
    """
    if isinstance(model, bytes):
        proto = onnx().load_model_from_string(model)
    elif isinstance(model, str | PathLike):
        proto = onnx().load(str(model))
    else:
        proto = model
    return Model(proto)


def _lengths(kind: Any) -> tuple[int | str | None, ...]:
    return tuple(d.dim_value if d.HasField("dim_value") else d.dim_param or None for d in kind.shape.dim)


def _nodes(graph: Graph) -> Iterator[Node]:
    """All nodes, those of graphs within included."""
    for node in graph.nodes:
        yield node
        for value in node.attributes.values():
            if isinstance(value, Graph):
                yield from _nodes(value)


def _checked(proto: Any) -> Graph:
    """The graph; raises UnavailableError with all that cannot be expressed."""
    wrong: list[str] = []
    versions = {o.domain: o.version for o in proto.opset_import}
    version = versions.get("", versions.get("ai.onnx", OPSET))
    if version < OPSET:
        wrong.append(f"opset {version}, which is older than {OPSET} (onnx.version_converter makes it newer)")
    wrong += sorted({f"operator {n.domain}.{n.op_type}" for n in all_nodes(proto.graph) if n.domain not in DOMAINS})
    if wrong:
        raise _refusal(wrong)
    try:
        graph = read(proto.graph, {"": version, **versions})
    except NotExpressible as error:
        raise _refusal([str(error)]) from None
    kinds = {edge.name: kind_of(edge) for edge in proto.graph.input}
    wrong += [f"input {n} of type {kind}" for n, kind in kinds.items() if not is_known(kind)]
    wrong += problems(graph, kinds)
    if wrong:
        raise _refusal(wrong)
    return graph


def _refusal(wrong: Sequence[str]) -> Exception:
    return refusal(UnavailableError, "onnx.load", "model", "; ".join(wrong), "operators of float32 that tlrt has")
