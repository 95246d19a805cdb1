"""docs/speed.svg: how many times faster than PyTorch each family's rows are, the median with the worst and the best row.

The drawn figures are also in the file's metadata, as JSON, where a test compares them with the evidence: what matplotlib makes
of them differs between its versions.
"""

import html
import json
import re
import statistics
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from audit import evidence


def family_ratios(rows: Sequence[Mapping[str, Any]], peer: str) -> dict[str, list[tuple[float, str, str]]]:
    """(ratio, operation, size) of every row that has the peer, by family, ascending."""
    groups: dict[str, list[tuple[float, str, str]]] = {}
    for row in rows:
        if peer in row["peers"]:
            family = evidence.family(row["op"], "core")
            groups.setdefault(family, []).append((row["peers"][peer]["ratio"], row["op"], row["size"]))
    return {family: sorted(found) for family, found in groups.items()}


def chart_figures(rows: Sequence[Mapping[str, Any]], title: str) -> dict[str, Any]:
    """What the chart shows: its title, and the worst, median and best ratio of every family."""
    groups = family_ratios(rows, "torch")
    families = {
        family: [round(x, 4) for x in (found[0][0], statistics.median(r[0] for r in found), found[-1][0])]
        for family, found in groups.items()
    }
    return {"title": title, "families": families}


def read_figures(path: Path) -> Any:
    """The figures that a chart was drawn from; None where there is no such chart."""
    if not path.exists():
        return None
    found = re.search(r"<dc:description>(.*?)</dc:description>", path.read_text(encoding="utf-8"), re.S)
    return None if found is None else json.loads(html.unescape(found[1]))


def draw_chart(path: Path, figures: Mapping[str, Any]) -> None:
    """Draws the chart: a dot at the median, a bar from the worst row to the best. The background is light, so that it reads on a
    dark page as well."""
    import matplotlib
    from matplotlib.figure import Figure

    families = list(figures["families"])
    worst, median, best = zip(*figures["families"].values(), strict=True)
    with matplotlib.rc_context({"svg.hashsalt": "speed", "svg.fonttype": "none", "font.size": 10}):
        chart = Figure(figsize=(7.6, 0.36 * len(families) + 1.1), layout="constrained", facecolor="white")
        axes = chart.add_subplot()
        places = range(len(families))
        below = [m - w for m, w in zip(median, worst, strict=True)]
        above = [b - m for m, b in zip(median, best, strict=True)]
        axes.errorbar(median, places, xerr=[below, above], fmt="o", color="#1f5fa8", ecolor="#8fb3d9", elinewidth=3)
        axes.axvline(1, color="#555555", linewidth=1, linestyle="--")
        axes.set_xscale("log")
        ticks = [0.2, 0.5, 1, 2, 5, 10, 20]
        axes.set_xticks(ticks, [f"{t:g}×" for t in ticks])
        axes.set_xticks([], minor=True)
        axes.set_xlim(min(*worst, 0.5) * 0.85, max(best) * 1.6)
        axes.set_yticks(places, families)
        axes.invert_yaxis()
        for place, m in zip(places, median, strict=True):
            axes.annotate(f"{m:.2f}", (m, place), (0, 5), textcoords="offset points", ha="center", fontsize=7)
        axes.grid(axis="x", color="#dddddd", linewidth=0.6)
        axes.set_axisbelow(True)
        axes.spines[["top", "right", "left"]].set_visible(False)
        axes.tick_params(length=0)
        axes.set_title(figures["title"], fontsize=10, loc="left")
        metadata = {"Date": None, "Creator": None, "Description": json.dumps(figures)}
        chart.savefig(path, format="svg", metadata=metadata)
