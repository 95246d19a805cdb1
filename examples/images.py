"""scikit-learn's handwritten digits: 1797 images of 8 x 8, split into four fifths to train on and one to test."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from examples.common import NOT_INSTALLED


def digits() -> tuple[tuple[npt.NDArray[Any], npt.NDArray[Any]], tuple[npt.NDArray[Any], npt.NDArray[Any]]]:
    """((images, labels) to train on, those to test on): images (n, 1, 8, 8) in [0, 1], in a shuffled order that is always the
    same. Raises SystemExit where scikit-learn is not installed."""
    try:
        from sklearn.datasets import load_digits
    except ImportError:
        raise SystemExit(f"scikit-learn {NOT_INSTALLED}") from None
    data = load_digits()
    order = np.random.default_rng(0).permutation(len(data.target))
    images = (data.images[order, None] / 16.0).astype(np.float32)
    labels = data.target[order].astype(np.uint32)
    cut = len(labels) * 4 // 5
    return (images[:cut], labels[:cut]), (images[cut:], labels[cut:])
