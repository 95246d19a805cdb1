"""bench.drawn: its shapes repeat, reach every operation with a baseline, and stay within the limits."""

from pathlib import Path

import numpy as np
import pytest

import tlrt
from bench import drawn
from bench.__main__ import main
from bench.operations import benchmark_of
from tlrt.verify.documents import read_document


def test_rows_repeat_and_reach_every_operation() -> None:
    device = tlrt.device("cpu")
    choices = drawn.pairs()
    assert len(choices) > 120
    seen = set()
    for index in range(0, len(choices), 9):
        (one, _), (two, _) = (drawn.draw_subject(7, index, device) for _ in range(2))
        assert (one.op, one.which, one.names) == (two.op, two.which, two.names)
        assert drawn.SMALLEST <= one.bytes <= drawn.LARGEST[False][0] and one.flops <= drawn.LARGEST[False][1]
        seen.add((one.op.name, one.which))
    order = np.random.default_rng([7, 0]).permutation(len(choices))
    assert sorted(order) == list(range(len(choices)))
    assert len(seen) == len(range(0, len(choices), 9))


def test_dimensions_are_drawn_and_parameters_stay() -> None:
    (size,) = benchmark_of("conv_grouped").sizes[:1]
    rng = np.random.default_rng(0)
    found = [drawn.draw_size(rng, size) for _ in range(300)]
    assert all(f["kernel"] == size["kernel"] and f["stride"] == size["stride"] for f in found)
    batches = {f["batch"] for f in found}
    assert 1 in batches and max(batches) > size["batch"] and any(b % 8 == 0 for b in batches)
    assert {7, 11, 13, 17} & batches
    (size,) = benchmark_of("take_axis").sizes[:1]
    assert all(f["io"] == f["outer"] and f["ii"] == f["inner"] for f in (drawn.draw_size(rng, size) for _ in range(50)))


def test_names_narrow_the_operations() -> None:
    assert {op.family for op, _ in drawn.pairs(["conv"])} == {"conv"}
    assert {op.name for op, _ in drawn.pairs(["conv2d"])} == {"conv2d"}


def test_figures_are_those_of_the_ratios() -> None:
    assert drawn.figures([0.5, 1.0, 2.0, 4.0]) == (1.5, pytest.approx(0.575), 0.5, 0.25)


def test_the_command_writes_its_rows(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("torch")
    file = tmp_path / "d.jsonl"
    assert main(["--device", "cpu", "--drawn", "3", "--seed", "5", "--first", "2", "--json", str(file)]) == 0
    found = read_document(file)
    assert [r["index"] for r in found["rows"]] == [2, 3, 4] and found["summary"][-1]["shapes"] == 3
    assert "--drawn 1 --seed 5 --first" in capsys.readouterr().out


def test_without_pytorch_it_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(drawn, "import_torch", lambda device: None)
    with pytest.raises(SystemExit, match="PyTorch is not installed"):
        drawn.run(tlrt.device("cpu"), 0, 0, 1)
