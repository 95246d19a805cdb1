"""What owns memory of a device and must have one owner."""

from __future__ import annotations

from typing import Any

from tlrt.errors import ArgumentTypeError

__all__ = ["Uncopied"]


class Uncopied:
    """Cannot be copied or pickled: releasing one of two copies would take the memory from the other. Raises
    ArgumentTypeError."""

    __slots__ = ()

    def __reduce__(self) -> Any:
        raise ArgumentTypeError(
            f"{type(self).__name__}: got one to pickle or copy, expected the object itself, or a new one: it owns memory"
        )
