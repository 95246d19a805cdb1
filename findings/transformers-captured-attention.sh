#!/bin/sh
# Surprise: a model with grouped key heads calls other operators while a CUDA graph is captured, or while it is traced, than when it
# simply runs. Eagerly, transformers passes no mask, is_causal=True and enable_gqa=True to scaled_dot_product_attention. Traced, it makes
# a mask and copies each key head for all query heads of its group (repeat_kv). The gradient of a key head is then a sum that another
# operator makes of rounded parts. So a captured training step has other gradients than the eager one, though every operator is
# deterministic; its logits may agree. Here a trace stands for the capture, which needs a GPU: one function (is_tracing) asks for both.
#
# Natural guess: a captured step replays the operators of the eager step, so that deterministic operators give the same bits.
#
# transformers 5.17.0, PyTorch 2.13.0, CPU; Python 3.11; 2026-11-28.
set -eu
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m pip install --quiet --target "$folder" torch==2.13.0 transformers==5.17.0 numpy==2.4.6
cd "$folder"
PYTHONPATH=$folder TRANSFORMERS_VERBOSITY=error python3 -W ignore - <<'PROGRAM'
import torch
from torch.overrides import TorchFunctionMode
from transformers import LlamaConfig, LlamaForCausalLM

config = LlamaConfig(hidden_size=32, intermediate_size=64, num_hidden_layers=1, num_attention_heads=4, num_key_value_heads=2, vocab_size=50)
torch.manual_seed(0)
model = LlamaForCausalLM(config)
ids = torch.arange(12).reshape(1, 12)


class Attention(TorchFunctionMode):
    """Notes how the attention operator is called."""

    def __init__(self):
        super().__init__()
        self.calls = []

    def __torch_function__(self, function, types, args=(), kwargs=None):
        kwargs = kwargs or {}
        if function is torch.nn.functional.scaled_dot_product_attention:
            shapes = [tuple(int(n) for n in t.shape) for t in args[:3]]
            self.calls.append({"keys": shapes[1], "mask": kwargs.get("attn_mask") is not None, "is_causal": bool(kwargs.get("is_causal")),
                               "enable_gqa": bool(kwargs.get("enable_gqa", False))})
        return function(*args, **kwargs)


class Logits(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.model = model

    def forward(self, ids):
        return self.model(input_ids=ids, use_cache=False).logits


with Attention() as eager:
    Logits()(ids)
with Attention() as traced:
    torch.jit.trace(Logits(), ids, check_trace=False)
print("eager: ", eager.calls[0])
print("traced:", traced.calls[0])
assert eager.calls[0] == {"keys": (1, 2, 12, 8), "mask": False, "is_causal": True, "enable_gqa": True}
assert traced.calls[0] == {"keys": (1, 4, 12, 8), "mask": True, "is_causal": False, "enable_gqa": False}
PROGRAM
