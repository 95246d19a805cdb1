"""What the benchmark times each operation at and against: a module per family, an entry per operation."""

import importlib

from bench.operations.table import Benchmark
from tlspec.registry import families

#: by family, then by operation
BENCHMARKS: dict[str, dict[str, Benchmark]] = {
    f: importlib.import_module(f"bench.operations.{f}").BENCHMARKS for f in families()
}


def benchmark_of(name: str) -> Benchmark:
    """The entry of one operation; one without sizes where there is none."""
    return next((entries[name] for entries in BENCHMARKS.values() if name in entries), Benchmark())
