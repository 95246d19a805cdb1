"""What layers are: callables that hold parameters, and containers of them.

Whether a call trains is an argument of the call, ``layer(x, training=True)``, off by default, and containers hand it down.
It is no attribute, so that a call depends on nothing set elsewhere: the same layer can train and be evaluated within one
step, and an evaluation can neither drop values nor move running statistics because somebody forgot to switch.
"""

from collections.abc import Callable, Iterator
from typing import Any

from tlrt._binding.arguments import length
from tlrt.errors import ArgumentError, ArgumentTypeError, refusal
from tlrt.parameter import Parameter
from tlrt.tensor import TensorRef

__all__ = ["Dropout", "Layer", "Sequential"]


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


def require_sizes(layer: object, **sizes: int) -> None:
    """Raises ArgumentTypeError, ShapeError for a layer's size that is no number of elements."""
    for name, size in sizes.items():
        length(type(layer).__name__, name, size)


class Layer:
    """A call, and the parameters among the attributes. A subclass defines the call."""

    def __call__(self, x: Any, *, training: bool = False) -> TensorRef:
        """The layer applied to x."""
        raise NotImplementedError(f"{type(self).__name__}.__call__")

    def parameters(self) -> list[Parameter]:
        """All parameters, frozen ones included: those of the attributes, in their order, which are parameters, layers, or lists,
        tuples or dicts of them."""
        return list(dict.fromkeys(parameters_in(vars(self), {id(self)})))

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


class Sequential(Layer):
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

    def __getitem__(self, index: int) -> Layer | Callable[[TensorRef], TensorRef]:
        return self.layers[index]

    def __len__(self) -> int:
        return len(self.layers)

    def __repr__(self) -> str:
        return "Sequential(" + "".join(f"\n    {layer!r}," for layer in self.layers) + "\n)"
