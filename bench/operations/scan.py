"""Sizes and baselines of the scan family."""

from typing import Any

from bench.operations.table import Benchmark

#: the coefficients of the benchmark's long runs are below 1 in magnitude: those of N(0, 1) data grow without limit
_LENGTHS = [
    {"seq_len": steps, "state": state, "A": (-1.0, 1.0)}
    for steps, state in ((8192, 16384), (2048, 2048), *((10**k, 64) for k in (3, 4, 5, 6)))
]

#: a step of a language model's layer, and of a wide one
_CELLS = [{"rows": 64, "units": 1024}, {"rows": 4096, "units": 2048}]


def _lstm(torch: Any, x: Any, a: Any, c: Any) -> Any:
    i, f, g, o = (x + a).unbind(1)
    i, f, g, o = i.sigmoid(), f.sigmoid(), g.tanh(), o.sigmoid()
    cell = f * c + i * g
    return torch.stack([i, f, g, o], 1), cell, o * cell.tanh()


def _gru(torch: Any, x: Any, a: Any, bias: Any, h: Any) -> Any:
    (x_r, x_z, x_n), (r, z, inner) = x.unbind(1), (a if bias is None else a + bias).unbind(1)
    r, z = (x_r + r).sigmoid(), (x_z + z).sigmoid()
    n = (x_n + r * inner).tanh()
    return torch.stack([r, z, n], 1), inner, n + z * (h - n)


BENCHMARKS = {
    "selective_scan_diag": Benchmark(sizes=_LENGTHS),
    "selective_scan_diag_var": Benchmark(sizes=_LENGTHS),
    "lstm_cell": Benchmark(sizes=_CELLS, torch=_lstm),
    "gru_cell": Benchmark(sizes=_CELLS, torch=_gru),
}
