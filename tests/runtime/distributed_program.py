"""A small program for a group of ranks: trains, prints the SHA-256 of its weights, and can fail in the ways of `--fault`."""

import argparse
import hashlib
import os
import signal
import sys
import time
from collections.abc import Sequence

import numpy as np

import tlrt
from tlrt import distributed, nn, optim

SHARDS, SIZE, WORDS, LENGTH = 8, 3, 13, 6


class Net(nn.Layer):
    def __init__(self, s: tlrt.Session) -> None:
        self.session = s
        self.words = nn.Embedding(s, WORDS, 8, name="words")
        self.norm = nn.LayerNorm(s, 8, name="norm")
        self.scale = nn.BatchNorm(s, LENGTH, name="scale")
        self.hidden = nn.Linear(s, 8, 12, name="hidden")
        self.head = nn.Linear(s, 12, WORDS, name="head")

    def loss(self, x: np.ndarray, y: np.ndarray) -> tlrt.TensorRef:
        s = self.session
        h = s.dropout(s.gelu(self.hidden(self.scale(self.norm(self.words(x)), training=True))), 0.2)
        return s.cross_entropy(self.head(h), y)


def batch(step: int, shard: int, size: int) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng([step, shard])
    return rng.integers(0, WORDS, (size, LENGTH)), rng.integers(0, WORDS, (size, LENGTH))


def arguments(words: Sequence[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser()
    for name, default in {
        "steps": 6, "device": "cpu", "math": "reproducible", "fault": "", "save": "", "every": 3, "load": "", "timeout": 20.0,
        "bucket": 1 << 20,
    }.items():  # fmt: skip
        parser.add_argument(f"--{name}", type=type(default), default=default)
    parser.add_argument("--groups", action="store_true")
    parser.add_argument("--transport")
    return parser.parse_args(words)


def train(group: distributed.Group, given: argparse.Namespace) -> str:
    """What is printed of the weights."""
    faulty = group.rank == 1
    with tlrt.Session(group.device(given.device), math=given.math, seed=5 + (faulty and given.fault == "seed")) as s:
        net = Net(s)
        if faulty and given.fault == "weights":
            net.words.weight.set(net.words.weight.numpy() + 1)

        def make(parameters: list[tlrt.Parameter]) -> optim.Optimizer:
            rate = 0.02 if faulty and given.fault == "rate" else 0.01
            if not given.groups:
                return optim.AdamW(parameters, lr=rate)
            flat = [p for p in parameters if len(p.shape) == 1]
            rest = [p for p in parameters if len(p.shape) > 1]
            return optim.AdamW([g for g in ({"params": rest}, {"params": flat, "lr": 0.1}) if g["params"]], lr=rate)

        shards = 4 if faulty and given.fault == "shards" else SHARDS
        training = distributed.DataParallel(s, make, group, shards=shards, max_norm=0.5, bucket=given.bucket)
        if given.load:
            training.load(given.load)
        while training.steps < given.steps:
            step, size = training.steps, SIZE
            if faulty and step == 2:
                if given.fault == "kill":
                    os.kill(os.getpid(), signal.SIGKILL)
                if given.fault == "error":
                    raise ValueError("the data are gone")
                if given.fault == "silent":
                    time.sleep(60)
                size += given.fault == "batch"
            loss = training.step(lambda shard, step=step, size=size: net.loss(*batch(step, shard, size)))
            if given.save and training.steps % given.every == 0:
                training.save(given.save, {"loss": loss})
        digest = hashlib.sha256(b"".join(p.numpy().tobytes() for p in s.parameters.values()))
        return f"weights {digest.hexdigest()} loss {loss.hex()}"


def main() -> None:
    given = arguments()
    faulty = any(os.environ.get(name) == "1" for name in ("RANK", "OMPI_COMM_WORLD_RANK", "PMI_RANK"))
    if faulty and given.fault == "absent":
        sys.exit(0)
    if faulty and given.fault == "version":
        tlrt.__version__ = "9.9.9"
    # a busy machine may start one rank long after another
    join_timeout = given.timeout if given.fault == "absent" else 60.0
    with distributed.join(timeout=given.timeout, join_timeout=join_timeout, transport=given.transport) as group:
        print(train(group, given))


if __name__ == "__main__":
    main()
