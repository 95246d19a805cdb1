"""Sizes and baselines of the reduce family."""

from bench.operations.table import Benchmark

_MATRICES = [{"rows": 4096, "cols": 4096}, {"rows": 16384, "cols": 16384}, {"rows": 65536, "cols": 64}]

_BLOCKS = [{"dims": [64, 4096, 256], "axis": 1}, {"dims": [256, 1024, 1024], "axis": 1},
           {"dims": [1024, 1024, 256], "axis": 2}]  # fmt: skip

#: shapes and the bits of their axes: the last, the first, the middle, all but the channels, all
_AXES = [{"dims": [4096, 4096], "axes": 2}, {"dims": [4096, 4096], "axes": 1}, {"dims": [64, 1024, 1024], "axes": 2},
         {"dims": [64, 256, 56, 56], "axes": 13}, {"dims": [2**26], "axes": 1}]  # fmt: skip


def _over(axes):
    return tuple(k for k in range(8) if axes >> k & 1)


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
    "amax": Benchmark(sizes=_AXES, numpy=lambda np, x, axes: np.max(x, axis=_over(axes)),
        torch=lambda torch, x, axes: torch.amax(x, dim=_over(axes))),
    "amin": Benchmark(sizes=_AXES, numpy=lambda np, x, axes: np.min(x, axis=_over(axes)),
        torch=lambda torch, x, axes: torch.amin(x, dim=_over(axes))),
    "prod": Benchmark(sizes=[s for s in _AXES if s["axes"] != 13], numpy=lambda np, x, axes: np.prod(x, axis=_over(axes)),
        torch=lambda torch, x, axes: torch.prod(x, dim=_over(axes)[0])),
    "var": Benchmark(sizes=[{**s, "correction": 0.0, "root": 0} for s in _AXES],
        numpy=lambda np, x, axes, correction, root: np.var(x, axis=_over(axes)),
        torch=lambda torch, x, axes, correction, root: torch.var(x, dim=_over(axes), correction=0)),
    "cumsum": Benchmark(sizes=[{"dims": dims, "axis": axis, "reverse": 0} for dims, axis in (
            ([4096, 4096], 1), ([4096, 4096], 0), ([2**26], 0), ([64, 1024, 1024], 1))],
        numpy=lambda np, x, axis, reverse: np.cumsum(x, axis=axis),
        torch=lambda torch, x, axis, reverse: torch.cumsum(x, dim=axis)),
    "logsumexp": Benchmark(sizes=_AXES, torch=lambda torch, x, axes: torch.logsumexp(x, dim=_over(axes))),
    "vector_norm": Benchmark(sizes=[{**s, "p": p} for s in _AXES for p in (2.0, 3.0)[: 2 if s["axes"] == 2 else 1]],
        torch=lambda torch, x, axes, p: torch.linalg.vector_norm(x, p, dim=_over(axes))),
}  # fmt: skip
