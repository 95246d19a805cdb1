"""What was found, as a table and as JSON."""

import json
from dataclasses import asdict, dataclass, field
from typing import Any

from tlspec.judge.report import _table


@dataclass
class Axis:
    """One thing that was varied.

    Parameters
    ----------
    name : str
        What.
    trials : int
        How often.
    differing : int
        How many trials gave other bits.
    left_out : str
        Why it was not tried.
    first : str
        The first difference.
    operation : str
        The first operation that differs in it.
    """

    name: str
    trials: int = 0
    differing: int = 0
    #: why it was not tried
    left_out: str = ""
    #: the first difference, and the first operation that differs in it
    first: str = ""
    operation: str = ""

    @property
    def verdict(self) -> str:
        """ "differs", "same", or "not tried"."""
        return "differs" if self.differing else "same" if self.trials else "not tried"


@dataclass
class Invariance:
    """The outcome. Its text is a table.

    Parameters
    ----------
    name : str
        Of the function.
    format : str
        The number format of the arrays.
    array : str
        The library of the arrays.
    within : str
        The context manager of the calls.
    axes : list of Axis
        What was varied.
    notes : list of str
        What else a reader should know.
    seconds : float
        How long it took.
    """

    name: str
    format: str
    array: str
    within: str = ""
    axes: list[Axis] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    seconds: float = 0.0

    @property
    def ok(self) -> bool:
        """Whether something was tried, and nothing differs."""
        return any(a.trials for a in self.axes) and not any(a.differing for a in self.axes)

    @property
    def verdict(self) -> str:
        """ "invariant", "varies", or "not tried"."""
        return "invariant" if self.ok else "varies" if any(a.differing for a in self.axes) else "not tried"

    def __getitem__(self, name: str) -> Axis:
        return next(a for a in self.axes if a.name == name)

    def assert_ok(self) -> None:
        """Raises AssertionError with the table unless nothing differs."""
        if not self.ok:
            raise AssertionError(f"\n{self}")

    def __str__(self) -> str:
        within = f"; within {self.within}" if self.within else ""
        rows = [(a.name, a.verdict, a.trials or "", a.differing or "") for a in self.axes]
        lines = [f"{self.name}, {self.format}, {self.array} arrays{within}", ""]
        lines += _table(("varied", "bits", "trials", "differing"), rows)
        for axis in self.axes:
            if axis.differing:
                lines += [
                    "",
                    f"{axis.name}: {axis.first}",
                    f"    first operation that differs: {axis.operation or 'not known'}",
                ]
        left = [f"{a.name}: {a.left_out}" for a in self.axes if a.left_out]
        lines += ["", "not tried: " + "; ".join(left)] if left else []
        lines += [f"note: {note}" for note in self.notes]
        return "\n".join(
            [*lines, "", f"{self.verdict}: {sum(a.trials for a in self.axes)} trials in {self.seconds:.1f} s"]
        )

    def as_dict(self) -> dict[str, Any]:
        """The outcome for JSON.

        Returns
        -------
        dict
            By field, with the verdicts.
        """
        made = asdict(self)
        made["axes"] = [{"verdict": axis.verdict, **each} for axis, each in zip(self.axes, made["axes"], strict=True)]
        return {"verdict": self.verdict, **made}

    def json(self) -> str:
        """The outcome as a document.

        Returns
        -------
        str
            JSON.
        """
        return json.dumps(self.as_dict(), indent=1, default=str)
