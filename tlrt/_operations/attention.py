"""Attention and position encodings."""

import math
from typing import Any

import numpy as np
import numpy.typing as npt

from tlrt._binding import convert
from tlrt._binding.arguments import integer
from tlrt._operations.base import Ref, atomic, indices
from tlrt._operations.elementwise import ElementwiseOperations
from tlrt._operations.norm import NormOperations
from tlrt.errors import ArgumentError, ShapeError, refusal
from tlspec.ops.attention import FILL


class AttentionOperations(NormOperations[Ref], ElementwiseOperations[Ref]):
    """Attention in one kernel or composed of products, and position encodings."""

    def flash_attention(
        self, q: Ref, k: Ref, v: Ref, mask: Ref | None = None, mask_mode: int | None = None, scale: float | None = None
    ) -> Ref:
        """softmax(q·kᵀ·scale)·v for q, k, v (batch, n, d) and an optional mask (batch, n, n), 0 where blocked.

        mask_mode is that of ``tlrt.kernels.flash_attention``: 0 no mask, 1 the fill convention, 2 a hard mask, 3 causal;
        left out, 2 with a mask and 0 without. scale is 1/√d unless given."""
        mode, factor = self._attention_mode("flash_attention", q, mask, mask_mode, scale)
        return self._apply("flash_attention", (q, k, v, mask), (mode, factor))

    @atomic
    def attention(
        self, q: Ref, k: Ref, v: Ref, mask: Ref | None = None, mask_mode: int | None = None, scale: float | None = None
    ) -> Ref:
        """flash_attention composed from products and a softmax, with the same arguments: O(n²) memory, equal within the
        bound. A mask is read back to the host."""
        batch, n, _ = self._require_rank("attention", q, 3, "q")
        mode, factor = self._attention_mode("attention", q, mask, mask_mode, scale)
        allowed = None
        if mode == 3:
            allowed = np.broadcast_to(np.tri(n, dtype=bool), (batch, n, n))
        elif mode in (1, 2):
            if mask is None or self._shape("attention", mask) != (batch, n, n):
                got = None if mask is None else self.shape(mask)
                raise refusal(ShapeError, "attention", "mask", got, (batch, n, n))
            allowed = self._host(mask) != 0
        return self._composed_attention(q, k, v, allowed, mode, factor)

    def _attention_mode(
        self, op: str, q: Ref, mask: Any, mask_mode: int | None, scale: float | None
    ) -> tuple[int, float]:
        d = self._require_rank(op, q, 3, "q")[2]
        mode = (0 if mask is None else 2) if mask_mode is None else integer(op, "mask_mode", mask_mode)
        if not 0 <= mode <= 3:
            raise refusal(ArgumentError, op, "mask_mode", mode, "0, 1, 2 or 3")
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
        gathered = self._apply("gather_vec", (self._flatten("attention", x),), (), hosts)
        return self._view(gathered, self.shape(x), "reshape")

    @atomic
    def multi_head_attention(
        self, x: Ref, wq: Ref, wk: Ref, wv: Ref, wo: Ref, heads: int, mask: npt.ArrayLike | None = None,
        use_flash: bool = True, causal: bool = False,
    ) -> Ref:  # fmt: skip
        """Self-attention of `heads` heads: x (n, d_model) or (batch, n, d_model), wq, wk, wv (d_model, heads·head_dim), wo
        (heads·head_dim, d_model), and a Boolean mask (n, n), true = attend. Scores are scaled by 1/√head_dim.

        A blocked score becomes -1000, as the seed has it; `causal` blocks later positions exactly. `use_flash` off composes
        it from products and a softmax."""
        name = "multi_head_attention"
        shape, heads = self._shape(name, x), integer(name, "heads", heads)
        if len(shape) not in (2, 3):
            raise refusal(ShapeError, name, "x", f"shape {shape}", "(n, d_model), or with a batch")
        batch, n, d_model = (1, *shape) if len(shape) == 2 else shape
        width = self._require_rank(name, wq, 2, "wq")[1]
        if self._require_rank(name, wk, 2, "wk")[1] != width or self._require_rank(name, wv, 2, "wv")[1] != width:
            raise refusal(ShapeError, name, "wk, wv", f"shapes {self.shape(wk)} and {self.shape(wv)}", self.shape(wq))
        if heads < 1 or width % heads:
            raise refusal(ArgumentError, name, "heads", heads, f"a divisor of {width}")
        if mask is not None and causal:
            raise refusal(ArgumentError, name, "causal", "True with a mask", "one of them")
        allowed = None if mask is None else convert.host_array(name, "mask", mask, "booleans")
        if allowed is not None and (allowed.shape != (n, n) or allowed.dtype.kind not in "biuf"):
            expected = f"{(n, n)} of booleans"
            raise refusal(ShapeError, name, "mask", f"shape {allowed.shape} of {allowed.dtype}", expected)
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
