"""Pools, padding, interpolation and grids in a block: right values and two derivatives, the same bits everywhere."""

from typing import Any

import pytest

from tests.runtime.torch_cases import check_route, drawn

torch = pytest.importorskip("torch")
mode = pytest.importorskip("tlrt.torch.mode")
F = torch.nn.functional


def kept_format(x: Any) -> Any:
    return x.to(memory_format=torch.channels_last)


#: of a tensor (2, 3, 7, 6)
IMAGES: dict[str, Any] = {
    "avg_pool": lambda x: F.avg_pool2d(x, 3, 2, 1),
    "avg_pool by columns": lambda x: F.avg_pool2d(x, (1, 2)),
    "avg_pool, ceil_mode": lambda x: F.avg_pool2d(x, 3, 2, 1, ceil_mode=True),
    "avg_pool, ceil_mode that fits": lambda x: F.avg_pool2d(x[..., :6, :], 2, 2, ceil_mode=True, count_include_pad=False),
    "avg_pool without padding in the count": lambda x: F.avg_pool2d(x, (3, 2), 1, (1, 0), count_include_pad=False),
    "avg_pool, steps over elements": lambda x: F.avg_pool2d(x, 2, 3, 1, ceil_mode=True, count_include_pad=False),
    "avg_pool, a divisor": lambda x: F.avg_pool2d(x, 3, 2, 1, divisor_override=5),
    "avg_pool, channels last": lambda x: F.avg_pool2d(kept_format(x), 3, 2, 1, count_include_pad=False),
    "avg_pool of one image": lambda x: F.avg_pool2d(x[0], 3, 2, 1, ceil_mode=True),
    "avg_pool1d": lambda x: F.avg_pool1d(x[0], 3, 2, 1, ceil_mode=True, count_include_pad=False),
    "avg_pool3d": lambda x: F.avg_pool3d(x[:, None], 2, 2, 1),
    "avg_pool3d uneven": lambda x: F.avg_pool3d(x[:, None], (2, 3, 2), 2, (1, 1, 0), ceil_mode=True, count_include_pad=False),
    "lp_pool": lambda x: F.lp_pool2d(x, 2, 3, 2),
    "adaptive_avg_pool to one": lambda x: F.adaptive_avg_pool2d(x, 1),
    "adaptive_avg_pool": lambda x: F.adaptive_avg_pool2d(x, (3, 4)),
    "adaptive_avg_pool to more": lambda x: F.adaptive_avg_pool2d(kept_format(x), (9, 5)),
    "adaptive_avg_pool1d": lambda x: F.adaptive_avg_pool1d(x[0], 4),
    "adaptive_avg_pool3d": lambda x: F.adaptive_avg_pool3d(x, (2, 3, 6)),
    "max_pool1d": lambda x: F.max_pool1d(x[0], 3, 1, 1, dilation=2, ceil_mode=True),
    "max_pool": lambda x: F.max_pool2d(x, 3, 2, 1, dilation=2, ceil_mode=True),
    "max_pool, channels last": lambda x: F.max_pool2d(kept_format(x), 3, 1),
    "max_pool3d": lambda x: F.max_pool3d(x[:, None], 2, 1, 1, dilation=(1, 2, 1), ceil_mode=True),
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
            f"{kind} of the same size {align}": lambda x, h=how: F.interpolate(x, size=(7, 6), **h),
            f"{kind} antialiased {align}": lambda x, h=how: F.interpolate(x, size=(3, 8), antialias=True, **h),
        }


@pytest.mark.parametrize("case", IMAGES)
def test_images(case: str) -> None:
    check_route(IMAGES[case], [drawn(1, 2, 3, 7, 6)], one=not case.startswith(("affine", "lp_")))


@pytest.mark.parametrize("align", [False, True])
@pytest.mark.parametrize("padding", ["zeros", "border", "reflection"])
@pytest.mark.parametrize("kind", ["bilinear", "nearest", "bicubic", "3d bilinear", "3d nearest"])
def test_grids(kind: str, padding: str, align: bool) -> None:
    how = {"mode": kind.removeprefix("3d "), "padding_mode": padding, "align_corners": align}
    volume = kind.startswith("3d")
    x = drawn(1, 2, 3, 4, 5, 6)[:, :, : 4 if volume else 1]
    grid = drawn(2, 2, *(3, 4, 5)[0 if volume else 1 :], 3 if volume else 2)
    check_route(lambda x, grid: F.grid_sample(x if volume else x[:, :, 0], grid, **how), [x, grid], order=1)


def test_what_is_no_number_stays_where_it_is() -> None:
    x = torch.zeros(1, 1, 6, 6)
    x[0, 0, 0, 0], x[0, 0, 5, 5] = torch.inf, torch.nan
    with mode.reproducible(strict=True):
        pooled = F.adaptive_avg_pool2d(x, 4), F.avg_pool2d(x, 3, 2, ceil_mode=True), F.interpolate(x, 3, mode="nearest")
    plain = F.adaptive_avg_pool2d(x, 4), F.avg_pool2d(x, 3, 2, ceil_mode=True), F.interpolate(x, 3, mode="nearest")
    assert all(torch.equal(a.nan_to_num(7), b.nan_to_num(7)) for a, b in zip(pooled, plain, strict=True))


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
