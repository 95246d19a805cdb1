"""Tables and the chart of what the summaries under ``evidence`` hold. ``python -m bench.results`` writes the README's block and
docs/speed.svg (``--check`` compares instead); the site appends the long tables to its pages.
"""

import argparse
import html
import json
import re
import statistics
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from audit.environment import ROOT, short_commit
from audit.markdown import format_count, format_figure, format_inputs, format_share, table
from audit.summary import Row, by_family, device_label, read_summaries
from tlspec import entries, registry

BEGIN, END = "<!-- results:begin -->", "<!-- results:end -->"
CHART = "docs/speed.svg"
#: the timed run that the README shows
SHOWN = "bench-h200"
NAMES = {"torch": "PyTorch", "numpy": "NumPy", "fast": "the fast mode"}
NONE = "–"

Summaries = Mapping[str, Row]


def link(name: str) -> str:
    """A link to a summary from a page one folder below the root."""
    return f"[{name}](../evidence/{name}.jsonl)"


def origin(name: str, summary: Row) -> str:
    """On what, when and at which commits a summary was measured, with its link."""
    devices = "; ".join(text.partition(", compute")[0] for text in summary["devices"].values())
    runs = summary.get("runs") or [summary]
    made = ", ".join(dict.fromkeys(short_commit(r["commit"]) for r in runs if r.get("commit")))
    versions = f"; PyTorch {summary['torch']}" if summary.get("torch") else ""
    return f"{devices}{versions}; {summary['date']}{f', commit {made}' if made else ''} ({link(name)})"


def of_campaign(summaries: Summaries, campaign: str) -> dict[str, Row]:
    """The summaries of one campaign, GPUs first."""
    found = {name: s for name, s in summaries.items() if s.get("campaign") == campaign}
    return dict(sorted(found.items(), key=lambda item: ("cuda" not in item[1]["devices"], item[0])))


# Speed


def family_ratios(rows: Iterable[Row], peer: str) -> dict[str, list[tuple[float, str, str]]]:
    """(ratio, operation, size) of every row that has the peer, by family, ascending."""
    timed = [r for r in rows if r.get(peer) is not None]
    return {name: sorted((r[peer], r["op"], r["size"]) for r in own) for name, own in by_family(timed, "op")}


def families_table(rows: Sequence[Row], peer: str) -> list[str]:
    """One line a family: how many rows, the median ratio, and the worst and the best with their operations."""
    lines = []
    for name, ratios in family_ratios(rows, peer).items():
        ends = [f"{format_figure(ratio)} ({op}, {size})" for ratio, op, size in (ratios[0], ratios[-1])]
        lines.append([name, str(len(ratios)), format_figure(statistics.median(r[0] for r in ratios)), *ends])
    return table(("family", "rows", f"times faster than {NAMES[peer]}: median", "worst", "best"), lines)


def rows_table(rows: Sequence[Row]) -> list[str]:
    """Every timed row."""
    peers = [p for p in NAMES if any(p in r for r in rows)]
    head = ["operation", "size", "ms", "share of floor", "rms error", *(f"times faster than {NAMES[p]}" for p in peers)]
    lines = []
    for r in rows:
        floor = f"{r['floor']:.2f}{'*' if r.get('in_cache') else ''}" if "floor" in r else ""
        ratios = [format_figure(r[p]) if p in r else "" for p in peers]
        lines.append(
            [r["op"], r["size"], format_figure(r["ms"]), floor, f"{r['error']:.1e}" if "error" in r else "", *ratios]
        )
    return table(head, lines)


def bench_section(name: str, summary: Row) -> list[str]:
    page = ["", f"## Every row, {device_label(summary['devices']).upper()}", "", f"{origin(name, summary)}.", ""]
    fast, chained = (
        [r for r in summary["rows"] if (r.get("math") == "reproducible") is other] for other in (False, True)
    )
    for title, rows in (("In the mode fast", fast), ("In the mode reproducible", chained)):
        if rows:
            page += [f"### {title}: {name}", "", *families_table(rows, "torch"), "", *rows_table(rows), ""]
    return page


COLUMNS: Mapping[str, Mapping[str, str]] = {
    "steps": {
        "step": "step", "size": "size", "math": "mode", "ours_ms": "ms", "torch_ms": "PyTorch, ms",
        "ratio": "times faster than PyTorch", "compiled_ratio": "times faster than torch.compile",
        "device_ratio": "step over its kernels", "driver_allocations": "driver allocations",
    },
    "drawn": {
        "family": "family", "shapes": "shapes", "median": "median", "percentile_5": "5th percentile", "least": "least",
        "share_below_1": "share below 1", "slowest": "slowest shape",
    },
    "growth": {"name": "what", "size": "of", "sizes": "sizes", "figure_is": "figure", "figure": "value", "limit": "limit"},
    "beside": {"op": "operation", "size": "size", "ms": "ms", "before_ms": "before", "ratio": "times faster"},
    "models": {
        "model": "model", "family": "family", "batch": "batch", "math": "mode", "rows": "rows", "ms": "ms",
        "ratio": "times faster than PyTorch", "geomean": "geomean of rows", "least": "least", "timed": "share that was timed",
    },
    "torch-models": {
        "model": "model", "device": "device", "batch": "batch", "ms": "ms", "plain_ms": "plain PyTorch, ms",
        "ratio": "times slower", "memory": "memory, times",
    },
}  # fmt: skip
TITLES = {
    "models": "The work of a model's training step, kernel by kernel, beside PyTorch",
    "steps": "Training steps, beside PyTorch", "drawn": "Drawn shapes, beside PyTorch", "growth": "How cost and error grow",
    "beside": "Fixed rows, beside earlier checkouts: those that gained least",
}  # fmt: skip


def cell(value: Any) -> str:
    if isinstance(value, float):
        return format_figure(value)
    return ", ".join(map(str, value)) if isinstance(value, list) else "" if value is None else str(value)


def columns_table(columns: Mapping[str, str], rows: Sequence[Row]) -> list[str]:
    """A table of these columns, without those that no row has."""
    used = {key: title for key, title in columns.items() if any(r.get(key) is not None for r in rows)}
    return table(list(used.values()), ([cell(r.get(key)) for key in used] for r in rows))


def speed_tables(summaries: Summaries) -> list[str]:
    """What the site appends to docs/results.md."""
    page: list[str] = []
    for campaign, title in TITLES.items():
        for i, (name, summary) in enumerate(of_campaign(summaries, campaign).items()):
            page += [] if i else ["", f"## {title}"]
            page += ["", f"{origin(name, summary)}.", "", *columns_table(COLUMNS[campaign], summary["rows"])]
    for name, summary in of_campaign(summaries, "bench").items():
        page += bench_section(name, summary)
    if models := summaries.get("torch-models"):
        page += ["", "## Unmodified models of PyTorch", "", f"{origin('torch-models', models)}.", ""]
        page += columns_table(COLUMNS["torch-models"], models["rows"])
    return [*page, *examples_section(summaries)]


def examples_section(summaries: Summaries) -> list[str]:
    """What the examples reached on each device."""
    page: list[str] = []
    for name in sorted(n for n in summaries if n.startswith("examples-")):
        page += [
            "",
            f"## Examples: {name.partition('-')[2].upper()}",
            "",
            f"{origin(name, dated(summaries[name]))}.",
            "",
        ]
        lines = []
        for example, r in summaries[name]["examples"].items():
            reached = {k: v for k, v in r.items() if isinstance(v, float) and not k.endswith(("seconds", "second"))}
            said = "; ".join(f"{k.replace('_', ' ')} {v:.4g}" for k, v in reached.items())
            times = [format_figure(r[k]) for k in ("wall_seconds", "steps_per_second")]
            lines.append([example, format_count(r["parameters"]), str(r["steps"]), said, *times])
        page += table(("example", "parameters", "steps", "what it reached", "s", "steps/s"), lines)
    return page


def dated(summary: Row) -> Row:
    """A document of a run that is small enough to be its own summary, with a date."""
    return {"date": str(summary.get("started") or summary.get("date") or "")[:10], **summary}


# What was tried


def worst_text(summary: Row) -> str:
    return f"closest to a bound: {format_share(summary['worst']['share'])} ({summary['worst']['entry']})"


def _verify(s: Row) -> tuple[str, str]:
    tried = f"{format_count(s['cases'])} drawn cases of {s['entries']} entry points on {len(s['devices'])} devices"
    return tried, f"{len(s['failures'])} failed; {s['same_bits']} with the bits of the CPU; {worst_text(s)}"


def _exhaustive(s: Row) -> tuple[str, str]:
    functions = [r for r in s["rows"] if "entry" in r]
    top = max(functions, key=lambda r: float(r["worst"]))
    exact = sum(not r["misrounded"] for r in functions)
    tried = f"{len(functions)} functions of one argument on up to {format_inputs(max(r['inputs'] for r in functions))} inputs"
    pairs = sum(r["pairs"] for r in s["rows"] if "pairs" in r)
    differ = sum(r.get("devices_differ") or 0 for r in s["rows"])
    return f"{tried}, {format_count(pairs)} pairs", (
        f"at most {top['worst']} ulp from the nearest float32 ({top['entry']}); {exact} always the nearest; "
        f"{differ} results differ between devices"
    )


def _probe(s: Row) -> tuple[str, str]:
    taller = sum(r["height"] is not None and r["height"] + r["extra"] > r["declared"] for r in s["rows"])
    most = max(r["leaves"] for r in s["rows"])
    return (
        f"the order of {len(s['rows'])} sums of up to {format_count(most)} summands",
        f"{taller} taller than their bound assumes",
    )


def _determinism(s: Row) -> tuple[str, str]:
    batch = sorted({e for r in s["rows"] for e in r["batch_dependent"]})
    said = f"; {len(batch)} depend on the batch, where that is not promised otherwise" if batch else ""
    tried = f"{format_count(s['calls'])} calls again: repeated, other threads, variants, batches, trimmed memory"
    return tried, f"{sum(len(r.get('failures', ())) for r in s['rows'])} with other bits{said}"


def _hostile(s: Row) -> tuple[str, str]:
    calls = [r for r in s["rows"] if "calls" in r]
    tried = f"{format_count(s['calls'])} hostile calls of {max(r['functions'] for r in calls)} functions of the C ABI"
    files = sum(r.get("checkpoint_files", 0) for r in s["rows"])
    failures = sum(len(r["failures"]) for r in s["rows"])
    sanitizers = ", ".join(filter(None, dict.fromkeys(r["sanitizers"] for r in calls)))
    under = f" under sanitizers ({sanitizers})" if sanitizers else ""
    return f"{tried}{under}" + (
        f"; {format_count(files)} damaged checkpoint files" if files else ""
    ), f"{failures} failures"


def _faults(s: Row) -> tuple[str, str]:
    trials = sum(r[mode]["trials"] for r in s["rows"] for mode in ("one", "all", "calls") if mode in r)
    return (
        f"{format_count(trials)} trials in which an allocation fails",
        f"{sum(len(r['failures']) for r in s['rows'])} failures",
    )


def _interrupts(s: Row) -> tuple[str, str]:
    programs = len({name for r in s["rows"] for name in r} - {"kind"})
    return (
        f"an exception at {format_count(s['points'])} points of {programs} programs",
        f"{len(s['failures'])} failures",
    )


def _contention(s: Row) -> tuple[str, str]:
    turns = ", ".join(f"{r['subject']} {format_count(r['turns'])}" for r in s["rows"])
    return (
        f"{s['threads']} threads at one object, or forks beside them; turns: {turns}",
        f"{len(s['failures'])} failures",
    )


def _mutants(s: Row) -> tuple[str, str]:
    counts = [r for r in s["rows"] if "killed" in r]
    killed, left = (sum(r[k] for r in counts) for k in ("killed", "survived"))
    said = ", ".join(f"{r['kind']} {100 * float(r['score']):.1f} %" for r in counts)
    return (
        f"{killed + left} random changes of one line",
        f"{killed} seen by the tests ({said}); {left} survived, each listed",
    )


def _sanitizer(s: Row) -> tuple[str, str]:
    tools = ", ".join(f"{tool} over {sum(len(r['over']) for r in s['rows'] if r['tool'] == tool)} runs"
                      for tool in dict.fromkeys(r["tool"] for r in s["rows"]))  # fmt: skip
    return f"compute-sanitizer: {tools}", f"{sum(len(r['failures']) for r in s['rows'])} errors"


def _environments(s: Row) -> tuple[str, str]:
    tried = f"{format_count(s['cases'])} results in floating-point modes of the caller: {', '.join(s['modes'])}"
    return tried, f"{len(s['digests']) - 1} modes differ"


def _soak(s: Row) -> tuple[str, str]:
    steps = ", ".join(f"{format_count(r['steps'])} training steps on {r['device']}" for r in s["rows"])
    return steps, f"{sum(len(r['failures']) for r in s['rows'])} changes of live memory"


def _planted(s: Row) -> tuple[str, str]:
    run, killed = (sum(r[k] for r in s["rows"]) for k in ("run", "killed"))
    return f"{run} planted defects", f"{killed} caught; {sum(r['equivalent'] for r in s['rows'])} change no behaviour"


TOTALS: Mapping[str, Callable[[Row], tuple[str, str]]] = {
    "verify": _verify, "exhaustive": _exhaustive, "probe": _probe, "determinism": _determinism,
    "hostile": _hostile, "faults": _faults, "interrupts": _interrupts, "contention": _contention,
    "environments": _environments, "soak": _soak, "mutants": _mutants, "planted": _planted, "sanitizer": _sanitizer,
}  # fmt: skip


def is_failed(summary: Row) -> bool:
    return summary.get("verdict") == "fail" or bool(summary.get("failures"))


def tried_table(summaries: Summaries) -> list[str]:
    """What each summary holds in sum."""
    rows = []
    for campaign, describe in TOTALS.items():
        for name, s in of_campaign(summaries, campaign).items():
            tried, outcome = describe(s)
            mode = " (reproducible)" if "-reproducible" in name else ""
            rows.append([campaign + mode, tried, "**failed**; " * is_failed(s) + outcome, f"{origin(name, s)}"])
    return table(("campaign", "tried", "outcome", "where"), rows)


def promises_table() -> list[str]:
    """One line an exported operation: what the registry's row promises."""
    lines = []
    for e in entries.all_entries():
        row = e.op
        which = "forward" if e.kernel == row.name else "vjp"
        within = "in the mode reproducible" if row.contract.reproducible else "no"
        kernel = "own kernel" if row.contract.cuda == "own" else row.contract.cuda
        lines.append([f"`{e.symbol}`", f"`{entries.shapes_text(e)}`", "yes" if row.contract.same_bits else within, kernel,
                      row.bound_of(which).text])  # fmt: skip
    return table(("symbol", "shapes", "same bits on CPU and CUDA", "on CUDA by", "error bound"), lines)


def trust_tables(summaries: Summaries) -> list[str]:
    """What the site appends to docs/trust.md."""
    return [
        "",
        "## What was tried",
        "",
        *tried_table(summaries),
        "",
        "## Promises per operation",
        "",
        *promises_table(),
    ]


# Pages of operations


def bound_text(entry: str, math: str) -> str:
    """The bound that an entry point has now."""
    op = registry.get(entry if entry in {r.name for r in registry.operations()} else entry.removesuffix("_bwd"))
    return op.in_math(math).bound_of("forward" if entry == op.name else "vjp").text


def entry_rows(entry: str, summaries: Summaries) -> list[tuple[str, str, str]]:
    """(what was tried, outcome, link) of an entry point, where its bound is the one of now."""
    found = []
    for name, s in of_campaign(summaries, "verify").items():
        math = "reproducible" if "-reproducible" in name else "fast"
        for r in s["rows"]:
            if r["entry"] == entry and r["bound"] == bound_text(entry, math):
                names = {"cpu": "CPU", "cuda": device_label(s["devices"]).upper()}
                share = ", ".join(f"{format_share(x)} on {names[device]}" for device, x in r["share"].items())
                bits = "; the same bits on both" if r.get("same_bits") else ""
                what = f"{format_count(r['cases'])} drawn cases{' (reproducible)' if math == 'reproducible' else ''}"
                found.append((what, f"worst share of the bound {share}{bits}", link(name)))
    for name, s in of_campaign(summaries, "exhaustive").items():
        for r in s["rows"]:
            if r.get("entry") == entry:
                said = f"at most {r['worst']} ulp from the nearest float32; {format_count(r['misrounded'])} not the nearest"
                found.append((f"{format_inputs(r['inputs'])} inputs", said, link(name)))
    for name, s in of_campaign(summaries, "probe").items():
        own = [r for r in s["rows"] if r["op"] == entry and r["height"] is not None]
        if own:
            r = max(own, key=lambda r: int(r["leaves"]))
            said = f"{r['height'] + r['extra']} roundings on the longest path, {r['declared']} in the bound"
            found.append((f"order of a sum of {format_count(r['leaves'])}", said, link(name)))
    return found


def entry_times(entry: str, summaries: Summaries) -> list[list[str]]:
    """Device, size, milliseconds, share of the floor, ratios, link of each timed row of an entry point."""
    lines = []
    for name, s in of_campaign(summaries, "bench").items():
        for r in s["rows"]:
            if r["op"] == entry and "math" not in r:
                ratios = [format_figure(r[p]) if p in r else "" for p in ("torch", "numpy")]
                floor = f"{r['floor']:.2f}" if "floor" in r else ""
                lines.append(
                    [device_label(s["devices"]).upper(), r["size"], format_figure(r["ms"]), floor, *ratios, link(name)]
                )
    return lines


# Other libraries, and the list of files


def league_tables(summaries: Summaries) -> list[str]:
    """What the site appends to docs/league.md."""
    rows = summaries["league"]["rows"]
    counts = [r for r in rows if "reason" not in r]
    reasons = [[r["library"], r["reason"], r["of"]] for r in rows if "reason" in r]
    head = [k.replace("_", " ") for k in counts[0]]
    return ["", "## Counts", "", *table(head, (map(str, r.values()) for r in counts)), "", "## Failures and their reasons", "",
            *table(("library", "reason", "of"), reasons)]  # fmt: skip


def evidence_page(summaries: Summaries) -> str:
    """The list of all files."""
    lines = []
    for name, s in summaries.items():
        runs = s.get("runs") or [s]
        commits = ", ".join(dict.fromkeys(short_commit(r["commit"]) for r in runs if r.get("commit")))
        devices = "; ".join(t.partition(", compute")[0] for t in s.get("devices", {}).values())
        lines.append([f"[{name}]({name}.jsonl)", dated(s)["date"], commits, devices, s.get("verdict", "")])
    page = ["# Evidence", "", "One summary a campaign and device, committed with the source. [Campaigns](../docs/campaign.md)",
            "says how they are made.", "", *table(("file", "date", "commits", "devices", "verdict"), lines)]  # fmt: skip
    return "\n".join(page) + "\n"


# The README's block and the chart


def speed_figures(summaries: Summaries) -> dict[str, Any]:
    """What the chart shows: its title, and the worst, median and best ratio of every family."""
    run = summaries[SHOWN]
    groups = family_ratios((r for r in run["rows"] if "math" not in r), "torch")
    families = {f: [round(x, 4) for x in (found[0][0], statistics.median(r[0] for r in found), found[-1][0])]
                for f, found in groups.items()}  # fmt: skip
    return {
        "title": f"Times faster than PyTorch {run['torch']} on one {device_label(run['devices']).upper()}",
        "families": families,
    }


def read_figures(path: Path) -> Any:
    """The figures that a chart was drawn from, which its metadata holds; None where there is no such chart."""
    if not path.exists():
        return None
    found = re.search(r"<dc:description>(.*?)</dc:description>", path.read_text(encoding="utf-8"), re.S)
    return None if found is None else json.loads(html.unescape(found[1]))


def draw_chart(path: Path, figures: Mapping[str, Any]) -> None:
    """A dot at each family's median, a bar from its worst row to its best. The light background reads on a dark page as well."""
    import matplotlib
    from matplotlib.figure import Figure

    families = list(figures["families"])
    worst, median, best = zip(*figures["families"].values(), strict=True)
    with matplotlib.rc_context({"svg.hashsalt": "speed", "svg.fonttype": "none", "font.size": 10}):
        chart = Figure(figsize=(7.6, 0.36 * len(families) + 1.1), layout="constrained", facecolor="white")
        axes = chart.add_subplot()
        places = range(len(families))
        ends = [[m - w for m, w in zip(median, worst, strict=True)], [b - m for m, b in zip(median, best, strict=True)]]
        axes.errorbar(median, places, xerr=ends, fmt="o", color="#1f5fa8", ecolor="#8fb3d9", elinewidth=3)
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
        chart.savefig(path, format="svg", metadata={"Date": None, "Creator": None, "Description": json.dumps(figures)})


def readme_section(summaries: Summaries) -> list[str]:
    """The chart and two sentences."""
    figures, verified = speed_figures(summaries), summaries["verify-h200"]
    rows = [r["torch"] for r in summaries[SHOWN]["rows"] if "math" not in r and "torch" in r]
    dates = sorted({r["date"] for r in summaries[SHOWN]["runs"]})
    return [
        f"![{figures['title']}: median, worst and best row of each family]({CHART})",
        "",
        f"Of {len(rows)} rows timed from {dates[0][:10]} to {dates[-1][:10]}, {sum(x >= 1 for x in rows)} are at least as fast",
        f"as PyTorch's ([docs/results.md](docs/results.md)). Of {verified['cases']} drawn cases on the CPU and the GPU,",
        f"{len(verified['failures'])} failed on {verified['date']} ([docs/trust.md](docs/trust.md)).",
    ]


def documents() -> dict[str, str]:
    """The generated texts by file."""
    before, _, rest = (ROOT / "README.md").read_text(encoding="utf-8").partition(BEGIN)
    return {"README.md": "\n".join([before + BEGIN, *readme_section(read_summaries()), END + rest.partition(END)[2]])}


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m bench.results", description=(__doc__ or "").split("\n\n")[0])
    parser.add_argument("--check", action="store_true", help="compare instead of writing")
    args = parser.parse_args(argv)
    stale = {n: t for n, t in documents().items() if (ROOT / n).read_text("utf-8") != t}
    for name, text in stale.items():
        if not args.check:
            (ROOT / name).write_text(text, encoding="utf-8")
    names, figures = list(stale), speed_figures(read_summaries())
    if read_figures(ROOT / CHART) != figures:
        names.append(CHART)
        if not args.check:
            draw_chart(ROOT / CHART, figures)
    for name in names:
        print(("stale: " if args.check else "wrote: ") + name)
    return int(args.check and bool(names))


if __name__ == "__main__":
    sys.exit(main())
