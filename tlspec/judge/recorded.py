"""The shapes with which a program of PyTorch calls an operation: they are recorded while it runs."""

import importlib
import itertools
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from tlspec.registry import Op
from tlspec.signature import Array

#: PyTorch's functions for a row, where their names are others
FUNCTIONS = {
    "matmul": ("matmul", "mm", "__matmul__"), "bmm": ("bmm", "matmul", "__matmul__"),
    "flash_attention": ("scaled_dot_product_attention",), "grouped_attention": ("scaled_dot_product_attention",),
    "cross_entropy_rows": ("cross_entropy",), "gelu_erf": ("gelu",),
    "gather_rows": ("embedding",), "add": ("add", "__add__"), "mul": ("mul", "__mul__"), "sub": ("sub", "__sub__"),
}  # fmt: skip


def recorded(function: Callable[[], Any], op: Op) -> list[dict[str, Any]]:
    """The dimensions of the calls of a row's operation that a function without arguments makes, such as ``lambda: model(x)``,
    with parameters that are given by name, each once. Raises ImportError without PyTorch, ValueError where there is no call."""
    torch = importlib.import_module("torch")
    mode = importlib.import_module("torch.overrides").TorchFunctionMode
    names = FUNCTIONS.get(op.name, (op.name,))
    found: dict[str, dict[str, Any]] = {}
    called: set[str] = set()

    class Recorder(mode):  # type: ignore[misc, valid-type]
        def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            name = getattr(func, "__name__", "")
            called.add(name)
            if name in names:
                tensors = [x for x in (*args, *(kwargs or {}).values()) if isinstance(x, torch.Tensor)]
                known = {
                    p.name: kwargs[p.name]
                    for p in op.signature.params
                    if isinstance((kwargs or {}).get(p.name), (int, float))
                }
                dims = dimensions(op, [tuple(x.shape) for x in tensors])
                if dims is not None:
                    found.setdefault(repr((dims, known)), {**dims, **known})
            return func(*args, **(kwargs or {}))

    with torch.no_grad(), Recorder():
        function()
    if not found:
        seen = ", ".join(sorted(n for n in called if not n.startswith("__"))[:12])
        raise ValueError(
            f"shapes: no call of {' or '.join(names)} with arrays of {op.text!r} was made; called were {seen}"
        )
    return list(found.values())


def dimensions(op: Op, shapes: Sequence[tuple[int, ...]]) -> dict[str, Any] | None:
    """The dimensions of a row for arrays of these shapes, in its order or, where that does not fit, in another; axes before those
    that an array has are folded into its first. None where nothing fits."""
    inputs = [a for a in op.signature.inputs if not a.optional]
    if op.signature.elementwise:
        return {"n": math.prod(shapes[0])} if shapes else None
    for several in (list(op.signature.inputs), inputs):
        for order in itertools.permutations(shapes[: len(several)]) if len(shapes) >= len(several) else ():
            if (dims := _fitted(several, order)) is not None and {
                d.lstrip("*") for d in op.signature.dims
            } <= dims.keys():
                return dims
    return None


def _fitted(arrays: Sequence[Array], shapes: Sequence[tuple[int, ...]]) -> dict[str, Any] | None:
    dims: dict[str, Any] = {}
    for array, shape in zip(arrays, shapes, strict=True):
        for name, n in _axes(array, shape):
            if name is None or dims.setdefault(name, n) != n:
                return None
    return dims


def _axes(array: Array, shape: tuple[int, ...]) -> Iterator[tuple[str | None, Any]]:
    """The name and the length of each axis; a name of None says that the shape does not fit."""
    names = array.dims
    if len(names) == 1 and names[0].startswith("*"):
        yield names[0][1:], list(shape)
        return
    if not all(n.isidentifier() for n in names) or len(shape) < len(names):
        yield None, 0
        return
    folded = len(shape) - len(names) + 1
    yield from zip(names, (math.prod(shape[:folded]), *shape[folded:]) if names else (), strict=True)


def shapes_of(shapes: Any, op: Op) -> list[Mapping[str, Any]]:
    """What ``shapes=`` stands for: dimensions by name, one or several, or a function of PyTorch that is recorded."""
    if shapes is None:
        return []
    if isinstance(shapes, Mapping):
        return [shapes]
    return [*(recorded(shapes, op) if callable(shapes) else shapes)]
