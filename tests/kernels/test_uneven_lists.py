"""Scatter-adds of lists in which some rows have far more hits than others, on CUDA: the bits of the CPU path."""

import numpy as np
import pytest

import tlrt
from tlrt import kernels

pytestmark = pytest.mark.cuda

#: of lists that name few rows very often
UNEVEN = [
    (2152, 6, 20_000), (5000, 56, 1248), (40, 8, 8000), (3984, 14, 5952), (8080, 11, 16_000), (31, 768, 904), (3, 31, 8000),
    (50_257, 2, 58_579), (20_011, 49, 60_000), (100_000, 3, 8000), (900, 144, 9000), (1800, 1300, 300), (900, 3, 70_000),
    (1200, 12, 70_000), (900, 144, 30_000), (5003, 5, 140_000), (70_000, 2, 24_000), (1025, 31, 24_500), (600, 100, 20_000),
    (40_000, 29, 9000), (512, 16, 60_000), (4096, 256, 2048), (700, 443, 5953),
    # tiles of some columns of wide rows, of which the last has few
    (3000, 104, 1000), (3000, 33, 900),
    # tiles that take rows in turns: of few columns, of 32 of wide rows, aligned and not, and of more of large tables
    (384, 56, 3192), (2100, 1000, 1100), (2100, 1030, 1100), (6000, 733, 352), (50_257, 87, 2470),
    # buckets of rows of few hits on average, of which a block adds one of more
    (20_000, 31, 40_000),
    # rows that blocks add in a chain: of a bucket, of a sorted list, and where others have as many blocks as the device
    (414, 14, 140_000), (40, 7, 140_000), (47, 45, 20_000), (200, 90, 140_000), (100, 20, 30_000),
    # a list of more hits than are sorted at once; a larger table that is copied beside the sort of the list
    (1459, 109, 8971), (2423, 1024, 2053),
    # buckets of rows of 32 columns, of 64 and of more, of several windows, in which some rows have many hits
    (1300, 33, 140_000), (257, 128, 140_000), (60_000, 34, 16_000), (20_000, 32, 30_000),
    # one row of more hits than a chain is for, of few columns and of more
    (3000, 13, 150_000), (300, 33, 270_000),
    # one row of most hits: of few rows of few columns, of strips of one part of the list and of two
    (7, 2, 20_000), (40, 9, 30_000), (113, 1024, 2048), (45, 1100, 9000),
    # wide rows of which most have no hit: of buckets, and of a list that is sorted beside the copy
    (40_000, 33, 9000), (9000, 470, 500), (70_000, 1, 2_100_000),
]  # fmt: skip
#: the same of shared lists that name few rows very often
UNEVEN_ALONG = [
    (3, 700, 3, 1500), (6, 6287, 4, 7280), (11, 96, 11, 8192), (2, 700, 31, 5000), (2, 20_000, 1, 8000), (7, 96, 256, 2048),
    (3, 300, 129, 4000), (1, 32_236, 1, 5208), (80, 3, 7, 1200), (5, 30, 9, 200), (3, 40, 25, 257),
    (1500, 9, 2, 400), (1, 2_100_001, 1, 4999),  # owners of several arrays' columns; three steps of a sort
    (16, 4096, 80, 2048), (4, 10_622, 139, 2143),  # larger tables of wide rows
    (14, 900, 107, 760), (9, 400, 132, 900),  # of few hits, of many values
]  # fmt: skip


def assert_the_bits_of_the_cpu(x: np.ndarray, values: np.ndarray, indices: np.ndarray) -> None:
    """The rows of `values` added to those of `x` have the same bits on both devices."""
    sums = [
        kernels.scatter_add_rows(d.buffer(x), d.buffer(values), indices, *x.shape).numpy(x.shape)
        for d in (tlrt.device("cuda"), tlrt.device("cpu"))
    ]
    np.testing.assert_array_equal(*(s.view(np.uint32) for s in sums))


@pytest.mark.operations("scatter_add")
@pytest.mark.parametrize("power", [3, 12])
@pytest.mark.parametrize(
    ("n", "k"),
    [
        (66_128, 8273),
        (5003, 180_000),
        (60_000, 2_100_000),
        (1_100_003, 150_000),
        (17_300_003, 40_000),
        (2000, 4_400_000),
        (600_000, 4_200_000),
    ],
    ids=str,
)
def test_uneven_indices(n: int, k: int, power: int) -> None:
    """Buckets with far more hits than others, of which one row has most: the CPU's bits."""
    rng = np.random.default_rng((n, power))
    x, values = (rng.standard_normal(size).astype(np.float32) for size in (n, k))
    indices = ((n + n // 20) * rng.random(k) ** power).astype(np.uint32)
    sums = [
        kernels.scatter_add(d.buffer(x), d.buffer(values), indices, n).numpy((n,))
        for d in (tlrt.device("cuda"), tlrt.device("cpu"))
    ]
    np.testing.assert_array_equal(*(s.view(np.uint32) for s in sums))


@pytest.mark.operations("scatter_add_rows")
def test_rare_hits() -> None:
    """Few hits of an output that is copied first: the CPU's bits."""
    rows, cols, k = (1 << 18) + 5, 259, 21
    rng = np.random.default_rng(3)
    x = np.full((rows, cols), 0.1, np.float32)
    values = rng.standard_normal((k, cols)).astype(np.float32)
    indices = np.array([7, rows - 1, rows, *rng.integers(0, rows, 6), *[7, 100] * 6], np.uint32)
    assert_the_bits_of_the_cpu(x, values, indices)


@pytest.mark.operations("scatter_add_rows")
@pytest.mark.parametrize("power", [3, 12])
@pytest.mark.parametrize(("rows", "cols", "k"), UNEVEN, ids=str)
def test_uneven_rows(rows: int, cols: int, k: int, power: int) -> None:
    """Rows with far more hits than others, of each way to share them out: the CPU's bits."""
    rng = np.random.default_rng((rows, power))
    x, values = (rng.standard_normal((size, cols)).astype(np.float32) for size in (rows, k))
    indices = ((rows + rows // 20) * rng.random(k) ** power).astype(np.uint32)
    assert_the_bits_of_the_cpu(x, values, indices)


@pytest.mark.operations("scatter_add_rows")
def test_a_heavy_row_of_which_the_first_part_of_a_long_list_has_nothing() -> None:
    """A list in order of rows, longer than what a block lists the pieces of at once: the CPU's bits."""
    rows, cols, k = 2000, 2, 2_300_000
    rng = np.random.default_rng(k)
    x, values = (rng.standard_normal((size, cols)).astype(np.float32) for size in (rows, k))
    uniform = rng.integers(0, rows, k, dtype=np.uint32)
    indices = np.sort(np.where(rng.random(k) < 0.01, np.uint32(rows - 1), uniform)).astype(np.uint32)
    assert int(np.argmax(indices == rows - 1)) > 1 << 21
    assert_the_bits_of_the_cpu(x, values, indices)


@pytest.mark.operations("scatter_add_axis")
@pytest.mark.parametrize("power", [3, 12])
@pytest.mark.parametrize(("outer", "n", "inner", "k"), UNEVEN_ALONG, ids=str)
def test_uneven_along(outer: int, n: int, inner: int, k: int, power: int) -> None:
    """The same of rows of several arrays, of a sum and of a gradient."""
    rng = np.random.default_rng((outer, n, inner, power))
    x, values = (rng.standard_normal((outer, size, inner)).astype(np.float32) for size in (n, k))
    indices = ((n + n // 20) * rng.random(k) ** power).astype(np.uint32)
    made = []
    for d in (tlrt.device("cuda"), tlrt.device("cpu")):
        at, added = d.indices(indices), d.buffer(values)
        made.append(kernels.scatter_add_axis(d.buffer(x), added, at, outer, n, inner, k, 1, 1).numpy())
        made.append(kernels.take_axis_bwd(at, added, outer, n, inner, 1, k, 1).numpy())
    for i in range(2):
        np.testing.assert_array_equal(made[i].view(np.uint32), made[i + 2].view(np.uint32))
