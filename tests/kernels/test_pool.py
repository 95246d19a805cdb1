"""Pooling windows at the edges of the tasks that the CPU path divides its work into, and in the padding."""

from dataclasses import replace

import numpy as np
import pytest

from tests.kernels.test_conv import demand_bounds
from tlrt import kernels
from tlrt.verify.run import Runtime, cpu_settings
from tlspec import registry
from tlspec.compare import compare_outputs
from tlspec.draw.cases import build_case, draw_case, generator

pytestmark = pytest.mark.operations("max_pool")


def test_a_window_across_two_tasks_gives_its_gradient_once(dev):
    """Cells grow, so that the last of a window wins: one window a cell, many of them in the rows of the next task."""
    rows, cols = 4096, 512  # 32 tasks of 65,536 cells
    x = dev.buffer(np.arange(rows * cols, dtype=np.float32))
    g = np.random.default_rng(0).standard_normal((rows - 4, cols - 4)).astype(np.float32)
    expected = np.zeros((rows, cols), np.float32)
    expected[4:, 4:] = g
    given = dev.buffer(g)
    with cpu_settings(threads=4):
        for _ in range(6):
            gx = kernels.max_pool_bwd(x, given, 1, (rows, cols), (5, 5), (1, 1), (0, 0)).numpy()
            assert np.array_equal(gx.reshape(rows, cols), expected)


@pytest.mark.parametrize(
    ("channels", "cells", "kernel", "stride", "padding"),
    [
        (3, (1600, 2), (3, 3), (2, 1), (1, 1)), (2, (769, 7), (2, 2), (1, 1), (0, 0)), (5, (9, 1), (5, 1), (1, 3), (2, 0)),
        (900, (3, 1), (3, 3), (1, 1), (1, 1)), (8, (4, 4), (2, 3), (2, 1), (0, 1)), (9, (7,), (3,), (2,), (1,)),
        (2, (5, 40, 3), (2, 3, 2), (2, 2, 2), (1, 1, 1)), (7, (8, 2), (2, 2), (1, 1), (5, 0)),
        (3, (50, 9), (2, 2), (1, 1), (0, 0)), (1, (300, 20), (3, 3), (2, 2), (1, 1)),
        (2, (90, 3, 5), (4, 2, 2), (3, 1, 2), (2, 1, 0)), (3, (201,), (2,), (2,), (1,)), (2, (3, 300), (2, 2), (2, 2), (1, 1)),
        (2, (3, 300), (2, 2), (2, 2), (1, 0)),
    ],
)  # fmt: skip
def test_windows_go_cell_by_cell(dev, channels, cells, kernel, stride, padding):
    """In row-major order, in float32, whatever the axis along which outputs are made together."""
    x = np.random.default_rng(0).standard_normal((channels, *cells)).astype(np.float32)
    wide = np.pad(x, [(0, 0), *((p, p + k) for p, k in zip(padding, kernel, strict=True))])
    out = [(n + 2 * p - k) // s + 1 for n, p, k, s in zip(cells, padding, kernel, stride, strict=True)]
    total, most = np.zeros((channels, *out), np.float32), np.full((channels, *out), -np.inf, np.float32)
    inside = np.pad(np.ones_like(x, bool), [(0, 0), *((p, p + k) for p, k in zip(padding, kernel, strict=True))])
    for cell in np.ndindex(*kernel):
        place = (slice(None), *(slice(j, j + n * s, s) for j, n, s in zip(cell, out, stride, strict=True)))
        total += wide[place]
        most = np.where(inside[place], np.maximum(most, wide[place]), most)
    found, largest = (
        f(dev.buffer(x), channels, cells, kernel, stride, padding) for f in (kernels.avg_pool, kernels.max_pool)
    )
    assert np.array_equal(found.numpy(total.shape), total / np.float32(np.prod(kernel)))
    assert np.array_equal(largest.numpy(most.shape), most)


@pytest.mark.parametrize("beta", [1e-38, -1e-38, 1e-42])
@pytest.mark.parametrize("which", ["forward", "vjp"])
def test_a_small_beta_meets_the_range(which, beta):
    """v - p, and ln(Σ)/β, beyond float32 where the weights and the result are not."""
    x = np.float32([[-3e38, 3e38, -1.5e38, 1], [-3.4e38, -3.4e38, -3e38, 5], [np.inf, 0, 1, 2], [1, 2, 3, 4]])
    values = {
        "channels": 4,
        "spatial": [4],
        "kernel": [4],
        "stride": [4],
        "padding": [0],
        "beta": float(np.float32(beta)),
    }
    given = {"x": x * np.float32(np.sign(beta)), "g": np.ones((4, 1), np.float32)}
    case = build_case(registry.get("smooth_max_pool"), values, given, generator("beta"), which=which)
    (found,) = compare_outputs(case.expected, Runtime("cpu").run(case))
    assert found.ok, found.explain()
    assert which == "vjp" or abs(beta) < 1e-40 or np.isfinite(case.expected.outputs[0].astype(np.float32)[0]).all()


@pytest.mark.parametrize("beta", [2.0, -2.0])
@pytest.mark.parametrize("cells", [(3,), (1, 3), (2, 1, 3), (4, 40)], ids=str)
def test_windows_of_padding_alone(dev, cells, beta):
    """They give -inf or 0 and no gradient, along each axis; so does every window where all lie in the padding."""
    x = dev.buffer(np.random.default_rng(0).standard_normal((2, *cells)))
    for axis, n in enumerate(cells):
        for k, s, p in ((1, 1, 1), (2, 1, 3), (2, n + 5, 5)):
            lists = [
                [v if i == axis else 1 - (name == "p") for i in range(len(cells))] for name, v in zip("ksp", (k, s, p))
            ]
            out = [(c + 2 * q - w) // t + 1 for c, w, t, q in zip(cells, *lists)]
            first = np.arange(out[axis]) * s - p
            alone = np.flatnonzero((first >= n) | (first + k <= 0))
            assert alone.size
            g = dev.full(2 * int(np.prod(out)), 1.0)
            for name, fill, more in (
                ("max_pool", -np.inf, ()),
                ("avg_pool", 0.0, ()),
                ("smooth_max_pool", 0.0, (beta,)),
            ):
                made = getattr(kernels, name)(x, 2, cells, *lists, *more).numpy((2, *out))
                assert np.array_equal(made.take(alone, axis + 1), np.full_like(made.take(alone, axis + 1), fill))
                assert not np.isinf(np.delete(made, alone, axis + 1)).any()
                given = (g,) if name == "avg_pool" else (x, g)
                gx = getattr(kernels, f"{name}_bwd")(*given, 2, cells, *lists, *more).numpy()
                assert np.isfinite(gx).all() and np.any(gx) == (alone.size < out[axis])


@pytest.mark.parametrize("which", ["forward", "vjp"])
@pytest.mark.parametrize("name", ["max_pool", "smooth_max_pool"])
def test_windows_of_nothing_but_minus_infinity(name, which, runtime: Runtime):
    """Alone in the padding, beside others, and everywhere: as a mask leaves them."""
    for seed in range(8):
        case = draw_case(name, seed, "normal", "small", which)
        for part in (0.2, 0.7, 1.0):
            x = np.array(case.inputs["x"])
            x.reshape(-1)[: int(np.ceil(part * x.size))] = -np.inf
            demand_bounds(
                replace(case, inputs={**case.inputs, "x": x}), runtime, f"{name} {which} {seed}, {part} of -inf"
            )
