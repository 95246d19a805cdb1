"""``python -m bench.torch_bits``: unmodified models under strict :func:`tlrt.torch.reproducible`.

For each model of bench.torch_zoo it prints SHA-256 of logits and gradients of a training step, and of the weights after
``--steps`` of training with dropout, clipped gradients and the default AdamW; whether a sample's logits are the same bits in
batches of every size; and what was left to PyTorch, which strict blocks refuse. ``--json`` writes it, ``--against`` compares with
what another machine wrote. The exit status is 1 where bits differ or a model fails.
"""

import argparse
import json
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from bench.torch_zoo import MODELS, build, digest, has_packages, hashes, outputs, step, write_rows
from tlrt._terminal import Progress, format_table

HEAD = ("model", "device", "logits", "gradients", "weights", "coverage", "batches", "seconds", "left or error")
#: what two devices agree in
HASHES = ("logits", "gradients", "weights")
#: share of elements that dropout leaves out, and the largest norm of the gradients of a step
DROPOUT, NORM = 0.1, 1.0


def _on(device: str, name: str, batch: int, dropout: float = 0.0) -> tuple[Any, dict[str, Any]]:
    model, inputs = build(name, batch, dropout)
    return model.to(device), {k: v.to(device) for k, v in inputs.items()}


def train(name: str, device: str, steps: int, batch: int = 2) -> str:
    """The hash of the weights after steps with dropout, clipped gradients and the default AdamW."""
    import torch

    import tlrt.torch

    model, inputs = _on(device, name, batch, DROPOUT)
    optimizer = torch.optim.AdamW(model.parameters())
    torch.manual_seed(0)
    for _ in range(steps):
        with tlrt.torch.reproducible(strict=True):
            optimizer.zero_grad()
            outputs(model, inputs)[1].backward()
            torch.nn.utils.clip_grad_norm_(model.parameters(), NORM)
            optimizer.step()
    return digest(p for _, p in sorted(model.named_parameters()))


def differing_batches(name: str, device: str, batches: Sequence[int]) -> list[int]:
    """The sizes of batches in which the logits of the first sample are not those of the first size."""
    import torch

    import tlrt.torch

    model, inputs = _on(device, name, max(batches))
    model.eval()
    found = {}
    for size in batches:
        torch.manual_seed(0)
        with tlrt.torch.reproducible(strict=True), torch.no_grad():
            found[size] = digest([outputs(model, {k: v[:size] for k, v in inputs.items()})[0][:1]])
    return [size for size in batches if found[size] != found[batches[0]]]


def measure(name: str, device: str, batches: Sequence[int], steps: int) -> dict[str, Any]:
    """A row of the table."""
    import tlrt.torch

    row: dict[str, Any] = {"model": name, "device": device}
    start = time.monotonic()
    try:
        model, inputs = _on(device, name, 2)
        with tlrt.torch.reproducible(strict=True) as report:
            logits = step(model, inputs)
        row |= hashes(model, logits) | {"coverage": report.coverage, "left": list(report.left)}
        row["finite"] = bool(logits.isfinite().all())
        del model, inputs, logits
        row["other_batches"] = differing_batches(name, device, batches)
        if steps:
            row["weights"] = train(name, device, steps)
    except Exception as error:  # a model that fails leaves the others their rows
        row["error"] = f"{type(error).__name__}: {str(error)[:300]}"
    return row | {"seconds": round(time.monotonic() - start, 1)}


def _line(r: Mapping[str, Any]) -> tuple[str, ...]:
    other = r.get("other_batches")
    batches = "" if other is None else f"other bits in {other}" if other else "same"
    hashed = (r.get(k, "")[:8] for k in HASHES)
    return (r["model"], r["device"], *hashed, f"{r.get('coverage', 0):.4g}", batches, str(r["seconds"]),
            r.get("error") or " ".join(r.get("left", [])))  # fmt: skip


def faults(rows: Sequence[Mapping[str, Any]], against: Mapping[str, Mapping[str, Any]]) -> list[str]:
    """What is not as it should be; `against`: rows of another machine by model, else the first device's are the others'."""
    bad, first = [], dict(against)
    for r in rows:
        name, other = r["model"], first.setdefault(r["model"], r)
        if r.get("error"):
            bad.append(f"{name} on {r['device']}: {r['error']}")
            continue
        if r["left"] or r["coverage"] != 1:
            bad.append(f"{name}: left to PyTorch: {', '.join(r['left'])}")
        if not r["finite"]:
            bad.append(f"{name}: logits that are no finite numbers")
        if r["other_batches"]:
            bad.append(f"{name}: other bits in batches of {r['other_batches']}")
        bad += [f"{name}: {k}: got {r[k][:8]}, expected {other[k][:8]} of {other['device']}"
                for k in HASHES if k in r and k in other and r[k] != other[k]]  # fmt: skip
    return bad


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m bench.torch_bits", description=(__doc__ or "").split("\n\n")[0])
    parser.add_argument("--models", metavar="NAMES", help="of those that --list prints (all)")
    parser.add_argument("--devices", default="cpu", metavar="NAMES", help="PyTorch's names: cpu,cuda:0 (cpu)")
    parser.add_argument("--batches", default="1,4,32", metavar="N,…", help="sizes that a sample stands in (1,4,32)")
    parser.add_argument("--steps", type=int, default=0, metavar="N", help="of training, whose weights are hashed (0)")
    parser.add_argument("--json", type=Path, metavar="FILE")
    parser.add_argument("--against", type=Path, metavar="FILE", help="what --json wrote on another machine")
    parser.add_argument("--list", action="store_true", help="the names of the models")
    args = parser.parse_args(argv)
    if args.list:
        print("\n".join(MODELS))
        return 0
    names = args.models.split(",") if args.models else list(MODELS)
    if unknown := [n for n in names if n not in MODELS]:
        parser.error(f"--models: got {unknown[0]!r}, expected some of those that --list prints")
    if not has_packages():
        return 0
    against = {r["model"]: r for r in json.loads(args.against.read_text())["rows"]} if args.against else {}
    devices, batches = args.devices.split(","), [int(b) for b in args.batches.split(",")]
    cells = [(n, d) for n in names for d in devices]
    rows, progress = [], Progress(len(cells), "models")
    for name, device in cells:
        rows.append(measure(name, device, batches, args.steps))
        print("  ".join(_line(rows[-1])), flush=True)
        progress.advance(1, f"{name} on {device}")
    progress.close()
    print(format_table(HEAD, [_line(r) for r in rows]))
    if args.json is not None:
        write_rows(args.json, ["bench.torch_bits", *(argv or [])], devices, rows)
    bad = faults(rows, against)
    print("\n".join(bad) if bad else "nothing failed")
    return int(bool(bad))


if __name__ == "__main__":
    raise SystemExit(main())
