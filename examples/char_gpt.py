"""A GPT on characters: predicts the next character of a text that ships with Python.

The model has token and position embeddings, causal transformer blocks, a normalisation and a linear head. AdamW trains it
with clipping, warm-up and a cosine schedule. The large preset has 6 layers, 6 heads, width 384 and context 256. The report has
the loss on the test text, beside that of the frequencies of characters.

`--peer torch` trains the same model in PyTorch from the same weights on the same batches and stores both curves. It needs
`--set dropout=0`, as the two libraries draw different masks.
"""

from __future__ import annotations

import argparse
from functools import partial
from typing import Any

import numpy as np
import numpy.typing as npt

from examples import common, text
from tlrt import Session, TensorRef, nn, optim
from tlrt.nn import init

PRESETS = {
    "small": {
        "steps": 1500, "batch": 16, "context": 64, "width": 128, "layers": 2, "heads": 4, "dropout": 0.05,
        "rate": 2e-3, "decay": 0.1, "tests": 20,
    },
    "large": {
        "steps": 5000, "batch": 64, "context": 256, "width": 384, "layers": 6, "heads": 6, "dropout": 0.2,
        "rate": 1e-3, "decay": 0.1, "tests": 10,
    },
}  # fmt: skip
WARMUP = 100
CLIP = 1.0


class CharGPT(nn.Layer):
    """Logits of the next character: numbers (batch, n), n up to the context, to (batch, n, characters).

    Weights start normal with deviation 0.02 (GPT-2).
    """

    def __init__(self, session: Session, characters: int, settings: common.Settings) -> None:
        s, width, depth = session, settings["width"], settings["layers"]
        small = partial(init.normal, std=0.02)
        self.session = s
        self.tokens = nn.Embedding(s, characters, width, name="tokens", weight_init=small)
        self.positions = s.param(small(s, (settings["context"], width)), "positions")
        self.dropout = nn.Dropout(settings["dropout"])
        self.blocks = [
            nn.TransformerBlock(
                s, width, settings["heads"], name=f"block{i}", causal=True, dropout=settings["dropout"],
                weight_init=small,
            )
            for i in range(depth)
        ]  # fmt: skip
        self.norm = nn.LayerNorm(s, width, name="norm")
        self.head = nn.Linear(s, width, characters, name="head", bias=False, weight_init=small)

    def __call__(self, x: npt.ArrayLike, *, training: bool = False) -> TensorRef:
        s = self.session
        n = np.shape(x)[1]
        h = s.add(self.tokens(x), s.slice_range0(s.use(self.positions), 0, n))
        h = self.dropout(h, training=training)
        for block in self.blocks:
            h = block(h, training=training)
        return self.head(self.norm(h))


def build(session: Session, settings: common.Settings) -> common.Program:
    s, corpus = session, text.topics()
    model = CharGPT(s, len(corpus.alphabet), settings)
    size, length = settings["batch"], settings["context"]

    def loss(x: npt.ArrayLike, y: npt.ArrayLike) -> TensorRef:
        return s.cross_entropy(model(x, training=True), y)

    def evaluate() -> dict[str, float]:
        x, y = corpus.tests(size, length, settings["tests"])
        total = 0.0
        for part in common.chunks(len(x), size):
            total += s.cross_entropy(model(x[part]), y[part]).item() * len(x[part])
            s.reset()
        return {"test_loss": total / len(x), "unigram_loss": corpus.unigram()}

    kept = {"initial": {p.name: p.numpy() for p in model.parameters()}, "model": model, "text": corpus}
    return common.Program(
        optim.AdamW(model.parameters(), lr=settings["rate"], beta2=0.99, weight_decay=settings["decay"]),
        lambda k: corpus.batch(size, length, s.seed, k), loss, lambda k: rate(k, settings), evaluate, CLIP,
        about=corpus.about, kept=kept,
    )  # fmt: skip


def rate(k: int, settings: common.Settings) -> float:
    """The learning rate of step k, a tenth of the highest at the end."""
    peak, total = settings["rate"], settings["steps"]
    return nn.schedules.cosine(k, peak=peak, total=total, warmup=min(WARMUP, total // 2), final=peak / 10)


def arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--peer", choices=["torch"], help="train the same model in PyTorch too (--set dropout=0)")
    parser.add_argument("--sample", type=int, default=0, metavar="N", help="print N characters drawn from the model")


def check(settings: common.Settings, given: argparse.Namespace) -> None:
    if given.peer == "torch":
        from examples import torch_gpt

        torch_gpt.check(settings, given)


def after(session: Session, program: common.Program, given: argparse.Namespace, report: dict[str, Any]) -> None:
    model, corpus = program.kept["model"], program.kept["text"]
    if given.sample:

        def logits(numbers: npt.NDArray[np.uint32]) -> npt.NDArray[np.float64]:
            last = model(numbers[None]).numpy()[0, -1]
            session.reset()
            return last

        with session.no_grad():
            report["sample"] = text.sample(corpus, logits, given.sample, report["settings"]["context"], session.seed)
    if given.peer == "torch":
        from examples import torch_gpt

        report["peers"] = {"torch": torch_gpt.train(program, report["settings"], given)}


EXAMPLE = common.Example("char_gpt", __doc__ or "", PRESETS, build, arguments, check, after)
main = partial(common.main, EXAMPLE)
program = common.audited(EXAMPLE)

if __name__ == "__main__":
    main()
