"""Gradients that go to other ranks while the rest of the backward pass runs: in order, with the same bits, and not at all where
somebody looks on."""

from typing import Any

import numpy as np
import pytest
from numpy.testing import assert_raises_regex

import tlrt
from tests.runtime.thread_group import ThreadGroup, run_ranks
from tlrt import distributed, errors, optim
from tlrt.context import Observer
from tlrt.distributed.exchanges import Exchange

pytestmark = pytest.mark.usefixtures("closed_devices")
LAYERS, WIDTH, SHARDS = 6, 8, 4


def build(s: tlrt.Session) -> list[tlrt.Parameter]:
    rng = np.random.default_rng(3)
    return [s.param(rng.standard_normal((WIDTH, WIDTH)), f"w{i}") for i in range(LAYERS)]


def loss(s: tlrt.Session, weights: list[tlrt.Parameter], step: int, shard: int) -> tlrt.TensorRef:
    h: Any = s.const(np.random.default_rng([step, shard]).standard_normal((5, WIDTH)))
    for i, w in enumerate(weights):
        if i == 2 and shard == 2:
            continue  # a shard that does not reach it
        h = s.tanh(s.matmul(h, s.use(w)))
    return s.mean(s.mul(h, h)) if step % 2 else s.sum(s.mul(h, s.use(weights[0])[0:5]))


def train(
    group: distributed.Group, log: list[Any] | None = None, observer: Observer | None = None, **options: Any
) -> bytes:
    with tlrt.Session("cpu", math="reproducible", seed=1) as s:
        weights = build(s)
        training = distributed.DataParallel(s, lambda p: optim.AdamW(p, lr=0.01), group, shards=SHARDS, **options)
        if log is not None:
            record(training, log)
        if observer is not None:
            s.device.observe(observer)
        for step in range(3):
            training.step(lambda shard, step=step: loss(s, weights, step, shard))
        return b"".join(p.numpy().tobytes() for p in weights)


def record(training: Any, log: list[Any]) -> None:
    """Notes when buckets start, and when the backward passes and their steps begin."""
    made: Exchange = training._exchange
    start, finish = made.start, made.finish

    def noted(bucket: Any, gradients: Any) -> None:
        log.append(("start", training._layout.buckets.index(bucket)))
        start(bucket, gradients)

    def ended() -> Any:
        log.append(("finish", len(log)))
        return finish()

    made.start, made.finish = noted, ended  # type: ignore[method-assign]
    backward = training.session.backward

    def during(found: Any) -> Any:
        log.append(("backward", "begins"))
        try:
            return backward(found)
        finally:
            log.append(("backward", "ends"))

    training.session.backward = during


@pytest.fixture(scope="module")
def alone() -> bytes:
    return train(distributed.Group())


@pytest.mark.parametrize("size", [1, 2, 4])
@pytest.mark.parametrize("bucket", [1, 4 * WIDTH * WIDTH, 12 * WIDTH * WIDTH, 1 << 20])
@pytest.mark.parametrize("overlap", [True, False])
def test_neither_buckets_nor_overlap_change_a_bit(size: int, bucket: int, overlap: bool, alone: bytes) -> None:
    assert run_ranks(size, lambda group: train(group, overlap=overlap, bucket=bucket)) == [alone] * size


def test_buckets_start_in_order_while_the_last_backward_pass_runs(alone: bytes) -> None:
    logs: dict[int, list[Any]] = {0: [], 1: []}

    def work(group: ThreadGroup) -> bytes:
        return train(group, logs[group.rank], bucket=4 * WIDTH * WIDTH)

    assert run_ranks(2, work) == [alone] * 2
    for log in logs.values():
        step = log[: log.index(next(e for e in log if e[0] == "finish")) + 1]
        started = [number for kind, number in step if kind == "start"]
        assert started == list(range(LAYERS))
        # two shards a rank: none in the first backward pass, all but perhaps the last within the second
        ends = [i for i, e in enumerate(step) if e == ("backward", "ends")]
        starts = [i for i, e in enumerate(step) if e[0] == "start"]
        assert len(ends) == 2 and ends[0] < starts[0] and starts[LAYERS - 2] < ends[1]


def test_they_wait_for_the_end_of_the_backward_pass_where_the_device_is_observed(alone: bytes) -> None:
    log: list[Any] = []

    def work(group: ThreadGroup) -> bytes:
        return train(group, log if not group.rank else None, Observer(), bucket=4 * WIDTH * WIDTH)

    assert run_ranks(2, work) == [alone] * 2
    kinds = [e for e in log if e[0] in ("start", "backward")]
    assert kinds[: 4 + LAYERS] == [("backward", "begins"), ("backward", "ends")] * 2 + [
        ("start", i) for i in range(LAYERS)
    ]


def memory_around_failure(group: ThreadGroup, layer: int) -> tuple[list[int], list[int]]:
    """The buffers before and after a step whose last backward pass fails below a layer."""
    with tlrt.Session("cpu", seed=1) as s:
        weights = build(s)
        training = distributed.DataParallel(s, lambda p: optim.SGD(p), group, shards=SHARDS, bucket=256)
        training.step(lambda shard: loss(s, weights, 0, shard))
        assert all(w.mirror is not None for w in weights)  # uploads those that other ranks sent

        def count() -> list[int]:
            devices = [s.device, *(link.device for link in group._communicators.values())]
            return [device.memory().live_buffers for device in devices]

        def fails(shard: int) -> tlrt.TensorRef:
            h: Any = s.const(np.ones((WIDTH, WIDTH)))
            for i, w in enumerate([*weights, h]):
                if i == layer and shard % 2:
                    refuse = lambda x, g: (_ for _ in ()).throw(OSError("gone"))
                    h = s._ref(s.epoch, s.tape.unary("refused", h.id, h.shape, h.shape, lambda x: x.copy(), refuse))
                h = s.matmul(h, s.use(w) if i < LAYERS else w)
            return s.mean(h)

        before = count()
        assert_raises_regex(OSError, "gone", training.step, fails)
        s.reset()
        return before, count()


def test_a_step_that_fails_leaves_no_memory_and_no_work_behind() -> None:
    for before, after in run_ranks(2, lambda group: memory_around_failure(group, LAYERS)):
        assert after == before


@pytest.mark.parametrize(("name", "value"), [("bucket", 0), ("bucket", 1.5), ("overlap", 1)])
def test_arguments_are_refused(name: str, value: Any) -> None:
    with tlrt.Session("cpu") as s, pytest.raises((errors.ArgumentError, errors.ArgumentTypeError), match=name):
        build(s)
        distributed.DataParallel(s, lambda p: optim.SGD(p), shards=2, **{name: value})
