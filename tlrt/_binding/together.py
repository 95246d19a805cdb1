"""Attributes that change together, whatever interrupts the program."""

from collections.abc import Callable
from itertools import filterfalse, starmap, tee
from typing import Any

#: an attribute's new value: the object, the attribute's name, the value
Change = tuple[object, str, Any]


def set_together(changes: list[Change]) -> None:
    """Sets attributes that are slots or lie in an object's dict, all in one call of C: it runs no bytecode, so no signal handler
    that raises and no other thread comes between. The caller holds what they had before, as a finaliser runs bytecode."""
    list(starmap(setattr, changes))


def call_and_set(change: Change, function: Callable[..., int], *arguments: Any) -> int:
    """Calls C, and sets an attribute where C returns 0, as one act: iterators of C do both, and between them there is no
    bytecode at which a signal handler could raise or another thread go on."""
    statuses, kept = tee(starmap(function, (arguments,)))
    list(starmap(setattr, map({0: change}.__getitem__, filterfalse(None, statuses))))
    return next(kept)
