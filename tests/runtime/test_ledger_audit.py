"""Audits: what departs from a ledger is named with its step, whether data, hyperparameters, bits in memory or in a file."""

import re
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.testing import assert_raises_regex

from tests import DEVICES
from tests.runtime.ledger_runs import (
    EVERY,
    Training,
    change_batch,
    change_label,
    change_lr,
    check,
    draw,
    each_kind,
    first,
    flip_state,
    flip_weight,
    found,
    rewrite,
    train,
)
from tlrt import Session, ledger, optim
from tlrt.audit import _SHOWN, Departure, Report, _notes, audit, main


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "run.jsonl"


@each_kind
@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize(
    ("plant", "kind_of_departure", "name"),
    [(change_lr, "hyperparameter", r"\w+\.lr of update 0"), (change_batch, "input", "0: .+"), (change_label, "input", "1: .+"),
     (flip_weight, "parameter", "layer.weight"), (flip_state, "parameter|state", "layer.weight|./.+/layer.weight"),
     (draw, "random", "draws after")],
)  # fmt: skip
def test_a_change_is_named(
    kind: str, device: str, plant: Any, kind_of_departure: str, name: str, path: Path
) -> None:  # fmt: skip
    """Planted in the run, and in the audit of a run without it: what a run was not, its ledger tells."""
    for in_run in (True, False):
        place = path.with_name(f"{in_run}.jsonl")
        train(place, kind, plant if in_run else None, device=device)
        report = check(place, kind, None if in_run else plant)
        assert {d.step for d in report.departures} == {5} and report.stop == 6, str(report)
        assert re.fullmatch(kind_of_departure, first(report).kind) and re.fullmatch(name, first(report).name)
        assert "first departure: step 5: " in str(report)


def test_the_reason_is_said(path: Path) -> None:
    for i, (plant, reason) in enumerate(
        [(change_lr, "the optimiser was set otherwise"), (change_batch, "other data went in"),
         (draw, "other random numbers were drawn"), (flip_weight, "what went in is the same, and other bits came out")]
    ):  # fmt: skip
        place = path.with_name(f"{i}.jsonl")
        train(place, plant=plant)
        assert reason in str(check(place))


def test_another_seed_is_named(path: Path) -> None:
    """Of a session, whose initial parameters are others; and of a run that says the seed of another."""

    def claim(entries: list[dict[str, Any]]) -> None:
        for entry in entries:
            if "seed" in entry:
                entry["seed"] = 8
            if "random" in entry:
                entry["random"]["seed"] = 8

    train(path)
    rewrite(path, claim)
    report = check(path)
    assert first(report) == Departure(None, "parameter", "layer.weight", *(first(report).recorded, first(report).found))
    path.unlink()
    train(path, plant=lambda k, s, *_: setattr(s, "seed", 3 if k < 5 else 4))
    assert first(check(path)).step == 5 and (5, "random", "seed") in found(check(path))


@each_kind
@pytest.mark.parametrize("name", ["layer.weight", "scale", "state"])
def test_a_bit_of_a_checkpoint_is_named(kind: str, name: str, path: Path) -> None:
    from safetensors.numpy import load_file

    train(path, kind)
    file = path.with_suffix(".checkpoints") / "step-8.safetensors"
    tensors = load_file(file)
    wanted = next(n for n in tensors if n.startswith("optimizer/")) if name == "state" else name
    content = file.read_bytes()
    place = content.index(tensors[wanted].tobytes())
    file.write_bytes(content[:place] + bytes([content[place] ^ 1]) + content[place + 1 :])
    other = file.with_name("step-4.safetensors")
    for steps, there in (((None, None), True), ((None, None), False), ((7, 9), True), ((9, 10), True)):
        gone = other if there else other.rename(path.with_name("gone"))
        report = check(path, kind, steps=steps)
        gone.rename(other)
        assert found(report) == {
            (7, "checkpoint", "run.checkpoints/step-8.safetensors"),
            (7, "state" if name == "state" else "parameter", wanted.removeprefix("optimizer/")),
        }
    assert check(path, kind, steps=(1, 6)).ok, "it is not needed there"
    file.write_bytes(content[: len(content) // 2])
    assert [d.kind for d in check(path, kind).departures] == ["checkpoint", "checkpoint"]
    file.unlink()
    report = check(path, kind, steps=(9, 10))
    assert report.ok and report.first == 4, "the one before serves"


@pytest.mark.parametrize("start", [0, 2])
@pytest.mark.parametrize("kept", ["all", "the later ones", "none"])
def test_an_audit_begins_where_the_state_is_known(kept: str, start: int, path: Path) -> None:
    """At the program's own start, or at a checkpoint: of a run that went on from another there may be none."""
    train(path, first=start, checkpoint_every=0 if kept == "none" else EVERY)
    if kept == "the later ones":
        path.with_suffix(".checkpoints").joinpath(f"step-{start}.safetensors").unlink(missing_ok=True)
    if start and kept != "all":
        assert_raises_regex(ledger.LedgerError, "a checkpoint that is there", check, path)
    else:
        report = check(path)
        assert report.ok and report.first == start


# ---- operations


def test_the_first_operation_that_departs_is_named(path: Path) -> None:
    """One bit, in the middle of the forward pass, and in the backward pass."""

    def program(s: Session, bad: str = "") -> None:
        w = s.param(np.linspace(-1, 1, 4), "w")
        optimizer = optim.SGD([w], lr=0.1)
        with ledger.record(path, s, optimizer, operations=3) as run:
            for k in run.steps(8):
                h = s.scale((w * s.rand_normal(4)).tanh(), 1.0000001 if k == 6 and bad == "forward" else 1.0)
                factor = 0.5000001 if k == 6 and bad == "backward" else 0.5
                s.backward(s.sum(h.exp().reshape((2, 2))), np.float32(factor))
                optimizer.step()
                s.reset()

    with Session("cpu", seed=1) as s:
        program(s)
    steps = ledger.read(path).steps
    assert [k for k, e in steps.items() if "operations" in e] == [0, 3, 6]
    names = [name for name, _ in steps[6]["operations"]]
    assert [n.split(", ")[1] for n in names if n.startswith("node")] == [
        "rand_normal", "mul", "tanh", "scale", "exp", "reduce_sum",
    ]  # fmt: skip
    assert names[-1] == "gradient of w" and names[6].startswith("cotangent of node")
    assert audit(program, path).ok
    for bad, name in (("forward", "scale"), ("backward", "cotangent of node 8, reduce_sum")):
        report = audit(partial(program, bad=bad), path)
        (operation,) = [d for d in report.departures if d.kind == "operation"]
        assert operation.step == 6 and operation.name.endswith(name)


@pytest.mark.parametrize("device", DEVICES)
def test_devices_are_compared_operation_by_operation(device: str, path: Path) -> None:
    """Another device that gives the same bits says that it does, and one that does not says where."""
    train(path, plant=flip_weight)
    report = check(path, against=device)
    said = rf"step 5 on cpu and {device}\b.*: \d\d results of operations, with the same bits"
    assert re.search(said, report.notes[-1])
    captured = path.with_name("captured.jsonl")
    train(captured, "captured", flip_weight)
    (*_, note) = check(captured, "captured", against=device).notes
    assert note.endswith("no operation was recorded, as in a captured step")
    sessions: list[Session] = []

    def second_differs(k: int, s: Session, optimizer: Any, x: Any, labels: Any) -> None:
        if s not in sessions:
            sessions.append(s)
        if k == 5 and len(sessions) == 3:
            s.parameters["scale"].set([1.0, 1.0, 1.0000001])

    report = check(path, plant=second_differs, against=device)
    assert re.search(r"node \d+, \w+ is the first operation with other bits", report.notes[-1])


def test_a_program_of_fewer_steps(path: Path) -> None:
    train(path)
    short = Training(path)
    short.total = 7
    report = audit(short, path)
    assert found(report) == {(7, "program", "steps")}


def test_what_an_audit_says_beside_its_table(path: Path) -> None:
    many = Report(str(path), "", "cpu", departures=[Departure(1, "state", str(i), "a", "b") for i in range(_SHOWN + 2)])
    assert str(many).endswith("\nand 2 more")
    for kind, reason in (("chain", "the file is not what was written"), ("checkpoint", "a checkpoint is not what was written"),
                         ("program", "the program is another one"), ("update", "the optimiser was set otherwise")):  # fmt: skip
        report = Report("", "", "cpu", departures=[Departure(None, kind, ""), Departure(None, "state", "")])
        assert f"first departure: before the steps: {reason}\n" in str(report)
    with Session("cpu", seed=3, math="fast") as s:
        Training(path)(s)
    chain = ledger.read(path)
    said = "note: the run was in the mode 'fast', in which cpu and cuda:0 may round differently"
    assert list(_notes(chain, "cuda:0")) == [said] and list(_notes(chain, "cpu")) == []
    path.with_suffix(".checkpoints").joinpath("step-4.safetensors").unlink()
    assert check(path).ok, "a later step's file that is gone is none to compare"
    rewrite(path, lambda entries: entries.__delitem__(slice(2, None)))
    assert_raises_regex(ledger.LedgerError, "got a ledger without a step, expected at least one", check, path)


def test_progress_is_shown_when_it_takes_a_while(
    path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:  # fmt: skip
    train(path)
    assert check(path).ok and capsys.readouterr().err == ""
    monkeypatch.setattr("tlrt.audit._PATIENCE", 0.0)
    assert check(path, steps=(6, None)).ok
    assert re.search(r"100\.0 %  .* steps/s  0:00 left  step 11\n$", capsys.readouterr().err)


# ---- the command

PROGRAM = """
import numpy as np
from tlrt import ledger, optim

def program(s, settings):
    w = s.param(np.ones(3), "w")
    optimizer = optim.SGD([w], lr=settings["lr"])
    with ledger.record("run.jsonl", s, optimizer, checkpoint_every=2, settings=settings) as run:
        for k in run.steps(5):
            s.backward(s.sum(w * s.const([k, 1.0, 2.0])))
            optimizer.step()
            s.reset()
"""


def test_the_command(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    Path("audited_program.py").write_text(PROGRAM)
    import audited_program  # type: ignore[import-not-found]

    with Session("cpu", seed=1) as s:
        audited_program.program(s, {"lr": 0.5})
    for source in ("audited_program.py:program", "audited_program:program"):
        assert main([source, "run.jsonl", "--steps", "2:4"]) == 0
        assert "computed again on cpu: steps 2 to 3\nevery bit is as recorded" in capsys.readouterr().out
    Path("audited_program.py").write_text(PROGRAM.replace("[k, 1.0", "[k, 1.0 + (k == 3)"))
    assert main(["audited_program.py:program", "run.jsonl"]) == 1
    out = capsys.readouterr().out
    monkeypatch.setattr("tlrt.context.devices", lambda: ("cpu", "cuda:1"))
    assert main(["audited_program.py:program", "run.jsonl"]) == 1
    assert "add --against cuda:1 to compute the step on both devices" in capsys.readouterr().out
    assert "first departure: step 3: other data went in" in out
    assert re.search(r"input +0: upload of 3 +\w{16}… +\w{16}…", out)
    for wrong in ("audited_program.py:nothing run.jsonl", "no_module:program run.jsonl", "missing.py:p run.jsonl",
                  "audited_program.py:program none", "audited_program.py:program run.jsonl --steps 2"):  # fmt: skip
        assert main(wrong.split()) == 2 and capsys.readouterr().err.startswith("tlrt audit: ")
