"""The same call in another process."""

import json
import os
import subprocess
import sys
from collections.abc import Mapping
from typing import Any

import numpy as np

from tlspec.judge.invariants.subject import Result


def importable(function: Any) -> str:
    """MODULE:NAME or FILE.py:NAME under which a new process finds a function; "" where there is none."""
    name, module = getattr(function, "__qualname__", ""), sys.modules.get(getattr(function, "__module__", None) or "")
    if not name or "<" in name or module is None:
        return ""
    place = getattr(module, "__file__", "") if module.__name__ == "__main__" else module.__name__
    return f"{place}:{name}" if place else ""


class Again:
    """The same call in another process: the words of the command that prints the hashes of its results."""

    def __init__(
        self, target: str, text: str, array: str, dtype: str, within: str, lengths: Mapping[str, int], seed: int
    ):
        self.why = (
            "" if target and text else "the function has no name that a new process can import, or no text of inputs"
        )
        if within and ":" not in within:
            self.why = "a new process needs within= as MODULE:NAME"
        self.words = [target, "--inputs", text, "--array", array, "--dtype", dtype, "--seed", str(seed), "--hashes"]
        self.words += ["--within", within] if within else []
        self.words += [w for k, v in lengths.items() for w in ("--length", f"{k}={v}")]

    def hashed(self, environment: Mapping[str, str]) -> list[Result]:
        """The hashes that a new process prints. Raises RuntimeError with what it said instead."""
        path = os.pathsep.join(p or os.getcwd() for p in sys.path)
        command = [sys.executable, "-m", "tlspec", "invariance", *self.words]
        done = subprocess.run(
            command, capture_output=True, text=True, env={**os.environ, "PYTHONPATH": path, **environment}, check=False
        )
        if done.returncode:
            raise RuntimeError((done.stderr or done.stdout).strip().rpartition("\n")[2])
        return [
            Result(name, np.array(bits, np.uint8), None)
            for name, bits in json.loads(done.stdout.strip().rpartition("\n")[2])
        ]
