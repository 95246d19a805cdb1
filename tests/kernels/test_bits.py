"""The bits of the CPU path's results are those of bits.txt, for the few entry points that stand for all orders of addition.

A bound lets the order of a sum, a last place of a constant or a contraction change; a program that was checked once relies on the
bits. A line has of one entry point, over some cases, digests of the inputs and of the outputs, which every SIMD variant gives.
Who changes them on purpose writes the lines anew and says so in the changelog:

    python -m tests.kernels.test_bits              all lines
    python -m tests.kernels.test_bits softmax exp  those of two operations, which gives new ones a line
"""

import hashlib
import sys
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from tests import ROOT
from tests.conftest import entry_id
from tlrt.errors import UnavailableError
from tlrt.verify.run import Runtime, cpu_settings
from tlrt.verify.verifier import directions
from tlspec import registry
from tlspec.draw.cases import EDGES, PATH, Case, draw_case, generator
from tlspec.registry import Op

FILE = Path(__file__).with_name("bits.txt")
VARIANTS = ("base", "avx2", "avx512")
#: arguments of a formula: so many that a change of 2^-40 of a result rounds one of them otherwise
DENSE = 1 << 21


def dense(case: Case) -> Case:
    """The case with many arguments of magnitudes from 2^-4 to 2^4."""
    rng = generator("bits", case.name)

    def draw() -> np.ndarray:
        bits = rng.integers(0, 1 << 32, DENSE, np.uint32)
        return ((bits & np.uint32(0x807FFFFF)) | ((bits >> 8) % np.uint32(8) + np.uint32(123) << 23)).view(np.float32)

    arrays = [{k: draw() for k in of} for of in (case.inputs, case.cotangents)]
    return replace(case, dims=dict.fromkeys(case.dims, DENSE), inputs=arrays[0], cotangents=arrays[1])


def cases(row: Op, which: str) -> Iterator[Case]:
    if row.family == "elementwise" and len(row.signature.inputs) == 1:
        yield dense(draw_case(row, 0, "normal", "medium", which))
    yield draw_case(row, 0, "normal", "medium", which)
    for seed in range(3):
        yield draw_case(row, seed, "normal", EDGES, which)
    for seed in range(len(row.drawing.paths)):
        yield draw_case(row, seed, "normal", PATH, which)


def digest(arrays: Sequence[np.ndarray | None]) -> str:
    known = hashlib.blake2b(digest_size=6)
    for x in arrays:
        known.update(
            b"-" if x is None else np.where(np.isnan(x), np.nan, x).tobytes() if x.dtype.kind == "f" else x.tobytes()
        )
    return known.hexdigest()


def observe(row: Op, which: str) -> list[str]:
    """The digests of the inputs and of the outputs."""
    runtime, drawn = Runtime("cpu"), list(cases(row, which))
    made = [x for case in drawn for x in runtime.run(case)]
    return [digest([x for case in drawn for x in case.arguments.values()]), digest(made)]


def read() -> dict[str, list[str]]:
    return {words[0]: words[1:] for words in map(str.split, FILE.read_text().splitlines())}


@pytest.mark.only(where=lambda row, which: entry_id((row, which)) in read())
def test_bits(entry: tuple[Op, str]) -> None:
    inputs, outputs = read()[entry_id(entry)]
    now = observe(*entry)
    if now[0] != inputs:
        pytest.skip("this version of NumPy draws other cases")
    assert now[1] == outputs, (
        f"other bits: say so in the changelog, and run `python -m tests.kernels.test_bits {entry[0].name}`"
    )


def write(names: Sequence[str]) -> None:
    """Writes the lines of these operations, or all lines."""
    known = read()
    entries = [(row, which) for row in registry.ops() for which in directions(row)]
    for entry in [e for e in entries if (e[0].name in names if names else entry_id(e) in known)]:
        found = []
        for variant in VARIANTS:
            with suppress(UnavailableError), cpu_settings(variant, 2):
                found.append(observe(*entry))
        assert all(f == found[0] for f in found), f"{entry_id(entry)}: the SIMD variants give different bits"
        known[entry_id(entry)] = found[0]
        print(entry_id(entry), *found[0])
    order = [entry_id(e) for e in entries if entry_id(e) in known]
    FILE.write_text("".join(f"{name} {' '.join(known[name])}\n" for name in order))
    print(f"wrote {FILE.relative_to(ROOT)}")


if __name__ == "__main__":
    write(sys.argv[1:])
