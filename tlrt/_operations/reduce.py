"""Reductions along an axis or over all elements."""

from tlrt._binding.arguments import integer
from tlrt._operations.base import Ref, atomic
from tlrt._operations.forwarding import ForwardingOperations
from tlrt.errors import ArgumentError, refusal


class ReduceOperations(ForwardingOperations[Ref]):
    """Reductions that take an axis."""

    @atomic
    def reduce_sum(self, x: Ref, axis: int | None = None) -> Ref:
        """The sum over `axis`, which is dropped; over everything, to a scalar, without it."""
        if axis is None:
            return self._apply("reduce_sum", (self._flatten("reduce_sum", x),))
        return self._apply("reduce_sum_axis", (x,), (self._axis("reduce_sum", x, axis),))

    @atomic
    def reduce_mean(self, x: Ref, axis: int | None = None) -> Ref:
        """The mean over `axis`, which is dropped; over everything, to a scalar, without it. NaN over nothing."""
        if axis is None:
            return self._apply("reduce_mean", (self._flatten("reduce_mean", x),), (0,))
        return self._apply("reduce_mean", (x,), (self._axis("reduce_mean", x, axis),))

    def _axis(self, op: str, x: Ref, axis: int) -> int:
        rank = len(self._shape(op, x))
        place = integer(op, "axis", axis)
        if not -rank <= place < rank:
            raise refusal(ArgumentError, op, "axis", axis, f"{-rank} <= axis < {rank}")
        return place % rank
