"""Sizes and baselines of the linalg family."""

from bench.operations.table import Benchmark
from tlspec.strides import strided


def _dgemm(torch, device, A, B):
    """From host arrays to a host array, as the operation."""
    a, b = A.cpu(), B.cpu()
    return lambda: (a.to(device) @ b.to(device)).cpu()


def _torch_strided(torch, A, B, bias, batch, m, n, p, a_batch, a_row, a_col, b_batch, b_row, b_col):
    a = torch.as_strided(A, (batch, m, n), (a_batch, a_row, a_col))
    b = torch.as_strided(B, (batch, n, p), (b_batch, b_row, b_col))
    if batch == 1:  # as a model's linear layer and its gradients
        a, b = a[0], b[0]
        return lambda: (torch.mm(a, b) if bias is None else torch.addmm(bias, a, b))[None]
    return lambda: torch.bmm(a, b) if bias is None else torch.baddbmm(bias, a, b)


def _numpy_strided(np, A, B, bias, batch, m, n, p, a_batch, a_row, a_col, b_batch, b_row, b_col):
    out = strided(A, (batch, m, n), (a_batch, a_row, a_col)) @ strided(B, (batch, n, p), (b_batch, b_row, b_col))
    return out if bias is None else out + bias


def _heads(batch, rows, heads, d):
    """Scores of heads that lie side by side: Q (rows, batch, heads, d) of a batch and a head against such K."""
    sizes = {
        "batch": batch * heads,
        "m": rows,
        "n": d,
        "p": rows,
        "a_size": rows * batch * heads * d,
        "b_size": rows * batch * heads * d,
    }
    row = batch * heads * d
    return {**sizes, "a_batch": d, "a_row": row, "a_col": 1, "b_batch": d, "b_row": 1, "b_col": row}


def _transposed(n):
    """One large product of a factor that is seen transposed, as in the gradient of a weight."""
    return {"batch": 1, "m": n, "n": n, "p": n, "a_size": n * n, "b_size": n * (n + 64), "a_batch": 0, "a_row": 1,
            "a_col": n, "b_batch": 0, "b_row": n + 64, "b_col": 1}  # fmt: skip


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
    "bmm_strided": Benchmark(sizes=[_heads(16, 128, 12, 64), _heads(32, 64, 8, 32), _transposed(1024), _transposed(4096)],
        flops=lambda batch, m, n, p: 2 * batch * m * n * p, numpy=_numpy_strided, torch=_torch_strided),
    "dgemm": Benchmark(sizes=SQUARES[:5], numpy=lambda np, A, B: A @ B, torch=_dgemm),
}  # fmt: skip
