"""Numbers that PyTorch draws in a block: their distribution, and their bits on each device and number of threads."""

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
    "dropout of channels": (lambda x: F.dropout1d(x.view(1, -1, 1).repeat(1, 1, 3), 0.4)[0, :, 1] * 0.6, stats.bernoulli(0.6)),
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
        for threads in (1, 2):
            torch.set_num_threads(threads)
            found += [computed(name, "cpu"), computed(name, device).cpu()]
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
