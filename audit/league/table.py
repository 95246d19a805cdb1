"""The tables of the league."""

from collections import Counter
from collections.abc import Mapping
from typing import Any

from audit.league.explained import explanation
from audit.league.libraries import LIBRARIES
from tlrt._terminal import format_table


def summary(document: Mapping[str, Any]) -> str:
    """Verdicts by library and format, then every failure without an explanation."""
    counts: dict[tuple[str, str], Counter[str]] = {}
    for line in document["rows"]:
        verdict = "explained" if line["verdict"] == "fail" and explanation(line) else line["verdict"]
        counts.setdefault((line["library"], line["dtype"]), Counter())[verdict] += 1
    verdicts = ("pass", "blind", "absent", "explained", "fail")
    rows = [(LIBRARIES[n].title, d, *(str(c[v] or "") for v in verdicts)) for (n, d), c in counts.items()]
    return format_table(("library", "format", *verdicts), rows)
