"""What the probe asks of one sum: a function from rows of summands to how many ones survive.

A :class:`Query` fixes the shapes of one call, since shapes decide the order of a sum; only the summands change from call to
call. ``height`` is what the row's bound assumes for these shapes and ``extra`` the roundings among it that are no additions
of the sum itself: products, the quotient of a mean, the bias.
"""

import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from audit.trees import HUGE
from tlrt.verify.run import Runtime
from tlspec import registry
from tlspec.bounds import call_named
from tlspec.expressions import evaluate

#: summand rows of one call where the shape leaves them free
ROWS = 64


class Calls:
    """Entry points of one device on NumPy arrays."""

    def __init__(self, runtime: Runtime):
        self.runtime = runtime

    def __call__(self, name: str, arrays: Mapping[str, Any], values: Mapping[str, Any]) -> list[np.ndarray]:
        """The outputs, flat. float32 arrays become device buffers, those of other types stay on the host."""
        placed: dict[str, Any] = {}
        for k, a in arrays.items():
            placed[k] = self.runtime.upload(np.ascontiguousarray(a)) if a is not None and a.dtype == np.float32 else a
        results = self.runtime.call(name, placed, values)
        results = list(results) if isinstance(results, (list, tuple)) else [results]
        outs = [np.asarray(r) if isinstance(r, np.ndarray) else r.numpy() for r in results]
        for b in [*placed.values(), *results]:
            if hasattr(b, "release"):
                b.release()
        return outs


@dataclass(frozen=True)
class Query:
    """One shape of one operation. ``sums(X)`` takes (rows, leaves) summands and returns the (rows,) sums; of positive
    summands it returns a number that is larger where the sum is."""

    leaves: int
    rows: int
    height: int
    extra: int
    sums: Callable[[np.ndarray], np.ndarray]
    values: dict[str, Any] = field(default_factory=dict)
    dtype: type = np.float32

    def meet(self, pairs: np.ndarray) -> np.ndarray:
        """Sizes of the nodes where pairs of leaves meet."""
        out = np.empty(len(pairs), np.int64)
        for first in range(0, len(pairs), self.rows):
            part = pairs[first : first + self.rows]
            x: np.ndarray = np.ones((self.rows, self.leaves), self.dtype)
            at = np.arange(len(part))
            x[at, part[:, 0]], x[at, part[:, 1]] = HUGE, -HUGE
            survivors = np.asarray(self.sums(x), np.float64)[: len(part)]
            out[first : first + self.rows] = self.leaves - np.rint(np.where(np.isfinite(survivors), survivors, -1))
        return out


@dataclass(frozen=True)
class Target:
    """An operation's sum. ``build(calls, n)`` gives its query of about n leaves; None where the shape cannot be."""

    op: str
    what: str
    build: Callable[[Calls, int], Query | None]
    #: leaves that make sense; None: the campaign's sizes
    sizes: tuple[int, ...] | None = None


TARGETS: list[Target] = []


def declared(op: str, which: str, **values: Any) -> Any:
    """The height that a row's bound uses (:func:`tlspec.bounds.tree`, :func:`tlspec.bounds.ordered`)."""
    row = registry.get(op)
    if row.forward is not None:
        values = {n: evaluate(e, values) for n, e in row.forward.arguments.items()}
        row = row.forward.of
    bound = row.bound_of(which)
    function: Any = bound.function
    height = inspect.getclosurevars(function).nonlocals.get("height")
    if height is None:
        raise ValueError(f"{op}: the bound {bound.text!r} has no height")
    return call_named(height, values)


def add_target(
    op: str, what: str, values: Callable[..., dict[str, Any]], arrays: Callable[..., dict[str, Any]], *,
    gradient: bool = False, output: int = 0, height: Callable[[int], int] | None = None,
    extra: int | Callable[[int], int] = 0, rows: int = ROWS, leaves: Callable[..., int] = lambda n: n, least: int = 0,
    read: Callable[[np.ndarray, np.ndarray], np.ndarray] = lambda y, x: y, dtype: type = np.float32, **options: Any,
) -> None:  # fmt: skip
    """Enters a sum into :data:`TARGETS`. ``values(n)`` are dimensions and parameters for n summands, at least `least`;
    ``arrays(x, values)`` the arguments with the (rows, n) summands x among them; ``read(y, x)`` makes the (rows,) sums of
    the flat result y, number `output` of the forward function or the gradient. Without `height` it is the declared one."""
    name, which = (f"{op}_bwd", "vjp") if gradient else (op, "forward")

    def build(k: Calls, n: int) -> Query | None:
        if n < least:
            return None
        v = values(n)
        high = declared(op, which, **v) if height is None else height(n)
        high = high[output] if isinstance(high, tuple) else high
        others = extra(n) if callable(extra) else extra
        return Query(leaves(n), rows, high, others, lambda x: read(k(name, arrays(x, v), v)[output], x), v, dtype)

    TARGETS.append(Target(op, what, build, **options))


def ones(*shape: int) -> np.ndarray:
    """Ones in float32."""
    return np.ones(shape, np.float32)


def columns_of(x: np.ndarray) -> np.ndarray:
    """The transpose, stored."""
    return np.ascontiguousarray(x.T)


def same(y: np.ndarray) -> np.ndarray:
    """The first column of results that must all be the same."""
    if not np.array_equal(y, np.broadcast_to(y[:, :1], y.shape), equal_nan=True):
        raise ValueError("results that sum the same numbers in the same shape differ")
    return y[:, 0]
