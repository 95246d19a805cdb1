"""docs/trust.md: the registry's promises beside what the evidence files hold.

A count is quoted from the one run with the most of it, never added up over runs that draw the same cases; a worst figure is the
worst of all runs. An entry point whose bound has changed since a file was written is not quoted from it.
"""

import re
from collections import Counter
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from audit import evidence, faults
from audit.environment import EVIDENCE, ROOT, short_commit
from audit.evidence import PARTS, Evidence, Source, device_kind, row_with_most
from audit.figures import count_calls, format_count, format_inputs, format_share
from audit.markdown import table, table_head, table_row
from tlrt.verify.report import count_entries
from tlspec import entries, registry
from tlspec.declarations import declarations
from tlspec.entries import Entry

NONE = "–"


def committed_sources(folder: Path = EVIDENCE) -> list[Source]:
    """The committed files that hold evidence, by name; benchmarks alone are left out."""
    found = [evidence.load(path) for path in sorted(folder.glob("*.jsonl"))]
    return [s for s in found if s.parts]


def direction(e: Entry) -> str:
    return "forward" if e.kernel == e.op.name else "vjp"


def bound(e: Entry) -> str:
    """The bound of an entry point as its row has it now."""
    return e.op.bound_of(direction(e)).text


def tried_as(e: Entry) -> str:
    """The name that the entry point's evidence goes by: single gradients are tried with all of them."""
    return e.op.entry(direction(e))


def promises_table() -> list[str]:
    """One line per exported operation: what the registry's row promises of it."""
    out = table_head(("symbol", "shapes", "CPU = CUDA", "on CUDA by", "bound", "VJP", "laws"))
    for family in registry.families():
        out.append(f"| **{family}** | | | | | | |")
        for e in entries.all_entries(family):
            row, rule, forward = e.op, e.op.vjp_rule, direction(e) == "forward"
            if not forward:
                vjp = NONE
            elif rule is None:
                vjp = f"none: {row.no_vjp}" if row.no_vjp else "none"
            else:
                vjp = "composed of other operations" if rule.via is not None else f"`{row.entry('vjp')}`"
            laws = sorted({str(getattr(law, "name", law)) for law in row.contract.laws}) if forward else []
            within = "within bound; same bits if reproducible" if row.contract.reproducible else "within bound"
            bits = "same bits" if row.contract.same_bits else within
            kernel = "own kernel" if row.contract.cuda == "own" else row.contract.cuda
            law_names = ", ".join(laws) or NONE
            shapes = entries.shapes_text(e)
            out.append(table_row((f"`{e.symbol}`", f"`{shapes}`", bits, kernel, bound(e), vjp, law_names)))
    return out


class Cells:
    """The cells of an entry point's line."""

    def __init__(self, ev: Evidence):
        self.ev = ev
        self.failed = {(f.part, f.entry, device_kind(f.device) if f.device else "") for f in ev.findings}

    def rows(self, part: str, e: Entry, device: str) -> list[dict[str, Any]]:
        """What the files say of it under the bound it has now."""
        found = self.ev.rows(part, tried_as(e), device)
        return [r for r in found if r.get("bound", bound(e)) == bound(e)]

    def mark(self, part: str, e: Entry, device: str, text: str) -> str:
        """The text, after the word that it failed where it did."""
        name = tried_as(e)
        bad = (part, name, device) in self.failed or (part, name, "") in self.failed
        return f"**FAILED**: {text}" if bad else text

    def drawn(self, e: Entry, device: str) -> str:
        """Drawn cases of a kind of device, and the closest that any correct comparison came to the bound."""
        rows = self.rows("verify", e, device)
        if not rows:
            changed = bool(self.ev.rows("verify", tried_as(e), device))
            return "bound changed since" if changed else NONE
        r = row_with_most(rows, "cases")
        closest = max(evidence.worst(rows, "share"), evidence.worst(self.rows("alarms", e, device), "worst"))
        exact = bound(e) == "exact" and closest == 0
        text = f"{format_count(r['cases'])} cases, {'exact' if exact else f'{format_share(closest)} of the bound'}"
        if not exact:
            text += f", {format_share(evidence.worst(rows, 'ulp'))} ulp"
        if e.op.contract.same_bits and device != "cpu":
            bits = {x["identical"] for x in rows}
            text += ", **other bits**" if False in bits else ", bits as CPU" if True in bits else ""
        return self.mark("verify", e, device, text)

    def every_input(self, e: Entry) -> str:
        """All inputs of a function of one argument, pairs for those of two."""
        parts = []
        for device in self.ev.kinds():
            name = self.ev.label(device)
            if rows := self.rows("exhaustive", e, device):
                r = row_with_most(rows, "seen")
                step = "" if r["stride"] == 1 else f" (every {r['stride']}th)"
                span = f"{format_inputs(r['seen'])} inputs{step}"
                if not r["complete"]:
                    span += ", not all"
                off = round(evidence.worst(rows, "worst"))
                text = f"{name}: {span}, ≤ {off} ulp, {format_count(r['misrounded'])} misrounded"
                parts.append(self.mark("exhaustive", e, device, text))
            if rows := self.rows("pairs", e, device):
                r = row_with_most(rows, "random")
                off = round(evidence.worst(rows, "different"))
                text = f"{name}: {format_count(r['structured'] + r['random'])} pairs, {format_count(off)} not IEEE"
                parts.append(self.mark("exhaustive", e, device, text))
        return "; ".join(parts) or NONE

    def by_device(self, part: str, e: Entry, describe: Callable[[list[dict[str, Any]]], str]) -> str:
        """What a part found of an entry point on each kind of device; nothing where `describe` has no text for the rows."""
        parts = []
        for device in self.ev.kinds():
            rows = self.rows(part, e, device)
            if rows and (text := describe(rows)):
                parts.append(self.mark(part, e, device, f"{self.ev.label(device)}: {text}"))
        return "; ".join(parts) or NONE

    def sums(self, e: Entry) -> str:
        """Roundings on the longest path of the longest sum, beside what its bound assumes."""

        def describe(rows: list[dict[str, Any]]) -> str:
            known = [(r["leaves"], r["height"] + r["extra"], r["declared"]) for r in rows if r["height"] is not None]
            if not known:
                return ""
            leaves, height, declared = max(known, key=lambda r: r[:2])
            return f"{height} of {declared} ({format_count(leaves)} summands)"

        return self.by_device("probe", e, describe)

    def repeated(self, e: Entry) -> str:
        """Repeated calls, and what a batch does where the vendor's library decides the order."""

        def describe(rows: list[dict[str, Any]]) -> str:
            r = max(rows, key=count_calls)
            equal = "" if all(x["verdict"] == "pass" for x in rows) else ", **not equal**"
            batch = f", batch: {r['batch']}" if "not promised" in r["batch"] else ""
            return f"{format_count(count_calls(r))} calls{equal}{batch}"

        return self.by_device("determinism", e, describe)

    def alarms(self, e: Entry) -> str:
        """Correct results that the bound called wrong."""

        def describe(rows: list[dict[str, Any]]) -> str:
            most = row_with_most(rows, "comparisons")["comparisons"]
            return f"{format_count(evidence.worst(rows, 'alarms'))} in {format_count(most)}"

        return self.by_device("alarms", e, describe)


def evidence_table(ev: Evidence) -> list[str]:
    """One line per exported operation: what was tried, and how close to its bound it came."""
    cuda = ev.label("cuda")
    head = ["symbol", "drawn on CPU", f"drawn on {cuda}", "all inputs", "sums: height of declared", "same bits again",
            "alarms", "hostile calls"]  # fmt: skip
    out, of = table_head(head), Cells(ev)
    for family in registry.families():
        out.append(f"| **{family}**" + " |" * len(head))
        for e in entries.all_entries(family):
            cells = [f"`{e.symbol}`"]
            if e.only is not None or e.indexed:
                cells += [f"with `{tried_as(e)}`, whose bits it must have", *[NONE] * (len(head) - 3)]
            else:
                cells += [of.drawn(e, "cpu"), of.drawn(e, "cuda"), of.every_input(e), of.sums(e), of.repeated(e),
                          of.alarms(e)]  # fmt: skip
            hostile = [f"{ev.label(d)}: {n}" for d in ev.kinds() if (n := hostile_text(ev, e.symbol, d))]
            out.append(table_row([*cells, "; ".join(hostile) or NONE]))
    return out


def core_symbols() -> list[str]:
    """Every exported symbol that the hand-written header declares."""
    header = (ROOT / "native/include/torchlean_cuda.h").read_text()
    return sorted(set(re.findall(r"\b(torchlean_cuda_\w+)\(", declarations(header))))


def hostile_text(ev: Evidence, symbol: str, device: str) -> str:
    """Hostile calls of a symbol on a kind of device; nothing where there were none."""
    r = row_with_most(ev.rows("hostile", symbol, device), "calls")
    return f"{format_count(r['calls'])}, {format_count(r['refused'])} refused" if r and r["calls"] else ""


def core_table(ev: Evidence) -> list[str]:
    """One line per exported symbol that is no operation: how often it was called with hostile arguments."""
    devices = ev.kinds() or ["cpu"]
    rows = [[f"`{s}`", *(hostile_text(ev, s, device) or NONE for device in devices)] for s in core_symbols()]
    return table(["symbol", *(f"hostile calls on {ev.label(d)}" for d in devices)], rows)


def totals_table(ev: Evidence) -> list[str]:
    """What the files hold in sum, and what none of them holds."""
    rows: list[list[str]] = []
    failed = Counter((f.part, f.source) for f in ev.findings)
    for part, what in PARTS.items():
        documents = ev.documents(part)
        if not documents:
            rows.append([what, "not in a committed file", NONE, NONE])
        for source, document in documents:
            tried, outcome = _TOTALS[part](document)
            if bad := failed[part, source.name]:
                outcome = f"**{bad} failed**" + (f"; {outcome}" if outcome else "")
            mode = " in reproducible contexts" if "--math reproducible" in source.command else ""
            rows.append([what + mode, tried, outcome, f"[{source.name}](../evidence/{source.name})"])
    out = [*table(("what", "tried", "outcome", "file"), rows), "", "The files:", ""]
    for s in ev.sources:
        devices = "; ".join(s.devices.values()) or "devices not recorded"
        built = f"library {s.library}" if s.library else "commit not recorded"
        commit = f"commit {short_commit(s.commit)}" if s.commit else built
        out.append(f"- [{s.name}](../evidence/{s.name}): {devices}; {s.date[:10] or 'date not recorded'}; {commit}")
    return out


def _verify(d: Any) -> tuple[str, str]:
    results = d["results"]
    same = sum(r["identical"] is True for r in results)
    top = max(results, key=lambda r: float(r["share"]))
    cases = format_count(sum(r["cases"] for r in results))
    tried = f"{cases} cases of {count_entries((r['entry'], r['device']) for r in results)}"
    closest = f"closest to its bound: {format_share(top['share'])} ({top['entry']})"
    return tried, f"{sum(bool(r['failures']) for r in results)} failed; {same} bit-identical to the CPU; {closest}"


def _exhaustive(d: Any) -> tuple[str, str]:
    functions = d["functions"]
    step = "all 2³² inputs" if d["stride"] == 1 else f"every {d['stride']}th of the 2³² inputs"
    left = [f["entry"] for f in functions if not f["complete"]]
    devices = list(functions[0]["devices"]) if functions else []
    tried = f"{len(functions)} functions on {step}, on {' and '.join(devices)}"
    tried += f"; not complete: {', '.join(left)}" if left else ""
    per = [(p["worst"], f["entry"]) for f in functions for p in f["devices"].values()]
    many = sum(p["misrounded"] == 0 for f in functions for p in list(f["devices"].values())[:1])
    said = f"worst {max(per)[0]} ulp ({max(per)[1]}); {many} functions never misrounded" if per else ""
    if pairs := d.get("pairs", {}).get("operations"):
        total = sum(r["structured"] + r["random"] for r in pairs)
        said += f"; {format_count(total)} pairs of two arguments, {format_count(sum(r['different'] for r in pairs))} not IEEE"
    return tried, said


def _probe(d: Any) -> tuple[str, str]:
    high = sum(r["verdict"] != "pass" for r in d["sums"])
    sums = len({(r["op"], r["what"], r["device"]) for r in d["sums"]})
    longest = max((r["leaves"] for r in d["sums"]), default=0)
    trees = sum(len(r.get("lengths", "1")) for r in d["sums"])
    return f"{trees} trees of {sums} sums, up to {format_count(longest)} summands", f"{high} higher than declared"


def _determinism(d: Any) -> tuple[str, str]:
    bad = sum(r["verdict"] != "pass" for r in d["entries"])
    free = sum("not promised" in r["batch"] for r in d["entries"])
    calls = format_count(sum(count_calls(r) for r in d["entries"]))
    tried = f"{calls} calls of {count_entries((r['entry'], r['device']) for r in d['entries'])}"
    said = f"{bad} entry points changed a bit; {free} depend on the batch around them, where that is not promised"
    return tried, said


def _alarms(d: Any) -> tuple[str, str]:
    per = [f"{format_count(t['comparisons'])} comparisons on {device}" for device, t in d["totals"].items()]
    alarms = sum(t["alarms"] for t in d["totals"].values())
    return "; ".join(per), f"{alarms} false alarms; {len(d['loose'])} bounds that nothing came within a factor 50 of"


def _hostile(d: Any) -> tuple[str, str]:
    where = "CPU" if device_kind(d.get("device", -1)) == "cpu" else "CUDA"
    with_ = f" with {d['sanitizers']} sanitizers" if d.get("sanitizers") else ""
    named = sum(bool(r["calls"]) for r in d["entries"].values())
    contexts = "on one context" if d.get("shared") else "with a context each"
    team = f", {threads} threads {contexts}" if (threads := d.get("threads", 1)) > 1 else ""
    tried = f"{format_count(d['calls'])} calls of {named} functions on {where}{with_}{team}"
    return tried, f"{len(d['failures'])} crashes or other failures; {format_count(d['accepted'])} calls were valid"


def _checkpoints(d: Any) -> tuple[str, str]:
    said = f"{len(d['failures'])} failures; {format_count(d['refused'])} refused, {format_count(d['loaded'])} loaded"
    return f"{format_count(d['files'])} damaged files", said


def _faults(d: Any) -> tuple[str, str]:
    points = "; ".join(f"{format_count(r['points'])} allocation points on {r['device']}" for r in d["devices"])
    every = max((r.get("every", 1) for r in d["devices"]), default=1)
    tried = points + (f", every {every}th tried" if every > 1 else "")
    trials = sum(r.get(mode, {}).get("trials", 0) for r in d["devices"] for mode in faults.MODES)
    tried += f"; {format_count(trials)} trainings with one of them failing, or all from it on"
    full = [r["device"] for r in d["devices"] if r.get("out_of_memory")]
    said = f"{sum(len(r['failures']) for r in d['devices'])} failures"
    return tried, said + (f"; memory of {', '.join(full)} really used up: refused, the next call right" if full else "")


def _interrupts(d: Any) -> tuple[str, str]:
    names = list(dict.fromkeys(r["program"] for r in d["programs"]))
    tried = f"an exception at {format_count(d['points'])} points of {len(names)} programs ({', '.join(names)})"
    return tried, f"{len(d['failures'])} states other than that before or that after, or next steps that are not right"


def _contention(d: Any) -> tuple[str, str]:
    tried = [f"{format_count(r['turns'])} {'forks' if r['subject'] == 'forks' else 'turns at one ' + r['subject']}"
             for r in d["subjects"]]  # fmt: skip
    refused = format_count(sum(r["refused"] for r in d["subjects"]))
    return (
        f"{d['threads']} threads: {', '.join(tried)}",
        f"{len(d['failures'])} wrong or in a deadlock; {refused} refused",
    )


def _environments(d: Any) -> tuple[str, str]:
    modes = ", ".join(r["mode"] for r in d["modes"])
    return f"{format_count(d['modes'][0]['cases'])} results in each mode: {modes}", f"{len(d['failures'])} modes differ"


def _coverage(d: Any) -> tuple[str, str]:
    tried, said = [], []
    for half, what in (("native", "the CPU library"), ("python", "tlrt and tlspec")):
        branches, reached, excepted = (
            sum(r[k] for r in d[half]["files"]) for k in ("branches", "branches_reached", "excepted")
        )
        tried.append(f"{format_count(branches)} branches of {what}")
        said.append(
            f"{format_count(reached)} ({reached / (branches - excepted):.2%} of those without a reason not to be)"
        )
    return f"{', '.join(tried)}, over verify and the tests", f"{', '.join(said)} reached"


def _soak(d: Any) -> tuple[str, str]:
    said = f"{len(d['failures'])} changes; {format_count(d['live_bytes'])} live bytes after every step, the process grew by "
    return f"{format_count(d['steps'])} steps on {d['device']}", said + format_count(d["growth"])


def _mutation(d: Any) -> tuple[str, str]:
    tried = f"{d['run']} of {d['listed']} listed defects"
    return tried, f"{d['score']} caught; {d['equivalent']} change no behaviour; {len(d['survivors'])} survived"


#: kind of random mutant -> the sources that they change
MUTATED = {"c": "C of the CPU path", "cuda": "CUDA", "python": "the runtime", "specification": "the specification"}


def _open_mutants(d: Any) -> str:
    """What is said of mutants that a run had no time to try all checks on; they count nowhere."""
    left = sum(n.get("open", 0) for n in d["kinds"].values())
    return f" {left} more passed the first checks and are not judged yet." * bool(left)


def _survivors(d: Any) -> str:
    """What is listed of the mutants that survive."""
    left = sum(r["outcome"] == "survived" and not r["reason"] for r in d["results"])
    return f"with the reasons, of which {left} are not found yet" if left else "with the reasons"


def _mutants(d: Any) -> tuple[str, str]:
    tried = ", ".join(f"{n['killed'] + n['survived']} of {MUTATED[kind]}" for kind, n in d["kinds"].items())
    said, first = (
        ", ".join(f"{100 * float(n[score]):.1f} % of {MUTATED[kind]}" for kind, n in d["kinds"].items() if score in n)
        for score in ("score", "first")
    )
    before = f" ({first} before tests were added for survivors)" if first else ""
    return (
        f"{tried}, drawn by seed {d['seed']}",
        f"{said} killed{before}; survivors are listed {_survivors(d)}.{_open_mutants(d)}",
    )


def mutants_section(found: list[Source]) -> list[str]:
    """What TRUST_BOUNDARIES.md says of random mutants."""
    lines = []
    for source, d in Evidence(found).documents("mutants"):
        counts = {MUTATED[kind]: (n["killed"], n["killed"] + n["survived"]) for kind, n in d["kinds"].items()}
        killed, judged = (sum(n[i] for n in counts.values()) for i in (0, 1))
        each = ", ".join(f"{k} of {n} in {name}" for name, (k, n) in counts.items())
        lines += [
            f"- **Defects that nobody chose**: of {judged} changes of one line, drawn by seed {d['seed']}, that change what is",
            f"  computed, the tests see {killed}, {100 * killed / judged:.1f} %: {each}.",
            f"  [{source.name}](evidence/{source.name}) lists the others {_survivors(d)}.",
            *filter(None, [f" {_open_mutants(d)}".rstrip()]),
        ]
    return lines


#: how a run over drawn cases of some operations begins
DRAWN = "drawn "


def sanitizer_runs(d: Mapping[str, str]) -> list[tuple[str, str]]:
    """(what a tool ran over, what it said of it) for every tool of compute-sanitizer and everything it said."""
    said: dict[tuple[str, str], list[str]] = {}
    for run, text in d.items():
        tool, _, op = run.partition(" ")
        said.setdefault((tool, text), []).append(op)
    out = []
    for (tool, text), ops in said.items():
        over = ["drawn cases"] if "" in ops else []
        if drawn := ", ".join(op.removeprefix(DRAWN) for op in ops if op.startswith(DRAWN)):
            over.append(f"drawn cases of {drawn}")
        if large := ", ".join(op for op in ops if op and not op.startswith(DRAWN)):
            over.append(f"large shapes of {large}")
        out.append((f"{tool} over {' and '.join(over)}", text))
    return out


def _sanitizer(d: Any) -> tuple[str, str]:
    tried, said = zip(*sanitizer_runs(d), strict=True)
    return "; ".join(tried), "; ".join(said)


_TOTALS = {"verify": _verify, "exhaustive": _exhaustive, "probe": _probe, "determinism": _determinism,
           "alarms": _alarms, "hostile": _hostile, "checkpoints": _checkpoints, "faults": _faults, "soak": _soak,
           "interrupts": _interrupts, "contention": _contention, "environments": _environments,
           "mutation": _mutation, "mutants": _mutants, "coverage": _coverage, "sanitizer": _sanitizer}  # fmt: skip


INTRODUCTION = """\
# What is promised, and what was tried

Written by `python -m bench.results` out of the registry and the files under [evidence](../evidence); a test writes it anew and
compares. A figure that no file holds is not here, and what was not tried says so. [TRUST_BOUNDARIES.md](../TRUST_BOUNDARIES.md)
says what follows from it and what does not, [campaign.md](campaign.md) what each campaign does, and
`python -m audit report evidence/*.jsonl --html out.html` shows the same files as a page.

- A count is that of the one run with the most of it. Runs of the same seeds draw the same cases, so they are not added up.
  A worst figure is the worst of all runs, rounded up, and a failure in any of them is a failure here. An entry point whose
  bound has changed since a file was written is not quoted from it.
- *Drawn*: the worst error of drawn cases as a share of the tolerance (1 is the bound itself), and in float32 spacings of the
  reference. Where terms cancel, spacings of a small result are large and say little; the share is what is promised.
- *All inputs*: the distance from the correctly rounded result, over every float32 unless it says otherwise, and how many
  results are not the correctly rounded one. campaign.md has the parameters and the ranges of gradients.
- *Sums*: roundings on the longest path of the longest sum that was asked, found from outside, beside the height that its bound
  assumes.
- *Same bits again*: calls repeated under other threads, SIMD variants, batches, reused outputs and trimmed memory. Where
  cuBLAS or cuFFT decides the order, batches may differ, and the cell says whether they did.
- *Alarms*: correct results that the bounds called wrong."""

PROMISES = """\
## Promises per operation

From the registry. *CPU = CUDA*: whether the CPU path and CUDA agree bit for bit. *Bound*: the tolerance of every comparison
with the specification. Gradients are checked by verify like forward functions, and the specification's own by finite
differences."""

CORE = """\
## The rest of the ABI

Contexts, buffers, streams and queries have no float64 reference; the tests and the hostile calls are what they rest on."""


def trust_page(found: list[Source]) -> str:
    """docs/trust.md from some files."""
    ev = Evidence(found)
    lines = [INTRODUCTION, "", "## What was tried", "", *totals_table(ev), "", PROMISES, "", *promises_table(), ""]
    lines += ["## Evidence per operation", "", *evidence_table(ev), "", CORE, "", *core_table(ev)]
    return "\n".join(lines) + "\n"
