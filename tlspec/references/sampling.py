"""Thresholds of sampling: which tokens may be drawn, and with which probabilities."""

import numpy as np

from tlspec.ops.softmax import softmax
from tlspec.references._bound import analysed
from tlspec.references.fused import WHY
from tlspec.registry import check, op
from tlspec.running import value_of

DATA = ("normal", "uniform", "structured", "spread", "integers")


def _before(keys, weights):
    """For each token the sum of the weights of all tokens with larger keys, which are exact; equal ones share it."""
    plain = value_of(keys)
    order = np.argsort(-plain, axis=1, kind="stable")
    ranked, sums = np.take_along_axis(plain, order, 1), np.cumsum(np.take_along_axis(weights, order, 1), axis=1)
    before = np.concatenate([np.zeros((plain.shape[0], 1), like=weights), sums[:, :-1]], axis=1)
    first = np.concatenate([np.full((plain.shape[0], 1), True), ranked[:, 1:] != ranked[:, :-1]], axis=1)
    leader = np.maximum.accumulate(np.where(first, np.arange(plain.shape[1]), 0), axis=1)
    return np.take_along_axis(np.take_along_axis(before, leader, 1), np.argsort(order, axis=1), 1)


def _renormalised(probs, kept):
    """The probabilities of what is kept."""
    part = np.where(kept, probs, np.zeros(probs.shape, like=probs))
    return part / part.sum(axis=1, keepdims=True)


def _most(keys, k):
    """Whether a token is among the k with the largest keys, or equal to one of these."""
    plain = value_of(keys)
    return plain >= np.sort(plain, axis=1)[:, -min(k, plain.shape[1])][:, None] if k else np.full(plain.shape, True)


def _draw(d):
    return {
        "rows": d.dim(),
        "vocab": d.dim(1),
        "k": d.choice([0, 1, 2, 5, 50]),
        "p": d.choice([0.0, 0.5, 0.9, 0.95, 1.0, d.real(0, 1)]),
    }


CHECKS = [check("vocab", "vocab > 0"), check("p", "0 <= p <= 1")]


@op("logits[rows, vocab]; k: u32 = 0, p: float = 1.0 -> out[rows, vocab]", bound=analysed(), no_vjp=WHY, draw=_draw, data=DATA,
    checks=CHECKS, source="Holtzman et al., arXiv:1904.09751 (top-p); Fan et al., arXiv:1805.04833 (top-k)")  # fmt: skip
def top_k_top_p(logits, k, p):
    """The probabilities that sampling draws from: softmax, then the k most likely tokens, then the fewest of these that reach p.

    Of the k largest logits (k = 0: all) the probabilities are renormalised. A token is kept if the tokens that are likelier than
    it add up to less than p; the likeliest always is. The rest is renormalised, and every other token has 0. Tokens that are as
    likely as one that is kept are kept, too. Where a sum is so near to p that rounding decides, both answers pass.

    Parameters
    ----------
    logits : (rows, vocab)
    k : int
    p : float in [0, 1]

    Returns
    -------
    out : (rows, vocab)
    """
    probs = _renormalised(softmax.reference(logits), _most(logits, k))
    before = _before(logits, probs)
    return _renormalised(probs, (before < p) | _most(logits, 1))


@op("probs[rows, vocab]; p: float = 0.9 -> out[rows, vocab]", bound=analysed(), no_vjp=WHY, draw=_draw, data=("uniform",),
    nonnegative=("probs",), checks=CHECKS, source="flashinfer.sampling.top_p_renorm_probs")  # fmt: skip
def top_p_renormalise(probs, p):
    """Probabilities after a threshold: the fewest of the largest that reach the share p of all, renormalised.

    Parameters
    ----------
    probs : (rows, vocab)
        Not negative; they need not add up to 1.
    p : float in [0, 1]

    Returns
    -------
    out : (rows, vocab)
        As of :func:`top_k_top_p`. A row of zeros gives NaN.
    """
    return _renormalised(probs, (_before(probs, probs) < p * probs.sum(axis=1, keepdims=True)) | _most(probs, 1))
