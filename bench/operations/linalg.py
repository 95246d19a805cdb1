"""Sizes and baselines of the linalg family."""

from bench.operations.table import Benchmark


def _dgemm(torch, device, A, B):
    """From host arrays to a host array, as the operation."""
    a, b = A.cpu(), B.cpu()
    return lambda: (a.to(device) @ b.to(device)).cpu()


SQUARES = [{"m": n, "n": n, "p": n} for n in (128, 512, 1024, 2048, 4096, 8192)]

BATCHES = [{"batch": 256, "m": 512, "n": 512, "p": 512}, {"batch": 4096, "m": 64, "n": 64, "p": 64}]

BENCHMARKS = {
    "matmul": Benchmark(sizes=SQUARES, flops=lambda m, n, p: 2 * m * n * p, numpy=lambda np, A, B: A @ B,
        torch=lambda torch, A, B: A @ B, torch_vjp=lambda torch, A, B, g: (g @ B.T, A.T @ g)),
    "bmm": Benchmark(sizes=BATCHES, flops=lambda batch, m, n, p: 2 * batch * m * n * p, numpy=lambda np, A, B: A @ B,
        torch=lambda torch, A, B: torch.bmm(A, B)),
    "linear": Benchmark(sizes=[{"batch": n, "inputs": n, "outputs": n} for n in (1024, 4096)],
        flops=lambda batch, inputs, outputs: 2 * batch * inputs * outputs, numpy=lambda np, W, x, b: x @ W.T + b,
        torch=lambda torch, W, x, b: torch.nn.functional.linear(x, W, b),
        torch_vjp=lambda torch, W, x, g: (g.T @ x, g @ W, g.sum(0))),
    "dgemm": Benchmark(sizes=SQUARES[:5], numpy=lambda np, A, B: A @ B, torch=_dgemm),
}  # fmt: skip
