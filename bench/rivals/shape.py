"""Sizes and rivals of the shape family."""

from bench.rivals.table import Rival
from tlspec.ops.shape import insert_axes, repeated_axes

_BROADCASTS = [
    {"in_dims": [64, 1, 512], "out_dims": [64, 512, 512], "axis_map": [1, 2, 3]},
    {"in_dims": [256, 1], "out_dims": [64, 256, 16384], "axis_map": [0, 1, 2]},
    {"in_dims": [32, 1, 1024, 1], "out_dims": [32, 16, 1024, 512], "axis_map": [1, 2, 3, 4]},
]

_BLOCKS = [{"a": 64, "b": 128, "c": 96}, {"a": 512, "b": 1024, "c": 512}]

RIVALS = {
    "concat1d": Rival(
        sizes=[{"n": 2**24, "m": 2**24}, {"n": 2**27, "m": 2**27}], numpy=lambda np, a, b: np.concatenate([a, b]),
        torch=lambda torch, a, b: torch.cat([a, b]),
    ),
    "slice1d": Rival(
        sizes=[
            {"n": 2**25, "start": 2**23 + 1, "len": 2**24}, {"n": 2**28, "start": 2**20, "len": 2**27},
            {"n": 2**28, "start": 2**20 + 3, "len": 2**27},
        ],
        numpy=lambda np, x, start, len: x[start : start + len].copy(),
        torch=lambda torch, x, start, len: x[start : start + len].clone(),
    ),
    "broadcast_vec_to_rows": Rival(
        sizes=[{"rows": 4096, "cols": 4096}, {"rows": 16384, "cols": 16384}],
        numpy=lambda np, vec, rows, cols: np.broadcast_to(vec, (rows, cols)).copy(),
        torch=lambda torch, vec, rows, cols: vec.expand(rows, cols).contiguous(),
    ),
    "broadcast_vec_to_cols": Rival(
        sizes=[{"rows": 4096, "cols": 4096}, {"rows": 16384, "cols": 16384}],
        numpy=lambda np, vec, rows, cols: np.broadcast_to(vec[:, None], (rows, cols)).copy(),
        torch=lambda torch, vec, rows, cols: vec[:, None].expand(rows, cols).contiguous(),
    ),
    "broadcast_to": Rival(
        sizes=_BROADCASTS,
        numpy=lambda np, x, in_dims, out_dims, axis_map: np.broadcast_to(
            insert_axes(x, in_dims, axis_map), out_dims
        ).copy(),
        torch=lambda torch, x, in_dims, out_dims, axis_map: (
            insert_axes(x, in_dims, axis_map).expand(out_dims).contiguous()
        ),
    ),
    "reduce_from_broadcast": Rival(
        sizes=_BROADCASTS,
        numpy=lambda np, x, in_dims, out_dims, axis_map: np.sum(
            x, axis=repeated_axes(in_dims, out_dims, axis_map)
        ).reshape(in_dims),
        torch=lambda torch, x, in_dims, out_dims, axis_map: torch.sum(
            x, dim=repeated_axes(in_dims, out_dims, axis_map)
        ).reshape(in_dims),
    ),
    "transpose2d": Rival(
        sizes=[{"rows": 4096, "cols": 4096}, {"rows": 16384, "cols": 16384}, {"rows": 4097, "cols": 50257}],
        numpy=lambda np, x: x.T.copy(), torch=lambda torch, x: x.T.contiguous(),
    ),
    "swap_adjacent_at_depth": Rival(
        sizes=[
            {"dims": [16, 512, 16, 64], "depth": 1}, {"dims": [64, 2048, 16, 128], "depth": 1},
            {"dims": [64, 2048, 2048], "depth": 1},
        ],
        numpy=lambda np, x, depth: np.swapaxes(x, depth, depth + 1).copy(),
        torch=lambda torch, x, depth: torch.swapaxes(x, depth, depth + 1).contiguous(),
    ),
    "transpose3d_bca": Rival(
        sizes=_BLOCKS, numpy=lambda np, x: x.transpose(1, 2, 0).copy(),
        torch=lambda torch, x: x.permute(1, 2, 0).contiguous(),
    ),
    "transpose3d_cab": Rival(
        sizes=_BLOCKS, numpy=lambda np, x: x.transpose(2, 0, 1).copy(),
        torch=lambda torch, x: x.permute(2, 0, 1).contiguous(),
    ),
    "transpose3d_acb": Rival(
        sizes=_BLOCKS, numpy=lambda np, x: x.transpose(0, 2, 1).copy(),
        torch=lambda torch, x: x.permute(0, 2, 1).contiguous(),
    ),
}  # fmt: skip
