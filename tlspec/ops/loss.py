"""Losses that reduce to one element: mean squared error, binary cross-entropy, and cross-entropy with integer labels.

Sums follow the row tree of ``native/src/formula/sum_tree.h``; both back ends give the same bits. The mean over nothing is NaN.
"""

import numpy as np

from tlspec.bounds import LEAF, TINY, U, custom, factor, spacing, tree, tree_height
from tlspec.classes import Classes, Near
from tlspec.norm_errors import exactly, mean, minus, plus, times
from tlspec.ops.elementwise import expit
from tlspec.ops.softmax import CLASSES, exponentials, shifted
from tlspec.registry import check, op


def squares(yhat, target):
    """Σ (yhat - target)², the mean's largest intermediate."""
    return ((yhat - target) ** 2).sum(keepdims=True)


def mse_vjp_tolerance(yhat, target, g):
    """2·(d·c), d = ŷ - t and c = g/n: three roundings, u each, and the underflow of c and of the product."""
    d, n = np.abs(yhat - target), max(yhat.size, 1)
    t = 1.001 * 3 * U * 2 * d * np.abs(g[0]) / n + (2 * d + 2) * TINY
    return t, t


@op("yhat[n], target[n] -> out[1]",
    data=("normal", "uniform", "integers", "special", "structured"),
    bound=tree(
        lambda n: tree_height(n) + 4, lambda yhat, target: squares(yhat, target) / max(yhat.size, 1),
        peak=lambda yhat, target: squares(yhat, target),
    ),
    # few errors, as those of many cancel
    paths=[{"n": n} for n in (2, 2, 2, 2, 2, 3, 3, 3, 3, 3)],
    source="native/src/formula/sum_tree.h")  # fmt: skip
def mse_loss(yhat, target):
    """Mean of the squared differences.

    out[0] = (Σ_i (yhat[i] - target[i])²) / n

    Shapes: yhat (n), target (n), out (1). Any shape is read as its n elements.
    Special values: IEEE 754; a sum of squares beyond the float32 range makes the mean infinite. n = 0 gives NaN."""
    return squares(yhat, target) / yhat.size if yhat.size else np.full(1, np.nan)


@mse_loss.vjp("yhat, target, g -> gyhat, gtarget", bound=custom(mse_vjp_tolerance, "3u·|r|"))
def mse_loss_vjp(yhat, target, g):
    """gyhat[i] = 2·(yhat[i] - target[i])·g[0]/n; gtarget = -gyhat."""
    gy = 2 * (yhat - target) * (g[0] / max(yhat.size, 1))
    return gy, -gy


def bce_parts(x, target):
    """max(x, 0) - x·t and ln(1 + e^-|x|), whose sum is the loss of an element."""
    return np.maximum(x, 0) - x * target, np.log1p(np.exp(-np.abs(x)))


def bce_slope(x, target):
    """σ(x) - t, taken from 1 - t where x > 0."""
    s = expit(-np.abs(x))
    return np.where(x > 0, (1 - target) - s, s - target)


def bce_tolerance(x, target, mean):
    """Of an element: u of the first part, which is one fused multiply-add, 1½ ulp of the logarithm, u of their sum. Then the tree's
    f(h)·u·Σ|loss| and u for the quotient."""
    part, tail = bce_parts(x, target)
    loss = np.abs(part + tail)
    each = U * np.abs(part) + 1.5 * spacing(tail) + U * loss + TINY
    total = (each + (factor(tree_height(x.size)) + 1) * U * loss).sum(keepdims=True)
    return 1.001 * total / (max(x.size, 1) if mean else 1) + 2 * TINY


def bce_vjp_tolerance(x, target, g, mean):
    """d·c and -x·c, d = (1 - t) - σ(-x) or σ(x) - t and c = g/n or g: u of 1 - t, 1½ ulp of σ, u of d; u each of c and of the
    product, and the product's underflow."""
    c = np.abs(g[0]) / (max(x.size, 1) if mean else 1)
    d = np.abs(bce_slope(x, target))
    off = U * np.abs(1 - target) * (x > 0) + 1.5 * spacing(expit(-np.abs(x))) + U * d
    return 1.001 * (off + 2 * U * d) * c + 2 * TINY, 1.001 * 2 * U * np.abs(x) * c + 2 * TINY


@op("x[n], target[n]; mean: u32 = 1 -> out[1]",
    data=("normal", "uniform", "special", "structured"),
    bound=custom(
        bce_tolerance, "Σ(u·|max(x, 0) − x·t| + 1½ ulp(ln(1 + e^−|x|)) + (f(h) + 2)·u·|loss|), divided by n for the mean",
        peak=lambda x, target: np.abs(sum(bce_parts(x, target))).sum(keepdims=True),
    ),
    checks=[check("mean", "mean <= 1", say="0 or 1")],
    draw=lambda d: {"n": d.dim(), "mean": d.choice((0, 1))}, paths=[{"n": n, "mean": 1} for n in (2, 2, 3, 3)],
    source="torch.nn.functional.binary_cross_entropy_with_logits; native/src/formula/sum_tree.h",
    arguments={"target": "probabilities", "mean": "0 for the sum"},
    example={"x": [-1, 0, 2], "target": [0, 1, 1]})  # fmt: skip
def bce_with_logits(x, target, mean):
    """Mean or sum of the binary cross-entropies of targets and the probabilities whose logits are given.

    out[0] = Σ_i (max(x[i], 0) - x[i]·target[i] + ln(1 + e^-|x[i]|)), divided by n where mean is 1

    Shapes: x (n), target (n), out (1). Any shape is read as its n elements.
    Special values: IEEE 754 as the formula gives; a sum beyond the float32 range makes the mean infinite. n = 0 gives the mean
    NaN and the sum 0.
    Errors: ARGUMENT unless mean is 0 or 1."""
    total = sum(bce_parts(x, target)).sum(keepdims=True)
    return total / np.float64(x.size) if mean else total


@bce_with_logits.vjp("x, target, g -> gx, gtarget",
    bound=custom(bce_vjp_tolerance, "(u·|1 − t| + 1½ ulp(σ) + 3u·|σ − t|)·|c|; 2u·|x·c|"))  # fmt: skip
def bce_with_logits_vjp(x, target, g, mean):
    """gx[i] = (σ(x[i]) - target[i])·c, gtarget[i] = -x[i]·c, c = g[0]/n where mean is 1, else g[0]."""
    c = g[0] / (max(x.size, 1) if mean else 1)
    return bce_slope(x, target) * c, -x * c


def losses(logits, labels):
    """One loss per row: ln S - (x_label - m); NaN where the label is out of range, as one of an index buffer may be."""
    t, known = shifted(logits), labels < logits.shape[1]
    at = np.where(known, t[np.arange(len(labels)), np.where(known, labels, 0)], np.nan)
    return np.log(np.exp(t).sum(axis=1)) - at


def cross_entropy_tolerance(logits, labels):
    """Of a row's loss ln S - (x_label - m), which the kernels sum scaled by a power of two: ΔS/S, 1½ ulp of the logarithm, u|x_label - m|, u|loss|. The mean takes their average,
    its tree's f(h)·u·Σ|loss|/rows (losses are not negative beyond a rounding) and u for the quotient."""
    rows = max(len(labels), 1)
    t, _, s, _, total = exponentials(logits)
    at = t[np.arange(len(labels)), labels]
    loss = np.log(s[:, 0]) - at
    each = total[:, 0] + 1.5 * spacing(np.log(s[:, 0])) + U * (np.abs(at) + np.abs(loss))
    return 1.001 * (each + (factor(tree_height(rows)) + 1) * U * np.abs(loss)).sum(keepdims=True) / rows + 2 * TINY


def cross_entropy_vjp_tolerance(logits, labels, g):
    """(y - onehot)·c, c = g/rows: the softmax's error, u for the difference, u each for c and the product."""
    _, e, s, relative, total = exponentials(logits)
    rows = max(len(labels), 1)
    y = e / s
    dy = 1.001 * y * (relative + total + 2 * U) + 4 * TINY
    y[np.arange(len(labels)), labels] -= 1
    return 1.001 * (dy + 3 * U * np.abs(y)) * np.abs(g[0]) / rows + 3 * TINY


def draw_labels(d):
    """Logits and labels within their columns; without columns there are no rows either."""
    rows, cols = d.dim(), d.dim()
    rows = rows if cols else 0
    return {"rows": rows, "cols": cols, "labels": lambda rows, cols: d.indices(rows, cols)}


LABEL_CLASSES: Classes = {
    "a label at a multiple of the leaf": Near(lambda labels: ((labels > 0) & (labels % LEAF == 0)).any(), LEAF),
    "a label before a multiple of the leaf": Near(lambda labels: (labels % LEAF == LEAF - 1).any(), LEAF),
    "the first and the last label": lambda labels, cols: cols > 1 and {0, cols - 1} <= set(labels),
}
HAS_COLUMNS = check("cols", "cols > 0 or rows == 0", "INDEX", say="every label below cols")
LABELS = check("labels", "all_below(labels, cols)", "INDEX", say="every label below cols")


@op("logits[rows, cols], labels: u32[rows] -> out[1]",
    classes={**LABEL_CLASSES, **CLASSES}, bound=custom(
        cross_entropy_tolerance, "mean of (ΔS/S + 1½ ulp(ln S) + u(|x − m| + |loss|)) + (f(h) + 1)·u·mean|loss|",
    ), checks=[HAS_COLUMNS, LABELS], data=("normal", "uniform", "special", "structured", "huge"), draw=draw_labels,
    # one loss, as the errors of several cancel
    paths=[{"rows": 1, "cols": n, "labels": lambda rng: rng.integers(0, 2, 1, np.uint32)} for n in (2, 2, 2, 2, 3, 3, 3, 3)],
    source="torch.nn.functional.cross_entropy, mean reduction; native/src/formula/sum_tree.h")  # fmt: skip
def cross_entropy(logits, labels):
    """Mean negative log-likelihood of integer labels under the softmax of each row of logits.

    out[0] = (Σ_i (ln Σ_k e^(logits[i, k] - m_i) - (logits[i, labels[i]] - m_i))) / rows, m_i = max_k logits[i, k]

    Shapes: logits (rows, cols), labels (rows) on the host, out (1).
    Special values: as the formula gives. NaN or +inf in a row, or nothing but -inf, make the result NaN; a label whose logit is
    -inf beside a finite one makes it +inf. The mean is infinite only where it is beyond float32, whatever the losses of rows and
    their sum are. rows = 0 gives NaN.
    Errors: INDEX if a label is cols or more; one of an index buffer makes the result NaN instead."""
    each = losses(logits, labels)
    return each.sum(keepdims=True) / len(labels) if len(labels) else np.full(1, np.nan)


@cross_entropy.formula()
def _by_logsumexp(logits, labels):
    """By m + ln S - x_label, whose roundings are relative to m."""
    if not len(labels):
        return np.full(1, np.nan)
    m, known = logits.max(axis=1, initial=-np.inf), labels < logits.shape[1]
    at = np.where(known, logits[np.arange(len(labels)), np.where(known, labels, 0)], np.nan)
    each = m + np.log(np.exp(shifted(logits)).sum(axis=1)) - at
    return each.sum(keepdims=True) / len(labels)


@cross_entropy.vjp("logits, labels, g -> glogits",
    bound=custom(cross_entropy_vjp_tolerance, "softmax's + 3u|y − onehot|, times |g|/rows"))  # fmt: skip
def cross_entropy_vjp(logits, labels, g):
    """glogits[i, j] = (softmax(logits)[i, j] - (1 if j = labels[i] else 0))·g[0]/rows."""
    e = np.exp(shifted(logits))
    y = e / e.sum(axis=1, keepdims=True)
    rows = np.flatnonzero(labels < logits.shape[1])
    y[rows, labels[rows]] -= 1
    return y * (g[0] / max(len(labels), 1))


def smoothed_losses(logits, labels, weights, smoothing):
    """The losses of rows with their errors, as pairs (:mod:`tlspec.norm_errors`), and which rows are ignored."""
    t, _, s, _, total = exponentials(logits)
    log = np.log(s)
    off = total + 1.5 * spacing(log)
    each = minus((log, off), (t, U * np.abs(t)))
    ignored, at = picked(labels, logits.shape[1])
    w = weights_of(weights, logits.shape[1])
    loss = times(exactly(w[at]), tuple(v[np.arange(len(at)), at] for v in each))
    if smoothing > 0:
        spread = tuple(v[:, 0] for v in mean(times(exactly(np.broadcast_to(w, t.shape)), each)))
        keep = 1 - smoothing, U * np.ones(())
        loss = plus(times(keep, loss), times(exactly(np.float64(smoothing)), spread))
    return loss, ignored


def picked(labels, cols):
    """Which labels are no class, and the labels with class 0 in their place."""
    ignored = np.asarray(labels).astype(np.int64) >= cols
    return ignored, np.where(ignored, 0, labels).astype(np.int64)


def weights_of(weights, cols):
    return np.ones(cols) if weights is None else weights


def cross_entropy_rows_tolerance(logits, labels, weights, smoothing):
    """The error of :func:`smoothed_losses`, 0 for ignored rows."""
    if logits.shape[1] == 0:
        return np.zeros(len(labels))
    (_, off), ignored = smoothed_losses(logits, labels, weights, smoothing)
    return np.where(ignored, 0.0, 1.001 * off + 2 * TINY)


def cross_entropy_rows_vjp_tolerance(logits, labels, weights, g, smoothing):
    """(y·T - share·w_j - [j = label]·keep·w)·g, T = keep·w + smoothing·mean(w), operation by operation."""
    rows, cols = logits.shape
    if cols == 0:
        return np.zeros((rows, 0))
    _, e, s, relative, total = exponentials(logits)
    y = e / s
    ignored, at = picked(labels, cols)
    w = weights_of(weights, cols)
    keep, own = (1 - smoothing, U * np.ones(())), exactly(w[at][:, None])
    hit = exactly((np.arange(cols) == at[:, None]) * 1.0)
    sum_of_targets, d = own, (y, 1.001 * y * (relative + total + 2 * U) + 4 * TINY)
    if smoothing > 0:
        sum_of_targets = plus(times(keep, own), times(exactly(np.float64(smoothing)), mean(exactly(w[None, :]))))
    d = times(d, sum_of_targets)
    if smoothing > 0:
        d = minus(d, times((smoothing / cols, U * smoothing / cols + TINY), exactly(w[None, :])))
    target = times(keep, own) if smoothing > 0 else own
    d = minus(d, (hit[0] * target[0], hit[0] * target[1]))
    return np.where(ignored[:, None], 0.0, 1.001 * times(d, exactly(g[:, None]))[1] + 3 * TINY)


def draw_weighted_labels(d):
    """Logits; labels, some of which are no class; weights of classes or none; a smoothing or none."""
    rows, cols = d.dim(), d.dim()
    weights = (lambda cols: (d.rng.random(cols) * 2).astype(np.float32)) if d.rng.random() < 0.5 else None
    return {"rows": rows, "cols": cols, "labels": lambda rows, cols: d.indices(rows, cols, outside=True), "weights": weights,
            "smoothing": d.choice([0.0, 0.0, 0.1, 0.5, 1.0])}  # fmt: skip


@op("logits[rows, cols], labels: u32[rows], weights?[cols]; smoothing: float = 0.0 -> out[rows]",
    classes={**LABEL_CLASSES, **CLASSES},
    bound=custom(cross_entropy_rows_tolerance, "ΔS/S + 1½ ulp(ln S) + roundings, weighted; f(h)·u of the smoothing's mean"),
    checks=[check("smoothing", "smoothing >= 0 and smoothing <= 1", say="0 <= smoothing <= 1")],
    data=("normal", "uniform", "special", "structured"), draw=draw_weighted_labels,
    source="torch.nn.functional.cross_entropy, no reduction; native/src/formula/sum_tree.h")  # fmt: skip
def cross_entropy_rows(logits, labels, weights, smoothing):
    """Negative log-likelihood of integer labels under the softmax of each row of logits, weighted and smoothed.

    out[i] = (1 - s)·w[y]·(L_i - x_iy) + s/cols·Σ_k w[k]·(L_i - x_ik) with x = logits, y = labels[i], w = weights, s = smoothing
    and L_i = ln Σ_k e^x_ik; without weights all are 1. A label of cols or more is no class: the row is ignored, its loss is 0.

    Shapes: logits (rows, cols), labels (rows) on the host, weights (cols) or none, out (rows).
    Special values: as the formula gives; with s = 0 the second term is left out. NaN or +inf in a row, or nothing but -inf, make
    its loss NaN unless it is ignored. A size of 0 gives zeros or an empty result.
    Errors: ARGUMENT unless 0 <= smoothing <= 1."""
    if logits.shape[1] == 0:
        return np.zeros(len(labels))
    t = shifted(logits)
    return _weighted(np.log(np.exp(t).sum(axis=1, keepdims=True)) - t, labels, weights, smoothing)


@cross_entropy_rows.formula()
def _rows_by_logsumexp(logits, labels, weights, smoothing):
    """By m + ln S - x, whose roundings are relative to m."""
    if logits.shape[1] == 0:
        return np.zeros(len(labels))
    total = np.log(np.exp(shifted(logits)).sum(axis=1, keepdims=True))
    return _weighted(logits.max(axis=1, keepdims=True) + total - logits, labels, weights, smoothing)


def _weighted(each, labels, weights, smoothing):
    """The losses of rows from those of each of their classes."""
    (ignored, at), w = picked(labels, each.shape[1]), weights_of(weights, each.shape[1])
    loss = w[at] * each[np.arange(len(at)), at]
    if smoothing > 0:
        loss = (1 - smoothing) * loss + smoothing * ((w * each).sum(axis=1) / each.shape[1])
    return np.where(ignored, 0.0, loss)


@cross_entropy_rows.vjp("logits, labels, weights, g -> glogits",
    bound=custom(cross_entropy_rows_vjp_tolerance, "softmax's, roundings of the targets, times |g|"))  # fmt: skip
def cross_entropy_rows_vjp(logits, labels, weights, g, smoothing):
    """glogits[i, j] = g[i]·(softmax(logits)[i, j]·Σ_k t_ik - t_ij), t_ij = (1 - s)·w[y]·[j = y] + s/cols·w[j]; 0 in ignored rows.

    The weights are constants."""
    cols = logits.shape[1]
    if cols == 0:
        return np.zeros(logits.shape)
    e = np.exp(shifted(logits))
    ignored, at = picked(labels, cols)
    w = weights_of(weights, cols)
    target = (np.arange(cols) == at[:, None]) * ((1 - smoothing) * w[at])[:, None]
    if smoothing > 0:
        target = target + smoothing / cols * w
    d = e / e.sum(axis=1, keepdims=True) * target.sum(axis=1, keepdims=True) - target
    return np.where(ignored[:, None], 0.0, d * g[:, None])
