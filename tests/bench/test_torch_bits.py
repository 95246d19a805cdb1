"""Models of plain torch.nn in strict blocks: nothing is left, and neither the batch nor another run gives other bits."""

from typing import Any

import pytest

torch = pytest.importorskip("torch")

from bench import torch_bits  # noqa: E402

ROWS: dict[str, Any] = {}


def row(name: str) -> Any:
    if name not in ROWS:
        ROWS[name] = torch_bits.measure(name, "cpu", [1, 3], 2)
    return ROWS[name]


@pytest.mark.parametrize("name", ["diffusion U-Net", "ranking", "graph", "GRU", "nn.Transformer"])
def test_models_leave_nothing_and_do_not_see_their_batch(name: str) -> None:
    assert torch_bits.faults([row(name)], {}) == []


def test_training_has_the_same_bits_again_and_follows_its_steps() -> None:
    assert torch_bits.train("ranking", "cpu", 2) == row("ranking")["weights"]
    assert torch_bits.train("ranking", "cpu", 3) != row("ranking")["weights"]


PLANTED: dict[str, Any] = {
    "weights: got": {"weights": "00000000"},
    "left to PyTorch": {"left": ["erfc"], "coverage": 0.9},
    "no finite numbers": {"finite": False},
    "batches of": {"other_batches": [3]},
    "on cpu: ValueError": {"error": "ValueError: planted"},
}


@pytest.mark.parametrize("fault", PLANTED)
def test_each_fault_is_named(fault: str) -> None:
    good = row("ranking")
    (found,) = torch_bits.faults([{**good, **PLANTED[fault]}], {"ranking": good})
    assert fault in found
