"""Products of matrices by groups of rows: the experts of a mixture."""

import numpy as np

from tlspec.references._bound import analysed
from tlspec.references.fused import WHY
from tlspec.registry import check, op


def ends_of(d, rows, groups):
    """Ascending ends of groups of rows, some of them empty; the last one is the number of rows."""
    cuts = np.sort(d.rng.integers(0, rows, size=max(groups - 1, 0), endpoint=True))
    return np.append(cuts, rows)[:groups].astype(np.uint32)


def _draw(d):
    groups = d.choice([1, 2, 3, 4, 8])
    return {
        "groups": groups,
        "rows": d.dim(),
        "k": d.dim(),
        "n": d.dim(),
        "ends": lambda rows, groups: ends_of(d, rows, groups),
    }


@op("x[rows, k], w[groups, k, n], ends: u32[groups] -> out[rows, n]",
    bound=analysed(), no_vjp=WHY, draw=_draw, work=lambda rows, k, n: rows * k * n,
    checks=[check("ends", "groups > 0 and ends[-1] == rows and False not in (ends[:-1] <= ends[1:])")],
    source="torch.nn.functional.grouped_mm, whose offsets are `ends`; Gale et al., MegaBlocks, arXiv:2211.15841")  # fmt: skip
def grouped_matmul(x, w, ends):
    """A product of matrices for each group of consecutive rows.

    out[i] = x[i] @ w[e], where e is the first group with i < ends[e]

    Parameters
    ----------
    x : (rows, k)
        The rows, those of a group one after the other.
    w : (groups, k, n)
        A matrix for each group.
    ends : (groups) integers
        The end of each group's rows, ascending; the last one is `rows`, and a group may be empty.

    Returns
    -------
    out : (rows, n)
    """
    starts = np.append(0, ends[:-1])
    parts = [x[a:b] @ w[e] for e, (a, b) in enumerate(zip(starts, ends, strict=True)) if b > a]
    return np.concatenate(parts) if parts else np.zeros((0, w.shape[2]), like=x)


def _draw_topk(d):
    experts = d.choice([1, 2, 4, 8])
    return {"experts": experts, "chosen": d.integer(1, experts), "tokens": d.dim(), "k": d.dim(0, 257), "n": d.dim(0, 257),
            "expert": lambda tokens, chosen, experts: d.indices(tokens * chosen, experts).reshape(tokens, chosen)}  # fmt: skip


@op("x[tokens, k], w[experts, k, n], weight[tokens, chosen], expert: u32[tokens, chosen] -> out[tokens, n]",
    bound=analysed(), no_vjp=WHY, draw=_draw_topk, data=("normal", "uniform", "integers", "structured"), work=lambda tokens,
        chosen, k, n: tokens * chosen * k * n,
    checks=[check("experts", "experts > 0"), check("expert", "all_below(expert.ravel(), experts)")],
    source="Shazeer et al., arXiv:1701.06538; vLLM's fused_moe")  # fmt: skip
def expert_matmul(x, w, weight, expert):
    """The weighted sum of a token's products with its experts' matrices.

    out[t] = Σ_c weight[t, c] · (x[t] @ w[expert[t, c]])

    Parameters
    ----------
    x : (tokens, k)
    w : (experts, k, n)
    weight : (tokens, chosen)
    expert : (tokens, chosen) integers below `experts`
        One expert may be chosen twice.

    Returns
    -------
    out : (tokens, n)
    """
    return _chosen(x, w, expert, lambda c, product: product * weight[:, c : c + 1])


@expert_matmul.formula()
def _weighted_before(x, w, weight, expert):
    parts = (
        _chosen(x * weight[:, c : c + 1], w, expert[:, c : c + 1], lambda _, product: product)
        for c in range(expert.shape[1])
    )
    return sum(parts, np.zeros((x.shape[0], w.shape[2]), like=x))


def _chosen(x, w, expert, weighted):
    """The sum over the choices of each token's product with its expert's matrix."""
    total = np.zeros((x.shape[0], w.shape[2]), like=x)
    for c in range(expert.shape[1]):
        product = np.zeros(total.shape, like=x)
        for e in range(w.shape[0]):
            rows = np.flatnonzero(expert[:, c] == e)
            if rows.size:
                product[rows] = x[rows] @ w[e]
        total = total + weighted(c, product)
    return total
