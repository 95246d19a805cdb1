"""The models compared with PyTorch's: without it, on the CPU against their programs in float64."""

import inspect
from typing import Any
from unittest import mock

import numpy as np
import pytest
from numpy.testing import assert_array_equal

from audit.command import main
from audit.models.comparison import MODELS, Program, compare_model, shares, spreads
from audit.models.spread import moved_results, rms, share
from tlrt import Session, nn
from tlrt.spec import SpecDevice


@pytest.mark.parametrize("name", MODELS)
def test_a_step_of_a_model_stays_within_its_bounds(name: str) -> None:
    document = compare_model(name, "small", 1, 2, torch=False)
    assert document["failures"] == []
    assert {"loss", "gradients", "losses", "parameters", "evaluation"} == document["shares"]["tlrt"].keys()
    assert 0 < document["node"] <= 1


@pytest.mark.parametrize("name", MODELS)
def test_steps_of_a_model_and_of_pytorch_agree(name: str) -> None:
    pytest.importorskip("torch")
    assert compare_model(name, "small", 2, 2)["failures"] == []


@pytest.fixture(scope="module")
def net() -> tuple[Program, Any, Any]:
    """A U-Net, its results in float64, and their spreads."""
    program = Program("unet", "small", 1)
    exact = program.run(SpecDevice(np.float64))
    return program, exact, spreads(program, exact, 2)


def test_another_weight_is_seen_in_float32(net: tuple[Program, Any, Any]) -> None:
    program, exact, spread = net
    weight = program.weights["down.0.0.weight"]
    before = weight[0, 0, 0, 0]
    try:
        weight[0, 0, 0, 0] = before * np.float32(1.01)
        worst = shares(program.run("cpu"), exact, spread)
    finally:
        weight[0, 0, 0, 0] = before
    assert worst["loss"][0] > 1 and worst["gradients"][0] > 1


def test_another_epsilon_is_seen_in_float64(net: tuple[Program, Any, Any]) -> None:
    program, exact, spread = net
    with mock.patch.dict(inspect.unwrap(nn.BatchNorm.__init__).__kwdefaults__, eps=1.00001e-5):
        other = program.run(SpecDevice(np.float64))
    assert shares(other, exact, spread)["gradients"][0] < 1
    assert shares(other, exact, spread, 2.0**-28)["gradients"][0] > 1


def test_runs_of_other_names_or_shapes_are_refused(net: tuple[Program, Any, Any]) -> None:
    _, exact, spread = net
    with pytest.raises(ValueError, match="only one of the two runs gives loss/$"):
        shares({k: v for k, v in exact.items() if k[0] != "loss"}, exact, spread)
    with pytest.raises(ValueError, match=r"loss : shapes \(1,\) and \(\)"):
        shares({**exact, ("loss", ""): exact["loss", ""].reshape(1)}, exact, spread)


def test_results_move_by_their_tolerances() -> None:
    x = np.linspace(1.0, 1.9, 1000)

    def sums() -> np.ndarray:
        with Session("spec") as s:
            return s.add(s.const(x), s.const(x)).numpy()

    exact = sums()
    with moved_results(0):
        moved = sums()
    assert_array_equal(exact, 2 * x.astype(np.float32))
    # the sum is correctly rounded: half a spacing of the numbers from 2 to 4
    assert 0.9 < rms(moved - exact) / 2.0**-23 < 1.1
    assert_array_equal(sums(), exact)


def test_a_cleared_state_stays_a_number() -> None:
    with moved_results(0), Session("spec") as s:
        assert_array_equal(s.sqrt(s.mul(s.zeros((9,)), 2.0)).numpy(), np.zeros(9))


def test_shares() -> None:
    assert share(0.0, 0.0) == 0.0
    assert share(1.5, 1.0) == 0.5
    assert share(1e-30, 0.0) == np.inf
    assert np.isnan(share(np.nan, 1.0))


@pytest.mark.parametrize(
    ("words", "text"),
    [(["--only", "vgg"], "--only: got 'vgg'"), (["--steps", "0"], "--steps: got 0"), ([], "PyTorch is not installed")],
)
def test_the_command_refuses(words: list[str], text: str, capsys: pytest.CaptureFixture[str]) -> None:
    with mock.patch("audit.models.command.find_spec", return_value=None), pytest.raises(SystemExit) as raised:
        main(["models", *words])
    assert raised.value.code == 2
    assert text in capsys.readouterr().err
