"""``python -m tlrt`` and its doctor."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

import tlrt
from tlrt import __main__ as command
from tlrt import doctor

ROOT = Path(__file__).resolve().parents[2]


def test_usable(capsys):
    assert command.main(["doctor"]) == 0
    text = capsys.readouterr().out
    for word in ("python", "library", "abi", "matches", "backend", "cpu variant", "threads", "device cpu"):
        assert word in text
    assert text.rstrip().splitlines()[-1] == f"usable: yes, on {', '.join(tlrt.devices())}"


def test_json(capsys):
    assert doctor.main(["--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["usable"] is True
    assert list(found["devices"]) == list(tlrt.devices())
    assert found["problems"] == []
    assert found["version"] == tlrt.__version__
    assert len(tlrt.devices()) > 1 or found["notes"][0]["remedy"]


@pytest.mark.parametrize("options", [[], ["--json"]])
def test_missing_library(python, options):
    done = python(
        f"import sys; from tlrt.doctor import main; sys.exit(main({options!r}))", TORCHLEAN_CUDA_LIBRARY="/no.so"
    )
    assert done.returncode == 1
    assert done.stderr == ""
    if options:
        found = json.loads(done.stdout)
        assert found["usable"] is False
        assert "make" in found["problems"][0]["remedy"]
    else:
        assert "/no.so: no such file" in done.stdout
        assert "do: " in done.stdout
        assert done.stdout.endswith("usable: no\n")


def test_commands(capsys):
    with pytest.raises(SystemExit) as stop:
        command.main([])
    assert stop.value.code == 2
    with pytest.raises(SystemExit) as stop:
        command.main(["--help"])
    assert stop.value.code == 0
    assert "doctor" in capsys.readouterr().out
    done = subprocess.run([sys.executable, "-m", "tlrt", "frob"], cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 2
    assert "frob" in done.stderr
