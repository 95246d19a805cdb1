"""The tables of docs/results.md about training: single steps beside PyTorch, and the examples.

From ``training_steps`` of an evidence file (:mod:`bench.steps`) and from ``examples-*.json`` (:mod:`bench.examples`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from bench.trust import header, line

#: what each example is judged by, and what to compare it with
FIGURES: Mapping[str, Sequence[tuple[str, str]]] = {
    "digits": (("test_accuracy", "accuracy on unseen images"), ("test_loss", "loss")),
    "autoencoder": (
        ("test_mse", "mean squared error"),
        ("principal_components_mse", "8 principal components"),
        ("mean_image_mse", "the mean image"),
    ),
    "char_gpt": (("test_loss", "nats per unseen character"), ("unigram_loss", "frequencies of characters")),
    "mamba": (
        ("test_loss", "nats per unseen character"),
        ("test_accuracy", "accuracy"),
        ("unigram_loss", "frequencies of characters"),
    ),
    "fno_burgers": (
        ("relative_l2_error", "relative L2 error"),
        ("relative_l2_error_twice_the_grid", "on twice the grid"),
        ("relative_l2_error_of_the_identity", "of the initial function"),
    ),
}


def figure(x: float) -> str:
    """Three digits, and no more than the thousands need."""
    return f"{x:.3g}" if x < 100 else f"{x:.0f}"


def steps(report: Mapping[str, Any]) -> list[str]:
    """Every step of :mod:`bench.steps`: our time, PyTorch's, and how many times faster."""
    out = header(("step", "size", "ms", "PyTorch, ms", "times faster than PyTorch", "driver allocations"))
    for r in report["rows"]:
        times = [figure(r["ours_ms"]), *(figure(r[k]) if r.get(k) is not None else "" for k in ("torch_ms", "ratio"))]
        out.append(line([r["step"], r["size"], *times, str(r["driver_allocations"])]))
    return out


def short(report: Mapping[str, Any]) -> str:
    """The whole steps in one sentence."""
    whole = [r for r in report["rows"] if r.get("losses") and r.get("ratio") is not None]
    said = ", ".join(f"{r['step']} ({r['size']}) {figure(r['ratio'])}" for r in whole)
    return f"Training steps, times faster than PyTorch eager: {said}"


def examples(document: Mapping[str, Any]) -> list[str]:
    """What the examples reached, and char-GPT run twice, resumed, and beside PyTorch."""
    out = header(("example", "parameters", "steps", "what it reached", "s", "steps/s"))
    for name, r in document["examples"].items():
        said = "; ".join(f"{what} {r[key]:.4g}" for key, what in FIGURES[name])
        cells = [name, f"{r['parameters']:,}".replace(",", " "), str(r["steps"]), said, figure(r["wall_seconds"])]
        out.append(line([*cells, figure(r["steps_per_second"])]))
    again = document["repeated"]
    same = "left the same checkpoint, byte for byte" if again["bit_identical"] else "left **different** checkpoints"
    out += ["", f"char_gpt over {again['steps']} steps, run twice and once stopped half-way and resumed, {same}."]
    if peer := document["peer"]:
        text = (
            f"char_gpt without dropout beside PyTorch {peer['torch']}, from the same weights on the same batches: the loss at"
            f" each step, at most {peer['largest_difference']:.1e} apart over {peer['steps']} steps;"
            f" {figure(peer['steps_per_second'][0])} and {figure(peer['steps_per_second'][1])} steps/s."
        )
        out += [
            "",
            text,
            "",
            *header(("step", *(str(i) for i, _, _ in peer["curve"]))),
            line(("here", *(f"{ours:.6f}" for _, ours, _ in peer["curve"]))),
            line(("PyTorch", *(f"{theirs:.6f}" for _, _, theirs in peer["curve"]))),
        ]
    return out
