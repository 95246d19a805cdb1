"""Convolution, channels first, of one image or a batch of them."""

from collections.abc import Sequence
from typing import Any

from tlrt._binding.arguments import integer, integers
from tlrt._operations.base import Ref, Sizes, atomic, per_axis
from tlrt._operations.rows import RowOperations
from tlrt.errors import ArgumentError, ShapeError, refusal

#: a number for all sides, one for each axis, a pair (before, after) for each axis, or "same" or "valid"
Padding = Sizes | Sequence[Sequence[int]] | str


class ConvOperations(RowOperations[Ref]):
    """Convolutions. The bias may be None. `groups` cuts the channels of x into as many parts, each with weights of its own;
    `dilation` is the distance of a kernel's elements; `padding` is a number, one for each axis, a pair (before, after) for
    each axis, "valid", which is 0, or "same", which keeps the sizes at a stride of 1."""

    def conv(
        self, w: Ref, b: Ref | None, x: Ref, stride: Sizes = 1, padding: Padding = 0, *, dilation: Sizes = 1, groups: int = 1
    ) -> Ref:  # fmt: skip
        """Convolution (cross-correlation) over 1 to 8 spatial axes.

        Parameters
        ----------
        w : tensor
            Weights: shape (out_channels, in_channels/groups, *kernel).
        b : tensor or None
            Shape (out_channels,): added to each channel.
        x : tensor
            Shape (in_channels, *spatial), or with a batch before it.
        stride : int or sequence of int, default 1
            Distance of neighbouring windows, for all axes or each.
        padding : int, sequence of int, or of (low, high) pairs, default 0
            Zeros around x.
        dilation : int or sequence of int, default 1
            Distance between the elements of the kernel.
        groups : int, default 1
            Groups of channels that are convolved apart.

        Returns
        -------
        tensor
            Shape (out_channels, *out), or with a batch before it.

        Raises
        ------
        ShapeError
            Shapes, or the numbers of axes, do not fit.
        ArgumentError
            A stride, dilation or number of groups is not allowed.

        See Also
        --------
        tlrt.kernels.conv : The function of buffers, with special values.

        Examples
        --------
        >>> s = tlrt.Session("cpu")
        >>> x = s.const(np.arange(9).reshape(1, 3, 3))
        >>> print(s.conv(s.full((1, 1, 2, 2), 1), None, x).numpy())
        [[[ 8. 12.]
          [20. 24.]]]
        """
        return self._convolve("conv", w, b, x, stride, padding, dilation, groups)

    def conv_transpose(
        self, w: Ref, b: Ref | None, x: Ref, stride: Sizes = 1, padding: Padding = 0, *, dilation: Sizes = 1,
        groups: int = 1, output_padding: Sizes = 0,
    ) -> Ref:  # fmt: skip
        """Transposed convolution over 1 to 8 spatial axes.

        Parameters
        ----------
        w : tensor
            Weights: shape (in_channels, out_channels/groups, *kernel).
        b : tensor or None
            Shape (out_channels,): added to each channel.
        x : tensor
            Shape (in_channels, *spatial), or with a batch before it.
        stride : int or sequence of int, default 1
            Distance of neighbouring windows, for all axes or each.
        padding : int, sequence of int, or of (low, high) pairs, default 0
            Elements left out around the result.
        dilation : int or sequence of int, default 1
            Distance between the elements of the kernel.
        groups : int, default 1
            Groups of channels that are convolved apart.
        output_padding : int or sequence of int, default 0
            Elements added after each axis of the result.

        Returns
        -------
        tensor
            Shape (out_channels, *out), or with a batch before it.

        Raises
        ------
        ShapeError
            Shapes, or the numbers of axes, do not fit.
        ArgumentError
            A stride, dilation or number of groups is not allowed.

        See Also
        --------
        tlrt.kernels.conv_transpose : The function of buffers, with special values.

        Examples
        --------
        >>> s = tlrt.Session("cpu")
        >>> x = s.const(np.arange(9).reshape(1, 3, 3))
        >>> print(s.conv_transpose(s.full((1, 1, 2, 2), 1), None, x, stride=2, padding=1).numpy())
        [[[0. 1. 1. 2.]
          [3. 4. 4. 5.]
          [3. 4. 4. 5.]
          [6. 7. 7. 8.]]]
        """
        return self._convolve("conv_transpose", w, b, x, stride, padding, dilation, groups, output_padding)

    def conv2d(
        self, w: Ref, b: Ref | None, x: Ref, stride: Sizes = 1, padding: Padding = 0, *, dilation: Sizes = 1, groups: int = 1
    ) -> Ref:  # fmt: skip
        """Convolution (cross-correlation) of images.

        Parameters
        ----------
        w : tensor
            Weights: shape (out_channels, in_channels/groups, kernel_h, kernel_w).
        b : tensor or None
            Shape (out_channels,): added to each channel.
        x : tensor
            Shape (in_channels, height, width), or with a batch before it.
        stride : int or sequence of int, default 1
            Distance of neighbouring windows, for all axes or each.
        padding : int, sequence of int, or of (low, high) pairs, default 0
            Zeros around x.
        dilation : int or sequence of int, default 1
            Distance between the elements of the kernel.
        groups : int, default 1
            Groups of channels that are convolved apart.

        Returns
        -------
        tensor
            Shape (out_channels, height, width), or with a batch before it.

        Raises
        ------
        ShapeError
            Shapes, or the numbers of axes, do not fit.
        ArgumentError
            A stride, dilation or number of groups is not allowed.

        See Also
        --------
        tlrt.kernels.conv2d : The function of buffers, with special values.

        Examples
        --------
        >>> s = tlrt.Session("cpu")
        >>> x = s.const(np.arange(9).reshape(1, 3, 3))
        >>> print(s.conv2d(s.full((1, 1, 2, 2), 1), None, x).numpy())
        [[[ 8. 12.]
          [20. 24.]]]
        """
        self._require_rank("conv2d", w, 4, "w")
        return self._convolve("conv2d", w, b, x, stride, padding, dilation, groups)

    def conv_transpose2d(
        self, w: Ref, b: Ref | None, x: Ref, stride: Sizes = 1, padding: Padding = 0, *, dilation: Sizes = 1,
        groups: int = 1, output_padding: Sizes = 0,
    ) -> Ref:  # fmt: skip
        """Transposed convolution of images.

        Parameters
        ----------
        w : tensor
            Weights: shape (in_channels, out_channels/groups, kernel_h, kernel_w).
        b : tensor or None
            Shape (out_channels,): added to each channel.
        x : tensor
            Shape (in_channels, height, width), or with a batch before it.
        stride : int or sequence of int, default 1
            Distance of neighbouring windows, for all axes or each.
        padding : int, sequence of int, or of (low, high) pairs, default 0
            Elements left out around the result.
        dilation : int or sequence of int, default 1
            Distance between the elements of the kernel.
        groups : int, default 1
            Groups of channels that are convolved apart.
        output_padding : int or sequence of int, default 0
            Elements added after each axis of the result.

        Returns
        -------
        tensor
            Shape (out_channels, height, width), or with a batch before it.

        Raises
        ------
        ShapeError
            Shapes, or the numbers of axes, do not fit.
        ArgumentError
            A stride, dilation or number of groups is not allowed.

        See Also
        --------
        tlrt.kernels.conv_transpose2d : The function of buffers, with special values.

        Examples
        --------
        >>> s = tlrt.Session("cpu")
        >>> x = s.const(np.arange(9).reshape(1, 3, 3))
        >>> print(s.conv_transpose2d(s.full((1, 1, 2, 2), 1), None, x, stride=2, padding=1).numpy())
        [[[0. 1. 1. 2.]
          [3. 4. 4. 5.]
          [3. 4. 4. 5.]
          [6. 7. 7. 8.]]]
        """
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
