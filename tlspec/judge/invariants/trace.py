"""The first operator of PyTorch whose result differs between two calls."""

import contextlib
import importlib
from collections.abc import Callable, Iterator
from typing import Any

#: how the part of a result that belongs to one sample is found: part(smaller shape, larger result) or None
Part = Callable[[tuple[int, ...], Any], Any]


def first_difference(
    one: Callable[[], Any],
    other: Callable[[], Any],
    part: Part,
    module: Any = None,
    alone: Callable[[], Any] | None = None,
) -> str:
    """The first operator, in the order of execution, of which `other` has another result than `one`; "" where none has. `part`
    takes from a result of `other` what `one` has; from those of both what `alone` has, where that is given."""
    torch = importlib.import_module("torch")
    base = importlib.import_module("torch.utils._python_dispatch").TorchDispatchMode
    places = _Places(module)
    kept: list[tuple[str, str, list[Any]]] = []
    shapes: list[list[tuple[int, ...]]] = []
    found: list[str] = []

    def tensors(results: Any) -> list[Any]:
        group = results if isinstance(results, (tuple, list)) else [results]
        return [x for x in group if isinstance(x, torch.Tensor)]

    class Recording(base):  # type: ignore[misc, valid-type]
        def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            results = function(*args, **(kwargs or {}))
            if "empty" not in function.name():  # whose memory holds anything
                kept.append((function.name(), places.now, [x.detach().clone() for x in tensors(results)]))
            return results

    def cut(at: int, results: list[Any]) -> list[Any]:
        """The parts that the sample has which was called alone."""
        if at >= len(shapes):
            return results
        return [x if tuple(x.shape) == s else part(s, x) for s, x in zip(shapes[at], results, strict=False)]

    class Comparing(base):  # type: ignore[misc, valid-type]
        def __init__(self) -> None:
            super().__init__()
            self.at = 0

        def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            results = function(*args, **(kwargs or {}))
            name = function.name()
            if "empty" not in name and not found:
                self.compare(name, tensors(results))
            return results

        def compare(self, name: str, results: list[Any]) -> None:
            if self.at >= len(kept) or kept[self.at][0] != name:
                was = kept[self.at][0] if self.at < len(kept) else "none"
                found.append(f"{places.now}{name}, where the other call has {was}: the calls choose other operators")
                return
            _, place, before = kept[self.at]
            before, results = cut(self.at, before), cut(self.at, results)
            self.at += 1
            for x, y in zip(before, results, strict=False):
                own = y if x is None or y is None or x.shape == y.shape else part(tuple(x.shape), y)
                if x is not None and own is not None and not _same(torch, x, own):
                    found.append(f"{place}{name}")
                    return

    with places.watched():
        if alone is not None:
            with Recording():
                alone()
            shapes += [[tuple(x.shape) for x in results] for _, _, results in kept]
            kept.clear()
        with Recording():
            one()
        with Comparing():
            other()
    return found[0] if found else ""


def _same(torch: Any, x: Any, y: Any) -> bool:
    """Whether two tensors have the same bits."""
    y = y.to(x.device)
    if x.dtype != y.dtype or x.shape != y.shape:
        return False
    if x.is_floating_point() or x.is_complex():
        flat = [
            t.contiguous().reshape(-1).view(torch.uint8) if t.numel() else t.new_empty(0, dtype=torch.uint8)
            for t in (x, y)
        ]
        return bool(torch.equal(*flat))
    return bool(torch.equal(x, y))


class _Places:
    """The name of the submodule that is being computed."""

    def __init__(self, module: Any):
        named = module.named_modules() if hasattr(module, "named_modules") else ()
        self.names = {id(m): name for name, m in named}
        self.stack: list[str] = []

    @property
    def now(self) -> str:
        return f"{self.stack[-1]}: " if self.stack and self.stack[-1] else ""

    @contextlib.contextmanager
    def watched(self) -> Iterator[None]:
        hooks = importlib.import_module("torch.nn.modules.module")
        before = hooks.register_module_forward_pre_hook(lambda m, x: self.stack.append(self.names.get(id(m), "")))
        after = hooks.register_module_forward_hook(lambda m, x, y: self.stack.pop() and None, always_call=True)
        try:
            yield
        finally:
            before.remove()
            after.remove()
