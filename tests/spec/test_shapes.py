"""The functions of shapes against counts of windows, and at the ends of what they accept."""

import itertools
from typing import Any

import pytest

from tlspec import shapes

pytestmark = pytest.mark.every_choice


def test_sizes_are_counts_of_windows() -> None:
    for size, kernel, stride, padding in itertools.product(range(6), range(5), range(4), range(4)):
        wide = size + 2 * padding
        starts = [o for o in range(0, wide + 1, stride or 1) if o + kernel <= wide] if size and stride else []
        assert shapes.pool_size(size, kernel, stride, padding) == len(starts)
        assert shapes.conv_size(size, kernel, stride, padding) == (len(starts) if kernel else 0)
        reached = max((i * stride + kernel for i in range(size)), default=0) if kernel and stride else 0
        assert shapes.conv_transpose_size(size, kernel, stride, padding) == max(reached - 2 * padding, 0)
    for size, kernel, stride, dilation, low, high in itertools.product(range(5), range(4), *[range(3)] * 4):
        reach, given = dilation * (kernel - 1) + 1, size and kernel and stride and dilation
        fitting = (
            [o for o in range(0, size + low + high, stride or 1) if o + reach <= size + low + high] if given else []
        )
        assert shapes.conv_grouped_size(size, kernel, stride, dilation, low, high) == len(fitting)
        for extra in range(2):
            reached = (size - 1) * stride + reach + extra - low - high if given else 0
            found = shapes.conv_transpose_grouped_size(size, kernel, stride, dilation, low, high, extra)
            assert found == len(range(reached))
    for most in (2**32 - 1, 2**32, 2**33):
        assert shapes.conv_grouped_size(most - 2, 1, 1, 1, 1, 1) == min(most, 2**32)
        assert shapes.conv_transpose_grouped_size(most - 2, 1, 1, 1, 0, 0, 2) == min(most, 2**32)
    assert (
        shapes.conv_grouped_out([7, 9], *[[1]] * 3, [0], [0])
        == shapes.conv_transpose_grouped_out([7, 9], *[[1]] * 3, *[[0]] * 3)
        == [7]
    )
    assert shapes.pool_out([5, 6], [2, 3], [1, 2], [0, 1]) == shapes.conv_out([5, 6], [2, 3], [1, 2], [0, 1]) == [4, 3]
    assert shapes.conv_transpose_out([5, 6], [2, 3], [1, 2], [0, 1]) == [6, 11]
    assert shapes.pool_out([5], [2, 3], [1], [0]) == [5]  # unchanged where ranks differ
    assert shapes.conv_grouped_out([7, 9], [3, 2], [2, 1], [2, 3], [1, 0], [0, 2]) == [2, 8]
    assert shapes.conv_transpose_grouped_out([2, 8], [3, 2], [2, 1], [2, 3], [1, 0], [0, 2], [1, 0]) == [7, 9]
    assert shapes.conv_size(2**32, 1, 1, 0) == shapes.conv_size(2**33, 1, 1, 0) == 2**32
    assert shapes.conv_size(2**32 - 1, 1, 1, 0) == shapes.conv_transpose_size(2**32 - 1, 1, 1, 0) == 2**32 - 1
    assert shapes.conv_transpose_size(2**31, 2, 2, 0) == 2**32


ONE, TWO = ([4], [2], [1], [0]), ([4, 4], [2, 2], [1, 1], [0, 0])
#: function -> what it accepts and what it refuses
ACCEPTED: dict[str, tuple[list[Any], list[Any]]] = {
    "given": ([(0,), (False,), ([],)], [(None,)]),
    "positive": ([([],), ([1],), ([3, 1],)], [([0],), ([1, 0],), ([0, 2],)]),
    "all_below": ([([], 0), ([1, 0], 2), ([2**32 - 2], 2**32 - 1)], [([0], 0), ([0, 2], 2), ([3, 0], 2)]),
    "is_permutation": ([([], []), ([3], [0]), ([3, 0], [1, 0])], [([3], []), ([3], [1]), ([3, 4], [0, 0]), ([3, 4], [0, 2])]),
    "are_axes": ([([], 0), ([3], 1), ([3, 0], 3)], [([], 1), ([3], 2), ([3, 0], 4), ([3], 2**32 - 1)]),
    "none_empty": ([([], 0), ([0], 0), ([3, 0], 1)], [([0], 1), ([3, 0], 2), ([0, 3], 3)]),
    "axis_map_ok": (
        [([], [], []), ([], [3], [0]), ([3], [2, 3], [0, 1]), ([3], [3, 2], [1, 0]), ([2, 3], [3, 2], [2, 1]), ([1], [5], [1]),
         ([1, 2], [2], [2]), ([2, 1], [2, 7], [1, 2]), ([0], [0], [1])],
        [([3], [3], [2]), ([3], [3, 3], [1, 1]), ([3], [4], [1]), ([3], [], []), ([2, 3], [3], [2]), ([3], [3], []),
         ([3], [3], [1, 0]), ([5], [1], [1]), ([0], [5], [1]), ([0], [3], [0]), ([0, 3], [3], [2])],
    ),
    "pool_ok": (
        [ONE, TWO, ([1], [1], [9], [0]), ([1], [3], [1], [1]), ([1] * 9, [1] * 9, [1] * 9, [0] * 9),
         ([2**16] * 2, [2**16, 2**16 - 1], [1] * 2, [0] * 2)],
        [([], [], [], []), ([4], [5], [1], [0]), ([0], [1], [1], [1]), ([4], [2], [0], [0]), ([4, 4], [2], [1], [0]),
         ([4], [2, 2], [1], [0]), ([4], [2], [1, 1], [0]), ([4], [2], [1], [0, 0]), ([2**16] * 2, [2**16] * 2, [1] * 2, [0] * 2)],
    ),
    "conv_ok": (
        [ONE, TWO, ([1], [3], [1], [1]), ([1] * 8, [1] * 8, [1] * 8, [0] * 8), ([2**32 - 1], [1], [1], [0])],
        [([], [], [], []), ([4], [5], [1], [0]), ([4], [0], [1], [0]), ([0], [1], [1], [1]), ([4], [2], [0], [0]),
         ([1] * 9, [1] * 9, [1] * 9, [0] * 9), ([4, 4], [2], [1], [0]), ([4], [2, 2], [1], [0]), ([4], [2], [1, 1], [0]),
         ([4], [2], [1], [0, 0]), ([2**32], [1], [1], [0]), ([4, 4], [2, 5], [1, 1], [0, 0])],
    ),
    "conv_transpose_ok": (
        [ONE, TWO, ([1], [3], [1], [1]), ([1] * 8, [1] * 8, [1] * 8, [0] * 8), ([2**32 - 1], [1], [1], [0])],
        [([], [], [], []), ([1], [2], [1], [1]), ([4], [0], [1], [0]), ([0], [1], [1], [0]), ([4], [2], [0], [0]),
         ([1] * 9, [1] * 9, [1] * 9, [0] * 9), ([4, 4], [2], [1], [0]), ([4], [2, 2], [1], [0]), ([4], [2], [1, 1], [0]),
         ([4], [2], [1], [0, 0]), ([2**31], [2], [2], [0]), ([4, 1], [2, 2], [1, 1], [0, 1])],
    ),
    "conv_grouped_ok": (
        [([4], [2], [1], [3], [0], [0]), ([1], [3], [1], [1], [0], [2]), ([4] * 8, [2] * 8, [1] * 8, [2] * 8, [0] * 8, [1] * 8),
         ([2**32 - 1], [1], [1], [2**32 - 1], [0], [0])],
        [([], [], [], [], [], []), ([4], [2], [1], [4], [0], [0]), ([4], [2], [1], [0], [0], [0]), ([4], [2], [0], [1], [0], [0]),
         ([4], [2], [1], [1], [0], [0, 0]), ([4], [2], [1], [1, 1], [0], [0]), ([2**32 - 1], [1], [1], [1], [0], [1]),
         ([1] * 9, [1] * 9, [1] * 9, [1] * 9, [0] * 9, [0] * 9), ([4, 4], [2, 2], [1, 1], [3, 4], [0, 0], [0, 0])],
    ),
    "conv_transpose_grouped_ok": (
        [([4], [2], [1], [3], [0], [6], [0]), ([1], [1], [1], [1], [1], [0], [1]), ([2**31], [1], [2], [1], [0], [0], [0])],
        [([4], [2], [1], [3], [0], [7], [0]), ([4], [2], [1], [0], [0], [0], [0]), ([2**31], [1], [2], [1], [0], [0], [1]),
         ([4], [2], [1], [1], [0], [0], [0, 0]), ([4], [2], [1], [1], [0, 0], [0], [0]), ([], [], [], [], [], [], []),
         ([4, 4], [2, 2], [1, 1], [3, 3], [0, 0], [6, 7], [0, 0])],
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", ACCEPTED)
def test_what_is_accepted(name: str) -> None:
    for wanted, calls in zip((True, False), ACCEPTED[name], strict=True):
        for call in calls:
            assert getattr(shapes, name)(*call) is wanted, call


def test_extent() -> None:
    for batch, rows, columns, *strides in itertools.product(range(4), range(3), range(3), *[range(4)] * 3):
        at = [
            sum(i * s for i, s in zip(place, strides, strict=True))
            for place in itertools.product(range(batch), range(rows), range(columns))
        ]
        axes = itertools.chain(*zip((batch, rows, columns), strides, strict=True))
        assert shapes.extent(*axes) == max(at, default=-1) + 1
    assert shapes.extent(2**32 - 1, 2**32 - 1, 2**32 - 1, 2**32 - 1, 1, 7) == 2 * (2**32 - 2) * (2**32 - 1) + 1


def test_lists() -> None:
    dims = [5, 6, 7]
    assert shapes.rank(dims) == 3 and shapes.rank([]) == 0
    assert [shapes.drop(dims, i) for i in range(4)] == [[6, 7], [5, 7], [5, 6], [5, 6, 7]]
    assert [shapes.keep(dims, axes) for axes in (0, 1, 5, 7)] == [dims, [6, 7], [6], []]
    assert [shapes.swap(dims, i) for i in range(4)] == [[6, 5, 7], [5, 7, 6], [5, 6, 7], [5, 6, 7]]
    assert [shapes.swapped_axes(dims, i) for i in range(3)] == [[1, 0, 2], [0, 2, 1], [0, 1, 2]]
    assert [shapes.permuted(dims, axes) for axes in ([1, 2, 0], [0, 0, 1])] == [[6, 7, 5], dims]
    assert dims == [5, 6, 7] and shapes.swap([], 0) == []
    assert (
        all(shapes.FUNCTIONS[name] is getattr(shapes, name) for name in shapes.FUNCTIONS)
        and len(shapes.FUNCTIONS) == 30
    )


def test_a_slice_takes_indices_of_its_axis_alone() -> None:
    for size, count, start, step in itertools.product(range(5), range(5), range(7), range(4)):
        for back in (0, 1):
            taken = [start + (-i if back else i) * step for i in range(count)]
            fits = step >= 1 and start <= size and all(0 <= i < size for i in taken)
            assert shapes.slices_ok([size], [count], [start], [step], back) == fits, (size, count, start, step, back)
    assert not shapes.slices_ok([3], [1], [0], [1], 2) and not shapes.slices_ok([3], [1, 1], [0], [1], 0)
