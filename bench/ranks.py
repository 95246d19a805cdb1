"""``python -m bench.ranks``: the examples trained on 1, 2 and 4 ranks, and a run that is killed and goes on with another number.

For each example, starter and number of ranks: SHA-256 of the weights after some steps in the mode ``reproducible``, and seconds
of a step. One more run of two ranks loses one of them, and goes on alone from the last checkpoint. The exit status is 1 where
two hashes of an example differ.

The hash is of the parameters' float32 bytes, little-endian, in the order in which the model made them.
"""

import argparse
import hashlib
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np

from audit.environment import ROOT, describe_run
from tlrt import Session, distributed
from tlrt._terminal import Progress, format_table
from tlrt.verify.documents import format_command, write_document

#: examples that have products, attention and dropout, and convolutions
EXAMPLES = ("char_gpt", "digits")
STEPS, SHARDS, RANKS = 200, 8, (1, 2, 4)
COLUMNS = ("example", "starter", "ranks", "device", "note", "steps", "sha256", "ms")


def train(name: str, device: str, steps: int, checkpoint: Path | None, die: int) -> dict[str, Any]:
    """One rank's part of a run. With `checkpoint` it goes on from there, and saves after every 50 steps; rank 1 is killed at
    step `die`."""
    example = import_module(f"examples.{name}").EXAMPLE
    settings = dict(example.presets["small"])
    settings["batch"] //= SHARDS
    with distributed.join() as group, Session(group.device(device), math="reproducible") as session:
        program = example.build(session, settings)
        kind, hyper = type(program.optimizer), program.optimizer._settings()
        program.optimizer.close()
        training = distributed.DataParallel(
            session, lambda p: kind(p, **hyper), group, shards=SHARDS, max_norm=program.clip
        )
        if checkpoint is not None and checkpoint.exists():
            training.load(checkpoint)
        times = []
        while training.steps < steps:
            k = training.steps
            if group.rank == 1 and k == die:
                os.kill(os.getpid(), signal.SIGKILL)
            training.optimizer.lr = program.rate(k)
            start = time.perf_counter()
            training.step(lambda shard, k=k: program.loss(*program.batch(k * SHARDS + shard)))
            times.append(time.perf_counter() - start)
            if checkpoint is not None and training.steps % 50 == 0:
                training.save(checkpoint)
        digest = hashlib.sha256()
        for parameter in session.parameters.values():
            digest.update(np.ascontiguousarray(parameter.numpy(), "<f4").tobytes())
        found = {"sha256": digest.hexdigest(), "ms": 1e3 * float(np.median(times))}
        every = group.gather(found)
        if len({f["sha256"] for f in every}) > 1:
            raise AssertionError(f"ranks have different weights: {every}")
        return found


def start(starter: str, ranks: int, arguments: Sequence[str]) -> tuple[int, str]:
    """Runs the ranks of one program; the exit status, and what they print."""
    own = ["-m", "bench.ranks", "--worker", *arguments]
    if starter == "mpirun":
        found = shutil.which("mpirun", path=f"{Path(sys.executable).parent}{os.pathsep}{os.environ.get('PATH', '')}")
        command = [found or "mpirun", "-n", str(ranks), sys.executable, *own]
    else:
        command = [sys.executable, "-m", "tlrt", "launch", "-n", str(ranks), *own]
    cores = str(max(len(os.sched_getaffinity(0)) // ranks, 1))
    environment = {**os.environ, "TORCHLEAN_CPU_THREADS": cores}
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True)
    return done.returncode, done.stdout + done.stderr


def measure(
    name: str, starter: str, ranks: int, device: str, note: str, steps: int, more: Sequence[str]
) -> dict[str, Any]:
    status, text = start(starter, ranks, [name, "--device", device, "--steps", str(steps), *more])
    found = [json.loads(line) for line in re.findall(r'\{"sha256": [^{}]*\}', text)]  # mpirun mixes lines of ranks
    if status or len(found) < 1:
        raise SystemExit(f"bench.ranks: {name} on {ranks} ranks by {starter}: exit status {status}\n{text[-3000:]}")
    return {
        "example": name,
        "starter": starter,
        "ranks": ranks,
        "device": device,
        "note": note,
        "steps": steps,
        **found[0],
    }


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m bench.ranks", description=(__doc__ or "").split("\n\n")[0])
    parser.add_argument("--ranks", default=",".join(map(str, RANKS)), help="(%(default)s)")
    parser.add_argument("--starters", default="launch,mpirun", help="launch, mpirun or both (%(default)s)")
    parser.add_argument("--device", default="cpu", help="cpu, or cuda for one GPU a rank (%(default)s)")
    parser.add_argument("--steps", type=int, default=STEPS)
    parser.add_argument("--only", choices=EXAMPLES, action="append", help="of the examples; may be repeated")
    parser.add_argument("--json", type=Path, metavar="FILE")
    parser.add_argument("--commit", help="the commit to record")
    parser.add_argument("--worker", metavar="EXAMPLE", help=argparse.SUPPRESS)
    parser.add_argument("--checkpoint", type=Path, help=argparse.SUPPRESS)
    parser.add_argument("--die", type=int, default=-1, help=argparse.SUPPRESS)
    args = parser.parse_args(argv)
    if args.worker:
        print(json.dumps(train(args.worker, args.device, args.steps, args.checkpoint, args.die)))
        return 0
    names, numbers, starters = args.only or EXAMPLES, [int(n) for n in args.ranks.split(",")], args.starters.split(",")
    rows: list[dict[str, Any]] = []
    progress = Progress(len(names) * (len(numbers) * len(starters) + 1), "runs")
    for name in names:
        for starter in starters:
            for ranks in numbers:
                rows.append(measure(name, starter, ranks, args.device, "", args.steps, []))
                progress.advance(1, f"{name} on {ranks} ranks by {starter}")
        with tempfile.TemporaryDirectory() as folder:
            more = ["--checkpoint", f"{folder}/run.safetensors"]
            die = str(args.steps * 3 // 4)
            status, text = start(
                "launch", 2, [name, "--device", args.device, "--steps", str(args.steps), *more, "--die", die]
            )
            if status != 128 + signal.SIGKILL:
                raise SystemExit(f"bench.ranks: {name}: the killed run ended with {status}\n{text[-3000:]}")
            note = f"2 ranks, one killed at step {die}, then 1"
            rows.append(measure(name, "launch", 1, args.device, note, args.steps, more))
        progress.advance(1, f"{name}, killed")
    print(format_table(COLUMNS, [[f"{r[c]:.1f}" if c == "ms" else str(r[c])[:40] for c in COLUMNS] for r in rows]))
    different = [name for name in names if len({r["sha256"] for r in rows if r["example"] == name}) > 1]
    for name in different:
        print(f"{name}: different weights")
    if args.json:
        command = format_command(["python", "-m", "bench.ranks", *(sys.argv[1:] if argv is None else argv)])
        document = {"command": command, **describe_run([args.device]), "shards": SHARDS, "rows": rows}
        write_document(args.json, {"commit": args.commit, **document} if args.commit else document)
    return int(bool(different))


if __name__ == "__main__":
    sys.exit(main())
