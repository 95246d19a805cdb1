"""Sizes and baselines of the pool family."""

from bench.operations.table import Benchmark
from tlspec.ops.conv import flatten_axes

_SHAPES = (
    (256, [512, 512], [2, 2], [2, 2], [0, 0]),
    (256, [512, 512], [3, 3], [2, 2], [1, 1]),
    (256, [512, 512], [3, 3], [1, 1], [1, 1]),
    (64, [32, 64, 64], [2, 2, 2], [2, 2, 2], [0, 0, 0]),
)


def _sizes(flat=False, **extra):
    rows = [
        {"channels": c, "spatial": n, "kernel": k, "stride": s, "padding": p, **extra}
        for c, n, k, s, p in _SHAPES
    ]  # fmt: skip
    return [flatten_axes(r) for r in rows if len(r["spatial"]) == 2][:2] if flat else rows


def _torch_pool(kind):
    def run(torch, x, kernel, stride, padding):
        pool = getattr(torch.nn.functional, f"{kind}_pool{len(kernel)}d")
        return pool(x[None], tuple(kernel), tuple(stride), tuple(padding))[0]

    return run


def _torch_pool2d(kind):
    def run(torch, x, kernel_h, kernel_w, stride_h, stride_w, padding_h, padding_w):
        return _torch_pool(kind)(torch, x, (kernel_h, kernel_w), (stride_h, stride_w), (padding_h, padding_w))

    return run


BENCHMARKS = {
    "max_pool": Benchmark(sizes=_sizes(), torch=_torch_pool("max")),
    "max_pool2d": Benchmark(sizes=_sizes(flat=True), torch=_torch_pool2d("max")),
    "avg_pool": Benchmark(sizes=_sizes(), torch=_torch_pool("avg")),
    "avg_pool2d": Benchmark(sizes=_sizes(flat=True), torch=_torch_pool2d("avg")),
    "smooth_max_pool": Benchmark(sizes=_sizes(beta=4.0)),
    "smooth_max_pool2d": Benchmark(sizes=_sizes(flat=True, beta=4.0)),
}  # fmt: skip
