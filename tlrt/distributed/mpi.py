"""Ranks that talk by MPI, started by mpirun or by srun."""

from __future__ import annotations

import sys
import time
import traceback
from typing import Any

import numpy.typing as npt

from tlrt.distributed.group import Group, GroupError
from tlrt.errors import UnavailableError, refusal

#: seconds between two looks at a message that has not come
_PAUSE = 20e-6
#: seconds in which the other ranks say what all know
_LAST_WORD = 0.5


class MPIGroup(Group):
    """See the module. A rank that fails prints why and ends all others by MPI_Abort, as MPI has no way to tell them."""

    def __init__(self, local_rank: int, timeout: float) -> None:
        try:
            from mpi4py import MPI
        except ImportError as error:
            got, expected = f"no usable mpi4py ({error})", "pip install mpi4py, and the MPI of mpirun"
            raise refusal(UnavailableError, "join", "MPI", got, expected) from None
        self._mpi, self._world = MPI, MPI.COMM_WORLD.Dup()
        super().__init__(self._world.Get_rank(), self._world.Get_size(), local_rank, timeout)

    def exchange(self, partner: int, out: npt.NDArray[Any], into: npt.NDArray[Any]) -> None:
        waiting = [self._world.Irecv(into, partner), self._world.Isend(out, partner)]
        start = time.monotonic()
        while not self._mpi.Request.Testall(waiting):
            if time.monotonic() - start > self.timeout:
                for request in waiting:
                    request.Cancel()
                raise refusal(
                    GroupError, "exchange", f"rank {partner}", f"nothing for {self.timeout:g} s", "its numbers"
                )
            time.sleep(_PAUSE)

    def fail(self, reason: str) -> None:
        for communicator in self._communicators.values():
            communicator.give_up(reason)
        traceback.print_exc()
        print(f"rank {self.rank}: {reason}", file=sys.stderr, flush=True)
        if isinstance(sys.exc_info()[1], GroupError):
            time.sleep(_LAST_WORD)  # the others are about to say the same
        self._world.Abort(1)
