"""Graphs of nodes, and the interpreter that runs them on a session.

Floats and masks are tensors on the device. Integers and booleans that do not come from floats, such as shapes, axes and the
indices of a gather, are NumPy arrays on the host, and so is the arithmetic among them.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from typing import Any

import numpy as np

from tlrt.errors import TorchleanError
from tlrt.session import Session

#: a tensor on the device, and an array on the host, as parameters of an operator are annotated
Tensor = Any
Host = Any
#: what an edge of a graph holds; None stands for an optional operand that is left out
Value = Any


class NotExpressible(Exception):
    """What tlrt has no operation for; the message says what."""


@dataclass
class Node:
    """One operation: its operator, the edges that it reads and writes ("" for none), its attributes."""

    op: str
    inputs: Sequence[str]
    outputs: Sequence[str]
    attributes: Mapping[str, Any] = field(default_factory=dict)


@dataclass
class Graph:
    """Nodes in an order that they can run in, and the edges that come from outside and leave."""

    nodes: Sequence[Node]
    inputs: Sequence[str]
    outputs: Sequence[str]
    constants: Mapping[str, np.ndarray] = field(default_factory=dict)


#: operators on tensors and, by name, those among host arrays alone
OPERATORS: dict[str, Callable[..., Any]] = {}
HOST: dict[str, Callable[..., Any]] = {}


def operator(name: str) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Enters a function under an operator's name. It takes a :class:`Run`, the operands and, as keywords, the attributes: one
    that it does not name is not expressible. An operand is a tensor, but where the annotation says `Host` or `Value`."""

    def enter(function: Callable[..., Any]) -> Callable[..., Any]:
        OPERATORS[name] = function
        return function

    return enter


_signature: Callable[..., inspect.Signature] = cache(inspect.signature)


class Run:
    """What an operator is called with: the session, and in `results` how many outputs are wanted."""

    def __init__(self, session: Session) -> None:
        self.session: Any = session
        self.results = 1
        self.scopes: list[dict[str, Value]] = []
        #: what came from the host: no result of an operation
        self.uploaded: set[Any] = set()

    def tensor(self, value: Value) -> Any:
        """A value on the device: arrays of the host are uploaded, booleans as 1 and 0."""
        if isinstance(value, np.ndarray):
            return self.enter(value.astype(np.float32))
        return value

    def host(self, value: Value) -> Any:
        """A value on the host; waits for the device."""
        return value if value is None or isinstance(value, np.ndarray) else value.numpy()

    def _as(self, annotation: str, value: Value) -> Value:
        return self.host(value) if annotation == "Host" else value if annotation == "Value" else self.tensor(value)

    def call(self, node: Node, given: Sequence[Value]) -> tuple[Value, ...]:
        """The outputs of one node."""
        known = [v for v in given if v is not None]
        if node.op in HOST and known and all(isinstance(v, np.ndarray) and v.dtype.kind in "iub" for v in known):
            return tuple(map(np.asarray, _tuple(HOST[node.op](*given, **node.attributes))))
        function = OPERATORS.get(node.op)
        if function is None:
            raise NotExpressible(f"operator {node.op}")
        try:
            bound = _signature(function).bind(self, *given, **node.attributes)
        except TypeError as error:
            raise NotExpressible(f"{node.op}: {error}") from None
        operands: list[Any] = []
        for parameter in list(_signature(function).parameters.values())[1:]:
            taken = bound.arguments.get(parameter.name, ())
            if parameter.kind is parameter.VAR_POSITIONAL:
                operands += [self._as(str(parameter.annotation), v) for v in taken]
            elif parameter.kind is parameter.POSITIONAL_OR_KEYWORD and parameter.name in bound.arguments:
                operands.append(self._as(str(parameter.annotation), taken))
        self.results = max((k for k, name in enumerate(node.outputs, 1) if name), default=0)
        try:
            outputs = _tuple(function(self, *operands, **node.attributes))
        except TorchleanError as error:
            raise NotExpressible(f"{node.op} is refused: {error}") from error
        if self.results > len(outputs):
            raise NotExpressible(f"output {len(outputs) + 1} of {node.op}")
        return outputs

    def graph(self, graph: Graph, given: Sequence[Value]) -> list[Value]:
        """The outputs of a graph; edges that it does not have are those of the graphs around it."""
        scope = {name: self.enter(v) for name, v in graph.constants.items()}
        scope.update(zip(graph.inputs, given))
        self.scopes.append(scope)
        try:
            for node in graph.nodes:
                outputs = self.call(node, [self.find(name) for name in node.inputs])
                scope.update((name, v) for name, v in zip(node.outputs, outputs) if name)
            return [self.find(name) for name in graph.outputs]
        finally:
            self.scopes.pop()

    def find(self, name: str) -> Value:
        """The value of an edge, of the innermost graph that has it."""
        return next((scope[name] for scope in reversed(self.scopes) if name in scope), None)

    def enter(self, array: np.ndarray) -> Value:
        """An array that comes from outside: float32 on the device, integers and booleans on the host."""
        if array.dtype == np.float32:
            tensor = self.session.const(array)
            self.uploaded.add(tensor)
            return tensor
        if array.dtype.kind in "iub":
            return array
        raise NotExpressible(f"type {array.dtype}")


def _tuple(outputs: Any) -> tuple[Value, ...]:
    return tuple(outputs) if isinstance(outputs, (tuple, list)) else (outputs,)
