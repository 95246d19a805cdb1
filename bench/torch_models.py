"""``python -m bench.torch_models``: unmodified models under :func:`tlrt.torch.reproducible`, beside plain PyTorch.

Weights and inputs are drawn by NumPy from a fixed seed, so that they are the same everywhere. For each model, device and batch it
prints the time of a training step (forward and backward) beside plain PyTorch's in the same run, medians of pairs; on a GPU also
that of both in a CUDA graph, and peak memory; SHA-256 of logits and gradients; and what was left to PyTorch. The exit status is 1
where devices, or a graph, give other bits, or where anything is left.
"""

import argparse
import hashlib
import statistics
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np

from audit.environment import describe_run
from tlrt._terminal import Progress, format_table
from tlrt.verify.documents import format_command, write_document

#: standard deviation of drawn weights, and seconds that the timing of a row may take
SPREAD, SECONDS = 0.02, 1.5
IMAGE = {"x": (3, 224, 224), "labels": (1000,)}


def _vision(name: str) -> Callable[[], tuple[Any, dict[str, Any]]]:
    def build() -> tuple[Any, dict[str, Any]]:
        import torchvision

        return getattr(torchvision.models, name)(weights=None), IMAGE

    return build


def _timm(name: str) -> Callable[[], tuple[Any, dict[str, Any]]]:
    def build() -> tuple[Any, dict[str, Any]]:
        import timm

        return timm.create_model(name, pretrained=False), IMAGE

    return build


def _language(kind: str, head: str, length: int, **options: Any) -> Callable[[], tuple[Any, dict[str, Any]]]:
    def build() -> tuple[Any, dict[str, Any]]:
        import transformers

        config = getattr(transformers, f"{kind}Config")(**options)
        shapes: dict[str, Any] = {"input_ids": (length, config.vocab_size), "labels": (length, config.vocab_size)}
        return getattr(transformers, f"{kind}{head}")(config), shapes

    return build


def _lstm() -> tuple[Any, dict[str, Any]]:
    import torch

    class Model(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.words, self.layers = torch.nn.Embedding(10000, 512), torch.nn.LSTM(512, 512, 2, batch_first=True)
            self.head = torch.nn.Linear(512, 10000)

        def forward(self, x: Any) -> Any:
            return self.head(self.layers(self.words(x))[0]).transpose(1, 2)

    return Model(), {"x": (64, 10000), "labels": (64, 10000)}


#: family -> name -> what makes the model, and the shapes of one example's inputs, of tokens and labels with the number of classes
#: last
FAMILIES: Mapping[str, Mapping[str, Callable[[], tuple[Any, dict[str, Any]]]]] = {
    "convolutions": {
        "ResNet-50": _vision("resnet50"), "EfficientNet-B0": _vision("efficientnet_b0"),
        "ConvNeXt-T": _vision("convnext_tiny"), "MobileNetV3-L": _vision("mobilenet_v3_large"),
    },
    "vision transformers": {
        "ViT-B/16": _vision("vit_b_16"), "Swin-T": _vision("swin_t"), "DeiT-S": _timm("deit_small_patch16_224"),
    },
    "language models": {
        "GPT-2": _language("GPT2", "LMHeadModel", 256),
        "BERT-base": _language("Bert", "ForMaskedLM", 256),
        "Llama-style": _language("Llama", "ForCausalLM", 256, hidden_size=768, intermediate_size=2048, num_hidden_layers=6,
                                 num_attention_heads=12, num_key_value_heads=4, vocab_size=16000),
        "Qwen3-style": _language("Qwen3", "ForCausalLM", 256, hidden_size=1024, intermediate_size=3072, num_hidden_layers=4,
                                 num_attention_heads=16, num_key_value_heads=8, head_dim=64, vocab_size=16000),
        "T5-small": _language("T5", "ForConditionalGeneration", 128, decoder_start_token_id=0, pad_token_id=0),
    },
    "recurrent": {
        "LSTM": _lstm,
        "Mamba": _language("Mamba", "ForCausalLM", 64, hidden_size=256, num_hidden_layers=2, vocab_size=8000),
    },
}  # fmt: skip
MODELS = {name: make for models in FAMILIES.values() for name, make in models.items()}
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


def build(name: str, batch: int) -> tuple[Any, dict[str, Any]]:
    """A model with its drawn weights, and its drawn inputs, on the CPU."""
    import torch

    model, shapes = MODELS[name]()
    rng = np.random.default_rng(list(name.encode()))
    with torch.no_grad():
        for label, p in sorted(model.named_parameters()):
            drawn = rng.standard_normal(p.shape, np.float32) * np.float32(SPREAD)
            # scales of normalisations stay near 1
            p.copy_(torch.from_numpy(drawn + np.float32(p.dim() == 1 and label.endswith("weight"))))
    for module in model.modules():  # drawn masks have a test of their own
        if isinstance(module, torch.nn.Dropout):
            module.p = 0.0
    inputs: dict[str, Any] = {}
    for label, shape in shapes.items():
        if label == "x" and len(shape) > 2:
            inputs[label] = torch.from_numpy(rng.standard_normal((batch, *shape), np.float32))
        else:
            *size, classes = shape
            inputs[label] = torch.from_numpy(rng.integers(0, classes, (batch, *size)))
    return model.train(), inputs


def step(model: Any, inputs: Mapping[str, Any]) -> Any:
    """One forward and backward pass; the logits."""
    import torch

    model.zero_grad(set_to_none=True)
    if not torch.cuda.is_available() or not torch.cuda.is_current_stream_capturing():
        torch.manual_seed(0)  # for models that leave out layers at random
    if "x" in inputs:
        logits = model(inputs["x"])
        loss = torch.nn.functional.cross_entropy(logits, inputs["labels"])
    else:
        out = model(**inputs)
        logits, loss = out.logits, out.loss
    loss.backward()
    return logits


def _digest(tensors: Iterator[Any]) -> str:
    digest = hashlib.sha256()
    for t in tensors:
        digest.update(np.ascontiguousarray(t.detach().cpu().numpy(), "<f4").tobytes())
    return digest.hexdigest()


def _hashes(model: Any, logits: Any) -> dict[str, str]:
    grads = (p.grad for _, p in sorted(model.named_parameters()) if p.grad is not None)
    return {"logits": _digest(iter([logits])), "gradients": _digest(grads)}


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
        "model": name, "device": device, "batch": batch, **_hashes(model, logits), "coverage": report.coverage,
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
        mine, logits = _captured(ours)
        again()
        mine()
        torch.cuda.synchronize()
        row["graph_same"] = _hashes(model, logits) == {k: row[k] for k in ("logits", "gradients")}
        theirs, _ = _captured(plain)
        row["graph_ms"], row["graph_plain_ms"], row["graph_ratio"] = _paired(mine, theirs, device)
    return row


def _line(r: Mapping[str, Any]) -> tuple[str, ...]:
    graph = f"{r['graph_ratio']:.2f}{'' if r['graph_same'] else ' other bits'}" if "graph_ratio" in r else ""
    return (r["model"], r["device"], str(r["batch"]), f"{r['ms']:.3g}", f"{r['plain_ms']:.3g}", f"{r['ratio']:.2f}", graph,
            f"{r['memory']:.2f}" if "memory" in r else "", r["logits"][:8], r["gradients"][:8], " ".join(r["left"]))  # fmt: skip


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m bench.torch_models", description=(__doc__ or "").split("\n\n")[0])
    parser.add_argument("--models", default=",".join(MODELS), metavar="NAMES", help=f"of {', '.join(MODELS)}")
    parser.add_argument("--devices", default="cpu", metavar="NAMES", help="PyTorch's names: cpu,cuda:0 (cpu)")
    parser.add_argument("--batches", default="2", metavar="N,…", help="examples in a batch (2)")
    parser.add_argument("--graph", default="8", metavar="N", help="the batch that is also timed in a CUDA graph (8)")
    parser.add_argument("--threads", type=int, metavar="N", help="of PyTorch and of the block, on the CPU")
    parser.add_argument("--json", type=Path, metavar="FILE")
    args = parser.parse_args(argv)
    names = args.models.split(",")
    if unknown := [n for n in names if n not in MODELS]:
        parser.error(f"--models: got {unknown[0]!r}, expected some of {', '.join(MODELS)}")
    packages = ("torch", "torchvision", "timm", "transformers")
    if missing := [n for n in packages if find_spec(n) is None]:
        print(f"left out: {' and '.join(missing)} not installed")
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
        versions = {n: __import__(n).__version__ for n in packages}
        run = describe_run([d.partition(":")[0] for d in args.devices.split(",")])
        command = format_command(["python", "-m", "bench.torch_models", *(argv or [])])
        write_document(args.json, {"command": command, **run, **versions, "rows": rows})
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
