"""Spectral layers of Fourier neural operators on one or two periodic axes."""

from collections.abc import Callable, Sequence

from tlrt._operations.base import per_axis
from tlrt.errors import ShapeError, refusal
from tlrt.nn import init
from tlrt.nn.conv import Conv
from tlrt.nn.layer import Layer, require_sizes
from tlrt.nn.linear import Linear
from tlrt.session import Session
from tlrt.tensor import TensorRef

__all__ = ["FNOBlock1d", "FNOBlock2d", "SpectralConv1d", "SpectralConv2d"]


class SpectralConv1d(Layer):
    """Convolution along the grid by complex weights on the lowest Fourier modes.

    y = irfft(Z) with Z[k, o] = Σ_c X[k, c]·(weight_re + i·weight_im)[k, c, o] for k < modes, else 0, and X = rfft(x)
    along the grid.

    x (grid, width), or (batch, grid, width), keeps its shape, on any grid with grid//2 + 1 >= modes. NAME.weight_re and
    NAME.weight_im (modes, width, width) start uniform in [0, 1/width²). One sample runs as ``spectral_conv1d_rfft``. A
    batch is composed of the packed transforms and one batched product per part, since samples one by one would each
    write a gradient of the whole batch; the two agree within rounding. A call raises ShapeError for other axes.

    Parameters
    ----------
    session : Session
        The session that gets the parameters.
    width, modes : int
        Channels, and modes that are kept.
    name : str
        What the parameters' names begin with.

    Raises
    ------
    ArgumentTypeError, ShapeError
        For a size that is no number of elements.

    Examples
    --------
    >>> import tlrt
    >>> s = tlrt.Session("cpu", seed=1)
    >>> tlrt.nn.SpectralConv1d(s, 3, 4, name="spectral")(s.rand_normal((2, 16, 3))).shape
    (2, 16, 3)

    Source: Li et al., arXiv:2010.08895.
    """

    def __init__(self, session: Session, width: int, modes: int, *, name: str) -> None:
        require_sizes(self, width=width, modes=modes)
        self.session, self.modes, self.width = session, modes, width
        shape, high = (modes, width, width), 1.0 / max(width * width, 1)
        self.weight_re = session.param(init.uniform(session, shape, 0.0, high), f"{name}.weight_re")
        self.weight_im = session.param(init.uniform(session, shape, 0.0, high), f"{name}.weight_im")

    def __call__(self, x: TensorRef, *, training: bool = False) -> TensorRef:
        s = self.session
        shape = s.shape(x)
        if len(shape) == 2:
            return s.spectral_conv1d_rfft(x, s.use(self.weight_re), s.use(self.weight_im))
        if len(shape) != 3 or shape[2] != self.width or shape[1] // 2 + 1 < self.modes:
            expected = f"(batch, grid, {self.width}), grid//2 + 1 >= {self.modes}"
            raise refusal(ShapeError, "SpectralConv1d", "x", f"shape {shape}", expected)
        return self._apply_batch(x, *shape[:2])

    def _apply_batch(self, x: TensorRef, batch: int, grid: int) -> TensorRef:
        """Spectra lie as (frequency, re or im, batch·width), so that the lowest modes are one slice."""
        s, modes, width = self.session, self.modes, self.width
        part = (modes, batch, width)
        w_re, w_im = s.use(self.weight_re), s.use(self.weight_im)
        signals = s.reshape(s.transpose3d_acb(x), (batch * width, grid))
        spectrum = s.transpose3d_bca(s.rfft1d_packed(signals))
        low = s.swap_adjacent_at_depth(s.slice_range0(spectrum, 0, modes), 0)
        re, im = (s.reshape(s.slice_range0(low, i, 1), part) for i in (0, 1))
        z_re = s.sub(s.bmm(re, w_re), s.bmm(im, w_im))
        z_im = s.add(s.bmm(re, w_im), s.bmm(im, w_re))
        flat = (1, modes, batch * width)
        low = s.swap_adjacent_at_depth(s.concat_dim0(s.reshape(z_re, flat), s.reshape(z_im, flat)), 0)
        spectrum = s.concat_dim0(low, s.zeros((grid // 2 + 1 - modes, 2, batch * width)))
        signals = s.irfft1d_packed(s.transpose3d_cab(spectrum), grid)
        return s.transpose3d_acb(s.reshape(signals, (batch, width, grid)))


class FNOBlock1d(Layer):
    """A spectral convolution beside a linear map of each point, and an activation.

    y = activation(spectral(x) + W·x + b). x (grid, width), or (batch, grid, width), keeps its shape; the parts are
    NAME.spectral and NAME.point.

    Parameters
    ----------
    session : Session
        The session that gets the parameters.
    width, modes : int
        Channels, and modes that are kept.
    name : str
        What the parameters' names begin with.
    activation : str, function of a tensor or None
        The name of an operation; None leaves it out, as the last block does.

    Raises
    ------
    ArgumentTypeError, ShapeError
        As :class:`SpectralConv1d`.

    Examples
    --------
    >>> import tlrt
    >>> s = tlrt.Session("cpu", seed=1)
    >>> tlrt.nn.FNOBlock1d(s, 3, 4, name="block", activation=None)(s.rand_normal((16, 3))).shape
    (16, 3)

    Source: Li et al., arXiv:2010.08895.
    """

    def __init__(
        self, session: Session, width: int, modes: int, *, name: str,
        activation: Callable[[TensorRef], TensorRef] | str | None = "gelu",
    ) -> None:  # fmt: skip
        self.session = session
        self.spectral = SpectralConv1d(session, width, modes, name=f"{name}.spectral")
        self.point = Linear(session, width, width, name=f"{name}.point")
        self.activation = getattr(session, activation) if isinstance(activation, str) else activation

    def __call__(self, x: TensorRef, *, training: bool = False) -> TensorRef:
        y = self.session.add(self.spectral(x), self.point(x))
        return y if self.activation is None else self.activation(y)


class SpectralConv2d(Layer):
    """Convolution over two periodic axes by complex weights on the lowest Fourier modes.

    y = spectral_conv2d(x, weight_re, weight_im). x (batch, width, n1, n2) keeps its shape, on any grid with n1 >= 2·m1
    and n2//2 + 1 >= m2. NAME.weight_re and NAME.weight_im (2·m1, m2, width, width), inputs before outputs, start
    uniform in [0, 1/width²).

    The frequencies of the first axis are 0 to m1 - 1, then -m1 to -1. The two weights (in, out, m1, m2) of the authors'
    PyTorch code are one after the other here: np.concatenate([w1, w2], 2).transpose(2, 3, 0, 1). A call raises
    ShapeError for other axes.

    Parameters
    ----------
    session : Session
        The session that gets the parameters.
    width : int
        Channels.
    modes : int or (int, int)
        m1 and m2; a number stands for both.
    name : str
        What the parameters' names begin with.

    Raises
    ------
    ArgumentTypeError, ShapeError
        For a size that is no number of elements, or another number of modes than 2.

    Examples
    --------
    >>> import tlrt
    >>> s = tlrt.Session("cpu", seed=1)
    >>> layer = tlrt.nn.SpectralConv2d(s, 3, (2, 3), name="spectral")
    >>> layer(s.rand_normal((2, 3, 8, 8))).shape, layer.weight_re.shape
    ((2, 3, 8, 8), (4, 3, 3, 3))

    Source: Li et al., arXiv:2010.08895.
    """

    def __init__(self, session: Session, width: int, modes: Sequence[int] | int, *, name: str) -> None:
        m1, m2 = per_axis(type(self).__name__, "modes", modes, 2)
        require_sizes(self, width=width, modes=m1)
        require_sizes(self, modes=m2)
        self.session = session
        shape, high = (2 * m1, m2, width, width), 1.0 / max(width * width, 1)
        self.weight_re = session.param(init.uniform(session, shape, 0.0, high), f"{name}.weight_re")
        self.weight_im = session.param(init.uniform(session, shape, 0.0, high), f"{name}.weight_im")

    def __call__(self, x: TensorRef, *, training: bool = False) -> TensorRef:
        s = self.session
        return s.spectral_conv2d(x, s.use(self.weight_re), s.use(self.weight_im))


class FNOBlock2d(Layer):
    """A spectral convolution beside a linear map of each point's channels, and an activation.

    y = activation(spectral(x) + W·x + b). x (batch, width, n1, n2) keeps its shape; the parts are NAME.spectral and
    NAME.point, a convolution with a kernel of 1.

    Parameters
    ----------
    session : Session
        The session that gets the parameters.
    width : int
        Channels.
    modes : int or (int, int)
        Modes that are kept of each axis.
    name : str
        What the parameters' names begin with.
    activation : str, function of a tensor or None
        The name of an operation; None leaves it out, as the last block does.

    Raises
    ------
    ArgumentTypeError, ShapeError
        As :class:`SpectralConv2d`.

    Examples
    --------
    >>> import tlrt
    >>> s = tlrt.Session("cpu", seed=1)
    >>> tlrt.nn.FNOBlock2d(s, 3, 2, name="block")(s.rand_normal((1, 3, 8, 8))).shape
    (1, 3, 8, 8)

    Source: Li et al., arXiv:2010.08895.
    """

    def __init__(
        self, session: Session, width: int, modes: Sequence[int] | int, *, name: str,
        activation: Callable[[TensorRef], TensorRef] | str | None = "gelu",
    ) -> None:  # fmt: skip
        self.session = session
        self.spectral = SpectralConv2d(session, width, modes, name=f"{name}.spectral")
        self.point = Conv(session, width, width, 1, name=f"{name}.point")
        self.activation = getattr(session, activation) if isinstance(activation, str) else activation

    def __call__(self, x: TensorRef, *, training: bool = False) -> TensorRef:
        y = self.session.add(self.spectral(x), self.point(x))
        return y if self.activation is None else self.activation(y)
