"""Graphs of nodes, and the interpreter that runs them on a session.

Floats are tensors on the device, and so are booleans that come from comparing floats (:class:`Mask`). All other integers and
booleans are NumPy arrays on the host, in their own type, and so is the arithmetic among them. Where a float decides an integer,
as in ArgMax, NonZero or a Cast, the float is downloaded.
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

#: a tensor of floats, a tensor of 1 and 0 for booleans, and an array on the host, as parameters of an operator are annotated
Tensor = Any
Truth = Any
Host = Any
#: what an edge of a graph holds; None stands for an optional operand that is left out
Value = Any


class NotExpressible(Exception):
    """An operator or a setting that tlrt has no operation for; the message names it."""


@dataclass
class Node:
    """One operation: its operator, the edges that it reads and writes ("" for none), its attributes, the standard's schema."""

    op: str
    inputs: Sequence[str]
    outputs: Sequence[str]
    attributes: dict[str, Any] = field(default_factory=dict)
    schema: Any = None


@dataclass
class Graph:
    """Nodes in an order that they can run in, and the edges that come from outside and leave."""

    nodes: Sequence[Node]
    inputs: Sequence[str]
    outputs: Sequence[str]
    constants: Mapping[str, np.ndarray] = field(default_factory=dict)


@dataclass(frozen=True, eq=False)
class Mask:
    """Booleans on the device, as a tensor of 1 and 0."""

    tensor: Any
    dtype = np.dtype(np.bool_)

    @property
    def shape(self) -> tuple[int, ...]:
        return tuple(self.tensor.shape)

    @property
    def ndim(self) -> int:
        return len(self.shape)

    def numpy(self) -> np.ndarray:
        return np.asarray(self.tensor.numpy() != 0)


#: operators with floats and, by name, those among integers and booleans alone
OPERATORS: dict[str, Callable[..., Any]] = {}
HOST: dict[str, Callable[..., Any]] = {}
#: operators that give booleans of booleans, with the places of those operands; on the device they compute with 1 and 0
ON_MASKS: dict[str, slice] = {
    **dict.fromkeys(("And", "Or", "Xor", "Concat"), slice(None)),
    **dict.fromkeys(("Not", "Reshape", "Squeeze", "Unsqueeze", "Expand", "Transpose", "Slice", "Gather", "Flatten", "Tile"),
                    slice(1)),
    "Where": slice(1, 3),
}  # fmt: skip


def operator(name: str) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Enters a function under an operator's name. It takes a :class:`Run`, the operands and, as keywords, the attributes: one
    that it does not name, or a value that its Literal lacks, is not expressible. An operand is a tensor of floats, but where the
    annotation says `Truth`, `Host` or `Value`."""

    def enter(function: Callable[..., Any]) -> Callable[..., Any]:
        OPERATORS[name] = function
        return function

    return enter


def host(name: str) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Enters a function of arrays on the host, and of the attributes, under an operator's name."""

    def enter(function: Callable[..., Any]) -> Callable[..., Any]:
        HOST[name] = function
        return function

    return enter


_signature: Callable[..., inspect.Signature] = cache(inspect.signature)


def operand_kinds(function: Callable[..., Any], count: int) -> list[str]:
    """What the operands of an operator's function are annotated with, of at most so many."""
    parameters = list(_signature(function).parameters.values())[1:]
    kinds = [p for p in parameters if p.kind in (p.POSITIONAL_OR_KEYWORD, p.VAR_POSITIONAL)]
    if kinds and kinds[-1].kind is kinds[-1].VAR_POSITIONAL:
        kinds += kinds[-1:] * count
    return [str(p.annotation) for p in kinds[:count]]


def is_float(value: Value) -> bool:
    """Whether an edge holds floats: what is neither None nor an array nor a mask."""
    return not (value is None or isinstance(value, np.ndarray | Mask))


class Run:
    """What an operator is called with: the session, and in `results` how many outputs are wanted."""

    def __init__(self, session: Session) -> None:
        self.session: Any = session
        self.results = 1
        self.scopes: list[dict[str, Value]] = []
        #: tensors that came from the host, with their arrays
        self.uploaded: dict[Any, np.ndarray] = {}

    def tensor(self, value: Value) -> Any:
        """A value on the device: arrays of the host are uploaded, booleans as 1 and 0."""
        if isinstance(value, np.ndarray):
            return self.enter(value.astype(np.float32))
        return value.tensor if isinstance(value, Mask) else value

    def host(self, value: Value) -> Any:
        """A value on the host; waits for the device where it is not known there."""
        if value is None or isinstance(value, np.ndarray):
            return value
        known = None if isinstance(value, Mask) else self.uploaded.get(value)
        return np.asarray(value.numpy()) if known is None else known

    def _as(self, annotation: str, value: Value, masked: bool) -> Value:
        if annotation == "Host":
            return self.host(value)
        if annotation == "Value" or value is None or is_float(value):
            return value
        if annotation != "Truth" and not masked:
            raise NotExpressible(f"an operand of {value.dtype}")
        return self.tensor(value)

    def call(self, node: Node, given: Sequence[Value]) -> tuple[Value, ...]:
        """The outputs of one node."""
        self.results = max((k for k, name in enumerate(node.outputs, 1) if name), default=0)
        masked = _is_masked(node.op, given)
        on_host = node.op in HOST and not masked and not any(map(is_float, given))
        function = (HOST if on_host else OPERATORS).get(node.op)
        if function is None:
            raise NotExpressible(f"operator {node.op}")
        try:
            if on_host:
                with np.errstate(all="ignore"):  # integers wrap
                    outputs = _tuple(function(*map(self.host, given), **node.attributes))
                return tuple(map(np.asarray, outputs))
            outputs = _tuple(function(self, *self._operands(function, given, masked), **node.attributes))
        except TypeError as error:
            raise NotExpressible(f"{node.op}: {error}") from error
        except (TorchleanError, ValueError, IndexError) as error:
            raise NotExpressible(f"{node.op} is refused: {error}") from error
        if self.results > len(outputs):
            raise NotExpressible(f"output {len(outputs) + 1} of {node.op}")
        return tuple(map(Mask, outputs)) if masked else outputs

    def _operands(self, function: Callable[..., Any], given: Sequence[Value], masked: bool) -> list[Value]:
        found = [self._as(a, v, masked) for a, v in zip(operand_kinds(function, len(given)), given)]
        return found + list(given[len(found) :])

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
            self.uploaded[tensor] = array
            return tensor
        if array.dtype.kind in "iub":
            return array
        raise NotExpressible(f"type {array.dtype}")


def _is_masked(op: str, given: Sequence[Value]) -> bool:
    """Whether booleans of the device are computed there: all operands in question are booleans, one of all is on the device."""
    if op not in ON_MASKS or not any(isinstance(v, Mask) for v in given):
        return False
    return all(isinstance(v, Mask) or (isinstance(v, np.ndarray) and v.dtype == np.bool_) for v in given[ON_MASKS[op]])


def _tuple(outputs: Any) -> tuple[Value, ...]:
    """The outputs of an operator's function; a scalar of NumPy becomes an array without axes."""
    every = outputs if isinstance(outputs, (tuple, list)) else (outputs,)
    return tuple(np.asarray(v) if isinstance(v, np.generic) else v for v in every)
