"""The order in which ranks add: one balanced binary tree over all shards, the nearest first.

R ranks, a power of two, hold the sums of equally many neighbouring shards. On level k rank r meets rank r XOR 2^k. Each keeps one
half of what it has and gets that half of the other, and the lower rank's numbers stand first in the sum. After log2 R levels a
rank has 1/R of the vector, added over all shards in the tree's order, and has sent (R - 1)/R of its length, as a ring would.
The way back, in the opposite order, gathers all parts on all ranks. Source: Thakur, Rabenseifner and Gropp, Optimization of
Collective Communication Operations in MPICH, 2005 (recursive halving and doubling).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

#: partner, what goes to it, where what comes from it goes
Exchange = Callable[[int, npt.NDArray[Any], npt.NDArray[Any]], None]


def levels(size: int) -> int:
    """log2 of the number of ranks."""
    return size.bit_length() - 1


def place(rank: int, size: int) -> int:
    """Which part of the vector a rank ends with: its number with the bits in the opposite order."""
    return int(f"{rank:0{levels(size)}b}"[::-1], 2) if size > 1 else 0


def windows(rank: int, size: int) -> list[tuple[int, int, int, int, int]]:
    """For each level: the partner, the parts that the rank keeps, and those that it gives away, each from the first to the one
    after the last."""
    low, high, found = 0, size, []
    for k in range(levels(size)):
        middle = (low + high) // 2
        kept, given = ((low, middle), (middle, high)) if not rank >> k & 1 else ((middle, high), (low, middle))
        found.append((rank ^ 1 << k, *kept, *given))
        low, high = kept
    return found


def reduce_scatter(
    x: npt.NDArray[Any], bounds: Sequence[int], rank: int, size: int, exchange: Exchange
) -> npt.NDArray[Any]:
    """The rank's part of the sum over all ranks; `x` is written over. Part p is x[bounds[p]:bounds[p + 1]]."""
    for partner, low, high, first, last in windows(rank, size):
        own, away = x[bounds[low] : bounds[high]], x[bounds[first] : bounds[last]]
        if not own.size and not away.size:
            continue
        other = np.empty_like(own)
        exchange(partner, away, other)
        if rank < partner:
            np.add(own, other, out=own)
        else:
            np.add(other, own, out=own)
    own_part = place(rank, size)
    return x[bounds[own_part] : bounds[own_part + 1]]


def all_gather(x: npt.NDArray[Any], bounds: Sequence[int], rank: int, size: int, exchange: Exchange) -> None:
    """Fills `x`, which holds this rank's part, with the parts of all ranks."""
    for partner, low, high, first, last in reversed(windows(rank, size)):
        own, missing = x[bounds[low] : bounds[high]], x[bounds[first] : bounds[last]]
        if own.size or missing.size:
            exchange(partner, own, missing)
