"""The figures of docs/judge.md, from the evidence: ``python -m audit.judge.page``."""

import sys
from collections.abc import Mapping
from typing import Any

from audit.environment import EVIDENCE, ROOT
from audit.judge.defects import HEAD, misses, table
from tlrt.verify.documents import read_document

BEGIN, END = "<!-- defects:begin -->", "<!-- defects:end -->"
PAGE, SOURCE = "docs/judge.md", "judge-defects.jsonl"


def section(document: Mapping[str, Any]) -> list[str]:
    """What stands between the page's markers."""
    lines, nothing = document["rows"], document["trivial"]
    rows = [HEAD, ["---"] * len(HEAD), *table(lines)]
    planted, caught = (sum(r[i] for r in rows[2:]) for i in (4, 5))
    where = f"{document['started'][:10]}, commit {document['commit'][:7]}, [{SOURCE}](../evidence/{SOURCE})"
    right = f"{sum(r[2] for r in rows[2:])} right kernels beside them are judged, of which {sum(r[3] for r in rows[2:])} fail"
    page = [f"Of {planted} plantings {caught} are caught; {right} ({where}).", ""]
    page += [*("| " + " | ".join(map(str, row)) + " |" for row in rows), ""]
    page += [f"- Missed: {x['by']}, `{x['op']}`, {x['dtype']}: {name}. The reason: {reason}."
             for x, name, reason in misses(lines)]  # fmt: skip
    for name, found in nothing.items():
        but = "".join(f"; not for `{row}`, where {reason}" for row, reason in found["missed"].items())
        page.append(
            f"- A kernel that returns {name} is caught for {found['caught']} of {found['rows']} operations{but}."
        )
    return page


def page() -> str:
    """The page with the figures of the evidence."""
    text = (ROOT / PAGE).read_text("utf-8")
    head, rest = text.split(BEGIN)
    return f"{head}{BEGIN}\n" + "\n".join(section(read_document(EVIDENCE / SOURCE))) + f"\n{END}{rest.split(END)[1]}"


def main() -> int:
    (ROOT / PAGE).write_text(page(), encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
