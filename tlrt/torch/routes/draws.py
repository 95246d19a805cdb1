"""Draws by rejection, in float64 from uniform and normal numbers of a block, which are the same on every device.

All elements try again until each has accepted, so how many numbers a generator gives depends on what is drawn."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from tlrt.torch.routes.base import aten, route
from tlrt.torch.routes.double import INFINITY, NAN, exp, log, log1p, sqrt
from tlrt.torch.routes.gamma import lgamma

#: below this mean a draw counts up from 0
_FEW = 10.0


def _normal(like: Any, generator: Any) -> Any:
    return torch.empty(like.shape, device=like.device).normal_(generator=generator).double()


def _uniform(like: Any, generator: Any) -> Any:
    """48 bits, and the middle of their interval: neither 0 nor 1."""
    high, low = (torch.empty(like.shape, device=like.device).uniform_(generator=generator).double() for _ in range(2))
    return high + (low * 2.0**-24 + 2.0**-49)


def _accepted(wanted: Any, draw: Callable[[], tuple[Any, Any]]) -> Any:
    """Of each wanted element the first draw that is accepted."""
    found = torch.zeros(wanted.shape, dtype=torch.float64, device=wanted.device)
    while wanted.any():
        accept, value = draw()
        found = torch.where(wanted & accept, value, found)
        wanted = wanted & ~accept
    return found


def _counted(u: Any, first: Any, ratio: Callable[[int], Any]) -> Any:
    """The number of the interval of the distribution that holds u: each probability is a ratio times the one before."""
    probability, total = first, first
    found = torch.zeros_like(u)
    for k in range(1, 128):  # beyond 10 + 22·sqrt(10) no double has a share
        beyond = u > total
        if not beyond.any():
            break
        found = found + beyond.to(torch.float64)
        probability = probability * ratio(k)
        total = total + probability
    return found


# ---- gamma and Dirichlet -------------------------------------------------------------------------------------------------


def _log_gamma_draw(alpha: Any, generator: Any) -> Any:
    """The logarithm of a draw: Marsaglia and Tsang, A simple method for generating gamma variables, ACM TOMS 26 (2000)."""
    valid = (alpha > 0) & (alpha < INFINITY)
    small = alpha < 1
    d = torch.where(valid, torch.where(small, alpha + 1.0, alpha), 1.0) - 1 / 3
    c = 1.0 / sqrt(9.0 * d)

    def draw() -> tuple[Any, Any]:
        n, u = _normal(alpha, generator), _uniform(alpha, generator)
        v = 1.0 + c * n
        v = v * v * v
        logarithm = log(v.clamp(min=2.0**-1000))
        accept = (v > 0) & (log(u) < ((0.5 * n * n + d) - d * v) + d * logarithm)
        return accept, log(d) + logarithm

    found = _accepted(valid, draw)
    powers = log(_uniform(alpha, generator)) / torch.where(small & valid, alpha, 1.0)
    found = torch.where(small, found + powers, found)
    found = found.masked_fill(alpha == 0, -INFINITY).masked_fill(alpha == INFINITY, INFINITY)
    return torch.where(valid | (alpha == 0) | (alpha == INFINITY), found, NAN)


@route(aten._standard_gamma.default)
def standard_gamma(alpha: Any, generator: Any = None) -> Any:
    found = exp(_log_gamma_draw(alpha.double(), generator)).to(torch.float32)
    return found.clamp(min=torch.finfo(torch.float32).tiny)


@route(aten._sample_dirichlet.default)
def sample_dirichlet(alpha: Any, generator: Any = None) -> Any:
    if not alpha.dim():
        raise NotImplementedError("one number")
    # logarithms, as a draw of a small alpha is below the smallest number
    logarithms = _log_gamma_draw(alpha.double(), generator)
    powers = exp(logarithms - logarithms.amax(-1, keepdim=True)) if alpha.numel() else logarithms
    shares = (powers / powers.sum(-1, keepdim=True)).to(torch.float32)
    return shares.clamp(torch.finfo(torch.float32).tiny, 1 - 2.0**-24)


# ---- counts -----------------------------------------------------------------------------------------------------------------


def _log_factorial(k: Any) -> Any:
    return lgamma(k.clamp(min=0.0) + 1.0)


def _transformed(
    wanted: Any, a: Any, b: Any, squeeze: Any, size: Any, middle: Any, logarithm: Any, generator: Any
) -> Any:
    """Hörmann's transformed rejection with squeeze, of the logarithm of a probability."""

    def draw() -> tuple[Any, Any]:
        u, v = _uniform(wanted, generator) - 0.5, _uniform(wanted, generator)
        side = 0.5 - u.abs()
        k = ((2.0 * a / side + b) * u + middle).floor()
        below = log(v * size / (a / (side * side) + b)) <= logarithm(k)
        return ((side >= 0.07) & (v <= squeeze)) | ((k >= 0) & below), k

    return _accepted(wanted, draw)


@route(aten.poisson.default)
def poisson(rate: Any, generator: Any = None) -> Any:
    """Hörmann, The transformed rejection method for generating Poisson random variables, Insurance Math. Econom. 12 (1993)."""
    rate = rate.double()
    if not ((rate >= 0) & (rate < INFINITY)).all():
        raise NotImplementedError("rates that PyTorch refuses")
    few = rate < _FEW
    small, large = rate.clamp(max=_FEW), rate.clamp(min=_FEW)
    counted = _counted(_uniform(rate, generator), exp(-small), lambda k: small * (1.0 / k))
    b = 0.931 + 2.53 * sqrt(large)
    logarithm = log(large)
    found = _transformed(
        ~few, 0.02483 * b - 0.059, b, 0.9277 - 3.6224 / (b - 2.0), 1.1239 + 1.1328 / (b - 3.4), large + 0.43,
        lambda k: (k * logarithm - large) - _log_factorial(k), generator,
    )  # fmt: skip
    return torch.where(few, counted, found).to(torch.float32)


@route(aten.binomial.default)
def binomial(count: Any, prob: Any, generator: Any = None) -> Any:
    """Hörmann, The generation of binomial random variates, J. Stat. Comput. Simul. 46 (1993)."""
    n, p = torch.broadcast_tensors(count.double(), prob.double())
    if not ((n >= 0) & (n < 2.0**52) & (n == n.floor()) & (p >= 0) & (p <= 1)).all():
        raise NotImplementedError("numbers that PyTorch refuses or rounds")
    high = p > 0.5
    p = torch.where(high, 1.0 - p, p)
    few = n * p < _FEW
    low = torch.where(few, p, 0.0)
    odds = low / (1.0 - low)
    counted = _counted(_uniform(n, generator), exp(n * log1p(-low)), lambda k: ((n + (1.0 - k)) * (1.0 / k)) * odds)
    m, q = torch.where(few, 40.0, n), torch.where(few, 0.5, p)
    spread = sqrt(m * q * (1.0 - q))
    b = 1.15 + 2.53 * spread
    mode, ratio = ((m + 1.0) * q).floor(), log(q / (1.0 - q))
    top = _log_factorial(mode) + _log_factorial(m - mode)

    def logarithm(k: Any) -> Any:
        inside = ((top - _log_factorial(k)) - _log_factorial(m - k)) + (k - mode) * ratio
        return torch.where(k <= m, inside, -INFINITY)

    found = _transformed(
        ~few, (0.0248 * b - 0.0873) + 0.01 * q, b, 0.92 - 4.2 / b, (2.83 + 5.1 / b) * spread, m * q + 0.5, logarithm, generator
    )  # fmt: skip
    found = torch.where(few, counted, found)
    return torch.where(high, n - found, found).to(torch.float32)
