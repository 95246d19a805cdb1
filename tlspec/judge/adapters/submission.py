"""A submission to a task, as its own process has it: how the file becomes a function, and how that is called.

A recipe says how: a mapping of plain values, made by the adapter of a format, and understood by :func:`loaded` here. It holds
nothing of the task's reference but what a submission needs, as the parameters of a model.
"""

import copy
import importlib
import inspect
import io
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tlspec.judge.adapters.sources import executed, imported_from, part

#: the name under which a call gets the arguments' structure
GIVEN = "given"
#: values that arguments may hold besides tensors
PLAIN = (bool, int, float, complex, str, bytes, type(None))


class Unsent(Exception):
    """An argument that cannot be sent to another process."""


@dataclass(frozen=True)
class Place:
    """Where a tensor stands among the arguments."""

    name: str
    shape: tuple[int, ...]
    strides: tuple[int, ...]
    needs_gradient: bool


def packed(torch: Any, given: Any) -> tuple[Any, dict[str, Any]]:
    """The structure of the arguments, and their tensors by name. Raises Unsent."""
    tensors: dict[str, Any] = {}

    def pack(x: Any) -> Any:
        if isinstance(x, torch.Tensor):
            name = f"x{len(tensors)}"
            tensors[name] = x
            return Place(name, tuple(x.shape), tuple(x.stride()), x.requires_grad)
        if type(x) in (list, tuple):
            return type(x)(pack(v) for v in x)
        if type(x) in (dict, torch.Size):
            return {k: pack(v) for k, v in x.items()} if type(x) is dict else tuple(x)
        if not isinstance(x, (*PLAIN, torch.dtype, torch.device)) or type(x).__module__ not in ("builtins", "torch"):
            raise Unsent(f"an argument is a {type(x).__name__}")
        return x

    return pack(list(given)), tensors


def called(function: Callable[..., Any], values: Mapping[str, Any]) -> Any:
    """Calls a submission with the arguments of a request; what is written in place is written to the request's arrays."""
    torch = importlib.import_module("torch")
    copies: list[tuple[Any, Any]] = []

    def unpack(x: Any) -> Any:
        if isinstance(x, Place):
            own = values[x.name]
            if tuple(own.stride()) != x.strides and not any(s == 0 for s in x.strides):
                made = torch.empty_strided(x.shape, x.strides, dtype=own.dtype, device=own.device).copy_(own)
                copies.append((own, made))
                own = made
            return own.requires_grad_(x.needs_gradient) if x.needs_gradient else own
        if isinstance(x, (list, tuple)):
            return type(x)(unpack(v) for v in x)
        return {k: unpack(v) for k, v in x.items()} if isinstance(x, dict) else x

    torch.manual_seed(0)
    with torch.no_grad():
        returned = function(*unpack(values[GIVEN]))
        for own, made in copies:
            own.copy_(made)
    found = leaves(torch, returned)
    return [x.detach() for x in found]


def leaves(torch: Any, returned: Any) -> Sequence[Any]:
    """The tensors of what was returned; numbers become tensors."""
    if isinstance(returned, (int, float)):
        return [torch.tensor(returned)]
    return [x for x in flat(returned) if isinstance(x, torch.Tensor)]


def flat(x: Any) -> Iterator[Any]:
    """What stands in mappings, tuples and lists."""
    if isinstance(x, Mapping):
        x = list(x.values())
    if isinstance(x, (tuple, list)):
        for each in x:
            yield from flat(each)
    else:
        yield x


def saved(torch: Any, x: Any) -> bytes:
    """Tensors and plain values, for a recipe."""
    file = io.BytesIO()
    torch.save(x, file)
    return file.getvalue()


def loaded(recipe: Mapping[str, Any]) -> tuple[Callable[..., Any], list[str]]:
    """The function that a recipe makes, and what a reader should know of it."""
    with imported_from(*map(Path, recipe["folders"])):
        module = executed(Path(recipe["file"]), {}, recipe["replaced"])
        found = part(module, recipe["names"], Path(recipe["shown"]))
        if recipe["format"] == "kernelbench":
            return _model(found, recipe)
    return (_with_outputs(found, recipe) if recipe["format"] == "flashinfer" else found), []


class Loaded:
    """A model as a function of a case's number and its arguments. The model's own parameters are loaded before a call of case 0,
    others before one of a later case. The results are the model's and then its buffers in floating point, by name."""

    def __init__(self, model: Any, state: Mapping[str, Any]):
        self.model, self.called = model, False
        own = {k: v.detach().cpu().clone() for k, v in state.items()}
        names = dict(model.named_parameters(remove_duplicate=False))
        states = [own, {k: _changed(v) if k in names else v for k, v in own.items()}] if own else []
        # float64 holds the numbers of every format, and the analysis of a reference reads it
        self.states = [{k: v.double() if v.is_floating_point() else v for k, v in s.items()} for s in states]
        self.buffers = [k for k, v in own.items() if k not in names and v.is_floating_point()]

    def __call__(self, number: int, *given: Any) -> Any:
        if self.states:
            if number and not self.called:  # a later case alone: a model keeps what it makes at the first call
                self.model(*copy.deepcopy(given))
            self.called = True
            self.model.load_state_dict(self.states[min(number, 1)])
        returned = self.model(*given)
        if not self.buffers:
            return returned
        state = self.model.state_dict()
        results = named(importlib.import_module("torch"), returned)
        return results | {f"{k} after the call": state[k].clone() for k in self.buffers}


def named(torch: Any, returned: Any) -> dict[str, Any]:
    """The tensors of what a function returned, by the names that a report gives them."""
    found = leaves(torch, returned)
    return {f"out{i}" if len(found) > 1 else "out": x for i, x in enumerate(found)}


def _changed(x: Any) -> Any:
    """Numbers times multiples of 1/16 in [1/2, 3/2], which keep signs; some of these instead of zeros."""
    torch = importlib.import_module("torch")
    if not x.is_floating_point():
        return x
    factor = (1 + ((torch.arange(x.numel()) * 7919) % 17 - 8).to(x.dtype) / 16).reshape(x.shape)
    return torch.where(x == 0, factor - 1, x * factor)


def _model(kind: Any, recipe: Mapping[str, Any]) -> tuple[Callable[..., Any], list[str]]:
    """ModelNew with the parameters of Model, where both have the same."""
    torch = importlib.import_module("torch")
    init, state = (torch.load(io.BytesIO(recipe[k]), weights_only=False) for k in ("init", "state"))
    format = getattr(torch, recipe["dtype"]) if recipe["dtype"] else None
    torch.manual_seed(recipe["seed"])
    model = kind(**init) if isinstance(init, dict) else kind(*init)
    model = model.to(recipe["device"]) if format is None else model.to(recipe["device"], format)
    ours, theirs = ({k: v.shape for k, v in s.items()} for s in (state, model.state_dict()))
    if ours == theirs:
        model.load_state_dict(state)
        return Loaded(model, state), []
    text = f"ModelNew has other parameters than Model ({_short(theirs)}; {_short(ours)}), which stay as drawn"
    return Loaded(model, {}), [text] if ours else []


def _short(names: Mapping[str, Any]) -> str:
    return ", ".join(list(names)[:4]) or "none"


def _with_outputs(kernel: Callable[..., Any], recipe: Mapping[str, Any]) -> Callable[..., Any]:
    """A function of the inputs alone, of one that may want arrays for its results, too."""
    torch = importlib.import_module("torch")
    inputs, outputs, device = recipe["inputs"], recipe["outputs"], recipe["device"]
    destinations = recipe["destinations"]
    if destinations is None:
        destinations = _count(kernel) == len(inputs) + len(outputs)

    def run(*given: Any) -> Any:
        if not destinations:
            return listed(kernel(*given), outputs)
        known = dict(recipe["constants"])
        for shape, x in zip(inputs.values(), given, strict=True):
            known |= {d: n for d, n in zip(shape or (), getattr(x, "shape", ()), strict=False) if isinstance(d, str)}
        made = []
        for shape, dtype in outputs.values():
            empty = float("nan") if "float" in dtype else 0
            made.append(torch.full([known.get(n, n) for n in shape], empty, dtype=getattr(torch, dtype), device=device))
        kernel(*given, *made)
        return made

    return run


def listed(returned: Any, outputs: Mapping[str, Any]) -> Any:
    return [returned[n] for n in outputs] if isinstance(returned, dict) else returned


def _count(function: Any) -> int:
    try:
        kinds = (p.kind for p in inspect.signature(function).parameters.values())
        return sum(k in (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD) for k in kinds)
    except (TypeError, ValueError):
        return 0
