"""Sums of float64 and what is made of them, composed of operators that IEEE 754 determines.

The second half of an axis is added to the first until one element is left, so the order is a function of the length alone."""

from __future__ import annotations

import math
from typing import Any

import torch

from tlrt.torch.routes.base import DOUBLES, aten
from tlrt.torch.routes.double import BLOCK, INFINITY, exp, log, number, power_by_number, rsqrt, sqrt


def total(x: Any) -> Any:
    """The sum along the first axis, which it overwrites."""
    while len(x) > 1:
        half = (len(x) + 1) // 2
        x[: len(x) - half].add_(x[half:])
        x = x[:half]
    return x[0] if len(x) else x.sum(0)


def _axes(x: Any, dim: Any) -> list[int]:
    given = [dim] if isinstance(dim, int) else list(dim or [])
    if given:
        x.new_empty([0] * max(x.dim(), 1)).sum(given)  # what PyTorch refuses
    return sorted(d % x.dim() for d in given or range(x.dim())) if x.dim() else []


def sums(x: Any, dim: Any = None, keepdim: bool = False, *, dtype: Any = None) -> Any:
    axes = _axes(x, dim)
    kept = [n for d, n in enumerate(x.shape) if d not in axes]
    y = x.movedim(axes, list(range(len(axes)))).reshape(_count(x, axes), *kept)
    half = (len(y) + 1) // 2
    first = y[:half].clone(memory_format=torch.contiguous_format)
    first[: len(y) - half].add_(y[half:])
    y = total(first).clone()  # without the memory of the others
    return y.reshape([1 if d in axes else n for d, n in enumerate(x.shape)]) if keepdim else y


def _count(x: Any, axes: list[int]) -> int:
    return math.prod(x.shape[d] for d in axes)


def mean(x: Any, dim: Any = None, keepdim: bool = False, *, dtype: Any = None) -> Any:
    axes = _axes(x, dim)
    return sums(x, axes, keepdim) / number(_count(x, axes), x)


def var_mean(x: Any, dim: Any = None, *, correction: Any = None, keepdim: bool = False) -> Any:
    axes = _axes(x, dim)
    centre = mean(x, axes, True)
    d = x - centre
    count = _count(x, axes) - (1.0 if correction is None else correction)
    variance = sums(d * d, axes, keepdim) / number(max(count, 0.0), x)
    return variance, centre if keepdim else centre.reshape(variance.shape)


def std_mean(x: Any, dim: Any = None, **how: Any) -> Any:
    variance, centre = var_mean(x, dim, **how)
    return sqrt(variance), centre


def vector_norm(x: Any, ord: float = 2, dim: Any = None, keepdim: bool = False, *, dtype: Any = None) -> Any:
    size = x.abs()
    if math.isinf(ord):
        return (size.amax if ord > 0 else size.amin)(_axes(x, dim), keepdim)
    if ord == 0:
        return sums((x != 0).to(torch.float64), dim, keepdim)
    if ord == 1:
        return sums(size, dim, keepdim)
    return power_by_number(sums(power_by_number(size, ord), dim, keepdim), 1 / ord)


def layer_norm(x: Any, shape: Any, weight: Any, bias: Any, eps: float) -> Any:
    axes = list(range(x.dim() - len(shape), x.dim()))
    variance, centre = var_mean(x, axes, correction=0, keepdim=True)
    rate = rsqrt(variance + eps)
    y = (x - centre) * rate
    y = y if weight is None else y * weight
    return (y if bias is None else y + bias).contiguous(), centre, rate


def layer_norm_backward(g: Any, x: Any, shape: Any, centre: Any, rate: Any, weight: Any, bias: Any, mask: Any) -> Any:
    axes = list(range(x.dim() - len(shape), x.dim()))
    y = (x - centre) * rate
    inner = g if weight is None else g * weight
    gx = rate * (inner - mean(inner, axes, True) - y * mean(inner * y, axes, True))
    lead = list(range(axes[0]))
    parts = (gx, g * y, g if lead else g.clone())  # the operand itself has a history that PyTorch would write over
    return tuple(
        None if not wanted else part.contiguous() if part is gx or not lead else sums(part, lead)
        for part, wanted in zip(parts, mask, strict=True)
    )


def cumsum(x: Any, dim: int, *, dtype: Any = None) -> Any:
    """Each element with all before it, as many rounds as the length has bits."""
    y, step = x.clone(), 1
    while x.dim() and step < x.shape[dim]:
        rest = x.shape[dim] - step
        y = torch.cat([y.narrow(dim, 0, step), y.narrow(dim, step, rest) + y.narrow(dim, 0, rest)], dim)
        step *= 2
    return y.contiguous()


def logsumexp(x: Any, dim: Any, keepdim: bool = False) -> Any:
    axes = _axes(x, dim)
    if not _count(x, axes):
        return log(sums(x, axes, keepdim))
    most = x.amax(axes, True)
    most = most.masked_fill(most.abs() == INFINITY, 0.0)
    y = log(sums(exp(x - most), axes, True)) + most
    return y if keepdim else y.reshape([n for d, n in enumerate(x.shape) if d not in axes])


def softmax(x: Any, dim: int, half_to_float: bool) -> Any:
    if not x.numel():
        return x.clone()
    e = exp(x - x.amax(dim, True))
    return (e / sums(e, dim, True)).contiguous()


def safe_softmax(x: Any, dim: int, dtype: Any = None) -> Any:
    """Zeros where a row is -inf alone."""
    return softmax(x, dim, False).masked_fill((x == -INFINITY).all(dim, True), 0.0)


def log_softmax(x: Any, dim: int, half_to_float: bool) -> Any:
    if not x.numel():
        return x.clone()
    rest = x - x.amax(dim, True)
    return (rest - log(sums(exp(rest), dim, True))).contiguous()


def bmm(a: Any, b: Any) -> Any:
    if a.dim() != 3 or b.dim() != 3 or a.shape[0] != b.shape[0] or a.shape[2] != b.shape[1]:
        raise RuntimeError(f"batches of matrices of {list(a.shape)} and {list(b.shape)} have no product")
    batch, m, k = a.shape
    n = b.shape[2]
    y = a.new_zeros(batch, m, n)
    columns = min(n, max(1, BLOCK // max(k, 1)))
    rows = min(m, max(1, BLOCK // max(k * columns, 1)))
    samples = min(batch, max(1, BLOCK // max(k * columns * rows, 1)))
    left, right = a.permute(2, 0, 1).contiguous().unsqueeze(3), b.permute(1, 0, 2).contiguous().unsqueeze(2)
    for s in range(0, batch if y.numel() and k else 0, samples):
        for i in range(0, m, rows):
            for j in range(0, n, columns):
                part = left[:, s : s + samples, i : i + rows] * right[:, s : s + samples, :, j : j + columns]
                y[s : s + samples, i : i + rows, j : j + columns] = total(part)
    return y


def mm(a: Any, b: Any) -> Any:
    if a.dim() != 2 or b.dim() != 2 or a.shape[1] != b.shape[0]:
        raise RuntimeError(f"mat1 and mat2 shapes cannot be multiplied ({list(a.shape)} and {list(b.shape)})")
    return bmm(a[None], b[None])[0]


def mv(a: Any, x: Any) -> Any:
    return mm(a, x[:, None])[:, 0]


def dot(x: Any, y: Any) -> Any:
    return mm(x[None], y[:, None]).reshape(())


def _added(x: Any, y: Any, beta: float, alpha: float) -> Any:
    """beta·x + alpha·y, each operation rounded; a factor of 0 leaves its term out."""
    x.expand(y.shape)
    return y * alpha if beta == 0 else x * beta + y * alpha


DOUBLES.update({
    aten.sum.default: sums, aten.sum.dim_IntList: sums, aten.mean.default: mean, aten.mean.dim: mean,
    aten.var.correction: lambda *x, **how: var_mean(*x, **how)[0], aten.var_mean.correction: var_mean,
    aten.std.correction: lambda *x, **how: std_mean(*x, **how)[0], aten.std_mean.correction: std_mean,
    aten.linalg_vector_norm.default: vector_norm, aten.cumsum.default: cumsum, aten.logsumexp.default: logsumexp,
    aten._softmax.default: softmax, aten._safe_softmax.default: safe_softmax, aten._log_softmax.default: log_softmax,
    aten._softmax_backward_data.default: lambda g, y, dim, _: (g * y - y * sums(g * y, dim, True)).contiguous(),
    aten._log_softmax_backward_data.default: lambda g, y, dim, _: (g - exp(y) * sums(g, dim, True)).contiguous(),
    aten.native_layer_norm.default: layer_norm, aten.native_layer_norm_backward.default: layer_norm_backward,
    aten.mm.default: mm, aten.bmm.default: bmm, aten.mv.default: mv,
    aten.dot.default: dot, aten.vdot.default: dot,
    aten.addmm.default: lambda x, a, b, beta=1, alpha=1: _added(x, mm(a, b), beta, alpha),
    aten.baddbmm.default: lambda x, a, b, beta=1, alpha=1: _added(x, bmm(a, b), beta, alpha),
    aten.addmv.default: lambda x, a, b, beta=1, alpha=1: _added(x, mv(a, b), beta, alpha),
})  # fmt: skip
