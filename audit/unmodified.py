"""``python -m audit torch``: models of the package transformers, as they are, under :func:`tlrt.torch.reproducible` on every
device.

Weights and inputs are drawn by NumPy from a fixed seed, so that they are the same everywhere. For each model and device:
SHA-256 of the logits and of all gradients of one training step, the share of the float32 work that is reproducible, what was
left to PyTorch, and the time beside plain PyTorch. The exit status is 1 where hashes of devices differ, or differ from those
of the evidence.
"""

import argparse
import hashlib
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np

from audit.environment import EVIDENCE, ROOT, describe_run, made
from audit.markdown import table
from tlrt._terminal import Progress, format_table
from tlrt.verify.documents import format_command, read_document, write_document

PATTERN, PAGE = "torch-*.jsonl", "docs/torch.md"
BEGIN, END = "<!-- models:begin -->", "<!-- models:end -->"
HEAD = ("model", "batch", "device", "logits", "gradients", "reproducible", "left to PyTorch", "s", "times faster")
#: standard deviation of drawn weights, pairs of timed steps, and examples in a batch
SPREAD, PAIRS, BATCH = 0.02, 3, 2


def _resnet() -> tuple[Any, dict[str, Any]]:
    from transformers import ResNetConfig, ResNetForImageClassification

    config = ResNetConfig(
        embedding_size=64, hidden_sizes=[64, 128, 256, 512], depths=[2, 2, 2, 2], layer_type="basic", num_labels=1000
    )
    return ResNetForImageClassification(config), {"pixel_values": (3, 224, 224), "labels": (1000,)}


def _vit() -> tuple[Any, dict[str, Any]]:
    from transformers import ViTConfig, ViTForImageClassification

    config = ViTConfig(hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0, num_labels=1000)
    return ViTForImageClassification(config), {"pixel_values": (3, 224, 224), "labels": (1000,)}


def _gpt2() -> tuple[Any, dict[str, Any]]:
    from transformers import GPT2Config, GPT2LMHeadModel

    config = GPT2Config(resid_pdrop=0.0, embd_pdrop=0.0, attn_pdrop=0.0)
    return GPT2LMHeadModel(config), {"input_ids": (128, 50257)}


def _llama() -> tuple[Any, dict[str, Any]]:
    from transformers import LlamaConfig, LlamaForCausalLM

    config = LlamaConfig(
        hidden_size=512, intermediate_size=1376, num_hidden_layers=8, num_attention_heads=8, num_key_value_heads=4
    )
    return LlamaForCausalLM(config), {"input_ids": (128, 32000)}


def _bert() -> tuple[Any, dict[str, Any]]:
    from transformers import BertConfig, BertForMaskedLM

    config = BertConfig(hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0)
    return BertForMaskedLM(config), {"input_ids": (128, 30522), "attention_mask": (128,)}


#: name -> a function that makes the model, and the shapes of one example's inputs, of tokens and labels with the number of
#: classes last
MODELS: Mapping[str, Callable[[], tuple[Any, dict[str, Any]]]] = {
    "ResNet-18": _resnet, "ViT-B/16": _vit, "GPT-2": _gpt2, "Llama-style": _llama, "BERT-base": _bert,
}  # fmt: skip


def build(name: str, batch: int = BATCH) -> tuple[Any, dict[str, Any]]:
    """A model with its drawn weights, and its drawn inputs, on the CPU."""
    import torch

    model, shapes = MODELS[name]()
    shapes = {label: (batch, *shape) for label, shape in shapes.items()}
    rng = np.random.default_rng(list(name.encode()))
    with torch.no_grad():
        for label, p in sorted(model.named_parameters()):
            drawn = rng.standard_normal(p.shape, np.float32) * np.float32(SPREAD)
            # scales of normalisations stay near 1
            p.copy_(torch.from_numpy(drawn + np.float32(p.dim() == 1 and label.endswith("weight"))))
    inputs: dict[str, Any] = {}
    for label, shape in shapes.items():
        if label == "pixel_values":
            inputs[label] = torch.from_numpy(rng.standard_normal(shape, np.float32))
        elif label == "attention_mask":
            inputs[label] = torch.ones(shape, dtype=torch.int64)
            inputs[label][1::2, shape[1] // 2 :] = 0
        else:
            *size, classes = shape
            inputs[label] = torch.from_numpy(rng.integers(0, classes, size))
    if "labels" not in inputs:
        inputs["labels"] = inputs["input_ids"]
    return model.train(), inputs


def _digest(tensors: Sequence[Any]) -> str:
    digest = hashlib.sha256()
    for t in tensors:
        digest.update(np.ascontiguousarray(t.detach().cpu().numpy(), "<f4").tobytes())
    return digest.hexdigest()


def step(model: Any, inputs: Mapping[str, Any]) -> Any:
    """One forward and backward pass; the logits."""
    model.zero_grad(set_to_none=True)
    out = model(**inputs)
    out.loss.backward()
    return out.logits


def _seconds(run: Callable[[], Any], device: str) -> float:
    import torch

    start = time.perf_counter()
    run()
    if device != "cpu":
        torch.cuda.synchronize()
    return time.perf_counter() - start


def measure(name: str, device: str, batch: int = BATCH, timed: bool = True) -> dict[str, Any]:
    """A row of the evidence."""
    import torch

    import tlrt.torch

    model, inputs = build(name, batch)
    model, inputs = model.to(device), {k: v.to(device) for k, v in inputs.items()}

    def ours() -> Any:
        with tlrt.torch.reproducible() as report:
            return step(model, inputs), report

    statistics_before = {n: b.clone() for n, b in model.named_buffers()}
    logits, report = ours()
    hashes = {"logits": _digest([logits]), "gradients": _digest([p.grad for _, p in sorted(model.named_parameters())])}
    row = {"model": name, "batch": batch, "device": device, **hashes, "coverage": report.coverage,
           "left": list(report.left), "parameters": sum(p.numel() for p in model.parameters())}  # fmt: skip
    if timed:
        with torch.no_grad():
            for n, b in model.named_buffers():
                b.copy_(statistics_before[n])
        pairs = [(_seconds(ours, device), _seconds(lambda: step(model, inputs), device)) for _ in range(PAIRS)]
        row["seconds"] = statistics.median(a for a, _ in pairs)
        row["ratio"] = statistics.median(b / a for a, b in pairs)
    return row


def recorded(transformers: str, batch: int = BATCH) -> dict[str, tuple[str, str]]:
    """Model -> the hashes that the evidence has of a batch, of whatever device, with a version of the package, which names the
    weights."""
    found = [d for path in sorted(EVIDENCE.glob(PATTERN)) if (d := read_document(path))["transformers"] == transformers]
    return {r["model"]: (r["logits"], r["gradients"]) for d in found for r in d["rows"] if r["batch"] == batch}


def page() -> str:
    """docs/torch.md with the table of the evidence."""
    text = (ROOT / PAGE).read_text("utf-8")
    head, rest = text.split(BEGIN)
    lines = []
    for path in sorted(EVIDENCE.glob(PATTERN)):
        found = read_document(path)
        where = "; ".join(found["devices"].values())
        origin = f"{made(found)} ([{path.name}](../evidence/{path.name}))"
        lines += [f"{where}; PyTorch {found['torch']}, transformers {found['transformers']}; {origin}:", ""]
        lines += table(
            ("model", "parameters", "batch", "device", "logits", "gradients", "reproducible", "s", "times faster than PyTorch"),
            [
                [r["model"], f"{r['parameters']:,}".replace(",", " "), str(r["batch"]), r["device"],
                 f"`{r['logits'][:12]}`", f"`{r['gradients'][:12]}`", f"{r['coverage']:.2%}", f"{r['seconds']:.3g}",
                 f"{r['ratio']:.3g}"]
                for r in found["rows"]
            ],
        )  # fmt: skip
        lines.append("")
    return head + BEGIN + "\n" + "\n".join(lines) + END + rest.split(END)[1]


def main(argv: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(prog="python -m audit torch", description=(__doc__ or "").split("\n\n")[0].strip())
    parser.add_argument("--models", default=",".join(MODELS), metavar="NAMES", help=f"of {', '.join(MODELS)}")
    parser.add_argument("--devices", default="cpu", metavar="NAMES", help="PyTorch's names: cpu,cuda:0 (cpu)")
    parser.add_argument("--batch", type=int, default=BATCH, metavar="N", help=f"examples in a batch ({BATCH})")
    parser.add_argument("--no-times", action="store_true", help="hashes alone")
    parser.add_argument("--json", type=Path, metavar="FILE")
    parser.add_argument("--commit", help="the commit to record")
    parser.add_argument("--page", action="store_true", help=f"write {PAGE} from the evidence, and end")
    args = parser.parse_args(argv)
    if args.page:
        (ROOT / PAGE).write_text(page(), encoding="utf-8")
        return 0
    names, devices = args.models.split(","), args.devices.split(",")
    if unknown := [n for n in names if n not in MODELS]:
        parser.error(f"--models: got {unknown[0]!r}, expected {', '.join(MODELS)}")
    if missing := [n for n in ("torch", "transformers") if find_spec(n) is None]:
        print(f"left out: {' and '.join(missing)} not installed")
        return 0
    import torch
    import transformers

    # both sides compute in float32
    torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = False
    known, rows = recorded(transformers.__version__, args.batch), []
    progress = Progress(len(names) * len(devices), "models")
    for name in names:
        for device in devices:
            rows.append(measure(name, device, args.batch, not args.no_times))
            progress.advance(1, f"{name} on {device}")
    progress.close()
    print(format_table(HEAD, [
        (r["model"], str(r["batch"]), r["device"], r["logits"][:8], r["gradients"][:8], f"{r['coverage']:.2%}",
         ", ".join(r["left"]), f"{r.get('seconds', 0):.3g}", f"{r.get('ratio', 0):.3g}") for r in rows
    ]))  # fmt: skip
    bad = 0
    for name in names:
        own = {(r["logits"], r["gradients"]) for r in rows if r["model"] == name} | (
            {known[name]} if name in known else set()
        )
        if len(own) > 1:
            bad += 1
            print(f"{name}: {len(own)} different results")
    if args.json is not None:
        versions = {"torch": torch.__version__, "transformers": transformers.__version__}
        run = describe_run([d.partition(":")[0] for d in devices])
        document = {
            "command": format_command(["python", "-m", "audit", "torch", *argv]),
            **run,
            **versions,
            "rows": rows,
        }
        write_document(args.json, {"commit": args.commit, **document} if args.commit else document)
    return int(bad > 0)
