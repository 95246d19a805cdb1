"""Rows on memory of other libraries' arrays: dimensions follow from shapes, and results are
written where the caller says. PyTorch's operators and JAX's are made of it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cache
from typing import Any

from tlrt import kernels
from tlrt.buffer import Buffer
from tlrt.context import device as find_device
from tlrt.errors import ShapeError, refusal
from tlspec import registry
from tlspec.entries import arguments_of, composition_arguments
from tlspec.entries import entries as entries_of
from tlspec.expressions import evaluate
from tlspec.registry import Op
from tlspec.signature import Array, Param, Signature

#: how operators compute: "fast" or "reproducible"; that of new devices until it is set
_math: list[str] = []


def math() -> str:
    """How operators in PyTorch and functions in JAX compute.

    Returns
    -------
    str
        "fast" or "reproducible". Until :func:`set_math` it is the environment's TORCHLEAN_MATH, or "fast".
    """
    if not _math:
        _math.append(find_device("cpu").math)
    return _math[0]


def set_math(math: str) -> None:
    """Sets how the operators in PyTorch and the functions in JAX compute from here on, in all threads.

    Parameters
    ----------
    math : str
        "fast" or "reproducible".

    Raises
    ------
    ArgumentError
        For another mode.
    """
    with find_device("cpu", math=math, new=True) as checked:
        _math[:] = [checked.math]


def rows() -> tuple[Op, ...]:
    """The rows whose arrays are arrays of the caller: no lists, no host arrays of float64, and at least one of them."""
    return tuple(
        r
        for r in registry.operations()
        if not r.signature.lists
        and not r.signature.needs_context
        and not any(a.kind == "f64" for a in r.signature.inputs)
    )


@cache
def free_dimensions(signature: Signature) -> tuple[str, ...]:
    """The dimensions, ``*`` before lists, that follow from no input's shape: a call names them."""
    bare = {d for a in signature.inputs if not a.optional for d in a.dims}
    return tuple(d for d in signature.dims if d not in bare)


@cache
def parameters(signature: Signature) -> tuple[Param, ...]:
    """The parameters, those with a default last."""
    return tuple(sorted(signature.params, key=lambda p: p.default is not None))


@cache
def names(signature: Signature) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """The names of a call's arrays and of its other arguments, in order."""
    free = tuple(d.lstrip("*") for d in free_dimensions(signature))
    return tuple(a.name for a in signature.inputs), free + tuple(p.name for p in parameters(signature))


@cache
def defaults(signature: Signature) -> Mapping[str, float | int]:
    """The values of parameters that a call leaves out."""
    return {
        p.name: float(p.default) if p.kind == "float" else int(p.default)
        for p in signature.params
        if p.default is not None
    }


def dimensions(
    op: str, signature: Signature, shapes: Mapping[str, Sequence[int]], values: Mapping[str, Any]
) -> dict[str, Any]:
    """The dimensions and parameters of a call with inputs of these shapes. Raises ShapeError."""
    known = dict(values)
    if signature.elementwise:
        return known
    present = [a for a in signature.inputs if a.name in shapes]
    for array in present:
        _match(op, array, tuple(shapes[array.name]), known)
    for array in present:  # all are known now
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


@cache
def _entry(row: Op, which: str) -> tuple[str, Mapping[str, str]]:
    """The entry point, or its twin that takes indices in index buffers where there is one, and the row's names of its
    arguments with Python's."""
    name = row.name if which == "forward" else f"{row.name}_bwd"
    entry = next((e.name for e in entries_of(row) if e.name == f"{name}_indexed"), name)
    return entry, {a.of: a.name for a in arguments_of(entry)}


def is_composed(row: Op, which: str) -> bool:
    """Whether it is a VJP that other rows make up, whose results are new buffers."""
    return which == "vjp" and row.rule.via is not None


def run(
    row: Op, which: str, buffers: Mapping[str, Buffer], known: Mapping[str, Any], outs: Sequence[Buffer | None]
) -> None:
    """Runs an entry point on buffers, indices in index buffers, and writes into `outs`; None for a gradient that nobody wants."""
    entry, spelled = _entry(row, which)
    given: dict[str, Any] = {spelled[n]: b for n, b in buffers.items()}
    given |= {spelled[n]: v for n, v in known.items() if n in spelled}
    function = getattr(kernels, entry)
    if len(outs) == 1:
        function(**given, out=outs[0])
    elif which == "forward":
        function(**given, out=outs)
    else:
        function(**given, want=[out is not None for out in outs], out=outs)


def compose(row: Op, buffers: Mapping[str, Buffer], known: Mapping[str, Any]) -> tuple[Buffer, ...]:
    """The gradients of a VJP that other rows make up; indices are copied to the host."""
    signature = row.vjp_signature
    given = {a.name: buffers[a.name] for a in signature.inputs if a.name in buffers}
    values = {**known, **({"n": len(next(iter(given.values())))} if signature.elementwise else {})}
    on_host = {a.name for a in signature.inputs if a.kind == "u32"}
    found = row.rule.via(  # type: ignore[misc]
        kernels, *(b.numpy() if n in on_host else b for n, b in given.items()), **composition_arguments(row, values)
    )
    return found if isinstance(found, tuple) else (found,)
