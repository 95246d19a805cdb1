"""``python -m tlrt launch -n 2 PROGRAM ARGUMENTS``: a Python program as several processes of one group, on this machine.

Each process gets RANK, WORLD_SIZE, LOCAL_RANK, MASTER_ADDR and MASTER_PORT, which :func:`tlrt.distributed.join` reads, and its
share of the processor's threads where TORCHLEAN_CPU_THREADS is not set. Lines that they print begin with their rank. Where one
fails, the others have a few seconds to say why they cannot go on, and are then ended. The exit status is that of the first that
failed. PROGRAM is a file, or with -m a module.
"""

from __future__ import annotations

import argparse
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Sequence
from typing import IO

from tlrt._terminal import program_name

#: seconds between two looks at the processes, and that the others have after one failed
PAUSE, GRACE = 0.05, 10.0


def _reserve_port() -> socket.socket:
    """A socket that holds a free port for rank 0: another process gets it only by its number, and rank 0 may listen there."""
    held = socket.socket()
    held.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    held.bind(("127.0.0.1", 0))
    return held


def _show(rank: int, stream: IO[str]) -> None:
    for line in stream:
        sys.stdout.write(f"[{rank}] {line}")
        sys.stdout.flush()


def _failure(processes: Sequence[subprocess.Popen[str]]) -> int:
    """The status of a process that failed, which is reported; 0 where none did."""
    ended = sorted((p.returncode, rank) for rank, p in enumerate(processes) if p.poll())
    if not ended:
        return 0
    status, rank = ended[0]  # a signal first: what others say follows from it
    why = signal.Signals(-status).name if status < 0 else f"exit status {status}"
    print(f"launch: rank {rank} ended with {why}", file=sys.stderr, flush=True)
    return status


def launch(command: Sequence[str], size: int, grace: float = GRACE) -> int:
    """Runs processes of a command on this machine, and shows what they print.

    Parameters
    ----------
    command : sequence of str
        The program and its arguments.
    size : int
        Number of processes.
    grace : float
        Seconds for the others after one failed.

    Returns
    -------
    int
        The exit status of the first that failed, else 0.
    """
    cores, held = len(os.sched_getaffinity(0)), _reserve_port()
    port = str(held.getsockname()[1])
    common = {
        "WORLD_SIZE": str(size), "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port, "PYTHONUNBUFFERED": "1",
        "TORCHLEAN_CPU_THREADS": os.environ.get("TORCHLEAN_CPU_THREADS") or str(max(cores // size, 1)),
    }  # fmt: skip
    processes: list[subprocess.Popen[str]] = []
    readers: list[threading.Thread] = []
    first = 0
    try:
        for rank in range(size):
            own = {**os.environ, **common, "RANK": str(rank), "LOCAL_RANK": str(rank)}
            process = subprocess.Popen(
                list(command), env=own, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, errors="replace"
            )
            processes.append(process)
            readers.append(threading.Thread(target=_show, args=(rank, process.stdout), daemon=True))
            readers[-1].start()
        end = float("inf")
        while any(p.poll() is None for p in processes) and time.monotonic() < end:
            if not first and (first := _failure(processes)):
                end = time.monotonic() + grace
            time.sleep(PAUSE)
        first = first or _failure(processes)
    finally:
        for process in processes:
            if process.poll() is None:
                process.terminate()
        for process in processes:
            try:
                process.wait(2.0)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
        for reader in readers:
            reader.join(2.0)
        held.close()
    return first if first >= 0 else 128 - first


def main(argv: Sequence[str]) -> int:
    """The command ``python -m tlrt launch``.

    Parameters
    ----------
    argv : sequence of str
        Its arguments.

    Returns
    -------
    int
        The exit status of the first process that failed, else 0.
    """
    parser = argparse.ArgumentParser(prog=program_name("launch"), description=(__doc__ or "").split("\n\n")[1])
    parser.add_argument("-n", type=int, default=2, metavar="RANKS", help="processes, a power of two (2)")
    parser.add_argument(
        "--grace", type=float, default=GRACE, metavar="S", help=f"seconds for the others after one failed ({GRACE:g})"
    )
    parser.add_argument("-m", action="store_true", dest="module", help="PROGRAM is a module")
    parser.add_argument("program", metavar="PROGRAM")
    parser.add_argument("arguments", nargs=argparse.REMAINDER, metavar="ARGUMENTS")
    given = parser.parse_args(argv)
    if given.n < 1 or given.n & (given.n - 1):
        parser.error(f"-n: got {given.n}, expected a power of two")
    return launch(
        [sys.executable, *(["-m"] if given.module else []), given.program, *given.arguments], given.n, given.grace
    )
