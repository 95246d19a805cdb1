"""Evidence files: what verify runs and campaigns wrote, read back and indexed by part, entry point and device.

A file is a verify document, a campaign's, the document of one part alone, or what ``python -m bench.gpu`` wrote. Every figure
keeps the file it came from. Benchmark files hold no evidence of correctness and give a source without parts.
"""

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tlrt.verify.documents import read_document
from tlspec import registry

#: parts of a document, and what their absence leaves untried
PARTS: Mapping[str, str] = {
    "verify": "drawn cases against the specification",
    "exhaustive": "every input of every function of one argument",
    "probe": "the order in which sums add",
    "determinism": "the same bits over repetitions, threads and batches",
    "alarms": "false alarms of the bounds",
    "hostile": "hostile calls of the C ABI",
    "checkpoints": "damaged checkpoint files",
    "faults": "allocation failures",
    "interrupts": "an exception at every point of a program",
    "contention": "threads that use one object at once, forks beside them",
    "environments": "the caller's floating-point mode",
    "soak": "long runs in flat memory",
    "mutants": "random mutants",
    "mutation": "planted defects",
    "coverage": "lines and branches that no run reaches",
    "sanitizer": "GPU memory checkers",
}
#: what only one part's own document has
SIGNS: Mapping[str, tuple[str, ...]] = {
    "verify": ("results", "verdict"), "exhaustive": ("functions", "stride"), "probe": ("sums", "sizes"),
    "determinism": ("entries", "repeats"), "alarms": ("entries", "totals", "edges"), "hostile": ("entries", "statuses"),
    "soak": ("samples", "steps", "growth"), "mutation": ("listed", "survivors"),
    "mutants": ("seed", "kinds"),
}  # fmt: skip


def _is_count(v: Any) -> bool:
    return isinstance(v, (int, float)) and 0 <= v < math.inf


#: what a field holds: in words, and whether a value is one
KINDS: Mapping[str, tuple[str, Callable[[Any], bool]]] = {
    "text": ("a text", lambda v: isinstance(v, str)),
    "number": ("a number", lambda v: isinstance(v, (int, float))),
    "figure": ("a number", lambda v: isinstance(v, (int, float)) or v in ("inf", "nan")),
    "count": ("a count", _is_count),
    "maybe": ("a count or null", lambda v: v is None or _is_count(v)),
    "flag": ("true, false or null", lambda v: v is None or isinstance(v, bool)),
    "table": ("a table", lambda v: isinstance(v, Mapping)),
    "list": ("a list", lambda v: isinstance(v, list)),
    "texts": ("a list of texts", lambda v: isinstance(v, list) and all(isinstance(x, str) for x in v)),
    "counts": ("a list of counts", lambda v: isinstance(v, list) and all(map(_is_count, v))),
}
#: the fields that pages show: a path of keys to a table ("*" is every item, "?" follows a key that may be absent), and the kinds
#: and names of its fields
FIELDS = """
verify/*/results/*: text entry device bound; count cases; figure share ulp; flag identical
verify/*/results/*/failures/*: text entry device kind detail line
exhaustive/*: count stride
exhaustive/*/functions/*: text entry bound verdict; flag complete; maybe differ; count limit; table devices
exhaustive/*/functions/*/special/*: text x expected; flag ok
exhaustive/*/functions/*/devices/*: count seen misrounded mismatches worst; text hash
exhaustive/*/functions/*/devices/*/mismatch_case?: text at got want
exhaustive/*/functions/*/devices/*/over_case?: text at got want
exhaustive/*/functions/*/devices/*/worst_case?: text at
exhaustive/*/pairs?/operations/*: text op device verdict; count structured random different devices_differ
probe/*/sums/*: text op what device found verdict; count leaves extra declared; maybe height fan_in
determinism/*/entries/*: text entry device verdict; texts failures; count repeats; maybe reused threads variants trims batches
alarms/*: list loose; counts edges; table totals
alarms/*/totals/*: count alarms
alarms/*/entries/*: text entry device bound; count comparisons measured alarms; figure worst; counts histogram; texts alarm_lines
hostile/*: count calls accepted; table entries
hostile/*/entries/*: count calls
hostile/*/failures/*: text said again; number status
checkpoints/*: count files; texts failures
faults/*/devices?/*: text device; count points; texts failures
faults/*/devices?/*/one?: count trials raised absorbed untouched
faults/*/devices?/*/all?: count trials raised absorbed untouched
faults/*/devices?/*/calls?: count trials raised absorbed untouched
interrupts/*: count points every; list programs; texts failures
contention/*: count threads; texts failures
contention/*/subjects/*: text subject; count turns right refused other
environments/*: texts failures
environments/*/modes/*: text mode digest; count cases
soak/*: text device; count steps live_bytes live_buffers microseconds; number growth; texts failures
mutants/*: count seed; table kinds
mutants/*/kinds/*: count killed survived equivalent argued invalid; figure score
mutants/*/results/*: text mutant kind outcome reason; count line
coverage/*/native: list missed; texts failures
coverage/*/native/files/*: text file; count lines lines_reached branches branches_reached excepted
coverage/*/native/missed/*: text file text why; count line left of
coverage/*/python: list missed; figure share; texts failures
coverage/*/python/files/*: text file; count lines lines_reached branches branches_reached excepted
coverage/*/python/missed/*: text file text why; count line; list to
mutation/*: count listed run; texts survivors; text score; table results
mutation/*/results/*: number number; text name outcome by
steps/*/*: number status; text command
"""


class EvidenceError(ValueError):
    """A file that is no evidence."""


@dataclass(frozen=True)
class Source:
    """One file: where, when and with what it was made, and its parts."""

    name: str
    date: str
    commit: str
    command: str
    devices: Mapping[str, str]
    build: Mapping[str, str]
    library: str
    parts: Mapping[str, list[Any]]

    def label(self, device: str) -> str:
        """A short name of a device: CPU, H200."""
        if device_kind(device) == "cpu":
            return "CPU"
        return self.devices.get(device, "CUDA").partition(",")[0].replace("NVIDIA ", "") or "CUDA"


@dataclass(frozen=True)
class Finding:
    """Something that failed, and the line that repeats it."""

    part: str
    entry: str
    device: str
    detail: str
    line: str
    source: str


def device_kind(device: Any) -> str:
    """ "cpu" or "cuda", of a device's name or its number in the C ABI."""
    if isinstance(device, int):
        return "cpu" if device < 0 else "cuda"
    return "cuda" if str(device).startswith("cuda") else "cpu"


def _parts(document: Mapping[str, Any]) -> dict[str, list[Any]]:
    given = {name: document[name] for name in PARTS if document.get(name)}
    parts = {name: part if isinstance(part, list) else [part] for name, part in given.items()}
    if not parts.keys() - {"checkpoints"}:
        parts |= {name: [document] for name, keys in SIGNS.items() if all(k in document for k in keys)}
        devices = document.get("devices")
        if isinstance(devices, list) and devices and all(isinstance(d, Mapping) and "points" in d for d in devices):
            parts["faults"] = [document]
    if isinstance(document.get("steps"), Mapping):
        parts["steps"] = [document["steps"]]
    inner = [d["checkpoints"] for d in parts.get("hostile", []) if isinstance(d, Mapping) and d.get("checkpoints")]
    if inner:
        parts["checkpoints"] = inner
    return parts


def read(name: str, document: Mapping[str, Any]) -> Source:
    """The source that a document is. Raises EvidenceError for what is neither evidence nor a benchmark."""
    if not isinstance(document, Mapping):
        raise EvidenceError(f"{name}: not an evidence file: the top is no table")
    parts = _parts(document)
    if not parts and not {"rows", "bench", "examples"} & document.keys():
        raise EvidenceError(f"{name}: not an evidence file: none of {', '.join(PARTS)} in it")
    held = [d for name, part in parts.items() if name != "steps" for d in part]  # steps have names of their own choice
    heads = [document, *(d for d in held if isinstance(d, Mapping))]

    def first(*keys: str) -> Any:
        return next((h[k] for h in heads for k in keys if h.get(k)), "")

    devices: dict[str, str] = {}
    for head in heads:
        found = head.get("devices")
        devices |= {name: str(text) for name, text in found.items()} if isinstance(found, dict) else {}
    for benchmark in (document, *(document.get(part) for part in ("bench", "growth", "training_steps"))):
        if isinstance(benchmark, Mapping) and isinstance(text := benchmark.get("device"), str) and ", " in text:
            devices.setdefault("cpu" if text.startswith("CPU") else "cuda:0", text)
    build: dict[str, str] = next((h["build"] for h in heads if isinstance(h.get("build"), dict)), {})
    date, commit = str(first("started", "date")), str(first("commit"))
    return Source(name, date, commit, str(first("command")), devices, build, str(first("library")), parts)


def load(path: Path) -> Source:
    """The source that a file is. Raises EvidenceError, also for a file that cannot be read."""
    try:
        document = read_document(path)
    except (OSError, ValueError) as error:
        raise EvidenceError(f"{path.name}: {error}") from None
    source = read(path.name, document)
    for line in FIELDS.split("\n")[1:-1]:
        keys, fields = line.split(": ")
        part, *rest = keys.split("/")
        for place, table in _find_tables(source.parts.get(part, []), rest, path.name, part):
            for kind, *names in map(str.split, fields.split("; ")):
                for name in names:
                    _require(kind, table.get(name, ...), *place, name)
    for item in source.parts.get("sanitizer", []):
        _require("table", item, path.name, "sanitizer")
    for _, entry, row in Evidence([source]).all("alarms"):
        if len(row["edges"]) != len(row["histogram"]):
            raise EvidenceError(f"{path.name}: alarms: histogram of {entry}: got other than one count for each edge")
    return source


def _require(kind: str, value: Any, *place: object) -> None:
    """Raises EvidenceError unless the value is of that kind; `place` is the file and the keys that lead there."""
    words, accepts = KINDS[kind]
    if not accepts(value):
        got = "nothing" if value is ... else f"{value!r:.40}"
        raise EvidenceError(f"{place[0]}: {'.'.join(map(str, place[1:]))}: got {got}, expected {words}")


def _find_tables(value: Any, keys: Sequence[str], *place: object) -> Iterator[tuple[tuple[object, ...], Any]]:
    """The tables at a path of :data:`FIELDS`, each with its place."""
    if keys[:1] == ["*"]:
        if not isinstance(value, Mapping):
            _require("list", value, *place)
        for key, item in value.items() if isinstance(value, Mapping) else enumerate(value):
            yield from _find_tables(item, keys[1:], *place, key)
        return
    _require("table", value, *place)
    if not keys:
        yield place, value
    elif (key := keys[0].removesuffix("?")) in value or key == keys[0]:
        yield from _find_tables(value.get(key, ...), keys[1:], *place, key)


def _probed_entry(row: Mapping[str, Any]) -> str:
    """The entry point whose sum a row of the probe is about: the gradient's where its output is one."""
    op, what = str(row["op"]), str(row["what"]).partition(",")[0]
    try:
        rule = registry.get(op).vjp_rule
    except KeyError:
        return op
    return f"{op}_bwd" if rule is not None and what in rule.gives else op


@dataclass
class Evidence:
    """Several sources, indexed by part, entry point and kind of device."""

    sources: Sequence[Source]
    index: dict[tuple[str, str, str], list[tuple[Source, dict[str, Any]]]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        for source in self.sources:
            for part, entry, device, row in _rows(source):
                self.index.setdefault((part, entry, device_kind(device)), []).append(
                    (source, {**row, "device": device})
                )

    def rows(self, part: str, entry: str, device: str) -> list[dict[str, Any]]:
        """What the part says of an entry point on a kind of device, over all sources."""
        return [row for _, row in self.index.get((part, entry, device), [])]

    def all(self, part: str, device: str | None = None) -> list[tuple[Source, str, dict[str, Any]]]:
        """All rows of a part: source, entry point, row."""
        found = []
        for (p, entry, d), rows in self.index.items():
            if p == part and device in (None, d):
                found += [(source, entry, row) for source, row in rows]
        return found

    def documents(self, part: str) -> list[tuple[Source, Any]]:
        """The documents of a part."""
        return [(s, d) for s in self.sources for d in s.parts.get(part, [])]

    def entries(self) -> list[str]:
        """Every entry point spoken of, in the registry's order, what it does not know last."""
        known = [n for op in registry.ops() for n in (op.name, f"{op.name}_bwd")]
        found = {e for (p, e, _) in self.index if p != "hostile"}
        return [n for n in known if n in found] + sorted(found - set(known))

    def kinds(self) -> list[str]:
        """The kinds of device spoken of: "cpu", "cuda"."""
        found = {k for (_, _, k) in self.index} | {device_kind(d) for s in self.sources if s.parts for d in s.devices}
        return sorted(found)

    def label(self, device: str) -> str:
        """The short name of a kind of device; those of all GPUs where there are several."""
        if device == "cpu":
            return "CPU"
        found = {s.label(d) for s in self.sources if s.parts for d in s.devices if device_kind(d) == "cuda"}
        return " and ".join(sorted(found)) or "CUDA"

    def absent(self) -> list[str]:
        """Parts that no source has."""
        return [p for p in PARTS if not self.documents(p)]

    @property
    def findings(self) -> list[Finding]:
        """Everything that failed in any source."""
        return [f for s in self.sources for f in _findings(s)]


def _rows(source: Source) -> Iterator[tuple[str, str, Any, dict[str, Any]]]:
    """(part, entry point, device, row) of everything in a source that is about one entry point."""
    for d in source.parts.get("verify", []):
        for r in d["results"]:
            yield "verify", r["entry"], r["device"], r
    for d in source.parts.get("exhaustive", []):
        for f in d["functions"]:
            shared = {k: v for k, v in f.items() if k != "devices"} | {"stride": d["stride"]}
            for device, p in f["devices"].items():
                yield "exhaustive", f["entry"], device, {**shared, **p}
        for r in d.get("pairs", {}).get("operations", []):
            yield "pairs", r["op"], r["device"], r
    for d in source.parts.get("probe", []):
        for r in d["sums"]:
            yield "probe", _probed_entry(r), r["device"], r
    for part in ("determinism", "alarms"):
        for d in source.parts.get(part, []):
            for r in d["entries"]:
                yield part, r["entry"], r["device"], {**r, "edges": d.get("edges")}
    for d in source.parts.get("hostile", []):
        for symbol, r in d.get("entries", {}).items():
            yield "hostile", symbol, d.get("device", -1), r


def _findings(source: Source) -> Iterator[Finding]:
    for part, documents in source.parts.items():
        for document in documents:
            found = [Finding(part, *where, source.name) for where in _FINDERS[part](document)]
            yield from found
            if not found and isinstance(document, Mapping) and document.get("verdict") == "fail":
                yield Finding(part, "", "", "the file says that it failed, and not where", source.command, source.name)


Found = Iterator[tuple[str, str, str, str]]


def _verify(d: Mapping[str, Any]) -> Found:
    for r in d["results"]:
        for f in r["failures"]:
            yield f["entry"], f["device"], f"{f['kind']}: {f['detail']}", f["line"]
        if not r["failures"] and r.get("verdict") == "fail":
            yield r["entry"], r["device"], "failed", ""


def _exhaustive(d: Mapping[str, Any]) -> Found:
    for f in d["functions"]:
        line = f"python -m audit exhaustive --ops {f['entry'].removesuffix('_bwd')} --stride {d['stride']}"
        before = 0
        for device, p in f["devices"].items():
            for case, what in (("mismatch_case", "mismatch"), ("over_case", f"more than {f['limit']} ulp off")):
                if c := p.get(case):
                    before += 1
                    yield f["entry"], device, f"{what} at {c['at']}: got {c['got']}, expected {c['want']}", line
            if p.get("undecided"):
                before += 1
                yield f["entry"], device, f"{p['undecided']} inputs undecided", line
        if f.get("differ"):
            before += 1
            at = f.get("differ_at", "?")
            yield f["entry"], "", f"devices differ in {f['differ']} results, first at {at}", line
        for s in f.get("special", []):
            if not s["ok"]:
                before += 1
                yield f["entry"], "", f"special value: {s}", line
        if f.get("verdict") == "fail" and not before:
            yield f["entry"], "", "failed", line
    for r in d.get("pairs", {}).get("operations", []):
        if r["verdict"] == "fail":
            what = f"{r['different']} of {r['structured'] + r['random']} pairs not IEEE, {r['devices_differ']} differ"
            yield (r["op"], r["device"], f"{what} {r.get('case', '')}", "python -m audit exhaustive --ops " + r["op"])
    for text in d.get("against", []):
        if "FAIL" in text:
            yield text.partition(":")[0], "", f"against another machine: {text}", ""


def _probe(d: Mapping[str, Any]) -> Found:
    for r in d["sums"]:
        if r["verdict"] != "pass":
            text = f"{r['what']}, {r['leaves']} summands: height {r['height']} + {r['extra']}, declared {r['declared']}"
            again = f"python -m audit probe --ops {r['op']} --device {r['device']}"
            yield _probed_entry(r), r["device"], f"{text}; {r['found']}", again


def _determinism(d: Mapping[str, Any]) -> Found:
    for r in d["entries"]:
        again = f"python -m audit determinism --ops {r['entry'].removesuffix('_bwd')} --device {r['device']}"
        for text in r["failures"] or (["failed"] if r["verdict"] != "pass" else []):
            yield r["entry"], r["device"], text, again


def _alarms(d: Mapping[str, Any]) -> Found:
    for r in d["entries"]:
        if r["alarms"]:
            lines = r["alarm_lines"] or [""]
            detail, _, line = lines[0].rpartition("; ")
            yield r["entry"], r["device"], f"alarms: {r['alarms']} of {r['comparisons']} comparisons; {detail}", line


def _hostile(d: Mapping[str, Any]) -> Found:
    for f in d["failures"]:
        said = " ".join(f["said"].strip().splitlines()[:2])[:300]
        yield "", device_kind(d.get("device", -1)), f"status {f['status']}: {said}", f["again"]


def _plain(d: Mapping[str, Any]) -> Found:
    for text in d.get("failures", []):
        yield "", str(d.get("device", "")), str(text), ""


def _faults(d: Mapping[str, Any]) -> Found:
    for r in d.get("devices", [d]):
        for text in r.get("failures", []):
            yield ("", str(r.get("device", "")), str(text), f"python -m audit faults --device {r.get('device', '')}")


def _coverage(d: Mapping[str, Any]) -> Found:
    for half in ("native", "python"):
        for text in d.get(half, {}).get("failures", []):
            yield "", "", str(text), "python -m audit coverage"


def _mutation(d: Mapping[str, Any]) -> Found:
    numbers = {r["name"]: r["number"] for r in d["results"].values()}
    for name in d["survivors"]:
        again = f"python -m audit mutate --only {numbers[name]}" if name in numbers else "python -m audit mutate"
        yield "", "", f"survived: {name}", again


def _mutants(d: Mapping[str, Any]) -> Found:
    for r in d["results"]:
        if r["outcome"] == "survived" and not r["reason"]:
            yield (
                "",
                "",
                f"survived: {r['mutant']}",
                f"python -m audit mutate --random 1000 --seed {d['seed']} --kinds {r['kind']}",
            )


#: what compute-sanitizer says last where it has nothing to say
CLEAN = ("ERROR SUMMARY: 0 errors", "RACECHECK SUMMARY: 0 hazards displayed (0 errors, 0 warnings)")


def _sanitizer(d: Mapping[str, Any]) -> Found:
    for run, text in d.items():
        if run != "missing" and text not in CLEAN:
            yield "", "cuda", f"{run}: {text}", ""


def _steps(d: Mapping[str, Any]) -> Found:
    for name, step in d.items():
        if step["status"]:
            yield "", "", f"step {name} ended with status {step['status']}", step["command"]


_FINDERS: Mapping[str, Callable[[Mapping[str, Any]], Found]] = {
    "verify": _verify, "exhaustive": _exhaustive, "probe": _probe, "determinism": _determinism, "alarms": _alarms,
    "hostile": _hostile, "checkpoints": _plain, "faults": _faults, "soak": _plain,
    "interrupts": _plain, "contention": _plain, "environments": _plain, "mutation": _mutation,
    "mutants": _mutants, "coverage": _coverage, "sanitizer": _sanitizer, "steps": _steps,
}  # fmt: skip


def family(entry: str, otherwise: str = "other") -> str:
    """The family of an entry point; `otherwise` where the registry has none."""
    for name in (entry, entry.removesuffix("_bwd")):
        try:
            return registry.get(name).family
        except KeyError:
            continue
    return otherwise


def row_with_most(rows: Iterable[Mapping[str, Any]], key: str) -> dict[str, Any]:
    """The row with the most of something: counts are quoted from one run, never added up over runs of the same cases."""
    return dict(max(rows, key=lambda r: float(r[key]), default={}))


def worst(rows: Iterable[Mapping[str, Any]], key: str) -> float:
    """The largest of a figure over all runs; infinities come as text."""
    return max((float(r[key]) for r in rows), default=0.0)
