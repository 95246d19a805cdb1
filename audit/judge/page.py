"""The figures of docs/judge.md, from the evidence: ``python -m audit.judge.page``."""

import sys
from collections.abc import Mapping
from typing import Any

from audit.environment import EVIDENCE, ROOT, made
from audit.judge.alarms import HEAD as ALARMS_HEAD
from audit.judge.alarms import table as alarms_table
from audit.judge.defects import HEAD, misses
from audit.judge.defects import table as plantings_table
from audit.markdown import table
from tlrt.verify.documents import read_document

BEGIN, END = "<!-- defects:begin -->", "<!-- defects:end -->"
PAGE, PLANTED, ALARMS = "docs/judge.md", "judge-defects*.jsonl", "judge-alarms.jsonl"


def _link(name: str, document: Mapping[str, Any]) -> str:
    return f"{made(document)}, [{name}](../evidence/{name})"


def section(documents: Mapping[str, Mapping[str, Any]], right: Mapping[str, Any]) -> list[str]:
    """What stands between the page's markers, of the documents of plantings by file, and of that of right kernels."""
    rows = alarms_table(right["rows"])
    cases, alarms = (f"{sum(r[i] for r in rows):,}" for i in (2, 4))
    page = [f"On {cases} cases of right kernels {alarms} alarms were raised ({_link(ALARMS, right)}).", ""]
    page += [*table(ALARMS_HEAD, [map(str, r) for r in rows]), ""]
    lines = [x for d in documents.values() for x in d["rows"]]
    found = plantings_table(lines)
    planted, caught = (sum(r[i] for r in found) for i in (4, 5))
    beside = (
        f"{sum(r[2] for r in found)} right kernels beside them are judged, of which {sum(r[3] for r in found)} fail"
    )
    origins = "; ".join(_link(name, d) for name, d in documents.items())
    page += [
        f"Of {planted} plantings {caught} are caught; {beside} ({origins}).",
        "",
        *table(HEAD, [map(str, r) for r in found]),
        "",
    ]
    page += [f"- Missed: {x['by']}, `{x['op']}`, {x['dtype']}: {name}. The reason: {reason}."
             for x, name, reason in misses(lines)]  # fmt: skip
    for name, seen in (item for d in documents.values() for item in d["trivial"].items()):
        but = "".join(f"; not for `{row}`, where {reason}" for row, reason in seen["missed"].items())
        page.append(f"- A kernel that returns {name} is caught for {seen['caught']} of {seen['rows']} operations{but}.")
    return page


def page() -> str:
    """The page with the figures of the evidence."""
    text = (ROOT / PAGE).read_text("utf-8")
    head, rest = text.split(BEGIN)
    documents = {path.name: read_document(path) for path in sorted(EVIDENCE.glob(PLANTED))}
    body = "\n".join(section(documents, read_document(EVIDENCE / ALARMS)))
    return f"{head}{BEGIN}\n{body}\n{END}{rest.split(END)[1]}"


def main() -> int:
    (ROOT / PAGE).write_text(page(), encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
