"""Layers that act on the last axis: Linear, Embedding, LayerNorm."""

from typing import Any

import numpy.typing as npt

from tlrt.nn import init
from tlrt.nn.layer import Layer, require_sizes
from tlrt.parameter import Parameter
from tlrt.session import Session
from tlrt.tensor import TensorRef

__all__ = ["Embedding", "LayerNorm", "Linear"]


class Linear(Layer):
    """An affine map of the last axis.

    y = W·x + b

    x (…, inputs) to (…, outputs); NAME.weight (outputs, inputs), NAME.bias (outputs). Both start uniform within ±1/√inputs.
    With bias off b is 0. Raises ShapeError. Source: torch.nn.Linear."""

    def __init__(
        self, session: Session, inputs: int, outputs: int, *, name: str, bias: bool = True,
        weight_init: init.Initializer | None = None, bias_init: init.Initializer | None = None,
    ) -> None:  # fmt: skip
        require_sizes(self, inputs=inputs, outputs=outputs)
        self.session = session
        weight = init.initial_value(weight_init, init.kaiming_uniform, session, (outputs, inputs))
        self.weight = session.param(weight, f"{name}.weight")
        self.bias: Parameter | None = None
        if bias:
            default = lambda s, shape: init.bias(s, outputs, inputs)
            self.bias = session.param(init.initial_value(bias_init, default, session, (outputs,)), f"{name}.bias")

    def __call__(self, x: TensorRef | Parameter, *, training: bool = False) -> TensorRef:
        s: Any = self.session
        return s.linear(self.weight, s.zeros(self.weight.shape[:1]) if self.bias is None else self.bias, x)


class Embedding(Layer):
    """A table of vectors, looked up by index.

    indices (…) to (…, width); NAME.weight (count, width) starts normal with mean 0 and deviation 1. The indices are
    a host array or a vector of naturals of the session; one of `count` or more reads zeros and receives no gradient.
    Source: torch.nn.Embedding."""

    def __init__(
        self, session: Session, count: int, width: int, *, name: str, weight_init: init.Initializer | None = None
    ) -> None:
        require_sizes(self, count=count, width=width)
        self.session = session
        weight = init.initial_value(weight_init, init.normal, session, (count, width))
        self.weight = session.param(weight, f"{name}.weight")

    def __call__(self, x: npt.ArrayLike, *, training: bool = False) -> TensorRef:
        s: Any = self.session
        return s.embedding(self.weight, x)


class LayerNorm(Layer):
    """Normalisation along the last axis.

    y = weight·(x - mean)/√(variance + eps) + bias, the variance biased

    x (…, width) to the same shape; NAME.weight (width) starts at 1, NAME.bias (width) at 0. eps is 1e-5 as in PyTorch, not the
    operation's own default. Raises ShapeError. Source: Ba, Kiros and Hinton, arXiv:1607.06450; torch.nn.LayerNorm."""

    def __init__(self, session: Session, width: int, *, name: str, eps: float = 1e-5) -> None:
        require_sizes(self, width=width)
        self.session, self.eps = session, eps
        self.weight = session.param(init.ones(session, (width,)), f"{name}.weight")
        self.bias = session.param(init.zeros(session, (width,)), f"{name}.bias")

    def __call__(self, x: TensorRef | Parameter, *, training: bool = False) -> TensorRef:
        s: Any = self.session
        return s.layer_norm(x, self.weight, self.bias, self.eps)
