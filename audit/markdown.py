"""Tables of generated documents, in Markdown."""

from collections.abc import Iterable, Sequence


def table_row(cells: Iterable[str]) -> str:
    """One line of a table."""
    return "| " + " | ".join(cell.replace("|", "\\|").replace("\n", " ") for cell in cells) + " |"


def table_head(cells: Sequence[str]) -> list[str]:
    """The two lines that a table begins with."""
    return [table_row(cells), "|" + "---|" * len(cells)]


def table(head: Sequence[str], rows: Iterable[Iterable[str]]) -> list[str]:
    """The lines of a table."""
    return [*table_head(head), *map(table_row, rows)]


def format_figure(x: float) -> str:
    """Three digits, and no more than the thousands need."""
    return f"{x:.3g}" if x < 100 else f"{x:.0f}"
