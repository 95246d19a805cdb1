"""The tape: reverse-mode differentiation over shaped device buffers.

A :class:`Tape` records one node per operation, in order of evaluation; a node's id is its place. Backward walks the nodes in
reverse and calls each one's vector-Jacobian product (VJP) with the cotangent that arrived at it. Operations are the methods
of :class:`tlrt.operations.Operations`, on node ids.

    tape = Tape(tlrt.device("cpu"))
    w = tape.leaf(tape.upload([[1, 2], [3, 4]]), "w")
    loss = tape.reduce_sum(tape.tanh(w))
    tape.backward(loss)[w].numpy()

The tape owns a handle to every buffer on it and releases them all at :meth:`Tape.release` (or the end of a ``with`` block).
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterable, Mapping, Sequence
from types import TracebackType
from typing import Any

import numpy as np
import numpy.typing as npt

from tlrt import _convert
from tlrt.errors import ArgumentError, ArgumentTypeError, IndexOutOfRangeError, ReleasedError, ShapeError
from tlrt.operations import Operations
from tlrt.plan import Plan, Shape, make

__all__ = ["AnyBuffer", "Node", "Tape"]

#: plans kept before the cache is emptied; a training step has a few hundred
_PLANS = 4096
#: reads a buffer's shape and length for messages
Backward = Callable[["AnyBuffer"], "Iterable[tuple[int, AnyBuffer]]"]


def size_of(shape: Sequence[int]) -> int:
    """Number of elements of a shape; raises ShapeError where it needs 2^32 or more, or a size is negative."""
    n = 1
    for d in shape:
        if d < 0:
            raise ShapeError(f"shape: got {tuple(shape)}, expected sizes of 0 or more")
        n *= d
    if n >= 2**32:
        raise ShapeError(f"shape: got {tuple(shape)} with {n} elements, expected fewer than 2**32")
    return n


class AnyBuffer:
    """A device buffer with its shape; row-major, one axis per entry, () for a scalar."""

    __slots__ = ("buffer", "shape")

    def __init__(self, shape: Sequence[int], buffer: Any) -> None:
        shape = tuple(shape)
        if buffer.length != size_of(shape):
            raise ShapeError(f"AnyBuffer: buffer: got {buffer.length} elements, expected {size_of(shape)} for {shape}")
        self.shape: Shape = shape
        self.buffer = buffer

    @classmethod
    def of(cls, shape: Shape, buffer: Any) -> AnyBuffer:
        """Without the check, for a buffer whose length is known to fit."""
        made = cls.__new__(cls)
        made.shape = shape
        made.buffer = buffer
        return made

    @classmethod
    def zeros(cls, shape: Sequence[int], device: Any) -> AnyBuffer:
        """Zeros of that shape on a device."""
        shape = tuple(shape)
        return cls.of(shape, device.zeros(size_of(shape)))

    @classmethod
    def upload(cls, array: npt.ArrayLike, device: Any) -> AnyBuffer:
        """A copy of an array on a device, by the conversion rules of :meth:`tlrt.Buffer.from_numpy`."""
        shape = np.shape(array)
        return cls.of(shape, device.buffer(array))

    @property
    def size(self) -> int:
        """Number of elements."""
        return size_of(self.shape)

    def numpy(self) -> npt.NDArray[Any]:
        """A copy on the host, in shape; waits for the device."""
        return self.buffer.numpy(self.shape)  # type: ignore[no-any-return]

    def __array__(self, dtype: npt.DTypeLike | None = None, copy: bool | None = None) -> npt.NDArray[Any]:
        return self.numpy() if dtype is None else self.numpy().astype(dtype, copy=False)

    def share(self) -> AnyBuffer:
        """A second handle to the same storage, in the same shape."""
        return AnyBuffer.of(self.shape, self.buffer.share())

    def copy(self) -> AnyBuffer:
        """The same content in storage of its own."""
        return AnyBuffer.of(self.shape, self.buffer.copy())

    def add(self, other: AnyBuffer) -> AnyBuffer:
        """The elementwise sum, in a new buffer. Raises ShapeError unless the shapes are equal."""
        if self.shape != other.shape:
            raise ShapeError(f"AnyBuffer.add: other: got shape {other.shape}, expected {self.shape}", op="add")
        return AnyBuffer.of(self.shape, kernels_of(self.buffer.device).add(self.buffer, other.buffer))

    def release(self) -> None:
        """Gives the handle back; may be repeated."""
        self.buffer.release()

    def __repr__(self) -> str:
        return f"AnyBuffer(shape={self.shape}, {self.buffer!r})"


def kernels_of(device: Any) -> Any:
    """The operations on a device's buffers: ``tlrt.kernels``, or the specification's."""
    if device.name == "spec":
        from tlrt import spec

        return spec.kernels
    from tlrt import kernels

    return kernels


class Node:
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
        self,
        name: str,
        value: AnyBuffer,
        requires_grad: bool = True,
        parents: Sequence[int] = (),
        backward: Backward | None = None,
        cleanup: Sequence[Any] = (),
    ) -> None:
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


class Tape(Operations[int]):
    """A grow-only list of nodes on one device. Ids are indices; an operation returns the id of its node.

    Wrong ids raise IndexOutOfRangeError, wrong shapes ShapeError, and name the operation; nothing is recorded then.
    """

    def __init__(self, device: Any) -> None:
        self.device = device
        self.kernels = kernels_of(device)
        self.nodes: list[Node] = []
        #: whether operations record what backward needs; off, results never require gradients
        self.recording = True
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
        """Appends a node and returns its id, the size before. The tape takes over the node's buffers."""
        if self._released:
            raise ReleasedError("add_node: tape: got a released tape, expected a live one")
        for parent in node.parents:
            self.node(parent, node.name)
        self.nodes.append(node)
        return len(self.nodes) - 1

    def get_node(self, id: int) -> Node | None:
        """The node, or None where there is none of that id."""
        return self.nodes[id] if 0 <= id < len(self.nodes) else None

    def node(self, id: int | None, op: str = "node") -> Node:
        """The node; raises IndexOutOfRangeError where there is none of that id."""
        try:
            place = operator.index(id)  # type: ignore[arg-type]
        except TypeError:
            raise ArgumentTypeError(f"{op}: id: got {_convert.type_name(id)}, expected a node id", op=op) from None
        if not 0 <= place < len(self.nodes):
            if self._released:
                raise ReleasedError(f"{op}: tape: got a released tape, expected a live one", op=op)
            raise IndexOutOfRangeError(f"{op}: id: got {place}, expected 0 <= id < {len(self.nodes)}", op=op)
        return self.nodes[place]

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
            raise ShapeError(f"{op}: node {id} ({node.name}): got shape {node.shape}, expected {tuple(shape)}", op=op)
        return node.value

    @staticmethod
    def require_upstream(g: AnyBuffer, shape: Sequence[int], op: str = "backward") -> AnyBuffer:
        """A cotangent that must have that shape; raises ShapeError otherwise."""
        if g.shape != tuple(shape):
            raise ShapeError(f"{op}: cotangent: got shape {g.shape}, expected {tuple(shape)}", op=op)
        return g

    def upload(self, array: npt.ArrayLike) -> AnyBuffer:
        """A copy of an array on the tape's device."""
        return AnyBuffer.upload(array, self.device)

    def leaf(self, value: AnyBuffer | npt.ArrayLike, name: str = "leaf", requires_grad: bool = True) -> int:
        """A value without parents. The tape takes over the handle of an AnyBuffer; an array is uploaded."""
        if not isinstance(value, AnyBuffer):
            value = self.upload(value)
        elif value.buffer.device is not self.device:
            from tlrt.errors import DeviceMismatchError

            raise DeviceMismatchError(f"leaf: value: got a buffer of {value.buffer.device}, expected {self.device}")
        return self.add_node(Node(name, value, requires_grad and self.recording))

    def unary(
        self,
        name: str,
        x: int,
        in_shape: Sequence[int],
        out_shape: Sequence[int],
        forward: Callable[[Any], Any],
        backward: Callable[[Any, Any], Any],
    ) -> int:
        """A node made by hand: `forward(x)` gives its buffer, `backward(x, g)` the gradient of x, as buffers."""
        parent = self.require_value(x, in_shape, name)
        value = self._made(name, out_shape, forward(parent.buffer))

        def pull(g: AnyBuffer) -> list[tuple[int, AnyBuffer]]:
            return [(x, AnyBuffer(parent.shape, backward(parent.buffer, g.buffer)))]

        return self.add_node(Node(name, value, self._needs((x,)), (x,), pull))

    def binary(
        self,
        name: str,
        a: int,
        b: int,
        a_shape: Sequence[int],
        b_shape: Sequence[int],
        out_shape: Sequence[int],
        forward: Callable[[Any, Any], Any],
        backward: Callable[[Any, Any, Any], tuple[Any, Any]],
    ) -> int:
        """A node made by hand: `forward(a, b)` gives its buffer, `backward(a, b, g)` the gradients of a and b."""
        first, second = self.require_value(a, a_shape, name), self.require_value(b, b_shape, name)
        value = self._made(name, out_shape, forward(first.buffer, second.buffer))

        def pull(g: AnyBuffer) -> list[tuple[int, AnyBuffer]]:
            ga, gb = backward(first.buffer, second.buffer, g.buffer)
            return [(a, AnyBuffer(first.shape, ga)), (b, AnyBuffer(second.shape, gb))]

        return self.add_node(Node(name, value, self._needs((a, b)), (a, b), pull))

    @staticmethod
    def _made(name: str, shape: Sequence[int], buffer: Any) -> AnyBuffer:
        try:
            return AnyBuffer(shape, buffer)
        except ShapeError as error:
            buffer.release()
            raise ShapeError(f"{name}: {error}", op=name) from None

    def _needs(self, parents: Sequence[int]) -> bool:
        return self.recording and any(self.nodes[p].requires_grad for p in parents)

    # ---- what Operations is made of

    def shape(self, x: int) -> Shape:
        """The shape of a node's value."""
        return self.node(x, "shape").shape

    def _apply(
        self,
        name: str,
        parents: tuple[int | None, ...],
        extra: tuple[Any, ...] = (),
        hosts: Mapping[str, Any] | None = None,
    ) -> int:
        nodes = self.nodes
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
                self.node(p, name)
            parent = nodes[p]
            buffers.append(parent.buffer)
            key.append(parent.shape)
            if parent.requires_grad:
                needs = True
        if hosts is not None:
            key.append(tuple([a.size for a in hosts.values()]))
        where = tuple(key)
        try:
            plan = self._plans[where]
        except KeyError:
            plan = self._plan(where, name, parents, extra, hosts)
        except TypeError:  # a parameter of the wrong type
            raise ArgumentTypeError(f"{name}: got parameters {extra}, expected numbers", op=name) from None
        node = Node.__new__(Node)
        node.buffer = plan.run(buffers, hosts)
        node.name = name
        node.shape = plan.shape
        node.requires_grad = needs and self.recording
        node.parents = parents
        node.cleanup = ()
        node._plan = plan
        node._hosts = hosts
        node._rule = None
        nodes.append(node)
        return size

    def _plan(self, key: Any, name: str, parents: Any, extra: Any, hosts: Any) -> Plan:
        shapes = [None if p is None else self.nodes[p].shape for p in parents]
        lengths = {} if hosts is None else {n: int(a.size) for n, a in hosts.items()}
        plan = make(self.kernels, name, shapes, extra, lengths)
        if len(self._plans) >= _PLANS:
            self._plans.clear()
        self._plans[key] = plan
        return plan

    def _view(self, x: int, shape: Shape, name: str) -> int:
        parent = self.node(x, name)
        if size_of(shape) != size_of(parent.shape):
            raise ShapeError(f"{name}: shape: got {shape}, expected {size_of(parent.shape)} elements", op=name)
        node = Node(name, AnyBuffer.of(shape, parent.buffer.share()), self.recording and parent.requires_grad, (x,))
        self.nodes.append(node)
        return len(self.nodes) - 1

    def detach(self, x: int) -> int:
        """The same value with no gradient to x; shares its storage."""
        parent = self.node(x, "detach")
        return self.add_node(Node("detach", AnyBuffer.of(parent.shape, parent.buffer.share()), False))

    # ---- backward

    def backward(self, output: int, seed: AnyBuffer | npt.ArrayLike | None = None) -> list[AnyBuffer]:
        """Dense backward: the gradient of `output` (weighted by `seed`) for every node, zeros where it does not reach.

        `seed` is the cotangent of the output, in its shape; left out, 1, which a scalar output allows only. The caller owns
        the buffers returned. A VJP that raises leaves nothing behind and the tape as it was.
        """
        grads: list[AnyBuffer | None] = [None] * len(self.nodes)
        grads[self._place(output)] = self._seed(output, seed)
        return self._filled(self._backward(grads, None))

    def backward_from(self, gradients: Sequence[AnyBuffer | None]) -> list[AnyBuffer]:
        """Dense backward from an array of cotangents, one per node or None. The tape takes these buffers over."""
        grads = list(gradients)
        if len(grads) != len(self.nodes):
            for g in grads:
                if g is not None:
                    g.release()
            raise ArgumentError(f"backward_from: gradients: got {len(grads)}, expected {len(self.nodes)}, one per node")
        for node, g in zip(self.nodes, grads, strict=True):
            if g is not None:
                try:
                    self.require_upstream(g, node.shape, f"backward_from: {node.name}")
                except ShapeError:
                    for other in grads:
                        if other is not None:
                            other.release()
                    raise
        return self._filled(self._backward(grads, None))

    def backward_sparse(
        self, output: int, wanted: Iterable[int] | None = None, seed: AnyBuffer | npt.ArrayLike | None = None
    ) -> dict[int, AnyBuffer]:
        """Backward that keeps only the gradients of the nodes in `wanted` (all leaves that require one by default) and
        releases each other one as soon as it is consumed. A wanted node that is not reached gets zeros."""
        if wanted is None:
            keep = {i for i, n in enumerate(self.nodes) if n.requires_grad and not n.parents}
        else:
            keep = {self._place(w) for w in wanted}
        grads: list[AnyBuffer | None] = [None] * len(self.nodes)
        grads[self._place(output)] = self._seed(output, seed)
        self._backward(grads, keep)
        found: dict[int, AnyBuffer] = {}
        for i in sorted(keep):
            found[i] = grads[i] or AnyBuffer.zeros(self.nodes[i].shape, self.device)  # type: ignore[assignment]
        return found

    def add_grad(self, gradients: list[AnyBuffer | None], id: int, g: AnyBuffer) -> None:
        """Adds a contribution to a node's gradient and takes its buffer over; released at once if the node needs none."""
        node = self.node(id, "add_grad")
        self.require_upstream(g, node.shape, f"add_grad: {node.name}")
        if not node.requires_grad:
            g.release()
            return
        old = gradients[id]
        if old is None:
            gradients[id] = g
            return
        total = self.kernels.add(old.buffer, g.buffer)
        old.buffer.release()
        g.buffer.release()
        gradients[id] = AnyBuffer.of(node.shape, total)

    def backward_step(self, gradients: list[AnyBuffer | None], id: int) -> None:
        """One node's VJP: adds its contributions to the gradients of its parents."""
        node = self.node(id, "backward_step")
        g = gradients[id]
        if g is None or not node.requires_grad or not node.parents:
            return
        made = self._pull(node, g)
        try:
            while made:
                parent, gradient = made.pop(0)
                self.add_grad(gradients, parent, gradient)
        except BaseException:
            for _, gradient in made:
                gradient.release()
            raise

    def _pull(self, node: Node, g: AnyBuffer) -> list[tuple[int, AnyBuffer]]:
        nodes = self.nodes
        plan, parents = node._plan, node.parents
        try:
            if plan is not None:
                buffers = [None if p is None else nodes[p].buffer for p in parents]
                needs = [p is not None and nodes[p].requires_grad for p in parents]
                found = plan.pull(buffers, node._hosts, node.buffer, g.buffer, needs)
                of = AnyBuffer.of
                return [(parents[i], of(nodes[parents[i]].shape, b)) for i, b in found]  # type: ignore[index, misc]
            if node._rule is not None:
                return list(node._rule(g))
            (parent,) = parents  # a view
            return [(parent, AnyBuffer.of(nodes[parent].shape, g.buffer.share()))]  # type: ignore[index, list-item]
        except Exception as error:
            where = next((i for i, n in enumerate(nodes) if n is node), -1)
            error.add_note(f"in the backward pass, at node {where}: {node!r}")
            raise

    def _backward(self, grads: list[AnyBuffer | None], keep: set[int] | None) -> list[AnyBuffer | None]:
        """Runs the nodes in reverse; gradients not in `keep` (None: all) are released once consumed."""
        try:
            for i in range(len(grads) - 1, -1, -1):
                g = grads[i]
                if g is None:
                    continue
                self.backward_step(grads, i)
                if keep is not None and i not in keep:
                    g.buffer.release()
                    grads[i] = None
        except BaseException:
            for g in grads:
                if g is not None:
                    g.release()
            raise
        return grads

    def _filled(self, grads: list[AnyBuffer | None]) -> list[AnyBuffer]:
        return [
            g if g is not None else AnyBuffer.zeros(n.shape, self.device)
            for g, n in zip(grads, self.nodes, strict=True)
        ]

    def _place(self, id: int) -> int:
        self.node(id, "backward")
        return operator.index(id)

    def _seed(self, output: int, seed: AnyBuffer | npt.ArrayLike | None) -> AnyBuffer:
        node = self.node(output, "backward")
        if seed is None:
            if size_of(node.shape) != 1:
                raise ArgumentError(
                    f"backward: seed: missing, expected one of shape {node.shape} as the output {node.name} is no scalar",
                    op="backward",
                )
            return AnyBuffer.of(node.shape, self.device.full(1, 1.0))
        if isinstance(seed, AnyBuffer):
            return self.require_upstream(seed, node.shape, "backward: seed").share()
        if np.shape(seed) != node.shape:
            raise ShapeError(f"backward: seed: got shape {np.shape(seed)}, expected {node.shape}", op="backward")
        return self.upload(seed)

    # ---- life

    def clear(self) -> None:
        """Releases every buffer on the tape and forgets the nodes; the tape can be used again."""
        nodes, self.nodes = self.nodes, []
        for node in nodes:
            node.buffer.release()
            for scratch in node.cleanup:
                scratch.release()

    def release(self) -> None:
        """Releases every buffer on the tape for good. May be repeated."""
        self.clear()
        self._released = True

    def __enter__(self) -> Tape:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.release()

    def __repr__(self) -> str:
        state = "released" if self._released else f"{len(self.nodes)} nodes"
        return f"Tape({self.device!r}, {state})"

    def table(self) -> str:
        """One line per node: id, name, shape, parents."""
        return "\n".join(
            f"{i:5} {n.name:24} {n.shape!s:20} {list(n.parents) if n.parents else ''}" for i, n in enumerate(self.nodes)
        )
