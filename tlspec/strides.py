"""Arrays that lie in flat buffers with strides, as references see them."""

from collections.abc import Sequence
from typing import Any

import numpy as np


def strided(x: Any, shape: Sequence[int], strides: Sequence[int]) -> Any:
    """The array of this shape whose elements stand in a flat buffer, one further along an axis being `strides` further there."""
    at = np.zeros((1,) * len(shape), np.int64)
    for axis, (n, stride) in enumerate(zip(shape, strides, strict=True)):
        at = at + np.arange(n).reshape(-1, *(1,) * (len(shape) - 1 - axis)) * int(stride)
    return x[at]
