"""Sizes and baselines of the spectral family."""

import numpy as np

from bench.operations.table import Benchmark


def _torch_conv(torch, x, wRe, wIm):
    """The layer as models of PyTorch write it; they keep its weights as complex numbers."""
    n, modes, w = len(x), len(wRe), torch.complex(wRe, wIm)

    def layer():
        Z = torch.zeros(n // 2 + 1, x.shape[1], dtype=torch.complex64, device=x.device)
        Z[:modes] = torch.einsum("kc,kco->ko", torch.fft.rfft(x, dim=0)[:modes], w)
        return torch.fft.irfft(Z, n, dim=0)

    return layer


BENCHMARKS = {
    "rfft1d_packed": Benchmark(sizes=[
            {"batch": 1024, "n": 1024}, {"batch": 8192, "n": 8192}, {"batch": 1, "n": 2**20}, {"batch": 64, "n": 65537},
        ], flops=lambda batch, n: 2.5 * batch * n * np.log2(max(n, 2)), numpy=lambda np, x: np.fft.rfft(x),
        torch=lambda torch, x: torch.fft.rfft(x)),
    "irfft1d_packed": Benchmark(
        sizes=[{"batch": 1024, "n": 1024}, {"batch": 8192, "n": 8192}, {"batch": 1, "n": 2**20}],
        flops=lambda batch, n: 2.5 * batch * n * np.log2(max(n, 2)),
        numpy=lambda np, spec, n: np.fft.irfft(spec.view(np.complex64)[..., 0], n),
        torch=lambda torch, spec, n: torch.fft.irfft(torch.view_as_complex(spec), n)),
    "spectral_conv1d_rfft": Benchmark(sizes=[
            {"grid": 8192, "width": 64, "modes": 16}, {"grid": 65536, "width": 128, "modes": 64},
            {"grid": 2**20, "width": 64, "modes": 16},
        ], flops=lambda grid, width, modes: 4.0 * modes * width * (grid + 2 * width), torch=_torch_conv),
}  # fmt: skip
