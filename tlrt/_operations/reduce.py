"""Reductions over any set of axes.

``axis`` is an axis, several, or None for all; negative ones count from the end. The axes are dropped, or kept with size 1 where
``keepdims`` is true. No axis at all, ``()``, reduces nothing."""

import math
from types import EllipsisType

from tlrt._binding.arguments import integer
from tlrt._operations.base import Ref, atomic
from tlrt._operations.plan import Shape
from tlrt._operations.shape import ShapeOperations
from tlrt._operations.slices import Axes, axes_of
from tlrt.errors import ArgumentError, refusal


class ReduceOperations(ShapeOperations[Ref]):
    """Reductions that take an axis."""

    @atomic
    def reduce_sum(self, x: Ref, axis: int | None = None) -> Ref:
        """Sum along one axis, or over everything.

        Parameters
        ----------
        x : tensor
            Any shape.
        axis : int or None, default None
            The axis, which is dropped; None for all.

        Returns
        -------
        tensor
            Without the axis; a scalar without `axis`.

        Raises
        ------
        ArgumentError
            An axis that x does not have.

        See Also
        --------
        tlrt.kernels.reduce_sum_axis : The function of buffers, with special values.

        Examples
        --------
        >>> s = tlrt.Session("cpu")
        >>> x = s.const([[1, 2, 3], [4, 5, 6]])
        >>> print(s.reduce_sum(x, 1).numpy())
        [ 6. 15.]
        """
        if axis is None:
            return self._apply("reduce_sum", (self._flatten("reduce_sum", x),))
        return self._apply("reduce_sum_axis", (x,), (self._axis("reduce_sum", x, axis),))

    @atomic
    def reduce_mean(self, x: Ref, axis: int | None = None) -> Ref:
        """Mean along one axis, or over everything; NaN over nothing.

        Parameters
        ----------
        x : tensor
            Any shape.
        axis : int or None, default None
            The axis, which is dropped; None for all.

        Returns
        -------
        tensor
            Without the axis; a scalar without `axis`.

        Raises
        ------
        ArgumentError
            An axis that x does not have.

        See Also
        --------
        tlrt.kernels.reduce_mean : The function of buffers, with special values.

        Examples
        --------
        >>> s = tlrt.Session("cpu")
        >>> x = s.const([[1, 2, 3], [4, 5, 6]])
        >>> print(s.reduce_mean(x, 1).numpy())
        [2. 5.]
        """
        if axis is None:
            return self._apply("reduce_mean", (self._flatten("reduce_mean", x),), (0,))
        return self._apply("reduce_mean", (x,), (self._axis("reduce_mean", x, axis),))

    def _axis(self, op: str, x: Ref, axis: int) -> int:
        rank = len(self._shape(op, x))
        place = integer(op, "axis", axis)
        if not -rank <= place < rank:
            raise refusal(ArgumentError, op, "axis", axis, f"{-rank} <= axis < {rank}")
        return place % rank

    @atomic
    def sum(self, x: Ref, axis: Axes = None, keepdims: bool = False) -> Ref:
        """Sum over axes.

        Neighbouring axes are summed as one, the last group first, each as :func:`tlrt.kernels.reduce_sum_axis`.

        Parameters
        ----------
        x : tensor
            Any shape.
        axis : int, sequence of int or None, default None
            The axes; negative ones count from the end, None stands for all.
        keepdims : bool, default False
            Keeps the reduced axes with size 1.

        Returns
        -------
        tensor
            Without the axes, or with size 1 there.

        Raises
        ------
        ArgumentError
            An axis that x does not have, or one named twice.

        Examples
        --------
        >>> s = tlrt.Session("cpu")
        >>> x = s.const([[1, 2, 3], [4, 5, 6]])
        >>> print(s.sum(x, axis=0).numpy())
        [5. 7. 9.]
        """
        return self._by_groups("sum", x, axis, keepdims)

    @atomic
    def mean(self, x: Ref, axis: Axes = None, keepdims: bool = False) -> Ref:
        """Mean over axes; NaN over nothing.

        Neighbouring axes are averaged as one, the last group first.

        Parameters
        ----------
        x : tensor
            Any shape.
        axis : int, sequence of int or None, default None
            The axes; negative ones count from the end, None stands for all.
        keepdims : bool, default False
            Keeps the reduced axes with size 1.

        Returns
        -------
        tensor
            Without the axes, or with size 1 there.

        Raises
        ------
        ArgumentError
            An axis that x does not have, or one named twice.

        Examples
        --------
        >>> s = tlrt.Session("cpu")
        >>> x = s.const([[1, 2, 3], [4, 5, 6]])
        >>> print(s.mean(x, axis=0).numpy())
        [2.5 3.5 4.5]
        """
        return self._by_groups("mean", x, axis, keepdims)

    @atomic
    def amax(self, x: Ref, axis: Axes = None, keepdims: bool = False) -> Ref:
        """Maximum over axes.

        All elements that attain it share the gradient equally, as in PyTorch's amax.

        Parameters
        ----------
        x : tensor
            Any shape.
        axis : int, sequence of int or None, default None
            The axes; negative ones count from the end, None stands for all.
        keepdims : bool, default False
            Keeps the reduced axes with size 1.

        Returns
        -------
        tensor
            Without the axes, or with size 1 there.

        Raises
        ------
        ArgumentError
            An axis that x does not have, or one named twice.
        ShapeError
            A reduced axis is empty.

        See Also
        --------
        tlrt.kernels.amax : The function of buffers, with special values.

        Examples
        --------
        >>> s = tlrt.Session("cpu")
        >>> x = s.const([[1, 2, 3], [4, 5, 6]])
        >>> print(s.amax(x, axis=1).numpy())
        [3. 6.]
        """
        return self._fold("amax", x, axis, keepdims)

    @atomic
    def amin(self, x: Ref, axis: Axes = None, keepdims: bool = False) -> Ref:
        """Minimum over axes.

        All elements that attain it share the gradient equally, as in PyTorch's amin.

        Parameters
        ----------
        x : tensor
            Any shape.
        axis : int, sequence of int or None, default None
            The axes; negative ones count from the end, None stands for all.
        keepdims : bool, default False
            Keeps the reduced axes with size 1.

        Returns
        -------
        tensor
            Without the axes, or with size 1 there.

        Raises
        ------
        ArgumentError
            An axis that x does not have, or one named twice.
        ShapeError
            A reduced axis is empty.

        See Also
        --------
        tlrt.kernels.amin : The function of buffers, with special values.

        Examples
        --------
        >>> s = tlrt.Session("cpu")
        >>> x = s.const([[1, 2, 3], [4, 5, 6]])
        >>> print(s.amin(x, axis=1).numpy())
        [1. 4.]
        """
        return self._fold("amin", x, axis, keepdims)

    def max(self, a: Ref, b: Ref | EllipsisType = ..., *, axis: Axes = None, keepdims: bool = False) -> Ref:
        """Maximum over axes, as amax, or of two tensors element by element, as NumPy's maximum.

        The axis is named: ``x.max(axis=1)``.

        Parameters
        ----------
        a : tensor
            Any shape.
        b : tensor, optional
            Broadcast with `a`; with it there is no axis.
        axis : int, sequence of int or None, default None
            The axes; negative ones count from the end, None stands for all.
        keepdims : bool, default False
            Keeps the reduced axes with size 1.

        Returns
        -------
        tensor
            Without the axes, or the common shape of the two.

        Raises
        ------
        ArgumentError
            An axis that x does not have, or one named twice.

        See Also
        --------
        tlrt.kernels.max : The function of buffers, with special values.

        Examples
        --------
        >>> s = tlrt.Session("cpu")
        >>> x = s.const([[1, 2, 3], [4, 5, 6]])
        >>> print(s.max(x, axis=1).numpy(), s.max(x, s.const(3.0)).numpy()[0])
        [3. 6.] [3. 3. 3.]
        """
        return self._extreme("max", a, b, axis, keepdims)

    def min(self, a: Ref, b: Ref | EllipsisType = ..., *, axis: Axes = None, keepdims: bool = False) -> Ref:
        """Minimum over axes, as amin, or of two tensors element by element, as NumPy's minimum.

        The axis is named: ``x.min(axis=1)``.

        Parameters
        ----------
        a : tensor
            Any shape.
        b : tensor, optional
            Broadcast with `a`; with it there is no axis.
        axis : int, sequence of int or None, default None
            The axes; negative ones count from the end, None stands for all.
        keepdims : bool, default False
            Keeps the reduced axes with size 1.

        Returns
        -------
        tensor
            Without the axes, or the common shape of the two.

        Raises
        ------
        ArgumentError
            An axis that x does not have, or one named twice.

        See Also
        --------
        tlrt.kernels.min : The function of buffers, with special values.

        Examples
        --------
        >>> s = tlrt.Session("cpu")
        >>> x = s.const([[1, 2, 3], [4, 5, 6]])
        >>> print(s.min(x, axis=1).numpy(), s.min(x, s.const(3.0)).numpy()[0])
        [1. 4.] [1. 2. 3.]
        """
        return self._extreme("min", a, b, axis, keepdims)

    @atomic
    def prod(self, x: Ref, axis: Axes = None, keepdims: bool = False) -> Ref:
        """Product over axes; its gradient is right where elements are 0.

        Parameters
        ----------
        x : tensor
            Any shape.
        axis : int, sequence of int or None, default None
            The axes; negative ones count from the end, None stands for all.
        keepdims : bool, default False
            Keeps the reduced axes with size 1.

        Returns
        -------
        tensor
            Without the axes, or with size 1 there.

        Raises
        ------
        ArgumentError
            An axis that x does not have, or one named twice.

        See Also
        --------
        tlrt.kernels.prod : The function of buffers, with special values.

        Examples
        --------
        >>> s = tlrt.Session("cpu")
        >>> x = s.const([[1, 2, 3], [4, 5, 6]])
        >>> print(s.prod(x, axis=1).numpy())
        [  6. 120.]
        """
        return self._fold("prod", x, axis, keepdims)

    @atomic
    def var(self, x: Ref, axis: Axes = None, keepdims: bool = False, correction: float = 0.0) -> Ref:
        """Variance over axes.

        Parameters
        ----------
        x : tensor
            Any shape.
        axis : int, sequence of int or None, default None
            The axes; negative ones count from the end, None stands for all.
        keepdims : bool, default False
            Keeps the reduced axes with size 1.
        correction : float, default 0.0
            Subtracted from the number of elements in the divisor: 0 as in NumPy, where PyTorch has 1.

        Returns
        -------
        tensor
            Without the axes, or with size 1 there.

        Raises
        ------
        ArgumentError
            An axis that x does not have, or one named twice.

        See Also
        --------
        tlrt.kernels.var : The function of buffers, with special values.

        Examples
        --------
        >>> s = tlrt.Session("cpu")
        >>> x = s.const([[1, 2, 3], [4, 5, 6]])
        >>> print(s.var(x, axis=1).numpy().round(4))
        [0.6667 0.6667]
        """
        return self._fold("var", x, axis, keepdims, correction, 0)

    @atomic
    def std(self, x: Ref, axis: Axes = None, keepdims: bool = False, correction: float = 0.0) -> Ref:
        """Standard deviation over axes, the square root of var; its gradient is 0 where it is 0.

        Parameters
        ----------
        x : tensor
            Any shape.
        axis : int, sequence of int or None, default None
            The axes; negative ones count from the end, None stands for all.
        keepdims : bool, default False
            Keeps the reduced axes with size 1.
        correction : float, default 0.0
            Subtracted from the number of elements in the divisor.

        Returns
        -------
        tensor
            Without the axes, or with size 1 there.

        Raises
        ------
        ArgumentError
            An axis that x does not have, or one named twice.

        See Also
        --------
        tlrt.kernels.var : The function of buffers, with special values.

        Examples
        --------
        >>> s = tlrt.Session("cpu")
        >>> x = s.const([[1, 2, 3], [4, 5, 6]])
        >>> print(s.std(x, axis=1).numpy().round(4))
        [0.8165 0.8165]
        """
        return self._fold("var", x, axis, keepdims, correction, 1)

    @atomic
    def logsumexp(self, x: Ref, axis: Axes = None, keepdims: bool = False) -> Ref:
        """ln Σ eˣ over axes, without overflow.

        Parameters
        ----------
        x : tensor
            Any shape.
        axis : int, sequence of int or None, default None
            The axes; negative ones count from the end, None stands for all.
        keepdims : bool, default False
            Keeps the reduced axes with size 1.

        Returns
        -------
        tensor
            Without the axes, or with size 1 there.

        Raises
        ------
        ArgumentError
            An axis that x does not have, or one named twice.

        See Also
        --------
        tlrt.kernels.logsumexp : The function of buffers, with special values.

        Examples
        --------
        >>> s = tlrt.Session("cpu")
        >>> x = s.const([[1, 2, 3], [4, 5, 6]])
        >>> print(s.logsumexp(x, axis=1).numpy().round(4))
        [3.4076 6.4076]
        """
        return self._fold("logsumexp", x, axis, keepdims)

    @atomic
    def vector_norm(self, x: Ref, p: float = 2.0, axis: Axes = None, keepdims: bool = False) -> Ref:
        """The p-norm (Σ |x|ᵖ)^(1/p) over axes; its gradient is 0 where it is 0.

        Parameters
        ----------
        x : tensor
            Any shape.
        p : float, default 2.0
            1 or more; inf for max |x|.
        axis : int, sequence of int or None, default None
            The axes; negative ones count from the end, None stands for all.
        keepdims : bool, default False
            Keeps the reduced axes with size 1.

        Returns
        -------
        tensor
            Without the axes, or with size 1 there.

        Raises
        ------
        ArgumentError
            An axis that x does not have, or one named twice.

        See Also
        --------
        tlrt.kernels.vector_norm : The function of buffers, with special values.

        Examples
        --------
        >>> s = tlrt.Session("cpu")
        >>> x = s.const([3, 4])
        >>> print(s.vector_norm(x).numpy())
        5.0
        """
        if p != math.inf:
            return self._fold("vector_norm", x, axis, keepdims, p)
        if 0 in self._shape("vector_norm", x):  # 0 over nothing
            return self._fold("vector_norm", x, axis, keepdims, 1.0)
        return self._fold("amax", self._apply("abs", (x,)), axis, keepdims)

    def norm(self, x: Ref, p: float = 2.0, axis: Axes = None, keepdims: bool = False) -> Ref:
        """vector_norm under its short name: matrices are seen as their elements.

        Parameters
        ----------
        x : tensor
            Any shape.
        p : float, default 2.0
            1 or more; inf for max |x|.
        axis : int, sequence of int or None, default None
            The axes; negative ones count from the end, None stands for all.
        keepdims : bool, default False
            Keeps the reduced axes with size 1.

        Returns
        -------
        tensor
            Without the axes, or with size 1 there.

        Raises
        ------
        ArgumentError
            An axis that x does not have, or one named twice.

        Examples
        --------
        >>> s = tlrt.Session("cpu")
        >>> x = s.const([3, 4])
        >>> print(s.norm(x, 1).numpy())
        7.0
        """
        return self.vector_norm(x, p, axis, keepdims)

    def cumsum(self, x: Ref, axis: int) -> Ref:
        """Cumulative sum along an axis.

        Parameters
        ----------
        x : tensor
            Any shape.
        axis : int
            The axis; negative ones count from the end.

        Returns
        -------
        tensor
            The shape of x.

        Raises
        ------
        ArgumentError
            An axis that x does not have.

        See Also
        --------
        tlrt.kernels.cumsum : The function of buffers, with special values.

        Examples
        --------
        >>> s = tlrt.Session("cpu")
        >>> x = s.const([[1, 2, 3], [4, 5, 6]])
        >>> print(s.cumsum(x, 1).numpy())
        [[ 1.  3.  6.]
         [ 4.  9. 15.]]
        """
        return self._apply("cumsum", (x,), (self._axis("cumsum", x, axis), 0))

    @atomic
    def cumprod(self, x: Ref, axis: int) -> Ref:
        """Cumulative product along an axis, in float32.

        Computed as the scan h_k = x_k·h_(k-1) of selective_scan_diag_var; its gradient is right where elements are 0.

        Parameters
        ----------
        x : tensor
            Any shape.
        axis : int
            The axis; negative ones count from the end.

        Returns
        -------
        tensor
            The shape of x.

        Raises
        ------
        ArgumentError
            An axis that x does not have.

        Examples
        --------
        >>> s = tlrt.Session("cpu")
        >>> x = s.const([[1, 2, 3], [4, 5, 6]])
        >>> print(s.cumprod(x, 1).numpy())
        [[  1.   2.   6.]
         [  4.  20. 120.]]
        """
        shape = self._shape("cumprod", x)
        k = self._axis("cumprod", x, axis)
        outer, n, inner = math.prod(shape[:k]), shape[k], math.prod(shape[k + 1 :])
        rows = self._view(x, (outer, n, inner), "cumprod")
        rows = self._apply("swap_adjacent_at_depth", (rows,), (0,)) if outer != 1 else rows
        rows = self._view(rows, (n, outer * inner), "cumprod")
        # h_k = x_k·h_(k-1) - 0·0, which keeps the sign of a zero
        minus, zero = (self._full((n, outer * inner), c) for c in (-0.0, 0.0))
        one = self._full((outer * inner,), 1.0)
        out = self._apply("selective_scan_diag_var", (rows, minus, zero, one))
        if outer != 1:
            out = self._apply("swap_adjacent_at_depth", (self._view(out, (n, outer, inner), "cumprod"),), (0,))
        return self._view(out, shape, "cumprod")

    def _extreme(self, op: str, a: Ref, b: Ref | EllipsisType, axis: Axes, keepdims: bool) -> Ref:
        if isinstance(b, EllipsisType):
            return self.amax(a, axis, keepdims) if op == "max" else self.amin(a, axis, keepdims)
        if axis is not None or keepdims:
            raise refusal(ArgumentError, op, "axis", axis, "no axis where there are two tensors")
        return self._pair(op, a, b)

    def _fold(self, row: str, x: Ref, axis: Axes, keepdims: bool, *extra: float) -> Ref:
        """A row that takes the bits of its axes."""
        shape = self._shape(row, x)
        places = axes_of(row, axis, len(shape))
        out = self._apply(row, (x,), (sum(1 << k for k in places), *extra))
        return self._view(out, kept(shape, places, True), row) if keepdims else out

    def _by_groups(self, op: str, x: Ref, axis: Axes, keepdims: bool) -> Ref:
        shape = self._shape(op, x)
        places = axes_of(op, axis, len(shape))
        if places == tuple(range(len(shape))) and op == "sum":
            out = self._apply("reduce_sum", (self._flatten(op, x),))
        elif len(places) == 1:
            out = self._apply("reduce_sum_axis" if op == "sum" else "reduce_mean", (x,), places)
        else:
            out, row = x, "reduce_sum_axis" if op == "sum" else "reduce_mean"
            for first, end in reversed(groups(places)):
                after = kept(shape[end:], tuple(k - end for k in places), False)
                out = self._view(out, (math.prod(shape[:first]), math.prod(shape[first:end]), math.prod(after)), op)
                out = self._apply(row, (out,), (1,))
        whole = kept(shape, places, keepdims)
        return out if self._shape(op, out) == whole else self._view(out, whole, op)


def kept(shape: Shape, places: tuple[int, ...], keepdims: bool) -> Shape:
    """The shape without the axes, or with size 1 for them."""
    return tuple(1 if k in places else n for k, n in enumerate(shape) if keepdims or k not in places)


def groups(places: tuple[int, ...]) -> list[tuple[int, int]]:
    """The first axis of each run of neighbours, and the one after its last."""
    starts = [k for k in places if k - 1 not in places]
    return [(k, next(e for e in range(k, places[-1] + 2) if e not in places)) for k in starts]
