"""Ledgers and audits: a run's ledger is what the audit computes, on any device, and a planted change is named with its step."""

import json
import re
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.testing import assert_raises, assert_raises_regex

from tests import DEVICES
from tlrt import Session, checkpoint, errors, kernels, ledger, nn, optim
from tlrt import device as open_device
from tlrt._binding import handles
from tlrt._capture.calls import uploader
from tlrt.audit import Departure, Report, audit, main

pytest.importorskip("safetensors")

STEPS = 12
EVERY = 4
KINDS = ("eager", "captured", "groups")
each_kind = pytest.mark.parametrize("kind", KINDS)


class Training:
    """A small model, trained by a ledger's steps. `plant` is called at the begin of each step with what the step works on, as
    `at` says, and may change it."""

    def __init__(
        self, path: Path, kind: str = "eager", plant: Callable[..., None] | None = None, **options: Any
    ) -> None:
        self.path, self.kind, self.plant, self.options = path, kind, plant, options
        self.total, self.first = STEPS, 0

    def __call__(self, s: Session) -> None:
        layer = nn.Linear(s, 6, 3, name="layer")
        scale = s.param(np.ones(3), "scale")
        if self.kind == "groups":
            weights = [{"params": [layer.weight], "lr": 0.05, "weight_decay": 0.1}, {"params": [layer.bias, scale]}]
            optimizer: Any = optim.SGD(weights, lr=0.1, momentum=0.9)
        else:
            optimizer = optim.AdamW([layer.weight, layer.bias, scale], lr=0.1)
        captured: Any = None

        def work(x: Any, labels: Any) -> Any:
            loss = s.cross_entropy(s.dropout(layer(s.const(x)), 0.2).tanh() * scale, labels)
            s.backward(loss)
            optimizer.step()
            return loss

        with ledger.record(self.path, s, optimizer, checkpoint_every=EVERY, **self.options) as run:
            for k in run.steps(self.total, self.first):
                rng = np.random.default_rng(k)
                x, labels = rng.standard_normal((5, 6)).astype(np.float32), rng.integers(0, 3, 5)
                optimizer.lr = 0.1 / (1 + k)
                if self.plant is not None:
                    self.plant(k, s, optimizer, x, labels)
                if self.kind != "captured":
                    work(x, labels)
                    s.reset()
                elif captured is None:
                    captured = s.capture(work, x, labels)
                else:
                    captured(x, labels)
        optimizer.close()


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "run.jsonl"


def train(
    path: Path, kind: str = "eager", plant: Any = None, *, seed: int = 3, device: str = "cpu", **options: Any
) -> None:
    with Session(device, seed=seed, math="reproducible") as s:
        Training(path, kind, plant, **options)(s)


def check(path: Path, kind: str = "eager", plant: Any = None, **options: Any) -> Report:
    return audit(Training(path, kind, plant), path, **options)


def found(report: Report) -> set[tuple[int | None, str, str]]:
    return {(d.step, d.kind, d.name) for d in report.departures}


def first(report: Report) -> Departure:
    assert not report.ok
    return report.departures[0]


def rewrite(path: Path, change: Callable[[list[dict[str, Any]]], Any], *, chained: bool = True) -> None:
    """Changes a ledger's entries; chained again, as somebody would who knows how."""
    entries = [json.loads(line) for line in path.read_text().splitlines()]
    change(entries)
    lines, previous = [], ""
    for entry in entries:
        if chained:
            line, previous = ledger.line_of({**entry, "previous": previous})
        else:
            line = ledger.encode({k: v for k, v in entry.items() if k != "hash"})[:-1] + f',"hash":"{entry["hash"]}"}}'
        lines.append(line + "\n")
    path.write_text("".join(lines))


def flip(array: np.ndarray, at: int = 0, bit: int = 0) -> np.ndarray:
    bits = array.copy()
    bits.reshape(-1).view(np.uint32)[at] ^= np.uint32(1 << bit)
    return bits


def flip_on_device(buffer: Any, at: int) -> None:
    """A bit that changes in memory, of which nobody is told."""
    assert uploader(buffer)(flip(buffer.numpy(), at)) == 0


# ---- a run is what its ledger says


@each_kind
@pytest.mark.parametrize("device", DEVICES)
def test_a_run_is_what_its_ledger_says(kind: str, device: str, path: Path) -> None:
    """On every device: the mode is reproducible."""
    train(path, kind, device=device)
    for other in dict.fromkeys(("cpu", device)):
        report = check(path, kind, device=other)
        assert report.ok and (report.first, report.stop) == (0, STEPS) and "every bit is as recorded" in str(report)
    assert (chain := ledger.read(path)).breaks == [] and sorted(chain.steps) == list(range(STEPS))
    assert chain.entries[-1]["kind"] == "end" and chain.head == chain.entries[-1]["hash"] in str(report)
    assert [e["step"] for e in chain.steps.values() if "checkpoint" in e] == [3, 7, 11]


@each_kind
def test_equal_runs_make_equal_files(kind: str, tmp_path: Path) -> None:
    one, two = tmp_path / "one.jsonl", tmp_path / "two.jsonl"
    for place in (one, two):
        train(place, kind, directory=tmp_path / "shared")
    assert one.read_bytes() == two.read_bytes()


def test_a_captured_run_has_the_results_of_an_eager_one(tmp_path: Path) -> None:
    chains = []
    for kind in ("eager", "captured"):
        train(tmp_path / f"{kind}.jsonl", kind)
        chains.append(ledger.read(tmp_path / f"{kind}.jsonl"))
    for name in ("state", "random", "updates"):
        assert [e[name] for e in chains[0].steps.values()] == [e[name] for e in chains[1].steps.values()]


@each_kind
@pytest.mark.parametrize(("steps", "begin"), [((5, 7), 4), ((8, None), 8), ((None, 3), 0), ((3, 4), 0), ((9, 10), 8)])
def test_an_audit_begins_at_the_nearest_checkpoint(kind: str, steps: Any, begin: int, path: Path) -> None:
    train(path, kind)
    done: list[int] = []
    report = check(path, kind, lambda k, *_: done.append(k), steps=steps)
    stop = STEPS if steps[1] is None else steps[1]
    assert report.ok and (report.first, report.stop) == (begin, stop) and done == list(range(begin, stop))


def test_loops_in_a_row(path: Path) -> None:
    """Epochs, each with a loop of its own."""

    def epochs(s: Session) -> None:
        w = s.param(np.ones(3), "w")
        optimizer = optim.SGD([w], lr=0.5)
        with ledger.record(path, s, optimizer, checkpoint_every=2) as run:
            for epoch in range(3):
                for _ in run.steps(4 * epoch + 4, 4 * epoch):
                    s.backward(s.sum(w * s.rand_normal(3)))
                    optimizer.step()
                    s.reset()

    with Session("cpu", seed=1) as s:
        epochs(s)
    assert ledger.read(path).breaks == []
    for steps, begin in (((None, None), 0), ((9, 11), 8), ((3, 7), 2)):
        report = audit(epochs, path, steps=steps)
        assert report.ok and report.first == begin


# ---- what departs is named


def change_lr(k: int, s: Session, optimizer: Any, x: Any, labels: Any) -> None:
    if k == 5:
        optimizer.lr *= 1.0000001


def change_batch(k: int, s: Session, optimizer: Any, x: Any, labels: Any) -> None:
    if k == 5:
        x[2:3] = flip(x[2:3], 3)


def change_label(k: int, s: Session, optimizer: Any, x: Any, labels: Any) -> None:
    if k == 5:
        labels[1] = (labels[1] + 1) % 3


def flip_weight(k: int, s: Session, optimizer: Any, x: Any, labels: Any) -> None:
    if k == 5:
        flip_on_device(s.parameters["layer.weight"].mirror, 4)


def flip_state(k: int, s: Session, optimizer: Any, x: Any, labels: Any) -> None:
    if k == 5:
        flip_on_device(next(b for b in optimizer._buffers() if len(b) == 18), 2)


def draw(k: int, s: Session, optimizer: Any, x: Any, labels: Any) -> None:
    if k == 5:
        s.counter += 1


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
    for steps in ((None, None), (7, 9), (9, 10)):
        report = check(path, kind, steps=steps)
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


# ---- the chain


def edit(entries: list[dict[str, Any]]) -> None:
    entries[7]["updates"][0]["lr"] = 1.0


@pytest.mark.parametrize(
    ("change", "step", "text"),
    [(edit, 5, "line 8 (step 5) was edited"),
     (lambda entries: entries.pop(7), 6, "missing or was replaced between line 7 (step 4) and line 8 (step 6)"),
     (lambda entries: entries.insert(7, entries.pop(8)), 6, "between line 7 (step 4) and line 8 (step 6)"),
     (lambda entries: entries[0].update(seed=4), None, "line 1 was edited")],
    ids=["edited", "removed", "exchanged", "header"],
)  # fmt: skip
def test_a_broken_chain_is_named(change: Any, step: int | None, text: str, path: Path) -> None:
    train(path)
    rewrite(path, change, chained=False)
    report = check(path)
    assert first(report).step == step and first(report).kind == "chain" and text in first(report).name
    assert "the file is not what was written" in str(report)
    with Session("cpu", seed=3, math="reproducible") as s:
        w = s.param([1.0], "w")
        with ledger.record(path, s, optim.SGD([w]), resume=True) as run:
            assert_raises_regex(ledger.LedgerError, "expected a whole chain", next, run.steps(3))


def test_other_spaces_and_repeated_names_break_the_chain(path: Path) -> None:
    """A line is what its entry is written as, byte for byte."""
    train(path)
    lines = path.read_text().splitlines(keepends=True)
    for spoilt in (lines[4].replace(":", ": ", 1), lines[4].replace("{", '{"step":9,', 1)):
        path.write_text("".join([*lines[:4], spoilt, *lines[5:]]))
        assert [step for step, _ in ledger.read(path).breaks] == [2]
    for strange in ("what", "[]", '{"hash":"","kind":"other"}', '{"hash":"","kind":"step","step":2}', lines[0].strip()):
        path.write_text("".join([*lines[:4], strange + "\n", *lines[5:]]))
        assert ledger.read(path).breaks[0] == (None, "line 5 is no line of a ledger")


@pytest.mark.parametrize(
    ("change", "step", "kind"),
    [(lambda entries: entries.pop(7), 6, "chain"), (edit, 5, "hyperparameter"),
     (lambda entries: entries[7]["inputs"].pop(), 5, "input"), (lambda entries: entries[7]["updates"].clear(), 5, "update"),
     (lambda entries: entries[7].update(state=entries[6]["state"]), 5, "parameter"),
     (lambda entries: entries[-1].update(parameters_sha256="0" * 64), STEPS, "parameter"),
     (lambda entries: entries[0]["parameters"].pop(), None, "program")],
    ids=["removed", "edited", "input", "update", "state", "end", "parameters"],
)  # fmt: skip
def test_a_chain_that_was_made_again_does_not_hide_it(change: Any, step: int | None, kind: str, path: Path) -> None:
    train(path)
    rewrite(path, change)
    report = check(path)
    assert first(report).step == step and first(report).kind == kind, str(report)


def test_a_run_cut_short(path: Path) -> None:
    """Its whole lines are a ledger, which the next run continues."""
    train(path)
    text = path.read_text()
    lines = text.splitlines(keepends=True)
    path.write_text("".join(lines[:9]) + lines[9][:50])
    report = check(path)
    assert report.ok and report.stop == 7 and "no end: the run was cut short" in str(report)

    def resume(s: Session) -> None:
        again = Training(path, resume=True)
        again.first = 4
        again.plant = lambda k, s, optimizer, *_: k == 4 and restored(s, optimizer)
        again(s)

    def restored(s: Session, optimizer: Any) -> None:
        raise AssertionError("the state is loaded before the loop")

    with Session("cpu", seed=3, math="reproducible") as s, pytest.raises(AssertionError):
        resume(s)
    report = check(path)
    assert first(report).step == 4 and "went on at step 4 from another state" in first(report).name


def test_a_resumed_run(path: Path) -> None:
    def program(s: Session, first: int = 0, last: int = STEPS) -> None:
        w = s.param(np.ones(4), "w")
        optimizer = optim.Adam([w], lr=0.1)
        if first:
            checkpoint.load(path.with_name("own.safetensors"), s, optimizer)
        with ledger.record(path, s, optimizer, checkpoint_every=0 if first == 0 else 5, resume=first > 0) as run:
            for _ in run.steps(last, first):
                s.backward(s.sum((w * s.rand_normal(4)) ** 2))
                optimizer.step()
                s.reset()
        checkpoint.save(path.with_name("own.safetensors"), s, optimizer)

    for part in ((0, 6), (6, 9), (9, STEPS)):
        with Session("cpu", seed=2) as s:
            program(s, *part)
    assert ledger.read(path).breaks == []
    whole = partial(program, first=0, last=STEPS)
    report = audit(lambda s: whole(s), path)
    assert report.ok and (report.first, report.stop) == (0, STEPS)
    report = audit(lambda s: whole(s), path, steps=(7, 8))
    assert report.ok and report.first == 6, "a resumption leaves a checkpoint"
    with Session("cpu", seed=2) as s:
        run = ledger.record(path, s, optim.SGD([s.param([1.0], "v")]), resume=True)
        assert_raises_regex(ledger.LedgerError, "other parameters", next, run.steps(3))
        run.close()


def test_a_step_done_twice_with_other_results(path: Path) -> None:
    train(path)

    def again(entries: list[dict[str, Any]]) -> None:
        entries[-1:] = [{**entries[9], "kind": "start", "step": 8}, {**entries[10], "state": entries[9]["state"]}]

    rewrite(path, again)
    assert ledger.read(path).breaks == [(8, "step 8 was done twice, with different results")]


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
                s.backward(s.sum(h.exp()), np.float32(factor))
                optimizer.step()
                s.reset()

    with Session("cpu", seed=1) as s:
        program(s)
    steps = ledger.read(path).steps
    assert [k for k, e in steps.items() if "operations" in e] == [0, 3, 6]
    names = [name for name, _ in steps[6]["operations"]]
    assert [n.split(", ")[1] for n in names if n.startswith("node")] == [
        "rand_normal",
        "mul",
        "tanh",
        "scale",
        "exp",
        "reduce_sum",
    ]
    assert names[-1] == "gradient of w" and names[6].startswith("cotangent of node")
    assert audit(program, path).ok
    for bad, name in (("forward", "scale"), ("backward", "cotangent of node 6, reduce_sum")):
        report = audit(partial(program, bad=bad), path)
        (operation,) = [d for d in report.departures if d.kind == "operation"]
        assert operation.step == 6 and operation.name.endswith(name)


@pytest.mark.parametrize("device", DEVICES)
def test_devices_are_compared_operation_by_operation(device: str, path: Path) -> None:
    """Another device that gives the same bits says that it does, and one that does not says where."""
    train(path, plant=flip_weight)
    report = check(path, against=device)
    assert re.search(
        rf"step 5 on cpu and {device}\b.*: \d\d results of operations, with the same bits", report.notes[-1]
    )
    sessions: list[Session] = []

    def second_differs(k: int, s: Session, optimizer: Any, x: Any, labels: Any) -> None:
        if s not in sessions:
            sessions.append(s)
        if k == 5 and len(sessions) == 3:
            s.parameters["scale"].set([1.0, 1.0, 1.0000001])

    report = check(path, plant=second_differs, against=device)
    assert re.search(r"node \d+, \w+ is the first operation with other bits", report.notes[-1])


# ---- the ledger itself


def test_a_loop_that_ends_early(path: Path) -> None:
    """After break the step is a step; after an exception it is none."""
    for name, end in (("break", lambda: False), ("raise", lambda: 1 // 0)):
        place = path.with_name(f"{name}.jsonl")
        with Session("cpu") as s:
            w = s.param([1.0], "w")
            try:
                with ledger.record(place, s) as run:
                    for k in run.steps(9):
                        w.set([float(k)])
                        if k == 5 and not end():
                            break
            except ZeroDivisionError:
                pass
            assert not s.device._observers
        chain = ledger.read(place)
        assert chain.breaks == [] and max(chain.steps) == (5 if name == "break" else 4)
        assert (chain.entries[-1]["kind"] == "end") is (name == "break")
        run.close()
        assert_raises(errors.ReleasedError, next, run.steps(1))


def test_what_a_step_says(path: Path) -> None:
    """Uploads, indices, draws and hyperparameters, in order, and nothing of what other threads and the optimiser's states do."""
    with Session("cpu", seed=7) as s:
        w = s.param(np.ones((3, 2)), "w")
        optimizer = optim.SGD([w], lr=0.25)
        with ledger.record(path, s, optimizer, settings={"width": np.int64(2)}) as run:
            for _ in run.steps(2):
                rows = s.gather_rows_nat(w, [2, 0])
                s.backward(s.sum(rows * s.const([[1.0, 2.0]]) * s.rand_uniform((2, 2))))
                optimizer.step()
                s.reset()
    chain = ledger.read(path)
    assert chain.header["settings"] == {"width": 2} and chain.header["seed"] == 7
    assert chain.header["parameters"] == [["w", [3, 2], True]]
    step = chain.steps[1]
    assert [name for name, _ in step["inputs"]] == ["gather_rows: indices", "upload of 2"]
    assert step["random"] == {"seed": 7, "from": 1, "to": 2}
    (update,) = step["updates"]
    assert update == {
        "optimizer": "SGD",
        "steps": 1,
        "lr": 0.25,
        "momentum": 0.0,
        "nesterov": False,
        "weight_decay": 0.0,
    }
    assert ledger.fingerprints(step["state"]) == [
        ledger.digits_of(kernels.fingerprint([open_device("cpu").buffer(w.value)]))
    ]


def test_calls_of_a_recorded_session_go_straight_to_the_library(path: Path) -> None:
    with Session("cpu") as s, ledger.record(path, s):
        assert s.device._observers and s.device._calls is handles._calls


def test_what_is_refused(path: Path) -> None:
    with Session("spec") as s:
        assert_raises_regex(errors.ArgumentError, "the specification", ledger.record, path, s)
    with Session("cpu") as s, Session("cpu") as other:
        w = s.param([1.0], "w")
        optimizer = optim.SGD([w])
        assert_raises(errors.DeviceMismatchError, ledger.record, path, other, optimizer)
        assert_raises(errors.ArgumentError, ledger.record, path, s, checkpoint_every=-1)
        assert_raises_regex(errors.ArgumentTypeError, "JSON", ledger.record, path, s, settings=object())
        with ledger.record(path, s, optimizer) as run:
            for _ in run.steps(1):
                pass
        assert_raises_regex(FileExistsError, "resume=True", ledger.record, path, s, optimizer)
        assert_raises(FileNotFoundError, next, ledger.record(path.with_name("none"), s, resume=True).steps(1))
        with (
            ledger.record(path.with_name("late"), s) as run,
            assert_raises_regex(errors.ArgumentError, "others of the session"),
        ):
            for _ in run.steps(2):
                s.param([2.0], "late")
    assert_raises_regex(errors.ArgumentError, "steps within 0:1", audit, lambda s: None, path, steps=(0, 2))
    assert_raises_regex(ledger.LedgerError, "none of the ledger's steps", audit, lambda s: None, path)
    header = path.read_text().splitlines()[0]
    for text, said in (
        ("{}\n", "another file"),
        ("", "an empty file"),
        (header.replace('"version":1', '"version":2') + "\n", "version 2"),
    ):
        path.write_text(text)
        assert_raises_regex(ledger.LedgerError, f"got {said}, expected a ledger", ledger.read, path)


def test_a_program_of_fewer_steps(path: Path) -> None:
    train(path)
    short = Training(path)
    short.total = 7
    report = audit(short, path)
    assert found(report) == {(7, "program", "steps")}


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
    assert "first departure: step 3: other data went in" in out and re.search(
        r"input +0: upload of 3 +\w{16}… +\w{16}…", out
    )
    for wrong in ("audited_program.py:nothing run.jsonl", "no_module:program run.jsonl", "missing.py:p run.jsonl",
                  "audited_program.py:program none", "audited_program.py:program run.jsonl --steps 2"):  # fmt: skip
        assert main(wrong.split()) == 2 and capsys.readouterr().err.startswith("tlrt audit: ")
