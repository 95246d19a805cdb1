"""Checks a tape against the specification node by node.

Comparing whole programs would need the error of every value carried through everything after it. The comparison here is local
and exact in meaning: an operation's inputs are what the tape itself has (its parents' values, the cotangent that arrived),
widened; its result and every gradient it hands on must lie within the row's own bound of the row's reference on these. What the
tape does between operations (which contribution goes where, in which order they are added, what a view passes on) is
repeated in float32 NumPy and must agree bit for bit.
"""

from collections.abc import Callable
from typing import Any

import numpy as np

from tlrt._binding.observer import Observer
from tlrt.differential import case_of
from tlrt.tape import AnyBuffer, Node, Tape
from tlspec.compare import Comparison, compare, same_bits
from tlspec.drawn import Case


def case_of_node(tape: Tape, node: Node, g: np.ndarray | None = None) -> Case:
    """The node's call, or that of its VJP for a cotangent, on the tape's own values."""
    parents = [None if p is None else tape.nodes[p].value.numpy() for p in node.parents]
    return case_of(node, parents, node.value.numpy(), None if g is None else g.reshape(node.shape))


def check_bounds(case: Case, got: list[np.ndarray | None], where: str) -> list[Comparison]:
    """Demands that results lie within the bound."""
    found = []
    expected = case.expected
    for i, (array, flat) in enumerate(zip(case.signature.outputs, got, strict=True)):
        if flat is None:
            continue
        ref, tol, bits = expected.outputs[i], expected.tolerances[i], expected.bits[i]
        c = compare(flat.reshape(ref.shape), ref, tol, signed_zeros=expected.signed_zeros, bits=bits)
        assert c.ok, f"{where}: {c.explain(array.name)}"
        found.append(c)
    return found


def check_values(tape: Tape) -> float:
    """Checks every value on the tape; the worst error as a share of its bound."""
    worst = 0.0
    for i, node in enumerate(tape.nodes):
        if node.plan is not None:
            found = check_bounds(case_of_node(tape, node), [node.buffer.numpy()], f"{i}: {node}")
            worst = max([worst, *(c.share for c in found)])
        elif node.parents:
            (parent,) = node.parents
            assert same_bits(node.buffer.numpy(), tape.nodes[parent].buffer.numpy()).ok, f"{i}: {node}"  # type: ignore[index]
    return worst


def check_gradients(tape: Tape, output: int, seed: np.ndarray) -> float:
    """Checks every gradient on the way from `output` and the tape's own dense and sparse backward; the worst share."""
    worst = 0.0
    grads: list[np.ndarray | None] = [None] * tape.size
    grads[output] = np.asarray(seed, np.float32).reshape(-1)
    for i in range(tape.size - 1, -1, -1):
        node, g = tape.nodes[i], grads[i]
        if g is None or not node.requires_grad or not node.parents:
            continue
        alone: list[AnyBuffer | None] = [None] * tape.size
        alone[i] = tape.upload(g.reshape(node.shape))
        # one parent at a time, so that the contributions of an operand given twice stay apart
        if node.plan is None:
            contributions: list[tuple[int, np.ndarray]] = [(node.parents[0], g)]  # type: ignore[list-item]
        else:
            contributions = gradients_of_parents(tape, node, g)
            case = case_of_node(tape, node, g)
            by_place = dict(zip(node.plan.gives, range(len(node.plan.gives)), strict=True))
            got: list[np.ndarray | None] = [None] * len(by_place)
            for place, value in contributions:
                got[by_place[place]] = value
            worst = max([worst, *(c.share for c in check_bounds(case, got, f"VJP of {i}: {node}"))])
            contributions = [(node.parents[p], v) for p, v in contributions]  # type: ignore[misc]
        tape.backward_step(alone, i)
        once: list[np.ndarray | None] = [None] * tape.size
        with np.errstate(all="ignore"):
            for parent, value in contributions:
                if tape.nodes[parent].requires_grad:
                    for into in (grads, once):
                        old = into[parent]
                        into[parent] = value if old is None else old + value
        for parent in {p for p, _ in contributions}:
            mine, theirs = once[parent], alone[parent]
            assert (mine is None) == (theirs is None), f"VJP of {i}: {node}: parent {parent}"
            if mine is not None and theirs is not None:
                assert same_bits(theirs.numpy().reshape(-1), mine).ok, f"VJP of {i}: {node}: parent {parent}"
        for b in alone:
            if b is not None:
                b.release()
    start = tape.upload(np.asarray(seed, np.float32))
    dense = tape.backward(output, start)
    sparse = tape.backward_sparse(output, None, start)
    start.release()
    for i, (node, mine, theirs) in enumerate(zip(tape.nodes, grads, dense, strict=True)):
        wanted = np.zeros(int(np.prod(node.shape)), np.float32) if mine is None else mine
        assert theirs.shape == node.shape
        assert same_bits(theirs.numpy().reshape(-1), wanted).ok, f"dense gradient of {i}: {node}"
        if i in sparse:
            assert same_bits(sparse[i].numpy().reshape(-1), wanted).ok, f"sparse gradient of {i}: {node}"
    assert set(sparse) == {i for i, n in enumerate(tape.nodes) if n.requires_grad and not n.parents}
    for b in (*dense, *sparse.values()):
        assert b.buffer.references == 1, "a gradient shares its storage"
        b.release()
    return worst


def gradients_of_parents(tape: Tape, node: Node, g: np.ndarray) -> list[tuple[int, np.ndarray]]:
    """(place, gradient) of each operand that needs one, from the node's VJP alone."""
    assert node.plan is not None
    upstream = tape.device.buffer(g)
    pool = [None if p is None else tape.nodes[p].buffer for p in node.parents]
    pool += [node.buffer, upstream, *node.hosts.values()]
    needs = [p is not None and tape.nodes[p].requires_grad for p in node.parents]
    made = node.plan.vjp(pool, needs)
    out = [(place, b.numpy()) for place, b in made]
    for b in (upstream, *(b for _, b in made)):
        b.release()
    assert [p for p, _ in out] == [p for p in node.plan.gives if needs[p]], "a gradient nobody needs was computed"
    return out


def same_bits_on_devices(tape: Tape) -> list[bool]:
    """For every node, whether the CPU and CUDA give the same bits: its row does, and so did its parents."""
    same: list[bool] = []
    for node in tape.nodes:
        mine = node.plan is None or node.plan.row.contract.same_bits
        same.append(mine and all(same[p] for p in node.parents if p is not None))
    return same


class Kept(Observer):
    """Every buffer that a tape and its device make while this observes: something refers to each, so only a release frees it."""

    def __init__(self, tape: Tape) -> None:
        self.made: list[Any] = []
        self.kernels = tape.kernels
        tape.kernels = self
        tape.device.observe(self)

    def buffer_made(self, function: Any, arguments: tuple[Any, ...], buffer: Any) -> None:
        self.made.append(buffer)

    def __getattr__(self, name: str) -> Callable[..., Any]:
        def run(*arguments: Any, **keywords: Any) -> Any:
            made = getattr(self.kernels, name)(*arguments, **keywords)
            self.made += [b for b in (made if isinstance(made, tuple) else (made,)) if b is not None]
            return made

        return getattr(self.kernels, name) if name == "share" else run

    @property
    def live(self) -> set[int]:
        return {id(b) for b in self.made if not b.released}
