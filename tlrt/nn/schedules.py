"""Learning rates as functions of the step, counted from 0.

    optimizer.lr = schedules.cosine(optimizer.steps, peak=3e-4, total=5000, warmup=100)
    optimizer.step()

They hold no state: a run resumed from a checkpoint goes on with the rate of its step.
"""

import math
from collections.abc import Callable, Sequence

from tlrt.errors import ArgumentError, refusal

__all__ = ["constant", "cosine", "cosine_restarts", "exponential", "inverse_sqrt", "linear", "milestones", "one_cycle",
           "polynomial", "step_decay", "warmup_stable_decay"]  # fmt: skip


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
    return _rise_and_fall("cosine", step, peak, total, warmup, final, lambda share: _interpolate(peak, final, share))


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


def cosine_restarts(step: int, *, peak: float, period: int, growth: int = 1, final: float = 0.0) -> float:
    """From peak down towards `final` along half a cosine, again and again, each time `growth` times as long as before.

    Raises ArgumentError unless period, growth >= 1. Source: torch.optim.lr_scheduler.CosineAnnealingWarmRestarts."""
    if period < 1 or growth < 1:
        raise refusal(ArgumentError, "cosine_restarts", "period, growth", f"{period}, {growth}", "1 or more each")
    if growth == 1:
        step %= period
    while step >= period:
        step, period = step - period, period * growth
    return _interpolate(peak, final, step / period)


def exponential(step: int, *, peak: float, factor: float) -> float:
    """peak·factor^step. Source: torch.optim.lr_scheduler.ExponentialLR."""
    return peak * factor**step


def inverse_sqrt(step: int, *, peak: float, warmup: int) -> float:
    """Up along a line for `warmup` steps, then peak·√(warmup/(step + 1)).

    Raises ArgumentError unless warmup >= 1. Source: Vaswani et al., Attention Is All You Need, 2017, section 5.3."""
    if warmup < 1:
        raise refusal(ArgumentError, "inverse_sqrt", "warmup", warmup, "1 or more")
    return peak * min((step + 1) / warmup, math.sqrt(warmup / (step + 1)))


def linear(step: int, *, peak: float, total: int, warmup: int = 0, final: float = 0.0) -> float:
    """As :func:`cosine`, down along a line. Raises ArgumentError unless 0 <= warmup <= total."""
    return polynomial(step, peak=peak, total=total, warmup=warmup, final=final)


def milestones(step: int, *, peak: float, at: Sequence[int], factor: float = 0.1) -> float:
    """peak, times `factor` for each of the steps `at` that is reached. Source: torch.optim.lr_scheduler.MultiStepLR."""
    return peak * factor ** sum(step >= reached for reached in at)


def polynomial(step: int, *, peak: float, total: int, power: float = 1.0, warmup: int = 0, final: float = 0.0) -> float:
    """As :func:`cosine`, with (1 - (step - warmup)/(total - warmup))^power in place of the cosine.

    Raises ArgumentError unless 0 <= warmup <= total. Source: torch.optim.lr_scheduler.PolynomialLR."""

    def fall(share: float) -> float:
        return final + (peak - final) * (1 - share) ** power

    return _rise_and_fall("polynomial", step, peak, total, warmup, final, fall)


def warmup_stable_decay(step: int, *, peak: float, total: int, warmup: int, decay: int, final: float = 0.0) -> float:
    """Up along a line for `warmup` steps, peak, and in the last `decay` steps before `total` down along a line to `final`.

    Raises ArgumentError unless warmup, decay >= 0 and warmup + decay <= total. Source: Hu et al., MiniCPM, arXiv:2404.06395."""
    if warmup < 0 or decay < 0 or warmup + decay > total:
        got, expected = f"{warmup}, {decay}", f"0 or more each, together at most total = {total}"
        raise refusal(ArgumentError, "warmup_stable_decay", "warmup, decay", got, expected)
    if step < warmup:
        return peak * (step + 1) / warmup
    return (
        linear(max(step - (total - decay), 0), peak=peak, total=decay, final=final) if step >= total - decay else peak
    )


def _rise_and_fall(
    name: str, step: int, peak: float, total: int, warmup: int, final: float, fall: Callable[[float], float]
) -> float:
    """Up along a line for `warmup` steps, then what `fall` makes of the share of the other steps that is over; `final` from
    `total` on."""
    if not 0 <= warmup <= total:
        raise refusal(ArgumentError, name, "warmup", warmup, f"0 <= warmup <= total = {total}")
    if step < warmup:
        return peak * (step + 1) / warmup
    return final if step >= total else fall((step - warmup) / (total - warmup))


def _interpolate(first: float, last: float, share: float) -> float:
    """Half a cosine from first to last."""
    return last + (first - last) * (1.0 + math.cos(math.pi * share)) / 2.0
