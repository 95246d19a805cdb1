"""Shape functions of the signature grammar and the checks.

Each has a twin of the same name in ``native/src/core/shapes.h`` (``tl_drop`` for :func:`drop`), which the generated entry
points call. Lists are outermost-first.
"""

import math
from collections.abc import Sequence

import numpy as np


def rank(dims: Sequence[int]) -> int:
    """Number of axes."""
    return len(dims)


def drop(dims: Sequence[int], axis: int) -> list[int]:
    """`dims` without `axis`; unchanged where there is no such axis."""
    return [d for i, d in enumerate(dims) if i != axis]


def keep(dims: Sequence[int], axes: int) -> list[int]:
    """`dims` without the axes k where bit k of `axes` is set."""
    return [d for k, d in enumerate(dims) if not axes >> k & 1]


def are_axes(dims: Sequence[int], axes: int) -> bool:
    """Whether the set bits of `axes` are those of axes of `dims`."""
    return axes >> len(dims) == 0


def none_empty(dims: Sequence[int], axes: int) -> bool:
    """Whether none of the axes k where bit k of `axes` is set has size 0."""
    return all(d > 0 or not axes >> k & 1 for k, d in enumerate(dims))


def swap(dims: Sequence[int], depth: int) -> list[int]:
    """`dims` with axes `depth` and `depth + 1` exchanged; unchanged where there are no such axes."""
    out = list(dims)
    if depth + 1 < len(out):
        out[depth], out[depth + 1] = out[depth + 1], out[depth]
    return out


def swapped_axes(dims: Sequence[int], depth: int) -> list[int]:
    """The axes 0, 1, ... of `dims` with `depth` and `depth + 1` exchanged, as :func:`swap`."""
    return swap(range(len(dims)), depth)


def is_permutation(dims: Sequence[int], axes: Sequence[int]) -> bool:
    """Whether `axes` names every axis of `dims` once."""
    return sorted(axes) == list(range(len(dims)))


def permuted(dims: Sequence[int], axes: Sequence[int]) -> list[int]:
    """The sizes of `axes`; unchanged where these are no permutation of the axes of `dims`."""
    return [dims[k] for k in axes] if is_permutation(dims, axes) else list(dims)


def axis_map_ok(in_dims: Sequence[int], out_dims: Sequence[int], axis_map: Sequence[int]) -> bool:
    """Whether `axis_map` broadcasts `in_dims` to `out_dims`: one entry per output axis, 0 for an inserted axis, k for input
    axis k - 1, whose size is 1 or the output's; no axis is named twice, and those that are not named have size 1."""
    read = [k for k in axis_map if k]
    if len(axis_map) != len(out_dims) or len(set(read)) != len(read) or any(k > len(in_dims) for k in read):
        return False
    return all(n == 1 for k, n in enumerate(in_dims, 1) if k not in read) and all(
        k == 0 or in_dims[k - 1] in (1, out) for k, out in zip(axis_map, out_dims, strict=True)
    )


def slices_ok(
    whole: Sequence[int], part: Sequence[int], starts: Sequence[int], steps: Sequence[int], reversed: int
) -> bool:
    """Whether a slice of an array `whole` has the shape `part`: axis k takes the indices starts[k] ± i·steps[k] for i < part[k],
    minus where bit k of `reversed` is set, all of them indices of the axis; steps are at least 1, and starts at most the size."""
    if not len(whole) == len(part) == len(starts) == len(steps) or reversed >> len(whole) or not positive(steps):
        return False
    for k, (size, count, start, step) in enumerate(zip(whole, part, starts, steps, strict=True)):
        room = start if reversed >> k & 1 else size - 1 - start
        if start > size or (count > 0 and (start == size or (count - 1) * step > room)):
            return False
    return True


def all_below(values: Sequence[int], bound: int) -> bool:
    """Whether every element of a host array of unsigned integers is below `bound`; true for an empty one."""
    return len(values) == 0 or int(np.max(values)) < bound


def extent(*axes: int) -> int:
    """Elements of a buffer up to the last one of a strided array: 1 + Σ (length - 1)·stride over its axes, which are given as
    (length, stride, length, stride, ...); 0 where an axis is empty. In C at most 2^63."""
    lengths, strides = axes[::2], axes[1::2]
    if not all(lengths):
        return 0
    return 1 + sum((int(n) - 1) * int(s) for n, s in zip(lengths, strides, strict=True))


def given(array: object) -> bool:
    """Whether the caller passes the optional input `array`. In C: whether its handle is not NULL."""
    return array is not None


def pool_size(size: int, kernel: int, stride: int, padding: int) -> int:
    """Windows of `kernel` cells that start `stride` apart on an axis of `size` cells with `padding` more on either side:
    (size + 2*padding - kernel) // stride + 1; 0 where none fits, the axis is empty or the stride is 0."""
    if size == 0 or stride == 0 or size + 2 * padding < kernel:
        return 0
    return (size + 2 * padding - kernel) // stride + 1


def pool_out(spatial: Sequence[int], kernel: Sequence[int], stride: Sequence[int], padding: Sequence[int]) -> list[int]:
    """:func:`pool_size` axis by axis; unchanged where the lists differ in length."""
    if not len(spatial) == len(kernel) == len(stride) == len(padding):
        return list(spatial)
    return [pool_size(*axis) for axis in zip(spatial, kernel, stride, padding, strict=True)]


def pool_ok(spatial: Sequence[int], kernel: Sequence[int], stride: Sequence[int], padding: Sequence[int]) -> bool:
    """Whether every axis has at least one window and a window has fewer than 2^32 cells, padded ones included."""
    if not 1 <= len(spatial) == len(kernel) == len(stride) == len(padding):
        return False
    return positive(pool_out(spatial, kernel, stride, padding)) and math.prod(int(k) for k in kernel) < 2**32


def positive(dims: Sequence[int]) -> bool:
    """Whether every entry is at least 1."""
    return all(d >= 1 for d in dims)


#: sizes of 2^32 and more are reported as this, which no buffer can have
TOO_LARGE = 2**32
#: the axes that an operation takes
MOST_AXES = 8


def conv_size(size: int, kernel: int, stride: int, padding: int) -> int:
    """Outputs of a convolution along one axis: ⌊(size + 2·padding - kernel) / stride⌋ + 1; 0 where the kernel does not fit
    or an argument that must be positive is 0, at most 2^32."""
    if size == 0 or kernel == 0 or stride == 0 or size + 2 * padding < kernel:
        return 0
    return min((size + 2 * padding - kernel) // stride + 1, TOO_LARGE)


def conv_transpose_size(size: int, kernel: int, stride: int, padding: int) -> int:
    """Outputs of a transposed convolution along one axis: (size - 1)·stride + kernel - 2·padding; 0 where that is not
    positive or an argument that must be is 0, at most 2^32."""
    if size == 0 or kernel == 0 or stride == 0 or (size - 1) * stride + kernel <= 2 * padding:
        return 0
    return min((size - 1) * stride + kernel - 2 * padding, TOO_LARGE)


def conv_out(spatial: Sequence[int], kernel: Sequence[int], stride: Sequence[int], padding: Sequence[int]) -> list[int]:
    """:func:`conv_size` per axis, for as many axes as all four lists have."""
    return [conv_size(*axis) for axis in zip(spatial, kernel, stride, padding, strict=False)]


def conv_transpose_out(
    spatial: Sequence[int], kernel: Sequence[int], stride: Sequence[int], padding: Sequence[int]
) -> list[int]:
    """:func:`conv_transpose_size` per axis, for as many axes as all four lists have."""
    return [conv_transpose_size(*axis) for axis in zip(spatial, kernel, stride, padding, strict=False)]


def conv_ok(spatial: Sequence[int], kernel: Sequence[int], stride: Sequence[int], padding: Sequence[int]) -> bool:
    """Whether the lists are a convolution's: equal ranks from 1 to 8, every output size from 1 to 2^32 - 1."""
    same = 1 <= len(spatial) <= MOST_AXES and len(spatial) == len(kernel) == len(stride) == len(padding)
    return same and all(1 <= n < TOO_LARGE for n in conv_out(spatial, kernel, stride, padding))


def conv_transpose_ok(
    spatial: Sequence[int], kernel: Sequence[int], stride: Sequence[int], padding: Sequence[int]
) -> bool:
    """The same for a transposed convolution."""
    same = 1 <= len(spatial) <= MOST_AXES and len(spatial) == len(kernel) == len(stride) == len(padding)
    return same and all(1 <= n < TOO_LARGE for n in conv_transpose_out(spatial, kernel, stride, padding))


def conv_grouped_size(size: int, kernel: int, stride: int, dilation: int, low: int, high: int) -> int:
    """Outputs of a dilated convolution along one axis: ⌊(size + low + high - dilation·(kernel - 1) - 1) / stride⌋ + 1; 0 where
    the kernel does not fit or an argument that must be positive is 0, at most 2^32."""
    room = size + low + high - dilation * (kernel - 1) - 1
    if size == 0 or kernel == 0 or stride == 0 or dilation == 0 or room < 0:
        return 0
    return min(room // stride + 1, TOO_LARGE)


def conv_transpose_grouped_size(
    size: int, kernel: int, stride: int, dilation: int, low: int, high: int, extra: int
) -> int:
    """Outputs of a dilated transposed convolution along one axis: (size - 1)·stride + dilation·(kernel - 1) + 1 + extra - low -
    high; 0 where that is not positive or an argument that must be is 0, at most 2^32."""
    if size == 0 or kernel == 0 or stride == 0 or dilation == 0:
        return 0
    return min(max((size - 1) * stride + dilation * (kernel - 1) + 1 + extra - low - high, 0), TOO_LARGE)


def conv_grouped_out(*lists: Sequence[int]) -> list[int]:
    """:func:`conv_grouped_size` per axis, for as many axes as all six lists have."""
    return [conv_grouped_size(*axis) for axis in zip(*lists, strict=False)]


def conv_transpose_grouped_out(*lists: Sequence[int]) -> list[int]:
    """:func:`conv_transpose_grouped_size` per axis, for as many axes as all seven lists have."""
    return [conv_transpose_grouped_size(*axis) for axis in zip(*lists, strict=False)]


def conv_grouped_ok(*lists: Sequence[int]) -> bool:
    """Whether the lists are a convolution's: equal ranks from 1 to 8, every output size from 1 to 2^32 - 1."""
    same = len({len(values) for values in lists}) == 1 and 1 <= len(lists[0]) <= MOST_AXES
    return same and all(1 <= n < TOO_LARGE for n in conv_grouped_out(*lists))


def conv_transpose_grouped_ok(*lists: Sequence[int]) -> bool:
    """The same for a transposed convolution."""
    same = len({len(values) for values in lists}) == 1 and 1 <= len(lists[0]) <= MOST_AXES
    return same and all(1 <= n < TOO_LARGE for n in conv_transpose_grouped_out(*lists))


#: what expressions of the grammar may call, by name
FUNCTIONS = {
    function.__name__: function for function in (
        rank, drop, keep, are_axes, none_empty, swap, swapped_axes, is_permutation, permuted, axis_map_ok, slices_ok,
        all_below, extent, given, positive, conv_size, conv_transpose_size,
        conv_out, conv_transpose_out, conv_ok, conv_transpose_ok, conv_grouped_size,
        conv_transpose_grouped_size, conv_grouped_out, conv_transpose_grouped_out, conv_grouped_ok,
        conv_transpose_grouped_ok, pool_size, pool_out, pool_ok)
}  # fmt: skip
