"""The report: what a set of evidence files holds, as one self-contained HTML page.

Nothing is fetched and nothing needs a script to be read; the script only filters the table of entry points.
"""

from __future__ import annotations

import html
import math
import re
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from decimal import ROUND_CEILING, Decimal
from pathlib import Path
from typing import Any

from audit import evidence, html_style, report, svg
from audit.alarms import EDGES
from audit.evidence import PARTS, Evidence, Finding, Source
from tlspec import registry

#: what a file says of one entry point on one device
Row = dict[str, Any]

__all__ = ["calls", "count", "inputs", "made_here", "page", "plural", "share", "write"]

#: failures and worst cases that the page lists one by one
SHOWN = 50
WORST = 25


def e(x: object) -> str:
    return html.escape(str(x), quote=True)


def count(n: float) -> str:
    """A count with its thousands apart."""
    return f"{round(n):,}".replace(",", "\u202f")


def inputs(n: int) -> str:
    return "2³²" if n == 2**32 else count(n)


def share(x: Any) -> str:
    """A worst figure, rounded up so that no text is better than its file: three decimals, or one digit and a power."""
    x = float(x)
    if not math.isfinite(x):
        return "∞"
    exact = Decimal(repr(x))
    if x == 0 or 0.001 <= x < 1e4:
        return "0" if x == 0 else str(exact.quantize(Decimal("0.001"), ROUND_CEILING))
    return f"{exact.quantize(Decimal((0, (1,), exact.adjusted())), ROUND_CEILING):.0e}".replace("e+", "e")


def plural(n: int, one: str, many: str = "") -> str:
    return f"{count(n)} {one if n == 1 else many or one + 's'}"


def code(line: str) -> str:
    return f"<code>{e(line)}</code>" if line else ""


def table(
    caption: str, head: Sequence[str], rows: Iterable[Sequence[str]], right: Iterable[int] = (), at: str = ""
) -> str:
    """A table whose cells are HTML already; the first cell of a row is its header, columns of `right` are numbers."""
    numbers = set(right)
    out = [f'<div class="scroll" role="region" tabindex="0" aria-label="{e(caption)}"><table>']
    out.append(f"<caption>{e(caption)}</caption><thead><tr>")
    out += [f'<th scope="col"{" class=n" if i in numbers else ""}>{e(h)}</th>' for i, h in enumerate(head)]
    out.append("</tr></thead><tbody>")
    for row in rows:
        cells = [f'<th scope="row">{row[0]}</th>']
        cells += [f"<td{' class=n' if i in numbers else ''}>{c}</td>" for i, c in enumerate(row[1:], 1)]
        out.append(f"<tr>{''.join(cells)}</tr>")
    out.append("</tbody></table></div>")
    return "\n".join(out)


def verdict(ok: bool) -> str:
    return '<span class="ok">pass</span>' if ok else '<span class="bad">FAIL</span>'


# ---- figures ---------------------------------------------------------------------------------------------------------


def _order(item: tuple[str, Any]) -> int:
    """Families in the registry's order, others last."""
    known = registry.families()
    return known.index(item[0]) if item[0] in known else len(known)


def _figures(ev: Evidence) -> str:
    """Histograms per family and device: of all comparisons where the campaign counted them, else of the entry points."""
    out = []
    for device in ev.kinds():
        groups: dict[str, list[Row]] = {}
        for (entry, kind), row in _fullest(ev, "alarms", lambda r: int(r["comparisons"])).items():
            if kind == device and row["measured"]:
                groups.setdefault(evidence.family(entry), []).append(row)
        what = (
            "comparisons whose worst error was" if groups else "entry points whose worst error over all drawn cases was"
        )
        note = f"Each bar: {what} at most that share of the tolerance, and more than the bar before."
        figures = []
        for family, rows in sorted(groups.items(), key=_order):
            edges = rows[0]["edges"]
            rows = [r for r in rows if r["edges"] == edges]
            bins = [sum(r["histogram"][i] for r in rows) for i in range(len(edges))]
            alarms, worst = sum(r["alarms"] for r in rows), max(r["worst"] for r in rows)
            said = f"{plural(sum(bins), 'comparison')}, worst {share(worst)}, {plural(alarms, 'alarm')}"
            figures.append(svg.histogram(family, bins, edges, said))
        if not groups:
            drawn: dict[str, list[float]] = {}
            for _, entry, row in ev.all("verify", device):
                if row["bound"] != "exact":
                    drawn.setdefault(evidence.family(entry), []).append(float(row["share"]))
            for family, shares in sorted(drawn.items(), key=_order):
                bins = [0] * len(EDGES)
                for x in shares:
                    if x <= 1:
                        bins[next(i for i, top in enumerate(EDGES) if x <= top)] += 1
                figures.append(
                    svg.histogram(
                        family, bins, EDGES, f"{plural(len(shares), 'entry point')}, worst {share(max(shares))}"
                    )
                )
        if figures:
            out.append(f"<h3>{e(ev.label(device))}</h3><p>{note}</p><div class=figures>{''.join(figures)}</div>")
    return "".join(out)


# ---- the summary -----------------------------------------------------------------------------------------------------


def _fullest(ev: Evidence, part: str, amount: Callable[[Row], int]) -> dict[tuple[str, str], Row]:
    """Of every entry point and kind of device the row with the most: runs of the same cases are not added up."""
    found = ((entry, kind, rows) for (p, entry, kind), rows in ev.index.items() if p == part)
    return {(entry, kind): max((r for _, r in rows), key=amount) for entry, kind, rows in found}


def _once(ev: Evidence, part: str, amount: Callable[[Row], int]) -> int:
    """The amounts of these rows together."""
    return sum(amount(row) for row in _fullest(ev, part, amount).values())


def _tiles(ev: Evidence) -> list[tuple[str, str, str, str]]:
    """(part, figure, what it counts, what came of it)."""
    tiles = []
    failed = {part: sum(f.part == part for f in ev.findings) for part in PARTS}

    def tile(part: str, figure: str, what: str, outcome: str) -> None:
        tiles.append((part, figure, what, outcome))

    if rows := [r for *_, r in ev.all("verify")]:
        worst = max((float(r["share"]) for r in rows), default=0.0)
        same = sum(r["identical"] is True for r in rows)
        text = f"{plural(failed['verify'], 'failure')}; closest to its bound: {share(worst)} of it"
        if same:
            text += f"; {count(same)} entry points bit-identical on GPU and CPU"
        entries = len({(r["entry"], evidence.kind(r["device"])) for r in rows})
        tile(
            "verify",
            count(_once(ev, "verify", lambda r: int(r["cases"]))),
            f"drawn cases, {count(entries)} entry points and devices",
            text,
        )
    if rows := [r for *_, r in ev.all("exhaustive")]:
        off, names = max(r["worst"] for r in rows), {r["entry"] for r in rows}
        strides = sorted({r["stride"] for r in rows})
        each = "every one of the 2³² inputs" if strides == [1] else f"every {strides[-1]}th of the 2³² inputs"
        text = f"worst {off} ulp from the correctly rounded result; {plural(failed['exhaustive'], 'failure')}"
        tile("exhaustive", count(len(names)), f"functions of one argument, on {each}", text)
    if found := ev.all("probe"):
        trees: dict[tuple[str, str, str], Counter[str]] = {}
        for source, _, r in found:
            trees.setdefault((r["op"], r["what"], evidence.kind(r["device"])), Counter())[source.name] += 1
        most = count(max(r["leaves"] for *_, r in found))
        text = f"{plural(failed['probe'], 'tree')} higher than declared; up to {most} summands"
        tile(
            "probe",
            count(sum(max(n.values()) for n in trees.values())),
            f"summation trees found from outside, of {count(len(trees))} sums",
            text,
        )
    if ev.all("determinism"):
        tile(
            "determinism",
            count(_once(ev, "determinism", calls)),
            "repeated calls that must not change a bit",
            f"{plural(failed['determinism'], 'difference')}",
        )
    if documents := ev.documents("alarms"):
        totals = [t for _, d in documents for t in d["totals"].values()]
        alarms, loose = sum(t["alarms"] for t in totals), sum(len(d["loose"]) for _, d in documents)
        text = f"{plural(alarms, 'false alarm')}; {plural(loose, 'loose bound')} (never within a factor 50)"
        compared = _once(ev, "alarms", lambda r: int(r["comparisons"]))
        tile("alarms", count(compared), "correct results held against the bounds", text)
    if documents := ev.documents("hostile"):
        made = sum(d["calls"] for _, d in documents)
        tile(
            "hostile",
            count(made),
            "hostile calls of the C ABI",
            plural(failed["hostile"], "crash", "crashes or other failures"),
        )
    if documents := ev.documents("checkpoints"):
        tile("checkpoints", count(sum(d["files"] for _, d in documents)), "damaged checkpoint files",
             plural(failed["checkpoints"], "failure"))  # fmt: skip
    if documents := ev.documents("faults"):
        points = sum(r["points"] for _, d in documents for r in d.get("devices", []))
        tile(
            "faults",
            count(points),
            "allocation points of a training run made to fail",
            plural(failed["faults"], "failure"),
        )
    if documents := ev.documents("soak"):
        steps = max(d["steps"] for _, d in documents)
        text = f"{plural(failed['soak'], 'change')} in live memory, in {plural(len(documents), 'run')}"
        tile("soak", count(steps), "training steps in one process", text)
    if documents := ev.documents("mutation"):
        d = documents[-1][1]
        text = f"of {count(d['listed'])} listed, {count(d['run'])} run; {plural(len(d['survivors']), 'survivor')}"
        tile("mutation", d["score"], "planted defects caught", text)
    if documents := ev.documents("sanitizer"):
        tools = ", ".join(dict.fromkeys(k.partition(" ")[0] for _, d in documents for k in d if k != "missing"))
        tile(
            "sanitizer",
            str(failed["sanitizer"]),
            f"complaints of compute-sanitizer ({tools})",
            "over drawn cases and shapes that reach large kernels",
        )
    return tiles


def calls(row: Mapping[str, Any]) -> int:
    """Calls of one entry point in the determinism campaign, each compared with the first."""
    return sum(row[k] or 0 for k in ("repeats", "reused", "threads", "variants", "trims", "batches"))


def _summary(ev: Evidence, findings: Sequence[Finding]) -> str:
    tried = [p for p in PARTS if ev.documents(p)]
    if findings:
        headline, cls = f"{plural(len(findings), 'failure')}", "bad"
    else:
        headline, cls = "Nothing failed" if tried else "Nothing was tried", "ok" if tried else "bad"
    out = [f'<p class="verdict {cls}" id="verdict">{headline}</p><ul class="tiles">']
    failed = {f.part for f in findings}
    for part, figure, what, outcome in _tiles(ev):
        mark = f'<p class="bad">{e(outcome)}</p>' if part in failed else f"<p>{e(outcome)}</p>"
        out.append(f'<li><p class="figure">{e(figure)}</p><p class="what">{e(what)}</p>{mark}</li>')
    out.append("</ul>")
    if absent := ev.absent():
        out.append(f"<p><b>Not in these files:</b> {e('; '.join(PARTS[p] for p in absent))}.</p>")
    if partial := _partial(ev):
        out.append(f"<p><b>Tried in part:</b> {e('; '.join(partial))}.</p>")
    if findings:
        out.append('<h3 id="failures">What failed</h3><ol class="failures">')
        for f in findings[:SHOWN]:
            where = " on ".join(x for x in (f.entry or PARTS.get(f.part, f.part), f.device) if x)
            line = f"<br>{code(f.line)}" if f.line else ""
            out.append(f"<li><b>{e(where)}</b> ({e(f.part)}, {e(f.source)}): {e(f.detail)}{line}</li>")
        out.append("</ol>")
        if len(findings) > SHOWN:
            out.append(f"<p>… and {plural(len(findings) - SHOWN, 'more failure')}.</p>")
    return "".join(out)


def _partial(ev: Evidence) -> list[str]:
    """What was tried less than wholly, in words."""
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


def _sources(sources: Sequence[Source]) -> str:
    rows = []
    for s in sources:
        devices = "<br>".join(e(d) for d in s.devices.values())
        build = "; ".join(f"{k} {v}" for k, v in s.build.items()) + (f"; library {s.library}" if s.library else "")
        rows.append((e(s.name), e(s.date[:16].replace("T", " ")), code(s.commit[:13]) or "not recorded", devices, e(build),
                     code(s.command)))  # fmt: skip
    return table("Where the figures come from", ("file", "date (UTC)", "commit", "devices", "build", "command"), rows)


# ---- the table of entry points ---------------------------------------------------------------------------------------

HEAD = (
    "entry point", "device", "verdict", "bound", "cases", "worst share", "ulp", "bits = CPU", "special values",
    "all inputs", "sum height / declared (summands)", "repeated calls", "alarms", "shares",
)  # fmt: skip


def _unpromised(entry: str) -> str:
    """Why bits were not compared with the CPU's."""
    try:
        return "not compared" if registry.get(entry.removesuffix("_bwd")).contract.same_bits else "not promised"
    except KeyError:
        return "not compared"


def _row(ev: Evidence, entry: str, device: str, failed: set[tuple[str, str]]) -> list[str]:
    drawn = evidence.widest(ev.rows("verify", entry, device), "cases")
    whole = evidence.widest(ev.rows("exhaustive", entry, device), "seen")
    pairs = evidence.widest(ev.rows("pairs", entry, device), "random")
    sums, again = ev.rows("probe", entry, device), evidence.widest(ev.rows("determinism", entry, device), "repeats")
    alarms = evidence.widest(ev.rows("alarms", entry, device), "comparisons")
    worst = max(
        evidence.worst(ev.rows("verify", entry, device), "share"),
        evidence.worst(ev.rows("alarms", entry, device), "worst"),
    )
    special = ""
    if whole.get("special"):
        good = sum(s["ok"] for s in whole["special"])
        special = f"{good} of {len(whole['special'])}"
    everything = ""
    if whole:
        everything = f"{inputs(whole['seen'])}: ≤ {whole['worst']} ulp, {count(whole['misrounded'])} misrounded"
    if pairs:
        everything += "; " if everything else ""
        everything += f"{count(pairs['structured'] + pairs['random'])} pairs, {pairs['different']} not IEEE"
    heights = ""
    if known := [r for r in sums if r["height"] is not None]:
        top = max(known, key=lambda r: (r["leaves"], r["height"] + r["extra"]))
        heights = f"{top['height'] + top['extra']} / {top['declared']} ({count(top['leaves'])})"
    bits = ""
    if drawn and device != "cpu":
        bits = {None: _unpromised(entry), True: "yes", False: '<span class="bad">NO</span>'}[drawn["identical"]]
    bins = alarms.get("histogram", [])
    good = (entry, device) not in failed and (entry, "") not in failed
    bound = drawn.get("bound") or alarms.get("bound") or whole.get("bound") or ""
    return [
        e(entry).replace("_", "_<wbr>"), e(ev.label(device)), verdict(good), e(bound), count(drawn["cases"]) if drawn else "",
        share(worst) if drawn or alarms else "", share(drawn["ulp"]) if drawn else "", bits, special, everything, heights,
        f"{count(calls(again))} {'equal' if again['verdict'] == 'pass' else 'not equal'}" if again else "",
        f"{count(alarms['alarms'])} in {count(alarms['comparisons'])}" if alarms else "",
        svg.spark(bins, f"shares of {entry}: worst {share(alarms['worst'])}") if alarms and alarms["measured"] else "",
    ]  # fmt: skip


def _entries(ev: Evidence, findings: Sequence[Finding]) -> str:
    failed = {(f.entry, evidence.kind(f.device) if f.device else "") for f in findings}
    numbers = {4, 5, 6}
    head = "".join(f'<th scope="col"{" class=n" if i in numbers else ""}>{h}</th>' for i, h in enumerate(HEAD))
    out = [
        '<form id="filter" hidden><label>Show <input id="words" type="search" placeholder="softmax, linalg, H200"></label>',
        '<label><input id="only" type="checkbox"> failures only</label> <output id="shown"></output></form>',
        '<div class="scroll tall" role="region" tabindex="0" aria-label="Entry points"><table id="entries">',
        f"<caption>One line per entry point and device</caption><thead><tr>{head}</tr></thead>",
    ]
    current = None
    for entry in ev.entries():
        if (family := evidence.family(entry)) != current:
            out.append(("</tbody>" if current else "") + "<tbody>")
            out.append(
                f'<tr class="family"><th scope="rowgroup" colspan="{len(HEAD)}"><span>{e(family)}</span></th></tr>'
            )
            current = family
        for device in ev.kinds():
            if not any(
                ev.rows(p, entry, device) for p in ("verify", "exhaustive", "pairs", "probe", "determinism", "alarms")
            ):
                continue
            first, *rest = _row(ev, entry, device, failed)
            cells = "".join(f"<td{' class=n' if i in numbers else ''}>{c}</td>" for i, c in enumerate(rest, 1))
            out.append(f'<tr data-family="{e(family)}"><th scope="row">{first}</th>{cells}</tr>')
    return "\n".join(out) + ("</tbody>" if current else "") + "</table></div>"


# ---- the other tables ------------------------------------------------------------------------------------------------


def _whole_line(source: Source, entry: str, device: str) -> str:
    """The line that repeats all drawn cases of an entry point, for files that do not name the worst one."""
    drawn = re.findall(r"--(?:cases|seed|size|data) \S+", source.command)
    return " ".join(["python -m tlrt verify --ops", entry.removesuffix("_bwd"), *drawn, "--device", device])


def _worst(ev: Evidence) -> str:
    """The results that came closest to their bounds, each entry point and device once."""
    best: dict[tuple[str, str], tuple[float, str, str]] = {}
    for part, figure, line in (("verify", "share", "worst_line"), ("alarms", "worst", "worst_line")):
        for source, entry, row in ev.all(part):
            key, value = (entry, evidence.kind(row["device"])), float(row[figure])
            if value > best.get(key, (0.0, "", ""))[0]:
                again = row.get(line) or _whole_line(source, entry, row["device"])
                best[key] = (value, row["bound"], again)
    top = sorted(best.items(), key=lambda item: -item[1][0])[:WORST]
    rows = [(e(k[0]), e(ev.label(k[1])), share(v), e(bound), code(line)) for k, (v, bound, line) in top]
    return table(
        f"The {len(rows)} closest to their bounds",
        ("entry point", "device", "share", "bound", "repeat with"),
        rows,
        {2},
    )


def _exhaustive(ev: Evidence) -> str:
    head = ("function", "device", "inputs", "worst ulp", "allowed", "worst at", "misrounded", "share", "NaN, ∞, sign wrong",
            "devices equal", "hash", "verdict")  # fmt: skip
    rows: list[tuple[str, ...]] = []
    special: list[tuple[str, ...]] = []
    for _, entry, r in ev.all("exhaustive"):
        same = (
            ""
            if r["differ"] is None
            else "yes"
            if not r["differ"]
            else f'<span class="bad">{count(r["differ"])} differ</span>'
        )
        rows.append((
            e(entry), e(ev.label(evidence.kind(r["device"]))), inputs(r["seen"]), str(r["worst"]), str(r["limit"]),
            code(r.get("worst_case", {}).get("at", "")), count(r["misrounded"]),
            f"{100 * r['misrounded'] / r['seen']:.4f} %" if r["seen"] else "", count(r["mismatches"]), same, code(r["hash"]),
            e(r["verdict"]) if r["verdict"] == "incomplete" else verdict(r["verdict"] == "pass"),
        ))  # fmt: skip
        for s in r["special"]:
            values = code(s["expected"]), code(s.get(r["device"], ""))
            special.append((e(entry), e(ev.label(evidence.kind(r["device"]))), e(s["x"]), *values, verdict(s["ok"])))
    if not rows:
        return ""
    out = table("Functions of one argument against the correctly rounded result", head, rows, {2, 3, 4, 6, 7, 8})
    out += "<details><summary>Special values of each function</summary>"
    out += (
        table("Special values", ("function", "device", "x", "expected", "computed", "verdict"), special) + "</details>"
    )
    pairs: list[tuple[str, ...]] = [
        (e(n), e(ev.label(evidence.kind(r["device"]))), count(r["structured"]), count(r["random"]), count(r["different"]),
         count(r["devices_differ"]), verdict(r["verdict"] != "fail"))
        for _, n, r in ev.all("pairs")
    ]  # fmt: skip
    if pairs:
        of_pairs = ("operation", "device", "structured pairs", "random pairs", "not IEEE", "devices differ", "verdict")
        out += table("Operations of two arguments", of_pairs, pairs, {2, 3, 4, 5})
    return out


def _probe(ev: Evidence) -> str:
    largest: dict[tuple[str, str, str], dict[str, Any]] = {}
    tried: dict[tuple[str, str, str], int] = {}
    for *_, r in ev.all("probe"):
        key = (r["op"], r["what"], r["device"])
        tried[key] = tried.get(key, 0) + 1
        worse = (r["verdict"] != "pass", r["leaves"])
        if key not in largest or worse > (largest[key]["verdict"] != "pass", largest[key]["leaves"]):
            largest[key] = r
    rows = [
        (e(op), e(what), e(ev.label(evidence.kind(device))), str(tried[op, what, device]), count(r["leaves"]),
         "–" if r["height"] is None else str(r["height"]), str(r["extra"]), str(r["declared"]), e(r["fan_in"] or ""),
         e(r["found"]), verdict(r["verdict"] == "pass"))
        for (op, what, device), r in largest.items()
    ]  # fmt: skip
    head = ("operation", "sum", "device", "lengths tried", "longest", "height", "other roundings", "declared", "fan-in", "found",
            "verdict")  # fmt: skip
    return (
        table("The order of sums: the longest of each, or one that failed", head, rows, {3, 4, 5, 6, 7, 8})
        if rows
        else ""
    )


def _mutation(ev: Evidence) -> str:
    rows = []
    for _, d in ev.documents("mutation"):
        for r in sorted(d["results"].values(), key=lambda r: r["number"]):
            outcome = (
                e(r["outcome"]) if r["name"] not in d["survivors"] else f'<span class="bad">{e(r["outcome"])}</span>'
            )
            rows.append((str(r["number"]), e(r["name"]), outcome, e(r["by"])))
    return table("Planted defects", ("number", "defect", "outcome", "by"), rows) if rows else ""


def _robust(ev: Evidence) -> str:
    out = ""
    rows: list[tuple[str, ...]]
    if documents := ev.documents("hostile"):
        rows = [
            (e(s.name), e("CPU" if evidence.kind(d.get("device", -1)) == "cpu" else ev.label("cuda")), count(d["calls"]),
             count(d["accepted"]), count(len([r for r in d["entries"].values() if r["calls"]])), str(d.get("threads", 1)),
             e(d.get("sanitizers", "") or "none"), count(len(d["failures"])))
            for s, d in documents
        ]  # fmt: skip
        head = ("file", "device", "calls", "accepted", "functions", "threads", "sanitizers", "failures")
        out += table("Hostile calls of the C ABI", head, rows, {2, 3, 4, 5, 7})
    if documents := ev.documents("faults"):
        rows = [
            (e(r["device"]), count(r["points"]), e(m), *(count(r[m][c]) for c in ("trials", "raised", "absorbed", "untouched")),
             count(len(r["failures"])))
            for _, d in documents for r in d.get("devices", []) for m in ("one", "all") if m in r
        ]  # fmt: skip
        head = ("device", "allocation points", "failing", "runs", "raised", "absorbed", "untouched", "failures")
        out += table("Allocation failures in a training run", head, rows, {1, 3, 4, 5, 6, 7})
    if documents := ev.documents("soak"):
        rows = [
            (e(d["device"]), count(d["steps"]), str(d["microseconds"]), count(d["live_bytes"]), count(d["live_buffers"]),
             count(d["growth"]), count(len(d["failures"])))
            for _, d in documents
        ]  # fmt: skip
        of_runs = (
            "device",
            "steps",
            "µs a step",
            "live bytes",
            "live buffers",
            "growth of the process, bytes",
            "failures",
        )
        out += table("Long runs", of_runs, rows, {1, 2, 3, 4, 5, 6})
    return out


# ---- the page --------------------------------------------------------------------------------------------------------


def page(sources: Sequence[Source], title: str = "Verification report") -> str:
    """The page of some sources."""
    ev = Evidence(sources)
    findings = ev.findings
    sections = [
        ("summary", "Summary", _summary(ev, findings)),
        ("sources", "Files", _sources(sources)),
        ("shares", "How close to the bounds", _figures(ev)),
        ("points", "Entry points", _entries(ev, findings) if ev.entries() else ""),
        ("worst", "Worst cases", _worst(ev) if ev.all("verify") or ev.all("alarms") else ""),
        ("inputs", "All inputs", _exhaustive(ev)),
        ("sums", "Order of sums", _probe(ev)),
        ("robust", "Hostile calls, faults, long runs", _robust(ev)),
        ("mutation", "Planted defects", _mutation(ev)),
    ]
    sections = [s for s in sections if s[2]]
    links = "".join(f'<a href="#{at}">{e(name)}</a> ' for at, name, _ in sections)
    devices = "; ".join(dict.fromkeys(d for s in sources if s.parts for d in s.devices.values()))
    dates = sorted(s.date[:10] for s in sources if s.date and s.parts)
    when = "" if not dates else dates[0] if dates[0] == dates[-1] else f"{dates[0]} to {dates[-1]}"
    body = "\n".join(f'<section id="{at}"><h2>{e(name)}</h2>\n{text}\n</section>' for at, name, text in sections)
    return (
        f'<!doctype html>\n<html lang="en"><head><meta charset="utf-8"><title>{e(title)}</title>\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1"><meta name="color-scheme" content="light dark">\n'
        f"<style>{html_style.STYLE}</style></head><body>\n<header><h1>{e(title)}</h1><p>{e(devices)}</p><p>{e(when)}</p>"
        f'<nav aria-label="Sections">{links}</nav></header>\n<main>\n{body}\n</main>\n{html_style.SCRIPT}</body></html>\n'
    )


def made_here(name: str, document: Mapping[str, Any]) -> Source:
    """The source that a document just made is, with the commit where the tree is a checkout."""
    return evidence.read(f"{name}, this run", {"commit": report.commit(12), **document})


def write(path: Path, sources: Sequence[Source]) -> None:
    """Writes the page."""
    path.write_text(page(sources), encoding="utf-8")
