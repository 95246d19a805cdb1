"""What models are given: arrays of float32 and of integers."""

from typing import Any

import numpy as np
import numpy.typing as npt

Batch = tuple[npt.NDArray[Any], ...]


def images(rng: np.random.Generator, batch: int, channels: int, pixels: int) -> npt.NDArray[np.float32]:
    """Noise (batch, channels, pixels, pixels)."""
    return rng.standard_normal((batch, channels, pixels, pixels)).astype(np.float32)


def labels(rng: np.random.Generator, classes: int, *shape: int) -> npt.NDArray[np.int64]:
    """Integers from 0 to classes - 1."""
    return rng.integers(0, classes, shape)
