#!/bin/sh
# Surprise: EmbeddingBag(scale_grad_by_freq=True) divides gradients by counts of other words, on a CPU and without an error: those of
# the third word of a batch and of later ones. Of the words 0, 2, 2 and 3 word 3, which is there once, has the gradient 1/2.
#
# Natural guess: every word is divided by how often it is there itself, as Embedding(scale_grad_by_freq=True) does it, so that each of
# the three has the gradient 1.
#
# PyTorch 2.13.0, CPU; 2.11.0 and 2.12.0 do it, too, and 2.14.1 does not. Python 3.11; 2026-11-29.
set -eu
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m pip install --quiet --no-cache-dir --target "$folder" torch==2.13.0 numpy==2.4.6
cd "$folder"
PYTHONPATH=$folder python3 - <<'PROGRAM'
import torch

words, beginnings = torch.tensor([0, 2, 2, 3]), torch.tensor([0])
found = {}
for name, arguments in {"Embedding": (words,), "EmbeddingBag": (words, beginnings)}.items():
    more = {"mode": "sum"} if name == "EmbeddingBag" else {}
    layer = getattr(torch.nn, name)(4, 1, scale_grad_by_freq=True, **more)
    layer(*arguments).sum().backward()
    found[name] = layer.weight.grad.flatten().tolist()
    print(f"{name}: gradients of the words {found[name]}")
assert found["Embedding"] == [1, 0, 1, 1]
assert found["EmbeddingBag"] == [1, 0, 1, 0.5], "the behaviour has changed"
PROGRAM
