"""Self-attention, what it keeps of earlier positions, and the transformer's block."""

from collections.abc import Callable, Iterable
from typing import Any

from tlrt._binding.arguments import integer
from tlrt.errors import ArgumentError, refusal
from tlrt.nn import init
from tlrt.nn.layer import Dropout, Layer, require_sizes
from tlrt.nn.linear import LayerNorm, Linear, RMSNorm
from tlrt.session import Session
from tlrt.tape import AnyBuffer
from tlrt.tensor import TensorRef

__all__ = ["KeyValueCache", "MultiHeadAttention", "TransformerBlock"]


class KeyValueCache:
    """The keys and values of the positions so far, of one attention layer; they outlive :meth:`Session.reset`.

    Generation makes one for each layer, and calls the layers with the new positions alone, in :meth:`Session.no_grad`.
    ``len(cache)`` is the number of positions.

    Parameters
    ----------
    session : Session
        The session of the layer.

    Examples
    --------
    >>> import tlrt
    >>> s = tlrt.Session("cpu", seed=1)
    >>> attention = tlrt.nn.MultiHeadAttention(s, 4, 2, name="attention", causal=True)
    >>> x, cache = s.rand_normal((1, 6, 4)), tlrt.nn.KeyValueCache(s)
    >>> with s.no_grad():
    ...     first, last = attention(x[:, :5], cache=cache), attention(x[:, 5:], cache=cache)
    >>> len(cache), last.shape
    (6, (1, 1, 4))
    """

    def __init__(self, session: Session) -> None:
        self.session = session
        self._made_in = session.epoch
        self._held: tuple[AnyBuffer, AnyBuffer] | None = None

    def __len__(self) -> int:
        """The number of positions."""
        return self._held[0].shape[2] if self._held else 0

    def append(self, key: TensorRef, value: TensorRef) -> tuple[TensorRef, TensorRef]:
        """Keeps new keys and values behind those of before.

        Parameters
        ----------
        key, value : TensorRef
            (batch, heads, n, d).

        Returns
        -------
        tuple of TensorRef
            All keys and all values. Gradients do not go back to those of before.

        Raises
        ------
        ShapeError
            Where other axes than the positions differ; the cache is as it was then.
        CaptureError
            Within a captured function that did not make the cache: at a replay it would not grow.
        """
        s = self.session
        if self._made_in != s.epoch:
            s._require_uncaptured("KeyValueCache.append")
        made = [key, value]
        if self._held is not None:
            before = [s._leaf(held.share(), "cache", False) for held in self._held]
            made = [s.concat(pair, axis=2) for pair in zip(before, made, strict=True)]
        held = (s._node(made[0], "append").value.share(), s._node(made[1], "append").value.share())
        self.clear()
        self._held = held
        return made[0], made[1]

    def clear(self) -> None:
        """Forgets all positions."""
        held, self._held = self._held, None
        for buffer in held or ():
            buffer.release()


class MultiHeadAttention(Layer):
    """Self-attention of several heads.

    y = concat_h(softmax(Q_h·K_hᵀ/√d)·V_h)·Wo with Q, K, V = x·Wq, x·Wk, x·Wv and d = width/heads.

    x (batch, n, width), or (n, width), keeps its shape. NAME.query, NAME.key, NAME.value and NAME.out (width, width),
    inputs first, start Xavier uniform. A call with a :class:`KeyValueCache` attends to the positions in it too.

    Parameters
    ----------
    session : Session
        The session that gets the parameters.
    width : int
        Size of the last axis.
    heads : int
        Number of heads.
    name : str
        What the parameters' names begin with.
    causal : bool
        True: later positions are blocked exactly.
    use_flash : bool
        The fused operation, or one composed of products and a softmax, equal within the bound. It matters without
        `kv_heads`, `bias`, `rotary`, `window`, dropout and cache alone.
    weight_init : function of (session, shape), optional
        Initial values of the four weights.
    kv_heads : int, optional
        Heads of keys and values; each belongs to heads/kv_heads heads of queries in a row. NAME.key and NAME.value are
        then (width, kv_heads·d).
    bias : bool
        True: each product has a NAME.PART_bias, which starts at 0.
    rotary : float, optional
        The base of rotary position encodings, in halves.
    window : int, optional
        Positions that many or more away are blocked.
    dropout : float
        Probability with which weights of the softmax are dropped in training.

    Raises
    ------
    ArgumentError
        Unless heads divides width, and kv_heads heads.

    Examples
    --------
    >>> import tlrt
    >>> s = tlrt.Session("cpu", seed=1)
    >>> attention = tlrt.nn.MultiHeadAttention(s, 8, 2, name="attention", causal=True)
    >>> attention(s.rand_normal((3, 5, 8))).shape
    (3, 5, 8)
    >>> [p.name for p in attention.parameters()]
    ['attention.query', 'attention.key', 'attention.value', 'attention.out']

    Source: Vaswani et al., arXiv:1706.03762; torch.nn.MultiheadAttention.
    """

    def __init__(
        self, session: Session, width: int, heads: int, *, name: str, causal: bool = False, use_flash: bool = True,
        weight_init: init.Initializer | None = None, kv_heads: int | None = None, bias: bool = False,
        rotary: float | None = None, window: int | None = None, dropout: float = 0.0,
    ) -> None:  # fmt: skip
        require_sizes(self, width=width, heads=heads)
        if heads < 1 or width % heads:
            raise refusal(ArgumentError, "MultiHeadAttention", "heads", heads, f"a divisor of {width}")
        self.session, self.heads, self.causal, self.use_flash = session, heads, causal, use_flash
        self.kv_heads = heads if kv_heads is None else integer("MultiHeadAttention", "kv_heads", kv_heads)
        self.rotary, self.window = rotary, window
        self.dropout = Dropout(dropout)
        if self.kv_heads < 1 or heads % self.kv_heads:
            raise refusal(ArgumentError, "MultiHeadAttention", "kv_heads", kv_heads, f"a divisor of {heads}")
        parts, narrow = ("query", "key", "value", "out"), width // heads * self.kv_heads
        sizes = (width, narrow, narrow, width)
        weights = (init.initial_value(weight_init, init.xavier_uniform, session, (width, n)) for n in sizes)
        self.query, self.key, self.value, self.out = map(session.param, weights, (f"{name}.{part}" for part in parts))
        self.biases = [
            session.param(init.zeros(session, (n,)), f"{name}.{part}_bias")
            for n, part in zip(sizes, parts, strict=True)
            if bias
        ]

    def _parts(self) -> Iterable[tuple[str, Any]]:
        named = zip(("query_bias", "key_bias", "value_bias", "out_bias"), self.biases, strict=False)
        return [*((name, value) for name, value in vars(self).items() if name != "biases"), *named]

    def __call__(self, x: TensorRef, *, training: bool = False, cache: KeyValueCache | None = None) -> TensorRef:
        s = self.session
        plain = self.kv_heads == self.heads and not self.biases and self.rotary is None and self.window is None
        dropped = self.dropout.p if training else 0.0
        if cache is not None or dropped or not plain:
            return self._attend(x, cache, dropped)
        query, key, value, out = (s.use(w) for w in (self.query, self.key, self.value, self.out))
        how = {"use_flash": self.use_flash, "causal": self.causal}
        return s.multi_head_attention(x, query, key, value, out, self.heads, **how)

    def _attend(self, x: TensorRef, cache: KeyValueCache | None, dropout: float) -> TensorRef:
        s: Any = self.session
        shape = x.shape
        batch, n, width = (1, *shape) if len(shape) == 2 else shape
        x, d = s.reshape(x, (batch, n, width)), width // self.heads
        q, k, v = (
            s.swap_adjacent_at_depth(s.reshape(self._project(x, i), (batch, n, heads, d)), 1)
            for i, heads in enumerate((self.heads, self.kv_heads, self.kv_heads))
        )
        if self.rotary is not None:
            start = 0 if cache is None else len(cache)
            q, k = (s.rotary(t, self.rotary, start, True) for t in (q, k))
        if cache is not None:
            k, v = cache.append(k, v)
        how = {"causal": self.causal, "window": self.window, "offset": "end", "dropout": dropout}
        y = s.swap_adjacent_at_depth(s.scaled_dot_product_attention(q, k, v, **how), 1)
        return s.reshape(self._project(s.reshape(y, (batch, n, width)), 3), shape)

    def _project(self, x: TensorRef, part: int) -> TensorRef:
        s: Any = self.session
        y = s.matmul(x, s.use((self.query, self.key, self.value, self.out)[part]))
        return s.add(y, s.use(self.biases[part])) if self.biases else y


#: activation of a block -> the session's operation, and whether a second product gates what it gives
_ACTIVATIONS = {"swiglu": ("silu", True), "geglu": ("gelu", True), "reglu": ("relu", True)}
_NORMS = {"layer": LayerNorm, "rms": RMSNorm}


class TransformerBlock(Layer):
    """Attention and a perceptron, each normalised before and added to what came in.

    x ← x + dropout(attention(norm1(x))); x ← x + dropout(down(activation(up(norm2(x))))).

    x (batch, n, width), or (n, width), keeps its shape. The parts are NAME.norm1, NAME.attention, NAME.norm2, NAME.up,
    NAME.down and, with a gate, NAME.gate. A call takes a :class:`KeyValueCache` as `cache`.

    Parameters
    ----------
    session : Session
        The session that gets the parameters.
    width, heads : int
        Size of the last axis, and heads of the attention.
    name : str
        What the parameters' names begin with.
    causal, use_flash, kv_heads, rotary, window : optional
        As :class:`MultiHeadAttention` has them.
    dropout : float
        Probability with which results of both parts are dropped in training.
    ratio : int
        Width of the perceptron as a multiple of `width`.
    weight_init : function of (session, shape), optional
        Initial values of all products.
    attention_dropout : float
        The dropout of the attention's weights.
    bias : bool, optional
        True: all products have a bias; False: none has; None: those of the perceptron have one.
    dim_feedforward : int, optional
        Width of the perceptron; ratio·width unless given.
    norm : str
        "layer" or "rms".
    eps : float, optional
        That of the norms; their own default unless given.
    activation : str or function of a tensor
        The name of an operation, gelu in the tanh form by default. "swiglu", "geglu" and "reglu" give
        down(silu(gate(x))·up(x)), and so on.

    Raises
    ------
    ArgumentError
        For another norm, and as :class:`MultiHeadAttention`.

    Examples
    --------
    A block of the Llama family:

    >>> import tlrt
    >>> s = tlrt.Session("cpu", seed=1)
    >>> block = tlrt.nn.TransformerBlock(s, 8, 4, name="block", causal=True, norm="rms", activation="swiglu", bias=False,
    ...                                  rotary=1e4, kv_heads=2, dim_feedforward=16)
    >>> block(s.rand_normal((2, 5, 8))).shape
    (2, 5, 8)

    Source: Radford et al., Language Models are Unsupervised Multitask Learners, 2019 (the normalisation before);
    Shazeer, arXiv:2002.05202 (gates); torch.nn.TransformerEncoderLayer.
    """

    def __init__(
        self, session: Session, width: int, heads: int, *, name: str, causal: bool = False, dropout: float = 0.0,
        ratio: int = 4, use_flash: bool = True, weight_init: init.Initializer | None = None, kv_heads: int | None = None,
        rotary: float | None = None, window: int | None = None, attention_dropout: float = 0.0, bias: bool | None = None,
        dim_feedforward: int | None = None, norm: str = "layer", eps: float | None = None,
        activation: Callable[[TensorRef], TensorRef] | str = "gelu",
    ) -> None:  # fmt: skip
        if norm not in _NORMS:
            raise refusal(ArgumentError, "TransformerBlock", "norm", repr(norm), "'layer' or 'rms'")
        self.session = session
        kind: Any = _NORMS[norm]
        how = {} if eps is None else {"eps": eps}
        self.norm1 = kind(session, width, name=f"{name}.norm1", **how)
        self.attention = MultiHeadAttention(
            session, width, heads, name=f"{name}.attention", causal=causal, use_flash=use_flash, weight_init=weight_init,
            kv_heads=kv_heads, bias=bool(bias), rotary=rotary, window=window, dropout=attention_dropout,
        )  # fmt: skip
        self.norm2 = kind(session, width, name=f"{name}.norm2", **how)
        inner = ratio * width if dim_feedforward is None else dim_feedforward
        chosen, gated = (
            _ACTIVATIONS.get(activation, (activation, False)) if isinstance(activation, str) else (activation, False)
        )
        self.activation = getattr(session, chosen) if isinstance(chosen, str) else chosen

        def product(part: str, inputs: int, outputs: int) -> Linear:
            with_bias = bias is not False
            return Linear(session, inputs, outputs, name=f"{name}.{part}", bias=with_bias, weight_init=weight_init)

        self.gate = product("gate", width, inner) if gated else None
        self.up, self.down = product("up", width, inner), product("down", inner, width)
        self.dropout = Dropout(dropout)

    def __call__(self, x: TensorRef, *, training: bool = False, cache: KeyValueCache | None = None) -> TensorRef:
        s = self.session
        y = self.attention(self.norm1(x), training=training, cache=cache)
        x = s.add(x, self.dropout(y, training=training))
        y = self.norm2(x)
        y = self.activation(self.up(y)) if self.gate is None else s.mul(self.activation(self.gate(y)), self.up(y))
        return s.add(x, self.dropout(self.down(y), training=training))
