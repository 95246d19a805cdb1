"""Which rank updates which parameter, and in which groups their gradients are added over the ranks.

A bucket holds parameters whose gradients are exchanged together. Backward finishes the gradients of the last layers first, so
the first bucket has the last parameters: it goes on its way while the rest of the backward pass runs. Neither the owners nor the
buckets change a bit of any result, as each number is added by itself.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class Bucket:
    """Parameters by their places in the list of all, those of part 0 first; and where the numbers of each part begin when they
    stand one after the other: one bound more than there are parts."""

    places: tuple[int, ...]
    bounds: tuple[int, ...]


@dataclass(frozen=True)
class Layout:
    """How the parameters of a model are spread."""

    #: numbers in each parameter
    lengths: tuple[int, ...]
    #: the part that each belongs to
    owners: tuple[int, ...]
    #: in the order in which they are exchanged
    buckets: tuple[Bucket, ...]
    #: all parameters as one
    whole: Bucket

    def own(self, part: int) -> list[int]:
        """The places of the parameters of a part."""
        return [i for i, owner in enumerate(self.owners) if owner == part]


def divide(lengths: Sequence[int], parts: int, most: int) -> Layout:
    """A layout in which a bucket is full from `most` numbers on. There are at least as many parameters as parts, and no part is
    empty. Within a bucket the longest parameters come first, each to the part that has the fewest numbers so far, one without
    parameters before others."""
    groups: list[list[int]] = [[]]
    for place in reversed(range(len(lengths))):
        if groups[-1] and sum(lengths[i] for i in groups[-1]) >= most:
            groups.append([])
        groups[-1].append(place)
    owners, loads, counts = [0] * len(lengths), [0] * parts, [0] * parts
    for group in groups:
        for place in sorted(group, key=lambda i: (-lengths[i], i)):
            part = min(range(parts), key=lambda k: (loads[k], counts[k], k))
            owners[place] = part
            loads[part] += lengths[place]
            counts[part] += 1
    made = [_bucket(group, owners, lengths, parts) for group in groups]
    return Layout(tuple(lengths), tuple(owners), tuple(made), _bucket(range(len(lengths)), owners, lengths, parts))


def _bucket(group: Sequence[int], owners: Sequence[int], lengths: Sequence[int], parts: int) -> Bucket:
    places = tuple(sorted(group, key=lambda i: (owners[i], i)))
    bounds = [sum(lengths[i] for i in places if owners[i] < k) for k in range(parts + 1)]
    return Bucket(places, tuple(bounds))
