"""Normalisation of channels: by the batch, with running statistics, and by groups of each sample."""

import math
from typing import Any

from tlrt.errors import ArgumentError, ShapeError, refusal
from tlrt.nn import init
from tlrt.nn.layer import Layer, require_sizes
from tlrt.nn.linear import affine_parameters
from tlrt.parameter import Parameter
from tlrt.session import Session
from tlrt.tape import AnyBuffer
from tlrt.tensor import TensorRef

__all__ = ["BatchNorm", "GroupNorm", "InstanceNorm"]


class BatchNorm(Layer):
    """Normalisation of each channel over the batch and the positions.

    y = weight·(x - μ)/√(V + eps) + bias per channel. In training μ and V are the mean and the biased variance of x over
    the batch and all spatial axes, and gradients flow through them. Each such call moves the running statistics:
    running_mean ← (1 - momentum)·running_mean + momentum·μ, and running_var likewise with the unbiased V·m/(m - 1),
    where m is the number of elements of a channel. Outside of training μ and V are the running ones, which are
    constants.

    x (batch, channels, spatial…) keeps its shape. NAME.weight (channels) starts at 1, NAME.bias at 0. NAME.running_mean
    starts at 0 and NAME.running_var at 1; both are frozen parameters, so that a checkpoint holds them. A call raises
    ShapeError for other channels, and in training for m below 2.

    The operation is ``batchnorm_channel_first`` of the channels laid side by side, (channels, batch, positions); its
    bounds and its VJP hold.

    Parameters
    ----------
    session : Session
        The session that gets the parameters.
    channels : int
        Size of axis 1.
    name : str
        What the parameters' names begin with.
    eps : float
        Added to the variance.
    momentum : float
        Share of the new statistics, 0 to 1.
    affine : bool
        False: no weight and no bias.

    Raises
    ------
    ArgumentError
        Unless 0 <= momentum <= 1.

    Examples
    --------
    >>> import tlrt
    >>> s = tlrt.Session("cpu")
    >>> norm = tlrt.nn.BatchNorm(s, 1, name="norm", eps=0.0, momentum=0.5)
    >>> norm(s.const([[1], [3]]), training=True).numpy().tolist()
    [[-1.0], [1.0]]
    >>> norm.running_mean.value, norm.running_var.value
    (array([1.], dtype=float32), array([1.5], dtype=float32))

    Source: Ioffe and Szegedy, arXiv:1502.03167; torch.nn.BatchNorm1d, 2d and 3d.
    """

    def __init__(
        self,
        session: Session,
        channels: int,
        *,
        name: str,
        eps: float = 1e-5,
        momentum: float = 0.1,
        affine: bool = True,
    ) -> None:
        require_sizes(self, channels=channels)
        if not 0 <= momentum <= 1:
            raise refusal(ArgumentError, "BatchNorm", "momentum", momentum, "0 <= momentum <= 1")
        self.session, self.eps, self.momentum = session, eps, momentum
        self.weight, self.bias = affine_parameters(session, (channels,), name, affine)
        self.running_mean = session.param(init.zeros(session, (channels,)), f"{name}.running_mean", False)
        self.running_var = session.param(init.ones(session, (channels,)), f"{name}.running_var", False)

    def __call__(self, x: TensorRef, *, training: bool = False) -> TensorRef:
        shape = self.session.shape(x)
        channels = self.running_mean.shape[0]
        if len(shape) < 2 or shape[1] != channels:
            raise refusal(ShapeError, "BatchNorm", "x", f"shape {shape}", f"(batch, {channels}, spatial…)")
        return self._train(x) if training else self._evaluate(x)

    def _train(self, x: TensorRef) -> TensorRef:
        s = self.session
        batch, channels, *spatial = shape = s.shape(x)
        positions = math.prod(spatial)
        if batch * positions < 2:
            expected = "two elements or more per channel in training"
            raise refusal(ShapeError, "BatchNorm", "x", f"shape {shape}", expected)
        rows = s.swap_adjacent_at_depth(s.reshape(x, (batch, channels, positions)), 0)
        y = s.batchnorm_channel_first(rows, *self._affine(), self.eps)
        self._observe(rows.value.buffer, channels, batch * positions)
        return s.reshape(s.swap_adjacent_at_depth(y, 0), shape)

    def _observe(self, rows: Any, channels: int, m: int) -> None:
        """Moves the running statistics by the rows of x. Beside the tape: nothing of it is kept until the next reset."""
        kernels = self.session.tape.kernels
        mean = kernels.reduce_mean(rows, (channels, m), 1)
        spread = kernels.broadcast_vec_to_cols(mean, channels, m)
        kernels.sub(rows, spread, out=spread)
        kernels.mul(spread, spread, out=spread)
        variance = kernels.reduce_mean(spread, (channels, m), 1)
        spread.release()
        moved = []
        for running, now, factor in ((self.running_mean, mean, 1.0), (self.running_var, variance, m / (m - 1))):
            fresh = kernels.scale(running.mirror, 1.0 - self.momentum)
            moved.append((running, kernels.axpy(fresh, now, self.momentum * factor, out=fresh)))
            now.release()
        for running, fresh in moved:
            running.assign(AnyBuffer.of(running.shape, fresh))

    def _affine(self) -> tuple[TensorRef, TensorRef]:
        s, shape = self.session, self.running_mean.shape
        if self.weight is None or self.bias is None:
            return s.full(shape, 1.0), s.zeros(shape)
        return s.use(self.weight), s.use(self.bias)

    def _evaluate(self, x: TensorRef) -> TensorRef:
        s = self.session
        weight, bias = self._affine()
        slope = s.div(weight, s.sqrt(s.use(self.running_var) + self.eps))
        return s.channel_affine(x, s.use(self.running_mean), slope, bias)


class GroupNorm(Layer):
    """Normalisation of each sample over groups of neighbouring channels.

    y = weight·(x - μ)/√(V + eps) + bias, where μ and V are the mean and the biased variance of the sample's group at
    all positions. x (batch, channels, spatial…) keeps its shape; NAME.weight (channels) starts at 1, NAME.bias at 0. A
    call raises ShapeError for other channels.

    Parameters
    ----------
    session : Session
        The session that gets the parameters.
    groups, channels : int
        Number of groups, and size of axis 1.
    name : str
        What the parameters' names begin with.
    eps : float
        Added to the variance.
    affine : bool
        False: no weight and no bias.

    Raises
    ------
    ArgumentError
        Unless `groups` divides `channels`.

    Examples
    --------
    >>> import tlrt
    >>> s = tlrt.Session("cpu")
    >>> norm = tlrt.nn.GroupNorm(s, 1, 2, name="norm", eps=0.0)
    >>> norm(s.const([[[1, 1], [3, 3]]])).numpy().tolist()
    [[[-1.0, -1.0], [1.0, 1.0]]]

    Source: Wu and He, arXiv:1803.08494; torch.nn.GroupNorm.
    """

    def __init__(
        self, session: Session, groups: int, channels: int, *, name: str, eps: float = 1e-5, affine: bool = True
    ) -> None:
        require_sizes(self, groups=groups, channels=channels)
        if not groups or channels % groups:
            raise refusal(ArgumentError, type(self).__name__, "groups", groups, f"a divisor of the {channels} channels")
        self.session, self.groups, self.channels, self.eps = session, groups, channels, eps
        self.weight, self.bias = affine_parameters(session, (channels,), name, affine)

    def __call__(self, x: TensorRef | Parameter, *, training: bool = False) -> TensorRef:
        s: Any = self.session
        shape = s.shape(x)
        if len(shape) < 2 or shape[1] != self.channels:
            expected = f"(batch, {self.channels}, spatial…)"
            raise refusal(ShapeError, type(self).__name__, "x", f"shape {shape}", expected)
        return s.group_norm(x, self.groups, self.weight, self.bias, self.eps)


class InstanceNorm(GroupNorm):
    """Normalisation of each sample's channels over the positions: :class:`GroupNorm` with a group for every channel.

    It keeps no running statistics.

    Parameters
    ----------
    session : Session
        The session that gets the parameters.
    channels : int
        Size of axis 1.
    name : str
        What the parameters' names begin with; needed with `affine`.
    eps : float
        Added to the variance.
    affine : bool
        True: a weight and a bias. PyTorch has none by default either.

    Raises
    ------
    ArgumentError
        For no channel.

    Examples
    --------
    >>> import tlrt
    >>> s = tlrt.Session("cpu")
    >>> norm = tlrt.nn.InstanceNorm(s, 2, eps=0.0)
    >>> norm(s.const([[[1, 3], [5, 5.5]]])).numpy().tolist()
    [[[-1.0, 1.0], [-1.0, 1.0]]]

    Source: Ulyanov, Vedaldi and Lempitsky, arXiv:1607.08022; torch.nn.InstanceNorm1d, 2d and 3d.
    """

    def __init__(
        self, session: Session, channels: int, *, name: str = "", eps: float = 1e-5, affine: bool = False
    ) -> None:
        super().__init__(session, channels, channels, name=name, eps=eps, affine=affine)
