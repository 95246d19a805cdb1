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
}  # fmt: skip
