"""One rank's part of what :mod:`bench.ranks` times: how long exchanges take, and steps of a GPT by three loops.

The loops have the same model, optimiser and clipping, and the same batches, one a rank: ``ours`` is DataParallel; ``allreduce``
is its step with NCCL's own all-reduce, after which every rank updates all parameters; ``ddp`` is PyTorch's
DistributedDataParallel, over NCCL on GPUs and gloo on CPUs.
"""

import argparse
import json
import math
import os
import sys
import time
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from tlrt import Session, distributed, kernels, optim
from tlrt._binding.capsules import data_address
from tlrt._binding.exchange import lend_to
from tlrt._binding.together import Change, set_and_call
from tlrt.distributed import buckets, tree
from tlrt.distributed.nccl import DeviceExchange, communicator_of
from tlrt.distributed.parallel import BUCKET, DataParallel, _Gradients

#: models by name, as settings of examples.char_gpt; the batch is that of one rank
MODELS: dict[str, dict[str, Any]] = {
    "char-gpt": {"batch": 64, "context": 256, "width": 384, "layers": 6, "heads": 6},
    "gpt-100m": {"batch": 16, "context": 512, "width": 768, "layers": 14, "heads": 12},
    "tiny": {"batch": 4, "context": 32, "width": 64, "layers": 2, "heads": 2},
}
LOOPS = ("ours", "allreduce", "ddp")
#: lengths of exchanges, in float32
LENGTHS = tuple(1 << k for k in range(4, 25, 4))
#: steps before those that are timed, and the samples that these are divided into
WARM_UP, SAMPLES = 3, 5
#: what begins the line with a rank's result
RESULT = "RESULT "

#: of calls of one length
SECONDS = 0.5

#: the median of samples in ms, and half the distance of the quartiles
Timing = tuple[float, float]


def _time(call: Callable[[int], Any], wait: Callable[[], Any], steps: int) -> Timing:
    """Milliseconds of a step, from samples of several."""
    each = max(steps // SAMPLES, 1)
    for k in range(WARM_UP):
        call(k)
    wait()
    found, k = [], WARM_UP
    for _ in range(SAMPLES):
        start = time.perf_counter()
        for _ in range(each):
            call(k)
            k += 1
        wait()
        found.append(1e3 * (time.perf_counter() - start) / each)
    low, middle, high = np.percentile(found, (25, 50, 75))
    return float(middle), float(high - low) / 2


# ---- links


def links(device: str, transport: str, largest: int) -> dict[str, Any]:
    """Microseconds of an exchange in both directions at once, and of additions, by the number of bytes. Each rank meets the one
    whose number differs in the last bit, and on each further level the one that differs in the next."""
    with distributed.join(transport=transport) as group, Session(group.device(device)) as session:
        rows, lengths = [], [n for n in LENGTHS if 4 * n <= largest]
        for level in range(tree.levels(group.size)):
            partner = group.rank ^ 1 << level
            for n in lengths:
                call, wait = _exchange(group, session.device, transport, partner, n)
                rows.append({"level": level, "bytes": 4 * n, **_measure(group, call, wait)})
        adds = []
        for n in lengths:
            if transport == "nccl":
                a, b = session.device.zeros(n), session.device.zeros(n)
                call, wait = lambda a=a, b=b: kernels.add(a, b, out=a), session.device.synchronize
            else:
                x, y = np.zeros(n, np.float32), np.zeros(n, np.float32)
                call, wait = lambda x=x, y=y: np.add(x, y, out=x), lambda: None
            adds.append({"bytes": 4 * n, **_measure(group, call, wait)})
        return {"exchanges": rows, "additions": adds, "rank": group.rank}


def _exchange(
    group: Any, device: Any, transport: str, partner: int, n: int
) -> tuple[Callable[[], Any], Callable[[], Any]]:
    if transport == "nccl":
        link = communicator_of(group, device)
        kept = [link.device.zeros(n) for _ in range(2)]
        out, into = ((data_address(x, "links"), n) for x in kept)

        def swap() -> None:
            with link.watched():
                link.swap(partner, [out], [into])

        return swap, lambda kept=kept: link.wait()
    x, y = np.zeros(n, np.float32), np.zeros(n, np.float32)
    return lambda: group.exchange(partner, x, y), lambda: None


def _measure(group: Any, call: Callable[[], Any], wait: Callable[[], Any]) -> dict[str, float]:
    """Microseconds of a call and its wait on the slowest rank: the median, and the tenth part from below, which other programs on
    the machine delay less."""
    found: list[float] = []
    for count in (3, 0):
        group.barrier()
        for _ in range(count or int(min(max(SECONDS / max(group.gather(found[-1])), 10), 2000))):
            start = time.perf_counter()
            call()
            wait()
            found.append(time.perf_counter() - start)
    low, middle = np.percentile(found[3:], (10, 50)) * 1e6
    every = group.gather([float(middle), float(low)])
    return {"us": max(m for m, _ in every), "low_us": max(k for _, k in every)}


# ---- steps


def _build(session: Session, settings: dict[str, Any]) -> Any:
    from examples import char_gpt

    common = {"steps": 1000, "dropout": 0.0, "rate": 1e-3, "decay": 0.1, "tests": 1}
    program = char_gpt.build(session, {**common, **settings})
    hyper = program.optimizer._settings()
    program.optimizer.close()
    return program, hyper


class AllReduceExchange(DeviceExchange):
    """Every rank gets all sums, in an order of NCCL's."""

    def start(self, bucket: Any, gradients: Sequence[Any]) -> None:
        link, lengths = self._link, self.layout.lengths
        self._found.update(zip(bucket.places, gradients, strict=True))
        if link.device.is_cuda:
            self.session.device.order_before(link.device.stream)
        spans = []
        for place in bucket.places:
            borrowed, address = lend_to(self._found[place], link.device)
            self._borrowed.append(borrowed)
            spans.append((address, lengths[place]))
        with link.watched():
            link.all_reduce(spans)
            for borrowed in self._borrowed[-len(spans) :]:
                kernels.scale(borrowed, self.scale, out=borrowed)


class AllReduceTraining:
    """A step of DataParallel with that exchange, and one shard a rank."""

    _take = DataParallel._take

    def __init__(
        self, session: Session, make_optimizer: Callable[[Any], Any], group: Any, max_norm: float | None
    ) -> None:
        self.session, self.group, self.shards, self.overlap, self.max_norm = session, group, group.size, True, max_norm
        self._trained = [p for p in session.parameters.values() if p.requires_grad]
        self._layout = buckets.divide([math.prod(p.shape) for p in self._trained], group.size, BUCKET // 4)
        self._exchange = AllReduceExchange(session, group, self._trained, self._layout, 1 / group.size)
        self.optimizer = make_optimizer(self._trained)

    def step(self, loss: Callable[[int], Any]) -> float:
        session, gradients = self.session, _Gradients(self)  # type: ignore[arg-type]
        found = loss(self.group.rank)
        with gradients.during_backward(True):
            session.backward(found)
        value = session._node(found, "step").value.share()
        made, _ = self._take()
        session.reset()
        gradients.add_shard(made)
        own = float(value.numpy().item())
        value.release()
        changes: list[Change] = [(session.gradients, "_by_parameter", gradients.finish())]
        set_and_call(changes, [])
        mean = float(np.mean(self.group.gather(own)))
        if self.max_norm is not None:
            session.clip_grad_norm(self.max_norm)
        self.optimizer.step()
        session.reset()
        return mean


def ours(model: str, device: str, transport: str, steps: int, loop: str) -> dict[str, Any]:
    """Steps of DataParallel, or with NCCL's all-reduce."""
    with distributed.join(transport=transport) as group, Session(group.device(device), seed=1) as session:
        program, hyper = _build(session, MODELS[model])
        training: Any
        if loop == "allreduce":
            training = AllReduceTraining(session, lambda p: optim.AdamW(p, **hyper), group, program.clip)
        else:
            make = lambda p: optim.AdamW(p, **hyper)
            training = DataParallel(session, make, group, shards=group.size, max_norm=program.clip)
        losses = []

        def step(k: int) -> None:
            training.optimizer.lr = program.rate(k)
            losses.append(training.step(lambda shard: program.loss(*program.batch(k * group.size + shard))))

        ms, spread = _time(step, session.device.synchronize, steps)
        count = sum(math.prod(p.shape) for p in session.parameters.values())
        return {"ms": ms, "spread_ms": spread, "loss": losses[0], "parameters": count, "rank": group.rank}


def ddp(model: str, device: str, steps: int) -> dict[str, Any]:
    """Steps of PyTorch's DistributedDataParallel, on the model of examples.torch_gpt, which ends the process group itself."""
    import torch

    from examples.torch_gpt import Peer

    rank, size, local = (int(os.environ.get(n, d)) for n, d in (("RANK", 0), ("WORLD_SIZE", 1), ("LOCAL_RANK", 0)))
    place = f"cuda:{local}" if device == "cuda" else "cpu"
    settings = {**MODELS[model], "rate": 1e-3, "decay": 0.1, "dropout": 0.0}
    if device == "cuda":
        torch.cuda.set_device(local)
    torch.distributed.init_process_group("nccl" if device == "cuda" else "gloo")
    try:
        with Session("cpu", seed=1) as session:
            program, _ = _build(session, MODELS[model])
            peer = Peer(program, settings, place)

        class Model(torch.nn.Module):
            """The peer's function of its weights, which are the module's."""

            def __init__(self) -> None:
                super().__init__()
                for name, weight in list(peer.weights.items()):
                    peer.weights[name] = torch.nn.Parameter(weight.detach())
                    self.register_parameter(name.replace(".", "_"), peer.weights[name])

            def forward(self, x: Any) -> Any:
                return peer.logits(x)

        wrapped = torch.nn.parallel.DistributedDataParallel(Model(), device_ids=[local] if device == "cuda" else None)
        parameters = list(wrapped.parameters())
        optimizer = torch.optim.AdamW(parameters, lr=1e-3, betas=(0.9, 0.99), eps=1e-8, weight_decay=settings["decay"])
        losses = []

        def step(k: int) -> None:
            x, y = (torch.from_numpy(a.astype(np.int64)).to(place) for a in program.batch(k * size + rank))
            for group in optimizer.param_groups:
                group["lr"] = program.rate(k)
            loss = torch.nn.functional.cross_entropy(wrapped(x).flatten(0, 1), y.flatten())
            optimizer.zero_grad(set_to_none=True)
            loss.backward()
            torch.nn.utils.clip_grad_norm_(parameters, program.clip)
            optimizer.step()
            losses.append(loss.detach())

        wait = torch.cuda.synchronize if device == "cuda" else torch.distributed.barrier
        ms, spread = _time(step, wait, steps)
        first = losses[0].clone()
        torch.distributed.all_reduce(first)
        count = sum(p.numel() for p in parameters)
        return {"ms": ms, "spread_ms": spread, "loss": float(first) / size, "parameters": count, "rank": rank}
    finally:
        torch.distributed.destroy_process_group()


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m bench.rank_times", description=(__doc__ or "").split("\n\n")[0])
    parser.add_argument("what", choices=("links", *LOOPS))
    parser.add_argument("--model", choices=MODELS, default="tiny")
    parser.add_argument("--device", default="cpu", help="cpu, or cuda for one GPU a rank (%(default)s)")
    parser.add_argument("--transport", default="host")
    parser.add_argument("--steps", type=int, default=30)
    parser.add_argument("--largest", type=int, default=4 * LENGTHS[-1], help="bytes of the longest exchange")
    args = parser.parse_args(argv)
    if args.what == "links":
        found = links(args.device, args.transport, args.largest)
    elif args.what == "ddp":
        found = ddp(args.model, args.device, args.steps)
    else:
        found = ours(args.model, args.device, args.transport, args.steps, args.what)
    if found.pop("rank") == 0:
        print(f"{RESULT}{json.dumps(found)}", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
