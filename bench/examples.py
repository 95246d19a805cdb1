"""``python -m bench.examples``: the five examples, as their commands, and what they promise, in one JSON document.

Every example runs once with its default preset and its report is kept (final figures, wall time, a loss in 50). Then
char-GPT: the same run twice, and stopped half-way and resumed, must leave checkpoints of the same bytes, dropout included; and
where PyTorch is installed the same model trains there from the same weights on the same batches, both curves being kept.
A run that fails, or bytes that differ, make the exit status 1.
"""

import argparse
import hashlib
import json
import subprocess
import sys
import tempfile
import time
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from audit.environment import commit, describe_run
from tlrt.verify.documents import format_command, write_document

NAMES = ("digits", "autoencoder", "char_gpt", "mamba", "fno_burgers")
#: what is kept of a curve: every so many steps
EVERY = 50
#: of a report, what says nothing about the training
LOCAL = ("curve", "device", "losses", "settings")


class Runs:
    """Runs examples in folders of their own, and remembers those that failed."""

    def __init__(self, device: str, root: Path) -> None:
        self.device, self.root = device, root
        self.failures: list[str] = []

    def run(self, name: str, folder: str, *arguments: str) -> dict[str, Any] | None:
        """The report of one run, or None if it failed."""
        out = self.root / folder
        given = (f"examples.{name}", "--device", self.device, "--out", str(out), *arguments, "--json")
        print(f"{' '.join(('python -m', *given[:3], *arguments))} ...", end="", flush=True)
        start = time.perf_counter()
        done = subprocess.run([sys.executable, "-m", *given], capture_output=True, text=True)
        print(f" {time.perf_counter() - start:.1f} s{'' if done.returncode == 0 else ', FAILED'}", flush=True)
        if done.returncode:
            self.failures.append(f"{name} {' '.join(arguments)}: {done.stderr.strip()[-500:]}")
            return None
        found: dict[str, Any] = json.loads((out / f"{name}.json").read_text(encoding="utf-8"))
        return found

    def weights(self, name: str, folder: str) -> str:
        """SHA-256 of the checkpoint that a run left: parameters, optimiser, random counter, every loss."""
        path = self.root / folder / f"{name}.safetensors"
        return hashlib.sha256(path.read_bytes()).hexdigest() if path.exists() else "none"


def summarise_report(found: dict[str, Any]) -> dict[str, Any]:
    """What a document holds of an example's report."""
    short = {k: v for k, v in found.items() if k not in (*LOCAL, "peers")}
    return {**short, "settings": found["settings"], "curve": thin_curve(found["losses"])}


def thin_curve(losses: list[float]) -> list[list[float]]:
    """[step, loss] of the first step, every EVERY-th and the last."""
    return [[i, losses[i - 1]] for i in range(1, len(losses) + 1) if i == 1 or i % EVERY == 0 or i == len(losses)]


def compare_repetitions(runs: Runs, steps: int) -> dict[str, Any]:
    """The same char-GPT run twice, and once in two halves."""
    preset = ("--steps", str(steps))
    for folder, arguments in (("first", ()), ("second", ()), ("resumed", ("--stop-at", str(steps // 2)))):
        runs.run("char_gpt", folder, *preset, *arguments)
    runs.run("char_gpt", "resumed", *preset, "--resume")
    hashes = {folder: runs.weights("char_gpt", folder) for folder in ("first", "second", "resumed")}
    same = len(set(hashes.values())) == 1 and "none" not in hashes.values()
    if not same:
        runs.failures.append(f"char_gpt: checkpoints differ: {hashes}")
    return {"steps": steps, "checkpoints": hashes, "bit_identical": same}


def compare_with_torch(runs: Runs, steps: int) -> dict[str, Any] | None:
    """Loss curves of char-GPT here and in PyTorch, without dropout, as the two draw different masks."""
    found = runs.run("char_gpt", "peer", "--steps", str(steps), "--set", "dropout=0", "--peer", "torch")
    if found is None:
        return None
    peer = found["peers"]["torch"]
    ours, theirs = found["losses"], peer["losses"]
    return {
        "steps": steps, "torch": peer["version"], "curve": [[i, loss, theirs[i - 1]] for i, loss in thin_curve(ours)],
        "largest_difference": max(abs(a - b) for a, b in zip(ours, theirs, strict=True)),
        "final_loss": [found["final_loss"], peer["final_loss"]],
        "steps_per_second": [found["steps_per_second"], peer["steps_per_second"]],
    }  # fmt: skip


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m bench.examples", description=(__doc__ or "").strip())
    parser.add_argument("--device", default="cpu", help="cpu, cuda, cuda:1 (default: cpu)")
    parser.add_argument("--steps", type=int, default=400, help="of the char-GPT runs that are compared (default: 400)")
    parser.add_argument("--only", choices=NAMES, action="append", help="of the examples; may be repeated")
    parser.add_argument("--commit", help="the commit of the tree, where git cannot tell")
    parser.add_argument("--json", required=True, metavar="FILE", help="write the document there")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as root:
        runs = Runs(args.device, Path(root))
        examples = {name: runs.run(name, name) for name in args.only or NAMES}
        document = {
            "command": format_command(["python", "-m", "bench.examples", *sys.argv[1:]]),
            "commit": args.commit or commit() or "unknown", **describe_run([args.device]),
            "examples": {name: summarise_report(found) for name, found in examples.items() if found is not None},
            "repeated": compare_repetitions(runs, args.steps),
            "peer": compare_with_torch(runs, args.steps) if find_spec("torch") else None, "failures": runs.failures,
        }  # fmt: skip
    write_document(Path(args.json), document)
    for name, found in document["examples"].items():
        figures = {k: v for k, v in found.items() if isinstance(v, float)}
        print(f"{name:12} " + "  ".join(f"{k} {v:.6g}" for k, v in figures.items()))
    print(f"char_gpt twice and resumed: {'the same bytes' if document['repeated']['bit_identical'] else 'DIFFERENT'}")
    if document["peer"]:
        peer = document["peer"]
        print(f"char_gpt beside PyTorch: final loss {peer['final_loss'][0]:.8f} and {peer['final_loss'][1]:.8f}")
    for failure in runs.failures:
        print(f"FAILED {failure}")
    return 1 if runs.failures else 0


if __name__ == "__main__":
    sys.exit(main())
