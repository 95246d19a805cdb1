"""Initial weights, drawn from the session's generator.

A draw takes the session's next key, as every draw does, and is computed on the host in float64 by the specification of
``rand_uniform`` or ``rand_normal``, then rounded to float32 once. So two sessions with one seed start from the same float32
weights on the specification, the CPU and CUDA. An initialiser is a function of a session and a shape; layers take one as
``weight_init``.
"""

import math
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import numpy as np
import numpy.typing as npt

from tlrt.errors import ArgumentError, refusal
from tlrt.session import Session
from tlrt.spec import SpecDevice
from tlrt.spec import kernels as specification

__all__ = [
    "Initializer", "constant", "kaiming_uniform", "normal", "ones", "uniform", "xavier_normal", "xavier_uniform", "zeros",
]  # fmt: skip

Array = npt.NDArray[np.float32]
Initializer = Callable[[Session, Sequence[int]], Array]


def _draw(session: Session, name: str, shape: Sequence[int], *parameters: float) -> npt.NDArray[np.float64]:
    n = math.prod(shape)
    draw = getattr(specification, name)(SpecDevice(), n, session._key(), *parameters)
    return draw.numpy(tuple(shape))


def constant(session: Session, shape: Sequence[int], value: float = 0.0) -> Array:
    """The same number everywhere. Nothing is drawn.

    Parameters
    ----------
    session : Session
        Not used; initialisers have one.
    shape : sequence of int
        Of the result.
    value : float
        The number.

    Returns
    -------
    array of float32
        Of that shape. ``init.zeros`` and ``init.ones`` are this function with 0 and 1.

    Examples
    --------
    >>> import tlrt
    >>> s = tlrt.Session("cpu", seed=1)
    >>> tlrt.nn.init.constant(s, (2,), 0.5)
    array([0.5, 0.5], dtype=float32)
    """
    return np.full(tuple(shape), value, np.float32)


zeros: Initializer = partial(constant, value=0.0)
ones: Initializer = partial(constant, value=1.0)


def uniform(session: Session, shape: Sequence[int], low: float = -1.0, high: float = 1.0) -> Array:
    """low + (high - low)·u with u uniform in [0, 1).

    Parameters
    ----------
    session : Session
        Its generator draws.
    shape : sequence of int
        Of the result.
    low, high : float
        The limits.

    Returns
    -------
    array of float32
        Of that shape.

    Raises
    ------
    ArgumentError
        Unless low <= high.

    Examples
    --------
    >>> import tlrt
    >>> s = tlrt.Session("cpu", seed=1)
    >>> a = tlrt.nn.init.uniform(s, (1000,), -2.0, 2.0)
    >>> bool(a.min() >= -2) and bool(a.max() < 2)
    True
    """
    if not low <= high:
        raise refusal(ArgumentError, "uniform", "low", low, f"at most high = {high}")
    return (low + (high - low) * _draw(session, "rand_uniform", shape)).astype(np.float32)


def normal(session: Session, shape: Sequence[int], mean: float = 0.0, std: float = 1.0) -> Array:
    """Normal numbers.

    Parameters
    ----------
    session : Session
        Its generator draws.
    shape : sequence of int
        Of the result.
    mean, std : float
        Mean and standard deviation.

    Returns
    -------
    array of float32
        Of that shape.

    Raises
    ------
    ArgumentError
        Unless std >= 0.

    Examples
    --------
    >>> import tlrt
    >>> s = tlrt.Session("cpu", seed=1)
    >>> tlrt.nn.init.normal(s, (2, 2), mean=3.0, std=0.0)
    array([[3., 3.],
           [3., 3.]], dtype=float32)
    """
    if not std >= 0:
        raise refusal(ArgumentError, "normal", "std", std, "0 or more")
    return (mean + std * _draw(session, "rand_normal", shape)).astype(np.float32)


def fans(shape: Sequence[int]) -> tuple[int, int]:
    """The numbers of inputs and outputs of a weight, times the kernel's size.

    Parameters
    ----------
    shape : sequence of int
        (outputs, inputs, kernel…).

    Returns
    -------
    tuple of int
        (fan_in, fan_out).

    Raises
    ------
    ArgumentError
        For fewer than two axes.

    Examples
    --------
    >>> from tlrt.nn import init
    >>> init.fans((8, 3, 5, 5))
    (75, 200)

    Source: torch.nn.init.
    """
    if len(shape) < 2:
        raise refusal(ArgumentError, "fans", "shape", tuple(shape), "(outputs, inputs, kernel…)")
    field = math.prod(shape[2:])
    return shape[1] * field, shape[0] * field


def kaiming_uniform(session: Session, shape: Sequence[int], slope: float = math.sqrt(5)) -> Array:
    """Uniform within ±√(6/((1 + slope²)·fan_in)); with the slope left out ±1/√fan_in, PyTorch's default for its layers.

    Parameters
    ----------
    session : Session
        Its generator draws.
    shape : sequence of int
        (outputs, inputs, kernel…).
    slope : float
        The negative slope of the leaky relu that follows, 0 for relu.

    Returns
    -------
    array of float32
        Of that shape; zeros for a fan of 0.

    Raises
    ------
    ArgumentError
        For fewer than two axes.

    Examples
    --------
    >>> import tlrt
    >>> s = tlrt.Session("cpu", seed=1)
    >>> bool(abs(tlrt.nn.init.kaiming_uniform(s, (10, 16))).max() <= 1 / 4)
    True

    Source: He et al., arXiv:1502.01852; torch.nn.init.kaiming_uniform_.
    """
    fan_in = fans(shape)[0]
    bound = math.sqrt(6.0 / ((1.0 + slope * slope) * fan_in)) if fan_in else 0.0
    return uniform(session, shape, -bound, bound)


def xavier_uniform(session: Session, shape: Sequence[int], gain: float = 1.0) -> Array:
    """Uniform within ±gain·√(6/(fan_in + fan_out)).

    Parameters
    ----------
    session : Session
        Its generator draws.
    shape : sequence of int
        (outputs, inputs, kernel…).
    gain : float
        Factor of the bound.

    Returns
    -------
    array of float32
        Of that shape.

    Raises
    ------
    ArgumentError
        For fewer than two axes.

    Examples
    --------
    >>> import tlrt
    >>> s = tlrt.Session("cpu", seed=1)
    >>> bool(abs(tlrt.nn.init.xavier_uniform(s, (3, 3))).max() <= 1)
    True

    Source: Glorot and Bengio, AISTATS 2010; torch.nn.init.
    """
    bound = gain * math.sqrt(6.0 / max(sum(fans(shape)), 1))
    return uniform(session, shape, -bound, bound)


def xavier_normal(session: Session, shape: Sequence[int], gain: float = 1.0) -> Array:
    """Normal with deviation gain·√(2/(fan_in + fan_out)).

    Parameters
    ----------
    session : Session
        Its generator draws.
    shape : sequence of int
        (outputs, inputs, kernel…).
    gain : float
        Factor of the deviation.

    Returns
    -------
    array of float32
        Of that shape.

    Raises
    ------
    ArgumentError
        For fewer than two axes.

    Source: Glorot and Bengio, AISTATS 2010; torch.nn.init.
    """
    return normal(session, shape, 0.0, gain * math.sqrt(2.0 / max(sum(fans(shape)), 1)))


def bias(session: Session, size: int, fan_in: int) -> Array:
    """Uniform within ±1/√fan_in, PyTorch's default for the biases of Linear and Conv.

    Parameters
    ----------
    session : Session
        Its generator draws.
    size : int
        Number of elements.
    fan_in : int
        Inputs of the layer, times the kernel's size.

    Returns
    -------
    array of float32
        (size,); zeros for a fan of 0.
    """
    bound = 1.0 / math.sqrt(fan_in) if fan_in else 0.0
    return uniform(session, (size,), -bound, bound)


def initial_value(initializer: Initializer | None, default: Initializer, session: Session, shape: Sequence[int]) -> Any:
    """The weights by the initialiser that a layer was given, or by its default.

    Parameters
    ----------
    initializer : function of (session, shape) or None
        The one given.
    default : function of (session, shape)
        The layer's own.
    session : Session
        Its generator draws.
    shape : sequence of int
        Of the result.

    Returns
    -------
    array
        Of that shape.
    """
    return (default if initializer is None else initializer)(session, tuple(shape))
