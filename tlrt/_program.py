"""The programs that commands run: functions named by a file or a module."""

import importlib
import importlib.util
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from tlrt.errors import ArgumentError, refusal


def load_program(op: str, source: str, function: str) -> Callable[..., Any]:
    """The function of that name in a Python file, or in a module that is not named as files are."""
    if not source.endswith(".py"):
        try:
            found = importlib.import_module(source)
        except ModuleNotFoundError as error:
            raise refusal(ArgumentError, op, "PROGRAM", f"{source} ({error})", "a module or a Python file") from None
        return _function(op, source, found, function)
    path = Path(source)
    spec = importlib.util.spec_from_file_location(path.stem, path)
    if not path.is_file() or spec is None or spec.loader is None:
        raise refusal(ArgumentError, op, "FILE", path, "a Python file")
    module = importlib.util.module_from_spec(spec)
    sys.path.insert(0, str(path.parent))
    try:
        spec.loader.exec_module(module)
    finally:
        sys.path.remove(str(path.parent))
    return _function(op, source, module, function)


def _function(op: str, source: str, module: Any, name: str) -> Callable[..., Any]:
    found = getattr(module, name, None)
    if not callable(found):
        raise ArgumentError(f"{op}: {source}: has no function {name}(session)")
    made: Callable[..., Any] = found
    return made
