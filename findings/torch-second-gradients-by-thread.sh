#!/bin/sh
# Surprise: a gradient of a gradient has other bits where the first gradient was taken in another thread, and those bits depend on how
# many operations that thread had recorded before. Nodes are numbered by a counter of each thread, and a backward pass adds the
# parts of a gradient in the order of these numbers. On a GPU every backward pass runs in a thread of its own, so the bits differ from
# a CPU's and from those of the same step in a process that has done less, as after a restart from a checkpoint.
# torch.autograd.set_multithreading_enabled(False) numbers all in the calling thread.
#
# Natural guess: the order of additions follows from the graph, whichever thread records it.
#
# PyTorch 2.14.1, CPU; Python 3.11; 2026-11-30.
set -eu
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m pip install --quiet --no-cache-dir --target "$folder" torch==2.14.1 numpy==2.4.6
cd "$folder"
PYTHONPATH=$folder python3 - <<'PROGRAM'
import threading

import torch


def energy(y, w):
    return torch.tanh(y @ w).square().sum() + (y * w).sin().sum()


def second_gradient(earlier):
    """Of a descent of three steps; a thread that has recorded `earlier` operations takes the first gradients."""
    drawn = torch.Generator().manual_seed(0)
    w = torch.randn(32, 32, generator=drawn).div(8).requires_grad_()
    y = torch.randn(32, 32, generator=drawn).requires_grad_()

    def first_gradient(value, found):
        unrelated = y
        for _ in range(earlier):
            unrelated = unrelated * 1.0
        found += torch.autograd.grad(value, y, create_graph=True)

    for _ in range(3):
        found = []
        thread = threading.Thread(target=first_gradient, args=(energy(y, w), found))
        thread.start()
        thread.join()
        y = y - 0.1 * found[0]
    (y.square().sum() + energy(y, w)).backward()
    return w.grad


few, many = second_gradient(0), second_gradient(100_000)
print(f"{int((few != many).sum())} of {few.numel()} elements have other bits, by at most {float((few - many).abs().max()):.2g}")
assert torch.equal(few, second_gradient(0)) and torch.equal(many, second_gradient(100_000))
assert not torch.equal(few, many), "the behaviour has changed"
PROGRAM
