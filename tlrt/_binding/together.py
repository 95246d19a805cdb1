"""Attributes that change together, whatever interrupts the program."""

from itertools import starmap
from typing import Any

#: an attribute's new value: the object, the attribute's name, the value
Change = tuple[object, str, Any]


def set_together(changes: list[Change]) -> None:
    """Sets attributes that are slots or lie in an object's dict, all in one call of C: it runs no bytecode, so no signal handler
    that raises and no other thread comes between. The caller holds what they had before, as a finaliser runs bytecode."""
    list(starmap(setattr, changes))
