"""Schedules beside PyTorch's closed forms, at every step of short runs."""

import itertools

import pytest
from numpy.testing import assert_raises_regex

from tlrt.errors import ArgumentError
from tlrt.nn import schedules


def test_schedules_are_pytorchs():
    torch = pytest.importorskip("torch")
    rates = torch.optim.lr_scheduler
    cases = [
        (lambda k: schedules.exponential(k, peak=2.0, factor=0.75), lambda o: rates.ExponentialLR(o, 0.75)),
        *[(lambda k, at=at: schedules.milestones(k, peak=2.0, at=at, factor=0.5),
           lambda o, at=at: rates.MultiStepLR(o, at, 0.5)) for at in ((3, 7), (), (7, 3, 5), (3, 7, 3))],
        (lambda k: schedules.polynomial(k, peak=2.0, total=9, power=2.0), lambda o: rates.PolynomialLR(o, 9, 2.0)),
        (lambda k: schedules.linear(k, peak=2.0, total=9, final=0.5), lambda o: rates.LinearLR(o, 1.0, 0.25, 9)),
        *[(lambda k, p=p, g=g: schedules.cosine_restarts(k, peak=2.0, period=p, growth=g, final=0.5),
           lambda o, p=p, g=g: rates.CosineAnnealingWarmRestarts(o, p, g, 0.5)) for p in (1, 2, 4) for g in (1, 2, 3)],
        (lambda k: schedules.step_decay(k, peak=2.0, every=3, factor=0.5), lambda o: rates.StepLR(o, 3, 0.5)),
        (lambda k: schedules.cosine(k, peak=2.0, total=20, final=0.1), lambda o: rates.CosineAnnealingLR(o, 20, 0.1)),
        (lambda k: schedules.one_cycle(k, peak=2.0, total=20),
         lambda o: rates.OneCycleLR(o, 2.0, 20, cycle_momentum=False)),
        (lambda k: schedules.one_cycle(k, peak=2.0, total=20, rise=0.5, start_factor=10, final_factor=100),
         lambda o: rates.OneCycleLR(o, 2.0, 20, pct_start=0.5, cycle_momentum=False, div_factor=10, final_div_factor=100)),
        (lambda k: schedules.constant(k, peak=2.0), lambda o: rates.ConstantLR(o, 1.0)),
    ]  # fmt: skip
    for ours, theirs in cases:
        optimizer = torch.optim.SGD([torch.zeros(1, requires_grad=True)], lr=2.0)
        schedule = theirs(optimizer)
        for k in range(20):
            assert ours(k) == pytest.approx(optimizer.param_groups[0]["lr"], rel=1e-12, abs=1e-12), k
            optimizer.step(), schedule.step()


def test_restarts_begin_where_the_periods_before_end():
    for growth in range(1, 8):
        for period in range(1, 12):
            starts, length = [0], period
            while starts[-1] < 2500:
                starts.append(starts[-1] + length)
                length *= growth
            for first, after in itertools.pairwise(starts):
                for step in {first, (first + after) // 2, after - 1}:
                    rate = schedules.cosine_restarts(step, peak=2.0, period=period, growth=growth)
                    assert rate == schedules.cosine(step - first, peak=2.0, total=after - first), (period, growth, step)


def test_schedules_with_warmup():
    assert [schedules.inverse_sqrt(k, peak=1.0, warmup=4) for k in (0, 1, 3, 15, 63)] == [0.25, 0.5, 1.0, 0.5, 0.25]
    assert [schedules.linear(k, peak=1.0, total=6, warmup=2) for k in range(8)] == [0.5, 1, 1, 0.75, 0.5, 0.25, 0, 0]
    rates = [schedules.warmup_stable_decay(k, peak=1.0, total=8, warmup=2, decay=4, final=0.5) for k in range(10)]
    assert rates == [0.5, 1, 1, 1, 1, 0.875, 0.75, 0.625, 0.5, 0.5]
    assert [schedules.warmup_stable_decay(k, peak=1.0, total=2, warmup=0, decay=0) for k in range(2)] == [1.0, 1.0]
    assert [schedules.warmup_stable_decay(k, peak=1.0, total=2, warmup=1, decay=1) for k in range(3)] == [1.0, 1.0, 0.0]


def test_cosine_and_polynomial_rise_alike():
    rise = [0.5, 1.0, 1.0]
    assert [schedules.cosine(k, peak=1.0, total=4, warmup=2) for k in (0, 1, 2, 3, 4, 9)] == [*rise, 0.5, 0, 0]
    falls = [schedules.polynomial(k, peak=1.0, total=4, warmup=2, power=2.0, final=0.5) for k in (0, 1, 2, 3, 4, 9)]
    assert falls == [*rise, 0.625, 0.5, 0.5]
    assert schedules.cosine(2, peak=1.0, total=2, warmup=2, final=0.25) == 0.25
    assert schedules.one_cycle(50, peak=1.0, total=10) == pytest.approx(4e-6)
    assert [schedules.one_cycle(k, peak=2.0, total=4, rise=rise) for k, rise in ((0, 0.25), (9, 1.0))] == [2.0, 2.0]


def test_schedules_refuse():
    for call, said in (
        (lambda: schedules.cosine(0, peak=1.0, total=2, warmup=3), "cosine: warmup: got 3, expected 0 <= warmup"),
        (lambda: schedules.cosine(0, peak=1.0, total=2, warmup=-1), "warmup: got -1"),
        (lambda: schedules.cosine_restarts(0, peak=1.0, period=0), "period, growth: got 0, 1"),
        (lambda: schedules.cosine_restarts(0, peak=1.0, period=1, growth=0), "period, growth: got 1, 0"),
        (lambda: schedules.inverse_sqrt(0, peak=1.0, warmup=0), "warmup: got 0"),
        (lambda: schedules.step_decay(0, peak=1.0, every=0), "every: got 0"),
        (lambda: schedules.one_cycle(0, peak=1.0, total=0), "expected 1 or more"),
        (lambda: schedules.one_cycle(0, peak=1.0, total=1, rise=-0.5), "total, rise: got 1, -0.5"),
        (lambda: schedules.one_cycle(0, peak=1.0, total=1, rise=1.5), "total, rise: got 1, 1.5"),
        (lambda: schedules.polynomial(0, peak=1.0, total=2, warmup=3), "warmup: got 3"),
        (lambda: schedules.warmup_stable_decay(0, peak=1.0, total=5, warmup=3, decay=3), "together at most total = 5"),
        (lambda: schedules.warmup_stable_decay(0, peak=1.0, total=5, warmup=-1, decay=3), "warmup, decay: got -1, 3"),
        (lambda: schedules.warmup_stable_decay(0, peak=1.0, total=5, warmup=3, decay=-1), "warmup, decay: got 3, -1"),
    ):
        assert_raises_regex(ArgumentError, said, call)
