"""The sizes at which the CPU kernels of a family change what they do, which verify draws cases next to.

A family exports the few that decide: a tile, a chunk of a sum, a limit of the stack or of a task. Each belongs to a length: a
dimension of the rows, one of their `lengths` (:class:`tlspec.registry.Drawing`), or "elements", those of the largest array.
For each there are three geometry classes: less than the size, whole multiples of it, and more with a rest. What is a power of two
drawn cases lie next to anyway; this table makes verify fail where a row's cases do not reach one of the three."""

import math
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

from tlspec.bounds import call_named
from tlspec.case import shape_of
from tlspec.classes import Lengths, tiles
from tlspec.draw.cases import EDGES as CLOSE
from tlspec.draw.cases import SIZES
from tlspec.registry import Op

#: family -> length -> the name of the size in native/src and its value
EDGES: dict[str, dict[str, dict[str, int]]] = {
    "elementwise": {"elements": {"TL_SPAN": 32768}},
    "reduce": {
        "of the axis": {"TL_SUM_LANES": 1024, "TL_SUM_LEAF": 16384, "TL_COLUMN_CHUNK": 128}, "inner": {"TL_COLUMN_TILE": 960},
        "summed": {"TL_CUMSUM_CHUNK": 32}, "reduced": {"TL_FOLD_LANES": 8, "TL_FOLD_SEGMENT": 256}, "elements": {"TASK": 65536},
    },
    "shape": {
        "of the last axis": {"BAND": 32}, "of the result's last axis": {"BAND": 32},
        "of a run": {"SHORT_RUN": 32, "LONG_RUN": 8192},
        "summed": {"TL_SUM_LEAF": 16384, "TL_COLUMN_CHUNK": 128},
        "elements": {"PANEL": 1024, "TASK": 65536},
    },
    "index": {"indices": {"TL_COLUMN_CHUNK": 128, "CHUNK": 32768}, "cols": {"BLOCK_COLUMNS": 512}, "inner": {"COLUMNS": 512},
              "of a row": {"PART": 65536}, "elements": {"CACHED": 65536}},
    "linalg": {"product rows": {"TILE_ROWS": 256}, "inner": {"TL_GEMM_KC": 256, "TL_CHAIN_SEGMENT": 2048},
               "product columns": {"TILE_COLUMNS": 512}},
    "softmax": {"rows": {"TL_ROWS_MANY": 64}, "cols": {"TL_ROW_FEW": 2048, "TL_SUM_LEAF": 16384},
                "elements": {"TL_ROW_TASK": 65536}},
    "norm": {"rows": {"TL_ROWS_MANY": 64, "TL_COLUMN_CHUNK": 128},
             "cols": {"TILE": 384, "TL_ROW_FEW": 2048, "TL_SUM_LEAF": 16384},
             "elements": {"TL_ROW_TASK": 65536}},
    "loss": {"n": {"TL_SUM_LEAF": 16384}, "cols": {"TL_SUM_LEAF": 16384}},
    "conv": {"inner": {"TL_GEMM_KC": 256}, "positions": {"TILE_COLUMNS": 256}, "out_channels": {"TILE_ROWS": 256}},
    "pool": {"width": {"LONG_ROW": 64}, "elements": {"PLANE": 16384, "TASK": 65536}},
    "attention": {"n": {"TILE": 64, "BLOCK": 96}, "keys": {"TILE": 64}, "rows": {"BLOCK": 96}, "d": {"TL_PANEL": 12},
                  "positions": {"RUN": 4096}},
    "scan": {"seq_len": {"TL_COLUMN_CHUNK": 128}, "state": {"NARROW": 16, "WIDTH": 1024}, "cells": {"CELL_SPAN": 512}},
    "spectral": {"n": {"TL_FFT_DIRECT": 2048}, "batch": {"ROWS_ALONE": 4}, "width": {"CHANNELS": 64}},
    "random": {"n": {"TL_SPAN": 16384}},
    "optim": {"elements": {"TL_SPAN": 16384}},
    "fingerprint": {"elements": {"TL_SPAN": 16384}},
}  # fmt: skip


def _read(name: str) -> Callable[..., int]:
    return lambda **values: values[name]


def lengths_of(op: Op) -> Lengths:
    """The lengths of a row by name: 0 in a call with an empty array."""
    sig = op.signature
    arrays = sig.inputs + sig.outputs

    def largest(**values: Any) -> int:
        return max(math.prod(shape_of(a, values)) for a in arrays)

    def filled(length: Callable[..., int]) -> Callable[..., int]:
        return lambda **values: call_named(length, values) * all(math.prod(shape_of(a, values)) for a in arrays)

    if sig.lists:
        return {"elements": lambda lengths: max(lengths, default=0)}
    named: Lengths = {name: _read(name) for name in sig.dims if not name.startswith("*")}
    return {n: filled(f) for n, f in {"elements": largest, **named, **op.drawing.lengths}.items()}


def with_edges(op: Op, edges: Mapping[str, Mapping[str, Mapping[str, int]]] = EDGES) -> Op:
    """The row with the classes of its family's sizes besides its own."""
    found, sig = edges.get(op.family, {}), op.signature
    classes = dict(op.drawing.classes)
    # an elementwise row of many arrays has no room for two tiles of each
    most = SIZES[CLOSE] // (2 * len(sig.inputs + sig.outputs)) if sig.elementwise else SIZES[CLOSE]
    for name, length in lengths_of(op).items():
        for size in (n for n in found.get(name, {}).values() if n <= most):
            classes |= tiles(name, length, size)
    return replace(op, drawing=replace(op.drawing, classes=classes))
