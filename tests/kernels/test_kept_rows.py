"""What a scatter-add does not name keeps its bits, in every kernel that rows may take on CUDA."""

import numpy as np
import pytest

import tlrt
from tests.kernels.test_cuda_paths import SCATTERS, UNEVEN
from tlrt import kernels
from tlspec.drawn import generator

pytestmark = pytest.mark.cuda


@pytest.mark.operations("scatter_add_rows")
@pytest.mark.parametrize(("rows", "cols", "k"), [*SCATTERS, *UNEVEN, (1200, 21, 4500)], ids=str)
def test_rows_without_a_hit_keep_their_bits(rows: int, cols: int, k: int) -> None:
    """Those of a signaling NaN too, which an addition would change. Odd rows have no hit."""
    rng = generator("kept", rows, cols, k)
    base = np.full((rows, cols), 0x7F800123, np.uint32)
    indices = np.minimum(rows * rng.random(k) ** 3, rows - 1).astype(np.uint32) // 2 * 2
    with tlrt.Device.new("cuda") as dev:
        given = dev.buffer(base.view(np.float32)), dev.buffer(np.ones((k, cols), np.float32)), dev.indices(indices)
        found = kernels.scatter_add_rows(*given, rows, cols).numpy((rows, cols)).view(np.uint32)
    assert (found[1::2] == base[1::2]).all()
