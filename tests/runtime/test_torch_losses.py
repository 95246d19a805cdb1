"""Losses, functions, distances and bags under tlrt.torch.reproducible, strict: values and gradients beside float64."""

import itertools
import warnings
from typing import Any

import numpy as np
import pytest

from tests import DEVICES
from tests.runtime.torch_cases import drawn, mode, place, torch

nn, F = torch.nn, torch.nn.functional


def near(mine: Any, exact: Any, roundings: float, least: float = 0.0) -> None:
    """Within some roundings of float32 of the largest value, or of one of which the values are what remains."""
    assert mine.shape == exact.shape
    mine, exact = mine.detach().double().cpu(), exact.detach().double().cpu()
    assert torch.equal(mine.isfinite(), exact.isfinite())
    size = torch.where(exact.isfinite(), exact.abs(), 0.0).max() if exact.numel() else 0
    difference = torch.where(exact.isfinite(), mine - exact, 0.0).abs()
    assert not exact.numel() or difference.max() <= roundings * 2.0**-24 * max(float(size), least)


def unit(x: Any) -> Any:
    return x.sigmoid().clamp(0.05, 0.95)


LABELS = torch.tensor([0, 5, 2, 2, 1, 3])
LISTS = torch.tensor(
    [
        [1, 3, -1, 2, 2, 0],
        [-1, 0, 1, 2, 3, 4],
        [0, 1, 2, 3, 4, 5],
        [2, 2, -1, 0, 0, 0],
        [5, -1, -1, -1, -1, -1],
        [4, 0, 3, 1, 2, -1],
    ]
)
SIGNS = torch.tensor([1, -1, 1, 1, -1, 1])
batch_norm = torch.ops.aten._native_batch_norm_legit
#: of a matrix x of 6 by 6 and another y of its type
CASES: dict[str, Any] = {
    "multi-label margin": lambda x, y: F.multilabel_margin_loss(x, LISTS.to(x.device)),
    "multi-label margin of each": lambda x, y: F.multilabel_margin_loss(x * 3, LISTS.to(x.device), reduction="none"),
    "multi-label margin of one": lambda x, y: F.multilabel_margin_loss(x[0], LISTS[1].to(x.device), reduction="sum"),
    "norms of any order": lambda x, y: sum(torch.linalg.vector_norm(x, p, dim=1) for p in (0.5, -1.0, -0.7, 2.5)),
    "normalize": lambda x, y: F.normalize(x),
    "glu": lambda x, y: F.glu(x, 0) + F.glu(x).t()[:, :6].sum(),
    "log sigmoid": lambda x, y: F.logsigmoid(x * 30),
    "elu in place": lambda x, y: F.elu(x + 0, inplace=True),
    "softsign": lambda x, y: F.softsign(x),
    "tanhshrink": lambda x, y: F.tanhshrink(x),
    "logit": lambda x, y: torch.logit(unit(x)) + torch.logit(unit(x), 0.2),
    "logaddexp": lambda x, y: torch.logaddexp(x, y) + torch.logaddexp2(x, y),
    "xlogy": lambda x, y: torch.xlogy(x, y.abs()) + torch.special.xlog1py(x, y.abs()),
    "hypot": lambda x, y: torch.hypot(x, y),
    "sinc": lambda x, y: torch.sinc(x),
    "prod": lambda x, y: x.prod() + x.prod(1, keepdim=True) + x[:, :5].prod(1),
    "cumprod": lambda x, y: x.cumprod(1) + x.cumprod(0),
    "logcumsumexp": lambda x, y: x.logcumsumexp(1),
    "nansum": lambda x, y: torch.where(y > 1, torch.nan, x).nansum(1) + torch.where(y > 1, torch.nan, x).nanmean(),
    "std and mean": lambda x, y: sum(torch.std_mean(x, 1)),
    "trapezoid": lambda x, y: torch.trapezoid(x, dim=1) + torch.cumulative_trapezoid(x)[:, 0],
    "cdist": lambda x, y: torch.cdist(x, y),
    "cdist, p = 1": lambda x, y: torch.cdist(x[None], y[None, :4], p=1),
    "cdist, p = 3": lambda x, y: torch.cdist(x.view(2, 1, 3, 6), y.view(1, 2, 3, 6), p=3.0),
    "cdist, p = inf": lambda x, y: torch.cdist(x, y, p=float("inf")),
    "pdist": lambda x, y: F.pdist(x),
    "pdist, p = 1": lambda x, y: F.pdist(x, 1.0),
    "weight norm": lambda x, y: torch._weight_norm(x, y[:, :1], 0),
    "weight norm of the last axis": lambda x, y: torch._weight_norm(x, y[:1], 1),
    "cross": lambda x, y: torch.linalg.cross(x[:, :3], y[:, :3]) + torch.linalg.cross(x[:3], y[:3], dim=0).t()[:, :3].sum(),
    "addr": lambda x, y: torch.addr(x, y[0], y[1], beta=0.5, alpha=2),
    "addbmm": lambda x, y: torch.addbmm(x, y[None], x[None]),
    "outer, einsum, tensordot": lambda x, y: torch.outer(x[0], y[0]) + torch.einsum("ij,kj->ik", x, y) + torch.tensordot(x, y, 1),
    "powers and chains of matrices": lambda x, y: torch.matrix_power(x / 3, 5) + torch.linalg.multi_dot([x, y, x]),
    "norms": lambda x, y: torch.linalg.norm(x) + torch.linalg.norm(x, 1, 0) + torch.linalg.norm(x, dim=(0, 1)) + x.norm(3, 1),
    "sinh and cosh": lambda x, y: torch.sinh(x) + torch.cosh(x),
    "tan and arcs": lambda x, y: torch.tan(x) + torch.atan(x) + torch.asin(unit(x)) + torch.acos(unit(x)),
    "arcs of the hyperbola": lambda x, y: torch.asinh(x) + torch.acosh(x.abs() + 1.1) + torch.atanh(unit(x)),
    "logarithms": lambda x, y: torch.log2(unit(x)) + torch.log10(unit(x)) + torch.exp2(x),
    "erfinv": lambda x, y: torch.erfinv(unit(x)),
    "differences": lambda x, y: torch.sub(x, y, alpha=2.5) + torch.rsub(x, y, alpha=-0.5),
    "variance and mean": lambda x, y: sum(torch.var_mean(x, 1)) + x.var(0, correction=0),
    "norms of a type": lambda x, y: x.norm(3, 1, dtype=x.dtype) + x.norm(dtype=x.dtype),
    "ranges": lambda x, y: x * torch.logspace(-1, 2, 6, dtype=x.dtype, device=x.device)
    + torch.linspace(-3, 1, 6, dtype=x.dtype, device=x.device),
    "batch norm without averages": lambda x, y: batch_norm.no_stats(x, y[0], y[1], True, 0.1, 1e-5)[0],
    "batch norm that keeps averages": lambda x, y: batch_norm(
        x, y[0], y[1], y[2].clone(), y[3].abs(), True, 0.1, 1e-5)[0],
    "batch norm by averages": lambda x, y: batch_norm(x, y[0], y[1], y[2], y[3].abs(), False, 0.1, 1e-5)[0],
}  # fmt: skip
#: their gradients are not differentiable in PyTorch
ONCE = {n for n in CASES if n.startswith(("cdist", "pdist", "multi-label margin"))}


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("case", CASES)
def test_values_and_gradients(case: str, device: str) -> None:
    def run(x: Any, y: Any) -> list[Any]:
        x = x.requires_grad_()
        found = CASES[case](x, y)
        twice = case not in ONCE
        (g,) = torch.autograd.grad(found.square().sum(), x, create_graph=twice)
        return [found, g, *(torch.autograd.grad(g.square().sum(), x, allow_unused=True) if twice else ())]

    x, y = drawn(1, 6, 6).to(place(device)), drawn(2, 6, 6).to(place(device))
    y[0], y[1, 1:] = x[0], x[1, 1:]  # distances and differences that are 0
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        with mode.reproducible(strict=True):
            found = run(x, y)
        exact = run(x.detach().double().cpu(), y.double().cpu())
    largest = max(float(t.abs().max()) for t in exact)
    for mine, theirs, roundings in zip(found, exact, (64, 512, 4096), strict=False):
        near(mine, theirs, roundings, 0.0 if theirs is exact[0] else largest)


def everywhere() -> Any:
    """Numbers of each size and both signs, 0, infinities and NaN."""
    bits = np.random.default_rng(0).integers(0, 1 << 32, 1 << 16, dtype=np.uint64).astype(np.uint32)
    some = np.concatenate([bits.view(np.float32), np.linspace(-20, 20, 1 << 14, dtype=np.float32),
                           np.linspace(-1, 1, 1 << 14, dtype=np.float32), np.linspace(80, 90, 4096, dtype=np.float32),
                           np.array([0.0, -0.0, 1, -1, np.inf, -np.inf, np.nan, 2, 8, 0.5, 10, 1000], np.float32)])  # fmt: skip
    return torch.from_numpy(some)


#: the most by which a result may be off, in units of the last place of float32
WITHIN = {
    "sinh": 6, "cosh": 6, "tan": 4, "atan": 2, "asin": 4, "acos": 4, "asinh": 4, "acosh": 4, "atanh": 4, "exp2": 2, "log2": 2,
    "log10": 2, "erfinv": 8,
}  # fmt: skip


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("name", WITHIN)
def test_functions_are_accurate_over_the_whole_range(name: str, device: str) -> None:
    x = everywhere()
    with mode.reproducible(strict=True):
        found = getattr(torch, name)(x.to(place(device))).cpu()
    exact = getattr(torch, name)(x.double())
    rounded = exact.float()
    assert torch.equal(found.isnan(), rounded.isnan())
    plain = rounded.isfinite() & found.isfinite() & (rounded.abs() >= 2.0**-126)
    unit = torch.ldexp(torch.ones_like(exact[plain]), exact[plain].abs().frexp()[1] - 24)
    assert ((found[plain].double() - exact[plain]).abs() / unit).max() <= WITHIN[name]
    edge = rounded.isinf() | found.isinf()  # an overflow may come one number early or late
    assert (found[edge].abs() >= 3.4028e38).all() and (rounded[edge].abs() >= 3.4028e38).all()
    assert torch.equal(found.signbit()[plain], rounded.signbit()[plain])


def test_entropies_at_the_ends() -> None:
    """Logarithms are at least -100, and one probability that is none is refused."""
    given = torch.tensor([0.0, 1.0, 0.0, 1.0, 2.0**-140, 1 - 2.0**-24]), torch.tensor([1.0, 0.0, 0.0, 1.0, 1.0, 0.0])
    runs = []
    for strict in (True, None):
        x = given[0].clone().requires_grad_()
        with mode.reproducible(strict=True) if strict else warnings.catch_warnings():
            y = F.binary_cross_entropy(x, given[1], reduction="none")
            runs.append((y, torch.autograd.grad(y.sum(), x)[0]))
    torch.testing.assert_close(*runs)
    assert runs[0][0][0] == runs[0][0][1] == 100
    for wrong in (-0.1, 1.1, torch.nan):
        with pytest.raises(RuntimeError, match="between 0 and 1"), mode.reproducible():
            F.binary_cross_entropy(torch.tensor([0.5, wrong]), torch.ones(2))


@pytest.mark.parametrize("reduction", ["none", "mean", "sum"])
def test_margins_of_one_sample(reduction: str) -> None:
    x = drawn(1, 6).requires_grad_()
    for p, label in itertools.product((1, 2), (torch.tensor(3), torch.tensor([3]))):
        with mode.reproducible(strict=True):
            y = F.multi_margin_loss(x, label, p, reduction=reduction)
            found = y, *torch.autograd.grad(y.sum(), x)
        y = F.multi_margin_loss(x, label, p, reduction=reduction)
        torch.testing.assert_close(found, (y, *torch.autograd.grad(y.sum(), x)))


def test_numbers_of_differences() -> None:
    """Which have no gradient, and distances in parts of rows."""
    x, y = drawn(1, 4, 3).requires_grad_(), drawn(2, 5, 3)
    y[0, 1:] = x[1, 1:].detach()
    with mode.reproducible(strict=True):
        found = torch.cdist(x, y, p=0.0)
        (g,) = torch.autograd.grad(found.sum(), x)
        wide = torch.cdist(torch.arange(4100.0)[:, None], torch.ones(4096, 1), p=1.0)
    assert torch.equal(found, torch.cdist(x, y, p=0.0)) and not g.any()
    assert torch.equal(wide, (torch.arange(4100.0) - 1).abs()[:, None].expand(4100, 4096))


def test_powers_of_two_have_whole_logarithms() -> None:
    e = torch.arange(-126, 128)
    with mode.reproducible(strict=True):
        assert torch.equal(torch.log2(torch.ldexp(torch.ones(()), e)), e.float())


def test_rows_are_shortened() -> None:
    x = drawn(1, 6, 6)
    for p in (1, 2, 3.5, torch.inf):
        with mode.reproducible(strict=True):
            found = torch.renorm(x, p, 0, 1.5)
        near(found, torch.renorm(x.double(), p, 0, 1.5), 8)


@pytest.mark.parametrize("joined", [False, True])
@pytest.mark.parametrize("reduction", ["none", "sum", "mean"])
def test_alignments(reduction: str, joined: bool) -> None:
    """Repeated labels, an empty one, shorter inputs and one that is too short."""
    labels = torch.tensor([[1, 1, 2], [3, 4, 0], [0, 0, 0], [1, 1, 1]])
    lengths, times = torch.tensor([3, 2, 0, 3]), torch.tensor([9, 6, 4, 4])
    given = torch.cat([r[:n] for r, n in zip(labels, lengths, strict=True)]) if joined else labels

    def run(dtype: Any) -> list[Any]:
        x = drawn(1, 9, 4, 6).to(dtype).requires_grad_()
        loss = F.ctc_loss(x.log_softmax(2), given, times, lengths, blank=5, reduction=reduction, zero_infinity=True)
        return [loss, *torch.autograd.grad(loss.sum(), x)]

    with mode.reproducible(strict=True):
        found = run(torch.float32)
    for mine, theirs in zip(found, run(torch.float64), strict=True):
        near(mine, theirs, 64, 0.1)


@pytest.mark.parametrize("reduction", ["none", "mean"])
def test_no_gradient_comes_to_what_is_behind_an_input(reduction: str) -> None:
    """Numbers behind the end of an input, whatever they are, change nothing and get 0; those before it get that of the input
    alone."""
    x, labels = drawn(1, 9, 4, 6), torch.tensor([[1, 1, 2], [3, 4, 4], [2, 1, 4], [1, 2, 1]])
    times, lengths = torch.tensor([9, 8, 5, 4]), torch.tensor([3, 3, 2, 3])
    with mode.reproducible(strict=True):
        for other in (0.0, 100.0):
            given = torch.where(torch.arange(9)[:, None, None] < times[:, None], x, other).requires_grad_()
            loss = F.ctc_loss(given, labels, times, lengths, reduction=reduction)
            (g,) = torch.autograd.grad(loss.sum(), given)
            for i, n in enumerate(times.tolist()):
                alone = given[:n, i : i + 1].detach().requires_grad_()
                one = F.ctc_loss(alone, labels[i : i + 1], times[i : i + 1], lengths[i : i + 1], reduction=reduction)
                (expected,) = torch.autograd.grad(one.sum() / (1 if reduction == "none" else 4), alone)
                assert torch.equal(g[:n, i], expected[:, 0]) and not g[n:, i].any()


def test_alignments_do_not_depend_on_the_batch() -> None:
    x, labels = drawn(1, 9, 4, 6), torch.tensor([[1, 1, 2], [3, 4, 4], [2, 1, 4], [1, 2, 1]])
    times, lengths = torch.full((4,), 9), torch.tensor([3, 3, 2, 1])
    with mode.reproducible(strict=True):
        whole = F.ctc_loss(x, labels, times, lengths, reduction="none")
        for i in range(4):
            one = F.ctc_loss(x[:, i : i + 1], labels[i : i + 1], times[:1], lengths[i : i + 1], reduction="none")
            assert torch.equal(one[0], whole[i])


def test_histograms() -> None:
    """Of bounds that are given, of equal ones, for which the numbers have them, of equal numbers, and of none."""
    x = drawn(1, 1000)
    calls: list[Any] = [
        lambda: torch.histc(x, 7, -2, 2), lambda: torch.histc(x, 5), lambda: torch.histc(x, 5, 1, 1),
        lambda: torch.histc(x[:1].expand(9), 4), lambda: torch.histc(x[:0], 3), lambda: torch.histc(x.view(10, 100).T, 7, -2, 2),
        lambda: torch.bincount((x.abs() * 3).long()), lambda: torch.histc(torch.tensor([0.0, 3, 3, 7, 9]), 8, 0, 7),
    ]  # fmt: skip
    for compute in calls:
        with mode.reproducible(strict=True):
            found = compute()
        assert torch.equal(found, compute())
    assert found.tolist() == [1, 0, 0, 2, 0, 0, 0, 1]
    with mode.reproducible(), pytest.raises(RuntimeError, match="bins"):
        torch.histc(x, 0)


@pytest.mark.parametrize("sparse", [False, True])
@pytest.mark.parametrize("how", ["sum", "mean"])
def test_bags_and_gradients_by_frequency(how: str, sparse: bool) -> None:
    """Each word's is divided by its number, whatever kernels of PyTorch's make of it; padding of word 0 counts nothing."""
    words, bags = torch.tensor([0, 1, 1, 2, 0, 2, 1, 4]), torch.tensor([0, 3, 3, 5])
    weight = drawn(1, 5, 3).requires_grad_()
    with mode.reproducible():
        y = F.embedding_bag(words, weight, bags, mode=how, scale_grad_by_freq=not sparse, sparse=sparse, padding_idx=0)
        (found,) = torch.autograd.grad(y.sum(), weight)
    of = torch.searchsorted(bags, torch.arange(8), right=True) - 1
    kept = words != 0
    shares = kept / (torch.bincount(of, kept.float(), 4).clamp(min=1)[of] if how == "mean" else 1)
    expected = torch.zeros(5).index_add(0, words, shares.float()) / (
        torch.bincount(words).clamp(min=1) if not sparse else 1
    )
    torch.testing.assert_close(found.to_dense(), expected[:, None].expand(5, 3))
    rows = weight.detach()[words] * shares[:, None]
    torch.testing.assert_close(y.detach(), torch.zeros(4, 3).index_add(0, of, rows))
