"""Ledgers: a file that says of each training step what went in and which bits came out, so that the run can be audited.

    with ledger.record("run.jsonl", session, optimizer, checkpoint_every=100) as run:
        for step in run.steps(1000):
            loss = session.cross_entropy(model(session.const(x)), labels)
            session.backward(loss)
            optimizer.step()
            session.reset()

A line is JSON and holds the SHA-256 of what the program gave from the host, the position of the random generator, the
hyperparameters of each update, and after the step a fingerprint (``tlrt.kernels.fingerprint``) of each parameter and each state
of the optimisers. It names the hash of the line before it. ``python -m tlrt audit`` computes the steps again, on any device, and
says where the first bit departs; see :mod:`tlrt.audit`.
"""

from __future__ import annotations

import hashlib
import json
import operator
import os
import sys
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from tlrt import checkpoint
from tlrt._binding.arguments import boolean, integer
from tlrt._binding.library import load
from tlrt._binding.observer import Observer
from tlrt._chain import VERSION, Chain, Entry, LedgerError, encode, fingerprints, line_of, read
from tlrt.context import build_info
from tlrt.errors import ArgumentError, ArgumentTypeError, ReleasedError, refusal

if TYPE_CHECKING:
    from tlrt.optim import Optimizer
    from tlrt.session import Session

__all__ = ["Chain", "Ledger", "LedgerError", "read", "record"]

#: steps whose lines wait, so that the device is seldom waited for
LAG = 16
#: bytes of an array that may wait to be hashed
SMALL = 2**16


# ---- where entries go


class Sink(Observer):
    """What a ledger's entries are for: a file, or an audit. An audit is one of the observers of its session's device, where
    :func:`record` finds it and hands the entries to it."""

    #: steps whose entries may wait
    lag = LAG

    def begin(self, ledger: Ledger, total: int, first: int) -> tuple[int, int]:
        """The steps to do, from one to before another."""
        raise NotImplementedError

    def wants_operations(self, step: int) -> bool:
        """Whether the step's operations are recorded."""
        return False

    def wants_states(self, step: int) -> bool:
        """Whether the states of optimisers are recorded after the step."""
        return True

    def wants_checkpoint(self, step: int) -> bool:
        """Whether the SHA-256 of the parameters is asked for after the step."""
        return False

    def keep(self, ledger: Ledger, step: int) -> Entry:
        """Saves the state before the step, and what an entry says of that."""
        return {}

    def take(self, entry: Entry) -> None:
        """Takes an entry."""

    def end(self, ledger: Ledger) -> None:
        """All steps are done."""

    def flush(self) -> None:
        """Writes what was taken."""

    def close(self) -> None:
        """There is nothing more to come."""


class _File(Sink):
    """A ledger's file and its checkpoints."""

    def __init__(
        self, path: Path, folder: Path, every: Mapping[str, int], settings: Any, resume: bool,
    ) -> None:  # fmt: skip
        self.path, self.folder, self.every, self.settings = path, folder, every, settings
        self._file: Any = None
        self._previous, self._lines, self._resumes = "", list[str](), resume

    def begin(self, ledger: Ledger, total: int, first: int) -> tuple[int, int]:
        if self._file is None:
            self._open(ledger.header(self.settings))
        start = {"kind": "start", "step": first, "random": ledger.random(), "state": ledger.state()}
        self.take({**start, **(self.keep(ledger, first) if first and self.every["checkpoint_every"] else {})})
        return first, total

    def _open(self, header: Entry) -> None:
        if not self._resumes:
            self._file = open(self.path, "x")  # noqa: SIM115
            self.take(header)
            return
        chain = read(self.path)
        if chain.breaks:
            raise refusal(LedgerError, "record", self.path, chain.breaks[0][1], "a whole chain")
        for name in ("parameters", "states", "math", "options"):
            if chain.header[name] != json.loads(encode(header))[name]:
                raise refusal(LedgerError, "record", self.path, f"other {name}", "those that the ledger begins with")
        os.truncate(self.path, self.path.stat().st_size - len(chain.rest.encode()))
        self._previous = chain.head
        self._file = open(self.path, "a")  # noqa: SIM115

    def wants_operations(self, step: int) -> bool:
        return self._is_due("operations", step)

    def wants_states(self, step: int) -> bool:
        return self._is_due("states_every", step) or self.wants_checkpoint(step)

    def wants_checkpoint(self, step: int) -> bool:
        return self._is_due("checkpoint_every", step + 1)

    def _is_due(self, name: str, step: int) -> bool:
        return bool(self.every[name]) and step % self.every[name] == 0

    def keep(self, ledger: Ledger, step: int) -> Entry:
        self.folder.mkdir(parents=True, exist_ok=True)
        file = self.folder / f"step-{step}.safetensors"
        checkpoint.save(file, ledger.session, ledger.optimizers, {"step": step})
        with file.open("rb") as content:
            digest = hashlib.file_digest(content, "sha256").hexdigest()
        return {"checkpoint": {"file": os.path.relpath(file, self.path.parent), "sha256": digest}}

    def take(self, entry: Entry) -> None:
        line, self._previous = line_of({**entry, "previous": self._previous})
        self._lines.append(line + "\n")

    def end(self, ledger: Ledger) -> None:
        self.take({"kind": "end", "step": ledger.next_step, "parameters_sha256": ledger.parameters_sha256()})

    def flush(self) -> None:
        if self._file is not None:
            lines, self._lines = self._lines, []
            self._file.write("".join(lines))
            self._file.flush()

    def close(self) -> None:
        if self._file is not None:
            self.flush()
            os.fsync(self._file.fileno())
            self._file.close()


# ---- what is recorded


@dataclass
class _Step:
    """A step that is being done."""

    number: int
    thread: int
    #: draws before it
    counter: int
    #: names, and digests or small arrays that are hashed with others
    inputs: list[tuple[str, Any]] = field(default_factory=list)
    updates: list[Entry] = field(default_factory=list)
    #: names and fingerprints of what operations computed; None where they are not recorded
    operations: list[tuple[list[str], Any]] | None = None
    #: nodes of the tape that are recorded
    nodes: int = 0
    #: whether a captured step runs, whose arguments are what went in
    is_captured: bool = False


class _Watch(Observer):
    """Observes the steps of a session: what goes in, and what operations compute."""

    def __init__(self, session: Session) -> None:
        self.session = session
        self.step: _Step | None = None
        library = load()
        self._uploads = (library.lib.torchlean_cuda_buffer_upload, library.lib.torchlean_cuda_index_upload)
        self._buffer = library.ffi.buffer

    def open_step(self) -> _Step | None:
        """The step that this thread does, unless a captured step says what went in."""
        step = self.step
        return step if step is not None and not step.is_captured and step.thread == threading.get_ident() else None

    def buffer_made(self, function: Any, arguments: tuple[Any, ...], buffer: Any) -> None:
        if function in self._uploads and (step := self.open_step()) is not None:
            _, host, n = arguments
            step.inputs.append((f"upload of {n}", _kept(np.frombuffer(self._buffer(host, 4 * n), np.uint32))))

    def host_array_used(self, session: Any, name: str, array: npt.NDArray[Any]) -> None:
        if session is self.session and (step := self.open_step()) is not None:
            step.inputs.append((name, _kept(array)))

    @contextmanager
    def during_captured_step(self, session: Any, name: str, arguments: tuple[Any, ...]) -> Iterator[None]:
        step = self.open_step()
        if step is None or session is not self.session:
            yield
            return
        self.record_tape(step)
        given = [np.asarray("None" if a is None else a) for a in arguments]
        step.inputs += [(f"argument {i} of {name}", _kept(array)) for i, array in enumerate(given)]
        step.is_captured = True
        try:
            yield
        finally:
            step.is_captured, step.nodes = False, 0

    @contextmanager
    def during_update(self, update: Any) -> Iterator[None]:
        self.before_replayed_update(update.optimizer)
        step = self.open_step()
        if step is not None and step.operations is not None and update.optimizer.session is self.session:
            self.record_tape(step)
            self._record_buffers(step, [f"gradient of {p.name}" for p in update.parameters], update.gradients)
        yield

    def before_replayed_update(self, optimizer: Any) -> None:
        step = self.step
        if step is not None and optimizer.session is self.session:
            step.updates.append(
                {"optimizer": type(optimizer).__name__, "steps": optimizer.steps, **optimizer._settings()}
            )

    # ---- operations

    def before_backward_step(self, tape: Any, place: int, node: Any, cotangent: Any) -> None:
        step = self.step
        if step is None or step.operations is None:
            return
        if self.open_step() is not None and tape is self.session.tape:
            self.record_tape(step)
            self._record_buffers(step, [f"cotangent of node {place}, {node.name}"], [cotangent.buffer])

    def before_reset(self, session: Any) -> None:
        if session is self.session and (step := self.open_step()) is not None:
            self.record_tape(step)
            step.nodes = 0

    def record_tape(self, step: _Step) -> None:
        """Records the nodes since the last time, but for parameters, which an update changes in place, and views."""
        if step.operations is None or step.is_captured:
            return
        session, nodes = self.session, self.session.tape.nodes
        parameters = {leaf[0].id for leaf in session._leaves.values()} | session._outdated.keys()
        chosen = [
            (f"node {i}, {node.name}", node.buffer)
            for i, node in enumerate(nodes[step.nodes :], step.nodes)
            if i not in parameters and (not node.parents or node.plan is not None or node._rule is not None)
        ]
        step.nodes = len(nodes)
        self._record_buffers(step, [name for name, _ in chosen], [buffer for _, buffer in chosen])

    def _record_buffers(self, step: _Step, names: list[str], buffers: list[Any]) -> None:
        if names and step.operations is not None:
            kernels = self.session.tape.kernels
            step.operations.append((names, kernels.fingerprint(buffers, device=self.session.device)))


class Ledger:
    """Records the steps of a session; :func:`record` makes one. Leaving its ``with`` block ends it.

    Parameters
    ----------
    session, optimizers
        As :func:`record` has them.
    sink : Sink
        Where entries go: a file, or an audit.
    """

    def __init__(self, session: Session, optimizers: Sequence[Optimizer], sink: Sink) -> None:
        self.session, self.optimizers, self._sink = session, list(optimizers), sink
        self._parameters = list(session.parameters.values())
        self._watch = _Watch(session)
        self._waiting: list[tuple[Entry, Any, list[tuple[list[str], Any]] | None]] = []
        #: the buffers of a step's fingerprints, without states and with them
        self._packs: dict[bool, Any] = {False: (), True: ()}
        self._closed = False
        #: the step that is next
        self.next_step = 0
        session.device.observe(self._watch)

    # ---- the steps

    def steps(self, total: int, first: int = 0) -> Iterator[int]:
        """The numbers of the steps: the loop's body is one step.

        Parameters
        ----------
        total : int
            The number after the last step.
        first : int
            The first step, for a program that goes on from a checkpoint of its own.

        Returns
        -------
        iterator of int
            `first` to `total` - 1. An audit begins with the step that it has a state for.

        Raises
        ------
        ReleasedError
            Of a closed ledger.
        """
        total, first = integer("steps", "total", total), integer("steps", "first", first)
        if self._closed:
            raise refusal(ReleasedError, "steps", "ledger", "a closed ledger", "an open one")
        self._finish()  # of a loop that was left by break
        self._resolve()
        first, stop = self._sink.begin(self, total, first)
        self.next_step = first
        for number in range(first, stop):
            self._begin(number)
            yield number
            self._finish()
        self._resolve()
        self._sink.end(self)

    def _begin(self, number: int) -> None:
        self._watch.step = step = _Step(number, threading.get_ident(), self.session.counter)
        if self._sink.wants_operations(number):
            step.operations = []

    def _finish(self) -> None:
        step = self._watch.step
        if step is None:
            return
        self._watch.record_tape(step)
        self._watch.step = None
        entry: Entry = {
            "kind": "step", "step": step.number, "inputs": step.inputs, "updates": step.updates,
            "random": {**self.random(), "from": step.counter},
        }  # fmt: skip
        self.next_step = step.number + 1
        states = self._sink.wants_states(step.number)
        self._waiting.append((entry, self._fingerprints(states), step.operations))
        if self._sink.wants_checkpoint(step.number):
            entry["parameters_sha256"] = self.parameters_sha256()
            entry.update(self._sink.keep(self, self.next_step))
        if len(self._waiting) >= self._sink.lag or "checkpoint" in entry:
            self._resolve()

    def _resolve(self) -> None:
        """Reads the fingerprints that wait and hands the entries on."""
        waiting, self._waiting = self._waiting, []
        for entry, state, operations in waiting:
            entry["inputs"] = [(name, x if isinstance(x, str) else _digest(x)) for name, x in entry["inputs"]]
            entry["state"] = digits_of(state)
            if operations is not None:
                entry["operations"] = [
                    [name, digits]
                    for names, found in operations
                    for name, digits in zip(names, fingerprints(digits_of(found)), strict=True)
                ]
            self._sink.take(entry)
        self._sink.flush()

    # ---- what a line says

    def header(self, settings: Any) -> Entry:
        """The first line: the library, the device, and what the fingerprints of a step are of.

        Parameters
        ----------
        settings : object
            What JSON has, for the program that is audited.

        Returns
        -------
        dict
            The entry.
        """
        session, library = self.session, load()
        return {
            "kind": "run", "version": VERSION, "program": Path(sys.argv[0]).name, "settings": settings,
            "library": {"build": build_info(), "abi": library.text(library.lib.torchlean_cuda_abi_hash()),
                        "python": sys.version.split()[0], "numpy": np.__version__},
            "device": session.device.name, "machine": session.device.describe(), "math": session.device.math,
            "seed": session.seed,
            "options": {k: v for k, v in asdict(session.options).items() if k not in ("device", "math", "seed")},
            "parameters": [[p.name, list(p.shape), p.requires_grad] for p in self._parameters],
            "optimizers": [type(o).__name__ for o in self.optimizers],
            "states": [
                f"{i}/{slot}/{p.name}"
                for i, optimizer in enumerate(self.optimizers)
                for part in optimizer.groups or [optimizer]
                for slot in part._state
                for p in part.parameters
            ],
        }  # fmt: skip

    def random(self) -> dict[str, int]:
        """The position of the session's random generator.

        Returns
        -------
        dict of str to int
            The seed, and the draws so far.
        """
        return {"seed": self.session.seed, "to": self.session.counter}

    def state(self) -> str:
        """The fingerprints of parameters and states, as they are now.

        Returns
        -------
        str
            32 hexadecimal digits each, one after the other.
        """
        return digits_of(self._fingerprints(True))

    def parameters_sha256(self) -> str:
        """The SHA-256 of the names, shapes and values of all parameters, as they are now.

        Returns
        -------
        str
            Hexadecimal digits.
        """
        digest = hashlib.sha256()
        for p in self._parameters:
            digest.update(f"{p.name}{list(p.shape)}".encode())
            value = np.where(np.isnan(p.value), np.float32(np.nan), p.value)  # all NaNs are one, as in fingerprints
            digest.update(np.ascontiguousarray(value, "<f4").data)
        return digest.hexdigest()

    def _fingerprints(self, states: bool) -> Any:
        """Those of parameters, and of states after them, on the device. A parameter is uploaded here, so that no upload in a step
        is one's."""
        session = self.session
        if list(session.parameters.values()) != self._parameters:
            expected = "those that it had when the ledger was opened"
            raise refusal(ArgumentError, "ledger", "parameters", "others of the session", expected)
        buffers = [p.mirror for p in self._parameters]
        for optimizer in self.optimizers if states else ():
            buffers += optimizer._buffers()
        pack = self._packs[states]
        if len(pack) != len(buffers) or not all(map(operator.is_, buffers, pack)):
            pack = self._packs[states] = session.tape.kernels.pack(buffers)
        return session.tape.kernels.fingerprint(pack, device=session.device)

    # ---- life

    def close(self, *, failed: bool = False) -> None:
        """Ends the ledger. May be repeated.

        Parameters
        ----------
        failed : bool
            True: a step that raised is not recorded. False: the step that a ``break`` left is.
        """
        if self._closed:
            return
        self._closed = True
        try:
            if self._watch.step is not None and not failed:
                self._finish()
                self._resolve()
                self._sink.end(self)
            elif not self.session._closed:
                self._resolve()
        finally:
            self.session.device.ignore(self._watch)
            self._sink.close()

    def __enter__(self) -> Ledger:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        self.close(failed=kind is not None)

    def __repr__(self) -> str:
        return (
            f"Ledger({len(self._parameters)} parameters, {'closed' if self._closed else f'step {self.next_step} next'})"
        )


def digits_of(found: Any) -> str:
    """Fingerprints in an index buffer as digits, 32 for each, which are read from the device."""
    return str(found.numpy().astype("<u4").tobytes().hex())


def _kept(array: npt.NDArray[Any]) -> Any:
    """A copy of a small array, which is hashed with those of other steps when lines are written; of a large one the digest."""
    return array.copy() if array.nbytes <= SMALL else _digest(array)


def _digest(array: npt.NDArray[Any]) -> str:
    """The SHA-256 of an array's type, shape and content."""
    digest = hashlib.sha256(f"{array.dtype.str}{array.shape}".encode())
    digest.update(np.ascontiguousarray(array).reshape(-1).view(np.uint8).data)
    return digest.hexdigest()


def record(
    path: str | os.PathLike[str], session: Session, optimizers: Optimizer | Sequence[Optimizer] = (), *,
    checkpoint_every: int = 1000, directory: str | os.PathLike[str] | None = None, states_every: int = 1, operations: int = 0,
    settings: Any = None, resume: bool = False,
) -> Ledger:  # fmt: skip
    """A ledger of the session's steps, in a new file; see the module. All parameters are made before.

    Within ``python -m tlrt audit`` nothing is written: the session's steps are compared with the ledger that is
    audited.

    Parameters
    ----------
    path : path
        The file.
    session : Session
        Whose steps are recorded, on "cpu" or "cuda".
    optimizers : Optimizer or sequence of Optimizer
        Whose states are fingerprinted and saved.
    checkpoint_every : int
        Steps between two checkpoints, from which an audit may begin; 0: none.
    directory : path, optional
        The folder of the checkpoints; the file's name with ".checkpoints" unless given.
    states_every : int
        Steps between two lines that have the states' fingerprints, too; 0: those at checkpoints alone.
    operations : int
        Steps between two lines that have a fingerprint of each operation's result and cotangent; 0: none.
    settings : object
        What JSON has; it is handed to the program that is audited.
    resume : bool
        True: an existing file is continued.

    Returns
    -------
    Ledger
        A context manager, whose :meth:`Ledger.steps` is the loop.

    Raises
    ------
    FileExistsError, OSError
        Where the file is there without `resume`, or cannot be written.
    LedgerError
        For a file that cannot be continued.
    ArgumentError
        On the specification, and for a number below 0.

    Examples
    --------
    >>> import tempfile, tlrt
    >>> file = tempfile.mkdtemp() + "/run.jsonl"
    >>> s = tlrt.Session("cpu", seed=1)
    >>> w = s.param([1.0], "w")
    >>> sgd = tlrt.optim.SGD([w], lr=0.5)
    >>> with tlrt.ledger.record(file, s, sgd) as run:
    ...     for step in run.steps(3):
    ...         (w * w).sum().backward()
    ...         sgd.step()
    ...         s.reset()
    >>> chain = tlrt.ledger.read(file)
    >>> sorted(chain.steps), chain.breaks
    ([0, 1, 2], [])
    """
    chosen = checkpoint._optimizers("record", session, optimizers)
    if session.device.name == "spec":
        raise refusal(ArgumentError, "record", "session", "the specification", "a session on 'cpu' or 'cuda'")
    session._require_open("record")
    session._require_uncaptured("record")
    every = {"checkpoint_every": checkpoint_every, "states_every": states_every, "operations": operations}
    for name, number in every.items():
        if integer("record", name, number) < 0:
            raise refusal(ArgumentError, "record", name, number, "0 or more")
    audits = [o for o in session.device._observers if isinstance(o, Sink)]
    if audits:
        return Ledger(session, chosen, audits[0])
    try:
        plain = json.loads(encode({"settings": settings}))["settings"]
    except (TypeError, ValueError) as error:
        expected = "what JSON has"
        raise refusal(ArgumentTypeError, "record", "settings", f"{settings!r:.99} ({error})", expected) from None
    place = Path(path)
    folder = place.with_suffix(".checkpoints") if directory is None else Path(directory)
    resumes = boolean("record", "resume", resume)
    if not resumes and place.exists():
        raise FileExistsError(f"record: {place}: exists (resume=True continues it)")
    return Ledger(session, chosen, _File(place, folder, every, plain, resumes))
