"""Histograms: as inline SVG, one panel per family, and as a word of block characters for one entry point."""

import io
import math
import re
from collections.abc import Sequence
from dataclasses import dataclass
from xml.etree import ElementTree

BLOCKS = "▁▂▃▄▅▆▇█"


@dataclass(frozen=True)
class Histogram:
    """How many comparisons of a family lay within each edge, and above the one before; `text` says it in words."""

    family: str
    counts: Sequence[int]
    edges: Sequence[float]
    text: str


def format_bins(counts: Sequence[int]) -> str:
    """One block character per bin; heights by the square root, so that few are seen beside many."""
    most = max(counts, default=0)
    return (
        "".join(BLOCKS[math.ceil(len(BLOCKS) * math.sqrt(n / most)) - 1] if n else "·" for n in counts) if most else ""
    )


def _edge(x: float) -> str:
    return "0" if x == 0 else "1" if x == 1 else f"1/{round(1 / x)}"


def draw_histograms(histograms: Sequence[Histogram], label: str, columns: int = 5) -> str:
    """The panels as an SVG element for a page: nothing in it refers to anything else, and its text is text."""
    import matplotlib
    from matplotlib.figure import Figure

    columns = min(columns, len(histograms))
    lines = math.ceil(len(histograms) / columns)
    figure = Figure(figsize=(3.0 * columns, 1.9 * lines), layout="constrained")
    with matplotlib.rc_context({"svg.fonttype": "none", "font.size": 8}):
        for i, h in enumerate(histograms):
            axes = figure.add_subplot(lines, columns, i + 1)
            total = sum(h.counts) or 1
            bars = axes.bar(range(len(h.counts)), [100 * n / total for n in h.counts], color="#2f6db3", clip_on=False)
            labels = ["" if not n else "<1%" if n < 0.01 * total else f"{100 * n / total:.0f}%" for n in h.counts]
            axes.bar_label(bars, labels, fontsize=6)
            axes.set_title(h.family, fontsize=9, fontweight="bold")
            axes.set_xticks(range(len(h.edges)), [_edge(x) for x in h.edges], fontsize=5, rotation=45)
            axes.set_yticks([])
            axes.set_ylim(0, 115)
            axes.tick_params(length=0)
            axes.spines[["left", "right", "top"]].set_visible(False)
        target = io.BytesIO()
        figure.savefig(target, format="svg")
    return _inline(target.getvalue().decode(), label)


def _inline(text: str, label: str) -> str:
    """An SVG file as an element of an HTML page, without names of its own, metadata and clipping."""
    ElementTree.register_namespace("", "http://www.w3.org/2000/svg")
    root = ElementTree.fromstring(text)
    for parent in root.iter():
        for child in [c for c in parent if c.tag.endswith(("}metadata", "}defs"))]:
            parent.remove(child)
        for name in ("id", "clip-path"):
            parent.attrib.pop(name, None)
    root.attrib = {"viewBox": root.attrib["viewBox"], "role": "img", "aria-label": label}
    return re.sub(r' xmlns(:\w+)?="[^"]*"', "", ElementTree.tostring(root, encoding="unicode"))
