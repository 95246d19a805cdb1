"""Pooling, channels first, of one image or a batch of them."""

from typing import Any

from tlrt._binding.arguments import integer, integers
from tlrt._operations.base import Ref, Sizes, atomic, per_axis
from tlrt._operations.rows import RowOperations
from tlrt.errors import ShapeError, refusal


class PoolOperations(RowOperations[Ref]):
    """Pooling over windows."""

    def max_pool(
        self, x: Ref, kernel: Sizes, stride: Sizes, padding: Sizes = 0, *, rank: int | None = None
    ) -> Ref:  # fmt: skip
        """Maximum over windows; padding never wins, and the first of equals takes the gradient.

        Parameters
        ----------
        x : tensor
            Shape (channels, *spatial), or with a batch before it.
        kernel : int or sequence of int
            Sizes of a window.
        stride : int or sequence of int
            Distance of neighbouring windows, for all axes or each.
        padding : int or sequence of int, default 0
            Cells before and after each axis.
        rank : int, optional
            Number of spatial axes, the last ones: as many as a list among the arguments has entries unless given.

        Returns
        -------
        tensor
            The spatial sizes are ⌊(size + 2·padding - kernel)/stride⌋ + 1.

        Raises
        ------
        ShapeError
            A window does not fit, or nothing tells the batch from the channels.
        ArgumentError
            A kernel or stride of 0.

        See Also
        --------
        tlrt.kernels.max_pool : The function of buffers, with special values.

        Examples
        --------
        >>> s = tlrt.Session("cpu")
        >>> x = s.const(np.arange(9).reshape(1, 3, 3))
        >>> print(s.max_pool(x, (2, 2), 1).numpy())
        [[[4. 5.]
          [7. 8.]]]
        """
        return self._pool("max_pool", x, kernel, stride, padding, (), rank)

    def avg_pool(
        self, x: Ref, kernel: Sizes, stride: Sizes, padding: Sizes = 0, *, rank: int | None = None
    ) -> Ref:  # fmt: skip
        """Mean over windows; padding counts in the divisor.

        Parameters
        ----------
        x : tensor
            Shape (channels, *spatial), or with a batch before it.
        kernel : int or sequence of int
            Sizes of a window.
        stride : int or sequence of int
            Distance of neighbouring windows, for all axes or each.
        padding : int or sequence of int, default 0
            Cells before and after each axis.
        rank : int, optional
            Number of spatial axes, the last ones: as many as a list among the arguments has entries unless given.

        Returns
        -------
        tensor
            The spatial sizes are ⌊(size + 2·padding - kernel)/stride⌋ + 1.

        Raises
        ------
        ShapeError
            A window does not fit, or nothing tells the batch from the channels.
        ArgumentError
            A kernel or stride of 0.

        See Also
        --------
        tlrt.kernels.avg_pool : The function of buffers, with special values.

        Examples
        --------
        >>> s = tlrt.Session("cpu")
        >>> x = s.const(np.arange(9).reshape(1, 3, 3))
        >>> print(s.avg_pool(x, (2, 2), 1).numpy())
        [[[2. 3.]
          [5. 6.]]]
        """
        return self._pool("avg_pool", x, kernel, stride, padding, (), rank)

    def smooth_max_pool(
        self, x: Ref, kernel: Sizes, stride: Sizes, padding: Sizes = 0, beta: float = 1.0, *, rank: int | None = None
    ) -> Ref:
        """Smooth maximum ln(Σ e^(βv))/β over windows; padding counts as 0.

        Parameters
        ----------
        x : tensor
            Shape (channels, *spatial), or with a batch before it.
        kernel : int or sequence of int
            Sizes of a window.
        stride : int or sequence of int
            Distance of neighbouring windows, for all axes or each.
        padding : int or sequence of int, default 0
            Cells before and after each axis.
        beta : float, default 1.0
            Sharpness; below 0 for a smooth minimum.
        rank : int, optional
            Number of spatial axes, the last ones: as many as a list among the arguments has entries unless given.

        Returns
        -------
        tensor
            The spatial sizes are ⌊(size + 2·padding - kernel)/stride⌋ + 1.

        Raises
        ------
        ShapeError
            A window does not fit, or nothing tells the batch from the channels.
        ArgumentError
            A kernel or stride of 0.

        See Also
        --------
        tlrt.kernels.smooth_max_pool : The function of buffers, with special values.

        Examples
        --------
        >>> s = tlrt.Session("cpu")
        >>> x = s.const(np.arange(9).reshape(1, 3, 3))
        >>> print(s.smooth_max_pool(x, (2, 2), 1).numpy().round(4))
        [[[4.3618 5.3618]
          [7.3618 8.3618]]]
        """
        return self._pool("smooth_max_pool", x, kernel, stride, padding, (beta,), rank)

    def max_pool2d(self, x: Ref, kernel: Sizes, stride: Sizes) -> Ref:
        """Maximum over windows of images, without padding; padding never wins, and the first of equals takes the gradient.

        Parameters
        ----------
        x : tensor
            Shape (channels, height, width), or with a batch before it.
        kernel : int or sequence of int
            Sizes of a window.
        stride : int or sequence of int
            Distance of neighbouring windows, for all axes or each.

        Returns
        -------
        tensor
            The spatial sizes are ⌊(size - kernel)/stride⌋ + 1.

        Raises
        ------
        ShapeError
            A window does not fit, or nothing tells the batch from the channels.
        ArgumentError
            A kernel or stride of 0.

        See Also
        --------
        tlrt.kernels.max_pool2d : The function of buffers, with special values.

        Examples
        --------
        >>> s = tlrt.Session("cpu")
        >>> x = s.const(np.arange(9).reshape(1, 3, 3))
        >>> print(s.max_pool2d(x, 2, 1).numpy())
        [[[4. 5.]
          [7. 8.]]]
        """
        return self._pool("max_pool2d", x, kernel, stride, 0, (), 2)

    def max_pool2d_pad(self, x: Ref, kernel: Sizes, stride: Sizes, padding: Sizes) -> Ref:
        """Maximum over windows of images; padding never wins, and the first of equals takes the gradient.

        Parameters
        ----------
        x : tensor
            Shape (channels, height, width), or with a batch before it.
        kernel : int or sequence of int
            Sizes of a window.
        stride : int or sequence of int
            Distance of neighbouring windows, for all axes or each.
        padding : int or sequence of int
            Cells before and after each axis.

        Returns
        -------
        tensor
            The spatial sizes are ⌊(size + 2·padding - kernel)/stride⌋ + 1.

        Raises
        ------
        ShapeError
            A window does not fit, or nothing tells the batch from the channels.
        ArgumentError
            A kernel or stride of 0.

        See Also
        --------
        tlrt.kernels.max_pool2d : The function of buffers, with special values.

        Examples
        --------
        >>> s = tlrt.Session("cpu")
        >>> x = s.const(np.arange(9).reshape(1, 3, 3))
        >>> print(s.max_pool2d_pad(x, 2, 2, 1).numpy())
        [[[0. 2.]
          [6. 8.]]]
        """
        return self._pool("max_pool2d", x, kernel, stride, padding, (), 2)

    def avg_pool2d(self, x: Ref, kernel: Sizes, stride: Sizes) -> Ref:
        """Mean over windows of images, without padding; padding counts in the divisor.

        Parameters
        ----------
        x : tensor
            Shape (channels, height, width), or with a batch before it.
        kernel : int or sequence of int
            Sizes of a window.
        stride : int or sequence of int
            Distance of neighbouring windows, for all axes or each.

        Returns
        -------
        tensor
            The spatial sizes are ⌊(size - kernel)/stride⌋ + 1.

        Raises
        ------
        ShapeError
            A window does not fit, or nothing tells the batch from the channels.
        ArgumentError
            A kernel or stride of 0.

        See Also
        --------
        tlrt.kernels.avg_pool2d : The function of buffers, with special values.

        Examples
        --------
        >>> s = tlrt.Session("cpu")
        >>> x = s.const(np.arange(9).reshape(1, 3, 3))
        >>> print(s.avg_pool2d(x, 2, 1).numpy())
        [[[2. 3.]
          [5. 6.]]]
        """
        return self._pool("avg_pool2d", x, kernel, stride, 0, (), 2)

    def avg_pool2d_pad(self, x: Ref, kernel: Sizes, stride: Sizes, padding: Sizes) -> Ref:
        """Mean over windows of images; padding counts in the divisor.

        Parameters
        ----------
        x : tensor
            Shape (channels, height, width), or with a batch before it.
        kernel : int or sequence of int
            Sizes of a window.
        stride : int or sequence of int
            Distance of neighbouring windows, for all axes or each.
        padding : int or sequence of int
            Cells before and after each axis.

        Returns
        -------
        tensor
            The spatial sizes are ⌊(size + 2·padding - kernel)/stride⌋ + 1.

        Raises
        ------
        ShapeError
            A window does not fit, or nothing tells the batch from the channels.
        ArgumentError
            A kernel or stride of 0.

        See Also
        --------
        tlrt.kernels.avg_pool2d : The function of buffers, with special values.

        Examples
        --------
        >>> s = tlrt.Session("cpu")
        >>> x = s.const(np.arange(9).reshape(1, 3, 3))
        >>> print(s.avg_pool2d_pad(x, 2, 2, 1).numpy())
        [[[0.   0.75]
          [2.25 6.  ]]]
        """
        return self._pool("avg_pool2d", x, kernel, stride, padding, (), 2)

    def smooth_max_pool2d(self, x: Ref, kernel: Sizes, stride: Sizes, beta: float = 1.0) -> Ref:
        """Smooth maximum ln(Σ e^(βv))/β over windows of images, without padding; padding counts as 0.

        Parameters
        ----------
        x : tensor
            Shape (channels, height, width), or with a batch before it.
        kernel : int or sequence of int
            Sizes of a window.
        stride : int or sequence of int
            Distance of neighbouring windows, for all axes or each.
        beta : float, default 1.0
            Sharpness; below 0 for a smooth minimum.

        Returns
        -------
        tensor
            The spatial sizes are ⌊(size - kernel)/stride⌋ + 1.

        Raises
        ------
        ShapeError
            A window does not fit, or nothing tells the batch from the channels.
        ArgumentError
            A kernel or stride of 0.

        See Also
        --------
        tlrt.kernels.smooth_max_pool2d : The function of buffers, with special values.

        Examples
        --------
        >>> s = tlrt.Session("cpu")
        >>> x = s.const(np.arange(9).reshape(1, 3, 3))
        >>> print(s.smooth_max_pool2d(x, 2, 1).numpy().round(4))
        [[[4.3618 5.3618]
          [7.3618 8.3618]]]
        """
        return self._pool("smooth_max_pool2d", x, kernel, stride, 0, (beta,), 2)

    def smooth_max_pool2d_pad(self, x: Ref, kernel: Sizes, stride: Sizes, padding: Sizes, beta: float = 1.0) -> Ref:
        """Smooth maximum ln(Σ e^(βv))/β over windows of images; padding counts as 0.

        Parameters
        ----------
        x : tensor
            Shape (channels, height, width), or with a batch before it.
        kernel : int or sequence of int
            Sizes of a window.
        stride : int or sequence of int
            Distance of neighbouring windows, for all axes or each.
        padding : int or sequence of int
            Cells before and after each axis.
        beta : float, default 1.0
            Sharpness; below 0 for a smooth minimum.

        Returns
        -------
        tensor
            The spatial sizes are ⌊(size + 2·padding - kernel)/stride⌋ + 1.

        Raises
        ------
        ShapeError
            A window does not fit, or nothing tells the batch from the channels.
        ArgumentError
            A kernel or stride of 0.

        See Also
        --------
        tlrt.kernels.smooth_max_pool2d : The function of buffers, with special values.

        Examples
        --------
        >>> s = tlrt.Session("cpu")
        >>> x = s.const(np.arange(9).reshape(1, 3, 3))
        >>> print(s.smooth_max_pool2d_pad(x, 2, 2, 1).numpy().round(4))
        [[[1.3863 2.4938]
          [6.0533 8.3618]]]
        """
        return self._pool("smooth_max_pool2d", x, kernel, stride, padding, (beta,), 2)

    @atomic
    def _pool(
        self, name: str, x: Ref, kernel: Any, stride: Any, padding: Any, extra: tuple[Any, ...], rank: int | None
    ) -> Ref:
        shape = self._shape(name, x)
        given = {"kernel": kernel, "stride": stride, "padding": padding}
        if rank is None:
            rank = self._pooled_rank(name, x, shape, given)
        rank = integer(name, "rank", rank)
        if len(shape) not in (rank + 1, rank + 2) or rank < 1:
            expected = f"{rank + 1} axes, or {rank + 2} with a batch"
            raise refusal(ShapeError, name, self._named("x", x), f"shape {shape}", expected)
        lists = [per_axis(name, n, v, rank) for n, v in given.items()]
        batched = len(shape) == rank + 2
        if batched:  # every channel of every image is pooled alone
            x = self._view(x, (shape[0] * shape[1], *shape[2:]), "reshape")
        arguments = tuple(n for each in lists for n in each) if name.endswith("2d") else tuple(lists)
        y = self._apply(name, (x,), (*arguments, *extra))
        return self._view(y, (*shape[:2], *self.shape(y)[1:]), name) if batched else y

    def _pooled_rank(self, name: str, x: Ref, shape: tuple[int, ...], given: dict[str, Any]) -> int:
        """The number of spatial axes, where it was not said: that of the entries of a list, or the only one there can be."""
        for argument, value in given.items():
            if not hasattr(value, "__index__"):
                return len(integers(name, argument, value))
        rank = len(shape) - 1
        if rank < 2:
            return rank
        expected = f"rank={rank - 1} with a batch or rank={rank} without one, as kernel is a number"
        raise refusal(ShapeError, name, self._named("x", x), f"shape {shape}", expected)
