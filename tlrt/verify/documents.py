"""Documents that runs write: one indented JSON value, or JSON lines where the file's name ends in ``.jsonl``.

JSON lines hold one measurement a line. A line's ``at`` is its place in the document, with ``[]`` for the next item of a list and
the last key under ``key`` for the entries of a table: ``{"at": "verify.results[]", "entry": "exp", ...}``. In a place the
characters ``.``, ``[`` and ``%`` of a name are ``%2E``, ``%5B`` and ``%25``. A long list of plain
values comes in parts, each with its ``items`` at a place that ends in ``[+]``. The first line is the document's own, with what
is short. Reading gives back the document that was written.
"""

import json
import math
import os
import shlex
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np

#: lists and tables whose items have a line each, however short
MEASUREMENTS = {"entries", "examples", "functions", "judged", "operations", "results", "rows", "sums"}
#: characters beyond which a list of tables, or a table, has lines of its own
WIDTH = 1000


def format_command(words: Sequence[str]) -> str:
    """A command without the machine's folders.

    Parameters
    ----------
    words : sequence of str
        Its words.

    Returns
    -------
    str
        For a shell; an absolute path, alone or after ``NAME=``, is its last part.

    Examples
    --------
    >>> from tlrt.verify.documents import format_command
    >>> format_command(["verify", "--json", "/home/me/out.json"])
    'verify --json out.json'
    """

    def shorten(word: str) -> str:
        name, _, value = word.partition("=")
        if Path(word).is_absolute():
            return Path(word).name
        return f"{name}={Path(value).name}" if Path(value).is_absolute() else word

    return shlex.join(map(shorten, words))


def to_plain(x: Any) -> Any:
    """A value that JSON can hold.

    Parameters
    ----------
    x : object
        Dicts, lists, NumPy's scalars, numbers, text.

    Returns
    -------
    object
        NumPy's scalars as numbers, infinities and NaN as text.

    Examples
    --------
    >>> import numpy as np
    >>> from tlrt.verify.documents import to_plain
    >>> to_plain({"worst": np.float32(0.5), "share": float("inf")})
    {'worst': 0.5, 'share': 'inf'}
    """
    if isinstance(x, dict):
        return {str(k): to_plain(v) for k, v in x.items()}
    if isinstance(x, (list, tuple)):
        return [to_plain(v) for v in x]
    if isinstance(x, np.generic):
        x = x.item()
    return str(x) if isinstance(x, float) and not math.isfinite(x) else x


def _text(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False)


def _has_lines(name: str, value: Any) -> bool:
    """Whether what stands under a name is written as lines of its own."""
    if not value or not isinstance(value, (dict, list)):
        return False
    inner = list(value.items() if isinstance(value, dict) else ((name, v) for v in value))
    tables = [v for _, v in inner if isinstance(v, dict)]
    if len(_text(value)) > WIDTH or (name in MEASUREMENTS and len(tables) == len(inner)):
        return True
    if isinstance(value, dict):
        return any(_has_lines(*item) for item in inner)
    return any(_has_lines(*item) for table in tables for item in table.items())


def _escape(name: str) -> str:
    """A name as a part of a place, which has no other dots and brackets than those of the place."""
    return name.replace("%", "%25").replace(".", "%2E").replace("[", "%5B") or "%"


def _unescape(part: str) -> str:
    return "" if part == "%" else part.replace("%5B", "[").replace("%2E", ".").replace("%25", "%")


def _is_own(name: str) -> bool:
    """Whether it is a name of a line's own, or one of a table that is written with % before it for that reason."""
    return name.lstrip("%") in ("at", "key")


def _lines(place: str, key: str | None, value: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """The lines of a table at a place: its short values, then what has lines of its own."""
    apart = {name: inner for name, inner in value.items() if _has_lines(name, inner)}
    short = {name: inner for name, inner in value.items() if name not in apart}
    short = {f"%{name}" if _is_own(name) else name: inner for name, inner in short.items()}
    yield {"at": place, **({} if key is None else {"key": key}), **short}
    for name, inner in apart.items():
        under = ".".join(filter(None, (place, *(_escape(part) for part in (key, name) if part is not None))))
        if isinstance(inner, dict) and all(isinstance(v, dict) for v in inner.values()):
            for key_, item in inner.items():
                yield from _lines(under, key_, item)
        elif isinstance(inner, dict):
            yield from _lines(under, None, inner)
        elif all(isinstance(v, dict) for v in inner):
            for item in inner:
                yield from _lines(f"{under}[]", None, item)
        else:
            size = 1 + len(inner) * WIDTH // len(_text(inner))
            yield from ({"at": f"{under}[+]", "items": inner[i : i + size]} for i in range(0, len(inner), size))


def write_document(path: Path, document: dict[str, Any]) -> None:
    """Writes a document; the file is replaced as a whole, so that an interruption leaves the old one.

    Parameters
    ----------
    path : path
        The file; its ending .jsonl chooses JSON lines.
    document : object
        What JSON holds.

    Raises
    ------
    OSError
        Where the file cannot be written.
    """
    plain = to_plain(document)
    if path.suffix == ".jsonl":
        text = "".join(_text(line) + "\n" for line in _lines("", None, plain))
    else:
        text = json.dumps(plain, indent=1, ensure_ascii=False) + "\n"
    if path.exists() and not path.is_file():  # a device or a pipe
        path.write_text(text, encoding="utf-8")
        return
    partial = path.with_name(f"{path.name}.{os.getpid()}.part")
    partial.write_text(text, encoding="utf-8")
    partial.replace(path)


def read_document(path: Path) -> Any:
    """Reads a document.

    Parameters
    ----------
    path : path
        A file that :func:`write_document` wrote.

    Returns
    -------
    object
        The document.

    Raises
    ------
    OSError
        Where the file cannot be read.
    ValueError
        For what is no JSON, or has lines without a place.
    """
    text = path.read_text(encoding="utf-8")
    if path.suffix != ".jsonl":
        return json.loads(text)
    document: dict[str, Any] = {}
    for number, line in enumerate(text.removesuffix("\n").split("\n"), 1):
        try:
            value = json.loads(line)
            _insert(document, value.pop("at"), value)
        except (KeyError, TypeError, AttributeError, ValueError) as error:
            raise ValueError(f"line {number}: {type(error).__name__}: {error}") from None
    return document


def _insert(document: dict[str, Any], place: str, value: dict[str, Any]) -> None:
    """Enters a line into the document: the place's parts are descended, ``[]`` being the last item so far."""
    key, target = value.pop("key", None), document
    value = {name[1:] if _is_own(name) else name: inner for name, inner in value.items()}
    *path, last = place.split(".") if place else [""]
    for part in path:
        name = _unescape(part.removesuffix("[]"))
        target = target[name][-1] if part.endswith("[]") else target.setdefault(name, {})
    if last.endswith("[+]"):
        target.setdefault(_unescape(last.removesuffix("[+]")), []).extend(value["items"])
    elif last.endswith("[]"):
        target.setdefault(_unescape(last.removesuffix("[]")), []).append(value)
    else:
        target = target.setdefault(_unescape(last), {}) if last else target
        (target if key is None else target.setdefault(key, {})).update(value)
