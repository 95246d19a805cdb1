"""How far results on the CPU lie from the specification: measured on drawn cases of fixed seeds, and drawn as SVG.

Measurements and their figures are kept under out/ by a hash of what they depend on: the specification, the library, matplotlib
and this module.
"""

import hashlib
import html
import io
import json
import os
import re
from collections.abc import Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from functools import cache
from importlib.metadata import version
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import numpy as np

import tlrt
from audit.environment import ROOT, processors
from audit.markdown import format_count, plural
from tlrt.verify.run import Runtime
from tlrt.verify.verifier import directions
from tlspec import registry
from tlspec.drawn import data_classes, draw_case
from tlspec.registry import Op

#: the cases of an entry point: seeds of each data class of ordinary numbers
SEEDS, ORDINARY = 8, ("normal", "uniform", "wide")
#: edges of the errors in spacings, and of the shares of the bound
SPACINGS = np.linspace(-2, 2, 41)
SHARES = np.linspace(0, 1, 41)
#: the colours of the bars, the same in light and dark
ERRORS, PARTS = "#5b8ff0", "#d08a2e"

Measurement = dict[str, Any]


def measure(row: Op, which: str, runtime: Runtime) -> Measurement:
    """Errors of one entry point on drawn cases: counts of errors in spacings and of shares of the bound, how many elements were
    compared, how many are the float32 nearest to the reference, and the extremes."""
    spacings, shares = np.zeros(len(SPACINGS) - 1, np.int64), np.zeros(len(SHARES) - 1, np.int64)
    found: Measurement = {"elements": 0, "nearest": 0, "outside": 0, "ulp": 0.0, "share": 0.0, "cases": 0}
    for data in [d for d in data_classes(row, which) if d in ORDINARY]:
        for seed in range(SEEDS):
            case = draw_case(row, seed, data, "medium", which)
            expected = case.expected
            with np.errstate(all="ignore"):
                results = runtime.run(case)
            found["cases"] += 1
            for out, reference, tolerance in zip(results, expected.outputs, expected.tolerances, strict=True):
                if out is None:
                    continue
                with np.errstate(all="ignore"):
                    nearest = reference.astype(np.float32)
                    seen = np.isfinite(out) & np.isfinite(nearest) & np.isfinite(tolerance)
                    error = (out.astype(np.float64) - reference)[seen]
                    steps = error / np.spacing(np.abs(nearest[seen])).astype(np.float64)
                    bound = tolerance[seen]
                    part = np.abs(error)[bound > 0] / bound[bound > 0]
                found["elements"] += int(seen.sum())
                found["nearest"] += int((out[seen] == nearest[seen]).sum())
                found["ulp"] = max(found["ulp"], float(np.abs(steps).max(initial=0.0)))
                found["share"] = max(found["share"], float(part.max(initial=0.0)))
                found["outside"] += int((np.abs(steps) > SPACINGS[-1]).sum())
                spacings += np.histogram(np.clip(steps, SPACINGS[0], SPACINGS[-1]), SPACINGS)[0]
                shares += np.histogram(part, SHARES)[0]
    return {**found, "spacings": spacings.tolist(), "shares": shares.tolist()}


@cache
def _inputs() -> bytes:
    """What every measurement depends on, as a hash."""
    found = hashlib.sha256(version("matplotlib").encode())
    for path in [Path(__file__), *sorted((ROOT / "tlspec").rglob("*.py")), Path(tlrt.get_library())]:
        found.update(path.read_bytes())
    return found.digest()


def key(name: str) -> str:
    """The hash under which the measurements of an operation are kept."""
    return hashlib.sha256(_inputs() + name.encode()).hexdigest()[:24]


def _measure_row(name: str) -> tuple[str, dict[str, Measurement]]:
    row = registry.get(name)
    with np.errstate(all="ignore"):
        found = {which: measure(row, which, Runtime("cpu")) for which in directions(row)}
    for which, m in found.items():
        m["figure"] = draw(m, f"Errors of {row.entry(which)}") if is_shown(m) else ""
    return name, found


def measurements(rows: Sequence[Op], kept: Path) -> dict[str, dict[str, Measurement]]:
    """Measurements by operation and direction, each with its `figure`: an SVG element, or "" where there is no error to draw.
    Those that were made before are read from the folder `kept`."""
    kept.mkdir(parents=True, exist_ok=True)
    files = {row.name: kept / f"{row.name}-{key(row.name)}.json" for row in rows}
    found = {name: json.loads(path.read_text()) for name, path in files.items() if path.exists()}
    missing = [name for name in files if name not in found]
    if missing:
        with ProcessPoolExecutor(min(processors(), len(missing)), get_context("spawn")) as pool:
            for name, result in pool.map(_measure_row, missing, chunksize=4):
                files[name].write_text(json.dumps(result))
                found[name] = result
    for path in kept.glob("*.json"):
        if path not in files.values() and path.stem.rpartition("-")[0] in files:
            os.unlink(path)
    return found


def sentence(m: Mapping[str, Any], name: str) -> str:
    """What the figure shows, in words."""
    n, exact = m["elements"], m["nearest"]
    if not n:
        return f"No finite element of {name} was drawn."
    text = f"{name} on the CPU: {format_count(n)} finite elements of {m['cases']} drawn cases"
    if exact == n:
        return f"{text}. Every one is the float32 nearest to the exact result."
    rest = f"{100 * exact / n:.3g} % are the float32 nearest to the exact result; the largest error is {m['ulp']:.3g} spacings"
    share = f", and {m['share']:.3g} of the bound" if any(m["shares"]) else ""
    beyond = f" Errors beyond two spacings, of {plural(m['outside'], 'element')}, are in the outermost bars: where terms cancel,"
    beyond += " the result is small beside the terms that the bound is made of."
    return f"{text}; {rest}{share}.{beyond if m['outside'] else ''}"


def is_shown(m: Mapping[str, Any]) -> bool:
    """Whether there is an error to draw."""
    return bool(m["elements"]) and m["nearest"] < m["elements"]


def draw(m: Mapping[str, Any], label: str) -> str:
    """Two histograms beside each other as an SVG element: errors in spacings, and shares of the bound."""
    from matplotlib.figure import Figure

    panels = [("error in float32 spacings", SPACINGS, m["spacings"], ERRORS)]
    if any(m["shares"]):
        panels.append(("error as a share of the bound", SHARES, m["shares"], PARTS))
    figure = Figure(figsize=(3.7 * len(panels), 2.1), layout="constrained", facecolor="none")
    for i, (title, edges, counts, colour) in enumerate(panels):
        axes = figure.add_subplot(1, len(panels), i + 1)
        axes.stairs([100 * c / max(sum(counts), 1) for c in counts], edges, fill=True, color=colour)
        axes.set_xlabel(title, fontsize=9)
        axes.set_ylabel("% of elements" if not i else "", fontsize=9)
        axes.set_yscale("symlog", linthresh=1, linscale=0.7)
        axes.set_yticks([0, 1, 10, 100], ["0", "1", "10", "100"])
        axes.set_yticks([], minor=True)
        axes.set_ylim(0, 130)
        axes.set_xlim(edges[0], edges[-1])
    return plain_svg(figure, label)


def plain_svg(figure: Any, label: str) -> str:
    """A figure of matplotlib as an SVG element whose black is the colour of the text around it."""
    import matplotlib

    for axes in figure.axes:
        axes.set_facecolor("none")
        axes.spines[["top", "right"]].set_visible(False)
        axes.tick_params(labelsize=8)
    target = io.StringIO()
    with matplotlib.rc_context({"svg.fonttype": "none", "svg.hashsalt": "site"}):
        figure.savefig(target, format="svg", transparent=True, metadata={"Date": None})
    text = re.sub(r"<metadata>.*?</metadata>|<style.*?</style>|<!--.*?-->", "", target.getvalue(), flags=re.S)
    referred = set(re.findall(r"#([\w-]+)", text))
    text = re.sub(
        r' id="([^"]*)"', lambda m: m[0] if m[1] in referred else "", text
    )  # names are those of the whole page
    found = re.search(r'<svg[^>]*viewBox="([^"]*)"[^>]*>(.*)</svg>', text, re.S)
    if found is None:
        raise ValueError("matplotlib: got no svg element with a viewBox")
    box, inner = found[1], found[2].replace("#000000", "currentColor").replace("\n", "")
    lines = 'fill="currentColor" stroke-linejoin="round" stroke-linecap="butt"'
    return f'<svg viewBox="{box}" role="img" aria-label="{html.escape(label)}" {lines}>{inner}</svg>'
