"""``python -m bench.ranks``: training on 1, 2, 4, … ranks: the same bits, what an exchange costs, and what a step does.

Parts, all in one document: ``weights`` trains two examples in the mode ``reproducible`` and gives the SHA-256 of the weights, by
starter, transport and number of ranks, on GPUs beside one rank on the CPU; one more run of each number loses a rank, and half of
them go on from the last checkpoint. ``links`` times exchanges of 2^6 to 2^26 bytes between ranks, and additions. ``times`` sets a
step of a GPT beside the same step with NCCL's own all-reduce and beside PyTorch's DistributedDataParallel, the batch of a rank
being fixed. The exit status is 1 where two hashes of an example differ, or one from that of the same run on the same data in the
file `--against`.

The hash is of the parameters' float32 bytes, little-endian, in the order in which the model made them. `data` is one of the first
batch: the text of the character GPT is that of the running Python, so that another version trains on another text.
"""

import argparse
import hashlib
import json
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np

from audit.environment import ROOT, describe_run
from bench.rank_times import LENGTHS, LOOPS, MODELS, RESULT
from tlrt import Session, distributed
from tlrt._terminal import format_table
from tlrt.distributed.group import TRANSPORTS
from tlrt.verify.documents import format_command, read_document, write_document

PARTS = ("weights", "links", "times")
#: examples that have products, attention and dropout, and convolutions
EXAMPLES = ("char_gpt", "digits")
STEPS, SHARDS, RANKS = 200, 8, (1, 2, 4)
REFERENCE = ROOT / "evidence/ranks-cpu.jsonl"
#: what each part's table shows
COLUMNS = {
    "weights": ("example", "starter", "transport", "ranks", "device", "note", "steps", "sha256", "ms"),
    "links": ("starter", "transport", "ranks", "device", "level", "bytes", "us", "low_us"),
    "times": ("model", "loop", "transport", "ranks", "device", "ms", "spread_ms", "loss", "parameters"),
}
#: where each part's rows stand in the document, in which those of `weights` came first
PLACES = {"weights": "rows", "links": "links", "times": "times"}
#: programs leave NVLink's multicast alone: one that is killed while it uses that can leave the host's GPUs in a bad state
ENVIRONMENT = {"NCCL_NVLS_ENABLE": "0"}


def train(name: str, device: str, transport: str, steps: int, checkpoint: Path | None, die: int) -> dict[str, Any]:
    """One rank's part of a run. With `checkpoint` it goes on from there, and saves after every 50 steps; rank 1 is killed at
    step `die`."""
    example = import_module(f"examples.{name}").EXAMPLE
    settings = dict(example.presets["small"])
    settings["batch"] //= SHARDS
    with (
        distributed.join(transport=transport) as group,
        Session(group.device(device), math="reproducible") as session,
    ):
        program = example.build(session, settings)
        data = _digest(program.batch(0))
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
        values = [np.asarray(parameter.numpy(), "<f4") for parameter in session.parameters.values()]
        found = {"sha256": _digest(values), "data": data[:16], "ms": 1e3 * float(np.median(times))}
        every = group.gather(found)
        if len({f["sha256"] for f in every}) > 1:
            raise AssertionError(f"ranks have different weights: {every}")
        return {**found, "rank": group.rank}


def _digest(arrays: Sequence[Any]) -> str:
    """The SHA-256 of the elements' bytes."""
    digest = hashlib.sha256()
    for array in arrays:
        digest.update(np.ascontiguousarray(array).tobytes())
    return digest.hexdigest()


class Failed(Exception):
    """A run that ended with another status than it should."""


def start(starter: str, ranks: int, module: str, arguments: Sequence[str]) -> tuple[int, str]:
    """Runs the ranks of one program; the exit status, and what they print."""
    own = ["-m", module, *arguments]
    if starter == "mpirun":
        found = shutil.which("mpirun", path=f"{Path(sys.executable).parent}{os.pathsep}{os.environ.get('PATH', '')}")
        command = [found or "mpirun", "-n", str(ranks), sys.executable, *own]
    elif starter == "torchrun":
        with socket.create_server(("127.0.0.1", 0)) as listener:
            port = listener.getsockname()[1]
        where = ["--nproc-per-node", str(ranks), "--master-addr", "127.0.0.1", "--master-port", str(port)]
        command = [sys.executable, "-m", "torch.distributed.run", *where, *own]
    else:
        command = [sys.executable, "-m", "tlrt", "launch", "-n", str(ranks), *own]
    cores = str(max(len(os.sched_getaffinity(0)) // ranks, 1))
    environment = {**os.environ, **ENVIRONMENT, "TORCHLEAN_CPU_THREADS": cores, "OMP_NUM_THREADS": cores}
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True)
    return done.returncode, done.stdout + done.stderr


def result_of(starter: str, ranks: int, module: str, arguments: Sequence[str]) -> dict[str, Any]:
    """What rank 0 of a program gives."""
    status, text = start(starter, ranks, module, arguments)
    found = re.search(rf"{RESULT}(\{{.*\}})", text)
    if status or not found:
        what = " ".join(arguments)
        raise Failed(f"bench.ranks: {what} on {ranks} ranks by {starter}: exit status {status}\n{text[-3000:]}")
    value: dict[str, Any] = json.loads(found[1])
    return value


def weights(args: argparse.Namespace) -> Iterator[dict[str, Any]]:
    """The hashes of all runs."""
    for name in args.only or EXAMPLES:
        whole = ["--worker", name, "--steps", str(args.steps)]
        common = [*whole, "--device", args.device]
        fixed = {"example": name, "device": args.device, "steps": args.steps}
        if args.device != "cpu":
            host = {"device": "cpu", "starter": "launch", "transport": TRANSPORTS[0], "ranks": 1, "note": ""}
            yield fixed | host | result_of("launch", 1, "bench.ranks", [*whole, "--device", "cpu"])
        for starter, transport, ranks in _runs(args):
            row = {**fixed, "starter": starter, "transport": transport, "ranks": ranks, "note": ""}
            yield row | result_of(starter, ranks, "bench.ranks", [*common, "--transport", transport])
        for transport in args.transports:
            for ranks in (r for r in args.ranks if r > 1):
                with tempfile.TemporaryDirectory() as folder:
                    more = [*common, "--transport", transport, "--checkpoint", f"{folder}/run.safetensors"]
                    die = args.steps * 3 // 4
                    status, text = start("launch", ranks, "bench.ranks", [*more, "--die", str(die)])
                    if status != 128 + signal.SIGKILL:
                        raise Failed(f"bench.ranks: {name}: the killed run ended with {status}\n{text[-3000:]}")
                    note = f"{ranks} ranks, one killed at step {die}, then {ranks // 2}"
                    row = {**fixed, "starter": "launch", "transport": transport, "ranks": ranks // 2, "note": note}
                    yield row | result_of("launch", ranks // 2, "bench.ranks", more)


def _runs(args: argparse.Namespace, fewest: int = 1) -> list[tuple[str, str, int]]:
    """Starters, transports and numbers of ranks; one rank has no transport but the host."""
    every = [(s, t, r) for s in args.starters for t in args.transports for r in args.ranks]
    return [(s, t, r) for s, t, r in every if r >= fewest and (r > 1 or t == TRANSPORTS[0])]


def links(args: argparse.Namespace) -> Iterator[dict[str, Any]]:
    """The times of exchanges and of additions."""
    for starter, transport, ranks in _runs(args, 2):
        more = ["--device", args.device, "--transport", transport, "--largest", str(args.largest)]
        found = result_of(starter, ranks, "bench.rank_times", ["links", *more])
        fixed = {"starter": starter, "transport": transport, "ranks": ranks, "device": args.device}
        yield from ({**fixed, **row} for row in found["exchanges"])
        yield from ({**fixed, "level": "add", **row} for row in found["additions"])


def times(args: argparse.Namespace) -> Iterator[dict[str, Any]]:
    """Steps by the three loops. NCCL's all-reduce needs the transport nccl, and DDP needs PyTorch."""
    for model in args.models:
        for ranks in args.ranks:
            for loop in args.loops:
                common = [loop, "--model", model, "--device", args.device, "--steps", str(args.timed)]
                fixed = {"model": model, "loop": loop, "ranks": ranks, "device": args.device}
                if loop == "ddp" and find_spec("torch") is None:
                    print("bench.ranks: PyTorch is not installed, so that its steps are left out", file=sys.stderr)
                elif loop == "ddp":
                    own = "nccl" if args.device == "cuda" else "gloo"
                    yield {**fixed, "transport": own} | result_of("torchrun", ranks, "bench.rank_times", common)
                else:
                    chosen = [t for t in args.transports if ranks > 1 or t == args.transports[0]]
                    for transport in chosen if loop == "ours" else [t for t in chosen if t == "nccl" and ranks > 1]:
                        more = ["--transport", transport]
                        yield {**fixed, "transport": transport} | result_of(
                            "launch", ranks, "bench.rank_times", [*common, *more]
                        )


def compare(rows: Sequence[dict[str, Any]], reference: Path | None) -> list[str]:
    """What is wrong with the hashes, in lines."""
    wrong, known = [], read_document(reference).get("rows", []) if reference is not None and reference.exists() else []
    for name, steps in dict.fromkeys((r["example"], r["steps"]) for r in rows):
        own = [r for r in rows if (r["example"], r["steps"]) == (name, steps)]
        data = {r.get("data") for r in own}
        theirs = {r["sha256"] for r in known if (r["example"], r["steps"]) == (name, steps) and r.get("data") in data}
        if len({r["sha256"] for r in own}) > 1:
            wrong.append(f"{name}: different weights")
        elif theirs and theirs != {r["sha256"] for r in own}:
            wrong.append(f"{name}: other weights than in {reference.name}")
    return wrong


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m bench.ranks", description=(__doc__ or "").split("\n\n")[0])
    add = parser.add_argument

    def names(text: str) -> list[str]:
        return [name.strip() for name in text.split(",")]

    add("--parts", type=names, default=list(PARTS), help=f"of {', '.join(PARTS)} (all)")
    add("--ranks", type=lambda text: [int(n) for n in names(text)], default=list(RANKS), help="powers of two (1,2,4)")
    add("--starters", type=names, default=["launch", "mpirun"], help="launch, mpirun or both (launch,mpirun)")
    add("--transports", type=names, default=[TRANSPORTS[0]], help=f"of {', '.join(TRANSPORTS)} (host)")
    add("--device", default="cpu", help="cpu, or cuda for one GPU a rank (%(default)s)")
    add("--steps", type=int, default=STEPS, help="of a run whose weights are compared (%(default)s)")
    add("--only", choices=EXAMPLES, action="append", help="of the examples; may be repeated")
    add("--models", type=names, help="of those that are timed (char-gpt,gpt-100m on GPUs, tiny on CPUs)")
    add("--loops", type=names, default=list(LOOPS), help=f"of {', '.join(LOOPS)} (all)")
    add("--timed", type=int, default=30, help="steps that are timed (%(default)s)")
    add(
        "--largest", type=int, default=4 * LENGTHS[-1], help="bytes of the longest exchange that is timed (%(default)s)"
    )
    add("--against", type=Path, default=REFERENCE, help="a document whose weights must be the same (%(default)s)")
    add("--json", type=Path, metavar="FILE")
    add("--add", action="store_true", help="keep those parts of FILE that are not measured now")
    add("--commit", help="the commit to record")
    add("--worker", metavar="EXAMPLE", help=argparse.SUPPRESS)
    add("--transport", default=TRANSPORTS[0], help=argparse.SUPPRESS)
    add("--checkpoint", type=Path, help=argparse.SUPPRESS)
    add("--die", type=int, default=-1, help=argparse.SUPPRESS)
    return parser


def main(argv: Sequence[str] | None = None) -> int:
    parser = _parser()
    args = parser.parse_args(argv)
    if args.worker:
        found = train(args.worker, args.device, args.transport, args.steps, args.checkpoint, args.die)
        if found.pop("rank") == 0:
            print(f"{RESULT}{json.dumps(found)}", flush=True)
        return 0
    args.models = args.models or (["char-gpt", "gpt-100m"] if args.device == "cuda" else ["tiny"])
    for what, given, known in (
        ("parts", args.parts, PARTS), ("models", args.models, MODELS), ("loops", args.loops, LOOPS),
        ("transports", args.transports, TRANSPORTS), ("starters", args.starters, ("launch", "mpirun")),
    ):  # fmt: skip
        if unknown := set(given) - set(known):
            parser.error(f"--{what}: got {', '.join(sorted(unknown))}, expected some of {', '.join(known)}")
    os.environ |= ENVIRONMENT
    document: dict[str, Any] = {}
    if args.add and args.json and args.json.exists():
        before = read_document(args.json)
        document = {PLACES[p]: before[PLACES[p]] for p in PARTS if p not in args.parts and PLACES[p] in before}
        earlier = {"command": before["command"], "started": before["started"], "commit": before.get("commit")}
        document["earlier"] = [*before.get("earlier", []), earlier]
    wrong: list[str] = []
    for part in (p for p in PARTS if p in args.parts):
        rows: list[dict[str, Any]] = []
        try:
            for row in {"weights": weights, "links": links, "times": times}[part](args):
                rows.append(row)
                print(f"{part}: {_text(row, part)}", file=sys.stderr, flush=True)
        except Failed as error:  # what was measured is kept
            wrong.append(str(error))
        document[PLACES[part]] = rows
        print(format_table(COLUMNS[part], [[_cell(r, c) for c in COLUMNS[part]] for r in rows]) + "\n")
    wrong += compare(document.get("rows", []), args.against)
    for line in wrong:
        print(line)
    if args.json:
        command = format_command(["python", "-m", "bench.ranks", *(sys.argv[1:] if argv is None else argv)])
        head = {"command": command, **describe_run([args.device]), "shards": SHARDS, "wrong": wrong}
        write_document(args.json, {**({"commit": args.commit} if args.commit else {}), **head, **document})
    return int(bool(wrong))


def _cell(row: dict[str, Any], column: str) -> str:
    value = row.get(column, "")
    return f"{value:.4g}" if isinstance(value, float) else str(value)[:44]


def _text(row: dict[str, Any], part: str) -> str:
    return " ".join(filter(None, (_cell(row, c) for c in COLUMNS[part])))


if __name__ == "__main__":
    sys.exit(main())
