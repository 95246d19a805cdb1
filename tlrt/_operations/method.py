"""An operation of a session as a method of its first operand."""

import inspect
from collections.abc import Callable
from typing import Any, Concatenate, Generic, ParamSpec, Protocol

from tlrt._operations.base import Ref

_P = ParamSpec("_P")


class Operand(Generic[Ref]):
    """What has operations as methods, which give a Ref."""

    __slots__ = ()


class Method(Protocol[_P]):
    """What a type checker sees: a method with the operation's other parameters."""

    def __get__(self, operand: Operand[Ref], owner: Any) -> Callable[_P, Ref]: ...


def as_method(function: Callable[Concatenate[Any, Any, _P], Any]) -> Method[_P]:
    """The method: it calls the session's operation of the function's name."""
    name = function.__name__

    def call(self: Any, *arguments: Any, **options: Any) -> Any:
        return getattr(self.session, name)(self, *arguments, **options)

    first, *others = list(inspect.signature(function).parameters.values())[1:]
    call.__signature__ = inspect.Signature([first.replace(name="self", annotation=first.empty), *others])  # type: ignore[attr-defined]
    call.__name__, call.__qualname__, call.__doc__ = name, f"Arithmetic.{name}", function.__doc__
    return call
