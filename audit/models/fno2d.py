"""The Fourier neural operator of two axes (Li et al., arXiv:2010.08895), on channels first."""

from dataclasses import dataclass
from typing import Any

import numpy as np

from audit.models.batches import Batch, images
from tlrt import Session, nn
from tlrt.tensor import TensorRef


@dataclass(frozen=True)
class Size:
    """Channels, modes along each axis, layers, the width of the projection, and the batch."""

    width: int = 8
    modes: int = 5
    layers: int = 4
    hidden: int = 32
    batch: int = 2
    pixels: int = 24


OPTIMIZER = "AdamW", {"lr": 1e-3, "weight_decay": 1e-4}
SIZES = {"small": Size(2, 2, 1, 3, 1, 8), "default": Size(), "large": Size(32, 12, 4, 128, 4, 64)}


class FNO2d(nn.Layer):
    """The field and the coordinates lifted to channels, layers of spectral and pointwise maps, and a projection."""

    def __init__(self, s: Session, size: Size) -> None:
        self.session = s
        self.lift = nn.Linear(s, 3, size.width, name="lift")
        self.spectral = [nn.SpectralConv2d(s, size.width, size.modes, name=f"spectral.{i}") for i in range(size.layers)]
        self.point = [nn.Conv(s, size.width, size.width, 1, name=f"point.{i}") for i in range(size.layers)]
        self.hidden = nn.Linear(s, size.width, size.hidden, name="hidden")
        self.out = nn.Linear(s, size.hidden, 1, name="out")

    def __call__(self, field: Any, *, training: bool = False) -> TensorRef:
        """A field (batch, 1, pixels, pixels) to another."""
        s = self.session
        batch, _, n, _ = field.shape
        grid = np.meshgrid(np.linspace(0, 1, n), np.linspace(0, 1, n), indexing="ij")
        coordinates = s.const(np.broadcast_to(grid, (batch, 2, n, n)))
        x = self.lift(s.concat([s.const(field), coordinates], axis=1).permute((0, 2, 3, 1))).permute((0, 3, 1, 2))
        for i, (spectral, point) in enumerate(zip(self.spectral, self.point)):
            x = spectral(x) + point(x)
            x = x if i == len(self.point) - 1 else x.gelu(approximate="none")
        x = self.hidden(x.permute((0, 2, 3, 1))).gelu(approximate="none")
        return self.out(x).permute((0, 3, 1, 2))

    def loss(self, field: Any, target: Any) -> TensorRef:
        """The relative L2 error, the mean over the batch."""
        s = self.session
        wanted = s.const(target)
        apart = (self(field, training=True) - wanted).norm(axis=(1, 2, 3))
        return (apart / wanted.norm(axis=(1, 2, 3))).mean()

    def evaluate(self, field: Any, target: Any) -> dict[str, TensorRef]:
        return {"field": self(field)}


MODEL = FNO2d


def batch(rng: np.random.Generator, size: Size) -> Batch:
    return images(rng, size.batch, 1, size.pixels), images(rng, size.batch, 1, size.pixels)


def twin(size: Size) -> Any:
    """The model in PyTorch."""
    import torch
    from torch import nn
    from torch.nn import functional as F

    class SpectralConv2d(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            shape = (2 * size.modes, size.modes, size.width, size.width)
            self.weight_re, self.weight_im = (nn.Parameter(torch.rand(shape) / size.width**2) for _ in range(2))

        def forward(self, x: Any) -> Any:
            m, spectrum, weight = size.modes, torch.fft.rfft2(x), torch.complex(self.weight_re, self.weight_im)
            made = torch.zeros_like(spectrum)
            made[:, :, :m, :m] = torch.einsum("bixy,xyio->boxy", spectrum[:, :, :m, :m], weight[:m])
            made[:, :, -m:, :m] = torch.einsum("bixy,xyio->boxy", spectrum[:, :, -m:, :m], weight[m:])
            return torch.fft.irfft2(made, s=x.shape[-2:])

    class FNO2d(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.lift = nn.Linear(3, size.width)
            self.spectral = nn.ModuleList(SpectralConv2d() for _ in range(size.layers))
            self.point = nn.ModuleList(nn.Conv2d(size.width, size.width, 1) for _ in range(size.layers))
            self.hidden, self.out = nn.Linear(size.width, size.hidden), nn.Linear(size.hidden, 1)

        def forward(self, field: Any) -> Any:
            line = torch.linspace(0, 1, field.shape[-1], dtype=field.dtype)
            grid = torch.stack(torch.meshgrid(line, line, indexing="ij")).expand(len(field), -1, -1, -1)
            x = self.lift(torch.cat([field, grid], dim=1).permute(0, 2, 3, 1)).permute(0, 3, 1, 2)
            for i in range(size.layers):
                x = self.spectral[i](x) + self.point[i](x)
                x = F.gelu(x) if i < size.layers - 1 else x
            return self.out(F.gelu(self.hidden(x.permute(0, 2, 3, 1)))).permute(0, 3, 1, 2)

        def loss(self, field: Any, target: Any) -> Any:
            apart, wanted = ((y.flatten(1)).norm(dim=1) for y in (self(field) - target, target))
            return (apart / wanted).mean()

        def evaluate(self, field: Any, target: Any) -> dict[str, Any]:
            return {"field": self(field)}

    return FNO2d()
