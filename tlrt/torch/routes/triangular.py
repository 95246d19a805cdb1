"""Triangular systems of equations, block of rows by block of rows, from products with the inverses of the diagonal's blocks."""

from __future__ import annotations

from typing import Any

import torch

from tlrt.torch.routes.base import aten, route_of_matrices

#: rows of a block, a power of two
ROWS = 16


@route_of_matrices(aten.linalg_solve_triangular.default)
def solve_triangular(a: Any, b: Any, *, upper: bool, left: bool = True, unitriangular: bool = False) -> Any:
    if not left:
        return solve_triangular(a.mT, b.mT, upper=not upper, unitriangular=unitriangular).contiguous().mT
    n = a.shape[-1]
    if a.dim() < 2 or b.dim() < 2 or a.shape[-2] != n or b.shape[-2] != n or not a.numel() or not b.numel():
        raise NotImplementedError("no triangular system")
    if upper:
        turned = solve_triangular(a.flip(-2, -1), b.flip(-2), upper=False, unitriangular=unitriangular)
        return turned.mT.flip(-1).mT
    lead = torch.broadcast_shapes(a.shape[:-2], b.shape[:-2])
    inverses = _inverses(a, unitriangular)
    a, b, inverses = (
        t.expand(*lead, *t.shape[-d:]).reshape(-1, *t.shape[-d:]) for t, d in ((a, 2), (b, 2), (inverses, 3))
    )
    solved = list[Any]()
    for block, start in enumerate(range(0, n, ROWS)):
        end = min(start + ROWS, n)
        rows = b[:, start:end]
        if solved:
            rows = rows - torch.bmm(a[:, start:end, :start], torch.cat(solved, 1))
        solved.append(torch.bmm(inverses[:, block, : end - start, : end - start], rows))
    columns = torch.cat([x.mT for x in solved], -1)  # side by side, as PyTorch has them
    return columns.view(*lead, *columns.shape[1:]).mT


def _inverses(a: Any, unitriangular: bool) -> Any:
    """Of the blocks on the diagonal, (..., blocks, ROWS, ROWS), where all above it are 0: from those of blocks half as long."""
    gap = -a.shape[-1] % ROWS
    blocks = torch.nn.functional.pad(a, (0, gap, 0, gap)).unflatten(-1, (-1, ROWS)).unflatten(-3, (-1, ROWS))
    blocks = blocks.diagonal(0, -4, -2).movedim(-1, -3)
    diagonal = blocks.diagonal(0, -2, -1)
    found = torch.diag_embed(torch.ones_like(diagonal) if unitriangular else diagonal.reciprocal())
    half = 1
    while half < ROWS:
        given, known = (
            x.unflatten(-1, (-1, 2 * half)).unflatten(-3, (-1, 2 * half)).diagonal(0, -4, -2).movedim(-1, -3)
            for x in (blocks, found)
        )
        known[..., half:, :half] = -(known[..., half:, half:] @ given[..., half:, :half] @ known[..., :half, :half])
        half *= 2
    return found
