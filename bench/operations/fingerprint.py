"""Sizes and baselines of the fingerprint family."""

from bench.operations.table import Benchmark

#: the last are parameters and states of the large GPT of the examples, about
SIZES = [{"lengths": [2**16] * 100}, {"lengths": [2**24]}, {"lengths": [2**28]}, {"lengths": [147456] * 225}]

BENCHMARKS = {"fingerprint": Benchmark(sizes=SIZES)}
