"""Rows called on tensors: results are new tensors."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import Any

import torch

from tlrt import _calls
from tlrt.torch.memory import borrow, borrow_indices, device_of, in_order, tensor_of
from tlspec.registry import Op


def forward(row: Op, tensors: Mapping[str, Any], values: Mapping[str, Any], math: str) -> list[Any]:
    """The row's outputs."""
    return _run(row, "forward", tensors, values, [True] * len(row.signature.outputs), math)


def backward(
    row: Op, tensors: Mapping[str, Any], values: Mapping[str, Any], want: Sequence[bool], math: str
) -> list[Any]:
    """The gradients of the row's VJP that are wanted; empty tensors for the others."""
    return _run(row, "vjp", tensors, values, want, math)


@lru_cache(maxsize=4096)
def _plan(
    row: Op, which: str, shapes: tuple[tuple[str, tuple[int, ...]], ...], values: tuple[tuple[str, Any], ...]
) -> tuple[dict[str, Any], list[tuple[int, ...]]]:
    """The dimensions and parameters of a call, and the shapes of its outputs."""
    signature, given = row.signature_of(which), {n: list(v) if isinstance(v, tuple) else v for n, v in values}
    known = _calls.dimensions(row.name, signature, dict(shapes), given)
    return known, _calls.results(row.name, signature, dict(shapes), given)


def _run(
    row: Op, which: str, tensors: Mapping[str, Any], values: Mapping[str, Any], want: Sequence[bool], math: str
) -> list[Any]:
    signature = row.signature_of(which)
    shapes = tuple((n, tuple(t.shape)) for n, t in tensors.items() if t is not None)
    known, made = _plan(
        row, which, shapes, tuple((n, tuple(v) if isinstance(v, list) else v) for n, v in values.items())
    )
    first = next(t for t in tensors.values() if t is not None)
    device = device_of(first, math)
    outs = [
        torch.empty(
            shape if w and not _calls.is_composed(row, which) else (0,),
            dtype=torch.uint32 if a.kind == "index" else torch.float32,
            device=first.device,
        )
        for a, shape, w in zip(signature.outputs, made, want, strict=True)
    ]
    if not any(want):
        return outs
    with in_order(device):
        buffers = {
            a.name: borrow_indices(t, device) if a.kind in ("u32", "index") else borrow(t, device)
            for a in signature.inputs
            if (t := tensors.get(a.name)) is not None
        }
        if _calls.is_composed(row, which):
            found = _calls.compose(row, buffers, known)
            return [tensor_of(g, s) if w else o for g, s, w, o in zip(found, made, want, outs, strict=True)]
        _calls.run(
            row, which, buffers, known, [borrow(t, device) if w else None for t, w in zip(outs, want, strict=True)]
        )
    return outs
