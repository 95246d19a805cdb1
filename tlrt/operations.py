"""The operations of tapes and sessions, once for both.

A method reads the shapes of its operands, so it takes no dimensions: ``matmul(a, b)`` is the registry's ``matmul`` with m, n, p
read off the shapes. :class:`tlrt.tape.Tape` has them on node ids, :class:`tlrt.session.Session` on tensor references.
Formulas, special values and errors are those of the operation of the same name in ``tlrt.kernels`` unless said here.
Every method raises ShapeError where shapes do not fit, and records nothing then.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from tlrt import _convert
from tlrt.errors import ArgumentError, ShapeError
from tlrt.operations_base import BaseOperations, Ref, indices, integer, integers, whole
from tlspec.ops.attention import FILL

__all__ = ["Operations"]


class Operations(BaseOperations[Ref]):
    """Operations on references to values: those of :class:`~tlrt.operations_base.BaseOperations` and the layers."""

    # ---- linear algebra

    def matmul(self, a: Ref, b: Ref) -> Ref:
        """(m, n) x (n, p) to (m, p). A batch (batch, m, n) meets (batch, n, p), or (n, p), which it shares."""
        if len(self._shape("matmul", a)) == 3:
            return self._apply("bmm", (a, b)) if len(self._shape("matmul", b)) == 3 else self._batched_matmul(a, b)
        return self._apply("matmul", (a, b))

    @whole
    def _batched_matmul(self, a: Ref, b: Ref) -> Ref:
        batch, m, n = self._shape("matmul", a)
        rows = self._apply("matmul", (self._view(a, (batch * m, n), "reshape"), b))
        return self._view(rows, (batch, m, self.shape(rows)[1]), "matmul")

    def bmm(self, a: Ref, b: Ref) -> Ref:
        """(batch, m, n) x (batch, n, p) to (batch, m, p)."""
        return self._apply("bmm", (a, b))

    def linear(self, w: Ref, b: Ref, x: Ref) -> Ref:
        """W·x + b: W (outputs, inputs), b (outputs), x (…, inputs) to (…, outputs)."""
        if len(self._shape("linear", x)) == 2:
            return self._apply("linear", (w, x, b))
        return self._folded_linear(w, b, x)

    @whole
    def _folded_linear(self, w: Ref, b: Ref, x: Ref) -> Ref:
        shape = self.shape(x)
        if not shape:
            raise ShapeError("linear: x: got a scalar, expected (…, inputs)", op="linear")
        rows = self._view(x, (math.prod(shape[:-1]), shape[-1]), "reshape")
        y = self._apply("linear", (w, rows, b))
        return self._view(y, (*shape[:-1], self.shape(y)[1]), "linear")

    # ---- losses

    @whole
    def mse_loss(self, yhat: Ref, target: Ref) -> Ref:
        """The mean of (yhat - target)², a scalar; gradients to both."""
        op = "mse_loss"
        shape, other = self._shape(op, yhat), self._shape(op, target)
        if shape != other:
            raise ShapeError(f"{op}: {self._named('target', target)}: got shape {other}, expected {shape}", op=op)
        return self._apply(op, (self._flat(op, yhat), self._flat(op, target)))

    @whole
    def cross_entropy(self, logits: Ref, labels: npt.ArrayLike) -> Ref:
        """The mean over rows of -log_softmax(logits)[row, label], a scalar: logits (…, classes), labels (…)."""
        op = "cross_entropy"
        shape, wanted = self._shape(op, logits), _convert._array(op, "labels", labels, "integers")
        if not shape:
            raise ShapeError(f"{op}: logits: got a scalar, expected (…, classes)", op=op)
        if wanted.shape != shape[:-1]:
            raise ShapeError(f"{op}: labels: got shape {wanted.shape}, expected {shape[:-1]}", op=op)
        hosts = {"labels": indices(op, "labels", wanted.reshape(-1))}
        return self._apply(op, (self._rows(logits),), (), hosts)

    def _rows(self, x: Ref) -> Ref:
        """x with its leading axes folded into rows."""
        shape = self.shape(x)
        if len(shape) == 2:
            return x
        cols = shape[-1] if shape else 1
        return self._view(x, (math.prod(shape[:-1]), cols), "reshape")

    def _by_rows(self, name: str, x: Ref, *others: Ref, extra: tuple[Any, ...] = ()) -> Ref:
        """An operation on rows, applied along the last axis."""
        if len(self._shape(name, x)) == 2:
            return self._apply(name, (x, *others), extra)
        return self._by_folded_rows(name, x, others, extra)

    @whole
    def _by_folded_rows(self, name: str, x: Ref, others: tuple[Ref, ...], extra: tuple[Any, ...]) -> Ref:
        return self._view(self._apply(name, (self._rows(x), *others), extra), self.shape(x), name)

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
        self._sized("conv2d", w, 4, "w")
        return self._convolve("conv2d", w, b, x, stride, padding)

    def conv_transpose2d(
        self, w: Ref, b: Ref, x: Ref, stride: Sequence[int] | int = 1, padding: Sequence[int] | int = 0
    ) -> Ref:
        """conv_transpose of images: w (in_channels, out_channels, kernel_h, kernel_w)."""
        self._sized("conv_transpose2d", w, 4, "w")
        return self._convolve("conv_transpose2d", w, b, x, stride, padding)

    @whole
    def _convolve(self, name: str, w: Ref, b: Ref, x: Ref, stride: Any, padding: Any) -> Ref:
        rank, shape = len(self._shape(name, w)) - 2, self._shape(name, x)
        if rank < 1:
            text = f"{name}: w: got shape {self.shape(w)}, expected two axes of channels and at least one of space"
            raise ShapeError(text, op=name)
        if len(shape) not in (rank + 1, rank + 2):
            text = f"{name}: {self._named('x', x)}: got shape {shape}, expected {rank + 1} axes, or {rank + 2} with a batch"
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

    @whole
    def _pool(self, name: str, x: Ref, kernel: Any, stride: Any, padding: Any, extra: tuple[Any, ...] = ()) -> Ref:
        shape = self._shape(name, x)
        two = name.endswith("2d")
        rank = 2 if two else len(shape) - 1 if hasattr(kernel, "__index__") else len(integers(name, "kernel", kernel))
        if len(shape) not in (rank + 1, rank + 2) or rank < 1:
            text = f"{name}: {self._named('x', x)}: got shape {shape}, expected {rank + 1} axes, or {rank + 2} with a batch"
            raise ShapeError(text, op=name)
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
        mode, factor = self._attention_mode("flash_attention", q, mask, mask_mode, scale)
        return self._apply("flash_attention", (q, k, v, mask), (mode, factor))

    @whole
    def attention(
        self, q: Ref, k: Ref, v: Ref, mask: Ref | None = None, mask_mode: int | None = None, scale: float | None = None
    ) -> Ref:
        """flash_attention composed from products and a softmax, with the same arguments: O(n²) memory, equal within the
        bound. A mask is read back to the host."""
        batch, n, _ = self._sized("attention", q, 3, "q")
        mode, factor = self._attention_mode("attention", q, mask, mask_mode, scale)
        allowed = None
        if mode == 3:
            allowed = np.broadcast_to(np.tri(n, dtype=bool), (batch, n, n))
        elif mode in (1, 2):
            if mask is None or self._shape("attention", mask) != (batch, n, n):
                got = None if mask is None else self.shape(mask)
                raise ShapeError(f"attention: mask: got {got}, expected {(batch, n, n)}", op="attention")
            allowed = self._host(mask) != 0
        return self._composed_attention(q, k, v, allowed, mode, factor)

    def _attention_mode(
        self, op: str, q: Ref, mask: Any, mask_mode: int | None, scale: float | None
    ) -> tuple[int, float]:
        d = self._sized(op, q, 3, "q")[2]
        mode = (0 if mask is None else 2) if mask_mode is None else integer(op, "mask_mode", mask_mode)
        if not 0 <= mode <= 3:
            raise ArgumentError(f"{op}: mask_mode: got {mode}, expected 0, 1, 2 or 3", op=op)
        return mode, (1.0 / math.sqrt(d) if d else 1.0) if scale is None else scale

    def _composed_attention(
        self, q: Ref, k: Ref, v: Ref, allowed: npt.NDArray[np.bool_] | None, mode: int, scale: float
    ) -> Ref:
        scores = self.scale(self._apply("bmm", (q, self._apply("transpose3d_acb", (k,)))), scale)
        if allowed is None:
            return self._apply("bmm", (self.softmax(scores), v))
        scores = self._select(scores, allowed)
        # what is blocked now is 0 and has no gradient; adding 0 to the rest changes nothing
        if mode == 1:
            weights = self.softmax(self.add(scores, self._constant(np.where(allowed, 0.0, FILL))))
        else:
            some = allowed.any(axis=-1, keepdims=True)
            weights = self.softmax(self.add(scores, self._constant(np.where(allowed | ~some, 0.0, -np.inf))))
            if not some.all():  # rows that are blocked entirely
                weights = self._select(weights, np.broadcast_to(some, allowed.shape))
        return self._apply("bmm", (weights, v))

    def _select(self, x: Ref, kept: npt.NDArray[np.bool_]) -> Ref:
        """x where kept, elsewhere 0 without a gradient, whatever x is there: a gather with indices out of range."""
        places = np.where(kept.reshape(-1), np.arange(kept.size, dtype=np.uint32), np.uint32(2**32 - 1))
        hosts = {"indices": indices("attention", "mask", places)}
        return self._view(self._apply("gather_vec", (self._flat("attention", x),), (), hosts), self.shape(x), "reshape")

    @whole
    def multi_head_attention(
        self, x: Ref, wq: Ref, wk: Ref, wv: Ref, wo: Ref, heads: int, mask: npt.ArrayLike | None = None,
        use_flash: bool = True, causal: bool = False,
    ) -> Ref:  # fmt: skip
        """Self-attention of `heads` heads: x (n, d_model) or (batch, n, d_model), wq, wk, wv (d_model, heads·head_dim), wo
        (heads·head_dim, d_model), and a Boolean mask (n, n), true = attend. Scores are scaled by 1/√head_dim.

        A blocked score becomes -1000, as the seed has it; `causal` blocks later positions exactly. `use_flash` off composes
        it from products and a softmax.
        """
        name = "multi_head_attention"
        shape, heads = self._shape(name, x), integer(name, "heads", heads)
        if len(shape) not in (2, 3):
            raise ShapeError(f"{name}: x: got shape {shape}, expected (n, d_model), or with a batch", op=name)
        batch, n, d_model = (1, *shape) if len(shape) == 2 else shape
        width = self._sized(name, wq, 2, "wq")[1]
        if self._sized(name, wk, 2, "wk")[1] != width or self._sized(name, wv, 2, "wv")[1] != width:
            text = f"{name}: wk, wv: got shapes {self.shape(wk)} and {self.shape(wv)}, expected {self.shape(wq)}"
            raise ShapeError(text, op=name)
        if heads < 1 or width % heads:
            raise ArgumentError(f"{name}: heads: got {heads}, expected a divisor of {width}", op=name)
        if mask is not None and causal:
            raise ArgumentError(f"{name}: causal: got True with a mask, expected one of them", op=name)
        allowed = None if mask is None else _convert._array(name, "mask", mask, "booleans")
        if allowed is not None and (allowed.shape != (n, n) or allowed.dtype.kind not in "biuf"):
            text = f"{name}: mask: got shape {allowed.shape} of {allowed.dtype}, expected {(n, n)} of booleans"
            raise ShapeError(text, op=name)
        d = width // heads
        rows = self._view(x, (batch * n, d_model), "reshape")
        q, k, v = (self._split_heads(self._apply("matmul", (rows, w)), batch, n, heads, d) for w in (wq, wk, wv))
        scale = 1.0 / math.sqrt(d) if d else 1.0
        mode, each = 3 if causal else 0 if allowed is None else 1, (batch * heads, n, n)
        if use_flash:
            fill = None if allowed is None else self.broadcast_to(self._constant(allowed != 0), each)
            y = self._apply("flash_attention", (q, k, v, fill), (mode, scale))
        else:
            kept = np.tri(n, dtype=bool) if causal else None if allowed is None else allowed != 0
            y = self._composed_attention(q, k, v, None if kept is None else np.broadcast_to(kept, each), mode, scale)
        y = self._view(y, (batch, heads, n, d), "reshape")
        y = self._view(self._apply("swap_adjacent_at_depth", (y,), (1,)), (batch * n, width), "reshape")
        y = self._apply("matmul", (y, wo))
        return self._view(y, (*shape[:-1], self.shape(y)[1]), name)

    def _split_heads(self, x: Ref, batch: int, n: int, heads: int, d: int) -> Ref:
        """(batch·n, heads·d) to (batch·heads, n, d)."""
        x = self._apply("swap_adjacent_at_depth", (self._view(x, (batch, n, heads, d), "reshape"),), (1,))
        return self._view(x, (batch * heads, n, d), "reshape")

    def rotary(self, x: Ref, base: float = 10000.0, start: int = 0, halves: bool = False) -> Ref:
        """Rotary position encoding of x (batch, n, d), positions from `start`; pairs of neighbours, or of halves."""
        return self._apply("rotary", (x,), (base, integer("rotary", "start", start), int(bool(halves))))

    def sinusoidal(self, x: Ref, base: float = 10000.0, start: int = 0) -> Ref:
        """x (batch, n, d) plus the sinusoidal position encoding, positions from `start`."""
        return self._apply("sinusoidal", (x,), (base, integer("sinusoidal", "start", start)))

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
        return self._apply("irfft1d_packed", (spec,), (integer("irfft1d_packed", "n", n),))

    def spectral_conv1d_rfft(self, x: Ref, w_re: Ref, w_im: Ref) -> Ref:
        """Spectral convolution along the grid: x (grid, width), weights (modes, width, width)."""
        return self._apply("spectral_conv1d_rfft", (x, w_re, w_im))


def _each(op: str, name: str, value: Sequence[int] | int, rank: int) -> tuple[int, ...]:
    """One entry per spatial axis; a single number stands for all."""
    single = hasattr(value, "__index__")
    entries = (integer(op, name, value),) * rank if single else integers(op, name, value)
    if len(entries) != rank:
        raise ShapeError(f"{op}: {name}: got {len(entries)} entries, expected {rank}", op=op)
    return entries
