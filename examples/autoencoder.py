"""A convolutional autoencoder on scikit-learn's handwritten digits.

Two strided convolutions give a short code, two transposed convolutions give 8 x 8 pixels again. AdamW with a cosine schedule
minimises the mean squared error. The report has that error on test images. Beside it are the errors of the mean image and of
as many principal components as the code has numbers.
"""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np
import numpy.typing as npt

from examples import common, images
from tlrt import Session, TensorRef, nn, optim

PRESETS = {
    "small": {"steps": 1500, "batch": 64, "channels": 16, "code": 8, "rate": 3e-3},
    "large": {"steps": 6000, "batch": 128, "channels": 64, "code": 8, "rate": 2e-3},
}


def build(session: Session, settings: common.Settings) -> common.Program:
    s, c, code = session, settings["channels"], settings["code"]
    (x, _), (x_test, _) = images.digits()
    encoder = nn.Sequential(
        nn.Conv(s, 1, c, 4, stride=2, padding=1, name="down1"), s.relu,
        nn.Conv(s, c, 2 * c, 4, stride=2, padding=1, name="down2"), s.relu, lambda h: h.reshape((-1, 8 * c)),
        nn.Linear(s, 8 * c, code, name="code"),
    )  # fmt: skip
    decoder = nn.Sequential(
        nn.Linear(s, code, 8 * c, name="widen"), s.relu, lambda h: h.reshape((-1, 2 * c, 2, 2)),
        nn.ConvTranspose(s, 2 * c, c, 4, stride=2, padding=1, name="up1"), s.relu,
        nn.ConvTranspose(s, c, 1, 4, stride=2, padding=1, name="up2"), s.sigmoid,
    )  # fmt: skip
    model = nn.Sequential(encoder, decoder)
    batches = common.Batches(len(x), settings["batch"], s.seed)

    def loss(images: npt.ArrayLike) -> TensorRef:
        pixels = s.const(images)
        return s.mse_loss(model(pixels, training=True), pixels)

    def evaluate() -> dict[str, float]:
        made = []
        for part in common.chunks(len(x_test), 128):
            made.append(model(s.const(x_test[part])).numpy())
            s.reset()
        return {"test_mse": float(np.mean((np.concatenate(made) - x_test) ** 2)), **_baselines(x, x_test, code)}

    return common.Program(
        optim.AdamW(model.parameters(), lr=settings["rate"], weight_decay=1e-4), lambda k: (x[batches(k)],), loss,
        lambda k: nn.schedules.cosine(k, peak=settings["rate"], total=settings["steps"]), evaluate,
        about={"train_images": len(x), "test_images": len(x_test), "code": code},
    )  # fmt: skip


def _baselines(x: Any, x_test: Any, code: int) -> dict[str, float]:
    """Test errors of the mean training image, and of its leading principal components."""
    flat, test = (a.reshape(len(a), -1).astype(np.float64) for a in (x, x_test))
    centred = test - flat.mean(0)
    axes = np.linalg.svd(flat - flat.mean(0), full_matrices=False)[2][:code]
    rest = centred - centred @ axes.T @ axes
    return {"mean_image_mse": float((centred**2).mean()), "principal_components_mse": float((rest**2).mean())}


EXAMPLE = common.Example("autoencoder", __doc__ or "", PRESETS, build)
main = partial(common.main, EXAMPLE)
program = common.audited(EXAMPLE)

if __name__ == "__main__":
    main()
