"""What the benchmark times each operation at and against: a module per family, an entry per operation."""

import importlib
from operator import attrgetter
from typing import Any

from bench.operations.table import Benchmark
from tlspec.registry import Op, families, get

#: by family, then by operation
BENCHMARKS: dict[str, dict[str, Benchmark]] = {
    f: importlib.import_module(f"bench.operations.{f}").BENCHMARKS for f in families()
}


def benchmark_of(name: str) -> Benchmark:
    """The entry of one operation; without one what follows from its row."""
    return next((entries[name] for entries in BENCHMARKS.values() if name in entries), None) or derived(get(name))


def derived(row: Op) -> Benchmark:
    """Of an elementwise row: a call of 2^24 elements, with the parameters' defaults, beside the function of PyTorch that the row
    names. Without sizes for other rows."""
    if not row.signature.elementwise or any(p.default is None for p in row.signature.params):
        return Benchmark()
    names = [a.name for a in row.signature.inputs] + [p.name for p in row.signature.params]

    def torch_call(torch: Any, **given: Any) -> Any:
        return attrgetter(row.torch)(torch)(*(given[n] for n in names))

    size = {"n": 2**24, **{p.name: float(p.default or 0) for p in row.signature.params}}
    return Benchmark(sizes=[size], torch=torch_call if row.torch else None)
