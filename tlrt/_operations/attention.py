"""Attention and position encodings."""

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt

from tlrt._binding import convert
from tlrt._binding.arguments import integer
from tlrt._operations.base import Ref, atomic, indices
from tlrt._operations.elementwise import ElementwiseOperations, broadcast_shape
from tlrt._operations.plan import Shape
from tlrt._operations.reduce import ReduceOperations
from tlrt.errors import ArgumentError, ArgumentTypeError, ShapeError, refusal
from tlspec.ops.attention import FILL, UNLIMITED

#: a mask that is added to the scores; the operation itself has no such mode
_ADDITIVE = 4
_MODES = {"fill": 1, "hard": 2, "causal": 3, "additive": _ADDITIVE}
#: limits of keys that flash_attention has, and its mode for them
_SQUARE = {(UNLIMITED, UNLIMITED, 0): 0, (UNLIMITED, 0, 0): 3}
#: what a mask may be, for messages
_MASKS = "booleans (True attends) or floats to add to the scores (0 attends, -inf blocks)"


def _is_array(mask: Any) -> bool:
    """Whether a mask is on the host."""
    return isinstance(mask, (np.ndarray, list, tuple))


def _read_zeros_and_ones(op: str, values: npt.NDArray[Any]) -> npt.NDArray[np.bool_]:
    """Where a mask of which zeros block does not."""
    if values.dtype.kind != "b" and not (convert.is_real(values.dtype) and np.isin(values, (0, 1)).all()):
        raise refusal(ArgumentError, op, "mask", f"other {values.dtype} values", "zeros and ones, as mask_mode says")
    return np.asarray(values != 0)


def _read_additive(op: str, values: npt.NDArray[Any], mode: int | None) -> tuple[npt.NDArray[np.bool_], bool]:
    """Where a mask that is added to the scores blocks nothing, and whether it is 0 there."""
    if values.dtype.kind in "biu" or not convert.is_real(values.dtype):
        expected = "floats, as mask_mode says" if mode else _MASKS
        raise refusal(ArgumentTypeError, op, "mask", f"dtype {values.dtype}", expected)
    allowed = np.asarray(values != -np.inf)
    if not np.isfinite(values[allowed]).all():
        raise refusal(ArgumentError, op, "mask", "NaN or inf", "finite numbers or -inf")
    ones = values == 1
    if mode is None and ones.any() and (ones | (values == 0)).all():
        expected = f"{_MASKS}, or mask_mode 'hard' or 'fill', where zeros block"
        raise refusal(ArgumentError, op, "mask", "zeros and ones", expected)
    return allowed, not values[allowed].any()


def _limits(
    op: str, queries: int, keys: int, causal: bool, window: int | None, offset: int | str
) -> tuple[int, int, int]:
    """before, after and offset of grouped_attention; what limits nothing is UNLIMITED, and the offset is 0 then."""
    if isinstance(offset, str) and offset != "end":
        raise refusal(ArgumentError, op, "offset", repr(offset), "a number or 'end'")
    start = keys - queries if isinstance(offset, str) else integer(op, "offset", offset)
    if start < 0:
        raise refusal(ArgumentError, op, "offset", start, "0 or more (with 'end' no more queries than keys)")
    reach = UNLIMITED
    if window is not None:
        reach = integer(op, "window", window) - 1
        if reach < 0:
            raise refusal(ArgumentError, op, "window", reach + 1, "at least 1")
    before, after = reach, 0 if causal else reach
    if start + after >= keys - 1:
        after = UNLIMITED
    if before >= start + queries - 1:
        before = UNLIMITED
    return before, after, start if min(before, after) < UNLIMITED else 0


def _padded(shape: Shape, rank: int, has_heads: bool) -> Shape:
    """A shape with axes of 1 in front, and before the last two where it has no axis of heads."""
    shape = shape if has_heads or len(shape) < 2 else (*shape[:-2], 1, *shape[-2:])
    return (1,) * (rank - len(shape)) + shape


class AttentionOperations(ElementwiseOperations[Ref], ReduceOperations[Ref]):
    """Attention in one kernel or composed of products, and position encodings."""

    def flash_attention(
        self, q: Ref, k: Ref, v: Ref, mask: Ref | npt.ArrayLike | None = None, mask_mode: int | str | None = None,
        scale: float | None = None,
    ) -> Ref:  # fmt: skip
        """Scaled dot-product attention softmax(q·kᵀ·scale)·v, without an n x n array.

        A tensor as mask is read back to see that it is no mask of zeros and ones, which is refused, unless mask_mode
        tells. A row that is blocked entirely, by False or -inf, gives zeros. Numbers other than 0 and -inf are composed
        as :meth:`attention` does.

        Parameters
        ----------
        q : tensor
            Shape (batch, n, d).
        k : tensor
            Shape (batch, n, d).
        v : tensor
            Shape (batch, n, d).
        mask : tensor or array_like, optional
            Broadcasts to (batch, n, n): booleans, True where attended, or numbers that are added to the scores.
        mask_mode : int or str, optional
            Another meaning of the mask: "hard" (2), zeros block; "fill" (1), a blocked score becomes -1000; "additive",
            added as it is. "causal" (3) blocks later positions and takes no mask, nor does 0.
        scale : float, optional
            Factor of the scores; 1/√d unless given.

        Returns
        -------
        tensor
            Shape (batch, n, d).

        Raises
        ------
        ShapeError
            Shapes do not fit.
        ArgumentError
            The mask and its mode do not fit.

        See Also
        --------
        tlrt.kernels.flash_attention : The function of buffers, with special values.

        Examples
        --------
        >>> s = tlrt.Session("cpu")
        >>> q = s.const([[[1, 0], [0, 1]]])
        >>> v = s.const([[[1, 2], [3, 4]]])
        >>> print(s.flash_attention(q, q, v, mask_mode="causal").numpy().round(4))
        [[[1.     2.    ]
          [2.3395 3.3395]]]
        """
        mode, factor = self._attention_mode("flash_attention", q, mask, mask_mode, scale)
        if mask is None:
            return self._apply("flash_attention", (q, k, v, None), (mode or 0, factor))
        return self._flash_masked(q, k, v, mask, mode, factor)

    @atomic
    def _flash_masked(self, q: Ref, k: Ref, v: Ref, mask: Any, mode: int | None, scale: float) -> Ref:
        return self._masked_attention("flash_attention", q, k, v, mask, mode, scale, True)

    @atomic
    def attention(
        self, q: Ref, k: Ref, v: Ref, mask: Ref | npt.ArrayLike | None = None, mask_mode: int | str | None = None,
        scale: float | None = None,
    ) -> Ref:  # fmt: skip
        """flash_attention composed of products and a softmax: O(n²) memory, equal within the bound.

        A mask is read back to the host, but one that is "additive".

        Parameters
        ----------
        q : tensor
            Shape (batch, n, d).
        k : tensor
            Shape (batch, n, d).
        v : tensor
            Shape (batch, n, d).
        mask : tensor or array_like, optional
            Broadcasts to (batch, n, n): booleans, True where attended, or numbers that are added to the scores.
        mask_mode : int or str, optional
            Another meaning of the mask: "hard" (2), zeros block; "fill" (1), a blocked score becomes -1000; "additive",
            added as it is. "causal" (3) blocks later positions and takes no mask, nor does 0.
        scale : float, optional
            Factor of the scores; 1/√d unless given.

        Returns
        -------
        tensor
            Shape (batch, n, d).

        Raises
        ------
        ShapeError
            Shapes do not fit.
        ArgumentError
            The mask and its mode do not fit.

        Examples
        --------
        >>> s = tlrt.Session("cpu")
        >>> q = s.const([[[1, 0], [0, 1]]])
        >>> v = s.const([[[1, 2], [3, 4]]])
        >>> print(s.attention(q, q, v).numpy().round(4))
        [[[1.6605 2.6605]
          [2.3395 3.3395]]]
        """
        batch, n, _ = self._require_rank("attention", q, 3, "q")
        mode, factor = self._attention_mode("attention", q, mask, mask_mode, scale)
        if mask is not None:
            return self._masked_attention("attention", q, k, v, mask, mode, factor, False)
        if mode not in (None, 0, 3):
            raise refusal(ShapeError, "attention", "mask", None, (batch, n, n))
        allowed = np.broadcast_to(np.tri(n, dtype=bool), (batch, n, n)) if mode == 3 else None
        return self._composed_attention(q, k, v, allowed, mode or 0, factor)

    def _attention_mode(
        self, op: str, q: Ref, mask: Any, mask_mode: int | str | None, scale: float | None
    ) -> tuple[int | None, float]:
        """The mode, None where the mask says it, and the scale."""
        d = self._require_rank(op, q, 3, "q")[2]
        mode: int | None = None
        if isinstance(mask_mode, str):
            if mask_mode not in _MODES:
                raise refusal(ArgumentError, op, "mask_mode", repr(mask_mode), " or ".join(map(repr, _MODES)))
            mode = _MODES[mask_mode]
        elif mask_mode is not None:
            mode = integer(op, "mask_mode", mask_mode)
            if not 0 <= mode <= 3:
                raise refusal(ArgumentError, op, "mask_mode", mode, "0, 1, 2 or 3")
        if mask is not None and mode in (0, 3):
            raise refusal(ArgumentError, op, "mask", f"one with mask_mode {mask_mode!r}", "none")
        if mask is None and mode == _ADDITIVE:
            raise refusal(ArgumentError, op, "mask", "none", "one to add to the scores")
        return mode, (1.0 / math.sqrt(d) if d else 1.0) if scale is None else scale

    def _masked_attention(
        self, op: str, q: Ref, k: Ref, v: Ref, mask: Any, mode: int | None, scale: float, fused: bool
    ) -> Ref:
        batch, n, _ = self._shape(op, q)
        full = (batch, n, n)
        given = _is_array(mask)
        values = convert.host_array(op, "mask", mask, _MASKS) if given else None
        shape = self._shape(op, mask) if values is None else values.shape
        if len(shape) > 3 or any(m not in (1, s) for m, s in zip(shape[::-1], full[::-1], strict=False)):
            raise refusal(ShapeError, op, "mask", shape, full)
        if values is None:
            if mode == _ADDITIVE:
                return self._composed_attention(q, k, v, None, 0, scale, mask)
            if fused and mode is not None:
                return self._apply("flash_attention", (q, k, v, self.broadcast_to(mask, full)), (mode, scale))
            values = self._host(mask).astype(np.float64)  # of any type of numbers
        bias: Any = None
        if mode in (1, 2) or (mode is None and values.dtype.kind == "b"):
            allowed, mode = _read_zeros_and_ones(op, values), mode or 2
        else:
            allowed, plain = _read_additive(op, values, mode)
            bias = None if plain else self._constant(np.where(allowed, values, 0.0)) if given else mask
            mode = 2
        if fused and bias is None:
            blocking = self.broadcast_to(self._constant(allowed), full)
            return self._apply("flash_attention", (q, k, v, blocking), (mode, scale))
        if bias is not None and allowed.all():
            return self._composed_attention(q, k, v, None, 0, scale, bias, is_finite=True)
        return self._composed_attention(q, k, v, np.broadcast_to(allowed, full), mode, scale, bias)

    def _composed_attention(
        self, q: Ref, k: Ref, v: Ref, allowed: npt.NDArray[np.bool_] | None, mode: int, scale: float, bias: Any = None,
        is_finite: bool = False,
    ) -> Ref:  # fmt: skip
        scores = self.scale(self._apply("bmm", (q, self._apply("transpose3d_acb", (k,)))), scale)
        if bias is not None and allowed is None and not is_finite:
            return self._apply("bmm", (self._biased_softmax(scores, bias), v))
        if bias is not None:
            scores = self.add(scores, bias)
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

    def _biased_softmax(self, scores: Ref, bias: Ref) -> Ref:
        """The softmax of scores to which a bias was added that the host has not seen: where it is -inf weights are 0 and have
        no gradient, in rows that are so entirely too."""
        if not self.shape(scores)[-1]:
            return self.softmax(scores)
        blocked = self.eq(bias, self._full((1,) * len(self.shape(bias)), -np.inf))
        empty = self.amin(blocked, -1, keepdims=True)
        scores = self.masked_fill(self.masked_fill(self.add(scores, bias), blocked, -np.inf), empty, 0.0)
        return self.masked_fill(self.softmax(scores), empty, 0.0)

    def _select(self, x: Ref, kept: npt.NDArray[np.bool_]) -> Ref:
        """x where kept, elsewhere 0 without a gradient, whatever x is there: a gather with indices out of range."""
        places = np.where(kept.reshape(-1), np.arange(kept.size, dtype=np.uint32), np.uint32(2**32 - 1))
        hosts = {"indices": indices("attention", "mask", places)}
        gathered = self._apply("gather_vec", (self._flatten("attention", x),), (), hosts)
        return self._view(gathered, self.shape(x), "reshape")

    @atomic
    def scaled_dot_product_attention(
        self, q: Ref, k: Ref, v: Ref, mask: Ref | npt.ArrayLike | None = None, causal: bool = False,
        window: int | None = None, offset: int | str = 0, scale: float | None = None, mask_mode: str | None = None,
        dropout: float = 0.0,
    ) -> Ref:  # fmt: skip
        """softmax(q·kᵀ·scale + mask)·v of heads, as PyTorch's function of the name.

        Leading axes are broadcast; an operand that is broadcast is copied. With one leading axis or none, it is no axis
        of heads. With two or more, kv_heads divides heads: a head of keys serves heads / kv_heads heads of queries in a
        row. An added mask has a gradient, in O(n²) memory. A row that is blocked entirely gives zeros.

        Parameters
        ----------
        q : tensor
            Shape (…, heads, queries, d).
        k : tensor
            Shape (…, kv_heads, keys, d).
        v : tensor
            Shape (…, kv_heads, keys, width).
        mask : tensor or array_like, optional
            Broadcasts to (…, heads, queries, keys): booleans, True where attended, or numbers to add.
        causal : bool, default False
            Blocks later keys.
        window : int, optional
            Blocks keys that are so many places away or more.
        offset : int or str, default 0
            Query i stands at key i + offset; "end" places the last query at the last key, as with a cache.
        scale : float, optional
            Factor of the scores; 1/√d unless given.
        mask_mode : str, optional
            How a tensor is read: "additive", or "hard": zeros block. Else it is read back to see which.
        dropout : float, default 0.0
            Probability that a session drops a weight, in O(n²) memory.

        Returns
        -------
        tensor
            Shape (…, heads, queries, width).

        Raises
        ------
        ShapeError
            Shapes do not fit.
        ArgumentError
            A window below 1, or a negative offset.

        See Also
        --------
        tlrt.kernels.grouped_attention, tlrt.kernels.flash_attention : The functions of buffers.

        Examples
        --------
        >>> s = tlrt.Session("cpu")
        >>> q = s.const([[[[1, 0], [0, 1]]]])
        >>> print(s.scaled_dot_product_attention(q, q, q, causal=True).numpy().round(4))
        [[[[1.     0.    ]
           [0.3302 0.6698]]]]
        """
        op = "scaled_dot_product_attention"
        q, k, v, leading = self._with_common_heads(op, q, k, v)
        (batch, heads, queries, d), keys = self.shape(q), self.shape(k)[2]
        geometry = (batch, heads, queries, keys, d)
        factor = (1.0 / math.sqrt(d) if d else 1.0) if scale is None else scale
        limits = _limits(op, queries, keys, causal, window, offset)
        drop = (lambda weights: self._drop_weights(op, weights, dropout)) if dropout else None
        if mask is not None:
            mask = self._with_heads_of_mask(op, mask, leading, queries, keys)
            out = self._broadcast_masked(op, q, k, v, mask, mask_mode, geometry, limits, factor, drop)
        elif drop is not None:
            out = self._grouped_composed(q, k, v, None, geometry, limits, factor, drop=drop)
        elif self.shape(v) == self.shape(k) == self.shape(q) and limits in _SQUARE:
            flat = (self._view(x, (batch * heads, queries, d), "reshape") for x in (q, k, v))
            out = self._apply("flash_attention", (*flat, None), (_SQUARE[limits], factor))
        else:
            out = self._apply("grouped_attention", (q, k, v, None), (0, 1, 1, 1, *limits, factor))
        full = (*leading, queries, self.shape(v)[3])
        return out if self._shape(op, out) == full else self._view(out, full, op)

    def _drop_weights(self, op: str, weights: Ref, p: float) -> Ref:
        """Weights with each dropped with probability p and the others scaled by 1/(1 - p)."""
        raise refusal(ArgumentError, op, "dropout", p, "0 (a session draws random numbers, a tape does not)")

    def _with_common_heads(self, op: str, q: Ref, k: Ref, v: Ref) -> tuple[Ref, Ref, Ref, Shape]:
        """The operands as (batch, heads, n, width), k and v perhaps of fewer heads, and the leading axes of the result."""
        operands = {"q": q, "k": k, "v": v}
        shapes = {name: self._shape(op, x) for name, x in operands.items()}

        def refuse(name: str, expected: str) -> ShapeError:
            return refusal(ShapeError, op, self._named(name, operands[name]), f"shape {shapes[name]}", expected)

        for name, shape in shapes.items():
            if len(shape) < 2:
                raise refuse(name, "two axes or more, (…, n, width)")
        if shapes["k"][-1] != (d := shapes["q"][-1]):
            raise refuse("k", f"(…, keys, {d})")
        if shapes["v"][-2] != (keys := shapes["k"][-2]):
            raise refuse("v", f"(…, {keys}, width)")
        rank = max(map(len, shapes.values()))
        wide = {name: _padded(shape, max(rank, 4), rank > 3) for name, shape in shapes.items()}
        outer: Shape = ()
        for name, shape in wide.items():
            try:
                outer = broadcast_shape(op, outer, shape[:-3], name)
            except ShapeError:
                raise refuse(name, f"leading axes that broadcast with {outer}") from None
        heads, *few = (shape[-3] for shape in wide.values())
        kv_heads = few[1] if few[0] == 1 else few[0]
        if few[1] not in (1, kv_heads):
            raise refuse("v", f"{kv_heads} heads, as k, or 1")
        if kv_heads < 1 or (heads != 1 and heads % kv_heads):
            raise refusal(ShapeError, op, "k", f"{kv_heads} heads", f"a divisor of the {heads} of q")
        heads = kv_heads if heads == 1 else heads
        made = []
        for name, n in (("q", heads), ("k", kv_heads), ("v", kv_heads)):
            x, rest = operands[name], shapes[name][-2:]
            if wide[name] != (full := (*outer, n, *rest)):
                x = self.broadcast_to(self._view(x, wide[name], "reshape"), full)
            folded = (math.prod(outer), n, *rest)
            made.append(x if self.shape(x) == folded else self._view(x, folded, "reshape"))
        return made[0], made[1], made[2], (*outer, heads) if rank > 3 else outer[3 - rank :]

    def _with_heads_of_mask(self, op: str, mask: Any, leading: Shape, queries: int, keys: int) -> Any:
        """A mask that broadcasts to (…, queries, keys) as (batch or 1, heads or 1, queries or 1, keys or 1)."""
        full = (*leading, queries, keys)
        given = _is_array(mask)
        mask = convert.host_array(op, "mask", mask, _MASKS) if given else mask
        shape = mask.shape if given else self._shape(op, mask)
        if len(shape) > len(full) or any(m not in (1, s) for m, s in zip(shape[::-1], full[::-1], strict=False)):
            raise refusal(ShapeError, op, "mask", shape, f"one that broadcasts to {full}")
        has_heads = len(leading) > 1
        wide, outer = _padded(shape, max(len(full), 4), has_heads), leading[:-1] if has_heads else leading
        if math.prod(wide[:-3]) != 1 and wide[:-3] != outer:
            mask = mask.reshape(wide) if given else self._view(mask, wide, "reshape")
            wide = (*outer, *wide[-3:])
            mask = np.broadcast_to(mask, wide) if given else self.broadcast_to(mask, wide)
        folded = (math.prod(wide[:-3]), *wide[-3:])
        return mask.reshape(folded) if given else self._view(mask, folded, "reshape")

    def _broadcast_masked(
        self, op: str, q: Ref, k: Ref, v: Ref, mask: Any, mask_mode: str | None, geometry: tuple[int, ...],
        limits: tuple[int, int, int], scale: float, drop: Callable[[Ref], Ref] | None,
    ) -> Ref:  # fmt: skip
        if mask_mode not in (None, "additive", "hard"):
            raise refusal(ArgumentError, op, "mask_mode", repr(mask_mode), "'additive' or 'hard'")
        given, keys = _is_array(mask), geometry[3]
        shape = mask.shape if given else self._shape(op, mask)
        if not given:
            if mask_mode is None:
                _read_additive(op, self._host(mask), None)
            if mask_mode != "hard":
                return self._grouped_composed(q, k, v, mask, geometry, limits, scale, drop=drop)
            if drop is not None:
                mask = self._host(mask)
                given = True
        if not given:
            mask = self.broadcast_to(mask, (*shape[:3], keys))
        else:
            values = np.asarray(mask)
            if mask_mode == "hard":
                values = _read_zeros_and_ones(op, values)
            elif values.dtype.kind != "b" or mask_mode is not None:
                _read_additive(op, values, _ADDITIVE if mask_mode else None)
                mask_mode = "additive"
            values = np.broadcast_to(values, (*shape[:3], keys))
            if drop is not None:
                added = mask_mode == "additive"
                allowed = values != -np.inf if added else values != 0
                bias = self._constant(np.where(allowed, values, 0.0)) if added else None
                return self._grouped_composed(q, k, v, bias, geometry, limits, scale, allowed, drop)
            mask = self._constant(values)
        extra = (2 if mask_mode == "additive" else 1, *shape[:3], *limits, scale)
        return self._apply("grouped_attention", (q, k, v, mask), extra)

    def _grouped_composed(
        self, q: Ref, k: Ref, v: Ref, bias: Ref | None, geometry: tuple[int, ...], limits: tuple[int, int, int],
        scale: float, kept: npt.NDArray[np.bool_] | None = None, drop: Callable[[Ref], Ref] | None = None,
    ) -> Ref:  # fmt: skip
        """The same of products and a softmax, for a bias with a gradient, and for dropout of weights: O(queries·keys) memory."""
        batch, heads, queries, keys, d = geometry
        kv_heads, width = self.shape(k)[1], self.shape(v)[3]
        members, rows = batch * kv_heads, heads // kv_heads * queries
        k = self._apply("transpose3d_acb", (self._view(k, (members, keys, d), "reshape"),))
        scores = self.scale(self._apply("bmm", (self._view(q, (members, rows, d), "reshape"), k)), scale)
        scores = self._view(scores, (batch, heads, queries, keys), "reshape")
        before, after, offset = limits
        at, j = offset + np.arange(queries)[:, None], np.arange(keys)
        allowed = ((j >= at - before) | (before == UNLIMITED)) & ((j <= at + after) | (after == UNLIMITED))
        if bias is not None and kept is None:
            if not allowed.all():
                bias = self.add(bias, self._constant(np.where(allowed, 0.0, -np.inf)))
            weights = self._biased_softmax(scores, bias)
        else:
            scores = scores if bias is None else self.add(scores, bias)
            allowed = allowed if kept is None else allowed & kept
            some = allowed.any(axis=-1, keepdims=True)
            if not allowed.all():
                scores = self.add(scores, self._constant(np.where(allowed | ~some, 0.0, -np.inf)))
            weights = self.softmax(scores)
            if not some.all():
                weights = self._select(weights, np.broadcast_to(some, (batch, heads, queries, keys)))
        weights = weights if drop is None else drop(weights)
        values = self._view(v, (members, keys, width), "reshape")
        out = self._apply("bmm", (self._view(weights, (members, rows, keys), "reshape"), values))
        return self._view(out, (batch, heads, queries, width), "reshape")

    @atomic
    def multi_head_attention(
        self, x: Ref, wq: Ref, wk: Ref, wv: Ref, wo: Ref, heads: int, mask: npt.ArrayLike | None = None,
        use_flash: bool = True, causal: bool = False,
    ) -> Ref:  # fmt: skip
        """Self-attention of several heads, with its projections.

        A score blocked by False becomes -1000, as the seed has it; -inf and `causal` block exactly.

        Parameters
        ----------
        x : tensor
            Shape (n, d_model) or (batch, n, d_model).
        wq : tensor
            Shape (d_model, heads·head_dim).
        wk : tensor
            The shape of wq.
        wv : tensor
            The shape of wq.
        wo : tensor
            Shape (heads·head_dim, d_model).
        heads : int
            Number of heads.
        mask : array_like, optional
            Shape (n, n): booleans, True attends, or floats to add to the scores, which are scaled by 1/√head_dim.
        use_flash : bool, default True
            False composes it of products and a softmax.
        causal : bool, default False
            Blocks later positions.

        Returns
        -------
        tensor
            The shape of x.

        Raises
        ------
        ShapeError
            Shapes do not fit.

        Examples
        --------
        >>> s = tlrt.Session("cpu")
        >>> x, w = s.const([[1, 0], [0, 1]]), s.const([[1, 0], [0, 1]])
        >>> print(s.multi_head_attention(x, w, w, w, w, heads=1).numpy().round(4))
        [[0.6698 0.3302]
         [0.3302 0.6698]]
        """
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
        allowed = None if mask is None else convert.host_array(name, "mask", mask, _MASKS)
        if allowed is not None and (allowed.shape != (n, n) or allowed.dtype.kind not in "bf"):
            raise refusal(
                ShapeError, name, "mask", f"shape {allowed.shape} of {allowed.dtype}", f"{(n, n)} of {_MASKS}"
            )
        d = width // heads
        rows = self._view(x, (batch * n, d_model), "reshape")
        q, k, v = (self._split_heads(self._apply("matmul", (rows, w)), batch, n, heads, d) for w in (wq, wk, wv))
        scale = 1.0 / math.sqrt(d) if d else 1.0
        if allowed is not None:
            y = self._masked_attention(name, q, k, v, allowed, 1 if allowed.dtype == bool else None, scale, use_flash)
        elif use_flash:
            y = self._apply("flash_attention", (q, k, v, None), (3 if causal else 0, scale))
        else:
            kept = np.broadcast_to(np.tri(n, dtype=bool), (batch * heads, n, n)) if causal else None
            y = self._composed_attention(q, k, v, kept, 0, scale)
        y = self._view(y, (batch, heads, n, d), "reshape")
        y = self._view(self._apply("swap_adjacent_at_depth", (y,), (1,)), (batch * n, width), "reshape")
        y = self._apply("matmul", (y, wo))
        return self._view(y, (*shape[:-1], self.shape(y)[1]), name)

    def _split_heads(self, x: Ref, batch: int, n: int, heads: int, d: int) -> Ref:
        """(batch·n, heads·d) to (batch·heads, n, d)."""
        x = self._apply("swap_adjacent_at_depth", (self._view(x, (batch, n, heads, d), "reshape"),), (1,))
        return self._view(x, (batch * heads, n, d), "reshape")

    def rotary(self, x: Ref, base: float = 10000.0, start: int = 0, halves: bool = False) -> Ref:
        """Rotary position encoding.

        Parameters
        ----------
        x : tensor
            Shape (…, n, d), as (batch, heads, n, d).
        base : float, default 10000.0
            Base of the wavelengths.
        start : int, default 0
            The first position.
        halves : bool, default False
            Pairs of halves, not of neighbours.

        Returns
        -------
        tensor
            The shape of x.

        Raises
        ------
        ShapeError
            d is odd.

        See Also
        --------
        tlrt.kernels.rotary : The function of buffers, with special values.

        Examples
        --------
        >>> s = tlrt.Session("cpu")
        >>> print(s.rotary(s.const([[1, 0], [1, 0]])).numpy().round(4))
        [[1.     0.    ]
         [0.5403 0.8415]]
        """
        return self._by_sequences("rotary", x, (base, integer("rotary", "start", start), int(bool(halves))))

    def sinusoidal(self, x: Ref, base: float = 10000.0, start: int = 0) -> Ref:
        """Adds the sinusoidal position encoding.

        Parameters
        ----------
        x : tensor
            Shape (…, n, d).
        base : float, default 10000.0
            Base of the wavelengths.
        start : int, default 0
            The first position.

        Returns
        -------
        tensor
            The shape of x.

        See Also
        --------
        tlrt.kernels.sinusoidal : The function of buffers, with special values.

        Examples
        --------
        >>> s = tlrt.Session("cpu")
        >>> print(s.sinusoidal(s.zeros((2, 2))).numpy().round(4))
        [[0.     1.    ]
         [0.8415 0.5403]]
        """
        return self._by_sequences("sinusoidal", x, (base, integer("sinusoidal", "start", start)))

    def _by_sequences(self, name: str, x: Ref, extra: tuple[Any, ...]) -> Ref:
        """An operation on (batch, n, d), applied to the last two axes."""
        if len(self._shape(name, x)) == 3:
            return self._apply(name, (x,), extra)
        return self._by_folded_sequences(name, x, extra)

    @atomic
    def _by_folded_sequences(self, name: str, x: Ref, extra: tuple[Any, ...]) -> Ref:
        shape = self._shape(name, x)
        if len(shape) < 2:
            raise refusal(ShapeError, name, self._named("x", x), f"shape {shape}", "(…, n, d)")
        batch = math.prod(shape[:-2])
        return self._view(self._apply(name, (self._view(x, (batch, *shape[-2:]), "reshape"),), extra), shape, name)
