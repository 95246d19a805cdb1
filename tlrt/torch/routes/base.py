"""Where Python's routes are registered, and how they call the rows."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from functools import cache
from typing import Any

import torch

from tlrt import _calls
from tlrt.errors import UnavailableError, refusal
from tlrt.torch import calls, shim
from tlspec import registry

aten = torch.ops.aten
#: the dispatch key of the block, as native/torch/block.h has it
KEY = "CustomRNGKeyId"
#: operator -> function of the same arguments, which raises NotImplementedError for a case that it does not compute
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


# ---- kernels at the block's key ------------------------------------------------------------------------------------------


def tensors_of(values: Any) -> Iterator[Any]:
    """The tensors among an operator's arguments or results, which are in no deeper lists."""
    for x in values:
        if isinstance(x, torch.Tensor):
            yield x
        elif isinstance(x, (list, tuple)):
            yield from (y for y in x if isinstance(y, torch.Tensor))


@cache
def _key_set() -> Any:
    return torch._C.DispatchKeySet(torch._C._parse_dispatch_key(KEY))


def original(operator: Any, args: Any, kwargs: Any) -> Any:
    """The operator as PyTorch computes it, with all that it is made of."""
    with torch._C._ExcludeDispatchKeyGuard(_key_set()):
        return operator(*args, **kwargs)


def _note(operator: Any, here: bool, work: int) -> None:
    name = operator._schema.name.rpartition("::")[2]
    if shim.load().tlrt_torch_note(name.encode(), int(here), work):
        raise refusal(UnavailableError, "tlrt.torch.reproducible", "operator", str(operator),
                      "one with a route; see docs/torch.md")  # fmt: skip


def _work(found: Any) -> int:
    return sum(x.numel() for x in tensors_of(found if isinstance(found, (list, tuple)) else (found,)))


_NARROW = (torch.float16, torch.bfloat16)


def _widened(values: Any) -> Any:
    if isinstance(values, torch.Tensor):
        return values.to(torch.float32) if values.dtype in _NARROW else values
    return type(values)(_widened(x) for x in values) if isinstance(values, (list, tuple)) else values


def _rounded(values: Any, dtype: Any) -> Any:
    if isinstance(values, torch.Tensor):
        return values.to(dtype) if values.dtype == torch.float32 else values
    return type(values)(_rounded(x, dtype) for x in values) if isinstance(values, (list, tuple)) else values


def _kernel(operator: Any, function: Callable[..., Any]) -> Callable[..., Any]:
    """The kernel of an operator that a route computes: narrower types are widened and rounded back, and what the route does not
    compute is PyTorch's."""

    def kernel(*args: Any, **kwargs: Any) -> Any:
        tensors = list(tensors_of((*args, *kwargs.values())))
        kinds = {x.dtype for x in tensors if x.is_floating_point() or x.is_complex()}
        if any(x.device.type not in ("cpu", "cuda") for x in tensors):
            return original(operator, args, kwargs)
        wide = {torch.float32, kwargs.get("dtype") or torch.float32}
        narrow = kinds - wide
        if kinds and len(narrow) <= 1 and narrow <= set(_NARROW) and wide == {torch.float32}:
            try:
                if narrow:
                    args, kwargs = _widened(args), {n: _widened(v) for n, v in kwargs.items()}
                found = function(*args, **{n: v for n, v in kwargs.items() if n not in _IGNORED})
            except NotImplementedError:
                pass
            else:
                _note(operator, True, _work(found))
                return _rounded(found, narrow.pop()) if narrow else found
        if kinds:
            _note(operator, False, sum(x.numel() for x in tensors))
        return original(operator, args, kwargs)

    return kernel


_IGNORED = ("memory_format", "layout", "device", "pin_memory")


def _writing(operator: Any, twin: Any) -> Callable[..., Any]:
    """The kernel of an operator that writes its result where it is told, by its twin that makes a new tensor."""
    outs = [a.name for a in operator._schema.arguments if a.is_out]

    def kernel(*args: Any, **kwargs: Any) -> Any:
        targets = [kwargs.pop(n) for n in outs] or [args[0]]
        found = twin(*args, **kwargs)
        for target, made in zip(targets, found if isinstance(found, tuple) else (found,), strict=True):
            if outs and not torch.can_cast(made.dtype, target.dtype):
                raise RuntimeError(f"result type {made.dtype} can't be cast to the desired output type {target.dtype}")
            if outs and target.shape != made.shape:
                target.resize_(made.shape)
            target.copy_(made)
        return targets[0] if len(targets) == 1 else tuple(targets)

    return kernel


def _full_name(operator: Any) -> str:
    return str(operator._schema.name) + (f".{operator._overloadname}" if operator._overloadname != "default" else "")


def _twins(operator: Any) -> Iterator[Any]:
    """The operators that write what this one makes: in place, and into an argument `out`."""
    name = operator._schema.name.rpartition("::")[2]
    taken = [(str(a.type), a.name) for a in operator._schema.arguments]
    for packet in (getattr(aten, name, None), getattr(aten, f"{name}_", None)):
        for overload in () if packet is None else packet.overloads():
            twin = getattr(packet, overload)
            writes = any(a.alias_info is not None and a.alias_info.is_write for a in twin._schema.arguments)
            if writes and [(str(a.type), a.name) for a in twin._schema.arguments if not a.is_out] == taken:
                yield twin


@cache
def library() -> Any:
    """The registrations, which last as long as the process: the key is included in blocks alone."""
    return torch.library.Library("aten", "IMPL")


@cache
def operator_names() -> frozenset[str]:
    """The operators that the dispatcher knows, as "aten::add.Tensor"."""
    return frozenset(torch._C._dispatch_get_all_op_names())


def has_kernel(name: str) -> bool:
    return name in operator_names() and torch._C._dispatch_has_kernel_for_dispatch_key(name, KEY)


def register_kernels(routed: Sequence[str]) -> None:
    """Registers Python's routes, and for each operator that is routed here or in C++ those that write its result."""
    for operator, function in ROUTES.items():
        if not has_kernel(_full_name(operator)):
            library().impl(_full_name(operator), _kernel(operator, function), KEY)
    packets = [getattr(aten, n) for n in routed if hasattr(aten, n)]
    for operator in [*ROUTES, *(getattr(p, o) for p in packets for o in p.overloads())]:
        if not has_kernel(_full_name(operator)):
            continue
        for twin in _twins(operator):
            if _full_name(twin) in operator_names() and not has_kernel(_full_name(twin)):
                library().impl(_full_name(twin), _writing(twin, operator), KEY)
