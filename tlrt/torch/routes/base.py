"""Where routes are registered, and how they call the rows."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import torch

from tlrt import _calls
from tlrt.torch import calls
from tlspec import registry

aten = torch.ops.aten
#: operator -> function of the same arguments
ROUTES: dict[Any, Callable[..., Any]] = {}


def route(*operators: Any) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    def register(function: Callable[..., Any]) -> Callable[..., Any]:
        ROUTES.update(dict.fromkeys(operators, function))
        return function

    return register


def as_matrix(x: Any, axes: int = 1) -> Any:
    """A matrix whose columns run over the last axes. Both lengths are given: of no elements PyTorch finds none out."""
    lead = x.dim() - axes
    return x.reshape(math.prod(x.shape[:lead]), math.prod(x.shape[lead:]))


def run(op: str, *tensors: Any, **values: Any) -> Any:
    """A row's result on tensors in the order of its inputs."""
    row = registry.get(op)
    named = dict(zip((a.name for a in row.signature.inputs), tensors, strict=False))
    found = calls.forward(row, named, with_defaults(row.signature, values), "reproducible")
    return found[0] if len(found) == 1 else tuple(found)


def run_gradient(op: str, *tensors: Any, want: Sequence[bool] = (True,), **values: Any) -> Any:
    """The gradients of a row's VJP on the tensors that it reads."""
    row = registry.get(op)
    signature = row.vjp_signature
    named = dict(
        zip(
            (a.name for a in signature.inputs if not a.optional or len(tensors) == len(signature.inputs)),
            tensors,
            strict=False,
        )
    )
    found = calls.backward(row, named, with_defaults(signature, values), want, "reproducible")
    return found[0] if len(found) == 1 else tuple(found)


def with_defaults(signature: Any, values: dict[str, Any]) -> dict[str, Any]:
    return {**_calls.defaults(signature), **values}
