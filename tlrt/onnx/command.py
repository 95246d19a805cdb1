"""``python -m tlrt onnx MODEL``: what a model takes, gives and consists of, and where devices part on it."""

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from tlrt._terminal import program_name
from tlrt.differential import compare
from tlrt.errors import TorchleanError
from tlrt.onnx.model import Model, load
from tlrt.session import Session


def draw(model: Model, sizes: dict[str, int], seed: int) -> dict[str, np.ndarray]:
    """Inputs: normal numbers, and zeros of integers. Lengths that the model leaves open are those of `sizes`, or 1."""
    rng = np.random.default_rng(seed)
    out = {}
    for name, (kind, lengths) in model.inputs.items():
        shape = [n if isinstance(n, int) else sizes.get(n or "", 1) for n in lengths]
        out[name] = rng.standard_normal(shape, np.float32) if kind.kind == "f" else np.zeros(shape, kind)
    return out


def describe(model: Model) -> str:
    lines = [f"input   {n}: {kind} {list(lengths)}" for n, (kind, lengths) in model.inputs.items()]
    lines += [f"output  {n}" for n in model.outputs]
    lines.append(f"weights {len(model.weights)} arrays, {sum(w.size for w in model.weights.values())} numbers")
    lines.append("nodes   " + ", ".join(f"{op} {count}" for op, count in model.operators.most_common()))
    return "\n".join(lines)


def main(argv: Sequence[str] | None = None) -> int:
    """The command ``python -m tlrt onnx``.

    Parameters
    ----------
    argv : sequence of str, optional
        Its arguments; those of the process unless given.

    Returns
    -------
    int
        1 where a result is out of its bound or NaN, 2 for a model that cannot be read or expressed, else 0.
    """
    parser = argparse.ArgumentParser(prog=program_name("onnx"), description=(__doc__ or "").partition(": ")[2])
    add = parser.add_argument
    add("model", type=Path, metavar="MODEL", help="a file in the ONNX format")
    add("--compare", metavar="DEVICES", help="run it on these, spec,cpu for instance, and compare every operation")
    add("--inputs", type=Path, metavar="FILE", help="arrays by the names of the inputs, as numpy.savez writes them")
    add(
        "--sizes",
        default="",
        metavar="NAME=N,...",
        help="lengths that the model leaves open, where inputs are drawn (1)",
    )
    add("--seed", type=int, default=0)
    arguments = parser.parse_args(argv)
    try:
        sizes = {n: int(v) for n, _, v in (word.partition("=") for word in arguments.sizes.split(",") if word)}
    except ValueError:
        parser.error(f"--sizes: got {arguments.sizes!r}, expected NAME=N,...")
    try:
        model = load(arguments.model)
        print(describe(model))
        if arguments.compare is None:
            return 0
        given: Any = dict(np.load(arguments.inputs)) if arguments.inputs else draw(model, sizes, arguments.seed)

        def program(session: Session) -> Any:
            found = model.bind(session)(**given)
            tensors = [t for t in (found if isinstance(found, tuple) else (found,)) if not isinstance(t, np.ndarray)]
            return tensors[0].square().reduce_mean()

        report = compare(program, arguments.compare.split(","))
    except (TorchleanError, OSError, ValueError) as error:
        print(f"tlrt onnx: {error}", file=sys.stderr)
        return 2
    print(report)
    return 0 if report.ok and not report.not_numbers else 1
