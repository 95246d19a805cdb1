"""Learning rates as functions of the step, counted from 0.

    optimizer.lr = schedules.cosine(optimizer.steps, peak=3e-4, total=5000, warmup=100)
    optimizer.step()

They hold no state: a run resumed from a checkpoint goes on with the rate of its step.
"""

import math

from tlrt.errors import ArgumentError, refusal

__all__ = ["constant", "cosine", "one_cycle", "step_decay"]


def constant(step: int, *, peak: float) -> float:
    """peak at every step."""
    return peak


def step_decay(step: int, *, peak: float, every: int, factor: float = 0.1) -> float:
    """peak·factor^⌊step/every⌋. Raises ArgumentError unless every >= 1. Source: torch.optim.lr_scheduler.StepLR."""
    if every < 1:
        raise refusal(ArgumentError, "step_decay", "every", every, "1 or more")
    return peak * factor ** (step // every)


def cosine(step: int, *, peak: float, total: int, warmup: int = 0, final: float = 0.0) -> float:
    """Up along a line for `warmup` steps, then down to `final` at step `total` along half a cosine, and there it stays.

    peak·(step + 1)/warmup below warmup, then final + (peak - final)·(1 + cos(π·(step - warmup)/(total - warmup)))/2

    Raises ArgumentError unless 0 <= warmup <= total. Source: Loshchilov and Hutter, arXiv:1608.03983."""
    if not 0 <= warmup <= total:
        raise refusal(ArgumentError, "cosine", "warmup", warmup, f"0 <= warmup <= total = {total}")
    if step < warmup:
        return peak * (step + 1) / warmup
    if step >= total:
        return final
    return _interpolate(peak, final, (step - warmup) / (total - warmup))


def one_cycle(
    step: int, *, peak: float, total: int, rise: float = 0.3, start_factor: float = 25.0, final_factor: float = 1e4
) -> float:
    """From peak/start_factor up to peak at step rise·total - 1, then down to the start over final_factor at step total - 1.

    Both along half a cosine; there it stays. Raises ArgumentError unless total >= 1, 0 <= rise <= 1. Source: Smith and Topin,
    arXiv:1708.07120, in the form of torch.optim.lr_scheduler.OneCycleLR."""
    if total < 1 or not 0 <= rise <= 1:
        raise refusal(ArgumentError, "one_cycle", "total, rise", f"{total}, {rise}", "1 or more, 0 <= rise <= 1")
    start = peak / start_factor
    top, last = rise * total - 1, total - 1
    if step <= top:
        return _interpolate(start, peak, step / top) if top > 0 else peak
    return _interpolate(peak, start / final_factor, min((step - top) / (last - top), 1.0)) if last > top else peak


def _interpolate(first: float, last: float, share: float) -> float:
    """Half a cosine from first to last."""
    return last + (first - last) * (1.0 + math.cos(math.pi * share)) / 2.0
