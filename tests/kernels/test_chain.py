"""Products and convolutions in reproducible contexts: every element is the chain that docs/reproducible.md defines, bit for bit,
on every device, SIMD variant and number of threads, and whatever the batch around it."""

from typing import Any

import numpy as np
import pytest

import tlrt
from tests import DEVICES
from tlrt import kernels
from tlrt.errors import ArgumentError, ArgumentTypeError, CaptureError
from tlrt.verify.run import cpu_settings, cpu_variants

#: the least length of a segment, and the most segments: native/src/formula/chain.h
SEGMENT, SEGMENTS = 2048, 32
LONGEST = SEGMENT * SEGMENTS
#: rows, inner dimension and columns: edges of tiles, panels and vectors, one and several segments, both cut among workers or not,
#: segments longer than the least, more tiles of rows for want of columns, nothing to add
SIZES = [
    (1, 1, 1), (3, 5, 7), (17, 300, 33), (31, 31, 129), (64, 256, 64), (65, 257, 66), (130, 96, 300), (260, 40, 260),
    (1, SEGMENT, 70), (70, SEGMENT + 1, 1), (5, 3 * SEGMENT - 1, 9), (200, SEGMENT + 4, 132), (6, LONGEST, 4),
    (3, LONGEST + 1, 2), (150, SEGMENT + 1, 7), (30, SEGMENT + 1, 40), (5, 0, 4), (0, 4, 5), (300, 8, 4), (4, 8, 300),
    (33000, 33, 21), (33000, 36, 20), (21, 34, 33001), (20, 36, 33004),  # so many tiles that halves of small ones are worth it
    (700, 67, 701), (700, 68, 700),  # about as many small tiles as an H200 has multiprocessors
    (5, 20, 9001), (9004, 20, 8), (8, 20, 9004), (9001, 21, 13),  # more tiles of few rows than an H200 runs at once
    (8, 512, 260), (260, 512, 13), (16, 9, 1000),  # fewer
]  # fmt: skip


def chain(a: np.ndarray, b: np.ndarray, bias: np.ndarray | None = None) -> np.ndarray:
    """A·B + bias as it is defined. The product of two float32 is exact in float64, so that a sum of it is a fused one."""
    n = a.shape[1]
    segment = SEGMENT * max(1, -(-n // LONGEST))
    wide_a, wide_b = a.astype(np.float64), b.astype(np.float64)
    total = np.zeros((a.shape[0], b.shape[1]))
    for first in range(0, n, segment):
        sums = np.zeros_like(total)
        for k in range(first, min(n, first + segment)):
            sums += wide_a[:, k : k + 1] * wide_b[k]
        total = sums if first == 0 else total + sums
    return (total if bias is None else total + bias).astype(a.dtype)


def numbers(rng: np.random.Generator, *shape: int) -> np.ndarray:
    """Of either sign, over thirty binades."""
    return (rng.standard_normal(shape) * 2.0 ** rng.integers(-15, 15, shape)).astype(np.float32)


def equal(got: np.ndarray, expected: np.ndarray) -> bool:
    return got.tobytes() == expected.tobytes()


@pytest.fixture(params=DEVICES)
def reproducible(request: pytest.FixtureRequest) -> tlrt.Device:
    return tlrt.device(request.param, math="reproducible")


@pytest.mark.operations("matmul", "linear", "bmm", "dgemm")
@pytest.mark.parametrize(("m", "n", "p"), SIZES)
def test_products_are_chains(reproducible: tlrt.Device, m: int, n: int, p: int) -> None:
    rng = np.random.default_rng([m, n, p])
    a, b, g, bias = numbers(rng, m, n), numbers(rng, n, p), numbers(rng, m, p), numbers(rng, p)
    put = reproducible.buffer
    device_a, device_b, device_g = put(a), put(b), put(g)
    expected = chain(a, b)
    assert equal(kernels.matmul(device_a, device_b, m, n, p).numpy((m, p)), expected)
    left, right = kernels.matmul_bwd(device_a, device_b, device_g, m, n, p)
    assert equal(left.numpy((m, n)), chain(g, b.T)) and equal(right.numpy((n, p)), chain(a.T, g))
    y = kernels.linear(put(b.T), device_a, put(bias), p, n, m)
    assert equal(y.numpy((m, p)), chain(a, b, bias))
    products = kernels.bmm(put(np.stack([a, a])), put(np.stack([b, 2 * b])), 2, m, n, p).numpy((2, m, p))
    assert equal(products[0], expected) and equal(products[1], 2 * expected)


def cancelling(rng: np.random.Generator, m: int, n: int, p: int) -> tuple[np.ndarray, np.ndarray]:
    """Factors of a product in which every term cancels one that is anywhere else."""
    a, b, order = numbers(rng, m, n), numbers(rng, n, p), rng.permutation(n - n % 2)
    first, second = order[::2], order[1::2]
    a[:, second], b[second] = -a[:, first], b[first]
    if n % 2:
        a[:, -1] = 0
    return a, b


@pytest.mark.operations("matmul")
@pytest.mark.parametrize(
    ("m", "n", "p"), [(5, 301, 7), (1, 3 * SEGMENT + 5, 2), (200, 2 * SEGMENT + 7, 132), (2, LONGEST + SEGMENT + 3, 3)]
)
def test_sums_that_cancel(reproducible: tlrt.Device, m: int, n: int, p: int) -> None:
    """What is left are the roundings of float64, in which another order of the terms, another length of the segments and
    another order of their totals show."""
    a, b = cancelling(np.random.default_rng([m, n, p]), m, n, p)
    given = [reproducible.buffer(x) for x in (a, b)]
    assert equal(kernels.matmul(*given, m, n, p).numpy((m, p)), chain(a, b))


@pytest.mark.operations("dgemm")
@pytest.mark.parametrize(("m", "n", "p"), [(1, 1, 1), (33, 70, 65), (64, 128, 64), (3, SEGMENT + 3, 2), (2, 0, 2)])
def test_float64_products_are_chains(reproducible: tlrt.Device, m: int, n: int, p: int) -> None:
    """Of integers, and of numbers whose products are exact: there a separate product gives the chain's bits, too."""
    rng = np.random.default_rng([m, n, p, 64])
    for draw in (numbers, lambda rng, *shape: rng.integers(-(2**20), 2**20, shape)):
        a, b = draw(rng, m, n).astype(np.float64), draw(rng, n, p).astype(np.float64)
        assert equal(kernels.dgemm(reproducible, a, b, m, n, p).reshape(m, p), chain(a, b))


def gathered(
    x: np.ndarray, taps: tuple[int, int], stride: int, padding: int, dilation: int, size: tuple[int, int]
) -> np.ndarray:
    """(channels·taps, batch·positions) of x (batch, channels, h, w), in the order in which convolutions add."""
    batch, channels, *spatial = x.shape
    reach = [(n - 1) * stride + (k - 1) * dilation + 1 for n, k in zip(size, taps, strict=True)]
    wide = np.zeros((batch, channels, *(max(r, padding + n) for r, n in zip(reach, spatial, strict=True))), x.dtype)
    wide[:, :, padding : padding + spatial[0], padding : padding + spatial[1]] = x
    rows = [
        wide[:, c, i * dilation :, j * dilation :][:, : size[0] * stride : stride, : size[1] * stride : stride].reshape(
            -1
        )
        for c in range(channels)
        for i in range(taps[0])
        for j in range(taps[1])
    ]
    return np.array(rows)


#: batch, groups, channels, rows, extents, kernel, stride, padding, dilation: edges of tiles, several segments of terms and of
#: positions, more taps than a word of bits has, runs of positions shorter than a vector; depthwise ones whose blocks share a
#: channel, of several segments and with more taps than a block has chains; kernels of one tap, of whole
#: vectors and not; more tiles than the smallest ones are for
CONVOLUTIONS = [
    (1, 1, 1, 1, (1, 1), (1, 1), 1, 0, 1), (2, 1, 3, 5, (9, 7), (3, 2), 1, 1, 1), (3, 2, 2, 3, (8, 11), (2, 3), 2, 1, 1),
    (2, 1, 5, 33, (13, 12), (3, 3), 1, 1, 2), (1, 1, 300, 4, (4, 5), (3, 3), 1, 1, 1), (3, 1, 2, 17, (31, 30), (3, 3), 1, 1, 1),
    (1, 5, 1, 1, (17, 3), (5, 1), 3, 2, 1), (1, 1, 2, 3, (14, 15), (9, 8), 1, 4, 1), (2, 1, 64, 64, (8, 8), (1, 1), 1, 0, 1),
    (3, 5, 1, 1, (31, 30), (3, 3), 1, 1, 1), (2, 3, 1, 2, (14, 15), (7, 6), 2, 3, 1), (2, 3, 6, 18, (7, 7), (1, 1), 1, 0, 1),
    (3, 1, 8, 60, (28, 32), (1, 1), 1, 0, 1), (1, 1, 400, 440, (6, 6), (1, 1), 1, 0, 1), (1, 1, 140, 99, (6, 6), (3, 3), 1, 1, 1),
    (3, 1, 2, 70, (31, 30), (3, 3), 1, 1, 1),
]  # fmt: skip


@pytest.mark.operations("conv_grouped", "conv_transpose_grouped", "conv")
@pytest.mark.parametrize("case", CONVOLUTIONS, ids=str)
def test_convolutions_are_chains(reproducible: tlrt.Device, case: tuple[Any, ...]) -> None:
    batch, groups, channels, rows, extents, taps, stride, padding, dilation = case
    rng = np.random.default_rng(batch + 10 * channels + 100 * rows)
    size = tuple((n + 2 * padding - dilation * (k - 1) - 1) // stride + 1 for n, k in zip(extents, taps, strict=True))
    x, w = numbers(rng, batch, groups, channels, *extents), numbers(rng, groups, rows, channels, *taps)
    b, g = numbers(rng, groups, rows), numbers(rng, batch, groups, rows, *size)
    put = reproducible.buffer
    axes = [[stride] * 2, [dilation] * 2, [padding] * 2, [padding] * 2]
    settings = (batch, groups, channels, extents, rows, taps, *axes)
    out = kernels.conv_grouped(put(x), put(w), *settings, b=put(b)).numpy(g.shape)
    gx, gw, _ = kernels.conv_grouped_bwd(put(x), put(w), put(g), *settings, want=(True, True, False))
    got_gx, got_gw = gx.numpy(x.shape), gw.numpy(w.shape)
    for i in range(groups):
        columns = gathered(x[:, i], taps, stride, padding, dilation, size)
        y = chain(w[i].reshape(rows, -1), columns, b[i][:, None]).reshape(rows, batch, *size)
        assert equal(np.ascontiguousarray(out[:, i].swapaxes(0, 1)), y)
        flat = np.ascontiguousarray(g[:, i].swapaxes(0, 1)).reshape(rows, -1)
        assert equal(np.ascontiguousarray(got_gw[i]).reshape(rows, -1), chain(flat, columns.T))
        if size == extents and taps == (1, 1):
            expected = chain(w[i].reshape(rows, channels).T, flat).reshape(channels, batch, *extents)
            assert equal(np.ascontiguousarray(got_gx[:, i].swapaxes(0, 1)), expected)


@pytest.mark.operations("conv")
@pytest.mark.parametrize("channels", [SEGMENT // 9 + 1, LONGEST // 9 + 1])
def test_windows_whose_terms_cancel(reproducible: tlrt.Device, channels: int) -> None:
    """Likewise, of as many terms as a window has elements."""
    rows, batch, n = 3, 2, 9 * channels
    w, x = cancelling(np.random.default_rng(channels), rows, n, batch)
    given = [reproducible.buffer(a) for a in (w, np.ascontiguousarray(x.T))]
    settings = batch, channels, (3, 3), rows, (3, 3), [1, 1], [0, 0]
    out = kernels.conv(given[1], given[0], reproducible.zeros(rows), *settings)
    assert equal(out.numpy((batch, rows)), np.ascontiguousarray(chain(w, x).T))


@pytest.mark.operations("conv_transpose", "conv")
@pytest.mark.parametrize("stride", [1, 2, 3])
def test_transposed_convolutions_are_chains(reproducible: tlrt.Device, stride: int) -> None:
    """Every element sums its terms channel by channel, and within one the kernel's offsets that reach it, in order."""
    rng = np.random.default_rng(stride)
    batch, channels, rows, extents, taps = 2, 3, 5, (6, 5), (3, 2)
    x, w, b = numbers(rng, batch, channels, *extents), numbers(rng, channels, rows, *taps), numbers(rng, rows)
    size = tuple((n - 1) * stride + k - 2 for n, k in zip(extents, taps, strict=True))
    expected = np.zeros((batch, rows, *size), np.float32)
    for i in range(size[0]):
        for j in range(size[1]):
            places = [
                (k, m, (i + 1 - k) // stride, (j + 1 - m) // stride)
                for k in range(taps[0])
                for m in range(taps[1])
                if (i + 1 - k) % stride == 0 and (j + 1 - m) % stride == 0
            ]
            inside = [p for p in places if 0 <= p[2] < extents[0] and 0 <= p[3] < extents[1]]
            terms = [(w[c, :, k, m], x[:, c, u, v]) for c in range(channels) for k, m, u, v in inside]
            left = np.array([t[0] for t in terms], np.float32).reshape(-1, rows).T
            right = np.array([t[1] for t in terms], np.float32).reshape(-1, batch)
            expected[:, :, i, j] = chain(left, right, b[:, None]).T
    put = reproducible.buffer
    out = kernels.conv_transpose(put(x), put(w), put(b), batch, channels, extents, rows, taps, [stride] * 2, [1, 1])
    assert equal(out.numpy(expected.shape), expected)


@pytest.mark.operations("conv2d")
def test_images_keep_their_bits_in_any_batch(reproducible: tlrt.Device) -> None:
    rng = np.random.default_rng(11)
    x, w, b = numbers(rng, 6, 7, 19, 23), numbers(rng, 9, 7, 3, 3), numbers(rng, 9)
    put = reproducible.buffer

    def images(x: np.ndarray) -> np.ndarray:
        y = kernels.conv2d(put(x), put(w), put(b), len(x), 7, 19, 23, 9, 3, 3, 1, 1, 1, 1)
        return y.numpy((len(x), 9, 19, 23))

    together = images(x)
    assert all(equal(images(x[i : i + 1]), together[i : i + 1]) for i in range(6)) and equal(
        images(x[::-1]), together[::-1]
    )


@pytest.mark.operations("matmul", "bmm")
def test_variants_and_threads_compute_the_same_chains() -> None:
    device, rng = tlrt.device("cpu", math="reproducible"), np.random.default_rng(7)
    for m, n, p in ((130, 300, 70), (1, 70, 500), (500, 70, 1), (9, 2 * SEGMENT + 5, 11)):
        a, b = numbers(rng, m, n), numbers(rng, n, p)
        expected = chain(a, b)
        for variant in cpu_variants():
            for threads in (1, 3):
                with cpu_settings(variant, threads):
                    got = kernels.matmul(device.buffer(a), device.buffer(b), m, n, p).numpy((m, p))
                assert equal(got, expected), (variant, threads, m, n, p)


@pytest.mark.operations("matmul")
@pytest.mark.parametrize("name", DEVICES)
def test_a_device_changes_its_mode(name: str) -> None:
    rng = np.random.default_rng(3)
    m, n, p = 768, 68, 1024  # tensor cores take it in the mode "fast"
    a, b = numbers(rng, m, n), numbers(rng, n, p)
    with tlrt.device(name, new=True) as device:
        put_a, put_b = device.buffer(a), device.buffer(b)

        def product() -> np.ndarray:
            return kernels.matmul(put_a, put_b, m, n, p).numpy((m, p))

        fast = product()
        assert device.math == "fast" and not equal(fast, chain(a, b))
        with device.set_math("reproducible") as same:
            assert same is device and device.math == "reproducible" and "reproducible" in repr(device)
            assert equal(product(), chain(a, b))
        assert device.math == "fast" and equal(product(), fast)
        with pytest.raises(KeyError), device.set_math("reproducible"):
            raise KeyError
        assert device.math == "fast"
        device.set_math("reproducible")
        assert equal(product(), chain(a, b))
        with pytest.raises(ArgumentError, match="set_math: math: got 'exact', expected 'fast' or 'reproducible'"):
            device.set_math("exact")
        with pytest.raises(ArgumentTypeError, match="math"):
            device.set_math(1)  # type: ignore[arg-type]
        assert device.math == "reproducible"


def test_devices_are_shared_by_name_and_mode(monkeypatch: pytest.MonkeyPatch) -> None:
    one = tlrt.device("cpu", math="reproducible")
    assert one is tlrt.device("cpu", math="reproducible") and one is not tlrt.device("cpu")
    assert tlrt.device("cpu") is tlrt.device("cpu", math="fast")
    monkeypatch.setenv("TORCHLEAN_MATH", "reproducible")
    assert tlrt.device("cpu") is one
    with tlrt.device("cpu", new=True) as other, tlrt.device("cpu", math="fast", new=True) as told:
        assert (other.math, told.math) == ("reproducible", "fast")
    monkeypatch.setenv("TORCHLEAN_MATH", "quick")
    with pytest.raises(ArgumentError, match='TORCHLEAN_MATH: got "quick", expected fast or reproducible'):
        tlrt.device("cpu", new=True)
    with pytest.raises(ArgumentError, match="device: math: got 'quick'"):
        tlrt.device("cpu", math="quick")


@pytest.mark.operations("matmul")
@pytest.mark.parametrize("name", DEVICES)
def test_sessions_compute_in_their_mode_and_replay_in_that_of_the_capture(name: str) -> None:
    rng = np.random.default_rng(5)
    a, b = numbers(rng, 8, 300), numbers(rng, 300, 6)
    with tlrt.Session(name, math="reproducible") as s:
        w = s.param(b, name="w")

        def step(x):
            y = s.matmul(s.const(x), w)
            s.backward(s.sum(y))
            return y

        captured = s.capture(step, a)
        assert equal(captured(a).numpy(), chain(a, b))
        s.device.set_math("fast")
        with pytest.raises(CaptureError, match="got a device of math='fast', expected 'reproducible', as captured"):
            captured(a)
        s.device.set_math("reproducible")
        assert equal(captured(2 * a).numpy(), chain(2 * a, b))
        with pytest.raises(CaptureError, match="set_math"):
            s.capture(lambda: s.device.set_math("fast"))
        with pytest.raises(ArgumentError, match="math"):
            tlrt.Session(s.device, math="fast")
    with tlrt.Session("spec", math="reproducible") as s:
        assert s.matmul(s.const(a), s.const(b)).shape == (8, 6)
