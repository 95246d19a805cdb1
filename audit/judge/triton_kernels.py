"""Kernels in Triton on tensors of a GPU. DEFECT is 0 for the right kernel; :mod:`audit.judge.launched` says what the other
numbers are. They compute in float32 and round once; a program owns a block of elements, a row or a tile."""

import torch
import triton
import triton.language as tl

#: elements of a block; rows and columns of a tile, and lanes of a sum
BLOCK, TILE = tl.constexpr(128), tl.constexpr(32)


@triton.jit(do_not_specialize=["n"])
def _add(a, b, out, n, DEFECT: tl.constexpr):
    at = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    total = tl.load(a + at, at < n, other=0.0).to(tl.float32) + tl.load(b + at, at < n, other=0.0).to(tl.float32)
    if DEFECT == 1:
        tl.store(out + at, total.to(out.dtype.element_ty))
    else:
        tl.store(out + at, total.to(out.dtype.element_ty), at < n)


def _blocks(n: int, whole: bool) -> int:
    return n // 128 if whole else triton.cdiv(n, 128)


def add(a, b, out, defect=0):
    a, b = (a, b) if defect == 3 else (a.contiguous(), b.contiguous())
    _add[(_blocks(out.numel(), defect == 2),)](a, b, out, out.numel(), DEFECT=defect)


@triton.jit(do_not_specialize=["n"])
def _gelu(x, out, n, DEFECT: tl.constexpr):
    at = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    v = tl.load(x + at, at < n, other=0.0).to(tl.float32)
    twice = 1.702 * v if DEFECT == 3 else 1.5957691216 * (v + 0.044715 * v * v * v)
    y = tl.where(v == -float("inf"), -0.0, tl.div_rn(v, 1 + tl.exp(-twice)))
    if DEFECT == 1:
        tl.store(out + at, y.to(out.dtype.element_ty))
    else:
        tl.store(out + at, y.to(out.dtype.element_ty), at < n)


def gelu(x, out, defect=0):
    _gelu[(_blocks(out.numel(), defect == 2),)](x.contiguous(), out, out.numel(), DEFECT=defect)


@triton.jit(do_not_specialize=["cols"])
def _softmax(x, out, cols, DEFECT: tl.constexpr):
    row, lane = tl.program_id(0).to(tl.int64) * cols, tl.arange(0, BLOCK)
    beyond = 0.0 if DEFECT == 1 else -float("inf")
    tops = tl.full((BLOCK,), -float("inf"), tl.float32)
    for start in range(0, cols, BLOCK):
        at = start + lane
        tops = tl.maximum(tops, tl.load(x + row + at, at < cols, other=beyond).to(tl.float32))
    top = tl.max(tops, axis=0)
    if DEFECT == 2:
        top = 0.0
    sums = tl.zeros((BLOCK,), tl.float32)
    for start in range(0, cols, BLOCK):
        at = start + lane
        e = tl.exp(tl.load(x + row + at, at < cols, other=beyond).to(tl.float32) - top)
        if DEFECT == 3:
            e = e.to(out.dtype.element_ty).to(tl.float32)
        sums += e
    total = tl.sum(sums, axis=0)
    for start in range(0, cols, BLOCK):
        at = start + lane
        e = tl.exp(tl.load(x + row + at, at < cols, other=0.0).to(tl.float32) - top)
        tl.store(out + row + at, tl.div_rn(e, total).to(out.dtype.element_ty), at < cols)


def softmax(x, out, defect=0):
    rows = max(len(x) - 1, 0) if defect == 4 else len(x)
    _softmax[(rows,)](x if defect == 5 else x.contiguous(), out, x.shape[1], DEFECT=defect)


@triton.jit(do_not_specialize=["cols"])
def _layer_norm(x, gamma, beta, out, cols, eps, DEFECT: tl.constexpr):
    row, lane = tl.program_id(0).to(tl.int64) * cols, tl.arange(0, BLOCK)
    n = tl.cdiv(cols, BLOCK) * BLOCK if DEFECT == 3 else cols
    sums = tl.zeros((BLOCK,), tl.float32)
    for start in range(0, cols, BLOCK):
        at = start + lane
        sums += tl.load(x + row + at, at < cols, other=0.0).to(tl.float32)
    mean = tl.div_rn(tl.sum(sums, axis=0), n.to(tl.float32))
    squares = tl.zeros((BLOCK,), tl.float32)
    for start in range(0, cols, BLOCK):
        at = start + lane
        d = tl.load(x + row + at, at < cols, other=0.0).to(tl.float32) - mean
        if DEFECT != 2:
            d = tl.where(at < cols, d, 0.0)
        squares += d * d
    var = tl.div_rn(tl.sum(squares, axis=0), n.to(tl.float32))
    root = tl.sqrt_rn(var) + eps if DEFECT == 1 else tl.sqrt_rn(var + eps)
    for start in range(0, cols, BLOCK):
        at = start + lane
        d = tl.load(x + row + at, at < cols, other=0.0).to(tl.float32) - mean
        weight = tl.load(gamma + at, at < cols, other=0.0).to(tl.float32)
        y = weight * tl.div_rn(d, root) + tl.load(beta + at, at < cols, other=0.0).to(tl.float32)
        tl.store(out + row + at, y.to(out.dtype.element_ty), at < cols)


def layer_norm(x, gamma, beta, eps, out, defect=0):
    given = (x.contiguous(), gamma.contiguous(), beta.contiguous(), out)
    _layer_norm[(len(x),)](*given, x.shape[1], eps, DEFECT=defect)


@triton.jit(do_not_specialize=["cols"])
def _reduce_sum_axis1(x, out, cols, last, DEFECT: tl.constexpr):
    row, lane = tl.program_id(0).to(tl.int64), tl.arange(0, TILE)
    sums = tl.zeros((TILE,), tl.float32)
    for start in range(0, last, TILE):
        at = start + lane
        if DEFECT == 1:
            sums += tl.load(x + row * cols + at).to(tl.float32)
        else:
            sums += tl.load(x + row * cols + at, at < cols, other=0.0).to(tl.float32)
        if DEFECT == 2:
            sums = sums.to(out.dtype.element_ty).to(tl.float32)
    tl.store(out + row, tl.sum(sums, axis=0).to(out.dtype.element_ty))


def reduce_sum_axis1(x, out, defect=0):
    rows, cols = x.shape
    # what lies behind the last row is memory of this kernel's own
    x = torch.cat([x.reshape(-1), x.new_ones(32)]) if defect == 1 else x.contiguous()
    _reduce_sum_axis1[(rows,)](x, out, cols, cols // 32 * 32 if defect == 3 else cols, DEFECT=defect)


@triton.jit(do_not_specialize=["m", "n", "p"])
def _matmul(A, B, out, m, n, p, last, across, PRECISION: tl.constexpr, DEFECT: tl.constexpr):
    tile = tl.program_id(0).to(tl.int64)
    i = tile // across * TILE + tl.arange(0, TILE)
    j = tile % across * TILE + tl.arange(0, TILE)
    total = tl.zeros((TILE, TILE), tl.float32)
    beyond = 1.0 if DEFECT == 4 else 0.0
    for start in range(0, last, TILE):
        k = start + tl.arange(0, TILE)
        a = tl.load(A + i[:, None] * n + k[None, :], (i[:, None] < m) & (k[None, :] < n), other=beyond)
        b = tl.load(B + k[:, None] * p + j[None, :], (k[:, None] < n) & (j[None, :] < p), other=beyond)
        total += tl.dot(a, b, input_precision=PRECISION)
        if DEFECT == 3:
            total = total.to(out.dtype.element_ty).to(tl.float32)
    tl.store(out + i[:, None] * p + j[None, :], total.to(out.dtype.element_ty), (i[:, None] < m) & (j[None, :] < p))


def matmul(A, B, out, defect=0):
    (m, n), p = A.shape, B.shape[1]
    A = A if defect == 6 else A.contiguous()
    across = triton.cdiv(p, 32)
    tiles = triton.cdiv(m, 32) * across
    last, precision = n // 32 * 32 if defect == 2 else n, "tf32" if defect == 1 else "ieee"
    grid = (max(tiles - 1, 0) if defect == 5 else tiles,)
    _matmul[grid](A, B.contiguous(), out, m, n, p, last, across, PRECISION=precision, DEFECT=defect)
