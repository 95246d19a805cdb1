"""Singular values and symmetric eigenvalues by one-sided Jacobi rotations in float64.

Pairs of columns are turned until all are orthogonal (Golub and Van Loan, Matrix Computations, 8.6.3). A round turns disjoint
pairs, and every column meets every other one in a sweep. A matrix with orthogonal columns stays as it is, so a batch decides
nothing."""

from __future__ import annotations

from typing import Any

import torch

from tlrt.torch.routes.base import aten, outside, route_of_matrices
from tlrt.torch.routes.decompositions import by_columns, qr
from tlrt.torch.routes.double import rsqrt, sqrt
from tlrt.torch.routes.double_sums import total

#: columns beyond which PyTorch computes: rounds grow with them, and each is as much work as all columns have elements
COLUMNS = 256
#: sweeps after which PyTorch computes; 6 to 12 are usual
SWEEPS = 40
#: cosine of the angle between columns that count as orthogonal
_RIGHT = 2.0**-50
#: squares of the lengths of columns that count as zero beside elements of 1
_NOTHING = 2.0**-800


def _turned(x: Any, y: Any, m: int) -> Any:
    """Pairs of columns whose first m rows are orthogonal, and whether they were not."""
    u, v = x[:m], y[:m]
    a, b, c = total(torch.stack([u * u, v * v, u * v], 1))
    turns = (c.abs() > _RIGHT * sqrt(a) * sqrt(b)) & (torch.minimum(a, b) > _NOTHING)
    ratio = (b - a) / torch.where(turns, c + c, 1.0)
    tangent = (1.0 / (ratio.abs() + sqrt(1.0 + ratio * ratio))).copysign(ratio).masked_fill(~turns, 0.0)
    cosine = rsqrt(1.0 + tangent * tangent)
    sine = tangent * cosine
    return cosine * x - sine * y, sine * x + cosine * y, turns.any()


def _orthogonal(a: Any) -> tuple[Any, Any]:
    """A·V with orthogonal columns, and V; of matrices (m, batch, n)."""
    m, batch, n = a.shape
    half = (n + 1) // 2
    w = a.new_zeros(m + n, batch, 2 * half)
    w[:m, :, :n] = a
    w[m:, :, :n] = torch.eye(n, dtype=a.dtype, device=a.device)[:, None]
    x, y = w[..., :half], w[..., half:]
    for _ in range(SWEEPS):
        turned = torch.zeros((), dtype=torch.bool, device=a.device)
        for _ in range(2 * half - 1):
            x, y, now = _turned(x, y, m)
            turned = turned | now
            if half > 1:
                x, y = (
                    torch.cat([x[..., :1], y[..., :1], x[..., 1:-1]], -1),
                    torch.cat([y[..., 1:], x[..., -1:]], -1),
                )
        if not turned:
            w = torch.cat([x, y], -1)[..., :n] + 0.0  # without zeros of the other sign
            return w[:m], w[m:]
    raise NotImplementedError("columns that are not orthogonal yet")


def _decomposed(a: Any) -> tuple[Any, Any, Any]:
    """U, where columns of no length are 0, the singular values in descending order and V; of matrices (batch, m, n), m >= n."""
    scale = torch.ldexp(torch.ones_like(a[:, :1, :1]), -torch.frexp(a.abs().amax((1, 2), keepdim=True))[1])
    columns, v = _orthogonal((a * scale).movedim(1, 0))
    lengths, order = torch.sort(sqrt(total(columns * columns)), stable=True, dim=-1, descending=True)
    columns, v = (t.gather(-1, order.expand(t.shape)).movedim(0, 1) for t in (columns, v))
    u = columns / torch.where(lengths > 0, lengths, 1.0)[:, None]
    return u, lengths / scale[:, 0], v


def _flat(a: Any) -> Any:
    """Matrices (batch, m, n) of float64 that a sweep takes."""
    if a.dim() < 2 or not a.numel() or min(a.shape[-2:]) > COLUMNS or not bool(a.isfinite().all()):
        raise NotImplementedError("no finite matrix, or a large one")
    return a.reshape(-1, *a.shape[-2:]).to(torch.float64)


@route_of_matrices(aten._linalg_svd.default)
def svd(a: Any, full_matrices: bool = False, compute_uv: bool = True, *, driver: str | None = None) -> Any:
    if driver is not None and a.is_cpu:
        raise NotImplementedError("a driver, which PyTorch refuses on a CPU")
    is_wide = a.shape[-1] > a.shape[-2]
    with outside():
        flat = _flat(a)
        u, s, v = _decomposed(flat.mT if is_wide else flat)
    values = s.to(a.dtype).view(*a.shape[:-2], -1)
    if not compute_uv:
        return a.new_empty(0), values, a.new_empty(0)
    m, n = u.shape[-2:]
    if (full_matrices and m > n) or bool((s == 0).any()):
        rest = qr(u, "complete" if full_matrices else "reduced")[0]
        u = torch.cat([torch.where((u != 0).any(-2, keepdim=True), u, rest[..., :n]), rest[..., n:]], -1)
    left, right = (v, u.mT) if is_wide else (u, v.mT)
    left, right = (by_columns(t.to(a.dtype)).view(*a.shape[:-2], *t.shape[-2:]) for t in (left, right))
    return left, values, right


@route_of_matrices(aten._linalg_eigh.default)
def eigh(a: Any, UPLO: str = "L", compute_v: bool = True) -> Any:
    """From the singular values of A + c·I, whose eigenvalues are positive."""
    if a.dim() < 2 or a.shape[-1] != a.shape[-2] or UPLO.upper() not in ("L", "U"):
        raise NotImplementedError("no square matrix, or no triangle")
    with outside():
        flat = _flat(a.tril() if UPLO.upper() == "L" else a.mT.tril())
        flat = flat + flat.tril(-1).mT
        shift = total(flat.abs().movedim(1, 0)).amax(-1)[:, None]
        identity = torch.eye(a.shape[-1], dtype=torch.float64, device=a.device)
        _, s, v = _decomposed(flat + shift[..., None] * identity)
        values = (s - shift).flip(-1).to(a.dtype).view(a.shape[:-1])
        if not compute_v:
            return values, a.new_empty(0)
        return values, by_columns(v.flip(-1).to(a.dtype)).view(a.shape)
