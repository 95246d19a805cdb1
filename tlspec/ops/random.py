"""Random numbers: counter-based, so that element i of a draw is a function of the draw's key and i alone and both devices
give the same bits for any length. Key and index are hashed one after the other, so neighbouring keys and neighbouring seeds
share no numbers. :data:`RULE` is the version of what :func:`words` and :func:`draw_key` compute.
"""

from typing import Any

import numpy as np

from tlspec.bounds import F64, U, custom, exact
from tlspec.classes import Classes
from tlspec.registry import check, op

#: 1 was mix(key + i) with the key mix(seed + counter); checkpoints name the rule that they go on with
RULE = 2
SOURCE = "Steele, Lea and Flood, Fast Splittable Pseudorandom Number Generators, OOPSLA 2014 (SplitMix64)"
NO_VJP = "a draw has no differentiable input"


def mix(x: Any) -> Any:
    """SplitMix64's output function, modulo 2^64, of an integer or of an array of uint64; mix(0) = e220a8397b1dcdaf."""
    mask = 2**64 - 1
    z = (x + 0x9E3779B97F4A7C15) & mask
    z = ((z ^ (z >> 30)) * 0xBF58476D1CE4E5B9) & mask
    z = ((z ^ (z >> 27)) * 0x94D049BB133111EB) & mask
    return z ^ (z >> 31)


def unmix(y: int) -> int:
    """The x of 64 bits with mix(x) = y."""
    for shift, factor in ((31, 0x94D049BB133111EB), (27, 0xBF58476D1CE4E5B9)):
        y = (y ^ y >> shift ^ y >> 2 * shift) * pow(factor, -1, 2**64) % 2**64
    return ((y ^ y >> 30 ^ y >> 60) - 0x9E3779B97F4A7C15) % 2**64


def draw_key(seed: int, counter: int) -> int:
    """The key of a session's draw number `counter`, counted from 0: mix(seed) + counter, modulo 2^64."""
    return (mix(seed) + counter) % 2**64


def words(n: int, key: int) -> np.ndarray:
    """The low 32 bits of mix(mix(key) + i), i = 0..n-1."""
    return mix(np.full(n, mix(key), np.uint64) + np.arange(n, dtype=np.uint64)) & np.uint64(0xFFFFFFFF)


#: keys at whose fifth word the index carries: out of 64 bits, or within mix, whose first sum is another
_CARRIES = unmix(2**64 - 5), unmix(2**64 - 5 - 0x9E3779B97F4A7C15)


def _draw_key(d: Any) -> dict[str, Any]:
    key = d.integer(0, 2**32 - 1) << 32 | d.integer(0, 2**32 - 1)
    return {"key": d.choice([0, 2**64 - 1, *_CARRIES, key, key])}


CLASSES: Classes = {
    "a key of 64 bits": lambda n, key: n > 1 and key >= 2**63,
    "a counter that wraps": lambda n, key: mix(key) + n > 2**64,
}


@op("; key: u64 -> out[n]", classes=CLASSES, bound=exact(), draw=_draw_key, no_vjp=NO_VJP, source=SOURCE)
def rand_uniform(n, key):
    """Uniform numbers in [0, 1).

    out[i] = (w >> 8)·2^-24, w the low 32 bits of mix(mix(key) + i)

    Shapes: out (n); n = 0 gives an empty result.
    Special values: exact multiples of 2^-24, never 1."""
    return (words(n, key) >> np.uint64(8)).astype(np.float64) * 2.0**-24


@op("; key: u64, keep: float -> out[n]",
    classes=CLASSES, bound=exact(), no_vjp=NO_VJP, source=SOURCE,
    draw=lambda d: {**_draw_key(d), "keep": d.choice([0.0, 1.0, 0.5, 0.9, d.real(0, 1)])},
    checks=[check("keep", "keep >= 0 and keep <= 1", say="0 <= keep <= 1")])  # fmt: skip
def bernoulli_mask(n, key, keep):
    """A mask that is 1 with probability keep, else 0.

    out[i] = 1 if uniform(key, i) < keep else 0, keep rounded to float32 first

    Shapes: out (n); n = 0 gives an empty result.
    Special values: keep = 1 always keeps, keep = 0 never does.
    Errors: ARGUMENT unless 0 <= keep <= 1."""
    return (rand_uniform.reference(n, key) < keep).astype(np.float64)


def _standard_normal(n: int, key: int) -> F64:
    w = words(2 * n, key)
    u1 = ((w[0::2] >> np.uint64(8)).astype(np.float64) + 1) * 2.0**-24
    u2 = (w[1::2] >> np.uint64(8)).astype(np.float64) * 2.0**-24
    return np.sqrt(-2 * np.log(u1)) * np.cos(2 * np.pi * u2)


def _normal_tolerance(n: int, key: int, mean: float, std: float) -> F64:
    """z carries the logarithm's error (1.5 spacings, at most 3u, halved by the root), the root's u, the cosine's 3u and the
    product's u: 6.5u relative, to first order; one fused rounding follows. Where the angle meets a zero of the cosine the
    reference's own 2^-53 of 2π counts too."""
    z = np.abs(_standard_normal(n, key))
    return np.abs(std) * (7 * U * z + 1e-14) + U * np.abs(mean + std * _standard_normal(n, key)) + 2.0**-149


@op("; key: u64, mean: float = 0.0, std: float = 1.0 -> out[n]",
    classes=CLASSES, bound=custom(_normal_tolerance, "7u·|std·z| + u·|out|"), no_vjp=NO_VJP,
    source=SOURCE + "; Box and Muller, Ann. Math. Statist. 29, 1958",
    draw=lambda d: {**_draw_key(d), "mean": d.choice([0.0, d.real(-3, 3)]), "std": d.choice([1.0, 0.0, d.real(0, 3)])},
    checks=[check("std", "std >= 0")],
    arguments={"mean": "mean of the numbers"})  # fmt: skip
def rand_normal(n, key, mean, std):
    """Normal numbers.

    out[i] = mean + std·√(-2 ln u1)·cos(2π u2), u1 = ((w0 >> 8) + 1)·2^-24 and u2 = (w1 >> 8)·2^-24 from words 2i and 2i + 1
    of the draw

    Shapes: out (n); n = 0 gives an empty result.
    Special values: finite for finite mean and std; |z| is at most 5.77.
    Errors: ARGUMENT unless std >= 0."""
    return mean + std * _standard_normal(n, key)
