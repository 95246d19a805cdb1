"""An operation of a session as a method of its first operand."""

import inspect
import re
from collections.abc import Callable
from typing import Any, Concatenate, Generic, ParamSpec, Protocol

from tlrt._operations.base import Ref
from tlrt._operations.names import explain_type_error

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
        try:
            return getattr(self.session, name)(self, *arguments, **options)
        except TypeError as error:
            if (better := explain_type_error(error, function, name, 2, options)) is error:
                raise
            raise better from None

    first, *others = list(inspect.signature(function).parameters.values())[1:]
    call.__signature__ = inspect.Signature([first.replace(name="self", annotation=first.empty), *others])  # type: ignore[attr-defined]
    call.__name__, call.__qualname__ = name, f"Arithmetic.{name}"
    call.__doc__ = _without_parameter(inspect.getdoc(function) or "", first.name)
    return call


def _without_parameter(doc: str, name: str) -> str:
    """A docstring without the parameter that the tensor itself is; without the section where there is no other."""
    head, title, rest = doc.partition("Parameters\n----------\n")
    section, gap, tail = rest.partition("\n\n")
    entries = re.split(r"\n(?=\S)", section)
    kept = []
    for entry in entries:
        names, colon, told = entry.partition(" : ")
        if others := ", ".join(n for n in names.split(", ") if n.lstrip("*") != name or n.startswith("*")):
            kept.append(f"{others}{colon}{told}")
    return head + (title + "\n".join(kept) + gap if kept else "") + tail
