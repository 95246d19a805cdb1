"""Entry points: what the rows export, and the arguments of each one's Python function.

A row has one entry point for its forward, one for its VJP, and one for each gradient alone where the row says so. The
Python function of an entry point takes, in this order: the device (only where no input buffer has one), the inputs, the
dimensions that are not the length of a host array, the parameters; then by keyword optional inputs, ``want`` (a VJP of several
gradients) and ``out``. :func:`arguments_of` gives that list.
"""

import inspect
import keyword
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any

from tlspec import registry
from tlspec.expressions import names_in
from tlspec.registry import Check, Op
from tlspec.signature import Array, Signature

#: the exception of a check's status
EXCEPTIONS = {
    "SHAPE": "ShapeError", "OVERFLOW": "SizeOverflowError", "INDEX": "IndexOutOfRangeError", "ARGUMENT": "ArgumentError",
    "ALIAS": "AliasError", "UNAVAILABLE": "UnavailableError", "DEVICE": "DeviceMismatchError",
}  # fmt: skip

#: names the generated functions use themselves
LOCALS = frozenset(
    {"lists", "count", "call", "slot", "status", "error", "places", "given", "undo", "made", "want", "device", "out"}
)


@dataclass(frozen=True)
class Entry:
    """One exported operation: a row's forward, its VJP, or one gradient of its VJP."""

    op: Op
    name: str  # bmm, bmm_bwd, flash_attention_bwd_q
    symbol: str
    signature: Signature
    doc: str
    kernel: str  # the kernel it runs
    only: int | None = None  # the single output it wants, of a VJP's several
    indexed: bool = False  # takes an index buffer where the row takes indices of the host

    @property
    def outputs(self) -> tuple[Array, ...]:
        outs = self.signature.outputs
        return outs if self.only is None else (outs[self.only],)


def entries(row: Op) -> Iterator[Entry]:
    """The entry points of a row, in the order they are declared."""
    yield from _with_twin(Entry(row, row.name, row.symbol, row.signature, row.doc, row.name))
    rule = row.vjp_rule
    if rule is None or rule.via is not None:
        return
    name, sig = f"{row.name}_bwd", row.vjp_signature
    doc = f"Vector-Jacobian product of {row.name}.\n\n{rule.doc}"
    yield from _with_twin(Entry(row, name, f"{row.stem}_bwd", sig, doc, name))
    for i, suffix in enumerate(rule.each):
        text = f"The gradient {sig.outputs[i].name} of {name} alone.\n\n{rule.doc}"
        yield Entry(row, f"{name}_{suffix}", f"{row.stem}_bwd_{suffix}", sig, text, name, i)


def _with_twin(e: Entry) -> Iterator[Entry]:
    """The entry point, and after one with host indices its twin that takes them in an index buffer, with the same kernel."""
    yield e
    if any(a.kind == "u32" for a in e.signature.inputs):
        inputs = tuple(replace(a, kind="index") if a.kind == "u32" else a for a in e.signature.inputs)
        doc = e.doc.replace(" on the host", " in an index buffer").replace("host indices", "indices on the device")
        signature = replace(e.signature, inputs=inputs)
        name, symbol = f"{e.name}_indexed", f"{e.symbol}_indexed"
        yield replace(e, name=name, symbol=symbol, signature=signature, doc=doc, indexed=True)


def all_entries(family: str | None = None) -> list[Entry]:
    return [e for r in registry.operations() if family in (None, r.family) for e in entries(r)]


def known_names(sig: Signature) -> set[str]:
    arrays = {a.name for a in sig.inputs if a.host or a.optional}
    return {d.lstrip("*") for d in sig.dims} | {p.name for p in sig.params} | arrays


def checks_of(e: Entry) -> list[Check]:
    """The preconditions of an entry point: those of its row whose names it knows."""
    known = known_names(e.signature)
    return [c for c in e.op.contract.checks if names_in(c.expression) <= known]


def shapes_text(e: Entry) -> str:
    """``A[batch, m, n], B[batch, n, p] -> out[batch, m, p]``."""

    def one(a: Array) -> str:
        return f"{a.name}{'?' if a.optional else ''}{': ' + a.kind if a.kind != 'f32' else ''}[{', '.join(a.dims)}]"

    return f"{', '.join(one(a) for a in e.signature.inputs)} -> {', '.join(one(a) for a in e.outputs)}".strip()


@dataclass(frozen=True)
class Argument:
    """One argument of a generated function, before ``want`` and ``out``."""

    name: str  # in Python
    of: str  # in the row
    #: device, buffer, index (a buffer of indices), list (of buffers), u32 or f64 (host arrays), dim, dims (a list), float, int
    #: (u32 and u64 parameters)
    kind: str
    keyword: bool = False  # keyword-only
    default: str | None = None
    role: str = "dimension"  # of an integer, for what it raises out of range: or parameter, wide (64 bits), index

    @property
    def annotation(self) -> str:
        plain = {
            "device": "Device", "buffer": "Buffer", "index": "IndexBuffer", "list": "Sequence[Buffer]",
            "u32": "npt.ArrayLike", "f64": "npt.ArrayLike",
            "dim": "int", "int": "int", "dims": "Sequence[int]", "float": "float",
        }[self.kind]  # fmt: skip
        return f"{plain} | None" if self.default == "None" else plain


def _python_name(name: str, names: set[str]) -> str:
    if name == "out" and "y" not in names:
        return "y"  # a VJP that reads the operation's result
    return f"{name}_" if keyword.iskeyword(name) or name in LOCALS else name


def inferred(e: Entry) -> dict[str, str]:
    """The dimensions that are the length of a host array, an index buffer or a list: dimension -> array."""
    out: dict[str, str] = {}
    for a in e.signature.inputs:
        first = a.dims[0] if len(a.dims) == 1 and (a.host or a.listed or a.kind == "index") else ""
        if first in e.signature.dims and not first.startswith("*"):
            out.setdefault(first, a.name)
    return out


def arguments(e: Entry) -> list[Argument]:
    """The arguments of the entry's Python function in order; keyword-only ones come last."""
    sig = e.signature
    names = {a.name for a in sig.inputs} | {d.lstrip("*") for d in sig.dims} | {p.name for p in sig.params}
    known = inferred(e)
    first = [Argument("device", "", "device")] if sig.needs_context and not sig.lists else []
    last: list[Argument] = []
    for a in sig.inputs:
        kind = {"f32": "buffer"}.get(a.kind, a.kind)
        item = Argument(_python_name(a.name, names), a.name, kind, a.optional, "None" if a.optional else None)
        (last if a.optional else first).append(item)
    for d in sig.dims:
        if d not in known:
            bare = d.lstrip("*")
            first.append(Argument(_python_name(bare, names), bare, "dims" if d.startswith("*") else "dim"))
    for i, p in enumerate(sig.params):
        kind = {"u32": "int", "u64": "int"}.get(p.kind, p.kind)
        late = bool(sig.lists) or (p.default is not None and any(q.default is None for q in sig.params[i + 1 :]))
        item = Argument(_python_name(p.name, names), p.name, kind, late, p.default, _role(e, p.name, p.kind))
        (last if late else first).append(item)
    if sig.needs_context and sig.lists:  # for an empty list alone
        last.append(Argument("device", "", "device", True, "None"))
    return first + last


@lru_cache(maxsize=1)
def _arguments_by_name() -> dict[str, list[Argument]]:
    return {e.name: arguments(e) for e in all_entries()}


def arguments_of(name: str) -> list[Argument]:
    """The arguments of an entry point's Python function: their names there and in the signature."""
    return _arguments_by_name()[name]


def composition_arguments(row: Op, values: Mapping[str, Any]) -> dict[str, Any]:
    """The dimensions and parameters that the composition of the row's VJP is called with, after what it reads."""
    takes = inspect.signature(row.rule.via).parameters  # type: ignore[arg-type]
    if any(p.kind is p.VAR_KEYWORD for p in takes.values()):  # what the operation's own function takes
        return {a.of: values[a.of] for a in arguments_of(row.name) if a.of in values}
    return {n: values[n] for n in list(takes)[1 + len(row.rule.reads) :] if n in values}


def _role(e: Entry, name: str, kind: str) -> str:
    """What an integer parameter is: an index where a check with that status reads it."""
    if kind not in ("u32", "u64"):
        return "dimension"
    if any(c.status == "INDEX" and name in names_in(c.expression) for c in e.op.contract.checks):
        return "index"
    return "wide" if kind == "u64" else "parameter"
