"""Functions of one or two arguments, and what a compiler may fuse on a GPU: one operation after the other."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from tlrt.torch.routes.base import ROUTES, aten, route, run, run_gradient
from tlrt.torch.routes.sums import divided, inverse_root


def _elementwise(op: str) -> Callable[..., Any]:
    return lambda x: run(op, x)


for _name in (
    "sqrt",
    "exp",
    "expm1",
    "log",
    "log1p",
    "sin",
    "cos",
    "tanh",
    "sigmoid",
    "erf",
    "silu",
    "mish",
    "hardswish",
):
    ROUTES[getattr(aten, _name).default] = _elementwise(_name)


@route(aten.rsqrt.default)
def rsqrt(x: Any) -> Any:
    return inverse_root(x)


@route(aten.gelu.default)
def gelu(x: Any, *, approximate: str = "none") -> Any:
    return run("gelu" if approximate == "tanh" else "gelu_erf", x)


@route(aten.gelu_backward.default)
def gelu_backward(g: Any, x: Any, *, approximate: str = "none") -> Any:
    return run_gradient("gelu" if approximate == "tanh" else "gelu_erf", x, g)


@route(aten.silu_backward.default)
def silu_backward(g: Any, x: Any) -> Any:
    return run_gradient("silu", x, g)


@route(aten.mish_backward.default)
def mish_backward(g: Any, x: Any) -> Any:
    return run_gradient("mish", x, g)


@route(aten.hardswish_backward.default)
def hardswish_backward(g: Any, x: Any) -> Any:
    return run_gradient("hardswish", x, g)


@route(aten.tanh_backward.default)
def tanh_backward(g: Any, y: Any) -> Any:
    return run_gradient("tanh", y, g)


@route(aten.sigmoid_backward.default)
def sigmoid_backward(g: Any, y: Any) -> Any:
    return run_gradient("sigmoid", y, g)


@route(aten.softplus.default)
def softplus(x: Any, beta: float = 1, threshold: float = 20) -> Any:
    y = run("softplus", x if beta == 1 else x * beta)
    return torch.where(x * beta > threshold, x, y if beta == 1 else divided(y, beta))


@route(aten.softplus_backward.default)
def softplus_backward(g: Any, x: Any, beta: float, threshold: float) -> Any:
    return torch.where(x * beta > threshold, g, g * run("sigmoid", x if beta == 1 else x * beta))


@route(aten.elu.default)
def elu(x: Any, alpha: float = 1, scale: float = 1, input_scale: float = 1) -> Any:
    y = run("elu", x if input_scale == 1 else x * input_scale, alpha=float(alpha))
    return y if scale == 1 else y * scale


@route(aten.elu_backward.default)
def elu_backward(g: Any, alpha: float, scale: float, input_scale: float, is_result: bool, x: Any) -> Any:
    if is_result or scale != 1 or input_scale != 1:
        raise NotImplementedError("elu_backward of a result, or scaled")
    return run_gradient("elu", x, g, alpha=float(alpha))


@route(aten.pow.Tensor_Scalar)
def pow_scalar(x: Any, p: float) -> Any:
    return (
        x * x if p == 2 else x.clone() if p == 1 else run("sqrt", x) if p == 0.5 else run("pow_scalar", x, p=float(p))
    )


@route(aten.pow.Tensor_Tensor)
def pow_tensor(x: Any, p: Any) -> Any:
    a, b = torch.broadcast_tensors(x, p.to(x.dtype))
    return run("pow", a, b)


@route(aten.pow.Scalar)
def pow_of_scalar(x: float, p: Any) -> Any:
    return run("pow", torch.full_like(p, x), p)


@route(aten.atan2.default)
def atan2(y: Any, x: Any) -> Any:
    return run("atan2", *torch.broadcast_tensors(y, x))


@route(aten.add.Tensor)
def add(x: Any, y: Any, *, alpha: float = 1) -> Any:
    return aten.add(x, y if alpha == 1 else y * alpha)


@route(aten.sub.Tensor)
def sub(x: Any, y: Any, *, alpha: float = 1) -> Any:
    return aten.sub(x, y if alpha == 1 else y * alpha)


@route(aten.rsub.Scalar, aten.rsub.Tensor)
def rsub(x: Any, y: Any, alpha: float = 1) -> Any:
    return y - (x if alpha == 1 else x * alpha)


@route(aten.div.Tensor)
def div(x: Any, y: Any) -> Any:
    if isinstance(y, torch.Tensor) and y.dim() == 0 and y.device != x.device:
        y = y.to(x.device)
    elif not isinstance(y, torch.Tensor):
        return div_scalar(x, y)
    return aten.div(x, y)


@route(aten.div.Scalar)
def div_scalar(x: Any, y: float) -> Any:
    return divided(x, y)


@route(aten.addcmul.default)
def addcmul(x: Any, a: Any, b: Any, *, value: float = 1) -> Any:
    product = a * b
    return x + (product if value == 1 else product * value)


@route(aten.addcdiv.default)
def addcdiv(x: Any, a: Any, b: Any, *, value: float = 1) -> Any:
    quotient = a / b
    return x + (quotient if value == 1 else quotient * value)


@route(aten.lerp.Scalar)
def lerp(x: Any, y: Any, weight: float) -> Any:
    return x + (y - x) * weight
