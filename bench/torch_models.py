"""``python -m bench.torch_models``: unmodified models under :func:`tlrt.torch.reproducible`, beside plain PyTorch.

Weights and inputs are drawn by NumPy from a fixed seed, so that they are the same everywhere. For each model, device and batch it
prints the time of a training step (forward and backward) beside plain PyTorch's in the same run, medians of pairs; on a GPU also
that of both in a CUDA graph, and peak memory; SHA-256 of logits and gradients; and what was left to PyTorch. The exit status is 1
where devices, or a graph, give other bits, or where anything is left.
"""

import argparse
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from importlib.util import find_spec
from pathlib import Path
from typing import Any
from unittest import mock

from bench.torch_zoo import TIMED, build, has_packages, hashes, step, write_rows
from tlrt._terminal import Progress, format_table

#: seconds that the timing of a row may take
SECONDS = 1.5
HEAD = (
    "model",
    "device",
    "batch",
    "ms",
    "PyTorch",
    "times faster",
    "in a graph",
    "memory",
    "logits",
    "gradients",
    "left",
)


def _paired(ours: Callable[[], Any], plain: Callable[[], Any], device: str) -> tuple[float, float, float]:
    """Median milliseconds of both, and the median ratio of a plain step to the one of ours beside it."""
    import torch

    def timed(run: Callable[[], Any]) -> float:
        start = time.perf_counter()
        run()
        if device != "cpu":
            torch.cuda.synchronize()
        return (time.perf_counter() - start) * 1e3

    pairs: list[tuple[float, float]] = []
    for run in (ours, plain):
        timed(run)
    end = time.monotonic() + SECONDS
    while len(pairs) < 3 or (time.monotonic() < end and len(pairs) < 50):
        pairs.append((timed(ours), timed(plain)))
    a, b = (statistics.median(p[i] for p in pairs) for i in (0, 1))
    return a, b, statistics.median(q / p for p, q in pairs)


def _captured(run: Callable[[], Any]) -> tuple[Callable[[], None], Any]:
    """A CUDA graph of a step, and what the step returned in it."""
    import torch

    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        for _ in range(2):
            run()
    torch.cuda.current_stream().wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    torch.manual_seed(0)
    with torch.cuda.graph(graph):
        found = run()
    return graph.replay, found


def _as_if_captured() -> AbstractContextManager[Any]:
    """Models of transformers call other operators while a stream is captured: the same ones without a capture."""
    if find_spec("transformers") is None:
        return nullcontext()
    return mock.patch("transformers.utils.import_utils.is_cuda_stream_capturing", return_value=True)


def measure(name: str, device: str, batch: int, graph: bool) -> dict[str, Any]:
    """A row of the table."""
    import torch

    import tlrt.torch

    model, inputs = build(name, batch)
    model, inputs = model.to(device), {k: v.to(device) for k, v in inputs.items()}
    buffers = {n: b.clone() for n, b in model.named_buffers()}

    def plain() -> Any:
        return step(model, inputs)

    def ours() -> Any:
        with tlrt.torch.reproducible():
            return step(model, inputs)

    def again() -> None:
        with torch.no_grad():
            for n, b in model.named_buffers():
                b.copy_(buffers[n])

    with tlrt.torch.reproducible() as report:
        logits = step(model, inputs)
    row: dict[str, Any] = {
        "model": name, "device": device, "batch": batch, **hashes(model, logits), "coverage": report.coverage,
        "left": list(report.left), "parameters": sum(p.numel() for p in model.parameters()),
    }  # fmt: skip
    del logits
    row["ms"], row["plain_ms"], row["ratio"] = _paired(ours, plain, device)
    if device != "cpu":
        peaks = []
        for run in (ours, plain):
            model.zero_grad(set_to_none=True)
            torch.cuda.empty_cache()
            torch.cuda.reset_peak_memory_stats()
            run()
            peaks.append(torch.cuda.max_memory_allocated())
        row["memory"] = peaks[0] / peaks[1]
    if graph and device != "cpu":
        again()
        with _as_if_captured(), tlrt.torch.reproducible():
            logits = step(model, inputs)
        expected = hashes(model, logits)
        del logits  # and with it the nodes that belong to another stream than the one that is captured
        again()
        mine, logits = _captured(ours)
        again()
        mine()
        torch.cuda.synchronize()
        row["graph_same"] = hashes(model, logits) == expected
        theirs, _ = _captured(plain)
        row["graph_ms"], row["graph_plain_ms"], row["graph_ratio"] = _paired(mine, theirs, device)
    return row


def _line(r: Mapping[str, Any]) -> tuple[str, ...]:
    graph = f"{r['graph_ratio']:.2f}{'' if r['graph_same'] else ' other bits'}" if "graph_ratio" in r else ""
    return (r["model"], r["device"], str(r["batch"]), f"{r['ms']:.3g}", f"{r['plain_ms']:.3g}", f"{r['ratio']:.2f}", graph,
            f"{r['memory']:.2f}" if "memory" in r else "", r["logits"][:8], r["gradients"][:8], " ".join(r["left"]))  # fmt: skip


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m bench.torch_models", description=(__doc__ or "").split("\n\n")[0])
    parser.add_argument("--models", default=",".join(TIMED), metavar="NAMES", help=f"of {', '.join(TIMED)}")
    parser.add_argument("--devices", default="cpu", metavar="NAMES", help="PyTorch's names: cpu,cuda:0 (cpu)")
    parser.add_argument("--batches", default="2", metavar="N,…", help="examples in a batch (2)")
    parser.add_argument("--graph", default="8", metavar="N", help="the batch that is also timed in a CUDA graph (8)")
    parser.add_argument("--threads", type=int, metavar="N", help="of PyTorch and of the block, on the CPU")
    parser.add_argument("--json", type=Path, metavar="FILE")
    args = parser.parse_args(argv)
    names = args.models.split(",")
    if unknown := [n for n in names if n not in TIMED]:
        parser.error(f"--models: got {unknown[0]!r}, expected some of {', '.join(TIMED)}")
    if not has_packages():
        return 0
    import torch

    if args.threads:
        torch.set_num_threads(args.threads)
    # both sides compute in float32
    torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = False
    cells = [(n, d, int(b)) for n in names for d in args.devices.split(",") for b in args.batches.split(",")]
    rows, progress = [], Progress(len(cells), "models")
    for name, device, batch in cells:
        try:
            rows.append(measure(name, device, batch, str(batch) == args.graph))
        except Exception as error:  # a model that fails leaves the others their rows
            print(f"{name} on {device}, batch {batch}: {type(error).__name__}: {str(error)[:300]}", flush=True)
        else:
            print("  ".join(_line(rows[-1])), flush=True)
        progress.advance(1, f"{name} on {device}, batch {batch}")
    progress.close()
    print(format_table(HEAD, [_line(r) for r in rows]))
    if args.json is not None:
        write_rows(args.json, ["bench.torch_models", *(argv or [])], args.devices.split(","), rows)
    results: dict[tuple[str, int], set[tuple[str, str]]] = {}
    for r in rows:
        results.setdefault((r["model"], r["batch"]), set()).add((r["logits"], r["gradients"]))
    bad = [f"{n}, batch {b}: {len(found)} different results" for (n, b), found in results.items() if len(found) > 1]
    bad += [f"{r['model']}: the graph gives other bits" for r in rows if not r.get("graph_same", True)]
    bad += [f"{r['model']}: left to PyTorch: {', '.join(r['left'])}" for r in rows if r["left"]]
    print("\n".join(bad) if bad else "nothing failed")
    return int(bool(bad) or len(rows) < len(cells))


if __name__ == "__main__":
    raise SystemExit(main())
