"""The probe: the order in which operations add, against the height that their bounds assume.

A tree that is higher than declared fails, as do answers that fit no tree.
"""

from collections.abc import Sequence
from typing import Any

from audit.queries import Calls, Query, Target
from audit.targets import targets
from audit.trees import NoTree, depth, reveal
from tlrt._terminal import Progress
from tlrt.verify.run import Runtime

#: numbers of summands: primes, powers of two and their neighbours
FULL = (1, 2, 3, 5, 31, 32, 33, 127, 129, 257, 1021, 1025, 4099, 16411)
SHORT = (1, 2, 5, 33, 129)
#: up to this many leaves the whole tree is found, beyond it the depth of some leaves
MAX_WHOLE = 2100
#: leaves whose depth is found: the ends, the middle and some between
SAMPLES = (0.0, 1.0, 0.5, 0.31, 0.77)
#: beyond this many summands only the sums of :data:`LONG_SUMS` are asked, for the depth of two leaves
MAX_SAMPLED = 8192
#: one sum of every kind of tree whose order changes with great length
LONG_SUMS = {("reduce_sum_axis1", "out"), ("reduce_sum_axis0", "out"), ("softmax", "gx"), ("layer_norm", "mean"),
         ("matmul", "out, m=64 p=65"), ("conv2d", "out, 1x1")}  # fmt: skip


def _sample_leaves(n: int) -> list[int]:
    return sorted({int(s * (n - 1)) for s in (SAMPLES if n <= MAX_SAMPLED else (0.0, 0.5))})


def _measure_height(query: Query) -> dict[str, Any]:
    """The height of one query's tree, whole or as the greatest of some depths."""
    n = query.leaves
    if n <= MAX_WHOLE:
        tree = reveal(n, query.meet)
        return {"height": tree.height, "fan_in": tree.fan_in, "found": "whole"}
    leaves = _sample_leaves(n)
    return {
        "height": max(depth(n, leaf, query.meet) for leaf in leaves), "fan_in": None, "found": f"{len(leaves)} leaves",
    }  # fmt: skip


def probe(
    devices: Sequence[str], chosen: Sequence[str] | None = None, sizes: Sequence[int] = FULL, kernels: Any = None
) -> dict[str, Any]:
    """Probes every target on every device; one dictionary. A sum has one row, which is that of the longest tree that fits, with
    all lengths that do; a length whose tree does not fit has a row of its own."""
    rows: list[dict[str, Any]] = []
    asked = targets(chosen)
    progress = Progress(float(len(asked) * len(devices)), "sums")
    for device in devices:
        calls = Calls(Runtime(device, kernels))
        for target in asked:
            found: list[dict[str, Any]] = []
            for n in target.sizes or sizes:
                if target.sizes and n > max(sizes) * 8:
                    continue
                row = _row(target, calls, n)
                if row is not None:
                    found.append({"op": target.op, "what": target.what, "device": device, **row})
            rows += _merge_lengths(found)
            progress.advance(1.0, f"{target.op} {target.what} on {device}")
    progress.close()
    return {"sizes": list(sizes), "sums": rows}


def _merge_lengths(rows: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """The row of the longest tree that fits, with the lengths of all that do, and the rows of those that do not."""
    good = [r for r in rows if r["verdict"] == "pass"]
    merged = [{**max(good, key=lambda r: r["leaves"]), "lengths": [r["leaves"] for r in good]}] if good else []
    return merged + [{**r, "lengths": [r["leaves"]]} for r in rows if r["verdict"] != "pass"]


def _row(target: Target, calls: Calls, n: int) -> dict[str, Any] | None:
    if n > MAX_SAMPLED and (target.op, target.what) not in LONG_SUMS:
        return None
    query = target.build(calls, n)
    if query is None or (query.rows == 1 and n > 1025):  # one question a call
        return None
    row: dict[str, Any] = {
        "leaves": query.leaves, "values": query.values, "declared": query.height, "extra": query.extra,
    }  # fmt: skip
    try:
        row |= _measure_height(query)
    except Exception as error:  # a sum that raises on legal numbers is a finding, not the end of the run
        found = str(error) if isinstance(error, NoTree) else f"{type(error).__name__}: {error}"
        return {**row, "height": None, "fan_in": None, "found": found, "verdict": "fail"}
    # one summand is no sum: its product or quotient is all there is
    fits = row["height"] == 0 or row["height"] + query.extra <= query.height
    return {**row, "verdict": "pass" if fits else "fail"}
