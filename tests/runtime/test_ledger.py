"""Ledgers: a run is what its ledger says, on any device, and a ledger that was changed is found."""

import threading
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.testing import assert_raises, assert_raises_regex

from tests import DEVICES
from tests.runtime.ledger_runs import EVERY, STEPS, Training, check, each_kind, first, flip_state, rewrite, train
from tests.runtime.steps import minimise_square
from tlrt import Session, _chain, checkpoint, errors, kernels, ledger, optim
from tlrt import device as open_device
from tlrt._binding import handles
from tlrt.audit import audit


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "run.jsonl"


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
        train(place, kind, directory=tmp_path / "far" / "shared")
    assert one.read_bytes() == two.read_bytes() and check(one, kind, steps=(9, 10)).first == 8


def test_a_captured_run_has_the_results_of_an_eager_one(tmp_path: Path) -> None:
    chains = []
    for kind in ("eager", "captured"):
        train(tmp_path / f"{kind}.jsonl", kind)
        chains.append(ledger.read(tmp_path / f"{kind}.jsonl"))
    for name in ("state", "random", "updates"):
        assert [e[name] for e in chains[0].steps.values()] == [e[name] for e in chains[1].steps.values()]


def test_what_goes_in_after_a_captured_step_is_recorded(tmp_path: Path) -> None:
    found = []
    for k, value in enumerate((1.0, 2.0, 2.0)):
        path = tmp_path / f"{k}.jsonl"
        with Session("cpu", seed=1, math="reproducible") as s:
            w = s.param(np.ones(3), "w")
            optimizer = optim.SGD([w], lr=0.5)
            captured = s.capture(partial(minimise_square, optimizer), np.ones(3))
            with ledger.record(path, s, optimizer) as run:
                for _ in run.steps(1):
                    captured(np.ones(3))
                    s.const([value])
        found.append(ledger.read(path).steps[0]["inputs"])
    assert found[0] != found[1] == found[2]


@pytest.mark.parametrize("rows", [4, 9000])
def test_arrays_that_the_program_writes_over_are_recorded_as_they_were(rows: int, tmp_path: Path) -> None:
    """Small ones, which are hashed later, and large ones."""
    found = []
    for reuses in (False, True):
        path = tmp_path / f"{reuses}.jsonl"
        with Session("cpu", seed=1, math="reproducible") as s:
            w = s.param(np.ones((2, 3)), "w")
            optimizer = optim.SGD([w], lr=0.5)
            x, labels = np.zeros((rows, 2), np.float32), np.zeros(rows, int)
            with ledger.record(path, s, optimizer) as run:
                for k in run.steps(3):
                    x, labels = (x, labels) if reuses else (x.copy(), labels.copy())
                    x[...], labels[...] = k + 1, k
                    s.backward(s.cross_entropy(s.const(x) @ w, labels))
                    optimizer.step()
                    s.reset()
        found.append([e["inputs"] for e in ledger.read(path).steps.values()])
    assert found[0] == found[1] and len({str(inputs) for inputs in found[0]}) == 3


def test_what_differs_has_another_digest(path: Path) -> None:
    """By a bit, a type, a shape or a name, but not by the order in memory or by the bits of NaN."""
    x = np.arange(6, dtype=np.float32)
    others = [x, x.view(np.int32), x.reshape(2, 3), x.reshape(3, 2), x.reshape(3, 2).T, -x, x[:5], x[:0]]
    assert len({ledger._digest(a) for a in others}) == len(others)
    assert ledger._digest(others[4]) == ledger._digest(others[4].copy())
    strange = np.array([0x7FC00001, 0xFFC00000], np.uint32).view(np.float32)
    found = []
    for name, value in (
        ("w", x),
        ("v", x),
        ("w", others[2]),
        ("w", others[3]),
        ("w", -x),
        ("w", strange),
        ("w", abs(strange)),
    ):
        with Session("cpu") as s:
            s.param(value, name)
            found.append(ledger.record(path, s).parameters_sha256())
    assert len(set(found)) == 6 and found[-1] == found[-2]


@each_kind
@pytest.mark.parametrize(("steps", "begin"), [((5, 7), 4), ((8, None), 8), ((None, 3), 0), ((3, 4), 0), ((9, 10), 8)])
def test_an_audit_begins_at_the_nearest_checkpoint(kind: str, steps: Any, begin: int, path: Path) -> None:
    train(path, kind)
    done: list[int] = []
    report = check(path, kind, lambda k, *_: done.append(k), steps=steps)
    stop = STEPS if steps[1] is None else steps[1]
    assert report.ok and (report.first, report.stop) == (begin, stop) and done == list(range(begin, stop))


@each_kind
def test_states_in_some_lines(kind: str, path: Path) -> None:
    """Every fifth, and at checkpoints."""
    train(path, kind, states_every=5)
    chain = ledger.read(path)
    sizes = [len(_chain.fingerprints(e["state"])) for e in chain.steps.values()]
    names = len(chain.header["parameters"]), len(chain.header["parameters"] + chain.header["states"])
    assert sizes == [names[k % 5 == 0 or k % EVERY == EVERY - 1] for k in range(STEPS)]
    assert check(path, kind).ok and check(path, kind, steps=(9, 10)).ok
    spoilt = check(path, kind, flip_state)
    assert first(spoilt).step == 5 and any(d.kind == "state" for d in spoilt.departures)


def test_what_is_due(path: Path) -> None:
    """With no number of steps between two states, those at checkpoints alone."""
    file = ledger._File(path, path, {"checkpoint_every": 4, "states_every": 0, "operations": 3}, None, False)
    for wants in (file.wants_checkpoint, file.wants_states, file.wants_operations):
        assert [k for k in range(9) if wants(k)] == ([0, 3, 6] if wants == file.wants_operations else [3, 7])
    file.every = {"checkpoint_every": 0, "states_every": 1, "operations": 0}
    assert all(file.wants_states(k) and not file.wants_checkpoint(k) and not file.wants_operations(k) for k in range(9))


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


def test_lines_wait_for_a_few_steps_alone(path: Path) -> None:
    """Of a run that is killed they are there."""
    with Session("cpu") as s, ledger.record(path, s) as run:
        for k in run.steps(3 * ledger.LAG):
            assert path.read_text().count('"kind":"step"') >= k - k % ledger.LAG


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

    again = Training(path, resume=True)
    again.first = 4
    with Session("cpu", seed=3, math="reproducible") as s:  # that begins anew
        again(s)
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


@pytest.mark.parametrize("more", [0, 5])
def test_a_run_goes_on_with_the_draws_that_follow(path: Path, more: int) -> None:
    """With equal parameters, and others of the random numbers, it is another run."""
    for start in (0, 2):
        with Session("cpu", seed=1) as s:
            w = s.param([1.0], "w")
            s.counter = start + (more if start else 0)
            with ledger.record(path, s, optim.SGD([w], lr=0.5), resume=start > 0) as run:
                for _ in run.steps(start + 2, start):
                    s.rand_normal(3)
                    s.reset()
    assert len(ledger.read(path).breaks) == (more > 0)


def test_what_cannot_be_recorded(path: Path) -> None:
    def program(what: str, **how: Any) -> Any:
        s = Session("cpu", seed=1, **how)
        kinds = {"states": partial(optim.SGD, momentum=0.5)}
        return s, kinds.get(what, optim.SGD)([s.param([1.0], "v" if what == "parameters" else "w")])

    with program("")[0] as s:
        for name in ("checkpoint_every", "states_every", "operations"):
            assert_raises_regex(errors.ArgumentError, f"{name}: got -1", partial(ledger.record, path, s, **{name: -1}))
            assert_raises_regex(
                errors.ArgumentTypeError, f"{name}: got", partial(ledger.record, path, s, **{name: 1.5})
            )
        assert_raises_regex(errors.ArgumentTypeError, "resume: got", partial(ledger.record, path, s, resume="no"))
        assert_raises_regex(errors.CaptureError, "record", s.capture, lambda: ledger.record(path, s))
        assert_raises_regex(
            errors.ArgumentTypeError, "settings: got {1j} .* JSON", ledger.record, path, s, settings={1j}
        )
        with ledger.record(path, s, optim.SGD([s.parameters["w"]])) as run:
            list(run.steps(2, 2))
        assert ledger.read(path).entries[-1]["step"] == 2
        assert_raises_regex(errors.ReleasedError, "a closed ledger", next, run.steps(1))
    with Session("spec") as s:
        assert_raises_regex(errors.ArgumentError, "got the specification", ledger.record, path, s)
    before = path.read_bytes()
    settings: dict[str, Any] = {"math": {"math": "reproducible"}, "options": {"check_indices": True}}
    for what, how in {"parameters": {}, "states": {}, **settings}.items():
        s, optimizer = program(what, **how)
        with s:
            run = ledger.record(path, s, optimizer, resume=True)
            assert_raises_regex(ledger.LedgerError, f"got other {what}, expected those", next, run.steps(3))
            run.close()
    assert path.read_bytes() == before


def again(entries: list[dict[str, Any]]) -> None:
    entries[-1:] = [{**entries[9], "kind": "start", "step": 8}, {**entries[10], "state": entries[9]["state"]}]


@pytest.mark.parametrize(("change", "found"), [
    (again, (8, "step 8 was done twice, with different results")),
    (lambda entries: entries.remove(next(e for e in entries if e["kind"] == "step" and e["step"] == 3)),
     (4, "step 4 stands where step 3 is due")),
], ids=["twice", "left out"])  # fmt: skip
def test_steps_of_other_numbers(change: Any, found: tuple[int, str], path: Path) -> None:
    train(path)
    rewrite(path, change)
    assert ledger.read(path).breaks[0] == found


# ---- the ledger itself


def test_a_loop_that_ends_early(path: Path) -> None:
    """After break the step is a step, also where another loop follows; after an exception it is none."""
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
                    for k in run.steps(8, 6):
                        w.set([float(k)])
            except ZeroDivisionError:
                pass
            assert not s.device._observers
        chain = ledger.read(place)
        assert chain.breaks == [] and max(chain.steps) == (7 if name == "break" else 4)
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
                other = threading.Thread(target=s.device.buffer, args=([3.0],))
                other.start(), other.join()
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
        "optimizer": "SGD", "steps": 1, "lr": 0.25, "momentum": 0.0, "nesterov": False, "weight_decay": 0.0,
    }  # fmt: skip
    fingerprint = kernels.fingerprint([open_device("cpu").buffer(w.value)])
    assert _chain.fingerprints(step["state"]) == [ledger.digits_of(fingerprint)]


@pytest.mark.parametrize("depths", [(2, 2), (1, 3, 2), (3, 1)])
def test_a_step_of_several_tapes_records_the_operations_of_each(tmp_path: Path, depths: tuple[int, ...]) -> None:
    """Gradients that add up: each part is recorded as a step of this part alone is, but for the gradients."""

    def recorded(*depths: int) -> list[list[str]]:
        path = tmp_path / f"{depths}.jsonl"
        path.unlink(missing_ok=True)
        with Session("cpu", seed=1, math="reproducible") as s:
            w = s.param(np.ones(3), "w")
            optimizer = optim.SGD([w], lr=0.5)
            with ledger.record(path, s, optimizer, operations=1) as run:
                for _ in run.steps(1):
                    for i, depth in enumerate(depths):
                        y = w * s.const([1.0, 2.0, depth])
                        for _ in range(depth):
                            y = y.tanh()
                        s.backward(y.sum(), accumulate=i > 0)
                        s.reset(gradients=False)
                    optimizer.step()
        return [o for o in ledger.read(path).steps[0]["operations"] if not o[0].startswith("gradient")]

    parts = [o for depth in depths for o in recorded(depth)]
    assert recorded(*depths) == parts and sum("tanh" in n for n, _ in parts) >= sum(depths)


def test_calls_of_a_recorded_session_go_straight_to_the_library(path: Path) -> None:
    with Session("cpu") as s, ledger.record(path, s):
        assert s.device._observers and s.device._calls is handles._calls


def test_what_is_refused(path: Path) -> None:
    with Session("cpu") as s, Session("cpu") as other:
        w = s.param([1.0], "w")
        optimizer = optim.SGD([w])
        assert_raises_regex(errors.DeviceMismatchError, "^record: ", ledger.record, path, other, optimizer)
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
    other = header.replace('"version":1', '"version":2') + "\n"
    for text, said in (("{}\n", "another file"), ("", "an empty file"), (other, "version 2")):
        path.write_text(text)
        assert_raises_regex(ledger.LedgerError, f"got {said}, expected a ledger", ledger.read, path)


def test_another_session_of_the_device_is_none_of_the_run(path: Path) -> None:
    """Neither its updates nor its gradients, captured or not."""
    device = open_device("cpu")
    with Session(device, seed=1) as s, Session(device, seed=2) as other:
        own, far = (optim.SGD([t.param(np.ones(3), "w")], lr=0.5) for t in (s, other))
        captured = other.capture(partial(minimise_square, far), np.ones(3))
        with ledger.record(path, s, own, operations=1) as run:
            for k in run.steps(2):
                minimise_square(own, np.ones(3))
                for _ in range(k):
                    captured(np.ones(3)), minimise_square(far, np.ones(3)), other.reset()
                s.reset()
    one, two = ledger.read(path).steps.values()
    assert len(one["updates"]) == len(two["updates"]) == 1
    assert [name for name, _ in one["operations"]] == [name for name, _ in two["operations"]]
