"""Sizes and baselines of the shape family."""

from bench.operations.table import Benchmark
from tlspec.ops.shape import index_of_slice, insert_axes, repeated_axes

_SLICES = [
    {"in_dims": [4096, 3, 1024], "out_dims": [4096, 1, 1024], "starts": [0, 1, 0], "steps": [1, 1, 1], "reversed": 0},
    {
        "in_dims": [64, 64, 226, 226],
        "out_dims": [64, 64, 224, 224],
        "starts": [0, 0, 1, 1],
        "steps": [1] * 4,
        "reversed": 0,
    },
    {"in_dims": [8192, 8192], "out_dims": [8192, 4096], "starts": [0, 0], "steps": [1, 2], "reversed": 0},
]
_BROADCASTS = [
    {"in_dims": [64, 1, 512], "out_dims": [64, 512, 512], "axis_map": [1, 2, 3]},
    {"in_dims": [256, 1], "out_dims": [64, 256, 16384], "axis_map": [0, 1, 2]},
    {"in_dims": [32, 1, 1024, 1], "out_dims": [32, 16, 1024, 512], "axis_map": [1, 2, 3, 4]},
]

_BLOCKS = [{"a": 64, "b": 128, "c": 96}, {"a": 512, "b": 1024, "c": 512}]


def _numpy_broadcast(np, x, in_dims, out_dims, axis_map):
    return np.broadcast_to(insert_axes(x, in_dims, axis_map), out_dims).copy()


def _torch_copy(torch, x):
    """A new array: contiguous() gives a view back that is contiguous as it is."""
    return x.clone(memory_format=torch.contiguous_format)


def _torch_broadcast(torch, x, in_dims, out_dims, axis_map):
    return _torch_copy(torch, insert_axes(x, in_dims, axis_map).expand(out_dims))


def _numpy_reduce(np, x, in_dims, out_dims, axis_map):
    return np.sum(x, axis=repeated_axes(in_dims, out_dims, axis_map)).reshape(in_dims)


def _torch_reduce(torch, x, in_dims, out_dims, axis_map):
    axes = repeated_axes(in_dims, out_dims, axis_map)
    return (torch.sum(x, dim=axes) if axes else x.clone()).reshape(in_dims)  # PyTorch takes no axes for all of them


BENCHMARKS = {
    "concat1d": Benchmark(
        sizes=[{"n": 2**24, "m": 2**24}, {"n": 2**27, "m": 2**27}], numpy=lambda np, a, b: np.concatenate([a, b]),
        torch=lambda torch, a, b: torch.cat([a, b])),
    "slice1d": Benchmark(
        sizes=[
            {"n": 2**25, "start": 2**23 + 1, "len": 2**24}, {"n": 2**28, "start": 2**20, "len": 2**27},
            {"n": 2**28, "start": 2**20 + 3, "len": 2**27},
        ], numpy=lambda np, x, start, len: x[start : start + len].copy(),
        torch=lambda torch, x, start, len: x[start : start + len].clone()),
    "slice_axes": Benchmark(sizes=_SLICES,
        numpy=lambda np, x, out_dims, starts, steps, reversed: x[index_of_slice(starts, out_dims, steps, reversed)].copy(),
        torch=lambda torch, x, out_dims, starts, steps, reversed: _torch_copy(torch,
            x[index_of_slice(starts, out_dims, steps, 0)])),
    "pad_axes": Benchmark(
        sizes=[{"in_dims": [64, 64, 224, 224], "out_dims": [64, 64, 226, 226], "starts": [0, 0, 1, 1], "steps": [1] * 4,
                "reversed": 0, "value": 0.0}],
        numpy=lambda np, x, starts: np.pad(x, [(n, n) for n in starts]),
        torch=lambda torch, x, value: torch.nn.functional.pad(x, (1, 1, 1, 1), value=value)),
    "concat_rows": Benchmark(
        sizes=[{"rows": 64, "n": 64 * 56 * 56, "m": 64 * 56 * 56}, {"rows": 2**20, "n": 63, "m": 65}],
        numpy=lambda np, a, b: np.concatenate([a, b], axis=1), torch=lambda torch, a, b: torch.cat([a, b], dim=1)),
    "broadcast_vec_to_rows": Benchmark(sizes=[{"rows": 4096, "cols": 4096}, {"rows": 16384, "cols": 16384}],
        numpy=lambda np, vec, rows, cols: np.broadcast_to(vec, (rows, cols)).copy(),
        torch=lambda torch, vec, rows, cols: _torch_copy(torch, vec.expand(rows, cols))),
    "broadcast_vec_to_cols": Benchmark(sizes=[{"rows": 4096, "cols": 4096}, {"rows": 16384, "cols": 16384}],
        numpy=lambda np, vec, rows, cols: np.broadcast_to(vec[:, None], (rows, cols)).copy(),
        torch=lambda torch, vec, rows, cols: _torch_copy(torch, vec[:, None].expand(rows, cols))),
    "broadcast_to": Benchmark(sizes=_BROADCASTS, numpy=_numpy_broadcast, torch=_torch_broadcast),
    "reduce_from_broadcast": Benchmark(sizes=_BROADCASTS, numpy=_numpy_reduce, torch=_torch_reduce),
    "permute": Benchmark(reason="timed by the names of its forms: transpose2d, swap_adjacent_at_depth and transpose3d_*"),
    "transpose2d": Benchmark(
        sizes=[{"rows": 4096, "cols": 4096}, {"rows": 16384, "cols": 16384}, {"rows": 4097, "cols": 50257}],
        numpy=lambda np, x: x.T.copy(), torch=lambda torch, x: x.T.clone(memory_format=torch.contiguous_format)),
    "swap_adjacent_at_depth": Benchmark(
        sizes=[{"dims": [*d], "depth": 1} for d in ((16, 512, 16, 64), (64, 2048, 16, 128), (64, 2048, 2048))],
        numpy=lambda np, x, depth: np.swapaxes(x, depth, depth + 1).copy(),
        torch=lambda torch, x, depth: torch.swapaxes(x, depth, depth + 1).clone(memory_format=torch.contiguous_format)),
    "transpose3d_bca": Benchmark(sizes=_BLOCKS, numpy=lambda np, x: x.transpose(1, 2, 0).copy(),
        torch=lambda torch, x: x.permute(1, 2, 0).clone(memory_format=torch.contiguous_format)),
    "transpose3d_cab": Benchmark(sizes=_BLOCKS, numpy=lambda np, x: x.transpose(2, 0, 1).copy(),
        torch=lambda torch, x: x.permute(2, 0, 1).clone(memory_format=torch.contiguous_format)),
    "transpose3d_acb": Benchmark(sizes=_BLOCKS, numpy=lambda np, x: x.transpose(0, 2, 1).copy(),
        torch=lambda torch, x: x.permute(0, 2, 1).clone(memory_format=torch.contiguous_format)),
}  # fmt: skip
