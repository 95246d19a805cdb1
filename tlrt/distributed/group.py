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
    """The processes of a run; :func:`tlrt.distributed.join` makes the group of the environment, this class that of one process.

    A rank that leaves the `with` block by an exception tells the others, which raise :class:`GroupError` when they next
    wait for it.

    Parameters
    ----------
    rank, size : int
        The number of this process, and how many there are, a power of two.
    local_rank : int
        Its number on its own machine.
    timeout : float
        Seconds that a rank waits for another.

    Raises
    ------
    ArgumentError
        For another size, or a rank that is not below it.

    Examples
    --------
    >>> from tlrt import distributed
    >>> with distributed.Group() as group:
    ...     group.rank, group.size, group.gather(7)
    (0, 1, [7])
    """

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
        """The name of this rank's device.

        Parameters
        ----------
        kind : str
            "cpu" or "cuda".

        Returns
        -------
        str
            For "cuda" the GPU of the rank's number on its machine.

        Examples
        --------
        >>> from tlrt import distributed
        >>> distributed.Group(rank=3, size=4, local_rank=1).device("cuda")
        'cuda:1'
        """
        return f"cuda:{self.local_rank}" if kind == "cuda" else kind

    def share(self, items: Sequence[_T]) -> list[_T]:
        """This rank's part of some work.

        Parameters
        ----------
        items : sequence
            The same on every rank.

        Returns
        -------
        list
            Every `size`-th item, as neighbours often take about as long.

        Examples
        --------
        >>> from tlrt import distributed
        >>> distributed.Group(rank=1, size=4).share("abcdefgh")
        ['b', 'f']
        """
        return list(items[self.rank :: self.size])

    def exchange(self, partner: int, out: npt.NDArray[Any], into: npt.NDArray[Any]) -> None:
        """Sends an array to a rank that differs in one bit, and receives one from it.

        Parameters
        ----------
        partner : int
            The other rank.
        out, into : array
            What is sent, and what is filled; both contiguous.

        Raises
        ------
        GroupError
            Where the other rank ended, or was not heard of in time.
        ArgumentError
            In a group of one rank.
        """
        raise refusal(ArgumentError, "exchange", "partner", partner, "a group of more ranks than one")

    def _swap(self, partner: int, data: bytes) -> bytes:
        """Sends bytes to such a rank, and receives its."""
        length = np.zeros(1, np.int64)
        self.exchange(partner, np.array([len(data)], np.int64), length)
        other = np.empty(int(length[0]), np.uint8)
        self.exchange(partner, np.frombuffer(data, np.uint8), other)
        return other.tobytes()

    def gather(self, value: Any) -> list[Any]:
        """Brings every rank's value to every rank.

        Parameters
        ----------
        value : object
            What JSON holds; NumPy's numbers become Python's.

        Returns
        -------
        list
            The values in the order of the ranks.

        Raises
        ------
        GroupError
            Where another rank ended, or was not heard of in time.
        """
        known: dict[str, Any] = {str(self.rank): json.loads(json.dumps(value, default=_plain))}
        for k in range(tree.levels(self.size)):
            known.update(json.loads(self._swap(self.rank ^ 1 << k, json.dumps(known).encode())))
        return [known[str(r)] for r in range(self.size)]

    def agree(self, op: str, facts: Mapping[str, Any]) -> None:
        """Refuses facts that differ between ranks, on every rank.

        Parameters
        ----------
        op : str
            For the message.
        facts : mapping of str to object
            What must be the same; JSON holds it.

        Raises
        ------
        GroupError
            With the first fact that differs, and the rank.
        """
        for rank, other in enumerate(found := self.gather(dict(facts))):
            for name, value in found[0].items():
                if other.get(name) != value:
                    raise refusal(GroupError, op, name, f"{other.get(name)} on rank {rank}", f"{value}, as on rank 0")

    def gather_arrays(self, arrays: Sequence[npt.NDArray[Any]], dtype: npt.DTypeLike) -> list[list[npt.NDArray[Any]]]:
        """Brings every rank's arrays to every rank.

        Parameters
        ----------
        arrays : sequence of array
            This rank's.
        dtype : dtype
            That of all arrays.

        Returns
        -------
        list of list of array
            A list for each rank.

        Raises
        ------
        GroupError
            Where another rank ended, or was not heard of in time.
        """
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
        """Why a rank that waits for others should give up, as far as it shows without an exchange.

        Returns
        -------
        str
            "" if all is well.
        """
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
        """Leaves the group and tells the other ranks why.

        Parameters
        ----------
        reason : str
            What they raise GroupError with.
        """
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
