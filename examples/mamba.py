"""A selective state space model (Mamba) on characters: predicts the next character of a text that ships with Python.

The model has an embedding, residual blocks of normalisation and selective scan, a normalisation and a linear head. It has no
positions and no attention: only the states of the scans hold earlier text. AdamW trains it with clipping and a cosine
schedule. The report has the loss on the test text, beside that of the frequencies of characters.
"""

from __future__ import annotations

from functools import partial

import numpy.typing as npt

from examples import common, text
from tlrt import Session, TensorRef, nn, optim
from tlrt.nn import init

PRESETS = {
    "small": {
        "steps": 2500, "batch": 8, "context": 64, "width": 64, "layers": 2, "state": 8, "dropout": 0.05, "rate": 4e-3,
        "decay": 0.1, "tests": 30,
    },
    "large": {
        "steps": 5000, "batch": 32, "context": 256, "width": 256, "layers": 6, "state": 16, "dropout": 0.1, "rate": 1e-3,
        "decay": 0.1, "tests": 20,
    },
}  # fmt: skip


class CharMamba(nn.Layer):
    """Logits of the next character: numbers (batch, n), any n, to (batch, n, characters)."""

    def __init__(self, session: Session, characters: int, settings: common.Settings) -> None:
        s, width = session, settings["width"]
        small = partial(init.normal, std=0.02)
        self.session = s
        self.tokens = nn.Embedding(s, characters, width, name="tokens", weight_init=small)
        self.norms = [nn.LayerNorm(s, width, name=f"norm{i}") for i in range(settings["layers"])]
        self.blocks = [
            nn.MambaBlock(s, width, state=settings["state"], name=f"block{i}") for i in range(settings["layers"])
        ]
        self.dropout = nn.Dropout(settings["dropout"])
        self.norm = nn.LayerNorm(s, width, name="norm")
        self.head = nn.Linear(s, width, characters, name="head", bias=False, weight_init=small)

    def __call__(self, x: npt.ArrayLike, *, training: bool = False) -> TensorRef:
        s = self.session
        h = self.tokens(x)
        for norm, block in zip(self.norms, self.blocks, strict=True):
            h = s.add(h, self.dropout(block(norm(h)), training=training))
        return self.head(self.norm(h))


def build(session: Session, settings: common.Settings) -> common.Program:
    s, corpus = session, text.topics()
    model = CharMamba(s, len(corpus.alphabet), settings)
    size, length, steps = settings["batch"], settings["context"], settings["steps"]

    def loss(x: npt.ArrayLike, y: npt.ArrayLike) -> TensorRef:
        return s.cross_entropy(model(x, training=True), y)

    def evaluate() -> dict[str, float]:
        x, y = corpus.tests(size, length, settings["tests"])
        total, hits = 0.0, 0
        for part in common.chunks(len(x), size):
            logits = model(x[part])
            total += s.cross_entropy(logits, y[part]).item() * len(x[part])
            hits += int((logits.numpy().argmax(-1) == y[part]).sum())
            s.reset()
        return {"test_loss": total / len(x), "test_accuracy": hits / y.size, "unigram_loss": corpus.unigram()}

    def rate(k: int) -> float:
        peak = settings["rate"]
        return nn.schedules.cosine(k, peak=peak, total=steps, warmup=min(50, steps), final=peak / 10)

    return common.Program(
        optim.AdamW(model.parameters(), lr=settings["rate"], beta2=0.99, weight_decay=settings["decay"]),
        lambda k: corpus.batch(size, length, s.seed, k), loss, rate, evaluate, clip=1.0, about=corpus.about,
    )  # fmt: skip


EXAMPLE = common.Example("mamba", __doc__ or "", PRESETS, build)
main = partial(common.main, EXAMPLE)
program = common.audited(EXAMPLE)

if __name__ == "__main__":
    main()
