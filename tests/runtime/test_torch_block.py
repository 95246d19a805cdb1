"""Blocks that end in odd places: in other threads, around a profiler, in an object that is entered twice."""

import threading
from typing import Any

import pytest

from tests.runtime.torch_cases import drawn, mode, torch


def calls(report: Any) -> int:
    return sum(c.calls for c in report.here.values())


def test_an_object_is_entered_twice() -> None:
    x, block = drawn(1, 3, 3), mode.reproducible(strict=True)
    with block as outer:
        with block as inner:
            x @ x
            with pytest.raises(NotImplementedError, match="bessel_j0"):
                torch.special.bessel_j0(x)
        x @ x
    x @ x
    assert (calls(outer), calls(inner)) == (1, 1)


def test_errors_of_the_program_are_its_own() -> None:
    with pytest.raises(NotImplementedError, match="^mine$"), mode.reproducible():
        raise NotImplementedError("mine")


def test_another_thread_cannot_leave_a_block() -> None:
    block, found = mode.reproducible(), []
    report = block.__enter__()

    def leave() -> None:
        with pytest.raises(RuntimeError, match="thread: got another one") as raised:
            block.__exit__(None, None, None)
        found.append(raised.value)

    thread = threading.Thread(target=leave)
    thread.start()
    thread.join()
    drawn(1, 3, 3) @ drawn(2, 3, 3)
    block.__exit__(None, None, None)
    assert len(found) == 1 and calls(report) == 1


def test_a_block_that_ended_with_a_hook_is_left() -> None:
    block, reports = mode.reproducible(), []
    x = drawn(2, 3).requires_grad_()
    y = x.exp()
    y.register_hook(lambda g: reports.append(block.__enter__()))
    y.sum().backward()
    block.__exit__(None, None, None)
    x @ x
    assert calls(reports[0]) == 0


@pytest.mark.parametrize("begins", ["inside", "outside"])
@pytest.mark.parametrize("ends", ["inside", "outside"])
def test_a_profiler_and_a_block_end_in_any_order(begins: str, ends: str) -> None:
    x, profiler = drawn(3, 3, 3), torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU])
    if begins == "outside":
        profiler.start()
    with mode.reproducible() as report:
        if begins == "inside":
            profiler.start()
        x @ x
        if ends == "inside":
            profiler.stop()
            x @ x
    if ends == "outside":
        x @ x
        profiler.stop()
    assert calls(report) == (2 if ends == "inside" else 1)
    assert "aten::mm" in {e.key for e in profiler.key_averages()}


def test_blocks_of_two_threads_give_compilation_back() -> None:
    first, second, done = (threading.Event() for _ in range(3))
    stances: list[str] = []
    eval_frame = pytest.importorskip("torch._dynamo.eval_frame")

    def early() -> None:
        with mode.reproducible():
            first.set()
            second.wait(60)
        done.set()

    def late() -> None:
        first.wait(60)
        with mode.reproducible():
            second.set()
            done.wait(60)
            stances.append(eval_frame._stance.stance)

    threads = [threading.Thread(target=f) for f in (early, late)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    assert stances == ["force_eager"]
    assert eval_frame._stance.stance == "default"
