"""Sizes and baselines of the random family."""

from bench.operations.table import Benchmark

SIZES = [{"n": 2**24, "key": 1}, {"n": 2**28, "key": 1}]

BENCHMARKS = {
    "rand_uniform": Benchmark(sizes=SIZES, numpy=lambda np, n: np.random.default_rng(1).random(n, dtype=np.float32),
        torch=lambda torch, n, device: torch.rand(n, device=device)),
    "bernoulli_mask": Benchmark(sizes=[{**SIZES[0], "keep": 0.9}]),
    "rand_normal": Benchmark(
        sizes=SIZES, numpy=lambda np, n: np.random.default_rng(1).standard_normal(n, dtype=np.float32),
        torch=lambda torch, n, device: torch.randn(n, device=device)),
}  # fmt: skip
