"""Sizes and baselines of the index family."""

from bench.operations.table import Benchmark

SIZE_VEC = {"n": 2**24, "k": 2**22}

SIZE_ROWS = {"rows": 50257, "cols": 1024, "k": 65536}


def _add_at(np, x, values, indices):
    out = x.copy()
    np.add.at(out, indices, values)
    return out


SIZE_CLASSES = [{"outer": 4096, "n": 50257, "inner": 1}, {"outer": 64, "n": 4096, "inner": 256}]

SIZE_TAKE = [{"outer": 8192, "n": 50257, "inner": 1, "io": 8192, "k": 1, "ii": 1},
             {"outer": 64, "n": 4096, "inner": 256, "io": 1, "k": 2048, "ii": 1}]  # fmt: skip


def _take(torch, x, indices, outer, k, inner):
    return torch.gather(x, 1, indices.expand(outer, k, inner))


BENCHMARKS = {
    "argmax": Benchmark(sizes=SIZE_CLASSES, numpy=lambda np, x: np.argmax(x, axis=1),
        torch=lambda torch, x: torch.argmax(x, dim=1)),
    "argmin": Benchmark(sizes=SIZE_CLASSES, numpy=lambda np, x: np.argmin(x, axis=1),
        torch=lambda torch, x: torch.argmin(x, dim=1)),
    "topk": Benchmark(
        sizes=[{**SIZE_CLASSES[0], "k": 50, "largest": 1}, {"outer": 2**16, "n": 64, "inner": 1, "k": 2, "largest": 1}],
        torch=lambda torch, x, k: torch.topk(x, k, dim=1)[1]),
    "take_axis": Benchmark(sizes=SIZE_TAKE, numpy=lambda np, x, indices: np.take_along_axis(x, indices, axis=1), torch=_take),
    "scatter_add_axis": Benchmark(sizes=SIZE_TAKE, torch=lambda torch, x, values, indices, outer, k, inner: torch.scatter_add(
        x, 1, indices.expand(outer, k, inner), values)),
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
