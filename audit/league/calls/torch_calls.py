"""The calls of PyTorch, on any device, and its gradients by autograd."""

from collections.abc import Callable, Mapping
from typing import Any

from audit.league.calls import numpy_calls
from audit.league.calls.numpy_calls import over
from tlspec.ops.shape import index_of_slice, repeated_axes

COMPOSED = frozenset({
    "safe_log", "linear", "channel_affine", "axpy", "rotary", "sinusoidal", "cumsum", "flash_attention", "grouped_attention",
    "cross_entropy", "cross_entropy_rows", "mse_loss", "bce_with_logits", "logsumexp", "prod", "softsign", "mish",
    "conv_transpose", "conv_transpose2d", "conv_transpose_grouped", "scatter_add", "scatter_add_rows", "scatter_add_axis",
    "scatter_add_row", "batchnorm_channel_first", "rms_norm",
})  # fmt: skip

ENDS_THE_PROCESS = numpy_calls.ENDS_THE_PROCESS
IN_PLACE = numpy_calls.IN_PLACE | {(row, "vjp") for row in ("max_pool", "avg_pool", "max_pool2d", "avg_pool2d")}
#: rows that the library has in no narrower format
FLOAT32 = frozenset({"rfft1d_packed", "irfft1d_packed", "spectral_conv1d_rfft"})

LEFT_OUT = {
    "topk": "torch.topk promises no order of equal elements, and the row does",
    "smooth_max_pool": "PyTorch has none",
    "selective_scan_diag": "PyTorch has no scan",
    "dgemm": "of float64 alone, which the league does not run",
}


def calls() -> dict[str, Any]:
    """The calls by row."""
    import torch

    F = torch.nn.functional

    def padded(x: Any, axis: int = 0) -> Any:
        """With zeros at the index behind the last, where indices out of range are sent."""
        return torch.cat([x, torch.zeros_like(x.sum(axis, keepdim=True))], axis)

    def gather(x: Any, indices: Any) -> Any:
        return torch.index_select(padded(x), 0, indices.clamp(max=x.shape[0]))

    def scatter_add(x: Any, values: Any, indices: Any) -> Any:
        return torch.index_add(padded(x), 0, indices.clamp(max=x.shape[0]), values)[:-1]

    def take_axis(x: Any, indices: Any, outer: int, n: int, k: int, inner: int) -> Any:
        return torch.gather(padded(x, 1), 1, indices.clamp(max=n).expand(outer, k, inner))

    def scatter_add_axis(x: Any, values: Any, indices: Any, outer: int, n: int, k: int, inner: int) -> Any:
        return torch.scatter_add(padded(x, 1), 1, indices.clamp(max=n).expand(outer, k, inner), values)[:, :-1]

    def scatter_add_row(mat: Any, row: Any, i: int) -> Any:
        return torch.index_add(mat, 0, torch.tensor([i], device=mat.device), row[None])

    def slice_axes(x: Any, out_dims: Any, starts: Any, steps: Any, reversed: int) -> Any:
        """PyTorch has no negative steps: the slice forwards, then flipped."""
        low = [s - t * (n - 1) if reversed >> k & 1 and n else s
               for k, (s, t, n) in enumerate(zip(starts, steps, out_dims, strict=True))]  # fmt: skip
        return torch.flip(x[index_of_slice(low, out_dims, steps, 0)], [k for k in range(x.ndim) if reversed >> k & 1])

    def pad_axes(x: Any, in_dims: Any, out_dims: Any, starts: Any, steps: Any, reversed: int, value: float) -> Any:
        low = [s - t * (n - 1) if reversed >> k & 1 and n else s
               for k, (s, t, n) in enumerate(zip(starts, steps, in_dims, strict=True))]  # fmt: skip
        out = torch.full(out_dims, value, dtype=x.dtype, device=x.device)
        out[index_of_slice(low, in_dims, steps, 0)] = torch.flip(x, [k for k in range(x.ndim) if reversed >> k & 1])
        return out

    def prod(x: Any, axes: int) -> Any:
        for k in sorted(over(axes), reverse=True):
            x = torch.prod(x, dim=k)
        return x

    def some(f: Callable[..., Any], x: Any, axes: int, *more: Any, **named: Any) -> Any:
        """A reduction of some axes; of none, which PyTorch reads as all, of a new axis."""
        return f(x, *more, dim=over(axes), **named) if axes else f(x[..., None], *more, dim=-1, **named)

    def var(x: Any, axes: int, correction: float, root: int) -> Any:
        return some(torch.std if root else torch.var, x, axes, correction=correction)

    def cumsum(x: Any, axis: int, reverse: int) -> Any:
        return x.flip(axis).cumsum(axis).flip(axis) if reverse else x.cumsum(axis)

    def pool(kind: str) -> Callable[..., Any]:
        def run(x: Any, kernel: Any, stride: Any, padding: Any) -> Any:
            f = getattr(F, f"{kind}_pool{len(kernel)}d")
            return f(x[None], tuple(kernel), tuple(stride), tuple(padding))[0]

        return run

    def pool2d(kind: str) -> Callable[..., Any]:
        def run(
            x: Any, kernel_h: int, kernel_w: int, stride_h: int, stride_w: int, padding_h: int, padding_w: int
        ) -> Any:
            return pool(kind)(x, (kernel_h, kernel_w), (stride_h, stride_w), (padding_h, padding_w))

        return run

    def grouped(kind: str) -> Callable[..., Any]:
        def run(x: Any, w: Any, b: Any = None, *, stride: Any, dilation: Any, padding_low: Any, padding_high: Any,
                output_padding: Any = None) -> Any:  # fmt: skip
            rank, groups = len(stride), x.shape[1]
            more = {"output_padding": output_padding} if output_padding is not None else {}
            if kind == "conv":  # PyTorch pads both ends alike: the larger of the two, then less
                ends = [(low, high) for low, high in zip(padding_low, padding_high, strict=True)]
                x = F.pad(x, [n for pair in reversed(ends) for n in pair])
                padding_low = [0] * rank
            elif list(padding_low) != list(padding_high):
                raise NotImplementedError("paddings that differ")
            y = getattr(F, f"{kind}{rank}d")(
                x.flatten(1, 2), w.flatten(0, 1), None if b is None else b.flatten(), stride=tuple(stride),
                padding=tuple(padding_low), dilation=tuple(dilation), groups=groups, **more)  # fmt: skip
            return y.unflatten(1, (groups, -1))

        return run

    def attention(Q: Any, K: Any, V: Any, mask: Any = None, *, mask_mode: int, scale: float) -> Any:
        if mask_mode == 1:  # a score of -1000, which the fused operation does not have
            scores = torch.where(mask == 0, -1000.0, torch.bmm(Q * scale, K.mT))
            return torch.bmm(torch.softmax(scores, 2), V)
        allowed = mask != 0 if mask_mode == 2 else None
        return F.scaled_dot_product_attention(Q, K, V, attn_mask=allowed, is_causal=mask_mode == 3, scale=scale)

    def grouped_attention(Q: Any, K: Any, V: Any, mask: Any = None, *, mask_mode: int, before: int, after: int, offset: int,
                          scale: float) -> Any:  # fmt: skip
        i, j = (torch.arange(n, device=Q.device) for n in (Q.shape[2], K.shape[2]))
        at = i[:, None] + offset
        allowed: Any = (j >= at - before) & (j <= at + after)
        if mask_mode == 1:
            allowed = allowed & (mask != 0)
        if mask_mode == 2:
            allowed = torch.where(allowed, mask, -torch.inf)
        grouped = Q.shape[1] != K.shape[1]
        return F.scaled_dot_product_attention(Q, K, V, attn_mask=allowed, scale=scale, enable_gqa=grouped)

    def turns(x: Any, base: float, start: int) -> Any:
        n, d = x.shape[1:]
        position, pair = (torch.arange(k, dtype=torch.float64, device=x.device) for k in (n, (d + 1) // 2))
        return torch.outer(start + position, base ** (-2 * pair / max(d, 1)))

    def rotary(x: Any, base: float, start: int, halves: int) -> Any:
        angle = turns(x, base, start)
        c, s, m = angle.cos().to(x.dtype), angle.sin().to(x.dtype), x.shape[2] // 2
        if halves:
            return torch.cat((x[..., :m] * c - x[..., m:] * s, x[..., :m] * s + x[..., m:] * c), 2)
        return torch.stack((x[..., ::2] * c - x[..., 1::2] * s, x[..., ::2] * s + x[..., 1::2] * c), 3).flatten(2)

    def sinusoidal(x: Any, base: float, start: int) -> Any:
        angle = turns(x, base, start)
        return x + torch.stack((angle.sin(), angle.cos()), 2).flatten(1)[:, : x.shape[2]].to(x.dtype)

    def cross_entropy_rows(logits: Any, labels: Any, weights: Any = None, *, smoothing: float) -> Any:
        labels = torch.where(labels < logits.shape[1], labels, -100)  # PyTorch's label of no class
        return F.cross_entropy(logits, labels, weights, reduction="none", label_smoothing=smoothing)

    def spectral_conv(x: Any, wRe: Any, wIm: Any) -> Any:
        n, modes = len(x), len(wRe)
        spectrum = torch.zeros(n // 2 + 1, x.shape[1], dtype=torch.complex64, device=x.device)
        spectrum[:modes] = torch.einsum("kc,kco->ko", torch.fft.rfft(x, dim=0)[:modes], torch.complex(wRe, wIm))
        return torch.fft.irfft(spectrum, n, dim=0)

    def conv2d(name: str) -> Callable[..., Any]:
        def run(x: Any, w: Any, b: Any, stride_h: int, stride_w: int, padding_h: int, padding_w: int) -> Any:
            return getattr(F, name)(x, w, b, (stride_h, stride_w), (padding_h, padding_w))

        return run

    return {
        "add": lambda a, b: a + b, "sub": lambda a, b: a - b, "mul": lambda a, b: a * b, "div": lambda a, b: a / b,
        "scale": lambda x, c: x * c, "axpy": lambda a, b, c: torch.add(a, b, alpha=c), "inv": lambda x: torch.reciprocal(x),
        "sqrt": lambda x: torch.sqrt(x), "abs": lambda x: torch.abs(x), "max": lambda a, b: torch.maximum(a, b),
        "min": lambda a, b: torch.minimum(a, b), "clamp": lambda x, lo, hi: torch.clamp(x, lo, hi),
        "relu": lambda x: torch.relu(x), "leaky_relu": lambda x, slope: F.leaky_relu(x, slope),
        "sign": lambda x: torch.sign(x), "floor": lambda x: torch.floor(x), "round": lambda x: torch.round(x),
        "eq": lambda a, b: (a == b).to(a.dtype), "ne": lambda a, b: (a != b).to(a.dtype),
        "lt": lambda a, b: (a < b).to(a.dtype), "le": lambda a, b: (a <= b).to(a.dtype),
        "where": lambda mask, a, b: torch.where(mask != 0, a, b),
        "masked_fill": lambda x, mask, value: x.masked_fill(mask != 0, value), "exp": lambda x: torch.exp(x),
        "log": lambda x: torch.log(x), "safe_log": lambda x, eps: torch.log(F.softplus(x) + eps),
        "sigmoid": lambda x: torch.sigmoid(x), "tanh": lambda x: torch.tanh(x), "softplus": lambda x: F.softplus(x),
        "silu": lambda x: F.silu(x), "gelu": lambda x: F.gelu(x, approximate="tanh"), "log1p": lambda x: torch.log1p(x),
        "expm1": lambda x: torch.expm1(x), "erf": lambda x: torch.erf(x), "gelu_erf": lambda x: F.gelu(x),
        "sin": lambda x: torch.sin(x), "cos": lambda x: torch.cos(x), "atan2": lambda y, x: torch.atan2(y, x),
        "pow": lambda a, b: torch.pow(a, b), "pow_scalar": lambda x, p: torch.pow(x, p),
        "elu": lambda x, alpha: F.elu(x, alpha), "hardswish": lambda x: F.hardswish(x), "softsign": lambda x: F.softsign(x),
        "mish": lambda x: F.mish(x),
        "reduce_sum": lambda x: torch.sum(x), "reduce_sum_axis0": lambda x: torch.sum(x, 0),
        "reduce_sum_axis1": lambda x: torch.sum(x, 1), "reduce_sum_axis": lambda x, axis: torch.sum(x, axis),
        "reduce_mean": lambda x, axis: torch.mean(x, axis), "reduce_max_axis0": lambda x: torch.amax(x, 0),
        "reduce_max_axis1": lambda x: torch.amax(x, 1), "amax": lambda x, axes: some(torch.amax, x, axes),
        "amin": lambda x, axes: some(torch.amin, x, axes), "prod": prod, "var": var,
        "logsumexp": lambda x, axes: some(torch.logsumexp, x, axes),
        "vector_norm": lambda x, axes, p: some(torch.linalg.vector_norm, x, axes, p), "cumsum": cumsum,
        "concat1d": lambda a, b: torch.cat([a, b]), "slice1d": lambda x, start, len: x[start : start + len],
        "slice_axes": slice_axes, "pad_axes": pad_axes, "concat_rows": lambda a, b: torch.cat([a, b], 1),
        "broadcast_vec_to_rows": lambda vec, rows, cols: vec.expand(rows, cols),
        "broadcast_vec_to_cols": lambda vec, rows, cols: vec[:, None].expand(rows, cols),
        "broadcast_to": lambda x, in_dims, out_dims, axis_map: _insert(x, in_dims, axis_map).expand(out_dims),
        "reduce_from_broadcast": lambda x, in_dims, out_dims, axis_map: _sum(x, in_dims, out_dims, axis_map),
        "transpose2d": lambda x: x.T, "swap_adjacent_at_depth": lambda x, depth: torch.swapaxes(x, depth, depth + 1),
        "transpose3d_bca": lambda x: x.permute(1, 2, 0), "transpose3d_cab": lambda x: x.permute(2, 0, 1),
        "transpose3d_acb": lambda x: x.permute(0, 2, 1),
        "gather_vec": lambda vec, indices: gather(vec, indices), "gather_rows": lambda mat, indices: gather(mat, indices),
        "scatter_add": scatter_add, "scatter_add_rows": lambda mat, values, indices: scatter_add(mat, values, indices),
        "scatter_add_axis": scatter_add_axis, "scatter_add_row": scatter_add_row, "take_axis": take_axis,
        "argmax": lambda x: torch.argmax(x, 1), "argmin": lambda x: torch.argmin(x, 1),
        "matmul": lambda A, B: A @ B, "bmm": lambda A, B: torch.bmm(A, B), "linear": lambda W, x, b: F.linear(x, W, b),
        "softmax": lambda x: torch.softmax(x, 1), "log_softmax": lambda x: torch.log_softmax(x, 1),
        "layer_norm": lambda x, gamma, beta, cols, eps: F.layer_norm(x, (cols,), gamma, beta, eps),
        "rms_norm": lambda x, gamma, cols, eps: F.rms_norm(x, (cols,), gamma, eps),
        "batchnorm_channel_first": lambda x, gamma, beta, eps: torch.batch_norm(
            x[None], gamma, beta, None, None, True, 0.1, eps, False)[0],
        "channel_affine": lambda x, center, slope, shift: (x - center[:, None]) * slope[:, None] + shift[:, None],
        "mse_loss": lambda yhat, target: F.mse_loss(yhat, target),
        "bce_with_logits": lambda x, target, mean: F.binary_cross_entropy_with_logits(
            x, target, reduction="mean" if mean else "sum"),
        "cross_entropy": lambda logits, labels: F.cross_entropy(logits, labels), "cross_entropy_rows": cross_entropy_rows,
        "conv": lambda x, w, b, stride, padding: getattr(F, f"conv{len(stride)}d")(x, w, b, tuple(stride), tuple(padding)),
        "conv_transpose": lambda x, w, b, stride, padding: getattr(F, f"conv_transpose{len(stride)}d")(
            x, w, b, tuple(stride), tuple(padding)),
        "conv2d": conv2d("conv2d"), "conv_transpose2d": conv2d("conv_transpose2d"), "conv_grouped": grouped("conv"),
        "conv_transpose_grouped": grouped("conv_transpose"), "max_pool": pool("max"), "avg_pool": pool("avg"),
        "max_pool2d": pool2d("max"), "avg_pool2d": pool2d("avg"), "flash_attention": attention,
        "grouped_attention": grouped_attention, "rotary": rotary, "sinusoidal": sinusoidal,
        "rfft1d_packed": lambda x: torch.view_as_real(torch.fft.rfft(x)),
        "irfft1d_packed": lambda spec, n: torch.fft.irfft(torch.view_as_complex(spec.contiguous()), n),
        "spectral_conv1d_rfft": spectral_conv,
    }  # fmt: skip


def _insert(x: Any, in_dims: Any, axis_map: Any) -> Any:
    read = [k - 1 for k in axis_map if k]
    x = x.permute(read + [i for i in range(len(in_dims)) if i not in read])  # the rest is of size 1
    return x.reshape([in_dims[k - 1] if k else 1 for k in axis_map])


def _sum(x: Any, in_dims: Any, out_dims: Any, axis_map: Any) -> Any:
    """The sum over what was repeated, its axes in the order of the input."""
    axes = repeated_axes(in_dims, out_dims, axis_map)
    kept = x.sum(axes, keepdim=True) if axes else x
    return kept.permute(sorted(range(x.ndim), key=lambda j: axis_map[j])).reshape(in_dims)


def gradient(call: Callable[..., Any], wrt: tuple[str, ...]) -> Callable[[Mapping[str, Any], Any], list[Any]]:
    """The gradient of a call with respect to inputs: f(arguments by name, cotangent)."""
    import torch

    def run(values: Mapping[str, Any], g: Any) -> list[Any]:
        given = {n: values[n] if n in values else g.new_zeros(g.shape[1:3]) for n in wrt}  # a bias that is not given
        leaves = {n: x.detach().requires_grad_() for n, x in given.items()}
        out = call(**{**values, **leaves})
        found = torch.autograd.grad(out, list(leaves.values()), g.reshape(out.shape), allow_unused=True)
        # what autograd gives may be a view of the cotangent
        return [torch.zeros_like(x) if y is None else y.clone() for x, y in zip(leaves.values(), found, strict=True)]

    return run
