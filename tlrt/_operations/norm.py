"""Normalisation of channels."""

import math

from tlrt._binding.arguments import integer
from tlrt._operations.base import Ref, atomic
from tlrt._operations.plan import Shape
from tlrt._operations.rows import RowOperations
from tlrt.errors import ArgumentError, ShapeError, refusal


class NormOperations(RowOperations[Ref]):
    """Normalisation of channels and of groups of them."""

    def _channels(self, op: str, x: Ref) -> Shape:
        """x's shape with all axes after the second as one."""
        shape = self._shape(op, x)
        if len(shape) < 2:
            raise refusal(ShapeError, op, self._named("x", x), f"shape {shape}", "(batch, channels, …)")
        return shape[0], shape[1], math.prod(shape[2:])

    @atomic
    def channel_affine(self, x: Ref, center: Ref, slope: Ref, shift: Ref) -> Ref:
        """(x - center)·slope + shift with one number each for a channel.

        Parameters
        ----------
        x : tensor
            Shape (batch, channels, …).
        center : tensor
            Shape (channels,).
        slope : tensor
            Shape (channels,).
        shift : tensor
            Shape (channels,).

        Returns
        -------
        tensor
            The shape of x.

        See Also
        --------
        tlrt.kernels.channel_affine : The function of buffers, with special values.

        Examples
        --------
        >>> s = tlrt.Session("cpu")
        >>> x = s.const([[[1, 2, 3]]])
        >>> print(s.channel_affine(x, s.const([2]), s.const([3]), s.const([0.5])).numpy())
        [[[-2.5  0.5  3.5]]]
        """
        op = "channel_affine"
        given, shape = self._shape(op, x), self._channels(op, x)
        y = self._apply(op, (x if given == shape else self._view(x, shape, op), center, slope, shift))
        return y if given == shape else self._view(y, given, op)

    @atomic
    def group_norm(
        self, x: Ref, groups: int, gamma: Ref | None = None, beta: Ref | None = None, eps: float = 1e-5
    ) -> Ref:
        """Normalises groups of neighbouring channels of each sample.

        gamma·(x - mean)/√(variance + eps) + beta, the mean and the biased variance those of the group.

        Parameters
        ----------
        x : tensor
            Shape (batch, channels, …).
        groups : int
            Number of groups, a divisor of the channels.
        gamma : tensor, optional
            Shape (channels,): factors; given with beta.
        beta : tensor, optional
            Shape (channels,): added after the factors; given with gamma.
        eps : float, default 1e-5
            Added to the variance.

        Returns
        -------
        tensor
            The shape of x.

        Raises
        ------
        ArgumentError
            `groups` does not divide the channels, or one of gamma and beta is missing.

        References
        ----------
        Wu and He, Group Normalization, arXiv:1803.08494

        Examples
        --------
        >>> s = tlrt.Session("cpu")
        >>> x = s.const([[[1, 2], [3, 4]]])
        >>> print(s.group_norm(x, 1).numpy().round(4))
        [[[-1.3416 -0.4472]
          [ 0.4472  1.3416]]]
        """
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
        """Normalises each channel of each sample: group_norm with a group for every channel.

        Parameters
        ----------
        x : tensor
            Shape (batch, channels, …).
        gamma : tensor, optional
            Shape (channels,): factors; given with beta.
        beta : tensor, optional
            Shape (channels,): added after the factors; given with gamma.
        eps : float, default 1e-5
            Added to the variance.

        Returns
        -------
        tensor
            The shape of x.

        Examples
        --------
        >>> s = tlrt.Session("cpu")
        >>> x = s.const([[[1, 2], [3, 4]]])
        >>> print(s.instance_norm(x).numpy().round(4))
        [[[-1.  1.]
          [-1.  1.]]]
        """
        return self.group_norm(x, self._channels("instance_norm", x)[1], gamma, beta, eps)
