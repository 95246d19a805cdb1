"""The bits of the CPU path's results, and the scratch that a call takes, are those of bits.txt.

A bound lets the order of a sum, a last place of a constant or a contraction change, and memory may grow without a wrong
result; but a program that was checked once relies on both. A line of the file has, of one entry point over some cases: digests of
the inputs and of the outputs, then the bytes of memory for each SIMD variant, on two threads. Who changes them on purpose writes
the file anew (``python -m tests.kernels.test_bits``) and says so in the changelog. What a line has of a variant that the writing
machine lacks stays where the rest of the line does, and is ``-`` where not: there digests alone are compared.
"""

import hashlib
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import tlrt
from tests.conftest import ENTRIES, entry_id
from tests.kernels.test_far_paths import FAR
from tlrt.errors import UnavailableError
from tlrt.verify.run import Runtime, cpu_settings
from tlspec.drawn import EDGES, PATH, Case, build_case, draw_case, generator
from tlspec.registry import Op

FILE = Path(__file__).with_name("bits.txt")
VARIANTS = ("base", "avx2", "avx512")
#: in the place of bytes that no machine with that variant has measured
UNKNOWN = "-"
#: arguments of a formula: so many that a change of 2^-40 of a result rounds one of them otherwise
DENSE = 1 << 21


#: operation -> what is cut by the number of its terms -> sizes
LONG: dict[str, dict[str, dict[str, Any]]] = {
    "conv2d": {
        "all segments of positions": {
            "batch": 1, "in_channels": 1, "in_h": 184, "in_w": 185, "out_channels": 2, "kernel_h": 3, "kernel_w": 3,
            "stride_h": 1, "stride_w": 1, "padding_h": 0, "padding_w": 0,
        },
    },
}  # fmt: skip


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
    for path, values in {**FAR.get(row.name, {}), **LONG.get(row.name, {})}.items():
        if "cache" not in path:
            yield build_case(row, values, {}, generator("far", row.name, path), which=which)


def digest(arrays: list[np.ndarray | None]) -> str:
    known = hashlib.blake2b(digest_size=6)
    for x in arrays:
        known.update(
            b"-" if x is None else np.where(np.isnan(x), np.nan, x).tobytes() if x.dtype.kind == "f" else x.tobytes()
        )
    return known.hexdigest()


def observe(row: Op, which: str) -> tuple[str, str, int]:
    """The digest of the inputs, that of the outputs, and the bytes of scratch of all calls together."""
    given: list[np.ndarray | None] = []
    made: list[np.ndarray | None] = []
    scratch = 0
    with tlrt.Device.new("cpu") as device:
        runtime = Runtime("cpu", upload=lambda x: tlrt.Buffer.from_numpy(x, device=device))
        runtime.device = device
        for case in cases(row, which):
            given += case.arguments.values()
            device.collect()
            device.reset_peak()
            made += runtime.run(case)
            scratch += device.memory().peak_bytes
            assert device.memory().live_bytes == 0
    return digest(given), digest(made), scratch


def read() -> dict[str, list[str]]:
    return {words[0]: words[1:] for words in map(str.split, FILE.read_text().splitlines())}


def test_bits(entry: tuple[Op, str]) -> None:
    row, which = entry
    if entry_id(entry) not in read():
        pytest.skip("an operation that is new: write the file anew")
    inputs, outputs, *scratch = read()[entry_id(entry)]
    with cpu_settings(None, 2):
        variant = tlrt.cpu_variant()
        now = observe(row, which)
    if now[0] != inputs:
        pytest.skip("this version of NumPy draws other cases")
    known = scratch[VARIANTS.index(variant)]
    assert now == (inputs, outputs, now[2] if known == UNKNOWN else int(known))


def test_every_entry_has_its_line() -> None:
    assert set(map(entry_id, ENTRIES)) <= read().keys()


def line_of(entry: tuple[Op, str], known: list[str]) -> str:
    """The line of an entry, as this machine finds it beside the one there was."""
    seen = {}
    for variant in VARIANTS:
        with suppress(UnavailableError), cpu_settings(variant, 2):
            seen[variant] = observe(*entry)
    (digests,) = {found[:2] for found in seen.values()}
    before = dict(zip(VARIANTS, known[2:], strict=False))
    same = list(digests) == known[:2] and all(before[v] in (UNKNOWN, str(seen[v][2])) for v in seen)
    scratch = [str(seen[v][2]) if v in seen else before[v] if same else UNKNOWN for v in VARIANTS]
    return " ".join((entry_id(entry), *digests, *scratch))


if __name__ == "__main__":
    found = read()
    lines = [line_of(entry, found.get(entry_id(entry), [])) for entry in ENTRIES]
    FILE.write_text("\n".join(lines) + "\n")
