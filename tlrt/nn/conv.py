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
        if groups < 1 or in_channels % groups or out_channels % groups:
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

    y[o, j] = Σ_{c, k} weight[o, c, k]·x[c, j·stride + k·dilation - padding] + bias[o], c over the channels of o's group

    x (batch, in_channels, spatial…), or without the batch, to (batch, out_channels, positions…), positions =
    ⌊(spatial + 2·padding - dilation·(kernel - 1) - 1)/stride⌋ + 1; NAME.weight (out_channels, in_channels/groups, kernel…),
    NAME.bias (out_channels) unless bias=False, both uniform within ±1/√(in_channels/groups·Π kernel). `kernel` has one entry
    per spatial axis; a number stands for `rank` of them, 2 unless said; so do stride, dilation and padding, which may also be
    pairs (before, after), "same" or "valid". Raises ShapeError, ArgumentError. Source: torch.nn.Conv1d, Conv2d, Conv3d."""

    _operation = "conv"


class ConvTranspose(_Convolution):
    """Transposed convolution over 1 to 8 spatial axes: the gradient of Conv by its input, plus a bias.

    y[o, i] = Σ_{c, k} weight[c, o, k]·x[c, (i + padding - k·dilation)/stride] + bias[o] over the k that divide

    x (batch, in_channels, spatial…), or without the batch, to (batch, out_channels, positions…), positions =
    (spatial - 1)·stride + dilation·(kernel - 1) + 1 + output_padding - 2·padding; NAME.weight (in_channels,
    out_channels/groups, kernel…), NAME.bias (out_channels), both uniform within ±1/√(out_channels/groups·Π kernel), as
    PyTorch has it. The rest as Conv. Raises ShapeError, ArgumentError. Source: torch.nn.ConvTranspose1d, 2d, 3d."""

    _operation = "conv_transpose"

    def __init__(self, *arguments: Any, output_padding: Size = 0, **keywords: Any) -> None:
        super().__init__(*arguments, **keywords)
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

    def __repr__(self) -> str:
        return f"{type(self).__name__}(kernel={self.kernel}, stride={self.stride}, padding={self.padding})"


class MaxPool(_Pool):
    """The largest of each window; NaN wins, padding never does, the first of equals takes the gradient.

    x (batch, channels, spatial…), or without the batch, to (…, ⌊(spatial + 2·padding - kernel)/stride⌋ + 1). The stride is the
    kernel unless given; kernel and rank as Conv, but three axes are refused where `kernel` is a number without `rank`, as they
    may be one image or a batch of sequences. Raises ShapeError, ArgumentError. Source: torch.nn.MaxPool2d."""

    _operation = "max_pool"


class AvgPool(_Pool):
    """The mean of each window, padded cells counted in the divisor; shapes and errors as MaxPool.

    Source: torch.nn.AvgPool2d."""

    _operation = "avg_pool"


class SmoothMaxPool(_Pool):
    """ln(Σ e^(βv))/β over each window, a soft maximum (β < 0: minimum); shapes and errors as MaxPool.

    Raises ArgumentError too where beta is 0 or not finite as a float32."""

    _operation = "smooth_max_pool"

    def __init__(
        self, kernel: Size, stride: Size | None = None, padding: Size = 0, *, beta: float = 1.0, rank: int | None = None
    ) -> None:
        super().__init__(kernel, stride, padding, rank=rank)
        self.beta = beta

    def _pool(self, x: TensorRef) -> TensorRef:
        return x.session.smooth_max_pool(x, self.kernel, self.stride, self.padding, self.beta)


class AdaptiveAvgPool(Layer):
    """The mean over all spatial axes, whatever their sizes: (batch, channels, spatial…) to (batch, channels, 1…).

    One row of the mean per channel, by the row tree. Raises ShapeError where x has fewer than three axes. Source:
    torch.nn.AdaptiveAvgPool2d(1)."""

    def __call__(self, x: TensorRef, *, training: bool = False) -> TensorRef:
        if len(x.shape) < 3:
            raise refusal(ShapeError, "AdaptiveAvgPool", "x", f"shape {x.shape}", "(batch, channels, spatial…)")
        return x.mean(axis=tuple(range(2, len(x.shape))), keepdims=True)


class Upsample(Layer):
    """Every element `factor` times in a row along each spatial axis: (batch, channels, spatial…) to (batch, channels,
    factor·spatial…), at most three spatial axes. The gradient is the sum over the copies.

    Raises ArgumentError for a factor below 1, ShapeError. Source: torch.nn.Upsample(scale_factor=factor)."""

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
