"""Right kernels and kernels with one defect each, in NumPy, on float32 arrays; other formats are computed by way of float32.

A defect is a function of the same arguments.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from tlspec import registry
from tlspec.formats import FORMATS
from tlspec.judge import Report, check

Kernel = Callable[..., Any]
TILE = 32


def f32(x: Any) -> np.ndarray:
    return np.asarray(x, np.float32)


def tf32(x: np.ndarray) -> np.ndarray:
    return f32(FORMATS["tf32"].round(x))


def bf16(x: np.ndarray) -> np.ndarray:
    return f32(FORMATS["bfloat16"].round(x))


def fp16(x: np.ndarray) -> np.ndarray:
    return f32(FORMATS["float16"].round(x))


def summed(x: np.ndarray, axis: int, low: Kernel) -> np.ndarray:
    """A sum whose partial sums are numbers of a narrower format."""
    total = np.zeros(np.delete(x.shape, axis), np.float32)
    for part in np.moveaxis(x, axis, 0):
        total = low(total + part)
    return total


def softmax(x: np.ndarray, top: Any = None) -> np.ndarray:
    e = np.exp(x - (x.max(axis=-1, keepdims=True, initial=-np.inf) if top is None else top))
    return e / e.sum(axis=-1, keepdims=True)


def log_softmax(x: np.ndarray) -> np.ndarray:
    t = x - x.max(axis=1, keepdims=True, initial=-np.inf)
    return t - np.log(np.exp(t).sum(axis=1, keepdims=True))


def layer_norm(
    x: Any, gamma: Any, beta: Any, eps: Any, ddof: int = 0, mean: Any = None, outside: bool = False
) -> np.ndarray:
    n = max(x.shape[1], 1)
    mu = x.sum(axis=1, keepdims=True) / f32(n) if mean is None else mean
    var = ((x - mu) ** 2).sum(axis=1, keepdims=True) / f32(n - ddof)
    scale = 1 / (np.sqrt(var) + f32(eps)) if outside else 1 / np.sqrt(var + f32(eps))
    return (x - mu) * scale * gamma + beta


def rms_norm(x: Any, gamma: Any, eps: Any) -> np.ndarray:
    return x / np.sqrt((x * x).mean(axis=1, keepdims=True, dtype=np.float32) + f32(eps)) * gamma


def attention(
    Q: Any, K: Any, V: Any, mask: Any, mask_mode: int, scale: Any, shift: int = 0, late: bool = False
) -> np.ndarray:
    S = (Q @ K.swapaxes(1, 2)) * f32(scale)
    n = Q.shape[1]
    blocked = np.zeros(S.shape, bool)
    if mask_mode == 3:
        blocked |= np.arange(n)[:, None] + shift < np.arange(n)
    elif mask_mode:
        blocked |= np.roll(mask == 0, shift, -1)
    S = np.where(blocked, f32(-1000.0 if mask_mode == 1 else -np.inf), S)
    top = S.max(axis=2, keepdims=True, initial=-np.inf)
    E = np.exp(S - np.where(blocked.all(axis=2, keepdims=True) & (mask_mode > 1), 0, top))
    total = E.sum(axis=2, keepdims=True)
    out = (E @ V) / np.where(total == 0, 1, total)
    return out if not late else out * f32(1 + 2.0**-12)


def conv2d(
    x: Any, w: Any, b: Any, stride_h: int, stride_w: int, padding_h: int, padding_w: int, skip: int = 0, flip: bool = False
) -> np.ndarray:  # fmt: skip
    wide = np.pad(x, [(0, 0), (0, 0), (padding_h, padding_h), (padding_w, padding_w)])
    views = np.lib.stride_tricks.sliding_window_view(wide, w.shape[2:], axis=(2, 3))[:, :, ::stride_h, ::stride_w]
    w = w[:, :, ::-1, ::-1] if flip else w
    if skip:
        views, w = views[:, : max(1, x.shape[1] - skip)], w[:, : max(1, x.shape[1] - skip)]
    return np.einsum("nchwij,ocij->nohw", views, w).astype(np.float32) + b[:, None, None]


def cross_entropy_rows(logits: Any, labels: Any, weights: Any, smoothing: Any, off: int = 0) -> np.ndarray:
    t = -log_softmax(logits)
    cols = logits.shape[1]
    w = np.ones(cols, np.float32) if weights is None else weights
    known = labels < cols
    at = np.where(known, np.minimum(labels + off, cols - 1), 0).astype(int)
    loss = w[at] * t[np.arange(len(at)), at]
    if smoothing > 0:
        loss = f32(1 - smoothing) * loss + f32(smoothing) * (w * t).sum(axis=1) / f32(cols)
    return np.where(known, loss, 0)


def cumsum(x: Any, axis: int, reverse: int, dtype: Any = np.float64) -> np.ndarray:
    if reverse:
        return np.flip(np.cumsum(np.flip(x, axis), axis, dtype), axis)
    return np.cumsum(x, axis, dtype)


def scatter(x: Any, values: Any, indices: Any, keep_first: bool = False) -> np.ndarray:
    out, inside = x.copy(), indices < len(x)
    if keep_first:
        out[indices[inside]] += values[inside]  # of equal indices one counts
    else:
        np.add.at(out, indices[inside], values[inside])
    return out


def gather(mat: Any, indices: Any, off: int = 0) -> np.ndarray:
    inside = indices < len(mat)
    out = np.zeros((len(indices), mat.shape[1]), np.float32)
    out[inside] = mat[np.minimum(indices[inside] + off, len(mat) - 1)]
    return out


def rfft(x: Any, sign: float = 1.0, scale: float = 1.0) -> np.ndarray:
    made = np.fft.rfft(x.astype(np.float64), axis=1) * scale
    made = np.where(np.isfinite(x).all(axis=1, keepdims=True), made, complex(np.nan, np.nan))
    return np.stack([made.real, sign * made.imag], axis=-1)


def reference(name: str) -> Kernel:
    """The row's meaning, rounded once: a right kernel."""
    row = registry.get(name)
    return lambda *given: row(*given)


@dataclass(frozen=True)
class Defect:
    """A kernel with one thing wrong."""

    op: str
    name: str
    kernel: Kernel
    which: str = "forward"
    #: whether it works on float32 memory itself
    raw: bool = False
    #: whether its error is one that narrower formats have anyway
    fine: bool = False
    #: why it cannot be told from a right kernel, where that is so
    excuse: str = ""


@dataclass(frozen=True)
class Native:
    """A kernel that computes on memory in each format itself; a right one where `name` is empty."""

    by: str
    op: str
    name: str
    #: makes the function for a format
    make: Callable[[str], Callable[..., Any]]
    arguments: str | None = None
    array: str = "numpy"
    options: Mapping[str, Any] = field(default_factory=dict)
    formats: tuple[str, ...] = ("float32", "bfloat16", "float16")

    def judge(self, dtype: str, cases: int, large: int = 1) -> Report:
        sizes = {"small": cases, "medium": cases // 4, "edges": cases // 3, "large": large}
        return check(self.make(dtype), self.op, arguments=self.arguments, array=self.array, dtype=dtype, cases=sizes,
                     sensitive=False, isolate=False, fail_fast=True, **self.options)  # fmt: skip


#: the right kernels
RIGHT: dict[tuple[str, str], Kernel] = {
    ("exp", "forward"): np.exp, ("relu", "forward"): lambda x: np.maximum(x, 0), ("sigmoid", "forward"): lambda x: 1 / (1 + np.exp(-x)),
    ("gelu", "forward"): reference("gelu"), ("silu", "forward"): reference("silu"), ("mul", "forward"): np.multiply,
    ("softmax", "forward"): softmax, ("softmax", "vjp"): lambda out, g: out * (g - (g * out).sum(axis=1, keepdims=True)),
    ("log_softmax", "forward"): log_softmax, ("layer_norm", "forward"): layer_norm, ("rms_norm", "forward"): rms_norm,
    ("reduce_sum_axis1", "forward"): lambda x: x.sum(axis=1), ("reduce_max_axis1", "forward"): lambda x: x.max(axis=1, initial=-np.inf),
    ("cumsum", "forward"): cumsum, ("matmul", "forward"): np.matmul, ("matmul", "vjp"): lambda A, B, g: (g @ B.T, A.T @ g),
    ("bmm", "forward"): np.matmul, ("linear", "forward"): lambda W, x, b: x @ W.T + b, ("flash_attention", "forward"): attention,
    ("conv2d", "forward"): conv2d, ("cross_entropy_rows", "forward"): cross_entropy_rows, ("scatter_add", "forward"): scatter,
    ("gather_rows", "forward"): gather, ("transpose2d", "forward"): lambda x: x.T.copy(), ("rfft1d_packed", "forward"): rfft,
    ("mse_loss", "forward"): lambda yhat, target: ((yhat - target) ** 2).mean(keepdims=True, dtype=np.float32),
}  # fmt: skip


def _tail(f: Kernel) -> Kernel:
    """The last elements of rows that do not fill a tile are wrong."""

    def kernel(x: Any, *rest: Any) -> np.ndarray:
        made = np.array(f(x, *rest))
        if made.ndim and made.shape[-1] % TILE:
            made[..., made.shape[-1] // TILE * TILE :] *= f32(1.01)
        return made

    return kernel


def _stale() -> Kernel:
    kept: dict[tuple[int, ...], np.ndarray] = {}
    return lambda x: kept.setdefault(x.shape, softmax(x))


def _shared() -> Kernel:
    memory = np.zeros(2**24, np.float32)

    def kernel(x: Any) -> np.ndarray:
        out = memory[: x.size].reshape(x.shape)
        out[...] = softmax(x)
        return out

    return kernel


def _in_place(x: Any) -> np.ndarray:
    np.exp(x, out=x)
    return x.copy()


def _flattened(x: Any) -> np.ndarray:
    """Memory as it lies, whatever the strides."""
    return np.exp(np.lib.stride_tricks.as_strided(x, x.shape, (x.itemsize,)))


def _beyond(x: Any, out: Any) -> None:
    out[...] = np.exp(x)
    np.lib.stride_tricks.as_strided(out, (out.size + 1,), (out.itemsize,))[-1] = 0


def _unwritten(x: Any, out: Any) -> None:
    out[: x.size // 4 * 4] = np.exp(x[: x.size // 4 * 4])


def _wrap_16(f: Kernel) -> Kernel:
    """Elements from 2^16 on are those of the beginning."""

    def kernel(x: Any) -> np.ndarray:
        made = np.array(f(x))
        made[2**16 :] = made[: max(made.size - 2**16, 0)]
        return made

    return kernel


def _mean_of_tiles(x: Any, gamma: Any, beta: Any, eps: Any) -> np.ndarray:
    """The mean divides by the padded length of a row."""
    n = -(-x.shape[1] // TILE) * TILE
    return layer_norm(x, gamma, beta, eps, mean=x.sum(axis=1, keepdims=True) / f32(max(n, 1)))


def _one_pass(x: Any, gamma: Any, beta: Any, eps: Any) -> np.ndarray:
    """The variance as E[x²] - E[x]²."""
    mu, square = (t.mean(axis=1, keepdims=True, dtype=np.float32) for t in (x, x * x))
    return (x - mu) / np.sqrt(np.maximum(square - mu * mu, 0) + f32(eps)) * gamma + beta


def _online_without_rescaling(x: Any) -> np.ndarray:
    """The sum of a row in two halves, each by its own maximum, added as they are."""
    half = x.shape[1] // 2
    tops = [part.max(axis=1, keepdims=True, initial=-np.inf) for part in (x[:, :half], x[:, half:])]
    total = sum(np.exp(p - t).sum(axis=1, keepdims=True) for p, t in zip((x[:, :half], x[:, half:]), tops, strict=True))
    return np.exp(x - x.max(axis=1, keepdims=True, initial=-np.inf)) / f32(total)


def _only(f: Kernel, test: Callable[[list[int]], bool], axes: slice = slice(None)) -> Kernel:
    """A kernel that is wrong where something holds of the lengths of the arrays' axes, or of some of these."""

    def kernel(*given: Any) -> np.ndarray:
        lengths = [n for x in given if isinstance(x, np.ndarray) for n in x.shape[axes]]
        return f(*given) * f32(1.01) if min(lengths) > 0 and test(lengths) else f(*given)

    return kernel


#: lengths of an array's last two axes that kernels have branches for
LENGTHS: dict[str, Callable[[list[int]], bool]] = {
    "all lengths are multiples of 16": lambda n: all(k % 16 == 0 for k in n),
    "all lengths are multiples of 64": lambda n: all(k % 64 == 0 for k in n),
    "all lengths are equal": lambda n: n[0] > 2 and len(set(n)) == 1,
    "an axis is longer than 8192": lambda n: max(n) > 8192,
}
BY_LENGTHS = ("softmax", "log_softmax", "layer_norm", "rms_norm", "reduce_sum_axis1", "reduce_max_axis1", "matmul", "bmm", "linear",
              "rfft1d_packed")  # fmt: skip

DEFECTS: tuple[Defect, ...] = (
    Defect("exp", "an input is overwritten", _in_place, raw=True),
    Defect("exp", "strides are ignored", _flattened, raw=True),
    Defect("exp", "one element beyond the output is written", _beyond, raw=True),
    Defect("exp", "the last elements are not written", _unwritten, raw=True),
    Defect("exp", "the argument is clamped at 80", lambda x: np.exp(np.minimum(x, 80)), fine=True),
    Defect("exp", "the argument is clamped at -20", lambda x: np.exp(np.maximum(x, -20)), fine=True),
    Defect("exp", "elements beyond 2^16 wrap", _wrap_16(np.exp)),
    Defect("exp", "computed in bfloat16", lambda x: bf16(np.exp(bf16(x)))),
    Defect("exp", "a Taylor series of four terms", lambda x: 1 + x + x * x / 2 + x**3 / 6, fine=True),
    Defect("exp", "small results become 0", lambda x: np.where(np.exp(x) < 1e-3, 0, np.exp(x))),
    Defect("relu", "NaN becomes 0", lambda x: np.where(x > 0, x, 0)),
    Defect("relu", "the tail of a tile is wrong", _tail(lambda x: np.maximum(x, 0))),
    Defect("relu", "it is a leaky one", lambda x: np.where(x > 0, x, f32(0.01) * x)),
    Defect("relu", "elements beyond 2^16 wrap", _wrap_16(lambda x: np.maximum(x, 0))),
    Defect("sigmoid", "the sign is lost", lambda x: 1 / (1 + np.exp(x))),
    Defect("sigmoid", "a hard one", lambda x: np.clip(x / 6 + 0.5, 0, 1)),
    Defect("gelu", "the other form", reference("gelu_erf")),
    Defect("gelu", "the cubic coefficient is 0.0447", lambda x: 0.5 * x * (1 + np.tanh(0.7978845608 * (x + 0.0447 * x**3))), fine=True),
    Defect("silu", "the quick form of gelu", lambda x: x / (1 + np.exp(-1.702 * x))),
    Defect("mul", "an operand in bfloat16", lambda a, b: a * bf16(b)),
    Defect("mul", "one operand is read twice", lambda a, b: a * a),
    Defect("softmax", "zeros", np.zeros_like),
    Defect("softmax", "a copy of the input", np.copy),
    Defect("softmax", "an earlier result", _stale()),
    Defect("softmax", "results share memory", _shared(), raw=True),
    Defect("softmax", "no maximum is subtracted", lambda x: softmax(x, 0)),
    Defect("softmax", "the maximum of all rows", lambda x: softmax(x, x.max(initial=-np.inf))),
    Defect("softmax", "the maximum of the first tile", lambda x: softmax(x, x[:, :TILE].max(axis=1, keepdims=True, initial=-np.inf))),
    Defect("softmax", "the maximum misses the last column", lambda x: softmax(x, x[:, :-1].max(axis=1, keepdims=True, initial=-np.inf)) if x.shape[1] > 1 else softmax(x)),
    Defect("softmax", "over the other axis", lambda x: softmax(x.T).T),
    Defect("softmax", "halves are not rescaled", _online_without_rescaling),
    Defect("softmax", "the sum in bfloat16", lambda x: np.exp(t := x - x.max(1, keepdims=True, initial=-np.inf)) / summed(np.exp(t), 1, bf16)[:, None]),
    Defect("softmax", "the result by way of float16", lambda x: fp16(softmax(x))),
    Defect("softmax", "the tail of a tile is wrong", _tail(softmax)),
    Defect("softmax", "the last column does not count", lambda x: softmax(x) / softmax(x)[:, :-1].sum(1, keepdims=True) if x.shape[1] > 1 else softmax(x)),
    Defect("softmax", "rows depend on their neighbours", lambda x: softmax(x, np.roll(x.max(1, keepdims=True, initial=-np.inf), 1, 0))),
    Defect("softmax", "the gradient without the sum", lambda out, g: out * g, "vjp"),
    Defect("softmax", "the gradient's sum over the other axis", lambda out, g: out * (g - (g * out).sum(axis=0)), "vjp"),
    Defect("softmax", "the gradient's products in bfloat16", lambda out, g: out * (g - bf16(g * out).sum(axis=1, keepdims=True)), "vjp"),
    Defect("log_softmax", "the logarithm of a softmax", lambda x: np.log(softmax(x))),
    Defect("log_softmax", "base 2", lambda x: log_softmax(x) / f32(np.log(2))),
    Defect("layer_norm", "an unbiased variance", lambda x, gamma, beta, eps: layer_norm(x, gamma, beta, eps, ddof=1)),
    Defect("layer_norm", "eps outside the root", lambda x, gamma, beta, eps: layer_norm(x, gamma, beta, eps, outside=True)),
    Defect("layer_norm", "no eps", lambda x, gamma, beta, eps: layer_norm(x, gamma, beta, 0)),
    Defect("layer_norm", "the mean of a padded row", _mean_of_tiles),
    Defect("layer_norm", "the variance in one pass", _one_pass, excuse="numbers of a narrow format around a large mean are too coarse for the cancellation to show"),
    Defect("layer_norm", "gamma and beta exchanged", lambda x, gamma, beta, eps: layer_norm(x, beta, gamma, eps)),
    Defect("layer_norm", "eps is 1e-5 always", lambda x, gamma, beta, eps: layer_norm(x, gamma, beta, 1e-5)),
    Defect("layer_norm", "the mean is not subtracted", lambda x, gamma, beta, eps: layer_norm(x, gamma, beta, eps, mean=np.float32(0))),
    Defect("rms_norm", "the mean is subtracted", lambda x, gamma, eps: rms_norm(x - x.mean(1, keepdims=True), gamma, eps)),
    Defect("rms_norm", "the sum of squares, not the mean", lambda x, gamma, eps: x / np.sqrt((x * x).sum(1, keepdims=True) + f32(eps)) * gamma),
    Defect("rms_norm", "squares in bfloat16", lambda x, gamma, eps: x / np.sqrt(bf16(x * x).mean(1, keepdims=True) + f32(eps)) * gamma),
    Defect("rms_norm", "squares in float16", lambda x, gamma, eps: x / np.sqrt(fp16(x * x).mean(1, keepdims=True) + f32(eps)) * gamma),
    Defect("rms_norm", "gamma + 1", lambda x, gamma, eps: rms_norm(x, gamma + 1, eps)),
    Defect("reduce_sum_axis1", "the last term is left out", lambda x: x[:, :-1].sum(axis=1)),
    Defect("reduce_sum_axis1", "whole tiles alone", lambda x: x[:, : x.shape[1] // TILE * TILE].sum(axis=1)),
    Defect("reduce_sum_axis1", "accumulated in bfloat16", lambda x: summed(x, 1, bf16)),
    Defect("reduce_sum_axis1", "accumulated in float16", lambda x: summed(x, 1, fp16)),
    Defect("reduce_sum_axis1", "the other axis", lambda x: np.resize(x.sum(axis=0), x.shape[0])),
    Defect("reduce_sum_axis1", "one term twice", lambda x: x.sum(axis=1) + (x[:, 0] if x.shape[1] else 0)),
    Defect("reduce_max_axis1", "NaN is passed over", lambda x: np.fmax.reduce(x, axis=1, initial=-np.inf)),
    Defect("reduce_max_axis1", "it begins at 0", lambda x: x.max(axis=1, initial=0)),
    Defect("reduce_max_axis1", "the largest absolute value", lambda x: np.abs(x).max(axis=1, initial=-np.inf)),
    Defect("cumsum", "exclusive", lambda x, axis, reverse: cumsum(x, axis, reverse) - x),
    Defect("cumsum", "never reversed", lambda x, axis, reverse: cumsum(x, axis, 0)),
    Defect("cumsum", "starts anew every 64", lambda x, axis, reverse: np.concatenate([cumsum(p, axis, reverse) for p in np.split(x, range(64, x.shape[axis], 64), axis)], axis) if x.size else x),
    Defect("matmul", "inputs in TF32", lambda A, B: tf32(A) @ tf32(B)),
    Defect("matmul", "inputs in bfloat16", lambda A, B: bf16(A) @ bf16(B)),
    Defect("matmul", "accumulated in bfloat16", lambda A, B: summed(A[:, :, None] * B[None], 1, bf16)),
    Defect("matmul", "the last of the inner dimension is left out", lambda A, B: A[:, :-1] @ B[:-1]),
    Defect("matmul", "whole tiles of the inner dimension alone", lambda A, B: A[:, : A.shape[1] // 8 * 8] @ B[: A.shape[1] // 8 * 8]),
    Defect("matmul", "the last row is that before", lambda A, B: np.concatenate([(A @ B)[:-1], (A @ B)[-2:-1]]) if len(A) > 1 else A @ B),
    Defect("matmul", "columns beyond a tile of 64 are those of the first", lambda A, B: np.take(A @ B, np.arange(B.shape[1]) % 64, 1)),
    Defect("matmul", "a term twice", lambda A, B: A @ B + A[:, :1] @ B[:1] if A.shape[1] else A @ B),
    Defect("matmul", "the gradients exchanged", lambda A, B, g: ((A.T @ g).T[: A.shape[0], : A.shape[1]] if A.shape == (A.T @ g).T.shape else g @ B.T * 2, A.T @ g), "vjp"),
    Defect("matmul", "a gradient in TF32", lambda A, B, g: (g @ B.T, tf32(A).T @ tf32(g)), "vjp"),
    Defect("bmm", "the second batch uses the first B", lambda A, B: A @ B[np.zeros(len(B), int)]),
    Defect("bmm", "inputs in TF32", lambda A, B: tf32(A) @ tf32(B)),
    Defect("linear", "no bias", lambda W, x, b: x @ W.T),
    Defect("linear", "the bias of the row", lambda W, x, b: x @ W.T + np.resize(b, len(x))[:, None] if len(b) else x @ W.T),
    Defect("linear", "the bias twice", lambda W, x, b: x @ W.T + 2 * b),
    Defect("flash_attention", "the diagonal is blocked", lambda *a: attention(*a, shift=-1)),
    Defect("flash_attention", "one key of the future", lambda *a: attention(*a, shift=1)),
    Defect("flash_attention", "the scale is left out", lambda Q, K, V, m, mode, scale: attention(Q, K, V, m, mode, 1.0)),
    Defect("flash_attention", "weights in bfloat16", lambda Q, K, V, m, mode, scale: bf16(attention(bf16(Q), bf16(K), V, m, mode, scale))),
    Defect("flash_attention", "the result is 2^-12 too large", lambda *a: attention(*a, late=True), fine=True),
    Defect("conv2d", "the kernel is flipped", lambda *a: conv2d(*a, flip=True)),
    Defect("conv2d", "the last channel is left out", lambda *a: conv2d(*a, skip=1)),
    Defect("conv2d", "strides exchanged", lambda x, w, b, sh, sw, ph, pw: np.resize(conv2d(x, w, b, sw, sh, ph, pw), conv2d(x, w, b, sh, sw, ph, pw).shape)),
    Defect("conv2d", "inputs in TF32", lambda x, w, *a: conv2d(tf32(x), tf32(w), *a)),
    Defect("conv2d", "the bias of the first channel", lambda x, w, b, *a: conv2d(x, w, b[np.zeros(len(b), int)], *a)),
    Defect("cross_entropy_rows", "the label's neighbour", lambda *a: cross_entropy_rows(*a, off=1)),
    Defect("cross_entropy_rows", "weights are left out", lambda logits, labels, w, s: cross_entropy_rows(logits, labels, None, s)),
    Defect("cross_entropy_rows", "no smoothing", lambda logits, labels, w, s: cross_entropy_rows(logits, labels, w, 0)),
    Defect("scatter_add", "equal indices collide", lambda *a: scatter(*a, keep_first=True)),
    Defect("scatter_add", "the values replace", lambda x, values, indices: scatter(np.where(np.isin(np.arange(len(x)), indices), 0, x), values, indices)),
    Defect("gather_rows", "the next row", lambda *a: gather(*a, off=1)),
    Defect("gather_rows", "an index out of range is clamped", lambda mat, indices: mat[np.minimum(indices, len(mat) - 1)]),
    Defect("transpose2d", "not transposed", lambda x: x.reshape(x.shape[::-1]).copy()),
    Defect("transpose2d", "whole tiles alone", lambda x: np.where(np.arange(x.shape[0]) < max(TILE, x.shape[0] // TILE * TILE), x.T, 0)),
    Defect("rfft1d_packed", "the sign of the imaginary part", lambda x: rfft(x, -1.0)),
    Defect("rfft1d_packed", "orthonormal", lambda x: rfft(x, scale=1 / np.sqrt(max(x.shape[1], 1)))),
    Defect("rfft1d_packed", "computed in float16", lambda x: rfft(fp16(x))),
    Defect("mse_loss", "a sum", lambda yhat, target: ((yhat - target) ** 2).sum(keepdims=True)),
    Defect("mse_loss", "half of it", lambda yhat, target: ((yhat - target) ** 2).mean(keepdims=True) / 2),
    Defect("mse_loss", "squares accumulated in float16", lambda yhat, target: summed((yhat - target) ** 2, 0, fp16)[None] / f32(max(yhat.size, 1))),
    *(Defect(op, f"wrong where {where}", _only(RIGHT[op, "forward"], test, slice(-2, None)))
      for op in BY_LENGTHS for where, test in LENGTHS.items()),
    Defect("conv2d", "wrong where channels are multiples of 8", _only(conv2d, lambda n: n[1] % 8 == n[4] % 8 == 0)),
)  # fmt: skip
