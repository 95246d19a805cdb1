"""Normalisation: of the rows of a matrix, around their mean or around 0, and of the channels of an image.

All normalise contiguous runs, called rows here: mean μ = Σx/n, variance V = Σ(x - μ)²/n (biased, around the mean, never
E[x²] - E[x]²), istd = 1/√(V + ε), x̂ = (x - μ)·istd. The sums along a row follow the row tree, those of the gradients of γ and
β over the rows of a matrix the column tree (``native/src/formula/sum_tree.h``); both back ends give the same bits.

The bounds follow the arithmetic step by step as pairs (magnitude, error), products and sums of which include the second order.
Write f = min(h, λ√h) for the row tree's factor.

- μ is off by Δμ = f·u·mean|x| + u|μ|, all x̂ of the row alike. d = x - μ by Δμ and its rounding u|d|. In a constant row d is
  nothing but Δμ, and x̂ is off by Δμ/√ε.
- V: since Σd = 0, the error of μ enters as Δμ² alone; the roundings of d (twice) and of d² are relative, 3u, then the tree's
  f·u and the quotient's u: ΔV = Δμ² + (f + 4)·u·(V + Δμ²).
- w = V + ε has the relative error q = ΔV/w + u, so istd has (1 - q)^(-1/2) - 1 plus u each for the root and the quotient.
- everything else is sums and products of these.
"""

import numpy as np

from tlspec.bounds import TINY, U, column_height, custom, factor, tree_height
from tlspec.classes import Classes, boundary, derived
from tlspec.laws import equation
from tlspec.ops.softmax import CLASSES as ROWS
from tlspec.registry import check, op

DATA = ("normal", "uniform", "integers", "special", "structured")
EPS_CHECK = check("eps", "eps >= 0", say="eps >= 0")


def times(a, b):
    """A rounded product of two pairs."""
    (x, dx), (y, dy) = a, b
    p = np.abs(x * y)
    d = np.abs(x) * dy + np.abs(y) * dx + dx * dy
    return x * y, d + U * (p + d) + TINY


def plus(a, b, rounded: bool = True):
    """A sum of two pairs, rounded unless a fused operation rounds it later."""
    s, d = a[0] + b[0], a[1] + b[1]
    return s, d + rounded * U * (np.abs(s) + d)


def minus(a, b):
    """A rounded difference of two pairs."""
    return plus(a, (-b[0], b[1]))


def fused(a, b, c):
    """a·b + c, rounded once."""
    (x, dx), (y, dy) = a, b
    return plus((x * y, np.abs(x) * dy + np.abs(y) * dx + dx * dy + TINY), c)


def summed(a, axis: int, height: int):
    """A sum along an axis by a tree of that height."""
    x, d = a
    bad = d.sum(axis=axis, keepdims=True)
    return x.sum(axis=axis, keepdims=True), bad + factor(height) * U * (np.abs(x).sum(axis=axis, keepdims=True) + bad)


def mean(a):
    """A mean along rows by the row tree, then a quotient."""
    n = a[0].shape[1]
    s, d = summed(a, 1, tree_height(n))
    return s / n, d / n + U * (np.abs(s) + d) / n + TINY


def exactly(x):
    return x, np.zeros_like(x)


def statistics(x, eps):
    """Mean, variance and inverse standard deviation of rows, (rows, 1) each."""
    n = max(x.shape[1], 1)
    mu = x.sum(axis=1, keepdims=True) / n
    var = ((x - mu) ** 2).sum(axis=1, keepdims=True) / n
    return mu, var, 1.0 / np.sqrt(var + eps)


def normalised(x, eps):
    """Pairs of istd and x̂; see the module's docstring."""
    mu, var, istd = statistics(x, eps)
    off = mean(exactly(x))[1]
    tree = factor(tree_height(x.shape[1]))
    dvar = off**2 + (tree + 4) * U * (var + off**2) + TINY
    q = dvar / (var + eps) + U
    relative = np.where(q < 1, 1.0 / np.sqrt(np.maximum(1 - q, 1e-300)) - 1, np.inf)
    # whatever the variance came out as, istd is at most 1/√ε
    relative = np.minimum(relative, np.maximum(1.0, np.sqrt((var + eps) / max(eps, 1e-300)) - 1)) + 2 * U
    inverse = istd, 1.001 * istd * relative
    return inverse, times(minus(exactly(x), (mu, off)), inverse)


def affine_tolerance(x, gamma, beta, eps):
    """out = x̂·γ + β, fused."""
    _, xhat = normalised(x, eps)
    return fused(xhat, exactly(gamma), exactly(beta))[1]


def row_gradient(istd, xhat, a):
    """istd·((a - mean(a)) - x̂·mean(a·x̂)), the second difference fused."""
    c1, c2 = mean(a), mean(times(a, xhat))
    return times(fused((-xhat[0], xhat[1]), c2, minus(a, c1)), istd)


def layer_norm_tolerance(x, gamma, beta, eps):
    """As the module's docstring says, with γ and β of the column."""
    return affine_tolerance(x, gamma[None, :], beta[None, :], eps)


def layer_norm_vjp_tolerance(x, gamma, g, eps):
    """gx from the pairs of g·γ, x̂ and istd; gγ and gβ by the column tree over the rows."""
    istd, xhat = normalised(x, eps)
    height = column_height(x.shape[0])
    gx = row_gradient(istd, xhat, times(exactly(g), exactly(gamma[None, :])))
    ggamma = summed(times(exactly(g), xhat), 0, height)
    return gx[1], ggamma[1][0], summed(exactly(g), 0, height)[1][0]


CHUNK, TILE = boundary("norm", "TL_COLUMN_CHUNK"), boundary("norm", "TILE")
CLASSES: Classes = {
    **ROWS,
    "chunks of rows as tasks": lambda rows, cols: cols > 1 and rows >= CHUNK * boundary("norm", "MANY_CHUNKS"),
    "chunks of rows and tiles of columns, both with a rest": lambda rows, cols: (
        rows > CHUNK and cols > TILE and rows % CHUNK * (cols % TILE) > 0
    ),
    "whole chunks of rows": lambda rows, cols: cols > 1 and rows > 0 and rows % CHUNK == 0,
}


def draw_rows(d):
    """A matrix, and an ε from negligible to dominant."""
    return {"rows": d.dim(), "cols": d.dim(), "eps": d.choice([1e-6, 1e-6, 1e-5, 1e-3, 1.0])}


def _batch(f, x, rows, cols):
    yield f({"x": x[rows // 2 :]}, values={"rows": rows - rows // 2, "cols": cols}).array, f().array[rows // 2 :]


def _shift(f, x):
    yield f({"x": x + np.float32(3)}), f()


@op("x[rows, cols], gamma[cols], beta[cols]; eps: float = 1e-6 -> out[rows, cols]",
    classes=CLASSES, bound=custom(layer_norm_tolerance, "first order through μ, V, istd: |γ|(Δd·istd + |d|·Δistd) + roundings"),
    data=DATA, checks=[EPS_CHECK], draw=draw_rows,
    laws=[equation("f(x + 3) = f(x)", _shift, exact=False), equation("a row does not depend on the others", _batch)],
    # rows in turn; rows of a chain side by side; so few that the error of a row is most of a column's bound
    paths=[{"rows": 530, "cols": 4100, "eps": 1e-5}, {"rows": 529, "cols": 8196, "eps": 1e-6},
           {"rows": 133, "cols": 419, "eps": 1e-6}, {"rows": 2, "cols": 61, "eps": 1e-6}],
    source="Ba, Kiros and Hinton, Layer Normalization, arXiv:1607.06450; native/src/formula/sum_tree.h")  # fmt: skip
def layer_norm(x, gamma, beta, eps):
    """Layer normalisation over the last axis.

    out[i, j] = gamma[j]·(x[i, j] - μ_i)/√(V_i + eps) + beta[j], μ_i and V_i the mean and the biased variance of row i; the
    variance is that around the computed mean, eps is inside the root

    Shapes: x (rows, cols), gamma (cols), beta (cols), out (rows, cols). Leading axes fold into rows.
    Special values: IEEE 754. NaN or an infinity in a row make the whole row NaN, and so does a sum or a sum of squares beyond
    the float32 range make it what the formula gives. A constant row gives beta up to the rounding of its mean over √eps, NaN
    if eps = 0 and the mean is exact. rows = 0 or cols = 0 gives an empty result.
    Errors: ARGUMENT if eps is negative or NaN."""
    mu, _, istd = statistics(x, eps)
    return gamma * ((x - mu) * istd) + beta


@layer_norm.formula()
def _scaled_and_shifted(x, gamma, beta, eps):
    mu, _, istd = statistics(x, eps)
    return x * istd * gamma + (beta - mu * istd * gamma)


@layer_norm.formula("vjp")
def _by_sums_of_products(x, gamma, g, eps):
    mu, _, istd = statistics(x, eps)
    a, n = g * gamma, max(x.shape[1], 1)
    b = (a.sum(axis=1, keepdims=True) * mu - (a * x).sum(axis=1, keepdims=True)) * istd * istd * istd / n
    c = -b * mu - a.sum(axis=1, keepdims=True) * istd / n
    return istd * a + b * x + c, (g * (x * istd - mu * istd)).sum(axis=0), g.sum(axis=0)


@layer_norm.vjp("x, gamma, g -> gx, ggamma, gbeta",
    bound=custom(layer_norm_vjp_tolerance, "first order through μ, V, istd"))  # fmt: skip
def layer_norm_vjp(x, gamma, g, eps):
    """gx = istd·(d - mean(d) - x̂·mean(d·x̂)) with d = g·gamma and means along the row; ggamma[j] = Σ_i g[i, j]·x̂[i, j];
    gbeta[j] = Σ_i g[i, j].

    μ and istd are computed again from x. With rows = 0 ggamma and gbeta are 0."""
    mu, _, istd = statistics(x, eps)
    xhat, a, n = (x - mu) * istd, g * gamma, max(x.shape[1], 1)
    c1, c2 = a.sum(axis=1, keepdims=True) / n, (a * xhat).sum(axis=1, keepdims=True) / n
    return istd * (a - c1 - xhat * c2), (g * xhat).sum(axis=0), g.sum(axis=0)


def plain_statistics(x, eps):
    """Mean square and its inverse root of rows, (rows, 1) each."""
    square = (x**2).sum(axis=1, keepdims=True) / max(x.shape[1], 1)
    return square, 1.0 / np.sqrt(square + eps)


def plain_normalised(x, eps):
    """Pairs of istd and x̂ around 0: the squares are off by u each, their mean by f·u and the quotient's u besides."""
    square, istd = plain_statistics(x, eps)
    q = ((factor(tree_height(x.shape[1])) + 2) * U * square + TINY) / (square + eps) + U
    relative = np.where(q < 1, 1.0 / np.sqrt(np.maximum(1 - q, 1e-300)) - 1, np.inf)
    relative = np.minimum(relative, np.maximum(1.0, np.sqrt((square + eps) / max(eps, 1e-300)) - 1)) + 2 * U
    inverse = istd, np.where(np.isinf(square), 0.0, 1.001 * istd * relative)
    return inverse, times(exactly(x), inverse)


def rms_norm_tolerance(x, gamma, eps):
    """x̂·γ, rounded."""
    return times(plain_normalised(x, eps)[1], exactly(gamma[None, :]))[1]


def rms_norm_vjp_tolerance(x, gamma, g, eps):
    """gx from the pairs of g·γ, x̂ and istd; gγ by the column tree over the rows."""
    istd, xhat = plain_normalised(x, eps)
    a = times(exactly(g), exactly(gamma[None, :]))
    gx = times(fused((-xhat[0], xhat[1]), mean(times(a, xhat)), a), istd)
    return gx[1], summed(times(exactly(g), xhat), 0, column_height(x.shape[0]))[1][0]


@op("x[rows, cols], gamma[cols]; eps: float = 1.1920928955078125e-07 -> out[rows, cols]",
    classes=CLASSES, bound=custom(rms_norm_tolerance, "first order through the mean square and istd"),
    data=DATA, checks=[EPS_CHECK], draw=draw_rows, laws=[equation("a row does not depend on the others", _batch)],
    paths=[{"rows": 530, "cols": 4100, "eps": 1e-5}, {"rows": 133, "cols": 419, "eps": 1e-6},
           {"rows": 2, "cols": 61, "eps": 1e-6}],
    source="Zhang and Sennrich, Root Mean Square Layer Normalization, arXiv:1910.07467; torch.nn.RMSNorm")  # fmt: skip
def rms_norm(x, gamma, eps):
    """Normalisation by the root of the mean square over the last axis.

    out[i, j] = gamma[j]·(x[i, j]/√(Σ_k x[i, k]²/cols + eps)); eps is inside the root, by default that of PyTorch, 2^-23

    Shapes: x (rows, cols), gamma (cols), out (rows, cols). Leading axes fold into rows.
    Special values: IEEE 754. NaN or an infinity in a row make it NaN or 0, as the formula gives; where the sum of squares is
    beyond the float32 range a row is 0. A row of zeros gives zeros, NaN if eps = 0. A size of 0 gives an empty result.
    Errors: ARGUMENT if eps is negative or NaN."""
    return gamma * (x * plain_statistics(x, eps)[1])


@rms_norm.vjp("x, gamma, g -> gx, ggamma",
    bound=custom(rms_norm_vjp_tolerance, "first order through the mean square and istd"))  # fmt: skip
def rms_norm_vjp(x, gamma, g, eps):
    """gx = istd·(d - x̂·mean(d·x̂)) with d = g·gamma, x̂ = x·istd and the mean along the row; ggamma[j] = Σ_i g[i, j]·x̂[i, j].

    istd = 1/√(mean square + eps) is computed again from x. With rows = 0 ggamma is 0."""
    istd = plain_statistics(x, eps)[1]
    xhat, a = x * istd, g * gamma
    c = (a * xhat).sum(axis=1, keepdims=True) / max(x.shape[1], 1)
    return istd * (a - xhat * c), (g * xhat).sum(axis=0)


def batchnorm_tolerance(x, gamma, beta, eps):
    """As the module's docstring says, with γ and β of the row."""
    flat = x.reshape(x.shape[0], x.shape[1] * x.shape[2])
    return affine_tolerance(flat, gamma[:, None], beta[:, None], eps).reshape(x.shape)


def batchnorm_vjp_tolerance(x, gamma, g, eps):
    """gx from the pairs of g, x̂ and istd·γ; gγ and gβ by the row tree."""
    flat, cot = (t.reshape(x.shape[0], x.shape[1] * x.shape[2]) for t in (x, g))
    istd, xhat = normalised(flat, eps)
    height, a = tree_height(flat.shape[1]), exactly(cot)
    gx = row_gradient(times(istd, exactly(gamma[:, None])), xhat, a)
    return gx[1].reshape(x.shape), summed(times(a, xhat), 1, height)[1][:, 0], summed(a, 1, height)[1][:, 0]


def draw_image(d):
    """An image, and an ε from negligible to dominant; the sides are kept small so that channels remain."""
    height, width = d.dim(0, 257), d.dim(0, 257)
    return {"channels": d.dim(), "height": height, "width": width, "eps": d.choice([1e-6, 1e-6, 1e-5, 1e-3, 1.0])}


def _channel(f, x, gamma, beta, channels):
    k = channels // 2
    alone = f({"x": x[k:], "gamma": gamma[k:], "beta": beta[k:]}, values={**f.case.values, "channels": channels - k})
    yield alone.array, f().array[k:]


@op("x[channels, height, width], gamma[channels], beta[channels]; eps: float = 1e-6 -> out[channels, height, width]",
    classes=derived(ROWS, lambda v: {"rows": v["channels"], "cols": v["height"] * v["width"]}),
    bound=custom(batchnorm_tolerance, "first order through μ, V, istd: |γ|(Δd·istd + |d|·Δistd) + roundings"),
    data=DATA, checks=[EPS_CHECK], draw=draw_image,
    laws=[equation("f(x + 3) = f(x)", _shift, exact=False),
          equation("a channel does not depend on the others", _channel)],
    source="Ioffe and Szegedy, Batch Normalization, arXiv:1502.03167, of one image; native/src/formula/sum_tree.h")  # fmt: skip
def batchnorm_channel_first(x, gamma, beta, eps):
    """Normalisation of each channel of one image over its pixels.

    out[c, i, j] = gamma[c]·(x[c, i, j] - μ_c)/√(V_c + eps) + beta[c], μ_c and V_c the mean and the biased variance of
    channel c; the variance is that around the computed mean, eps is inside the root

    Shapes: x (channels, height, width), gamma (channels), beta (channels), out (channels, height, width).
    Special values: IEEE 754. NaN or an infinity in a channel make the whole channel NaN. A constant channel gives beta up to
    the rounding of its mean over √eps. A size of 0 gives an empty result.
    Errors: ARGUMENT if eps is negative or NaN."""
    flat = x.reshape(x.shape[0], x.shape[1] * x.shape[2])
    mu, _, istd = statistics(flat, eps)
    return (gamma[:, None] * ((flat - mu) * istd) + beta[:, None]).reshape(x.shape)


@batchnorm_channel_first.formula()
def _scaled_channels(x, gamma, beta, eps):
    flat = x.reshape(x.shape[0], x.shape[1] * x.shape[2])
    mu, _, istd = statistics(flat, eps)
    slope = gamma[:, None] * istd
    return (flat * slope + (beta[:, None] - mu * slope)).reshape(x.shape)


@batchnorm_channel_first.vjp("x, gamma, g -> gx, ggamma, gbeta",
    bound=custom(batchnorm_vjp_tolerance, "first order through μ, V, istd"))  # fmt: skip
def batchnorm_channel_first_vjp(x, gamma, g, eps):
    """gx = gamma·istd·(g - mean(g) - x̂·mean(g·x̂)) with means over the channel; ggamma[c] = Σ g·x̂, gbeta[c] = Σ g over
    the channel.

    μ and istd are computed again from x. With no pixels ggamma and gbeta are 0."""
    flat, cot = (t.reshape(x.shape[0], x.shape[1] * x.shape[2]) for t in (x, g))
    mu, _, istd = statistics(flat, eps)
    xhat, n = (flat - mu) * istd, max(flat.shape[1], 1)
    s1, s2 = cot.sum(axis=1, keepdims=True), (cot * xhat).sum(axis=1, keepdims=True)
    gx = gamma[:, None] * istd * (cot - s1 / n - xhat * (s2 / n))
    return gx.reshape(x.shape), s2[:, 0], s1[:, 0]


def affine_pairs(x, center, slope, shift):
    """(x - center)·slope + shift, rounded three times."""
    d = minus(exactly(x), exactly(center[:, None]))
    return plus(times(d, exactly(slope[:, None])), exactly(shift[:, None]))


def over_batch(a):
    """A sum over positions by the row tree, then over the batch by the column tree."""
    rows = summed(a, 2, tree_height(a[0].shape[2]))
    return tuple(t[0, :, 0] for t in summed(rows, 0, column_height(a[0].shape[0])))


def channel_affine_vjp_tolerance(x, center, slope, g):
    """gx one product; the sums as :func:`over_batch` says, that of gcenter times slope."""
    gshift = over_batch(exactly(g))
    gslope = over_batch(times(exactly(g), minus(exactly(x), exactly(center[:, None]))))
    return times(exactly(g), exactly(slope[:, None]))[1], times(gshift, exactly(slope))[1], gslope[1], gshift[1]


def draw_channels(d):
    """A batch of channels; single positions, which are a matrix, often."""
    positions = 1 if d.rng.random() < 0.2 else d.dim()
    return {"batch": d.dim(0, 257), "channels": d.dim(0, 257), "positions": positions}


@op("x[batch, channels, positions], center[channels], slope[channels], shift[channels] -> out[batch, channels, positions]",
    classes=derived({n: f for n, f in ROWS.items() if n != "work beyond the stack"}, lambda v: {
        "rows": v["batch"] * v["channels"] if v["positions"] > 1 else v["batch"],
        "cols": v["positions"] if v["positions"] > 1 else v["channels"]}),
    bound=custom(lambda x, center, slope, shift: affine_pairs(x, center, slope, shift)[1], "u for each of three operations"),
    data=DATA, draw=draw_channels,
    source="batch normalisation by given statistics, torch.nn.functional.batch_norm; native/src/formula/sum_tree.h")  # fmt: skip
def channel_affine(x, center, slope, shift):
    """An affine map of each channel.

    out[b, c, p] = (x[b, c, p] - center[c])·slope[c] + shift[c], three operations rounded one by one

    Shapes: x (batch, channels, positions), center, slope and shift (channels), out as x. Any axes after the second are
    positions.
    Special values: IEEE 754. A size of 0 gives an empty result."""
    return (x - center[:, None]) * slope[:, None] + shift[:, None]


@channel_affine.formula()
def _slope_first(x, center, slope, shift):
    return x * slope[:, None] + (shift - center * slope)[:, None]


@channel_affine.vjp("x, center, slope, g -> gx, gcenter, gslope, gshift",
    bound=custom(channel_affine_vjp_tolerance, "roundings of the products, row and column tree"))  # fmt: skip
def channel_affine_vjp(x, center, slope, g):
    """gx = g·slope; gshift[c] = Σ g, gslope[c] = Σ g·(x - center[c]) over the batch and the positions; gcenter = -slope·gshift."""
    gshift = g.sum(axis=(0, 2))
    return g * slope[:, None], -(slope * gshift), (g * (x - center[:, None])).sum(axis=(0, 2)), gshift
