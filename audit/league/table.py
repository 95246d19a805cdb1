"""The tables and the chart of docs/league.md, from the evidence: ``python -m audit.league.table [--check]``."""

import argparse
import html
import sys
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from audit.environment import EVIDENCE, ROOT, made
from audit.league.explained import explanation
from audit.league.libraries import LIBRARIES
from audit.markdown import table
from tlrt._terminal import format_table
from tlrt.verify.documents import read_document
from tlspec import registry

BEGIN, END = "<!-- league:begin -->", "<!-- league:end -->"
PAGE, CHART, PATTERN = "docs/league.md", "docs/league.svg", "league-*.jsonl"
#: what a line can come out as, and its colour
OUTCOMES = {"pass": "#1a7f37", "explained": "#d4a017", "fail": "#b3261e", "blind": "#9aa0a6", "absent": "#e3e3e3"}
SHORT = {"float32": "f32", "bfloat16": "bf16", "float16": "f16"}


def outcome(line: Mapping[str, Any]) -> str:
    """The verdict of a line, where an explained failure is one of its own."""
    return "explained" if line["verdict"] == "fail" and explanation(line) else str(line["verdict"])


def counts(rows: Iterable[Mapping[str, Any]]) -> dict[tuple[str, str], Counter[str]]:
    """Outcomes by library and format."""
    found: dict[tuple[str, str], Counter[str]] = {}
    for line in rows:
        found.setdefault((line["library"], line["dtype"]), Counter())[outcome(line)] += 1
    return found


def summary(document: Mapping[str, Any]) -> str:
    """Outcomes by library and format, as a table of the terminal."""
    rows = [
        (LIBRARIES[n].title, d, *(str(c[v] or "") for v in OUTCOMES)) for (n, d), c in counts(document["rows"]).items()
    ]
    return format_table(("library", "format", *OUTCOMES), rows)


def cell(line: Mapping[str, Any] | None) -> str:
    """A line in a few characters; see the page."""
    if line is None:
        return ""
    made = outcome(line)
    if made in ("absent", "blind"):
        return "–" if made == "absent" else "blind"
    text = f"{min(line['share'], 1.0):.2f}" if made == "pass" else "✗" if made == "explained" else "**✗ ?**"
    marks = ("r" if line["repeats"] is False else "") + ("b" if line["batches"] is False else "")
    return text + ("*" if line["refused"] else "") + (f" {marks}" if marks else "")


def sources() -> list[str]:
    """The files of evidence."""
    return sorted(path.name for path in EVIDENCE.glob(PATTERN))


def rows_of(documents: Iterable[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
    """The lines of all documents, the libraries in their order."""
    order = list(LIBRARIES)
    return sorted((r for d in documents for r in d["rows"]), key=lambda r: order.index(r["library"]))


def _origin(name: str, document: Mapping[str, Any]) -> str:
    """What ran, where and when."""
    judged = dict.fromkeys(r["library"] for r in document["rows"])
    versions = ", ".join(f"{LIBRARIES[n].title} {document['versions'][n]}" for n in judged)
    return f"- {versions}; {document['processors']} processors; {made(document)} ([{name}](../evidence/{name}))."


def page_section(documents: Mapping[str, Mapping[str, Any]]) -> list[str]:
    """What stands between the page's markers, of the documents by file."""
    rows = rows_of(documents.values())
    found, index = counts(rows), {(r["library"], r["dtype"], r["op"], r["which"]): r for r in rows}
    page = [f"![Outcomes by library and format]({CHART.removeprefix('docs/')})", ""]
    page += [*(_origin(name, document) for name, document in documents.items()), ""]
    head = ("library", "format", "rows", *OUTCOMES, "bits differ in repeats", "bits depend on the batch")
    lines = []
    for (library, dtype), c in found.items():
        mine = [r for r in rows if (r["library"], r["dtype"]) == (library, dtype)]
        bits = (sum(r[k] is False for r in mine) for k in ("repeats", "batches"))
        lines.append((LIBRARIES[library].title, dtype, str(len({r["op"] for r in mine})),
                      *(str(c[v]) for v in OUTCOMES), *map(str, bits)))  # fmt: skip
    page += [
        *table(head, lines),
        "",
        "### Failures and their reasons",
        "",
        "Lines of evidence that fail, by reason.",
        "",
    ]
    reasons: dict[tuple[str, str], list[str]] = {}
    for r in rows:
        if r["verdict"] == "fail":
            what = f"{r['op']}{' gradient' if r['which'] == 'vjp' else ''} {SHORT[r['dtype']]}"
            reasons.setdefault((r["library"], explanation(r) or "**not explained**"), []).append(what)
    page += table(
        ("library", "reason", "rows"), ((LIBRARIES[n].title, why, ", ".join(w)) for (n, why), w in reasons.items())
    )
    columns = list(found)
    page += ["", "### Every row", "", *table(
        ("row", *(f"{LIBRARIES[n].title} {SHORT[d]}" for n, d in columns)),
        ((op + (" gradient" if which == "vjp" else ""), *(cell(index.get((*column, op, which))) for column in columns))
         for op in (r.name for r in registry.ops(None)) for which in ("forward", "vjp")
         if any((*column, op, which) in index for column in columns)),
    ), "", "### Left out", ""]  # fmt: skip
    left = [
        (LIBRARIES[n].title, what, why) for n in dict(columns) for what, why in LIBRARIES[n].module.LEFT_OUT.items()
    ]
    return [*page, *table(("library", "rows", "reason"), left)]


def chart(rows: Iterable[Mapping[str, Any]]) -> str:
    """A bar for each library and format: the shares of the outcomes."""
    found, bar, left, width = counts(rows), 22, 190, 520
    height = bar * len(found) + 44
    box = f"0 0 {left + width + 60} {height}"
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="{box}" font-family="sans-serif" font-size="12">',
        f'<rect width="100%" height="{height}" fill="white"/>',
    ]
    for i, (name, colour) in enumerate(OUTCOMES.items()):
        x = left + 100 * i
        parts.append(
            f'<rect x="{x}" y="8" width="12" height="12" fill="{colour}"/><text x="{x + 17}" y="18">{name}</text>'
        )
    for i, ((library, dtype), c) in enumerate(found.items()):
        y, place = 34 + bar * i, float(left)
        label = html.escape(f"{LIBRARIES[library].title}, {dtype}")
        parts.append(f'<text x="{left - 8}" y="{y + 13}" text-anchor="end">{label}</text>')
        for name, colour in OUTCOMES.items():
            w = width * c[name] / c.total()
            parts.append(
                f'<rect x="{place:.1f}" y="{y}" width="{w:.1f}" height="{bar - 5}" fill="{colour}"/>' if w else ""
            )
            place += w
        parts.append(f'<text x="{left + width + 8}" y="{y + 13}">{c.total()}</text>')
    return "\n".join([*filter(None, parts), "</svg>\n"])


def documents() -> dict[str, str]:
    """The generated texts by file."""
    found = {name: read_document(EVIDENCE / name) for name in sources()}
    page = (ROOT / PAGE).read_text(encoding="utf-8")
    before, _, rest = page.partition(BEGIN)
    return {
        PAGE: "\n".join([before + BEGIN, *page_section(found), END + rest.partition(END)[2]]),
        CHART: chart(rows_of(found.values())),
    }


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        prog="python -m audit.league.table", description="Writes docs/league.md and its chart."
    )
    parser.add_argument("--check", action="store_true", help="compare instead of writing")
    args = parser.parse_args(argv)
    stale = {n: t for n, t in documents().items() if not (ROOT / n).exists() or (ROOT / n).read_text("utf-8") != t}
    for name, text in stale.items():
        print(("stale: " if args.check else "wrote: ") + name)
        if not args.check:
            (ROOT / name).write_text(text, encoding="utf-8")
    return int(args.check and bool(stale))


if __name__ == "__main__":
    sys.exit(main())
