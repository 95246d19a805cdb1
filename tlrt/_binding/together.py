"""Attributes that change together, whatever interrupts the program."""

import operator
from collections.abc import Callable
from itertools import chain, filterfalse, starmap, tee
from typing import Any

from tlrt._binding.library import load

#: an attribute's new value: the object, the attribute's name, the value
Change = tuple[object, str, Any]
#: a function and its argument
Call = tuple[Callable[[Any], Any], Any]


def set_and_call(changes: list[Change], calls: list[Call]) -> Any:
    """Sets attributes that are slots or lie in an object's dict, and makes calls of C, all in one call of C: it runs no bytecode,
    so no signal handler that raises and no other thread comes between. What they had before is in the list until all is done,
    as a finaliser lets others run. Returns the last call's result, None without one."""
    acts = starmap(getattr, changes), starmap(object.__setattr__, changes), starmap(operator.call, calls)
    return [None, *chain.from_iterable(acts)][-1]


def release_call(buffer: Any) -> Call:
    """The call that gives a buffer back, of C where the buffer is a device's."""
    if type(buffer).__name__ == "Buffer":
        return load().lib.torchlean_cuda_buffer_release, buffer._handle
    return type(buffer).release, buffer


def call_and_set(change: Change, function: Callable[..., int], *arguments: Any) -> int:
    """Calls C, and sets an attribute where C returns 0, as one act: iterators of C do both, and between them there is no
    bytecode at which a signal handler could raise or another thread go on."""
    statuses, kept = tee(starmap(function, (arguments,)))
    list(starmap(object.__setattr__, map({0: change}.__getitem__, filterfalse(None, statuses))))
    return next(kept)
