"""Matrix products.

The CPU path sums each element in one fixed order (native/src/cpu/linalg/gemm.h). On CUDA native/src/cuda/linalg/select.h chooses an
algorithm by the shape. Products with an inner dimension of 64 or more run on TF32 tensor cores at float32 accuracy: on Hopper the
larger ones (wgmma.cu), and others of many tiles (mma.cu). Each operand is split in two TF32 numbers, and an element is a sum of parts
of 32 terms in order, fixed by the inner dimension alone, so that one kernel gives an element the same bits whatever the batch
and wherever it stands. Tiles with values that do not split are chains of fused multiply-adds. Where float64 is fast, products of at
most 16 terms are chains in float64 (thin.cu), a matrix and at most four vectors are summed in float64 in an order of their own
(gemv.cu), and most other products are chains in float64 on its tensor cores (chain.cu). For all else cuBLAS chooses the order. The
bounds assume the worst one, a chain over the whole inner dimension, which covers split sums from 64 terms on, and the two devices
differ in the last bits.
"""

from collections.abc import Callable

import numpy as np

from tlspec import laws
from tlspec.bounds import call_named, column_height, custom, factor, tree
from tlspec.classes import Classes, Lengths
from tlspec.registry import check, op
from tlspec.shapes import extent
from tlspec.strides import strided

#: products, of all three forms in forward and gradients, that reach the kernels of CUDA on an H200: wide and narrow tiles of
#: warp group products, split products, few terms of whole quads and of odd rows, chains of few rows or columns and of many; a matrix and
#: a vector, and three that lie across; and few terms of few results
PATHS = [{"m": 1028, "n": 1044, "p": 1060}, {"m": 1028, "n": 700, "p": 772}, {"m": 516, "n": 580, "p": 452},
         {"m": 1031, "n": 7, "p": 1030}, {"m": 1033, "n": 13, "p": 516}, {"m": 9, "n": 1031, "p": 1030},
         {"m": 1031, "n": 21, "p": 515}, {"m": 1031, "n": 515, "p": 1}, {"m": 3, "n": 1028, "p": 1032},
         {"m": 8, "n": 512, "p": 2048}, {"m": 9001, "n": 20, "p": 3}, {"m": 101, "n": 12, "p": 30}]  # fmt: skip
#: the same with a batch: several wide and narrow tiles for a thread block, of rows that are no whole 16 bytes, too, split products,
#: small ones for cuBLAS, chains whose rows begin anywhere, a thousand of few terms, chains of small products, and few vectors, that lie
#: along and across
BATCH_PATHS = [{"batch": 300, "m": 124, "n": 116, "p": 124}, {"batch": 140, "m": 124, "n": 116, "p": 124},
               {"batch": 300, "m": 125, "n": 115, "p": 123}, {"batch": 6, "m": 132, "n": 196, "p": 260},
               {"batch": 1030, "m": 52, "n": 36, "p": 60}, {"batch": 70, "m": 101, "n": 99, "p": 102},
               {"batch": 1030, "m": 33, "n": 3, "p": 35}, {"batch": 1060, "m": 13, "n": 6, "p": 44},
               {"batch": 301, "m": 12, "n": 8, "p": 20}, {"batch": 450, "m": 9, "n": 101, "p": 1},
               {"batch": 180, "m": 67, "n": 260, "p": 4}, {"batch": 130, "m": 1, "n": 130, "p": 20}]  # fmt: skip


def product_classes(rows: str, inner: str, columns: str, batch: str = "") -> Classes:
    """Whether one of a product's three sizes is 1, by their names in the row."""

    def of(name):
        return lambda **v: v[name] * (min(v[rows], v[inner], v[columns], v.get(batch, 1)) > 0)

    return {"one row": lambda **v: of(rows)(**v) == 1, "one column": lambda **v: of(columns)(**v) == 1,
            "one term": lambda **v: of(inner)(**v) == 1}  # fmt: skip


def product_lengths(rows: str, inner: str, columns: str) -> Lengths:
    """The three sizes of a product by the names that all rows share."""
    return {
        "product rows": lambda **v: v[rows],
        "inner": lambda **v: v[inner],
        "product columns": lambda **v: v[columns],
    }


def _lies(test: Callable[..., bool]) -> Callable[..., bool]:
    """Whether that holds of factors with several rows and columns."""
    return lambda **v: min(v["m"], v["n"], v["p"]) > 1 and v["batch"] > 0 and bool(call_named(test, v))


@op("A[m, n], B[n, p] -> out[m, p]",
    classes=product_classes("m", "n", "p"), lengths=product_lengths("m", "n", "p"), bound=tree(lambda n: n), same_bits=False, cuda="own kernel, cuBLAS",
    reproducible=True,
    laws=[laws.linear("A"), laws.linear("B"), laws.adjoint("A"), laws.adjoint("B")], paths=PATHS,
    source="torch.matmul, numpy.matmul")  # fmt: skip
def matmul(A, B):
    """Matrix product.

    out[i, j] = Σ_k A[i, k]·B[k, j]

    Shapes: A (m, n), B (n, p), out (m, p).
    Special values: IEEE 754; 0·inf is NaN. n = 0 gives zeros; m = 0 or p = 0 an empty result."""
    return A @ B


@matmul.vjp("A, B, g -> gA, gB", bound=tree(lambda m, p: (p, m)))
def matmul_vjp(A, B, g):
    """gA = g·Bᵀ, gB = Aᵀ·g; no transpose is stored."""
    return g @ B.T, A.T @ g


@op("A[batch, m, n], B[batch, n, p] -> out[batch, m, p]",
    classes=product_classes("m", "n", "p", "batch"), lengths=product_lengths("m", "n", "p"), bound=tree(lambda n: n), same_bits=False, cuda="own kernel, cuBLAS",
    reproducible=True,
    laws=[laws.linear("A"), laws.linear("B"), laws.adjoint("A"), laws.adjoint("B")], paths=BATCH_PATHS,
    source="torch.bmm")  # fmt: skip
def bmm(A, B):
    """Batched matrix product.

    out[b, i, j] = Σ_k A[b, i, k]·B[b, k, j]

    Shapes: A (batch, m, n), B (batch, n, p), out (batch, m, p).
    Special values: IEEE 754; 0·inf is NaN. n = 0 gives zeros; any other zero dimension an empty result."""
    return A @ B


@bmm.vjp("A, B, g -> gA, gB", bound=tree(lambda m, p: (p, m)))
def bmm_vjp(A, B, g):
    """gA[b] = g[b]·B[b]ᵀ, gB[b] = A[b]ᵀ·g[b]; no transpose is stored."""
    return g @ B.swapaxes(1, 2), A.swapaxes(1, 2) @ g


@op("W[outputs, inputs], x[batch, inputs], b[outputs] -> y[batch, outputs]",
    classes=product_classes("batch", "inputs", "outputs"), lengths=product_lengths("batch", "inputs", "outputs"), bound=tree(lambda inputs: inputs + 1), same_bits=False, cuda="own kernel, cuBLAS",
    reproducible=True,
    laws=[laws.linear("W", "b"), laws.adjoint("W", "b")],
    paths=[{"batch": p["m"], "inputs": p["n"], "outputs": p["p"]} for p in PATHS],
    source="torch.nn.functional.linear",
    arguments={"W": "weights", "b": "added to each output"})  # fmt: skip
def linear(W, x, b):
    """Affine layer; one vector is a batch of 1.

    y[r, o] = Σ_i x[r, i]·W[o, i] + b[o]

    Shapes: W (outputs, inputs), x (batch, inputs), b (outputs), y (batch, outputs).
    Special values: IEEE 754; 0·inf is NaN. inputs = 0 gives b in every row; batch = 0 or outputs = 0 an empty result."""
    return x @ W.T + b


@linear.vjp(
    "W, x, g -> gW, gx, gb", bound=tree(lambda batch, outputs: (batch, outputs, column_height(batch))), trees=["gb"]
)
def linear_vjp(W, x, g):
    """gW = gᵀ·x, gx = g·W, gb[o] = Σ_r g[r, o] by the column tree of formula/sum_tree.h; no transpose is stored."""
    return g.T @ x, g @ W, g.sum(axis=0)


def _strided_values(d, batch, m, n, p):
    """The strides of both factors, and buffers with room for them and sometimes more."""
    values = {"batch": batch, "m": m, "n": n, "p": p}
    for name, rows, columns in (("a", m, n), ("b", n, p)):
        found = d.matrix_strides(batch, rows, columns)
        values |= dict(zip((f"{name}_batch", f"{name}_row", f"{name}_col"), found, strict=True))
        values[f"{name}_size"] = extent(batch, found[0], rows, found[1], columns, found[2]) + d.choice((0, 0, 1, 7))
    return values


def _strided_draw(d):
    """Lengths of any kind, or such as models have."""
    unit = d.choice((1, 1, 4, 8, 16))
    lengths = [-(-d.dim() // unit) * unit for _ in range(3)]
    values = _strided_values(d, d.dim(), *lengths)
    return values if d.integer(0, 1) else {**values, "bias": None}


def _strided_path(batch, m, n, p, a, b, bias=False):
    """`a` and `b`: (batch, row, column) strides."""
    found = {"batch": batch, "m": m, "n": n, "p": p}
    for name, rows, columns, strides in (("a", m, n, a), ("b", n, p, b)):
        found |= dict(zip((f"{name}_batch", f"{name}_row", f"{name}_col"), strides, strict=True))
        found[f"{name}_size"] = extent(batch, strides[0], rows, strides[1], columns, strides[2])
    return found if bias else {**found, "bias": None}


#: heads of packed projections against each other, and their weights with values; weights that lie across; both factors across, with few
#: rows, with many, and with a bias; rows with room; one matrix for all; a class token of each sample; large ones of each form; a state
#: against each step's vector, and its gradient; few rows of many products, with either factor across
STRIDED_PATHS = [
    _strided_path(12, 96, 64, 96, (64, 2304, 1), (64, 1, 2304)), _strided_path(12, 97, 96, 64, (97 * 96, 96, 1), (64, 768, 1)),
    _strided_path(1, 200, 128, 264, (0, 128, 1), (0, 1, 128), True), _strided_path(3, 130, 72, 68, (72 * 130, 1, 130), (68 * 72, 1, 72)),
    _strided_path(2, 9, 72, 68, (72 * 9, 1, 9), (68 * 72, 1, 72)), _strided_path(2, 70, 33, 45, (33 * 71, 1, 71), (45 * 35, 1, 35), True),
    _strided_path(4, 65, 130, 67, (65 * 133, 133, 1), (131 * 70, 70, 1), True), _strided_path(5, 64, 64, 64, (64, 320, 1), (0, 64, 1)),
    _strided_path(1, 8, 192, 100, (0, 50 * 192, 1), (0, 1, 192), True), _strided_path(1, 300, 4100, 70, (0, 4104, 1), (0, 72, 1)),
    _strided_path(1, 1028, 700, 1044, (0, 1, 1032), (0, 1048, 1)), _strided_path(1, 1028, 700, 1044, (0, 708, 1), (0, 1, 708), True),
    _strided_path(70, 132, 128, 196, (128, 128 * 70, 1), (196 * 128, 1, 128)),
    _strided_path(8, 512, 16, 1, (512 * 16, 16, 1), (64 * 16, 1, 1)), _strided_path(8, 512, 1, 16, (512, 1, 1), (64 * 16, 16, 1), True),
    _strided_path(70, 8, 24, 200, (8 * 26, 26, 1), (25 * 200, 200, 1), True), _strided_path(70, 7, 22, 201, (7 * 22, 1, 8), (22 * 202, 1, 22)),
]  # fmt: skip


@op("A[a_size], B[b_size], bias?[p]; n: u32, a_batch: u32, a_row: u32, a_col: u32, b_batch: u32, b_row: u32, b_col: u32 "
    "-> out[batch, m, p]", order="a_size, b_size, batch, m, p",
    classes={**product_classes("m", "n", "p", "batch"), "a factor across, and room behind rows": _lies(
                 lambda n, a_row, a_col, b_row, b_col: 1 in (a_row, b_row) and max(a_row, a_col, b_row, b_col) > n),
             "rows of several products in turn": _lies(lambda batch, a_batch, a_row: batch > 1 and 0 < a_batch < a_row)},
    lengths=product_lengths("m", "n", "p"),
    bound=tree(lambda n, bias: n + (bias is not None)), same_bits=False, cuda="own kernel, cuBLAS", reproducible=True,
    checks=[check("a_row", "(a_row == 1 or a_col == 1 or m <= 1 or n <= 1) and (a_col > 0 or n <= 1)",
                  say="a_row or a_col to be 1, and a_col not 0"),
            check("b_row", "(b_row == 1 or b_col == 1 or n <= 1 or p <= 1) and (b_row > 0 or n <= 1)",
                  say="b_row or b_col to be 1, and b_row not 0"),
            check("a_size", "extent(batch, a_batch, m, a_row, n, a_col) <= a_size", "SHAPE", say="an A that has every element that is read"),
            check("b_size", "extent(batch, b_batch, n, b_row, p, b_col) <= b_size", "SHAPE", say="a B that has every element that is read")],
    draw=_strided_draw, work=lambda batch, m, n, p: batch * m * n * p, paths=STRIDED_PATHS,
    laws=[laws.linear("A", "bias"), laws.linear("B", "bias")], source="torch.baddbmm, torch.addmm",
    no_vjp="its gradients are products of the same form: g·Bᵀ and Aᵀ·g with the strides of B and A exchanged",
    arguments={"n": "number of terms of a sum"},
    example={"a_size": 4, "b_size": 4, "n": 2, "a_row": 2, "a_col": 1, "b_row": 2, "b_col": 1})  # fmt: skip
def bmm_strided(A, B, bias, batch, m, n, p, a_batch, a_row, a_col, b_batch, b_row, b_col):
    """Batched matrix product of factors that lie in flat buffers with strides, plus a bias.

    out[t, i, j] = Σ_k A[a_batch·t + a_row·i + a_col·k]·B[b_batch·t + b_row·k + b_col·j] + bias[j]

    Shapes: A (a_size), B (b_size), bias (p) or left out, out (batch, m, p). Of a_row and a_col one is 1, and of b_row and b_col; along
    an axis of length 1 a stride is any. A batch stride of 0 gives all products the same factor.
    Special values: IEEE 754; 0·inf is NaN. n = 0 gives the bias or zeros; any other zero dimension an empty result.
    Errors: ARGUMENT unless one of each two strides is 1 and terms are elements apart; SHAPE where an element lies behind a
    buffer's end.
    In reproducible contexts the bits are those of :func:`bmm` and :func:`linear` on contiguous copies."""
    out = strided(A, (batch, m, n), (a_batch, a_row, a_col)) @ strided(B, (batch, n, p), (b_batch, b_row, b_col))
    return out if bias is None else out + bias


def _dgemm_tolerance(A, B):
    """The tree bound with float64's u = 2^-53, plus the rounding of the result and of the reference."""
    u, h = 2.0**-53, A.shape[1]
    return factor(h) * u * (np.abs(A) @ np.abs(B)) + 2 * u * np.abs(A @ B) + 2.0**-1074 * (h + 1)


@op("A: f64[m, n], B: f64[n, p] -> out: f64[m, p]",
    classes=product_classes("m", "n", "p"), lengths=product_lengths("m", "n", "p"), bound=custom(_dgemm_tolerance, "min(h, λ√h)·2⁻⁵³·M"), same_bits=False, reproducible=True, cuda="cuBLAS",
    data=["normal", "uniform", "integers", "special", "structured"], source="BLAS dgemm",
    no_vjp="works on host arrays; the fast kernels write gA = dgemm(g, Bᵀ), gB = dgemm(Aᵀ, g) themselves")  # fmt: skip
def dgemm(A, B):
    """Matrix product of host float64 arrays; the result is back on the host when the call returns.

    out[i, j] = Σ_k A[i, k]·B[k, j], in float64

    Shapes: A (m, n), B (n, p), out (m, p), all on the host.
    Special values: IEEE 754; 0·inf is NaN. n = 0 gives zeros; m = 0 or p = 0 writes nothing."""
    # The oracle needs more than float64: longdouble has 64 or 113 bits where the C compiler's long double does.
    with np.errstate(all="ignore"):
        return (A.astype(np.longdouble) @ B.astype(np.longdouble)).astype(np.float64)
