"""Geometry classes: how the sizes and parameters of a call lie to each other.

A class is a predicate over dimensions, parameters and arrays by their names. A row declares its classes by name; without any
it has those of its signature (:func:`default_classes`). "edges" cases aim at classes, and verify reports which were
reached."""

import operator
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any

from tlspec.bounds import call_named
from tlspec.signature import Signature

Classes = dict[str, Callable[..., bool]]
#: lengths by name, each a function of dimensions and parameters by their names
Lengths = dict[str, Callable[..., int]]


@dataclass(frozen=True)
class Near:
    """A class about a size: the draw aims next to it, and where `length` is given best at one of the lengths `parts`."""

    test: Callable[..., bool]
    size: int
    length: Callable[..., int] | None = None
    parts: tuple[int, ...] = ()

    def __call__(self, **values: Any) -> bool:
        return bool(call_named(self.test, values))


def tiles(what: str, length: Callable[..., int], size: int) -> Classes:
    """Whether a length is less than a tile, whole tiles, or more than one with a rest."""

    def holds(test: Callable[[int], bool], *parts: int) -> Near:
        return Near(lambda **values: test(call_named(length, values)), size, length, parts)

    return {
        f"{what} below {size}": holds(lambda n: 0 < n < size, size - 1),
        f"{what} whole multiples of {size}": holds(lambda n: n >= size and n % size == 0, size, 2 * size),
        f"{what} above {size} with a rest": holds(lambda n: n > size and n % size != 0, size + 1),
    }


def default_classes(signature: Signature) -> Classes:
    """Of a signature with several dimensions: each is 1 and another is not, and each is longer than the others."""
    names = [d for d in signature.dims if not d.startswith("*")]
    if len(names) < 2 or signature.lists:
        return {}

    def of(name: str, test: Callable[[int, Sequence[int]], bool]) -> Callable[..., bool]:
        return lambda **v: min(v[n] for n in names) > 0 and test(v[name], [v[n] for n in names if n != name])

    return {
        **{f"{name} = 1": of(name, lambda n, others: n == 1 < max(others)) for name in names},
        **{f"{name} longest": of(name, lambda n, others: n > max(others)) for name in names},
    }


def _some(test: Callable[..., bool], *lists: Iterable[int]) -> bool:
    return any(map(test, *lists))


#: windows that slide over axes
WINDOWS: Classes = {
    "stride < kernel": lambda kernel, stride: _some(operator.lt, stride, kernel),
    "stride = kernel": lambda kernel, stride: _some(lambda s, k: s == k > 1, stride, kernel),
    "stride > kernel": lambda kernel, stride: _some(operator.gt, stride, kernel),
    "no padding": lambda padding: not any(padding),
    "padding up to half the kernel": lambda kernel, padding: _some(lambda p, k: 0 < 2 * p <= k, padding, kernel),
    "padding above half the kernel": lambda kernel, padding: _some(lambda p, k: k < 2 * p < 2 * k, padding, kernel),
    "a window of padding alone": lambda kernel, padding: _some(lambda p, k: p >= k, padding, kernel),
}


def renamed(f: Callable[..., Any], more: Callable[[dict[str, Any]], dict[str, Any]]) -> Callable[..., Any]:
    """A function of the names of one row for a row with others: `more` gives the values of the former from the latter's."""
    return lambda **values: call_named(f, {**values, **more(values)})


def derived(classes: Classes, more: Callable[[dict[str, Any]], dict[str, Any]]) -> Classes:
    """The classes of a row for one with other names, as :func:`renamed`."""
    return {
        n: replace(f, test=renamed(f.test, more), length=f.length and renamed(f.length, more))
        if isinstance(f, Near)
        else renamed(f, more)
        for n, f in classes.items()
    }
