"""Unmodified models on every device: the evidence is quoted, and hashes stay those of the evidence."""

import pytest

from audit import unmodified
from tests import DEVICES


def test_the_page_quotes_the_evidence() -> None:
    assert (unmodified.ROOT / unmodified.PAGE).read_text("utf-8") == unmodified.page(), (
        "stale: run `python -m audit torch --page`"
    )


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("name", ["ResNet-18", "Llama-style"])
def test_hashes_are_those_of_the_evidence(name: str, device: str) -> None:
    pytest.importorskip("torch")
    known = unmodified.recorded(pytest.importorskip("transformers").__version__)
    if name not in known:
        pytest.skip("no evidence with this version of transformers")
    row = unmodified.measure(name, "cpu" if device == "cpu" else "cuda:0", timed=False)
    assert (row["logits"], row["gradients"]) == known[name] and row["coverage"] == 1
