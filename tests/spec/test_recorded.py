"""The cases of a seed, and the bounds of their results, are those of recorded.txt.

A command that repeats a case, as reports and documents print it, names its seed: it is worth something as long as the seed
draws what it drew. The file has of each entry point a digest of its cases: sizes, parameters, arrays, the geometry
classes that they are in, and for each check values that break it. Then follows the mean logarithm of the tolerances: that a
bound shrinks shows nowhere else before a result is beyond it. Who changes draws or bounds on purpose writes the file anew
(``python -m tests.spec.test_recorded``).
"""

import functools
import hashlib
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from tests.conftest import ENTRIES, entry_id
from tlspec.drawn import EDGES, PATH, Case, break_check, draw_case, generator
from tlspec.registry import Op

FILE = Path(__file__).with_name("recorded.txt")
#: of the logarithms: NumPy's functions have their last bit by the processor, and pow's by 4e-4 of the sum
SAME = 1e-3
#: the entry of what NumPy draws: with another version, or another C library, that draws otherwise nothing is compared
NUMPY = "numpy"


def cases(row: Op, which: str) -> Iterator[Case]:
    for seed in range(6):
        yield draw_case(row, seed, None, "small", which)
    yield draw_case(row, 0, None, "medium", which)
    yield draw_case(row, 0, "normal", EDGES, which)
    yield draw_case(row, 1, "special", EDGES, which)
    for seed in range(len(row.drawing.paths) if which == "forward" else 0):
        yield draw_case(row, seed, "normal", PATH)


def digest(*parts: object) -> str:
    known = hashlib.blake2b(digest_size=6)
    for part in parts:
        known.update(part.tobytes() if isinstance(part, np.ndarray) else repr(part).encode())
    return known.hexdigest()


def plain(value: object) -> object:
    """A value whose repr does not tell Python's numbers from NumPy's."""
    return np.asarray(value).tolist() if value is not None else None


def width(case: Case) -> float:
    """The mean binary logarithm of a case's tolerances."""
    with np.errstate(divide="ignore"):
        logs = [np.nan_to_num(np.log2(t), nan=300.0, posinf=200.0, neginf=-200.0) for t in case.expected.tolerances]
    return float(np.mean(np.concatenate([x.ravel() for x in logs]))) if any(x.size for x in logs) else 0.0


def observe(entry: tuple[Op, str]) -> tuple[str, float]:
    """The digest, and the mean logarithm."""
    row, which = entry
    seen: list[object] = []
    widths: list[float] = []
    for case in cases(row, which):
        seen += [sorted((n, plain(v)) for n, v in case.values.items() if not isinstance(v, np.ndarray)), case.classes]
        seen += [None if x is None else np.where(np.isnan(x), np.nan, x) for x in case.arguments.values()]
        if case.size != PATH:
            widths.append(width(case))
    for check in row.contract.checks if which == "forward" else ():
        seen += sorted((n, plain(v)) for n, v in (break_check(row, check) or {}).items())
    return digest(*seen), sum(widths)


@functools.cache
def numpy_draws() -> str:
    rng = generator("numpy")
    return digest(
        rng.random(9), rng.integers(0, 2**40, 9), rng.standard_normal(9), rng.permutation(9), rng.uniform(0.2, 0.8, 9),
        rng.choice([1.0, 0.8, 0.0], 9, p=[0.5, 0.45, 0.05]), rng.integers(0, 2, 9, np.uint32),
        rng.standard_normal(1 << 22, np.float32),  # one in 400,000 depends on the C library's logarithm
    )  # fmt: skip


def read() -> dict[str, tuple[str, float]]:
    words = iter(FILE.read_text().split())
    return {name: (digest, float(number)) for name, digest, number in zip(words, words, words, strict=True)}


def test_recorded_cases_are_drawn_again(entry: tuple[Op, str]) -> None:
    if read()[NUMPY][0] != numpy_draws():
        pytest.skip("this version of NumPy, or its C library, draws other numbers")
    if entry_id(entry) not in read():
        pytest.skip("an operation that is new: write the file anew")
    known, logarithm = read()[entry_id(entry)]
    assert observe(entry) == (known, pytest.approx(logarithm, abs=SAME)), "python -m tests.spec.test_recorded"


def test_every_entry_is_recorded() -> None:
    assert set(map(entry_id, ENTRIES)) <= read().keys()


if __name__ == "__main__":
    found = [f"{NUMPY} {numpy_draws()} 0", *("{} {} {:.5f}".format(entry_id(e), *observe(e)) for e in ENTRIES)]
    FILE.write_text("".join(" ".join(found[i : i + 3]) + "\n" for i in range(0, len(found), 3)))
