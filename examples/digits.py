"""A small convolutional network on scikit-learn's handwritten digits.

The model has two convolutions with batch normalisation, a pool, a third convolution, a pool, dropout and an affine layer. Adam
trains it with the one-cycle schedule. The report has the loss and the accuracy on the test images.
"""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np
import numpy.typing as npt

from examples import common, images
from tlrt import Session, TensorRef, nn, optim

PRESETS = {
    "small": {"steps": 600, "batch": 64, "channels": 16, "dropout": 0.3, "rate": 3e-3},
    "large": {"steps": 2000, "batch": 256, "channels": 64, "dropout": 0.4, "rate": 3e-3},
}


def build(session: Session, settings: common.Settings) -> common.Program:
    s, c = session, settings["channels"]
    (x, y), (x_test, y_test) = images.digits()
    model = nn.Sequential(
        nn.Conv(s, 1, c, 3, padding=1, bias=False, name="conv1"), nn.BatchNorm(s, c, name="norm1"), s.relu,
        nn.Conv(s, c, 2 * c, 3, padding=1, bias=False, name="conv2"), nn.BatchNorm(s, 2 * c, name="norm2"), s.relu,
        nn.MaxPool(2), nn.Conv(s, 2 * c, 4 * c, 3, padding=1, name="conv3"), s.relu, nn.MaxPool(2),
        lambda h: h.reshape((-1, 16 * c)), nn.Dropout(settings["dropout"]), nn.Linear(s, 16 * c, 10, name="classes"),
    )  # fmt: skip
    batches = common.Batches(len(y), settings["batch"], s.seed)

    def batch(k: int) -> tuple[Any, ...]:
        chosen = batches(k)
        return x[chosen], y[chosen]

    def loss(images: npt.ArrayLike, labels: npt.ArrayLike) -> TensorRef:
        return s.cross_entropy(model(s.const(images), training=True), labels)

    def evaluate() -> dict[str, float]:
        hits, total = 0, 0.0
        for part in common.chunks(len(y_test), 128):
            logits = model(s.const(x_test[part]))
            hits += int((logits.numpy().argmax(1) == y_test[part]).sum())
            total += s.cross_entropy(logits, y_test[part]).item() * len(y_test[part])
            s.reset()
        return {"test_loss": total / len(y_test), "test_accuracy": hits / len(y_test)}

    return common.Program(
        optim.Adam(model.parameters(), lr=settings["rate"]), batch, loss,
        lambda k: nn.schedules.one_cycle(k, peak=settings["rate"], total=settings["steps"]), evaluate,
        about={"train_images": len(y), "test_images": len(y_test), "pixels": int(np.prod(x.shape[1:]))},
    )  # fmt: skip


EXAMPLE = common.Example("digits", __doc__ or "", PRESETS, build)
main = partial(common.main, EXAMPLE)
program = common.audited(EXAMPLE)

if __name__ == "__main__":
    main()
