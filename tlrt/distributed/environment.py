"""How processes find their group: by the variables that what starts them sets."""

from __future__ import annotations

import os
from collections.abc import Sequence

from tlrt._binding.library import load
from tlrt.distributed.group import TIMEOUT, TRANSPORTS, Group
from tlrt.distributed.mpi import MPIGroup
from tlrt.distributed.sockets import SocketGroup
from tlrt.errors import ArgumentError, refusal

__all__ = ["join", "join_started"]

#: the variable of the environment with the transport of gradients and parameters, where `join` gets none
TRANSPORT = "TORCHLEAN_TRANSPORT"
#: seconds for all ranks to join
JOIN_TIMEOUT = 60.0
#: seconds that a rank of a campaign waits for the others, whose shares take longer or shorter; one that ends is noticed at once
SHARES = 24 * 3600.0
#: variables of the environment that hold rank, size and rank within the host, by what starts the processes
MPI = (
    ("OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_LOCAL_RANK"),
    ("PMI_RANK", "PMI_SIZE", "MPI_LOCALRANKID"),
)
SOCKETS = (("RANK", "WORLD_SIZE", "LOCAL_RANK"), ("SLURM_PROCID", "SLURM_NTASKS", "SLURM_LOCALID"))


def _from_environment(names: Sequence[tuple[str, str, str]]) -> tuple[int, int, int] | None:
    for rank, size, local in names:
        if rank in os.environ and size in os.environ:
            try:
                return int(os.environ[rank]), int(os.environ[size]), int(os.environ.get(local) or os.environ[rank])
            except ValueError:
                got = f"{rank}={os.environ[rank]!r} {size}={os.environ[size]!r}"
                raise refusal(ArgumentError, "join", "environment", got, "numbers") from None
    return None


def join(
    *, timeout: float = TIMEOUT, join_timeout: float = JOIN_TIMEOUT, transport: str | None = None
) -> Group:  # fmt: skip
    """The group that the environment names, once all its ranks are here.

    Under mpirun the ranks talk by MPI (mpi4py). Under ``python -m tlrt launch``, torchrun and srun they talk by TCP,
    and meet at MASTER_ADDR:MASTER_PORT. Under torchrun, which has that port itself, they meet at the next one. Without
    any of them the group has one rank.

    Parameters
    ----------
    timeout : float
        Seconds that a rank waits for another's numbers.
    join_timeout : float
        Seconds for all ranks to join.
    transport : str, optional
        "host": gradients and parameters go as all else does; "nccl": they stay on the GPUs. Left out, it is the
        variable TORCHLEAN_TRANSPORT, else "host".

    Returns
    -------
    Group
        A context manager.

    Raises
    ------
    GroupError
        Where a rank is missing after `join_timeout` seconds or has another version of the library.
    ArgumentError
        For another transport, or variables that are no numbers.

    Examples
    --------
    >>> from tlrt import distributed
    >>> with distributed.join() as group:  # in no started group: one rank
    ...     group
    Group(rank 0 of 1)

    Source: torch.distributed.init_process_group.
    """
    import tlrt

    chosen = transport or os.environ.get(TRANSPORT) or TRANSPORTS[0]
    if chosen not in TRANSPORTS:
        raise refusal(ArgumentError, "join", "transport", f"{chosen!r}", " or ".join(map(repr, TRANSPORTS)))
    if (found := _from_environment(MPI)) is not None and found[1] > 1:
        group: Group = MPIGroup(found[2], timeout)
    elif (found := _from_environment(SOCKETS)) is not None and found[1] > 1:
        address = os.environ.get("MASTER_ADDR", "127.0.0.1")
        port = int(os.environ.get("MASTER_PORT", "29500")) + (os.environ.get("TORCHELASTIC_USE_AGENT_STORE") == "True")
        group = SocketGroup(*found, (address, port), timeout, join_timeout)
    else:
        group = Group(timeout=timeout)
    try:
        group.agree("join", {"version": tlrt.__version__, "abi": load().hash, "transport": chosen})
    except BaseException as error:
        group.fail(str(error))
        raise
    group.transport = chosen
    return group


def join_started() -> Group:
    """The group of a command that shares its work among ranks.

    SLURM's variables do not count, as a batch script has them, too. A rank sees one GPU alone, that of its number on
    the machine, so that all ranks call it by the same name; nothing may have looked for GPUs before.

    Returns
    -------
    Group
        That of ``python -m tlrt launch``, torchrun or mpirun, else one rank.

    Raises
    ------
    GroupError
        As :func:`join`.
    """
    found = _from_environment(MPI) or _from_environment(SOCKETS[:1])
    if found is None or found[1] < 2:
        return Group()
    seen = os.environ.get("CUDA_VISIBLE_DEVICES")
    choice = seen.split(",") if seen is not None else [str(i) for i in range(found[2] + 1)]
    os.environ["CUDA_VISIBLE_DEVICES"] = choice[found[2]] if found[2] < len(choice) else ""
    return join(timeout=SHARES, transport="host")
