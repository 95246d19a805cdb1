"""The calls of JAX, compiled, and its gradients by ``jax.vjp``. jax.numpy's are NumPy's."""

from collections.abc import Callable, Mapping
from functools import lru_cache
from typing import Any

from audit.league.calls import numpy_calls
from audit.league.calls.numpy_calls import over

COMPOSED = numpy_calls.COMPOSED | {
    "sigmoid", "silu", "gelu", "gelu_erf", "softplus", "hardswish", "mish", "conv", "conv2d", "conv_grouped", "avg_pool",
    "avg_pool2d", "flash_attention", "leaky_relu",
}  # fmt: skip

#: XLA's simplifier aborts: "Window dimensions do not match RHS shape", for some strides and dilations
ENDS_THE_PROCESS = frozenset({"conv", "conv2d", "conv_grouped"})
IN_PLACE = numpy_calls.IN_PLACE
FLOAT32 = numpy_calls.FLOAT32

LEFT_OUT = {
    "gradients of conv, conv2d, conv_grouped": "XLA ends the process on some strides and dilations, with a failed check",
    "conv_transpose": "lax.conv_transpose pads otherwise, and is a convolution of a dilated input",
    "smooth_max_pool": "JAX has none",
    "dgemm": "of float64 alone, which the league does not run",
}


def calls() -> dict[str, Any]:
    """The calls by row."""
    import jax
    from jax import lax
    from jax import numpy as jnp

    jax.config.update("jax_enable_x64", True)  # for indices of 64 bits; numbers keep their formats

    def slice_axes(x: Any, in_dims: Any, out_dims: Any, starts: Any, steps: Any, reversed: int) -> Any:
        flips = [k for k in range(x.ndim) if reversed >> k & 1]
        low = [s - t * (n - 1) if k in flips and n else s
               for k, (s, t, n) in enumerate(zip(starts, steps, out_dims, strict=True))]  # fmt: skip
        high = [s + t * (n - 1) + 1 if n else s for s, t, n in zip(low, steps, out_dims, strict=True)]
        return lax.rev(lax.slice(x, low, high, steps), flips)

    def pad_axes(x: Any, in_dims: Any, out_dims: Any, starts: Any, steps: Any, reversed: int, value: float) -> Any:
        flips = [k for k in range(x.ndim) if reversed >> k & 1]
        config = []
        for k, (s, t, n, m) in enumerate(zip(starts, steps, in_dims, out_dims, strict=True)):
            low = s - t * (n - 1) if k in flips and n else s
            config.append((low, m - low - ((n - 1) * t + 1 if n else 0), t - 1))
        return lax.pad(lax.rev(x, flips), jnp.asarray(value, x.dtype), config)

    def conv(x: Any, w: Any, b: Any, stride: Any, padding: Any) -> Any:
        out = lax.conv_general_dilated(x, w, stride, [(p, p) for p in padding], dimension_numbers=_axes(len(stride)))
        return out + b.reshape(-1, *[1] * len(stride))

    def conv2d(x: Any, w: Any, b: Any, stride_h: int, stride_w: int, padding_h: int, padding_w: int) -> Any:
        return conv(x, w, b, (stride_h, stride_w), (padding_h, padding_w))

    def conv_grouped(
        x: Any, w: Any, b: Any = None, *, stride: Any, dilation: Any, padding_low: Any, padding_high: Any
    ) -> Any:
        n, groups, *_ = x.shape
        pads = list(zip(padding_low, padding_high, strict=True))
        out = lax.conv_general_dilated(
            x.reshape(n, -1, *x.shape[3:]), w.reshape(-1, *w.shape[2:]), stride, pads, rhs_dilation=dilation,
            dimension_numbers=_axes(len(stride)), feature_group_count=groups)  # fmt: skip
        out = out if b is None else out + b.reshape(-1, *[1] * len(stride))
        return out.reshape(n, groups, -1, *out.shape[2:])

    def pool(kind: str, x: Any, kernel: Any, stride: Any, padding: Any) -> Any:
        start, combine = (-jnp.inf, lax.max) if kind == "max" else (0.0, lax.add)
        pads = [(0, 0), *((p, p) for p in padding)]
        out = lax.reduce_window(x, jnp.asarray(start, x.dtype), combine, (1, *kernel), (1, *stride), pads)
        return out if kind == "max" else out / _product(kernel)

    def pool2d(kind: str) -> Callable[..., Any]:
        def run(
            x: Any, kernel_h: int, kernel_w: int, stride_h: int, stride_w: int, padding_h: int, padding_w: int
        ) -> Any:
            return pool(kind, x, (kernel_h, kernel_w), (stride_h, stride_w), (padding_h, padding_w))

        return run

    def scan(A: Any, B: Any, x: Any, h0: Any) -> Any:
        wide = [jnp.broadcast_to(c, x.shape) for c in (A, B)]

        def step(h: Any, at: Any) -> Any:
            a, b, now = at
            h = a * h + b * now
            return h, h

        return lax.scan(step, h0, (*wide, x))[1]

    def indices(f: Callable[..., Any]) -> Callable[..., Any]:
        return lambda x: f(x, axis=1)

    def topk(x: Any, k: int, largest: int) -> Any:
        moved = jnp.swapaxes(x, 1, 2)
        return jnp.swapaxes(lax.top_k(moved if largest else -moved, k)[1], 1, 2)

    def take_axis(x: Any, indices: Any, outer: int, k: int, inner: int) -> Any:
        where = jnp.broadcast_to(indices, (outer, k, inner))
        return jnp.take_along_axis(x, where, axis=1, mode="fill", fill_value=0)

    def scatter_add_axis(x: Any, values: Any, indices: Any, outer: int, k: int, inner: int) -> Any:
        where = jnp.broadcast_to(indices, (outer, k, inner))
        return x.at[jnp.arange(outer)[:, None, None], where, jnp.arange(inner)].add(values, mode="drop")

    def attention(Q: Any, K: Any, V: Any, mask: Any = None, *, mask_mode: int, scale: float) -> Any:
        if mask_mode == 1:  # a score of -1000, which the fused operation does not have
            scores = jnp.where(mask == 0, -1000.0, jnp.matmul(Q * scale, jnp.swapaxes(K, 1, 2)))
            return jnp.matmul(jax.nn.softmax(scores, axis=2), V)
        allowed = mask != 0 if mask_mode == 2 else None
        mask = None if allowed is None else allowed[:, None]
        one_head = (x[:, :, None] for x in (Q, K, V))
        out = jax.nn.dot_product_attention(*one_head, mask=mask, scale=scale, is_causal=mask_mode == 3)[:, :, 0]
        return (
            out if allowed is None else jnp.where(allowed.any(axis=2, keepdims=True), out, 0)
        )  # a row that is blocked entirely

    def rfft(x: Any) -> Any:
        z = jnp.fft.rfft(x)
        return jnp.stack([z.real, z.imag], axis=-1)

    base = numpy_calls.calls(jnp)
    return {
        **base, "relu": lambda x: jax.nn.relu(x), "leaky_relu": lambda x, slope: jax.nn.leaky_relu(x, slope),
        "masked_fill": lambda x, mask, value: jnp.where(mask != 0, jnp.asarray(value, x.dtype), x),
        "sigmoid": lambda x: jax.nn.sigmoid(x), "softplus": lambda x: jax.nn.softplus(x), "silu": lambda x: jax.nn.silu(x),
        "gelu": lambda x: jax.nn.gelu(x, approximate=True), "gelu_erf": lambda x: jax.nn.gelu(x, approximate=False),
        "erf": lambda x: jax.scipy.special.erf(x), "elu": lambda x, alpha: jax.nn.elu(x, alpha),
        "hardswish": lambda x: jax.nn.hard_swish(x), "softsign": lambda x: jax.nn.soft_sign(x), "mish": lambda x: jax.nn.mish(x),
        "softmax": lambda x: jax.nn.softmax(x, axis=1), "log_softmax": lambda x: jax.nn.log_softmax(x, axis=1),
        "logsumexp": lambda x, axes: jax.nn.logsumexp(x, axis=over(axes)),
        "cross_entropy": lambda logits, labels: -jnp.mean(
            jnp.take_along_axis(jax.nn.log_softmax(logits, axis=1), labels[:, None], axis=1)),
        "cumsum": lambda x, axis, reverse: lax.cumsum(x, axis, bool(reverse)), "slice_axes": slice_axes, "pad_axes": pad_axes,
        "gather_vec": lambda vec, indices: jnp.take(vec, indices, mode="fill", fill_value=0),
        "gather_rows": lambda mat, indices: jnp.take(mat, indices, axis=0, mode="fill", fill_value=0),
        "scatter_add": lambda x, values, indices: x.at[indices].add(values, mode="drop"),
        "scatter_add_rows": lambda mat, values, indices: mat.at[indices].add(values, mode="drop"),
        "scatter_add_axis": scatter_add_axis, "scatter_add_row": lambda mat, row, i: mat.at[i].add(row),
        "take_axis": take_axis, "argmax": indices(jnp.argmax), "argmin": indices(jnp.argmin), "topk": topk,
        "conv": conv, "conv2d": conv2d, "conv_grouped": conv_grouped,
        "max_pool": lambda x, kernel, stride, padding: pool("max", x, kernel, stride, padding),
        "avg_pool": lambda x, kernel, stride, padding: pool("avg", x, kernel, stride, padding),
        "max_pool2d": pool2d("max"), "avg_pool2d": pool2d("avg"), "flash_attention": attention,
        "selective_scan_diag": lambda A, B, x, h0: scan(A, B, x, h0),
        "selective_scan_diag_var": lambda A, B, x, h0: scan(A, B, x, h0), "rfft1d_packed": rfft,
        "irfft1d_packed": lambda spec, n: jnp.fft.irfft(lax.complex(spec[..., 0], spec[..., 1]), n),
    }  # fmt: skip


def _axes(rank: int) -> Any:
    from jax import lax

    plain = tuple(range(rank + 2))
    return lax.ConvDimensionNumbers(plain, plain, plain)


def _product(numbers: Any) -> int:
    total = 1
    for n in numbers:
        total *= n
    return total


def compiled(call: Callable[..., Any]) -> Callable[..., Any]:
    """A call on names, compiled for the numbers among its arguments."""
    import jax

    @lru_cache(maxsize=16)
    def of(fixed: tuple[tuple[str, Any], ...]) -> Callable[..., Any]:
        numbers = {n: list(v) if isinstance(v, tuple) else v for n, v in fixed}
        return jax.jit(lambda arrays: call(**arrays, **numbers))

    def run(**values: Any) -> Any:
        arrays = {n: v for n, v in values.items() if isinstance(v, jax.Array)}
        numbers = {n: tuple(v) if isinstance(v, list) else v for n, v in values.items() if n not in arrays}
        return of(tuple(sorted(numbers.items())))(arrays)

    return run


def gradient(call: Callable[..., Any], wrt: tuple[str, ...]) -> Callable[[Mapping[str, Any], Any], list[Any]]:
    """The gradient of a call with respect to inputs: f(arguments by name, cotangent)."""
    import jax

    def pull(g_: Any, **values: Any) -> Any:
        values = {n: jax.numpy.zeros(g_.shape[1:3], g_.dtype) for n in wrt} | values  # a bias that is not given

        def of(*leaves: Any) -> Any:
            return call(**{**values, **dict(zip(wrt, leaves, strict=True))})

        out, back = jax.vjp(of, *(values[n] for n in wrt))
        return back(g_.reshape(out.shape))

    made = compiled(pull)
    return lambda values, g: list(made(g_=g, **values))
