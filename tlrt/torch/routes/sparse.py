"""Operators on sparse tensors: gathers of rows, products, and sums by place in the order of the list."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from tlrt.torch.routes.base import aten, route_of_sparse
from tlrt.torch.routes.scatters import add_along, positions

#: numbers of products that a step keeps at most
_AT_ONCE = 1 << 26


def _entries(x: Any) -> tuple[list[Any], Any]:
    """Where the entries are on each sparse axis, and their values."""
    if x.layout == torch.sparse_coo and x.sparse_dim():
        return list(x._indices()), x._values()
    if x.layout not in (torch.sparse_csr, torch.sparse_csc) or x.dim() != 2:
        raise NotImplementedError("blocks, batches of compressed rows, or a number")
    by_rows = x.layout == torch.sparse_csr
    ends, across = (x.crow_indices(), x.col_indices()) if by_rows else (x.ccol_indices(), x.row_indices())
    along = positions(ends.numel() - 1, x).repeat_interleave(ends.diff())
    return ([along, across.to(torch.int64)] if by_rows else [across.to(torch.int64), along]), x.values()


def _flat(indices: Sequence[Any], sizes: Sequence[int], like: Any) -> Any:
    """Each entry's number among the places of these axes, of one place where there are none."""
    flat = torch.zeros(len(like), dtype=torch.int64, device=like.device)
    for index, size in zip(indices, sizes, strict=True):
        flat = flat * size + index
    return flat


def _coo(indices: Sequence[Any], values: Any, shape: Sequence[int], coalesced: bool = False) -> Any:
    return torch.sparse_coo_tensor(
        torch.stack(list(indices)), values, tuple(shape), check_invariants=False, is_coalesced=coalesced
    )


@route_of_sparse(aten._coalesce.default)
def coalesce(x: Any) -> Any:
    indices, values = _entries(x)
    sizes = x.shape[: len(indices)]
    places, segment = torch.unique(_flat(indices, sizes, values), return_inverse=True)
    found = add_along(values, 0, segment, len(places))
    axes = []
    for size in reversed(sizes):
        axes.append(places % size)
        places = places // size
    return _coo(axes[::-1], found, x.shape, coalesced=True)


# ---- sums -----------------------------------------------------------------------------------------------------------------


def _coordinates(x: Any) -> Any:
    return x if x.layout == torch.sparse_coo else x.to_sparse()


def _add_to_dense(x: Any, y: Any, alpha: float) -> Any:
    y = _coordinates(y).coalesce()
    indices, values = _entries(y)
    axes = len(indices)
    places = _flat(indices, y.shape[:axes], values)
    # each place has one entry: no order is left
    return (
        x.clone(memory_format=torch.contiguous_format)
        .flatten(0, axes - 1)
        .index_add(0, places, values * alpha)
        .view(x.shape)
    )


@route_of_sparse(aten.add.Tensor)
def add(x: Any, y: Any, *, alpha: float = 1) -> Any:
    if x.shape != y.shape or not x.numel() or y.layout == torch.strided:
        raise NotImplementedError("shapes that differ, or a dense tensor behind a sparse one")
    if x.layout == torch.strided:
        return _add_to_dense(x, y, alpha)
    if x.layout != y.layout or x.layout not in (torch.sparse_coo, torch.sparse_csr) or x.dense_dim() != y.dense_dim():
        raise NotImplementedError("layouts that differ")
    (a, v), (b, w) = _entries(x), _entries(y)
    found = _coo([torch.cat(pair) for pair in zip(a, b, strict=True)], torch.cat([v, w * alpha]), x.shape)
    if x.layout == torch.sparse_csr:
        return found.coalesce().to_sparse_csr()
    return found.coalesce() if x.is_coalesced() and y.is_coalesced() else found


@route_of_sparse(aten.sub.Tensor)
def sub(x: Any, y: Any, *, alpha: float = 1) -> Any:
    return add(x, y, alpha=-alpha)


# ---- products -------------------------------------------------------------------------------------------------------------


def _matrix(x: Any) -> tuple[list[Any], Any]:
    indices, values = _entries(x)
    if len(indices) != 2 or values.dim() != 1:
        raise NotImplementedError("a sparse tensor that is no matrix of numbers")
    return indices, values


def _times(rows: Any, columns: Any, values: Any, count: int, dense: Any) -> Any:
    """The rows of a product: each the sum of an entry times a row of the dense matrix, in the order of the entries."""
    width = max(1, _AT_ONCE // max(1, len(values)))
    parts = [
        add_along(values[:, None] * part.index_select(0, columns), 0, rows, count) for part in dense.split(width, 1)
    ]
    return torch.cat(parts, 1)


def _product(a: Any, b: Any) -> Any:
    if (
        a.dim() != 2
        or b.dim() != 2
        or a.shape[1] != b.shape[0]
        or (a.layout == torch.strided) == (b.layout == torch.strided)
    ):
        raise NotImplementedError("matrices that do not fit, or two sparse ones")
    if a.layout == torch.strided:
        return _product(b.t(), a.t()).t().contiguous()
    (rows, columns), values = _matrix(a)
    return _times(rows, columns, values, a.shape[0], b)


def _scaled(x: Any, found: Any, beta: float, alpha: float) -> Any:
    found = found if alpha == 1 else found * alpha
    return found if beta == 0 else found + (x if beta == 1 else x * beta)


@route_of_sparse(aten.addmm.default)
def addmm(x: Any, a: Any, b: Any, *, beta: float = 1, alpha: float = 1) -> Any:
    if x.layout == a.layout == b.layout == torch.sparse_csr:
        found = product_of_two(a, b) * alpha
        return (found if beta == 0 else add(found, _coordinates(x), alpha=beta).coalesce()).to_sparse_csr()
    if x.layout != torch.strided:
        raise NotImplementedError("a sparse sum")
    return _scaled(x, _product(a, b), beta, alpha)


@route_of_sparse(aten.hspmm.default)
def product_of_rows(a: Any, b: Any) -> Any:
    (rows, columns), values = _matrix(a)
    if b.dim() != 2 or a.shape[1] != b.shape[0]:
        raise NotImplementedError("matrices that do not fit")
    places, segment = torch.unique(rows, return_inverse=True)
    return _coo([places], _times(segment, columns, values, len(places), b), (a.shape[0], b.shape[1]))


@route_of_sparse(aten.addmv.default)
def addmv(x: Any, a: Any, v: Any, *, beta: float = 1, alpha: float = 1) -> Any:
    return _scaled(x, _product(a, v[:, None])[:, 0], beta, alpha)


@route_of_sparse(aten.bmm.default)
def bmm(a: Any, b: Any) -> Any:
    indices, values = _entries(a)
    if len(indices) != 3 or values.dim() != 1 or b.layout != torch.strided or a.shape[::2] != b.shape[:2]:
        raise NotImplementedError("batches that do not fit")
    batch, rows, columns = indices
    found = _times(
        batch * a.shape[1] + rows, batch * a.shape[2] + columns, values, a.shape[0] * a.shape[1], b.flatten(0, 1)
    )
    return found.view(a.shape[0], a.shape[1], b.shape[2])


@route_of_sparse(aten._sparse_sparse_matmul.default)
def product_of_two(a: Any, b: Any) -> Any:
    a, b = _coordinates(a).coalesce(), _coordinates(b).coalesce()
    ((i, k), v), ((rows, columns), w) = _matrix(a), _matrix(b)
    lengths = torch.bincount(rows, minlength=b.shape[0])
    starts, counts = lengths.cumsum(0) - lengths, lengths[k]
    entry = positions(len(v), v).repeat_interleave(counts)
    step = positions(len(entry), v) - (counts.cumsum(0) - counts)[entry]
    other = starts[k][entry] + step
    return _coo([i[entry], columns[other]], v[entry] * w[other], (a.shape[0], b.shape[1])).coalesce()


@route_of_sparse(aten.sparse_sampled_addmm.default)
def sampled(x: Any, a: Any, b: Any, *, beta: float = 1, alpha: float = 1) -> Any:
    (rows, columns), values = _matrix(x)
    if x.layout != torch.sparse_csr or a.layout != torch.strided or b.layout != torch.strided:
        raise NotImplementedError("other layouts")
    found = torch.bmm(a[rows][:, None], b.t()[columns][:, :, None])[:, 0, 0]
    return torch.sparse_csr_tensor(
        x.crow_indices(), x.col_indices(), _scaled(values, found, beta, alpha), x.shape, check_invariants=False
    )


# ---- softmax over what is stored --------------------------------------------------------------------------------------------


class _Rows:
    """The entries of a sparse tensor, and which of them are along an axis of each other."""

    def __init__(self, x: Any, dim: int) -> None:
        if x.layout != torch.sparse_coo or not x.is_coalesced():
            raise NotImplementedError("other layouts")
        self.indices, self.values = _entries(x)
        dim %= x.dim()
        self.axis = dim - len(self.indices) + 1  # of the values, where it is one of theirs
        others = [n for n in range(len(self.indices)) if n != dim]
        flat = _flat([self.indices[n] for n in others], [x.shape[n] for n in others], self.values)
        self.places, self.row = torch.unique(flat, return_inverse=True)

    def sum(self, values: Any) -> Any:
        return (
            values.sum(self.axis, keepdim=True)
            if self.axis > 0
            else add_along(values, 0, self.row, len(self.places))[self.row]
        )

    def max(self) -> Any:
        if self.axis > 0:
            return self.values.amax(self.axis, keepdim=True)
        found = self.values.new_full((len(self.places), *self.values.shape[1:]), -torch.inf)
        return found.index_reduce(0, self.row, self.values, "amax")[self.row]


def _softmax(x: Any, dim: int, log: bool) -> Any:
    x = x.coalesce()
    if not x._nnz():
        raise NotImplementedError("nothing is stored")
    rows = _Rows(x, dim)
    less = rows.values - rows.max()
    powers = less.exp()
    found = less - rows.sum(powers).log() if log else powers / rows.sum(powers)
    return _coo(rows.indices, found, x.shape, coalesced=True)


@route_of_sparse(aten._sparse_softmax.default)
def softmax(x: Any, dim: int, half_to_float: bool) -> Any:
    return _softmax(x, dim, False)


@route_of_sparse(aten._sparse_log_softmax.default)
def log_softmax(x: Any, dim: int, half_to_float: bool) -> Any:
    return _softmax(x, dim, True)


@route_of_sparse(aten._sparse_softmax_backward_data.default)
def softmax_backward(g: Any, y: Any, dim: int, x: Any) -> Any:
    rows, g = _Rows(y, dim), g.coalesce().sparse_mask(y)._values()
    return _coo(rows.indices, rows.values * (g - rows.sum(g * rows.values)), y.shape, coalesced=True)


@route_of_sparse(aten._sparse_log_softmax_backward_data.default)
def log_softmax_backward(g: Any, y: Any, dim: int, x: Any) -> Any:
    rows, g = _Rows(y, dim), g.coalesce().sparse_mask(y)._values()
    return _coo(rows.indices, g - rows.values.exp() * rows.sum(g), y.shape, coalesced=True)
