"""Products on kernels that only a GPU has, for shapes that the CPU path takes long for."""

import pytest

from tests.kernels.test_conv import demand_bounds
from tlrt.verify.run import Runtime
from tlspec import registry
from tlspec.drawn import build_case, generator

#: rows, inner dimension and columns of each operation
DIMS = {"matmul": ("m", "n", "p"), "linear": ("batch", "inputs", "outputs")}


@pytest.mark.cuda
@pytest.mark.parametrize("which", ["forward", "vjp"])
@pytest.mark.parametrize("name", ["matmul", "linear"])
def test_float64_in_two_blocks_of_the_inner_dimension(name: str, which: str) -> None:
    """Rows of whole 16 bytes on one side alone, large in every dimension, more than 4096 terms."""
    row = registry.get(name)
    case = build_case(row, dict(zip(DIMS[name], (801, 4101, 1004), strict=True)), {}, generator("float64"), which=which)
    demand_bounds(case, Runtime("cuda"), f"{name} {which}")
