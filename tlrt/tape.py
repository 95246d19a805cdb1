"""The tape: reverse-mode differentiation over shaped device buffers.

A :class:`Tape` records one node per operation, in order of evaluation; a node's id is its place. Backward walks the nodes in
reverse and calls each one's vector-Jacobian product (VJP) with the cotangent that arrived at it. Operations are the methods
of :class:`tlrt._operations.Operations`, on node ids.

    tape = Tape(tlrt.device("cpu"))
    w = tape.leaf(tape.upload([[1, 2], [3, 4]]), "w")
    loss = tape.reduce_sum(tape.tanh(w))
    tape.backward(loss)[w].numpy()

The tape owns a handle to every buffer on it and releases them all at :meth:`Tape.release` (or the end of a ``with`` block).
"""

from __future__ import annotations

import operator
import weakref
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from math import prod
from typing import Any

import numpy as np
import numpy.typing as npt

from tlrt._backward import Backward, release_gradients
from tlrt._binding import convert
from tlrt._binding.handles import Uncopied
from tlrt._binding.together import Change, set_and_call
from tlrt._node import Node, Pause, as_view, other_thread_error, release_nodes
from tlrt._operations import Operations
from tlrt._operations.plan import Plan, Shape, make_plan
from tlrt._operations.shaped import AnyBuffer, Indices, device_of, kernels_of, size_of
from tlrt.errors import (
    ArgumentError,
    ArgumentTypeError,
    DeviceMismatchError,
    IndexOutOfRangeError,
    ReleasedError,
    ShapeError,
    TorchleanError,
    refusal,
)

__all__ = ["AnyBuffer", "Indices", "Node", "Tape", "kernels_of", "release_gradients", "size_of"]

#: plans kept before the cache is emptied; a training step has a few hundred
_PLANS = 4096


class Tape(Uncopied, Backward, Operations[int]):
    """A grow-only list of nodes on one device. Ids are indices; an operation returns the id of its node.

    Tensors in the documentation of operations are node ids here. Until the tape is cleared an id is handed out
    once: where an operation was undone, the nodes after it have higher ones, and those between are released. Two
    threads at a tape at once are refused, where they do not compute what either would alone.

    Wrong ids raise IndexOutOfRangeError, wrong shapes ShapeError, and name the operation; nothing is recorded then.

    Parameters
    ----------
    device : Device, SpecDevice or str
        Where the values are.

    Examples
    --------
    >>> tape = tlrt.Tape("cpu")
    >>> w = tape.leaf([1, 2], "w")
    >>> loss = tape.reduce_sum(tape.mul(w, w))
    >>> print(tape.backward(loss)[w].numpy())
    [2. 4.]
    """

    def __init__(self, device: Any) -> None:
        self.device = device_of(device, "Tape")
        self.kernels = kernels_of(self.device)
        #: grows only: what drops nodes makes a new list, by which threads that were at the old one know
        self.nodes: list[Node] = []
        #: after nodes were undone, until the next one: the list of before, whose ids are not handed out again
        self._undone: list[Node] | None = None
        #: another object whenever the tape is cleared: a mark from before says nothing of the nodes since then
        self._cleared = object()
        #: whether operations record what backward needs; off, results never require gradients
        self.recording = True
        #: the locks of blocks in which nothing is recorded; of those that are over too, until the next look
        self._pauses: list[weakref.ref[Any]] = []
        self._plans: dict[Any, Plan] = {}
        self._released = False

    # ---- nodes

    @property
    def size(self) -> int:
        """Number of nodes."""
        return len(self.nodes)

    def __len__(self) -> int:
        return len(self.nodes)

    def add_node(self, node: Node) -> int:
        """Appends a node.

        Parameters
        ----------
        node : Node
            With parents and a gradient it needs a `backward`. The tape takes over its buffers; refused, it does not.

        Returns
        -------
        int
            The id, the size before.
        """
        return self._add(node, self.nodes)

    def _add(self, node: Node, nodes: list[Node]) -> int:
        """The same of a node that was computed from values on this list."""
        self._require_live("add_node")
        self._require_here("add_node", node.name, node.buffer)
        for parent in node.parents:
            self.node(parent, node.name)
        if node.requires_grad and node.parents and node._rule is None:
            raise ArgumentError(f"add_node: {node.name}: backward: missing, expected one as there are parents")
        return self._append(node, nodes)

    def _append(self, node: Node, known: list[Node] | None = None) -> int:
        """Appends a node; raises ArgumentError where another thread appended or dropped one meanwhile, since the list was
        `known` that the node's parents are on."""
        nodes = self.nodes
        if self._undone is not None:
            nodes = self._fill_gap()
        if known is not None and nodes is not known:
            raise other_thread_error(node.name)
        id = len(nodes)
        nodes.append(node)
        if nodes[id] is not node or self.nodes is not nodes:
            raise other_thread_error(node.name)
        return id

    def _fill_gap(self) -> list[Node]:
        """The nodes, with one in the place of each that was undone: its buffer is released, and no gradient reaches it."""
        nodes, undone = self.nodes, self._undone
        if undone is not None:
            gone = undone[len(nodes) :]
            release_nodes(gone)  # which the thread that undid them may not have done yet: no gradient is asked of them
            nodes.extend([Node(n.name, AnyBuffer.of(n.shape, n.buffer), False) for n in gone])
            if self._undone is undone:
                self._undone = None
        return nodes

    def _require_live(self, op: str) -> None:
        if self._released:
            raise refusal(ReleasedError, op, "tape", "a released tape", "a live one")

    def _require_here(self, op: str, name: str, buffer: Any) -> None:
        if buffer.device is not self.device:
            raise refusal(DeviceMismatchError, op, name, f"a buffer of {buffer.device}", self.device)

    def get_node(self, id: int) -> Node | None:
        """The node of an id.

        Parameters
        ----------
        id : int
            A node.

        Returns
        -------
        Node or None
            None where there is none of that id.

        Examples
        --------
        >>> tape = tlrt.Tape("cpu")
        >>> w = tape.leaf([1, 2], "w")
        >>> print(tape.get_node(w).name, tape.get_node(9))
        w None
        """
        nodes = self.nodes
        return nodes[place] if 0 <= (place := self._index(id, "get_node")) < len(nodes) else None

    @staticmethod
    def _index(id: Any, op: str) -> int:
        try:
            if not isinstance(id, (bool, np.bool_)):
                return operator.index(id)
        except TypeError:
            pass
        raise refusal(ArgumentTypeError, op, "id", convert.type_name(id), "a node id")

    def node(self, id: int | None, op: str = "node") -> Node:
        """The node of an id.

        Parameters
        ----------
        id : int
            A node.
        op : str, default 'node'
            The operation that a refusal names.

        Returns
        -------
        Node
            The node.

        Raises
        ------
        IndexOutOfRangeError
            There is no node of that id.

        Examples
        --------
        >>> tape = tlrt.Tape("cpu")
        >>> w = tape.leaf([1, 2], "w")
        >>> print(tape.node(w).shape)
        (2,)
        """
        nodes = self.nodes  # another thread may drop some
        if type(id) is int and 0 <= id < len(nodes):
            return nodes[id]
        place = self._index(id, op)
        if not 0 <= place < len(nodes):
            self._require_live(op)
            raise refusal(IndexOutOfRangeError, op, "id", place, f"0 <= id < {len(nodes)}")
        return nodes[place]

    def get_value(self, id: int) -> AnyBuffer | None:
        """The forward value of a node.

        Parameters
        ----------
        id : int
            A node.

        Returns
        -------
        AnyBuffer or None
            None where there is none of that id; the tape keeps the ownership.

        Examples
        --------
        >>> tape = tlrt.Tape("cpu")
        >>> w = tape.leaf([1, 2], "w")
        >>> print(tape.get_value(9))
        None
        """
        node = self.get_node(id)
        return None if node is None else node.value

    def value(self, id: int) -> AnyBuffer:
        """The forward value of a node.

        Parameters
        ----------
        id : int
            A node.

        Returns
        -------
        AnyBuffer
            The tape keeps the ownership.

        Raises
        ------
        IndexOutOfRangeError
            There is no node of that id.

        Examples
        --------
        >>> tape = tlrt.Tape("cpu")
        >>> w = tape.leaf([1, 2], "w")
        >>> print(tape.value(w).numpy())
        [1. 2.]
        """
        return self.node(id, "value").value

    def require_value(self, id: int, shape: Sequence[int], op: str = "require_value") -> AnyBuffer:
        """The forward value of a node that must have a shape.

        Parameters
        ----------
        id : int
            A node.
        shape : sequence of int
            The shape.
        op : str, default 'require_value'
            The operation that a refusal names.

        Returns
        -------
        AnyBuffer
            The tape keeps the ownership.

        Raises
        ------
        IndexOutOfRangeError
            There is no node of that id.
        ShapeError
            Another shape.
        """
        node = self.node(id, op)
        if node.shape != tuple(shape):
            raise refusal(ShapeError, op, f"node {id} ({node.name})", f"shape {node.shape}", tuple(shape))
        return node.value

    def upload(self, array: npt.ArrayLike) -> AnyBuffer:
        """A copy of an array on the tape's device.

        Parameters
        ----------
        array : array_like
            Any shape.

        Returns
        -------
        AnyBuffer
            In its shape.

        Examples
        --------
        >>> tape = tlrt.Tape("cpu")
        >>> print(tape.upload([1, 2]).shape)
        (2,)
        """
        return AnyBuffer.upload(array, self.device)

    def leaf(self, value: AnyBuffer | npt.ArrayLike, name: str = "leaf", requires_grad: bool = True) -> int:
        """A value without parents.

        Parameters
        ----------
        value : AnyBuffer or array_like
            An array is uploaded; the tape takes over the handle of an AnyBuffer.
        name : str, default 'leaf'
            Its name on the tape.
        requires_grad : bool, default True
            Whether backward gives it a gradient.

        Returns
        -------
        int
            The node.

        Examples
        --------
        >>> tape = tlrt.Tape("cpu")
        >>> w = tape.leaf([1, 2], "w")
        >>> print(tape.shape(w))
        (2,)
        """
        self._require_live("leaf")
        if not isinstance(value, AnyBuffer):
            value = self.upload(value)
        else:
            self._require_here("leaf", name, value.buffer)
        return self._append(Node(name, value, bool(requires_grad) and self._records()))

    def unary(
        self, name: str, x: int, in_shape: Sequence[int], out_shape: Sequence[int], forward: Callable[[Any], Any],
        backward: Callable[[Any, Any], Any],
    ) -> int:  # fmt: skip
        """A node made by hand of one other.

        Parameters
        ----------
        name : str
            Its name on the tape.
        x : int
            The parent.
        in_shape : sequence of int
            The shape that x must have.
        out_shape : sequence of int
            The result's shape.
        forward : callable
            forward(x) gives the result's buffer.
        backward : callable
            backward(x, g) gives the gradient of x, all buffers.

        Returns
        -------
        int
            The node.

        Raises
        ------
        ShapeError
            x has another shape.

        Examples
        --------
        >>> tape = tlrt.Tape("cpu")
        >>> w = tape.leaf([1, 2], "w")
        >>> y = tape.unary("copy", w, (2,), (2,), lambda x: x.copy(), lambda x, g: g.copy())
        >>> print(tape.value(y).numpy())
        [1. 2.]
        """
        nodes, parent = self.nodes, self.require_value(x, in_shape, name)
        value = self._own_result(name, out_shape, forward(parent.buffer), (parent,))

        def pull(g: AnyBuffer) -> list[tuple[int, AnyBuffer]]:
            return [(x, _as_gradient(name, parent.shape, backward(parent.buffer, g.buffer)))]

        return self._add(Node(name, value, self._needs((x,)), (x,), pull), nodes)

    def binary(
        self, name: str, a: int, b: int, a_shape: Sequence[int], b_shape: Sequence[int], out_shape: Sequence[int],
        forward: Callable[[Any, Any], Any], backward: Callable[[Any, Any, Any], tuple[Any, Any]],
    ) -> int:  # fmt: skip
        """A node made by hand of two others.

        Parameters
        ----------
        name : str
            Its name on the tape.
        a : int
            The first parent.
        b : int
            The second parent.
        a_shape : sequence of int
            The shape that a must have.
        b_shape : sequence of int
            The shape that b must have.
        out_shape : sequence of int
            The result's shape.
        forward : callable
            forward(a, b) gives the result's buffer.
        backward : callable
            backward(a, b, g) gives the gradients of a and b, all buffers.

        Returns
        -------
        int
            The node.

        Raises
        ------
        ShapeError
            A parent has another shape.
        """
        nodes = self.nodes
        first, second = self.require_value(a, a_shape, name), self.require_value(b, b_shape, name)
        value = self._own_result(name, out_shape, forward(first.buffer, second.buffer), (first, second))

        def pull(g: AnyBuffer) -> list[tuple[int, AnyBuffer]]:
            ga, gb = backward(first.buffer, second.buffer, g.buffer)
            return [(a, _as_gradient(name, first.shape, ga)), (b, _as_gradient(name, second.shape, gb))]

        return self._add(Node(name, value, self._needs((a, b)), (a, b), pull), nodes)

    def _own_result(self, name: str, shape: Sequence[int], buffer: Any, parents: Sequence[AnyBuffer]) -> AnyBuffer:
        """What a forward function returned, as a value of its own."""
        if not hasattr(buffer, "release"):
            raise refusal(ArgumentTypeError, name, "forward", convert.type_name(buffer), "a buffer")
        owned = not any(buffer is p.buffer for p in parents)
        try:
            self._require_here(name, "forward", buffer)
            return AnyBuffer(shape, buffer if owned else buffer.share())
        except TorchleanError as error:
            if owned:
                buffer.release()
            raise type(error)(f"{name}: {error}", op=name) from None

    def _needs(self, parents: Sequence[int]) -> bool:
        return self._records() and any(self.node(p).requires_grad for p in parents)

    def pause(self) -> Pause:
        """Within, nothing is recorded for backward.

        Returns
        -------
        context manager
            Of this thread alone.

        Examples
        --------
        >>> tape = tlrt.Tape("cpu")
        >>> w = tape.leaf([1, 2], "w")
        >>> with tape.pause():
        ...     y = tape.mul(w, w)
        >>> print(tape.node(y).requires_grad)
        False
        """
        return Pause(self)

    def _records(self) -> bool:
        """Whether results may require gradients now."""
        for known in self._pauses[:]:
            if (lock := known()) is None:
                with suppress(ValueError):  # another thread was faster
                    self._pauses.remove(known)
            elif lock._is_owned():
                return False
        return self.recording

    # ---- how operations are applied

    def shape(self, x: int) -> Shape:
        """The shape of a node's value.

        Parameters
        ----------
        x : int
            A node.

        Returns
        -------
        tuple of int
            One size for each axis.

        Raises
        ------
        IndexOutOfRangeError
            There is no node of that id.

        Examples
        --------
        >>> tape = tlrt.Tape("cpu")
        >>> w = tape.leaf([1, 2], "w")
        >>> print(tape.shape(w))
        (2,)
        """
        return self.node(x, "shape").shape

    def _shape(self, op: str, x: int) -> Shape:
        return self.node(x, op).shape

    def _named(self, name: str, x: int) -> str:
        return f"{name} (node {x}, {self.node(x).name})"

    def _apply(
        self, name: str, parents: tuple[int | None, ...], extra: tuple[Any, ...] = (),
        hosts: Mapping[str, Any] | None = None,
    ) -> int:  # fmt: skip
        nodes = self.nodes
        if self._undone is not None:
            nodes = self._fill_gap()
        size = len(nodes)
        buffers: list[Any] = []
        key: list[Any] = [name, extra]
        needs = False
        for p in parents:
            if p is None:
                buffers.append(None)
                key.append(None)
                continue
            if type(p) is not int or not 0 <= p < size:
                self.node(p, name)  # raises where there is none
                if operator.index(p) >= size:  # another thread has appended it
                    raise other_thread_error(name)
            parent = nodes[p]
            buffers.append(parent.buffer)
            key.append(parent.shape)
            if parent.requires_grad:
                needs = True
        if hosts is not None:
            key.append(tuple([a.size for a in hosts.values()]))
        if extra:
            self._mark_negative_zeros(name, key, extra)
        where = tuple(key)
        try:
            plan = self._plans.get(where) or self._plan(where, name, parents, extra, hosts)
            if needs and plan.partial:  # only a parent without a gradient may be the one that requires it
                needs = any(p is not None and nodes[p].requires_grad for p in [parents[i] for i in plan.gives])
            buffer = plan.run(buffers, hosts)
        except Exception as error:
            if self.nodes is not nodes:
                raise other_thread_error(name) from error
            raise self._note_operands(error, name, parents, extra) from None
        node = Node.__new__(Node)
        node.buffer = buffer
        node.name = name
        node.shape = plan.shape
        node.requires_grad = needs and self.recording and (not self._pauses or self._records())
        node.parents = parents
        node.cleanup = ()
        node._plan = plan
        node._hosts = hosts
        node._rule = None
        nodes.append(node)
        if nodes[size] is not node or self.nodes is not nodes:
            raise other_thread_error(name)
        return size

    @staticmethod
    def _mark_negative_zeros(name: str, key: list[Any], extra: tuple[Any, ...]) -> None:
        """Marks a -0.0 among the parameters in the key: it equals 0.0 and computes something else."""
        try:
            if 0 in extra:
                key.append(str(extra))
        except (TypeError, ValueError):  # a tensor, an array of several elements
            raise refusal(ArgumentTypeError, name, "", f"parameters {extra}", "numbers") from None

    def _note_operands(self, error: Exception, name: str, parents: Sequence[int | None], extra: Any) -> Exception:
        """The error, with a note that names the operands."""
        if type(error) is TypeError:  # a parameter that is not hashable
            error = refusal(ArgumentTypeError, name, "", f"parameters {extra}", "numbers")
        known = [(p, self.get_node(p)) for p in parents if p is not None]
        operands = ", ".join(f"node {p} ({node.name}: {node.shape})" for p, node in known if node is not None)
        error.add_note(f"in {name} of {operands or 'nothing'}")
        return error

    def _plan(self, key: Any, name: str, parents: Any, extra: Any, hosts: Any) -> Plan:
        shapes = list(key[2 : 2 + len(parents)])  # as the key has them: another thread may have cleared the tape since
        lengths = {} if hosts is None else {n: int(a.size) for n, a in hosts.items()}
        plan = make_plan(self.kernels, name, shapes, extra, lengths)
        if len(self._plans) >= _PLANS:
            self._plans.clear()
        self._plans[key] = plan
        return plan

    def _view(self, x: int, shape: Shape, name: str) -> int:
        nodes, parent = self.nodes, self.node(x, name)
        if prod(shape) != prod(parent.shape) or (shape and min(shape) < 0):
            raise refusal(ShapeError, name, "shape", shape, f"{prod(parent.shape)} elements")
        needs = parent.requires_grad and self._records()
        return self._append(as_view(name, shape, parent.buffer.share(), operator.index(x), needs), nodes)

    def _constant(self, array: npt.ArrayLike) -> int:
        return self.leaf(array, "constant", False)

    def _hold(self, value: AnyBuffer, name: str) -> int:
        return self.leaf(value, name, False)

    def _buffer(self, op: str, x: int) -> AnyBuffer:
        return self.node(x, op).value

    def _host(self, x: int) -> npt.NDArray[Any]:
        return self.node(x, "value").value.numpy()

    def _mark(self) -> tuple[int, object]:
        cleared = self._cleared  # read first: of a tape that is cleared now, the mark is old
        return len(self.nodes), cleared

    def _undo(self, mark: tuple[int, object]) -> int:
        """Drops the nodes since the mark, none where the tape was cleared after it; where they ended, with those that another
        thread appended until then."""
        size, cleared = mark
        while len(nodes := self._fill_gap()) > size and self._cleared is cleared:
            kept = nodes[:size]
            # no other thread runs within these two lines: nothing is called or made there, and nothing goes
            if self.nodes is nodes and self._undone is None and self._cleared is cleared:
                self.nodes, self._undone = kept, nodes
                release_nodes(nodes[size:])
                return len(nodes)
        return size

    def detach(self, x: int) -> int:
        """The same value with no gradient to x.

        Parameters
        ----------
        x : int
            A node.

        Returns
        -------
        int
            A node that shares the storage.

        Examples
        --------
        >>> tape = tlrt.Tape("cpu")
        >>> w = tape.leaf([1, 2], "w")
        >>> print(tape.node(tape.detach(w)).requires_grad)
        False
        """
        parent = self.node(x, "detach")
        return self.add_node(Node("detach", AnyBuffer.of(parent.shape, parent.buffer.share()), False))

    # ---- life

    def clear(self) -> None:
        """Releases every buffer on the tape and forgets the nodes; the tape can be used again."""
        nodes = self.nodes
        set_and_call(self._emptied(), [])
        release_nodes(nodes)

    def _emptied(self) -> list[Change]:
        """What makes the tape an empty one."""
        return [(self, "nodes", []), (self, "_undone", None), (self, "_cleared", object())]

    def release(self) -> None:
        """Releases every buffer on the tape for good. May be repeated."""
        self.clear()
        self._released = True

    def __enter__(self) -> Tape:
        return self

    def __exit__(self, *_: object) -> None:
        self.release()

    def __repr__(self) -> str:
        return f"Tape({self.device!r}, {'released' if self._released else f'{len(self.nodes)} nodes'})"

    def table(self) -> str:
        """The nodes as text.

        Returns
        -------
        str
            One line per node: id, name, shape, parents.

        Examples
        --------
        >>> tape = tlrt.Tape("cpu")
        >>> w = tape.leaf([1, 2], "w")
        >>> _ = tape.relu(w)
        >>> print(*(line.split() for line in tape.table().splitlines()))
        ['0', 'w', '(2,)'] ['1', 'relu', '(2,)', '[0]']
        """
        return "\n".join(
            f"{i:5} {n.name:24} {n.shape!s:20} {list(n.parents) if n.parents else ''}" for i, n in enumerate(self.nodes)
        )


def _as_gradient(name: str, shape: Shape, buffer: Any) -> AnyBuffer:
    """What a backward function returned for a parent of that shape."""
    if not hasattr(buffer, "release"):
        raise refusal(ArgumentTypeError, name, "backward", convert.type_name(buffer), "a buffer")
    return AnyBuffer(shape, buffer)
