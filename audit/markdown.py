"""Tables and figures of generated documents, in Markdown."""

import math
from collections.abc import Iterable, Sequence
from decimal import ROUND_CEILING, Decimal
from typing import Any


def table_row(cells: Iterable[str]) -> str:
    """One line of a table."""
    return "| " + " | ".join(cell.replace("|", "\\|").replace("\n", " ") for cell in cells) + " |"


def table(head: Sequence[str], rows: Iterable[Iterable[str]]) -> list[str]:
    """The lines of a table."""
    return [table_row(head), "|" + "---|" * len(head), *map(table_row, rows)]


def format_figure(x: float) -> str:
    """Three digits, and no more than the thousands need."""
    return f"{x:.3g}" if x < 100 else f"{x:.0f}"


def format_count(n: float) -> str:
    """A count with its thousands apart."""
    return f"{round(n):,}".replace(",", "\u202f")


def format_inputs(n: int) -> str:
    """A number of inputs, all of them as a power."""
    return "2³²" if n == 2**32 else format_count(n)


def format_share(x: Any) -> str:
    """A worst figure, rounded up so that no text is better than its file: three decimals, or one digit and a power."""
    x = float(x)
    if not math.isfinite(x):
        return "∞"
    exact = Decimal(repr(x))
    if x == 0 or 0.001 <= x < 1e4:
        return "0" if x == 0 else str(exact.quantize(Decimal("0.001"), ROUND_CEILING))
    return f"{exact.quantize(Decimal((0, (1,), exact.adjusted())), ROUND_CEILING):.0e}".replace("e+", "e")


def plural(n: int, one: str, many: str = "") -> str:
    """A count and its noun."""
    return f"{format_count(n)} {one if n == 1 else many or one + 's'}"
