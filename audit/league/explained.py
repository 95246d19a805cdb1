"""Why a library's function fails: each failure was looked at by hand. An entry names the library (a prefix), the operation, the
direction and the format ("*" is any), and says what the library does."""

from collections.abc import Mapping
from typing import Any

REASONS: tuple[tuple[str, str, str, str, str], ...] = ()


def reason_of(line: Mapping[str, Any]) -> str:
    """The reason of a failure; "" for one that nobody has explained."""
    for library, op, which, dtype, text in REASONS:
        known = zip((op, which, dtype), (line["op"], line["which"], line["dtype"]), strict=True)
        if line["library"].startswith(library) and all(a in ("*", b) or b in a.split(",") for a, b in known):
            return text
    return ""
