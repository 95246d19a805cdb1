"""Expressions of the signature grammar and of preconditions: Python over dimensions, parameters, and the functions of
:mod:`tlspec.shapes`."""

import ast
from collections.abc import Mapping
from functools import lru_cache
from typing import Any

from tlspec.shapes import FUNCTIONS

_GLOBALS: dict[str, Any] = {"__builtins__": {}, **FUNCTIONS}


@lru_cache(maxsize=4096)
def _compile(expression: str) -> Any:
    return compile(ast.parse(expression, mode="eval"), expression, "eval")


def evaluate(expression: str, values: Mapping[str, Any]) -> Any:
    """The value of an expression of the signature grammar.

    Parameters
    ----------
    expression : str
        Such as ``n // 2 + 1``.
    values : mapping of str to number
        Dimensions and parameters.

    Returns
    -------
    int, float, bool or list of int
        The value.

    Examples
    --------
    >>> from tlspec.expressions import evaluate
    >>> print(evaluate("n // 2 + 1", {"n": 6}))
    4
    """
    return eval(_compile(expression), _GLOBALS, values)


@lru_cache(maxsize=4096)
def functions_in(expression: str) -> frozenset[str]:
    """The names of the functions that an expression calls."""
    calls = (n for n in ast.walk(ast.parse(expression, mode="eval")) if isinstance(n, ast.Call))
    return frozenset(n.func.id for n in calls if isinstance(n.func, ast.Name))


@lru_cache(maxsize=4096)
def names_in(expression: str) -> frozenset[str]:
    """The names that an expression reads, those of functions aside."""
    tree = ast.parse(expression, mode="eval")
    return frozenset(n.id for n in ast.walk(tree) if isinstance(n, ast.Name)) - functions_in(expression)
