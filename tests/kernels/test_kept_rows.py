"""What a scatter-add does not name keeps its bits, in every kernel that rows may take on CUDA."""

import numpy as np
import pytest

import tlrt
from tests.kernels.test_cuda_paths import SCATTERS
from tests.kernels.test_uneven_lists import UNEVEN
from tlrt import kernels
from tlspec.draw.cases import generator

pytestmark = pytest.mark.cuda


#: wide rows of a list that is sorted once: fewer than hits, aligned and not, and more of few columns; by slots in three pieces
WIDE = [
    (1536, 526, 5120),
    (900, 1024, 2432),
    (2900, 700, 2000),
    (21_000, 104, 8192),
    (3000, 292, 9000),
    (3000, 293, 9000),
]
#: the same of several arrays, and of so few that a thread has parts of one
WIDE_ALONG = [(14, 900, 41, 8000), (10, 600, 64, 7000), (2, 300, 443, 5953), (3, 300, 33, 1500), (300, 20, 60, 300)]


@pytest.mark.operations("scatter_add_rows")
@pytest.mark.parametrize(("rows", "cols", "k"), [*SCATTERS, *UNEVEN, *WIDE, (1200, 21, 4500)], ids=str)
def test_rows_without_a_hit_keep_their_bits(rows: int, cols: int, k: int) -> None:
    """Those of a signaling NaN too, which an addition would change. Odd rows have no hit."""
    rng = generator("kept", rows, cols, k)
    base = np.full((rows, cols), 0x7F800123, np.uint32)
    indices = np.minimum(rows * rng.random(k) ** 3, rows - 1).astype(np.uint32) // 2 * 2
    with tlrt.Device.new("cuda") as dev:
        given = dev.buffer(base.view(np.float32)), dev.buffer(np.ones((k, cols), np.float32)), dev.indices(indices)
        found = kernels.scatter_add_rows(*given, rows, cols).numpy((rows, cols)).view(np.uint32)
    assert (found[1::2] == base[1::2]).all()


@pytest.mark.operations("scatter_add_axis")
@pytest.mark.parametrize("power", [1, 3, 12])
@pytest.mark.parametrize(("outer", "n", "inner", "k"), [*((1, *shape) for shape in WIDE), *WIDE_ALONG], ids=str)
def test_wide_rows_of_arrays(outer: int, n: int, inner: int, k: int, power: int) -> None:
    """The same of arrays that share a list, and in the rows that it names the CPU's bits."""
    rng = generator("kept", outer, n, inner, k, power)
    base = rng.standard_normal((outer, n, inner)).astype(np.float32)
    base.view(np.uint32)[:, 1::2] = 0x7F800123
    values = rng.standard_normal((outer, k, inner)).astype(np.float32)
    indices = ((n + n // 20) * rng.random(k) ** power).astype(np.uint32) // 2 * 2
    sums = [
        kernels.scatter_add_axis(d.buffer(base), d.buffer(values), d.indices(indices), outer, n, inner, k, 1, 1).numpy()
        for d in (tlrt.device("cuda"), tlrt.device("cpu"))
    ]
    found, expected = (s.reshape(base.shape).view(np.uint32) for s in sums)
    assert (found[:, 1::2] == 0x7F800123).all()
    np.testing.assert_array_equal(found, expected)
