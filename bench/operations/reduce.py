"""Sizes and baselines of the reduce family."""

from bench.operations.table import Benchmark

_MATRICES = [{"rows": 4096, "cols": 4096}, {"rows": 16384, "cols": 16384}, {"rows": 65536, "cols": 64}]

_BLOCKS = [{"dims": [64, 4096, 256], "axis": 1}, {"dims": [256, 1024, 1024], "axis": 1},
           {"dims": [1024, 1024, 256], "axis": 2}]  # fmt: skip

BENCHMARKS = {
    "reduce_sum": Benchmark(
        sizes=[{"n": 2**24}, {"n": 2**28}], numpy=lambda np, x: np.sum(x), torch=lambda torch, x: torch.sum(x)),
    "reduce_sum_axis0": Benchmark(
        sizes=_MATRICES, numpy=lambda np, x: np.sum(x, axis=0), torch=lambda torch, x: torch.sum(x, dim=0)),
    "reduce_sum_axis1": Benchmark(
        sizes=_MATRICES, numpy=lambda np, x: np.sum(x, axis=1), torch=lambda torch, x: torch.sum(x, dim=1)),
    "reduce_sum_axis": Benchmark(sizes=_BLOCKS, numpy=lambda np, x, axis: np.sum(x, axis=axis),
        torch=lambda torch, x, axis: torch.sum(x, dim=axis)),
    "reduce_mean": Benchmark(sizes=_BLOCKS, numpy=lambda np, x, axis: np.mean(x, axis=axis),
        torch=lambda torch, x, axis: torch.mean(x, dim=axis)),
    "reduce_max_axis0": Benchmark(
        sizes=_MATRICES, numpy=lambda np, x: np.max(x, axis=0), torch=lambda torch, x: torch.amax(x, dim=0)),
    "reduce_max_axis1": Benchmark(
        sizes=_MATRICES, numpy=lambda np, x: np.max(x, axis=1), torch=lambda torch, x: torch.amax(x, dim=1)),
}  # fmt: skip
