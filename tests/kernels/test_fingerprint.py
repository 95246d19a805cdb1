"""Fingerprints: each bit, place and length of a buffer counts, and which NaN it is does not."""

import numpy as np
import pytest

from tlrt import kernels
from tlrt.verify.run import Runtime
from tlspec.draw.data import generator

pytestmark = pytest.mark.operations("fingerprint")


def fingerprints(runtime: Runtime, arrays: list[np.ndarray]) -> list[bytes]:
    """Of each array, from one call."""
    found = kernels.fingerprint([runtime.upload(x) for x in arrays], device=runtime.device).numpy()
    return [row.tobytes() for row in found.reshape(-1, 4)]


@pytest.mark.parametrize("length", [1, 2, 16385])
def test_every_bit_counts(runtime: Runtime, length: int) -> None:
    x = generator("fingerprint", length).uniform(0.25, 0.99, length).astype(np.float32)  # no bit makes NaN of these
    changed = [x]
    for place in {0, length // 2, length - 1}:
        for bit in range(32):
            changed.append(x.copy())
            changed[-1].view(np.uint32)[place] ^= np.uint32(1 << bit)
    assert len(set(fingerprints(runtime, changed))) == len(changed)


def test_places_and_lengths_count(runtime: Runtime) -> None:
    x = np.arange(40009, dtype=np.float32)
    arrays = [x, x[::-1], np.roll(x, 1), np.roll(x, 2), x[:-1], np.append(x, np.float32(0)), -x]
    arrays += [np.zeros(n, np.float32) for n in range(9)]
    assert len(set(fingerprints(runtime, [np.ascontiguousarray(a) for a in arrays]))) == len(arrays)


def test_a_nan_is_as_good_as_another(runtime: Runtime) -> None:
    bits = np.array([0x7FC00000, 0xFFC00000, 0x7FFFFFFF, 0x7F800001, 0xFF800001], np.uint32)
    pairs = [np.array([b, 0x3F800000, b], np.uint32).view(np.float32) for b in bits]
    assert len(set(fingerprints(runtime, pairs))) == 1
    infinities = [np.array([b], np.uint32).view(np.float32) for b in (0x7F800000, 0xFF800000, 0x7FC00000)]
    assert len(set(fingerprints(runtime, infinities))) == 3
