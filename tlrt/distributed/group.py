"""Groups of processes: who is in one, and how its ranks exchange numbers."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any, Protocol, TypeVar

import numpy as np
import numpy.typing as npt

from tlrt.distributed import tree
from tlrt.errors import ArgumentError, TorchleanError, refusal

__all__ = ["TRANSPORTS", "Group", "GroupError"]

_T = TypeVar("_T")
#: how gradients and parameters go from rank to rank: by way of the host, or from GPU to GPU
TRANSPORTS = ("host", "nccl")

#: seconds for a rank to wait for another's numbers
TIMEOUT = 300.0


class GroupError(TorchleanError, RuntimeError):
    """A rank ended, failed, was not heard of in time, or computes something else than the others. Every rank raises it, with
    the same reason; the group is of no use afterwards."""


class Connection(Protocol):
    """What else connects a rank to the others, and ends with the group."""

    def close(self) -> None: ...

    def give_up(self, reason: str) -> None: ...


class Group:
    """The processes of a run. This class is the group of one process; :func:`tlrt.distributed.join` gives the one that the
    environment says.

    A rank that leaves the `with` block by an exception tells the others, which raise :class:`GroupError` when they next wait
    for it."""

    def __init__(self, rank: int = 0, size: int = 1, local_rank: int = 0, timeout: float = TIMEOUT) -> None:
        if size < 1 or size & (size - 1):
            raise refusal(ArgumentError, "distributed", "size", f"{size} ranks", "a power of two")
        if not 0 <= rank < size:
            raise refusal(ArgumentError, "distributed", "rank", rank, f"one of 0 to {size - 1}")
        #: the number of this process, how many there are, and its number on its own machine
        self.rank, self.size, self.local_rank = rank, size, local_rank
        #: seconds that a rank waits for another
        self.timeout = timeout
        #: one of TRANSPORTS, for gradients and parameters; all else goes by way of the host
        self.transport = TRANSPORTS[0]
        #: by the context whose numbers they move
        self._communicators: dict[Any, Connection] = {}

    def device(self, kind: str) -> str:
        """The name of this rank's device: "cpu", or for "cuda" the GPU of its number on the machine."""
        return f"cuda:{self.local_rank}" if kind == "cuda" else kind

    def share(self, items: Sequence[_T]) -> list[_T]:
        """Those of the items that are this rank's to work on: every `size`-th, as neighbours often take about as long."""
        return list(items[self.rank :: self.size])

    def exchange(self, partner: int, out: npt.NDArray[Any], into: npt.NDArray[Any]) -> None:
        """Sends an array to a rank that differs in one bit, and receives one from it. Both are contiguous."""
        raise refusal(ArgumentError, "exchange", "partner", partner, "a group of more ranks than one")

    def _swap(self, partner: int, data: bytes) -> bytes:
        """Sends bytes to such a rank, and receives its."""
        length = np.zeros(1, np.int64)
        self.exchange(partner, np.array([len(data)], np.int64), length)
        other = np.empty(int(length[0]), np.uint8)
        self.exchange(partner, np.frombuffer(data, np.uint8), other)
        return other.tobytes()

    def gather(self, value: Any) -> list[Any]:
        """Every rank's value, in their order, on every rank. A value is what JSON holds, NumPy's numbers
        being numbers."""
        known: dict[str, Any] = {str(self.rank): json.loads(json.dumps(value, default=_plain))}
        for k in range(tree.levels(self.size)):
            known.update(json.loads(self._swap(self.rank ^ 1 << k, json.dumps(known).encode())))
        return [known[str(r)] for r in range(self.size)]

    def agree(self, op: str, facts: Mapping[str, Any]) -> None:
        """Raises GroupError, on every rank, where a fact is another one on another rank."""
        for rank, other in enumerate(found := self.gather(dict(facts))):
            for name, value in found[0].items():
                if other.get(name) != value:
                    raise refusal(GroupError, op, name, f"{other.get(name)} on rank {rank}", f"{value}, as on rank 0")

    def gather_arrays(self, arrays: Sequence[npt.NDArray[Any]], dtype: npt.DTypeLike) -> list[list[npt.NDArray[Any]]]:
        """Every rank's arrays, on every rank."""
        shapes = self.gather([list(a.shape) for a in arrays])
        order = sorted(range(self.size), key=lambda r: tree.place(r, self.size))
        lengths = [sum(int(np.prod(s)) for s in shapes[r]) for r in order]
        bounds = [0, *np.cumsum(lengths).tolist()]
        flat = np.empty(bounds[-1], dtype)
        own = tree.place(self.rank, self.size)
        if arrays:
            flat[bounds[own] : bounds[own + 1]] = np.concatenate([a.reshape(-1) for a in arrays])
        tree.all_gather(flat, bounds, self.rank, self.size, self.exchange)
        found: list[list[npt.NDArray[Any]]] = []
        for rank in range(self.size):
            at, parts = bounds[tree.place(rank, self.size)], []
            for shape in shapes[rank]:
                count = int(np.prod(shape))
                parts.append(flat[at : at + count].reshape(shape))
                at += count
            found.append(parts)
        return found

    def trouble(self) -> str:
        """Why a rank that waits for others should give up, as far as it shows without an exchange; nothing if all is well."""
        return ""

    def barrier(self) -> None:
        """Waits until all ranks are here."""
        self.gather(None)

    def close(self) -> None:
        """Leaves the group."""
        for communicator in self._communicators.values():
            communicator.close()
        self._communicators = {}

    def fail(self, reason: str) -> None:
        """Leaves the group and tells the other ranks why."""
        for communicator in self._communicators.values():
            communicator.give_up(reason)
        self.close()

    def __enter__(self) -> Group:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: object) -> None:
        if error is None:
            self.close()
        else:
            known = isinstance(error, GroupError)
            self.fail(str(error) if known else f"rank {self.rank} failed: {type(error).__name__}: {error}")

    def __repr__(self) -> str:
        return f"{type(self).__name__}(rank {self.rank} of {self.size})"


def _plain(value: Any) -> Any:
    """One of NumPy's numbers as one of Python's."""
    if isinstance(value, np.generic):
        return value.item()
    raise TypeError(f"got {type(value).__name__}, expected what JSON holds")
