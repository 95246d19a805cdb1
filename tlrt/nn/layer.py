"""What layers are: callables that hold parameters, and containers of them.

Whether a call trains is an argument of the call, ``layer(x, training=True)``, off by default, and containers hand it down.
It is no attribute, so that a call depends on nothing set elsewhere: the same layer can train and be evaluated within one
step, and an evaluation can neither drop values nor move running statistics because somebody forgot to switch.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Generic, NamedTuple, TypeVar

import numpy as np
import numpy.typing as npt

from tlrt._binding.arguments import boolean, length
from tlrt._binding.together import release_call, set_and_call
from tlrt.errors import ArgumentError, ArgumentTypeError, ShapeError, refusal
from tlrt.parameter import Parameter
from tlrt.tensor import TensorRef

__all__ = ["Dropout", "IncompatibleKeys", "Layer", "ModuleList", "Sequential"]

#: methods of torch.nn.Module, and what does here what they do there
_ELSEWHERE = {
    "train": "training=True, an argument of the call", "eval": "training=False, an argument of the call and its default",
    "forward": "__call__", "register_buffer": "session.param(value, name, requires_grad=False)", "to": "Session(device)",
    "register_parameter": "session.param(value, name)", "zero_grad": "session.reset()", "cuda": 'Session("cuda")',
    "children": "vars(layer)", "buffers": "named_parameters()", "apply": "named_parameters()",
}  # fmt: skip

#: what a container holds
Part = TypeVar("Part")


def parameters_in(value: Any, seen: set[int]) -> Iterator[Parameter]:
    """The parameters of a value: itself, those of a layer that was not seen, or of what a list, tuple or dict holds, or of the
    layer that a bound method belongs to."""
    owner = getattr(value, "__self__", value) if callable(value) else value
    if isinstance(value, Parameter):
        yield value
    elif isinstance(owner, Layer):
        if type(owner).parameters is not Layer.parameters:
            yield from owner.parameters()
        elif id(owner) not in seen:
            seen.add(id(owner))
            yield from parameters_in(vars(owner), seen)
    elif isinstance(value, (list, tuple, dict)):
        for part in value.values() if isinstance(value, dict) else value:
            yield from parameters_in(part, seen)


def named_parameters_in(value: Any, name: str, path: tuple[int, ...] = ()) -> Iterator[tuple[str, Parameter]]:
    """The parameters of a value as :func:`parameters_in` finds them, each under all of its dotted names; nothing is looked for
    within itself."""
    owner = getattr(value, "__self__", value) if callable(value) else value
    lead = f"{name}." if name else ""
    if isinstance(value, Parameter):
        yield name, value
    elif id(owner) not in path and (isinstance(owner, Layer) or isinstance(value, (list, tuple, dict))):
        path = (*path, id(owner))
        if isinstance(owner, Layer):
            found = [pair for part, of in owner._parts() for pair in named_parameters_in(of, f"{lead}{part}", path)]
            if type(owner).parameters is not Layer.parameters:  # a list of its own
                own = owner.parameters()
                found = [pair for pair in found if pair[1] in own]
                found += [(f"{lead}{p.name}", p) for p in own if all(p is not known for _, known in found)]
            yield from found
        else:
            for part, of in owner.items() if isinstance(owner, dict) else enumerate(owner):
                yield from named_parameters_in(of, f"{lead}{part}", path)


def require_sizes(layer: object, **sizes: int) -> None:
    """Raises ArgumentTypeError, ShapeError for a layer's size that is no number of elements."""
    for name, size in sizes.items():
        length(type(layer).__name__, name, size)


class IncompatibleKeys(NamedTuple):
    """What :meth:`Layer.load_state_dict` passed over when it was not strict."""

    missing_keys: list[str]
    unexpected_keys: list[str]


class Layer:
    """A call, and the parameters among the attributes. A subclass defines the call.

    A value that is kept but not trained, such as a running statistic, is a parameter made with ``requires_grad=False``."""

    if not TYPE_CHECKING:  # else every name would be one

        def __getattr__(self, name):
            if hasattr(type(self), name):  # a property that raised says why
                return object.__getattribute__(self, name)
            there = f"; there is {_ELSEWHERE[name]}" if name in _ELSEWHERE else ""
            raise AttributeError(f"{type(self).__name__} has no attribute {name!r}{there}", name=name, obj=self)

    def __call__(self, x: Any, *, training: bool = False) -> TensorRef:
        """The layer applied to x."""
        raise NotImplementedError(f"{type(self).__name__}.__call__")

    def parameters(self) -> list[Parameter]:
        """All parameters, frozen ones included: those of the attributes, in their order, which are parameters, layers, or lists,
        tuples or dicts of them."""
        return list(dict.fromkeys(parameters_in(vars(self), {id(self)})))

    def _parts(self) -> Iterable[tuple[str, Any]]:
        """The attributes by the names they have in those of parameters."""
        return list(vars(self).items())

    def named_parameters(self) -> list[tuple[str, Parameter]]:
        """The parameters by the dotted names that PyTorch gives them, such as "layers.0.weight": attributes, and places in lists
        and tuples or keys of dicts. One that several attributes hold is there once, under the first name."""
        first = {id(p): (name, p) for name, p in reversed(list(named_parameters_in(self, "")))}
        return list(reversed(first.values()))

    def requires_grad_(self, wanted: bool = True) -> Layer:
        """Trains the parameters from here on, or freezes them. What was made with ``requires_grad=False`` stays as it is."""
        boolean("requires_grad_", "wanted", wanted)
        for parameter in self.parameters():
            if parameter.is_trainable:
                parameter.requires_grad = wanted
        return self

    def state_dict(self) -> dict[str, npt.NDArray[Any]]:
        """Copies of all values by their dotted names, those of PyTorch; a parameter of two names is under both. PyTorch's
        load_state_dict takes them as tensors."""
        return {name: p.numpy() for name, p in named_parameters_in(self, "")}

    def load_state_dict(self, state: Mapping[str, npt.ArrayLike], strict: bool = True) -> IncompatibleKeys:
        """Sets the parameters to arrays, or to PyTorch's tensors, under the names of :meth:`state_dict`, all of them or none.

        Raises ArgumentError with the names that are missing and those that are unexpected, unless `strict` is off, and for two
        values of one parameter; ShapeError with all that differ; ArgumentTypeError for a dtype. The count of batches that
        PyTorch's batch norm keeps is passed over."""
        op = "load_state_dict"
        if not isinstance(state, Mapping):
            raise refusal(ArgumentTypeError, op, "state", type(state).__name__, "a mapping of names to arrays")
        names = dict(named_parameters_in(self, ""))
        for session in {id(p.session): p.session for p in names.values()}.values():
            session._require_uncaptured(op)
        counts = {f"{n.removesuffix('running_mean')}num_batches_tracked" for n in names if n.endswith("running_mean")}
        missing = [n for n in names if n not in state]
        unexpected = [n for n in state if n not in names and n not in counts]
        if boolean(op, "strict", strict) and (missing or unexpected):
            got = f"missing: {', '.join(missing) or 'none'}; unexpected: {', '.join(map(str, unexpected)) or 'none'}"
            raise refusal(ArgumentError, op, "names", got, "those of the layer; strict=False passes over both")
        given = {n: tuple(np.shape(state[n])) for n in names if n in state}
        if wrong := [n for n, shape in given.items() if shape != names[n].shape]:
            got, expected = (
                ", ".join(f"{n} {of[n]}" for n in wrong) for of in (given, {n: names[n].shape for n in wrong})
            )
            raise refusal(ShapeError, op, "shapes", got, expected)
        fresh: dict[Parameter, npt.NDArray[Any]] = {}
        for n in given:
            value = names[n]._converted(state[n], op)
            if not np.array_equal(fresh.setdefault(names[n], value), value, equal_nan=True):
                raise refusal(
                    ArgumentError, op, n, "another value than for the same parameter's other name", "one value"
                )
        changes = [change for p, value in fresh.items() for change in p._changed(value, None)]
        set_and_call(changes, [release_call(p._mirror) for p in fresh if p._mirror is not None])
        return IncompatibleKeys(missing, unexpected)

    def __repr__(self) -> str:
        made = ", ".join(f"{p.name}{list(p.shape)}" for p in self.parameters())
        return f"{type(self).__name__}({made})"


class Dropout(Layer):
    """Dropped elements, in training only.

    y = x·mask/(1 - p), mask 1 with probability 1 - p, drawn from the session's generator; y = x when not training

    Raises ArgumentError unless 0 <= p < 1. Source: Srivastava et al., JMLR 15, 2014; torch.nn.Dropout."""

    def __init__(self, p: float = 0.5) -> None:
        if not 0 <= p < 1:
            raise refusal(ArgumentError, "Dropout", "p", p, "0 <= p < 1")
        self.p = p

    def __call__(self, x: TensorRef, *, training: bool = False) -> TensorRef:
        return x.session.dropout(x, self.p) if training else x

    def __repr__(self) -> str:
        return f"Dropout(p={self.p})"


class _Container(Layer, Generic[Part]):
    """Parts under the names of their places."""

    layers: Sequence[Part]

    def _parts(self) -> Iterable[tuple[str, Any]]:
        others = [(name, value) for name, value in vars(self).items() if name != "layers"]
        return [*((str(i), part) for i, part in enumerate(self.layers)), *others]

    def __getitem__(self, index: int) -> Part:
        return self.layers[index]

    def __len__(self) -> int:
        return len(self.layers)

    def __repr__(self) -> str:
        return f"{type(self).__name__}(" + "".join(f"\n    {layer!r}," for layer in self.layers) + "\n)"


class Sequential(_Container[Layer | Callable[[TensorRef], TensorRef]]):
    """Layers one after the other; functions of one tensor (``session.relu``) may stand between them.

    Raises ArgumentTypeError for what cannot be called."""

    def __init__(self, *layers: Layer | Callable[[TensorRef], TensorRef]) -> None:
        for i, layer in enumerate(layers):
            if isinstance(layer, type) or not callable(layer):
                raise refusal(ArgumentTypeError, "Sequential", f"layer {i}", f"{layer!r}", "a Layer or a function")
            if not isinstance(layer, Layer) and list(parameters_in(dict(getattr(layer, "__dict__", {})), set())):
                got = f"{type(layer).__name__} with parameters"
                raise refusal(ArgumentTypeError, "Sequential", f"layer {i}", got, "a subclass of nn.Layer")
        self.layers = layers

    def __call__(self, x: Any, *, training: bool = False) -> TensorRef:
        for layer in self.layers:
            x = layer(x, training=training) if isinstance(layer, Layer) else layer(x)
        return x


class ModuleList(_Container[Layer]):
    """A list of layers, under the names of torch.nn.ModuleList: "0.weight", "1.weight". It is not called; its layers are.

    A list of Python as an attribute does the same. Raises ArgumentTypeError for what is no layer."""

    def __init__(self, layers: Iterable[Layer] = ()) -> None:
        self.layers: list[Layer] = []
        self.extend(layers)

    def append(self, layer: Layer) -> ModuleList:
        """One more layer at the end."""
        if not isinstance(layer, Layer):
            raise refusal(ArgumentTypeError, "ModuleList", f"layer {len(self)}", f"{layer!r}", "a Layer")
        self.layers.append(layer)
        return self

    def extend(self, layers: Iterable[Layer]) -> ModuleList:
        """More layers at the end."""
        for layer in layers:
            self.append(layer)
        return self

    def __iter__(self) -> Iterator[Layer]:
        return iter(self.layers)
