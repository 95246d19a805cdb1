"""The arithmetic of error bounds: what is said of numbers with errors holds for all numbers within them and little more, and
bounds of the simplest inputs are what one gets by hand."""

import itertools
import sys
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from tlspec import norm_errors, registry
from tlspec.bounds import LAMBDA, LEAF, OVERFLOW, TINY, U, call_reference, factor, spacing, tree_height
from tlspec.case import Case, as_tuple, spec_inputs
from tlspec.draw.cases import data_classes, draw_case
from tlspec.formats import FORMATS
from tlspec.judge.trial import _tracked_results
from tlspec.ops import scan, spectral
from tlspec.ops.optim import Run
from tlspec.registry import Op
from tlspec.running.model import Model

VALUES = np.array([0.0, 1.0, -1.0, 0.5, -3.0, 1e-20, 1e10, 7.0])


def pairs(count: int) -> list[tuple[np.ndarray, np.ndarray]]:
    """Operands of every combination of values, with errors from nothing to a third."""
    values = np.array(list(itertools.product(VALUES, repeat=count))).T
    return [
        (v, np.abs(v) * share + least)
        for v, share, least in zip(values, (0.1, 0.3, 0.0), (0.0, 1e-3, 0.5), strict=False)
    ]


def worst(function: Callable[..., np.ndarray], operands: list[tuple[np.ndarray, np.ndarray]]) -> np.ndarray:
    """The largest change of a result by errors of its operands, at the ends of these."""
    exact = [(v.astype(np.longdouble), e.astype(np.longdouble)) for v, e in operands]
    value = function(*(v for v, _ in exact))
    changes = []
    for signs in itertools.product((-1, 1), repeat=len(exact)):
        changes.append(np.abs(function(*(v + s * e for s, (v, e) in zip(signs, exact, strict=True))) - value))
    return np.max(changes, axis=0).astype(np.float64)


PRODUCTS: dict[str, tuple[int, Callable[..., Any], Callable[..., Any]]] = {
    "mul": (2, lambda a, b: a * b, lambda a, b: a * b),
    "fma": (3, lambda a, b, c: a.fma(b, c), lambda a, b, c: a * b + c),
    "div": (2, lambda a, b: a / b, lambda a, b: a / b),
    "add": (2, lambda a, b: a + b, lambda a, b: a + b),
    "sub": (2, lambda a, b: a - b, lambda a, b: a - b),
}


@pytest.mark.operations("adam_step")
@pytest.mark.parametrize("name", PRODUCTS)
def test_running_errors(name: str) -> None:
    count, run, function = PRODUCTS[name]
    operands = [(v, e) for v, e in pairs(count)]
    if name == "div":
        operands[1] = operands[1][0], np.abs(operands[1][0]) * 0.3
    with np.errstate(all="ignore"):
        found = run(*(Run(v, e, np.zeros(v.shape, bool)) for v, e in operands))
        carried = worst(function, operands)
        value = function(*(v for v, _ in operands))
    known = np.isfinite(value)
    rounded = carried + U * (np.abs(value) + carried) + TINY / 2
    assert np.array_equal(found.value[known], value[known]) and not found.free[known].any()
    assert np.allclose(found.error[known], rounded[known], rtol=1e-6, atol=0)


@pytest.mark.operations("adam_step")
def test_running_errors_of_a_root() -> None:
    value, error = (
        np.ravel(x) for x in np.meshgrid([0.0, 1e-30, 1e-3, 0.25, 4.0, 1e6], [0.0, 1e-40, 1e-9, 1e-3, 0.2, 10.0])
    )
    run = Run(value, error, np.zeros(value.shape, bool))
    settled = np.abs(value) > error
    assert np.array_equal(run.sqrt(False).free, ~settled) and not run.sqrt(True).free.any()
    ends = [np.sqrt(np.maximum(value + s * error, 0.0)) for s in (-1, 1)]
    carried = np.max([np.abs(end - np.sqrt(value)) for end in ends], axis=0)
    found = run.sqrt(True).error
    assert np.all(found >= carried) and np.all(found <= 2.1 * carried + 2 * U * (np.sqrt(value) + carried) + TINY)


@pytest.mark.operations("adam_step")
def test_what_overflows_or_may_divide_by_nothing_is_free() -> None:
    def of(value: float, error: float = 0.0) -> Run:
        return Run(np.array([value]), np.array([error]), np.zeros(1, bool))

    assert (of(2.0**100) * of(2.0**28)).free.all() and not (of(2.0**100) * of(2.0**27)).free.any()
    assert (of(1.0) / of(1.0, 1.0)).free.all() and not (of(1.0) / of(1.0, 0.5)).free.any()
    with np.errstate(all="ignore"):
        assert not (of(1.0) / of(0.0)).free.any()  # infinite for certain
    free = Run(np.ones(1), np.zeros(1), np.ones(1, bool))
    one = of(1.0)
    for run in (
        *(free * one, one * free, free.fma(one, one), one.fma(free, one), one.fma(one, free), free / one, one / free),
        *(free + one, one + free, free - one, one - free, -free, free.sqrt(True), free.function(np.ones(1), 0.0)),
    ):
        assert run.free.all() and np.isposinf(run.tolerance).all()
    for share in (0.25, 4.0):  # the rounding of a sum below the threshold reaches it, or not
        half = of(OVERFLOW / 2 * (1 - share * U))
        assert ((half + half).free == (share < 1)).all() and ((-half - half).free == (share < 1)).all()
    known = Run(np.array([-2.0, np.inf]), np.array([0.25, np.inf]), np.zeros(2, bool)).function(
        np.array([-8.0, 1.0]), 3.0, 2.0
    )
    assert np.allclose(known.error, np.array([0.75, 0]) + 2.5 * (2 * U * np.array([8, 1]) + TINY), rtol=1e-12, atol=0)
    assert Run.of(np.array([-2.0, 0.0]), U).error.tolist() == [2 * U, 0]
    assert np.isfinite(of(1.0, np.inf).tolerance).all()  # which is no leave to pass


@pytest.mark.operations("adam_step", "adamw_step")
@pytest.mark.parametrize("name", ["adam_step", "adamw_step"])
def test_nothing_is_claimed_where_the_sign_of_a_square_is_open(name: str) -> None:
    """v = -g² cancels up to a rounding, which decides between a root and a NaN; it cannot for v >= 0."""
    row = registry.get(name)
    g = np.float32([0.1, 0.3, 0.7, 0.9, 11.1]).astype(np.float64)
    scalars = {"step": 3, "lr": 0.5, "beta1": 0.5, "beta2": 0.5, "eps": 1.0, "weight_decay": 0.0}
    for v, claimed in ((-g * g, False), (g * g, True), (0 * g, True), (-0.5 * g * g, True)):
        inputs = {"ps": g, "gs": g, "ms": g, "vs": v}
        with np.errstate(all="ignore"):
            outputs = row.reference(*inputs.values(), **scalars)
        found = row.bound.tolerance(row.reference, outputs, inputs, scalars)
        assert np.array_equal(np.isfinite(found[0]), np.full(5, claimed)) and np.isfinite(found[1:]).all(), v


@pytest.mark.operations("lion_step", "rmsprop_centered_step", "clip_scale")
def test_what_is_claimed_where_lists_cancel() -> None:
    """A sign that rounding decides may be the other one, 2·lr away, and that of zeros is 0; a variance below 0 is 0."""
    row, g = registry.get("lion_step"), np.float32([0.1, 0.7, 0.0, 1.0]).astype(np.float64)
    scalars = {"lr": 0.5, "beta1": 0.5, "beta2": 0.5, "weight_decay": 0.0}
    inputs = {"ps": 0 * g, "gs": g, "ms": np.array([-1, -1, 1, 1]) * g}
    p, m = outputs = row.reference(*inputs.values(), **scalars)
    error = row.bound.tolerance(row.reference, outputs, inputs, scalars)
    assert p.tolist() == [0, 0, 0, -0.5] and m.tolist() == [0, 0, 0, 1.0]
    assert (error[0][:2] >= 1).all() and (error[0][2:] < 1e-6).all() and (error[1] < 1e-6).all()
    row = registry.get("clip_scale")  # which leaves what is below the norm as it is
    kept = row.bound.tolerance(row.reference, [g], {"gs": g, "norm": np.array([0.5])}, {"max_norm": 1.0, "eps": 0.0})
    assert (kept[0] <= U * g + TINY).all()
    row, zeros = registry.get("rmsprop_centered_step"), np.zeros(2)
    scalars = {"lr": 0.5, "alpha": 0.5, "eps": 0.25, "weight_decay": 0.0, "momentum": 0.0}
    inputs = {"ps": zeros, "gs": zeros + 2, "vs": np.array([0, 4.0]), "ms": np.array([8.0, 0]), "bs": zeros}
    p, v, mean, b = outputs = row.reference(*inputs.values(), **scalars)
    assert b.tolist() == [8, 2 / (3**0.5 + 0.25)] and p.tolist() == (-0.5 * b).tolist()
    assert (v.tolist(), mean.tolist()) == ([2, 4], [5, 1])
    assert (row.bound.tolerance(row.reference, outputs, inputs, scalars)[0] < 1e-5).all()


@pytest.mark.operations("layer_norm", "batchnorm_channel_first")
def test_pairs_of_norms() -> None:
    cases = {
        norm_errors.times: (2, lambda a, b: a * b), norm_errors.plus: (2, lambda a, b: a + b),
        norm_errors.minus: (2, lambda a, b: a - b),
        norm_errors.fused: (3, lambda a, b, c: a * b + c),
    }  # fmt: skip
    for pair, (count, function) in cases.items():
        operands = pairs(count)
        value, error = pair(*operands)
        carried = worst(function, operands)
        assert np.array_equal(value, function(*(v for v, _ in operands)))
        assert np.allclose(error, carried + U * (np.abs(value) + carried), rtol=1e-6, atol=1.1 * TINY), pair
    x = np.array([[1.0, -2.0, 4.0]])
    for d in (np.array([[0.1, 0.2, 0.3]]), 0 * x):  # beside errors of the operands a rounding would not be seen
        for height in (2, 100):
            value, error = norm_errors.summed((x, d), 1, height)
            bad = d.sum() + factor(height) * U * (7 + d.sum())
            assert value == 3.0 and np.isclose(error, bad, rtol=1e-12, atol=0)
        value, error = norm_errors.mean((x, d))  # two lanes' sums, then the quotient
        bad = d.sum() + 2 * U * (7 + d.sum())
        assert value == 1.0 and np.isclose(error, (bad + U * (3 + bad)) / 3, rtol=1e-6, atol=0)


@pytest.mark.operations("layer_norm", "batchnorm_channel_first")
@pytest.mark.parametrize("eps", [0.0, 1e-6, 1.0])
def test_the_inverse_deviation_is_covered_for_every_variance_within_the_error(eps: float) -> None:
    rng = np.random.default_rng(3)
    scales = 10.0 ** np.arange(-8, 2)[:, None]
    for offset in (0.0, 1.0, 1e5):
        x = offset + scales * rng.standard_normal((10, 40))
        (istd, error), _ = norm_errors.normalised(x, eps)
        var = x.var(axis=1, keepdims=True)
        mean_off = (factor(6) * U * np.abs(x).mean(axis=1) + U * np.abs(x.mean(axis=1)))[:, None]
        dvar = mean_off**2 + (factor(6) + 4) * U * (var + mean_off**2)
        assert np.allclose(istd, 1 / np.sqrt(var + eps), rtol=1e-6)
        for share in np.linspace(-1, 1, 21):
            other = np.maximum(var + share * dvar, 0.0) + eps
            with np.errstate(divide="ignore"):
                change = np.abs(1 / np.sqrt(other) - 1 / np.sqrt(var + eps))
            assert np.all((change <= error * 1.0001) | ~np.isfinite(error) | (other == 0)), (offset, share)
        assert offset > 0 or np.all(error < 40 * U * istd), "and by little more where the mean is small"


@pytest.mark.parametrize("eps", [1e-6, 1.0])
@pytest.mark.parametrize(("name", "shape"), [
    *((f"{norm}_norm{stats}", (16, 64)) for norm in ("layer", "rms") for stats in ("", "_stats")),
    ("batchnorm_channel_first", (16, 8, 8)), ("batch_norm_stats", (1, 16, 64)), ("group_norm_stats", (2, 8, 4, 16)),
    ("group_norm_stats", (2, 8, 1, 64)),
])  # fmt: skip
def test_bounds_of_norms_around_large_means_are_finite_and_admit_float32(
    name: str, shape: tuple[int, ...], eps: float
) -> None:
    """The reference in float32 is within finite bounds for constant rows and for spreads far below the mean."""
    row, rng = registry.get(name), np.random.default_rng(5)
    means, spreads = np.meshgrid([0.07, 1.3, 1.1e3, 1.1 * 2.0**20], [0.0, 2.0**-20, 2.0**-10, 1.0])
    x = means.reshape(16, 1) * (1 + spreads.reshape(16, 1) * rng.standard_normal((16, 64)))
    inputs, g = row.signature.inputs, rng.standard_normal(shape)
    sizes = dict(zip(inputs[0].dims, shape, strict=True))
    known = {a.name: rng.standard_normal([sizes[n] for n in a.dims]) for a in inputs}
    known |= {"x": x.reshape(shape), "g": g, "g_out": g}
    for reads, called in (([a.name for a in inputs], row), (row.vjp_rule.reads, row.vjp_rule)):
        narrow = {n: np.float32(known[n]) for n in reads}
        wide = {n: v.astype(np.float64) for n, v in narrow.items()}
        outs = as_tuple(call_reference(called.reference, wide, {"eps": eps}))
        found = as_tuple(call_reference(called.reference, narrow, {"eps": np.float32(eps)}))
        tolerances = called.bound.tolerance(called.reference, outs, wide, {"eps": eps})
        for got, out, tolerance in zip(found, outs, tolerances, strict=True):
            assert np.isfinite(tolerance).all() and np.all(np.abs(np.float32(got) - out) <= tolerance), reads
        known |= {a.name: out for a, out in zip(row.signature.outputs, outs, strict=False)}


@pytest.mark.operations("batch_norm_stats")
@pytest.mark.parametrize(
    ("n", "height", "by_hand"), [(1024, 10, 10 + 5), (16384, 25, 25 + 5), (16386, 26, 2 * (3 * 26 + 8))]
)
def test_bounds_of_variances_by_leaves(n: int, height: int, by_hand: int) -> None:
    """Of as many ones as minus ones, whose mean is 0 and whose variance is 1; one leaf has the bound of a row."""
    x, row = np.ones((1, 1, n)), registry.get("batch_norm_stats")
    x[..., ::2] = -1
    inputs, given = {"x": x, "gamma": None, "beta": None}, {"x": x, "gamma": np.ones(1), "beta": np.zeros(1)}
    outputs = row.reference(*inputs.values(), eps=1.0)
    found, again = (row.bound.tolerance(row.reference, outputs, arrays, {"eps": 1.0}) for arrays in (inputs, given))
    assert all(np.array_equal(a, b) for a, b in zip(found, again, strict=True))
    assert np.allclose([t[0] / U for t in found[1:3]], [height, by_hand], rtol=1e-3)
    of_rows = by_hand - (n <= LEAF)  # of a variance that is not stored
    assert np.allclose(found[3] / U, 0.5**0.5 * ((of_rows / 2 + 1) / 2 + 2), rtol=2e-3)


#: length of a transform -> its roundings, by hand
HEIGHTS = {
    1: 0,
    2: 1,
    4: 3,
    3: 11,
    5: 13,
    6: 15,
    8: 16,
    9: 18,
    12: 19,
    13: 21,
    16: 20,
    17: 68,
    127: 135,
    257: 135,
    1024: 44,
}


@pytest.mark.operations("rfft1d_packed", "irfft1d_packed", "spectral_conv1d_rfft")
@pytest.mark.parametrize("n", HEIGHTS)
def test_bounds_of_transforms(n: int) -> None:
    """Of a one, whose bins are all 1, and of bins that give twice a one."""
    h, scalings = HEIGHTS[n], 0 if n in (1, 2, 4, 8, 16, 1024) else 2
    one = np.eye(1, n)
    step = U * np.sqrt(2) + n * TINY
    row = registry.get("rfft1d_packed")
    spectrum = row.reference(one)
    (found,) = row.bound.tolerance(row.reference, [spectrum], {"x": one}, {"batch": 1, "n": n})
    assert np.allclose(found, factor(h) * step + spacing(spectrum) / 2, rtol=1e-12, atol=0)
    row = registry.get("irfft1d_packed")
    (found,) = row.bound.tolerance(row.reference, [2 * one], {"spec": 2 * spectrum}, {"batch": 1, "n": n})
    by_hand = factor(h + scalings) * (2 * U * np.sqrt(2) + n * TINY)
    assert np.allclose(found[0, 0], by_hand + 2 * U, rtol=1e-6, atol=0) and np.all(found >= by_hand * (1 - 1e-9))


@pytest.mark.operations("spectral_conv1d_rfft")
@pytest.mark.parametrize(("n", "width", "modes", "by_hand"), [
    (4, 1, 1, 3),
    (3, 1, 1, 1 + 1 + 3 + 3),  # a pair's sum, its cosine, three products in a chain, and a turn
    (64, 1, 1, 37), (65, 1, 1, 37 + 1), (64 * 64, 1, 1, 37 + 63),  # a pair of each of 32 rows; tiles one after the other
    (64 * 100, 1, 1, 37 + 64 + 1),  # on the CPU two blocks of tiles
    (64 * 10_000, 64 * 600, 1, 37 + 2500 + 2 + 0 + 3),  # on CUDA one block of four chains, added in pairs
    (64 * 10_000, 64 * 8, 16 * 6, 37 + 228 + 2 + 2 + 3),  # 11 blocks
])  # fmt: skip
def test_bounds_of_truncated_transforms(n: int, width: int, modes: int, by_hand: int) -> None:
    assert spectral._tile_height(n, width, modes) == by_hand


@pytest.mark.operations("spectral_conv1d_rfft")
def test_errors_of_complex_sums() -> None:
    for h in (0, 1, 10, 56, 57, 1000):
        e = spectral._Error.rounded(h, np.array([0.0, 1.0, 3.0]))
        assert np.allclose(e.bound, factor(h) * (U * np.array([0.0, 1.0, 3.0]) + TINY), rtol=1e-12, atol=0)
    a, b = spectral._Error.rounded(3, 1.0), spectral._Error.rounded(100, 2.0)
    assert (a + b).worst == a.worst + b.worst and (a + b).variance == a.variance + b.variance
    assert a.scaled(3.0).bound == 3 * a.bound and (b + b).bound == LAMBDA * np.sqrt(2 * b.variance) < 2 * b.bound
    both = spectral._Error(np.array([1.0, 2.0]), np.array([1.0, 4.0]))
    apart, same = (both.through("i,i->", np.array([3.0, 2.0]), together=t) for t in (0.0, 1.0))
    assert apart.worst == same.worst == 7.0 and apart.variance == 25.0 and same.variance == 49.0


def attention_bound(
    which: str, mask: np.ndarray | None = None, *, n: int, d: int, mode: int = 0, scale: float = 1.0
) -> list[np.ndarray]:
    """Of queries and keys that are 0 and values that are 1, so that all scores are 0."""
    row = registry.get("flash_attention")
    inputs: dict[str, Any] = {"Q": np.zeros((1, n, d)), "K": np.zeros((1, n, d)), "V": np.ones((1, n, d)), "mask": mask}
    values = {"batch": 1, "n": n, "d": d, "mask_mode": mode, "scale": scale}
    out = row.reference(*inputs.values(), mask_mode=mode, scale=scale)
    if which == "vjp":
        inputs |= {"out": out, "g": np.ones((1, n, d))}
        out = row.rule.reference(*inputs.values(), mask_mode=mode, scale=scale)
    return row.bound_of(which).tolerance(
        row.reference_of(which), list(out) if which == "vjp" else [out], inputs, values
    )


@pytest.mark.operations("flash_attention")
@pytest.mark.parametrize(
    ("n", "d", "scale", "weight", "chain"),
    [
        (5, 2, 1.0, 3 + 3, 6),  # the difference and a rescaling, 3u each; five keys and a rescaling
        (100, 2, 1.0, 3 + 3 * 4, LAMBDA * 104**0.5),
        (5, 2, 2.0**120, 3 + 3 + 3 * 2.0 ** (120 - 149 + 24), 6),  # what underflows in a score's three roundings
    ],
)
def test_bounds_of_attention(n: int, d: int, scale: float, weight: float, chain: float) -> None:
    (found,) = attention_bound("forward", n=n, d=d, scale=scale)
    assert np.allclose(found, 2 * np.expm1(weight * U) + 2 * chain * U + 2 * U, rtol=1e-9, atol=0)
    gQ, gK, gV = attention_bound("vjp", n=n, d=d)
    assert np.all(gQ < 1e-40) and np.all(gK < 1e-40) and np.all(gV > 2 * U)


@pytest.mark.operations("flash_attention")
def test_a_blocked_score_has_no_error() -> None:
    """Rows that are blocked whole pass nothing to queries and keys, and where a key is blocked for all it has nothing either."""
    for mode in (1, 2):
        gQ, gK, gV = attention_bound("vjp", np.zeros((1, 5, 5)), n=5, d=3, mode=mode)
        assert np.all(gQ < 1e-40) and np.all(gK < 1e-40) and (np.max(gV) > U) == (mode == 1)
    rng = np.random.default_rng(0)
    Q, K, V, g = (rng.standard_normal((1, 6, 4)) for _ in range(4))
    mask = np.ones((1, 6, 6))
    mask[0, 2] = 0
    row = registry.get("flash_attention")
    for mode in (1, 2):
        out = row.reference(Q, K, V, mask, mode, 0.5)
        inputs = {"Q": Q, "K": K, "V": V, "mask": mask, "out": out, "g": g}
        gradients = row.rule.reference(*inputs.values(), mode, 0.5)
        tolerance = row.rule.bound.tolerance(row.rule.reference, gradients, inputs, {"mask_mode": mode, "scale": 0.5})
        assert np.all(tolerance[0][0, 2] < 1e-40) and np.all(tolerance[0][0, 3] > 1e-9)


@pytest.mark.operations("softmax", "log_softmax", "logsumexp", "cross_entropy", "cross_entropy_rows", "bce_with_logits")
@pytest.mark.parametrize("top", [sign * c for c in (0.0, 1.0, 2.0**20, 2.0**40, 1e30) for sign in (1, -1)])
@pytest.mark.parametrize("others", [1, 7])
def test_softmaxes_and_losses_of_large_logits(top: float, others: int) -> None:
    """The references give the closed forms of one logit above or beside equal others, however large all are."""
    x = top - np.array([[0.0, 1.0, 30.0, 800.0, 2.0**30, 1e30]]).T * ([0.0] + [1.0] * others)
    apart = top - x[:, 1]
    log = np.log1p(others * np.exp(-apart))
    want = np.stack([-log, *[-apart - log] * others], axis=1)
    no, one = np.zeros(6, np.int64), np.ones(6, np.int64)
    of = {name: registry.get(name).reference for name in ("softmax", "log_softmax", "logsumexp", "cross_entropy_rows")}
    for found, exact in (
        (of["log_softmax"](x), want), (of["softmax"](x), np.exp(want)), (of["logsumexp"](x, 2), top + log),
        (of["cross_entropy_rows"](x, no, None, 0.0), -want[:, 0]), (of["cross_entropy_rows"](x, one, None, 0.0), -want[:, 1]),
        (of["cross_entropy_rows"](x, one, None, 0.5), -want[:, 1] / 2 - want.mean(axis=1) / 2),
    ):  # fmt: skip
        assert np.allclose(found, exact, rtol=1e-14, atol=1e-15)
    for row, difference, wanted in zip(x, apart, want, strict=True):
        assert np.allclose(
            registry.get("cross_entropy").reference(row[None], one[:1]), -wanted[1], rtol=1e-14, atol=1e-15
        )
        binary = registry.get("bce_with_logits").reference(np.full(1, difference), np.zeros(1), 1)
        assert others > 1 or np.allclose(binary, -wanted[1], rtol=1e-14, atol=1e-15)


NOTHING = {"U": 2.0**-100, "TINY": 0.0, "EXP": 0.0, "spacing": lambda r: np.zeros(np.shape(r))}


def bounds_with(monkeypatch: pytest.MonkeyPatch, case: Case, **constants: Any) -> list[np.ndarray]:
    """The tolerances of a case where constants of the bounds have other values."""
    outputs = case.real[0]
    with monkeypatch.context() as m:
        for name, module in list(sys.modules.items()):
            for constant, value in constants.items():
                if name.startswith("tlspec.") and constant in vars(module):
                    m.setattr(module, constant, value)
        return case.bound.tolerance(case.reference, outputs, spec_inputs(case.arguments), case.values)


@pytest.mark.only(where=lambda row, which: row.bound_of(which).kind in ("tree", "custom", "ordered"))
def test_bounds_grow_with_every_source_of_error(entry: tuple[Op, str], monkeypatch: pytest.MonkeyPatch) -> None:
    """More roundoff, underflow or confidence never allow less; without any of them nothing is allowed."""
    row, which = entry
    for data in [d for d in data_classes(row, which) if d in ("normal", "uniform", "integers")]:
        for seed in (1, 2):
            case = draw_case(row, seed, data, "small", which)
            plain = bounds_with(monkeypatch, case)
            for constants in ({"U": 2.0**-20}, {"TINY": 2.0**-40}, {"LAMBDA": 20.0}):
                for before, after in zip(plain, bounds_with(monkeypatch, case, **constants), strict=True):
                    assert np.all((after >= before * (1 - 1e-12)) | np.isnan(before)), constants
            if row.family != "attention" or row.name == "flash_attention":  # where angles have their own
                none = bounds_with(monkeypatch, case, **NOTHING)
                for out, before, nothing in zip(case.real[0], plain, none, strict=True):
                    size = 1 + np.abs(out[np.isfinite(out)]).max(initial=0)  # 2^-28 is a bias correction's own
                    assert np.all((nothing <= before / 15 + 1e-12 * size) | ~np.isfinite(out) | np.isnan(nothing))


#: families whose sums are of any order
ANY_ORDER = ("linalg", "conv", "pool", "attention")
#: families that are analysed at large sizes too, where others take long
LARGE = ("linalg", "reduce")


#: rows whose bounds are wider than the analysis finds: sums by trees of the kernels' own, and several roundings as one
WIDER = {"layer_norm": 4.3, "layer_norm_stats": 4.4, "rms_norm": 2.9, "avg_pool": 5.3, "smooth_max_pool": 18, "max_pool": 3.1,
         "selective_scan_diag_var": 6, "rmsprop_centered_step": 5, "reduce_from_broadcast": 3.1, "broadcast_to": 3.1}  # fmt: skip


@pytest.mark.only(where=lambda row, which: (b := row.bound_of(which)).kind in ("tree", "custom") and b.text != "exact")
def test_bounds_are_near_those_of_the_analysis(entry: tuple[Op, str]) -> None:
    """Running error analysis of the reference finds much the same by another way, of every element."""
    row, which = entry
    model = Model() if row.family in ANY_ORDER else Model(height=tree_height)
    for size in ("medium", *(["large"] if row.family in LARGE else [])):
        drawn = (draw_case(row, seed, "normal", size, which) for seed in range(9))
        case = next(c for c in drawn if size == "large" or any(t.any() for t in c.expected.tolerances))
        with np.errstate(all="ignore"):
            found = _tracked_results(case, FORMATS["float32"], model, None).tolerances
        for own, other in zip(case.expected.tolerances, found, strict=True):
            told = np.isfinite(own) & np.isfinite(other) & (other > 2.0**-126)
            share = (own[told] / other[told]).max(initial=0)
            wide = f"{size}: {share:.3g} times what the analysis finds: make the bound narrower, or state the factor in WIDER"
            assert share <= WIDER.get(row.name, 2.05) and np.isfinite(own[np.isfinite(other)]).all(), wide


@pytest.mark.only(where=lambda row, which: row.in_math("reproducible") is not row)
def test_reproducible_contexts_are_allowed_less(entry: tuple[Op, str]) -> None:
    """Their sums in float64 round once: no element may be further off than in fast contexts, and most less far; but what is
    computed in float32 is rounded, by up to half a spacing."""
    row, which = entry
    less = count = 0
    for seed in range(3):
        fast, strict = (draw_case(r, seed, "normal", "small", which) for r in (row, row.in_math("reproducible")))
        for array, out, a, b in zip(fast.signature.outputs, fast.real[0], fast.real[1], strict.real[1], strict=True):
            least = spacing(out) / 2 * (array.kind != "f64")
            assert np.all(b <= np.maximum(a, least) * (1 + 1e-12)) and np.all((b >= least) | (a == 0))
            less, count = less + np.count_nonzero(b < a), count + np.count_nonzero(a)
    stays = row.family == "spectral" or row.name == "dgemm"  # of transforms in part
    assert stays or 2 * less > count


@pytest.mark.operations("selective_scan_diag", "selective_scan_diag_var")
def test_the_product_of_a_chunk_of_a_scan_has_an_error_of_its_own() -> None:
    """Common to all that follows, where the chunk's state is finite."""
    zero, one = np.zeros((2 * scan.CHUNK + 1, 1)), np.ones(1)
    errors = scan._Errors(zero + (1 - 2.0**-8), zero, one, False)
    assert errors.common[scan.CHUNK - 1, 0] < 1e-30 and 2.0**-27 < errors.common[scan.CHUNK, 0] < 2.0**-17
    assert errors.common[2 * scan.CHUNK, 0] > errors.common[scan.CHUNK, 0] * 0.7
    assert scan._Errors(zero + 1, zero + 2.0**128, one, False).common[scan.CHUNK, 0] < 1e-30
