"""Recurrent layers: LSTM and GRU, of several layers, in one direction or both."""

from collections.abc import Callable, Sequence
from typing import Any

from tlrt.errors import ArgumentError, ArgumentTypeError, ShapeError, refusal
from tlrt.nn import init
from tlrt.nn.layer import Dropout, Layer, require_sizes
from tlrt.parameter import Parameter
from tlrt.session import Session
from tlrt.tensor import TensorRef

__all__ = ["GRU", "LSTM"]

#: what a cell makes of the input's share of the gates at one position, and of its states
Step = Callable[[TensorRef, list[TensorRef]], list[TensorRef]]


class _Recurrent(Layer):
    """What the recurrent layers share: their weights, and the way over layers, directions and positions."""

    #: rows of the weights per element of the state, and states of a cell
    _gates = 0
    _states: tuple[str, ...] = ("h_0",)

    def __init__(
        self, session: Session, input_size: int, hidden_size: int, num_layers: int = 1, *, name: str, bias: bool = True,
        batch_first: bool = False, dropout: float = 0.0, bidirectional: bool = False,
    ) -> None:  # fmt: skip
        require_sizes(self, input_size=input_size, hidden_size=hidden_size, num_layers=num_layers)
        for what, size in (("hidden_size", hidden_size), ("num_layers", num_layers)):
            if size < 1:
                raise refusal(ArgumentError, type(self).__name__, what, size, "1 or more")
        self.session, self.input_size, self.hidden_size, self.num_layers = session, input_size, hidden_size, num_layers
        self.bias, self.batch_first, self.bidirectional = bias, batch_first, bidirectional
        self.dropout = Dropout(dropout)
        rows, bound, inputs = self._gates * hidden_size, hidden_size**-0.5, input_size
        for layer in range(num_layers):
            for end in self._ends(layer):
                shapes = {"weight_ih": (rows, inputs), "weight_hh": (rows, hidden_size)}
                for part, shape in {**shapes, **({"bias_ih": (rows,), "bias_hh": (rows,)} if bias else {})}.items():
                    value = init.uniform(session, shape, -bound, bound)
                    setattr(self, part + end, session.param(value, f"{name}.{part}{end}"))
            inputs = hidden_size * len(self._ends(layer))

    def _ends(self, layer: int) -> list[str]:
        """How the names of a layer's weights end, for each direction."""
        return [f"_l{layer}", f"_l{layer}_reverse"][: 1 + self.bidirectional]

    def _cell(self, weights: Sequence[Parameter | None]) -> tuple[TensorRef | Parameter | None, Step]:
        """The bias of the input's share of the gates, and the step."""
        raise NotImplementedError

    def _run(
        self, x: TensorRef, given: Sequence[TensorRef | None], training: bool
    ) -> tuple[TensorRef, list[TensorRef]]:
        """The outputs, and the last states."""
        s, op = self.session, type(self).__name__
        shape = s.shape(x)
        swapped = self.batch_first and len(shape) == 3
        if len(shape) not in (2, 3) or shape[-1] != self.input_size or not shape[int(swapped)]:
            axes = "batch, n" if self.batch_first else "n, batch"
            expected = f"({axes}, {self.input_size}) or (n, {self.input_size}) with n of 1 or more"
            raise refusal(ShapeError, op, "x", f"shape {shape}", expected)
        if swapped:
            x = s.swap_adjacent_at_depth(x, 0)
        alone = (1,) if len(shape) == 2 else ()
        x = s.reshape(x, (shape[0], 1, shape[1])) if alone else x
        batch = s.shape(x)[1]
        wanted = self.num_layers * (1 + self.bidirectional), batch, self.hidden_size
        states = [self._start(name, h, wanted, len(shape)) for name, h in zip(self._states, given, strict=True)]
        last: list[list[TensorRef]] = []
        for layer in range(self.num_layers):
            if layer:
                x = self.dropout(x, training=training)
            made = []
            for backwards, end in enumerate(self._ends(layer)):
                outputs, after = self._scan(x, end, [h[len(last)] for h in states], bool(backwards))
                made.append(outputs)
                last.append(after)
            x = made[0] if len(made) == 1 else s.concat(made, axis=2)
        ends = [s.stack(column) for column in zip(*last, strict=True)]
        if alone:
            return s.reshape(x, (shape[0], -1)), [s.reshape(h, (wanted[0], wanted[2])) for h in ends]
        return (s.swap_adjacent_at_depth(x, 0) if swapped else x), ends

    def _start(self, name: str, h: TensorRef | None, wanted: tuple[int, int, int], axes: int) -> list[TensorRef]:
        """The state before the first position, for each layer and direction."""
        s = self.session
        if h is None:
            return [s.zeros(wanted[1:])] * wanted[0]
        expected = wanted if axes == 3 else (wanted[0], wanted[2])
        if s.shape(h) != expected:
            raise refusal(ShapeError, type(self).__name__, name, f"shape {s.shape(h)}", expected)
        return _unbind(s, s.reshape(h, wanted))

    def _scan(
        self, x: TensorRef, end: str, states: list[TensorRef], backwards: bool
    ) -> tuple[TensorRef, list[TensorRef]]:
        """One direction of a layer over x (n, batch, inputs): the outputs, and the states after the last position."""
        s: Any = self.session
        w_ih, *weights = (getattr(self, part + end, None) for part in ("weight_ih", "weight_hh", "bias_ih", "bias_hh"))
        bias, step = self._cell(weights)
        shares, outputs = _unbind(s, s.linear(w_ih, bias, x)), []
        for share in reversed(shares) if backwards else shares:
            states = step(share, states)
            outputs.append(states[0])
        return s.stack(outputs[::-1] if backwards else outputs), states


class LSTM(_Recurrent):
    """Long short-term memory over a sequence.

    i, f, o = σ(gates), g = tanh(its gate); c ← f·c + i·g; h ← o·tanh(c). The gates W_ih·x + b_ih + W_hh·h + b_hh stand
    in the order i, f, g, o.

    A call takes x (n, batch, input_size), with `batch_first` (batch, n, input_size), or (n, input_size). Its `states`
    (h_0, c_0) are zeros unless given, each (num_layers·directions, batch, hidden_size) whatever `batch_first` is,
    without batch as x has none. It gives output, (h_n, c_n): the output as x with hidden_size·directions, the
    directions side by side, and the states after the last position, which for the reverse direction is position 0. A
    call raises ShapeError where shapes do not fit, and for no position.

    The weights are NAME.weight_ih_l0 (4·hidden_size, inputs), weight_hh_l0, bias_ih_l0 and bias_hh_l0; those of the
    reverse direction have _reverse behind them. All start uniform within ±1/√hidden_size.

    Parameters
    ----------
    session : Session
        The session that gets the parameters.
    input_size, hidden_size : int
        Sizes of the last axes of x and of a state.
    num_layers : int
        Layers one after the other.
    name : str
        What the parameters' names begin with.
    bias : bool
        False: no biases.
    batch_first : bool
        True: the batch is axis 0 of x and of the output.
    dropout : float
        Probability with which outputs of all layers but the last are dropped in training.
    bidirectional : bool
        True: a second direction, from the last position to the first.

    Raises
    ------
    ArgumentError
        For no layer or no state.

    Examples
    --------
    >>> import tlrt
    >>> s = tlrt.Session("cpu", seed=1)
    >>> lstm = tlrt.nn.LSTM(s, 3, 4, num_layers=2, name="lstm", batch_first=True)
    >>> output, (h, c) = lstm(s.rand_normal((5, 7, 3)))
    >>> output.shape, h.shape, c.shape
    ((5, 7, 4), (2, 5, 4), (2, 5, 4))

    Source: Hochreiter and Schmidhuber, Neural Computation 9, 1997; torch.nn.LSTM.
    """

    _gates, _states = 4, ("h_0", "c_0")

    def __call__(self, x: TensorRef, states: Any = None, *, training: bool = False) -> Any:
        given = (None, None) if states is None else states
        if not isinstance(given, (tuple, list)) or len(given) != 2:
            raise refusal(ArgumentTypeError, "LSTM", "states", type(given).__name__, "(h_0, c_0)")
        output, (h, c) = self._run(x, given, training)
        return output, (h, c)

    def _cell(self, weights: Sequence[Parameter | None]) -> tuple[TensorRef | Parameter | None, Step]:
        s, n = self.session, self.hidden_size
        w, b_ih, b_hh = weights
        assert w is not None
        across = s.transpose2d(s.use(w))

        def step(share: TensorRef, states: list[TensorRef]) -> list[TensorRef]:
            h, c = states
            gates = s.add(share, s.matmul(h, across))
            opened = s.sigmoid(gates)  # one call for three gates; of g nothing is used
            i, f, o = (_columns(s, opened, k * n, n) for k in (0, 1, 3))
            c = s.add(s.mul(f, c), s.mul(i, s.tanh(_columns(s, gates, 2 * n, n))))
            return [s.mul(o, s.tanh(c)), c]

        return (None if b_ih is None or b_hh is None else s.add(s.use(b_ih), s.use(b_hh))), step


class GRU(_Recurrent):
    """Gated recurrent units over a sequence.

    r, z = σ(W_ih·x + b_ih + W_hh·h + b_hh); m = tanh(W_in·x + b_in + r·(W_hn·h + b_hn)); h ← m + z·(h - m). The reset
    gate acts on the product, b_hn included, as in PyTorch and cuDNN.

    Shapes and names are those of :class:`LSTM`, with 3·hidden_size rows in the order r, z, n and one state, h_0. A call
    gives output, h_n.

    Parameters
    ----------
    session : Session
        The session that gets the parameters.
    input_size, hidden_size : int
        Sizes of the last axes of x and of the state.
    num_layers : int
        Layers one after the other.
    name : str
        What the parameters' names begin with.
    bias : bool
        False: no biases.
    batch_first : bool
        True: the batch is axis 0 of x and of the output.
    dropout : float
        Probability with which outputs of all layers but the last are dropped in training.
    bidirectional : bool
        True: a second direction, from the last position to the first.

    Raises
    ------
    ArgumentError
        For no layer or no state.

    Examples
    --------
    >>> import tlrt
    >>> s = tlrt.Session("cpu", seed=1)
    >>> output, h = tlrt.nn.GRU(s, 3, 4, name="gru", bidirectional=True)(s.rand_normal((7, 5, 3)))
    >>> output.shape, h.shape
    ((7, 5, 8), (2, 5, 4))

    Source: Cho et al., arXiv:1406.1078; torch.nn.GRU.
    """

    _gates = 3

    def __call__(self, x: TensorRef, states: TensorRef | None = None, *, training: bool = False) -> Any:
        output, (h,) = self._run(x, (states,), training)
        return output, h

    def _cell(self, weights: Sequence[Parameter | None]) -> tuple[TensorRef | Parameter | None, Step]:
        s: Any = self.session
        n = self.hidden_size
        w, b_ih, b_hh = weights
        b = s.zeros(3 * n) if b_hh is None else b_hh

        def step(share: TensorRef, states: list[TensorRef]) -> list[TensorRef]:
            h, again = states[0], s.linear(w, b, states[0])
            gates = s.sigmoid(s.add(_columns(s, share, 0, 2 * n), _columns(s, again, 0, 2 * n)))
            r, z = _columns(s, gates, 0, n), _columns(s, gates, n, n)
            m = s.tanh(s.add(_columns(s, share, 2 * n, n), s.mul(r, _columns(s, again, 2 * n, n))))
            return [s.add(m, s.mul(z, s.sub(h, m)))]

        return b_ih, step


def _columns(s: Session, x: TensorRef, start: int, count: int) -> TensorRef:
    """x[:, start : start + count]; reading an index would take as long as several operations."""
    return s._apply("slice_axes", (x,), ((0, start), (1, 1), 0, (s.shape(x)[0], count)))


def _unbind(s: Session, x: TensorRef) -> list[TensorRef]:
    """The entries along the first axis, cut by halves: backward, a cut writes zeros for what it leaves, so that entry by entry
    would take time in the square of their number."""
    n = s.shape(x)[0]
    if n == 1:
        return [s.reshape(x, s.shape(x)[1:])]
    return [entry for half in s.split(x, (n // 2, n - n // 2)) for entry in _unbind(s, half)]
