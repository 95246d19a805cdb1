"""Layers that act on the last axes: Linear, Embedding, LayerNorm, RMSNorm."""

import math
from collections.abc import Sequence
from typing import Any

import numpy.typing as npt

from tlrt.errors import ShapeError, refusal
from tlrt.nn import init
from tlrt.nn.layer import Layer, require_sizes
from tlrt.parameter import Parameter
from tlrt.session import Session
from tlrt.tensor import TensorRef

__all__ = ["Embedding", "LayerNorm", "Linear", "RMSNorm"]


class Linear(Layer):
    """An affine map of the last axis.

    y = W·x + b for x of shape (…, inputs), to (…, outputs). The parameters are NAME.weight (outputs, inputs) and
    NAME.bias (outputs); both start uniform within ±1/√inputs. A call raises ShapeError for another last axis.

    Parameters
    ----------
    session : Session
        The session that gets the parameters.
    inputs, outputs : int
        Sizes of the last axis before and after.
    name : str
        What the parameters' names begin with, unique in the session.
    bias : bool
        False: b is 0.
    weight_init, bias_init : function of (session, shape), optional
        Initial values, such as :func:`tlrt.nn.init.xavier_uniform`.

    Raises
    ------
    ArgumentTypeError, ShapeError
        For a size that is no number of elements.

    Examples
    --------
    >>> import tlrt
    >>> s = tlrt.Session("cpu", seed=1)
    >>> layer = tlrt.nn.Linear(s, 3, 2, name="fc", weight_init=tlrt.nn.init.ones, bias_init=tlrt.nn.init.zeros)
    >>> layer(s.const([[1, 2, 3], [0, 0, 1]])).numpy()
    array([[6., 6.],
           [1., 1.]], dtype=float32)
    >>> layer
    Linear(weight[2, 3], bias[2]): 8 parameters

    Source: torch.nn.Linear.
    """

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

    A call takes integers of any shape (…): an array of the host, a vector of naturals of the session or
    :class:`tlrt.Indices`. It gives (…, width). NAME.weight (count, width) starts normal with mean 0 and deviation 1.

    An index out of range, -1 too, reads zeros and receives no gradient. In ``Session(check_indices=True)`` it raises
    IndexOutOfRangeError.

    Parameters
    ----------
    session : Session
        The session that gets the table.
    count, width : int
        Number of vectors and their length.
    name : str
        What the parameter's name begins with.
    weight_init : function of (session, shape), optional
        Initial values.

    Raises
    ------
    ArgumentTypeError, ShapeError
        For a size that is no number of elements.

    Examples
    --------
    >>> import tlrt
    >>> s = tlrt.Session("cpu")
    >>> table = tlrt.nn.Embedding(s, 4, 2, name="table", weight_init=tlrt.nn.init.ones)
    >>> table([[0, 3]]).shape
    (1, 2, 2)
    >>> table([2, -1]).numpy()
    array([[1., 1.],
           [0., 0.]], dtype=float32)

    An index out of range as an error:

    >>> s = tlrt.Session("cpu", check_indices=True)
    >>> tlrt.nn.Embedding(s, 4, 2, name="table")([2, -1])
    Traceback (most recent call last):
        ...
    tlrt.errors.IndexOutOfRangeError: embedding: indices: got -1 at position 1, expected 0 <= index < 4 (check_indices)

    Source: torch.nn.Embedding.
    """

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
    """Normalisation along the last axis, or over several.

    y = weight·(x - mean)/√(variance + eps) + bias, the variance biased. x (…, width) keeps its shape. NAME.weight
    (width) starts at 1, NAME.bias (width) at 0. A call raises ShapeError for other last axes.

    Parameters
    ----------
    session : Session
        The session that gets the parameters.
    width : int or sequence of int
        The size of the last axis, or those of the last axes.
    name : str
        What the parameters' names begin with.
    eps : float
        Added to the variance; PyTorch's default, not the operation's own.
    affine : bool
        False: no weight and no bias.

    Raises
    ------
    ArgumentTypeError, ShapeError
        For a size that is no number of elements, or no axis.

    Examples
    --------
    >>> import tlrt
    >>> s = tlrt.Session("cpu")
    >>> norm = tlrt.nn.LayerNorm(s, 4, name="norm", eps=0.0)
    >>> norm(s.const([[1, 1, 3, 3]])).numpy()
    array([[-1., -1.,  1.,  1.]], dtype=float32)

    Source: Ba, Kiros and Hinton, arXiv:1607.06450; torch.nn.LayerNorm.
    """

    def __init__(
        self, session: Session, width: int | Sequence[int], *, name: str, eps: float = 1e-5, affine: bool = True
    ) -> None:
        self.session, self.eps, self.shape = session, eps, sizes_of(self, width)
        self.weight, self.bias = affine_parameters(session, self.shape, name, affine)

    def __call__(self, x: TensorRef | Parameter, *, training: bool = False) -> TensorRef:
        s: Any = self.session
        weight = s.full(self.shape, 1.0) if self.weight is None else self.weight
        bias = s.zeros(self.shape) if self.bias is None else self.bias
        if len(self.shape) == 1:
            return s.layer_norm(x, weight, bias, self.eps)
        y = s.layer_norm(fold(self, s, x), s.flatten(weight), s.flatten(bias), self.eps)
        return s.reshape(y, s.shape(x))


class RMSNorm(Layer):
    """Normalisation by the root of the mean square along the last axis, or over several.

    y = weight·x/√(mean of x² + eps). x (…, width) keeps its shape; NAME.weight (width) starts at 1. A call raises
    ShapeError for other last axes.

    Parameters
    ----------
    session : Session
        The session that gets the parameter.
    width : int or sequence of int
        The size of the last axis, or those of the last axes.
    name : str
        What the parameter's name begins with.
    eps : float
        Added to the mean square: PyTorch's 2^-23. Models of the Llama family use 1e-5 or 1e-6.
    affine : bool
        False: no weight.

    Raises
    ------
    ArgumentTypeError, ShapeError
        For a size that is no number of elements, or no axis.

    Examples
    --------
    >>> import tlrt
    >>> s = tlrt.Session("cpu")
    >>> norm = tlrt.nn.RMSNorm(s, 2, name="norm", eps=0.0)
    >>> norm(s.const([[3, 3], [-2, 2]])).numpy()
    array([[ 1.,  1.],
           [-1.,  1.]], dtype=float32)

    Source: Zhang and Sennrich, arXiv:1910.07467; torch.nn.RMSNorm.
    """

    def __init__(
        self, session: Session, width: int | Sequence[int], *, name: str, eps: float = 2.0**-23, affine: bool = True
    ) -> None:
        self.session, self.eps, self.shape = session, eps, sizes_of(self, width)
        self.weight = session.param(init.ones(session, self.shape), f"{name}.weight") if affine else None

    def __call__(self, x: TensorRef | Parameter, *, training: bool = False) -> TensorRef:
        s: Any = self.session
        weight = s.full(self.shape, 1.0) if self.weight is None else self.weight
        if len(self.shape) == 1:
            return s.rms_norm(x, weight, self.eps)
        return s.reshape(s.rms_norm(fold(self, s, x), s.flatten(weight), self.eps), s.shape(x))


def sizes_of(layer: Layer, width: int | Sequence[int]) -> tuple[int, ...]:
    """The sizes of the normalised axes, one or more."""
    sizes = tuple(width) if isinstance(width, Sequence) else (width,)
    for size in sizes:
        require_sizes(layer, width=size)
    if not sizes:
        raise refusal(ShapeError, type(layer).__name__, "width", sizes, "one axis or more")
    return sizes


def affine_parameters(
    session: Session, shape: tuple[int, ...], name: str, affine: bool
) -> tuple[Parameter | None, Parameter | None]:
    """A weight of ones and a bias of zeros; None without `affine`."""
    if not affine:
        return None, None
    weight = session.param(init.ones(session, shape), f"{name}.weight")
    return weight, session.param(init.zeros(session, shape), f"{name}.bias")


def fold(layer: Any, s: Any, x: TensorRef | Parameter) -> TensorRef:
    """x with the normalised axes as one."""
    given, shape = s.shape(x), layer.shape
    if given[-len(shape) :] != shape:
        expected = f"(…, {', '.join(map(str, shape))})"
        raise refusal(ShapeError, type(layer).__name__, "x", f"shape {given}", expected)
    folded: TensorRef = s.reshape(x, (*given[: -len(shape)], math.prod(shape)))
    return folded
