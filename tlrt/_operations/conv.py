"""Convolution, channels first, of one image or a batch of them."""

from typing import Any

from tlrt._operations.base import Ref, Sizes, atomic, per_axis
from tlrt._operations.forwarding import ForwardingOperations
from tlrt.errors import ShapeError, refusal


class ConvOperations(ForwardingOperations[Ref]):
    """Convolutions."""

    def conv(self, w: Ref, b: Ref, x: Ref, stride: Sizes = 1, padding: Sizes = 0) -> Ref:
        """Cross-correlation: w (out_channels, in_channels, k…), x (in_channels, spatial…) or with a batch before it."""
        return self._convolve("conv", w, b, x, stride, padding)

    def conv_transpose(self, w: Ref, b: Ref, x: Ref, stride: Sizes = 1, padding: Sizes = 0) -> Ref:
        """Transposed convolution: w (in_channels, out_channels, k…), x (in_channels, spatial…) or with a batch before it."""
        return self._convolve("conv_transpose", w, b, x, stride, padding)

    def conv2d(self, w: Ref, b: Ref, x: Ref, stride: Sizes = 1, padding: Sizes = 0) -> Ref:
        """conv of images: w (out_channels, in_channels, kernel_h, kernel_w)."""
        self._require_rank("conv2d", w, 4, "w")
        return self._convolve("conv2d", w, b, x, stride, padding)

    def conv_transpose2d(self, w: Ref, b: Ref, x: Ref, stride: Sizes = 1, padding: Sizes = 0) -> Ref:
        """conv_transpose of images: w (in_channels, out_channels, kernel_h, kernel_w)."""
        self._require_rank("conv_transpose2d", w, 4, "w")
        return self._convolve("conv_transpose2d", w, b, x, stride, padding)

    @atomic
    def _convolve(self, name: str, w: Ref, b: Ref, x: Ref, stride: Any, padding: Any) -> Ref:
        rank, shape = len(self._shape(name, w)) - 2, self._shape(name, x)
        if rank < 1:
            expected = "two axes of channels and at least one of space"
            raise refusal(ShapeError, name, "w", f"shape {self.shape(w)}", expected)
        if len(shape) not in (rank + 1, rank + 2):
            expected = f"{rank + 1} axes, or {rank + 2} with a batch"
            raise refusal(ShapeError, name, self._named("x", x), f"shape {shape}", expected)
        strides, paddings = per_axis(name, "stride", stride, rank), per_axis(name, "padding", padding, rank)
        single = len(shape) == rank + 1
        if single:
            x = self._view(x, (1, *shape), "reshape")
        extra = (*strides, *paddings) if name.endswith("2d") else (strides, paddings)
        y = self._apply(name, (x, w, b), extra)
        return self._view(y, self.shape(y)[1:], name) if single else y
