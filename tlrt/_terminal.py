"""What programs show people: a table in plain text, and the progress of long work. rich draws both.

A table is the same text everywhere: no colour, no column cut or wrapped, so that it can be searched and compared.
"""

import io
import sys
import threading
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any, TextIO

#: seconds after which a stream that is no terminal gets another line of progress
INTERVAL = 20.0


def program_name(command: str = "") -> str:
    """What usage calls a command: ``tlrt COMMAND`` or ``python -m tlrt COMMAND``, as it was called."""
    called = "tlrt" if Path(sys.argv[0]).name == "tlrt" else "python -m tlrt"
    return f"{called} {command}".rstrip()


def format_table(head: Sequence[str], rows: Sequence[Sequence[object]]) -> str:
    """A table of fixed-width columns under a rule of dashes; columns of numbers stand to the right."""
    from rich.box import Box
    from rich.cells import cell_len
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    cells = [[str(c) for c in row] for row in rows]
    rule = Box("    \n    \n -- \n    \n    \n    \n    \n    \n", ascii=True)  # dashes under the head, no other line
    table = Table(box=rule, show_edge=False, pad_edge=False, padding=(0, 0, 0, 1))
    for i, name in enumerate(head):
        number = all(not row[i] or row[i][0] in "0123456789-+." or row[i] == "inf" for row in cells)
        table.add_column(Text(name), justify="right" if number else "left", no_wrap=True, overflow="crop")
    for row in cells:
        table.add_row(*map(Text, row))
    widths = [max(cell_len(c) for c in column) for column in zip(head, *cells, strict=True)]
    target = io.StringIO()
    # as wide as it needs: nothing is cut
    Console(file=target, width=sum(widths) + 3 * len(widths), color_system=None).print(table)
    return "\n".join(line.rstrip() for line in target.getvalue().rstrip("\n").split("\n"))


def format_quantity(x: float) -> str:
    """Three digits, and a prefix of the unit from a thousand on."""
    for scale, prefix in ((1e9, "G"), (1e6, "M"), (1e3, "k")):
        if x >= scale:
            return f"{x / scale:.3g} {prefix}"
    return f"{x:.3g}"


def format_duration(seconds: float) -> str:
    """Hours, minutes and seconds."""
    s = round(seconds)
    return f"{s // 3600}:{s // 60 % 60:02}:{s % 60:02}" if s >= 3600 else f"{s // 60}:{s % 60:02}"


class Progress:
    """Progress of long work, on standard error unless a stream is given: a bar on a terminal, elsewhere a line for every tenth
    of the work and every 20 seconds. Several threads may advance it. `done` is what an earlier run has finished."""

    def __init__(self, total: float, unit: str, *, done: float = 0.0, stream: TextIO | None = None):
        self.total, self.unit, self.done, self.before = max(total, 1e-9), unit, done, done
        self.stream = sys.stderr if stream is None else stream
        self.start = self.shown = time.monotonic()
        self.lock = threading.Lock()
        self.bar: Any = None
        if self.stream.isatty():
            from rich.console import Console
            from rich.progress import BarColumn, TaskProgressColumn, TextColumn
            from rich.progress import Progress as Bar

            columns = (BarColumn(), TaskProgressColumn(), TextColumn("{task.description}", markup=False))
            console = Console(file=self.stream)
            self.bar = Bar(*columns, console=console, transient=True, redirect_stdout=False, redirect_stderr=False)
            self.task = self.bar.add_task("", total=self.total, completed=done)

    def advance(self, amount: float = 1.0, note: str = "") -> None:
        """Adds finished work and says what it was."""
        with self.lock:
            tenths = int(10 * self.done / self.total)
            self.done += amount
            now = time.monotonic()
            rate = (self.done - self.before) / max(now - self.start, 1e-3)
            left = max(self.total - self.done, 0.0) / rate if rate > 0 else 0.0
            text = f"{format_quantity(rate)} {self.unit}/s  {format_duration(left)} left  {note}".rstrip()
            if self.bar is not None:
                self.bar.start()  # does nothing where it shows already
                self.bar.update(self.task, completed=self.done, description=text)
            elif int(10 * self.done / self.total) > tenths or now - self.shown > INTERVAL:
                self.shown = now
                self.stream.write(f"{min(100 * self.done / self.total, 100):5.1f} %  {text}\n")
                self.stream.flush()

    def close(self) -> None:
        """Clears the bar; the next advance shows it again."""
        if self.bar is not None:
            self.bar.stop()

    def __enter__(self) -> "Progress":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
