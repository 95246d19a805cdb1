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
import threading
import weakref
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import ContextDecorator, suppress
from math import prod
from typing import Any

import numpy as np
import numpy.typing as npt

from tlrt._binding import convert
from tlrt._binding.arguments import integer
from tlrt._binding.handles import Uncopied
from tlrt._binding.observer import Observer, watches_leaves
from tlrt._binding.together import Change, set_and_call
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


#: a node's VJP made by hand: from the cotangent of its value to (parent, contribution) pairs
Backward = Callable[["AnyBuffer"], "Iterable[tuple[int, AnyBuffer]]"]


class Node(Uncopied):
    """One value on a tape: what computed it, from which parents, and how its cotangent goes back to them."""

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

    def __init__(self, tape: Tape) -> None:
        self.tape = tape
        self.lock: Any = threading.RLock()
        tape._pauses.append(weakref.ref(self.lock))

    def _recreate_cm(self) -> Pause:
        """Another for each call of a function that this decorates."""
        return Pause(self.tape)


class Tape(Uncopied, Operations[int]):
    """A grow-only list of nodes on one device. Ids are indices; an operation returns the id of its node. Until the tape is
    cleared an id is handed out once: where an operation was undone, the nodes after it have higher ones, and those between are
    released. Two threads at a tape at once are refused, where they do not compute what either would alone.

    Wrong ids raise IndexOutOfRangeError, wrong shapes ShapeError, and name the operation; nothing is recorded then."""

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
        """Appends a node and returns its id, the size before. The tape takes over the node's buffers; refused, it does not.

        A node with parents that requires a gradient needs a `backward`."""
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
        """The node, or None where there is none of that id."""
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
        """The node; raises IndexOutOfRangeError where there is none of that id."""
        nodes = self.nodes  # another thread may drop some
        if type(id) is int and 0 <= id < len(nodes):
            return nodes[id]
        place = self._index(id, op)
        if not 0 <= place < len(nodes):
            self._require_live(op)
            raise refusal(IndexOutOfRangeError, op, "id", place, f"0 <= id < {len(nodes)}")
        return nodes[place]

    def get_value(self, id: int) -> AnyBuffer | None:
        """The forward value of a node, or None where there is none of that id."""
        node = self.get_node(id)
        return None if node is None else node.value

    def value(self, id: int) -> AnyBuffer:
        """The forward value of a node; the tape keeps the ownership."""
        return self.node(id, "value").value

    def require_value(self, id: int, shape: Sequence[int], op: str = "require_value") -> AnyBuffer:
        """The forward value of a node that must have that shape; raises ShapeError otherwise."""
        node = self.node(id, op)
        if node.shape != tuple(shape):
            raise refusal(ShapeError, op, f"node {id} ({node.name})", f"shape {node.shape}", tuple(shape))
        return node.value

    @staticmethod
    def require_upstream(g: AnyBuffer, shape: Sequence[int], op: str = "backward") -> AnyBuffer:
        """A cotangent that must have that shape; raises ShapeError otherwise."""
        if not isinstance(g, AnyBuffer):
            raise refusal(ArgumentTypeError, op, "cotangent", convert.type_name(g), "AnyBuffer")
        if g.shape != tuple(shape):
            raise refusal(ShapeError, op, "cotangent", f"shape {g.shape}", tuple(shape))
        return g

    def upload(self, array: npt.ArrayLike) -> AnyBuffer:
        """A copy of an array on the tape's device."""
        return AnyBuffer.upload(array, self.device)

    def leaf(self, value: AnyBuffer | npt.ArrayLike, name: str = "leaf", requires_grad: bool = True) -> int:
        """A value without parents. The tape takes over the handle of an AnyBuffer; an array is uploaded."""
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
        """A node made by hand: `forward(x)` gives its buffer, `backward(x, g)` the gradient of x, as buffers."""
        nodes, parent = self.nodes, self.require_value(x, in_shape, name)
        value = self._own_result(name, out_shape, forward(parent.buffer), (parent,))

        def pull(g: AnyBuffer) -> list[tuple[int, AnyBuffer]]:
            return [(x, _as_gradient(name, parent.shape, backward(parent.buffer, g.buffer)))]

        return self._add(Node(name, value, self._needs((x,)), (x,), pull), nodes)

    def binary(
        self, name: str, a: int, b: int, a_shape: Sequence[int], b_shape: Sequence[int], out_shape: Sequence[int],
        forward: Callable[[Any, Any], Any], backward: Callable[[Any, Any, Any], tuple[Any, Any]],
    ) -> int:  # fmt: skip
        """A node made by hand: `forward(a, b)` gives its buffer, `backward(a, b, g)` the gradients of a and b."""
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
        """A context manager: within, nothing is recorded for backward."""
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
        """The shape of a node's value."""
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
        shapes = [None if p is None else self.nodes[p].shape for p in parents]
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
        """The same value with no gradient to x; shares its storage."""
        parent = self.node(x, "detach")
        return self.add_node(Node("detach", AnyBuffer.of(parent.shape, parent.buffer.share()), False))

    # ---- backward

    def backward(self, output: int, seed: AnyBuffer | npt.ArrayLike | None = None) -> list[AnyBuffer]:
        """Dense backward: the gradient of `output` (weighted by `seed`) for every node, zeros where it does not reach.

        `seed` is the cotangent of the output, in its shape; left out, 1, which a scalar output allows only. The caller owns
        the buffers returned. A VJP that raises leaves nothing behind and the tape as it was."""
        nodes = self.nodes
        return self._fill_missing(self._backward(self._seeded(output, seed, nodes), None, nodes))

    def backward_from(self, gradients: Sequence[AnyBuffer | None], first: int | None = None) -> list[AnyBuffer]:
        """Dense backward from an array of cotangents, one per node or None. The tape takes these buffers over.

        With `first` it runs over the first so many nodes, from node first - 1 to node 0: what was given for the later ones
        comes back unchanged and flows no further. Raises IndexOutOfRangeError for more nodes than there are."""
        grads, nodes = list(gradients), self.nodes
        try:
            self._require_live("backward_from")
            stop = len(nodes) if first is None else integer("backward_from", "first", first)
            if not 0 <= stop <= len(nodes):
                raise refusal(IndexOutOfRangeError, "backward_from", "first", stop, f"0 <= first <= {len(nodes)}")
            if len(grads) != len(nodes):
                expected = f"{len(nodes)}, one per node"
                raise refusal(ArgumentError, "backward_from", "gradients", len(grads), expected)
            seen: set[int] = set()
            for i, (node, g) in enumerate(zip(nodes, grads, strict=True)):
                if g is not None:
                    self.require_upstream(g, node.shape, f"backward_from: node {i} ({node.name})")
                    self._require_here("backward_from", f"node {i} ({node.name})", g.buffer)
                    if id(g.buffer) in seen:  # given twice: each place gets a handle of its own
                        grads[i] = g.share()
                    seen.add(id(g.buffer))
        except BaseException:
            release_gradients(grads)
            raise
        return self._fill_missing(self._backward(grads, None, nodes, stop))

    def backward_sparse(
        self, output: int, wanted: Iterable[int] | None = None, seed: AnyBuffer | npt.ArrayLike | None = None
    ) -> dict[int, AnyBuffer]:
        """Backward that keeps only the gradients of the nodes in `wanted` (all leaves that require one by default) and
        releases each other one as soon as it is consumed. A wanted node that is not reached gets zeros."""
        return self._sparse(output, wanted, seed)[0]

    def _sparse(
        self, output: int, wanted: Iterable[int] | None, seed: AnyBuffer | npt.ArrayLike | None
    ) -> tuple[dict[int, AnyBuffer], set[int]]:
        """The gradients of :meth:`backward_sparse`, and the nodes among them that are not reached."""
        nodes = self.nodes
        if wanted is None:
            keep = {i for i, n in enumerate(nodes) if n.requires_grad and not n.parents}
        else:
            keep = set()
            for w in wanted:
                if type(w) is not int or not 0 <= w < len(nodes):
                    self.node(w, "backward: wanted")
                keep.add(operator.index(w))
        grads = self._backward(self._seeded(output, seed, nodes), keep, nodes)
        unreached = {i for i in keep if grads[i] is None}
        try:
            for i in unreached:
                grads[i] = AnyBuffer.zeros(nodes[i].shape, self.device)
        except BaseException:
            release_gradients(grads)
            raise
        return {i: grads[i] for i in sorted(keep)}, unreached  # type: ignore[misc]

    def add_grad(self, gradients: list[AnyBuffer | None], id: int, g: AnyBuffer) -> None:
        """Adds a contribution to a node's gradient and takes its buffer over; released at once if the node needs none."""
        try:
            node = self.node(id, "add_grad")
            self.require_upstream(g, node.shape, f"add_grad: node {id} ({node.name})")
            self._require_slots(gradients, "add_grad")
            old = gradients[id]
            if node.requires_grad and old is None:
                gradients[id] = g
                return
            if node.requires_grad and old is not None:
                gradients[id] = AnyBuffer.of(node.shape, self.kernels.add(old.buffer, g.buffer))
                if old.buffer is not g.buffer:
                    old.buffer.release()
        except BaseException:
            release_gradients([g])
            raise
        g.buffer.release()

    def backward_step(self, gradients: list[AnyBuffer | None], id: int) -> None:
        """One node's VJP: adds its contributions to the gradients of its parents."""
        node = self.node(id, "backward_step")
        self._require_slots(gradients, "backward_step")
        g = gradients[id]
        if g is None or not node.requires_grad or not node.parents:
            return
        self.require_upstream(g, node.shape, f"backward_step: node {id} ({node.name})")
        self._step(gradients, operator.index(id), node, g, set())

    def _require_slots(self, gradients: Sequence[Any], op: str) -> None:
        if len(gradients) != len(self.nodes):
            raise refusal(ArgumentError, op, "gradients", len(gradients), f"{len(self.nodes)}, one per node")

    def _step(self, grads: list[AnyBuffer | None], place: int, node: Node, g: AnyBuffer, sharing: set[int]) -> None:
        """The VJP of a node; its contributions, of the parents' shapes by construction, go to the parents that need one.
        `sharing` collects the nodes whose gradient may share its storage with another one."""
        for observer in self.device._observers:
            observer.before_backward_step(self, place, node, g)
        nodes, parents, add = self.nodes, node.parents, self.kernels.add
        made: list[tuple[int | None, Any]] = []
        try:
            if node._plan is not None:
                pool = [None if p is None else nodes[p].buffer for p in parents]
                needs = [p is not None and nodes[p].requires_grad for p in parents]
                pool += (node.buffer, g.buffer)
                if node._hosts is not None:
                    pool += node._hosts.values()
                made = [(parents[i], b) for i, b in node._plan.vjp(pool, needs)]
                shares = node._plan.shares
            elif node._rule is not None:
                made = self._run_custom_vjp(node, g)
                shares = True
            else:  # a view
                made = [(parents[0], g.buffer.share())]
                shares = True
            made.reverse()
            while made:
                id, new = made[-1]
                old = grads[id]  # type: ignore[index]
                if not nodes[id].requires_grad:  # type: ignore[index]
                    new.release()
                elif old is None:
                    grads[id] = AnyBuffer.of(nodes[id].shape, new)  # type: ignore[index]
                    if shares:
                        sharing.add(id)  # type: ignore[arg-type]
                else:
                    grads[id] = AnyBuffer.of(old.shape, add(old.buffer, new))  # type: ignore[index]
                    old.buffer.release()
                    new.release()
                made.pop()
        except BaseException as error:
            for _, new in made:
                new.release()
            if isinstance(error, Exception):
                error.add_note(f"in the backward pass, at node {place}: {node!r}")
            raise

    def _run_custom_vjp(self, node: Node, g: AnyBuffer) -> list[tuple[int | None, Any]]:
        """The contributions of a VJP made by hand, checked; a buffer that is not the VJP's to give away is shared."""
        given: list[tuple[int, AnyBuffer]] = []
        made: list[tuple[int | None, Any]] = []
        taken = {id(g.buffer), id(node.buffer), *map(id, node.cleanup)}
        taken.update(id(self.nodes[p].buffer) for p in node.parents if p is not None)
        try:
            for parent, contribution in node._rule(g):  # type: ignore[misc]
                given.append((parent, contribution))
            for parent, contribution in given:
                if parent not in node.parents:
                    expected = f"parents {node.parents}"
                    raise refusal(ArgumentError, node.name, "backward", f"a contribution to {parent}", expected)
                self.require_upstream(contribution, self.nodes[parent].shape, f"{node.name}: parent {parent}")
                buffer = contribution.buffer
                self._require_here(node.name, f"parent {parent}", buffer)
                made.append((parent, buffer.share() if id(buffer) in taken else buffer))
                taken.add(id(buffer))
        except BaseException:
            kept = {id(g.buffer), id(node.buffer), *map(id, node.cleanup)}
            kept.update(id(self.nodes[p].buffer) for p in node.parents if p is not None)
            for _, contribution in given:
                if isinstance(contribution, AnyBuffer) and id(contribution.buffer) not in kept:
                    contribution.release()
            for _, buffer in made:
                if id(buffer) not in kept:
                    buffer.release()
            raise
        return made

    def _backward(
        self, grads: list[AnyBuffer | None], keep: set[int] | None, nodes: list[Node], first: int | None = None
    ) -> list[AnyBuffer | None]:
        """Runs the first nodes (None: all) in reverse; gradients not in `keep` (None: all) are released once consumed. Those
        that stay have storage of their own. `nodes` are the tape's from before the first gradient: other ones are another
        thread's doing."""
        sharing = {i for i, g in enumerate(grads) if g is not None}
        watchers = [observer for observer in self.device._observers if watches_leaves(observer)]
        try:
            for i in range((len(grads) if first is None else first) - 1, -1, -1):
                g = grads[i]
                if g is None:
                    continue
                node = nodes[i]
                if node.requires_grad and node.parents:
                    self._step(grads, i, node, g, sharing)
                elif watchers and node.requires_grad and (keep is None or i in keep):
                    self._report_leaf(watchers, grads, i, node, sharing)
                if keep is not None and i not in keep:
                    g.buffer.release()
                    grads[i] = None
            for i in sharing:  # a caller may change what it gets in place
                _give_own_storage(grads, i)
            if self.nodes is not nodes:
                raise other_thread_error("backward")
        except BaseException as error:
            release_gradients(grads)
            if isinstance(error, LookupError) and self.nodes is not nodes:
                raise other_thread_error("backward") from error
            raise
        return grads

    def _report_leaf(
        self, watchers: list[Observer], grads: list[AnyBuffer | None], place: int, node: Node, sharing: set[int]
    ) -> None:
        """Reports the gradient of a leaf, to which no later step of the pass contributes."""
        if place in sharing:
            _give_own_storage(grads, place)
            sharing.discard(place)
        for observer in watchers:
            observer.gradient_complete(self, place, node, grads[place])

    def _fill_missing(self, grads: list[AnyBuffer | None]) -> list[AnyBuffer]:
        try:
            for i, node in enumerate(self.nodes[: len(grads)]):  # a VJP may have added some
                if grads[i] is None:
                    grads[i] = AnyBuffer.zeros(node.shape, self.device)
        except BaseException:
            release_gradients(grads)
            raise
        return grads  # type: ignore[return-value]

    def _seeded(self, output: int, seed: AnyBuffer | npt.ArrayLike | None, nodes: list[Node]) -> list[AnyBuffer | None]:
        """The gradients that a backward pass over the nodes starts from: the output's alone."""
        start = self._seed(output, seed)
        grads: list[AnyBuffer | None] = [None] * len(nodes)
        if len(nodes) <= (place := operator.index(output)):
            start.buffer.release()
            raise other_thread_error("backward")
        grads[place] = start
        return grads

    def _seed(self, output: int, seed: AnyBuffer | npt.ArrayLike | None) -> AnyBuffer:
        node = self.node(output, "backward")
        where = f"node {output} ({node.name})"
        if node.buffer.released:  # undone; no gradient would reach what it was computed from
            raise refusal(ReleasedError, "backward", where, "one that was undone", "one on the tape")
        if seed is None:
            if prod(node.shape) != 1:
                text = f"missing, expected one of shape {node.shape}, as the output {where} is no scalar"
                raise ArgumentError(f"backward: seed: {text}", op="backward")
            return AnyBuffer.of(node.shape, self.device.full(1, 1.0))
        if isinstance(seed, AnyBuffer):
            self._require_here("backward", "seed", seed.buffer)
        else:
            seed = convert.host_array("backward", "seed", seed, convert.REAL)
        if seed.shape != node.shape:
            raise refusal(ShapeError, "backward", "seed", f"shape {seed.shape}", f"{node.shape} of the output {where}")
        return seed.share() if isinstance(seed, AnyBuffer) else self.upload(seed)

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
        """One line per node: id, name, shape, parents."""
        return "\n".join(
            f"{i:5} {n.name:24} {n.shape!s:20} {list(n.parents) if n.parents else ''}" for i, n in enumerate(self.nodes)
        )


def _as_gradient(name: str, shape: Shape, buffer: Any) -> AnyBuffer:
    """What a backward function returned for a parent of that shape."""
    if not hasattr(buffer, "release"):
        raise refusal(ArgumentTypeError, name, "backward", convert.type_name(buffer), "a buffer")
    return AnyBuffer(shape, buffer)


def _give_own_storage(grads: list[AnyBuffer | None], place: int) -> None:
    """Copies a gradient whose storage another buffer has, too."""
    g = grads[place]
    if g is not None and g.buffer.references > 1:
        grads[place] = g.copy()
        g.buffer.release()


def other_thread_error(op: str) -> ArgumentError:
    return refusal(ArgumentError, op, "tape", "an operation of another thread meanwhile", "one thread at a time")


def release_nodes(nodes: Iterable[Node]) -> None:
    for node in nodes:
        node.buffer.release()
        for scratch in node.cleanup:
            scratch.release()


def release_gradients(gradients: Iterable[AnyBuffer | None]) -> None:
    """Releases what :meth:`Tape.backward` and :meth:`Tape.backward_from` gave, or the values of what
    :meth:`Tape.backward_sparse` gave. May be repeated; None is passed over."""
    for g in gradients:
        if isinstance(g, AnyBuffer):
            g.buffer.release()
