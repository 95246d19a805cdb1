"""Kernels with a planted defect."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from tlrt import kernels


class Replaced:
    """The namespace of kernels with one function replaced."""

    def __init__(self, name: str, function: Callable[..., Any]):
        self.name, self.function = name, function

    def __getattr__(self, name: str) -> Any:
        return self.function if name == self.name else getattr(kernels, name)
