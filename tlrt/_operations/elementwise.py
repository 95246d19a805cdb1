"""Elementwise operations: operands of different shapes are broadcast to their common one."""

import numpy as np

from tlrt._binding.arguments import integer
from tlrt._operations.base import Ref, atomic
from tlrt._operations.plan import Shape
from tlrt._operations.shape import ShapeOperations
from tlrt.errors import ArgumentError, ShapeError, refusal


class ElementwiseOperations(ShapeOperations[Ref]):
    """Elementwise operations beside those that only forward."""

    def _pair(self, name: str, a: Ref, b: Ref) -> Ref:
        """A binary elementwise operation; operands of different shapes are broadcast to their common one."""
        if self._shape(name, a) != self._shape(name, b):
            return self._spread_pair(name, a, b)
        return self._apply(name, (a, b))

    @atomic
    def _spread_pair(self, name: str, a: Ref, b: Ref) -> Ref:
        common = broadcast_shape(name, self._shape(name, a), self._shape(name, b), self._named("b", b))
        return self._apply(name, (self.broadcast_to(a, common), self.broadcast_to(b, common)))

    def neg(self, x: Ref) -> Ref:
        """Negative, as scale by -1.

        Parameters
        ----------
        x : tensor
            Any shape.

        Returns
        -------
        tensor
            The shape of x.

        Examples
        --------
        >>> s = tlrt.Session("cpu")
        >>> x = s.const([1, 2, 3])
        >>> print(s.neg(x).numpy())
        [-1. -2. -3.]
        """
        return self._apply("scale", (x,), (-1.0,))

    def square(self, x: Ref) -> Ref:
        """Square, x·x.

        Parameters
        ----------
        x : tensor
            Any shape.

        Returns
        -------
        tensor
            The shape of x.

        Examples
        --------
        >>> s = tlrt.Session("cpu")
        >>> x = s.const([1, 2, 3])
        >>> print(s.square(x).numpy())
        [1. 4. 9.]
        """
        return self._apply("mul", (x, x))

    def gelu(self, x: Ref, approximate: str = "tanh") -> Ref:
        """Gaussian error linear unit.

        Parameters
        ----------
        x : tensor
            Any shape.
        approximate : str, default 'tanh'
            "tanh": ½ x (1 + tanh(√(2/π) (x + 0.044715 x³))); "none": ½ x (1 + erf(x/√2)).

        Returns
        -------
        tensor
            The shape of x.

        Raises
        ------
        ArgumentError
            `approximate` is neither.

        See Also
        --------
        tlrt.kernels.gelu, tlrt.kernels.gelu_erf : The function of buffers, with special values.

        Examples
        --------
        >>> s = tlrt.Session("cpu")
        >>> x = s.const([1, 2, 3])
        >>> print(s.gelu(x).numpy().round(4))
        [0.8412 1.9546 2.9964]
        """
        if approximate not in ("none", "tanh"):
            raise refusal(ArgumentError, "gelu", "approximate", f"{approximate!r}", "'none' or 'tanh'")
        return self._apply("gelu" if approximate == "tanh" else "gelu_erf", (x,))

    def gt(self, a: Ref, b: Ref) -> Ref:
        """Mask: 1 where a > b, else 0.

        Parameters
        ----------
        a : tensor or float
            Broadcast with b, as NumPy does.
        b : tensor or float
            Broadcast with a.

        Returns
        -------
        tensor
            The common shape of the operands.

        Examples
        --------
        >>> s = tlrt.Session("cpu")
        >>> x = s.const([1, 2, 3])
        >>> print(s.gt(x, 2).numpy())
        [0. 0. 1.]
        """
        return self._pair("lt", b, a)

    def ge(self, a: Ref, b: Ref) -> Ref:
        """Mask: 1 where a ≥ b, else 0.

        Parameters
        ----------
        a : tensor or float
            Broadcast with b, as NumPy does.
        b : tensor or float
            Broadcast with a.

        Returns
        -------
        tensor
            The common shape of the operands.

        Examples
        --------
        >>> s = tlrt.Session("cpu")
        >>> x = s.const([1, 2, 3])
        >>> print(s.ge(x, 2).numpy())
        [0. 1. 1.]
        """
        return self._pair("le", b, a)

    @atomic
    def where(self, mask: Ref, a: Ref, b: Ref) -> Ref:
        """Chooses a where the mask is not 0, else b.

        Parameters
        ----------
        mask : tensor
            Broadcast with the others, as NumPy does; it has no gradient.
        a : tensor or float
            Chosen where the mask is not 0.
        b : tensor or float
            Chosen elsewhere.

        Returns
        -------
        tensor
            The common shape of the three.

        See Also
        --------
        tlrt.kernels.where : The function of buffers, with special values.

        Examples
        --------
        >>> s = tlrt.Session("cpu")
        >>> x = s.const([1, 2, 3])
        >>> print(s.where(s.gt(x, 1.5), x, 0).numpy())
        [0. 2. 3.]
        """
        operands = [self._operand(x) for x in (mask, a, b)]
        shapes = [self._shape("where", x) for x in operands]
        common = broadcast_shape("where", shapes[1], shapes[2], self._named("b", operands[2]))
        common = broadcast_shape("where", common, shapes[0], self._named("mask", operands[0]))
        spread = [self._spread(x, common) for x in operands]
        return self._apply("where", (spread[0], spread[1], spread[2]))

    def tril(self, x: Ref, k: int = 0) -> Ref:
        """The last two axes with 0 above a diagonal, as numpy.tril.

        Parameters
        ----------
        x : tensor
            At least two axes.
        k : int, default 0
            The diagonal: 0 is the main one, above it positive.

        Returns
        -------
        tensor
            The shape of x.

        Examples
        --------
        >>> s = tlrt.Session("cpu")
        >>> print(s.tril(s.full((2, 3), 1)).numpy())
        [[1. 0. 0.]
         [1. 1. 0.]]
        """
        return self._triangle("tril", x, k)

    def triu(self, x: Ref, k: int = 0) -> Ref:
        """The last two axes with 0 below a diagonal, as numpy.triu.

        Parameters
        ----------
        x : tensor
            At least two axes.
        k : int, default 0
            The diagonal: 0 is the main one, above it positive.

        Returns
        -------
        tensor
            The shape of x.

        Examples
        --------
        >>> s = tlrt.Session("cpu")
        >>> print(s.triu(s.full((2, 3), 1)).numpy())
        [[1. 1. 1.]
         [0. 1. 1.]]
        """
        return self._triangle("triu", x, k)

    @atomic
    def _triangle(self, op: str, x: Ref, k: int) -> Ref:
        shape, place = self._shape(op, x), integer(op, "k", k)
        if len(shape) < 2:
            raise refusal(ShapeError, op, self._named("x", x), f"shape {shape}", "two axes or more")
        below = np.tri(shape[-2], shape[-1], place if op == "tril" else place - 1, np.float32)
        return self.masked_fill(x, self._constant(1 - below if op == "tril" else below), 0.0)

    @atomic
    def masked_fill(self, x: Ref, mask: Ref, value: float) -> Ref:
        """A number where the mask is not 0, else x.

        Parameters
        ----------
        x : tensor
            Any shape.
        mask : tensor
            Broadcast to the shape of x; it has no gradient.
        value : float
            The number.

        Returns
        -------
        tensor
            The shape of x.

        Raises
        ------
        ShapeError
            The mask does not broadcast to x.

        See Also
        --------
        tlrt.kernels.masked_fill : The function of buffers, with special values.

        Examples
        --------
        >>> s = tlrt.Session("cpu")
        >>> x = s.const([1, 2, 3])
        >>> print(s.masked_fill(x, s.gt(x, 2), 0.0).numpy())
        [1. 2. 0.]
        """
        shape, got, name = self._shape("masked_fill", x), self._shape("masked_fill", mask), self._named("mask", mask)
        if broadcast_shape("masked_fill", shape, got, name) != shape:
            raise refusal(ShapeError, "masked_fill", name, f"shape {got}", f"one that broadcasts to {shape}")
        return self._apply("masked_fill", (x, self._spread(mask, shape)), (value,))

    def _operand(self, x: Ref) -> Ref:
        """An operand of an operation that also takes numbers, as a value."""
        return x

    def _spread(self, x: Ref, shape: Shape) -> Ref:
        return x if self.shape(x) == shape else self.broadcast_to(x, shape)


def broadcast_shape(op: str, a: Shape, b: Shape, name: str) -> Shape:
    """The shape two operands broadcast to, axes aligned at the right."""
    rank = max(len(a), len(b))
    long_a, long_b = (1,) * (rank - len(a)) + a, (1,) * (rank - len(b)) + b
    out = []
    for m, n in zip(long_a, long_b, strict=True):
        if m != n and 1 not in (m, n):
            raise refusal(ShapeError, op, name, f"shape {b}", f"one that broadcasts with {a}")
        out.append(n if m == 1 else m)
    return tuple(out)
