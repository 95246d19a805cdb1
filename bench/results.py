"""``python -m bench.results``: writes docs/results.md, the README's results and the tables of TRUST_BOUNDARIES.md from the files
under evidence (and, for the last, from the registry).

``--check`` compares instead. Documents quote measured figures through this program alone, so none stands without its file.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
from typing import Any, NamedTuple

from audit import evidence
from bench import training, trust
from bench.training import figure
from bench.trust import EVIDENCE, ROOT, header, line

BEGIN, END = "<!-- results:begin -->", "<!-- results:end -->"


class Run(NamedTuple):
    """A run by its evidence file: what it ran on, the peers its ratios are against, the file of its examples, and that of the run
    which measured growth and training steps where this one did not."""

    file: str
    title: str
    peers: tuple[str, ...]
    examples: str
    steps: str = ""


RUNS = (
    Run("h200.json", "H200", ("torch",), "examples-h200.json", "h200-steps.json"),
    Run("cpu.json", "CPU", ("numpy", "torch"), "examples-cpu.json"),
)
NAMES = {"torch": "PyTorch", "numpy": "NumPy"}


def load(name: str) -> dict[str, Any] | None:
    """An evidence file; a plain benchmark file is seen as a run of the parts `bench` and `growth`."""
    path = EVIDENCE / name
    if not path.exists():
        return None
    data: dict[str, Any] = json.loads(path.read_text())
    if "bench" in data:
        return data
    return {"bench": data, **{k: data.get(k) for k in ("growth", "training_steps", "date", "commit")}}


def origin(name: str, where: str, date: str, commit: str | None) -> str:
    """Where and when an evidence file was made, and its link from docs/."""
    return f"{where}; {date[:10]}" + (f", commit {commit[:7]}" if commit else "") + f" ([{name}](evidence/{name}))"


def part(name: str, run: dict[str, Any], otherwise: str) -> tuple[dict[str, Any] | None, str]:
    """A part of a run, or of the one that measured it instead, and then where that was."""
    other = load(otherwise) if otherwise and not run.get(name) else None
    if other is None:
        return run.get(name), ""
    found: dict[str, Any] = other[name]
    return found, origin(otherwise, found["device"], found["date"], other["commit"])


def full_table(run: dict[str, Any], peers: tuple[str, ...]) -> list[str]:
    names = ["operation", "size", "ms", "share of floor", "rms error"]
    for peer in peers:
        names += [f"times faster than {NAMES[peer]}", f"{NAMES[peer]}'s error"]
    lines = header(names)
    for row in run["bench"]["rows"]:
        share = f"{row['floor_share']:.2f}{'*' if row['in_cache'] else ''}" if row["floor_ms"] else ""
        cells = [row["op"], row["size"], figure(row["ours_ms"]), share]
        cells.append("" if row["error"] is None else f"{row['error']:.1e}")
        random = evidence.family(row["op"]) == "random"  # others draw other numbers
        for peer in peers:
            other = row["peers"].get(peer)
            cells += ["", ""] if other is None else [
                figure(other["ratio"]),
                "" if other["error"] is None or random else f"{other['error']:.1e}",
            ]  # fmt: skip
        lines.append(line(cells))
    return lines


def summary(run: dict[str, Any], peer: str) -> list[str]:
    """One line per family: how many rows, the median ratio, and the worst and best with their operations."""
    groups: dict[str, list[tuple[float, str, str]]] = {}
    for row in run["bench"]["rows"]:
        if peer in row["peers"]:
            family = evidence.family(row["op"], "core")
            groups.setdefault(family, []).append((row["peers"][peer]["ratio"], row["op"], row["size"]))
    lines = header(("family", "rows", f"times faster than {NAMES[peer]}: median", "worst", "best"))
    for family, rows in groups.items():
        low, high = min(rows), max(rows)
        median = statistics.median(r[0] for r in rows)
        ends = [f"{figure(ratio)} ({op}, {size})" for ratio, op, size in (low, high)]
        lines.append(line([family, str(len(rows)), figure(median), *ends]))
    return lines


def verified(run: dict[str, Any]) -> str:
    report = run.get("verify")
    if not report:
        return ""
    results = report["results"]
    cases = sum(r["cases"] for r in results)
    bad = sum(r["verdict"] != "pass" for r in results)
    same = sum(r["identical"] is True for r in results)
    checks = "; ".join(map(": ".join, trust.sanitizer(run.get("sanitizer", {}))))
    return (
        f"{len(results)} entry points and devices verified in {cases} cases, {bad} failed; {same} of them bit-identical to the "
        f"CPU path. compute-sanitizer: {checks}."
    )


#: how the values of a growth entry are written: their unit and the factor that gives it
UNITS = {"time": ("ms", 1.0), "memory": ("MiB", 2.0**-20), "error": ("u", 1.0)}


def growth_table(report: dict[str, Any]) -> list[str]:
    """What :mod:`bench.growth` measured: every value, the figure drawn from them and its limit."""
    lines = header(("what", "sizes", "values", "figure", "limit", ""))
    for e in report["entries"]:
        unit, factor = UNITS[e["what"]]
        values = f"{', '.join(figure(v * factor) for v in e['values'])} {unit}"
        sizes = f"{e['size']} = {', '.join(map(str, e['sizes']))}" + (f"; {e['detail']}" if e["detail"] else "")
        limit = "" if e["limit"] is None else f"≤ {figure(e['limit'])}"
        verdict = "" if e["limit"] is None else "kept" if e["ok"] else "**missed**"
        name = e["name"] if e["what"] in e["name"] else f"{e['name']}: {e['what']}"
        lines.append(line([name, sizes, values, f"{e['figure_is']}: {figure(e['figure'])}", limit, verdict]))
    return lines


def headline(name: str, run: dict[str, Any]) -> str:
    bench = run["bench"]
    versions = f"NumPy {bench['numpy']}" + (f", PyTorch {bench['torch']}" if bench["torch"] else "")
    return origin(name, f"{bench['device']}; {versions}", run["date"], run.get("commit"))


GROWTH = (
    "A slope is that of the least-squares line through the logarithms of time or peak memory. Errors are those of N(0, 1) data",
    "against NumPy's float64 transform, relative to the rms of the result, in units of u = 2⁻²⁴; the levels of a length with a",
    "large prime factor are those of Bluestein's three transforms. The limits' reasons stand in `bench/growth.py`.",
)
STEPS = (
    "One step from Python: forward, backward, optimiser, a batch copied to the device. The rows of one operation are the bare",
    "kernel, the same on the tape, and on the session.",
)


def grown(report: dict[str, Any]) -> tuple[str, list[str], str]:
    """The heading and the lines about growth, and a sentence."""
    held = [e["ok"] for e in report["entries"] if e["limit"] is not None]
    said = f"Growth of cost and of the transforms' error: {sum(held)} of {len(held)} figures within their limits"
    return "Cost growth and accuracy", [*GROWTH, "", *growth_table(report)], said


def trained(report: dict[str, Any]) -> tuple[str, list[str], str]:
    """The same about training steps."""
    return "Training steps", [*STEPS, "", *training.steps(report)], training.short(report)


def documents() -> dict[str, str]:
    page = [
        "# Results",
        "",
        "Written by `python -m bench.results` from the files under `evidence`. A ratio compares two medians of one run.",
        "Floor: the larger of bytes over the measured copy rate and operations over the peak rate. `*`: operands fit the",
        "GPU's L2 cache. Gather and scatter take their indices from the host on every call; PyTorch's lie on the device. What a",
        "model keeps between calls (tables of angles, what a forward pass saves for its gradient) PyTorch is not charged for.",
        "PyTorch has no scan of its own, and a Python loop over time would be no peer: those rows stand beside the floor alone.",
    ]
    short: list[str] = []
    for name, title, peers, made, otherwise in RUNS:
        run = load(name)
        if run is None:
            continue
        page += ["", f"## {title}", "", headline(name, run), ""]
        short += ["", f"**{title}**: {headline(name, run).replace('(evidence/', '(evidence/')}"]
        if text := verified(run):
            page += [text, ""]
            short += ["", text]
        page += full_table(run, peers)
        for key, write in (("growth", grown), ("training_steps", trained)):
            found, where = part(key, run, otherwise)
            if found:
                heading, lines, said = write(found)
                page += ["", f"### {heading}: {title}", "", *([where, ""] if where else []), *lines]
                source = f" ({where.replace('(evidence/', '(evidence/')})" if where else ""
                short += ["", f"{said}{source}."]
        if (EVIDENCE / made).exists():
            examples = json.loads((EVIDENCE / made).read_text())
            where = origin(made, "; ".join(examples["devices"].values()), examples["started"], examples["commit"])
            page += ["", f"### Examples: {title}", "", where, "", *training.examples(examples)]
        for peer in peers:
            if any(peer in row["peers"] for row in run["bench"]["rows"]):
                short += ["", *summary(run, peer)]
    short += ["", "Every row, slower ones included: [docs/results.md](docs/results.md)."]
    readme = (ROOT / "README.md").read_text()
    before, _, rest = readme.partition(BEGIN)
    after = rest.partition(END)[2]
    return {
        "TRUST_BOUNDARIES.md": trust.document((ROOT / "TRUST_BOUNDARIES.md").read_text()),
        "docs/results.md": "\n".join(page) + "\n",
        "README.md": before + BEGIN + "\n" + "\n".join(short).strip() + "\n" + END + after,
    }


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m bench.results", description=(__doc__ or "").split("\n\n")[0])
    parser.add_argument("--check", action="store_true", help="compare instead of writing")
    args = parser.parse_args(argv)
    stale = [n for n, text in documents().items() if not (ROOT / n).exists() or (ROOT / n).read_text() != text]
    for name in stale:
        print(("stale: " if args.check else "wrote: ") + name)
        if not args.check:
            (ROOT / name).write_text(documents()[name])
    return int(args.check and bool(stale))


if __name__ == "__main__":
    sys.exit(main())
