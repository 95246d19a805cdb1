"""The natural numbers of a session: indices that a program can overwrite between steps."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, cast

import numpy as np
import numpy.typing as npt

from tlrt import _convert
from tlrt.errors import (
    ArgumentError,
    ArgumentTypeError,
    DeviceMismatchError,
    IndexOutOfRangeError,
    ReleasedError,
)
from tlrt.operations_base import integer
from tlrt.tensor import NatRef, NatVecRef, naturals

if TYPE_CHECKING:
    from tlrt.session import Session

__all__ = ["Environment"]


class Environment:
    """The natural numbers of a session, which inherits this. They go at its reset."""

    _nats: list[Any]
    epoch: int

    def _require_open(self, op: str) -> None:
        raise NotImplementedError

    def nat(self, value: int) -> NatRef:
        """A natural number below 2^32 in the environment; usable wherever an index is taken."""
        self._require_open("nat")
        self._nats.append(int(naturals("nat", [integer("nat", "value", value)])[0]))
        return NatRef(cast("Session", self), len(self._nats) - 1, self.epoch)

    def get_nat(self, ref: NatRef) -> int:
        """The number behind a reference. Raises IndexOutOfRangeError, ReleasedError after reset."""
        return int(self._nats[self._nat_place(ref, "get_nat", NatRef)])

    def set_nat(self, ref: NatRef, value: int) -> None:
        """Another number behind a reference."""
        place = self._nat_place(ref, "set_nat", NatRef)
        self._nats[place] = int(naturals("set_nat", [integer("set_nat", "value", value)])[0])

    def nat_vec(self, values: npt.ArrayLike) -> NatVecRef:
        """A vector of natural numbers below 2^32 in the environment; usable wherever indices are taken."""
        self._require_open("nat_vec")
        self._nats.append(naturals("nat_vec", values))
        return NatVecRef(cast("Session", self), len(self._nats) - 1, self.epoch)

    def get_nat_vec(self, ref: NatVecRef) -> npt.NDArray[np.uint32]:
        """A copy of the vector behind a reference."""
        return self._nats[self._nat_place(ref, "get_nat_vec", NatVecRef)].copy()

    def set_nat_vec(self, ref: NatVecRef, values: npt.ArrayLike) -> None:
        """Another vector behind a reference, of the same length."""
        place = self._nat_place(ref, "set_nat_vec", NatVecRef)
        fresh = naturals("set_nat_vec", values)
        if fresh.size != self._nats[place].size:
            text = f"set_nat_vec: values: got {fresh.size} numbers, expected {self._nats[place].size}"
            raise ArgumentError(text, op="set_nat_vec")
        self._nats[place] = fresh

    def _nat_place(self, ref: NatRef, op: str, kind: type[NatRef]) -> int:
        if type(ref) is not kind:
            raise ArgumentTypeError(f"{op}: ref: got {_convert.type_name(ref)}, expected {kind.__name__}", op=op)
        if ref.session is not self:
            raise DeviceMismatchError(f"{op}: ref: got one of another session, expected one of this", op=op)
        if ref.epoch != self.epoch:
            self._require_open(op)
            raise ReleasedError(f"{op}: ref: got one from before reset, expected one of this step", op=op)
        if not 0 <= ref.id < len(self._nats):
            raise IndexOutOfRangeError(f"{op}: ref: got id {ref.id}, expected below {len(self._nats)}", op=op)
        if isinstance(self._nats[ref.id], np.ndarray) is not (kind is NatVecRef):
            raise ArgumentTypeError(f"{op}: ref: got id {ref.id}, which is no {kind.__name__}", op=op)
        return ref.id
