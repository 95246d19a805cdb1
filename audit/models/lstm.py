"""A language model of LSTM layers, whose state goes on from batch to batch in evaluation."""

from dataclasses import dataclass
from typing import Any

import numpy as np

from audit.models.batches import Batch, labels
from tlrt import Session, nn
from tlrt.tensor import TensorRef


@dataclass(frozen=True)
class Size:
    """Vocabulary, width of embeddings and states, layers, and the batch."""

    tokens: int = 60
    width: int = 48
    layers: int = 2
    batch: int = 4
    length: int = 20


OPTIMIZER = "Adam", {"lr": 2e-3}
SIZES = {"small": Size(7, 4, 2, 2, 3), "default": Size(), "large": Size(2000, 256, 2, 16, 35)}


class LanguageModel(nn.Layer):
    """Embedded tokens, the layers, and logits of the next token."""

    def __init__(self, s: Session, size: Size) -> None:
        self.session = s
        self.embedding = nn.Embedding(s, size.tokens, size.width, name="embedding")
        self.lstm = nn.LSTM(s, size.width, size.width, size.layers, name="lstm", batch_first=True)
        self.decoder = nn.Linear(s, size.width, size.tokens, name="decoder")

    def __call__(self, tokens: Any, states: Any = None, *, training: bool = False) -> Any:
        x, states = self.lstm(self.embedding(tokens), states)
        return self.decoder(x), states

    def loss(self, tokens: Any) -> TensorRef:
        return self.session.cross_entropy(self(tokens[:, :-1])[0], tokens[:, 1:])

    def evaluate(self, tokens: Any) -> dict[str, TensorRef]:
        """Logits of all tokens, and what those of each half after the other differ by."""
        logits, half = self(tokens)[0], tokens.shape[1] // 2
        first, states = self(tokens[:, :half])
        parts = self.session.concat([first, self(tokens[:, half:], states)[0]], axis=1)
        return {"logits": logits, "halves - full": parts - logits}


MODEL = LanguageModel


def batch(rng: np.random.Generator, size: Size) -> Batch:
    return (labels(rng, size.tokens, size.batch, size.length + 1),)


def twin(size: Size) -> Any:
    """The model in PyTorch."""
    import torch
    from torch import nn
    from torch.nn import functional as F

    class LanguageModel(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.embedding = nn.Embedding(size.tokens, size.width)
            self.lstm = nn.LSTM(size.width, size.width, size.layers, batch_first=True)
            self.decoder = nn.Linear(size.width, size.tokens)

        def forward(self, tokens: Any) -> Any:
            return self.decoder(self.lstm(self.embedding(tokens))[0])

        def loss(self, tokens: Any) -> Any:
            return F.cross_entropy(self(tokens[:, :-1]).flatten(0, 1), tokens[:, 1:].flatten())

        def evaluate(self, tokens: Any) -> dict[str, Any]:
            logits = self(tokens)
            return {"logits": logits, "halves - full": torch.zeros_like(logits)}

    return LanguageModel()
