"""The references, one module a family: ``tlspec.ops.softmax.softmax(x)``."""

import importlib
from typing import Any


def __getattr__(name: str) -> Any:
    from tlspec.registry import FAMILIES

    if name in FAMILIES:
        return importlib.import_module(f"tlspec.ops.{name}")
    raise AttributeError(f"module 'tlspec.ops' has no family {name!r}; there are {', '.join(FAMILIES)}")
