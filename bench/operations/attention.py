"""Sizes and baselines of the attention family."""

from bench.operations.table import Benchmark
from tlspec.ops.attention import FILL


def _torch_mask(torch, mask, mask_mode):
    if mask_mode == 1:
        return torch.where(mask == 0, FILL, 0.0)  # the nearest that the fused operation has
    return mask != 0 if mask_mode == 2 else None


def _torch_attention(torch, Q, K, V, mask, mask_mode, scale):
    attention = torch.nn.functional.scaled_dot_product_attention
    return attention(Q, K, V, attn_mask=_torch_mask(torch, mask, mask_mode), is_causal=mask_mode == 3, scale=scale)


def _torch_attention_vjp(torch, Q, K, V, mask, g, mask_mode, scale):
    Q, K, V = (x.detach().requires_grad_() for x in (Q, K, V))
    out = _torch_attention(torch, Q, K, V, mask, mask_mode, scale)
    return lambda: torch.autograd.grad(out, (Q, K, V), g, retain_graph=True)


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
    "rotary": Benchmark(sizes=[{**size, "halves": 1} for size in POSITION_BENCH], torch=_torch_rotary,
        torch_vjp=lambda torch, g, base, start, halves: _torch_rotary(torch, g, base, start, halves, -1)),
    "sinusoidal": Benchmark(sizes=POSITION_BENCH, torch=_torch_sinusoidal),
}  # fmt: skip
