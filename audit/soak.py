"""Soak: very many small training steps, over which memory must stay flat.

A perceptron of two layers with dropout trains through the session: forward, backward, AdamW, reset. After a warm-up no step
may ask the driver or the operating system for memory, live bytes and buffers after a step are what they were after every
other, and the process itself does not grow.
"""

import gc
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from tlrt._terminal import Progress, format_table

WARM_UP = 50
#: what the process may grow by over the whole run, in bytes: the allocator's own arenas settle within it, and at 10^6 steps it
#: is 8 bytes a step, less than any object
GROWTH = 8 << 20


def _resident() -> int:
    """Bytes of this process in memory; 0 where the system does not say."""
    try:
        return int(Path("/proc/self/statm").read_text().split()[1]) * 4096
    except (OSError, ValueError, IndexError):
        return 0


def soak(
    device: str, steps: int, *, seed: int = 0, after: Callable[[Any, int], None] | None = None, samples: int = 100
) -> dict[str, Any]:
    """`steps` steps on a device after the warm-up. `after(session, step)` runs after each, for tests of this check."""
    from tlrt import Session, optim
    from tlrt.context import Device

    failures: list[str] = []
    rows: list[dict[str, Any]] = []
    with Device.new(device) as d, Session(d, seed=seed) as s:
        rng = np.random.default_rng(seed)
        w1, b1 = s.param(rng.standard_normal((16, 8)) * 0.3, "w1"), s.param(np.zeros(16), "b1")
        w2, b2 = s.param(rng.standard_normal((3, 16)) * 0.3, "w2"), s.param(np.zeros(3), "b2")
        optimizer = optim.AdamW([w1, b1, w2, b2], lr=1e-3)
        data = [(rng.standard_normal((4, 8)).astype(np.float32), rng.integers(0, 3, 4)) for _ in range(16)]
        loss_value = 0.0

        def step(i: int) -> None:
            nonlocal loss_value
            x, labels = data[i % len(data)]
            hidden = s.dropout(s.tanh(s.linear(s.use(w1), s.use(b1), s.const(x))), 0.1)
            loss = s.cross_entropy(s.linear(s.use(w2), s.use(b2), hidden), labels)
            s.backward(loss)
            optimizer.step()
            if i % 64 == 0:
                loss_value = loss.item()
            s.reset()
            if after is not None:
                after(s, i)

        for i in range(WARM_UP):
            step(i)
        gc.collect()
        first, resident, start = d.memory(), _resident(), time.monotonic()
        progress, every = Progress(float(steps), "steps"), max(1, steps // samples)
        for i in range(steps):
            step(WARM_UP + i)
            memory = d.memory()
            wrong = [
                f"{name} {getattr(memory, name)}, {getattr(first, name)} after the warm-up"
                for name in ("live_bytes", "live_buffers", "driver_allocations")
                if getattr(memory, name) != getattr(first, name)
            ]
            if wrong:
                failures.append(f"step {i}: {'; '.join(wrong)}")
                if len(failures) >= 5:
                    break
            if i % every == every - 1:
                progress.advance(float(every), "soak")
                rows.append({
                    "step": i + 1, "live_bytes": memory.live_bytes, "live_buffers": memory.live_buffers,
                    "driver_allocations": memory.driver_allocations - first.driver_allocations, "resident": _resident(),
                })  # fmt: skip
        progress.close()
        seconds = time.monotonic() - start
        gc.collect()
        # pages the allocator has touched once stay; growth is what comes after the first tenth of the run
        settled = rows[len(rows) // 10]["resident"] if rows else resident
        growth = _resident() - settled
        if resident and growth > GROWTH:
            failures.append(f"the process grew by {growth} bytes over the last nine tenths, expected at most {GROWTH}")
        if not np.isfinite(loss_value):
            failures.append(f"the loss is {loss_value}")
        optimizer.close()
    return {"device": device, "steps": steps, "seconds": round(seconds, 1),
            "microseconds": round(1e6 * seconds / max(steps, 1), 1), "live_bytes": first.live_bytes,
            "live_buffers": first.live_buffers, "growth": growth, "samples": rows, "failures": failures}  # fmt: skip


def ok(document: Mapping[str, Any]) -> bool:
    """Whether memory stayed flat."""
    return not document["failures"]


def table(document: Mapping[str, Any]) -> str:
    """A dozen samples, and what failed."""
    fields = ("step", "live_bytes", "live_buffers", "driver_allocations", "resident")
    samples = document["samples"]
    picked = samples[:: max(1, len(samples) // 10)]
    text = format_table(fields, [[r[f] for f in fields] for r in picked])
    text += f"\n{document['steps']} steps on {document['device']}, {document['microseconds']} us each; "
    text += f"the process grew by {document['growth']} bytes"
    return text + "".join(f"\nFAIL {f}" for f in document["failures"])
