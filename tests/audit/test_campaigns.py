"""Determinism and false alarms, CI-sized, and the defects that each must see."""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import tlrt
from audit import alarms, command, determinism
from audit.determinism import BATCH, Determinism
from audit.work import run_in_threads
from tlrt import kernels
from tlspec import registry

DEVICES = ["cpu", pytest.param("cuda", marks=pytest.mark.cuda)]
SOME = "reduce_sum,softmax,layer_norm,linear,conv2d,selective_scan_diag,scatter_add_rows,exp,bmm,max_pool"


def named(device: str) -> str:
    if device not in {d.partition(":")[0] for d in tlrt.devices()}:
        pytest.skip("no CUDA device on this machine")
    return tlrt.device(device).name


def test_work_is_shared_out_until_something_fails() -> None:
    done: list[int] = []
    run_in_threads(range(100), 3, lambda: nullcontext(done.append))
    assert sorted(done) == list(range(100))
    run_in_threads(range(100), 3, lambda: nullcontext(done.append), 0.0)
    assert len(done) == 100

    def fails(item: int) -> None:
        done.append(item)
        if item == 3:
            raise KeyError(item)

    with pytest.raises(KeyError):
        run_in_threads(range(10**6), 3, lambda: nullcontext(fails))
    assert len(done) < 10**6


class Spoilt:
    """The kernels with one function whose result `defect` changes; it gets the number of the call and the keywords."""

    def __init__(self, name: str, defect: Callable[[np.ndarray, int, dict[str, Any]], None]):
        self.name, self.defect, self.calls = name, defect, 0

    def __getattr__(self, name: str) -> Any:
        original = getattr(kernels, name)
        if name != self.name:
            return original

        def wrong(*buffers: Any, out: Any = None, **keywords: Any) -> Any:
            self.calls += 1
            with original(*buffers, **keywords) as right:
                y = right.numpy()
                if y.size:
                    self.defect(y, self.calls, keywords)
                return tlrt.Buffer.from_numpy(y, right.device)

        return wrong


@pytest.mark.parametrize("device", DEVICES)
def test_results_keep_their_bits(device: str) -> None:
    run = Determinism([named(device)], 3)
    run.run(SOME)
    assert [r for r in run.rows if r["verdict"] != "pass"] == []
    assert {r["entry"] for r in run.rows} >= {"reduce_sum", "softmax_bwd", "linear_bwd", "conv2d"}
    by_name = {r["entry"]: r for r in run.rows}
    assert by_name["softmax"]["batches"] > 0 and by_name["reduce_sum"]["batches"] is None
    assert all(r["repeats"] and r["reused"] and r["trims"] for r in run.rows)
    if device == "cpu":
        assert all(r["threads"] and r["variants"] for r in run.rows)
    json.dumps(run.document())


def test_every_batched_row_is_known() -> None:
    rows = {r.name: r for r in registry.ops()}
    assert set(BATCH) <= set(rows)
    for name, (dim, _) in BATCH.items():
        arrays = (*rows[name].signature.inputs, *rows[name].signature.outputs)
        assert any(dim in a.dims for a in arrays), name
    # an operation with a dimension called batch is batched
    assert [r.name for r in rows.values() if "batch" in r.signature.dims and r.name not in BATCH] == []


def test_a_result_that_changes_is_found() -> None:
    def sometimes(y: np.ndarray, call: int, _: dict[str, Any]) -> None:
        if call % 5 == 0:
            y.view(np.uint32)[0] ^= 1

    run = Determinism(["cpu"], 10, kernels=Spoilt("exp", sometimes))
    run.run("exp")
    row = next(r for r in run.rows if r["entry"] == "exp")
    assert row["verdict"] == "fail" and any("repeats" in f for f in row["failures"])
    assert "FAIL exp" in determinism.table(run.document())


def test_a_row_that_depends_on_its_batch_is_found() -> None:
    def by_size(y: np.ndarray, _: int, keywords: dict[str, Any]) -> None:
        if keywords["rows"] == 1:
            y.view(np.uint32)[-1] ^= 1

    run = Determinism(["cpu"], 1, kernels=Spoilt("softmax", by_size))
    run.run("softmax")
    row = next(r for r in run.rows if r["entry"] == "softmax")
    assert row["verdict"] == "fail" and row["failures"][0].startswith("batch")


@pytest.mark.parametrize("device", DEVICES)
def test_no_false_alarm(device: str) -> None:
    document = alarms.alarms([named(device)], 400, workers=0)
    (total,) = document["totals"].values()
    assert total["alarms"] == 0 and total["comparisons"] >= 400
    assert alarms.ok(document)
    exact = next(r for r in document["entries"] if r["entry"] == "add")
    ulps = next(r for r in document["entries"] if r["entry"] == "exp")
    assert sum(exact["histogram"]) == exact["measured"] == 0
    assert sum(ulps["histogram"]) == ulps["measured"] > 0 and ulps["worst"] > 0.1


def test_an_alarm_is_counted_with_its_line() -> None:
    def off(y: np.ndarray, *_: Any) -> None:
        y *= np.float32(1 + 2.0**-20)

    document = alarms.alarms(["cpu"], 40, "exp", workers=0, kernels=Spoilt("exp", off))
    row = next(r for r in document["entries"] if r["entry"] == "exp")
    assert row["alarms"] > 0 and not alarms.ok(document)
    assert "python -m tlrt verify --ops exp" in row["alarm_lines"][0]
    assert "FAIL exp" in alarms.table(document)


def test_a_loose_bound_is_listed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(alarms, "LOOSE", 2.0)
    document = alarms.alarms(["cpu"], 20, "exp", workers=0)
    assert [r["entry"] for r in document["loose"]] == ["exp"]
    assert "loose: exp on cpu" in alarms.table(document)


def test_work_in_processes_and_the_command(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "campaign.json"
    chosen = ["--ops", "exp,softmax", "--device", "cpu", "--workers", "2", "--json", str(out)]
    assert command.main(["determinism", "alarms", "--comparisons", "60", "--repeats", "2", *chosen]) == 0
    text = capsys.readouterr().out
    assert "== determinism ==" in text and "0 alarms" in text
    document = json.loads(out.read_text())
    assert document["alarms"]["totals"]["cpu"]["comparisons"] >= 60
    assert document["determinism"]["verdict"] == "pass"


def test_the_hostile_part_goes_to_every_device_and_from_several_threads(monkeypatch):
    runs = []

    def calls(count, **how):
        runs.append(
            (
                count,
                how.get("device", -1),
                how.get("sanitize", "address,undefined"),
                how.get("threads", 1),
                how.get("shared", False),
            )
        )
        failures = [{"again": "x", "status": 1, "said": ""}] if len(runs) == 5 else []
        return {
            "failures": failures,
            "entries": {},
            "calls": count,
            "accepted": 0,
            "seconds": 0.0,
            "slowest": {"seconds": 0.0},
        }

    monkeypatch.setattr(command.hostile, "calls", calls)
    monkeypatch.setattr(
        command.checkpoint_files,
        "try_damaged",
        lambda files: {"files": files, "refused": files, "loaded": 0, "failures": []},
    )
    args = argparse.Namespace(calls=1000, files=7, workers=1)
    outcome = command._hostile(args, ["cpu", "cuda:1"])
    assert runs == [
        (1000, -1, "address,undefined", 1, False), (20, -1, "thread", 8, False), (20, -1, "thread", 8, True),
        (100, 1, "", 1, False), (20, 1, "", 8, False), (20, 1, "", 8, True),
    ]  # fmt: skip
    documents = outcome.document
    assert not outcome.ok and [d["verdict"] for d in documents] == ["pass"] * 4 + ["fail", "pass"]
    assert "FAIL x" in outcome.table
    assert [d.get("checkpoints", {}).get("files") for d in documents] == [7, None, None, None, None, None]
