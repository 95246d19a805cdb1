"""Convolution, channels first, of one image or a batch of them."""

from collections.abc import Sequence
from typing import Any

from tlrt._binding.arguments import integer, integers
from tlrt._operations.base import Ref, Sizes, atomic, per_axis
from tlrt._operations.forwarding import ForwardingOperations
from tlrt.errors import ArgumentError, ShapeError, refusal

#: a number for all sides, one for each axis, a pair (before, after) for each axis, or "same" or "valid"
Padding = Sizes | Sequence[Sequence[int]] | str


class ConvOperations(ForwardingOperations[Ref]):
    """Convolutions. The bias may be None. `groups` cuts the channels of x into as many parts, each with weights of its own;
    `dilation` is the distance of a kernel's elements; `padding` is a number, one for each axis, a pair (before, after) for
    each axis, "valid", which is 0, or "same", which keeps the sizes at a stride of 1."""

    def conv(
        self, w: Ref, b: Ref | None, x: Ref, stride: Sizes = 1, padding: Padding = 0, *, dilation: Sizes = 1, groups: int = 1
    ) -> Ref:  # fmt: skip
        """Cross-correlation: w (out_channels, in_channels/groups, k…), x (in_channels, spatial…) or with a batch before it."""
        return self._convolve("conv", w, b, x, stride, padding, dilation, groups)

    def conv_transpose(
        self, w: Ref, b: Ref | None, x: Ref, stride: Sizes = 1, padding: Padding = 0, *, dilation: Sizes = 1,
        groups: int = 1, output_padding: Sizes = 0,
    ) -> Ref:  # fmt: skip
        """Transposed convolution: w (in_channels, out_channels/groups, k…), x (in_channels, spatial…) or with a batch before
        it. `output_padding` elements come after each axis of the result."""
        return self._convolve("conv_transpose", w, b, x, stride, padding, dilation, groups, output_padding)

    def conv2d(
        self, w: Ref, b: Ref | None, x: Ref, stride: Sizes = 1, padding: Padding = 0, *, dilation: Sizes = 1, groups: int = 1
    ) -> Ref:  # fmt: skip
        """conv of images: w (out_channels, in_channels/groups, kernel_h, kernel_w)."""
        self._require_rank("conv2d", w, 4, "w")
        return self._convolve("conv2d", w, b, x, stride, padding, dilation, groups)

    def conv_transpose2d(
        self, w: Ref, b: Ref | None, x: Ref, stride: Sizes = 1, padding: Padding = 0, *, dilation: Sizes = 1,
        groups: int = 1, output_padding: Sizes = 0,
    ) -> Ref:  # fmt: skip
        """conv_transpose of images: w (in_channels, out_channels/groups, kernel_h, kernel_w)."""
        self._require_rank("conv_transpose2d", w, 4, "w")
        return self._convolve("conv_transpose2d", w, b, x, stride, padding, dilation, groups, output_padding)

    @atomic
    def _convolve(
        self, name: str, w: Ref, b: Ref | None, x: Ref, stride: Any, padding: Any, dilation: Any, groups: Any,
        output_padding: Any = 0,
    ) -> Ref:  # fmt: skip
        rank, shape = len(self._shape(name, w)) - 2, self._shape(name, x)
        if rank < 1:
            expected = "two axes of channels and at least one of space"
            raise refusal(ShapeError, name, "w", f"shape {self.shape(w)}", expected)
        if len(shape) not in (rank + 1, rank + 2):
            expected = f"{rank + 1} axes, or {rank + 2} with a batch"
            raise refusal(ShapeError, name, self._named("x", x), f"shape {shape}", expected)
        strides, dilations = per_axis(name, "stride", stride, rank), per_axis(name, "dilation", dilation, rank)
        low, high = _sides(name, padding, self.shape(w)[2:], strides, dilations)
        extra = per_axis(name, "output_padding", output_padding, rank)
        single = len(shape) == rank + 1
        if single:
            x = self._view(x, (1, *shape), "reshape")
        if b is None or groups != 1 or low != high or any(extra) or set(dilations) != {1}:
            y = self._convolve_groups(name, w, b, x, groups, (strides, dilations, low, high, extra))
        else:
            y = self._apply(name, (x, w, b), (*strides, *low) if name.endswith("2d") else (strides, low))
        return self._view(y, self.shape(y)[1:], name) if single else y

    def _convolve_groups(self, name: str, w: Ref, b: Ref | None, x: Ref, groups: Any, lists: tuple[Any, ...]) -> Ref:
        """By the rows with an axis of groups before the channels."""
        count, transposed = integer(name, "groups", groups), name.startswith("conv_transpose")
        (n, channels, *space), (rows, *kernel) = self.shape(x), self.shape(w)
        outputs = kernel[0] * count if transposed else rows
        if count < 1 or channels % count or rows % count:
            said = f"in_channels {rows}" if transposed else f"out_channels {rows}"
            raise refusal(
                ArgumentError, name, "groups", count, f"a divisor of {said} of w and of the {channels} channels of x"
            )
        x = self._view(x, (n, count, channels // count, *space), "reshape")
        w = self._view(w, (count, rows // count, *kernel), "reshape")
        if b is not None:
            if self._shape(name, b) != (outputs,):
                raise refusal(ShapeError, name, self._named("b", b), f"shape {self.shape(b)}", (outputs,))
            b = self._view(b, (count, outputs // count), "reshape")
        row = "conv_transpose_grouped" if transposed else "conv_grouped"
        y = self._apply(row, (x, w, b), lists if transposed else lists[:4])
        return self._view(y, (n, outputs, *self.shape(y)[3:]), name)


def _sides(
    op: str, padding: Any, kernel: tuple[int, ...], strides: tuple[int, ...], dilations: tuple[int, ...]
) -> tuple[tuple[int, ...], tuple[int, ...]]:  # fmt: skip
    """The padding before and after each axis."""
    rank = len(kernel)
    if isinstance(padding, str):
        if padding == "valid":
            return (0,) * rank, (0,) * rank
        if padding != "same" or set(strides) != {1} or op.startswith("conv_transpose"):
            expected = '"valid", "same" for conv with a stride of 1, or numbers'
            raise refusal(ArgumentError, op, "padding", f"{padding!r} with stride {strides}", expected)
        spans = [d * (k - 1) for d, k in zip(dilations, kernel, strict=True)]
        return tuple(s // 2 for s in spans), tuple(s - s // 2 for s in spans)
    if isinstance(padding, (tuple, list)) and any(isinstance(p, (tuple, list)) for p in padding):
        pairs = [integers(op, "padding", p) for p in padding]
        if len(pairs) != rank or any(len(p) != 2 for p in pairs):
            raise refusal(ShapeError, op, "padding", padding, f"{rank} pairs (before, after)")
        return tuple(p[0] for p in pairs), tuple(p[1] for p in pairs)
    sides = per_axis(op, "padding", padding, rank)
    return sides, sides
