"""``python -m bench.steps``: training steps and single operations beside PyTorch, eager and compiled, in one run.

Each row does the same work in both libraries: same sizes, same initial weights, same optimiser, batches copied to the device
in every step. A sample is a number of steps between two synchronisations, divided by their number, so it holds whatever is
slower, Python or the device. Samples of the two alternate, so that a disturbance meets both. The first losses of both are in
the report: they differ by rounding alone.

Rows: one operation on 8 and on 2^20 elements (the bare kernel, on the tape, on the session); an MLP of 64, 64, 64 and 1 units on
a batch of 32 with SGD; a convolutional network with batch normalisation and Adam; the GPT of ``examples.char_gpt`` without
dropout, AdamW and clipping included. A row "captured" is the same step by ``Session.capture``, beside PyTorch eager again; on
CUDA one more sets the MLP beside PyTorch's own CUDA graph, and a captured step stands beside the sum of what its kernels,
copies and fills take on the GPU. With ``--compile`` the steps stand beside ``torch.compile`` of the model and its loss too;
optimisers are PyTorch's own in either case.
"""

import argparse
import platform
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass
from functools import partial
from itertools import count, pairwise
from pathlib import Path
from typing import Any

import numpy as np

import tlrt
from audit.environment import now
from bench.measure import Timing, device_of, import_torch, summarise
from tlrt import Session, TensorRef, kernels, nn, optim
from tlrt.tape import Tape
from tlrt.verify.documents import write_document
from tlspec.drawn import generator
from tlspec.registry import MATH

#: seconds of each sample, and how often the two take turns
SAMPLE, TURNS = 0.05, 3
#: seconds of a step that is a sample by itself, before which one call is warm-up enough
LONG = 1.0
#: operations between two resets of a tape, in the rows of one operation
CHAIN = 100
MLP = (64, 64, 64, 1)

Call = Callable[[], Any]


@dataclass
class Row:
    """One comparison; ratios are their time over ours, `losses` are those of the first step, ours and theirs."""

    step: str
    size: str
    math: str
    ours_ms: float
    spread_ms: float
    torch_ms: float | None = None
    torch_spread_ms: float | None = None
    ratio: float | None = None
    losses: list[float] | None = None
    #: the same step with the model and its loss compiled by torch.compile
    compiled_ms: float | None = None
    compiled_spread_ms: float | None = None
    compiled_ratio: float | None = None
    #: calls of the driver's allocator during the samples
    driver_allocations: int = 0
    #: what the kernels, copies and fills of a captured step take on the GPU, and the step over that
    device_ms: float | None = None
    device_ratio: float | None = None


@dataclass
class Pair:
    """What a row compares: `inner` units of work per call of either side."""

    step: str
    size: str
    ours: Call
    theirs: Call | None
    inner: int = 1
    losses: list[float] | None = None
    compiled: Call | None = None
    captured: bool = False


class Bench:
    """A device, and PyTorch on the same one where it is installed."""

    def __init__(self, device: tlrt.Device, torch: Any, budget: float, compiles: bool = False) -> None:
        self.device, self.torch, self.budget, self.compiles = device, torch, budget, compiles
        self.place = device.name if device.is_cuda else "cpu"

    def to_torch(self, array: Any) -> Any:
        """An array of the peer's, on its device."""
        return self.torch.from_numpy(array).to(self.place)

    def _synchronize_torch(self) -> None:
        if self.device.is_cuda:
            self.torch.cuda.synchronize(self.place)

    def row(self, pair: Pair) -> Row:
        ours = Clock(pair.ours, self.device.synchronize)
        before = self.device.memory().driver_allocations
        theirs, compiled = (call and Clock(call, self._synchronize_torch) for call in (pair.theirs, pair.compiled))
        for _ in range(TURNS):
            for clock in filter(None, (ours, theirs, compiled)):
                clock.run(self.budget / TURNS)
        allocations = self.device.memory().driver_allocations - before
        a = ours.timing(pair.inner)
        row = Row(
            pair.step,
            pair.size,
            self.device.math,
            a.median,
            a.spread,
            losses=pair.losses,
            driver_allocations=allocations,
        )
        if theirs is not None:
            b = theirs.timing(pair.inner)
            row.torch_ms, row.torch_spread_ms, row.ratio = b.median, b.spread, b.median / a.median
        if compiled is not None:
            c = compiled.timing(pair.inner)
            row.compiled_ms, row.compiled_spread_ms, row.compiled_ratio = c.median, c.spread, c.median / a.median
        if pair.captured and self.torch is not None and self.device.is_cuda:
            row.device_ms = self.device_time(pair.ours)
            row.device_ratio = a.median / row.device_ms
        return row

    def device_time(self, call: Call, count: int = 20) -> float:
        """Milliseconds that the kernels, copies and fills of a call take on the GPU, as CUPTI records them for PyTorch's
        profiler; gaps between them and the host's work are not in it."""
        activities = [self.torch.profiler.ProfilerActivity.CUDA]
        for repetitions in (1, count):  # the first starts CUPTI
            with self.torch.profiler.profile(activities=activities) as profile:
                for _ in range(repetitions):
                    call()
                self.device.synchronize()
        on_device = self.torch.autograd.DeviceType.CUDA
        spans = [e.time_range.elapsed_us() for e in profile.events() if e.device_type == on_device]
        return float(sum(spans)) / count / 1e3


class Clock:
    """Samples of one side. It starts warm: the first calls compile, fill caches and pools."""

    def __init__(self, call: Call, wait: Call) -> None:
        self.call, self.wait = call, wait
        self.samples: list[float] = []
        for _ in range(5):
            self.once = self._sample(1)
            if self.once > LONG:
                break
        self.count = max(1, int(SAMPLE / self.once))

    def _sample(self, count: int) -> float:
        self.wait()
        start = time.perf_counter()
        for _ in range(count):
            self.call()
        self.wait()
        return (time.perf_counter() - start) / count

    def run(self, budget: float) -> None:
        time.sleep(0.25)  # the other side's worker threads spin for a while after their last call
        if self.once <= LONG:
            self._sample(1)
        end = time.perf_counter() + budget
        taken, fewest = 0, 1 if self.once > LONG else 2
        while taken < fewest or time.perf_counter() < end:
            self.samples.append(self._sample(self.count))
            taken += 1

    def timing(self, inner: int) -> Timing:
        return summarise([s / inner * 1e3 for s in self.samples])


def operations(bench: Bench, stack: ExitStack) -> Iterator[Pair]:
    """tanh bare, on the tape, on the session; the last two record it for backward, as PyTorch's does."""
    device, torch = bench.device, bench.torch
    for n in (8, 2**20):
        host = generator("steps", "tanh", n).standard_normal(n).astype(np.float32)
        x = stack.enter_context(device.buffer(host))
        tape = stack.enter_context(Tape(device))
        session = stack.enter_context(Session(device))
        parameter = session.param(host, "x")
        theirs: Call | None = None
        recorded: Call | None = None
        if torch is not None:
            plain, tracked = bench.to_torch(host), bench.to_torch(host).requires_grad_()
            theirs, recorded = partial(torch.tanh, plain), partial(torch.tanh, tracked)

        def on_tape(tape: Tape = tape, x: Any = x, n: int = n) -> None:
            leaf = tape.leaf(tlrt.AnyBuffer((n,), x.share()))
            for _ in range(CHAIN):
                tape.tanh(leaf)
            tape.clear()

        def on_session(session: Session = session, parameter: Any = parameter) -> None:
            leaf = session.use(parameter)
            for _ in range(CHAIN):
                session.tanh(leaf)
            session.reset()

        size = f"n={n}"
        yield Pair("kernel tanh", size, partial(kernels.tanh, x), theirs)
        chain = None if recorded is None else _repeat(recorded)
        yield Pair("tape tanh", size, on_tape, chain, CHAIN)
        yield Pair("session tanh", size, on_session, chain, CHAIN)


def _repeat(call: Call) -> Call:
    def run() -> None:
        kept = [call() for _ in range(CHAIN)]
        kept.clear()

    return run


@dataclass
class Program:
    """A training step of ours: the loss of a batch, and what follows it."""

    session: Session
    optimizer: optim.Optimizer
    loss: Callable[..., TensorRef]
    batch: Callable[[], tuple[Any, ...]]
    clip: float | None = None

    def step(self, *batch: Any) -> TensorRef:
        value = self.loss(*batch)
        self.session.backward(value)
        if self.clip is not None:
            self.session.clip_grad_norm(self.clip)
        self.optimizer.step()
        return value

    def eager(self) -> Any:
        """A step; gives its loss as a device buffer."""
        kept = self.step(*self.batch()).value.share()
        self.session.reset()
        return kept


#: makes the peer's step from what its model and loss are wrapped in: nothing, or torch.compile
Peer = Callable[[Callable[[Call], Call]], Call]


def rows_of(
    bench: Bench, stack: ExitStack, name: str, size: str, eager: Program, again: Program, peer: Peer
) -> Iterator[Pair]:
    """The step eager and captured, both beside the peer's."""
    theirs = compiled = None
    if bench.torch is not None:
        theirs = peer(lambda function: function)
        compiled = peer(bench.torch.compile) if bench.compiles else None
    losses = first_losses(eager.eager, theirs, compiled)
    yield Pair(name, size, eager.eager, theirs, losses=losses, compiled=compiled)
    captured = stack.enter_context(again.session.capture(again.step, *again.batch()))
    first = [captured.outputs.item(), *losses[1:]]
    yield Pair(f"{name} captured", size, lambda: captured(*again.batch()), theirs, losses=first, compiled=compiled,
               captured=True)  # fmt: skip


def torch_step(optimizer: Any, loss: Call) -> Call:
    def step() -> Any:
        optimizer.zero_grad(set_to_none=True)
        value = loss()
        value.backward()
        optimizer.step()
        return value.detach()

    return step


def first_losses(ours: Call, *theirs: Call | None) -> list[float]:
    """Each side's first step."""
    return [float(step().numpy() if step is ours else step()) for step in (ours, *theirs) if step is not None]


def mlp(bench: Bench, stack: ExitStack) -> Iterator[Pair]:
    """An MLP with tanh and the mean squared error."""
    draw = generator("steps", "mlp")
    x, y = (draw.standard_normal((32, n)).astype(np.float32) for n in (MLP[0], MLP[-1]))

    def build() -> Program:
        s = stack.enter_context(Session(bench.device, seed=1))
        layers = [nn.Linear(s, m, n, name=f"l{i}") for i, (m, n) in enumerate(pairwise(MLP))]

        def loss(x: Any, y: Any) -> TensorRef:
            h: Any = s.const(x)
            for layer in layers[:-1]:
                h = s.tanh(layer(h))
            return s.mse_loss(layers[-1](h), s.const(y))

        optimizer = optim.SGD([p for layer in layers for p in layer.parameters()], lr=1e-3)
        stack.callback(optimizer.close)
        return Program(s, optimizer, loss, lambda: (x, y))

    ours, torch = build(), bench.torch

    def network() -> tuple[Any, Any]:
        places = [torch.nn.Linear(m, n) for m, n in pairwise(MLP)]
        model = torch.nn.Sequential(places[0], torch.nn.Tanh(), places[1], torch.nn.Tanh(), places[2])
        copy_weights(bench, model, ours.session)
        return model, torch.optim.SGD(model.parameters(), lr=1e-3)

    def peer(wrap: Callable[[Call], Call]) -> Call:
        model, optimizer = network()
        loss = wrap(lambda x, y: torch.nn.functional.mse_loss(model(x), y))
        return torch_step(optimizer, lambda: loss(bench.to_torch(x), bench.to_torch(y)))

    size = f"{'-'.join(map(str, MLP))}, batch 32, SGD"
    rows = list(rows_of(bench, stack, "MLP", size, ours, build(), peer))
    yield from rows
    if torch is not None and bench.device.is_cuda:
        graphed = torch_graph_step(bench, *network(), torch.nn.functional.mse_loss, x, y)
        yield Pair("MLP both captured", size, rows[1].ours, graphed)


def torch_graph_step(bench: Bench, model: Any, optimizer: Any, error: Any, x: Any, y: Any) -> Call:
    """PyTorch's step as one CUDA graph, as its documentation has it: warmed up beside, captured, then the batch copied to
    where the graph reads it and the graph replayed."""
    cuda, fixed = bench.torch.cuda, [bench.to_torch(x), bench.to_torch(y)]
    there = [bench.torch.from_numpy(a) for a in (x, y)]

    def step() -> Any:
        optimizer.zero_grad(set_to_none=True)
        loss = error(model(fixed[0]), fixed[1])
        loss.backward()
        optimizer.step()
        return loss

    beside = cuda.Stream(bench.place)
    beside.wait_stream(cuda.current_stream(bench.place))
    with cuda.stream(beside):
        for _ in range(3):
            step()
    cuda.current_stream(bench.place).wait_stream(beside)
    graph = cuda.CUDAGraph()
    optimizer.zero_grad(set_to_none=True)
    with cuda.graph(graph):
        loss = step()

    def replay() -> Any:
        for place, array in zip(fixed, there, strict=True):
            place.copy_(array)
        graph.replay()
        return loss

    return replay


def copy_weights(bench: Bench, model: Any, session: Session) -> None:
    """Our trainable weights into PyTorch's model, in order, and the model to its device."""
    ours = [p.value for p in session.parameters.values() if p.requires_grad]
    with bench.torch.no_grad():
        for theirs, value in zip(model.parameters(), ours, strict=True):
            theirs.copy_(bench.torch.tensor(value))
    model.to(bench.place)


def convnet(bench: Bench, stack: ExitStack, size: int, channels: int, batch: int) -> Iterator[Pair]:
    """The network of ``examples.digits`` without dropout, on random images."""
    c, flat = channels, 4 * channels * (size // 4) ** 2
    draw = generator("steps", "convnet", size)
    x = draw.standard_normal((batch, 1, size, size)).astype(np.float32)
    labels = draw.integers(0, 10, batch)

    def build() -> Program:
        s = stack.enter_context(Session(bench.device, seed=1))
        model = nn.Sequential(
            nn.Conv(s, 1, c, 3, padding=1, bias=False, name="conv1"), nn.BatchNorm(s, c, name="norm1"), s.relu,
            nn.Conv(s, c, 2 * c, 3, padding=1, bias=False, name="conv2"), nn.BatchNorm(s, 2 * c, name="norm2"), s.relu,
            nn.MaxPool(2), nn.Conv(s, 2 * c, 4 * c, 3, padding=1, name="conv3"), s.relu, nn.MaxPool(2),
            lambda h: h.reshape((-1, flat)), nn.Linear(s, flat, 10, name="classes"),
        )  # fmt: skip
        optimizer = optim.Adam(model.parameters(), lr=1e-3)
        stack.callback(optimizer.close)
        loss = lambda x, labels: s.cross_entropy(model(s.const(x), training=True), labels)
        return Program(s, optimizer, loss, lambda: (x, labels))

    ours = build()

    def peer(wrap: Callable[[Call], Call]) -> Call:
        n = bench.torch.nn
        model = n.Sequential(
            n.Conv2d(1, c, 3, padding=1, bias=False), n.BatchNorm2d(c), n.ReLU(),
            n.Conv2d(c, 2 * c, 3, padding=1, bias=False), n.BatchNorm2d(2 * c), n.ReLU(), n.MaxPool2d(2),
            n.Conv2d(2 * c, 4 * c, 3, padding=1), n.ReLU(), n.MaxPool2d(2), n.Flatten(), n.Linear(flat, 10),
        )  # fmt: skip
        copy_weights(bench, model, ours.session)
        loss = wrap(lambda x, labels: n.functional.cross_entropy(model(x), labels))
        adam = bench.torch.optim.Adam(model.parameters(), lr=1e-3)
        return torch_step(adam, lambda: loss(bench.to_torch(x), bench.to_torch(labels)))

    label = f"{size}x{size}, channels {c}-{4 * c}, batch {batch}, Adam"
    yield from rows_of(bench, stack, "conv net", label, ours, build(), peer)


def char_gpt(bench: Bench, stack: ExitStack, preset: str) -> Iterator[Pair]:
    """The example's model and its step, through its own builder."""
    from examples import char_gpt as example

    settings: dict[str, Any] = {**example.PRESETS[preset], "dropout": 0.0}

    def build() -> tuple[Program, Any]:
        s = stack.enter_context(Session(bench.device, seed=1))
        program = example.build(s, settings)
        stack.callback(program.optimizer.close)
        steps = count()

        def batch() -> tuple[Any, ...]:
            k = next(steps)
            program.optimizer.lr = program.rate(k)  # type: ignore[attr-defined]
            return program.batch(k)

        return Program(s, program.optimizer, program.loss, batch, program.clip), program

    ours, program = build()

    def peer(wrap: Callable[[Call], Call]) -> Call:
        from examples.torch_gpt import Peer

        model, steps = Peer(program, settings, bench.place, wrap), count()
        return lambda: model.step(next(steps), ours.session.seed)

    names = ("layers", "heads", "width", "context", "batch")
    label = ", ".join(f"{name} {settings[name]}" for name in names)
    yield from rows_of(bench, stack, f"char-GPT {preset}", label, ours, build()[0], peer)


#: the rows by the name that chooses them
GROUPS: dict[str, Callable[[Bench, ExitStack], Iterator[Pair]]] = {
    "op": operations, "mlp": mlp, "conv": partial(convnet, size=8, channels=16, batch=64),
    "gpt-small": partial(char_gpt, preset="small"), "conv-large": partial(convnet, size=32, channels=64, batch=256),
    "gpt-large": partial(char_gpt, preset="large"),
}  # fmt: skip


def measure(device: tlrt.Device, torch: Any, wanted: Sequence[str], budget: float, compiles: bool = False) -> list[Row]:
    """The rows, printed as they come. Everything a group made is released before the next one."""
    bench, rows = Bench(device, torch, budget, compiles), []
    for name in filter(wanted.__contains__, GROUPS):
        with ExitStack() as stack:
            for pair in GROUPS[name](bench, stack):
                rows.append(bench.row(pair))
                show(rows[-1])
        device.collect()
        if torch is not None and device.is_cuda:
            torch.cuda.empty_cache()
    return rows


def show(row: Row) -> None:
    there = "" if row.torch_ms is None else f"{row.torch_ms:11.4f} {row.torch_spread_ms:9.4f} {row.ratio:7.2f}x"
    if row.compiled_ms is not None:
        there += f" {row.compiled_ms:11.4f} {row.compiled_ratio:7.2f}x"
    if row.device_ms is not None:
        there += f"  {row.device_ratio:.2f} of {row.device_ms:.4f} ms on the GPU"
    print(f"{row.step:24} {row.size:46} {row.math:12} {row.ours_ms:11.4f} {row.spread_ms:9.4f} {there}", flush=True)


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m bench.steps", description=(__doc__ or "").split("\n\n")[0])
    parser.add_argument("--device", default=None, help="cpu, cuda, cuda:1; default: cuda where there is one, else cpu")
    parser.add_argument(
        "--steps",
        help=f"comma-separated choice of {', '.join(GROUPS)} (default: all on CUDA, no large ones on the CPU)",
    )
    parser.add_argument("--math", choices=(*MATH, "both"), default="fast", help="how contexts compute (default fast)")
    parser.add_argument("--budget", type=float, default=1.5, help="seconds of samples for each side of a row")
    parser.add_argument("--json", type=Path, help="write all figures to a file")
    parser.add_argument("--no-torch", action="store_true", help="leave PyTorch out")
    parser.add_argument(
        "--compile", action="store_true", help="time torch.compile of the models too, which takes minutes to compile"
    )
    args = parser.parse_args(argv)
    modes = MATH if args.math == "both" else (args.math,)
    device = device_of(args.device, modes[0])
    wanted = args.steps.split(",") if args.steps else [c for c in GROUPS if device.is_cuda or "large" not in c]
    if unknown := set(wanted) - GROUPS.keys():
        parser.error(f"no step {', '.join(sorted(unknown))}; there are {', '.join(GROUPS)}")
    torch = None if args.no_torch else import_torch(device)
    print(f"{device.describe()}; PyTorch {getattr(torch, '__version__', 'absent')}")
    print(
        f"{'step':24} {'size':46} {'mode':12} {'ours ms':>11} {'± ms':>9} {'PyTorch ms':>11} {'± ms':>9} {'faster':>8}"
        + (f" {'compiled ms':>11} {'faster':>8}" if args.compile else "")
    )
    rows = [
        r for math in modes for r in measure(device_of(args.device, math), torch, wanted, args.budget, args.compile)
    ]
    if args.json:
        report = {
            "date": now(), "device": device.describe(), "build": tlrt.build_info(),
            "python": platform.python_version(),
            "torch": getattr(torch, "__version__", None), "threads": tlrt.threads(), "rows": [asdict(r) for r in rows],
        }  # fmt: skip
        write_document(args.json, report)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
