"""Pools, padding, interpolation and grids in a block: right values and two derivatives, the same bits everywhere."""

from typing import Any

import pytest

from tests import DEVICES
from tests.runtime.torch_cases import check_route, drawn, mode, place, torch

F = torch.nn.functional


def kept_format(x: Any) -> Any:
    return x.to(memory_format=torch.channels_last)


#: of a tensor (2, 3, 7, 6)
IMAGES: dict[str, Any] = {
    "avg_pool": lambda x: F.avg_pool2d(x, 3, 2, 1),
    "avg_pool, channels last": lambda x: F.avg_pool2d(kept_format(x), 3, 2, 1, count_include_pad=False),
    "avg_pool of one image": lambda x: F.avg_pool2d(x[0], 3, 2, 1, ceil_mode=True),
    "avg_pool1d": lambda x: F.avg_pool1d(x[0], 3, 2, 1, ceil_mode=True, count_include_pad=False),
    "avg_pool3d": lambda x: F.avg_pool3d(x[:, None], 2, 2, 1),
    "adaptive_avg_pool to one": lambda x: F.adaptive_avg_pool2d(x, 1),
    "adaptive_avg_pool": lambda x: F.adaptive_avg_pool2d(x, (3, 4)),
    "adaptive_avg_pool to more": lambda x: F.adaptive_avg_pool2d(kept_format(x), (9, 5)),
    "adaptive_avg_pool1d": lambda x: F.adaptive_avg_pool1d(x[0], 4),
    "adaptive_avg_pool3d": lambda x: F.adaptive_avg_pool3d(x, (2, 3, 6)),
    "max_pool": lambda x: F.max_pool2d(x, 3, 2, 1, dilation=2, ceil_mode=True),
    "max_pool, channels last": lambda x: F.max_pool2d(kept_format(x), 3, 1),
    "adaptive_max_pool": lambda x: F.adaptive_max_pool2d(x, (3, 4)),
    "adaptive_max_pool1d": lambda x: F.adaptive_max_pool1d(x[0], 4),
    "adaptive_max_pool3d": lambda x: F.adaptive_max_pool3d(x, (2, 3, 5)),
    "max_unpool": lambda x: F.max_unpool2d(*F.max_pool2d(x, 3, 1, return_indices=True), 3, 1),
    "reflection_pad1d": lambda x: F.pad(x[0], (3, 2), mode="reflect"),
    "reflection_pad": lambda x: F.pad(x, (5, 1, 2, 6), mode="reflect"),
    "reflection_pad3d": lambda x: F.pad(x[None], (5, 1, 2, 6, 1, 2), mode="reflect"),
    "replication_pad1d": lambda x: F.pad(x[0], (3, 2), mode="replicate"),
    "replication_pad": lambda x: F.pad(x, (5, -1, 2, 9), mode="replicate"),
    "replication_pad3d": lambda x: F.pad(x[None], (5, 1, 2, 6, 1, 2), mode="replicate"),
    "circular pad": lambda x: F.pad(x, (2, 1, 2, 3), mode="circular"),
    "unfold": lambda x: F.unfold(x, (3, 2), dilation=(1, 2), padding=(1, 2), stride=(2, 1)),
    "fold": lambda x: F.fold(x.reshape(1, 6, 42), (8, 9), (3, 2), dilation=(1, 2), padding=(0, 0), stride=(1, 1)),
    "fold with a stride": lambda x: F.fold(x.reshape(14, 18)[:, :12], (5, 7), (2, 1), padding=(1, 0), stride=(2, 2)),
    "pixel_shuffle": lambda x: F.pixel_unshuffle(F.pixel_shuffle(x.reshape(1, 12, 7, 3), 2), 2),
    "nearest": lambda x: F.interpolate(x, scale_factor=(1.7, 0.6)),
    "nearest1d": lambda x: F.interpolate(x[0], size=15),
    "nearest3d": lambda x: F.interpolate(x[None], size=(5, 3, 13)),
    "nearest-exact": lambda x: F.interpolate(x, size=(3, 13), mode="nearest-exact"),
    "linear": lambda x: F.interpolate(x[0], scale_factor=2.3, mode="linear"),
    "trilinear": lambda x: F.interpolate(x[None], size=(2, 9, 4), mode="trilinear"),
    "trilinear, corners": lambda x: F.interpolate(x[None], size=(5, 1, 4), mode="trilinear", align_corners=True),
    "affine_grid3d": lambda x: F.affine_grid(x.flatten()[:12].view(1, 3, 4), [1, 1, 2, 3, 4], align_corners=True),
}  # fmt: skip
for kind in ("bilinear", "bicubic"):
    for align in (False, True):
        how = {"mode": kind, "align_corners": align}
        IMAGES |= {
            f"{kind} {align}": lambda x, h=how: F.interpolate(x, size=(4, 11), **h),
            f"{kind} by a factor {align}": lambda x, h=how: F.interpolate(kept_format(x), scale_factor=(1.7, 0.6), **h),
            f"{kind} by a factor that keeps a length {align}": lambda x, h=how: F.interpolate(
                x, scale_factor=(1.12, 0.6), **h
            ),
            f"{kind} of the same size {align}": lambda x, h=how: F.interpolate(x, size=(7, 6), **h),
            f"{kind} antialiased {align}": lambda x, h=how: F.interpolate(x, size=(3, 8), antialias=True, **h),
            f"{kind} antialiased by a factor {align}": lambda x, h=how: F.interpolate(
                x, scale_factor=(0.45, 1.7), antialias=True, **h
            ),
        }


@pytest.mark.parametrize("case", IMAGES)
def test_images(case: str) -> None:
    check_route(IMAGES[case], [drawn(1, 2, 3, 7, 6)], one=not case.startswith(("affine", "lp_")))


@pytest.mark.parametrize("rank", [2, 3])
def test_gradients_of_fractional_pools(rank: int) -> None:
    """Which a block computes; the samples are PyTorch's."""
    x = drawn(1, 2, 3, *(7, 6, 5)[:rank]).requires_grad_()
    pool = getattr(F, f"fractional_max_pool{rank}d")
    y = pool(x, 2, (4, 3, 2)[:rank], _random_samples=drawn(2, 2, 3, rank).sigmoid())
    with mode.reproducible(strict=True):
        (found,) = torch.autograd.grad(y, x, drawn(3, *y.shape), retain_graph=True)
    torch.testing.assert_close(found, torch.autograd.grad(y, x, drawn(3, *y.shape))[0])


@pytest.mark.parametrize("align", [False, True])
@pytest.mark.parametrize("padding", ["zeros", "border", "reflection"])
@pytest.mark.parametrize("kind", ["bilinear", "nearest", "bicubic", "3d bilinear", "3d nearest"])
def test_grids(kind: str, padding: str, align: bool) -> None:
    how = {"mode": kind.removeprefix("3d "), "padding_mode": padding, "align_corners": align}
    volume = kind.startswith("3d")
    x = drawn(1, 2, 3, 4, 5, 6)[:, :, : 4 if volume else 1]
    grid = drawn(2, 2, *(3, 4, 5)[0 if volume else 1 :], 3 if volume else 2)
    check_route(lambda x, grid: F.grid_sample(x if volume else x[:, :, 0], grid, **how), [x, grid], order=1)


@pytest.mark.parametrize("device", DEVICES)
def test_cudnns_grids_are_those_of_others(device: str) -> None:
    """Which `grid_sample` takes on a GPU: the same bits as on a CPU."""
    given = [drawn(1, 2, 3, 5, 6), drawn(2, 2, 4, 3, 2), drawn(3, 2, 3, 4, 3)]
    x, grid, g = given
    with mode.reproducible(strict=True):
        leaves = [t.to(place(device)).requires_grad_() for t in (x, grid)]
        y = F.grid_sample(*leaves, align_corners=True)
        direct = [torch.ops.aten.cudnn_grid_sampler(x, grid), *torch.ops.aten.cudnn_grid_sampler_backward(x, grid, g)]
        found = [y.detach(), *torch.autograd.grad(y, leaves, g.to(y.device))]
        for i, wanted in enumerate(leaves):  # and each gradient is the same without the other
            y = F.grid_sample(*(t if t is wanted else t.detach() for t in leaves), align_corners=True)
            assert torch.equal(*torch.autograd.grad(y, wanted, g.to(y.device)), found[1 + i])
    assert all(torch.equal(a.cpu(), b) for a, b in zip(found, direct, strict=True))


@pytest.mark.parametrize("align", [False, True])
@pytest.mark.parametrize("padding", ["border", "reflection"])
def test_a_grid_on_the_border_gets_no_gradient(padding: str, align: bool) -> None:
    """The first and last pixel are at -1 and 1 with align, else half a pixel inside."""
    end = 1.0 if align else 0.75
    x = drawn(1, 1, 2, 4, 4)
    grid = torch.tensor([[[[-end, 0.3], [end, -0.3], [0.1, end]]]], requires_grad=True)
    with mode.reproducible(strict=True):
        y = F.grid_sample(x, grid, padding_mode=padding, align_corners=align)
        (found,) = torch.autograd.grad(y.sum(), grid)
    (plain,) = torch.autograd.grad(F.grid_sample(x, grid, padding_mode=padding, align_corners=align).sum(), grid)
    on_border = found[0, 0, [0, 1, 2], [0, 0, 1]]
    assert torch.equal(on_border, torch.zeros(3))
    assert (found - plain).abs().max() <= 2.0**-20 * plain.abs().max()


def test_what_is_no_number_stays_where_it_is() -> None:
    x = torch.zeros(1, 1, 6, 6)
    x[0, 0, 0, 0], x[0, 0, 5, 5] = torch.inf, torch.nan
    with mode.reproducible(strict=True):
        pooled = F.adaptive_avg_pool2d(x, 4), F.avg_pool2d(x, 3, 2, ceil_mode=True), F.interpolate(x, 3, mode="nearest")
    plain = F.adaptive_avg_pool2d(x, 4), F.avg_pool2d(x, 3, 2, ceil_mode=True), F.interpolate(x, 3, mode="nearest")
    assert all(torch.equal(a.nan_to_num(7), b.nan_to_num(7)) for a, b in zip(pooled, plain, strict=True))


@pytest.mark.parametrize("kind", ["bilinear", "nearest"])
def test_coordinates_that_are_no_numbers(kind: str) -> None:
    """NaN stands outside, and so do infinities where nothing has them inside; points beside them are as ever."""
    x, ends = drawn(1, 1, 2, 4, 5), torch.tensor([0.3, torch.nan, torch.inf, -torch.inf, 1e30, -1e30])
    grid = torch.cartesian_prod(ends, ends)[None, None]
    with mode.reproducible(strict=True):
        zeros, border = (F.grid_sample(x, grid, kind, p, align_corners=False) for p in ("zeros", "border"))
        near = F.grid_sample(x, grid.nan_to_num(0, 9, -9).clamp(-9, 9), kind, "border", align_corners=False)
        assert torch.equal(zeros[..., :1], F.grid_sample(x, grid[:, :, :1], kind, align_corners=False))
    assert not zeros[..., 1:].any() and torch.equal(border, near.masked_fill(grid.isnan().any(-1), 0.0))


@pytest.mark.parametrize("wrong", [
    lambda x: F.avg_pool2d(x, 9), lambda x: F.avg_pool2d(x, 3, padding=2), lambda x: F.avg_pool2d(x, 0),
    lambda x: F.avg_pool2d(x, 2, divisor_override=0), lambda x: F.adaptive_avg_pool2d(x[0, 0], 2),
    lambda x: F.fold(x[0], (9, 9), 2), lambda x: F.grid_sample(x, torch.zeros(3, 2, 2, 2)),
    lambda x: F.interpolate(x[0], (3, 3), mode="bilinear"),
    lambda x: F.pad(x, (9, 9), mode="reflect"),
])  # fmt: skip
def test_errors_are_pytorchs(wrong: Any) -> None:
    with pytest.raises(Exception) as plain:
        wrong(torch.zeros(2, 3, 7, 6))
    with pytest.raises(plain.type), mode.reproducible():
        wrong(torch.zeros(2, 3, 7, 6))


@pytest.mark.parametrize("rank", [1, 2, 3])
@pytest.mark.parametrize(("n", "factor"), [(3, 1.3), (5, 2.1), (4, 2.0), (7, 1.6)])
def test_nearest_neighbours_by_a_factor(rank: int, n: int, factor: float) -> None:
    """floor(i / factor) in every rank and layout, and the gradient goes to the element that was read."""
    x = drawn(3, 2, 4, *[n] * rank).requires_grad_()
    for layout in (lambda t: t, kept_format) if rank == 2 else (lambda t: t,):
        with mode.reproducible(strict=True):
            y = F.interpolate(layout(x), scale_factor=factor)
            (gx,) = torch.autograd.grad(y, x, torch.ones_like(y))
        place = (torch.arange(int(n * factor)) * torch.tensor(1 / factor)).floor().long()
        expected, counts = x, torch.ones_like(x)
        for axis in range(2, 2 + rank):
            expected = expected.index_select(axis, place)
            counts = counts * torch.bincount(place, minlength=n).view([-1 if d == axis else 1 for d in range(x.dim())])
        assert torch.equal(y, expected)
        assert torch.equal(gx, counts)


@pytest.mark.parametrize("antialias", [False, True])
@pytest.mark.parametrize("size", [5, 6])
def test_an_axis_that_keeps_its_length_is_copied(size: int, antialias: bool) -> None:
    """Whatever factor is given: 1.1 times 5 is 5, and 1.17 times 6 is 7. PyTorch's own antialiased gradient resamples it."""

    def resized(x: Any) -> Any:
        return F.interpolate(x, scale_factor=(1.1, 1.17), mode="bilinear", antialias=antialias)

    x = drawn(4, 2, 3, 5, size).requires_grad_()
    with mode.reproducible(strict=True):
        y = resized(x)
        (gx,) = torch.autograd.grad(y, x, drawn(5, *y.shape))
    exact = resized(x.detach().double())
    # float32 positions up to 7, of a scale that is rounded once, move the result by their share of a difference of neighbours
    assert (y - exact).abs().max() <= 2 * 7 * 2.0**-24 * 2 * x.abs().max()
    if size == 5:
        assert torch.equal(y, x)
    v = drawn(6, *x.shape).double()  # the gradient is the adjoint of the forward pass
    assert abs(float((gx * v).sum() - (drawn(5, *y.shape) * resized(v)).sum())) <= 2.0**-16
