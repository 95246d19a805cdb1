"""The model of examples.char_gpt in PyTorch, trained from the same weights on the same batches, for its loss curve."""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt

from examples.common import Program, Settings, progress


def check(settings: Settings, given: argparse.Namespace) -> None:
    """Raises SystemExit if PyTorch's model cannot run, before anything is trained."""
    if settings["dropout"]:
        raise SystemExit(f"--peer torch: dropout: got {settings['dropout']}, expected 0 (--set dropout=0)")
    if given.resume or given.stop_at:
        raise SystemExit("--peer torch: got --resume or --stop-at, expected a run from the first step to the last")
    try:
        import torch  # noqa: F401
    except ImportError:
        raise SystemExit("--peer torch: PyTorch is not installed: pip install torch") from None


class Peer:
    """The model in PyTorch, with the same initial weights, in float32 without TF32. Model and loss are one function, which
    `wrap` may compile."""

    def __init__(
        self,
        program: Program,
        settings: Settings,
        device: str,
        wrap: Callable[[Callable[..., Any]], Callable[..., Any]] = lambda loss: loss,
    ) -> None:
        import torch

        initial: dict[str, npt.NDArray[Any]] = program.kept["initial"]
        self.torch, self.program, self.text, self.settings = torch, program, program.kept["text"], settings
        self.device = torch.device(device)
        self.loss = wrap(self._loss)
        self.weights = {
            name: torch.tensor(np.asarray(w, np.float32), device=self.device, requires_grad=True)
            for name, w in initial.items()
        }
        self.optimizer = torch.optim.AdamW(
            self.weights.values(), lr=settings["rate"], betas=(0.9, 0.99), eps=1e-8, weight_decay=settings["decay"]
        )

    def step(self, k: int, seed: int) -> Any:
        """Step k on the same batch as tlrt's step k; its loss, on the device."""
        torch, settings = self.torch, self.settings
        batch = self.text.batch(settings["batch"], settings["context"], seed, k)
        x, y = (torch.from_numpy(a.astype(np.int64)).to(self.device) for a in batch)
        for group in self.optimizer.param_groups:
            group["lr"] = self.program.rate(k)
        loss = self.loss(x, y)
        self.optimizer.zero_grad(set_to_none=True)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(list(self.weights.values()), self.program.clip)
        self.optimizer.step()
        return loss.detach()

    def _loss(self, x: Any, y: Any) -> Any:
        return self.torch.nn.functional.cross_entropy(self.logits(x).flatten(0, 1), y.flatten())

    def logits(self, x: Any) -> Any:
        """Logits of the next character: numbers (batch, n) to (batch, n, characters)."""
        weights, functional, heads = self.weights, self.torch.nn.functional, self.settings["heads"]

        def norm(x: Any, name: str) -> Any:
            return functional.layer_norm(x, x.shape[-1:], weights[f"{name}.weight"], weights[f"{name}.bias"], 1e-5)

        def linear(x: Any, name: str) -> Any:
            return functional.linear(x, weights[f"{name}.weight"], weights.get(f"{name}.bias"))

        def split(x: Any) -> Any:
            return x.view(*x.shape[:2], heads, -1).transpose(1, 2)

        h = weights["tokens.weight"][x] + weights["positions"][: x.shape[1]]
        for i in range(self.settings["layers"]):
            block = f"block{i}"
            y = norm(h, f"{block}.norm1")
            q, k, v = (split(y @ weights[f"{block}.attention.{part}"]) for part in ("query", "key", "value"))
            y = functional.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2).reshape(h.shape)
            h = h + y @ weights[f"{block}.attention.out"]
            y = functional.gelu(linear(norm(h, f"{block}.norm2"), f"{block}.up"), approximate="tanh")
            h = h + linear(y, f"{block}.down")
        return linear(norm(h, "norm"), "head")


def train(program: Program, settings: Settings, given: argparse.Namespace) -> dict[str, Any]:
    """The losses of every step, and the time they took."""
    import torch

    if given.threads:
        torch.set_num_threads(given.threads)
    peer = Peer(program, settings, given.device if given.device.startswith("cuda") else "cpu")
    losses = []
    started = time.perf_counter()
    with progress(0, settings["steps"], given) as show:
        for step in range(settings["steps"]):
            losses.append(peer.step(step, given.seed))
            if (step + 1) % 50 == 0 or step + 1 == settings["steps"]:
                show(step + 1, float(losses[-1]))
    values = torch.stack(losses).cpu().numpy().astype(np.float64)
    seconds = time.perf_counter() - started
    return {
        "version": torch.__version__, "final_loss": float(values[-10:].mean()), "wall_seconds": round(seconds, 3),
        "steps_per_second": round(settings["steps"] / seconds, 3), "losses": values.tolist(),
    }  # fmt: skip
