"""The spectral convolution in reproducible contexts: every element is what native/src/cpu/spectral/chain.h defines, bit for bit,
on every device, SIMD variant and number of threads."""

from math import factorial

import numpy as np
import pytest

import tlrt
from tests import DEVICES
from tests.kernels.test_chain import SEGMENT, chain, numbers
from tlrt import kernels
from tlrt.verify.run import cpu_settings, cpu_variants

#: grid, width, modes: odd and even, all modes and few, vectors and none, several segments
SIZES = [(1, 1, 1), (2, 3, 2), (7, 4, 4), (16, 5, 3), (64, 32, 12), (101, 33, 51), (250, 8, 126), (SEGMENT + 2, 3, 5),
         (12, SEGMENT // 2 + 3, 2)]  # fmt: skip


def sine_cosine(x: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """By native/src/formula/dft_tile.h: Taylor's series."""
    z, s, c = x * x, np.full_like(x, 1 / factorial(17)), np.full_like(x, -1 / factorial(18))
    for k in range(15, 2, -2):
        sign = 1 if k % 4 == 1 else -1
        s, c = s * z + sign / factorial(k), c * z - sign / factorial(k + 1)
    return x + x * (s * z), 1 - z * (0.5 - c * z)


def roots(n: int) -> np.ndarray:
    """(cos, -sin) of 2πk/n as sums of two float32: [k, part, number]."""
    q = 8 * np.arange(n)
    below = q > 4 * n
    q = np.where(below, 8 * n - q, q)
    left = q > 2 * n
    q = np.where(left, 4 * n - q, q)
    steep = q > n
    q = np.where(steep, 2 * n - q, q)
    y, x = sine_cosine(q / n * (np.pi / 4))
    c, s = np.where(steep, y, x), np.where(steep, x, y)
    parts = np.stack([np.where(left, -c, c), -np.where(below, -s, s)], axis=1)
    high = parts.astype(np.float32)
    return np.stack([high, (parts - high).astype(np.float32)], axis=2)


def analyse(x: np.ndarray, modes: int) -> np.ndarray:
    """Rows 2k and 2k + 1 are the parts of bin k."""
    n = len(x)
    table = roots(n)[np.arange(modes)[:, None] * np.arange(n) % n]  # [k, t, part, number]
    return chain(table.transpose(0, 2, 1, 3).reshape(2 * modes, 2 * n), np.repeat(x, 2, axis=0))


def synthesise(z: np.ndarray, n: int) -> np.ndarray:
    modes = len(z) // 2
    z = z.copy()
    z[1] = 0
    if 2 * (modes - 1) == n:
        z[-1] = 0
    table = roots(n)[np.arange(n)[:, None] * np.arange(modes) % n]  # [t, k, part, number]
    return chain(table.reshape(n, 4 * modes), np.repeat(z, 2, axis=0))


def parts(z: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    return z[::2].astype(np.float64), z[1::2].astype(np.float64)


def interleaved(re: np.ndarray, im: np.ndarray) -> np.ndarray:
    return np.stack([re, im], axis=1).reshape(-1, re.shape[1]).astype(np.float32)


def products(terms: list[np.ndarray]) -> np.ndarray:
    """Σ over axis 1 of products (modes, inner, outer), of every inner index those of the list in order."""
    all_terms = np.stack(terms, axis=2).reshape(len(terms[0]), -1, terms[0].shape[2])
    total = np.zeros((len(all_terms), all_terms.shape[2]))
    for first in range(0, all_terms.shape[1], SEGMENT):
        sums = np.zeros_like(total)
        for term in all_terms[:, first : first + SEGMENT].swapaxes(0, 1):
            sums += term
        total = sums if first == 0 else total + sums
    return total


def model(x, wr, wi, g) -> list[np.ndarray]:
    n, modes = len(x), len(wr)
    k = np.arange(modes)[:, None]
    weight = np.where((k == 0) | (2 * k == n), 1.0, 2.0) / n
    wide_r, wide_i = wr.astype(np.float64), wi.astype(np.float64)
    bins = analyse(x, modes)
    xr, xi = (p[:, :, None] for p in parts(bins))
    z = interleaved(products([xr * wide_r, -(xi * wide_i)]) * weight, products([xr * wide_i, xi * wide_r]) * weight)
    dz = parts(analyse(g, modes))
    dz = interleaved(dz[0] * weight, dz[1] * weight)
    zr, zi = (p[:, :, None] for p in parts(dz))
    turned_r, turned_i = wide_r.swapaxes(1, 2), wide_i.swapaxes(1, 2)
    dx = interleaved(products([zr * turned_r, zi * turned_i]), products([zi * turned_r, -(zr * turned_i)]))
    zr, zi = zr.swapaxes(1, 2), zi.swapaxes(1, 2)
    gr, gi = (xr * zr + xi * zi).astype(np.float32), (xr * zi - xi * zr).astype(np.float32)
    return [synthesise(z, n), synthesise(dx, n), gr, gi]


def drawn(grid: int, width: int, modes: int) -> list[np.ndarray]:
    rng = np.random.default_rng([grid, width, modes])
    return [numbers(rng, *s) for s in ((grid, width), (modes, width, width), (modes, width, width), (grid, width))]


@pytest.mark.operations("spectral_conv1d_rfft")
@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize(("grid", "width", "modes"), SIZES)
def test_every_sum_is_a_chain(device: str, grid: int, width: int, modes: int) -> None:
    put = tlrt.device(device, math="reproducible").buffer
    arrays = drawn(grid, width, modes)
    x, wr, wi, g = (put(a) for a in arrays)
    got = [kernels.spectral_conv1d_rfft(x, wr, wi, grid, width, modes)]
    got += kernels.spectral_conv1d_rfft_bwd(x, wr, wi, g, grid, width, modes)
    for name, a, b in zip(("y", "gx", "gwRe", "gwIm"), got, model(*arrays), strict=True):
        assert (a.numpy() == b.reshape(-1)).all(), name


@pytest.mark.operations("spectral_conv1d_rfft")
@pytest.mark.parametrize("variant", cpu_variants())
@pytest.mark.parametrize("threads", [1, 3])
def test_variants_and_threads_agree(variant: str, threads: int) -> None:
    results = []
    for settings in ({}, {"variant": variant, "threads": threads}):
        with cpu_settings(**settings):
            put = tlrt.device("cpu", math="reproducible").buffer
            x, wr, wi, g = (put(a) for a in drawn(150, 19, 40))
            out = [kernels.spectral_conv1d_rfft(x, wr, wi, 150, 19, 40)]
            out += kernels.spectral_conv1d_rfft_bwd(x, wr, wi, g, 150, 19, 40)
            results.append([a.numpy().tobytes() for a in out])
    assert results[0] == results[1]
