"""What only CUDA's kernels tell apart, from both sides: lengths at which a row leaves a warp, a block, a cluster; tiles side by
side and one above the other; scratch of several parts; members of a batch that tensor cores do not take."""

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

import tlrt
from tests.kernels.test_conv import sizes
from tests.kernels.test_specification import demand
from tlrt import kernels
from tlrt.verify.run import Runtime
from tlspec import registry
from tlspec.draw.cases import build_case, generator

pytestmark = pytest.mark.cuda

#: the longest rows of each number of threads and elements, and rows that are one longer
STEPS = [
    {"rows": 3, "cols": n} for n in (1021, 1025, 2047, 2048, 2052, 4095, 4096, 4097, 4100, 8192, 8196, 16_383, 16_384)
]
#: rows of more than a leaf: clusters of both sizes, rows beyond a cluster
LONG_ROWS = [{"rows": 3, "cols": n} for n in (16_385, 16_388, 32_772, 49_157, 98_308, 98_309, 262_148, 262_149)]
SOFTMAX_ROWS = [*LONG_ROWS, *STEPS]
#: of more than a chunk of rows: columns that few rows sum after them
CHAINS = [
    {"rows": 133, "cols": n}
    for n in (3, 61, 68, 128, 132, 256, 383, 388, 419, 511, 512, 516, 1024, 1028, 2052, 4099, 12292)
]
#: rows enough for chains: columns at each way in which they are summed
MANY_ROWS = [
    {"rows": rows, "cols": n}
    for rows, n in (
        (16_411, 128), (17_001, 125), (8209, 256), (4111, 511), (4111, 512), (3333, 516), (2177, 768), (2177, 1024), (3201, 1027),
        (16_500, 2), (2048, 513), (2048, 516), (2049, 61), (2049, 521),
    )
]  # fmt: skip
STATISTICS = [*LONG_ROWS, *STEPS, *CHAINS]
WINDOWS = [
    {"channels": 3, "spatial": [n, 4 * m], "kernel": [k, k], "stride": [s, s], "padding": [p, p]}
    for k, s in ((2, 2), (3, 2), (3, 1))
    for p in (0, 1)
    for n, m in ((13, 5), (35, 34))
]
#: of two axes whose rows are no multiples of 4 cells, and of three
WINDOWS += [
    {"channels": 3, "spatial": n, "kernel": [k] * len(n), "stride": [s] * len(n), "padding": [p] * len(n)}
    for n in ([13, 21], [7, 10, 9])
    for k, s in ((2, 2), (3, 2), (2, 1))
    for p in (0, 1)
]
#: rows, columns and hits of scatter-adds
SCATTERS = [
    # short lists, of vectors and of floats; one sort of a block; several, of rows that own hits and of runs
    (300, 8, 128), (90_000, 3, 100), (40, 130, 2000), (16_385, 12, 1500), (3000, 132, 4000), (90_000, 3, 5000),
    (9001, 49, 20_000),
    # device sorts; runs of more than a chunk, and of more than a chunk of chunks
    (30, 4, 140_000), (1_050_000, 1, 140_000), (10, 3, 5000), (1, 1, 20_000), (2, 3, 70_000),
]  # fmt: skip
#: rows of each number of lanes and of each form, then of blocks: few, many, in parts, with lists longer than shared memory
TOPS = [
    {"outer": outer, "n": n, "inner": inner, "k": k, "largest": i % 2}
    for i, (outer, n, inner, ks) in enumerate((
        (40, 16, 3, (2, 7, 16)), (33, 31, 1, (1, 8, 20)), (17, 64, 1, (2, 3, 9)), (9, 96, 2, (2, 8, 16, 37)),
        (7, 255, 1, (1, 5, 12, 255)), (1033, 255, 1, (33,)), (5, 511, 1, (2, 8, 13, 99)), (258, 511, 1, (99,)),
        (3, 1024, 2, (4, 1000)), (33, 1024, 2, (2, 4, 16, 1000)), (2, 4096, 1, (1, 3000)), (4, 4097, 1, (17,)),
        (64, 1025, 1, (1, 40, 1025)), (401, 1745, 1, (14, 900)), (1, 40_001, 2, (3, 700)), (2, 9001, 1, (4097, 9001)),
        (401, 7001, 1, (9,)), (2, 20_011, 1, (1, 50, 193, 4096)), (1, 131_073, 1, (5000,)),
    ))
    for k in ks
]  # fmt: skip
ALONG = [
    {"outer": 3, "n": n, "inner": inner, "k": k, "io": io, "ii": ii}
    for n, inner, k, io in (
        (7, 5, 61, 3),
        (9, 33, 300, 1),
        (700, 36, 9, 3),
        (700, 132, 1500, 1),
        # of one list for all arrays, of fewer rows than hits and of more; of lists of their own
        (400, 12, 1025, 1),
        (20_000, 3, 3000, 1),
        (3, 40, 200, 3),
    )
    for ii in (1, inner)
]
#: one merged axis reduced, two, three; segments of one level, two, three; few results and many, several in
#: a block; short columns, so many that a thread owns whole ones; columns whose lanes have 8, 16, 24 elements and 1 to 7 more
FOLDS: list[dict[str, Any]] = [
    {"dims": dims, "axes": axes}
    for dims, axes in (
        ([5, 4096], 2), ([5, 513], 2), ([7, 61], 2), ([9, 8192], 2), ([3, 8193], 2), ([600, 15], 2), ([300, 33], 1),
        ([3, 700, 37], 2), ([6, 5, 7, 41], 13), ([6, 5, 257], 5), ([2, 3, 2, 3, 2, 3], 21), ([70_000], 1), ([17, 1], 2),
        ([3, 32_700], 2), ([5, 33_000], 2), ([2, 3, 4, 9000], 9), ([70_000, 5], 1), ([133, 65_793], 2), ([2_200_000], 1),
        ([37, 2488], 2), ([2, 1300, 43], 2), ([3, 4100, 10], 2), ([1100, 3], 2), ([2, 263, 5], 2),
        ([3, 3, 95_001], 2), ([3, 2, 361_000], 2),
        ([2, 3, 41], 2), ([2, 64, 41], 2), ([3, 70, 37], 2), ([2, 139, 41], 2), ([2, 192, 37], 2), ([2, 203, 41], 2),
    )
]  # fmt: skip
#: rows of a warp and of a block, of one part and of several, that begin anywhere; columns
EXTREMES = [
    {"outer": outer, "n": n, "inner": inner}
    for outer, n, inner in (
        (9, 1024, 1), (5, 1025, 1), (3, 4096, 1), (7, 8191, 1), (1, 140_001, 1), (6, 20_003, 1), (2, 40_000, 3), (3, 700, 37),
    )
]  # fmt: skip
#: slices of one lane, of some and of a warp, in one batch and in more; as many as make longer ones and columns worth a warp
EXTREMES += [
    {"outer": outer, "n": n, "inner": inner}
    for outer, n, inner in (
        (301, 7, 1), (70, 61, 1), (9, 257, 1), (2113, 1187, 1), (257, 3, 2), (65, 39, 2), (31, 40, 5), (9, 33, 31),
        (2000, 35, 64),
    )
]  # fmt: skip
#: rows of a tile, of several in a block, and of more tiles than a block has, of one level of totals and of two
SUMMED_ROWS = [
    {"dims": dims, "axis": len(dims) - 1, "reverse": reverse}
    for dims in ([5, 1025], [9, 2052], [7, 4097], [40_003], [3, 33_793], [2, 33_796], [1_100_003], [1_081_344])
    for reverse in (0, 1)
]
#: columns of a part of a chunk, of chunks and of tiles
SUMMED_ROWS += [
    {"dims": dims, "axis": 0, "reverse": reverse}
    for dims in ([23, 70], [32, 33], [1023, 40], [1061, 31])
    for reverse in (0, 1)
]
#: columns of a chunk, several units to a block
SUMMED_ROWS += [
    {"dims": dims, "axis": 1, "reverse": reverse}
    for dims in ([5, 3, 97], [3, 8, 131], [9, 13, 64], [2, 32, 301])
    for reverse in (0, 1)
]
#: short slices: rows of a part of a chunk, more than a thread each and fewer, and of chunks; a few columns of either
SUMMED_ROWS += [
    {"dims": dims, "axis": 1, "reverse": reverse}
    for dims in ([70_001, 3], [1057, 31], [530, 79], [37, 512], [9001, 5, 2], [33, 97, 7], [17, 33, 63], [5, 1300, 3])
    for reverse in (0, 1)
]
#: products of few terms in forward and in either gradient: rows of whole quads and of odd lengths, of one tile and of several,
#: and terms for each number of registers
FEW_TERMS = [
    {"m": m, "n": n, "p": p}
    for m, n, p in (
        (137, 1, 752), (141, 3, 761), (4, 131, 16_902), (1130, 65, 4), (850, 6, 85), (8, 41, 8517), (163, 16, 529),
        (2301, 13, 36), (13, 131, 5021),
    )
]  # fmt: skip
#: odd rows in shared memory: of few numbers and of many, by a convolution, as a matrix; whole blocks of them and a rest
ODD = [
    {"batch": b, "n": n}
    for b, n in (
        (167, 1), (167, 5), (300, 15), (301, 17), (70, 45), (5, 127), (40, 331), (33, 1001), (3, 1023), (2, 3125), (3, 4095),
    )
]  # fmt: skip
#: by cuFFT between copies: no powers of two, large primes, odd lengths beyond shared memory, in one piece and in more
LIBRARY = [
    {"batch": b, "n": n}
    for b, n in ((5, 2), (40, 62), (300, 96), (7, 3086), (2, 1027), (3, 4097), (1, 50_001), (55, 59_049))
]
#: powers of two by packed rows, of each first radix, beside the shortest and the longest ones
POWERS = [
    {"batch": b, "n": n}
    for b, n in (
        (3, 32), (129, 64), (300, 128), (33, 256), (35, 512), (70, 1024), (9, 2048), (3, 4096), (2, 8192), (1, 16_384),
        (2, 32_768), (140, 16_384), (1, 65_536),
    )
]  # fmt: skip
TRANSFORMS = [*ODD, *LIBRARY, *POWERS]


def grouped(
    batch: int,
    groups: int,
    channels: int,
    rows: int,
    spatial: tuple[int, ...],
    kernel: int,
    stride: int,
    dilation: int,
    low: int,
    high: int,
) -> dict[str, Any]:
    """A convolution of groups whose axes are alike but for their lengths."""
    lists = {"kernel": kernel, "stride": stride, "dilation": dilation, "padding_low": low, "padding_high": high}
    return {"batch": batch, "groups": groups, "in_channels": channels, "out_channels": rows, "spatial": list(spatial),
            **{name: [n] * len(spatial) for name, n in lists.items()}}  # fmt: skip


#: operation -> dimensions and parameters
PATHS: dict[str, list[dict[str, Any]]] = {
    **dict.fromkeys(("softmax", "log_softmax", "cross_entropy"), SOFTMAX_ROWS),
    **dict.fromkeys(("reduce_sum_axis1", "reduce_max_axis1"), LONG_ROWS),
    "cross_entropy_rows": [
        {**v, "smoothing": s} for v in SOFTMAX_ROWS for s in (0.0, 0.1)
    ],
    "channel_affine": [
        {"batch": 2, "channels": 3, "positions": n} for n in (4099, 16383, 16384, 16385, 32772)
    ],
    "layer_norm": [{**v, "eps": 1e-5} for v in (*STATISTICS, *MANY_ROWS)],
    "rms_norm": [{**v, "eps": 1e-5} for v in (*STATISTICS, *MANY_ROWS[::3], {"rows": 16_500, "cols": 513})],
    "batchnorm_channel_first": [
        {"channels": v["rows"], "height": 1, "width": v["cols"], "eps": 1e-5} for v in (*LONG_ROWS, *CHAINS[5:9])
    ],
    "reduce_max_axis0": [{"rows": n, "cols": c} for n, c in ((300, 1932), (2100, 132), (2100, 131), (70_001, 4), (5, 9))],
    **dict.fromkeys(("amax", "amin", "prod", "logsumexp"), FOLDS),
    "cumsum": SUMMED_ROWS,
    **dict.fromkeys(("argmax", "argmin"), EXTREMES),
    "var": [{**v, "correction": 1.0, "root": i % 2} for i, v in enumerate(FOLDS)],
    "vector_norm": [{**v, "p": p} for v in FOLDS for p in (1.0, 2.0, 2.5, 3.0, 6.0)],
    "max_pool": WINDOWS,
    "avg_pool": WINDOWS,
    "smooth_max_pool": [{**v, "beta": b} for v, b in zip(WINDOWS, (1.5, -0.75) * len(WINDOWS), strict=False)],
    "conv": [
        sizes(2, (200, 200), [16, 17], [3, 3], [1, 1], [1, 1]),
        sizes(3, (64, 390), [19, 18], [2, 3], [2, 2], [1, 0]),
        sizes(2, (40, 70), [24, 26], [3, 3], [1, 1], [1, 1]),
        # direct tiles: of each number of columns, with eight rows of a thread and more; then few terms with chunks of taps
        sizes(2, (3, 70), [33, 40], [3, 5], [1, 1], [1, 0]),
        sizes(2, (5, 137), [30, 31], [1, 1], [1, 1], [0, 0]),
        sizes(2, (1, 9), [5, 9, 33], [2, 3, 3], [1, 1, 1], [1, 0, 2]),
        sizes(3, (17, 70), [9, 33], [1, 3], [1, 1], [0, 1]),
        sizes(2, (3, 8), [17, 40], [3, 5], [2, 3], [1, 2]),
        sizes(3, (8, 70), [9, 33], [1, 1], [1, 1], [0, 0]),
        sizes(2, (2, 1030), [3, 4], [1, 1], [1, 1], [0, 0]),
        sizes(3, (1, 13), [20, 21], [7, 7], [2, 1], [3, 3]),
        *(sizes(2, (c, 40), [20, 19], [k, k], [s, s], [1, 1]) for c, k, s in ((1, 3, 1), (3, 3, 2), (2, 4, 4), (7, 3, 1))),
        sizes(3, (3, 13), [40, 43], [3, 3], [1, 1], [1, 1]),  # tiles of 16 rows and of 64
        sizes(3, (300, 7), [7, 9], [3, 3], [1, 1], [1, 1]),  # blocks of K apart
        sizes(2, (85, 131), [31, 64], [3, 3], [1, 1], [1, 1]),  # tiles of 64 rows, and steps, that are not full
        sizes(2, (4, 300), [8, 17], [1, 1], [1, 1], [0, 0]),  # one tap: copies of four positions, and of one
        sizes(5, (130, 24), [15, 12], [1, 1], [1, 1], [0, 0]),
        sizes(3, (130, 17), [157], [1], [1], [0]),
        sizes(2, (3, 130), [40, 38], [7, 7], [2, 2], [3, 3]),  # chunks of taps
        sizes(5, (3, 147), [60, 2], [7, 7], [2, 2], [3, 3]),
        sizes(5, (33, 19), [5, 9], [3, 3], [1, 1], [1, 1]),
    ],
    "conv_transpose": [
        sizes(2, (200, 200), [9, 10], [4, 4], [2, 2], [1, 1]),
        sizes(2, (131, 40), [5, 2, 3], [3, 4, 3], [2, 2, 2], [1, 1, 1]),  # inner dimensions of phases cut alike
        sizes(2, (9, 7), [2, 33], [3, 5], [2, 2], [1, 2]),
        sizes(3, (64, 3), [24, 28], [3, 3], [1, 1], [1, 1]),
        sizes(2, (63, 2), [5, 6, 7], [4, 4, 4], [2, 2, 2], [1, 1, 1]),
        sizes(3, (410, 14), [3, 20], [4, 4], [2, 2], [1, 1]),  # blocks of K of each phase apart
        sizes(2, (300, 9), [700], [4], [2], [1]),
        sizes(2, (3, 5), [9, 8], [5, 4], [3, 3], [1, 1]),  # nine phases, in two launches
        sizes(2, (20, 40), [9, 8], [4, 5], [4, 4], [0, 1]),  # sixteen
        sizes(7, (256, 128), [2, 28], [3, 3], [2, 2], [1, 1]),  # segments of phases of other lengths
        sizes(2, (5, 4), [9, 7, 40], [2, 7, 3], [3, 1, 1], [0, 3, 1]),
        sizes(8, (23, 1), [1, 1, 22], [4, 4, 4], [2, 2, 2], [1, 1, 1]),  # few columns of weights, in chunks
        sizes(1, (64, 232), [6, 7, 3], [4, 4, 4], [2, 2, 2], [1, 1, 1]),  # small tiles, and taps that lie outside
        sizes(1, (197, 64), [5, 1, 5], [4, 4, 4], [2, 2, 2], [1, 1, 1]),
        sizes(135, (29, 17), [11, 12], [3, 3], [1, 1], [1, 1]),  # blocks of K that a tile adds
    ],
    "matmul": [{"m": 1101, "n": 1131, "p": 1149}, {"m": 1101, "n": 1131, "p": 1152}, {"m": 14, "n": 10399, "p": 176},
               *FEW_TERMS, {"m": 1031, "n": 70, "p": 1003}, {"m": 5, "n": 9001, "p": 1}, {"m": 2, "n": 9000, "p": 33},
               {"m": 6400, "n": 132, "p": 2}, {"m": 9001, "n": 12, "p": 3}],
    "bmm": [{"batch": 211, "m": 1, "n": 64, "p": 80}, {"batch": 300, "m": 3, "n": 67, "p": 61},
            *({"batch": 3, **v} for v in FEW_TERMS), {"batch": 70, "m": 101, "n": 66, "p": 91},
            {"batch": 140, "m": 24, "n": 44, "p": 28}, {"batch": 140, "m": 43, "n": 9, "p": 27},
            {"batch": 420, "m": 60, "n": 71, "p": 58}, {"batch": 133, "m": 233, "n": 65, "p": 5},
            # split products on tiles of half as many columns, or rows
            {"batch": 140, "m": 64, "n": 68, "p": 32}, {"batch": 140, "m": 32, "n": 68, "p": 64}],
    "linear": [{"batch": 1100, "inputs": 1131, "outputs": 1149}, {"batch": 14, "inputs": 10399, "outputs": 176},
               {"batch": 8460, "inputs": 136, "outputs": 3}, {"batch": 1031, "inputs": 45, "outputs": 1030},
               *({"batch": v["m"], "inputs": v["n"], "outputs": v["p"]} for v in FEW_TERMS)],
    **dict.fromkeys(("rfft1d_packed", "irfft1d_packed"), TRANSFORMS),
    "spectral_conv1d_rfft": [
        # whole transforms, of even and odd grids; tiles of the grid, of few channels and of several blocks of them
        *(
            {"grid": g, "width": w, "modes": m}
            for g, w, m in ((1 << 18, 3, 70), (40_001, 3, 40), (140_003, 32, 2), (5000, 70, 17))
        ),
    ],
    "conv_grouped": [
        *(  # depthwise layers with strides and a multiplier: one output of a thread and more
            grouped(b, g, 1, m, size, k, 2, 1, k // 2, k // 2)
            for b, g, m, size, k in (
                (2, 3, 3, (28, 28), 5), (1, 2, 8, (31, 33), 7), (1, 2, 3, (97, 113), 5), (40, 64, 3, (14, 14), 3),
                (1, 1, 3, (41, 43), 3),
            )
        ),
        # threads of several images, not in whole numbers
        grouped(5, 21, 2, 7, (66, 40), 3, 1, 1, 1, 1),
        grouped(2, 140, 8, 7, (5, 4), 3, 1, 1, 1, 1),
        # several outputs to a channel, more than eight and fewer, and blocks of one tap
        grouped(4, 5, 1, 13, (41, 66), 3, 1, 1, 1, 2),
        grouped(3, 7, 1, 4, (45, 50), 5, 1, 1, 2, 2),
        grouped(2, 6, 1, 2, (3, 34, 37), 3, 1, 1, 1, 1),
        grouped(3, 32, 1, 3, (20, 21), 3, 1, 1, 1, 1),
        grouped(2, 40, 9, 9, (28, 30), 3, 1, 1, 1, 1),  # groups of many channels
        grouped(4, 1, 2, 30, (66, 66), 3, 1, 2, 2, 2),  # few rows: blocks of K apart; few columns of weights
        grouped(1, 1, 2, 17, (9, 10), 7, 1, 2, 9, 8),  # taps in chunks, many of them outside
        grouped(2, 1, 64, 68, (26, 30), 3, 1, 2, 2, 2),  # large enough for Hopper's warp group products
    ],
    "conv_transpose_grouped": [
        {
            "batch": 2, "groups": 5, "in_channels": 1, "out_channels": 2, "spatial": [9, 8], "kernel": [3, k], "stride": [2, 3],
            "dilation": [1, d], "padding_low": [1, 0], "padding_high": [1, 1], "output_padding": [1, 0],
        }
        for k, d in ((2, 1), (5, 1), (4, 2))
    ],
    "topk": TOPS,
    **dict.fromkeys(("scatter_add_axis", "take_axis"), ALONG),
    "scatter_add_rows": [{"rows": r, "cols": c, "k": k} for r, c, k in SCATTERS],
    "gather_rows": [{"rows": r, "cols": c, "k": k} for r, c, k in SCATTERS],
    "scatter_add": [{"n": r, "k": k} for r, c, k in SCATTERS if c == 1],
    "flash_attention": [
        {"batch": b, "n": n, "d": d, "mask_mode": m, "scale": d**-0.5}
        for b, n, d, m in (
            (2, 512, 64, 2), (1, 513, 60, 0), (2, 70, 300, 0), (2, 70, 260, 1), (67, 65, 80, 3), (2, 130, 132, 2),
            (3, 513, 112, 0), (1, 300, 7, 0), (140, 7, 5, 0), (1, 300, 90, 1), (90, 66, 96, 3), (1, 530, 47, 2),
            (16, 140, 180, 3), (3, 97, 333, 3), (67, 64, 64, 3), (2, 65, 64, 2), (1, 514, 107, 2), (33, 130, 67, 1),
        )
    ],
    # few keys, and few queries, of rows of each width; keys beyond the window; a row of scores that a block has, which takes all
    # results of a group or parts of them
    "grouped_attention": [
        {
            "batch": 1, "heads": heads, "kv_heads": 1, "queries": queries, "keys": keys, "d": d, "width": width, "mask_mode": 0,
            "mask_batch": 1, "mask_heads": 1, "mask_queries": 1, "before": 60, "after": 0, "offset": offset, "scale": 0.05,
        }
        for heads, queries, keys, d, width, offset in (
            (2, 70, 8, 12, 8, 0), (2, 70, 30, 3, 300, 0), (2, 70, 299, 20, 65, 0), (2, 70, 30, 300, 900, 15),
            (2, 20, 30, 400, 700, 15), (1, 6, 30, 1100, 350, 15), (300, 1, 4096, 300, 260, 2048),
        )
    ],
    "selective_scan_diag": [{"seq_len": t, "state": n} for t, n in ((129, 3), (1000, 1), (300, 4097), (16_500, 33))],
    "add": [{"*": (1 << 21) + 5}],
    "exp": [{"*": (1 << 21) + 5}],
}  # fmt: skip


def given_to(name: str, values: dict[str, Any], rng: np.random.Generator) -> Iterator[tuple[str, np.ndarray | None]]:
    """The inputs that are not drawn: those without dimensions, decaying states, labels, indices of which some are beyond the end,
    and masks."""
    n = values.get("rows", values.get("n", 0))
    for array in registry.get(name).signature.inputs:
        if "*" in values:
            yield array.name, rng.standard_normal(values["*"]).astype(np.float32)
        elif array.name == "A" and "state" in values:
            yield "A", rng.uniform(-1, 1, values["state"]).astype(np.float32)
        elif array.name == "weights":
            yield "weights", rng.uniform(0.5, 2.0, values["cols"]).astype(np.float32)
        elif array.name == "labels":
            yield "labels", rng.integers(0, values["cols"], n).astype(np.uint32)
        elif array.name == "indices":
            shape = [values[s] for s in ("io", "k", "ii") if s in values]
            yield "indices", rng.integers(0, n + n // 20 + 1, shape).astype(np.uint32)
        elif array.name == "mask":
            kept = (rng.random((values["batch"], n, n)) < 0.8).astype(np.float32)
            yield "mask", kept if values["mask_mode"] in (1, 2) else None


CASES = [
    (name, i, which)
    for name, of in PATHS.items()
    for which in (("forward", "vjp") if registry.get(name).vjp_rule else ("forward",))
    for i in range(len(of))
]


@pytest.mark.parametrize(("name", "i", "which"), CASES)
def test_path(name: str, i: int, which: str) -> None:
    """Into poisoned outputs, twice, and each gradient alone."""
    row, values, rng = registry.get(name), PATHS[name][i], generator("path", name, i)
    demand(row, which, [build_case(row, values, dict(given_to(name, values, rng)), rng, which=which)], Runtime("cuda"))


@pytest.mark.operations("bmm")
@pytest.mark.parametrize("values", FEW_TERMS, ids=str)
@pytest.mark.parametrize("batch", [1, 3])
def test_products_of_few_terms_are_chains(batch: int, values: dict[str, int]) -> None:
    """Forward and both gradients, of each form, have the CPU's bits in reproducible contexts. One product has an infinity, the
    last a NaN."""
    rng = generator("few terms", batch, *values.values())
    m, n, p = values.values()
    a, b, g = (rng.standard_normal(shape).astype(np.float32) for shape in ((batch, m, n), (batch, n, p), (batch, m, p)))
    a[0, 0, 0], b[-1, -1, -1] = np.inf, np.nan
    seen = []
    for name in ("cpu", "cuda"):
        with tlrt.Device.new(name, math="reproducible") as dev:
            made = [kernels.bmm(dev.buffer(a), dev.buffer(b), batch, m, n, p)]
            # g·W of m x p times p x n, whose second factor is transposed, and the product of two whose first one is
            made.append(kernels.bmm_bwd(*map(dev.buffer, (g, b.swapaxes(1, 2).copy(), a)), batch, m, p, n)[0])
            made.append(kernels.bmm_bwd(*map(dev.buffer, (a.swapaxes(1, 2).copy(), g, b)), batch, n, m, p)[1])
            seen.append([np.where(np.isnan(x.numpy()), np.nan, x.numpy()) for x in made])
    for cpu, cuda in zip(*seen, strict=True):
        assert cpu.tobytes() == cuda.tobytes()


@pytest.mark.operations("rfft1d_packed")
def test_more_transforms_than_plans_are_kept() -> None:
    """A plan that has given way is made again, and a device gives back what its plans take."""
    lengths = [2 * n for n in range(1, 40)] + [2 * n + 1 for n in range(1, 14)]
    with tlrt.Device.new("cuda") as dev:
        for n in lengths * 2:
            x = np.random.default_rng(n).standard_normal((3, n)).astype(np.float32)
            got = kernels.rfft1d_packed(dev.buffer(x), 3, n).numpy().reshape(3, -1, 2)
            np.testing.assert_allclose(got[..., 0] + 1j * got[..., 1], np.fft.rfft(x), atol=1e-4)
