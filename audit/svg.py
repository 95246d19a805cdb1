"""Histograms as inline SVG."""

from __future__ import annotations

import html
import math
from collections.abc import Sequence

__all__ = ["histogram", "spark"]


def edge(x: float) -> str:
    if x == 0:
        return "0"
    return "1" if x == 1 else f"1/{round(1 / x)}"


def spark(bins: Sequence[int], title: str) -> str:
    """A histogram of a few pixels; heights by the square root, so that few are seen beside many."""
    most = max(bins, default=0)
    if not most:
        return ""
    path = ""
    for i, n in enumerate(bins):
        if n:
            h = max(1, round(16 * math.sqrt(n / most)))
            path += f"M{i * 6} 16v-{h}h5v{h}z"
    width = 6 * len(bins)
    return (
        f'<svg class="spark" viewBox="0 0 {width} 16" width="{width}" height="16" role="img"><title>{html.escape(title)}</title>'
        f'<path d="{path}"/></svg>'
    )


def histogram(name: str, bins: Sequence[int], edges: Sequence[float], what: str) -> str:
    """Shares of the bound over comparisons, one bar per bin, the greatest share in words."""
    total = sum(bins)
    most = max(max(bins), 1)
    width, left, base, high = 30, 4, 112, 78
    bars = []
    for i, (n, top) in enumerate(zip(bins, edges, strict=True)):
        x = left + i * width
        percent = 100 * n / total if total else 0.0
        if n:
            h = max(1.0, high * n / most)
            bars.append(f'<rect x="{x + 2}" y="{base - h:.1f}" width="{width - 4}" height="{h:.1f}"/>')
            label = f"{percent:.0f}%" if percent >= 1 else "<1%"
            bars.append(f'<text x="{x + width / 2}" y="{base - h - 4:.1f}">{html.escape(label)}</text>')
        bars.append(f'<text class="axis" x="{x + width / 2}" y="{base + 13}">{edge(top)}</text>')
    whole = left * 2 + width * len(bins)
    return (
        f'<figure><svg viewBox="0 0 {whole} 130" role="img" aria-label="{html.escape(name)}: {html.escape(what)}">'
        f'<line x1="{left}" x2="{whole - left}" y1="{base}" y2="{base}"/>{"".join(bars)}</svg>'
        f"<figcaption><b>{html.escape(name)}</b> {html.escape(what)}</figcaption></figure>"
    )
