"""The page of the evidence: every file, and charts of what the files hold."""

import statistics
from collections.abc import Mapping, Sequence
from typing import Any

from audit.environment import EVIDENCE, short_commit
from audit.markdown import table
from bench import results, trust
from bench.speed_chart import family_ratios
from pages.figures import Measurement, plain_svg
from tlrt.verify.documents import read_document
from tlspec import registry

BARS, DOTS = "#5b8ff0", "#d08a2e"


def figure(svg: str, caption: str) -> list[str]:
    return [f"<figure>{svg}<figcaption>{caption}</figcaption></figure>", ""]


def shares_chart(shares: Mapping[str, Sequence[float]], label: str) -> str:
    """A dot for each worst share of a bound, a line for each family."""
    from matplotlib.figure import Figure

    chart = Figure(figsize=(7.2, 0.28 * len(shares) + 0.8), layout="constrained", facecolor="none")
    axes = chart.add_subplot()
    for place, values in enumerate(shares.values()):
        axes.plot(values, [place] * len(values), "|", color=BARS, markersize=11, alpha=0.8)
    axes.set_yticks(range(len(shares)), list(shares))
    axes.invert_yaxis()
    axes.set_xlim(0, 1.01)
    axes.set_xlabel("worst error as a share of its bound")
    axes.grid(axis="x", color="#888888", linewidth=0.3)
    return plain_svg(chart, label)


def ratios_chart(rows: Sequence[Mapping[str, Any]], peer: str, label: str) -> str:
    """A dot for each timed row, and a line at each family's median."""
    from matplotlib.figure import Figure

    groups = family_ratios(rows, peer)
    chart = Figure(figsize=(7.2, 0.28 * len(groups) + 0.8), layout="constrained", facecolor="none")
    axes = chart.add_subplot()
    for place, found in enumerate(groups.values()):
        ratios = [ratio for ratio, *_ in found]
        axes.plot(ratios, [place] * len(ratios), "o", color=BARS, markersize=4, alpha=0.5, markeredgewidth=0)
        axes.plot([statistics.median(ratios)], [place], "|", color=DOTS, markersize=13, markeredgewidth=2.5)
    axes.axvline(1, color="#000000", linewidth=0.8, linestyle="--")
    axes.set_xscale("log")
    ticks = [t for t in (0.1, 0.2, 0.5, 1, 2, 5, 10, 20, 50) if t <= 2 * max(r[0] for f in groups.values() for r in f)]
    axes.set_xticks(ticks, [f"{t:g}×" for t in ticks])
    axes.set_xticks([], minor=True)
    axes.set_yticks(range(len(groups)), list(groups))
    axes.invert_yaxis()
    axes.set_xlabel(f"times faster than {results.NAMES[peer]}")
    return plain_svg(chart, label)


def verified_charts() -> list[str]:
    """How close drawn cases came to the bounds, a chart for each file of the verify command."""
    page: list[str] = []
    for source in trust.committed_sources():
        for document in source.parts.get("verify", []):
            shares: dict[str, list[float]] = {family: [] for family in registry.families()}
            for r in document["results"]:
                shares.setdefault(r["family"], []).append(min(float(r["share"]), 1.0))
            label = f"Worst shares of the bounds in {source.name}"
            devices = ", ".join(source.label(d) for d in source.devices)
            caption = f"A line is one function on one device: {devices}. From {source.name}."
            page += figure(shares_chart({f: s for f, s in shares.items() if s}, label), caption)
    return page


def speed_charts() -> list[str]:
    page: list[str] = []
    for run in results.RUNS:
        loaded = results.load(run.file)
        rows = loaded["bench"]["rows"] if loaded else []
        for peer in run.peers:
            if any(peer in row["peers"] for row in rows):
                label = f"{run.title}: times faster than {results.NAMES[peer]}"
                caption = f"{run.title}. A dot is one row, the broad mark is the median of a family. From {run.file}."
                page += figure(ratios_chart(rows, peer, label), caption)
    return page


def measured_chart(measured: Mapping[str, Mapping[str, Measurement]]) -> list[str]:
    """The measurements of this build, by family."""
    shares: dict[str, list[float]] = {}
    for row in registry.ops():
        shares.setdefault(row.family, []).extend(
            m["share"] for m in measured.get(row.name, {}).values() if any(m["shares"])
        )
    shares = {family: values for family, values in shares.items() if values}
    if not shares:
        return []
    caption = "A line is one function on the CPU of the machine that built this site, on cases drawn from fixed seeds."
    return figure(shares_chart(shares, "Worst shares of the bounds on this machine"), caption)


def files_table() -> list[str]:
    rows = []
    for path in sorted(EVIDENCE.glob("*.jsonl")):
        document = read_document(path)
        date = str(document.get("started") or document.get("date") or "")[:10]
        rows.append((f"[{path.name}]({path.name})", date, f"`{document['command']}`" if document.get("command") else "",
                     f"`{short_commit(str(document.get('commit', '')))}`" if document.get("commit") else ""))  # fmt: skip
    return table(("file", "date", "command", "commit"), rows)


def evidence_page(measured: Mapping[str, Mapping[str, Measurement]]) -> str:
    """The page, as Markdown."""
    page = [
        "# Evidence",
        "",
        "Every figure of these pages comes from one of these files, which are committed with the source.",
        "",
    ]
    page += ["[The verification report](report.html) has a line for every entry point and every device.", ""]
    page += ["## How close results come to their bounds", "", *verified_charts(), *measured_chart(measured)]
    page += ["## Speed", "", *speed_charts(), "## The files", "", *files_table(), ""]
    return "\n".join(page)
