"""The benchmark's own arithmetic: sizes that rows give, bytes, drawn data, slopes, and the summary of a run."""

import math
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from bench import __main__ as bench
from bench import core, measure, results, summary
from bench.measure import Subject, Timing
from bench.operations import benchmark_of
from tlrt.verify.documents import read_document
from tlspec.drawn import refused_by, shape_of
from tlspec.registry import Op

#: bytes a test may draw
SMALL = 2**26


def test_every_row_has_sizes_or_a_reason(row: Op) -> None:
    benchmark = benchmark_of(row.name)
    text = f"bench/operations/{row.family}.py: {row.name}: write an entry with sizes, or with the reason why it is not timed"
    assert bool(benchmark.sizes) != bool(benchmark.reason), text


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
