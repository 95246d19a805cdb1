"""Normalisation: of the rows of a matrix, around their mean or around 0, and of the channels of an image.

All normalise contiguous runs, called rows here: mean μ = Σx/n, variance V = Σ(x - μ)²/n (biased, around the mean, never
E[x²] - E[x]²), istd = 1/√(V + ε), x̂ = (x - μ)·istd. The sums along a row follow the row tree, those of the gradients of γ and
β over the rows of a matrix the column tree (``native/src/formula/sum_tree.h``); both back ends give the same bits.

The bounds are derived in :mod:`tlspec.norm_errors`.
"""

import numpy as np

from tlspec.bounds import COLUMN_CHUNK, LEAF, TINY, call_named, custom
from tlspec.classes import Classes, Lengths, derived, renamed
from tlspec.laws import equation
from tlspec.norm_errors import (
    affine_pairs,
    batch_norm_stats_tolerance,
    batch_norm_stats_vjp_tolerance,
    batchnorm_tolerance,
    batchnorm_vjp_tolerance,
    by_channel,
    by_group,
    by_sample,
    channel_affine_vjp_tolerance,
    channels_of,
    group_norm_stats_tolerance,
    group_norm_stats_vjp_tolerance,
    layer_norm_stats_tolerance,
    layer_norm_stats_vjp_tolerance,
    layer_norm_tolerance,
    layer_norm_vjp_tolerance,
    moments,
    ones_or,
    plain_statistics,
    rms_norm_stats_tolerance,
    rms_norm_stats_vjp_tolerance,
    rms_norm_tolerance,
    rms_norm_vjp_tolerance,
    statistics,
)
from tlspec.ops.softmax import CLASSES as ROWS
from tlspec.registry import check, op
from tlspec.running_error import Run, followed, rounded_once, scalar

DATA = ("normal", "uniform", "integers", "special", "structured")
EPS_CHECK = check("eps", "eps >= 0", say="eps >= 0")


CLASSES: Classes = {
    **ROWS,
    "several chunks of rows, with a rest": lambda rows, cols: (
        cols > 1 and rows > COLUMN_CHUNK and rows % COLUMN_CHUNK > 0
    ),
    "whole chunks of rows": lambda rows, cols: cols > 1 and rows > 0 and rows % COLUMN_CHUNK == 0,
}


def draw_rows(d):
    """A matrix, and an ε from negligible to dominant."""
    return {"rows": d.dim(), "cols": d.dim(), "eps": d.choice([1e-6, 1e-6, 1e-5, 1e-3, 1.0])}


def _batch(f, x, rows, cols):
    yield f({"x": x[rows // 2 :]}, values={"rows": rows - rows // 2, "cols": cols}).array, f().array[rows // 2 :]


def _shift(f, x):
    yield f({"x": x + np.float32(3)}), f()


def _hat(d, istd, factor=np.inf):
    """d·istd; beside an infinite factor 0 where float32 has 0: their product is NaN."""
    y = d * istd
    return np.where((np.abs(y) < TINY / 2) & np.isinf(factor), 0.0 * y, y)


@op("x[rows, cols], gamma[cols], beta[cols]; eps: float = 1e-6 -> out[rows, cols]",
    classes=CLASSES, bound=custom(layer_norm_tolerance, "first order through μ, V, istd: |γ|(Δd·istd + |d|·Δistd) + roundings"),
    data=DATA, checks=[EPS_CHECK], draw=draw_rows,
    laws=[equation("f(x + 3) = f(x)", _shift, exact=False), equation("a row does not depend on the others", _batch)],
    # rows in turn; rows of a chain side by side; so few that the error of a row is most of a column's bound
    paths=[{"rows": 530, "cols": 4100, "eps": 1e-5}, {"rows": 529, "cols": 8196, "eps": 1e-6},
           {"rows": 133, "cols": 419, "eps": 1e-6}, {"rows": 2, "cols": 61, "eps": 1e-6}],
    source="Ba, Kiros and Hinton, Layer Normalization, arXiv:1607.06450; native/src/formula/sum_tree.h",
    arguments={"eps": "added to the variance"})  # fmt: skip
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
    return gamma * _hat(x - mu, istd, gamma) + beta


@layer_norm.formula()
def _scaled_and_shifted(x, gamma, beta, eps):
    mu, _, istd = statistics(x, eps)
    scale = istd * gamma
    return x * scale + (beta - mu * scale)


@layer_norm.formula()
def layer_norm_in_one_pass(x, gamma, beta, eps):
    """The variance in one pass over x less the row's first number, whose errors are relative to the mean of the squares there."""
    z = x - x[:, :1]
    mean = z.mean(axis=1, keepdims=True)
    variance = (z * z).mean(axis=1, keepdims=True) - mean * mean
    return (z - mean) / np.sqrt(variance + eps) * gamma + beta


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
    xhat, a, n = _hat(x - mu, istd), g * gamma, max(x.shape[1], 1)
    c1, c2 = a.sum(axis=1, keepdims=True) / n, (a * xhat).sum(axis=1, keepdims=True) / n
    return istd * (a - c1 - xhat * c2), (g * xhat).sum(axis=0), g.sum(axis=0)


@op("x[rows, cols], gamma[cols]; eps: float = 1.1920928955078125e-07 -> out[rows, cols]",
    classes=CLASSES, bound=custom(rms_norm_tolerance, "first order through the mean square and istd"),
    data=DATA, checks=[EPS_CHECK], draw=draw_rows, laws=[equation("a row does not depend on the others", _batch)],
    paths=[{"rows": 530, "cols": 4100, "eps": 1e-5}, {"rows": 133, "cols": 419, "eps": 1e-6},
           {"rows": 2, "cols": 61, "eps": 1e-6}, {"rows": 5, "cols": 16387, "eps": 1e-6}],
    source="Zhang and Sennrich, Root Mean Square Layer Normalization, arXiv:1910.07467; torch.nn.RMSNorm",
    arguments={"eps": "added to the mean of squares"})  # fmt: skip
def rms_norm(x, gamma, eps):
    """Normalisation by the root of the mean square over the last axis.

    out[i, j] = gamma[j]·(x[i, j]/√(Σ_k x[i, k]²/cols + eps)); eps is inside the root, by default that of PyTorch, 2^-23

    Shapes: x (rows, cols), gamma (cols), out (rows, cols). Leading axes fold into rows.
    Special values: IEEE 754. NaN or an infinity in a row make it NaN or 0, as the formula gives; where the sum of squares is
    beyond the float32 range a row is 0. A row of zeros gives zeros, NaN if eps = 0. A size of 0 gives an empty result.
    Errors: ARGUMENT if eps is negative or NaN."""
    return gamma * _hat(x, plain_statistics(x, eps)[1], gamma)


@rms_norm.vjp("x, gamma, g -> gx, ggamma",
    bound=custom(rms_norm_vjp_tolerance, "first order through the mean square and istd"))  # fmt: skip
def rms_norm_vjp(x, gamma, g, eps):
    """gx = istd·(d - x̂·mean(d·x̂)) with d = g·gamma, x̂ = x·istd and the mean along the row; ggamma[j] = Σ_i g[i, j]·x̂[i, j].

    istd = 1/√(mean square + eps) is computed again from x. With rows = 0 ggamma is 0."""
    istd = plain_statistics(x, eps)[1]
    xhat, a = _hat(x, istd), g * gamma
    c = (a * xhat).sum(axis=1, keepdims=True) / max(x.shape[1], 1)
    return istd * (a - xhat * c), (g * xhat).sum(axis=0)


def draw_image(d):
    """An image, and an ε from negligible to dominant; the sides are kept small so that channels remain."""
    height, width = d.dim(0, 257), d.dim(0, 257)
    return {"channels": d.dim(), "height": height, "width": width, "eps": d.choice([1e-6, 1e-6, 1e-5, 1e-3, 1.0])}


def _channel(f, x, gamma, beta, channels):
    k = channels // 2
    alone = f({"x": x[k:], "gamma": gamma[k:], "beta": beta[k:]}, values={**f.case.values, "channels": channels - k})
    yield alone.array, f().array[k:]


def _image_rows(v):
    """The rows and columns that an image has."""
    return {"rows": v["channels"], "cols": v["height"] * v["width"]}


def _channel_rows(v):
    """Those of a batch of channels."""
    if v["positions"] > 1:
        return {"rows": v["batch"] * v["channels"], "cols": v["positions"]}
    return {"rows": v["batch"], "cols": v["channels"]}


def _seen(more) -> Lengths:
    """The lengths of an array seen as rows and columns."""
    return {"rows": renamed(lambda rows: rows, more), "cols": renamed(lambda cols: cols, more)}


@op("x[channels, height, width], gamma[channels], beta[channels]; eps: float = 1e-6 -> out[channels, height, width]",
    classes=derived(ROWS, _image_rows), lengths=_seen(_image_rows),
    bound=custom(batchnorm_tolerance, "first order through μ, V, istd: |γ|(Δd·istd + |d|·Δistd) + roundings"),
    data=DATA, checks=[EPS_CHECK], draw=draw_image,
    laws=[equation("f(x + 3) = f(x)", _shift, exact=False),
          equation("a channel does not depend on the others", _channel)],
    source="Ioffe and Szegedy, Batch Normalization, arXiv:1502.03167, of one image; native/src/formula/sum_tree.h",
    arguments={"eps": "added to the variance"})  # fmt: skip
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
    return (gamma[:, None] * _hat(flat - mu, istd, gamma[:, None]) + beta[:, None]).reshape(x.shape)


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
    xhat, n = _hat(flat - mu, istd), max(flat.shape[1], 1)
    s1, s2 = cot.sum(axis=1, keepdims=True), (cot * xhat).sum(axis=1, keepdims=True)
    gx = _hat(istd, gamma[:, None]) * (cot - s1 / n - xhat * (s2 / n))
    return gx.reshape(x.shape), s2[:, 0], s1[:, 0]


def draw_channels(d):
    """A batch of channels; single positions, which are a matrix, often."""
    positions = 1 if d.rng.random() < 0.2 else d.dim()
    return {"batch": d.dim(0, 257), "channels": d.dim(0, 257), "positions": positions}


@op("x[batch, channels, positions], center[channels], slope[channels], shift[channels] -> out[batch, channels, positions]",
    classes=derived(ROWS, _channel_rows), lengths=_seen(_channel_rows),
    bound=custom(lambda x, center, slope, shift: affine_pairs(x, center, slope, shift)[1], "u for each of three operations"),
    data=DATA, draw=draw_channels,
    source="batch normalisation by given statistics, torch.nn.functional.batch_norm; native/src/formula/sum_tree.h",
    arguments={"slope": "factor of each channel"},
    example={"center": [1], "slope": [2], "shift": [0.5]})  # fmt: skip
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


# ---- with the statistics as results, and gradients from them ---------------------------------------------------------


def _apply(xhat, gamma, beta):
    y = xhat * gamma
    return y if beta is None else y + beta


def _scaled_and_moved(x, mu, slope, beta):
    moved = mu * slope
    return x * slope - moved if beta is None else x * slope + (beta - moved)


def _merged_means(x):
    """The means of rows from those of their parts, which Welford and Chan move by differences: NaN where one is infinite."""
    m, counts = x, np.ones(x.shape[1])
    while m.shape[1] > 1:
        k = m.shape[1] // 2 * 2
        a, b, n = m[:, 0:k:2], m[:, 1:k:2], counts[0:k:2] + counts[1:k:2]
        m = np.concatenate([a + (b - a) * (counts[1:k:2] / n), m[:, k:]], axis=1)
        counts = np.concatenate([n, counts[k:]])
    return m.sum(axis=1) / np.float64(min(x.shape[1], 1))


def _gradient(xhat, a, factor):
    """factor·(a - mean(a) - x̂·mean(a·x̂)), means along rows."""
    n = max(xhat.shape[1], 1)
    c1, c2 = a.sum(axis=1, keepdims=True) / n, (a * xhat).sum(axis=1, keepdims=True) / n
    return factor * (a - c1 - xhat * c2)


ROW_PATHS = [{"rows": 530, "cols": 4100, "eps": 1e-5}, {"rows": 529, "cols": 8196, "eps": 1e-6},
             {"rows": 133, "cols": 419, "eps": 1e-6}, {"rows": 2, "cols": 61, "eps": 1e-6}]  # fmt: skip


@op("x[rows, cols], gamma?[cols], beta?[cols]; eps: float = 1e-5 -> out[rows, cols], mean[rows], istd[rows]",
    classes=CLASSES, bound=custom(layer_norm_stats_tolerance, "first order through μ, V, istd: |γ|(Δd·istd + |d|·Δistd) + roundings"),
    data=DATA, checks=[EPS_CHECK], draw=draw_rows, paths=ROW_PATHS,
    source="torch.native_layer_norm; Ba, Kiros and Hinton, arXiv:1607.06450; native/src/formula/sum_tree.h",
    arguments={"eps": "added to the variance"})  # fmt: skip
def layer_norm_stats(x, gamma, beta, eps):
    """Layer normalisation over the last axis, with the statistics of the rows.

    out[i, j] = gamma[j]·(x[i, j] - mean[i])·istd[i] + beta[j], mean[i] that of row i, istd[i] = 1/√(V_i + eps), V_i the biased
    variance around the mean; without gamma its factor is 1, without beta nothing is added

    Shapes: x (rows, cols), gamma and beta (cols) or none, out as x, mean and istd (rows). Leading axes fold into rows.
    The statistics are results to keep for the gradient, which is that of out alone.
    Special values: those of layer_norm. With cols = 0 mean and istd are NaN.
    Errors: ARGUMENT if eps is negative or NaN."""
    mu, var = moments(x)
    istd = 1.0 / np.sqrt(var + eps)
    gamma = ones_or(gamma, x.shape[1])
    return _apply(_hat(x - mu[:, None], istd[:, None], gamma), gamma, beta), mu, istd


@layer_norm_stats.formula()
def _rows_scaled_and_shifted(x, gamma, beta, eps):
    mu, (_, _, istd) = _merged_means(x), layer_norm_stats.reference(x, gamma, beta, eps)
    return _scaled_and_moved(x, mu[:, None], istd[:, None] * ones_or(gamma, x.shape[1]), beta), mu, istd


@layer_norm_stats.vjp("x, gamma, mean, istd, g_out -> gx, ggamma, gbeta",
    bound=custom(layer_norm_stats_vjp_tolerance, "first order through x̂, row and column tree"))  # fmt: skip
def layer_norm_stats_vjp(x, gamma, mean, istd, g_out):
    """gx = istd·(d - mean(d) - x̂·mean(d·x̂)) with d = g_out·gamma, x̂ = (x - mean)·istd and means along the row; ggamma[j] =
    Σ_i g_out[i, j]·x̂[i, j]; gbeta[j] = Σ_i g_out[i, j].

    mean and istd are those of the forward: eps is not read. With rows = 0 ggamma and gbeta are 0."""
    xhat = _hat(x - mean[:, None], istd[:, None])
    gx = _gradient(xhat, g_out * ones_or(gamma, x.shape[1]), istd[:, None])
    return gx, (g_out * xhat).sum(axis=0), g_out.sum(axis=0)


@op("x[rows, cols], gamma?[cols]; eps: float = 1.1920928955078125e-07 -> out[rows, cols], istd[rows]",
    classes=CLASSES, bound=custom(rms_norm_stats_tolerance, "first order through the mean square and istd"),
    data=DATA, checks=[EPS_CHECK], draw=draw_rows, paths=ROW_PATHS,
    source="torch.nn.functional.rms_norm; Zhang and Sennrich, arXiv:1910.07467",
    arguments={"eps": "added to the mean of squares", "istd": "1/√(mean of squares + eps)"})  # fmt: skip
def rms_norm_stats(x, gamma, eps):
    """Normalisation by the root of the mean square over the last axis, with the inverse roots of the rows.

    out[i, j] = gamma[j]·(x[i, j]·istd[i]), istd[i] = 1/√(Σ_k x[i, k]²/cols + eps); without gamma its factor is 1

    Shapes: x (rows, cols), gamma (cols) or none, out as x, istd (rows). Leading axes fold into rows.
    istd is a result to keep for the gradient, which is that of out alone.
    Special values: those of rms_norm. With cols = 0 istd is NaN.
    Errors: ARGUMENT if eps is negative or NaN."""
    with np.errstate(invalid="ignore"):
        istd = 1.0 / np.sqrt((x**2).sum(axis=1) / np.float64(x.shape[1]) + eps)
    gamma = ones_or(gamma, x.shape[1])
    return gamma * _hat(x, istd[:, None], gamma), istd


@rms_norm_stats.vjp("x, gamma, istd, g_out -> gx, ggamma",
    bound=custom(rms_norm_stats_vjp_tolerance, "first order through x̂, row and column tree"))  # fmt: skip
def rms_norm_stats_vjp(x, gamma, istd, g_out):
    """gx = istd·(d - x̂·mean(d·x̂)) with d = g_out·gamma, x̂ = x·istd and the mean along the row; ggamma[j] =
    Σ_i g_out[i, j]·x̂[i, j].

    istd is that of the forward: eps is not read. With rows = 0 ggamma is 0."""
    xhat, a = _hat(x, istd[:, None]), g_out * ones_or(gamma, x.shape[1])
    c = (a * xhat).sum(axis=1, keepdims=True) / max(x.shape[1], 1)
    return istd[:, None] * (a - xhat * c), (g_out * xhat).sum(axis=0)


def leaves(rows, cols) -> Classes:
    """How rows of normalised elements lie to the leaves of the row tree; `cols` and `rows` are functions of the sizes."""
    return {
        "rows of one leaf": lambda **v: call_named(rows, v) > 0 and 0 < call_named(cols, v) <= LEAF,
        "rows of several leaves": lambda **v: call_named(rows, v) > 0 and call_named(cols, v) > LEAF,
        "single positions": lambda positions, **v: positions == 1 and call_named(cols, {"positions": 1, **v}) > 1,
        "positions in fours": lambda positions: positions > 0 and positions % 4 == 0,
        "positions with a rest of four": lambda positions: positions > 4 and positions % 4 != 0,
    }


EPSILONS = [1e-5, 1e-5, 1e-6, 1e-3, 1.0]


def draw_batch(d):
    """A batch of channels, and an ε from negligible to dominant."""
    return {**draw_channels(d), "eps": d.choice(EPSILONS)}


@op("x[batch, channels, positions], gamma?[channels], beta?[channels]; eps: float = 1e-5 -> out[batch, channels, positions],"
    " mean[channels], var[channels], istd[channels]",
    classes=leaves(lambda channels: channels, lambda batch, positions: batch * positions),
    bound=custom(batch_norm_stats_tolerance, "first order through μ, V, istd: |γ|(Δd·istd + |d|·Δistd) + roundings"),
    data=DATA, checks=[EPS_CHECK], draw=draw_batch,
    paths=[{"batch": b, "channels": c, "positions": p, "eps": 1e-5} for b, c, p in [
        (5, 3, 3364), (3, 2, 12544), (2, 33, 49), (70, 5, 1), (1, 2, 40001), (16389, 3, 1), (41, 2, 1999)]],
    source="torch.native_batch_norm in training; Ioffe and Szegedy, arXiv:1502.03167; native/src/formula/sum_tree.h",
    arguments={"eps": "added to the variance"})  # fmt: skip
def batch_norm_stats(x, gamma, beta, eps):
    """Normalisation of each channel over the batch and the positions, with the statistics of the channels.

    out[b, c, p] = gamma[c]·(x[b, c, p] - mean[c])·istd[c] + beta[c], mean[c] that of channel c, var[c] its biased variance
    around the mean, istd[c] = 1/√(var[c] + eps); without gamma its factor is 1, without beta nothing is added

    Shapes: x (batch, channels, positions), gamma and beta (channels) or none, out as x, mean, var and istd (channels). Any axes
    after the second are positions. The statistics are results to keep for the gradient, which is that of out alone; an
    unbiased variance is var·n/(n - 1) with n = batch·positions.
    Special values: those of batchnorm_channel_first. With batch = 0 or positions = 0 mean, var and istd are NaN.
    Errors: ARGUMENT if eps is negative or NaN."""
    mu, var = moments(by_channel(x))
    istd = 1.0 / np.sqrt(var + eps)
    gamma, beta = ones_or(gamma, x.shape[1])[:, None], None if beta is None else beta[:, None]
    return _apply(_hat(x - mu[:, None], istd[:, None], gamma), gamma, beta), mu, var, istd


@batch_norm_stats.formula()
def _channels_scaled_and_shifted(x, gamma, beta, eps):
    mu, (_, _, var, istd) = _merged_means(by_channel(x)), batch_norm_stats.reference(x, gamma, beta, eps)
    slope, beta = (istd * ones_or(gamma, x.shape[1]))[:, None], None if beta is None else beta[:, None]
    return _scaled_and_moved(x, mu[:, None], slope, beta), mu, var, istd


@batch_norm_stats.vjp("x, gamma, mean, istd, g_out -> gx, ggamma, gbeta",
    bound=custom(batch_norm_stats_vjp_tolerance, "first order through x̂, row tree"))  # fmt: skip
def batch_norm_stats_vjp(x, gamma, mean, istd, g_out):
    """gx = gamma·istd·(g - mean(g) - x̂·mean(g·x̂)) with g = g_out, x̂ = (x - mean)·istd and means over the channel; ggamma[c] =
    Σ g·x̂, gbeta[c] = Σ g over the batch and the positions.

    mean and istd are those of the forward: eps is not read. Where these are constants, not statistics of x, the gradient is
    that of channel_affine. With nothing to add ggamma and gbeta are 0."""
    g, xhat = by_channel(g_out), _hat(by_channel(x) - mean[:, None], istd[:, None])
    gx = _gradient(xhat, g, _hat(istd, ones_or(gamma, x.shape[1]))[:, None])
    return by_sample(gx, x), (g * xhat).sum(axis=1), g.sum(axis=1)


def _running_run(mean, var, running_mean, running_var, momentum, correction):
    kept = rounded_once(1 - momentum)
    return (scalar(momentum).fma(Run.of(mean), kept * Run.of(running_mean)),
            scalar(momentum * correction).fma(Run.of(var), kept * Run.of(running_var)))  # fmt: skip


@op("mean[*], var[*], running_mean[*], running_var[*]; momentum: float = 0.1, correction: float = 1.0 -> mean_out[*], var_out[*]",
    bound=followed(_running_run), nonnegative=("var", "running_var"),
    draw=lambda d: {"momentum": d.choice([0.1, 0.0, 1.0, d.real(0, 1)]), "correction": d.choice([1.0, 1.25, d.real(1, 2)])},
    no_vjp="running statistics are updated outside of what is differentiated", source="torch.nn.BatchNorm2d; Ioffe and Szegedy, arXiv:1502.03167",
    arguments={"mean": "of the batch", "var": "of the batch", "running_mean": "so far", "running_var": "so far",
             "momentum": "weight of the batch", "correction": "factor of the batch's variance"},
    example={"mean": [1, 2], "var": [4, 2], "running_mean": [0, 0], "running_var": [1, 1]})  # fmt: skip
def batch_norm_running(mean, var, running_mean, running_var, momentum, correction):
    """The statistics of channels that a batch norm keeps for evaluation, moved towards those of a batch.

    mean_out = (1 - momentum)·running_mean + momentum·mean; var_out = (1 - momentum)·running_var + momentum·correction·var

    The product with 1 - momentum is rounded, the rest is one fused multiply-add. An unbiased variance has correction n/(n - 1),
    n the elements of a channel.

    Shapes: mean, var, running_mean, running_var, mean_out and var_out alike, one element a channel; the outputs may be the inputs.
    Special values: IEEE 754.
    Errors: none beyond lengths."""
    return ((1 - momentum) * running_mean + momentum * mean, (1 - momentum) * running_var + momentum * correction * var)


def draw_groups(d):
    """A batch of groups of channels, and an ε from negligible to dominant."""
    sizes = {"batch": d.dim(0, 65), "groups": d.dim(0, 65), "channels": d.dim(0, 65)}
    return {**sizes, "positions": 1 if d.rng.random() < 0.2 else d.dim(), "eps": d.choice(EPSILONS)}


@op("x[batch, groups, channels, positions], gamma?[groups, channels], beta?[groups, channels]; eps: float = 1e-5"
    " -> out[batch, groups, channels, positions], mean[batch, groups], istd[batch, groups]",
    classes=leaves(lambda batch, groups: batch * groups, lambda channels, positions: channels * positions),
    bound=custom(group_norm_stats_tolerance, "first order through μ, V, istd: |γ|(Δd·istd + |d|·Δistd) + roundings"),
    data=DATA, checks=[EPS_CHECK], draw=draw_groups,
    paths=[{"batch": b, "groups": g, "channels": c, "positions": p, "eps": 1e-5} for b, g, c, p in [
        (2, 3, 10, 4096), (3, 2, 5, 3969), (2, 4, 10, 64), (1, 2, 2, 20001), (3, 2, 700, 1), (2, 3, 40, 49), (700, 2, 2, 49)]],
    source="torch.native_group_norm; Wu and He, Group Normalization, arXiv:1803.08494; native/src/formula/sum_tree.h",
    arguments={"eps": "added to the variance"})  # fmt: skip
def group_norm_stats(x, gamma, beta, eps):
    """Normalisation of groups of channels of each sample, with the statistics of the groups.

    out[b, k, c, p] = gamma[k, c]·(x[b, k, c, p] - mean[b, k])·istd[b, k] + beta[k, c], mean[b, k] that of group k of sample b,
    istd[b, k] = 1/√(V + eps), V its biased variance around the mean; without gamma its factor is 1, without beta nothing is
    added

    Shapes: x (batch, groups, channels, positions), channels being those of one group, gamma and beta (groups, channels) or
    none, out as x, mean and istd (batch, groups). Any axes after the channels are positions. The statistics are results to keep
    for the gradient, which is that of out alone.
    Special values: those of layer_norm. With channels = 0 or positions = 0 mean and istd are NaN.
    Errors: ARGUMENT if eps is negative or NaN."""
    mu, var = moments(by_group(x))
    istd = 1.0 / np.sqrt(var + eps)
    gamma, beta = ones_or(gamma, x.shape[1:3])[:, :, None], None if beta is None else beta[:, :, None]
    xhat = _hat(by_group(x) - mu[:, None], istd[:, None], by_group(gamma + np.zeros(x.shape))).reshape(x.shape)
    return _apply(xhat, gamma, beta), mu.reshape(x.shape[:2]), istd.reshape(x.shape[:2])


@group_norm_stats.formula()
def _groups_scaled_and_shifted(x, gamma, beta, eps):
    mu, (_, _, istd) = _merged_means(by_group(x)).reshape(x.shape[:2]), group_norm_stats.reference(x, gamma, beta, eps)
    slope = (istd[:, :, None] * ones_or(gamma, x.shape[1:3]))[:, :, :, None]
    return _scaled_and_moved(x, mu[:, :, None, None], slope, None if beta is None else beta[:, :, None]), mu, istd


@group_norm_stats.vjp("x, gamma, mean, istd, g_out -> gx, ggamma, gbeta",
    bound=custom(group_norm_stats_vjp_tolerance, "first order through x̂, row tree"))  # fmt: skip
def group_norm_stats_vjp(x, gamma, mean, istd, g_out):
    """gx = istd·(d - mean(d) - x̂·mean(d·x̂)) with d = g_out·gamma, x̂ = (x - mean)·istd and means over the group; ggamma[k, c] =
    Σ g_out·x̂, gbeta[k, c] = Σ g_out over the batch and the positions.

    mean and istd are those of the forward: eps is not read. With nothing to add ggamma and gbeta are 0."""
    gamma = by_group(channels_of(ones_or(gamma, x.shape[1:3]), x))
    xhat = _hat(x - mean[:, :, None, None], istd[:, :, None, None])
    gx = _gradient(by_group(xhat), by_group(g_out) * gamma, istd.reshape(-1, 1))
    return gx.reshape(x.shape), (g_out * xhat).sum(axis=(0, 3)), g_out.sum(axis=(0, 3))
