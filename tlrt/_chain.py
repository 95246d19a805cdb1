"""The lines of a ledger, and the chain of hashes that they are. :mod:`tlrt.ledger` has the public names."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tlrt import checkpoint
from tlrt.errors import TorchleanError, refusal

__all__ = ["Chain", "LedgerError", "read"]

VERSION = 1
#: hexadecimal digits of a fingerprint
DIGITS = 32
#: what the kinds of lines must have
FIELDS = {
    "run": {"version", "settings", "device", "math", "seed", "options", "parameters", "optimizers", "states"},
    "start": {"step", "random", "state"}, "step": {"step", "inputs", "updates", "random", "state"},
    "end": {"step", "parameters_sha256"},
}  # fmt: skip

Entry = dict[str, Any]


class LedgerError(TorchleanError, ValueError):
    """A file is damaged, or is not the ledger of this program."""


#: writes the canonical text of an entry
encode = json.JSONEncoder(
    sort_keys=True, separators=(",", ":"), allow_nan=False, default=checkpoint._plain_number
).encode  # fmt: skip


def line_of(entry: Mapping[str, Any]) -> tuple[str, str]:
    """An entry's line, which ends with the SHA-256 of what stands before it, and that hash."""
    text = encode({k: v for k, v in entry.items() if k != "hash"})
    digest = hashlib.sha256(text.encode()).hexdigest()
    return f'{text[:-1]},"hash":"{digest}"}}', digest


@dataclass
class Chain:
    """The entries of a ledger's file; :func:`read` makes one.

    Parameters
    ----------
    entries : list of dict
        One for each line.
    breaks : list of (int or None, str)
        Where they are not the chain that was written: the step, None without one, and a text.
    rest : str
        Characters after the last whole line, which was being written when the run ended.
    """

    entries: list[Entry] = field(default_factory=list)
    breaks: list[tuple[int | None, str]] = field(default_factory=list)
    #: characters after the last whole line, which was being written when the run ended
    rest: str = ""

    @property
    def head(self) -> str:
        """The hash of the last line: kept elsewhere, it tells whether the file was rewritten.

        Returns
        -------
        str
            Hexadecimal digits; "" of no line.
        """
        return str(self.entries[-1]["hash"]) if self.entries else ""

    @property
    def header(self) -> Entry:
        """What the first line says of the run.

        Returns
        -------
        dict
            The library, device, mode, seed, options, parameters and optimisers.
        """
        return self.entries[0]

    @property
    def steps(self) -> dict[int, Entry]:
        """The entries of steps by their numbers.

        Returns
        -------
        dict of int to dict
            Of a step that was done again after a resumption, the last entry.
        """
        return {e["step"]: e for e in self.entries if e["kind"] == "step"}


def read(path: str | os.PathLike[str]) -> Chain:
    r"""Reads a ledger, and finds where its chain is broken.

    Parameters
    ----------
    path : path
        The file.

    Returns
    -------
    Chain
        Its entries and breaks.

    Raises
    ------
    LedgerError
        For a file that is no ledger of this version.
    OSError
        Where the file cannot be read.

    Examples
    --------
    >>> import tempfile, tlrt
    >>> file = tempfile.mkdtemp() + "/other.jsonl"
    >>> _ = open(file, "w").write("{}\n")
    >>> tlrt.ledger.read(file)
    Traceback (most recent call last):
        ...
    tlrt._chain.LedgerError: read: ...other.jsonl: got another file, expected a ledger
    """
    chain, previous, place = Chain(), "", "the begin"
    *lines, chain.rest = Path(path).read_text().split("\n")
    for number, text in enumerate(lines, 1):
        try:
            entry = json.loads(text)
            own, kind = entry["hash"], entry["kind"]
            missing = FIELDS[kind] - entry.keys() or (kind == "run") is (number > 1)
            step = entry.get("step")
        except (AttributeError, KeyError, TypeError, ValueError, RecursionError):
            missing = True
        if missing:
            if number == 1:
                raise refusal(LedgerError, "read", path, "another file", "a ledger")
            chain.breaks.append((None, f"line {number} is no line of a ledger"))
            continue
        here = f"line {number}" + ("" if step is None else f" ({kind} {step})")
        if line_of(entry) != (text, own):
            chain.breaks.append((step, f"{here} was edited: its hash is not that of its content"))
        elif entry.get("previous") != previous:
            chain.breaks.append((step, f"a line is missing or was replaced between {place} and {here}"))
        chain.entries.append(entry)
        previous, place = own, here
    if not chain.entries or chain.header["version"] != VERSION:
        got = "an empty file" if not chain.entries else f"version {chain.header['version']}"
        raise refusal(LedgerError, "read", path, got, f"a ledger of version {VERSION}")
    if not chain.breaks:
        chain.breaks += _order_breaks(chain.entries)
    return chain


def _order_breaks(entries: Sequence[Entry]) -> Iterator[tuple[int | None, str]]:
    """Where steps do not follow each other, or a resumed run went on from another state than a step had left."""
    known: dict[int, Entry] = {}
    expected: int | None = None
    for e in entries[1:]:
        step = e["step"]
        if e["kind"] == "start":
            before = known.get(step - 1)
            if before is not None and not (_agree(before, e) and before["random"]["to"] == e["random"]["to"]):
                yield step, f"the run went on at step {step} from another state than step {step - 1} had left"
        elif step != expected:
            yield step, f"{e['kind']} {step} stands where step {expected} is due"
        elif e["kind"] == "step":
            if step in known and not _agree(known[step], e):
                yield step, f"step {step} was done twice, with different results"
            known[step] = e
        expected = step + (e["kind"] == "step")


def _agree(one: Entry, two: Entry) -> bool:
    """Whether two entries have the same fingerprints, as far as both have them."""
    n = min(len(one["state"]), len(two["state"]))
    return bool(one["state"][:n] == two["state"][:n])


def fingerprints(digits: str) -> list[str]:
    """The single ones."""
    return [digits[i : i + DIGITS] for i in range(0, len(digits), DIGITS)]
