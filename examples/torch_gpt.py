"""The model of examples.char_gpt in PyTorch, trained from the same weights on the same batches: its peer's loss curve."""

from __future__ import annotations

import argparse
import time
from typing import Any

import numpy as np
import numpy.typing as npt

from examples.char_gpt import CLIP, rate
from examples.common import Settings, progress
from examples.text import Text


def check(settings: Settings, given: argparse.Namespace) -> None:
    """Raises SystemExit, before anything is trained, where the peer cannot run."""
    if settings["dropout"]:
        raise SystemExit(f"--peer torch: dropout: got {settings['dropout']}, expected 0 (--set dropout=0)")
    if given.resume or given.stop_at:
        raise SystemExit("--peer torch: got --resume or --stop-at, expected a run from the first step to the last")
    try:
        import torch  # noqa: F401
    except ImportError:
        raise SystemExit("--peer torch: PyTorch is not installed: pip install torch") from None


def train(
    initial: dict[str, npt.NDArray[Any]], text: Text, settings: Settings, given: argparse.Namespace
) -> dict[str, Any]:
    """The losses of every step, and the time they took; float32 without TF32, PyTorch's default."""
    import torch
    from torch.nn import functional

    if given.threads:
        torch.set_num_threads(given.threads)
    device = torch.device(given.device if given.device.startswith("cuda") else "cpu")
    weights = {
        name: torch.tensor(np.asarray(w, np.float32), device=device, requires_grad=True) for name, w in initial.items()
    }
    optimizer = torch.optim.AdamW(
        weights.values(), lr=settings["rate"], betas=(0.9, 0.99), eps=1e-8, weight_decay=settings["decay"]
    )
    heads, size, length = settings["heads"], settings["batch"], settings["context"]

    def norm(x: Any, name: str) -> Any:
        return functional.layer_norm(x, x.shape[-1:], weights[f"{name}.weight"], weights[f"{name}.bias"], 1e-5)

    def linear(x: Any, name: str) -> Any:
        return functional.linear(x, weights[f"{name}.weight"], weights.get(f"{name}.bias"))

    def split(x: Any) -> Any:
        return x.view(*x.shape[:2], heads, -1).transpose(1, 2)

    def logits(x: Any) -> Any:
        h = weights["tokens.weight"][x] + weights["positions"][: x.shape[1]]
        for i in range(settings["layers"]):
            block = f"block{i}"
            y = norm(h, f"{block}.norm1")
            q, k, v = (split(y @ weights[f"{block}.attention.{part}"]) for part in ("query", "key", "value"))
            y = functional.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2).reshape(h.shape)
            h = h + y @ weights[f"{block}.attention.out"]
            y = functional.gelu(linear(norm(h, f"{block}.norm2"), f"{block}.up"), approximate="tanh")
            h = h + linear(y, f"{block}.down")
        return linear(norm(h, "norm"), "head")

    losses = []
    started = time.perf_counter()
    with progress(0, settings["steps"], given) as show:
        for step in range(settings["steps"]):
            x, y = (torch.from_numpy(a.astype(np.int64)).to(device) for a in text.batch(size, length, given.seed, step))
            for group in optimizer.param_groups:
                group["lr"] = rate(step, settings)
            loss = functional.cross_entropy(logits(x).flatten(0, 1), y.flatten())
            optimizer.zero_grad(set_to_none=True)
            loss.backward()
            torch.nn.utils.clip_grad_norm_(list(weights.values()), CLIP)
            optimizer.step()
            losses.append(loss.detach())
            if (step + 1) % 50 == 0 or step + 1 == settings["steps"]:
                show(step + 1, float(losses[-1]))
    values = torch.stack(losses).cpu().numpy().astype(np.float64)
    seconds = time.perf_counter() - started
    return {
        "version": torch.__version__,
        "final_loss": float(values[-10:].mean()),
        "wall_seconds": round(seconds, 3),
        "steps_per_second": round(settings["steps"] / seconds, 3),
        "losses": values.tolist(),
    }
