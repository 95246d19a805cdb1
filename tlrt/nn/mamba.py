"""A selective state space block (Mamba)."""

import math
from collections.abc import Sequence

import numpy as np

from tlrt.errors import ArgumentError, ShapeError, refusal
from tlrt.nn import init
from tlrt.nn.layer import Layer, require_sizes
from tlrt.nn.linear import Linear
from tlrt.session import Session
from tlrt.tensor import TensorRef

__all__ = ["MambaBlock", "SelectiveScan"]

#: the range the step sizes start in, log-uniform (Gu and Dao, arXiv:2312.00752, section 3.6)
_STEPS = (1e-3, 1e-1)


class SelectiveScan(Layer):
    """A diagonal state space model whose step, input and output maps depend on the token.

    h_t = e^(Δ_t·A)⊙h_(t-1) + Δ_t·B_t·x_t, y_t = C_t·h_t + D⊙x_t from h = 0, with A = -e^a_log, Δ_t =
    softplus(step(low(x_t))), B_t = input(x_t), C_t = output(x_t).

    x (seq_len, batch, width) keeps its shape. The recurrence is one ``selective_scan_diag_var`` of batch·width·state
    channels. NAME.a_log (width, state) starts at ln(1..state), NAME.d (width) at 1. NAME.low, NAME.step (whose bias
    puts Δ log-uniform in [0.001, 0.1]), NAME.input and NAME.output are :class:`Linear`. A call raises ShapeError for
    other axes.

    Parameters
    ----------
    session : Session
        The session that gets the parameters.
    width : int
        Channels.
    state : int
        Numbers h of a sample and channel.
    name : str
        What the parameters' names begin with.
    rank : int, optional
        Outputs of NAME.low; ⌈width/16⌉ unless given.

    Raises
    ------
    ArgumentError
        For no channel or no state.

    Examples
    --------
    >>> import tlrt
    >>> s = tlrt.Session("cpu", seed=1)
    >>> tlrt.nn.SelectiveScan(s, 4, 2, name="scan")(s.rand_normal((6, 3, 4))).shape
    (6, 3, 4)

    Source: Gu and Dao, arXiv:2312.00752, algorithm 2, with B discretised by Euler's step.
    """

    def __init__(self, session: Session, width: int, state: int = 16, *, name: str, rank: int | None = None) -> None:
        require_sizes(self, width=width, state=state)
        if state < 1 or width < 1:
            raise refusal(ArgumentError, "SelectiveScan", "width, state", f"{width}, {state}", "1 or more")
        self.session, self.width, self.state = session, width, state
        rank = -(-width // 16) if rank is None else rank
        self.low = Linear(session, width, rank, name=f"{name}.low", bias=False)
        self.step = Linear(session, rank, width, name=f"{name}.step", bias_init=_step_bias)
        self.input = Linear(session, width, state, name=f"{name}.input", bias=False)
        self.output = Linear(session, width, state, name=f"{name}.output", bias=False)
        orders = np.log(np.arange(1, state + 1)).astype(np.float32)
        self.a_log = session.param(np.tile(orders, (width, 1)), f"{name}.a_log")
        self.d = session.param(init.ones(session, (width,)), f"{name}.d")

    def __call__(self, x: TensorRef, *, training: bool = False) -> TensorRef:
        s = self.session
        shape = s.shape(x)
        if len(shape) != 3 or shape[2] != self.width:
            raise refusal(ShapeError, "SelectiveScan", "x", f"shape {shape}", f"(seq_len, batch, {self.width})")
        n, batch, width = shape
        full = (n, batch, width, self.state)
        flat = (n, batch * width * self.state)
        delta = s.softplus(self.step(self.low(x)))
        a = s.neg(s.exp(s.use(self.a_log)))
        decay = s.exp(s.mul(s.reshape(delta, (n, batch, width, 1)), a))
        b = s.broadcast_to(s.reshape(self.input(x), (n, batch, 1, self.state)), full)
        drive = s.broadcast_to(s.reshape(s.mul(delta, x), (n, batch, width, 1)), full)
        start = s.zeros(flat[1:])
        h = s.selective_scan_diag_var(s.reshape(decay, flat), s.reshape(b, flat), s.reshape(drive, flat), start)
        c = s.reshape(self.output(x), (n * batch, self.state, 1))
        y = s.reshape(s.bmm(s.reshape(h, (n * batch, width, self.state)), c), shape)
        return s.add(y, s.mul(x, s.use(self.d)))


def _step_bias(session: Session, shape: Sequence[int]) -> init.Array:
    """The biases whose softplus is log-uniform within _STEPS: softplus⁻¹(y) = y + ln(1 - e^-y)."""
    low, high = (math.log(v) for v in _STEPS)
    y = np.exp(init.uniform(session, shape, low, high).astype(np.float64))
    return (y + np.log(-np.expm1(-y))).astype(np.float32)


class MambaBlock(Layer):
    """A gated selective scan behind a short causal convolution; no residual and no normalisation of its own.

    y = out(scan(silu(conv(enter(x))))⊙silu(gate(x))), conv(u)_t = bias + Σ_j taps[j]⊙u_(t-j), u = 0 before the start.

    x (batch, seq_len, width), or (seq_len, width), keeps its shape; position t depends on positions up to t alone.
    NAME.enter, NAME.gate and NAME.out are :class:`Linear` without bias, NAME.scan is a :class:`SelectiveScan`.
    NAME.conv.weight (taps, channels) and NAME.conv.bias (channels) start uniform within ±1/√taps. A call raises
    ShapeError for other axes.

    Parameters
    ----------
    session : Session
        The session that gets the parameters.
    width : int
        Size of the last axis.
    name : str
        What the parameters' names begin with.
    state : int
        Numbers of a sample and channel in the scan.
    expand : int
        Channels inside as a multiple of `width`.
    taps : int
        Positions that the convolution reads.

    Raises
    ------
    ArgumentError
        For no tap.

    Examples
    --------
    >>> import tlrt
    >>> s = tlrt.Session("cpu", seed=1)
    >>> tlrt.nn.MambaBlock(s, 4, name="mamba", state=2)(s.rand_normal((3, 6, 4))).shape
    (3, 6, 4)

    Source: Gu and Dao, arXiv:2312.00752, figure 3.
    """

    def __init__(
        self, session: Session, width: int, *, name: str, state: int = 16, expand: int = 2, taps: int = 4
    ) -> None:
        require_sizes(self, width=width, expand=expand, taps=taps)
        if taps < 1:
            raise refusal(ArgumentError, "MambaBlock", "taps", taps, "1 or more")
        self.session, self.width, self.taps = session, width, taps
        self.channels = channels = expand * width
        self.enter = Linear(session, width, channels, name=f"{name}.enter", bias=False)
        self.gate = Linear(session, width, channels, name=f"{name}.gate", bias=False)
        bound = 1.0 / math.sqrt(taps)
        self.conv_weight = session.param(init.uniform(session, (taps, channels), -bound, bound), f"{name}.conv.weight")
        self.conv_bias = session.param(init.uniform(session, (channels,), -bound, bound), f"{name}.conv.bias")
        self.scan = SelectiveScan(session, channels, state, name=f"{name}.scan")
        self.out = Linear(session, channels, width, name=f"{name}.out", bias=False)

    def __call__(self, x: TensorRef, *, training: bool = False) -> TensorRef:
        s = self.session
        shape = s.shape(x)
        if len(shape) not in (2, 3) or shape[-1] != self.width:
            raise refusal(ShapeError, "MambaBlock", "x", f"shape {shape}", f"(batch, seq_len, {self.width})")
        # time comes first inside: the scan and the shifts of the convolution run along axis 0
        x = s.reshape(x, (shape[0], 1, shape[1])) if len(shape) == 2 else s.swap_adjacent_at_depth(x, 0)
        u = s.silu(self._convolve(self.enter(x)))
        y = self.out(s.mul(self.scan(u), s.silu(self.gate(x))))
        return s.reshape(y, shape) if len(shape) == 2 else s.swap_adjacent_at_depth(y, 0)

    def _convolve(self, u: TensorRef) -> TensorRef:
        s = self.session
        n, batch, channels = s.shape(u)
        weight = s.use(self.conv_weight)
        padded = s.concat_dim0(s.zeros((self.taps - 1, batch, channels)), u)
        y = s.use(self.conv_bias)
        for j in range(self.taps):
            shifted = s.slice_range0(padded, self.taps - 1 - j, n)
            y = s.add(s.mul(shifted, s.gather_row(weight, j)), y)
        return y
