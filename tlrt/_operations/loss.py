"""Losses, with PyTorch's definitions and names of options."""

import math
from typing import Any, cast

import numpy as np
import numpy.typing as npt

from tlrt._binding import convert
from tlrt._operations.base import Ref, atomic, indices, read_indices
from tlrt._operations.rows import RowOperations
from tlrt._operations.shaped import Indices
from tlrt.errors import ArgumentError, IndexOutOfRangeError, ShapeError, refusal

#: a label that no class has
_IGNORED = np.uint32(2**32 - 1)


class LossOperations(RowOperations[Ref]):
    """Losses. `reduction` is "mean", "sum" or "none", which keeps one loss for each element or label."""

    _checks_indices = False

    @atomic
    def mse_loss(self, yhat: Ref, target: Ref, reduction: str = "mean") -> Ref:
        """Mean of the squared differences.

        Parameters
        ----------
        yhat : tensor
            The prediction.
        target : tensor
            The shape of yhat.
        reduction : str, default 'mean'
            "mean", "sum" or "none".

        Returns
        -------
        tensor
            A scalar; with "none" the shape of the prediction.

        Raises
        ------
        ShapeError
            The shapes differ.
        ArgumentError
            Another reduction.

        See Also
        --------
        tlrt.kernels.mse_loss : The function of buffers, with special values.

        Examples
        --------
        >>> s = tlrt.Session("cpu")
        >>> y = s.const([1, 2, 4])
        >>> t = s.const([1, 0, 0])
        >>> print(s.mse_loss(y, t).numpy().round(4))
        6.6667
        """
        op = "mse_loss"
        self._require_same(op, yhat, target)
        if reduction == "mean":
            return self._apply(op, (self._flatten(op, yhat), self._flatten(op, target)))
        d = self._apply("sub", (yhat, target))
        return self._reduced(op, self._apply("mul", (d, d)), reduction)

    @atomic
    def l1_loss(self, yhat: Ref, target: Ref, reduction: str = "mean") -> Ref:
        """Mean of |yhat - target|; gradients to both, 0 where they are equal.

        Parameters
        ----------
        yhat : tensor
            The prediction.
        target : tensor
            The shape of yhat.
        reduction : str, default 'mean'
            "mean", "sum" or "none".

        Returns
        -------
        tensor
            A scalar; with "none" the shape of the prediction.

        Raises
        ------
        ShapeError
            The shapes differ.
        ArgumentError
            Another reduction.

        Examples
        --------
        >>> s = tlrt.Session("cpu")
        >>> y = s.const([1, 2, 4])
        >>> t = s.const([1, 0, 0])
        >>> print(s.l1_loss(y, t).numpy())
        2.0
        """
        self._require_same("l1_loss", yhat, target)
        return self._reduced("l1_loss", self._apply("abs", (self._apply("sub", (yhat, target)),)), reduction)

    @atomic
    def huber_loss(self, yhat: Ref, target: Ref, reduction: str = "mean", delta: float = 1.0) -> Ref:
        """Mean of d²/2 where d = |yhat - target| is at most delta, of delta·(d - delta/2) beyond.

        Parameters
        ----------
        yhat : tensor
            The prediction.
        target : tensor
            The shape of yhat.
        reduction : str, default 'mean'
            "mean", "sum" or "none".
        delta : float, default 1.0
            Above 0.

        Returns
        -------
        tensor
            A scalar; with "none" the shape of the prediction.

        Raises
        ------
        ShapeError
            The shapes differ.
        ArgumentError
            Another reduction, or delta is not above 0.

        Examples
        --------
        >>> s = tlrt.Session("cpu")
        >>> y = s.const([1, 2, 4])
        >>> t = s.const([1, 0, 0])
        >>> print(s.huber_loss(y, t).numpy().round(4))
        1.6667
        """
        if not delta > 0:
            raise refusal(ArgumentError, "huber_loss", "delta", delta, "a number above 0")
        self._require_same("huber_loss", yhat, target)
        return self._reduced("huber_loss", self._huber(yhat, target, delta), reduction)

    @atomic
    def smooth_l1_loss(self, yhat: Ref, target: Ref, reduction: str = "mean", beta: float = 1.0) -> Ref:
        """huber_loss with delta = beta, divided by beta; l1_loss for beta = 0.

        Parameters
        ----------
        yhat : tensor
            The prediction.
        target : tensor
            The shape of yhat.
        reduction : str, default 'mean'
            "mean", "sum" or "none".
        beta : float, default 1.0
            0 or more.

        Returns
        -------
        tensor
            A scalar; with "none" the shape of the prediction.

        Raises
        ------
        ShapeError
            The shapes differ.
        ArgumentError
            Another reduction, or beta is below 0.

        Examples
        --------
        >>> s = tlrt.Session("cpu")
        >>> y = s.const([1, 2, 4])
        >>> t = s.const([1, 0, 0])
        >>> print(s.smooth_l1_loss(y, t).numpy().round(4))
        1.6667
        """
        if not beta >= 0:
            raise refusal(ArgumentError, "smooth_l1_loss", "beta", beta, "0 or more")
        self._require_same("smooth_l1_loss", yhat, target)
        if beta == 0:
            loss = self._apply("abs", (self._apply("sub", (yhat, target)),))
        else:
            loss = self._apply("scale", (self._huber(yhat, target, beta),), (1 / beta,))
        return self._reduced("smooth_l1_loss", loss, reduction)

    def _huber(self, yhat: Ref, target: Ref, delta: float) -> Ref:
        """c·(d - c/2) with c the smaller of d and delta."""
        d = self._apply("abs", (self._apply("sub", (yhat, target)),))
        c = self._apply("clamp", (d,), (-1.0, delta))
        return self._apply("mul", (c, self._apply("axpy", (d, c), (-0.5,))))

    @atomic
    def binary_cross_entropy_with_logits(
        self, x: Ref, target: Ref, weight: Ref | npt.ArrayLike | None = None, reduction: str = "mean",
        pos_weight: Ref | npt.ArrayLike | None = None,
    ) -> Ref:  # fmt: skip
        """Mean binary cross-entropy of targets and the probabilities whose logits are given.

        The mean of weight·((1 - t)·x + (1 + (p - 1)·t)·ln(1 + e^-x)) with t = target and p = pos_weight, 1 where left
        out.

        Parameters
        ----------
        x : tensor
            Logits.
        target : tensor
            Probabilities, in the shape of x.
        weight : tensor or array_like, optional
            Factor of each loss; broadcast to x.
        reduction : str, default 'mean'
            "mean", "sum" or "none".
        pos_weight : tensor or array_like, optional
            Factor of the positive part; broadcast to x.

        Returns
        -------
        tensor
            A scalar; with "none" the shape of the prediction.

        Raises
        ------
        ShapeError
            The shapes differ.
        ArgumentError
            Another reduction.

        See Also
        --------
        tlrt.kernels.bce_with_logits : The function of buffers, with special values.

        Examples
        --------
        >>> s = tlrt.Session("cpu")
        >>> x = s.const([-1, 0, 2])
        >>> print(s.binary_cross_entropy_with_logits(x, s.const([0, 1, 1])).numpy().round(4))
        0.3778
        """
        op = "binary_cross_entropy_with_logits"
        self._require_same(op, x, target)
        if weight is None and pos_weight is None and reduction in ("mean", "sum"):
            flat = self._flatten(op, x), self._flatten(op, target)
            return self._apply("bce_with_logits", flat, (int(reduction == "mean"),))
        tail = self._apply("softplus", (self._apply("scale", (x,), (-1.0,)),))
        if pos_weight is not None:
            more = self._pair("sub", self._pair("mul", target, self._weights(pos_weight)), target)
            tail = self._pair("add", tail, self._pair("mul", tail, more))
        loss = self._apply("add", (self._apply("sub", (x, self._apply("mul", (x, target)))), tail))
        if weight is not None:
            loss = self._pair("mul", loss, self._weights(weight))
        self._require_same(op, x, loss)
        return self._reduced(op, loss, reduction)

    @atomic
    def kl_div(self, x: Ref, target: Ref, reduction: str = "mean", log_target: bool = False) -> Ref:
        """Mean of t·(ln t - x), with t = target, of which 0 counts 0.

        Parameters
        ----------
        x : tensor
            Logarithms of probabilities.
        target : tensor
            Probabilities, in the shape of x.
        reduction : str, default 'mean'
            "mean", "sum", "none", or "batchmean": the sum divided by the size of the first axis.
        log_target : bool, default False
            The target holds logarithms: the mean of e^t·(t - x).

        Returns
        -------
        tensor
            A scalar; with "none" the shape of the prediction.

        Raises
        ------
        ShapeError
            The shapes differ.
        ArgumentError
            Another reduction.

        Examples
        --------
        >>> s = tlrt.Session("cpu")
        >>> x = s.log_softmax(s.const([[0, 0]]))
        >>> print(s.kl_div(x, s.const([[1, 0]]), "batchmean").numpy().round(4))
        0.6931
        """
        op = "kl_div"
        shape = self._require_same(op, x, target)
        if log_target:
            loss = self._apply("mul", (self._apply("exp", (target,)), self._apply("sub", (target, x))))
        else:
            none = self._pair("eq", target, self._constant(np.zeros(())))
            logarithm = self._apply("log", (self._apply("masked_fill", (target, none), (1.0,)),))
            loss = self._apply("mul", (target, self._apply("sub", (logarithm, x))))
        if reduction != "batchmean":
            return self._reduced(op, loss, reduction)
        total = self._reduced(op, loss, "sum")
        return self._pair("div", total, self._constant(np.asarray(float(shape[0]) if shape else 1.0)))

    @atomic
    def cross_entropy(
        self, logits: Ref, labels: npt.ArrayLike | Indices, weight: Ref | npt.ArrayLike | None = None, *,
        ignore_index: int = -100, reduction: str = "mean", label_smoothing: float = 0.0, axis: int = -1,
    ) -> Ref:  # fmt: skip
        """Mean of -log_softmax(logits)[label].

        Parameters
        ----------
        logits : tensor
            Shape (…, classes); with axis=1 (batch, classes, …), as PyTorch has them.
        labels : array_like of int or Indices
            The class of each row: shape (…).
        weight : tensor or array_like, optional
            Shape (classes,), a constant: weighs each label by its class; the mean is divided by the sum of these
            weights.
        ignore_index : int, default -100
            A label that counts nothing.
        reduction : str, default 'mean'
            "mean", "sum" or "none".
        label_smoothing : float, default 0.0
            s: a label's loss is 1 - s times its own, plus s times the weighted mean over all classes.
        axis : int, default -1
            The axis of the classes.

        Returns
        -------
        tensor
            A scalar, NaN where no label counts; with "none" the shape of the labels.

        Raises
        ------
        IndexOutOfRangeError
            A label of the host is out of range. One on the device makes the mean NaN, where the session has no
            ``check_indices``.
        ShapeError
            Labels or weights do not fit the logits.

        See Also
        --------
        tlrt.kernels.cross_entropy_rows : The function of buffers, with special values.

        Examples
        --------
        >>> s = tlrt.Session("cpu")
        >>> x = s.const([[2, 0], [0, 1]])
        >>> print(s.cross_entropy(x, [0, 1]).numpy().round(4))
        0.2201
        """
        op = "cross_entropy"
        shape, wanted = self._shape(op, logits), read_indices(op, "labels", labels)
        if not shape:
            raise refusal(ShapeError, op, "logits", "a scalar", "(…, classes)")
        if not -len(shape) <= axis < len(shape):
            raise refusal(ArgumentError, op, "axis", axis, f"an axis of {shape}")
        before, classes, after = shape[: axis % len(shape)], shape[axis], shape[axis % len(shape) + 1 :]
        if wanted.shape != before + after:
            raise refusal(ShapeError, op, "labels", f"shape {wanted.shape}", before + after)
        if after:
            parts = (math.prod(before), classes, math.prod(after))
            logits = self._apply("transpose3d_acb", (logits if shape == parts else self._view(logits, parts, op),))
        rows = self._rows(logits)
        live = isinstance(labels, convert.Live) or isinstance(wanted, Indices)  # the host does not read them here
        ignored = np.zeros(wanted.shape, bool) if live else np.asarray(wanted == ignore_index)
        plain = weight is None and not label_smoothing and reduction == "mean" and not ignored.any()
        if plain and (not live or ignore_index < 0):
            below = classes if self._checks_indices and isinstance(wanted, Indices) else None
            hosts = {"labels": indices(op, "labels", wanted.reshape(-1), below, read=convert.uint32)}
            return self._apply(op, (rows,), (), hosts)  # -1 is refused as `classes` is
        hosts = {"labels": self._labels(op, labels, wanted, ignored, classes, ignore_index)}
        weights = None if weight is None else self._weights(weight)
        if weights is not None and (got := self._shape(op, weights)) != (classes,):
            raise refusal(ShapeError, op, "weight", f"shape {got}", (classes,))
        losses = self._apply("cross_entropy_rows", (rows, weights), (label_smoothing,), hosts)
        if reduction != "mean":
            return self._reduced(op, self._view(losses, before + after, op), reduction)
        own = self._constant(np.ones(classes)) if weights is None else cast(Ref, cast(Any, self).detach(weights))
        counts = self._apply("gather_vec", (own,), (), {"indices": hosts["labels"]})
        return self._pair("div", self._apply("reduce_sum", (losses,)), self._apply("reduce_sum", (counts,)))

    def _weights(self, given: Ref | npt.ArrayLike) -> Ref:
        """A weight as a value; an array is a constant."""
        return self._constant(given) if isinstance(given, (np.ndarray, list, tuple)) else cast(Ref, given)

    def _labels(
        self, op: str, given: Any, wanted: Any, ignored: npt.NDArray[Any], classes: int, ignore_index: int
    ) -> Any:
        """Labels as the kernels take them, one that is ignored as no class."""
        live = isinstance(given, convert.Live)
        if live or isinstance(wanted, Indices):
            if 0 <= ignore_index < classes:
                expected = f"{classes} or more, as the labels are read in place"
                raise refusal(ArgumentError, op, "ignore_index", ignore_index, expected)
            if live and ignore_index < 0:
                given.require_below(classes)
            below = classes if self._checks_indices and not live and ignore_index < 0 else None
            return indices(op, "labels", wanted.reshape(-1), below, read=convert.uint32)
        kept = indices(op, "labels", np.where(ignored, 0, wanted).reshape(-1), read=convert.uint32)
        bad = (kept >= classes) & ~ignored.reshape(-1)
        if bad.any():
            expected = f"every label below {classes}, or {ignore_index}"
            raise refusal(IndexOutOfRangeError, op, "labels", int(kept[bad.argmax()]), expected)
        made = np.where(ignored.reshape(-1), _IGNORED, kept)
        made.flags.writeable = False
        return made

    def _require_same(self, op: str, x: Ref, target: Ref) -> tuple[int, ...]:
        shape, other = self._shape(op, x), self._shape(op, target)
        if shape != other:
            raise refusal(ShapeError, op, self._named("target", target), f"shape {other}", shape)
        return shape

    def _reduced(self, op: str, losses: Ref, reduction: str) -> Ref:
        if reduction == "none":
            return losses
        if reduction not in ("mean", "sum"):
            raise refusal(ArgumentError, op, "reduction", repr(reduction), "mean, sum or none")
        flat = self._flatten(op, losses)
        return self._apply("reduce_mean", (flat,), (0,)) if reduction == "mean" else self._apply("reduce_sum", (flat,))
