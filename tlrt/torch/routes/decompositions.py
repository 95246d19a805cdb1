"""Decompositions of matrices: column by column, each from products with those before it."""

from __future__ import annotations

from typing import Any

import torch

from tlrt.torch.routes.base import aten, route_of_matrices


@route_of_matrices(aten.linalg_cholesky_ex.default)
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
    return by_columns(factor.mT if upper else factor), info


@route_of_matrices(aten.geqrf.default)
def reflections(a: Any) -> Any:
    """Householder's I - tau·v·vᵀ below and R on and above the diagonal, signed as in LAPACK: diagonal elements of R and of A
    differ in sign."""
    if a.dim() < 2 or not a.numel():
        raise NotImplementedError("no matrix")
    m, n = a.shape[-2:]
    r, taus = a.clone(), a.new_zeros(*a.shape[:-2], min(m, n))
    for j in range(min(m - 1, n)):
        x = r[..., j:, j]
        size = torch.linalg.vector_norm(x, dim=-1, keepdim=True)
        changes = (x[..., 1:] != 0).any(-1, keepdim=True)
        diagonal = torch.where(x[..., :1] > 0, -size, size)
        v = torch.cat([torch.ones_like(size), x[..., 1:] / torch.where(changes, x[..., :1] - diagonal, 1.0)], -1)
        tau = torch.where(changes, (diagonal - x[..., :1]) / torch.where(changes, diagonal, 1.0), 0.0)
        r[..., j:, j:] = _reflected(r[..., j:, j:], v[..., None], tau[..., None])
        r[..., j + 1 :, j] = v[..., 1:]
        taus[..., j : j + 1] = tau
    return by_columns(r), taus


@route_of_matrices(aten.linalg_householder_product.default)
def product_of_reflections(packed: Any, taus: Any) -> Any:
    m, n = packed.shape[-2:]
    if packed.dim() < 2 or not packed.numel() or n > m:
        raise NotImplementedError("no reflections")
    q = torch.eye(m, n, dtype=packed.dtype, device=packed.device).expand(packed.shape).clone()
    for j in reversed(range(taus.shape[-1])):
        v = torch.cat([torch.ones_like(packed[..., :1, j]), packed[..., j + 1 :, j]], -1)
        q[..., j:, :] = _reflected(q[..., j:, :], v[..., None], taus[..., j, None, None])
    return by_columns(q)


@route_of_matrices(aten.linalg_qr.default)
def qr(a: Any, mode: str = "reduced") -> Any:
    if mode not in ("reduced", "complete", "r"):
        raise NotImplementedError("another mode")
    packed, taus = reflections(a)
    m, n = a.shape[-2:]
    k = m if mode == "complete" else min(m, n)
    r = by_columns(packed[..., :k, :].triu())
    if mode == "r":
        return a.new_empty(0), r
    columns = torch.nn.functional.pad(packed, (0, max(0, k - n)))[..., :k]
    return product_of_reflections(columns, taus), r


@route_of_matrices(aten.linalg_lstsq.default)
def least_squares(a: Any, b: Any, rcond: float | None = None, *, driver: str | None = None) -> Any:
    """By a QR decomposition. The driver "gels" expects full rank. The other drivers determine the rank, so a matrix that may have
    less is left to PyTorch."""
    if a.dim() < 2 or b.dim() < 2 or a.shape[:-1] != b.shape[:-1] or not a.numel() or not b.numel():
        raise NotImplementedError("no system")
    m, n = a.shape[-2:]
    q, r = qr(a if m >= n else a.mT)
    given = driver or ("gelsy" if a.device.type == "cpu" else "gels")
    if given != "gels":
        inverse = torch.linalg.solve_triangular(r, torch.eye(min(m, n), dtype=a.dtype, device=a.device), upper=True)
        condition = torch.linalg.matrix_norm(r, 1) * torch.linalg.matrix_norm(inverse, 1)
        if not bool((condition * max(m, n) * max(rcond or 0.0, torch.finfo(a.dtype).eps) < 0.1).all()):
            raise NotImplementedError("a matrix that may not have full rank")
    if m >= n:
        x = torch.linalg.solve_triangular(r, q.mT @ b, upper=True)
    else:
        x = q @ torch.linalg.solve_triangular(r.mT, b, upper=False)
    none = a.new_empty(0)
    x = by_columns(torch.nn.functional.pad(x, (0, 0, 0, max(m - n, 0))))[..., :n, :]  # PyTorch's lies where b was
    residuals = (b - a @ x).square().sum(-2) if m > n and given != "gelsy" else none
    rank = none.to(torch.int64) if given == "gels" else torch.full(a.shape[:-2], min(m, n), device=a.device)
    return x, residuals, rank, torch.linalg.svdvals(a) if given in ("gelsd", "gelss") else none


@route_of_matrices(aten.linalg_matrix_exp.default)
def matrix_exp(a: Any) -> Any:
    """By Taylor's series for A / 2^n, which has a norm of at most 2, and n squares."""
    terms = 16 if a.dtype == torch.float32 else 28
    if a.dim() < 2 or a.shape[-1] != a.shape[-2] or not a.numel():
        raise NotImplementedError("no square matrix")
    n = (torch.frexp(a.abs().sum(-2).amax(-1))[1] - 1).clamp(0, 1024)[..., None, None]
    small, one = torch.ldexp(a, -n), torch.eye(a.shape[-1], dtype=a.dtype, device=a.device)
    y = one.expand(a.shape)
    for k in range(terms, 0, -1):
        y = small @ y / k + one
    for k in range(int(n.max())):
        y = torch.where(k < n, y @ y, y)
    return y


def _reflected(x: Any, v: Any, tau: Any) -> Any:
    return x - (tau * v) @ (v.mT @ x)


def by_columns(x: Any) -> Any:
    """Matrices whose columns lie side by side, as LAPACK has them."""
    return x.mT.contiguous().mT
