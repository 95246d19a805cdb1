"""The runs of one model, and how far they lie apart."""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from importlib import import_module
from typing import Any

import numpy as np

from audit.models.spread import Array, moved_results, rms, share
from tlrt import Session, compare, nn, optim
from tlrt.spec import SpecDevice
from tlrt.tensor import TensorRef

MODELS = ("llama", "resnet", "unet", "fno2d", "lstm")
#: what is compared: a kind and a name
Results = dict[tuple[str, str], Array]


@dataclass
class Program:
    """A model of a size, its initial weights, and the batches of its steps and of the evaluation after them."""

    name: str
    size: str
    steps: int
    module: Any = field(init=False)
    weights: dict[str, Array] = field(init=False)
    batches: list[tuple[Array, ...]] = field(init=False)

    def __post_init__(self) -> None:
        self.module = import_module(f"audit.models.{self.name}")
        self.sizes = self.module.SIZES[self.size]
        with Session("cpu", seed=1) as s:
            self.weights = {p.name: p.numpy() for p in self.module.MODEL(s, self.sizes).parameters()}
        rng = np.random.default_rng(1)
        for name in self.weights:  # so that no bias and no affine map is trivial
            if not name.endswith("running_var"):
                noise = rng.standard_normal(self.weights[name].shape)
                self.weights[name] = (self.weights[name] + 0.05 * noise).astype(np.float32)
        self.batches = [self.module.batch(rng, self.sizes) for _ in range(self.steps + 1)]

    def model(self, s: Session) -> nn.Layer:
        """The model of tlrt with the initial weights."""
        made: nn.Layer = self.module.MODEL(s, self.sizes)
        for p in made.parameters():
            p.set(self.weights[p.name])
        return made

    def run(self, device: str | SpecDevice) -> Results:
        """All steps and the evaluation on a device."""
        found: Results = {}
        kind, settings = self.module.OPTIMIZER
        with Session(device, seed=1) as s:
            model: Any = self.model(s)
            losses = []
            optimizer = getattr(optim, kind)(model.parameters(), **settings)
            for k, batch in enumerate(self.batches[:-1]):
                loss = model.loss(*batch)
                gradients = s.backward(loss)
                if k == 0:
                    found["loss", ""] = loss.numpy()
                    found.update({("gradients", p.name): g.numpy() for p, g in gradients.items()})
                optimizer.step()
                losses.append(loss.item())
                s.reset()
            found["losses", ""] = np.array(losses)
            found.update({("parameters", p.name): p.numpy() for p in model.parameters()})
            with s.no_grad():
                made = model.evaluate(*self.batches[-1])
            found.update({("evaluation", n): np.asarray(v) for n, v in made.items()})
            optimizer.close()
        return found

    def run_torch(self, kind: str) -> Results:
        """The same in PyTorch, in "float32" or "float64"."""
        import torch

        found: Results = {}
        losses = []
        dtype, (how, settings) = getattr(torch, kind), self.module.OPTIMIZER
        model = self.module.twin(self.sizes).to(dtype)
        theirs = model.state_dict()
        extra = set(theirs) ^ set(self.weights)
        if wrong := {n for n in extra if not n.endswith("num_batches_tracked")}:
            raise ValueError(f"{self.name}: only one of the two models has {', '.join(sorted(wrong))}")
        model.load_state_dict({n: torch.tensor(w) for n, w in self.weights.items()}, strict=False)
        optimizer = getattr(torch.optim, how)(model.parameters(), **settings)

        def tensors(batch: tuple[Array, ...]) -> list[Any]:
            return [torch.tensor(a, dtype=dtype if a.dtype.kind == "f" else torch.int64) for a in batch]

        for k, batch in enumerate(self.batches[:-1]):
            loss = model.loss(*tensors(batch))
            optimizer.zero_grad()
            loss.backward()
            if k == 0:
                found["loss", ""] = loss.detach().numpy()
                found.update({("gradients", n): p.grad.numpy().copy() for n, p in model.named_parameters()})
            optimizer.step()
            losses.append(loss.item())
        found["losses", ""] = np.array(losses)
        for name, value in model.state_dict().items():
            if name in self.weights:
                found["parameters", name] = value.numpy()
        model.eval()
        with torch.no_grad():
            made = model.evaluate(*tensors(self.batches[-1]))
        found.update({("evaluation", n): np.asarray(v) for n, v in made.items()})
        return found

    def first_step(self, s: Session) -> TensorRef:
        """The loss of the first step, for :func:`tlrt.compare`."""
        model: Any = self.model(s)
        loss: TensorRef = model.loss(*self.batches[0])
        return loss


def spreads(program: Program, exact: Results, runs: int) -> dict[tuple[str, str], float]:
    """How far results move, as root mean squares over moved runs."""
    squares = dict.fromkeys(exact, 0.0)
    for seed in range(runs):
        with moved_results(seed):
            found = program.run("spec")
        for key, value in exact.items():
            squares[key] += rms(found[key] - value) ** 2 / runs
    return {key: float(np.sqrt(total)) for key, total in squares.items()}


def shares(
    got: Results, truth: Results, spread: dict[tuple[str, str], float], unit: float = 1.0
) -> dict[str, tuple[float, str]]:
    """For each kind the worst error as a share of its bound, and whose it is."""
    if got.keys() != truth.keys():
        missing = sorted("/".join(key) for key in got.keys() ^ truth.keys())
        raise ValueError(f"only one of the two runs gives {', '.join(missing)}")
    worst: dict[str, tuple[float, str]] = {}
    for (kind, name), value in truth.items():
        mine = got[kind, name]
        if mine.shape != value.shape:
            raise ValueError(f"{kind} {name}: shapes {mine.shape} and {value.shape}")
        found = share(rms(mine.astype(np.float64) - value), unit * spread[kind, name])
        worst[kind] = max(worst.get(kind, (-1.0, "")), (found, name), key=lambda p: np.inf if np.isnan(p[0]) else p[0])
    return worst


def compare_model(
    name: str, size: str, steps: int, runs: int, device: str = "cpu", torch: bool = True
) -> dict[str, Any]:
    """A document of one model: the shares, and what failed. Without PyTorch the truth is the program in float64."""
    start = time.monotonic()
    program = Program(name, size, steps)
    exact = program.run(SpecDevice(np.float64))
    truth = program.run_torch("float64") if torch else exact
    spread = spreads(program, exact, runs)
    got = program.run(device)
    columns = {"tlrt": shares(got, truth, spread)}
    if torch:
        columns["program"] = shares(exact, truth, spread, 2.0**-28)
        columns["torch"] = shares(program.run_torch("float32"), truth, spread)
    nodes = compare(program.first_step, (device,))
    failures = [
        f"{column}: {kind} {whose}: {value:.3g} of its bound"
        for column, kinds in columns.items()
        if column != "torch"
        for kind, (value, whose) in kinds.items()
        if not value <= 1
    ] + [str(f) for f in nodes.failures]
    return {
        "model": name, "size": size, "steps": steps, "runs": runs, "device": device,
        "weights": sum(w.size for w in program.weights.values()), "nodes": len(nodes.rows),
        "node": max(max(r.forward or 0.0, r.backward or 0.0) for r in nodes.rows),
        "shares": {c: {k: {"share": v, "of": whose} for k, (v, whose) in s.items()} for c, s in columns.items()},
        "difference": float(np.abs(got["losses", ""] - truth["losses", ""]).max()),
        "losses": truth["losses", ""].tolist(), "failures": failures,
        "seconds": round(time.monotonic() - start, 1),
    }  # fmt: skip
