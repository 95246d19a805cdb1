"""float64 in a block: accuracy, special values, derivatives, and bits that depend on neither device, threads nor batch."""

import hashlib
import itertools
import math
from typing import Any

import numpy as np
import pytest

from tests import DEVICES
from tests.runtime.torch_cases import derivatives, mode, place, torch

mp = pytest.importorskip("mpmath")
F = torch.nn.functional


def spread(count: int, seed: int = 1) -> Any:
    """Numbers in [-1, 1) with 53 bits, made of integers alone."""
    i = np.arange(count, dtype=np.uint64) + np.uint64(seed << 32)
    with np.errstate(over="ignore"):
        for factor in (0x9E3779B97F4A7C15, 0xBF58476D1CE4E5B9, 0x94D049BB133111EB):
            i = (i ^ (i >> np.uint64(31))) * np.uint64(factor)
    return torch.from_numpy((i >> np.uint64(11)).astype(np.int64) - (1 << 52)).double() * 2.0**-52


def drawn(seed: int, *shape: int) -> Any:
    return (3 * spread(math.prod(shape), seed)).reshape(shape)


def scales(count: int, low: int, high: int) -> Any:
    """Positive numbers of all sizes from 2^low to 2^high."""
    x = (spread(count, 2).abs() + 1).numpy()
    return torch.from_numpy(np.ldexp(x, (low + (high - low) * (spread(count, 3).numpy() + 1) / 2).astype(int)))


ALL, COUNT = scales(1500, -1074, 1023), 1500
SIGNED = torch.where(spread(COUNT, 4) < 0, -ALL, ALL)
NEAR_1 = 1 + spread(COUNT, 5) * scales(COUNT, -53, -1)
#: multiples of π/2, rounded, and the number of float64 that is nearest to one (Muller, Elementary Functions, 2016)
QUARTERS = torch.from_numpy(
    np.append(np.round(2.0**30 * spread(COUNT, 6).numpy()) * math.pi / 2, 6381956970095103 * 2.0**797)
)
#: function -> what it is, and arguments
FUNCTIONS: dict[str, Any] = {
    "exp": (mp.exp, [745 * spread(COUNT), spread(COUNT)]),
    "exp2": (lambda x: mp.mpf(2) ** x, [1074 * spread(COUNT), spread(COUNT)]),
    "expm1": (mp.expm1, [700 * spread(COUNT), spread(COUNT), SIGNED]),
    "log": (mp.log, [ALL, NEAR_1]),
    "log2": (lambda x: mp.log(x) / mp.ln2, [ALL, NEAR_1]),
    "log10": (lambda x: mp.log(x) / mp.ln10, [ALL, NEAR_1]),
    "log1p": (mp.log1p, [ALL, spread(COUNT), -scales(COUNT, -1074, -1)]),
    "sin": (mp.sin, [9 * spread(COUNT), SIGNED, QUARTERS]),
    "cos": (mp.cos, [9 * spread(COUNT), SIGNED, QUARTERS]),
    "sqrt": (mp.sqrt, [ALL]),
    "rsqrt": (lambda x: 1 / mp.sqrt(x), [ALL]),
    "erf": (mp.erf, [7 * spread(COUNT), SIGNED]),
    "tan": (mp.tan, [9 * spread(COUNT), SIGNED, QUARTERS]),
    "tanh": (mp.tanh, [20 * spread(COUNT), SIGNED]),
    "sigmoid": (lambda x: 1 / (1 + mp.exp(-x)), [745 * spread(COUNT), spread(COUNT)]),
}
#: units in the last place of those that are composed of others, where they are more than one
UNITS = {"erf": 8, "tan": 2}


def in_block(compute: Any, *operands: Any, device: str = "cpu") -> Any:
    with mode.reproducible(strict=True):
        return compute(*(x.to(place(device)) for x in operands)).cpu()


def check_accuracy(found: Any, exact: list[Any], units: int = 1) -> None:
    """Within some units in the last place, that of the smallest number below."""
    for mine, e in zip(found.tolist(), exact, strict=True):
        if abs(e) >= mp.mpf(2) ** 1024:
            assert mine == math.copysign(math.inf, e)
        elif e:
            unit = mp.ldexp(1, max(mp.frexp(e)[1] - 53, -1074))
            assert math.isfinite(mine) and abs(mine - e) <= units * unit, (mine, e)
        else:
            assert mine == 0


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("name", FUNCTIONS)
def test_functions_are_right_to_a_unit_in_the_last_place(name: str, device: str) -> None:
    function, sets = FUNCTIONS[name]
    x = torch.cat(sets)
    with mp.workprec(1300 if name in ("sin", "cos", "tan") else 160):
        check_accuracy(
            in_block(getattr(torch, name), x, device=device), [mp.mpf(function(mp.mpf(v))) for v in x.tolist()],
            UNITS.get(name, 1),
        )  # fmt: skip


def test_powers_are_right_to_a_unit_in_the_last_place() -> None:
    x = torch.cat([ALL, NEAR_1, torch.full((COUNT,), 10000.0, dtype=torch.float64)])
    y = torch.cat([spread(COUNT, 7), spread(COUNT, 8), 2 * spread(COUNT, 9)])
    y[: 2 * COUNT] *= 700 / x[: 2 * COUNT].log().abs().clamp(min=2.0**-53)
    with mp.workprec(200):
        exact = [mp.power(mp.mpf(a), mp.mpf(b)) for a, b in zip(x.tolist(), y.tolist(), strict=True)]
        check_accuracy(in_block(torch.pow, x, y), exact)
        by_number = [mp.power(mp.mpf(a), mp.mpf(0.3)) for a in ALL.tolist()]
        check_accuracy(in_block(lambda x: x**0.3, ALL), by_number)
        check_accuracy(
            in_block(lambda x: 3.0**x, 600 * spread(COUNT)), [mp.mpf(3) ** v for v in (600 * spread(COUNT)).tolist()]
        )
    for p in (0, 0.5, 1, 2, 3, -0.5, -1, -2):
        expected = torch.pow(ALL[:700] / ALL[700:1400], p)
        assert torch.allclose(in_block(lambda x, p=p: x**p, ALL[:700] / ALL[700:1400]), expected, 2.0**-51, 0)


#: zeros, infinities, NaN, the smallest and largest numbers, and some beyond which results over- or underflow
SPECIAL = [
    0.0, 1.0, 2.0, 0.5, 3.0, 2.5, np.inf, 5e-324, 1e-310, 1.7976931348623157e308, 710.0, 745.0, 746.0, 1024.0, 1075.0, 1e22,
    2.0**53, 2.0**53 + 2, 1e300, 1e-17,
]  # fmt: skip
SPECIAL = [*SPECIAL, *(-x for x in SPECIAL), np.nan]


def agree(found: Any, expected: Any) -> None:
    """Equal signs, infinities and NaN; numbers within two units in the last place."""
    found, expected = found.numpy(), np.asarray(expected)
    assert np.array_equal(np.isnan(found), np.isnan(expected))
    kept = ~np.isnan(expected)
    assert np.array_equal(np.signbit(found[kept]), np.signbit(expected[kept]))
    finite = np.isfinite(expected)
    assert np.array_equal(finite, np.isfinite(found))
    assert (np.abs(found - expected)[finite] <= 2 * np.spacing(np.abs(expected[finite]))).all()


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize(
    "name", ["exp", "exp2", "expm1", "log", "log2", "log10", "log1p", "sin", "cos", "tan", "sqrt", "tanh"]
)
def test_special_values(name: str, device: str) -> None:
    x = np.array(SPECIAL)
    with np.errstate(all="ignore"):
        agree(in_block(getattr(torch, name), torch.from_numpy(x), device=device), getattr(np, name)(x))


@pytest.mark.parametrize("device", DEVICES)
def test_special_values_of_powers(device: str) -> None:
    x, y = np.array(list(itertools.product(SPECIAL, SPECIAL))).T.copy()
    with np.errstate(all="ignore"):
        agree(in_block(torch.pow, torch.from_numpy(x), torch.from_numpy(y), device=device), np.power(x, y))


def rope(positions: Any) -> tuple[Any, Any]:
    """Rotary frequencies as diffusers makes them for Flux."""
    rates = 1.0 / (10000 ** (torch.arange(0, 56, 2, dtype=torch.float64, device=positions.device) / 56))
    angles = torch.outer(positions.double(), rates)
    return angles.cos().repeat_interleave(2, dim=1).float(), angles.sin().repeat_interleave(2, dim=1).float()


def test_rotary_frequencies() -> None:
    positions = torch.arange(512)
    with mode.reproducible(strict=True) as report:
        found = rope(positions)
    assert report.coverage == 1 and {"pow", "sin", "cos"} <= set(report.here)
    for mine, theirs in zip(found, rope(positions), strict=True):
        assert (mine - theirs).abs().max() <= 2.0**-23


def both(x: Any) -> Any:
    return x.softmax(-1).log() + x.log_softmax(0) + x.logsumexp(1, keepdim=True)


def in_place(x: Any) -> Any:
    y = x.abs() + 0.5
    y = y.exp_().log_().sqrt_().rsqrt_().pow_(1.5).mul_(2).tanh_().sigmoid_()
    out = torch.empty(0, dtype=torch.float64)
    return torch.exp(y.detach(), out=out) + torch.mm(y.detach(), y.detach(), out=torch.empty_like(y))


#: of two matrices (6, 6)
CASES: dict[str, Any] = {
    "exponentials": lambda x, y: x.exp() + y.exp2() * x.expm1(),
    "logarithms": lambda x, y: (x.abs() + 1).log() + (y.abs() + 1).log2() * (x.abs() + 2).log10() + y.abs().log1p(),
    "powers": lambda x, y: (x.abs() + 0.5) ** y + (y.abs() + 0.5) ** 1.7 + 2.5**x + x**3 + (x.abs() + 1) ** -0.5,
    "sine and cosine": lambda x, y: x.sin() * y.cos(),
    "roots": lambda x, y: (x.abs() + 1).sqrt() + (y.abs() + 1).rsqrt(),
    "saturation": lambda x, y: x.tanh() + y.sigmoid() + F.silu(x) + F.softplus(x * y, 0.7, 3),
    "units": lambda x, y: F.gelu(x) + F.gelu(y, approximate="tanh") + (x * y).erf() + (x / 4).tan(),
    "layer norms": lambda x, y: F.layer_norm(x, (6,)) + F.layer_norm(x.view(2, 3, 6), (3, 6), y[:3], y[3:]).view(6, 6)
    + F.layer_norm(y, (6, 6), x, x * y),
    "sums": lambda x, y: x.sum() + y.sum(1, keepdim=True) + x.float().sum(0, dtype=torch.float64) + x[:, :5].sum((0, 1)),
    "means": lambda x, y: x.mean() + y.mean(0) + (x * y).mean(-1, keepdim=True),
    "variances": lambda x, y: x.var(1) + y.std(0, correction=0) + sum(torch.var_mean(x)) + torch.std_mean(y, 1)[0],
    "norms": lambda x, y: sum(torch.linalg.vector_norm(x, p, dim=1) for p in (0.5, 1, 2, 2.5, math.inf)) + y.norm(),
    "softmax": lambda x, y: both(x) * both(y),
    "softmax of what is masked": lambda x, y: torch.ops.aten._safe_softmax(x.masked_fill(
        (x > 1) | (y[:, :1] > 0), -math.inf), 1) * y,
    "running sums": lambda x, y: x.cumsum(1) + y[:5].cumsum(0).sum(),
    "products of matrices": lambda x, y: x @ y + torch.addmm(x, x, y, beta=0.5, alpha=2) + F.linear(x, y, y[0]),
    "products of batches": lambda x, y: (x.view(2, 3, 6) @ y.view(2, 6, 3)).sum(0)
    + torch.baddbmm(x.view(4, 3, 3), y.view(4, 3, 3), x.view(4, 3, 3), beta=2)[1],
    "products of vectors": lambda x, y: x @ y[0] + x[0] @ y[0] + torch.addmv(x[0], y, x[1], beta=3),
    "factors": lambda x, y: torch.add(x, y, alpha=0.3) + torch.rsub(x, y, alpha=1.1) + torch.sub(y, x, alpha=0.7),
    "combinations": lambda x, y: torch.addcmul(x, x, y, value=0.3) + torch.addcdiv(x, y, x.abs() + 1, value=0.3),
    "ways between": lambda x, y: torch.lerp(x, y, 0.3) + torch.lerp(x, y, 0.7) + torch.lerp(x, y, y.sigmoid()),
    "losses": lambda x, y: F.mse_loss(x, y) + F.smooth_l1_loss(x, y) + F.huber_loss(y, x, delta=0.3),
    "products of elements": lambda x, y: x.prod(1) + y.cumprod(0)[3] + x.trace(),
    "beside float32": lambda x, y: torch.add(x, y.float(), alpha=0.3) + (x.abs() + 1) ** y.float(),
    "gamma functions": lambda x, y: torch.lgamma(x) * torch.lgamma(y.abs() + 1) + x.sigmoid().mvlgamma(1),
    "error functions": lambda x, y: torch.erfc(x) * torch.special.log_ndtr(y) + torch.special.entr(y.sigmoid()),
    "Bessel functions": lambda x, y: torch.special.i0e(x) * torch.special.i1e(y) + torch.special.i1(x) * torch.special.i0(y),
    "attention": lambda x, y: F.scaled_dot_product_attention(x[None], y[None], x[None])[0],
}  # fmt: skip


@pytest.mark.parametrize("case", CASES)
def test_values_and_derivatives(case: str) -> None:
    x, y = drawn(1, 6, 6), drawn(2, 6, 6)
    # PyTorch has no second derivative of attention in float64, polygamma(1, x) to 10 digits alone, and gelu's by cosh
    order = 1 if case in ("attention", "gamma functions", "units") else 2
    expected = derivatives(CASES[case], [x, y], order)
    before, runs = torch.get_num_threads(), []
    try:
        for threads in (1, 2):
            torch.set_num_threads(threads)
            with mode.reproducible(strict=True) as report:
                runs.append(derivatives(CASES[case], [x, y], order))
            assert report.left == () and report.coverage == 1
    finally:
        torch.set_num_threads(before)
    for mine, again, exact in zip(*runs, expected, strict=True):
        assert mine.dtype == torch.float64 and torch.equal(mine, again)
        assert torch.allclose(mine, exact, 1e-13, 1e-13 * float(exact.abs().max()))


ONES = torch.ones(1, dtype=torch.float64)
#: functions with options, and values of each option
OPTIONS: dict[str, Any] = {
    "softplus": (F.softplus, {"beta": (0.25, 1, 3, -2), "threshold": (-1, 0.5, 3, 20)}),
    "gelu": (F.gelu, {"approximate": ("none", "tanh")}),
    "huber": (lambda x, delta: F.huber_loss(x, ONES.expand_as(x), "none", delta), {"delta": (0.25, 1, 3)}),
    "smooth L1": (lambda x, beta: F.smooth_l1_loss(x, ONES.expand_as(x), None, None, "none", beta), {"beta": (0, 0.25, 1, 3)}),
    "lerp": (lambda x, weight: torch.lerp(x, ONES, weight), {"weight": (-1.0, 0.0, 0.25, 0.5, 0.75, 1.0, 2.0)}),
    "powers": (lambda x, y: x.abs() ** y, {"y": (-3, -2, -1.5, -1, -0.5, 0, 0.5, 1, 1.5, 2, 3)}),
}  # fmt: skip


@pytest.mark.parametrize("case", OPTIONS)
def test_options(case: str) -> None:
    """Every combination has PyTorch's values and gradients on both sides of each place where a function changes."""
    function, options = OPTIONS[case]
    x = torch.linspace(-100, 100, 1601, dtype=torch.float64)  # with the places of change
    x = torch.cat([x, x + 1e-6, x - 1e-6])
    for values in itertools.product(*options.values()):
        how = dict(zip(options, values, strict=True))
        with mode.reproducible(strict=True):
            found = derivatives(lambda x, how=how: function(x, **how), [x], 1)
        for mine, exact in zip(found, derivatives(lambda x, how=how: function(x, **how), [x], 1), strict=True):
            assert torch.allclose(mine, exact, 1e-13, 1e-14, equal_nan=True), how


def test_operators_that_write() -> None:
    x = drawn(1, 6, 6)
    assert torch.allclose(in_block(in_place, x), in_place(x), 1e-14, 0)
    with mode.reproducible(strict=True):
        y = drawn(2, 4).float()
        assert torch.equal(y.clone().add_(drawn(3, 4), alpha=0.3), (y.double() + drawn(3, 4) * 0.3).float())


def test_ranges() -> None:
    def ranges() -> list[Any]:
        return [f(-2, 3, 7, dtype=torch.float64) for f in (torch.linspace, torch.logspace)]

    with mode.reproducible(strict=True):
        found = ranges()
    assert all(torch.allclose(mine, theirs, 1e-14, 0) for mine, theirs in zip(found, ranges(), strict=True))


def test_a_row_is_computed_as_if_it_were_alone() -> None:
    x, w = drawn(1, 70, 1000), drawn(2, 1000, 40)

    def compute(x: Any) -> Any:
        rows = [x.sum(1), x.mean(1), x.var(1), x.norm(dim=1), x.logsumexp(1), *x.softmax(1).T[:3], *(x @ w).T[:3]]
        return torch.stack([*rows, x.cumsum(1)[:, 777], (x[:, None] @ w)[:, 0, 5], x.exp()[:, 1], x.sin()[:, 2]])

    whole = in_block(compute, x)
    for i in (0, 33, 69):
        assert torch.equal(in_block(compute, x[i : i + 1]), whole[:, i : i + 1])


@pytest.mark.parametrize("size", [1, 150, 1000, 4000])
def test_many_blocks_have_the_bits_of_one(size: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Blocks of columns, of rows and of samples of products, and of functions."""
    a, b = drawn(1, 3, 5, 70), drawn(2, 3, 70, 6)
    whole, sine = in_block(torch.bmm, a, b), in_block(torch.sin, a.mT)
    assert torch.allclose(whole, torch.bmm(a, b), 1e-12, 1e-12)
    monkeypatch.setattr("tlrt.torch.routes.double.BLOCK", size)
    monkeypatch.setattr("tlrt.torch.routes.double_sums.BLOCK", size)
    assert torch.equal(in_block(torch.bmm, a, b), whole)
    again = in_block(torch.sin, a.mT)
    assert torch.equal(again, sine) and again.stride() == a.mT.stride()


def test_sums_of_nothing() -> None:
    x = drawn(1, 3, 0)
    for compute in (lambda x: x.sum(), lambda x: x.sum(1), lambda x: x.mean(0), lambda x: x.T @ x, lambda x: x @ x.T,
                    lambda x: x.cumsum(1), lambda x: x.softmax(1), lambda x: x.logsumexp(1), lambda x: x.exp()):  # fmt: skip
        assert torch.equal(in_block(compute, x), compute(x))
    assert torch.equal(in_block(lambda x: x.sum(0).exp(), torch.tensor(2.0).double()), torch.tensor(2.0).double().exp())


def test_errors_are_of_the_kind_of_pytorchs() -> None:
    x = drawn(1, 3, 4)
    for compute in (
        lambda: x @ x,
        lambda: torch.bmm(x, x),
        lambda: torch.addmm(x[:2, :2], x, x.T),
        lambda: x @ x.float().T,
        lambda: x.sum((0, -2)),
        lambda: x[None].cumsum(3),
    ):
        with pytest.raises((RuntimeError, IndexError)) as theirs:
            compute()
        with pytest.raises(theirs.type), mode.reproducible():
            compute()


def test_powers_that_are_complex_are_left() -> None:
    with mode.reproducible() as report:
        assert (drawn(1, 4) ** 1j).dtype == torch.complex128
    assert report.left == ("pow",)


@pytest.mark.parametrize("device", DEVICES)
def test_roots_are_rounded_correctly(device: str) -> None:
    """As NumPy's are; PyTorch's on a CPU are not."""
    x = torch.cat(
        [ALL, spread(200_000).abs(), torch.tensor([0.0, -0.0, math.inf, 4.0 - 2.0**-51], dtype=torch.float64)]
    )
    assert torch.equal(in_block(torch.sqrt, x, device=device), torch.from_numpy(np.sqrt(x.numpy())))
    z = torch.complex(spread(200_000).float(), spread(200_000, 2).float())
    exact = np.sqrt(z.real.double().numpy() ** 2 + z.imag.double().numpy() ** 2).astype(np.float32)
    assert torch.equal(in_block(torch.abs, z, device=device), torch.from_numpy(exact))
    assert torch.equal(in_block(torch.hypot, z.real, z.imag, device=device), torch.from_numpy(exact))


#: function -> what it is, and its limit at 0, and at -1 and -inf
GAMMA: dict[str, Any] = {
    "lgamma": (torch.lgamma, lambda x: mp.log(abs(mp.gamma(x))), math.inf, math.inf, math.inf),
    "digamma": (lambda x: torch.polygamma(0, x), mp.digamma, -math.inf, math.nan, math.nan),
    "trigamma": (lambda x: torch.polygamma(1, x), lambda x: mp.polygamma(1, x), math.inf, math.inf, math.nan),
}


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("name", GAMMA)
def test_gamma_functions(name: str, device: str) -> None:
    """float32 is rounded correctly but near ties; float64 is right to units of 1 or of the result."""
    function, exact, *limits = GAMMA[name]
    near = 1.5 + 0.5 * NEAR_1[:300].sign() + (NEAR_1[:300] - 1) / 3
    x = torch.cat([1.5 + 1.5 * spread(300), 40 * spread(400), near, scales(300, -70, 70), -scales(200, -70, 4), -near])
    with mp.workprec(300):
        for dtype, unit in ((torch.float64, 16 * 2.0**-53), (torch.float32, 0.501 * 2.0**-23)):
            given = x.to(dtype)
            given = given[(given > 0) | (given != given.floor())]
            found = in_block(function, given, device=device).tolist()
            for mine, e in zip(found, (exact(mp.mpf(v)) for v in given.tolist()), strict=True):
                single = dtype == torch.float32 and 2.0**-126 < abs(e) < 2.0**127
                scale = mp.ldexp(1, mp.frexp(e)[1] - 1) if single else 1 + abs(e)
                assert abs(mine - e) <= unit * scale or (dtype == torch.float32 and abs(e) > 2.0**127), (mine, e)
    special = torch.tensor([0.0, -1.0, -math.inf, -0.0, math.inf, math.nan], dtype=torch.float64)
    at_infinity = 0.0 if name == "trigamma" else math.inf
    expected = torch.tensor([*limits, math.inf, at_infinity, math.nan], dtype=torch.float64)
    assert torch.equal(in_block(function, special, device=device).nan_to_num(7), expected.nan_to_num(7))
    far = scales(9, 300, 1013)
    exact = {"lgamma": far * (far.log() - 1), "digamma": far.log(), "trigamma": 1 / far}[name]
    assert torch.allclose(in_block(function, far, device=device), exact, rtol=1e-15, atol=0)
    if name == "digamma":
        assert torch.equal(in_block(torch.digamma, x).nan_to_num(7), in_block(function, x).nan_to_num(7))
    assert in_block(function, x.half(), device=device).dtype == torch.float16


#: function -> what it is, and its limits at 0, -inf and inf
NAMED: dict[str, Any] = {
    "erfc": (torch.erfc, mp.erfc, 1.0, 2.0, 0.0),
    "erfcx": (torch.special.erfcx, lambda x: mp.exp(x * x) * mp.erfc(x), 1.0, math.inf, 0.0),
    "log_ndtr": (
        torch.special.log_ndtr,
        lambda x: mp.log1p(-mp.erfc(x / mp.sqrt(2)) / 2) if x > 0 else mp.log(mp.erfc(-x / mp.sqrt(2)) / 2),
        math.log(0.5),
        -math.inf,
        0.0,
    ),
    "entr": (torch.special.entr, lambda x: -x * mp.log(x) if x > 0 else -mp.inf, 0.0, -math.inf, -math.inf),
    "i0": (torch.special.i0, lambda x: mp.besseli(0, x), 1.0, math.inf, math.inf),
    "i0e": (torch.special.i0e, lambda x: mp.besseli(0, x) * mp.exp(-abs(x)), 1.0, 0.0, 0.0),
    "i1": (torch.special.i1, lambda x: mp.besseli(1, x), 0.0, -math.inf, math.inf),
    "i1e": (torch.special.i1e, lambda x: mp.besseli(1, x) * mp.exp(-abs(x)), 0.0, 0.0, 0.0),
}


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("name", NAMED)
def test_special_functions(name: str, device: str) -> None:
    """float32 is rounded correctly but near ties; float64 is right to 128 units, or to some of the argument's square."""
    function, exact, *limits = NAMED[name]
    x = torch.cat([2 * spread(200), 30 * spread(200), 1.5 + NEAR_1[:60] / 16, 25 * NEAR_1[:60], scales(200, -60, 9)])
    x = torch.cat([x, -x])
    with mp.workprec(400):
        for dtype, unit in ((torch.float64, 128 * 2.0**-53), (torch.float32, 0.501 * 2.0**-23)):
            given = x.to(dtype)
            found = in_block(function, given, device=device).tolist()
            for v, mine, e in zip(given.tolist(), found, (exact(mp.mpf(v)) for v in given.tolist()), strict=True):
                least, most = (-1022, 1024) if dtype == torch.float64 else (-126, 128)
                if abs(e) >= mp.ldexp(1, most) * (1 - unit):
                    assert abs(mine) == math.inf or abs(mine) > 0.999 * 2.0 ** (most - 1), (v, mine, e)
                    continue
                size = max(mp.frexp(e)[1] - 1, least) if e else least
                wide = 1 + (v * v if dtype == torch.float64 and name in ("erfcx", "log_ndtr", "entr") else 0)
                assert abs(mine - e) <= unit * wide * mp.ldexp(1, size), (v, mine, e)
    special = torch.tensor([0.0, -math.inf, math.inf, math.nan], dtype=torch.float64)
    expected = torch.tensor([*limits, math.nan], dtype=torch.float64)
    assert torch.allclose(in_block(function, special, device=device).nan_to_num(7), expected.nan_to_num(7), rtol=1e-15)
    assert not name.startswith("i1") or in_block(function, -special[:1]).signbit()
    assert in_block(function, x.half(), device=device).dtype == torch.float16


@pytest.mark.parametrize("device", DEVICES)
def test_quotients_by_numbers(device: str) -> None:
    x = drawn(1, 1000)
    assert torch.equal(in_block(lambda x: x / 3, x, device=device), torch.from_numpy(x.numpy() / 3))
    assert torch.equal(in_block(lambda x: x.clone().div_(0.7), x, device=device), torch.from_numpy(x.numpy() / 0.7))


def functions(device: str) -> list[Any]:
    found = [in_block(getattr(torch, name), torch.cat(sets), device=device) for name, (_, sets) in FUNCTIONS.items()]
    others = [function for function, *_ in (*GAMMA.values(), *NAMED.values())]
    return found + [in_block(function, 40 * spread(COUNT), device=device) for function in others]


def cases(device: str) -> list[Any]:
    """Values and gradients."""
    found = []
    for case in CASES.values():
        leaves = [drawn(k, 6, 6).to(place(device)).requires_grad_() for k in (1, 2)]
        with mode.reproducible(strict=True):
            y = case(*leaves)
            found += [y.detach(), *torch.autograd.grad((y * y).sum(), leaves)]
    return found


def long_axes(device: str) -> list[Any]:
    x, y = drawn(1, 300, 700), drawn(2, 300, 700)
    return [
        in_block(f, x, y, device=device)
        for f in (
            lambda x, y: x @ y.T,
            lambda x, y: x.cumsum(1),
            lambda x, y: x.sum(0),
            lambda x, y: y.softmax(1).std(1),
        )
    ]


def digest(results: list[Any]) -> str:
    return hashlib.sha256(b"".join(t.cpu().contiguous().numpy().tobytes() for t in results)).hexdigest()[:16]


#: the first digits of SHA-256 of results, which are the same on every device
BITS = {functions: "dfebb074dedaf470", long_axes: "bb2e165dd857b613"}


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("results", BITS, ids=lambda f: f.__name__)
def test_bits_are_those_of_every_device(results: Any, device: str) -> None:
    assert digest(results(device)) == BITS[results]


@pytest.mark.cuda
def test_gradients_have_the_same_bits_on_a_gpu() -> None:
    """Their formulas are those of the installed PyTorch."""
    assert digest(cases("cpu")) == digest(cases("cuda"))
