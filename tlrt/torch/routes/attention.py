"""Attention, as one operation."""

from __future__ import annotations

import math
from typing import Any

import torch

from tlrt.torch import calls
from tlrt.torch.routes.base import run, with_defaults
from tlspec import registry


class Attention(torch.autograd.Function):  # type: ignore[misc]
    """Scaled dot-product attention, without an array of queries by keys."""

    @staticmethod
    def forward(ctx: Any, q: Any, k: Any, v: Any, mask: Any, values: dict[str, Any]) -> Any:
        y = run("grouped_attention", q, k, v, mask, **values)
        ctx.save_for_backward(q, k, v, mask, y)
        ctx.values = values
        return y

    @staticmethod
    def backward(ctx: Any, g: Any) -> Any:
        q, k, v, mask, y = ctx.saved_tensors
        row = registry.get("grouped_attention")
        named = {"Q": q, "K": k, "V": v, "mask": mask, "out": y, "g": g}
        known = {n: x for n, x in named.items() if x is not None}
        return (
            *calls.backward(row, known, with_defaults(row.vjp_signature, ctx.values), [True] * 3, "reproducible"),
            None,
            None,
        )


def attention(
    q: Any, k: Any, v: Any, attn_mask: Any = None, dropout_p: float = 0.0, is_causal: bool = False, *, scale: float | None = None,
    enable_gqa: bool = False,
) -> Any:  # fmt: skip
    """torch.nn.functional.scaled_dot_product_attention, or None where it is another case than the kernel's."""
    if dropout_p or q.dim() != 4 or any(x.dtype != torch.float32 for x in (q, k, v)) or q.shape[0] != k.shape[0]:
        return None
    if not enable_gqa and q.shape[1] != k.shape[1]:
        return None
    values: dict[str, Any] = {"scale": 1 / math.sqrt(q.shape[3]) if scale is None else scale, "mask_mode": 0}
    if is_causal:
        values["after"] = 0
    if attn_mask is not None:
        if attn_mask.requires_grad or attn_mask.dim() > 4:
            return None
        mask = attn_mask.view(*[1] * (4 - attn_mask.dim()), *attn_mask.shape)
        if mask.shape[3] != k.shape[2]:
            return None
        values["mask_mode"] = 1 if mask.dtype == torch.bool else 2
        values |= dict(zip(("mask_batch", "mask_heads", "mask_queries"), mask.shape[:3], strict=True))
        attn_mask = mask.to(torch.float32)
    return Attention.apply(q, k, v, attn_mask, values)
