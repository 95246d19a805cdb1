"""How a kernel gets into a process of its own: by the names of its module and function, or as code with what it refers to.

A module that imports :mod:`tlspec` is not imported there if the kernel can be sent without it, since what such a module does
with the specification cannot be done there. Every way is tried in turn until one loads.
"""

import ctypes
import dis
import io
import marshal
import pickle
import sys
import types
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from tlspec.judge.runner import fill_function, is_installed, make_cell, make_function, make_library, named

try:
    from cloudpickle import Pickler as _Base  # classes of scripts, too
except ImportError:
    from pickle import Pickler as _Base


class _Pickler(_Base):  # type: ignore[misc]
    """Pickles functions: those of installed modules by name, others by name or, with `by_value`, as code."""

    def __init__(self, file: io.BytesIO, by_value: bool):
        super().__init__(file, protocol=5)
        self.by_value = by_value

    def reducer_override(self, x: Any) -> Any:
        if isinstance(x, types.ModuleType):
            if x.__name__ == "__main__" and self.by_value:
                raise pickle.PicklingError("it refers to the module __main__")
            return named, (x.__name__, "")
        if isinstance(x, types.CellType):
            return make_cell, ()
        if isinstance(x, ctypes.CDLL):
            known = {n: (f.argtypes, f.restype) for n, f in vars(x).items() if isinstance(f, x._FuncPtr)}
            return make_library, (type(x), x._name, known)
        if isinstance(x, types.FunctionType):
            if x.__module__ == named.__module__:
                return NotImplemented
            if x.__module__.partition(".")[0] == "tlspec":
                return named, (x.__module__, x.__qualname__)  # a placeholder there
            module = sys.modules.get(x.__module__)
            if _found(module, x) and (not self.by_value or is_installed(getattr(module, "__file__", None))):
                return named, (x.__module__, x.__qualname__)
            return self._code_of(x)
        return super().reducer_override(x) if hasattr(_Base, "reducer_override") else NotImplemented

    def _code_of(self, x: types.FunctionType) -> Any:
        module = sys.modules.get(x.__module__)
        own = self.by_value and not is_installed(getattr(module, "__file__", None))
        cells = x.__closure__ or ()
        state = {
            "names": (x.__name__, x.__qualname__, x.__module__), "defaults": (x.__defaults__, x.__kwdefaults__),
            "attributes": x.__dict__,
            "cells": [(c, _contents(c)) for c in cells],
            "globals": {n: x.__globals__[n] for n in _globals_of(x.__code__) if n in x.__globals__} if own else {},
        }  # fmt: skip
        return make_function, (marshal.dumps(x.__code__), x.__module__, own, cells), state, None, None, fill_function


def _contents(cell: types.CellType) -> tuple[Any, ...]:
    try:
        return (cell.cell_contents,)
    except ValueError:  # nothing was assigned yet
        return ()


def _globals_of(code: types.CodeType) -> set[str]:
    found = {i.argval for i in dis.get_instructions(code) if i.opname in ("LOAD_GLOBAL", "LOAD_NAME", "STORE_GLOBAL")}
    return found.union(*(_globals_of(c) for c in code.co_consts if isinstance(c, types.CodeType)))


def _found(module: types.ModuleType | None, x: types.FunctionType) -> bool:
    found: Any = module
    for part in x.__qualname__.split("."):
        found = getattr(found, part, None)
    return found is x and module is not None


def _pickled(x: Any, by_value: bool) -> bytes:
    file = io.BytesIO()
    _Pickler(file, by_value).dump(x)
    return file.getvalue()


def name_of(function: Any) -> tuple[str, str] | None:
    """The module and the name under which a function, or another callable object, is found."""
    for module in (getattr(function, "__module__", None), "__main__"):
        names = vars(sys.modules.get(module or "", types.ModuleType(""))).items()
        found = next((n for n, x in names if x is function), None)
        if found is not None:
            return module or "", found
    return None


def script_line() -> tuple[str, int | None] | None:
    """The user's script, and its line that runs now, where that is at the top level."""
    main = sys.modules["__main__"]
    file, line, frame = getattr(main, "__file__", None), None, sys._getframe(1)
    while frame is not None:
        if frame.f_globals is main.__dict__ and frame.f_code.co_name == "<module>":
            line = frame.f_lineno
        frame = frame.f_back  # type: ignore[assignment]
    return None if file is None or is_installed(file) or not file.endswith(".py") else (file, line)


def _uses_specification(module: types.ModuleType | None) -> bool:
    """Whether a module has names of this package."""
    objects = vars(module).values() if module is not None else ()
    names = (getattr(x, "__name__" if isinstance(x, types.ModuleType) else "__module__", "") for x in objects)
    return any(isinstance(n, str) and n.partition(".")[0] == "tlspec" for n in names)


def ways(kernels: Sequence[tuple[Callable[..., Any] | str, Callable[..., Any] | None]]) -> Iterator[dict[str, Any]]:
    """The ways in which functions with the adapters of their arguments can be sent together, the best first: what
    :func:`tlspec.judge.server.load` takes. Raises what pickling raises after the last."""
    objects, script = [f for f, _ in kernels if not isinstance(f, str)], script_line()
    modules = [sys.modules.get(getattr(f, "__module__", None) or "") for f in objects]
    errors: list[Exception] = []
    first = not objects or any(m is sys.modules["__main__"] or _uses_specification(m) for m in modules)
    tried = (first, not first) if objects else (True,)
    for by_value in tried:
        try:
            places = [f if isinstance(f, str) else None if by_value else name_of(f) for f, _ in kernels]
            sent = [(None if place else f, adapter) for (f, adapter), place in zip(kernels, places, strict=True)]
            whole = _pickled(sent, by_value)
            needed = b"__main__" in whole or any(p[0] == "__main__" for p in places if isinstance(p, tuple))
            way: dict[str, Any] = {"pickle": whole, "places": places}
            yield way | ({"script": script} if needed and script and not by_value else {})
        except Exception as error:  # pickling runs methods of any object
            errors.append(error)
    if len(errors) == len(tried):
        raise errors[0]
