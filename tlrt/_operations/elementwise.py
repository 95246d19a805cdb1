"""Elementwise operations: operands of different shapes are broadcast to their common one."""

from tlrt._operations.base import Ref, atomic
from tlrt._operations.plan import Shape
from tlrt._operations.shape import ShapeOperations
from tlrt.errors import ShapeError, refusal


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
