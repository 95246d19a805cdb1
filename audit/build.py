"""Builds of the native code that campaigns and tests of them need."""

import fcntl
import subprocess
import sys
from pathlib import Path

from audit.environment import ROOT, processors


class BuildError(RuntimeError):
    """Something cannot be built here."""


def make(*goals: str, tree: Path = ROOT, jobs: int | None = None) -> None:
    """``make -C native`` with this interpreter, one at a time, whichever process asks. Raises BuildError with what it said."""
    if not (tree / "native" / "Makefile").exists():
        raise BuildError("the native code is part of the source tree, which this is not")
    jobs = processors() if jobs is None else jobs
    command = ["make", "-C", str(tree / "native"), f"-j{jobs}", f"PYTHON={sys.executable}", *goals]
    folder = tree / "native" / "build"
    try:
        folder.mkdir(parents=True, exist_ok=True)
        file = (folder / "build.lock").open("w")
    except OSError as error:
        raise BuildError(f"nothing can be built where files cannot be written ({error})") from None
    with file as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        try:
            made = subprocess.run(command, capture_output=True, text=True, check=False)
        except FileNotFoundError:
            raise BuildError("no make on PATH") from None
    if made.returncode:
        raise BuildError(f"{' '.join(command)} failed:\n{made.stdout[-2000:]}{made.stderr[-4000:]}")
