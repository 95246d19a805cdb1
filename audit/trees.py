"""Finding the order of a sum's additions from outside.

Signed summands. Leaf i is M, leaf j is -M, every other one is 1, with M so large that M + n = M. All ones that meet M or -M
before these two meet each other are lost, so the sum is n minus the number of leaves below the node where i and j meet. The
sizes of these nodes for one leaf i and all others cut the leaves into the subtrees along the path from i to the root, and
each of these is found in the same way (the idea is that of FPRev: Xie, Gao, Wu and Zheng, arXiv:2411.00442). A node whose
pairs of children all report the same size adds them at once; it counts as one addition.
"""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

#: M: below it float64 too loses ones, by far
HUGE = 2.0**100

#: sizes of the nodes at which pairs of leaves meet
Meet = Callable[[np.ndarray], np.ndarray]


class NoTree(ValueError):
    """The answers fit no tree of additions."""


@dataclass(frozen=True)
class Tree:
    """A tree of additions: its height, its widest node, the number of questions that it took."""

    leaves: int
    height: int
    fan_in: int
    questions: int


@dataclass
class _Part:
    """The leaves below one node: a pivot, and the subtrees along its path with the sizes of the nodes they join it at."""

    pivot: int
    sizes: list[int]
    parts: list[int]


def reveal(n: int, meet: Meet, seed: int = 1) -> Tree:
    """The tree over n leaves. The questions of all subtrees of one generation are asked together. Raises NoTree."""
    if n <= 1:
        return Tree(n, 0, 0, 0)
    rng = np.random.default_rng(seed)
    parts: list[_Part] = []
    counts: list[int] = []
    generation: list[np.ndarray] = [np.arange(n)]
    joined = [0]  # sizes of the nodes at which the subtrees of this generation join their parents
    questions = 0
    while generation:
        pivots = [int(g[rng.integers(g.size)]) for g in generation]
        others = [g[g != p] for g, p in zip(generation, pivots, strict=True)]
        pairs = [np.stack([np.full(o.size, p), o], axis=1) for o, p in zip(others, pivots, strict=True)]
        asked = np.concatenate(pairs)
        answers = meet(asked) if asked.size else np.zeros(0, np.int64)
        questions += len(asked)
        following: list[np.ndarray] = []
        upper: list[int] = []
        at, first = 0, len(parts) + len(generation)
        for pivot, other, above in zip(pivots, others, joined, strict=True):
            sizes = answers[at : at + other.size]
            at += other.size
            part = _Part(pivot, [], [])
            below = 1
            for size in np.unique(sizes):
                members = other[sizes == size]
                below += members.size
                if size != below and size != above:  # `above`: these are children of the parent's node themselves
                    raise NoTree(
                        f"leaf {pivot} meets {members.size} others at a node of {size} leaves, expected {below}"
                    )
                part.sizes.append(int(size))
                part.parts.append(first + len(following))
                following.append(members)
                upper.append(int(size))
            parts.append(part)
            counts.append(below)
        generation, joined = following, upper
    heights, fans, tops = [0] * len(parts), [0] * len(parts), [1] * len(parts)
    widest = 2
    for k in range(len(parts) - 1, -1, -1):
        height, fan, top = 0, 1, 1
        for size, child in zip(parts[k].sizes, parts[k].parts, strict=True):
            # a subtree of one joined leaf that reports the size of the node it joins is part of that node
            if counts[child] > 1 and tops[child] == size:
                height = max(height + 1, heights[child])
                fan = 1 + fans[child]
            else:
                height = max(height, heights[child]) + 1
                fan = 2
            top = size
            widest = max(widest, fan)
        heights[k], fans[k], tops[k] = height, fan, top
    return Tree(n, heights[0], widest, questions)


def depth(n: int, leaf: int, meet: Meet) -> int:
    """The number of nodes between a leaf and the root."""
    others = np.array([j for j in range(n) if j != leaf])
    return len(np.unique(meet(np.stack([np.full(others.size, leaf), others], axis=1)))) if others.size else 0
