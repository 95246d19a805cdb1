"""Numbers that PyTorch draws in a block: their distribution, and their bits on each device and number of threads."""

import contextlib
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from scipy import stats

from tests import DEVICES
from tests.runtime.torch_cases import mode, place, torch

F = torch.nn.functional
#: elements of a draw, and how far its distribution may be off: a right one is in one of 10^6 seeds
COUNT, SLACK = 20_000, 2.7 / 20_000**0.5
#: the share of ones is drawn with these, and normal numbers have these means and widths
SHARES, WIDTHS = torch.linspace(0, 1, 5).repeat(COUNT // 5), torch.tensor([0.5, 4.0]).repeat(COUNT // 2)


def of(x: Any) -> Any:
    """A tensor whose numbers are overwritten."""
    return torch.empty_like(x)


#: of a tensor of ones: the draw, and the distribution of its elements
DRAWS: dict[str, tuple[Callable[[Any], Any], Any]] = {
    "uniform_": (lambda x: of(x).uniform_(-1, 3), stats.uniform(-1, 4)),
    "rand_like": (torch.rand_like, stats.uniform()),
    "normal_": (lambda x: of(x).normal_(2, 3), stats.norm(2, 3)),
    "normal about means": (lambda x: torch.normal(2 * x, 3.0), stats.norm(2, 3)),
    "normal of widths": (lambda x: torch.normal(2.0, WIDTHS.to(x)) / WIDTHS.to(x) - 2 / WIDTHS.to(x), stats.norm()),
    "normal of both": (lambda x: torch.normal(WIDTHS.to(x), 3 * x) - WIDTHS.to(x), stats.norm(0, 3)),
    "log_normal_": (lambda x: of(x).log_normal_(1, 0.5).log(), stats.norm(1, 0.5)),
    "exponential_": (lambda x: of(x).exponential_(2.5), stats.expon(scale=0.4)),
    "cauchy_": (lambda x: of(x).cauchy_(1, 2), stats.cauchy(1, 2)),
    "geometric_": (lambda x: of(x).geometric_(0.3), stats.geom(0.3)),
    "bernoulli_": (lambda x: of(x).bernoulli_(0.3), stats.bernoulli(0.3)),
    "bernoulli of shares": (lambda x: torch.bernoulli(SHARES.to(x)), stats.bernoulli(0.5)),
    "bernoulli_ of shares": (lambda x: of(x).bernoulli_(SHARES.to(x)), stats.bernoulli(0.5)),
    "random_": (lambda x: of(x).random_() / 2**24, stats.uniform()),
    "random_ to": (lambda x: of(x).random_(7), stats.randint(0, 7)),
    "random_ from": (lambda x: of(x).random_(-3, 7), stats.randint(-3, 7)),
    "randint_like": (lambda x: torch.randint_like(x, 2, 9), stats.randint(2, 9)),
    "randperm": (lambda x: torch.randperm(COUNT, device=x.device) / COUNT, stats.uniform()),
    "multinomial": (lambda x: torch.multinomial(x[:7], COUNT, replacement=True), stats.randint(0, 7)),
    "multinomial of one": (lambda x: torch.multinomial(x[:7].expand(COUNT, 7), 1).view(-1), stats.randint(0, 7)),
    "multinomial of all": (lambda x: torch.multinomial(x, COUNT) / COUNT, stats.uniform()),
    "dropout": (lambda x: F.dropout(x, 0.4) * 0.6, stats.bernoulli(0.6)),
    "dropout in place": (lambda x: F.dropout(x.clone(), 0.4, inplace=True) * 0.6, stats.bernoulli(0.6)),
    "native_dropout": (lambda x: torch.native_dropout(x, 0.4, True)[0] * 0.6, stats.bernoulli(0.6)),
    "dropout of channels": (lambda x: F.dropout1d(x.view(-1, 4, 1).repeat(1, 1, 3), 0.4)[..., 1].flatten() * 0.6,
                            stats.bernoulli(0.6)),
    "gamma": (lambda x: torch._standard_gamma(2.5 * x), stats.gamma(2.5)),
    "gamma below 1": (lambda x: torch._standard_gamma(0.2 * x), stats.gamma(0.2)),
    "gamma far": (lambda x: torch._standard_gamma(1e5 * x), stats.gamma(1e5)),
    "dirichlet": (lambda x: torch._sample_dirichlet(torch.stack([0.7 * x, 2 * x, x], -1))[:, 0], stats.beta(0.7, 3)),
    "poisson": (lambda x: torch.poisson(9.75 * x), stats.poisson(9.75)),
    "poisson far": (lambda x: torch.poisson(10.5 * x), stats.poisson(10.5)),
    "poisson farther": (lambda x: torch.poisson(1e4 * x), stats.poisson(1e4)),
    "binomial": (lambda x: torch.binomial(30 * x, 0.25 * x), stats.binom(30, 0.25)),
    "binomial from above": (lambda x: torch.binomial(30 * x, 0.875 * x), stats.binom(30, 0.875)),
    "binomial far": (lambda x: torch.binomial(200 * x, 0.3125 * x), stats.binom(200, 0.3125)),
    "binomial far from above": (lambda x: torch.binomial(25 * x, 0.59375 * x), stats.binom(25, 0.59375)),
    "gumbel_softmax": (lambda x: F.gumbel_softmax(x.view(-1, 4), hard=True).argmax(-1), stats.randint(0, 4)),
}  # fmt: skip


def computed(name: str, device: str, dtype: Any = torch.float32) -> Any:
    torch.manual_seed(7)
    with mode.reproducible(strict=True):
        return DRAWS[name][0](torch.ones(COUNT, dtype=dtype, device=place(device)))


@pytest.mark.parametrize("name", DRAWS)
def test_draws_have_their_distribution(name: str) -> None:
    found = np.sort(computed(name, "cpu").double().numpy())
    law, places = DRAWS[name][1], np.arange(1, len(found) + 1) / len(found)
    steps = np.append(found[1:] != found[:-1], True)  # the last of equal numbers
    assert np.abs(law.cdf(found) - places)[steps].max() < SLACK * (COUNT / len(found)) ** 0.5
    assert (law.pmf if hasattr(law.dist, "pmf") else law.pdf)(found).min() > 0


@pytest.mark.parametrize("device", DEVICES)
def test_draws_have_the_same_bits_everywhere_and_differ_from_call_to_call(device: str) -> None:
    before = torch.get_num_threads()
    for name, (draw, _) in DRAWS.items():
        found = []
        for threads, where in ((1, "cpu"), (2, device)):
            torch.set_num_threads(threads)
            found.append(computed(name, where).cpu())
        torch.set_num_threads(before)
        assert all(torch.equal(x, found[0]) for x in found), name
        generator = torch.get_rng_state()
        torch.manual_seed(7)
        with mode.reproducible():
            first, second = (draw(torch.ones(COUNT)) for _ in range(2))
        torch.set_rng_state(generator)
        assert torch.equal(first, found[0]) and not torch.equal(first, second), name


@pytest.mark.parametrize("name", ["normal_", "exponential_", "cauchy_", "dropout", "dropout in place", "bernoulli_"])
def test_draws_in_bfloat16_are_those_of_float32_rounded_once(name: str) -> None:
    found = computed(name, "cpu", torch.bfloat16)
    assert found.dtype == torch.bfloat16
    wide = computed(name, "cpu")
    assert ((found.float() - wide).abs() <= 2.0**-7 * wide.abs()).all()


def test_parameters_at_the_ends() -> None:
    """Draws that have one value, shares where each draw is below the smallest number, and what PyTorch refuses."""
    x = torch.ones(9)
    with mode.reproducible(strict=True):
        ones = [of(x).uniform_(1, 1), of(x).normal_(1, 0), of(x).bernoulli_(1.0), x - of(x).bernoulli_(0.0)]
        ones += [torch.normal(*law) for law in ((1.0, 0 * x), (x, 0 * x), (x, 0.0))]
        ones += [torch.ops.aten.native_dropout_backward(x, x > 0, 4.0) / 4]
        ones += [torch.native_dropout(x, 0.5, False)[0], x - torch.poisson(0 * x), x - torch.binomial(0 * x, 0.3 * x)]
        assert all(torch.equal(y, x) for y in ones)
        assert torch.equal(torch.binomial(torch.full((2,), 40.0), torch.tensor([0.0, 1.0])), torch.tensor([0.0, 40.0]))
        assert torch._standard_gamma(torch.tensor([0.0, 1e-30])).eq(torch.finfo(torch.float32).tiny).all()
        assert torch._standard_gamma(torch.tensor([torch.nan, -1.0])).isnan().all()
        assert torch._standard_gamma(torch.tensor([0.5, torch.inf]))[1] == torch.inf
        shares = torch._sample_dirichlet(torch.full((2000, 2), 1e-4))
        assert shares.min() > 0 and shares.max() < 1  # whose logarithms are taken
        assert ((shares.sum(-1) - 1).abs() < 1e-6).all() and 0.4 < (shares[:, 0] > 0.5).float().mean() < 0.6
        assert torch._sample_dirichlet(torch.ones(0, 3)).shape == (0, 3)
    with mode.reproducible(), pytest.raises(RuntimeError, match="invalid Poisson rate"):
        torch.poisson(torch.tensor([1.0, -1.0]))
    for count, share in ((2.5, 0.5), (3.0, 1.5), (-1.0, 0.5), (2.0**53, 0.5)):
        with mode.reproducible() as report:
            torch.binomial(torch.tensor([count, 3.0]), torch.tensor([share, 0.5]))
        assert report.left == ("binomial",)


#: draws of (1000, 4), whose columns have parameters of their own; the means of these, and their variances
COLUMNS: dict[str, Any] = {
    "poisson": (torch.poisson, [[0.3, 7.0, 40.0, 1e4]], [0.3, 7.0, 40.0, 1e4], [0.3, 7.0, 40.0, 1e4]),
    "binomial": (torch.binomial, [[3.0, 30.0, 1000.0, 200.0], [0.3, 0.75, 0.004, 0.5]], [0.9, 22.5, 4.0, 100.0],
                 [0.63, 5.625, 3.984, 50.0]),
    "gamma": (torch._standard_gamma, [[0.2, 1.0, 2.5, 1e4]], [0.2, 1.0, 2.5, 1e4], [0.2, 1.0, 2.5, 1e4]),
    "dirichlet": (torch._sample_dirichlet, [[0.5, 1.0, 2.5, 4.0]], [0.0625, 0.125, 0.3125, 0.5],
                  [x * (1 - x) / 9 for x in (0.0625, 0.125, 0.3125, 0.5)]),
    "bernoulli": (torch.bernoulli, [[0.1, 0.5, 0.75, 0.9]], [0.1, 0.5, 0.75, 0.9], [0.09, 0.25, 0.1875, 0.09]),
    "normal": (torch.normal, [[-3.0, 0.0, 2.0, 9.0], [1.0, 2.0, 3.0, 4.0]], [-3.0, 0.0, 2.0, 9.0], [1.0, 4.0, 9.0, 16.0]),
}  # fmt: skip


@pytest.mark.parametrize("name", COLUMNS)
def test_each_element_has_its_own_parameters(name: str) -> None:
    draw, given, means, variances = COLUMNS[name]
    torch.manual_seed(7)
    for k in range(len(given)):  # the others broadcast
        with mode.reproducible(strict=True):
            found = draw(*(torch.tensor(p).expand(*((20, 50) if i == k else ()), 4) for i, p in enumerate(given)))
        found = found.view(1000, 4).double()
        assert ((found.mean(0) - torch.tensor(means)).abs() < 6 * (torch.tensor(variances) / 1000).sqrt()).all()
        assert ((found.var(0) / torch.tensor(variances) - 1).abs() < 0.5).all()


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_the_ends_of_draws(dtype: Any) -> None:
    """A uniform number is never the end of its interval. An exponential one is never 0, as its logarithm is taken."""
    draws = {1.0: lambda x: x.uniform_(), 2.0: lambda x: x.uniform_(1, 2), -1.0: lambda x: x.uniform_(-1.01, -1)}
    for end, draw in draws.items():
        torch.manual_seed(1)
        with mode.reproducible(strict=True):
            found = draw(torch.empty(2**25, dtype=dtype))
        assert found.max() < end
        assert end != 1 or found.min() == 0, "draw another seed, of which an exponential number could be 0"
    torch.manual_seed(1)
    with mode.reproducible(strict=True):
        assert torch.empty(2**25, dtype=dtype).exponential_().min() > 0


def test_whole_numbers_of_each_type() -> None:
    """Up to the largest of them that a type holds with all smaller ones."""
    largest = {torch.float16: 2**11, torch.bfloat16: 2**8, torch.float32: 2**24, torch.float64: 2**53, torch.bool: 1}
    for kind in (*largest, torch.int8, torch.uint8, torch.int16, torch.int32, torch.int64):
        most = largest[kind] if kind in largest else torch.iinfo(kind).max
        with mode.reproducible(strict=True):
            found = torch.empty(3000, dtype=kind).random_()
        assert 0 <= found.min() <= most / 99 and 0.99 * most <= found.max() <= most, kind


#: draws whose parameters PyTorch refuses, of a tensor (2, 3) of ones
WRONG: dict[str, Any] = {
    "bernoulli": lambda x: x.bernoulli_(1.5), "bernoulli below": lambda x: x.bernoulli_(-0.5),
    "normal": lambda x: x.normal_(0, -1), "normal of widths": lambda x: torch.normal(0.0, torch.tensor([1.0, -1.0])),
    "exponential": lambda x: x.exponential_(0), "log normal": lambda x: x.log_normal_(0, 0), "cauchy": lambda x: x.cauchy_(0, -1),
    "geometric": lambda x: x.geometric_(0), "geometric of 1": lambda x: x.geometric_(1),
    "dropout": lambda x: torch.dropout(x, 1.5, True),
    "multinomial": lambda x: x.index_fill(1, torch.tensor(0), -0.5).multinomial(1),
    "multinomial of a row": lambda x: x.index_fill(0, torch.tensor(1), 0.0).multinomial(1),
    "multinomial of NaN": lambda x: x.index_fill(1, torch.tensor(0), torch.nan).multinomial(1),
    "multinomial of none": lambda x: x.multinomial(0), "multinomial of more": lambda x: x.multinomial(4),
    "multinomial of three axes": lambda x: x[None].multinomial(1), "random_ from": lambda x: x.int().random_(3, 3),
    **{f"{kind} from {a} to {b}": lambda x, kind=kind, a=a, b=b: x.to(kind).random_(a, b) for kind, a, b in (
        (torch.uint8, 0, 300), (torch.uint8, -1, 3), (torch.int8, -129, 3), (torch.int8, 128, None), (torch.float32, 2**24, None),
        (torch.float16, 0, 65506), (torch.float16, -65505, 0))},
    **{f"{kind} between {a} and {b}": lambda x, kind=kind, a=a, b=b: x.to(kind).uniform_(a, b) for kind, a, b in (
        (torch.float16, 0, 65505), (torch.float16, -65505, 0), (torch.float32, -2e38, 2e38))},
    **{f"{name} of integers": lambda x, name=name: getattr(x.long(), name)()
       for name in ("uniform_", "normal_", "exponential_", "log_normal_", "cauchy_")},
    **{f"randperm of {kind}": lambda x, kind=kind, n=n: torch.randperm(n, dtype=kind)
       for kind, n in ((torch.int64, -1), (torch.uint8, 257), (torch.float16, 2050))},
}  # fmt: skip


@pytest.mark.parametrize("case", WRONG)
def test_parameters_that_are_refused(case: str) -> None:
    for block in (mode.reproducible(), contextlib.nullcontext()):
        with pytest.raises(RuntimeError), block:
            WRONG[case](torch.ones(2, 3))


def test_masks_are_drawn_here() -> None:
    masks = [computed("bernoulli_", "cpu", kind).float() for kind in (torch.float32, torch.bool, torch.int64)]
    assert torch.equal(masks[0], masks[1]) and torch.equal(masks[0], masks[2])


#: draws with a generator of their own
GENERATED: dict[str, Any] = {
    "multinomial": lambda g: torch.ones(2, 30).multinomial(5, generator=g),
    "multinomial with replacement": lambda g: torch.ones(2, 30).multinomial(5, True, generator=g),
    "rand": lambda g: torch.rand(9, generator=g), "randn": lambda g: torch.randn(9, generator=g),
    "randperm": lambda g: torch.randperm(30, generator=g), "randint": lambda g: torch.randint(99, (9,), generator=g),
    "bernoulli": lambda g: torch.full((60,), 0.5).bernoulli(generator=g),
    "bernoulli by a number": lambda g: torch.ones(60).bernoulli_(0.5, generator=g),
    "normal": lambda g: torch.normal(torch.zeros(9), torch.ones(9), generator=g),
    "normal of a number": lambda g: torch.normal(0.0, torch.ones(9), generator=g),
    "poisson": lambda g: torch.poisson(torch.full((9,), 50.0), generator=g),
    "gamma": lambda g: torch._standard_gamma(torch.full((9,), 0.5), generator=g),
    "dirichlet": lambda g: torch._sample_dirichlet(torch.full((9, 2), 0.5), generator=g),
    "binomial": lambda g: torch.binomial(torch.full((9,), 50.0), torch.full((9,), 0.5), generator=g),
    **{name: lambda g, name=name: getattr(torch.empty(30), name)(generator=g)
       for name in ("uniform_", "normal_", "exponential_", "cauchy_", "log_normal_", "random_")},
    "geometric_": lambda g: torch.empty(60).geometric_(0.1, generator=g),
}  # fmt: skip


@pytest.mark.parametrize("case", GENERATED)
def test_a_generator_that_is_given_draws(case: str) -> None:
    """It alone determines the numbers, and it alone moves on."""
    with mode.reproducible():
        found = []
        for seed, default in ((3, 1), (3, 2), (4, 2)):
            torch.manual_seed(default)
            state, generator = torch.get_rng_state(), torch.Generator().manual_seed(seed)
            found.append((GENERATED[case](generator), GENERATED[case](generator)))
            assert torch.equal(torch.get_rng_state(), state)
    (first, later), again, (other, _) = found
    assert torch.equal(first, again[0]) and torch.equal(later, again[1])
    assert not torch.equal(first, later) and not torch.equal(first, other)


@pytest.mark.cuda
def test_a_generator_of_a_gpu_draws_what_one_of_its_seed_draws_on_the_cpu() -> None:
    """From the start and from a saved state on, with other generators between."""
    found = []
    for device in ("cpu", "cuda"):
        generator, other = (torch.Generator(device).manual_seed(seed) for seed in (3, 4))
        with mode.reproducible(strict=True):
            draws = [torch.randn(9, device=device, generator=g) for g in (generator, other, generator)]
            state = generator.get_state()
            draws += [
                torch.rand(9, device=device, generator=generator),
                torch.randperm(9, device=device, generator=generator),
            ]
            generator.set_state(state)
            draws.append(torch.rand(9, device=device, generator=generator))
        assert torch.equal(draws[3], draws[5])
        found.append([x.cpu() for x in draws])
    assert all(torch.equal(x, y) for x, y in zip(*found, strict=True))


def test_draws_are_determined_and_seeded() -> None:
    def draw() -> list[Any]:
        torch.manual_seed(3)
        p = torch.tensor([[0.0, 1.0, 3.0, 0.0], [1.0, 1.0, 0.0, 0.0]])
        return [
            torch.randperm(1000), torch.randint(7, (5000,)), torch.randint(-3, 2, (500,), dtype=torch.int8),
            torch.empty(500).random_(), torch.empty(500, dtype=torch.uint8).random_(),
            torch.empty(500, dtype=torch.bool).random_(),
            torch.empty(500, dtype=torch.long).random_(-(2**63), None), torch.rand(500), torch.randn(500),
            p.multinomial(4000, replacement=True), p.multinomial(2), p.bfloat16().multinomial(1),
            torch.normal(torch.zeros(500), torch.ones(500)), torch.empty(500).log_normal_(), torch.empty(5000).geometric_(0.25),
        ]  # fmt: skip

    with mode.reproducible(strict=True) as report:
        first, second = draw(), draw()
    assert report.left == () and {"randperm", "random_", "multinomial"} <= set(report.here)
    assert all(torch.equal(a, b) for a, b in zip(first, second, strict=True))
    assert first[0].sort()[0].tolist() == list(range(1000)) and first[0].tolist() != list(range(1000))
    # five deviations of the binomial
    assert all(abs(int((first[1] == k).sum()) - 5000 / 7) < 5 * (5000 * 6 / 49) ** 0.5 for k in range(7))
    assert sorted(set(first[2].tolist())) == [-3, -2, -1, 0, 1] and set(first[5].tolist()) == {False, True}
    assert first[3].max() <= 2**24 and first[3].max() > 2**23 and first[6].min() < 0 < first[6].max()
    assert set(first[9][0].tolist()) == {1, 2} and set(first[9][1].tolist()) == {0, 1}
    assert abs(int((first[9][0] == 2).sum()) - 3000) < 5 * (4000 * 3 / 16) ** 0.5
    assert {frozenset(r) for r in first[10].tolist()} == {frozenset({1, 2}), frozenset({0, 1})}
    assert abs(first[14].mean() - 4) < 5 * (12 / 5000) ** 0.5 and first[14].min() == 1


def test_the_random_words_are_the_librarys_rule() -> None:
    """mix(mix(key) + i), as the contract has it, of the key that PyTorch's generator draws."""

    def mix(z: int) -> int:
        z = (z + 0x9E3779B97F4A7C15) % 2**64
        z = (z ^ z >> 30) * 0xBF58476D1CE4E5B9 % 2**64
        z = (z ^ z >> 27) * 0x94D049BB133111EB % 2**64
        return z ^ z >> 31

    torch.manual_seed(8)
    with mode.reproducible(strict=True):
        found = torch.empty(9, dtype=torch.long).random_(-(2**63), None)
    torch.manual_seed(8)
    key = int(torch.empty(1, dtype=torch.long).random_(-(2**63), None)) % 2**64
    assert [(w + 2**63) % 2**64 for w in found.tolist()] == [mix((mix(key) + i) % 2**64) for i in range(9)]
