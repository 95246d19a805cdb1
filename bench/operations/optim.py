"""Sizes and baselines of the optim family."""

from importlib import import_module
from typing import Any

from bench.operations.table import Benchmark

SIZES = [{"lengths": [2**16] * 100}, {"lengths": [2**24]}, {"lengths": [2**28]}]


def _pieces(x: Any, lengths: list[int]) -> Any:
    """PyTorch's list of tensors."""
    return list(x.split(list(lengths)))


def _sgd_torch(torch: Any, ps: Any, gs: Any, lengths: list[int], lr: float, weight_decay: float) -> Any:
    pieces = [_pieces(x, lengths) for x in (ps, gs)]

    def step() -> Any:
        torch._fused_sgd_(*pieces, [], weight_decay=weight_decay, momentum=0.0, lr=lr, dampening=0.0, nesterov=False,
                          maximize=False, is_first_step=False)  # fmt: skip
        return ps

    return step


def _momentum_torch(
    torch: Any, ps: Any, gs: Any, vs: Any, lengths: list[int], lr: float, momentum: float, dampening: float,
    weight_decay: float, nesterov: int,
) -> Any:  # fmt: skip
    pieces = [_pieces(x, lengths) for x in (ps, gs, vs)]

    def step() -> Any:
        torch._fused_sgd_(*pieces, weight_decay=weight_decay, momentum=momentum, lr=lr, dampening=dampening,
                          nesterov=bool(nesterov), maximize=False, is_first_step=False)  # fmt: skip
        return ps, vs

    return step


def _adam_torch(fused: str) -> Any:
    def call(
        torch: Any, device: Any, ps: Any, gs: Any, ms: Any, vs: Any, lengths: list[int], step: int, lr: float, beta1: float,
        beta2: float, eps: float, weight_decay: float,
    ) -> Any:  # fmt: skip
        pieces = [_pieces(x, lengths) for x in (ps, gs, ms, vs)]
        steps = [torch.tensor(float(step), device=device) for _ in lengths]

        def run() -> Any:
            getattr(torch, fused)(*pieces, [], steps, lr=lr, beta1=beta1, beta2=beta2, weight_decay=weight_decay,
                                  eps=eps, amsgrad=False, maximize=False)  # fmt: skip
            return ps, ms, vs

        return run

    return call


def _rmsprop_torch(
    torch: Any, ps: Any, gs: Any, vs: Any, lengths: list[int], lr: float, alpha: float, eps: float, weight_decay: float,
    ms: Any = None, bs: Any = None, momentum: float = 0.0,
) -> Any:  # fmt: skip
    """PyTorch has no fused step: the one by foreach is its fastest."""
    given = [None if x is None else _pieces(x, lengths) for x in (ps, gs, vs, ms, bs)]
    pieces, steps = [x or [] for x in given], [torch.tensor(0.0) for _ in lengths]
    rmsprop = import_module(f"{torch.__name__}.optim.rmsprop").rmsprop

    def step() -> Any:
        rmsprop(*pieces, steps, foreach=True, lr=lr, alpha=alpha, eps=eps, weight_decay=weight_decay,
                momentum=momentum, centered=ms is not None)  # fmt: skip
        return tuple(x for x in (ps, vs, ms, bs) if x is not None)

    return step


def _lion_torch(
    torch: Any, ps: Any, gs: Any, ms: Any, lengths: list[int], lr: float, beta1: float, beta2: float, weight_decay: float,
) -> Any:  # fmt: skip
    """PyTorch has no Lion: the composition of its operations by foreach."""
    p, g, m = (_pieces(x, lengths) for x in (ps, gs, ms))

    def step() -> Any:
        direction = torch._foreach_lerp(m, g, 1 - beta1)
        torch._foreach_sign_(direction)
        torch._foreach_mul_(p, 1 - lr * weight_decay)
        torch._foreach_add_(p, direction, alpha=-lr)
        torch._foreach_lerp_(m, g, 1 - beta2)
        return ps, ms

    return step


ADAM_SIZES = [{**size, "step": 10} for size in SIZES]


def _norm_torch(torch: Any, gs: Any, lengths: list[int]) -> Any:
    pieces = _pieces(gs, lengths)
    return lambda: torch.linalg.vector_norm(torch.stack(torch._foreach_norm(pieces)))[None]


def _clip_torch(torch: Any, gs: Any, norm: Any, lengths: list[int], max_norm: float, eps: float) -> Any:
    pieces = _pieces(gs, lengths)

    def clip() -> Any:
        torch._foreach_mul_(pieces, torch.clamp(max_norm / (norm[0] + eps), max=1.0))
        return gs

    return clip


BENCHMARKS = {
    "sgd_step": Benchmark(sizes=SIZES, torch=_sgd_torch),
    "momentum_step": Benchmark(sizes=SIZES, torch=_momentum_torch),
    "adam_step": Benchmark(sizes=ADAM_SIZES, torch=_adam_torch("_fused_adam_")),
    "adamw_step": Benchmark(sizes=ADAM_SIZES, torch=_adam_torch("_fused_adamw_")),
    "rmsprop_step": Benchmark(sizes=SIZES, torch=_rmsprop_torch),
    "rmsprop_momentum_step": Benchmark(sizes=SIZES, torch=_rmsprop_torch),
    "rmsprop_centered_step": Benchmark(sizes=[{**size, "momentum": 0.9} for size in SIZES], torch=_rmsprop_torch),
    "lion_step": Benchmark(sizes=SIZES, torch=_lion_torch),
    "global_norm": Benchmark(sizes=SIZES, numpy=lambda np, gs: np.sqrt(np.dot(gs, gs))[None], torch=_norm_torch),
    "clip_scale": Benchmark(sizes=[{**size, "max_norm": 1e3, "eps": 1e3} for size in SIZES], torch=_clip_torch),
}  # fmt: skip
