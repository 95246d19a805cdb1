"""What a kernel accumulates its products in, found by calling it: sums of three terms of which the accumulator may lose one.

With 1, 2^-k and -1 among zeros, in any places, the sum is 2^-k where the accumulator holds 1 + 2^-k, and 0 where it has fewer
bits than k + 1 and meets the 1 first. The most bits of which no placement loses any are the accumulator's; 1 + ¾ of its last bit
then tells whether it rounds to nearest or cuts off. (To tell orders of summation by terms that cancel is the idea of FPRev:
Revealing Floating-Point Accumulation Orders, USENIX ATC 2025.)
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from tlspec.draw.cases import Case, draw_case
from tlspec.formats import Format
from tlspec.judge.kernel import Kernel, numbers_of

#: terms of a sum, and placements that are tried
TERMS, TRIES = 64, 24
#: by row: dimensions of a sum of TERMS products, and its factors from the terms
SUMS: dict[str, tuple[dict[str, Any], Callable[[np.ndarray], dict[str, np.ndarray]]]] = {
    "matmul": ({"m": 1, "n": TERMS, "p": 1}, lambda t: {"A": t[None, :], "B": np.ones((TERMS, 1))}),
    "bmm": ({"batch": 1, "m": 1, "n": TERMS, "p": 1}, lambda t: {"A": t[None, None, :], "B": np.ones((1, TERMS, 1))}),
    "linear": ({"batch": 1, "inputs": TERMS, "outputs": 1},
               lambda t: {"W": np.ones((1, TERMS)), "x": t[None, :], "b": np.zeros(1)}),
    "reduce_sum": ({"n": TERMS}, lambda t: {"x": t}),
    "reduce_sum_axis1": ({"rows": 1, "cols": TERMS}, lambda t: {"x": t[None, :]}),
}  # fmt: skip


@dataclass(frozen=True)
class Accumulator:
    """Bits of a sum, the implicit one included, and whether it is rounded to nearest; 64 stands for 64 or more."""

    bits: int
    to_nearest: bool


def accumulator_of(kernel: Callable[[Case], Kernel], op: Any, format: Format) -> Accumulator | None:
    """The accumulator of a kernel of one of the rows in :data:`SUMS`; None for others."""
    if op.name not in SUMS:
        return None
    dims, factors = SUMS[op.name]
    like = draw_case(op, 0, "normal", "small")
    rng = np.random.default_rng(0)

    def total(terms: np.ndarray) -> float:
        arrays = {n: x.astype(np.float64) for n, x in factors(terms).items()}
        case = Case(op, "forward", 0, "given", "given", {**like.dims, **dims}, like.params, dict(arrays))
        made = kernel(case)
        (result,) = made(made.prepare(case, format, format)).results
        return float(np.ravel(numbers_of(result))[0])

    def least(small: float) -> float:
        """The least sum of 1, the small term and -1 over all placements."""
        found = []
        for _ in range(TRIES):
            terms = np.zeros(TERMS)
            terms[rng.permutation(TERMS)[:3]] = 1.0, small, -1.0
            found.append(total(terms))
        return min(found)

    most = min(64, 1 - int(np.log2(format.tiny)) if format.precision < 24 else 64)
    bits = 1
    while bits < most and least(2.0**-bits) == 2.0**-bits:
        bits += 1
    return Accumulator(64, True) if bits == most else Accumulator(bits, least(0.75 * 2.0 ** (1 - bits)) > 0)


def word_of(found: Accumulator) -> str:
    """The word of :mod:`tlspec.judge.arithmetic` for an accumulator: never one with fewer bits than the hardware's."""
    if found.bits >= 50:
        return "fp64"
    if not found.to_nearest and found.bits >= 24:
        return "hopper" if found.bits >= 25 else "ampere"
    return "fp32"
