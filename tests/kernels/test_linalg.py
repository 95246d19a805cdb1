"""Products on kernels that only a GPU has, for shapes that the CPU path takes long for."""

import numpy as np
import pytest

import tlrt
from tests.kernels.test_conv import demand_bounds
from tlrt import kernels
from tlrt.verify.run import Runtime
from tlspec import registry
from tlspec.draw.cases import build_case, generator

#: rows, inner dimension and columns of each operation
DIMS = {"matmul": ("m", "n", "p"), "linear": ("batch", "inputs", "outputs")}


@pytest.mark.cuda
@pytest.mark.parametrize("which", ["forward", "vjp"])
@pytest.mark.parametrize("name", ["matmul", "linear"])
def test_long_sums_whose_rows_are_copied(name: str, which: str) -> None:
    """Tiles of warp group products, with rows of whole 16 bytes in one factor, or in the result, alone."""
    row = registry.get(name)
    case = build_case(row, dict(zip(DIMS[name], (801, 2101, 1004), strict=True)), {}, generator("copied"), which=which)
    demand_bounds(case, Runtime("cuda"), f"{name} {which}")


@pytest.mark.cuda
@pytest.mark.operations("linear")
@pytest.mark.parametrize(("inputs", "batch"), [(0, 17), (0, 0), (5, 0), (5, 17)])
def test_the_gradient_of_a_bias_follows_what_came_before(inputs: int, batch: int) -> None:
    """It may run beside the products of the other two gradients; where these are empty, not beside the fill of its own result."""
    outputs = 31
    rng = generator("bias", inputs, batch)
    with tlrt.Device.new("cuda") as dev:
        w, x, g = (
            dev.buffer(rng.standard_normal(shape).astype(np.float32))
            for shape in ((outputs, inputs), (batch, inputs), (batch, outputs))
        )
        expected = g.numpy((batch, outputs)).sum(0, dtype=np.float64)
        for _ in range(200):
            made = [dev.full(size, np.nan) for size in (outputs * inputs, batch * inputs, outputs)]
            kernels.linear_bwd(w, x, g, outputs, inputs, batch, out=made)
            np.testing.assert_allclose(made[2].numpy(), expected, rtol=1e-5, atol=1e-6)
