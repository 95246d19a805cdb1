"""Attention, and the position encodings that go with it.

Both devices run attention over tiles of queries and keys with the softmax kept up to date as keys go by ("online"): a row
remembers its largest score m so far, l = Σ e^(s-m) and the weighted sum of V, and rescales l and the sum by e^(m - m') when
m grows to m'. Neither direction stores an n x n array. Tiles, and with them the order of sums, differ between the devices.

On CUDA native/src/cuda/attention/select.h chooses between four ways. On Hopper self-attention of 65 queries or more, of 64 to 192
elements, with a positive scale and no mask but one that blocks, runs on TF32 tensor cores at float32 accuracy: every operand is
split in two TF32 numbers and three of the four products are summed, which is within the bound of a chain in float32 from 50 terms
on (:func:`_float32`). Members of the batch with values that do not split, infinite, NaN, 2^22 and more or below 2^-100, run in
float64. Few queries run on the ordinary units. All else runs in float64, or as matrix products with scores in memory between
them, whose sums are those of :mod:`tlspec.ops.linalg`.

Position encodings have no rounding error in the angle to speak of: frequencies are held in turns as 64-bit fractions, the
product with an integer position is exact modulo a turn, and sine and cosine are taken of a reduced angle of full relative
precision (native/src/formula/rotary.h).
"""

import itertools
from functools import partial
from typing import Any

import numpy as np

from tlspec import laws
from tlspec.bounds import OVERFLOW, TINY, U64, U, custom, factor, spacing
from tlspec.classes import Classes
from tlspec.registry import check, op
from tlspec.shapes import extent
from tlspec.strides import strided

#: the score that replaces a blocked one in mask_mode 1
FILL = -1000.0
#: the least finite float32, which programs add to a score to block it, and the number above it, where kernels' scores end
LEAST = -(2.0**128 - 2.0**104)
LEAST_SCORE = -(2.0**128 - 2.0**105)
#: no device rescales more often than once in this many keys
KEY_TILE = 32


def _blocked(mask, mask_mode, n):
    """Where attention is blocked: an array that broadcasts against the scores, or None."""
    if mask_mode == 3:
        return ~np.tri(n, dtype=bool)
    return mask == 0 if mask_mode in (1, 2) and mask is not None else None


def _softmax(Q, K, mask, mask_mode, scale):
    """Scores, e^(s-m), its row sums (1 for a fully blocked row), and where attention is blocked."""
    blocked = _blocked(mask, mask_mode, Q.shape[1])
    return _weights((Q @ K.swapaxes(1, 2)) * scale, blocked, FILL if mask_mode == 1 else -np.inf)


def _weights(S, blocked, fill=-np.inf):
    """The same of scores S that `fill` replaces where they are blocked."""
    if blocked is not None:
        S = np.where(blocked, fill, S)
    m = S.max(axis=2, keepdims=True) if S.shape[2] else np.zeros((*S.shape[:2], 1))
    if blocked is not None and fill == -np.inf:
        m = np.where(np.broadcast_to(blocked, S.shape).all(axis=2, keepdims=True), 0.0, m)
    E = np.exp(S - m)
    total = E.sum(axis=2, keepdims=True)
    if blocked is not None and fill == -np.inf:
        total = np.where(np.broadcast_to(blocked, S.shape).all(axis=2, keepdims=True), 1.0, total)
    return S - m, E, total, blocked


def _float32(h, k):
    """Factor of u for a sum of k products of height h.

    It covers sums of split operands (native/src/cuda/device/tf32_split.cuh), which are at most 48 + k/32 off. With x = hi + lo and
    11 bits in each part, the product of the two lo, left out, is 2^-22 = 4u of a product, and the last bit of either lo, cut off,
    2^-23 = 2u. A part of 32 products is a chain of 3 instructions for every 8, of which the first two have nothing but products
    with a lo in their sum. Each of the other 10 cuts off less than 2^-22 = 4u of its sum, in the alignment of its addends and in the
    result (0.2u on average, from sums of 512 in parts of 128 on an H200). The parts are added in float32."""
    return factor(h)


def _float64(h, k):
    """The same in reproducible contexts."""
    return factor(h) * U64 / U


def _last(sums, fast):
    """The last roundings, in ulp: one half in reproducible contexts, where one ends a result."""
    return 0.5 if sums is _float64 else fast


def _heights(n):
    """Rescalings of a row, and the height of a sum over n keys with its rescalings."""
    rescalings = -(-n // KEY_TILE)
    return rescalings, n + rescalings


def _weight_error(Q, K, shifted, E, blocked, scale, sums, bias=None):
    """Relative error of e^(s-m) as a kernel has it, 0 where it is exactly 0.

    The score: a sum of d products and the product with scale, (f(d) + 1)·u·|scale|·|Q||K|ᵀ; exp turns an
    absolute error of its argument into the same relative one. The subtraction s - m_t, m_t the maximum when the key went
    by, and the later rescalings e^(m_t - m_t') round arguments that are all of one sign and add up to s - m: u·|s - m|.
    Each exponential adds 3u (1 ulp beyond the correctly rounded value). A wrong m cancels: any m gives the same weights.
    A bias is added with one rounding more (:func:`_biased_error`). Where a weight of 0 might be e⁻¹⁰⁴, the row has no bound.

    In reproducible contexts a product rounds once to float32, and is not above |Q·K| by more; the argument of the exponential is
    reduced in float64 and then rounded, e^s within 2u of the rest, and rescaling is exact."""
    n, d = K.shape[1], K.shape[2]
    rescalings, _ = _heights(n)
    size = abs(scale) * (np.abs(Q) @ np.abs(K).swapaxes(1, 2))
    product = scale * (Q @ K.swapaxes(1, 2))
    if sums is _float64:
        score = 2 * U * np.abs(product) + 2 * (factor(d) + 2) * U64 * size + (d + 1) * max(1.0, abs(scale)) * TINY
    else:
        score = (sums(d, d) + 1) * U * size + (d + 1) * max(1.0, abs(scale)) * TINY
    if bias is not None:
        score = _biased_error(product, bias, blocked, score)
    if blocked is not None:
        score = np.where(blocked, 0.0, score)
    exponential = 3 if sums is _float64 else np.abs(shifted) + 3 + 3 * factor(rescalings)
    lost = ((E == 0) & (shifted + score > -104.0)).any(axis=2, keepdims=True)
    return np.where(E > 0, np.where(lost, np.inf, np.expm1(score + U * exponential)), 0.0)


def _biased_error(product, bias, blocked, error):
    """Error of scores to which a bias was added, relative to that of the row's greatest; `error` is the products'.

    Rounding is monotonic: the sum lies between the rounded ends of the exact one's interval, so that products too small beside
    a bias make no error. Kernels raise finite sums to LEAST_SCORE, and with the greatest sum of a row its others."""
    exact = product + np.where(blocked, 0.0, bias)
    top = np.where(blocked, -np.inf, exact).max(axis=2, keepdims=True)
    raised = exact + (np.maximum(top, LEAST_SCORE) - top)
    reach = error + 4 * U64 * (np.abs(product) + np.abs(np.where(blocked, 0.0, bias)) + error)
    ends = (np.maximum((exact + side * reach).astype(np.float32), LEAST_SCORE) for side in (-1.0, 1.0))
    return np.where(np.abs(product) + error <= -LEAST, np.maximum(*(np.abs(end - raised) for end in ends)), np.inf)


def _attention_tolerance(Q, K, V, mask, mask_mode, scale, sums=_float32):
    """With P the exact weights and ε their relative errors (:func:`_weight_error`), a quotient Σ p v / Σ p moves by
    Σ_j P ε (|v_j| + |out|) to first order. The two sums round along chains of n keys and the rescalings, f(h)·u·P|V| and
    f(h)·u·|out|; the quotient rounds once. Weights that underflow are wrong by 2^-149 at most (Σ e^(s-m) is at least 1):
    tensor cores get them 2^32 times as large, so that what they may lose below 2^-126 is less."""
    softmax = _softmax(Q, K, mask, mask_mode, scale)
    return _result_tolerance(Q, K, V, softmax, scale, sums)


def _may_vanish(E, shifted, error):
    """Where float32 may make 0 of a weight, which times an infinity is NaN; `error` is the weights' relative one."""
    return (E > 0) & (shifted - np.log1p(error) < -103.0)


def _result_tolerance(Q, K, V, softmax, scale, sums, bias=None):
    """The tolerance; without `sums` the bound on intermediates (:func:`_bound`)."""
    shifted, E, total, blocked = softmax
    error = _weight_error(Q, K, shifted, E, blocked, scale, sums or _float32, bias)
    if sums is None:
        return 2 * OVERFLOW * (_may_vanish(E, shifted, error) @ np.isinf(V))
    P, size = E / total, np.abs(V)
    out = np.abs((E @ V) / total)
    W = P * error
    n = K.shape[1]
    h = sums(_heights(n)[1], n) * U
    tolerance = W @ size + W.sum(axis=2, keepdims=True) * out + h * (P @ size + out) + _last(sums, 1) * spacing(out)
    return tolerance + TINY * (size.sum(axis=1, keepdims=True) + n * (1 + out))


def _attention_vjp_tolerance(Q, K, V, mask, out, g, mask_mode, scale, sums=_float32):
    """First order in the errors of the pieces, with f(h)·u the factor of a sum of height h:

    P: the relative error ε of e^(s-m), that of its sum Σ P ε + f(h)·u, and the division; dP = g·Vᵀ: f(d)·u·|g||V|ᵀ;
    D: f(d)·u·Σ|g||out|, so that of a saturated softmax the bound leaves u·|g||V| of a dS that vanishes. It does vanish where D is
    summed as dP is, on the CPU and in chains of float64; tensor cores, which split V, stay within the bound. dS = P(dP - D): P·(δdP + δD + u·|dP - D|) + |dS|·(εP + u); gQ, gK: |scale|·(δdS·|K| + f(h)·u·|dS||K|)
    and likewise with Q; gV: (P εP)ᵀ|g| + f(h)·u·Pᵀ|g|; and two roundings of the result."""
    softmax = _softmax(Q, K, mask, mask_mode, scale)
    return _gradient_tolerance(Q, K, V, out, g, softmax, scale, sums)


def _gradient_tolerance(Q, K, V, out, g, softmax, scale, sums, bias=None):
    n, d = max(Q.shape[1], K.shape[1]), V.shape[2]
    shifted, E, total, blocked = softmax
    P = E / total
    eps = _weight_error(Q, K, shifted, E, blocked, scale, sums or _float32, bias)
    dP = g @ V.swapaxes(1, 2)
    t = dP - (g * out).sum(axis=2, keepdims=True)
    if sums is None:
        lost = _may_vanish(E, shifted, eps)
        slopes = (lost & np.isinf(t)).astype(np.float64)
        of_values = lost.swapaxes(1, 2) @ np.isinf(g)
        return tuple(
            2 * OVERFLOW * m for m in (slopes @ np.ones(K.shape), slopes.swapaxes(1, 2) @ np.ones(Q.shape), of_values)
        )
    h = sums(_heights(n)[1] + 2, n) * U
    eps = np.where(E > 0, np.expm1(eps + (P * eps).sum(axis=2, keepdims=True) + h + 3 * U), 0.0)
    magnitude = np.abs(g) @ np.abs(V).swapaxes(1, 2) + (np.abs(g) * np.abs(out)).sum(axis=2, keepdims=True)
    error = sums(d, d) * U * magnitude
    dS = np.abs(P * t)
    ddS = P * (error + U * np.abs(t)) + dS * (eps + U) + TINY * (1 + np.abs(t) + d)
    dPV = P * eps + TINY
    if blocked is not None:
        dS, ddS = np.where(blocked, 0.0, dS), np.where(blocked, 0.0, ddS)
    a, size = abs(scale), np.abs(g)
    gQ, gK, gV = _gradients(Q, K, V, out, g, softmax, scale)

    def product(left, dleft, right):
        return dleft @ np.abs(right) + h * (left @ np.abs(right)) + n * TINY

    return (
        a * product(dS, ddS, K) + _last(sums, 2) * spacing(gQ) + TINY,
        a * product(dS.swapaxes(1, 2), ddS.swapaxes(1, 2), Q) + _last(sums, 2) * spacing(gK) + TINY,
        product(P.swapaxes(1, 2), dPV.swapaxes(1, 2), size) + _last(sums, 1) * spacing(gV),
    )


def _bound(tolerance, text):
    """The bound, and that of reproducible contexts: the weights' errors stay, and of the sums ½ ulp.

    A weight that float32 may take for 0 leaves nothing covered of what it multiplies an infinity for."""
    chain = custom(partial(tolerance, sums=_float64), text.replace("u·P|V|", "2⁻⁵³·P|V| + ½ ulp"))
    return custom(tolerance, text, peak=partial(tolerance, sums=None), chain=chain)


def _draw_size(d, high):
    """A length up to `high`; half of the draws are among the three largest, so that sequences span several tiles."""
    sizes = d.sizes(high)
    return d.aligned(1, int(high)) or d.choice(sizes[-3:] if d.rng.random() < 0.5 else sizes)


def _attention_draw(d):
    def size(high):
        return _draw_size(d, high)

    n = size((d.budget / 3) ** 0.5)
    width = size(min(300, d.budget / (6 * max(n, 1))))
    batch = d.integer(1, max(1, min(4, d.budget // (n * n + 4 * n * width + 1))))
    if d.empty and d.rng.random() < 0.3:
        batch = 0
    mode = d.integer(0, 3)
    masked = mode in (1, 2) or d.rng.random() < 0.2
    mask = (lambda batch, n: _draw_mask(d.rng, batch, n)) if masked else None
    # around 1/√d scores keep a spread that float32 exponentials can tell from 0
    scale = d.choice([1.0, 0.25, -0.5, 1.5, d.real(0.5, 1.5)]) / max(width, 1) ** 0.5
    return {"batch": batch, "n": n, "d": width, "mask_mode": mode, "scale": scale, "mask": mask}


#: keys that a mask may block together, whole or in part; and the positions that float32 has all of
TILE, POSITIONS = 64, 2**24


def _blocked_part(mask, n, size):
    """Per row and tile of keys whether all keys are blocked, and whether none is."""
    blocked = np.pad(mask == 0, [(0, 0), (0, 0), (0, -n % size)], mode="edge").reshape(len(mask), n, -1, size)
    return blocked.all(axis=3), ~blocked.any(axis=3)


def _masked(test):
    """A class of masks over several tiles."""

    def holds(mask, mask_mode, n, batch):
        read = mask_mode in (1, 2) and mask is not None and n > TILE and batch > 0
        return read and bool(test(*_blocked_part(mask, n, TILE)))

    return holds


CLASSES: Classes = {
    "causal over several tiles": lambda n, mask_mode: mask_mode == 3 and n > TILE,
    "scores filled over several tiles": lambda n, mask_mode: mask_mode == 1 and n > TILE,
    "a mask that is not read": lambda mask, mask_mode, n: mask is not None and mask_mode in (0, 3) and n > 1,
    "a blocked region that ends inside a tile": _masked(lambda all_, none: (~all_ & ~none).any()),
    "a tile blocked whole": _masked(lambda all_, none: (all_.any(axis=2) & ~all_.all(axis=2)).any()),
    "a row blocked whole": _masked(lambda all_, none: all_.all(axis=2).any()),
}  # fmt: skip

_POSITIONS: Classes = {
    "from the start": lambda n, batch, start: n > 1 and batch > 0 and start == 0,
    "from an offset": lambda n, batch, start: n > 1 and batch > 0 and start > 0,
    "positions beyond 2^24": lambda n, batch, start: n > 1 and batch > 0 and start + n > POSITIONS + 1,
    "positions beyond 2^31": lambda n, batch, start: n > 1 and batch > 0 and start + n > 2**31,
}
_HALVES: Classes = {f"halves = {k}": (lambda n, batch, halves, k=k: n * batch > 1 and halves == k) for k in (0, 1)}

#: sequences and rows that Hopper's warp group products take, and just fewer, of each width of tile and each mask, and of more
#: blocks than run at once; short ones whose scores are large, so that their roundings show; wide rows, products with scores in memory
PATHS: list[dict[str, Any]] = [
    {"batch": 2, "n": 577, "d": 64, "mask_mode": 0, "scale": 0.125, "mask": None},
    {"batch": 40, "n": 197, "d": 64, "mask_mode": 3, "scale": 0.125, "mask": None},
    {"batch": 3, "n": 65, "d": 64, "mask_mode": 0, "scale": 0.125, "mask": None},
    {"batch": 3, "n": 64, "d": 64, "mask_mode": 0, "scale": 0.125, "mask": None},
    {"batch": 3, "n": 641, "d": 128, "mask_mode": 3, "scale": 0.09, "mask": None},
    {"batch": 2, "n": 131, "d": 100, "mask_mode": 2, "scale": 0.1, "mask": lambda rng: _draw_mask(rng, 2, 131)},
    {"batch": 1, "n": 300, "d": 60, "mask_mode": 3, "scale": 1.5, "mask": None},
    {"batch": 1, "n": 300, "d": 84, "mask_mode": 3, "scale": 1.5, "mask": None},
    {"batch": 2, "n": 230, "d": 168, "mask_mode": 2, "scale": 0.08, "mask": lambda rng: _draw_mask(rng, 2, 230)},
    {"batch": 4000, "n": 3, "d": 2, "mask_mode": 0, "scale": 8.0, "mask": None},
    {"batch": 1, "n": 140, "d": 13, "mask_mode": 3, "scale": 0.3, "mask": None},
    {"batch": 2, "n": 130, "d": 260, "mask_mode": 0, "scale": 0.06, "mask": None},
    {"batch": 1, "n": 197, "d": 201, "mask_mode": 3, "scale": 0.07, "mask": None},
]


def _draw_mask(rng, batch, n):
    """Random, sparse, banded, block-sparse (whole tiles blocked), padded or causal, with some rows blocked entirely; what
    is not 0 allows, whatever it is."""
    i = np.arange(n)
    style = int(rng.integers(6))
    allowed = np.ones((batch, n, n), bool)
    if style < 2:
        allowed = rng.random((batch, n, n)) < (0.5, 0.03)[style]
    elif style == 2:
        allowed &= np.abs(i[:, None] - i) <= rng.integers(0, n // 4 + 2)
    elif style == 3:
        m = -(-n // 32)
        allowed &= np.kron(rng.random((m, m)) < 0.3, np.ones((32, 32), bool))[:n, :n]
    elif style == 4:
        allowed &= i < rng.integers(0, n + 1, size=(batch, 1, 1))
    else:
        allowed &= i[:, None] >= i
    allowed &= rng.random((batch, n, 1)) < rng.choice([1.0, 0.8, 0.0], p=[0.5, 0.45, 0.05])
    yes = rng.choice(np.array([1, 1, 1, 0.5, -2, np.inf, np.nan, 2.0**-149], np.float32), size=allowed.shape)
    no = rng.choice(np.array([0.0, -0.0], np.float32), size=allowed.shape)
    return np.where(allowed, yes, no)


def _rows_of_ones(f, V, mask, mask_mode, n):
    """With V = 1 a row is the sum of its weights: 1, or 0 where all are blocked."""
    out = f({"V": np.ones_like(V)})
    blocked = _blocked(mask, mask_mode, n) if mask_mode >= 2 else None
    rows = np.zeros(V.shape[:2], bool) if blocked is None else np.broadcast_to(blocked, (len(V), n, n)).all(axis=2)
    yield out, np.where(rows[:, :, None], 0.0, np.ones(V.shape))


@op("Q[batch, n, d], K[batch, n, d], V[batch, n, d], mask?[batch, n, n]; mask_mode: u32, scale: float -> out[batch, n, d]",
    classes=CLASSES, work=lambda batch, n, d: batch * n * n * (2 * d + 20),
    bound=_bound(_attention_tolerance, "weights + f(n)·u·P|V|"), fwd=True, same_bits=False, reproducible=True,
    checks=[check("mask_mode", "mask_mode <= 3"),
            check("mask", "mask_mode == 0 or mask_mode == 3 or given(mask)", say="a mask, unless mask_mode is 0 or 3")],
    draw=_attention_draw, paths=PATHS, data=["normal", "uniform", "special", "structured"],
    laws=[laws.linear("V"), laws.adjoint("V"),
          laws.equation("f(V = 1) = 1, or 0 where a row is blocked", _rows_of_ones, exact=False)],
    source="Dao, Fu, Ermon, Rudra, Ré, FlashAttention, NeurIPS 2022; Milakov, Gimelshein, arXiv:1805.02867 (online softmax)",
    arguments={"mask": "0 blocks", "mask_mode": "0: no mask, 1: fill with -1000, 2: hard, 3: causal"},
    example={"n": 2, "Q": [[1, 0], [0, 1]], "K": [[1, 0], [0, 1]], "V": [[1, 2], [3, 4]]})  # fmt: skip
def flash_attention(Q, K, V, mask, mask_mode, scale):
    """Scaled dot-product attention over split heads, without an n x n array.

    out[b] = softmax(S)·V[b], S[i, j] = scale·Σ_k Q[b, i, k]·K[b, j, k], the softmax over j.
    mask_mode 0: no mask. 1: S[i, j] = -1000 where mask[b, i, j] = 0. 2: weight 0 there, and a row that is blocked entirely
    gives zeros. 3: weight 0 where j > i (causal). Modes 0 and 3 do not read the mask, which may be left out.

    Shapes: Q, K, V, out (batch, n, d); mask (batch, n, n), 0 blocks and anything else allows.
    Special values: as the composed operations have them in IEEE arithmetic. A NaN or +inf among a row's scores makes the row
    NaN, as do scores that are all -inf; a blocked score is replaced whatever it was. A weight of 0 times an infinite or NaN
    element of V is NaN; in `fast` a weight below 2^-149 may be one of 0. d = 0, n = 0 or batch = 0 gives an empty result.
    Errors: ARGUMENT if mask_mode > 3, or if mask_mode is 1 or 2 and there is no mask."""
    _, E, total, _ = _softmax(Q, K, mask, mask_mode, scale)
    return (E @ V) / total


@flash_attention.vjp("Q, K, V, mask, out, g -> gQ, gK, gV",
    bound=_bound(_attention_vjp_tolerance, "composite, first order"), each=("q", "k", "v"))  # fmt: skip
def flash_attention_vjp(Q, K, V, mask, out, g, mask_mode, scale):
    """gV = Pᵀ·g, dS = P∘(g·Vᵀ - D), D[i] = Σ_c g[i, c]·out[i, c], gQ = scale·dS·K, gK = scale·dSᵀ·Q; P is computed again.

    dS = 0 where the mask blocks. In mask_mode 1 a row that is blocked entirely passes g/n to every row of gV and nothing to gQ
    and gK; in modes 2 and 3 nothing at all. Where one weight is 1, gQ and gK vanish, because D is summed as g·Vᵀ is; on tensor
    cores they are within the bound, u·|g||V| of a dS."""
    return _gradients(Q, K, V, out, g, _softmax(Q, K, mask, mask_mode, scale), scale)


def _gradients(Q, K, V, out, g, softmax, scale):
    _, E, total, blocked = softmax
    P = E / total
    dS = P * (g @ V.swapaxes(1, 2) - (g * out).sum(axis=2, keepdims=True))
    if blocked is not None:
        dS = np.where(blocked, 0.0, dS)
    return (dS @ K) * scale, (dS.swapaxes(1, 2) @ Q) * scale, P.swapaxes(1, 2) @ g


#: the value of `before` and of `after` that limits nothing
UNLIMITED = 2**32 - 1


def _fold(Q, K, V, mask, mask_mode, before, after, offset):
    """Members of a batch as kernels have them, one for each head of keys with the queries of its heads one after the other: Q, K,
    V, where attention is blocked, and what is added to the scores, or None."""
    batch, heads, queries, d = Q.shape
    kv_heads, keys = K.shape[1:3]
    q, j = offset + np.arange(queries)[:, None], np.arange(keys)
    blocked = ((j < q - before) & (before < UNLIMITED)) | ((j > q + after) & (after < UNLIMITED))
    blocked, bias = np.broadcast_to(blocked, (batch, heads, queries, keys)), None
    folded = (batch * kv_heads, heads // kv_heads * queries)
    if mask_mode:
        blocked = blocked | (mask == (0 if mask_mode == 1 else -np.inf))
    if mask_mode == 2:
        bias = np.broadcast_to(mask, blocked.shape).reshape(*folded, keys)
    members = (a.reshape(batch * kv_heads, *a.shape[2:]) for a in (K, V))
    return Q.reshape(*folded, d), *members, blocked.reshape(*folded, keys), bias


def _grouped(Q, K, V, mask, mask_mode, before, after, offset, scale):
    """Folded Q, K, V, their softmax (:func:`_weights`) and the bias."""
    q, k, v, blocked, bias = _fold(Q, K, V, mask, mask_mode, before, after, offset)
    S = (q @ k.swapaxes(1, 2)) * scale
    return q, k, v, _weights(S if bias is None else S + np.where(blocked, 0.0, bias), blocked), bias


def _grouped_tolerance(Q, K, V, mask, mask_mode, before, after, offset, scale, sums=_float32):
    """As :func:`_attention_tolerance`."""
    q, k, v, softmax, bias = _grouped(Q, K, V, mask, mask_mode, before, after, offset, scale)
    tolerance = _result_tolerance(q, k, v, softmax, scale, sums, bias)
    return tolerance.reshape(*Q.shape[:3], V.shape[3])


def _grouped_vjp_tolerance(Q, K, V, mask, out, g, mask_mode, before, after, offset, scale, sums=_float32):
    """As :func:`_attention_vjp_tolerance`; the gradients of keys are sums over a group's queries."""
    q, k, v, softmax, bias = _grouped(Q, K, V, mask, mask_mode, before, after, offset, scale)
    out, g = (a.reshape(*q.shape[:2], V.shape[3]) for a in (out, g))
    tolerances = _gradient_tolerance(q, k, v, out, g, softmax, scale, sums, bias)
    return tuple(t.reshape(a.shape) for t, a in zip(tolerances, (Q, K, V), strict=True))


def _grouped_draw(d):
    def size(high):
        return _draw_size(d, high)

    kv_heads, group = d.integer(1, 2), d.choice([1, 1, 2, 3])
    keys = size(max(1, (d.budget / (3 * group)) ** 0.5))
    queries = size(max(1, min(d.budget / (4 * kv_heads * group * max(keys, 1)), 4 * keys + 1)))
    room = max(1, d.budget / (6 * kv_heads * max(keys + group * queries, 1)))
    width, values = size(min(300, room)), size(min(300, room))
    batch = 0 if d.empty and d.rng.random() < 0.3 else d.integer(1, 2)
    mode = d.integer(0, 2)
    shape = [1 if d.rng.random() < 0.5 else n for n in (batch, kv_heads * group, queries)]
    before, after = (d.choice([UNLIMITED, UNLIMITED, 0, 1, d.integer(0, max(keys, 1))]) for _ in range(2))
    masked = mode > 0 or d.rng.random() < 0.2

    def mask(mask_batch, mask_heads, mask_queries, keys):
        return _draw_broadcast_mask(d.rng, (mask_batch, mask_heads, mask_queries, keys), mode)

    return {"batch": batch, "heads": kv_heads * group, "queries": queries, "d": width, "kv_heads": kv_heads, "keys": keys,
            "width": values, "mask_mode": mode, "before": before, "after": after, "offset": d.integer(0, keys + 1),
            "scale": d.choice([1.0, 0.25, -0.5, 1.5]) / max(width, 1) ** 0.5, "mask": mask if masked else None,
            **dict(zip(("mask_batch", "mask_heads", "mask_queries"), shape, strict=True))}  # fmt: skip


def _draw_broadcast_mask(rng, shape, mode):
    """A mask of :func:`_draw_mask`, cut to a shape; with mode 2 numbers, and where it blocks -inf or the least number, for the
    whole mask, by rows or by elements."""
    n = max(shape[2:])
    mask = _draw_mask(rng, shape[0] * shape[1], n)[:, : shape[2], : shape[3]].reshape(shape)
    if mode != 2:
        return mask
    added, size = rng.normal(0, 2, shape), ((1,) * 4, (*shape[:3], 1), shape)[rng.integers(3)]
    return np.where(mask == 0, rng.choice([-np.inf, LEAST], size=size), added).astype(np.float32)


def _rows_of(value):
    """A class of masks that add the value to all keys of a row, and not to all of another."""

    def holds(mask, mask_mode, batch, heads, queries, keys):
        read = mask_mode == 2 and mask is not None and min(batch, heads, queries, keys) > 0
        rows = (mask == value).all(axis=3) if read else np.ones(1, bool)
        return bool(rows.any() and not rows.all())

    return holds


def _rows(batch, heads, kv_heads, queries, keys, width):
    """Rows of a member, 0 where the result is empty."""
    return heads // max(kv_heads, 1) * queries * (min(batch, keys, width) > 0)


GROUPED_CLASSES: Classes = {
    "grouped heads": lambda batch, heads, kv_heads, queries, keys: min(batch, queries, keys) > 0 and heads > kv_heads,
    "fewer queries than keys": lambda queries, keys: 0 < queries < keys,
    "more queries than keys": lambda queries, keys: queries > keys > 0,
    "values of another width": lambda d, width: d != width and min(d, width) > 0,
    "a window": lambda before, after, keys, queries: max(before, after) < keys and queries > 1,
    "an offset": lambda offset, after, keys, queries: 0 < offset < keys and after == 0 and queries > 1,
    "a mask for several heads": lambda mask_mode, mask_heads, heads, mask_queries: mask_mode > 0 and mask_heads < heads and mask_queries > 1,
    "an additive mask": lambda mask_mode, keys, queries: mask_mode == 2 and min(keys, queries) > 1,
    "a row that a mask of -inf blocks": _rows_of(-np.inf),
    "a row of the least number": _rows_of(np.float32(LEAST)),
}  # fmt: skip


def _grouped_path(batch, heads, kv_heads, queries, keys, d, width, scale, before=UNLIMITED, after=UNLIMITED, offset=0):
    sizes = {
        "batch": batch,
        "heads": heads,
        "kv_heads": kv_heads,
        "queries": queries,
        "keys": keys,
        "d": d,
        "width": width,
    }
    limits = {"before": before, "after": after, "offset": offset, "scale": scale}
    return {**sizes, **limits, "mask_mode": 0, "mask_batch": 1, "mask_heads": 1, "mask_queries": 1, "mask": None}


#: short sequences whose scores are large, so that their roundings show; rows of each width, pairs of a short and a long one, and rows
#: of chunks; few queries to keys that CUDA cuts into parts, with windows that leave some of them; self-attention of heads that share
#: keys; few keys; sums over keys or queries that are several blocks' work, in reproducible contexts too; products with scores in
#: memory, of each number of keys to a thread and of rows that several groups share
GROUPED_PATHS = [
    _grouped_path(67, 1, 1, 5, 5, 2, 2, 16.0), _grouped_path(67, 2, 1, 4, 3, 2, 1, 16.0),
    _grouped_path(1, 4, 2, 130, 300, 64, 52, 0.125, 100, 0, 170), _grouped_path(2, 2, 1, 70, 90, 100, 128, 0.1, after=0),
    _grouped_path(1, 2, 2, 50, 70, 200, 252, 0.07, 30, 5, 20), _grouped_path(1, 2, 1, 40, 70, 300, 130, 0.06),
    _grouped_path(2, 4, 1, 1, 700, 64, 52, 0.125), _grouped_path(1, 6, 2, 5, 600, 36, 130, 0.1, 400, 0, 590),
    _grouped_path(3, 1, 1, 1, 513, 30, 7, 0.2), _grouped_path(1, 4, 2, 192, 192, 68, 68, 0.12),
    _grouped_path(2, 1, 1, 1, 520, 4, 68, 0.5), _grouped_path(1, 2, 2, 1, 300, 1, 131, 0.5),
    _grouped_path(2, 3, 3, 130, 130, 64, 64, 0.125, after=0),
    _grouped_path(2, 2, 1, 150, 1, 24, 12, 0.2), _grouped_path(1, 4, 2, 70, 4, 9, 8, 0.3, 60, 5, 2),
    _grouped_path(1, 3, 1, 50, 13, 8, 5, 0.3, after=0), _grouped_path(2, 1, 1, 131, 32, 132, 3, 0.09),
    _grouped_path(1, 2, 1, 300, 40, 100, 30, 0.1, 30), _grouped_path(2, 2, 2, 20, 1100, 7, 40, 0.2),
    _grouped_path(1, 1, 1, 40, 600, 140, 9, 0.08, 500, 0, 570), _grouped_path(1, 1, 1, 530, 70, 33, 260, 0.15),
    _grouped_path(1, 1, 1, 2100, 33, 3, 2, 0.5), _grouped_path(1, 1, 1, 18, 2100, 2, 5, 0.5),
    _grouped_path(1, 2, 1, 70, 40, 13, 5, 0.3), _grouped_path(2, 6, 2, 2, 600, 12, 5, 0.3),
    _grouped_path(1, 2, 1, 5, 90, 100, 128, 0.1, 40, 0, 80), _grouped_path(1, 2, 1, 7, 70, 132, 200, 0.08),
    _grouped_path(1, 1, 1, 7, 70, 300, 40, 0.06), _grouped_path(1, 1, 1, 140, 90, 200, 130, 0.07),
    _grouped_path(1, 4, 2, 75, 402, 132, 200, 0.08, 300, 20, 250), _grouped_path(1, 2, 2, 130, 713, 200, 160, 0.07),
    _grouped_path(1, 1, 1, 129, 2060, 130, 9, 0.09), _grouped_path(1, 1, 1, 150, 300, 200, 140, 0.07, 20, 0, 100),
    _grouped_path(1, 1, 1, 4300, 40, 140, 9, 0.09, 5), _grouped_path(1, 1, 1, 12700, 33, 3, 2, 0.5),
    _grouped_path(1, 2, 1, 60, 1100, 140, 20, 0.08, 30, 3, 70),
    _grouped_path(40, 1, 1, 3, 1030, 136, 3, 0.09), _grouped_path(6, 2, 1, 3, 1030, 60, 300, 0.12, 900, 0, 1000),
    _grouped_path(45, 1, 1, 3, 190, 7, 261, 0.3), _grouped_path(23, 2, 2, 3, 190, 261, 9, 0.06, 5, 3, 30),
    _grouped_path(1, 5, 1, 60, 43, 2, 128, 0.7, after=0), _grouped_path(1, 3, 1, 90, 66, 37, 14, 0.16, after=0),
    _grouped_path(1, 20, 1, 13, 4100, 140, 9, 0.08, 40, 3, 70), _grouped_path(58, 1, 1, 211, 33, 2, 130, 0.7, after=0),
    _grouped_path(67, 1, 1, 190, 40, 3, 258, 0.5, 10),
]  # fmt: skip


GROUPED_CHECKS = [
    check("mask_mode", "mask_mode <= 2"),
    check("mask", "mask_mode == 0 or given(mask)", say="a mask, unless mask_mode is 0"),
    check("kv_heads", "kv_heads > 0 and heads % kv_heads == 0", "SHAPE", say="a divisor of heads"),
    check("mask_batch", "mask_batch == 1 or mask_batch == batch", "SHAPE", say="1 or batch"),
    check("mask_heads", "mask_heads == 1 or mask_heads == heads", "SHAPE", say="1 or heads"),
    check("mask_queries", "mask_queries == 1 or mask_queries == queries", "SHAPE", say="1 or queries"),
]


@op("Q[batch, heads, queries, d], K[batch, kv_heads, keys, d], V[batch, kv_heads, keys, width], "
    "mask?[mask_batch, mask_heads, mask_queries, keys]; mask_mode: u32, mask_batch: u32 = 1, mask_heads: u32 = 1, "
    "mask_queries: u32 = 1, before: u32 = 4294967295, after: u32 = 4294967295, offset: u32 = 0, scale: float = 1.0 "
    "-> out[batch, heads, queries, width]",
    classes=GROUPED_CLASSES, lengths={"rows": _rows}, work=lambda batch, heads, queries, keys, d, width: batch * heads * queries * keys * (d + width + 20),
    bound=_bound(_grouped_tolerance, "weights + f(keys)·u·P|V|"), same_bits=False, reproducible=True,
    checks=GROUPED_CHECKS, draw=_grouped_draw, paths=GROUPED_PATHS, data=["normal", "uniform", "special", "structured"],
    laws=[laws.linear("V"), laws.adjoint("V")],
    source="torch.nn.functional.scaled_dot_product_attention; Ainslie et al., GQA, arXiv:2305.13245; Beltagy et al., Longformer, "
    "arXiv:2004.05150 (the window)",
    arguments={"mask": "read as mask_mode says", "mask_mode": "0: no mask, 1: 0 blocks, 2: added"},
    example={"Q": [[1, 0], [0, 1]], "K": [[1, 0], [0, 1]], "V": [[1, 2], [3, 4]]})  # fmt: skip
def grouped_attention(Q, K, V, mask, mask_mode, before, after, offset, scale):
    """Attention of heads that share keys in groups, with a window, and a mask that broadcasts.

    out[b, h, i] = softmax(S)·V[b, h'], S[i, j] = scale·Σ_k Q[b, h, i, k]·K[b, h', j, k], h' = h // (heads / kv_heads), over the
    keys i + offset - before <= j <= i + offset + after; 2^32 - 1 limits nothing, after = 0 is causal. mask_mode 0: no mask.
    1: weight 0 where the mask is 0. 2: the mask is added to S, and blocks where it is -inf; the least number does not, so that
    a row of it alone is the mean of V. A row that is blocked entirely gives zeros.

    Shapes: Q (batch, heads, queries, d), K (batch, kv_heads, keys, d), V (batch, kv_heads, keys, width), mask (mask_batch,
    mask_heads, mask_queries, keys), of which the first three are 1 or those of Q, out (batch, heads, queries, width).
    Special values: as :func:`flash_attention`; keys = 0 gives zeros.
    Errors: ARGUMENT if mask_mode > 2, or if it is not 0 and there is no mask; SHAPE unless kv_heads divides heads and the mask
    broadcasts."""
    _, _, v, (_, E, total, _), _ = _grouped(Q, K, V, mask, mask_mode, before, after, offset, scale)
    return ((E @ v) / total).reshape(*Q.shape[:3], V.shape[3])


@grouped_attention.vjp("Q, K, V, mask, out, g -> gQ, gK, gV",
    bound=_bound(_grouped_vjp_tolerance, "composite, first order"))  # fmt: skip
def grouped_attention_vjp(Q, K, V, mask, out, g, mask_mode, before, after, offset, scale):
    """As :func:`flash_attention_vjp`; gK and gV of a head are sums over the queries of all heads of its group, in
    reproducible contexts in order."""
    q, k, v, softmax, _ = _grouped(Q, K, V, mask, mask_mode, before, after, offset, scale)
    out, g = (a.reshape(*q.shape[:2], V.shape[3]) for a in (out, g))
    return tuple(
        x.reshape(a.shape) for x, a in zip(_gradients(q, k, v, out, g, softmax, scale), (Q, K, V), strict=True)
    )


#: the arrays of strided attention: prefix of their parameters -> heads, rows and width
STRIDED = {"q": ("heads", "queries", "d"), "k": ("kv_heads", "keys", "d"), "v": ("kv_heads", "keys", "width"),
           "y": ("heads", "queries", "width"), "g": ("heads", "queries", "width")}  # fmt: skip


def seen(prefix, x, values):
    """An array of strided attention as (batch, heads, rows, width)."""
    strides = [values[f"{prefix}_{axis}"] for axis in ("batch", "head", "row")]
    return strided(x, [values[n] for n in ("batch", *STRIDED[prefix])], (*strides, 1))


def laid(x, by_rows):
    """A result as it lies in memory: head after head, or with the heads of a row side by side."""
    return x.swapaxes(1, 2).reshape(x.shape) if by_rows else x


def _common(values):
    return {n: values[n] for n in ("mask_mode", "before", "after", "offset", "scale")}


def _strided_tolerance(Q, K, V, mask, by_rows, sums=_float32, **values):
    """That of :func:`grouped_attention`, of arrays as they are seen."""
    arrays = (seen(n, x, values) for n, x in (("q", Q), ("k", K), ("v", V)))
    return laid(_grouped_tolerance(*arrays, mask, **_common(values), sums=sums), by_rows)


def _strided_vjp_tolerance(Q, K, V, mask, y, g, by_rows, sums=_float32, **values):
    """That of the gradients of :func:`grouped_attention`, of arrays as they are seen."""
    q, k, v, y, g = (seen(n, x, values) for n, x in (("q", Q), ("k", K), ("v", V), ("y", y), ("g", g)))
    tolerances = _grouped_vjp_tolerance(q, k, v, mask, y, g, **_common(values), sums=sums)
    return tuple(laid(t, by_rows >> i & 1) for i, t in enumerate(tolerances))


def _with_layouts(d, values, arrays):
    """Strides of these arrays, buffers with room for them (of empty axes for one) and sometimes more, and how results lie."""
    for prefix in arrays:
        lengths = [values[n] for n in ("batch", *STRIDED[prefix])]
        found = d.head_strides(*lengths)
        values |= dict(zip((f"{prefix}_batch", f"{prefix}_head", f"{prefix}_row"), found, strict=True))
        axes = itertools.chain(*zip((max(n, 1) for n in lengths), (*found, 1), strict=True))
        values[f"{prefix}_size"] = extent(*axes) + d.choice((0, 0, 1, 6))
    masks = {n: max(values[n], 1) for n in ("mask_batch", "mask_heads", "mask_queries")}
    return {**values, **masks, "by_rows": d.integer(0, 1 if arrays == "qkv" else 7)}


def _strided_path(shape, layouts, by_rows):
    """A shape of :func:`_grouped_path`, and of each array "heads" (head after head), "rows" (those of a row side by side), or "packed"
    (with those of two more arrays)."""
    values = {**_grouped_path(*shape), "by_rows": by_rows}
    for prefix, layout in layouts.items():
        lengths = [values[n] for n in ("batch", *STRIDED[prefix])]
        _, heads, rows, width = lengths
        row = width if layout == "heads" else heads * width * (3 if layout == "packed" else 1)
        found = (heads * rows * width, rows * width, row) if layout == "heads" else (rows * row, width, row)
        values |= dict(zip((f"{prefix}_batch", f"{prefix}_head", f"{prefix}_row"), found, strict=True))
        values[f"{prefix}_size"] = extent(*itertools.chain(*zip(lengths, (*found, 1), strict=True)))
    return values


#: short sequences whose scores are large, so that their roundings show; rows of each width of tile on CUDA, whole 16 bytes or not, in packed arrays and others; causal; groups, whose rows are equally far apart
#: or not; few queries; sums of several segments; pairs of widths
STRIDED_SHAPES = [
    ((67, 1, 1, 5, 5, 2, 2, 16.0), "rows", 1), ((67, 2, 1, 4, 3, 2, 1, 16.0), "packed", 0),
    ((2, 4, 4, 130, 130, 64, 64, 0.125), "packed", 1), ((2, 3, 3, 97, 97, 64, 64, 0.125, UNLIMITED, 0), "packed", 1),
    ((1, 3, 3, 70, 70, 30, 30, 0.2, UNLIMITED, 0), "rows", 0), ((2, 4, 2, 50, 70, 32, 32, 0.2), "rows", 1),
    ((2, 4, 2, 50, 70, 32, 32, 0.2, 20, 5, 10), "heads", 1), ((1, 2, 2, 66, 90, 128, 128, 0.09, UNLIMITED, 0), "rows", 1),
    ((1, 2, 2, 70, 66, 200, 132, 0.07, 40, 0, 5), "packed", 1), ((1, 3, 3, 7, 190, 64, 64, 0.125), "rows", 1),
    ((1, 2, 2, 40, 2100, 8, 8, 0.4), "rows", 0), ((1, 2, 1, 2100, 33, 4, 4, 0.5), "packed", 1),
    ((1, 2, 2, 70, 90, 24, 100, 0.2), "rows", 1), ((1, 2, 2, 70, 90, 100, 24, 0.1, UNLIMITED, 0), "rows", 1),
]  # fmt: skip


def _strided_paths(arrays):
    return [_strided_path(shape, dict.fromkeys(arrays, layout), by_rows * (2 ** (len(arrays) - 2) - 1))
            for shape, layout, by_rows in STRIDED_SHAPES]  # fmt: skip


def _strided_checks(arrays):
    """Those of :func:`grouped_attention`, and that each array lies in its buffer."""
    return [*GROUPED_CHECKS, *(
        check(f"{p}_size", f"extent(batch, {p}_batch, {heads}, {p}_head, {rows}, {p}_row, {width}, 1) <= {p}_size", "SHAPE",
              say="a buffer that has every element that is read")
        for p, (heads, rows, width) in STRIDED.items() if p in arrays)]  # fmt: skip


def _strides_text(arrays):
    return ", ".join(f"{p}_{axis}: u32" for p in arrays for axis in ("batch", "head", "row"))


_STRIDED_MASK = "mask?[mask_batch, mask_heads, mask_queries, keys]"
_STRIDED_LIMITS = ("mask_mode: u32, mask_batch: u32 = 1, mask_heads: u32 = 1, mask_queries: u32 = 1, before: u32 = 4294967295, "
    "after: u32 = 4294967295, offset: u32 = 0, scale: float = 1.0, by_rows: u32 = 0")  # fmt: skip


@op(f"Q[q_size], K[k_size], V[v_size], {_STRIDED_MASK}; d: u32, kv_heads: u32, {_strides_text('qkv')}, {_STRIDED_LIMITS} "
    "-> out[batch, heads, queries, width]", order="q_size, k_size, v_size, batch, heads, queries, keys, width",
    classes=GROUPED_CLASSES, lengths={"rows": _rows}, work=lambda batch, heads, queries, keys, d, width: batch * heads * queries * keys * (d + width + 20),
    bound=_bound(_strided_tolerance, "weights + f(keys)·u·P|V|"), same_bits=False, reproducible=True,
    checks=[*_strided_checks("qkv"), check("by_rows", "by_rows <= 1")],
    draw=lambda d: _with_layouts(d, _grouped_draw(d), "qkv"), paths=_strided_paths("qkv"),
    data=["normal", "uniform", "special", "structured"], laws=[laws.linear("V")],
    source="torch.nn.functional.scaled_dot_product_attention",
    no_vjp="attention_strided_gradients gives its gradients, which lie as the caller says",
    arguments={"mask": "read as mask_mode says", "mask_mode": "0: no mask, 1: 0 blocks, 2: added", "d": "length of a row of Q and of K"},
    example={"q_size": 4, "k_size": 4, "v_size": 4, "q_row": 2, "k_row": 2, "v_row": 2, "kv_heads": 1,
             "Q": [1, 0, 0, 1], "K": [1, 0, 0, 1], "V": [1, 2, 3, 4]})  # fmt: skip
def attention_strided(
    Q, K, V, mask, batch, heads, queries, keys, width, d, kv_heads, q_batch, q_head, q_row, k_batch, k_head, k_row, v_batch,
    v_head, v_row, mask_mode, before, after, offset, scale, by_rows,
):  # fmt: skip
    """Attention of :func:`grouped_attention` on rows that lie in flat buffers with strides.

    out = grouped_attention(Q', K', V'), Q'[b, h, i, c] = Q[q_batch·b + q_head·h + q_row·i + c], and K' and V' likewise

    Shapes: Q (q_size), K (k_size), V (v_size), mask as of :func:`grouped_attention`, out (batch, heads, queries, width), in memory
    (batch, queries, heads, width) with by_rows = 1. Strides are any; 0 repeats a head or a sample.
    Special values: as :func:`grouped_attention`.
    Errors: as :func:`grouped_attention`; SHAPE where an element lies behind a buffer's end, ARGUMENT if by_rows > 1.
    In reproducible contexts the bits are those of :func:`grouped_attention` on contiguous copies."""
    values = locals()
    arrays = (seen(n, x, values) for n, x in (("q", Q), ("k", K), ("v", V)))
    return laid(grouped_attention.reference(*arrays, mask, **_common(values)), by_rows)


@op(f"Q[q_size], K[k_size], V[v_size], {_STRIDED_MASK}, y[y_size], g[g_size]; d: u32, kv_heads: u32, {_strides_text('qkvyg')}, "
    f"{_STRIDED_LIMITS} -> gQ[batch, heads, queries, d], gK[batch, kv_heads, keys, d], gV[batch, kv_heads, keys, width]",
    order="q_size, k_size, v_size, y_size, g_size, batch, heads, queries, keys, width",
    classes=GROUPED_CLASSES, lengths={"rows": _rows}, work=lambda batch, heads, queries, keys, d, width: batch * heads * queries * keys * (d + width + 20),
    bound=_bound(_strided_vjp_tolerance, "composite, first order"), same_bits=False, reproducible=True,
    checks=[*_strided_checks("qkvyg"), check("by_rows", "by_rows <= 7")],
    draw=lambda d: _with_layouts(d, _grouped_draw(d), "qkvyg"), paths=_strided_paths("qkvyg"),
    data=["normal", "uniform", "special", "structured"], laws=[laws.linear("g")],
    source="torch.nn.functional.scaled_dot_product_attention",
    no_vjp="it is a gradient",
    arguments={"y": "the result", "g": "its cotangent", "mask_mode": "0: no mask, 1: 0 blocks, 2: added",
             "d": "length of a row of Q and of K"},
    example={"q_size": 4, "k_size": 4, "v_size": 4, "y_size": 4, "g_size": 4, "q_row": 2, "k_row": 2, "v_row": 2,
             "y_row": 2, "g_row": 2, "kv_heads": 1, "Q": [1, 0, 0, 1], "K": [1, 0, 0, 1], "V": [1, 2, 3, 4],
             "y": [1.5379, 2.5379, 2.4621, 3.4621], "g": [1, 0, 0, 1]})  # fmt: skip
def attention_strided_gradients(
    Q, K, V, mask, y, g, batch, heads, queries, keys, width, d, kv_heads, q_batch, q_head, q_row, k_batch, k_head, k_row, v_batch,
    v_head, v_row, y_batch, y_head, y_row, g_batch, g_head, g_row, mask_mode, before, after, offset, scale, by_rows,
):  # fmt: skip
    """Gradients of :func:`attention_strided`, from its arguments, its result y and the cotangent g.

    gQ, gK, gV = grouped_attention_vjp(Q', K', V', mask, y', g'), all five as :func:`attention_strided` sees Q

    Shapes: Q (q_size), K (k_size), V (v_size), y (y_size), g (g_size), mask as of :func:`grouped_attention`, gQ (batch, heads, queries,
    d), gK (batch, kv_heads, keys, d), gV (batch, kv_heads, keys, width); with bit 0, 1 or 2 of by_rows gQ, gK or gV has the heads of a
    row side by side in memory, as (batch, queries, heads, d).
    Special values: as :func:`grouped_attention_vjp`.
    Errors: as :func:`attention_strided`; ARGUMENT if by_rows > 7.
    In reproducible contexts the bits are those of :func:`grouped_attention_vjp` on contiguous copies."""
    values = locals()
    q, k, v, y, g = (seen(n, x, values) for n, x in (("q", Q), ("k", K), ("v", V), ("y", y), ("g", g)))
    found = grouped_attention.rule.reference(q, k, v, mask, y, g, **_common(values))
    return tuple(laid(x, by_rows >> i & 1) for i, x in enumerate(found))


def _angles(n, d, base, start):
    """Angle of position p and pair i: (start + p)·base^(-2i/d), and the absolute error a kernel's may have: the frequency in
    turns is rounded to double and to 2^-64, and the reference's own to double."""
    position = start + np.arange(n, dtype=np.float64)[:, None]
    turn = base ** (-2.0 * np.arange((d + 1) // 2) / max(d, 1))
    return position * turn, position * (8 * 2.0**-53 * turn + 2 * np.pi * 2.0**-64)


def _pairs(d, halves):
    """Indices of the first and of the second elements of the pairs that turn together."""
    first = np.arange(d // 2) if halves else np.arange(0, d - 1, 2)
    return first, first + (d // 2 if halves else 1)


def _turn(x, base, start, halves, sign):
    first, second = _pairs(x.shape[2], halves)
    angle, _ = _angles(x.shape[1], x.shape[2], base, start)
    c, s = np.cos(angle), np.sin(angle) * sign
    out = np.empty_like(x)
    out[:, :, first] = x[:, :, first] * c - x[:, :, second] * s
    out[:, :, second] = x[:, :, first] * s + x[:, :, second] * c
    return out


def _turn_tolerance(x, base, start, halves, sign):
    """Sine and cosine are within 1 ulp of rounding of the reduced angle, whose relative error u moves them by less than u
    relatively: 4u. The products and the sum round once each. Then the error of the angle."""
    first, second = _pairs(x.shape[2], halves)
    angle, error = _angles(x.shape[1], x.shape[2], base, start)
    c, s = np.abs(np.cos(angle)), np.abs(np.sin(angle))
    a, b = np.abs(x[:, :, first]), np.abs(x[:, :, second])
    tolerance = np.empty_like(x)
    tolerance[:, :, first] = 5 * U * (a * c + b * s) + error * (a + b) + 2 * TINY
    tolerance[:, :, second] = 5 * U * (a * s + b * c) + error * (a + b) + 2 * TINY
    return tolerance + spacing(_turn(x, base, start, halves, sign)) / 2


def _rotary_draw(d):
    n = d.dim(0, max(1, d.budget // 2))
    width = 2 * d.integer(0 if d.empty else 1, max(1, min(64, d.budget // (8 * max(n, 1)))))
    width = 2 * (d.aligned(1, width // 2) or width // 2)
    start = d.choice([0, 0, 1, 4095, 65530, 65536, 10**6, 2**24 - 3, 2**31 + 5])
    return {"n": n, "d": width, "base": d.choice([1e4, 1e4, 500.0, d.real(2, 1e6)]), "start": start,
            "halves": d.integer(0, 1)}  # fmt: skip


def _norms_keep(f, x):
    """A pair keeps its length."""
    out = f()
    a, t = np.asarray(out.array, np.float64), out.tolerance
    length = np.sqrt((a**2).sum(axis=2) + 0.0)
    before = np.sqrt((np.asarray(x, np.float64) ** 2).sum(axis=2))
    yield laws.Value(length, np.sqrt((t**2).sum(axis=2)) + 1e-300), before


POSITION_CHECKS = [check("base", "base > 0 and base < 1e38", say="0 < base < 1e38")]


@op("x[batch, n, d]; base: float = 10000, start: u32 = 0, halves: u32 = 0 -> out[batch, n, d]",
    classes={**_POSITIONS, **_HALVES}, lengths={"positions": lambda n, d: n * d}, bound=custom(lambda x, base, start, halves: _turn_tolerance(x, base, start, halves, 1.0),
                 "5u·(|x||cos| + |x'||sin|) + angle"),
    checks=[*POSITION_CHECKS, check("d", "d % 2 == 0", "SHAPE", say="an even d"), check("halves", "halves <= 1")],
    draw=_rotary_draw,
    laws=[laws.linear("x"), laws.adjoint("x"), laws.equation("|f(x)| = |x|", _norms_keep, exact=False)],
    source="Su, Lu, Pan, Murtadha, Wen, Liu, RoFormer, arXiv:2104.09864, equation 34")  # fmt: skip
def rotary(x, base, start, halves):
    """Rotary position encoding: every pair of elements turns by an angle proportional to the position.

    (out[b, p, i'], out[b, p, i'']) = (x' cos a - x'' sin a, x' sin a + x'' cos a), a = (start + p)·base^(-2i/d), where pair i is
    the elements i' = 2i and i'' = 2i + 1, or with halves = 1 i' = i and i'' = i + d/2.

    Shapes: x, out (batch, n, d), d even.
    Special values: IEEE; sin 0 is exactly 0, so position 0 keeps x up to the sign of zeros and turns an infinity's partner to NaN.
    Empty dimensions give an empty result.
    Errors: ARGUMENT unless 0 < base < 1e38 and halves is 0 or 1; SHAPE if d is odd."""
    return _turn(x, base, start, halves, 1.0)


@rotary.vjp(
    "g -> gx", bound=custom(lambda g, base, start, halves: _turn_tolerance(g, base, start, halves, -1.0), "as forward")
)
def rotary_vjp(g, base, start, halves):
    """gx is g turned back by the same angles."""
    return _turn(g, base, start, halves, -1.0)


def _sinusoid(n, d, base, start):
    angle, _ = _angles(n, d, base, start)
    return np.stack([np.sin(angle), np.cos(angle)], axis=2).reshape(n, 2 * angle.shape[1])[:, :d]


def _sinusoidal_tolerance(x, base, start):
    """4u of the sine or cosine, the error of the angle, and the rounding of the sum."""
    _, n, d = x.shape
    code = _sinusoid(n, d, base, start)
    error = np.repeat(_angles(n, d, base, start)[1], 2, axis=1)[:, :d]
    return 4 * U * np.abs(code) + error + TINY + spacing(x + code) / 2


def _sinusoidal_draw(d):
    values = _rotary_draw(d)
    values.pop("halves")
    return {**values, "d": max(values["d"] - d.integer(0, 1), 0)}


@op("x[batch, n, d]; base: float = 10000, start: u32 = 0 -> out[batch, n, d]",
    classes=_POSITIONS, lengths={"positions": lambda n, d: n * d}, bound=custom(_sinusoidal_tolerance, "4u + angle + ½ ulp"), checks=POSITION_CHECKS, draw=_sinusoidal_draw,
    source="Vaswani et al., Attention Is All You Need, NeurIPS 2017, section 3.5")  # fmt: skip
def sinusoidal(x, base, start):
    """Adds the sinusoidal position encoding.

    out[b, p, 2i] = x[b, p, 2i] + sin a, out[b, p, 2i+1] = x[b, p, 2i+1] + cos a, a = (start + p)·base^(-2i/d).

    Shapes: x, out (batch, n, d); an odd d ends with a sine. The encoding itself is the result for x = 0.
    Special values: IEEE. Empty dimensions give an empty result.
    Errors: ARGUMENT unless 0 < base < 1e38."""
    return x + _sinusoid(x.shape[1], x.shape[2], base, start)


@sinusoidal.vjp("g -> gx", bound=custom(lambda g: np.zeros(g.shape), "exact"))
def sinusoidal_vjp(g):
    """gx = g."""
    return g
