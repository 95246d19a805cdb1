"""Public callables say in NumPy's style what they take and return, and their examples run.

Public is what a module lists in ``__all__``, with the methods of its classes. A module without ``__all__`` is a part of its
package, which lists what is public of it.
"""

import ast
import doctest
import importlib
import inspect
import pkgutil
import re
from collections.abc import Iterator
from contextlib import suppress
from functools import cache
from types import FunctionType, ModuleType
from typing import Any

import numpy as np
import pytest

import tlrt
import tlspec
from tlrt import kernels

pytestmark = pytest.mark.every_choice

#: examples that the test must find; fewer means that it looks at the wrong place
MIN_EXAMPLES = 150
#: packages that an example needs besides NumPy, by the module that it stands in
NEEDS = {"tlrt.torch": "torch", "tlrt.jax": "jax", "tlrt.onnx": "onnx"}


def public_modules() -> Iterator[ModuleType]:
    """The modules of the packages without a leading underscore in their names, but those that need what is not installed."""
    for package in (tlrt, tlspec):
        yield package
        for found in pkgutil.walk_packages(package.__path__, f"{package.__name__}."):
            if any(part.startswith("_") for part in found.name.split(".")):
                continue
            with suppress(ModuleNotFoundError):  # PyTorch's, JAX's
                yield importlib.import_module(found.name)


def _is_ours(thing: Any) -> bool:
    return (getattr(thing, "__module__", None) or "").partition(".")[0] in ("tlrt", "tlspec")


def _members(kind: type) -> Iterator[tuple[str, Any]]:
    """The public methods of a class, those that it inherits from classes of ours too."""
    for name in dir(kind):
        owner = next((base for base in kind.__mro__ if name in vars(base)), None)
        if (
            name.startswith("_")
            or owner is None
            or not _is_ours(owner)
            or name in getattr(kind, "__dataclass_fields__", ())
        ):
            continue
        member = vars(owner)[name]
        member = member.__func__ if isinstance(member, (staticmethod, classmethod)) else member
        if callable(member) and isinstance(inspect.unwrap(member), FunctionType):
            yield name, member


@cache
def public_callables() -> dict[str, Any]:
    """Functions, classes with a constructor of their own, and methods, by the first name that they are found under."""
    found: dict[int, tuple[str, Any]] = {}
    for module in public_modules():
        for name in getattr(module, "__all__", ()):
            thing = getattr(module, name)
            where = f"{module.__name__}.{name}"
            if not _is_ours(thing) or isinstance(thing, ModuleType):
                continue
            if inspect.isclass(thing):
                found.setdefault(id(thing), (where, thing))
                for method, function in _members(thing):
                    found.setdefault(id(inspect.unwrap(function)), (f"{where}.{method}", function))
            elif isinstance(inspect.unwrap(thing), FunctionType):
                found.setdefault(id(inspect.unwrap(thing)), (where, thing))
    return dict(found.values())


def sections(doc: str) -> dict[str, str]:
    """The sections of a docstring in NumPy's style, by their titles."""
    parts = re.split(r"^([A-Z][A-Za-z ]+)\n-{3,}\n", doc, flags=re.M)
    return dict(zip(parts[1::2], parts[2::2], strict=True))


def named(section: str) -> set[str]:
    """The names that a section describes."""
    heads = re.findall(r"^(\S[^:\n]*?)(?: :.*)?$", section, re.M)
    return {name.strip().lstrip("*") for head in heads for name in head.split(",")}


def parameters(thing: Any) -> list[str]:
    """The parameters that a caller gives."""
    if inspect.isclass(thing):
        makers = [base for base in thing.__mro__ if "__init__" in vars(base) or "__new__" in vars(base)]
        if not makers or not _is_ours(makers[0]) or (issubclass(thing, BaseException) and makers[0] is not thing):
            return []  # exceptions are raised here, and their base says what its constructor takes
    try:
        given = inspect.signature(thing).parameters.values()
    except ValueError:
        return []
    return [p.name for p in given if p.name not in ("self", "cls") and not p.name.startswith("_")]


def returns(thing: Any) -> bool:
    """Whether a caller gets something."""
    if inspect.isclass(thing):
        return False
    return inspect.signature(inspect.unwrap(thing)).return_annotation not in (
        inspect.Signature.empty,
        None,
        "None",
        "NoReturn",
    )


def problems(name: str, thing: Any) -> Iterator[str]:
    doc = inspect.getdoc(thing) or ""
    if not doc:
        yield f"{name} has no docstring"
        return
    found = sections(doc)
    if inspect.isclass(thing) and "__init__" in vars(thing):
        found = {**sections(inspect.getdoc(thing.__init__) or ""), **found}
    told = named("\n".join(found.get(title, "") for title in ("Parameters", "Other Parameters", "Attributes")))
    if missing := [p for p in parameters(thing) if p not in told]:
        yield f"{name} has no section Parameters for {', '.join(missing)}"
    if extra := sorted(named(found.get("Parameters", "")) - {*parameters(thing)}):
        yield f"{name} describes {', '.join(extra)}, which it does not take"
    known = {} if not told else inspect.signature(thing).parameters
    for names, text in re.findall(
        r"^(\S[^:\n]*?) : .*, default (-?[\d.e-]+|'\w*'|[A-Z]\w+)$", found.get("Parameters", ""), re.M
    ):
        for parameter in names.split(", "):
            if repr(known[parameter].default) != text and known[parameter].default != ast.literal_eval(text):
                yield f"{name} has {parameter} = {known[parameter].default}, where its description says {text}"
    if returns(thing) and not found.keys() & {"Returns", "Yields"}:
        yield f"{name} has no section Returns"


def test_public_callables_describe_what_they_take_and_return() -> None:
    found = [line for name, thing in sorted(public_callables().items()) for line in problems(name, thing)]
    assert found == [], f"{len(found)} gaps:\n" + "\n".join(found)


def examples() -> Iterator[doctest.DocTest]:
    """The examples of modules, classes, methods and functions; one that several things show is there once."""
    parser, known = doctest.DocTestParser(), set()
    things: dict[str, Any] = {m.__name__: m for m in public_modules()} | public_callables()
    for module in public_modules():  # what it does not list has examples, too
        own = [thing for thing in vars(module).values() if getattr(thing, "__module__", "") == module.__name__]
        things |= {f"{module.__name__}.{thing.__name__}": thing for thing in own if isinstance(thing, FunctionType)}
    for name, thing in things.items():
        doc = inspect.getdoc(thing) or ""
        if ">>>" in doc:
            names = {"np": np, "tlrt": tlrt, "tlspec": tlspec, "kernels": kernels, "cpu": tlrt.device("cpu")}
            names[name.rpartition(".")[2]] = thing
            found = parser.get_doctest(doc, names, name, None, 0)
            if (source := tuple(example.source for example in found.examples)) not in known:
                known.add(source)
                yield found


def test_examples_run(tmp_path: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each in a folder of its own, with the names that the documentation says are there."""
    monkeypatch.chdir(tmp_path)
    runner, told, count = doctest.DocTestRunner(optionflags=doctest.ELLIPSIS), [], 0
    for example in examples():
        needed = next((package for module, package in NEEDS.items() if example.name.startswith(module)), None)
        if needed is None or importlib.util.find_spec(needed) is not None:
            runner.run(example, out=told.append)
            count += 1
    assert not told, "".join(told)
    assert count >= MIN_EXAMPLES
