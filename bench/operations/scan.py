"""Sizes and baselines of the scan family."""

from bench.operations.table import Benchmark

#: the coefficients of the benchmark's long runs are below 1 in magnitude: those of N(0, 1) data grow without limit
_LENGTHS = [
    {"seq_len": steps, "state": state, "A": (-1.0, 1.0)}
    for steps, state in ((8192, 16384), (2048, 2048), *((10**k, 64) for k in (3, 4, 5, 6)))
]

BENCHMARKS = {"selective_scan_diag": Benchmark(sizes=_LENGTHS), "selective_scan_diag_var": Benchmark(sizes=_LENGTHS)}
