"""The backward pass of a tape: a walk over its nodes in reverse that calls each one's vector-Jacobian product."""

from __future__ import annotations

import operator
from collections.abc import Iterable, Sequence
from math import prod
from typing import Any

import numpy.typing as npt

from tlrt._binding import convert
from tlrt._binding.arguments import integer
from tlrt._binding.observer import Observer, watches_leaves
from tlrt._node import Node, other_thread_error
from tlrt._operations.shaped import AnyBuffer
from tlrt.errors import (
    ArgumentError,
    ArgumentTypeError,
    IndexOutOfRangeError,
    ReleasedError,
    ShapeError,
    refusal,
)


class Backward:
    """What a tape inherits: gradients of its nodes."""

    device: Any
    kernels: Any
    nodes: list[Node]

    def node(self, id: int | None, op: str = "node") -> Node:
        raise NotImplementedError

    def upload(self, array: npt.ArrayLike) -> AnyBuffer:
        raise NotImplementedError

    def _require_live(self, op: str) -> None:
        raise NotImplementedError

    def _require_here(self, op: str, name: str, buffer: Any) -> None:
        raise NotImplementedError

    @staticmethod
    def require_upstream(g: AnyBuffer, shape: Sequence[int], op: str = "backward") -> AnyBuffer:
        """A cotangent that must have a shape.

        Parameters
        ----------
        g : AnyBuffer
            The cotangent.
        shape : sequence of int
            The shape.
        op : str, default 'backward'
            The operation that a refusal names.

        Returns
        -------
        AnyBuffer
            The same.

        Raises
        ------
        ShapeError
            Another shape.
        """
        if not isinstance(g, AnyBuffer):
            raise refusal(ArgumentTypeError, op, "cotangent", convert.type_name(g), "AnyBuffer")
        if g.shape != tuple(shape):
            raise refusal(ShapeError, op, "cotangent", f"shape {g.shape}", tuple(shape))
        return g

    def backward(self, output: int, seed: AnyBuffer | npt.ArrayLike | None = None) -> list[AnyBuffer]:
        """Dense backward: the gradient of an output by every node, zeros where it does not reach.

        A VJP that raises leaves nothing behind and the tape as it was.

        Parameters
        ----------
        output : int
            The node that is differentiated.
        seed : array_like or AnyBuffer, optional
            The cotangent in the output's shape; 1 unless given, which only a scalar output allows.

        Returns
        -------
        list of AnyBuffer
            One for each node; the caller owns them.

        Examples
        --------
        >>> tape = tlrt.Tape("cpu")
        >>> w = tape.leaf([1, 2], "w")
        >>> loss = tape.reduce_sum(tape.mul(w, w))
        >>> print(tape.backward(loss)[w].numpy())
        [2. 4.]
        """
        nodes = self.nodes
        order = self._ancestors(output, nodes)
        return self._fill_missing(self._backward(self._seeded(output, seed, nodes), None, nodes, order))

    def backward_from(self, gradients: Sequence[AnyBuffer | None], first: int | None = None) -> list[AnyBuffer]:
        """Dense backward from cotangents of all nodes.

        Parameters
        ----------
        gradients : sequence of (AnyBuffer or None)
            One for each node; the tape takes these buffers over.
        first : int, optional
            Runs over the first so many nodes alone: what was given for later ones comes back unchanged and flows no
            further.

        Returns
        -------
        list of AnyBuffer
            One for each node; the caller owns them.

        Raises
        ------
        IndexOutOfRangeError
            `first` is more than there are nodes.

        Examples
        --------
        >>> tape = tlrt.Tape("cpu")
        >>> w = tape.leaf([1, 2], "w")
        >>> g = tape.backward_from([tape.upload([5, 6])])
        >>> print(g[w].numpy())
        [5. 6.]
        """
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
        return self._fill_missing(self._backward(grads, None, nodes, range(stop - 1, -1, -1)))

    def backward_sparse(
        self, output: int, wanted: Iterable[int] | None = None, seed: AnyBuffer | npt.ArrayLike | None = None
    ) -> dict[int, AnyBuffer]:
        """Backward that keeps only some gradients and releases each other one as soon as it is consumed.

        Parameters
        ----------
        output : int
            The node that is differentiated.
        wanted : iterable of int, optional
            The nodes; all leaves that require a gradient unless given.
        seed : array_like or AnyBuffer, optional
            The cotangent in the output's shape; 1 unless given, which only a scalar output allows.

        Returns
        -------
        dict of int to AnyBuffer
            By node; zeros for one that is not reached.

        Examples
        --------
        >>> tape = tlrt.Tape("cpu")
        >>> w = tape.leaf([1, 2], "w")
        >>> loss = tape.reduce_sum(tape.mul(w, w))
        >>> print(list(tape.backward_sparse(loss)))
        [0]
        """
        nodes = self.nodes
        if wanted is None:
            keep = {i for i, n in enumerate(nodes) if n.requires_grad and not n.parents}
        else:
            keep = set()
            for w in wanted:
                if type(w) is not int or not 0 <= w < len(nodes):
                    self.node(w, "backward: wanted")
                keep.add(operator.index(w))
        found = self._sparse(output, keep, seed, nodes)
        try:
            for i in keep - found.keys():
                found[i] = AnyBuffer.zeros(nodes[i].shape, self.device)
        except BaseException:
            release_gradients(found.values())
            raise
        return dict(sorted(found.items()))

    def _sparse(
        self, output: int, keep: set[int] | None, seed: AnyBuffer | npt.ArrayLike | None, nodes: list[Node]
    ) -> dict[int, AnyBuffer]:
        """The gradients of the nodes in `keep` (None: of the leaves) that the pass reaches. It visits no others than the
        output's ancestors, however long the tape is."""
        order = self._ancestors(output, nodes)
        if keep is None:
            keep = {i for i in order if nodes[i].requires_grad and not nodes[i].parents}
        grads = self._backward(self._seeded(output, seed, nodes), keep, nodes, order)
        return {i: g for i in order if (g := grads[i]) is not None}

    def _ancestors(self, output: int, nodes: list[Node]) -> list[int]:
        """The output and the nodes that its cotangent can reach, the last first."""
        self.node(output, "backward")
        if (place := operator.index(output)) >= len(nodes):
            raise other_thread_error("backward")
        found, open_ = {place}, [place]
        while open_:
            node = nodes[open_.pop()]
            for p in node.parents if node.requires_grad else ():
                if p is not None and p not in found and nodes[p].requires_grad:
                    found.add(p)
                    open_.append(p)
        return sorted(found, reverse=True)

    def add_grad(self, gradients: list[AnyBuffer | None], id: int, g: AnyBuffer) -> None:
        """Adds a contribution to a node's gradient.

        Parameters
        ----------
        gradients : list of (AnyBuffer or None)
            One for each node; changed in place.
        id : int
            A node.
        g : AnyBuffer
            The contribution, whose buffer is taken over; released at once if the node needs none.
        """
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
        """One node's VJP: adds its contributions to the gradients of its parents.

        Parameters
        ----------
        gradients : list of (AnyBuffer or None)
            One for each node; changed in place.
        id : int
            A node.
        """
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
        self, grads: list[AnyBuffer | None], keep: set[int] | None, nodes: list[Node], order: Sequence[int]
    ) -> list[AnyBuffer | None]:
        """Runs the nodes in this order, later ones first; gradients not in `keep` (None: all) are released once consumed. Those
        that stay have storage of their own. `nodes` are the tape's from before the first gradient: other ones are another
        thread's doing."""
        watchers = [observer for observer in self.device._observers if watches_leaves(observer)]
        try:
            sharing = {i for i, g in enumerate(grads) if g is not None} if keep is None else set(order[:1])
            for i in order:
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


def _give_own_storage(grads: list[AnyBuffer | None], place: int) -> None:
    """Copies a gradient whose storage another buffer has, too."""
    g = grads[place]
    if g is not None and g.buffer.references > 1:
        grads[place] = g.copy()
        g.buffer.release()


def release_gradients(gradients: Iterable[AnyBuffer | None]) -> None:
    """Releases gradients of :meth:`Tape.backward`, :meth:`Tape.backward_from` or :meth:`Tape.backward_sparse`.

    Parameters
    ----------
    gradients : iterable of (AnyBuffer or None)
        None is passed over; may be repeated.
    """
    for g in gradients:
        if isinstance(g, AnyBuffer):
            g.buffer.release()
