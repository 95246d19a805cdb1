"""LU decompositions with row pivots, and what is made of them: determinants, solutions and inverses."""

from __future__ import annotations

from functools import cache
from typing import Any

import torch

from tlrt.torch.routes.base import aten, original, route_of_matrices
from tlrt.torch.routes.decompositions import by_columns


@route_of_matrices(aten.linalg_lu_factor_ex.default)
def lu_factor(a: Any, *, pivot: bool = True, check_errors: bool = False) -> Any:
    """Column by column, and each pivot's row: products with those before it, and a quotient."""
    if a.dim() < 2 or not a.numel() or not pivot:
        raise NotImplementedError("no matrix, or one without pivots")
    lu, pivots, info = a.clone(), list[Any](), a.new_zeros(a.shape[:-2], dtype=torch.int32)
    for j in range(min(a.shape[-2:])):
        if j:
            lu[..., j:, j] -= (lu[..., j:, :j] @ lu[..., :j, j, None]).squeeze(-1)
        place = lu[..., j:, j].abs().argmax(-1, keepdim=True) + j
        rows = place[..., None].expand(*place.shape, lu.shape[-1])
        chosen = lu.gather(-2, rows)
        lu.scatter_(-2, rows, lu[..., j : j + 1, :].clone())
        lu[..., j : j + 1, :] = chosen
        pivots.append(place + 1)
        diagonal = lu[..., j, j]
        info = torch.where((info == 0) & (diagonal == 0), j + 1, info)
        lu[..., j + 1 :, j] /= torch.where(diagonal == 0, 1.0, diagonal)[..., None]
        if j:
            lu[..., j, j + 1 :] -= (lu[..., j : j + 1, :j] @ lu[..., :j, j + 1 :]).squeeze(-2)
    if check_errors and bool((info != 0).any()):
        raise NotImplementedError("PyTorch has the error")
    return by_columns(lu), torch.cat(pivots, -1).to(torch.int32), info


@route_of_matrices(aten.linalg_lu.default)
def lu(a: Any, *, pivot: bool = True) -> Any:
    return torch.lu_unpack(*lu_factor(a, pivot=pivot)[:2])


@route_of_matrices(aten.linalg_lu_solve.default)
def lu_solve(factors: Any, pivots: Any, b: Any, *, left: bool = True, adjoint: bool = False) -> Any:
    if not left:
        return lu_solve(factors, pivots, b.mT, adjoint=not adjoint).mT
    if not factors.numel() or not b.numel() or b.shape[-2] != factors.shape[-1]:
        raise NotImplementedError("no system")
    permutation = torch.lu_unpack(factors, pivots, unpack_data=False)[0]
    if adjoint:
        y = torch.linalg.solve_triangular(factors.mT, b, upper=False)
        y = torch.linalg.solve_triangular(factors.mT, y, upper=True, unitriangular=True)
        return by_columns(_chosen(y, permutation.argmax(-1)))
    y = torch.linalg.solve_triangular(factors, _chosen(b, permutation.argmax(-2)), upper=False, unitriangular=True)
    return torch.linalg.solve_triangular(factors, y, upper=True)


def _chosen(x: Any, rows: Any) -> Any:
    """Rows of matrices."""
    lead = torch.broadcast_shapes(x.shape[:-2], rows.shape[:-1])
    x = x.expand(*lead, *x.shape[-2:])
    return x.gather(-2, rows[..., None].expand(*lead, -1, x.shape[-1]))


@cache
def _takes_transpose(operator: Any, device: str) -> bool:
    """Whether PyTorch factors the transpose of a matrix whose rows lie side by side. Its gradients read the factors that way."""
    a = torch.tensor([[1.0, 2.0], [7.0, 4.0]], device=device)
    found = original(operator, (a, a) if operator is aten._linalg_solve_ex.default else (a,), {})
    return float(next(x for x in found if x is not found[0] and x.shape == a.shape)[0, 0]) == 2.0


def _check_square(a: Any) -> None:
    if a.dim() < 2 or a.shape[-1] != a.shape[-2]:
        raise NotImplementedError("no square matrix")


def _factored(operator: Any, a: Any, check_errors: bool = False) -> Any:
    """The factors of a matrix or of its transpose, and which."""
    _check_square(a)
    turned = a.is_contiguous() and _takes_transpose(operator, str(a.device))
    return *lu_factor(a.mT if turned else a, check_errors=check_errors), turned


@route_of_matrices(aten._linalg_solve_ex.default)
def solve(a: Any, b: Any, *, left: bool = True, check_errors: bool = False) -> Any:
    factors, pivots, info, turned = _factored(aten._linalg_solve_ex.default, a, check_errors)
    is_vector = b.dim() == 1 or (a.dim() - 1 == b.dim() and b.shape == a.shape[:-1])
    x = lu_solve(factors, pivots, b[..., None] if is_vector else b, left=left or is_vector, adjoint=turned)
    if is_vector:
        x = by_columns(x.squeeze(-1)) if x.dim() > 2 else x.squeeze(-1)
    return x, factors, pivots, info


@route_of_matrices(aten.linalg_inv_ex.default)
def inverse(a: Any, *, check_errors: bool = False) -> Any:
    _check_square(a)
    factors, pivots, info = lu_factor(a, check_errors=check_errors)
    identity = torch.eye(a.shape[-1], dtype=a.dtype, device=a.device).expand(a.shape)
    return lu_solve(factors, pivots, identity), info


def _diagonal(operator: Any, a: Any) -> Any:
    """Factors of a matrix and pivots; the diagonal; -1 for an odd number of exchanged rows, and else 1."""
    factors, pivots, *_ = _factored(operator, a)
    exchanged = (pivots != torch.arange(1, pivots.shape[-1] + 1, device=a.device)).sum(-1)
    return factors, pivots, factors.diagonal(0, -2, -1), 1.0 - 2.0 * (exchanged % 2).to(a.dtype)


@route_of_matrices(aten._linalg_det.default)
def determinant(a: Any) -> Any:
    factors, pivots, diagonal, sign = _diagonal(aten._linalg_det.default, a)
    return diagonal.prod(-1) * sign, factors, pivots


@route_of_matrices(aten._linalg_slogdet.default)
def logarithm_of_determinant(a: Any) -> Any:
    factors, pivots, diagonal, sign = _diagonal(aten._linalg_slogdet.default, a)
    return diagonal.sign().prod(-1) * sign, diagonal.abs().log().sum(-1), factors, pivots


@route_of_matrices(aten._cholesky_solve_helper.default)
def cholesky_solve(b: Any, factor: Any, upper: bool) -> Any:
    lower = factor.mT if upper else factor
    y = torch.linalg.solve_triangular(lower, b, upper=False)
    return torch.linalg.solve_triangular(lower.mT, y, upper=True)


@route_of_matrices(aten.cholesky_inverse.default)
def cholesky_inverse(factor: Any, upper: bool = False) -> Any:
    _check_square(factor)
    return cholesky_solve(torch.eye(factor.shape[-1], dtype=factor.dtype, device=factor.device).expand(factor.shape),
                          factor, upper)  # fmt: skip
