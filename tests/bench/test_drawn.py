"""bench.drawn: its shapes repeat, reach every operation with a baseline, and stay within the limits."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import tlrt
from bench import drawn
from bench.__main__ import main
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


def count_numbers(result: Any) -> int:
    """The numbers in what a call returned: buffers, arrays and tensors, and tuples and lists of them."""
    if isinstance(result, (tuple, list)):
        return sum(map(count_numbers, result))
    if isinstance(result, tlrt.Buffer):
        return len(result)
    return int(np.prod(result.shape)) * (2 if "complex" in str(result.dtype) else 1)


def test_both_sides_make_as_many_numbers(monkeypatch: pytest.MonkeyPatch) -> None:
    torch = pytest.importorskip(
        "torch", "2.12", reason="2.11 has no gradients of a group norm without weights on a CPU"
    )
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
