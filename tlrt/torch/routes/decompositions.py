"""Decompositions of matrices: column by column, each from products with those before it."""

from __future__ import annotations

from typing import Any

import torch

from tlrt.torch.routes.base import aten, route


@route(aten.linalg_cholesky_ex.default)
def cholesky(a: Any, *, upper: bool = False, check_errors: bool = False) -> Any:
    n = a.shape[-1]
    if a.dim() < 2 or a.shape[-2] != n or not a.numel():
        raise NotImplementedError("no square matrix")
    given = a.mT if upper else a
    factor, info = torch.zeros_like(given), a.new_zeros(a.shape[:-2], dtype=torch.int32)
    for j in range(n):
        column = given[..., j:, j]
        if j:
            column = column - (factor[..., j:, :j] @ factor[..., j, :j, None]).squeeze(-1)
        pivot = column[..., :1]
        info = torch.where((info == 0) & ~(pivot[..., 0] > 0), j + 1, info)
        root = pivot.sqrt()
        factor[..., j:, j] = torch.cat([root, column[..., 1:] / root], -1)
    if check_errors and bool((info != 0).any()):
        raise torch.linalg.LinAlgError(
            f"linalg.cholesky: The factorization could not be completed because the input is not positive-definite "
            f"(the leading minor of order {int(info[info != 0].min())} is not positive-definite)."
        )
    return _by_columns(factor.mT if upper else factor), info


@route(aten.linalg_qr.default)
def qr(a: Any, mode: str = "reduced") -> Any:
    """By Householder's reflections I - tau·v·vᵀ, signed as in LAPACK: diagonal elements of R and of A differ in sign."""
    if a.dim() < 2 or not a.numel():
        raise NotImplementedError("no matrix")
    m, n = a.shape[-2:]
    r, reflections = a.clone(), []
    for j in range(min(m - 1, n)):
        x = r[..., j:, j]
        size = torch.linalg.vector_norm(x, dim=-1, keepdim=True)
        changes = (x[..., 1:] != 0).any(-1, keepdim=True)
        diagonal = torch.where(x[..., :1] > 0, -size, size)
        v = torch.cat([torch.ones_like(size), x[..., 1:] / torch.where(changes, x[..., :1] - diagonal, 1.0)], -1)
        tau = torch.where(changes, (diagonal - x[..., :1]) / torch.where(changes, diagonal, 1.0), 0.0)[..., None]
        reflections.append((v[..., None], tau))
        r[..., j:, j:] = _reflected(r[..., j:, j:], *reflections[-1])
        r[..., j + 1 :, j] = 0.0
    k = m if mode == "complete" else min(m, n)
    r = r[..., :k, :].triu()
    if mode == "r":
        return a.new_empty(0), _by_columns(r)
    q = torch.eye(m, k, dtype=a.dtype, device=a.device).expand(*a.shape[:-2], m, k).clone()
    for j, (v, tau) in reversed(list(enumerate(reflections))):
        q[..., j:, :] = _reflected(q[..., j:, :], v, tau)
    return _by_columns(q), _by_columns(r)


def _reflected(x: Any, v: Any, tau: Any) -> Any:
    return x - (tau * v) @ (v.mT @ x)


def _by_columns(x: Any) -> Any:
    return x.mT.contiguous().mT
