"""Models of plain torch.nn, and torchvision's that do not return logits and a loss, as modules that do."""

from types import SimpleNamespace
from typing import Any

import torch
from torch import nn
from torch.nn import functional as F
from torch.overrides import handle_torch_function, has_torch_function


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


class _Double(nn.Sequential):
    """Two convolutions, each with its normalisation."""

    def __init__(self, given: int, width: int) -> None:
        layers = [nn.Conv2d(given, width, 3, padding=1, bias=False), nn.BatchNorm2d(width), nn.ReLU(inplace=True)]
        layers += [nn.Conv2d(width, width, 3, padding=1, bias=False), nn.BatchNorm2d(width), nn.ReLU(inplace=True)]
        super().__init__(*layers)


class Contour(nn.Module):
    """A U-Net that gives each pixel a class: halved four times, and back by transposed convolutions."""

    def __init__(self, width: int, classes: int) -> None:
        super().__init__()
        widths = [width << k for k in range(5)]
        self.down = nn.ModuleList([_Double(a, b) for a, b in zip([3, *widths[:-1]], widths, strict=True)])
        self.grow = nn.ModuleList([nn.ConvTranspose2d(2 * w, w, 2, 2) for w in widths[:-1]])
        self.up = nn.ModuleList([_Double(2 * w, w) for w in widths[:-1]])
        self.head = nn.Conv2d(width, classes, 1)

    def forward(self, x: Any) -> Any:
        kept = []
        for k, layer in enumerate(self.down):
            x = layer(F.max_pool2d(x, 2) if k else x)
            kept.append(x)
        for k in reversed(range(len(self.up))):
            x = self.up[k](torch.cat([kept[k], self.grow[k](x)], 1))
        return self.head(x)


class Messages(nn.Module):
    """Rounds of messages along the edges of a batch of graphs, which are summed at the nodes."""

    def __init__(self, width: int, rounds: int, classes: int) -> None:
        super().__init__()
        self.given = nn.Linear(64, width)
        self.edges = nn.ModuleList([nn.Linear(2 * width, width) for _ in range(rounds)])
        self.nodes = nn.ModuleList([nn.Linear(2 * width, width) for _ in range(rounds)])
        self.norms = nn.ModuleList([nn.LayerNorm(width) for _ in range(rounds)])
        self.head = nn.Linear(width, classes)

    def forward(self, nodes: Any, ends: Any, labels: Any) -> Any:
        batch, count, _ = nodes.shape
        x = self.given(nodes.flatten(0, 1))
        first, last = (ends + count * torch.arange(batch, device=ends.device)[:, None, None]).unbind(1)
        first, last = first.flatten(), last.flatten()
        for edge, node, norm in zip(self.edges, self.nodes, self.norms, strict=True):
            message = F.relu(edge(torch.cat([x.index_select(0, first), x.index_select(0, last)], 1)))
            found = torch.zeros_like(x).index_add(0, last, message)
            x = norm(x + F.relu(node(torch.cat([x, found], 1))))
        logits = self.head(x)
        return SimpleNamespace(logits=logits, loss=F.cross_entropy(logits, labels.flatten()))


def spectral_conv(x: Any, re: Any, im: Any) -> Any:
    """The lowest frequencies along the grid of (batch, grid, width), each mixed by a matrix of its own."""
    if has_torch_function((x, re, im)):
        return handle_torch_function(spectral_conv, (x, re, im), x, re, im)
    low = torch.einsum("bkc,kco->bko", torch.fft.rfft(x, dim=1)[:, : len(re)], torch.complex(re, im))
    return torch.fft.irfft(low, x.shape[1], dim=1)


class Operator1d(nn.Module):
    """A Fourier neural operator over a line."""

    def __init__(self, width: int, modes: int, layers: int) -> None:
        super().__init__()
        self.lift, self.project = nn.Linear(2, width), nn.Linear(width, 1)
        self.re, self.im = (
            nn.ParameterList([nn.Parameter(torch.randn(modes, width, width)) for _ in range(layers)]) for _ in range(2)
        )
        self.local = nn.ModuleList([nn.Linear(width, width) for _ in range(layers)])

    def forward(self, field: Any, wanted: Any) -> Any:
        x = self.lift(field)
        for re, im, local in zip(self.re, self.im, self.local, strict=True):
            x = F.gelu(spectral_conv(x, re, im) + local(x))
        found = self.project(x)
        return SimpleNamespace(logits=found, loss=F.mse_loss(found, wanted))


class Operator2d(nn.Module):
    """A Fourier neural operator over a plane: the lowest frequencies of both signs along one axis."""

    def __init__(self, width: int, modes: int, layers: int) -> None:
        super().__init__()
        self.modes = modes
        self.lift, self.project = nn.Conv2d(3, width, 1), nn.Conv2d(width, 1, 1)
        self.weights = nn.ParameterList(
            [nn.Parameter(torch.randn(2, width, width, modes, modes, dtype=torch.complex64)) for _ in range(layers)]
        )
        self.local = nn.ModuleList([nn.Conv2d(width, width, 1) for _ in range(layers)])

    def forward(self, field: Any, wanted: Any) -> Any:
        x, k = self.lift(field), self.modes
        for weights, local in zip(self.weights, self.local, strict=True):
            given = torch.fft.rfft2(x)
            mixed = torch.zeros_like(given)
            mixed[:, :, :k, :k] = torch.einsum("bixy,ioxy->boxy", given[:, :, :k, :k], weights[0])
            mixed[:, :, -k:, :k] = torch.einsum("bixy,ioxy->boxy", given[:, :, -k:, :k], weights[1])
            x = F.gelu(torch.fft.irfft2(mixed, x.shape[-2:]) + local(x))
        found = self.project(x)
        return SimpleNamespace(logits=found, loss=F.mse_loss(found, wanted))
