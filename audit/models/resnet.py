"""ResNet-18 as torchvision has it, with running statistics, for images of few pixels."""

from dataclasses import dataclass
from typing import Any

import numpy as np

from audit.models.batches import Batch, images, labels
from tlrt import Session, nn
from tlrt.tensor import TensorRef


@dataclass(frozen=True)
class Size:
    """The channels of the first stage, and the batch."""

    width: int = 16
    classes: int = 10
    batch: int = 4
    pixels: int = 64


OPTIMIZER = "SGD", {"lr": 2e-4, "momentum": 0.9, "weight_decay": 5e-4}
SIZES = {"small": Size(2, 3, 4, 32), "default": Size(), "large": Size(width=64)}


class BasicBlock(nn.Layer):
    """Two convolutions beside a shortcut, which is one too where the shape changes."""

    def __init__(self, s: Session, inputs: int, outputs: int, stride: int, name: str) -> None:
        self.conv1 = nn.Conv(s, inputs, outputs, 3, stride=stride, padding=1, bias=False, name=f"{name}.conv1")
        self.bn1 = nn.BatchNorm(s, outputs, name=f"{name}.bn1")
        self.conv2 = nn.Conv(s, outputs, outputs, 3, padding=1, bias=False, name=f"{name}.conv2")
        self.bn2 = nn.BatchNorm(s, outputs, name=f"{name}.bn2")
        self.downsample = None
        if stride != 1 or inputs != outputs:
            self.downsample = nn.Sequential(
                nn.Conv(s, inputs, outputs, 1, stride=stride, bias=False, name=f"{name}.downsample.0"),
                nn.BatchNorm(s, outputs, name=f"{name}.downsample.1"),
            )

    def __call__(self, x: TensorRef, *, training: bool = False) -> TensorRef:
        y = self.bn1(self.conv1(x), training=training).relu()
        y = self.bn2(self.conv2(y), training=training)
        return (y + (x if self.downsample is None else self.downsample(x, training=training))).relu()


class ResNet18(nn.Layer):
    """A stem, four stages of two blocks, the mean over the positions, and a linear layer."""

    def __init__(self, s: Session, size: Size) -> None:
        self.session, width = s, size.width
        self.conv1 = nn.Conv(s, 3, width, 7, stride=2, padding=3, bias=False, name="conv1")
        self.bn1 = nn.BatchNorm(s, width, name="bn1")
        self.maxpool = nn.MaxPool(3, stride=2, padding=1)
        blocks = []
        for stage in range(4):
            outputs = size.width << stage
            blocks.append(BasicBlock(s, width, outputs, 2 if stage else 1, f"layer{stage + 1}.0"))
            blocks.append(BasicBlock(s, outputs, outputs, 1, f"layer{stage + 1}.1"))
            width = outputs
        self.layers = nn.Sequential(*blocks)
        self.fc = nn.Linear(s, width, size.classes, name="fc")

    def __call__(self, x: TensorRef, *, training: bool = False) -> TensorRef:
        x = self.maxpool(self.bn1(self.conv1(x), training=training).relu())
        return self.fc(self.layers(x, training=training).mean(axis=(2, 3)))

    def loss(self, pixels: Any, classes: Any) -> TensorRef:
        return self.session.cross_entropy(self(self.session.const(pixels), training=True), classes)

    def evaluate(self, pixels: Any, classes: Any) -> dict[str, TensorRef]:
        """With the running statistics."""
        return {"logits": self(self.session.const(pixels))}


MODEL = ResNet18


def batch(rng: np.random.Generator, size: Size) -> Batch:
    return images(rng, size.batch, 3, size.pixels), labels(rng, size.classes, size.batch)


def twin(size: Size) -> Any:
    """The model in PyTorch."""
    import torch
    from torch import nn
    from torch.nn import functional as F

    class BasicBlock(nn.Module):
        def __init__(self, inputs: int, outputs: int, stride: int) -> None:
            super().__init__()
            self.conv1 = nn.Conv2d(inputs, outputs, 3, stride, 1, bias=False)
            self.bn1 = nn.BatchNorm2d(outputs)
            self.conv2 = nn.Conv2d(outputs, outputs, 3, 1, 1, bias=False)
            self.bn2 = nn.BatchNorm2d(outputs)
            self.downsample = None
            if stride != 1 or inputs != outputs:
                shortcut = nn.Conv2d(inputs, outputs, 1, stride, bias=False)
                self.downsample = nn.Sequential(shortcut, nn.BatchNorm2d(outputs))

        def forward(self, x: Any) -> Any:
            y = F.relu(self.bn1(self.conv1(x)))
            y = self.bn2(self.conv2(y))
            return F.relu(y + (x if self.downsample is None else self.downsample(x)))

    class ResNet18(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            width = size.width
            self.conv1 = nn.Conv2d(3, width, 7, 2, 3, bias=False)
            self.bn1 = nn.BatchNorm2d(width)
            self.maxpool = nn.MaxPool2d(3, 2, 1)
            for stage in range(4):
                outputs = size.width << stage
                blocks = (BasicBlock(width, outputs, 2 if stage else 1), BasicBlock(outputs, outputs, 1))
                self.add_module(f"layer{stage + 1}", nn.Sequential(*blocks))
                width = outputs
            self.avgpool = nn.AdaptiveAvgPool2d((1, 1))
            self.fc = nn.Linear(width, size.classes)

        def forward(self, x: Any) -> Any:
            x = self.maxpool(F.relu(self.bn1(self.conv1(x))))
            x = self.layer4(self.layer3(self.layer2(self.layer1(x))))
            return self.fc(torch.flatten(self.avgpool(x), 1))

        def loss(self, pixels: Any, classes: Any) -> Any:
            return F.cross_entropy(self(pixels), classes)

        def evaluate(self, pixels: Any, classes: Any) -> dict[str, Any]:
            return {"logits": self(pixels)}

    return ResNet18()
