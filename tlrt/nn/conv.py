"""Convolutions of any rank and pools; channels first, with a batch before them or without."""

import math
from collections.abc import Sequence
from typing import Any

from tlrt._binding.arguments import integer, integers
from tlrt.errors import ArgumentError, ShapeError, refusal
from tlrt.nn import init
from tlrt.nn.layer import Layer, require_sizes
from tlrt.parameter import Parameter
from tlrt.session import Session
from tlrt.tensor import TensorRef

__all__ = ["AdaptiveAvgPool", "AvgPool", "Conv", "ConvTranspose", "MaxPool", "SmoothMaxPool", "Upsample"]

Size = int | Sequence[int]
Padding = Size | Sequence[Sequence[int]] | str


def _sizes(name: str, kernel: Size, rank: int | None) -> tuple[int, ...]:
    """The kernel, one entry per spatial axis; a number stands for `rank` equal ones, two unless said."""
    if hasattr(kernel, "__index__"):
        return (integer(name, "kernel", kernel),) * (2 if rank is None else integer(name, "rank", rank))
    sizes = integers(name, "kernel", kernel)
    if rank is not None and rank != len(sizes):
        raise refusal(ArgumentError, name, "rank", rank, f"{len(sizes)}, as the kernel has, or none")
    return sizes


class _Convolution(Layer):
    """What the two convolutions share."""

    _operation = ""

    def __init__(
        self, session: Session, in_channels: int, out_channels: int, kernel: Size, *, name: str,
        rank: int | None = None, stride: Size = 1, padding: Padding = 0, dilation: Size = 1, groups: int = 1, bias: bool = True,
        weight_init: init.Initializer | None = None, bias_init: init.Initializer | None = None,
    ) -> None:  # fmt: skip
        require_sizes(self, in_channels=in_channels, out_channels=out_channels)
        self.session, self.stride, self.padding = session, stride, padding
        self._more: dict[str, Any] = {"dilation": dilation, "groups": groups}
        if integer(type(self).__name__, "groups", groups) < 1 or in_channels % groups or out_channels % groups:
            expected = f"a divisor of {in_channels} and {out_channels} channels"
            raise refusal(ArgumentError, type(self).__name__, "groups", groups, expected)
        shape = (*self._channels(in_channels, out_channels, groups), *_sizes(type(self).__name__, kernel, rank))
        weight = init.initial_value(weight_init, init.kaiming_uniform, session, shape)
        self.weight = session.param(weight, f"{name}.weight")
        self.bias: Parameter | None = None
        if bias:
            default = lambda s, size: init.bias(s, out_channels, math.prod(shape[1:]))
            self.bias = session.param(init.initial_value(bias_init, default, session, (out_channels,)), f"{name}.bias")

    @staticmethod
    def _channels(in_channels: int, out_channels: int, groups: int) -> tuple[int, int]:
        return out_channels, in_channels // groups

    def __call__(self, x: TensorRef | Parameter, *, training: bool = False) -> TensorRef:
        s: Any = self.session
        return getattr(s, self._operation)(self.weight, self.bias, x, self.stride, self.padding, **self._more)


class Conv(_Convolution):
    """Convolution (cross-correlation) over 1 to 8 spatial axes.

    y[o, j] = Σ_{c, k} weight[o, c, k]·x[c, j·stride + k·dilation - padding] + bias[o], where c runs over the channels
    of o's group.

    x (batch, in_channels, spatial…), or without the batch, gives (batch, out_channels, positions…) with positions =
    ⌊(spatial + 2·padding - dilation·(kernel - 1) - 1)/stride⌋ + 1. NAME.weight (out_channels, in_channels/groups,
    kernel…) and NAME.bias (out_channels) start uniform within ±1/√(in_channels/groups·Π kernel). A call raises
    ShapeError or ArgumentError where shapes and settings do not fit.

    Parameters
    ----------
    session : Session
        The session that gets the parameters.
    in_channels, out_channels : int
        Channels before and after.
    kernel : int or sequence of int
        One size per spatial axis; a number stands for `rank` equal ones.
    name : str
        What the parameters' names begin with.
    rank : int, optional
        Number of spatial axes where `kernel` is a number, else 2.
    stride, dilation : int or sequence of int
        Steps between windows, and between the cells of one.
    padding : int, sequence of int, sequence of pairs, "same" or "valid"
        Zeros before and after each spatial axis.
    groups : int
        Groups of channels that are convolved apart.
    bias : bool
        False: no bias.
    weight_init, bias_init : function of (session, shape), optional
        Initial values.

    Raises
    ------
    ArgumentError
        Unless `groups` divides both numbers of channels.

    Examples
    --------
    >>> import tlrt
    >>> s = tlrt.Session("cpu", seed=1)
    >>> conv = tlrt.nn.Conv(s, 3, 8, 5, name="conv", stride=2, padding=2)
    >>> conv(s.zeros((1, 3, 32, 32))).shape
    (1, 8, 16, 16)
    >>> conv
    Conv(weight[8, 3, 5, 5], bias[8]): 608 parameters

    Of sequences:

    >>> tlrt.nn.Conv(s, 2, 4, 3, rank=1, name="seq")(s.zeros((1, 2, 10))).shape
    (1, 4, 8)

    Source: torch.nn.Conv1d, Conv2d, Conv3d.
    """

    _operation = "conv"


class ConvTranspose(_Convolution):
    """Transposed convolution over 1 to 8 spatial axes: the gradient of :class:`Conv` by its input, plus a bias.

    y[o, i] = Σ_{c, k} weight[c, o, k]·x[c, (i + padding - k·dilation)/stride] + bias[o] over the k that divide.

    x (batch, in_channels, spatial…), or without the batch, gives (batch, out_channels, positions…) with positions =
    (spatial - 1)·stride + dilation·(kernel - 1) + 1 + output_padding - 2·padding. NAME.weight (in_channels,
    out_channels/groups, kernel…) and NAME.bias (out_channels) start uniform within ±1/√(out_channels/groups·Π kernel),
    as PyTorch has it.

    Parameters
    ----------
    session : Session
        The session that gets the parameters.
    in_channels, out_channels : int
        Channels before and after.
    kernel : int or sequence of int
        One size per spatial axis; a number stands for `rank` equal ones.
    name : str
        What the parameters' names begin with.
    rank : int, optional
        Number of spatial axes where `kernel` is a number, else 2.
    stride, dilation : int or sequence of int
        Steps between windows, and between the cells of one.
    padding : int, sequence of int, sequence of pairs, "same" or "valid"
        Cells that are cut off before and after each spatial axis.
    output_padding : int or sequence of int
        Cells that are added after each spatial axis.
    groups : int
        Groups of channels that are convolved apart.
    bias : bool
        False: no bias.
    weight_init, bias_init : function of (session, shape), optional
        Initial values.

    Raises
    ------
    ArgumentError
        Unless `groups` divides both numbers of channels.

    Examples
    --------
    >>> import tlrt
    >>> s = tlrt.Session("cpu", seed=1)
    >>> tlrt.nn.ConvTranspose(s, 8, 3, 2, name="up", stride=2)(s.zeros((1, 8, 16, 16))).shape
    (1, 3, 32, 32)

    Source: torch.nn.ConvTranspose1d, 2d, 3d.
    """

    _operation = "conv_transpose"

    def __init__(
        self, session: Session, in_channels: int, out_channels: int, kernel: Size, *, name: str,
        rank: int | None = None, stride: Size = 1, padding: Padding = 0, output_padding: Size = 0, dilation: Size = 1,
        groups: int = 1, bias: bool = True,
        weight_init: init.Initializer | None = None, bias_init: init.Initializer | None = None,
    ) -> None:  # fmt: skip
        super().__init__(
            session, in_channels, out_channels, kernel, name=name, rank=rank, stride=stride, padding=padding, dilation=dilation,
            groups=groups, bias=bias, weight_init=weight_init, bias_init=bias_init,
        )  # fmt: skip
        self._more["output_padding"] = output_padding

    @staticmethod
    def _channels(in_channels: int, out_channels: int, groups: int) -> tuple[int, int]:
        return in_channels, out_channels // groups


class _Pool(Layer):
    """What the pools share: no parameters."""

    _operation = ""

    def __init__(self, kernel: Size, stride: Size | None = None, padding: Size = 0, *, rank: int | None = None) -> None:
        self.kernel = _sizes(type(self).__name__, kernel, rank)
        self.stride: Size = self.kernel if stride is None else stride
        self.padding = padding
        #: whether the caller said how many axes are spatial, so that three axes are no riddle
        self._rank_said = rank is not None or not hasattr(kernel, "__index__")

    def __call__(self, x: TensorRef, *, training: bool = False) -> TensorRef:
        if len(x.shape) == 3 and not self._rank_said:
            expected = "(batch, channels, height, width), or rank=1 for (batch, channels, length), 2 for one image"
            raise refusal(ShapeError, type(self).__name__, "x", f"shape {x.shape}", expected)
        return self._pool(x)

    def _pool(self, x: TensorRef) -> TensorRef:
        return getattr(x.session, self._operation)(x, self.kernel, self.stride, self.padding)

    def _summary(self) -> str:
        return f"(kernel={self.kernel}, stride={self.stride}, padding={self.padding})"


class MaxPool(_Pool):
    """The largest of each window; NaN wins, padding never does, the first of equals takes the gradient.

    x (batch, channels, spatial…), or without the batch, gives (…, ⌊(spatial + 2·padding - kernel)/stride⌋ + 1). Three
    axes are refused where `kernel` is a number without `rank`, as they may be one image or a batch of sequences.

    Parameters
    ----------
    kernel : int or sequence of int
        One size per spatial axis; a number stands for `rank` equal ones.
    stride : int or sequence of int, optional
        Steps between windows; the kernel unless given.
    padding : int or sequence of int
        Cells before and after each spatial axis.
    rank : int, optional
        Number of spatial axes where `kernel` is a number, else 2.

    Raises
    ------
    ArgumentError
        Where `rank` is not the number of sizes.

    Examples
    --------
    >>> import tlrt
    >>> s = tlrt.Session("cpu")
    >>> tlrt.nn.MaxPool(2, rank=1)(s.const([[[1, 5, 2, 3]]])).numpy().tolist()
    [[[5.0, 3.0]]]

    Source: torch.nn.MaxPool1d, 2d and 3d.
    """

    _operation = "max_pool"


class AvgPool(_Pool):
    """The mean of each window, padded cells counted in the divisor; shapes and errors as :class:`MaxPool`.

    Parameters
    ----------
    kernel : int or sequence of int
        One size per spatial axis; a number stands for `rank` equal ones.
    stride : int or sequence of int, optional
        Steps between windows; the kernel unless given.
    padding : int or sequence of int
        Zeros before and after each spatial axis.
    rank : int, optional
        Number of spatial axes where `kernel` is a number, else 2.

    Examples
    --------
    >>> import tlrt
    >>> s = tlrt.Session("cpu")
    >>> tlrt.nn.AvgPool(2, rank=1)(s.const([[[1, 5, 2, 4]]])).numpy().tolist()
    [[[3.0, 3.0]]]

    Source: torch.nn.AvgPool1d, 2d and 3d.
    """

    _operation = "avg_pool"


class SmoothMaxPool(_Pool):
    """ln(Σ e^(beta·v))/beta over each window, a soft maximum; shapes and errors as :class:`MaxPool`.

    Parameters
    ----------
    kernel : int or sequence of int
        One size per spatial axis; a number stands for `rank` equal ones.
    stride : int or sequence of int, optional
        Steps between windows; the kernel unless given.
    padding : int or sequence of int
        Zeros before and after each spatial axis.
    beta : float
        Sharpness; below 0 the pool is a soft minimum. A call raises ArgumentError where it is 0 or not finite as a
        float32.
    rank : int, optional
        Number of spatial axes where `kernel` is a number, else 2.

    Examples
    --------
    >>> import tlrt
    >>> s = tlrt.Session("cpu")
    >>> tlrt.nn.SmoothMaxPool(2, beta=50.0, rank=1)(s.const([[[1, 5, 2, 3]]])).numpy().round(4).tolist()
    [[[5.0, 3.0]]]
    """

    _operation = "smooth_max_pool"

    def __init__(
        self, kernel: Size, stride: Size | None = None, padding: Size = 0, *, beta: float = 1.0, rank: int | None = None
    ) -> None:
        super().__init__(kernel, stride, padding, rank=rank)
        self.beta = beta

    def _pool(self, x: TensorRef) -> TensorRef:
        return x.session.smooth_max_pool(x, self.kernel, self.stride, self.padding, self.beta)


class AdaptiveAvgPool(Layer):
    """The mean over all spatial axes, whatever their sizes.

    x (batch, channels, spatial…) gives (batch, channels, 1…): one row of the mean per channel, by the row tree. A call
    raises ShapeError where x has fewer than three axes.

    Examples
    --------
    >>> import tlrt
    >>> s = tlrt.Session("cpu")
    >>> tlrt.nn.AdaptiveAvgPool()(s.const([[[[1, 2], [3, 6]]]])).numpy().tolist()
    [[[[3.0]]]]

    Source: torch.nn.AdaptiveAvgPool2d(1).
    """

    def __call__(self, x: TensorRef, *, training: bool = False) -> TensorRef:
        if len(x.shape) < 3:
            raise refusal(ShapeError, "AdaptiveAvgPool", "x", f"shape {x.shape}", "(batch, channels, spatial…)")
        return x.mean(axis=tuple(range(2, len(x.shape))), keepdims=True)


class Upsample(Layer):
    """Every element `factor` times in a row along each spatial axis.

    x (batch, channels, spatial…) with one to three spatial axes gives (batch, channels, factor·spatial…). The gradient
    is the sum over the copies. A call raises ShapeError for other axes.

    Parameters
    ----------
    factor : int
        Copies of an element along each axis.

    Raises
    ------
    ArgumentError
        For a factor below 1.

    Examples
    --------
    >>> import tlrt
    >>> s = tlrt.Session("cpu")
    >>> tlrt.nn.Upsample(2)(s.const([[[1, 2]]])).numpy().tolist()
    [[[1.0, 1.0, 2.0, 2.0]]]

    Source: torch.nn.Upsample(scale_factor=factor).
    """

    def __init__(self, factor: int = 2) -> None:
        self.factor = integer("Upsample", "factor", factor)
        if self.factor < 1:
            raise refusal(ArgumentError, "Upsample", "factor", self.factor, "at least 1")

    def __call__(self, x: TensorRef, *, training: bool = False) -> TensorRef:
        s, leading, spatial = x.session, x.shape[:2], x.shape[2:]
        if not 1 <= len(spatial) <= 3:
            expected = "(batch, channels, spatial…) with one to three spatial axes"
            raise refusal(ShapeError, "Upsample", "x", f"shape {x.shape}", expected)
        rows = math.prod(leading)
        view = s.reshape(x, (rows, *(size for n in spatial for size in (n, 1))))
        copies = s.broadcast_to(view, (rows, *(size for n in spatial for size in (n, self.factor))))
        return s.reshape(copies, (*leading, *(n * self.factor for n in spatial)))
