"""Entry points called on tensors: dimensions follow from shapes, and results are new tensors."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cache
from typing import Any

import torch

from tlrt import kernels
from tlrt.buffer import Buffer
from tlrt.errors import ShapeError, refusal
from tlrt.torch.memory import borrow, borrow_indices, device_of, in_order, tensor_of
from tlspec.entries import arguments_of, composition_arguments
from tlspec.entries import entries as entries_of
from tlspec.expressions import evaluate
from tlspec.registry import Op
from tlspec.signature import Array, Signature


def is_callable(row: Op) -> bool:
    """Whether the row's arrays are tensors: neither lists nor host arrays of float64, and at least one of them."""
    s = row.signature
    return not s.lists and not any(a.kind == "f64" for a in s.inputs) and not s.needs_context


@cache
def free_dimensions(signature: Signature) -> tuple[str, ...]:
    """The dimensions, ``*`` before lists, that follow from no input's shape: a call names them."""
    bare = {d for a in signature.inputs if not a.optional for d in a.dims}
    return tuple(d for d in signature.dims if d not in bare)


def dimensions(
    op: str, signature: Signature, shapes: Mapping[str, Sequence[int]], values: Mapping[str, Any]
) -> dict[str, Any]:
    """The dimensions of a call with inputs of these shapes, those that `values` has among them. Raises ShapeError."""
    known = dict(values)
    for array in signature.inputs:
        if array.name in shapes and not array.elementwise:
            _match(op, array, tuple(shapes[array.name]), known)
    for array in signature.inputs:  # all are known now
        if array.name in shapes and not array.elementwise:
            expected = shape_of(array, known)
            if tuple(shapes[array.name]) != expected:
                raise refusal(ShapeError, op, array.name, f"shape {tuple(shapes[array.name])}", f"{expected}")
    return known


def _match(op: str, array: Array, shape: tuple[int, ...], known: dict[str, Any]) -> None:
    """Takes the dimensions that an array's shape says."""
    spread = [d for d in array.dims if d.startswith("*")]
    fixed = len(array.dims) - len(spread)
    if len(shape) < fixed or (not spread and len(shape) != fixed):
        raise refusal(ShapeError, op, array.name, f"shape {shape}", f"({', '.join(array.dims)})")
    if len(spread) > 1:
        return
    at = 0
    for item in array.dims:
        if item.startswith("*"):
            size: Any = list(shape[at : at + len(shape) - fixed])
            at += len(size)
        else:
            size = shape[at]
            at += 1
        bare = item.lstrip("*")
        if bare.isidentifier() and bare not in known:
            known[bare] = size


def shape_of(array: Array, known: Mapping[str, Any]) -> tuple[int, ...]:
    """The shape of an array of a signature."""
    out: list[int] = []
    for item in array.dims:
        value = evaluate(item.lstrip("*"), known)
        out += list(value) if item.startswith("*") else [int(value)]
    return tuple(out)


def results(
    op: str, signature: Signature, shapes: Mapping[str, Sequence[int]], values: Mapping[str, Any]
) -> list[tuple[int, ...]]:
    """The shapes of a call's outputs."""
    if signature.elementwise:
        several = [tuple(shape) for shape in shapes.values()]
        if any(shape != several[0] for shape in several):
            raise refusal(ShapeError, op, "inputs", f"shapes {', '.join(map(str, several))}", "one shape")
        return [several[0]] * len(signature.outputs)
    known = dimensions(op, signature, shapes, values)
    return [shape_of(a, known) for a in signature.outputs]


def _placed(array: Array, tensor: Any, device: Any) -> Buffer:
    return borrow_indices(tensor, device) if array.kind in ("u32", "index") else borrow(tensor, device)


def _buffers(signature: Signature, tensors: Mapping[str, Any], device: Any) -> dict[str, Buffer]:
    return {a.name: _placed(a, t, device) for a in signature.inputs if (t := tensors.get(a.name)) is not None}


@cache
def _names(entry: str) -> dict[str, str]:
    """The row's names of an entry point's arguments -> Python's."""
    return {a.of: a.name for a in arguments_of(entry)}


@cache
def _twin(row: Op, which: str) -> str:
    """The entry point that takes indices in index buffers, where there are any."""
    name = row.name if which == "forward" else f"{row.name}_bwd"
    return next((e.name for e in entries_of(row) if e.name == f"{name}_indexed"), name)


def forward(row: Op, tensors: Mapping[str, Any], values: Mapping[str, Any], math: str) -> list[Any]:
    """The row's outputs."""
    signature = row.signature
    shapes = {n: t.shape for n, t in tensors.items() if t is not None}
    made = results(row.name, signature, shapes, values)
    known = dict(values) if signature.elementwise else dimensions(row.name, signature, shapes, values)
    return _run(row, _twin(row, "forward"), signature, tensors, known, made, [True] * len(made), math)


def backward(
    row: Op, tensors: Mapping[str, Any], values: Mapping[str, Any], want: Sequence[bool], math: str
) -> list[Any]:
    """The gradients of the row's VJP that are wanted; empty tensors for the others."""
    signature = row.vjp_signature
    shapes = {n: t.shape for n, t in tensors.items() if t is not None}
    made = results(row.name, signature, shapes, values)
    known = dict(values) if signature.elementwise else dimensions(row.name, signature, shapes, values)
    if row.rule.via is None:
        return _run(row, _twin(row, "vjp"), signature, tensors, known, made, want, math)
    if signature.elementwise:
        known["n"] = tensors[signature.inputs[0].name].numel()
    device = device_of(next(t for t in tensors.values() if t is not None), math)
    with in_order(device):
        held: dict[str, Any] = {a.name: t.cpu().numpy() if a.kind == "u32" else _placed(a, t, device)
                                for a in signature.inputs if (t := tensors.get(a.name)) is not None}  # fmt: skip
        found = row.rule.via(kernels, *held.values(), **composition_arguments(row, known))
        grads = found if isinstance(found, tuple) else (found,)
        return [
            tensor_of(g, shape) if w else torch.empty(0, device=next(iter(tensors.values())).device)
            for g, shape, w in zip(grads, made, want, strict=True)
        ]


def _run(
    row: Op, entry: str, signature: Signature, tensors: Mapping[str, Any], known: Mapping[str, Any],
    shapes: Sequence[tuple[int, ...]], want: Sequence[bool], math: str,
) -> list[Any]:  # fmt: skip
    first = next(t for t in tensors.values() if t is not None)
    device = device_of(first, math)
    kinds = [torch.uint32 if a.kind == "index" else torch.float32 for a in signature.outputs]
    made = [
        torch.empty(s if w else (0,), dtype=k, device=first.device) for s, k, w in zip(shapes, kinds, want, strict=True)
    ]
    if not any(want):
        return made
    names = _names(entry)
    with in_order(device):
        given: dict[str, Any] = {names[n]: b for n, b in _buffers(signature, tensors, device).items()}
        given |= {names[n]: v for n, v in known.items() if n in names}
        outs = [borrow(t, device) if w else None for t, w in zip(made, want, strict=True)]
        function = getattr(kernels, entry)
        if len(outs) == 1:
            function(**given, out=outs[0])
        elif signature is row.signature:
            function(**given, out=outs)
        else:
            function(**given, want=list(want), out=outs)
    return made
