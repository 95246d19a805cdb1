"""Geometry classes: how the sizes and parameters of a call lie to each other and to the tiles of the kernels.

A class is a predicate over dimensions, parameters and arrays by their names. A row declares its classes by name; "edges" cases
aim at them (:mod:`tlspec.drawn`), and a verify run reports which were reached."""

import operator
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from typing import Any

from tlspec import boundaries
from tlspec.bounds import call_named

Classes = dict[str, Callable[..., bool]]


def boundary(family: str, name: str) -> int:
    """A constant of the family's CPU kernels; the largest of its values."""
    return max(boundaries.CPU[family][name])


@dataclass(frozen=True)
class Near:
    """A class about a boundary: the draw aims next to it, and where `length` is given best at one of the lengths `parts`."""

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


def derived(classes: Classes, more: Callable[[dict[str, Any]], dict[str, Any]]) -> Classes:
    """The classes of a row for one with other names: `more` gives the values of theirs from its own."""

    def renamed(f: Callable[..., Any]) -> Callable[..., Any]:
        return lambda **values: call_named(f, {**values, **more(values)})

    return {
        n: replace(f, test=renamed(f.test), length=f.length and renamed(f.length))
        if isinstance(f, Near)
        else renamed(f)
        for n, f in classes.items()
    }


def on_two_axes(classes: Classes) -> Classes:
    """The classes of a row with lists, for one whose axes are h and w."""
    lists = {"spatial": "in", "kernel": "kernel", "stride": "stride", "padding": "padding"}
    return derived(classes, lambda v: {to: [v[f"{n}_h"], v[f"{n}_w"]] for to, n in lists.items()})


#: those of elementwise rows, over the number n of elements
ELEMENTWISE = tiles("elements", lambda n: n, boundary("elementwise", "TL_SPAN"))
