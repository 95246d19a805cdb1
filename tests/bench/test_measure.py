"""The benchmark's own arithmetic: sizes that rows give, bytes, drawn data, slopes, and the summary of a run."""

import json
import math
import sys
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest.mock import MagicMock

import numpy as np
import pytest

import tlrt
from bench import __main__ as bench
from bench import core, gpu, growth, measure, results, summary
from bench.measure import Subject, Timing, draw_inputs, operand_bytes
from bench.operations import BENCHMARKS, benchmark_of
from tlrt import kernels
from tlrt._binding.handles import IndexBuffer
from tlrt._terminal import Progress
from tlrt.verify.documents import read_document
from tlspec import registry
from tlspec.drawn import refused_by, shape_of
from tlspec.registry import MATH, Op

#: bytes a test may draw
SMALL = 2**26


def test_every_row_has_sizes_or_a_reason(row: Op) -> None:
    benchmark = benchmark_of(row.name)
    text = f"bench/operations/{row.family}.py: {row.name}: write an entry with sizes, or with the reason why it is not timed"
    assert bool(benchmark.sizes) != bool(benchmark.reason), text


def test_no_entry_without_a_row() -> None:
    rows = {f: {r.name for r in registry.operations() if r.family == f} for f in registry.families()}
    assert {f: entries.keys() - rows[f] for f, entries in BENCHMARKS.items()} == {f: set() for f in rows}


@pytest.mark.only(where=lambda row: benchmark_of(row.name).sizes)
def test_sizes_are_calls_of_the_row(row: Op) -> None:
    sig = row.signature
    known = {d.lstrip("*") for d in sig.dims} | {p.name for p in sig.params} | ({"n"} if sig.elementwise else set())
    known |= {"lengths"} if sig.lists else set()
    inputs = {a.name for a in sig.inputs}
    for size in benchmark_of(row.name).sizes:
        assert set(size) <= known | inputs
        for name in set(size) & inputs:
            low, high = size[name]
            assert low < high
        names = Subject(row, size, "forward").names
        assert refused_by(row, {k: v for k, v in names.items() if k not in inputs}) is None


@pytest.mark.only(where=lambda row: benchmark_of(row.name).sizes)
def test_bytes_are_those_of_the_arrays(row: Op) -> None:
    for which in ("forward", "vjp") if row.vjp_rule is not None else ("forward",):
        for size in benchmark_of(row.name).sizes:
            subject = Subject(row, size, which)
            if subject.bytes > SMALL:
                continue
            outputs = sum(
                (8 if o.kind == "f64" else 4) * math.prod(shape_of(o, subject.names)) for o in subject.signature.outputs
            )
            assert subject.bytes == sum(x.nbytes for x in subject.inputs.values()) + outputs


def test_an_interval_is_kept() -> None:
    row = registry.get("selective_scan_diag")
    size = {"seq_len": 3, "state": 10000, "A": (-0.5, 0.25)}
    drawn = draw_inputs(row.signature, size)
    assert drawn["A"].min() >= -0.5 and drawn["A"].max() < 0.25 and np.ptp(drawn["A"]) > 0.7
    assert drawn["x"].std() == pytest.approx(1, abs=5 / math.sqrt(drawn["x"].size))
    assert "A=" not in Subject(row, size, "forward").label
    assert operand_bytes(row.signature, size) == 4 * (3 * 10000 + 2 * 30000)


@pytest.fixture
def peer_calls(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """What the calls of peers returned whose time was taken. A call takes 2 ms in the fast mode, 5 ms in the other, and a peer's
    10 ms."""
    timed: list[Any] = []

    def time_peer(call: Callable[[], Any]) -> Timing:
        timed.append(call())
        return Timing(10.0, 1.0, 1)

    monkeypatch.setattr(bench, "bandwidth", lambda device: 1e9)
    monkeypatch.setattr(bench, "time_host", time_peer)
    monkeypatch.setattr(core, "time_host", lambda call: Timing(1.0, 0.5, 1))
    monkeypatch.setattr(core, "TRANSFER", 1)
    monkeypatch.setattr(bench, "clock", lambda device: lambda call: Timing(5.0 - 3 * (device.math == "fast"), 0.5, 1))
    return timed


MATMUL, ADD = {"m": 40, "n": 700, "p": 3}, {"n": 5}


def run_bench(monkeypatch: pytest.MonkeyPatch, file: Path, math: str, ops: str = "add,matmul") -> list[dict[str, Any]]:
    """The rows that ``python -m bench`` writes, of a product and a sum at a size each."""
    chosen = {"matmul": MATMUL, "add": ADD}
    monkeypatch.setattr(
        measure, "benchmark_of", lambda name: replace(benchmark_of(name), sizes=(chosen[name],), torch_vjp=None)
    )
    assert bench.main(["--device", "cpu", "--ops", ops, "--no-torch", "--math", math, "--json", str(file)]) == 0
    rows: list[dict[str, Any]] = read_document(file)["rows"]
    return rows


@pytest.mark.parametrize("options", [[], ["--device-indices"]])
def test_indices_come_from_where_they_are_asked_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, peer_calls: list[Any], options: list[str]
) -> None:
    given = set()
    take = kernels.gather_rows

    def look(**arguments: Any) -> Any:
        given.update(type(a) for a in arguments.values() if isinstance(a, (IndexBuffer, np.ndarray)))
        return take(**arguments)

    monkeypatch.setattr(kernels, "gather_rows", look)
    monkeypatch.setattr(
        measure, "benchmark_of",
        lambda name: replace(benchmark_of(name), sizes=({"rows": 7, "cols": 3, "k": 5},), torch_vjp=None),
    )  # fmt: skip
    file = tmp_path / "bench.json"
    words = ["--device", "cpu", "--ops", "gather_rows", "--no-torch", "--json", str(file), *options]
    assert bench.main(words) == 0
    assert given == {IndexBuffer if options else np.ndarray}
    assert read_document(file)["rows"][0]["error"] == 0


@pytest.mark.parametrize("math", MATH)
def test_one_mode_is_timed_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, peer_calls: list[Any], math: str
) -> None:
    """Whatever the environment names as the mode of devices that are not told."""
    monkeypatch.setenv("TORCHLEAN_MATH", next(m for m in MATH if m != math))
    rows = run_bench(monkeypatch, tmp_path / "bench.json", math, "core,add,matmul")
    assert {r["math"] for r in rows} == {math}
    assert [(r["op"], r["ours_ms"], [*r["peers"]]) for r in rows[-2:]] == [
        (op, 2.0 if math == "fast" else 5.0, ["numpy"]) for op in ("add", "matmul")
    ]


def test_the_summary_of_a_run_has_every_row_and_both_modes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, peer_calls: list[Any]
) -> None:
    file = tmp_path / "bench.json"
    rows = run_bench(monkeypatch, file, "both")
    ((name, found),) = summary.summarise(read_document(file)).items()
    assert name == "bench-cpu" and len(found["rows"]) == len(rows)
    line = next(r for r in found["rows"] if r["op"] == "matmul" and "math" not in r)
    assert (line["size"], line["ms"], line["numpy"]) == (rows[2]["size"], 2.0, 5.0)
    defined = next(r for r in found["rows"] if r["op"] == "matmul" and r.get("math") == "reproducible")
    assert (defined["ms"], defined["fast"]) == (5.0, 0.4)
    page = "\n".join(results.bench_section(name, {**found, "commit": "a" * 40}))
    fast, _, chained = page.partition("### In the mode reproducible")
    assert "times faster than the fast mode" not in fast and "times faster than the fast mode" in chained


def test_the_script_for_gpu_machines_passes_the_mode_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    commands: list[list[str]] = []
    monkeypatch.setattr(gpu.Runner, "run", lambda self, name, command, limit: commands.append(command))
    assert gpu.main(["--out", str(tmp_path), "--steps", "bench", "--math", "both"]) == 0
    (command,) = commands
    assert command[command.index("--math") + 1] == "both"


@pytest.mark.only(
    where=lambda row: benchmark_of(row.name).torch is not None and any(o.listed for o in row.signature.outputs)
)
def test_a_peer_that_works_in_place_runs_only_when_it_is_called(row: Op, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its first result is compared with the reference's single step."""
    torch = MagicMock(__name__="replaced_torch")
    monkeypatch.setitem(sys.modules, "replaced_torch.optim.rmsprop", torch)
    call = Subject(row, {**benchmark_of(row.name).sizes[0], "lengths": [3, 2]}, "forward").torch(torch, "cpu")
    in_place = lambda: [name for name, *_ in torch.method_calls if name.endswith("_") or name == "rmsprop"]
    assert call is not None and in_place() == []
    call()
    assert len(in_place()) == len(set(in_place())) > 0


def test_what_a_step_has_started_ends_with_it(tmp_path: Path) -> None:
    child = "import os, time; print(os.getpid(), flush=True); time.sleep(60)"
    parent = f"import subprocess, sys; subprocess.run([sys.executable, '-c', {child!r}])"
    runner = gpu.Runner(tmp_path)
    pid = int(runner.run("slow", [sys.executable, "-c", parent], 3.0))
    assert runner.steps["slow"]["status"] == 124
    state = Path(f"/proc/{pid}/stat")
    for _ in range(100):  # until whoever inherited it has buried it
        if not state.exists() or state.read_text().rpartition(")")[2].split()[0] in "ZX":
            return
        time.sleep(0.05)
    raise AssertionError(f"process {pid} lives")


def test_growth_entries_are_reported() -> None:
    device = tlrt.device("cpu", new=True)
    sweep = next(s for s in growth.sweeps(False) if s.memory)
    sweep.sizes = [{**s, "n": s["n"] // 16} for s in sweep.sizes[:3]]
    entries = [*growth.run_sweep(sweep, device, Progress(3.0, "sizes"))]
    assert [e.what for e in entries] == ["time", "memory"]
    assert all(len(e.values) == 3 and min(e.values) > 0 for e in entries)
    four = [4 * 4 * s["batch"] * s["n"] * s["d"] for s in sweep.sizes]
    assert all(peak >= bytes_ for peak, bytes_ in zip(entries[1].values, four, strict=True))
    entries[0].limit, entries[1].limit = entries[0].figure - 1, None
    report = json.loads(json.dumps({"entries": [e.as_dict() for e in entries]}))
    assert [e["ok"] for e in report["entries"]] == [False, True]
    found = summary.summarise({**report, "ok": False, "device": "CPU, x", "date": "2026-01-01"})["growth-cpu"]
    assert found["verdict"] == "fail" and [r["ok"] for r in found["rows"]] == [False, True]
    device.close()
