"""Quantisation that training simulates: numbers go to the nearest of a scale's levels and back."""

from __future__ import annotations

from typing import Any

import torch

from tlrt.torch.routes.base import aten, route


def _quantized(x: Any, scale: Any, zero: Any, least: int, most: int) -> Any:
    """The number of a level as PyTorch's kernels have it, x·(1 / scale), rounded, + zero; and whether it is in the range."""
    level = (x * scale.reciprocal()).round() + zero
    return (level.clamp(least, most) - zero) * scale, (level >= least) & (level <= most)


def _check(is_taken: bool) -> None:
    if not is_taken:
        raise NotImplementedError("what PyTorch refuses, or levels between whole numbers")


@route(aten.fake_quantize_per_tensor_affine_cachemask.default)
def per_tensor(x: Any, scale: float, zero_point: int, quant_min: int, quant_max: int) -> Any:
    _check(quant_min <= zero_point <= quant_max)
    number = torch.full((), scale, dtype=torch.float32, device=x.device)
    return _quantized(x, number, zero_point, quant_min, quant_max)


@route(aten._fake_quantize_per_tensor_affine_cachemask_tensor_qparams.default)
def per_tensor_of_tensors(x: Any, scale: Any, zero_point: Any, enabled: Any, quant_min: int, quant_max: int) -> Any:
    y, inside = _quantized(x, scale.reshape(()), zero_point.reshape(()), quant_min, quant_max)
    return torch.where(enabled.reshape(()) == 0, x, y), inside | (enabled.reshape(()) == 0)


@route(aten.fake_quantize_per_channel_affine_cachemask.default)
def per_channel(x: Any, scale: Any, zero_point: Any, axis: int, quant_min: int, quant_max: int) -> Any:
    _check(
        0 <= axis < x.dim() and len(scale) == len(zero_point) == x.shape[axis] and not zero_point.is_floating_point()
    )
    _check(bool(((zero_point >= quant_min) & (zero_point <= quant_max)).all()))
    at = [-1 if d == axis else 1 for d in range(x.dim())]
    return _quantized(x, scale.view(at), zero_point.view(at), quant_min, quant_max)
