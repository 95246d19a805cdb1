"""What the page shows of a set of evidence files: tables, figures and failures, gathered for the template.

The page needs nothing else, neither another file nor a script to be read; the script only filters the table of entry points.
The template escapes every text.
"""

import re
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from audit import evidence, faults
from audit.alarms import EDGES
from audit.evidence import PARTS, Evidence, Finding, Source, device_kind, row_with_most
from audit.figures import count_calls, format_count, format_inputs, format_share, plural
from audit.report.charts import Histogram, draw_histograms, format_bins
from tlrt.verify.report import count_entries
from tlspec import registry

#: what a file says of one entry point on one device
Row = dict[str, Any]

#: failures and worst cases that the page lists one by one
SHOWN = 50
WORST = 25


@dataclass(frozen=True)
class Cell:
    """A text and how it is shown: "code", "ok", "bad" or "bins"; `title` is what a pointer over it shows."""

    text: str
    style: str = ""
    title: str = ""


@dataclass
class Table:
    """A table; the first cell of a row is its header, columns of `numbers` stand to the right."""

    caption: str
    head: Sequence[str]
    rows: list[Sequence[str | Cell]]
    numbers: frozenset[int] = frozenset()
    #: the line that unfolds it, where it is folded
    summary: str = ""


@dataclass(frozen=True)
class Tile:
    """What a part tried, in one figure, and what came of it."""

    figure: str
    what: str
    outcome: str
    failed: bool


def _code(text: str) -> Cell:
    return Cell(text, "code")


def _verdict(ok: bool) -> Cell:
    return Cell("pass", "ok") if ok else Cell("FAIL", "bad")


def _label(ev: Evidence, device: Any) -> str:
    return ev.label(device_kind(device))


def _family_order(family: str) -> int:
    """Families in the registry's order, others last."""
    known = registry.families()
    return known.index(family) if family in known else len(known)


def _compared_histograms(ev: Evidence, device: str) -> list[Histogram]:
    """Of all comparisons that the alarms campaign counted."""
    groups: dict[str, list[Row]] = {}
    for (entry, kind), row in _fullest(ev, "alarms", lambda r: int(r["comparisons"])).items():
        if kind == device and row["measured"]:
            groups.setdefault(evidence.family(entry), []).append(row)
    found = []
    for family in sorted(groups, key=_family_order):
        edges = groups[family][0]["edges"]
        rows = [r for r in groups[family] if r["edges"] == edges]
        counts = [sum(r["histogram"][i] for r in rows) for i in range(len(edges))]
        alarms, worst = sum(r["alarms"] for r in rows), max(r["worst"] for r in rows)
        text = f"{plural(sum(counts), 'comparison')}, worst {format_share(worst)}, {plural(alarms, 'alarm')}"
        found.append(Histogram(family, counts, edges, text))
    return found


def _drawn_histograms(ev: Evidence, device: str) -> list[Histogram]:
    """Of the entry points' worst drawn cases."""
    groups: dict[str, list[float]] = {}
    for _, entry, row in ev.all("verify", device):
        if row["bound"] != "exact":
            groups.setdefault(evidence.family(entry), []).append(float(row["share"]))
    found = []
    for family in sorted(groups, key=_family_order):
        shares = groups[family]
        counts = [0] * len(EDGES)
        for x in shares:
            if x <= 1:
                counts[next(i for i, top in enumerate(EDGES) if x <= top)] += 1
        text = f"{plural(len(shares), 'entry point')}, worst {format_share(max(shares))}"
        found.append(Histogram(family, counts, EDGES, text))
    return found


def _shares(ev: Evidence) -> list[dict[str, Any]]:
    """Histograms per device: of all comparisons where a campaign counted them, else of the entry points."""
    found = []
    for device in ev.kinds():
        histograms = _compared_histograms(ev, device)
        what = "comparisons whose worst error was"
        if not histograms:
            histograms = _drawn_histograms(ev, device)
            what = "entry points whose worst error over all drawn cases was"
        if histograms:
            note = f"Each bar: {what} at most that share of the tolerance, and more than the bar before."
            chart = draw_histograms(histograms, f"{ev.label(device)}: shares of the tolerance by family")
            found.append({"device": ev.label(device), "note": note, "chart": chart, "histograms": histograms})
    return found


def _fullest(ev: Evidence, part: str, amount: Callable[[Row], int]) -> dict[tuple[str, str], Row]:
    """Of every entry point and kind of device the row with the most: runs of the same cases are not added up."""
    found = ((entry, kind, rows) for (p, entry, kind), rows in ev.index.items() if p == part)
    return {(entry, kind): max((r for _, r in rows), key=amount) for entry, kind, rows in found}


def _total(ev: Evidence, part: str, amount: Callable[[Row], int]) -> int:
    """The amounts of these rows together."""
    return sum(amount(row) for row in _fullest(ev, part, amount).values())


def _tiles(ev: Evidence) -> list[Tile]:
    tiles: list[Tile] = []
    failed = {part: sum(f.part == part for f in ev.findings) for part in PARTS}

    def add(part: str, figure: str, what: str, outcome: str) -> None:
        tiles.append(Tile(figure, what, outcome, bool(failed[part])))

    if rows := [r for *_, r in ev.all("verify")]:
        worst = max((float(r["share"]) for r in rows), default=0.0)
        same = sum(r["identical"] is True for r in rows)
        text = f"{plural(failed['verify'], 'failure')}; closest to its bound: {format_share(worst)} of it"
        if same:
            text += f"; {format_count(same)} entry points bit-identical on GPU and CPU"
        entries = count_entries((r["entry"], device_kind(r["device"])) for r in rows)
        cases = format_count(_total(ev, "verify", lambda r: int(r["cases"])))
        add("verify", cases, f"drawn cases, {entries}", text)
    if rows := [r for *_, r in ev.all("exhaustive")]:
        off, names = max(r["worst"] for r in rows), {r["entry"] for r in rows}
        strides = sorted({r["stride"] for r in rows})
        each = "every one of the 2³² inputs" if strides == [1] else f"every {strides[-1]}th of the 2³² inputs"
        text = f"worst {off} ulp from the correctly rounded result; {plural(failed['exhaustive'], 'failure')}"
        add("exhaustive", format_count(len(names)), f"functions of one argument, on {each}", text)
    if found := ev.all("probe"):
        trees: dict[tuple[str, str, str], Counter[str]] = {}
        for source, _, r in found:
            key = (r["op"], r["what"], device_kind(r["device"]))
            trees.setdefault(key, Counter())[source.name] += len(r.get("lengths", "1"))
        most = format_count(max(r["leaves"] for *_, r in found))
        text = f"{plural(failed['probe'], 'tree')} higher than declared; up to {most} summands"
        tried = format_count(sum(max(n.values()) for n in trees.values()))
        add("probe", tried, f"summation trees found from outside, of {format_count(len(trees))} sums", text)
    if ev.all("determinism"):
        calls = format_count(_total(ev, "determinism", count_calls))
        text = plural(failed["determinism"], "difference")
        add("determinism", calls, "repeated calls that must not change a bit", text)
    if documents := ev.documents("alarms"):
        totals = [t for _, d in documents for t in d["totals"].values()]
        alarms, loose = sum(t["alarms"] for t in totals), sum(len(d["loose"]) for _, d in documents)
        text = f"{plural(alarms, 'false alarm')}; {plural(loose, 'loose bound')} (never within a factor 50)"
        compared = format_count(_total(ev, "alarms", lambda r: int(r["comparisons"])))
        add("alarms", compared, "correct results held against the bounds", text)
    counted: list[tuple[str, Callable[[Any], int], str, tuple[str, ...]]] = [
        ("hostile", lambda d: d["calls"], "hostile calls of the C ABI", ("crash", "crashes or other failures")),
        ("checkpoints", lambda d: d["files"], "damaged checkpoint files", ("failure",)),
        ("faults", lambda d: sum(r["points"] for r in d.get("devices", [])),
         "allocation points of a training run made to fail", ("failure",)),
        ("interrupts", lambda d: d["points"], "points of programs with an exception there", ("failure",)),
        ("contention", lambda d: sum(r["turns"] for r in d["subjects"]),
         "turns of threads at one object, and forks beside threads", ("failure",)),
        ("environments", lambda d: sum(r["cases"] for r in d["modes"]), "results in other floating-point modes", ("failure",)),
        ("coverage", lambda d: sum(r["branches_reached"] for half in ("native", "python") for r in d[half]["files"]),
         "branches of the CPU library, tlrt and tlspec reached", ("failure",)),
    ]  # fmt: skip
    for part, count, what, outcome in counted:
        if documents := ev.documents(part):
            add(part, format_count(sum(count(d) for _, d in documents)), what, plural(failed[part], *outcome))
    if documents := ev.documents("soak"):
        steps = format_count(max(d["steps"] for _, d in documents))
        text = f"{plural(failed['soak'], 'change')} in live memory, in {plural(len(documents), 'run')}"
        add("soak", steps, "training steps in one process", text)
    if documents := ev.documents("mutation"):
        d = documents[-1][1]
        text = f"of {format_count(d['listed'])} listed, {format_count(d['run'])} run; {plural(len(d['survivors']), 'survivor')}"
        add("mutation", d["score"], "planted defects caught", text)
    for _, d in ev.documents("mutants"):
        for kind, n in d["kinds"].items():
            text = f"of {plural(n['killed'] + n['survived'], 'random mutant')}: {kind}, seed {d['seed']}"
            add("mutants", f"{100 * float(n['score']):.1f} %", "killed", text)
    if documents := ev.documents("sanitizer"):
        tools = ", ".join(dict.fromkeys(k.partition(" ")[0] for _, d in documents for k in d if k != "missing"))
        text = "over drawn cases and shapes that reach large kernels"
        add("sanitizer", str(failed["sanitizer"]), f"complaints of compute-sanitizer ({tools})", text)
    return tiles


def _partly_tried(ev: Evidence) -> list[str]:
    """What was tried only in part, in words."""
    found = []
    for source, d in ev.documents("exhaustive"):
        if d["stride"] > 1:
            found.append(f"{source.name}: every {d['stride']}th of the 2³² inputs")
        if left := [f["entry"] for f in d["functions"] if not f["complete"]]:
            found.append(f"{source.name}: not all inputs of {', '.join(left)}")
    for source, d in ev.documents("mutation"):
        if d["run"] < d["listed"]:
            found.append(f"{source.name}: {d['run']} of {d['listed']} planted defects")
    return found


def _summary(ev: Evidence, findings: Sequence[Finding]) -> dict[str, Any]:
    tried = any(ev.documents(p) for p in PARTS)
    failures = [
        {"where": " on ".join(x for x in (f.entry or PARTS.get(f.part, f.part), f.device) if x), "finding": f}
        for f in findings[:SHOWN]
    ]
    if findings:
        verdict = Cell(plural(len(findings), "failure"), "bad")
    else:
        verdict = Cell("Nothing failed", "ok") if tried else Cell("Nothing was tried", "bad")
    more = plural(len(findings) - SHOWN, "more failure") if len(findings) > SHOWN else ""
    absent = [PARTS[p] for p in ev.absent()]
    return {"verdict": verdict, "tiles": _tiles(ev), "absent": absent, "partial": _partly_tried(ev),
            "failures": failures, "more": more}  # fmt: skip


def _sources(sources: Sequence[Source]) -> Table:
    rows: list[Sequence[str | Cell]] = []
    for s in sources:
        build = "; ".join(f"{k} {v}" for k, v in s.build.items()) + (f"; library {s.library}" if s.library else "")
        commit = _code(s.commit[:13]) if s.commit else "not recorded"
        rows.append(
            (s.name, s.date[:16].replace("T", " "), commit, "; ".join(s.devices.values()), build, _code(s.command))
        )
    return Table("Where the figures come from", ("file", "date (UTC)", "commit", "devices", "build", "command"), rows)


HEAD = ("entry point", "device", "verdict", "bound", "cases", "worst share", "ulp", "bits = CPU", "special values",
        "all inputs", "sum height / declared (summands)", "repeated calls", "alarms", "shares")  # fmt: skip


def _why_not_compared(entry: str) -> str:
    """Why bits were not compared with the CPU's."""
    try:
        return "not compared" if registry.get(entry.removesuffix("_bwd")).contract.same_bits else "not promised"
    except KeyError:
        return "not compared"


def _entry_row(ev: Evidence, entry: str, device: str, failed: set[tuple[str, str]]) -> Sequence[str | Cell]:
    drawn = row_with_most(ev.rows("verify", entry, device), "cases")
    every = row_with_most(ev.rows("exhaustive", entry, device), "seen")
    pairs = row_with_most(ev.rows("pairs", entry, device), "random")
    sums, again = ev.rows("probe", entry, device), row_with_most(ev.rows("determinism", entry, device), "repeats")
    alarms = row_with_most(ev.rows("alarms", entry, device), "comparisons")
    worst = max(
        evidence.worst(ev.rows("verify", entry, device), "share"),
        evidence.worst(ev.rows("alarms", entry, device), "worst"),
    )
    special = ""
    if every.get("special"):
        special = f"{sum(s['ok'] for s in every['special'])} of {len(every['special'])}"
    inputs = []
    if every:
        misrounded = format_count(every["misrounded"])
        inputs.append(f"{format_inputs(every['seen'])}: ≤ {every['worst']} ulp, {misrounded} misrounded")
    if pairs:
        inputs.append(f"{format_count(pairs['structured'] + pairs['random'])} pairs, {pairs['different']} not IEEE")
    heights = ""
    if known := [r for r in sums if r["height"] is not None]:
        top = max(known, key=lambda r: (r["leaves"], r["height"] + r["extra"]))
        heights = f"{top['height'] + top['extra']} / {top['declared']} ({format_count(top['leaves'])})"
    bits: str | Cell = ""
    if drawn and device != "cpu":
        same: dict[bool | None, str | Cell] = {None: _why_not_compared(entry), True: "yes", False: Cell("NO", "bad")}
        bits = same[drawn["identical"]]
    bins: str | Cell = ""
    if alarms and alarms["measured"]:
        bins = Cell(
            format_bins(alarms["histogram"]), "bins", f"shares of {entry}: worst {format_share(alarms['worst'])}"
        )
    good = (entry, device) not in failed and (entry, "") not in failed
    bound = drawn.get("bound") or alarms.get("bound") or every.get("bound") or ""
    return (
        entry, ev.label(device), _verdict(good), bound, format_count(drawn["cases"]) if drawn else "",
        format_share(worst) if drawn or alarms else "", format_share(drawn["ulp"]) if drawn else "", bits, special,
        "; ".join(inputs), heights,
        f"{format_count(count_calls(again))} {'equal' if again['verdict'] == 'pass' else 'not equal'}" if again else "",
        f"{format_count(alarms['alarms'])} in {format_count(alarms['comparisons'])}" if alarms else "", bins,
    )  # fmt: skip


def _entries(ev: Evidence, findings: Sequence[Finding]) -> dict[str, list[Sequence[str | Cell]]]:
    """The lines of the table of entry points by family."""
    failed = {(f.entry, device_kind(f.device) if f.device else "") for f in findings}
    parts = ("verify", "exhaustive", "pairs", "probe", "determinism", "alarms")
    groups: dict[str, list[Sequence[str | Cell]]] = {}
    for entry in ev.entries():
        devices = [d for d in ev.kinds() if any(ev.rows(p, entry, d) for p in parts)]
        rows = [_entry_row(ev, entry, d, failed) for d in devices]
        groups.setdefault(evidence.family(entry), []).extend(rows)
    return groups


def _repeat_all(source: Source, entry: str, device: str) -> str:
    """The line that repeats all drawn cases of an entry point, for files that do not name the worst one."""
    drawn = re.findall(r"--(?:cases|seed|size|data) \S+", source.command)
    return " ".join(["python -m tlrt verify --ops", entry.removesuffix("_bwd"), *drawn, "--device", device])


def _worst(ev: Evidence) -> list[Table]:
    """The results that came closest to their bounds, each entry point and device once."""
    best: dict[tuple[str, str], tuple[float, str, str]] = {}
    for part, figure in (("verify", "share"), ("alarms", "worst")):
        for source, entry, row in ev.all(part):
            key, value = (entry, device_kind(row["device"])), float(row[figure])
            if value > best.get(key, (0.0, "", ""))[0]:
                line = row.get("worst_line") or _repeat_all(source, entry, row["device"])
                best[key] = (value, row["bound"], line)
    top = sorted(best.items(), key=lambda item: -item[1][0])[:WORST]
    rows: list[Sequence[str | Cell]] = [
        (entry, ev.label(kind), format_share(v), bound, _code(line)) for (entry, kind), (v, bound, line) in top
    ]
    head = ("entry point", "device", "share", "bound", "repeat with")
    return [Table(f"The {len(rows)} closest to their bounds", head, rows, frozenset({2}))]


def _exhaustive(ev: Evidence) -> list[Table]:
    rows: list[Sequence[str | Cell]] = []
    special: list[Sequence[str | Cell]] = []
    for _, entry, r in ev.all("exhaustive"):
        same: str | Cell = "" if r["differ"] is None else "yes"
        if r["differ"]:
            same = Cell(f"{format_count(r['differ'])} differ", "bad")
        rows.append((
            entry, _label(ev, r["device"]), format_inputs(r["seen"]), str(r["worst"]), str(r["limit"]),
            _code(r.get("worst_case", {}).get("at", "")), format_count(r["misrounded"]),
            f"{100 * r['misrounded'] / r['seen']:.4f} %" if r["seen"] else "", format_count(r["mismatches"]), same,
            _code(r["hash"]), "incomplete" if r["verdict"] == "incomplete" else _verdict(r["verdict"] == "pass"),
        ))  # fmt: skip
        for s in r["special"]:
            values = _code(s["expected"]), _code(s.get(r["device"], ""))
            special.append((entry, _label(ev, r["device"]), s["x"], *values, _verdict(s["ok"])))
    if not rows:
        return []
    head = ("function", "device", "inputs", "worst ulp", "allowed", "worst at", "misrounded", "share", "NaN, ∞, sign wrong",
            "devices equal", "hash", "verdict")  # fmt: skip
    of_special = ("function", "device", "x", "expected", "computed", "verdict")
    caption = "Functions of one argument against the correctly rounded result"
    tables = [
        Table(caption, head, rows, frozenset({2, 3, 4, 6, 7, 8})),
        Table("Special values", of_special, special, summary="Special values of each function"),
    ]
    pairs: list[Sequence[str | Cell]] = [
        (n, _label(ev, r["device"]), format_count(r["structured"]), format_count(r["random"]), format_count(r["different"]),
         format_count(r["devices_differ"]), _verdict(r["verdict"] != "fail"))
        for _, n, r in ev.all("pairs")
    ]  # fmt: skip
    if pairs:
        of_pairs = ("operation", "device", "structured pairs", "random pairs", "not IEEE", "devices differ", "verdict")
        tables.append(Table("Operations of two arguments", of_pairs, pairs, frozenset({2, 3, 4, 5})))
    return tables


def _probe(ev: Evidence) -> list[Table]:
    longest: dict[tuple[str, str, str], Row] = {}
    tried: Counter[tuple[str, str, str]] = Counter()
    for *_, r in ev.all("probe"):
        key = (r["op"], r["what"], r["device"])
        tried[key] += len(r.get("lengths", "1"))
        worse = (r["verdict"] != "pass", r["leaves"])
        if key not in longest or worse > (longest[key]["verdict"] != "pass", longest[key]["leaves"]):
            longest[key] = r
    rows: list[Sequence[str | Cell]] = [
        (op, what, _label(ev, device), str(tried[op, what, device]), format_count(r["leaves"]),
         "–" if r["height"] is None else str(r["height"]), str(r["extra"]), str(r["declared"]), str(r["fan_in"] or ""),
         r["found"], _verdict(r["verdict"] == "pass"))
        for (op, what, device), r in longest.items()
    ]  # fmt: skip
    head = ("operation", "sum", "device", "lengths tried", "longest", "height", "other roundings", "declared", "fan-in", "found",
            "verdict")  # fmt: skip
    caption = "The order of sums: the longest of each, or one that failed"
    return [Table(caption, head, rows, frozenset({3, 4, 5, 6, 7, 8}))] if rows else []


def _mutation(ev: Evidence) -> list[Table]:
    rows: list[Sequence[str | Cell]] = [
        (str(r["number"]), r["name"], Cell(r["outcome"], "bad" if r["name"] in d["survivors"] else ""), r["by"])
        for _, d in ev.documents("mutation")
        for r in sorted(d["results"].values(), key=lambda r: r["number"])
    ]
    return [Table("Planted defects", ("number", "defect", "outcome", "by"), rows)] if rows else []


def _mutants(ev: Evidence) -> list[Table]:
    rows: list[Sequence[str | Cell]] = [
        (r["kind"], f"line {r['line']} of {r['mutant']}", Cell(r["outcome"], "" if r["reason"] else "bad"), r["reason"])
        for _, d in ev.documents("mutants")
        for r in d["results"]
    ]
    return [Table("Random mutants that no check saw", ("kind", "mutant", "outcome", "reason"), rows)] if rows else []


def _robust(ev: Evidence) -> list[Table]:
    tables = []
    rows: list[Sequence[str | Cell]]
    if documents := ev.documents("hostile"):
        rows = [
            (s.name, _label(ev, d.get("device", -1)), format_count(d["calls"]), format_count(d["accepted"]),
             format_count(len([r for r in d["entries"].values() if r["calls"]])), str(d.get("threads", 1)),
             d.get("sanitizers", "") or "none", format_count(len(d["failures"])))
            for s, d in documents
        ]  # fmt: skip
        head: tuple[str, ...] = (
            "file", "device", "calls", "accepted", "functions", "threads", "sanitizers", "failures",
        )  # fmt: skip
        tables.append(Table("Hostile calls of the C ABI", head, rows, frozenset({2, 3, 4, 5, 7})))
    if documents := ev.documents("faults"):
        counts = ("trials", "raised", "absorbed", "untouched")
        rows = [
            (r["device"], format_count(r["points"]), m, *(format_count(r[m][c]) for c in counts),
             format_count(len(r["failures"])))
            for _, d in documents for r in d.get("devices", []) for m in faults.MODES if m in r
        ]  # fmt: skip
        head = ("device", "allocation points", "failing", "runs", "raised", "absorbed", "untouched", "failures")
        tables.append(Table("Allocation failures", head, rows, frozenset({1, 3, 4, 5, 6, 7})))
    if documents := ev.documents("soak"):
        rows = [
            (d["device"], format_count(d["steps"]), str(d["microseconds"]), format_count(d["live_bytes"]),
             format_count(d["live_buffers"]), format_count(d["growth"]), format_count(len(d["failures"])))
            for _, d in documents
        ]  # fmt: skip
        head = (
            "device", "steps", "µs a step", "live bytes", "live buffers", "growth of the process, bytes", "failures",
        )  # fmt: skip
        tables.append(Table("Long runs", head, rows, frozenset({1, 2, 3, 4, 5, 6})))
    return tables


def _describe(sources: Sequence[Source]) -> dict[str, str]:
    """The models of the devices, with the number of configurations of each, and the dates of some sources."""
    found = dict.fromkeys(d for s in sources if s.parts for d in s.devices.values())
    models = Counter(", ".join(d.split(", ")[: 2 if d.startswith("CPU") else 1]) for d in found)
    dates = sorted(s.date[:10] for s in sources if s.date and s.parts)
    return {
        "devices": "; ".join(f"{model} ({n} configurations)" if n > 1 else model for model, n in models.items()),
        "dates": "" if not dates else dates[0] if dates[0] == dates[-1] else f"{dates[0]} to {dates[-1]}",
    }


@cache
def _template() -> Any:
    from jinja2 import Environment, FileSystemLoader, StrictUndefined

    environment = Environment(
        loader=FileSystemLoader(Path(__file__).parent), autoescape=True, undefined=StrictUndefined, trim_blocks=True,
        lstrip_blocks=True, keep_trailing_newline=True,
    )  # fmt: skip
    return environment.get_template("page.html.j2")


def render_page(sources: Sequence[Source], title: str = "Verification report") -> str:
    """The page of some sources."""
    ev = Evidence(sources)
    findings = ev.findings
    tables: list[tuple[str, str, Iterable[Table]]] = [
        ("worst", "Worst cases", _worst(ev) if ev.all("verify") or ev.all("alarms") else []),
        ("inputs", "All inputs", _exhaustive(ev)),
        ("sums", "Order of sums", _probe(ev)),
        ("robust", "Hostile calls, faults, long runs", _robust(ev)),
        ("mutants", "Random mutants", _mutants(ev)),
        ("mutation", "Planted defects", _mutation(ev)),
    ]
    context: Mapping[str, Any] = {
        **_describe(sources), "title": title, "summary": _summary(ev, findings), "sources": _sources(sources),
        "shares": _shares(ev), "head": HEAD, "groups": _entries(ev, findings) if ev.entries() else {},
        "tables": [{"id": at, "title": name, "tables": found} for at, name, found in tables if found],
    }  # fmt: skip
    return _template().render(context)


def write_page(path: Path, sources: Sequence[Source]) -> None:
    """Writes the page."""
    path.write_text(render_page(sources), encoding="utf-8")
