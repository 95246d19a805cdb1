"""Errors of the functions of scipy.special, known by the names of its ufuncs: whoever calls one has imported it."""

import sys
from collections.abc import Callable
from typing import Any

import numpy as np

from tlspec.running.arithmetic import multiply, where
from tlspec.running.array import UFUNCS, ErrorArray
from tlspec.running.elementary import bounded_slope, monotone_rule
from tlspec.running.model import Model

#: monotone functions, and where they are defined
MONOTONE: dict[str, tuple[float, float]] = {
    **dict.fromkeys(("erf", "erfc", "erfcx", "erfi", "expit", "log_expit", "ndtr", "log_ndtr"), (-np.inf, np.inf)),
    "erfinv": (-1.0, 1.0), "erfcinv": (0.0, 2.0), "logit": (0.0, 1.0), "ndtri": (0.0, 1.0),
}  # fmt: skip


def function(name: str) -> Callable[..., Any]:
    """A function of scipy.special on plain arrays."""
    return lambda *args: getattr(sys.modules["scipy.special"], name)(*args)


def _right_of(low: float, slope: Callable[[Any, Any], Any]) -> Callable[[Any, Any], Any]:
    """A slope that is known for arguments above `low`."""
    return lambda v, d: np.where(v - d > low, slope(v - d, v + d), np.inf)


def _times_log(log: str) -> Callable[..., Any]:
    """x·log(y), and 0 where x is."""

    def rule(m: Model, x: Any, y: Any) -> Any:
        return where(np.equal(x, 0), 0.0, multiply(m, x, UFUNCS[log](m, y)))

    return rule


def _entropy(m: Model, x: Any) -> Any:
    """-x·log(x)."""
    inside = where(np.greater(x, 0), x, 1.0)
    made = multiply(m, np.negative(inside), UFUNCS["log"](m, inside))
    return where(np.less(x, 0), -np.inf, where(np.equal(x, 0), 0.0, made))


_psi, _gamma, _i0, _i1 = (function(n) for n in ("psi", "gamma", "i0", "i1"))


def _steepest(f: Callable[[Any], Any]) -> Callable[[Any, Any], Any]:
    """The slope of a convex function whose derivative is f, over an interval."""
    return lambda low, high: np.maximum(np.abs(f(low)), np.abs(f(high)))


SLOPES: dict[str, Callable[[Any, Any], Any]] = {
    "gammaln": _right_of(0.0, _steepest(_psi)),
    "gamma": _right_of(0.0, _steepest(lambda x: _gamma(x) * _psi(x))),
    "psi": _right_of(0.0, lambda low, high: function("polygamma")(1, low)),
    "i0": lambda v, d: _i1(np.abs(v) + d),
    "i1": lambda v, d: _i0(np.abs(v) + d),
    "i0e": lambda v, d: 1.0,
    "i1e": lambda v, d: 1.0,
    "j0": lambda v, d: 0.6,
    "j1": lambda v, d: 0.5,
}
UFUNCS.update({n: monotone_rule(n, function(n), *ends) for n, ends in MONOTONE.items()})
UFUNCS.update({n: bounded_slope(n, function(n), slope) for n, slope in SLOPES.items()})
UFUNCS.update(
    {
        "xlogy": _times_log("log"),
        "xlog1py": _times_log("log1p"),
        "entr": _entropy,
        "exp10": monotone_rule("exp10", function("exp10")),
    }
)
__all__ = ["MONOTONE", "SLOPES", "ErrorArray"]
