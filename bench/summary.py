"""``python -m bench.summary RAW...``: the summaries of raw documents of timings and campaigns, into ``evidence`` or ``--out``."""

import argparse
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from audit import summary
from audit.environment import EVIDENCE, commit
from audit.summary import Document, Row, reduce_part
from tlrt.verify.documents import read_document, write_document


def shorten(x: float | None, digits: int = 4) -> float | None:
    """A measured figure with few digits."""
    return None if x is None else float(f"{x:.{digits}g}")


def _bench(d: Document) -> tuple[Row, list[Row]]:
    """Every timed row: our milliseconds, the share of the floor, and how many times faster than each peer."""
    rows = []
    for r in d["rows"]:
        row = {"op": r["op"], "size": r["size"], "ms": shorten(r["ours_ms"])}
        if r.get("math", "fast") != "fast":
            row["math"] = r["math"]
        if r["floor_ms"]:
            row["floor"] = shorten(r["floor_share"], 2)
        row |= {peer: shorten(p["ratio"], 3) for peer, p in r["peers"].items()}
        if r["error"] is not None:
            row["error"] = shorten(r["error"], 2)
        rows.append(row | ({"in_cache": True} if r["in_cache"] else {}))
    return {"bandwidth": shorten(d["bandwidth"], 3)}, rows


def _growth(d: Document) -> tuple[Row, list[Row]]:
    keys = ("name", "what", "size", "sizes", "figure_is", "figure", "limit", "ok")
    rows = [{k: r[k] for k in keys} | {"figure": shorten(r["figure"])} for r in d["entries"]]
    return {"verdict": "pass" if d["ok"] else "fail"}, rows


def _steps(d: Document) -> tuple[Row, list[Row]]:
    keys = ("ours_ms", "torch_ms", "ratio", "compiled_ms", "compiled_ratio", "device_ms", "device_ratio")
    rows = [{"step": r["step"], "size": r["size"], "math": r.get("math", "fast"),
             **{k: shorten(r[k]) for k in keys if r.get(k) is not None},
             "driver_allocations": r["driver_allocations"]} for r in d["rows"]]  # fmt: skip
    return {}, rows


def _drawn(d: Document) -> tuple[Row, list[Row]]:
    """Every family: shapes, median, 5th percentile, and the slowest shape."""
    rows = []
    for s in d["summary"]:
        own = [r for r in d["rows"] if s["family"] in ("all", r["family"]) and r.get("ratio") is not None]
        row = {"family": s["family"], "shapes": s["shapes"]}
        row |= {k: shorten(s[k], 3) for k in ("median", "percentile_5", "least", "share_below_1")}
        slowest = min(own, key=lambda r: r["ratio"], default=None)
        rows.append(row | ({"slowest": f"{slowest['op']} {slowest['size']}"} if slowest else {}))
    return {"first": d["first"], "failed": d["failed"], "without_peer": len(d.get("without_peer", ())),
            **({"verified": d["verified"]} if "verified" in d else {})}, rows  # fmt: skip


def _beside(d: Document) -> tuple[Row, list[Row]]:
    """The ten rows that gained least, and how many are below the limit."""
    ratios = sorted(r["ratio"] for r in d["rows"])
    least = sorted(d["rows"], key=lambda r: r["ratio"])[:10]
    rows = [
        {"op": r["op"], "size": r["size"], **{k: shorten(r[k]) for k in ("ms", "before_ms", "ratio")}} for r in least
    ]
    return {"beside": list(d["beside"]), "limit": d["limit"], "rows_timed": len(ratios), "failed": d["failed"],
            "below_limit": sum(x < d["limit"] for x in ratios), "median": shorten(ratios[len(ratios) // 2])}, rows  # fmt: skip


def _models(d: Document) -> tuple[Row, list[Row]]:
    """Every model's figure, and the rows of each family."""
    rows = [
        {"model": f["model"], "batch": f["batch"], "math": f["math"], "ratio": shorten(f["ratio"], 3),
         "ms": shorten(f["ms"]), "timed": shorten(f["share"], 3)}
        for f in d["models"]
    ] + [{**f, "geomean": shorten(f["geomean"], 3), "least": shorten(f["least"], 3)} for f in d["families"]]  # fmt: skip
    return {"torch": d["torch"], "threads": d["threads"], "skipped": d["skipped"], "failed": d["failed"]}, rows


REDUCERS: Mapping[str, Callable[[Any], tuple[Row, list[Row]]]] = {
    "bench": _bench, "growth": _growth, "steps": _steps, "drawn": _drawn, "beside": _beside, "models": _models,
}  # fmt: skip
#: keys that only the document of one program has
SIGNS: Mapping[str, tuple[str, ...]] = {
    "drawn": ("summary", "first"), "beside": ("beside",), "models": ("models", "families"), "growth": ("entries", "ok"),
    "bench": ("rows", "bandwidth"), "steps": ("rows", "threads"),
}  # fmt: skip


def summarise(raw: Document) -> dict[str, Row]:
    """The summaries of a raw document by the stem of their file. One that is small, with a date and rows, is its own."""
    found = summary.summarise(raw)
    parts = {name: raw[name] for name in ("bench", "growth") if raw.get(name)}
    if raw.get("training_steps"):
        parts["steps"] = raw["training_steps"]
    alone = next((name for name, keys in SIGNS.items() if all(k in raw for k in keys)), None)
    parts |= {alone: raw} if alone and alone not in parts else {}
    return found | dict(reduce_part(name, part, raw, REDUCERS[name]) for name, part in parts.items())


def write_summaries(raw: Document, folder: Path) -> list[Path]:
    """Writes the summaries of a raw document into a folder."""
    folder.mkdir(parents=True, exist_ok=True)
    found = {folder / f"{name}.jsonl": row for name, row in summarise(raw).items()}
    for path, row in found.items():
        write_document(path, row)
    return list(found)


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m bench.summary", description=(__doc__ or "").partition(": ")[2])
    parser.add_argument("files", nargs="+", type=Path, metavar="RAW", help="raw documents of runs")
    parser.add_argument("--out", type=Path, default=EVIDENCE, metavar="DIR", help="where they go (default evidence)")
    parser.add_argument("--commit", default="", help="the commit of documents that name none (default this tree's)")
    args = parser.parse_args(argv)
    for file in args.files:
        try:
            paths = write_summaries({"commit": args.commit or commit(), **read_document(file)}, args.out)
        except (OSError, ValueError) as error:
            parser.error(f"{file}: {error}")
        print(f"{file}: {', '.join(map(str, paths)) or 'nothing to summarise'}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
