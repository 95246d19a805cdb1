"""Models of plain torch.nn, and torchvision's that do not return logits and a loss, as modules that do."""

from types import SimpleNamespace
from typing import Any

import torch
from torch import nn
from torch.nn import functional as F


class Recurrent(nn.Module):
    """The next word of a text by nn.LSTM or nn.GRU."""

    def __init__(self, kind: str, words: int, width: int, bidirectional: bool = False) -> None:
        super().__init__()
        self.words = nn.Embedding(words, width)
        self.layers = getattr(nn, kind)(width, width, 2, batch_first=True, bidirectional=bidirectional)
        self.head = nn.Linear(width * (1 + bidirectional), words)

    def forward(self, x: Any) -> Any:
        return self.head(self.layers(self.words(x))[0]).transpose(1, 2)


class Translator(nn.Module):
    """nn.Transformer from a text to itself."""

    def __init__(self, words: int, width: int) -> None:
        super().__init__()
        self.words, self.head = nn.Embedding(words, width), nn.Linear(width, words)
        self.layers = nn.Transformer(width, 4, 2, 2, 2 * width, batch_first=True)

    def forward(self, x: Any) -> Any:
        return self.head(self.layers(self.words(x), self.words(x))).transpose(1, 2)


class Scene(nn.Module):
    """torchvision's segmentation of images."""

    def __init__(self, name: str, classes: int) -> None:
        super().__init__()
        from torchvision.models import segmentation

        self.model = getattr(segmentation, name)(weights=None, weights_backbone=None, num_classes=classes)

    def forward(self, x: Any) -> Any:
        return self.model(x)["out"]


class Detector(nn.Module):
    """torchvision's detection of boxes: as logits its losses in training, and the first boxes and scores otherwise."""

    def __init__(self, name: str, classes: int, **options: Any) -> None:
        super().__init__()
        from torchvision.models import detection

        self.model = getattr(detection, name)(weights=None, weights_backbone=None, num_classes=classes, **options)

    def forward(self, images: Any) -> Any:
        if not self.training:
            found = self.model(list(images))
            rows = [torch.cat([f["boxes"], f["scores"][:, None]], 1)[:5] for f in found]
            return SimpleNamespace(logits=torch.stack([F.pad(r, (0, 0, 0, 5 - len(r))) for r in rows]), loss=None)
        boxes = torch.tensor([[4.0, 4, 40, 40], [20, 10, 60, 50]], device=images.device)
        target = {"boxes": boxes, "labels": torch.tensor([1, 3], device=images.device)}
        losses = list(self.model(list(images), [target] * len(images)).values())
        return SimpleNamespace(logits=torch.stack(losses), loss=sum(losses))


class _Block(nn.Module):
    """Two convolutions with normalisation, shifted by the time."""

    def __init__(self, given: int, width: int) -> None:
        super().__init__()
        self.first, self.second = nn.Conv2d(given, width, 3, padding=1), nn.Conv2d(width, width, 3, padding=1)
        self.before, self.between = nn.GroupNorm(1, given), nn.GroupNorm(8, width)
        self.time, self.short = nn.Linear(width, width), nn.Conv2d(given, width, 1)

    def forward(self, x: Any, t: Any) -> Any:
        y = self.first(F.silu(self.before(x))) + self.time(F.silu(t))[:, :, None, None]
        return self.second(F.silu(self.between(y))) + self.short(x)


class Diffusion(nn.Module):
    """A U-Net that tells the noise in an image at a time."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.width, self.inner, self.outer = width, nn.Conv2d(3, width, 3, padding=1), nn.Conv2d(width, 3, 3, padding=1)
        self.down, self.middle, self.up = _Block(width, width), _Block(width, width), _Block(2 * width, width)
        self.shrink, self.attention = (
            nn.Conv2d(width, width, 3, 2, 1),
            nn.MultiheadAttention(width, 4, batch_first=True),
        )

    def forward(self, image: Any, noise: Any, time: Any) -> Any:
        share = (time.float() / 1000)[:, None, None, None]
        waves = torch.exp(-0.3 * torch.arange(self.width // 2, device=time.device)) * time[:, None]
        t = torch.cat([waves.sin(), waves.cos()], 1)
        a = self.down(self.inner((1 - share).sqrt() * image + share.sqrt() * noise), t)
        b = self.middle(self.shrink(a), t)
        rows = b.flatten(2).transpose(1, 2)
        b = b + self.attention(rows, rows, rows, need_weights=False)[0].transpose(1, 2).view_as(b)
        found = self.outer(self.up(torch.cat([a, F.interpolate(b, scale_factor=2.0)], 1), t))
        return SimpleNamespace(logits=found, loss=F.mse_loss(found, noise))


class Ranker(nn.Module):
    """Bags of words and numbers, and products of each with each."""

    def __init__(self, words: int, width: int, numbers: int) -> None:
        super().__init__()
        self.bags, self.dense = nn.EmbeddingBag(words, width, mode="mean"), nn.Linear(numbers, width)
        self.head = nn.Sequential(nn.Linear(width + 10, width), nn.ReLU(), nn.Linear(width, 1))

    def forward(self, words: Any, numbers: Any, clicks: Any) -> Any:
        bags = self.bags(words.flatten(0, 1)).unflatten(0, words.shape[:2])
        all_rows = torch.cat([self.dense(numbers)[:, None], bags], 1)
        i, j = torch.triu_indices(5, 5, 1, device=words.device)
        pairs = (all_rows @ all_rows.transpose(1, 2))[:, i, j]
        logits = self.head(torch.cat([all_rows[:, 0], pairs], 1)).squeeze(1)
        return SimpleNamespace(logits=logits, loss=F.binary_cross_entropy_with_logits(logits, clicks.float()))


class Graph(nn.Module):
    """Two rounds of messages along edges, of each graph of a batch on its own."""

    def __init__(self, width: int, classes: int) -> None:
        super().__init__()
        self.rounds = nn.ModuleList(
            [nn.Sequential(nn.Linear(2 * width, 2 * width), nn.ELU(), nn.Linear(2 * width, width))] * 2
        )
        self.head = nn.Linear(width, classes)

    def forward(self, nodes: Any, ends: Any, labels: Any) -> Any:
        batch, count, width = nodes.shape
        x = nodes.flatten(0, 1)
        first, last = (ends + count * torch.arange(batch, device=ends.device)[:, None, None]).unbind(1)
        for layer in self.rounds:
            message = layer(torch.cat([x[first], x[last]], -1)).flatten(0, 1)
            mean = torch.zeros_like(x).scatter_reduce(0, last.reshape(-1, 1).expand(-1, width), message, "mean")
            x = F.layer_norm(x.index_add(0, last.flatten(), message) + mean, (width,))
        logits = self.head(x.unflatten(0, (batch, count)).amax(1))
        return SimpleNamespace(logits=logits, loss=F.cross_entropy(logits, labels))
