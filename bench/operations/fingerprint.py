"""Sizes and baselines of the fingerprint family."""

from bench.operations.table import Benchmark


def _sizes(count: int, length: int) -> dict[str, object]:
    return {"lengths": [length] * count, "count": count}


#: the last are about the parameters and states of the examples' large GPT
SIZES = [_sizes(100, 2**16), _sizes(1, 2**24), _sizes(1, 2**28), _sizes(225, 147456)]

BENCHMARKS = {"fingerprint": Benchmark(sizes=SIZES)}
