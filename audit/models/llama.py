"""A language model of the Llama family: RMS norms, rotary positions, grouped heads, SwiGLU, and generation with a cache."""

from dataclasses import dataclass
from typing import Any

import numpy as np

from audit.models.batches import Batch, labels
from tlrt import Session, nn
from tlrt.tensor import TensorRef


@dataclass(frozen=True)
class Size:
    """Vocabulary, width, heads of queries and of keys, layers, the perceptron's width, and the batch."""

    tokens: int = 96
    width: int = 64
    heads: int = 8
    kv_heads: int = 2
    layers: int = 2
    hidden: int = 160
    batch: int = 2
    length: int = 24
    base: float = 10000.0


OPTIMIZER = "AdamW", {"lr": 1e-3, "weight_decay": 0.1}
SIZES = {"small": Size(11, 8, 4, 2, 1, 12, 1, 5), "default": Size(), "large": Size(1000, 256, 8, 2, 4, 688, 2, 64)}


class Attention(nn.Layer):
    """Causal attention whose heads of queries share heads of keys; positions turn the halves of queries and keys."""

    def __init__(self, s: Session, size: Size, name: str) -> None:
        self.session, self.size, self.d = s, size, size.width // size.heads
        keys = size.kv_heads * self.d
        self.q_proj = nn.Linear(s, size.width, size.width, bias=False, name=f"{name}.q_proj")
        self.k_proj = nn.Linear(s, size.width, keys, bias=False, name=f"{name}.k_proj")
        self.v_proj = nn.Linear(s, size.width, keys, bias=False, name=f"{name}.v_proj")
        self.o_proj = nn.Linear(s, size.width, size.width, bias=False, name=f"{name}.o_proj")

    def __call__(self, x: TensorRef, cache: nn.KeyValueCache | None = None, *, training: bool = False) -> TensorRef:
        s = self.session
        batch, n, width = x.shape
        q, k, v = (
            f(x).reshape((batch, n, -1, self.d)).permute((0, 2, 1, 3)) for f in (self.q_proj, self.k_proj, self.v_proj)
        )
        start = 0 if cache is None else len(cache)
        q, k = (s.rotary(y, self.size.base, start, halves=True) for y in (q, k))
        if cache is not None:
            k, v = cache.append(k, v)
        y = s.scaled_dot_product_attention(q, k, v, causal=True, offset="end")
        return self.o_proj(y.permute((0, 2, 1, 3)).reshape((batch, n, width)))


class Block(nn.Layer):
    """Attention and a gated perceptron, each normalised before and added to what came in."""

    def __init__(self, s: Session, size: Size, name: str) -> None:
        self.input_layernorm = nn.RMSNorm(s, size.width, eps=1e-6, name=f"{name}.input_layernorm")
        self.self_attn = Attention(s, size, f"{name}.self_attn")
        self.post_attention_layernorm = nn.RMSNorm(s, size.width, eps=1e-6, name=f"{name}.post_attention_layernorm")
        self.gate_proj = nn.Linear(s, size.width, size.hidden, bias=False, name=f"{name}.gate_proj")
        self.up_proj = nn.Linear(s, size.width, size.hidden, bias=False, name=f"{name}.up_proj")
        self.down_proj = nn.Linear(s, size.hidden, size.width, bias=False, name=f"{name}.down_proj")

    def __call__(self, x: TensorRef, cache: nn.KeyValueCache | None = None, *, training: bool = False) -> TensorRef:
        x = x + self.self_attn(self.input_layernorm(x), cache)
        y = self.post_attention_layernorm(x)
        return x + self.down_proj(self.gate_proj(y).silu() * self.up_proj(y))


class Llama(nn.Layer):
    """Embedded tokens, blocks, a norm, and logits of the next token."""

    def __init__(self, s: Session, size: Size) -> None:
        self.session, self.size = s, size
        self.embed_tokens = nn.Embedding(s, size.tokens, size.width, name="embed_tokens")
        self.layers = [Block(s, size, f"layers.{i}") for i in range(size.layers)]
        self.norm = nn.RMSNorm(s, size.width, eps=1e-6, name="norm")
        self.lm_head = nn.Linear(s, size.width, size.tokens, bias=False, name="lm_head")

    def __call__(self, tokens: Any, caches: Any = None, *, training: bool = False) -> TensorRef:
        x = self.embed_tokens(tokens)
        for i, layer in enumerate(self.layers):
            x = layer(x, None if caches is None else caches[i])
        return self.lm_head(self.norm(x))

    def loss(self, tokens: Any) -> TensorRef:
        return self.session.cross_entropy(self(tokens[:, :-1]), tokens[:, 1:])

    def generate(self, prompt: Any, count: int) -> tuple[Any, TensorRef]:
        """`prompt` and the likeliest `count` tokens after it, one by one, and the logits of every position but the last."""
        caches = [nn.KeyValueCache(self.session) for _ in self.layers]
        tokens, logits = prompt, [self(prompt, caches)]
        for _ in range(count):
            tokens = np.concatenate([tokens, logits[-1][:, -1:].numpy().argmax(-1)], axis=1)
            logits.append(self(tokens[:, -1:], caches))
        for cache in caches:
            cache.clear()
        return tokens, self.session.concat(logits, axis=1)

    def evaluate(self, tokens: Any) -> dict[str, Any]:
        """Logits of generation token by token, and what they differ by from those of all tokens at once."""
        made, logits = self.generate(tokens[:, :3], self.size.length - 3)
        return {"tokens": made, "logits": logits, "cached - full": logits - self(made)}


MODEL = Llama


def batch(rng: np.random.Generator, size: Size) -> Batch:
    return (labels(rng, size.tokens, size.batch, size.length + 1),)


def twin(size: Size) -> Any:
    """The model in PyTorch, whose generation has no cache."""
    import torch
    from torch import nn
    from torch.nn import functional as F

    def turn(x: Any) -> Any:
        """The rotary encoding as LlamaRotaryEmbedding and rotate_half have it."""
        half = x.shape[-1] // 2
        places, pairs = (torch.arange(n, dtype=x.dtype) for n in (x.shape[2], half))
        angle = torch.outer(places, size.base ** (-pairs / half))
        cos, sin = (torch.cat([f(angle)] * 2, dim=-1) for f in (torch.cos, torch.sin))
        return x * cos + torch.cat((-x[..., half:], x[..., :half]), dim=-1) * sin

    class Attention(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            keys = size.kv_heads * (size.width // size.heads)
            self.q_proj = nn.Linear(size.width, size.width, bias=False)
            self.k_proj = nn.Linear(size.width, keys, bias=False)
            self.v_proj = nn.Linear(size.width, keys, bias=False)
            self.o_proj = nn.Linear(size.width, size.width, bias=False)

        def forward(self, x: Any) -> Any:
            batch, n, width = x.shape
            q, k, v = (
                f(x).view(batch, n, -1, width // size.heads).transpose(1, 2)
                for f in (self.q_proj, self.k_proj, self.v_proj)
            )
            y = F.scaled_dot_product_attention(turn(q), turn(k), v, is_causal=True, enable_gqa=True)
            return self.o_proj(y.transpose(1, 2).reshape(batch, n, width))

    class Block(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.input_layernorm = nn.RMSNorm(size.width, eps=1e-6)
            self.self_attn = Attention()
            self.post_attention_layernorm = nn.RMSNorm(size.width, eps=1e-6)
            self.gate_proj = nn.Linear(size.width, size.hidden, bias=False)
            self.up_proj = nn.Linear(size.width, size.hidden, bias=False)
            self.down_proj = nn.Linear(size.hidden, size.width, bias=False)

        def forward(self, x: Any) -> Any:
            x = x + self.self_attn(self.input_layernorm(x))
            y = self.post_attention_layernorm(x)
            return x + self.down_proj(F.silu(self.gate_proj(y)) * self.up_proj(y))

    class Llama(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.embed_tokens = nn.Embedding(size.tokens, size.width)
            self.layers = nn.ModuleList(Block() for _ in range(size.layers))
            self.norm = nn.RMSNorm(size.width, eps=1e-6)
            self.lm_head = nn.Linear(size.width, size.tokens, bias=False)

        def forward(self, tokens: Any) -> Any:
            x = self.embed_tokens(tokens)
            for layer in self.layers:
                x = layer(x)
            return self.lm_head(self.norm(x))

        def loss(self, tokens: Any) -> Any:
            return F.cross_entropy(self(tokens[:, :-1]).flatten(0, 1), tokens[:, 1:].flatten())

        def evaluate(self, tokens: Any) -> dict[str, Any]:
            made = tokens[:, :3]
            for _ in range(size.length - 3):
                made = torch.cat([made, self(made)[:, -1:].argmax(-1)], dim=1)
            logits = self(made)
            return {"tokens": made, "logits": logits, "cached - full": torch.zeros_like(logits)}

    return Llama()
