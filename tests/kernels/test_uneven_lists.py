"""Scatter-adds of lists in which some elements have far more hits than others, against the column tree in NumPy's float32."""

from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from tlrt import kernels
from tlrt.verify.run import Runtime
from tlspec.bounds import COLUMN_CHUNK
from tlspec.ops import index

F32 = npt.NDArray[np.float32]
U32 = npt.NDArray[np.uint32]
#: hits of a row: next to a chunk, two and four of them, and beyond chunks of chunks
EDGES = [1, 2, 3, 4, 5, 127, 128, 129, 255, 256, 257, 511, 512, 513, COLUMN_CHUNK**2, COLUMN_CHUNK**2 + 1, 70_001]
#: rows, columns and hits: of a short list, of one that is sorted at once, in parts and by device sorts; of more hits than rows
#: and of fewer; of columns that are vectors and that are not
UNEVEN = [
    (7, 3, 128), (50, 8, 100), (300_001, 1, 90),
    (9, 5, 129), (2152, 6, 2048), (31, 768, 904), (40, 130, 2000), (90_000, 3, 2000), (1, 1, 1500),
    (3984, 14, 5952), (169, 12, 2401), (3, 31, 8000), (100_000, 3, 8000), (50_257, 2, 58_579), (900, 144, 9000),
    (66_128, 1, 8273), (4096, 256, 2049), (512, 16, 60_000), (1, 1, 131_072),
    (5003, 5, 140_000), (2000, 1, 1_100_000), (1_100_003, 1, 150_000), (1, 2, 140_000),
]  # fmt: skip
#: outer arrays, their length, elements behind each, and indices; whether arrays and columns have indices of their own
UNEVEN_ALONG = [
    (3, 700, 3, 1500, 0, 0), (11, 96, 12, 8192, 0, 0), (2, 20_000, 1, 8000, 0, 0), (2, 90, 5, 140_000, 0, 0),
    (5, 40, 9, 128, 0, 0), (5, 40, 9, 100, 1, 1), (70, 3, 4, 7, 1, 0), (3, 9, 5, 3, 0, 1),
    (1, 400, 300, 50, 0, 1), (3, 200, 200, 60, 1, 1), (2, 70_000, 1, 8000, 0, 0),
    (3, 700, 8, 300, 1, 0), (3, 60, 7, 300, 1, 1), (4, 50, 6, 500, 0, 1), (200, 300, 1, 1000, 1, 0),
]  # fmt: skip


def drawn(rng: np.random.Generator, power: int, n: int, shape: tuple[int, ...]) -> U32:
    """Indices of which more are small with a larger power, and some out of range."""
    return ((n + n // 20 + 1) * rng.random(shape) ** power).astype(np.uint32)


def scattered(base: F32, values: F32, indices: npt.NDArray[Any]) -> F32:
    return index.scattered(base, values, indices)  # type: ignore[no-untyped-call]


def added(base: F32, values: F32, indices: U32) -> F32:
    return index.added(base, values, indices)  # type: ignore[no-untyped-call]


def assert_same_bits(got: F32, wanted: F32) -> None:
    np.testing.assert_array_equal(got.view(np.uint32), wanted.reshape(got.shape).view(np.uint32))


@pytest.mark.operations("scatter_add_rows", "gather_rows")
@pytest.mark.parametrize("power", [1, 3, 12])
@pytest.mark.parametrize(("rows", "cols", "k"), UNEVEN, ids=str)
def test_uneven_rows(rows: int, cols: int, k: int, power: int, runtime: Runtime) -> None:
    rng = np.random.default_rng((rows, power))
    x, values = (rng.standard_normal((size, cols)).astype(np.float32) for size in (rows, k))
    indices = drawn(rng, power, rows, (k,))
    added_up = kernels.scatter_add_rows(runtime.upload(x), runtime.upload(values), indices, rows, cols)
    assert_same_bits(added_up.numpy((rows, cols)), scattered(x, values, indices))
    gradient = kernels.gather_rows_bwd(indices, runtime.upload(values), rows, cols)
    assert_same_bits(gradient.numpy((rows, cols)), scattered(np.zeros_like(x), values, indices))


@pytest.mark.operations("scatter_add_axis", "take_axis")
@pytest.mark.parametrize("power", [1, 6])
@pytest.mark.parametrize(("outer", "n", "inner", "k", "by_outer", "by_column"), UNEVEN_ALONG, ids=str)
def test_uneven_along(
    outer: int, n: int, inner: int, k: int, by_outer: int, by_column: int, power: int, runtime: Runtime
) -> None:
    rng = np.random.default_rng((outer, n, inner, power))
    x, values = (rng.standard_normal((outer, size, inner)).astype(np.float32) for size in (n, k))
    io, ii = outer if by_outer else 1, inner if by_column else 1
    indices = drawn(rng, power, n, (io, k, ii))
    at, given = runtime.device.indices(indices.reshape(-1)), runtime.upload(values)
    sums = kernels.scatter_add_axis(runtime.upload(x), given, at, outer, n, inner, k, io, ii).numpy(x.shape)
    assert_same_bits(sums, added(x, values, indices))
    gradient = kernels.take_axis_bwd(at, given, outer, n, inner, io, k, ii).numpy(x.shape)
    assert_same_bits(gradient, added(np.zeros_like(x), values, indices))


@pytest.mark.operations("scatter_add_rows")
@pytest.mark.parametrize("cols", [1, 3, 4])
@pytest.mark.parametrize("hits", EDGES)
def test_a_row_has_the_same_sum_whatever_other_rows_get(hits: int, cols: int, runtime: Runtime) -> None:
    """Alone, in the midst of other hits, and where all other indices are out of range."""
    rng, rows = np.random.default_rng(hits), 300
    own, x = (rng.standard_normal((n, cols)).astype(np.float32) for n in (hits, rows))
    alone = kernels.scatter_add_rows(
        runtime.upload(x), runtime.upload(own), np.full(hits, 7, np.uint32), rows, cols
    ).numpy((rows, cols))
    assert_same_bits(alone, scattered(x, own, np.full(hits, 7)))
    for others in (np.array([6, 8, 299]), np.array([300, 2**32 - 1])):
        k = hits + 1000
        indices = rng.choice(others, k).astype(np.uint32)
        places = np.sort(rng.choice(k, hits, replace=False))
        values = rng.standard_normal((k, cols)).astype(np.float32)
        indices[places], values[places] = 7, own
        got = kernels.scatter_add_rows(runtime.upload(x), runtime.upload(values), indices, rows, cols)
        assert_same_bits(got.numpy((rows, cols))[7], alone[7])


@pytest.mark.operations("scatter_add_rows")
@pytest.mark.parametrize("cols", [1, 4])
def test_more_hits_than_chunks_of_chunks_of_chunks(cols: int, runtime: Runtime) -> None:
    """All hits in one row, of four levels of the tree."""
    k = COLUMN_CHUNK**3 + 5
    values = np.random.default_rng(cols).standard_normal((k, cols)).astype(np.float32)
    got = kernels.scatter_add_rows(
        runtime.upload(np.zeros((2, cols), np.float32)), runtime.upload(values), np.ones(k, np.uint32), 2, cols
    ).numpy((2, cols))
    assert_same_bits(got, scattered(np.zeros((2, cols), np.float32), values, np.ones(k)))


@pytest.mark.operations("scatter_add_rows")
@pytest.mark.parametrize("k", [1, 100, 3000, 140_000])
def test_signs_of_zeros(k: int, runtime: Runtime) -> None:
    """No sum of hits is -0; an element without hits keeps its sign."""
    minus = np.full((3, 1), -0.0, np.float32)
    indices = np.zeros(k, np.uint32)
    got = kernels.scatter_add_rows(runtime.upload(minus), runtime.upload(np.full(k, -0.0, np.float32)), indices, 3, 1)
    assert got.numpy().view(np.uint32).tolist() == [0, 2**31, 2**31]
