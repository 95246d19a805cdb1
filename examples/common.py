"""What the examples share: the command line, the training loop, checkpoints, progress, curves and figures.

An example gives an :class:`Example`: its presets and a function that builds a :class:`Program` on a session. What happens at
step k follows from the settings, the seed, k, and a checkpoint (parameters, optimiser, random generator). So a resumed run
continues bit for bit.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

import tlrt
from tlrt import Captured, Session, TensorRef, checkpoint, ledger
from tlrt._terminal import Progress
from tlrt.optim import Optimizer

Settings = dict[str, Any]

NOT_INSTALLED = "is not installed; the extra 'examples' has it: pip install 'torchlean-cuda[examples]'"
#: steps after which the memory pool holds every size that a step allocates
WARM = 20


@dataclass
class Program:
    """A model with its data, ready to train."""

    optimizer: Optimizer
    #: the arrays of step k
    batch: Callable[[int], tuple[Any, ...]]
    #: the loss of a batch, recorded on the session
    loss: Callable[..., TensorRef]
    #: the learning rate of step k
    rate: Callable[[int], float]
    #: figures of the trained model, by name
    evaluate: Callable[[], dict[str, float]]
    #: the limit of the global norm of the gradients; None for no limit
    clip: float | None = None
    #: further entries of the report about model and data
    about: dict[str, Any] = field(default_factory=dict)
    #: what `Example.after` uses
    kept: dict[str, Any] = field(default_factory=dict)
    #: whether steps are captured, and the captured step once there is one
    capture: bool = False
    captured: Captured | None = None


@dataclass(frozen=True)
class Example:
    """One example: `build` makes its program on a session from the settings of a preset."""

    name: str
    about: str
    presets: Mapping[str, Mapping[str, int | float]]
    build: Callable[[Session, Settings], Program]
    #: adds the example's arguments to the command line
    arguments: Callable[[argparse.ArgumentParser], None] | None = None
    #: raises SystemExit for settings and arguments that do not go together
    check: Callable[[Settings, argparse.Namespace], None] | None = None
    #: called with the session, the program, the arguments and the report once the model is trained
    after: Callable[[Session, Program, argparse.Namespace, dict[str, Any]], None] | None = None


def main(example: Example, argv: Sequence[str] | None = None) -> dict[str, Any]:
    """Runs an example from the command line and returns its report. Raises SystemExit for bad arguments."""
    arguments = _parser(example).parse_args(argv)
    settings = _settings(example, arguments)
    if example.check is not None:
        example.check(settings, arguments)
    folder = Path(arguments.out)
    folder.mkdir(parents=True, exist_ok=True)
    if arguments.threads:
        tlrt.set_threads(arguments.threads)
    plot = _pyplot(arguments)
    with Session(arguments.device, seed=arguments.seed) as session:
        _say(arguments, f"{example.name} on {session.device.describe()}, settings {settings}")
        program = example.build(session, settings)
        program.capture = arguments.capture
        report: dict[str, Any] = {
            "example": example.name, "device": session.device.describe(), "preset": arguments.preset,
            "seed": arguments.seed, "settings": settings,
            "parameters": sum(p.size for p in session.parameters.values() if p.requires_grad), **program.about,
        }  # fmt: skip
        try:
            _train(example, session, program, settings, arguments, report)
            if report["finished"]:
                report.update(_evaluate(session, program))
                if example.after is not None:
                    example.after(session, program, arguments, report)
        finally:
            program.optimizer.close()
    _write(example, folder, report, plot, arguments)
    return report


# ---- the command line


def _parser(example: Example) -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog=f"python -m examples.{example.name}",
        description=example.about,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--device", default="cpu", help="spec (float64), cpu, cuda, cuda:1 (default: cpu)")
    parser.add_argument("--preset", choices=sorted(example.presets, reverse=True), default="small")
    parser.add_argument("--steps", type=_count, help="training steps (default: the preset's)")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--out", default=f"out/examples/{example.name}", help="folder for curve, checkpoint and report")
    parser.add_argument("--resume", action="store_true", help="continue from the checkpoint in the folder")
    parser.add_argument("--save-every", type=_count, default=200, metavar="N", help="steps between checkpoints")
    parser.add_argument(
        "--stop-at", type=_count, metavar="N", help="save after N steps and stop there, to resume later"
    )
    parser.add_argument("--threads", type=_count, help="CPU threads")
    parser.add_argument("--capture", action="store_true", help="capture the step: the same bits without Python's tape")
    parser.add_argument("--ledger", metavar="FILE", help="record every step, to be audited; --resume continues it")
    parser.add_argument("--set", action="append", default=[], metavar="NAME=VALUE", help="another value for a setting")
    parser.add_argument("--json", action="store_true", help="print the report as JSON, and nothing else")
    if example.arguments is not None:
        example.arguments(parser)
    return parser


def _count(text: str) -> int:
    number = int(text)
    if number < 1:
        raise argparse.ArgumentTypeError(f"got {number}, expected 1 or more")
    return number


def _settings(example: Example, arguments: argparse.Namespace) -> Settings:
    """The preset with what the command line changes."""
    settings: Settings = dict(example.presets[arguments.preset])
    for text in arguments.set:
        name, equals, value = text.partition("=")
        if not equals or name not in settings:
            raise SystemExit(f"--set: got {text!r}, expected NAME=VALUE, NAME one of {', '.join(settings)}")
        try:
            settings[name] = type(settings[name])(value)
        except ValueError:
            raise SystemExit(f"--set: {name}: got {value!r}, expected {type(settings[name]).__name__}") from None
    if arguments.steps is not None:
        settings["steps"] = arguments.steps
    return settings


def _say(arguments: argparse.Namespace, text: str) -> None:
    if not arguments.json:
        print(text, flush=True)


# ---- training


def _train(
    example: Example, session: Session, program: Program, settings: Settings, arguments: argparse.Namespace,
    report: dict[str, Any],
) -> None:  # fmt: skip
    """Trains from step 0, or from the checkpoint's, and fills the report."""
    path = Path(arguments.out) / f"{example.name}.safetensors"
    losses: list[float] = []
    if arguments.resume:
        losses = _resume(path, session, program, settings)
        _say(arguments, f"continued from {path} at step {len(losses)}")
    first, steps = len(losses), settings["steps"]
    last = min(steps, arguments.stop_at or steps)

    def save() -> None:
        checkpoint.save(path, session, program.optimizer, {"settings": settings, "losses": losses})

    memory: dict[str, dict[str, int]] = {}
    held: list[Any] = []
    started = time.perf_counter()
    with (
        progress(first, last, arguments) as show, _interruptible() as should_stop,
        _recorded(session, program, settings, arguments) as run,
    ):  # fmt: skip
        for k in run.steps(last, first) if run is not None else range(first, last):
            held.append(_step(session, program, k))
            ends = k + 1 == last or should_stop()
            if k + 1 - first == WARM:
                memory["start"] = _memory(session, held, losses)
            if (k + 1) % 10 == 0 or ends:  # losses are read in tens: reading one waits for the device
                _read(held, losses)
                show(k + 1, losses[-1])
            if (k + 1) % arguments.save_every == 0:
                _read(held, losses)
                save()
            if ends:
                break
    session.device.synchronize()
    seconds = time.perf_counter() - started
    memory["end"] = _memory(session, held, losses)
    save()
    if len(losses) < steps:
        _say(arguments, f"stopped after step {len(losses)} of {steps}; --resume continues from {path}")
    ran = len(losses) - first
    report.update(
        steps=len(losses), finished=len(losses) >= steps, final_loss=float(np.mean(losses[-10:])) if losses else None,
        wall_seconds=round(seconds, 3), steps_per_second=round(ran / seconds, 3) if ran else 0.0, memory=memory,
        losses=losses,
    )  # fmt: skip


def _recorded(
    session: Session, program: Program, settings: Settings, arguments: argparse.Namespace
) -> contextlib.AbstractContextManager[ledger.Ledger | None]:
    """The ledger of the option --ledger, if given."""
    if arguments.ledger is None:
        return contextlib.nullcontext()
    resume = arguments.resume and Path(arguments.ledger).exists()
    given = {"settings": settings, "capture": program.capture}
    return ledger.record(arguments.ledger, session, program.optimizer, settings=given, resume=resume)


def audited(example: Example) -> Callable[[Session, Settings], None]:
    """The program that `python -m tlrt audit examples.NAME:program LEDGER` runs: the same steps, and nothing else."""

    def program(session: Session, settings: Settings) -> None:
        made = example.build(session, settings["settings"])
        made.capture = settings["capture"]
        with ledger.record("", session, made.optimizer) as run:
            for k in run.steps(settings["settings"]["steps"]):
                _step(session, made, k).release()

    return program


@contextlib.contextmanager
def _interruptible() -> Iterator[Callable[[], bool]]:
    """Defers the first Ctrl-C to the end of the step, so that the checkpoint holds whole steps; the second one raises.

    Yields a function that returns whether there was one. Python delivers signals to the main thread only.
    """
    interrupted = threading.Event()
    if threading.current_thread() is not threading.main_thread():
        yield interrupted.is_set
        return

    def stop(number: int, frame: Any) -> None:
        interrupted.set()
        signal.signal(signal.SIGINT, before)

    before = signal.signal(signal.SIGINT, stop)
    try:
        yield interrupted.is_set
    finally:
        signal.signal(signal.SIGINT, before)


def _step(session: Session, program: Program, k: int) -> Any:
    """One step of training; its loss, on the device."""
    program.optimizer.lr = program.rate(k)
    batch = program.batch(k)

    def work(*batch: Any) -> Any:
        loss = program.loss(*batch)
        session.backward(loss)
        if program.clip is not None:
            session.clip_grad_norm(program.clip)
        program.optimizer.step()
        return loss.value

    if program.captured is not None:
        return program.captured(*batch).copy()
    if program.capture:
        program.captured = session.capture(work, *batch)
        return program.captured.outputs.copy()
    value = work(*batch).share()
    session.reset()
    return value


def _read(held: list[Any], losses: list[float]) -> None:
    """Downloads the losses that are still on the device."""
    for value in held:
        losses.append(float(value.numpy()))
        value.release()
    held.clear()


def _memory(session: Session, held: list[Any], losses: list[float]) -> dict[str, int]:
    """Live bytes and driver calls between two steps, after all losses were downloaded."""
    _read(held, losses)
    now = session.device.memory()
    return {"live_bytes": now.live_bytes, "driver_allocations": now.driver_allocations}


def _resume(path: Path, session: Session, program: Program, settings: Settings) -> list[float]:
    """Restores the checkpoint and returns the losses so far."""
    if not path.exists():
        raise SystemExit(f"--resume: {path}: no such file")
    extra = checkpoint.load(path, session, program.optimizer)
    if extra.get("settings") != settings:
        raise SystemExit(f"--resume: {path}: got settings {settings}, expected {extra.get('settings')}")
    return [float(v) for v in extra["losses"]]


def _evaluate(session: Session, program: Program) -> dict[str, float]:
    with session.no_grad():
        figures = program.evaluate()
    session.reset()
    return figures


# ---- output


@contextlib.contextmanager
def progress(first: int, last: int, arguments: argparse.Namespace) -> Iterator[Callable[[int, float], None]]:
    """A bar on standard error, or lines where that is no terminal; yields a function of step and loss."""
    if arguments.json:
        yield lambda step, loss: None
        return
    with Progress(last, "steps", done=first) as bar:
        yield lambda step, loss: bar.advance(step - bar.done, f"step {step}/{last}  loss {loss:.4f}")


def _pyplot(arguments: argparse.Namespace) -> Any:
    """matplotlib with a back end for files, or None and a note."""
    try:
        import matplotlib
    except ImportError:
        print(f"no loss curve: matplotlib {NOT_INSTALLED}", file=sys.stderr)
        return None
    matplotlib.use("Agg")
    import matplotlib.pyplot

    return matplotlib.pyplot


def _write(example: Example, folder: Path, report: dict[str, Any], plot: Any, arguments: argparse.Namespace) -> None:
    """The curve and the report as files, and the report on standard output."""
    curves = {"tlrt": report["losses"], **{k: v["losses"] for k, v in report.get("peers", {}).items()}}
    if plot is not None and report["losses"]:
        report["curve"] = str(folder / f"{example.name}.png")
        draw(plot, report["curve"], curves, example.name)
    (folder / f"{example.name}.json").write_text(json.dumps(report, indent=1) + "\n")
    short = {k: v for k, v in report.items() if k not in ("losses", "settings")}
    if "peers" in report:
        short["peers"] = {k: {n: v for n, v in p.items() if n != "losses"} for k, p in report["peers"].items()}
    if arguments.json:
        print(json.dumps(short))
    else:
        for name, value in short.items():
            print(f"{name:20} {value:.6g}" if isinstance(value, float) else f"{name:20} {value}")


def draw(plot: Any, path: str, curves: Mapping[str, Sequence[float]], title: str) -> None:
    """Loss over step, every curve as drawn and as its mean over 20 steps, on a logarithmic axis."""
    figure, axes = plot.subplots(figsize=(7, 4))
    for i, (label, losses) in enumerate(curves.items()):
        axes.plot(np.arange(1, len(losses) + 1), losses, color=f"C{i}", alpha=0.3, linewidth=0.8)
        window = min(20, len(losses))
        smooth = np.convolve(losses, np.ones(window) / window, "valid")
        axes.plot(np.arange(window, len(losses) + 1), smooth, color=f"C{i}", label=label)
    axes.set(xlabel="step", ylabel="loss", title=title, yscale="log")
    axes.legend()
    axes.grid(alpha=0.3, which="both")
    figure.tight_layout()
    figure.savefig(path, dpi=120)
    plot.close(figure)


# ---- data


class Batches:
    """The indices of batch k out of n samples: every epoch has another permutation, and drops an incomplete last batch."""

    def __init__(self, n: int, size: int, seed: int) -> None:
        if not 1 <= size <= n:
            raise SystemExit(f"batch: got {size}, expected 1 <= batch <= {n}, the number of samples")
        self.n, self.size, self.seed = n, size, seed
        self._epoch = -1
        self._order: npt.NDArray[np.int64] = np.zeros(0, np.int64)

    def __call__(self, k: int) -> npt.NDArray[np.int64]:
        epoch, place = divmod(k, self.n // self.size)
        if epoch != self._epoch:
            self._epoch = epoch
            self._order = np.random.default_rng([self.seed, epoch]).permutation(self.n)
        return self._order[place * self.size : (place + 1) * self.size]


def chunks(n: int, size: int) -> Iterator[slice]:
    """Slices of at most `size` that cover n samples in order."""
    for start in range(0, n, size):
        yield slice(start, min(start + size, n))
