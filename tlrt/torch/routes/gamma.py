"""The logarithm of the gamma function and its first two derivatives, in float64, from functions of ``double``.

A number below 12 is taken to one near 2, or to one of at least 12, by x·Γ(x) = Γ(x + 1); a negative one by Γ(x)·Γ(-x) =
-π / (x·sin πx). There the series are Taylor's and Stirling's (NIST Digital Library of Mathematical Functions, 5.5, 5.7 and 5.11).
Results are within some units in the last place of the largest term, and so correctly rounded to float32 but near ties."""

from __future__ import annotations

import math
from fractions import Fraction
from functools import cache
from typing import Any

import torch

from tlrt.torch.routes.base import aten, route_by_double
from tlrt.torch.routes.double import (
    INFINITY,
    NAN,
    cos,
    log,
    log_pair,
    natural_pair,
    product_pair,
    series,
    sin,
    sum_pair,
)

#: from here on Stirling's series
_FAR = 12
_BERNOULLI = [Fraction(*f) for f in ((1, 6), (-1, 30), (1, 42), (-1, 30), (5, 66), (-691, 2730), (7, 6), (-3617, 510))]
_LOG_PI, _HALF_LOG_TAU = 1.1447298858494001741, 0.91893853320467274178
#: Γ'(2)
_SLOPE = 0.42278433509846713939


def _zeta_less_one(k: int) -> float:
    """ζ(k) - 1 by the formula of Euler and Maclaurin, in integers: every machine has its bits."""
    unit, n = 1 << 160, 64
    terms = [Fraction(1, n ** (k - 1) * (k - 1)), Fraction(1, 2 * n**k)]
    for j, b in enumerate(_BERNOULLI, 1):
        terms.append(b * math.prod(range(k, k + 2 * j - 1)) / math.factorial(2 * j) / n ** (k + 2 * j - 1))
    return float(Fraction(sum(unit // i**k for i in range(2, n)), unit) + sum(terms))


@cache
def _at_2() -> list[float]:
    """Taylor's coefficients at 2, without those of z and 1."""
    return [(-1) ** k * _zeta_less_one(k) / k for k in range(28, 1, -1)]


def _tail(y: Any, coefficients: Any) -> Any:
    """Of a series in 1/y², whose last coefficient is the first here."""
    r = 1.0 / y
    return r, series(r * r, [float(c) for c in coefficients])


def _sine_of_pi(x: Any) -> tuple[Any, Any]:
    """π times the distance from the nearest whole number, and its sine."""
    angle = (x - x.round()) * math.pi
    return angle, sin(angle)


def _positive_lgamma(x: Any) -> Any:
    far = x.clamp(min=float(_FAR), max=2.0**1023)
    high, low = natural_pair(*log_pair(far))
    # x·2^-60 keeps the parts of a product finite
    p = product_pair((far * 2.0**-60, 0.0), sum_pair((high, low), (-1.0, 0.0)))
    r, s = _tail(far, [b / (2 * k * (2 * k - 1)) for k, b in reversed(list(enumerate(_BERNOULLI, 1)))])
    stirling = p[0] * 2.0**60 + (p[1] * 2.0**60 + (r * s + (_HALF_LOG_TAU - 0.5 * high)))
    near = x.clamp(max=float(_FAR))
    whole = (near + 0.5).floor()
    z = near - whole
    factors = torch.where(whole == 0, near * (1.0 + near), near)
    above = torch.ones_like(near)
    for j in range(1, _FAR - 1):
        above = torch.where(whole - 2 >= j, above * (near - j), above)
    logarithm = log(torch.where(whole < 2, factors, above))
    taylor = z * _SLOPE + z * z * series(z, _at_2())
    return torch.where(x < _FAR, taylor + torch.where(whole < 2, -logarithm, logarithm), stirling)


@route_by_double(aten.lgamma.default)
def lgamma(x: Any) -> Any:
    size = x.abs()
    y = _positive_lgamma(size)
    below = x < 0
    # the sum of four logarithms is finite where the product of their arguments is not
    reflected = (_LOG_PI - log(_sine_of_pi(size)[1].abs())) - log(size.masked_fill(~below, 1.0)) - y
    y = torch.where(below, reflected, y).masked_fill(size == INFINITY, INFINITY)
    return torch.where(x != x, x, y)


def _moved(x: Any, power: int) -> tuple[Any, Any]:
    """x + n of at least _FAR, and the sum of (x + k)^-power for k < n."""
    total = torch.zeros_like(x)
    for k in range(_FAR):
        term = 1.0 / (x + k)
        total = total + (term if power == 1 else term * term).masked_fill(x + k >= _FAR, 0.0)
    return x + (_FAR - x).ceil().clamp(min=0.0), total


@route_by_double(aten.digamma.default)
def digamma(x: Any) -> Any:
    size = x.abs()
    y, total = _moved(size, 1)
    r, s = _tail(y, [b / (2 * k) for k, b in reversed(list(enumerate(_BERNOULLI, 1)))])
    y = (log(y) - (0.5 * r + r * r * s)) - total
    angle, sine = _sine_of_pi(size)
    # the sum of 1 / x and of π·cot πx where x < 0
    reflected = (y + math.pi * (cos(angle) / sine)) + 1.0 / size
    y = torch.where(x < 0, reflected.masked_fill(sine == 0, NAN), y).masked_fill(size == INFINITY, INFINITY)
    y = torch.where(x == 0, -(1.0 / x), y.masked_fill(x == -INFINITY, NAN))
    return torch.where(x != x, x, y)


def trigamma(x: Any) -> Any:
    size = x.abs()
    y, total = _moved(size, 2)
    r, s = _tail(y, reversed(_BERNOULLI))
    y = total + (r + (0.5 * r * r + r * r * r * s))
    sine, inverse = _sine_of_pi(size)[1] * (1 / math.pi), 1.0 / size
    reflected = 1.0 / (sine * sine) + (inverse * inverse - y)
    y = torch.where(x < 0, reflected.masked_fill(sine == 0, INFINITY), y).masked_fill(size < 2.0**-512, INFINITY)
    y = y.masked_fill(x == INFINITY, 0.0).masked_fill(x == -INFINITY, NAN)
    return torch.where(x != x, x, y)


@route_by_double(aten.polygamma.default)
def polygamma(n: int, x: Any) -> Any:
    if n == 0:
        return digamma(x)
    if n != 1:
        raise NotImplementedError("a derivative beyond the second")
    return trigamma(x)
