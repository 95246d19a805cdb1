"""Losses."""

import numpy.typing as npt

from tlrt._binding import convert
from tlrt._operations.base import Ref, atomic, indices
from tlrt._operations.forwarding import ForwardingOperations
from tlrt.errors import ShapeError, refusal


class LossOperations(ForwardingOperations[Ref]):
    """Losses, each a mean over all its elements or rows."""

    @atomic
    def mse_loss(self, yhat: Ref, target: Ref) -> Ref:
        """The mean of (yhat - target)², a scalar; gradients to both."""
        op = "mse_loss"
        shape, other = self._shape(op, yhat), self._shape(op, target)
        if shape != other:
            raise refusal(ShapeError, op, self._named("target", target), f"shape {other}", shape)
        return self._apply(op, (self._flatten(op, yhat), self._flatten(op, target)))

    @atomic
    def cross_entropy(self, logits: Ref, labels: npt.ArrayLike) -> Ref:
        """The mean over rows of -log_softmax(logits)[row, label], a scalar: logits (…, classes), labels (…)."""
        op = "cross_entropy"
        shape, wanted = self._shape(op, logits), convert.host_array(op, "labels", labels, "integers")
        if not shape:
            raise refusal(ShapeError, op, "logits", "a scalar", "(…, classes)")
        if wanted.shape != shape[:-1]:
            raise refusal(ShapeError, op, "labels", f"shape {wanted.shape}", shape[:-1])
        hosts = {
            "labels": indices(op, "labels", wanted.reshape(-1), read=convert.uint32)
        }  # -1 is refused as `classes` is
        return self._apply(op, (self._rows(logits),), (), hosts)
