"""The operations of tapes and sessions, once for both.

A method reads the shapes of its operands, so it takes no dimensions: ``matmul(a, b)`` is the registry's ``matmul`` with m, n, p
read off the shapes. :class:`tlrt.tape.Tape` has them on node ids, :class:`tlrt.session.Session` on tensor references.
Formulas, special values and errors are those of the operation of the same name in ``tlrt.kernels`` unless said here.
Every method raises ShapeError where shapes do not fit, and records nothing then.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Mapping, Sequence
from typing import Any, Generic, TypeVar

import numpy.typing as npt

from tlrt import _convert
from tlrt.errors import ArgumentError, IndexOutOfRangeError, ShapeError
from tlrt.plan import Shape

__all__ = ["Operations"]

Ref = TypeVar("Ref")


class Operations(Generic[Ref]):
    """Operations on references to values; a class that inherits them says how one is applied and what a shape is."""

    def _apply(
        self,
        name: str,
        parents: tuple[Ref | None, ...],
        extra: tuple[Any, ...] = (),
        hosts: Mapping[str, Any] | None = None,
    ) -> Ref:
        raise NotImplementedError

    def _view(self, x: Ref, shape: Shape, name: str) -> Ref:
        raise NotImplementedError

    def shape(self, x: Ref) -> Shape:
        """The shape of a value."""
        raise NotImplementedError

    # ---- elementwise

    def _pair(self, name: str, a: Ref, b: Ref) -> Ref:
        """A binary elementwise operation; operands of different shapes are broadcast to their common one."""
        shape_a, shape_b = self.shape(a), self.shape(b)
        if shape_a != shape_b:
            common = _common(name, shape_a, shape_b)
            a, b = self.broadcast_to(a, common), self.broadcast_to(b, common)
        return self._apply(name, (a, b))

    def add(self, a: Ref, b: Ref) -> Ref:
        """a + b, with NumPy's broadcasting."""
        return self._pair("add", a, b)

    def sub(self, a: Ref, b: Ref) -> Ref:
        """a - b, with NumPy's broadcasting."""
        return self._pair("sub", a, b)

    def mul(self, a: Ref, b: Ref) -> Ref:
        """a · b elementwise, with NumPy's broadcasting."""
        return self._pair("mul", a, b)

    def div(self, a: Ref, b: Ref) -> Ref:
        """a / b by IEEE 754, with NumPy's broadcasting."""
        return self._pair("div", a, b)

    def max(self, a: Ref, b: Ref) -> Ref:
        """The larger one, elementwise, with NumPy's broadcasting; NaN wins, a tie shares the gradient."""
        return self._pair("max", a, b)

    def min(self, a: Ref, b: Ref) -> Ref:
        """The smaller one, elementwise, with NumPy's broadcasting; NaN wins, a tie shares the gradient."""
        return self._pair("min", a, b)

    def axpy(self, a: Ref, b: Ref, c: float) -> Ref:
        """a + c·b in one fused multiply-add; c is rounded to float32 first."""
        return self._apply("axpy", (a, b), (c,))

    def scale(self, x: Ref, c: float) -> Ref:
        """c·x; c is rounded to float32 first."""
        return self._apply("scale", (x,), (c,))

    def neg(self, x: Ref) -> Ref:
        """-x, as scale by -1."""
        return self._apply("scale", (x,), (-1.0,))

    def abs(self, x: Ref) -> Ref:
        """abs(x), with gradient g·sign(x), 0 at 0."""
        return self._apply("abs", (x,))

    def sqrt(self, x: Ref) -> Ref:
        """√x; the gradient is 0 where x <= 0."""
        return self._apply("sqrt", (x,))

    def square(self, x: Ref) -> Ref:
        """x·x."""
        return self._apply("mul", (x, x))

    def clamp(self, x: Ref, lo: float, hi: float) -> Ref:
        """min(hi, max(lo, x)); refused where lo > hi."""
        return self._apply("clamp", (x,), (lo, hi))

    def relu(self, x: Ref) -> Ref:
        """max(x, 0), with relu'(0) = 0."""
        return self._apply("relu", (x,))

    def exp(self, x: Ref) -> Ref:
        """e^x."""
        return self._apply("exp", (x,))

    def log(self, x: Ref) -> Ref:
        """ln x."""
        return self._apply("log", (x,))

    def inv(self, x: Ref) -> Ref:
        """1/x."""
        return self._apply("inv", (x,))

    def safe_log(self, x: Ref, eps: float = 1e-6) -> Ref:
        """ln(softplus(x) + eps)."""
        return self._apply("safe_log", (x,), (eps,))

    def sigmoid(self, x: Ref) -> Ref:
        """1/(1 + e^-x)."""
        return self._apply("sigmoid", (x,))

    def tanh(self, x: Ref) -> Ref:
        """tanh x."""
        return self._apply("tanh", (x,))

    def softplus(self, x: Ref) -> Ref:
        """ln(1 + e^x)."""
        return self._apply("softplus", (x,))

    def silu(self, x: Ref) -> Ref:
        """x·sigmoid(x)."""
        return self._apply("silu", (x,))

    def gelu(self, x: Ref) -> Ref:
        """½x·(1 + tanh(√(2/π)(x + 0.044715x³)))."""
        return self._apply("gelu", (x,))

    # ---- reductions

    def reduce_sum(self, x: Ref, axis: int | None = None) -> Ref:
        """The sum over `axis`, which is dropped; over everything, to a scalar, without it."""
        if axis is None:
            return self._apply("reduce_sum", (self.flatten(x),))
        return self._apply("reduce_sum_axis", (x,), (self._axis("reduce_sum", x, axis),))

    def reduce_mean(self, x: Ref, axis: int | None = None) -> Ref:
        """The mean over `axis`, which is dropped; over everything, to a scalar, without it. NaN over nothing."""
        if axis is None:
            return self._apply("reduce_mean", (self.flatten(x),), (0,))
        return self._apply("reduce_mean", (x,), (self._axis("reduce_mean", x, axis),))

    def reduce_sum_axis0(self, x: Ref) -> Ref:
        """Column sums of a matrix (rows, cols), to (cols)."""
        return self._apply("reduce_sum_axis0", (x,))

    def reduce_sum_axis1(self, x: Ref) -> Ref:
        """Row sums of a matrix (rows, cols), to (rows)."""
        return self._apply("reduce_sum_axis1", (x,))

    def reduce_max_axis0(self, x: Ref) -> Ref:
        """The largest of each column of a matrix (rows, cols), to (cols); winners share the gradient."""
        return self._apply("reduce_max_axis0", (x,))

    def reduce_max_axis1(self, x: Ref) -> Ref:
        """The largest of each row of a matrix (rows, cols), to (rows); winners share the gradient."""
        return self._apply("reduce_max_axis1", (x,))

    def _axis(self, op: str, x: Ref, axis: int) -> int:
        rank = len(self.shape(x))
        place = operator.index(axis)
        if not -rank <= place < rank:
            raise ArgumentError(f"{op}: axis: got {axis}, expected {-rank} <= axis < {rank}", op=op)
        return place % rank

    # ---- views

    def reshape(self, x: Ref, shape: Sequence[int]) -> Ref:
        """The same elements in another shape (one entry may be -1), sharing the storage."""
        return self._view(x, _completed(tuple(operator.index(d) for d in shape), self.shape(x)), "reshape")

    def flatten(self, x: Ref) -> Ref:
        """The same elements in one axis, sharing the storage."""
        shape = self.shape(x)
        return x if len(shape) == 1 else self._view(x, (math.prod(shape),), "flatten")

    # ---- shapes

    def transpose2d(self, x: Ref) -> Ref:
        """(rows, cols) to (cols, rows)."""
        return self._apply("transpose2d", (x,))

    def swap_adjacent_at_depth(self, x: Ref, depth: int) -> Ref:
        """Exchanges axes `depth` and `depth` + 1; the identity where there are no such axes."""
        if not 0 <= depth < len(self.shape(x)) - 1:
            return self._view(x, self.shape(x), "swap_adjacent_at_depth")
        return self._apply("swap_adjacent_at_depth", (x,), (depth,))

    def transpose3d_bca(self, x: Ref) -> Ref:
        """(a, b, c) to (b, c, a)."""
        return self._apply("transpose3d_bca", (x,))

    def transpose3d_cab(self, x: Ref) -> Ref:
        """(a, b, c) to (c, a, b)."""
        return self._apply("transpose3d_cab", (x,))

    def transpose3d_acb(self, x: Ref) -> Ref:
        """(a, b, c) to (a, c, b)."""
        return self._apply("transpose3d_acb", (x,))

    def permute(self, x: Ref, axes: Sequence[int]) -> Ref:
        """Axis i of the result is axis axes[i] of x: exchanges of neighbouring axes, at most one per moved axis pair."""
        order = [operator.index(a) for a in axes]
        if sorted(order) != list(range(len(self.shape(x)))):
            rank = len(self.shape(x))
            raise ArgumentError(
                f"permute: axes: got {tuple(order)}, expected a permutation of 0..{rank - 1}", op="permute"
            )
        now = list(range(len(order)))
        for place, axis in enumerate(order):
            for at in range(now.index(axis), place, -1):
                x = self.swap_adjacent_at_depth(x, at - 1)
                now[at - 1], now[at] = now[at], now[at - 1]
        return x

    def broadcast_to(self, x: Ref, shape: Sequence[int], axis_map: Sequence[int] | None = None) -> Ref:
        """x spread over a larger shape.

        `axis_map` has one entry per axis of the result: 0 inserts it, k reads axis k - 1 of x, whose size is 1 or the
        result's. Left out, the axes are aligned at the right, as NumPy does. The gradient is the sum over what was spread.
        """
        have, target = self.shape(x), tuple(operator.index(d) for d in shape)
        if axis_map is None:
            if have == target:
                return x
            if len(have) > len(target):
                text = f"broadcast_to: shape: got {target}, expected at least {len(have)} axes"
                raise ShapeError(text, op="broadcast_to")
            lead = len(target) - len(have)
            axis_map = [0] * lead + list(range(1, len(have) + 1))
        if not have:  # a scalar has no axis to read
            x, axis_map = self._view(x, (1,), "reshape"), [0] * (len(target) - 1) + [1]
            if not target:
                return self._view(x, (), "reshape")
        return self._apply("broadcast_to", (x,), (tuple(axis_map), target))

    def broadcast_vec_to_rows(self, vec: Ref, rows: int) -> Ref:
        """(cols) to (rows, cols), the vector in every row."""
        return self._apply("broadcast_vec_to_rows", (vec,), (rows,))

    def broadcast_vec_to_cols(self, vec: Ref, cols: int) -> Ref:
        """(rows) to (rows, cols), the vector in every column."""
        return self._apply("broadcast_vec_to_cols", (vec,), (cols,))

    def concat1d(self, a: Ref, b: Ref) -> Ref:
        """Two vectors, one after the other."""
        return self._apply("concat1d", (a, b))

    def concat_vectors(self, a: Ref, b: Ref) -> Ref:
        """concat1d under the name that the seed's CPU tape gives it."""
        return self.concat1d(a, b)

    def slice1d(self, x: Ref, start: int, len: int) -> Ref:
        """x[start : start + len] of a vector."""
        return self._apply("slice1d", (x,), (start, len))

    def concat_dim0(self, a: Ref, b: Ref) -> Ref:
        """(n, …) and (m, …) to (n + m, …)."""
        first, second = self.shape(a), self.shape(b)
        if not first or not second or first[1:] != second[1:]:
            text = f"concat_dim0: b: got shape {second}, expected (m{''.join(f', {d}' for d in first[1:])})"
            raise ShapeError(text, op="concat_dim0")
        whole = self._apply("concat1d", (self.flatten(a), self.flatten(b)))
        return self._view(whole, (first[0] + second[0], *first[1:]), "concat_dim0") if len(first) > 1 else whole

    def slice_range0(self, x: Ref, start: int, len: int) -> Ref:
        """x[start : start + len] along axis 0."""
        shape = self.shape(x)
        if not shape:
            raise ShapeError("slice_range0: x: got a scalar, expected at least one axis", op="slice_range0")
        inner = math.prod(shape[1:])
        if start < 0 or len < 0 or start + len > shape[0]:
            text = f"slice_range0: start + len: got {start} + {len}, expected at most {shape[0]}"
            raise ShapeError(text, op="slice_range0")
        part = self._apply("slice1d", (self.flatten(x),), (start * inner, len * inner))
        return self._view(part, (len, *shape[1:]), "slice_range0") if shape[1:] else part

    # ---- indexing

    def gather_scalar(self, x: Ref, i: int) -> Ref:
        """x[i] of a vector, a scalar; refused where i is out of range."""
        n = self._sized("gather_scalar", x, 1)[0]
        return self._view(self.slice1d(x, _place("gather_scalar", i, n), 1), (), "gather_scalar")

    def gather_row(self, x: Ref, i: int) -> Ref:
        """x[i] of a matrix, a vector; refused where i is out of range."""
        rows, cols = self._sized("gather_row", x, 2)
        return self.slice1d(self.flatten(x), _place("gather_row", i, rows) * cols, cols)

    def gather_scalar_nat(self, x: Ref, i: int) -> Ref:
        """x[i] of a vector, a scalar; 0 without a gradient where i is out of range."""
        return self._view(self.gather_vec_nat(x, [i]), (), "gather_scalar_nat")

    def gather_vec_nat(self, x: Ref, indices: npt.ArrayLike) -> Ref:
        """x[indices] of a vector; an index out of range reads 0 and receives no gradient."""
        return self._apply("gather_vec", (x,), (), {"indices": _convert.uint32("gather_vec_nat", "indices", indices)})

    def gather_rows_nat(self, x: Ref, indices: npt.ArrayLike) -> Ref:
        """The rows x[indices] of a matrix; an index out of range reads a row of 0 and receives no gradient."""
        return self._apply("gather_rows", (x,), (), {"indices": _convert.uint32("gather_rows_nat", "indices", indices)})

    def embedding(self, table: Ref, indices: npt.ArrayLike) -> Ref:
        """The rows of `table` at indices of any shape: (…) to (…, cols); gather_rows_nat for indices of one axis."""
        import numpy as np

        places = np.asarray(indices)
        rows = self.gather_rows_nat(table, places.reshape(-1))
        return rows if places.ndim == 1 else self._view(rows, (*places.shape, self.shape(table)[1]), "embedding")

    def scatter_add_vec(self, x: Ref, v: Ref, i: int) -> Ref:
        """x with x[i] + v in place of x[i], v a scalar; refused where i is out of range."""
        n = self._sized("scatter_add_vec", x, 1)[0]
        return self.scatter_add(x, self.reshape(v, (1,)), [_place("scatter_add_vec", i, n)])

    def scatter_add(self, x: Ref, values: Ref, indices: npt.ArrayLike) -> Ref:
        """x with values[j] added at indices[j], in order; an index out of range is ignored."""
        return self._apply(
            "scatter_add", (x, values), (), {"indices": _convert.uint32("scatter_add", "indices", indices)}
        )

    def scatter_add_row(self, x: Ref, row: Ref, i: int) -> Ref:
        """The matrix x with `row` added to its row i; refused where i is out of range."""
        return self._apply("scatter_add_row", (x, row), (i,))

    def scatter_add_rows(self, x: Ref, values: Ref, indices: npt.ArrayLike) -> Ref:
        """The matrix x with values[j] added to row indices[j], in order; an index out of range is ignored."""
        hosts = {"indices": _convert.uint32("scatter_add_rows", "indices", indices)}
        return self._apply("scatter_add_rows", (x, values), (), hosts)

    def _sized(self, op: str, x: Ref, rank: int) -> Shape:
        shape = self.shape(x)
        if len(shape) != rank:
            raise ShapeError(f"{op}: x: got shape {shape}, expected {rank} axes", op=op)
        return shape

    # ---- linear algebra

    def matmul(self, a: Ref, b: Ref) -> Ref:
        """(m, n) x (n, p) to (m, p). A batch (batch, m, n) meets (batch, n, p), or (n, p), which it shares."""
        shape_a, shape_b = self.shape(a), self.shape(b)
        if len(shape_a) == 3 and len(shape_b) == 3:
            return self._apply("bmm", (a, b))
        if len(shape_a) == 3 and len(shape_b) == 2:
            rows = self._apply("matmul", (self._view(a, (shape_a[0] * shape_a[1], shape_a[2]), "reshape"), b))
            return self._view(rows, (*shape_a[:2], shape_b[1]), "reshape")
        return self._apply("matmul", (a, b))

    def bmm(self, a: Ref, b: Ref) -> Ref:
        """(batch, m, n) x (batch, n, p) to (batch, m, p)."""
        return self._apply("bmm", (a, b))

    def linear(self, w: Ref, b: Ref, x: Ref) -> Ref:
        """W·x + b: W (outputs, inputs), b (outputs), x (…, inputs) to (…, outputs)."""
        shape = self.shape(x)
        if len(shape) == 2:
            return self._apply("linear", (w, x, b))
        if not shape:
            raise ShapeError("linear: x: got a scalar, expected (…, inputs)", op="linear")
        rows = self._view(x, (math.prod(shape[:-1]), shape[-1]), "reshape")
        y = self._apply("linear", (w, rows, b))
        return self._view(y, (*shape[:-1], self.shape(y)[1]), "linear")

    # ---- losses

    def mse_loss(self, yhat: Ref, target: Ref) -> Ref:
        """The mean of (yhat - target)², a scalar; gradients to both."""
        if self.shape(yhat) != self.shape(target):
            text = f"mse_loss: target: got shape {self.shape(target)}, expected {self.shape(yhat)}"
            raise ShapeError(text, op="mse_loss")
        return self._apply("mse_loss", (self.flatten(yhat), self.flatten(target)))

    def cross_entropy(self, logits: Ref, labels: npt.ArrayLike) -> Ref:
        """The mean over rows of -log_softmax(logits)[row, label], a scalar: logits (…, classes), labels (…)."""
        import numpy as np

        shape, wanted = self.shape(logits), np.asarray(labels)
        if len(shape) < 1 or wanted.shape != shape[:-1]:
            raise ShapeError(
                f"cross_entropy: labels: got shape {wanted.shape}, expected {shape[:-1]}", op="cross_entropy"
            )
        hosts = {"labels": _convert.uint32("cross_entropy", "labels", wanted.reshape(-1))}
        return self._apply("cross_entropy", (self._rows(logits),), (), hosts)

    def _rows(self, x: Ref) -> Ref:
        """x with its leading axes folded into rows."""
        shape = self.shape(x)
        if len(shape) == 2:
            return x
        cols = shape[-1] if shape else 1
        return self._view(x, (math.prod(shape[:-1]), cols), "reshape")

    def _by_rows(self, name: str, x: Ref, *others: Ref, extra: tuple[Any, ...] = ()) -> Ref:
        """An operation on rows, applied along the last axis."""
        shape = self.shape(x)
        y = self._apply(name, (self._rows(x), *others), extra)
        return y if len(shape) == 2 else self._view(y, shape, name)

    # ---- softmax, normalisation

    def softmax(self, x: Ref) -> Ref:
        """Softmax along the last axis."""
        return self._by_rows("softmax", x)

    def log_softmax(self, x: Ref) -> Ref:
        """Log-softmax along the last axis."""
        return self._by_rows("log_softmax", x)

    def layer_norm(self, x: Ref, gamma: Ref, beta: Ref, eps: float = 1e-6) -> Ref:
        """gamma·(x - mean)/√(variance + eps) + beta along the last axis; biased variance."""
        return self._by_rows("layer_norm", x, gamma, beta, extra=(eps,))

    def batchnorm_channel_first(self, x: Ref, gamma: Ref, beta: Ref, eps: float = 1e-6) -> Ref:
        """Normalisation per channel over the pixels of one image: x (channels, height, width)."""
        return self._apply("batchnorm_channel_first", (x, gamma, beta), (eps,))

    # ---- convolution and pooling, channels first, one image or a batch of them

    def conv(self, w: Ref, b: Ref, x: Ref, stride: Sequence[int] | int = 1, padding: Sequence[int] | int = 0) -> Ref:
        """Cross-correlation: w (out_channels, in_channels, k…), x (in_channels, spatial…) or with a batch before it."""
        return self._convolve("conv", w, b, x, stride, padding)

    def conv_transpose(
        self, w: Ref, b: Ref, x: Ref, stride: Sequence[int] | int = 1, padding: Sequence[int] | int = 0
    ) -> Ref:
        """Transposed convolution: w (in_channels, out_channels, k…), x (in_channels, spatial…) or with a batch before it."""
        return self._convolve("conv_transpose", w, b, x, stride, padding)

    def conv2d(self, w: Ref, b: Ref, x: Ref, stride: Sequence[int] | int = 1, padding: Sequence[int] | int = 0) -> Ref:
        """conv of images: w (out_channels, in_channels, kernel_h, kernel_w)."""
        self._sized("conv2d", w, 4)
        return self._convolve("conv2d", w, b, x, stride, padding)

    def conv_transpose2d(
        self, w: Ref, b: Ref, x: Ref, stride: Sequence[int] | int = 1, padding: Sequence[int] | int = 0
    ) -> Ref:
        """conv_transpose of images: w (in_channels, out_channels, kernel_h, kernel_w)."""
        self._sized("conv_transpose2d", w, 4)
        return self._convolve("conv_transpose2d", w, b, x, stride, padding)

    def _convolve(self, name: str, w: Ref, b: Ref, x: Ref, stride: Any, padding: Any) -> Ref:
        rank, shape = len(self.shape(w)) - 2, self.shape(x)
        if len(shape) not in (rank + 1, rank + 2):
            text = f"{name}: x: got shape {shape}, expected {rank + 1} axes, or {rank + 2} with a batch"
            raise ShapeError(text, op=name)
        strides, paddings = _each(name, "stride", stride, rank), _each(name, "padding", padding, rank)
        single = len(shape) == rank + 1
        if single:
            x = self._view(x, (1, *shape), "reshape")
        extra = (*strides, *paddings) if name.endswith("2d") else (strides, paddings)
        y = self._apply(name, (x, w, b), extra)
        return self._view(y, self.shape(y)[1:], name) if single else y

    def max_pool(
        self, x: Ref, kernel: Sequence[int] | int, stride: Sequence[int] | int, padding: Sequence[int] | int = 0
    ) -> Ref:
        """The largest of each window; padding never wins, the first of equals takes the gradient. x (channels, spatial…);
        with `kernel` a list of d entries, a batch may come before the channels."""
        return self._pool("max_pool", x, kernel, stride, padding)

    def avg_pool(
        self, x: Ref, kernel: Sequence[int] | int, stride: Sequence[int] | int, padding: Sequence[int] | int = 0
    ) -> Ref:
        """The mean of each window, padding counted in the divisor; shapes as max_pool."""
        return self._pool("avg_pool", x, kernel, stride, padding)

    def smooth_max_pool(
        self, x: Ref, kernel: Sequence[int] | int, stride: Sequence[int] | int, padding: Sequence[int] | int = 0,
        beta: float = 1.0,
    ) -> Ref:  # fmt: skip
        """ln(Σ e^(βv))/β over each window; shapes as max_pool."""
        return self._pool("smooth_max_pool", x, kernel, stride, padding, (beta,))

    def max_pool2d(self, x: Ref, kernel: Sequence[int] | int, stride: Sequence[int] | int) -> Ref:
        """max_pool of images without padding."""
        return self._pool("max_pool2d", x, kernel, stride, 0)

    def max_pool2d_pad(
        self, x: Ref, kernel: Sequence[int] | int, stride: Sequence[int] | int, padding: Sequence[int] | int
    ) -> Ref:
        """max_pool of images with padding."""
        return self._pool("max_pool2d", x, kernel, stride, padding)

    def avg_pool2d(self, x: Ref, kernel: Sequence[int] | int, stride: Sequence[int] | int) -> Ref:
        """avg_pool of images without padding."""
        return self._pool("avg_pool2d", x, kernel, stride, 0)

    def avg_pool2d_pad(
        self, x: Ref, kernel: Sequence[int] | int, stride: Sequence[int] | int, padding: Sequence[int] | int
    ) -> Ref:
        """avg_pool of images with padding."""
        return self._pool("avg_pool2d", x, kernel, stride, padding)

    def smooth_max_pool2d(
        self, x: Ref, kernel: Sequence[int] | int, stride: Sequence[int] | int, beta: float = 1.0
    ) -> Ref:
        """smooth_max_pool of images without padding."""
        return self._pool("smooth_max_pool2d", x, kernel, stride, 0, (beta,))

    def smooth_max_pool2d_pad(
        self, x: Ref, kernel: Sequence[int] | int, stride: Sequence[int] | int, padding: Sequence[int] | int,
        beta: float = 1.0,
    ) -> Ref:  # fmt: skip
        """smooth_max_pool of images with padding."""
        return self._pool("smooth_max_pool2d", x, kernel, stride, padding, (beta,))

    def _pool(self, name: str, x: Ref, kernel: Any, stride: Any, padding: Any, extra: tuple[Any, ...] = ()) -> Ref:
        shape = self.shape(x)
        two = name.endswith("2d")
        rank = 2 if two else len(shape) - 1 if isinstance(kernel, int) else len(kernel)
        if len(shape) not in (rank + 1, rank + 2) or rank < 1:
            raise ShapeError(
                f"{name}: x: got shape {shape}, expected {rank + 1} axes, or {rank + 2} with a batch", op=name
            )
        lists = [_each(name, n, v, rank) for n, v in (("kernel", kernel), ("stride", stride), ("padding", padding))]
        batched = len(shape) == rank + 2
        if batched:  # every channel of every image is pooled alone
            x = self._view(x, (shape[0] * shape[1], *shape[2:]), "reshape")
        arguments = tuple(n for each in lists for n in each) if two else tuple(lists)
        y = self._apply(name, (x,), (*arguments, *extra))
        return self._view(y, (*shape[:2], *self.shape(y)[1:]), name) if batched else y

    # ---- attention

    def flash_attention(
        self, q: Ref, k: Ref, v: Ref, mask: Ref | None = None, mask_mode: int | None = None, scale: float | None = None
    ) -> Ref:
        """softmax(q·kᵀ·scale)·v for q, k, v (batch, n, d) and an optional mask (batch, n, n), 0 where blocked.

        mask_mode is that of ``tlrt.kernels.flash_attention``: 0 no mask, 1 the fill convention, 2 a hard mask, 3 causal;
        left out, 2 with a mask and 0 without. scale is 1/√d unless given.
        """
        d = self._sized("flash_attention", q, 3)[2]
        mode = (0 if mask is None else 2) if mask_mode is None else mask_mode
        factor = (1.0 / math.sqrt(d) if d else 1.0) if scale is None else scale
        return self._apply("flash_attention", (q, k, v, mask), (mode, factor))

    def attention(self, q: Ref, k: Ref, v: Ref, mask: Ref | None = None, mask_mode: int = 0, scale: float = 1.0) -> Ref:
        """flash_attention composed from products and a softmax, O(n²) memory; equal to it within the bound. Modes 0 and 1."""
        scores = self.scale(self.bmm(q, self.transpose3d_acb(k)), scale)
        if mask_mode == 1 and mask is not None:  # a blocked score is replaced by -1000
            blocked = self.scale(self.sub(mask, self._ones_like(mask)), 1000.0)
            scores = self.add(self.mul(scores, mask), blocked)
        elif mask_mode != 0:
            raise ArgumentError(f"attention: mask_mode: got {mask_mode}, expected 0 or 1", op="attention")
        return self.bmm(self.softmax(scores), v)

    def _ones_like(self, x: Ref) -> Ref:
        raise NotImplementedError

    def multi_head_attention(
        self, x: Ref, wq: Ref, wk: Ref, wv: Ref, wo: Ref, heads: int, mask: npt.ArrayLike | None = None,
        use_flash: bool = True, causal: bool = False,
    ) -> Ref:  # fmt: skip
        """Self-attention of `heads` heads: x (n, d_model) or (batch, n, d_model), wq, wk, wv (d_model, heads·head_dim), wo
        (heads·head_dim, d_model), and a Boolean mask (n, n), true = attend. Scores are scaled by 1/√head_dim.

        A blocked score becomes -1000, as the seed has it; `causal` blocks later positions exactly. `use_flash` off composes
        it from products and a softmax.
        """
        import numpy as np

        shape, name = self.shape(x), "multi_head_attention"
        if len(shape) not in (2, 3):
            raise ShapeError(f"{name}: x: got shape {shape}, expected (n, d_model), or with a batch", op=name)
        batch, n, d_model = (1, *shape) if len(shape) == 2 else shape
        width = self._sized(name, wq, 2)[1]
        if heads < 1 or width % heads:
            raise ArgumentError(f"{name}: heads: got {heads}, expected a divisor of {width}", op=name)
        if mask is not None and causal:
            raise ArgumentError(f"{name}: causal: got True with a mask, expected one of them", op=name)
        if mask is not None and np.shape(mask) != (n, n):
            raise ShapeError(f"{name}: mask: got shape {np.shape(mask)}, expected {(n, n)}", op=name)
        d = width // heads
        rows = self._view(x, (batch * n, d_model), "reshape")
        q, k, v = (self._split_heads(self._apply("matmul", (rows, w)), batch, n, heads, d) for w in (wq, wk, wv))
        scale = 1.0 / math.sqrt(d) if d else 1.0
        allowed = None if mask is None else np.asarray(mask, bool)
        if causal and not use_flash:
            allowed = np.tri(n, dtype=bool)
        fill = None if allowed is None else self._constant(np.broadcast_to(allowed, (batch * heads, n, n)))
        if use_flash:
            y = self.flash_attention(q, k, v, fill, 3 if causal else 1 if fill is not None else 0, scale)
        else:
            y = self.attention(q, k, v, fill, 0 if fill is None else 1, scale)
        y = self._view(y, (batch, heads, n, d), "reshape")
        y = self._view(self._apply("swap_adjacent_at_depth", (y,), (1,)), (batch * n, width), "reshape")
        y = self._apply("matmul", (y, wo))
        return self._view(y, (*shape[:-1], self.shape(y)[1]), name)

    def _split_heads(self, x: Ref, batch: int, n: int, heads: int, d: int) -> Ref:
        """(batch·n, heads·d) to (batch·heads, n, d)."""
        x = self._apply("swap_adjacent_at_depth", (self._view(x, (batch, n, heads, d), "reshape"),), (1,))
        return self._view(x, (batch * heads, n, d), "reshape")

    def _constant(self, array: npt.ArrayLike) -> Ref:
        raise NotImplementedError

    def rotary(self, x: Ref, base: float = 10000.0, start: int = 0, halves: bool = False) -> Ref:
        """Rotary position encoding of x (batch, n, d), positions from `start`; pairs of neighbours, or of halves."""
        return self._apply("rotary", (x,), (base, start, int(halves)))

    def sinusoidal(self, x: Ref, base: float = 10000.0, start: int = 0) -> Ref:
        """x (batch, n, d) plus the sinusoidal position encoding, positions from `start`."""
        return self._apply("sinusoidal", (x,), (base, start))

    # ---- scans

    def selective_scan_diag(self, a: Ref, b: Ref, x: Ref, h0: Ref) -> Ref:
        """h_t = a·h_(t-1) + b·x_t: a, b, h0 (state), x (seq_len, state)."""
        return self._apply("selective_scan_diag", (a, b, x, h0))

    def selective_scan_diag_var(self, a: Ref, b: Ref, x: Ref, h0: Ref) -> Ref:
        """h_t = a_t·h_(t-1) + b_t·x_t: a, b, x (seq_len, state), h0 (state)."""
        return self._apply("selective_scan_diag_var", (a, b, x, h0))

    # ---- Fourier

    def rfft1d_packed(self, x: Ref) -> Ref:
        """(batch, n) to (batch, n//2 + 1, 2) as [re, im], unnormalised."""
        return self._apply("rfft1d_packed", (x,))

    def irfft1d_packed(self, spec: Ref, n: int) -> Ref:
        """The inverse of rfft1d_packed, (batch, n//2 + 1, 2) to (batch, n), scaled 1/n."""
        return self._apply("irfft1d_packed", (spec,), (n,))

    def spectral_conv1d_rfft(self, x: Ref, w_re: Ref, w_im: Ref) -> Ref:
        """Spectral convolution along the grid: x (grid, width), weights (modes, width, width)."""
        return self._apply("spectral_conv1d_rfft", (x, w_re, w_im))


def _common(op: str, a: Shape, b: Shape) -> Shape:
    """The shape two operands broadcast to, axes aligned at the right."""
    rank = max(len(a), len(b))
    long_a, long_b = (1,) * (rank - len(a)) + a, (1,) * (rank - len(b)) + b
    out = []
    for m, n in zip(long_a, long_b, strict=True):
        if m != n and 1 not in (m, n):
            raise ShapeError(f"{op}: b: got shape {b}, expected one that broadcasts with {a}", op=op)
        out.append(n if m == 1 else m)
    return tuple(out)


def _completed(shape: Shape, have: Shape) -> Shape:
    """A shape in which -1 stands for what is left."""
    if -1 not in shape:
        return shape
    known = math.prod(d for d in shape if d != -1)
    if shape.count(-1) > 1 or known == 0 or math.prod(have) % known:
        raise ShapeError(
            f"reshape: shape: got {shape}, expected one that holds {math.prod(have)} elements", op="reshape"
        )
    return tuple(math.prod(have) // known if d == -1 else d for d in shape)


def _each(op: str, name: str, value: Sequence[int] | int, rank: int) -> tuple[int, ...]:
    """One entry per spatial axis; a single number stands for all."""
    entries = (value,) * rank if isinstance(value, int) else tuple(operator.index(v) for v in value)
    if len(entries) != rank:
        raise ShapeError(f"{op}: {name}: got {len(entries)} entries, expected {rank}", op=op)
    return entries


def _place(op: str, i: int, n: int) -> int:
    place = operator.index(i)
    if not 0 <= place < n:
        raise IndexOutOfRangeError(f"{op}: i: got {place}, expected 0 <= i < {n}", op=op)
    return place
