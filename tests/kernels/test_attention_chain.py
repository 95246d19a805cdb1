"""Attention in reproducible contexts: every element is what native/src/cpu/attention/chain.h defines, bit for bit, on every
device and SIMD variant."""

from typing import Any

import numpy as np
import pytest

import tlrt
from tests import DEVICES
from tests.kernels.test_chain import SEGMENT, chain
from tlrt import kernels
from tlrt.verify.run import cpu_settings, cpu_variants
from tlspec.ops.attention import FILL, UNLIMITED

ROUNDER, LOG2E = np.float32(1.5 * 2**23), float.fromhex("0x1.71547652b82fep+0")
LN2 = [np.float32(float.fromhex(c)) for c in ("0x1.62e43p-1", "-0x1.05c61p-29")]
#: of q in e^r = 1 + r + r²·q(r): native/src/formula/explog.h
TAIL = [np.float32(float.fromhex(c)) for c in
        ("0x1.fffffcp-2", "0x1.555492p-3", "0x1.5558aep-5", "0x1.12398ep-7", "0x1.6a4fc4p-10")]  # fmt: skip


def fma(x: Any, y: Any, z: Any) -> np.ndarray:
    """x·y + z of float32 numbers, rounded once: 64 bits hold the sum of these exactly but for one in 2^16."""
    return (np.longdouble(x) * np.longdouble(y) + np.longdouble(z)).astype(np.float32)


def exponential(s: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """p and k of e^s = p·2^k, for |s| < 65536."""
    t = fma(s, np.float32(LOG2E), ROUNDER)
    k = t - ROUNDER
    r = fma(k, -LN2[1], fma(k, -LN2[0], s))
    square = r * r
    low, high = fma(TAIL[1], r, TAIL[0]), fma(TAIL[4], square, fma(TAIL[3], r, TAIL[2]))
    p = np.float32(1) + fma(square, fma(high, square, low), r)
    return p.astype(np.float64), k.astype(np.float64)


def round_24(x: np.ndarray) -> np.ndarray:
    return ((x.view(np.int64) + (1 << 28)) & ~((1 << 29) - 1)).view(np.float64)


def model(q, k, v, g, scale, bias, shut, fill=False) -> list[np.ndarray]:
    """The result and the gradients of one member: `bias` is added to scores, `shut` is blocked."""
    wide_q, wide_k, wide_v, wide_g = (x.astype(np.float64) for x in (q, k, v, g))
    s = chain(wide_q, wide_k.T).astype(np.float32) * np.float32(scale)
    s = s if bias is None else s + bias
    if fill:
        s = np.where(shut, np.float32(FILL), s)
    p, power = exponential(s)
    top = np.where(shut & (not fill), -np.inf, np.rint(s.astype(np.float64) * LOG2E)).max(axis=1, keepdims=True)
    nothing = np.isneginf(top)  # a row that is blocked whole gives zeros
    w = np.where(shut & (not fill), 0.0, p * 2.0 ** (power - np.where(nothing, 0, top)))
    by_four = [chain(np.where(np.arange(w.shape[1]) % 4 == c, w, 0.0), np.ones((w.shape[1], 1))) for c in range(4)]
    total = np.where(nothing, 1.0, (by_four[0] + by_four[2]) + (by_four[1] + by_four[3]))
    out = (chain(w, wide_v) / total).astype(np.float32)
    dot = np.zeros((len(q), 1))
    for c in range(v.shape[1]):
        dot[:, 0] += wide_g[:, c] * out[:, c].astype(np.float64)
    t = chain(wide_g, wide_v.T) - dot
    weighted = np.where(shut, 0.0, round_24(w * t))
    gq = (chain(weighted, wide_k) / total * np.float64(np.float32(scale))).astype(np.float32)
    part = round_24(w * (1.0 / total))
    ds = np.where(shut, 0.0, round_24(part * t))
    gk = (chain(ds.T, wide_q) * np.float64(np.float32(scale))).astype(np.float32)
    return [out, gq, gk, chain(part.T, wide_g).astype(np.float32)]


def drawn(seed: Any, *shapes: tuple[int, ...]) -> list[np.ndarray]:
    rng = np.random.default_rng(seed)
    return [(rng.standard_normal(s) * 2.0 ** rng.integers(-2, 3, s)).astype(np.float32) for s in shapes]


def check(got: list[Any], expected: list[np.ndarray]) -> None:
    for name, x, y in zip(("out", "gQ", "gK", "gV"), got, expected, strict=True):
        y = y + np.float32(0)
        assert x.numpy().tobytes() == y.tobytes(), name


@pytest.fixture(params=DEVICES)
def reproducible(request: pytest.FixtureRequest) -> tlrt.Device:
    return tlrt.device(request.param, math="reproducible")


#: batch, n, d: tiles, panels, warps, chunks of long rows, segments
SQUARE = [(1, 1, 1), (2, 5, 3), (1, 33, 16), (3, 70, 32), (1, 130, 40), (2, 97, 64), (1, 65, 100), (1, 40, 128), (1, 50, 130),
          (1, 34, 300), (1, SEGMENT + 40, 4)]  # fmt: skip


@pytest.mark.operations("flash_attention")
@pytest.mark.parametrize("mode", range(4))
@pytest.mark.parametrize(("batch", "n", "d"), SQUARE)
def test_attention_is_chains(reproducible: tlrt.Device, batch: int, n: int, d: int, mode: int) -> None:
    q, k, v, g = drawn([n, d], *[(batch, n, d)] * 4)
    mask = (np.random.default_rng(n).random((batch, n, n)) < 0.6).astype(np.float32)
    mask[:, :, -1], mask[:, n // 2 :] = 1, 0  # rows that are blocked whole, tiles of them
    shut = {0: np.zeros((batch, n, n), bool), 3: np.broadcast_to(~np.tri(n, dtype=bool), (batch, n, n))}.get(
        mode, mask == 0
    )
    scale, sizes = 0.3, (batch, n, d, mode)
    put = reproducible.buffer
    given, masked = [put(q), put(k), put(v)], {"mask": put(mask)} if mode in (1, 2) else {}
    out = kernels.flash_attention(*given, *sizes, scale, **masked)
    grads = kernels.flash_attention_bwd(*given, out, put(g), *sizes, scale, **masked)
    parts = [model(*(x[b] for x in (q, k, v, g)), scale, None, shut[b], mode == 1) for b in range(batch)]
    check([out, *grads], [np.stack(x).reshape(-1) for x in zip(*parts, strict=True)])


#: batch, heads, kv_heads, queries, keys, d, width, before, after, offset, mask_mode
GROUPED = [(2, 4, 2, 7, 45, 16, 24, UNLIMITED, UNLIMITED, 0, 0), (1, 6, 2, 40, 90, 64, 48, 20, 3, 50, 0),
           (1, 2, 1, 1, SEGMENT + 70, 8, 128, UNLIMITED, UNLIMITED, 0, 2), (1, 3, 3, 33, 33, 128, 150, 9, 0, 0, 1),
           (1, 2, 1, SEGMENT // 2 + 20, 10, 5, 6, UNLIMITED, 4, 3, 2)]  # fmt: skip


@pytest.mark.operations("grouped_attention")
@pytest.mark.parametrize(
    ("batch", "heads", "kv_heads", "queries", "keys", "d", "width", "before", "after", "offset", "mode"), GROUPED
)
def test_grouped_attention_is_chains(
    reproducible: tlrt.Device, batch: int, heads: int, kv_heads: int, queries: int, keys: int, d: int, width: int,
    before: int, after: int, offset: int, mode: int,
) -> None:  # fmt: skip
    q, k, v, g = drawn(
        [heads, keys], (batch, heads, queries, d), (batch, kv_heads, keys, d), (batch, kv_heads, keys, width),
        (batch, heads, queries, width),
    )  # fmt: skip
    rng = np.random.default_rng(keys)
    mask = (rng.random((1, heads, queries, keys)) < 0.7).astype(np.float32)
    if mode == 2:
        mask = np.where(mask == 0, -np.inf, rng.standard_normal(mask.shape)).astype(np.float32)
    at, j = offset + np.arange(queries)[:, None], np.arange(keys)
    shut = ((j < at - before) | (j > at + after)) | ((mask == (0 if mode == 1 else -np.inf)) if mode else False)
    shut, bias = np.broadcast_to(shut, (batch, heads, queries, keys)), None
    if mode == 2:
        bias = np.broadcast_to(np.where(shut, 0, mask), shut.shape)
    sizes = (batch, heads, queries, d, kv_heads, keys, width, mode, 1, heads, queries, before, after, offset, 0.2)
    put = reproducible.buffer
    given, masked = [put(q), put(k), put(v)], {"mask": put(mask)} if mode else {}
    out = kernels.grouped_attention(*given, *sizes, **masked)
    grads = kernels.grouped_attention_bwd(*given, out, put(g), *sizes, **masked)
    parts, group = [], heads // kv_heads
    for b in range(batch):
        for h in range(kv_heads):
            rows = slice(h * group, (h + 1) * group)
            fold = [x[b, rows].reshape(-1, x.shape[-1]) for x in (q, g, shut)]
            more = None if bias is None else bias[b, rows].reshape(-1, keys)
            parts.append(model(fold[0], k[b, h], v[b, h], fold[1], 0.2, more, fold[2]))
    check([out, *grads], [np.stack(x).reshape(-1) for x in zip(*parts, strict=True)])


@pytest.mark.operations("flash_attention")
def test_sums_that_cancel(reproducible: tlrt.Device) -> None:
    """Every third value cancels the one before, of a key that is equal: what is left shows how float64 sums were rounded."""
    n, d, scale = SEGMENT + 100, 4, 0.25
    q, k, v, g = drawn(1, *[(1, n, d)] * 4)
    k[0, 2::3], v[0, 1::3] = k[0, 1 : n - 1 : 3], v[0, 1::3] * np.float32(2**40)
    v[0, 2::3] = -v[0, 1 : n - 1 : 3]
    given = [reproducible.buffer(x) for x in (q, k, v)]
    out = kernels.flash_attention(*given, 1, n, d, 0, scale)
    expected = model(q[0], k[0], v[0], g[0], scale, None, np.zeros((n, n), bool))[0]
    assert out.numpy().tobytes() == (expected + np.float32(0)).tobytes()


@pytest.mark.operations("flash_attention")
def test_scores_of_any_size(reproducible: tlrt.Device) -> None:
    """The greatest score may grow by any power of two from tile to tile, and the weights of equal scores are equal."""
    n, d = 200, 4
    k = np.zeros((1, n, d), np.float32)
    k[0, :, 0] = np.repeat([-3e38, -1e20, -700.0, -1.0, 0.0, 1e3, 1e10, 1e30, 2e38, 3e38], n // 10)
    q, v = np.zeros_like(k), drawn(7, (1, n, d))[0]
    q[0, :, 0] = np.where(np.arange(n) % 2, 1.0, 1e-30)
    given = [reproducible.buffer(x) for x in (q, k, v)]
    out = kernels.flash_attention(*given, 1, n, d, 0, 1.0).numpy().reshape(n, d)
    mean = v[0, -n // 10 :].astype(np.float64).mean(axis=0)
    assert np.allclose(out[1], mean, rtol=1e-6) and np.isfinite(out).all()
    assert (out[1::2] == out[1]).all() and (out[::2] == out[0]).all()


@pytest.mark.operations("grouped_attention")
def test_without_values_the_other_gradients_are_positive_zeros(reproducible: tlrt.Device) -> None:
    queries, keys, d = 5, 9, 4
    q, k = drawn(2, (1, 1, queries, d), (1, 1, keys, d))
    put = reproducible.buffer
    sizes = (1, 1, queries, d, 1, keys, 0, 0, 1, 1, 1, UNLIMITED, UNLIMITED, 0)
    given = put(-np.abs(q)), put(-np.abs(k)), put([])
    out = kernels.grouped_attention(*given, *sizes, 0.5)
    found = kernels.grouped_attention_bwd(*given, out, put([]), *sizes, 0.5)
    assert [x.numpy().tobytes() for x in (out, *found)] == [b"", bytes(q.nbytes), bytes(k.nbytes), b""]


@pytest.mark.operations("flash_attention", "grouped_attention")
@pytest.mark.parametrize("variant", cpu_variants())
@pytest.mark.parametrize("threads", [1, 2, 5])
def test_variants_and_threads_agree(variant: str, threads: int) -> None:
    q, k, v, g = drawn(3, *[(3, 150, 24)] * 4)
    results = []
    for settings in ({}, {"variant": variant, "threads": threads}):
        with cpu_settings(**settings):
            device = tlrt.device("cpu", math="reproducible")
            given = [device.buffer(x) for x in (q, k, v)]
            out = kernels.flash_attention(*given, 3, 150, 24, 3, 0.2)
            grads = kernels.flash_attention_bwd(*given, out, device.buffer(g), 3, 150, 24, 3, 0.2)
            results.append([x.numpy().tobytes() for x in (out, *grads)])
    assert results[0] == results[1]
