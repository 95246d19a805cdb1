"""What a verify run found, and how it is shown: one result per entry point and device, the table, the document."""

import math
import platform
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

import numpy as np

from tlrt._terminal import format_table


@dataclass
class Failure:
    """One case that failed.

    Parameters
    ----------
    entry, device : str
        The entry point and the device.
    kind : str
        "bound", "slack", "bits", "determinism", "fault", "error", "law" or "coverage".
    detail : str
        What was computed and what was expected.
    line : str
        The command that repeats the case.
    inputs : str
        The case's inputs, a line each.
    """

    entry: str
    device: str
    kind: str  # bound, slack, bits, determinism, fault, error, law, coverage
    detail: str
    line: str
    #: the case's inputs, long ones by their ends
    inputs: str = ""


@dataclass
class Result:
    """One entry point on one device.

    Parameters
    ----------
    op, entry, family, which, device, bound : str
        The row, its entry point ("forward" or "vjp" is `which`), where it ran, and the bound in words.
    cases, elements : int
        What was compared.
    share, ulp : float
        The worst error as a share of the tolerance, and in float32 spacings of the reference.
    shares : dict of str to float
        The worst share of each output whose tolerance is not 0.
    worst_line : str
        The command that repeats the case with that share.
    identical : bool or None
        Whether the bits equal the first device's; None where not compared or not promised.
    seconds : float
        Time of the device's calls and comparisons.
    laws : int
        Laws of the row that were checked.
    classes : dict of str to int
        Geometry classes of the row, and the cases of each.
    failures : list of Failure
        Cases that failed.
    """

    op: str
    entry: str
    family: str
    which: str
    device: str
    bound: str
    cases: int = 0
    elements: int = 0
    #: worst error as a share of the tolerance, and in float32 spacings of the reference
    share: float = 0.0
    ulp: float = 0.0
    #: the worst share of each output whose tolerance is not 0
    shares: dict[str, float] = field(default_factory=dict)
    #: the line that repeats the case with that share
    worst_line: str = ""
    #: bits equal to the first device's: None where not compared or not promised
    identical: bool | None = None
    seconds: float = 0.0
    #: the laws of the row that were checked
    laws: int = 0
    #: geometry class of the row -> the cases that were of it
    classes: dict[str, int] = field(default_factory=dict)
    failures: list[Failure] = field(default_factory=list)

    @classmethod
    def of(cls, values: Mapping[str, Any]) -> "Result":
        """The result that ``dataclasses.asdict`` made these values of.

        Parameters
        ----------
        values : mapping of str to object
            The fields.

        Returns
        -------
        Result
            The result.
        """
        return cls(**{**values, "failures": [Failure(**f) for f in values["failures"]]})

    @property
    def ok(self) -> bool:
        """Whether no case failed.

        Returns
        -------
        bool
            True without a failure.
        """
        return not self.failures


@dataclass
class Report:
    """A whole run.

    Parameters
    ----------
    command, seed, started : str, int, str
        What was called, the seed of the first case, and when.
    devices, build, versions : dict of str to str
        Where and with what it ran.
    results : list of Result
        One per entry point and device.
    seconds : float
        Time of the run.
    """

    command: str
    seed: int
    started: str
    devices: dict[str, str]
    build: dict[str, str]
    versions: dict[str, str]
    results: list[Result] = field(default_factory=list)
    seconds: float = 0.0

    @property
    def ok(self) -> bool:
        """Whether something was checked and nothing failed.

        Returns
        -------
        bool
            False of an empty report.
        """
        return bool(self.results) and all(r.ok for r in self.results)

    @property
    def failures(self) -> list[Failure]:
        """The failures of all results.

        Returns
        -------
        list of Failure
            In the order of the results.
        """
        return [f for r in self.results for f in r.failures]

    def document(self) -> dict[str, Any]:
        """The document that ``--json`` writes.

        Returns
        -------
        dict
            All fields, and a verdict for each result and for the whole.
        """
        document = asdict(self)
        document["verdict"] = "pass" if self.ok else "fail"
        document["cases"] = sum(r.cases for r in self.results)
        for d, r in zip(document["results"], self.results, strict=True):
            d["verdict"] = "pass" if r.ok else "fail"
        return document


def describe_inputs(inputs: Mapping[str, np.ndarray | None]) -> str:
    """The arrays of a case.

    Parameters
    ----------
    inputs : mapping of str to array or None
        By name; None of one that was left out.

    Returns
    -------
    str
        A line each: all elements of a short array, the first and last three of another.

    Examples
    --------
    >>> import numpy as np
    >>> from tlrt.verify.report import describe_inputs
    >>> print(describe_inputs({"x": np.arange(12.0), "mask": None}))
    x [12] = [ 0., 1., 2., ..., 9., 10., 11.]
    """
    with np.printoptions(threshold=8, edgeitems=3, linewidth=10**6, precision=9):
        return "\n".join(
            f"{name} {list(a.shape)} = {' '.join(np.array2string(a.reshape(-1), separator=', ').split())}"
            for name, a in inputs.items()
            if a is not None
        )


def describe_versions() -> dict[str, str]:
    """Versions of what a run uses, for its document.

    Returns
    -------
    dict of str to str
        Python, NumPy and the system.
    """
    return {"python": platform.python_version(), "numpy": np.__version__, "system": platform.platform()}


def _format_number(x: float) -> str:
    if x == 0:
        return "0"
    if not math.isfinite(x) or x >= 1e6:
        return f"{x:.0e}" if math.isfinite(x) else "inf"
    return f"{x:.3f}" if x < 100 else f"{x:.0f}"


def format_results(results: Sequence[Result]) -> str:
    """The table that a run ends with.

    Parameters
    ----------
    results : sequence of Result
        Its rows.

    Returns
    -------
    str
        A line each under a head.
    """
    bits = {None: "-", True: "yes", False: "NO"}
    return format_table(
        ("op", "device", "cases", "error/bound", "ulp", "same bits", "bound", "verdict"),
        [
            (r.entry, r.device, r.cases, _format_number(r.share), _format_number(r.ulp), bits[r.identical], r.bound,
             "ok" if r.ok else "FAIL")
            for r in results
        ],
    )  # fmt: skip


def count_entries(results: Iterable[tuple[str, str]]) -> str:
    """How many entry points were tried.

    Parameters
    ----------
    results : iterable of (str, str)
        (entry point, device).

    Returns
    -------
    str
        Like "152 entry points on each of 2 devices".

    Examples
    --------
    >>> from tlrt.verify.report import count_entries
    >>> count_entries([("relu", "cpu"), ("relu_bwd", "cpu")])
    '2 entry points'
    """
    entries: dict[str, set[str]] = {}
    for entry, device in results:
        entries.setdefault(device, set()).add(entry)
    counts = {device: len(found) for device, found in entries.items()}
    if len(set(counts.values())) > 1:
        return " and ".join(f"{n} entry points on {device}" for device, n in counts.items())
    return f"{max(counts.values(), default=0)} entry points" + f" on each of {len(counts)} devices" * (len(counts) > 1)


def summarise(report: Report, shown: int = 3) -> str:
    """The table, the failures and the verdict.

    Parameters
    ----------
    report : Report
        What a run found.
    shown : int
        Failures that are shown of an entry point and device.

    Returns
    -------
    str
        What the command prints.
    """
    lines = [format_results(report.results), ""]
    for r in report.results:
        for f in r.failures[:shown]:
            lines += [f"FAIL {f.entry} on {f.device} ({f.kind}): {f.detail}", f"     {f.line}"]
            lines += [f"     {line}" for line in f.inputs.splitlines()]
        if len(r.failures) > shown:
            lines.append(f"     ... and {len(r.failures) - shown} more failures of {r.entry} on {r.device}")
    failed = Counter(r.device for r in report.results if not r.ok)
    bad = ", ".join(f"{n} on {d}" if len(report.devices) > 1 else str(n) for d, n in failed.items())
    total = sum(r.cases for r in report.results)
    tried = count_entries((r.entry, r.device) for r in report.results)
    verdict = f"{bad} of {tried} FAILED" if bad else f"all {tried} pass"
    if classes := [n for r in report.results for n in r.classes.values()]:
        lines.append(f"{sum(n > 0 for n in classes)} of {len(classes)} geometry classes were reached")
    lines.append(
        f"{verdict}: {total} cases on {', '.join(report.devices)} in {report.seconds:.1f} s, seed {report.seed}"
    )
    return "\n".join(lines)
