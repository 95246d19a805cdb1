"""Verify whose work ranks share: what rank 0 reports is what one process does."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

from tests import ROOT, python_path


def launch(ranks: int, *words: str, ok: bool = True) -> str:
    command = [sys.executable, "-m", "tlrt", "launch", "-n", str(ranks), "-m", *words]
    environment = {**os.environ, "PYTHONPATH": python_path(), "TORCHLEAN_CPU_THREADS": "1"}
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=300)
    assert (done.returncode == 0) is ok, done.stdout + done.stderr
    return done.stdout + done.stderr


def results(path: Path) -> list[dict[str, Any]]:
    """The results of a verify run but for their times."""
    document = json.loads(path.read_text())
    return [{k: v for k, v in r.items() if k != "seconds"} for r in document["results"]]


def test_verify(tmp_path: Path) -> None:
    words = [
        "tlrt", "verify", "--device", "cpu", "--cases", "1", "--size", "small", "--ops", "add,exp,matmul,reduce_sum",
    ]  # fmt: skip
    found = {}
    for ranks in (1, 2):
        text = launch(ranks, *words, "--json", str(tmp_path / f"{ranks}.json"))
        found[ranks] = results(tmp_path / f"{ranks}.json")
        assert text.count("entry points pass") <= 1 and "[1] op" not in text
    assert found[1] == found[2] and len(found[1]) > 4
