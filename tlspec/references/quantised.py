"""Products of 8-bit numbers, with scales by row or by block.

The 8-bit operands are bit patterns, whole numbers below 256, which a kernel's function takes for what they mean:
``arguments=lambda f, v: f(v["a"].to(torch.uint8).view(torch.int8), ...)``.
"""

import numpy as np

from tlspec.formats import FORMATS
from tlspec.references._bound import analysed
from tlspec.references.fused import WHY
from tlspec.registry import check, op

#: the side of a block that shares a scale
BLOCK = 128


def _scales(d, shape):
    """Positive scales as quantisation finds them: the largest number of a block over the largest of the format."""
    return np.exp2(d.rng.uniform(-9, -3, shape)).astype(np.float32)


def _patterns(x):
    """The bit patterns of 8-bit numbers."""
    return x.view(np.uint8).astype(np.uint32)


def _whole(patterns, like):
    """The 8-bit integers of bit patterns."""
    return np.asarray(patterns.astype(np.uint8).view(np.int8).astype(np.float64), like=like)


def _float8(patterns, like):
    """The numbers of bit patterns of float8_e4m3fn."""
    return np.asarray(FORMATS["float8_e4m3fn"].decode(patterns.astype(np.uint8)), like=like)


def _draw_int8(d):
    def numbers(rows, k):
        ends = d.rng.choice(np.array([-127, 127], np.int8), (rows, 1))  # of some rows, where narrow sums overflow
        inner = d.rng.integers(-127, 127, (rows, k), dtype=np.int8, endpoint=True)
        return _patterns(np.where(d.rng.random((rows, 1)) < 0.25, ends, inner))

    return {"m": d.dim(), "n": d.dim(), "k": d.dim(0, 1024), "a": lambda m, k: numbers(m, k), "b": lambda n, k: numbers(n, k),
            "a_scale": lambda m: _scales(d, m), "b_scale": lambda n: _scales(d, n)}  # fmt: skip


@op("a: u32[m, k], b: u32[n, k], a_scale[m], b_scale[n] -> out[m, n]", bound=analysed(), no_vjp=WHY, draw=_draw_int8,
    data=("normal",), checks=[check("k", "k < 133145")],
    work=lambda m, n, k: m * n * k,
    source="Dettmers et al., LLM.int8(), arXiv:2208.07339; torch._int_mm with scales by row")  # fmt: skip
def int8_matmul(a, b, a_scale, b_scale):
    """A product of 8-bit integers with a scale for each row of both operands.

    out[i, j] = a_scale[i] · b_scale[j] · Σ_k a[i, k]·b[j, k]

    Parameters
    ----------
    a : (m, k), b : (n, k)
        Bit patterns of 8-bit integers from -127. Sums of their products are exact in 32-bit integers, as k < 133,145.
    a_scale : (m), b_scale : (n)

    Returns
    -------
    out : (m, n)
    """
    return (_whole(a, a_scale) @ _whole(b, a_scale).T) * a_scale[:, None] * b_scale[None, :]


@int8_matmul.formula()
def _product_of_scales(a, b, a_scale, b_scale):
    return (_whole(a, a_scale) @ _whole(b, a_scale).T) * (a_scale[:, None] * b_scale[None, :])


def _draw_fp8(d):
    m, blocks = d.dim(0, 257), d.choice([1, 1, 2, 3])
    # half of the draws have several blocks, the last in part
    n = d.choice([d.dim(0, 257), d.integer(BLOCK + 1, 2 * BLOCK)])

    def numbers(rows, k):
        x = np.clip(d.rng.standard_normal((rows, k)) * 96, -448, 448)
        return FORMATS["float8_e4m3fn"].encode(x).astype(np.uint32)

    return {"m": m, "n": n, "k": blocks * BLOCK, "k_blocks": blocks, "n_blocks": -(-n // BLOCK),
            "a": lambda m, k: numbers(m, k), "b": lambda n, k: numbers(n, k),
            "a_scale": lambda m, k_blocks: _scales(d, (m, k_blocks)),
            "b_scale": lambda n_blocks, k_blocks: _scales(d, (n_blocks, k_blocks))}  # fmt: skip


def _scaled(a, b, a_scale, b_scale, total):
    """Σ of the blocks' products, each times its scales."""
    a, b, columns = _float8(a, a_scale), _float8(b, a_scale), np.repeat(b_scale, BLOCK, axis=0)[: b.shape[0]]
    for at in range(a_scale.shape[1]):
        block = slice(at * BLOCK, (at + 1) * BLOCK)
        total = total + (a[:, block] @ b[:, block].T) * a_scale[:, at, None] * columns[None, :, at]
    return total


@op("a: u32[m, k], b: u32[n, k], a_scale[m, k_blocks], b_scale[n_blocks, k_blocks] -> out[m, n]", bound=analysed(), no_vjp=WHY,
    draw=_draw_fp8,
    data=("normal",), work=lambda m, n, k: m * n * k,
    checks=[check("k_blocks", "k == 128 * k_blocks"), check("n_blocks", "n_blocks == (n + 127) // 128")],
    source="DeepSeek-V3, arXiv:2412.19437, §3.3.2; DeepGEMM; torch._scaled_mm with blocks of 1x128 and 128x128")  # fmt: skip
def fp8_block_matmul(a, b, a_scale, b_scale):
    """A product of float8_e4m3fn numbers with a scale for each 128 numbers of a row of a, and for each 128 by 128 of b.

    out[i, j] = Σ_k a[i, k]·a_scale[i, k // 128] · b[j, k]·b_scale[j // 128, k // 128]

    Parameters
    ----------
    a : (m, k), b : (n, k)
        Bit patterns of float8_e4m3fn; k is a multiple of 128.
    a_scale : (m, k / 128), b_scale : (⌈n / 128⌉, k / 128)

    Returns
    -------
    out : (m, n)
        A kernel on tensor cores says how it adds: ``accumulate="promoted:128"`` or ``"fp8"``.
    """
    return _scaled(a, b, a_scale, b_scale, np.zeros((a.shape[0], b.shape[0]), like=a_scale))


@fp8_block_matmul.formula()
def _dequantised(a, b, a_scale, b_scale):
    wide = _float8(a, a_scale) * np.repeat(a_scale, BLOCK, axis=1)
    columns = np.repeat(np.repeat(b_scale, BLOCK, axis=0)[: b.shape[0]], BLOCK, axis=1)
    return wide @ (_float8(b, a_scale) * columns).T
