"""Learning rates as functions of the step, counted from 0.

    optimizer.lr = schedules.cosine(optimizer.steps, peak=3e-4, total=5000, warmup=100)
    optimizer.step()

They hold no state: a run resumed from a checkpoint goes on with the rate of its step.
"""

import math
from collections.abc import Callable, Sequence

from tlrt._operations.names import explained
from tlrt.errors import ArgumentError, refusal

__all__ = ["constant", "cosine", "cosine_restarts", "exponential", "inverse_sqrt", "linear", "milestones", "one_cycle",
           "polynomial", "step_decay", "warmup_stable_decay"]  # fmt: skip


def constant(step: int, *, peak: float) -> float:
    """The same rate at every step.

    Parameters
    ----------
    step : int
        Not used; schedules have one.
    peak : float
        The rate.

    Returns
    -------
    float
        peak.

    Examples
    --------
    >>> from tlrt.nn import schedules
    >>> schedules.constant(7, peak=0.5)
    0.5

    Source: torch.optim.lr_scheduler.ConstantLR with factor 1.
    """
    return peak


def step_decay(step: int, *, peak: float, every: int, factor: float = 0.1) -> float:
    """peak·factor^⌊step/every⌋.

    Parameters
    ----------
    step : int
        Counted from 0.
    peak : float
        The first rate.
    every : int
        Steps between two changes.
    factor : float
        Of each change.

    Returns
    -------
    float
        The rate of the step.

    Raises
    ------
    ArgumentError
        Unless every >= 1.

    Examples
    --------
    >>> from tlrt.nn import schedules
    >>> [schedules.step_decay(k, peak=1.0, every=2, factor=0.5) for k in range(5)]
    [1.0, 1.0, 0.5, 0.5, 0.25]

    Source: torch.optim.lr_scheduler.StepLR.
    """
    if every < 1:
        raise refusal(ArgumentError, "step_decay", "every", every, "1 or more")
    return peak * factor ** (step // every)


def cosine(step: int, *, peak: float, total: int, warmup: int = 0, final: float = 0.0) -> float:
    """Up along a line for `warmup` steps, then down to `final` along half a cosine.

    peak·(step + 1)/warmup below warmup, then final + (peak - final)·(1 + cos(π·(step - warmup)/(total - warmup)))/2,
    and final from step `total` on.

    Parameters
    ----------
    step : int
        Counted from 0.
    peak, final : float
        The highest and the last rate.
    total, warmup : int
        Steps in all, and steps up.

    Returns
    -------
    float
        The rate of the step.

    Raises
    ------
    ArgumentError
        Unless 0 <= warmup <= total.

    Examples
    --------
    >>> from tlrt.nn import schedules
    >>> [round(schedules.cosine(k, peak=1.0, total=6, warmup=2), 3) for k in range(7)]
    [0.5, 1.0, 1.0, 0.854, 0.5, 0.146, 0.0]

    Source: Loshchilov and Hutter, arXiv:1608.03983; torch.optim.lr_scheduler.CosineAnnealingLR.
    """
    return _rise_and_fall("cosine", step, peak, total, warmup, final, lambda share: _interpolate(peak, final, share))


def one_cycle(
    step: int, *, peak: float, total: int, rise: float = 0.3, start_factor: float = 25.0, final_factor: float = 1e4
) -> float:
    """From peak/start_factor up to peak at step rise·total - 1, then down to the start over final_factor at step total - 1.

    Both ways follow half a cosine; the last rate stays.

    Parameters
    ----------
    step : int
        Counted from 0.
    peak : float
        The highest rate.
    total : int
        Steps in all.
    rise : float
        Share of the steps on the way up, 0 to 1.
    start_factor, final_factor : float
        peak over the first rate, and the first rate over the last.

    Returns
    -------
    float
        The rate of the step.

    Raises
    ------
    ArgumentError
        Unless total >= 1 and 0 <= rise <= 1.

    Examples
    --------
    >>> from tlrt.nn import schedules
    >>> [round(schedules.one_cycle(k, peak=1.0, total=5, rise=0.4, start_factor=10.0), 3) for k in range(5)]
    [0.1, 1.0, 0.75, 0.25, 0.0]

    Source: Smith and Topin, arXiv:1708.07120; torch.optim.lr_scheduler.OneCycleLR.
    """
    if total < 1 or not 0 <= rise <= 1:
        raise refusal(ArgumentError, "one_cycle", "total, rise", f"{total}, {rise}", "1 or more, 0 <= rise <= 1")
    start = peak / start_factor
    top, last = rise * total - 1, total - 1
    if step <= top:
        return _interpolate(start, peak, step / top) if top > 0 else peak
    return _interpolate(peak, start / final_factor, min((step - top) / (last - top), 1.0)) if last > top else peak


def cosine_restarts(step: int, *, peak: float, period: int, growth: int = 1, final: float = 0.0) -> float:
    """From peak down towards `final` along half a cosine, again and again.

    Parameters
    ----------
    step : int
        Counted from 0.
    peak, final : float
        The first and the last rate of a period.
    period, growth : int
        Steps of the first period; each is `growth` times as long as the one before.

    Returns
    -------
    float
        The rate of the step.

    Raises
    ------
    ArgumentError
        Unless period >= 1 and growth >= 1.

    Examples
    --------
    >>> from tlrt.nn import schedules
    >>> [round(schedules.cosine_restarts(k, peak=1.0, period=2), 3) for k in range(5)]
    [1.0, 0.5, 1.0, 0.5, 1.0]

    Source: torch.optim.lr_scheduler.CosineAnnealingWarmRestarts.
    """
    if period < 1 or growth < 1:
        raise refusal(ArgumentError, "cosine_restarts", "period, growth", f"{period}, {growth}", "1 or more each")
    if growth == 1:
        step %= period
    while step >= period:
        step, period = step - period, period * growth
    return _interpolate(peak, final, step / period)


def exponential(step: int, *, peak: float, factor: float) -> float:
    """peak·factor^step.

    Parameters
    ----------
    step : int
        Counted from 0.
    peak : float
        The first rate.
    factor : float
        Of each step.

    Returns
    -------
    float
        The rate of the step.

    Examples
    --------
    >>> from tlrt.nn import schedules
    >>> schedules.exponential(3, peak=1.0, factor=0.5)
    0.125

    Source: torch.optim.lr_scheduler.ExponentialLR.
    """
    return peak * factor**step


def inverse_sqrt(step: int, *, peak: float, warmup: int) -> float:
    """Up along a line for `warmup` steps, then peak·√(warmup/(step + 1)).

    Parameters
    ----------
    step : int
        Counted from 0.
    peak : float
        The highest rate.
    warmup : int
        Steps up.

    Returns
    -------
    float
        The rate of the step.

    Raises
    ------
    ArgumentError
        Unless warmup >= 1.

    Examples
    --------
    >>> from tlrt.nn import schedules
    >>> [schedules.inverse_sqrt(k, peak=1.0, warmup=4) for k in (0, 3, 15)]
    [0.25, 1.0, 0.5]

    Source: Vaswani et al., arXiv:1706.03762, section 5.3.
    """
    if warmup < 1:
        raise refusal(ArgumentError, "inverse_sqrt", "warmup", warmup, "1 or more")
    return peak * min((step + 1) / warmup, math.sqrt(warmup / (step + 1)))


def linear(step: int, *, peak: float, total: int, warmup: int = 0, final: float = 0.0) -> float:
    """Up along a line for `warmup` steps, then down to `final` along a line; as :func:`cosine` otherwise.

    Parameters
    ----------
    step : int
        Counted from 0.
    peak, final : float
        The highest and the last rate.
    total, warmup : int
        Steps in all, and steps up.

    Returns
    -------
    float
        The rate of the step.

    Raises
    ------
    ArgumentError
        Unless 0 <= warmup <= total.

    Examples
    --------
    >>> from tlrt.nn import schedules
    >>> [schedules.linear(k, peak=1.0, total=4) for k in range(5)]
    [1.0, 0.75, 0.5, 0.25, 0.0]

    Source: torch.optim.lr_scheduler.LinearLR.
    """
    return polynomial(step, peak=peak, total=total, warmup=warmup, final=final)


def milestones(step: int, *, peak: float, at: Sequence[int], factor: float = 0.1) -> float:
    """peak, times `factor` for each of the steps `at` that is reached.

    Parameters
    ----------
    step : int
        Counted from 0.
    peak : float
        The first rate.
    at : sequence of int
        Steps of the changes.
    factor : float
        Of each change.

    Returns
    -------
    float
        The rate of the step.

    Examples
    --------
    >>> from tlrt.nn import schedules
    >>> [schedules.milestones(k, peak=1.0, at=(1, 3), factor=0.5) for k in range(4)]
    [1.0, 0.5, 0.5, 0.25]

    Source: torch.optim.lr_scheduler.MultiStepLR.
    """
    return peak * factor ** sum(step >= reached for reached in at)


def polynomial(step: int, *, peak: float, total: int, power: float = 1.0, warmup: int = 0, final: float = 0.0) -> float:
    """As :func:`cosine`, with (1 - (step - warmup)/(total - warmup))^power in place of the cosine.

    Parameters
    ----------
    step : int
        Counted from 0.
    peak, final : float
        The highest and the last rate.
    total, warmup : int
        Steps in all, and steps up.
    power : float
        The exponent.

    Returns
    -------
    float
        The rate of the step.

    Raises
    ------
    ArgumentError
        Unless 0 <= warmup <= total.

    Examples
    --------
    >>> from tlrt.nn import schedules
    >>> [schedules.polynomial(k, peak=1.0, total=2, power=2.0) for k in range(3)]
    [1.0, 0.25, 0.0]

    Source: torch.optim.lr_scheduler.PolynomialLR.
    """

    def fall(share: float) -> float:
        return final + (peak - final) * (1 - share) ** power

    return _rise_and_fall("polynomial", step, peak, total, warmup, final, fall)


def warmup_stable_decay(step: int, *, peak: float, total: int, warmup: int, decay: int, final: float = 0.0) -> float:
    """Up along a line for `warmup` steps, peak, and in the last `decay` steps before `total` down along a line to `final`.

    Parameters
    ----------
    step : int
        Counted from 0.
    peak, final : float
        The highest and the last rate.
    total, warmup, decay : int
        Steps in all, steps up and steps down.

    Returns
    -------
    float
        The rate of the step.

    Raises
    ------
    ArgumentError
        Unless warmup and decay are 0 or more and at most `total` together.

    Examples
    --------
    >>> from tlrt.nn import schedules
    >>> [schedules.warmup_stable_decay(k, peak=1.0, total=6, warmup=2, decay=2) for k in range(7)]
    [0.5, 1.0, 1.0, 1.0, 1.0, 0.5, 0.0]

    Source: Hu et al., MiniCPM, arXiv:2404.06395.
    """
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


for _name in __all__:
    globals()[_name] = explained(globals()[_name], _name, 0)
