"""Runs tests/runtime/distributed_program.py as several processes."""

import functools
import os
import re
import shutil
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests import ROOT, python_path
from tests.runtime import distributed_program
from tlrt import checkpoint, distributed

#: seconds without a word after which a rank is given up, and seconds that others have to say so: enough for a loaded machine
TIMEOUT, GRACE = 5, 5
PROGRAM = str(ROOT / "tests/runtime/distributed_program.py")
MPIRUN = shutil.which("mpirun", path=f"{Path(sys.executable).parent}{os.pathsep}{os.environ.get('PATH', '')}")


def run(starter: str, ranks: int, *arguments: str, **variables: str) -> subprocess.CompletedProcess[str]:
    start = [MPIRUN, "-n", str(ranks), sys.executable]
    if starter == "launch":
        start = [sys.executable, "-m", "tlrt", "launch", "-n", str(ranks), "--grace", str(GRACE)]
    elif starter == "mpirun":
        pytest.importorskip("mpi4py")
    as_root = dict.fromkeys(("OMPI_ALLOW_RUN_AS_ROOT", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM"), "1")  # as containers do
    environment = {**os.environ, **as_root, "PYTHONPATH": python_path(), "TORCHLEAN_CPU_THREADS": "1", **variables}
    for name in ("RANK", "WORLD_SIZE"):
        environment.pop(name, None)
    command = [*map(str, start), PROGRAM, *arguments]
    return subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=120)


def weights(found: subprocess.CompletedProcess[str], ranks: int = 1) -> str:
    """What all ranks print, which is one hash."""
    assert found.returncode == 0, found.stdout + found.stderr
    lines = re.findall(r"weights \w{64} loss \S+p\+\d+", found.stdout)
    assert len(lines) == ranks and len(set(lines)) == 1, found.stdout
    return lines[0]


@functools.cache
def weights_alone(*options: str) -> str:
    """What one rank prints, which is here in this process."""
    return distributed_program.train(distributed.Group(), distributed_program.arguments(options))


#: by the fault of the program, what every rank that still runs says
WRONG = {
    "error": "rank 1 failed: ValueError: the data are gone",
    "batch": "on rank 1, expected those of shard 0: all shards are of one size",
    "version": "join: version: got 9.9.9 on rank 1",
    "shards": "shards: got 4 on rank 1, expected 8",
    "weights": "values of the parameters: got",
    "rate": "'lr': 0.02",
    "seed": "seed: got 6 on rank 1",
    "kill": "rank 1: got its end without a word",
    "absent": "got no word of 1 in time",
    "silent": f"got nothing for {TIMEOUT} s",
}


def fail(ranks: int, fault: str, folder: Path, *more: str, **variables: str) -> None:
    """Ranks that end because of a fault of the second one: each that still runs says what it was, and a checkpoint is whole."""
    path, start = folder / "c.safetensors", time.monotonic()
    more = ("--fault", fault, "--timeout", str(TIMEOUT), "--save", str(path), "--every", "1", *more)
    found = run("launch", ranks, *more, **variables)
    assert found.returncode != 0 and time.monotonic() - start < 60
    said = {int(rank) for rank in re.findall(rf"(?m)^\[(\d)\] .*GroupError.*{re.escape(WRONG[fault])}", found.stdout)}
    assert said | (set() if fault == "version" else {1}) >= set(range(ranks)), found.stdout
    assert [(p, checkpoint.peek(p)["shards"]) for p in folder.iterdir()] in ([], [(path, 8)])
