"""What a kernel demands of its callers, and what else its author says of it: which layouts and cases it takes, parameters that
are fixed, other formulas that it may follow."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

from tlspec.bounds import call_named
from tlspec.draw.cases import Case, is_empty
from tlspec.draw.draws import Draw
from tlspec.expressions import evaluate, names_in
from tlspec.formats import Format
from tlspec.judge.formulas import following, usual
from tlspec.judge.runner import Raised
from tlspec.judge.shrink import lengths_of
from tlspec.registry import Op

#: in ``layouts=``
LAYOUTS = ("any", "contiguous")
#: in ``refuses=``: cases with a length of 0
EMPTY = "empty"


@dataclass(frozen=True)
class Contract:
    """Which calls a kernel takes."""

    layouts: str = "any"
    #: an expression over dimensions and parameters, :data:`EMPTY`, or a function of them; several refuse where one does
    refuses: tuple[str | Callable[..., bool], ...] = ()

    def __post_init__(self) -> None:
        if self.layouts not in LAYOUTS:
            raise ValueError(f"layouts={self.layouts!r}: expected {' or '.join(LAYOUTS)}")

    @property
    def strided(self) -> bool:
        """Whether arrays with gaps are tried."""
        return self.layouts == "any"

    def may_refuse(self, case: Case, error: Raised) -> bool:
        """Whether an exception says that the kernel does not take a case, and the contract says so too."""
        return error.refusal and self.leaves_out(case)

    def leaves_out(self, case: Case) -> bool:
        """Whether the author says that the kernel does not take a case."""
        return any(_holds(r, case) for r in self.refuses)


def _holds(refusal: str | Callable[..., bool], case: Case) -> bool:
    known = lengths_of(case)
    if refusal == EMPTY:
        return is_empty(case) or known.get("n", 1) == 0
    if isinstance(refusal, str):
        if unknown := sorted(names_in(refusal) - known.keys()):
            raise ValueError(f"refuses={refusal!r}: {case.op.name} has no {unknown[0]}; it has {', '.join(known)}")
        return bool(evaluate(refusal, known))
    return bool(call_named(refusal, known))


def contract(layouts: str, refuses: Any) -> Contract:
    """The contract of these words; `refuses` is one refusal or a sequence."""
    several = () if refuses is None else (refuses,) if isinstance(refuses, str) or callable(refuses) else tuple(refuses)
    return Contract(layouts, several)


def constrained(op: Op, fixed: Mapping[str, Any] | None, formulas: Any, format: Format) -> Op:
    """The row with dimensions and parameters that have one value, and with further formulas of what it computes
    (:mod:`tlspec.judge.formulas`)."""
    op = following(usual(op), formulas, format)
    if not fixed:
        return op
    names = [*op.signature.sizes, *(p.name for p in op.signature.params)]
    if unknown := sorted(set(fixed) - set(names)):
        raise ValueError(f"fixed={dict(fixed)!r}: {op.name} has no {unknown[0]}; it has {', '.join(names)}")
    own = op.drawing.draw

    def draw(d: Draw) -> dict[str, Any]:
        return {**(own(d) if own is not None else {}), **fixed}

    paths = tuple(p for p in op.drawing.paths if all(p.get(n, v) == v for n, v in fixed.items()))
    return replace(op, drawing=replace(op.drawing, draw=draw, paths=paths, classes={}, fixed=dict(fixed)))
