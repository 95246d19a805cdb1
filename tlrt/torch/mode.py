"""The mode in which an unmodified model computes on this package's kernels."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack
from functools import cache, lru_cache
from typing import Any

import torch
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.flop_counter import flop_registry

from tlrt._terminal import format_table
from tlrt.errors import UnavailableError, refusal
from tlrt.torch.routes import ROUTES
from tlrt.torch.routes.attention import attention

aten = torch.ops.aten
#: operators, views aside, whose float32 results IEEE 754 and the order of the data decide: they copy, choose, compare, or round
#: once
_DETERMINED = """
_reshape_copy _to_copy _unsafe_view abs add amax amin arange cat ceil clamp clamp_max clamp_min clone constant_pad_nd copy
copysign div embedding empty empty_like eq eye fill flip floor floor_divide full full_like gather ge gt hardtanh
hardtanh_backward index index_copy index_fill index_put index_select le leaky_relu leaky_relu_backward lt
masked_fill masked_scatter masked_select max max_pool2d_with_indices maximum min minimum mul ne neg new_empty
new_empty_strided new_full new_ones new_zeros ones ones_like reciprocal relu repeat roll round scalar_tensor scatter
select_backward select_scatter sgn sign slice_backward slice_scatter sort stack sub threshold_backward topk tril triu
trunc where zero zeros zeros_like
"""
DETERMINED = frozenset(_DETERMINED.split())
HERE, LEFT = "here", "left to PyTorch"


class Report:
    """What a block under :func:`reproducible` has computed: for each operator of PyTorch's how often it ran, on how much
    work, and who computed it. Work is counted in floating-point operations for products and in elements of the results
    otherwise."""

    def __init__(self) -> None:
        self.calls: Counter[tuple[str, str]] = Counter()
        self.work: Counter[tuple[str, str]] = Counter()

    def add(self, operator: str, kind: str, work: int) -> None:
        self.calls[operator, kind] += 1
        self.work[operator, kind] += work

    @property
    def coverage(self) -> float:
        """The share of the float32 work whose bits do not depend on the device."""
        total = sum(self.work.values())
        return 1.0 if not total else 1 - sum(w for (_, kind), w in self.work.items() if kind == LEFT) / total

    @property
    def left(self) -> tuple[str, ...]:
        """The operators whose results were PyTorch's own, and may depend on the device."""
        return tuple(sorted(name for name, kind in self.calls if kind == LEFT))

    def __str__(self) -> str:
        rows = [(name, kind, self.calls[name, kind], work) for (name, kind), work in self.work.most_common()]
        return f"{format_table(('operator', 'computed', 'calls', 'work'), rows)}\n{self.coverage:.2%} of the work is reproducible"

    def __repr__(self) -> str:
        return f"<Report: {self.coverage:.2%} of {len(self.calls)} operators' work>"


class _Functions(TorchFunctionMode):  # type: ignore[misc]
    """Attention as one operation, where its arguments are the kernel's."""

    def __init__(self, report: Report) -> None:
        super().__init__()
        self._report = report

    def __torch_function__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if function is torch.nn.functional.scaled_dot_product_attention:
            found = attention(*args, **(kwargs or {}))
            if found is not None:
                q, k = args[0] if args else kwargs["query"], args[1] if len(args) > 1 else kwargs["key"]
                self._report.add("scaled_dot_product_attention", HERE, 4 * q.numel() * k.shape[2])
                return found
        return function(*args, **(kwargs or {}))


class _Operators(TorchDispatchMode):  # type: ignore[misc]
    def __init__(self, report: Report, strict: bool) -> None:
        super().__init__()
        self._report, self._strict = report, strict

    def __torch_dispatch__(self, operator: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if operator.is_view or operator.namespace != "aten":
            return operator(*args, **kwargs)
        route, target = ROUTES.get(operator), None
        if route is None and (route := _functional(operator)) is not None:
            target = kwargs.pop("out") if "out" in kwargs else args[0]
        if route is not None and _is_float32(args, kwargs):
            try:
                found = self._routed(route, operator, args, kwargs)
            except NotImplementedError:
                pass
            else:
                return found if target is None else target.copy_(found)
        if target is not None and target is not args[0]:
            kwargs["out"] = target
        found = operator(*args, **kwargs)
        if any(x.dtype == torch.float32 for x in _tensors((found,))):
            name = operator._schema.name.rpartition("::")[2]
            kind = "determined" if _is_determined(name.removesuffix("_"), args) else LEFT
            if kind == LEFT and self._strict:
                raise refusal(
                    UnavailableError,
                    "tlrt.torch.reproducible",
                    "operator",
                    str(operator),
                    "one with a route; see docs/torch.md",
                )
            self._report.add(name, kind, _work(operator, args, kwargs, found))
        return found

    def _routed(self, route: Any, operator: Any, args: Any, kwargs: Any) -> Any:
        found = route(
            *args, **{n: v for n, v in kwargs.items() if n not in ("memory_format", "layout", "device", "pin_memory")}
        )
        self._report.add(operator._schema.name.rpartition("::")[2], HERE, _work(operator, args, kwargs, found))
        return found


def _is_determined(name: str, args: Any) -> bool:
    """Whether the operator's results are the same on all devices; steps between fractions a GPU rounds in its own way."""
    return name in DETERMINED and (name != "arange" or all(float(x).is_integer() for x in args if type(x) is float))


@cache
def _functional(operator: Any) -> Any:
    """The route of an operator's twin that makes a new tensor: the overload that takes the same types."""
    base = getattr(aten, operator._schema.name.rpartition("::")[2].removesuffix("_"), None)
    taken = [str(a.type) for a in operator._schema.arguments if not a.is_out]
    for name in () if base is None else base.overloads():
        twin = getattr(base, name)
        if twin in ROUTES and [str(a.type) for a in twin._schema.arguments] == taken:
            return ROUTES[twin]
    return None


def _tensors(values: Any) -> Iterator[Any]:
    """The tensors among an operator's arguments or results, which are in no deeper lists."""
    for x in values:
        if isinstance(x, torch.Tensor):
            yield x
        elif isinstance(x, (list, tuple)):
            yield from (y for y in x if isinstance(y, torch.Tensor))


def _is_float32(args: Any, kwargs: Any) -> bool:
    """Whether the floating-point tensors among the arguments are float32, and there is one."""
    kinds = {x.dtype for x in _tensors((*args, *kwargs.values())) if x.dtype.is_floating_point}
    return kinds == {torch.float32} and kwargs.get("dtype") in (None, torch.float32)


def _shape(x: Any) -> Any:
    """A hashable value that counting operations needs of an argument: a tensor's shape, a list's numbers."""
    return x.shape if isinstance(x, torch.Tensor) else tuple(map(_shape, x)) if type(x) in (list, tuple) else x


@lru_cache(maxsize=4096)
def _operations(packet: Any, args: Any, kwargs: Any, found: Any) -> int:
    return int(flop_registry[packet](*args, **dict(kwargs), out_val=found))


def _work(operator: Any, args: Any, kwargs: Any, found: Any) -> int:
    if (packet := operator._overloadpacket) in flop_registry:
        return _operations(packet, _shape(args), tuple((n, _shape(x)) for n, x in kwargs.items()), _shape(found))
    return sum(x.numel() for x in _tensors((found,)) if x.dtype == torch.float32)


class reproducible:
    """A block in which float32 operators of an unmodified model compute on this package's kernels: forward passes, and
    backward passes that run inside it. The same inputs then give the same bits on the CPU and on every GPU, whatever the
    batch and the threads.

        with tlrt.torch.reproducible() as report:
            loss = model(x).square().mean()
            loss.backward()
        print(report)

    Left to PyTorch are other types than float32, dropout that is on, and operators without a route: the report names them,
    and with `strict` they raise :class:`tlrt.errors.UnavailableError`. Inside the block cuDNN and fused attention are off."""

    def __init__(self, strict: bool = False) -> None:
        self._strict = strict
        self._stack = ExitStack()

    def __enter__(self) -> Report:
        report = Report()
        self._stack.enter_context(sdpa_kernel(SDPBackend.MATH))
        self._stack.enter_context(torch.backends.cudnn.flags(enabled=False))
        self._stack.enter_context(_Operators(report, self._strict))
        self._stack.enter_context(_Functions(report))
        return report

    def __exit__(self, *error: Any) -> None:
        self._stack.close()
