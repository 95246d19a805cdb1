"""Sizes and baselines of the loss family."""

from bench.operations.table import Benchmark


def _torch_mse_vjp(torch, yhat, target, g):
    """Both gradients, one call each, as PyTorch's own backward."""
    backward, (upstream,) = torch.ops.aten.mse_loss_backward, g
    return lambda: (backward(upstream, yhat, target, 1), backward(upstream, target, yhat, 1))


BENCHMARKS = {
    "mse_loss": Benchmark(sizes=[{"n": 2**20}, {"n": 2**26}],
        numpy=lambda np, yhat, target: np.mean((yhat - target) ** 2),
        torch=lambda torch, yhat, target: torch.nn.functional.mse_loss(yhat, target),
        torch_vjp=_torch_mse_vjp),
    "bce_with_logits": Benchmark(sizes=[{"n": 2**20, "mean": 1}, {"n": 2**26, "mean": 1}],
        torch=lambda torch, x, target, mean: torch.nn.functional.binary_cross_entropy_with_logits(x, target)),
    "cross_entropy": Benchmark(sizes=[{"rows": 4096, "cols": 4096}, {"rows": 4096, "cols": 50257}],
        torch=lambda torch, logits, labels: torch.nn.functional.cross_entropy(logits, labels)),
    "cross_entropy_rows": Benchmark(
        sizes=[{"rows": 4096, "cols": 4096, "smoothing": 0.1}, {"rows": 4096, "cols": 50257, "smoothing": 0.0}],
        torch=lambda torch, logits, labels, weights, smoothing: torch.nn.functional.cross_entropy(
            logits, labels, weights, reduction="none", label_smoothing=smoothing)),
}  # fmt: skip
