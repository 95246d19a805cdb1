"""Error functions and Bessel functions in float64, from functions of ``double``."""

from __future__ import annotations

import math
from typing import Any

import torch

from tlrt.torch.routes.base import aten, route_by_double
from tlrt.torch.routes.double import INFINITY, erf, exp, exp_of_minus_square, laplace_fraction, log, log1p, sqrt

#: from here on error functions are those of the continued fraction
_FAR = 1.5
#: and Bessel functions their asymptotic series
_FAR_BESSEL = 25.0


def _scaled_erfc(x: Any) -> Any:
    """e^(x²)·erfc(x) of x ≥ _FAR."""
    return (1 / math.sqrt(math.pi)) / laplace_fraction(x, 96)


@route_by_double(aten.erfc.default)
def erfc(x: Any) -> Any:
    far = x.abs().clamp(_FAR, 28.0)
    tail = exp_of_minus_square(far) * _scaled_erfc(far)
    return torch.where(x >= _FAR, tail, torch.where(x <= -_FAR, 2.0 - tail, 1.0 - erf(x)))


@route_by_double(aten.special_erfcx.default)
def erfcx(x: Any) -> Any:
    return torch.where(x >= _FAR, _scaled_erfc(x.clamp(min=_FAR)), exp(x * x) * erfc(x))


@route_by_double(aten.special_log_ndtr.default)
def log_ndtr(x: Any) -> Any:
    t = x * math.sqrt(0.5)
    below = log(0.5 * _scaled_erfc((-t).clamp(min=_FAR))) - 0.5 * (x * x)
    near = torch.where(x < 0, log(0.5 * erfc(-t.clamp(max=0.0))), log1p(-0.5 * erfc(t)))
    return torch.where(t <= -_FAR, below, near)


@route_by_double(aten.special_entr.default)
def entr(x: Any) -> Any:
    return torch.where(x > 0, -x * log(x), (x * 0.0).masked_fill(x < 0, -INFINITY))


# ---- modified Bessel functions (NIST Digital Library of Mathematical Functions, 10.25.2 and 10.40.1) ---------------------------


def _series_of(order: int, size: Any) -> Any:
    near = size.clamp(max=_FAR_BESSEL)
    quarter = 0.25 * near * near
    total = torch.ones_like(near)
    for k in range(60, 0, -1):
        total = 1.0 + quarter * (1 / (k * (k + order))) * total
    return total * (0.5 * near) if order else total


def _asymptotic(order: int, size: Any) -> Any:
    """e^-x·I(x)"""
    far = size.clamp(min=_FAR_BESSEL)
    inverse, total = 1.0 / far, torch.ones_like(far)
    for k in range(30, 0, -1):
        total = 1.0 + (((2 * k - 1) ** 2 - 4 * order**2) / (8 * k)) * inverse * total
    return total / sqrt(far * (2 * math.pi))


def _bessel(order: int, x: Any, scaled: bool) -> Any:
    size = x.abs()
    near, far = _series_of(order, size), _asymptotic(order, size)
    # e^x overflows before the function does
    half = exp(0.5 * size)
    near, far = (near * exp(-size), far) if scaled else (near, (half * far) * half)
    y = torch.where(size < _FAR_BESSEL, near, far).masked_fill(size == INFINITY, 0.0 if scaled else INFINITY)
    y = y.copysign(x) if order else y
    return torch.where(x != x, x, y)


@route_by_double(aten.i0.default)
def i0(x: Any) -> Any:
    return _bessel(0, x, False)


@route_by_double(aten.special_i0e.default)
def i0e(x: Any) -> Any:
    return _bessel(0, x, True)


@route_by_double(aten.special_i1.default)
def i1(x: Any) -> Any:
    return _bessel(1, x, False)


@route_by_double(aten.special_i1e.default)
def i1e(x: Any) -> Any:
    return _bessel(1, x, True)
