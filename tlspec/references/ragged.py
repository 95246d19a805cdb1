"""Attention over sequences of several lengths: packed one behind the other, or with keys and values in pages."""

import itertools
import math

import numpy as np

from tlspec.ops.attention import UNLIMITED, grouped_attention
from tlspec.references._bound import analysed
from tlspec.references.fused import WHY
from tlspec.registry import check, op


def _attend(q, k, v, scale, causal):
    """Attention of sequences of equal lengths, (sequences, rows, heads, width) each; the last query is at the last key."""
    after, offset = (0, max(k.shape[1] - q.shape[1], 0)) if causal else (UNLIMITED, 0)
    heads = (np.swapaxes(x, 1, 2) for x in (q, k, v))
    return np.swapaxes(grouped_attention.reference(*heads, None, 0, UNLIMITED, after, offset, scale), 1, 2)


def _heads(d):
    kv_heads, width = d.choice([1, 1, 2]), d.choice([1, 3, 8, 16, 32])
    return {"kv_heads": kv_heads, "heads": kv_heads * d.choice([1, 1, 2, 4]), "d": width, "scale": 1 / math.sqrt(width)}


def _draw_varlen(d):
    def bounds(total, count):
        inner = np.sort(d.rng.integers(0, total, size=max(count - 2, 0), endpoint=True))
        return np.concatenate([[0], inner, [total]]).astype(np.uint32)

    return {
        **_heads(d),
        "total": d.dim(0, 257),
        "count": d.choice([1, 2, 3, 5]) + 1,
        "bounds": bounds,
        "causal": d.choice([0, 1, 2]),
    }


@op("q[total, heads, d], k[total, kv_heads, d], v[total, kv_heads, d], bounds: u32[count]; causal: u32 = 1, scale: float = 1.0 "
    "-> out[total, heads, d]",
    bound=analysed(), no_vjp=WHY, draw=_draw_varlen, data=("normal", "uniform", "structured", "spread"),
    work=lambda total, heads, d: total * total * heads * 2 * d,
    checks=[check("bounds", "count > 1 and bounds[0] == 0 and bounds[-1] == total and False not in (bounds[:-1] <= bounds[1:])"),
            check("kv_heads", "kv_heads > 0 and heads % kv_heads == 0")],
    source="flash_attn_varlen_func, whose cu_seqlens are `bounds`; Dao, FlashAttention-2, arXiv:2307.08691")  # fmt: skip
def varlen_attention(q, k, v, bounds, causal, scale):
    """Attention within sequences that are packed one behind the other.

    The rows bounds[s] to bounds[s + 1] of q, k and v are a sequence, and attend to each other alone:
    out[i, h] = softmax_j(scale · q[i, h]·k[j, h']) · v[j, h'], h' = h // (heads / kv_heads), j <= i where `causal` is not 0.

    Parameters
    ----------
    q : (total, heads, d)
    k, v : (total, kv_heads, d)
    bounds : (sequences + 1) integers
        Ascending from 0 to `total`; a sequence may be empty.
    causal : int
    scale : float

    Returns
    -------
    out : (total, heads, d)
    """
    pieces = [slice(int(a), int(b)) for a, b in itertools.pairwise(bounds)]
    parts = [_attend(*(x[at][None] for x in (q, k, v)), scale, causal)[0] for at in pieces if at.stop > at.start]
    return np.concatenate(parts) if parts else q


def _draw_paged(d):
    batch, page, most, pages = d.dim(0, 7), d.choice([1, 4, 16]), d.choice([1, 2, 3]), d.choice([1, 3, 8])

    def table(batch, most, pages):
        return d.rng.integers(0, pages, (batch, most), dtype=np.uint32)

    def filled(batch, page, most):
        return d.rng.integers(0, page * most, batch, endpoint=True, dtype=np.uint32)

    return {**_heads(d), "batch": batch, "page": page, "most": most, "pages": pages, "table": table, "filled": filled}


@op("q[batch, heads, d], keys[pages, page, kv_heads, d], values[pages, page, kv_heads, d], table: u32[batch, most], "
    "filled: u32[batch]; scale: float = 1.0 -> out[batch, heads, d]",
    bound=analysed(), no_vjp=WHY, draw=_draw_paged, data=("normal", "uniform", "structured", "spread"),
    work=lambda batch, page, most, heads, d: batch * page * most * heads * 2 * d,
    checks=[check("kv_heads", "kv_heads > 0 and heads % kv_heads == 0"), check("table", "all_below(table.ravel(), pages)"),
            check("filled", "all_below(filled, page * most + 1)")],
    source="Kwon et al., PagedAttention, arXiv:2309.06180; flash_attn_with_kvcache, whose block_table and cache_seqlens are "
    "`table` and `filled`")  # fmt: skip
def paged_attention(q, keys, values, table, filled, scale):
    """Attention of one query of each sequence over keys and values that lie in pages.

    Token t of sequence b is in page table[b, t // page] at place t % page; tokens below filled[b] count.
    out[b, h] = softmax_t(scale · q[b, h]·key[t, h']) · value[t, h'], h' = h // (heads / kv_heads); zeros without a token.

    Parameters
    ----------
    q : (batch, heads, d)
    keys, values : (pages, page, kv_heads, d)
    table : (batch, most) integers below `pages`
        Sequences may share pages.
    filled : (batch) integers up to most · page
    scale : float

    Returns
    -------
    out : (batch, heads, d)
    """
    out = np.zeros(q.shape, like=q)
    for count in np.unique(filled[filled > 0]):
        rows, tokens = np.flatnonzero(filled == count), np.arange(int(count))
        page, place = table[rows][:, tokens // keys.shape[1]], tokens % keys.shape[1]
        out[rows] = _attend(q[rows][:, None], keys[page, place], values[page, place], scale, False)[:, 0]
    return out
