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
        """-x, as scale by -1."""
        return self._apply("scale", (x,), (-1.0,))

    def square(self, x: Ref) -> Ref:
        """x·x."""
        return self._apply("mul", (x, x))

    def gelu(self, x: Ref, approximate: str = "tanh") -> Ref:
        """Gaussian error linear unit, in the forms that PyTorch names: "tanh", ½ x (1 + tanh(√(2/π) (x + 0.044715 x³))), and
        "none", the exact ½ x (1 + erf(x/√2)).

        See :func:`tlrt.kernels.gelu` and :func:`tlrt.kernels.gelu_erf`."""
        if approximate not in ("none", "tanh"):
            raise refusal(ArgumentError, "gelu", "approximate", f"{approximate!r}", "'none' or 'tanh'")
        return self._apply("gelu" if approximate == "tanh" else "gelu_erf", (x,))

    def gt(self, a: Ref, b: Ref) -> Ref:
        """1 where a > b, else 0, as lt(b, a). Operands of different shapes are broadcast, as NumPy does."""
        return self._pair("lt", b, a)

    def ge(self, a: Ref, b: Ref) -> Ref:
        """1 where a ≥ b, else 0, as le(b, a). Operands of different shapes are broadcast, as NumPy does."""
        return self._pair("le", b, a)

    @atomic
    def where(self, mask: Ref, a: Ref, b: Ref) -> Ref:
        """a where the mask is not 0, else b.

        See :func:`tlrt.kernels.where`. Operands of different shapes are broadcast, as NumPy does."""
        operands = [self._operand(x) for x in (mask, a, b)]
        shapes = [self._shape("where", x) for x in operands]
        common = broadcast_shape("where", shapes[1], shapes[2], self._named("b", operands[2]))
        common = broadcast_shape("where", common, shapes[0], self._named("mask", operands[0]))
        spread = [self._spread(x, common) for x in operands]
        return self._apply("where", (spread[0], spread[1], spread[2]))

    def tril(self, x: Ref, k: int = 0) -> Ref:
        """The last two axes with 0 above diagonal k: numpy.tril."""
        return self._triangle("tril", x, k)

    def triu(self, x: Ref, k: int = 0) -> Ref:
        """The last two axes with 0 below diagonal k: numpy.triu."""
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
        """A number where the mask is not 0, else x. The mask is broadcast to the shape of x.

        See :func:`tlrt.kernels.masked_fill`."""
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
