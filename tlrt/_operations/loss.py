"""Losses."""

import numpy.typing as npt

from tlrt._binding import convert
from tlrt._operations.base import Ref, atomic, indices, read_indices
from tlrt._operations.forwarding import ForwardingOperations
from tlrt._operations.shaped import Indices
from tlrt.errors import ShapeError, refusal


class LossOperations(ForwardingOperations[Ref]):
    """Losses, each a mean over all its elements or rows."""

    _checks_indices = False

    @atomic
    def mse_loss(self, yhat: Ref, target: Ref) -> Ref:
        """The mean of (yhat - target)², a scalar; gradients to both."""
        op = "mse_loss"
        shape, other = self._shape(op, yhat), self._shape(op, target)
        if shape != other:
            raise refusal(ShapeError, op, self._named("target", target), f"shape {other}", shape)
        return self._apply(op, (self._flatten(op, yhat), self._flatten(op, target)))

    @atomic
    def cross_entropy(self, logits: Ref, labels: npt.ArrayLike | Indices) -> Ref:
        """The mean over rows of -log_softmax(logits)[row, label], a scalar: logits (…, classes), labels (…). A label out of range
        is refused; one on the device makes the mean NaN, where the session has no ``check_indices``."""
        op = "cross_entropy"
        shape, wanted = self._shape(op, logits), read_indices(op, "labels", labels)
        if not shape:
            raise refusal(ShapeError, op, "logits", "a scalar", "(…, classes)")
        if wanted.shape != shape[:-1]:
            raise refusal(ShapeError, op, "labels", f"shape {wanted.shape}", shape[:-1])
        below = shape[-1] if self._checks_indices and isinstance(wanted, Indices) else None
        hosts = {
            "labels": indices(op, "labels", wanted.reshape(-1), below, read=convert.uint32)
        }  # -1 is refused as `classes` is
        return self._apply(op, (self._rows(logits),), (), hosts)
