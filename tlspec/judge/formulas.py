"""Formulas that kernels follow in place of a row's own: some always allowed, others where ``formulas=`` names them.

A formula is a reference in NumPy. Running error analysis bounds the errors of a kernel that computes it, and the judge allows the
largest of all formulas, so nothing about a bound is chosen. What stands under a name below is right as a whole, yet has elements
whose relative error has no bound, and a defect may look the same. So an author says that it is meant:

- ``"tanh"`` (sigmoid, silu): ½(1 + tanh(x/2)). Where tanh rounds to -1, at x < -18, the result is 0, which is σ(x)·(1 + e^x)
  away from σ(x): the absolute error is u, the relative one 1. A kernel that drops small results does the same.
- ``"strassen"`` (matmul, bmm): Strassen's product. Its errors are small beside the largest numbers of the operands, not beside
  Σ|a·b| of an element (Higham, Accuracy and Stability, 2nd ed., §23.2.2): a small row next to a large one is lost.
- ``"fft"`` (conv, conv2d): by discrete Fourier transforms, with the same property.
- ``"bf16x3"``, ``"tf32x3"`` (matmul, bmm): the operands as sums of three parts in bfloat16, or of two in tf32 whose smallest
  product is left out. Parts below the smallest number are lost, and infinities times the zeros of other parts are NaN.
- ``"cast"`` (rms_norm, fused_add_rms_norm, swiglu, geglu, geglu_erf): what is multiplied at the end, by gamma or by up, is
  rounded to the format of the arrays before, as Hugging Face's and Liger's modules do. It is one rounding where
  ``intermediate=`` allows one after every operation.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import lru_cache, partial
from typing import Any

import numpy as np

from tlspec.formats import FORMATS, Format
from tlspec.ops import attention
from tlspec.ops.elementwise import gelu, gelu_erf, silu
from tlspec.registry import Op
from tlspec.running import cast, inexact
from tlspec.shapes import drop

Formula = Callable[..., Any]


def log_softmax_of_infinities(x: Any) -> Any:
    """By x - ln Σe^x: beside +inf, whose own result is NaN, a finite number's is its limit -inf."""
    m = x.max(axis=1, keepdims=True, initial=-np.inf)
    t = x - m
    return np.where(m == np.inf, t, t - np.log(np.exp(t).sum(axis=1, keepdims=True)))


def cross_entropy_of_infinities(logits: Any, labels: Any) -> Any:
    """By ln Σe^x - x_label: a row with +inf elsewhere than at the label has the loss inf, its limit."""
    if not len(labels):
        return np.full(1, np.nan)
    at = np.where(labels < logits.shape[1], labels, 0)
    each = -log_softmax_of_infinities(logits)[np.arange(len(labels)), at]
    return np.where(labels < logits.shape[1], each, np.nan).sum(keepdims=True) / len(labels)


def attention_by_weights(Q: Any, K: Any, V: Any, mask: Any, mask_mode: int, scale: float) -> Any:
    """With the weights divided by their sum first, which in a narrow format are rounded before they meet V."""
    weights: Any = attention._softmax
    _, E, total, _ = weights(Q, K, mask, mask_mode, scale)
    return np.matmul(E / total, V)


def grouped_attention_by_weights(
    Q: Any, K: Any, V: Any, mask: Any, mask_mode: int, before: int, after: int, offset: int, scale: float
) -> Any:
    weights: Any = attention._grouped
    _, _, v, (_, E, total, _), _ = weights(Q, K, V, mask, mask_mode, before, after, offset, scale)
    return np.matmul(E / total, v).reshape(*Q.shape[:3], V.shape[3])


def merged_mean(x: Any, axis: int) -> Any:
    """By means of parts that differences move, as Welford's and Chan's. Sums of whole numbers have roundings, too; equal numbers
    stay as they are; an infinity makes NaN."""
    n = x.shape[axis]
    if not n:
        return np.full(drop(x.shape, axis), np.nan)
    mean = x.sum(axis=axis, keepdims=True) / n
    moved = mean + inexact((x - mean) * (1 / n)).sum(axis=axis, keepdims=True)
    equal = (x.max(axis=axis, keepdims=True) == x.min(axis=axis, keepdims=True)) & (np.isfinite(mean) | (n == 1))
    return np.where(equal, mean, moved).squeeze(axis=axis)


def mse_by_merged_means(yhat: Any, target: Any) -> Any:
    error = yhat - target
    return merged_mean(error * error, 0).reshape(1)


def sigmoid_by_tanh(x: Any) -> Any:
    return 0.5 * (1 + np.tanh(0.5 * x))


def silu_by_tanh(x: Any) -> Any:
    return 0.5 * x * (1 + np.tanh(0.5 * x))


def strassen(A: Any, B: Any) -> Any:
    """One level; what is odd is filled up with zeros."""
    m, n, p = A.shape[-2], A.shape[-1], B.shape[-1]
    if min(m, n, p) < 2:
        return np.matmul(A, B)
    i, j, k = (m + 1) // 2, (n + 1) // 2, (p + 1) // 2
    rest = [(0, 0)] * (len(A.shape) - 2)
    A, B = np.pad(A, [*rest, (0, 2 * i - m), (0, 2 * j - n)]), np.pad(B, [*rest, (0, 2 * j - n), (0, 2 * k - p)])
    a, b, c, d = A[..., :i, :j], A[..., :i, j:], A[..., i:, :j], A[..., i:, j:]
    e, f, g, h = B[..., :j, :k], B[..., :j, k:], B[..., j:, :k], B[..., j:, k:]
    p1, p2, p3, p4 = a @ (f - h), (a + b) @ h, (c + d) @ e, d @ (g - e)
    p5, p6, p7 = (a + d) @ (e + h), (b - d) @ (g + h), (a - c) @ (e + f)
    upper = np.concatenate([p5 + p4 - p2 + p6, p1 + p2], axis=-1)
    lower = np.concatenate([p3 + p4, p1 + p5 - p3 - p7], axis=-1)
    return np.concatenate([upper, lower], axis=-2)[..., :m, :p]


def split_product(A: Any, B: Any, *, format: str, parts: int) -> Any:
    """The products of parts whose places add up to less than their number."""

    def split(x: Any) -> list[Any]:
        found = []
        for _ in range(parts):
            found.append(cast(x, FORMATS[format]))
            x = x - found[-1]
        return found

    a, b = split(A), split(B)
    pairs = [(i, j) for i in range(parts) for j in range(parts - i)]
    made = np.matmul(a[0], b[0])
    for i, j in pairs[1:]:
        made = made + np.matmul(a[i], b[j])
    return made


def conv_by_fft(x: Any, w: Any, b: Any, stride: Sequence[int], padding: Sequence[int]) -> Any:
    """As a circular correlation of the padded array, of which the places are kept that do not reach around."""
    x = np.pad(x, [(0, 0), (0, 0), *((p, p) for p in padding)])
    *outer, last = sizes = x.shape[2:]

    def forward(a: Any) -> Any:
        a = np.fft.rfft(a, last, axis=-1)
        for axis, n in enumerate(outer, 2):
            a = np.fft.fft(a, n, axis=axis)
        return a.reshape(*a.shape[:2], math.prod(a.shape[2:]))

    made = np.einsum("bif,oif->bof", forward(x), forward(w).conj())
    made = made.reshape(*made.shape[:2], *outer, last // 2 + 1)
    for axis, n in enumerate(outer, 2):
        made = np.fft.ifft(made, n, axis=axis)
    places = (slice(0, n - k + 1, s) for n, k, s in zip(sizes, w.shape[2:], stride, strict=True))
    return np.fft.irfft(made, last, axis=-1)[(slice(None), slice(None), *places)] + b.reshape(-1, *[1] * len(sizes))


def conv2d_by_fft(x: Any, w: Any, b: Any, stride_h: int, stride_w: int, padding_h: int, padding_w: int) -> Any:
    return conv_by_fft(x, w, b, [stride_h, stride_w], [padding_h, padding_w])


def normalised_cast(op: Op, format: Format) -> Formula:
    """A normalisation whose result without gamma is rounded."""
    return lambda x, gamma, eps: cast(op.reference(x, np.ones(gamma.shape), eps), format) * gamma


def added_cast(op: Op, format: Format) -> Formula:
    def formula(x: Any, residual: Any, gamma: Any, eps: float) -> Any:
        made, total = op.reference(x, residual, np.ones(gamma.shape), eps)
        return cast(made, format) * gamma, total

    return formula


def gated_cast(activation: Op, format: Format) -> Formula:
    return lambda gate, up: cast(activation.reference(gate), format) * up


_THREE = {f"{short}x3": partial(split_product, format=name, parts=parts)
          for short, name, parts in (("bf16", "bfloat16", 3), ("tf32", "tf32", 2))}  # fmt: skip
#: by row: formulas that every kernel may follow
ALWAYS: dict[str, Formula] = {
    "reduce_mean": merged_mean,
    "mse_loss": mse_by_merged_means,
    "log_softmax": log_softmax_of_infinities,
    "cross_entropy": cross_entropy_of_infinities,
    "flash_attention": attention_by_weights,
    "grouped_attention": grouped_attention_by_weights,
}
#: by the name in ``formulas=``, then by row
NAMED: dict[str, dict[str, Formula]] = {
    "tanh": {"sigmoid": sigmoid_by_tanh, "silu": silu_by_tanh},
    "strassen": dict.fromkeys(("matmul", "bmm"), strassen),
    "fft": {"conv": conv_by_fft, "conv2d": conv2d_by_fft},
    **{name: dict.fromkeys(("matmul", "bmm"), f) for name, f in _THREE.items()},
}
#: by row: the formula named "cast", of the row and the format
CASTS: dict[str, Callable[[Op, Format], Formula]] = {
    "rms_norm": normalised_cast,
    "fused_add_rms_norm": added_cast,
    "swiglu": lambda op, format: gated_cast(silu, format),
    "geglu": lambda op, format: gated_cast(gelu, format),
    "geglu_erf": lambda op, format: gated_cast(gelu_erf, format),
}


def _named(op: Op, format: Format) -> dict[str, Formula]:
    """The formulas of a row that have names."""
    if op.family == "user":
        return {}
    found = {name: rows[op.name] for name, rows in NAMED.items() if op.name in rows}
    return found | ({"cast": CASTS[op.name](op, format)} if op.name in CASTS and format.precision < 24 else {})


def following(op: Op, given: str | Formula | Sequence[str | Formula], format: Format) -> Op:
    """The row with the formulas that an author gives or names as well. Raises ValueError for a name that the row has not."""
    several = [given] if isinstance(given, str) or callable(given) else list(given)
    known = _named(op, format)
    if unknown := [f for f in several if isinstance(f, str) and f not in known]:
        raise ValueError(
            f"formulas={unknown[0]!r}: {op.name} in {format.name} has no formula of this name; it has"
            f" {', '.join(known) or 'none'}"
        )
    return _with(op, [known[f] if isinstance(f, str) else f for f in several])


def _with(op: Op, formulas: Sequence[Formula]) -> Op:
    return replace(op, formulas={**op.formulas, "forward": [*op.formulas["forward"], *formulas]}) if formulas else op


@lru_cache
def usual(op: Op) -> Op:
    """The row with the formulas that every kernel may follow; the same row for the same row, as cases are kept by it."""
    return _with(op, [ALWAYS[op.name]] if op.name in ALWAYS and op.family != "user" else [])


def further(op: Op, format: Format) -> dict[str, Op]:
    """By the name of a formula of the row: the row that follows it."""
    return {name: _with(op, [f]) for name, f in _named(op, format).items()}
