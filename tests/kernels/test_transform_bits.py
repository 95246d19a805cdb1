"""Transforms in reproducible contexts have the same bits on the CPU and on CUDA: of every kind of length, whatever the batch,
with rows that are transformed again because sums overflowed, and with rows that are not finite."""

import numpy as np
import pytest

import tlrt
from tests import DEVICES
from tlrt import kernels
from tlrt.verify.edges import EDGES

DIRECT = EDGES["spectral"]["n"]["TL_FFT_DIRECT"]
#: every radix alone and together, Bluestein's transform, four steps, Bluestein's over four steps; odd and even
LENGTHS = [1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16, 17, 18, 22, 26, 31, 34, 64, 97, 101, 243, 256, 720, 1001, 1024,
           1155, 1009, 2018, 2048, 2 * DIRECT - 1, 2 * DIRECT, 2 * DIRECT + 2, DIRECT + 1, 4099, 8198, 9216, 15015, 30030, 65536,
           6007, 24576, 26000, 28672, 100003, 2**18, 2**18 + 2, 3**11]  # fmt: skip


def rows(batch: int, n: int, odd_rows: bool) -> np.ndarray:
    rng = np.random.default_rng([batch, n])
    x = (rng.standard_normal((batch, n)) * 2.0 ** rng.integers(-20, 20, (batch, 1))).astype(np.float32)
    if odd_rows:
        x[1 % batch] *= np.float32(2**20)
        x[1 % batch] *= np.float32(3e38) / np.abs(x[1 % batch]).max()  # sums overflow
        x[2 % batch, n // 2] = np.inf
        x[3 % batch, n // 3] = np.nan
    return x


@pytest.mark.cuda
@pytest.mark.operations("rfft1d_packed", "irfft1d_packed")
@pytest.mark.parametrize("odd_rows", [False, True])
@pytest.mark.parametrize("n", LENGTHS)
def test_devices_agree(n: int, odd_rows: bool) -> None:
    bins, results = n // 2 + 1, []
    for batch in (5, 1) if n > 2 * DIRECT else (5, 1, 37):
        x, s = rows(batch, n, odd_rows), rows(batch, 2 * bins, odd_rows)
        results = []
        for name in ("cpu", "cuda"):
            put = tlrt.device(name, math="reproducible").buffer
            real, spectrum = put(x), put(s)
            out = [kernels.rfft1d_packed(real, batch, n), kernels.irfft1d_packed(spectrum, batch, n),
                   kernels.rfft1d_packed_bwd(spectrum, batch, n), kernels.irfft1d_packed_bwd(real, batch, n)]  # fmt: skip
            results.append([a.numpy() for a in out])
        for which, (a, b) in zip(("rfft", "irfft", "rfft_bwd", "irfft_bwd"), zip(*results, strict=True), strict=True):
            assert np.array_equal(a, b, equal_nan=True), (which, batch)


@pytest.mark.operations("rfft1d_packed", "irfft1d_packed")
@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("n", [7, 16, 97, 1000, 2 * DIRECT + 2])
def test_a_row_does_not_depend_on_its_batch(device: str, n: int) -> None:
    put, bins = tlrt.device(device, math="reproducible").buffer, n // 2 + 1
    for odd_rows, step in (
        (False, 1),
        (True, 1),
        (True, -1),
    ):  # overflowing sums before and behind rows that are not finite
        x, s = (np.ascontiguousarray(rows(40, length, odd_rows)[::step]) for length in (n, 2 * bins))
        whole = kernels.rfft1d_packed(put(x), 40, n).numpy().reshape(40, -1)
        back = kernels.irfft1d_packed(put(s), 40, n).numpy().reshape(40, -1)
        for row in (0, 1, 2, 3, 36, 37, 38, 39):
            assert np.array_equal(kernels.rfft1d_packed(put(x[row]), 1, n).numpy(), whole[row], equal_nan=True)
            assert np.array_equal(kernels.irfft1d_packed(put(s[row]), 1, n).numpy(), back[row], equal_nan=True)
