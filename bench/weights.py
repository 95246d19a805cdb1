"""``python -m bench.weights``: SHA-256 of the five examples' weights after some steps in the mode ``reproducible``, on every
device and SIMD variant, eager and captured, in one table. Exit status 1 if two of an example differ.

The hash is of the parameters' float32 bytes, little-endian, in the order in which the model made them. Two of the examples train
on a text that depends on the version of Python (``examples/text.py``): their hashes compare where the SHA-256 of the text is one.
"""

import argparse
import hashlib
import sys
import time
from collections.abc import Mapping, Sequence
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np

from audit.environment import describe_run
from bench.examples import NAMES
from examples import common
from tlrt import Session, devices
from tlrt._terminal import Progress, format_table
from tlrt.verify.documents import read_document, write_document
from tlrt.verify.run import cpu_settings, cpu_variants

#: steps of training, of the preset "small"
STEPS = 20


def train(name: str, device: str, capture: bool, steps: int) -> tuple[str, str]:
    """The hash of an example's parameters after some steps, and that of the text that it trained on, or "" without one."""
    example = import_module(f"examples.{name}").EXAMPLE
    with Session(device, math="reproducible") as session:
        program = example.build(session, dict(example.presets["small"]))
        program.capture = capture
        for k in range(steps):
            common._step(session, program, k).release()
        digest = hashlib.sha256()
        for parameter in session.parameters.values():
            digest.update(np.ascontiguousarray(parameter.numpy(), "<f4").tobytes())
        program.optimizer.close()
    return digest.hexdigest(), program.about.get("text_sha256", "")


def run(names: Sequence[str], steps: int, places: Sequence[str]) -> list[dict[str, Any]]:
    """One row for each example, device, SIMD variant of the CPU and way to run it."""
    rows: list[dict[str, Any]] = []
    variants = [(d, v) for d in places for v in (cpu_variants() if d == "cpu" else [None])]
    jobs = [(n, d, v, c) for n in names for d, v in variants for c in (False, True)]
    progress = Progress(len(jobs), "runs")
    for name, device, variant, capture in jobs:
        start = time.perf_counter()
        with cpu_settings(variant=variant):
            found, text = train(name, device, capture, steps)
        rows.append({"example": name, "device": device, "variant": variant or "", "captured": capture, "steps": steps,
                     "sha256": found, "text_sha256": text, "seconds": round(time.perf_counter() - start, 2)})  # fmt: skip
        progress.advance(1, f"{name} on {device} {variant or ''}")
    return rows


def hashes_of(rows: Sequence[Mapping[str, Any]]) -> dict[str, set[str]]:
    """The hashes of every example among the rows."""
    found: dict[str, set[str]] = {}
    for row in rows:
        found.setdefault(row["example"], set()).add(row["sha256"])
    return found


def published(path: Path) -> dict[str, str]:
    """The hash of every example in a document; ValueError if it holds two of one."""
    found = hashes_of(read_document(path)["rows"])
    if different := [name for name, hashes in found.items() if len(hashes) > 1]:
        raise ValueError(f"{path}: {different} have several hashes")
    return {name: hashes.pop() for name, hashes in found.items()}


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m bench.weights", description=(__doc__ or "").strip())
    parser.add_argument("--only", choices=NAMES, action="append", help="of the examples; may be repeated")
    parser.add_argument("--steps", type=int, default=STEPS)
    parser.add_argument("--devices", default=",".join(devices()), help="where they train (default: %(default)s)")
    parser.add_argument("--json", type=Path, metavar="FILE")
    parser.add_argument("--commit", help="the commit to record")
    args = parser.parse_args(argv)
    places = args.devices.split(",")
    rows = run(args.only or NAMES, args.steps, places)
    columns = ("example", "device", "variant", "captured", "steps", "sha256", "seconds")
    print(format_table(columns, [[str(r[c])[:16] for c in columns] for r in rows]))
    different = [name for name, hashes in hashes_of(rows).items() if len(hashes) > 1]
    for name in different:
        print(f"FAIL {name}: the weights differ")
    if args.json is not None:
        document = {"command": "python -m bench.weights", **describe_run(places), "rows": rows}
        write_document(args.json, {"commit": args.commit, **document} if args.commit else document)
    return 1 if different else 0


if __name__ == "__main__":
    sys.exit(main())
