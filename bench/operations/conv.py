"""Sizes and baselines of the conv family."""

import math

from bench.operations.table import Benchmark
from tlspec.bounds import call_named
from tlspec.ops.conv import AXES, flatten_axes
from tlspec.shapes import conv_grouped_out, conv_out


def _conv_flops(batch, in_channels, out_channels, spatial, kernel, stride, padding):
    positions = math.prod(conv_out(spatial, kernel, stride, padding))
    return 2.0 * batch * in_channels * out_channels * math.prod(kernel) * positions


def _conv_transpose_flops(batch, in_channels, out_channels, spatial, kernel):
    return 2.0 * batch * in_channels * out_channels * math.prod(kernel) * math.prod(spatial)


def _from_axes(flops):
    """The same for a row whose axes are parameters of their own."""
    return lambda **values: call_named(
        flops, {**values, **{to: [values[f"{n}_h"], values[f"{n}_w"]] for n, to in AXES.items()}}
    )


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


def _grouped(batch, groups, channels, spatial, kernel=3, stride=1, dilation=1, rank=2):
    """A benchmark size of `groups` groups of `channels` in and out, padded to keep its positions."""
    pad = [dilation * (kernel // 2)] * rank
    return {
        "batch": batch, "groups": groups, "in_channels": channels, "out_channels": channels, "spatial": [spatial] * rank,
        "kernel": [kernel] * rank, "stride": [stride] * rank, "dilation": [dilation] * rank, "padding_low": pad,
        "padding_high": pad,
    }  # fmt: skip


#: depthwise layers of MobileNet, a strided and a wide one, groups of ResNeXt, and a dilated layer of DeepLab
GROUPED = [_grouped(32, 144, 1, 56), _grouped(32, 240, 1, 28, 5, 2), _grouped(32, 96, 1, 56, 7), _grouped(32, 32, 4, 56),
           _grouped(8, 1, 256, 64, dilation=2)]  # fmt: skip


def _torch_grouped(torch, x, w, b, stride, dilation, padding_low, *, transposed=False, output_padding=None):
    groups, f = x.shape[1], torch.nn.functional
    y = f"conv_transpose{len(stride)}d" if transposed else f"conv{len(stride)}d"
    more = {"output_padding": tuple(output_padding)} if transposed else {}
    lists = {"stride": tuple(stride), "dilation": tuple(dilation), "padding": tuple(padding_low)}
    bias = None if b is None else b.flatten()
    return getattr(f, y)(x.flatten(1, 2), w.flatten(0, 1), bias, groups=groups, **lists, **more)


def _torch_grouped_vjp(torch, x, w, g, want, stride, dilation, padding_low, *, transposed=False, output_padding=None):
    rank, groups = len(stride), x.shape[1]
    return torch.ops.aten.convolution_backward(
        g.flatten(1, 2), x.flatten(1, 2), w.flatten(0, 1), [g.shape[1] * g.shape[2]], stride, padding_low, dilation,
        transposed, output_padding or [0] * rank, groups, list(want),
    )  # fmt: skip


def _grouped_flops(
    batch, groups, in_channels, out_channels, spatial, kernel, stride, dilation, padding_low, padding_high
):
    size = conv_grouped_out(spatial, kernel, stride, dilation, padding_low, padding_high)
    return 2.0 * batch * groups * in_channels * out_channels * math.prod(kernel) * math.prod(size)


def _grouped_transpose_flops(batch, groups, in_channels, out_channels, spatial, kernel):
    return 2.0 * batch * groups * in_channels * out_channels * math.prod(kernel) * math.prod(spatial)


BENCHMARKS = {
    "conv_grouped": Benchmark(sizes=GROUPED, flops=_grouped_flops, torch=_torch_grouped, torch_vjp=_torch_grouped_vjp),
    "conv_transpose_grouped": Benchmark(
        sizes=[_grouped(32, 64, 1, 28, 3, 2) | {"output_padding": [1, 1]}], flops=_grouped_transpose_flops,
        torch=lambda torch, x, w, b, stride, dilation, padding_low, output_padding: _torch_grouped(
            torch, x, w, b, stride, dilation, padding_low, transposed=True, output_padding=output_padding
        ),
        torch_vjp=lambda torch, x, w, g, want, stride, dilation, padding_low, output_padding: _torch_grouped_vjp(
            torch, x, w, g, want, stride, dilation, padding_low, transposed=True, output_padding=output_padding
        )),
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
