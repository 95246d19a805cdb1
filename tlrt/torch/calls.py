"""Rows called on tensors: results are new tensors."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import Any

import torch

from tlrt import _foreign
from tlrt.errors import ArgumentTypeError, DeviceMismatchError, refusal
from tlrt.torch.memory import borrow, device_of, plain, plain_indices, tensor_of
from tlspec.registry import Op


def forward(row: Op, tensors: Mapping[str, Any], values: Mapping[str, Any], math: str) -> list[Any]:
    """The row's outputs."""
    return _run(row, "forward", tensors, values, [True] * len(row.signature.outputs), math)


def backward(
    row: Op, tensors: Mapping[str, Any], values: Mapping[str, Any], want: Sequence[bool], math: str
) -> list[Any]:
    """The gradients of the row's VJP that are wanted; empty tensors for the others."""
    return _run(row, "vjp", tensors, values, want, math)


class _Plan:
    """What calls of a row on tensors of the same shapes have in common."""

    def __init__(self, row: Op, which: str, shapes: Mapping[str, tuple[int, ...]], values: Mapping[str, Any]) -> None:
        signature = row.signature_of(which)
        given = {n: list(v) if isinstance(v, tuple) else v for n, v in values.items()}
        self.known = _foreign.dimensions(row.name, signature, shapes, given)
        self.shapes = _foreign.results(row.name, signature, shapes, given)
        self.types = [torch.uint32 if a.kind == "index" else torch.float32 for a in signature.outputs]
        self.inputs = [
            (a.name, plain_indices if a.kind in ("u32", "index") else plain)
            for a in signature.inputs
            if a.name in shapes
        ]
        self.composed = _foreign.is_composed(row, which)


@lru_cache(maxsize=4096)
def _plan(
    row: Op, which: str, shapes: tuple[tuple[str, tuple[int, ...]], ...], values: tuple[tuple[str, Any], ...],
    negative: tuple[str, ...],
) -> _Plan:  # fmt: skip
    """`negative` names the values that are -0.0, which is equal to 0.0."""
    return _Plan(row, which, dict(shapes), dict(values))


def _require_fit(op: str, name: str, tensor: Any, place: Any, is_index: bool) -> None:
    """The memory of a tensor of another type would be read as float32, and that of another device not at all."""
    kind, expected = tensor.dtype, "integers" if is_index else "float32"
    fits = not (kind.is_floating_point or kind.is_complex) if is_index else kind == torch.float32
    if not fits:
        raise refusal(ArgumentTypeError, op, name, str(kind).removeprefix("torch."), expected)
    if tensor.device != place:
        raise refusal(DeviceMismatchError, op, name, f"a tensor on {tensor.device}", f"one on {place}, as the first is")


def _run(
    row: Op, which: str, tensors: Mapping[str, Any], values: Mapping[str, Any], want: Sequence[bool], math: str
) -> list[Any]:
    present = {n: t for n, t in tensors.items() if t is not None}
    plan = _plan(
        row,
        which,
        tuple((n, t.shape) for n, t in present.items()),
        tuple((n, tuple(v) if type(v) is list else v) for n, v in values.items()),
        tuple(n for n, v in values.items() if v == 0 and str(v)[0] == "-"),
    )
    first = next(iter(present.values()))
    device = device_of(first, math)
    outs = [
        torch.empty(shape if w and not plan.composed else (0,), dtype=kind, device=first.device)
        for kind, shape, w in zip(plan.types, plan.shapes, want, strict=True)
    ]
    if not any(want):
        return outs
    for name, prepare in plan.inputs:
        _require_fit(f"torch.ops.torchlean.{row.name}", name, present[name], first.device, prepare is plain_indices)
    ready = [(name, prepare(present[name])) for name, prepare in plan.inputs]
    buffers = {name: borrow(t, device) for name, t in ready}
    if plan.composed:
        found = _foreign.compose(row, buffers, plan.known)
        lent = {t.data_ptr() for _, t in ready}  # a gradient may be the cotangent itself, whose memory is the caller's
        return [tensor_of(g, s, lent) if w else o for g, s, w, o in zip(found, plan.shapes, want, outs, strict=True)]
    results = [borrow(t, device) if w else None for t, w in zip(outs, want, strict=True)]
    _foreign.run(row, which, buffers, plan.known, results)
    return outs
