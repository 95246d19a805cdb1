"""What the campaigns share: progress, threads, tables, documents."""

from __future__ import annotations

import datetime
import hashlib
import json
import os
import shutil
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any, TextIO, TypeVar

import numpy as np

from tlrt.verify.report import plain

__all__ = ["Meter", "columns", "finish", "commit", "float_text", "head", "processors", "share_out", "write"]

T = TypeVar("T")


class Meter:
    """Progress of long work: a bar with rate and time left on a terminal, elsewhere a line now and then."""

    def __init__(self, total: float, unit: str, done: float = 0.0, stream: TextIO = sys.stderr):
        self.total, self.unit, self.done, self.before = max(total, 1e-9), unit, done, done
        self.stream, self.bar = stream, stream.isatty()
        self.start = time.monotonic()
        self.shown = self.start if not self.bar else 0.0
        self.lock = threading.Lock()

    def step(self, amount: float, what: str) -> None:
        """Adds finished work and says what it was."""
        with self.lock:
            self.done += amount
            now = time.monotonic()
            if now - self.shown < (0.1 if self.bar else 20.0) and self.done < self.total:
                return
            self.shown = now
            elapsed = max(now - self.start, 1e-3)
            rate = (self.done - self.before) / elapsed
            left = (self.total - self.done) / rate if rate > 0 else 0.0
            share = min(self.done / self.total, 1.0)
            text = f"{100 * share:5.1f} %  {_quantity(rate)} {self.unit}/s  {_span(left)} left  {what}"
            if self.bar:
                width = max(10, min(30, shutil.get_terminal_size().columns - 60))
                filled = int(width * share)
                self.stream.write(f"\r[{'#' * filled}{'.' * (width - filled)}] {text[:76]:<76}")
            else:
                self.stream.write(text + "\n")
            self.stream.flush()

    def close(self) -> None:
        """Clears the bar."""
        if self.bar:
            self.stream.write("\r" + " " * 110 + "\r")
            self.stream.flush()


def _quantity(x: float) -> str:
    for scale, suffix in ((1e9, "G"), (1e6, "M"), (1e3, "k")):
        if x >= scale:
            return f"{x / scale:.3g} {suffix}"
    return f"{x:.3g}"


def _span(seconds: float) -> str:
    s = round(seconds)
    return f"{s // 3600}:{s // 60 % 60:02}:{s % 60:02}" if s >= 3600 else f"{s // 60}:{s % 60:02}"


def columns(head: Sequence[str], rows: Sequence[Sequence[object]]) -> str:
    """A table in plain text; columns of numbers to the right."""
    cells = [list(map(str, head)), *([str(c) for c in row] for row in rows)]
    widths = [max(len(row[i]) for row in cells) for i in range(len(head))]
    right = [all(not row[i] or row[i][0] in "0123456789-+." for row in cells[1:]) for i in range(len(head))]
    lines = [
        "  ".join(c.rjust(w) if r else c.ljust(w) for c, w, r in zip(row, widths, right, strict=True)).rstrip()
        for row in cells
    ]
    return "\n".join([lines[0], "  ".join("-" * w for w in widths), *lines[1:]])


def float_text(bits: int) -> str:
    """A float32 by its bit pattern: exact hexadecimal form, or what it is called."""
    x = float(np.array(bits, np.uint32).view(np.float32))
    if not np.isfinite(x):
        return str(x)
    fraction, power = x.hex().split("p")
    return fraction.rstrip("0").rstrip(".") + "p" + power if x else ("-0" if str(x)[0] == "-" else "0")


def processors() -> int:
    """Processors this process may use."""
    return len(os.sched_getaffinity(0))


def share_out(
    items: Sequence[T],
    workers: int,
    hand: Callable[[], AbstractContextManager[Callable[[T], None]]],
    budget: float | None = None,
) -> None:
    """Does every item in threads, each with what a `hand` of its own gives, until the budget in seconds is spent. The first
    exception ends all of them and is raised here; at Ctrl-C they finish the items in their hands."""
    queue, lock, start = iter(items), threading.Lock(), time.monotonic()
    errors: list[BaseException] = []

    def turn() -> None:
        try:
            with hand() as do:
                while not errors and (budget is None or time.monotonic() - start < budget):
                    with lock:
                        item = next(queue, None)
                    if item is None:
                        break
                    do(item)
        except BaseException as error:  # handed to the caller
            errors.append(error)

    threads = [threading.Thread(target=turn) for _ in range(min(workers, len(items)))]
    for t in threads:
        t.start()
    try:
        for t in threads:
            t.join()
    except BaseException as stopped:
        errors.insert(0, stopped)
        for t in threads:
            t.join()
    if errors:
        raise errors[0]


def commit(length: int = 40) -> str:
    """The tree's commit, with '+' for local changes; nothing where git does not tell."""
    root = Path(__file__).resolve().parents[2]
    if not (root / ".git").exists():
        return ""
    answers = []
    for words in (["rev-parse", "HEAD"], ["status", "--porcelain"]):
        try:
            done = subprocess.run(["git", *words], cwd=root, capture_output=True, text=True, check=True)
        except (OSError, subprocess.CalledProcessError):
            return ""
        answers.append(done.stdout.strip())
    return answers[0][:length] + ("+" if answers[1] else "")


def head(devices: Sequence[str]) -> dict[str, Any]:
    """Where and with what a campaign ran."""
    import tlrt
    from tlrt._binding.library import load
    from tlrt.verify.command import versions

    library = load()
    return {
        "started": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        "devices": {d: tlrt.describe(d) for d in devices},
        "build": dict(library.build_info),
        "library": hashlib.sha256(Path(library.path).read_bytes()).hexdigest()[:16],
        "versions": versions(),
        "processors": processors(),
    }


def write(path: Path, document: Any) -> None:
    """Writes a document; the file is replaced as a whole, so that an interruption leaves the old one."""
    partial = path.with_name(f"{path.name}.{os.getpid()}.part")
    partial.write_text(json.dumps(plain(document), indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
    partial.replace(path)


def finish(document: dict[str, Any], fine: bool, text: str, target: str | None) -> int:
    """Ends a campaign's command: enters the verdict, writes the document where a file is given, prints the table `text`; the
    exit status."""
    document["verdict"] = "pass" if fine else "fail"
    if target:
        write(Path(target), document)
    print(text)
    return 0 if fine else 1
