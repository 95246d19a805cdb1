"""Nodes: the values on a tape."""

from __future__ import annotations

import operator
import threading
import weakref
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import ContextDecorator
from typing import Any

from tlrt._binding import convert
from tlrt._binding.handles import Uncopied
from tlrt._operations.plan import Plan, Shape
from tlrt._operations.shaped import AnyBuffer
from tlrt.errors import ArgumentError, ArgumentTypeError, refusal

#: a node's VJP made by hand: from the cotangent of its value to (parent, contribution) pairs
Backward = Callable[["AnyBuffer"], "Iterable[tuple[int, AnyBuffer]]"]


class Node(Uncopied):
    """One value on a tape: what computed it, from which parents, and how its cotangent goes back to them.

    Parameters
    ----------
    name : str
        Of the operation, or of a leaf.
    value : AnyBuffer
        The forward value; the node takes the buffer over.
    requires_grad : bool, default True
        Whether backward propagates to it.
    parents : sequence of int
        Ids of the values it was computed from.
    backward : callable, optional
        Its VJP, made by hand: from the cotangent of its value to (parent, contribution) pairs.
    cleanup : sequence of buffer
        Scratch buffers that are released with the tape.
    """

    __slots__ = ("_hosts", "_plan", "_rule", "buffer", "cleanup", "name", "parents", "requires_grad", "shape")

    name: str
    shape: Shape
    buffer: Any
    requires_grad: bool
    #: ids of the values it was computed from; None where an optional one was left out
    parents: tuple[int | None, ...]
    #: scratch buffers that are released with the tape
    cleanup: tuple[Any, ...]

    def __init__(
        self, name: str, value: AnyBuffer, requires_grad: bool = True, parents: Sequence[int] = (),
        backward: Backward | None = None, cleanup: Sequence[Any] = (),
    ) -> None:  # fmt: skip
        if not isinstance(name, str):
            raise refusal(ArgumentTypeError, "Node", "name", convert.type_name(name), "a name")
        self.name = name
        self.shape = value.shape
        self.buffer = value.buffer
        self.requires_grad = requires_grad
        self.parents = tuple(parents)
        self.cleanup = tuple(cleanup)
        self._plan: Plan | None = None
        self._hosts: Mapping[str, Any] | None = None
        self._rule = backward

    @property
    def value(self) -> AnyBuffer:
        """The forward value; the tape keeps the ownership."""
        return AnyBuffer.of(self.shape, self.buffer)

    @property
    def plan(self) -> Plan | None:
        """The registry's operation behind the node; None for leaves, views and hand-made nodes."""
        return self._plan

    @property
    def hosts(self) -> Mapping[str, Any]:
        """Host arrays (indices, labels) the operation took."""
        return self._hosts or {}

    def __repr__(self) -> str:
        parents = f", parents={list(self.parents)}" if self.parents else ""
        return f"Node({self.name!r}, shape={self.shape}{parents}{', requires_grad' if self.requires_grad else ''})"


def as_view(name: str, shape: Shape, buffer: Any, parent: int, requires_grad: bool) -> Node:
    """A node whose value is its parent's storage in another shape; its cotangent goes back unchanged."""
    node = Node.__new__(Node)
    node.name = name
    node.shape = shape
    node.buffer = buffer
    node.requires_grad = requires_grad
    node.parents = (parent,)
    node.cleanup = ()
    node._plan = None
    node._hosts = None
    node._rule = None
    return node


class Pause(ContextDecorator):
    """A block in which a tape records nothing of its thread for backward. It is entered and left in one call of C, as a lock is,
    so that no interrupt leaves the tape paused."""

    __enter__ = property(operator.attrgetter("lock.acquire"))
    __exit__ = property(operator.attrgetter("lock.__exit__"))

    def __init__(self, tape: Any) -> None:
        self.tape = tape
        self.lock: Any = threading.RLock()
        tape._pauses.append(weakref.ref(self.lock))

    def _recreate_cm(self) -> Pause:
        """Another for each call of a function that this decorates."""
        return Pause(self.tape)


def release_nodes(nodes: Iterable[Node]) -> None:
    """Releases their buffers."""
    for node in nodes:
        node.buffer.release()
        for scratch in node.cleanup:
            scratch.release()


def other_thread_error(op: str) -> ArgumentError:
    """The error where another thread used the tape meanwhile."""
    return refusal(ArgumentError, op, "tape", "an operation of another thread meanwhile", "one thread at a time")
