"""The U-Net of Ronneberger et al. (arXiv:1505.04597) with batch norms, whose maps on the way down join those on the way up."""

from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np

from audit.models.batches import Batch, images, labels
from tlrt import Session, nn
from tlrt.tensor import TensorRef


@dataclass(frozen=True)
class Size:
    """The channels of the first level, the number of levels below it, and the batch."""

    width: int = 8
    depth: int = 4
    classes: int = 3
    batch: int = 2
    pixels: int = 32


OPTIMIZER = "SGD", {"lr": 2e-3, "momentum": 0.9, "nesterov": True}
SIZES = {"small": Size(width=2, depth=2, pixels=8), "default": Size(), "large": Size(width=64, pixels=64)}


class DoubleConv(nn.Layer):
    """(Convolution, batch norm, ReLU) twice."""

    def __init__(self, s: Session, inputs: int, outputs: int, name: str) -> None:
        self.layers = nn.Sequential(
            nn.Conv(s, inputs, outputs, 3, padding=1, bias=False, name=f"{name}.0"),
            nn.BatchNorm(s, outputs, name=f"{name}.1"),
            s.relu,
            nn.Conv(s, outputs, outputs, 3, padding=1, bias=False, name=f"{name}.3"),
            nn.BatchNorm(s, outputs, name=f"{name}.4"),
            s.relu,
        )

    def __call__(self, x: TensorRef, *, training: bool = False) -> TensorRef:
        return self.layers(x, training=training)


class UNet(nn.Layer):
    """Down by pools, up by transposed convolutions, and a score for each class at each pixel."""

    def __init__(self, s: Session, size: Size) -> None:
        self.session = s
        widths = [size.width << i for i in range(size.depth + 1)]
        self.first, self.pool = DoubleConv(s, 1, size.width, "first"), nn.MaxPool(2)
        pairs = list(enumerate(pairwise(widths)))
        self.down = [DoubleConv(s, a, b, f"down.{i}") for i, (a, b) in pairs]
        self.widen = [nn.ConvTranspose(s, b, a, 2, stride=2, name=f"widen.{i}") for i, (a, b) in pairs]
        self.up = [DoubleConv(s, b, a, f"up.{i}") for i, (a, b) in pairs]
        self.head = nn.Conv(s, size.width, size.classes, 1, name="head")

    def __call__(self, x: TensorRef, *, training: bool = False) -> TensorRef:
        maps = [self.first(x, training=training)]
        for down in self.down:
            maps.append(down(self.pool(maps[-1]), training=training))
        y = maps.pop()
        for widen, up in zip(reversed(self.widen), reversed(self.up)):
            y = up(self.session.concat([maps.pop(), widen(y)], axis=1), training=training)
        return self.head(y)

    def loss(self, pixels: Any, classes: Any) -> TensorRef:
        return self.session.cross_entropy(self(self.session.const(pixels), training=True), classes, axis=1)

    def evaluate(self, pixels: Any, classes: Any) -> dict[str, TensorRef]:
        """With the running statistics."""
        return {"logits": self(self.session.const(pixels))}


MODEL = UNet


def batch(rng: np.random.Generator, size: Size) -> Batch:
    return images(rng, size.batch, 1, size.pixels), labels(rng, size.classes, size.batch, size.pixels, size.pixels)


def twin(size: Size) -> Any:
    """The model in PyTorch."""
    import torch
    from torch import nn
    from torch.nn import functional as F

    def double_conv(inputs: int, outputs: int) -> Any:
        return nn.Sequential(
            nn.Conv2d(inputs, outputs, 3, padding=1, bias=False), nn.BatchNorm2d(outputs), nn.ReLU(),
            nn.Conv2d(outputs, outputs, 3, padding=1, bias=False), nn.BatchNorm2d(outputs), nn.ReLU(),
        )  # fmt: skip

    class UNet(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            widths = [size.width << i for i in range(size.depth + 1)]
            pairs = list(pairwise(widths))
            self.first = double_conv(1, size.width)
            self.down = nn.ModuleList(double_conv(a, b) for a, b in pairs)
            self.widen = nn.ModuleList(nn.ConvTranspose2d(b, a, 2, stride=2) for a, b in pairs)
            self.up = nn.ModuleList(double_conv(b, a) for a, b in pairs)
            self.head = nn.Conv2d(size.width, size.classes, 1)

        def forward(self, x: Any) -> Any:
            maps = [self.first(x)]
            for down in self.down:
                maps.append(down(F.max_pool2d(maps[-1], 2)))
            y = maps.pop()
            for widen, up in zip(reversed(self.widen), reversed(self.up)):
                y = up(torch.cat([maps.pop(), widen(y)], dim=1))
            return self.head(y)

        def loss(self, pixels: Any, classes: Any) -> Any:
            return F.cross_entropy(self(pixels), classes)

        def evaluate(self, pixels: Any, classes: Any) -> dict[str, Any]:
            return {"logits": self(pixels)}

    return UNet()
