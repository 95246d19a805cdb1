"""Self-attention and the transformer's block."""

from tlrt.errors import ArgumentError, refusal
from tlrt.nn import init
from tlrt.nn.layer import Dropout, Layer, require_sizes
from tlrt.nn.linear import LayerNorm, Linear
from tlrt.session import Session
from tlrt.tensor import TensorRef

__all__ = ["MultiHeadAttention", "TransformerBlock"]


class MultiHeadAttention(Layer):
    """Self-attention of several heads, without biases.

    y = concat_h(softmax(Q_h·K_hᵀ/√d)·V_h)·Wo with Q, K, V = x·Wq, x·Wk, x·Wv and d = width/heads

    x (batch, n, width), or (n, width), to the same shape; NAME.query, NAME.key, NAME.value and NAME.out (width, width), inputs
    first, start Xavier uniform. `causal` blocks later positions exactly. `use_flash` picks the fused operation or the one
    composed from products and a softmax, equal within the bound. Raises ArgumentError unless heads divides width.
    Source: Vaswani et al., arXiv:1706.03762."""

    def __init__(
        self, session: Session, width: int, heads: int, *, name: str, causal: bool = False, use_flash: bool = True,
        weight_init: init.Initializer | None = None,
    ) -> None:  # fmt: skip
        require_sizes(self, width=width, heads=heads)
        if heads < 1 or width % heads:
            raise refusal(ArgumentError, "MultiHeadAttention", "heads", heads, f"a divisor of {width}")
        self.session, self.heads, self.causal, self.use_flash = session, heads, causal, use_flash
        weights = (init.initial_value(weight_init, init.xavier_uniform, session, (width, width)) for _ in range(4))
        names = (f"{name}.{part}" for part in ("query", "key", "value", "out"))
        self.query, self.key, self.value, self.out = map(session.param, weights, names)

    def __call__(self, x: TensorRef, *, training: bool = False) -> TensorRef:
        s = self.session
        query, key, value, out = (s.use(w) for w in (self.query, self.key, self.value, self.out))
        how = {"use_flash": self.use_flash, "causal": self.causal}
        return s.multi_head_attention(x, query, key, value, out, self.heads, **how)


class TransformerBlock(Layer):
    """Attention and a two-layer perceptron, each normalised before and added to what came in.

    x ← x + dropout(attention(norm1(x))); x ← x + dropout(down(gelu(up(norm2(x)))))

    x (batch, n, width), or (n, width), to the same shape; NAME.norm1, NAME.attention, NAME.norm2, NAME.up (ratio·width outputs),
    NAME.down. gelu is the tanh form. Errors as its layers. Source: Radford et al., Language Models are Unsupervised
    Multitask Learners, 2019 (the normalisation before)."""

    def __init__(
        self, session: Session, width: int, heads: int, *, name: str, causal: bool = False, dropout: float = 0.0,
        ratio: int = 4, use_flash: bool = True, weight_init: init.Initializer | None = None,
    ) -> None:  # fmt: skip
        self.session = session
        self.norm1 = LayerNorm(session, width, name=f"{name}.norm1")
        self.attention = MultiHeadAttention(
            session, width, heads, name=f"{name}.attention", causal=causal, use_flash=use_flash, weight_init=weight_init
        )
        self.norm2 = LayerNorm(session, width, name=f"{name}.norm2")
        self.up = Linear(session, width, ratio * width, name=f"{name}.up", weight_init=weight_init)
        self.down = Linear(session, ratio * width, width, name=f"{name}.down", weight_init=weight_init)
        self.dropout = Dropout(dropout)

    def __call__(self, x: TensorRef, *, training: bool = False) -> TensorRef:
        s = self.session
        x = s.add(x, self.dropout(self.attention(self.norm1(x)), training=training))
        return s.add(x, self.dropout(self.down(s.gelu(self.up(self.norm2(x)))), training=training))
