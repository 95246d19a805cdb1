"""Verify and campaigns whose work ranks share: what rank 0 reports is what one process does."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from audit import alarms, determinism, exhaustive, pairs
from tests import ROOT, python_path
from tests.runtime.thread_group import ThreadGroup, run_ranks


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
        "tlrt",
        "verify",
        "--device",
        "cpu",
        "--cases",
        "1",
        "--size",
        "small",
        "--ops",
        "add,exp,matmul,reduce_sum",
    ]
    found = {}
    for ranks in (1, 2):
        text = launch(ranks, *words, "--json", str(tmp_path / f"{ranks}.json"))
        found[ranks] = results(tmp_path / f"{ranks}.json")
        assert text.count("entry points pass") <= 1 and "[1] op" not in text
    assert found[1] == found[2] and len(found[1]) > 4


def test_one_operation_leaves_ranks_without_work(tmp_path: Path) -> None:
    words = ["tlrt", "verify", "--device", "cpu", "--cases", "1", "--size", "small", "--ops", "exp"]
    launch(4, *words, "--json", str(tmp_path / "4.json"))
    assert {r["entry"] for r in results(tmp_path / "4.json")} == {"exp", "exp_bwd"}


def test_the_status_is_that_of_one_process() -> None:
    text = launch(2, "tlrt", "verify", "--device", "cpu", "--ops", "no_such_operation", ok=False)
    assert "no_such_operation" in text
    text = launch(2, "audit", "soak", "--short", "--device", "cpu", ok=False)
    assert "soak: got 2 ranks, expected 1" in text


def without_times(document: Any) -> Any:
    if isinstance(document, dict):
        return {k: without_times(v) for k, v in document.items() if k not in ("seconds", "started")}
    return [without_times(v) for v in document] if isinstance(document, list) else document


@pytest.mark.parametrize("size", [2, 4])
def test_exhaustive_shares_inputs(size: int, tmp_path: Path) -> None:
    chosen = exhaustive.entries("sqrt,abs", gradients=False)
    common: dict[str, Any] = {"stride": 65_537, "chunk": 8192, "workers": 1}
    alone = exhaustive.Exhaustive(["cpu"], chosen, **common)
    alone.run()
    state = tmp_path / "state.json"

    def work(group: ThreadGroup, **more: Any) -> Any:
        run = exhaustive.Exhaustive(["cpu"], chosen, group=group, state=state, **common, **more)
        run.run()
        return run.document()

    first = run_ranks(size, lambda group: work(group, budget=0.0))  # nothing begins
    assert all(f["verdict"] == "incomplete" for f in first[0]["functions"])
    (tmp_path / "state.json.rank1").write_text(state.read_text())  # as a rank leaves it that was killed
    for document in run_ranks(size, work):
        assert without_times(document) == without_times(alone.document())
    assert [p.name for p in tmp_path.iterdir()] == ["state.json"]


def test_pairs_alarms_and_determinism() -> None:
    def work_pairs(group: ThreadGroup | None = None) -> Any:
        run = pairs.Pairs(["cpu"], ["add", "mul"], 5000, workers=1, chunk=1000, values=pairs.structured()[:40])
        run.run(group)
        return run.document()

    def work_alarms(group: ThreadGroup | None = None) -> Any:
        return alarms.alarms(["cpu"], 200, "add,exp,softmax", workers=0, group=group)

    def work_determinism(group: ThreadGroup | None = None) -> Any:
        run = determinism.Determinism(["cpu"], 2)
        run.run("add,exp", group)
        return run.document()

    for work in (work_pairs, work_alarms):
        assert run_ranks(2, work) == [work()] * 2
    alone = work_determinism()
    # one after the other: the number of threads, which this campaign changes, is the process's
    assert {r["entry"] for r in alone["entries"]} == {"add", "add_bwd", "exp", "exp_bwd"}
    text = launch(2, "audit", "determinism", "--repeats", "2", "--device", "cpu", "--ops", "add,exp")
    assert "nothing failed: determinism on cpu" in text and text.count("same bits") == 4
