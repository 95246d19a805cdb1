"""One program on several devices, compared operation by operation.

    def program(session):
        w = session.param(np.eye(3), "w")
        return (w @ session.rand_normal((3, 3))).tanh().reduce_mean()

    print(tlrt.compare(program, devices=("spec", "cpu")))  # and "cuda"

Every node of the tape, forward and backward, is checked *locally*: its inputs on the device are given to the float64
specification, and the device's result must lie within the operation's own derived bound. So an error shows at the operation
that makes it, not where it is noticed. The report also gives the *drift*: how far a value is from the same value on the
reference device (the first one), as rms of the difference over rms of the value. Drift is the effect of rounding on the entire
program; it has no bound of its own.

A program takes a session. It may train: each :meth:`Session.reset` ends a step. If it returns a tensor of one element that
requires gradients and was not reset, backward runs from it.

    python -m tlrt compare FILE.py [--function program] [--devices spec,cpu]
"""

import argparse
import math
import shlex
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from tlrt._binding.observer import Observer
from tlrt._program import load_program
from tlrt._terminal import format_table, program_name
from tlrt.errors import ArgumentError, TorchleanError, refusal
from tlrt.session import Session, TensorRef
from tlrt.tape import AnyBuffer, Node, Tape
from tlspec.case import Case, cotangent_names, shape_of
from tlspec.compare import Comparison, compare_outputs

__all__ = ["Failure", "Report", "Row", "compare"]

Program = Callable[[Session], Any]
#: values of the reference device kept for the drift, in bytes
_KEPT = 2**29


@dataclass
class Row:
    """One node of one step on one device.

    Parameters
    ----------
    device : str
        The device.
    step, node : int
        Which step and which node of its tape.
    op : str
        The node's operation.
    shape : tuple of int
        Of its value.
    forward, backward : float or None
        Worst error as a share of the bound, of the result and of the gradients; None where nothing is computed or
        reached.
    drift : float or None
        Rms of the difference to the reference device over rms of its value; None where it has none.
    """

    device: str
    step: int
    node: int
    op: str
    shape: tuple[int, ...]
    #: worst error as a share of the bound, of the result and of the gradients; None where nothing is computed or reached
    forward: float | None = None
    backward: float | None = None
    #: rms of the difference to the reference device over rms of its value; None where it has none
    drift: float | None = None


@dataclass(frozen=True)
class Failure:
    """A node whose result lies out of its bound.

    Parameters
    ----------
    device : str
        The device.
    step, node : int
        Which step and which node of its tape.
    op, which : str
        The node's operation, and "forward" or "vjp".
    text : str
        What was computed and what was expected.
    command : str
        The command that checks this operation on these inputs; "" unless a folder for reproductions was given.
    """

    device: str
    step: int
    node: int
    op: str
    which: str
    text: str
    #: the command that checks this operation on these inputs; "" unless a folder for reproductions was given
    command: str = ""

    def __str__(self) -> str:
        where = f"{self.device}: step {self.step}, node {self.node}: {self.op} ({self.which})"
        return f"{where}: {self.text}" + (f"\n    {self.command}" if self.command else "")


@dataclass
class Report:
    """What :func:`compare` found; printing it gives the tables.

    Parameters
    ----------
    devices : tuple of str
        The devices; the first is the reference of the drift.
    rows : list of Row
        One for each node, step and device.
    failures : list of Failure
        Nodes out of their bounds.
    parameters : dict of str to dict
        Per device and parameter, the drift of its final value.
    results : dict of str to array
        Per device, what the program returned, where it is an array or a number.
    not_numbers : list of str
        Where NaN comes from: nodes that have it though nothing that they read has.
    """

    devices: tuple[str, ...]
    rows: list[Row] = field(default_factory=list)
    failures: list[Failure] = field(default_factory=list)
    #: per device and parameter, the drift of its final value
    parameters: dict[str, dict[str, float]] = field(default_factory=dict)
    #: per device, what the program returned, where it is an array or a number
    results: dict[str, npt.NDArray[Any]] = field(default_factory=dict)
    #: where NaN comes from: nodes that have it though nothing that they read has
    not_numbers: list[str] = field(default_factory=list)

    @property
    def ok(self) -> bool:
        """Whether every node of every device lies within its bound.

        Returns
        -------
        bool
            True without a failure.
        """
        return not self.failures

    def __str__(self) -> str:
        lines = []
        for device in self.devices:
            mine = [r for r in self.rows if r.device == device]
            if not mine:
                continue
            steps = len({r.step for r in mine})
            checked = sum((r.forward is not None) + (r.backward is not None) for r in mine)
            lines.append(f"{device}: {len(mine)} nodes in {steps} step{'s' * (steps != 1)}, {checked} results checked")
            table = []
            for op in dict.fromkeys(r.op for r in mine):
                some = [r for r in mine if r.op == op]
                forward, backward = _worst(r.forward for r in some), _worst(r.backward for r in some)
                if forward is not None or backward is not None:
                    table.append((op, len(some), *map(_shown, (forward, backward, _worst(r.drift for r in some)))))
            text = format_table(("operation", "nodes", "forward", "backward", "drift"), table)
            lines += [f"  {line}" for line in text.splitlines()]
            drifts = self.parameters.get(device, {})
            if drifts:
                name = max(drifts, key=lambda n: drifts[n])
                lines.append(f"  parameters: {len(drifts)}, the largest drift {drifts[name]:.2g} ({name})")
            if device in self.results and self.results[device].size == 1:
                lines.append(f"  result: {float(self.results[device].reshape(-1)[0])!r}")
        if self.failures:
            lines.append(f"{len(self.failures)} results out of bounds; the first:")
            lines.append(f"  {self.failures[0]}")
        elif self.not_numbers:
            count = len(self.not_numbers)
            lines.append(f"no result out of its bound, but NaN begins at {count} node{'s' * (count != 1)}; the first:")
            lines.append(f"  {self.not_numbers[0]}")
        else:
            lines.append(
                "every result within its bound (a column of 1 is the bound; drift is against the first device)"
            )
        return "\n".join(lines)


def _shown(value: float | None) -> str:
    return "" if value is None else f"{value:.2g}"


def _worst(values: Any) -> float | None:
    known = [v for v in values if v is not None]
    return max(known) if known else None


def compare(
    program: Program, devices: Sequence[str] = ("spec", "cpu"), *, reproduce: str | Path | None = None,
    progress: Callable[[str], None] | None = None, **options: Any,
) -> Report:  # fmt: skip
    """Runs a program on each device and compares; see the module.

    Parameters
    ----------
    program : function of a session
        What is compared.
    devices : sequence of str
        Their names; the first is the reference of the drift.
    reproduce : path, optional
        A folder for the inputs of nodes out of bounds, with the command that checks each.
    progress : function of a str, optional
        Called with a line now and then.
    **options
        Those of :class:`tlrt.Options`, such as seed and math.

    Returns
    -------
    Report
        Its ``ok`` says whether every result lies within its bound.

    Raises
    ------
    ArgumentError
        For no device, or one that is named twice.

    Examples
    --------
    >>> import tlrt
    >>> def program(s):
    ...     w = s.param([[1.0, 2.0], [3.0, 4.0]], "w")
    ...     return (w @ s.rand_normal((2, 2))).tanh().mean()
    >>> report = tlrt.compare(program, devices=("spec", "cpu"), seed=1)
    >>> report.ok, [row.op for row in report.rows if row.device == "cpu"][-2:]
    (True, ['reduce_mean', 'mean'])
    """
    names = tuple(devices)
    if not names or len(set(names)) != len(names):
        raise refusal(ArgumentError, "compare", "devices", names, "one or more different names")
    report = Report(names)
    reference: _Watch | None = None
    for name in names:
        with Session(name, **options) as session:
            watch = _Watch(session, report, name, reference, Path(reproduce) if reproduce else None, progress)
            result = program(session)
            if isinstance(result, TensorRef):
                if result.epoch == session.epoch:
                    if result.size == 1 and result.requires_grad and not session.gradients:
                        session.backward(result)
                    report.results[name] = result.numpy()
            elif result is not None:
                try:
                    report.results[name] = np.asarray(result, np.float64)
                except (TypeError, ValueError):
                    pass
            watch.finish()
            if reference is None:
                reference = watch
    return report


def case_of(
    node: Node, parents: Sequence[npt.NDArray[Any] | None], result: npt.NDArray[Any], g: npt.NDArray[Any] | None = None
) -> Case:
    """The call that made a node, or that of its VJP, as a case of the specification on the device's own values.

    Parameters
    ----------
    node : Node
        A node of an operation of the registry.
    parents : sequence of array or None
        The values that it was computed from.
    result : array
        Its value, which a VJP may read.
    g : array, optional
        Its cotangent, for the case of the VJP.

    Returns
    -------
    Case
        Forward without `g`, else of the VJP.
    """
    plan = node.plan
    assert plan is not None
    row, sig = plan.row, plan.row.signature
    buffers = dict(zip((a.name for a in sig.buffers), parents, strict=True))
    inputs = {a.name: _as_float32(buffers[a.name]) for a in sig.buffers}
    for a in sig.inputs:
        if a.name in node.hosts:  # an array, or a buffer of indices
            inputs[a.name] = np.asarray(node.hosts[a.name]).reshape(shape_of(a, plan.values))
    inputs = {a.name: inputs[a.name] for a in sig.inputs}
    rounded = {p.name for p in sig.params if p.kind == "float"}
    values = {n: float(np.float32(v)) if n in rounded else v for n, v in plan.values.items()}
    params = {p.name: values[p.name] for p in sig.params}
    dims = {n: v for n, v in values.items() if n not in params}
    if g is None:
        return Case(row, "forward", 0, "normal", "small", dims, params, inputs, command="compare")
    scalar = sig.outputs[0].dims == ("1",)  # has one axis in the row, none on the tape
    (name,) = cotangent_names(row)
    cotangents: dict[str, Any] = {name: _as_float32(g.reshape(1) if scalar else g)}
    known = {**inputs, **cotangents, sig.outputs[0].name: _as_float32(result.reshape(1) if scalar else result)}
    given = {r: known[r] for r in row.rule.reads}
    return Case(row, "vjp", 0, "normal", "small", dims, params, inputs, cotangents, command="compare", given=given)


def _as_float32(x: npt.NDArray[Any] | None) -> Any:
    """As float32, which a value of a device is and one of the specification is not."""
    return None if x is None else x.astype(np.float32, copy=False)


class _Watch(Observer):
    """Observes one session: checks its tape before each reset and every VJP as it runs."""

    def __init__(
        self, session: Session, report: Report, device: str, reference: "_Watch | None", folder: Path | None,
        progress: Callable[[str], None] | None,
    ) -> None:  # fmt: skip
        self.session, self.report, self.device = session, report, device
        self.reference, self.folder, self.progress = reference, folder, progress
        self.step = 0
        #: of the reference device: values by step and node, as far as they fit
        self.kept: dict[tuple[int, int], tuple[str, npt.NDArray[Any]]] = {}
        self.bytes = 0
        self.final: dict[str, npt.NDArray[Any]] = {}
        self.shares: dict[int, float] = {}
        self.values: dict[int, npt.NDArray[Any]] = {}
        self.exact = session.device.name == "spec"
        session.device.observe(self)

    def finish(self) -> None:
        """Checks what the program left on the tape, and its parameters."""
        self._check_step()
        session = self.session
        session.device.ignore(self)
        self.final = {n: p.numpy() for n, p in session.parameters.items()}
        if self.reference is not None:
            theirs = self.reference.final
            self.report.parameters[self.device] = {
                n: _drift(v, theirs[n]) for n, v in self.final.items() if n in theirs and theirs[n].shape == v.shape
            }

    def before_reset(self, session: Session) -> None:
        self._check_step()

    def _value(self, id: int) -> npt.NDArray[Any]:
        if id not in self.values:
            self.values[id] = self.session.tape.nodes[id].value.numpy()
        return self.values[id]

    def _check_step(self) -> None:
        """Checks the forward results of the step and closes it."""
        nodes = self.session.tape.nodes
        if not nodes:
            return
        for i, node in enumerate(nodes):
            row = Row(self.device, self.step, i, node.name, node.shape, backward=self.shares.get(i))
            self.report.rows.append(row)
            if not self.exact:
                if node.plan is not None:
                    case = self._case(node, i)
                    (found,) = self._compare_outputs(case, [self._value(i)])
                    row.forward = found.share
                    self._report_failure(i, node, case, "forward", "out", found)
                elif node.parents and node.name != "detach":
                    self._check_view(i, node)
            self._record_drift(row, i)
            if np.isnan(self._value(i)).any() and not any(
                np.isnan(self._value(p)).any() for p in node.parents if p is not None
            ):
                self.report.not_numbers.append(f"{self.device}: step {self.step}, node {i}: {node.name}")
        if self.progress is not None:
            self.progress(f"{self.device}: step {self.step}: {len(nodes)} nodes")
        self.values.clear()
        self.shares.clear()
        self.step += 1

    def _check_view(self, i: int, node: Node) -> None:
        """A view must have its parent's bits."""
        (parent,) = node.parents[:1]
        if node._rule is None and parent is not None and self._value(i).tobytes() != self._value(parent).tobytes():
            text = "got other bits than its parent's"
            self.report.failures.append(Failure(self.device, self.step, i, node.name, "view", text))

    def _record_drift(self, row: Row, i: int) -> None:
        if self.reference is None:
            value = self._value(i)
            if self.bytes + value.nbytes <= _KEPT and len(self.report.devices) > 1:
                self.bytes += value.nbytes
                self.kept[self.step, i] = (row.op, value)
            return
        found = self.reference.kept.get((self.step, i))
        if found is None:
            return
        name, value = found
        if name != row.op or value.shape != row.shape:
            text = f"got {row.op} {row.shape}, expected {name} {value.shape}: the program takes another way here"
            if not any(f.which == "program" for f in self.report.failures):
                self.report.failures.append(Failure(self.device, self.step, i, row.op, "program", text))
            return
        row.drift = _drift(self._value(i), value)

    def after_backward(self, session: Session) -> None:
        """Keeps every value: an optimiser's step changes the parameters on the tape in place."""
        for i in range(session.tape.size):
            self._value(i)

    def before_backward_step(self, tape: Tape, place: int, node: Node, cotangent: AnyBuffer) -> None:
        """Runs the node's VJP to look at its gradients; the tape runs it again for itself."""
        plan, g = node.plan, cotangent
        if plan is not None and not self.exact:
            nodes = self.session.tape.nodes
            rule = plan.row.vjp_rule
            assert rule is not None
            pool = [None if p is None else nodes[p].buffer for p in node.parents]
            needs = [p is not None and nodes[p].requires_grad for p in node.parents]
            made: dict[int, Any] = dict(plan.vjp([*pool, node.buffer, g.buffer, *node.hosts.values()], needs))
            got = [made[k].numpy() if k in made else None for k in plan.gives]
            for buffer in made.values():
                buffer.release()
            case = self._case(node, place, g.numpy())
            share = 0.0
            for name, comparison in zip(rule.gives, self._compare_outputs(case, got), strict=True):
                if comparison is not None:
                    share = max(share, comparison.share)
                    self._report_failure(place, node, case, "vjp", name, comparison)
            self.shares[place] = max(self.shares.get(place, 0.0), share)

    def _case(self, node: Node, id: int, g: npt.NDArray[Any] | None = None) -> Case:
        parents = [None if p is None else self._value(p) for p in node.parents]
        return case_of(node, parents, self._value(id), g)

    def _compare_outputs(self, case: Case, got: Sequence[npt.NDArray[Any] | None]) -> list[Any]:
        shapes = [ref.shape for ref in case.expected.outputs]
        shaped = [None if v is None else v.reshape(shape) for v, shape in zip(got, shapes, strict=True)]
        return compare_outputs(case.expected_on(self.device), shaped)

    def _report_failure(self, i: int, node: Node, case: Case, which: str, name: str, found: Comparison) -> None:
        if found.ok:
            return
        command = ""
        if self.folder is not None:
            self.folder.mkdir(parents=True, exist_ok=True)
            path = self.folder / f"{node.name}-{self.device.replace(':', '')}-{self.step}-{i}-{which}.npz"
            arrays = {n: v for n, v in {**case.inputs, **case.cotangents}.items() if v is not None}
            arrays |= {n: np.asarray(v) for n, v in case.values.items()}
            np.savez(path, **arrays)  # type: ignore[arg-type]
            command = f"python -m tlrt verify --ops {node.plan.name} --inputs {shlex.quote(str(path))}"  # type: ignore[union-attr]
        self.report.failures.append(Failure(self.device, self.step, i, node.name, which, found.explain(name), command))


def _drift(value: npt.NDArray[Any], reference: npt.NDArray[Any]) -> float:
    """rms of the difference over rms of the reference, over the finite elements; infinite where only one is finite."""
    a, b = np.asarray(value, np.float64), np.asarray(reference, np.float64)
    finite = np.isfinite(a) & np.isfinite(b)
    same = finite | (np.isnan(a) & np.isnan(b)) | (a == b)
    if not same.all():
        return math.inf
    if not finite.any():
        return 0.0
    with np.errstate(all="ignore"):
        error, scale = (float(np.sqrt(np.mean(x[finite] ** 2))) for x in (a - b, b))
    return error / scale if scale else (0.0 if error == 0 else math.inf)


def main(argv: Sequence[str] | None = None) -> int:
    """The command ``python -m tlrt compare``.

    Parameters
    ----------
    argv : sequence of str, optional
        Its arguments; those of the process unless given.

    Returns
    -------
    int
        0 where every result is within its bound, 1 where one is not, 2 for wrong arguments.
    """
    parser = argparse.ArgumentParser(
        prog=program_name("compare"),
        description="Runs a program on several devices and compares every operation, forward and backward.",
    )
    add = parser.add_argument
    add("file", type=Path, metavar="FILE", help="a Python file that defines the program")
    add("--function", default="program", help="its function of one session (program)")
    add("--devices", default="", help="comma-separated, the reference first (spec, cpu, and cuda if present)")
    add("--seed", type=int, default=0, help="of the session's random generator")
    add("--reproduce", type=Path, default=Path("compare-failures"), help="folder for inputs out of bounds")
    add("--nodes", action="store_true", help="list every node, not only each operation")
    arguments = parser.parse_args(argv)
    try:
        program = load_program("compare", str(arguments.file), arguments.function)
        names = [n for n in arguments.devices.split(",") if n] or _default_devices()
        line = (lambda text: print(text, file=sys.stderr)) if sys.stderr.isatty() else None
        report = compare(program, names, reproduce=arguments.reproduce, seed=arguments.seed, progress=line)
    except TorchleanError as error:
        print(f"tlrt compare: {error}", file=sys.stderr)
        return 2
    if arguments.nodes:
        print(listing(report.rows))
    print(report)
    return 0 if report.ok else 1


def listing(rows: Sequence[Row]) -> str:
    """A table of nodes.

    Parameters
    ----------
    rows : sequence of Row
        The nodes.

    Returns
    -------
    str
        One line per node.
    """
    return format_table(
        ("device", "step", "node", "operation", "shape", "forward", "backward", "drift"),
        [(r.device, r.step, r.node, r.op, r.shape, *map(_shown, (r.forward, r.backward, r.drift))) for r in rows],
    )


def _default_devices() -> list[str]:
    from tlrt.context import devices

    return ["spec", "cpu"] + (["cuda"] if len(devices()) > 1 else [])


if __name__ == "__main__":
    sys.exit(main())
