"""Gathers and scatter-adds with indices from the host.

An index is below 2^32 and may lie outside the array: a gather then reads zeros, a scatter-add ignores it. Repeated
indices add up one after the other in the order of the index list, so every result has one value on every device: the one
that the references give in float32 (``np.add.at`` adds in the order of its indices).
"""

import numpy as np

from tlspec.bounds import moved, ordered
from tlspec.classes import Classes, boundary, tiles
from tlspec.laws import adjoint, linear
from tlspec.registry import check, op


def gathered(table, indices):
    """table[indices] along axis 0, zeros where an index is out of range."""
    indices = np.asarray(indices, dtype=np.int64)
    inside = indices < table.shape[0]
    out = np.zeros((indices.size, *table.shape[1:]), dtype=table.dtype)
    out[inside] = table[indices[inside]]
    return out


def scattered(base, values, indices):
    """A copy of base plus values[j] at indices[j] along axis 0, in the order of j and in their type; out-of-range indices
    are ignored."""
    indices = np.asarray(indices, dtype=np.int64)
    inside = indices < base.shape[0]
    out = base.copy()
    np.add.at(out, indices[inside], values[inside])
    return out


def hits(indices, length):
    """How often each of 0..length-1 occurs in indices."""
    indices = np.asarray(indices, dtype=np.int64)
    return np.bincount(indices[indices < length], minlength=length)


def draw_vec(d):
    """Dimensions and indices of a vector of any length; an empty one puts every index out of range."""
    n, k = d.dim(), d.dim()
    return {"n": n, "k": k, "indices": lambda n, k: d.indices(k, n, outside=True)}


def draw_rows(d):
    """The same for the rows of a matrix."""
    rows, cols, k = d.dim(), d.dim(), d.dim()
    return {"rows": rows, "cols": cols, "k": k, "indices": lambda rows, k: d.indices(k, rows, outside=True)}


def draw_row(d):
    """A matrix and one of its rows."""
    rows = d.integer(1, 67)
    return {"rows": rows, "cols": d.dim(), "i": d.integer(0, rows - 1)}


def _meets(test):
    """Whether indices meet a number of rows."""
    return lambda indices, n=None, rows=None: bool(test(indices, n if rows is None else rows))


INDICES: Classes = {
    "an index out of range": _meets(lambda indices, n: (indices >= n).any() and n > 0),
    "a repeated index": _meets(lambda indices, n: len(set(indices[indices < n])) < (indices < n).sum()),
    "the first and the last row": _meets(lambda indices, n: n > 1 and {0, n - 1} <= set(indices)),
    **tiles("indices", lambda k: k, boundary("index", "CHUNK")),
}
VECTOR = tiles("elements", lambda n: n, boundary("index", "BLOCK"))
MATRIX: Classes = {
    **tiles("elements", lambda rows, cols: rows * cols, boundary("index", "BLOCK")),
    **tiles("columns", lambda rows, cols: cols * (rows > 0), boundary("index", "BLOCK_COLUMNS")),
}


@op("vec[n], indices: u32[k] -> out[k]",
    classes={**INDICES, **VECTOR}, bound=moved(), draw=draw_vec, laws=[linear("vec"), adjoint("vec")],
    source="numpy.take; an index out of range reads 0")  # fmt: skip
def gather_vec(vec, indices):
    """Elements of a vector picked by host indices.

    out[j] = vec[indices[j]] if indices[j] < n, else 0

    Shapes: vec (n), indices (k) on the host, out (k).
    Special values: a copy, so NaN and -0 come through unchanged. k = 0 gives an empty result, n = 0 zeros.
    Errors: none beyond lengths; an index of n or more reads 0."""
    return gathered(vec, indices)


@gather_vec.vjp("indices, g -> gvec", bound=ordered(lambda indices, n: hits(indices, n)))
def gather_vec_vjp(indices, g, n):
    """gvec[i] = the sum of g[j] over the j with indices[j] = i, from +0 in the order of j; 0 where none is."""
    return scattered(np.zeros(n, g.dtype), g, indices)


@op("mat[rows, cols], indices: u32[k] -> out[k, cols]",
    classes={**INDICES, **MATRIX}, bound=moved(), draw=draw_rows, laws=[linear("mat"), adjoint("mat")],
    source="torch.nn.functional.embedding; an index out of range reads a zero row")  # fmt: skip
def gather_rows(mat, indices):
    """Rows of a matrix picked by host indices.

    out[j, c] = mat[indices[j], c] if indices[j] < rows, else 0

    Shapes: mat (rows, cols), indices (k) on the host, out (k, cols).
    Special values: a copy, so NaN and -0 come through unchanged. k = 0 or cols = 0 gives an empty result, rows = 0 zeros.
    Errors: none beyond lengths; an index of rows or more reads zeros."""
    return gathered(mat, indices)


@gather_rows.vjp("indices, g -> gmat", bound=ordered(lambda indices, rows: hits(indices, rows)[:, np.newaxis]))
def gather_rows_vjp(indices, g, rows, cols):
    """gmat[i, c] = the sum of g[j, c] over the j with indices[j] = i, from +0 in the order of j; 0 where none is."""
    return scattered(np.zeros((rows, cols), g.dtype), g, indices)


@op("x[n], values[k], indices: u32[k] -> out[n]",
    classes={**INDICES, **VECTOR}, bound=ordered(lambda x, indices: hits(indices, len(x))), draw=draw_vec,
    laws=[linear("x", "values"), adjoint("x", "values")], source="numpy.add.at, torch.index_add")  # fmt: skip
def scatter_add(x, values, indices):
    """A copy of a vector with values added at host indices.

    out[i] = ((x[i] + values[j0]) + values[j1]) + ... over the j with indices[j] = i, in increasing order

    Shapes: x (n), values (k), indices (k) on the host, out (n).
    Special values: IEEE 754; an element without a hit keeps its bits. k = 0 copies x, n = 0 gives an empty result.
    Errors: none beyond lengths; an index of n or more is ignored."""
    return scattered(x, values, indices)


@scatter_add.vjp("indices, g -> gx, gvalues",
    bound=moved(), via=lambda k, /, indices, g, n, **_: (k.share(g), k.gather_vec(g, indices, n=n)))  # fmt: skip
def scatter_add_vjp(indices, g):
    """gx = g (shared storage), gvalues[j] = g[indices[j]], 0 where the index was out of range."""
    return g, gathered(g, indices)


@op("mat[rows, cols], values[k, cols], indices: u32[k] -> out[rows, cols]",
    classes={**INDICES, **MATRIX}, bound=ordered(lambda mat, indices: hits(indices, mat.shape[0])[:, np.newaxis]), draw=draw_rows,
    laws=[linear("mat", "values"), adjoint("mat", "values")], source="numpy.add.at, torch.index_add")  # fmt: skip
def scatter_add_rows(mat, values, indices):
    """A copy of a matrix with rows added at host indices.

    out[i, c] = ((mat[i, c] + values[j0, c]) + values[j1, c]) + ... over the j with indices[j] = i, in increasing order

    Shapes: mat (rows, cols), values (k, cols), indices (k) on the host, out (rows, cols).
    Special values: IEEE 754; a row without a hit keeps its bits. k = 0 copies mat, rows = 0 or cols = 0 gives an empty
    result.
    Errors: none beyond lengths; an index of rows or more is ignored."""
    return scattered(mat, values, indices)


@scatter_add_rows.vjp("indices, g -> gmat, gvalues", bound=moved(),
    via=lambda k, /, indices, g, rows, cols, **_: (k.share(g), k.gather_rows(g, indices, rows=rows, cols=cols)))  # fmt: skip
def scatter_add_rows_vjp(indices, g):
    """gmat = g (shared storage), gvalues[j] = g[indices[j]], zeros where the index was out of range."""
    return g, gathered(g, indices)


@op("mat[rows, cols], row[cols]; i: u32 -> out[rows, cols]",
    draw=draw_row, classes=MATRIX, bound=ordered(lambda mat, i: (np.arange(mat.shape[0]) == i)[:, np.newaxis]),
    checks=[check("i", "i < rows", "INDEX", say="i < rows")], laws=[linear("mat", "row"), adjoint("mat", "row")],
    source="IEEE 754-2019, 5.4.1")  # fmt: skip
def scatter_add_row(mat, row, i):
    """A copy of a matrix with one row added to row i.

    out[i, c] = mat[i, c] + row[c]; every other row is copied

    Shapes: mat (rows, cols), row (cols), out (rows, cols).
    Special values: IEEE 754; the copied rows keep their bits. cols = 0 gives an empty result.
    Errors: INDEX if i is rows or more, so a matrix without rows is always refused."""
    out = mat.copy()
    out[i] += row
    return out


@scatter_add_row.vjp("g -> gmat, grow",
    bound=moved(),
    via=lambda k, g, rows, cols, i: (k.share(g), k.slice1d(g, n=rows * cols, start=i * cols, len=cols)))  # fmt: skip
def scatter_add_row_vjp(g, i):
    """gmat = g (shared storage), grow = g[i]."""
    return g, g[i]
