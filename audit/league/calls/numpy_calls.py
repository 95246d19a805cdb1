"""The calls of NumPy, which CuPy and JAX have as well."""

from typing import Any

from tlspec.ops.shape import index_of_slice, insert_axes, repeated_axes

#: calls of several operations, which round between them
COMPOSED = frozenset({
    "axpy", "leaky_relu", "safe_log", "elu", "softsign", "softmax", "log_softmax", "layer_norm", "rms_norm",
    "batchnorm_channel_first", "channel_affine", "mse_loss", "bce_with_logits", "cross_entropy", "logsumexp", "vector_norm",
    "var", "linear", "reduce_mean", "rotary", "scatter_add", "scatter_add_rows", "scatter_add_axis", "scatter_add_row",
    "selective_scan_diag", "selective_scan_diag_var", "cumsum", "prod",
})  # fmt: skip

#: rows, or gradients, that add in place, so in the format of the array
IN_PLACE = frozenset(
    {
        *((row, "forward") for row in ("scatter_add", "scatter_add_rows", "scatter_add_axis", "scatter_add_row")),
        *((row, "vjp") for row in ("gather_vec", "gather_rows", "take_axis")),
    }
)
#: rows whose gradient ends the process, so that it cannot be judged
ENDS_THE_PROCESS: frozenset[str] = frozenset()
#: rows that the library has in no narrower format
FLOAT32 = frozenset({"rfft1d_packed", "irfft1d_packed"})

LEFT_OUT = {
    "sigmoid, silu, gelu, mish, erf, softsign": "NumPy has no such function, and the plain formula fails at large arguments",
    "vector_norm": "NumPy's takes one or two axes, or all",
    "conv, pool, attention": "NumPy has none",
    "dgemm": "of float64 alone, which the league does not run",
}


def over(axes: int) -> tuple[int, ...]:
    """The axes whose bits are set."""
    return tuple(k for k in range(8) if axes >> k & 1)


def calls(np: Any) -> dict[str, Any]:
    """The calls in a module with NumPy's names."""

    def wide(c: float) -> Any:
        """A number in float32, as NumPy rounds a Python number beside an array to the array's format."""
        return np.asarray(c, np.float32)

    def rounded(y: Any, x: Any) -> Any:
        return y.astype(x.dtype)

    def softmax(x: Any) -> Any:
        e = np.exp(x - np.max(x, axis=1, keepdims=True))
        return e / np.sum(e, axis=1, keepdims=True)

    def log_softmax(x: Any) -> Any:
        t = x - np.max(x, axis=1, keepdims=True)
        return t - np.log(np.sum(np.exp(t), axis=1, keepdims=True))

    def cross_entropy(logits: Any, labels: Any) -> Any:
        return -np.mean(np.take_along_axis(log_softmax(logits), labels[:, None], axis=1))

    def normalised(x: Any, axis: Any, eps: float) -> Any:
        return (x - np.mean(x, axis=axis, keepdims=True)) / np.sqrt(np.var(x, axis=axis, keepdims=True) + eps)

    def var(x: Any, axes: int, correction: float, root: int) -> Any:
        return (np.std if root else np.var)(x, axis=over(axes), ddof=correction)

    def cumsum(x: Any, axis: int, reverse: int) -> Any:
        return np.flip(np.cumsum(np.flip(x, axis), axis=axis), axis) if reverse else np.cumsum(x, axis=axis)

    def padded(x: Any, axis: int = 0) -> Any:
        """With zeros at the index behind the last, where indices out of range are sent."""
        shape = [*x.shape[:axis], 1, *x.shape[axis + 1 :]]
        return np.concatenate([x, np.zeros(shape, x.dtype)], axis=axis)

    def gather(x: Any, indices: Any) -> Any:
        return np.take(padded(x), np.minimum(indices, x.shape[0]), axis=0)

    def take_axis(x: Any, indices: Any, outer: int, n: int, k: int, inner: int) -> Any:
        where = np.broadcast_to(np.minimum(indices, n), (outer, k, inner))
        return np.take_along_axis(padded(x, 1), where, axis=1)

    def scatter_add(x: Any, values: Any, indices: Any) -> Any:
        out = padded(x)
        np.add.at(out, np.minimum(indices, x.shape[0]), values)
        return out[:-1]

    def scatter_add_axis(x: Any, values: Any, indices: Any, outer: int, n: int, k: int, inner: int) -> Any:
        out = padded(x, 1)
        where = np.broadcast_to(np.minimum(indices, n), (outer, k, inner))
        np.add.at(out, (np.arange(outer)[:, None, None], where, np.arange(inner)), values)
        return out[:, :-1]

    def scatter_add_row(mat: Any, row: Any, i: int) -> Any:
        out = mat.copy()
        out[i] += row
        return out

    def reduce_from_broadcast(x: Any, in_dims: Any, out_dims: Any, axis_map: Any) -> Any:
        kept = np.sum(x, axis=repeated_axes(in_dims, out_dims, axis_map), keepdims=True)
        return np.transpose(kept, sorted(range(x.ndim), key=lambda j: axis_map[j])).reshape(in_dims)

    def pad_axes(x: Any, in_dims: Any, out_dims: Any, starts: Any, steps: Any, reversed: int, value: float) -> Any:
        out = np.full(out_dims, value, x.dtype)
        out[index_of_slice(starts, in_dims, steps, reversed)] = x
        return out

    def rfft(x: Any) -> Any:
        z = np.fft.rfft(x)
        return np.stack([z.real, z.imag], axis=-1)

    def topk(x: Any, k: int, largest: int) -> Any:
        order = (
            np.argsort(x[:, ::-1], axis=1, kind="stable")[:, ::-1] if largest else np.argsort(x, axis=1, kind="stable")
        )
        return x.shape[1] - 1 - order[:, :k] if largest else order[:, :k]

    def scan(A: Any, B: Any, x: Any, h0: Any) -> Any:
        out, h = np.empty_like(x), h0
        for t in range(len(x)):
            h = out[t] = (A[t] if A.ndim == 2 else A) * h + (B[t] if B.ndim == 2 else B) * x[t]
        return out

    return {
        "add": lambda a, b: a + b, "sub": lambda a, b: a - b, "mul": lambda a, b: a * b, "div": lambda a, b: a / b,
        "scale": lambda x, c: rounded(x * wide(c), x),
        "axpy": lambda a, b, c: rounded(a + wide(c) * b, a), "inv": lambda x: np.reciprocal(x),
        "sqrt": lambda x: np.sqrt(x), "abs": lambda x: np.abs(x), "max": lambda a, b: np.maximum(a, b),
        "min": lambda a, b: np.minimum(a, b), "clamp": lambda x, lo, hi: np.clip(x, lo, hi),
        "relu": lambda x: np.maximum(x, 0.0), "leaky_relu": lambda x, slope: np.where(x > 0, x, slope * x),
        "sign": lambda x: np.sign(x), "floor": lambda x: np.floor(x), "round": lambda x: np.rint(x),
        "eq": lambda a, b: (a == b).astype(a.dtype), "ne": lambda a, b: (a != b).astype(a.dtype),
        "lt": lambda a, b: (a < b).astype(a.dtype), "le": lambda a, b: (a <= b).astype(a.dtype),
        "where": lambda mask, a, b: np.where(mask != 0, a, b),
        "masked_fill": lambda x, mask, value: np.where(mask != 0, np.asarray(value, x.dtype), x),
        "exp": lambda x: np.exp(x), "log": lambda x: np.log(x), "tanh": lambda x: np.tanh(x),
        "safe_log": lambda x, eps: np.log(np.logaddexp(x, np.asarray(0, x.dtype)) + eps),
        "softplus": lambda x: np.logaddexp(x, np.asarray(0, x.dtype)), "log1p": lambda x: np.log1p(x),
        "expm1": lambda x: np.expm1(x), "sin": lambda x: np.sin(x), "cos": lambda x: np.cos(x),
        "atan2": lambda y, x: np.arctan2(y, x), "pow": lambda a, b: np.power(a, b), "pow_scalar": lambda x, p: np.power(x, p),
        "elu": lambda x, alpha: np.where(x > 0, x, alpha * np.expm1(x)),
        "reduce_sum": lambda x: np.sum(x), "reduce_sum_axis0": lambda x: np.sum(x, axis=0),
        "reduce_sum_axis1": lambda x: np.sum(x, axis=1), "reduce_sum_axis": lambda x, axis: np.sum(x, axis=axis),
        "reduce_mean": lambda x, axis: np.mean(x, axis=axis), "reduce_max_axis0": lambda x: np.max(x, axis=0),
        "reduce_max_axis1": lambda x: np.max(x, axis=1), "amax": lambda x, axes: np.max(x, axis=over(axes)),
        "amin": lambda x, axes: np.min(x, axis=over(axes)), "prod": lambda x, axes: np.prod(x, axis=over(axes)),
        "var": var, "cumsum": cumsum,
        "concat1d": lambda a, b: np.concatenate([a, b]), "slice1d": lambda x, start, len: x[start : start + len],
        "slice_axes": lambda x, out_dims, starts, steps, reversed: x[index_of_slice(starts, out_dims, steps, reversed)],
        "pad_axes": pad_axes, "concat_rows": lambda a, b: np.concatenate([a, b], axis=1),
        "broadcast_vec_to_rows": lambda vec, rows, cols: np.broadcast_to(vec, (rows, cols)),
        "broadcast_vec_to_cols": lambda vec, rows, cols: np.broadcast_to(vec[:, None], (rows, cols)),
        "broadcast_to": lambda x, in_dims, out_dims, axis_map: np.broadcast_to(insert_axes(x, in_dims, axis_map), out_dims),
        "reduce_from_broadcast": reduce_from_broadcast,
        "transpose2d": lambda x: x.T, "swap_adjacent_at_depth": lambda x, depth: np.swapaxes(x, depth, depth + 1),
        "transpose3d_bca": lambda x: np.transpose(x, (1, 2, 0)), "transpose3d_cab": lambda x: np.transpose(x, (2, 0, 1)),
        "transpose3d_acb": lambda x: np.transpose(x, (0, 2, 1)),
        "gather_vec": lambda vec, indices: gather(vec, indices), "gather_rows": lambda mat, indices: gather(mat, indices),
        "scatter_add": scatter_add, "scatter_add_rows": lambda mat, values, indices: scatter_add(mat, values, indices),
        "scatter_add_axis": scatter_add_axis, "scatter_add_row": scatter_add_row, "take_axis": take_axis,
        "argmax": lambda x: np.argmax(x, axis=1), "argmin": lambda x: np.argmin(x, axis=1), "topk": topk,
        "matmul": lambda A, B: A @ B, "bmm": lambda A, B: A @ B, "linear": lambda W, x, b: x @ W.T + b,
        "softmax": softmax, "log_softmax": log_softmax,
        "layer_norm": lambda x, gamma, beta, eps: normalised(x, 1, eps) * gamma + beta,
        "rms_norm": lambda x, gamma, eps: x / np.sqrt(np.mean(np.square(x), axis=1, keepdims=True) + eps) * gamma,
        "batchnorm_channel_first": lambda x, gamma, beta, eps: (
            normalised(x, (1, 2), eps) * gamma[:, None, None] + beta[:, None, None]),
        "channel_affine": lambda x, center, slope, shift: (x - center[:, None]) * slope[:, None] + shift[:, None],
        "mse_loss": lambda yhat, target: np.mean(np.square(yhat - target)), "cross_entropy": cross_entropy,
        "selective_scan_diag": lambda A, B, x, h0: scan(A, B, x, h0),
        "selective_scan_diag_var": lambda A, B, x, h0: scan(A, B, x, h0),
        "rfft1d_packed": rfft,
        "irfft1d_packed": lambda spec, n: np.fft.irfft(np.ascontiguousarray(spec).view(np.complex64)[..., 0], n),
    }  # fmt: skip
