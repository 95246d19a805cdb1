"""Calls for rows whose benchmark calls leave out a parameter or an index out of range, and rows without a counterpart.

A call that raises NotImplementedError says that the library has no such case: more axes than it knows, other padding.
"""

import math
from collections.abc import Callable
from typing import Any

from tlspec.ops.reduce import axes_of

#: rows that no library has, and why
LEFT_OUT = {
    "rand_uniform": "generators differ", "rand_normal": "generators differ", "bernoulli_mask": "generators differ",
    "fingerprint": "it is a hash of this project", "dgemm": "float64 on the host", "sinusoidal": "no library has it",
    "topk": "which of equal elements comes first is left open", "rotary": "the caller makes its table of angles",
    **dict.fromkeys(
        ("pad_axes", "slice_axes", "broadcast_to", "reduce_from_broadcast"), "the benchmark calls it for a few shapes"),
    **dict.fromkeys((
        "sgd_step", "momentum_step", "adam_step", "adamw_step", "rmsprop_step", "rmsprop_momentum_step", "rmsprop_centered_step",
        "lion_step", "clip_scale", "global_norm"), "PyTorch's optimisers are classes that update in place"),
}  # fmt: skip


def _over(x: Any, axes: int) -> tuple[int, ...]:
    return tuple(axes_of(x.shape, axes))


def _reduced(name: str, **fixed: Any) -> Callable[..., Any]:
    """NumPy's or JAX's reduction over a set of axes."""
    return lambda np, x, axes: getattr(np, name)(x, axis=_over(x, axes), **fixed)


def _of_torch(name: str) -> Callable[..., Any]:
    """PyTorch's reduction over a set of axes; it takes none for all."""

    return lambda torch, x, axes: _torch_over(torch, name, x, axes)


def _torch_over(torch: Any, name: str, x: Any, axes: int, **more: Any) -> Any:
    over = _over(x, axes)
    return getattr(torch, name)(x, over, **more) if over else getattr(torch, name)(x[..., None], (-1,), **more)


def _torch_prod(torch: Any, x: Any, axes: int) -> Any:
    for axis in reversed(_over(x, axes)):
        x = torch.prod(x, axis)
    return x.clone()


def _cumsum(np: Any, x: Any, axis: int, reverse: int) -> Any:
    return np.flip(np.cumsum(np.flip(x, axis), axis), axis) if reverse else np.cumsum(x, axis)


def _torch_cumsum(torch: Any, x: Any, axis: int, reverse: int) -> Any:
    return torch.cumsum(x.flip(axis), axis).flip(axis) if reverse else torch.cumsum(x, axis)


def _var(np: Any, x: Any, axes: int, correction: float, root: int) -> Any:
    if math.prod(x.shape[a] for a in _over(x, axes)) <= correction:
        raise NotImplementedError  # NumPy divides by 0 or less
    return (np.std if root else np.var)(x, axis=_over(x, axes), ddof=correction)


def _torch_var(torch: Any, x: Any, axes: int, correction: float, root: int) -> Any:
    return _torch_over(torch, "std" if root else "var", x, axes, correction=correction)


def _torch_norm(torch: Any, x: Any, axes: int, p: float) -> Any:
    over = _over(x, axes)
    return torch.linalg.vector_norm(x if over else x[..., None], p, over or (-1,))


def _rfft(np: Any, x: Any) -> Any:
    made = np.fft.rfft(x, axis=1)
    return np.stack([made.real, made.imag], axis=-1)


def _torch_rfft(torch: Any, x: Any) -> Any:
    return torch.view_as_real(torch.fft.rfft(x))


def _torch_irfft(torch: Any, spec: Any, n: int) -> Any:
    return torch.fft.irfft(torch.view_as_complex(spec.contiguous()), n)


def _gather(np: Any, indices: Any, vec: Any = None, mat: Any = None) -> Any:
    table = vec if mat is None else mat
    known = (indices < len(table)).reshape((-1, *[1] * (table.ndim - 1)))
    return np.where(known, table[np.minimum(indices, len(table) - 1)], table.dtype.type(0))


def _torch_gather(torch: Any, indices: Any, vec: Any = None, mat: Any = None) -> Any:
    table = vec if mat is None else mat
    found = torch.index_select(table, 0, indices.clamp(max=len(table) - 1))
    return torch.where((indices < len(table)).reshape((-1, *[1] * (table.ndim - 1))), found, torch.zeros_like(found))


def _torch_scatter(torch: Any, values: Any, indices: Any, x: Any = None, mat: Any = None) -> Any:
    table = x if mat is None else mat
    known = indices < len(table)
    return table.index_add(0, indices[known], values[known])


def _take_axis(np: Any, x: Any, indices: Any) -> Any:
    known = indices < x.shape[1]
    at = np.broadcast_to(np.minimum(indices, x.shape[1] - 1), (x.shape[0], indices.shape[1], x.shape[2]))
    return np.where(known, np.take_along_axis(x, at, 1), x.dtype.type(0))


def _torch_take_axis(torch: Any, x: Any, indices: Any) -> Any:
    at = indices.clamp(max=x.shape[1] - 1).expand(x.shape[0], indices.shape[1], x.shape[2])
    found = torch.gather(x, 1, at)
    return torch.where(indices < x.shape[1], found, torch.zeros_like(found))


def _torch_scatter_axis(torch: Any, x: Any, values: Any, indices: Any) -> Any:
    inside = (indices < x.shape[1]).expand_as(values)
    at = indices.clamp(max=x.shape[1] - 1).expand_as(values)
    return x.scatter_add(1, at, torch.where(inside, values, torch.full_like(values, -0.0)))


def _torch_cross_entropy(torch: Any, logits: Any, labels: Any, weights: Any, smoothing: float) -> Any:
    known = torch.where(labels < logits.shape[1], labels, torch.full_like(labels, -100))
    return torch.nn.functional.cross_entropy(
        logits, known, weights, ignore_index=-100, reduction="none", label_smoothing=smoothing
    )


def _torch_bce(torch: Any, x: Any, target: Any, mean: int) -> Any:
    reduction = "mean" if mean else "sum"
    return torch.nn.functional.binary_cross_entropy_with_logits(x, target, reduction=reduction)


def _torch_conv(torch: Any, x: Any, w: Any, b: Any, stride: list[int], padding: list[int]) -> Any:
    return _of_rank(torch, "conv", len(stride))(x, w, b, stride, padding)


def _torch_conv_transpose(torch: Any, x: Any, w: Any, b: Any, stride: list[int], padding: list[int]) -> Any:
    return _of_rank(torch, "conv_transpose", len(stride))(x, w, b, stride, padding)


def _of_rank(torch: Any, name: str, rank: int) -> Callable[..., Any]:
    if not 1 <= rank <= 3:
        raise NotImplementedError

    def call(*given: Any) -> Any:
        try:
            return getattr(torch.nn.functional, f"{name}{rank}d")(*given)
        except RuntimeError as error:
            if any(text in str(error) for text in ("smaller than kernel", "non-empty", "Expected")):
                raise NotImplementedError from error
            raise

    return call


def _torch_conv_vjp(
    torch: Any, x: Any, w: Any, g: Any, stride: list[int], padding: list[int], transposed: bool = False
) -> Any:
    if not 1 <= len(stride) <= 3:
        raise NotImplementedError
    rank = len(stride)
    return torch.ops.aten.convolution_backward(
        g, x, w, [g.shape[1]], stride, padding, [1] * rank, transposed, [0] * rank, 1, [True] * 3
    )


def _torch_conv_transpose_vjp(torch: Any, x: Any, w: Any, g: Any, stride: list[int], padding: list[int]) -> Any:
    return _torch_conv_vjp(torch, x, w, g, stride, padding, True)


def _torch_conv_grouped(
    torch: Any, x: Any, w: Any, b: Any, groups: int, stride: Any, dilation: Any, padding_low: Any, padding_high: Any
) -> Any:
    if list(padding_low) != list(padding_high):
        raise NotImplementedError
    return _of_rank(torch, "conv", len(stride))(x, w, b, stride, padding_low, dilation, groups)


def _torch_pool(name: str) -> Callable[..., Any]:
    def call(torch: Any, x: Any, kernel: list[int], stride: list[int], padding: list[int]) -> Any:
        if any(2 * p > k for p, k in zip(padding, kernel, strict=True)):
            raise NotImplementedError
        return _of_rank(torch, name, len(kernel))(x[None], kernel, stride, padding)[0]

    return call


def _torch_pool2d(name: str) -> Callable[..., Any]:
    def call(
        torch: Any, x: Any, kernel_h: int, kernel_w: int, stride_h: int, stride_w: int, padding_h: int, padding_w: int
    ) -> Any:
        return _torch_pool(name)(torch, x, [kernel_h, kernel_w], [stride_h, stride_w], [padding_h, padding_w])

    return call


def _torch_attention(torch: Any, Q: Any, K: Any, V: Any, mask: Any, mask_mode: int, scale: float) -> Any:
    if mask_mode == 1:  # a score of -1000
        raise NotImplementedError
    allowed = mask != 0 if mask_mode == 2 else None
    return torch.nn.functional.scaled_dot_product_attention(Q, K, V, allowed, is_causal=mask_mode == 3, scale=scale)


def _torch_attention_vjp(torch: Any, Q: Any, K: Any, V: Any, mask: Any, g: Any, mask_mode: int, scale: float) -> Any:
    Q, K, V = (x.detach().requires_grad_() for x in (Q, K, V))
    out = _torch_attention(torch, Q, K, V, mask, mask_mode, scale)
    return torch.autograd.grad(out, (Q, K, V), g)


#: by the benchmark's name of the call and the row; None where the benchmark's call is not the row's gradient
CALLS: dict[tuple[str, str], Callable[..., Any] | None] = {
    **{("numpy", n): _reduced(n) for n in ("amax", "amin", "prod")},
    **{("torch", n): _of_torch(n) for n in ("amax", "amin", "logsumexp")},
    ("torch", "prod"): _torch_prod,
    ("numpy", "cumsum"): _cumsum,
    ("torch", "cumsum"): _torch_cumsum,
    ("numpy", "var"): _var,
    ("torch", "var"): _torch_var,
    ("torch", "vector_norm"): _torch_norm,
    ("numpy", "rfft1d_packed"): _rfft,
    ("torch", "rfft1d_packed"): _torch_rfft,
    ("torch", "irfft1d_packed"): _torch_irfft,
    ("numpy", "gather_vec"): _gather,
    ("numpy", "gather_rows"): _gather,
    ("torch", "gather_vec"): _torch_gather,
    ("torch", "gather_rows"): _torch_gather,
    ("numpy", "scatter_add"): None,
    ("numpy", "scatter_add_rows"): None,
    ("torch", "scatter_add"): _torch_scatter,
    ("torch", "scatter_add_rows"): _torch_scatter,
    ("numpy", "take_axis"): _take_axis,
    ("torch", "take_axis"): _torch_take_axis,
    ("torch", "scatter_add_axis"): _torch_scatter_axis,
    ("torch", "cross_entropy_rows"): _torch_cross_entropy,
    ("torch", "bce_with_logits"): _torch_bce,
    ("torch_vjp", "mse_loss"): None,
    ("torch", "conv"): _torch_conv,
    ("torch", "conv_transpose"): _torch_conv_transpose,
    ("torch_vjp", "conv"): _torch_conv_vjp,
    ("torch_vjp", "conv_transpose"): _torch_conv_transpose_vjp,
    ("torch", "conv_grouped"): _torch_conv_grouped,
    ("torch_vjp", "conv_grouped"): None,
    ("torch", "conv_transpose_grouped"): None,
    ("torch_vjp", "conv_transpose_grouped"): None,
    ("torch", "max_pool"): _torch_pool("max_pool"),
    ("torch", "max_pool2d"): _torch_pool2d("max_pool"),
    ("torch", "avg_pool"): _torch_pool("avg_pool"),
    ("torch", "avg_pool2d"): _torch_pool2d("avg_pool"),
    ("torch_vjp", "max_pool"): None,
    ("torch_vjp", "max_pool2d"): None,
    ("torch_vjp", "avg_pool"): None,
    ("torch_vjp", "avg_pool2d"): None,
    ("torch", "flash_attention"): _torch_attention,
    ("torch_vjp", "flash_attention"): _torch_attention_vjp,
    ("torch", "grouped_attention"): None,
    ("torch_vjp", "grouped_attention"): None,
}
