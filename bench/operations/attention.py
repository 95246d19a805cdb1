"""Sizes and baselines of the attention family."""

from bench.operations.table import Benchmark
from tlspec.ops.attention import FILL, STRIDED, UNLIMITED


def _torch_mask(torch, mask, mask_mode):
    if mask_mode == 1:
        return torch.where(mask == 0, FILL, 0.0)  # the nearest that the fused operation has
    return mask != 0 if mask_mode == 2 else None


def _torch_attention(torch, Q, K, V, mask, mask_mode, scale):
    attention = torch.nn.functional.scaled_dot_product_attention
    mask = _torch_mask(torch, mask, mask_mode)
    mask = mask if mask is None else mask[None]
    Q, K, V = (x[None] for x in (Q, K, V))  # only arrays of four axes reach the fused kernels
    return lambda: attention(Q, K, V, attn_mask=mask, is_causal=mask_mode == 3, scale=scale)[0]


def _torch_attention_vjp(torch, Q, K, V, mask, g, mask_mode, scale):
    Q, K, V = (x.detach().requires_grad_() for x in (Q, K, V))
    out = _torch_attention(torch, Q, K, V, mask, mask_mode, scale)()
    return lambda: torch.autograd.grad(out, (Q, K, V), g, retain_graph=True)


def _torch_limits(torch, Q, K, mask, mask_mode, before, after, offset):
    """The mask that PyTorch takes; none where it is causal from the first key."""
    if mask_mode or (after == 0 and offset == 0 and before > K.shape[2]) or min(before, after) > K.shape[2]:
        return mask if mask_mode == 2 else None if mask_mode == 0 else mask != 0
    i, j = (torch.arange(n, device=Q.device) for n in (Q.shape[2], K.shape[2]))
    at = i[:, None] + offset
    return (j >= at - before) & (j <= at + after)


def _torch_grouped(torch, Q, K, V, mask, mask_mode, before, after, offset, scale):
    """The mask is made once; heads of keys are repeated where a kernel of PyTorch does not take groups."""
    allowed = _torch_limits(torch, Q, K, mask, mask_mode, before, after, offset)
    how = {"attn_mask": allowed, "is_causal": allowed is None and after == 0, "scale": scale}
    group = Q.shape[1] > K.shape[1]
    return lambda: torch.nn.functional.scaled_dot_product_attention(Q, K, V, **how, enable_gqa=group)


def _torch_grouped_vjp(torch, Q, K, V, mask, g, mask_mode, before, after, offset, scale):
    Q, K, V = (x.detach().requires_grad_() for x in (Q, K, V))
    out = _torch_grouped(torch, Q, K, V, mask, mask_mode, before, after, offset, scale)()
    return lambda: torch.autograd.grad(out, (Q, K, V), g, retain_graph=True)


def _grouped(batch, heads, kv_heads, queries, keys, d, before=UNLIMITED, after=UNLIMITED, offset=0):
    return {"batch": batch, "heads": heads, "kv_heads": kv_heads, "queries": queries, "keys": keys, "d": d, "width": d,
            "mask_mode": 0, "before": before, "after": after, "offset": offset, "scale": d**-0.5}  # fmt: skip


def _packed(batch, heads, n, d, **limits):
    """Self-attention of heads in a projection (batch, n, 3, heads, d), as models have them."""
    row = 3 * heads * d
    size = batch * n * row - 2 * heads * d
    axes = {"batch": n * row, "head": d, "row": row}
    return {**_grouped(batch, heads, heads, n, n, d, **limits), **{f"{p}_{axis}": s for p in "qkv" for axis, s in axes.items()},
            **dict.fromkeys(("q_size", "k_size", "v_size"), size), "by_rows": 1}  # fmt: skip


def _packed_gradients(batch, heads, n, d, **limits):
    """With the result and its cotangent as the result lies."""
    axes = {"batch": n * heads * d, "head": d, "row": heads * d}
    return {**_packed(batch, heads, n, d, **limits), **{f"{p}_{axis}": s for p in "yg" for axis, s in axes.items()},
            "y_size": batch * n * heads * d, "g_size": batch * n * heads * d, "by_rows": 7}  # fmt: skip


PACKED = [(32, 12, 197, 64), (8, 16, 512, 64)]


def _views(torch, names, arrays, values):
    """Arrays as a model sees them: (batch, heads, rows, width)."""
    return [torch.as_strided(x, [values[n] for n in ("batch", *STRIDED[name])],
            [*(values[f"{name}_{axis}"] for axis in ("batch", "head", "row")), 1])
            for name, x in zip(names, arrays, strict=True)]  # fmt: skip


def _limits(torch, q, k, mask, values):
    """The mask and the further arguments of PyTorch's call."""
    if mask is not None and values["mask_mode"] == 1:
        mask = mask != 0
    is_causal = mask is None and values["after"] == 0
    return {"attn_mask": mask, "is_causal": is_causal, "enable_gqa": q.shape[1] > k.shape[1]}


def _torch_strided(torch, Q, K, V, mask, scale, **values):
    q, k, v = _views(torch, "qkv", (Q, K, V), values)
    how = _limits(torch, q, k, mask, values)
    return lambda: torch.nn.functional.scaled_dot_product_attention(q, k, v, scale=scale, **how)


def _torch_strided_gradients(torch, Q, K, V, mask, g, scale, **values):
    q, k, v, g = _views(torch, "qkvg", (Q, K, V, g), values)
    q, k, v = (x.detach().requires_grad_() for x in (q, k, v))
    out = torch.nn.functional.scaled_dot_product_attention(q, k, v, scale=scale, **_limits(torch, q, k, mask, values))
    return lambda: torch.autograd.grad(out, (q, k, v), g, retain_graph=True)


def _torch_angles(torch, x, base, start):
    n, d = x.shape[1:]
    position, pair = (torch.arange(k, dtype=torch.float64, device=x.device) for k in (n, (d + 1) // 2))
    return torch.outer(start + position, base ** (-2 * pair / d))


def _torch_rotary(torch, x, base, start, halves, sign=1):
    """Pairs of columns times tables of cosines and sines, which a model makes once."""
    angle = _torch_angles(torch, x, base, start)
    c, s, m = angle.cos().float(), sign * angle.sin().float(), x.shape[2] // 2
    if halves:
        return lambda: torch.cat((x[..., :m] * c - x[..., m:] * s, x[..., :m] * s + x[..., m:] * c), 2)
    return lambda: torch.stack((x[..., ::2] * c - x[..., 1::2] * s, x[..., ::2] * s + x[..., 1::2] * c), 3).flatten(2)


def _torch_sinusoidal(torch, x, base, start):
    """A sum with the table, which a model makes once."""
    angle = _torch_angles(torch, x, base, start)
    table = torch.stack((angle.sin(), angle.cos()), 2).flatten(1)[:, : x.shape[2]].float()
    return lambda: x + table


POSITION_BENCH = [{"batch": 64, "n": 2048, "d": 64}, {"batch": 32, "n": 4096, "d": 128}]

BENCHMARKS = {
    "flash_attention": Benchmark(sizes=[
            {"batch": 8, "n": 512, "d": 64, "mask_mode": 0, "scale": 0.125},
            {"batch": 64, "n": 2048, "d": 64, "mask_mode": 0, "scale": 0.125},
            {"batch": 64, "n": 2048, "d": 64, "mask_mode": 3, "scale": 0.125},
            {"batch": 32, "n": 4096, "d": 128, "mask_mode": 0, "scale": 128**-0.5},
            {"batch": 16, "n": 8192, "d": 64, "mask_mode": 0, "scale": 0.125},
        ], flops=lambda batch, n, d, mask_mode: (2.0 if mask_mode == 3 else 4.0) * batch * n * n * d,
        torch=_torch_attention, torch_vjp=_torch_attention_vjp),
    "grouped_attention": Benchmark(sizes=[  # a block of a model, a window, queries of another sequence, one new token
            _grouped(2, 32, 8, 2048, 2048, 128, after=0), _grouped(4, 16, 16, 4096, 4096, 64, before=511, after=0),
            _grouped(8, 16, 16, 512, 2048, 64), _grouped(16, 32, 8, 1, 4096, 128),
        ], flops=lambda batch, heads, queries, keys, d, width, before, after: 2.0 * batch * heads * queries * (d + width)
            * (keys if after else min(before, keys / 2)),
        torch_bytes=lambda batch, heads, queries, keys: 4.0 * batch * heads * queries * keys,  # all scores, those masked too
        torch=_torch_grouped, torch_vjp=_torch_grouped_vjp),
    "attention_strided": Benchmark(sizes=[_packed(*size) for size in PACKED], torch=_torch_strided,
        flops=lambda batch, heads, queries, keys, d, width: 2.0 * batch * heads * queries * keys * (d + width)),
    "attention_strided_gradients": Benchmark(sizes=[_packed_gradients(*size) for size in PACKED], torch=_torch_strided_gradients,
        flops=lambda batch, heads, queries, keys, d, width: 5.0 * batch * heads * queries * keys * (d + width)),
    "rotary": Benchmark(sizes=[{**size, "halves": 1} for size in POSITION_BENCH], torch=_torch_rotary,
        torch_vjp=lambda torch, g, base, start, halves: _torch_rotary(torch, g, base, start, halves, -1)),
    "sinusoidal": Benchmark(sizes=POSITION_BENCH, torch=_torch_sinusoidal),
}  # fmt: skip
