"""Sizes and baselines of the conv family."""

import math

from bench.operations.table import Benchmark
from tlspec.bounds import call_named
from tlspec.ops.conv import axes_as_lists, flatten_axes
from tlspec.shapes import conv_out


def _conv_flops(batch, in_channels, out_channels, spatial, kernel, stride, padding):
    positions = math.prod(conv_out(spatial, kernel, stride, padding))
    return 2.0 * batch * in_channels * out_channels * math.prod(kernel) * positions


def _conv_transpose_flops(batch, in_channels, out_channels, spatial, kernel):
    return 2.0 * batch * in_channels * out_channels * math.prod(kernel) * math.prod(spatial)


def _from_axes(flops):
    """The same for a row whose axes are parameters of their own."""
    return lambda **values: call_named(flops, {**values, **call_named(axes_as_lists, values)})


def _size(batch, channels, spatial, kernel=3, stride=1, padding=1, out_channels=None, rank=2):
    """A benchmark size with equal axes."""
    return {
        "batch": batch, "in_channels": channels, "out_channels": out_channels or channels, "spatial": [spatial] * rank,
        "kernel": [kernel] * rank, "stride": [stride] * rank, "padding": [padding] * rank,
    }  # fmt: skip


IMAGES = [_size(1, 64, 56), _size(32, 64, 224), _size(32, 256, 56), _size(32, 512, 28)]

LAYERS = [_size(32, 3, 224, 7, 2, 3, 64), _size(32, 256, 56, 1, 1, 0), _size(32, 128, 56, 3, 2, 1, 256)]

VOLUMES = [_size(4, 64, 32, rank=3)]


def _torch_conv(torch, x, w, b, spatial, stride, padding):
    return getattr(torch.nn.functional, f"conv{len(spatial)}d")(x, w, b, stride, padding)


def _torch_conv_transpose(torch, x, w, b, spatial, stride, padding):
    return getattr(torch.nn.functional, f"conv_transpose{len(spatial)}d")(x, w, b, stride, padding)


def _torch_backward(torch, x, w, g, stride, padding, transposed):
    rank = len(stride)
    return torch.ops.aten.convolution_backward(
        g, x, w, [g.shape[1]], stride, padding, [1] * rank, transposed, [0] * rank, 1, [True, True, True]
    )


BENCHMARKS = {
    "conv": Benchmark(sizes=VOLUMES, flops=_conv_flops, torch=_torch_conv,
        torch_vjp=lambda torch, x, w, g, stride, padding: _torch_backward(torch, x, w, g, stride, padding, False)),
    "conv_transpose": Benchmark(
        sizes=[_size(4, 64, 16, 4, 2, 1, rank=3)], flops=_conv_transpose_flops, torch=_torch_conv_transpose,
        torch_vjp=lambda torch, x, w, g, stride, padding: _torch_backward(torch, x, w, g, stride, padding, True)),
    "conv2d": Benchmark(sizes=[flatten_axes(s) for s in IMAGES + LAYERS], flops=_from_axes(_conv_flops),
        torch=lambda torch, x, w, b, stride_h, stride_w, padding_h, padding_w: torch.nn.functional.conv2d(
            x, w, b, (stride_h, stride_w), (padding_h, padding_w)
        ),
        torch_vjp=lambda torch, x, w, g, stride_h, stride_w, padding_h, padding_w: _torch_backward(
            torch, x, w, g, (stride_h, stride_w), (padding_h, padding_w), False
        )),
    "conv_transpose2d": Benchmark(
        sizes=[flatten_axes(_size(32, 256, 28, 4, 2, 1, 128)), flatten_axes(_size(32, 64, 56))],
        flops=_from_axes(_conv_transpose_flops),
        torch=lambda torch, x, w, b, stride_h, stride_w, padding_h, padding_w: torch.nn.functional.conv_transpose2d(
            x, w, b, (stride_h, stride_w), (padding_h, padding_w)
        ),
        torch_vjp=lambda torch, x, w, g, stride_h, stride_w, padding_h, padding_w: _torch_backward(
            torch, x, w, g, (stride_h, stride_w), (padding_h, padding_w), True
        )),
}  # fmt: skip
