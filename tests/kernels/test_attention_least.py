"""Attention whose scores are all the least number, or the largest: numbers like others, which are told from a score of -inf."""

from typing import Any

import numpy as np
import pytest

from tests import DEVICES
from tlrt.verify.run import Runtime
from tlspec import registry
from tlspec.compare import compare
from tlspec.draw.cases import Case, build_case, generator
from tlspec.ops.attention import GROUPED_PATHS, LEAST

pytestmark = pytest.mark.operations("grouped_attention", "flash_attention")
#: geometries that reach each way of computing it, of few scores
GEOMETRIES = [
    p for p in GROUPED_PATHS
    if p["batch"] * p["heads"] * p["queries"] * p["keys"] <= 120_000 and p["keys"] * p["width"] <= 200_000
]  # fmt: skip
WAYS = ("product", "largest product", "sum", "mask", "rest of a mask")


@pytest.fixture(scope="module", params=DEVICES)
def runtimes(request: pytest.FixtureRequest) -> list[Runtime]:
    """A device in both modes."""
    return [Runtime(request.param, math=math) for math in ("fast", "reproducible")]


def demand(runtimes: list[Runtime], case: Case, twin: Case) -> None:
    """The last result of a case is within the bound of the last of its twin."""
    wanted, tolerance = twin.expected.outputs[-1], twin.expected.tolerances[-1]
    assert np.isfinite(tolerance).all()
    for runtime in runtimes:
        result = compare(runtime.run(case)[-1], wanted, tolerance)
        assert result.ok, result.explain()


def arrays(geometry: dict[str, Any], way: str, draw: np.random.Generator) -> tuple[dict[str, Any], dict[str, Any]]:
    """Inputs whose scores are equal in each row, and inputs of the same weights whose scores are 0."""
    sizes = [geometry[n] for n in ("batch", "heads", "kv_heads", "queries", "keys", "d", "width")]
    batch, heads, kv_heads, queries, keys, d, width = sizes
    v = draw.standard_normal((batch, kv_heads, keys, width), np.float32)
    q, k = np.zeros((batch, heads, queries, d), np.float32), np.zeros((batch, kv_heads, keys, d), np.float32)
    some = draw.random(queries) < 0.7  # the scores of the other rows are 0
    shut = np.zeros((1, 1, queries, keys), bool)
    if way in ("mask", "rest of a mask"):
        q[..., some, :] = 100 * draw.standard_normal((batch, heads, int(some.sum()), d), np.float32)
        k = 100 * draw.standard_normal(k.shape, np.float32)
    else:
        q[..., some, 0], k[..., 0] = 1, {"product": LEAST, "largest product": -LEAST, "sum": LEAST / 2}[way]
    if way == "rest of a mask":  # it blocks some keys, of some rows all
        shut = (draw.random(shut.shape) < 0.5) | (draw.random((1, 1, queries, 1)) < 0.3)
    added = np.where(some[:, None] & ("product" not in way), LEAST, np.zeros(shut.shape))
    masks = (np.where(shut, -np.inf, x).astype(np.float32) for x in (added, added * 0))
    return tuple({"Q": q * by, "K": k * by, "V": v, "mask": m} for by, m in zip((1, 0), masks, strict=True))


@pytest.mark.parametrize("which", ["forward", "vjp"])
@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("geometry", range(len(GEOMETRIES)))
def test_rows_of_equal_scores_have_equal_weights(runtimes: list[Runtime], geometry: int, way: str, which: str) -> None:
    """However large the scores are: results, and gradients of the values, are within the bound of scores of 0."""
    sizes = {**GEOMETRIES[geometry], "mask_mode": 2, "mask_queries": GEOMETRIES[geometry]["queries"], "scale": 1.0}
    del sizes["mask"]
    row, found = registry.get("grouped_attention"), []
    for inputs in arrays(GEOMETRIES[geometry], way, generator("least", geometry, way)):
        found.append(build_case(row, sizes, inputs, generator("cotangents", geometry), which=which))
    demand(runtimes, *found)


@pytest.mark.parametrize("way", ["product", "largest product"])
@pytest.mark.parametrize(("n", "d"), [(3, 1), (4, 16), (33, 40), (96, 80), (130, 200), (600, 64)], ids=str)
@pytest.mark.parametrize("mode", range(4))
def test_so_have_those_of_flash_attention(runtimes: list[Runtime], mode: int, n: int, d: int, way: str) -> None:
    """With each mode of its mask; a row that is blocked entirely is zeros, or in mode 1 the mean as well."""
    draw = generator("least", n, d, way)
    q, k = np.zeros((1, n, d), np.float32), np.zeros((1, n, d), np.float32)
    q[..., 0], k[..., 0] = draw.random((1, n)) < 0.7, LEAST if way == "product" else -LEAST
    mask = ((draw.random((1, n, n)) < 0.5) & (draw.random((1, n, 1)) < 0.8)).astype(np.float32)
    if mode == 1:  # a score of -1000 beside others is another case
        mask[...] = draw.random((1, n, 1)) < 0.8
    values, row = {"batch": 1, "n": n, "d": d, "mask_mode": mode, "scale": 1.0}, registry.get("flash_attention")
    v = draw.standard_normal((1, n, d), np.float32)
    demand(
        runtimes, *(build_case(row, values, {"Q": q * by, "K": k * by, "V": v, "mask": mask}, draw) for by in (1, 0))
    )
