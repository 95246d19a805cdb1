"""bench.drawn: its shapes repeat, reach every operation with a baseline, and stay within the limits."""

from collections.abc import Callable
from itertools import islice
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import MagicMock

import numpy as np
import pytest

import tlrt
from bench import drawn
from bench.__main__ import main
from bench.measure import Timing
from bench.operations import benchmark_of
from tlrt.verify.documents import read_document
from tlspec import registry


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


def test_named_operations_leave_the_other_rows_out_and_change_none() -> None:
    found = list(islice(drawn.rows_of(7, 20, ["index", "softmax"]), 12))
    assert found == sorted(found) and found[0] >= 20
    device = tlrt.device("cpu")
    assert {drawn.draw_subject(7, i, device)[0].op.family for i in found} == {"index", "softmax"}
    with pytest.raises(SystemExit, match="baseline"):
        drawn.rows_of(7, 0, ["fingerprint"])


def test_the_sides_take_turns_and_the_ratio_is_that_of_a_turn() -> None:
    calls: list[str] = []
    load = iter([1.0, 10.0, 1.0, 1.0, 100.0])  # of the machine, in each turn

    def clock(call: Callable[[], Any]) -> Timing:
        call()
        clock.load = next(load) if calls[-1] == "ours" else clock.load  # type: ignore[attr-defined]
        return Timing(clock.load * (2.0 if calls[-1] == "ours" else 3.0), 0.0, 1)  # type: ignore[attr-defined]

    found = drawn.compare(lambda: calls.append("ours"), lambda: calls.append("theirs"), [clock, clock], 5)
    assert calls == ["ours", "theirs"] * 5
    assert found == (2.0, 3.0, 1.5)


def test_the_command_writes_its_rows(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("torch")
    file = tmp_path / "d.jsonl"
    command = ["--device", "cpu", "--drawn", "3", "--seed", "5", "--json", str(file)]
    assert main([*command, "--first", "2"]) == 0
    found = read_document(file)
    assert [r["index"] for r in found["rows"]] == [2, 3, 4] and found["summary"][-1]["shapes"] == 3
    assert "--drawn 1 --seed 5 --first" in capsys.readouterr().out
    assert main([*command, "--ops", "softmax"]) == 0
    assert {r["family"] for r in read_document(file)["rows"]} == {"softmax"}


def test_a_row_that_fails_and_an_interruption_keep_the_others(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    row = drawn.DrawnRow(0, "exp", "elementwise", "n=3", 1.0, 2.0, 2.0, 24)
    results: list[Any] = [row, ValueError("no"), row, KeyboardInterrupt()]

    def measure_row(device: tlrt.Device, torch: Any, seed: int, index: int) -> Any:
        if isinstance(result := results[index], BaseException):
            raise result
        return result

    monkeypatch.setattr(drawn, "import_torch", lambda device: MagicMock(__version__="0"))
    monkeypatch.setattr(drawn, "measure_row", measure_row)
    found = drawn.run(tlrt.device("cpu"), 0, 0, 4)
    assert len(found["rows"]) == 2 and found["failed"] == ["row 1: ValueError: no"]
    told = capsys.readouterr()
    assert "FAILED row 1" in told.out and "interrupted after 2 rows" in told.err


def test_a_shape_that_pytorch_takes_too_long_for_has_no_peer(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    seconds, taken = [0.0], iter([0.9, 2.0, 2.0, 2.0, 0.9])  # quick; slow; slow the first time

    class Drawn:
        op, which, label, bytes, torch_bytes = registry.ops(["exp"])[0], "forward", "n=3", 24, 0.0

        def torch(self, torch: Any, place: str) -> Callable[[], Any]:
            return lambda: seconds.append(seconds[-1] + next(taken))

    monkeypatch.setattr(drawn, "time", SimpleNamespace(perf_counter=lambda: seconds[-1]))
    monkeypatch.setattr(drawn, "draw_subject", lambda *_: (Drawn(), lambda: None))
    monkeypatch.setattr(drawn, "compare", lambda *_: (1.0, 2.0, 2.0))
    monkeypatch.setattr(drawn, "import_torch", lambda device: MagicMock(__version__="0"))
    found = drawn.run(tlrt.device("cpu"), 0, 0, 3)
    assert [r["index"] for r in found["rows"]] == [0, 2] and found["failed"] == []
    assert found["without_peer"] == ["row 1: exp n=3: a call of PyTorch's takes 2.0 s, more than 1 s"]
    assert "without a peer: row 1" in capsys.readouterr().out


def count_numbers(result: Any) -> int:
    """The numbers in what a call returned: buffers, arrays and tensors, and tuples and lists of them."""
    if isinstance(result, (tuple, list)):
        return sum(map(count_numbers, result))
    if isinstance(result, tlrt.Buffer):
        return len(result)
    return int(np.prod(result.shape)) * (2 if "complex" in str(result.dtype) else 1)


def test_both_sides_make_as_many_numbers(monkeypatch: pytest.MonkeyPatch) -> None:
    torch = pytest.importorskip("torch")
    monkeypatch.setattr(drawn, "LARGEST", {False: (1e6, 1e8)})
    device, wrong = tlrt.device("cpu"), {}
    for index in range(len(drawn.pairs())):
        subject, ours = drawn.draw_subject(17, index, device)
        theirs = subject.torch(torch, "cpu")
        assert theirs is not None
        made = count_numbers(ours()), count_numbers(theirs())
        if made[0] != made[1]:
            wrong[subject.op.entry(subject.which)] = subject.label, made
        device.collect()
    assert not wrong
