"""The determinism campaign at the size of a test run, the defects that it must report, and the command of both campaigns."""

from __future__ import annotations

import itertools
import json
from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.testing import assert_raises

import tlrt
from audit import command
from audit.determinism import BATCH, Determinism
from audit.work import run_in_threads
from tests import DEVICES, into
from tests.audit.replaced import Replaced
from tlrt import kernels
from tlspec import registry

SOME = "reduce_sum,softmax,linear,conv_grouped,scatter_add_rows"


def test_work_is_shared_out_until_something_fails() -> None:
    done: list[int] = []
    run_in_threads(range(100), 3, lambda: nullcontext(done.append))
    assert sorted(done) == list(range(100))

    def fails(item: int) -> None:
        done.append(item)
        if item == 3:
            raise KeyError(item)

    assert_raises(KeyError, run_in_threads, range(10**6), 3, lambda: nullcontext(fails))
    assert len(done) < 10**6


def spoil(name: str, defect: Callable[[np.ndarray, int, dict[str, Any]], None]) -> Replaced:
    """The kernels with one function whose result `defect` changes; it gets the number of the call and the keywords."""
    numbers = itertools.count(1)

    def wrong(*buffers: Any, out: Any = None, **keywords: Any) -> Any:
        number = next(numbers)
        with getattr(kernels, name)(*buffers, **keywords) as right:
            y = right.numpy()
            if y.size:
                defect(y, number, keywords)
            return into(out, y, right.device)

    return Replaced(name, wrong)


@pytest.mark.parametrize("device", DEVICES)
def test_what_is_defined_keeps_its_bits_in_any_batch(device: str) -> None:
    campaign = Determinism([device], 2, math="reproducible")
    campaign.run("matmul,conv_grouped")
    assert campaign.ok and campaign.document()["math"] == "reproducible"
    assert {r["batch"] for r in campaign.rows} == {"same bits"} and len(campaign.rows) == 4


@pytest.mark.parametrize("device", DEVICES)
def test_results_keep_their_bits(device: str) -> None:
    run = Determinism([tlrt.device(device).name], 2)
    run.run(SOME)
    assert [r for r in run.rows if r["verdict"] != "pass"] == []
    assert {r["entry"] for r in run.rows} >= {"reduce_sum", "softmax_bwd", "linear_bwd", "conv_grouped"}
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
    # an operation with an input that has a dimension called batch is batched
    batched = [r.name for r in rows.values() if any("batch" in a.dims for a in r.signature.inputs)]
    assert batched and [name for name in batched if name not in BATCH] == []


def test_a_result_that_changes_is_found() -> None:
    def sometimes(y: np.ndarray, call: int, _: dict[str, Any]) -> None:
        if call % 5 == 0:
            y.view(np.uint32)[0] ^= 1

    run = Determinism(["cpu"], 10, kernels=spoil("exp", sometimes))
    run.run("exp")
    row = next(r for r in run.rows if r["entry"] == "exp")
    assert row["verdict"] == "fail" and any("repeats" in f for f in row["failures"])
    assert run.ok is False


def test_a_row_that_depends_on_its_batch_is_found() -> None:
    def by_size(y: np.ndarray, _: int, keywords: dict[str, Any]) -> None:
        if keywords["rows"] == 1:
            y.view(np.uint32)[-1] ^= 1

    run = Determinism(["cpu"], 1, kernels=spoil("softmax", by_size))
    run.run("softmax")
    row = next(r for r in run.rows if r["entry"] == "softmax")
    assert row["verdict"] == "fail" and row["failures"][0].startswith("batch")


def test_work_in_processes_and_the_command(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "campaign.json"
    chosen = ["--ops", "exp,softmax", "--device", "cpu", "--workers", "2", "--json", str(out)]
    assert command.main(["determinism", "--repeats", "2", *chosen]) == 0
    assert "== determinism ==" in capsys.readouterr().out
    assert json.loads(out.read_text())["determinism"]["verdict"] == "pass"
