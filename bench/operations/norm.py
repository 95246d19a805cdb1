"""Sizes and baselines of the norm family."""

from bench.operations.table import Benchmark


def _torch_layer_norm_vjp(torch, x, gamma, g, cols, eps):
    """PyTorch's backward with the statistics that its forward saves."""
    _, mu, istd = torch.ops.aten.native_layer_norm(x, (cols,), gamma, gamma, eps)
    mask = [True, True, True]
    return lambda: torch.ops.aten.native_layer_norm_backward(g, x, (cols,), mu, istd, gamma, gamma, mask)


def _torch_affine(torch, x, center, slope, shift):
    """The nearest that PyTorch has in one call: a normalisation with given statistics."""
    variance = torch.ones_like(center)
    return lambda: torch.nn.functional.batch_norm(x, center, variance, slope, shift, False, 0.1, 1e-30)


def _native(torch, name, *arguments):
    return getattr(torch.ops.aten, name).default(*arguments)


def _torch_batch_norm(torch, x, gamma, beta, eps):
    """With running statistics, because PyTorch makes the variance for these alone."""
    mean, var = x.new_zeros(x.shape[1]), x.new_ones(x.shape[1])
    return lambda: (*_native(torch, "native_batch_norm", x, gamma, beta, mean, var, True, 0.1, eps), var)


def _torch_layer_norm_given(torch, x, gamma, mean, istd, g_out, want, cols):
    rows, mask = (len(x), 1), list(want)
    weight = torch.ones(cols, device=x.device) if gamma is None else gamma  # whose gradient is asked for
    return lambda: torch.ops.aten.native_layer_norm_backward(
        g_out, x, (cols,), mean.reshape(rows), istd.reshape(rows), weight, weight, mask
    )


def _torch_batch_norm_given(torch, x, gamma, mean, istd, g_out, want, eps):
    mask = list(want)
    return lambda: _native(
        torch, "native_batch_norm_backward", g_out, x, gamma, None, None, mean, istd, True, eps, mask
    )


def _sizes_of_groups(batch, groups, channels, positions):
    return batch, groups * channels, positions, groups


def _torch_group_norm(torch, x, gamma, beta, batch, groups, channels, positions, eps):
    vectors = None if gamma is None else gamma.reshape(-1), None if beta is None else beta.reshape(-1)
    return _native(torch, "native_group_norm", x, *vectors, *_sizes_of_groups(batch, groups, channels, positions), eps)


def _torch_group_norm_given(torch, x, gamma, mean, istd, g_out, want, batch, groups, channels, positions):
    weight, mask = None if gamma is None else gamma.reshape(-1), list(want)
    sizes = _sizes_of_groups(batch, groups, channels, positions)
    return lambda: _native(torch, "native_group_norm_backward", g_out, x, mean, istd, weight, *sizes, mask)


BENCHMARKS = {
    "layer_norm": Benchmark(
        sizes=[{"rows": 4096, "cols": 4096}, {"rows": 65536, "cols": 1024}, {"rows": 8192, "cols": 12288}],
        torch=lambda torch, x, gamma, beta, cols, eps: torch.nn.functional.layer_norm(x, (cols,), gamma, beta, eps),
        torch_vjp=_torch_layer_norm_vjp),
    "rms_norm": Benchmark(sizes=[{"rows": 4096, "cols": 4096}, {"rows": 65536, "cols": 1024}],
        torch=lambda torch, x, gamma, cols, eps: torch.nn.functional.rms_norm(x, (cols,), gamma, eps)),
    "batchnorm_channel_first": Benchmark(
        sizes=[{"channels": 64, "height": 56, "width": 56}, {"channels": 256, "height": 512, "width": 512}],
        torch=lambda torch, x, gamma, beta, eps: torch.nn.functional.batch_norm(
            x[None], None, None, gamma, beta, True, 0.1, eps)),
    "channel_affine": Benchmark(
        sizes=[{"batch": 64, "channels": 64, "positions": 3136}, {"batch": 16, "channels": 256, "positions": 65536}],
        torch=_torch_affine),
    "layer_norm_stats": Benchmark(
        sizes=[{"rows": 4096, "cols": 4096}, {"rows": 65536, "cols": 1024}, {"rows": 65536, "cols": 64}],
        torch=lambda torch, x, gamma, beta, cols, eps: torch.native_layer_norm(x, (cols,), gamma, beta, eps),
        torch_vjp=_torch_layer_norm_given),
    "rms_norm_stats": Benchmark(sizes=[{"rows": 4096, "cols": 4096}],
        torch=lambda torch, x, gamma, cols, eps: _native(torch, "_fused_rms_norm", x, (cols,), gamma, eps)),
    "batch_norm_stats": Benchmark(
        sizes=[{"batch": 32, "channels": 64, "positions": 12544}, {"batch": 64, "channels": 256, "positions": 3136},
               {"batch": 64, "channels": 2048, "positions": 49}],
        torch=_torch_batch_norm, torch_vjp=_torch_batch_norm_given),
    "batch_norm_running": Benchmark(reason="one element a channel: a launch"),
    "group_norm_stats": Benchmark(
        sizes=[{"batch": 4, "groups": 32, "channels": 10, "positions": 4096},
               {"batch": 16, "groups": 32, "channels": 40, "positions": 64}],
        torch=_torch_group_norm, torch_vjp=_torch_group_norm_given),
}  # fmt: skip
