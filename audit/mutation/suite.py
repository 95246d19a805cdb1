"""Runs tests in a spoilt copy of the tree, which may hang, crash, fill the memory or kill what is near it."""

import contextlib
import math
import os
import re
import resource
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Collection, Sequence
from dataclasses import dataclass

from audit.scratch import Scratch

#: tests that say that a listed text has changed, which every defect does; those that plant defects of their own are left out by
#: name
IGNORED = ("tests/audit/test_mutation.py", "tests/audit/test_random_mutants.py", "tests/repo/test_generated.py",
           "tests/bench/test_trust.py")  # fmt: skip
#: words of pytest: nothing is written, and tests run in their order
PLUGINS = ("-p", "no:cacheprovider", "-p", "no:randomly")
#: bytes of private memory, and of a file, that a process may have: a little more than the tests need
MEMORY, FILE = 6 << 30, 3 << 30
#: seconds between two looks at a running process
LOOK = 0.2


class OutOfTimeError(Exception):
    """The time for a mutant, or for all of them, is up."""


@dataclass
class Turn:
    """The processors that a run may use (all, where none is named), and when it has to end."""

    cores: Collection[int] = ()
    until: float = math.inf


def run_limited(
    tree: Scratch, command: Sequence[str], ops: str = "", *, patience: float, silence: float = math.inf, turn: Turn | None = None
) -> tuple[int | None, str]:  # fmt: skip
    """(the status of a command in a copy, None where it hung; what it said). It hangs that runs longer than `patience`, or says
    nothing for `silence`: seconds in which this process was not stopped either. The command's session ends with it."""
    turn = turn or Turn()
    (temporary := tree.folder / "tmp").mkdir(exist_ok=True)
    environment = {
        **os.environ, "OPS": ops, "PYTHONPATH": os.pathsep.join([str(tree.folder), os.environ.get("PYTHONPATH", "")]),
        "TORCHLEAN_CUDA_LIBRARY": str(tree.library), "PYTHONUNBUFFERED": "1", "TMPDIR": str(temporary),
        "MAKEFLAGS": " ".join(tree.options),
    }  # fmt: skip
    ran = quiet = 0.0
    said = 0
    with tempfile.TemporaryFile() as output:
        process = subprocess.Popen(
            command, cwd=tree.folder, env=environment, stdin=subprocess.DEVNULL, stdout=output, stderr=subprocess.STDOUT,
            start_new_session=True,
        )  # fmt: skip
        try:
            with contextlib.suppress(ProcessLookupError):
                if tree.backend == "cpu":  # CUDA reserves what it never touches
                    resource.prlimit(process.pid, resource.RLIMIT_DATA, (MEMORY, MEMORY))
                resource.prlimit(process.pid, resource.RLIMIT_FSIZE, (FILE, FILE))
                if turn.cores:
                    os.sched_setaffinity(process.pid, turn.cores)
            while process.poll() is None and ran <= patience and quiet <= silence:
                if time.monotonic() > turn.until:
                    raise OutOfTimeError
                with contextlib.suppress(subprocess.TimeoutExpired):
                    process.wait(LOOK)
                now = os.fstat(output.fileno()).st_size
                ran, quiet, said = ran + LOOK, 0.0 if now != said else quiet + LOOK, now
            status = process.poll()
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()
        output.seek(max(0, said - (1 << 20)))
        return status, output.read().decode(errors="replace")


def run_pytest(
    tree: Scratch, words: Sequence[str], ops: str, patience: float, silence: float = math.inf, turn: Turn | None = None
) -> tuple[str, str]:
    """("passed" | "failed" | "crashed" | "hung" | "empty", the test that failed, or the end of the output)."""
    plugins = [*PLUGINS, "-n", "0", *(f"--ignore={i}" for i in IGNORED)]
    command = [sys.executable, "-m", "pytest", "-x", "-v", *plugins, *words]
    status, said = run_limited(tree, command, ops, patience=patience, silence=silence, turn=turn)
    found = re.findall(r"^(?:FAILED|ERROR) (.+?)(?: - .*)?$", said, re.M)
    begun = re.findall(r"^(tests/\S+::.*?) (?=PASSED|FAILED|SKIPPED|ERROR|XFAIL|$)", said, re.M)
    last = begun[-1] if begun else said[-400:]
    if status in (0, 5) or "ERROR: not found: " in said:  # a mutant of rows gives tests other names
        return "passed" if status == 0 else "empty", ""
    if status is None:
        return "hung", last
    if not found and status not in (1, 2):
        return "crashed", last
    return "failed", found[0] if found else said[-400:]
