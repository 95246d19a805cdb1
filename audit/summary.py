"""Summaries: the small files under ``evidence``, one a campaign and device, made of the raw documents that runs write.

A raw document (``out/runs``, ignored by git) has every case, sample and repetition. Its summary has what ran, on what, the
commit, the counts, every failure, and the worst figures by family or row: what pages show. Campaigns write summaries beside
their raw documents; ``python -m bench.summary RAW...`` writes those of files, of timings as well.
"""

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import groupby
from pathlib import Path
from typing import Any

from audit.environment import EVIDENCE
from tlrt._terminal import format_table
from tlrt.verify.documents import read_document, write_document
from tlspec import registry

Row = dict[str, Any]
Document = Mapping[str, Any]

#: what a head repeats of the raw document
HEAD = ("command", "seed", "commit", "build", "library", "torch", "seconds")
#: what compute-sanitizer says last where it found nothing
CLEAN = ("ERROR SUMMARY: 0 errors", "RACECHECK SUMMARY: 0 hazards displayed (0 errors, 0 warnings)")


def family(entry: str, otherwise: str = "core") -> str:
    """The family of an entry point; `otherwise` where the registry has none."""
    for name in (entry, entry.removesuffix("_bwd")):
        try:
            return registry.get(name).family
        except KeyError:
            continue
    return otherwise


def round_up(x: Any, digits: int = 3) -> float:
    """A worst figure with few digits, never better than it was."""
    x = float(x)
    if x == 0 or not math.isfinite(x):
        return x
    unit = 10.0 ** (math.floor(math.log10(abs(x))) - digits + 1)
    return float(f"{math.ceil(x / unit - 1e-9) * unit:.{digits}g}")


def worst_of(rows: Iterable[Row], key: str) -> Row:
    """The row with the largest figure."""
    return max(rows, key=lambda r: float(r[key]))


def by_family(rows: Sequence[Row], name: str = "entry") -> Iterator[tuple[str, list[Row]]]:
    """Rows by the family of their entry point, in the registry's order."""
    order = [*registry.families(), "core"]
    ranked = sorted(rows, key=lambda r: order.index(family(r[name])))
    for key, found in groupby(ranked, key=lambda r: family(r[name])):
        yield key, list(found)


def _verify(d: Document) -> tuple[Row, list[Row]]:
    """Every entry point in the mode ``fast``; in the mode ``reproducible`` those whose bits the fast mode does not promise."""
    rows = []
    results = d["results"]
    for entry in dict.fromkeys(r["entry"] for r in results):
        own = [r for r in results if r["entry"] == entry]
        if "--math reproducible" in d.get("command", "") and registry.get(own[0]["op"]).contract.same_bits:
            continue
        row: Row = {"entry": entry, "bound": own[0]["bound"], "cases": sum(r["cases"] for r in own)}
        row["share"] = {r["device"].partition(":")[0]: round_up(r["share"]) for r in own}
        row["ulp"] = {r["device"].partition(":")[0]: round_up(r["ulp"]) for r in own}
        if known := [r["identical"] for r in own if r["identical"] is not None]:
            row["same_bits"] = all(known)
        rows.append(row)
    top = worst_of(results, "share")
    head = {
        "verdict": d["verdict"], "cases": sum(r["cases"] for r in results), "entries": len({r["entry"] for r in results}),
        "same_bits": sum(r["identical"] is True for r in results),
        "worst": {"entry": top["entry"], "share": round_up(top["share"])},
        "failures": [f["line"] for r in results for f in r["failures"]],
    }  # fmt: skip
    return head, rows


def _exhaustive(d: Document) -> tuple[Row, list[Row]]:
    rows: list[Row] = []
    for f in d["functions"]:
        on = list(f["devices"].values())
        row = {"entry": f["entry"], "bound": f["bound"], "inputs": max(p["seen"] for p in on), "range": f["range"]}
        row |= {
            "limit": f["limit"],
            "worst": max(p["worst"] for p in on),
            "misrounded": max(p["misrounded"] for p in on),
        }
        row |= {"mismatches": max(p["mismatches"] for p in on), "hash": on[0]["hash"]}
        if len(on) > 1:
            row["devices_differ"] = f["differ"]
        cases = [c for p in on for k in ("mismatch_case", "over_case") if (c := p.get(k))]
        special = [s for s in f["special"] if not s["ok"]]
        rows.append(row | ({"failures": [*cases, *special]} if cases or special else {}))
    return {
        "verdict": d["verdict"],
        "stride": d["stride"],
        **({"against": d["against"]} if d.get("against") else {}),
    }, rows


def _probe(d: Document) -> tuple[Row, list[Row]]:
    keys = ("op", "what", "device", "leaves", "height", "extra", "declared", "fan_in")
    rows = [{k: r[k] for k in keys} | ({} if r["verdict"] == "pass" else {"found": r["found"]}) for r in d["sums"]]
    return {"verdict": d["verdict"], "trees": sum(1 + len(r.get("lengths", ())) for r in d["sums"])}, rows


def count_calls(row: Document) -> int:
    """Calls of one entry point in the determinism campaign, each compared with the first."""
    return sum(row[k] or 0 for k in ("repeats", "reused", "threads", "variants", "trims", "batches"))


def _determinism(d: Document) -> tuple[Row, list[Row]]:
    rows = []
    for name, own in by_family(d["entries"]):
        row: Row = {"family": name, "entries": len({r["entry"] for r in own}), "calls": sum(map(count_calls, own))}
        row["batch_dependent"] = sorted({r["entry"] for r in own if "not promised" in str(r["batch"])})
        failures = [f"{r['entry']} on {r['device']}: {text}" for r in own for text in r["failures"]]
        rows.append(row | ({"failures": failures} if failures else {}))
    return {"verdict": d["verdict"], "calls": sum(r["calls"] for r in rows)}, rows


def _hostile(runs: Sequence[Document]) -> tuple[Row, list[Row]]:
    keys = ("device", "sanitizers", "threads", "shared", "calls", "accepted", "failures")
    rows = [{k: d[k] for k in keys} | {"functions": sum(r["calls"] > 0 for r in d["entries"].values())} for d in runs]
    return {"verdict": _verdict(rows), "calls": sum(r.get("calls", 0) for r in rows)}, rows


def _faults(d: Document) -> tuple[Row, list[Row]]:
    rows = [{k: r[k] for k in ("device", "calls", "out_of_memory", "failures") if k in r} for r in d["devices"]]
    return {"verdict": d["verdict"], "trials": sum(r["calls"]["trials"] for r in rows)}, rows


def _interrupts(d: Document) -> tuple[Row, list[Row]]:
    rows = [{"kind": k, **{p["program"]: p["points"] for p in d["programs"] if p["kind"] == k}}
            for k in dict.fromkeys(p["kind"] for p in d["programs"])]  # fmt: skip
    return {k: d[k] for k in ("verdict", "points", "every", "failures")}, rows


def _contention(d: Document) -> tuple[Row, list[Row]]:
    return {k: d[k] for k in ("verdict", "threads", "failures")}, list(d["subjects"])


def _mutants(d: Document) -> tuple[Row, list[Row]]:
    """Counts of each kind, and a line for each mutant that survived."""
    keys = ("kind", "outcome", "mutant", "reason")
    rows = [{"kind": kind, **counts} for kind, counts in d["kinds"].items()]
    return {"seed": d["seed"]}, [*rows, *({k: r[k] for k in keys if r[k]} for r in d["results"])]


def _sanitizer(d: Document) -> tuple[Row, list[Row]]:
    rows = []
    for tool in dict.fromkeys(run.partition(" ")[0] for run in d):
        own = {run.partition(" ")[2] or "drawn cases": said for run, said in d.items() if run.partition(" ")[0] == tool}
        failures = [f"{over}: {said}" for over, said in own.items() if said not in CLEAN]
        rows.append({"tool": tool, "over": list(own), "failures": failures})
    return {"verdict": _verdict(rows)}, rows


def _verdict(rows: Iterable[Row]) -> str:
    return "fail" if any(r["failures"] for r in rows) else "pass"


REDUCERS: Mapping[str, Callable[[Any], tuple[Row, list[Row]]]] = {
    "verify": _verify, "exhaustive": _exhaustive, "probe": _probe, "determinism": _determinism,
    "hostile": _hostile, "faults": _faults, "interrupts": _interrupts, "contention": _contention, "mutants": _mutants,
    "sanitizer": _sanitizer,
}  # fmt: skip


def _parts(raw: Document) -> dict[str, Any]:
    """The campaigns of a raw document; that of `verify` may be the document itself."""
    found = {name: raw[name] for name in REDUCERS if raw.get(name)}
    return found or ({"verify": raw} if "results" in raw else {})


def _device_names(*documents: Document) -> dict[str, str]:
    """Devices by name with their descriptions."""
    for d in documents:
        if isinstance(d.get("devices"), Mapping):
            return {name.partition(":")[0]: str(text) for name, text in d["devices"].items()}
        if isinstance(text := d.get("device"), str) and ", " in text:
            return {"cpu" if text.startswith("CPU") else "cuda": text}
    return {}


def device_label(devices: Mapping[str, str]) -> str:
    """A short name for a file: h200, h100, cpu."""
    return devices["cuda"].removeprefix("NVIDIA ").replace(",", " ").split()[0].lower() if "cuda" in devices else "cpu"


def summarise(raw: Document) -> dict[str, Row]:
    """The summaries of a campaign's raw document by the stem of their file, as ``verify-h200``."""
    return dict(reduce_part(name, part, raw, REDUCERS[name]) for name, part in _parts(raw).items())


def reduce_part(
    campaign: str, part: Any, raw: Document, reducer: Callable[[Any], tuple[Row, list[Row]]]
) -> tuple[str, Row]:
    """The stem and the summary of one part of a raw document."""
    inner = part if isinstance(part, Mapping) else part[0]
    devices = _device_names(inner if isinstance(inner.get("devices"), Mapping) else {}, raw, inner)
    given = {k: v for k in HEAD if (v := inner.get(k, raw.get(k)))} | {"devices": devices}
    date = str(next((v for d in (inner, raw) for k in ("started", "date") if (v := d.get(k))), ""))[:10]
    head, rows = reducer(part)
    reproducible = "--math reproducible" in given.get("command", "") or inner.get("math") == "reproducible"
    name = f"{campaign}{'-reproducible' * reproducible}-{device_label(devices)}"
    return name, {"campaign": campaign, "date": date, **given, **head, "rows": rows}


def summary_text(raw: Document) -> str:
    """The summaries of a raw document for a terminal: the head of each, its rows as a table, and failures."""
    texts = []
    for summary in summarise(raw).values():
        head = {k: v for k, v in summary.items() if k not in (*HEAD, "campaign", "date", "rows", "failures", "verdict")}
        columns = list(dict.fromkeys(k for r in summary["rows"] for k in r if k not in ("failures", "hash")))
        text = format_table(columns, [[_cell(r.get(k)) for k in columns] for r in summary["rows"]])
        text += "\n" + ", ".join(f"{k.replace('_', ' ')}: {_cell(v)}" for k, v in head.items())
        failures = [*summary.get("failures", ()), *(f for r in summary["rows"] for f in r.get("failures", ()))]
        texts.append(text + "".join(f"\nFAIL {f}" for f in failures))
    return "\n\n".join(texts)


def _cell(value: Any) -> str:
    if isinstance(value, Mapping):
        return ", ".join(f"{k} {_cell(v)}" for k, v in value.items())
    return ", ".join(map(_cell, value)) if isinstance(value, list) else "" if value is None else str(value)


def write_summaries(raw: Document, folder: Path) -> list[Path]:
    """Writes the summaries of a raw document into a folder."""
    folder.mkdir(parents=True, exist_ok=True)
    paths = []
    for name, summary in summarise(raw).items():
        write_document(path := folder / f"{name}.jsonl", summary)
        paths.append(path)
    return paths


def read_summaries(folder: Path = EVIDENCE) -> dict[str, Row]:
    """Every summary of a folder by the stem of its file."""
    return {path.stem: read_document(path) for path in sorted(folder.glob("*.jsonl"))}
