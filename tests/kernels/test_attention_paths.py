"""Attention on CUDA where which kernel takes a member, or its rows, depends on the other members, the sizes or a mask: in any of
them it has the same bits."""

import numpy as np
import pytest

import tlrt
from tlrt import kernels
from tlspec.draw.cases import generator
from tlspec.ops.attention import UNLIMITED

pytestmark = pytest.mark.cuda


@pytest.mark.operations("grouped_attention")
@pytest.mark.parametrize("scale", [0.4, np.inf, np.nan], ids=str)
@pytest.mark.parametrize("limit", [UNLIMITED, 9000], ids=["no window", "a window"])
def test_queries_beyond_the_end_add_nothing(limit: int, scale: float) -> None:
    """The last tile of queries is not whole. Where all scores of a key are -inf its gradients are 0: what stands in for a query
    that does not exist has no score of that key, or with that scale, that is a number."""
    batch, heads, queries, d, keys, width = 2, 3, 2999, 5, 70, 8
    rng = generator("beyond the end", keys, d)
    shapes = ((batch, heads, queries, d), (batch, keys, d), (batch, keys, width), (batch, heads, queries, width))
    arrays = [rng.standard_normal(shape).astype(np.float32) for shape in shapes]
    arrays[0][..., 0] = 1 + abs(arrays[0][..., 0])
    arrays[1][1, 68, 0] = -np.inf
    sizes = (batch, heads, queries, d, 1, keys, width)
    seen = []
    ways = (("cuda", 0), ("cuda", 2), ("cpu", 0))  # with a mask of zeros that is added, too, and as it should be
    for device, how in ways:
        with tlrt.Device.new(device) as dev:
            q, k, v, g = map(dev.buffer, arrays)
            given = (*sizes, how, 1, 1, 1, limit, limit, 0, scale)
            mask = dev.buffer(np.zeros(keys, np.float32)) if how else None
            out = kernels.grouped_attention(q, k, v, *given, mask=mask)
            made = kernels.grouped_attention_bwd(q, k, v, out, g, *given, mask=mask)
            seen.append([np.where(np.isnan(x := y.numpy()), np.nan, x) for y in made if y is not None])
    for plain, masked, cpu in zip(*seen, strict=True):
        assert plain.tobytes() == masked.tobytes()
        assert np.array_equal(np.isfinite(plain), np.isfinite(cpu))
    for gradient in seen[0][1:]:
        of_key = gradient.reshape(batch, keys, -1)[1, 68]
        assert np.isfinite(gradient).all() and not of_key.any() if np.isfinite(scale) else np.isnan(of_key).all()


@pytest.mark.operations("grouped_attention")
@pytest.mark.parametrize(
    ("math", "width"), [("fast", 65_536 * 128 + 1), ("reproducible", 1001), ("reproducible", 65_536 * 128 + 1)], ids=str
)
def test_more_chunks_than_a_grid_has(math: str, width: int) -> None:
    """Values so wide that blocks which make 128 elements of a row each, or 64, are more than a grid's y reaches, 65 535, or more
    than a launch has on the emulated device: of one key, whose weight is 1, the result is the value and its gradient that of the
    result. Where chains make them the other gradients vanish."""
    rng = generator("chunks", width)
    value, upstream = rng.standard_normal((2, width), dtype=np.float32)
    sizes = (1, 1, 1, 1, 1, 1, width, 0, 1, 1, 1, UNLIMITED, UNLIMITED, 0, 1.0)
    with tlrt.Device.new("cuda", math=math) as dev:
        if "emulated" in dev.describe() and (math, width) == ("reproducible", 65_536 * 128 + 1):
            pytest.skip("takes an hour there")
        q, k, v, g = map(dev.buffer, (np.ones(1, np.float32), np.ones(1, np.float32), value, upstream))
        out = kernels.grouped_attention(q, k, v, *sizes)
        gq, gk, gv = kernels.grouped_attention_bwd(q, k, v, out, g, *sizes)
        assert math == "fast" or not (gq.numpy().any() or gk.numpy().any())
        assert np.array_equal(out.numpy(), value) and np.array_equal(gv.numpy(), upstream)


@pytest.mark.operations("flash_attention")
@pytest.mark.parametrize("unsafe", range(4))
@pytest.mark.parametrize(("n", "d"), [(33, 40), (65, 64), (96, 80), (600, 64), (130, 144)], ids=str)
def test_a_member_beyond_the_split(n: int, d: int, unsafe: int) -> None:
    """One member has a value that tensor cores do not take, the others' upstream gradients are 0: what is known of members, and
    which rows are finite, stays apart from what the passes keep. On Hopper every member has the bits that it has alone; elsewhere
    matrix products may make them, whose kernels depend on the batch."""
    rng = np.random.default_rng(unsafe)
    q, k, v, g = (rng.standard_normal((4, n, d)).astype(np.float32) for _ in range(4))
    q[unsafe, -1, 0] = 2.0**23  # k's products with it are scaled to ordinary scores
    k[unsafe, :, 0] = 2.0**-23
    g[np.arange(4) != unsafe] = 0
    with tlrt.Device.new("cuda") as dev:
        hopper = "compute capability 9." in dev.describe()

        def results(*arrays: np.ndarray) -> list[np.ndarray]:
            members = len(arrays[0])
            q, k, v, g = map(dev.buffer, arrays)
            out = kernels.flash_attention(q, k, v, members, n, d, 0, 0.25)
            made = [dev.full(len(q), np.nan) for _ in range(3)]
            kernels.flash_attention_bwd(q, k, v, out, g, members, n, d, 0, 0.25, out=made)
            return [x.numpy().reshape(members, n, d) for x in (out, *made)]

        whole = results(q, k, v, g)
        for b in range(4):
            for got, alone in zip(whole, results(*(x[b : b + 1] for x in (q, k, v, g))), strict=True):
                assert got[b].tobytes() == alone[0].tobytes() or not hopper, b
            assert all(np.isfinite(x[b]).all() for x in whole)
            assert all(x[b].any() == (b == unsafe) for x in whole[1:])


@pytest.mark.operations("flash_attention")
@pytest.mark.parametrize("d", [64, 100, 144])
def test_a_member_among_many(d: int) -> None:
    """Members with rows for all multiprocessors have other blocks than one alone, and the same bits."""
    rng = np.random.default_rng(d)
    members, n = 15, 513
    arrays = rng.standard_normal((4, members, n, d)).astype(np.float32)
    with tlrt.Device.new("cuda") as dev:

        def results(count: int) -> list[np.ndarray]:
            q, k, v, g = (dev.buffer(x[members - count :]) for x in arrays)
            out = kernels.flash_attention(q, k, v, count, n, d, 3, 0.1)
            gradients = kernels.flash_attention_bwd(q, k, v, out, g, count, n, d, 3, 0.1)
            return [x.numpy().reshape(count, n, d) for x in (out, *gradients)]

        for whole, alone in zip(results(members), results(1), strict=True):
            assert whole[-1].tobytes() == alone[0].tobytes()


@pytest.mark.operations("flash_attention")
@pytest.mark.parametrize(("n", "d"), [(96, 2), (96, 63), (64, 64)], ids=str)
def test_sizes_that_tensor_cores_do_not_take(n: int, d: int) -> None:
    """Two scores are equal, as a product and as a number, and float32 has both exactly. Of TF32 parts the product of the lower
    ones is lost, which makes one smaller by 2^-10."""
    x = 1 + 2.0**-11
    q, k, v = np.zeros((3, n, d), np.float32)
    q[:, 0], q[:, 1], k[:, 1] = 4096 * x, 4096, -1
    k[1, :2], k[n - 1, :2] = (x, 0), (0, x * x)
    v[:] = np.arange(n)[:, None]
    with tlrt.Device.new("cuda") as dev:
        out = kernels.flash_attention(*map(dev.buffer, (q, k, v)), 1, n, d, 0, 1.0).numpy()
    assert (out == n / 2).all()
