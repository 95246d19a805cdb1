"""Attention at the edges of its masks."""

import numpy as np
import pytest

import tlrt
from tests.kernels.test_conv import demand_bounds
from tlrt import kernels
from tlrt.verify.edges import EDGES
from tlrt.verify.run import cpu_settings
from tlspec import registry
from tlspec.draw.cases import build_case, generator

pytestmark = pytest.mark.operations("flash_attention")
TILE, BLOCK = EDGES["attention"]["n"].values()


@pytest.mark.parametrize("n", [4, 128])  # a part of a tile and two tiles; means over n round nothing
@pytest.mark.parametrize("mode", [0, 1, 2, 3])
def test_scores_of_minus_infinity_are_not_blocked(dev, mode, n):
    """A row whose scores are all -inf is NaN; it is zeros only where the mask blocks all of it."""
    q, k, mask = np.full((n, 1), 1e30, np.float32), np.full((n, 1), -1e30, np.float32), np.ones((n, n), np.float32)
    v = np.arange(1, n + 1, dtype=np.float32)
    mask[1] = 0
    q, v, mask = dev.buffer(q), dev.buffer(v), dev.buffer(mask)
    expected = np.full(n, np.nan, np.float32)
    expected[1] = {1: (n + 1) / 2, 2: 0}.get(mode, np.nan)
    y = kernels.flash_attention(q, dev.buffer(k), v, 1, n, 1, mode, 1.0, mask=mask)
    assert np.array_equal(y.numpy(), expected, equal_nan=True)
    assert mode != 2 or not np.signbit(y.numpy()[1])
    k[0] = 0  # a score that is finite takes all the weight
    expected[np.isnan(expected)] = 1
    y = kernels.flash_attention(q, dev.buffer(k), v, 1, n, 1, mode, 1.0, mask=mask)
    assert np.array_equal(y.numpy(), expected)


@pytest.mark.parametrize("mode", range(4))
def test_threads_have_memory_of_their_own(mode):
    """Whole blocks of keys and whole tiles of queries, of many batches."""
    batch, n, d = 24, 2 * np.lcm(BLOCK, TILE), 4
    rng = np.random.default_rng(mode)
    arrays, mask = rng.standard_normal((4, batch, n, d)), rng.random((batch, n, n)) < 0.5
    found = []
    for threads in (1, 2, 2, 2):
        with cpu_settings(threads=threads):
            q, k, v, g = map(tlrt.device("cpu").buffer, arrays)
            given = {"mask": tlrt.device("cpu").buffer(mask)}
            out = kernels.flash_attention(q, k, v, batch, n, d, mode, 0.5, **given)
            grads = kernels.flash_attention_bwd(q, k, v, out, g, batch, n, d, mode, 0.5, **given)
            found.append([x.numpy().tobytes() for x in (out, *grads)])
    assert found[1:] == found[:1] * 3


@pytest.mark.parametrize(("n", "d"), [(8, 8), (20, 200), (100, 100)], ids=str)
def test_gradients_of_a_saturated_softmax_vanish(dev, n, d):
    """Each query attends to one key with weight 1: g·v_j - Σ g·out is 0, not the rounding of two sums in two orders."""
    if dev.is_cuda and n > 64 and 64 <= d <= 192:
        pytest.skip("tensor cores split V: within the bound alone")
    rng = np.random.default_rng(0)
    keys = 60 * np.eye(n, d)
    values, g = (dev.buffer(rng.standard_normal((n, d))) for _ in range(2))
    q, k = dev.buffer(keys[rng.permutation(n)]), dev.buffer(keys)
    out = kernels.flash_attention(q, k, values, 1, n, d, 0, 1.0)
    gq, gk, gv = kernels.flash_attention_bwd(q, k, values, out, g, 1, n, d, 0, 1.0)
    assert not gq.numpy().any() and not gk.numpy().any() and np.count_nonzero(gv.numpy()) == n * d


@pytest.mark.parametrize("which", ["forward", "vjp"])
def test_a_weight_that_float32_takes_for_0_may_meet_an_infinity(runtime, which):
    """e^-112 times an infinity is infinite, or NaN where the weight is 0: of values, and of the gradients that come in."""
    values, slopes = np.ones((2, 1, 3, 2), np.float32)
    values[0, 1], slopes[0, 2, 1] = [np.inf, 2], -np.inf
    arrays = {"Q": np.ones((1, 3, 2)), "K": np.array([[[56, 56], [0, 0], [55, 55]]]), "V": values}
    arrays = {name: a.astype(np.float32) for name, a in {**arrays, **({"g": slopes} if which == "vjp" else {})}.items()}
    shape = {"batch": 1, "n": 3, "d": 2, "mask_mode": 0, "scale": 1.0}
    row = registry.get("flash_attention")
    demand_bounds(build_case(row, shape, arrays, generator(which), which=which), runtime, which)


@pytest.mark.operations("flash_attention", "grouped_attention")
@pytest.mark.parametrize("name", ["flash_attention", "grouped_attention"])
@pytest.mark.parametrize("d", [40, 64, 128])
def test_every_key_may_have_the_greatest_score(runtime, name, d):
    """Each in its turn, and so far above the others that exp of the distance overflows."""
    n, rng = 192, np.random.default_rng(d)
    values, arrays = _grouped(rng, 1, 1, n, n, d, scale=1.0)
    if name == "flash_attention":
        values, arrays = (
            {k: values[k] for k in ("batch", "d", "mask_mode", "scale")} | {"n": n},
            {"V": arrays["V"][:, 0]},
        )
    keys = rng.choice(np.array([-4, 4], np.float32), (n, d))
    for array, rows in (("Q", keys[rng.permutation(n)]), ("K", keys)):
        arrays[array] = np.ascontiguousarray(np.broadcast_to(rows, arrays["V"].shape))
    demand_bounds(build_case(registry.get(name), values, arrays, rng, which="forward"), runtime, name)


def _grouped(rng, heads, kv_heads, queries, keys, d, **more):
    """Values and arrays of grouped_attention, both its forward's and its gradient's."""
    values = {"batch": 2, "heads": heads, "kv_heads": kv_heads, "queries": queries, "keys": keys, "d": d, "width": d,
              "mask_mode": 0, "mask_batch": 1, "mask_heads": 1, "mask_queries": 1, "before": 2**32 - 1, "after": 2**32 - 1,
              "offset": 0, "scale": 0.2, **more}  # fmt: skip
    shapes = {
        "Q": (2, heads, queries, d),
        "g": (2, heads, queries, d),
        "K": (2, kv_heads, keys, d),
        "V": (2, kv_heads, keys, d),
    }
    arrays = {name: rng.standard_normal(shape).astype(np.float32) for name, shape in shapes.items()}
    return values, {**arrays, "mask": np.ones((1, 1, 1, keys), np.float32)}


@pytest.mark.operations("grouped_attention")
@pytest.mark.parametrize("mode", [0, 1, 2])
@pytest.mark.parametrize("rows", [1, 3, 16])
def test_few_queries_to_many_keys(runtime, mode, rows):
    """Parts of the keys are blocked whole, or hold what is not finite."""
    rng = np.random.default_rng(rows)
    values, arrays = _grouped(rng, rows, 1, 1, 700, 12, mask_mode=mode)
    arrays["mask"][..., 200:560] = 0
    if mode == 2:
        arrays["mask"] = np.where(arrays["mask"] == 0, -np.inf, rng.standard_normal(700)).astype(np.float32)
    for name, value in ((None, 0.0), ("V", np.inf), ("K", np.nan), ("K", -np.inf)):
        changed = {**arrays, **({name: arrays[name].copy()} if name else {})}
        if name:
            changed[name][0, 0, 300:310] = value
        case = build_case(registry.get("grouped_attention"), values, changed, rng, which="forward")
        demand_bounds(case, runtime, f"{name} {mode}")


@pytest.mark.operations("grouped_attention")
@pytest.mark.parametrize("mode", range(3))
def test_whole_tiles_of_queries_and_keys(runtime, mode):
    rng = np.random.default_rng(mode)
    values, arrays = _grouped(rng, 2, 1, 2 * TILE, BLOCK, 5, mask_mode=mode, mask_queries=2 * TILE)
    arrays["mask"] = rng.choice(np.array([0, 1, -0.5, 0.25], np.float32), (1, 1, 2 * TILE, BLOCK))
    for which in ("forward", "vjp"):
        case = build_case(registry.get("grouped_attention"), values, arrays, rng, which=which)
        demand_bounds(case, runtime, f"{which} {mode}")


@pytest.mark.operations("grouped_attention")
@pytest.mark.parametrize("after", [0, 2**32 - 1])
def test_shared_keys_that_do_not_split(runtime, after):
    rng = np.random.default_rng(3)
    values, arrays = _grouped(rng, 4, 2, 70, 70, 64, after=after)
    arrays["K"][0, 1, 3, 5], arrays["V"][1, 0, 60] = np.inf, 2.0**100
    for which in ("forward", "vjp"):
        case = build_case(registry.get("grouped_attention"), values, arrays, rng, which=which)
        demand_bounds(case, runtime, which)


@pytest.mark.operations("grouped_attention")
def test_no_heads_pass_nothing_to_their_keys(dev):
    k, empty = dev.buffer(np.ones((64, 64), np.float32)), dev.buffer(np.zeros(0, np.float32))
    sizes = {"batch": 1, "heads": 0, "kv_heads": 1, "queries": 64, "keys": 64, "d": 64, "width": 64, "mask_mode": 0}
    _, gk, gv = kernels.grouped_attention_bwd(empty, k, k, empty, empty, **sizes)
    assert not gk.numpy().any() and not gv.numpy().any() and len(gk.numpy()) == 64 * 64


@pytest.mark.parametrize("array", ["Q", "K", "V", "g"])
@pytest.mark.parametrize("mode", [1, 2, 3])
@pytest.mark.parametrize("value", [np.inf, -np.inf, np.nan])
def test_a_tile_without_a_finite_number(runtime, array, mode, value):
    """All of a tile, which a mask blocks for some rows: what it passes on is NaN where 0 times it is."""
    n, d = 200, 2
    rng = np.random.default_rng(0)
    arrays = {name: rng.standard_normal((1, n, d)).astype(np.float32) for name in "QKVg"}
    arrays["mask"] = np.tril(np.ones((1, n, n), np.float32))
    arrays[array][:, 128:192] = value
    values = {"batch": 1, "n": n, "d": d, "mask_mode": mode, "scale": 1.0}
    for which in ("forward", "vjp"):
        case = build_case(registry.get("flash_attention"), values, arrays, rng, which=which)
        demand_bounds(case, runtime, f"{array} {mode} {which}")


@pytest.mark.parametrize("above", [-3.0, 0.25, 9.0, 60.0, 103.0, 105.0])
@pytest.mark.parametrize("which", ["forward", "vjp"])
def test_scores_near_the_fill(runtime, above, which):
    """Blocked keys have a score of -1000, in tiles of their own: they count unless an open score is more than 104 above."""
    n, d = 200, 5
    q, k = np.zeros((2, 1, n, d), np.float32)
    q[..., 0], k[..., 0] = 1, np.float32(-1000 + above)
    k[0, ::3, 0] -= 0.5
    v = np.random.default_rng(4).standard_normal((1, n, d)).astype(np.float32)
    v[:, 70:] *= np.float32(2.0 ** min(60, max(0, above)))  # of blocked keys, so that small weights show
    mask = np.ones((1, n, n), np.float32)
    mask[..., 40:] = 0
    values = {"batch": 1, "n": n, "d": d, "mask_mode": 1, "scale": 1.0}
    arrays, rng = {"Q": q, "K": k, "V": v, "mask": mask}, generator("near the fill", above)
    case = build_case(registry.get("flash_attention"), values, arrays, rng, which=which)
    demand_bounds(case, runtime, f"{above} above the fill, {which}")


@pytest.mark.operations("flash_attention")
def test_composed_attention_is_a_softmax_of_what_is_kept(s):
    """Bit for bit: what is added to scores that are not blocked is 0."""
    rng = np.random.default_rng(3)
    q, k, v = (s.const(rng.standard_normal((2, 5, 4))) for _ in range(3))
    mask = rng.random((2, 5, 5)) < 0.5
    mask[:, :, 0] = True
    scores = s.scale(s.bmm(q, s.permute(k, (0, 2, 1))), 0.5)
    expected = s.bmm(s.softmax(s.masked_fill(scores, s.const(~mask), -np.inf)), v).numpy()
    assert s.attention(q, k, v, mask).numpy().tobytes() == expected.tobytes()


@pytest.mark.operations("sinusoidal")
def test_an_encoding_that_is_kept_serves_its_own_calls_alone(dev):
    """Each number of a call makes another encoding; what is kept counts as cached, and is collected."""
    calls = [
        (3, 40, 9, 1e4, 5),
        (3, 40, 9, 1e4, 6),
        (3, 40, 9, 1e3, 5),
        (3, 9, 40, 1e4, 5),
        (2, 60, 9, 1e4, 5),
        (1, 40, 9, 1e4, 5),
    ]
    x = dev.buffer(np.random.default_rng(0).standard_normal(3 * 40 * 9).astype(np.float32))
    given = {size: dev.buffer(x.numpy()[:size]) for size in {b * n * d for b, n, d, *_ in calls}}

    def results():
        return [
            kernels.sinusoidal(given[b * n * d], b, n, d, base, start).numpy().tobytes()
            for b, n, d, base, start in calls
        ]

    before, live = results(), dev.memory().live_bytes
    assert len(set(before)) == len(calls)
    assert results() == before and results()[::-1] == before[::-1]
    twice = kernels.sinusoidal(given[360], 1, 40, 9, 1e4, 5).numpy().tobytes()
    assert twice == kernels.sinusoidal(given[360], 1, 40, 9, 1e4, 5).numpy().tobytes() == before[-1]
    dev.collect()
    assert (dev.memory().live_bytes, dev.memory().cached_bytes) == (live, 0)
    assert results() == before
