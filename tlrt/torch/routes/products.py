"""Products and convolutions."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from tlrt.torch.routes.base import as_matrix, aten, route, run, run_gradient


@route(aten.mm.default)
def mm(a: Any, b: Any) -> Any:
    return run("matmul", a, b)


@route(aten.bmm.default)
def bmm(a: Any, b: Any) -> Any:
    return run("bmm", a, b)


@route(aten.mv.default)
def mv(a: Any, x: Any) -> Any:
    return mm(a, x[:, None])[:, 0]


@route(aten.dot.default, aten.vdot.default)
def dot(x: Any, y: Any) -> Any:
    return mm(x[None, :], y[:, None])[0, 0]


def scaled_sum(x: Any, beta: float, y: Any, alpha: float) -> Any:
    """beta·x + alpha·y, each operation rounded; a factor of 0 leaves its term out."""
    y = y if alpha == 1 else y * alpha
    return y if beta == 0 else (x if beta == 1 else x * beta) + y


@route(aten.addmm.default)
def addmm(x: Any, a: Any, b: Any, *, beta: float = 1, alpha: float = 1) -> Any:
    if beta == 1 and alpha == 1 and x.dim() == 1 and b.t().is_contiguous():
        return run("linear", b.t(), a, x)
    return scaled_sum(x, beta, mm(a, b), alpha)


@route(aten.baddbmm.default)
def baddbmm(x: Any, a: Any, b: Any, *, beta: float = 1, alpha: float = 1) -> Any:
    return scaled_sum(x, beta, bmm(a, b), alpha)


@route(aten.addmv.default)
def addmv(x: Any, a: Any, y: Any, *, beta: float = 1, alpha: float = 1) -> Any:
    return scaled_sum(x, beta, mv(a, y), alpha)


@route(aten.linear.default)
def linear(x: Any, w: Any, b: Any = None) -> Any:
    rows = as_matrix(x)
    y = run("linear", w, rows, b if b is not None else x.new_zeros(w.shape[0]))
    return y.view(*x.shape[:-1], w.shape[0])


def per_axis(values: Sequence[int], count: int) -> list[int]:
    return list(values) * (count if len(values) == 1 else 1)


def _geometry(x: Any, stride: Any, padding: Any, dilation: Any) -> dict[str, list[int]]:
    n = x.dim() - 2
    pads = per_axis(padding, n)
    return {"stride": per_axis(stride, n), "dilation": per_axis(dilation, n), "padding_low": pads, "padding_high": pads}


def _grouped(x: Any, groups: int) -> Any:
    return x.reshape(x.shape[0], groups, x.shape[1] // groups, *x.shape[2:])


@route(aten.convolution.default)
def convolution(
    x: Any, w: Any, b: Any, stride: Any, padding: Any, dilation: Any, transposed: bool, output_padding: Any, groups: int
) -> Any:
    values: dict[str, Any] = _geometry(x, stride, padding, dilation)
    if transposed:
        values["output_padding"] = per_axis(output_padding, x.dim() - 2)
    weights = w.reshape(groups, w.shape[0] // groups, *w.shape[1:])
    bias = [] if b is None else [b.reshape(groups, -1)]
    y = run("conv_transpose_grouped" if transposed else "conv_grouped", _grouped(x, groups), weights, *bias, **values)
    return y.flatten(1, 2)


@route(aten.convolution_backward.default)
def convolution_backward(
    g: Any, x: Any, w: Any, bias_sizes: Any, stride: Any, padding: Any, dilation: Any, transposed: bool, output_padding: Any,
    groups: int, want: Sequence[bool],
) -> Any:  # fmt: skip
    values: dict[str, Any] = _geometry(x, stride, padding, dilation)
    if transposed:
        values["output_padding"] = per_axis(output_padding, x.dim() - 2)
    weights = w.reshape(groups, w.shape[0] // groups, *w.shape[1:])
    gx, gw, gb = run_gradient(
        "conv_transpose_grouped" if transposed else "conv_grouped", _grouped(x, groups), weights, _grouped(g, groups),
        want=want, **values,
    )  # fmt: skip
    return (
        gx.reshape(x.shape) if want[0] else None,
        gw.reshape(w.shape) if want[1] else None,
        gb.reshape(-1) if want[2] else None,
    )
