"""What the tests of ledgers share: a small program, what is planted in it, and how a ledger is forged."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tlrt import Session, _chain, ledger, nn, optim
from tlrt._capture.recorded import uploader
from tlrt.audit import Departure, Report, audit

STEPS = 12
EVERY = 4
KINDS = ("eager", "captured", "groups")
each_kind = pytest.mark.parametrize("kind", KINDS)


class Training:
    """A small model, trained by a ledger's steps. `plant` is called at the begin of each step with what the step works on, as
    `at` says, and may change it."""

    def __init__(
        self, path: Path, kind: str = "eager", plant: Callable[..., None] | None = None, refills: bool = False,
        first: int = 0, **options: Any,
    ) -> None:  # fmt: skip
        self.path, self.kind, self.plant, self.options = path, kind, plant, {"checkpoint_every": EVERY, **options}
        self.total, self.first = STEPS, first
        self.refills = refills  # whether a batch is written into the arrays of the one before

    def __call__(self, s: Session) -> None:
        layer = nn.Linear(s, 6, 3, name="layer")
        scale = s.param(np.ones(3), "scale")
        if self.kind == "groups":
            weights = [{"params": [layer.weight], "lr": 0.05, "weight_decay": 0.1}, {"params": [layer.bias, scale]}]
            optimizer: Any = optim.SGD(weights, lr=0.1, momentum=0.9)
        else:
            optimizer = optim.AdamW([layer.weight, layer.bias, scale], lr=0.1)
        captured: Any = None
        arrays = np.empty((5, 6), np.float32), np.empty(5, np.int64)

        def work(x: Any, labels: Any) -> Any:
            loss = s.cross_entropy(s.dropout(layer(s.const(x)), 0.2).tanh() * scale, labels)
            s.backward(loss)
            optimizer.step()
            return loss

        with ledger.record(self.path, s, optimizer, **self.options) as run:
            for k in run.steps(self.total, self.first):
                rng = np.random.default_rng(k)
                x, labels = rng.standard_normal((5, 6)).astype(np.float32), rng.integers(0, 3, 5)
                if self.refills:
                    arrays[0][...], arrays[1][...] = x, labels
                    x, labels = arrays
                optimizer.lr = 0.1 / (1 + k)
                if self.plant is not None:
                    self.plant(k, s, optimizer, x, labels)
                if self.kind != "captured":
                    work(x, labels)
                    s.reset()
                elif captured is None:
                    captured = s.capture(work, x, labels)
                else:
                    captured(x, labels)
        optimizer.close()


def train(
    path: Path, kind: str = "eager", plant: Any = None, *, seed: int = 3, device: str = "cpu", **options: Any
) -> None:
    with Session(device, seed=seed, math="reproducible") as s:
        Training(path, kind, plant, refills=True, **options)(s)


def check(path: Path, kind: str = "eager", plant: Any = None, **options: Any) -> Report:
    return audit(Training(path, kind, plant), path, **options)


def found(report: Report) -> set[tuple[int | None, str, str]]:
    return {(d.step, d.kind, d.name) for d in report.departures}


def first(report: Report) -> Departure:
    assert not report.ok
    return report.departures[0]


def rewrite(path: Path, change: Callable[[list[dict[str, Any]]], Any], *, chained: bool = True) -> None:
    """Changes a ledger's entries; chained again, as somebody would who knows how."""
    entries = [json.loads(line) for line in path.read_text().splitlines()]
    change(entries)
    lines, previous = [], ""
    for entry in entries:
        if chained:
            line, previous = _chain.line_of({**entry, "previous": previous})
        else:
            line = _chain.encode({k: v for k, v in entry.items() if k != "hash"})[:-1] + f',"hash":"{entry["hash"]}"}}'
        lines.append(line + "\n")
    path.write_text("".join(lines))


def flip(array: np.ndarray, at: int = 0, bit: int = 0) -> np.ndarray:
    bits = array.copy()
    bits.reshape(-1).view(np.uint32)[at] ^= np.uint32(1 << bit)
    return bits


def flip_on_device(buffer: Any, at: int) -> None:
    """A bit that changes in memory, of which nobody is told."""
    assert uploader(buffer)(flip(buffer.numpy(), at)) == 0


def change_lr(k: int, s: Session, optimizer: Any, x: Any, labels: Any) -> None:
    if k == 5:
        optimizer.lr *= 1.0000001


def change_batch(k: int, s: Session, optimizer: Any, x: Any, labels: Any) -> None:
    if k == 5:
        x[2:3] = flip(x[2:3], 3)


def change_label(k: int, s: Session, optimizer: Any, x: Any, labels: Any) -> None:
    if k == 5:
        labels[1] = (labels[1] + 1) % 3


def flip_weight(k: int, s: Session, optimizer: Any, x: Any, labels: Any) -> None:
    if k == 5:
        flip_on_device(s.parameters["layer.weight"].mirror, 4)


def flip_state(k: int, s: Session, optimizer: Any, x: Any, labels: Any) -> None:
    if k == 5:
        flip_on_device(next(b for b in optimizer._buffers() if len(b) == 18), 2)


def draw(k: int, s: Session, optimizer: Any, x: Any, labels: Any) -> None:
    if k == 5:
        s.counter += 1
