"""Values at the edges of formulas, and what holds for any number of threads, where drawn cases would seldom land."""

from __future__ import annotations

import ctypes
import platform
from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np
import pytest

import tlrt
from tlrt import kernels

#: native/src/formula/sum_tree.h: steps of a chunk
CHUNK = 128
#: where a C library's fenv_t keeps the word that flushes subnormals, counted in 32 bits, and its bits: MXCSR's FTZ and DAZ
#: (Intel SDM volume 1, 10.2.3), FPCR's FZ (Arm ARM, C5.2.8)
FLUSH = {"x86_64": (7, 0x8040), "aarch64": (0, 1 << 24)}


@contextmanager
def threads(n: int) -> Iterator[None]:
    """Workers anew, `n` threads in all."""
    tlrt.set_threads(n)
    try:
        yield
    finally:
        tlrt.set_threads(0)


@contextmanager
def flushing() -> Iterator[None]:
    """The calling thread flushes subnormals to zero, and so do threads it makes."""
    at, bits = FLUSH[platform.machine()]
    libm = ctypes.CDLL("libm.so.6")
    before, changed = (ctypes.c_uint32 * 64)(), (ctypes.c_uint32 * 64)()
    assert libm.fegetenv(before) == 0 and libm.fegetenv(changed) == 0
    changed[at] |= bits
    assert libm.fesetenv(changed) == 0
    try:
        yield
    finally:
        libm.fesetenv(before)


@pytest.mark.parametrize(("lo", "hi"), [(-0.5, 0.75), (0.0, 1.0), (-1.0, -0.0), (2.0, 2.0)])
def test_clamp_has_no_gradient_at_its_edges(dev, lo, hi):
    edges = np.array([lo, hi, lo + 0.0, hi + 0.0, -0.0 if lo == 0 else lo, 0.0 if hi == 0 else hi], np.float32)
    inside = np.nextafter(np.float32([lo, hi]), np.float32([hi, lo]))
    x = np.concatenate([edges, inside])
    gx = kernels.clamp_bwd(dev.buffer(x), dev.buffer(np.full(x.size, 3, np.float32)), lo, hi).numpy()
    assert (gx[: edges.size] == 0).all()
    assert (gx[edges.size :] == (3 if lo < hi else 0)).all()


@pytest.mark.parametrize("key", [0, 7, 2**64 - 9])
def test_a_uniform_equal_to_keep_is_dropped(dev, key):
    u = kernels.rand_uniform(dev, 257, key).numpy()
    for i in range(0, u.size, 16):
        mask = kernels.bernoulli_mask(dev, u.size, key, float(u[i])).numpy()
        assert mask[i] == 0
        assert np.array_equal(mask, (u < u[i]).astype(np.float32))


@pytest.mark.parametrize("chunks", [3, 20])  # scanned chunk after chunk, and chunks at the same time
@pytest.mark.parametrize("constant", [True, False])
def test_a_chunk_whose_product_overflows_passes_its_state_on(dev, chunks, constant):
    """h = 2 h + b doubles; the product over a chunk is 2^128, beyond float32, while every h is a power of two below."""
    steps, state = chunks * CHUNK + 5, 3
    start = steps - 126
    impulse, powers = np.zeros((2, steps, state), np.float32)
    impulse[start] = 1
    powers[start:] = (2.0 ** np.arange(126))[:, None]
    shape = (state,) if constant else (steps, state)
    A, B = dev.buffer(np.full(shape, 2, np.float32)), dev.buffer(np.ones(shape, np.float32))
    x, h0 = dev.buffer(impulse), dev.zeros(state)
    scan = kernels.selective_scan_diag if constant else kernels.selective_scan_diag_var
    scan_bwd = kernels.selective_scan_diag_bwd if constant else kernels.selective_scan_diag_var_bwd
    y = scan(A, B, x, h0, steps, state)
    assert np.array_equal(y.numpy().reshape(steps, state), powers)
    g = dev.buffer(impulse[::-1].copy())
    _, _, gx, gh0 = scan_bwd(A, B, x, h0, y, g, steps, state, want=(False, False, True, True))
    assert np.array_equal(gx.numpy().reshape(steps, state), powers[::-1])
    assert np.array_equal(gh0.numpy(), np.full(state, 2.0**126, np.float32))


@pytest.mark.parametrize("n", [4, 128])  # a part of a tile and two tiles; means over n round nothing
@pytest.mark.parametrize("mode", [0, 1, 2, 3])
def test_scores_of_minus_infinity_are_not_blocked(dev, mode, n):
    """A row whose scores are all -inf is NaN; it is zeros only where the mask blocks all of it."""
    q, k, mask = np.full((n, 1), 1e30, np.float32), np.full((n, 1), -1e30, np.float32), np.ones((n, n), np.float32)
    v = np.arange(1, n + 1, dtype=np.float32)
    mask[1] = 0
    q, v, mask = dev.buffer(q), dev.buffer(v), dev.buffer(mask)
    expected = np.full(n, np.nan, np.float32)
    expected[1] = {1: (n + 1) / 2, 2: 0}.get(mode, np.nan)
    y = kernels.flash_attention(q, dev.buffer(k), v, 1, n, 1, mode, 1.0, mask=mask)
    assert np.array_equal(y.numpy(), expected, equal_nan=True)
    k[0] = 0  # a score that is finite takes all the weight
    expected[np.isnan(expected)] = 1
    y = kernels.flash_attention(q, dev.buffer(k), v, 1, n, 1, mode, 1.0, mask=mask)
    assert np.array_equal(y.numpy(), expected)


def test_a_window_across_two_tasks_gives_its_gradient_once(dev):
    """Cells grow, so that the last of a window wins: one window a cell, many of them in the rows of the next task."""
    rows, cols = 4096, 512  # 32 tasks of 65,536 cells
    x = dev.buffer(np.arange(rows * cols, dtype=np.float32))
    g = np.random.default_rng(0).standard_normal((rows - 4, cols - 4)).astype(np.float32)
    expected = np.zeros((rows, cols), np.float32)
    expected[4:, 4:] = g
    given = dev.buffer(g)
    with threads(4):
        for _ in range(6):
            gx = kernels.max_pool_bwd(x, given, 1, (rows, cols), (5, 5), (1, 1), (0, 0)).numpy()
            assert np.array_equal(gx.reshape(rows, cols), expected)


def test_workers_keep_subnormals_whatever_their_maker_does():
    """Reading a large buffer makes the workers; it computes nothing, so it leaves its caller's mode as it is."""
    n, least = 1 << 22, np.float32(2.0**-149)
    with tlrt.Device.new("cpu") as dev, threads(1):
        x = dev.buffer(np.full(n, least, np.float32))
        tlrt.set_threads(4)
        with flushing():
            assert least * np.float32(1) == 0  # the mode is on
            x.numpy()
        for _ in range(10):
            assert (kernels.add(x, x).numpy() == 2 * least).all()
