"""The data classes: what values drawn arrays hold.

============  ========================================================================================================
data class    values
============  ========================================================================================================
normal        N(0, 1)
uniform       [0, 1), multiples of 2^-24
wide          every finite float32 is equally likely to be hit by exponent: all binades, subnormals, both signs
special       normal, sprinkled with ±0, ±inf, NaN, subnormals, ties, and for rounded-once operations ±max, or with one of
              these, often near the end; and in some arrays rows of one of them alone, often of -inf, as masks leave them
integers      small integers whose sums and products stay below 2^24, so every summation order is exact: tolerance 0
structured    constant, one-hot, ascending, few distinct values, zeros, alternating signs; short significands, because a
              rounding repeated on equal data is biased and the probabilistic bounds do not cover it
huge          normal, times a power of two from 2^96 up for each row, nothing beyond the largest float32: sums overflow
              where means and neighbouring results do not
offset        normal, around a number of ±2^6 to ±2^12: what is not shifted first overflows or cancels. The judge draws it
spread        normal, times 2^5 to 2^7, or one number of each row by that much above the others, in every other row its last:
              exponentials underflow beside others, and overflow where a maximum misses one. The judge draws it
grid          multiples of 2^-6 in [-2, 2]: small combinations of them are exact, which the laws need
============  ========================================================================================================
"""

import hashlib
import os
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
from numpy.random.bit_generator import ISeedSequence

#: the data classes
DATA = ("normal", "uniform", "wide", "special", "integers", "structured", "huge", "grid", "offset", "spread")


class _Key(ISeedSequence):
    """Gives Philox its key, which then asks the system for no entropy: half the time of ``Philox(key=...)``."""

    def __init__(self, digest: bytes):
        self._words = np.frombuffer(digest, "<u8")

    def generate_state(self, n_words: int, dtype: Any = np.uint32) -> np.ndarray:
        return self._words


def generator(*key: object) -> np.random.Generator:
    """A Philox generator keyed by words.

    Parameters
    ----------
    *key : object
        The words, by their ``str``. The same words give the same numbers in every process.

    Returns
    -------
    numpy.random.Generator
        At its start.
    """
    digest = hashlib.blake2b("|".join(map(str, key)).encode(), digest_size=16).digest()
    seed: Any = _Key(digest)  # NumPy's annotations know no seed sequence but its own
    return np.random.Generator(np.random.Philox(seed))


#: numbers that are drawn by one thread
PART = 1 << 22


def _in_parts(rng: np.random.Generator, n: int, draw: Callable[[np.random.Generator, int], np.ndarray]) -> np.ndarray:
    """What `draw` makes n of: more than PART by threads, each part from a place of its own in the generator's sequence."""
    source = rng.bit_generator
    if n <= PART or not isinstance(source, np.random.Philox):
        return draw(rng, n)
    x = np.empty(n, np.float32)

    def fill_part(i: int) -> None:
        part = x[i * PART : (i + 1) * PART]
        part[...] = draw(np.random.Generator(source.jumped(i + 1)), part.size)

    count = -(-n // PART)
    with ThreadPoolExecutor(len(os.sched_getaffinity(0))) as pool:
        list(pool.map(fill_part, range(count)))
    source.state = source.jumped(count + 1).state
    return x


_SPECIALS = np.array(
    [
        0.0, -0.0, -0.0, 0.0, -0.0, np.inf, -np.inf, np.nan, -np.nan, 2.0**-149, -(2.0**-149), 2.0**-126, -(2.0**-127),
        1.0, -1.0, 1 + 2.0**-23, 0.5,
    ], np.float32,
)  # fmt: skip
_EXTREMES = np.array(
    [np.finfo(np.float32).max, np.finfo(np.float32).min, 88.7, -104.0, 2.0**127, 2.0**24 + 2], np.float32
)


def fill(
    rng: np.random.Generator, shape: tuple[int, ...], data: str, *, extremes: bool = True, span: int = 8
) -> np.ndarray:
    """An array of one data class.

    Parameters
    ----------
    rng : numpy.random.Generator
        What it is drawn with.
    shape : tuple of int
        Its shape.
    data : str
        The data class, see :mod:`tlspec.draw.data`.
    extremes : bool, default True
        Lets "special" come near the overflow threshold.
    span : int, default 8
        The largest magnitude of "integers".

    Returns
    -------
    numpy.ndarray
        float32, of that shape.

    Raises
    ------
    ValueError
        There is no such data class.

    Examples
    --------
    >>> from tlspec.drawn import fill, generator
    >>> fill(generator("mine", 1), (2, 3), "grid").shape
    (2, 3)
    """
    n = int(np.prod(shape, dtype=np.int64))
    if data == "normal":
        x = _in_parts(rng, n, lambda own, count: own.standard_normal(count, dtype=np.float32))
    elif data == "uniform":
        x = rng.random(n, dtype=np.float32)
    elif data == "wide":
        bits = rng.integers(0, 2**32, size=n, dtype=np.uint32)
        exponent = rng.integers(0, 255, size=n, dtype=np.uint32)
        fraction = bits & np.uint32(0x7FFFFF)
        # all subnormal binades
        fraction = np.where(exponent == 0, fraction >> (bits >> np.uint32(23) & np.uint32(15)), fraction)
        x = ((bits & np.uint32(0x80000000)) | (exponent << np.uint32(23)) | fraction).view(np.float32)
    elif data == "special":
        x = rng.standard_normal(n, dtype=np.float32)
        pool = np.concatenate([_SPECIALS, _EXTREMES]) if extremes else _SPECIALS
        if rng.random() < 0.8 or n < 4:
            # a rate that leaves most rows of a large array with some ordinary results
            rate = float(rng.choice([0.3, 0.05, 0.005])) if n > 1000 else 0.3
            hit = rng.random(n) < rate
            x[hit] = rng.choice(pool, size=int(hit.sum()))
            ties = rng.random(n) < 0.1
            if n:
                x[ties] = x[rng.integers(0, n, size=int(ties.sum()))]
        else:
            x[n - 1 - int(rng.integers(n // 16 + 1)) if rng.integers(2) else int(rng.integers(n))] = rng.choice(pool)
        last = max(shape[-1] if shape else 1, 1)
        if (rows := n // last) > 1 and rng.random() < 0.3:
            first, count = int(rng.integers(rows)), int(rng.integers(1, rows // 2 + 1))
            x[first * last : (first + count) * last] = -np.inf if rng.integers(2) else rng.choice(pool)
    elif data == "integers":
        x = _in_parts(
            rng, n, lambda own, count: own.integers(-span, span, size=count, endpoint=True).astype(np.float32)
        )
    elif data == "huge":
        rows = shape[0] if len(shape) > 1 else 1
        powers = np.repeat(rng.integers(96, 128, size=rows), n // max(rows, 1))
        x = np.clip(np.ldexp(rng.standard_normal(n), powers), _EXTREMES[1], _EXTREMES[0])
    elif data == "offset":
        middle = float(rng.choice((-1, 1))) * 2.0 ** int(rng.integers(6, 13))
        x = rng.standard_normal(n, dtype=np.float32) + np.float32(middle)
    elif data == "spread":
        x, factor = rng.standard_normal(n, dtype=np.float32), np.float32(2.0 ** int(rng.integers(5, 8)))
        last = max(shape[-1] if shape else 1, 1)
        if rng.integers(2) and n:
            at = np.where(rng.integers(2, size=n // last), last - 1, rng.integers(last, size=n // last))
            x[np.arange(n // last) * last + at] += 2 * factor
        else:
            x *= factor
    elif data == "grid":
        x = (rng.integers(-128, 128, size=n, endpoint=True) / 64).astype(np.float32)
    elif data == "structured":
        x = _structured(rng, n, shape)
    else:
        raise ValueError(f"no data class {data!r}; there are {', '.join(DATA)}")
    return x.astype(np.float32, copy=False).reshape(shape)


def _structured(rng: np.random.Generator, n: int, shape: tuple[int, ...]) -> np.ndarray:
    kind = int(rng.integers(6))
    last = max(shape[-1] if shape else 1, 1)
    if kind == 0:
        return np.full(n, rng.integers(-16, 16) / 8)
    if kind == 1:
        x = np.zeros(n, np.float32)
        x[int(rng.integers(last)) :: last] = 1
        return x
    if kind == 2:
        return np.tile(np.arange(251, dtype=np.float32) / 64, n // 251 + 1)[:n]
    if kind == 3:
        return rng.choice(np.array([-1.5, 0.25, 2.0]), size=n)
    if kind == 4:
        return np.zeros(n)
    return np.tile(np.array([1.25, -0.75], np.float32), n // 2 + 1)[:n]


def double(rng: np.random.Generator, shape: tuple[int, ...], data: str) -> np.ndarray:
    """A float64 host array: full double precision for the classes that have rounding."""
    if data == "normal":
        return rng.standard_normal(shape)
    if data == "uniform":
        return rng.random(shape)
    return fill(rng, shape, data, extremes=False).astype(np.float64)


def corners(rng: np.random.Generator, arrays: list[np.ndarray], extremes: bool) -> None:
    """Elementwise operands meet in all pairs of special values, in place, as far as there is room (a third of the elements);
    then some elements of the second are made equal to the first's, and half of those zeros differ in sign."""
    pool = np.concatenate([_SPECIALS, _EXTREMES]) if extremes else _SPECIALS
    n = arrays[0].size
    count = len(pool)
    pairs = rng.permutation(count**2)[: n // 3]
    where = rng.permutation(n)[: len(pairs)]
    arrays[0][where] = pool[pairs // count]
    if len(arrays) > 1 and arrays[1].size == n:
        arrays[1][where] = pool[pairs % count]
        hit = rng.random(n) < 0.1
        arrays[1][hit] = arrays[0][hit]
        zero = hit & (arrays[0] == 0) & (rng.random(n) < 0.5)
        arrays[1][zero] = -arrays[0][zero]
