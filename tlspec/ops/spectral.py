"""Real Fourier transforms and the spectral convolution.

The CPU path transforms with its own mixed-radix and Bluestein code, CUDA with cuFFT or kernels of its own, so the devices differ in
the last bits; in reproducible contexts CUDA runs the same code as the CPU.

Error of a transform. A Cooley-Tukey algorithm of any radices computes, after the factors of a divisor m of n, transforms of
length m of decimated inputs. By Parseval the root-sum-square of those that enter bin k is the root-mean-square of |X| over
the bins congruent to k modulo m, at most max|X|. So every level perturbs a bin by at most its roundings times u·max|X|, and
a transform with h roundings on the path from an input to a bin by R(h)·u·√2·max|X| with R(h) = min(h, λ√h); the √2 pays for
two real inputs packed into one complex number. (Norm-wise this is the theorem of Higham, Accuracy and Stability of
Numerical Algorithms, 2nd ed., §24.1.) A factor 2 costs four roundings (twiddle, product, its sum, the butterfly's sum), a
prime p up to 127 p + 4, and Bluestein's convolution three transforms over at most 4n points, two of them on the path. With
n = 1, 2 or 4 all roots are ±1 and ±i, so that only the n - 1 sums round; with n a power of two a scaling by 1/n does not.

Range. A bin or an element beyond float32 is infinite. The CPU path transforms a row again, scaled, where sums on the way overflowed;
cuFFT cannot, so on CUDA the bounds cover a row as long as no such sum can reach 2^128: the halves of a real transform add to twice
the sum of the moduli, a convolution's to as much, and 4·n·max|x| is above both.
"""

from functools import partial
from typing import Any

import numpy as np

from tlspec import laws
from tlspec.bounds import LAMBDA, TINY, U64, U, column_height, custom, factor, spacing
from tlspec.classes import Classes, Near
from tlspec.registry import check, op

#: the truncated transform of native/src/formula/dft_tile.h: rows of a tile, tiles of a block on the CPU; with more modes no
#: device truncates; blocks that share the grid on CUDA
TILE, TILES, TRUNCATED, SHARES = 64, 64, 512, 528
#: lengths of transforms whose products are exact
EXACT_ROOTS = (1, 2, 4)
DATA = ("normal", "uniform", "structured", "special")
WITH_HUGE = (*DATA, "huge")


def _height(n):
    """Roundings from an input to an output of a transform of length n, whichever algorithm computes it."""
    if n in EXACT_ROOTS:
        return n - 1
    h, rest, p, large = 4, n, 2, False
    while rest > 1:
        while rest % p:
            p += 1 if p * p <= rest else rest - p
        rest //= p
        h += 4 if p == 2 else min(p, 127) + 4
        large |= p > 13
    return max(h, 8 * int(np.ceil(np.log2(4 * n))) + 12) if large else h


def _scalings(n):
    """Roundings of a product with a_k/n, and of the quotient."""
    return 2 if n & (n - 1) else 0


def _weights(n, bins):
    """a_k: how often bin k of the half spectrum occurs in the whole one."""
    k = np.arange(bins)
    return np.where((k == 0) | (2 * k == n), 1.0, 2.0)


def _finite(x, axis):
    """Rows of a transform that hold no NaN and no infinity."""
    return np.isfinite(x).all(axis=axis)


def _complex(re, im):
    """re + i·im for parts that may be infinite: no product with i."""
    z = np.empty(np.shape(re), np.complex128, like=re)
    z.real, z.imag = re, im
    return z


def _scaled(z, a):
    """a·z for real a, part by part."""
    return _complex(z.real * a, z.imag * a)


def _packed(X):
    return np.stack([X.real, X.imag], axis=-1)


def _rfft(x, axis):
    """np.fft.rfft, but a NaN or an infinity makes every bin NaN in both parts."""
    with np.errstate(all="ignore"):
        X = np.fft.rfft(x, axis=axis)
    return np.where(np.expand_dims(_finite(x, axis), axis), X, complex(np.nan, np.nan))


def _irfft(S, n, axis):
    """np.fft.irfft without the imaginary parts that the result does not depend on; as :func:`_rfft` for NaN."""
    S = np.moveaxis(S, axis, -1).copy()
    if S.shape[-1]:
        S.imag[..., 0] = 0
        if n % 2 == 0 and S.shape[-1] > n // 2:
            S.imag[..., n // 2] = 0
    with np.errstate(all="ignore"):
        x = np.fft.irfft(S, n, axis=-1)
    x = np.where(_finite(S, -1)[..., None], x, np.nan)
    return np.moveaxis(x, -1, axis)


def _forward_error(X, n, axis):
    """The error of an n-point transform with bins X along `axis`, the same for every bin."""
    return factor(_height(n)) * (U * np.sqrt(2) * np.abs(X).max(axis=axis, keepdims=True, initial=0) + n * TINY)


def _forward_peak(x):
    return 4 * x.shape[1] * np.abs(x).max(axis=1, initial=0)[:, None, None]


def _inverse_peak(spec, n=1):
    return 8 * n * np.abs(spec).max(axis=(1, 2), initial=0)[:, None]


def _bound(tolerance, text, cuda_peak):
    """The bound of a transform; in reproducible contexts CUDA transforms as the CPU does, where nothing overflows on the way."""
    return custom(tolerance, text, cuda_peak=cuda_peak, chain=custom(tolerance, text))


def _rfft_tolerance(x):
    X = _rfft(x, 1)
    return _forward_error(X, x.shape[1], 1)[..., None] + spacing(_packed(X)) / 2


def _inverse_tolerance(x, n):
    size = np.abs(x).max(axis=1, keepdims=True, initial=0)
    return factor(_height(n) + _scalings(n)) * (U * np.sqrt(2) * size + n * TINY) + spacing(x) / 2


def _rest(n):
    """What is left of n without its primes up to 13."""
    for p in (2, 3, 5, 7, 11, 13):
        while n and n % p == 0:
            n //= p
    return n


#: long transforms and grids
DIRECT, BLOCK = 2048, 4096
LENGTHS: Classes = {
    "a power of two": lambda batch, n: batch > 0 and n > 16 and n & (n - 1) == 0,
    "odd factors up to 13": lambda batch, n: batch > 0 and _rest(n) == 1 and n % 2 == 1 and n > 16,
    "even with odd factors": lambda batch, n: batch > 0 and _rest(n) == 1 and n % 2 == 0 and n & (n - 1) > 0,
    "an odd length with a large prime": lambda batch, n: batch > 0 and _rest(n) > 1 and n % 2 == 1,
    "an even length with a large prime": lambda batch, n: batch > 0 and _rest(n) > 1 and n % 2 == 0,
    "one number": lambda batch, n: batch > 0 and n == 1,
    "a long power of two": Near(lambda batch, n: batch > 0 and n > DIRECT and n & (n - 1) == 0, DIRECT),
    "long with a large prime": lambda batch, n: batch > 0 and n > DIRECT and _rest(n) > 1,
    "several long rows": lambda batch, n: batch > 3 and n > DIRECT,
    "one to three long rows": lambda batch, n: 0 < batch < 4 and n > DIRECT,
    "rows in lanes with a rest": lambda batch, n: batch > 16 and batch % 16 != 0 and n > 1,
}
#: on CUDA rows in shared memory, direct and by a convolution with a chirp, and longer ones with large primes, of odd and of even length
TRANSFORMS = [
    {"batch": b, "n": n}
    for b, n in ((61, 4), (131, 61), (131, 67), (3, 2503), (5, 262), (40, 5072), (2, 7879), (2, 5072))
]
MODES: Classes = {
    "an odd grid": lambda grid, width, modes: grid % 2 == 1 and modes > 1 and width > 0,
    "an even grid": lambda grid, width, modes: grid % 2 == 0 and modes > 1 and width > 0,
    "all modes of an even grid": lambda grid, width, modes: width > 0 and 2 * modes == grid + 2,
    "all modes of an odd grid": lambda grid, width, modes: width > 0 and 2 * modes == grid + 1 and modes > 1,
    "one mode": lambda grid, width, modes: width > 0 and modes == 1 < grid,
    "many modes": lambda grid, width, modes: width > 0 and modes > 32 + 4 * grid.bit_length(),
    "few modes of a long grid": Near(lambda grid, width, modes: width > 0 and 1 < modes <= 32 and grid > BLOCK, BLOCK),
    "more modes than are truncated": Near(lambda width, modes: width > 0 and modes > TRUNCATED, 2 * TRUNCATED),
}


@op("x[batch, n] -> spec[batch, n // 2 + 1, 2]",
    classes=LENGTHS, bound=_bound(_rfft_tolerance, "R(h)·u·√2·max|X|", _forward_peak), same_bits=False, reproducible=True,
    cuda="cuFFT", data=WITH_HUGE,
    checks=[check("n", "n >= 1")], paths=TRANSFORMS,
    laws=[
        laws.linear("x"), laws.adjoint("x"),
        laws.equation("irfft(rfft(x)) = x", lambda f, x, batch, n: [_back(f, x, batch, n)], exact=False),
    ], source="torch.fft.rfft, numpy.fft.rfft")  # fmt: skip
def rfft1d_packed(x):
    """Real Fourier transform of every row, unnormalised, as a packed half spectrum.

    spec[b, k] = Σ_t x[b, t]·e^(-2πi·kt/n), k = 0..n/2, stored as (re, im)

    Shapes: x (batch, n), spec (batch, n/2 + 1, 2); O(n log n) for every n, primes included.
    Special values: the imaginary part of bin 0, and for even n of bin n/2, is zero. A NaN or an infinity in a row makes all of
    the row's spectrum NaN. A bin beyond float32 is infinite and leaves the others as they are; on CUDA, where 4·n·max|x| of a row
    reaches 2^128, other bins of the row may be infinite or NaN. batch = 0 gives an empty result.
    Errors: ARGUMENT for n = 0."""
    return _packed(_rfft(x, 1))


def _rfft_vjp_tolerance(g: Any, n: int) -> Any:
    return _inverse_tolerance(rfft1d_packed_vjp(g, n), n)


@rfft1d_packed.vjp("g -> gx", bound=_bound(_rfft_vjp_tolerance, "R(h)·u·√2·max|gx|", lambda g, n: _inverse_peak(g, n)))
def rfft1d_packed_vjp(g: Any, n: int) -> Any:
    """gx[b, t] = Σ_k g_re[b, k]·cos θ - g_im[b, k]·sin θ with θ = 2πkt/n: n times the inverse transform of the cotangent with
    the bins that the half spectrum stands for twice halved."""
    S = _scaled(_complex(g[..., 0], g[..., 1]), n / _weights(n, n // 2 + 1))
    return _irfft(S, n, 1)


def _inverse(spec, n):
    return _irfft(_complex(spec[..., 0], spec[..., 1]), n, 1)


@op("spec[batch, n // 2 + 1, 2] -> x[batch, n]",
    classes=LENGTHS, bound=_bound(
        lambda spec, n: _inverse_tolerance(_inverse(spec, n), n), "R(h)·u·√2·max|x|", lambda spec: _inverse_peak(spec),
    ), same_bits=False, reproducible=True, cuda="cuFFT", data=WITH_HUGE, checks=[check("n", "n >= 1")], paths=TRANSFORMS,
    laws=[laws.linear("spec"), laws.adjoint("spec")],
    source="torch.fft.irfft, numpy.fft.irfft")  # fmt: skip
def irfft1d_packed(spec, n):
    """Inverse of rfft1d_packed, scaled by 1/n.

    x[b, t] = 1/n·Σ_k a_k·(re[b, k]·cos θ - im[b, k]·sin θ), θ = 2πkt/n, a_k = 1 at k = 0 and k = n/2, else 2

    Shapes: spec (batch, n/2 + 1, 2), x (batch, n).
    Special values: the imaginary part of bin 0, and for even n of bin n/2, is ignored. Any other NaN or infinity in a row makes
    all of the row NaN. An element beyond float32 is infinite; on CUDA, where 8·max|spec| of a row reaches 2^128, other elements of
    the row may be infinite or NaN. batch = 0 gives an empty result.
    Errors: ARGUMENT for n = 0."""
    return _inverse(spec, n)


def _irfft_vjp_tolerance(g):
    n = g.shape[1]
    X = _rfft(g, 1)
    scale = _weights(n, X.shape[1])[:, None] / n
    return (_forward_error(X, n, 1)[..., None] + _scalings(n) * U * np.abs(_packed(X))) * scale + spacing(
        _packed(X) * scale
    ) / 2


@irfft1d_packed.vjp(
    "g -> gspec", bound=_bound(_irfft_vjp_tolerance, "R(h)·u·√2·max|G|·a/n", lambda g: _forward_peak(g))
)
def irfft1d_packed_vjp(g):
    """gspec[b, k] = a_k/n·G[b, k] with G = rfft1d_packed(g); zero for the imaginary parts that the result ignores."""
    n = g.shape[1]
    return _packed(_scaled(_rfft(g, 1), _weights(n, n // 2 + 1) / n))


def _back(f, x, batch, n):
    """There and back again: the inverse transform carries the forward one's error to every element."""
    spectrum = f()
    carried = (_weights(n, n // 2 + 1) / n * np.asarray(spectrum.tolerance).sum(axis=-1)).sum(axis=-1, keepdims=True)
    again = f({"spec": spectrum.array}, op="irfft1d_packed", values={"batch": batch, "n": n})
    return again, laws.Value(x, np.broadcast_to(carried, np.shape(x)))


class _Error:
    """The error of the parts of complex numbers: its worst case, and the variance of what mean-zero independent roundings make of
    it, each at most u. A bound is the smaller of the worst case and λ standard deviations, as for a tree; that a sum's parts
    are independent lets the variances add where only the worst cases would."""

    def __init__(self, worst, variance):
        self.worst, self.variance = worst, variance

    @classmethod
    def rounded(cls, h, magnitude):
        """h roundings of at most u times a magnitude each, and as many underflows."""
        step = U * magnitude + TINY
        return cls(h * step, h * step**2)

    def __add__(self, other):
        return _Error(self.worst + other.worst, self.variance + other.variance)

    def scaled(self, factor):
        return _Error(self.worst * factor, self.variance * factor**2)

    def through(self, pattern, weight, *, together=0.0):
        """Of a sum of products with weights, the parts' errors independent but for a share of the variance that is `together`
        the same rounding in every term."""
        spread, size = np.einsum(pattern, self.variance, weight**2), np.einsum(pattern, np.sqrt(self.variance), weight)
        return _Error(np.einsum(pattern, self.worst, weight), (1 - together) * spread + together * size**2)

    @property
    def bound(self):
        return np.minimum(self.worst, LAMBDA * np.sqrt(self.variance))


#: of a transform's roundings, those of its roots: at most one in four, and the same roots serve every channel
ROOTS = 0.25


def _tile_height(n, width, modes):
    """Roundings from an element to a bin of the truncated transform: a pair's sum, its cosine, a chain over the pairs of a tile
    that are not padding, root, product and difference of the tile's turn, then the sum over tiles in either device's order
    (that of native/src/cuda/spectral/conv.cu: four interleaved chains over a block's tiles and four over the blocks, or more of them)."""
    if n in EXACT_ROOTS:
        return n - 1
    tiles = -(-n // TILE)
    blocks = max(1, SHARES // max(1, -(-width // 64) * -(-modes // 16)))
    per_block = 4 * -(-tiles // (4 * blocks))
    chained = per_block // 4 + 2 + -(-tiles // per_block) // 4 + 3
    return min(n, TILE // 2) + 5 + min(tiles - 1, max(min(tiles, TILES) + column_height(-(-tiles // TILES)), chained))


def _analysis(x, modes, chain):
    """The first bins of every channel, and the error of each channel's, as large as the worse of the ways to get them has it; in
    reproducible contexts one rounding of a sum in float64."""
    n, width = x.shape
    X = _rfft(x, 0)
    if chain:
        return X[:modes], _Error.rounded(1, np.abs(X[:modes]) + factor(2 * n) * U64 / U * np.abs(x).sum(axis=0))
    h = _height(n) if modes > TRUNCATED else max(_height(n), _tile_height(n, width, modes))
    error = _Error.rounded(h, 2 * np.abs(X).max(axis=0, initial=0) + n * TINY / U)
    return X[:modes], _Error(*(np.broadcast_to(e, (modes, width)) for e in (error.worst, error.variance)))


def _synthesis(A, error, n, y, chain):
    """Error of y_t = Σ_k Re A_k cos θ - Im A_k sin θ for coefficients whose parts have an error. Those of different bins add like
    independent ones: what a level of a transform gets wrong reaches the bins by a multiple of a unitary map, whose rows are
    orthogonal, and the bins of a truncated transform share no sums. The synthesis adds either a transform's roundings, or those
    of the sum itself: a turned coefficient has four, of parts that may be √2 of it, and the chain one per mode. In reproducible
    contexts a sum in float64 rounds once."""
    if chain:
        own = _Error.rounded(1, factor(4 * len(A)) * U64 / U * 2 * np.abs(A).sum(axis=0))
        return (_Error(error.worst.sum(axis=0), error.variance.sum(axis=0)) + own).bound
    own = _Error.rounded(_height(n) + _scalings(n), np.sqrt(2) * np.abs(y).max(axis=0, initial=0) + n * TINY / U)
    if len(A) <= TRUNCATED:
        summed = _Error.rounded(n - 1 if n in EXACT_ROOTS else len(A) + 8, np.abs(A).sum(axis=0))
        own = _Error(np.maximum(own.worst, summed.worst), np.maximum(own.variance, summed.variance))
    return (_Error(error.worst.sum(axis=0), error.variance.sum(axis=0)) + own).bound


def _products(a, b, pattern):
    """Σ |a||b| over both parts, a bound of either part of a complex product's terms."""
    return np.einsum(pattern, np.abs(a.real) + np.abs(a.imag), np.maximum(np.abs(b.real), np.abs(b.imag)))


def _mixed(a, error, W, pattern, chain):
    """The mix of channels: the coefficients' error through the weights, and the roundings of a part's chain, or in reproducible
    contexts those of float64."""
    through = error.through(pattern, np.abs(W), together=0.0 if chain else ROOTS)
    roundings = factor(2 * W.shape[1]) * U64 / U if chain else 2 * W.shape[1]
    return through + _Error.rounded(roundings, _products(a, W, pattern))


def _conv_tolerance(x, wRe, wIm, chain=False):
    n, modes = len(x), len(wRe)
    X, eX = _analysis(x, modes, chain)
    W, a = _complex(wRe, wIm), (_weights(n, modes) / n)[:, None]
    Z = np.einsum("kc,kco->ko", X, W) * a
    eZ = _mixed(X, eX, W, "kc,kco->ko", chain).scaled(a) + _Error.rounded(1 if chain else _scalings(n), np.abs(Z))
    y = spectral_conv1d_rfft.reference(x, wRe, wIm)
    return _synthesis(Z, eZ, n, y, chain) + spacing(y) / 2


def _conv_vjp_tolerance(x, wRe, wIm, g, chain=False):
    n, modes = len(x), len(wRe)
    X, eX = _analysis(x, modes, chain)
    G, eG = _analysis(g, modes, chain)
    W, a = _complex(wRe, wIm), (_weights(n, modes) / n)[:, None]
    dZ = G * a
    eZ = eG.scaled(a) + _Error.rounded(1 if chain else _scalings(n), np.abs(dZ))
    dX = np.einsum("ko,kco->kc", dZ, W.conj())
    edX = _mixed(dZ, eZ, W, "ko,kco->kc", chain)
    if chain:
        edX = edX + _Error.rounded(1, np.abs(dX))
    # a part of X·conj dZ: the errors of either factor times the other, and of both, then three roundings
    left, right = np.abs(X)[:, :, None], np.abs(dZ)[:, None, :]
    bX, bZ = eX.bound[:, :, None], eZ.bound[:, None, :]
    sX, sZ = eX.variance[:, :, None], eZ.variance[:, None, :]
    eW = _Error(left * bZ + right * bX, left**2 * sZ + right**2 * sX).bound + bX * bZ
    eW = eW + 3 * (U * _products(X, dZ, "kc,ko->kco") + TINY)
    gx, gr, gi = spectral_conv1d_rfft_vjp(x, wRe, wIm, g)
    return _synthesis(dX, edX, n, gx, chain) + spacing(gx) / 2, eW + spacing(gr) / 2, eW + spacing(gi) / 2


def _conv_bound(tolerance, text):
    return custom(tolerance, text, chain=custom(partial(tolerance, chain=True), f"{text}, each rounded once"))


def _draw(d):
    """Odd and even grids; few modes, all of them, and the two in between."""
    grid = d.dim(1, max(1, d.budget // 8))
    width = d.dim(0, max(1, int((d.budget / 4) ** 0.5))) if d.rng.random() < 0.5 else d.integer(1, 4)
    most = min(grid // 2 + 1, max(1, d.budget // max(4 * width * width, 1)))
    modes = d.choice([0 if d.empty else 1, most, d.integer(1, most), min(most, 16), max(most - 1, 1)])
    return {"grid": grid, "width": width, "modes": modes}


@op("x[grid, width], wRe[modes, width, width], wIm[modes, width, width] -> y[grid, width]",
    fwd=True, classes=MODES, bound=_conv_bound(_conv_tolerance, "first-order: transform, mix, inverse"), same_bits=False, reproducible=True,
    data=DATA, draw=_draw,
    # so short that few bounds add up; one of many channels; one of few on a long grid
    paths=[
        *({"grid": n, "width": w, "modes": n // 2 + 1} for n, w in ((4, 61), (1, 3), (4, 2), (2, 3), (1, 1), (2, 2))),
        {"grid": 67651, "width": 3, "modes": 17},
    ],
    checks=[check("grid", "grid >= 1"), check("modes", "modes <= grid // 2 + 1")],
    laws=[laws.linear("x"), laws.linear("wRe", "wIm"), laws.adjoint("x"), laws.adjoint("wRe", "wIm")],
    source="torch.fft.rfft and irfft; Li et al., Fourier Neural Operator for Parametric Partial Differential Equations, 2021")  # fmt: skip
def spectral_conv1d_rfft(x, wRe, wIm):
    """Convolution along the grid by complex weights on the lowest Fourier modes.

    y = irfft(Z), Z[k, o] = Σ_c X[k, c]·(wRe + i·wIm)[k, c, o] for k < modes, else 0, with X = rfft(x) along the grid

    Shapes: x and y (grid, width), wRe and wIm (modes, width, width).
    Special values: the imaginary part of Z at bin 0, and for even grid at bin grid/2, is ignored. A NaN or an infinity in x makes
    all of y NaN if there are modes; one in the weights its output channel. modes = 0 gives zeros; width = 0 an empty result.
    Errors: ARGUMENT for grid = 0 or modes > grid/2 + 1."""
    n, modes = len(x), len(wRe)
    if modes == 0:
        return np.zeros(x.shape)
    Z = np.zeros((n // 2 + 1, x.shape[1]), np.complex128, like=x)
    with np.errstate(all="ignore"):
        Z[:modes] = np.einsum("kc,kco->ko", _rfft(x, 0)[:modes], _complex(wRe, wIm))
    return _irfft(Z, n, 0)


@spectral_conv1d_rfft.vjp("x, wRe, wIm, g -> gx, gwRe, gwIm", each=("x", "wre", "wim"),
    bound=_conv_bound(_conv_vjp_tolerance, "first-order: transforms, mix, inverse"))  # fmt: skip
def spectral_conv1d_rfft_vjp(x, wRe, wIm, g):
    """With X = rfft(x), G = rfft(g), dZ_k = a_k/n·G_k and a_k = 1 at k = 0 and k = n/2, else 2:
    gx[t, c] = Σ_k Re dX_k·cos θ - Im dX_k·sin θ with dX[k, c] = Σ_o dZ[k, o]·conj(w[k, c, o]) and θ = 2πkt/n;
    gwRe = Re X·Re dZ + Im X·Im dZ; gwIm = Re X·Im dZ - Im X·Re dZ."""
    n, modes = len(x), len(wRe)
    a = _weights(n, modes)[:, None]
    X, dZ = _rfft(x, 0)[:modes], _scaled(_rfft(g, 0)[:modes], a / n)
    with np.errstate(all="ignore"):
        dX = np.zeros((n // 2 + 1, x.shape[1]), np.complex128, like=x)
        dX[:modes] = _scaled(np.einsum("ko,kco->kc", dZ, _complex(wRe, -wIm)), n / a)
        gx = _irfft(dX, n, 0) if modes else np.zeros(x.shape)
        gw = X.conj()[:, :, None] * dZ[:, None, :]
    return gx, gw.real, gw.imag
