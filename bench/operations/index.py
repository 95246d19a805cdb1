"""Sizes and baselines of the index family."""

from bench.operations.table import Benchmark

SIZE_VEC = {"n": 2**24, "k": 2**22}

SIZE_ROWS = {"rows": 50257, "cols": 1024, "k": 65536}


def _add_at(np, x, values, indices):
    out = x.copy()
    np.add.at(out, indices, values)
    return out


BENCHMARKS = {
    "gather_vec": Benchmark(sizes=[SIZE_VEC], numpy=lambda np, vec, indices: vec[indices],
        torch=lambda torch, vec, indices: torch.index_select(vec, 0, indices)),
    "gather_rows": Benchmark(sizes=[SIZE_ROWS], numpy=lambda np, mat, indices: mat[indices],
        torch=lambda torch, mat, indices: torch.index_select(mat, 0, indices)),
    "scatter_add": Benchmark(sizes=[SIZE_VEC], numpy=lambda np, x, values, indices: _add_at(np, x, values, indices),
        torch=lambda torch, x, values, indices: torch.index_add(x, 0, indices, values)),
    "scatter_add_rows": Benchmark(
        sizes=[SIZE_ROWS], numpy=lambda np, mat, values, indices: _add_at(np, mat, values, indices),
        torch=lambda torch, mat, values, indices: torch.index_add(mat, 0, indices, values)),
    "scatter_add_row": Benchmark(sizes=[{"rows": 16384, "cols": 4096, "i": 8191}]),
}  # fmt: skip
