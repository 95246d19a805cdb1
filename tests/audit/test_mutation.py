"""The list of planted defects of the mutation campaign: each still fits the sources."""

import subprocess
import sys

from tests import ROOT


def mutate(*words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "audit", "mutate", *words], cwd=ROOT, capture_output=True, text=True, check=False
    )


def test_every_defects_text_is_there_once():
    done = mutate("--check")
    assert done.returncode == 0, done.stdout + done.stderr


def test_there_are_enough_in_every_layer():
    lines = mutate("--list").stdout.splitlines()
    assert len(lines) >= 60
    assert {line.split()[1].split("/")[0] for line in lines} == {"native", "tlspec", "tlrt"}
