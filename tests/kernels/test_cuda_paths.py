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

#: the longest rows that threads hold between the powers of two, and rows that are one longer
STEPS = [
    {"rows": 3, "cols": n} for n in (1279, 1281, 1535, 1537, 2559, 2561, 3071, 3072, 3073, 3076, 12287, 12288, 12289)
]
#: columns of two rows or more: two and three leaves in a block, clusters of both sizes, rows beyond a cluster, in quads and not
LONG_ROWS = [{"rows": 3, "cols": n} for n in (16388, 32771, 32772, 49151, 49156, 49157, 98308, 98309, 262_148, 262_149)]
SOFTMAX_ROWS = [*LONG_ROWS, *STEPS]
#: so many rows of one or two elements per lane that each is a warp's
WARP_ROWS = [{"rows": 1057, "cols": n} for n in (1028, 1280, 1284, 1536, 1924, 2048)]
#: rows that a block takes in turn: of two leaves, of a short third one, and the longest
TURNS = [{"rows": 135, "cols": n} for n in (16_389, 33_002, 40_960)]
#: some more rows of nearly a leaf than there are multiprocessors: quarters of rows
QUARTERS = [{"rows": 135, "cols": n} for n in (12_290, 16_384)]
#: of more than a chunk of rows: columns that few rows sum after them
CHAINS = [
    {"rows": 133, "cols": n}
    for n in (3, 61, 128, 132, 256, 383, 419, 511, 512, 516, 1027, 2048, 2052, 4096, 4099, 5121, 8192, 12288, 12292)
]
#: rows enough for chains: columns at each way in which they are summed
MANY_ROWS = [
    {"rows": rows, "cols": n}
    for rows, n in (
        (16_411, 128), (17_001, 125), (8209, 256), (4111, 511), (4111, 512), (3333, 516), (3201, 1027), (3201, 2048),
        (3201, 4099), (3201, 8193), (16_500, 2), (2048, 513), (2049, 61), (2049, 521), (4230, 2049),
    )
]  # fmt: skip
STATISTICS = [*LONG_ROWS, *STEPS, *CHAINS, {"rows": 530, "cols": 8200}, {"rows": 530, "cols": 12288}]
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
    # rows of many hits; few indices, also of a list of two parts; slots of rows, then of fewer and smaller ones
    (40, 130, 2000), (40, 128, 300), (11, 97, 9000), (3000, 132, 4000), (16_385, 1021, 5000), (1100, 130, 1500),
    (9001, 49, 20_000), (3000, 131, 140_000), (3000, 3, 4000), (10, 3, 5000), (7, 1, 5000), (5000, 1, 6000),
    # few rows; of more hits than a warp adds; rows of a block; buckets of rows of many hits, and of rows that few hits meet
    (300, 1, 20_000), (2, 3, 70_000), (300, 31, 9000), (1100, 31, 20_000), (600, 2, 40_000), (90_000, 3, 5000),
    # tiles of whole rows, as many as the device holds; slots of many hits; tiles of some columns
    (3984, 14, 5952), (504, 257, 2100), (8200, 260, 200),
    # tiles of 32 columns of wider rows, aligned and not; of one row
    (3000, 104, 1000), (3000, 101, 1000), (5, 1, 8000),
    (32, 301, 400), (1500, 1100, 1000),  # strips of rows of some hits; two launches of many values
    # slots of rows that a warp does not fill; pieces of three groups of columns, aligned and not
    (2100, 48, 9000), (9000, 61, 30_000), (3000, 293, 4000), (3000, 260, 140_000),
    # buckets of rows: of a table that is copied before, of one that is not; wider rows, of few hits and of many
    (40_000, 29, 9000), (20_000, 2, 9000), (35_000, 71, 9000), (400, 100, 30_000),
    # of fewer rows: buckets of one row, and of more columns
    (50, 7, 140_000), (300, 40, 9000),
    # buckets of rows, of one row, of one that a block adds
    (5003, 1, 140_000), (200, 1, 140_000), (3, 1, 9000),
    # one row of more hits than are added one after the other; rows of more than a warp adds, and fewer than a block guesses
    (1, 1, 8000), (10, 1, 20_000),
    # sums in the output: of few hits, of tiles of which the last is not full; then lines, short ones of many hits, also in parts
    (280_000, 1, 8500), (1_046_530, 1, 9000), (150_000, 1, 100_000), (1_050_000, 1, 90_000), (17_300_000, 1, 1_100_000),
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
        # lists that are sorted once: of fewer rows than hits, in steps, of wide rows
        (4096, 56, 3600, 1),
        (400, 12, 1025, 1),
        (20_000, 3, 8000, 1),
        (300, 33, 5000, 1),
        (5, 132, 1000, 1),
        (3, 40, 200, 3),
        (5, 1500, 20, 1),
        (30, 5, 200, 3),
    )
    for ii in (1, inner)
]
ALONG += [{"outer": 40, "n": 700, "inner": 64, "k": 800, "io": 1, "ii": 1}]  # tiles of whole rows
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
#: rows of a tile, of several in a block, and of blocks that wait for each other, of one level of totals and of two
SUMMED_ROWS = [
    {"dims": dims, "axis": len(dims) - 1, "reverse": reverse}
    for dims in ([5, 1023], [9, 2052], [7, 4097], [40_003], [3, 33_793], [2, 33_796], [1_100_003], [1_081_344])
    for reverse in (0, 1)
]
#: columns of a part of a chunk, of chunks and of tiles
SUMMED_ROWS += [
    {"dims": dims, "axis": 0, "reverse": reverse}
    for dims in ([23, 70], [32, 33], [1023, 40], [1061, 31])
    for reverse in (0, 1)
]
#: columns that a thread has whole, of each number of registers
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
#: products of few terms in forward and in either gradient: rows of whole quads, of half ones and of odd lengths, quads that are
#: most of a row, and terms for each number of registers
FEW_TERMS = [
    {"m": m, "n": n, "p": p}
    for m, n, p in (
        (37, 1, 52), (41, 3, 61), (4, 131, 62), (130, 65, 4), (50, 6, 5), (8, 41, 517), (163, 16, 129), (16, 77, 90),
        (301, 66, 13), (33, 32, 71), (29, 51, 130), (131, 36, 21),
    )
]  # fmt: skip
#: batches of products of each number of column tiles: several products to a block, one, and tiles that follow each other; rows of
#: whole 16 bytes, of 8 and of odd lengths; then fewer columns than half a tile
NARROW = [
    {"batch": b, "m": m, "n": n, "p": p}
    for b, m, n, p in (
        (530, 133, 66, 5), (264, 20, 260, 5), (531, 16, 257, 8), (88, 90, 69, 14), (31, 290, 66, 17), (133, 63, 68, 29),
        (110, 75, 65, 32), (18, 470, 136, 3), (129, 233, 65, 4), (264, 31, 158, 2),
    )
]  # fmt: skip
#: convolutions with a chirp over 32, 48, 64, 80, 128, 144, 160, 192, 240, 512, 1920 and 3840 numbers: of every radix, with many
#: rows in a block and one
CHIRPS = [
    {"batch": b, "n": n}
    for b, n in (
        (301, 17), (5, 29), (70, 37), (200, 53), (40, 83), (3, 89), (33, 103), (5, 127), (9, 151), (40, 331), (5, 1277),
        (3, 262), (3, 2503),
    )
]  # fmt: skip
#: over 8192, 12,288, 20,480 and 24,576 numbers of as many rows as there are SMs; then as matrices, of batches in one piece and in
#: more
CHIRPS += [
    {"batch": b, "n": n}
    for b, n in (
        (140, 5303), (150, 7879), (133, 13_649), (133, 16_381), (3, 3086), (2, 5303), (2, 7879), (1, 14_018),
        (2, 16_411), (1, 24_001), (3, 65_537), (27, 65_521), (1, 81_082),
    )
]  # fmt: skip
#: even lengths as complex rows: several to a block, of an inner pass of radix 20, of two odd ones, and the longest
CHIRPS += [{"batch": b, "n": n} for b, n in ((300, 262), (40, 5072), (35, 9998), (34, 15_122), (33, 24_574))]
#: powers of two by packed rows, of each first radix, beside the shortest and the longest ones
POWERS = [
    {"batch": b, "n": n}
    for b, n in (
        (3, 32), (129, 64), (300, 128), (33, 256), (35, 512), (70, 1024), (9, 2048), (3, 4096), (2, 8192), (1, 16_384),
        (2, 32_768), (140, 16_384), (1, 65_536),
    )
]  # fmt: skip
#: rows of few numbers, each a thread's: whole warps of them, and a rest
FEW = [{"batch": 167, "n": n} for n in (1, 3, 5, 7, 9, 11, 13, 15)]
TRANSFORMS = [*CHIRPS, *POWERS, *FEW]


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
    **{name: [*SOFTMAX_ROWS, *WARP_ROWS, *TURNS, *QUARTERS] for name in ("softmax", "log_softmax")},
    "cross_entropy": SOFTMAX_ROWS,
    **dict.fromkeys(("reduce_sum_axis1", "reduce_max_axis1"), LONG_ROWS),
    "cross_entropy_rows": [
        {**v, "smoothing": s} for v in (*SOFTMAX_ROWS, {"rows": 3, "cols": 49152}, {"rows": 3, "cols": 49153})
        for s in (0.0, 0.1)
    ],
    "channel_affine": [
        {"batch": 2, "channels": 3, "positions": n} for n in (16388, 32771, 49151, 49152, 49153, 98309)
    ],
    "layer_norm": [{**v, "eps": 1e-5} for v in (*STATISTICS, *WARP_ROWS, *MANY_ROWS)],
    "rms_norm": [{**v, "eps": 1e-5} for v in (*STATISTICS, *WARP_ROWS, *MANY_ROWS[::3], {"rows": 16_500, "cols": 513})],
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
        sizes(2, (3, 70), [33, 40], [3, 5], [1, 1], [1, 0]),  # direct: few terms, with two positions of a thread and eight
        sizes(2, (5, 137), [30, 31], [1, 1], [1, 1], [0, 0]),
        sizes(2, (1, 9), [5, 9, 33], [2, 3, 3], [1, 1, 1], [1, 0, 2]),
        sizes(8, (3, 13), [120, 130], [3, 3], [1, 1], [1, 1]),
        sizes(3, (17, 70), [9, 33], [1, 3], [1, 1], [0, 1]),  # no whole chain
        sizes(3, (300, 7), [7, 9], [3, 3], [1, 1], [1, 1]),  # direct: channels in parts
        sizes(2, (70, 5), [40, 67], [3, 5], [1, 1], [1, 2]),  # direct: few rows, with eight positions of a thread
        sizes(2, (3, 8), [17, 40], [3, 5], [2, 3], [1, 2]),  # one group of few channels
        sizes(2, (85, 131), [31, 64], [3, 3], [1, 1], [1, 1]),  # tiles of 64 rows, and steps, that are not full
        sizes(3, (8, 70), [9, 33], [1, 1], [1, 1], [0, 0]),  # one tap: few channels and few rows, in parts and not
        sizes(2, (4, 300), [8, 17], [1, 1], [1, 1], [0, 0]),
        sizes(5, (13, 2), [7], [1], [1], [0]),
        sizes(2, (2, 1030), [3, 4], [1, 1], [1, 1], [0, 0]),
        sizes(2, (3, 130), [40, 38], [7, 7], [2, 2], [3, 3]),  # folded: four taps of a phase along the last axis
        sizes(5, (3, 147), [60, 2], [7, 7], [2, 2], [3, 3]),  # direct: taps left out, of images of few columns and of few rows
        sizes(3, (40, 4), [1, 9, 1], [3, 5, 3], [1, 1, 1], [1, 2, 1]),
        sizes(5, (33, 19), [5, 9], [3, 3], [1, 1], [1, 1]),  # patches of several images, in pieces of 4 bytes; of lines; of a tap
        sizes(2, (31, 13), [5, 156], [3, 5], [1, 1], [1, 2]),
        sizes(3, (130, 17), [156], [1], [1], [0]),
    ],
    "conv_transpose": [
        sizes(2, (200, 200), [9, 10], [4, 4], [2, 2], [1, 1]),
        sizes(2, (131, 40), [5, 2, 3], [3, 4, 3], [2, 2, 2], [1, 1, 1]),  # inner dimensions of phases cut alike
        sizes(3, (70, 3), [5, 6, 7], [4, 4, 4], [2, 2, 2], [1, 1, 1]),  # direct: channels shared among warps
        sizes(2, (9, 7), [2, 33], [3, 5], [2, 2], [1, 2]),
        sizes(5, (64, 2), [16, 16, 16], [4, 4, 4], [2, 2, 2], [1, 1, 1]),  # four, then eight positions of a thread
        sizes(8, (64, 3), [96, 112], [3, 3], [1, 1], [1, 1]),
        sizes(5, (63, 2), [16, 16, 16], [4, 4, 4], [2, 2, 2], [1, 1, 1]),
        sizes(3, (410, 2), [3, 20], [4, 4], [2, 2], [1, 1]),  # channels in parts
        sizes(3, (410, 14), [3, 20], [4, 4], [2, 2], [1, 1]),  # folded from here on: of each number of taps, and of three axes
        sizes(2, (128, 16), [23, 23], [2, 2], [2, 2], [0, 0]),
        sizes(2, (160, 7), [22, 17], [5, 4], [3, 2], [2, 2]),
        sizes(2, (70, 3), [30, 37], [7, 15], [3, 2], [2, 7]),
        sizes(2, (300, 9), [700], [4], [2], [1]),
        sizes(2, (60, 5), [10, 24, 6], [4, 4, 4], [2, 2, 2], [1, 1, 1]),  # three rows of a thread
        sizes(2, (216, 5), [5, 12, 6], [4, 4, 4], [2, 2, 2], [1, 1, 1]),
        sizes(2, (3, 5), [9, 8], [5, 4], [3, 3], [1, 1]),  # one group of few channels
        sizes(7, (256, 128), [2, 28], [3, 3], [2, 2], [1, 1]),  # segments of phases of other lengths
        sizes(2, (5, 4), [9, 7, 40], [2, 7, 3], [3, 1, 1], [0, 3, 1]),
        sizes(8, (23, 1), [1, 1, 22], [4, 4, 4], [2, 2, 2], [1, 1, 1]),  # few columns of weights, in chunks
        sizes(1, (64, 232), [6, 7, 3], [4, 4, 4], [2, 2, 2], [1, 1, 1]),  # small tiles: all taps, and some left out
        sizes(4, (64, 157), [1, 14, 3], [4, 4, 4], [2, 2, 2], [1, 1, 1]),
        sizes(1, (197, 64), [5, 1, 5], [4, 4, 4], [2, 2, 2], [1, 1, 1]),  # taps left out of segments that end within a block
        sizes(3, (131, 29), [13, 3], [4, 4], [2, 2], [1, 1]),  # blocks of K of each phase apart
        sizes(7, (90, 2), [5, 30], [4, 4], [2, 2], [1, 1]),  # direct: two rows of a thread
        sizes(135, (29, 17), [11, 12], [3, 3], [1, 1], [1, 1]),  # patches, and blocks of K that a tile adds
    ],
    "matmul": [{"m": 1101, "n": 1131, "p": 1149}, {"m": 1101, "n": 1131, "p": 1152}, {"m": 14, "n": 10399, "p": 176},
               *FEW_TERMS, {"m": 1031, "n": 70, "p": 1003}, {"m": 5, "n": 9001, "p": 1}, {"m": 2, "n": 9000, "p": 33}],
    "bmm": [{"batch": 211, "m": 1, "n": 64, "p": 80}, {"batch": 300, "m": 3, "n": 37, "p": 61},
            *({"batch": 3, **v} for v in FEW_TERMS), {"batch": 70, "m": 101, "n": 66, "p": 91},
            {"batch": 140, "m": 24, "n": 44, "p": 28}, {"batch": 140, "m": 23, "n": 9, "p": 27},
            {"batch": 31, "m": 7, "n": 256, "p": 5}, NARROW[0],
            {"batch": 420, "m": 60, "n": 71, "p": 58},
            # split products on tiles of half as many columns, or rows, whose copies are of 16 bytes, 4 and 8
            {"batch": 140, "m": 64, "n": 68, "p": 32}, {"batch": 140, "m": 32, "n": 68, "p": 64},
            {"batch": 270, "m": 64, "n": 65, "p": 32}, {"batch": 270, "m": 32, "n": 66, "p": 64},
            {"batch": 270, "m": 64, "n": 32, "p": 65}, {"batch": 270, "m": 32, "n": 64, "p": 66},
            # tiles in registers of long rows: of four and two warps below one another, and gradients of transposed factors
            {"batch": 101, "m": 760, "n": 9, "p": 43}, {"batch": 270, "m": 29, "n": 19, "p": 255},
            {"batch": 266, "m": 62, "n": 113, "p": 18}, {"batch": 266, "m": 18, "n": 62, "p": 113}],
    "linear": [{"batch": 1100, "inputs": 1131, "outputs": 1149}, {"batch": 14, "inputs": 10399, "outputs": 176},
               {"batch": 8460, "inputs": 136, "outputs": 3}, {"batch": 8450, "inputs": 139, "outputs": 13},
               {"batch": 1031, "inputs": 45, "outputs": 1030},
               *({"batch": v["m"], "inputs": v["n"], "outputs": v["p"]} for v in FEW_TERMS)],
    **dict.fromkeys(("rfft1d_packed", "irfft1d_packed"), TRANSFORMS),
    "spectral_conv1d_rfft": [
        *({"grid": 1 << 18, "width": w, "modes": 70} for w in (1, 3)),
        # tiles side by side, the last strip and its last vector not full
        *({"grid": g, "width": w, "modes": m} for g, w, m in ((1 << 18, 1, 34), (270_001, 3, 9), (140_003, 32, 2))),
    ],
    "conv_grouped": [
        *(  # depthwise layers with strides and a multiplier: whole planes, one, a band, one output of a thread and more
            grouped(b, g, 1, m, size, k, 2, 1, k // 2, k // 2)
            for b, g, m, size, k in (
                (2, 3, 3, (28, 28), 5), (1, 2, 8, (31, 33), 7), (1, 2, 3, (97, 113), 5), (40, 64, 3, (14, 14), 3),
                (1, 1, 3, (41, 43), 3),
            )
        ),
        # threads of several rows and images, neither in whole numbers, and blocks of several rows
        grouped(5, 21, 2, 7, (66, 40), 3, 1, 1, 1, 1),
        grouped(2, 140, 8, 7, (5, 4), 3, 1, 1, 1, 1),
        # several outputs to a channel, more than eight and fewer: columns of a plane, and blocks of one tap of several rows
        grouped(4, 5, 1, 13, (41, 66), 3, 1, 1, 1, 2),
        grouped(3, 7, 1, 4, (45, 50), 5, 1, 1, 2, 2),
        grouped(2, 6, 1, 2, (3, 34, 37), 3, 1, 1, 1, 1),
        grouped(3, 32, 1, 3, (20, 21), 3, 1, 1, 1, 1),
        # groups of too many channels for sums of threads and few for tiles: columns of four planes, and of two
        grouped(2, 40, 9, 9, (28, 30), 3, 1, 1, 1, 1),
        grouped(2, 40, 9, 5, (28, 30), 5, 1, 1, 2, 2),
        grouped(4, 1, 2, 30, (66, 66), 3, 1, 2, 2, 2),  # few rows: blocks of K apart; few columns of weights
        grouped(1, 1, 2, 17, (9, 10), 7, 1, 2, 9, 8),  # taps in chunks, many of them outside
        grouped(3, 1, 4, 130, (31, 29), 3, 1, 2, 2, 2),  # a dilated gradient that is folded
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
            (2, 512, 64, 2), (1, 513, 48, 0), (2, 70, 300, 0), (2, 70, 260, 1), (1, 600, 24, 0), (67, 65, 80, 3),
            (2, 130, 132, 2), (3, 513, 112, 0), (1, 300, 7, 0), (1, 270, 13, 2), (140, 7, 5, 0), (1, 300, 90, 1),
            (90, 66, 96, 3), (1, 530, 47, 2), (3, 33, 20, 1), (16, 140, 180, 3), (2, 129, 200, 0), (3, 97, 333, 3),
            (67, 64, 24, 3), (3, 61, 64, 2), (45, 67, 40, 3), (2, 96, 100, 2),
            (2, 515, 192, 0), (1, 530, 151, 2), (1, 520, 132, 3), (66, 70, 100, 2), (33, 130, 67, 1), (66, 97, 72, 3),
            (1, 514, 107, 2), (1, 520, 80, 0),
        )
    ],
    # of few keys: eight of them, rows of one element, of several in a warp, of more than a warp has lanes; keys beyond the window
    "grouped_attention": [
        {
            "batch": 1, "heads": 2, "kv_heads": 1, "queries": 70, "keys": keys, "d": d, "width": width, "mask_mode": 0,
            "mask_batch": 1, "mask_heads": 1, "mask_queries": 1, "before": 60, "after": 0, "offset": 0, "scale": 0.2,
        }
        for keys, d, width in ((6, 14, 64), (8, 12, 8), (7, 36, 1), (5, 7, 35), (30, 3, 300), (400, 72, 100), (299, 20, 65))
    ]
    # wide rows, whose chunks are several launches' work on the emulated device: of many queries, of some, of few, and with
    # weights of the keys in a window in memory
    + [
        {
            "batch": 1, "heads": heads, "kv_heads": 1, "queries": queries, "keys": keys, "d": d, "width": width, "mask_mode": 0,
            "mask_batch": 1, "mask_heads": 1, "mask_queries": 1, "before": 60, "after": 0, "offset": keys // 2, "scale": 0.05,
        }
        for heads, queries, keys, d, width in (
            (2, 70, 30, 300, 900), (2, 20, 30, 400, 700), (1, 6, 30, 700, 350), (300, 1, 4096, 300, 260),
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
@pytest.mark.parametrize("values", NARROW, ids=str)
@pytest.mark.parametrize("few", ["columns", "rows"])
def test_narrow_products_are_chains(few: str, values: dict[str, int]) -> None:
    """Forward and both gradients of products with few columns, or rows, have the CPU's bits in reproducible contexts. One product
    has an infinity, the next a NaN."""
    rng = generator("narrow", few, *values.values())
    batch, m, n, p = values.values()
    m, p = (m, p) if few == "columns" else (p, m)
    a, b, g = (rng.standard_normal(shape).astype(np.float32) for shape in ((batch, m, n), (batch, n, p), (batch, m, p)))
    a[0, 0, 0], b[1, -1, -1] = np.inf, np.nan
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
