"""Audits: the steps of a ledger are computed again, and the first one whose bits depart is named.

    python -m tlrt audit PROGRAM LEDGER [--device cpu] [--steps a:b] [--against cuda]

PROGRAM is FILE.py:function or module:function. The function takes a session, and the ledger's settings if it has a
parameter `settings`, makes its parameters and optimisers, and trains in the loop of :func:`tlrt.ledger.record`, as it did when
the ledger was written. Here the loop begins with the state of the nearest checkpoint, its steps are compared with the lines, and
the program ends with the last step that was asked for, or with the first that departs.

With ``math="reproducible"`` every operation gives the same bits on every device, so a run on a GPU can be audited on a CPU.
"""

from __future__ import annotations

import argparse
import hashlib
import inspect
import itertools
import json
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tlrt import checkpoint, kernels
from tlrt._chain import Chain, Entry, LedgerError, encode, fingerprints, read
from tlrt._program import load_program
from tlrt._terminal import Progress, format_table, program_name
from tlrt.context import device as open_device
from tlrt.errors import ArgumentError, TorchleanError, refusal
from tlrt.ledger import Ledger, Sink, digits_of
from tlrt.session import Session

__all__ = ["Departure", "Report", "audit"]

Program = Callable[..., Any]
#: seconds after which progress is shown
_PATIENCE = 2.0
#: stands for an update that there was not
_NO_UPDATE: Entry = {}
#: rows of a departure that are printed
_SHOWN = 20


class _Ended(BaseException):
    """The program has done what the audit needs of it."""


@dataclass(frozen=True)
class Departure:
    """What is not as the ledger says.

    Parameters
    ----------
    step : int or None
        The step; None: of the whole run.
    kind : str
        "input", "random", "hyperparameter", "update", "operation", "parameter", "state", "checkpoint", "chain" or
        "program".
    name : str
        Which of them.
    recorded, found : str
        What the ledger says, and what was computed again.
    """

    step: int | None
    kind: str
    name: str
    recorded: str = ""
    found: str = ""


@dataclass
class Report:
    """What :func:`audit` found; printing it gives the table.

    Parameters
    ----------
    path, head : str
        The file, and the hash of its last line.
    device : str
        Where the steps were computed again.
    first, stop : int
        The steps that were computed again, from one to before another.
    departures : list of Departure
        Those of the first step that departs.
    notes : list of str
        What the reader should know of ledger and machine.
    """

    path: str
    head: str
    device: str
    #: steps that were computed again, from one to before another
    first: int = 0
    stop: int = 0
    #: those of the first step that departs
    departures: list[Departure] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)

    @property
    def ok(self) -> bool:
        """Whether every bit is as recorded.

        Returns
        -------
        bool
            True without a departure.
        """
        return not self.departures

    def __str__(self) -> str:
        lines = [f"{self.path}: the last line's hash is {self.head}"]
        if self.stop > self.first:
            lines.append(f"computed again on {self.device}: steps {self.first} to {self.stop - 1}")
        if self.departures:
            step = self.departures[0].step
            lines.append(f"first departure: {'before the steps' if step is None else f'step {step}'}{self._reason}")
            rows = [(d.kind, d.name, d.recorded, d.found) for d in self.departures[:_SHOWN]]
            lines += format_table(("what", "which", "recorded", "computed again"), rows).splitlines()
            if len(self.departures) > _SHOWN:
                lines.append(f"and {len(self.departures) - _SHOWN} more")
        else:
            lines.append("every bit is as recorded")
        return "\n".join(lines + self.notes)

    @property
    def _reason(self) -> str:
        kinds = {d.kind for d in self.departures}
        for some, text in (
            ({"chain"}, "the file is not what was written"),
            ({"checkpoint"}, "a checkpoint is not what was written"),
            ({"program"}, "the program is another one"),
            ({"input"}, "other data went in"),
            ({"random"}, "other random numbers were drawn"),
            ({"hyperparameter", "update"}, "the optimiser was set otherwise"),
        ):
            if kinds & some:
                return f": {text}"
        return ": what went in is the same, and other bits came out"


# ---- comparing


def _differences(recorded: Entry, found: Entry, names: Sequence[tuple[str, str]]) -> Iterator[Departure]:
    """What one step's entries say differently, causes first. `names` are those of :class:`Replay`."""
    step = recorded["step"]
    nothing = ("nothing", "nothing")
    for i, (a, b) in enumerate(itertools.zip_longest(recorded["inputs"], found["inputs"], fillvalue=nothing)):
        if tuple(a) != tuple(b):
            yield Departure(step, "input", f"{i}: {a[0] if a is not nothing else b[0]}", *_short(a[1], b[1]))
    for name, a, b in _pairs(recorded["random"], found["random"]):
        yield Departure(step, "random", {"seed": "seed", "from": "draws before"}.get(name, "draws after"), a, b)
    for i, (a, b) in enumerate(itertools.zip_longest(recorded["updates"], found["updates"], fillvalue=_NO_UPDATE)):
        if not a or not b:
            yield Departure(step, "update", str(i), a.get("optimizer", "none"), b.get("optimizer", "none"))
            continue
        for name, x, y in _pairs(a, b):
            yield Departure(step, "hyperparameter", f"{a['optimizer']}.{name} of update {i}", x, y)
    if "operations" in recorded and "operations" in found:
        for a, b in itertools.zip_longest(recorded["operations"], found["operations"], fillvalue=nothing):
            if tuple(a) != tuple(b):
                yield Departure(step, "operation", a[0] if a is not nothing else b[0], *_short(a[1], b[1]))
                break  # what follows was computed from it
    yield from _state_differences(step, recorded["state"], found["state"], names)
    a, b = recorded.get("parameters_sha256"), found.get("parameters_sha256")
    if a and b and a != b:
        yield Departure(step, "parameter", "SHA-256 of all", *_short(a, b))


def _state_differences(step: int, recorded: str, found: str, names: Sequence[tuple[str, str]]) -> Iterator[Departure]:
    pairs = itertools.zip_longest(fingerprints(recorded), fingerprints(found), fillvalue="nothing")
    for name, (a, b) in zip(itertools.chain(names, itertools.repeat(("state", "of no name"))), pairs, strict=False):
        if a != b:
            yield Departure(step, *name, *_short(a, b))


def _pairs(recorded: Entry, found: Entry) -> Iterator[tuple[str, str, str]]:
    """The names whose values differ, which are numbers."""
    for name in dict.fromkeys([*recorded, *found]):
        if recorded.get(name) != found.get(name):
            yield name, f"{recorded.get(name)!r}", f"{found.get(name)!r}"


def _short(*digits: str) -> tuple[str, ...]:
    return tuple(d if len(d) < 20 else f"{d[:16]}…" for d in digits)


class Replay(Sink):
    """Compares the steps of a program with a ledger, or `only` keeps the entry of one step, with its operations."""

    lag = 1

    def __init__(self, chain: Chain, folder: Path, report: Report, only: int | None = None) -> None:
        self.chain, self.folder, self.report, self.only = chain, folder, report, only
        self.steps = chain.steps
        self.entry: Entry | None = None
        #: the step after the last one that was compared
        self.done: int | None = None
        header = chain.header
        self.names = [("parameter", p[0]) for p in header["parameters"]] + [("state", s) for s in header["states"]]
        self._start = time.monotonic()
        self._bar: Progress | None = None

    # ---- where it begins

    def begin(self, ledger: Ledger, total: int, first: int) -> tuple[int, int]:
        if self.done is not None:
            return first, min(total, self.report.stop)
        place, entry = self._nearest_checkpoint()
        if place >= total:  # a later loop of the program has it
            return total, total
        self.done = place
        header = ledger.header(None)
        for name, kind in (("parameters", "parameter"), ("states", "state"), ("optimizers", "optimizer")):
            a, b = self.chain.header[name], [list(x) if isinstance(x, tuple) else x for x in header[name]]
            if a != b:
                differ = next(x for x in itertools.zip_longest(a, b, fillvalue="nothing") if x[0] != x[1])
                self._depart([Departure(None, "program", kind, *map(str, differ))])
        if "checkpoint" in entry:
            checkpoint.load(self.folder / entry["checkpoint"]["file"], ledger.session, ledger.optimizers)
        found: Entry = {"inputs": [], "updates": [], "random": ledger.random(), "state": ledger.state(), "step": None}
        recorded = {**found, "random": {k: entry["random"][k] for k in ("seed", "to")}, "state": entry["state"]}
        self._depart(list(_differences(recorded, found, self.names)))
        self.report.first = place
        return place, min(total, self.report.stop)

    def _nearest_checkpoint(self) -> tuple[int, Entry]:
        """The last entry whose state can be had before the first step that is asked for, and the step that follows it."""
        wanted, best = self.report.first, None
        for entry in self.chain.entries:
            place = entry["step"] + (entry["kind"] == "step") if entry["kind"] in ("start", "step") else None
            saved = "checkpoint" in entry and (self.folder / entry["checkpoint"]["file"]).exists()
            if place is not None and place <= wanted and (saved or (entry["kind"] == "start" and place == 0)):
                best = (place, entry)
        if best is None:
            raise refusal(LedgerError, "audit", "steps", f"step {wanted}", "one at or after a checkpoint that is there")
        return best

    # ---- steps

    def wants_operations(self, step: int) -> bool:
        return step == self.only if self.only is not None else "operations" in self.steps.get(step, ())

    def wants_states(self, step: int) -> bool:
        recorded = self.steps.get(step)
        return recorded is None or len(fingerprints(recorded["state"])) > len(self.chain.header["parameters"])

    def wants_checkpoint(self, step: int) -> bool:
        return "parameters_sha256" in self.steps.get(step, ())

    def take(self, entry: Entry) -> None:
        step = entry["step"]
        self._advance(step)
        self.done = step + 1
        if self.only is None:
            self._depart(list(_differences(self.steps[step], _plain(entry), self.names)))
        elif step == self.only:
            self.entry = _plain(entry)
            raise _Ended

    def end(self, ledger: Ledger) -> None:
        """The program has done a loop's steps. If they are not all, another loop may follow."""
        last = self.chain.entries[-1]
        if self.done is None or ledger.next_step < self.report.stop:
            return
        if last["kind"] == "end" and last["step"] == ledger.next_step:
            a, b = last["parameters_sha256"], ledger.parameters_sha256()
            if a != b:
                self._depart([Departure(last["step"], "parameter", "SHA-256 of all", *_short(a, b))])
        raise _Ended

    def damaged_checkpoints(self) -> Iterator[Departure]:
        """The files of the steps to compare, and the one to begin with, that are not what was written."""
        begin, report = self._nearest_checkpoint()[1], self.report
        saved = [e for e in self.chain.entries if "checkpoint" in e]
        for entry in [e for e in saved if e is begin or report.first <= e["step"] < report.stop]:
            name, recorded = entry["checkpoint"]["file"], entry["checkpoint"]["sha256"]
            if not (file := self.folder / name).exists():
                continue
            with file.open("rb") as content:
                digest = hashlib.file_digest(content, "sha256").hexdigest()
            if digest != recorded:
                yield Departure(entry["step"], "checkpoint", name, *_short(recorded, digest))
                yield from self._damage(entry, file)
                return

    def _damage(self, entry: Entry, file: Path) -> Iterator[Departure]:
        """The tensors of a checkpoint whose bits are not those of its step."""
        cpu = open_device("cpu")
        try:
            with file.open("rb", buffering=0) as content:
                _, tensors = checkpoint._read_header(file, content.fileno())
                places = [f"{checkpoint._PREFIX * (kind == 'state')}{name}" for kind, name in self.names]
                found = kernels.fingerprint([cpu.buffer(tensors[place]) for place in places], device=cpu)
        except (checkpoint.CheckpointError, KeyError) as error:
            yield Departure(entry["step"], "checkpoint", f"cannot be read: {error}")
            return
        yield from _state_differences(entry["step"], entry["state"], digits_of(found), self.names)

    def _depart(self, departures: list[Departure]) -> None:
        if departures and self.only is None:
            self.report.departures = departures
            self.report.stop = self.done or self.report.first
            raise _Ended

    def _advance(self, step: int) -> None:
        """Shows progress once the audit takes a while."""
        if time.monotonic() - self._start > _PATIENCE:
            if self._bar is None:
                self._bar = Progress(self.report.stop - self.report.first, "steps", done=step - self.report.first)
            self._bar.advance(1, f"step {step}")

    def close(self) -> None:
        if self._bar is not None:
            self._bar.close()


def _plain(entry: Entry) -> Entry:
    """An entry as a file gives it back."""
    made: Entry = json.loads(encode(entry))
    return made


# ---- the audit


def audit(
    program: Program, path: str | Path, *, device: str = "cpu", steps: tuple[int | None, int | None] = (None, None),
    against: str | None = None,
) -> Report:  # fmt: skip
    """Computes the steps of a ledger again on a device and compares; see the module.

    Parameters
    ----------
    program : function of a session
        The program that wrote the ledger; it gets the ledger's settings if it has a parameter `settings`.
    path : path
        The ledger.
    device : str
        Where to compute.
    steps : (int or None, int or None)
        The first step and the one after the last; None: of the ledger.
    against : str, optional
        Another device on which a step that departs is computed too, to name the first operation that differs.

    Returns
    -------
    Report
        Its ``ok`` says whether every bit is as recorded.

    Raises
    ------
    LedgerError
        For a file that is no ledger, or has no step.
    ArgumentError
        For steps that it has not.

    Examples
    --------
    >>> import tempfile, tlrt
    >>> from tlrt.audit import audit
    >>> file = tempfile.mkdtemp() + "/run.jsonl"
    >>> def program(s):
    ...     w = s.param([1.0], "w")
    ...     sgd = tlrt.optim.SGD([w], lr=0.5)
    ...     with tlrt.ledger.record(file, s, sgd) as run:
    ...         for step in run.steps(3):
    ...             (w * s.rand_uniform(1)).sum().backward()
    ...             sgd.step()
    ...             s.reset()
    >>> with tlrt.Session("cpu", seed=1) as s:
    ...     program(s)
    >>> report = audit(program, file)
    >>> report.ok, report.first, report.stop
    (True, 0, 3)
    """
    chain = read(path)
    known = sorted(chain.steps)
    report = Report(str(path), chain.head, device)
    if chain.breaks:
        report.departures = [Departure(step, "chain", text) for step, text in chain.breaks]
        return report
    if not known:
        raise refusal(LedgerError, "audit", path, "a ledger without a step", "at least one")
    report.first = known[0] if steps[0] is None else steps[0]
    report.stop = known[-1] + 1 if steps[1] is None else steps[1]
    if not known[0] <= report.first < report.stop <= known[-1] + 1:
        got, expected = f"{report.first}:{report.stop}", f"steps within {known[0]}:{known[-1] + 1}"
        raise refusal(ArgumentError, "audit", "steps", got, expected)
    report.notes = list(_notes(chain, device))
    replay = Replay(chain, Path(path).parent, report)
    report.departures = list(replay.damaged_checkpoints())
    if not report.departures:
        _run(program, replay, device)
    step = report.departures[0].step if report.departures else None
    if against is not None and step in chain.steps:
        report.notes.append(_compare_devices(program, chain, Path(path).parent, step, (device, against)))
    return report


def _run(program: Program, replay: Replay, device: str) -> None:
    """Runs the program in a session like that of the ledger."""
    header = replay.chain.header
    takes = inspect.signature(program).parameters
    given = {"settings": header["settings"]} if "settings" in takes else {}
    with Session(device, seed=header["seed"], math=header["math"], **header["options"]) as session:
        session.device.observe(replay)
        try:
            program(session, **given)
        except _Ended:
            return
        finally:
            session.device.ignore(replay)
    if replay.done is None:
        raise refusal(
            LedgerError, "audit", "PROGRAM", "none of the ledger's steps", "a loop over ledger.record(…).steps"
        )
    count = f"{replay.report.stop} steps or more"
    replay.report.departures = [Departure(replay.done, "program", "steps", count, f"{replay.done}")]


def _compare_devices(program: Program, chain: Chain, folder: Path, step: int, devices: Sequence[str]) -> str:
    """The first operation of a step whose bits differ between two devices, from the state of one checkpoint."""
    entries = []
    for device in devices:
        replay = Replay(chain, folder, Report("", "", device, step, step + 1), only=step)
        _run(program, replay, device)
        entries.append(replay.entry or {"operations": []})
    where = f"step {step} on {devices[0]} and {devices[1]}"
    if not any(e["operations"] for e in entries):
        return f"{where}: no operation was recorded, as in a captured step"
    for a, b in itertools.zip_longest(*(e["operations"] for e in entries), fillvalue=("nothing", "nothing")):
        if a != b:
            return f"{where}: {a[0]} is the first operation with other bits"
    return f"{where}: {len(entries[0]['operations'])} results of operations, with the same bits"


def _notes(chain: Chain, device: str) -> Iterator[str]:
    """What the reader should know of ledger and machine."""
    header = chain.header
    if header["math"] != "reproducible" and header["device"].partition(":")[0] != device.partition(":")[0]:
        yield f"note: the run was in the mode {header['math']!r}, in which {header['device']} and {device} may round differently"
    if chain.entries[-1]["kind"] != "end" or chain.rest:
        yield "note: the ledger has no end: the run was cut short, or lines after the last one are missing"


def main(argv: Sequence[str] | None = None) -> int:
    """The command ``python -m tlrt audit``.

    Parameters
    ----------
    argv : sequence of str, optional
        Its arguments; those of the process unless given.

    Returns
    -------
    int
        0 where every bit is as recorded, 1 where one departs, 2 for wrong arguments.
    """
    parser = argparse.ArgumentParser(
        prog=program_name("audit"),
        description="Computes the steps of a ledger again and names the first that departs.",
    )
    add = parser.add_argument
    add(
        "program",
        metavar="PROGRAM",
        help="FILE.py:function or module:function, of a session, and settings if it has them",
    )
    add("ledger", type=Path, metavar="LEDGER", help="the file that tlrt.ledger.record wrote")
    add("--device", default="cpu", help="where to compute (cpu)")
    add("--steps", default=":", metavar="A:B", help="from step A to before step B (all)")
    add("--against", metavar="DEVICE", help="compute a step that departs on this device too, operation by operation")
    arguments = parser.parse_args(argv)
    try:
        first, colon, stop = arguments.steps.partition(":")
        if not colon or any(n and not n.isdecimal() for n in (first, stop)):
            raise refusal(ArgumentError, "audit", "steps", f"{arguments.steps!r}", "A:B, like 100:200")
        source, _, function = arguments.program.rpartition(":")
        program = load_program("audit", source, function)
        span = (int(first) if first else None, int(stop) if stop else None)
        report = audit(program, arguments.ledger, device=arguments.device, steps=span, against=arguments.against)
    except (TorchleanError, OSError) as error:
        print(f"tlrt audit: {error}", file=sys.stderr)
        return 2
    print(report)
    if not report.ok and arguments.against is None and (others := _other_devices(arguments.device)):
        print(f"add --against {others[0]} to compute the step on both devices, operation by operation")
    return 0 if report.ok else 1


def _other_devices(device: str) -> list[str]:
    """Those that are there."""
    from tlrt.context import devices

    return [d for d in devices() if d.partition(":")[0] != device.partition(":")[0]]


if __name__ == "__main__":
    sys.exit(main())
