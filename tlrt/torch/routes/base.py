"""Where Python's routes are registered, and how they call the rows."""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Iterator, Sequence
from functools import cache
from typing import Any

import torch

from tlrt.errors import UnavailableError, refusal
from tlrt.torch import shim

aten = torch.ops.aten
#: the dispatch keys of the block, as native/torch/block.h has them
KEY, FRONT, DOUBLE = "CustomRNGKeyId", "TESTING_ONLY_GenericMode", "TESTING_ONLY_GenericWrapper"
#: operator -> function of the same arguments, which raises NotImplementedError for a case that it does not compute
ROUTES: dict[Any, Callable[..., Any]] = {}
#: function -> the types that it takes, where these are others than float32 and the narrower ones
TYPES: dict[Callable[..., Any], frozenset[Any]] = {}
#: functions that take whole numbers as those of PyTorch's default type
WHOLE: set[Callable[..., Any]] = set()
#: operator that native/torch computes in float32 -> function of float64 tensors
DOUBLES: dict[Any, Callable[..., Any]] = {}
#: operator -> function of tensors of which some are sparse
SPARSE: dict[Any, Callable[..., Any]] = {}
#: kernels of other libraries' operators, by name
LIBRARIES: dict[str, Callable[..., Any]] = {}


def route(*operators: Any) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    def register(function: Callable[..., Any]) -> Callable[..., Any]:
        ROUTES.update(dict.fromkeys(operators, function))
        return function

    return register


def route_of_matrices(*operators: Any) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """The route of operators on matrices, which PyTorch has of float32 and float64."""

    def register(function: Callable[..., Any]) -> Callable[..., Any]:
        TYPES[function] = frozenset([torch.float32, torch.float64])
        return route(*operators)(function)

    return register


def route_by_double(operator: Any) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """The route of an operator that is computed in float64 for all types."""

    def register(function: Callable[..., Any]) -> Callable[..., Any]:
        def computed(*args: Any) -> Any:
            return _double_kernel(function)(*args).to(next(tensors_of(args)).dtype)

        TYPES[computed] = _COMPUTED | {torch.float64}
        WHOLE.add(computed)
        route(operator)(computed)
        return function

    return register


def route_of_sparse(operator: Any) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """The route of an operator on sparse tensors, where native/torch finds it before PyTorch's kernel."""

    def register(function: Callable[..., Any]) -> Callable[..., Any]:
        SPARSE[operator] = function
        return function

    return register


def route_of_library(name: str) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """The route of an operator of another library, "namespace::name", which need not be loaded yet."""

    def register(function: Callable[..., Any]) -> Callable[..., Any]:
        namespace, _, op = name.partition("::")

        @cache
        def kernel() -> Callable[..., Any]:
            return _kernel(getattr(getattr(torch.ops, namespace), op).default, function)

        LIBRARIES[name] = lambda *args, **kwargs: kernel()(*args, **kwargs)
        return function

    return register


# ---- kernels at the block's key ------------------------------------------------------------------------------------------


def tensors_of(values: Any) -> Iterator[Any]:
    """The tensors among an operator's arguments or results, which are in no deeper lists."""
    for x in values:
        if isinstance(x, torch.Tensor):
            yield x
        elif isinstance(x, (list, tuple)):
            yield from (y for y in x if isinstance(y, torch.Tensor))


@cache
def _key_set(*names: str) -> Any:
    keys = torch._C.DispatchKeySet(torch._C._parse_dispatch_key(names[0]))
    return keys if len(names) == 1 else keys | _key_set(*names[1:])


def original(operator: Any, args: Any, kwargs: Any) -> Any:
    """The operator as PyTorch computes it, with all that it is made of."""
    with torch._C._ExcludeDispatchKeyGuard(_key_set(KEY)):
        return operator(*args, **kwargs)


def outside() -> Any:
    """Where operators are PyTorch's own."""
    return torch._C._ExcludeDispatchKeyGuard(_key_set(KEY, "AutocastCPU", "AutocastCUDA"))


def _without_autocast() -> Any:
    """Autocast has been asked before an operator comes here, and what the operator is made of keeps its types."""
    return torch._C._ExcludeDispatchKeyGuard(_key_set("AutocastCPU", "AutocastCUDA"))


def _note(operator: Any, here: bool, work: int) -> None:
    name = operator._schema.name.rpartition("::")[2]
    if shim.load().tlrt_torch_note(name.encode(), int(here), work):
        raise refusal(UnavailableError, "tlrt.torch.reproducible", "operator", str(operator),
                      "one with a route; see docs/torch.md")  # fmt: skip


_SPARSE_LAYOUTS = (torch.sparse_coo, torch.sparse_csr, torch.sparse_csc, torch.sparse_bsr, torch.sparse_bsc)


def _work(found: Any) -> int:
    return sum(x._nnz() if x.layout in _SPARSE_LAYOUTS else x.numel() for x in tensors_of(_listed(found)))


_NARROW = (torch.float16, torch.bfloat16)
_COMPUTED = frozenset((torch.float32, *_NARROW))


def _widened(values: Any) -> Any:
    if isinstance(values, torch.Tensor):
        return values.to(torch.float32) if values.dtype in _NARROW else values
    return type(values)(_widened(x) for x in values) if isinstance(values, (list, tuple)) else values


def _rounded(values: Any, dtype: Any) -> Any:
    if isinstance(values, torch.Tensor):
        return values.to(dtype) if values.dtype == torch.float32 else values
    return type(values)(_rounded(x, dtype) for x in values) if isinstance(values, (list, tuple)) else values


def _is_foreign(tensors: Sequence[Any]) -> bool:
    return any(x.device.type not in ("cpu", "cuda") for x in tensors)


def _kernel(operator: Any, function: Callable[..., Any]) -> Callable[..., Any]:
    """The kernel of an operator that a route computes: narrower types are widened and rounded back, and what the route does not
    compute is PyTorch's. Of several types PyTorch knows whether the operator takes them, and what comes of them."""

    def kernel(*args: Any, **kwargs: Any) -> Any:
        tensors = list(tensors_of((*args, *kwargs.values())))
        kinds = {x.dtype for x in tensors if x.is_floating_point() or x.is_complex()}
        foreign = _is_foreign(tensors)
        if not kinds and not foreign and function in WHOLE:
            kinds = {torch.get_default_dtype()}
            args = tuple(x.to(*kinds) if isinstance(x, torch.Tensor) else x for x in args)
        if not kinds or foreign:
            return original(operator, args, kwargs)
        theirs = original(operator, args, kwargs) if len(kinds) > 1 else None
        if kinds <= TYPES.get(function, _COMPUTED) and kwargs.get("dtype") in (None, torch.float32):
            given = {n: _widened(v) for n, v in kwargs.items() if n not in _IGNORED}
            try:
                with _without_autocast():
                    found = function(*_widened(args), **given)
            except NotImplementedError:
                pass
            else:
                _note(operator, True, _work(found))
                types = kinds if theirs is None else {x.dtype for x in tensors_of(_listed(theirs))} & _COMPUTED
                return _rounded(found, types.pop()) if len(types) == 1 and "dtype" not in kwargs else found
        found = original(operator, args, kwargs) if theirs is None else theirs
        if _work(found):  # of nothing nothing is computed
            _note(operator, False, sum(x.numel() for x in tensors))
        return found

    return kernel


def _doubled(value: Any) -> Any:
    return value.to(torch.float64) if isinstance(value, torch.Tensor) else value


def _double_kernel(function: Callable[..., Any]) -> Callable[..., Any]:
    """The kernel of float64, where native/torch looks for it: all that it calls is PyTorch's own."""

    def kernel(*args: Any, **kwargs: Any) -> Any:
        with outside():
            return function(*map(_doubled, args), **{n: _doubled(v) for n, v in kwargs.items()})

    return kernel


def _sparse_kernel(operator: Any, function: Callable[..., Any]) -> Callable[..., Any]:
    """The kernel of sparse tensors. What the function does not compute is PyTorch's, and native/torch notes it."""

    def kernel(*args: Any, **kwargs: Any) -> Any:
        kinds = {x.dtype for x in tensors_of(args)} - {torch.int32, torch.int64}
        if kinds <= _COMPUTED and len(kinds) == 1:
            try:
                with _without_autocast():
                    found = function(*_widened(args), **kwargs)
            except NotImplementedError:
                pass
            else:
                _note(operator, True, _work(found))
                return _rounded(found, kinds.pop())
        with torch._C._ExcludeDispatchKeyGuard(_key_set(DOUBLE)):
            return operator(*args, **kwargs)

    return kernel


def _beside_kernel(operator: Any) -> Callable[..., Any]:
    """What native/torch finds at DOUBLE: the kernel of sparse tensors, of float64, or the one that the operands ask for."""
    if operator not in SPARSE:
        return _double_kernel(DOUBLES[operator])
    sparse = _sparse_kernel(operator, SPARSE[operator])
    if operator not in DOUBLES:
        return sparse
    double = _double_kernel(DOUBLES[operator])

    def kernel(*args: Any, **kwargs: Any) -> Any:
        chosen = double if all(x.layout == torch.strided for x in tensors_of(args)) else sparse
        return chosen(*args, **kwargs)

    return kernel


def _in_place(kernel: Callable[..., Any]) -> Callable[..., Any]:
    return lambda target, *args, **kwargs: target.copy_(kernel(target, *args, **kwargs))


def _into(kernel: Callable[..., Any]) -> Callable[..., Any]:
    def write(*args: Any, out: Any, **kwargs: Any) -> Any:
        found = kernel(*args, **kwargs)
        return (out if out.shape == found.shape else out.resize_(found.shape)).copy_(found)

    return write


_IGNORED = ("memory_format", "layout", "device", "pin_memory")


def _listed(values: Any) -> Any:
    return values if isinstance(values, (list, tuple)) else (values,)


def _full_name(operator: Any) -> str:
    return str(operator._schema.name) + (f".{operator._overloadname}" if operator._overloadname != "default" else "")


def _twins(operator: Any) -> Iterator[Any]:
    """The operators that write what this one makes: in place, and into an argument `out`. Those that PyTorch generates ask it."""
    name = operator._schema.name.rpartition("::")[2]
    taken = [(str(a.type), a.name) for a in operator._schema.arguments]
    for packet in (getattr(aten, name, None), getattr(aten, f"{name}_", None)):
        for overload in () if packet is None else packet.overloads():
            twin = getattr(packet, overload)
            writes = any(a.alias_info is not None and a.alias_info.is_write for a in twin._schema.arguments)
            if (
                writes
                and torch.Tag.generated not in twin.tags
                and [(str(a.type), a.name) for a in twin._schema.arguments if not a.is_out] == taken
            ):
                yield twin


@cache
def library(namespace: str = "aten") -> Any:
    """The registrations, which last as long as the process: the key is included in blocks alone."""
    return torch.library.Library(namespace, "IMPL")


@cache
def operator_names() -> frozenset[str]:
    """The operators that the dispatcher knows, as "aten::add.Tensor"."""
    return frozenset(torch._C._dispatch_get_all_op_names())


def sparse_names() -> frozenset[str]:
    """The operators that have a route of sparse tensors, with those that write their results."""
    return frozenset(map(_full_name, [*SPARSE, *(twin for operator in SPARSE for twin in _twins(operator))]))


def has_kernel(name: str) -> bool:
    return name in operator_names() and torch._C._dispatch_has_kernel_for_dispatch_key(name, KEY)


def pass_functions() -> None:
    """Operators that take functions, such as `flex_attention`, are made of others: those of modules imported later, too."""
    keys = [torch._C._parse_dispatch_key(name) for name in (KEY, FRONT)]
    torch._ops._HIGHER_ORDER_OP_DEFAULT_FALLTHROUGH_DISPATCH_KEYS.extend(keys)
    for operator in torch._ops._higher_order_ops.values():
        for key in keys:
            operator.fallthrough(key)


def register_kernels(routed: Sequence[str]) -> None:
    """Registers Python's routes, and for each operator that is routed here or in C++ those that write its result."""
    for operator, function in ROUTES.items():
        if not has_kernel(_full_name(operator)):
            library().impl(_full_name(operator), _kernel(operator, function), KEY)
    for name, kernel in LIBRARIES.items():
        namespace, _, op = name.partition("::")
        library(namespace).impl(op, kernel, KEY)
    for operator in DOUBLES | SPARSE:
        kernel = _beside_kernel(operator)
        library().impl(_full_name(operator), kernel, DOUBLE)
        for twin in _twins(operator):
            if operator in SPARSE or has_kernel(_full_name(twin)):
                writing = _into if any(a.is_out for a in twin._schema.arguments) else _in_place
                library().impl(_full_name(twin), writing(kernel), DOUBLE)
    packets = [getattr(aten, n) for n in routed if hasattr(aten, n)]
    written = dict[str, str]()
    for operator in [*ROUTES, *(getattr(p, o) for p in packets for o in p.overloads())]:
        if has_kernel(_full_name(operator)):
            names = [n for n in map(_full_name, _twins(operator)) if n in operator_names() and not has_kernel(n)]
            written.update(dict.fromkeys(names, _full_name(operator)))
    encoded = [n.encode() for pair in written.items() for n in pair]
    shim.load().tlrt_torch_writing((ctypes.c_char_p * len(encoded))(*encoded), len(written))
