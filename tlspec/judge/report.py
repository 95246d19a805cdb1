"""What a check found, as a table, JSON and HTML."""

import html
import json
import keyword
import os
from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

#: shares of calls that a fault which comes and goes may have
RARE = (0.01, 0.001)
#: in the order in which one outweighs another
VERDICTS = ("pass", "blind", "fail")


@dataclass
class Finding:
    """One thing that is wrong.

    Parameters
    ----------
    kind : str
        value, error, result, inputs, alias, stale, canary, law, batch, repeat, crash or time-out.
    text : str
        What was found; of numbers the worst element, what was expected there and its tolerance.
    repeat : str
        The line of Python that repeats the case.
    """

    kind: str
    text: str
    repeat: str


@dataclass
class Row:
    """The cases of one data class and one direction."""

    which: str
    data: str
    cases: int = 0
    empty: int = 0
    blind: int = 0
    failed: int = 0
    elements: int = 0
    #: the worst error as a share of its tolerance, and in spacings of the result's format
    share: float = 0.0
    ulp: float = 0.0


@dataclass
class Report:
    """The outcome of a check. Its text is a table.

    Parameters
    ----------
    name : str
        Of the kernel.
    op : str
        The operation.
    format : str
        The number format of the arrays.
    array : str
        The library of the arrays.
    assumptions : str
        What is assumed of the kernel's arithmetic.
    rows : list of Row
        The counts by direction and data class.
    findings : list of Finding
        What is wrong.
    sensitivity : dict of str to (int, int)
        Of defects planted in the reference: by how many cases each would have been caught, of those it changes.
    repeats : bool or None
        Whether repeated calls gave the same bits; None where not tried.
    batches : bool or None
        Whether a part of a batch gave the bits of the whole.
    neighbours : bool or None
        Whether it kept them when the rest held other numbers.
    calls : int
        Calls whose results were compared.
    isolated : bool
        Whether the kernel ran in a process of its own.
    process : str
        Why it did not.
    notes : list of str
        What else a reader should know.
    unsupported : int
        Cases for which the kernel raised NotImplementedError.
    undeclared : int
        Those of them that ``refuses=`` does not name.
    sampled : list of str
        Of each case of given shape, how many of its results were compared.
    seconds : float
        How long it took.

    Examples
    --------
    >>> from tlspec.judge.report import Finding, Report
    >>> report = Report("kernel", "softmax", "float32", "numpy", "any order of sums")
    >>> report.verdict  # nothing was tried
    'blind'
    >>> report.findings.append(Finding("value", "out[0]: got nan", "tlspec.check(...)"))
    >>> report.verdict, report.ok
    ('fail', False)
    """

    name: str
    op: str
    format: str
    array: str
    assumptions: str
    rows: list[Row] = field(default_factory=list)
    findings: list[Finding] = field(default_factory=list)
    #: of defects planted in the reference: by how many cases each would have been caught, of those it changes
    sensitivity: dict[str, tuple[int, int]] = field(default_factory=dict)
    #: whether repeated calls gave the same bits, whether a part of a batch gave those of the whole, and whether it kept them
    #: when the rest held other numbers; None where not tried
    repeats: bool | None = None
    batches: bool | None = None
    neighbours: bool | None = None
    #: calls whose results were compared
    calls: int = 0
    #: whether the kernel ran in a process of its own, or why it did not
    isolated: bool = False
    process: str = ""
    #: what else a reader should know
    notes: list[str] = field(default_factory=list)
    #: cases for which the kernel raised NotImplementedError
    unsupported: int = 0
    #: those of them that ``refuses=`` does not name
    undeclared: int = 0
    #: of each case of given shape, how many of its results were compared
    sampled: list[str] = field(default_factory=list)
    seconds: float = 0.0

    @property
    def verdict(self) -> str:
        """ "fail" where anything is wrong; "blind" where most cases tell nothing or are not supported; else "pass"."""
        if self.findings:
            return "fail"
        told = sum(r.cases - r.empty for r in self.rows)
        return "blind" if not told or self._takes_few or 2 * sum(r.blind for r in self.rows) > told else "pass"

    @property
    def _takes_few(self) -> bool:
        return self.undeclared > sum(r.cases for r in self.rows)

    @property
    def ok(self) -> bool:
        return self.verdict == "pass"

    @property
    def share(self) -> float:
        """The worst error as a share of its tolerance."""
        return max((r.share for r in self.rows), default=0.0)

    def assert_ok(self) -> None:
        """Demands the verdict "pass".

        Raises
        ------
        AssertionError
            With the table, for any other verdict.
        """
        if not self.ok:
            raise AssertionError(f"\n{self}")

    def __str__(self) -> str:
        lines = [f"{self.name} as {self.op}, {self.format}, {self.array} arrays; assumed: {self.assumptions}"]
        if not self.isolated:
            lines += [f"in process: the kernel can see the expected values ({self.process})"]
        lines += [*self.notes, ""]
        lines += _table(
            ("direction", "data class", "cases", "blind", "failed", "elements", "worst share", "worst ulp"),
            [
                (r.which, r.data, r.cases, r.blind or "", r.failed or "", r.elements, f"{r.share:.3g}", f"{r.ulp:.3g}")
                for r in self.rows
            ],
        )
        if self.unsupported:
            lines += [
                "",
                f"{self.unsupported} cases that the kernel does not support (NotImplementedError) were left out"
                + "; shapes= names those that it is for" * self._takes_few,
            ]
        if self.sampled:
            lines += ["", "at given shapes, compared:", *(f"    {text}" for text in self.sampled)]
        told = {True: "yes", False: "no", None: "not tried"}
        lines += [
            "",
            f"same bits when repeated: {told[self.repeats]}; whatever the batch: {told[self.batches]}",
            f"same bits whatever other rows hold: {told[self.neighbours]}",
        ]
        if self.calls:
            chances = (f"{(1 - share) ** self.calls:.2g} if it is in {100 * share:g} % of calls" for share in RARE)
            lines += [
                f"{self.calls} results compared: a fault that comes and goes is missed with p = {', '.join(chances)}"
            ]
        if self.sensitivity:
            missed = [n for n, (caught, changed) in self.sensitivity.items() if changed and not caught]
            caught = [f"{n} ({c} of {k})" for n, (c, k) in self.sensitivity.items() if c]
            lines += [f"defects these cases catch: {', '.join(caught) or 'none'}"]
            lines += [f"defects they would miss: {', '.join(missed)}"] if missed else []
        counts = Counter(f.kind for f in self.findings)
        shown: Counter[str] = Counter()
        for finding in self.findings:
            shown[finding.kind] += 1
            if shown[finding.kind] <= 3:
                lines += ["", f"{finding.kind}: {finding.text}", f"    {finding.repeat}"]
        lines += [f"... and {n - 3} more of the kind {kind}" for kind, n in counts.items() if n > 3]
        cases = sum(r.cases for r in self.rows)
        return "\n".join([*lines, "", f"{self.verdict}: {cases} cases in {self.seconds:.1f} s"])

    def as_dict(self) -> dict[str, Any]:
        """The report for JSON.

        Returns
        -------
        dict
            By field, with the verdict.
        """
        made = asdict(self)
        made["sensitivity"] = {n: {"caught": c, "changed": k} for n, (c, k) in self.sensitivity.items()}
        return {"verdict": self.verdict, "share": self.share, **made}

    def json(self) -> str:
        """The report as a document.

        Returns
        -------
        str
            JSON.
        """
        return json.dumps(self.as_dict(), indent=1, default=str)

    def html(self) -> str:
        """A page that stands alone.

        Returns
        -------
        str
            HTML.
        """
        colour = {"pass": "#1a7f37", "fail": "#b3261e", "blind": "#9a6700"}[self.verdict]
        title = html.escape(f"{self.name} as {self.op}: {self.verdict}")
        style = (
            "body{font:15px/1.5 system-ui;max-width:64em;margin:2em auto;padding:0 1em;color-scheme:light dark}"
            "pre{overflow-x:auto}"
        )
        return (
            f'<!doctype html><html lang="en"><meta charset="utf-8"><meta name="viewport" content="width=device-width">'
            f"<title>{title}</title><style>{style}</style><h1>{title}</h1>"
            f'<p style="color:{colour};font-weight:600">{self.verdict}</p><pre>{html.escape(str(self))}</pre></html>'
        )


def word_for(function: Any, default: str) -> str:
    """What stands for a function in a line of Python: its name, or `default` for a lambda."""
    if isinstance(function, str):
        return repr(function)
    name = getattr(function, "__name__", "")
    return name if name.isidentifier() and not keyword.iskeyword(name) else default


def name_of(function: Any) -> str:
    """A function's name for a person; of a lambda also the line."""
    if isinstance(function, str):
        return function.rpartition(":")[2]
    name, code = getattr(function, "__name__", type(function).__name__), getattr(function, "__code__", None)
    if name.isidentifier() or code is None:
        return name
    return f"kernel = {name} of {os.path.basename(code.co_filename)}:{code.co_firstlineno}"


def _table(head: Sequence[str], rows: Sequence[Sequence[Any]]) -> list[str]:
    cells = [[str(c) for c in row] for row in (head, *rows)]
    widths = [max(len(row[i]) for row in cells) for i in range(len(head))]
    return [
        "  ".join(
            c.ljust(w) if i < 2 else c.rjust(w) for i, (c, w) in enumerate(zip(row, widths, strict=True))
        ).rstrip()
        for row in cells
    ]
