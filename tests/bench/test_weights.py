"""The published hashes of the examples' weights: one of each example, and that of a training on what is present."""

import pytest

from bench import weights
from bench.examples import NAMES
from tests import DEVICES, ROOT

PUBLISHED = sorted((ROOT / "evidence").glob("weights-*.jsonl"))


def test_every_document_has_the_same_hashes() -> None:
    found = [weights.published(path) for path in PUBLISHED]
    assert found and all(f == found[0] for f in found) and set(found[0]) == set(NAMES)


@pytest.mark.parametrize("capture", [False, True])
@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("name", ["autoencoder", "digits"])
def test_training_gives_the_published_weights(name: str, device: str, capture: bool) -> None:
    assert weights.train(name, device, capture, weights.STEPS)[0] == weights.published(PUBLISHED[0])[name]
