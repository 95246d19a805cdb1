"""Methods of tapes and sessions that a row alone determines: those that do nothing but forward to the operation."""

from __future__ import annotations

from dataclasses import dataclass

from tlspec.registry import Op
from tlspec.signature import Param

__all__ = ["Method", "forwarding_method"]


@dataclass(frozen=True)
class Method:
    """A method that takes the operation's inputs as operands, in order, and then its parameters."""

    name: str
    operands: tuple[str, ...]
    parameters: tuple[Param, ...]
    #: operands of different shapes are broadcast to their common one first
    broadcast: bool
    doc: str


def forwarding_method(row: Op) -> Method | None:
    """The method of a row; None where a method has more to do than to forward, or the row wants none.

    A row can have one if it has a VJP and one output, its inputs are device buffers that may not be left out, and their shapes
    determine all dimensions. The operands of an elementwise operation on two values without parameters are broadcast.
    """
    sig = row.signature
    required = bool(sig.inputs) and all(a.kind == "f32" and not a.optional for a in sig.inputs)
    determined = all(any(d in a.dims for a in sig.inputs) for d in sig.dims)
    if not row.method or row.vjp_rule is None or len(sig.outputs) != 1 or not required or not determined:
        return None
    return Method(
        name=row.name,
        operands=tuple(a.name for a in sig.inputs),
        parameters=sig.params,
        broadcast=sig.elementwise and len(sig.inputs) == 2 and not sig.params,
        doc=row.doc.split("\n\n")[0],
    )
