"""The examples: each trains, resumes bit for bit, and reports; and what they are made of."""

import hashlib
import importlib
import json
import math
import os
import signal

import numpy as np
import pytest
from numpy.testing import assert_raises, assert_raises_regex

import tlrt
from examples import common, fno_burgers, text
from tests import DEVICES
from tlrt.audit import audit

#: a size at which a step takes milliseconds; batches are whole there, so losses of different steps compare
TINY = {
    "digits": {"batch": 64, "channels": 4},
    "autoencoder": {"batch": 128, "channels": 4, "rate": 0.01},
    "char_gpt": {"batch": 8, "context": 16, "width": 16, "layers": 1, "heads": 2, "dropout": 0.2, "rate": 0.02, "tests": 2},
    "mamba": {"batch": 4, "context": 12, "width": 12, "layers": 1, "state": 3, "dropout": 0.2, "rate": 0.02, "tests": 2},
    "fno_burgers": {
        "batch": 8, "functions": 16, "tests": 8, "grid": 16, "data_grid": 64, "width": 6, "modes": 5, "layers": 2,
        "viscosity": 0.2, "rate": 0.01,
    },
}  # fmt: skip
STEPS = 30
#: relative rounding of the tiny GPT's loss: some 30 operations one after the other, sums of at most 103 terms in each
FORWARD = 30 * 103 * 2.0**-24
each = pytest.mark.parametrize("name", list(TINY))


def start(name, folder, *arguments, steps=STEPS, device="cpu"):
    """Runs an example at its tiny size; its report."""
    if name in ("digits", "autoencoder"):
        pytest.importorskip("sklearn")
    settings = [f"--set={n}={v}" for n, v in TINY[name].items()]
    module = importlib.import_module(f"examples.{name}")
    return module.main(
        ["--out", str(folder), f"--device={device}", f"--steps={steps}", "--json", *settings, *arguments]
    )


def tensors(folder, name):
    """The checkpoint's arrays as bytes."""
    from safetensors.numpy import load_file

    return {n: a.tobytes() for n, a in load_file(folder / f"{name}.safetensors").items()}


@each
@pytest.mark.parametrize("device", DEVICES)
def test_trains_and_resumes_bit_for_bit(name, device, tmp_path, capsys):
    whole, parts = tmp_path / "whole", tmp_path / "parts"
    wanted = start(name, whole, device=device)
    assert wanted["finished"] and len(wanted["losses"]) == STEPS and np.isfinite(wanted["losses"]).all()
    assert np.mean(wanted["losses"][-5:]) < 0.9 * np.mean(wanted["losses"][:5]), "nothing was learned"
    memory = wanted["memory"]
    assert memory["start"] == memory["end"], "live bytes and driver calls are flat between steps"
    first = start(name, parts, "--stop-at=13", device=device)
    assert not first["finished"] and first["losses"] == wanted["losses"][:13]
    second = start(name, parts, "--resume", device=device)
    assert second["losses"] == wanted["losses"] and tensors(parts, name) == tensors(whole, name)
    figures = {k: v for k, v in wanted.items() if k.startswith(("test_", "relative"))}
    assert figures and figures == {k: second[k] for k in figures}
    shown = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert [s["example"] for s in shown] == [name] * 3
    saved = json.loads((whole / f"{name}.json").read_text())
    assert saved["losses"] == wanted["losses"] and {"wall_seconds", "steps_per_second", "final_loss"} <= saved.keys()


@each
@pytest.mark.parametrize("how", [[], ["--capture"]], ids=["eager", "captured"])
def test_a_ledger_is_audited(name, how, tmp_path):
    """Of a run that was stopped and resumed; an audit of another batch size names the first step."""
    path = tmp_path / "run.jsonl"
    for part in (["--stop-at=3"], ["--resume"]):
        start(name, tmp_path, f"--ledger={path}", *how, *part, steps=6)
    program = importlib.import_module(f"examples.{name}").program
    report = audit(program, path)
    assert report.ok and (report.first, report.stop) == (0, 6), str(report)
    report = audit(program, path, steps=(4, 5))
    assert report.ok and (report.first, report.stop) == (3, 5), str(report)

    def other(session, settings):
        program(session, {**settings, "settings": {**settings["settings"], "batch": settings["settings"]["batch"] - 1}})

    report = audit(other, path)
    assert report.departures[0].step == 0 and report.departures[0].kind == "input"


@each
def test_seeds_differ_and_repeat(name, tmp_path):
    one, again, other = (start(name, tmp_path, f"--seed={seed}", steps=3)["losses"] for seed in (1, 1, 2))
    assert one == again and one != other


def test_the_specification_runs_the_same_program(tmp_path):
    """In float64, from the same weights and masks: the first loss differs by rounding alone."""
    exact = start("char_gpt", tmp_path, steps=2, device="spec")["losses"]
    rounded = start("char_gpt", tmp_path, steps=2)["losses"]
    assert exact[0] == pytest.approx(rounded[0], rel=FORWARD) and exact[0] != rounded[0]


def before_step(number, action, monkeypatch):
    """Has `action` called before a step."""
    step = common._step

    def act(session, program, k):
        if k == number:
            action()
        return step(session, program, k)

    monkeypatch.setattr(common, "_step", act)


def test_an_interrupted_run_ends_its_step_and_resumes(tmp_path, monkeypatch):
    wanted = start("char_gpt", tmp_path / "whole")["losses"]
    before_step(6, lambda: os.kill(os.getpid(), signal.SIGINT), monkeypatch)
    before = signal.getsignal(signal.SIGINT)
    assert start("char_gpt", tmp_path / "parts")["losses"] == wanted[:7]
    assert signal.getsignal(signal.SIGINT) is before
    monkeypatch.undo()
    assert start("char_gpt", tmp_path / "parts", "--resume")["losses"] == wanted


def test_checkpoints_in_between_are_complete(tmp_path, monkeypatch):
    """A run that dies after a checkpoint continues from it."""
    wanted = start("char_gpt", tmp_path / "whole")["losses"]

    def fail():
        raise MemoryError

    before_step(9, fail, monkeypatch)
    assert_raises(MemoryError, start, "char_gpt", tmp_path / "parts", "--save-every=4")
    monkeypatch.undo()
    assert start("char_gpt", tmp_path / "parts", "--resume")["losses"] == wanted


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--resume"], "no such file"),
        (["--set=size=3"], "NAME one of steps, batch"),
        (["--set=batch=many"], "batch: got 'many', expected int"),
        (["--set=batch=5000"], "batch: got 5000"),
        (["--set=data_grid=100"], "data_grid: got 100, expected a multiple of twice the grid, 32"),
    ],
)
def test_bad_arguments_are_refused(arguments, message, tmp_path):
    assert_raises_regex(SystemExit, message, start, "fno_burgers", tmp_path, *arguments)


def test_a_checkpoint_of_other_settings_is_refused(tmp_path):
    start("char_gpt", tmp_path, steps=3)
    assert_raises_regex(SystemExit, "'steps': 4", start, "char_gpt", tmp_path, "--resume", steps=4)
    with pytest.raises(tlrt.checkpoint.CheckpointError, match="positions"):
        start("char_gpt", tmp_path, "--resume", "--set=context=20", steps=3)


def test_pytorch_follows_the_same_curve(tmp_path):
    """From the same weights on the same batches the first losses are equal up to rounding; after that the two curves lie
    closer together than a step moves them."""
    pytest.importorskip("torch")
    report = start("char_gpt", tmp_path, "--peer=torch", "--set=dropout=0")
    ours, theirs = np.array(report["losses"]), np.array(report["peers"]["torch"]["losses"])
    assert theirs[0] == pytest.approx(ours[0], rel=FORWARD)
    assert len(theirs) == STEPS and np.abs(ours - theirs).max() < np.median(np.abs(np.diff(ours)))
    assert_raises_regex(SystemExit, r"dropout: got 0\.2", start, "char_gpt", tmp_path, "--peer=torch")


def test_batches_cover_each_epoch_once():
    batch = common.Batches(10, 3, seed=4)
    for epoch in range(3):
        seen = np.concatenate([batch(3 * epoch + i) for i in range(3)])
        assert len(set(seen)) == 9 and set(seen) <= set(range(10))
    late = common.Batches(10, 3, seed=4)(7)
    assert np.array_equal(late, batch(7)), "a batch does not depend on those before it"
    assert [(c.start, c.stop) for c in common.chunks(5, 2)] == [(0, 2), (2, 4), (4, 5)]


def test_the_text_is_split_without_overlap():
    corpus = text.topics()
    whole = corpus.decode(corpus.train) + corpus.decode(corpus.test)
    assert "expression" in whole and hashlib.sha256(whole.encode()).hexdigest() == corpus.about["text_sha256"]
    assert len(corpus.train) + len(corpus.test) == corpus.about["characters"] > 100_000
    x, y = corpus.batch(4, 10, 1, 2)
    assert np.array_equal(x[:, 1:], y[:, :-1]) and x.shape == (4, 10)
    x, y = corpus.tests(3, 10, 2)
    assert x.shape == (6, 10) and np.array_equal(np.concatenate(x), corpus.test[:60])
    assert 1 < corpus.unigram() < math.log(len(corpus.alphabet))


def cole_hopf(u, viscosity, time):
    """Burgers' equation by its transformation to the heat equation: u = -2ν·φ_x/φ, φ(0) = e^(-∫u/(2ν)), on [0, 2π)."""
    grid = u.shape[-1]
    k = np.arange(grid // 2 + 1)
    spectrum = np.fft.rfft(u)
    integral = np.fft.irfft(np.divide(spectrum, 1j * k, out=np.zeros_like(spectrum), where=k > 0), grid)
    heat = np.fft.rfft(np.exp(-integral / (2 * viscosity))) * np.exp(-viscosity * k * k * time)
    return -2 * viscosity * np.fft.irfft(1j * k * heat, grid) / np.fft.irfft(heat, grid)


def test_burgers_is_integrated_to_fourth_order():
    """Against the closed form: on a grid that resolves the flow, twice the steps leave a sixteenth of the error."""
    u = fno_burgers.draw_initial(5, 256, np.random.default_rng(2))
    wanted = cole_hopf(u, 0.3, 0.5)
    rough, fine = (np.abs(fno_burgers.integrate(u, 0.3, 0.5, steps) - wanted).max() for steps in (60, 120))
    assert 12 < rough / fine < 20
    assert np.abs(fno_burgers.integrate(u, 0.3, 0.5) - wanted).max() <= fine
