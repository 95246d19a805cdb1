"""Sizes and baselines of the softmax family."""

from bench.operations.table import Benchmark

SIZES = [{"rows": r, "cols": c} for r, c in ((4096, 4096), (16384, 16384), (65536, 1024), (4096, 50257))]

BENCHMARKS = {
    "softmax": Benchmark(sizes=SIZES, torch=lambda torch, x: torch.softmax(x, dim=1),
        torch_vjp=lambda torch, out, g: torch.ops.aten._softmax_backward_data(g, out, 1, torch.float32)),
    "log_softmax": Benchmark(sizes=SIZES, torch=lambda torch, x: torch.log_softmax(x, dim=1),
        torch_vjp=lambda torch, out, g: torch.ops.aten._log_softmax_backward_data(g, out, 1, torch.float32)),
}  # fmt: skip
