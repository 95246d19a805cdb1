"""The error bounds of the normalisations, and the statistics that these and their references share.

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

from tlspec.bounds import LEAF, TINY, U, column_height, factor, tree_height


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


def inverse_root_error(q, var, eps):
    """The relative error of 1/√(V + ε) where that of V + ε is q; whatever V came out as, the root is at most 1/√ε."""
    relative = np.where(q < 1, 1.0 / np.sqrt(np.maximum(1 - q, 1e-300)) - 1, np.inf)
    return np.minimum(relative, np.maximum(1.0, np.sqrt((var + eps) / max(eps, 1e-300)) - 1)) + 2 * U


def normalised(x, eps):
    """Pairs of istd and x̂; see the module's docstring."""
    mu, var, istd = statistics(x, eps)
    off = mean(exactly(x))[1]
    tree = factor(tree_height(x.shape[1]))
    dvar = off**2 + (tree + 4) * U * (var + off**2) + TINY
    inverse = istd, 1.001 * istd * inverse_root_error(dvar / (var + eps) + U, var, eps)
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


def plain_statistics(x, eps):
    """Mean square and its inverse root of rows, (rows, 1) each."""
    square = (x**2).sum(axis=1, keepdims=True) / max(x.shape[1], 1)
    return square, 1.0 / np.sqrt(square + eps)


def plain_normalised(x, eps):
    """Pairs of istd and x̂ around 0: the squares are off by u each, their mean by f·u and the quotient's u besides."""
    square, istd = plain_statistics(x, eps)
    q = ((factor(tree_height(x.shape[1])) + 2) * U * square + TINY) / (square + eps) + U
    relative = inverse_root_error(q, square, eps)
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


def ones_or(gamma, n):
    """γ, or ones where it is left out."""
    return np.ones(n) if gamma is None else gamma


def moments(x):
    """Mean and variance of rows, NaN where they have no elements; (rows) each."""
    with np.errstate(invalid="ignore"):
        mu = x.sum(axis=1) / np.float64(x.shape[1])
        return mu, ((x - mu[:, None]) ** 2).sum(axis=1) / np.float64(x.shape[1])


def leaf_variance(x, eps):
    """Tolerances of V and of istd of rows that are cut into leaves, and the pair of x̂.

    With m the computed mean of a leaf, q = Σ(x - m)², r = Σ(x - m) and d = m - μ, Σ(x - μ)² = q + 2dr + nd² exactly, over the
    leaf. q is off by (f + 3)u, r by (f + 1)u·Σ|x - m| <= (f + 1)u·√(nq), so 2dr by (f + 1)u·(q + nd²); the roundings of d, of
    its products and of the sum are 4u·nd² + 3u·(q + nd²), the tree over the leaves has f·u. As |r| <= nδ with δ the error of m,
    q + nd² <= 2·(Σ(x - μ)² + 2nδ²): together 2(3f + 8)u·(V + 2δ²). One leaf has d = 0, and the bound of a row."""
    n = x.shape[1]
    var, eps = moments(x)[1][:, None], float(eps)
    (istd, _), xhat = normalised(x, eps)
    if n <= LEAF:
        off, tree = mean(exactly(x))[1], factor(tree_height(n))
        dvar = off**2 + (tree + 5) * U * (var + off**2) + TINY
        return dvar, normalised(x, eps)[0][1], xhat
    off = mean(exactly(x))[1]
    parts = [mean(exactly(x[:, i : i + LEAF]))[1] for i in range(0, n, LEAF)]
    delta2 = np.max(parts, axis=0) ** 2
    dvar = off**2 + (2 * (3 * factor(tree_height(n)) + 8)) * U * (var + off**2 + 2 * delta2) + TINY
    relative = inverse_root_error(dvar / (var + eps) + U, var, eps)
    inverse = istd, 1.001 * istd * relative
    return dvar, inverse[1], times(minus(exactly(x), (x.sum(axis=1, keepdims=True) / n, off)), inverse)


def given_rows(x, mean, istd):
    """The pair of x̂ from statistics that are given, of rows or of elements."""
    return times(minus(exactly(x), exactly(mean)), exactly(istd))


def layer_norm_stats_tolerance(x, gamma, beta, eps):
    """As the module's docstring says: that of layer_norm, of its means and of its inverse deviations."""
    inverse, xhat = normalised(x, eps)
    out = fused(xhat, exactly(ones_or(gamma, x.shape[1])[None, :]), exactly(0.0 if beta is None else beta[None, :]))
    return out[1], mean(exactly(x))[1][:, 0], inverse[1][:, 0]


def layer_norm_stats_vjp_tolerance(x, gamma, mean, istd, g_out):
    """As that of layer_norm, from statistics without errors."""
    xhat, height = given_rows(x, mean[:, None], istd[:, None]), column_height(x.shape[0])
    a = times(exactly(g_out), exactly(ones_or(gamma, x.shape[1])[None, :]))
    ggamma, gbeta = summed(times(exactly(g_out), xhat), 0, height), summed(exactly(g_out), 0, height)
    return row_gradient(exactly(istd[:, None]), xhat, a)[1], ggamma[1][0], gbeta[1][0]


def rms_norm_stats_tolerance(x, gamma, eps):
    """As that of rms_norm, and of its inverse roots."""
    inverse, xhat = plain_normalised(x, eps)
    return times(xhat, exactly(ones_or(gamma, x.shape[1])[None, :]))[1], inverse[1][:, 0]


def rms_norm_stats_vjp_tolerance(x, gamma, istd, g_out):
    """As that of rms_norm, from inverse roots without errors."""
    xhat = times(exactly(x), exactly(istd[:, None]))
    a = times(exactly(g_out), exactly(ones_or(gamma, x.shape[1])[None, :]))
    gx = times(fused((-xhat[0], xhat[1]), mean(times(a, xhat)), a), exactly(istd[:, None]))
    return gx[1], summed(times(exactly(g_out), xhat), 0, column_height(x.shape[0]))[1][0]


def by_channel(x):
    """(batch, channels, positions) as one row per channel, samples one after the other."""
    return x.transpose(1, 0, 2).reshape(x.shape[1], x.shape[0] * x.shape[2])


def by_sample(rows, x):
    """The inverse of :func:`by_channel`."""
    return rows.reshape(x.shape[1], x.shape[0], x.shape[2]).transpose(1, 0, 2)


def batch_norm_stats_tolerance(x, gamma, beta, eps):
    """Of rows of channels; see :func:`leaf_variance`."""
    flat, shift = by_channel(x), 0.0 if beta is None else beta[:, None]
    dvar, distd, xhat = leaf_variance(flat, eps)
    out = fused(xhat, exactly(ones_or(gamma, x.shape[1])[:, None]), exactly(shift))[1]
    return by_sample(out, x), mean(exactly(flat))[1][:, 0], dvar[:, 0], distd[:, 0]


def batch_norm_stats_vjp_tolerance(x, gamma, mean, istd, g_out):
    """As that of batchnorm_channel_first, from statistics without errors."""
    flat, a = by_channel(x), exactly(by_channel(g_out))
    xhat, height = given_rows(flat, mean[:, None], istd[:, None]), tree_height(flat.shape[1])
    gx = row_gradient(times(exactly(istd[:, None]), exactly(ones_or(gamma, x.shape[1])[:, None])), xhat, a)
    return by_sample(gx[1], x), summed(times(a, xhat), 1, height)[1][:, 0], summed(a, 1, height)[1][:, 0]


def by_group(x):
    """(batch, groups, channels, positions) as one row per group of a sample."""
    return x.reshape(x.shape[0] * x.shape[1], x.shape[2] * x.shape[3])


def channels_of(gamma, x):
    """γ or β (groups, channels) as x."""
    return gamma[:, :, None] + np.zeros(x.shape)


def group_norm_stats_tolerance(x, gamma, beta, eps):
    """Of rows of groups; see :func:`leaf_variance`."""
    flat, shape = by_group(x), x.shape[:2]
    _, distd, xhat = leaf_variance(flat, eps)
    gamma = by_group(channels_of(ones_or(gamma, x.shape[1:3]), x))
    shift = 0.0 if beta is None else by_group(channels_of(beta, x))
    out = fused(xhat, exactly(gamma), exactly(shift))[1]
    return out.reshape(x.shape), mean(exactly(flat))[1].reshape(shape), distd.reshape(shape)


def group_norm_stats_vjp_tolerance(x, gamma, mean, istd, g_out):
    """gx from the pairs of g·γ and x̂ of rows of groups; gγ and gβ by the row tree of a channel's elements."""
    gamma = channels_of(ones_or(gamma, x.shape[1:3]), x)
    xhat = given_rows(x, mean[:, :, None, None], istd[:, :, None, None])
    rows = tuple(by_group(t) for t in xhat)
    gx = row_gradient(exactly(istd.reshape(-1, 1)), rows, times(exactly(by_group(g_out)), exactly(by_group(gamma))))
    across = (x.shape[0], x.shape[1] * x.shape[2], x.shape[3])
    flat = tuple(by_channel(t.reshape(across)) for t in xhat)
    g, height = exactly(by_channel(g_out.reshape(across))), tree_height(x.shape[0] * x.shape[3])
    sums = summed(times(g, flat), 1, height)[1], summed(g, 1, height)[1]
    return gx[1].reshape(x.shape), *(s.reshape(x.shape[1:3]) for s in sums)
