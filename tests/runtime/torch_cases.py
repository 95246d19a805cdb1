"""What tests of routes have in common: operators in a block beside PyTorch's in float64, with two derivatives."""

from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch")
mode = pytest.importorskip("tlrt.torch.mode")

#: no result of a case has more roundings than these on the way from an operand to it
ROUNDINGS = 64


def place(device: str) -> str:
    return "cpu" if device == "cpu" else "cuda:0"


def drawn(seed: int, *shape: int) -> Any:
    return torch.from_numpy(np.random.default_rng(seed).standard_normal(shape, np.float32))


def derivatives(compute: Any, operands: list[Any], order: int = 2) -> list[Any]:
    """The results, their gradients, and the gradients of those, along drawn directions."""
    leaves = [x.clone().requires_grad_() for x in operands]
    y = compute(*leaves)
    found = [y]
    if not y.requires_grad:
        return [y.detach()]
    upstream = drawn(90, *y.shape).to(y.dtype).requires_grad_()
    first = [
        g for g in torch.autograd.grad(y, leaves, upstream, create_graph=order > 1, allow_unused=True) if g is not None
    ]
    found += first
    if order == 1:
        return [x.detach() for x in found]
    inner = sum((g * drawn(91 + k, *g.shape).to(g.dtype)).sum() for k, g in enumerate(first) if g.requires_grad)
    if isinstance(inner, torch.Tensor):
        found += [g for g in torch.autograd.grad(inner, [*leaves, upstream], allow_unused=True) if g is not None]
    return [x.detach() for x in found]


def check_route(compute: Any, operands: list[Any], order: int = 2, one: bool = True) -> None:
    """Right values and two derivatives in float32, the strides of PyTorch, the same bits on one thread and on two; in
    bfloat16 `one` operator gives that of float32 rounded once."""
    expected = derivatives(compute, [x.double() for x in operands], order)
    before, runs = torch.get_num_threads(), []
    try:
        for threads in (1, 2):
            torch.set_num_threads(threads)
            with mode.reproducible(strict=True) as report:
                runs.append(derivatives(compute, operands, order))
            assert report.left == ()
    finally:
        torch.set_num_threads(before)
    assert len(runs[0]) == len(expected)
    for mine, again, exact in zip(*runs, expected, strict=True):
        assert mine.dtype == torch.float32 and torch.equal(mine.nan_to_num(), again.nan_to_num())
        size = max(float(exact.abs().max()) if exact.numel() else 0, *(float(x.abs().max()) for x in operands))
        assert mine.shape == exact.shape
        assert ((mine - exact).abs() <= ROUNDINGS * 2.0**-24 * size).all(), (
            f"off by {(mine - exact).abs().max()} of {size}"
        )
    plain = compute(*operands)
    assert runs[0][0].stride() == plain.stride()
    if not one:
        return
    narrow = [x.bfloat16() for x in operands]
    with mode.reproducible(strict=True):
        found, wide = compute(*narrow), compute(*(x.float() for x in narrow))
    assert found.dtype == torch.bfloat16 and torch.equal(found, wide.bfloat16())
