"""What layers are: callables that hold parameters, and containers of them.

Whether a call trains is an argument of the call, ``layer(x, training=True)``, off by default, and containers hand it down.
It is no attribute, so that a call depends on nothing set elsewhere: the same layer can train and be evaluated within one
step, and an evaluation can neither drop values nor move running statistics because somebody forgot to switch.
"""

from collections.abc import Callable, Iterable
from typing import Any

from tlrt.errors import ArgumentError, ArgumentTypeError, refusal
from tlrt.parameter import Parameter
from tlrt.tensor import TensorRef

__all__ = ["Dropout", "Layer", "Sequential"]


class Layer:
    """Parameters and a call. A subclass defines both; nothing is registered behind its back."""

    def __call__(self, x: Any, *, training: bool = False) -> TensorRef:
        """The layer applied to x."""
        raise NotImplementedError(f"{type(self).__name__}.__call__")

    def parameters(self) -> list[Parameter]:
        """All parameters, frozen ones included, in the order they were made."""
        return []

    @staticmethod
    def _collect_parameters(layers: "Iterable[Layer]") -> list[Parameter]:
        return [p for layer in layers for p in layer.parameters()]

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
        self.layers = layers

    def __call__(self, x: Any, *, training: bool = False) -> TensorRef:
        for layer in self.layers:
            x = layer(x, training=training) if isinstance(layer, Layer) else layer(x)
        return x

    def parameters(self) -> list[Parameter]:
        return self._collect_parameters(layer for layer in self.layers if isinstance(layer, Layer))

    def __getitem__(self, index: int) -> Layer | Callable[[TensorRef], TensorRef]:
        return self.layers[index]

    def __len__(self) -> int:
        return len(self.layers)

    def __repr__(self) -> str:
        return "Sequential(" + "".join(f"\n    {layer!r}," for layer in self.layers) + "\n)"
