"""A session's natural numbers: indices that a program can overwrite between steps; they go at reset."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from tlrt._binding import convert
from tlrt._binding.arguments import integer
from tlrt.errors import (
    ArgumentError,
    ArgumentTypeError,
    DeviceMismatchError,
    IndexOutOfRangeError,
    ReleasedError,
    refusal,
)
from tlrt.tensor import NatRef, NatVecRef, naturals


class NaturalNumbers:
    """What a session inherits; it has the list of numbers, counts its steps and tells whether it is open."""

    _nats: list[Any]
    epoch: int

    def _require_open(self, op: str) -> None:
        raise NotImplementedError

    def nat(self, value: int) -> NatRef:
        """A natural number that indices may refer to, and that a program can overwrite.

        Parameters
        ----------
        value : int
            0 or more; operations refuse one of 2^32 or more.

        Returns
        -------
        NatRef
            Valid until reset.

        Examples
        --------
        >>> s = tlrt.Session("cpu", seed=1)
        >>> i = s.nat(1)
        >>> print(s.gather_scalar_nat(s.const([5, 6]), i).numpy())
        6.0
        """
        self._require_open("nat")
        self._nats.append(int(naturals("nat", [integer("nat", "value", value)])[0]))
        return NatRef(self, len(self._nats) - 1, self.epoch)

    def get_nat(self, ref: NatRef) -> int:
        """The number behind a reference.

        Parameters
        ----------
        ref : NatRef
            One of this step.

        Returns
        -------
        int
            The number.

        Raises
        ------
        ReleasedError
            The reference is from before a reset.

        Examples
        --------
        >>> s = tlrt.Session("cpu", seed=1)
        >>> print(s.get_nat(s.nat(3)))
        3
        """
        return int(self._nats[self._nat_place(ref, "get_nat", NatRef)])

    def set_nat(self, ref: NatRef, value: int) -> None:
        """Puts another number behind a reference.

        Parameters
        ----------
        ref : NatRef
            One of this step.
        value : int
            0 or more.

        Raises
        ------
        ReleasedError
            The reference is from before a reset.

        Examples
        --------
        >>> s = tlrt.Session("cpu", seed=1)
        >>> i = s.nat(3)
        >>> s.set_nat(i, 4)
        >>> print(s.get_nat(i))
        4
        """
        place = self._nat_place(ref, "set_nat", NatRef)
        self._nats[place] = int(naturals("set_nat", [integer("set_nat", "value", value)])[0])

    def nat_vec(self, values: npt.ArrayLike) -> NatVecRef:
        """A vector of natural numbers that indices may refer to, and that a program can overwrite.

        Parameters
        ----------
        values : array_like of int
            One axis; operations refuse 2^32 and more.

        Returns
        -------
        NatVecRef
            Valid until reset.

        Examples
        --------
        >>> s = tlrt.Session("cpu", seed=1)
        >>> i = s.nat_vec([1, 0])
        >>> print(s.gather_vec_nat(s.const([5, 6]), i).numpy())
        [6. 5.]
        """
        self._require_open("nat_vec")
        self._nats.append(naturals("nat_vec", values))
        return NatVecRef(self, len(self._nats) - 1, self.epoch)

    def get_nat_vec(self, ref: NatVecRef) -> npt.NDArray[Any]:
        """A copy of the vector behind a reference.

        Parameters
        ----------
        ref : NatVecRef
            One of this step.

        Returns
        -------
        numpy.ndarray
            uint32, or Python's integers where one is 2^32 or more.

        Raises
        ------
        ReleasedError
            The reference is from before a reset.

        Examples
        --------
        >>> s = tlrt.Session("cpu", seed=1)
        >>> print(s.get_nat_vec(s.nat_vec([1, 0])))
        [1 0]
        """
        return self._nats[self._nat_place(ref, "get_nat_vec", NatVecRef)].copy()

    def set_nat_vec(self, ref: NatVecRef, values: npt.ArrayLike) -> None:
        """Puts another vector of the same length behind a reference.

        Parameters
        ----------
        ref : NatVecRef
            One of this step.
        values : array_like of int
            As many as before.

        Raises
        ------
        ReleasedError
            The reference is from before a reset.
        ArgumentError
            Another length.

        Examples
        --------
        >>> s = tlrt.Session("cpu", seed=1)
        >>> i = s.nat_vec([1, 0])
        >>> s.set_nat_vec(i, [0, 0])
        >>> print(s.get_nat_vec(i))
        [0 0]
        """
        place = self._nat_place(ref, "set_nat_vec", NatVecRef)
        fresh = naturals("set_nat_vec", values)
        if fresh.size != self._nats[place].size:
            raise refusal(ArgumentError, "set_nat_vec", "values", f"{fresh.size} numbers", self._nats[place].size)
        self._nats[place] = fresh

    def _nat_place(self, ref: NatRef, op: str, kind: type[NatRef]) -> int:
        if type(ref) is not kind:
            raise refusal(ArgumentTypeError, op, "ref", convert.type_name(ref), kind.__name__)
        if ref.session is not self:
            raise refusal(DeviceMismatchError, op, "ref", "one of another session", "one of this")
        if ref.epoch != self.epoch:
            self._require_open(op)
            raise refusal(ReleasedError, op, "ref", "one from before reset", "one of this step")
        if not 0 <= ref.id < len(self._nats):
            raise refusal(IndexOutOfRangeError, op, "ref", f"id {ref.id}", f"below {len(self._nats)}")
        if isinstance(self._nats[ref.id], np.ndarray) is not (kind is NatVecRef):
            raise ArgumentTypeError(f"{op}: ref: got id {ref.id}, which is no {kind.__name__}", op=op)
        return ref.id
