"""Attention of any geometry, and what generation keeps, against float64 NumPy."""

import itertools
from functools import partial
from typing import Any

import numpy as np
import pytest
from numpy.testing import assert_raises, assert_raises_regex

import tlrt
from tests.runtime.operation_calls import attend
from tlrt import Session, Tape, nn
from tlrt.errors import ArgumentError, CaptureError, ShapeError
from tlrt.spec import SpecDevice
from tlspec.bounds import U
from tlspec.drawn import generator


def operands(*shapes: tuple[int, ...]) -> list[np.ndarray]:
    rng = generator("attention", str(shapes))
    return [rng.normal(size=s).astype(np.float32) for s in shapes]


def reference(q: Any, k: Any, v: Any, allowed: Any = None, bias: Any = 0.0) -> Any:
    """Heads of keys repeated for their group; blocked weights are 0."""
    q, k, v = (np.asarray(x, np.float64) for x in (q, k, v))
    group = q.shape[1] // k.shape[1]
    k, v = (np.repeat(x, group, axis=1) for x in (k, v))
    full = (*q.shape[:3], k.shape[2])
    allowed = np.broadcast_to(True if allowed is None else allowed, full)
    return attend(q, k, v, q.shape[3] ** -0.5, allowed, bias=np.broadcast_to(bias, full))


def positions(queries: int, keys: int, offset: int) -> Any:
    return np.arange(keys) - (offset + np.arange(queries))[:, None]


Q, K, V = operands((2, 6, 5, 7), (2, 3, 9, 7), (2, 3, 9, 4))
SOME = generator("mask").random((2, 1, 5, 9)) < 0.6
SOME[1, 0, 2] = False
BIAS = operands((6, 1, 9))[0]
LATER = positions(5, 9, 0)
GEOMETRIES: dict[str, tuple[dict[str, Any], Any, Any]] = {
    "grouped heads": ({}, None, 0.0),
    "causal, from the first key": ({"causal": True}, LATER <= 0, 0.0),
    "causal, to the last key": ({"causal": True, "offset": "end"}, LATER <= 4, 0.0),
    "a causal window": ({"window": 3, "causal": True, "offset": 1}, (LATER <= 1) & (LATER > -2), 0.0),
    "a mask of booleans": ({"mask": SOME}, SOME, 0.0),
    "a mask of booleans, and causal": ({"mask": SOME, "causal": True}, SOME & (LATER <= 0), 0.0),
    "a mask to add": ({"mask": BIAS}, None, BIAS),
    "a mask to add that blocks": ({"mask": np.where(SOME, BIAS, -np.inf)}, SOME, BIAS),
}


@pytest.mark.operations("grouped_attention")
def test_windows_of_any_place() -> None:
    """Queries before the keys, among them and beyond their end, and windows that reach less than all keys, all and more."""
    q, k, v = Q[:1, :, :3], K[:1, :, :4], V[:1, :, :4]
    with Session("spec") as s:
        for window, offset, causal in itertools.product(range(1, 8), range(8), (False, True)):
            late = positions(3, 4, offset)
            allowed = (late <= 0) & (late > -window) if causal else np.abs(late) < window
            found = s.scaled_dot_product_attention(
                *map(s.const, (q, k, v)), window=window, offset=offset, causal=causal
            )
            assert np.allclose(found.numpy(), reference(q, k, v, allowed), rtol=1e-6, atol=1e-6), (
                window,
                offset,
                causal,
            )
            s.reset()
        for function in (s.scaled_dot_product_attention, s.attention):  # and with a scale of 0 all keys weigh the same
            x = s.const(K[0, :, :4])
            assert np.allclose(function(x, x, x, scale=0.0).numpy()[:, :1], K[0, :, :4].mean(1, keepdims=True))


@pytest.mark.operations("grouped_attention")
@pytest.mark.parametrize("name", GEOMETRIES)
def test_attention_of_any_geometry_is_what_its_description_says(name: str) -> None:
    how, allowed, bias = GEOMETRIES[name]
    with Session("cpu") as s:
        ways = [how]
        if "mask" not in how:  # with one that is computed, it is composed of other operations
            ways.append({**how, "mask": s.const(np.zeros((5, 9), np.float32)), "mask_mode": "additive"})
        for way in ways:
            out = s.scaled_dot_product_attention(s.const(Q), s.const(K), s.const(V), **way).numpy()
            np.testing.assert_allclose(out, reference(Q, K, V, allowed, bias), rtol=0, atol=200 * U)


#: shapes of q, k, v and of a mask; leading axes are broadcast as NumPy's matmul does
RANKS: dict[str, tuple[tuple[int, ...], ...]] = {
    "two axes": ((5, 7), (9, 7), (9, 4), (5, 9)),
    "two axes, a mask of keys": ((5, 7), (9, 7), (9, 4), (9,)),
    "three axes": ((2, 5, 7), (2, 9, 7), (2, 9, 4), (2, 1, 9)),
    "one sequence of keys for a batch": ((2, 5, 7), (9, 7), (9, 4), (2, 5, 9)),
    "queries for a batch of keys": ((5, 7), (2, 9, 7), (9, 4), (5, 1)),
    "heads without a batch": ((2, 3, 5, 7), (3, 9, 7), (9, 4), (3, 1, 9)),
    "a batch of one": ((1, 1, 5, 7), (2, 3, 9, 7), (1, 3, 9, 4), (2, 1, 5, 9)),
    "five axes": ((2, 3, 2, 5, 7), (2, 3, 2, 9, 7), (2, 3, 2, 9, 4), (3, 1, 5, 9)),
    "five axes that are broadcast": ((2, 1, 2, 5, 7), (3, 1, 9, 7), (2, 9, 4), (2, 1, 1, 1, 9)),
    "six axes": ((2, 1, 3, 1, 5, 7), (2, 1, 3, 1, 9, 7), (1, 2, 1, 1, 9, 4), (2, 2, 3, 1, 5, 9)),
    "nothing": ((2, 0, 1, 5, 7), (2, 1, 1, 9, 7), (9, 4), (5, 9)),
}


@pytest.mark.operations("grouped_attention")
@pytest.mark.parametrize("kind", ["none", "booleans", "hard", "added"])
@pytest.mark.parametrize("name", RANKS)
def test_attention_of_any_rank_broadcasts_leading_axes(name: str, kind: str) -> None:
    *shapes, masked = RANKS[name]
    q, k, v = operands(*shapes)
    allowed = np.ones(()) if kind in ("none", "added") else generator("mask", name).random(masked) < 0.7
    bias = operands(masked)[0] if kind == "added" else 0
    scores = np.matmul(q.astype(np.float64), np.swapaxes(k, -1, -2)) / np.sqrt(7) + bias
    e = allowed * np.exp(scores)
    total = e.sum(-1, keepdims=True)
    wanted = np.matmul(e / np.where(total > 0, total, 1), v)
    with Session("cpu") as s:
        how = {"none": {}, "booleans": {"mask": allowed}, "added": {"mask": bias},
               "hard": {"mask": s.const(allowed), "mask_mode": "hard"}}  # fmt: skip
        leaves = [s.input(x, requires_grad=True) for x in (q, k, v)]
        out = s.scaled_dot_product_attention(*leaves, **how[kind])
        assert out.shape == wanted.shape
        np.testing.assert_allclose(out.numpy(), wanted, rtol=0, atol=200 * U)
        s.backward(s.sum(out))
        assert [x.grad.shape for x in leaves] == shapes
        # the weights of a row sum to 1, in each column of values
        weights = np.broadcast_to(total > 0, wanted.shape).sum()
        np.testing.assert_allclose(leaves[2].grad.numpy().sum(dtype=np.float64), weights, rtol=200 * U)


@pytest.mark.operations("grouped_attention", "flash_attention")
@pytest.mark.parametrize("causal", [False, True])
def test_a_square_geometry_has_the_bits_of_flash_attention(causal: bool) -> None:
    q, k, v = operands((6, 70, 40), (6, 70, 40), (6, 70, 40))
    with Session("cpu") as s:
        flash = s.flash_attention(s.const(q), s.const(k), s.const(v), mask_mode=3 if causal else 0)
        four = [s.const(x.reshape(2, 3, 70, 40)) for x in (q, k, v)]
        wide = s.scaled_dot_product_attention(*four, causal=causal)
        mask = np.tri(70, dtype=bool) if causal else np.ones((70, 70), bool)
        row = s.scaled_dot_product_attention(*four, mask)
        assert wide.numpy().tobytes() == row.numpy().tobytes() == flash.numpy().tobytes()


@pytest.mark.operations("grouped_attention")
def test_one_query_after_the_other_has_the_bits_of_all_at_once() -> None:
    q, k, v = operands((1, 4, 70, 16), (1, 2, 70, 16), (1, 2, 70, 16))
    with Session("cpu") as s:
        whole = s.scaled_dot_product_attention(s.const(q), s.const(k), s.const(v), causal=True).numpy()
        for t in (1, 2, 63, 64, 65, 70):
            part = [s.const(x) for x in (q[:, :, t - 1 : t], k[:, :, :t], v[:, :, :t])]
            one = s.scaled_dot_product_attention(*part, causal=True, offset="end").numpy()
            assert one.tobytes() == whole[:, :, t - 1 : t].tobytes(), t


def test_generation_with_a_cache_equals_the_full_pass() -> None:
    x = operands((2, 11, 24))[0]
    with Session("cpu", seed=3) as s, s.no_grad():
        layer = nn.MultiHeadAttention(s, 24, 6, name="a", causal=True, kv_heads=2, bias=True, rotary=1e4, window=7)
        whole, cache, parts = layer(s.const(x)).numpy(), nn.KeyValueCache(s), []
        for first, end in ((0, 4), *((t, t + 1) for t in range(4, 11))):
            parts.append(layer(s.const(x[:, first:end]), cache=cache).numpy())
            assert len(cache) == end
            s.reset()
        np.testing.assert_allclose(np.concatenate(parts, axis=1), whole, rtol=0, atol=100 * U)
        assert_raises(ShapeError, layer, s.const(x[:1, :1]), cache=cache)
        assert_raises(CaptureError, s.capture, lambda: layer(s.const(x[:, :1]), cache=cache))
        assert len(cache) == 11
        alone = s.capture(lambda x: layer(s.const(x), cache=nn.KeyValueCache(s)), x[:, 1:])  # one of its own
        np.testing.assert_allclose(alone(x[:, :-1]).numpy(), whole[:, :-1], rtol=0, atol=100 * U)
        cache.clear()
        assert len(cache) == 0


OPTIONS: dict[str, Any] = {"causal": True, "kv_heads": 2, "rotary": 1e4, "activation": "swiglu", "dim_feedforward": 20}


@pytest.mark.parametrize("how", [{"norm": "rms", "bias": False}, {"bias": True, "window": 4, "activation": "relu"}])
def test_blocks_give_with_caches_what_they_give_of_all_positions(how: dict[str, Any]) -> None:
    """In float64, where another order of additions is no difference that one could mistake for a wrong position."""
    x = operands((2, 9, 24))[0]
    with Session("spec", seed=4) as s, s.no_grad():
        blocks = [nn.TransformerBlock(s, 24, 6, name=f"b{i}", **{**OPTIONS, **how}) for i in range(2)]
        caches, parts, whole = [nn.KeyValueCache(s) for _ in blocks], [], s.const(x)
        for block in blocks:
            whole = block(whole)
        for first, end in ((0, 3), *((t, t + 1) for t in range(3, 9))):
            y = s.const(x[:, first:end])
            for block, cache in zip(blocks, caches, strict=True):
                y = block(y, cache=cache)
            parts.append(y.numpy())
        assert [len(cache) for cache in caches] == [9, 9]
        np.testing.assert_allclose(np.concatenate(parts, axis=1), whole.numpy(), rtol=0, atol=100 * 2.0**-53 * 24)


def llama_block(block: nn.TransformerBlock, x: np.ndarray, heads: int, base: float) -> np.ndarray:
    """A decoder block of the Llama family in NumPy, with a block's weights."""
    batch, n, width = x.shape
    d, weights = width // heads, block.attention

    def norm(y: np.ndarray) -> np.ndarray:
        return y / np.sqrt((y * y).mean(-1, keepdims=True) + 1e-6)

    def turn(y: np.ndarray) -> np.ndarray:
        angles = np.arange(n)[:, None] * base ** (-np.arange(0, d, 2) / d)
        first, second = y[..., : d // 2], y[..., d // 2 :]
        cos, sin = np.cos(angles), np.sin(angles)
        return np.concatenate([first * cos - second * sin, second * cos + first * sin], axis=-1)

    q, k, v = (
        (norm(x) @ p.value).reshape(batch, n, -1, d).transpose(0, 2, 1, 3)
        for p in (weights.query, weights.key, weights.value)
    )
    y = reference(turn(q), turn(k), v, positions(n, n, 0) <= 0)
    x = x + y.transpose(0, 2, 1, 3).reshape(x.shape) @ weights.out.value
    gate, up, down = (getattr(block, part).weight.value.T for part in ("gate", "up", "down"))
    g = norm(x) @ gate
    return x + (g / (1 + np.exp(-g)) * (norm(x) @ up)) @ down


def test_a_block_with_llamas_options_is_llamas_block() -> None:
    with Session("spec", seed=4) as s:
        block = nn.TransformerBlock(s, 24, 6, name="ours", norm="rms", eps=1e-6, bias=False, **OPTIONS)
        x = operands((2, 5, 24))[0].astype(np.float64)
        expected = llama_block(block, x, 6, OPTIONS["rotary"])
        np.testing.assert_allclose(block(s.const(x)).numpy(), expected, rtol=0, atol=100 * 2.0**-53 * 24)


@pytest.mark.parametrize(("activation", "name"), [("swiglu", "silu"), ("geglu", "gelu"), ("reglu", "relu")])
def test_a_gate_is_the_activation_that_its_name_says(activation: str, name: str) -> None:
    with Session("cpu", seed=4) as s:
        block, x = nn.TransformerBlock(s, 8, 2, name="b", activation=activation), s.const(operands((2, 3, 8))[0])
        h = x + block.attention(block.norm1(x))
        y = block.norm2(h)
        wanted = h + block.down(getattr(s, name)(block.gate(y)) * block.up(y))
        np.testing.assert_array_equal(block(x).numpy(), wanted.numpy())


def test_attention_drops_weights_in_training_alone() -> None:
    with Session("cpu", seed=5) as s:
        block = nn.TransformerBlock(s, 8, 2, name="b", attention_dropout=0.5)
        plain = nn.TransformerBlock(s, 8, 2, name="plain")
        for p, q in zip(plain.parameters(), block.parameters(), strict=True):
            p.set(q.value)
        x, before = s.const(operands((2, 5, 8))[0]), s.counter
        assert block(x).numpy().tobytes() == plain(x).numpy().tobytes() and s.counter == before
        trained = block(x, training=True).numpy()
        assert s.counter == before + 1 and (trained != block(x).numpy()).any()
        said = "TransformerBlock: norm: got 'batch', expected 'layer' or"
        assert_raises_regex(ArgumentError, said, nn.TransformerBlock, s, 8, 2, name="c", norm="batch")


@pytest.mark.parametrize(
    "mask", [None, SOME, np.where(SOME, BIAS, -np.inf).astype(np.float32)], ids=["none", "booleans", "added"]
)
def test_dropout_drops_weights_by_the_sessions_numbers(mask: Any) -> None:
    """With keys as values the identity shows the weights, of which the seed drops a quarter and scales the rest."""
    one = np.broadcast_to(np.eye(9, dtype=np.float32), (2, 3, 9, 9)).copy()
    with Session("cpu", seed=5) as s:
        q, k, v = (s.const(x) for x in (Q, K, one))
        whole = s.scaled_dot_product_attention(q, k, v, mask, causal=True).numpy()
        before = s.counter
        out = s.scaled_dot_product_attention(q, k, v, mask, causal=True, dropout=0.25).numpy()
        assert s.counter == before + 1
        if mask is SOME:
            s.counter, hard = before, {"mask_mode": "hard", "causal": True, "dropout": 0.25}
            assert (s.scaled_dot_product_attention(q, k, v, s.const(SOME), **hard).numpy() == out).all()
    with Session("cpu", seed=5) as s:
        kept = s.bernoulli_mask(whole.shape, 0.75).numpy()
    np.testing.assert_allclose(out, whole * kept / 0.75, rtol=0, atol=50 * U)
    assert 0.6 < kept.mean() < 0.9
    with Tape("cpu") as t, pytest.raises(ArgumentError, match="dropout: got 0.5, expected 0"):
        t.scaled_dot_product_attention(*(t.leaf(x) for x in (Q, K, V)), dropout=0.5)


REFUSED: dict[str, Any] = {
    r"offset: got -4, expected 0 or more": {"shapes": ((1, 1, 5, 2), (1, 1, 1, 2), (1, 1, 1, 2)), "offset": "end"},
    r"window: got 0, expected at least 1": {"window": 0},
    r"offset: got 'start', expected a number or 'end'": {"offset": "start"},
    r"k: got 2 heads, expected a divisor of the 3": {"shapes": ((1, 3, 1, 2), (1, 2, 1, 2), (1, 2, 1, 2))},
    r"v: got shape \(1, 1, 3, 2\), expected \(…, 1, width\)": {"shapes": ((1, 1, 1, 2), (1, 1, 1, 2), (1, 1, 3, 2))},
    r"k: got shape \(1, 1, 1, 3\), expected \(…, keys, 2\)": {"shapes": ((1, 1, 1, 2), (1, 1, 1, 3), (1, 1, 1, 2))},
    r"q: got shape \(2,\), expected two axes or more": {"shapes": ((2,), (1, 2), (1, 2))},
    r"v: got shape \(\), expected two axes or more": {"shapes": ((1, 2), (1, 2), ())},
    r"k: got shape \(3, 1, 2\), expected leading axes that broadcast with \(2,\)": {"shapes": ((2, 1, 2), (3, 1, 2), (1, 2))},
    r"v: got shape \(3, 1, 2\), expected 2 heads, as k, or 1": {"shapes": ((1, 4, 1, 2), (1, 2, 1, 2), (3, 1, 2))},
    r"mask: got \(1, 1, 1\), expected one that broadcasts to \(1, 1\)": {
        "shapes": ((1, 2),) * 3, "mask": np.zeros((1, 1, 1), bool),
    },
    r"mask: got \(2, 1, 1, 1, 1\), expected one that broadcasts to \(3, 1, 1, 1, 1\)": {
        "shapes": ((3, 1, 1, 1, 2),) * 3, "mask": np.zeros((2, 1, 1, 1, 1), bool),
    },
    r"mask: got \(3, 1\), expected one that broadcasts to \(1, 1, 2, 2\)": {"mask": np.zeros((3, 1), bool)},
    r"mask: got zeros and ones": {"mask": np.eye(2, dtype=np.float32)},
}  # fmt: skip


@pytest.mark.parametrize("said", REFUSED)
def test_attention_refuses_what_does_not_fit(said: str) -> None:
    how = dict(REFUSED[said])
    shapes = how.pop("shapes", ((1, 1, 2, 2),) * 3)
    with Session("cpu") as s:
        call = partial(s.scaled_dot_product_attention, *(s.zeros(x) for x in shapes), **how)
        assert_raises_regex((ShapeError, ArgumentError), f"^scaled_dot_product_attention: {said}", call)


@pytest.mark.parametrize("name", ["rotary", "sinusoidal"])
@pytest.mark.parametrize("shape", [(5, 4), (2, 3, 5, 4), (2, 0, 5, 4), (2, 3, 0, 4)])
def test_positions_are_encoded_along_the_last_two_axes(name: str, shape: tuple[int, ...]) -> None:
    (x,) = operands(shape)
    flat = x.reshape(int(np.prod(shape[:-2])), *shape[-2:])
    with Session("cpu") as s:
        results = []
        for array in (x, flat):
            leaf = s.param(array, f"p{len(results)}")
            y = getattr(s, name)(leaf, base=100.0, start=3)
            s.backward((y * y).sum())
            results.append((y.numpy(), leaf.grad.numpy()))
        for got, expected in zip(*results, strict=True):
            assert got.shape == shape
            np.testing.assert_array_equal(got.reshape(flat.shape), expected)
        with pytest.raises(ShapeError, match=rf"{name}: x: got shape \(4,\), expected \(…, n, d\)"):
            getattr(s.zeros((4,)), name)()


def added_mask(rows: int, keys: int, *, name: str) -> Any:
    """A row of each kind in turn: open, blocked in part and entirely by -inf and by the least number, and by both."""
    draw, least = generator("added", name), -np.finfo(np.float32).max
    mask = draw.normal(size=(rows, keys))
    for i in range(rows):
        shut = draw.random(keys) < (0.4 if i % 6 in (1, 2) else 1.0)
        if i % 6:
            mask[i, shut] = (0.0, -np.inf, least, -np.inf, least, -np.inf)[i % 6]
        if i % 6 == 5:
            mask[i, draw.permutation(keys)[: keys // 2 + 1]] = least
    return mask.astype(np.float32)


@pytest.mark.operations("flash_attention", "grouped_attention")
@pytest.mark.parametrize("how", ["array", "tensor", "additive array", "additive tensor", "mask with a gradient"])
@pytest.mark.parametrize("call", ["scaled_dot_product_attention", "flash_attention", "attention", "causal"])
@pytest.mark.parametrize("device", ["spec", "cpu", "cpu:reproducible"])
def test_rows_that_a_mask_to_add_blocks(device: str, call: str, how: str) -> None:
    """-inf gives a row of zeros, and gradients of 0; the least number hides the scores, and gives the mean of the values."""
    n = 36
    q, k, v = operands((2, n, 16), (2, n, 16), (2, n, 16))
    mask = added_mask(n, n, name=call)
    allowed = (mask > -np.inf) & (np.tri(n, dtype=bool) if call == "causal" else True)
    wanted = attend(*(x.astype(np.float64) for x in (q, k, v)), 0.25, np.broadcast_to(allowed, (2, n, n)),
                    bias=np.broadcast_to(np.where(allowed, mask, 0.0), (2, n, n)))  # fmt: skip
    name, _, math = device.partition(":")
    dev = SpecDevice() if name == "spec" else tlrt.Device.new(name, math=math or "fast")
    with Session(dev) as s:
        leaves = [s.input(x, requires_grad=True) for x in (q, k, v)]
        given = mask if "array" in how else s.input(mask, requires_grad=how.endswith("gradient"))
        mode = {"mask_mode": "additive"} if "additive" in how or how.endswith("gradient") else {}
        causal = {"causal": True} if call == "causal" else {}
        function = getattr(s, "scaled_dot_product_attention" if call == "causal" else call)
        y = function(*leaves, given, **mode, **causal)
        np.testing.assert_allclose(y.numpy(), wanted, rtol=0, atol=200 * U)
        empty = ~allowed.any(axis=1)
        assert empty.any() and not y.numpy()[:, empty].any()
        s.backward(s.sum(s.mul(y, s.const(operands((2, n, 16))[0]))))
        for x in leaves + ([given] if how.endswith("gradient") else []):
            assert np.isfinite(x.grad.numpy()).all()
        assert not leaves[0].grad.numpy()[:, empty].any() and leaves[2].grad.numpy().any()
        assert not how.endswith("gradient") or not given.grad.numpy()[~allowed].any()
