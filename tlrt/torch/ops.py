"""The operations as PyTorch's custom operators, ``torch.ops.torchlean.NAME``, made from the rows: with shapes for fake
tensors, and with gradients where the row has a VJP."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

import torch

from tlrt import _foreign
from tlrt.torch import calls
from tlspec.registry import Op
from tlspec.signature import Array, Param, Signature

NAMESPACE = "torchlean"
_library = torch.library.Library(NAMESPACE, "DEF")


def _default(p: Param) -> str:
    return "" if p.default is None else f"={float(p.default) if p.kind == 'float' else int(p.default)}"


def _arguments(signature: Signature) -> list[str]:
    """The arguments of an operator as its schema has them."""
    out = [f"Tensor{'?' if a.optional else ''} {a.name}" for a in signature.inputs]
    out += [f"{'int[]' if d.startswith('*') else 'int'} {d.lstrip('*')}" for d in _foreign.free_dimensions(signature)]
    kinds = {"float": "float", "dims": "int[]"}
    return out + [f"{kinds.get(p.kind, 'int')} {p.name}{_default(p)}" for p in _foreign.parameters(signature)]


def _returns(outputs: Sequence[Array]) -> str:
    return "Tensor" if len(outputs) == 1 else f"({', '.join(['Tensor'] * len(outputs))})"


def _given(signature: Signature, arguments: Sequence[Any]) -> tuple[dict[str, Any], dict[str, Any]]:
    tensors, others = _foreign.names(signature)
    known = {**_foreign.defaults(signature), **dict(zip([*tensors, *others], arguments, strict=False))}
    return {n: known.get(n) for n in tensors}, {n: known[n] for n in others}


def _one(found: Sequence[Any]) -> Any:
    return found[0] if len(found) == 1 else tuple(found)


def _compute(row: Op, *arguments: Any) -> Any:
    tensors, values = _given(row.signature, arguments)
    return _one(calls.forward(row, tensors, values, _foreign.math()))


def _compute_gradient(row: Op, *arguments: Any) -> Any:
    *rest, want = arguments
    tensors, values = _given(row.vjp_signature, rest)
    return _one(calls.backward(row, tensors, values, want, _foreign.math()))


def _fake(row: Op, signature: Signature, want: Sequence[bool] | None, arguments: Sequence[Any]) -> Any:
    tensors, values = _given(signature, arguments)
    shapes = {n: t.shape for n, t in tensors.items() if t is not None}
    like = next(t for t in tensors.values() if t is not None)
    wanted = [True] * len(signature.outputs) if want is None else want
    kinds = [torch.uint32 if a.kind == "index" else torch.float32 for a in signature.outputs]
    return _one([
        like.new_empty(shape if w else (0,), dtype=kind)
        for shape, w, kind in zip(_foreign.results(row.name, signature, shapes, values), wanted, kinds, strict=True)
    ])  # fmt: skip


def _define(row: Op) -> None:
    _library.define(f"{row.name}({', '.join(_arguments(row.signature))}) -> {_returns(row.signature.outputs)}")
    _library.impl(row.name, partial(_compute, row), "CompositeExplicitAutograd")
    name = f"{NAMESPACE}::{row.name}"
    torch.library.register_fake(name, lambda *a: _fake(row, row.signature, None, a), lib=_library)
    if row.vjp_rule is None:
        return
    signature = row.vjp_signature
    arguments = [*_arguments(signature), "bool[] want"]
    required = [a for a in arguments if "=" not in a]  # the schema has those with a default last
    _library.define(
        f"{row.name}_bwd({', '.join([*required[:-1], *(a.partition('=')[0] for a in arguments if '=' in a), required[-1]])})"
        f" -> {_returns(signature.outputs)}"
    )
    _library.impl(f"{row.name}_bwd", partial(_compute_gradient, row), "CompositeExplicitAutograd")
    torch.library.register_fake(f"{name}_bwd", lambda *a: _fake(row, signature, a[-1], a[:-1]), lib=_library)
    torch.library.register_autograd(name, partial(_differentiate, row), setup_context=partial(_keep, row), lib=_library)


def _keep(row: Op, ctx: Any, inputs: Sequence[Any], output: Any) -> None:
    """What the VJP reads is kept, and the shapes and values of the call."""
    tensors, values = _given(row.signature, inputs)
    outputs = output if isinstance(output, tuple) else (output,)
    made = {a.name: t for a, t in zip(row.signature.outputs, outputs, strict=True)}
    shapes = {n: t.shape for n, t in tensors.items() if t is not None}
    known = _foreign.dimensions(row.name, row.signature, shapes, values)
    reads = [a.name for a in row.vjp_signature.inputs]
    ctx.save_for_backward(*(x for n in reads if (x := {**tensors, **made}.get(n)) is not None))
    ctx.kept = [n for n in reads if {**tensors, **made}.get(n) is not None]
    ctx.known, ctx.names = known, [*tensors, *values]


def _differentiate(row: Op, ctx: Any, *gradients: Any) -> tuple[Any, ...]:
    signature = row.vjp_signature
    known: dict[str, Any] = dict(zip(ctx.kept, ctx.saved_tensors, strict=True))
    outputs = row.signature.outputs
    cotangents = dict(zip((f"g_{o.name}" if len(outputs) > 1 else "g" for o in outputs), gradients, strict=True))
    for a in signature.inputs:
        if a.name in cotangents:
            known[a.name] = cotangents[a.name].contiguous()
    targets = [n[1:] for n in (a.name for a in signature.outputs)]  # gx is the gradient of x
    want = [ctx.needs_input_grad[ctx.names.index(n)] for n in targets]
    tensors, others = _foreign.names(signature)
    found = getattr(torch.ops.torchlean, f"{row.name}_bwd")(
        *(known.get(n) for n in tensors), *(ctx.known[n] for n in others), want
    )
    grads: Mapping[str, Any] = dict(zip(targets, found if isinstance(found, tuple) else (found,), strict=True))
    return tuple(grads[n] if n in grads and want[targets.index(n)] else None for n in ctx.names)


def operators() -> tuple[str, ...]:
    """The names under ``torch.ops.torchlean``.

    Returns
    -------
    tuple of str
        Those of the rows, without random draws, optimisers and float64 products.

    Examples
    --------
    >>> import torch, tlrt.torch
    >>> "softmax" in tlrt.torch.operators()
    True
    >>> torch.ops.torchlean.relu(torch.tensor([-1.0, 2.0]))
    tensor([0., 2.])
    """
    return tuple(row.name for row in _foreign.rows())


for _row in _foreign.rows():
    _define(_row)
