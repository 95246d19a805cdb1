"""A text that ships with Python, as numbers: the reference topics of pydoc, some 460,000 characters of English."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

Numbers = npt.NDArray[np.uint32]


@dataclass(frozen=True)
class Text:
    """A text as indices into `alphabet`: the first nine tenths to train on, the last tenth to test."""

    alphabet: str
    train: Numbers
    test: Numbers
    about: dict[str, object]

    def batch(self, size: int, length: int, seed: int, k: int) -> tuple[Numbers, Numbers]:
        """Batch k: `size` windows of `length` characters from drawn positions, and for each character the next one."""
        starts = np.random.default_rng([seed, k]).integers(0, len(self.train) - length, size)
        return _windows(self.train, starts, length)

    def tests(self, size: int, length: int, max_batches: int) -> tuple[Numbers, Numbers]:
        """Consecutive windows of the test text, at most `max_batches` batches of `size`."""
        count = min(size * max_batches, (len(self.test) - 1) // length)
        return _windows(self.test, np.arange(count) * length, length)

    def unigram(self) -> float:
        """Cross-entropy of the test text under the training text's frequencies of characters, in nats per character."""
        counts = np.bincount(self.train, minlength=len(self.alphabet)) + 1.0
        return float(-np.log(counts / counts.sum())[self.test].mean())

    def decode(self, numbers: npt.ArrayLike) -> str:
        return "".join(self.alphabet[int(n)] for n in np.asarray(numbers))


def _windows(numbers: Numbers, starts: npt.NDArray[np.int64], length: int) -> tuple[Numbers, Numbers]:
    places = starts[:, None] + np.arange(length)
    return numbers[places], numbers[places + 1]


def topics() -> Text:
    """The text of the running Python's pydoc topics, in order of their names. Raises SystemExit where it is left out."""
    try:
        from pydoc_data.topics import topics as pages
    except ImportError:
        raise SystemExit(
            "this Python lacks pydoc_data, which the text comes from; CPython's own builds have it"
        ) from None
    text = "\n".join(pages[name] for name in sorted(pages))
    alphabet = "".join(sorted(set(text)))
    place = {c: i for i, c in enumerate(alphabet)}
    numbers = np.fromiter((place[c] for c in text), np.uint32, len(text))
    cut = len(numbers) * 9 // 10
    about = {
        "characters": len(text), "alphabet": len(alphabet), "text_sha256": hashlib.sha256(text.encode()).hexdigest(),
    }  # fmt: skip
    return Text(alphabet, numbers[:cut], numbers[cut:], about)


def sample(
    text: Text, logits: Callable[[Numbers], npt.NDArray[np.float64]], length: int, context: int, seed: int
) -> str:
    """`length` characters drawn one by one from the model: `logits` of the next character after at most `context` numbers."""
    rng = np.random.default_rng(seed)
    numbers = [text.alphabet.index("\n")]
    for _ in range(length):
        z = logits(np.array(numbers[-context:], np.uint32)).astype(np.float64)
        weights = np.exp(z - z.max())
        numbers.append(int(rng.choice(len(weights), p=weights / weights.sum())))
    return text.decode(numbers[1:])
