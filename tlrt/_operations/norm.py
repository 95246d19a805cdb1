"""Softmax and normalisation."""

import math
from typing import Any

from tlrt._binding.arguments import integer
from tlrt._operations.base import Ref, atomic
from tlrt._operations.forwarding import ForwardingOperations
from tlrt._operations.plan import Shape
from tlrt.errors import ArgumentError, ShapeError, refusal


class NormOperations(ForwardingOperations[Ref]):
    """Operations along the last axis, and on the channels of a batch."""

    def _by_rows(self, name: str, x: Ref, *others: Ref, extra: tuple[Any, ...] = ()) -> Ref:
        """An operation on rows, applied along the last axis."""
        if len(self._shape(name, x)) == 2:
            return self._apply(name, (x, *others), extra)
        return self._by_folded_rows(name, x, others, extra)

    @atomic
    def _by_folded_rows(self, name: str, x: Ref, others: tuple[Ref, ...], extra: tuple[Any, ...]) -> Ref:
        return self._view(self._apply(name, (self._rows(x), *others), extra), self.shape(x), name)

    def softmax(self, x: Ref) -> Ref:
        """Softmax along the last axis."""
        return self._by_rows("softmax", x)

    def log_softmax(self, x: Ref) -> Ref:
        """Log-softmax along the last axis."""
        return self._by_rows("log_softmax", x)

    def layer_norm(self, x: Ref, gamma: Ref, beta: Ref, eps: float = 1e-6) -> Ref:
        """gamma·(x - mean)/√(variance + eps) + beta along the last axis; biased variance."""
        return self._by_rows("layer_norm", x, gamma, beta, extra=(eps,))

    def rms_norm(self, x: Ref, gamma: Ref, eps: float = 2.0**-23) -> Ref:
        """gamma·x/√(mean square + eps) along the last axis; eps as PyTorch's."""
        return self._by_rows("rms_norm", x, gamma, extra=(eps,))

    def _channels(self, op: str, x: Ref) -> Shape:
        """x's shape with all axes after the second as one."""
        shape = self._shape(op, x)
        if len(shape) < 2:
            raise refusal(ShapeError, op, self._named("x", x), f"shape {shape}", "(batch, channels, …)")
        return shape[0], shape[1], math.prod(shape[2:])

    @atomic
    def channel_affine(self, x: Ref, center: Ref, slope: Ref, shift: Ref) -> Ref:
        """(x - center)·slope + shift with one number each for a channel: x (batch, channels, …), the others (channels)."""
        op = "channel_affine"
        given, shape = self._shape(op, x), self._channels(op, x)
        y = self._apply(op, (x if given == shape else self._view(x, shape, op), center, slope, shift))
        return y if given == shape else self._view(y, given, op)

    @atomic
    def group_norm(
        self, x: Ref, groups: int, gamma: Ref | None = None, beta: Ref | None = None, eps: float = 1e-5
    ) -> Ref:
        """gamma·(x - mean)/√(variance + eps) + beta, the mean and the biased variance those of one sample's group of neighbouring
        channels: x (batch, channels, …), gamma and beta (channels), both or none."""
        op = "group_norm"
        groups = integer(op, "groups", groups)
        given, (batch, channels, positions) = self._shape(op, x), self._channels(op, x)
        if groups < 1 or channels % groups:
            raise refusal(ArgumentError, op, "groups", groups, f"a divisor of the {channels} channels")
        if (gamma is None) != (beta is None):
            raise refusal(
                ArgumentError, op, "gamma" if gamma is None else "beta", None, "gamma and beta, or none of them"
            )
        rows = (batch * groups, channels // groups, positions)
        y = self._apply(
            "batchnorm_channel_first",
            (self._view(x, rows, op), self._full(rows[:1], 1.0), self._full(rows[:1], 0.0)),
            (eps,),
        )
        if gamma is not None and beta is not None:
            y = self._view(y, (batch, channels, positions), op)
            y = self._apply("channel_affine", (y, self._full((channels,), 0.0), gamma, beta))
        return self._view(y, given, op)

    def instance_norm(self, x: Ref, gamma: Ref | None = None, beta: Ref | None = None, eps: float = 1e-5) -> Ref:
        """group_norm with a group for every channel."""
        return self.group_norm(x, self._channels("instance_norm", x)[1], gamma, beta, eps)
