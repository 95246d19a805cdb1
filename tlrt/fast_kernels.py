"""Fast kernels: products and losses on host arrays with the precision chosen by the caller, and tape operations made of them.

``precision="fp32"`` rounds to float32, multiplies on the device (SGEMM's rounding) and gives float32 back; ``"fp64"`` keeps
float64 all the way (DGEMM). ``use_gpu`` is a hint: without a CUDA device the same call runs on the CPU path. Formulas are those
of `tlrt.kernels.matmul`, `linear`, `dgemm` and `mse_loss`; their error bounds hold.

    y = linear_forward(w, b, x, precision="fp64")
    id = matmul_fast(tape, a, a, precision="fp64")
"""

from collections.abc import Callable, Sequence
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from tlrt import context, kernels
from tlrt._binding import convert
from tlrt._operations.shaped import AnyBuffer
from tlrt.buffer import Buffer
from tlrt.errors import ArgumentError, ShapeError, refusal
from tlrt.tape import Node, Tape

__all__ = ["Precision", "as_column", "as_row", "dot", "drop_column", "linear_backward", "linear_fast", "linear_forward",
           "matmul_backward", "matmul_fast", "matmul_forward", "matmul_forward_gpu", "matrix_rows", "mse_loss_fast",
           "mse_spec_vec", "mse_spec_vec_grad", "substitutes", "vector_array"]  # fmt: skip

#: float32 through the device's product, or float64 through DGEMM
Precision = Literal["fp32", "fp64"]
Array = npt.NDArray[Any]


def _is_float64(op: str, precision: str) -> bool:
    """Whether it is float64."""
    if precision not in ("fp32", "fp64"):
        raise refusal(ArgumentError, op, "precision", f"{precision!r}", "'fp32' or 'fp64'")
    return precision == "fp64"


def _device(use_gpu: bool) -> context.Device:
    return context.device("cuda" if use_gpu and len(context.devices()) > 1 else "cpu")


def _float64_array(op: str, name: str, value: npt.ArrayLike, rank: int) -> npt.NDArray[np.float64]:
    array = convert.host_array(op, name, value, convert.REAL)
    if array.ndim != rank:
        raise refusal(ShapeError, op, name, f"shape {array.shape}", f"{rank} axes")
    return convert.float64(op, name, array, array.shape).reshape(array.shape)


def _require_shape(op: str, name: str, got: tuple[int, ...], expected: tuple[int, ...]) -> None:
    if got != expected:
        raise refusal(ShapeError, op, name, f"shape {got}", expected)


def _dgemm(device: Any, a: Array, b: Array) -> Array:
    return kernels.dgemm(device, a, b, a.shape[0], a.shape[1], b.shape[1])


def vector_array(x: npt.ArrayLike) -> npt.NDArray[np.float64]:
    """A vector as a contiguous float64 array, to run loops on.

    Parameters
    ----------
    x : array_like
        One axis.

    Returns
    -------
    numpy.ndarray
        Shape (n,).

    Raises
    ------
    ShapeError
        Another number of axes.

    Examples
    --------
    >>> from tlrt import fast_kernels
    >>> print(fast_kernels.vector_array([1, 2]))
    [1. 2.]
    """
    return _float64_array("vector_array", "x", x, 1)


def matrix_rows(x: npt.ArrayLike) -> list[npt.NDArray[np.float64]]:
    """A matrix as the list of its rows.

    Parameters
    ----------
    x : array_like
        Shape (m, n).

    Returns
    -------
    list of numpy.ndarray
        m rows of shape (n,), in float64.

    Raises
    ------
    ShapeError
        Another number of axes.

    Examples
    --------
    >>> from tlrt import fast_kernels
    >>> print(fast_kernels.matrix_rows([[1, 2], [3, 4]]))
    [array([1., 2.]), array([3., 4.])]
    """
    return list(_float64_array("matrix_rows", "x", x, 2))


def as_column(x: npt.ArrayLike) -> Array:
    """A vector as a matrix of one column.

    Parameters
    ----------
    x : array_like
        Shape (n,).

    Returns
    -------
    numpy.ndarray
        Shape (n, 1), a view of an array.

    Raises
    ------
    ShapeError
        Another number of axes.

    Examples
    --------
    >>> from tlrt import fast_kernels
    >>> print(fast_kernels.as_column([1, 2]).shape)
    (2, 1)
    """
    return _require_axes("as_column", x, 1)[:, np.newaxis]


def as_row(x: npt.ArrayLike) -> Array:
    """A vector as a matrix of one row.

    Parameters
    ----------
    x : array_like
        Shape (n,).

    Returns
    -------
    numpy.ndarray
        Shape (1, n), a view of an array.

    Raises
    ------
    ShapeError
        Another number of axes.

    Examples
    --------
    >>> from tlrt import fast_kernels
    >>> print(fast_kernels.as_row([1, 2]).shape)
    (1, 2)
    """
    return _require_axes("as_row", x, 1)[np.newaxis, :]


def drop_column(x: npt.ArrayLike) -> Array:
    """A matrix of one column as a vector.

    Parameters
    ----------
    x : array_like
        Shape (n, 1).

    Returns
    -------
    numpy.ndarray
        Shape (n,), a view of an array.

    Raises
    ------
    ShapeError
        Any other shape.

    Examples
    --------
    >>> from tlrt import fast_kernels
    >>> print(fast_kernels.drop_column([[1], [2]]).shape)
    (2,)
    """
    array = _require_axes("drop_column", x, 2)
    if array.shape[1] != 1:
        raise refusal(ShapeError, "drop_column", "x", f"shape {array.shape}", "(n, 1)")
    return array[:, 0]


def _require_axes(op: str, x: npt.ArrayLike, rank: int) -> Array:
    array = np.asarray(x)
    if array.ndim != rank:
        raise refusal(ShapeError, op, "x", f"shape {array.shape}", f"{rank} axes")
    return array


def dot(a: npt.ArrayLike, b: npt.ArrayLike, *, precision: Precision = "fp64", use_gpu: bool = False) -> float:
    """Dot product Σ_i a[i]·b[i] of two vectors; 0 over nothing.

    Parameters
    ----------
    a : array_like
        Shape (n,).
    b : array_like
        Shape (n,).
    precision : str, default 'fp64'
        "fp32" by the device's product, "fp64" by DGEMM.
    use_gpu : bool, default False
        On the GPU where there is one.

    Returns
    -------
    float
        The product.

    Raises
    ------
    ShapeError
        Shapes do not fit.
    ArgumentError
        Another precision.

    Examples
    --------
    >>> from tlrt import fast_kernels
    >>> print(fast_kernels.dot([1, 2], [3, 4]))
    11.0
    """
    x, y = _float64_array("dot", "a", a, 1), _float64_array("dot", "b", b, 1)
    _require_shape("dot", "b", y.shape, x.shape)
    return float(matmul_forward(as_row(x), as_column(y), precision=precision, use_gpu=use_gpu)[0, 0])


def matmul_forward(
    a: npt.ArrayLike, b: npt.ArrayLike, *, precision: Precision = "fp32", use_gpu: bool = False
) -> Array:
    """Matrix product: out[i, j] = Σ_k a[i, k]·b[k, j].

    Parameters
    ----------
    a : array_like
        Shape (m, n).
    b : array_like
        Shape (n, p).
    precision : str, default 'fp32'
        "fp32" by the device's product, "fp64" by DGEMM.
    use_gpu : bool, default False
        On the GPU where there is one.

    Returns
    -------
    numpy.ndarray
        Shape (m, p), float32 or float64 as the precision says; zeros for n = 0.

    Raises
    ------
    ShapeError
        Shapes do not fit.
    ArgumentError
        Another precision.

    Examples
    --------
    >>> from tlrt import fast_kernels
    >>> print(fast_kernels.matmul_forward([[1, 2]], [[3], [4]]))
    [[11.]]
    """
    op = "matmul_forward"
    double = _is_float64(op, precision)
    x, y = _float64_array(op, "a", a, 2), _float64_array(op, "b", b, 2)
    _require_shape(op, "b", y.shape, (x.shape[1], y.shape[1]))
    device = _device(use_gpu)
    if double:
        return _dgemm(device, x, y)
    (m, n), p = x.shape, y.shape[1]
    with device.buffer(x) as left, device.buffer(y) as right, kernels.matmul(left, right, m, n, p) as out:
        return out.numpy((m, p))


def matmul_forward_gpu(a: npt.ArrayLike, b: npt.ArrayLike) -> npt.NDArray[np.float64]:
    """Matrix product in float64, on the GPU where there is one.

    Parameters
    ----------
    a : array_like
        Shape (m, n).
    b : array_like
        Shape (n, p).

    Returns
    -------
    numpy.ndarray
        Shape (m, p), float64.

    Raises
    ------
    ShapeError
        Shapes do not fit.

    Examples
    --------
    >>> from tlrt import fast_kernels
    >>> print(fast_kernels.matmul_forward_gpu([[1, 2]], [[3], [4]]))
    [[11.]]
    """
    return matmul_forward(a, b, precision="fp64", use_gpu=True)


def matmul_backward(
    a: npt.ArrayLike, b: npt.ArrayLike, g: npt.ArrayLike, *, precision: Precision = "fp32", use_gpu: bool = False
) -> tuple[Array, Array]:
    """Gradients of a matrix product: da = g·bᵀ, db = aᵀ·g.

    Parameters
    ----------
    a : array_like
        Shape (m, n).
    b : array_like
        Shape (n, p).
    g : array_like
        Shape (m, p): cotangent of the product.
    precision : str, default 'fp32'
        "fp32" by the device's product, "fp64" by DGEMM.
    use_gpu : bool, default False
        On the GPU where there is one.

    Returns
    -------
    da : numpy.ndarray
        Shape (m, n).
    db : numpy.ndarray
        Shape (n, p).

    Raises
    ------
    ShapeError
        Shapes do not fit.
    ArgumentError
        Another precision.

    Examples
    --------
    >>> from tlrt import fast_kernels
    >>> da, db = fast_kernels.matmul_backward([[1, 2]], [[3], [4]], [[1]])
    >>> print(da, db.T)
    [[3. 4.]] [[1. 2.]]
    """
    op = "matmul_backward"
    double = _is_float64(op, precision)
    x, y, upstream = _float64_array(op, "a", a, 2), _float64_array(op, "b", b, 2), _float64_array(op, "g", g, 2)
    _require_shape(op, "b", y.shape, (x.shape[1], y.shape[1]))
    _require_shape(op, "g", upstream.shape, (x.shape[0], y.shape[1]))
    device = _device(use_gpu)
    if double:
        return _dgemm(device, upstream, y.T), _dgemm(device, x.T, upstream)
    (m, n), p = x.shape, y.shape[1]
    with device.buffer(x) as left, device.buffer(y) as right, device.buffer(upstream) as up:
        da, db = kernels.matmul_bwd(left, right, up, m, n, p)
        return _read_and_release(da, (m, n)), _read_and_release(db, (n, p))


def linear_forward(
    w: npt.ArrayLike, b: npt.ArrayLike, x: npt.ArrayLike, *, precision: Precision = "fp32", use_gpu: bool = False
) -> Array:
    """Affine layer y = W·x + b.

    Parameters
    ----------
    w : array_like
        Shape (outputs, inputs).
    b : array_like
        Shape (outputs,).
    x : array_like
        Shape (inputs,) or (batch, inputs).
    precision : str, default 'fp32'
        "fp32" by the device's product, "fp64" by DGEMM.
    use_gpu : bool, default False
        On the GPU where there is one.

    Returns
    -------
    numpy.ndarray
        Shape (outputs,) or (batch, outputs), float32 or float64 as the precision says.

    Raises
    ------
    ShapeError
        Shapes do not fit.
    ArgumentError
        Another precision.

    References
    ----------
    torch.nn.functional.linear

    Examples
    --------
    >>> from tlrt import fast_kernels
    >>> print(fast_kernels.linear_forward([[1, 2]], [0.5], [3, 4]))
    [11.5]
    """
    op = "linear_forward"
    double = _is_float64(op, precision)
    weights, rows, single = _linear_inputs(op, w, x)
    bias = _float64_array(op, "b", b, 1)
    _require_shape(op, "b", bias.shape, weights.shape[:1])
    device = _device(use_gpu)
    if double:
        y: Array = _dgemm(device, rows, weights.T) + bias
    else:
        (outputs, inputs), batch = weights.shape, len(rows)
        with device.buffer(weights) as wd, device.buffer(rows) as xd, device.buffer(bias) as bd:
            y = _read_and_release(kernels.linear(wd, xd, bd, outputs, inputs, batch), (batch, outputs))
    return y[0] if single else y


def linear_backward(
    w: npt.ArrayLike, x: npt.ArrayLike, g: npt.ArrayLike, *, precision: Precision = "fp32", use_gpu: bool = False
) -> tuple[Array, Array, Array]:
    """Gradients of the affine layer: dw = g ⊗ x, db = g, dx = Wᵀ·g; with a batch dw and db are summed over it.

    Parameters
    ----------
    w : array_like
        Shape (outputs, inputs).
    x : array_like
        Shape (inputs,) or (batch, inputs).
    g : array_like
        Shape (outputs,) or (batch, outputs): cotangent of y.
    precision : str, default 'fp32'
        "fp32" by the device's product, "fp64" by DGEMM.
    use_gpu : bool, default False
        On the GPU where there is one.

    Returns
    -------
    dw : numpy.ndarray
        Shape (outputs, inputs).
    db : numpy.ndarray
        Shape (outputs,).
    dx : numpy.ndarray
        The shape of x.

    Raises
    ------
    ShapeError
        Shapes do not fit.
    ArgumentError
        Another precision.

    References
    ----------
    torch.nn.functional.linear

    Examples
    --------
    >>> from tlrt import fast_kernels
    >>> print(*fast_kernels.linear_backward([[1, 2]], [3, 4], [1]))
    [[3. 4.]] [1.] [1. 2.]
    """
    op = "linear_backward"
    double = _is_float64(op, precision)
    weights, rows, single = _linear_inputs(op, w, x)
    upstream = as_row(_float64_array(op, "g", g, 1)) if single else _float64_array(op, "g", g, 2)
    (outputs, inputs), batch = weights.shape, len(rows)
    _require_shape(op, "g", upstream.shape[single:], (batch, outputs)[single:])
    device = _device(use_gpu)
    dw: Array
    db: Array
    dx: Array
    if double:
        dw, dx, db = _dgemm(device, upstream.T, rows), _dgemm(device, upstream, weights), upstream.sum(axis=0)
    else:
        with device.buffer(weights) as wd, device.buffer(rows) as xd, device.buffer(upstream) as gd:
            made = kernels.linear_bwd(wd, xd, gd, outputs, inputs, batch)
            shapes = ((outputs, inputs), (batch, inputs), (outputs,))
            dw, dx, db = (_read_and_release(m, s) for m, s in zip(made, shapes, strict=True))
    return dw, db, dx[0] if single else dx


def _linear_inputs(op: str, w: npt.ArrayLike, x: npt.ArrayLike) -> tuple[Array, Array, bool]:
    """The weights, x as rows, and whether x was one vector."""
    weights = _float64_array(op, "w", w, 2)
    single = np.ndim(x) == 1
    rows = as_row(_float64_array(op, "x", x, 1)) if single else _float64_array(op, "x", x, 2)
    if rows.shape[1] != weights.shape[1]:
        raise refusal(ShapeError, op, "x", f"shape {np.shape(x)}", f"inputs = {weights.shape[1]} at the end")
    return weights, rows, single


def _read_and_release(buffer: Buffer | None, shape: tuple[int, ...]) -> Array:
    """A result on the host; the buffer is released."""
    assert buffer is not None
    with buffer:
        return buffer.numpy(shape)


def mse_spec_vec(yhat: npt.ArrayLike, target: npt.ArrayLike) -> float:
    """Mean squared error Σ_i (yhat[i] - target[i])² / n of two vectors, in float64; NaN over nothing.

    Parameters
    ----------
    yhat : array_like
        Shape (n,).
    target : array_like
        Shape (n,).

    Returns
    -------
    float
        The mean.

    Raises
    ------
    ShapeError
        Shapes do not fit.

    References
    ----------
    torch.nn.functional.mse_loss

    Examples
    --------
    >>> from tlrt import fast_kernels
    >>> print(fast_kernels.mse_spec_vec([1, 2], [0, 0]))
    2.5
    """
    d = _difference("mse_spec_vec", yhat, target)
    return float(d @ d) / d.size if d.size else float("nan")


def mse_spec_vec_grad(yhat: npt.ArrayLike, target: npt.ArrayLike) -> npt.NDArray[np.float64]:
    """Gradient of :func:`mse_spec_vec` by yhat: 2·(yhat[i] - target[i]) / n.

    Parameters
    ----------
    yhat : array_like
        Shape (n,).
    target : array_like
        Shape (n,).

    Returns
    -------
    numpy.ndarray
        Shape (n,), float64.

    Raises
    ------
    ShapeError
        Shapes do not fit.

    Examples
    --------
    >>> from tlrt import fast_kernels
    >>> print(fast_kernels.mse_spec_vec_grad([1, 2], [0, 0]))
    [1. 2.]
    """
    d = _difference("mse_spec_vec_grad", yhat, target)
    return 2.0 * d / d.size if d.size else d


def _difference(op: str, yhat: npt.ArrayLike, target: npt.ArrayLike) -> npt.NDArray[np.float64]:
    a, b = _float64_array(op, "yhat", yhat, 1), _float64_array(op, "target", target, 1)
    _require_shape(op, "target", b.shape, a.shape)
    return a - b


def linear_fast(tape: Tape, w: int, b: int, x: int, *, precision: Precision = "fp32", use_gpu: bool = False) -> int:
    """``tape.linear(w, b, x)`` in the chosen precision.

    "fp32" on the tape's own device is that operation. Otherwise the operands go over the host: a result is computed in
    the precision and rounded to float32 once, and so are the gradients.

    Parameters
    ----------
    tape : Tape
        The tape.
    w : int
        A node of shape (outputs, inputs).
    b : int
        A node of shape (outputs,).
    x : int
        A node of shape (inputs,) or (batch, inputs).
    precision : str, default 'fp32'
        "fp32" by the device's product, "fp64" by DGEMM.
    use_gpu : bool, default False
        On the GPU where there is one.

    Returns
    -------
    int
        The node.

    Raises
    ------
    ShapeError
        Shapes do not fit.
    ArgumentError
        Another precision.
    """
    op = "linear_fast"
    if _is_tape_operation(tape, _is_float64(op, precision), use_gpu):
        return tape.linear(w, b, x)
    arrays = [_node_array(tape, op, i) for i in (w, b, x)]
    how: dict[str, Any] = {"precision": precision, "use_gpu": use_gpu}
    y = linear_forward(*arrays, **how)
    return _add_host_node(tape, op, (w, b, x), y, lambda g: linear_backward(arrays[0], arrays[2], g, **how))


def matmul_fast(tape: Tape, a: int, b: int, *, precision: Precision = "fp32", use_gpu: bool = False) -> int:
    """``tape.matmul(a, b)`` of two matrices in the chosen precision, as :func:`linear_fast`.

    Parameters
    ----------
    tape : Tape
        The tape.
    a : int
        A node of shape (m, n).
    b : int
        A node of shape (n, p).
    precision : str, default 'fp32'
        "fp32" by the device's product, "fp64" by DGEMM.
    use_gpu : bool, default False
        On the GPU where there is one.

    Returns
    -------
    int
        The node.

    Raises
    ------
    ShapeError
        Shapes do not fit.
    ArgumentError
        Another precision.
    """
    op = "matmul_fast"
    if _is_tape_operation(tape, _is_float64(op, precision), use_gpu):
        tape.require_value(b, (tape._require_rank(op, a, 2, "a")[1], tape._require_rank(op, b, 2, "b")[1]), op)
        return tape.matmul(a, b)
    arrays = [_node_array(tape, op, i) for i in (a, b)]
    how: dict[str, Any] = {"precision": precision, "use_gpu": use_gpu}
    y = matmul_forward(arrays[0], arrays[1], **how)
    return _add_host_node(tape, op, (a, b), y, lambda g: matmul_backward(arrays[0], arrays[1], g, **how))


def mse_loss_fast(tape: Tape, yhat: int, target: int) -> int:
    """``tape.mse_loss(yhat, target)``, which is one fused kernel each way, for vectors and any other shape.

    Parameters
    ----------
    tape : Tape
        The tape.
    yhat : int
        A node.
    target : int
        A node of the same shape.

    Returns
    -------
    int
        The node.

    Raises
    ------
    ShapeError
        Shapes do not fit.
    """
    return tape.mse_loss(yhat, target)


def _is_tape_operation(tape: Tape, double: bool, use_gpu: bool) -> bool:
    """Whether the tape's own operation is what was asked for."""
    if getattr(tape.device, "scalar", None) is not None:  # the specification in another type of numbers
        return True
    return not double and (tape.device.name == "spec" or tape.device.is_cuda or not _device(use_gpu).is_cuda)


def _node_array(tape: Tape, op: str, id: int) -> Array:
    return np.asarray(tape.node(id, op).value.numpy(), np.float64)


def _add_host_node(
    tape: Tape, op: str, parents: Sequence[int], value: Array, backward: Callable[[Array], Sequence[Array]]
) -> int:
    """A node whose value and gradients were computed on host arrays."""

    def upload(array: Array) -> AnyBuffer:
        exact = getattr(tape.device, "exact", None)  # the specification keeps float64
        return tape.upload(array) if exact is None else AnyBuffer(np.shape(array), exact(array))

    def pull(g: AnyBuffer) -> list[tuple[int, AnyBuffer]]:
        gradients = backward(np.asarray(g.numpy(), np.float64))
        return [(p, upload(made)) for p, made in zip(parents, gradients, strict=True) if tape.nodes[p].requires_grad]

    return tape.add_node(Node(op, upload(value), tape._needs(parents), tuple(parents), pull))


def substitutes(tape: Tape, *, precision: Precision = "fp32", use_gpu: bool = False) -> dict[str, Callable[..., int]]:
    """What a session with fast kernels runs in place of the tape's ``linear`` and ``matmul``.

    Parameters
    ----------
    tape : Tape
        The session's tape.
    precision : str, default 'fp32'
        "fp32" by the device's product, "fp64" by DGEMM.
    use_gpu : bool, default False
        On the GPU where there is one.

    Returns
    -------
    dict of str to callable
        Functions on the node ids of the row's inputs. ``mse_loss`` is :func:`mse_loss_fast` already.
    """

    def linear(w: int, x: int, b: int) -> int:
        return linear_fast(tape, w, b, x, precision=precision, use_gpu=use_gpu)

    def matmul(a: int, b: int) -> int:
        return matmul_fast(tape, a, b, precision=precision, use_gpu=use_gpu)

    return {"linear": linear, "matmul": matmul}
