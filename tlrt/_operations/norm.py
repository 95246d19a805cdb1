"""Softmax and normalisation."""

from typing import Any

from tlrt._operations.base import Ref, atomic
from tlrt._operations.forwarding import ForwardingOperations


class NormOperations(ForwardingOperations[Ref]):
    """Operations along the last axis."""

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
