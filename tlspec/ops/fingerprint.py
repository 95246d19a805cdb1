"""Fingerprints of buffers: 128 bits that tell whether bits changed, for ledgers of a run (:mod:`tlrt.ledger`).

A fingerprint is made of sums of integers modulo 2^64, so it does not depend on the order in which threads add, and all devices give
the same.
"""

from collections.abc import Iterator
from typing import Any

import numpy as np

from tlspec import laws
from tlspec.bounds import exact
from tlspec.classes import Classes
from tlspec.ops.random import SOURCE, mix
from tlspec.registry import op

CLASSES: Classes = {
    "no buffer": lambda lengths: len(lengths) == 0,
    "an empty buffer among others": lambda lengths: min(lengths, default=1) == 0 < max(lengths, default=0),
    "an odd length": lambda lengths: any(n % 2 for n in lengths),
}


#: of the words' places: where their sequence of 64 bits begins, and its odd step; and what a length is mixed with
STREAM, STEP, LENGTH = mix(0), mix(1) | 1, mix(2)


def fingerprint_of(words: np.ndarray, length: int) -> np.ndarray:
    """The four words of a buffer's fingerprint, from its elements' bits as uint32."""
    pairs = np.zeros(length + length % 2, np.uint32)
    pairs[:length] = words
    w = pairs[0::2].astype(np.uint64) | pairs[1::2].astype(np.uint64) << np.uint64(32)
    places = np.full(w.size, STREAM, np.uint64) + np.arange(w.size, dtype=np.uint64) * np.uint64(STEP)
    z = np.append(mix(w ^ places), np.full(1, mix(LENGTH ^ length), np.uint64))
    sums = (z.sum(dtype=np.uint64), (z * z).sum(dtype=np.uint64))
    return np.array([int(s) >> shift & 0xFFFFFFFF for s in sums for shift in (0, 32)], np.uint32)


def _halves(f: Any, lengths: list[int], count: int) -> Iterator[tuple[Any, Any]]:
    half = count // 2
    at = sum(lengths[:half])
    parts = [
        f({"xs": f.inputs["xs"][cut]}, values={"lengths": some, "count": len(some)}).array
        for cut, some in ((slice(None, at), lengths[:half]), (slice(at, None), lengths[half:]))
    ]
    yield f(), np.concatenate(parts)


@op("xs: list[count] -> out: index[count, 4]",
    classes=CLASSES, bound=exact(), source=SOURCE, no_vjp="its result is integers",
    laws=[laws.equation("the fingerprint of a list is those of its halves",
                        _halves)])  # fmt: skip
def fingerprint(xs, lengths):
    """128 bits of each buffer of a list that tell whether any bit of it changed, in one call and without a sum's order.

    w_j = bits(x[2j]) + 2^32·bits(x[2j + 1]), with 0 past the end, and the bits 7fc00000 for every NaN
    z_j = mix(w_j ^ (mix(0) + j·(mix(1) | 1))), and one more z = mix(mix(2) ^ n) of the length n
    S_0 = Σ z and S_1 = Σ z², modulo 2^64
    out[i] = S_0 mod 2^32, ⌊S_0 / 2^32⌋, S_1 mod 2^32, ⌊S_1 / 2^32⌋ of buffer i

    mix is SplitMix64's output function, a bijection of 64 bits. So buffers of one length that differ in one pair of elements
    differ in S_0. For buffers that differ in more, where mix is as good as random numbers, S_0 agrees with a probability of 2^-64,
    and S_1 too with less than 2^-56: the factors of Σ z² - Σ z'² for two pairs are random and their product is 0 modulo 2^64.
    It detects errors. It is no cryptographic hash: whoever wants two buffers of one fingerprint can make them.

    Shapes: xs a list of count buffers, out (count, 4) in an index buffer.
    Special values: +0 differs from -0; all NaNs are one, as everywhere. An empty list gives an empty result."""
    bits = np.where(np.isnan(xs), np.nan, xs).astype(np.float32).view(np.uint32)
    parts = np.split(bits, np.cumsum(lengths)[:-1]) if len(lengths) else []
    return np.array([fingerprint_of(p, n) for p, n in zip(parts, lengths, strict=True)], np.float64).reshape(-1, 4)
