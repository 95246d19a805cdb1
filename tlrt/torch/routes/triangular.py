"""Triangular systems of equations: row by row, each from a product with those before it."""

from __future__ import annotations

from typing import Any

import torch

from tlrt.torch.routes.base import aten, route


@route(aten.linalg_solve_triangular.default)
def solve_triangular(a: Any, b: Any, *, upper: bool, left: bool = True, unitriangular: bool = False) -> Any:
    if not left:
        return solve_triangular(a.mT, b.mT, upper=not upper, unitriangular=unitriangular).contiguous().mT
    n = a.shape[-1]
    if a.dim() < 2 or b.dim() < 2 or a.shape[-2] != n or b.shape[-2] != n or not a.numel() or not b.numel():
        raise NotImplementedError("no triangular system")
    lead = torch.broadcast_shapes(a.shape[:-2], b.shape[:-2])
    a, b = a.expand(*lead, n, n), b.expand(*lead, n, b.shape[-1])
    x = torch.empty_like(b.mT, memory_format=torch.contiguous_format).mT  # columns side by side, as PyTorch has them
    for i in reversed(range(n)) if upper else range(n):
        known = slice(i + 1, n) if upper else slice(0, i)
        row = b[..., i, :]
        if known.start < known.stop:
            row = row - (a[..., i : i + 1, known] @ x[..., known, :]).squeeze(-2)
        x[..., i, :] = row if unitriangular else row / a[..., i, i, None]
    return x
