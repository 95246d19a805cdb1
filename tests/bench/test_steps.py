"""bench.steps: its rows, its file, and that it leaves nothing on the device."""

import gc
import json
from pathlib import Path

import pytest
from numpy.testing import assert_raises

import tlrt
from bench import steps


def test_a_run_writes_its_rows(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    gc.collect()  # what tests before this one left on the shared device
    before = tlrt.device("cpu").memory().live_buffers
    file = tmp_path / "steps.json"
    words = ["--device", "cpu", "--steps", "mlp,conv", "--budget", "0", "--no-torch", "--json", str(file)]
    assert steps.main(words) == 0
    rows = json.loads(file.read_text())["rows"]
    assert [r["step"] for r in rows] == ["MLP", "MLP captured", "conv net", "conv net captured"]
    assert all(r["ours_ms"] > 0 and r["torch_ms"] is None and len(r["losses"]) == 1 for r in rows)
    assert all(r["driver_allocations"] == 0 for r in rows), "a warm step asked the operating system for memory"
    assert "64-64-64-1" in capsys.readouterr().out and tlrt.device("cpu").memory().live_buffers == before


def test_unknown_steps_are_refused(capsys: pytest.CaptureFixture[str]) -> None:
    assert_raises(SystemExit, steps.main, ["--device", "cpu", "--steps", "mpl"])
    assert "no step mpl" in capsys.readouterr().err
